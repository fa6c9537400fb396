/*
 * gguf_source.c: the source of weights over a text file and an audio tower's file, or a tower made
 * from a seed. A tensor is looked up under its released name when it is asked for; what was found
 * is kept, in the shape that was wanted: the converter adds dimensions of 1, and stacks experts.
 */
#include "model/gguf_names.h"

#include "model/file.h"

#include <errno.h>
#include <search.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

struct alias {
    char *name; /* first: looked up by a char ** */
    struct mt_tensor t;
};

struct gguf_weights {
    struct mt_gguf *text, *audio;
    struct mt_weights *tower; /* where audio is NULL */
    void *aliases;            /* struct alias by released name (tsearch) */
};

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void alias_free(void *p)
{
    free(((struct alias *)p)->name);
    free(p);
}

static void gguf_close(void *self)
{
    struct gguf_weights *w = self;

    tdestroy(w->aliases, alias_free);
    mt_weights_close(&w->tower);
    mt_gguf_close(&w->text);
    mt_gguf_close(&w->audio);
    free(w);
}

/* Equal but for dimensions of 1. */
static bool same_shape(int n, const int64_t *a, int m, const int64_t *b)
{
    int i = 0, j = 0;

    for (;; i++, j++) {
        while (i < n && a[i] == 1)
            i++;
        while (j < m && b[j] == 1)
            j++;
        if (i == n || j == m)
            return i == n && j == m;
        if (a[i] != b[j])
            return false;
    }
}

static int wrong_shape(const struct mt_gguf *g, const struct mt_gguf_name *n,
                       const struct mt_tensor *t, int n_dims, const int64_t *dims, struct mt_err *e)
{
    char have[MT_SHAPE_MAX], want[MT_SHAPE_MAX];

    return mt_err_set(e, -EPROTO, "%s: tensor '%s' has shape %s (expected %s%s)", mt_gguf_path(g),
                      n->name, mt_shape_text(have, t->n_dims, t->dims),
                      mt_shape_text(want, n_dims, dims), n->expert < 0 ? "" : ", stacked");
}

/* The wanted tensor as a view of what the file holds. */
static int view(const struct mt_gguf *g, const struct mt_gguf_name *n, int n_dims,
                const int64_t *dims, struct mt_tensor *out, struct mt_err *e)
{
    const struct mt_tensor *t;
    const int64_t *have;
    int rc = mt_gguf_tensor(g, n->name, &t, e), n_have;

    if (rc == -ENOENT)
        return mt_err_set(e, rc, "%s: there is no tensor '%s'", mt_gguf_path(g), n->name);
    if (rc < 0)
        return rc;
    *out = *t;
    n_have = t->n_dims;
    have = t->dims;
    if (n->expert >= 0) {
        if (t->n_dims < 3 || n->expert >= t->dims[0])
            return wrong_shape(g, n, t, n_dims, dims, e);
        n_have--;
        have++;
        out->size /= t->dims[0];
        out->bytes.data = (const char *)t->bytes.data + n->expert * out->size;
    }
    if (!same_shape(n_have, have, n_dims, dims))
        return wrong_shape(g, n, t, n_dims, dims, e);
    out->n_dims = n_dims;
    memcpy(out->dims, dims, (size_t)n_dims * sizeof(*dims));
    mt_tensor_matrix(out);
    /* Blocks lie along the file's innermost dimension, which must be the rows' own. */
    if (mt_dtype_row_bytes(out->bytes.type, out->bytes.cols) < 0)
        return wrong_shape(g, n, t, n_dims, dims, e);
    return 0;
}

static int keep(struct gguf_weights *w, const char *name, const struct mt_tensor *t,
                struct mt_err *e)
{
    struct alias *a = calloc(1, sizeof(*a));

    if (a && (a->name = strdup(name))) {
        a->t = *t;
        if (tsearch(a, &w->aliases, by_name))
            return 0;
    }
    if (a)
        alias_free(a);
    return mt_err_set(e, -ENOMEM, "out of memory");
}

/*
 * A synthetic model's embeddings are about 1, a trained one's a fiftieth of that: rows of the made
 * tower would drown its tokens.
 */
static void shrink(struct mt_tensor *t)
{
    enum { SHIFT = 6, EXPONENT = 7 };
    unsigned char *p = (unsigned char *)t->bytes.data; /* made for us, as bf16 */

    for (int64_t i = 0; i < t->size; i += 2) {
        uint16_t h;

        memcpy(&h, p + i, sizeof(h));
        h = (h >> EXPONENT & 0xff) > SHIFT ? (uint16_t)(h - (SHIFT << EXPONENT)) : 0;
        memcpy(p + i, &h, sizeof(h));
    }
}

static bool is_last(const struct mt_gguf_name *n)
{
    return !strncmp(n->name, "mm.a.fc.", 8) || !strncmp(n->name, "mm.a.mlp.2.", 11);
}

static int gguf_make(void *self, const char *name, int n_dims, const int64_t *dims,
                     struct mt_err *e)
{
    struct gguf_weights *w = self;
    struct alias **a = tfind(&name, &w->aliases, by_name);
    struct mt_gguf_name n;
    struct mt_tensor t = {0}, *made;
    int rc;

    if ((a && (*a)->t.bytes.data) || !mt_gguf_name(&n, name))
        return 0;
    if (n.audio && !w->audio) {
        rc = mt_weights_make(w->tower, name, n_dims, dims, &made, e);
        if (rc == 0 && is_last(&n))
            shrink(made);
        if (rc == 0)
            t = *made;
    } else {
        rc = view(n.audio ? w->audio : w->text, &n, n_dims, dims, &t, e);
    }
    if (rc == 0 && a) /* it was dropped */
        (*a)->t.bytes.data = t.bytes.data;
    return rc < 0 || a ? rc : keep(w, name, &t, e);
}

static void gguf_drop(void *self, struct mt_tensor *t)
{
    struct gguf_weights *w = self;
    struct alias *a = (struct alias *)((char *)t - offsetof(struct alias, t));
    struct mt_gguf_name n;

    if (mt_gguf_name(&n, a->name) && n.audio && !w->audio) {
        mt_weights_drop(w->tower, a->name);
        t->bytes.data = NULL;
    } else {
        mt_file_leave(t->bytes.data, (size_t)t->size);
    }
}

static int gguf_find(void *self, const char *name, struct mt_tensor **out, struct mt_err *e)
{
    struct gguf_weights *w = self;
    struct alias **a = tfind(&name, &w->aliases, by_name);

    (void)e;
    if (!a)
        return -ENOENT;
    *out = &(*a)->t;
    return 0;
}

static bool gguf_has(const void *self, const char *name)
{
    const struct gguf_weights *w = self;
    struct mt_gguf_name n;

    if (!mt_gguf_name(&n, name))
        return false;
    if (n.audio && !w->audio)
        return true;
    return mt_gguf_has_tensor(n.audio ? w->audio : w->text, n.name);
}

static const char *gguf_where(const void *self)
{
    return mt_gguf_path(((const struct gguf_weights *)self)->text);
}

static const struct mt_source source = {
    .has = gguf_has,
    .find = gguf_find,
    .make = gguf_make,
    .drop = gguf_drop,
    .where = gguf_where,
    .close = gguf_close,
};

int mt_weights_open_gguf(struct mt_weights **out, struct mt_gguf *text, struct mt_gguf *audio,
                         uint64_t seed, struct mt_err *e)
{
    struct gguf_weights *w = calloc(1, sizeof(*w));
    int rc;

    *out = NULL;
    if (!w) {
        mt_gguf_close(&text);
        mt_gguf_close(&audio);
        return mt_err_set(e, -ENOMEM, "out of memory");
    }
    w->text = text;
    w->audio = audio;
    if (!audio && (rc = mt_weights_open_synth(&w->tower, seed, MT_BF16, e)) < 0) {
        gguf_close(w);
        return rc;
    }
    return mt_weights_new(out, &source, w, e);
}
