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

/* down: the type of what comes last. */
static void mixture_of(struct mt_backend *be, struct mixture *m, enum mt_dtype t,
                       enum mt_dtype down, int max_rows)
{
    for (int e = 0; e < m->n; e++) {
        m->gate[e] = weight_new(be, t, m->inner, m->width);
        m->up[e] = weight_new(be, t, m->inner, m->width);
        m->down[e] = weight_new(be, down, m->width, m->inner);
    }
    assert_int_equal(open_set(be, m, m->top, max_rows), 0);
}

static void mixture_new(struct mt_backend *be, struct mixture *m, enum mt_dtype t, int max_rows)
{
    mixture_of(be, m, t, t, max_rows);
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

/*
 * Row x under the logits: y in double; for the tolerance the sum of its terms' sizes, and in `last`
 * of those of the last product alone.
 */
static void by_hand(const struct mixture *m, const float *x, const float *logit, double *y,
                    double *abs, double *last)
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
        y[c] = abs[c] = last[c] = 0;
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
                last[c] += w * fabs(h * d);
            }
        }
    }
}

/* half: x is rounded to it, and what is between by those who multiply; F32: not at all. */
static void check_two(struct mt_backend *be, enum mt_dtype t, enum mt_dtype down,
                      struct mixture made, int n, bool residual, enum mt_dtype half)
{
    struct mixture *m = &made;
    float *x = rnd_floats((size_t)(n * m->width)), *logit = rnd_floats((size_t)(n * m->n));
    float *res = rnd_floats((size_t)(n * m->width)), *y = malloc((size_t)(n * m->width) * 4 + 1);
    double *want = malloc((size_t)m->width * 8), *abs = malloc((size_t)m->width * 8);
    double *last = malloc((size_t)m->width * 8);
    double step = half == MT_BF16 ? 0x1.01p-8 : half == MT_F16 ? 0x1.01p-11 : 0;

    for (int i = 0; i < n * m->width; i++) {
        char bytes[4];

        num_encode(bytes, NULL, half, &x[i], 1);
        num_decode(&x[i], half, bytes, 0, 1);
    }
    for (int i = 0; i < n * m->n; i++) /* ties: the lowest numbers win */
        logit[i] = i % 3 ? logit[i] : roundf(logit[i]);
    mixture_of(be, m, t, down, n);
    struct field fx = field_new(be, n, m->width, x), fl = field_new(be, n, m->n, logit);
    struct field fy = field_new(be, n, m->width, res);
    struct field scratch = field_new(be, (int64_t)n * m->top, m->width + 2 * m->inner, NULL);
    be->ops->experts(be, fy.v, fx.v, fl.v, m->ex, residual ? fy.v : MT_NO_ROWS, scratch.v, n);
    be->ops->rows_get(be, y, fy.v, n);
    for (int64_t r = 0; r < n; r++) {
        by_hand(m, x + r * m->width, logit + r * m->n, want, abs, last);
        for (int c = 0; c < m->width; c++) {
            double v = want[c] + (residual ? res[r * m->width + c] : 0);
            near(y[r * m->width + c], v,
                 (m->width + m->inner + m->top + 16) * EPS * (abs[c] + fabs(v)) + step * last[c],
                 "experts", r, c);
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
    free(last);
}

static void check(struct mt_backend *be, enum mt_dtype t, struct mixture m, int n, bool residual)
{
    check_two(be, t, t, m, n, residual, MT_F32);
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

/* N rows at once are what each of them is among a few, of `top` experts: the same bits. */
static void same_bits(struct mt_backend *be, enum mt_dtype t, enum mt_dtype down, struct mixture m,
                      int n, float *all)
{
    float *x = rnd_floats((size_t)(n * m.width)), *logit = rnd_floats((size_t)(n * m.n));
    size_t row = (size_t)m.width * sizeof(float);
    float *one = malloc(row);

    mixture_of(be, &m, t, down, n);
    struct field fx = field_new(be, n, m.width, x), fl = field_new(be, n, m.n, logit);
    struct field fy = field_new(be, n, m.width, NULL),
                 scratch = field_new(be, (int64_t)n * m.top, m.width + 2 * m.inner, NULL);
    be->ops->experts(be, fy.v, fx.v, fl.v, m.ex, MT_NO_ROWS, scratch.v, n);
    be->ops->rows_get(be, all, fy.v, n);
    for (int r = 0; r < n; r += 7) {
        int some = 1 + r % 5 < n - r ? 1 + r % 5 : 1;
        be->ops->experts(be, fy.v, mt_rows_from(fx.v, r), mt_rows_from(fl.v, r), m.ex, MT_NO_ROWS,
                         scratch.v, some);
        be->ops->rows_get(be, one, mt_rows_from(fy.v, some - 1), 1);
        assert_memory_equal(one, all + (ptrdiff_t)(r + some - 1) * m.width, row);
    }
    field_free(be, &fx);
    field_free(be, &fl);
    field_free(be, &fy);
    field_free(be, &scratch);
    mixture_free(be, &m);
    free(x);
    free(logit);
    free(one);
}

/* The same row alone, in any company, with any number of threads: the same bits. */
static void test_company(void **state)
{
    enum { N = 70, W = 65, I = 24 };
    static float all[3][N * W];

    (void)state;
    for (enum mt_cpu_tier t = MT_CPU_SCALAR; t <= tier_max(); t++) {
        uint64_t seed = rnd_state;

        for (int threads = 1; threads <= 3; threads++) {
            struct mt_backend *be = backend(t, threads);

            rnd_state = seed; /* the same weights and rows each time */
            same_bits(be, MT_BF16, MT_BF16, mix(12, 3, W, I, true), N, all[threads - 1]);
            assert_memory_equal(all[threads - 1], all[0], sizeof(all[0]));
            be->ops->free(be);
        }
    }
}

#ifdef TEST_CUDA
/*
 * Tensor cores: few rows an expert, and so many that tiles are wide; blocks of weights; downs of a
 * type that has no tiles, or of another one.
 */
static void test_tiles(void **state)
{
    static const enum mt_dtype downs[] = {MT_Q6_K, MT_Q5_0, MT_F32, MT_F16, MT_Q8_0};
    struct mt_backend *be;

    (void)state;
    assert_int_equal(mt_cuda_open(&be, "", NULL), 0);
    for (int i = 0; i < 16; i++) {
        enum mt_dtype t = i % 2 ? MT_BF16 : MT_F16;
        int n = rnd_int(1, N_MAX);

        check_two(be, t, t,
                  mix(n, rnd_int(1, n < 6 ? n : 6), 8 * rnd_int(1, 30), 8 * rnd_int(1, 12), i % 3),
                  rnd_int(1, 24), i % 5, t);
        check_two(be, t, t, mix(2, 1 + i % 2, 8 * rnd_int(1, 9), 8 * rnd_int(1, 12), true),
                  rnd_int(48, 150), false, t);
    }
    for (int i = 0; i < 4; i++) {
        enum mt_dtype t = i % 2 ? MT_Q8_0 : MT_Q4_K;

        check_two(be, t, t, mix(4, 2, 256, 256, true), rnd_int(1, 9), i % 2, MT_BF16);
        check_two(be, t, t, mix(2, 2, 256, 256, true), rnd_int(24, 30), i % 2, MT_BF16);
    }
    for (size_t i = 0; i < MT_COUNT(downs); i++) {
        enum mt_dtype t = i % 2 ? MT_BF16 : MT_Q4_K;

        check_two(be, t, downs[i], mix(3, 2, 256, 256, true), rnd_int(1, 9), i % 2, MT_BF16);
        check_two(be, t, downs[i], mix(2, 2, 256, 256, true), rnd_int(24, 30), i % 2, MT_BF16);
    }
    check_two(be, MT_BF16, MT_BF16, mix(3, 2, 20, 12, true), 5, true, MT_F32); /* there are none */
    be->ops->free(be);
}

/* With tiles too, whether company may change other sums or not. */
static void test_tiles_company(void **state)
{
    static float all[130 * 256];

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct mt_backend *be = open_as(i ? "deterministic" : "");

        same_bits(be, MT_BF16, MT_BF16, mix(4, 2, 72, 40, true), 130, all);
        same_bits(be, MT_Q8_0, MT_Q8_0, mix(2, 1, 256, 256, false), 60, all);
        same_bits(be, MT_Q4_K, MT_Q4_K, mix(2, 1, 256, 256, true), 60, all);
        same_bits(be, MT_Q4_K, MT_Q6_K, mix(2, 1, 256, 256, true), 60, all);
        be->ops->free(be);
    }
}
#endif

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
        cmocka_unit_test(test_shapes), cmocka_unit_test(test_company),
        cmocka_unit_test(test_edges),
#ifdef TEST_CUDA
        cmocka_unit_test(test_tiles),  cmocka_unit_test(test_tiles_company),
#endif
    };

    return cmocka_run_group_tests_name("kernels, experts", tests, NULL, NULL);
}
