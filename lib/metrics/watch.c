/*
 * watch.c: what only shows over time: when the pool will be full, by the live fit of mt-predict,
 * and how many are turned away a second. One look per frame, as a watcher of the records has it.
 */
#include "metrics/metrics.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#define WINDOW_S 60
#define BATCH_S  10
/* Looks after a session came in which its first frame's prompt may show. */
#define NEW_LOOKS 3

struct mt_metrics_watch {
    bool bounded;
    struct mt_live *live;
    int sessions, fresh;
    bool any;
    double t_s, refused, refused_per_s;
};

int mt_metrics_watch_new(struct mt_metrics_watch **out, const struct mt_metrics_facts *f)
{
    struct mt_metrics_watch *w = calloc(1, sizeof(*w));

    *out = NULL;
    if (!w || mt_live_open(&w->live, WINDOW_S, BATCH_S) < 0) {
        free(w);
        return -ENOMEM;
    }
    w->bounded = f->n_mem > 0;
    mt_live_beat(w->live, f->frame_s);
    *out = w;
    return 0;
}

void mt_metrics_watch_free(struct mt_metrics_watch **w)
{
    if (*w)
        mt_live_close(&(*w)->live);
    free(*w);
    *w = NULL;
}

/* A mean that forgets in a minute. */
static void count_refused(struct mt_metrics_watch *w, const struct mt_wire_state *s)
{
    double refused = 0, dt = s->status.t_s - w->t_s, now;

    for (int i = 0; i < MT_REFUSALS; i++)
        refused += (double)s->refused[i];
    if (w->any && dt > 0) {
        now = (refused - w->refused) / dt;
        w->refused_per_s += (now - w->refused_per_s) * -expm1(-dt / WINDOW_S);
    }
    w->refused = refused;
}

void mt_metrics_watch_look(struct mt_metrics_watch *w, const struct mt_wire_state *s)
{
    if (s->since_ns == 0)
        return;
    count_refused(w, s);
    if (s->status.sessions > w->sessions)
        w->fresh = NEW_LOOKS;
    if (w->fresh > 0 && w->fresh--)
        mt_live_newcomer(w->live);
    mt_live_add(w->live, s->status.t_s, s->status.pool, s->status.sessions);
    w->sessions = s->status.sessions;
    w->t_s = s->status.t_s;
    w->any = true;
}

void mt_metrics_watch_outlook(const struct mt_metrics_watch *w, struct mt_metrics_outlook *out)
{
    struct mt_forecast *f = &out->pool;

    out->refused_per_s = w->refused_per_s;
    if (mt_live_now(w->live, f) < 0)
        *f = (struct mt_forecast){.sat_s = NAN, .low_s = NAN, .high_s = NAN, .rho_per_s = NAN};
    if (w->bounded) /* whoever is in has all that it will ever need */
        f->sat_s = f->low_s = f->high_s = INFINITY;
}
