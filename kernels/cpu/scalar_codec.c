/*
 * scalar_codec.c: what an audio codec needs besides: convolutions that a session hears piece by
 * piece, in both directions, and the level of a residual quantiser. The convolution moves windows
 * side by side, columns [kernel][in] and the oldest first, and leaves the sums to linear; the fast
 * tiers have sums of their own.
 */
#include "kernels/cpu/cpu.h"
#include "kernels/conv_pack.h"

#include <stdlib.h>

/* From so many rows a session on its windows are read where they lie, without a copy. */
#define ROWS_IN_PLACE 32

/* ---- weights ---- */

int mt_scalar_conv_new(struct mt_backend *be, struct mt_mat **out, const struct mt_bytes *b,
                       const struct mt_conv *c)
{
    struct mt_bytes packed;
    void *own;
    int rc;

    *out = NULL;
    if ((rc = mt_conv_pack(&packed, &own, b, c)) < 0)
        return rc;
    if ((rc = be->ops->mat_new(be, out, &packed)) < 0)
        free(own);
    else
        (*out)->own = own;
    return rc;
}

/* ---- convolution ---- */

/* As a convolution of whole rows: a transposed one takes a row at a time. */
struct window {
    struct mt_rows dst, x;
    const struct mt_rows *past;
    int kernel, stride, dilation, n_past;
    int rows; /* of x, a session */
    int outs; /* of dst, a session: the first so many windows */
};

static struct window window_of(const struct mt_conv *c, struct mt_rows x,
                               const struct mt_rows *past, int rows, struct mt_rows scratch)
{
    struct window w = {.dst = scratch, .x = x, .past = past, .n_past = mt_conv_past(c)};

    w.kernel = c->transposed ? c->kernel / c->stride : c->kernel;
    w.stride = c->transposed ? 1 : c->stride;
    w.dilation = c->transposed ? 1 : c->dilation;
    w.dst.width = w.kernel * x.width;
    w.rows = rows;
    w.outs = rows / w.stride;
    return w;
}

/* Row t of the session, its past counted from -n_past. */
static const float *window_row(const struct window *w, int64_t session, int64_t t)
{
    if (t < 0)
        return w->past[session].data + (w->n_past + t) * w->past[session].stride;
    return w->x.data + (session * w->rows + t) * w->x.stride;
}

static void window_run(void *arg, int thread, int64_t begin, int64_t end)
{
    const struct window *w = arg;
    size_t bytes = (size_t)w->x.width * sizeof(float);

    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        int64_t session = i / w->outs, t = i % w->outs * w->stride - w->n_past;
        float *dst = w->dst.data + i * w->dst.stride;

        if (t >= 0 && w->dilation == 1 && w->x.stride == w->x.width) {
            memcpy(dst, window_row(w, session, t), bytes * (size_t)w->kernel);
            continue;
        }
        for (int k = 0; k < w->kernel; k++, dst += w->x.width)
            memcpy(dst, window_row(w, session, t + (int64_t)k * w->dilation), bytes);
    }
}

/* The last n_past rows of past and x become the past. */
static void keep_past(const struct window *w, int n)
{
    size_t bytes = (size_t)w->x.width * sizeof(float);

    for (int s = 0; s < n; s++)
        for (int64_t i = 0; i < w->n_past; i++) /* ascending: what is read lies further on */
            memmove(w->past[s].data + i * w->past[s].stride,
                    window_row(w, s, w->rows - w->n_past + i), bytes);
}

/* Windows that do not reach into the past are rows of x itself, each `stride` rows further on. */
static void conv_in_place(struct mt_backend *be, mt_sums_fn *sums, struct mt_rows out,
                          struct window *w, const struct mt_mat *m, const struct mt_mat *bias,
                          enum mt_act act, struct mt_rows residual, int n)
{
    int outs = w->outs;
    struct mt_rows view = w->x, res = residual;

    w->outs = (w->n_past + w->stride - 1) / w->stride; /* these do */
    if (w->outs)
        mt_par(cpu_of(be), (int64_t)n * w->outs, w->dst.width, window_run, w);
    view.width = w->dst.width;
    view.stride = w->stride * w->x.stride;
    for (int64_t s = 0; s < n; s++) {
        struct mt_rows dst = mt_rows_from(out, s * outs);

        if (residual.data)
            res = mt_rows_from(residual, s * outs);
        if (w->outs)
            sums(be, dst, mt_rows_from(w->dst, s * w->outs), m, bias, act, res, w->outs);
        view.data = (float *)window_row(w, s, (int64_t)w->outs * w->stride - w->n_past);
        if (residual.data)
            res = mt_rows_from(res, w->outs);
        sums(be, mt_rows_from(dst, w->outs), view, m, bias, act, res, outs - w->outs);
    }
}

void mt_conv_by(struct mt_backend *be, mt_sums_fn *sums, struct mt_rows out, struct mt_rows x,
                const struct mt_mat *m, const struct mt_mat *bias, const struct mt_conv *c,
                enum mt_act act, struct mt_rows residual, const struct mt_rows *past, int n,
                int rows, struct mt_rows scratch)
{
    struct window w = window_of(c, x, past, rows, scratch);

    if (w.dst.width == x.width && w.stride == 1) {
        sums(be, out, x, m, bias, act, residual, n * rows);
    } else if (w.outs >= ROWS_IN_PLACE && w.dilation == 1 && x.stride == x.width) {
        conv_in_place(be, sums, out, &w, m, bias, act, residual, n);
    } else {
        mt_par(cpu_of(be), (int64_t)n * w.outs, w.dst.width, window_run, &w);
        sums(be, out, w.dst, m, bias, act, residual, n * w.outs);
    }
    keep_past(&w, n);
}

static void conv(struct mt_backend *be, struct mt_rows out, struct mt_rows x,
                 const struct mt_mat *m, const struct mt_mat *bias, const struct mt_conv *c,
                 enum mt_act act, struct mt_rows residual, const struct mt_rows *past, int n,
                 int rows, struct mt_rows scratch)
{
    mt_conv_by(be, be->ops->linear, out, x, m, bias, c, act, residual, past, n, rows, scratch);
}

static void conv_each(struct mt_backend *be, struct mt_rows out, struct mt_rows x,
                      const struct mt_mat *m, const struct mt_conv *c, const struct mt_rows *past,
                      int n, int rows)
{
    struct window w = window_of(c, x, past, rows, MT_NO_ROWS);
    float f;

    (void)be;
    for (int64_t i = 0; i < (int64_t)n * rows; i++) {
        int64_t session = i / rows, t = i % rows;
        float *y = out.data + i * out.stride;

        for (int p = 0; p < c->stride; p++)
            for (int ch = 0; ch < x.width; ch++, y++) {
                double sum = 0;

                for (int tap = w.kernel - 1; tap >= 0; tap--) { /* oldest first */
                    num_decode(&f, m->type, mat_row(m, ch), p + tap * c->stride, 1);
                    sum += (double)window_row(&w, session, t - tap)[ch] * f;
                }
                *y = (float)sum;
            }
    }
    keep_past(&w, n);
}

/* ---- elements ---- */

static void activate(struct mt_backend *be, struct mt_rows out, struct mt_rows x, enum mt_act act,
                     int n)
{
    (void)be;
    for (int64_t r = 0; r < n; r++)
        for (int i = 0; i < x.width; i++)
            out.data[r * out.stride + i] = (float)num_act(act, x.data[r * x.stride + i]);
}

static void scaled_add(struct mt_backend *be, struct mt_rows out, struct mt_rows x,
                       const struct mt_mat *w, int n)
{
    (void)be;
    for (int64_t r = 0; r < n; r++)
        for (int i = 0; i < x.width; i++)
            out.data[r * out.stride + i] += x.data[r * x.stride + i] * w->vec[i];
}

/* ---- quantiser ---- */

void mt_scalar_quantize(struct mt_backend *be, int32_t *ids, struct mt_rows x,
                        const struct mt_mat *table, int n)
{
    float piece[256];

    (void)be;
    for (int64_t r = 0; r < n; r++) {
        float *v = x.data + r * x.stride;
        double best = INFINITY;

        ids[r] = 0;
        for (int64_t o = 0; o < table->rows; o++) {
            double sum = 0;

            for (int64_t k = 0; k < table->cols; k += 256) {
                int w = table->cols - k < 256 ? (int)(table->cols - k) : 256;

                num_decode(piece, table->type, mat_row(table, o), k, w);
                for (int i = 0; i < w; i++)
                    sum += ((double)v[k + i] - piece[i]) * ((double)v[k + i] - piece[i]);
            }
            if (sum < best) {
                best = sum;
                ids[r] = (int32_t)o;
            }
        }
        mt_quantize_take(v, table, ids[r]);
    }
}

void mt_quantize_take(float *v, const struct mt_mat *table, int32_t id)
{
    float piece[256];

    for (int64_t k = 0; k < table->cols; k += 256) {
        int w = table->cols - k < 256 ? (int)(table->cols - k) : 256;

        num_decode(piece, table->type, mat_row(table, id), k, w);
        for (int i = 0; i < w; i++)
            v[k + i] -= piece[i];
    }
}

void mt_scalar_codec(struct mt_ops *o)
{
    o->conv_new = mt_scalar_conv_new;
    o->conv = conv;
    o->conv_each = conv_each;
    o->activate = activate;
    o->scaled_add = scaled_add;
    o->quantize = mt_scalar_quantize;
}
