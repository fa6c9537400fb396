/*
 * hot_quant.h: linear over weights in blocks (pack.h). Rows of x become int8 in blocks of 32 columns
 * with a scale each; a block of an output is an exact sum of integers, then f32 over the blocks,
 * columns ascending:
 *
 *   acc = acc + float(sum q x) * d * dx  (+ m * sum x)
 *
 * which is the definition of an element's bits: every shape of kernel keeps it. LANES outputs lie in
 * a vector, four columns of each in a lane: one vpdpbusd where the tier has it, else vpmaddubsw and
 * its kin, which give the same integers.
 *
 * Few rows: a tile streams from memory once and is unpacked in registers for all of them. Many rows:
 * PIECE_BLOCKS blocks of two tiles are unpacked into L1 and meet all rows, a few at a time, while
 * their sums wait in memory. Threads take tiles.
 */
#include "kernels/cpu/pack.h"

#define HALVES (PACK_TILE / LANES) /* vectors of outputs in a tile */
/* Bytes ahead of the one that is read: a stream alone gets no more than the latency allows. */
#define AHEAD 4096
/* Blocks of a tile that many rows meet at a time: two vectors of them fill half of L1. */
#define PIECE_BLOCKS 16

typedef int16_t vs __attribute__((vector_size(4 * LANES)));

#if LANES == 16 && defined(__AVX512VNNI__)
#define DOT(acc, w, x) ((vi)_mm512_dpbusd_epi32((__m512i)(acc), (__m512i)(w), (__m512i)(x)))
#elif LANES == 8 && defined(__AVXVNNI__)
#define DOT(acc, w, x) ((vi)_mm256_dpbusd_avx_epi32((__m256i)(acc), (__m256i)(w), (__m256i)(x)))
#elif LANES == 16
#define PAIRS(w, x)  ((vs)_mm512_maddubs_epi16((__m512i)(w), (__m512i)(x)))
#define QUADS(h)     ((vi)_mm512_madd_epi16((__m512i)(h), _mm512_set1_epi16(1)))
#define ABS_BYTES(w) ((vu)_mm512_abs_epi8((__m512i)(w)))
FOLD vi signed_as(vi x, vu w) /* x, negated where w is negative */
{
    return (vi)_mm512_mask_sub_epi8((__m512i)x, _mm512_movepi8_mask((__m512i)w),
                                    _mm512_setzero_si512(), (__m512i)x);
}
#else
#define PAIRS(w, x)  ((vs)_mm256_maddubs_epi16((__m256i)(w), (__m256i)(x)))
#define QUADS(h)     ((vi)_mm256_madd_epi16((__m256i)(h), _mm256_set1_epi16(1)))
#define ABS_BYTES(w) ((vu)_mm256_abs_epi8((__m256i)(w)))
FOLD vi signed_as(vi x, vu w)
{
    return (vi)_mm256_sign_epi8((__m256i)x, (__m256i)w);
}
#endif

/* ---- rows of x ---- */

FOLD vi imax(vi a, vi b)
{
    return ((a > b) & a) | (~(a > b) & b);
}

FOLD int32_t itop(vi v)
{
#if LANES == 16
    v = imax(v, TURN_8(v));
#endif
    v = imax(v, TURN_4(v));
    v = imax(v, TURN_2(v));
    v = imax(v, TURN_1(v));
    return v[0];
}

FOLD int32_t isum(vi v)
{
#if LANES == 16
    v += TURN_8(v);
#endif
    v += TURN_4(v);
    v += TURN_2(v);
    v += TURN_1(v);
    return v[0];
}

FOLD void store_bytes(signed char *p, vi v)
{
#if LANES == 16
    _mm_storeu_si128((void *)p, _mm512_cvtepi32_epi8((__m512i)v));
#else
    __m128i h = _mm_packs_epi32(_mm256_castsi256_si128((__m256i)v),
                                _mm256_extracti128_si256((__m256i)v, 1));

    _mm_storel_epi64((void *)p, _mm_packs_epi16(h, h));
#endif
}

/* A block that is not finite has d = NaN: it poisons its row instead of vanishing. */
static void x_block(struct mt_xblock *b, const float *x)
{
    vf v[32 / LANES];
    vi top = {0}, q[32 / LANES];
    int32_t m, first, all;
    float max, by;

#pragma GCC unroll 4
    for (int i = 0; i < 32 / LANES; i++) { /* as integers: what is not finite is above all that is */
        v[i] = vload(x + i * LANES);
        top = imax(top, (vi)v[i] & 0x7fffffff);
    }
    m = itop(top);
    max = num_float((uint32_t)m);
    if (m >= 0x7f800000 || max < 0x1p-100f) { /* 1e-30 at most is nothing */
        *b = (struct mt_xblock){.d = m >= 0x7f800000 ? NAN : 0, .ds = m >= 0x7f800000 ? NAN : 0};
        return;
    }
    by = 127 / max;
#pragma GCC unroll 4
    for (int i = 0; i < 32 / LANES; i++) { /* 1.5 * 2^23 rounds to an integer, to nearest even */
        q[i] = (vi)(v[i] * by + 0x1.8p23f) - 0x4b400000;
        store_bytes(b->q + i * LANES, q[i]);
    }
#if LANES == 16
    first = isum(q[0]);
    all = first + isum(q[1]);
#else
    first = isum(q[0] + q[1]);
    all = first + isum(q[2] + q[3]);
#endif
    b->d = max / 127;
    b->ds = (float)all * b->d;
    b->n = -all;
    b->n0 = -first;
}

struct x_job {
    struct mt_rows x;
    struct mt_xblock *q;
    int64_t blocks, stride;
};

static void x_run(void *arg, int thread, int64_t begin, int64_t end)
{
    const struct x_job *j = arg;

    (void)thread;
    for (int64_t r = begin; r < end; r++)
        for (int64_t b = 0; b < j->blocks; b++)
            x_block(&j->q[r * j->stride + b], j->x.data + r * j->x.stride + b * PACK_COLS);
}

/* n rows of x into c->x; the blocks from one row to the next. */
static int64_t x_quantise(struct mt_cpu *c, struct mt_rows x, int64_t blocks, int n)
{
    /* Rows whose distance is a multiple of 1 KiB would compete for a few cache sets. */
    struct x_job j = {x, c->x, blocks, blocks + (blocks * sizeof(*c->x) % 1024 == 0)};

    mt_par(c, n, 4 * blocks * PACK_COLS, x_run, &j);
    return j.stride;
}

/* ---- the unpacked form of a weight block ---- */

/* Quad j of LANES outputs at q, as bytes >= 0; t constant, `wide`: one byte an element already. */
FOLD vu quad(const enum mt_dtype t, const bool wide, const unsigned char *q, const int j, const vu*pre)
{
    const int step = wide ? 4 * LANES : 64;
    vu v;

    if (wide || pack_bits(t) == 8)
        return (vu)vload(q + j * step);
    v = pre?pre[j%4]:(vu)vload(q + j % 4 * step);
    v = (j < 4 ? v : v >> 4) & 0x0f0f0f0f;
    if (pack_bits(t) == 5) {
        vu h = pre?pre[4]:(vu)vload(q + 4 * step);

        v |= (j <= 4 ? h << (j <= 4 ? 4 - j : 0) : h >> (j > 4 ? j - 4 : 0)) & 0x10101010;
    } else if (pack_bits(t) == 6) {
        vu h = pre?pre[4+j/4]:(vu)vload(q + (4 + j / 4) * step);

        v |= (j % 4 < 3 ? h << (j % 4 < 3 ? 4 - 2 * (j % 4) : 0) : h >> 2) & 0x30303030;
    }
    return v;
}

FOLD vf from_u8(const unsigned char *p)
{
#if LANES == 16
    return (vf)_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)p)));
#else
    return (vf)_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)p)));
#endif
}

/*
 * Scales of a block: d, and d2: the minimum (added once a block), or the scale of the second 16
 * columns. s points to the scales of its group of 8, of which it is number b; `wide`: to its own.
 */
FOLD void scales(const enum mt_dtype t, const bool wide, const unsigned char *s, int half,
                 int64_t b, vf *d, vf *d2)
{
    const bool two = pack_has_min(t) || t == MT_Q6_K;

    if (wide) {
        *d = vload(s);
        *d2 = two ? vload(s + (ptrdiff_t)4 * LANES) : *d;
    } else if (!pack_is_k(t)) {
        s += b * (two ? 64 : 32) + (ptrdiff_t)half * 2 * LANES;
        *d = vfrom_f16(s);
        *d2 = two ? vfrom_f16(s + 32) : *d;
    } else {
        const unsigned char *p = s + 64 + b * 32 + (ptrdiff_t)half * LANES;

        *d = vfrom_f16(s + (ptrdiff_t)half * 2 * LANES);
        if (t == MT_Q6_K) {
            *d2 = *d * vfrom_int8(p + 16);
            *d *= vfrom_int8(p);
        } else {
            *d *= from_u8(p);
            *d2 = vfrom_f16(s + 32 + (ptrdiff_t)half * 2 * LANES) * -from_u8(p + 16);
        }
    }
}

FOLD vi x_quad(const struct mt_xblock *x, int j)
{
    int32_t v;

    memcpy(&v, x->q + (ptrdiff_t)4 * j, sizeof(v));
    return v - (vi){0};
}

#define X(r) ((const struct mt_xblock *)((const char *)x + (r) * stride))

/* sum[r * nt + i] += quads from..to-1 of vector i times row r's. */
FOLD void dots(const enum mt_dtype t, const bool wide, const int nr, const int nt, const int from,
               const int to, const unsigned char *const *q, const struct mt_xblock *x,
               int64_t stride, vi *sum, const vu*pre)
{
#ifdef DOT
#pragma GCC unroll 8
    for (int j = from; j < to; j++) {
        vu w[2];

#pragma GCC unroll 2
        for (int i = 0; i < nt; i++)
            w[i] = quad(t, wide, q[i], j, pre);
#pragma GCC unroll 16
        for (int r = 0; r < nr; r++) {
            vi xq = x_quad(X(r), j);

#pragma GCC unroll 2
            for (int i = 0; i < nt; i++)
                sum[r * nt + i] = DOT(sum[r * nt + i], w[i], xq);
        }
    }
#else
    /* Quads whose int16 sums of two products each can be added before they overflow. */
    const int few = pack_bits(t) == 4 ? 8 : pack_bits(t) == 5 ? 4 : pack_bits(t) == 6 ? 2 : 1;
    const int step = few < to - from ? few : to - from;

#pragma GCC unroll 8
    for (int at = from; at < to; at += step) {
        vs h[24];

#pragma GCC unroll 8
        for (int j = at; j < at + step; j++) {
#pragma GCC unroll 2
            for (int i = 0; i < nt; i++) {
                vu w = quad(t, wide, q[i], j, pre);

                if (pack_bits(t) == 8) /* 255 * 127 * 2 is too much: |w| times x with w's sign */
                    w ^= 0x80808080;
#pragma GCC unroll 16
                for (int r = 0; r < nr; r++) {
                    vi xq = x_quad(X(r), j);
                    vs p = pack_bits(t) == 8 ? PAIRS(ABS_BYTES(w), signed_as(xq, w)) : PAIRS(w, xq);

                    h[r * nt + i] = j == at ? p : h[r * nt + i] + p;
                }
            }
        }
#pragma GCC unroll 16
        for (int r = 0; r < nr * nt; r++)
            sum[r] += QUADS(h[r]);
    }
#endif
}

/* What a sum over q x begins with, so that it ends as the sum over (q - zero) x. */
FOLD vi sum_from(const enum mt_dtype t, int32_t n)
{
#ifndef DOT
    if (pack_bits(t) == 8)
        return (vi){0};
#endif
    return pack_has_min(t) ? (vi){0} : (n - (vi){0}) << pack_zero(t);
}

FOLD vf to_float(vi v)
{
    return __builtin_convertvector(v, vf);
}

/*
 * a[r * nt + i] += a block of rows r times vectors i: q[i] points to its elements, s[i] and b are as
 * scales takes them. All but the pointers and b are constants.
 */
FOLD void cells(const enum mt_dtype t, const bool wide, const int nr, const int nt,
                const unsigned char *const *q, const unsigned char *const *s, int half, int64_t b,
                const struct mt_xblock *x, int64_t stride, vf *a)
{
    vi sum[16], more[16];
    vf d[2], d2[2];
    vu keep[6], *pre = NULL;

    if (!wide && nr <= 4 && nt == 1 && pack_bits(t) < 8) {
        pre = keep;
        keep[0] = (vu)vload(q[0]);
        keep[1] = (vu)vload(q[0] + 64);
        keep[2] = (vu)vload(q[0] + 128);
        keep[3] = (vu)vload(q[0] + 192);
        __asm__("" : "+v"(keep[0]), "+v"(keep[1]), "+v"(keep[2]), "+v"(keep[3]));
        if (pack_bits(t) > 4) {
            keep[4] = (vu)vload(q[0] + 256);
            __asm__("" : "+v"(keep[4]));
        }
        if (pack_bits(t) > 5) {
            keep[5] = (vu)vload(q[0] + 320);
            __asm__("" : "+v"(keep[5]));
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < nr; r++)
#pragma GCC unroll 2
        for (int i = 0; i < nt; i++)
            sum[r * nt + i] = sum_from(t, t == MT_Q6_K ? X(r)->n0 : X(r)->n);
    dots(t, wide, nr, nt, 0, t == MT_Q6_K ? 4 : 8, q, x, stride, sum, pre);
#pragma GCC unroll 2
    for (int i = 0; i < nt; i++)
        scales(t, wide, s[i], half, b, &d[i], &d2[i]);
    if (t == MT_Q6_K) {
#pragma GCC unroll 16
        for (int r = 0; r < nr; r++)
#pragma GCC unroll 2
            for (int i = 0; i < nt; i++)
                more[r * nt + i] = sum_from(t, X(r)->n - X(r)->n0);
        dots(t, wide, nr, nt, 4, 8, q, x, stride, more, pre);
    }
#pragma GCC unroll 16
    for (int r = 0; r < nr; r++) {
#pragma GCC unroll 2
        for (int i = 0; i < nt; i++) {
            vf v = to_float(sum[r * nt + i]) * d[i];

            if (t == MT_Q6_K)
                v = vfma(to_float(more[r * nt + i]), d2[i], v);
            a[r * nt + i] = vfma(v, vsplat(X(r)->d), a[r * nt + i]);
            if (pack_has_min(t))
                a[r * nt + i] = vfma(d2[i], vsplat(X(r)->ds), a[r * nt + i]);
        }
    }
}
#undef X

/* ---- kernels by type and number of rows ---- */

/* Rows that meet a tile in registers, and rows that meet a piece of two tiles. */
#if LANES == 16 && defined(DOT)
enum { FEW_ROWS = 12, MANY_ROWS = 6, MANY_FROM = 24 };
#elif LANES == 16
enum { FEW_ROWS = 8, MANY_ROWS = 4, MANY_FROM = 16 };
#else
enum { FEW_ROWS = 4, MANY_ROWS = 2, MANY_FROM = 12 };
#endif

typedef void few_fn(const struct mt_pack *p, int64_t tile, int64_t tiles, int half,
                    const struct mt_xblock *x, int64_t stride, vf *acc);
/* acc[i * nr + r] = rows r times tile tile + i; nr and t are constants. */
FOLD void few(const enum mt_dtype t, const int nr, const struct mt_pack *p, int64_t tile,
              int64_t tiles, int half, const struct mt_xblock *x, int64_t stride, vf *acc)
{
    const unsigned char *q = p->data + tile * p->tile_bytes;
    int64_t blocks = p->blocks;

    for (int64_t i = 0; i < tiles; i++) {
        const struct mt_xblock *xb = x;
        vf a[16];

#pragma GCC unroll 16
        for (int r = 0; r < nr; r++)
            a[r] = vsplat(0);
        for (int64_t b = 0; b < blocks; b += PACK_GROUP) {
            int64_t n = blocks - b < PACK_GROUP ? blocks - b : PACK_GROUP;
            const unsigned char *s = q;

#pragma GCC unroll 8
            for (int k = 0; k < pack_scale_bytes(t); k += 64)
                __builtin_prefetch(q + AHEAD + k);
            q += pack_scale_bytes(t);
            for (int64_t g = 0; g < n; g++) {
                const unsigned char *qh = q + (ptrdiff_t)half * 4 * LANES;

#pragma GCC unroll 8
                for (int k = 0; k < pack_block_bytes(t); k += 64)
                    __builtin_prefetch(q + AHEAD + k);
                cells(t, false, nr, 1, &qh, &s, half, g, xb, stride, a);
                q += pack_block_bytes(t);
                xb++;
            }
        }
#pragma GCC unroll 16
        for (int r = 0; r < nr; r++)
            acc[i * nr + r] = a[r];
    }
}

/* acc += n unpacked blocks of two vectors of outputs. */
FOLD void wide(const enum mt_dtype t, const unsigned char *const *q0,
               const unsigned char *const *s0, int64_t n, const struct mt_xblock *x, int64_t stride,
               vf *acc)
{
    const unsigned char *q[2] = {q0[0], q0[1]}, *s[2] = {s0[0], s0[1]};
    vf a[16];

#pragma GCC unroll 16
    for (int r = 0; r < MANY_ROWS * 2; r++)
        a[r] = acc[r];
    for (int64_t b = 0; b < n; b++, x++) {
        cells(t, true, MANY_ROWS, 2, q, s, 0, 0, x, stride, a);
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++) {
            q[i] += (ptrdiff_t)PACK_COLS * LANES;
            s[i] += (pack_has_min(t) || t == MT_Q6_K ? 8 : 4) * LANES;
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < MANY_ROWS * 2; r++)
        acc[r] = a[r];
}

typedef void wide_fn(const unsigned char *const *q, const unsigned char *const *s, int64_t n,
                     const struct mt_xblock *x, int64_t stride, vf *acc);
typedef void widen_fn(unsigned char *to, unsigned char *to_s, const unsigned char *tile, int half,
                      int64_t first, int64_t n);

#define FEW_KERNEL(t, nr)                                                                          \
    static void few_##t##_##nr(const struct mt_pack *p, int64_t tile, int64_t tiles, int half,     \
                               const struct mt_xblock *x, int64_t stride, vf *acc)                 \
    {                                                                                              \
        few(t, nr, p, tile, tiles, half, x, stride, acc);                                          \
    }
#define WIDE_KERNEL(t)                                                                             \
    static void wide_##t(const unsigned char *const *q, const unsigned char *const *s, int64_t n,  \
                         const struct mt_xblock *x, int64_t stride, vf *acc)                       \
    {                                                                                              \
        wide(t, q, s, n, x, stride, acc);                                                          \
    }
#define WIDEN_KERNEL(t)                                                                            \
    static void widen_##t(unsigned char *to, unsigned char *to_s, const unsigned char *tile,       \
                          int half, int64_t first, int64_t n)                                      \
    {                                                                                              \
        widen(t, to, to_s, tile, half, first, n);                                                  \
    }

/* n blocks of LANES outputs, unpacked. */
FOLD void widen(const enum mt_dtype t, unsigned char *to, unsigned char *to_s,
                const unsigned char *tile, int half, int64_t first, int64_t n)
{
    const bool two = pack_has_min(t) || t == MT_Q6_K;

    for (int64_t b = first; b < first + n; b++) {
        const unsigned char *q = tile + pack_block_at(t, b) + (ptrdiff_t)half * 4 * LANES;
        vf d, d2;

#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) {
            vu v = quad(t, false, q, j, NULL);

            memcpy(to + (ptrdiff_t)4 * LANES * j, &v, sizeof(v));
        }
        scales(t, false, tile + pack_group_at(t, b), half, b % PACK_GROUP, &d, &d2);
        memcpy(to_s, &d, sizeof(d));
        if (two)
            memcpy(to_s + sizeof(d), &d2, sizeof(d2));
        to += (ptrdiff_t)PACK_COLS * LANES;
        to_s += (two ? 2 : 1) * sizeof(d);
    }
}

#if LANES == 16 && defined(DOT)
#define KERNELS(t)                                                                                 \
    FEW_KERNEL(t, 1)                                                                               \
    FEW_KERNEL(t, 2) FEW_KERNEL(t, 4) FEW_KERNEL(t, 8) FEW_KERNEL(t, 12) WIDEN_KERNEL(t)           \
        WIDE_KERNEL(t)
#define ENTRY(t)                                                                                   \
    {                                                                                              \
        {few_##t##_1, few_##t##_2, few_##t##_4, few_##t##_8, few_##t##_12}, widen_##t, wide_##t    \
    }
#elif LANES == 16
#define KERNELS(t)                                                                                 \
    FEW_KERNEL(t, 1)                                                                               \
    FEW_KERNEL(t, 2) FEW_KERNEL(t, 4) FEW_KERNEL(t, 8) WIDEN_KERNEL(t) WIDE_KERNEL(t)
#define ENTRY(t)                                                                                   \
    {                                                                                              \
        {few_##t##_1, few_##t##_2, few_##t##_4, few_##t##_8}, widen_##t, wide_##t                  \
    }
#else
#define KERNELS(t)                                                                                 \
    FEW_KERNEL(t, 1) FEW_KERNEL(t, 2) FEW_KERNEL(t, 4) WIDEN_KERNEL(t) WIDE_KERNEL(t)
#define ENTRY(t)                                                                                   \
    {                                                                                              \
        {few_##t##_1, few_##t##_2, few_##t##_4}, widen_##t, wide_##t                               \
    }
#endif
static const int few_rows[] = {1, 2, 4, 8, 12};

KERNELS(MT_Q4_0)
KERNELS(MT_Q4_1)
KERNELS(MT_Q5_0)
KERNELS(MT_Q5_1)
KERNELS(MT_Q8_0)
KERNELS(MT_Q4_K)
KERNELS(MT_Q5_K)
KERNELS(MT_Q6_K)

static const struct {
    few_fn *few[5];
    widen_fn *widen;
    wide_fn *wide;
} quant_of[] = {ENTRY(MT_Q4_0), ENTRY(MT_Q4_1), ENTRY(MT_Q5_0), ENTRY(MT_Q5_1),
                ENTRY(MT_Q8_0), ENTRY(MT_Q4_K), ENTRY(MT_Q5_K), ENTRY(MT_Q6_K)};
#define QUANT_OF(t) quant_of[(t)-MT_Q4_0]

/* ---- tiles ---- */

/* sums of LANES outputs from o on become row r of out */
static void put_row(const struct linear_job *j, vf v, int64_t o, int64_t r)
{
    int64_t left = j->w->rows - o;
    float *out = j->out.data + r * j->out.stride + o;
    const float *res = j->residual.data ? j->residual.data + r * j->residual.stride + o : NULL;

    if (left >= LANES) {
        if (j->bias)
            v += vload(j->bias->vec + o);
        v = vact(j->act, v);
        vstore(out, res ? v + vload(res) : v);
    } else if (left > 0) {
        if (j->bias)
            v += vload_part(j->bias->vec + o, left);
        v = vact(j->act, v);
        vstore_part(out, res ? v + vload_part(res, left) : v, left);
    }
}

/* Tiles for rows of x in registers, their number rounded up: rows behind the last are x's spares. */
static void tiles_few(const struct linear_job *j, int64_t begin, int64_t end)
{
    enum { TILES = 8 };
    vf acc[TILES * FEW_ROWS];

    for (int64_t tile = begin; tile < end; tile += TILES) {
        int64_t tiles = end - tile < TILES ? end - tile : TILES;

        for (int half = 0; half < HALVES; half++) {
            for (int r = 0, k = 0; r < j->n; r += few_rows[k]) {
                int nr = j->n - r;

                for (k = 0; few_rows[k] < FEW_ROWS && few_rows[k] < nr;)
                    k++;
                nr = nr < few_rows[k] ? nr : few_rows[k];
                QUANT_OF(j->w->type).few[k](&j->w->pack, tile, tiles, half,
                                            j->q + r * j->q_stride,
                                            j->q_stride * (int64_t)sizeof(*j->q), acc);
                for (int64_t i = 0; i < tiles; i++)
                    for (int64_t m = 0; m < nr; m++)
                        put_row(j, acc[i * few_rows[k] + m],
                                (tile + i) * PACK_TILE + (int64_t)half * LANES, r + m);
            }
        }
    }
}

/* Two vectors of outputs, 2 * pair and the next, for all rows. */
static void pair_many(const struct linear_job *j, int64_t pair, float *scratch)
{
    const struct mt_pack *p = &j->w->pack;
    int64_t spare = (j->n + MANY_ROWS - 1) / MANY_ROWS * MANY_ROWS;
    unsigned char *piece[2], *piece_s[2];
    vf *acc = (vf *)scratch;

    scratch += (MT_X_ROWS + MANY_ROWS) * 2 * LANES;
    for (int i = 0; i < 2; i++) {
        piece[i] = (unsigned char *)scratch;
        scratch += PIECE_BLOCKS * PACK_COLS * LANES / 4;
        piece_s[i] = (unsigned char *)scratch;
        scratch += PIECE_BLOCKS * 2 * LANES;
    }
    memset(acc, 0, (size_t)spare * 2 * sizeof(*acc));
    for (int64_t b = 0; b < p->blocks; b += PIECE_BLOCKS) {
        int64_t n = p->blocks - b < PIECE_BLOCKS ? p->blocks - b : PIECE_BLOCKS;

        for (int i = 0; i < 2; i++) {
            int64_t g = 2 * pair + i, tile = g / HALVES < p->tiles ? g / HALVES : p->tiles - 1;
            int half = (int)(g % HALVES);

            QUANT_OF(p->type).widen(piece[i], piece_s[i], p->data + tile * p->tile_bytes, half, b, n);
        }
        for (int64_t r = 0; r < j->n; r += MANY_ROWS)
            QUANT_OF(p->type).wide((const unsigned char *const *)piece,
                                   (const unsigned char *const *)piece_s, n,
                                   j->q + r * j->q_stride + b,
                                   j->q_stride * (int64_t)sizeof(*j->q), acc + 2 * r);
    }
    for (int64_t r = 0; r < j->n; r++)
        for (int64_t i = 0; i < 2; i++)
            put_row(j, acc[2 * r + i], (2 * pair + i) * LANES, r);
}

_Static_assert((MT_X_ROWS + MANY_ROWS) * 2 * LANES +
                       2 * PIECE_BLOCKS * (PACK_COLS * LANES / 4 + 2 * LANES) <=
                   MT_SCRATCH_FLOATS,
               "pair_many's scratch");

static bool quant_is_many(const struct linear_job *j)
{
    return j->n > MANY_FROM;
}

static int64_t quant_items(const struct linear_job *j)
{
    return quant_is_many(j) ? (j->w->pack.tiles * HALVES + 1) / 2 : j->w->pack.tiles;
}

static void quant_items_run(const struct linear_job *j, int64_t begin, int64_t end,
                            float *scratch)
{
    if (!quant_is_many(j))
        tiles_few(j, begin, end);
    for (int64_t i = begin; i < end && quant_is_many(j); i++)
        pair_many(j, i, scratch);
}
