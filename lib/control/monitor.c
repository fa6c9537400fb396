/*
 * monitor.c: records into observations of the live fit, and what else a report says: latency,
 * misses and the pace of sessions. That pace needs each session's first and last length within a
 * batch, kept in a table of fixed size; sessions that find no place in it are left out of the mean.
 */
#include "control/monitor.h"
#include "control/beat.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS 4096 /* a power of two */

struct pace {
    uint64_t name; /* hash; 0: free */
    double first_s, first_kv, last_s, last_kv;
};

struct mt_monitor {
    struct mt_live *live;
    struct mt_beat *beat;
    double target;
    struct pace pace[SLOTS];
    struct mt_hist latency;
    double deadline_ms;
    int64_t frames, late, unserved, stalled, cap;
    double t_collapse_s;
};

int mt_monitor_open(struct mt_monitor **out, double window_s, double batch_s, double target)
{
    struct mt_monitor *m;
    int rc;

    *out = NULL;
    if (!(target > 0 && target <= 1))
        return -EDOM;
    m = calloc(1, sizeof(*m));
    if (!m)
        return -ENOMEM;
    if ((rc = mt_live_open(&m->live, window_s, batch_s)) < 0 || (rc = mt_beat_open(&m->beat)) < 0) {
        mt_monitor_close(&m);
        return rc;
    }
    m->target = target;
    m->deadline_ms = m->t_collapse_s = NAN;
    m->cap = -1;
    *out = m;
    return 0;
}

void mt_monitor_close(struct mt_monitor **m)
{
    if (!*m)
        return;
    mt_live_close(&(*m)->live);
    mt_beat_close(&(*m)->beat);
    free(*m);
    *m = NULL;
}

/*
 * A non-negative number of obj: 1 if there, 0 if absent or null, -EBADMSG if it is something else.
 */
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

static uint64_t name_hash(const json_t *name)
{
    const char *s = json_string_value(name);
    json_int_t i = json_integer_value(name);
    uint64_t h = s ? mt_hash(MT_HASH_INIT, s, strlen(s)) : mt_hash(MT_HASH_INIT, &i, sizeof(i));

    return h ? h : 1;
}

static void take_pace(struct mt_monitor *m, uint64_t name, double t, double kv)
{
    for (size_t i = 0; i < 16; i++) {
        struct pace *p = &m->pace[(name + i) % SLOTS];

        if (p->name == 0)
            *p = (struct pace){name, t, kv, t, kv};
        if (p->name != name)
            continue;
        if (kv < p->last_kv) { /* a new call under an old name, or one that was evicted */
            p->first_s = t;
            p->first_kv = kv;
        }
        p->last_s = t;
        p->last_kv = kv;
        return;
    }
}

static double end_pace(struct mt_monitor *m)
{
    double tokens = 0, seconds = 0;

    for (size_t i = 0; i < SLOTS; i++) {
        struct pace *p = &m->pace[i];

        if (p->name == 0)
            continue;
        tokens += p->last_kv - p->first_kv;
        seconds += p->last_s - p->first_s;
        if (p->last_s == p->first_s)
            p->name = 0; /* one record in the whole batch: it may be gone */
        p->first_s = p->last_s;
        p->first_kv = p->last_kv;
    }
    return seconds > 0 ? tokens / seconds : NAN;
}

static int take_frame(struct mt_monitor *m, const json_t *obj, double t)
{
    const char *status = json_string_value(json_object_get(obj, "status"));
    double kv, latency, deadline, out;
    bool empty;

    if (!status || number(obj, "kv_tokens", &kv) < 0 || number(obj, "latency_ms", &latency) < 0 ||
        number(obj, "deadline_ms", &deadline) < 0 || number(obj, "tokens_out", &out) < 0)
        return -EBADMSG;
    if (!strcmp(status, "refused"))
        return 0; /* a frame that was never due */
    mt_beat_record(m->beat, obj);
    empty = !strcmp(status, "ok") && out == 0;
    m->frames++;
    if (empty || (strcmp(status, "ok") != 0 && strcmp(status, "late") != 0)) {
        bool stalled = empty || !strcmp(status, "stalled");

        m->unserved++;
        m->stalled += stalled;
        if (stalled && isnan(m->t_collapse_s))
            m->t_collapse_s = t;
        return 0;
    }
    m->late += !strcmp(status, "late");
    if (!isnan(latency))
        mt_hist_add(&m->latency, (int64_t)(fmin(latency, 1e11) * 1e6));
    m->deadline_ms = fmin(m->deadline_ms, deadline); /* fmin passes over NaN */
    if (!isnan(kv) && !isnan(t))
        take_pace(m, name_hash(json_object_get(obj, "session")), t, kv);
    return 0;
}

static int take(struct mt_monitor *m, const json_t *obj, bool frame)
{
    double t, rho, n, cap;
    int rc = 0;

    if (number(obj, "t", &t) < 0 || number(obj, "pool", &rho) < 0 ||
        number(obj, "sessions", &n) < 0 || number(obj, "cap", &cap) < 0 || rho > 1 || n > 0x1p52 ||
        cap > 0x1p52)
        return -EBADMSG;
    if (frame && (rc = take_frame(m, obj, t)) < 0)
        return rc;
    if (!isnan(cap))
        m->cap = (int64_t)cap;
    if (isnan(t) || isnan(rho) || isnan(n))
        return 0;
    mt_live_beat(m->live, mt_beat_s(m->beat));
    if (frame && mt_beat_first(obj))
        mt_live_newcomer(m->live);
    rc = mt_live_add(m->live, t, rho, (int64_t)n);
    return rc == -EDOM ? -EBADMSG : rc > 0;
}

int mt_monitor_line(struct mt_monitor *m, const char *line, size_t n)
{
    json_t *obj = json_loadb(line, n, 0, NULL);
    const char *type;
    int rc = 0;

    if (!json_is_object(obj)) {
        json_decref(obj);
        return -EBADMSG;
    }
    type = json_string_value(json_object_get(obj, "type"));
    if (type && (!strcmp(type, "frame") || !strcmp(type, "status")))
        rc = take(m, obj, !strcmp(type, "frame"));
    json_decref(obj);
    return rc;
}

int mt_monitor_report(struct mt_monitor *m, struct mt_report *out)
{
    struct mt_report r = {.latency_p95_ms = NAN};
    int rc = mt_live_now(m->live, &r.forecast);

    if (rc < 0)
        return rc;
    r.rate = end_pace(m);
    if (m->latency.count)
        r.latency_p95_ms = (double)mt_hist_quantile(&m->latency, 0.95) / 1e6;
    r.deadline_ms = m->deadline_ms;
    r.frames = m->frames;
    r.late = m->late;
    r.unserved = m->unserved;
    r.cap = m->cap;
    r.t_collapse_s = m->t_collapse_s;
    if (m->stalled > 0) /* a last block may be free where all want two */
        r.forecast.sat_s = r.forecast.low_s = r.forecast.high_s = 0;
    if (isfinite(r.forecast.sat_s))
        r.binding = MT_BIND_MEMORY;
    else if (r.latency_p95_ms >= m->target * r.deadline_ms)
        r.binding = MT_BIND_LATENCY;
    else if (r.cap >= 0 && r.forecast.sessions >= r.cap)
        r.binding = MT_BIND_LIMIT;
    else
        r.binding = MT_BIND_NONE;
    mt_hist_clear(&m->latency);
    m->frames = m->late = m->unserved = m->stalled = 0;
    *out = r;
    return 0;
}

int mt_monitor_quarters(const struct mt_monitor *m, struct mt_forecast out[3])
{
    if (isnan(m->t_collapse_s))
        return -ENODATA;
    mt_live_quarters(m->live, m->t_collapse_s, out);
    return 0;
}
