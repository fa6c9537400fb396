/*
 * shape.c: mt-predict -m: what follows from a model's shape and a pool.
 */
#include "tools/predict/predict.h"

#include "control/control.h"

#include <errno.h>
#include <math.h>

#define FIT_SINKS 4 /* of the window that is proposed where none was asked for */

static void growth(json_t *out, const struct mt_load *l, double frame_s)
{
    double t = NAN;
    int64_t last;

    if (mt_predict_first(l, &t) == 0)
        predict_set(out, "t_sat_s", t);
    if (mt_predict_locked(l, &t, &last) == 0) {
        predict_set(out, "t_sat_locked_s", t);
        predict_set_int(out, "last_tokens", last);
    }
    if (mt_predict_spread(l, &t) == 0)
        predict_set(out, "t_sat_spread_s", t);
    if (frame_s > 0 && mt_predict_locked_frames(l, l->rate * frame_s, frame_s, &t) == 0)
        predict_set(out, "t_stall_s", t);
}

/* The window that would let all N sessions stay for ever. */
static void fitting_window(json_t *out, const struct opts *o, struct mt_bound w, int64_t blocks,
                           double rate)
{
    int64_t window;
    int rc;

    if (o->sessions < 1)
        return;
    if (!o->kv.bounded)
        w.sinks = FIT_SINKS;
    rc = mt_bound_window(&w, blocks, o->sessions, &window);
    if (rc == 0) {
        predict_set_int(out, "fit_window_tokens", window);
        predict_set_int(out, "fit_sinks_tokens", w.sinks);
        if (rate > 0)
            predict_set(out, "fit_window_s", (double)window / rate);
    } else if (rc == -ENOSPC) {
        json_object_set_new(out, "fit_window_tokens", json_null());
    }
}

static void ceilings(json_t *out, const struct opts *o, const struct mt_bound *w, int64_t blocks,
                     int64_t block_bytes, double rate, double deadline_s)
{
    int64_t n_mem = MT_NO_LIMIT, n_star = MT_NO_LIMIT, unaligned, per_session, n;
    enum mt_binding binding;

    if (o->kv.bounded && mt_bound_blocks(w, &per_session) == 0 &&
        mt_bound_sessions(w, blocks, &n_mem) == 0) {
        predict_set_int(out, "session_blocks", per_session);
        predict_set_int(out, "session_bytes", per_session * block_bytes);
        if (rate > 0) {
            double missing = (double)(w->sinks + w->window - o->prompt_tokens);

            predict_set(out, "t_full_s", fmax(0, missing) / rate);
        }
        predict_set_int(out, "n_mem", n_mem);
        if (o->sessions >= 0)
            json_object_set_new(out, "fits", json_boolean(o->sessions <= n_mem));
    }
    fitting_window(out, o, *w, blocks, rate);
    if (o->has_cost && mt_latency_locked(&o->cost, deadline_s, o->target, &n_star) == 0 &&
        mt_latency_unaligned(&o->cost, deadline_s, o->target, &unaligned) == 0) {
        predict_set(out, "deadline_s", deadline_s);
        predict_set(out, "target", o->target);
        predict_set(out, "cost_a_ms", o->cost.a_s * 1e3);
        predict_set(out, "cost_b_ms", o->cost.b_s * 1e3);
        if (n_star != MT_NO_LIMIT) {
            predict_set_int(out, "n_star", n_star);
            predict_set_int(out, "n_star_unaligned", unaligned);
        }
    }
    if (!o->kv.bounded && rate > 0 && o->sessions > 0) {
        /* Unbounded, memory ends every number of sessions: t_sat_s says when. */
        json_object_set_new(out, "binding", json_string(mt_binding_name(MT_BIND_MEMORY)));
        return;
    }
    n = mt_sustainable(n_mem, n_star, o->max_sessions, &binding);
    if (binding != MT_BIND_NONE)
        predict_set_int(out, "n_sustainable", n);
    json_object_set_new(out, "binding", json_string(mt_binding_name(binding)));
}

int predict_shape(const struct opts *o)
{
    struct mt_shape shape;
    struct mt_err e = {0};
    struct mt_policy policy;
    char kv[64];
    struct mt_bound w = {.window = o->kv.window,
                         .sinks = o->kv.sinks < 0 ? o->prompt_tokens : o->kv.sinks,
                         .block_tokens = o->block,
                         .retire = MT_RETIRE_IN_PLACE,
                         .shared_sinks = o->shared_sinks};
    int64_t token_bytes, block_bytes, blocks, pool_tokens;
    double frame_s, deadline_s, rate, audio;
    json_t *out;
    int rc = mt_shape_open(&shape, o->model, &e);

    if (rc < 0) {
        mt_msg(MT_ERROR, "%s", e.text);
        return rc == -EINVAL ? MT_EXIT_USAGE : MT_EXIT_FAILED;
    }
    token_bytes = mt_shape_token_bytes(&shape, o->kv_type);
    block_bytes = token_bytes * o->block;
    blocks = o->pool_blocks ? o->pool_blocks : o->pool_bytes / block_bytes;
    frame_s = o->frame_ns ? (double)o->frame_ns / 1e9 : shape.frame_s;
    deadline_s = o->deadline_ns ? (double)o->deadline_ns / 1e9 : frame_s;
    audio = mt_shape_audio_rate(&shape, frame_s);
    rate = isnan(o->rate) ? audio : o->rate;
    if (blocks < 1) {
        mt_msg(MT_ERROR, "--pool: %lld bytes hold no block of %lld bytes", (long long)o->pool_bytes,
               (long long)block_bytes);
        return MT_EXIT_FAILED;
    }
    if (__builtin_mul_overflow(blocks, o->block, &pool_tokens) ||
        pool_tokens > PREDICT_TOKENS_MAX) {
        mt_msg(MT_ERROR, "--pool: %lld blocks of %lld tokens are beyond what can be counted",
               (long long)blocks, (long long)o->block);
        return MT_EXIT_FAILED;
    }
    if (isnan(o->rate) && rate == 0) {
        mt_msg(MT_ERROR, "%s: its config tells no audio rate: give --rate", o->model);
        return MT_EXIT_USAGE;
    }
    if (o->has_cost && deadline_s == 0) {
        mt_msg(MT_ERROR, "%s: its config tells no frame length: --cost needs --deadline", o->model);
        return MT_EXIT_USAGE;
    }
    /* A frame's audio comes in one step, text one token at a time. */
    w.step = o->step_tokens;
    if (w.step == 0)
        w.step = (int64_t)fmax(1, ceil((audio > 0 ? audio : rate) * frame_s - 1e-9));

    out = predict_begin("predict");
    json_object_set_new(out, "model", json_string(shape.name));
    predict_set_int(out, "layers", shape.layers);
    predict_set_int(out, "kv_heads", shape.kv_heads);
    predict_set_int(out, "head_dim", shape.head_dim);
    policy = o->kv;
    policy.sinks = w.sinks; /* the prompt's tokens, where it is the sinks */
    mt_policy_format(&policy, kv);
    json_object_set_new(out, "kv", json_string(kv));
    json_object_set_new(out, "kv_type", json_string(mt_dtype_name(o->kv_type)));
    predict_set_int(out, "token_bytes", token_bytes);
    predict_set_int(out, "block_tokens", o->block);
    predict_set_int(out, "pool_blocks", blocks);
    predict_set_int(out, "pool_tokens", pool_tokens);
    if (o->sessions >= 0)
        predict_set_int(out, "sessions", o->sessions);
    predict_set(out, "rate_tokens_s", rate);
    if (frame_s > 0)
        predict_set(out, "frame_s", frame_s);
    predict_set_int(out, "step_tokens", w.step);
    predict_set_int(out, "prompt_tokens", o->prompt_tokens);
    predict_set(out, "rho0", o->rho0);
    if (o->kv.bounded) {
        predict_set(out, "t_sat_s", INFINITY);
    } else {
        struct mt_load l = {.pool_blocks = blocks,
                            .block_tokens = o->block,
                            .rho0 = o->rho0,
                            .sessions = o->sessions,
                            .start_tokens = o->prompt_tokens,
                            .rate = rate};

        growth(out, &l, frame_s);
    }
    /* The ceilings share out what others left. */
    blocks = (int64_t)floor((1 - o->rho0) * (double)blocks + 1e-9);
    ceilings(out, o, &w, blocks, block_bytes, rate, deadline_s);
    return predict_print(o, out);
}
