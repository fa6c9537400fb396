/*
 * attend_mma.cu: attention on tensor cores, over a cache of bf16, f16, int8 or fp8. A warp has 16
 * queries (rows of a run times the heads that share a KV head) and takes 16 keys at a time: scores,
 * a step of the online softmax, outputs. Queries and weights are two 16-bit numbers each, so that
 * what rounds is about f32's sums; keys and values are what the cache holds, bytes as bf16, their
 * scales in the scores and the weights.
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
    STAGES = 3, /* chunks on their way or in use */
    KEYS = 32,  /* keys of a stage of the wide kernel */
};

static constexpr __host__ __device__ bool of_bytes(int type)
{
    return type == MT_INT8 || type == MT_FP8;
}

/*
 * Bytes from one key to the next in shared memory. 16-bit: 16 more, so that 8 rows of 16 bytes meet
 * all 32 banks; bytes stand in another order instead: word_of().
 */
static constexpr __host__ __device__ int key_stride(int e, int type)
{
    return of_bytes(type) ? e : 2 * e + 16;
}

/* A stage of n keys: keys, values; then, of bytes, the scales of both. */
static constexpr __host__ __device__ int stage_bytes(int e, int type, int n)
{
    return 2 * n * (key_stride(e, type) + (of_bytes(type) ? 4 : 0));
}

template <int E, int TYPE> struct stage {
    char *k, *v;
    float *k_scale, *v_scale;
};

template <int E, int TYPE> MT_DEV struct stage<E, TYPE> stage_at(char *all, int i, int n) {
    char *k = all + i * stage_bytes(E, TYPE, n), *v = k + n * key_stride(E, TYPE);
    float *scale = (float *)(v + n * key_stride(E, TYPE));

    return {k, v, scale, scale + n};
}

/*
 * Where word w (16 bytes) of row r stands, of bytes: lanes read words t of two rows of keys and
 * words g of every fourth row of values; other banks for each of the 8 that read together (two at a
 * time for values of 64).
 */
template <int E>
MT_DEV int word_of(int r, int w, bool v)
{
    if (!v)
        return E == 128 ? w ^ (r & 1) << 2 : w;
    return E == 128 ? w ^ (r >> 2 & 3) << 1 : w ^ (r >> 2 & 3);
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

/*
 * The order of things is free where both sides of a product have the same. Of bytes a lane takes
 * what lies together: its operands of step k, side s (of the 16 elements, rows 2t.. or 2t + 8..)
 * are elements from here on,
 */
template <int TYPE> MT_DEV int element_of(int k, int s, int t)
{
    return of_bytes(TYPE) ? 16 * (t + k / 4 * 4) + 4 * (k % 4) + 2 * s : 16 * k + 8 * s + 2 * t;
}

/* column 2t + c of tile n of the outputs is this element, */
template <int E, int TYPE> MT_DEV int output_of(int n, int c, int t)
{
    return of_bytes(TYPE) ? (2 * t + c) * (E / 8) + n : 8 * n + 2 * t + c;
}

/* and column 2t + c of tile n of the scores is this key. */
template <int TYPE> MT_DEV int key_of(int n, int c, int t)
{
    return of_bytes(TYPE) ? 4 * t + 2 * n + c : 8 * n + 2 * t + c;
}

/* Queries i0.. of the tile; those that it does not have are zeros. */
template <int E, int TYPE>
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
                int d = element_of<TYPE>(k, side, t);
                bool have = x && d < s.hd;

                dev_split<TYPE != MT_F16>(&q->big[k][h + 2 * side], &q->rest[k][h + 2 * side],
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

/* Scores of 16 keys, whole ones and of the queries' rest. */
template <int E, int TYPE>
MT_DEV void score_keys(float (*score)[4], float (*rest)[4], const struct queries<E> &q,
                       const char *keys)
{
    const int stride = key_stride(E, TYPE);
    int lane = (int)dev_lane(), g = lane / 4, t = lane % 4;
    unsigned b[4];

    if (of_bytes(TYPE)) {
#pragma unroll
        for (int w = 0; w < E / 64; w++) {
            uint4 row[2];

#pragma unroll
            for (int n = 0; n < 2; n++) {
                int r = 4 * (g / 2) + 2 * n + g % 2; /* column g of tile n, as key_of() has it */

                row[n] = *(const uint4 *)(keys + r * stride + 16 * word_of<E>(r, t + 4 * w, false));
            }
#pragma unroll
            for (int k = 0; k < 4; k++)
#pragma unroll
                for (int n = 0; n < 2; n++) {
                    unsigned u = (&row[n].x)[k], low = dev_bytes<TYPE>(u, 0, u, 1);
                    unsigned high = dev_bytes<TYPE>(u, 2, u, 3);

                    dev_product<true>(score[n], q.big[4 * w + k], low, high);
                    dev_product<true>(rest[n], q.rest[4 * w + k], low, high);
                }
        }
        return;
    }
    keys += (lane / 16 * 8 + lane % 8) * stride + lane / 8 % 2 * 16;
#pragma unroll
    for (int k = 0; k < E / 16; k++) {
        dev_matrices<false>(b, keys + 32 * k);
#pragma unroll
        for (int n = 0; n < 2; n++) {
            dev_product<TYPE != MT_F16>(score[n], q.big[k], b[2 * n], b[2 * n + 1]);
            dev_product<TYPE != MT_F16>(rest[n], q.rest[k], b[2 * n], b[2 * n + 1]);
        }
    }
}

/* Weights times values, both parts of the weights. */
template <int E, int TYPE>
MT_DEV void add_values(struct softmax<E> *m, const unsigned *big, const unsigned *small,
                       const char *values)
{
    const int stride = key_stride(E, TYPE);
    int lane = (int)dev_lane(), g = lane / 4, t = lane % 4;
    unsigned b[4];

    if (of_bytes(TYPE)) {
        unsigned row[4][E / 32];

#pragma unroll
        for (int i = 0; i < 4; i++) {
            int r = 4 * t + i;

            if (E == 128) {
                const uint4 v = *(const uint4 *)(values + r * stride + 16 * word_of<E>(r, g, true));

                row[i][0] = v.x;
                row[i][1] = v.y;
                row[i][2] = v.z;
                row[i][3] = v.w;
            } else {
                const uint2 v = *(const uint2 *)(values + r * stride +
                                                 16 * word_of<E>(r, g / 2, true) + 8 * (g % 2));

                row[i][0] = v.x;
                row[i][1] = v.y;
            }
        }
#pragma unroll
        for (int n = 0; n < E / 8; n++) {
            unsigned low = dev_bytes<TYPE>(row[0][n / 4], n % 4, row[1][n / 4], n % 4);
            unsigned high = dev_bytes<TYPE>(row[2][n / 4], n % 4, row[3][n / 4], n % 4);

            dev_product<true>(m->out[n], big, low, high);
            dev_product<true>(m->out[n], small, low, high);
        }
        return;
    }
    values += lane % 16 * stride + lane / 16 * 16;
#pragma unroll
    for (int k = 0; k < E / 16; k++) {
        dev_matrices<true>(b, values + 32 * k);
#pragma unroll
        for (int n = 0; n < 2; n++) {
            dev_product<TYPE != MT_F16>(m->out[2 * k + n], big, b[2 * n], b[2 * n + 1]);
            dev_product<TYPE != MT_F16>(m->out[2 * k + n], small, b[2 * n], b[2 * n + 1]);
        }
    }
}

/*
 * Keys row..row + 15 of a stage, the first of them number `at` of the piece; row h of the lane sees
 * numbers first[h]..end[h] - 1. Sums are the lane's own until the piece ends.
 */
template <int E, int TYPE>
MT_DEV void step(struct softmax<E> *m, const struct queries<E> &q, const struct stage<E, TYPE> &s,
                 int row, int at, const int *first, const int *end)
{
    int t = (int)dev_lane() % 4;
    float score[2][4] = {}, rest[2][4] = {}, by[2];
    unsigned big[4], small[4];

    score_keys<E, TYPE>(score, rest, q, s.k + row * key_stride(E, TYPE));
#pragma unroll
    for (int h = 0; h < 2; h++) {
        float max = -INFINITY;

#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int c = 0; c < 2; c++) {
                int key = key_of<TYPE>(n, c, t);
                float *v = &score[n][2 * h + c];

                *v = (*v + rest[n][2 * h + c]) * q.scale[h];
                if (of_bytes(TYPE))
                    *v *= s.k_scale[row + key];
                *v = at + key >= first[h] && at + key < end[h] ? *v : -INFINITY;
                max = fmaxf(max, *v);
            }
        max = fmaxf(max, __shfl_xor_sync(MT_FULL, max, 1));
        max = fmaxf(max, __shfl_xor_sync(MT_FULL, max, 2));
        max = fmaxf(max, m->max[h]);
        float base = max > -INFINITY ? max : 0, sum = 0; /* nothing seen: zeros, not 0 / 0 */
        by[h] = expf(m->max[h] - base);
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int c = 0; c < 2; c++) {
                float *v = &score[n][2 * h + c];

                *v = expf(*v - base);
                sum += *v;
                if (of_bytes(TYPE))
                    *v *= s.v_scale[row + key_of<TYPE>(n, c, t)];
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
        dev_split<TYPE != MT_F16>(&big[w], &small[w], score[w / 2][w % 2 * 2],
                                  score[w / 2][w % 2 * 2 + 1]);
    add_values<E, TYPE>(m, big, small, s.v + row * key_stride(E, TYPE));
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

/* Row h of the lane. */
template <int E, int TYPE>
MT_DEV void write_row(float *to, const struct softmax<E> &m, int h, int hd)
{
#pragma unroll
    for (int n = 0; n < E / 8; n++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
            int d = output_of<E, TYPE>(n, c, (int)dev_lane() % 4);

            if (d < hd)
                to[d] = m.out[n][2 * h + c];
        }
}

/* ---- keys to shared memory ---- */

/*
 * Keys r0 + row of a piece to rows row..row + N - 1 of a stage, by one warp; zeros where the piece
 * has none. A lane finds the address of one key.
 */
template <int E, int TYPE, int N>
MT_DEV void fetch(const struct stage<E, TYPE> &to, const struct paged &s,
                  const struct attend_piece &p, int64_t r0, int row)
{
    const int size = of_bytes(TYPE) ? 1 : 2, words = E * size / 16;
    int lane = (int)dev_lane();
    int64_t r = r0 + row + lane % N;
    unsigned long long at = 0;

    static_assert(N * words % 32 == 0 && 2 * N <= 32, "whole warps of copies");
    if (r >= p.lo && r < p.hi) {
        int slot;
        const char *block = kv_block(s.c.kv, s.run, p.sink ? r : s.run.sinks + r, &slot);

        at = (unsigned long long)(block + kv_at(s.c.kv, s.run, 0, s.head, slot));
        if (of_bytes(TYPE) && lane < 2 * N)
            dev_copy4((lane < N ? to.k_scale : to.v_scale) + row + lane % N,
                      block + kv_scale_at(s.c.kv, s.run, lane / N, s.head, slot), true);
    } else if (of_bytes(TYPE) && lane < 2 * N) {
        dev_copy4((lane < N ? to.k_scale : to.v_scale) + row + lane % N, s.run.data, false);
    }
#pragma unroll
    for (int i = 0; i < N * words / 32; i++) {
        int k = row + (32 * i + lane) / words, w = (32 * i + lane) % words;
        const char *from = (const char *)__shfl_sync(MT_FULL, at, k - row);
        bool there = from;

        if (16 * w >= s.hd * size)
            continue;
        from = (there ? from : s.run.data) + 16 * w;
        dev_copy16(to.k + k * key_stride(E, TYPE) +
                       16 * (of_bytes(TYPE) ? word_of<E>(k, w, false) : w),
                   from, there);
        dev_copy16(to.v + k * key_stride(E, TYPE) +
                       16 * (of_bytes(TYPE) ? word_of<E>(k, w, true) : w),
                   from + (there ? s.run.half_bytes : 0), there);
    }
}

/* What no copy fills, elements hd.. of each row, must not be what is no number. */
template <int E, int TYPE> MT_DEV void clear_stages(char *all, int n, int hd)
{
    if (hd < E)
        for (int i = (int)threadIdx.x; i < STAGES * stage_bytes(E, TYPE, n) / 16;
             i += (int)blockDim.x)
            ((uint4 *)all)[i] = {0, 0, 0, 0};
    __syncthreads();
}

/* ---- a warp a piece ---- */

/* Grid: tiles, KV heads, pieces. Shared: STAGES of CHUNK keys. */
template <int E, int TYPE> static __global__ void __launch_bounds__(32) attend_narrow(struct call c)
{
    MT_SHARED_BYTES(bytes);
    const struct paged s = paged_of(c, c.tile[blockIdx.x], TILE);
    struct queries<E> q;
    struct softmax<E> m;
    int z = (int)blockIdx.z, first[2], end[2];

    if (z >= s.reach.pieces)
        return;
    const struct attend_piece p = s.piece(z);
    const int64_t r0 = p.lo / CHUNK * CHUNK;
    const int chunks = (int)((p.hi - r0 + CHUNK - 1) / CHUNK);

    clear_stages<E, TYPE>(bytes, CHUNK, s.hd);
    for (int i = 0; i < STAGES - 1; i++) {
        if (i < chunks)
            fetch<E, TYPE, CHUNK>(stage_at<E, TYPE>(bytes, i, CHUNK), s, p, r0 + i * CHUNK, 0);
        dev_copy_group();
    }
    load_queries<E, TYPE>(&q, s, 0, p.sink);
    bounds(s, p, r0, 0, first, end);
    clear(&m);
    for (int i = 0; i < chunks; i++) {
        int next = i + STAGES - 1;

        dev_copy_wait<STAGES - 2>();
        __syncwarp(); /* what all lanes copied is there, and the stage before has been used */
        if (next < chunks)
            fetch<E, TYPE, CHUNK>(stage_at<E, TYPE>(bytes, next % STAGES, CHUNK), s, p,
                                  r0 + (int64_t)next * CHUNK, 0);
        dev_copy_group();
        step<E, TYPE>(&m, q, stage_at<E, TYPE>(bytes, i % STAGES, CHUNK), 0, i * CHUNK, first, end);
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
        write_row<E, TYPE>(to.out, m, h, s.hd);
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

/* Grid: tiles of WIDE queries, KV heads. Shared: WIDE rows of E sums, STAGES of KEYS keys. */
template <int E, int TYPE>
static __global__ void __launch_bounds__(32 * WIDE_WARPS) attend_wide(struct call c)
{
    MT_SHARED_BYTES(bytes);
    const struct paged s = paged_of(c, c.tile[blockIdx.x], WIDE);
    int warp = (int)threadIdx.x / 32, lane = (int)dev_lane(), i0 = warp * TILE;
    float4 *all = (float4 *)bytes + warp * TILE * E / 4 + lane;
    char *stages = bytes + WIDE * E * sizeof(float);
    const int ROWS = KEYS / WIDE_WARPS;
    int row = warp * ROWS; /* the first of the rows that it copies */
    float max[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
    struct queries<E> q;
    struct softmax<E> m;
    int loaded = -1;

    clear_stages<E, TYPE>(stages, KEYS, s.hd);
    for (int z = 0; z < s.reach.pieces; z++) {
        const struct attend_piece p = s.piece(z);
        const int64_t r0 = p.lo / KEYS * KEYS;
        const int chunks = (int)((p.hi - r0 + KEYS - 1) / KEYS);
        int first[2], end[2], from = INT_MAX, to = 0;

        __syncthreads(); /* the piece before has been used */
        for (int i = 0; i < STAGES - 1; i++) {
            if (i < chunks)
                fetch<E, TYPE, ROWS>(stage_at<E, TYPE>(stages, i, KEYS), s, p, r0 + i * KEYS, row);
            dev_copy_group();
        }
        if (loaded != p.sink)
            load_queries<E, TYPE>(&q, s, i0, p.sink);
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
            const struct stage<E, TYPE> now = stage_at<E, TYPE>(stages, i % STAGES, KEYS);

            dev_copy_wait<STAGES - 2>();
            __syncthreads();
            if (next < chunks)
                fetch<E, TYPE, ROWS>(stage_at<E, TYPE>(stages, next % STAGES, KEYS), s, p,
                                     r0 + (int64_t)next * KEYS, row);
            dev_copy_group();
            for (int k = 0; k < KEYS; k += CHUNK)
                if (i * KEYS + k < to && i * KEYS + k + CHUNK > from)
                    step<E, TYPE>(&m, q, now, k, i * KEYS + k, first, end);
        }
        add_up(&m);
        merge(max, sum, all, m);
    }
#pragma unroll
    for (int n = 0; n < E / 8; n++) {
        const float4 v = all[32 * n];

        m.out[n][0] = v.x / sum[0];
        m.out[n][1] = v.y / sum[0];
        m.out[n][2] = v.z / sum[1];
        m.out[n][3] = v.w / sum[1];
    }
#pragma unroll
    for (int h = 0; h < 2; h++)
        if (i0 + lane / 4 + 8 * h < s.nq)
            write_row<E, TYPE>(s.out(i0 + lane / 4 + 8 * h), m, h, s.hd);
}

template <int E, int TYPE>
static void launch(struct mt_cuda *c, const struct call &k, int tiles, bool wide)
{
    dim3 grid((unsigned)tiles, (unsigned)k.kv.heads, wide ? 1 : (unsigned)k.pieces);
    size_t shared = (size_t)(STAGES * stage_bytes(E, TYPE, wide ? KEYS : CHUNK));

    if (wide) {
        shared += WIDE * E * sizeof(float);
        MT_SHARED_ROOM(c, (attend_wide<E, TYPE>), shared);
        MT_LAUNCH(c, (attend_wide<E, TYPE>), grid, 32 * WIDE_WARPS, shared, k);
    } else {
        MT_LAUNCH(c, (attend_narrow<E, TYPE>), grid, 32, shared, k);
    }
}

template <int TYPE>
static void launch_type(struct mt_cuda *c, const struct call &k, int tiles, bool wide)
{
    if (k.kv.hd <= 64)
        launch<64, TYPE>(c, k, tiles, wide);
    else
        launch<128, TYPE>(c, k, tiles, wide);
}

void mt_cuda_attend_mma(struct mt_cuda *c, const struct call &k, int tiles, int type, bool wide)
{
    if (type == MT_BF16)
        launch_type<MT_BF16>(c, k, tiles, wide);
    else if (type == MT_F16)
        launch_type<MT_F16>(c, k, tiles, wide);
    else if (type == MT_INT8)
        launch_type<MT_INT8>(c, k, tiles, wide);
    else
        launch_type<MT_FP8>(c, k, tiles, wide);
}
