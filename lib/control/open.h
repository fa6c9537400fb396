/*
 * open.h: the pool when the number of sessions is not constant: calls arrive, last a while and hang
 * up. What the pool holds in the mean and how far it strays, when a ramp fills it, and the race
 * between filling and leaving.
 *
 * Conventions are control.h's: seconds, tokens, r tokens a second of one session, C tokens of pool;
 * 0 or -EDOM, then *out is untouched. +Inf in a result is "without bound" or "never".
 */
#ifndef MT_OPEN_H
#define MT_OPEN_H

#include "control/control.h"

/* ---- how long a call lasts ---- */

enum mt_law_kind { MT_LAW_EXP, MT_LAW_FIXED, MT_LAW_LOGNORMAL, MT_LAW_PARETO };

struct mt_law {
    enum mt_law_kind kind;
    double mean_s; /* D > 0 */
    double shape;  /* lognormal: sigma of the logarithm, > 0; Pareto: exponent alpha > 1 */
};

/*
 * "exp:D", "fixed:D", "lognormal:D,sigma=X", "pareto:D,alpha=X"; D is the mean as a duration. A
 * bare D is exponential. -EINVAL with e filled.
 */
int mt_law_parse(const char *text, struct mt_law *out, struct mt_err *e);

/* "exp", "fixed", "lognormal", "pareto". */
const char *mt_law_name(enum mt_law_kind kind);

/*
 * E[D], E[D^2], E[D^3]. Exponential D, 2 D^2, 6 D^3; fixed D^k; lognormal D^k exp(k (k - 1) sigma^2
 * / 2); Pareto x^k alpha/(alpha - k) with x = D (alpha - 1)/alpha, +Inf for k >= alpha.
 */
int mt_law_moments(const struct mt_law *law, double m[3]);

/*
 * One duration of the law, from the words of a generator: u1 and u2 uniform in [0, 1). With
 * `biased` the call that is going on at a random moment: weighted by its length (fixed D, lognormal
 * exp(sigma^2) D in scale, Pareto alpha - 1, exponential the sum of two).
 */
double mt_law_draw(const struct mt_law *law, bool biased, double u1, double u2);

/* ---- a ramp ---- */

struct mt_ramp {
    double pool_tokens;  /* C > 0 */
    double rho0;         /* >= 0 */
    double rate;         /* r >= 0 */
    double sessions;     /* N0 >= 0, there at time 0 */
    double arrivals_s;   /* lam >= 0; nobody leaves */
    double start_tokens; /* n0 >= 0, with which each session comes */
    double cap;          /* sessions at which the ramp stops, >= N0; +Inf: it doesn't */
};

/*
 * Time until the pool is full. Uncapped and with n0 = 0:
 * t = (-N0 + sqrt(N0^2 + 2 lam (1 - rho0) C / r)) / lam; with a cap the rest is filled by `cap`
 * sessions.
 */
int mt_ramp_full(const struct mt_ramp *r, double *t_s);

/* ---- Poisson arrivals ---- */

struct mt_open {
    double pool_tokens; /* C > 0: what is left for these sessions */
    double rate;        /* r > 0 */
    double arrivals_s;  /* lam >= 0 */
    struct mt_law duration;
    int64_t cap; /* M >= 0 sessions are admitted, MT_NO_LIMIT: all */
};

struct mt_occupancy {
    double offered;                /* Nb = lam E[D] */
    double sessions;               /* mean number of live ones */
    double refused;                /* share of arrivals that find the cap reached: Erlang's B */
    double tokens_mean, tokens_sd; /* of the resident tokens, the pool's bound ignored */
    double rho_mean;               /* tokens_mean / C */
};

/*
 * The steady state. Ages of the live sessions are a Poisson field, whatever the law: mean
 * lam r E[D^2]/2, variance lam r^2 E[D^3]/3 (Campbell's theorem). With a cap the number of sessions
 * is the truncated Poisson of Erlang's loss system, and given it the ages are as before. Moments
 * that the law doesn't have are +Inf: with E[D^2] infinite there is no steady occupancy.
 */
int mt_open_occupancy(const struct mt_open *o, struct mt_occupancy *out);

/* ---- the race ---- */

struct mt_race {
    double t0_s;      /* C/(N r): N sessions that never leave fill the pool */
    double cohort_s;  /* max t P(D > t): D/e exponential, D fixed; +Inf for none */
    double refill_s;  /* E[D^2]/(2 E[D]): the mean age when each that leaves is replaced */
    bool cohort_full; /* cohort_s > t0_s: N calls that start together overrun, in the mean */
    bool refill_full; /* refill_s > t0_s: N kept constant overruns, in the mean */
};

/* Allowed: C > 0, N > 0, r > 0. */
int mt_race(double pool_tokens, double sessions, double rate, const struct mt_law *law,
            struct mt_race *out);

#endif
