/*
 * table.c: the metrics, one after the other. Base units, shares from 0 to 1, and never a label that
 * a client could make up more of.
 */
#include "metrics/metrics.h"

#include "control/admit.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define HORIZON_S 3600
#define TARGET    0.8 /* of the deadline, as mt-admit has it by default */

struct page {
    struct mt_expose *x;
    const struct mt_metrics_facts *f;
    const struct mt_wire_state *s;
    const struct mt_metrics_outlook *o;
};

static void one(struct page *p, const char *name, enum mt_metrics_type type, const char *unit,
                double value, const char *help)
{
    mt_expose_family(p->x, name, type, unit, help);
    mt_expose_sample(p->x, "", value, MT_NO_LABEL);
}

/* Seconds from picoseconds, as short as they are exact: labels are compared as text. */
static void seconds_text(int64_t ps, char out[32])
{
    size_t n = (size_t)snprintf(out, 32, "%" PRId64 ".%012" PRId64, ps / 1000000000000,
                                ps % 1000000000000);

    while (out[n - 1] == '0' && out[n - 2] != '.')
        out[--n] = '\0';
}

static void latency(struct page *p)
{
    int64_t count = 0, deadline_ns = llround(p->f->deadline_s * 1e9);
    char le[32];

    mt_expose_family(p->x, "metronome_frame_latency_seconds", MT_TYPE_HISTOGRAM, "seconds",
                     "Answered frames by the time since they were due; the bounds are shares of "
                     "the deadline, and what is above the deadline itself is late.");
    for (int i = 0; i < MT_WIRE_BOUNDS; i++) {
        count += p->s->within[i];
        seconds_text(deadline_ns * mt_wire_bound_permille[i], le);
        mt_expose_sample(p->x, "_bucket", (double)count, "le", le, MT_NO_LABEL);
    }
    mt_expose_sample(p->x, "_bucket", (double)p->s->answered, "le", "+Inf", MT_NO_LABEL);
    mt_expose_sample(p->x, "_sum", p->s->latency_s, MT_NO_LABEL);
    mt_expose_sample(p->x, "_count", (double)p->s->answered, MT_NO_LABEL);
}

static void frames(struct page *p)
{
    static const enum mt_status shown[] = {MT_OK, MT_LATE, MT_STALLED, MT_DROPPED, MT_FAILED};

    one(p, "metronome_frame_deadline_seconds", MT_TYPE_GAUGE, "seconds", p->f->deadline_s,
        "Time from a frame's audio being complete to its answer being due.");
    latency(p);
    mt_expose_family(p->x, "metronome_frames", MT_TYPE_COUNTER, NULL,
                     "Frames by what their records said of them.");
    for (size_t i = 0; i < MT_COUNT(shown); i++)
        mt_expose_sample(p->x, "", (double)p->s->frames[shown[i]], "status",
                         mt_status_name(shown[i]), MT_NO_LABEL);
    one(p, "metronome_empty_ticks", MT_TYPE_COUNTER, NULL, (double)p->s->empty_ticks,
        "Frame lengths in which no frame was due though there were sessions.");
    mt_expose_family(p->x, "metronome_refused", MT_TYPE_COUNTER, NULL,
                     "Sessions that were not admitted, by reason.");
    for (int i = 0; i < MT_REFUSALS; i++)
        mt_expose_sample(p->x, "", (double)p->s->refused[i], "reason",
                         mt_refusal_word((enum mt_refusal)i), MT_NO_LABEL);
    one(p, "metronome_untruthful", MT_TYPE_COUNTER, NULL, (double)p->s->untruthful,
        "Frames marked ok that nothing was decoded for.");
}

static void memory(struct page *p)
{
    const struct mt_wire_state *s = p->s;

    one(p, "metronome_sessions_active", MT_TYPE_GAUGE, NULL, s->status.sessions, "Live sessions.");
    one(p, "metronome_sessions_stalled", MT_TYPE_GAUGE, NULL, s->stalled,
        "Live sessions whose last frame found no memory.");
    one(p, "metronome_frames_pending", MT_TYPE_GAUGE, NULL, s->status.pending,
        "Frames complete and not answered.");
    one(p, "metronome_frame_oldest_seconds", MT_TYPE_GAUGE, "seconds", s->status.oldest_ms / 1e3,
        "Age of the oldest of them.");
    one(p, "metronome_kv_blocks_used", MT_TYPE_GAUGE, NULL, (double)s->blocks_used,
        "Blocks of the pool that sessions hold.");
    one(p, "metronome_kv_blocks_limit", MT_TYPE_GAUGE, NULL, (double)s->blocks,
        "Blocks of the pool.");
    one(p, "metronome_kv_block_bytes", MT_TYPE_GAUGE, "bytes", (double)p->f->block_bytes,
        "Bytes of a block.");
    one(p, "metronome_kv_evictions", MT_TYPE_COUNTER, NULL, 0,
        "Sessions whose memory was taken from them for others: never done here.");
    one(p, "metronome_kv_allocation_failures", MT_TYPE_COUNTER, NULL, (double)s->failures,
        "Frames and sessions that found no memory.");
}

/* ---- admission ---- */

static void bounds(struct page *p)
{
    const struct mt_wire_control *c = &p->s->control;
    double target = TARGET * p->f->deadline_s * 1e3, fits;

    mt_expose_family(p->x, "metronome_admit_bound_sessions", MT_TYPE_GAUGE, NULL,
                     "Sessions that each bound allows: latency by the controller's model at its "
                     "default target, memory, and configuration.");
    fits = floor((target - c->cost_a_ms) / c->cost_b_ms);
    mt_expose_sample(p->x, "", c->cost_b_ms > 0 ? fmax(fits, 0) : NAN, "bound", "latency",
                     MT_NO_LABEL);
    mt_expose_sample(p->x, "", p->f->n_mem > 0 ? (double)p->f->n_mem : INFINITY, "bound", "memory",
                     MT_NO_LABEL);
    mt_expose_sample(p->x, "", (double)p->f->max_sessions, "bound", "config", MT_NO_LABEL);
}

static void decisions(struct page *p)
{
    const struct mt_wire_control *c = &p->s->control;

    mt_expose_family(p->x, "metronome_admit_decisions", MT_TYPE_COUNTER, NULL,
                     "Caps that were set, by what was decided and why.");
    for (int i = 0; i < c->n_reasons; i++) {
        const char *why = c->reason[i].word;
        bool move = !strcmp(why, "grow") || !strcmp(why, "cut") || !strcmp(why, "set");

        mt_expose_sample(p->x, "", (double)c->reason[i].count, "decision", move ? why : "hold",
                         "reason", why, MT_NO_LABEL);
    }
    mt_expose_sample(p->x, "", (double)c->other, "decision", "hold", "reason", "other",
                     MT_NO_LABEL);
    mt_expose_family(p->x, "metronome_admit_limit_changes", MT_TYPE_COUNTER, NULL,
                     "Changes of the cap.");
    mt_expose_sample(p->x, "", (double)c->raised, "direction", "up", MT_NO_LABEL);
    mt_expose_sample(p->x, "", (double)c->lowered, "direction", "down", MT_NO_LABEL);
    mt_expose_family(p->x, "metronome_admit_state", MT_TYPE_STATESET, NULL,
                     "What the controller that set the last cap is doing; all 0: nobody controls.");
    for (int m = MT_ADMIT_WARMUP; m <= MT_ADMIT_CLOSED; m++) {
        const char *word = mt_admit_mode_name((enum mt_admit_mode)m);

        mt_expose_sample(p->x, "", !strcmp(word, c->mode), "metronome_admit_state", word,
                         MT_NO_LABEL);
    }
}

static double offered(const struct page *p)
{
    const struct mt_wire_state *s = p->s;
    double mean_s = s->closed > 0 ? s->closed_s / (double)s->closed : 0;

    return s->status.sessions + p->o->refused_per_s * mean_s;
}

static void admission(struct page *p)
{
    const struct mt_wire_control *c = &p->s->control;

    one(p, "metronome_admit_limit_sessions", MT_TYPE_GAUGE, NULL, p->s->status.cap,
        "Most sessions that are admitted now.");
    bounds(p);
    decisions(p);
    one(p, "metronome_admit_signal_seconds", MT_TYPE_GAUGE, "seconds", c->signal_ms / 1e3,
        "The controller's latency signal.");
    one(p, "metronome_admit_signal_projected_seconds", MT_TYPE_GAUGE, "seconds",
        c->projected_ms / 1e3, "The same once the windows of all live sessions are full.");
    one(p, "metronome_admit_model_base_seconds", MT_TYPE_GAUGE, "seconds", c->cost_a_ms / 1e3,
        "Cost of a frame without sessions, by the controller's fit.");
    one(p, "metronome_admit_model_slope_seconds", MT_TYPE_GAUGE, "seconds", c->cost_b_ms / 1e3,
        "Cost of one session more.");
    one(p, "metronome_admit_untruthful", MT_TYPE_COUNTER, NULL, (double)c->untruthful,
        "Observations that contradicted themselves, as the controller counts them.");
    one(p, "metronome_admit_offered_sessions", MT_TYPE_GAUGE, NULL, offered(p),
        "Sessions there would be if nobody were refused: live ones, and refusals a second times "
        "the mean duration.");
}

/* ---- what is foretold ---- */

/* The forecast's error as a normal one. */
static double collapse(const struct mt_forecast *f)
{
    double sd = (f->high_s - f->low_s) / (2 * 1.959964);

    if (!isfinite(f->sat_s))
        return isnan(f->sat_s) ? NAN : 0;
    if (!isfinite(sd) || sd <= 0)
        return f->sat_s <= HORIZON_S;
    return 0.5 * erfc((f->sat_s - HORIZON_S) / sd * M_SQRT1_2);
}

static void prediction(struct page *p)
{
    const struct mt_forecast *f = &p->o->pool;

    one(p, "metronome_predict_occupancy_ratio", MT_TYPE_GAUGE, "ratio", p->s->status.pool,
        "Used share of the pool.");
    one(p, "metronome_predict_saturation_seconds", MT_TYPE_GAUGE, "seconds", f->sat_s,
        "Time until the pool is full, by the growth of the last minute; +Inf: it does not grow.");
    one(p, "metronome_predict_saturation_low_seconds", MT_TYPE_GAUGE, "seconds", f->low_s,
        "Lower end of the 95 % interval.");
    one(p, "metronome_predict_saturation_high_seconds", MT_TYPE_GAUGE, "seconds", f->high_s,
        "Upper end of the 95 % interval.");
    mt_expose_family(p->x, "metronome_predict_collapse_ratio", MT_TYPE_GAUGE, "ratio",
                     "Probability that the pool is full within the horizon, in seconds.");
    mt_expose_sample(p->x, "", collapse(f), "horizon", "3600", MT_NO_LABEL);
}

static void health(struct page *p)
{
    struct mt_clock c = mt_clock_real();
    int64_t now = c.now_ns(&c);

    mt_expose_family(p->x, "metronome_health", MT_TYPE_GAUGE, NULL,
                     "1 where /healthz (alive) and /readyz (ready) say ok.");
    mt_expose_sample(p->x, "", !strcmp(mt_health_alive(p->s, now), "ok"), "probe", "alive",
                     MT_NO_LABEL);
    mt_expose_sample(p->x, "", !strcmp(mt_health_ready(p->s, now), "ok"), "probe", "ready",
                     MT_NO_LABEL);
}

char *mt_metrics_write(const struct mt_metrics_facts *f, const struct mt_wire_state *s,
                       const struct mt_metrics_outlook *o, enum mt_metrics_format format, size_t *n)
{
    struct page p = {.f = f, .s = s, .o = o};

    if (mt_expose_new(&p.x, format) < 0)
        return NULL;
    mt_expose_family(p.x, "metronome_build", MT_TYPE_INFO, NULL, "What is running.");
    mt_expose_sample(p.x, "", 1, "version", MT_VERSION, "backend", f->backend, MT_NO_LABEL);
    health(&p);
    frames(&p);
    memory(&p);
    admission(&p);
    prediction(&p);
    return mt_expose_end(&p.x, n);
}
