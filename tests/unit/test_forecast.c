/*
 * test_forecast.c: calls that come and go: ramps, occupancy, the risk of overrunning the pool and
 * what happens behind the wall. Worked examples, sums by brute force, and Monte Carlo against the
 * exact figures.
 */
#include "control/collapse.h"
#include "control/poisson.h"
#include "control/wall.h"

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

static void assert_close(double got, double want, double relative)
{
    assert_near(got, want, relative * fabs(want));
}

static double uniform(uint64_t *r)
{
    return mt_unit(mt_mix64((*r)++));
}

static double between(uint64_t *r, double lo, double hi)
{
    return lo + (hi - lo) * uniform(r);
}

/* Calls of 300 s in the mean, one every 10 s, 12.5 tokens a second each. */
static struct mt_open calls(double pool_tokens)
{
    return (struct mt_open){.pool_tokens = pool_tokens,
                            .rate = 12.5,
                            .arrivals_s = 0.1,
                            .duration = {.kind = MT_LAW_EXP, .mean_s = 300},
                            .cap = MT_NO_LIMIT};
}

/* ---- Poisson and Bessel ---- */

static void test_poisson(void **state)
{
    (void)state;
    /* Against sums of products in long double. */
    for (int m = 1; m <= 60; m += 7) {
        long double mean = m * 0.83L, p = expl(-mean), sum = 0;

        for (int k = 0; k < 200; k++) {
            sum += p;
            assert_close(mt_poisson_log(k, (double)mean), (double)logl(p), 1e-12);
            /* Near 1 the logarithm is the other tail, which the sum here has only to 1e-19. */
            assert_near(mt_poisson_log_cdf(k, (double)mean), (double)logl(sum), 1e-13);
            p *= mean / (k + 1);
        }
    }
    assert_true(mt_poisson_log(-1, 3) == -INFINITY);
    assert_true(mt_poisson_log_cdf(-1, 3) == -INFINITY);
    assert_true(mt_poisson_log(0, 0) == 0 && mt_poisson_log(1, 0) == -INFINITY);
    assert_true(mt_poisson_log_cdf(0, 0) == 0);
    /* Far tails keep their digits: log of e^-m m^k/k! by its own series. */
    assert_close(mt_poisson_log(0, 5000), -5000, 1e-14);
    assert_close(mt_poisson_log(2, 5000), -5000 + 2 * log(5000) - log(2), 1e-14);
    /* At large means the two halves meet: the median is within one of the mean. */
    assert_near(exp(mt_poisson_log_cdf(100000000, 1e8)), 0.5, 1e-4);
    assert_close(mt_poisson_log(100000000, 1e8), -0.5 * log(2 * M_PI * 1e8), 1e-9);
    assert_near(mt_log_add(log(2), log(3)), log(5), 1e-15);
    assert_true(mt_log_add(-INFINITY, -INFINITY) == -INFINITY);
    assert_true(mt_log_add(-INFINITY, 1) == 1);
}

static void test_bessel(void **state)
{
    (void)state;
    assert_true(mt_bessel_i0_scaled(0) == 1);
    assert_close(mt_bessel_i0_scaled(1), 1.2660658777520082 * exp(-1), 1e-14);
    assert_close(mt_bessel_i0_scaled(10), 2815.716628466254 * exp(-10), 1e-13);
    /* The two forms agree where they meet, and the second one far out. */
    assert_close(mt_bessel_i0_scaled(30), mt_bessel_i0_scaled(30 - 1e-9), 1e-9);
    assert_close(mt_bessel_i0_scaled(1e8), 1 / sqrt(2 * M_PI * 1e8), 1e-8);
}

/* ---- laws ---- */

static void test_law_parse(void **state)
{
    static const char *const wrong[] = {"",
                                        "300x",
                                        "exp",
                                        "exp:",
                                        "exp:0",
                                        "exp:-3",
                                        "exp:300,sigma=1",
                                        "fixed:3 s",
                                        "lognormal:300",
                                        "lognormal:300,sigma=0",
                                        "lognormal:300,alpha=1",
                                        "lognormal:300,sigma",
                                        "lognormal:300,sigma=1,",
                                        "lognormal:300,sigma=1,sigma=1",
                                        "pareto:300,alpha=1",
                                        "pareto:300,alpha=nan",
                                        "weibull:300"};
    struct mt_law l;

    (void)state;
    assert_int_equal(mt_law_parse("5min", &l, NULL), 0);
    assert_true(l.kind == MT_LAW_EXP && l.mean_s == 300);
    assert_int_equal(mt_law_parse("fixed:80ms", &l, NULL), 0);
    assert_true(l.kind == MT_LAW_FIXED && l.mean_s == 0.08);
    assert_int_equal(mt_law_parse("lognormal:300,sigma=1.5", &l, NULL), 0);
    assert_true(l.kind == MT_LAW_LOGNORMAL && l.mean_s == 300 && l.shape == 1.5);
    assert_int_equal(mt_law_parse("pareto:1h,alpha=2.5", &l, NULL), 0);
    assert_true(l.kind == MT_LAW_PARETO && l.mean_s == 3600 && l.shape == 2.5);
    assert_string_equal(mt_law_name(l.kind), "pareto");
    for (size_t i = 0; i < MT_COUNT(wrong); i++) {
        struct mt_err e = {0};

        assert_int_equal(mt_law_parse(wrong[i], &l, &e), -EINVAL);
        assert_non_null(strstr(e.text, "expected"));
    }
    assert_true(l.kind == MT_LAW_PARETO); /* untouched */
}

/* What is drawn has the moments that are claimed, and those of the call in progress. */
static void test_law_draws(void **state)
{
    static const struct mt_law laws[] = {{MT_LAW_EXP, 300, 0},
                                         {MT_LAW_FIXED, 300, 0},
                                         {MT_LAW_LOGNORMAL, 300, 0.6},
                                         {MT_LAW_PARETO, 300, 8}};
    enum { DRAWS = 400000 };

    (void)state;
    for (size_t i = 0; i < MT_COUNT(laws); i++) {
        double m[3], one = 0, two = 0, biased = 0;
        uint64_t r = 3;

        assert_int_equal(mt_law_moments(&laws[i], m), 0);
        assert_close(m[0], 300, 1e-12);
        for (int k = 0; k < DRAWS; k++) {
            double u1 = uniform(&r), u2 = uniform(&r), d = mt_law_draw(&laws[i], false, u1, u2);

            one += d / DRAWS;
            two += d * d / DRAWS;
            biased += mt_law_draw(&laws[i], true, u1, u2) / DRAWS;
        }
        assert_close(one, m[0], 0.01);
        assert_close(two, m[1], 0.02);
        assert_close(biased, m[1] / m[0], 0.01);
    }
}

static void test_law_moments(void **state)
{
    struct mt_law l = {MT_LAW_PARETO, 300, 2.5};
    double m[3];

    (void)state;
    assert_int_equal(mt_law_moments(&l, m), 0);
    assert_close(m[1], 180.0 * 180 * 5, 1e-12); /* x = 180 */
    assert_true(isinf(m[2]));
    l = (struct mt_law){MT_LAW_LOGNORMAL, 300, 1};
    assert_int_equal(mt_law_moments(&l, m), 0);
    assert_close(m[2], 2.7e7 * exp(3), 1e-12);
    l.shape = 0;
    assert_int_equal(mt_law_moments(&l, m), -EDOM);
    l = (struct mt_law){MT_LAW_EXP, NAN, 0};
    assert_int_equal(mt_law_moments(&l, m), -EDOM);
}

/* ---- a ramp ---- */

static void test_ramp(void **state)
{
    struct mt_ramp r = {
        .pool_tokens = 49152, .rate = 12.5, .sessions = 4, .arrivals_s = 0.3125, .cap = INFINITY};
    double t;

    (void)state;
    assert_int_equal(mt_ramp_full(&r, &t), 0);
    assert_near(t, 146.353, 5e-4);
    r.cap = 30;
    assert_int_equal(mt_ramp_full(&r, &t), 0);
    assert_near(t, 167.125, 5e-4);
    /* No arrivals, or too slow to matter: N constant. */
    r = (struct mt_ramp){.pool_tokens = 49152, .rho0 = 0.25, .rate = 12.5, .sessions = 30};
    r.cap = INFINITY;
    assert_int_equal(mt_ramp_full(&r, &t), 0);
    assert_near(t, 98.304, 1e-9);
    r.arrivals_s = 1e-12;
    assert_int_equal(mt_ramp_full(&r, &t), 0);
    assert_near(t, 98.304, 1e-9);
    r.cap = 30;
    r.arrivals_s = 5;
    assert_int_equal(mt_ramp_full(&r, &t), 0);
    assert_near(t, 98.304, 1e-9);
    /* Nobody, nothing to add, full already. */
    r = (struct mt_ramp){.pool_tokens = 1, .rate = 1, .cap = 0};
    assert_int_equal(mt_ramp_full(&r, &t), 0);
    assert_true(isinf(t));
    r = (struct mt_ramp){.pool_tokens = 1, .rate = 0, .sessions = 1, .arrivals_s = 1, .cap = 9};
    assert_int_equal(mt_ramp_full(&r, &t), 0);
    assert_true(isinf(t));
    r = (struct mt_ramp){.pool_tokens = 1, .rho0 = 1.5, .rate = 1, .sessions = 1, .cap = 9};
    assert_int_equal(mt_ramp_full(&r, &t), 0);
    assert_true(t == 0);
    r.cap = 0.5;
    assert_int_equal(mt_ramp_full(&r, &t), -EDOM);
    r.cap = NAN;
    assert_int_equal(mt_ramp_full(&r, &t), -EDOM);
    r.cap = 9, r.rate = NAN;
    assert_int_equal(mt_ramp_full(&r, &t), -EDOM);
}

/* Against adding up tokens in small steps of time, arrivals as a fluid. */
static void test_ramp_is_exact(void **state)
{
    uint64_t r = 21;

    (void)state;
    for (int i = 0; i < 200; i++) {
        struct mt_ramp k = {.pool_tokens = between(&r, 500, 5000),
                            .rho0 = between(&r, 0, 0.9),
                            .rate = between(&r, 1, 30),
                            .sessions = between(&r, 0, 10),
                            .arrivals_s = between(&r, 0.01, 2),
                            .start_tokens = i % 2 ? between(&r, 0, 5) : 0};
        double n = k.sessions, used, t = 0, got;
        const double step = 1e-3;

        k.cap = i % 3 ? k.sessions + between(&r, 0, 5) : INFINITY;
        used = k.rho0 * k.pool_tokens + n * k.start_tokens;
        while (used < k.pool_tokens) {
            double more = fmin(k.cap - n, k.arrivals_s * step);

            used += (n + more / 2) * k.rate * step + more * k.start_tokens;
            n += more;
            t += step;
        }
        assert_int_equal(mt_ramp_full(&k, &got), 0);
        assert_near(got, t, 2e-3 + 1e-6 * t);
    }
}

/* ---- occupancy ---- */

static void test_occupancy(void **state)
{
    struct mt_open o = calls(225000);
    struct mt_occupancy r;

    (void)state;
    assert_int_equal(mt_open_occupancy(&o, &r), 0);
    assert_near(r.tokens_mean, 112500, 1e-6);
    assert_near(r.tokens_sd, 29047.4, 0.05);
    assert_near(r.offered, 30, 1e-12);
    assert_near(r.rho_mean, 0.5, 1e-12);
    assert_true(r.refused == 0 && r.sessions == r.offered);
    o.duration.kind = MT_LAW_FIXED;
    assert_int_equal(mt_open_occupancy(&o, &r), 0);
    assert_near(r.tokens_mean, 56250, 1e-6);
    assert_near(r.tokens_sd, 11858.5, 0.05);
    o.duration = (struct mt_law){MT_LAW_PARETO, 300, 2.5};
    assert_int_equal(mt_open_occupancy(&o, &r), 0);
    assert_true(isfinite(r.tokens_mean) && isinf(r.tokens_sd));
    o.duration.shape = 1.5;
    assert_int_equal(mt_open_occupancy(&o, &r), 0);
    assert_true(isinf(r.tokens_mean) && isinf(r.tokens_sd) && isinf(r.rho_mean));
    o.arrivals_s = 0;
    assert_int_equal(mt_open_occupancy(&o, &r), 0);
    assert_true(r.tokens_mean == 0 && r.tokens_sd == 0);
    o.arrivals_s = NAN;
    assert_int_equal(mt_open_occupancy(&o, &r), -EDOM);
    o = calls(0);
    assert_int_equal(mt_open_occupancy(&o, &r), -EDOM);
    o = calls(1), o.cap = -1;
    assert_int_equal(mt_open_occupancy(&o, &r), -EDOM);
}

/* With a cap, against Erlang's recursion and a sum over all states. */
static void test_occupancy_capped(void **state)
{
    (void)state;
    for (int cap = 0; cap <= 60; cap += 5) {
        struct mt_open o = calls(225000);
        double b = 1, p = 1, sum = 0, n1 = 0, n2 = 0;
        struct mt_occupancy r;

        o.cap = cap;
        for (int n = 0; n <= cap; n++) {
            if (n > 0) {
                b = 30 * b / (n + 30 * b);
                p *= 30.0 / n;
            }
            sum += p;
            n1 += n * p;
            n2 += (double)n * n * p;
        }
        n1 /= sum;
        n2 /= sum;
        assert_int_equal(mt_open_occupancy(&o, &r), 0);
        assert_close(r.refused, b, 1e-10);
        assert_near(r.sessions, n1, 1e-9);
        assert_near(r.tokens_mean, n1 * 300 * 12.5, 1e-5);
        assert_near(r.tokens_sd, 12.5 * 300 * sqrt(n1 * 2 + n2 - n1 - n1 * n1), 1e-4);
    }
}

static void test_race(void **state)
{
    struct mt_law l = {MT_LAW_EXP, 0, 0};
    struct mt_race r;

    (void)state;
    /* t0 = 131.072 s: one cohort overruns from D = e t0 = 356.3 s, refilled from D = t0. */
    l.mean_s = 356.2;
    assert_int_equal(mt_race(49152, 30, 12.5, &l, &r), 0);
    assert_near(r.t0_s, 131.072, 1e-9);
    assert_true(!r.cohort_full && r.refill_full);
    l.mean_s = 356.4;
    assert_int_equal(mt_race(49152, 30, 12.5, &l, &r), 0);
    assert_true(r.cohort_full && r.refill_full);
    l.mean_s = 131;
    assert_int_equal(mt_race(49152, 30, 12.5, &l, &r), 0);
    assert_false(r.refill_full);
    /* Fixed: t0 and 2 t0. */
    l = (struct mt_law){MT_LAW_FIXED, 131.1, 0};
    assert_int_equal(mt_race(49152, 30, 12.5, &l, &r), 0);
    assert_true(r.cohort_full && !r.refill_full);
    l.mean_s = 262.2;
    assert_int_equal(mt_race(49152, 30, 12.5, &l, &r), 0);
    assert_true(r.refill_full);
    assert_int_equal(mt_race(49152, 0, 12.5, &l, &r), -EDOM);
    /* The peak of t P(D > t), searched for on a fine grid. */
    for (int i = 1; i <= 12; i++) {
        double best = 0, sigma = 0.25 * i;

        l = (struct mt_law){MT_LAW_LOGNORMAL, 100, sigma};
        for (int k = -30000; k < 30000; k++) {
            double x = 1e-3 * k;

            best = fmax(best, 100 * exp(x) * erfc((x + sigma * sigma / 2) / sigma / M_SQRT2) / 2);
        }
        assert_int_equal(mt_race(49152, 30, 12.5, &l, &r), 0);
        assert_close(r.cohort_s, best, 1e-6);
    }
    l = (struct mt_law){MT_LAW_PARETO, 300, 1.5};
    assert_int_equal(mt_race(49152, 30, 12.5, &l, &r), 0);
    assert_near(r.cohort_s, 100, 1e-9);
    assert_true(isinf(r.refill_s) && r.refill_full);
}

/* ---- collapse, exact ---- */

static void test_collapse(void **state)
{
    struct mt_open o = calls(225000);
    struct mt_collapse c, capped;

    (void)state;
    assert_int_equal(mt_collapse_open(&o, &c), 0);
    assert_near(c.pool_sessions, 60, 1e-12);
    assert_near(c.over, 5.52e-4, 5e-7);
    assert_near(c.chernoff, 5.82e-3, 5e-6);
    assert_near(c.crossings_s, 2.52247e-5, 5e-11);
    assert_near(mt_collapse_within(&c, 3600), 0.0914, 5e-5);
    assert_true(mt_collapse_within(&c, 1e9) == 1);
    assert_near(mt_collapse_within(&c, 0), c.over, 1e-18);
    /* A cap that nobody reaches changes nothing: Rice's sum is the closed form. */
    o.cap = 500;
    assert_int_equal(mt_collapse_open(&o, &capped), 0);
    assert_close(capped.over, c.over, 1e-10);
    assert_close(capped.crossings_s, c.crossings_s, 1e-10);
    o = calls(160000);
    assert_int_equal(mt_collapse_open(&o, &c), 0);
    assert_near(c.over, 0.0605, 5e-5);
    o.cap = 32;
    assert_int_equal(mt_collapse_open(&o, &c), 0);
    assert_near(c.over, 0.01099, 5e-6);
    o.duration.kind = MT_LAW_FIXED;
    assert_int_equal(mt_collapse_open(&o, &c), -ENOTSUP);
    o = calls(1e14);
    assert_int_equal(mt_collapse_open(&o, &c), -EDOM);
    o = calls(3750), o.arrivals_s = 0;
    assert_int_equal(mt_collapse_open(&o, &c), 0);
    assert_true(c.over == 0 && c.crossings_s == 0);
    assert_close(c.chernoff, exp(-1), 1e-12);
}

/* Against plain sums over all states. */
static void test_collapse_is_exact(void **state)
{
    uint64_t r = 8;

    (void)state;
    for (int i = 0; i < 300; i++) {
        double nb = between(&r, 0.05, 40), x = between(&r, 0.05, 60);
        int cap = i % 2 ? 400 : (int)between(&r, 0, 60);
        long double p = 1, sum = 0, below = 0, at = expl(-x), over = 0, nu = 0;
        struct mt_open o = calls(x * 3750);
        struct mt_collapse c;

        o.arrivals_s = nb / 300;
        o.cap = i % 2 ? MT_NO_LIMIT : cap;
        for (int n = 0; n <= cap; n++) {
            if (n > 0) {
                p *= (long double)nb / n;
                below += at; /* P(Poisson(x) <= n - 1) */
                over += p * below;
                nu += p * n * at;
                at *= x / n;
            }
            sum += p;
        }
        assert_int_equal(mt_collapse_open(&o, &c), 0);
        assert_close(c.over, (double)(over / sum), 1e-9);
        assert_close(c.crossings_s, (double)(nu / sum / 300), 1e-9);
        if (nb < x)
            assert_true(c.over <= c.chernoff);
        else
            assert_true(isnan(c.chernoff));
    }
}

/* No overflow and no lost digits where factorials and powers have long left the doubles. */
static void test_collapse_large(void **state)
{
    struct mt_open o = calls(3e7 * 3750);
    struct mt_collapse c;

    (void)state;
    o.arrivals_s = 2.99e7 / 300;
    assert_int_equal(mt_collapse_open(&o, &c), 0);
    assert_true(c.over > 0 && c.over < c.chernoff && c.chernoff < 1e-35);
    /* A sum of n ages: normal with mean Nb and variance 2 Nb near its middle. */
    o.arrivals_s = 3e7 / 300;
    assert_int_equal(mt_collapse_open(&o, &c), 0);
    assert_near(c.over, 0.5, 1e-4);
    o.arrivals_s = (3e7 - sqrt(6e7)) / 300;
    assert_int_equal(mt_collapse_open(&o, &c), 0);
    assert_near(c.over, erfc(1 / M_SQRT2) / 2, 1e-4);
    o.arrivals_s = 9e7 / 300;
    o.cap = 30005000;
    assert_int_equal(mt_collapse_open(&o, &c), 0);
    assert_true(c.over > 0.5 && c.over <= 1 && c.crossings_s > 0);
    o.cap = MT_NO_LIMIT;
    o.arrivals_s = 10 / 300.0;
    assert_int_equal(mt_collapse_open(&o, &c), 0);
    assert_true(c.over == 0 && c.chernoff == 0 && c.crossings_s == 0); /* e^-3e7 */
}

static void test_sizing(void **state)
{
    static const struct {
        double mean_s, risk;
        int64_t n;
    } rows[] = {{600, 0.01, 1}, {300, 0.01, 5}, {120, 0.01, 20}, {120, 0.001, 17}};
    struct mt_open o = calls(225000);
    struct mt_collapse c;
    double over, nb;
    int64_t n;

    (void)state;
    for (size_t i = 0; i < MT_COUNT(rows); i++) {
        double x = 49152 / (12.5 * rows[i].mean_s);

        assert_int_equal(mt_collapse_sessions(x, rows[i].risk, &n), 0);
        assert_int_equal(n, rows[i].n);
        assert_int_equal(mt_collapse_constant(x, n, &over), 0);
        assert_true(over <= rows[i].risk);
        assert_int_equal(mt_collapse_constant(x, n + 1, &over), 0);
        assert_true(over > rows[i].risk);
    }
    assert_int_equal(mt_collapse_constant(5, 0, &over), 0);
    assert_true(over == 0);
    assert_int_equal(mt_collapse_constant(NAN, 1, &over), -EDOM);
    assert_int_equal(mt_collapse_constant(5, -1, &over), -EDOM);
    assert_int_equal(mt_collapse_sessions(5, 0, &n), -EDOM);
    assert_int_equal(mt_collapse_sessions(5, 1, &n), -EDOM);
    /* The offered load it finds is on the edge. */
    for (int h = 0; h <= 3600; h += 3600) {
        assert_int_equal(mt_collapse_offered(&o, h, 0.01, &nb), 0);
        o.arrivals_s = nb / 300;
        assert_int_equal(mt_collapse_open(&o, &c), 0);
        assert_near(mt_collapse_within(&c, h), 0.01, 1e-9);
    }
    o.cap = 36; /* constant 36 in 60 mean sessions: 4e-4 */
    assert_int_equal(mt_collapse_offered(&o, 0, 0.01, &nb), 0);
    assert_true(isinf(nb));
    o.cap = 50;
    assert_int_equal(mt_collapse_offered(&o, 0, 0.01, &nb), 0);
    assert_true(nb > 37 && nb < 60);
    o.cap = 0;
    assert_int_equal(mt_collapse_offered(&o, 0, 0.01, &nb), 0);
    assert_true(isinf(nb));
    assert_int_equal(mt_collapse_offered(&o, -1, 0.01, &nb), -EDOM);
    o.duration.kind = MT_LAW_FIXED;
    assert_int_equal(mt_collapse_offered(&o, 0, 0.01, &nb), -ENOTSUP);
}

/* ---- Monte Carlo ---- */

static struct mt_monte_carlo_result play(struct mt_open o, bool steady, double warm_s, int64_t runs,
                                         uint64_t seed)
{
    const struct mt_monte_carlo m = {.open = o,
                                     .horizon_s = 3600,
                                     .steady = steady,
                                     .warm_s = warm_s,
                                     .runs = runs,
                                     .seed = seed};
    struct mt_monte_carlo_result r;

    assert_int_equal(mt_monte_carlo(&m, &r), 0);
    assert_int_equal(r.runs, runs);
    return r;
}

/* Within 3.5 standard errors, its own and the figure's (95 %), of a published figure. */
static void assert_figure(const struct mt_monte_carlo_result *r, double p, double half)
{
    double own = sqrt(p * (1 - p) / (double)r->runs), error = half / 1.96;

    assert_near(r->p, p, 3.5 * sqrt(own * own + error * error));
}

static void test_monte_carlo_figures(void **state)
{
    struct mt_open o = calls(225000), small = calls(160000), fixed = calls(112500);
    struct mt_monte_carlo_result r;

    (void)state;
    r = play(o, true, 0, 8000, 1);
    assert_figure(&r, 0.0267, 0.0006);
    r = play(o, false, 6000, 3000, 2); /* after 20 mean calls */
    assert_figure(&r, 0.0267, 0.0006);
    r = play(o, false, 0, 8000, 3);
    assert_figure(&r, 0.0137, 0.0004);
    small.cap = 32;
    r = play(small, false, 0, 4000, 4);
    assert_figure(&r, 0.2245, 0.0026);
    fixed.duration.kind = MT_LAW_FIXED;
    r = play(fixed, false, 0, 10000, 5);
    assert_figure(&r, 0.0043, 0.0003);
}

/*
 * With other numbers: the share of steady states over the pool, and crossings, are those of the
 * sums.
 */
static void test_monte_carlo_against_exact(void **state)
{
    uint64_t r = 4;

    (void)state;
    for (int i = 0; i < 8; i++) {
        double d = between(&r, 20, 200), nb = between(&r, 2, 25);
        struct mt_open o = {.pool_tokens = 10 * d * nb * between(&r, 0.9, 1.4),
                            .rate = 10,
                            .arrivals_s = nb / d,
                            .duration = {.kind = MT_LAW_EXP, .mean_s = d},
                            .cap = i % 2 ? MT_NO_LIMIT : (int64_t)(nb * 1.2)};
        struct mt_monte_carlo m = {.open = o, .steady = true, .runs = 20000, .seed = r};
        struct mt_monte_carlo_result got;
        struct mt_collapse c;
        double error, from_below;

        assert_int_equal(mt_collapse_open(&o, &c), 0);
        error = sqrt(c.over * (1 - c.over) / (double)m.runs);
        assert_int_equal(mt_monte_carlo(&m, &got), 0);
        assert_near(got.p, c.over, 4 * error);
        assert_int_equal(got.over, got.hits);
        assert_true(got.hit_s == 0);
        /* Empty long before, the same. */
        m.steady = false, m.warm_s = 15 * d, m.runs = 2000;
        assert_int_equal(mt_monte_carlo(&m, &got), 0);
        assert_near(got.p, c.over, 4 * sqrt(10) * error);
        /* Over so short a time that none crosses twice: nu of them. */
        m.steady = true, m.warm_s = 0, m.horizon_s = d / 200, m.runs = 100000;
        assert_int_equal(mt_monte_carlo(&m, &got), 0);
        from_below = (double)(got.hits - got.over) / (double)got.runs;
        assert_near(from_below, c.crossings_s * m.horizon_s,
                    4 * sqrt(from_below / (double)m.runs) + 0.02 * from_below);
        /* For longer, a bound. */
        m.horizon_s = d, m.runs = 2000;
        assert_int_equal(mt_monte_carlo(&m, &got), 0);
        assert_true(got.low <= mt_collapse_within(&c, d));
    }
}

/*
 * N kept constant: exponential calls against the exact figure, and the moment at which they fill.
 */
static void test_monte_carlo_constant(void **state)
{
    struct mt_monte_carlo m = {.open = calls(32.768 * 12.5 * 120), .steady = true, .runs = 40000};
    struct mt_monte_carlo_result r;
    double over;

    (void)state;
    m.open.duration.mean_s = 120;
    for (m.constant = 20; m.constant <= 40; m.constant += 10) {
        assert_int_equal(mt_collapse_constant(32.768, m.constant, &over), 0);
        assert_int_equal(mt_monte_carlo(&m, &r), 0);
        assert_near(r.p, over, 4 * sqrt(over / 40000));
    }
    /* Calls of fixed length that start together and outlast the filling: full exactly at t0. */
    m = (struct mt_monte_carlo){
        .open = calls(49152), .constant = 30, .horizon_s = 200, .runs = 10, .seed = 9};
    m.open.duration = (struct mt_law){MT_LAW_FIXED, 140, 0};
    assert_int_equal(mt_monte_carlo(&m, &r), 0);
    assert_int_equal(r.hits, 10);
    assert_near(r.hit_s, 131.072, 1e-9);
    assert_near(r.hit_error_s, 0, 1e-9);
    /* Calls of 130 s leave in time, all at once, and so do those that follow. */
    m.open.duration.mean_s = 130;
    m.horizon_s = 3600;
    assert_int_equal(mt_monte_carlo(&m, &r), 0);
    assert_int_equal(r.hits, 0);
    assert_true(isnan(r.hit_s) && isnan(r.hit_error_s));
    assert_true(r.low == 0 && r.high > 0.2 && r.high < 0.4);
}

/* Other laws: the steady state as it is drawn is the one that an empty machine comes to. */
static void test_monte_carlo_any_law(void **state)
{
    static const struct mt_law laws[] = {{MT_LAW_LOGNORMAL, 100, 1}, {MT_LAW_PARETO, 100, 3.2}};

    (void)state;
    for (size_t i = 0; i < MT_COUNT(laws); i++) {
        struct mt_monte_carlo m = {.open = calls(26000), .steady = true, .runs = 20000, .seed = 6};
        struct mt_monte_carlo_result steady, warm;
        double error;

        m.open.duration = laws[i];
        m.open.arrivals_s = 0.2;
        assert_int_equal(mt_monte_carlo(&m, &steady), 0);
        m.steady = false;
        m.warm_s = 6000; /* a call longer than that is one in a million */
        m.runs = 3000;
        m.seed = 7;
        assert_int_equal(mt_monte_carlo(&m, &warm), 0);
        error = sqrt(steady.p * (1 - steady.p) / 3000);
        assert_in_range(warm.hits, 30, 2900);
        assert_near(warm.p, steady.p, 4 * error);
    }
}

static void test_monte_carlo_stops(void **state)
{
    struct mt_monte_carlo m = {
        .open = calls(160000), .horizon_s = 3600, .runs = 1000000, .precision = 0.1, .seed = 3};
    struct mt_monte_carlo_result a, b;

    (void)state;
    assert_int_equal(mt_monte_carlo(&m, &a), 0);
    assert_in_range(a.runs, 100, 100000);
    assert_true((a.high - a.low) / 2 <= 0.1 * a.p);
    assert_true(a.low < a.p && a.p < a.high && a.hit_s > 0 && a.hit_s < 3600 && a.hit_error_s > 0);
    /* The seed is the run. */
    assert_int_equal(mt_monte_carlo(&m, &b), 0);
    assert_memory_equal(&a, &b, sizeof(a));
    m.seed = 4;
    assert_int_equal(mt_monte_carlo(&m, &b), 0);
    assert_true(a.hit_s != b.hit_s);
    m.runs = 50;
    assert_int_equal(mt_monte_carlo(&m, &b), 0);
    assert_int_equal(b.runs, 50);
    m.runs = 0;
    assert_int_equal(mt_monte_carlo(&m, &b), -EDOM);
    m.runs = 10, m.horizon_s = NAN;
    assert_int_equal(mt_monte_carlo(&m, &b), -EDOM);
    m.horizon_s = 1, m.open.rate = 0;
    assert_int_equal(mt_monte_carlo(&m, &b), -EDOM);
    assert_int_equal(b.runs, 50);
}

static void test_wilson(void **state)
{
    double low, high;

    (void)state;
    /* Fourteen of twenty: the interval of the textbook. */
    mt_wilson(14, 20, &low, &high);
    assert_near(low, 0.4810, 5e-5);
    assert_near(high, 0.8545, 5e-5);
    mt_wilson(0, 20, &low, &high);
    assert_true(low == 0);
    assert_near(high, 0.1611, 5e-5);
    mt_wilson(20, 20, &low, &high);
    assert_near(low, 0.8389, 5e-5);
    assert_true(high == 1);
}

/* ---- behind the wall ---- */

static void test_wall(void **state)
{
    struct mt_wall w = {.cost = {0.020, 0.0015},
                        .deadline_s = 0.080,
                        .sessions = 30,
                        .rate = 12.5,
                        .recompute_s = 0.0002,
                        .evicted = 1638};
    struct mt_wall_view v;
    double t;

    (void)state;
    assert_int_equal(mt_wall_look(&w, &v), 0);
    assert_near(v.serve + v.recompute, 0.8875, 1e-12);
    assert_false(v.collapses);
    assert_near(v.stall_s, 0.3276, 1e-12);
    assert_near(v.stall_frames, 4.095, 1e-12);
    assert_near(v.stall_every_s, 1638 / 375.0, 1e-12);
    w.recompute_s = 0.0006;
    assert_int_equal(mt_wall_look(&w, &v), 0);
    assert_near(v.serve + v.recompute, 1.0375, 1e-12);
    assert_true(v.collapses);
    /* At most_sessions the two loads are the machine. */
    w.sessions = v.most_sessions;
    assert_int_equal(mt_wall_look(&w, &v), 0);
    assert_near(v.serve + v.recompute, 1, 1e-12);
    w.cost.a_s = 0.08;
    assert_int_equal(mt_wall_look(&w, &v), 0);
    assert_true(v.most_sessions == 0);
    w.cost = (struct mt_cost){0.02, 0};
    w.recompute_s = 0;
    assert_int_equal(mt_wall_look(&w, &v), 0);
    assert_true(isinf(v.most_sessions));
    w.evicted = 0;
    assert_int_equal(mt_wall_look(&w, &v), -EDOM);
    w.evicted = 1, w.recompute_s = NAN;
    assert_int_equal(mt_wall_look(&w, &v), -EDOM);
    assert_int_equal(mt_wall_drain(120, 29, 20, &t), 0);
    assert_near(t, 44.6, 0.05);
    assert_int_equal(mt_wall_drain(120, 20, 29, &t), 0);
    assert_true(t == 0);
    assert_int_equal(mt_wall_drain(120, 20, 0, &t), 0);
    assert_true(isinf(t));
    assert_int_equal(mt_wall_drain(0, 20, 1, &t), -EDOM);
    assert_int_equal(mt_wall_retries(0.5, 0.8, &t), 0);
    assert_near(t, 1 / 0.6, 1e-12);
    assert_int_equal(mt_wall_retries(1, 1, &t), 0);
    assert_true(isinf(t));
    assert_int_equal(mt_wall_retries(1.1, 1, &t), -EDOM);
    assert_int_equal(mt_wall_retries(0, NAN, &t), -EDOM);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_poisson),
        cmocka_unit_test(test_bessel),
        cmocka_unit_test(test_law_parse),
        cmocka_unit_test(test_law_draws),
        cmocka_unit_test(test_law_moments),
        cmocka_unit_test(test_ramp),
        cmocka_unit_test(test_ramp_is_exact),
        cmocka_unit_test(test_occupancy),
        cmocka_unit_test(test_occupancy_capped),
        cmocka_unit_test(test_race),
        cmocka_unit_test(test_collapse),
        cmocka_unit_test(test_collapse_is_exact),
        cmocka_unit_test(test_collapse_large),
        cmocka_unit_test(test_sizing),
        cmocka_unit_test(test_monte_carlo_figures),
        cmocka_unit_test(test_monte_carlo_against_exact),
        cmocka_unit_test(test_monte_carlo_constant),
        cmocka_unit_test(test_monte_carlo_any_law),
        cmocka_unit_test(test_monte_carlo_stops),
        cmocka_unit_test(test_wilson),
        cmocka_unit_test(test_wall),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
