/*
 * trade.c: what a window costs and what it brings: each setting that mt-probe quality measured,
 * with the sessions that the pool and the beat hold under it.
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
    char model[64], text[256]; /* what the costs were measured on; "": not told */
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

/* A member as people read it: a count, or "-". */
static const char *count(char out[24], const json_t *row, const char *key)
{
    const json_t *v = json_object_get(row, key);

    snprintf(out, 24, json_is_integer(v) ? "%" JSON_INTEGER_FORMAT : "-", json_integer_value(v));
    return out;
}

/* A line of the table, the first with its heading. */
static void print_row(const struct trade *t, const json_t *row)
{
    const json_t *diff = json_object_get(row, "diff"), *low = json_object_get(row, "low");
    const char *rope = json_string_value(json_object_get(row, "rope"));
    char cost[64] = "-", mem[24], star[24], most[24];

    if (json_is_number(low))
        snprintf(cost, sizeof(cost), "%.4f [%.4f, %.4f]", json_number_value(diff),
                 json_number_value(low), json_number_value(json_object_get(row, "high")));
    else if (json_is_number(diff))
        snprintf(cost, sizeof(cost), "%.4f [?]", json_number_value(diff));
    if (t->settings == 0)
        printf("%s; costs once a token is lost, beside the unbounded cache, as measured on %s%s%s\n"
               "%-22s %-8s %-4s %26s %9s %9s %9s %9s  %s\n",
               json_string_value(json_object_get(row, "model")), *t->model ? t->model : "a model",
               *t->text ? ", " : "", t->text, "kv", "rope", "type", "nats a token, 95 %",
               "MiB each", "N_mem", "N*", "sessions", "bound by");
    printf("%-22s %-8s %-4s %26s %9.2f %9s %9s %9s  %s\n",
           json_string_value(json_object_get(row, "kv")), rope ? rope : "-",
           json_string_value(json_object_get(row, "kv_type")), cost,
           json_number_value(json_object_get(row, "session_bytes")) / 0x1p20,
           count(mem, row, "n_mem"), count(star, row, "n_star"), count(most, row, "n_sustainable"),
           json_string_value(json_object_get(row, "binding")));
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
    if (*t->model)
        json_object_set_new(out, "quality_model", json_string(t->model));
    if (*t->text)
        json_object_set_new(out, "quality_text", json_string(t->text));
    if (o.table) {
        print_row(t, out);
        json_decref(out);
    } else {
        t->status = predict_print(&o, out);
    }
    t->settings++;
    return t->status == MT_EXIT_OK ? 0 : -ECANCELED;
}

/* What the settings behind this line were measured on. */
static void take_run(struct trade *t, const json_t *row)
{
    const char *model = json_string_value(json_object_get(row, "model"));
    const char *text = json_string_value(json_object_get(row, "text"));

    snprintf(t->model, sizeof(t->model), "%s", model ? model : "");
    snprintf(t->text, sizeof(t->text), "%s", text ? text : "");
    if (json_is_false(json_object_get(row, "meaningful")))
        mt_msg(MT_WARN, "the costs mean nothing: %s",
               json_string_value(json_object_get(row, "remark")));
}

static int take(void *ctx, const char *line, size_t n)
{
    json_t *row = json_loadb(line, n, 0, NULL);
    const char *type = json_string_value(json_object_get(row, "type"));
    int rc = json_is_object(row) ? 0 : -EBADMSG;

    if (rc == 0 && type && !strcmp(type, "quality"))
        rc = one(ctx, row);
    else if (rc == 0 && type && !strcmp(type, "quality_run"))
        take_run(ctx, row);
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
