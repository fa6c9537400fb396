/*
 * test_weights.c: safetensors files made here, whole and broken in every way a header can be, and
 * the fixed bits of synthetic weights.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "model/file.h"
#include "model/source.h"
#include "util.h"

#include <endian.h>
#include <errno.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char dir[32];

static int make_dir(void **state)
{
    (void)state;
    return util_dir_make(dir);
}

static int remove_dir(void **state)
{
    (void)state;
    return util_dir_remove(dir);
}

static void put(const char *name, const void *data, size_t n)
{
    util_put(dir, name, data, n);
}

/* A file of this header and data bytes 0, 1, 2, ...; claimed is the length word. */
static void put_claiming(const char *name, uint64_t claimed, const char *header, size_t data)
{
    size_t n = strlen(header);
    unsigned char *all = malloc(8 + n + data);
    assert_non_null(all);
    claimed = htole64(claimed);
    memcpy(all, &claimed, 8);
    memcpy(all + 8, header, n);
    for (size_t i = 0; i < data; i++)
        all[8 + n + i] = (unsigned char)i;
    put(name, all, 8 + n + data);
    free(all);
}

static void put_tensors(const char *name, const char *header, size_t data)
{
    put_claiming(name, strlen(header), header, data);
}

/* Opening fails with this code and a single line that has all of the words (split by '|'). */
static void expect_open(int code, const char *words)
{
    struct mt_weights *w;
    struct mt_err e = {0};
    char all[200];

    assert_int_equal(mt_weights_open_safetensors(&w, dir, &e), code);
    assert_null(w);
    assert_int_equal(e.code, code);
    assert_null(strchr(e.text, '\n'));
    snprintf(all, sizeof(all), "%s", words);
    for (char *save, *s = strtok_r(all, "|", &save); s; s = strtok_r(NULL, "|", &save)) {
        if (!strstr(e.text, s))
            fail_msg("'%s' lacks '%s'", e.text, s);
    }
}

static struct mt_weights *open_ok(void)
{
    struct mt_weights *w;
    struct mt_err e = {0};

    if (mt_weights_open_safetensors(&w, dir, &e) < 0)
        fail_msg("%s", e.text);
    return w;
}

/* ---- whole files ---- */

static void test_types_and_shapes(void **state)
{
    (void)state;
    /* An odd number of bytes in front leaves every tensor unaligned. */
    put_tensors("model.safetensors",
                "{\"__metadata__\":{\"format\":\"pt\"},"
                "\"odd\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},"
                "\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[3,27]},"
                "\"b\":{\"dtype\":\"BF16\",\"shape\":[4],\"data_offsets\":[27,35]},"
                "\"c\":{\"dtype\":\"F16\",\"shape\":[2,1,2],\"data_offsets\":[35,43]},"
                "\"i\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[43,51]},"
                "\"f4\":{\"dtype\":\"F4\",\"shape\":[2,5],\"data_offsets\":[51,56]},"
                "\"none\":{\"dtype\":\"F32\",\"shape\":[0,7],\"data_offsets\":[10,10]},"
                "\"s\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[56,60]}}   ",
                60);
    struct mt_weights *w = open_ok();
    struct mt_err e = {0};
    struct mt_bytes b;
    int64_t dims[8];
    int n;

    assert_int_equal(mt_weights_get(w, "a", 2, (int64_t[]){2, 3}, &b, &e), 0);
    assert_int_equal(b.type, MT_F32);
    assert_int_equal(b.rows, 2);
    assert_int_equal(b.cols, 3);
    assert_int_equal(((const unsigned char *)b.data)[0], 3);
    assert_int_equal(((const unsigned char *)b.data)[23], 26);
    assert_int_equal(mt_weights_bytes(w), 24);
    assert_int_equal(mt_weights_get(w, "a", 2, (int64_t[]){2, 3}, &b, &e), 0);
    assert_int_equal(mt_weights_bytes(w), 24); /* not counted twice */

    assert_int_equal(mt_weights_get(w, "b", 1, (int64_t[]){4}, &b, &e), 0);
    assert_int_equal(b.type, MT_BF16);
    assert_int_equal(b.rows, 1);
    assert_int_equal(b.cols, 4);
    assert_int_equal(mt_weights_get(w, "c", 3, (int64_t[]){2, 1, 2}, &b, &e), 0);
    assert_int_equal(b.type, MT_F16);
    assert_int_equal(b.rows, 2);
    assert_int_equal(b.cols, 2);
    assert_int_equal(mt_weights_bytes(w), 40);

    assert_int_equal(mt_weights_find(w, "c", &n, dims, &b), 0);
    assert_int_equal(n, 3);
    assert_int_equal(dims[2], 2);
    assert_int_equal(mt_weights_find(w, "s", &n, dims, &b), 0);
    assert_int_equal(n, 0);
    assert_int_equal(b.rows * b.cols, 1);
    assert_int_equal(mt_weights_find(w, "none", &n, dims, &b), 0);
    assert_int_equal(mt_weights_find(w, "i", &n, dims, &b), -ENOTSUP);
    assert_int_equal(mt_weights_find(w, "nope", &n, dims, &b), -ENOENT);
    assert_true(mt_weights_has(w, "a"));
    assert_false(mt_weights_has(w, "nope"));
    assert_false(mt_weights_has(w, "__metadata__"));
    assert_int_equal(e.code, 0);
    mt_weights_close(&w);
    assert_null(w);
    mt_weights_close(&w);
}

static void expect_get(struct mt_weights *w, const char *name, int n, const int64_t *dims, int code,
                       const char *word)
{
    struct mt_err e = {0};
    struct mt_bytes b;

    assert_int_equal(mt_weights_get(w, name, n, dims, &b, &e), code);
    assert_null(b.data);
    if (!strstr(e.text, word))
        fail_msg("'%s' lacks '%s'", e.text, word);
}

static void test_wrong_request(void **state)
{
    (void)state;
    put_tensors("model.safetensors",
                "{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
                "\"d\":{\"dtype\":\"F64\",\"shape\":[1],\"data_offsets\":[24,32]}}",
                32);
    struct mt_weights *w = open_ok();

    expect_get(w, "a", 2, (int64_t[]){3, 2}, -EPROTO, "'a' has shape [2, 3] (expected [3, 2])");
    expect_get(w, "a", 1, (int64_t[]){6}, -EPROTO, "(expected [6])");
    expect_get(w, "d", 1, (int64_t[]){1}, -ENOTSUP, "'d' is F64 (expected BF16, F16 or F32)");
    expect_get(w, "x\n", 1, (int64_t[]){1}, -ENOENT, "no tensor 'x?'");
    expect_get(w, "a", 0, NULL, -EINVAL, "0 dimensions");
    mt_weights_close(&w);
}

/* ---- broken files ---- */

#define ONE(dtype, shape, offsets)                                                                 \
    "{\"x\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static void test_broken_headers(void **state)
{
    (void)state;
    static const struct {
        const char *header, *words;
    } cases[] = {
        {"", "not valid JSON"},
        {"[]", "header is not a JSON object"},
        {"{\"x\":1}", "tensor 'x'|not an object"},
        {"{\"x\":{}} x", "not valid JSON|line 1"},
        {"{\"x\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}", "duplicate"},
        {ONE("\"F32\"", "[1]", "[0,4]") ONE("\"F32\"", "[1]", "[0,4]"), "not valid JSON"},
        {"{\"__metadata__\":[]}", "__metadata__"},
        {"{\"__metadata__\":{\"k\":1}}", "'k' is not a string"},
        {ONE("\"F33\"", "[1]", "[0,4]"), "dtype 'F33' is not known"},
        {ONE("4", "[1]", "[0,4]"), "dtype is missing"},
        {"{\"x\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", "shape is missing"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[1]}}", "data_offsets is not"},
        {"{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"y\":1}}",
         "members other than"},
        {ONE("\"F32\"", "{}", "[0,4]"), "shape is missing or not an array"},
        {ONE("\"F32\"", "[-1]", "[0,4]"), "whole number from 0"},
        {ONE("\"F32\"", "[1.0]", "[0,4]"), "whole number from 0"},
        {ONE("\"F32\"", "[\"1\"]", "[0,4]"), "whole number from 0"},
        {ONE("\"F32\"", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), "9 dimensions (expected at most 8)"},
        {ONE("\"F32\"", "[4294967296,4294967296]", "[0,4]"), "elements overflows"},
        {ONE("\"F32\"", "[9223372036854775807]", "[0,4]"), "bytes overflows"},
        {ONE("\"F32\"", "[9223372036854775808]", "[0,4]"), "not valid JSON"},
        {ONE("\"F4\"", "[3]", "[0,1]"), "do not fill whole bytes"},
        {ONE("\"F32\"", "[1]", "[0]"), "two whole numbers"},
        {ONE("\"F32\"", "[1]", "[0,4,8]"), "two whole numbers"},
        {ONE("\"F32\"", "[1]", "[0.0,4.0]"), "two whole numbers"},
        {ONE("\"F32\"", "[1]", "[0,4e0]"), "two whole numbers"},
        {ONE("\"F32\"", "[1]", "\"0,4\""), "two whole numbers"},
        {ONE("\"F32\"", "[1]", "[-4,0]"), "[-4, 0) are not a range"},
        {ONE("\"F32\"", "[1]", "[4,0]"), "[4, 0) are not a range"},
        {ONE("\"F32\"", "[1]", "[8,12]"), "outside the file (its data has 8 bytes)"},
        {ONE("\"F32\"", "[1]", "[0,9223372036854775807]"), "outside the file"},
        {ONE("\"F32\"", "[2,3]", "[0,8]"),
         "/model.safetensors: tensor 'x': data_offsets [0, 8) do not match shape [2, 3] of F32 "
         "(expected 24 bytes)"},
        {ONE("\"F32\"", "[0]", "[0,8]"), "expected 0 bytes"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[5],\"data_offsets\":[0,5]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[4,4]},"
         "\"c\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]}}",
         "tensors 'a' and 'c': data_offsets overlap"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,4]},"
         "\"b\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}",
         "'b' and 'a': data_offsets overlap"},
        {"{\"x\":[[[[1]]]]}", "nested too deeply"},
        {"{\"a\\u0000b\":{}}", "not valid JSON"},
        {"{\"a\xff\":{}}", "not valid JSON"},
        {"{\"line\\nbreak\":{}}", "tensor 'line?break'"},
    };

    for (size_t i = 0; i < MT_COUNT(cases); i++) {
        put_tensors("model.safetensors", cases[i].header, 8);
        expect_open(-EPROTO, cases[i].words);
    }
}

static void test_broken_lengths(void **state)
{
    (void)state;
    put("model.safetensors", "", 0);
    expect_open(-EPROTO, "0 bytes are no safetensors file");
    put("model.safetensors", "\2\0\0\0\0\0\0", 7);
    expect_open(-EPROTO, "7 bytes");
    put_claiming("model.safetensors", 3, "{}", 0);
    expect_open(-EPROTO, "header of 3 bytes does not fit a file of 10 bytes");
    put_claiming("model.safetensors", UINT64_MAX, "{}", 0);
    expect_open(-EPROTO, "header of 18446744073709551615 bytes (expected at most 100000000)");
    put_claiming("model.safetensors", 100000001, "{}", 0);
    expect_open(-EPROTO, "expected at most 100000000");
}

/* Text that would cost a hundred times its size as JSON is refused before that. */
static void test_bombs(void **state)
{
    (void)state;
    size_t n = 6 << 20;
    char *s = malloc(n + 1);
    assert_non_null(s);
    memset(s, '[', n);
    s[n] = 0;
    put_tensors("model.safetensors", s, 0);
    expect_open(-EPROTO, "nested too deeply");
    memcpy(s, "{\"x\":[", 6);
    for (size_t i = 6; i < n; i++)
        s[i] = i & 1 ? ',' : '0';
    put_tensors("model.safetensors", s, 0);
    expect_open(-EPROTO, "too many values");
    free(s);
}

static void test_not_there(void **state)
{
    (void)state;
    struct mt_weights *w;
    char path[200];

    expect_open(-ENOENT, "holds neither model.safetensors nor model.safetensors.index.json");
    snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    assert_int_equal(mkfifo(path, 0600), 0);
    expect_open(-EINVAL, "model.safetensors: not a regular file");
    assert_int_equal(mt_weights_open_safetensors(&w, dir, NULL), -EINVAL); /* no mt_err is fine */
}

/* ---- shards ---- */

#define INDEX "model.safetensors.index.json"

static void put_text(const char *name, const char *text)
{
    put(name, text, strlen(text));
}

static void test_shards(void **state)
{
    (void)state;
    struct mt_bytes b;
    const int64_t two = 2;

    put_tensors("s1", "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8);
    put_tensors("s2", "{\"b\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[4,12]}}", 12);
    put_text(INDEX, "{\"metadata\":{\"total_size\":16},\"weight_map\":"
                    "{\"b\":\"s2\",\"a\":\"s1\",\"lost\":\"s2\"}}");
    struct mt_weights *w = open_ok();

    assert_int_equal(mt_weights_get(w, "a", 1, &two, &b, NULL), 0);
    assert_int_equal(((const unsigned char *)b.data)[0], 0);
    assert_int_equal(mt_weights_get(w, "b", 1, &two, &b, NULL), 0);
    assert_int_equal(((const unsigned char *)b.data)[0], 4);
    expect_get(w, "lost", 1, &two, -EPROTO, "/s2, which does not hold it");
    expect_get(w, "never", 1, &two, -ENOENT, INDEX ": there is no tensor 'never'");
    assert_true(mt_weights_has(w, "lost")); /* so that its absence is an error, not an option */
    assert_int_equal(mt_weights_bytes(w), 16);
    mt_weights_close(&w);

    put_text(INDEX, "{\"weight_map\":{}}");
    w = open_ok();
    assert_false(mt_weights_has(w, "a"));
    mt_weights_close(&w);
}

static void test_broken_shards(void **state)
{
    (void)state;
    static const struct {
        const char *index, *words;
        int code;
    } cases[] = {
        {"{}", "weight_map is missing", -EPROTO},
        {"[]", "weight_map is missing", -EPROTO},
        {"{\"weight_map\":{\"a\":\"s1\"}", "not valid JSON", -EPROTO},
        {"{\"weight_map\":[]}", "not an object", -EPROTO},
        {"{\"weight_map\":{\"a\":1}}", "'a'", -EPROTO},
        {"{\"weight_map\":{\"a\":\"\"}}", "not the name of a file", -EPROTO},
        {"{\"weight_map\":{\"a\":\"..\"}}", "'..' is not the name of a file", -EPROTO},
        {"{\"weight_map\":{\"a\":\"../s1\"}}", "'../s1' is not the name", -EPROTO},
        {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", "not the name of a file", -EPROTO},
        {"{\"weight_map\":{\"a\":\"s1\",\"b\":\"s3\"}}", "/s3: No such file", -ENOENT},
        {"{\"weight_map\":{\"a\":\"s1\",\"b\":\"bad\"}}", "/bad: |safetensors", -EPROTO},
    };

    put_tensors("s1", "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", 8);
    put_text("bad", "bad");
    for (size_t i = 0; i < MT_COUNT(cases); i++) {
        put_text(INDEX, cases[i].index);
        expect_open(cases[i].code, cases[i].words);
    }
}

/* ---- synthetic weights ---- */

static struct mt_bytes synth_get(struct mt_weights *w, const char *name, int n, const int64_t *dims)
{
    struct mt_bytes b;
    struct mt_err e = {0};

    if (mt_weights_get(w, name, n, dims, &b, &e) < 0)
        fail_msg("%s", e.text);
    return b;
}

static uint64_t synth_hash(uint64_t seed, enum mt_dtype type, const char *name, int n,
                           const int64_t *dims)
{
    struct mt_weights *w;
    assert_int_equal(mt_weights_open_synth(&w, seed, type, NULL), 0);
    struct mt_bytes b = synth_get(w, name, n, dims);
    assert_int_equal(b.type, type);
    uint64_t h = mt_hash(MT_HASH_INIT, b.data, (size_t)mt_weights_bytes(w));
    mt_weights_close(&w);
    return h;
}

/* These bits never change: recorded results depend on them. (Little-endian bytes.) */
static void test_synth_bits(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        enum mt_dtype type;
        int n;
        int64_t dims[4];
        uint64_t want;
    } cases[] = {
        {"model.embed_tokens.weight", MT_BF16, 2, {300, 64}, 0xae1bae9387ae9d4a},
        {"model.layers.0.self_attn.q_proj.weight", MT_F32, 2, {33, 17}, 0x22358dd4b6a2886a},
        {"model.layers.0.self_attn.q_proj.weight", MT_F16, 2, {33, 17}, 0xc2609dda78a36b34},
        {"model.layers.0.self_attn.q_proj.bias", MT_F16, 1, {5}, 0x251ba95e7ffe6c4c},
        {"model.norm.weight", MT_BF16, 1, {1001}, 0xb1a5f5d35c167eb1},
        {"audio_tower.conv1.weight", MT_F32, 3, {8, 128, 3}, 0x14adeab6c519782e},
        {"lm_head.weight", MT_BF16, 2, {1024, 1024}, 0x955d6e5bbe9766e0},
    };

    for (size_t i = 0; i < MT_COUNT(cases); i++) {
        uint64_t h = synth_hash(7, cases[i].type, cases[i].name, cases[i].n, cases[i].dims);
        if (h != cases[i].want)
            fail_msg("case %zu: %s has hash 0x%016llx", i, cases[i].name, (unsigned long long)h);
    }
}

static void test_synth_independent(void **state)
{
    (void)state;
    const int64_t big[] = {700, 600}, other[] = {600, 700};
    int threads = omp_get_max_threads();

    omp_set_num_threads(1);
    uint64_t one = synth_hash(1, MT_F32, "m.weight", 2, big);
    omp_set_num_threads(3);
    assert_true(one == synth_hash(1, MT_F32, "m.weight", 2, big));
    omp_set_num_threads(threads);
    assert_true(one != synth_hash(2, MT_F32, "m.weight", 2, big));
    assert_true(one != synth_hash(1, MT_F32, "n.weight", 2, big));

    struct mt_weights *w;
    assert_int_equal(mt_weights_open_synth(&w, 1, MT_F32, NULL), 0);
    struct mt_bytes a = synth_get(w, "m.weight", 2, big);
    assert_ptr_equal(a.data, synth_get(w, "m.weight", 2, big).data); /* made once */
    expect_get(w, "m.weight", 2, other, -EPROTO, "[700, 600] (expected [600, 700])");
    expect_get(w, "z", 2, (int64_t[]){0, 4}, -EINVAL, "cannot have shape [0, 4]");
    expect_get(w, "z", 2, (int64_t[]){1LL << 40, 1LL << 40}, -EINVAL, "cannot have shape");
    assert_true(mt_weights_has(w, "anything"));
    mt_weights_close(&w);
    assert_int_equal(mt_weights_open_synth(&w, 1, MT_INT8, NULL), -ENOTSUP);
}

static void stats(struct mt_weights *w, const char *name, int n, const int64_t *dims, double *mean,
                  double *sigma)
{
    struct mt_bytes b = synth_get(w, name, n, dims);
    double s = 0, ss = 0, count = (double)(b.rows * b.cols);

    for (int64_t i = 0; i < b.rows * b.cols; i++) {
        double v = ((const float *)b.data)[i];
        s += v;
        ss += v * v;
    }
    *mean = s / count;
    *sigma = sqrt(ss / count - *mean * *mean);
}

static void test_synth_spread(void **state)
{
    (void)state;
    struct mt_weights *w;
    double mean, sigma;

    assert_int_equal(mt_weights_open_synth(&w, 3, MT_F32, NULL), 0);
    /* 10^5 samples: the mean is good to 0.3 % of sigma, sigma to 0.15 % (one standard deviation) */
    stats(w, "mlp.up_proj.weight", 2, (int64_t[]){1000, 100}, &mean, &sigma);
    assert_true(fabs(mean) < 0.002 && fabs(sigma - 0.1) < 0.001);
    stats(w, "embed_tokens.weight", 2, (int64_t[]){1000, 100}, &mean, &sigma);
    assert_true(fabs(mean) < 0.02 && fabs(sigma - 1) < 0.01);
    stats(w, "layers.0.input_layernorm.weight", 1, (int64_t[]){100000}, &mean, &sigma);
    assert_true(fabs(mean - 1) < 0.001 && fabs(sigma - 0.02) < 0.0002);
    stats(w, "layers.0.fc1.bias", 1, (int64_t[]){100000}, &mean, &sigma);
    assert_true(fabs(mean) < 0.001 && fabs(sigma - 0.02) < 0.0002);
    stats(w, "conv1.weight", 3, (int64_t[]){100, 100, 4}, &mean, &sigma);
    assert_true(fabs(mean) < 0.001 && fabs(sigma - 0.05) < 0.0005);
    mt_weights_close(&w);
}

/* The 16-bit types are the f32 values rounded to nearest, ties to even. */
static void test_synth_rounding(void **state)
{
    (void)state;
    const int64_t dims[] = {64, 4096};
    struct mt_weights *f, *b, *h;

    assert_int_equal(mt_weights_open_synth(&f, 5, MT_F32, NULL), 0);
    assert_int_equal(mt_weights_open_synth(&b, 5, MT_BF16, NULL), 0);
    assert_int_equal(mt_weights_open_synth(&h, 5, MT_F16, NULL), 0);
    const float *x = synth_get(f, "w", 2, dims).data;
    const uint16_t *p = synth_get(b, "w", 2, dims).data, *q = synth_get(h, "w", 2, dims).data;

    for (int i = 0; i < 64 * 4096; i++) {
        uint32_t u = (uint32_t)p[i] << 16;
        float back;
        memcpy(&back, &u, 4);
        assert_true(fabsf(back - x[i]) <= ldexpf(1, ilogbf(x[i]) - 8));

        int exp = q[i] >> 10 & 31, m = q[i] & 1023;
        double half = exp ? ldexp(1024 + m, exp - 25) : ldexp(m, -24);
        double ulp = ldexp(1, exp ? exp - 25 : -24);
        assert_true(fabs(half - fabs((double)x[i])) <= ulp / 2);
        assert_int_equal(q[i] >> 15, signbit(x[i]) != 0);
    }
    mt_weights_close(&f);
    mt_weights_close(&b);
    mt_weights_close(&h);
}

int main(void)
{
#define FILES(f) cmocka_unit_test_setup_teardown(f, make_dir, remove_dir)
    const struct CMUnitTest tests[] = {
        FILES(test_types_and_shapes),
        FILES(test_wrong_request),
        FILES(test_broken_headers),
        FILES(test_broken_lengths),
        FILES(test_bombs),
        FILES(test_not_there),
        FILES(test_shards),
        FILES(test_broken_shards),
        cmocka_unit_test(test_synth_bits),
        cmocka_unit_test(test_synth_independent),
        cmocka_unit_test(test_synth_spread),
        cmocka_unit_test(test_synth_rounding),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
