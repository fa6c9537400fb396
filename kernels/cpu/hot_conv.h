/*
 * hot_conv.h: the sums of a convolution. Its channels and kernels can be a few numbers long, where
 * linear's running sums would be mostly their own ends; and its weights are packed anyway. So lanes
 * are outputs here: an element is one running sum, columns ascending, whatever the tile.
 *
 * Packed: panels of up to PANEL outputs, a last one rounded up to whole vectors; in a panel
 * [column][output], zeros behind the last. ROWS rows of x meet DEPTH columns of a panel at a time,
 * from the cache; their sums wait in scratch between, unrounded.
 */
#if LANES == 16
#define PANEL_VECTORS 4
#else
#define PANEL_VECTORS 2
#endif
#define PANEL      (PANEL_VECTORS * LANES)
#define CONV_ROWS  48
#define CONV_DEPTH 256
#define CONV_TILE  6 /* rows: their sums, a column of weights and a number must fit the registers */

/* sum[r][i] += x[r][c] * w[c][i] over n columns. rows and vectors are constants. */
FOLD void conv_tile(const int rows, const int vectors, const float *const *x, const float *w,
                    int64_t n, float *sum)
{
    vf a[CONV_TILE * PANEL_VECTORS], wv[PANEL_VECTORS];

#pragma GCC unroll 24
    for (int i = 0; i < rows * vectors; i++)
        a[i] = vload(sum + (int64_t)i / vectors * PANEL + (int64_t)i % vectors * LANES);
    for (int64_t c = 0; c < n; c++, w += vectors * LANES) {
#pragma GCC unroll 4
        for (int i = 0; i < vectors; i++)
            wv[i] = vload(w + (int64_t)i * LANES);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            vf v = vsplat(x[r][c]);

#pragma GCC unroll 4
            for (int i = 0; i < vectors; i++)
                a[r * vectors + i] = vfma(v, wv[i], a[r * vectors + i]);
        }
    }
#pragma GCC unroll 24
    for (int i = 0; i < rows * vectors; i++)
        vstore(sum + (int64_t)i / vectors * PANEL + (int64_t)i % vectors * LANES, a[i]);
}

#define CONV_TILES(rows)                                                                           \
    static void conv_tile_##rows(int vectors, const float *const *x, const float *w, int64_t n,    \
                                 float *sum)                                                       \
    {                                                                                              \
        if (vectors == 1)                                                                          \
            conv_tile(rows, 1, x, w, n, sum);                                                      \
        else if (vectors == 2)                                                                     \
            conv_tile(rows, 2, x, w, n, sum);                                                      \
        else if (vectors == 3)                                                                     \
            conv_tile(rows, PANEL_VECTORS > 2 ? 3 : 1, x, w, n, sum);                              \
        else                                                                                       \
            conv_tile(rows, PANEL_VECTORS, x, w, n, sum);                                          \
    }
/* NOLINTBEGIN(bugprone-branch-clone): where a panel is few vectors, the branches are the same. */
CONV_TILES(2)
CONV_TILES(6)
/* NOLINTEND(bugprone-branch-clone) */

/* Sums of one row to outputs o… of `width`. */
static void conv_finish(const struct linear_job *j, const float *sum, int64_t row, int64_t o,
                        int width)
{
    float *out = j->out.data + row * j->out.stride + o;
    const float *res = j->residual.data ? j->residual.data + row * j->residual.stride + o : NULL;
    const float *bias = j->bias ? j->bias->vec + o : NULL;

    for (int i = 0; i < width; i += LANES) {
        int n = width - i < LANES ? width - i : LANES;
        vf v = vload(sum + i);

        if (bias)
            v += n == LANES ? vload(bias + i) : vload_part(bias + i, n);
        v = vact(j->act, v);
        if (res)
            v += n == LANES ? vload(res + i) : vload_part(res + i, n);
        if (n == LANES)
            vstore(out + i, v);
        else
            vstore_part(out + i, v, n);
    }
}

struct conv_run {
    struct linear_job j;
    struct mt_scratch *scratch;
    int64_t row_blocks;
};

/* Up to CONV_ROWS rows meet a panel. */
static void conv_block(const struct linear_job *j, int64_t row, int rows, int64_t o, float *sum)
{
    int width = j->w->rows - o < PANEL ? (int)(j->w->rows - o) : PANEL;
    int vectors = (width + LANES - 1) / LANES;
    const float *w = (const float *)j->w->data + o * j->w->cols, *x[CONV_TILE];

    memset(sum, 0, sizeof(float) * PANEL * (size_t)(rows + 1));
    for (int64_t c = 0; c < j->w->cols; c += CONV_DEPTH) {
        int64_t n = j->w->cols - c < CONV_DEPTH ? j->w->cols - c : CONV_DEPTH;

        for (int r = 0; r < rows;) {
            int tile = rows - r >= CONV_TILE ? CONV_TILE : 2;

            for (int i = 0; i < tile;
                 i++) { /* past the last row that again: its sum goes nowhere */
                int at = r + i < rows ? r + i : rows - 1;

                x[i] = j->x.data + (row + at) * j->x.stride + c;
            }
            if (tile == CONV_TILE)
                conv_tile_6(vectors, x, w + c * vectors * LANES, n, sum + (int64_t)r * PANEL);
            else
                conv_tile_2(vectors, x, w + c * vectors * LANES, n, sum + (int64_t)r * PANEL);
            r += tile;
        }
    }
    for (int r = 0; r < rows; r++)
        conv_finish(j, sum + (int64_t)r * PANEL, row + r, o, width);
}

static void conv_run(void *arg, int thread, int64_t begin, int64_t end)
{
    const struct conv_run *c = arg;

    for (int64_t i = begin; i < end; i++) { /* rows of one panel follow each other */
        int64_t row = i % c->row_blocks * CONV_ROWS;
        int rows = c->j.n - row < CONV_ROWS ? (int)(c->j.n - row) : CONV_ROWS;

        conv_block(&c->j, row, rows, i / c->row_blocks * PANEL, c->scratch[thread].f);
    }
}

static void conv_sums(struct mt_backend *be, struct mt_rows out, struct mt_rows x,
                      const struct mt_mat *w, const struct mt_mat *bias, enum mt_act act,
                      struct mt_rows residual, int n)
{
    struct conv_run c = {{out, x, residual, w, bias, act, n, NULL}, cpu_of(be)->scratch, 0};

    c.row_blocks = (n + CONV_ROWS - 1) / CONV_ROWS;
    if (n > 0)
        mt_par(cpu_of(be), c.row_blocks * ((w->rows + PANEL - 1) / PANEL),
               w->cols * PANEL * (n < CONV_ROWS ? n : CONV_ROWS), conv_run, &c);
}

static void conv(struct mt_backend *be, struct mt_rows out, struct mt_rows x,
                 const struct mt_mat *w, const struct mt_mat *bias, const struct mt_conv *c,
                 enum mt_act act, struct mt_rows residual, const struct mt_rows *past, int n,
                 int rows, struct mt_rows scratch)
{
    mt_conv_by(be, conv_sums, out, x, w, bias, c, act, residual, past, n, rows, scratch);
}

/* rows of [rows, cols] into panels, as f32. */
static int conv_new(struct mt_backend *be, struct mt_mat **out, const struct mt_bytes *b,
                    const struct mt_conv *c)
{
    struct mt_mat *plain, *m = NULL;
    int rc = mt_scalar_conv_new(be, &plain, b, c);
    float *packed = NULL, *row = NULL;

    *out = NULL;
    if (rc < 0)
        return rc;
    m = calloc(1, sizeof(*m));
    packed = mt_alloc((size_t)((plain->rows + LANES - 1) / LANES * LANES),
                      mt_mul((size_t)plain->cols, sizeof(float)));
    row = malloc((size_t)plain->cols * sizeof(float));
    if (!m || !packed || !row) {
        free(m);
        free(packed);
        rc = -ENOMEM;
    } else {
        for (int64_t o = 0; o < plain->rows; o++) {
            int64_t first = o / PANEL * PANEL, left = plain->rows - first;
            int64_t width = left < PANEL ? (left + LANES - 1) / LANES * LANES : PANEL;

            num_decode(row, plain->type, mat_row(plain, o), 0, plain->cols);
            for (int64_t k = 0; k < plain->cols; k++)
                packed[first * plain->cols + k * width + o - first] = row[k];
        }
        *m = (struct mt_mat){.type = MT_F32,
                             .rows = plain->rows,
                             .cols = plain->cols,
                             .data = packed,
                             .own = packed};
        *out = m;
    }
    free(row);
    be->ops->mat_free(be, plain);
    return rc;
}

_Static_assert((CONV_ROWS + 2) * PANEL <= MT_SCRATCH_FLOATS, "conv's scratch");
