/*
 * record.c: a frame's record as a line, and back. Writing is one place, so that every record of
 * every tool has the same members; reading accepts whatever says the same, and calls the rest
 * broken.
 */
#include "wire/internal.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <string.h>

/* The engine hands out whole UTF-8; should it ever not, the record is still a record. */
static json_t *text_json(const char *text)
{
    json_t *t = json_string(text ? text : "");

    return t ? t : json_string("\xef\xbf\xbd");
}

json_t *mt_wire_record_json(const struct mt_record *r, bool tokens)
{
    json_t *o = mt_wire_object(false, "frame");

    if (!o)
        return NULL;
    json_object_set_new(o, "session", json_sprintf("%" PRId64, r->session));
    json_object_set_new(o, "frame", json_integer(r->frame));
    json_object_set_new(o, "status", json_string(mt_status_name(r->status)));
    if (r->reason)
        json_object_set_new(o, "reason", text_json(r->reason));
    if (r->shortened)
        json_object_set_new(o, "shortened", json_true());
    mt_json_set_real(o, "t", r->t_s);
    mt_json_set_real(o, "latency_ms", r->latency_ms);
    mt_json_set_real(o, "deadline_ms", r->deadline_ms);
    mt_json_set_real(o, "wait_ms", r->wait_ms);
    mt_json_set_real(o, "encode_ms", r->encode_ms);
    mt_json_set_real(o, "prefill_ms", r->prefill_ms);
    mt_json_set_real(o, "decode_ms", r->decode_ms);
    json_object_set_new(o, "tokens_in", json_integer(r->tokens_in));
    json_object_set_new(o, "tokens_out", json_integer(r->tokens_out));
    json_object_set_new(o, "kv_tokens", json_integer(r->kv_tokens));
    mt_json_set_real(o, "pool", r->pool);
    json_object_set_new(o, "sessions", json_integer(r->sessions));
    json_object_set_new(o, "cap", json_integer(r->cap));
    json_object_set_new(o, "text", text_json(r->text));
    if (tokens) {
        json_t *ids = json_array();

        for (int i = 0; i < r->tokens_out && r->tokens; i++)
            json_array_append_new(ids, json_integer(r->tokens[i]));
        json_object_set_new(o, "tokens", ids);
    }
    return o;
}

/* A count: -1 when absent. False when it is there and no count. */
static bool count_of(json_t *obj, const char *key, int64_t max, int64_t *out)
{
    json_t *v = json_object_get(obj, key);

    *out = -1;
    if (!v || json_is_null(v))
        return true;
    if (!json_is_integer(v) || json_integer_value(v) < 0 || json_integer_value(v) > max)
        return false;
    *out = json_integer_value(v);
    return true;
}

static bool int_of(json_t *obj, const char *key, int *out)
{
    int64_t v;
    bool good = count_of(obj, key, INT_MAX, &v);

    *out = (int)v;
    return good;
}

static bool real_of(json_t *obj, const char *key, double *out)
{
    json_t *v = json_object_get(obj, key);

    *out = NAN;
    if (!v || json_is_null(v))
        return true;
    *out = json_number_value(v);
    return json_is_number(v);
}

static bool text_of(json_t *obj, const char *key, const char **out)
{
    json_t *v = json_object_get(obj, key);

    *out = json_string_value(v);
    return !v || json_is_null(v) || *out;
}

static bool session_of(json_t *obj, struct mt_record *r, const char **name)
{
    json_t *v = json_object_get(obj, "session");

    if (json_is_integer(v)) {
        if (json_object_set_new(obj, "session",
                                json_sprintf("%lld", (long long)json_integer_value(v))))
            return false;
        v = json_object_get(obj, "session");
    }
    *name = json_string_value(v);
    if (!*name)
        return false;
    if (mt_parse_i64(*name, 0, INT64_MAX, &r->session) < 0)
        r->session = -1; /* somebody else's name, which is fine */
    return true;
}

int mt_wire_record_parse(json_t *obj, struct mt_record *out, const char **session)
{
    const char *type = json_string_value(json_object_get(obj, "type"));
    const char *status = json_string_value(json_object_get(obj, "status"));
    json_t *shortened = json_object_get(obj, "shortened");
    int s;

    memset(out, 0, sizeof(*out));
    *session = NULL;
    if (!type || strcmp(type, "frame") != 0)
        return -ENOMSG;
    s = status ? mt_status_parse(status) : -1;
    if (s < 0 || !session_of(obj, out, session))
        return -EPROTO;
    out->status = (enum mt_status)s;
    out->shortened = json_is_true(shortened);
    if (!count_of(obj, "frame", INT64_MAX, &out->frame) || out->frame < 0 ||
        (shortened && !json_is_boolean(shortened)) || !text_of(obj, "reason", &out->reason) ||
        !text_of(obj, "text", &out->text) || !real_of(obj, "t", &out->t_s) ||
        !real_of(obj, "latency_ms", &out->latency_ms) ||
        !real_of(obj, "deadline_ms", &out->deadline_ms) ||
        !real_of(obj, "wait_ms", &out->wait_ms) || !real_of(obj, "encode_ms", &out->encode_ms) ||
        !real_of(obj, "prefill_ms", &out->prefill_ms) ||
        !real_of(obj, "decode_ms", &out->decode_ms) || !real_of(obj, "pool", &out->pool) ||
        !int_of(obj, "tokens_in", &out->tokens_in) ||
        !int_of(obj, "tokens_out", &out->tokens_out) ||
        !count_of(obj, "kv_tokens", INT64_MAX, &out->kv_tokens) ||
        !int_of(obj, "sessions", &out->sessions) || !int_of(obj, "cap", &out->cap))
        return -EPROTO;
    return 0;
}
