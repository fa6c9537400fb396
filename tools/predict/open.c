/*
 * open.c: mt-predict on calls that come and go: a ramp, Poisson arrivals or a number kept constant
 * with calls of a given law; the risk of overrunning the pool; and what is behind the wall. Adds
 * its members to the prediction of shape.c. The formulas are open.h's, collapse.h's and wall.h's.
 */
#include "tools/predict/predict.h"

#include "control/wall.h"

#include <errno.h>
#include <math.h>
#include <string.h>

static int ramp(const struct opts *o, const struct plan *p, json_t *out)
{
    const struct mt_ramp r = {.pool_tokens = (double)p->pool_tokens,
                              .rho0 = o->rho0,
                              .rate = p->rate,
                              .sessions = (double)o->sessions,
                              .arrivals_s = o->arrivals_s,
                              .start_tokens = (double)o->prompt_tokens,
                              .cap = o->cap == MT_NO_LIMIT ? INFINITY : (double)o->cap};
    double t;

    if (mt_ramp_full(&r, &t) < 0) {
        mt_msg(MT_ERROR, "--cap: the ramp begins above it, with %lld sessions",
               (long long)o->sessions);
        return MT_EXIT_USAGE;
    }
    json_object_set_new(out, "arrivals", json_string("ramp"));
    predict_set(out, "arrivals_s", o->arrivals_s);
    if (o->cap != MT_NO_LIMIT)
        predict_set_int(out, "cap", o->cap);
    predict_set(out, "t_sat_s", t);
    return MT_EXIT_OK;
}

static void law(const struct opts *o, json_t *out)
{
    double m[3];

    json_object_set_new(out, "duration", json_string(mt_law_name(o->duration.kind)));
    predict_set(out, "duration_s", o->duration.mean_s);
    if (o->duration.kind == MT_LAW_LOGNORMAL)
        predict_set(out, "duration_sigma", o->duration.shape);
    if (o->duration.kind == MT_LAW_PARETO)
        predict_set(out, "duration_alpha", o->duration.shape);
    if (mt_law_moments(&o->duration, m) == 0)
        predict_set(out, "duration_mean_age_s", m[1] / (2 * m[0]));
}

/* The sessions of a steady state, of the pool what an unbounded cache takes, and the exact risk. */
static int steady(const struct opts *o, const struct mt_open *sys, json_t *out)
{
    struct mt_occupancy occ;
    struct mt_collapse c;

    if (mt_open_occupancy(sys, &occ) < 0) {
        mt_msg(MT_ERROR, "--arrivals: more than %g calls at once, or a pool of nothing",
               MT_OFFERED_MAX);
        return MT_EXIT_FAILED;
    }
    json_object_set_new(out, "arrivals", json_string("poisson"));
    predict_set(out, "arrivals_s", o->arrivals_s);
    predict_set(out, "offered_sessions", occ.offered);
    if (sys->cap != MT_NO_LIMIT) {
        predict_set_int(out, "cap", sys->cap);
        predict_set(out, "refused_share", occ.refused);
    }
    predict_set(out, "sessions_mean", occ.sessions);
    if (o->kv.bounded)
        return MT_EXIT_OK;
    predict_set(out, "tokens_mean", occ.tokens_mean);
    predict_set(out, "tokens_sd", occ.tokens_sd);
    predict_set(out, "rho_mean", occ.rho_mean);
    if (mt_collapse_open(sys, &c) == 0) {
        predict_set(out, "over_share", c.over);
        predict_set(out, "over_chernoff", c.chernoff);
        predict_set(out, "crossings_s", c.crossings_s);
        predict_set(out, "horizon_s", (double)o->horizon_ns / 1e9);
        predict_set(out, "hit_bound", mt_collapse_within(&c, (double)o->horizon_ns / 1e9));
    }
    return MT_EXIT_OK;
}

/* N kept constant: each that leaves is replaced; and one cohort, which is not. */
static void constant(const struct opts *o, const struct mt_open *sys, double x, json_t *out)
{
    struct mt_race race;
    double over;

    if (mt_race(sys->pool_tokens, (double)o->sessions, sys->rate, &o->duration, &race) == 0) {
        predict_set(out, "fill_s", race.t0_s);
        predict_set(out, "cohort_s", race.cohort_s);
        predict_set_bool(out, "cohort_overruns", race.cohort_full);
        predict_set(out, "refill_s", race.refill_s);
        predict_set_bool(out, "refill_overruns", race.refill_full);
    }
    if (o->duration.kind == MT_LAW_EXP && mt_collapse_constant(x, o->sessions, &over) == 0)
        predict_set(out, "over_share", over);
}

static int sizing(const struct opts *o, const struct mt_open *sys, double x, json_t *out)
{
    double nb;
    int64_t n;

    if (mt_collapse_sessions(x, o->risk, &n) < 0 || mt_collapse_offered(sys, 0, o->risk, &nb) < 0) {
        mt_msg(MT_ERROR, "--risk: a pool of more than %g mean sessions", MT_OFFERED_MAX);
        return MT_EXIT_FAILED;
    }
    predict_set(out, "risk", o->risk);
    predict_set_int(out, "risk_sessions", n);
    predict_set(out, "risk_offered", nb);
    predict_set(out, "risk_arrivals_s", nb / o->duration.mean_s);
    predict_set(out, "horizon_s", (double)o->horizon_ns / 1e9);
    if (mt_collapse_offered(sys, (double)o->horizon_ns / 1e9, o->risk, &nb) == 0)
        predict_set(out, "risk_offered_horizon", nb);
    return MT_EXIT_OK;
}

static int monte_carlo(const struct opts *o, const struct mt_open *sys, json_t *out)
{
    const struct mt_monte_carlo m = {.open = *sys,
                                     .constant = o->arrive == ARRIVE_NONE ? o->sessions : 0,
                                     .horizon_s = (double)o->horizon_ns / 1e9,
                                     .steady = o->steady,
                                     .warm_s = (double)o->warm_ns / 1e9,
                                     .runs = o->runs,
                                     .precision = o->precision,
                                     .seed = o->seed};
    struct mt_monte_carlo_result r;
    int rc = mt_monte_carlo(&m, &r);

    if (rc < 0) {
        mt_msg(MT_ERROR, "--monte-carlo: %s",
               rc == -ENOMEM ? strerror(ENOMEM) : "these numbers can't be played");
        return MT_EXIT_FAILED;
    }
    predict_set(out, "horizon_s", m.horizon_s);
    json_object_set_new(out, "mc_from",
                        json_string(o->steady    ? "steady"
                                    : o->warm_ns ? "warm"
                                                 : "empty"));
    if (o->warm_ns)
        predict_set(out, "mc_warm_s", m.warm_s);
    json_object_set_new(out, "mc_seed", json_integer((json_int_t)o->seed));
    predict_set_int(out, "mc_runs", r.runs);
    predict_set_int(out, "mc_hits", r.hits);
    predict_set(out, "mc_hit", r.p);
    predict_set(out, "mc_hit_low", r.low);
    predict_set(out, "mc_hit_high", r.high);
    predict_set(out, "mc_over_share", (double)r.over / (double)r.runs);
    predict_set(out, "mc_hit_s", r.hit_s);
    predict_set(out, "mc_hit_error_s", r.hit_error_s);
    return MT_EXIT_OK;
}

static void wall(const struct opts *o, const struct plan *p, double x, json_t *out)
{
    const struct mt_wall w = {.cost = o->cost,
                              .deadline_s = p->deadline_s,
                              .sessions = (double)o->sessions,
                              .rate = p->rate,
                              .recompute_s = (double)o->recompute_ns / 1e9,
                              /* At the wall each has its share of the pool. */
                              .evicted = o->evicted > 0 ? o->evicted
                                                        : p->free_tokens / (double)o->sessions};
    struct mt_wall_view v;
    double t;

    if (mt_wall_look(&w, &v) < 0)
        return; /* nobody grows: there is no wall */
    predict_set(out, "load_serve", v.serve);
    predict_set(out, "load_recompute", v.recompute);
    predict_set(out, "load", v.serve + v.recompute);
    json_object_set_new(out, "after_wall", json_string(v.collapses ? "collapses" : "limps"));
    predict_set(out, "evicted_tokens", w.evicted);
    predict_set(out, "stall_s", v.stall_s);
    predict_set(out, "stall_frames", v.stall_frames);
    predict_set(out, "stall_every_s", v.stall_every_s);
    predict_set(out, "limp_sessions", v.most_sessions);
    /* With X sessions as many tokens leave as come, in the mean. */
    if (o->has_duration && o->duration.kind == MT_LAW_EXP &&
        mt_wall_drain(o->duration.mean_s, w.sessions, x, &t) == 0) {
        predict_set(out, "drain_sessions", x);
        predict_set(out, "drain_s", t);
    }
}

static int retries(const struct opts *o, json_t *out)
{
    double refused = o->refused, factor;

    if (isnan(refused))
        refused = json_number_value(json_object_get(out, "refused_share"));
    if (mt_wall_retries(refused, o->retried, &factor) < 0)
        return MT_EXIT_USAGE; /* both were checked when they were read */
    predict_set(out, "retry_factor", factor);
    if (o->arrive == ARRIVE_POISSON)
        predict_set(out, "retry_arrivals_s", o->arrivals_s * factor);
    return MT_EXIT_OK;
}

int predict_open(const struct opts *o, const struct plan *p, json_t *out)
{
    struct mt_open sys = {.pool_tokens = p->free_tokens,
                          .rate = p->rate,
                          .arrivals_s = o->arrive == ARRIVE_POISSON ? o->arrivals_s : 0,
                          .duration = o->duration,
                          .cap = o->cap < p->n_mem ? o->cap : p->n_mem};
    double x = p->free_tokens / p->rate / o->duration.mean_s; /* the pool in mean sessions */
    int rc = MT_EXIT_OK;

    if (o->arrive == ARRIVE_RAMP)
        return ramp(o, p, out);
    if (o->has_duration) {
        if (!(p->rate > 0) || !(p->free_tokens > 0)) {
            mt_msg(MT_ERROR, "--duration: calls that come and go need a rate and a free pool");
            return MT_EXIT_FAILED;
        }
        law(o, out);
        if (o->duration.kind == MT_LAW_EXP && !o->kv.bounded)
            predict_set(out, "pool_sessions", x);
        if (o->arrive == ARRIVE_POISSON)
            rc = steady(o, &sys, out);
        else if (o->sessions > 0)
            constant(o, &sys, x, out);
        if (rc == MT_EXIT_OK && o->risk > 0)
            rc = sizing(o, &sys, x, out);
        if (rc == MT_EXIT_OK && o->monte_carlo)
            rc = monte_carlo(o, &sys, out);
    }
    if (rc == MT_EXIT_OK && o->recompute_ns >= 0)
        wall(o, p, x, out);
    if (rc == MT_EXIT_OK && !isnan(o->retried))
        rc = retries(o, out);
    return rc;
}
