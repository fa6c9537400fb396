/*
 * messages.c: the objects of the wire, all but the record: what a client asks for, checked member
 * by member, and what the server says of itself and of a session.
 */
#include "wire/internal.h"

#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* As lib/base prints records: 15 digits show each number as it was meant. */
#define LINE_FLAGS (JSON_COMPACT | JSON_REAL_PRECISION(15))

json_t *mt_wire_object(bool first, const char *type)
{
    json_t *o = json_object();

    if (first)
        json_object_set_new(o, "metronome", json_integer(MT_WIRE_VERSION));
    json_object_set_new(o, "type", json_string(type));
    return o;
}

char *mt_wire_line(json_t *obj, size_t *n)
{
    char *text = obj ? json_dumps(obj, LINE_FLAGS) : NULL;

    json_decref(obj);
    if (!text)
        return NULL;
    *n = strlen(text);
    text[(*n)++] = '\n'; /* in the terminator's place: a line has its length, not a NUL */
    return text;
}

char *mt_wire_speech(const struct mt_record *r, int rate_hz, size_t *n)
{
    size_t bytes = (size_t)r->n_speech * sizeof(int16_t), len = 0;
    json_t *o = r->n_speech > 0 ? mt_wire_object(false, "audio") : NULL;
    char *line, *msg;

    if (!o)
        return NULL;
    json_object_set_new(o, "session", json_sprintf("%" PRId64, r->session));
    json_object_set_new(o, "frame", json_integer(r->frame));
    json_object_set_new(o, "rate", json_integer(rate_hz));
    json_object_set_new(o, "format", json_string("s16le"));
    json_object_set_new(o, "bytes", json_integer((json_int_t)bytes));
    line = mt_wire_line(o, &len);
    msg = line ? realloc(line, len + bytes) : NULL;
    if (!msg) {
        free(line);
        return NULL;
    }
    for (int i = 0; i < r->n_speech; i++) {
        long v = lrintf(r->speech[i] * 32767.0F);
        uint16_t s = (uint16_t)(v < -32768 ? -32768 : v > 32767 ? 32767 : v);

        msg[len + 2 * (size_t)i] = (char)(s & 0xff);
        msg[len + 2 * (size_t)i + 1] = (char)(s >> 8);
    }
    *n = len + bytes;
    return msg;
}

int mt_wire_check_version(json_t *msg, struct mt_err *e)
{
    json_t *v = json_object_get(msg, "metronome");

    if (!v)
        return mt_err_set(e, -EPROTO, "the first object must have \"metronome\":%d",
                          MT_WIRE_VERSION);
    if (!json_is_integer(v) || json_integer_value(v) != MT_WIRE_VERSION)
        return mt_err_set(e, -EPROTO, "\"metronome\": version %d is spoken here", MT_WIRE_VERSION);
    return 0;
}

/* ---- open ---- */

static int get_int(json_t *msg, const char *key, int64_t lo, int64_t hi, int64_t *out,
                   struct mt_err *e)
{
    json_t *v = json_object_get(msg, key);

    if (!v || json_is_null(v))
        return 0;
    if (!json_is_integer(v) || json_integer_value(v) < lo || json_integer_value(v) > hi)
        return mt_err_set(e, -EINVAL, "\"%s\": expected an integer in %" PRId64 "..%" PRId64, key,
                          lo, hi);
    *out = json_integer_value(v);
    return 1;
}

static int get_real(json_t *msg, const char *key, double lo, double hi, float *out,
                    struct mt_err *e)
{
    json_t *v = json_object_get(msg, key);
    double d = json_number_value(v);

    if (!v || json_is_null(v))
        return 0;
    if (!json_is_number(v) || !(d >= lo && d <= hi))
        return mt_err_set(e, -EINVAL, "\"%s\": expected a number in %g..%g", key, lo, hi);
    *out = (float)d;
    return 1;
}

static int get_bool(json_t *msg, const char *key, bool *out, struct mt_err *e)
{
    json_t *v = json_object_get(msg, key);

    if (!v || json_is_null(v))
        return 0;
    if (!json_is_boolean(v))
        return mt_err_set(e, -EINVAL, "\"%s\": expected true or false", key);
    *out = json_is_true(v);
    return 1;
}

static int get_format(json_t *msg, enum mt_pcm *out, struct mt_err *e)
{
    json_t *v = json_object_get(msg, "format");
    const char *s = json_string_value(v);

    *out = MT_PCM_S16LE;
    if (!v || json_is_null(v) || (s && !strcmp(s, "s16le")))
        return 0;
    if (!s || strcmp(s, "f32le") != 0)
        return mt_err_set(e, -EINVAL, "\"format\": expected \"s16le\" or \"f32le\"");
    *out = MT_PCM_F32LE;
    return 0;
}

static int parse_members(json_t *msg, struct mt_wire_open *o, struct mt_err *e)
{
    struct mt_session_opts *s = &o->session;
    int64_t rate = o->rate_hz, seed = 0, top_k = s->top_k, answer = s->answer_tokens;
    bool speech = true;
    float frame_ms = 0;
    int rc;

    if ((rc = get_int(msg, "rate", MT_WIRE_RATE_MIN, MT_WIRE_RATE_MAX, &rate, e)) < 0 ||
        (rc = get_format(msg, &o->format, e)) < 0 ||
        (rc = get_bool(msg, "tokens", &o->tokens, e)) < 0 ||
        (rc = get_bool(msg, "speech", &speech, e)) < 0 ||
        (rc = get_real(msg, "temperature", 0, 100, &s->temperature, e)) < 0 ||
        (rc = get_int(msg, "top_k", 0, INT_MAX, &top_k, e)) < 0 ||
        (rc = get_real(msg, "top_p", 0, 1, &s->top_p, e)) < 0 ||
        (rc = get_int(msg, "window", 1, INT64_MAX, &s->window, e)) < 0 ||
        (rc = get_int(msg, "answer_tokens", 1, INT_MAX, &answer, e)) < 0 ||
        (rc = get_real(msg, "frame_ms", 0, 600000, &frame_ms, e)) < 0 ||
        (rc = get_bool(msg, "live", &s->live, e)) < 0 ||
        (rc = get_int(msg, "seed", INT64_MIN, INT64_MAX, &seed, e)) < 0)
        return rc;
    s->has_seed = s->has_seed || rc == 1;
    s->seed = rc == 1 ? (uint64_t)seed : s->seed;
    o->rate_hz = (int)rate;
    o->mute = !speech;
    s->top_k = (int)top_k;
    s->answer_tokens = (int)answer;
    s->frame_ns = llround((double)frame_ms * 1e6);
    return 0;
}

int mt_wire_open_parse(json_t *msg, int default_rate, struct mt_wire_open *out, struct mt_err *e)
{
    json_t *prompt = json_object_get(msg, "prompt");
    int rc;

    memset(out, 0, sizeof(*out));
    mt_session_defaults(&out->session);
    out->rate_hz = default_rate;
    if ((rc = parse_members(msg, out, e)) < 0)
        return rc;
    if (out->session.top_p <= 0)
        return mt_err_set(e, -EINVAL, "\"top_p\": expected a number above 0, at most 1");
    if (prompt && !json_is_null(prompt)) {
        if (!json_is_string(prompt))
            return mt_err_set(e, -EINVAL, "\"prompt\": expected a text");
        out->system = strdup(json_string_value(prompt));
        if (!out->system)
            return mt_err_set(e, -ENOMEM, "out of memory");
        out->session.system = out->system;
    }
    return 0;
}

json_t *mt_wire_open_json(const struct mt_wire_open *o)
{
    const struct mt_session_opts *s = &o->session;
    const char *system = o->system ? o->system : s->system;
    json_t *msg = mt_wire_object(true, "open");
    json_t *prompt;

    json_object_set_new(msg, "rate", json_integer(o->rate_hz));
    json_object_set_new(msg, "format", json_string(o->format == MT_PCM_F32LE ? "f32le" : "s16le"));
    if (system) {
        prompt = json_string(system);
        if (!prompt) {
            json_decref(msg);
            return NULL;
        }
        json_object_set_new(msg, "prompt", prompt);
    }
    if (s->has_seed)
        json_object_set_new(msg, "seed", json_integer((json_int_t)s->seed));
    if (s->temperature > 0)
        mt_json_set_real(msg, "temperature", s->temperature);
    if (s->top_k > 0)
        json_object_set_new(msg, "top_k", json_integer(s->top_k));
    if (s->top_p > 0 && s->top_p < 1)
        mt_json_set_real(msg, "top_p", s->top_p);
    if (s->window > 0)
        json_object_set_new(msg, "window", json_integer(s->window));
    if (s->answer_tokens > 0)
        json_object_set_new(msg, "answer_tokens", json_integer(s->answer_tokens));
    if (s->frame_ns > 0)
        mt_json_set_real(msg, "frame_ms", (double)s->frame_ns / 1e6);
    if (o->tokens)
        json_object_set_new(msg, "tokens", json_true());
    if (o->mute)
        json_object_set_new(msg, "speech", json_false());
    if (s->live)
        json_object_set_new(msg, "live", json_true());
    return msg;
}

/* ---- the server's ---- */

/* n samples of the model at the client's rate; whole when that is exact, as it is for common rates.
 */
static json_t *at_rate(int64_t n, int64_t from_hz, int64_t to_hz)
{
    int64_t scaled = n * to_hz;

    if (scaled % from_hz == 0)
        return json_integer(scaled / from_hz);
    return mt_json_real((double)scaled / (double)from_hz);
}

static void set_kv(json_t *o, const struct mt_engine_opts *eo, int64_t window)
{
    struct mt_policy p = eo->policy;
    char text[64];

    if (window > 0)
        p.window = window;
    mt_policy_format(&p, text);
    json_object_set_new(o, "kv", json_string(text));
}

json_t *mt_wire_opened_json(const struct mt_engine *eng, const struct mt_model *m,
                            const struct mt_wire_open *o, int64_t session, int64_t lag_samples)
{
    const struct mt_engine_plan *plan = mt_engine_plan(eng);
    const struct mt_engine_opts *eo = mt_engine_options(eng);
    const struct mt_model_info *info = mt_model_info(m);
    int64_t model_hz = info->sample_rate_hz;
    int64_t ahead = (plan->lookahead_samples * o->rate_hz + model_hz - 1) / model_hz + lag_samples;
    json_t *msg = mt_wire_object(true, "opened");

    json_object_set_new(msg, "session", json_sprintf("%" PRId64, session));
    json_object_set_new(msg, "model", json_string(info->name));
    json_object_set_new(msg, "rate", json_integer(o->rate_hz));
    json_object_set_new(msg, "frame_samples", at_rate(plan->frame_samples, model_hz, o->rate_hz));
    json_object_set_new(msg, "lookahead_samples", json_integer(ahead));
    mt_json_set_real(msg, "frame_s", plan->frame_s);
    mt_json_set_real(msg, "deadline_ms", plan->deadline_s * 1e3);
    set_kv(msg, eo, o->session.window);
    if (info->speech_rate_hz)
        json_object_set_new(msg, "speech_rate", json_integer(info->speech_rate_hz));
    json_object_set_new(msg, "pool_blocks", json_integer(plan->pool_blocks));
    json_object_set_new(msg, "block", json_integer(eo->block_tokens));
    json_object_set_new(msg, "text", json_string(""));
    return msg;
}

json_t *mt_wire_refused_json(const char *reason, double retry_s)
{
    json_t *o = mt_wire_object(true, "refused");

    json_object_set_new(o, "reason", json_string(reason));
    mt_json_set_real(o, "retry_s", retry_s);
    return o;
}

json_t *mt_wire_closed_json(int64_t session, const char *reason, int64_t frames)
{
    json_t *o = mt_wire_object(false, "closed");

    json_object_set_new(o, "session", json_sprintf("%" PRId64, session));
    json_object_set_new(o, "reason", json_string(reason));
    json_object_set_new(o, "frames", json_integer(frames));
    json_object_set_new(o, "text", json_string(""));
    return o;
}

json_t *mt_wire_error_json(bool first, const char *text)
{
    json_t *o = mt_wire_object(first, "error");
    json_t *t = json_string(text);

    json_object_set_new(o, "error", t ? t : json_string("an error whose text is not UTF-8"));
    return o;
}

json_t *mt_wire_status_json(bool first, const struct mt_wire_status *s, const char *health,
                            const struct mt_engine *eng)
{
    const struct mt_engine_opts *eo = mt_engine_options(eng);
    json_t *o = mt_wire_object(first, "status");

    mt_json_set_real(o, "t", s->t_s);
    json_object_set_new(o, "sessions", json_integer(s->sessions));
    json_object_set_new(o, "pending", json_integer(s->pending));
    mt_json_set_real(o, "oldest_ms", s->oldest_ms);
    mt_json_set_real(o, "pool", s->pool);
    json_object_set_new(o, "cap", json_integer(s->cap));
    json_object_set_new(o, "health", json_string(health));
    set_kv(o, eo, 0);
    if (eo->policy.bounded) /* what a controller has to know of memory */
        json_object_set_new(o, "n_mem", json_integer(mt_engine_plan(eng)->n_mem));
    return o;
}

json_t *mt_wire_stats_json(const struct mt_engine_stats *s)
{
    json_t *o = mt_wire_object(true, "stats"), *frames = json_object(), *latency = json_object();

    mt_json_set_real(o, "t", s->t_s);
    json_object_set_new(o, "sessions", json_integer(s->sessions));
    json_object_set_new(o, "cap", json_integer(s->cap));
    json_object_set_new(o, "pending", json_integer(s->pending));
    mt_json_set_real(o, "oldest_ms", s->oldest_ms);
    mt_json_set_real(o, "pool", s->pool);
    json_object_set_new(o, "blocks_used", json_integer(s->blocks_used));
    json_object_set_new(o, "blocks", json_integer(s->blocks));
    for (int i = 0; i < (int)MT_COUNT(s->frames); i++)
        json_object_set_new(frames, mt_status_name((enum mt_status)i), json_integer(s->frames[i]));
    json_object_set_new(o, "frames", frames);
    json_object_set_new(o, "untruthful", json_integer(s->untruthful));
    json_object_set_new(o, "refused", json_integer(s->refused));
    json_object_set_new(o, "tokens_in", json_integer(s->tokens_in));
    json_object_set_new(o, "tokens_out", json_integer(s->tokens_out));
    json_object_set_new(o, "steps", json_integer(s->steps));
    json_object_set_new(o, "rows", json_integer(s->rows));
    json_object_set_new(o, "draining", json_boolean(s->draining));
    json_object_set_new(latency, "count", json_integer((json_int_t)s->latency.count));
    if (s->latency.count > 0) {
        mt_json_set_real(latency, "p50_ms", (double)mt_hist_quantile(&s->latency, 0.5) / 1e6);
        mt_json_set_real(latency, "p99_ms", (double)mt_hist_quantile(&s->latency, 0.99) / 1e6);
        mt_json_set_real(latency, "p999_ms", (double)mt_hist_quantile(&s->latency, 0.999) / 1e6);
        mt_json_set_real(latency, "max_ms", (double)s->latency.max / 1e6);
    }
    json_object_set_new(o, "latency", latency);
    return o;
}

json_t *mt_wire_ready_json(const struct mt_engine *eng, const struct mt_model *m)
{
    const struct mt_engine_plan *plan = mt_engine_plan(eng);
    const struct mt_engine_opts *eo = mt_engine_options(eng);
    const struct mt_model_info *info = mt_model_info(m);
    json_t *o = mt_wire_object(true, "ready"), *bytes = json_object();

    json_object_set_new(o, "tool", json_string("mt-serve"));
    json_object_set_new(o, "version", json_string(MT_VERSION));
    json_object_set_new(o, "model", json_string(info->name));
    json_object_set_new(o, "backend", json_string(mt_model_backend(m)->ops->name));
    json_object_set_new(o, "rate", json_integer(info->sample_rate_hz));
    if (info->speech_rate_hz)
        json_object_set_new(o, "speech_rate", json_integer(info->speech_rate_hz));
    mt_json_set_real(o, "frame_s", plan->frame_s);
    mt_json_set_real(o, "deadline_ms", plan->deadline_s * 1e3);
    json_object_set_new(o, "frame_samples", json_integer(plan->frame_samples));
    json_object_set_new(o, "lookahead_samples", json_integer(plan->lookahead_samples));
    json_object_set_new(o, "mode", json_string(eo->mode == MT_MODE_FREE ? "free" : "turn"));
    json_object_set_new(o, "answer_tokens", json_integer(eo->answer_tokens));
    json_object_set_new(o, "step_tokens", json_integer(eo->step_tokens));
    json_object_set_new(o, "max_sessions", json_integer(eo->max_sessions));
    mt_json_set_real(o, "idle_timeout_s", (double)eo->idle_ns / 1e9);
    json_object_set_new(o, "seed", json_integer((json_int_t)eo->seed));
    if (eo->silent_stall)
        json_object_set_new(o, "silent_stall", json_true());
    set_kv(o, eo, 0);
    json_object_set_new(o, "rope", json_string(eo->policy.rope_absolute ? "absolute" : "cache"));
    json_object_set_new(o, "kv_type", json_string(mt_dtype_name(eo->kv_type)));
    json_object_set_new(o, "block", json_integer(eo->block_tokens));
    json_object_set_new(o, "block_bytes", json_integer(plan->block_bytes));
    json_object_set_new(o, "pool_blocks", json_integer(plan->pool_blocks));
    json_object_set_new(o, "pool_bytes", json_integer(plan->pool_bytes));
    json_object_set_new(o, "weight_bytes", json_integer(info->weight_bytes));
    json_object_set_new(o, "step_bytes", json_integer(mt_model_backend(m)->rows_held));
    json_object_set_new(o, "frame_tokens", json_integer(plan->frame_tokens));
    json_object_set_new(o, "blocks_session", json_integer(plan->blocks_per_session));
    json_object_set_new(bytes, "kv", json_integer(plan->kv_bytes_session));
    for (int i = 0; i < plan->n_state; i++)
        json_object_set_new(bytes, plan->state[i].name, json_integer(plan->state[i].bytes));
    json_object_set_new(bytes, "state", json_integer(plan->state_bytes_session));
    json_object_set_new(o, "bytes_session", bytes);
    json_object_set_new(o, "n_mem", json_integer(plan->n_mem));
    return o;
}
