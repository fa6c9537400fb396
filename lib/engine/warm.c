/*
 * warm.c: one frame of silence through encoder, prefill and decoding, of a call that is nobody's:
 * it has no record, no number, and is counted nowhere. The first frame of a process pays for cold
 * pages and caches; this one pays before anybody waits for it. It is given up when it is late: how
 * late does not matter, and an answer may be allowed to be very long.
 */
#include "engine/session.h"

#include <errno.h>
#include <stdlib.h>

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
    eng->opts.events = events;
    eng->stats = *stats;
    eng->n_closed = n_closed;
    eng->closed_s = closed_s;
    free(stats);
    if (rc < 0)
        return rc;
    return v.latency_ns < 0 ? -EIO : v.latency_ns;
}
