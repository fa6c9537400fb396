/*
 * encoder.cu: what an audio encoder needs: attention inside blocks of a clip, convolutions over
 * time and over time and height (windows unfolded into scratch, the sums are linear's), learned
 * positions and mean pooling.
 */
#include "kernels/cuda/paged.h"
#include "kernels/cuda/tensor.h"

/* ---- spans of a call ---- */

/* A span, and the output rows before it. */
struct dspan {
    int row, n;
    int64_t before;
};

/* On the device, n + 1 of them; the last has only `before`: all rows. NULL after a failure. */
template <class F>
static const struct dspan *spans_to(struct mt_cuda *c, const struct mt_span *spans, int n,
                                    int64_t *rows, F rows_of)
{
    struct mt_stage s;

    *rows = 0;
    if (!mt_stage_new(c, &s, (size_t)(n + 1) * sizeof(struct dspan)))
        return NULL;
    for (int i = 0; i < n; i++) {
        ((struct dspan *)s.host)[i] = {spans[i].row, spans[i].n, *rows};
        *rows += rows_of(spans[i]);
    }
    ((struct dspan *)s.host)[n] = {0, 0, *rows};
    mt_stage_send(c, &s);
    return (const struct dspan *)s.dev;
}

/* The span that output row i belongs to: the last one that begins there or before. */
MT_DEV int span_of(const struct dspan *s, int n, int64_t i)
{
    int lo = 0, hi = n;

    while (hi - lo > 1) {
        int mid = (lo + hi) / 2;

        if (s[mid].before <= i)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

static int64_t conv_length(int64_t n, int kernel, int stride, int pad)
{
    int64_t room = n + 2 * (int64_t)pad - kernel;

    return room < 0 ? 0 : room / stride + 1;
}

/* ---- attention in spans ---- */

struct span_tile {
    int row, n, q0;
};

/* The source of keys that attend() walks over: rows of k and v. */
struct rows_source {
    struct mt_rows o, q, k, v;
    struct span_tile t;
    int head, nq, hd, type, size;
    bool aligned;

    __device__ struct attend_piece piece(int) const
    {
        return {0, t.n, false};
    }

    __device__ const float *query(int i, bool) const
    {
        return q.data + (int64_t)(t.row + t.q0 + i) * q.stride + head * hd;
    }

    __device__ float *out(int i) const
    {
        return o.data + (int64_t)(t.row + t.q0 + i) * o.stride + head * hd;
    }

    __device__ struct attend_part part(int, int) const
    {
        return {NULL, NULL};
    }

    __device__ bool sees(int, const struct attend_piece &, int64_t) const
    {
        return true;
    }

    __device__ struct attend_key key(const struct attend_piece &, int64_t r) const
    {
        return {(const char *)(k.data + (t.row + r) * k.stride + head * hd),
                (const char *)(v.data + (t.row + r) * v.stride + head * hd), 0, 0};
    }
};

/* Grid: tiles, heads. Shared: attend_shared(). */
template <int E>
static __global__ void __launch_bounds__(ATTEND_THREADS)
    attend_spans(struct mt_rows o, struct mt_rows q, struct mt_rows k, struct mt_rows v, int hd,
                 bool aligned, const struct span_tile *tiles)
{
    struct rows_source s = {o,  q,      k, v,      tiles[blockIdx.x], (int)blockIdx.y, 0,
                            hd, MT_F32, 4, aligned};

    s.nq = s.t.n - s.t.q0 < ATTEND_QUERIES ? s.t.n - s.t.q0 : ATTEND_QUERIES;
    attend<E>(s, 0, 1, false);
}

/* ---- the same on tensor cores: a cache that lasts for a call ---- */

enum { LAID = 16, LAY_WARPS = 8 }; /* tokens of its blocks */

/* Grid: spans times eights of the longest one's rows. A warp rounds a row's keys and values. */
static __global__ void lay_keys(struct mt_dkv kv, const struct mt_drun *runs, struct mt_rows k,
                                struct mt_rows v, unsigned pieces)
{
    const struct mt_drun run = runs[blockIdx.x / pieces];
    int i = (int)(blockIdx.x % pieces) * LAY_WARPS + (int)(threadIdx.x / 32), slot;

    if (i >= run.n)
        return;
    const float *from[2] = {k.data + (run.row + i) * k.stride, v.data + (run.row + i) * v.stride};
    char *block = kv_block(kv, run, i, &slot);
    for (int e = 2 * (int)dev_lane(); e < kv.heads * kv.hd; e += 64)
#pragma unroll
        for (int side = 0; side < 2; side++)
            *(unsigned *)(block + kv_at(kv, run, side, e / kv.hd, slot) + 2 * (e % kv.hd)) =
                dev_pack<true>(from[side][e], from[side][e + 1]);
}

/* Spans as sessions that see all of themselves. false: no memory; nothing was queued. */
static bool attend_laid(struct mt_cuda *c, struct mt_rows out, struct mt_rows q, struct mt_rows k,
                        struct mt_rows v, int heads, const struct mt_span *spans, int n_spans)
{
    int hd = q.width / heads, n = 0, longest = 1;
    int64_t blocks = 0, at = 0;
    struct mt_dbatch d;
    struct mt_kv kv = {};

    for (int i = 0; i < n_spans; i++) {
        blocks += (spans[i].n + LAID - 1) / LAID;
        longest = spans[i].n > longest ? spans[i].n : longest;
    }
    kv.s = {1, heads, hd, LAID, MT_BF16};
    kv.half_bytes = (int64_t)heads * LAID * hd * 2;
    kv.block_bytes = kv.layer_bytes = 2 * kv.half_bytes;
    size_t host = (size_t)n_spans * sizeof(struct mt_run) + (size_t)blocks * sizeof(int32_t);
    if (blocks > INT32_MAX || mt_cuda_grow(c, &c->lane->laid, &c->lane->laid_bytes,
                                           (size_t)(blocks * kv.block_bytes)) < 0)
        return false;
    if (host > c->lane->spans_bytes) {
        void *more = realloc(c->lane->spans, host);

        if (!more)
            return false;
        c->lane->spans = more;
        c->lane->spans_bytes = host;
    }
    struct mt_run *run = (struct mt_run *)c->lane->spans;
    int32_t *id = (int32_t *)(run + n_spans);
    for (int64_t i = 0; i < blocks; i++)
        id[i] = (int32_t)i;
    for (int i = 0; i < n_spans; i++) {
        if (spans[i].n < 1)
            continue;
        run[n] = {};
        run[n].row = spans[i].row;
        run[n].n = spans[i].n;
        run[n].view.blocks = id + at;
        run[n].view.ring_blocks = INT32_MAX;
        run[n].view.window = INT64_MAX;
        run[n++].view.see = MT_SEE_CHUNK;
        at += (spans[i].n + LAID - 1) / LAID;
    }
    kv.data = (char *)c->lane->laid;
    if (!n)
        return true;
    const struct mt_batch b = {run[n - 1].row + run[n - 1].n, n, run};
    if (!mt_cuda_batch(c, &kv, &b, 0, &d))
        return true;
    unsigned pieces = mt_blocks(longest, LAY_WARPS);
    MT_LAUNCH(c, lay_keys, pieces * (unsigned)n, 32 * LAY_WARPS, 0, mt_dkv_of(&kv, 0), d.run, k, v,
              pieces);
    c->ops.attention(&c->be, &kv, 0, &b, out, q, {NULL, 0, 0});
    return true;
}

static bool on_words(struct mt_rows r)
{
    return (uintptr_t)r.data % 16 == 0 && r.stride % 4 == 0;
}

static void span_attention(struct mt_backend *be, struct mt_rows out, struct mt_rows q,
                           struct mt_rows k, struct mt_rows v, int heads,
                           const struct mt_span *spans, int n_spans)
{
    struct mt_cuda *c = cuda_of(be);
    int hd = q.width / heads, tiles = 0;
    bool aligned = hd % 4 == 0 && on_words(k) && on_words(v);
    size_t shared = attend_shared(hd);
    struct mt_stage s;

    if (!c->exact && hd % 8 == 0 && hd <= MMA_HEAD &&
        attend_laid(c, out, q, k, v, heads, spans, n_spans))
        return;
    for (int i = 0; i < n_spans; i++)
        tiles += (spans[i].n + ATTEND_QUERIES - 1) / ATTEND_QUERIES;
    if (!tiles || !mt_stage_new(c, &s, (size_t)tiles * sizeof(struct span_tile)))
        return;
    tiles = 0;
    for (int i = 0; i < n_spans; i++)
        for (int q0 = 0; q0 < spans[i].n; q0 += ATTEND_QUERIES)
            ((struct span_tile *)s.host)[tiles++] = {spans[i].row, spans[i].n, q0};
    mt_stage_send(c, &s);
    dim3 grid((unsigned)tiles, (unsigned)heads);
    const struct span_tile *at = (const struct span_tile *)s.dev;
#define LAUNCH(E)                                                                                  \
    do {                                                                                           \
        MT_SHARED_ROOM(c, attend_spans<E>, shared);                                                \
        MT_LAUNCH(c, attend_spans<E>, grid, ATTEND_THREADS, shared, out, q, k, v, hd, aligned,     \
                  at);                                                                             \
    } while (0)
    if (hd <= 64)
        LAUNCH(2);
    else if (hd <= 128)
        LAUNCH(4);
    else if (hd <= 256)
        LAUNCH(8);
    else if (hd <= 512)
        LAUNCH(16);
    else
        mt_cuda_check(c, cudaErrorInvalidValue, "span attention: a head is wider than 512");
#undef LAUNCH
}

/* ---- convolutions ---- */

/* Columns [in][kernel] as W has them: a thread each, 256 of a row a block. */
static __global__ void unfold_rows(struct mt_rows dst, struct mt_rows x, int kernel, int stride,
                                   int pad, const struct dspan *spans, int n_spans)
{
    unsigned pieces = ((unsigned)dst.width + 255) / 256;
    int64_t i = blockIdx.x / pieces;
    int col = (int)(blockIdx.x % pieces * 256 + threadIdx.x);
    const struct dspan s = spans[span_of(spans, n_spans, i)];

    if (col >= dst.width)
        return;
    int64_t t = (i - s.before) * stride - pad + col % kernel;
    dst.data[i * dst.stride + col] =
        t >= 0 && t < s.n ? x.data[(s.row + t) * x.stride + col / kernel] : 0;
}

static void conv1d(struct mt_backend *be, struct mt_rows out, struct mt_rows x,
                   const struct mt_mat *w, const struct mt_mat *bias, int kernel, int stride,
                   int pad, enum mt_act act, const struct mt_span *spans, int n_spans,
                   struct mt_rows scratch)
{
    struct mt_cuda *c = cuda_of(be);
    int64_t rows;
    const struct dspan *s = spans_to(c, spans, n_spans, &rows, [&](struct mt_span p) {
        return conv_length(p.n, kernel, stride, pad);
    });

    if (!s || !rows)
        return;
    scratch.width = x.width * kernel;
    MT_LAUNCH(c, unfold_rows, (unsigned)rows * mt_blocks(scratch.width, 256), 256, 0, scratch, x,
              kernel, stride, pad, s, n_spans);
    mt_cuda_linear(be, out, scratch, w, bias, act, {NULL, 0, 0}, (int)rows);
}

struct image {
    int height, out_height, kernel, stride, pad;
    int64_t first; /* pixel in scratch row 0; pixels count along the height, then over time */
};

/* Row i: the window of pixel first + i, [channel][height][time]. */
static __global__ void unfold_pixels(struct mt_rows dst, struct mt_rows x, struct image m,
                                     const struct dspan *spans, int n_spans)
{
    unsigned pieces = ((unsigned)dst.width + 255) / 256;
    int64_t i = blockIdx.x / pieces, time = (m.first + i) / m.out_height;
    int col = (int)(blockIdx.x % pieces * 256 + threadIdx.x);
    const struct dspan s = spans[span_of(spans, n_spans, time)];

    if (col >= dst.width)
        return;
    int64_t t = (time - s.before) * m.stride - m.pad + col % m.kernel;
    int h = (int)((m.first + i) % m.out_height) * m.stride - m.pad + col / m.kernel % m.kernel;
    int channel = col / (m.kernel * m.kernel);
    dst.data[i * dst.stride + col] =
        t >= 0 && t < s.n && h >= 0 && h < m.height
            ? x.data[(s.row + t) * x.stride + (int64_t)channel * m.height + h]
            : 0;
}

/* The channels of a pixel over its time's row. */
static __global__ void deal_pixels(struct mt_rows out, struct mt_rows sums, struct image m)
{
    unsigned pieces = ((unsigned)sums.width + 255) / 256;
    int64_t i = blockIdx.x / pieces, pixel = m.first + i;
    int col = (int)(blockIdx.x % pieces * 256 + threadIdx.x);

    if (col < sums.width)
        out.data[pixel / m.out_height * out.stride + (int64_t)col * m.out_height +
                 pixel % m.out_height] = sums.data[i * sums.stride + col];
}

static void conv2d(struct mt_backend *be, struct mt_rows out, struct mt_rows x,
                   const struct mt_mat *w, const struct mt_mat *bias, int height, int kernel,
                   int stride, int pad, enum mt_act act, const struct mt_span *spans, int n_spans,
                   struct mt_rows scratch, int scratch_rows)
{
    struct mt_cuda *c = cuda_of(be);
    int64_t times;
    const struct dspan *s = spans_to(c, spans, n_spans, &times, [&](struct mt_span p) {
        return conv_length(p.n, kernel, stride, pad);
    });
    struct image m = {height, (int)conv_length(height, kernel, stride, pad), kernel, stride, pad,
                      0};
    struct mt_rows patch = mt_rows_cols(scratch, 0, w->d.cols);
    struct mt_rows sums = mt_rows_cols(scratch, w->d.cols, w->d.rows);

    for (int64_t pixels = s ? times * m.out_height : 0; m.first < pixels; m.first += scratch_rows) {
        int n = (int)(pixels - m.first < scratch_rows ? pixels - m.first : scratch_rows);

        MT_LAUNCH(c, unfold_pixels, (unsigned)n * mt_blocks(patch.width, 256), 256, 0, patch, x, m,
                  s, n_spans);
        mt_cuda_linear(be, sums, patch, w, bias, act, {NULL, 0, 0}, n);
        MT_LAUNCH(c, deal_pixels, (unsigned)n * mt_blocks(sums.width, 256), 256, 0, out, sums, m);
    }
}

/* ---- positions and means ---- */

static __global__ void add_table(struct mt_rows x, struct mt_dmat table, const struct dspan *spans,
                                 int n_spans)
{
    unsigned pieces = ((unsigned)table.cols + 255) / 256;
    int64_t i = blockIdx.x / pieces;
    int col = (int)(blockIdx.x % pieces * 256 + threadIdx.x);
    const struct dspan s = spans[span_of(spans, n_spans, i)];
    int64_t r = i - s.before;

    if (col >= table.cols)
        return;
    float *y = x.data + (s.row + r) * x.stride + col;
    *y = __fadd_rn(*y, dev_weight_at(table.type, table.data + r * table.row_bytes, col));
}

static void add_positions(struct mt_backend *be, struct mt_rows x, const struct mt_mat *table,
                          const struct mt_span *spans, int n_spans)
{
    struct mt_cuda *c = cuda_of(be);
    int64_t rows;
    const struct dspan *s =
        spans_to(c, spans, n_spans, &rows, [](struct mt_span p) { return (int64_t)p.n; });

    if (s && rows)
        MT_LAUNCH(c, add_table, (unsigned)rows * mt_blocks(table->d.cols, 256), 256, 0, x, table->d,
                  s, n_spans);
}

static __global__ void mean_groups(struct mt_rows out, struct mt_rows x, int size,
                                   const struct dspan *spans, int n_spans)
{
    unsigned pieces = ((unsigned)x.width + 255) / 256;
    int64_t i = blockIdx.x / pieces;
    int col = (int)(blockIdx.x % pieces * 256 + threadIdx.x);
    const struct dspan s = spans[span_of(spans, n_spans, i)];

    if (col >= x.width)
        return;
    const float *a = x.data + (s.row + (i - s.before) * size) * x.stride + col;
    float sum = a[0];
    for (int64_t r = 1; r < size; r++)
        sum += a[r * x.stride];
    out.data[i * out.stride + col] = __fdiv_rn(sum, (float)size);
}

static void mean_rows(struct mt_backend *be, struct mt_rows out, struct mt_rows x, int size,
                      const struct mt_span *spans, int n_spans)
{
    struct mt_cuda *c = cuda_of(be);
    int64_t rows;
    const struct dspan *s =
        spans_to(c, spans, n_spans, &rows, [&](struct mt_span p) { return (int64_t)(p.n / size); });

    if (s && rows)
        MT_LAUNCH(c, mean_groups, (unsigned)rows * mt_blocks(x.width, 256), 256, 0, out, x, size, s,
                  n_spans);
}

void mt_cuda_encoders(struct mt_ops *o)
{
    o->span_attention = span_attention;
    o->conv1d = conv1d;
    o->conv2d = conv2d;
    o->add_positions = add_positions;
    o->mean_rows = mean_rows;
}
