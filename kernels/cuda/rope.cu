/*
 * rope.cu: norms of heads, rotary positions and appending to the cache: a block a row. A warp norms
 * a head at a time, in place. The row's cosines and sines are formed once in f64, from frequencies
 * that the host made as the CPU does, and lie in shared memory while the block turns all heads;
 * then a warp a head of K and of V writes it to the cache. Products and sums are rounded one by
 * one, so that the cache's bits are the CPU's.
 */
#include "kernels/cuda/kv.h"

#include <float.h>

enum { THREADS = 128 };

struct turn {
    int step, mate; /* pair i couples i * step and i * step + mate */
};

/* n heads: dst by (cos, sin); dst may be src. tab: [half cosines][half sines] */
MT_DEV void turn_heads(float *dst, const float *src, const float *tab, int heads, int hd,
                       struct turn t)
{
    int half = hd / 2;

    for (int k = (int)threadIdx.x; k < heads * half; k += THREADS) {
        int i = k % half, at = k / half * hd + i * t.step;
        float a = src[at], b = src[at + t.mate], c = tab[i], s = tab[half + i];

        dst[at] = __fadd_rn(__fmul_rn(a, c), -__fmul_rn(b, s));
        dst[at + t.mate] = __fadd_rn(__fmul_rn(b, c), __fmul_rn(a, s));
    }
}

MT_DEV void put_scale(char *p, float v)
{
    unsigned u = __float_as_uint(v);

    for (int i = 0; i < 4; i++) /* an odd shape's scales lie at any address */
        p[i] = (char)(u >> 8 * i);
}

/* One head of one token by one warp. */
MT_DEV void append(char *dst, char *scale_at, int type, const float *x, int hd)
{
    unsigned max = 0;

    if (dev_scaled(type)) {
        for (int i = (int)dev_lane(); i < hd; i += 32) {
            unsigned a = __float_as_uint(x[i]) & 0x7fffffff;

            max = a > max ? a : max;
        }
        for (int m = 16; m; m >>= 1) {
            unsigned other = __shfl_xor_sync(MT_FULL, max, m);

            max = other > max ? other : max;
        }
        float scale = max < 0x7f800000
                          ? __fdiv_rn(__uint_as_float(max), type == MT_INT8 ? 127 : 448)
                          : __uint_as_float(0x7fc00000);
        float by = scale;
        if (!(by >= FLT_MIN)) {
            scale *= 0;
            by = INFINITY;
        }
        for (int i = (int)dev_lane(); i < hd; i += 32)
            dst[i] = type == MT_FP8
                         ? (char)dev_to_e4m3(__fdiv_rn(x[i], by))
                         : (char)(int)(__float_as_uint(__fadd_rn(__fdiv_rn(x[i], by), 0x1.8p23f)) -
                                       0x4b400000);
        if (dev_lane() == 0)
            put_scale(scale_at, scale);
        return;
    }
    for (int i = (int)dev_lane(); i < hd; i += 32) {
        if (type == MT_F32)
            ((float *)dst)[i] = x[i];
        else
            ((uint16_t *)dst)[i] = type == MT_BF16 ? dev_to_bf16(x[i]) : dev_to_f16(x[i]);
    }
}

/* Each head by its norm and w, or NULL: as it is. */
MT_DEV void norm_heads(float *x, const float *w, int heads, int hd, float eps)
{
    if (!w)
        return;
    for (int h = (int)threadIdx.x / 32; h < heads; h += THREADS / 32) {
        float *a = x + h * hd, scale = warp_norm(a, hd, eps);

        for (int i = (int)dev_lane(); i < hd; i += 32)
            a[i] = a[i] * scale * w[i];
    }
}

/* Shared: [hd / 2 cosines, sines] at the index, and where the sinks are seen from. */
static __global__ void rope_rows(struct mt_dkv kv, struct mt_dbatch b, struct mt_rows q,
                                 struct mt_rows q_sink, struct mt_rows k, struct mt_rows v,
                                 const double *freq, bool turning, struct turn t,
                                 const float *q_norm, const float *k_norm, float eps)
{
    MT_SHARED_BYTES(bytes);
    float *tab = (float *)bytes;
    int64_t row = blockIdx.x;
    const struct mt_drun run = b.run[b.run_of[row]];
    int64_t pos = run.index + row - run.row;
    int hd = kv.hd, half = hd / 2, heads = q.width / hd;
    float *qr = q.data + row * q.stride, *kr = k.data + row * k.stride;

    norm_heads(qr, q_norm, heads, hd, eps);
    norm_heads(kr, k_norm, kv.heads, hd, eps);
    for (int i = (int)threadIdx.x; i < 2 * half; i += THREADS) {
        int64_t at = (i < half || pos < run.reach ? pos : run.reach) + run.moved;
        int pair = i % (half ? half : 1);
        double angle = turning ? (double)at * freq[pair] : 0, s, c;

        if (i >= half && !run.sinks)
            break;
        sincos(angle, &s, &c);
        tab[i / half * hd + pair] = (float)c;
        tab[i / half * hd + half + pair] = (float)s;
    }
    __syncthreads();
    if (run.sinks > 0) {
        turn_heads(q_sink.data + row * q_sink.stride, qr, tab + hd, heads, hd, t);
        __syncthreads(); /* q is read by other threads than turn it */
    }
    turn_heads(qr, qr, tab, heads, hd, t);
    turn_heads(kr, kr, tab, kv.heads, hd, t);
    if (pos < run.held)
        return;
    __syncthreads();
    int slot;
    char *block = kv_block(kv, run, pos, &slot);
    for (int h = (int)threadIdx.x / 32; h < 2 * kv.heads; h += THREADS / 32) {
        int side = h >= kv.heads, head = h % kv.heads;
        const float *x = side ? v.data + row * v.stride : kr;

        append(block + kv_at(kv, run, side, head, slot),
               block + kv_scale_at(kv, run, side, head, slot), run.type, x + head * hd, hd);
    }
}

/* Of hd / 2 pairs and one more, so that there is one; all layers of a step ask for the same. */
static const double *frequencies(struct mt_cuda *c, double base, int hd)
{
    if (c->turn_base != base || c->turn_hd != hd)
        for (int i = 0; i <= hd / 2; i++)
            c->turn[i] = pow(base, -2.0 * i / hd);
    c->turn_base = base;
    c->turn_hd = hd;
    return c->turn;
}

static void rope_append(struct mt_backend *be, struct mt_kv *kv, int layer, struct mt_rope rope,
                        const struct mt_batch *b, struct mt_rows q, struct mt_rows q_sink,
                        struct mt_rows k, struct mt_rows v)
{
    struct mt_cuda *c = cuda_of(be);
    int hd = kv->s.head_dim, half = hd / 2;
    struct turn t = {rope.kind == MT_ROPE_PAIRS ? 2 : 1, rope.kind == MT_ROPE_PAIRS ? 1 : half};
    size_t shared = (size_t)(2 * hd + 1) * sizeof(float);
    struct mt_stage s;
    struct mt_dbatch d;
    size_t bytes = (size_t)(half + 1) * sizeof(double);

    if (b->n_rows < 1 || !mt_cuda_batch(c, kv, b, bytes, &d) || !mt_stage_new(c, &s, bytes))
        return;
    memcpy(s.host, frequencies(c, rope.base, hd), bytes);
    mt_stage_share(c, &s);
    MT_LAUNCH(c, rope_rows, (unsigned)b->n_rows, THREADS, shared, mt_dkv_of(kv, layer), d, q,
              q_sink, k, v, (const double *)s.dev, rope.kind != MT_ROPE_NONE, t,
              rope.q_norm ? rope.q_norm->vec : NULL, rope.k_norm ? rope.k_norm->vec : NULL,
              rope.eps);
}

void mt_cuda_ropes(struct mt_ops *o)
{
    o->rope_append = rope_append;
}
