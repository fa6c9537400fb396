/*
 * bind.c: names and shapes to weights, and checked fields of a config.json.
 */
#include "model/bind.h"
#include "model/file.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

/* What of a tensor is bound, and for which operation. */
struct how {
    int64_t first, rows; /* rows 0: all of them */
    const struct mt_conv *conv;
    enum { SUMS, ROWS, BOTH } use; /* is it multiplied with, or are its rows looked up? */
};

static struct mt_mat *bind(struct mt_binder *b, int n_dims, const int64_t *dims, struct how how,
                           const char *fmt, va_list ap)
{
    char name[200];
    struct mt_bytes bytes;
    struct mt_mat *m = NULL;
    struct mt_recipe recipe;
    int64_t first = 0;
    int rc = -ENOENT;
    bool made;

    if (b->rc < 0)
        return NULL;
    vsnprintf(name, sizeof(name), fmt, ap);
    if (!how.conv && b->be->ops->mat_make)
        rc = mt_weights_recipe(b->w, name, n_dims, dims, &bytes, &recipe, b->e);
    made = rc == 0;
    if (rc == -ENOENT)
        rc = mt_weights_get(b->w, name, n_dims, dims, &bytes, b->e);
    if (rc == 0 && how.rows > 0) {
        first = how.first * bytes.cols;
        if (!made)
            bytes.data =
                (const char *)bytes.data + how.first * mt_dtype_row_bytes(bytes.type, bytes.cols);
        bytes.rows = how.rows;
    }
    bytes.looked_up = how.use == ROWS;
    if (rc == 0) {
        rc = how.conv ? b->be->ops->conv_new(b->be, &m, &bytes, how.conv)
             : made   ? b->be->ops->mat_make(b->be, &m, &bytes, &recipe, first)
                      : b->be->ops->mat_new(b->be, &m, &bytes);
        if (rc < 0)
            mt_err_set(b->e, rc, "tensor '%s': %s", name,
                       rc == -ENOMEM ? "out of memory" : "a type that the backend can't hold");
    }
    /* What the backend has a copy of need not be there twice; of slices the last one ends it. */
    if (rc == 0 && (made || how.use != BOTH) && how.first + how.rows == (how.rows ? dims[0] : 0) &&
        !b->be->ops->mat_borrows(m))
        mt_weights_drop(b->w, name);
    b->rc = rc;
    return m;
}

struct mt_mat *mt_bind_vector(struct mt_binder *b, int64_t n, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    struct mt_mat *m = bind(b, 1, (const int64_t[]){n}, (struct how){0}, fmt, ap);
    va_end(ap);
    return m;
}

struct mt_mat *mt_bind_matrix(struct mt_binder *b, int64_t rows, int64_t cols, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    struct mt_mat *m = bind(b, 2, (const int64_t[]){rows, cols}, (struct how){0}, fmt, ap);
    va_end(ap);
    return m;
}

struct mt_mat *mt_bind_table(struct mt_binder *b, int64_t rows, int64_t cols, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    struct mt_mat *m =
        bind(b, 2, (const int64_t[]){rows, cols}, (struct how){.use = ROWS}, fmt, ap);
    va_end(ap);
    return m;
}

struct mt_mat *mt_bind_tied(struct mt_binder *b, int64_t rows, int64_t cols, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    struct mt_mat *m =
        bind(b, 2, (const int64_t[]){rows, cols}, (struct how){.use = BOTH}, fmt, ap);
    va_end(ap);
    return m;
}

struct mt_mat *mt_bind_conv(struct mt_binder *b, int64_t out, int64_t in, int64_t kernel,
                            const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    struct mt_mat *m = bind(b, 3, (const int64_t[]){out, in, kernel}, (struct how){0}, fmt, ap);
    va_end(ap);
    return m;
}

struct mt_mat *mt_bind_streamed(struct mt_binder *b, int64_t out, int64_t in,
                                const struct mt_conv *c, const char *fmt, ...)
{
    const int64_t released[] = {c->transposed ? in : out, c->transposed ? out : in, c->kernel};
    va_list ap;
    va_start(ap, fmt);
    struct mt_mat *m = bind(b, 3, released, (struct how){.conv = c}, fmt, ap);
    va_end(ap);
    return m;
}

struct mt_mat *mt_bind_slice(struct mt_binder *b, int64_t all, int64_t cols, int64_t first,
                             int64_t rows, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    struct mt_mat *m = bind(b, 2, (const int64_t[]){all, cols},
                            (struct how){.first = first, .rows = rows}, fmt, ap);
    va_end(ap);
    return m;
}

struct mt_mat *mt_bind_conv2d(struct mt_binder *b, int64_t out, int64_t in, int64_t kernel,
                              const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    struct mt_mat *m =
        bind(b, 4, (const int64_t[]){out, in, kernel, kernel}, (struct how){0}, fmt, ap);
    va_end(ap);
    return m;
}

void mt_unbind(struct mt_backend *be, struct mt_mat **m)
{
    if (*m)
        be->ops->mat_free(be, *m);
    *m = NULL;
}

struct mt_rows mt_bind_rows(struct mt_binder *b, int64_t n, int width)
{
    struct mt_rows r = MT_NO_ROWS;

    if (b->rc < 0)
        return r;
    b->rc = b->be->ops->rows_new(b->be, &r, n, width);
    if (b->rc < 0)
        mt_err_set(b->e, b->rc, "no memory for activations of %lld rows of %d", (long long)n,
                   width);
    return r;
}

void mt_unbind_rows(struct mt_backend *be, struct mt_rows *r)
{
    if (r->data)
        be->ops->rows_free(be, r);
    *r = MT_NO_ROWS;
}

int mt_config_int(const json_t *o, const char *where, const char *key, int64_t lo, int64_t hi,
                  int64_t fallback, int64_t *out, struct mt_err *e)
{
    const json_t *v = json_object_get(o, key);

    if ((!v || json_is_null(v)) && fallback != MT_NEED) {
        *out = fallback;
        return 0;
    }
    if (!v)
        return mt_err_set(e, -EPROTO, "%s.%s is missing (expected an integer in %lld..%lld)", where,
                          key, (long long)lo, (long long)hi);
    if (!json_is_integer(v) || json_integer_value(v) < lo || json_integer_value(v) > hi)
        return mt_err_set(e, -EPROTO, "%s.%s is not an integer in %lld..%lld", where, key,
                          (long long)lo, (long long)hi);
    *out = json_integer_value(v);
    return 0;
}

int mt_config_real(const json_t *o, const char *where, const char *key, double lo, double hi,
                   double fallback, double *out, struct mt_err *e)
{
    const json_t *v = json_object_get(o, key);

    if (!v || json_is_null(v)) {
        *out = fallback;
        return 0;
    }
    double x = json_number_value(v);
    if (!json_is_number(v) || !(x >= lo && x <= hi))
        return mt_err_set(e, -EPROTO, "%s.%s is not a number in %g..%g", where, key, lo, hi);
    *out = x;
    return 0;
}

/* Is word one of those in list, apart by ", "? */
static bool listed(const char *list, const char *word)
{
    size_t n = strlen(word);

    for (const char *at = list; at; at = strchr(at, ' ')) {
        at += *at == ' ';
        if (n && !strncmp(at, word, n) && (at[n] == '\0' || at[n] == ','))
            return true;
    }
    return false;
}

int mt_config_word(const json_t *o, const char *where, const char *key, const char *known,
                   struct mt_err *e)
{
    const json_t *v = json_object_get(o, key);
    char show[MT_SHOW_MAX];

    if (!v || json_is_null(v))
        return 0;
    if (!json_is_string(v))
        return mt_err_set(e, -EPROTO, "%s.%s is not a string (%s)", where, key, known);
    if (!listed(known, json_string_value(v)))
        return mt_err_set(e, -ENOTSUP, "%s.%s '%s' is not supported (%s)", where, key,
                          mt_show(show, json_string_value(v)), known);
    return 0;
}
