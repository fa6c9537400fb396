/*
 * test_monitor.c: records of made-up runs through the monitor and into measurements of a frame's
 * cost.
 */
#include "control/beat.h"
#include "control/monitor.h"
#include "control/points.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <errno.h>
#include <math.h>
#include <string.h>

static void assert_near(double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance))
        fail_msg("%.9g is not within %g of %.9g", got, tolerance, want);
}

static double uniform(uint64_t *r)
{
    return mt_unit(mt_mix64((*r)++));
}

/* ---- the monitor ---- */

static int monitor(struct mt_monitor *m, const char *line)
{
    return mt_monitor_line(m, line, strlen(line));
}

/* Frames of 0.4 s, n sessions that each add 5 tokens a frame to a pool of 10000: 12.5 tokens/s. */
struct feed {
    int frame, n;
    double tokens;
};

static int feed(struct mt_monitor *m, struct feed *f, double latency_ms, int cap)
{
    char line[300];
    int due = 0;

    f->frame++;
    for (int s = 0; s < f->n; s++) {
        bool full = f->tokens + 5 > 10000;
        int rc;

        f->tokens += full ? 0 : 5;
        snprintf(line, sizeof(line),
                 "{\"type\":\"frame\",\"session\":\"%d\",\"status\":\"%s\",\"t\":%.6f,"
                 "\"latency_ms\":%g,\"deadline_ms\":400,\"tokens_in\":5,\"tokens_out\":%d,"
                 "\"kv_tokens\":%d,\"pool\":%.6f,\"sessions\":%d,\"cap\":%d}",
                 s,
                 full               ? "stalled"
                 : latency_ms > 400 ? "late"
                                    : "ok",
                 0.4 * f->frame + 0.001 * s, latency_ms, full ? 0 : 3, 5 * f->frame,
                 f->tokens / 10000, f->n, cap);
        rc = monitor(m, line);
        assert_in_range(rc, 0, 1);
        due += rc;
    }
    return due;
}

static void test_run(void **state)
{
    struct feed f = {.n = 8};
    struct mt_forecast q[3];
    struct mt_monitor *m;
    struct mt_report r;
    int due = 0;

    (void)state;
    assert_int_equal(mt_monitor_open(&m, 60, 10, 0.8), 0);
    assert_int_equal(mt_monitor_report(m, &r), -ENODATA);
    /* 8 sessions fill the pool in 100 s. */
    for (int i = 0; i < 175; i++) {
        int now = feed(m, &f, 100 + i, 20);

        due += now;
        if (now) {
            assert_int_equal(mt_monitor_report(m, &r), 0);
            assert_int_equal(r.forecast.batches, due);
        }
    }
    assert_int_equal(due, 6);
    assert_near(r.forecast.t_s + r.forecast.sat_s, 100.4, 1);
    assert_near(r.rate, 12.5, 1e-9);
    assert_int_equal(r.binding, MT_BIND_MEMORY);
    assert_int_equal(r.cap, 20);
    assert_true(isnan(r.t_collapse_s));
    assert_int_equal(mt_monitor_quarters(m, q), -ENODATA);
    /* Counts are those since the last report: from there to here 23 frames, 8 records each. */
    assert_int_equal(mt_monitor_report(m, &r), 0);
    assert_true(r.frames > 0 && r.frames % 8 == 0 && r.frames < 25 * 8);
    assert_true(r.latency_p95_ms > 265 && r.latency_p95_ms < 280);
    assert_true(r.deadline_ms == 400);
    assert_int_equal(r.late, 0);
    for (int i = 0; i < 80; i++)
        feed(m, &f, 500, 20);
    assert_int_equal(mt_monitor_report(m, &r), 0);
    assert_near(r.t_collapse_s, 100.4, 0.5);
    assert_int_equal(r.frames, 640);
    assert_int_equal(r.unserved, 8 * (255 - 250));
    assert_int_equal(r.late, 8 * 75);
    /* At the wall nothing grows any more; that is no reason to say never. */
    for (int i = 0; i < 200; i++)
        feed(m, &f, 500, 20);
    assert_int_equal(mt_monitor_report(m, &r), 0);
    assert_true(r.forecast.sat_s == 0 && r.forecast.high_s == 0);
    assert_int_equal(r.binding, MT_BIND_MEMORY);
    assert_int_equal(mt_monitor_quarters(m, q), 0);
    assert_true(isnan(q[0].sat_s)); /* at 25 s nothing was known */
    assert_near(q[2].t_s + q[2].sat_s, 100.4, 1);
    mt_monitor_close(&m);
    assert_null(m);
    mt_monitor_close(&m);
}

/* A pool that doesn't grow: what binds then is the beat, or the cap, or nothing. */
static void test_binding(void **state)
{
    static const struct {
        double latency_ms;
        int cap;
        enum mt_binding binding;
    } rows[] = {{100, 9, MT_BIND_NONE},
                {100, 8, MT_BIND_LIMIT},
                {330, 8, MT_BIND_LATENCY},
                {330, 9, MT_BIND_LATENCY}};

    (void)state;
    for (size_t i = 0; i < MT_COUNT(rows); i++) {
        struct mt_monitor *m;
        struct mt_report r;
        char line[300];

        assert_int_equal(mt_monitor_open(&m, 60, 10, 0.8), 0);
        for (int k = 0; k < 200; k++) {
            snprintf(line, sizeof(line),
                     "{\"type\":\"frame\",\"session\":7,\"status\":\"ok\",\"t\":%.1f,"
                     "\"latency_ms\":%g,\"deadline_ms\":400,\"kv_tokens\":2052,\"pool\":0.41,"
                     "\"sessions\":8,\"cap\":%d}",
                     0.4 * k, rows[i].latency_ms, rows[i].cap);
            assert_true(monitor(m, line) >= 0);
        }
        assert_int_equal(mt_monitor_report(m, &r), 0);
        assert_int_equal(r.binding, rows[i].binding);
        assert_true(isinf(r.forecast.sat_s));
        assert_true(r.rate == 0);
        mt_monitor_close(&m);
    }
}

/* A watcher's status lines alone; other lines; broken ones. */
static void test_lines(void **state)
{
    static const char *const broken[] = {
        "",
        "[]",
        "{\"type\":\"frame\"",
        "{\"type\":\"frame\",\"t\":1,\"pool\":0.1,\"sessions\":1}",
        "{\"type\":\"frame\",\"status\":\"ok\",\"t\":-1,\"pool\":0.1,\"sessions\":1}",
        "{\"type\":\"frame\",\"status\":\"ok\",\"t\":1,\"pool\":1.5,\"sessions\":1}",
        "{\"type\":\"frame\",\"status\":\"ok\",\"t\":1,\"pool\":0.1,\"sessions\":1e300}",
        "{\"type\":\"frame\",\"status\":\"ok\",\"t\":1,\"latency_ms\":\"x\"}",
        "{\"type\":\"status\",\"t\":\"1\",\"pool\":0.1,\"sessions\":1}",
        "{\"type\":\"status\",\"t\":1,\"pool\":0.1,\"sessions\":1,\"cap\":1e300}",
    };
    static const char *const others[] = {
        "{\"type\":\"ready\",\"pool_blocks\":9,\"block\":16}",
        "{\"metronome\":1}",
        "{\"type\":\"frame\",\"status\":\"ok\"}",
        "{\"type\":\"frame\",\"status\":\"refused\",\"cap\":null}",
        "{\"type\":3}",
    };
    struct mt_monitor *m;
    struct mt_report r;
    char line[100];

    (void)state;
    assert_int_equal(mt_monitor_open(&m, 60, 10, 0.8), 0);
    for (size_t i = 0; i < MT_COUNT(broken); i++)
        assert_int_equal(monitor(m, broken[i]), -EBADMSG);
    for (size_t i = 0; i < MT_COUNT(others); i++)
        assert_int_equal(monitor(m, others[i]), 0);
    assert_int_equal(mt_monitor_report(m, &r), -ENODATA);
    for (int t = 0; t <= 80; t++) {
        snprintf(line, sizeof(line), "{\"type\":\"status\",\"t\":%d,\"pool\":%g,\"sessions\":4}", t,
                 0.1 + 0.002 * t);
        assert_true(monitor(m, line) >= 0);
    }
    assert_int_equal(mt_monitor_report(m, &r), 0);
    assert_near(r.forecast.sat_s, 370, 1e-3);
    assert_int_equal(r.frames, 1); /* the one that said little more than ok */
    assert_int_equal(r.cap, -1);
    assert_true(isnan(r.rate) && isnan(r.latency_p95_ms) && isnan(r.deadline_ms));
    mt_monitor_close(&m);
    assert_int_equal(mt_monitor_open(&m, 60, 10, 0), -EDOM);
    assert_null(m);
    assert_int_equal(mt_monitor_open(&m, 60, 30, 0.8), -EDOM);
    assert_null(m);
}

/* More sessions than the table of paces holds, each a few frames long: the mean is still right. */
static void test_many_sessions(void **state)
{
    struct mt_monitor *m;
    struct mt_report r;
    char line[200];

    (void)state;
    assert_int_equal(mt_monitor_open(&m, 60, 10, 0.8), 0);
    for (int k = 0; k < 90000; k++) {
        snprintf(line, sizeof(line),
                 "{\"type\":\"frame\",\"session\":\"call-%d\",\"status\":\"ok\",\"t\":%.3f,"
                 "\"kv_tokens\":%d,\"pool\":0.5,\"sessions\":9000}",
                 k % 9000, k / 9000 + 1e-3 * (k % 9000) / 10, k / 9000 * 25);
        assert_true(monitor(m, line) >= 0);
    }
    assert_int_equal(mt_monitor_report(m, &r), 0);
    assert_near(r.rate, 25, 1e-3); /* times have three decimals */
    mt_monitor_close(&m);
}

/* ---- the beat ---- */

/* One frame of 0.4 s, due on the beat but for `off`, answered after `latency`. */
static void beat_frame(struct mt_beat *b, int session, int frame, double off, double latency)
{
    json_t *r = json_pack("{s:i, s:i, s:f, s:f}", "session", session, "frame", frame, "t",
                          0.4 * frame + off + latency, "latency_ms", 1e3 * latency);

    mt_beat_record(b, r);
    json_decref(r);
}

static void test_beat(void **state)
{
    static const char *const silent[] = {"{}", "{\"session\":\"1\",\"frame\":1}",
                                         "{\"session\":\"1\",\"frame\":2,\"t\":3}",
                                         "{\"frame\":3,\"t\":3,\"latency_ms\":1}"};
    struct mt_beat *b;
    uint64_t r = 9;

    (void)state;
    assert_int_equal(mt_beat_open(&b), 0);
    for (size_t i = 0; i < MT_COUNT(silent); i++) {
        json_t *o = json_loads(silent[i], 0, NULL);

        mt_beat_record(b, o);
        json_decref(o);
    }
    assert_true(mt_beat_s(b) == 0);
    /*
     * More sessions than have a place, latencies all over, due times that jitter; each fifth frame
     * comes after a pause of many beats.
     */
    for (int i = 0; i < 50; i++)
        for (int s = 0; s < 5000; s++)
            beat_frame(b, s, i, 0.01 * uniform(&r) + 8.0 * (i / 5), 0.3 * uniform(&r));
    assert_near(mt_beat_s(b), 0.4, 0.01);
    mt_beat_close(&b);
    assert_null(b);
    mt_beat_close(&b);
}

/* ---- ticks ---- */

static int tick(struct mt_points *t, const char *line)
{
    return mt_points_line(t, line, strlen(line));
}

static void test_pairs(void **state)
{
    static const char *const good[] = {"2 28.0", "8,32.6", "16\t45", "{\"n\":32,\"x_ms\":70.2}"};
    static const char *const broken[] = {
        "",     "2",    "2 x",   "x 2",   "2 3 4",
        "-1 3", "2 -3", "2 nan", "[1,2]", "{\"n\":1,\"x_ms\":\"2\"}"};
    struct mt_cost_fit f;
    struct mt_points *t;
    const double *n, *x;
    int64_t count;

    (void)state;
    assert_int_equal(mt_points_open(&t, 0), 0);
    assert_int_equal(mt_points_get(t, &n, &x, &count), 0);
    assert_int_equal(count, 0);
    for (size_t i = 0; i < MT_COUNT(good); i++)
        assert_int_equal(tick(t, good[i]), 1);
    for (size_t i = 0; i < MT_COUNT(broken); i++)
        assert_int_equal(tick(t, broken[i]), -EBADMSG);
    assert_int_equal(tick(t, "{\"type\":\"status\"}"), 0);
    assert_int_equal(mt_points_get(t, &n, &x, &count), 0);
    assert_int_equal(count, 4);
    assert_int_equal(mt_cost_fit(n, x, count, &f), 0);
    assert_near(f.cost.a_s, 0.022955, 5e-7);
    assert_near(f.cost.b_s, 0.0014479, 5e-8);
    mt_points_close(&t);
    assert_null(t);
}

/*
 * Sessions in step, released with a little jitter around any phase of the tick, the boundary's too.
 */
static void test_ticks(void **state)
{
    (void)state;
    for (int phase = 0; phase < 8; phase++) {
        struct mt_points *t;
        struct mt_cost_fit f;
        const double *n, *x;
        int64_t count, used = 0;
        uint64_t r = 9;
        char line[300];

        assert_int_equal(mt_points_open(&t, 0), 0);
        for (int k = 0; k < 300; k++) {
            int live = 4 + k / 60 * 5;
            double cost = 20 + 1.5 * live;
            bool bad = k % 50 == 7, cold = k % 50 == 9;

            used += !bad && !cold;
            for (int s = 0; s < live; s++) {
                double release = 0.08 * (k + 3 + phase / 8.0) + 0.004 * (uniform(&r) - 0.5);
                double took = s == 1 ? cost : cost * (0.9 + 0.1 * uniform(&r));

                snprintf(line, sizeof(line),
                         "{\"type\":\"frame\",\"status\":\"%s\",\"t\":%.6f,\"latency_ms\":%.3f,"
                         "\"deadline_ms\":80,\"tokens_in\":1,\"tokens_out\":%d%s}",
                         bad && s == 2 ? "stalled" : "ok", release + took / 1e3, took,
                         bad && s == 3 ? 0 : 1, cold ? ",\"cold\":true" : "");
                assert_int_equal(tick(t, line), 1);
            }
        }
        assert_int_equal(mt_points_get(t, &n, &x, &count), 0);
        assert_int_equal(count, used);
        assert_int_equal(mt_cost_fit(n, x, count, &f), 0);
        assert_near(f.cost.a_s, 0.020, 1e-6);
        assert_near(f.cost.b_s, 0.0015, 1e-8);
        assert_near(f.residual_s, 0, 1e-6);
        mt_points_close(&t);
    }
}

static void test_ticks_edges(void **state)
{
    struct mt_points *t;
    const double *n, *x;
    int64_t count;

    (void)state;
    assert_int_equal(mt_points_open(&t, 0), 0);
    assert_int_equal(tick(t, "{\"type\":\"frame\"}"), -EBADMSG);
    assert_int_equal(tick(t, "{\"type\":\"frame\",\"status\":\"ok\",\"t\":1}"), -EBADMSG);
    assert_int_equal(tick(t, "{\"type\":\"frame\",\"status\":\"ok\"}"), 0);
    assert_int_equal(tick(t, "{\"type\":\"frame\",\"status\":\"refused\",\"t\":1}"), 0);
    assert_int_equal(tick(t, "{\"type\":\"frame\",\"status\":\"ok\",\"t\":1,\"latency_ms\":5}"), 1);
    assert_int_equal(mt_points_get(t, &n, &x, &count), -ENODATA); /* how long is a tick? */
    mt_points_close(&t);
    assert_int_equal(mt_points_open(&t, 0.08), 0);
    assert_int_equal(tick(t, "{\"type\":\"frame\",\"status\":\"late\",\"t\":1,\"latency_ms\":5}"),
                     1);
    assert_int_equal(mt_points_get(t, &n, &x, &count), 0);
    assert_int_equal(count, 1);
    assert_true(n[0] == 1);
    assert_near(x[0], 0.005, 1e-12);
    mt_points_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_beat),          cmocka_unit_test(test_run),
        cmocka_unit_test(test_binding),       cmocka_unit_test(test_lines),
        cmocka_unit_test(test_many_sessions), cmocka_unit_test(test_pairs),
        cmocka_unit_test(test_ticks),         cmocka_unit_test(test_ticks_edges),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
