/*
 * montecarlo.c: the risk of a hit within a horizon, by playing calls that come and go. Only events
 * are visited. Between two of them n sessions add n seconds of call a second, so the moment at
 * which their sum of ages passes C/r is solved exactly. Nothing is evicted: a hit ends the run.
 */
#include "control/collapse.h"
#include "control/poisson.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

struct call {
    double end, birth;
};

/* One machine, reused by all runs. Calls are a heap by their end. */
struct machine {
    const struct mt_monte_carlo *m;
    struct call *calls;
    size_t n, room;
    double *steady; /* cumulative law of the number of sessions in the steady state */
    int64_t steady_from;
    size_t steady_count;
    double full;   /* C/r: the sum of ages at which the pool is full, in seconds */
    double ages;   /* their sum now */
    uint64_t word; /* counter of the generator */
};

static double uniform(struct machine *k)
{
    return mt_unit(mt_mix64(k->word++));
}

static double duration(struct machine *k, bool biased)
{
    double u1 = uniform(k), u2 = 0;

    if (biased || k->m->open.duration.kind == MT_LAW_LOGNORMAL)
        u2 = uniform(k);
    return mt_law_draw(&k->m->open.duration, biased, u1, u2);
}

static int push(struct machine *k, double birth, double end)
{
    size_t i;

    if (k->n == k->room) {
        size_t room = k->room ? 2 * k->room : 64;
        struct call *calls = realloc(k->calls, mt_mul(room, sizeof(*calls)));

        if (!calls)
            return -ENOMEM;
        k->calls = calls;
        k->room = room;
    }
    for (i = k->n++; i > 0 && k->calls[(i - 1) / 2].end > end; i = (i - 1) / 2)
        k->calls[i] = k->calls[(i - 1) / 2];
    k->calls[i] = (struct call){end, birth};
    return 0;
}

/* The call that ends first. */
static struct call pop(struct machine *k)
{
    struct call first = k->calls[0], last = k->calls[--k->n];
    size_t i = 0;

    for (;;) {
        size_t child = 2 * i + 1;

        if (child >= k->n)
            break;
        if (child + 1 < k->n && k->calls[child + 1].end < k->calls[child].end)
            child++;
        if (last.end <= k->calls[child].end)
            break;
        k->calls[i] = k->calls[child];
        i = child;
    }
    k->calls[i] = last;
    return first;
}

/* Cumulative weights of n in the steady state: Poisson(Nb), cut at the cap. */
static int prepare_steady(struct machine *k)
{
    const struct mt_open *o = &k->m->open;
    double nb = o->arrivals_s * o->duration.mean_s, spread = 10 * sqrt(nb) + 60, sum = 0;
    double top = fmin(nb, (double)o->cap);
    int64_t to = (int64_t)fmin((double)o->cap, ceil(top + spread));
    double highest;

    k->steady_from = (int64_t)fmax(0, floor(top - spread));
    k->steady_count = (size_t)(to - k->steady_from) + 1;
    k->steady = calloc(k->steady_count, sizeof(*k->steady));
    if (!k->steady)
        return -ENOMEM;
    highest = mt_poisson_log((int64_t)top, nb);
    for (size_t i = 0; i < k->steady_count; i++) {
        sum += exp(mt_poisson_log(k->steady_from + (int64_t)i, nb) - highest);
        k->steady[i] = sum;
    }
    return 0;
}

static int64_t draw_steady(struct machine *k)
{
    double u = uniform(k) * k->steady[k->steady_count - 1];
    size_t lo = 0, hi = k->steady_count - 1;

    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;

        if (k->steady[mid] > u)
            hi = mid;
        else
            lo = mid + 1;
    }
    return k->steady_from + (int64_t)lo;
}

/* The calls that are there when a run begins, at time t. */
static int begin(struct machine *k, double t)
{
    const struct mt_monte_carlo *m = k->m;
    int64_t n = m->constant;
    int rc = 0;

    k->n = 0;
    k->ages = 0;
    if (m->steady && n == 0)
        n = draw_steady(k);
    for (int64_t i = 0; i < n && rc == 0; i++) {
        double d = duration(k, m->steady), gone = m->steady ? uniform(k) * d : 0;

        k->ages += gone;
        rc = push(k, t - gone, t - gone + d);
    }
    return rc;
}

static int arrive(struct machine *k, double t)
{
    if (!k->m->constant && (int64_t)k->n >= k->m->open.cap)
        return 0; /* refused: it is gone */
    return push(k, t, t + duration(k, false));
}

/* One run. *hit is the time of the hit, +Inf if there was none until the horizon. */
static int run(struct machine *k, double *hit)
{
    const struct mt_monte_carlo *m = k->m;
    double lam = m->constant ? 0 : m->open.arrivals_s, t = m->steady ? 0 : -m->warm_s;
    double arrival = lam > 0 ? t - log1p(-uniform(k)) / lam : INFINITY;
    int rc = begin(k, t);

    *hit = INFINITY;
    while (rc == 0) {
        double next = m->horizon_s;
        bool leaves = k->n > 0 && k->calls[0].end < arrival;

        if (t >= 0 && k->ages >= k->full) {
            *hit = t;
            break;
        }
        if (t >= m->horizon_s)
            break;
        next = fmin(next, leaves ? k->calls[0].end : arrival);
        if (t < 0 && next >= 0) {
            k->ages -= (double)k->n * t; /* up to time 0, when watching begins */
            t = 0;
            continue;
        }
        if (t >= 0 && k->ages + (double)k->n * (next - t) >= k->full) {
            *hit = t + (k->full - k->ages) / (double)k->n;
            break;
        }
        k->ages += (double)k->n * (next - t);
        t = next;
        if (t >= m->horizon_s) {
            break;
        } else if (leaves) {
            k->ages -= t - pop(k).birth;
            if (k->n == 0)
                k->ages = 0; /* what rounding left */
            if (m->constant)
                rc = arrive(k, t);
        } else {
            rc = arrive(k, t);
            arrival = t - log1p(-uniform(k)) / lam;
        }
    }
    return rc;
}

void mt_wilson(int64_t k, int64_t n, double *low, double *high)
{
    const double z = 1.959963984540054;
    double runs = (double)n, p = (double)k / runs, spread = 1 + z * z / runs;
    double mid = (p + z * z / (2 * runs)) / spread;
    double half = z / spread * sqrt(p * (1 - p) / runs + z * z / (4 * runs * runs));

    *low = k == 0 ? 0 : mid - half;
    *high = k == n ? 1 : mid + half;
}

static bool question_ok(const struct mt_monte_carlo *m)
{
    struct mt_occupancy occ;

    return mt_open_occupancy(&m->open, &occ) == 0 && m->constant >= 0 && m->constant <= 100000000 &&
           m->horizon_s >= 0 && isfinite(m->horizon_s) && m->warm_s >= 0 && isfinite(m->warm_s) &&
           m->runs >= 1 && m->runs <= 1000000000 && m->precision >= 0 && m->precision < 1;
}

int mt_monte_carlo(const struct mt_monte_carlo *m, struct mt_monte_carlo_result *out)
{
    struct mt_monte_carlo_result r = {.hit_s = NAN, .hit_error_s = NAN};
    struct machine k = {.m = m};
    double mean = 0, squares = 0, hit;
    int rc = 0;

    if (!question_ok(m))
        return -EDOM;
    k.full = m->open.pool_tokens / m->open.rate;
    if (m->steady && !m->constant)
        rc = prepare_steady(&k);
    while (rc == 0 && r.runs < m->runs) {
        /* Each run has a stretch of the generator to itself: it starts where its number says. */
        k.word = mt_mix64(mt_mix64(m->seed) + (uint64_t)r.runs);
        if ((rc = run(&k, &hit)) < 0)
            break;
        r.runs++;
        if (isfinite(hit)) {
            double off = hit - mean;

            r.hits++;
            r.over += hit == 0;
            mean += off / (double)r.hits;
            squares += off * (hit - mean);
        }
        mt_wilson(r.hits, r.runs, &r.low, &r.high);
        r.p = (double)r.hits / (double)r.runs;
        /* Not before a hundred runs: an early streak is no precision. */
        if (r.runs >= 100 && (r.high - r.low) / 2 <= m->precision * r.p)
            break;
    }
    free(k.steady);
    free(k.calls);
    if (rc < 0)
        return rc;
    if (r.hits > 0)
        r.hit_s = mean;
    if (r.hits > 1)
        r.hit_error_s = sqrt(squares / (double)(r.hits - 1) / (double)r.hits);
    *out = r;
    return 0;
}
