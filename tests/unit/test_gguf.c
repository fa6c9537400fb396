/*
 * test_gguf.c: models in GGUF files: twins of the safetensors checkpoints give the same bits,
 * quantised text models what transformers computes with their plain values, and text becomes
 * llama.cpp's ids. Files by golden/make_gguf.py. MT_WEIGHTS=DIR: the same for a released file.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/engine.h"
#include "model/source.h"
#include "util.h"

#define REAL "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"

static const struct mt_model_opts plain = {.step_rows = 64, .want_rows = 64};

static const char *golden(char out[600], const char *name)
{
    snprintf(out, 600, "%s/golden/%s", util_tests(), name);
    return out;
}

static struct mt_backend *backend(enum mt_cpu_tier most)
{
    struct mt_backend *be;
    enum mt_cpu_tier tier;

    assert_int_equal(mt_cpu_tier(&tier, NULL), 0);
    assert_int_equal(mt_backend_cpu(&be, tier < most ? tier : most, 2, NULL), 0);
    return be;
}

static struct mt_model *open_model(struct mt_backend *be, const char *spec,
                                   const struct mt_model_opts *o)
{
    struct mt_model *m;
    struct mt_err e = {0};

    if (mt_model_open(&m, spec, be, o, &e) < 0)
        fail_msg("%s", e.text);
    return m;
}

/* ---- rows of log-probs ---- */

struct rows {
    float *v;
    int64_t n;
    int vocab;
};

static int keep_row(void *ctx, int64_t pos, const float *logprobs, int vocab)
{
    struct rows *r = ctx;

    (void)pos;
    r->v = realloc(r->v, (size_t)((r->n + 1) * vocab) * sizeof(*r->v));
    memcpy(r->v + r->n * vocab, logprobs, (size_t)vocab * sizeof(*r->v));
    r->vocab = vocab;
    r->n++;
    return 0;
}

static struct rows teach(struct mt_model *m, const json_t *jids, const int64_t *at, int64_t n_at,
                         const float *audio, int64_t n_audio)
{
    int32_t ids[512];
    size_t n = json_array_size(jids);
    struct rows r = {0};
    struct mt_err e = {0};

    assert_true(n <= MT_COUNT(ids));
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(jids, i));
    struct mt_teacher t = {.ids = ids,
                           .n = (int64_t)n,
                           .audio = audio,
                           .n_audio = n_audio,
                           .at = at,
                           .n_at = n_at,
                           .kv_type = MT_F32,
                           .block_tokens = 16,
                           .ctx = &r,
                           .row = keep_row};
    if (mt_teacher_run(m, &t, &e) < 0)
        fail_msg("%s", e.text);
    assert_int_equal(r.n, n_at);
    return r;
}

static json_t *load(const char *path)
{
    json_t *j = json_load_file(path, 0, NULL);

    if (!j)
        fail_msg("%s: not there", path);
    return j;
}

/* ---- twins ---- */

/* A clip, its rows and a turn around them, from either file. */
static struct rows hear(struct mt_model *m, float **audio, int64_t *n_audio)
{
    char path[600];
    float *pcm;
    int64_t n, at[4];
    json_t *ids = json_array();
    struct mt_err e = {0};

    snprintf(path, sizeof(path), "%s/data/jfk.flac", util_tests());
    assert_int_equal(mt_sound_load(path, NULL, 16000, 16000 * 300, &pcm, &n, &e), 0);
    if (mt_model_embed_clip(m, pcm, 50000, audio, n_audio, NULL, &e) < 0)
        fail_msg("%s", e.text);
    for (int i = 0; i < 5; i++)
        json_array_append_new(ids, json_integer(40 + i));
    for (int64_t i = 0; i < *n_audio; i++)
        json_array_append_new(ids, json_integer(mt_model_info(m)->audio_id));
    for (int i = 0; i < 5; i++)
        json_array_append_new(ids, json_integer(90 + i));
    for (int i = 0; i < 4; i++)
        at[i] = (int64_t)json_array_size(ids) - 4 + i;
    struct rows r = teach(m, ids, at, 4, *audio, *n_audio);
    json_decref(ids);
    free(pcm);
    return r;
}

static void test_twins(void **state)
{
    static const char *const names[] = {"omni-b", "qwen3-a"};

    (void)state;
    for (size_t i = 0; i < MT_COUNT(names); i++) {
        struct mt_backend *be = backend(MT_CPU_AVX512);
        char dir[600], file[700], tower[700];
        float *rows[2];
        int64_t n[2];

        golden(dir, names[i]);
        snprintf(file, sizeof(file), "%s/golden/gguf/%s/model.gguf", util_tests(), names[i]);
        snprintf(tower, sizeof(tower), "%s/golden/gguf/%s/mmproj.gguf", util_tests(), names[i]);
        struct mt_model_opts with = plain;
        with.mmproj = tower;
        struct mt_model *a = open_model(be, dir, &plain), *b = open_model(be, file, &with);
        struct rows ra = hear(a, &rows[0], &n[0]), rb = hear(b, &rows[1], &n[1]);

        assert_int_equal(n[0], n[1]);
        assert_int_equal(ra.vocab, rb.vocab);
        assert_memory_equal(rows[0], rows[1],
                            (size_t)(n[0] * mt_model_info(a)->hidden) * sizeof(float));
        assert_memory_equal(ra.v, rb.v, (size_t)(ra.n * ra.vocab) * sizeof(float));
        assert_int_equal(mt_model_info(a)->audio_id, mt_model_info(b)->audio_id);
        assert_int_equal(mt_tokenizer_size(mt_model_tokenizer(a)),
                         mt_tokenizer_size(mt_model_tokenizer(b)));
        for (int k = 0; k < 2; k++)
            free(rows[k]);
        free(ra.v);
        free(rb.v);
        mt_model_close(&a);
        mt_model_close(&b);
        be->ops->free(be);
    }
}

/* ---- quantised text models ---- */

static void check_text(const char *name)
{
    struct mt_backend *be = backend(MT_CPU_SCALAR);
    char path[700];
    struct mt_weights *want;
    struct mt_bytes b;
    struct mt_err e = {0};
    json_t *c;
    size_t i;

    snprintf(path, sizeof(path), "%s/golden/gguf/%s/model.gguf", util_tests(), name);
    struct mt_model *m = open_model(be, path, &plain);
    snprintf(path, sizeof(path), "%s/golden/gguf/%s/cases.json", util_tests(), name);
    json_t *cases = load(path);
    snprintf(path, sizeof(path), "%s/golden/gguf/%s/expected.safetensors", util_tests(), name);
    if (mt_weights_open_safetensors_file(&want, path, &e) < 0)
        fail_msg("%s", e.text);
    json_array_foreach(cases, i, c)
    {
        const json_t *jat = json_object_get(c, "at");
        int64_t at[64], n_at = (int64_t)json_array_size(jat), dims[8];
        double worst = 0;
        int n_dims;

        for (int64_t k = 0; k < n_at; k++)
            at[k] = json_integer_value(json_array_get(jat, (size_t)k));
        struct rows r = teach(m, json_object_get(c, "ids"), at, n_at, NULL, 0);
        assert_int_equal(mt_weights_find(want, json_string_value(json_object_get(c, "tensor")),
                                         &n_dims, dims, &b),
                         0);
        assert_int_equal(r.vocab, dims[1]);
        for (int64_t k = 0; k < r.n * r.vocab; k++)
            worst = fmax(worst, fabs((double)r.v[k] - ((const float *)b.data)[k]));
        if (getenv("MT_GOLDEN_SHOW"))
            print_message("%s: %.2e\n", name, worst);
        if (!(worst < 1e-4))
            fail_msg("%s: off by %g", name, worst);
        free(r.v);
    }
    json_decref(cases);
    mt_weights_close(&want);
    mt_model_close(&m);
    be->ops->free(be);
}

static void test_text(void **state)
{
    (void)state;
    check_text("qwen2");
    check_text("qwen3");
    check_text("qwen3moe");
}

/* ---- towers that are not there ---- */

static void test_deaf(void **state)
{
    struct mt_backend *be = backend(MT_CPU_AVX512);
    char path[600];
    struct mt_err e = {0};
    struct mt_ear *ear;
    float pcm[4000] = {0}, *rows;
    int64_t n;

    (void)state;
    struct mt_model *m = open_model(be, golden(path, "gguf/qwen2/model.gguf"), &plain);
    assert_true(mt_model_info(m)->deaf);
    assert_string_equal(mt_model_info(m)->remark, "");
    assert_int_equal(mt_ear_new(&ear, m, mt_model_info(m)->beat_samples, 1, &e), -ENOTSUP);
    assert_null(ear);
    assert_non_null(strstr(e.text, "--mmproj"));
    assert_int_equal(mt_model_embed_clip(m, pcm, 4000, &rows, &n, NULL, NULL), -ENOTSUP);
    assert_int_equal(mt_tokenizer_special(mt_model_tokenizer(m), "<|AUDIO|>"), -1);
    mt_model_close(&m);
    be->ops->free(be);
}

static void test_synthetic_tower(void **state)
{
    static const char *const marks[] = {"<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>"};
    struct mt_backend *be = backend(MT_CPU_AVX512);
    struct mt_model_opts o = plain;
    char path[600];
    struct mt_err e = {0};
    struct mt_talk *talk;
    struct mt_ear *ear;

    (void)state;
    o.mmproj = "synth";
    struct mt_model *m = open_model(be, golden(path, "gguf/qwen2/model.gguf"), &o);
    const struct mt_tokenizer *t = mt_model_tokenizer(m);
    assert_false(mt_model_info(m)->deaf);
    assert_non_null(strstr(mt_model_info(m)->remark, "synthetic"));
    for (size_t i = 0; i < MT_COUNT(marks); i++) {
        int32_t id = mt_tokenizer_special(t, marks[i]);
        assert_in_range(id, 0, mt_model_info(m)->vocab - 1);
        assert_true(mt_tokenizer_is_special(t, id));
    }
    assert_int_equal(mt_model_info(m)->audio_id, mt_tokenizer_special(t, marks[0]));
    assert_int_equal(mt_ear_new(&ear, m, mt_model_info(m)->beat_samples, 1, &e), 0);
    assert_int_equal(mt_talk_new(&talk, m, MT_MODE_TURN, NULL, ear, &e), 0);
    mt_talk_free(&talk);
    mt_ear_free(&ear);
    mt_model_close(&m);

    /* The other family's. No vocabulary: no session, and it says why. */
    m = open_model(be, golden(path, "gguf/qwen3/model.gguf"), &o);
    assert_null(mt_model_tokenizer(m));
    assert_int_equal(mt_ear_new(&ear, m, mt_model_info(m)->beat_samples, 1, &e), 0);
    assert_int_equal(mt_talk_new(&talk, m, MT_MODE_TURN, NULL, ear, &e), -ENOTSUP);
    assert_non_null(strstr(e.text, "tokenizer.ggml.model"));
    mt_ear_free(&ear);
    mt_model_close(&m);
    be->ops->free(be);
}

static void refused(struct mt_backend *be, const char *spec, const char *mmproj, int rc,
                    const char *says)
{
    struct mt_model_opts o = plain;
    struct mt_err e = {0};
    struct mt_model *m;

    o.mmproj = mmproj;
    assert_int_equal(mt_model_open(&m, spec, be, &o, &e), rc);
    assert_null(m);
    if (!strstr(e.text, says) || strchr(e.text, '\n'))
        fail_msg("'%s' does not say '%s'", e.text, says);
}

static void test_refused(void **state)
{
    struct mt_backend *be = backend(MT_CPU_AVX512);
    char text[600], tower[600], other[600], dir[600];

    (void)state;
    golden(text, "gguf/omni-b/model.gguf");
    golden(tower, "gguf/omni-b/mmproj.gguf");
    golden(other, "gguf/qwen3-a/mmproj.gguf");
    golden(dir, "omni-b");
    refused(be, tower, NULL, -ENOTSUP, "goes with --mmproj");
    refused(be, text, other, -ENOTSUP, "'qwen2.5o' or 'qwen2a'");
    refused(be, text, text, -ENOTSUP, "no audio encoder");
    refused(be, text, "/nonexistent", -ENOENT, "/nonexistent");
    refused(be, dir, tower, -EINVAL, "is a directory");
    refused(be, "synth:qwen2.5-omni-tiny", "synth", -EINVAL, "--mmproj");
    refused(be, golden(text, "gguf/qwen2/model.gguf"), tower, -EPROTO, "output_dim 64");
    refused(be, golden(text, "README.md"), NULL, -EPROTO, "neither a GGUF file nor");
    be->ops->free(be);
}

/* A copy of a file with another number behind a key of type u32; the caller closes the result. */
static int with_number(char path[64], const char *file, const char *key, uint32_t value)
{
    int fd = memfd_create("gguf", MFD_CLOEXEC);
    FILE *f = fopen(file, "rb");
    char *all, *at;
    long n;

    assert_true(fd >= 0 && f && fseek(f, 0, SEEK_END) == 0);
    n = ftell(f);
    rewind(f);
    assert_non_null(all = malloc((size_t)n));
    assert_int_equal(fread(all, 1, (size_t)n, f), n);
    fclose(f);
    assert_non_null(at = memmem(all, (size_t)n, key, strlen(key)));
    memcpy(at + strlen(key) + 4, &value, sizeof(value));
    assert_int_equal(write(fd, all, (size_t)n), n);
    free(all);
    snprintf(path, 64, "/proc/self/fd/%d", fd);
    return fd;
}

/* Fewer layers than the file has tensors of. */
static void test_layers_left(void **state)
{
    struct mt_backend *be = backend(MT_CPU_AVX512);
    char text[600], tower[600], path[64];
    int fd;

    (void)state;
    fd = with_number(path, golden(text, "gguf/qwen2/model.gguf"), "qwen2.block_count", 1);
    refused(be, path, NULL, -EPROTO, "block_count' is 1, but there is 'blk.1.attn_norm.weight'");
    close(fd);
    golden(text, "gguf/omni-b/model.gguf");
    fd = with_number(path, golden(tower, "gguf/omni-b/mmproj.gguf"), "clip.audio.block_count", 1);
    refused(be, text, path, -EPROTO, "block_count' is 1, but there is 'a.blk.1.ln1.weight'");
    close(fd);
    be->ops->free(be);
}

/* ---- tokenizers ---- */

static void check_ids(const struct mt_tokenizer *t, const char *cases)
{
    json_t *list = load(cases), *c;
    size_t i;

    json_array_foreach(list, i, c)
    {
        const json_t *text = json_object_get(c, "text"), *want = json_object_get(c, "ids");
        struct mt_err e = {0};
        int32_t *ids;
        size_t n;

        if (mt_tokenizer_encode(t, json_string_value(text), json_string_length(text), true, &ids,
                                &n, &e) < 0)
            fail_msg("%s", e.text);
        bool same = n == json_array_size(want);
        for (size_t k = 0; same && k < n; k++)
            same = ids[k] == json_integer_value(json_array_get(want, k));
        if (!same)
            fail_msg("%s: case %zu: other ids", cases, i);
        free(ids);
    }
    assert_true(i > 30);
    json_decref(list);
}

static void test_tokens(void **state)
{
    static const char *const names[] = {"omni-b", "qwen3-a"};

    (void)state;
    for (size_t i = 0; i < MT_COUNT(names); i++) {
        char file[700];
        struct mt_tokenizer *t;
        struct mt_err e = {0};

        snprintf(file, sizeof(file), "%s/golden/gguf/%s/model.gguf", util_tests(), names[i]);
        if (mt_tokenizer_open(&t, file, &e) < 0)
            fail_msg("%s", e.text);
        snprintf(file, sizeof(file), "%s/golden/gguf/%s/tokens.json", util_tests(), names[i]);
        check_ids(t, file);
        mt_tokenizer_free(&t);
    }
}

/* ---- a released file ---- */

static void test_real(void **state)
{
    char path[600], model[700];
    json_t *all, *at, *row;
    int64_t where[16];
    size_t i;

    (void)state;
    if (!getenv("MT_WEIGHTS")) {
        print_message("MT_WEIGHTS is not set: no released file to look at\n");
        skip();
    }
    snprintf(model, sizeof(model), "%s/" REAL, getenv("MT_WEIGHTS"));
    struct mt_backend *be = backend(MT_CPU_SCALAR);
    struct mt_model *m = open_model(be, model, &plain);
    check_ids(mt_model_tokenizer(m), golden(path, "gguf/hard.json"));
    all = load(golden(path, "gguf/real.json"));
    at = json_object_get(all, "at");
    json_array_foreach(at, i, row) where[i] = json_integer_value(json_object_get(row, "pos"));
    struct rows r =
        teach(m, json_object_get(all, "ids"), where, (int64_t)json_array_size(at), NULL, 0);
    json_array_foreach(at, i, row)
    {
        const json_t *ids = json_object_get(row, "ids"), *want = json_object_get(row, "logprobs");
        double worst = 0;

        for (size_t k = 0; k < json_array_size(ids); k++)
            worst = fmax(
                worst, fabs(r.v[(int64_t)i * r.vocab + json_integer_value(json_array_get(ids, k))] -
                            json_real_value(json_array_get(want, k))));
        print_message("position %lld: %.2e\n", (long long)where[i], worst);
        assert_true(worst < 1e-4);
    }
    free(r.v);
    json_decref(all);
    mt_model_close(&m);
    be->ops->free(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_twins),   cmocka_unit_test(test_text),
        cmocka_unit_test(test_deaf),    cmocka_unit_test(test_synthetic_tower),
        cmocka_unit_test(test_refused), cmocka_unit_test(test_layers_left),
        cmocka_unit_test(test_tokens),  cmocka_unit_test(test_real),
    };

    return cmocka_run_group_tests_name("gguf", tests, NULL, NULL);
}
