/*
 * moshi_config.c: a config.json of Kyutai's, which holds the arguments of their model's constructor
 * and leaves out what has its default there. Releases without one are the first 7B.
 */
#include "model/moshi.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What the authors' loader assumes where there is no config.json. */
static const char released[] =
    "{\"dim\":4096,\"text_card\":32000,\"existing_text_padding_id\":3,\"n_q\":16,\"dep_q\":8,"
    "\"card\":2048,\"num_heads\":32,\"num_layers\":32,\"hidden_scale\":4.125,\"context\":3000,"
    "\"max_period\":10000,\"gating\":\"silu\",\"norm\":\"rms_norm_f32\","
    "\"positional_embedding\":\"rope\",\"depformer_dim\":1024,\"depformer_num_heads\":16,"
    "\"depformer_num_layers\":6,\"depformer_dim_feedforward\":4224,"
    "\"depformer_multi_linear\":true,\"depformer_gating\":\"silu\",\"depformer_pos_emb\":\"none\","
    "\"depformer_weights_per_step\":true}";

struct reader {
    const json_t *o;
    const char *where;
    struct mt_err *e;
    int rc;
};

static int64_t integer(struct reader *r, const char *key, int64_t lo, int64_t hi, int64_t fallback)
{
    int64_t v = 0;

    if (r->rc == 0)
        r->rc = mt_config_int(r->o, r->where, key, lo, hi, fallback, &v, r->e);
    return v;
}

static double real(struct reader *r, const char *key, double lo, double hi, double fallback)
{
    double v = fallback;

    if (r->rc == 0)
        r->rc = mt_config_real(r->o, r->where, key, lo, hi, fallback, &v, r->e);
    return v;
}

/* One of the words in `known`, the default where the key is missing or null. */
static const char *word(struct reader *r, const char *key, const char *known, const char *fallback)
{
    const char *v = json_string_value(json_object_get(r->o, key));

    if (r->rc == 0)
        r->rc = mt_config_word(r->o, r->where, key, known, r->e);
    return v && r->rc == 0 ? v : fallback;
}

static bool flag(struct reader *r, const char *key, bool fallback)
{
    const json_t *v = json_object_get(r->o, key);

    if (r->rc == 0 && v && !json_is_boolean(v) && !json_is_null(v))
        r->rc = mt_err_set(r->e, -EPROTO, "%s.%s is neither true nor false", r->where, key);
    return v && json_is_boolean(v) ? json_is_true(v) : fallback;
}

/* The key of the depth transformer, or the main one's where it has none of its own. */
static const char *depth_key(const struct reader *r, const char *own, const char *shared)
{
    return json_object_get(r->o, own) ? own : shared;
}

/* Parts that the models we run don't have: null, false, 0, "" and {} are none. */
static void refuse_parts(struct reader *r)
{
    static const char *const parts[] = {
        "layer_scale",
        "depformer_layer_scale",
        "conditioners",
        "fuser",
        "cross_attention",
        "demux_second_stream",
        "norm_emb",
        "depformer_norm",
        "demux_second_text_stream",
        "lora",
        "quantize",
    };

    for (size_t i = 0; i < MT_COUNT(parts) && r->rc == 0; i++) {
        const json_t *v = json_object_get(r->o, parts[i]);
        bool none = !v || json_is_null(v) || json_is_false(v) ||
                    (json_is_object(v) && json_object_size(v) == 0) ||
                    (json_is_number(v) && json_number_value(v) == 0);
        if (!none)
            r->rc = mt_err_set(r->e, -ENOTSUP, "%s.%s is not supported", r->where, parts[i]);
    }
    if (r->rc == 0 && !flag(r, "causal", true))
        r->rc = mt_err_set(r->e, -ENOTSUP, "%s.causal false is not supported", r->where);
}

static void read_norm(struct reader *r, struct moshi_stack_config *c)
{
    const char *kind =
        word(r, "norm", "layer_norm, layer_norm_f32, rms_norm, rms_norm_f32", "layer_norm");

    c->layer_norm = !strncmp(kind, "layer", 5);
    c->eps = strstr(kind, "f32") ? 1e-8f : 1e-5f; /* as the authors' code has it */
}

static void read_positions(struct reader *r, struct moshi_stack_config *c, const char *key,
                           const char *period_key, const char *scale_key)
{
    const char *kind = word(r, key, "sin, rope, sin_rope, rope_concat, none", "sin");
    double period = real(r, period_key, 1.0, 1e12, 1e4);

    c->rope = (struct mt_rope){.kind = MT_ROPE_NONE, .base = period};
    if (!strcmp(kind, "rope") || !strcmp(kind, "sin_rope"))
        c->rope.kind = MT_ROPE_PAIRS;
    else if (!strcmp(kind, "rope_concat"))
        c->rope.kind = MT_ROPE_HALVES;
    c->sin_period = period;
    c->sin_scale = strncmp(kind, "sin", 3) ? 0 : real(r, scale_key, -1e6, 1e6, 1.0);
}

/*
 * Width between the two linears of an MLP of dim_feedforward d: with a gate, two thirds of it.
 */
static int hidden_of(bool gated, int64_t d, int dim)
{
    if (!gated)
        return (int)d;
    return (int)(d == 4 * (int64_t)dim ? 21 * (int64_t)dim / 8 : 2 * d / 3);
}

static void check_stack(struct reader *r, const struct moshi_stack_config *c, const char *what)
{
    if (r->rc < 0)
        return;
    if (c->dim % c->heads || c->dim / c->heads % 2 || c->dim / c->heads > 1024)
        r->rc = mt_err_set(r->e, -EPROTO,
                           "%s: %d channels of the %s are not %d heads of an even width up to 1024",
                           r->where, c->dim, what, c->heads);
    for (int i = 0; i < c->sets && r->rc == 0; i++)
        if (c->hidden[i] < 1)
            r->rc =
                mt_err_set(r->e, -EPROTO, "%s: the %s's feed-forward width is 0", r->where, what);
}

static void read_main(struct reader *r, struct moshi_stack_config *c)
{
    c->dim = (int)integer(r, "dim", 2, 1 << 17, 128);
    c->heads = (int)integer(r, "num_heads", 1, 4096, 8);
    c->layers = (int)integer(r, "num_layers", 1, 1024, MT_NEED);
    int64_t repeat = integer(r, "kv_repeat", 1, 4096, 1);
    double scale = real(r, "hidden_scale", 0.0, 1024.0, 4.0);

    if (r->rc < 0 || repeat < 1)
        return;
    if (c->heads % repeat)
        r->rc = mt_err_set(r->e, -EPROTO, "%s: num_heads %d is no multiple of kv_repeat %lld",
                           r->where, c->heads, (long long)repeat);
    c->kv_heads = (int)(c->heads / repeat);
    c->sets = 1;
    c->gated = !strcmp(word(r, "gating", "silu, none", "none"), "silu");
    c->hidden[0] = hidden_of(c->gated, (int64_t)(scale * c->dim), c->dim);
    read_norm(r, c);
    read_positions(r, c, "positional_embedding", "max_period", "positional_scale");
    check_stack(r, c, "main transformer");
}

/* Steps with weights of their own; the schedule lets some of them share. */
static void read_schedule(struct reader *r, struct moshi_config *c)
{
    const char *key = "depformer_weights_per_step_schedule";
    const json_t *list = json_object_get(r->o, key);
    bool per_step = flag(r, "depformer_weights_per_step", false);
    bool inputs = flag(r, "depformer_multi_linear", false);
    int most = 0;

    if (r->rc == 0 && list && !json_is_null(list) &&
        (!json_is_array(list) || (int)json_array_size(list) != c->dep_q)) {
        r->rc = mt_err_set(r->e, -EPROTO, "%s.%s is not a list of dep_q = %d numbers", r->where,
                           key, c->dep_q);
        return;
    }
    for (int k = 0; k < c->dep_q; k++) {
        const json_t *v = json_is_array(list) ? json_array_get(list, (size_t)k) : NULL;
        if (v && (!json_is_integer(v) || json_integer_value(v) < 0 ||
                  json_integer_value(v) >= c->dep_q)) {
            r->rc = mt_err_set(r->e, -EPROTO, "%s.%s[%d] is not a number in 0..%d", r->where, key,
                               k, c->dep_q - 1);
            return;
        }
        c->schedule[k] = v ? (int)json_integer_value(v) : k;
        most = c->schedule[k] > most ? c->schedule[k] : most;
    }
    c->depth.sets = per_step ? most + 1 : 1;
    c->depth.numbered = per_step;
    c->n_inputs = inputs ? most + 1 : 1;
}

static void read_depth_widths(struct reader *r, struct moshi_config *c)
{
    const char *key = "depformer_dim_feedforward";
    const json_t *v = json_object_get(r->o, key);
    struct moshi_stack_config *d = &c->depth;
    double scale = real(r, "hidden_scale", 0.0, 1024.0, 4.0);

    if (r->rc == 0 && json_is_array(v) && (int)json_array_size(v) != d->sets)
        r->rc = mt_err_set(r->e, -EPROTO, "%s.%s is a list of %zu, not of %d weight sets", r->where,
                           key, json_array_size(v), d->sets);
    for (int i = 0; i < d->sets && r->rc == 0; i++) {
        const json_t *one = json_is_array(v) ? json_array_get(v, (size_t)i) : v;
        int64_t width = (int64_t)(scale * d->dim);
        if (one && !json_is_null(one)) {
            width = json_integer_value(one);
            if (!json_is_integer(one) || width < 1 || width > 1 << 20)
                r->rc = mt_err_set(r->e, -EPROTO, "%s.%s is not a number in 1..%d", r->where, key,
                                   1 << 20);
        }
        d->hidden[i] = hidden_of(d->gated, width, d->dim);
    }
}

static void read_depth(struct reader *r, struct moshi_config *c)
{
    struct moshi_stack_config *d = &c->depth;

    d->dim = (int)integer(r, "depformer_dim", 2, 1 << 17, 256);
    d->heads = (int)integer(r, "depformer_num_heads", 1, 4096, MT_NEED);
    d->layers =
        (int)integer(r, depth_key(r, "depformer_num_layers", "num_layers"), 1, 1024, MT_NEED);
    int64_t repeat = integer(r, depth_key(r, "depformer_kv_repeat", "kv_repeat"), 1, 4096, 1);

    if (r->rc < 0 || repeat < 1)
        return;
    if (d->heads % repeat)
        r->rc =
            mt_err_set(r->e, -EPROTO, "%s: depformer_num_heads %d is no multiple of kv_repeat %lld",
                       r->where, d->heads, (long long)repeat);
    d->kv_heads = (int)(d->heads / repeat);
    d->gated =
        !strcmp(word(r, depth_key(r, "depformer_gating", "gating"), "silu, none", "none"), "silu");
    read_norm(r, d);
    read_positions(r, d, "depformer_pos_emb", depth_key(r, "depformer_max_period", "max_period"),
                   depth_key(r, "depformer_positional_scale", "positional_scale"));
    read_schedule(r, c);
    read_depth_widths(r, c);
    c->low_rank = (int)integer(r, "depformer_low_rank_embeddings", 1, 1 << 17, 0);
    if (r->rc == 0 && !d->gated && d->sets > 1)
        r->rc =
            mt_err_set(r->e, -ENOTSUP,
                       "%s: depformer_weights_per_step without a gate is not supported", r->where);
    check_stack(r, d, "depth transformer");
}

/* Without a list: as released, each group's first codebook comes at once, the others one later. */
static void read_delays(struct reader *r, struct moshi_config *c, bool needed)
{
    const json_t *list = json_object_get(r->o, "delays");

    if (r->rc < 0)
        return;
    if (needed && (!json_is_array(list) || (int)json_array_size(list) != 1 + c->n_q)) {
        r->rc = mt_err_set(r->e, -EPROTO, "%s.delays is not a list of 1 + n_q = %d numbers",
                           r->where, 1 + c->n_q);
        return;
    }
    for (int k = 0; k <= c->n_q; k++) {
        const json_t *v = needed ? json_array_get(list, (size_t)k) : NULL;
        c->delay[k] = k > 1 && k != c->dep_q + 1;
        if (v && (!json_is_integer(v) || json_integer_value(v) < 0 ||
                  json_integer_value(v) > MOSHI_DELAY_MAX)) {
            r->rc = mt_err_set(r->e, -EPROTO, "%s.delays[%d] is not a number in 0..%d", r->where, k,
                               MOSHI_DELAY_MAX);
            return;
        }
        if (v)
            c->delay[k] = (int)json_integer_value(v);
        c->max_delay = c->delay[k] > c->max_delay ? c->delay[k] : c->max_delay;
    }
}

/* ---- sizes that the tensors show ---- */

static int64_t dim_of(const struct mt_weights *w, const char *name, int i, int64_t fallback)
{
    int64_t dims[8];
    struct mt_bytes b;
    int n;

    return mt_weights_find(w, name, &n, dims, &b) == 0 && i < n ? dims[i] : fallback;
}

/* How many of fmt (with %d from 0 on) there are. */
static int count_of(const struct mt_weights *w, const char *before, const char *after)
{
    char name[128];

    for (int i = 0;; i++) {
        snprintf(name, sizeof(name), "%s%d%s", before, i, after);
        if (i == 2048 || !mt_weights_has(w, name))
            return i;
    }
}

static json_t *released_config(const struct mt_weights *w)
{
    json_t *o = json_loads(released, 0, NULL);
    const struct {
        const char *key;
        int64_t value;
    } seen[] = {
        {"dim", dim_of(w, "text_emb.weight", 1, 0)},
        {"text_card", dim_of(w, "text_emb.weight", 0, 0) - 1},
        {"card", dim_of(w, "emb.0.weight", 0, 0) - 1},
        {"n_q", count_of(w, "emb.", ".weight")},
        {"dep_q", count_of(w, "linears.", ".weight")},
        {"num_layers", count_of(w, "transformer.layers.", ".norm1.alpha")},
        {"depformer_dim", dim_of(w, "depformer_in.0.weight", 0, 0)},
        {"depformer_num_layers", count_of(w, "depformer.layers.", ".norm1.alpha")},
    };

    for (size_t i = 0; o && i < MT_COUNT(seen); i++)
        if (seen[i].value > 0)
            json_object_set_new(o, seen[i].key, json_integer(seen[i].value));
    return o;
}

static void widths_from_tensors(struct moshi_config *c, const struct mt_weights *w)
{
    c->main.hidden[0] =
        (int)dim_of(w, "transformer.layers.0.gating.linear_out.weight", 1, c->main.hidden[0]);
    for (int i = 0; i < c->depth.sets; i++) {
        char name[80];
        snprintf(name, sizeof(name), "depformer.layers.0.gating.%d.linear_out.weight", i);
        c->depth.hidden[i] = (int)dim_of(w, name, 1, c->depth.hidden[i]);
    }
}

int moshi_config_parse(const json_t *config, const struct mt_weights *w, const char *where,
                       struct moshi_config *out, struct mt_err *e)
{
    struct moshi_config *c = out;
    json_t *own = config ? NULL : released_config(w);
    struct reader r = {config ? config : own, where, e, 0};

    *c = (struct moshi_config){0};
    if (!r.o)
        return mt_err_set(e, -ENOMEM, "out of memory");
    refuse_parts(&r);
    c->n_q = (int)integer(&r, "n_q", 1, MOSHI_STREAMS_MAX - 1, 8);
    c->dep_q = (int)integer(&r, "dep_q", 1, MOSHI_DEPTH_MAX, 8);
    c->card = (int)integer(&r, "card", 1, 1 << 20, 1024);
    c->text_card = (int)integer(&r, "text_card", 1, 1 << 24, 32000);
    c->text_out = (int)integer(&r, "text_card_out", 1, 1 << 24, c->text_card);
    c->context = integer(&r, "context", 1, 1 << 30, 0);
    c->pad_id = (int)integer(&r, "existing_text_padding_id", 0, 1 << 24, 3);
    c->end_pad_id = (int)integer(&r, "existing_text_end_padding_id", 0, 1 << 24, 0);
    c->head_bias = flag(&r, "bias_proj", false);
    if (r.rc == 0 && c->dep_q > c->n_q)
        r.rc = mt_err_set(e, -EPROTO, "%s: dep_q %d is above n_q %d", where, c->dep_q, c->n_q);
    read_main(&r, &c->main);
    read_depth(&r, c);
    read_delays(&r, c, config != NULL);
    if (r.rc == 0 && !config)
        widths_from_tensors(c, w);
    json_decref(own);
    return r.rc;
}
