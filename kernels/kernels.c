/*
 * kernels.c: what the interface says about types and the KV layout, the same for every backend.
 */
#include "kernels/kernels.h"

#include <errno.h>

size_t mt_dtype_size(enum mt_dtype t)
{
    switch (t) {
    case MT_F32:
        return 4;
    case MT_F16:
    case MT_BF16:
        return 2;
    case MT_INT8:
        return 1;
    }
    return 0;
}

const char *mt_dtype_name(enum mt_dtype t)
{
    switch (t) {
    case MT_F32:
        return "f32";
    case MT_F16:
        return "f16";
    case MT_BF16:
        return "bf16";
    case MT_INT8:
        return "int8";
    }
    return "?";
}

int64_t mt_kv_block_bytes(const struct mt_kv_shape *s)
{
    int64_t size = (int64_t)mt_dtype_size(s->type);
    int64_t b, tokens;

    if (s->layers < 1 || s->kv_heads < 1 || s->head_dim < 1 || s->block_tokens < 1 || !size)
        return -EINVAL;
    /* A token of one head, K and V; then all tokens and heads; then all layers. */
    b = 2 * (int64_t)s->head_dim * size + (s->type == MT_INT8 ? 2 * (int64_t)sizeof(float) : 0);
    if (__builtin_mul_overflow((int64_t)s->block_tokens, (int64_t)s->kv_heads, &tokens) ||
        __builtin_mul_overflow(b, tokens, &b) || __builtin_mul_overflow(b, (int64_t)s->layers, &b))
        return -EINVAL;
    return b;
}
