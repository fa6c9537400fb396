/*
 * test_admit.c: the law of admission in virtual time, case by case, on plants whose right answer is
 * known: 29 or 30 sessions of the reference plant (80 ms frames that cost 20 + 1.5 n ms) fit below
 * 0.8 of the deadline.
 */
#include "tests/unit/plant.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <errno.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define T_S 0.08

static struct mt_admit_opts options(void)
{
    struct mt_admit_opts o;

    mt_admit_defaults(&o);
    o.deadline_s = T_S;
    o.look_ahead = false;
    return o;
}

static void begin(struct mt_admit *a, const struct mt_admit_opts *o)
{
    struct mt_err e = {0};

    if (mt_admit_init(a, o, &e) < 0)
        fail_msg("%s", e.text);
}

/* What a run was like. */
struct run {
    double reached_s; /* when the limit was `until` first */
    int low, high;    /* of the limit */
    double mean;      /* of cap */
    int64_t frames, late;
    double last_late_s, worst_s;
};

/* Run until end_s; low, high and mean from from_s on, lateness over all of it. */
static struct run drive(struct mt_admit *a, struct plant *p, double end_s, double from_s, int until)
{
    struct run r = {.reached_s = NAN, .low = INT32_MAX, .last_late_s = NAN};
    struct mt_admit_decision d;
    struct mt_admit_obs o;
    int64_t n = 0;

    while (plant_now(p) < end_s) {
        plant_step(p, a->limit, &o);
        mt_admit_frame(a, &o, &d);
        if (isnan(r.reached_s) && a->limit == until)
            r.reached_s = plant_now(p);
        r.frames++;
        r.worst_s = fmax(r.worst_s, p->x);
        if (p->n > 0 && p->x >= p->T) {
            r.late++;
            r.last_late_s = plant_now(p);
        }
        if (plant_now(p) < from_s)
            continue;
        r.low = a->limit < r.low ? a->limit : r.low;
        r.high = a->limit > r.high ? a->limit : r.high;
        r.mean += a->cap;
        n++;
    }
    r.mean /= (double)n;
    return r;
}

static void assert_between(double v, double lo, double hi)
{
    if (!(v >= lo && v <= hi))
        fail_msg("%g is not in %g..%g", v, lo, hi);
}

/* A1 */
static void test_climbs_to_the_band_and_rests(void **state)
{
    struct mt_admit_opts o = options();
    struct mt_admit a;
    struct plant p;
    struct run r;

    (void)state;
    begin(&a, &o);
    plant_reference(&p, 1);
    r = drive(&a, &p, 3700, 93, 30);
    assert_between(r.reached_s, 89.6 - 3.2, 89.6 + 3.2);
    assert_int_equal(r.low, 30);
    assert_int_equal(r.high, 30);
    assert_int_equal(a.counts.cuts, 0);
    assert_int_equal(r.late, 0);

    o.look_ahead = true;
    begin(&a, &o);
    plant_reference(&p, 1);
    r = drive(&a, &p, 3700, 93, 29);
    assert_int_equal(r.low, 29);
    assert_int_equal(r.high, 29);
    assert_int_equal(a.counts.cuts, 0);
}

/* A2 */
static void test_jitter(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        struct mt_admit_opts o = options();
        struct mt_admit a;
        struct plant p;
        struct run r;

        for (int ahead = 0; ahead <= 1; ahead++) {
            o.look_ahead = ahead;
            begin(&a, &o);
            plant_reference(&p, seed);
            p.jitter = 0.03;
            r = drive(&a, &p, 3600, 600, 28);
            if (ahead)
                assert_between(r.low, 28, 28);
            assert_between(r.low, 28, 30);
            assert_between(r.high, 28, ahead ? 28 : 30);
            assert_int_equal(a.counts.cuts, 0);
            assert_int_equal(r.late, 0);
        }
    }
}

/* A3 */
static void test_outliers(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        struct mt_admit_opts o = options();
        struct mt_admit a;
        struct plant p;
        struct run r;

        begin(&a, &o);
        plant_reference(&p, seed);
        p.jitter = 0.03;
        p.outliers = 0.005;
        p.slow = 2.5;
        p.mean_s = 120; /* a cut takes effect only when somebody hangs up */
        r = drive(&a, &p, 7200, 600, 28);
        assert_between(r.mean, 28.5, 29.6);
        assert_between(r.low, 25, 30);
        assert_between((double)a.counts.cuts, 0, 4);
    }
}

/* A4 */
static void test_share_mode_is_a_sawtooth(void **state)
{
    struct mt_admit_opts o = options();
    struct mt_admit a;
    struct plant p;
    struct run r;

    (void)state;
    o.cut = o.target;
    begin(&a, &o);
    plant_reference(&p, 1);
    p.at_once = true;
    r = drive(&a, &p, 3600, 600, 30);
    assert_int_equal(r.low, 27);
    assert_int_equal(r.high, 30);
    assert_between(r.mean, 28.3, 28.7);
}

/* A5 */
static void test_cost_doubles(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        struct mt_admit_opts o = options();
        struct mt_admit a;
        struct plant p;
        struct run r;

        begin(&a, &o);
        plant_reference(&p, seed);
        p.jitter = 0.03;
        p.mean_s = 120;
        r = drive(&a, &p, 1800, 600, 28);
        assert_between(r.low, 28, 30);
        p.b *= 2;
        r = drive(&a, &p, 1920, 1800, 14);
        assert_between(a.limit, 14, 18);
        assert_true(r.low >= 13);
        r = drive(&a, &p, 3600, 1920, 14);
        assert_true(isnan(r.last_late_s) || r.last_late_s <= 1880);
        assert_between(r.low, 13, 18);
        assert_between(r.high, 14, 18);
    }
}

/* A6 */
static void test_slow_cost_is_seen_coming(void **state)
{
    struct mt_admit_opts o = options();
    struct mt_admit a;
    struct plant p;
    struct run r;

    (void)state;
    for (int on = 0; on <= 1; on++) {
        o.project = on;
        o.limit_tokens = 3000;
        begin(&a, &o);
        plant_reference(&p, 3);
        p.b = 0.0005;
        p.token_s = 1e-3 / 3000;
        p.full = 3000;
        p.mean_s = 600;
        r = drive(&a, &p, 3600, 0, 30);
        if (!on) {
            assert_true(r.high > 45);
            assert_true((double)r.late > 0.03 * (double)r.frames);
            continue;
        }
        assert_int_equal(r.late, 0);
        assert_between(a.limit, 29, 30);
        assert_between(r.high, 29, 30);

        /* With jitter the estimate is less sure, and still good. */
        begin(&a, &o);
        plant_reference(&p, 3);
        p.b = 0.0005;
        p.token_s = 1e-3 / 3000;
        p.full = 3000;
        p.mean_s = 600;
        p.jitter = 0.03;
        r = drive(&a, &p, 3600, 0, 30);
        assert_between(r.high, 28, 36);
        assert_true((double)r.late < 0.001 * (double)r.frames);
    }
}

/* ---- A7: the pool that fills ---- */

struct wall {
    double at_s;            /* first frame that was missed */
    double p95_s, before_s; /* in the 30 s before it, and at the same n earlier */
    double rho;             /* 30 s before it */
    int cap_at, cap_after;  /* at the wall, 300 s later */
    int64_t cuts_before;
    double step_median_s; /* in the 300 s after */
    double missed;        /* share of session-frames in them */
    double worst_s;
    int64_t late;
};

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double quantile(double *v, int n, double q)
{
    qsort(v, (size_t)n, sizeof(*v), by_value);
    return v[(int)ceil(q * n) - 1];
}

enum { SECONDS_30 = 375, SECONDS_300 = 3750, MOST_FRAMES = 45000 };

static struct wall run_pool(int limit_tokens, bool truthful, uint64_t seed)
{
    static double x[MOST_FRAMES], step[MOST_FRAMES], rho[MOST_FRAMES];
    static int n[MOST_FRAMES];
    struct wall w = {.at_s = NAN};
    struct mt_admit_opts o = options();
    struct mt_admit_decision d;
    struct mt_admit_obs ob;
    struct mt_admit a;
    struct pool q = {.limit_tokens = limit_tokens};
    int frames = 0, wall = -1, same = 0;
    int64_t missed = 0, all = 0;

    begin(&a, &o);
    plant_reference(&q.p, seed);
    q.p.mean_s = 600;
    while (frames < MOST_FRAMES && (wall < 0 || frames < wall + SECONDS_300)) {
        int i = frames++;

        pool_step(&q, a.limit, &ob, &step[i]);
        x[i] = q.p.x;
        n[i] = q.p.n;
        rho[i] = ob.pool;
        w.worst_s = fmax(w.worst_s, q.p.x);
        w.late += ob.late + ob.skipped;
        if (wall < 0 && ob.skipped > 0) {
            wall = i;
            w.at_s = plant_now(&q.p);
            w.cap_at = a.limit;
            w.cuts_before = a.counts.cuts;
            missed = q.missed;
            all = q.frames;
        }
        if (!truthful) { /* what an engine says that only times its steps */
            ob.done_s = ob.release_s + step[i];
            ob.ontime = ob.due;
            ob.late = ob.skipped = 0;
        }
        mt_admit_frame(&a, &ob, &d);
    }
    w.cap_after = a.limit;
    if (wall < SECONDS_30)
        return w;
    w.missed = (double)(q.missed - missed) / (double)(q.frames - all);
    w.step_median_s = quantile(step + wall, frames - wall, 0.5);
    w.rho = rho[wall - SECONDS_30];
    /* The same n earlier: the first frames that had it. */
    for (int i = 0; i < wall - SECONDS_30 && same < 40; i++)
        if (n[i] == n[wall - 1])
            step[same++] = x[i];
    w.before_s = same > 0 ? quantile(step, same, 0.95) : NAN;
    w.p95_s = quantile(x + wall - SECONDS_30, SECONDS_30, 0.95);
    return w;
}

static void test_latency_warns_only_where_memory_is_bounded(void **state)
{
    struct wall w;

    (void)state;
    for (uint64_t seed = 1; seed <= 5; seed++) {
        w = run_pool(1504, true, seed);
        assert_true(isnan(w.at_s));
        assert_int_equal(w.late, 0);
        assert_int_equal(w.cap_after, 30);
        assert_true(w.worst_s < 0.0651);

        w = run_pool(0, false, seed);
        assert_between(w.at_s, 150, 230);
        assert_int_equal(w.cap_at, 30);
        assert_int_equal(w.cuts_before, 0);
        assert_between(w.p95_s / w.before_s, 0.98, 1.02);
        assert_true(w.cap_after >= 60);
        assert_true(w.step_median_s < 0.06);
        assert_true(w.missed > 0.5);

        w = run_pool(0, true, seed);
        assert_between(w.at_s, 150, 230);
        assert_true(w.cap_after <= 20);
        assert_true(w.missed > 0.25); /* people do not hang up because a cap is cut */
    }
}

/* ---- A8 .. A14 ---- */

static void test_an_idle_hour_changes_nothing(void **state)
{
    struct mt_admit_opts o = options();
    struct mt_admit a;
    struct plant p;
    struct run r;

    (void)state;
    for (int few = 0; few <= 1; few++) {
        begin(&a, &o);
        plant_reference(&p, 1);
        drive(&a, &p, 60, 0, 30);
        p.idle = true;
        p.n = few ? 3 : 0;
        r = drive(&a, &p, 3660, 60 + 40 * T_S, 30); /* from when the last busy window is over */
        assert_int_equal(r.low, r.high);
        p.idle = false;
        r = drive(&a, &p, 3760, 3750, 30);
        assert_int_equal(r.low, 30);
        assert_int_equal(a.counts.cuts, 0);
    }
}

/* A tick of n sessions, all on time after x_s. */
static struct mt_admit_obs tick(int64_t k, int n, double x_s)
{
    bool late = x_s >= T_S;

    return (struct mt_admit_obs){.release_s = (double)k * T_S,
                                 .done_s = (double)k * T_S + x_s,
                                 .sessions = n,
                                 .due = n,
                                 .ontime = late ? 0 : n,
                                 .late = late ? n : 0,
                                 .pool = NAN,
                                 .kv_tokens = NAN,
                                 .cap = -1};
}

static void test_empty_frames_are_no_reason_to_grow(void **state)
{
    struct mt_admit_opts o = options();
    struct mt_admit_decision d;
    struct mt_admit a;

    (void)state;
    o.look_ahead = true;
    for (int way = 0; way < 2;
         way++) { /* nobody sends in 95 % of the ticks; 95 % of them send in none */
        begin(&a, &o);
        for (int64_t k = 0; k < 100000; k++) {
            struct mt_admit_obs ob = tick(k, 4, 0.001);

            ob.sessions = way ? 100 : 4;
            if (way)
                ob.due = ob.ontime = 2 + (int)(mt_mix64((uint64_t)k) % 7);
            else if (mt_unit(mt_mix64((uint64_t)k)) < 0.95)
                ob.due = ob.ontime = 0;
            mt_admit_frame(&a, &ob, &d);
            assert_int_equal(a.limit, 4);
        }
    }
}

/* A law that rests at 30 with the reference plant. */
static int64_t rested(struct mt_admit *a, const struct mt_admit_opts *o)
{
    struct plant p;

    begin(a, o);
    plant_reference(&p, 1);
    p.at_once = true;
    drive(a, &p, 120, 0, 30);
    assert_int_equal(a->limit, 30);
    return p.frame;
}

static void test_one_outlier_is_nothing_three_in_a_row_are_a_cut(void **state)
{
    struct mt_admit_opts o = options();
    struct mt_admit_decision d;
    struct mt_admit_obs ob;
    struct mt_admit a;
    int64_t k;

    (void)state;
    k = rested(&a, &o);
    for (int i = 0; i < 4000; i++) {
        ob = tick(k++, 30, i % 40 == 17 ? 0.4 : 0.065);
        mt_admit_frame(&a, &ob, &d);
        assert_int_equal(a.limit, 30);
    }
    for (int i = 0; i < 3; i++) {
        assert_int_equal(a.limit, 30);
        ob = tick(k++, 30, 0.4);
        assert_int_equal(mt_admit_frame(&a, &ob, &d), i == 2);
    }
    assert_int_equal(d.reason, MT_ADMIT_BY_CUT);
    assert_true(d.changed);
    assert_int_equal(a.limit, 27);
    for (int i = 0; i < 30; i++) { /* they are still 30, and late: the cut was for all of that */
        ob = tick(k++, 30, 0.4);
        mt_admit_frame(&a, &ob, &d);
        assert_int_equal(a.limit, 27);
    }
    assert_int_equal(a.counts.cuts, 1);
}

static void test_frames_that_stop(void **state)
{
    struct mt_admit_opts o = options();
    struct mt_admit_decision d;
    struct mt_admit_obs ob;
    struct mt_admit a;
    int64_t k = 0, stop, stalled = 0;
    int limit;

    (void)state;
    o.cap0 = 10;
    begin(&a, &o);
    for (; k < 90; k++) {
        ob = tick(k, 10, 0.035);
        mt_admit_frame(&a, &ob, &d);
    }
    assert_int_equal(a.limit, 10);
    stop = k;
    for (; k < stop + 60; k++) { /* a status line each T, as frame `stop` grows old */
        double age = (double)(k - stop) * T_S;
        bool said = mt_admit_pending(&a, (double)k * T_S, age, 10, &d);

        if (k <= stop + 2)
            assert_false(a.silent);
        else
            assert_true(a.silent || a.counts.cuts > 0);
        if (said && d.reason == MT_ADMIT_BY_STALLED) {
            assert_int_equal(d.mode, MT_ADMIT_STALLED);
            stalled = k;
        }
        assert_true(a.limit <= 10);
    }
    assert_true(stalled == stop + 5 || stalled == stop + 6);
    assert_true(a.counts.cuts <= 1);
    limit = a.limit;
    for (int i = 0; i < 40; i++) { /* one clean window, and not less */
        assert_true(a.stalled);
        ob = tick(k++, limit, 0.035);
        assert_int_equal(mt_admit_frame(&a, &ob, &d), i == 39);
    }
    assert_false(a.stalled);
    assert_int_equal(d.reason, MT_ADMIT_BY_RECOVERED);
    assert_int_equal(a.limit, limit);
    for (int i = 0; i < 41; i++) {
        ob = tick(k++, limit, 0.035);
        mt_admit_frame(&a, &ob, &d);
    }
    assert_true(a.limit > limit);
}

/* An old frame while others are answered is theirs to tell: no tick is counted twice. */
static void test_waiting_is_no_stall_while_frames_are_finished(void **state)
{
    struct mt_admit_opts o = options();
    struct mt_admit_decision d;
    struct mt_admit a;

    (void)state;
    begin(&a, &o);
    for (int64_t k = 0; k < 39; k++) {
        struct mt_admit_obs ob = tick(k, 4, 0.03);

        assert_false(mt_admit_frame(&a, &ob, &d));
        assert_false(mt_admit_pending(&a, (double)k * T_S + 0.04, 0.5, 4, &d));
        assert_int_equal(a.m, k + 1);
    }
    assert_int_equal(a.counts.misses, 0);
}

static void test_silence_alone_never_cuts(void **state)
{
    struct mt_admit_opts o = options();
    struct mt_admit_decision d;
    struct mt_admit_obs ob;
    struct mt_admit a;
    int64_t k = 0;

    (void)state;
    o.cap0 = 10;
    begin(&a, &o);
    for (int i = 0; i < 20000; i++) {
        k += i % 20 == 0 ? 30 : 1;
        ob = tick(k, 10, 0.035);
        mt_admit_frame(&a, &ob, &d);
        assert_int_equal(a.limit, 10);
    }
    /* Nothing was pending: they were only quiet. */
    for (int i = 0; i < 200; i++) {
        k += i % 20 == 0 ? 30 : 1;
        mt_admit_pending(&a, (double)(k - 1) * T_S, 0, 10, &d);
        ob = tick(k, 10, 0.035);
        mt_admit_frame(&a, &ob, &d);
    }
    assert_true(a.limit > 10);
}

/*
 * One skipped frame each tick: a step of 10 ms does not make it good. A session that is skipped 25
 * times in a row is closed, which is the engine's part; n follows the cap, since people leave.
 */
static void test_a_skipped_frame_is_a_miss(void **state)
{
    struct mt_admit_opts o = options();
    struct mt_admit_decision d;
    struct mt_admit_obs ob;
    struct mt_admit a;
    int64_t k;
    int before;

    (void)state;
    k = rested(&a, &o);
    before = 30;
    for (int i = 0; i < 4000; i++) {
        ob = tick(k++, a.limit, 0.01);
        ob.ontime--;
        ob.skipped++;
        mt_admit_frame(&a, &ob, &d);
        assert_true(a.limit <= before);
        before = a.limit;
    }
    assert_int_equal(a.limit, 1);

    k = rested(&a, &o);
    for (int i = 0; i < 4000; i++) {
        ob = tick(k++, a.limit, 0.01);
        if (i < 25) {
            ob.ontime--;
            ob.skipped++;
        }
        mt_admit_frame(&a, &ob, &d);
        assert_true(a.limit >=
                    24); /* the second cut is for the misses that are left in the window */
    }
    assert_true(a.limit >= 30);
}

static void test_what_can_not_be_is_counted(void **state)
{
    struct mt_admit_opts o = options();
    struct mt_admit_decision d;
    struct mt_admit a;

    (void)state;
    for (int kind = 0; kind < 6; kind++) {
        int64_t k = 0;

        begin(&a, &o);
        for (int i = 0; i < 8000; i++, k++) {
            struct mt_admit_obs ob = tick(k, 4, 0.026);

            if (i % 30 == 7) {
                switch (kind) {
                case 0:
                    ob.ontime--;
                    break;
                case 1:
                    ob.done_s = ob.release_s - 0.001;
                    break;
                case 2:
                    ob.done_s = NAN;
                    break;
                case 3:
                    ob.release_s = NAN;
                    break;
                case 4:
                    ob.release_s -= 1000;
                    ob.done_s -= 1000;
                    break;
                default:
                    ob.sessions = ob.due = -3;
                    break;
                }
            }
            mt_admit_frame(&a, &ob, &d);
            assert_int_equal(a.limit, 4);
            assert_true(isfinite(a.cap));
        }
        assert_true(a.counts.untruthful >= 8000 / 30);
        /* The window after the last of them is as good as any. */
        for (int i = 0; i < 81; i++) {
            struct mt_admit_obs ob = tick(k++, 4, 0.026);

            mt_admit_frame(&a, &ob, &d);
        }
        assert_true(a.limit > 4);
    }
}

static void test_memory_is_a_ceiling(void **state)
{
    struct mt_admit_opts o = options();
    struct mt_admit_decision d;
    struct mt_admit a;
    struct plant p;
    struct run r;

    (void)state;
    o.n_mem = 16;
    begin(&a, &o);
    plant_reference(&p, 1);
    r = drive(&a, &p, 600, 0, 16);
    assert_int_equal(r.high, 16);
    assert_int_equal(a.limit, 16);
    for (bool said = false; !said;) {
        struct mt_admit_obs ob;

        plant_step(&p, a.limit, &ob);
        said = mt_admit_frame(&a, &ob, &d);
    }
    assert_int_equal(d.reason, MT_ADMIT_BY_MEMORY);
    assert_int_equal(d.bound, MT_BIND_MEMORY);

    /* It may become known late, or shrink. */
    mt_admit_memory(&a, 9, 0, 0);
    drive(&a, &p, 700, 0, 9);
    assert_int_equal(a.limit, 9);
}

/*
 * Unbounded sessions are admitted only while the pool carries all of them for two mean durations.
 */
static void test_the_gate_of_an_unbounded_pool(void **state)
{
    (void)state;
    for (uint64_t seed = 1; seed <= 3; seed++) {
        struct mt_admit_opts o = options();
        struct mt_admit_decision d;
        struct mt_admit_obs ob;
        struct mt_admit a;
        struct pool q = {0};
        double step;

        o.pool_tokens = (double)POOL_BLOCKS * POOL_BLOCK;
        o.rate_tokens_s = 12.5;
        o.duration_s = 300;
        begin(&a, &o);
        plant_reference(&q.p, seed);
        q.p.mean_s = 300;
        for (int k = 0; k < 250000; k++) {
            pool_step(&q, a.limit, &ob, &step);
            assert_int_equal(ob.skipped, 0);
            mt_admit_frame(&a, &ob, &d);
        }
        assert_true(a.limit <= 7);
    }
}

/* A15 */
static double jain(double x, double y)
{
    return (x + y) * (x + y) / (2 * (x * x + y * y));
}

/*
 * Windows after the warm-up until two controllers from 20 and 4 are as equal as asked; whole: n is
 * a whole number.
 */
static int windows_to_share(bool whole, double index, double apart)
{
    struct mt_admit_opts o = options();
    struct mt_admit_decision d;
    struct mt_admit a[2];

    o.cut = o.target;
    o.cap0 = 20;
    begin(&a[0], &o);
    o.cap0 = 4;
    begin(&a[1], &o);
    for (int64_t k = 0; k < 200 * 40; k++) {
        int n[2] = {a[0].limit, a[1].limit};
        double all = whole ? n[0] + n[1] : a[0].cap + a[1].cap;

        for (int i = 0; i < 2; i++) {
            struct mt_admit_obs ob = tick(k, n[i], 0.02 + 0.0015 * all);

            mt_admit_frame(&a[i], &ob, &d);
        }
        if (jain(a[0].cap, a[1].cap) >= index && fabs(a[0].cap - a[1].cap) <= apart)
            return (int)(k / 40) - 1;
    }
    return 200;
}

static void test_two_controllers_share(void **state)
{
    (void)state;
    assert_between(windows_to_share(false, 0.99, INFINITY), 0, 60);
    assert_between(windows_to_share(false, 0.99, 1.51), 0, 60);
    /* Whole sessions reach the ceiling a little later, so cuts come a little less often. */
    assert_between(windows_to_share(true, 0.99, INFINITY), 0, 60);
    assert_between(windows_to_share(true, 0.99, 1.5), 0, 63);
    assert_between(windows_to_share(true, 0.999, 0.5), 0, 90);
}

/* A16: tick times published for PersonaPlex, calls in lockstep on one GPU. */
static void test_the_fit_of_measured_points(void **state)
{
    static const int n[] = {2, 8, 16, 32};
    static const double ms[] = {28.0, 32.6, 45.0, 70.2};
    struct mt_admit_opts o = options();
    struct mt_admit_decision d;
    struct mt_admit a;
    int64_t k = 0;

    (void)state;
    o.cap0 = 64;
    begin(&a, &o);
    assert_int_equal(mt_admit_fits(&a, 0.8), MT_NO_LIMIT);
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 40 + 23 * i; j++) { /* however long it rested at each */
            struct mt_admit_obs ob = tick(k++, n[i], ms[i] / 1e3);

            mt_admit_frame(&a, &ob, &d);
        }
    for (int j = 0; j < 40; j++) {
        struct mt_admit_obs ob = tick(k++, n[3], ms[3] / 1e3);

        mt_admit_frame(&a, &ob, &d);
    }
    assert_true(a.model.known);
    assert_between(a.model.a_s * 1e3, 22.9545, 22.9555);
    assert_between(a.model.b_s * 1e3, 1.44785, 1.44795);
    assert_int_equal(mt_admit_fits(&a, 0.80), 28);
    assert_int_equal(mt_admit_fits(&a, 0.95), 36);
}

/* A17 */
static void test_a_step_is_cheap(void **state)
{
    struct mt_admit_opts o = options();
    struct mt_admit_decision d;
    struct mt_admit_obs ob;
    struct timespec t0, t1;
    struct mt_admit a;
    struct plant p;
    double best = INFINITY;

    (void)state;
    assert_true(sizeof(a) <= 4096);
    for (int round = 0; round < 5; round++) {
        static struct mt_admit_obs seen[100000];

        begin(&a, &o);
        plant_reference(&p, 1);
        p.jitter = 0.03;
        for (size_t i = 0; i < MT_COUNT(seen); i++) {
            plant_step(&p, a.limit, &ob);
            seen[i] = ob;
            mt_admit_frame(&a, &ob, &d);
        }
        begin(&a, &o);
        size_t heap = mallinfo2().uordblks;

        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t0);
        for (size_t i = 0; i < MT_COUNT(seen); i++)
            mt_admit_frame(&a, &seen[i], &d);
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t1);
        assert_int_equal(mallinfo2().uordblks, heap);
        best = fmin(best,
                    ((double)(t1.tv_sec - t0.tv_sec) + 1e-9 * (double)(t1.tv_nsec - t0.tv_nsec)) /
                        (double)MT_COUNT(seen));
    }
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
    best /= 20; /* instrumented */
#endif
    assert_true(best < 1e-6);
}

/* A18 */
static void test_nothing_breaks_it(void **state)
{
    struct mt_admit_opts o = options();
    struct mt_admit_decision d;
    struct mt_admit a;
    double t = 0;
    int64_t last_cut = -1000, cuts = 0;
    uint64_t w = 18;

    (void)state;
    o.min = 3;
    o.max = 40;
    o.look_ahead = true;
    o.limit_tokens = 100;
    begin(&a, &o);
    for (int i = 0; i < 10000000; i++) {
        uint64_t r = mt_mix64(w++);
        struct mt_admit_obs ob = tick(0, (int)(r % 64 < 2 ? r % 45 : r % (uint64_t)(a.limit + 1)),
                                      (double)(r >> 8 & 1023) * (i >> 13 & 1 ? 1e-4 : 5e-5));

        r = mt_mix64(w++);
        t += r % 4096 ? T_S : T_S * (double)(r >> 4 & 7);
        if ((r >> 7 & 4095) == 0 && (i >> 12 & 1))
            t -= 100; /* what can't be comes in every other stretch */
        ob.release_s += t;
        ob.done_s += t;
        ob.skipped = ob.due > 0 && (r >> 16 & 1023) == 0;
        ob.ontime -= ob.skipped;
        ob.kv_tokens = (double)(r >> 24 & 0xfff);
        ob.cap = r >> 40 & 127 ? a.limit : (int)(r >> 47 & 31) - 1;
        ob.cold = (r >> 52 & 31) == 0;
        switch (i >> 12 & 1 ? mt_mix64(r) & 255 : 99) {
        case 0:
            ob.release_s = r & 1 ? NAN : INFINITY;
            break;
        case 1:
            ob.done_s = r & 1 ? NAN : -INFINITY;
            break;
        case 2:
            ob.due = (int)r;
            break;
        case 3:
            ob.sessions = (int)r;
            break;
        case 4:
            ob.kv_tokens = ob.pool = NAN;
            break;
        default:
            break;
        }
        if (r >> 57 == 0)
            mt_admit_pending(&a, t, (double)(r >> 30 & 15) * T_S, (int)(r & 31), &d);
        mt_admit_frame(&a, &ob, &d);
        if (!isfinite(a.cap) || floor(a.cap) < 3 || floor(a.cap) > 40 || a.limit < 3 ||
            a.limit > 40)
            fail_msg("step %d: cap %g", i, a.cap);
        if (a.counts.cuts > cuts) {
            if (a.counts.cuts > cuts + 1 || a.cool_until - last_cut < a.window_size)
                fail_msg("step %d: a second cut within a cool-down", i);
            cuts = a.counts.cuts;
            last_cut = a.cool_until;
        }
    }
    assert_true(cuts > 1000 && a.counts.grows > 100 && a.counts.untruthful > 10000);
}

/* ---- records: A19, A20 ---- */

/* Records go through the ticks into the law, as they would from a pipe. */
struct loop {
    struct mt_ticks ticks;
    struct mt_admit a;
    int changes[64], n_changes; /* the limits, in order */
    double last_change_s;
};

static void loop_begin(struct loop *l, const struct mt_admit_opts *o)
{
    memset(l, 0, sizeof(*l));
    mt_ticks_init(&l->ticks, o->deadline_s);
    begin(&l->a, o);
}

static void loop_take(struct loop *l)
{
    struct mt_admit_decision d;
    struct mt_admit_obs ob;

    while (mt_ticks_next(&l->ticks, &ob))
        if (mt_admit_frame(&l->a, &ob, &d) && d.changed && l->n_changes < 64)
            l->changes[l->n_changes++] = d.limit;
}

static void loop_record(struct loop *l, const struct mt_record *r)
{
    assert_int_equal(mt_ticks_record(&l->ticks, r, false), 0);
    loop_take(l);
}

/* Record of frame k of a session whose phase is `phase`, rounded as records are. */
static struct mt_record record(int64_t k, double phase, double x_s, int n, int cap)
{
    double t = round(((double)k * T_S + phase + x_s) * 1e6) / 1e6;

    return (struct mt_record){.session = 1,
                              .frame = k,
                              .status = x_s < T_S ? MT_OK : MT_LATE,
                              .t_s = t,
                              .latency_ms = round(x_s * 1e9) / 1e6,
                              .deadline_ms = T_S * 1e3,
                              .tokens_in = 1,
                              .tokens_out = 1,
                              .kv_tokens = -1,
                              .pool = NAN,
                              .sessions = n,
                              .cap = cap};
}

struct delayed { /* a cap that takes effect later */
    int now, next;
    double at_s;
};

static int engine_cap(struct delayed *e, int limit, double t_s, double delay_s)
{
    if (limit != e->next) {
        e->next = limit;
        e->at_s = t_s + delay_s;
    }
    if (t_s >= e->at_s)
        e->now = e->next;
    return e->now;
}

static void test_records_as_they_come(void **state)
{
    struct mt_admit_opts o = options();
    struct loop l;
    int64_t n_records = 0;

    (void)state;
    loop_begin(&l, &o);
    for (int64_t k = 0; k < 1200; k++) {
        int n = l.a.limit;

        for (int i = 0; i < n; i++) {
            struct mt_record r = record(k, 0, 0.02 + 0.0015 * n, n, n);

            loop_record(&l, &r);
            n_records++;
        }
        if (k == 26 * 40 + 2 * 40 - 1) /* each tick is judged with its last record: as fast as A1 */
            assert_int_equal(l.a.limit, 30);
    }
    assert_int_equal(l.a.limit, 30);
    assert_int_equal(l.ticks.counts.records, n_records);
    assert_int_equal(l.a.counts.untruthful, 0);
}

static int by_t(const void *a, const void *b)
{
    return by_value(&((const struct mt_record *)a)->t_s, &((const struct mt_record *)b)->t_s);
}

/*
 * Sessions at random phases, records shuffled by threes: the same caps, nothing lost.
 */
static void test_records_unaligned_and_out_of_order(void **state)
{
    static struct mt_record all[64 * 2400];
    struct mt_admit_opts o = options();
    struct loop l, aligned;
    struct delayed eng = {4, 4, 0};
    size_t n_all = 0;
    double phase[64];
    uint64_t w = 19 << 8;
    int n = 4;

    (void)state;
    for (int i = 0; i < 64; i++)
        phase[i] = 0.98 * T_S * mt_unit(mt_mix64(w++));
    loop_begin(&aligned, &o);
    for (int64_t k = 0; k < 2400; k++) {
        double c;
        int cap = engine_cap(&eng, aligned.a.limit, (double)k * T_S, 0);

        n = cap;
        c = (0.02 + 0.0015 * n) * (1 + 0.03 * mt_unit(mt_mix64(w++)));
        for (int i = 0; i < n; i++) {
            struct mt_record r = record(k, 0, c, n, cap);

            loop_record(&aligned, &r);
            all[n_all] = record(k, phase[i], c, n, cap);
            all[n_all++].latency_ms = r.latency_ms;
        }
    }
    assert_true(aligned.n_changes >= 24);
    qsort(all, n_all, sizeof(*all), by_t);
    for (size_t i = 0; i + 3 < n_all; i += 3) /* out of order */
        for (int j = 2; j > 0; j--) {
            size_t m = i + mt_mix64(w++) % (size_t)(j + 1);
            struct mt_record r = all[i + (size_t)j];

            all[i + (size_t)j] = all[m];
            all[m] = r;
        }
    loop_begin(&l, &o);
    for (size_t i = 0; i < n_all; i++)
        loop_record(&l, &all[i]);
    mt_ticks_end(&l.ticks);
    loop_take(&l);
    assert_int_equal(l.ticks.counts.records, (int64_t)n_all);
    assert_int_equal(l.a.counts.due, (int64_t)n_all);
    assert_int_equal(l.n_changes, aligned.n_changes);
    assert_memory_equal(l.changes, aligned.changes, sizeof(l.changes));
    assert_int_equal(l.a.counts.untruthful, 0);
    assert_int_equal(l.a.counts.cuts, 0);
}

/*
 * One beat for all, on the border of two ticks, off by up to 3 ms: their frames must not look like
 * half of the sessions.
 */
static void test_a_beat_on_the_border(void **state)
{
    struct mt_admit_opts o = options();
    struct loop l;
    uint64_t w = 77;

    (void)state;
    loop_begin(&l, &o);
    for (int64_t k = 0; k < 1400; k++) {
        int n = l.a.limit;

        for (int i = 0; i < n; i++) {
            double off = (mt_unit(mt_mix64(w++)) * 2 - 1) * 0.003 - T_S / 128;
            struct mt_record r = record(k, off, 0.02 + 0.0015 * n, n, n);

            loop_record(&l, &r);
        }
    }
    assert_int_equal(l.a.limit, 30);
    assert_int_equal(l.a.counts.cuts, 0);
}

static void test_contradictions_are_misses(void **state)
{
    struct mt_admit_opts o = options();
    struct loop l;

    (void)state;
    loop_begin(&l, &o);
    for (int64_t k = 0; k < 600; k++) {
        int n = l.a.limit;

        for (int i = 0; i < n; i++) {
            struct mt_record r = record(k, 0, 0.001, n, n);

            if (k >= 200 && i == k % n)
                r.tokens_out = 0;
            loop_record(&l, &r);
        }
    }
    assert_int_equal(l.ticks.counts.contradictions, 400);
    assert_int_equal(l.a.counts.untruthful, 400);
    assert_int_equal(l.a.counts.skipped, 400);
    assert_true(l.a.counts.misses >= 399);
    assert_int_equal(l.a.limit, 1);
}

static void test_a_cap_that_takes_effect_late(void **state)
{
    struct mt_admit_opts o = options();
    struct delayed eng = {4, 4, 0};
    struct loop l;
    double reached = NAN;
    int shown = 4, n = 0;

    (void)state;
    loop_begin(&l, &o);
    for (int64_t k = 0; k < 4000; k++) {
        double t = (double)k * T_S;
        int cap = engine_cap(&eng, l.a.limit, t, 3);

        n = n < cap && k % 5 == 0 ? n + 1 : n;
        shown = cap;
        for (int i = 0; i < n; i++) {
            struct mt_record r = record(k, 0, 0.02 + 0.0015 * n, n, cap);
            int before = l.a.limit;

            loop_record(&l, &r);
            if (l.a.limit != before)
                assert_int_equal(before, shown); /* no second change before the first shows */
        }
        assert_true(l.a.limit <= 30);
        if (isnan(reached) && cap == 30)
            reached = t;
    }
    assert_int_equal(l.a.limit, 30);
    assert_between(reached, 89.6, 89.6 + 3.2 + 26 * 3.1);
    assert_true(l.a.counts.resends >= 20); /* 3 s are more than 2 */
}

static void test_the_clock_of_the_server_starts_anew(void **state)
{
    struct mt_admit_opts o = options();
    struct loop l;

    (void)state;
    loop_begin(&l, &o);
    for (int64_t k = 0; k < 3000; k++) {
        int n = l.a.limit;

        for (int i = 0; i < n; i++) {
            struct mt_record r = record(k < 400 ? k + 100000 : k, 0, 0.02 + 0.0015 * n, n, n);

            loop_record(&l, &r);
        }
    }
    assert_int_equal(l.ticks.counts.unusable, 1);
    assert_int_equal(l.ticks.counts.empty, 0);
    assert_int_equal(l.a.counts.untruthful, 1);
    assert_int_equal(l.a.limit, 30);
    assert_int_equal(l.a.counts.cuts, 0);
}

static void test_deadlines_of_different_lengths(void **state)
{
    struct mt_admit_opts o = options();
    struct loop l;

    (void)state;
    o.cap0 = 6;
    loop_begin(&l, &o);
    for (int64_t k = 0; k < 2000;
         k++) /* 0.75 of either deadline: no reason to cut, and one to grow */
        for (int i = 0; i < 6; i++) {
            struct mt_record r = record(k, 0, i % 2 ? 0.06 : 0.12, 6, l.a.limit);

            r.status = MT_OK;
            r.deadline_ms = i % 2 ? 80 : 160;
            loop_record(&l, &r);
        }
    assert_int_equal(l.a.limit, 8); /* and not more, for 6 do not need it */
    assert_int_equal(l.a.counts.cuts, 0);
}

static void test_who_left_owes_nothing(void **state)
{
    struct mt_admit_opts o = options();
    struct mt_record r;
    struct loop l;

    (void)state;
    loop_begin(&l, &o);
    for (int64_t k = 0; k < 100; k++) {
        r = record(k, 0, 0.02, 1, 4);
        loop_record(&l, &r);
        r.status = MT_DROPPED;
        r.reason = "gone";
        loop_record(&l, &r);
        r.status = MT_REFUSED;
        r.reason = "limit";
        loop_record(&l, &r);
    }
    assert_int_equal(l.a.counts.skipped, 0);
    assert_int_equal(l.ticks.counts.records, 300);
    assert_int_equal(l.ticks.counts.refused, 100);
    r.status = MT_DROPPED;
    r.reason = "backlog";
    r.t_s += T_S;
    loop_record(&l, &r);
    mt_ticks_end(&l.ticks);
    loop_take(&l);
    assert_int_equal(l.a.counts.skipped, 1);
}

static void test_options_that_make_no_law(void **state)
{
    struct mt_admit a;
    struct mt_err e;

    (void)state;
    for (int i = 0; i < 9; i++) {
        struct mt_admit_opts o = options();

        e = (struct mt_err){0};
        assert_int_equal(mt_admit_init(&a, &o, &e), 0);
        *(double *[]){&o.deadline_s, &o.deadline_s, &o.target, &o.cut, &o.alpha,
                      &o.beta,       &o.beta,       &o.target, &o.cut}[i] =
            (double[]){0, NAN, 0.96, 1.01, 0, 0.49, 1, NAN, NAN}[i];
        assert_int_equal(mt_admit_init(&a, &o, &e), -EDOM);
        assert_true(e.text[0]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_climbs_to_the_band_and_rests),
        cmocka_unit_test(test_jitter),
        cmocka_unit_test(test_outliers),
        cmocka_unit_test(test_share_mode_is_a_sawtooth),
        cmocka_unit_test(test_cost_doubles),
        cmocka_unit_test(test_slow_cost_is_seen_coming),
        cmocka_unit_test(test_latency_warns_only_where_memory_is_bounded),
        cmocka_unit_test(test_an_idle_hour_changes_nothing),
        cmocka_unit_test(test_empty_frames_are_no_reason_to_grow),
        cmocka_unit_test(test_one_outlier_is_nothing_three_in_a_row_are_a_cut),
        cmocka_unit_test(test_frames_that_stop),
        cmocka_unit_test(test_waiting_is_no_stall_while_frames_are_finished),
        cmocka_unit_test(test_silence_alone_never_cuts),
        cmocka_unit_test(test_a_skipped_frame_is_a_miss),
        cmocka_unit_test(test_what_can_not_be_is_counted),
        cmocka_unit_test(test_memory_is_a_ceiling),
        cmocka_unit_test(test_the_gate_of_an_unbounded_pool),
        cmocka_unit_test(test_two_controllers_share),
        cmocka_unit_test(test_the_fit_of_measured_points),
        cmocka_unit_test(test_a_step_is_cheap),
        cmocka_unit_test(test_nothing_breaks_it),
        cmocka_unit_test(test_records_as_they_come),
        cmocka_unit_test(test_records_unaligned_and_out_of_order),
        cmocka_unit_test(test_a_beat_on_the_border),
        cmocka_unit_test(test_contradictions_are_misses),
        cmocka_unit_test(test_a_cap_that_takes_effect_late),
        cmocka_unit_test(test_the_clock_of_the_server_starts_anew),
        cmocka_unit_test(test_deadlines_of_different_lengths),
        cmocka_unit_test(test_who_left_owes_nothing),
        cmocka_unit_test(test_options_that_make_no_law),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
