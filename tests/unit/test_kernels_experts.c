/*
 * test_kernels_experts.c: mixtures of experts against a double version written here: which experts
 * a row takes, ties and NaN among the logits, the sum; and the promise that a row's bits do not
 * depend on its company, on threads or on where it stands.
 */
#include "test_kernels.h"

#include <errno.h>

enum { N_MAX = 40 };

struct mixture {
    int n, top, width, inner;
    bool norm;
    struct weight gate[N_MAX], up[N_MAX], down[N_MAX];
    struct mt_experts *ex;
};

static struct mixture mix(int n, int top, int width, int inner, bool norm)
{
    return (struct mixture){.n = n, .top = top, .width = width, .inner = inner, .norm = norm};
}

static int open_set(struct mt_backend *be, struct mixture *m, int top, int max_rows)
{
    struct mt_mat *mat[3][N_MAX];

    for (int e = 0; e < m->n; e++) {
        mat[0][e] = m->gate[e].m;
        mat[1][e] = m->up[e].m;
        mat[2][e] = m->down[e].m;
    }
    return be->ops->experts_new(
        be, &m->ex, &(struct mt_expert_set){m->n, top, m->norm, mat[0], mat[1], mat[2]}, max_rows);
}

static void mixture_new(struct mt_backend *be, struct mixture *m, enum mt_dtype t, int max_rows)
{
    for (int e = 0; e < m->n; e++) {
        m->gate[e] = weight_new(be, t, m->inner, m->width);
        m->up[e] = weight_new(be, t, m->inner, m->width);
        m->down[e] = weight_new(be, t, m->width, m->inner);
    }
    assert_int_equal(open_set(be, m, m->top, max_rows), 0);
}

static void mixture_free(struct mt_backend *be, struct mixture *m)
{
    be->ops->experts_free(be, m->ex);
    for (int e = 0; e < m->n; e++) {
        weight_free(be, &m->gate[e]);
        weight_free(be, &m->up[e]);
        weight_free(be, &m->down[e]);
    }
}

/* Row x under the logits: y in double, abs the sum of its terms' sizes for the tolerance. */
static void by_hand(const struct mixture *m, const float *x, const float *logit, double *y,
                    double *abs)
{
    bool taken[N_MAX] = {false};
    double max = -INFINITY, all = 0, chosen = 0;

    for (int e = 0; e < m->n; e++)
        max = fmax(max, logit[e]);
    for (int k = 0; k < m->top; k++) {
        int best = -1;

        for (int e = 0; e < m->n; e++)
            if (!taken[e] && (best < 0 || logit[e] > logit[best]))
                best = e;
        taken[best] = true;
    }
    for (int e = 0; e < m->n; e++) {
        all += exp(logit[e] - max);
        chosen += taken[e] ? exp(logit[e] - max) : 0;
    }
    for (int c = 0; c < m->width; c++)
        y[c] = abs[c] = 0;
    for (int e = 0; e < m->n; e++) {
        double w = exp(logit[e] - max) / (m->norm ? chosen : all);

        for (int i = 0; i < m->inner && taken[e]; i++) {
            double g = 0, u = 0, ga = 0, ua = 0, h, ha;

            for (int c = 0; c < m->width; c++) {
                g += (double)x[c] * m->gate[e].f[(int64_t)i * m->width + c];
                u += (double)x[c] * m->up[e].f[(int64_t)i * m->width + c];
                ga += fabs((double)x[c] * m->gate[e].f[(int64_t)i * m->width + c]);
                ua += fabs((double)x[c] * m->up[e].f[(int64_t)i * m->width + c]);
            }
            h = g / (1 + exp(-g)) * u;
            ha = 1.1 * ga * fabs(u) + fabs(g) * ua;
            for (int c = 0; c < m->width; c++) {
                double d = m->down[e].f[(int64_t)c * m->inner + i];

                y[c] += w * h * d;
                abs[c] += w * ha * fabs(d);
            }
        }
    }
}

static void check(struct mt_backend *be, enum mt_dtype t, struct mixture made, int n, bool residual)
{
    struct mixture *m = &made;
    float *x = rnd_floats((size_t)(n * m->width)), *logit = rnd_floats((size_t)(n * m->n));
    float *res = rnd_floats((size_t)(n * m->width)), *y = malloc((size_t)(n * m->width) * 4 + 1);
    double *want = malloc((size_t)m->width * 8), *abs = malloc((size_t)m->width * 8);

    for (int i = 0; i < n * m->n; i++) /* ties: the lowest numbers win */
        logit[i] = i % 3 ? logit[i] : roundf(logit[i]);
    mixture_new(be, m, t, n);
    struct field fx = field_new(be, n, m->width, x), fl = field_new(be, n, m->n, logit);
    struct field fy = field_new(be, n, m->width, res);
    struct field scratch = field_new(be, (int64_t)n * m->top, m->width + 2 * m->inner, NULL);
    be->ops->experts(be, fy.v, fx.v, fl.v, m->ex, residual ? fy.v : MT_NO_ROWS, scratch.v, n);
    be->ops->rows_get(be, y, fy.v, n);
    for (int64_t r = 0; r < n; r++) {
        by_hand(m, x + r * m->width, logit + r * m->n, want, abs);
        for (int c = 0; c < m->width; c++) {
            double v = want[c] + (residual ? res[r * m->width + c] : 0);
            near(y[r * m->width + c], v,
                 (m->width + m->inner + m->top + 16) * EPS * (abs[c] + fabs(v)), "experts", r, c);
        }
    }
    field_free(be, &fx);
    field_free(be, &fl);
    field_free(be, &fy);
    field_free(be, &scratch);
    mixture_free(be, m);
    free(x);
    free(logit);
    free(res);
    free(y);
    free(want);
    free(abs);
}

static void test_shapes(void **state)
{
    (void)state;
    for (enum mt_cpu_tier t = MT_CPU_SCALAR; t <= tier_max(); t++) {
        struct mt_backend *be = backend(t, 2);

        for (enum mt_dtype d = MT_F32; d <= MT_BF16; d++) {
            check(be, d, mix(1, 1, 1, 1, true), 1, false);
            check(be, d, mix(4, 4, 17, 9, true), 7, true);
            check(be, d, mix(40, 8, 33, 20, true), 19, true);
            check(be, d, mix(40, 8, 33, 20, false), 30, false);
            for (int i = 0; i < 12; i++) {
                int n = rnd_int(1, N_MAX);
                check(be, d, mix(n, rnd_int(1, n), rnd_int(1, 300), rnd_int(1, 70), rnd_int(0, 1)),
                      rnd_int(1, 24), rnd_int(0, 1));
            }
        }
        be->ops->free(be);
    }
}

/* The same row alone, in any company, with any number of threads: the same bits. */
static void test_company(void **state)
{
    enum { N = 70, W = 65, I = 24 };
    (void)state;
    for (enum mt_cpu_tier t = MT_CPU_SCALAR; t <= tier_max(); t++) {
        float *x = rnd_floats((size_t)N * W), *logit = rnd_floats((size_t)N * 12);
        static float all[N * W], one[W];
        uint64_t seed = rnd_state;

        for (int threads = 1; threads <= 3; threads++) {
            struct mt_backend *be = backend(t, threads);
            struct mixture m = mix(12, 3, W, I, true);

            rnd_state = seed; /* the same weights each time */
            mixture_new(be, &m, MT_BF16, N);
            struct field fx = field_new(be, N, W, x), fl = field_new(be, N, 12, logit);
            struct field fy = field_new(be, N, W, NULL),
                         scratch = field_new(be, N * 3, W + 2 * I, NULL);
            be->ops->experts(be, fy.v, fx.v, fl.v, m.ex, MT_NO_ROWS, scratch.v, N);
            if (threads == 1)
                be->ops->rows_get(be, all, fy.v, N);
            for (int r = 0; r < N; r++) {
                be->ops->rows_get(be, one, mt_rows_from(fy.v, r), 1);
                assert_memory_equal(one, all + (ptrdiff_t)r * W, sizeof(one));
            }
            for (int r = 0; r < N; r += 7) {
                int n = 1 + r % 5 < N - r ? 1 + r % 5 : 1;
                be->ops->experts(be, fy.v, mt_rows_from(fx.v, r), mt_rows_from(fl.v, r), m.ex,
                                 MT_NO_ROWS, scratch.v, n);
                be->ops->rows_get(be, one, mt_rows_from(fy.v, n - 1), 1);
                assert_memory_equal(one, all + (ptrdiff_t)(r + n - 1) * W, sizeof(one));
            }
            field_free(be, &fx);
            field_free(be, &fl);
            field_free(be, &fy);
            field_free(be, &scratch);
            mixture_free(be, &m);
            be->ops->free(be);
        }
        free(x);
        free(logit);
    }
}

/* NaN logits give a row of NaN at worst, and leave the others alone; sets that can't be. */
static void test_edges(void **state)
{
    struct mt_backend *be = backend(tier_max(), 1);
    struct mixture m = mix(5, 2, 8, 3, true);
    float logit[3][5] = {{0, 1, 2, 3, 4}, {NAN, NAN, NAN, NAN, NAN}, {0, 1, 2, 3, 4}}, y[3][8];
    float *x = rnd_floats(24);

    (void)state;
    memcpy(x + 16, x, 8 * sizeof(*x));
    mixture_new(be, &m, MT_F32, 3);
    struct field fx = field_new(be, 3, 8, x), fl = field_new(be, 3, 5, &logit[0][0]);
    struct field fy = field_new(be, 3, 8, NULL), scratch = field_new(be, 6, 8 + 6, NULL);
    be->ops->experts(be, fy.v, fx.v, fl.v, m.ex, MT_NO_ROWS, scratch.v, 3);
    be->ops->rows_get(be, &y[0][0], fy.v, 3);
    assert_memory_equal(y[0], y[2], sizeof(y[0]));
    assert_true(isfinite(y[0][0]) && isnan(y[1][0]));
    be->ops->experts(be, fy.v, fx.v, fl.v, m.ex, MT_NO_ROWS, scratch.v, 0);
    struct mt_experts *keep = m.ex;
    assert_int_equal(open_set(be, &m, 0, 3), -EINVAL);
    assert_int_equal(open_set(be, &m, 6, 3), -EINVAL);
    assert_int_equal(open_set(be, &m, 2, 0), -EINVAL);
    assert_null(m.ex);
    be->ops->experts_free(be, NULL);
    m.ex = keep;
    field_free(be, &fx);
    field_free(be, &fl);
    field_free(be, &fy);
    field_free(be, &scratch);
    mixture_free(be, &m);
    be->ops->free(be);
    free(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_company),
        cmocka_unit_test(test_edges),
    };

    return cmocka_run_group_tests_name("kernels, experts", tests, NULL, NULL);
}
