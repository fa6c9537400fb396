/*
 * tcp.c: --tcp, what clients over TCP may do.
 */
#include "wire/wire.h"

#include <errno.h>
#include <limits.h>
#include <string.h>

#define LIMITS "connections=N, per-address=N, opens=R, rate=X, idle=D, control"

void mt_wire_tcp_defaults(struct mt_wire_tcp *t)
{
    *t = (struct mt_wire_tcp){.opens_per_s = 20, .audio_rate = 16, .idle_ns = 60 * MT_NS_PER_S};
}

static int parse_one(const char *key, const char *value, struct mt_wire_tcp *t, struct mt_err *e)
{
    int64_t n;

    if (!strcmp(key, "connections") && value) {
        if (mt_parse_i64(value, 1, INT_MAX, &n) < 0)
            return mt_err_set(e, -EINVAL, "connections=%s is not a number from 1 on", value);
        t->connections = (int)n;
    } else if (!strcmp(key, "per-address") && value) {
        if (mt_parse_i64(value, 0, INT_MAX, &n) < 0)
            return mt_err_set(e, -EINVAL, "per-address=%s is not a number from 0 on", value);
        t->per_address = (int)n;
    } else if (!strcmp(key, "opens") && value) {
        if (mt_parse_double(value, 0, 1e6, &t->opens_per_s) < 0)
            return mt_err_set(e, -EINVAL, "opens=%s is not a number in 0..1000000", value);
    } else if (!strcmp(key, "rate") && value) {
        if (mt_parse_double(value, 1, 1e6, &t->audio_rate) < 0)
            return mt_err_set(e, -EINVAL, "rate=%s is not a number in 1..1000000", value);
    } else if (!strcmp(key, "idle") && value) {
        if (mt_parse_duration(value, &t->idle_ns) < 0)
            return mt_err_set(e, -EINVAL, "idle=%s is not a duration", value);
    } else if (!strcmp(key, "control") && !value) {
        t->control = true;
    } else {
        return mt_err_set(e, -EINVAL, "'%s' is none of " LIMITS, key);
    }
    return 0;
}

int mt_wire_tcp_parse(const char *list, struct mt_wire_tcp *out, struct mt_err *e)
{
    struct mt_wire_tcp t = *out;
    char buf[256], *cursor = buf, *key, *value;
    int rc = 0;

    if (!*list || snprintf(buf, sizeof(buf), "%s", list) >= (int)sizeof(buf))
        return mt_err_set(e, -EINVAL, "not a list of " LIMITS);
    while (!rc && mt_parse_pair(&cursor, &key, &value))
        rc = parse_one(key, value, &t, e);
    if (!rc)
        *out = t;
    return rc;
}
