/*
 * engine.c: the engine from outside: its memory plan, admission, audio in, and leaving. What
 * happens between is in scheduler.c.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/session.h"

/* --pace-admission: one session in so many frames, after so many at once. */
enum { PACE_FRAMES = 5, PACE_BURST = 2 };

void mt_engine_defaults(struct mt_engine_opts *o)
{
    *o = (struct mt_engine_opts){
        .kv_type = MT_BF16,
        .block_tokens = 16,
        .mode = MT_MODE_TURN,
        .answer_tokens = 16,
        .step_tokens = 512,
        .max_sessions = 256,
        .idle_ns = 0,
        .seed = 1,
        .backlog = 4,
    };
}

void mt_session_defaults(struct mt_session_opts *o)
{
    *o = (struct mt_session_opts){.top_p = 1};
}

/* ---- the plan ---- */

static int plan_frame(struct mt_engine *eng, struct mt_err *e)
{
    const struct mt_model_info *i = mt_model_info(eng->m);
    struct mt_engine_plan *p = &eng->plan;
    double samples = i->beat_samples;

    if (eng->opts.frame_ns)
        samples = (double)eng->opts.frame_ns * i->sample_rate_hz / 1e9;
    if (samples > 120.0 * i->sample_rate_hz)
        return mt_err_set(e, -EINVAL, "--frame: %.0f s is above 120 s",
                          samples / i->sample_rate_hz);
    p->frame_samples = llround(samples);
    if (fabs(samples - (double)p->frame_samples) > 1e-6 || p->frame_samples < i->frame_min ||
        p->frame_samples % i->frame_step)
        return mt_err_set(
            e, -EINVAL, "--frame: %.1f ms is not a multiple of %.0f ms from %.0f ms on",
            1e3 * samples / i->sample_rate_hz, 1e3 * i->frame_step / i->sample_rate_hz,
            1e3 * i->frame_min / i->sample_rate_hz);
    p->lookahead_samples = i->lookahead_samples;
    p->frame_s = samples / i->sample_rate_hz;
    if (!eng->opts.deadline_ns)
        eng->opts.deadline_ns = llround(p->frame_s * 1e9);
    p->deadline_s = (double)eng->opts.deadline_ns / 1e9;
    return 0;
}

/* What a session with the server's own prompt and policy costs. */
static int plan_memory(struct mt_engine *eng, struct mt_err *e)
{
    const struct mt_engine_opts *o = &eng->opts;
    struct mt_kv_shape shape = mt_model_kv_shape(eng->m, o->block_tokens, o->kv_type);
    struct mt_engine_plan *p = &eng->plan;
    struct mt_session_opts so;
    struct session *s;
    int64_t shared = 0, bt = o->block_tokens;
    int rc;

    p->block_bytes = mt_kv_block_bytes(&shape);
    p->pool_blocks = o->pool_blocks;
    if (p->pool_blocks < 1 || p->pool_blocks > INT64_MAX / p->block_bytes)
        return mt_err_set(e, -EINVAL, "--pool: %lld blocks of %lld bytes",
                          (long long)p->pool_blocks, (long long)p->block_bytes);
    p->pool_bytes = p->pool_blocks * p->block_bytes;
    p->step_max = 1; /* until the marks are known; a session's table is sized again at admission */
    mt_session_defaults(&so);
    if ((rc = mt_session_new(&s, eng, &so, o->system, e)) < 0)
        return rc;
    int64_t rows = mt_ear_rows_max(eng->m, (int)p->frame_samples);
    int64_t prefill = mt_talk_marks(s->talk) + rows;
    p->step_max = prefill < o->step_tokens ? prefill : o->step_tokens;
    p->frame_tokens = mt_session_frame_tokens(s, eng);
    if (o->policy.bounded) {
        p->blocks_per_session =
            mt_policy_blocks(s->policy.window, s->policy.sinks, o->block_tokens, p->step_max);
        if (s->policy.sinks <= s->n_prompt)
            shared = (s->policy.sinks + bt - 1) / bt;
    } else {
        int64_t first = s->n_prompt + p->frame_tokens;
        p->blocks_per_session = (first + bt - 1) / bt;
    }
    p->n_mem = (p->pool_blocks - shared) / (p->blocks_per_session - shared);
    p->kv_bytes_session = p->blocks_per_session * p->block_bytes;
    p->n_state = mt_model_state(eng->m, (int)p->frame_samples, o->backlog, p->state);
    /* An unbounded session's block table has room for the whole pool. */
    int64_t table = o->policy.bounded ? p->blocks_per_session : p->pool_blocks;
    p->state_bytes_session = (int64_t)sizeof(*s) + (int64_t)s->cap_text + mt_talk_bytes(s->talk) +
                             (s->system ? (int64_t)strlen(s->system) + 1 : 0) +
                             4 * (s->cap_feed + s->opts.answer_tokens + table + 1) +
                             8 * (int64_t)s->due_cap;
    mt_session_free(&s, eng);
    if (p->pool_blocks < p->blocks_per_session)
        return mt_err_set(
            e, -ENOSPC,
            "not one session fits: it needs %lld blocks of %lld tokens (%lld bytes), the pool "
            "has %lld blocks (%lld bytes)",
            (long long)p->blocks_per_session, (long long)bt, (long long)p->kv_bytes_session,
            (long long)p->pool_blocks, (long long)p->pool_bytes);
    return 0;
}

static int check_options(const struct mt_model_info *i, const struct mt_engine_opts *o,
                         struct mt_err *e)
{
    int want = o->step_tokens < o->max_sessions ? o->step_tokens : o->max_sessions;

    if (!i->beat_samples)
        return i->no_calls
                   ? mt_err_set(e, -ENOTSUP, "%s", i->no_calls)
                   : mt_err_set(e, -ENOTSUP, "%s hears nothing: it holds no calls", i->name);
    if (o->block_tokens < 1 || o->block_tokens > 1024)
        return mt_err_set(e, -EINVAL, "--block: %d is not in 1..1024", o->block_tokens);
    if (o->answer_tokens < 1 || o->answer_tokens > 65536)
        return mt_err_set(e, -EINVAL, "--answer-tokens: %d is not in 1..65536", o->answer_tokens);
    if (o->step_tokens < 1 || o->step_tokens > 65536)
        return mt_err_set(e, -EINVAL, "--step-tokens: %d is not in 1..65536", o->step_tokens);
    if (o->max_sessions < 1 || o->max_sessions > 65536)
        return mt_err_set(e, -EINVAL, "--max-sessions: %d is not in 1..65536", o->max_sessions);
    if (o->close_stalled < 0)
        return mt_err_set(e, -EINVAL, "--close-stalled: %d is below 0", o->close_stalled);
    if (o->backlog < 1 || o->backlog > 1024)
        return mt_err_set(e, -EINVAL, "backlog: %d is not in 1..1024", o->backlog);
    if (o->policy.bounded && o->policy.window > INT32_MAX / 2)
        return mt_err_set(e, -EINVAL, "--kv: window=%lld is above %d", (long long)o->policy.window,
                          INT32_MAX / 2);
    if (o->policy.bounded && i->context && o->policy.window > i->context)
        return mt_err_set(e, -EINVAL, "--kv: window=%lld is above the model's context of %lld",
                          (long long)o->policy.window, (long long)i->context);
    if (o->step_tokens > i->step_rows || want > i->want_rows)
        return mt_err_set(e, -EINVAL,
                          "--step-tokens: the model was opened for steps of %d rows, %d with "
                          "logits; %d and %d are asked for",
                          i->step_rows, i->want_rows, o->step_tokens, want);
    return 0;
}

static int allocate(struct mt_engine *eng)
{
    size_t n = (size_t)eng->opts.max_sessions, rows = (size_t)eng->opts.step_tokens;

    eng->session = calloc(n, sizeof(*eng->session));
    eng->busy = calloc(n, sizeof(*eng->busy));
    eng->order = calloc(n, sizeof(struct session *));
    eng->runs = calloc(n, sizeof(*eng->runs));
    eng->audio = calloc(n, sizeof(*eng->audio));
    eng->want_of = calloc(n, sizeof(*eng->want_of));
    eng->encoded = calloc(n, sizeof(struct session *));
    eng->ears = calloc(n, sizeof(*eng->ears));
    eng->ids = calloc(rows, sizeof(*eng->ids));
    eng->want = calloc(n, sizeof(*eng->want));
    eng->sampled = calloc(n, sizeof(*eng->sampled));
    eng->params = calloc(n, sizeof(*eng->params));
    eng->talks = calloc(n, sizeof(*eng->talks));
    eng->said = calloc(n, sizeof(*eng->said));
    return eng->session && eng->busy && eng->order && eng->runs && eng->audio && eng->want_of &&
                   eng->encoded && eng->ears && eng->ids && eng->want && eng->sampled &&
                   eng->params && eng->talks && eng->said
               ? 0
               : -ENOMEM;
}

static int longest_token(const struct mt_tokenizer *t)
{
    size_t longest = 0, len;

    for (int32_t id = 0; id < mt_tokenizer_size(t); id++) {
        mt_tokenizer_bytes(t, id, &len);
        longest = len > longest ? len : longest;
    }
    return (int)longest;
}

int mt_engine_new(struct mt_engine **out, struct mt_model *m, const struct mt_engine_opts *o,
                  struct mt_clock *clock, struct mt_err *e)
{
    struct mt_engine *eng = calloc(1, sizeof(*eng));
    int rc;

    *out = NULL;
    if (!eng)
        return mt_err_set(e, -ENOMEM, "out of memory");
    eng->m = m;
    eng->be = mt_model_backend(m);
    eng->aside = eng->be->ops->side && mt_model_info(m)->encodes_apart;
    eng->clock = clock;
    eng->opts = *o;
    eng->t_start = clock->now_ns(clock);
    eng->cap = o->max_sessions;
    eng->pace = PACE_BURST;
    eng->pace_ns = eng->t_start;
    if ((rc = check_options(mt_model_info(m), o, e)) < 0)
        goto fail;
    if (o->system && !(eng->system = strdup(o->system))) {
        rc = mt_err_set(e, -ENOMEM, "out of memory");
        goto fail;
    }
    eng->opts.system = eng->system;
    if (mt_model_tokenizer(m))
        eng->token_bytes = longest_token(mt_model_tokenizer(m));
    if ((rc = mt_pool_new(&eng->pool, o->pool_blocks)) < 0) {
        mt_err_set(e, rc, "--pool: %lld blocks are too many", (long long)o->pool_blocks);
        goto fail;
    }
    if ((rc = plan_frame(eng, e)) < 0 || (rc = plan_memory(eng, e)) < 0)
        goto fail;
    struct mt_kv_shape shape = mt_model_kv_shape(m, o->block_tokens, o->kv_type);
    if ((rc = eng->be->ops->kv_new(eng->be, &eng->kv, &shape, o->pool_blocks)) < 0 ||
        (rc = allocate(eng)) < 0) {
        mt_err_set(e, rc, "no memory for a pool of %lld bytes", (long long)eng->plan.pool_bytes);
        goto fail;
    }
    *out = eng;
    return 0;
fail:
    mt_engine_free(&eng);
    return rc;
}

void mt_engine_free(struct mt_engine **peng)
{
    struct mt_engine *eng = *peng;

    if (!eng)
        return;
    for (int i = 0; i < eng->n; i++)
        mt_session_free(&eng->session[i], eng);
    if (eng->kv)
        eng->be->ops->kv_free(eng->be, eng->kv);
    mt_pool_free(&eng->pool);
    free(eng->system);
    free(eng->session);
    free(eng->busy);
    free(eng->order);
    free(eng->runs);
    free(eng->audio);
    free(eng->want_of);
    free(eng->encoded);
    free(eng->ears);
    free(eng->ids);
    free(eng->want);
    free(eng->sampled);
    free(eng->params);
    free(eng->talks);
    free(eng->said);
    free(eng);
    *peng = NULL;
}

const struct mt_engine_plan *mt_engine_plan(const struct mt_engine *eng)
{
    return &eng->plan;
}

const struct mt_engine_opts *mt_engine_options(const struct mt_engine *eng)
{
    return &eng->opts;
}

struct mt_clock *mt_engine_clock(const struct mt_engine *eng)
{
    return eng->clock;
}

/* ---- admission ---- */

/* A session leaves every D / n seconds, D what those that are gone lasted. */
static double retry_hint(const struct mt_engine *eng)
{
    double d = eng->n_closed > 0 ? eng->closed_s / (double)eng->n_closed : 0;
    double s = d / (eng->n > 1 ? eng->n : 1);

    return (s > 1 ? s : 1) *
           (0.5 + mt_unit(mt_mix64(eng->opts.seed + (uint64_t)eng->stats.refused)));
}

int mt_engine_refuse(struct mt_engine *eng, const char *why, const char **reason, double *retry_s)
{
    eng->stats.refused++;
    *reason = why;
    *retry_s = retry_hint(eng);
    return -EAGAIN;
}

/*
 * Sessions that may come now: the one that is earned in PACE_FRAMES frames, and PACE_BURST at most.
 */
static double pace_at(const struct mt_engine *eng, int64_t now)
{
    double earned = (double)(now - eng->pace_ns) / 1e9 / (PACE_FRAMES * eng->plan.frame_s);

    return eng->pace + earned < PACE_BURST ? eng->pace + earned : PACE_BURST;
}

const char *mt_engine_closed_for(const struct mt_engine *eng, int64_t now)
{
    static const char *const above[] = {"limit", "warmup", "drain", "stalled"};

    if (eng->draining)
        return "drain";
    if (eng->gate == MT_GATE_STALLED)
        return "stalled";
    if (eng->n >= eng->opts.max_sessions)
        return "limit";
    if (eng->n >= eng->cap)
        return above[eng->gate];
    return eng->opts.pace && pace_at(eng, now) < 1 ? "pace" : NULL;
}

int mt_engine_open(struct mt_engine *eng, const struct mt_session_opts *o, int64_t *session,
                   const char **reason, double *retry_s, struct mt_err *e)
{
    int64_t now = eng->clock->now_ns(eng->clock);
    const char *why;
    struct session *s;
    int rc;

    if ((why = mt_engine_closed_for(eng, now)))
        return mt_engine_refuse(eng, why, reason, retry_s);
    if ((rc = mt_session_new(&s, eng, o, o->system ? o->system : eng->opts.system, e)) < 0)
        return rc;
    if (mt_session_reserve(s, eng) < 0) {
        mt_session_free(&s, eng);
        return mt_engine_refuse(eng, "memory", reason, retry_s);
    }
    s->id = ++eng->next_id;
    s->heard_ns = s->opened_ns = now;
    eng->pace = pace_at(eng, now) - 1;
    eng->pace_ns = now;
    eng->session[eng->n++] = s;
    *session = s->id;
    return 0;
}

void mt_engine_set_cap(struct mt_engine *eng, int cap)
{
    eng->cap = cap;
}

void mt_engine_set_gate(struct mt_engine *eng, enum mt_gate gate)
{
    eng->gate = gate;
}

void mt_engine_drain(struct mt_engine *eng)
{
    eng->draining = true;
}

/* ---- audio in ---- */

/* Where a session is, -1 if it is gone. */
static int index_of(const struct mt_engine *eng, int64_t id)
{
    int lo = 0, hi = eng->n;

    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if (eng->session[mid]->id < id)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < eng->n && eng->session[lo]->id == id ? lo : -1;
}

struct session *mt_engine_find(const struct mt_engine *eng, int64_t id)
{
    int i = index_of(eng, id);

    return i < 0 ? NULL : eng->session[i];
}

/*
 * The next tick has to look at it, in its place: the order in which frames begin, and so who gets
 * the last blocks, is not to hang on whose bytes were read first.
 */
void mt_engine_list(struct mt_engine *eng, struct session *s)
{
    int i = eng->n_busy;

    if (s->listed)
        return;
    s->listed = true;
    for (; i > 0 && eng->busy[i - 1]->id > s->id; i--)
        eng->busy[i] = eng->busy[i - 1];
    eng->busy[i] = s;
    eng->n_busy++;
}

static void unlist(struct mt_engine *eng, const struct session *s)
{
    int i = 0;

    if (!s->listed)
        return;
    while (eng->busy[i] != s)
        i++;
    memmove(eng->busy + i, eng->busy + i + 1, (size_t)(--eng->n_busy - i) * sizeof(*eng->busy));
}

/* Frames that became complete are due from the moment their last sample arrived. */
static void stamp(struct mt_engine *eng, struct session *s, int64_t t_ns)
{
    int64_t complete = s->taken + mt_ear_frames(s->ear);

    if (s->completed < complete || s->ended)
        mt_engine_list(eng, s);
    for (; s->completed < complete; s->completed++)
        s->due_ns[s->completed % s->due_cap] = t_ns;
}

/* A live session's oldest frame that nothing was computed for makes room. */
static void drop_oldest(struct mt_engine *eng, struct session *s)
{
    mt_ear_skip(s->ear);
    s->taken++;
    s->skipped++;
    if (s->phase == PHASE_ENCODE)
        mt_engine_record(eng, s, MT_DROPPED, "backlog", false);
    else
        mt_engine_record_unbegun(eng, s, MT_DROPPED, "backlog");
}

int64_t mt_engine_audio(struct mt_engine *eng, int64_t session, const float *pcm, int64_t n,
                        int64_t t_ns)
{
    struct session *s = mt_engine_find(eng, session);
    int64_t got = 0;

    if (!s)
        return -ENOENT;
    if (s->ended)
        return -EINVAL;
    s->heard_ns = t_ns;
    for (;;) {
        got += mt_ear_push(s->ear, pcm + got, n - got);
        stamp(eng, s, t_ns);
        if (got == n || !s->opts.live || mt_ear_frames(s->ear) < 1)
            return got;
        drop_oldest(eng, s);
    }
}

int mt_engine_end(struct mt_engine *eng, int64_t session, int64_t t_ns)
{
    struct session *s = mt_engine_find(eng, session);

    if (!s)
        return -ENOENT;
    s->ended = true;
    mt_ear_end(s->ear);
    stamp(eng, s, t_ns);
    return 0;
}

void mt_engine_close(struct mt_engine *eng, int64_t session, const char *reason)
{
    int i = index_of(eng, session);

    if (i < 0)
        return;
    struct session *s = eng->session[i];
    if (s->phase != PHASE_IDLE)
        mt_engine_record(eng, s, MT_DROPPED, reason, false);
    while (s->begun < s->completed)
        mt_engine_record_unbegun(eng, s, MT_DROPPED, reason);
    int64_t frames = s->begun;
    eng->n_closed++;
    eng->closed_s += (double)(eng->clock->now_ns(eng->clock) - s->opened_ns) / 1e9;
    memmove(eng->session + i, eng->session + i + 1,
            (size_t)(eng->n - i - 1) * sizeof(*eng->session));
    eng->n--;
    unlist(eng, s);
    mt_session_free(&s, eng);
    if (eng->opts.events.closed)
        eng->opts.events.closed(eng->opts.events.ctx, session, reason, frames);
}
