/*
 * predict.h: mt-predict's two modes, and how both print. Each mode returns an exit status; stdout is closed by main.
 */
#ifndef MT_PREDICT_H
#define MT_PREDICT_H

#include "control/control.h"
#include "engine/engine.h"

#define PREDICT_TOKENS_MAX (INT64_C(1) << 40)

struct opts {
    const char *model, *file;
    const char *needs_model;         /* the first option that makes no sense without -m */
    int64_t pool_bytes, pool_blocks; /* one of them, the other 0 */
    int64_t sessions;                /* -1: not given */
    struct mt_policy kv;
    enum mt_dtype kv_type;
    int64_t block;
    double rate;                        /* NAN: the model's */
    int64_t frame_ns, deadline_ns;      /* 0: not given */
    int64_t prompt_tokens, step_tokens; /* step 0: not given */
    double rho0, target;
    bool has_cost;
    struct mt_cost cost;
    int64_t max_sessions;
    bool shared_sinks;
    bool table;
};

/* From a model's shape and a pool. */
int predict_shape(const struct opts *o);
/* From frame records. */
int predict_records(const struct opts *o);

/* ---- print.c ---- */

/* The answer, begun. */
json_t *predict_begin(const char *type);
/* obj[key] = v: absent when NaN (unknown), null when infinite (never). */
void predict_set(json_t *obj, const char *key, double v);
void predict_set_int(json_t *obj, const char *key, int64_t v);
/* One line of JSON or a table for people, as the options say. Takes the reference to obj; an exit status. */
int predict_print(const struct opts *o, json_t *obj);

#endif
