/*
 * meter.c: what a server knows of itself. The engine's thread counts in a copy of its own and
 * leaves it under the lock when its loop comes round; whoever reads finds a whole state, and how
 * long ago the loop was there. A loop that does not come round can't hide it.
 */
#include "wire/meter.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

const int mt_wire_bound_permille[MT_WIRE_BOUNDS] = {250, 500,  700,  800,  900,
                                                    950, 1000, 1250, 2000, 5000};

static const char *const refusals[] = {"limit",   "memory", "pace",    "warmup",
                                       "stalled", "drain",  "shutdown"};

const char *mt_refusal_word(enum mt_refusal r)
{
    return refusals[r];
}

int mt_wire_meter_new(struct mt_wire_meter **out)
{
    struct mt_wire_meter *m = calloc(1, sizeof(*m));

    *out = NULL;
    if (!m || pthread_mutex_init(&m->lock, NULL)) {
        free(m);
        return -ENOMEM;
    }
    m->control.signal_ms = m->control.projected_ms = NAN;
    m->control.cost_a_ms = m->control.cost_b_ms = NAN;
    *out = m;
    return 0;
}

void mt_wire_meter_free(struct mt_wire_meter **m)
{
    if (*m)
        pthread_mutex_destroy(&(*m)->lock);
    free(*m);
    *m = NULL;
}

/* ---- the engine's thread ---- */

void mt_meter_begin(struct mt_wire_meter *m, const struct mt_engine *eng, int64_t now_ns)
{
    const struct mt_engine_plan *plan = mt_engine_plan(eng);

    m->own = (struct mt_wire_state){
        .since_ns = now_ns,
        .beat_ns = now_ns,
        .frame_ns = llround(plan->frame_s * 1e9),
        .deadline_ns = llround(plan->deadline_s * 1e9),
        .status.cap = mt_engine_options(eng)->max_sessions,
        .blocks = plan->pool_blocks,
    };
    pthread_mutex_lock(&m->lock);
    m->state = m->own;
    pthread_mutex_unlock(&m->lock);
}

static void met(struct mt_wire_meter *m)
{
    m->own.warm = true;
    m->own.missed = 0;
}

static void missed(struct mt_wire_meter *m, const char *what)
{
    m->own.missed++;
    m->own.miss = what;
}

static void answered(struct mt_wire_state *s, double latency_ms)
{
    int64_t ns = llround(latency_ms * 1e6);
    int i = 0;

    /* The same comparison as the engine's, so that what is above 1 is what is late. */
    while (i < MT_WIRE_BOUNDS && ns * 1000 > s->deadline_ns * mt_wire_bound_permille[i])
        i++;
    s->within[i]++;
    s->answered++;
    s->latency_s += (double)ns / 1e9;
}

void mt_meter_frame(struct mt_wire_meter *m, const struct mt_record *r)
{
    struct mt_wire_state *s = &m->own;
    bool lie = mt_status_untruthful(r->status, r->tokens_out);

    s->frames[r->status]++;
    s->untruthful += lie;
    s->failures += lie || r->status == MT_STALLED;
    m->tick_busy = true;
    if (!lie && (r->status == MT_OK || r->status == MT_LATE))
        answered(s, r->latency_ms);
    if (lie)
        missed(m, "untruthful");
    else if (r->status == MT_OK)
        met(m);
    else if (r->status != MT_DROPPED || (r->reason && !strcmp(r->reason, "backlog")))
        missed(m, mt_status_name(r->status)); /* a client that leaves is no fault of ours */
}

void mt_meter_warm(struct mt_wire_meter *m, int64_t latency_ns)
{
    if (latency_ns < 0)
        missed(m, latency_ns == -ENOSPC ? "stalled" : "error");
    else if (latency_ns <= m->own.deadline_ns)
        met(m);
    else
        missed(m, "late");
}

static int refusal_of(const char *reason)
{
    for (int i = 0; i < MT_REFUSALS; i++)
        if (!strcmp(refusals[i], reason))
            return i;
    return MT_REFUSED_LIMIT;
}

void mt_meter_refused(struct mt_wire_meter *m, const char *reason)
{
    int why = refusal_of(reason);

    m->own.refused[why]++;
    m->own.failures += why == MT_REFUSED_MEMORY;
}

/* A frame's length has passed: was anything due in it? */
static void count_ticks(struct mt_wire_meter *m, int64_t now_ns)
{
    struct mt_wire_state *s = &m->own;
    int64_t tick = s->frame_ns > 0 ? (now_ns - s->since_ns) / s->frame_ns : 0;

    m->tick_busy = m->tick_busy || s->status.pending > 0;
    if (tick == m->tick)
        return;
    if (s->status.sessions > 0)
        s->empty_ticks += tick - m->tick - m->tick_busy;
    m->tick = tick;
    m->tick_busy = false;
}

void mt_meter_publish(struct mt_wire_meter *m, const struct mt_engine_stats *s, int64_t now_ns)
{
    m->own.status = (struct mt_wire_status){.t_s = s->t_s,
                                            .oldest_ms = s->oldest_ms,
                                            .pool = s->pool,
                                            .sessions = s->sessions,
                                            .pending = s->pending,
                                            .cap = s->cap};
    m->own.draining = s->draining;
    m->own.blocks_used = s->blocks_used;
    m->own.blocks = s->blocks;
    m->own.closed = s->closed;
    m->own.closed_s = s->closed_s;
    m->own.beat_ns = now_ns;
    count_ticks(m, now_ns);
    pthread_mutex_lock(&m->lock);
    m->state = m->own;
    pthread_mutex_unlock(&m->lock);
}

static void visit_counts(struct mt_state_io *io, const char *what, int64_t *v, size_t n)
{
    for (size_t i = 0; i < n; i++)
        mt_state_i64(io, what, &v[i], 0, INT64_MAX);
}

void mt_meter_visit(struct mt_wire_meter *m, struct mt_state_io *io)
{
    struct mt_wire_state *s = &m->own;

    visit_counts(io, "frames", s->frames, MT_COUNT(s->frames));
    visit_counts(io, "untruthful frames", &s->untruthful, 1);
    visit_counts(io, "failures", &s->failures, 1);
    visit_counts(io, "latencies", s->within, MT_COUNT(s->within));
    visit_counts(io, "frames answered", &s->answered, 1);
    mt_state_f64(io, "latency in all", &s->latency_s);
    visit_counts(io, "refused sessions", s->refused, MT_COUNT(s->refused));
    visit_counts(io, "refused connections", m->refused, MT_COUNT(m->refused));
    visit_counts(io, "empty ticks", &s->empty_ticks, 1);
}

/* ---- the I/O thread ---- */

void mt_meter_turned_away(struct mt_wire_meter *m, enum mt_refusal why)
{
    pthread_mutex_lock(&m->lock);
    m->refused[why]++;
    pthread_mutex_unlock(&m->lock);
}

/* A word that may be a label, cut to its room. False for what is none. */
static bool word_of(json_t *v, char *out, size_t room)
{
    const char *s = json_string_value(v);
    size_t n = s ? strspn(s, "abcdefghijklmnopqrstuvwxyz_-") : 0;

    if (n == 0 || s[n] || n >= room)
        return false;
    memcpy(out, s, n + 1);
    return true;
}

static double real_of(json_t *request, const char *key)
{
    json_t *v = json_object_get(request, key);

    return json_is_number(v) ? json_number_value(v) : NAN;
}

/* Bounded: a client can't make more words than the table has. */
static void count_reason(struct mt_wire_control *c, const char *word)
{
    int i = 0;

    while (i < c->n_reasons && strcmp(c->reason[i].word, word) != 0)
        i++;
    if (i == MT_WIRE_DECISIONS) {
        c->other++;
        return;
    }
    if (i == c->n_reasons)
        snprintf(c->reason[c->n_reasons++].word, sizeof(c->reason[i].word), "%s", word);
    c->reason[i].count++;
}

void mt_meter_capped(struct mt_wire_meter *m, json_t *request, int cap)
{
    json_t *untruthful = json_object_get(request, "untruthful");
    struct mt_wire_control *c = &m->control;
    char word[sizeof(c->reason[0].word)];

    pthread_mutex_lock(&m->lock);
    if (!word_of(json_object_get(request, "mode"), c->mode, sizeof(c->mode)))
        c->mode[0] = '\0';
    count_reason(c, word_of(json_object_get(request, "reason"), word, sizeof(word)) ? word : "set");
    c->raised += cap > m->state.status.cap;
    c->lowered += cap < m->state.status.cap;
    c->signal_ms = real_of(request, "signal_ms");
    c->projected_ms = real_of(request, "projected_ms");
    c->cost_a_ms = real_of(request, "cost_a_ms");
    c->cost_b_ms = real_of(request, "cost_b_ms");
    if (json_is_integer(untruthful) && json_integer_value(untruthful) >= 0)
        c->untruthful = json_integer_value(untruthful);
    pthread_mutex_unlock(&m->lock);
}

/* ---- anybody ---- */

void mt_wire_meter_read(struct mt_wire_meter *m, int64_t now_ns, struct mt_wire_state *out)
{
    double age_s;

    pthread_mutex_lock(&m->lock);
    *out = m->state;
    out->control = m->control;
    for (int i = 0; i < MT_REFUSALS; i++)
        out->refused[i] += m->refused[i];
    pthread_mutex_unlock(&m->lock);
    if (out->since_ns == 0)
        return;
    age_s = (double)(now_ns - out->beat_ns) / 1e9;
    age_s = age_s > 0 ? age_s : 0;
    out->status.t_s += age_s;
    if (out->status.pending > 0) /* a thread that is stuck in a tick can't hide it */
        out->status.oldest_ms += age_s * 1e3;
}
