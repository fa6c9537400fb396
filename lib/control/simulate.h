/*
 * simulate.h: the engine under virtual time: calls that arrive, speak on their beat and hang up,
 * served by the same scheduler, pool, policies and admission as live ones, with a cost model where
 * the arithmetic was. Or with a real model: then its work takes the time that it takes, and only
 * the waits for what callers still have to say are left out.
 */
#ifndef MT_SIMULATE_H
#define MT_SIMULATE_H

#include "control/control.h"
#include "engine/engine.h"
#include "model/cost.h"

struct mt_sim_opts {
    struct mt_cost_model cost;
    /* NULL: the cost model. Else it answers, warmed by a frame, and cost is not looked at. */
    struct mt_model *model;
    /* What call i says in its frame k: pcm [n]; it may be asked again. NULL: silence. */
    void (*sound)(void *ctx, int64_t i, int64_t k, float *pcm, int64_t n);
    /* What callers ask for but seed and live; NULL: the defaults. */
    const struct mt_session_opts *session;
    struct mt_engine_opts engine; /* events are the simulation's */
    int64_t sessions;             /* calls in all */
    double seconds;               /* of virtual time; calls that are left then are cut off */
    bool live;                    /* callers can't wait: answers are shortened and frames dropped */
    /*
     * Who calls when, for how long, and where on the beat; functions of the call's number i from 0:
     * seconds after the call before, seconds of speech (INFINITY: to the end), and the phase in [0,
     * 1).
     */
    void *ctx;
    double (*gap_s)(void *ctx, int64_t i);
    double (*length_s)(void *ctx, int64_t i, double arrived_s);
    double (*phase)(void *ctx, int64_t i);
    /*
     * Each record, as it is made; and each refusal. May be NULL. tick comes once before the first
     * and may set the cap.
     */
    void (*frame)(void *ctx, const struct mt_record *r);
    void (*refused)(void *ctx, int64_t call, double t_s, const char *reason);
    void (*tick)(void *ctx, struct mt_engine *eng, double t_s);
    const bool *stop; /* becomes true when nobody wants the rest; NULL: never */
};

/*
 * Totals at the end. The same options give the same records (times of a real model apart).
 * -EINVAL, -ENOSPC with e, as mt_engine_new; -EIO with e where a real model answers no frame.
 */
int mt_simulate(const struct mt_sim_opts *o, struct mt_engine_stats *out, struct mt_err *e);

/*
 * Name, KV geometry, beat and audio rate of a known model; frame_ns 0: the model's own beat. The
 * shape says how many tokens a second of audio takes (audio_tokens_s and frame_s above 0).
 */
void mt_sim_shape(struct mt_cost_model *c, const struct mt_shape *shape, int64_t frame_ns);

#endif
