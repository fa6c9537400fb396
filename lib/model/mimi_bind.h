/*
 * mimi_bind.h: what the parts of the codec share while they bind: the names' layout, and where each
 * convolution's past lies in a session's state. Internal to the codec's files.
 */
#ifndef MT_MIMI_BIND_H
#define MT_MIMI_BIND_H

#include "model/mimi.h"
#include "model/mimi_names.h"

struct mt_mimi_binder {
    struct mt_binder b;
    const char *prefix;
    bool hf;
    /* Of all convolutions bound so far. */
    int64_t past_floats;
    int64_t packed_bytes; /* at most: a backend may use what is mapped */
};

/* A convolution with what it remembers: past_rows rows of `in`, from past_at floats on. */
struct mt_mimi_conv {
    struct mt_conv c;
    int in, out;
    struct mt_mat *w, *bias; /* bias NULL: none */
    float *host_bias;        /* a transposed one's, `stride` times */
    int64_t past_at;
    int past_rows;
};

/* Names are kyutai's, printf-style, without the prefix. */
struct mt_mat *mt_mimi_vector(struct mt_mimi_binder *b, int64_t n, const char *fmt, ...)
    MT_PRINTF(3, 4);
struct mt_mat *mt_mimi_matrix(struct mt_mimi_binder *b, int64_t rows, int64_t cols, const char *fmt,
                              ...) MT_PRINTF(4, 5);
/* [rows, cols, 1] */
struct mt_mat *mt_mimi_pointwise(struct mt_mimi_binder *b, int64_t rows, int64_t cols,
                                 const char *fmt, ...) MT_PRINTF(4, 5);
/* [rows, 1, cols]: a filter a channel */
struct mt_mat *mt_mimi_filters(struct mt_mimi_binder *b, int64_t rows, int64_t cols,
                               const char *fmt, ...) MT_PRINTF(4, 5);
bool mt_mimi_has(const struct mt_mimi_binder *b, const char *fmt, ...) MT_PRINTF(2, 3);
/* NAME.weight and, with_bias, NAME.bias. c->c, in and out are set. */
void mt_mimi_conv_bind(struct mt_mimi_conv *c, struct mt_mimi_binder *b, bool with_bias,
                       const char *fmt, ...) MT_PRINTF(4, 5);
void mt_mimi_conv_free(struct mt_mimi_conv *c, struct mt_backend *be);

/* Scratch of whole rows without gaps, so that rows can be seen as fewer, wider ones. */
struct mt_rows mt_mimi_dense(struct mt_binder *b, int64_t floats);
int64_t mt_mimi_dense_bytes(int64_t floats);
void mt_mimi_dense_clear(struct mt_backend *be, struct mt_rows dense, int64_t floats);
static inline struct mt_rows mt_mimi_view(struct mt_rows dense, int64_t at, int width)
{
    return (struct mt_rows){dense.data + at, width, width};
}

#endif
