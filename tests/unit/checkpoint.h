/*
 * checkpoint.h: a tiny Qwen2.5-Omni or MiniCPM-o checkpoint, written by a test into a folder of its
 * own: config.json from a JSON object that the test may have altered, weights from a seed. Static
 * functions: each test links its own.
 */
#ifndef MT_TEST_CHECKPOINT_H
#define MT_TEST_CHECKPOINT_H

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"

/* A folder under /tmp with room for names in it. */
struct ck {
    char dir[64];
};

static inline const char *ck_path(const struct ck *c, const char *name)
{
    static char path[4][200];
    static int at;

    at = (at + 1) % 4;
    snprintf(path[at], sizeof(path[at]), "%s/%s", c->dir, name);
    return path[at];
}

static inline void ck_new(struct ck *c)
{
    snprintf(c->dir, sizeof(c->dir), "/tmp/mt-ck-XXXXXX");
    if (!mkdtemp(c->dir))
        abort();
}

static inline void ck_free(struct ck *c)
{
    char command[100];

    snprintf(command, sizeof(command), "rm -rf '%s'", c->dir);
    if (system(command))
        abort();
}

static inline void ck_write(const struct ck *c, const char *name, const void *bytes, size_t n)
{
    FILE *f = fopen(ck_path(c, name), "wb");

    if (!f || fwrite(bytes, 1, n, f) != n || fclose(f))
        abort();
}

static inline void ck_text(const struct ck *c, const char *name, const char *text)
{
    ck_write(c, name, text, strlen(text));
}

static inline void ck_json(const struct ck *c, const char *name, const json_t *j)
{
    if (json_dump_file(j, ck_path(c, name), 0))
        abort();
}

/* Sizes as small as they go: 2 layers, 3 heads on one kv head, an odd feed-forward width. */
#define CK_VOCAB 300
#define CK_CONFIG                                                                                  \
    "{\"model_type\":\"qwen2_5_omni\",\"thinker_config\":{\"audio_token_index\":290,"              \
    "\"text_config\":{\"vocab_size\":300,\"hidden_size\":12,\"num_hidden_layers\":2,"              \
    "\"num_attention_heads\":3,\"num_key_value_heads\":1,\"intermediate_size\":17,"                \
    "\"rope_theta\":10000.0,\"rms_norm_eps\":1e-6,\"hidden_act\":\"silu\","                        \
    "\"use_sliding_window\":false},\"audio_config\":{\"num_mel_bins\":8,\"d_model\":8,"            \
    "\"encoder_layers\":1,\"encoder_attention_heads\":2,\"encoder_ffn_dim\":5,"                    \
    "\"output_dim\":12,\"n_window\":100,\"max_source_positions\":1500,"                            \
    "\"activation_function\":\"gelu\"}}}"

static inline json_t *ck_config(void)
{
    return json_loads(CK_CONFIG, 0, NULL);
}

/* The member at "a.b.c", made to hold value (its reference is taken); NULL removes it. */
static inline void ck_set(json_t *root, const char *path, json_t *value)
{
    char buf[128], *at = buf, *dot;

    snprintf(buf, sizeof(buf), "%s", path);
    while ((dot = strchr(at, '.'))) {
        *dot = '\0';
        root = json_object_get(root, at);
        at = dot + 1;
    }
    if (value ? json_object_set_new(root, at, value) : json_object_del(root, at))
        abort();
}

/* ---- weights ---- */

struct ck_file {
    json_t *header;
    float *data;
    size_t n, cap;
};

static inline void ck_tensor(struct ck_file *f, const char *prefix, const char *name, int n_dims,
                             const int64_t *dims)
{
    char full[160];
    int64_t n = 1;
    json_t *shape = json_array();

    snprintf(full, sizeof(full), "%s%s", prefix, name);
    for (int i = 0; i < n_dims; i++) {
        n *= dims[i];
        json_array_append_new(shape, json_integer(dims[i]));
    }
    if (f->n + (size_t)n > f->cap) {
        f->cap = 2 * (f->n + (size_t)n);
        f->data = realloc(f->data, f->cap * sizeof(*f->data));
    }
    json_object_set_new(f->header, full,
                        json_pack("{s:s,s:o,s:[I,I]}", "dtype", "F32", "shape", shape,
                                  "data_offsets", (json_int_t)(f->n * 4),
                                  (json_int_t)((f->n + (size_t)n) * 4)));
    /*
     * A tensor's values depend on its name without the prefix, so that the same model can be saved
     * in several ways.
     */
    uint64_t key = mt_hash(MT_HASH_INIT, name, strlen(name));
    for (int64_t i = 0; i < n; i++) {
        float v = (float)((double)(mt_mix64(key + (uint64_t)i) >> 40) / (1 << 24) - 0.5);
        f->data[f->n++] = strstr(name, "norm.weight") ? 1 + v / 8 : v;
    }
}
#define CK_V(f, p, name, a)       ck_tensor(f, p, name, 1, (const int64_t[]){a})
#define CK_M(f, p, name, a, b)    ck_tensor(f, p, name, 2, (const int64_t[]){a, b})
#define CK_C(f, p, name, a, b, c) ck_tensor(f, p, name, 3, (const int64_t[]){a, b, c})

enum ck_head { CK_HEAD, CK_HEAD_TIED /* absent */ };

static inline void ck_text_model(struct ck_file *f, const char *p, enum ck_head head)
{
    char at[64];

    CK_M(f, p, "model.embed_tokens.weight", CK_VOCAB, 12);
    for (int i = 0; i < 2; i++) {
        snprintf(at, sizeof(at), "%smodel.layers.%d.", p, i);
        CK_V(f, at, "input_layernorm.weight", 12);
        CK_V(f, at, "post_attention_layernorm.weight", 12);
        CK_M(f, at, "self_attn.q_proj.weight", 12, 12);
        CK_V(f, at, "self_attn.q_proj.bias", 12);
        CK_M(f, at, "self_attn.k_proj.weight", 4, 12);
        CK_V(f, at, "self_attn.k_proj.bias", 4);
        CK_M(f, at, "self_attn.v_proj.weight", 4, 12);
        CK_V(f, at, "self_attn.v_proj.bias", 4);
        CK_M(f, at, "self_attn.o_proj.weight", 12, 12);
        CK_M(f, at, "mlp.gate_proj.weight", 17, 12);
        CK_M(f, at, "mlp.up_proj.weight", 17, 12);
        CK_M(f, at, "mlp.down_proj.weight", 12, 17);
    }
    CK_V(f, p, "model.norm.weight", 12);
    if (head == CK_HEAD)
        CK_M(f, p, "lm_head.weight", CK_VOCAB, 12);
}

/* Convolutions and a layer of Whisper's encoder. */
static inline void ck_encoder(struct ck_file *f, const char *p)
{
    static const char *const proj[] = {"q_proj", "v_proj", "out_proj"};
    static const char *const norm[] = {"self_attn_layer_norm", "final_layer_norm"};
    char name[64];

    CK_C(f, p, "conv1.weight", 8, 8, 3);
    CK_V(f, p, "conv1.bias", 8);
    CK_C(f, p, "conv2.weight", 8, 8, 3);
    CK_V(f, p, "conv2.bias", 8);
    for (size_t i = 0; i < MT_COUNT(proj); i++) {
        snprintf(name, sizeof(name), "layers.0.self_attn.%s.weight", proj[i]);
        CK_M(f, p, name, 8, 8);
        snprintf(name, sizeof(name), "layers.0.self_attn.%s.bias", proj[i]);
        CK_V(f, p, name, 8);
    }
    CK_M(f, p, "layers.0.self_attn.k_proj.weight", 8, 8);
    for (size_t i = 0; i < MT_COUNT(norm); i++) {
        snprintf(name, sizeof(name), "layers.0.%s.weight", norm[i]);
        CK_V(f, p, name, 8);
        snprintf(name, sizeof(name), "layers.0.%s.bias", norm[i]);
        CK_V(f, p, name, 8);
    }
    CK_M(f, p, "layers.0.fc1.weight", 5, 8);
    CK_V(f, p, "layers.0.fc1.bias", 5);
    CK_M(f, p, "layers.0.fc2.weight", 8, 5);
    CK_V(f, p, "layers.0.fc2.bias", 8);
}

static inline void ck_tower(struct ck_file *f, const char *prefix)
{
    char p[64];

    snprintf(p, sizeof(p), "%saudio_tower.", prefix);
    ck_encoder(f, p);
    CK_V(f, p, "ln_post.weight", 8);
    CK_V(f, p, "ln_post.bias", 8);
    CK_M(f, p, "proj.weight", 12, 8);
    CK_V(f, p, "proj.bias", 12);
}

/*
 * What a Qwen3-Omni thinker of the same sizes has besides, so that one file serves both families:
 * 3 experts of 5 in both layers, a stem of 2 channels.
 */
static inline void ck_qwen3(struct ck_file *f, const char *prefix)
{
    char p[64], name[64];

    for (int i = 0; i < 2; i++) {
        snprintf(p, sizeof(p), "%smodel.layers.%d.", prefix, i);
        CK_V(f, p, "self_attn.q_norm.weight", 4);
        CK_V(f, p, "self_attn.k_norm.weight", 4);
        CK_M(f, p, "mlp.gate.weight", 3, 12);
        for (int e = 0; e < 3; e++) {
            snprintf(name, sizeof(name), "mlp.experts.%d.gate_proj.weight", e);
            CK_M(f, p, name, 5, 12);
            snprintf(name, sizeof(name), "mlp.experts.%d.up_proj.weight", e);
            CK_M(f, p, name, 5, 12);
            snprintf(name, sizeof(name), "mlp.experts.%d.down_proj.weight", e);
            CK_M(f, p, name, 12, 5);
        }
    }
    snprintf(p, sizeof(p), "%saudio_tower.", prefix);
    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof(name), "conv2d%d.weight", i + 1);
        ck_tensor(f, p, name, 4, (const int64_t[]){2, i ? 2 : 1, 3, 3});
        snprintf(name, sizeof(name), "conv2d%d.bias", i + 1);
        CK_V(f, p, name, 2);
    }
    CK_M(f, p, "conv_out.weight", 8, 2);
    CK_V(f, p, "layers.0.self_attn.k_proj.bias", 8);
    CK_M(f, p, "proj1.weight", 8, 8);
    CK_V(f, p, "proj1.bias", 8);
    CK_M(f, p, "proj2.weight", 12, 8);
    CK_V(f, p, "proj2.bias", 12);
}

static inline void ck_save(struct ck_file *f, const struct ck *c, const char *name)
{
    char *text = json_dumps(f->header, JSON_COMPACT);
    uint64_t n = strlen(text);
    FILE *out = fopen(ck_path(c, name), "wb");

    if (!out || fwrite(&n, 8, 1, out) != 1 || fwrite(text, 1, n, out) != n ||
        fwrite(f->data, 4, f->n, out) != f->n || fclose(out))
        abort();
    free(text);
    free(f->data);
    json_decref(f->header);
}

/*
 * The whole checkpoint: config.json of CK_CONFIG and one file. prefix: "thinker.", or "" for a
 * thinker saved alone.
 */
static inline void ck_model(const struct ck *c, const char *prefix, enum ck_head head)
{
    struct ck_file f = {.header = json_object()};
    json_t *config = ck_config();

    ck_text_model(&f, prefix, head);
    ck_tower(&f, prefix);
    ck_save(&f, c, "model.safetensors");
    ck_json(c, "config.json", config);
    json_decref(config);
}

/* MiniCPM-o: the same sizes, a table of 110 places. */
#define CK_MINICPM                                                                                 \
    "{\"model_type\":\"minicpmo\",\"vocab_size\":300,\"hidden_size\":12,\"num_hidden_layers\":2,"  \
    "\"num_attention_heads\":3,\"num_key_value_heads\":1,\"head_dim\":4,"                          \
    "\"intermediate_size\":17,\"rope_theta\":10000.0,\"audio_pool_step\":5,"                       \
    "\"audio_chunk_length\":1.0,\"audio_config\":{\"num_mel_bins\":8,\"d_model\":8,"               \
    "\"encoder_layers\":1,\"encoder_attention_heads\":2,\"encoder_ffn_dim\":5,"                    \
    "\"max_source_positions\":110,\"activation_function\":\"gelu\"}}"

/* Biases of q, k and v are in the file, too: nobody may ask for them. */
static inline void ck_minicpm(const struct ck *c)
{
    struct ck_file f = {.header = json_object()};

    ck_text_model(&f, "llm.", CK_HEAD);
    for (int i = 0; i < 2; i++) {
        char at[64];
        snprintf(at, sizeof(at), "llm.model.layers.%d.self_attn.", i);
        CK_V(&f, at, "q_norm.weight", 4);
        CK_V(&f, at, "k_norm.weight", 4);
    }
    ck_encoder(&f, "apm.");
    CK_M(&f, "apm.", "embed_positions.weight", 110, 8);
    CK_V(&f, "apm.", "layer_norm.weight", 8);
    CK_V(&f, "apm.", "layer_norm.bias", 8);
    CK_M(&f, "audio_projection_layer.", "linear1.weight", 12, 8);
    CK_V(&f, "audio_projection_layer.", "linear1.bias", 12);
    CK_M(&f, "audio_projection_layer.", "linear2.weight", 12, 12);
    CK_V(&f, "audio_projection_layer.", "linear2.bias", 12);
    ck_save(&f, c, "model.safetensors");
    ck_text(c, "config.json", CK_MINICPM);
}

#endif
