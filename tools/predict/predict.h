/*
 * predict.h: mt-predict's modes, and how all of them print. Each mode returns an exit status;
 * stdout is closed by main.
 */
#ifndef MT_PREDICT_H
#define MT_PREDICT_H

#include "control/collapse.h"
#include "control/livefit.h"
#include "engine/args.h"
#include "engine/engine.h"

#define PREDICT_TOKENS_MAX (INT64_C(1) << 40)
#define PREDICT_LINE_MAX   (1 << 20) /* a record with its text has a few hundred bytes */
#define PREDICT_MIXED_MAX  16
#define PREDICT_TOWERS_MAX 16

struct opts {
    const char *model, *file;
    const char *quality;             /* output of mt-probe quality, NULL: none */
    int64_t token_cost_ns;           /* with it: of a resident token, a frame; -1: not given */
    const char *needs_model;         /* the first option that makes no sense without -m */
    const char *needs_monte_carlo;   /* the same without --monte-carlo */
    int64_t pool_bytes, pool_blocks; /* one of them, the other 0 */
    int64_t sessions;                /* -1: not given */
    struct mt_policy kv;
    enum mt_dtype kv_type;
    int64_t block;
    double rate;                        /* NAN: the model's */
    int64_t frame_ns, deadline_ns;      /* 0: not given */
    int64_t prompt_tokens, step_tokens; /* step 0: not given */
    double towers[PREDICT_TOWERS_MAX];  /* bytes/s of a session, besides the model's own tokens */
    int n_towers;
    double rho0, target;
    bool has_cost;
    struct mt_cost cost;
    int64_t max_sessions;
    bool shared_sinks;
    enum mt_retire retire;
    bool table;
    /* calls that come and go */
    enum { ARRIVE_NONE, ARRIVE_POISSON, ARRIVE_RAMP } arrive;
    double arrivals_s;
    bool has_duration;
    struct mt_law duration;
    int64_t cap; /* MT_NO_LIMIT: none */
    int64_t horizon_ns;
    bool has_horizon;
    double risk; /* 0: not given */
    bool monte_carlo, steady;
    int64_t warm_ns, runs;
    uint64_t seed;
    double precision;
    /* behind the wall */
    int64_t recompute_ns;    /* -1: not given */
    double evicted;          /* 0: not given */
    double refused, retried; /* NAN: not given */
    /* from records */
    bool live, fit_cost;
    int64_t window_ns, batch_ns;
    /* several periods */
    struct mt_periodic mixed[PREDICT_MIXED_MAX];
    int n_mixed;
};

/* What the shape, the pool and the options come to. */
struct plan {
    struct mt_shape shape; /* without a model all 0 */
    int64_t token_bytes;   /* 0: unknown */
    int64_t blocks, pool_tokens;
    double free_tokens;               /* what rho0 leaves of them */
    double rate, frame_s, deadline_s; /* frame and deadline 0: unknown */
    struct mt_bound bound;
    int64_t n_mem; /* MT_NO_LIMIT without a window */
};

/* What the options come to; prints the reason and returns an exit status. */
int predict_plan(const struct opts *o, struct plan *p);
/* Share of the pool that others leave. */
double predict_free(const struct opts *o);
/* Members n_mem, n_star, n_sustainable, binding and what they are made of. */
void predict_ceilings(json_t *out, const struct opts *o, const struct plan *p);
/* What each setting of mt-probe quality costs and brings (trade.c). */
int predict_trade(const struct opts *o);
/* From a model's shape and a pool; and of that, calls that come and go (open.c). */
int predict_shape(const struct opts *o);
int predict_open(const struct opts *o, const struct plan *p, json_t *out);
/* From frame records: at their end, as they come, and the cost of a frame. */
int predict_records(const struct opts *o);
/* Its last line, from all records; `what` names the input. */
int predict_fit(const struct opts *o, struct mt_trace *trace, const char *what, int64_t broken);
int predict_cost(const struct opts *o);
/* Frames of several lengths on one device. */
int predict_mixed(const struct opts *o);

/* The input of the modes above: a descriptor or -errno after a message; its name. */
int predict_input(const struct opts *o, const char **what);
void predict_input_close(int fd);

/* ---- args.c ---- */

void predict_arg_cost(struct argp_state *st, struct opts *o, const char *arg);
/* "[poisson:|ramp:]NUMBER[/s|/min|/h]". */
void predict_arg_arrivals(struct argp_state *st, struct opts *o, const char *arg);
void predict_arg_duration(struct argp_state *st, struct opts *o, const char *arg);
void predict_arg_from(struct argp_state *st, struct opts *o, const char *arg);
void predict_arg_memory(struct argp_state *st, struct opts *o, const char *arg);
void predict_arg_tower(struct argp_state *st, struct opts *o, const char *arg);
void predict_arg_mixed(struct argp_state *st, struct opts *o, const char *arg);
/* "0.01" or "1%", in 0..hi. */
double predict_arg_share(struct argp_state *st, const char *name, const char *arg, double hi);

/* A subcommand with options of its own: argv[0] is "mt-predict simulate". */
int predict_simulate(int argc, char **argv);

/* ---- print.c ---- */

/* The answer, begun. */
json_t *predict_begin(const char *type);
/*
 * obj[key] = v: absent when NaN (unknown), null when infinite (never). Small ones keep nine digits.
 */
void predict_set(json_t *obj, const char *key, double v);
void predict_set_int(json_t *obj, const char *key, int64_t v);
void predict_set_bool(json_t *obj, const char *key, bool v);
/* Members points, mape, p95, bias, cover and late; nothing without a point. */
void predict_set_score(json_t *obj, const struct mt_forecast_score *s);
/*
 * One line of JSON or a table for people, as the options say. Takes the reference to obj; an exit
 * status.
 */
int predict_print(const struct opts *o, json_t *obj);

#endif
