/*
 * test_kernels_quant.c: weights in ggml's blocks: decoded bit for bit as llama.cpp does (values made
 * by golden/make_gguf.py), and used by embed and linear of every tier.
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
    int64_t row = mt_dtype_row_bytes(t, cols), size = mt_dtype_block_bytes(t);
    char *p = malloc((size_t)(rows * row) + 1);
    float *v = malloc((size_t)(rows * cols) * sizeof(*v));

    assert_non_null(p);
    for (int64_t i = 0; i < rows * row; i++)
        p[1 + i] = (char)rnd();
    for (char *b = p + 1; b < p + 1 + rows * row; b += size) {
        uint16_t h = num_to_f16(rnd_float() / 64);

        memcpy(b + (t == MT_Q6_K ? 208 : 0), &h, 2);
        if (t == MT_Q4_1 || t == MT_Q5_1 || t == MT_Q4_K || t == MT_Q5_K)
            memcpy(b + 2, &h, 2);
    }
    for (int64_t r = 0; r < rows; r++)
        num_decode(v + r * cols, t, p + 1 + r * row, 0, cols);
    *own = p;
    *f = v;
    return (struct mt_bytes){p + 1, t, rows, cols};
}

static void check_linear(struct mt_backend *be, enum mt_dtype t, int64_t in, int64_t out, int n)
{
    char *own;
    float *w, *x = rnd_floats((size_t)(n * in)), *y = malloc((size_t)(n * out) * sizeof(float));
    struct mt_bytes b = quant_new(t, out, in, &own, &w);
    struct field fx = field_new(be, n, in, x), fy = field_new(be, n, out, NULL);
    struct mt_mat *m;

    assert_int_equal(be->ops->mat_new(be, &m, &b), 0);
    be->ops->linear(be, fy.v, fx.v, m, NULL, MT_ACT_NONE, MT_NO_ROWS, n);
    be->ops->rows_get(be, y, fy.v, n);
    for (int64_t r = 0; r < n; r++) {
        for (int64_t o = 0; o < out; o++) {
            double sum = 0, abs = 0;

            for (int64_t k = 0; k < in; k++) {
                double p = (double)x[r * in + k] * w[o * in + k];

                sum += p;
                abs += fabs(p);
            }
            near(y[r * out + o], sum, (in + 8) * EPS * abs, "linear", r, o);
        }
    }
    be->ops->mat_free(be, m);
    field_free(be, &fx);
    field_free(be, &fy);
    free(own);
    free(w);
    free(x);
    free(y);
}

static void test_linear(void **state)
{
    (void)state;
    for (enum mt_cpu_tier tier = MT_CPU_SCALAR; tier <= tier_max(); tier++) {
        struct mt_backend *be = backend(tier, 2);

        for (size_t i = 0; i < MT_COUNT(kinds); i++) {
            int64_t block = mt_dtype_block(kinds[i]);

            check_linear(be, kinds[i], block, 1, 1);
            check_linear(be, kinds[i], 3 * block, 45, rnd_int(1, 9));
            check_linear(be, kinds[i], 768, 9, 1);
            check_linear(be, kinds[i], 1280, 20, 70);
        }
        be->ops->free(be);
    }
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decode),
        cmocka_unit_test(test_row_bytes),
        cmocka_unit_test(test_linear),
        cmocka_unit_test(test_embed),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
