/*
 * answers.c: every call pushes what its ear takes, the engine ticks until nobody has work, and so
 * on to the end of all.
 */
#include "engine/answers.h"

#include <errno.h>
#include <stdlib.h>

struct call {
    int64_t session;
    int at;        /* the clip that it is to hear next */
    int64_t heard; /* samples of that clip, silence included */
    bool open;
};

struct run {
    struct mt_model *m;
    const struct mt_answers *a;
    struct mt_clock clock;
    struct mt_engine *eng;
    struct call *calls;
    float *silence; /* a frame */
    int64_t frame;  /* its samples */
    int rc;         /* of a callback */
    struct mt_err *e;
};

/* Frames of the first n clips of a call. */
static int64_t frames_of(const struct run *r, const struct mt_answers_call *c, int n)
{
    int64_t sum = 0;

    for (int k = 0; k < n; k++)
        sum += (r->a->clips[c->clips[k]].n + r->frame - 1) / r->frame;
    return sum;
}

static void on_frame(void *ctx, const struct mt_record *rec)
{
    struct run *r = ctx;
    int i = 0, at = 0;

    while (i < r->a->n_calls && r->calls[i].session != rec->session)
        i++;
    if (i == r->a->n_calls || r->rc)
        return;
    if (rec->status != MT_OK) {
        r->rc = mt_err_set(r->e, -EPROTO, "frame %lld of call %d: %s%s%s", (long long)rec->frame, i,
                           mt_status_name(rec->status), rec->reason ? ", " : "",
                           rec->reason ? rec->reason : "");
        return;
    }
    while (rec->frame >= frames_of(r, &r->a->calls[i], at + 1))
        at++;
    r->rc = r->a->frame(r->a->ctx, i, at, rec);
}

static void on_closed(void *ctx, int64_t session, const char *reason, int64_t frames)
{
    struct run *r = ctx;

    (void)reason;
    (void)frames;
    for (int i = 0; i < r->a->n_calls; i++)
        if (r->calls[i].session == session)
            r->calls[i].open = false;
}

/* What a call may hold at most: the longest one's tokens, and the shape of a frame. */
static int64_t tokens_at_most(struct run *r, struct mt_err *e)
{
    const struct mt_model_info *info = mt_model_info(r->m);
    struct mt_ear *ear = NULL;
    struct mt_talk *talk = NULL;
    int64_t longest = 0, tokens = 0;
    int rc = mt_ear_new(&ear, r->m, info->beat_samples, 1, e), n_prompt;

    if (rc == 0)
        rc = mt_talk_new(&talk, r->m, r->a->mode, r->a->system, ear, e);
    for (int i = 0; rc == 0 && i < r->a->n_calls; i++) {
        int64_t frames = frames_of(r, &r->a->calls[i], r->a->calls[i].n);

        longest = frames > longest ? frames : longest;
    }
    if (rc == 0) {
        int draws =
            mt_talk_draws(talk) < r->a->answer_tokens ? mt_talk_draws(talk) : r->a->answer_tokens;

        mt_talk_prompt(talk, &n_prompt);
        tokens = n_prompt + (longest + 1) * (mt_ear_rows_max(r->m, info->beat_samples) +
                                             mt_talk_marks(talk) + draws);
    }
    mt_talk_free(&talk);
    mt_ear_free(&ear);
    return rc < 0 ? rc : tokens;
}

static int open_engine(struct run *r, struct mt_err *e)
{
    const struct mt_model_info *info = mt_model_info(r->m);
    struct mt_engine_opts o;
    int64_t tokens = tokens_at_most(r, e);

    if (tokens < 0)
        return (int)tokens;
    mt_engine_defaults(&o);
    o.policy = r->a->policy;
    if (o.policy.bounded && info->context && o.policy.window > info->context)
        return mt_err_set(e, -EINVAL, "window=%lld is above the model's context of %lld",
                          (long long)o.policy.window, (long long)info->context);
    /* A window that is never full needs no more memory than the tokens. */
    if (o.policy.bounded && o.policy.window > tokens + 1)
        o.policy.window = tokens + 1 > o.policy.sinks ? tokens + 1 : o.policy.sinks + 1;
    o.kv_type = r->a->kv_type;
    o.block_tokens = r->a->block_tokens;
    o.mode = r->a->mode;
    o.system = r->a->system;
    o.answer_tokens = r->a->answer_tokens;
    o.max_sessions = r->a->n_calls;
    o.step_tokens = info->step_rows < info->want_rows ? info->step_rows : info->want_rows;
    o.events = (struct mt_engine_events){r, on_frame, on_closed};
    int64_t each = (tokens + o.block_tokens - 1) / o.block_tokens + 1;
    if (o.policy.bounded)
        each = mt_policy_blocks(o.policy.window, o.policy.sinks, o.block_tokens, o.step_tokens);
    o.pool_blocks = each * r->a->n_calls;
    return mt_engine_new(&r->eng, r->m, &o, &r->clock, e);
}

static int open_calls(struct run *r, struct mt_err *e)
{
    int rc = 0;

    for (int i = 0; i < r->a->n_calls && rc == 0; i++) {
        struct mt_session_opts so;
        const char *reason;
        double retry;

        mt_session_defaults(&so);
        so.has_seed = true;
        so.seed = r->a->calls[i].seed;
        so.temperature = r->a->temperature;
        so.top_p = r->a->top_p;
        rc = mt_engine_open(r->eng, &so, &r->calls[i].session, &reason, &retry, e);
        if (rc == -EAGAIN)
            rc = mt_err_set(e, -ENOMEM, "call %d of %d finds no room: %s", i + 1, r->a->n_calls,
                            reason);
        r->calls[i].open = rc == 0;
    }
    return rc;
}

/* As much of its clips as a call's ear takes now, and the end behind the last. */
static void speak(struct run *r, int i)
{
    struct call *c = &r->calls[i];
    const struct mt_answers_call *say = &r->a->calls[i];

    while (c->at < say->n) {
        const struct mt_answers_clip *clip = &r->a->clips[say->clips[c->at]];
        int64_t whole = (clip->n + r->frame - 1) / r->frame * r->frame;
        bool silent = c->heard >= clip->n;
        int64_t n = silent ? whole - c->heard : clip->n - c->heard;
        int64_t took = n ? mt_engine_audio(r->eng, c->session,
                                           silent ? r->silence : clip->pcm + c->heard, n, 0)
                         : 0;

        if (took < 0)
            return;
        c->heard += took;
        if (took < n)
            return;
        if (c->heard == whole) {
            c->at++;
            c->heard = 0;
        }
    }
    if (c->at == say->n) {
        mt_engine_end(r->eng, c->session, 0);
        c->at++;
    }
}

static int run(struct run *r, struct mt_err *e)
{
    for (bool any = true; any && r->rc == 0;) {
        bool worked = false;

        any = false;
        for (int i = 0; i < r->a->n_calls; i++)
            if (r->calls[i].open) {
                any = true;
                speak(r, i);
            }
        while (r->rc == 0 && mt_engine_tick(r->eng))
            worked = true;
        if (any && !worked && r->rc == 0)
            return mt_err_set(e, -EPROTO, "calls stand still");
    }
    return r->rc;
}

int mt_answers_run(struct mt_model *m, const struct mt_answers *a, struct mt_err *e)
{
    const struct mt_model_info *info = mt_model_info(m);
    struct run r = {
        .m = m, .a = a, .clock = mt_clock_virtual(0), .frame = info->beat_samples, .e = e};
    int rc = 0;

    if (a->n_calls < 1)
        return mt_err_set(e, -EINVAL, "no call");
    if (!info->beat_samples)
        return mt_err_set(e, -ENOTSUP, "%s", info->no_calls ? info->no_calls : "it hears nothing");
    r.calls = mt_alloc((size_t)a->n_calls, sizeof(*r.calls));
    r.silence = mt_alloc((size_t)r.frame, sizeof(*r.silence));
    if (!r.calls || !r.silence)
        mt_err_set(e, rc = -ENOMEM, "out of memory");
    if (rc == 0)
        rc = open_engine(&r, e);
    if (rc == 0)
        rc = open_calls(&r, e);
    if (rc == 0)
        rc = run(&r, e);
    mt_engine_free(&r.eng);
    free(r.calls);
    free(r.silence);
    return rc;
}
