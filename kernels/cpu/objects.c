/*
 * objects.c: weights, activations and the KV pool of the CPU backend, and the operations that only
 * move rows. Weights stay where they are mapped; the pool is mapped and costs memory when touched.
 */
#include "kernels/cpu/cpu.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/*
 * Zeroed pages, committed when touched. More than the machine's memory is refused here: where the
 * system overcommits without limit, the promise would be broken later by a kill.
 */
static void *pages_new(size_t bytes)
{
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    void *p;

    if (pages > 0 && size > 0 && bytes / (size_t)size >= (size_t)pages)
        return NULL;
    p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

/* Room for rows of x in blocks. */
static int grow_x(struct mt_cpu *c, int64_t blocks)
{
    struct mt_xblock *x;

    if (blocks <= c->x_blocks)
        return 0;
    x = mt_alloc(MT_X_ROWS + MT_X_SPARE, mt_mul((size_t)blocks, sizeof(*x)));
    if (!x)
        return -ENOMEM;
    free(c->x);
    c->x = x;
    c->x_blocks = blocks;
    return 0;
}

static int mat_new(struct mt_backend *be, struct mt_mat **out, const struct mt_bytes *b)
{
    struct mt_cpu *c = cpu_of(be);
    struct mt_mat *m;
    int64_t row_bytes;

    *out = NULL;
    if (mt_dtype_scaled(b->type) || b->type >= MT_DTYPES)
        return -ENOTSUP;
    row_bytes = mt_dtype_row_bytes(b->type, b->cols);
    if (!b->data || b->rows < 1 || b->cols < 1 || b->rows > INT_MAX || b->cols > INT_MAX ||
        row_bytes < 0)
        return -EINVAL;
    if (!(m = calloc(1, sizeof(*m))))
        return -ENOMEM;
    *m = (struct mt_mat){
        .type = b->type, .rows = b->rows, .cols = b->cols, .row_bytes = row_bytes, .data = b->data};
    if (b->rows == 1) {
        if (!(m->vec = mt_alloc((size_t)b->cols, sizeof(float)))) {
            free(m);
            return -ENOMEM;
        }
        num_decode(m->vec, m->type, m->data, 0, m->cols);
    }
    if (c->packs && b->type > MT_FP8 && !b->looked_up &&
        (grow_x(c, b->cols / PACK_COLS) < 0 || mt_pack_new(&m->pack, c, b) < 0)) {
        free(m->vec);
        free(m);
        return -ENOMEM;
    }
    be->mats_held += pack_bytes(&m->pack);
    *out = m;
    return 0;
}

static void mat_free(struct mt_backend *be, struct mt_mat *m)
{
    if (!m)
        return;
    be->mats_held -= pack_bytes(&m->pack);
    mt_pack_free(&m->pack, cpu_of(be));
    free(m->vec);
    free(m->own);
    free(m);
}

static bool mat_borrows(const struct mt_mat *m)
{
    return pack_bytes(&m->pack) == 0;
}

/* Room for sampling from rows of this width on every thread. */
static int grow_width(struct mt_cpu *c, int width)
{
    size_t n = mt_mul((size_t)c->threads, (size_t)width);
    int32_t *pick;
    double *weight;

    if (width <= c->width)
        return 0;
    pick = malloc(mt_mul(n, sizeof(*pick)));
    weight = malloc(mt_mul(n, sizeof(*weight)));
    if (!pick || !weight) {
        free(pick);
        free(weight);
        return -ENOMEM;
    }
    free(c->pick);
    free(c->weight);
    c->pick = pick;
    c->weight = weight;
    c->width = width;
    return 0;
}

/* Rotary tables for this many rows of this head_dim: both grow, either may come first. */
static int grow_rope(struct mt_cpu *c, int64_t rows, int head_dim)
{
    struct mt_rope_row *row[2];
    float *tab[2];
    double *freq;
    bool ok;

    if (rows < c->rows)
        rows = c->rows;
    if (head_dim < c->head_dim)
        head_dim = c->head_dim;
    if (rows == c->rows && head_dim == c->head_dim)
        return 0;
    if (!head_dim) { /* no cache yet, so nothing to rotate */
        c->rows = rows;
        return 0;
    }
    freq = malloc(mt_mul((size_t)head_dim, sizeof(*freq)));
    ok = freq != NULL;
    for (int i = 0; i < 2; i++) {
        row[i] = calloc((size_t)(rows ? rows : 1), sizeof(*row[i]));
        tab[i] = malloc(mt_mul(mt_mul((size_t)(rows ? rows : 1), (size_t)head_dim), sizeof(float)));
        ok = ok && row[i] && tab[i];
    }
    for (int i = 0; i < 2; i++) {
        if (ok) {
            free(c->rope_row[i]);
            free(c->rope[i]);
            c->rope_row[i] = row[i];
            c->rope[i] = tab[i];
        } else {
            free(row[i]);
            free(tab[i]);
        }
    }
    if (!ok) {
        free(freq);
        return -ENOMEM;
    }
    free(c->freq);
    c->freq = freq;
    c->freq_dim = 0;
    c->rows = rows;
    c->head_dim = head_dim;
    return 0;
}

/*
 * Rows start on a cache line; a stride that is a multiple of 1 KiB gets one line more, or the same
 * column of many rows would compete for a few cache sets.
 */
static int64_t row_stride(int width)
{
    int64_t stride = ((int64_t)width + 15) / 16 * 16;

    return stride % 256 == 0 ? stride + 16 : stride;
}

#define ROWS_HEAD 16 /* floats before the first row: a cache line that holds their size in bytes */

static int64_t rows_bytes(const struct mt_backend *be, int64_t n, int width)
{
    (void)be;
    return (n * row_stride(width) + ROWS_HEAD) * (int64_t)sizeof(float);
}

static int rows_new(struct mt_backend *be, struct mt_rows *out, int64_t n, int width)
{
    struct mt_cpu *c = cpu_of(be);
    int64_t stride, bytes;
    float *data;
    int rc;

    *out = MT_NO_ROWS;
    if (n < 1 || width < 1)
        return -EINVAL;
    stride = row_stride(width);
    if (__builtin_mul_overflow(n, stride, &bytes) || bytes > INT64_MAX / 8 ||
        !(data = mt_alloc((size_t)bytes + ROWS_HEAD, sizeof(*data))))
        return -ENOMEM;
    bytes = rows_bytes(be, n, width);
    if ((rc = grow_width(c, width)) < 0 || (rc = grow_rope(c, n, 0)) < 0) {
        free(data);
        return rc;
    }
    memcpy(data, &bytes, sizeof(bytes));
    be->rows_held += bytes;
    *out = (struct mt_rows){data + ROWS_HEAD, stride, width};
    return 0;
}

static void rows_free(struct mt_backend *be, struct mt_rows *r)
{
    int64_t bytes;

    if (!r->data)
        return;
    memcpy(&bytes, r->data - ROWS_HEAD, sizeof(bytes));
    be->rows_held -= bytes;
    free(r->data - ROWS_HEAD);
    *r = MT_NO_ROWS;
}

static void rows_put(struct mt_backend *be, struct mt_rows dst, const float *src, int64_t n)
{
    (void)be;
    for (int64_t i = 0; i < n; i++)
        memcpy(dst.data + i * dst.stride, src + i * dst.width, (size_t)dst.width * sizeof(float));
}

static void rows_get(struct mt_backend *be, float *dst, struct mt_rows src, int64_t n)
{
    (void)be;
    for (int64_t i = 0; i < n; i++)
        memcpy(dst + i * src.width, src.data + i * src.stride, (size_t)src.width * sizeof(float));
}

static void gather(struct mt_backend *be, struct mt_rows dst, struct mt_rows src, const int *index,
                   int n)
{
    (void)be;
    for (int64_t i = 0; i < n; i++)
        memmove(dst.data + i * dst.stride, src.data + index[i] * src.stride,
                (size_t)dst.width * sizeof(float));
}

static int kv_new(struct mt_backend *be, struct mt_kv **out, const struct mt_kv_shape *s,
                  int64_t n_blocks)
{
    struct mt_cpu *c = cpu_of(be);
    int64_t block = mt_kv_block_bytes(s), bytes;
    struct mt_kv *kv;
    int rc;

    *out = NULL;
    if (block < 0 || n_blocks < 1)
        return -EINVAL;
    if (n_blocks > INT32_MAX || __builtin_mul_overflow(block, n_blocks, &bytes))
        return -ENOMEM;
    if ((rc = grow_rope(c, 0, s->head_dim)) < 0)
        return rc;
    if (!(kv = calloc(1, sizeof(*kv))))
        return -ENOMEM;
    kv->s = *s;
    kv->bytes = (size_t)bytes;
    kv->block_bytes = block;
    kv->layer_bytes = block / s->layers;
    kv->half_bytes =
        (int64_t)s->kv_heads * s->block_tokens * s->head_dim * (int64_t)mt_dtype_size(s->type);
    if (!(kv->data = pages_new(kv->bytes))) {
        free(kv);
        return -ENOMEM;
    }
    *out = kv;
    return 0;
}

static void kv_free(struct mt_backend *be, struct mt_kv *kv)
{
    (void)be;
    if (!kv)
        return;
    munmap(kv->data, kv->bytes);
    free(kv);
}

static void kv_copy(struct mt_backend *be, struct mt_kv *dst, const struct mt_kv_view *to,
                    const struct mt_kv *src, const struct mt_kv_view *from, int64_t n)
{
    size_t bytes = (size_t)src->s.head_dim * mt_dtype_size(src->s.type);

    (void)be;
    for (int64_t i = 0; i < n; i++) {
        int at, slot;
        int32_t block = view_block(to, dst->s.block_tokens, i, &at);
        int32_t old = view_block(from, src->s.block_tokens, i, &slot);

        for (int k = 0; k < src->s.layers * 2 * src->s.kv_heads; k++) {
            int head = k % src->s.kv_heads, v = k / src->s.kv_heads % 2;
            int layer = k / src->s.kv_heads / 2;

            memcpy(kv_at(dst, layer, block, v, head, at), kv_at(src, layer, old, v, head, slot),
                   bytes);
            if (mt_dtype_scaled(src->s.type))
                memcpy(kv_scale_at(dst, layer, block, v, head, at),
                       kv_scale_at(src, layer, old, v, head, slot), sizeof(float));
        }
    }
}

/* Tokens' bytes, out of the pool or into it. */
static void kv_move(const struct mt_kv *kv, const struct mt_kv_view *view, int64_t first, int64_t n,
                    char *out, const char *in)
{
    size_t bytes = (size_t)kv->s.head_dim * mt_dtype_size(kv->s.type), at = 0;
    size_t scale = mt_dtype_scaled(kv->s.type) ? sizeof(float) : 0;

    for (int64_t i = first; i < first + n; i++) {
        int slot;
        int32_t block = view_block(view, kv->s.block_tokens, i, &slot);

        for (int k = 0; k < kv->s.layers * 2 * kv->s.kv_heads; k++, at += bytes + scale) {
            int head = k % kv->s.kv_heads, v = k / kv->s.kv_heads % 2;
            int layer = k / kv->s.kv_heads / 2;
            char *x = kv_at(kv, layer, block, v, head, slot);

            if (in)
                memcpy(x, in + at, bytes);
            else if (out)
                memcpy(out + at, x, bytes);
            if (!scale)
                continue;
            x = kv_scale_at(kv, layer, block, v, head, slot);
            if (in)
                memcpy(x, in + at + bytes, scale);
            else if (out)
                memcpy(out + at + bytes, x, scale);
        }
    }
}

static int kv_get(struct mt_backend *be, const struct mt_kv *kv, const struct mt_kv_view *view,
                  int64_t first, int64_t n, void *bytes)
{
    (void)be;
    kv_move(kv, view, first, n, bytes, NULL);
    return 0;
}

static int kv_put(struct mt_backend *be, struct mt_kv *kv, const struct mt_kv_view *view,
                  int64_t first, int64_t n, const void *bytes)
{
    (void)be;
    kv_move(kv, view, first, n, NULL, bytes);
    return 0;
}

static void embed(struct mt_backend *be, struct mt_rows out, const struct mt_mat *table,
                  const int32_t *ids, int n)
{
    (void)be;
    for (int64_t i = 0; i < n; i++)
        if (ids[i] >= 0)
            num_decode(out.data + i * out.stride, table->type, mat_row(table, ids[i]), 0,
                       table->cols);
}

static void embed_add(struct mt_backend *be, struct mt_rows out, const struct mt_mat *table,
                      const int32_t *ids, int n)
{
    float piece[256];

    (void)be;
    for (int64_t i = 0; i < n; i++) {
        float *y = out.data + i * out.stride;

        for (int64_t c = 0; ids[i] >= 0 && c < table->cols; c += 256) {
            int w = table->cols - c < 256 ? (int)(table->cols - c) : 256;

            num_decode(piece, table->type, mat_row(table, ids[i]), c, w);
            for (int j = 0; j < w; j++)
                y[c + j] += piece[j];
        }
    }
}

void mt_cpu_objects(struct mt_ops *o)
{
    o->mat_new = mat_new;
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

void mt_cpu_objects_free(struct mt_cpu *c)
{
    free(c->x);
    free(c->pick);
    free(c->weight);
    free(c->freq);
    for (int i = 0; i < 2; i++) {
        free(c->rope_row[i]);
        free(c->rope[i]);
    }
}
