/*
 * fault.c: --fault, what may be broken on purpose.
 */
#include "wire/wire.h"

#include <errno.h>
#include <string.h>

#define DROP_DEFAULT 10
#define FAULTS       "stop-compute, slow, drop-client, full-disk"

static int parse_one(const char *key, const char *value, struct mt_wire_fault *f, struct mt_err *e)
{
    if (!strcmp(key, "stop-compute")) {
        f->stop_compute = true;
        if (value && mt_parse_duration(value, &f->stop_ns) < 0)
            return mt_err_set(e, -EINVAL, "stop-compute=%s is not a duration", value);
    } else if (!strcmp(key, "slow")) {
        if (!value || mt_parse_double(value, 1, 1000, &f->slow) < 0)
            return mt_err_set(e, -EINVAL, "slow=%s is not a factor in 1..1000", value ? value : "");
    } else if (!strcmp(key, "drop-client")) {
        f->drop = DROP_DEFAULT;
        if (value && mt_parse_i64(value, 1, INT64_MAX, &f->drop) < 0)
            return mt_err_set(e, -EINVAL, "drop-client=%s is not a number from 1 on", value);
    } else if (!strcmp(key, "full-disk") && !value) {
        f->full_disk = true;
    } else {
        return mt_err_set(e, -EINVAL, "unknown '%s' (" FAULTS ")", key);
    }
    return 0;
}

int mt_wire_fault_parse(const char *list, struct mt_wire_fault *out, struct mt_err *e)
{
    struct mt_wire_fault f = *out;
    char buf[256], *cursor = buf, *key, *value;
    int rc = 0;

    if (!*list || snprintf(buf, sizeof(buf), "%s", list) >= (int)sizeof(buf))
        return mt_err_set(e, -EINVAL, "not a list of faults (" FAULTS ")");
    while (!rc && mt_parse_pair(&cursor, &key, &value))
        rc = parse_one(key, value, &f, e);
    if (!rc)
        *out = f;
    return rc;
}
