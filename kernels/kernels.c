/*
 * kernels.c: what the interface says about types and the KV layout, the same for every backend.
 */
#include "kernels/kernels.h"

#include <errno.h>

static const struct {
    const char *name;
    int block, bytes;
} types[MT_DTYPES] = {
    [MT_F32] = {"f32", 1, 4},       [MT_F16] = {"f16", 1, 2},       [MT_BF16] = {"bf16", 1, 2},
    [MT_INT8] = {"int8", 1, 1},     [MT_FP8] = {"fp8", 1, 1},       [MT_Q4_0] = {"q4_0", 32, 18},
    [MT_Q4_1] = {"q4_1", 32, 20},   [MT_Q5_0] = {"q5_0", 32, 22},   [MT_Q5_1] = {"q5_1", 32, 24},
    [MT_Q8_0] = {"q8_0", 32, 34},   [MT_Q4_K] = {"q4_k", 256, 144}, [MT_Q5_K] = {"q5_k", 256, 176},
    [MT_Q6_K] = {"q6_k", 256, 210},
};

size_t mt_dtype_size(enum mt_dtype t)
{
    return t < MT_DTYPES && types[t].block == 1 ? (size_t)types[t].bytes : 0;
}

const char *mt_dtype_name(enum mt_dtype t)
{
    return t < MT_DTYPES ? types[t].name : "?";
}

int mt_dtype_block(enum mt_dtype t)
{
    return types[t].block;
}

int mt_dtype_block_bytes(enum mt_dtype t)
{
    return types[t].bytes;
}

int64_t mt_dtype_row_bytes(enum mt_dtype t, int64_t cols)
{
    int64_t bytes;

    if (cols < 0 || cols % types[t].block ||
        __builtin_mul_overflow(cols / types[t].block, (int64_t)types[t].bytes, &bytes))
        return -1;
    return bytes;
}

int64_t mt_kv_block_bytes(const struct mt_kv_shape *s)
{
    int64_t size = (int64_t)mt_dtype_size(s->type);
    int64_t b, tokens;

    if (s->layers < 1 || s->kv_heads < 1 || s->head_dim < 1 || s->block_tokens < 1 || !size)
        return -EINVAL;
    /* A token of one head, K and V; then all tokens and heads; then all layers. */
    b = 2 * (int64_t)s->head_dim * size +
        (mt_dtype_scaled(s->type) ? 2 * (int64_t)sizeof(float) : 0);
    if (__builtin_mul_overflow((int64_t)s->block_tokens, (int64_t)s->kv_heads, &tokens) ||
        __builtin_mul_overflow(b, tokens, &b) || __builtin_mul_overflow(b, (int64_t)s->layers, &b))
        return -EINVAL;
    return b;
}
