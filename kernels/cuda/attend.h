/*
 * attend.h: softmax(q k) v for a tile of queries that share their keys: the body of both
 * attentions.
 *
 * A block has 4 warps, up to 16 queries (rows of a session times the heads of a group) and walks
 * over tiles of 32 keys. K of a tile goes to shared memory as f32; a lane takes a key, a warp 4
 * queries; then V takes K's place and a lane takes elements of the output. Tiles and pieces (of
 * MT_PIECE tokens, a softmax of their own, put together ascending) begin at multiples of their size
 * in the session, and a key that a query does not see adds exact zeros: so a query's sums are the
 * same however its session was cut into rows, and whether one block has all pieces or each has one.
 */
#ifndef MT_CUDA_ATTEND_H
#define MT_CUDA_ATTEND_H

#include "kernels/cuda/kv.h"

#ifndef MT_PIECE
#define MT_PIECE 256
#endif

enum {
    ATTEND_THREADS = 128,
    ATTEND_WARPS = 4,
    ATTEND_QUERIES = 16,
    ATTEND_EACH = ATTEND_QUERIES / ATTEND_WARPS, /* queries a warp */
    ATTEND_KEYS = 32,
};

/* Keys lo..hi-1 of a session's sinks, or of what is behind them. */
struct attend_piece {
    int64_t lo, hi;
    bool sink;
};

/* Where a key is: NULL where there is none. */
struct attend_key {
    const char *k, *v;
    float k_scale, v_scale;
};

/* Where a query's piece is kept unmerged: maximum and sum; outputs. */
struct attend_part {
    float *stat, *out;
};

/* Where keys are; queries, a tile, weights. All of what a block has: nothing is beside it. */
static inline size_t attend_shared(int hd)
{
    return ATTEND_KEYS * sizeof(struct attend_key) +
           (size_t)(ATTEND_QUERIES * hd + ATTEND_KEYS * (hd + 1) + ATTEND_QUERIES * ATTEND_KEYS) *
               sizeof(float);
}

/* A softmax in progress over E * 32 elements: lane l has l, l + 32... */
template <int E> struct attend_sum {
    float max, sum, out[E];
};

template <int E> MT_DEV void attend_clear(struct attend_sum<E> *s)
{
    s->max = -INFINITY;
    s->sum = 0;
#pragma unroll
    for (int e = 0; e < E; e++)
        s->out[e] = 0;
}

/* Pieces are put together by this alone, rounding by rounding. */
template <int E> MT_DEV void attend_merge(struct attend_sum<E> *all, const struct attend_sum<E> &s)
{
    if (s.sum == 0)
        return;
    if (all->sum == 0) {
        *all = s;
        return;
    }
    float max = fmaxf(all->max, s.max), a = expf(all->max - max), b = expf(s.max - max);

    all->max = max;
    all->sum = dev_fma(s.sum, b, __fmul_rn(all->sum, a));
#pragma unroll
    for (int e = 0; e < E; e++)
        all->out[e] = dev_fma(s.out[e], b, __fmul_rn(all->out[e], a));
}

/* 16 bytes of keys as floats. */
MT_DEV void attend_words(float *dst, int type, const uint4 v, float scale)
{
    const unsigned u[4] = {v.x, v.y, v.z, v.w};

#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (type == MT_F32) {
            dst[i] = __uint_as_float(u[i]);
        } else if (type == MT_BF16) {
            dst[2 * i] = __uint_as_float(u[i] << 16);
            dst[2 * i + 1] = __uint_as_float(u[i] & 0xffff0000u);
        } else if (type == MT_F16) {
            dst[2 * i] = dev_from_f16((uint16_t)u[i]);
            dst[2 * i + 1] = dev_from_f16((uint16_t)(u[i] >> 16));
        } else {
            for (int k = 0; k < 4; k++)
                dst[4 * i + k] = __fmul_rn(dev_from_byte(type, u[i] >> 8 * k & 0xff), scale);
        }
    }
}

/* A tile of K (v false) or V to shared rows of hd + 1 floats; zeros where there is no key. */
template <class S>
MT_DEV void attend_load(float *tile, const S &s, const struct attend_key *key, bool v)
{
    int hd = s.hd, stride = hd + 1;

    if (s.aligned) { /* a thread 16 bytes, neighbours side by side */
        int each = 16 / s.size, words = hd / each;

        for (int i = (int)threadIdx.x; i < ATTEND_KEYS * words; i += ATTEND_THREADS) {
            int k = i / words, w = i % words;
            const char *from = v ? key[k].v : key[k].k;
            uint4 word = {0, 0, 0, 0};

            if (from)
                word = ((const uint4 *)from)[w];
            attend_words(tile + k * stride + w * each, s.type, word,
                         v ? key[k].v_scale : key[k].k_scale);
        }
        return;
    }
    for (int i = (int)threadIdx.x; i < ATTEND_KEYS * hd; i += ATTEND_THREADS) {
        int k = i / hd, d = i % hd;
        const char *from = v ? key[k].v : key[k].k;
        float f = 0;

        if (from)
            f = dev_scaled(s.type) ? __fmul_rn(dev_from_byte(s.type, (unsigned char)from[d]),
                                               v ? key[k].v_scale : key[k].k_scale)
                                   : dev_weight_at(s.type, (const unsigned char *)from, d);
        tile[k * stride + d] = f;
    }
}

/*
 * Pieces z0..z1-1; apart: each to its part(i, z), else all of them put together to the queries'
 * outputs.
 *
 * S has nq, hd, type, size, aligned, and piece(z), query(i, sink), out(i), part(i, z),
 * key(piece, r), sees(i, piece, r).
 */
template <int E, class S> MT_DEV void attend(const S &s, int z0, int z1, bool apart)
{
    MT_SHARED_BYTES(bytes);
    int hd = s.hd, stride = hd + 1, warp = (int)threadIdx.x / 32, lane = (int)dev_lane();
    struct attend_key *key = (struct attend_key *)bytes;
    float *q = (float *)(key + ATTEND_KEYS), *tile = q + ATTEND_QUERIES * hd;
    float *weight = tile + ATTEND_KEYS * stride, scale = 1 / sqrtf((float)hd);
    struct attend_sum<E> all[ATTEND_EACH];
    int loaded = -1;

#pragma unroll
    for (int j = 0; j < ATTEND_EACH; j++)
        attend_clear(&all[j]);
    for (int z = z0; z < z1; z++) {
        const struct attend_piece piece = s.piece(z);
        struct attend_sum<E> sum[ATTEND_EACH];

        if (loaded != piece.sink) {
            __syncthreads();
            for (int i = (int)threadIdx.x; i < s.nq * hd; i += ATTEND_THREADS)
                q[i] = s.query(i / hd, piece.sink)[i % hd];
            loaded = piece.sink;
        }
#pragma unroll
        for (int j = 0; j < ATTEND_EACH; j++)
            attend_clear(&sum[j]);
        for (int64_t r0 = piece.lo / ATTEND_KEYS * ATTEND_KEYS; r0 < piece.hi; r0 += ATTEND_KEYS) {
            int64_t r = r0 + lane;
            float dot[ATTEND_EACH] = {0};

            __syncthreads(); /* the tile before has been used */
            if (warp == 0) {
                struct attend_key none = {NULL, NULL, 0, 0};

                key[lane] = r >= piece.lo && r < piece.hi ? s.key(piece, r) : none;
            }
            __syncthreads();
            attend_load(tile, s, key, false);
            __syncthreads();
            for (int d = 0; d < hd; d++) {
                float k = tile[lane * stride + d];

#pragma unroll
                for (int j = 0; j < ATTEND_EACH; j++)
                    if (warp + ATTEND_WARPS * j < s.nq)
                        dot[j] = dev_fma(q[(warp + ATTEND_WARPS * j) * hd + d], k, dot[j]);
            }
#pragma unroll
            for (int j = 0; j < ATTEND_EACH; j++) {
                int i = warp + ATTEND_WARPS * j;

                if (i >= s.nq)
                    continue;
                bool seen = key[lane].k && s.sees(i, piece, r);
                float score = seen ? dot[j] * scale : -INFINITY;
                float max = fmaxf(sum[j].max, warp_max(score)), w = 0, shrink = 1;

                if (max > -INFINITY) {
                    w = seen ? expf(score - max) : 0;
                    shrink = expf(sum[j].max - max);
                } else if (seen) { /* what is no number is not hidden */
                    w = score;
                }
                weight[i * ATTEND_KEYS + lane] = w;
                sum[j].max = max;
                sum[j].sum = dev_fma(sum[j].sum, shrink, warp_sum(w));
#pragma unroll
                for (int e = 0; e < E; e++)
                    sum[j].out[e] *= shrink;
            }
            __syncthreads(); /* K has been used; the weights are there */
            attend_load(tile, s, key, true);
            __syncthreads();
            for (int k = 0; k < ATTEND_KEYS; k++)
#pragma unroll
                for (int e = 0; e < E; e++) {
                    int d = lane + 32 * e;
                    float v = d < hd ? tile[k * stride + d] : 0;

#pragma unroll
                    for (int j = 0; j < ATTEND_EACH; j++)
                        if (warp + ATTEND_WARPS * j < s.nq)
                            sum[j].out[e] =
                                dev_fma(weight[(warp + ATTEND_WARPS * j) * ATTEND_KEYS + k], v,
                                        sum[j].out[e]);
                }
        }
#pragma unroll
        for (int j = 0; j < ATTEND_EACH; j++) {
            int i = warp + ATTEND_WARPS * j;

            if (i >= s.nq)
                continue;
            if (!apart) {
                attend_merge(&all[j], sum[j]);
                continue;
            }
            const struct attend_part to = s.part(i, z);
            if (lane == 0) {
                to.stat[0] = sum[j].max;
                to.stat[1] = sum[j].sum;
            }
#pragma unroll
            for (int e = 0; e < E; e++)
                if (lane + 32 * e < hd)
                    to.out[lane + 32 * e] = sum[j].out[e];
        }
    }
    if (apart)
        return;
#pragma unroll
    for (int j = 0; j < ATTEND_EACH; j++) {
        int i = warp + ATTEND_WARPS * j;

        if (i < s.nq)
#pragma unroll
            for (int e = 0; e < E; e++)
                if (lane + 32 * e < hd)
                    s.out(i)[lane + 32 * e] = all[j].out[e] / all[j].sum;
    }
}

#endif
