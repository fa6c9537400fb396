/*
 * ticks.c: frame records to observations. A frame belongs to the tick in which its input was due,
 * whenever its record comes: sessions need not be aligned, and records need not be in order. A tick
 * is closed once nothing of it can be missing (each live session answered), or when it has waited
 * for two ticks. What comes later counts in the open one.
 */
#include "control/admit.h"

#include <errno.h>
#include <math.h>
#include <string.h>

/*
 * Releases on a beat of exactly T fall on the border of two ticks, and t and latency are rounded,
 * by other tools to whole ms: the border lies a little before the beat.
 */
#define BORDER     (1.0 / 128)
#define WAIT       2.0 /* T that a tick stays open for stragglers */
#define BACK_T     5.0 /* t may be older than the newest one by as many T, */
#define BACK_MIN_S 1.0 /* or by this; then the clock went back */
#define TICK_MAX   1e15

void mt_ticks_init(struct mt_ticks *t, double deadline_s)
{
    *t = (struct mt_ticks){.given = deadline_s > 0,
                           .deadline_s = deadline_s,
                           .newest_s = -INFINITY,
                           .last = -1,
                           .sessions = -1,
                           .cap = -1};
}

/* ---- ticks ---- */

static void give(struct mt_ticks *t, const struct mt_tick *k)
{
    double T = t->deadline_s, release = (double)(t->base + t->shift) * T;
    double x = t->mixed ? k->worst * T : k->worst_s;
    struct mt_admit_obs *o = &t->ready[t->n_ready];

    if (t->n_ready == (int)MT_COUNT(t->ready))
        return; /* can't be: the caller takes them after each record */
    *o = (struct mt_admit_obs){
        .release_s = release,
        .done_s = release + x,
        .sessions = k->sessions > 0 ? k->sessions : k->due,
        .due = k->due,
        .ontime = k->ontime,
        .late = k->late,
        .skipped = k->skipped,
        .pool = k->pool,
        .kv_tokens = k->with_tokens > 0 ? k->tokens / k->with_tokens : NAN,
        .cap = k->cap,
        .contradictions = k->contradictions + t->pending_contradictions,
        .cold = k->cold,
    };
    o->kv_tokens *= o->sessions; /* those that did not send now hold as much as the others */
    t->pending_contradictions = 0;
    if (k->due > 0) {
        if (t->last >= 0 && t->base > t->last)
            t->counts.empty += t->base - t->last - 1;
        t->last = t->base;
    }
    t->n_ready++;
}

static void close_oldest(struct mt_ticks *t)
{
    if (t->open[0].used)
        give(t, &t->open[0]);
    t->open[0] = t->open[1];
    t->open[1] = t->open[2];
    t->open[2] = (struct mt_tick){0};
    t->base++;
}

static bool any_open(const struct mt_ticks *t)
{
    return t->open[0].used || t->open[1].used || t->open[2].used;
}

static bool whole(const struct mt_tick *k)
{
    return k->used && k->sessions > 0 && k->own >= k->sessions;
}

/*
 * Close what is whole, and what has waited long enough at t_s. A session's frames come in order:
 * when all have answered in a tick, one before it without any record will have none.
 */
static void close_done(struct mt_ticks *t, double t_s)
{
    for (;;) {
        const struct mt_tick *k = t->open;
        int first = k[0].used ? 0 : k[1].used ? 1 : 2;

        if (!whole(&k[first]) &&
            !(k[first].used && t_s - k[first].opened_s >= WAIT * t->deadline_s))
            return;
        close_oldest(t);
    }
}

static int64_t tick_of(const struct mt_ticks *t, double release_s)
{
    return (int64_t)floor(release_s / t->deadline_s + BORDER);
}

/*
 * The tick for index k, which may close older ones. Those of a closed tick go into the oldest that
 * is open.
 */
static struct mt_tick *place(struct mt_ticks *t, int64_t k, bool *own)
{
    if (!t->begun)
        t->base = k - 1; /* an older one may come yet */
    t->begun = true;
    while (k >= t->base + 2 && any_open(t))
        close_oldest(t);
    if (k >= t->base + 2)
        t->base = k - 1;
    *own = k >= t->base;
    return &t->open[*own ? k - t->base : 0];
}

/* The server began anew, or somebody else's records came in: ticks go on after those that were. */
static void start_over(struct mt_ticks *t, int64_t k)
{
    int64_t next;

    while (any_open(t))
        close_oldest(t);
    next = t->base + t->shift;
    t->base = k - 1;
    t->shift = next - t->base;
    t->last = -1;
    t->newest_s = -INFINITY;
}

/* ---- records ---- */

static void count(struct mt_ticks *t, const struct mt_record *r, bool contradiction)
{
    struct mt_ticks_counts *c = &t->counts;
    int64_t *const by[] = {&c->ok, &c->late, &c->stalled, &c->dropped, &c->refused, &c->error};

    c->records++;
    ++*by[r->status];
    c->contradictions += contradiction;
}

/*
 * False for a record that says nothing of the engine: not admitted, or dropped because nobody
 * listens any more.
 */
static bool is_due(const struct mt_record *r)
{
    static const char *const left[] = {"gone", "idle", "shutdown"};

    if (r->status == MT_REFUSED)
        return false;
    for (size_t i = 0; i < MT_COUNT(left); i++)
        if (r->status == MT_DROPPED && r->reason && !strcmp(r->reason, left[i]))
            return false;
    return true;
}

static void add_latency(struct mt_ticks *t, struct mt_tick *k, const struct mt_record *r)
{
    double x = r->latency_ms / 1e3, own = r->deadline_ms / 1e3;

    if (!(own > 0 && isfinite(own)))
        own = t->deadline_s;
    else if (t->common_s == 0)
        t->common_s = own;
    else if (fabs(own - t->common_s) > 1e-6 * t->common_s)
        t->mixed = true; /* then each is judged by its own */
    if (!isfinite(x))
        return;
    k->worst_s = fmax(k->worst_s, x); /* NAN yields */
    k->worst = fmax(k->worst, x / own);
}

static void add(struct mt_ticks *t, struct mt_tick *k, const struct mt_record *r, bool own,
                bool contradiction)
{
    if (!k->used)
        *k = (struct mt_tick){.used = true,
                              .sessions = t->sessions,
                              .cap = t->cap,
                              .opened_s = t->newest_s,
                              .worst_s = NAN,
                              .worst = NAN,
                              .pool = NAN};
    k->sessions = t->sessions;
    k->cap = t->cap;
    if (isfinite(r->pool))
        k->pool = r->pool;
    k->contradictions += contradiction;
    if (!is_due(r))
        return;
    k->due++;
    k->own += own;
    if (contradiction || (r->status != MT_OK && r->status != MT_LATE))
        k->skipped++;
    else if (r->status == MT_LATE)
        k->late++;
    else
        k->ontime++;
    add_latency(t, k, r);
    if (r->kv_tokens >= 0) {
        k->tokens += (double)r->kv_tokens;
        k->with_tokens++;
    }
}

int mt_ticks_record(struct mt_ticks *t, const struct mt_record *r, bool cold)
{
    bool contradiction = mt_status_untruthful(r->status, r->tokens_out), own;
    double T, release;
    struct mt_tick *k;

    count(t, r, contradiction);
    if (t->deadline_s == 0) {
        if (!(r->deadline_ms > 0 && isfinite(r->deadline_ms)))
            return -ENODATA;
        t->deadline_s = r->deadline_ms / 1e3;
    }
    T = t->deadline_s;
    release = r->t_s - (isfinite(r->latency_ms) ? r->latency_ms / 1e3 : 0);
    if (!isfinite(release) || fabs(release / T) > TICK_MAX || r->latency_ms < 0) {
        t->counts.unusable++;
        t->pending_contradictions += 1 + contradiction;
        return 0;
    }
    if (r->t_s < t->newest_s - fmax(BACK_MIN_S, BACK_T * T)) {
        t->counts.unusable++;
        start_over(t, tick_of(t, release));
        t->pending_contradictions += 1 + contradiction;
        t->newest_s = r->t_s;
        return 0;
    }
    t->newest_s = fmax(t->newest_s, r->t_s);
    if (r->sessions >= 0)
        t->sessions = r->sessions;
    if (r->cap >= 0)
        t->cap = r->cap;
    k = place(t, tick_of(t, release), &own);
    add(t, k, r, own, contradiction);
    k->cold |= cold;
    close_done(t, t->newest_s);
    return 0;
}

double mt_ticks_status(struct mt_ticks *t, double t_s)
{
    double T = t->deadline_s;

    if (!(T > 0) || !isfinite(t_s) || fabs(t_s / T) > TICK_MAX)
        return NAN;
    if (t_s < t->newest_s - fmax(BACK_MIN_S, BACK_T * T))
        return NAN; /* if the clock did go back, the next record says so */
    t->newest_s = fmax(t->newest_s, t_s);
    if (t->begun)
        close_done(t, t_s);
    return t_s + (double)t->shift * T;
}

bool mt_ticks_next(struct mt_ticks *t, struct mt_admit_obs *out)
{
    if (t->at == t->n_ready) {
        t->at = t->n_ready = 0;
        return false;
    }
    *out = t->ready[t->at++];
    return true;
}

void mt_ticks_end(struct mt_ticks *t)
{
    while (any_open(t))
        close_oldest(t);
}
