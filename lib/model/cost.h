/*
 * cost.h: a model that computes nothing and takes as long as a formula says: the simulator's, and a
 * null server's. Scheduler, pool, policies and records are the engine's own; only the arithmetic is
 * gone.
 */
#ifndef MT_COST_MODEL_H
#define MT_COST_MODEL_H

#include "model/model.h"

/*
 * The time of a step with R runs (one a session), their resident tokens and their prefill rows
 * beyond one each:
 *
 *   f ((a + b R + b1 sum of resident tokens) / steps + prefill (rows - R))
 *
 * so that a frame of N sessions in step, answered in `steps` steps, takes a + b N + b1 tokens +
 * prefill. f is 1, or varies: 1 + jitter * gaussian (not below 0.1), times outlier_x in a share
 * outlier_p of the frames; one draw for `steps` steps, by seed.
 */
struct mt_cost_model {
    char name[64];
    int layers, kv_heads, head_dim; /* of the KV cache */
    int sample_rate_hz;             /* of the audio that nobody hears: 100 moves few bytes */
    double beat_s;                  /* native frame */
    double audio_rows_s;            /* positions a second of audio takes */
    int open_tokens, turn_tokens;   /* prompt, and markup a frame */
    double a_s, b_s, b1_s, prefill_s;
    int steps; /* at least 1: the answer's tokens */
    double jitter, outlier_p, outlier_x;
    double answer_mean; /* 0: answers use the whole budget; else their lengths are geometric */
    uint64_t seed;
};

/*
 * "a=20ms,b=1.5ms[,b1=300ns][,prefill=10us][,jitter=3%][,outliers=0.5%:2.5]" into the times and
 * variations of c; what is not named stays. -EINVAL with e, which says the form.
 */
int mt_cost_parse(const char *text, struct mt_cost_model *c, struct mt_err *e);

/*
 * A step sleeps on `clock`: virtual time passes, real time is waited for. Its backend is its own;
 * close with mt_model_close. -EINVAL with e.
 */
int mt_model_open_cost(struct mt_model **out, const struct mt_cost_model *c, struct mt_clock *clock,
                       struct mt_err *e);

#endif
