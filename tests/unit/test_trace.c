/*
 * test_trace.c: frame records of made-up runs whose rates and collapse are known, in order,
 * shuffled and mixed with other lines.
 */
#include "control/control.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void assert_near(double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance))
        fail_msg("%.9g is not within %g of %.9g", got, tolerance, want);
}

static int take(struct mt_trace *t, const char *line)
{
    return mt_trace_line(t, line, strlen(line));
}

struct run {
    int64_t blocks, block; /* the pool */
    int sessions;
    int tokens;     /* a frame and session */
    double frame_s; /* all sessions in step */
    double until_s;
    const char *wall; /* status of frames without memory */
    int quiet;        /* first frames with half of the sessions */
};

/* Lines of the run: each session takes blocks as it grows, until none is left. */
static size_t make_run(const struct run *r, char **lines, size_t room, double *collapse_s)
{
    int64_t held[64] = {0}, kv[64] = {0}, used = 0;
    size_t n = 0;

    *collapse_s = NAN;
    for (int f = 1; f * r->frame_s <= r->until_s; f++) {
        int live = f <= r->quiet ? r->sessions / 2 : r->sessions;

        for (int s = 0; s < live; s++) {
            int64_t need = (kv[s] + r->tokens + r->block - 1) / r->block - held[s];
            bool fits = used + need <= r->blocks;
            double t = f * r->frame_s + 0.01;

            if (fits) {
                used += need;
                held[s] += need;
                kv[s] += r->tokens;
            } else if (isnan(*collapse_s)) {
                *collapse_s = t;
            }
            assert_true(n < room);
            assert_true(asprintf(&lines[n++],
                                 "{\"type\":\"frame\",\"session\":\"%d\",\"frame\":%d,"
                                 "\"status\":\"%s\",\"t\":%.6f,\"tokens_in\":%d,\"tokens_out\":%d,"
                                 "\"kv_tokens\":%d,\"pool\":%.6f,\"sessions\":%d}",
                                 s, f, fits ? "ok" : r->wall, t, r->tokens, fits ? 1 : 0,
                                 (int)kv[s], (double)used / (double)r->blocks, live) > 0);
        }
    }
    return n;
}

static struct mt_trace_fit fit_run(const struct run *r, bool shuffled, double *collapse_s)
{
    enum { ROOM = 20000 };
    static char *lines[ROOM];
    size_t n = make_run(r, lines, ROOM, collapse_s);
    struct mt_trace_fit f;
    struct mt_trace *t;

    for (size_t i = n; shuffled && i > 1; i--) {
        size_t j = mt_mix64(i) % i;
        char *swap = lines[i - 1];

        lines[i - 1] = lines[j];
        lines[j] = swap;
    }
    assert_int_equal(mt_trace_open(&t), 0);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(take(t, lines[i]), 1);
        free(lines[i]);
    }
    assert_int_equal(mt_trace_fit(t, &f), 0);
    assert_int_equal(f.frames, n);
    mt_trace_close(&t);
    assert_null(t);
    return f;
}

static void test_growth_and_collapse(void **state)
{
    /* 8 sessions, 50 tokens every 2 s, 1024 blocks of 16: 128 blocks each, stalls at 41 * 50
     * tokens. */
    const struct run r = {1024, 16, 8, 50, 2, 120, "stalled", 0};

    (void)state;
    for (int shuffled = 0; shuffled < 2; shuffled++) {
        double collapse_s;
        struct mt_trace_fit f = fit_run(&r, shuffled, &collapse_s);

        assert_near(collapse_s, 41 * 2 + 0.01, 1e-9);
        assert_near(f.t_collapse_s, collapse_s, 1e-9);
        assert_int_equal(f.sessions, 8);
        assert_near(f.rate, 25, 1e-6);
        assert_near(f.rho_per_s, 8 * 25 / 16384.0, 0.02 * 8 * 25 / 16384.0);
        assert_near(f.from_s, 2.01, 1e-9);
        assert_near(f.to_s, 80.01, 1e-9);
        assert_near(f.t_sat_at_s, collapse_s, 0.03 * collapse_s);
        assert_near(f.t_sat_s, f.t_sat_at_s - 80.01, 1e-9);
        assert_near(f.t_half_s, (2.01 + 82.01) / 2, 1e-9);
        assert_true(fabs(f.error_percent) < 5);
        assert_near(f.error_percent,
                    100 * (f.t_half_sat_s - collapse_s) / (collapse_s - f.t_half_s), 1e-9);
        assert_true(f.stalled > 0);
        assert_int_equal(f.untruthful, 0);
    }
}

static void test_untruthful_frames_are_the_wall(void **state)
{
    const struct run r = {1024, 16, 8, 50, 2, 120, "ok", 0};
    double collapse_s;
    struct mt_trace_fit f = fit_run(&r, false, &collapse_s);

    (void)state;
    assert_near(f.t_collapse_s, collapse_s, 1e-9);
    assert_int_equal(f.stalled, 0);
    assert_true(f.untruthful >= 8);
}

static void test_stretch_starts_with_the_last_change(void **state)
{
    const struct run r = {1024, 16, 8, 50, 2, 60, "stalled", 10};
    double collapse_s;
    struct mt_trace_fit f = fit_run(&r, false, &collapse_s);

    (void)state;
    assert_int_equal(f.sessions, 8);
    assert_near(f.from_s, 22.01, 1e-9);
    assert_near(f.rho_per_s, 8 * 25 / 16384.0, 0.02 * 8 * 25 / 16384.0);
    assert_true(isnan(f.t_collapse_s) && isnan(f.error_percent));
    assert_true(f.t_sat_at_s > 60);
}

static void test_bounded_never_fills(void **state)
{
    struct mt_trace_fit f;
    struct mt_trace *t;
    char line[300];

    (void)state;
    assert_int_equal(mt_trace_open(&t), 0);
    for (int i = 0; i < 200; i++) {
        snprintf(
            line, sizeof(line),
            "{\"type\":\"frame\",\"session\":\"%d\",\"status\":\"ok\",\"t\":%d,\"tokens_in\":50,"
            "\"tokens_out\":9,\"kv_tokens\":2052,\"pool\":0.41,\"sessions\":4}",
            i % 4, i / 4);
        assert_int_equal(take(t, line), 1);
    }
    assert_int_equal(mt_trace_fit(t, &f), 0);
    assert_near(f.rho, 0.41, 1e-12);
    assert_true(isinf(f.t_sat_at_s) && isinf(f.t_sat_s));
    assert_near(f.rate, 0, 1e-12);
    mt_trace_close(&t);
}

static void test_rate_from_the_pool_size(void **state)
{
    struct mt_trace_fit f;
    struct mt_trace *t;
    char line[200];

    (void)state;
    assert_int_equal(mt_trace_open(&t), 0);
    for (int i = 0; i < 20; i++) {
        snprintf(line, sizeof(line),
                 "{\"type\":\"frame\",\"status\":\"late\",\"t\":%d,\"pool\":%.6f,\"sessions\":2}",
                 i, 0.01 * i);
        assert_int_equal(take(t, line), 1);
    }
    assert_int_equal(mt_trace_fit(t, &f), 0);
    assert_true(isnan(f.rate));
    assert_int_equal(take(t, "{\"type\":\"ready\",\"pool_blocks\":100,\"block\":16}"), 0);
    assert_int_equal(mt_trace_fit(t, &f), 0);
    assert_int_equal(f.pool_tokens, 1600);
    assert_near(f.rate, 8, 1e-6);
    assert_near(f.t_sat_at_s, 100, 1e-6);
    mt_trace_close(&t);
    mt_trace_close(&t);
}

static void test_lines_that_are_not_records(void **state)
{
    static const struct {
        const char *line;
        int rc;
    } rows[] = {
        {"{\"metronome\":1,\"tool\":\"mt-feed\"}", 0},
        {"{\"type\":\"status\",\"t\":1,\"pool\":\"half\"}", 0},
        {"{\"type\":\"frame\",\"status\":\"refused\"}", 0},
        {"{\"type\":\"frame\",\"status\":\"ok\",\"t\":1,\"pool\":null,\"sessions\":1}", 0},
        {"{\"type\":\"ready\",\"pool_blocks\":5}", 0},
        {"{\"type\":7}", 0},
        {"", -EBADMSG},
        {"[1]", -EBADMSG},
        {"nonsense", -EBADMSG},
        {"{\"type\":\"frame\",\"status\":\"ok\",\"t\":1,\"pool\":0.5,\"sess", -EBADMSG},
        {"{\"type\":\"frame\",\"t\":1,\"pool\":0.5,\"sessions\":1}", -EBADMSG},
        {"{\"type\":\"frame\",\"status\":\"ok\",\"t\":\"1\",\"pool\":0.5,\"sessions\":1}",
         -EBADMSG},
        {"{\"type\":\"frame\",\"status\":\"ok\",\"t\":-1,\"pool\":0.5,\"sessions\":1}", -EBADMSG},
        {"{\"type\":\"frame\",\"status\":\"ok\",\"t\":1,\"pool\":1.5,\"sessions\":1}", -EBADMSG},
        {"{\"type\":\"frame\",\"status\":\"ok\",\"t\":1,\"pool\":0.5,\"sessions\":1e99}", -EBADMSG},
        {"{\"type\":\"frame\",\"status\":\"ok\",\"t\":1,\"pool\":0.5,\"sessions\":1,"
         "\"kv_tokens\":[]}",
         -EBADMSG},
        {"{\"type\":\"ready\",\"pool_blocks\":1e300,\"block\":16}", -EBADMSG},
        {"{\"type\":\"opened\",\"pool_blocks\":\"x\"}", -EBADMSG},
    };
    struct mt_trace_fit f;
    struct mt_trace *t;

    (void)state;
    assert_int_equal(mt_trace_open(&t), 0);
    for (size_t i = 0; i < MT_COUNT(rows); i++)
        if (take(t, rows[i].line) != rows[i].rc)
            fail_msg("%s: not %d", rows[i].line, rows[i].rc);
    assert_int_equal(mt_trace_fit(t, &f), -ENODATA);
    /* One record isn't enough for a line, but it is counted. */
    assert_int_equal(take(t, "{\"type\":\"frame\",\"session\":3,\"status\":\"ok\",\"t\":1,\"pool\":"
                             "0.5,\"sessions\":1}"),
                     1);
    assert_int_equal(mt_trace_fit(t, &f), 0);
    assert_int_equal(f.frames, 1);
    assert_int_equal(f.sessions, 0);
    assert_true(isnan(f.rho) && isnan(f.t_sat_s));
    mt_trace_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_growth_and_collapse),
        cmocka_unit_test(test_untruthful_frames_are_the_wall),
        cmocka_unit_test(test_stretch_starts_with_the_last_change),
        cmocka_unit_test(test_bounded_never_fills),
        cmocka_unit_test(test_rate_from_the_pool_size),
        cmocka_unit_test(test_lines_that_are_not_records),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
