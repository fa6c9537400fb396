/*
 * attend_mma.cu: attention over a bf16 or f16 cache on tensor cores. A warp has 16 queries (rows of
 * a run times the heads that share a KV head) and takes 16 keys at a time: scores, a step of the
 * online softmax, outputs. Queries and weights are two 16-bit numbers each, so that what rounds is
 * about f32's sums; keys and values are what the cache holds.
 *
 * A piece's softmax is one warp's, its keys ascending from a multiple of 16 in the session, and a
 * key that a query does not see adds exact zeros. So a query's bits depend neither on the cut of
 * its session into runs nor on which kernel it gets: `narrow`, a block of one warp a piece, where
 * the keys of few queries stream by (decoding), or `wide`, where 4 warps share keys (a prefill).
 */
#include "kernels/cuda/paged.h"
#include "kernels/cuda/tensor.h"

enum {
    CHUNK = 16, /* keys of a step */
    STAGES = 3, /* pieces of keys on their way or in use */
    KEYS = 32,  /* keys of a stage of the wide kernel */
};

/* Elements from one key to the next in shared memory: 8 rows of 16 bytes meet all 32 banks. */
static constexpr __host__ __device__ int key_stride(int e)
{
    return e + 8;
}

static size_t narrow_shared(int e)
{
    return (size_t)(STAGES * 2 * CHUNK * key_stride(e)) * 2;
}

static size_t wide_shared(int e)
{
    return (size_t)(STAGES * 2 * KEYS * key_stride(e)) * 2 + (size_t)(WIDE * e) * sizeof(float);
}

/* ---- a warp's queries and its softmax ---- */

/* Rows g and g + 8 of lane (g, t), times a power of two that `scale` takes back. */
template <int E> struct queries {
    unsigned big[E / 16][4], rest[E / 16][4];
    float scale[2];
};

template <int E> struct softmax {
    float max[2], sum[2], out[E / 8][4];
};

/* Queries i0.. of the tile; those that it does not have are zeros. */
template <int E, bool BF16>
MT_DEV void load_queries(struct queries<E> *q, const struct paged &s, int i0, bool sink)
{
    int g = (int)dev_lane() / 4, t = (int)dev_lane() % 4;

#pragma unroll
    for (int h = 0; h < 2; h++) {
        int i = i0 + g + 8 * h;
        const float *x = i < s.nq ? s.query(i, sink) : NULL;
        float max = 0;

        for (int d = 2 * t; x && d < s.hd; d += 8)
            max = fmaxf(max, fmaxf(fabsf(x[d]), fabsf(x[d + 1])));
        max = fmaxf(max, __shfl_xor_sync(MT_FULL, max, 1));
        max = fmaxf(max, __shfl_xor_sync(MT_FULL, max, 2));
        /* to 1..2, so that f16 holds both parts; what is tiny or no number stays as it is */
        unsigned power = __float_as_uint(max) & 0x7f800000u;
        power = power < 0x00800000u || power > 0x7e800000u ? 0x3f800000u : power;
        float by = __uint_as_float(0x7f000000u - power);
        q->scale[h] = __uint_as_float(power) / sqrtf((float)s.hd);
#pragma unroll
        for (int k = 0; k < E / 16; k++)
#pragma unroll
            for (int side = 0; side < 2; side++) {
                int d = 16 * k + 8 * side + 2 * t;
                bool have = x && d < s.hd;

                dev_split<BF16>(&q->big[k][h + 2 * side], &q->rest[k][h + 2 * side],
                                have ? x[d] * by : 0, have ? x[d + 1] * by : 0);
            }
    }
}

template <int E> MT_DEV void clear(struct softmax<E> *m)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        m->max[h] = -INFINITY;
        m->sum[h] = 0;
    }
#pragma unroll
    for (int n = 0; n < E / 8; n++)
#pragma unroll
        for (int c = 0; c < 4; c++)
            m->out[n][c] = 0;
}

/*
 * 16 keys and values in shared memory, the first of them number `at` of the piece; row h of the lane
 * sees numbers first[h]..end[h] - 1. Sums are the lane's own until the piece ends.
 */
template <int E, bool BF16>
MT_DEV void step(struct softmax<E> *m, const struct queries<E> &q, const uint16_t *keys,
                 const uint16_t *values, int at, const int *first, const int *end)
{
    const int stride = key_stride(E);
    int lane = (int)dev_lane(), t = lane % 4;
    float score[2][4] = {}, rest[2][4] = {}, by[2];
    unsigned b[4], big[4], small[4];

    keys += (lane / 16 * 8 + lane % 8) * stride + lane / 8 % 2 * 8;
#pragma unroll
    for (int k = 0; k < E / 16; k++) {
        dev_matrices<false>(b, keys + 16 * k);
#pragma unroll
        for (int n = 0; n < 2; n++) {
            dev_product<BF16>(score[n], q.big[k], b[2 * n], b[2 * n + 1]);
            dev_product<BF16>(rest[n], q.rest[k], b[2 * n], b[2 * n + 1]);
        }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float max = -INFINITY;

#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int c = 2 * h; c < 2 * h + 2; c++) {
                int key = at + 8 * n + 2 * t + c % 2;

                score[n][c] = key >= first[h] && key < end[h]
                                  ? (score[n][c] + rest[n][c]) * q.scale[h]
                                  : -INFINITY;
                max = fmaxf(max, score[n][c]);
            }
        max = fmaxf(max, __shfl_xor_sync(MT_FULL, max, 1));
        max = fmaxf(max, __shfl_xor_sync(MT_FULL, max, 2));
        max = fmaxf(max, m->max[h]);
        float base = max > -INFINITY ? max : 0, sum = 0; /* nothing seen: zeros, not 0 / 0 */
        by[h] = expf(m->max[h] - base);
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int c = 2 * h; c < 2 * h + 2; c++) {
                score[n][c] = expf(score[n][c] - base);
                sum += score[n][c];
            }
        m->max[h] = max;
        m->sum[h] = dev_fma(m->sum[h], by[h], sum);
    }
    if (__ballot_sync(MT_FULL, by[0] != 1 || by[1] != 1))
#pragma unroll
        for (int n = 0; n < E / 8; n++)
#pragma unroll
            for (int c = 0; c < 4; c++)
                m->out[n][c] *= by[c / 2];
#pragma unroll
    for (int w = 0; w < 4; w++) /* C's layout is A's, columns 8.. of it behind the others */
        dev_split<BF16>(&big[w], &small[w], score[w / 2][w % 2 * 2], score[w / 2][w % 2 * 2 + 1]);
    values += lane % 16 * stride + lane / 16 * 8;
#pragma unroll
    for (int k = 0; k < E / 16; k++) {
        dev_matrices<true>(b, values + 16 * k);
#pragma unroll
        for (int n = 0; n < 2; n++) {
            dev_product<BF16>(m->out[2 * k + n], big, b[2 * n], b[2 * n + 1]);
            dev_product<BF16>(m->out[2 * k + n], small, b[2 * n], b[2 * n + 1]);
        }
    }
}

/* The piece has ended: the four lanes of a row add up. */
template <int E> MT_DEV void add_up(struct softmax<E> *m)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        m->sum[h] += __shfl_xor_sync(MT_FULL, m->sum[h], 1);
        m->sum[h] += __shfl_xor_sync(MT_FULL, m->sum[h], 2);
    }
}

/* What rows i0 + g and i0 + g + 8 see of a piece, counted from `base`. */
MT_DEV void bounds(const struct paged &s, const struct attend_piece &p, int64_t base, int i0,
                   int *first, int *end)
{
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int i = i0 + (int)dev_lane() / 4 + 8 * h;
        int64_t lo = 0, hi = base;

        if (i < s.nq)
            s.seen(i, p, &lo, &hi);
        first[h] = (int)(lo > base ? lo - base : 0);
        end[h] = (int)(hi > base ? hi - base : 0);
    }
}

/* ---- keys to shared memory ---- */

/*
 * Keys r0 + row of a piece to rows row..row + N - 1 of keys and values, by one warp; zeros where the
 * piece has none. A lane finds the address of one key.
 */
template <int E, int N>
MT_DEV void fetch(uint16_t *keys, uint16_t *values, const struct paged &s,
                  const struct attend_piece &p, int64_t r0, int row)
{
    const int words = E / 8;
    int lane = (int)dev_lane();
    int64_t r = r0 + row + lane % N;
    unsigned long long at = 0;

    static_assert(N * words % 32 == 0, "whole warps of copies");
    if (r >= p.lo && r < p.hi) {
        int slot;
        const char *block = kv_block(s.c.kv, s.run, p.sink ? r : s.run.sinks + r, &slot);

        at = (unsigned long long)(block + kv_at(s.c.kv, s.run, 0, s.head, slot));
    }
#pragma unroll
    for (int i = 0; i < N * words / 32; i++) {
        int k = (32 * i + lane) / words, w = (32 * i + lane) % words;
        const char *from = (const char *)__shfl_sync(MT_FULL, at, k);
        int to = (row + k) * key_stride(E) + 8 * w;
        bool there = from;

        if (8 * w >= s.hd)
            continue;
        from = (there ? from : s.run.data) + 16 * w;
        dev_copy16(keys + to, from, there);
        dev_copy16(values + to, from + (there ? s.run.half_bytes : 0), there);
    }
}

/* Columns hd..E - 1 of n rows, which no copy fills, must not be what is no number. */
template <int E> MT_DEV void clear_rest(uint16_t *rows, int n, int hd)
{
    int rest = (E - hd) / 8;

    for (int i = (int)threadIdx.x; i < n * rest; i += (int)blockDim.x)
        *(uint4 *)(rows + i / rest * key_stride(E) + hd + i % rest * 8) = {0, 0, 0, 0};
}

/* ---- a warp a piece ---- */

/* Grid: tiles, KV heads, pieces. Shared: narrow_shared(). */
template <int E, bool BF16>
static __global__ void __launch_bounds__(32) attend_narrow(struct call c)
{
    MT_SHARED_BYTES(bytes);
    const int half = CHUNK * key_stride(E);
    const struct paged s = paged_of(c, c.tile[blockIdx.x], TILE);
    uint16_t *stage = (uint16_t *)bytes;
    struct queries<E> q;
    struct softmax<E> m;
    int z = (int)blockIdx.z, first[2], end[2];

    if (z >= s.reach.pieces)
        return;
    const struct attend_piece p = s.piece(z);
    const int64_t r0 = p.lo / CHUNK * CHUNK;
    const int chunks = (int)((p.hi - r0 + CHUNK - 1) / CHUNK);

    clear_rest<E>(stage, STAGES * 2 * CHUNK, s.hd);
    for (int i = 0; i < STAGES - 1; i++) {
        if (i < chunks)
            fetch<E, CHUNK>(stage + 2 * half * i, stage + 2 * half * i + half, s, p, r0 + i * CHUNK,
                            0);
        dev_copy_group();
    }
    load_queries<E, BF16>(&q, s, 0, p.sink);
    bounds(s, p, r0, 0, first, end);
    clear(&m);
    for (int i = 0; i < chunks; i++) {
        int next = i + STAGES - 1;
        const uint16_t *now = stage + 2 * half * (i % STAGES);

        dev_copy_wait<STAGES - 2>();
        __syncwarp(); /* what all lanes copied is there, and the stage before has been used */
        if (next < chunks) {
            uint16_t *to = stage + 2 * half * (next % STAGES);

            fetch<E, CHUNK>(to, to + half, s, p, r0 + (int64_t)next * CHUNK, 0);
        }
        dev_copy_group();
        step<E, BF16>(&m, q, now, now + half, i * CHUNK, first, end);
    }
    add_up(&m);
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int i = (int)dev_lane() / 4 + 8 * h, t = (int)dev_lane() % 4;

        if (i >= s.nq)
            continue;
        const struct attend_part to = s.part(i, z);
        if (t == 0)
            *(float2 *)to.stat = {m.max[h], m.sum[h]};
#pragma unroll
        for (int n = 0; n < E / 8; n++)
            if (8 * n < s.hd)
                *(float2 *)(to.out + 8 * n + 2 * t) = {m.out[n][2 * h], m.out[n][2 * h + 1]};
    }
}

/* ---- four warps over the same keys ---- */

/* all and what it has so far in shared memory: attend_merge()'s roundings. */
template <int E> MT_DEV void merge(float *max, float *sum, float4 *all, const struct softmax<E> &m)
{
    float a[2], b[2];
    bool skip[2], fresh[2];

#pragma unroll
    for (int h = 0; h < 2; h++) {
        skip[h] = m.sum[h] == 0;
        fresh[h] = sum[h] == 0;
        if (skip[h])
            continue;
        float both = fresh[h] ? m.max[h] : fmaxf(max[h], m.max[h]);
        a[h] = expf(max[h] - both);
        b[h] = expf(m.max[h] - both);
        sum[h] = fresh[h] ? m.sum[h] : dev_fma(m.sum[h], b[h], __fmul_rn(sum[h], a[h]));
        max[h] = both;
    }
#pragma unroll
    for (int n = 0; n < E / 8; n++) {
        float4 v = all[32 * n];
        float *x[4] = {&v.x, &v.y, &v.z, &v.w};

#pragma unroll
        for (int c = 0; c < 4; c++) {
            int h = c / 2;

            if (skip[h])
                *x[c] = fresh[h] ? 0 : *x[c];
            else
                *x[c] = fresh[h] ? m.out[n][c] : dev_fma(m.out[n][c], b[h], __fmul_rn(*x[c], a[h]));
        }
        all[32 * n] = v;
    }
}

/* Grid: tiles of WIDE queries, KV heads. Shared: wide_shared(). */
template <int E, bool BF16>
static __global__ void __launch_bounds__(32 * WIDE_WARPS) attend_wide(struct call c)
{
    MT_SHARED_BYTES(bytes);
    const int half = KEYS * key_stride(E);
    const struct paged s = paged_of(c, c.tile[blockIdx.x], WIDE);
    int warp = (int)threadIdx.x / 32, lane = (int)dev_lane(), i0 = warp * TILE;
    float4 *all = (float4 *)bytes + warp * TILE * E / 4 + lane;
    uint16_t *stage = (uint16_t *)(bytes + WIDE * E * sizeof(float));
    const int own_rows = KEYS / WIDE_WARPS, row = warp * own_rows;
    float max[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
    struct queries<E> q;
    struct softmax<E> m;
    int loaded = -1;

    clear_rest<E>(stage, STAGES * 2 * KEYS, s.hd);
    for (int z = 0; z < s.reach.pieces; z++) {
        const struct attend_piece p = s.piece(z);
        const int64_t r0 = p.lo / KEYS * KEYS;
        const int chunks = (int)((p.hi - r0 + KEYS - 1) / KEYS);
        int first[2], end[2], from = INT_MAX, to = 0;

        __syncthreads(); /* the piece before has been used */
        for (int i = 0; i < STAGES - 1; i++) {
            if (i < chunks)
                fetch<E, KEYS / WIDE_WARPS>(stage + 2 * half * i, stage + 2 * half * i + half, s, p,
                                            r0 + i * KEYS, row);
            dev_copy_group();
        }
        if (loaded != p.sink)
            load_queries<E, BF16>(&q, s, i0, p.sink);
        loaded = p.sink;
        bounds(s, p, r0, i0, first, end);
#pragma unroll
        for (int h = 0; h < 2; h++)
            if (end[h] > first[h]) {
                from = first[h] < from ? first[h] : from;
                to = end[h] > to ? end[h] : to;
            }
        for (int by = 16; by; by >>= 1) { /* what any query of the warp sees */
            int low = __shfl_xor_sync(MT_FULL, from, by), high = __shfl_xor_sync(MT_FULL, to, by);

            from = low < from ? low : from;
            to = high > to ? high : to;
        }
        clear(&m);
        for (int i = 0; i < chunks; i++) {
            int next = i + STAGES - 1;
            const uint16_t *now = stage + 2 * half * (i % STAGES);

            dev_copy_wait<STAGES - 2>();
            __syncthreads();
            if (next < chunks) {
                uint16_t *at = stage + 2 * half * (next % STAGES);

                fetch<E, KEYS / WIDE_WARPS>(at, at + half, s, p, r0 + (int64_t)next * KEYS, row);
            }
            dev_copy_group();
            for (int k = 0; k < KEYS; k += CHUNK)
                if (i * KEYS + k < to && i * KEYS + k + CHUNK > from)
                    step<E, BF16>(&m, q, now + k * key_stride(E), now + half + k * key_stride(E),
                                  i * KEYS + k, first, end);
        }
        add_up(&m);
        merge(max, sum, all, m);
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        int i = i0 + lane / 4 + 8 * h, t = lane % 4;

        if (i >= s.nq)
            continue;
        float *o = s.out(i);
#pragma unroll
        for (int n = 0; n < E / 8; n++)
            if (8 * n < s.hd) {
                const float4 v = all[32 * n];

                o[8 * n + 2 * t] = (h ? v.z : v.x) / sum[h];
                o[8 * n + 2 * t + 1] = (h ? v.w : v.y) / sum[h];
            }
    }
}

template <int E, bool BF16>
static void launch(struct mt_cuda *c, const struct call &k, int tiles, bool wide)
{
    dim3 grid((unsigned)tiles, (unsigned)k.kv.heads, wide ? 1 : (unsigned)k.pieces);
    size_t shared = wide ? wide_shared(E) : narrow_shared(E);

    if (wide) {
        MT_SHARED_ROOM(c, (attend_wide<E, BF16>), shared);
        MT_LAUNCH(c, (attend_wide<E, BF16>), grid, 32 * WIDE_WARPS, shared, k);
    } else {
        MT_LAUNCH(c, (attend_narrow<E, BF16>), grid, 32, shared, k);
    }
}

void mt_cuda_attend_mma(struct mt_cuda *c, const struct call &k, int tiles, int type, bool wide)
{
    if (k.kv.hd <= 64 && type == MT_BF16)
        launch<64, true>(c, k, tiles, wide);
    else if (k.kv.hd <= 64)
        launch<64, false>(c, k, tiles, wide);
    else if (type == MT_BF16)
        launch<128, true>(c, k, tiles, wide);
    else
        launch<128, false>(c, k, tiles, wide);
}
