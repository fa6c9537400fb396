/*
 * open.c: calls that come and go. Moments of their durations, and what follows from them alone: the
 * mean and the spread of what the pool holds, and whether filling outruns leaving.
 */
#include "control/open.h"
#include "control/poisson.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool positive(double v)
{
    return v > 0 && isfinite(v);
}

static bool counted(double v)
{
    return v >= 0 && isfinite(v);
}

/* ---- laws ---- */

static const struct {
    const char *name, *shape;
    double above; /* the shape must be larger */
} laws[] = {
    {"exp", NULL, 0}, {"fixed", NULL, 0}, {"lognormal", "sigma", 0}, {"pareto", "alpha", 1}};

const char *mt_law_name(enum mt_law_kind kind)
{
    return laws[kind].name;
}

/* Behind "NAME:": the mean, and the shape where the law has one. buf is ours to cut up. */
static int parse_law(char *buf, size_t kind, struct mt_law *law)
{
    char *cursor = buf, *key, *value;
    int64_t ns;

    if (!mt_parse_pair(&cursor, &key, &value) || value || mt_parse_duration(key, &ns) < 0 ||
        ns == 0)
        return -EINVAL;
    *law = (struct mt_law){.kind = (enum mt_law_kind)kind, .mean_s = (double)ns / 1e9};
    if (!laws[kind].shape)
        return cursor ? -EINVAL : 0;
    if (!mt_parse_pair(&cursor, &key, &value) || !value || strcmp(key, laws[kind].shape) != 0 ||
        cursor || mt_parse_double(value, 0, 1e6, &law->shape) < 0 ||
        !(law->shape > laws[kind].above))
        return -EINVAL;
    return 0;
}

int mt_law_parse(const char *text, struct mt_law *out, struct mt_err *e)
{
    char *copy = strdup(text), *colon;
    struct mt_law law;
    int rc = -EINVAL;

    if (!copy)
        return mt_err_set(e, -ENOMEM, "%s", strerror(ENOMEM));
    colon = strchr(copy, ':');
    if (!colon) {
        rc = parse_law(copy, MT_LAW_EXP, &law);
    } else {
        *colon = '\0';
        for (size_t k = 0; k < MT_COUNT(laws); k++)
            if (!strcmp(copy, laws[k].name))
                rc = parse_law(colon + 1, k, &law);
    }
    free(copy);
    if (rc < 0)
        return mt_err_set(e, rc,
                          "expected exp:D, fixed:D, lognormal:D,sigma=X or pareto:D,alpha=X, D the "
                          "mean such as 300s, sigma above 0, alpha above 1");
    *out = law;
    return 0;
}

static bool law_ok(const struct mt_law *l)
{
    return positive(l->mean_s) && (unsigned)l->kind < MT_COUNT(laws) &&
           (!laws[l->kind].shape || (isfinite(l->shape) && l->shape > laws[l->kind].above));
}

int mt_law_moments(const struct mt_law *law, double m[3])
{
    double d = law->mean_s, a = law->shape, low = d * (a - 1) / a;

    if (!law_ok(law))
        return -EDOM;
    for (int k = 1; k <= 3; k++) {
        switch (law->kind) {
        case MT_LAW_EXP:
            m[k - 1] = tgamma(k + 1) * pow(d, k);
            break;
        case MT_LAW_FIXED:
            m[k - 1] = pow(d, k);
            break;
        case MT_LAW_LOGNORMAL:
            m[k - 1] = pow(d, k) * exp(k * (k - 1) / 2.0 * a * a);
            break;
        case MT_LAW_PARETO:
            m[k - 1] = k < a ? pow(low, k) * a / (a - k) : INFINITY;
            break;
        }
    }
    return 0;
}

double mt_law_draw(const struct mt_law *law, bool biased, double u1, double u2)
{
    double d = law->mean_s, a = law->shape;

    switch (law->kind) {
    case MT_LAW_EXP:
        return -d * (log1p(-u1) + (biased ? log1p(-u2) : 0));
    case MT_LAW_FIXED:
        return d;
    case MT_LAW_LOGNORMAL:
        /* A normal variate by Box and Muller; the mean of the logarithm is log D -/+ sigma^2/2. */
        return d * exp(a * (sqrt(-2 * log1p(-u1)) * cos(2 * M_PI * u2) + (biased ? a : -a) / 2));
    case MT_LAW_PARETO:
        return d * (a - 1) / a * pow(1 - u1, -1 / (biased ? a - 1 : a));
    }
    return NAN;
}

/* ---- a ramp ---- */

/* Positive root of q t^2/2 + v t = room, in the form that keeps its digits as q goes to 0. */
static double reach(double room, double v, double q)
{
    double root = v + sqrt(v * v + 2 * q * room);

    if (room <= 0)
        return 0;
    return root > 0 ? 2 * room / root : INFINITY;
}

int mt_ramp_full(const struct mt_ramp *r, double *t_s)
{
    double room, speed, t, ramp_s;

    if (!positive(r->pool_tokens) || !counted(r->rho0) || !counted(r->rate) ||
        !counted(r->sessions) || !counted(r->arrivals_s) || !counted(r->start_tokens) ||
        !(r->cap >= r->sessions))
        return -EDOM;
    room = (1 - r->rho0) * r->pool_tokens - r->sessions * r->start_tokens;
    speed = r->sessions * r->rate + r->arrivals_s * r->start_tokens;
    t = reach(room, speed, r->arrivals_s * r->rate);
    ramp_s = r->arrivals_s > 0 ? (r->cap - r->sessions) / r->arrivals_s : INFINITY;
    if (r->arrivals_s > 0 && t > ramp_s) {
        room -= speed * ramp_s + r->arrivals_s * r->rate * ramp_s * ramp_s / 2;
        t = ramp_s + reach(room, r->cap * r->rate, 0);
    }
    *t_s = t;
    return 0;
}

/* ---- Poisson arrivals ---- */

int mt_open_occupancy(const struct mt_open *o, struct mt_occupancy *out)
{
    struct mt_occupancy r;
    double m[3], age, age2, pairs;

    if (!positive(o->pool_tokens) || !positive(o->rate) || !counted(o->arrivals_s) || o->cap < 0 ||
        mt_law_moments(&o->duration, m) < 0)
        return -EDOM;
    r.offered = o->arrivals_s * m[0];
    if (!(r.offered <= 1e8))
        return -EDOM;
    r.sessions = r.offered;
    pairs = r.offered * r.offered; /* E[n (n - 1)] */
    r.refused = 0;
    if (o->cap != MT_NO_LIMIT) {
        double all = mt_poisson_log_cdf(o->cap, r.offered);

        r.refused = exp(mt_poisson_log(o->cap, r.offered) - all);
        r.sessions *= exp(mt_poisson_log_cdf(o->cap - 1, r.offered) - all);
        pairs *= exp(mt_poisson_log_cdf(o->cap - 2, r.offered) - all);
    }
    age = m[1] / (2 * m[0]);
    age2 = m[2] / (3 * m[0]);
    r.tokens_mean = r.tokens_sd = 0;
    if (r.sessions > 0) {
        r.tokens_mean = r.sessions * age * o->rate;
        /* Var = E[n] E[age^2] + (E[n (n - 1)] - E[n]^2) E[age]^2; the second is 0 without a cap. */
        r.tokens_sd = INFINITY;
        if (isfinite(age2)) {
            double more = o->cap == MT_NO_LIMIT ? 0 : pairs - r.sessions * r.sessions;

            r.tokens_sd = o->rate * sqrt(fmax(0, r.sessions * age2 + more * age * age));
        }
    }
    r.rho_mean = r.tokens_mean / o->pool_tokens;
    *out = r;
    return 0;
}

/* ---- the race ---- */

/* log(t P(D > t)) of a lognormal D at t = D exp(x). */
static double lognormal_peak_log(double x, double sigma)
{
    return x + log(erfc((x + sigma * sigma / 2) / sigma / M_SQRT2) / 2);
}

/* max of t P(D > t). */
static double cohort_peak(const struct mt_law *law)
{
    double a = law->shape, lo = -50 * a - a * a, hi = 30 * a, golden = (sqrt(5) - 1) / 2;

    switch (law->kind) {
    case MT_LAW_EXP:
        return law->mean_s / M_E;
    case MT_LAW_FIXED:
        return law->mean_s;
    case MT_LAW_PARETO:
        return law->mean_s * (a - 1) / a; /* t^(1 - alpha) falls from the start */
    case MT_LAW_LOGNORMAL:
        break;
    }
    /*
     * A normal tail's logarithm is concave, so there is one peak. Where erfc is 0 the log is -Inf.
     */
    for (int i = 0; i < 200; i++) {
        double p = hi - golden * (hi - lo), q = lo + golden * (hi - lo);

        if (lognormal_peak_log(p, a) >= lognormal_peak_log(q, a))
            hi = q;
        else
            lo = p;
    }
    return law->mean_s * exp(lognormal_peak_log((lo + hi) / 2, a));
}

int mt_race(double pool_tokens, double sessions, double rate, const struct mt_law *law,
            struct mt_race *out)
{
    double m[3];

    if (!positive(pool_tokens) || !positive(sessions) || !positive(rate) ||
        mt_law_moments(law, m) < 0)
        return -EDOM;
    out->t0_s = pool_tokens / (sessions * rate);
    out->cohort_s = cohort_peak(law);
    out->refill_s = m[1] / (2 * m[0]);
    out->cohort_full = out->cohort_s > out->t0_s;
    out->refill_full = out->refill_s > out->t0_s;
    return 0;
}
