/*
 * kv.h: where a token lies in the pool, as kernels see it; the CPU's cpu.h says the same.
 */
#ifndef MT_CUDA_KV_H
#define MT_CUDA_KV_H

#include "kernels/cuda/dev.h"

/* What all pools of a call have in common. */
struct mt_dkv {
    int heads, hd, p, layer;
};

static inline struct mt_dkv mt_dkv_of(const struct mt_kv *kv, int layer)
{
    return {kv->s.kv_heads, kv->s.head_dim, kv->s.block_tokens, layer};
}

/* A layer of a block: K [head][token][head dim], V, then INT8's scales of K and of V. */
MT_DEV int64_t kv_at(const struct mt_dkv &kv, const struct mt_drun &run, int side, int head,
                     int slot)
{
    return side * run.half_bytes + ((int64_t)head * kv.p + slot) * kv.hd * run.size;
}

MT_DEV int64_t kv_scale_at(const struct mt_dkv &kv, const struct mt_drun &run, int side, int head,
                           int slot)
{
    return 2 * run.half_bytes + ((int64_t)(side * kv.heads + head) * kv.p + slot) * 4;
}

/* At any address: an odd shape's scales lie anywhere. */
MT_DEV float kv_scale(const char *p)
{
    const unsigned char *b = (const unsigned char *)p;

    return __uint_as_float(b[0] | b[1] << 8 | b[2] << 16 | (unsigned)b[3] << 24);
}

/* a / b for a >= 0: a device divides 64 bits by some hundred instructions. */
MT_DEV int64_t kv_quotient(int64_t a, int b)
{
    return a <= UINT_MAX ? (unsigned)a / (unsigned)b : a / b;
}

/* The block, from its layer on, that holds token i of a run's session. */
MT_DEV char *kv_block(const struct mt_dkv &kv, const struct mt_drun &run, int64_t i, int *slot)
{
    int64_t r = i < run.sinks ? i : i - run.sinks, n = kv_quotient(r, kv.p), block = n;

    *slot = (int)(r - n * kv.p);
    if (i >= run.sinks)
        block =
            (run.sinks + kv.p - 1) / kv.p + n - kv_quotient(n, run.ring_blocks) * run.ring_blocks;
    block = run.blocks[block];
    return run.data + block * run.block_bytes + kv.layer * run.layer_bytes;
}

#endif
