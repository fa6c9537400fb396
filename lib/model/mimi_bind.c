/*
 * mimi_bind.c: names in either layout to weights, and convolutions with their biases.
 */
#include "model/mimi_bind.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define NAMED(b, fmt, call)                                                                        \
    char name[MT_MIMI_NAME_MAX];                                                                   \
    va_list ap;                                                                                    \
    va_start(ap, fmt);                                                                             \
    mt_mimi_name(name, (b)->prefix, (b)->hf, fmt, ap);                                             \
    va_end(ap);                                                                                    \
    return call

struct mt_mat *mt_mimi_vector(struct mt_mimi_binder *b, int64_t n, const char *fmt, ...)
{
    NAMED(b, fmt, mt_bind_vector(&b->b, n, "%s", name));
}

struct mt_mat *mt_mimi_matrix(struct mt_mimi_binder *b, int64_t rows, int64_t cols, const char *fmt,
                              ...)
{
    NAMED(b, fmt, mt_bind_matrix(&b->b, rows, cols, "%s", name));
}

struct mt_mat *mt_mimi_pointwise(struct mt_mimi_binder *b, int64_t rows, int64_t cols,
                                 const char *fmt, ...)
{
    NAMED(b, fmt, mt_bind_conv(&b->b, rows, cols, 1, "%s", name));
}

struct mt_mat *mt_mimi_filters(struct mt_mimi_binder *b, int64_t rows, int64_t cols,
                               const char *fmt, ...)
{
    NAMED(b, fmt, mt_bind_conv(&b->b, rows, 1, cols, "%s", name));
}

bool mt_mimi_has(const struct mt_mimi_binder *b, const char *fmt, ...)
{
    NAMED(b, fmt, mt_weights_has(b->b.w, name));
}

/* A transposed convolution's rows are `stride` rows behind each other, each with the bias. */
static struct mt_mat *repeated(struct mt_mimi_binder *b, const struct mt_mimi_conv *c,
                               const struct mt_mat *bias, float **host)
{
    static const int32_t zero = 0;
    struct mt_backend *be = b->b.be;
    struct mt_rows row = mt_bind_rows(&b->b, 1, c->out);
    struct mt_bytes bytes = {NULL, MT_F32, 1, (int64_t)c->c.stride * c->out, false};
    struct mt_mat *m = NULL;

    if (b->b.rc == 0 && (*host = mt_alloc((size_t)bytes.cols, sizeof(**host)))) {
        be->ops->embed(be, row, bias, &zero, 1);
        for (int p = 0; p < c->c.stride; p++)
            be->ops->rows_get(be, *host + (int64_t)p * c->out, row, 1);
        bytes.data = *host;
        b->b.rc = be->ops->mat_new(be, &m, &bytes);
    } else if (b->b.rc == 0) {
        b->b.rc = -ENOMEM;
    }
    if (b->b.rc < 0)
        mt_err_set(b->b.e, b->b.rc, "out of memory");
    mt_unbind_rows(be, &row);
    return m;
}

void mt_mimi_conv_bind(struct mt_mimi_conv *c, struct mt_mimi_binder *b, bool with_bias,
                       const char *fmt, ...)
{
    char name[MT_MIMI_NAME_MAX], with[MT_MIMI_NAME_MAX];
    struct mt_mat *bias;
    va_list ap;

    /* The layouts' tables know the name with what follows it. */
    snprintf(with, sizeof(with), "%s.", fmt);
    va_start(ap, fmt);
    mt_mimi_name(name, b->prefix, b->hf, with, ap);
    va_end(ap);
    c->past_rows = mt_conv_past(&c->c);
    c->past_at = b->past_floats;
    b->past_floats += (int64_t)c->past_rows * c->in;
    b->packed_bytes += (int64_t)c->c.kernel * c->in * c->out * (int64_t)sizeof(float);
    c->w = mt_bind_streamed(&b->b, c->out, c->in, &c->c, "%sweight", name);
    if (!with_bias)
        return;
    c->bias = mt_bind_vector(&b->b, c->out, "%sbias", name);
    if (b->b.rc == 0 && c->c.transposed) {
        bias = c->bias;
        c->bias = repeated(b, c, bias, &c->host_bias);
        mt_unbind(b->b.be, &bias);
    }
}

void mt_mimi_conv_free(struct mt_mimi_conv *c, struct mt_backend *be)
{
    mt_unbind(be, &c->w);
    mt_unbind(be, &c->bias);
    free(c->host_bias);
    c->host_bias = NULL;
}

/* Rows of this width have no gaps, and few of them make much scratch. */
#define DENSE_WIDTH 4080

struct mt_rows mt_mimi_dense(struct mt_binder *b, int64_t floats)
{
    struct mt_rows r = mt_bind_rows(b, floats / DENSE_WIDTH + 1, DENSE_WIDTH);

    if (b->rc == 0 && r.stride != DENSE_WIDTH)
        b->rc = mt_err_set(b->e, -ENOTSUP, "the backend's rows have gaps");
    return r;
}

int64_t mt_mimi_dense_bytes(int64_t floats)
{
    return (floats / DENSE_WIDTH + 1) * DENSE_WIDTH * (int64_t)sizeof(float);
}

void mt_mimi_dense_clear(struct mt_backend *be, struct mt_rows dense, int64_t floats)
{
    static const float zeros[DENSE_WIDTH];

    for (int64_t i = 0; i < floats / DENSE_WIDTH + 1; i++)
        be->ops->rows_put(be, mt_rows_from(dense, i), zeros, 1);
}
