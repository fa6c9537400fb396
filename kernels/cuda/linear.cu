/*
 * linear.cu: act(x W^T + bias) + residual.
 *
 * Our own kernel: a warp an output column, for 8 rows of x at a time, so that a weight is read once
 * for them. A lane's elements are 8 neighbours of every 256, summed in f32 ascending, then the
 * lanes by halves: one order, whatever the rows, their number and alignment. It serves `exact`, a
 * few rows of weights in blocks, and what nothing else takes. Else cuBLAS has the sums: f32 with
 * f32 (pedantic: no TF32), bf16 and f16 with x rounded to the weight's type, added up in f32; our
 * epilogue does the rest. Weights in blocks are tiles' (tiles.cu), or cuBLAS's after decoding.
 */
#include "kernels/cuda/tensor.h"
#include "kernels/cuda/tiles.h"

enum { WARPS = 8, ROWS = 8, EACH = 8, STEP = 32 * EACH };

/*
 * Weights in blocks: so many rows are worth rounding x to bf16 for tensor cores, and so many the
 * decoding of the weights for cuBLAS, by pieces of so many bytes. Types that have no tiles are
 * decoded from more rows on than our own kernel takes at once.
 */
#ifdef MT_CUDA_EMU /* small tests go every way */
enum { FEW = 3, MANY = 40, DECODED_BYTES = 64 << 10 };
#else
enum { FEW = 3, MANY = 192, DECODED_BYTES = 64 << 20 };
#endif

/* ---- our own ---- */

/* A lane's 8 of 256 elements in blocks, as they lie. */
struct raw {
    uint2 q;    /* its numbers; Q4_K: together with 32 neighbours further on or back */
    uint4 head; /* Q4_K: both scales of 256, and 8 scales and minima of 6 bits */
    unsigned scale;
};

template <int TYPE> MT_DEV struct raw raw_of(const unsigned char *row, int step)
{
    int lane = (int)dev_lane();
    struct raw r = {};

    if (TYPE == MT_Q8_APART) {
        row += (int64_t)step * 272;
        r.q = ((const uint2 *)row)[lane];
        r.scale = ((const uint16_t *)(row + 256))[lane / 4];
    } else { /* Q4_K: 64 elements lie in 32 bytes, half a byte each */
        row += (int64_t)step * 144;
        r.head = *(const uint4 *)row;
        r.q = ((const uint2 *)(row + 16))[lane / 8 * 4 + lane % 4];
    }
    return r;
}

/* dev_block_at()'s numbers: d times scale times number is exact, so that fma rounds as it does. */
template <int TYPE> MT_DEV void raw_decode(float *w, const struct raw &r)
{
    const unsigned q[2] = {r.q.x, r.q.y};

    if (TYPE == MT_Q8_APART) {
        float scale = dev_from_f16((uint16_t)r.scale);

#pragma unroll
        for (int i = 0; i < EACH; i++)
            w[i] = __fmul_rn((float)(signed char)(q[i / 4] >> 8 * (i % 4)), scale);
        return;
    }
    int p = (int)dev_lane() / 4; /* of 32 elements */
    float by, min;

    dev_q4_scale(&by, &min, r.head, p);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        unsigned v = q[i / 4] >> 4 * (p & 1) >> 8 * (i % 4) & 15;

        w[i] = dev_fma(by, (float)v, -min);
    }
}

/* Elements k.. of a row of W, 8 of them, 0 behind its end. */
template <int TYPE>
MT_DEV void weights(float *w, const struct mt_dmat &m, const unsigned char *row, int k)
{
    if (TYPE == MT_Q8_APART || TYPE == MT_Q4_K) {
        raw_decode<TYPE>(w, raw_of<TYPE>(row, k / STEP));
        return;
    }
    if (TYPE == MT_F32 || TYPE == MT_BF16 || TYPE == MT_F16) {
        /* every row of W begins as the first one where its bytes are a multiple of 16 */
        const int size = TYPE == MT_F32 ? 4 : 2;

        if (k + EACH <= m.cols && m.row_bytes % 16 == 0) {
            uint4 v[EACH * size / 16];

            for (int i = 0; i < EACH * size / 16; i++)
                v[i] = ((const uint4 *)(row + (int64_t)k * size))[i];
            const unsigned *u = &v[0].x;
            for (int i = 0; i < EACH; i++)
                w[i] = TYPE == MT_F32    ? __uint_as_float(u[i])
                       : TYPE == MT_BF16 ? dev_from_bf16((uint16_t)(u[i / 2] >> i % 2 * 16))
                                         : dev_from_f16((uint16_t)(u[i / 2] >> i % 2 * 16));
            return;
        }
    }
    for (int i = 0; i < EACH; i++)
        w[i] = k + i < m.cols ? dev_weight_at(TYPE < 0 ? m.type : TYPE, row, k + i) : 0;
}

/* The row whose sum a lane has in the end: its upper three bits. */
MT_DEV int row_of_lane(void)
{
    return (int)dev_lane() >> 2;
}

/*
 * Of the lanes' parts of ROWS sums the one that is row_of_lane()'s. Added by halves as warp_sum
 * does it, but a lane gives half of its rows away at each of the first three steps: 9 shuffles for
 * 8 rows instead of 40.
 */
MT_DEV float fold(float *sum)
{
    int lane = (int)dev_lane();

    static_assert(ROWS == 8, "three bits of the lane");
#pragma unroll
    for (int half = ROWS / 2; half; half /= 2) {
        bool upper = lane & 4 * half;

#pragma unroll
        for (int r = 0; r < half; r++) {
            float mine = upper ? sum[r + half] : sum[r], given = upper ? sum[r] : sum[r + half];

            sum[r] = mine + __shfl_xor_sync(MT_FULL, given, 4 * half);
        }
    }
    sum[0] += __shfl_xor_sync(MT_FULL, sum[0], 2);
    return sum[0] + __shfl_xor_sync(MT_FULL, sum[0], 1);
}

/* The sums of nr rows of x (ROWS at most) with row o of m: row_of_lane()'s. */
template <int TYPE>
MT_DEV float row_sums(const struct mt_dmat &m, int o, const float *x, int64_t stride, int nr)
{
    const unsigned char *row = m.data + o * m.row_bytes;
    int lane = (int)dev_lane();
    float w[EACH], sum[ROWS] = {0};

    for (int k0 = 0; k0 < m.cols; k0 += STEP) {
        int k = k0 + lane * EACH, left = m.cols - k;

        if (left <= 0)
            continue;
        weights<TYPE>(w, m, row, k);
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float *a = x + r * stride + k;

            if (r < nr)
                for (int i = 0; i < EACH; i++)
                    if (i < left)
                        sum[r] = dev_fma(a[i], w[i], sum[r]);
        }
    }
    return fold(sum);
}

/* Grid: columns / 8, rows / 8 (in x, as y is short). */
template <int TYPE>
static __global__ void linear_rows(struct mt_rows out, struct mt_rows x, struct mt_dmat m,
                                   struct epilogue e, int n)
{
    unsigned columns = ((unsigned)m.rows + WARPS - 1) / WARPS;
    int o = (int)(blockIdx.x % columns) * WARPS + (int)(threadIdx.x / 32);
    int r0 = (int)(blockIdx.x / columns) * ROWS, nr = n - r0 < ROWS ? n - r0 : ROWS;
    int r = row_of_lane();

    if (o >= m.rows)
        return;
    float sum = row_sums<TYPE>(m, o, x.data + r0 * x.stride, x.stride, nr);
    if (r < nr && dev_lane() % 4 == 0)
        finish(out, e, r0 + r, o, sum);
}

/* 8 elements of a row of x; wide: where it lies on 16 bytes. */
MT_DEV void load_x(float *a, const float *x, bool wide)
{
    if (wide) {
        const float4 v[2] = {((const float4 *)x)[0], ((const float4 *)x)[1]};

        a[0] = v[0].x, a[1] = v[0].y, a[2] = v[0].z, a[3] = v[0].w;
        a[4] = v[1].x, a[5] = v[1].y, a[6] = v[1].z, a[7] = v[1].w;
        return;
    }
#pragma unroll
    for (int i = 0; i < EACH; i++)
        a[i] = x[i];
}

/*
 * Weights in blocks of 256: a warp has COLS columns, so that x is read once for them, and the next
 * AHEAD blocks of each on their way. The sums are linear_rows'. Grid: columns / (8 COLS), rows / 8.
 */
template <int TYPE, int COLS, int AHEAD>
static __global__ void __launch_bounds__(32 * WARPS)
    block_rows(struct mt_rows out, struct mt_rows x, struct mt_dmat m, struct epilogue e, int n)
{
    unsigned columns = ((unsigned)m.rows + WARPS * COLS - 1) / (WARPS * COLS);
    int o = ((int)(blockIdx.x % columns) * WARPS + (int)(threadIdx.x / 32)) * COLS;
    int r0 = (int)(blockIdx.x / columns) * ROWS, nr = n - r0 < ROWS ? n - r0 : ROWS;
    int lane = (int)dev_lane(), steps = m.cols / STEP;
    bool wide = (uintptr_t)x.data % 16 == 0 && x.stride % 4 == 0;
    const float *a = x.data + r0 * x.stride + lane * EACH;
    const unsigned char *row[COLS];
    struct raw next[AHEAD][COLS];
    float sum[COLS][ROWS] = {};

    if (o >= m.rows)
        return;
#pragma unroll
    for (int c = 0; c < COLS; c++) { /* past the last row the last again: its sums go nowhere */
        row[c] = m.data + (o + c < m.rows ? o + c : m.rows - 1) * m.row_bytes;
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            next[k][c] = raw_of<TYPE>(row[c], k < steps ? k : 0);
    }
    for (int s0 = 0; s0 < steps; s0 += AHEAD)
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            int step = s0 + k;
            float w[COLS][EACH], v[EACH];

            if (step >= steps)
                break;
#pragma unroll
            for (int c = 0; c < COLS; c++) {
                raw_decode<TYPE>(w[c], next[k][c]);
                if (step + AHEAD < steps)
                    next[k][c] = raw_of<TYPE>(row[c], step + AHEAD);
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                if (r >= nr)
                    break;
                load_x(v, a + r * x.stride + step * STEP, wide);
#pragma unroll
                for (int c = 0; c < COLS; c++)
#pragma unroll
                    for (int i = 0; i < EACH; i++)
                        sum[c][r] = dev_fma(v[i], w[c][i], sum[c][r]);
            }
        }
#pragma unroll
    for (int c = 0; c < COLS; c++) {
        float v = fold(sum[c]);
        int r = row_of_lane();

        if (r < nr && lane % 4 == 0 && o + c < m.rows)
            finish(out, e, r0 + r, o + c, v);
    }
}

/* Few rows: the weights are all that counts, and must be under way; many: x costs more. */
template <int TYPE>
static void launch_blocks(struct mt_cuda *c, struct mt_rows out, struct mt_rows x,
                          const struct mt_dmat &m, const struct epilogue &e, int n)
{
    if (n <= 2)
        MT_LAUNCH(c, (block_rows<TYPE, 2, 4>), mt_blocks(m.rows, 2 * WARPS), 32 * WARPS, 0, out, x,
                  m, e, n);
    else
        MT_LAUNCH(c, (block_rows<TYPE, 4, 2>), mt_blocks(m.rows, 4 * WARPS) * mt_blocks(n, ROWS),
                  32 * WARPS, 0, out, x, m, e, n);
}

/* A warp 256 elements: 8 blocks of 34 bytes become 256 numbers and 8 scales. */
static __global__ void part_blocks(unsigned char *data, int64_t n)
{
    int64_t i = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    int lane = (int)dev_lane();
    uint16_t *all = (uint16_t *)(data + i * 272), q[4];

    if (i >= n)
        return;
    for (int k = 0; k < 4; k++)
        q[k] = all[lane / 4 * 17 + 1 + lane % 4 * 4 + k];
    uint16_t scale = all[lane % 8 * 17];
    __syncwarp(); /* all is read before it is written over */
    for (int k = 0; k < 4; k++)
        all[lane * 4 + k] = q[k];
    if (lane < 8)
        all[128 + lane] = scale;
}

void mt_cuda_arrange(struct mt_cuda *c, struct mt_dmat *m)
{
    int64_t n = (int64_t)m->rows * (m->cols / STEP);

    if (m->type == MT_Q8_0 && m->cols % STEP == 0) {
        m->type = MT_Q8_APART;
        MT_LAUNCH(c, part_blocks, mt_blocks(n, WARPS), 32 * WARPS, 0, (unsigned char *)m->data, n);
    }
    if (m->type > MT_BF16 && !c->deterministic)
        for (struct mt_lane *l = c->lanes; l < c->lanes + MT_LANES; l++)
            mt_cuda_grow(c, &l->decoded, &l->decoded_bytes, DECODED_BYTES);
}

static void own(struct mt_cuda *c, struct mt_rows out, struct mt_rows x, const struct mt_dmat &m,
                const struct epilogue &e, int n)
{
    unsigned grid = mt_blocks(m.rows, WARPS) * mt_blocks(n, ROWS);

    switch (m.type) {
    case MT_F32:
        MT_LAUNCH(c, linear_rows<MT_F32>, grid, 32 * WARPS, 0, out, x, m, e, n);
        return;
    case MT_BF16:
        MT_LAUNCH(c, linear_rows<MT_BF16>, grid, 32 * WARPS, 0, out, x, m, e, n);
        return;
    case MT_F16:
        MT_LAUNCH(c, linear_rows<MT_F16>, grid, 32 * WARPS, 0, out, x, m, e, n);
        return;
    case MT_Q8_APART:
        launch_blocks<MT_Q8_APART>(c, out, x, m, e, n);
        return;
    case MT_Q4_K:
        launch_blocks<MT_Q4_K>(c, out, x, m, e, n);
        return;
    default:
        MT_LAUNCH(c, linear_rows<-1>, grid, 32 * WARPS, 0, out, x, m, e, n);
    }
}

/* ---- cuBLAS ---- */

/* n rows of x, dense, as bf16 or f16; 256 columns of a row a block. */
static __global__ void cast_rows(uint16_t *dst, struct mt_rows x, bool bf16)
{
    unsigned pieces = ((unsigned)x.width + 255) / 256;
    int64_t r = blockIdx.x / pieces;
    int col = (int)(blockIdx.x % pieces * 256 + threadIdx.x);

    if (col >= x.width)
        return;
    float v = x.data[r * x.stride + col];
    dst[r * x.width + col] = bf16 ? dev_to_bf16(v) : dev_to_f16(v);
}

static __global__ void finish_rows(struct mt_rows out, struct epilogue e)
{
    unsigned pieces = ((unsigned)out.width + 255) / 256;
    int64_t r = blockIdx.x / pieces;
    int col = (int)(blockIdx.x % pieces * 256 + threadIdx.x);

    if (col < out.width)
        finish(out, e, r, col, out.data[r * out.stride + col]);
}

/*
 * n rows of x in the lane's cast; cast: the type that they have been cast to already, MT_F32 if to
 * none.
 */
static bool cast_to(struct mt_cuda *c, struct mt_rows x, enum mt_dtype type, int n, int *cast)
{
    if ((size_t)n * (size_t)x.width * 2 > c->lane->cast_bytes)
        return false;
    c->lane->casts_to = type;
    if (*cast != type && !mt_cuda_cast_has(c, x, n, type)) {
        MT_LAUNCH(c, cast_rows, (unsigned)n * mt_blocks(x.width, 256), 256, 0,
                  (uint16_t *)c->lane->cast, x, type == MT_BF16);
        mt_cuda_cast_note(c, x, n, type);
    }
    *cast = type;
    return true;
}

/*
 * cuBLASLt adds bias and residual itself where no activation comes between; with one, and where it
 * has no product with a bias, finish_rows does that. Where the residual is out itself and an
 * activation comes between, the sums can't lie in out, and the caller takes our kernel. cast as
 * above: several matrices take the same rows.
 */
static bool blas(struct mt_cuda *c, struct mt_rows out, struct mt_rows x, const struct mt_dmat &m,
                 struct epilogue e, int n, int *cast)
{
    bool plain = e.act == MT_ACT_NONE;
    struct mt_dense d = {m.data, x.data, out.data, NULL, NULL, m.type, m.rows, m.cols, n, 0, 0, 0};

    if (m.type > MT_BF16 || (!plain && e.residual.data == out.data) || x.stride > INT_MAX ||
        out.stride > INT_MAX || e.residual.stride > INT_MAX)
        return false;
    x.width = m.cols;
    out.width = m.rows;
    d.ldx = (int)x.stride;
    d.ld_out = (int)out.stride;
    if (m.type != MT_F32) {
        if (!cast_to(c, x, (enum mt_dtype)m.type, n, cast))
            return false;
        d.x = c->lane->cast;
        d.ldx = m.cols;
    }
    if (plain) {
        d.bias = e.bias;
        d.residual = e.residual.data;
        d.ld_residual = (int)e.residual.stride;
        e.residual = {NULL, 0, 0};
    }
    if (mt_cuda_dense(c, d)) {
        e.bias = plain ? NULL : e.bias;
    } else {
        d.bias = NULL;
        if (!plain || !e.bias || !mt_cuda_dense(c, d))
            return false;
    }
    if (e.bias || !plain || e.residual.data)
        MT_LAUNCH(c, finish_rows, (unsigned)n * mt_blocks(m.rows, 256), 256, 0, out, e);
    return true;
}

/* ---- weights in blocks on tensor cores ---- */

/* A warp 256 elements of m, dense. */
template <int TYPE> static __global__ void decode_rows(uint16_t *dst, struct mt_dmat m)
{
    int steps = m.cols / STEP;
    int64_t i = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32, row = i / steps;
    float w[EACH];
    uint4 v;

    if (row >= m.rows)
        return;
    raw_decode<TYPE>(w, raw_of<TYPE>(m.data + row * m.row_bytes, (int)(i % steps)));
    v.x = dev_pack<true>(w[0], w[1]);
    v.y = dev_pack<true>(w[2], w[3]);
    v.z = dev_pack<true>(w[4], w[5]);
    v.w = dev_pack<true>(w[6], w[7]);
    ((uint4 *)dst)[i * 32 + dev_lane()] = v;
}

/* Those that nothing else decodes: an element a thread, 256 of a row a block. */
static __global__ void decode_any(uint16_t *dst, struct mt_dmat m)
{
    unsigned pieces = ((unsigned)m.cols + 255) / 256;
    int64_t row = blockIdx.x / pieces;
    int col = (int)(blockIdx.x % pieces * 256 + threadIdx.x);

    if (col < m.cols)
        dst[row * m.cols + col] =
            dev_to_bf16(dev_weight_at(m.type, m.data + row * m.row_bytes, col));
}

/* All of m as bf16 to c->lane->decoded. */
static void decode(struct mt_cuda *c, const struct mt_dmat &m)
{
    unsigned grid = mt_blocks((int64_t)m.rows * (m.cols / STEP), WARPS);
    uint16_t *to = (uint16_t *)c->lane->decoded;

    if (m.type == MT_Q4_K)
        MT_LAUNCH(c, decode_rows<MT_Q4_K>, grid, 32 * WARPS, 0, to, m);
    else if (m.type == MT_Q8_APART)
        MT_LAUNCH(c, decode_rows<MT_Q8_APART>, grid, 32 * WARPS, 0, to, m);
    else
        MT_LAUNCH(c, decode_any, (unsigned)m.rows * mt_blocks(m.cols, 256), 256, 0, to, m);
}

/* x has been rounded to bf16. */
static void tiles(struct mt_cuda *c, struct mt_rows out, const struct mt_dmat &m,
                  const struct epilogue &e, int n)
{
    enum mt_tiling how = n <= mt_cuda_tile_rows(MT_SPLIT) ? MT_SPLIT : MT_SPLIT_WIDE;
    struct mt_product p = {};

    p.one = m;
    p.cols = m.rows;
    p.k = m.cols;
    p.x = (const uint16_t *)c->lane->cast;
    p.n = n;
    p.most = (int)mt_blocks(n, mt_cuda_tile_rows(how));
    p.out = out;
    p.end = e;
    mt_cuda_tiles(c, &p, m.type, how);
}

static bool blocks(struct mt_cuda *c, struct mt_rows out, struct mt_rows x, const struct mt_dmat &m,
                   const struct epilogue &e, int n, int *cast)
{
    int rows = (int)(c->lane->decoded_bytes / ((size_t)m.cols * 2) / 64 * 64);
    bool tiled = m.type == MT_Q8_APART || m.type == MT_Q4_K;
    bool decoded = rows > 0 && !c->deterministic && n >= (tiled ? MANY : ROWS + 1);

    x.width = m.cols;
    if (m.type <= MT_BF16 || !(decoded || (tiled && (n >= FEW || c->deterministic))) ||
        !cast_to(c, x, MT_BF16, n, cast))
        return false;
    if (!decoded) {
        tiles(c, out, m, e, n);
        return true;
    }
    for (int o = 0; o < m.rows; o += rows) {
        struct mt_dmat part = m, dense;
        struct epilogue end = e;
        struct mt_rows to;

        part.data += o * m.row_bytes;
        part.rows = m.rows - o < rows ? m.rows - o : rows;
        dense = {(const unsigned char *)c->lane->decoded, MT_BF16, part.rows, m.cols,
                 2 * (int64_t)m.cols};
        to = mt_rows_cols(out, o, part.rows);
        end.bias = e.bias ? e.bias + o : NULL;
        if (e.residual.data)
            end.residual = mt_rows_cols(e.residual, o, part.rows);
        decode(c, part);
        if (blas(c, to, x, dense, end, n, cast))
            continue;
        if (tiled)
            tiles(c, to, part, end, n);
        else
            own(c, to, x, part, end, n);
    }
    return true;
}

static void product(struct mt_cuda *c, struct mt_rows x, const struct mt_linear *l, int n,
                    int *cast)
{
    struct epilogue e = {l->bias ? l->bias->vec : NULL, l->act, l->residual};

    if (x.data != c->lane->cast_of.data) /* cuBLAS's product, no launch of ours, may change those */
        c->lane->cast_of.data = NULL;
    if (n > 0 && (c->exact || (!blas(c, l->out, x, l->w->d, e, n, cast) &&
                               !blocks(c, l->out, x, l->w->d, e, n, cast))))
        own(c, l->out, x, l->w->d, e, n);
}

void mt_cuda_linear(struct mt_backend *be, struct mt_rows out, struct mt_rows x,
                    const struct mt_mat *w, const struct mt_mat *bias, enum mt_act act,
                    struct mt_rows residual, int n)
{
    const struct mt_linear l = {out, w, bias, act, residual};
    int cast = MT_F32;

    product(cuda_of(be), x, &l, n, &cast);
}

/* ---- many matrices, each with some of the rows ---- */

/* Grid: columns / 8, matrices. */
static __global__ void grouped_rows(struct mt_rows out, struct mt_rows x, const struct mt_dmat *w,
                                    const int *first)
{
    const struct mt_dmat m = w[blockIdx.y];
    int o = (int)blockIdx.x * WARPS + (int)(threadIdx.x / 32), r = row_of_lane();
    int end = first[blockIdx.y + 1];
    struct epilogue e = {NULL, MT_ACT_NONE, {NULL, 0, 0}};
    float sum;

    if (o >= m.rows)
        return;
    for (int r0 = first[blockIdx.y]; r0 < end; r0 += ROWS) {
        int nr = end - r0 < ROWS ? end - r0 : ROWS;
        const float *a = x.data + r0 * x.stride;

        switch (m.type) {
        case MT_F32:
            sum = row_sums<MT_F32>(m, o, a, x.stride, nr);
            break;
        case MT_BF16:
            sum = row_sums<MT_BF16>(m, o, a, x.stride, nr);
            break;
        case MT_F16:
            sum = row_sums<MT_F16>(m, o, a, x.stride, nr);
            break;
        case MT_Q8_APART:
            sum = row_sums<MT_Q8_APART>(m, o, a, x.stride, nr);
            break;
        case MT_Q4_K:
            sum = row_sums<MT_Q4_K>(m, o, a, x.stride, nr);
            break;
        default:
            sum = row_sums<-1>(m, o, a, x.stride, nr);
        }
        if (r < nr && dev_lane() % 4 == 0)
            finish(out, e, r0 + r, o, sum);
    }
}

void mt_cuda_grouped(struct mt_cuda *c, struct mt_rows out, struct mt_rows x,
                     const struct mt_dmat *w, const int *first, int n, int columns)
{
    for (int at = 0; at < n; at += 65535) { /* the most a grid is high */
        dim3 grid(mt_blocks(columns, WARPS), (unsigned)(n - at < 65535 ? n - at : 65535));

        MT_LAUNCH(c, grouped_rows, grid, 32 * WARPS, 0, out, x, w + at, first + at);
    }
}

static void linears(struct mt_backend *be, struct mt_rows x, const struct mt_linear *list,
                    int count, int n)
{
    int cast = MT_F32;

    for (const struct mt_linear *l = list; l < list + count; l++)
        product(cuda_of(be), x, l, n, &cast);
}

void mt_cuda_linears(struct mt_ops *o)
{
    o->linear = mt_cuda_linear;
    o->linears = linears;
}
