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

#include "audio/audio.h"
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

    assert_int_equal(util_backend(&be, threads, NULL), 0);
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

/* ---- sessions ---- */

static struct mt_mimi *open_tiny(struct mt_backend *be, struct mt_weights **w, int at_once)
{
    struct mt_mimi_config c;
    struct mt_mimi *m;
    struct mt_err e = {0};

    if (mt_mimi_open_synth(w, &c, "moshi-7b-tiny", 3, &e) < 0 ||
        mt_mimi_new(&m, *w, "", be, 8, &c, at_once, &e) < 0)
        fail_msg("%s", e.text);
    return m;
}

#define SIZE 1920

/* A second or so of something like speech for session i. */
static void noise(float *pcm, int n, uint64_t seed)
{
    double v = 0;

    for (int i = 0; i < n; i++) {
        v = 0.95 * v + 0.1 * (mt_unit(mt_mix64(seed * 1000003 + (uint64_t)i)) - 0.5);
        pcm[i] = (float)v;
    }
}

/* Sessions that join one after the other get what each gets alone, bit for bit. */
static void test_company(void **state)
{
    enum { SESSIONS = 5, FRAMES = 8 };
    static float pcm[SESSIONS][FRAMES * SIZE], want[SESSIONS][FRAMES * SIZE],
        got[SESSIONS][FRAMES * SIZE];
    static int32_t want_codes[SESSIONS][FRAMES][8];
    struct mt_backend *one = open_backend(1), *three = open_backend(3);
    struct mt_weights *w, *w3;
    struct mt_mimi *m = open_tiny(one, &w, 1), *m3 = open_tiny(three, &w3, 3);
    struct mt_mimi_state *s[SESSIONS];
    int at[SESSIONS] = {0};

    (void)state;
    for (int i = 0; i < SESSIONS; i++) {
        noise(pcm[i], FRAMES * SIZE, (uint64_t)i);
        assert_int_equal(mt_mimi_state_new(&s[i], m, i == 4, NULL), 0);
        for (int f = 0; f < FRAMES; f++) {
            const float *in = pcm[i] + (int64_t)f * SIZE;
            float *out = want[i] + (int64_t)f * SIZE;

            mt_mimi_encode(m, &s[i], &in, 1, want_codes[i][f]);
            mt_mimi_decode(m, &s[i], want_codes[i][f], 1, &out);
        }
        mt_mimi_state_free(&s[i]);
        assert_int_equal(mt_mimi_state_new(&s[i], m3, i == 4, NULL), 0);
    }
    for (int tick = 0; tick < FRAMES + SESSIONS; tick++) {
        struct mt_mimi_state *now[SESSIONS];
        const float *in[SESSIONS];
        float *out[SESSIONS];
        int who[SESSIONS], n = 0;
        int32_t codes[SESSIONS * 8];

        for (int i = SESSIONS - 1; i >= 0; i--) {
            if (tick < i || at[i] == FRAMES)
                continue;
            who[n] = i;
            now[n] = s[i];
            in[n] = pcm[i] + (int64_t)at[i] * SIZE;
            out[n++] = got[i] + (int64_t)at[i] * SIZE;
        }
        mt_mimi_encode(m3, now, in, n, codes);
        mt_mimi_decode(m3, now, codes, n, out);
        for (int k = 0; k < n; k++)
            assert_memory_equal(codes + (int64_t)k * 8, want_codes[who[k]][at[who[k]]++],
                                sizeof(want_codes[0][0]));
    }
    assert_memory_equal(got, want, sizeof(want));
    for (int i = 0; i < SESSIONS; i++)
        mt_mimi_state_free(&s[i]);
    mt_mimi_free(&m);
    mt_mimi_free(&m3);
    mt_weights_close(&w);
    mt_weights_close(&w3);
    one->ops->free(one);
    three->ops->free(three);
}

/* A session that was reset is a new one; the directions don't know of each other. */
static void test_reset(void **state)
{
    enum { FRAMES = 4 };
    static float pcm[FRAMES * SIZE], a[FRAMES * SIZE], b[FRAMES * SIZE];
    int32_t codes[FRAMES][8], again[FRAMES][8];
    struct mt_backend *be = open_backend(1);
    struct mt_weights *w;
    struct mt_mimi *m = open_tiny(be, &w, 1);
    struct mt_mimi_state *s;

    (void)state;
    noise(pcm, FRAMES * SIZE, 7);
    assert_int_equal(mt_mimi_state_new(&s, m, false, NULL), 0);
    for (int round = 0; round < 2; round++) {
        for (int f = 0; f < FRAMES; f++) {
            const float *in = pcm + (int64_t)f * SIZE;
            float *out = (round ? b : a) + (int64_t)f * SIZE;

            mt_mimi_encode(m, &s, &in, 1, round ? again[f] : codes[f]);
            if (round == 0)
                mt_mimi_decode(m, &s, codes[f], 1, &out);
        }
        for (int f = 0; f < FRAMES && round; f++) {
            float *out = b + (int64_t)f * SIZE;

            mt_mimi_decode(m, &s, codes[f], 1, &out);
        }
        mt_mimi_state_reset(s);
    }
    assert_memory_equal(codes, again, sizeof(codes));
    assert_memory_equal(a, b, sizeof(a));
    mt_mimi_state_free(&s);
    mt_mimi_free(&m);
    mt_weights_close(&w);
    be->ops->free(be);
}

static int64_t resident(void)
{
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");

    assert_non_null(f);
    assert_int_equal(fscanf(f, "%*d %ld", &pages), 1);
    fclose(f);
    return pages * sysconf(_SC_PAGESIZE);
}

/*
 * Days of a call: after a full ring only distances count, so a session that stands a week in hears
 * the same; nothing grows.
 */
static void test_long_call(void **state)
{
    static float pcm[SIZE], out[SIZE], late_out[SIZE];
    const int64_t week = INT64_C(7) * 86400 * 25 / 2;
    struct mt_backend *be = open_backend(1);
    struct mt_weights *w;
    struct mt_mimi *m = open_tiny(be, &w, 2);
    struct mt_mimi_state *s[2];
    const float *in[2] = {pcm, pcm};
    float *to[2] = {out, late_out};
    int32_t codes[16];
    int64_t before = 0;
    int differ = 0;

    (void)state;
    for (int i = 0; i < 2; i++)
        assert_int_equal(mt_mimi_state_new(&s[i], m, false, NULL), 0);
    for (int f = 0; f < 420; f++) {
        if (f == 130) {
            before = resident();
            mt_mimi_state_reset(s[1]); /* and both hear the same from here on … */
            mt_mimi_state_reset(s[0]);
            mt_mimi_state_seek(s[1], week);
        }
        noise(pcm, SIZE, (uint64_t)f);
        mt_mimi_encode(m, s, in, 2, codes);
        mt_mimi_decode(m, s, codes, 2, to);
        if (f < 130 + 255) /* … until the steps before that are out of both layers' rings */
            continue;
        differ += memcmp(codes, codes + 8, 8 * sizeof(*codes)) != 0;
        for (int i = 0; i < SIZE && differ == 0; i++)
            assert_true(fabs(out[i] - late_out[i]) < 1e-4);
    }
    assert_true(differ <= 1); /* a code may hang on the rounding of an angle */
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    assert_true(resident() - before < 256 << 10);
#else
    (void)before;
#endif
    for (int i = 0; i < 2; i++)
        mt_mimi_state_free(&s[i]);
    mt_mimi_free(&m);
    mt_weights_close(&w);
    be->ops->free(be);
}

/* What a session is said to take is what it takes, once its ring is full. */
static void test_state_bytes(void **state)
{
    enum { SESSIONS = 40 };
    static float pcm[SIZE], out[SIZE];
    struct mt_backend *be = open_backend(1);
    struct mt_weights *w;
    struct mt_mimi *m = open_tiny(be, &w, 1);
    struct mt_mimi_state *s[SESSIONS];
    int64_t said = mt_mimi_state_bytes(m), before = 0;
    int32_t codes[8];

    (void)state;
    for (int i = 0; i < SESSIONS; i++) {
        assert_int_equal(mt_mimi_state_new(&s[i], m, false, NULL), 0);
        for (int f = 0; f < 130; f++) {
            const float *in = pcm;
            float *to = out;

            mt_mimi_encode(m, &s[i], &in, 1, codes);
            mt_mimi_decode(m, &s[i], codes, 1, &to);
        }
        if (i == 7) /* what the first ones warmed up is not theirs */
            before = resident();
    }
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
    double each = (double)(resident() - before) / (SESSIONS - 8);
    print_message("a session: %lld bytes said, %.0f measured\n", (long long)said, each);
    assert_true(each < 1.05 * (double)said + 16384 && each > 0.9 * (double)said);
#else
    (void)before;
    (void)said;
#endif
    for (int i = 0; i < SESSIONS; i++)
        mt_mimi_state_free(&s[i]);
    mt_mimi_free(&m);
    mt_weights_close(&w);
    be->ops->free(be);
}

/* ---- files that are not what they say ---- */

/*
 * A copy of golden mimi-a in a folder of its own, where a member of one JSON file may be altered.
 */
static void copy_codec(const struct ck *c, const char *file, const char *member, json_t *value)
{
    static const char *const name[] = {"config.json", "mimi.json"};
    char path[600], command[1300];
    json_t *j;

    snprintf(path, sizeof(path), "%s/golden/mimi-a/mimi.safetensors", util_tests());
    char *whole = realpath(path, NULL);
    assert_non_null(whole);
    snprintf(command, sizeof(command), "ln -sf '%s' '%s/'", whole, c->dir);
    free(whole);
    assert_int_equal(system(command), 0);
    for (size_t i = 0; i < MT_COUNT(name); i++) {
        snprintf(path, sizeof(path), "%s/golden/mimi-a/%s", util_tests(), name[i]);
        assert_non_null(j = json_load_file(path, 0, NULL));
        if (!strcmp(file, name[i]))
            ck_set(j, member, value);
        ck_json(c, name[i], j);
        json_decref(j);
    }
}

/* Opening fails in one line that has all words. */
static void refused(struct mt_backend *be, const char *path, int code, const char *a, const char *b)
{
    struct mt_codec *c;
    struct mt_err e = {0};
    int rc = mt_codec_open(&c, path, be, 0, false, &e);

    if (rc != code || !strstr(e.text, a) || !strstr(e.text, b) || strchr(e.text, '\n'))
        fail_msg("%d (want %d): '%s' (want '%s', '%s')", rc, code, e.text, a, b);
    assert_null(c);
}

static void test_configs(void **state)
{
    static const struct {
        const char *file, *member, *value, *word;
        int code;
    } bad[] = {
        {"config.json", "mimi_name", "7", "mimi_name", -EPROTO},
        {"config.json", "mimi_name", "\"../x\"", "mimi_name", -EPROTO},
        {"config.json", "mimi_name", "\"x.safetensors\"", "x.safetensors", -ENOENT},
        {"config.json", "mimi_config_name", "\"nope.json\"", "nope.json", -ENOENT},
        {"config.json", "mimi_config_name", "\"mimi.safetensors\"", "mimi.safetensors", -EPROTO},
        {"mimi.json", "sample_rate", "0", "sample_rate", -EPROTO},
        {"mimi.json", "channels", "2", "channels", -EPROTO},
        {"mimi.json", "frame_rate", "13", "frame_rate", -EPROTO},
        {"mimi.json", "frame_rate", "\"fast\"", "frame_rate", -EPROTO},
        {"mimi.json", "frame_rate", "25", "downsample", -EPROTO},
        {"mimi.json", "seanet", "[]", "seanet", -EPROTO},
        {"mimi.json", "seanet.ratios", "[8,6,5]", "encoder.model.3", -EPROTO},
        {"mimi.json", "seanet.ratios", "[6,8,5,4]", "encoder.model", -EPROTO},
        {"mimi.json", "seanet.ratios", "[]", "ratios", -EPROTO},
        {"mimi.json", "seanet.ratios", "[0,6,5,4]", "ratios[0]", -EPROTO},
        {"mimi.json", "seanet.ratios", "[64,64,64,64]", "ratios", -EPROTO},
        {"mimi.json", "seanet.n_filters", "4", "encoder.model.0", -EPROTO},
        {"mimi.json", "seanet.compress", "9", "compressed by 9", -EPROTO},
        {"mimi.json", "seanet.dimension", "25", "'encoder.model.14", -EPROTO},
        {"mimi.json", "seanet.n_residual_layers", "2", "encoder.model.2.", -ENOENT},
        {"mimi.json", "seanet.causal", "false", "causal", -ENOTSUP},
        {"mimi.json", "seanet.activation", "\"ReLU\"", "ReLU", -ENOTSUP},
        {"mimi.json", "seanet.norm", "\"weight_norm\"", "weight_norm", -ENOTSUP},
        {"mimi.json", "seanet.pad_mode", "\"reflect\"", "reflect", -ENOTSUP},
        {"mimi.json", "seanet.true_skip", "false", "shortcut", -ENOENT},
        {"mimi.json", "transformer.num_heads", "5", "5 heads", -EPROTO},
        {"mimi.json", "transformer.num_heads", "24", "24 heads", -EPROTO},
        {"mimi.json", "transformer.num_heads", "0", "num_heads", -EPROTO},
        {"mimi.json", "transformer.num_layers", "3", "layers.2", -ENOENT},
        {"mimi.json", "transformer.dim_feedforward", "35", "linear1", -EPROTO},
        {"mimi.json", "transformer.context", "1", "context", -EPROTO},
        {"mimi.json", "transformer.context", "1e9", "context", -EPROTO},
        {"mimi.json", "transformer.gating", "\"silu\"", "silu", -ENOTSUP},
        {"mimi.json", "transformer.norm", "\"rms_norm\"", "rms_norm", -ENOTSUP},
        {"mimi.json", "transformer.positional_embedding", "\"sin\"", "sin", -ENOTSUP},
        {"mimi.json", "transformer.max_period", "0", "max_period", -EPROTO},
        {"mimi.json", "quantizer.bins", "41", "embedding_sum", -EPROTO},
        {"mimi.json", "quantizer.dimension", "9", "input_proj", -EPROTO},
        {"mimi.json", "quantizer.n_q", "65", "n_q", -EPROTO},
    };
    struct mt_backend *be = open_backend(1);

    (void)state;
    for (size_t i = 0; i < MT_COUNT(bad); i++) {
        struct ck c;

        ck_new(&c);
        copy_codec(&c, bad[i].file, bad[i].member, json_loads(bad[i].value, JSON_DECODE_ANY, NULL));
        refused(be, c.dir, bad[i].code, bad[i].word, strchr(bad[i].member, '.') ? "" : c.dir);
        ck_free(&c);
    }
    be->ops->free(be);
}

/* The bytes of a file, malloc'ed. */
static char *slurp(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    char *bytes;

    assert_non_null(f);
    fseek(f, 0, SEEK_END);
    *n = (size_t)ftell(f);
    rewind(f);
    bytes = malloc(*n);
    assert_int_equal(fread(bytes, 1, *n, f), *n);
    fclose(f);
    return bytes;
}

/* Any one tensor missing is named. */
static void test_tensors(void **state)
{
    struct mt_backend *be = open_backend(1);
    char path[600], *bytes;
    json_t *header, *entry;
    struct ck c;
    const char *name;
    void *next;
    uint64_t n;
    size_t size;

    (void)state;
    snprintf(path, sizeof(path), "%s/golden/mimi-a/mimi.safetensors", util_tests());
    bytes = slurp(path, &size);
    memcpy(&n, bytes, 8);
    assert_non_null(header = json_loadb(bytes + 8, n, 0, NULL));
    ck_new(&c);
    copy_codec(&c, "", "", NULL);
    json_object_foreach_safe(header, next, name, entry)
    {
        json_t *broken = json_copy(header);
        char *text, *file;
        uint64_t m;

        /* Nobody asks for these: six of seven codebooks are spoken. */
        if (strstr(name, "_initialized") || strstr(name, "rvq_rest.vq.layers.5.")) {
            json_decref(broken);
            continue;
        }
        json_object_del(broken, name);
        text = json_dumps(broken, JSON_COMPACT);
        m = strlen(text);
        file = malloc(8 + m + size);
        memcpy(file, &m, 8);
        memcpy(file + 8, text, m);
        memcpy(file + 8 + m, bytes + 8 + n, size - 8 - n); /* the data as they were */
        unlink(ck_path(&c, "mimi.safetensors"));
        ck_write(&c, "mimi.safetensors", file, 8 + m + size - 8 - n);
        refused(be, c.dir, -ENOENT, "tensor", c.dir);
        json_decref(broken);
        free(text);
        free(file);
    }
    json_decref(header);
    free(bytes);
    ck_free(&c);
    be->ops->free(be);
}

/* Without a config 8 heads are taken, and what they can't be is said. */
static void test_heads(void **state)
{
    struct mt_backend *be = open_backend(1);
    char path[600], command[1300];
    struct ck c;

    (void)state;
    ck_new(&c);
    snprintf(path, sizeof(path), "%s/golden/mimi-a/mimi.safetensors", util_tests());
    snprintf(command, sizeof(command), "cp '%s' '%s/'", path, c.dir);
    assert_int_equal(system(command), 0);
    refused(be, c.dir, -EPROTO, "24 channels for 8 heads", "num_heads");
    ck_free(&c);
    be->ops->free(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),      cmocka_unit_test(test_company),
        cmocka_unit_test(test_reset),       cmocka_unit_test(test_long_call),
        cmocka_unit_test(test_state_bytes), cmocka_unit_test(test_configs),
        cmocka_unit_test(test_tensors),     cmocka_unit_test(test_heads),
    };

    return cmocka_run_group_tests_name("mimi", tests, NULL, NULL);
}
