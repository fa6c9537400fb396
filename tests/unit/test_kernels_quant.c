/*
 * test_kernels_quant.c: weights in ggml's blocks: decoded bit for bit as llama.cpp does (values
 * made by golden/make_gguf.py), and used by embed and linear of every tier.
 */
#include "test_kernels.h"

#include <errno.h>

#include "util.h"

static const enum mt_dtype kinds[] = {MT_Q4_0, MT_Q4_1, MT_Q5_0, MT_Q5_1,
                                      MT_Q8_0, MT_Q4_K, MT_Q5_K, MT_Q6_K};

static void *read_file(enum mt_dtype t, const char *end, size_t *n)
{
    char path[600];
    FILE *f;
    void *p;

    snprintf(path, sizeof(path), "%s/golden/gguf/blocks/%s.%s", util_tests(), mt_dtype_name(t),
             end);
    if (!(f = fopen(path, "rb")))
        fail_msg("%s: not there", path);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    *n = (size_t)ftell(f);
    rewind(f);
    p = malloc(*n);
    assert_int_equal(fread(p, 1, *n, f), *n);
    fclose(f);
    return p;
}

static void test_decode(void **state)
{
    (void)state;
    for (size_t i = 0; i < MT_COUNT(kinds); i++) {
        size_t bytes, size;
        char *blocks = read_file(kinds[i], "blocks", &bytes);
        float *want = read_file(kinds[i], "f32", &size);
        int64_t n = (int64_t)(size / sizeof(float));
        float *got = malloc(size);

        assert_int_equal(mt_dtype_row_bytes(kinds[i], n), bytes);
        num_decode(got, kinds[i], blocks, 0, n);
        assert_memory_equal(got, want, size);
        for (int k = 0; k < 200; k++) { /* any piece of a row */
            int64_t from = rnd_int(0, (int)n), many = rnd_int(0, (int)(n - from));

            num_decode(got, kinds[i], blocks, from, many);
            assert_memory_equal(got, want + from, (size_t)many * sizeof(float));
        }
        free(blocks);
        free(want);
        free(got);
    }
}

static void test_row_bytes(void **state)
{
    (void)state;
    assert_int_equal(mt_dtype_row_bytes(MT_F32, 7), 28);
    assert_int_equal(mt_dtype_row_bytes(MT_BF16, 7), 14);
    assert_int_equal(mt_dtype_row_bytes(MT_Q8_0, 64), 68);
    assert_int_equal(mt_dtype_row_bytes(MT_Q8_0, 33), -1);
    assert_int_equal(mt_dtype_row_bytes(MT_Q4_K, 896), -1);
    assert_int_equal(mt_dtype_row_bytes(MT_Q6_K, 1024), 840);
    assert_int_equal(mt_dtype_row_bytes(MT_Q4_K, -256), -1);
    assert_int_equal(mt_dtype_row_bytes(MT_F32, INT64_MAX), -1);
    assert_int_equal(mt_dtype_size(MT_Q4_0), 0);
}

/* A weight [rows, cols] of a type: any bits, scales of about 1/64. */
static struct mt_bytes quant_new(enum mt_dtype t, int64_t rows, int64_t cols, char **own, float **f)
{
    int64_t row = mt_dtype_row_bytes(t, cols);
    char *p = malloc((size_t)(rows * row) + 1);
    float *v = malloc((size_t)(rows * cols) * sizeof(*v));

    assert_non_null(p);
    rnd_blocks(p + 1, t, rows * row);
    for (int64_t r = 0; r < rows; r++)
        num_decode(v + r * cols, t, p + 1 + r * row, 0, cols);
    *own = p;
    *f = v;
    return (struct mt_bytes){p + 1, t, rows, cols, false};
}

/*
 * Rows of x as the tiers from AVX2 on take them: in blocks of 32 columns, int8, a step of maxabs /
 * 127. out may be x. step[k] is half the step, or 0 where the tier takes x as it is: what an
 * element may err by.
 */
static void quantise(enum mt_cpu_tier tier, float *out, double *half_step, const float *x,
                     int64_t n)
{
    for (int64_t b = 0; b < n; b += 32) {
        float max = 0;

        for (int64_t k = b; k < b + 32; k++)
            max = fabsf(x[k]) > max ? fabsf(x[k]) : max;
        for (int64_t k = b; k < b + 32; k++) {
            half_step[k] = tier >= MT_CPU_AVX2 ? max / 254 * (1 + 4 * EPS) : 0;
            out[k] = tier < MT_CPU_AVX2 ? x[k]
                     : max > 0          ? rintf(x[k] * (127 / max)) * (max / 127)
                                        : 0;
        }
    }
}

/*
 * Twice: against a double sum over x as it is, where each element of x errs by half a step at most;
 * and over x quantised here, where nothing but the rounding of a sum in f32 is left.
 */
static void check_linear(struct mt_backend *be, enum mt_cpu_tier tier, enum mt_dtype t, int64_t in,
                         int64_t out, int n)
{
    char *own;
    float *w, *x = rnd_floats((size_t)(n * in)), *y = malloc((size_t)(n * out) * sizeof(float));
    float *res = rnd_floats((size_t)(n * out)), *bias = rnd_floats((size_t)out);
    float *q = malloc((size_t)(n * in) * sizeof(float));
    double *half = malloc((size_t)(n * in) * sizeof(double));
    struct mt_bytes b = quant_new(t, out, in, &own, &w), bb = {bias, MT_F32, 1, out, false};
    struct field fx = field_new(be, n, in, x), fy = field_new(be, n, out, res);
    struct mt_mat *m, *mb;

    for (int64_t r = 0; r < n; r++)
        quantise(tier, q + r * in, half + r * in, x + r * in, in);
    assert_int_equal(be->ops->mat_new(be, &m, &b), 0);
    assert_int_equal(be->ops->mat_new(be, &mb, &bb), 0);
    be->ops->linear(be, fy.v, fx.v, m, mb, MT_ACT_RELU, fy.v, n);
    be->ops->rows_get(be, y, fy.v, n);
    for (int64_t r = 0; r < n; r++) {
        for (int64_t o = 0; o < out; o++) {
            double sum = bias[o], sum_q = bias[o], abs = fabs(bias[o]), err = 0;
            double add = res[r * out + o];

            for (int64_t k = 0; k < in; k++) {
                double p = w[o * in + k];

                sum += p * x[r * in + k];
                sum_q += p * q[r * in + k];
                abs += fabs(p * x[r * in + k]);
                err += fabs(p) * half[r * in + k];
            }
            /* Scales and minima of a type are rounded apart: products of up to four factors. */
            double eps = (in + 24) * EPS * 2 * (abs + err) + 2 * EPS * fabs(add);
            near(y[r * out + o], (sum > 0 ? sum : 0) + add, err + eps, "linear", r, o);
            near(y[r * out + o], (sum_q > 0 ? sum_q : 0) + add, eps, "linear, quantised", r, o);
        }
    }
    be->ops->mat_free(be, m);
    be->ops->mat_free(be, mb);
    field_free(be, &fx);
    field_free(be, &fy);
    free(own);
    free(w);
    free(x);
    free(y);
    free(q);
    free(half);
    free(res);
    free(bias);
}

/* Frees be, which takes x as `tier` does. */
static void check_shapes(struct mt_backend *be, enum mt_cpu_tier tier)
{
    for (size_t i = 0; i < MT_COUNT(kinds); i++) {
        int64_t block = mt_dtype_block(kinds[i]);

        check_linear(be, tier, kinds[i], block, 1, 1);
        check_linear(be, tier, kinds[i], 3 * block, 45, rnd_int(1, 13));
        check_linear(be, tier, kinds[i], 768, 9, 1);
        check_linear(be, tier, kinds[i], 2304, 19, 2);
        check_linear(be, tier, kinds[i], 1280, 20, 70);
        check_linear(be, tier, kinds[i], rnd_int(1, 5) * block, rnd_int(1, 80), rnd_int(1, 40));
    }
    be->ops->free(be);
}

static void test_linear(void **state)
{
    (void)state;
    for (enum mt_cpu_tier tier = MT_CPU_SCALAR; tier <= tier_max(); tier++)
        check_shapes(backend(tier, 2), tier);
}

#ifndef TEST_CUDA
/* cpu:exact: x is not rounded, whatever the tier. */
static void test_exact(void **state)
{
    (void)state;
    for (enum mt_cpu_tier tier = MT_CPU_BASE; tier <= tier_max(); tier++) {
        struct mt_backend *be = backend(tier, 2);

        mt_cpu_exact(be, tier);
        check_shapes(be, MT_CPU_BASE);
    }
}
#endif

/* Rows one at a time on one thread are the definition; any other cut must give the same bits. */
static void same_bits(enum mt_cpu_tier tier, enum mt_dtype t, int64_t in, int64_t out)
{
    enum { N = 290 };
    float *x = rnd_floats((size_t)(N * in)), *one = malloc((size_t)(N * out) * sizeof(float));
    float *many = malloc((size_t)(N * out) * sizeof(float)), *w;
    char *own;
    struct mt_bytes b = quant_new(t, out, in, &own, &w);

    for (int64_t threads = 1; threads <= 3; threads++) {
        struct mt_backend *be = backend(tier, (int)threads);
        struct field fx = field_new(be, N, (int)in, x), fy = field_new(be, N, (int)out, NULL);
        struct mt_mat *m;

        assert_int_equal(be->ops->mat_new(be, &m, &b), 0);
        for (int64_t round = 0; round < 4; round++) {
            bool first = threads == 1 && round == 0;

            for (int64_t r = 0, n; r < N; r += n) {
                n = first ? 1 : round == 1 ? N : rnd_int(1, round == 2 ? 15 : 60);
                n = n > N - r ? N - r : n;
                be->ops->linear(be, mt_rows_from(fy.v, r), mt_rows_from(fx.v, r), m, NULL,
                                MT_ACT_SILU, MT_NO_ROWS, (int)n);
            }
            be->ops->rows_get(be, first ? one : many, fy.v, N);
            if (!first)
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
    for (enum mt_cpu_tier t = MT_CPU_AVX2; t <= tier_max(); t++) {
        for (size_t i = 0; i < MT_COUNT(kinds); i++) {
            same_bits(t, kinds[i], 768, 45);
            same_bits(t, kinds[i], mt_dtype_block(kinds[i]), 17);
        }
    }
}

/* Several matrices of one x are as many calls, whatever their types. */
static void test_linears(void **state)
{
    enum { IN = 512, N = 19 };
    static const enum mt_dtype types[] = {MT_Q4_K, MT_F32, MT_Q8_0, MT_BF16};
    static const int outs[] = {70, 33, 16, 9};
    float *x = rnd_floats((size_t)N * IN), alone[N * 70], together[N * 70];

    (void)state;
    for (enum mt_cpu_tier tier = MT_CPU_SCALAR; tier <= tier_max(); tier++) {
        struct mt_backend *be = backend(tier, 2);
        struct field fx = field_new(be, N, IN, x), fy[4];
        struct mt_linear list[4];
        struct mt_mat *m[4];
        char *own[4];
        float *w[4];

        for (int i = 0; i < 4; i++) {
            struct mt_bytes b;

            if (types[i] > MT_FP8) {
                b = quant_new(types[i], outs[i], IN, &own[i], &w[i]);
            } else {
                w[i] = rnd_floats((size_t)outs[i] * IN);
                b = bytes_new(w[i], types[i], outs[i], IN, (void **)&own[i]);
            }
            assert_int_equal(be->ops->mat_new(be, &m[i], &b), 0);
            fy[i] = field_new(be, N, outs[i], NULL);
            list[i] = (struct mt_linear){fy[i].v, m[i], NULL, MT_ACT_NONE, MT_NO_ROWS};
        }
        be->ops->linears(be, fx.v, list, 4, N);
        for (int i = 0; i < 4; i++) {
            size_t size = sizeof(float) * N * (size_t)outs[i];

            be->ops->rows_get(be, together, fy[i].v, N);
            be->ops->linear(be, fy[i].v, fx.v, m[i], NULL, MT_ACT_NONE, MT_NO_ROWS, N);
            be->ops->rows_get(be, alone, fy[i].v, N);
            assert_memory_equal(alone, together, size);
            field_free(be, &fy[i]);
            be->ops->mat_free(be, m[i]);
            free(own[i]);
            free(w[i]);
        }
        field_free(be, &fx);
        be->ops->free(be);
    }
    free(x);
}

/* What is no number poisons its own row and no other; huge, tiny and no values at all. */
static void test_odd_rows(void **state)
{
    enum { IN = 256, OUT = 20, N = 6 };
    float *x = rnd_floats((size_t)N * IN), y[N * OUT];

    (void)state;
    x[0 * IN + 37] = NAN;
    x[1 * IN + 255] = -INFINITY;
    for (int k = 0; k < IN; k++) {
        x[2 * IN + k] *= 1e30f;
        x[3 * IN + k] *= 1e-38f;
        x[4 * IN + k] = 0;
    }
    for (enum mt_cpu_tier tier = MT_CPU_AVX2; tier <= tier_max(); tier++) {
        for (size_t i = 0; i < MT_COUNT(kinds); i++) {
            struct mt_backend *be = backend(tier, 1);
            struct field fx = field_new(be, N, IN, x), fy = field_new(be, N, OUT, NULL);
            char *own;
            float *w;
            struct mt_bytes b = quant_new(kinds[i], OUT, IN, &own, &w);
            struct mt_mat *m;

            assert_int_equal(be->ops->mat_new(be, &m, &b), 0);
            be->ops->linear(be, fy.v, fx.v, m, NULL, MT_ACT_NONE, MT_NO_ROWS, N);
            be->ops->rows_get(be, y, fy.v, N);
            for (int o = 0; o < OUT; o++) {
                assert_true(isnan(y[o]) && isnan(y[OUT + o]));
                assert_true(isfinite(y[2 * OUT + o]) && isfinite(y[5 * OUT + o]));
                assert_true(fabsf(y[3 * OUT + o]) < 1e-30f);
                assert_true(y[4 * OUT + o] == 0);
            }
            be->ops->mat_free(be, m);
            field_free(be, &fx);
            field_free(be, &fy);
            be->ops->free(be);
            free(own);
            free(w);
        }
    }
    free(x);
}

/* Rows of a table, the plain values of them; a vector; and what no weight can be. */
static void test_embed(void **state)
{
    enum { ROWS = 11, COLS = 768 };
    static const int32_t ids[] = {3, -1, 0, 10, 3};

    (void)state;
    for (size_t i = 0; i < MT_COUNT(kinds); i++) {
        struct mt_backend *be = backend(tier_max(), 1);
        float *w, got[MT_COUNT(ids) * COLS];
        char *own;
        struct mt_bytes b = quant_new(kinds[i], ROWS, COLS, &own, &w);
        struct field f = field_new(be, MT_COUNT(ids), COLS, NULL);
        struct mt_mat *m;

        assert_int_equal(be->ops->mat_new(be, &m, &b), 0);
        be->ops->embed(be, f.v, m, ids, MT_COUNT(ids));
        be->ops->rows_get(be, got, f.v, MT_COUNT(ids));
        for (size_t r = 0; r < MT_COUNT(ids); r++)
            if (ids[r] >= 0)
                assert_memory_equal(got + r * COLS, w + ids[r] * COLS, COLS * sizeof(float));
        be->ops->embed_add(be, f.v, m, ids, MT_COUNT(ids));
        be->ops->rows_get(be, got, f.v, MT_COUNT(ids));
        for (int c = 0; c < COLS; c++)
            assert_true(got[c] == 2 * w[3 * COLS + c]);
        be->ops->mat_free(be, m);
        b.cols = 33;
        assert_int_equal(be->ops->mat_new(be, &m, &b), -EINVAL);
        b.type = MT_INT8;
        assert_int_equal(be->ops->mat_new(be, &m, &b), -ENOTSUP);
        field_free(be, &f);
        be->ops->free(be);
        free(own);
        free(w);
    }
}

/* What a backend has of its own is counted, and then the bytes that it was made from may go. */
static void test_held(void **state)
{
    enum { N = 3, OUT = 40, IN = 512 };

    (void)state;
    for (enum mt_cpu_tier tier = MT_CPU_SCALAR; tier <= tier_max(); tier++) {
        for (size_t i = 0; i < 2 * MT_COUNT(kinds); i++) {
            struct mt_backend *be = backend(tier, 2);
            float *w, *x = rnd_floats(N * IN), want[N * OUT], got[N * OUT], row[IN];
            char *own;
            struct mt_bytes b = quant_new(kinds[i / 2], OUT, IN, &own, &w);
            struct field fx = field_new(be, N, IN, x), fy = field_new(be, N, OUT, NULL),
                         fr = field_new(be, 1, IN, NULL);
            int64_t before = be->mats_held, held;
            struct mt_mat *m;

            b.looked_up = i % 2;
            be->plan = true;
            assert_int_equal(be->ops->mat_new(be, &m, &b), 0);
            held = be->mats_held - before;
            assert_true(be->ops->mat_borrows(m) == (held == 0));
            be->ops->mat_free(be, m);
            assert_true(be->mats_held == before);
            be->plan = false;
            assert_int_equal(be->ops->mat_new(be, &m, &b), 0);
            assert_true(be->mats_held - before == held && be->ops->mat_borrows(m) == (held == 0));
            be->ops->embed(be, fr.v, m, (const int32_t[]){OUT - 1}, 1);
            be->ops->rows_get(be, row, fr.v, 1);
            assert_memory_equal(row, w + (OUT - 1) * IN, sizeof(row));
            be->ops->linear(be, fy.v, fx.v, m, NULL, MT_ACT_NONE, MT_NO_ROWS, N);
            be->ops->rows_get(be, want, fy.v, N);
            if (!be->ops->mat_borrows(m))
                memset(own, 0xff, (size_t)(OUT * mt_dtype_row_bytes(b.type, IN)));
            be->ops->linear(be, fy.v, fx.v, m, NULL, MT_ACT_NONE, MT_NO_ROWS, N);
            be->ops->rows_get(be, got, fy.v, N);
            assert_memory_equal(got, want, sizeof(got));
            be->ops->mat_free(be, m);
            assert_true(be->mats_held == before);
            field_free(be, &fx);
            field_free(be, &fy);
            field_free(be, &fr);
            be->ops->free(be);
            free(own);
            free(w);
            free(x);
        }
    }
}

#ifdef TEST_CUDA
/* x of bf16; slack: what a weight is rounded by. */
static void check_rounded(struct mt_backend *be, enum mt_dtype t, int in, int out, int n,
                          double slack)
{
    char *own;
    float *w, *x = rnd_floats((size_t)n * (size_t)in), *bias = rnd_floats((size_t)out);
    float *res = rnd_floats((size_t)n * (size_t)out), *y = malloc((size_t)n * (size_t)out * 4);
    struct mt_bytes b = quant_new(t, out, in, &own, &w), bb = {bias, MT_F32, 1, out, false};
    enum mt_act act = rnd_int(0, 1) ? MT_ACT_RELU : MT_ACT_NONE;
    int residual = rnd_int(0, 2);
    struct mt_mat *m, *mb;

    for (int64_t i = 0; i < (int64_t)n * in; i++)
        x[i] = num_from_bf16(num_to_bf16(x[i]));
    assert_int_equal(be->ops->mat_new(be, &m, &b), 0);
    assert_int_equal(be->ops->mat_new(be, &mb, &bb), 0);
    struct field fx = field_new(be, n, in, x), fy = field_new(be, n, out, res);
    struct field fr = field_new(be, n, out, res);
    be->ops->linear(be, fy.v, fx.v, m, mb, act,
                    residual == 0   ? MT_NO_ROWS
                    : residual == 1 ? fr.v
                                    : fy.v,
                    n);
    be->ops->rows_get(be, y, fy.v, n);
    for (int64_t r = 0; r < n; r++)
        for (int64_t o = 0; o < out; o++) {
            double sum = bias[o], abs = fabs(sum), add = residual ? res[r * out + o] : 0;

            for (int64_t k = 0; k < in; k++) {
                double p = (double)w[o * in + k] * x[r * in + k];

                sum += p;
                abs += fabs(p);
            }
            sum = act == MT_ACT_RELU && sum < 0 ? 0 : sum;
            near(y[r * out + o], sum + add,
                 ((in + 24) * EPS * 2 + slack) * abs + 2 * EPS * fabs(add), "tiles", r, o);
        }
    field_free(be, &fx);
    field_free(be, &fy);
    field_free(be, &fr);
    be->ops->mat_free(be, m);
    be->ops->mat_free(be, mb);
    free(own);
    free(w);
    free(x);
    free(y);
    free(res);
    free(bias);
}

/* Types without tiles: few rows as they are, from 9 on the weights as bf16 and cuBLAS. */
static void test_decoded(void **state)
{
    static const enum mt_dtype types[] = {MT_Q4_0, MT_Q4_1, MT_Q5_0, MT_Q5_1,
                                          MT_Q8_0, MT_Q5_K, MT_Q6_K};
    struct mt_backend *be;

    (void)state;
    assert_int_equal(mt_cuda_open(&be, "", NULL), 0);
    for (unsigned i = 0; i < MT_COUNT(types); i++) {
        int in = mt_dtype_block(types[i]) * (2 * rnd_int(0, 2) + 1);

        check_rounded(be, types[i], in, rnd_int(1, 40), rnd_int(1, 8), 0);
        check_rounded(be, types[i], in, rnd_int(1, 40), rnd_int(9, 30), 0x1.01p-8);
    }
    check_rounded(be, MT_Q6_K, 1280, 60, 12, 0x1.01p-8); /* in pieces */
    be->ops->free(be);
}

/* Tensor cores, or the weights as bf16 and cuBLAS; a deterministic row knows of no others. */
static void test_tiles(void **state)
{
    enum { N = 75, IN = 512, OUT = 67 };
    static const enum mt_dtype types[] = {MT_Q8_0, MT_Q4_K};
    float *x = rnd_floats((size_t)N * IN);
    static float all[N * OUT], one[OUT];
    struct mt_backend *be[2];

    (void)state;
    assert_int_equal(mt_cuda_open(&be[0], "", NULL), 0);
    assert_int_equal(mt_cuda_open(&be[1], "deterministic", NULL), 0);
    for (unsigned i = 0; i < MT_COUNT(types); i++) {
        char *own;
        float *w;
        struct mt_bytes b = quant_new(types[i], OUT, IN, &own, &w);
        struct field fx = field_new(be[1], N, IN, x), fy = field_new(be[1], N, OUT, NULL);
        struct mt_mat *m;

        for (int k = 0; k < 5; k++) {
            int in = 256 * rnd_int(1, 5), many = rnd_int(40, 80);

            check_rounded(be[0], types[i], in, rnd_int(1, 100), rnd_int(3, 39), 0);
            check_rounded(be[0], types[i], in, rnd_int(40, 160), many, 0x1.01p-8);
            check_rounded(be[1], types[i], in, rnd_int(1, 70), k % 2 ? rnd_int(1, 3) : many, 0);
        }
        assert_int_equal(be[1]->ops->mat_new(be[1], &m, &b), 0);
        be[1]->ops->linear(be[1], fy.v, fx.v, m, NULL, MT_ACT_NONE, MT_NO_ROWS, N);
        be[1]->ops->rows_get(be[1], all, fy.v, N);
        for (int r = 0, n; r < N; r += n) {
            n = N - r < 20 ? 1 : rnd_int(1, 20);
            be[1]->ops->linear(be[1], fy.v, mt_rows_from(fx.v, r), m, NULL, MT_ACT_NONE, MT_NO_ROWS,
                               n);
            be[1]->ops->rows_get(be[1], one, fy.v, 1);
            assert_memory_equal(one, all + (ptrdiff_t)r * OUT, sizeof(one));
        }
        be[1]->ops->mat_free(be[1], m);
        field_free(be[1], &fx);
        field_free(be[1], &fy);
        free(own);
        free(w);
    }
    be[0]->ops->free(be[0]);
    be[1]->ops->free(be[1]);
    free(x);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
#ifdef TEST_CUDA
        cmocka_unit_test(test_tiles),   cmocka_unit_test(test_decoded),
#endif
        cmocka_unit_test(test_decode),  cmocka_unit_test(test_row_bytes),
        cmocka_unit_test(test_linear),  cmocka_unit_test(test_bits),
        cmocka_unit_test(test_linears), cmocka_unit_test(test_odd_rows),
        cmocka_unit_test(test_embed),   cmocka_unit_test(test_held),
#ifndef TEST_CUDA
        cmocka_unit_test(test_exact),
#endif
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
