/*
 * bind.h: from a tensor's name and shape to a weight of the backend, for the files of the families.
 * Internal to lib/model.
 */
#ifndef MT_BIND_H
#define MT_BIND_H

#include "model/model.h"

/*
 * A run of tensors that share a source and a destination. The first failure sticks in rc, so that a
 * family can bind a whole model and look once.
 */
struct mt_binder {
    struct mt_weights *w;
    struct mt_backend *be;
    struct mt_err *e;
    int rc;
};

/* Names are printf-style; dims as in the file. NULL after a failure. Free with mt_unbind. */
struct mt_mat *mt_bind_vector(struct mt_binder *b, int64_t n, const char *fmt, ...) MT_PRINTF(3, 4);
struct mt_mat *mt_bind_matrix(struct mt_binder *b, int64_t rows, int64_t cols, const char *fmt, ...)
    MT_PRINTF(4, 5);
/* A matrix whose rows are looked up, never multiplied with; and one that serves as both. */
struct mt_mat *mt_bind_table(struct mt_binder *b, int64_t rows, int64_t cols, const char *fmt, ...)
    MT_PRINTF(4, 5);
struct mt_mat *mt_bind_tied(struct mt_binder *b, int64_t rows, int64_t cols, const char *fmt, ...)
    MT_PRINTF(4, 5);
struct mt_mat *mt_bind_conv(struct mt_binder *b, int64_t out, int64_t in, int64_t kernel,
                            const char *fmt, ...) MT_PRINTF(5, 6);
/* For the operation conv: [out, in, kernel], or [in, out, kernel] when transposed. */
struct mt_mat *mt_bind_streamed(struct mt_binder *b, int64_t out, int64_t in,
                                const struct mt_conv *c, const char *fmt, ...) MT_PRINTF(5, 6);
struct mt_mat *mt_bind_conv2d(struct mt_binder *b, int64_t out, int64_t in, int64_t kernel,
                              const char *fmt, ...) MT_PRINTF(5, 6);
/* Rows first..first+rows-1 of a matrix [all, cols]: one of several that are stored as one. */
struct mt_mat *mt_bind_slice(struct mt_binder *b, int64_t all, int64_t cols, int64_t first,
                             int64_t rows, const char *fmt, ...) MT_PRINTF(6, 7);
void mt_unbind(struct mt_backend *be, struct mt_mat **m);

/* Activations, with the same stickiness. */
struct mt_rows mt_bind_rows(struct mt_binder *b, int64_t n, int width);
void mt_unbind_rows(struct mt_backend *be, struct mt_rows *r);

/*
 * Fields of a config.json object, checked: 0, or -EPROTO naming "WHERE.KEY" and the range. A
 * missing key takes `fallback` where that is not MT_NEED.
 */
#define MT_NEED      INT64_MIN
#define MT_WHERE_MAX 4352 /* a path and the fields below it */
int mt_config_int(const json_t *o, const char *where, const char *key, int64_t lo, int64_t hi,
                  int64_t fallback, int64_t *out, struct mt_err *e);
int mt_config_real(const json_t *o, const char *where, const char *key, double lo, double hi,
                   double fallback, double *out, struct mt_err *e);
/*
 * A word that has to be one of `known`, "silu" or "default, mrope": -ENOTSUP with the list for
 * another one, -EPROTO for what is no string. Missing or null is fine, and so is o that is no
 * object.
 */
int mt_config_word(const json_t *o, const char *where, const char *key, const char *known,
                   struct mt_err *e);

#endif
