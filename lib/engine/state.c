/*
 * state.c: a session saved and gone on with. First what it was opened with, from which one just
 * like it is made; then everything that has changed since, in the same order both ways.
 *
 * Of the cache there are the sinks and the tokens that the next one will see: what is older than
 * the window is masked for ever. Shared sinks go along with each session, and are shared again
 * where one with the same prompt has them already.
 */
#include "engine/session.h"

#include <assert.h>
#include <errno.h>
#include <float.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

/* Longer than any line of the wire. */
#define SYSTEM_MAX ((size_t)1 << 20)
#define TOKENS_MAX (INT64_C(1) << 44)
#define FRAMES_MAX (INT64_C(1) << 44)
#define UNIT       "16" /* MT_KV_UNIT, for people */

static_assert(MT_KV_UNIT == 16, "UNIT says so");

/* ---- what it was opened with ---- */

static void visit_shape(const struct mt_engine *eng, struct mt_state_io *io)
{
    const struct mt_engine_opts *o = &eng->opts;
    struct mt_kv_shape shape = mt_model_kv_shape(eng->m, o->block_tokens, o->kv_type);

    mt_state_same(io, "layers", shape.layers);
    mt_state_same(io, "KV heads", shape.kv_heads);
    mt_state_same(io, "head size", shape.head_dim);
    mt_state_same(io, "--kv-type (its number)", (int64_t)shape.type);
    mt_state_same(io, "--frame (samples)", eng->plan.frame_samples);
    mt_state_same(io, "--mode (0: turn, 1: free)", (int64_t)o->mode);
    mt_state_same(io, "--kv (0: unbounded, 1: a window)", o->policy.bounded);
    mt_state_same(io, "--rope (0: cache, 1: absolute)", o->policy.rope_absolute);
    mt_state_same(io, "--block (" UNIT ": any multiple of it)",
                  o->block_tokens % MT_KV_UNIT ? o->block_tokens : MT_KV_UNIT);
}

struct origin {
    struct mt_session_opts opts;
    struct mt_policy policy;
    char *system;
};

static void visit_origin(struct origin *x, struct mt_state_io *io)
{
    struct mt_session_opts *o = &x->opts;

    mt_state_u64(io, "seed", &o->seed);
    mt_state_f32(io, "temperature", &o->temperature);
    mt_state_int(io, "top_k", &o->top_k, 0, INT_MAX);
    mt_state_f32(io, "top_p", &o->top_p);
    mt_state_int(io, "answer tokens", &o->answer_tokens, 1, 65536);
    mt_state_bool(io, "live", &o->live);
    mt_state_text(io, "system text", &x->system, SYSTEM_MAX);
    if (x->policy.bounded) {
        mt_state_i64(io, "window", &x->policy.window, 1, INT32_MAX / 2);
        mt_state_i64(io, "sinks", &x->policy.sinks, 0, INT32_MAX / 2);
    }
}

/* ---- what has changed since ---- */

/* Tokens that the next one may see, apart from the sinks: from here on. */
static int64_t first_seen(const struct session *s, int64_t len)
{
    int64_t window = s->policy.bounded ? s->policy.window : s->context, from = 0;

    if (window <= len)
        from = len - window + 1;
    if (s->policy.bounded && from < s->policy.sinks)
        from = s->policy.sinks;
    return from < len ? from : len;
}

static void visit_age(struct mt_state_io *io, const char *what, int64_t *t, int64_t now)
{
    int64_t age = now - *t;

    mt_state_i64(io, what, &age, -(INT64_C(1) << 58), INT64_C(1) << 58);
    if (io->load && mt_state_ok(io))
        *t = now - age;
}

static void visit_frames(struct session *s, int64_t now, struct mt_state_io *io)
{
    int64_t waiting;

    mt_state_i64(io, "frames complete", &s->completed, 0, FRAMES_MAX);
    mt_state_i64(io, "frames begun", &s->begun, 0, s->completed);
    mt_state_i64(io, "frames taken", &s->taken, 0, s->begun);
    if (!mt_state_ok(io))
        return;
    waiting = s->completed - s->begun;
    if (waiting > s->due_cap || s->completed - s->taken != mt_ear_frames(s->ear))
        mt_state_fail(io, -EPROTO, "%lld frames wait, the sound has %d", (long long)waiting,
                      mt_ear_frames(s->ear));
    for (int64_t k = s->begun; mt_state_ok(io) && k < s->completed; k++)
        visit_age(io, "due time", &s->due_ns[k % s->due_cap], now);
}

static void visit_work(struct session *s, struct mt_engine *eng, int64_t now,
                       struct mt_state_io *io)
{
    int phase = (int)s->phase;

    mt_state_int(io, "phase", &phase, PHASE_IDLE, PHASE_DECODE);
    mt_state_i64(io, "frame in work", &s->frame, 0, FRAMES_MAX);
    visit_age(io, "due time", &s->t_due, now);
    visit_age(io, "time of encoding", &s->t_begin, now);
    visit_age(io, "time of encoding", &s->t_encoded, now);
    visit_age(io, "time of the first token", &s->t_first, now);
    mt_state_int(io, "tokens to feed", &s->n_feed, 0, s->cap_feed);
    mt_state_int(io, "tokens fed", &s->fed, 0, s->cap_feed);
    mt_state_int(io, "audio rows of a frame", &s->audio_rows, 0, s->cap_feed);
    mt_state_int(io, "place of the audio rows", &s->audio_at, 0, s->cap_feed);
    if (mt_state_ok(io))
        mt_state_ids(io, "token to feed", s->feed, (size_t)s->n_feed, -1, mt_model_last_id(eng->m));
    mt_state_ids(io, "next token", &s->next, 1, 0, mt_model_last_id(eng->m));
    if (!io->load || !mt_state_ok(io))
        return;
    s->phase = (enum phase)phase;
    s->t_deadline = s->t_due + eng->opts.deadline_ns;
}

static void visit_answer(struct session *s, struct mt_state_io *io)
{
    json_t *text = NULL;

    mt_state_int(io, "tokens of the answer", &s->n_answer, 0, s->opts.answer_tokens);
    if (mt_state_ok(io))
        mt_state_ids(io, "token of the answer", s->answer, (size_t)s->n_answer, 0, INT32_MAX);
    mt_state_u64(io, "draws", &s->draws);
    mt_state_size(io, "bytes of the answer", &s->n_text, s->cap_text - 1);
    if (mt_state_ok(io))
        mt_state_bytes(io, "the answer", s->text, s->n_text);
    if (io->load && mt_state_ok(io) && !(text = json_stringn(s->text, s->n_text)))
        mt_state_fail(io, -EPROTO, "the answer is not UTF-8");
    json_decref(text);
    mt_detok_visit(&s->detok, io);
}

/* What the scheduler takes for granted. */
static void check_work(const struct session *s, struct mt_state_io *io)
{
    bool encode = s->phase == PHASE_ENCODE, prefill = s->phase == PHASE_PREFILL;
    bool decode = s->phase == PHASE_DECODE;
    int rows, bare = 0; /* positions that are neither a token's nor an audio row's */

    mt_ear_rows(s->ear, &rows);
    for (int i = 0; i < s->n_feed; i++)
        if (i < s->audio_at || i - s->audio_at >= s->audio_rows)
            bare += s->feed[i] < 0;
    if (s->taken != s->begun - encode || (s->phase != PHASE_IDLE && s->frame != s->begun - 1))
        mt_state_fail(io, -EPROTO, "frame %lld of %lld in work, %lld taken", (long long)s->frame,
                      (long long)s->begun, (long long)s->taken);
    else if (s->fed > s->n_feed || s->audio_rows > s->n_feed - s->audio_at || bare ||
             (prefill && (s->fed == s->n_feed || s->audio_rows > rows)) ||
             (decode && s->fed != s->n_feed))
        mt_state_fail(io, -EPROTO, "%d of %d tokens are fed, %d audio rows from %d on", s->fed,
                      s->n_feed, s->audio_rows, s->audio_at);
    else if ((decode && (s->n_answer < 1 || s->n_answer >= s->opts.answer_tokens)) ||
             ((encode || prefill) && s->n_answer > 0))
        mt_state_fail(io, -EPROTO, "%d of %d tokens of the answer", s->n_answer,
                      s->opts.answer_tokens);
}

/* ---- the cache ---- */

/* An unbounded session has blocks for all that the frame in work may still add. */
static void fit(struct session *s, struct mt_engine *eng, struct mt_state_io *io)
{
    int64_t more = 0;

    if (s->phase == PHASE_ENCODE)
        more = mt_session_frame_tokens(s, eng) + (s->len ? 0 : s->n_prompt);
    if (s->phase == PHASE_PREFILL)
        more = s->n_feed - s->fed + s->opts.answer_tokens - 1;
    if (s->phase == PHASE_DECODE)
        more = s->opts.answer_tokens - s->n_answer;
    if (mt_session_fit(s, eng, s->len + more) < 0)
        mt_state_fail(io, -ENOSPC, "memory");
}

/* first: of the tokens stored behind the sinks, which may be more than this window has. */
static void visit_cache(struct session *s, struct mt_engine *eng, int64_t first,
                        struct mt_state_io *io)
{
    struct mt_kv_shape shape = mt_model_kv_shape(eng->m, eng->opts.block_tokens, eng->opts.kv_type);
    struct prefix *p = io->load ? s->prefix : NULL;
    int64_t sinks = s->policy.bounded ? s->policy.sinks : 0;
    int64_t n_sinks = s->len < sinks ? s->len : sinks, held = p ? p->written : 0;
    struct mt_kv_view view = {
        .blocks = s->blocks, .sinks = (int)sinks, .ring_blocks = s->ring_blocks};

    mt_state_kv(io, "the sinks", eng->be, eng->kv, &shape, &view, 0, n_sinks, held);
    mt_state_kv(io, "the window", eng->be, eng->kv, &shape, &view, first, s->len - first,
                first_seen(s, s->len) - first);
}

/* What a load left in shared blocks counts only once all of the file is accepted. */
static void share_sinks(struct session *s)
{
    int64_t n = s->len < s->policy.sinks ? s->len : s->policy.sinks;

    if (s->prefix && s->policy.bounded && n > s->prefix->written)
        s->prefix->written = n;
}

void mt_session_visit(struct session *s, struct mt_engine *eng, int64_t now, struct mt_state_io *io)
{
    int64_t first = first_seen(s, s->len);

    mt_ear_visit(s->ear, io);
    mt_talk_visit(s->talk, eng->m, io);
    mt_state_bool(io, "end of the call", &s->ended);
    mt_state_int(io, "frames skipped", &s->skipped, 0, INT_MAX);
    visit_age(io, "time heard last", &s->heard_ns, now);
    visit_age(io, "time of opening", &s->opened_ns, now);
    visit_frames(s, now, io);
    visit_work(s, eng, now, io);
    visit_answer(s, io);
    mt_state_i64(io, "tokens", &s->len, 0, TOKENS_MAX);
    mt_state_i64(io, "oldest token", &first, 0, s->len);
    if (!mt_state_ok(io))
        return;
    check_work(s, io);
    if (first > first_seen(s, s->len))
        mt_state_fail(io, -EPROTO, "the oldest token is %lld, expected %lld", (long long)first,
                      (long long)first_seen(s, s->len));
    if (io->load && mt_state_ok(io))
        fit(s, eng, io);
    if (mt_state_ok(io))
        visit_cache(s, eng, first, io);
}

/* ---- the engine's side ---- */

int mt_engine_save(struct mt_engine *eng, int64_t session, struct mt_state_io *io)
{
    struct session *s = mt_engine_find(eng, session);
    struct mt_kv_shape shape = mt_model_kv_shape(eng->m, eng->opts.block_tokens, eng->opts.kv_type);
    struct origin from;

    if (!s)
        return mt_state_fail(io, -ENOENT, "there is no session %lld", (long long)session);
    from = (struct origin){s->opts, s->policy, s->system};
    if (eng->be->ops->kv_get)
        mt_state_reserve(io, (size_t)((s->len - first_seen(s, s->len) + s->policy.sinks + 1) *
                                      (mt_kv_block_bytes(&shape) / shape.block_tokens)));
    visit_shape(eng, io);
    visit_origin(&from, io);
    mt_session_visit(s, eng, eng->clock->now_ns(eng->clock), io);
    return io->err.code;
}

int mt_engine_session(const struct mt_engine *eng, int64_t session, struct mt_session_facts *out)
{
    const struct session *s = mt_engine_find(eng, session);

    if (!s)
        return -ENOENT;
    *out = (struct mt_session_facts){s->phase == PHASE_IDLE ? s->begun : s->frame,
                                     s->policy.bounded ? s->policy.window : 0, s->opts.live};
    return 0;
}

/* The saved window and sinks are the session's, under the engine's ceiling. */
static void check_policy(const struct mt_engine *eng, const struct origin *from,
                         const struct mt_load_opts *o, struct mt_state_io *io)
{
    const struct mt_policy *p = &eng->opts.policy;

    if (!p->bounded && o->window)
        mt_state_fail(io, -EINVAL, "window: this server's cache is unbounded");
    else if (p->bounded && o->window > from->policy.window)
        mt_state_fail(io, -EINVAL, "window: %lld is above the %lld that the call was saved with",
                      (long long)o->window, (long long)from->policy.window);
    else if (p->bounded && !o->window && from->policy.window > p->window)
        mt_state_fail(io, -EINVAL,
                      "the call was saved with a window of %lld tokens, this server's is %lld "
                      "(\"window\" asks for a smaller one)",
                      (long long)from->policy.window, (long long)p->window);
}

static int make(struct session **out, struct mt_engine *eng, struct origin *from,
                const struct mt_load_opts *o, struct mt_state_io *io)
{
    struct mt_err why = {0};
    int rc;

    check_policy(eng, from, o, io);
    if (!mt_state_ok(io))
        return io->err.code;
    from->opts.has_seed = true;
    if (from->policy.bounded)
        from->opts.window = o->window ? o->window : from->policy.window;
    if ((rc = mt_session_new(out, eng, &from->opts, from->system, &why)) < 0)
        return mt_state_fail(io, rc, "%s", why.text);
    if (from->policy.bounded && (*out)->policy.sinks != from->policy.sinks)
        mt_state_fail(io, -EINVAL, "--kv: sinks=%lld when it was saved, %lld here",
                      (long long)from->policy.sinks, (long long)(*out)->policy.sinks);
    return io->err.code;
}

int mt_engine_load(struct mt_engine *eng, struct mt_state_io *io, const struct mt_load_opts *o,
                   int64_t *session, const char **reason, double *retry_s)
{
    int64_t now = eng->clock->now_ns(eng->clock);
    const char *why = mt_engine_closed_for(eng, now);
    struct origin from = {.policy.bounded = eng->opts.policy.bounded};
    struct session *s = NULL;

    /* What bursts, and is paced, are prompts: this one's is in its cache. */
    if (why && !(o->always ? eng->n < eng->opts.max_sessions : !strcmp(why, "pace")))
        return mt_engine_refuse(eng, why, reason, retry_s);
    if (o->id && o->id <= eng->next_id)
        mt_state_fail(io, -EPROTO, "session %lld stands behind %lld", (long long)o->id,
                      (long long)eng->next_id);
    visit_shape(eng, io);
    visit_origin(&from, io);
    if (mt_state_ok(io))
        make(&s, eng, &from, o, io);
    free(from.system);
    if (mt_state_ok(io) && mt_session_reserve(s, eng) < 0)
        mt_state_fail(io, -ENOSPC, "memory");
    if (mt_state_ok(io))
        mt_session_visit(s, eng, now - o->elapsed_ns, io);
    mt_state_end(io);
    if (!mt_state_ok(io) || !s) {
        mt_session_free(&s, eng);
        return io->err.code == -ENOSPC ? mt_engine_refuse(eng, "memory", reason, retry_s)
                                       : io->err.code;
    }
    share_sinks(s);
    s->id = eng->next_id = o->id ? o->id : eng->next_id + 1;
    eng->session[eng->n++] = s;
    if (s->phase != PHASE_IDLE || s->begun < s->completed || s->ended)
        mt_engine_list(eng, s);
    *session = s->id;
    return 0;
}

void mt_engine_visit(struct mt_engine *eng, struct mt_state_io *io)
{
    int64_t last = eng->next_id, start = eng->t_start, closed = eng->n_closed;
    int cap = eng->cap, most = eng->opts.max_sessions, gate = (int)eng->gate;
    bool draining = eng->draining;
    double closed_s = eng->closed_s;

    mt_state_i64(io, "last session", &last, io->load ? eng->next_id : 0, INT64_MAX - 1);
    mt_state_i64(io, "time of its start", &start, INT64_MIN, eng->clock->now_ns(eng->clock));
    mt_state_int(io, "cap", &cap, 0, INT_MAX);
    mt_state_int(io, "most sessions", &most, 1, INT_MAX);
    mt_state_int(io, "gate", &gate, MT_GATE_OPEN, MT_GATE_STALLED);
    mt_state_bool(io, "drain", &draining);
    mt_state_i64(io, "sessions closed", &closed, 0, INT64_MAX);
    mt_state_f64(io, "time of those", &closed_s);
    if (!io->load || !mt_state_ok(io))
        return;
    eng->next_id = last;
    eng->t_start = start;
    if (cap != most) /* somebody has set it */
        mt_engine_set_cap(eng, cap);
    eng->gate = (enum mt_gate)gate;
    eng->draining = draining;
    eng->n_closed = closed;
    eng->closed_s = closed_s;
}
