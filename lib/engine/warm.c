/*
 * warm.c: one frame of silence through encoder, prefill and decoding, of a call that is nobody's:
 * it has no record, no number, and is counted nowhere. The first frame of a process pays for cold
 * pages and caches; this one pays before anybody waits for it. It is given up when it is late: how
 * late does not matter, and an answer may be allowed to be very long.
 *
 * A backend that keeps steps (rows_bucket) is then shown those that only decode, of all sizes that
 * it tells apart and as far back as a full window: else it would learn them in a call.
 */
#include "engine/session.h"

#include <errno.h>
#include <stdlib.h>

enum {
    SHOWN = 2,   /* times: what comes again is kept */
    EDGE = 4096, /* a window that ends here touches most pieces of whatever size it is cut into */
};
#define SHOW_NS (10 * MT_NS_PER_S) /* what it may take; the rest is learned in calls */

struct verdict {
    int64_t latency_ns; /* -1: nothing was computed */
};

static void on_frame(void *ctx, const struct mt_record *r)
{
    struct verdict *v = ctx;

    if (r->status == MT_OK || r->status == MT_LATE || r->status == MT_DROPPED)
        v->latency_ns = (int64_t)(r->latency_ms * 1e6);
}

static int begin(struct mt_engine *eng)
{
    struct mt_session_opts o;
    struct session *s;
    int rc;

    mt_session_defaults(&o);
    if ((rc = mt_session_new(&s, eng, &o, eng->opts.system, NULL)) < 0)
        return rc;
    if ((rc = mt_session_reserve(s, eng)) < 0) {
        mt_session_free(&s, eng);
        return rc;
    }
    s->id = eng->next_id + 1;
    s->heard_ns = s->opened_ns = eng->clock->now_ns(eng->clock);
    eng->session[eng->n++] = s;
    return 0;
}

static int run(struct mt_engine *eng)
{
    int64_t id = eng->session[0]->id, n = eng->plan.frame_samples, sent = 0, took = 1;
    int64_t t = eng->clock->now_ns(eng->clock);
    float *silence = mt_alloc((size_t)n, sizeof(*silence));

    while (silence && sent < n && took > 0) {
        took = mt_engine_audio(eng, id, silence + sent, n - sent, t);
        sent += took > 0 ? took : 0;
    }
    free(silence);
    if (sent < n || mt_engine_end(eng, id, t) < 0)
        return -ENOMEM;
    while (eng->n > 0 && eng->clock->now_ns(eng->clock) - t <= eng->opts.deadline_ns &&
           mt_engine_tick(eng))
        ;
    return 0;
}

/* n sessions decode the same token at the same place; what they say is nobody's. */
static void show_step(struct mt_engine *eng, const struct mt_run *run, int n)
{
    struct mt_rows logits;
    struct mt_step st = {
        .batch = {n, n, eng->runs}, .ids = eng->ids, .want = eng->want, .n_want = n};

    for (int i = 0; i < n; i++) {
        eng->runs[i] = *run;
        eng->runs[i].row = eng->want[i] = i;
        eng->ids[i] = 0;
        eng->params[i] = (struct mt_sample){.top_p = 1};
    }
    if (mt_model_step(eng->m, eng->kv, &st, &logits) == 0)
        eng->be->ops->sample(eng->be, logits, eng->params, eng->sampled, n);
}

static void show_steps(struct mt_engine *eng)
{
    struct session *s = eng->session[0];
    int64_t t = eng->clock->now_ns(eng->clock);
    int most = eng->opts.step_tokens < eng->opts.max_sessions ? eng->opts.step_tokens
                                                              : eng->opts.max_sessions;

    if (mt_session_fit(s, eng, s->n_prompt + mt_session_frame_tokens(s, eng)) < 0)
        return;
    struct mt_run run = {.n = 1, .view = mt_session_view(s, 0)};
    int64_t full = s->policy.sinks + (int64_t)s->ring_blocks * eng->opts.block_tokens;
    run.index = s->policy.bounded ? (full + EDGE - 1) / EDGE * EDGE
                                  : s->n_blocks * eng->opts.block_tokens - 1;
    for (int n = 0; n < most && eng->clock->now_ns(eng->clock) - t <= SHOW_NS;) {
        n = eng->be->ops->rows_bucket(eng->be, n + 1);
        n = n < most ? n : most; /* also the last one, which is filled up to no more */
        for (int k = 0; k < SHOWN; k++)
            show_step(eng, &run, n);
    }
}

int64_t mt_engine_warm(struct mt_engine *eng)
{
    struct mt_engine_events events = eng->opts.events;
    struct mt_engine_stats *stats;
    struct verdict v = {-1};
    int64_t n_closed = eng->n_closed, rc;
    double closed_s = eng->closed_s;

    if (eng->n > 0)
        return -EBUSY;
    if (!(stats = malloc(sizeof(*stats))))
        return -ENOMEM;
    *stats = eng->stats;
    eng->opts.events = (struct mt_engine_events){.ctx = &v, .frame = on_frame};
    rc = begin(eng);
    if (rc == 0)
        rc = run(eng);
    if (eng->n > 0)
        mt_engine_close(eng, eng->session[0]->id, "end");
    /* Where a position is more than its text there is nothing to show a step by. */
    if (rc == 0 && eng->be->ops->rows_bucket && !eng->shown &&
        mt_model_info(eng->m)->codebooks == 0 && begin(eng) == 0) {
        show_steps(eng);
        eng->shown = true;
        mt_engine_close(eng, eng->session[0]->id, "end");
    }
    eng->opts.events = events;
    eng->stats = *stats;
    eng->n_closed = n_closed;
    eng->closed_s = closed_s;
    free(stats);
    if (rc < 0)
        return rc;
    return v.latency_ns < 0 ? -EIO : v.latency_ns;
}
