/*
 * scalar_encoder.c: what an audio encoder needs besides: convolution over time (the reference
 * unfolds each window into a row of scratch and calls linear, as the fast tiers do with theirs),
 * learned positions and mean pooling. No tier has another version of these loops: they only move.
 */
#include "kernels/cpu/cpu.h"

struct unfold {
    struct mt_rows dst, x;
    int kernel, stride, pad;
    const struct mt_span *spans;
    int n_spans;
    int64_t rows;
};

static int64_t conv_rows(const struct unfold *u, const struct mt_span *s)
{
    return conv_length(s->n, u->kernel, u->stride, u->pad);
}

/* Output row i (of all spans) reads x at times t*stride - pad ...; columns [in][kernel] as W has
 * them. */
static void unfold_run(void *arg, int thread, int64_t begin, int64_t end)
{
    const struct unfold *u = arg;
    int64_t first = 0;
    const struct mt_span *s = u->spans;

    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        float *dst = u->dst.data + i * u->dst.stride;
        int64_t t0;

        while (i - first >= conv_rows(u, s))
            first += conv_rows(u, s++);
        t0 = (i - first) * u->stride - u->pad;
        for (int k = 0; k < u->kernel; k++) {
            const float *x = u->x.data + (s->row + t0 + k) * u->x.stride;
            bool inside = t0 + k >= 0 && t0 + k < s->n;

            for (int c = 0; c < u->x.width; c++)
                dst[(int64_t)c * u->kernel + k] = inside ? x[c] : 0;
        }
    }
}

static void conv1d(struct mt_backend *be, struct mt_rows out, struct mt_rows x,
                   const struct mt_mat *w, const struct mt_mat *bias, int kernel, int stride,
                   int pad, enum mt_act act, const struct mt_span *spans, int n_spans,
                   struct mt_rows scratch)
{
    struct unfold u = {scratch, x, kernel, stride, pad, spans, n_spans, 0};

    for (int s = 0; s < n_spans; s++)
        u.rows += conv_rows(&u, &spans[s]);
    if (!u.rows)
        return;
    u.dst.width = x.width * kernel;
    mt_par(cpu_of(be), u.rows, u.dst.width, unfold_run, &u);
    be->ops->linear(be, out, u.dst, w, bias, act, MT_NO_ROWS, (int)u.rows);
}

static void add_positions(struct mt_backend *be, struct mt_rows x, const struct mt_mat *table,
                          const struct mt_span *spans, int n_spans)
{
    float piece[256];

    (void)be;
    for (int s = 0; s < n_spans; s++) {
        for (int64_t r = 0; r < spans[s].n; r++) {
            float *y = x.data + (spans[s].row + r) * x.stride;

            for (int64_t c = 0; c < table->cols; c += 256) {
                int n = table->cols - c < 256 ? (int)(table->cols - c) : 256;

                num_decode(piece, table->type, mat_row(table, r), c, n);
                for (int i = 0; i < n; i++)
                    y[c + i] += piece[i];
            }
        }
    }
}

static void mean_rows(struct mt_backend *be, struct mt_rows out, struct mt_rows x, int size,
                      const struct mt_span *spans, int n_spans)
{
    float *y = out.data;

    (void)be;
    for (int s = 0; s < n_spans; s++) {
        for (int g = 0; g < spans[s].n / size; g++, y += out.stride) {
            const float *a = x.data + (spans[s].row + (int64_t)g * size) * x.stride;

            for (int c = 0; c < x.width; c++) {
                float sum = a[c];

                for (int64_t r = 1; r < size; r++)
                    sum += a[r * x.stride + c];
                y[c] = sum / (float)size;
            }
        }
    }
}

void mt_scalar_encoder(struct mt_ops *o)
{
    o->conv1d = conv1d;
    o->add_positions = add_positions;
    o->mean_rows = mean_rows;
}
