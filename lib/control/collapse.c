/*
 * collapse.c: the exact risk that calls with exponential durations overrun the pool. All sums run
 * over n in log space, in a window around their largest term: far below and far above it a
 * Poisson weight is nothing, whether n is 3 or 3e7.
 */
#include "control/collapse.h"
#include "control/poisson.h"

#include <errno.h>
#include <math.h>

/* Whether a sum counts the states over the pool, or the steps across its edge. */
enum what { OVER, CROSSINGS };

/*
 * sum_n pi_n P(Poisson(x) < n), or sum_n n pi_n P(Poisson(x) = n - 1), for an offered load nb. The
 * terms of the second are largest at sqrt(nb x), those of the first there or, beyond x, at nb;
 * their spread is below sqrt(n), so ten of these, and some for small n, leave out less than 1e-17
 * of them.
 */
static double sum(enum what what, double nb, double x, int64_t cap)
{
    double peak = what == OVER && nb > x ? nb : sqrt(nb * x), spread = 10 * sqrt(peak) + 60;
    double top = fmin(peak, (double)cap), all = 0, below, total = -INFINITY;
    int64_t from = (int64_t)fmax(1, floor(top - spread));
    int64_t to = (int64_t)fmin((double)cap, ceil(top + spread));

    if (cap != MT_NO_LIMIT)
        all = mt_poisson_log_cdf(cap, nb);
    below = mt_poisson_log_cdf(from - 2, x);
    for (int64_t n = from; n <= to; n++) {
        double share = mt_poisson_log(n, nb) - all, at = mt_poisson_log(n - 1, x);

        below = fmin(0, mt_log_add(below, at)); /* now log P(Poisson(x) <= n - 1) */
        total = mt_log_add(total, share + (what == OVER ? below : log((double)n) + at));
    }
    return exp(total);
}

static int pool_in_sessions(const struct mt_open *o, double *x)
{
    struct mt_occupancy occ;
    int rc = mt_open_occupancy(o, &occ);

    if (rc < 0)
        return rc;
    if (o->duration.kind != MT_LAW_EXP)
        return -ENOTSUP;
    *x = o->pool_tokens / o->rate / o->duration.mean_s;
    return *x <= MT_OFFERED_MAX ? 0 : -EDOM;
}

int mt_collapse_open(const struct mt_open *o, struct mt_collapse *out)
{
    struct mt_collapse c = {.chernoff = NAN};
    double d = o->duration.mean_s, nb = o->arrivals_s * d, x, chernoff;
    int rc = pool_in_sessions(o, &x);

    if (rc < 0)
        return rc;
    c.pool_sessions = x;
    c.over = fmin(1, sum(OVER, nb, x, o->cap));
    chernoff = exp(-(sqrt(x) - sqrt(nb)) * (sqrt(x) - sqrt(nb)));
    if (nb < x)
        c.chernoff = chernoff;
    if (o->cap == MT_NO_LIMIT)
        c.crossings_s = o->arrivals_s * chernoff * mt_bessel_i0_scaled(2 * sqrt(x * nb));
    else
        c.crossings_s = sum(CROSSINGS, nb, x, o->cap) / d;
    *out = c;
    return 0;
}

double mt_collapse_within(const struct mt_collapse *c, double horizon_s)
{
    return fmin(1, c->over + c->crossings_s * horizon_s);
}

static bool pool_ok(double x)
{
    return x >= 0 && x <= MT_OFFERED_MAX;
}

int mt_collapse_constant(double pool_sessions, int64_t n, double *over)
{
    if (!pool_ok(pool_sessions) || n < 0)
        return -EDOM;
    *over = exp(mt_poisson_log_cdf(n - 1, pool_sessions));
    return 0;
}

int mt_collapse_sessions(double pool_sessions, double risk, int64_t *n)
{
    int64_t fits = 0, fails = 1;

    if (!pool_ok(pool_sessions) || !(risk > 0 && risk < 1))
        return -EDOM;
    while (mt_poisson_log_cdf(fails - 1, pool_sessions) <= log(risk)) {
        fits = fails;
        fails *= 2;
    }
    while (fails - fits > 1) {
        int64_t mid = fits + (fails - fits) / 2;

        if (mt_poisson_log_cdf(mid - 1, pool_sessions) <= log(risk))
            fits = mid;
        else
            fails = mid;
    }
    *n = fits;
    return 0;
}

int mt_collapse_offered(const struct mt_open *o, double horizon_s, double risk, double *offered)
{
    struct mt_open at = *o;
    struct mt_collapse c;
    double low = 0, high, x, d = o->duration.mean_s;
    int rc;

    at.arrivals_s = 0;
    if (!(risk > 0 && risk < 1) || !(horizon_s >= 0) || !isfinite(horizon_s))
        return -EDOM;
    if ((rc = pool_in_sessions(&at, &x)) < 0)
        return rc;
    if (o->cap != MT_NO_LIMIT) {
        /* Beyond any load the cap itself is the number of sessions. */
        double most = log((double)o->cap) + mt_poisson_log(o->cap - 1, x);

        c.over = exp(mt_poisson_log_cdf(o->cap - 1, x));
        c.crossings_s = exp(most) / d;
        if (mt_collapse_within(&c, horizon_s) <= risk) {
            *offered = INFINITY;
            return 0;
        }
    }
    high = fmax(1, x) / 2;
    do {
        high *= 2;
        at.arrivals_s = high / d;
        if (high > MT_OFFERED_MAX)
            return -EDOM;
        mt_collapse_open(&at, &c);
    } while (mt_collapse_within(&c, horizon_s) <= risk);
    for (int i = 0; i < 200 && high - low > 1e-12 * high; i++) {
        double mid = low + (high - low) / 2;

        at.arrivals_s = mid / d;
        mt_collapse_open(&at, &c);
        if (mt_collapse_within(&c, horizon_s) <= risk)
            low = mid;
        else
            high = mid;
    }
    *offered = low;
    return 0;
}
