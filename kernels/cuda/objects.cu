/*
 * objects.cu: weights, activations and the KV pool in the device's memory, and the operations that
 * only move rows.
 */
#include "kernels/cuda/kv.h"

#include <errno.h>

/* ---- weights ---- */

/* One element a thread. */
static __global__ void decode_row(float *dst, struct mt_dmat m)
{
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);

    if (i < m.cols)
        dst[i] = dev_weight_at(m.type, m.data, i);
}

static void mat_free(struct mt_backend *be, struct mt_mat *m)
{
    if (!m)
        return;
    be->mats_held -= m->held;
    mt_weight_free(cuda_of(be), m->in);
    free(m);
}

/* Room for it, and what is known of it. */
static int lay(struct mt_backend *be, struct mt_mat **out, const struct mt_bytes *b, char **data,
               int64_t *bytes)
{
    struct mt_mat *m;
    int64_t row_bytes;
    size_t row_f32 = b->rows == 1 ? (size_t)b->cols * sizeof(float) : 0, vec_at;

    *out = NULL;
    if (mt_dtype_scaled(b->type) || b->type >= MT_DTYPES)
        return -ENOTSUP;
    row_bytes = mt_dtype_row_bytes(b->type, b->cols);
    if (b->rows < 1 || b->cols < 1 || b->rows > INT_MAX || b->cols > INT_MAX || row_bytes < 0)
        return -EINVAL;
    if (__builtin_mul_overflow(b->rows, row_bytes, bytes) ||
        !(m = (struct mt_mat *)calloc(1, sizeof(*m))))
        return -ENOMEM;
    vec_at = ((size_t)*bytes + 255) / 256 * 256;
    if (!(*data = (char *)mt_weight_new(cuda_of(be), &m->in, vec_at + row_f32))) {
        free(m);
        return -ENOMEM;
    }
    m->d = {(const unsigned char *)*data, (int)b->type, (int)b->rows, (int)b->cols, row_bytes};
    m->vec = row_f32 ? (float *)(*data + vec_at) : NULL;
    m->held = *bytes;
    be->mats_held += *bytes;
    *out = m;
    return 0;
}

/* Its bytes are on their way. */
static void finish(struct mt_cuda *c, struct mt_mat *m)
{
    mt_cuda_arrange(c, &m->d);
    if (m->vec)
        MT_LAUNCH(c, decode_row, mt_blocks(m->d.cols, 256), 256, 0, m->vec, m->d);
}

static int mat_new(struct mt_backend *be, struct mt_mat **out, const struct mt_bytes *b)
{
    char *data;
    int64_t bytes;
    int rc = b->data ? lay(be, out, b, &data, &bytes) : -EINVAL;

    if (rc < 0)
        return rc;
    if (!mt_weight_put(cuda_of(be), data, (const char *)b->data, (size_t)bytes)) {
        cudaGetLastError();
        mat_free(be, *out);
        *out = NULL;
        return -ENOMEM;
    }
    finish(cuda_of(be), *out);
    return 0;
}

/* An element a thread: mt_recipe_make's bits. */
static __global__ void make_elements(void *dst, int type, struct mt_recipe r, int64_t first,
                                     int64_t n)
{
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, at = first + i;

    if (i >= n)
        return;
    uint64_t word = dev_mix64(r.key + (uint64_t)(at / 4)) >> at % 4 * 16;
    float v = __fadd_rn(__fmul_rn((float)(2 * (int)(int16_t)(word & 0xffff) + 1), r.step), r.mean);

    if (type == MT_F32)
        ((float *)dst)[i] = v;
    else
        ((uint16_t *)dst)[i] = type == MT_BF16 ? dev_to_bf16(v) : dev_to_f16(v);
}

static int mat_make(struct mt_backend *be, struct mt_mat **out, const struct mt_bytes *b,
                    const struct mt_recipe *r, int64_t first)
{
    struct mt_cuda *c = cuda_of(be);
    char *data;
    int64_t bytes;
    int rc = b->type <= MT_BF16 ? lay(be, out, b, &data, &bytes) : -ENOTSUP;

    if (rc < 0)
        return rc;
    MT_LAUNCH(c, make_elements, mt_blocks(b->rows * b->cols, 256), 256, 0, data, (int)b->type, *r,
              first, b->rows * b->cols);
    finish(c, *out);
    return 0;
}

static bool mat_borrows(const struct mt_mat *m)
{
    (void)m;
    return false;
}

/* ---- activations ---- */

/* Rows begin on 64 bytes, as the CPU's do: two sectors, and what cuBLAS wants for wide loads. */
static int64_t row_stride(int width)
{
    return ((int64_t)width + 15) / 16 * 16;
}

static int64_t rows_bytes(const struct mt_backend *be, int64_t n, int width)
{
    (void)be;
    return n * row_stride(width) * (int64_t)sizeof(float);
}

static int rows_new(struct mt_backend *be, struct mt_rows *out, int64_t n, int width)
{
    struct mt_cuda *c = cuda_of(be);
    int64_t stride, bytes;
    struct mt_held *h;
    void *data;
    int rc;

    *out = {NULL, 0, 0};
    if (n < 1 || width < 1)
        return -EINVAL;
    stride = row_stride(width);
    if (__builtin_mul_overflow(n, stride * (int64_t)sizeof(float), &bytes))
        return -ENOMEM;
    for (struct mt_lane *l = c->lanes; l < c->lanes + MT_LANES; l++) {
        l->cast_of.data = NULL;
        if ((rc = mt_cuda_grow(c, &l->cast, &l->cast_bytes, (size_t)bytes / 2)) < 0)
            return rc;
    }
    if (!(h = (struct mt_held *)malloc(sizeof(*h))))
        return -ENOMEM;
    if ((rc = mt_cuda_alloc(c, &data, (size_t)bytes)) < 0) {
        free(h);
        return rc;
    }
    *h = {c->held, (float *)data, bytes};
    c->held = h;
    be->rows_held += bytes;
    mt_cuda_check(c, cudaMemsetAsync(data, 0, (size_t)bytes, mt_cuda_stream(c)), "zeroing rows");
    if (c->visible)
        mt_cuda_wait(c);
    *out = {(float *)data, stride, width};
    return 0;
}

static void rows_free(struct mt_backend *be, struct mt_rows *r)
{
    struct mt_held **at = &cuda_of(be)->held, *h;

    if (!r->data)
        return;
    while ((h = *at) && h->data != r->data)
        at = &h->next;
    if (h) {
        *at = h->next;
        be->rows_held -= h->bytes;
        free(h);
    }
    mt_cuda_release(cuda_of(be), r->data);
    *r = {NULL, 0, 0};
}

static void rows_put(struct mt_backend *be, struct mt_rows dst, const float *src, int64_t n)
{
    struct mt_cuda *c = cuda_of(be);
    size_t row = (size_t)dst.width * sizeof(float);
    struct mt_stage s = {NULL, NULL, 0};
    bool small = (size_t)n * row <= c->lane->ring_bytes / 4;

    c->lane->cast_of.data = NULL;
    if (n < 1 || c->failed || (small && !mt_stage_new(c, &s, (size_t)n * row)))
        return;
    if (small) {
        memcpy(s.host, src, s.bytes);
        mt_cuda_copy(c, dst.data, (size_t)dst.stride * sizeof(float), s.host, row, row, (size_t)n,
                     cudaMemcpyHostToDevice, "rows to the device");
    } else {
        mt_cuda_check(c,
                      cudaMemcpy2DAsync(dst.data, (size_t)dst.stride * sizeof(float), src, row, row,
                                        (size_t)n, cudaMemcpyHostToDevice, mt_cuda_stream(c)),
                      "rows to the device");
    }
    if (!small || c->visible)
        mt_cuda_wait(c);
}

static void rows_get(struct mt_backend *be, float *dst, struct mt_rows src, int64_t n)
{
    struct mt_cuda *c = cuda_of(be);
    size_t row = (size_t)src.width * sizeof(float);

    if (n < 1)
        return;
    if (!c->failed)
        mt_cuda_check(c,
                      cudaMemcpy2DAsync(dst, row, src.data, (size_t)src.stride * sizeof(float), row,
                                        (size_t)n, cudaMemcpyDeviceToHost, mt_cuda_stream(c)),
                      "rows from the device");
    if (!mt_cuda_wait(c))
        for (int64_t i = 0; i < n * src.width; i++)
            dst[i] = NAN;
}

/* ---- moves ---- */

/* A block takes 256 columns of a row. */
static __global__ void gather_rows(struct mt_rows dst, struct mt_rows src, const int *index,
                                   int pieces)
{
    int64_t r = blockIdx.x / (unsigned)pieces;
    int col = (int)(blockIdx.x % (unsigned)pieces * blockDim.x + threadIdx.x);

    if (col < dst.width)
        dst.data[r * dst.stride + col] = src.data[index[r] * src.stride + col];
}

static void gather(struct mt_backend *be, struct mt_rows dst, struct mt_rows src, const int *index,
                   int n)
{
    struct mt_cuda *c = cuda_of(be);
    int pieces = (dst.width + 255) / 256;
    int *at;

    if (n < 1 || !(at = (int *)mt_stage_copy(c, index, (size_t)n * sizeof(*at))))
        return;
    MT_LAUNCH(c, gather_rows, (unsigned)(n * pieces), 256, 0, dst, src, at, pieces);
}

static __global__ void embed_rows(struct mt_rows out, struct mt_dmat table, const int32_t *ids,
                                  int pieces, bool add)
{
    int64_t r = blockIdx.x / (unsigned)pieces;
    int col = (int)(blockIdx.x % (unsigned)pieces * blockDim.x + threadIdx.x);
    int32_t id = ids[r];
    float *y = out.data + r * out.stride + col;

    if (id < 0 || col >= table.cols)
        return;
    float v = dev_weight_at(table.type, table.data + id * table.row_bytes, col);
    *y = add ? __fadd_rn(*y, v) : v;
}

static void look_up(struct mt_backend *be, struct mt_rows out, const struct mt_mat *table,
                    const int32_t *ids, int n, bool add)
{
    struct mt_cuda *c = cuda_of(be);
    int pieces = (table->d.cols + 255) / 256;
    int32_t *at;

    if (n < 1 || !(at = (int32_t *)mt_stage_copy(c, ids, (size_t)n * sizeof(*at))))
        return;
    MT_LAUNCH(c, embed_rows, (unsigned)(n * pieces), 256, 0, out, table->d, at, pieces, add);
}

static void embed(struct mt_backend *be, struct mt_rows out, const struct mt_mat *table,
                  const int32_t *ids, int n)
{
    look_up(be, out, table, ids, n, false);
}

static void embed_add(struct mt_backend *be, struct mt_rows out, const struct mt_mat *table,
                      const int32_t *ids, int n)
{
    look_up(be, out, table, ids, n, true);
}

/* ---- the pool ---- */

static int kv_new(struct mt_backend *be, struct mt_kv **out, const struct mt_kv_shape *s,
                  int64_t n_blocks)
{
    int64_t block = mt_kv_block_bytes(s), bytes;
    struct mt_kv *kv;
    void *data;

    *out = NULL;
    if (block < 0 || n_blocks < 1)
        return -EINVAL;
    if (s->head_dim > MT_CUDA_HEAD)
        return -ENOTSUP;
    if (n_blocks > INT32_MAX || __builtin_mul_overflow(block, n_blocks, &bytes) ||
        !(kv = (struct mt_kv *)calloc(1, sizeof(*kv))))
        return -ENOMEM;
    if (mt_cuda_alloc(cuda_of(be), &data, (size_t)bytes) < 0) {
        free(kv);
        return -ENOMEM;
    }
    kv->s = *s;
    kv->data = (char *)data;
    kv->bytes = (size_t)bytes;
    kv->block_bytes = block;
    kv->layer_bytes = block / s->layers;
    kv->half_bytes =
        (int64_t)s->kv_heads * s->block_tokens * s->head_dim * (int64_t)mt_dtype_size(s->type);
    *out = kv;
    return 0;
}

static void kv_free(struct mt_backend *be, struct mt_kv *kv)
{
    if (!kv)
        return;
    mt_cuda_release(cuda_of(be), kv->data);
    free(kv);
}

/* A block a token: all layers, heads, K and V, as bytes. runs: where to, where from. */
static __global__ void copy_tokens(struct mt_dkv to, struct mt_dkv from, const struct mt_drun *runs,
                                   int layers)
{
    const struct mt_drun dst = runs[0], src = runs[1];
    int bytes = from.hd * src.size, parts = layers * 2 * from.heads;

    for (int k = 0; k < parts; k++) {
        int head = k % from.heads, side = k / from.heads % 2, at, slot;

        to.layer = from.layer = k / from.heads / 2;
        char *new_block = kv_block(to, dst, blockIdx.x, &at);
        const char *old = kv_block(from, src, blockIdx.x, &slot);
        for (int i = (int)threadIdx.x; i < bytes; i += (int)blockDim.x)
            new_block[kv_at(to, dst, side, head, at) + i] =
                old[kv_at(from, src, side, head, slot) + i];
        if (dev_scaled(src.type) && threadIdx.x < 4)
            new_block[kv_scale_at(to, dst, side, head, at) + threadIdx.x] =
                old[kv_scale_at(from, src, side, head, slot) + threadIdx.x];
    }
}

static void kv_copy(struct mt_backend *be, struct mt_kv *dst, const struct mt_kv_view *to,
                    const struct mt_kv *src, const struct mt_kv_view *from, int64_t n)
{
    struct mt_cuda *c = cuda_of(be);
    struct mt_run run[2] = {{0, (int)n, 0, *to}, {0, (int)n, 0, *from}};
    struct mt_drun two[2];
    struct mt_stage s;
    size_t tables[2];
    char *at;

    if (n < 1)
        return;
    for (int i = 0; i < 2; i++)
        tables[i] =
            (size_t)mt_cuda_table(&run[i], (i ? src : dst)->s.block_tokens) * sizeof(int32_t);
    if (!mt_stage_new(c, &s, sizeof(two) + tables[0] + tables[1]))
        return;
    at = s.host + sizeof(two);
    for (int i = 0; i < 2; i++) {
        mt_cuda_run(&two[i], &run[i], i ? src : dst);
        two[i].blocks = (const int32_t *)(s.dev + (at - s.host));
        memcpy(at, run[i].view.blocks, tables[i]);
        at += tables[i];
    }
    memcpy(s.host, two, sizeof(two));
    mt_stage_send(c, &s);
    MT_LAUNCH(c, copy_tokens, (unsigned)n, 128, 0, mt_dkv_of(dst, 0), mt_dkv_of(src, 0),
              (const struct mt_drun *)s.dev, src->s.layers);
}

/* A block a token, as kv_get has its bytes: one piece a head of K or V of a layer. */
static __global__ void move_tokens(struct mt_dkv kv, const struct mt_drun *run, int layers,
                                   char *bytes, int64_t token_bytes, bool put)
{
    const struct mt_drun &r = run[0];
    int each = kv.hd * r.size, scale = dev_scaled(r.type) ? 4 : 0, parts = layers * 2 * kv.heads;

    for (int k = 0; k < parts; k++) {
        int head = k % kv.heads, side = k / kv.heads % 2, slot;
        char *host = bytes + blockIdx.x * token_bytes + (int64_t)k * (each + scale);

        kv.layer = k / kv.heads / 2;
        char *block = kv_block(kv, r, r.index + blockIdx.x, &slot);
        for (int i = (int)threadIdx.x; i < each + scale; i += (int)blockDim.x) {
            char *x = block + (i < each ? kv_at(kv, r, side, head, slot) + i
                                        : kv_scale_at(kv, r, side, head, slot) + i - each);
            if (put)
                *x = host[i];
            else
                host[i] = *x;
        }
    }
}

/* As many tokens at once as a piece of the ring holds, one at least. */
static int kv_move(struct mt_cuda *c, const struct mt_kv *kv, const struct mt_kv_view *view,
                   int64_t first, int64_t n, char *out, const char *in)
{
    int64_t token = kv->block_bytes / kv->s.block_tokens, most = (1 << 20) / token, some;
    size_t head = 256, bytes;

    most = most < 1 ? 1 : most;
    for (int64_t at = 0; at < n; at += some) {
        some = n - at < most ? n - at : most;
        struct mt_run run = {0, (int)some, first + at, *view};
        size_t table = (size_t)mt_cuda_table(&run, kv->s.block_tokens) * sizeof(int32_t);
        struct mt_stage s, data;

        table = (table + 255) / 256 * 256;
        bytes = (size_t)(some * token);
        if (!mt_stage_new(c, &s, head + table + bytes))
            return -EIO;
        mt_cuda_run((struct mt_drun *)s.host, &run, kv);
        ((struct mt_drun *)s.host)->blocks = (const int32_t *)(s.dev + head);
        memcpy(s.host + head, view->blocks,
               (size_t)mt_cuda_table(&run, kv->s.block_tokens) * sizeof(int32_t));
        data = {s.host + head + table, s.dev + head + table, bytes};
        if (in)
            memcpy(data.host, in + at * token, bytes);
        else
            s.bytes = head + table;
        mt_stage_send(c, &s);
        MT_LAUNCH(c, move_tokens, (unsigned)some, 128, 0, mt_dkv_of(kv, 0),
                  (const struct mt_drun *)s.dev, kv->s.layers, data.dev, token, in != NULL);
        if (!out)
            continue;
        if (!mt_stage_fetch(c, &data))
            return -EIO;
        memcpy(out + at * token, data.host, bytes);
    }
    return c->failed ? -EIO : 0;
}

static int kv_get(struct mt_backend *be, const struct mt_kv *kv, const struct mt_kv_view *view,
                  int64_t first, int64_t n, void *bytes)
{
    return kv_move(cuda_of(be), kv, view, first, n, (char *)bytes, NULL);
}

static int kv_put(struct mt_backend *be, struct mt_kv *kv, const struct mt_kv_view *view,
                  int64_t first, int64_t n, const void *bytes)
{
    return kv_move(cuda_of(be), kv, view, first, n, NULL, (const char *)bytes);
}

void mt_cuda_objects(struct mt_ops *o)
{
    o->mat_new = mat_new;
    o->mat_make = mat_make;
    o->mat_free = mat_free;
    o->mat_borrows = mat_borrows;
    o->rows_new = rows_new;
    o->rows_free = rows_free;
    o->rows_bytes = rows_bytes;
    o->rows_put = rows_put;
    o->rows_get = rows_get;
    o->gather = gather;
    o->kv_new = kv_new;
    o->kv_free = kv_free;
    o->kv_copy = kv_copy;
    o->kv_get = kv_get;
    o->kv_put = kv_put;
    o->embed = embed;
    o->embed_add = embed_add;
}
