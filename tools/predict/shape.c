/*
 * shape.c: what follows from a model's shape and a pool, or from a pool in blocks and a rate alone.
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

/* Everything that a session adds, its other towers too, in bytes. */
static void towers(json_t *out, const struct opts *o, const struct plan *p)
{
    struct mt_class c = {.n = (double)o->sessions, .bytes_s = p->rate * (double)p->token_bytes};
    double t;

    for (int i = 0; i < o->n_towers; i++)
        c.bytes_s += o->towers[i];
    predict_set(out, "session_bytes_s", c.bytes_s);
    if (mt_predict_classes(&c, 1, (double)p->blocks * (double)(o->block * p->token_bytes), o->rho0,
                           &t) == 0)
        predict_set(out, "t_sat_towers_s", t);
}

void predict_ceilings(json_t *out, const struct opts *o, const struct plan *p)
{
    int64_t n_star = MT_NO_LIMIT, unaligned, per_session, n;
    int64_t limit = o->cap < o->max_sessions ? o->cap : o->max_sessions;
    /* The ceilings share out what others left. */
    int64_t blocks = (int64_t)floor(predict_free(o) * (double)p->blocks + 1e-9);
    const struct mt_bound *w = &p->bound;
    enum mt_binding binding;
    double worst;

    if (o->kv.bounded && mt_bound_blocks(w, &per_session) == 0) {
        predict_set_int(out, "session_blocks", per_session);
        if (p->token_bytes)
            predict_set_int(out, "session_bytes", per_session * o->block * p->token_bytes);
        if (p->rate > 0) {
            double missing = (double)(w->sinks + w->window - o->prompt_tokens);

            predict_set(out, "t_full_s", fmax(0, missing) / p->rate);
        }
        predict_set_int(out, "n_mem", p->n_mem);
        if (o->sessions >= 0)
            predict_set_bool(out, "fits", o->sessions <= p->n_mem);
    }
    fitting_window(out, o, *w, blocks, p->rate);
    if (o->has_cost && mt_latency_locked(&o->cost, p->deadline_s, o->target, &n_star) == 0 &&
        mt_latency_unaligned(&o->cost, p->deadline_s, o->target, &unaligned) == 0) {
        predict_set(out, "deadline_s", p->deadline_s);
        predict_set(out, "target", o->target);
        predict_set(out, "cost_a_ms", o->cost.a_s * 1e3);
        predict_set(out, "cost_b_ms", o->cost.b_s * 1e3);
        if (n_star != MT_NO_LIMIT) {
            predict_set_int(out, "n_star", n_star);
            predict_set_int(out, "n_star_unaligned", unaligned);
        }
        if (o->sessions >= 0 &&
            mt_latency_worst(&o->cost, p->deadline_s, (double)o->sessions, &worst) == 0) {
            predict_set(out, "latency_ms", 1e3 * (o->cost.a_s + o->cost.b_s * (double)o->sessions));
            predict_set(out, "latency_unaligned_ms", 1e3 * worst);
        }
    }
    if (!o->kv.bounded && p->rate > 0 && (o->sessions > 0 || o->arrive != ARRIVE_NONE)) {
        /* Unbounded, memory ends every number of sessions: t_sat_s says when. */
        json_object_set_new(out, "binding", json_string(mt_binding_name(MT_BIND_MEMORY)));
        return;
    }
    n = mt_sustainable(p->n_mem, n_star, limit, &binding);
    if (binding != MT_BIND_NONE)
        predict_set_int(out, "n_sustainable", n);
    json_object_set_new(out, "binding", json_string(mt_binding_name(binding)));
}

/* The pool in whole blocks and in tokens. */
static int plan_pool(const struct opts *o, struct plan *p)
{
    int64_t block_bytes = p->token_bytes * o->block;

    p->blocks = o->pool_blocks ? o->pool_blocks : o->pool_bytes / block_bytes;
    if (p->blocks < 1) {
        mt_msg(MT_ERROR, "--pool: %lld bytes hold no block of %lld bytes", (long long)o->pool_bytes,
               (long long)block_bytes);
        return MT_EXIT_FAILED;
    }
    if (__builtin_mul_overflow(p->blocks, o->block, &p->pool_tokens) ||
        p->pool_tokens > PREDICT_TOKENS_MAX) {
        mt_msg(MT_ERROR, "--pool: %lld blocks of %lld tokens are beyond what can be counted",
               (long long)p->blocks, (long long)o->block);
        return MT_EXIT_FAILED;
    }
    p->free_tokens = predict_free(o) * (double)p->pool_tokens;
    return MT_EXIT_OK;
}

double predict_free(const struct opts *o)
{
    return fmax(0, 1 - o->rho0);
}

int predict_plan(const struct opts *o, struct plan *p)
{
    struct mt_err e = {0};
    double audio;
    int rc = o->model ? mt_shape_open(&p->shape, o->model, &e) : 0;

    if (rc < 0) {
        mt_msg(MT_ERROR, "%s", e.text);
        return rc == -EINVAL ? MT_EXIT_USAGE : MT_EXIT_FAILED;
    }
    p->token_bytes = mt_shape_token_bytes(&p->shape, o->kv_type);
    if ((rc = plan_pool(o, p)) != MT_EXIT_OK)
        return rc;
    p->frame_s = o->frame_ns ? (double)o->frame_ns / 1e9 : p->shape.frame_s;
    p->deadline_s = o->deadline_ns ? (double)o->deadline_ns / 1e9 : p->frame_s;
    audio = mt_shape_audio_rate(&p->shape, p->frame_s);
    p->rate = isnan(o->rate) ? audio : o->rate;
    if (isnan(o->rate) && p->rate == 0) {
        mt_msg(MT_ERROR, "%s: its config tells no audio rate: give --rate", o->model);
        return MT_EXIT_USAGE;
    }
    if (o->has_cost && p->deadline_s == 0) {
        mt_msg(MT_ERROR, "%s: its config tells no frame length: --cost needs --deadline",
               o->model ? o->model : "no model");
        return MT_EXIT_USAGE;
    }
    p->bound = (struct mt_bound){.window = o->kv.window,
                                 .sinks = o->kv.sinks < 0 ? o->prompt_tokens : o->kv.sinks,
                                 .step = o->step_tokens,
                                 .block_tokens = o->block,
                                 .retire = o->retire,
                                 .shared_sinks = o->shared_sinks};
    /* A frame's audio comes in one step, text one token at a time. */
    if (p->bound.step == 0)
        p->bound.step = (int64_t)fmax(1, ceil((audio > 0 ? audio : p->rate) * p->frame_s - 1e-9));
    p->n_mem = MT_NO_LIMIT;
    if (o->kv.bounded)
        mt_bound_sessions(&p->bound, (int64_t)floor(predict_free(o) * (double)p->blocks + 1e-9),
                          &p->n_mem);
    return MT_EXIT_OK;
}

/* What was given, and what it comes to before anything is predicted. */
static void echo(json_t *out, const struct opts *o, const struct plan *p)
{
    struct mt_policy policy = o->kv;
    char kv[64];

    if (o->model) {
        json_object_set_new(out, "model", json_string(p->shape.name));
        predict_set_int(out, "layers", p->shape.layers);
        predict_set_int(out, "kv_heads", p->shape.kv_heads);
        predict_set_int(out, "head_dim", p->shape.head_dim);
    }
    policy.sinks = p->bound.sinks; /* the prompt's tokens, where it is the sinks */
    mt_policy_format(&policy, kv);
    json_object_set_new(out, "kv", json_string(kv));
    if (o->model) {
        json_object_set_new(out, "kv_type", json_string(mt_dtype_name(o->kv_type)));
        predict_set_int(out, "token_bytes", p->token_bytes);
    }
    predict_set_int(out, "block_tokens", o->block);
    predict_set_int(out, "pool_blocks", p->blocks);
    predict_set_int(out, "pool_tokens", p->pool_tokens);
    if (o->sessions >= 0)
        predict_set_int(out, "sessions", o->sessions);
    predict_set(out, "rate_tokens_s", p->rate);
    if (p->frame_s > 0)
        predict_set(out, "frame_s", p->frame_s);
    predict_set_int(out, "step_tokens", p->bound.step);
    predict_set_int(out, "prompt_tokens", o->prompt_tokens);
    predict_set(out, "rho0", o->rho0);
}

int predict_shape(const struct opts *o)
{
    struct plan p = {0};
    json_t *out;
    int rc = predict_plan(o, &p);

    if (rc != MT_EXIT_OK)
        return rc;
    out = predict_begin("predict");
    echo(out, o, &p);
    if (o->kv.bounded) {
        predict_set(out, "t_sat_s", INFINITY);
    } else if (o->sessions >= 0 && o->arrive != ARRIVE_RAMP) {
        struct mt_load l = {.pool_blocks = p.blocks,
                            .block_tokens = o->block,
                            .rho0 = o->rho0,
                            .sessions = o->sessions,
                            .start_tokens = o->prompt_tokens,
                            .rate = p.rate};

        growth(out, &l, p.frame_s);
        if (o->n_towers > 0)
            towers(out, o, &p);
    }
    rc = predict_open(o, &p, out);
    if (rc != MT_EXIT_OK) {
        json_decref(out);
        return rc;
    }
    predict_ceilings(out, o, &p);
    return predict_print(o, out);
}
