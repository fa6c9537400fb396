/*
 * weights.c: named tensors whatever their source: the check of shapes, and the count of what was
 * handed out. Used while a model is opened, by one thread.
 */
#include "model/file.h"
#include "model/source.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct mt_weights {
    const struct mt_source *src;
    void *self;
    int64_t bytes;
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
    return 0;
}

void mt_weights_close(struct mt_weights **w)
{
    if (!*w)
        return;
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
    if (w->src->make && (rc = w->src->make(w->self, name, n_dims, dims, e)) < 0)
        return rc;
    rc = w->src->find(w->self, name, &t, e);
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
    if (!t->given)
        w->bytes += t->size;
    t->given = true;
    *out = t->bytes;
    return 0;
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

int64_t mt_weights_bytes(const struct mt_weights *w)
{
    return w->bytes;
}
