/*
 * gguf_names.c: what the tensors of a released Qwen thinker are called by llama.cpp's converter.
 * Names are kept but for their stems; a layer's experts become one stack.
 */
#include "model/gguf_names.h"

#include <stdlib.h>
#include <string.h>

struct stem {
    const char *released, *gguf;
};

static const struct stem text_stems[] = {
    {"model.embed_tokens", "token_embd"},
    {"model.norm", "output_norm"},
    {"lm_head", "output"},
};

static const struct stem text_layer_stems[] = {
    {"input_layernorm", "attn_norm"},    {"post_attention_layernorm", "ffn_norm"},
    {"self_attn.q_proj", "attn_q"},      {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},      {"self_attn.o_proj", "attn_output"},
    {"self_attn.q_norm", "attn_q_norm"}, {"self_attn.k_norm", "attn_k_norm"},
    {"mlp.gate_proj", "ffn_gate"},       {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},       {"mlp.gate", "ffn_gate_inp"},
};

static const struct stem expert_stems[] = {
    {"gate_proj", "ffn_gate_exps"},
    {"up_proj", "ffn_up_exps"},
    {"down_proj", "ffn_down_exps"},
};

static const struct stem audio_stems[] = {
    {"conv1", "a.conv1d.1"},   {"conv2", "a.conv1d.2"},   {"conv2d1", "a.conv2d.1"},
    {"conv2d2", "a.conv2d.2"}, {"conv2d3", "a.conv2d.3"}, {"conv_out", "a.conv_out"},
    {"ln_post", "a.post_ln"},  {"proj", "mm.a.fc"},       {"proj1", "mm.a.mlp.1"},
    {"proj2", "mm.a.mlp.2"},
};

static const struct stem audio_layer_stems[] = {
    {"self_attn_layer_norm", "ln1"},
    {"final_layer_norm", "ln2"},
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.out_proj", "attn_out"},
    {"fc1", "ffn_up"},
    {"fc2", "ffn_down"},
};

/* The GGUF stem of a name that ends with .weight or .bias, which goes to *end. */
static const char *find_stem(const struct stem *stems, size_t n, const char *name, const char **end)
{
    *end = strrchr(name, '.');
    if (!*end || (strcmp(*end, ".weight") != 0 && strcmp(*end, ".bias") != 0))
        return NULL;
    for (size_t i = 0; i < n; i++)
        if (strlen(stems[i].released) == (size_t)(*end - name) &&
            !strncmp(stems[i].released, name, (size_t)(*end - name)))
            return stems[i].gguf;
    return NULL;
}

/* Cut "PREFIXnumber." off *name. */
static bool cut_number(const char **name, const char *prefix, int64_t *number)
{
    size_t n = strlen(prefix);
    char *end;

    if (strncmp(*name, prefix, n) != 0 || (*name)[n] < '0' || (*name)[n] > '9')
        return false;
    *number = strtol(*name + n, &end, 10);
    if (*end != '.' || *number > INT32_MAX)
        return false;
    *name = end + 1;
    return true;
}

/* A name of a layer, or one that stands alone. */
static bool translate(struct mt_gguf_name *out, const char *name, const char *layers,
                      const char *blocks, const struct stem *in, size_t n_in,
                      const struct stem *alone, size_t n_alone)
{
    const char *stem, *end;
    int64_t layer;

    if (!cut_number(&name, layers, &layer)) {
        stem = find_stem(alone, n_alone, name, &end);
        return stem && snprintf(out->name, sizeof(out->name), "%s%s", stem, end) > 0;
    }
    if (cut_number(&name, "mlp.experts.", &out->expert))
        stem = find_stem(expert_stems, MT_COUNT(expert_stems), name, &end);
    else
        stem = find_stem(in, n_in, name, &end);
    return stem && snprintf(out->name, sizeof(out->name), "%s.%lld.%s%s", blocks, (long long)layer,
                            stem, end) > 0;
}

bool mt_gguf_name(struct mt_gguf_name *out, const char *released)
{
    static const char tower[] = "audio_tower.";

    *out = (struct mt_gguf_name){.expert = -1, .audio = !strncmp(released, tower, strlen(tower))};
    if (out->audio)
        return translate(out, released + strlen(tower), "layers.", "a.blk", audio_layer_stems,
                         MT_COUNT(audio_layer_stems), audio_stems, MT_COUNT(audio_stems));
    return translate(out, released, "model.layers.", "blk", text_layer_stems,
                     MT_COUNT(text_layer_stems), text_stems, MT_COUNT(text_stems));
}
