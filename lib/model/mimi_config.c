/*
 * mimi_config.c: the shape of a Mimi codec: the released one, what the tensors of a file tell of
 * theirs, and what a config says: the moshi package's (seanet, transformer, quantizer) or
 * transformers'.
 */
#include "model/mimi.h"
#include "model/mimi_names.h"

#include <errno.h>
#include <math.h>
#include <string.h>

struct mt_mimi_config mt_mimi_config_released(void)
{
    return (struct mt_mimi_config){
        .sample_rate_hz = 24000,
        .filters = 64,
        .dim = 512,
        .n_ratios = 4,
        .ratios = {8, 6, 5, 4},
        .kernel = 7,
        .last_kernel = 3,
        .residual_kernel = 3,
        .residual_layers = 1,
        .compress = 2,
        .dilation_base = 2,
        .d_model = 512,
        .layers = 8,
        .heads = 8,
        .kv_heads = 8,
        .head_dim = 64,
        .ffn = 2048,
        .context = 250,
        .rope_base = 10000,
        .rope = true,
        .layer_scale = true,
        .eps = 1e-5F,
        .stride = 2,
        .depthwise_up = true,
        .bins = 2048,
        .code_dim = 256,
        .semantic = 1,
        .codebooks = 32,
    };
}

struct mt_mimi_config mt_mimi_config_tiny(void)
{
    struct mt_mimi_config c = mt_mimi_config_released();

    c.filters = 4;
    c.dim = c.d_model = 32;
    c.layers = 2;
    c.heads = c.kv_heads = 2;
    c.head_dim = 16;
    c.ffn = 64;
    c.bins = 256;
    c.code_dim = 16;
    c.codebooks = 8;
    return c;
}

/* ---- what the tensors tell ---- */

struct look {
    const struct mt_weights *w;
    const char *prefix;
    bool hf;
};

static bool MT_PRINTF(4, 5)
    dims_of(const struct look *l, int want, int64_t dims[8], const char *fmt, ...)
{
    char name[MT_MIMI_NAME_MAX];
    struct mt_bytes bytes;
    va_list ap;
    int n;

    va_start(ap, fmt);
    mt_mimi_name(name, l->prefix, l->hf, fmt, ap);
    va_end(ap);
    /* Sizes that no int holds belong to no Mimi; binding will say so. */
    return mt_weights_find(l->w, name, &n, dims, &bytes) == 0 && n == want && dims[0] > 0 &&
           dims[0] < 1 << 24 && (n < 2 || (dims[1] > 0 && dims[1] < 1 << 24)) &&
           (n < 3 || (dims[2] > 0 && dims[2] < 1 << 16));
}

/* The encoder's chain: residual blocks, then an ELU and a strided convolution, again and again. */
static int detect_seanet(const struct look *l, struct mt_mimi_config *c, struct mt_err *e)
{
    int64_t d[8], last[8] = {0};
    int at = 1, blocks = 0, steps = 0;

    if (!dims_of(l, 3, d, "encoder.model.0.conv.conv.weight"))
        return mt_err_set(e, -EPROTO,
                          "%s: tensor '%sencoder.model.0.conv.conv.weight' has no three "
                          "dimensions in range",
                          mt_weights_where(l->w), l->prefix);
    c->filters = (int)d[0];
    c->kernel = (int)d[2];
    for (;; at++) {
        if (dims_of(l, 3, d, "encoder.model.%d.block.1.conv.conv.weight", at)) {
            c->residual_kernel = (int)d[2];
            c->compress = (int)(d[1] / d[0]);
            c->conv_shortcut = dims_of(l, 3, d, "encoder.model.%d.shortcut.conv.conv.weight", at);
            blocks++;
        } else if (dims_of(l, 3, d, "encoder.model.%d.conv.conv.weight", at + 1)) {
            if (steps > MT_MIMI_RATIOS_MAX)
                return mt_err_set(e, -ENOTSUP,
                                  "%s: more than %d convolutions with a stride (%sencoder)",
                                  mt_weights_where(l->w), MT_MIMI_RATIOS_MAX, l->prefix);
            if (steps > 0) /* the one before was not the last */
                c->ratios[steps - 1] = (int)(last[2] / 2);
            memcpy(last, d, sizeof(last));
            steps++;
            at++;
        } else {
            break;
        }
    }
    if (steps < 2)
        return mt_err_set(e, -ENOENT,
                          "%s: there is no tensor '%sencoder.model.%d.conv.conv.weight'",
                          mt_weights_where(l->w), l->prefix, at + 1);
    c->n_ratios = steps - 1;
    for (int i = 0; i < c->n_ratios / 2; i++) { /* the encoder's order is the reverse */
        int r = c->ratios[i];
        c->ratios[i] = c->ratios[c->n_ratios - 1 - i];
        c->ratios[c->n_ratios - 1 - i] = r;
    }
    c->residual_layers = blocks / c->n_ratios;
    c->dim = (int)last[0];
    c->last_kernel = (int)last[2];
    return 0;
}

static void detect_transformer(const struct look *l, struct mt_mimi_config *c)
{
    static const char layer[] = "encoder_transformer.transformer.layers";
    int64_t d[8];

    if (dims_of(l, 1, d, "%s.0.norm1.weight", layer))
        c->d_model = (int)d[0];
    c->head_dim = c->d_model / c->heads; /* tensors don't tell heads: the released number */
    for (c->layers = 0; dims_of(l, 1, d, "%s.%d.norm1.weight", layer, c->layers) ||
                        dims_of(l, 2, d, "%s.%d.linear1.weight", layer, c->layers);)
        c->layers++;
    if (dims_of(l, 2, d, "%s.0.linear1.weight", layer))
        c->ffn = (int)d[0];
    c->layer_scale = dims_of(l, 1, d, "%s.0.layer_scale_1.scale", layer) ||
                     dims_of(l, 1, d, "%s.0.layer_scale_2.scale", layer);
}

static void detect_quantizer(const struct look *l, struct mt_mimi_config *c)
{
    static const char *const group[] = {"rvq_first", "rvq_rest"};
    int64_t d[8];
    int n[2] = {0};

    if (dims_of(l, 3, d, "downsample.conv.conv.conv.weight") ||
        dims_of(l, 3, d, "upsample.convtr.convtr.convtr.weight"))
        c->stride = (int)d[2] / 2;
    else
        c->stride = 1;
    c->depthwise_up = dims_of(l, 3, d, "upsample.convtr.convtr.convtr.weight") && d[1] == 1;
    for (int g = 0; g < 2; g++)
        for (;
             n[g] < MT_MIMI_CODEBOOKS_MAX &&
             dims_of(l, 2, d, "quantizer.%s.vq.layers.%d._codebook.embedding_sum", group[g], n[g]);
             n[g]++) {
            c->bins = (int)d[0];
            c->code_dim = (int)d[1];
        }
    c->semantic = n[0];
    c->codebooks = n[0] + n[1];
}

int mt_mimi_config_detect(struct mt_mimi_config *c, const struct mt_weights *w, const char *prefix,
                          struct mt_err *e)
{
    struct look l = {w, prefix, false};
    int64_t d[8];
    int rc;

    if (!dims_of(&l, 3, d, "encoder.model.0.conv.conv.weight")) {
        l.hf = true;
        if (!dims_of(&l, 3, d, "encoder.model.0.conv.conv.weight"))
            return mt_err_set(e, -ENOENT,
                              "%s: there is no tensor '%sencoder.model.0.conv.conv.weight' (Mimi "
                              "as Kyutai saves it) or '%sencoder.layers.0.conv.weight' "
                              "(transformers)",
                              mt_weights_where(w), prefix, prefix);
    }
    c->hf = l.hf;
    if ((rc = detect_seanet(&l, c, e)) < 0)
        return rc;
    detect_transformer(&l, c);
    detect_quantizer(&l, c);
    if (c->codebooks < 1 || c->semantic < 1)
        return mt_err_set(e, -ENOENT, "%s: there is no tensor of a codebook under '%squantizer'",
                          mt_weights_where(w), prefix);
    return 0;
}

/* ---- what a config says ---- */

/* An int field into *out, which is its default, too. */
static int field(const json_t *o, const char *where, const char *key, int lo, int hi, int *out,
                 struct mt_err *e)
{
    int64_t v;
    int rc = mt_config_int(o, where, key, lo, hi, *out, &v, e);

    if (rc == 0)
        *out = (int)v;
    return rc;
}

static int flag(const json_t *o, const char *where, const char *key, bool want, struct mt_err *e)
{
    const json_t *v = json_object_get(o, key);

    if (!v || json_is_null(v) || (json_is_boolean(v) && json_is_true(v) == want))
        return 0;
    return mt_err_set(e, json_is_boolean(v) ? -ENOTSUP : -EPROTO, "%s.%s is not %s", where, key,
                      want ? "true" : "false");
}

/* A rate of frames that whole samples make: the sum of hops has to be that. */
static int frame_rate(const json_t *o, const char *where, struct mt_mimi_config *c,
                      struct mt_err *e)
{
    double rate;
    int hop = 1, rc;

    for (int i = 0; i < c->n_ratios; i++)
        hop *= c->ratios[i];
    if ((rc = mt_config_real(o, where, "frame_rate", 1e-3, 1e6, 0, &rate, e)) < 0 || rate == 0)
        return rc;
    double samples = c->sample_rate_hz / rate, stride = samples / hop;
    if (!(stride >= 1 && stride <= 64) || fabs(stride - round(stride)) > 1e-6)
        return mt_err_set(
            e, -EPROTO, "%s.frame_rate %g: a frame of %g samples is no multiple of the ratios' %d",
            where, rate, samples, hop);
    c->stride = (int)lround(stride);
    return 0;
}

static int ratios(const json_t *o, const char *where, const char *key, struct mt_mimi_config *c,
                  struct mt_err *e)
{
    const json_t *v = json_object_get(o, key);
    size_t n = json_array_size(v);
    int64_t product = 1;

    if (!v || json_is_null(v))
        return 0;
    if (!json_is_array(v) || n < 1 || n > MT_MIMI_RATIOS_MAX)
        return mt_err_set(e, -EPROTO, "%s.%s is not an array of 1..%d numbers", where, key,
                          MT_MIMI_RATIOS_MAX);
    for (size_t i = 0; i < n; i++) {
        const json_t *r = json_array_get(v, i);

        if (!json_is_integer(r) || json_integer_value(r) < 1 || json_integer_value(r) > 64)
            return mt_err_set(e, -EPROTO, "%s.%s[%zu] is not an integer in 1..64", where, key, i);
        c->ratios[i] = (int)json_integer_value(r);
        product *= c->ratios[i];
        if (product > 1 << 20)
            return mt_err_set(e, -EPROTO, "%s.%s: a hop of more than %d samples", where, key,
                              1 << 20);
    }
    c->n_ratios = (int)n;
    return 0;
}

static int parse_seanet(const json_t *o, const char *where, struct mt_mimi_config *c,
                        struct mt_err *e)
{
    int one = 1, rc;
    bool skip = !c->conv_shortcut;

    if ((rc = field(o, where, "channels", 1, 1, &one, e)) < 0 ||
        (rc = field(o, where, "dimension", 1, 1 << 16, &c->dim, e)) < 0 ||
        (rc = field(o, where, "n_filters", 1, 1 << 12, &c->filters, e)) < 0 ||
        (rc = field(o, where, "n_residual_layers", 0, 16, &c->residual_layers, e)) < 0 ||
        (rc = field(o, where, "compress", 1, 1 << 12, &c->compress, e)) < 0 ||
        (rc = field(o, where, "dilation_base", 1, 64, &c->dilation_base, e)) < 0 ||
        (rc = field(o, where, "kernel_size", 1, 1024, &c->kernel, e)) < 0 ||
        (rc = field(o, where, "last_kernel_size", 1, 1024, &c->last_kernel, e)) < 0 ||
        (rc = field(o, where, "residual_kernel_size", 1, 1024, &c->residual_kernel, e)) < 0 ||
        (rc = flag(o, where, "causal", true, e)) < 0 ||
        (rc = mt_config_word(o, where, "activation", "ELU", e)) < 0 ||
        (rc = mt_config_word(o, where, "norm", "none", e)) < 0 ||
        (rc = mt_config_word(o, where, "pad_mode", "constant", e)) < 0 ||
        (rc = mt_config_word(o, where, "final_activation", "none", e)) < 0 ||
        (rc = ratios(o, where, "ratios", c, e)) < 0)
        return rc;
    if (json_is_boolean(json_object_get(o, "true_skip")))
        skip = json_is_true(json_object_get(o, "true_skip"));
    c->conv_shortcut = !skip;
    return 0;
}

static int parse_transformer(const json_t *o, const char *where, struct mt_mimi_config *c,
                             struct mt_err *e)
{
    const char *pos = json_string_value(json_object_get(o, "positional_embedding"));
    int one = 1, rc;

    if ((rc = field(o, where, "d_model", 1, 1 << 16, &c->d_model, e)) < 0 ||
        (rc = field(o, where, "num_layers", 1, 1024, &c->layers, e)) < 0 ||
        (rc = field(o, where, "num_heads", 1, 4096, &c->heads, e)) < 0 ||
        (rc = field(o, where, "dim_feedforward", 1, 1 << 20, &c->ffn, e)) < 0 ||
        (rc = field(o, where, "context", 1, 1 << 20, &c->context, e)) < 0 ||
        (rc = field(o, where, "kv_repeat", 1, 1, &one, e)) < 0 ||
        (rc = mt_config_real(o, where, "max_period", 1, 1e12, c->rope_base, &c->rope_base, e)) <
            0 ||
        (rc = flag(o, where, "causal", true, e)) < 0 ||
        (rc = mt_config_word(o, where, "gating", "none", e)) < 0 ||
        (rc = mt_config_word(o, where, "norm", "layer_norm", e)) < 0 ||
        (rc = mt_config_word(o, where, "positional_embedding", "rope, none", e)) < 0)
        return rc;
    c->kv_heads = c->heads;
    c->head_dim = c->d_model / c->heads;
    if (json_object_get(o, "layer_scale"))
        c->layer_scale = !json_is_null(json_object_get(o, "layer_scale"));
    c->rope = !pos || strcmp(pos, "none") != 0;
    return 0;
}

static int parse_kyutai(struct mt_mimi_config *c, const json_t *o, const char *where,
                        struct mt_err *e)
{
    static const char *const part[] = {"seanet", "transformer", "quantizer"};
    const json_t *q = json_object_get(o, "quantizer");
    char at[3][MT_WHERE_MAX];
    int one = 1, rc;

    for (int i = 0; i < 3; i++) {
        const json_t *p = json_object_get(o, part[i]);

        snprintf(at[i], sizeof(at[i]), "%s: %s", where, part[i]);
        if (p && !json_is_object(p))
            return mt_err_set(e, -EPROTO, "%s is not an object", at[i]);
    }
    if ((rc = field(o, where, "channels", 1, 1, &one, e)) < 0 ||
        (rc = field(o, where, "sample_rate", 1, 768000, &c->sample_rate_hz, e)) < 0 ||
        (rc = parse_seanet(json_object_get(o, part[0]), at[0], c, e)) < 0 ||
        (rc = parse_transformer(json_object_get(o, part[1]), at[1], c, e)) < 0 ||
        (rc = field(q, at[2], "dimension", 1, 1 << 16, &c->code_dim, e)) < 0 ||
        (rc = field(q, at[2], "bins", 1, 1 << 24, &c->bins, e)) < 0 ||
        (rc = field(q, at[2], "n_q", 1, MT_MIMI_CODEBOOKS_MAX, &c->codebooks, e)) < 0 ||
        (rc = field(q, at[2], "n_q_semantic", 1, MT_MIMI_CODEBOOKS_MAX, &c->semantic, e)) < 0)
        return rc;
    return frame_rate(o, where, c, e);
}

static int parse_hf(struct mt_mimi_config *c, const json_t *o, const char *where, struct mt_err *e)
{
    const json_t *rope = json_object_get(o, "rope_parameters");
    int one = 1, rc, groups = c->depthwise_up ? c->dim : 1;
    double eps = c->eps;

    if ((rc = field(o, where, "audio_channels", 1, 1, &one, e)) < 0 ||
        (rc = field(o, where, "sampling_rate", 1, 768000, &c->sample_rate_hz, e)) < 0 ||
        (rc = field(o, where, "hidden_size", 1, 1 << 16, &c->dim, e)) < 0 ||
        (rc = field(o, where, "num_filters", 1, 1 << 12, &c->filters, e)) < 0 ||
        (rc = field(o, where, "num_residual_layers", 0, 16, &c->residual_layers, e)) < 0 ||
        (rc = field(o, where, "compress", 1, 1 << 12, &c->compress, e)) < 0 ||
        (rc = field(o, where, "dilation_growth_rate", 1, 64, &c->dilation_base, e)) < 0 ||
        (rc = field(o, where, "kernel_size", 1, 1024, &c->kernel, e)) < 0 ||
        (rc = field(o, where, "last_kernel_size", 1, 1024, &c->last_kernel, e)) < 0 ||
        (rc = field(o, where, "residual_kernel_size", 1, 1024, &c->residual_kernel, e)) < 0 ||
        (rc = flag(o, where, "use_causal_conv", true, e)) < 0 ||
        (rc = mt_config_word(o, where, "pad_mode", "constant", e)) < 0 ||
        (rc = ratios(o, where, "upsampling_ratios", c, e)) < 0 ||
        (rc = field(o, where, "num_hidden_layers", 1, 1024, &c->layers, e)) < 0 ||
        (rc = field(o, where, "num_attention_heads", 1, 4096, &c->heads, e)) < 0 ||
        (rc = field(o, where, "intermediate_size", 1, 1 << 20, &c->ffn, e)) < 0 ||
        (rc = field(o, where, "sliding_window", 1, 1 << 20, &c->context, e)) < 0 ||
        (rc = mt_config_real(o, where, "rope_theta", 1, 1e12, c->rope_base, &c->rope_base, e)) <
            0 ||
        (rc = mt_config_real(rope, where, "rope_theta", 1, 1e12, c->rope_base, &c->rope_base, e)) <
            0 ||
        (rc = mt_config_real(o, where, "norm_eps", 1e-12, 1, eps, &eps, e)) < 0 ||
        (rc = mt_config_word(o, where, "hidden_act", "gelu", e)) < 0 ||
        (rc = field(o, where, "codebook_size", 1, 1 << 24, &c->bins, e)) < 0 ||
        (rc = field(o, where, "codebook_dim", 1, 1 << 16, &c->code_dim, e)) < 0 ||
        (rc = field(o, where, "num_quantizers", 1, MT_MIMI_CODEBOOKS_MAX, &c->codebooks, e)) < 0 ||
        (rc = field(o, where, "num_semantic_quantizers", 1, MT_MIMI_CODEBOOKS_MAX, &c->semantic,
                    e)) < 0 ||
        (rc = field(o, where, "upsample_groups", 1, 1 << 16, &groups, e)) < 0)
        return rc;
    c->kv_heads = c->heads;
    if ((rc = field(o, where, "num_key_value_heads", 1, c->heads, &c->kv_heads, e)) < 0)
        return rc;
    c->head_dim = c->dim / c->heads;
    if ((rc = field(o, where, "head_dim", 2, 1 << 12, &c->head_dim, e)) < 0)
        return rc;
    c->eps = (float)eps;
    c->d_model = c->dim;
    c->depthwise_up = groups > 1;
    c->conv_shortcut = json_is_true(json_object_get(o, "use_conv_shortcut"));
    return frame_rate(o, where, c, e);
}

int mt_mimi_config_parse(struct mt_mimi_config *c, const json_t *config, const char *where,
                         struct mt_err *e)
{
    if (!json_is_object(config))
        return mt_err_set(e, -EPROTO, "%s is not a JSON object", where);
    if (json_object_get(config, "seanet"))
        return parse_kyutai(c, config, where, e);
    return parse_hf(c, config, where, e);
}
