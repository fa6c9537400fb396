/*
 * playout.c: the listener. The schedule is fixed, one frame after another: a conversation must stay
 * on its beat, so an answer that comes late is heard from then to the end of its own place, and
 * never pushes the next one back. A frame that was skipped, or is said to be ok with nothing
 * decoded, is silence for its whole place.
 */
#include "control/playout.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { REORDER = 64, SESSIONS_MAX = 1000000 };

/* What is left of a record while it waits for those before it. */
struct slot {
    bool used, silent, untruthful;
    double late_s; /* after it was due; 0: in time */
    double frame_s;
};

struct listener {
    char *name;
    double frame_s;      /* as the server said, 0: it did not */
    double last_frame_s; /* what a missing one is taken to last */
    bool begun;
    int64_t next;       /* the frame to play */
    struct slot *slots; /* frame k in k % REORDER, next <= k < next + REORDER; made at need */
    int64_t held;
    double gap_s; /* the silence that goes on; 0: sound */
    struct mt_playout_sums sums;
};

struct mt_playout {
    double frame_s, buffer_s;
    json_t *index; /* name to number */
    struct listener **listeners;
    size_t n, cap;
    int64_t refused;
};

int mt_playout_new(struct mt_playout **out, double frame_s, double buffer_s)
{
    struct mt_playout *p = calloc(1, sizeof(*p));

    *out = p;
    if (!p)
        return -ENOMEM;
    p->frame_s = frame_s;
    p->buffer_s = buffer_s;
    p->index = json_object();
    if (p->index)
        return 0;
    mt_playout_free(out);
    return -ENOMEM;
}

void mt_playout_free(struct mt_playout **pp)
{
    struct mt_playout *p = *pp;

    *pp = NULL;
    if (!p)
        return;
    for (size_t i = 0; i < p->n; i++) {
        free(p->listeners[i]->slots);
        free(p->listeners[i]->name);
        free(p->listeners[i]);
    }
    free(p->listeners);
    json_decref(p->index);
    free(p);
}

/* NULL without memory or with too many. */
static struct listener *find(struct mt_playout *p, const char *name)
{
    json_t *at = json_object_get(p->index, name);
    struct listener *l;

    if (at)
        return p->listeners[json_integer_value(at)];
    if (p->n == SESSIONS_MAX)
        return NULL;
    if (p->n == p->cap) {
        size_t cap = p->cap ? p->cap * 2 : 64;
        struct listener **bigger = realloc(p->listeners, mt_mul(cap, sizeof(void *)));

        if (!bigger)
            return NULL;
        p->listeners = bigger;
        p->cap = cap;
    }
    l = calloc(1, sizeof(*l));
    if (!l || !(l->name = strdup(name)) ||
        json_object_set_new(p->index, name, json_integer((json_int_t)p->n)) < 0) {
        if (l)
            free(l->name);
        free(l);
        return NULL;
    }
    p->listeners[p->n++] = l;
    return l;
}

static void end_gap(struct listener *l)
{
    if (l->gap_s <= 0)
        return;
    l->sums.gaps++;
    l->sums.longest_gap_s = fmax(l->sums.longest_gap_s, l->gap_s);
    l->gap_s = 0;
}

static void silence(struct listener *l, double s)
{
    l->gap_s += s;
    l->sums.gap_s += s;
}

/* The next frame's place passes; NULL: nobody said anything about it. */
static void play(struct listener *l, const struct slot *s)
{
    struct mt_playout_sums *u = &l->sums;
    double late;

    l->next++;
    u->frames++;
    if (!s || s->silent) {
        u->silent++;
        u->missing += !s;
        u->untruthful += s && s->untruthful;
        silence(l, s ? s->frame_s : l->last_frame_s);
        return;
    }
    u->heard++;
    late = fmin(s->late_s, s->frame_s);
    if (late > 0) {
        u->underruns++;
        u->underrun_s += late;
        u->longest_underrun_s = fmax(u->longest_underrun_s, late);
        silence(l, late);
    }
    if (late < s->frame_s)
        end_gap(l);
}

static struct slot *waiting(struct listener *l, int64_t frame)
{
    struct slot *s = l->slots ? &l->slots[frame % REORDER] : NULL;

    return s && s->used ? s : NULL;
}

/* The next frame, as it is held or is not. */
static void play_next(struct listener *l)
{
    struct slot *s = waiting(l, l->next);

    play(l, s);
    if (!s)
        return;
    s->used = false;
    l->held--;
}

/* Frames up to (not including) `frame` have had their time. */
static void play_until(struct listener *l, int64_t frame)
{
    while (l->next < frame && l->held > 0)
        play_next(l);
    if (l->next < frame) {
        /* Nothing is held: a hole of any size, in one step. */
        int64_t hole = frame - l->next;

        l->next = frame;
        l->sums.frames += hole;
        l->sums.silent += hole;
        l->sums.missing += hole;
        silence(l, (double)hole * l->last_frame_s);
    }
}

int mt_playout_frame_length(struct mt_playout *p, const char *session, double frame_s)
{
    struct listener *l = find(p, session);

    if (!l)
        return -ENOMEM;
    if (frame_s > 0 && isfinite(frame_s))
        l->frame_s = frame_s;
    return 0;
}

static double frame_length(const struct mt_playout *p, const struct listener *l,
                           const struct mt_playout_frame *f)
{
    if (l->frame_s > 0)
        return l->frame_s;
    if (p->frame_s > 0)
        return p->frame_s;
    if (isfinite(f->deadline_ms) && f->deadline_ms > 0)
        return f->deadline_ms / 1e3;
    return l->last_frame_s;
}

int mt_playout_add(struct mt_playout *p, const struct mt_playout_frame *f)
{
    struct slot s = {.used = true};
    struct listener *l;

    if (f->status == MT_REFUSED) {
        p->refused++;
        return 0;
    }
    l = find(p, f->session);
    if (!l)
        return -ENOMEM;
    if (!l->begun) {
        /* Whoever comes into a running call hears it from there. */
        l->begun = true;
        l->next = f->frame;
    }
    if (f->frame < l->next || (f->frame - l->next < REORDER && waiting(l, f->frame))) {
        l->sums.repeated++;
        return 0;
    }
    l->last_frame_s = frame_length(p, l, f);
    s.frame_s = l->last_frame_s;
    s.untruthful = mt_status_untruthful(f->status, f->tokens_out);
    s.silent = s.untruthful || (f->status != MT_OK && f->status != MT_LATE);
    s.late_s = f->delay_ms / 1e3 - (isfinite(p->buffer_s) ? p->buffer_s : f->deadline_ms / 1e3);
    s.late_s = isfinite(s.late_s) ? fmax(0, s.late_s) : 0;
    if (f->frame - l->next >= REORDER)
        play_until(l, f->frame - REORDER + 1);
    if (f->frame == l->next) {
        play(l, &s);
    } else {
        if (!l->slots && !(l->slots = calloc(REORDER, sizeof(*l->slots))))
            return -ENOMEM;
        l->slots[f->frame % REORDER] = s;
        l->held++;
    }
    while (l->held > 0 && waiting(l, l->next))
        play_next(l);
    return 0;
}

void mt_playout_end(struct mt_playout *p)
{
    for (size_t i = 0; i < p->n; i++) {
        struct listener *l = p->listeners[i];

        while (l->held > 0)
            play_next(l);
        end_gap(l);
    }
}

const char *mt_playout_session(const struct mt_playout *p, size_t i, struct mt_playout_sums *out)
{
    if (i >= p->n)
        return NULL;
    *out = p->listeners[i]->sums;
    return p->listeners[i]->name;
}

void mt_playout_total(const struct mt_playout *p, struct mt_playout_sums *out)
{
    memset(out, 0, sizeof(*out));
    out->refused = p->refused;
    for (size_t i = 0; i < p->n; i++) {
        const struct mt_playout_sums *s = &p->listeners[i]->sums;

        out->frames += s->frames;
        out->heard += s->heard;
        out->silent += s->silent;
        out->untruthful += s->untruthful;
        out->missing += s->missing;
        out->repeated += s->repeated;
        out->gaps += s->gaps;
        out->underruns += s->underruns;
        out->gap_s += s->gap_s;
        out->underrun_s += s->underrun_s;
        out->longest_gap_s = fmax(out->longest_gap_s, s->longest_gap_s);
        out->longest_underrun_s = fmax(out->longest_underrun_s, s->longest_underrun_s);
    }
}
