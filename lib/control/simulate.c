/*
 * simulate.c: a heap of events (a call arrives, a frame is complete) against the engine's ticks.
 *
 * Ticks advance the clock by what their steps cost. Events that fell into a tick are told to the
 * engine after it with the times at which they happened, as a live server's I/O thread does; when
 * nobody has work the clock jumps to the next event.
 */
#include "control/simulate.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct event {
    int64_t t;    /* ns */
    int64_t call; /* number from 0 */
    int64_t left; /* frames still to be said; -1: the call arrives */
    int64_t session;
    int64_t said; /* samples */
};

struct sim {
    const struct mt_sim_opts *o;
    struct mt_model *m;
    struct mt_engine *eng;
    struct mt_clock clock;
    struct event *heap;
    int64_t n, cap;
    float *pcm; /* a frame; silence, unless somebody says otherwise */
    int64_t frame_samples, frame_ns, begin_ns, end_ns;
};

static int64_t now(struct sim *s)
{
    return s->clock.now_ns(&s->clock);
}

/* Seconds since the beginning. */
static double since(const struct sim *s, int64_t t)
{
    return (double)(t - s->begin_ns) / 1e9;
}

/* ---- the heap: earliest first, then the earlier call ---- */

static bool before(const struct event *a, const struct event *b)
{
    return a->t != b->t ? a->t < b->t : a->call < b->call;
}

static int push(struct sim *s, struct event e)
{
    int64_t i = s->n;

    if (s->n == s->cap) {
        int64_t cap = s->cap ? 2 * s->cap : 256;
        struct event *grown = realloc(s->heap, mt_mul((size_t)cap, sizeof(*grown)));
        if (!grown)
            return -ENOMEM;
        s->heap = grown;
        s->cap = cap;
    }
    for (s->n++; i > 0 && before(&e, &s->heap[(i - 1) / 2]); i = (i - 1) / 2)
        s->heap[i] = s->heap[(i - 1) / 2];
    s->heap[i] = e;
    return 0;
}

static struct event pop(struct sim *s)
{
    struct event top = s->heap[0], last = s->heap[--s->n];
    int64_t i = 0;

    for (int64_t child = 1; child < s->n; child = 2 * i + 1) {
        if (child + 1 < s->n && before(&s->heap[child + 1], &s->heap[child]))
            child++;
        if (!before(&s->heap[child], &last))
            break;
        s->heap[i] = s->heap[child];
        i = child;
    }
    if (s->n > 0)
        s->heap[i] = last;
    return top;
}

/* ---- events ---- */

static void on_frame(void *ctx, const struct mt_record *r)
{
    const struct sim *s = ctx;

    if (s->o->frame)
        s->o->frame(s->o->ctx, r);
}

static int64_t ns(double s)
{
    return s < 9e9 ? llround(s * 1e9) : INT64_MAX;
}

static int arrive(struct sim *s, const struct event *e, struct mt_err *err)
{
    const struct mt_sim_opts *o = s->o;
    struct mt_session_opts so;
    double retry, t = since(s, e->t);
    const char *reason;
    int64_t session;
    int rc;

    if (e->call + 1 < o->sessions) {
        struct event next = {e->t + ns(o->gap_s(o->ctx, e->call + 1)), e->call + 1, -1, 0, 0};
        if (next.t < s->end_ns && push(s, next) < 0)
            return -ENOMEM;
    }
    mt_session_defaults(&so);
    if (o->session)
        so = *o->session;
    so.live = o->live;
    so.has_seed = true;
    so.seed = o->engine.seed + (uint64_t)e->call;
    rc = mt_engine_open(s->eng, &so, &session, &reason, &retry, err);
    if (rc == -EAGAIN) {
        if (o->refused)
            o->refused(o->ctx, e->call, t, reason);
        return 0;
    }
    if (rc < 0)
        return rc;
    double frames = floor(o->length_s(o->ctx, e->call, t) / ((double)s->frame_ns / 1e9));
    int64_t left = frames < 1e15 ? (int64_t)frames : INT64_MAX;
    if (left < 1)
        return mt_engine_end(s->eng, session, e->t);
    /*
     * Calls begin to speak on a grid of the beat, each at its own place on it; a frame later the
     * first is whole.
     */
    double beat = (double)s->frame_ns, at = o->phase(o->ctx, e->call) * beat;
    double spoken = ceil(((double)(e->t - s->begin_ns) - at) / beat) * beat + at;
    int64_t first = s->begin_ns + llround(spoken) + s->frame_ns;
    return push(s, (struct event){first, e->call, left, session, 0});
}

static int speak(struct sim *s, struct event *e)
{
    int64_t at = e->said % s->frame_samples, left = s->frame_samples - at, took;

    if (s->o->sound)
        s->o->sound(s->o->ctx, e->call, e->said / s->frame_samples, s->pcm, s->frame_samples);
    took = mt_engine_audio(s->eng, e->session, s->pcm + at, left, e->t);
    if (took == -ENOENT)
        return 0; /* the engine closed it */
    e->said += took > 0 ? took : 0;
    if (took < left) {
        /* A caller that can wait does so until there is room. */
        e->t += s->frame_ns / 100 + 1;
        return push(s, *e);
    }
    if (--e->left == 0)
        return mt_engine_end(s->eng, e->session, e->t);
    e->t += s->frame_ns;
    return push(s, *e);
}

/* Tell the engine what has happened by now. */
static int catch_up(struct sim *s, struct mt_err *err)
{
    int rc = 0;

    while (rc == 0 && s->n > 0 && s->heap[0].t <= now(s)) {
        struct event e = pop(s);
        rc = e.left < 0 ? arrive(s, &e, err) : speak(s, &e);
    }
    return rc;
}

static int run(struct sim *s, struct mt_err *err)
{
    int rc = push(s, (struct event){s->begin_ns, 0, -1, 0, 0});

    if (s->o->tick)
        s->o->tick(s->o->ctx, s->eng, 0);
    while (rc == 0 && (rc = catch_up(s, err)) == 0) {
        if (now(s) >= s->end_ns || (s->o->stop && *s->o->stop))
            break;
        bool worked = mt_engine_tick(s->eng);
        if (s->o->tick)
            s->o->tick(s->o->ctx, s->eng, since(s, now(s)));
        if (worked)
            continue;
        if (s->n == 0)
            break;
        int64_t next = s->heap[0].t;
        s->clock.sleep_until_ns(&s->clock, next < s->end_ns ? next : s->end_ns);
    }
    return rc;
}

void mt_sim_shape(struct mt_cost_model *c, const struct mt_shape *shape, int64_t frame_ns)
{
    snprintf(c->name, sizeof(c->name), "%.63s", shape->name);
    c->layers = shape->layers;
    c->kv_heads = shape->kv_heads;
    c->head_dim = shape->head_dim;
    c->beat_s = shape->frame_s;
    c->audio_rows_s =
        mt_shape_audio_rate(shape, frame_ns ? (double)frame_ns / 1e9 : shape->frame_s);
}

/* The times of a call begin when the model is warm. */
static int begin(struct sim *s, struct mt_err *e)
{
    const struct mt_engine_plan *plan = mt_engine_plan(s->eng);
    int64_t end = ns(s->o->seconds), rc = 0;

    s->frame_samples = plan->frame_samples;
    s->frame_ns = llround(plan->frame_s * 1e9);
    if (!(s->pcm = calloc((size_t)s->frame_samples, sizeof(*s->pcm))))
        return -ENOMEM;
    if (s->o->model && (rc = mt_engine_warm(s->eng)) < 0)
        return mt_err_set(e, (int)rc, "the model can't answer a frame of silence");
    s->begin_ns = now(s);
    s->end_ns = end < INT64_MAX - s->begin_ns ? s->begin_ns + end : INT64_MAX;
    return 0;
}

int mt_simulate(const struct mt_sim_opts *o, struct mt_engine_stats *out, struct mt_err *e)
{
    struct sim s = {.o = o, .m = o->model};
    struct mt_engine_opts eo = o->engine;
    int rc = 0;

    s.clock = o->model ? mt_clock_working(0) : mt_clock_virtual(0);
    eo.events = (struct mt_engine_events){.ctx = &s, .frame = on_frame};
    if (!o->model)
        rc = mt_model_open_cost(&s.m, &o->cost, &s.clock, e);
    if (rc == 0)
        rc = mt_engine_new(&s.eng, s.m, &eo, &s.clock, e);
    if (rc == 0)
        rc = begin(&s, e);
    if (rc == 0)
        rc = run(&s, e);
    if (s.eng)
        mt_engine_stats(s.eng, out);
    if (rc == -ENOMEM)
        mt_err_set(e, rc, "out of memory");
    mt_engine_free(&s.eng);
    if (!o->model)
        mt_model_close(&s.m);
    free(s.pcm);
    free(s.heap);
    return rc;
}
