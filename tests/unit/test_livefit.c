/*
 * test_livefit.c: the live fit by increments: on numbers worked out by hand, on talkers that pause
 * (does the interval hold?), on sessions that come and go, and at its edges.
 */
#include "control/livefit.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <errno.h>
#include <math.h>

static void assert_near(double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance))
        fail_msg("%.9g is not within %g of %.9g", got, tolerance, want);
}

static double uniform(uint64_t *r)
{
    return mt_unit(mt_mix64((*r)++));
}

static void test_student(void **state)
{
    (void)state;
    assert_near(mt_student_95(1), 12.706, 1e-3);
    assert_near(mt_student_95(5), 2.5706, 1e-3);
    assert_near(mt_student_95(30), 2.0423, 1e-3);
    assert_near(mt_student_95(31), 2.0395, 1e-3);
    assert_near(mt_student_95(63), 1.9983, 1e-3);
    assert_near(mt_student_95(1000), 1.9623, 1e-3);
    assert_true(isnan(mt_student_95(0)));
}

static void test_by_hand(void **state)
{
    /* Increments of 10 s with 30 sessions: mean 0.02, variance 4e-6 with 5 degrees of freedom. */
    static const double dy[] = {0.018, 0.022, 0.018, 0.022, 0.018, 0.022};
    static const double even[] = {0.02, 0.02, 0.02, 0.02, 0.02, 0.02};
    double x[6], m = 0.002, s2 = 4.8e-6 / 10, d = 0.6, spread;
    struct mt_forecast f = {.t_s = 7};

    (void)state;
    for (int i = 0; i < 6; i++)
        x[i] = 300;
    assert_int_equal(mt_live_fit(dy, x, 6, 30, 0.4, &f), 0);
    spread = 2.5706 * sqrt(s2 / (m * d) + s2 / (m * m * 60));
    assert_near(f.rho_per_s, m, 1e-12);
    assert_near(f.sat_s, 300, 1e-9);
    assert_near(f.low_s, 300 * (1 - spread), 0.02);
    assert_near(f.high_s, 300 * (1 + spread), 0.02);
    assert_true(f.t_s == 7);
    /* Twice the sessions from now on: twice as fast. */
    assert_int_equal(mt_live_fit(dy, x, 6, 60, 0.4, &f), 0);
    assert_near(f.sat_s, 150, 1e-9);
    /* No noise, no interval. */
    assert_int_equal(mt_live_fit(even, x, 6, 30, 0.4, &f), 0);
    assert_near(f.low_s, 300, 1e-6);
    assert_near(f.high_s, 300, 1e-6);
    /* Five batches tell the rate, but no time. */
    assert_int_equal(mt_live_fit(dy, x, 5, 30, 0.4, &f), 0);
    assert_near(f.rho_per_s, 0.0196 / 10, 1e-12);
    assert_true(isnan(f.sat_s) && isnan(f.low_s) && isnan(f.high_s));
    /* Full, and no sessions. */
    assert_int_equal(mt_live_fit(dy, x, 6, 30, 1, &f), 0);
    assert_true(f.sat_s == 0 && f.low_s == 0 && f.high_s == 0);
    assert_int_equal(mt_live_fit(dy, x, 6, 0, 0.4, &f), 0);
    assert_true(isinf(f.sat_s));
}

static void test_no_growth(void **state)
{
    static const double noise[] = {0.01, -0.01, 0.012, -0.009, 0.011, -0.01};
    static const double down[] = {-0.01, -0.012, -0.01, -0.011, -0.01, -0.01};
    double x[6] = {10, 10, 10, 10, 10, 10}, none[6] = {0};
    struct mt_forecast f;

    (void)state;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(mt_live_fit(i == 0 ? noise : i == 1 ? down : none, x, 6, 1, 0.4, &f), 0);
        assert_true(isinf(f.sat_s) && isinf(f.low_s) && isinf(f.high_s));
    }
    assert_int_equal(mt_live_fit(noise, x, 1, 1, 0.4, &f), -EDOM);
    assert_int_equal(mt_live_fit(noise, x, 6, NAN, 0.4, &f), -EDOM);
    assert_int_equal(mt_live_fit(noise, x, 6, 1, NAN, &f), -EDOM);
    x[3] = 0;
    assert_int_equal(mt_live_fit(noise, x, 6, 1, 0.4, &f), -EDOM);
    x[3] = NAN;
    assert_int_equal(mt_live_fit(noise, x, 6, 1, 0.4, &f), -EDOM);
}

/* ---- talkers that pause ---- */

struct talkers {
    int n;
    double blocks; /* of 16 tokens */
    double rate;   /* tokens a second while one talks */
    double on_s, off_s;
    double churn_s; /* mean time until a talker is replaced by a new one; 0: never */
};

/* One run until the pool is full, in steps of 0.2 s. Quarters and truth of it. */
static double talk(const struct talkers *k, uint64_t seed, struct mt_forecast out[3])
{
    enum { MOST = 64 };
    const double step = 0.2;
    double tokens[MOST], t = 0;
    bool talks[MOST];
    uint64_t r = mt_mix64(seed);
    struct mt_live *l;

    assert_int_equal(mt_live_open(&l, 60, 10), 0);
    for (int i = 0; i < k->n; i++) {
        talks[i] = uniform(&r) < k->on_s / (k->on_s + k->off_s);
        tokens[i] = 16 * uniform(&r);
    }
    for (;;) {
        double used = 0;

        t += step;
        for (int i = 0; i < k->n; i++) {
            if (talks[i])
                tokens[i] += k->rate * step;
            if (uniform(&r) < step / (talks[i] ? k->on_s : k->off_s))
                talks[i] = !talks[i];
            if (k->churn_s > 0 && uniform(&r) < step / k->churn_s)
                tokens[i] = 0;
            used += ceil(tokens[i] / 16);
        }
        if (used > k->blocks)
            break;
        assert_true(mt_live_add(l, t, used / k->blocks, k->n) >= 0);
    }
    mt_live_quarters(l, t, out);
    mt_live_close(&l);
    return t;
}

typedef double (*run_fn)(const void *plant, uint64_t seed, struct mt_forecast out[3]);

static struct mt_forecast_score score_of(run_fn run, const void *plant, int runs, uint64_t seed)
{
    static struct mt_forecast f[3000];
    static double truth[3000], scratch[3000];
    struct mt_forecast_score s;

    assert_in_range(runs, 1, 1000);
    for (int i = 0; i < runs; i++) {
        double t = run(plant, seed + (uint64_t)i, f + (size_t)3 * i);

        for (int q = 0; q < 3; q++)
            truth[3 * i + q] = t;
    }
    mt_forecast_score(f, truth, (size_t)3 * runs, scratch, &s);
    return s;
}

static double run_talkers(const void *plant, uint64_t seed, struct mt_forecast out[3])
{
    return talk(plant, seed, out);
}

static struct mt_forecast_score score_runs(const struct talkers *k, int runs, uint64_t seed)
{
    return score_of(run_talkers, k, runs, seed);
}

static void test_on_off_talkers(void **state)
{
    /* 30 talkers in 16384 blocks, spurts and pauses of some seconds: full after about 700 s. */
    const struct talkers k = {30, 16384, 25, 1, 1, 0}, other = {12, 4096, 31, 0.8, 1.6, 0};
    struct mt_forecast_score s = score_runs(&k, 200, 1);

    (void)state;
    assert_int_equal(s.points, 600);
    assert_true(s.mape <= 0.02);
    assert_true(s.cover >= 0.88 && s.cover < 1);
    assert_true(s.late <= 0.06);
    assert_true(fabs(s.bias) < 0.01);
    assert_true(s.p95 > s.mape && s.p95 < 0.06);
    s = score_runs(&other, 200, 1000);
    assert_int_equal(s.points, 600);
    assert_true(s.mape <= 0.06);
    assert_true(s.cover >= 0.88);
    assert_true(s.late <= 0.06);
}

/* ---- walls on the beat ---- */

/*
 * Calls that never pause: every frame takes blocks for its audio and its longest answer as it
 * begins, and gives back what the answer did not use when its record comes, `work` of a beat later.
 */
struct callers {
    int n, blocks; /* of 16 tokens */
    double beat_s, batch_s, work;
    int audio, mean, most; /* tokens a frame, and of its answer */
    bool in_step;
    int prompt; /* tokens that come with the first frame */
};

static int blocks_of(int tokens)
{
    return (tokens + 15) / 16;
}

static int answer(const struct callers *k, uint64_t *r)
{
    int n = 1;

    while (n < k->most && uniform(r) >= 1.0 / k->mean)
        n++;
    return n;
}

static double call(const void *plant, uint64_t seed, struct mt_forecast out[3])
{
    enum { MOST = 64 };
    const struct callers *k = plant;
    double at[MOST], t = 0;
    int tokens[MOST] = {0}, used = 0;
    bool works[MOST] = {0};
    uint64_t r = mt_mix64(seed);
    struct mt_live *l;

    assert_int_equal(mt_live_open(&l, 6 * k->batch_s, k->batch_s), 0);
    mt_live_beat(l, k->beat_s);
    for (int i = 0; i < k->n; i++)
        at[i] = k->in_step ? k->beat_s : k->beat_s * uniform(&r);
    for (;;) {
        int i = 0;

        for (int j = 1; j < k->n; j++)
            i = at[j] < at[i] ? j : i;
        t = at[i];
        if (!works[i]) {
            int first = tokens[i] ? 0 : k->prompt;
            int more = blocks_of(tokens[i] + first + k->audio + k->most) - blocks_of(tokens[i]);

            if (used + more > k->blocks)
                break;
            used += more;
            at[i] += k->work * k->beat_s;
        } else {
            int first = tokens[i] ? 0 : k->prompt;
            int held = blocks_of(tokens[i] + first + k->audio + k->most);

            if (!tokens[i])
                mt_live_newcomer(l);
            tokens[i] += first + k->audio + answer(k, &r);
            used -= held - blocks_of(tokens[i]);
            at[i] += (1 - k->work) * k->beat_s;
            assert_true(mt_live_add(l, t, (double)used / k->blocks, k->n) >= 0);
        }
        works[i] = !works[i];
    }
    mt_live_quarters(l, t, out);
    mt_live_close(&l);
    return t;
}

/* The interval holds the wall, whether calls are in step or not, and answers vary or not. */
static void test_walls_on_the_beat(void **state)
{
    const struct callers is[] = {
        {32, 16384, 2, 10, 0.2, 26, 8, 32, false, 0}, {32, 16384, 2, 10, 0.2, 26, 8, 32, true, 0},
        {8, 800, 1, 2, 0.3, 14, 8, 8, false, 0},      {8, 800, 1, 2, 0.3, 14, 8, 8, true, 0},
        {4, 200, 1, 2, 0.1, 14, 8, 8, false, 0},      {16, 3072, 0.08, 2, 0.5, 1, 1, 1, true, 0},
        {12, 3000, 0.4, 4, 0.6, 5, 4, 24, false, 0},
    };

    (void)state;
    for (size_t i = 0; i < MT_COUNT(is); i++) {
        struct mt_forecast_score s = score_of(call, &is[i], 200, 1000 * (i + 1));

        assert_true(s.points >= 400);
        assert_true(s.mape <= 0.05);
        assert_true(s.cover >= 0.88);
        assert_true(s.late <= 0.05);
    }
}

/* A call's prompt comes once: at a pool that is full soon after the start it is no growth. */
static void test_prompts(void **state)
{
    const struct callers k = {8, 237, 1, 2, 0.05, 14, 8, 8, false, 100};
    struct mt_forecast_score s = score_of(call, &k, 200, 1);

    (void)state;
    assert_true(s.points >= 200);
    assert_true(fabs(s.bias) <= 0.04); /* with prompts as growth: -0.077 */
    assert_true(s.cover >= 0.88);
}

static void test_given_back(void **state)
{
    /* 20 sessions that each take four blocks for a frame of 2 s and give two of them back. */
    struct mt_live *l;
    struct mt_forecast f;
    double used = 20 * 100;

    (void)state;
    assert_int_equal(mt_live_open(&l, 60, 10), 0);
    for (int frame = 0; frame < 100; frame++) {
        used += 20 * 4;
        for (int i = 0; i < 20; i++) {
            used -= 2;
            assert_true(mt_live_add(l, 2 * frame + 0.01 * i, used / 8000, 20) >= 0);
        }
    }
    assert_int_equal(mt_live_now(l, &f), 0);
    assert_near(f.rho_per_s, 20.0 / 8000, 0.01 * 20 / 8000);
    mt_live_close(&l);
}

static void test_churn(void **state)
{
    /*
     * With a mean call of ten minutes, replaced at once, the pool still fills; what leaves makes
     * the truth later than the growth alone says, never earlier. The growth must be right.
     */
    struct mt_live *l;
    struct mt_forecast f;
    uint64_t r = 5;
    double tokens[40], t = 0;
    int n = 20;

    (void)state;
    assert_int_equal(mt_live_open(&l, 60, 10), 0);
    for (int i = 0; i < 40; i++)
        tokens[i] = 0;
    while (t < 200) {
        double used = 0;

        t += 0.08;
        for (int i = 0; i < n; i++) {
            tokens[i] += 1;
            used += tokens[i];
        }
        assert_true(mt_live_add(l, t, used / 400000, n) >= 0);
        if (uniform(&r) < 0.02 && n < 40)
            tokens[n++] = 0; /* one comes */
        else if (uniform(&r) < 0.02 && n > 10)
            tokens[0] = tokens[--n]; /* one leaves, with what it held */
        else if (uniform(&r) < 0.01)
            tokens[1] = 0; /* one leaves as another comes: only the pool tells */
    }
    assert_int_equal(mt_live_now(l, &f), 0);
    assert_int_equal(f.sessions, n);
    assert_int_equal(f.batches, 6);
    assert_near(f.rho_per_s, n * 12.5 / 400000, 0.01 * n * 12.5 / 400000);
    assert_true(f.low_s <= f.sat_s && f.sat_s <= f.high_s);
    assert_near(f.sat_s, (1 - f.rho) / f.rho_per_s, 1e-9);
    mt_live_close(&l);
}

static void test_stream(void **state)
{
    struct mt_live *l;
    struct mt_forecast f;
    int closed = 0;
    double by;

    (void)state;
    assert_int_equal(mt_live_open(&l, 60, 10), 0);
    assert_int_equal(mt_live_now(l, &f), -ENODATA);
    /* Frames of 2 s that add 0.002 each; batches end between them. */
    for (int i = 0; i <= 20; i++)
        closed += mt_live_add(l, 3.3 + 2 * i, 0.1 + 0.002 * i, 4);
    assert_int_equal(closed, 4);
    assert_int_equal(mt_live_now(l, &f), 0);
    assert_int_equal(f.batches, 4);
    assert_near(f.rho_per_s, 0.001, 1e-12);
    assert_true(isnan(f.sat_s));
    for (int i = 21; i <= 40; i++)
        mt_live_add(l, 3.3 + 2 * i, 0.1 + 0.002 * i, 4);
    assert_int_equal(mt_live_now(l, &f), 0);
    assert_near(f.t_s, 83.3, 1e-12);
    assert_near(f.sat_s, 820, 1e-6);
    /* Nothing varies: what is left is a step of 2 s at the wall, and at either end of a minute. */
    by = 1.959964 * hypot(2 / sqrt(3), 820 * 2 / 60.0 / sqrt(6));
    assert_near(f.low_s, 820 - by, 1e-3);
    assert_near(f.high_s, 820 + by, 1e-3);
    mt_live_beat(l, 10);
    assert_int_equal(mt_live_now(l, &f), 0);
    assert_near(f.high_s, 820 + 1.959964 * hypot(10 / sqrt(3), 820 * 2 / 60.0 / sqrt(6)), 1e-3);
    /* An earlier time counts at the last's. */
    assert_int_equal(mt_live_add(l, 80, 0.181, 4), 0);
    assert_int_equal(mt_live_now(l, &f), 0);
    assert_near(f.t_s, 83.3, 1e-12);
    /* Nothing taken from what is out of range. */
    assert_int_equal(mt_live_add(l, NAN, 0.5, 4), -EDOM);
    assert_int_equal(mt_live_add(l, 1e300, 0.5, 4), -EDOM);
    assert_int_equal(mt_live_add(l, 90, 1.1, 4), -EDOM);
    assert_int_equal(mt_live_add(l, 90, NAN, 4), -EDOM);
    assert_int_equal(mt_live_add(l, 90, 0.5, -1), -EDOM);
    assert_int_equal(mt_live_now(l, &f), 0);
    assert_near(f.rho, 0.181, 1e-12);
    /* A silence longer than the window: what was before it is forgotten. */
    assert_int_equal(mt_live_add(l, 83.3 + 61, 0.5, 4), -1);
    assert_int_equal(mt_live_now(l, &f), 0);
    assert_int_equal(f.batches, 0);
    assert_true(isnan(f.rho_per_s));
    mt_live_close(&l);
    assert_null(l);
    assert_int_equal(mt_live_open(&l, 60, 20), -EDOM);
    assert_null(l);
    assert_int_equal(mt_live_open(&l, 60, 0), -EDOM);
    assert_int_equal(mt_live_open(&l, 1000, 1), -EDOM);
    assert_int_equal(mt_live_open(&l, 6e-4, 1e-4), -EDOM);
    assert_int_equal(mt_live_open(&l, NAN, 10), -EDOM);
}

/* A stream far longer than the history keeps the quarters of its way. */
static void test_long_history(void **state)
{
    struct mt_forecast q[3];
    struct mt_live *l;
    const double end = 300000; /* thirty thousand batches */

    (void)state;
    assert_int_equal(mt_live_open(&l, 60, 10), 0);
    for (int i = 0; 5 * i < end; i++)
        mt_live_add(l, 5 * i, 5 * i / end, 3);
    mt_live_quarters(l, end, q);
    for (int i = 0; i < 3; i++) {
        assert_true(q[i].t_s <= end * (i + 1) / 4);
        assert_near(q[i].t_s, end * (i + 1) / 4, 200);
        assert_near(q[i].sat_s, end - q[i].t_s, 1);
    }
    mt_live_close(&l);
}

static void test_score(void **state)
{
    /*
     * Truth at 100: predicted 45, 55 and 60 from 50, 50 and 60; one without an answer, one too
     * late.
     */
    const struct mt_forecast f[] = {
        {.t_s = 50, .sat_s = 45, .low_s = 40, .high_s = 51},
        {.t_s = 50, .sat_s = 55, .low_s = 51, .high_s = 60},
        {.t_s = 60, .sat_s = 60, .low_s = 30, .high_s = 90},
        {.t_s = 20, .sat_s = NAN, .low_s = NAN, .high_s = NAN},
        {.t_s = 100, .sat_s = 1, .low_s = 1, .high_s = 1},
        {.t_s = NAN, .sat_s = 3, .low_s = 1, .high_s = 5},
    };
    const struct mt_forecast never = {
        .t_s = 1, .sat_s = INFINITY, .low_s = INFINITY, .high_s = INFINITY};
    const double truth[] = {100, 100, 100, 100, 100, 100};
    struct mt_forecast_score s;
    double scratch[6];

    (void)state;
    mt_forecast_score(f, truth, 6, scratch, &s);
    assert_int_equal(s.points, 3);
    assert_near(s.mape, (0.1 + 0.1 + 0.5) / 3, 1e-12);
    assert_near(s.bias, (-0.1 + 0.1 + 0.5) / 3, 1e-12);
    assert_near(s.p95, 0.5, 1e-12);
    assert_near(s.cover, 2 / 3.0, 1e-12);
    assert_near(s.late, 1 / 3.0, 1e-12);
    mt_forecast_score(&never, truth, 1, scratch, &s);
    assert_int_equal(s.points, 1);
    assert_true(isinf(s.mape) && s.cover == 0 && s.late == 1);
    mt_forecast_score(f, truth, 0, scratch, &s);
    assert_int_equal(s.points, 0);
    assert_true(isnan(s.mape) && isnan(s.cover));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_student),
        cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_no_growth),
        cmocka_unit_test(test_on_off_talkers),
        cmocka_unit_test(test_walls_on_the_beat),
        cmocka_unit_test(test_prompts),
        cmocka_unit_test(test_given_back),
        cmocka_unit_test(test_churn),
        cmocka_unit_test(test_stream),
        cmocka_unit_test(test_long_history),
        cmocka_unit_test(test_score),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
