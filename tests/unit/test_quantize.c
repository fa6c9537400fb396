/*
 * test_quantize.c: weights rounded when they are loaded: Q8_0 bit for bit as ggml rounds it (values
 * by golden/make_gguf.py), how far Q4_K is off, and which tensors become what.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "model/quantize.h"
#include "util.h"

static void *read_file(const char *name, size_t *n)
{
    char path[600];
    FILE *f;
    void *p;

    snprintf(path, sizeof(path), "%s/golden/gguf/blocks/%s", util_tests(), name);
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

static void test_q8_0(void **state)
{
    size_t size, bytes;
    float *rows = read_file("rows.f32", &size);
    char *want = read_file("rows.q8_0", &bytes), *got = malloc(bytes);
    int64_t n = (int64_t)(size / sizeof(float));

    (void)state;
    assert_int_equal(mt_dtype_row_bytes(MT_Q8_0, n), bytes);
    mt_quantize_row(MT_Q8_0, got, rows, n);
    assert_memory_equal(got, want, bytes);
    free(rows);
    free(want);
    free(got);
}

static double normal(uint64_t i)
{
    double u = mt_unit(mt_mix64(2 * i)), v = mt_unit(mt_mix64(2 * i + 1));

    return sqrt(-2 * log(1 - u)) * cos(2 * M_PI * v);
}

/* Relative RMS error of Q4_K over rows of n elements. */
static double q4_error(const float *x, int n)
{
    char *b = malloc((size_t)mt_dtype_row_bytes(MT_Q4_K, n));
    float *y = malloc((size_t)n * sizeof(*y));
    double d2 = 0, x2 = 0;

    mt_quantize_row(MT_Q4_K, b, x, n);
    mt_dequantize_row(MT_Q4_K, y, b, n);
    for (int i = 0; i < n; i++) {
        d2 += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
        x2 += (double)x[i] * x[i];
    }
    free(b);
    free(y);
    return sqrt(d2 / x2);
}

static void test_q4_k(void **state)
{
    enum { N = 256 * 64 };
    float *x = malloc(N * sizeof(*x));

    (void)state;
    for (int i = 0; i < N; i++)
        x[i] = (float)(0.02 * normal((uint64_t)i));
    assert_true(q4_error(x, N) < 0.0755); /* ggml's own: 0.074 */
    for (int i = 0; i < N; i++)
        x[i] = (float)(3 + 0.5 * normal((uint64_t)i)); /* all above 0: no minimum helps */
    assert_true(q4_error(x, N) < 0.035);
    for (int i = 0; i < N; i++) /* what 15 levels hold exactly */
        x[i] = (float)(i % 32 == 0 ? -8 : i % 32 == 1 ? 7 : (int)(mt_mix64((uint64_t)i) % 16) - 8);
    assert_true(q4_error(x, N) < 2e-3);
    free(x);
}

/* Nothing crashes, zeros stay zeros. */
static void test_odd_rows(void **state)
{
    static const float odd[] = {0, 1, -1, 1e38f, -1e38f, 1e-40f, 1e-7f, INFINITY, -INFINITY, NAN};
    float x[256], y[256];
    char b[272];

    (void)state;
    for (size_t k = 0; k < MT_COUNT(odd); k++) {
        for (int i = 0; i < 256; i++)
            x[i] = i % 3 ? odd[k] : 0;
        for (int t = 0; t < 2; t++) {
            enum mt_dtype type = t ? MT_Q4_K : MT_Q8_0;

            mt_quantize_row(type, b, x, 256);
            mt_dequantize_row(type, y, b, 256);
            for (int i = 0; odd[k] == 0 && i < 256; i++)
                assert_true(y[i] == 0);
        }
    }
}

static enum mt_dtype as(enum mt_dtype want, const char *name, int64_t rows, int64_t cols, bool head)
{
    struct mt_tensor t = {.n_dims = 2, .dims = {rows, cols}, .bytes = {.type = MT_BF16}};

    return mt_quantize_as(want, name, &t, head);
}

static void test_which(void **state)
{
    static const char q[] = "model.layers.3.self_attn.q_proj.weight";
    struct mt_tensor conv = {.n_dims = 3, .dims = {32, 32, 32}, .bytes = {.type = MT_F32}};

    (void)state;
    assert_int_equal(as(MT_Q8_0, q, 64, 64, false), MT_Q8_0);
    assert_int_equal(as(MT_Q4_K, q, 64, 512, false), MT_Q4_K);
    assert_int_equal(as(MT_Q4_K, q, 64, 96, false), MT_Q8_0);
    assert_int_equal(as(MT_Q4_K, q, 64, 40, false), MT_BF16);
    assert_int_equal(as(MT_Q4_K, "model.layers.3.self_attn.v_proj.weight", 64, 256, false),
                     MT_Q8_0);
    assert_int_equal(as(MT_Q4_K, "thinker.audio_tower.layers.0.fc1.weight", 64, 256, false),
                     MT_Q8_0);
    assert_int_equal(as(MT_Q4_K, "lm_head.weight", 64, 256, false), MT_Q8_0);
    assert_int_equal(as(MT_Q4_K, "model.embed_tokens.weight", 64, 256, false), MT_BF16);
    assert_int_equal(as(MT_Q4_K, "model.embed_tokens.weight", 64, 256, true), MT_Q8_0);
    assert_int_equal(as(MT_Q4_K, "model.layers.0.mlp.gate.weight", 64, 256, false), MT_BF16);
    assert_int_equal(as(MT_Q4_K, "model.layers.0.mlp.experts.7.gate_proj.weight", 64, 256, false),
                     MT_Q4_K);
    assert_int_equal(mt_quantize_as(MT_Q8_0, "audio_tower.conv1.weight", &conv, false), MT_F32);
}

/* A source's tensors are handed out smaller, once, and counted as what they are. */
static void test_weights(void **state)
{
    static const char name[] = "model.layers.0.mlp.up_proj.weight";
    static const int64_t dims[] = {40, 256};
    struct mt_weights *plain, *small;
    struct mt_bytes a, b, again;
    float x[256], y[256];

    (void)state;
    assert_int_equal(mt_weights_open_synth(&plain, 1, MT_BF16, NULL), 0);
    assert_int_equal(mt_weights_open_synth(&small, 1, MT_BF16, NULL), 0);
    mt_weights_quantize(small, MT_Q8_0);
    assert_int_equal(mt_weights_get(plain, name, 2, dims, &a, NULL), 0);
    assert_int_equal(mt_weights_get(small, name, 2, dims, &b, NULL), 0);
    assert_int_equal(mt_weights_get(small, name, 2, dims, &again, NULL), 0);
    assert_ptr_equal(b.data, again.data);
    assert_true(b.type == MT_Q8_0 && b.rows == 40 && b.cols == 256);
    assert_int_equal(mt_weights_bytes(small), 40 * 272);
    for (int64_t r = 0; r < 40; r++) {
        mt_dequantize_row(a.type, x, (const char *)a.data + r * 512, 256);
        mt_dequantize_row(b.type, y, (const char *)b.data + r * 272, 256);
        for (int i = 0; i < 256; i++)
            assert_true(fabsf(x[i] - y[i]) < 0.001f);
    }
    mt_weights_close(&plain);
    mt_weights_close(&small);
}

/* What was dropped counts no more, and is made again, the same bits, when it is asked for again. */
static void test_drop(void **state)
{
    static const char name[] = "model.layers.0.mlp.up_proj.weight";
    static const int64_t dims[] = {40, 256};

    (void)state;
    for (int small = 0; small < 2; small++) {
        struct mt_weights *w;
        struct mt_bytes b;
        size_t bytes = small ? 40 * 272 : 40 * 512;
        uint64_t first;

        assert_int_equal(mt_weights_open_synth(&w, 1, MT_BF16, NULL), 0);
        mt_weights_quantize(w, small ? MT_Q8_0 : MT_F32);
        mt_weights_drop(w, name); /* nothing yet */
        assert_int_equal(mt_weights_get(w, name, 2, dims, &b, NULL), 0);
        first = mt_hash(MT_HASH_INIT, b.data, bytes);
        for (int i = 0; i < 2; i++) {
            mt_weights_drop(w, name);
            assert_int_equal(mt_weights_bytes(w), 0);
        }
        assert_int_equal(mt_weights_get(w, name, 2, dims, &b, NULL), 0);
        assert_int_equal(mt_weights_bytes(w), bytes);
        assert_true(mt_hash(MT_HASH_INIT, b.data, bytes) == first);
        mt_weights_close(&w);
    }
}

/* A plan counts the same bytes, and makes none of them: all of these are zeros. */
static void test_plan(void **state)
{
    static const char name[] = "model.layers.0.mlp.up_proj.weight";
    static const int64_t dims[] = {40, 256};

    (void)state;
    for (int small = 0; small < 2; small++) {
        struct mt_weights *w;
        struct mt_bytes b;

        assert_int_equal(mt_weights_open_synth(&w, 1, MT_BF16, NULL), 0);
        mt_weights_quantize(w, small ? MT_Q8_0 : MT_F32);
        mt_weights_plan(w);
        assert_int_equal(mt_weights_get(w, name, 2, dims, &b, NULL), 0);
        assert_true(b.type == (small ? MT_Q8_0 : MT_BF16) && b.rows == 40 && b.cols == 256);
        assert_int_equal(mt_weights_bytes(w), 40 * (small ? 272 : 512));
        for (int i = 0; i < 40 * 272; i++)
            assert_int_equal(((const char *)b.data)[i], 0);
        mt_weights_close(&w);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_q8_0),     cmocka_unit_test(test_q4_k),
        cmocka_unit_test(test_odd_rows), cmocka_unit_test(test_which),
        cmocka_unit_test(test_weights),  cmocka_unit_test(test_drop),
        cmocka_unit_test(test_plan),
    };

    return cmocka_run_group_tests_name("quantize", tests, NULL, NULL);
}
