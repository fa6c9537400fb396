/*
 * mimi_names.c: kyutai's tensor names, rewritten piece by piece into transformers'.
 */
#include "model/mimi_names.h"

#include <stdio.h>
#include <string.h>

static const struct {
    const char *ours, *hf;
} piece[] = {
    {"encoder.model.", "encoder.layers."},
    {"decoder.model.", "decoder.layers."},
    {"downsample.conv.conv.conv.", "downsample.conv."},
    {"upsample.convtr.convtr.convtr.", "upsample.conv."},
    {"convtr.convtr.", "conv."},
    {"conv.conv.", "conv."},
    {"_transformer.transformer.", "_transformer."},
    {".norm1.", ".input_layernorm."},
    {".norm2.", ".post_attention_layernorm."},
    {".linear1.", ".mlp.fc1."},
    {".linear2.", ".mlp.fc2."},
    {".out_proj.", ".o_proj."},
    {".layer_scale_1.", ".self_attn_layer_scale."},
    {".layer_scale_2.", ".mlp_layer_scale."},
    {"rvq_first.", "semantic_residual_vector_quantizer."},
    {"rvq_rest.", "acoustic_residual_vector_quantizer."},
    {".vq.layers.", ".layers."},
    {"._codebook.", ".codebook."},
    {".embedding_sum", ".embed_sum"},
};

static void replace(char *name, size_t max, const char *from, const char *to)
{
    char *at = strstr(name, from);
    size_t n = strlen(name), a = strlen(from), b = strlen(to);

    if (!at || n - a + b >= max)
        return;
    memmove(at + b, at + a, n - (size_t)(at - name) - a + 1);
    memcpy(at, to, b);
}

const char *mt_mimi_name(char out[MT_MIMI_NAME_MAX], const char *prefix, bool hf, const char *fmt,
                         va_list ap)
{
    int n = snprintf(out, MT_MIMI_NAME_MAX, "%s", prefix);

    vsnprintf(out + n, (size_t)(MT_MIMI_NAME_MAX - n), fmt, ap);
    for (size_t i = 0; hf && i < MT_COUNT(piece); i++)
        replace(out + n, (size_t)(MT_MIMI_NAME_MAX - n), piece[i].ours, piece[i].hf);
    return out;
}
