/*
 * test_base.c: lib/base against its header: parsing, messages, lines, histograms, records, clocks.
 */
#include "base/base.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- errors ---- */

static void test_err_first_wins(void **state)
{
    struct mt_err e = {0};

    (void)state;
    assert_int_equal(mt_err_set(&e, -ENOENT, "%s: line %d", "a.wav", 3), -ENOENT);
    assert_int_equal(mt_err_set(&e, -EINVAL, "later"), -EINVAL);
    assert_int_equal(e.code, -ENOENT);
    assert_string_equal(e.text, "a.wav: line 3");
    assert_int_equal(mt_err_set(NULL, -EIO, "nobody listens"), -EIO);
}

static void test_err_cut_at_whole_character(void **state)
{
    /* 2, 3 and 4 byte characters, shifted so that every cut is met. */
    static const char *const chars[] = {"\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x8e\xb5"};

    (void)state;
    for (size_t c = 0; c < MT_COUNT(chars); c++) {
        for (size_t shift = 0; shift < 4; shift++) {
            struct mt_err e = {0};
            char text[1200] = "";
            size_t unit = strlen(chars[c]), n;

            memset(text, 'x', shift);
            while (strlen(text) < 900)
                strcat(text, chars[c]);
            mt_err_set(&e, -EINVAL, "%s", text);
            n = strlen(e.text);
            assert_in_range(n, sizeof(e.text) - unit, sizeof(e.text) - 1);
            assert_int_equal((n - shift) % unit, 0);
        }
    }
}

/* ---- parsing ---- */

static void test_parse_i64(void **state)
{
    static const char *const bad[] = {"",    " 1",  "+1", "1 ", "0x10", "1.0", "1e3",
                                      "abc", "--1", "-",  "1k", "nan",  "inf", "\t1"};
    int64_t v = 77;

    (void)state;
    assert_int_equal(mt_parse_i64("0", 0, 9, &v), 0);
    assert_int_equal(v, 0);
    assert_int_equal(mt_parse_i64("-9223372036854775808", INT64_MIN, INT64_MAX, &v), 0);
    assert_true(v == INT64_MIN);
    assert_int_equal(mt_parse_i64("9223372036854775807", INT64_MIN, INT64_MAX, &v), 0);
    assert_true(v == INT64_MAX);
    v = 77;
    assert_int_equal(mt_parse_i64("9223372036854775808", INT64_MIN, INT64_MAX, &v), -ERANGE);
    assert_int_equal(mt_parse_i64("10", 0, 9, &v), -ERANGE);
    assert_int_equal(mt_parse_i64("-1", 0, 9, &v), -ERANGE);
    for (size_t i = 0; i < MT_COUNT(bad); i++)
        assert_int_equal(mt_parse_i64(bad[i], INT64_MIN, INT64_MAX, &v), -EINVAL);
    assert_int_equal(v, 77);
}

static void test_parse_double(void **state)
{
    static const char *const bad[] = {"",      ".",  " 1",   "+1",  "1 ", "0x1p3",    "nan", "inf",
                                      "1.5.2", "1e", "1e+-", "1,5", "-",  "infinity", "1s",  "NaN"};
    double v = 77;

    (void)state;
    assert_int_equal(mt_parse_double("0.8", 0, 1, &v), 0);
    assert_true(v == 0.8);
    assert_int_equal(mt_parse_double("-2.5e-3", -1, 1, &v), 0);
    assert_true(v == -2.5e-3);
    assert_int_equal(mt_parse_double(".5", 0, 1, &v), 0);
    assert_true(v == .5);
    v = 77;
    assert_int_equal(mt_parse_double("1e999", -INFINITY, INFINITY, &v), -ERANGE);
    assert_int_equal(mt_parse_double("1.01", 0, 1, &v), -ERANGE);
    for (size_t i = 0; i < MT_COUNT(bad); i++)
        assert_int_equal(mt_parse_double(bad[i], -INFINITY, INFINITY, &v), -EINVAL);
    assert_true(v == 77);
}

static void test_parse_size(void **state)
{
    static const struct {
        const char *text;
        int64_t bytes;
    } good[] = {
        {"0", 0},
        {"512", 512},
        {"1K", 1000},
        {"2M", 2000000},
        {"3G", 3000000000},
        {"1T", INT64_C(1000000000000)},
        {"1KiB", 1024},
        {"40GiB", INT64_C(42949672960)},
        {"1.5GiB", INT64_C(1610612736)},
        {"0.29K", 290},
        {"1.1KiB", 1126},
        {"8388607TiB", INT64_C(8388607) << 40},
    };
    static const char *const bad[] = {"",     "GiB", "1k",  "1KB",  "1 K", "+1K", "0x1K", "1KiBx",
                                      "1e3K", "0.5", "1.0", "nanK", "1Ki", "1B",  "1ms",  "--1"};
    int64_t v;

    (void)state;
    for (size_t i = 0; i < MT_COUNT(good); i++) {
        v = -1;
        assert_int_equal(mt_parse_size(good[i].text, &v), 0);
        assert_true(v == good[i].bytes);
    }
    v = 77;
    for (size_t i = 0; i < MT_COUNT(bad); i++)
        assert_int_equal(mt_parse_size(bad[i], &v), -EINVAL);
    assert_int_equal(mt_parse_size("-1", &v), -ERANGE);
    assert_int_equal(mt_parse_size("8388608TiB", &v), -ERANGE);
    assert_int_equal(mt_parse_size("8388608.5TiB", &v), -ERANGE);
    assert_int_equal(mt_parse_size("99999999999999999999", &v), -ERANGE);
    assert_int_equal(v, 77);
}

static void test_parse_duration(void **state)
{
    static const struct {
        const char *text;
        int64_t ns;
    } good[] = {
        {"0", 0},
        {"2", 2 * MT_NS_PER_S},
        {"80ms", 80 * MT_NS_PER_MS},
        {"0.08", 80 * MT_NS_PER_MS},
        {"1.5s", 1500 * MT_NS_PER_MS},
        {"10min", 600 * MT_NS_PER_S},
        {"1h", 3600 * MT_NS_PER_S},
        {"0.000001ms", 1},
    };
    static const char *const bad[] = {"", "s", "1m", "1sec", "1 s", "+1s", "1h30", "0x1s", "inf"};
    int64_t v;

    (void)state;
    for (size_t i = 0; i < MT_COUNT(good); i++) {
        v = -1;
        assert_int_equal(mt_parse_duration(good[i].text, &v), 0);
        assert_true(v == good[i].ns);
    }
    v = 77;
    for (size_t i = 0; i < MT_COUNT(bad); i++)
        assert_int_equal(mt_parse_duration(bad[i], &v), -EINVAL);
    assert_int_equal(mt_parse_duration("-1s", &v), -ERANGE);
    assert_int_equal(mt_parse_duration("2562048h", &v), -ERANGE);
    assert_int_equal(v, 77);
}

static void test_parse_pair(void **state)
{
    char text[] = "window=2048,sinks=4,plain,,url=a=b,";
    char empty[] = "";
    char *cursor = text, *key, *value;

    (void)state;
    assert_int_equal(mt_parse_pair(&cursor, &key, &value), 1);
    assert_string_equal(key, "window");
    assert_string_equal(value, "2048");
    assert_int_equal(mt_parse_pair(&cursor, &key, &value), 1);
    assert_string_equal(key, "sinks");
    assert_string_equal(value, "4");
    assert_int_equal(mt_parse_pair(&cursor, &key, &value), 1);
    assert_string_equal(key, "plain");
    assert_null(value);
    assert_int_equal(mt_parse_pair(&cursor, &key, &value), 1);
    assert_string_equal(key, "");
    assert_int_equal(mt_parse_pair(&cursor, &key, &value), 1);
    assert_string_equal(key, "url");
    assert_string_equal(value, "a=b");
    assert_int_equal(mt_parse_pair(&cursor, &key, &value), 0);
    assert_int_equal(mt_parse_pair(&cursor, &key, &value), 0);
    cursor = empty;
    assert_int_equal(mt_parse_pair(&cursor, &key, &value), 0);
}

/* ---- histogram ---- */

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

static void test_hist_quantiles(void **state)
{
    enum { N = 20000 };
    static int64_t v[N];
    static struct mt_hist h, half[2];

    (void)state;
    mt_hist_clear(&h);
    mt_hist_clear(&half[0]);
    mt_hist_clear(&half[1]);
    assert_true(mt_hist_quantile(&h, 0.5) == 0);
    for (int i = 0; i < N; i++) {
        v[i] = (int64_t)exp(mt_unit(mt_mix64((uint64_t)i)) * 32); /* 1 ns to 22 h */
        mt_hist_add(&h, v[i]);
        mt_hist_add(&half[i % 3 == 0], v[i]);
    }
    qsort(v, N, sizeof(v[0]), by_value);
    for (int k = 1; k <= 1000; k++) {
        int64_t exact = v[(int64_t)k * N / 1000 - 1], got = mt_hist_quantile(&h, k / 1000.0);

        assert_true(got >= exact);
        assert_true((double)(got - exact) <= (double)exact / 64);
    }
    assert_true(mt_hist_quantile(&h, 0) >= v[0]);
    assert_true(mt_hist_quantile(&h, 1) == v[N - 1]);
    assert_true(h.min == v[0] && h.max == v[N - 1] && h.count == N);
    mt_hist_merge(&half[0], &half[1]);
    assert_memory_equal(half[0].bucket, h.bucket, sizeof(h.bucket));
    assert_true(half[0].min == h.min && half[0].max == h.max && half[0].count == h.count);
}

static void test_hist_edges(void **state)
{
    static struct mt_hist h, none;

    (void)state;
    /* Each power of two and its neighbours: alone in a histogram, a value is its own quantile. */
    for (int e = 0; e <= 62; e++) {
        for (int d = -1; d <= 1; d++) {
            int64_t v = (INT64_C(1) << e) + d;

            mt_hist_clear(&h);
            mt_hist_add(&h, v);
            assert_true(mt_hist_quantile(&h, 0.5) == v);
        }
    }
    mt_hist_clear(&h);
    mt_hist_add(&h, -5);
    assert_true(h.min == 0 && h.max == 0 && h.sum == 0 && h.bucket[0] == 1);
    mt_hist_add(&h, (INT64_C(1) << 47) + 1);
    mt_hist_add(&h, INT64_MAX);
    assert_true(h.bucket[MT_HIST_BUCKETS - 1] == 2);
    assert_true(mt_hist_quantile(&h, 0.99) == INT64_MAX);
    mt_hist_clear(&none);
    mt_hist_merge(&h, &none);
    assert_true(h.count == 3 && h.min == 0);
    mt_hist_merge(&none, &h);
    assert_true(none.count == 3 && none.min == 0 && none.max == INT64_MAX);
}

/* ---- records ---- */

static void test_json_line(void **state)
{
    char *text = NULL;
    size_t n = 0;
    FILE *f = open_memstream(&text, &n);
    json_t *o = json_object();

    (void)state;
    json_object_set_new(o, "type", json_string("frame"));
    mt_json_set_real(o, "t", 0.1 + 0.2);
    mt_json_set_real(o, "big", 1e300);
    mt_json_set_real(o, "gone", NAN);
    mt_json_set_real(o, "far", -INFINITY);
    json_object_set_new(o, "text", json_string("caf\xc3\xa9\n"));
    assert_int_equal(mt_json_line(f, o), 0);
    assert_int_equal(mt_json_line(f, NULL), -ENOMEM);
    fclose(f);
    assert_string_equal(
        text, "{\"type\":\"frame\",\"t\":0.3,\"big\":1e300,\"text\":\"caf\xc3\xa9\\n\"}\n");
    free(text);
    assert_null(mt_json_real(INFINITY));
    o = mt_json_real(-1e-9);
    assert_true(json_real_value(o) == 0 && !signbit(json_real_value(o)));
    json_decref(o);
}

static void test_json_line_says_what_was_lost(void **state)
{
    FILE *full = fopen("/dev/full", "w");
    int fd[2];

    (void)state;
    assert_non_null(full);
    assert_int_equal(mt_json_line(full, json_object()), -ENOSPC);
    fclose(full);
    signal(SIGPIPE, SIG_IGN);
    assert_int_equal(pipe(fd), 0);
    close(fd[0]);
    full = fdopen(fd[1], "w");
    assert_int_equal(mt_json_line(full, json_object()), -EPIPE);
    fclose(full);
}

/* ---- stdout and stderr, in a child whose descriptors are set up for the case ---- */

enum out_kind { OUT_FILE, OUT_FULL, OUT_LEFT, OUT_CLOSED };

/* Exit status of a child that prints (or not) and closes stdout; its stderr goes to text. */
static int close_in_child(enum out_kind kind, bool print, bool line, char *text, size_t room)
{
    int err[2], status;
    ssize_t n, got = 0;
    pid_t pid;

    assert_int_equal(pipe(err), 0);
    fflush(NULL);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        int out = -1, gone[2];

        signal(SIGPIPE, SIG_IGN);
        if (kind == OUT_LEFT) {
            if (pipe(gone))
                _exit(99);
            close(gone[0]);
            out = gone[1];
        } else if (kind != OUT_CLOSED) {
            out = open(kind == OUT_FULL ? "/dev/full" : "/dev/null", O_WRONLY);
        }
        dup2(err[1], 2);
        if (out >= 0)
            dup2(out, 1);
        else
            close(1);
        mt_msg_program("/usr/bin/mt-child");
        if (print && line)
            mt_json_line(stdout, json_object());
        else if (print)
            fputs("data\n", stdout);
        _exit(mt_close_stdout(MT_EXIT_OK));
    }
    close(err[1]);
    while ((n = read(err[0], text + got, room - 1 - (size_t)got)) > 0)
        got += n;
    text[got] = '\0';
    close(err[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void test_close_stdout(void **state)
{
    char text[500];

    (void)state;
    for (int line = 0; line < 2; line++) {
        assert_int_equal(close_in_child(OUT_FILE, true, line, text, sizeof(text)), 0);
        assert_string_equal(text, "");
        assert_int_equal(close_in_child(OUT_LEFT, true, line, text, sizeof(text)), 0);
        assert_string_equal(text, "");
        assert_int_equal(close_in_child(OUT_FULL, true, line, text, sizeof(text)), 1);
        assert_string_equal(text, "mt-child: standard output: No space left on device\n");
        assert_int_equal(close_in_child(OUT_CLOSED, true, line, text, sizeof(text)), 1);
        assert_string_equal(text, "mt-child: standard output: Bad file descriptor\n");
    }
    assert_int_equal(close_in_child(OUT_CLOSED, false, false, text, sizeof(text)), 0);
    assert_string_equal(text, "");
}

static void test_msg(void **state)
{
    char text[4096], wide[3000];
    int fd[2], keep = dup(2);
    ssize_t n;

    (void)state;
    assert_int_equal(pipe(fd), 0);
    mt_msg_program("./build/mt-feed");
    assert_string_equal(mt_msg_program_name(), "mt-feed");
    memset(wide, 'w', sizeof(wide) - 1);
    wide[sizeof(wide) - 1] = '\0';
    dup2(fd[1], 2);
    mt_msg_level(MT_WARN);
    mt_msg(MT_WARN, "call\n%d.wav: cut short", 7);
    mt_msg(MT_INFO, "not said");
    mt_msg_level(MT_INFO);
    mt_msg(MT_INFO, "said");
    mt_msg_level(MT_QUIET);
    mt_msg(MT_ERROR, "not said");
    mt_msg_level(MT_WARN);
    errno = ENOENT;
    mt_msg(MT_ERROR, "%s", wide);
    assert_int_equal(errno, ENOENT);
    dup2(keep, 2);
    close(keep);
    close(fd[1]);
    n = read(fd[0], text, sizeof(text) - 1);
    close(fd[0]);
    assert_true(n > 0);
    text[n] = '\0';
    assert_memory_equal(text, "mt-feed: call?7.wav: cut short\nmt-feed: said\nmt-feed: www", 57);
    assert_true(text[n - 1] == '\n' && text[n - 2] == 'w');
    assert_in_range(n, 2000, 2200);
}

/* ---- lines ---- */

static void lines_of(struct mt_lines **l, int *fd, const char *text, size_t max)
{
    int p[2];

    assert_int_equal(pipe(p), 0);
    assert_true(write(p[1], text, strlen(text)) == (ssize_t)strlen(text));
    close(p[1]);
    *fd = p[0];
    assert_int_equal(mt_lines_open(l, p[0], max), 0);
}

static void test_lines(void **state)
{
    struct mt_lines *l;
    char *line;
    int fd;

    (void)state;
    lines_of(&l, &fd, "one\n\n12345678\n123456789\nlast", 8);
    assert_int_equal(mt_lines_next(l, &line), 3);
    assert_string_equal(line, "one");
    assert_int_equal(mt_lines_next(l, &line), 0);
    assert_non_null(line);
    assert_string_equal(line, "");
    assert_int_equal(mt_lines_next(l, &line), 8);
    assert_string_equal(line, "12345678");
    assert_int_equal(mt_lines_next(l, &line), -E2BIG);
    assert_null(line);
    assert_int_equal(mt_lines_next(l, &line), 4);
    assert_string_equal(line, "last");
    assert_int_equal(mt_lines_next(l, &line), 0);
    assert_null(line);
    assert_int_equal(mt_lines_next(l, &line), 0);
    assert_null(line);
    mt_lines_close(&l);
    assert_null(l);
    mt_lines_close(&l);
    close(fd);
    assert_int_equal(mt_lines_open(&l, -1, 8), -EINVAL);
    assert_null(l);
}

static void test_lines_any_length_and_bound(void **state)
{
    /* Lines of 0..3000 bytes against a bound of 2000, fed by a child in odd pieces. */
    enum { MAX = 2000, LINES = 400 };
    struct mt_lines *l;
    char *line;
    int fd[2], status;
    pid_t pid;

    (void)state;
    assert_int_equal(pipe(fd), 0);
    fflush(NULL);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        FILE *f = fdopen(fd[1], "w");

        close(fd[0]);
        setvbuf(f, NULL, _IOFBF, 777);
        for (uint64_t i = 0; i < LINES; i++) {
            for (uint64_t k = mt_mix64(i) % 3000; k > 0; k--)
                fputc('a' + (int)(i % 26), f);
            if (i + 1 < LINES)
                fputc('\n', f);
        }
        _exit(fclose(f) != 0);
    }
    close(fd[1]);
    assert_int_equal(mt_lines_open(&l, fd[0], MAX), 0);
    for (uint64_t i = 0; i < LINES; i++) {
        int64_t want = (int64_t)(mt_mix64(i) % 3000), got = mt_lines_next(l, &line);

        if (want > MAX) {
            assert_true(got == -E2BIG);
            continue;
        }
        assert_true(got == want);
        assert_int_equal(strlen(line), want);
        if (want > 0)
            assert_int_equal(line[want - 1], 'a' + (int)(i % 26));
    }
    assert_int_equal(mt_lines_next(l, &line), 0);
    assert_null(line);
    mt_lines_close(&l);
    close(fd[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

/* Adds the line to ctx, a text; "bad" is broken, "stop" ends it. */
static int take_line(void *ctx, const char *line, size_t n)
{
    char *all = ctx;

    assert_int_equal(strlen(line), n);
    strcat(strcat(all, line), ";");
    return !strcmp(line, "bad") ? -EBADMSG : !strcmp(line, "stop") ? -EPIPE : 1;
}

static void test_lines_each(void **state)
{
    static const char text[] = "one\n\nbad\n123456789\ntwo\nstop\nthree\nlast";
    char all[100] = "";
    int64_t broken = 0;
    int p[2], fd;

    (void)state;
    assert_int_equal(pipe(p), 0);
    assert_true(write(p[1], text, strlen(text)) == (ssize_t)strlen(text));
    close(p[1]);
    assert_int_equal(mt_lines_each(p[0], 8, take_line, all, &broken), -EPIPE);
    assert_string_equal(all, "one;bad;two;stop;");
    assert_int_equal(broken, 2);
    close(p[0]);

    fd = open("/", O_RDONLY);
    assert_int_equal(mt_lines_each(fd, 8, take_line, all, &broken), -EISDIR);
    close(fd);
    fd = open("/dev/null", O_RDONLY);
    assert_int_equal(mt_lines_each(fd, 8, take_line, all, &broken), 0);
    close(fd);
    assert_int_equal(broken, 2);
}

static void test_lines_read_error(void **state)
{
    struct mt_lines *l;
    char *line;
    int fd = open("/", O_RDONLY);

    (void)state;
    assert_int_equal(mt_lines_open(&l, fd, 100), 0);
    assert_int_equal(mt_lines_next(l, &line), -EISDIR);
    assert_null(line);
    mt_lines_close(&l);
    close(fd);
}

/* ---- time, memory, numbers ---- */

/* Time goes by as it does, but what is slept is over at once; it never goes back. */
static void test_working_clock(void **state)
{
    struct mt_clock c = mt_clock_working(5);
    int64_t t = c.now_ns(&c), later = t + 3600 * MT_NS_PER_S;

    (void)state;
    assert_true(t >= 5 && t < later);
    c.sleep_until_ns(&c, later);
    t = c.now_ns(&c);
    assert_true(t >= later && t < later + 3600 * MT_NS_PER_S);
    c.sleep_until_ns(&c, later - 1);
    c.sleep_until_ns(&c, 0);
    assert_true(c.now_ns(&c) >= t);
}

static void test_clock(void **state)
{
    struct mt_clock c = mt_clock_virtual(5), r = mt_clock_real();
    int64_t t;

    (void)state;
    assert_true(c.now_ns(&c) == 5);
    c.sleep_until_ns(&c, 100 * MT_NS_PER_S);
    assert_true(c.now_ns(&c) == 100 * MT_NS_PER_S);
    c.sleep_until_ns(&c, 7);
    assert_true(c.now_ns(&c) == 100 * MT_NS_PER_S);
    t = r.now_ns(&r);
    r.sleep_until_ns(&r, t + 2 * MT_NS_PER_MS);
    assert_true(r.now_ns(&r) >= t + 2 * MT_NS_PER_MS);
    r.sleep_until_ns(&r, -1);
}

static void test_mem(void **state)
{
    unsigned char *p = mt_alloc(33, 3);

    (void)state;
    assert_non_null(p);
    assert_int_equal((uintptr_t)p % 64, 0);
    for (int i = 0; i < 99; i++)
        assert_int_equal(p[i], 0);
    free(p);
    p = mt_alloc(0, 8);
    assert_non_null(p);
    free(p);
    assert_null(mt_alloc(SIZE_MAX / 2, 3));
    assert_null(mt_alloc(SIZE_MAX, 1));
    assert_true(mt_mul(SIZE_MAX / 2, 3) == SIZE_MAX);
    assert_true(mt_mul(0, SIZE_MAX) == 0);
    assert_true(mt_mul(3, 5) == 15);
}

static void test_hash_and_mix(void **state)
{
    (void)state;
    /* Published values: FNV-1a of "" and "foobar", SplitMix64 of seed 0. */
    assert_true(mt_hash(MT_HASH_INIT, "", 0) == UINT64_C(0xcbf29ce484222325));
    assert_true(mt_hash(MT_HASH_INIT, "foobar", 6) == UINT64_C(0x85944171f73967e8));
    assert_true(mt_hash(mt_hash(MT_HASH_INIT, "foo", 3), "bar", 3) == UINT64_C(0x85944171f73967e8));
    assert_true(mt_mix64(0) == UINT64_C(0xe220a8397b1dcdaf));
    assert_true(mt_mix64(UINT64_C(0x9e3779b97f4a7c15)) == UINT64_C(0x6e789e6aa1b965f4));
    assert_true(mt_unit(0) == 0);
    assert_true(mt_unit(UINT64_MAX) < 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_err_first_wins),
        cmocka_unit_test(test_err_cut_at_whole_character),
        cmocka_unit_test(test_parse_i64),
        cmocka_unit_test(test_parse_double),
        cmocka_unit_test(test_parse_size),
        cmocka_unit_test(test_parse_duration),
        cmocka_unit_test(test_parse_pair),
        cmocka_unit_test(test_hist_quantiles),
        cmocka_unit_test(test_hist_edges),
        cmocka_unit_test(test_json_line),
        cmocka_unit_test(test_json_line_says_what_was_lost),
        cmocka_unit_test(test_close_stdout),
        cmocka_unit_test(test_msg),
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_lines_any_length_and_bound),
        cmocka_unit_test(test_lines_read_error),
        cmocka_unit_test(test_lines_each),
        cmocka_unit_test(test_clock),
        cmocka_unit_test(test_working_clock),
        cmocka_unit_test(test_mem),
        cmocka_unit_test(test_hash_and_mix),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
