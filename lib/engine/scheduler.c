/*
 * scheduler.c: one pass over all sessions with work, earliest deadline first: begin frames that are
 * complete, encode some, run one ragged step of prefill and decoding, answer what is done.
 *
 * Where the backend has a side, and others have a step to run, frames are encoded beside that step,
 * and prefilled in the next; a frame that would wait for nobody's step is prefilled at once. Either
 * way a tick begins and ends with nothing under way, so that a session is whole between ticks.
 *
 * Whether a frame can be computed is decided when it begins: an unbounded session takes the blocks
 * of the whole frame then, or the frame stalls and nothing is computed for it. A bounded one has
 * them.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/session.h"

static int64_t now(const struct mt_engine *eng)
{
    return eng->clock->now_ns(eng->clock);
}

static double ms(int64_t ns)
{
    return (double)ns / 1e6;
}

/* The answer is whole. */
static void finish(struct mt_engine *eng, struct session *s, bool shortened)
{
    bool late = now(eng) > s->t_deadline;

    if (eng->opts.mode == MT_MODE_TURN && !mt_talk_flows(s->talk)) {
        /* The next turn's text begins afresh. */
        int n = mt_detok_flush(&s->detok, s->text + s->n_text, s->cap_text - s->n_text);
        s->n_text += n > 0 ? (size_t)n : 0;
    }
    s->skipped = 0;
    mt_engine_record(eng, s, late ? MT_LATE : MT_OK, late ? "deadline" : NULL, shortened);
}

/* ---- begin and encode ---- */

static bool begin_frames(struct mt_engine *eng)
{
    bool any = false;

    for (int i = 0; i < eng->n_busy; i++) {
        struct session *s = eng->busy[i];
        if (s->phase != PHASE_IDLE || s->begun == s->completed)
            continue;
        any = true;
        int64_t open = s->len ? 0 : s->n_prompt;
        if (mt_session_fit(s, eng, s->len + open + mt_session_frame_tokens(s, eng)) < 0) {
            mt_ear_skip(s->ear);
            s->taken++;
            s->skipped++;
            mt_engine_record_unbegun(eng, s, MT_STALLED, "memory");
            continue;
        }
        s->frame = s->begun++;
        s->t_due = s->due_ns[s->frame % s->due_cap];
        s->t_deadline = s->t_due + eng->opts.deadline_ns;
        s->n_answer = s->fed = 0;
        s->n_text = 0;
        s->phase = PHASE_ENCODE;
    }
    return any;
}

static int by_deadline(const void *a, const void *b)
{
    const struct session *x = *(struct session *const *)a, *y = *(struct session *const *)b;

    if (x->t_deadline != y->t_deadline)
        return x->t_deadline < y->t_deadline ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static int collect(struct mt_engine *eng)
{
    int n = 0;

    for (int i = 0; i < eng->n_busy; i++)
        if (eng->busy[i]->phase != PHASE_IDLE)
            eng->order[n++] = eng->busy[i];
    qsort(eng->order, (size_t)n, sizeof(struct session *), by_deadline);
    return n;
}

/* No more in one pass than a step can take: the others' decoding goes on in between. */
static int encode_at_once(const struct mt_engine *eng)
{
    int n = eng->opts.step_tokens / mt_ear_rows_max(eng->m, (int)eng->plan.frame_samples);

    return n < 1 ? 1 : n;
}

/* Whose frames are encoded in this tick. */
static int pick(struct mt_engine *eng, int n)
{
    int k = 0, most = encode_at_once(eng);

    for (int i = 0; i < n && k < most; i++)
        if (eng->order[i]->phase == PHASE_ENCODE) {
            eng->ears[k] = eng->order[i]->ear;
            eng->encoded[k++] = eng->order[i];
        }
    return k;
}

static void side(const struct mt_engine *eng, enum mt_side what)
{
    if (eng->aside)
        eng->be->ops->side(eng->be, what);
}

/* On a side this only queues it: what it comes to is there behind encoded(). */
static int encode(struct mt_engine *eng, int k)
{
    int64_t t0 = now(eng);

    side(eng, MT_SIDE_ON);
    int rc = mt_model_encode(eng->m, eng->ears, k);
    side(eng, MT_SIDE_OFF);
    for (int i = 0; i < k; i++) {
        eng->encoded[i]->taken++;
        eng->encoded[i]->t_begin = t0;
    }
    return rc;
}

static void encoded(struct mt_engine *eng, int k, int rc)
{
    int64_t t1 = now(eng);
    int rows;

    side(eng, MT_SIDE_JOIN);
    for (int i = 0; i < k; i++) {
        struct session *s = eng->encoded[i];
        s->t_encoded = t1;
        if (rc < 0) {
            mt_engine_record(eng, s, MT_FAILED, "encoder", false);
            continue;
        }
        mt_ear_rows(s->ear, &rows);
        mt_session_feed(s, rows);
        s->phase = PHASE_PREFILL;
    }
}

/* ---- a step ---- */

struct plan {
    int rows, runs, audio, want;
};

/* Put n tokens of the feed into the step; the last one of a feed wants logits. */
static void add_prefill(struct mt_engine *eng, struct plan *p, struct session *s, int n)
{
    int from = s->fed, to = s->fed + n;
    int a = from > s->audio_at ? from : s->audio_at;
    int b = to < s->audio_at + s->audio_rows ? to : s->audio_at + s->audio_rows;

    memcpy(eng->ids + p->rows, s->feed + from, (size_t)n * sizeof(*eng->ids));
    if (b > a) {
        int rows;
        eng->audio[p->audio++] = (struct mt_audio_rows){
            p->rows + a - from, b - a, mt_rows_from(mt_ear_rows(s->ear, &rows), a - s->audio_at)};
    }
    eng->runs[p->runs++] = (struct mt_run){p->rows, n, s->len, mt_session_view(s, n)};
    p->rows += n;
    s->fed += n;
    s->len += n;
    if (s->fed == s->n_feed) {
        eng->want[p->want] = p->rows - 1;
        eng->want_of[p->want++] = s;
    }
}

static void add_decode(struct mt_engine *eng, struct plan *p, struct session *s)
{
    eng->ids[p->rows] = s->next;
    eng->runs[p->runs++] = (struct mt_run){p->rows, 1, s->len, mt_session_view(s, 1)};
    eng->want[p->want] = p->rows++;
    eng->want_of[p->want++] = s;
    s->len++;
}

static struct plan plan_step(struct mt_engine *eng, int n)
{
    struct plan p = {0};
    int budget = eng->opts.step_tokens,
        want_max = budget < eng->opts.max_sessions ? budget : eng->opts.max_sessions;

    for (int i = 0; i < n && p.rows < budget; i++) {
        struct session *s = eng->order[i];
        if (s->phase == PHASE_DECODE && p.want < want_max) {
            add_decode(eng, &p, s);
        } else if (s->phase == PHASE_PREFILL) {
            mt_session_skip(s);
            int left = s->n_feed - s->fed, room = budget - p.rows;
            int take = left < (int)eng->plan.step_max ? left : (int)eng->plan.step_max;
            take = take < room ? take : room;
            if (take == left && p.want == want_max)
                take--; /* its logits must wait for the next step */
            if (take > 0)
                add_prefill(eng, &p, s, take);
        }
    }
    return p;
}

/* Would one more token of a live session make its answer late? Then what there is must do. */
static bool must_shorten(const struct mt_engine *eng, const struct session *s, int64_t t)
{
    return s->opts.live && t + eng->last_step_ns > s->t_deadline;
}

static void sample(struct mt_engine *eng, struct mt_rows logits, int n)
{
    for (int i = 0; i < n; i++) {
        struct session *s = eng->want_of[i];
        eng->params[i] = (struct mt_sample){.temperature = s->opts.temperature,
                                            .top_k = s->opts.top_k,
                                            .top_p = s->opts.top_p,
                                            .seed = s->opts.seed,
                                            .draw = s->draws++};
        mt_talk_rules(s->talk, &eng->params[i]);
        eng->talks[i] = s->talk;
    }
    eng->be->ops->sample(eng->be, logits, eng->params, eng->sampled, n);
    for (int i = 0; i < n; i++)
        if (eng->sampled[i] >= 0)
            eng->said[i] = mt_talk_drawn(eng->talks[i], eng->sampled[i]);
        else
            eng->talks[i] = NULL;
    mt_model_speak(eng->m, eng->talks, eng->params, n);
}

/* The tokens of a step join their answers; those that are whole go out. */
static void answer(struct mt_engine *eng, int n)
{
    int64_t t = now(eng);

    for (int i = 0; i < n; i++) {
        struct session *s = eng->want_of[i];
        if (s->phase == PHASE_PREFILL) {
            s->t_first = t;
            s->phase = PHASE_DECODE;
        }
        if (eng->sampled[i] < 0) { /* a checkpoint whose numbers overflow */
            mt_engine_record(eng, s, MT_FAILED, "logits are not numbers", false);
            continue;
        }
        mt_session_answer(s, eng, eng->sampled[i], eng->said[i]);
        if (eng->said[i].end || s->n_answer == s->opts.answer_tokens)
            finish(eng, s, false);
        else if (must_shorten(eng, s, t))
            finish(eng, s, true);
    }
}

/* With k frames encoded beside it: the step is under way when the host hears them. */
static void step(struct mt_engine *eng, const struct plan *p, int k)
{
    struct mt_rows logits;
    int rc = 0;

    if (p->rows == 0)
        return;
    struct mt_step st = {
        .batch = {p->rows, p->runs, eng->runs},
        .ids = eng->ids,
        .audio = eng->audio,
        .n_audio = p->audio,
        .want = eng->want,
        .n_want = p->want,
    };
    int64_t t0 = now(eng);
    /* Its only failure is a step beyond the sizes given at open, which plan_step keeps. */
    mt_model_step(eng->m, eng->kv, &st, &logits);
    if (k > 0)
        rc = encode(eng, k);
    sample(eng, logits, p->want);
    answer(eng, p->want);
    if (k > 0)
        encoded(eng, k, rc);
    eng->last_step_ns = now(eng) - t0;
    eng->stats.steps++;
    eng->stats.rows += p->rows;
}

/* ---- leaving ---- */

static bool has_work(const struct session *s)
{
    return s->phase != PHASE_IDLE || s->begun < s->completed;
}

static bool is_stalled(const struct mt_engine *eng, const struct session *s)
{
    return eng->opts.close_stalled && s->skipped >= eng->opts.close_stalled;
}

/* Close those that are done, forget those that wait for audio. True if any was closed. */
static bool leave(struct mt_engine *eng)
{
    int gone = 0, kept = 0;

    for (int i = 0; i < eng->n_busy; i++) {
        struct session *s = eng->busy[i];

        if (is_stalled(eng, s) || (s->ended && !has_work(s)))
            eng->order[gone++] = s;
        s->listed = is_stalled(eng, s) || s->ended || has_work(s);
        if (s->listed)
            eng->busy[kept++] = s;
    }
    eng->n_busy = kept;
    for (int i = 0; i < gone; i++)
        mt_engine_close(eng, eng->order[i]->id, is_stalled(eng, eng->order[i]) ? "stalled" : "end");
    return gone > 0;
}

/* Close those that were silent for too long; looks at all, but only when one of them may be. */
static bool leave_idle(struct mt_engine *eng)
{
    int64_t t, next;
    bool any = false;

    if (!eng->opts.idle_ns || (t = now(eng)) <= eng->idle_check_ns)
        return false;
    next = t + eng->opts.idle_ns;
    for (int i = eng->n - 1; i >= 0; i--) {
        struct session *s = eng->session[i];
        int64_t until = s->heard_ns + eng->opts.idle_ns;

        if (until < t && !has_work(s)) {
            mt_engine_close(eng, s->id, "idle");
            any = true;
        } else if (until < next) {
            next = until;
        }
    }
    eng->idle_check_ns = next;
    return any;
}

bool mt_engine_tick(struct mt_engine *eng)
{
    bool began = begin_frames(eng);
    int n = collect(eng), k = pick(eng, n);
    struct plan p = {0};

    if (k > 0 && eng->aside) {
        side(eng, MT_SIDE_FORK);
        p = plan_step(eng, n);
    }
    if (p.rows == 0) { /* nothing to be beside */
        if (k > 0)
            encoded(eng, k, encode(eng, k));
        p = plan_step(eng, n);
        k = 0;
    }
    step(eng, &p, k);
    bool left = leave(eng), idle = leave_idle(eng);
    return left || idle || began || n > 0;
}

void mt_engine_stats(struct mt_engine *eng, struct mt_engine_stats *out)
{
    int64_t t = now(eng), oldest = t;

    *out = eng->stats;
    for (int i = 0; i < eng->n_busy; i++) {
        const struct session *s = eng->busy[i];
        int in_work = s->phase != PHASE_IDLE;
        out->pending += in_work + (int)(s->completed - s->begun);
        if (in_work && s->t_due < oldest)
            oldest = s->t_due;
        else if (s->begun < s->completed && s->due_ns[s->begun % s->due_cap] < oldest)
            oldest = s->due_ns[s->begun % s->due_cap];
    }
    out->t_s = (double)(t - eng->t_start) / 1e9;
    out->sessions = eng->n;
    out->cap = eng->cap;
    out->oldest_ms = ms(t - oldest);
    out->blocks = mt_pool_size(eng->pool);
    out->blocks_used = mt_pool_used(eng->pool);
    out->pool = (double)out->blocks_used / (double)out->blocks;
    out->draining = eng->draining;
    out->closed = eng->n_closed;
    out->closed_s = eng->closed_s;
}
