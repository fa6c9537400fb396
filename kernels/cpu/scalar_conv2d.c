/*
 * scalar_conv2d.c: convolution over time and height. Each output pixel's window is unfolded into a
 * row of scratch, as many pixels at a time as scratch has rows; linear of the tier does the sums;
 * the channels of a pixel are then dealt out over its time's row. These loops only move, so no tier
 * has another version.
 */
#include "kernels/cpu/cpu.h"

struct job {
    struct mt_rows out, x, patch, sums;
    int height, kernel, stride, pad;
    const struct mt_span *spans;
    int out_height;
    int64_t first; /* pixel in scratch row 0; pixels count along the height, then over time */
};

/* One window, [channel][height][time] as W has it; it begins at t0, h0, which may be outside. */
static void unfold(const struct job *j, const struct mt_span *s, int64_t t0, int h0, float *dst)
{
    int kernel = j->kernel, channels = j->x.width / j->height;

    for (int c = 0; c < channels; c++) {
        const float *x = j->x.data + s->row * j->x.stride + (int64_t)c * j->height;

        for (int kh = 0; kh < kernel; kh++) {
            int h = h0 + kh;
            bool inside = h >= 0 && h < j->height;

            for (int kt = 0; kt < kernel; kt++) {
                int64_t t = t0 + kt;

                *dst++ = inside && t >= 0 && t < s->n ? x[t * j->x.stride + h] : 0;
            }
        }
    }
}

static void unfold_run(void *arg, int thread, int64_t begin, int64_t end)
{
    const struct job *j = arg;
    const struct mt_span *s = j->spans;
    int64_t before = 0; /* output times of the spans before s */

    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        int64_t time = (j->first + i) / j->out_height;
        int h = (int)((j->first + i) % j->out_height);

        while (time - before >= conv_length(s->n, j->kernel, j->stride, j->pad))
            before += conv_length((s++)->n, j->kernel, j->stride, j->pad);
        unfold(j, s, (time - before) * j->stride - j->pad, h * j->stride - j->pad,
               j->patch.data + i * j->patch.stride);
    }
}

static void deal_run(void *arg, int thread, int64_t begin, int64_t end)
{
    const struct job *j = arg;

    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        const float *sum = j->sums.data + i * j->sums.stride;
        float *y = j->out.data + (j->first + i) / j->out_height * j->out.stride +
                   (j->first + i) % j->out_height;

        for (int c = 0; c < j->sums.width; c++)
            y[(int64_t)c * j->out_height] = sum[c];
    }
}

static void conv2d(struct mt_backend *be, struct mt_rows out, struct mt_rows x,
                   const struct mt_mat *w, const struct mt_mat *bias, int height, int kernel,
                   int stride, int pad, enum mt_act act, const struct mt_span *spans, int n_spans,
                   struct mt_rows scratch, int scratch_rows)
{
    int cols = (int)w->cols, channels = (int)w->rows;
    int out_height = (int)conv_length(height, kernel, stride, pad);
    struct job j = {out,
                    x,
                    mt_rows_cols(scratch, 0, cols),
                    mt_rows_cols(scratch, cols, channels),
                    height,
                    kernel,
                    stride,
                    pad,
                    spans,
                    out_height,
                    0};
    int64_t pixels = 0;

    for (int s = 0; s < n_spans; s++)
        pixels += conv_length(spans[s].n, kernel, stride, pad) * out_height;
    for (; j.first < pixels; j.first += scratch_rows) {
        int n = (int)(pixels - j.first < scratch_rows ? pixels - j.first : scratch_rows);

        mt_par(cpu_of(be), n, cols, unfold_run, &j);
        be->ops->linear(be, j.sums, j.patch, w, bias, act, MT_NO_ROWS, n);
        mt_par(cpu_of(be), n, channels, deal_run, &j);
    }
}

void mt_scalar_conv2d(struct mt_ops *o)
{
    o->conv2d = conv2d;
}
