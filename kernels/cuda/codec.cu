/*
 * codec.cu: what an audio codec needs besides: convolutions that a session hears piece by piece, in
 * both directions, and the level of a residual quantiser. Windows are moved side by side into
 * scratch, columns [kernel][in] and the oldest first; the sums are linear's.
 */
#include "kernels/cuda/dev.h"

/* ---- streaming convolutions ---- */

/* As a convolution of whole rows: a transposed one takes a row at a time. */
struct window {
    struct mt_rows x;
    const struct mt_rows *past; /* on the device, one a session */
    int kernel, stride, dilation, n_past;
    int rows, outs; /* of x and of the result, a session */
};

static bool window_new(struct mt_cuda *c, struct window *w, const struct mt_conv *v,
                       struct mt_rows x, const struct mt_rows *past, int n, int rows)
{
    *w = {x,
          NULL,
          v->transposed ? v->kernel / v->stride : v->kernel,
          v->transposed ? 1 : v->stride,
          v->transposed ? 1 : v->dilation,
          mt_conv_past(v),
          rows,
          0};
    w->outs = rows / w->stride;
    if (w->n_past > 0)
        w->past = (const struct mt_rows *)mt_stage_copy(c, past, (size_t)n * sizeof(*past));
    return !c->failed;
}

/* Element col of row t of the session, its past counted from -n_past. */
MT_DEV float *window_at(const struct window &w, int64_t session, int64_t t, int col)
{
    if (t < 0)
        return w.past[session].data + (w.n_past + t) * w.past[session].stride + col;
    return w.x.data + (session * w.rows + t) * w.x.stride + col;
}

static __global__ void window_rows(struct mt_rows dst, struct window w)
{
    unsigned pieces = ((unsigned)dst.width + 255) / 256;
    int64_t i = blockIdx.x / pieces, session = i / w.outs;
    int col = (int)(blockIdx.x % pieces * 256 + threadIdx.x);

    if (col >= dst.width)
        return;
    int64_t t = i % w.outs * w.stride - w.n_past + (int64_t)(col / w.x.width) * w.dilation;
    dst.data[i * dst.stride + col] = *window_at(w, session, t, col % w.x.width);
}

/*
 * The last n_past rows of past and x become the past. Grid: sessions, columns / 256; a thread has a
 * column, its rows ascending: what it reads lies further on than what it writes.
 */
static __global__ void keep_past(struct window w)
{
    int64_t session = blockIdx.x;
    int col = (int)(blockIdx.y * blockDim.x + threadIdx.x);

    if (col >= w.x.width)
        return;
    for (int64_t i = 0; i < w.n_past; i++)
        *window_at(w, session, i - w.n_past, col) =
            *window_at(w, session, w.rows - w.n_past + i, col);
}

static void keep(struct mt_cuda *c, const struct window &w, int n)
{
    if (w.n_past > 0)
        MT_LAUNCH(c, keep_past, dim3((unsigned)n, mt_blocks(w.x.width, 256)), 256, 0, w);
}

static int conv_new(struct mt_backend *be, struct mt_mat **out, const struct mt_bytes *b,
                    const struct mt_conv *c)
{
    struct mt_bytes packed;
    void *own;
    int rc;

    *out = NULL;
    if ((rc = mt_conv_pack(&packed, &own, b, c)) < 0)
        return rc;
    rc = be->ops->mat_new(be, out, &packed);
    free(own);
    return rc;
}

static void conv(struct mt_backend *be, struct mt_rows out, struct mt_rows x,
                 const struct mt_mat *m, const struct mt_mat *bias, const struct mt_conv *v,
                 enum mt_act act, struct mt_rows residual, const struct mt_rows *past, int n,
                 int rows, struct mt_rows scratch)
{
    struct mt_cuda *c = cuda_of(be);
    struct window w;

    if (n < 1 || rows < 1 || !window_new(c, &w, v, x, past, n, rows))
        return;
    scratch.width = w.kernel * x.width;
    if (scratch.width == x.width && w.stride == 1) {
        scratch = x;
    } else {
        MT_LAUNCH(c, window_rows, (unsigned)(n * w.outs) * mt_blocks(scratch.width, 256), 256, 0,
                  scratch, w);
    }
    mt_cuda_linear(be, out, scratch, m, bias, act, residual, n * w.outs);
    keep(c, w, n);
}

/* A thread an output, 256 columns of a row a block. */
static __global__ void conv_each_rows(struct mt_rows out, struct window w, struct mt_dmat m, int up)
{
    int width = up * w.x.width;
    unsigned pieces = ((unsigned)width + 255) / 256;
    int64_t i = blockIdx.x / pieces, session = i / w.rows, t = i % w.rows;
    int col = (int)(blockIdx.x % pieces * 256 + threadIdx.x), ch = col % w.x.width;
    double sum = 0;

    if (col >= width)
        return;
    for (int tap = w.kernel - 1; tap >= 0; tap--) /* oldest first */
        sum += (double)*window_at(w, session, t - tap, ch) *
               dev_weight_at(m.type, m.data + ch * m.row_bytes, col / w.x.width + tap * up);
    out.data[i * out.stride + col] = (float)sum;
}

static void conv_each(struct mt_backend *be, struct mt_rows out, struct mt_rows x,
                      const struct mt_mat *m, const struct mt_conv *v, const struct mt_rows *past,
                      int n, int rows)
{
    struct mt_cuda *c = cuda_of(be);
    struct window w;

    if (n < 1 || rows < 1 || !window_new(c, &w, v, x, past, n, rows))
        return;
    MT_LAUNCH(c, conv_each_rows, (unsigned)(n * rows) * mt_blocks(v->stride * x.width, 256), 256, 0,
              out, w, m->d, v->stride);
    keep(c, w, n);
}

/* ---- quantiser ---- */

enum { THREADS = 512 };

/*
 * A block a row: a warp an entry of the table at a time, distances in f64 so that the codes are the
 * CPU's; then the nearest of the warps', and the row gives it up.
 */
static __global__ void __launch_bounds__(THREADS)
    nearest(int32_t *ids, struct mt_rows x, struct mt_dmat table)
{
    __shared__ double least[THREADS / 32];
    __shared__ int32_t which[THREADS / 32];
    float *v = x.data + (int64_t)blockIdx.x * x.stride;
    int warp = (int)threadIdx.x / 32;
    double best = INFINITY;
    int32_t id = 0;

    for (int o = warp; o < table.rows; o += THREADS / 32) {
        const unsigned char *row = table.data + o * table.row_bytes;
        double sum = 0;

        for (int k = (int)dev_lane(); k < table.cols; k += 32) {
            double d = (double)v[k] - dev_weight_at(table.type, row, k);

            sum += d * d;
        }
        sum = warp_sum(sum);
        if (sum < best) { /* ascending: the lowest among equals */
            best = sum;
            id = o;
        }
    }
    if (dev_lane() == 0) {
        least[warp] = best;
        which[warp] = id;
    }
    __syncthreads();
    best = INFINITY;
    id = 0;
    for (int i = 0; i < THREADS / 32; i++)
        if (least[i] < best || (least[i] == best && best < INFINITY && which[i] < id)) {
            best = least[i];
            id = which[i];
        }
    for (int k = (int)threadIdx.x; k < table.cols; k += THREADS)
        v[k] = __fadd_rn(v[k], -dev_weight_at(table.type, table.data + id * table.row_bytes, k));
    if (threadIdx.x == 0)
        ids[blockIdx.x] = id;
}

static void quantize(struct mt_backend *be, int32_t *ids, struct mt_rows x,
                     const struct mt_mat *table, int n)
{
    struct mt_cuda *c = cuda_of(be);
    struct mt_stage s;

    if (n < 1)
        return;
    memset(ids, 0, (size_t)n * sizeof(*ids));
    if (!mt_stage_new(c, &s, (size_t)n * sizeof(*ids)))
        return;
    MT_LAUNCH(c, nearest, (unsigned)n, THREADS, 0, (int32_t *)s.dev, x, table->d);
    if (mt_stage_fetch(c, &s))
        memcpy(ids, s.host, s.bytes);
}

void mt_cuda_codecs(struct mt_ops *o)
{
    o->conv_new = conv_new;
    o->conv = conv;
    o->conv_each = conv_each;
    o->quantize = quantize;
}
