/*
 * gguf_config.c: GGUF keys as the config.json of a thinker saved alone. Ranges are the families'
 * business, as for any config.json; here numbers must only be there and be numbers.
 */
#include "model/gguf_config.h"

#include "model/bind.h"
#include "model/file.h"

#include <errno.h>
#include <math.h>
#include <string.h>

static const struct mt_gguf_arch archs[] = {
    {"qwen2", "qwen2_5_omni_thinker", false, false},
    {"qwen2vl", "qwen2_5_omni_thinker", false, false},
    {"qwen3", "qwen3_omni_moe_thinker", true, false},
    {"qwen3moe", "qwen3_omni_moe_thinker", true, true},
    {"qwen3vlmoe", "qwen3_omni_moe_thinker", true, true},
};

const struct mt_gguf_arch *mt_gguf_arch(const struct mt_gguf *g, struct mt_err *e)
{
    char known[100] = "", text[MT_SHOW_MAX] = "(none)", show[MT_SHOW_MAX];
    size_t n = 0, len;
    const char *name = mt_gguf_text(g, "general.architecture", &len);

    for (size_t i = 0; i < MT_COUNT(archs); i++) {
        if (mt_gguf_is(g, "general.architecture", archs[i].name))
            return &archs[i];
        n += (size_t)snprintf(known + n, sizeof(known) - n, "%s%s", i ? ", " : "", archs[i].name);
    }
    if (name)
        snprintf(text, sizeof(text), "%.*s", len < sizeof(text) ? (int)len : (int)sizeof(text) - 1,
                 name);
    mt_err_set(e, -ENOTSUP, "%s: architecture '%s' is not supported (%s)", mt_gguf_path(g),
               mt_show(show, text), known);
    return NULL;
}

const char *const *mt_gguf_marks(const struct mt_gguf_arch *a)
{
    static const char *const qwen2[MT_GGUF_MARKS] = {"<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"};
    static const char *const qwen3[MT_GGUF_MARKS] = {"<|audio_pad|>", "<|audio_start|>",
                                                     "<|audio_end|>"};

    return a->qwen3 ? qwen3 : qwen2;
}

/* One conversion: keys of g, the first failure sticks. */
struct conversion {
    const struct mt_gguf *g;
    const char *prefix; /* of the keys: "qwen2", "clip.audio" */
    json_t *to;
    struct mt_err *e;
    int rc;
};

static void number(struct conversion *c, const char *field, const char *key, int64_t fallback)
{
    char name[160];
    int64_t v;

    if (c->rc < 0)
        return;
    snprintf(name, sizeof(name), "%s.%s", c->prefix, key);
    c->rc = mt_gguf_int(c->g, name, 0, INT64_C(1) << 40, fallback, &v, c->e);
    if (c->rc == 0)
        json_object_set_new(c->to, field, json_integer(v));
}

static double real(struct conversion *c, const char *key, double lo, double hi, double fallback)
{
    char name[160];
    double v = fallback;

    if (c->rc < 0)
        return v;
    snprintf(name, sizeof(name), "%s.%s", c->prefix, key);
    c->rc = mt_gguf_real(c->g, name, lo, hi, fallback, &v, c->e);
    return v;
}

/* The outermost dimension of a tensor: what no key says. */
static void rows_of(struct conversion *c, const char *field, const char *tensor)
{
    const struct mt_tensor *t;

    if (c->rc < 0)
        return;
    c->rc = mt_gguf_tensor(c->g, tensor, &t, c->e);
    if (c->rc == -ENOENT)
        mt_err_set(c->e, c->rc, "%s: there is no tensor '%s'", mt_gguf_path(c->g), tensor);
    if (c->rc == 0)
        json_object_set_new(c->to, field, json_integer(t->dims[0]));
}

/* A layer behind the last: the count is wrong, or the file is of more than this model. */
static void refuse_layer(struct conversion *c, const char *field, const char *blocks,
                         const char *part)
{
    long long n = json_integer_value(json_object_get(c->to, field));
    char name[160];

    snprintf(name, sizeof(name), "%s.%lld.%s", blocks, n, part);
    if (c->rc == 0 && mt_gguf_has_tensor(c->g, name))
        c->rc = mt_err_set(c->e, -EPROTO, "%s: key '%s.block_count' is %lld, but there is '%s'",
                           mt_gguf_path(c->g), c->prefix, n, name);
}

/* Positions that are stretched, and layers that look back only so far, are other models. */
static void refuse(struct conversion *c)
{
    char key[160];
    int64_t window = 0;

    snprintf(key, sizeof(key), "%s.rope.scaling.type", c->prefix);
    if (c->rc == 0 && mt_gguf_has(c->g, key) && !mt_gguf_is(c->g, key, "none"))
        c->rc = mt_err_set(c->e, -ENOTSUP, "%s: key '%s' other than 'none' is not supported",
                           mt_gguf_path(c->g), key);
    snprintf(key, sizeof(key), "%s.attention.sliding_window", c->prefix);
    if (c->rc == 0)
        c->rc = mt_gguf_int(c->g, key, 0, INT64_MAX, 0, &window, c->e);
    if (c->rc == 0 && window > 0)
        c->rc =
            mt_err_set(c->e, -ENOTSUP, "%s: key '%s' is not supported", mt_gguf_path(c->g), key);
}

static void refuse_value_length(struct conversion *c)
{
    int64_t k, v;
    char key[160];

    snprintf(key, sizeof(key), "%s.attention.value_length", c->prefix);
    k = json_integer_value(json_object_get(c->to, "head_dim"));
    if (c->rc == 0)
        c->rc = mt_gguf_int(c->g, key, 0, INT64_MAX, k, &v, c->e);
    if (c->rc == 0 && v != k)
        c->rc =
            mt_err_set(c->e, -ENOTSUP, "%s: key '%s' is %lld (expected %lld, as the keys' length)",
                       mt_gguf_path(c->g), key, (long long)v, (long long)k);
}

static int text_config(json_t *to, const struct mt_gguf_arch *a, const struct mt_gguf *g,
                       struct mt_err *e)
{
    struct conversion c = {.g = g, .prefix = a->name, .to = to, .e = e};
    int64_t hidden, heads;

    rows_of(&c, "vocab_size", "token_embd.weight");
    number(&c, "hidden_size", "embedding_length", MT_NEED);
    number(&c, "num_hidden_layers", "block_count", MT_NEED);
    number(&c, "num_attention_heads", "attention.head_count", MT_NEED);
    heads = json_integer_value(json_object_get(to, "num_attention_heads"));
    number(&c, "num_key_value_heads", "attention.head_count_kv", heads);
    number(&c, "max_position_embeddings", "context_length", 32768);
    hidden = json_integer_value(json_object_get(to, "hidden_size"));
    if (heads > 0)
        number(&c, "head_dim", "attention.key_length", hidden / heads);
    refuse_value_length(&c);
    if (a->experts) {
        number(&c, "num_experts", "expert_count", MT_NEED);
        number(&c, "num_experts_per_tok", "expert_used_count", MT_NEED);
        number(&c, "moe_intermediate_size", "expert_feed_forward_length", 0);
        if (c.rc == 0 && !json_integer_value(json_object_get(to, "moe_intermediate_size"))) {
            const struct mt_tensor *t; /* older files don't say it; it is the stack's inner width */

            c.rc = mt_gguf_tensor(g, "blk.0.ffn_gate_exps.weight", &t, e);
            if (c.rc == 0 && t->n_dims == 3)
                json_object_set_new(to, "moe_intermediate_size", json_integer(t->dims[1]));
            c.rc = c.rc == -ENOENT ? 0 : c.rc; /* the family says what is missing */
        }
        number(&c, "intermediate_size", "feed_forward_length", 1);
    } else {
        json_object_set_new(to, "num_experts", json_integer(0));
        number(&c, "intermediate_size", "feed_forward_length", MT_NEED);
    }
    json_object_set_new(to, "rope_theta", json_real(real(&c, "rope.freq_base", 1, 1e12, 10000)));
    json_object_set_new(to, "rms_norm_eps",
                        json_real(real(&c, "attention.layer_norm_rms_epsilon", 0, 1, 1e-6)));
    refuse(&c);
    refuse_layer(&c, "num_hidden_layers", "blk", "attn_norm.weight");
    return c.rc;
}

/* Everything that the two towers read, whichever it is. */
static void tower_constants(json_t *to, const struct mt_gguf_arch *a)
{
    json_object_set_new(to, "n_window", json_integer(a->qwen3 ? 50 : 100));
    json_object_set_new(to, "n_window_infer", json_integer(800));
    json_object_set_new(to, "max_source_positions", json_integer(1500));
}

static int file_tower(json_t *to, const struct mt_gguf_arch *a, const struct mt_gguf *g,
                      struct mt_err *e)
{
    struct conversion c = {.g = g, .prefix = "clip.audio", .to = to, .e = e};
    const char *key = mt_gguf_has(g, "clip.audio.projector_type") ? "clip.audio.projector_type"
                                                                  : "clip.projector_type";
    double eps;

    if (!mt_gguf_is(g, "general.architecture", "clip") ||
        !mt_gguf_true(g, "clip.has_audio_encoder"))
        return mt_err_set(e, -ENOTSUP, "%s: no audio encoder ('clip' with clip.has_audio_encoder)",
                          mt_gguf_path(g));
    if (a->qwen3 ? !mt_gguf_is(g, key, "qwen3a")
                 : !mt_gguf_is(g, key, "qwen2.5o") && !mt_gguf_is(g, key, "qwen2a"))
        return mt_err_set(e, -ENOTSUP, "%s: key '%s' is not %s, as architecture '%s' needs it",
                          mt_gguf_path(g), key, a->qwen3 ? "'qwen3a'" : "'qwen2.5o' or 'qwen2a'",
                          a->name);
    number(&c, "num_mel_bins", "num_mel_bins", 128);
    number(&c, "d_model", "embedding_length", MT_NEED);
    number(&c, "encoder_layers", "block_count", MT_NEED);
    number(&c, "encoder_attention_heads", "attention.head_count", MT_NEED);
    number(&c, "encoder_ffn_dim", "feed_forward_length", MT_NEED);
    number(&c, "output_dim", "projection_dim", MT_NEED);
    eps = real(&c, "attention.layer_norm_epsilon", 0, 1, 1e-5);
    if (c.rc == 0 && fabs(eps - 1e-5) > 1e-9)
        return mt_err_set(
            e, -ENOTSUP, "%s: key 'clip.audio.attention.layer_norm_epsilon' is %g (expected 1e-05)",
            mt_gguf_path(g), eps);
    if (a->qwen3)
        rows_of(&c, "downsample_hidden_size", "a.conv2d.1.weight");
    refuse_layer(&c, "encoder_layers", "a.blk", "ln1.weight");
    return c.rc;
}

/*
 * A tower beside a text model of this width and depth as the released ones are: 1280 wide and 32
 * deep beside 3584 and 28 (Qwen2.5-Omni-7B), or 2048 and 48 (Qwen3-Omni); heads of 64.
 */
static void synth_tower(json_t *to, const struct mt_gguf_arch *a, int64_t hidden, int64_t layers)
{
    int64_t heads = (int64_t)lround((double)hidden * 20 / (a->qwen3 ? 2048 : 3584));
    int64_t deep = (int64_t)lround((double)layers * 32 / (a->qwen3 ? 48 : 28));

    heads = heads < 1 ? 1 : heads;
    json_object_set_new(to, "num_mel_bins", json_integer(128));
    json_object_set_new(to, "d_model", json_integer(64 * heads));
    json_object_set_new(to, "encoder_layers", json_integer(deep < 1 ? 1 : deep));
    json_object_set_new(to, "encoder_attention_heads", json_integer(heads));
    json_object_set_new(to, "encoder_ffn_dim", json_integer(256 * heads));
    json_object_set_new(to, "downsample_hidden_size", json_integer(24 * heads));
    json_object_set_new(to, "output_dim", json_integer(hidden));
}

int mt_gguf_config(json_t **out, const struct mt_gguf_arch *a, const struct mt_gguf *text,
                   enum mt_tower tower, const struct mt_gguf *audio,
                   const int32_t ids[MT_GGUF_MARKS], struct mt_err *e)
{
    json_t *root = json_object(), *lm = json_object(), *ear = json_object();
    int64_t layers, hidden, vocab;
    int rc =
        root && lm && ear ? text_config(lm, a, text, e) : mt_err_set(e, -ENOMEM, "out of memory");

    layers = json_integer_value(json_object_get(lm, "num_hidden_layers"));
    hidden = json_integer_value(json_object_get(lm, "hidden_size"));
    vocab = json_integer_value(json_object_get(lm, "vocab_size"));
    tower_constants(ear, a);
    if (rc == 0 && tower == MT_TOWER_FILE)
        rc = file_tower(ear, a, audio, e);
    else if (tower == MT_TOWER_SYNTH)
        synth_tower(ear, a, hidden, layers);
    else
        synth_tower(ear, a, hidden, 0);
    if (tower == MT_TOWER_NONE) {
        json_object_set_new(ear, "d_model", json_integer(64));
        json_object_set_new(ear, "encoder_attention_heads", json_integer(1));
        json_object_set_new(ear, "encoder_ffn_dim", json_integer(64));
        json_object_set_new(ear, "downsample_hidden_size", json_integer(8));
    }
    json_object_set_new(root, "model_type", json_string(a->model_type));
    json_object_set_new(root, "text_config", lm);
    json_object_set_new(root, "audio_config", ear);
    /* An id behind the table: no token is a placeholder. */
    json_object_set_new(root, "audio_token_id", json_integer(ids[0] < 0 ? vocab : ids[0]));
    if (rc < 0) {
        json_decref(root);
        root = NULL;
    }
    *out = root;
    return rc;
}
