/*
 * scalar_norm.c: the reference for the operations on one row at a time: RMS norm, layer norm and
 * the gated activation. Sums in double.
 */
#include "kernels/cpu/cpu.h"

static void rms_norm(struct mt_backend *be, struct mt_rows out, struct mt_rows x,
                     const struct mt_mat *w, float eps, int n)
{
    int width = (int)w->cols, pieces = x.width / width;

    (void)be;
    for (int64_t p = 0; p < (int64_t)n * pieces; p++) {
        const float *a = x.data + p / pieces * x.stride + p % pieces * width;
        float *y = out.data + p / pieces * out.stride + p % pieces * width;
        double sum = 0, scale;

        for (int i = 0; i < width; i++)
            sum += (double)a[i] * a[i];
        scale = 1 / sqrt(sum / width + eps);
        for (int i = 0; i < width; i++)
            y[i] = (float)(a[i] * scale * w->vec[i]);
    }
}

static void layer_norm(struct mt_backend *be, struct mt_rows out, struct mt_rows x,
                       const struct mt_mat *w, const struct mt_mat *b, float eps, int n)
{
    (void)be;
    for (int r = 0; r < n; r++) {
        const float *a = x.data + r * x.stride;
        float *y = out.data + r * out.stride;
        double mean = 0, var = 0, scale;

        for (int i = 0; i < x.width; i++)
            mean += a[i];
        mean /= x.width;
        for (int i = 0; i < x.width; i++)
            var += (a[i] - mean) * (a[i] - mean);
        scale = 1 / sqrt(var / x.width + eps);
        for (int i = 0; i < x.width; i++)
            y[i] = (float)((a[i] - mean) * scale * w->vec[i] + b->vec[i]);
    }
}

static void gated(struct mt_backend *be, struct mt_rows out, struct mt_rows gate, struct mt_rows up,
                  int n)
{
    (void)be;
    for (int r = 0; r < n; r++) {
        const float *g = gate.data + r * gate.stride, *u = up.data + r * up.stride;
        float *y = out.data + r * out.stride;

        for (int i = 0; i < gate.width; i++)
            y[i] = (float)(g[i] / (1 + exp(-(double)g[i])) * u[i]);
    }
}

void mt_scalar_norm(struct mt_ops *o)
{
    o->rms_norm = rms_norm;
    o->layer_norm = layer_norm;
    o->gated = gated;
}
