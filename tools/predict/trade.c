/*
 * trade.c: what a window costs and what it brings: each setting that mt-probe quality measured, with
 * the sessions that the pool and the beat hold under it.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "tools/predict/predict.h"

struct trade {
    const struct opts *o;
    int64_t settings;
    int status; /* of what could not be planned or printed */
};

static int type_of(const char *name, enum mt_dtype *out)
{
    static const enum mt_dtype types[] = {MT_F32, MT_F16, MT_BF16, MT_INT8, MT_FP8};

    for (size_t i = 0; i < MT_COUNT(types); i++)
        if (name && !strcmp(name, mt_dtype_name(types[i]))) {
            *out = types[i];
            return 0;
        }
    return -EBADMSG;
}

/* What the bound costs once it bounds: behind the first token that is masked. */
static void set_cost(json_t *out, const json_t *row)
{
    static const char *const keys[] = {"diff", "low", "high"};
    const json_t *after = json_object_get(row, "after");

    for (size_t i = 0; i < MT_COUNT(keys); i++) {
        const json_t *v = json_object_get(after, keys[i]);

        if (json_is_number(v))
            predict_set(out, keys[i], json_number_value(v));
    }
}

static int one(struct trade *t, const json_t *row)
{
    const json_t *window = json_object_get(row, "window"), *sinks = json_object_get(row, "sinks");
    const json_t *moved = json_object_get(row, "moved");
    const char *rope = json_string_value(json_object_get(row, "rope"));
    struct opts o = *t->o;
    struct plan p = {0};
    char kv[64];

    if (!window || json_integer_value(moved) != 0)
        return 0; /* the unbounded one, or what is about arithmetic */
    if (!json_is_integer(window) || !json_is_integer(sinks) || json_integer_value(sinks) < 0 ||
        json_integer_value(window) <= json_integer_value(sinks) ||
        json_integer_value(window) > PREDICT_TOKENS_MAX ||
        type_of(json_string_value(json_object_get(row, "kv_type")), &o.kv_type) < 0)
        return -EBADMSG;
    o.kv = (struct mt_policy){
        .bounded = true, .window = json_integer_value(window), .sinks = json_integer_value(sinks)};
    if (o.token_cost_ns > 0)
        o.cost.b_s += (double)o.token_cost_ns / 1e9 * (double)(o.kv.window + o.kv.sinks);
    if ((t->status = predict_plan(&o, &p)) != MT_EXIT_OK)
        return -ECANCELED;
    json_t *out = predict_begin("trade");
    mt_policy_format(&o.kv, kv);
    json_object_set_new(out, "model", json_string(p.shape.name));
    json_object_set_new(out, "kv", json_string(kv));
    predict_set_int(out, "window", o.kv.window);
    predict_set_int(out, "sinks", o.kv.sinks);
    if (rope && o.kv.sinks > 0)
        json_object_set_new(out, "rope", json_string(rope));
    json_object_set_new(out, "kv_type", json_string(mt_dtype_name(o.kv_type)));
    set_cost(out, row);
    predict_ceilings(out, &o, &p);
    t->settings++;
    t->status = predict_print(&o, out);
    return t->status == MT_EXIT_OK ? 0 : -ECANCELED;
}

static int take(void *ctx, const char *line, size_t n)
{
    json_t *row = json_loadb(line, n, 0, NULL);
    const char *type = json_string_value(json_object_get(row, "type"));
    const json_t *meaningful = json_object_get(row, "meaningful");
    int rc = json_is_object(row) ? 0 : -EBADMSG;

    if (rc == 0 && type && !strcmp(type, "quality"))
        rc = one(ctx, row);
    else if (rc == 0 && type && !strcmp(type, "quality_run") && json_is_false(meaningful))
        mt_msg(MT_WARN, "the costs mean nothing: %s",
               json_string_value(json_object_get(row, "remark")));
    json_decref(row);
    return rc;
}

int predict_trade(const struct opts *o)
{
    bool in = !strcmp(o->quality, "-");
    int fd = in ? STDIN_FILENO : open(o->quality, O_RDONLY | O_CLOEXEC);
    struct trade t = {.o = o};
    int64_t broken = 0;

    if (fd < 0) {
        mt_msg(MT_ERROR, "%s: %s", o->quality, strerror(errno));
        return MT_EXIT_FAILED;
    }
    int rc = mt_lines_each(fd, PREDICT_LINE_MAX, take, &t, &broken);
    if (!in)
        close(fd);
    if (t.status != MT_EXIT_OK)
        return t.status;
    if (rc < 0) {
        mt_msg(MT_ERROR, "%s: %s", in ? "stdin" : o->quality, strerror(-rc));
        return MT_EXIT_FAILED;
    }
    if (broken)
        mt_msg(MT_WARN, "%s: %" PRId64 " broken lines", in ? "stdin" : o->quality, broken);
    if (t.settings)
        return MT_EXIT_OK;
    mt_msg(MT_ERROR, "%s: no setting of mt-probe quality with a window", in ? "stdin" : o->quality);
    return MT_EXIT_FAILED;
}
