/*
 * admit.c: the law. It compares the p95 of a window of ticks with the deadline itself, never with a
 * latency that it learned to be normal: a machine that is slow from the first minute must not look
 * healthy. Between phi T and kap T the cap rests, below it grows by alpha, above it shrinks by
 * beta, and each change waits for a whole window of the new cap.
 */
#include "control/admit.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#define WINDOW_S     3.2 /* a window lasts as long, .. */
#define WINDOW_MIN   20  /* .. and has as many ticks at least */
#define ACTIVE       0.8 /* share of the sessions that have to send, where b isn't known */
#define STALL_MISS   2.0 /* T without a frame: a miss, and what a skipped frame counts */
#define STALL_MODE   5.0 /* T without a frame: stalled */
#define SILENCE      2.5 /* T between ticks with frames: two in a row had none */
#define RESEND_MIN_S 2.0
#define FADE         0.9 /* a tick's weight in the next, for who sends */
#define SURE         2.0 /* standard errors from which a slope is one */

_Static_assert(sizeof(struct mt_admit) <= 4096, "the state of the law fits into a page");

void mt_admit_defaults(struct mt_admit_opts *o)
{
    *o = (struct mt_admit_opts){
        .target = 0.8,
        .cut = 0.95,
        .alpha = 1,
        .beta = 0.9,
        .min = 1,
        .max = 256,
        .cap0 = 4,
        .warmup = 2,
        .look_ahead = true,
        .project = true,
    };
}

const char *mt_admit_mode_name(enum mt_admit_mode m)
{
    static const char *const words[] = {"warmup", "grow", "hold", "drain", "stalled", "closed"};

    return words[m];
}

const char *mt_admit_reason_name(enum mt_admit_reason r)
{
    static const char *const words[] = {
        "grow",   "cut",     "band",       "look-ahead", "projection", "idle",      "misses",
        "memory", "limit",   "untruthful", "silence",    "partial",    "cool-down", "warmup",
        "drain",  "stalled", "recovered",  "resend",     "start",      "end",
    };

    return words[r];
}

static int check(const struct mt_admit_opts *o, struct mt_err *e)
{
    if (!(o->deadline_s >= MT_ADMIT_DEADLINE_MIN && o->deadline_s <= MT_ADMIT_DEADLINE_MAX))
        return mt_err_set(e, -EDOM, "deadline: %g s is not in 1 ms..1 h", o->deadline_s);
    if (!(o->target > 0 && o->target <= o->cut && o->cut <= 1))
        return mt_err_set(e, -EDOM, "target %g and cut %g: expected 0 < target <= cut <= 1",
                          o->target, o->cut);
    if (!(o->alpha > 0 && o->alpha <= MT_ADMIT_CAP_MAX))
        return mt_err_set(e, -EDOM, "alpha: %g is not a number of sessions above 0", o->alpha);
    if (!(o->beta >= 0.5 && o->beta <= 0.99))
        return mt_err_set(e, -EDOM, "beta: %g is not in 0.5..0.99", o->beta);
    if (o->min < 1 || o->max < o->min || o->max > MT_ADMIT_CAP_MAX)
        return mt_err_set(e, -EDOM, "min %d and max %d: expected 1 <= min <= max <= %d", o->min,
                          o->max, MT_ADMIT_CAP_MAX);
    if (o->cap0 < o->min || o->cap0 > o->max)
        return mt_err_set(e, -EDOM, "cap0: %d is not in %d..%d", o->cap0, o->min, o->max);
    return 0;
}

/* ---- what is published ---- */

/*
 * Sessions that memory allows now: bounded ones commit theirs, unbounded ones are given two mean
 * durations of growth.
 */
static double memory_bound(const struct mt_admit *a)
{
    const struct mt_admit_opts *o = &a->opts;
    double n = o->n_mem > 0 ? o->n_mem : INFINITY;
    double pace = 2 * o->duration_s * o->rate_tokens_s;
    double held = isfinite(a->pool)     ? a->pool * o->pool_tokens
                  : isfinite(a->tokens) ? a->tokens
                                        : 0; /* nobody can have more than all of it */

    if (o->pool_tokens > 0 && pace > 0)
        n = fmin(n, floor(fmax(0, o->pool_tokens - held) / pace));
    return n;
}

static int limit_now(const struct mt_admit *a)
{
    return (int)fmin(fmin(floor(a->cap), memory_bound(a)), a->opts.max);
}

int mt_admit_init(struct mt_admit *a, const struct mt_admit_opts *o, struct mt_err *e)
{
    int rc = check(o, e);

    if (rc < 0)
        return rc;
    *a = (struct mt_admit){.opts = *o, .cap = o->cap0, .waiting = true};
    a->window_size = (int)fmax(WINDOW_MIN, ceil(WINDOW_S / o->deadline_s - 1e-9));
    a->n_top = a->window_size - (95 * a->window_size + 99) / 100 + 1;
    a->now_s = a->asked_s = a->release_s = a->due_s = a->finished_s = a->injected_s = NAN;
    a->pool = a->tokens = NAN;
    a->limit = limit_now(a);
    return 0;
}

void mt_admit_memory(struct mt_admit *a, int n_mem, double limit_tokens, double pool_tokens)
{
    a->opts.n_mem = n_mem;
    a->opts.limit_tokens = limit_tokens;
    a->opts.pool_tokens = pool_tokens;
}

static enum mt_admit_mode mode_of(const struct mt_admit *a)
{
    if (a->stalled)
        return MT_ADMIT_STALLED;
    if (a->n > (int)floor(a->cap))
        return MT_ADMIT_DRAIN;
    if (a->warm < a->opts.warmup)
        return MT_ADMIT_WARMUP;
    return a->grew ? MT_ADMIT_GROW : MT_ADMIT_HOLD;
}

static enum mt_binding bound_of(enum mt_admit_reason r)
{
    switch (r) {
    case MT_ADMIT_BY_MEMORY:
        return MT_BIND_MEMORY;
    case MT_ADMIT_BY_LIMIT:
        return MT_BIND_LIMIT;
    case MT_ADMIT_BY_CUT:
    case MT_ADMIT_BY_BAND:
    case MT_ADMIT_BY_LOOKAHEAD:
    case MT_ADMIT_BY_PROJECTED:
    case MT_ADMIT_BY_MISSES:
    case MT_ADMIT_BY_COOLDOWN:
    case MT_ADMIT_BY_DRAIN:
    case MT_ADMIT_BY_STALLED:
        return MT_BIND_LATENCY;
    default:
        return MT_BIND_NONE;
    }
}

static void describe(const struct mt_admit *a, enum mt_admit_reason why,
                     struct mt_admit_decision *d)
{
    *d = (struct mt_admit_decision){
        .reason = why,
        .mode = mode_of(a),
        .bound = bound_of(why),
        .limit = a->limit,
        .cap = a->cap,
        .t_s = a->now_s,
        .signal_s = NAN,
        .projected_s = NAN,
        .frames = a->m,
        .misses = a->misses,
        .sessions = a->n,
    };
}

void mt_admit_begin(const struct mt_admit *a, struct mt_admit_decision *d)
{
    describe(a, MT_ADMIT_BY_START, d);
}

/* ---- the cost of a frame ---- */

struct moments {
    int distinct;
    double w, n, l, x;             /* means */
    double nn, nl, ll, nx, lx, xx; /* about the means, not divided by w */
};

static void moments(const struct mt_admit *a, struct moments *s)
{
    *s = (struct moments){0};
    for (int i = 0; i < a->n_points; i++) {
        const struct mt_admit_point *p = &a->points[i];

        if (a->window_no - p->window > MT_ADMIT_FIT)
            continue;
        s->distinct++;
        s->w += p->w;
        s->n += p->w * p->n;
        s->l += p->l;
        s->x += p->x;
    }
    if (s->distinct == 0)
        return;
    s->n /= s->w;
    s->l /= s->w;
    s->x /= s->w;
    for (int i = 0; i < a->n_points; i++) {
        const struct mt_admit_point *p = &a->points[i];
        double dn = p->n - s->n;

        if (a->window_no - p->window > MT_ADMIT_FIT)
            continue;
        s->nn += p->w * dn * dn;
        s->nx += dn * (p->x - p->w * s->x);
        s->nl += dn * (p->l - p->w * s->l);
        s->xx += p->xx - 2 * p->x * s->x + p->w * s->x * s->x;
        s->ll += p->ll - 2 * p->l * s->l + p->w * s->l * s->l;
        s->lx += p->lx - p->l * s->x - p->x * s->l + p->w * s->l * s->x;
    }
}

/*
 * Least squares, once a window. Fewer than 3 numbers of sessions in the last MT_ADMIT_FIT windows
 * say nothing new: what was known stays, else a cap that rests would forget what the next session
 * costs.
 */
static void fit(struct mt_admit *a)
{
    struct mt_admit_model *m = &a->model;
    struct moments s;
    double b, left, det, b0, b1;

    moments(a, &s);
    if (s.distinct < 3)
        return;
    b = s.nx / s.nn;
    left = fmax(0, s.xx - b * s.nx) / (s.w - 2);
    m->known = b > 1e-12 && b * b > SURE * SURE * left / s.nn;
    m->b_s = b;
    m->a_s = s.x - b * s.n;
    det = s.nn * s.ll - s.nl * s.nl;
    if (!(det > 1e-6 * s.nn * s.ll))
        return; /* tokens unknown, or in step with the sessions */
    b0 = (s.nx * s.ll - s.lx * s.nl) / det;
    b1 = (s.lx * s.nn - s.nx * s.nl) / det;
    if (b0 < 0) { /* noise: a session costs something */
        b0 = 0;
        b1 = s.lx / s.ll;
    }
    left = fmax(0, s.xx - b0 * s.nx - b1 * s.lx) / (s.w - 3);
    if (!(b1 > 0) || b1 * b1 <= SURE * SURE * left * s.nn / det)
        return; /* once known, it is not forgotten for want of a sure estimate */
    m->slow = true;
    m->b0_s = b0;
    m->b1_s = b1;
    m->a0_s = s.x - b0 * s.n - b1 * s.l;
}

/*
 * Sums for each number of sessions that were due. Beyond a window's worth old samples fade, so that
 * each number counts the same however long the machine rested at it.
 */
static void learn(struct mt_admit *a, int n, double tokens, double x)
{
    struct mt_admit_point *p = NULL, *oldest = a->points;
    double fade;

    for (int i = 0; i < a->n_points && !p; i++) {
        if (a->points[i].n == n)
            p = &a->points[i];
        if (a->points[i].window < oldest->window)
            oldest = &a->points[i];
    }
    if (!p) {
        p = a->n_points < MT_ADMIT_FIT ? &a->points[a->n_points++] : oldest;
        *p = (struct mt_admit_point){.n = n};
    } else if (a->window_no - p->window > MT_ADMIT_FIT) {
        *p = (struct mt_admit_point){.n = n};
    }
    p->window = a->window_no;
    fade = p->w >= a->window_size ? 1 - 1 / (double)a->window_size : 1;
    p->w = p->w * fade + 1;
    p->l = p->l * fade + tokens;
    p->ll = p->ll * fade + tokens * tokens;
    p->x = p->x * fade + x;
    p->xx = p->xx * fade + x * x;
    p->lx = p->lx * fade + tokens * x;
    if (++a->learned % a->window_size == 0) {
        a->window_no++;
        fit(a);
    }
}

int64_t mt_admit_fits(const struct mt_admit *a, double share)
{
    const struct mt_admit_model *m = &a->model;
    double n;

    if (!m->known)
        return MT_NO_LIMIT;
    n = floor((share * a->opts.deadline_s - m->a_s) / m->b_s);
    return n < 0 ? 0 : n > 1e15 ? MT_NO_LIMIT : (int64_t)n;
}

void mt_admit_end(struct mt_admit *a, struct mt_admit_decision *d)
{
    fit(a);
    describe(a, MT_ADMIT_BY_END, d);
    d->mode = MT_ADMIT_CLOSED;
}

/* ---- the window ---- */

static void clear_window(struct mt_admit *a)
{
    a->m = a->misses = a->busiest = 0;
    a->run = 0;
}

static void sample(struct mt_admit *a, double x, bool miss)
{
    int i = 0;

    if (a->m < a->n_top) { /* ascending, filled from the front */
        for (i = a->m; i > 0 && a->top[i - 1] > x; i--)
            a->top[i] = a->top[i - 1];
        a->top[i] = x;
    } else if (x > a->top[0]) {
        for (i = 1; i < a->n_top && a->top[i] < x; i++)
            a->top[i - 1] = a->top[i];
        a->top[i - 1] = x;
    }
    a->m++;
    a->frame_no++;
    a->misses += miss;
    a->counts.misses += miss;
    a->busiest = a->n > a->busiest ? a->n : a->busiest;
    a->last[2] = a->last[1];
    a->last[1] = a->last[0];
    a->last[0] = x;
    a->run = x >= a->opts.deadline_s ? a->run + 1 : 0;
}

/* ---- decisions ---- */

/* Y once every live session has a full window. */
static double projected(const struct mt_admit *a, double y)
{
    const struct mt_admit_opts *o = &a->opts;
    double missing = a->n * o->limit_tokens - a->tokens;

    if (!o->project || !a->model.slow || !(o->limit_tokens > 0) || !isfinite(missing))
        return y;
    return y + a->model.b1_s * fmax(0, missing);
}

static double next_session(const struct mt_admit *a)
{
    const struct mt_admit_opts *o = &a->opts;

    if (o->project && a->model.slow && o->limit_tokens > 0)
        return a->model.b0_s + a->model.b1_s * o->limit_tokens;
    return a->model.b_s;
}

/* Whether anything but the latency itself forbids to grow, the weightiest reason first. */
static enum mt_admit_reason veto(const struct mt_admit *a)
{
    const struct mt_admit_opts *o = &a->opts;
    double margin = fmax(1, 0.1 * a->cap);

    if (a->n > (int)floor(a->cap))
        return MT_ADMIT_BY_DRAIN;
    if (a->warm < o->warmup)
        return MT_ADMIT_BY_WARMUP;
    if (a->frame_no < a->cool_until)
        return MT_ADMIT_BY_COOLDOWN;
    if (a->untruthful)
        return MT_ADMIT_BY_UNTRUTHFUL;
    if (a->misses > 1)
        return MT_ADMIT_BY_MISSES;
    if (a->silent)
        return MT_ADMIT_BY_SILENCE;
    if (a->partial > a->window_size / 20) /* fewer leave the p95 as it is */
        return MT_ADMIT_BY_PARTIAL;
    if (a->cap >= memory_bound(a))
        return MT_ADMIT_BY_MEMORY;
    if (a->cap >= o->max)
        return MT_ADMIT_BY_LIMIT;
    if (a->busiest < a->cap - margin)
        return MT_ADMIT_BY_IDLE;
    return MT_ADMIT_BY_GROW;
}

static enum mt_admit_reason try_grow(struct mt_admit *a, double y, double yp)
{
    const struct mt_admit_opts *o = &a->opts;
    double top = o->target * o->deadline_s;
    enum mt_admit_reason why = veto(a);

    if (why != MT_ADMIT_BY_GROW)
        return why;
    if (yp >= top)
        return yp > y ? MT_ADMIT_BY_PROJECTED : MT_ADMIT_BY_BAND;
    if (o->look_ahead && a->model.known && yp + next_session(a) * o->alpha > top)
        return MT_ADMIT_BY_LOOKAHEAD;
    a->cap = fmin(fmin(o->max, memory_bound(a)), a->cap + o->alpha);
    a->counts.grows++;
    return MT_ADMIT_BY_GROW;
}

static enum mt_admit_reason try_cut(struct mt_admit *a)
{
    const struct mt_admit_opts *o = &a->opts;
    double base = fmin(a->cap, a->n);

    if (a->n > (int)floor(a->cap))
        return MT_ADMIT_BY_DRAIN;
    if (a->frame_no < a->cool_until)
        return MT_ADMIT_BY_COOLDOWN;
    /*
     * Controllers that share a device would freeze apart if each cut rounded: there a cap in use
     * keeps its fraction.
     */
    if (o->cut == o->target && a->n >= (int)floor(a->cap))
        base = a->cap;
    a->cap = fmax(o->min, fmin(base - 1, o->beta * base));
    a->cool_until = a->frame_no + a->window_size;
    a->counts.cuts++;
    return MT_ADMIT_BY_CUT;
}

/* The limit as it stands now goes out; a new one has to be seen before anything is judged again. */
static void publish(struct mt_admit *a, struct mt_admit_decision *d)
{
    int limit = limit_now(a);

    d->changed = limit != a->limit;
    if (d->changed) {
        a->waiting = true;
        a->asked_s = a->now_s;
    }
    a->limit = d->limit = limit;
    d->cap = a->cap;
    d->mode = mode_of(a);
}

/* A window is full, or (fast) three ticks in a row were late, which can only cut. */
static bool evaluate(struct mt_admit *a, double y, bool fast, struct mt_admit_decision *d)
{
    const struct mt_admit_opts *o = &a->opts;
    double yp = projected(a, y), cap = a->cap;
    enum mt_admit_reason why;

    if (a->stalled) {
        a->stalled = false;
        why = MT_ADMIT_BY_RECOVERED;
    } else if (y >= o->cut * o->deadline_s) {
        why = try_cut(a);
    } else if (y < o->target * o->deadline_s) {
        why = try_grow(a, y, yp);
    } else {
        why = a->n > (int)floor(a->cap) ? MT_ADMIT_BY_DRAIN : MT_ADMIT_BY_BAND;
    }
    if (fast && why != MT_ADMIT_BY_CUT)
        return false;
    if (!fast && a->warm < o->warmup)
        a->warm++;
    a->grew = a->cap > cap;
    describe(a, why, d);
    d->signal_s = y;
    if (yp > y)
        d->projected_s = yp;
    publish(a, d);
    clear_window(a);
    a->untruthful = a->silent = false;
    a->partial = 0;
    return true;
}

static bool judge(struct mt_admit *a, struct mt_admit_decision *d)
{
    bool full = a->m >= a->window_size;

    if (a->run >= 3 && !a->stalled &&
        evaluate(a, fmin(a->last[0], fmin(a->last[1], a->last[2])), true, d))
        return true;
    if (!full)
        return false;
    fit(a);
    return evaluate(a, a->top[0], false, d);
}

/* ---- observations ---- */

/* What can't be: is it to be dropped (true), or only to be held against the good news? */
static bool untrue(struct mt_admit *a, const struct mt_admit_obs *o)
{
    bool backwards = !(o->release_s >= a->release_s) && !isnan(a->release_s);
    bool nonsense = !isfinite(o->release_s) || o->due < 0 || o->ontime < 0 || o->late < 0 ||
                    o->skipped < 0 || o->sessions < 0 || o->contradictions < 0 ||
                    (o->due > o->skipped && (!isfinite(o->done_s) || o->done_s < o->release_s));
    bool unequal = (int64_t)o->ontime + o->late + o->skipped != o->due;

    if (isfinite(o->release_s))
        a->release_s = o->release_s;
    if (backwards) { /* a new clock: nothing before it can be compared */
        a->due_s = a->finished_s = a->injected_s = NAN;
        a->now_s = a->release_s;
        a->asked_s = NAN;
    }
    if (!nonsense)
        a->now_s = isfinite(o->done_s) ? o->done_s : o->release_s;
    if (o->contradictions > 0)
        a->counts.untruthful += o->contradictions;
    a->counts.untruthful += backwards || nonsense || unequal;
    a->untruthful |= backwards || nonsense || unequal || o->contradictions > 0;
    return backwards || nonsense;
}

/*
 * Does the engine keep the limit that it was told? True while it doesn't; *again when it has to be
 * told again.
 */
static bool waiting(struct mt_admit *a, int cap, bool *again)
{
    *again = false;
    if (cap < 0 || cap == a->limit) {
        a->waiting = false;
        return false;
    }
    if (!a->waiting || isnan(a->asked_s))
        a->asked_s = a->now_s;
    a->waiting = true;
    *again = a->now_s - a->asked_s > fmax(RESEND_MIN_S, 2 * a->opts.deadline_s);
    return true;
}

static bool resend(struct mt_admit *a, struct mt_admit_decision *d)
{
    a->asked_s = a->now_s;
    a->counts.resends++;
    describe(a, MT_ADMIT_BY_RESEND, d);
    return true;
}

/*
 * Sessions that sent, as this tick and those before it tell: sessions whose beat lies on the border
 * of two ticks are counted now in one, now in the other, and are not idle for that.
 */
static double active(struct mt_admit *a, const struct mt_admit_obs *o)
{
    double n = a->n;

    a->sent = a->sent * FADE + o->due;
    a->live = a->live * FADE + n;
    return fmin(n, fmax(o->due, n * a->sent / a->live));
}

/* Latency of the tick, as if all sessions had sent; a->partial when that can't be told. */
static double full_latency(struct mt_admit *a, double sent, double x)
{
    if (sent >= a->n)
        return x;
    if (a->model.known)
        return x + a->model.b_s * (a->n - sent);
    a->partial += sent < ACTIVE * a->n;
    return x;
}

bool mt_admit_frame(struct mt_admit *a, const struct mt_admit_obs *o, struct mt_admit_decision *d)
{
    double T = a->opts.deadline_s, x, sent;
    bool again, miss;

    a->counts.ticks++;
    if (untrue(a, o))
        return false;
    a->n = o->sessions > 0 || o->due == 0 ? o->sessions : 1;
    a->pool = o->pool;
    if (o->due == 0) {
        a->counts.empty++;
        return false;
    }
    a->silent |= o->release_s - a->due_s > SILENCE * T; /* NAN before the first: false */
    a->due_s = o->release_s;
    a->tokens = o->kv_tokens;
    a->counts.due += o->due;
    a->counts.ontime += o->ontime;
    a->counts.late += o->late;
    a->counts.skipped += o->skipped;
    if (o->due > o->skipped)
        a->finished_s = o->done_s;
    if (o->cold) {
        a->counts.cold++;
        a->counts.misses += o->late > 0 || o->skipped > 0;
        a->frame_no++;
        return false;
    }
    sent = active(a, o);
    x = o->done_s - o->release_s;
    if (o->skipped > 0)
        x = isfinite(x) ? fmax(x, STALL_MISS * T) : STALL_MISS * T;
    else
        learn(a, (int)lround(sent), o->kv_tokens, x);
    miss = x >= T || o->late > 0 || o->skipped > 0;
    if (waiting(a, o->cap, &again)) {
        clear_window(a);
        a->frame_no++;
        a->counts.misses += miss;
        return again && resend(a, d);
    }
    if (a->stalled && miss) {
        clear_window(a); /* a clean window begins with the first tick in time */
        a->counts.misses++;
        return false;
    }
    sample(a, full_latency(a, sent, x), miss);
    return judge(a, d);
}

bool mt_admit_pending(struct mt_admit *a, double now_s, double age_s, int sessions,
                      struct mt_admit_decision *d)
{
    double T = a->opts.deadline_s, silent_s;

    if (!isfinite(now_s) || !isfinite(age_s) || sessions < 0)
        return false;
    a->n = sessions;
    if (age_s <= 0 || sessions == 0) { /* nobody waits: the silence up to now is the clients' */
        a->due_s = fmax(a->due_s, now_s);
        return false;
    }
    /* While others are answered it is no stall: their latencies tell. */
    silent_s = isnan(a->finished_s) ? age_s : fmin(age_s, now_s - a->finished_s);
    if (silent_s <= STALL_MISS * T || now_s - a->injected_s < T * (1 - 1e-9))
        return false;
    a->injected_s = now_s;
    a->silent = true;
    a->now_s = now_s;
    if (silent_s >= STALL_MODE * T && !a->stalled) {
        a->stalled = true;
        a->grew = false;
        a->counts.stalls++;
        a->counts.misses++;
        clear_window(a);
        describe(a, MT_ADMIT_BY_STALLED, d);
        return true;
    }
    if (a->stalled || a->waiting) {
        clear_window(a);
        a->frame_no++;
        a->counts.misses++;
        return false;
    }
    sample(a, age_s, true);
    return judge(a, d);
}
