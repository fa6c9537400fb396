/*
 * test_qwen3.c: Qwen3-Omni beyond its golden values: every tensor of the release is asked for, and
 * no other; broken configs; how a live ear cuts, windows and skips; the turn's tokens.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "model/family.h"
#include "model/source.h"
#include "tests/unit/checkpoint.h"

static struct mt_backend *be;

static struct mt_model *must_open(const char *spec)
{
    struct mt_model_opts o = {.step_rows = 64, .want_rows = 64};
    struct mt_err e = {0};
    struct mt_model *m;

    if (mt_model_open(&m, spec, be, &o, &e) < 0)
        fail_msg("%s: %s", spec, e.text);
    return m;
}

/* ---- the release ---- */

/* A source that has whatever it is asked for, and counts it; the values are all 0. */
struct counter {
    int64_t tensors[2], parameters[2]; /* of the text model, of the tower */
    void *zeros;
    size_t bytes;
    struct mt_tensor t;
};

static bool always(const void *self, const char *name)
{
    (void)self;
    return strncmp(name, "thinker.", 8) == 0;
}

static int count(void *self, const char *name, int n_dims, const int64_t *dims, struct mt_err *e)
{
    struct counter *c = self;
    int64_t n = 1;

    (void)e;
    c->t = (struct mt_tensor){.n_dims = n_dims};
    for (int i = 0; i < n_dims; i++)
        n *= c->t.dims[i] = dims[i];
    mt_tensor_matrix(&c->t);
    assert_true((size_t)n * 2 <= c->bytes);
    c->t.bytes.data = c->zeros;
    c->t.bytes.type = MT_BF16;
    c->t.size = 2 * n;
    c->tensors[strstr(name, "audio_tower") != NULL]++;
    c->parameters[strstr(name, "audio_tower") != NULL] += n;
    return 0;
}

static int found(void *self, const char *name, struct mt_tensor **out, struct mt_err *e)
{
    (void)name;
    (void)e;
    *out = &((struct counter *)self)->t;
    return 0;
}

static const char *nowhere(const void *self)
{
    (void)self;
    return "nowhere";
}

static void leave(void *self)
{
    (void)self;
}

static void test_release(void **state)
{
    static const struct mt_source source = {
        .has = always, .find = found, .make = count, .where = nowhere, .close = leave};
    struct counter c = {.bytes = (size_t)152064 * 2048 * 2};
    struct mt_model m = {.be = be, .opts = {.step_rows = 1, .want_rows = 1}};
    const struct mt_synth_shape *shape = mt_family_qwen3_omni.shapes;
    json_t *config = json_loads(shape->config, 0, NULL);
    struct mt_err e = {0};

    (void)state;
    assert_string_equal(shape->name, "qwen3-omni-30b");
    c.zeros = calloc(1, c.bytes); /* never touched, but for the vectors */
    assert_int_equal(mt_weights_new(&m.weights, &source, &c, &e), 0);
    if (mt_family_qwen3_omni.open(&m, config, "config.json", &e) < 0)
        fail_msg("%s", e.text);
    assert_int_equal(c.tensors[0], 18867);
    assert_int_equal(c.tensors[1], 525);
    assert_int_equal(c.parameters[0], INT64_C(30532646912));
    assert_int_equal(c.parameters[1], 647927168);
    assert_int_equal(m.info.audio_id, 151675);
    assert_int_equal(m.info.beat_samples, 16000);
    struct mt_kv_shape kv = mt_model_kv_shape(&m, 1, MT_BF16);
    assert_int_equal(mt_kv_block_bytes(&kv), 98304);
    mt_family_qwen3_omni.close(&m);
    mt_weights_close(&m.weights);
    json_decref(config);
    free(c.zeros);
}

/* ---- config.json ---- */

/* qwen3-b with another config.json. */
static json_t *borrow(const struct ck *c)
{
    static const char *const file[] = {"model.safetensors", "vocab.json", "merges.txt",
                                       "tokenizer_config.json"};
    const char *dir = getenv("MT_TESTS") ? getenv("MT_TESTS") : "tests";
    char from[1000], *real = realpath(dir, NULL);

    for (size_t i = 0; i < MT_COUNT(file); i++) {
        snprintf(from, sizeof(from), "%s/golden/qwen3-b/%s", real, file[i]);
        assert_int_equal(symlink(from, ck_path(c, file[i])), 0);
    }
    snprintf(from, sizeof(from), "%s/golden/qwen3-b/config.json", real);
    free(real);
    return json_load_file(from, 0, NULL);
}

static void test_config(void **state)
{
    static const struct {
        const char *path, *value /* JSON, NULL: removed */, *word;
    } is[] = {
        {"text_config", NULL, "text_config is missing"},
        {"text_config.num_experts", "-1", "text_config.num_experts"},
        {"text_config.num_experts", "5000", "text_config.num_experts"},
        {"text_config.num_experts", "\"many\"", "text_config.num_experts"},
        {"text_config.num_experts", "1", "num_experts_per_tok 2 is above num_experts 1"},
        {"text_config.num_experts", "8", "mlp.gate.weight"},
        {"text_config.num_experts", "0", "mlp.gate_proj.weight"},
        {"text_config.num_experts_per_tok", "0", "num_experts_per_tok"},
        {"text_config.num_experts_per_tok", "8", "num_experts_per_tok 8"},
        {"text_config.moe_intermediate_size", "14", "experts.0.gate_proj.weight"},
        {"text_config.moe_intermediate_size", "0", "moe_intermediate_size"},
        {"text_config.norm_topk_prob", "1", "norm_topk_prob"},
        {"text_config.decoder_sparse_step", "0", "decoder_sparse_step"},
        {"text_config.decoder_sparse_step", "2", "mlp.gate_proj.weight"},
        {"text_config.mlp_only_layers", "1", "mlp_only_layers is not an array"},
        {"text_config.mlp_only_layers", "[1,3]", "mlp_only_layers[1]"},
        {"text_config.mlp_only_layers", "[1,-1]", "mlp_only_layers[1]"},
        {"text_config.mlp_only_layers", "[\"1\"]", "mlp_only_layers[0]"},
        {"text_config.mlp_only_layers", "[]", "mlp.gate.weight"},
        {"text_config.attention_bias", "true", "attention_bias"},
        {"text_config.head_dim", "24", "q_proj"},
        {"text_config.head_dim", "21", "head_dim 21 is odd"},
        {"text_config.rope_parameters.rope_type", "\"yarn\"", "rope_type 'yarn'"},
        {"audio_config", NULL, "audio_config is missing"},
        {"audio_config.downsample_hidden_size", "6", "conv2d1"},
        {"audio_config.downsample_hidden_size", "0", "downsample_hidden_size"},
        {"audio_config.num_mel_bins", "136", "conv_out"},
        {"audio_config.num_mel_bins", "257", "num_mel_bins"},
        {"audio_config.n_window", "100", "n_window 100"},
        {"audio_config.n_window", "48", "n_window 48"},
        {"audio_config.n_window_infer", "99", "n_window_infer 99"},
        {"audio_config.n_window_infer", "1000000", "n_window_infer 1000000"},
        {"audio_config.max_source_positions", "12", "max_source_positions"},
        {"audio_config.encoder_layers", "2", "audio_tower.layers.1."},
        {"audio_config.encoder_attention_heads", "4", "encoder_attention_heads 4"},
        {"audio_config.output_dim", "39", "output_dim 39"},
        {"audio_config.activation_function", "\"relu\"", "activation_function 'relu'"},
        {"audio_token_id", NULL, "audio_token_id is missing"},
        {"audio_token_id", "-1", "audio_token_id"},
    };
    struct ck c = {0};
    struct mt_model_opts o = {.step_rows = 4, .want_rows = 4};

    (void)state;
    ck_new(&c);
    json_t *right = borrow(&c);
    for (size_t i = 0; i < MT_COUNT(is); i++) {
        json_t *config = json_deep_copy(right);
        struct mt_err e = {0};
        struct mt_model *m;

        ck_set(config, is[i].path,
               is[i].value ? json_loads(is[i].value, JSON_DECODE_ANY, NULL) : NULL);
        ck_json(&c, "config.json", config);
        json_decref(config);
        if (mt_model_open(&m, c.dir, be, &o, &e) == 0)
            fail_msg("%s %s was opened", is[i].path, is[i].value);
        assert_null(m);
        if (!strstr(e.text, c.dir) || !strstr(e.text, is[i].word) || strpbrk(e.text, "\n\r\033"))
            fail_msg("'%s' lacks '%s', or is no single line", e.text, is[i].word);
    }
    json_decref(right);
    ck_free(&c);
}

/* ---- the ear ---- */

enum { SECOND = 16000, ROWS = 13 };

static void fill_sound(float *pcm, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float v = (float)(mt_unit(mt_mix64((uint64_t)i)) - 0.5);
        pcm[i] = v * (i / 9000 % 3 == 1 ? 1.0f : 0.003f);
    }
}

/* Rows of a chunk of so many mel frames: halved, up, three times. */
static int rows_by_hand(int frames)
{
    int rows = 0;

    for (; frames >= 100; frames -= 100)
        rows += ROWS;
    return rows + ((frames + 1) / 2 + 1) / 2 / 2 + ((frames + 1) / 2 + 1) / 2 % 2;
}

static void test_ear_rows(void **state)
{
    static const int frames[] = {1280, 1440, 2560, 8000, 15840, 16000, 16160, 24000, 48000};
    static float pcm[4 * SECOND];
    struct mt_model *m = must_open("synth:qwen3-omni-30b-tiny,layers=1");
    struct mt_err e = {0};
    struct mt_ear *ear;
    int rows;

    (void)state;
    fill_sound(pcm, MT_COUNT(pcm));
    for (size_t i = 0; i < MT_COUNT(frames); i++) {
        int f = frames[i];

        if (mt_ear_new(&ear, m, f, 2, &e) < 0)
            fail_msg("%d: %s", f, e.text);
        assert_int_equal(mt_ear_push(ear, pcm, f + 700), f + 700);
        mt_ear_end(ear);
        assert_int_equal(mt_model_encode(m, &ear, 1), 0);
        mt_ear_rows(ear, &rows);
        assert_int_equal(rows, rows_by_hand(f / 160));
        assert_int_equal(rows, mt_ear_rows_max(m, f));
        assert_int_equal(mt_ear_mel_frames(ear), f / 160);
        assert_int_equal(mt_model_encode(m, &ear, 1), 0); /* 700 samples: padded to 80 ms */
        mt_ear_rows(ear, &rows);
        assert_int_equal(rows, 1);
        mt_ear_free(&ear);
    }
    assert_int_equal(mt_ear_new(&ear, m, 1279, 2, &e), -EINVAL);
    assert_int_equal(mt_ear_new(&ear, m, 16001, 2, &e), -EINVAL);
    mt_model_close(&m);
}

/* All rows of n samples heard in frames of `frame`; `skip` has a bit for each one to be skipped. */
static float *hear(struct mt_model *m, const float *pcm, int64_t n, int frame, uint64_t skip,
                   int64_t *n_rows)
{
    int hidden = mt_model_info(m)->hidden;
    float *out = malloc((size_t)(n / 1000 + 100) * (size_t)hidden * sizeof(float));
    struct mt_ear *ear;
    int64_t at = 0;

    *n_rows = 0;
    assert_int_equal(mt_ear_new(&ear, m, frame, 2, NULL), 0);
    while (at < n || mt_ear_frames(ear) > 0) {
        at += mt_ear_push(ear, pcm + at, n - at < 5000 ? n - at : 5000);
        if (at == n)
            mt_ear_end(ear);
        for (; mt_ear_frames(ear) > 0; skip >>= 1) {
            int got;

            if (skip & 1) {
                mt_ear_skip(ear);
                continue;
            }
            assert_int_equal(mt_model_encode(m, &ear, 1), 0);
            struct mt_rows r = mt_ear_rows(ear, &got);
            be->ops->rows_get(be, out + *n_rows * hidden, r, got);
            *n_rows += got;
        }
    }
    mt_ear_free(&ear);
    return out;
}

/* Whole seconds are the same however many make a frame, across the ends of windows, too. */
static void test_ear_cuts(void **state)
{
    enum { S = 21 };
    static float pcm[S * SECOND];
    struct mt_model *m = must_open("synth:qwen3-omni-30b-tiny,layers=1");
    size_t row = (size_t)mt_model_info(m)->hidden * sizeof(float);
    int64_t n, got;

    (void)state;
    fill_sound(pcm, MT_COUNT(pcm));
    /* The running maximum is that of a chunk, not of a frame. */
    float *want = hear(m, pcm, (int64_t)MT_COUNT(pcm), SECOND, 0, &n);
    assert_int_equal(n, S * ROWS);
    for (int seconds = 2; seconds <= S; seconds += seconds < 5 ? 1 : 8) {
        float *have = hear(m, pcm, (int64_t)MT_COUNT(pcm), seconds * SECOND, 0, &got);
        assert_int_equal(got, n);
        assert_memory_equal(have, want, (size_t)n * row);
        free(have);
    }
    /* After a whole window nothing of it is left but the loudest it had. */
    for (int i = 0; i < 8 * SECOND; i++)
        pcm[i] = i == 9 ? 1.0f : -pcm[i] / 3;
    float *other = hear(m, pcm, (int64_t)MT_COUNT(pcm), SECOND, 0, &got);
    assert_memory_not_equal(other, want, 8 * ROWS * row);
    free(other);
    free(want);
    mt_model_close(&m);
}

/* Ears side by side give what each gives alone, at any distance into their windows. */
static void test_ear_company(void **state)
{
    enum { N = 11, S = 10 };
    static float pcm[(N + S) * SECOND];
    struct mt_model *m = must_open("synth:qwen3-omni-30b-tiny,layers=1");
    int hidden = mt_model_info(m)->hidden;
    size_t row = (size_t)hidden * sizeof(float);
    float *got = malloc(ROWS * row);
    struct mt_ear *ear[N], *both[N];
    float *alone[N];

    (void)state;
    fill_sound(pcm, MT_COUNT(pcm));
    for (int i = 0; i < N; i++) {
        int64_t n;

        alone[i] = hear(m, pcm + (ptrdiff_t)i * SECOND / 3, (int64_t)S * SECOND, SECOND, 0, &n);
        assert_int_equal(n, S * ROWS);
        assert_int_equal(mt_ear_new(&ear[i], m, SECOND, 1, NULL), 0);
    }
    for (int t = 0; t < S + N; t++) { /* ear i begins at second i */
        int n = 0, rows;

        for (int i = 0; i < N && i <= t; i++) {
            if (t - i >= S)
                continue;
            const float *x = pcm + (ptrdiff_t)i * SECOND / 3 + (ptrdiff_t)(t - i) * SECOND;
            int more = t == i ? SECOND + 40 : t - i < S - 1 ? SECOND : SECOND - 40;
            x += t == i ? 0 : 40;
            assert_int_equal(mt_ear_push(ear[i], x, more), more);
            if (t - i == S - 1)
                mt_ear_end(ear[i]);
            both[n++] = ear[i];
        }
        if (n > 0)
            assert_int_equal(mt_model_encode(m, both, n), 0);
        for (int i = 0; i < N && i <= t; i++) {
            if (t - i >= S)
                continue;
            be->ops->rows_get(be, got, mt_ear_rows(ear[i], &rows), ROWS);
            assert_int_equal(rows, ROWS);
            assert_memory_equal(got, alone[i] + (ptrdiff_t)(t - i) * ROWS * hidden, ROWS * row);
        }
    }
    for (int i = 0; i < N; i++) {
        mt_ear_free(&ear[i]);
        free(alone[i]);
    }
    free(got);
    mt_model_close(&m);
}

/*
 * A skipped second is heard by the front end and counts in its window: the next window is what it
 * would have been.
 */
static void test_ear_skip(void **state)
{
    enum { S = 12 };
    static float pcm[S * SECOND];
    struct mt_model *m = must_open("synth:qwen3-omni-30b-tiny,layers=1");
    size_t row = (size_t)mt_model_info(m)->hidden;
    int64_t n, got;

    (void)state;
    fill_sound(pcm, MT_COUNT(pcm));
    float *want = hear(m, pcm, (int64_t)MT_COUNT(pcm), SECOND, 0, &n);
    float *have = hear(m, pcm, (int64_t)MT_COUNT(pcm), SECOND, 1 << 2 | 1 << 3 | 1 << 6, &got);
    assert_int_equal(n, S * ROWS);
    assert_int_equal(got, (S - 3) * ROWS);
    assert_memory_equal(have, want, 2 * ROWS * row * sizeof(float));
    assert_memory_not_equal(have + 2 * ROWS * row, want + 4 * ROWS * row, row * sizeof(float));
    assert_memory_equal(have + 5 * ROWS * row, want + 8 * ROWS * row,
                        4 * ROWS * row * sizeof(float));
    free(want);
    free(have);
    mt_model_close(&m);
}

static void test_clips(void **state)
{
    static float pcm[400];
    struct mt_model *m = must_open("synth:qwen3-omni-30b-tiny,layers=1");
    struct mt_err e = {0};
    int64_t n, frames;
    float *rows;

    (void)state;
    assert_int_equal(mt_model_embed_clip(m, pcm, 200, &rows, &n, &frames, &e), -EINVAL);
    assert_null(rows);
    assert_non_null(strstr(e.text, "200 samples is too short (at least 201)"));
    assert_int_equal(mt_model_embed_clip(m, pcm, 201, &rows, &n, &frames, NULL), 0);
    assert_int_equal(n, 1);
    assert_int_equal(frames, 1);
    free(rows);
    e = (struct mt_err){0};
    assert_int_equal(mt_model_embed_clip(m, pcm, 2400 * SECOND + 1, &rows, &n, NULL, &e), -E2BIG);
    assert_non_null(strstr(e.text, "2400 s"));
    mt_model_close(&m);
}

/* ---- the turn ---- */

static void expect(const struct mt_tokenizer *t, const int32_t *ids, int n, const char *text)
{
    int32_t *want;
    size_t len;

    assert_int_equal(mt_tokenizer_encode(t, text, strlen(text), true, &want, &len, NULL), 0);
    assert_int_equal(n, len);
    assert_memory_equal(ids, want, len * sizeof(*want));
    free(want);
}

static void test_turn(void **state)
{
    static const char *const is[] = {"synth:qwen3-omni-30b-tiny,layers=1", "/golden/qwen3-a",
                                     "/golden/qwen3-b"};

    (void)state;
    for (size_t i = 0; i < MT_COUNT(is); i++) {
        char dir[1000];
        int32_t ids[400];
        int n, at;

        snprintf(dir, sizeof(dir), "%s%s",
                 i == 0               ? ""
                 : getenv("MT_TESTS") ? getenv("MT_TESTS")
                                      : "tests",
                 is[i]);
        struct mt_model *m = must_open(dir);
        const struct mt_tokenizer *t = mt_model_tokenizer(m);
        struct mt_talk *talk;
        assert_int_equal(mt_talk_new(&talk, m, MT_MODE_TURN, NULL, NULL, NULL), 0);
        mt_talk_prompt(talk, &n);
        assert_int_equal(n, 0); /* no system text but what is asked for */
        n = mt_talk_begin(talk, ROWS, ids, &at);
        expect(t, ids, at, "<|im_start|>user\n<|audio_start|>");
        expect(t, ids + at + ROWS, n - at - ROWS,
               "<|audio_end|><|im_end|>\n<|im_start|>assistant\n");
        assert_int_equal(mt_tokenizer_special(t, "<|audio_pad|>"), mt_model_info(m)->audio_id);
        mt_talk_free(&talk);
        mt_model_close(&m);
    }
}

static int open_backend(void **state)
{
    enum mt_cpu_tier tier;

    (void)state;
    return mt_cpu_tier(&tier, NULL) < 0 || mt_backend_cpu(&be, tier, 2, NULL) < 0 ? -1 : 0;
}

static int close_backend(void **state)
{
    (void)state;
    mt_backend_close(&be);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_release),     cmocka_unit_test(test_config),
        cmocka_unit_test(test_ear_rows),    cmocka_unit_test(test_ear_cuts),
        cmocka_unit_test(test_ear_company), cmocka_unit_test(test_ear_skip),
        cmocka_unit_test(test_clips),       cmocka_unit_test(test_turn),
    };

    return cmocka_run_group_tests_name("qwen3", tests, open_backend, close_backend);
}
