/*
 * trace.c: the same questions asked of a run's own frame records: how fast does the pool fill, when
 * will it be full, when did it stop, and how well would half of the run have told. Records may come
 * in any order, so they are kept (one small point each) and sorted when somebody asks.
 */
#include "control/beat.h"
#include "control/control.h"
#include "control/livefit.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct point {
    double t, rho;
    double kv; /* tokens the session held, NaN if the record doesn't say */
    int64_t sessions;
    int32_t session; /* number of the session's name */
    bool bad;        /* stalled or untruthful */
    bool first;      /* of its session */
};

struct mt_trace {
    struct point *points;
    size_t count, room;
    bool sorted;
    json_t *names; /* session name to number */
    struct mt_beat *beat;
    int64_t stalled, untruthful;
    int64_t pool_tokens;
};

int mt_trace_open(struct mt_trace **out)
{
    struct mt_trace *t = calloc(1, sizeof(*t));

    *out = NULL;
    if (!t)
        return -ENOMEM;
    t->names = json_object();
    if (!t->names || mt_beat_open(&t->beat) < 0) {
        mt_trace_close(&t);
        return -ENOMEM;
    }
    *out = t;
    return 0;
}

void mt_trace_close(struct mt_trace **t)
{
    if (!*t)
        return;
    json_decref((*t)->names);
    mt_beat_close(&(*t)->beat);
    free((*t)->points);
    free(*t);
    *t = NULL;
}

/* ---- records in ---- */

/* A non-negative number of obj: 1 if there, 0 if absent (or null), -EBADMSG if it is something
 * else. */
static int number(const json_t *obj, const char *key, double *out)
{
    const json_t *v = json_object_get(obj, key);

    *out = NAN;
    if (!v || json_is_null(v))
        return 0;
    if (!json_is_number(v) || !(json_number_value(v) >= 0))
        return -EBADMSG;
    *out = json_number_value(v);
    return 1;
}

/* The session's number by its name, which is a string or, from others' tools, an integer. */
static int session_number(struct mt_trace *t, const json_t *name)
{
    char digits[32];
    const char *key = json_string_value(name);
    const json_t *known;
    json_int_t next = (json_int_t)json_object_size(t->names);

    if (json_is_integer(name)) {
        snprintf(digits, sizeof(digits), "%" JSON_INTEGER_FORMAT, json_integer_value(name));
        key = digits;
    }
    if (!key)
        key = ""; /* a record without a session: all such are one */
    known = json_object_get(t->names, key);
    if (known)
        return (int)json_integer_value(known);
    if (next >= INT32_MAX || json_object_set_new(t->names, key, json_integer(next)) < 0)
        return -ENOMEM;
    return (int)next;
}

static int add(struct mt_trace *t, const struct point *p)
{
    if (t->count == t->room) {
        size_t room = t->room ? t->room * 2 : 1024;
        struct point *points = realloc(t->points, mt_mul(room, sizeof(*points)));

        if (!points)
            return -ENOMEM;
        t->points = points;
        t->room = room;
    }
    t->points[t->count++] = *p;
    t->sorted = false;
    return 0;
}

static int take_frame(struct mt_trace *t, const json_t *obj)
{
    const char *status = json_string_value(json_object_get(obj, "status"));
    double at, rho, kv, sessions, out;
    struct point p;
    bool stalled, untruthful;
    int has_t, has_rho, has_n, rc;

    has_t = number(obj, "t", &at);
    has_rho = number(obj, "pool", &rho);
    has_n = number(obj, "sessions", &sessions);
    if (has_t < 0 || has_rho < 0 || has_n < 0 || number(obj, "kv_tokens", &kv) < 0 ||
        number(obj, "tokens_out", &out) < 0 || !status)
        return -EBADMSG;
    if ((has_rho && rho > 1) || (has_n && sessions > 0x1p52))
        return -EBADMSG;
    if (!has_t || !has_rho || !has_n)
        return 0;
    if ((rc = session_number(t, json_object_get(obj, "session"))) < 0)
        return rc;
    stalled = !strcmp(status, "stalled");
    untruthful = !strcmp(status, "ok") && out == 0;
    p = (struct point){.t = at,
                       .rho = rho,
                       .kv = kv,
                       .sessions = (int64_t)sessions,
                       .session = rc,
                       .bad = stalled || untruthful,
                       .first = mt_beat_first(obj)};
    if ((rc = add(t, &p)) < 0)
        return rc;
    mt_beat_record(t->beat, obj);
    t->stalled += stalled;
    t->untruthful += untruthful;
    return 1;
}

/* The pool's size; a server's ready line has it, and others may. */
static int take_pool(struct mt_trace *t, const json_t *obj)
{
    double blocks, block;
    int has_blocks = number(obj, "pool_blocks", &blocks), has_block = number(obj, "block", &block);

    if (has_blocks < 0 || has_block < 0)
        return -EBADMSG;
    if (has_blocks && has_block) {
        if (!(blocks * block <= 0x1p52))
            return -EBADMSG;
        t->pool_tokens = (int64_t)(blocks * block);
    }
    return 0;
}

int mt_trace_line(struct mt_trace *t, const char *line, size_t n)
{
    json_t *obj = json_loadb(line, n, 0, NULL);
    const char *type;
    int rc = 0;

    if (!json_is_object(obj)) {
        json_decref(obj);
        return -EBADMSG;
    }
    type = json_string_value(json_object_get(obj, "type"));
    if (type && !strcmp(type, "frame"))
        rc = take_frame(t, obj);
    else if (type && (!strcmp(type, "ready") || !strcmp(type, "opened")))
        rc = take_pool(t, obj);
    json_decref(obj);
    return rc;
}

/* ---- the fit ---- */

static int by_time(const void *a, const void *b)
{
    const struct point *x = a, *y = b;

    if (x->t != y->t)
        return x->t < y->t ? -1 : 1;
    /* Equal times: by length, so that a session's tokens never seem to shrink. */
    return (x->kv > y->kv) - (x->kv < y->kv);
}

/*
 * The latest run of one session count in points [0, end) with MT_TRACE_MIN different times. Ends
 * where nothing is long enough: *from == *to.
 */
static void find_stretch(const struct point *p, size_t end, size_t *from, size_t *to)
{
    while (end > 0) {
        size_t first = end;
        int times = 0;

        while (first > 0 && p[first - 1].sessions == p[end - 1].sessions) {
            first--;
            times += first + 1 == end || p[first].t != p[first + 1].t;
        }
        if (times >= MT_TRACE_MIN && p[first].sessions > 0) {
            *from = first;
            *to = end;
            return;
        }
        end = first;
    }
    *from = *to = 0;
}

struct line {
    double at, value; /* a point on it: the last time */
    double slope;
    double full_at; /* where it reaches 1, +Inf if it doesn't rise */
};

/* Least squares of rho over t. Times are taken from the first one: sums stay exact for long runs.
 */
static struct line fit_line(const struct point *p, size_t from, size_t to)
{
    double t0 = p[from].t, n = (double)(to - from), mt = 0, mr = 0, stt = 0, str = 0, ss = 0;
    double error;
    struct line l;

    for (size_t i = from; i < to; i++) {
        mt += (p[i].t - t0) / n;
        mr += p[i].rho / n;
    }
    for (size_t i = from; i < to; i++) {
        double dt = p[i].t - t0 - mt;

        stt += dt * dt;
        str += dt * (p[i].rho - mr);
    }
    l.slope = str / stt;
    for (size_t i = from; i < to; i++) {
        double r = p[i].rho - mr - l.slope * (p[i].t - t0 - mt);

        ss += r * r;
    }
    error = sqrt(ss / (n - 2) / stt);
    l.at = p[to - 1].t;
    l.value = mr + l.slope * (l.at - t0 - mt);
    /* The absolute term: a constant pool gives a slope of rounding, and an error of rounding too.
     */
    if (l.slope > error && l.slope * (l.at - t0) > 1e-9)
        l.full_at = l.value < 1 ? l.at + (1 - l.value) / l.slope : l.at;
    else
        l.full_at = INFINITY;
    return l;
}

/* Tokens a second that one session adds: growth of kv_tokens over session-seconds. NaN if unknown.
 */
static double fit_rate(const struct mt_trace *t, size_t from, size_t to)
{
    size_t names = json_object_size(t->names);
    struct {
        double first_t, first_kv, last_t, last_kv;
    } *s = calloc(names, sizeof(*s));
    double tokens = 0, seconds = 0;

    if (!s)
        return NAN;
    for (size_t k = 0; k < names; k++)
        s[k].first_t = NAN;
    for (size_t i = from; i < to; i++) {
        const struct point *p = &t->points[i];

        if (isnan(p->kv))
            continue;
        if (isnan(s[p->session].first_t)) {
            s[p->session].first_t = p->t;
            s[p->session].first_kv = p->kv;
        }
        s[p->session].last_t = p->t;
        s[p->session].last_kv = p->kv;
    }
    for (size_t k = 0; k < names; k++) {
        if (isnan(s[k].first_t))
            continue;
        tokens += s[k].last_kv - s[k].first_kv;
        seconds += s[k].last_t - s[k].first_t;
    }
    free(s);
    return seconds > 0 ? tokens / seconds : NAN;
}

/* First point in [0, end) at or after time t. */
static size_t first_at(const struct point *p, size_t end, double t)
{
    size_t i = 0;

    while (i < end && p[i].t < t)
        i++;
    return i;
}

static void sort(struct mt_trace *t)
{
    if (!t->sorted)
        qsort(t->points, t->count, sizeof(*t->points), by_time);
    t->sorted = true;
}

void mt_trace_replay(struct mt_trace *t, struct mt_live *live)
{
    sort(t);
    mt_live_beat(live, mt_beat_s(t->beat));
    for (size_t i = 0; i < t->count && !t->points[i].bad; i++) {
        if (t->points[i].first)
            mt_live_newcomer(live);
        mt_live_add(live, t->points[i].t, t->points[i].rho, t->points[i].sessions);
    }
}

int mt_trace_fit(struct mt_trace *t, struct mt_trace_fit *out)
{
    struct mt_trace_fit f = {
        .frames = (int64_t)t->count,
        .stalled = t->stalled,
        .untruthful = t->untruthful,
        .pool_tokens = t->pool_tokens,
        .from_s = NAN,
        .to_s = NAN,
        .rho = NAN,
        .rho_per_s = NAN,
        .rate = NAN,
        .t_sat_at_s = NAN,
        .t_sat_s = NAN,
        .t_collapse_s = NAN,
        .t_half_s = NAN,
        .t_half_sat_s = NAN,
        .error_percent = NAN,
    };
    const struct point *p;
    size_t end, from, to, half_from, half_to;
    struct line l;

    if (t->count == 0)
        return -ENODATA;
    sort(t);
    p = t->points;
    for (end = 0; end < t->count && !p[end].bad; end++)
        ;
    if (end < t->count) {
        f.t_collapse_s = p[end].t;
        end = first_at(p, end, f.t_collapse_s);
    }
    find_stretch(p, end, &from, &to);
    if (from == to) {
        *out = f;
        return 0;
    }
    l = fit_line(p, from, to);
    f.sessions = p[from].sessions;
    f.from_s = p[from].t;
    f.to_s = l.at;
    f.rho = l.value;
    f.rho_per_s = l.slope;
    f.rate = fit_rate(t, from, to);
    if (isnan(f.rate) && f.pool_tokens > 0)
        f.rate = l.slope * (double)f.pool_tokens / (double)f.sessions;
    f.t_sat_at_s = l.full_at;
    f.t_sat_s = l.full_at - l.at;
    if (!isnan(f.t_collapse_s)) {
        f.t_half_s = f.from_s + (f.t_collapse_s - f.from_s) / 2;
        /* Of this stretch only: another count of sessions would foretell another collapse. */
        find_stretch(p + from, first_at(p, end, f.t_half_s) - from, &half_from, &half_to);
        if (half_from != half_to) {
            f.t_half_sat_s = fit_line(p + from, half_from, half_to).full_at;
            if (isfinite(f.t_half_sat_s))
                f.error_percent =
                    100 * (f.t_half_sat_s - f.t_collapse_s) / (f.t_collapse_s - f.t_half_s);
        }
    }
    *out = f;
    return 0;
}
