/*
 * tiles.cu: products on tensor cores of our own: 16-bit activations with weights of bf16, f16, Q8_0
 * and Q4_K.
 *
 * Columns of the product (rows of W) are what the tensor core counts by 16, and rows of x by 8, so
 * that a few rows fill it. A block has a tile of both and walks over k in stages of 64 elements
 * that are copied ahead. A step of 32 elements is two products; lane (g, t) takes its 8 neighbours
 * from 8 t on, in W and in x alike, which is one load of 16 bytes for both: the order of elements
 * in a product is free. Numbers in blocks are whole ones there, exact in bf16, and their scale is
 * applied to the step's sum in f32; Q4_K's minimum takes the sum of x, a product with ones.
 *
 * A sum goes over k ascending; SPLIT has four, each over every fourth stage, and adds them at the
 * end.
 */
#include "kernels/cuda/tiles.h"
#include "kernels/cuda/tensor.h"

enum { STEP = 64, STEP_BYTES = 2 * STEP };

/*
 * A block: COLS of M warps with 32 columns each, ROWS of N warps with NT times 8 rows each, and
 * SPLIT times as many warps.
 */
template <int TYPE, int M, int N, int SPLIT, int NT> struct tiling {
    static constexpr int type = TYPE, m = M, n = N, split = SPLIT, nt = NT;
    static constexpr int cols = 32 * M, rows = 8 * NT * N, threads = 32 * M * N * SPLIT;
    static constexpr bool blocks = TYPE == MT_Q8_APART || TYPE == MT_Q4_K;
    /* of 64 elements: numbers of a column, then (of all columns) what scales them, then x */
    static constexpr int numbers = TYPE == MT_Q8_APART ? 64 : TYPE == MT_Q4_K ? 32 : STEP_BYTES;
    static constexpr int scales = TYPE == MT_Q8_APART ? 4 : TYPE == MT_Q4_K ? 16 : 0;
    static constexpr int x_at = cols * (numbers + scales), part = x_at + rows * STEP_BYTES;
    static constexpr int stage = SPLIT * part;
    static constexpr int fit = ((N > 1 ? 96 : 72) << 10) / stage;
    static constexpr int stages = fit < 2 ? 2 : fit > 8 ? 8 : fit;
    static constexpr int shared = (cols + rows) * 8 + stages * stage;
    static_assert((split - 1) * m * n * 2 * nt * 128 * 4 <= stages * stage, "room for sums");
};

/* Where each row of a tile begins, of W (or U) and of x; NULL: there is none. In shared memory. */
template <class T> struct begins {
    const unsigned char *w[T::cols];
    const uint16_t *x[T::rows];
};

/* Row r of a stage's weights: of a warp's 32 the upper 16 are U's columns where there is one. */
MT_DEV int column_of(bool gated, int r)
{
    return gated ? r / 32 * 16 + r % 16 : r;
}

/* Where 16 bytes w of row r stand, so that what 8 lanes read meets other banks. */
template <int TYPE> MT_DEV int word_of(int r, int w)
{
    return TYPE == MT_Q8_APART ? w ^ (r >> 1 & 1) << 1 : w ^ (r & 1) << 2;
}

/*
 * f(part, row, word) for each of WORDS words of ROWS rows of SPLIT parts, by all threads. What
 * changes from one copy of a thread to its next is known to the compiler, but for many parts of few
 * words.
 */
template <int WORDS, int ROWS, int SPLIT, int THREADS, class F> MT_DEV void each_word(F f)
{
    const int all = WORDS * ROWS;
    int i = (int)threadIdx.x;

    static_assert(THREADS % all == 0 || all % THREADS == 0, "whole rounds");
#pragma unroll
    for (int i0 = 0; i0 < SPLIT * all; i0 += THREADS) {
        int part = i0 / all + (THREADS > all ? i / all : 0);

        if (THREADS <= all)
            f(part, i / WORDS + i0 % all / WORDS, i % WORDS);
        else if (part < SPLIT)
            f(part, i / WORDS % ROWS, i % WORDS);
    }
}

/* Stage `step` on its way; rows of x: so many there are, by eights. */
template <class T>
MT_DEV void fetch(char *stage, const struct begins<T> &at, int k, int step, int rows)
{
    const int type = T::type, cols = T::cols, split = T::split, threads = T::threads;

    each_word<T::numbers / 16, cols, split, threads>([&](int part, int r, int w) {
        int j = step * split + part;
        int off = type == MT_Q8_APART ? j / 4 * 272 + j % 4 * 64
                  : type == MT_Q4_K   ? j / 4 * 144 + j % 4 * 32 + 16
                                      : j * STEP_BYTES;
        const unsigned char *from = at.w[r];
        bool there = from && j * STEP + (T::blocks ? 0 : 8 * w) < k;

        dev_copy16(stage + part * T::part + r * T::numbers +
                       16 * (type == MT_Q4_K ? w : word_of<type>(r, w)),
                   there ? from + off + 16 * w : (const unsigned char *)at.x[0], there);
    });
    if (T::blocks)
        each_word<1, cols, split, threads>([&](int part, int r, int) {
            int j = step * split + part;
            const unsigned char *from = at.w[r];
            bool there = from && j * STEP < k;
            char *to = stage + part * T::part + cols * T::numbers + r * T::scales;

            from = there
                       ? from + (type == MT_Q8_APART ? j / 4 * 272 + 256 + j % 4 * 4 : j / 4 * 144)
                       : (const unsigned char *)at.x[0];
            if (type == MT_Q8_APART)
                dev_copy4(to, from, there);
            else
                dev_copy16(to, from, there);
        });
    each_word<8, T::rows, split, threads>([&](int part, int r, int w) {
        int e = (step * split + part) * STEP + 8 * w;
        const uint16_t *from = at.x[r];
        bool there = from && e < k;

        if (r < rows)
            dev_copy16(stage + part * T::part + T::x_at + r * STEP_BYTES +
                           16 * word_of<MT_BF16>(r, w),
                       there ? from + e : at.x[0], there);
    });
}

/* ---- weights as operands ---- */

/* A half of the numbers 0..15 of four bytes: bytes n and n + 1, their lower or upper four bits. */
MT_DEV unsigned nibbles(unsigned v, int n, bool upper)
{
    v = __byte_perm(v >> (upper ? 4 : 0), 0, (unsigned)(n | (n + 1) << 8 | 0x4040));
    return dev_bf16_fma(dev_and_or(v, 0x000f000f, 0x43004300), 0x3f803f80, 0xc300c300);
}

/*
 * Elements 8t.. of half c of the 64 of a row: four words of two. row: the row of a stage's weights,
 * whose number is g, or that and a multiple of 8.
 */
template <int TYPE> MT_DEV void operand(unsigned *a, const char *row, int c)
{
    int g = (int)dev_lane() / 4, t = (int)dev_lane() % 4;

    if (TYPE == MT_Q8_APART) {
        const uint2 v = *(const uint2 *)(row + 16 * word_of<TYPE>(g, 2 * c + t / 2) + 8 * (t % 2));

        a[0] = dev_bytes<MT_INT8>(v.x, 0, v.x, 1);
        a[1] = dev_bytes<MT_INT8>(v.x, 2, v.x, 3);
        a[2] = dev_bytes<MT_INT8>(v.y, 0, v.y, 1);
        a[3] = dev_bytes<MT_INT8>(v.y, 2, v.y, 3);
    } else if (TYPE == MT_Q4_K) {
        const uint2 v = *(const uint2 *)(row + 8 * t);

        a[0] = nibbles(v.x, 0, c);
        a[1] = nibbles(v.x, 2, c);
        a[2] = nibbles(v.y, 0, c);
        a[3] = nibbles(v.y, 2, c);
    } else {
        const uint4 v = *(const uint4 *)(row + 16 * word_of<TYPE>(g, 4 * c + t));

        a[0] = v.x;
        a[1] = v.y;
        a[2] = v.z;
        a[3] = v.w;
    }
}

/* What scales rows g and g + 8 of a warp's 16, in each half of 64 elements: [half][row]. */
struct scales {
    float by[2][2], least[2][2];
};

/* r: the first of the 16; j: which 64 of the whole row. */
template <class T> MT_DEV void load_scales(struct scales *s, const char *w, int r, int j)
{
    int lane = (int)dev_lane(), g = lane / 4;

    if (T::type == MT_Q8_APART) {
#pragma unroll
        for (int h = 0; h < 2; h++)
            dev_unpack<false>(&s->by[0][h], &s->by[1][h],
                              *(const unsigned *)(w + T::cols * 64 + (r + g + 8 * h) * 4));
    } else if (T::type == MT_Q4_K) { /* a lane works out one of the 2 x 16 */
        float by, least;

        dev_q4_scale(&by, &least, *(const uint4 *)(w + T::cols * 32 + (r + lane % 16) * 16),
                     j % 4 * 2 + lane / 16);
#pragma unroll
        for (int c = 0; c < 2; c++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                s->by[c][h] = __shfl_sync(MT_FULL, by, 16 * c + g + 8 * h);
                s->least[c][h] = __shfl_sync(MT_FULL, least, 16 * c + g + 8 * h);
            }
    }
}

/*
 * 64 elements: a warp's 32 columns from row r of `part` on, times `tiles` of its NT times 8 rows of
 * x from row x0 on. ALL: times all of them; without a branch between sums they stay where they are.
 */
template <class T, bool ALL>
MT_DEV void multiply(float (*sum)[T::nt][4], const char *part, int r, int x0, int tiles, int j)
{
    const bool bf16 = T::type != MT_F16;
    int lane = (int)dev_lane(), g = lane / 4, t = lane % 4;
    const char *w = part + (r + g) * T::numbers, *x = part + T::x_at + (x0 + g) * STEP_BYTES;
    struct scales s[2];

#pragma unroll
    for (int m = 0; m < 2; m++)
        load_scales<T>(&s[m], part, r + 16 * m, j);
#pragma unroll
    for (int c = 0; c < 2; c++) {
        unsigned a[2][2][4]; /* [columns][product] */

#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                unsigned v[4];

                operand<T::type>(v, w + (16 * m + 8 * h) * T::numbers, c);
#pragma unroll
                for (int i = 0; i < 4; i++)
                    a[m][i / 2][h + i % 2 * 2] = v[i];
            }
#pragma unroll
        for (int n = 0; n < T::nt; n++) {
            if (!ALL && n >= tiles)
                break;
            const uint4 b =
                *(const uint4 *)(x + 8 * n * STEP_BYTES + 16 * word_of<MT_BF16>(g, 4 * c + t));
            float ones[4] = {};

            if (T::type == MT_Q4_K) {
                const unsigned one[4] = {0x3f803f80, 0x3f803f80, 0x3f803f80, 0x3f803f80};

                dev_product<true>(ones, one, b.x, b.y);
                dev_product<true>(ones, one, b.z, b.w);
            }
#pragma unroll
            for (int m = 0; m < 2; m++) {
                float some[4] = {}, *to = T::blocks ? some : sum[m][n];

                dev_product<bf16>(to, a[m][0], b.x, b.y);
                dev_product<bf16>(to, a[m][1], b.z, b.w);
#pragma unroll
                for (int i = 0; T::blocks && i < 4; i++) {
                    sum[m][n][i] = dev_fma(s[m].by[c][i / 2], some[i], sum[m][n][i]);
                    if (T::type == MT_Q4_K)
                        sum[m][n][i] = dev_fma(-s[m].least[c][i / 2], ones[i], sum[m][n][i]);
                }
            }
        }
    }
}

/* The parts of a split sum, ascending, to the first warp of them. */
template <class T> MT_DEV void gather_parts(float (*sum)[T::nt][4], char *bytes, int warp, int part)
{
    const int each = 2 * T::nt * 4 * 32;
    float *all = (float *)bytes + (warp * (T::split - 1)) * each + dev_lane();

    __syncthreads(); /* stages have been used */
    if (part > 0)
#pragma unroll
        for (int i = 0; i < each / 32; i++)
            all[(part - 1) * each + 32 * i] = sum[i / 4 / T::nt][i / 4 % T::nt][i % 4];
    __syncthreads();
    if (part == 0)
        for (int k = 0; k < T::split - 1; k++)
#pragma unroll
            for (int i = 0; i < each / 32; i++)
                sum[i / 4 / T::nt][i / 4 % T::nt][i % 4] += all[k * each + 32 * i];
}

/* Columns of a block. */
template <class T> static __host__ __device__ inline int columns(const struct mt_product &p)
{
    return p.up ? T::cols / 2 : T::cols;
}

/* Grid: tiles times blocks of columns, and what `most` has more; neighbours share their columns. */
template <class T>
static __global__ void __launch_bounds__(T::threads, T::threads > 128 ? 2 : 1)
    multiply_tiles(struct mt_product p)
{
    MT_SHARED_BYTES(bytes);
    const bool gated = p.up;
    struct begins<T> &at = *(struct begins<T> *)bytes;
    char *stages = bytes + sizeof(at);
    int tiles = p.tiles ? *p.tiles : p.most, warp = (int)threadIdx.x / 32;
    int part = warp / (T::m * T::n), r = warp % T::m * 32, x0 = warp / T::m % T::n * 8 * T::nt;
    float sum[2][T::nt][4] = {};

    if (tiles < 1)
        return;
    const int col0 = (int)(blockIdx.x / (unsigned)tiles) * columns<T>(p);
    if (col0 >= p.cols)
        return;
    const int z = (int)(blockIdx.x % (unsigned)tiles), left = p.n - z * T::rows;
    const struct mt_tile tile = p.tile ? p.tile[z] : mt_tile{0, z * T::rows, left};
    const int rows = tile.n < T::rows ? tile.n : T::rows, eights = (rows + 7) / 8 * 8;
    for (int i = (int)threadIdx.x; i < T::cols; i += T::threads) {
        int col = col0 + column_of(gated, i);
        const struct mt_dmat &w = p.w ? (gated && i & 16 ? p.up : p.w)[tile.matrix] : p.one;

        at.w[i] = col < p.cols ? w.data + col * w.row_bytes : NULL;
    }
    for (int i = (int)threadIdx.x; i < T::rows; i += T::threads)
        at.x[i] =
            i < rows ? p.x + (int64_t)(p.row ? p.row[tile.row + i] : tile.row + i) * p.k : NULL;
    __syncthreads();

    const int steps = (p.k + STEP * T::split - 1) / (STEP * T::split);
    const int mine = (rows - x0 + 7) / 8, have = mine < T::nt ? mine : T::nt;
    for (int i = 0; i < T::stages - 1; i++) {
        if (i < steps)
            fetch<T>(stages + i * T::stage, at, p.k, i, eights);
        dev_copy_group();
    }
    for (int i = 0; i < steps; i++) {
        int next = i + T::stages - 1;

        dev_copy_wait<T::stages - 2>();
        __syncthreads(); /* what all have copied is there, and the stage before has been used */
        if (next < steps)
            fetch<T>(stages + next % T::stages * T::stage, at, p.k, next, eights);
        dev_copy_group();
        const char *now = stages + i % T::stages * T::stage + part * T::part;
        if (have == T::nt)
            multiply<T, true>(sum, now, r, x0, have, i * T::split + part);
        else
            multiply<T, false>(sum, now, r, x0, have, i * T::split + part);
    }
    if (T::split > 1)
        gather_parts<T>(sum, stages, warp % (T::m * T::n), part);
    if (part > 0)
        return;
    int g = (int)dev_lane() / 4, t = (int)dev_lane() % 4;
#pragma unroll
    for (int n = 0; n < T::nt; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int row = x0 + 8 * n + 2 * t + i % 2, col = col0 + column_of(gated, r) + g + i / 2 * 8;

            if (row >= rows)
                continue;
            if (gated) {
                float v = sum[0][n][i], h = v / (1 + expf(-v)) * sum[1][n][i];

                if (col >= p.cols)
                    continue;
                if (p.gated)
                    p.gated[(int64_t)(tile.row + row) * p.cols + col] =
                        p.bf16 ? dev_to_bf16(h) : dev_to_f16(h);
                else
                    p.out.data[(tile.row + row) * p.out.stride + col] = h;
                continue;
            }
#pragma unroll
            for (int m = 0; m < 2; m++)
                if (col + 16 * m < p.cols)
                    finish(p.out, p.end, tile.row + row, col + 16 * m, sum[m][n][i]);
        }
}

template <class T> static void launch(struct mt_cuda *c, const struct mt_product &p)
{
    unsigned grid = (unsigned)p.most * mt_blocks(p.cols, columns<T>(p));

    MT_SHARED_ROOM(c, multiply_tiles<T>, T::shared);
    MT_LAUNCH(c, multiply_tiles<T>, grid, T::threads, T::shared, p);
}

template <int TYPE> using narrow = tiling<TYPE, 2, 1, 1, 2>;
template <int TYPE> using wide = tiling<TYPE, 4, 2, 1, 8>;
template <int TYPE> using split = tiling<TYPE, 1, 1, 4, 2>;
template <int TYPE> using split_wide = tiling<TYPE, 2, 1, 4, 8>;

template <int TYPE>
static void launch_blocks(struct mt_cuda *c, const struct mt_product &p, enum mt_tiling t)
{
    switch (t) {
    case MT_NARROW:
        return launch<narrow<TYPE>>(c, p);
    case MT_WIDE:
        return launch<wide<TYPE>>(c, p);
    case MT_SPLIT:
        return launch<split<TYPE>>(c, p);
    case MT_SPLIT_WIDE:
        return launch<split_wide<TYPE>>(c, p);
    }
}

template <int TYPE>
static void launch_16(struct mt_cuda *c, const struct mt_product &p, enum mt_tiling t)
{
    if (t == MT_NARROW)
        launch<narrow<TYPE>>(c, p);
    else
        launch<wide<TYPE>>(c, p);
}

int mt_cuda_tile_rows(enum mt_tiling t)
{
    const int rows[] = {narrow<MT_BF16>::rows, wide<MT_BF16>::rows, split<MT_Q4_K>::rows,
                        split_wide<MT_Q4_K>::rows};

    return rows[t];
}

bool mt_cuda_tiles_take(int type, int k)
{
    return type == MT_Q8_APART || type == MT_Q4_K ||
           ((type == MT_BF16 || type == MT_F16) && k % 8 == 0);
}

void mt_cuda_tiles(struct mt_cuda *c, const struct mt_product *p, int type, enum mt_tiling t)
{
    if (type == MT_Q8_APART)
        launch_blocks<MT_Q8_APART>(c, *p, t);
    else if (type == MT_Q4_K)
        launch_blocks<MT_Q4_K>(c, *p, t);
    else if (type == MT_F16)
        launch_16<MT_F16>(c, *p, t);
    else
        launch_16<MT_BF16>(c, *p, t);
}
