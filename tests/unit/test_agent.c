/*
 * HAProxy's agent checks: every state's line to the byte, the proxy's share, and a server that is
 * asked often, by clients that say nothing, half of it, or leave.
 */
#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "wire/addr.h"
#include "wire/agent.h"

static void expect(struct mt_agent a, int share, const char *line)
{
    char out[MT_AGENT_LINE];
    size_t n = mt_agent_reply(&a, share, out);

    assert_int_equal(n, strlen(line));
    assert_string_equal(out, line);
}

static void test_replies(void **state)
{
    (void)state;
    expect((struct mt_agent){MT_AGENT_OPEN, 11, 29, 0}, 1, "up ready 62% maxconn:29\n");
    expect((struct mt_agent){MT_AGENT_OPEN, 0, 29, 0}, 1, "up ready 100% maxconn:29\n");
    expect((struct mt_agent){MT_AGENT_OPEN, 29, 29, 0}, 1, "up ready 1% maxconn:29\n");
    expect((struct mt_agent){MT_AGENT_OPEN, 40, 29, 0}, 1, "up ready 1% maxconn:29\n");
    expect((struct mt_agent){MT_AGENT_HOLDING, 11, 29, 0}, 1, "up ready 1% maxconn:29\n");
    expect((struct mt_agent){MT_AGENT_DRAINING, 11, 29, 0}, 1, "up drain maxconn:29\n");
    expect((struct mt_agent){MT_AGENT_OPEN, 0, 0, 0}, 1, "up drain maxconn:1\n");
    expect((struct mt_agent){MT_AGENT_DRAINING, 3, 0, 0}, 1, "up drain maxconn:1\n");
    expect((struct mt_agent){MT_AGENT_WARMING, 0, 29, 0}, 1, "down # warming\n");
    expect((struct mt_agent){MT_AGENT_STALLED, 11, 29, 412}, 1, "down # stalled 412ms\n");
    expect((struct mt_agent){MT_AGENT_STOPPED, 11, 29, 0}, 1, "stopped # shutdown\n");
    /* The room is the whole server's, the limit is shared, and never none at all. */
    expect((struct mt_agent){MT_AGENT_OPEN, 11, 29, 0}, 2, "up ready 62% maxconn:14\n");
    expect((struct mt_agent){MT_AGENT_OPEN, 11, 29, 0}, 30, "up ready 62% maxconn:1\n");
    expect((struct mt_agent){MT_AGENT_DRAINING, 11, 29, 0}, 3, "up drain maxconn:9\n");
    expect((struct mt_agent){MT_AGENT_STALLED, 0, INT32_MAX, INT64_MAX}, 1,
           "down # stalled 9223372036854775807ms\n");
}

static void test_share(void **state)
{
    static const struct {
        const char *line;
        int share;
    } cases[] = {
        {"share=2", 2},  {"share=10000", 10000}, {"share=10001", 1},  {"share=0", 1},
        {"share=-1", 1}, {"share=", 1},          {"share=2x", 1},     {"", 1},
        {"Share=2", 1},  {"share= 2", 1},        {"GET / HTTP/1", 1}, {"share=00000000002", 1}};

    (void)state;
    for (size_t i = 0; i < MT_COUNT(cases); i++)
        assert_int_equal(mt_agent_share(cases[i].line, strlen(cases[i].line)), cases[i].share);
}

static void test_judge(void **state)
{
    struct mt_admit_opts o;
    struct mt_err e = {0};
    struct mt_admit law;

    (void)state;
    mt_admit_defaults(&o);
    o.deadline_s = 0.08;
    assert_int_equal(mt_admit_init(&law, &o, &e), 0);
    assert_int_equal(mt_agent_judge(&law, "ok").state, MT_AGENT_OPEN);
    assert_int_equal(mt_agent_judge(&law, NULL).state, MT_AGENT_OPEN);
    assert_int_equal(mt_agent_judge(&law, "ok").limit, law.limit);
    assert_int_equal(mt_agent_judge(&law, "warming").state, MT_AGENT_WARMING);
    assert_int_equal(mt_agent_judge(&law, "stalled").state, MT_AGENT_STALLED);
    assert_int_equal(mt_agent_judge(&law, "draining").state, MT_AGENT_DRAINING);
    assert_int_equal(mt_agent_judge(&law, "late").state, MT_AGENT_HOLDING);
    law.stalled = true;
    assert_int_equal(mt_agent_judge(&law, "ok").state, MT_AGENT_STALLED);
    assert_int_equal(mt_agent_judge(&law, "draining").state, MT_AGENT_DRAINING);
}

/* ---- the server ---- */

static int ask(const struct mt_agent_server *s)
{
    struct mt_err e = {0};
    struct mt_addr a;
    int fd;

    assert_int_equal(mt_addr_parse_service(&a, mt_agent_where(s), &e), 0);
    fd = mt_addr_connect(&a, INT64_MAX, NULL);
    assert_true(fd >= 0);
    return fd;
}

/* All that comes until the server closes. */
static void hear(int fd, char out[128])
{
    size_t n = 0;
    ssize_t k;

    while (mt_addr_wait(fd, POLLIN, INT64_MAX) == 0 && (k = read(fd, out + n, 127 - n)) > 0)
        n += (size_t)k;
    out[n] = '\0';
    close(fd);
}

static void say(int fd, const char *text)
{
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
}

static int agent_up(void **state)
{
    struct mt_agent_server *s = NULL;
    struct mt_err e = {0};

    assert_int_equal(mt_agent_serve(&s, "0", &e), 0);
    *state = s;
    return 0;
}

static int agent_down(void **state)
{
    struct mt_agent_server *s = *state;

    mt_agent_stop(&s);
    assert_null(s);
    return 0;
}

static void tell_open(struct mt_agent_server *s)
{
    struct mt_agent a = {MT_AGENT_OPEN, 11, 29, 0};

    mt_agent_tell(s, &a, 0);
}

static void test_serve(void **state)
{
    struct mt_agent_server *s = *state;
    struct mt_agent stalled = {MT_AGENT_STALLED, 11, 29, 412}, open = {MT_AGENT_OPEN, 11, 29, 0};
    char got[128];
    int fd;

    hear(ask(s), got); /* not a word, and the answer comes */
    assert_string_equal(got, "down # warming\n");
    tell_open(s);
    hear(ask(s), got);
    assert_string_equal(got, "up ready 62% maxconn:29\n");
    say(fd = ask(s), "share=2\n");
    hear(fd, got);
    assert_string_equal(got, "up ready 62% maxconn:14\n");
    say(fd = ask(s), "share=2\r\nand so on\r\n");
    hear(fd, got);
    assert_string_equal(got, "up ready 62% maxconn:14\n");
    say(fd = ask(s), "share=2"); /* without an end of its line it is none */
    shutdown(fd, SHUT_WR);
    hear(fd, got);
    assert_string_equal(got, "up ready 62% maxconn:14\n");
    fd = ask(s);
    for (int i = 0; i < 10; i++)
        say(fd, "nonsense without an end ");
    hear(fd, got);
    assert_string_equal(got, "up ready 62% maxconn:29\n");
    mt_agent_tell(s, &stalled, 0);
    hear(ask(s), got);
    assert_int_equal(strncmp(got, "down # stalled ", 15), 0);
    assert_true(atoi(got + 15) >= 412);
    mt_agent_tell(s, &open, 1); /* nothing was heard for longer than a nanosecond */
    hear(ask(s), got);
    assert_int_equal(strncmp(got, "down # stalled ", 15), 0);
}

/* A thousand checks, one after the other: none may wait for anything but the machine. */
static void test_often(void **state)
{
    enum { N = 1000 };
    struct mt_agent_server *s = *state;
    struct mt_clock clock = mt_clock_real();
    struct mt_hist h;
    char got[128];

    mt_hist_clear(&h);
    tell_open(s);
    for (int i = 0; i < N; i++) {
        int64_t start = clock.now_ns(&clock);
        int fd = ask(s);

        say(fd, "share=1\n");
        hear(fd, got);
        assert_string_equal(got, "up ready 62% maxconn:29\n");
        mt_hist_add(&h, clock.now_ns(&clock) - start);
    }
    print_message("%d checks: p50 %.3f ms, p99 %.3f ms, max %.3f ms\n", N,
                  (double)mt_hist_quantile(&h, 0.5) / 1e6, (double)mt_hist_quantile(&h, 0.99) / 1e6,
                  (double)h.max / 1e6);
}

/* Those who neither speak, read nor close, more than there is room for: others are answered. */
static void test_half_open(void **state)
{
    enum { N = 300 };
    struct mt_agent_server *s = *state;
    static int fds[N];
    char got[128];
    int fd;

    tell_open(s);
    for (int i = 0; i < N; i++)
        fds[i] = ask(s);
    say(fd = ask(s), "share=1\n");
    hear(fd, got);
    assert_string_equal(got, "up ready 62% maxconn:29\n");
    for (int i = 0; i < N; i++)
        close(fds[i]);
}

static void test_where(void **state)
{
    struct mt_agent_server *s = NULL, *other = NULL;
    struct mt_err e = {0};

    (void)state;
    assert_int_equal(mt_agent_serve(&s, "rubbish", &e), -EINVAL);
    assert_null(s);
    assert_non_null(strstr(e.text, "rubbish"));
    assert_int_equal(mt_agent_serve(&s, "127.0.0.1:0", &e), 0);
    memset(&e, 0, sizeof(e));
    assert_int_equal(mt_agent_serve(&other, mt_agent_where(s), &e), -EADDRINUSE);
    assert_non_null(strstr(e.text, mt_agent_where(s)));
    assert_null(other);
    mt_agent_stop(&s);
    mt_agent_stop(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_replies),
        cmocka_unit_test(test_share),
        cmocka_unit_test(test_judge),
        cmocka_unit_test(test_where),
        cmocka_unit_test_setup_teardown(test_serve, agent_up, agent_down),
        cmocka_unit_test_setup_teardown(test_often, agent_up, agent_down),
        cmocka_unit_test_setup_teardown(test_half_open, agent_up, agent_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
