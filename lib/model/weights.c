/*
 * weights.c: named tensors whatever their source: the check of shapes, the quantising of floats
 * where that is asked for, and the count of what was handed out. Used while a model is opened, by
 * one thread.
 */
#include "model/file.h"
#include "model/quantize.h"
#include "model/source.h"

#include <errno.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

struct small { /* a tensor that was quantised */
    const struct mt_tensor *of;
    struct mt_bytes bytes;
    struct mt_file blank; /* for a plan: their data */
};

struct mt_weights {
    const struct mt_source *src;
    void *self;
    int64_t bytes;
    uint64_t digest; /* of what was handed out */
    bool plan;
    enum mt_dtype quantize; /* F32: nothing is */
    bool shrunk;            /* something was */
    void *small;            /* struct small by its tensor (tsearch) */
    void (*seen)(void *ctx, int64_t bytes);
    void *ctx;
    int64_t through; /* bytes handed out, also of what was dropped since */
};

int mt_weights_new(struct mt_weights **out, const struct mt_source *src, void *self,
                   struct mt_err *e)
{
    struct mt_weights *w = calloc(1, sizeof(*w));

    *out = w;
    if (!w) {
        src->close(self);
        return mt_err_set(e, -ENOMEM, "out of memory");
    }
    w->src = src;
    w->self = self;
    w->digest = MT_HASH_INIT;
    return 0;
}

static int small_by_tensor(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t)((const struct small *)a)->of;
    uintptr_t y = (uintptr_t)((const struct small *)b)->of;

    return (x > y) - (x < y);
}

static void small_free(void *p)
{
    struct small *s = p;

    if (!s->blank.data)
        free((void *)s->bytes.data);
    mt_file_unmap(&s->blank);
    free(s);
}

/* As mt_quantize_bytes, without the work where only a plan is made. */
static int quantize(const struct mt_weights *w, enum mt_dtype type, const struct mt_bytes *in,
                    struct small *s)
{
    if (!w->plan)
        return mt_quantize_bytes(type, in, &s->bytes);
    if (mt_file_blank(&s->blank, (size_t)(mt_dtype_row_bytes(type, in->cols) * in->rows)) < 0)
        return -ENOMEM;
    s->bytes = (struct mt_bytes){s->blank.data, type, in->rows, in->cols, false};
    return 0;
}

/* Is this the table that logits are made with? A head of its own comes before the embeddings. */
static bool is_head(const struct mt_weights *w, const char *name)
{
    static const char table[] = "model.embed_tokens.weight";
    size_t n = strlen(name), before = n - (sizeof(table) - 1);
    char head[200];

    if (n < sizeof(table) - 1 || strcmp(name + before, table) != 0)
        return false;
    snprintf(head, sizeof(head), "%.*slm_head.weight", (int)before, name);
    return !mt_weights_has(w, head);
}

/* What t was quantised to, or NULL. */
static struct small *small_of(const struct mt_weights *w, const struct mt_tensor *t)
{
    struct small key = {.of = t}, **found = tfind(&key, &w->small, small_by_tensor);

    return found ? *found : NULL;
}

/* t's bytes, or smaller ones. */
static int shrink(struct mt_weights *w, const char *name, struct mt_tensor *t, struct mt_bytes *out,
                  struct mt_err *e)
{
    struct small *s = small_of(w, t);
    char show[MT_SHOW_MAX];
    enum mt_dtype type;

    *out = s ? s->bytes : t->bytes;
    if (s || (type = mt_quantize_as(w->quantize, name, t, is_head(w, name))) == t->bytes.type)
        return 0;
    s = calloc(1, sizeof(*s));
    if (!s || quantize(w, type, &t->bytes, s) < 0) {
        free(s);
        return mt_err_set(e, -ENOMEM, "%s: tensor '%s': no memory to quantise it",
                          w->src->where(w->self), mt_show(show, name));
    }
    s->of = t;
    if (!tsearch(s, &w->small, small_by_tensor)) {
        small_free(s);
        return mt_err_set(e, -ENOMEM, "out of memory");
    }
    w->shrunk = true;
    if (w->src->drop)
        w->src->drop(w->self, t);
    t->size = mt_dtype_row_bytes(type, s->bytes.cols) * s->bytes.rows;
    *out = s->bytes;
    return 0;
}

void mt_weights_drop(struct mt_weights *w, const char *name)
{
    struct mt_tensor *t;
    struct small *s;

    if (w->src->find(w->self, name, &t, NULL) < 0)
        return;
    if (t->given)
        w->bytes -= t->size;
    t->given = false;
    if ((s = small_of(w, t))) {
        tdelete(s, &w->small, small_by_tensor);
        small_free(s);
        t->size = mt_dtype_row_bytes(t->bytes.type, t->bytes.cols) * t->bytes.rows;
    } else if (w->src->drop) {
        w->src->drop(w->self, t);
    }
}

void mt_weights_close(struct mt_weights **w)
{
    if (!*w)
        return;
    tdestroy((*w)->small, small_free);
    (*w)->src->close((*w)->self);
    free(*w);
    *w = NULL;
}

void mt_tensor_matrix(struct mt_tensor *t)
{
    int64_t rest = 1;

    for (int i = t->n_dims > 1; i < t->n_dims; i++)
        rest *= t->dims[i];
    t->bytes.rows = t->n_dims > 1 ? t->dims[0] : 1;
    t->bytes.cols = rest;
}

const char *mt_shape_text(char out[MT_SHAPE_MAX], int n_dims, const int64_t *dims)
{
    int n = snprintf(out, MT_SHAPE_MAX, "[");

    for (int i = 0; i < n_dims; i++)
        n += snprintf(out + n, MT_SHAPE_MAX - (size_t)n, "%s%lld", i ? ", " : "",
                      (long long)dims[i]);
    snprintf(out + n, MT_SHAPE_MAX - (size_t)n, "]");
    return out;
}

const char *mt_weights_where(const struct mt_weights *w)
{
    return w->src->where(w->self);
}

bool mt_weights_has(const struct mt_weights *w, const char *name)
{
    return w->src->has(w->self, name);
}

int mt_weights_make(struct mt_weights *w, const char *name, int n_dims, const int64_t *dims,
                    struct mt_tensor **out, struct mt_err *e)
{
    int rc = w->src->make ? w->src->make(w->self, name, n_dims, dims, e) : 0;

    return rc < 0 ? rc : w->src->find(w->self, name, out, e);
}

/*
 * Its name, shape and type, and a piece of its data: enough to tell checkpoints apart, at a page a
 * tensor.
 */
static void digest(struct mt_weights *w, const char *name, const struct mt_tensor *t,
                   const struct mt_bytes *b, const struct mt_recipe *r)
{
    int64_t size = b->rows * mt_dtype_row_bytes(b->type, b->cols), n = size < 1024 ? size : 1024;

    w->digest = mt_hash(w->digest, name, strlen(name) + 1);
    w->digest = mt_hash(w->digest, t->dims, (size_t)t->n_dims * sizeof(*t->dims));
    w->digest = mt_hash(w->digest, &b->type, sizeof(b->type));
    if (r) { /* the same piece, made for this: it may begin within an element */
        int64_t each = (int64_t)mt_dtype_size(b->type), at = (size - n) / 2 / each;
        char piece[1024 + 8];

        mt_recipe_make(piece, b->type, r, at, n / each + (at * each < (size - n) / 2));
        w->digest = mt_hash(w->digest, piece + (size - n) / 2 % each, (size_t)n);
    } else if (!w->plan && n > 0) {
        w->digest = mt_hash(w->digest, (const char *)b->data + (size - n) / 2, (size_t)n);
    }
}

/* It is handed out. r: without data, but so it is made. */
static void count(struct mt_weights *w, const char *name, struct mt_tensor *t,
                  const struct mt_bytes *b, const struct mt_recipe *r)
{
    if (t->given)
        return;
    t->given = true;
    w->bytes += t->size;
    w->through += t->size;
    digest(w, name, t, b, r);
    if (w->seen)
        w->seen(w->ctx, w->through);
}

uint64_t mt_weights_digest(const struct mt_weights *w)
{
    return w->digest;
}

int mt_weights_get(struct mt_weights *w, const char *name, int n_dims, const int64_t *dims,
                   struct mt_bytes *out, struct mt_err *e)
{
    char show[MT_SHOW_MAX], want[MT_SHAPE_MAX], have[MT_SHAPE_MAX];
    struct mt_tensor *t;
    int rc;

    *out = (struct mt_bytes){0};
    if (n_dims < 1 || n_dims > 4)
        return mt_err_set(e, -EINVAL, "tensor '%s': asked for with %d dimensions (expected 1..4)",
                          mt_show(show, name), n_dims);
    rc = w->src->find(w->self, name, &t, NULL);
    if (rc < 0 || !small_of(w, t)) /* what it was made smaller from is gone */
        rc = mt_weights_make(w, name, n_dims, dims, &t, e);
    if (rc == -ENOENT)
        return mt_err_set(e, rc, "%s: there is no tensor '%s'", w->src->where(w->self),
                          mt_show(show, name));
    if (rc < 0)
        return rc;
    if (t->n_dims != n_dims || memcmp(t->dims, dims, (size_t)n_dims * sizeof(*dims)) != 0)
        return mt_err_set(e, -EPROTO, "%s: tensor '%s' has shape %s (expected %s)",
                          w->src->where(w->self), mt_show(show, name),
                          mt_shape_text(have, t->n_dims, t->dims),
                          mt_shape_text(want, n_dims, dims));
    *out = t->bytes;
    if (w->quantize != MT_F32 && (rc = shrink(w, name, t, out, e)) < 0)
        return rc;
    count(w, name, t, out, NULL);
    return 0;
}

int mt_weights_recipe(struct mt_weights *w, const char *name, int n_dims, const int64_t *dims,
                      struct mt_bytes *out, struct mt_recipe *r, struct mt_err *e)
{
    struct mt_tensor *t;
    int rc;

    if (!w->src->recipe || w->plan || w->quantize != MT_F32)
        return -ENOENT;
    if ((rc = w->src->recipe(w->self, name, n_dims, dims, &t, r, e)) < 0)
        return rc;
    *out = t->bytes;
    out->data = NULL;
    count(w, name, t, out, r);
    return 0;
}

void mt_weights_watch(struct mt_weights *w, void (*seen)(void *ctx, int64_t bytes), void *ctx)
{
    w->seen = seen;
    w->ctx = ctx;
}

int mt_weights_find(const struct mt_weights *w, const char *name, int *n_dims, int64_t dims[8],
                    struct mt_bytes *out)
{
    struct mt_tensor *t;
    int rc = w->src->find(w->self, name, &t, NULL);

    if (rc < 0)
        return rc;
    *n_dims = t->n_dims;
    memcpy(dims, t->dims, sizeof(t->dims));
    *out = t->bytes;
    return 0;
}

void mt_weights_quantize(struct mt_weights *w, enum mt_dtype type)
{
    w->quantize = type;
}

bool mt_weights_shrunk(const struct mt_weights *w)
{
    return w->shrunk;
}

void mt_weights_plan(struct mt_weights *w)
{
    w->plan = true;
    if (w->src->plan)
        w->src->plan(w->self);
}

int64_t mt_weights_bytes(const struct mt_weights *w)
{
    return w->bytes;
}
