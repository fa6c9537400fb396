/*
 * hot_linear.h: linear. A weight row times a row of x is LANES running sums, columns ascending, and
 * then vsums' tree: that is the definition of an element's bits, and every shape of tile keeps it.
 *
 * Few rows of x: tiles run down whole weight rows and decode in registers, so that the weights
 * stream once at memory speed. More rows, or weights in blocks: GROUP weight rows are decoded PIECE
 * columns at a time into L1 and meet up to BLOCK rows of x; the running sums wait in memory between
 * pieces, whole vectors, unrounded. Threads take groups of outputs. Scratch, in floats: GROUP *
 * PIECE + GROUP * BLOCK * LANES + BLOCK * GROUP.
 */
#define GROUP 8
#define PIECE 512
#define BLOCK 128
/*
 * Up to this many rows of x it is cheaper to decode weights anew for each tile than to store them.
 */
#define FEW (4 * TILE_X)
/* Rows of x in a tile of 4 weight rows: the sums, x and a weight must fit the registers. */
#define TILE_X (LANES == 16 ? 4 : LANES == 8 ? 3 : 2)

struct linear_job {
    struct mt_rows out, x, residual;
    const struct mt_mat *w, *bias;
    enum mt_act act;
    int n;
    const struct mt_xblock *q; /* x as hot_quant.h takes it */
};

/* acc[i * nx + j] += weight row i times x row j over k columns. nw, nx and t are constants. */
FOLD void tile(const int nw, const int nx, const enum mt_dtype t, const char *const *w,
               const float *x, int64_t x_stride, int64_t k, vf *acc)
{
    vf a[16], xv[4];
    int64_t c = 0;

#pragma GCC unroll 16
    for (int i = 0; i < nw * nx; i++)
        a[i] = acc[i];
    for (; c + LANES <= k; c += LANES) {
#pragma GCC unroll 4
        for (int j = 0; j < nx; j++)
            xv[j] = vload(x + j * x_stride + c);
#pragma GCC unroll 8
        for (int i = 0; i < nw; i++) {
            vf wv = vfrom(t, w[i], c);

#pragma GCC unroll 4
            for (int j = 0; j < nx; j++)
                a[i * nx + j] = vfma(wv, xv[j], a[i * nx + j]);
        }
    }
    if (c < k) {
#pragma GCC unroll 4
        for (int j = 0; j < nx; j++)
            xv[j] = vload_part(x + j * x_stride + c, k - c);
#pragma GCC unroll 8
        for (int i = 0; i < nw; i++) {
            vf wv = vfrom_part(t, w[i], c, k - c);

#pragma GCC unroll 4
            for (int j = 0; j < nx; j++)
                a[i * nx + j] = vfma(wv, xv[j], a[i * nx + j]);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < nw * nx; i++)
        acc[i] = a[i];
}

/* The tile of a run-time shape: 8 x 1, or 4 x 1..TILE_X. */
#define TILE(type)                                                                                 \
    static void tile_##type(int nw, int nx, const char *const *w, const float *x, int64_t stride,  \
                            int64_t k, vf *acc)                                                    \
    {                                                                                              \
        if (nw == 8)                                                                               \
            tile(8, 1, type, w, x, stride, k, acc);                                                \
        else if (nx == 1)                                                                          \
            tile(4, 1, type, w, x, stride, k, acc);                                                \
        else if (nx == 2)                                                                          \
            tile(4, 2, type, w, x, stride, k, acc);                                                \
        else if (TILE_X > 2 && nx == 3)                                                            \
            tile(4, TILE_X > 2 ? 3 : 1, type, w, x, stride, k, acc);                               \
        else if (TILE_X > 3)                                                                       \
            tile(4, TILE_X > 3 ? 4 : 1, type, w, x, stride, k, acc);                               \
    }
TILE(MT_F32)
TILE(MT_BF16)
TILE(MT_F16)

static void tile_of(enum mt_dtype t, int nw, int nx, const char *const *w, const float *x,
                    int64_t stride, int64_t k, vf *acc)
{
    if (t == MT_F32)
        tile_MT_F32(nw, nx, w, x, stride, k, acc);
    else if (t == MT_BF16)
        tile_MT_BF16(nw, nx, w, x, stride, k, acc);
    else
        tile_MT_F16(nw, nx, w, x, stride, k, acc);
}

/* Sums of nw * nx accumulators into buf[j][i], j the row of x. */
static void tile_sums(const vf *acc, int nw, int nx, float *buf)
{
    vf a[LANES];
    float s[LANES];

    for (int at = 0; at < nw * nx; at += LANES) {
        for (int i = 0; i < LANES; i++)
            a[i] = at + i < nw * nx ? acc[at + i] : vsplat(0);
        vstore(s, vsums(a));
        for (int i = 0; i < LANES && at + i < nw * nx; i++)
            buf[(at + i) % nx * GROUP + (at + i) / nx] = s[i];
    }
}

/* LANES columns of a row, decoded; t is not constant here. */
static void decode(enum mt_dtype t, float *dst, const char *row, int64_t k0, int64_t n)
{
    int64_t k = 0;

    if (t == MT_F32)
        memcpy(dst, row + 4 * k0, (size_t)n * 4);
    else if (t > MT_FP8)
        mt_quant_decode(dst, t, row, k0, n);
    else if (t == MT_BF16)
        for (; k + LANES <= n; k += LANES)
            vstore(dst + k, vfrom(MT_BF16, row, k0 + k));
    else
        for (; k + LANES <= n; k += LANES)
            vstore(dst + k, vfrom(MT_F16, row, k0 + k));
    if ((t == MT_BF16 || t == MT_F16) && k < n)
        num_decode(dst + k, t, row, k0 + k, n - k);
}

/* buf [rows][GROUP] of sums becomes outputs o.. of x rows r0.. */
static void finish(const struct linear_job *j, float *buf, int64_t o, int64_t r0, int rows)
{
    int width = j->w->rows - o < GROUP ? (int)(j->w->rows - o) : GROUP;
    float bias[GROUP * 2] = {0};

    if (j->bias || j->act != MT_ACT_NONE) {
        for (int i = 0; i < width && j->bias; i++)
            bias[i] = bias[GROUP + i] = j->bias->vec[o + i];
        for (int i = 0; i < rows * GROUP; i += LANES) {
            vf v = vload(buf + i) + vload(bias + i % GROUP);

            vstore(buf + i, vact(j->act, v));
        }
    }
    for (int r = 0; r < rows; r++) {
        float *out = j->out.data + (r0 + r) * j->out.stride + o;
        const float *res =
            j->residual.data ? j->residual.data + (r0 + r) * j->residual.stride + o : NULL;

        for (int i = 0; i < width; i++)
            out[i] = res ? buf[r * GROUP + i] + res[i] : buf[r * GROUP + i];
    }
}

/* Few rows of x: weights straight from memory, once a tile. */
static void group_few(const struct linear_job *j, const char *const *w, int64_t o, float *buf)
{
    enum mt_dtype t = j->w->type;
    vf acc[GROUP * TILE_X];

    if (j->n == 1) {
        memset(acc, 0, sizeof(acc));
        tile_of(t, 8, 1, w, j->x.data, 0, j->w->cols, acc);
        tile_sums(acc, 8, 1, buf);
    }
    for (int64_t r = 0; r < j->n && j->n > 1; r += TILE_X) {
        int nx = j->n - r < TILE_X ? (int)(j->n - r) : TILE_X;

        for (int64_t half = 0; half < GROUP; half += 4) {
            memset(acc, 0, sizeof(acc));
            tile_of(t, 4, nx, w + half, j->x.data + r * j->x.stride, j->x.stride, j->w->cols, acc);
            tile_sums(acc, 4, nx, buf + r * GROUP + half);
        }
    }
    finish(j, buf, o, 0, j->n);
}

/*
 * Fetch 64 bytes of each row from *at on, which moves on, up to `end`: the next piece, or behind
 * the rows' ends that of the next group, comes while this one is at work. A row's piece is too
 * short a stream for the processor to see.
 */
static void ahead(int64_t *at, int64_t end, const char *const *w, int64_t row_bytes)
{
    int64_t from = *at < row_bytes ? *at : *at + (GROUP - 1) * row_bytes;

    if (*at >= end)
        return;
    for (int i = 0; i < GROUP; i++)
        __builtin_prefetch(w[i] + from);
    *at += 64;
}

static void group_many(const struct linear_job *j, const char *const *w, int64_t o, float *scratch)
{
    float *piece = scratch, *buf = scratch + (int64_t)GROUP * PIECE;
    vf *acc = (vf *)(buf + (int64_t)BLOCK * GROUP);
    int64_t cols = j->w->cols;

    for (int r0 = 0; r0 < j->n; r0 += BLOCK) {
        int rows = j->n - r0 < BLOCK ? j->n - r0 : BLOCK;

        memset(acc, 0, (size_t)(rows + TILE_X) * GROUP * sizeof(vf));
        for (int64_t k0 = 0; k0 < cols; k0 += PIECE) {
            int64_t k = cols - k0 < PIECE ? cols - k0 : PIECE;
            const char *wp[GROUP];
            int64_t at = (k0 + k) * j->w->row_bytes / cols;
            int64_t end = at + PIECE * j->w->row_bytes / cols;

            for (int i = 0; i < GROUP; i++) {
                if (j->w->type == MT_F32) {
                    wp[i] = w[i] + 4 * k0;
                } else {
                    decode(j->w->type, piece + (int64_t)i * PIECE, w[i], k0, k);
                    wp[i] = (const char *)(piece + (int64_t)i * PIECE);
                }
            }
            for (int64_t r = 0; r < rows; r += TILE_X) {
                int nx = rows - r < TILE_X ? (int)(rows - r) : TILE_X;
                const float *x = j->x.data + (r0 + r) * j->x.stride + k0;

                ahead(&at, end, w, j->w->row_bytes);
                for (int64_t half = 0; half < GROUP; half += 4)
                    tile_MT_F32(4, nx, wp + half, x, j->x.stride, k,
                                acc + r * GROUP + half * TILE_X);
            }
        }
        for (int64_t r = 0; r < rows; r += TILE_X) {
            int nx = rows - r < TILE_X ? (int)(rows - r) : TILE_X;

            for (int64_t half = 0; half < GROUP; half += 4)
                tile_sums(acc + r * GROUP + half * TILE_X, 4, nx, buf + r * GROUP + half);
        }
        finish(j, buf, o, r0, rows);
    }
}

/* GROUP outputs, group g. */
static void group_of(const struct linear_job *j, int64_t g, float *scratch)
{
    const struct mt_mat *m = j->w;
    const char *w[GROUP];

    for (int i = 0; i < GROUP; i++) /* past the last row the last again: its sums go nowhere */
        w[i] = mat_row(m, g * GROUP + i < m->rows ? g * GROUP + i : m->rows - 1);
    if (j->n <= FEW && m->type < MT_INT8)
        group_few(j, w, g * GROUP, scratch);
    else
        group_many(j, w, g * GROUP, scratch);
}

_Static_assert(GROUP *PIECE + BLOCK * GROUP + (BLOCK + TILE_X) * GROUP * LANES <= MT_SCRATCH_FLOATS,
               "linear's scratch");
