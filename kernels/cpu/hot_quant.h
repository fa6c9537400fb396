/*
 * hot_quant.h: linear over weights in blocks (pack.h). Rows of x become int8 in blocks of 32
 * columns with a scale each; a block of an output is an exact sum of integers, then f32 over the
 * blocks, columns ascending:
 *
 *   acc = acc + float(sum of q x) * d * dx   (then + m * sum of x)
 *
 * which is the definition of an element's bits, and every number of rows keeps it. LANES outputs
 * lie in a vector, four columns of each in a lane: one vpdpbusd where the tier has it, else
 * vpmaddubsw and its kin, which give the same integers.
 *
 * A tile is unpacked in registers for up to MOST_ROWS rows at a time, and streams from memory once
 * for all of them. (To unpack it into L1 first, for many rows, gains nothing: the unpacking is a
 * tenth of the work of 12 rows, and the kernel is bound by the products and the scales.) Threads
 * take tiles.
 */
#include "kernels/cpu/pack.h"

#define HALVES (PACK_TILE / LANES) /* vectors of outputs in a tile */
/* Bytes ahead of the one that is read: a stream alone gets no more than the latency allows. */
#define AHEAD 4096

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

/* Rows that meet a tile in registers: two sums each, 32 registers or 16. */
#if LANES == 16 && defined(DOT)
#define MOST_ROWS 12
#elif LANES == 16
#define MOST_ROWS 8
#else
#define MOST_ROWS 4
#endif

/* ---- rows of x ---- */

FOLD vi imax(vi a, vi b)
{
#if LANES == 16
    return (vi)_mm512_max_epi32((__m512i)a, (__m512i)b);
#else
    return (vi)_mm256_max_epi32((__m256i)a, (__m256i)b);
#endif
}

FOLD int32_t itop(vi v)
{
    __m128i m;

#if LANES == 16
    __m256i h = _mm256_max_epi32(_mm512_castsi512_si256((__m512i)v),
                                 _mm512_extracti64x4_epi64((__m512i)v, 1));
#else
    __m256i h = (__m256i)v;
#endif
    m = _mm_max_epi32(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
    return _mm_cvtsi128_si32(m);
}

/* The sums of q's 16 bytes. */
FOLD int32_t bytes_sum(const signed char *q)
{
    __m128i u = _mm_xor_si128(_mm_loadu_si128((const void *)q), _mm_set1_epi8(-128));
    __m128i s = _mm_sad_epu8(u, _mm_setzero_si128());

    return _mm_cvtsi128_si32(s) + _mm_extract_epi32(s, 2) - 16 * 128;
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
    vi top = {0};
    int32_t m, first, all;
    float max, by;

#pragma GCC unroll 4
    for (int i = 0; i < 32 / LANES;
         i++) { /* as integers: what is not finite is above all that is */
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
    for (int i = 0; i < 32 / LANES; i++) /* 1.5 * 2^23 rounds to an integer, to nearest even */
        store_bytes(b->q + (ptrdiff_t)i * LANES, (vi)(v[i] * by + 0x1.8p23f) - 0x4b400000);
    first = bytes_sum(b->q);
    all = first + bytes_sum(b->q + 16);
    b->d = max / 127;
    b->ds = (float)all * b->d;
    b->zero4 = all * -8;
    b->zero5 = all * -16;
    b->zero6[0] = first * -32;
    b->zero6[1] = (all - first) * -32;
    b->zero8 = all * -128;
}

/*
 * Rows lie in pieces of as many as meet a tile together, a piece block by block and in a block row
 * by row, so that a kernel reads one stream. The last piece may be rounded up: its last rows are
 * what was there before, and go nowhere.
 */
static const int row_counts[] = {1, 2, 4, 8, 12};

/* Which of row_counts are the rows from r on. */
static int x_piece(int64_t n, int64_t r)
{
    int k = 0;

    while (row_counts[k] < MOST_ROWS && row_counts[k] < n - r)
        k++;
    return k;
}

struct x_job {
    struct mt_rows x;
    struct mt_xblock *q;
    int64_t blocks, n;
};

static void x_run(void *arg, int thread, int64_t begin, int64_t end)
{
    const struct x_job *j = arg;

    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        int64_t first = r - r % MOST_ROWS, rows = row_counts[x_piece(j->n, first)];
        struct mt_xblock *to = j->q + first * j->blocks + r - first;

        for (int64_t b = 0; b < j->blocks; b++)
            x_block(to + b * rows, j->x.data + r * j->x.stride + b * PACK_COLS);
    }
}

/* n rows of x into c->x. */
static void x_quantise(struct mt_cpu *c, struct mt_rows x, int64_t blocks, int n)
{
    struct x_job j = {x, c->x, blocks, n};

    mt_par(c, n, 4 * blocks * PACK_COLS, x_run, &j);
}

/* ---- a block of a tile ---- */

/* Quad j of LANES outputs at q, as bytes >= 0; t and j are constants. */
FOLD vu quad(const enum mt_dtype t, const unsigned char *q, const int j)
{
    vu v, h;

    if (pack_bits(t) == 8)
        return (vu)vload(q + (ptrdiff_t)64 * j);
    v = (vu)vload(q + (ptrdiff_t)64 * (j % 4));
    v = (j < 4 ? v : v >> 4) & 0x0f0f0f0f;
    if (pack_bits(t) == 5) {
        h = (vu)vload(q + 256);
        v |= (j <= 4 ? h << (4 - j) % 8 : h >> (j - 4) % 8) & 0x10101010;
    } else if (pack_bits(t) == 6) {
        h = (vu)vload(q + (ptrdiff_t)64 * (4 + j / 4));
        v |= (j % 4 < 3 ? h << (4 - 2 * (j % 4)) % 8 : h >> 2) & 0x30303030;
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
 * Scales of block b of a group, whose scales s points to: d, and d2: the minimum, or the scale of
 * the second 16 columns.
 */
FOLD void scales(const enum mt_dtype t, const unsigned char *s, int half, int64_t b, vf *d, vf *d2)
{
    const bool two = pack_has_min(t);
    const unsigned char *p = s + 64 + b * 32 + (ptrdiff_t)half * LANES;

    s += (ptrdiff_t)half * 2 * LANES;
    if (!pack_is_k(t)) {
        s += b * (two ? 64 : 32);
        *d = vfrom_f16(s);
        *d2 = two ? vfrom_f16(s + 32) : *d;
    } else if (t == MT_Q6_K) {
        *d = vfrom_f16(s);
        *d2 = *d * vfrom_int8(p + 16);
        *d *= vfrom_int8(p);
    } else {
        *d = vfrom_f16(s) * from_u8(p);
        *d2 = vfrom_f16(s + 32) * -from_u8(p + 16);
    }
}

FOLD vi x_quad(const struct mt_xblock *x, int j)
{
    int32_t v;

    memcpy(&v, x->q + (ptrdiff_t)4 * j, sizeof(v));
    return v - (vi){0};
}

/* sum[r] += quads from..to-1 times row r's; t, nr, from and to are constants. */
FOLD void dots(const enum mt_dtype t, const int nr, const int from, const int to,
               const unsigned char *q, const struct mt_xblock *x, vi *sum)
{
#ifdef DOT
#pragma GCC unroll 8
    for (int j = from; j < to; j++) {
        vu w = quad(t, q, j);

#pragma GCC unroll 16
        for (int r = 0; r < nr; r++)
            sum[r] = DOT(sum[r], w, x_quad(&x[r], j));
    }
#else
    /* Quads whose int16 sums of two products each can be added before they overflow. */
    const int few = pack_bits(t) == 4 ? 8 : pack_bits(t) == 5 ? 4 : pack_bits(t) == 6 ? 2 : 1;
    const int step = few < to - from ? few : to - from;

#pragma GCC unroll 8
    for (int at = from; at < to; at += step) {
        vs h[MOST_ROWS];

#pragma GCC unroll 8
        for (int j = at; j < at + step; j++) {
            vu w = quad(t, q, j);

            if (pack_bits(t) == 8) /* 255 * 127 * 2 is too much: |w| times x with w's sign */
                w ^= 0x80808080;
#pragma GCC unroll 16
            for (int r = 0; r < nr; r++) {
                vi xq = x_quad(&x[r], j);
                vs p = pack_bits(t) == 8 ? PAIRS(ABS_BYTES(w), signed_as(xq, w)) : PAIRS(w, xq);

                h[r] = j == at ? p : h[r] + p;
            }
        }
#pragma GCC unroll 16
        for (int r = 0; r < nr; r++)
            sum[r] += QUADS(h[r]);
    }
#endif
}

/*
 * What a sum of q x, from column `from` on, begins with, so that it ends as the sum of (q - zero)
 * x.
 */
FOLD vi sum_from(const enum mt_dtype t, const int from, const struct mt_xblock *x)
{
    const int bits = pack_bits(t);

#ifndef DOT
    if (bits == 8)
        return (vi){0};
#endif
    if (pack_has_min(t))
        return (vi){0};
    return (bits == 4   ? x->zero4
            : bits == 5 ? x->zero5
            : bits == 6 ? x->zero6[from / 4]
                        : x->zero8) -
           (vi){0};
}

/* a[r] += a block, or with Q6_K a half of one, of a tile times row r. */
FOLD void cells(const enum mt_dtype t, const int nr, const int from, const int to,
                const unsigned char *q, vf d, vf m, const struct mt_xblock *x, vf *a)
{
    vi sum[MOST_ROWS];

#pragma GCC unroll 16
    for (int r = 0; r < nr; r++)
        sum[r] = sum_from(t, from, &x[r]);
    dots(t, nr, from, to, q, x, sum);
#pragma GCC unroll 16
    for (int r = 0; r < nr; r++) {
        a[r] = vfma(__builtin_convertvector(sum[r], vf) * d, vsplat(x[r].d), a[r]);
        if (pack_has_min(t))
            a[r] = vfma(m, vsplat(x[r].ds), a[r]);
    }
}

/* acc[i * nr + r] = rows r times tile `tile` + i; t and nr are constants. */
FOLD void rows_of(const enum mt_dtype t, const int nr, const struct mt_pack *p, int64_t tile,
                  int64_t tiles, int half, const struct mt_xblock *x0, vf *acc)
{
    const unsigned char *at = p->data + tile * p->tile_bytes;
    int64_t blocks = p->blocks;

    for (int64_t i = 0; i < tiles; i++) {
        const struct mt_xblock *x = x0;
        vf a[MOST_ROWS];

#pragma GCC unroll 16
        for (int r = 0; r < nr; r++)
            a[r] = vsplat(0);
        for (int64_t b = 0; b < blocks; b += PACK_GROUP) {
            int64_t n = blocks - b < PACK_GROUP ? blocks - b : PACK_GROUP;
            const unsigned char *s = at;

#pragma GCC unroll 8
            for (int k = 0; k < pack_scale_bytes(t); k += 64)
                __builtin_prefetch(at + AHEAD + k);
            at += pack_scale_bytes(t);
            for (int64_t g = 0; g < n; g++) {
                const unsigned char *q = at + (ptrdiff_t)half * 4 * LANES;
                vf d, d2;

#pragma GCC unroll 8
                for (int k = 0; k < pack_block_bytes(t); k += 64)
                    __builtin_prefetch(at + AHEAD + k);
                scales(t, s, half, g, &d, &d2);
                cells(t, nr, 0, t == MT_Q6_K ? 4 : 8, q, d, d2, x, a);
                if (t == MT_Q6_K)
                    cells(t, nr, 4, 8, q, d2, d2, x, a);
                at += pack_block_bytes(t);
                x += nr;
            }
        }
#pragma GCC unroll 16
        for (int r = 0; r < nr; r++)
            acc[i * nr + r] = a[r];
    }
}

/* ---- by type and number of rows ---- */

typedef void rows_fn(const struct mt_pack *p, int64_t tile, int64_t tiles, int half,
                     const struct mt_xblock *x, vf *acc);

#define ROWS(t, nr)                                                                                \
    static void rows_##t##_##nr(const struct mt_pack *p, int64_t tile, int64_t tiles, int half,    \
                                const struct mt_xblock *x, vf *acc)                                \
    {                                                                                              \
        rows_of(t, nr, p, tile, tiles, half, x, acc);                                              \
    }
#if MOST_ROWS == 12
#define KERNELS(t) ROWS(t, 1) ROWS(t, 2) ROWS(t, 4) ROWS(t, 8) ROWS(t, 12)
#define ENTRY(t)                                                                                   \
    {                                                                                              \
        rows_##t##_1, rows_##t##_2, rows_##t##_4, rows_##t##_8, rows_##t##_12                      \
    }
#elif MOST_ROWS == 8
#define KERNELS(t) ROWS(t, 1) ROWS(t, 2) ROWS(t, 4) ROWS(t, 8)
#define ENTRY(t)                                                                                   \
    {                                                                                              \
        rows_##t##_1, rows_##t##_2, rows_##t##_4, rows_##t##_8                                     \
    }
#else
#define KERNELS(t) ROWS(t, 1) ROWS(t, 2) ROWS(t, 4)
#define ENTRY(t)                                                                                   \
    {                                                                                              \
        rows_##t##_1, rows_##t##_2, rows_##t##_4                                                   \
    }
#endif

KERNELS(MT_Q4_0)
KERNELS(MT_Q4_1)
KERNELS(MT_Q5_0)
KERNELS(MT_Q5_1)
KERNELS(MT_Q8_0)
KERNELS(MT_Q4_K)
KERNELS(MT_Q5_K)
KERNELS(MT_Q6_K)

static rows_fn *const rows_of_type[][MT_COUNT(row_counts)] = {
    ENTRY(MT_Q4_0), ENTRY(MT_Q4_1), ENTRY(MT_Q5_0), ENTRY(MT_Q5_1),
    ENTRY(MT_Q8_0), ENTRY(MT_Q4_K), ENTRY(MT_Q5_K), ENTRY(MT_Q6_K)};

/* Sums of LANES outputs from o on become rows r..r+n-1 of out. */
static void put_rows(const struct linear_job *j, const vf *acc, int64_t o, int64_t r, int64_t n)
{
    int64_t left = j->w->rows - o;
    float *out = j->out.data + r * j->out.stride + o;
    const float *bias = j->bias ? j->bias->vec + o : NULL;
    const float *res = j->residual.data ? j->residual.data + r * j->residual.stride + o : NULL;

    if (left <= 0)
        return;
    for (int64_t i = 0; i < n; i++, out += j->out.stride) {
        vf v = acc[i];

        if (bias)
            v += left >= LANES ? vload(bias) : vload_part(bias, left);
        if (j->act != MT_ACT_NONE)
            v = vact(j->act, v);
        if (res) {
            v += left >= LANES ? vload(res) : vload_part(res, left);
            res += j->residual.stride;
        }
        if (left >= LANES)
            vstore(out, v);
        else
            vstore_part(out, v, left);
    }
}

/* The number of rows is rounded up: those behind the last are x's spares and go nowhere. */
static void quant_tiles(const struct linear_job *j, int64_t begin, int64_t end)
{
    enum { TILES = 8 }; /* so many that rows of x meet while they are in the cache */
    const struct mt_pack *p = &j->w->pack;
    vf acc[TILES * MOST_ROWS];

    for (int64_t tile = begin; tile < end; tile += TILES) {
        int64_t tiles = end - tile < TILES ? end - tile : TILES;

        for (int half = 0; half < HALVES; half++) {
            for (int64_t r = 0, k; r < j->n; r += row_counts[k]) {
                int64_t nr = j->n - r, o = tile * PACK_TILE + (int64_t)half * LANES;

                k = x_piece(j->n, r);
                nr = nr < row_counts[k] ? nr : row_counts[k];
                rows_of_type[p->type - MT_Q4_0][k](p, tile, tiles, half, j->q + r * p->blocks, acc);
                for (int64_t i = 0; i < tiles; i++)
                    put_rows(j, acc + i * row_counts[k], o + i * PACK_TILE, r, nr);
            }
        }
    }
}
