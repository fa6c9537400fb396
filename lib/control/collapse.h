/*
 * collapse.h: how likely an unbounded cache is to fill its pool when calls come and go. Exact for
 * exponential durations: the tokens of n live sessions are then a sum of n exponential ages, and
 * such a sum is over the pool iff Poisson(X) < n, with X = C/(r D) the pool measured in mean
 * sessions. For every other law there is Monte Carlo.
 *
 * The sessions are those of open.h, Nb = lam D of them offered. Conventions are control.h's.
 */
#ifndef MT_COLLAPSE_H
#define MT_COLLAPSE_H

#include "control/open.h"

#define MT_OFFERED_MAX 1e8 /* largest X and Nb: the sums take a time that grows with their root */

/* ---- exact ---- */

struct mt_collapse {
    double pool_sessions; /* X */
    double over;          /* P0: share of time over the pool */
    double chernoff;      /* exp(-(sqrt X - sqrt Nb)^2) >= P0; NaN where Nb >= X */
    double crossings_s;   /* nu: up-crossings of the pool's size a second */
};

/*
 * P0 = sum_n pi_n P(Poisson(X) <= n - 1) with pi_n = Poisson(Nb), cut at the cap and normalized
 * (Erlang); nu = (1/D) sum_n n pi_n e^-X X^(n-1)/(n-1)!, without a cap lam e^-(X+Nb) I0(2 sqrt(X
 * Nb)) (Rice's formula). -ENOTSUP for a law that isn't exponential, -EDOM above MT_OFFERED_MAX.
 */
int mt_collapse_open(const struct mt_open *o, struct mt_collapse *out);

/*
 * min(1, P0 + nu H), H >= 0: a bound for the chance of a hit within H of a steady state. A bound
 * only, as crossings come in clusters.
 */
double mt_collapse_within(const struct mt_collapse *c, double horizon_s);

/* N >= 0 kept constant, each that leaves replaced: P0 = P(Poisson(X) <= N - 1). */
int mt_collapse_constant(double pool_sessions, int64_t n, double *over);

/* Sizing: the most sessions, kept constant, with P0 <= risk. 0 < risk < 1. */
int mt_collapse_sessions(double pool_sessions, double risk, int64_t *n);

/*
 * Sizing: the largest offered load Nb with P0 + nu H <= risk; `o` without its arrivals. +Inf where
 * the cap alone keeps the risk.
 */
int mt_collapse_offered(const struct mt_open *o, double horizon_s, double risk, double *offered);

/* ---- Monte Carlo ---- */

struct mt_monte_carlo {
    struct mt_open open; /* the law may be any */
    int64_t constant; /* > 0: this many sessions, each that leaves replaced; no arrivals, no cap */
    double horizon_s; /* H >= 0 */
    /*
     * Where a run begins: with an empty machine; with one that was empty warm_s before; or (steady)
     * in the steady state, drawn as it is: the number of sessions from its law, for each a duration
     * weighted by its length and a uniform part of it gone. No law needs a warm-up then, however
     * heavy its tail.
     */
    bool steady;
    double warm_s;
    int64_t runs;     /* limit, 1..1e9 */
    double precision; /* stop when the half-width is <= precision p; 0: all runs */
    uint64_t seed;
};

struct mt_monte_carlo_result {
    int64_t runs, hits;
    int64_t over;        /* hits at time 0: the pool was over when the run began */
    double p, low, high; /* hits / runs, and Wilson's 95 % interval */
    double hit_s;        /* mean time of the hits; NaN without one */
    double hit_error_s;  /* standard error of that mean; NaN below two hits */
};

/*
 * From event to event (arrival, departure, horizon); in between the tokens grow linearly, so the
 * time of a crossing is solved, not stepped to. Same seed, same result, on every machine with the
 * same libm. -ENOMEM without memory.
 */
int mt_monte_carlo(const struct mt_monte_carlo *m, struct mt_monte_carlo_result *out);

/* Wilson's 95 % interval of k hits in n >= 1 runs. */
void mt_wilson(int64_t k, int64_t n, double *low, double *high);

#endif
