/*
 * scalar_linear.c: the reference of act(x W^T + bias) + residual: each output is one sum in double,
 * columns ascending. A few rows of x share the decoding of a piece of a weight row.
 */
#include "kernels/cpu/cpu.h"

#define ROWS 16  /* rows of x that share a decoded piece */
#define COLS 256 /* columns in a piece */

struct job {
    struct mt_rows out, x, residual;
    const struct mt_mat *w, *bias;
    enum mt_act act;
    int n;
};

static void run(void *arg, int thread, int64_t begin, int64_t end)
{
    const struct job *j = arg;
    int64_t cols = j->w->cols;
    float piece[COLS];

    (void)thread;
    for (int64_t o = begin; o < end; o++) {
        for (int r0 = 0; r0 < j->n; r0 += ROWS) {
            int nr = j->n - r0 < ROWS ? j->n - r0 : ROWS;
            double sum[ROWS] = {0};

            for (int64_t k0 = 0; k0 < cols; k0 += COLS) {
                int nk = cols - k0 < COLS ? (int)(cols - k0) : COLS;

                num_decode(piece, j->w->type, mat_row(j->w, o), k0, nk);
                for (int r = 0; r < nr; r++) {
                    const float *x = j->x.data + (r0 + r) * j->x.stride + k0;

                    for (int k = 0; k < nk; k++)
                        sum[r] += (double)x[k] * piece[k];
                }
            }
            for (int r = 0; r < nr; r++) {
                double v = num_act(j->act, sum[r] + (j->bias ? j->bias->vec[o] : 0));

                if (j->residual.data)
                    v += j->residual.data[(r0 + r) * j->residual.stride + o];
                j->out.data[(r0 + r) * j->out.stride + o] = (float)v;
            }
        }
    }
}

static void linear(struct mt_backend *be, struct mt_rows out, struct mt_rows x,
                   const struct mt_mat *w, const struct mt_mat *bias, enum mt_act act,
                   struct mt_rows residual, int n)
{
    struct job j = {out, x, residual, w, bias, act, n};

    mt_par(cpu_of(be), w->rows, w->cols * n, run, &j);
}

static void linears(struct mt_backend *be, struct mt_rows x, const struct mt_linear *list,
                    int count, int n)
{
    for (const struct mt_linear *l = list; l < list + count; l++)
        be->ops->linear(be, l->out, x, l->w, l->bias, l->act, l->residual, n);
}

void mt_scalar_linear(struct mt_ops *o)
{
    o->linear = linear;
    o->linears = linears;
}
