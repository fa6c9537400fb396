/*
 * test_kernels_linear.c: linear of every tier and storage type against a double sum, and the
 * promise that an output's bits do not depend on rows, columns, threads or company.
 */
#include "test_kernels.h"

static double act_of(enum mt_act act, double v)
{
    switch (act) {
    case MT_ACT_GELU:
        return 0.5 * v * (1 + erf(v / sqrt(2)));
    case MT_ACT_RELU:
        return v > 0 ? v : 0;
    case MT_ACT_SILU:
        return v / (1 + exp(-v));
    case MT_ACT_ELU:
        return v > 0 ? v : expm1(v);
    case MT_ACT_NONE:
        break;
    }
    return v;
}

/* What x is rounded to: cuBLAS multiplies bf16 with bf16. */
static enum mt_dtype x_type = MT_F32;

/*
 * The sum of `in` products errs by at most in * EPS * sum|terms|. An activation's slope is at most
 * 1.13, its own error a few units of the argument (1 + erf cancels to units of 1), as the
 * residual's sum.
 */
static void check(struct mt_backend *be, enum mt_dtype type, int64_t in, int64_t out, int n,
                  enum mt_act act, bool bias, int residual)
{
    struct weight w = weight_new(be, type, out, in), b = weight_new(be, MT_F16, 1, out);
    float *x = rnd_floats((size_t)(n * in)), *res = rnd_floats((size_t)(n * out));
    float *y = malloc((size_t)(n * out) * sizeof(float));

    for (int64_t i = 0; i < n * in; i++) {
        char bytes[4];

        num_encode(bytes, NULL, x_type, &x[i], 1);
        num_decode(&x[i], x_type, bytes, 0, 1);
    }
    struct field fx = field_new(be, n, in, x), fy = field_new(be, n, out, res);
    struct field fr = field_new(be, n, out, res);

    be->ops->linear(be, fy.v, fx.v, w.m, bias ? b.m : NULL, act,
                    residual == 0   ? MT_NO_ROWS
                    : residual == 1 ? fr.v
                                    : fy.v,
                    n);
    be->ops->rows_get(be, y, fy.v, n);
    for (int64_t r = 0; r < n; r++) {
        for (int64_t o = 0; o < out; o++) {
            double sum = bias ? b.f[o] : 0, abs = fabs(sum), v;

            for (int64_t k = 0; k < in; k++) {
                double p = (double)x[r * in + k] * w.f[o * in + k];

                sum += p;
                abs += fabs(p);
            }
            v = act_of(act, sum) + (residual ? res[r * out + o] : 0);
            near(y[r * out + o], v, 1.13 * (in + 8) * EPS * abs + 2 * EPS * fabs(v), "linear", r,
                 o);
        }
    }
    field_free(be, &fx);
    field_free(be, &fy);
    field_free(be, &fr);
    weight_free(be, &w);
    weight_free(be, &b);
    free(x);
    free(y);
    free(res);
}

static void test_shapes(void **state)
{
    (void)state;
    for (enum mt_cpu_tier t = MT_CPU_SCALAR; t <= tier_max(); t++) {
        struct mt_backend *be = backend(t, 2);

        for (enum mt_dtype d = MT_F32; d <= MT_BF16; d++) {
            for (unsigned i = 0; i < MT_COUNT(odd_sizes); i++)
                for (unsigned o = 0; o < MT_COUNT(odd_sizes); o++)
                    check(be, d, odd_sizes[i], odd_sizes[o], rnd_int(1, 10),
                          (enum mt_act)rnd_int(0, 3), rnd_int(0, 1), rnd_int(0, 2));
            check(be, d, 512, 16, 9, MT_ACT_NONE, true, 2);
            check(be, d, 513, 40, 70, MT_ACT_GELU, true, 1);
            check(be, d, 1100, 37, 131, MT_ACT_SILU, false, 0);
            check(be, d, 2051, 33, 1, MT_ACT_NONE, false, 2);
        }
        be->ops->free(be);
    }
}

/* Rows one at a time on one thread are the definition; any other cut must give the same bits. */
static void same_bits(enum mt_cpu_tier tier, enum mt_dtype type, int64_t in, int64_t out)
{
    enum { N = 150 };
    float *x = rnd_floats((size_t)(N * in)), *one = malloc((size_t)(N * out) * sizeof(float));
    float *many = malloc((size_t)(N * out) * sizeof(float)), *w = rnd_floats((size_t)(out * in));
    void *own;
    struct mt_bytes wb = bytes_new(w, type, out, in, &own);

    for (int64_t threads = 1; threads <= 3; threads++) {
        struct mt_backend *be = backend(tier, threads);
        struct field fx = field_new(be, N, in, x), fy = field_new(be, N, out, NULL);
        struct mt_mat *m;

        assert_int_equal(be->ops->mat_new(be, &m, &wb), 0);
        for (int64_t round = 0; round < 5; round++) {
            for (int64_t r = 0, n; r < N; r += n) {
                n = threads == 1 && round == 0 ? 1
                    : round == 1               ? N
                                               : rnd_int(1, round == 2 ? 9 : N - r);
                n = n > N - r ? N - r : n;
                be->ops->linear(be, mt_rows_from(fy.v, r), mt_rows_from(fx.v, r), m, NULL,
                                MT_ACT_GELU, MT_NO_ROWS, n);
            }
            be->ops->rows_get(be, threads == 1 && round == 0 ? one : many, fy.v, N);
            if (threads > 1 || round > 0)
                assert_memory_equal(one, many, (size_t)(N * out) * sizeof(float));
        }
        be->ops->mat_free(be, m);
        field_free(be, &fx);
        field_free(be, &fy);
        be->ops->free(be);
    }
    free(x);
    free(one);
    free(many);
    free(w);
    free(own);
}

static void test_bits(void **state)
{
    (void)state;
    for (enum mt_cpu_tier t = MT_CPU_SCALAR; t <= tier_max(); t++)
        for (enum mt_dtype d = MT_F32; d <= MT_BF16; d++) {
            same_bits(t, d, 700, 45);
            same_bits(t, d, 1037, 200);
            same_bits(t, d, 16, 8);
            same_bits(t, d, 5, 3);
        }
}

/* A column slice of the weights' outputs is the same, wherever it stands: slices of W as own
 * weights. */
static void test_bits_columns(void **state)
{
    enum { IN = 530, OUT = 61, N = 7 };
    float *x = rnd_floats((size_t)N * IN), *w = rnd_floats((size_t)OUT * IN), whole[N * OUT], part;

    (void)state;
    for (enum mt_cpu_tier t = MT_CPU_SCALAR; t <= tier_max(); t++) {
        struct mt_backend *be = backend(t, 1);
        struct field fx = field_new(be, N, IN, x), fy = field_new(be, N, OUT, NULL);
        struct mt_bytes b = {w, MT_F32, OUT, IN, false};
        struct mt_mat *m;

        assert_int_equal(be->ops->mat_new(be, &m, &b), 0);
        be->ops->linear(be, fy.v, fx.v, m, NULL, MT_ACT_SILU, MT_NO_ROWS, N);
        be->ops->rows_get(be, whole, fy.v, N);
        be->ops->mat_free(be, m);
        for (int64_t o = 0; o < OUT; o++) {
            b = (struct mt_bytes){w + o * IN, MT_F32, 1, IN, false};
            assert_int_equal(be->ops->mat_new(be, &m, &b), 0);
            be->ops->linear(be, mt_rows_cols(fy.v, o, 1), mt_rows_from(fx.v, o % N), m, NULL,
                            MT_ACT_SILU, MT_NO_ROWS, 1);
            be->ops->rows_get(be, &part, mt_rows_cols(fy.v, o, 1), 1);
            assert_memory_equal(&part, &whole[o % N * OUT + o], sizeof(part));
            be->ops->mat_free(be, m);
        }
        field_free(be, &fx);
        field_free(be, &fy);
        be->ops->free(be);
    }
    free(x);
    free(w);
}

/* Small integers are exact in any order: here every tier must agree to the bit. */
static void test_exact_integers(void **state)
{
    enum { IN = 1031, OUT = 29, N = 11 };
    float *x = malloc(sizeof(float) * N * IN), *w = malloc(sizeof(float) * OUT * IN);
    float want[N * OUT], got[N * OUT];

    (void)state;
    for (int64_t i = 0; i < (int64_t)N * IN; i++)
        x[i] = (float)rnd_int(-16, 16);
    for (int64_t i = 0; i < (int64_t)OUT * IN; i++)
        w[i] = (float)rnd_int(-8, 8);
    for (enum mt_cpu_tier t = MT_CPU_SCALAR; t <= tier_max(); t++) {
        struct mt_backend *be = backend(t, 2);
        struct field fx = field_new(be, N, IN, x), fy = field_new(be, N, OUT, NULL);

        for (enum mt_dtype d = MT_F32; d <= MT_BF16; d++) {
            void *own;
            struct mt_bytes b = bytes_new(w, d, OUT, IN, &own);
            struct mt_mat *m;
            bool first = t == MT_CPU_SCALAR && d == MT_F32;

            assert_int_equal(be->ops->mat_new(be, &m, &b), 0);
            be->ops->linear(be, fy.v, fx.v, m, NULL, MT_ACT_NONE, MT_NO_ROWS, N);
            be->ops->rows_get(be, first ? want : got, fy.v, N);
            if (!first)
                assert_memory_equal(want, got, sizeof(want));
            be->ops->mat_free(be, m);
            free(own);
        }
        field_free(be, &fx);
        field_free(be, &fy);
        be->ops->free(be);
    }
    free(x);
    free(w);
}

/* Every activation on many arguments, huge ones and what is no number too. */
static void test_activations(void **state)
{
    static const float odd[] = {0,    -0.0f, 1e-40f, -1e-40f, 87,    -87,    88.5f, -88.5f,
                                89,   -89,   104,    -104,    1e30f, -1e30f, 3.9f,  -3.9f,
                                4.1f, -4.1f, 5.5f,   -5.5f,   0.9f,  -0.9f};
    enum { N = 20000 };
    float *x = malloc(N * sizeof(float)), *y = malloc(N * sizeof(float)), one = 1;
    struct mt_bytes b = {&one, MT_F32, 1, 1, false};

    (void)state;
    for (int64_t i = 0; i < N; i++)
        x[i] = i < (int)MT_COUNT(odd) ? odd[i] : rnd_float() * (float)rnd_int(1, 12);
    for (enum mt_cpu_tier t = MT_CPU_SCALAR; t <= tier_max(); t++) {
        struct mt_backend *be = backend(t, 1);
        struct field fx = field_new(be, N, 1, x), fy = field_new(be, N, 1, NULL);
        struct mt_mat *m;
        float nan[] = {NAN, INFINITY, 2};

        assert_int_equal(be->ops->mat_new(be, &m, &b), 0);
        for (enum mt_act a = MT_ACT_NONE; a <= MT_ACT_ELU; a++) {
            be->ops->linear(be, fy.v, fx.v, m, NULL, a, MT_NO_ROWS, N);
            be->ops->rows_get(be, y, fy.v, N);
            for (int64_t i = 0; i < N; i++) {
                double want = act_of(a, x[i]);
                double slack = a == MT_ACT_GELU && fabsf(x[i]) < 10
                                   ? fabsf(x[i])
                                   : 0; /* erfc below 2e-8 may be 0 */

                near(y[i], want, 8 * EPS * fabs(want) + 2 * EPS * slack + 1e-36, "act", a, i);
            }
            be->ops->rows_put(be, fx.v, nan, 3);
            be->ops->linear(be, fy.v, fx.v, m, NULL, a, MT_NO_ROWS, 3);
            be->ops->rows_get(be, y, fy.v, 3);
            assert_true(isnan(y[0]));
            assert_true(isinf(y[1]));
            assert_false(isnan(y[2]));
            be->ops->rows_put(be, fx.v, x, 3);
        }
        be->ops->mat_free(be, m);
        field_free(be, &fx);
        field_free(be, &fy);
        be->ops->free(be);
    }
    free(x);
    free(y);
}

#ifdef TEST_CUDA
/* The way through cuBLAS (here a stand-in): columns first, x rounded, our epilogue. */
static void test_cublas(void **state)
{
    struct mt_backend *be;

    (void)state;
    assert_int_equal(mt_cuda_open(&be, "", NULL), 0);
    for (x_type = MT_F32; x_type <= MT_BF16; x_type++)
        for (int i = 0; i < 60; i++)
            check(be, x_type, rnd_int(1, 300), rnd_int(1, 90), rnd_int(1, 40),
                  (enum mt_act)rnd_int(0, 4), rnd_int(0, 1), rnd_int(0, 2));
    x_type = MT_F32;
    for (int i = 0; i < 20; i++) { /* several matrices: rows are cast once for those of a type */
        int n = rnd_int(1, 9), in = rnd_int(1, 200), out = rnd_int(1, 40);
        float *x = rnd_floats((size_t)n * (size_t)in), *got[2];
        struct field fx = field_new(be, n, in, x), fy[8];
        struct mt_linear list[4];
        struct weight w[4];

        for (int k = 0; k < 8; k++)
            fy[k] = field_new(be, n, out, NULL);
        for (int k = 0; k < 4; k++) {
            w[k] = weight_new(be, (enum mt_dtype)rnd_int(MT_F32, MT_BF16), out, in);
            list[k] = (struct mt_linear){fy[k].v, w[k].m, NULL, MT_ACT_NONE, MT_NO_ROWS};
        }
        be->ops->linears(be, fx.v, list, 4, n);
        for (int k = 0; k < 4; k++) {
            be->ops->linear(be, fy[4 + k].v, fx.v, w[k].m, NULL, MT_ACT_NONE, MT_NO_ROWS, n);
            for (int each = 0; each < 2; each++) {
                got[each] = malloc((size_t)n * (size_t)out * sizeof(float));
                be->ops->rows_get(be, got[each], fy[4 * each + k].v, n);
            }
            assert_memory_equal(got[0], got[1], (size_t)n * (size_t)out * sizeof(float));
            free(got[0]);
            free(got[1]);
        }
        for (int k = 0; k < 8; k++)
            field_free(be, &fy[k]);
        for (int k = 0; k < 4; k++)
            weight_free(be, &w[k]);
        field_free(be, &fx);
        free(x);
    }
    be->ops->free(be);
}

/* Not exact, and yet: rows are what they are alone, whichever stand beside them and wherever. */
static void test_deterministic(void **state)
{
    enum { N = 40, CUTS = 12 };
    struct mt_backend *be;

    (void)state;
    assert_int_equal(mt_cuda_open(&be, "deterministic", NULL), 0);
    for (int i = 0; i < 18; i++) {
        int in = rnd_int(1, 700), out = rnd_int(1, 60);
        float *x = rnd_floats((size_t)N * (size_t)in), *want, *got;
        struct field fx = field_new(be, N, in, x), all = field_new(be, N, out, NULL);
        struct weight w = weight_new(be, (enum mt_dtype)(i % 3), out, in);
        struct weight bias = weight_new(be, MT_F32, 1, out);
        const struct mt_mat *b = rnd_int(0, 1) ? bias.m : NULL;
        enum mt_act act = (enum mt_act)rnd_int(0, 4);

        want = malloc((size_t)N * (size_t)out * sizeof(*want));
        got = malloc((size_t)N * (size_t)out * sizeof(*got));
        be->ops->linear(be, all.v, fx.v, w.m, b, act, MT_NO_ROWS, N);
        be->ops->rows_get(be, want, all.v, N);
        for (int k = 0; k < CUTS; k++) {
            int n = rnd_int(1, k % 2 ? N : 3), first = rnd_int(0, N - n);

            be->ops->linear(be, mt_rows_from(all.v, first), mt_rows_from(fx.v, first), w.m, b, act,
                            MT_NO_ROWS, n);
            be->ops->rows_get(be, got, mt_rows_from(all.v, first), n);
            assert_memory_equal(got, want + (ptrdiff_t)first * out,
                                (size_t)n * (size_t)out * sizeof(*got));
        }
        weight_free(be, &w);
        weight_free(be, &bias);
        field_free(be, &fx);
        field_free(be, &all);
        free(x);
        free(want);
        free(got);
    }
    be->ops->free(be);
}

/* y = x W^T, and what it is when x has been to the host and back: nothing is known of it then. */
static void check_fresh(struct mt_backend *be, struct mt_rows x, const struct mt_mat *w, int out,
                        int n)
{
    float *rows = malloc((size_t)n * (size_t)x.width * sizeof(float));
    float *got[2] = {malloc((size_t)n * (size_t)out * sizeof(float)),
                     malloc((size_t)n * (size_t)out * sizeof(float))};
    struct field fy = field_new(be, n, out, NULL), fx;

    be->ops->linear(be, fy.v, x, w, NULL, MT_ACT_NONE, MT_NO_ROWS, n);
    be->ops->rows_get(be, got[0], fy.v, n);
    be->ops->rows_get(be, rows, x, n);
    fx = field_new(be, n, x.width, rows);
    be->ops->linear(be, fy.v, fx.v, w, NULL, MT_ACT_NONE, MT_NO_ROWS, n);
    be->ops->rows_get(be, got[1], fy.v, n);
    assert_memory_equal(got[0], got[1], (size_t)n * (size_t)out * sizeof(float));
    field_free(be, &fx);
    field_free(be, &fy);
    free(rows);
    free(got[0]);
    free(got[1]);
}

/* Rows that who wrote them has rounded too: never older ones than the rows are. */
static void test_rounded_once(void **state)
{
    struct mt_backend *be;

    (void)state;
    assert_int_equal(mt_cuda_open(&be, "", NULL), 0);
    for (int i = 0; i < 24; i++) {
        int n = rnd_int(1, 9), in = 8 * rnd_int(1, 20), out = rnd_int(1, 40);
        float *x = rnd_floats((size_t)n * (size_t)in);
        struct weight w = weight_new(be, i % 3 ? MT_BF16 : MT_F16, out, in);
        struct weight square = weight_new(be, MT_F32, in, in), v = weight_new(be, MT_F32, 1, in);
        struct field fx = field_new(be, n, in, x), fh = field_new(be, n, in, NULL);

        check_fresh(be, fx.v, w.m, out, n);
        be->ops->rms_norm(be, fh.v, fx.v, v.m, 1e-6f, n);
        check_fresh(be, fh.v, w.m, out, n);
        be->ops->layer_norm(be, fh.v, fh.v, v.m, v.m, 1e-6f, n);
        check_fresh(be, fh.v, w.m, out, n);
        be->ops->rms_norm(be, fh.v, fx.v, v.m, 1e-6f, n);
        be->ops->rows_put(be, fh.v, x, n);
        check_fresh(be, fh.v, w.m, out, n);
        be->ops->rms_norm(be, fh.v, fx.v, v.m, 1e-6f, n);
        be->ops->linear(be, fh.v, fx.v, square.m, NULL, MT_ACT_NONE, MT_NO_ROWS, n);
        check_fresh(be, fh.v, w.m, out, n);
        be->ops->gated(be, fh.v, fx.v, fh.v, n);
        check_fresh(be, fh.v, w.m, out, n);
        be->ops->gated(be, fh.v, fh.v, fx.v, n);
        be->ops->activate(be, fh.v, fh.v, MT_ACT_RELU, n);
        check_fresh(be, fh.v, w.m, out, n);
        weight_free(be, &w);
        weight_free(be, &square);
        weight_free(be, &v);
        field_free(be, &fx);
        field_free(be, &fh);
        free(x);
    }
    be->ops->free(be);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
#ifdef TEST_CUDA
        cmocka_unit_test(test_rounded_once),  cmocka_unit_test(test_cublas),
        cmocka_unit_test(test_deterministic),
#endif
        cmocka_unit_test(test_shapes),        cmocka_unit_test(test_bits),
        cmocka_unit_test(test_bits_columns),  cmocka_unit_test(test_exact_integers),
        cmocka_unit_test(test_activations),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
