/*
 * test_model.c: opening a model the way a stranger's directory comes: broken and impossible
 * configs, missing and hostile files, other ways of saving the same model; then the layout of a
 * call in tokens, and what teacher forcing refuses.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "engine/engine.h"
#include "tests/unit/checkpoint.h"

static struct mt_backend *be;

static const char *tests_dir(void)
{
    const char *d = getenv("MT_TESTS");
    return d ? d : "tests";
}

static int open_rows(struct mt_model **m, const char *spec, int step, int want, struct mt_err *e)
{
    struct mt_model_opts o = {.step_rows = step, .want_rows = want};

    return mt_model_open(m, spec, be, &o, e);
}

static struct mt_model *must_open(const char *spec)
{
    struct mt_err e = {0};
    struct mt_model *m;

    if (open_rows(&m, spec, 64, 64, &e) < 0)
        fail_msg("%s: %s", spec, e.text);
    return m;
}

/* It is refused in one line that holds both words; returns the code. */
static int must_fail(const char *spec, const char *word, const char *word2)
{
    struct mt_err e = {0};
    struct mt_model *m = (struct mt_model *)&e;
    int rc = open_rows(&m, spec, 64, 64, &e);

    if (rc >= 0)
        fail_msg("%s was opened (expected an error with '%s', '%s')", spec, word, word2);
    assert_null(m);
    assert_int_equal(rc, e.code);
    if (!strstr(e.text, word) || !strstr(e.text, word2) || strpbrk(e.text, "\n\r\033"))
        fail_msg("'%s' lacks '%s' or '%s', or is no single line", e.text, word, word2);
    return rc;
}

struct seen {
    float v[400];
    int rows, stop_after;
};

static int see(void *ctx, int64_t pos, const float *logprobs, int vocab)
{
    struct seen *s = ctx;

    (void)pos;
    assert_true(vocab <= (int)MT_COUNT(s->v));
    memcpy(s->v, logprobs, (size_t)vocab * sizeof(*s->v));
    return ++s->rows == s->stop_after ? -ECANCELED : 0;
}

#define N_IDS 150
static int32_t ids[N_IDS];

static struct mt_teacher teacher(struct seen *s)
{
    static const int64_t last = N_IDS - 1;

    for (int i = 0; i < N_IDS; i++)
        ids[i] = (int32_t)(mt_mix64((uint64_t)i) % 280);
    return (struct mt_teacher){.ids = ids,
                               .n = N_IDS,
                               .at = &last,
                               .n_at = 1,
                               .kv_type = MT_F32,
                               .block_tokens = 16,
                               .ctx = s,
                               .row = see};
}

/* Log-probs after N_IDS tokens. */
static struct seen logits_of(struct mt_model *m)
{
    struct seen s = {0};
    struct mt_teacher t = teacher(&s);
    struct mt_err e = {0};

    if (mt_teacher_run(m, &t, &e) < 0)
        fail_msg("%s", e.text);
    assert_int_equal(s.rows, 1);
    assert_true(isfinite(s.v[0]));
    return s;
}

static void assert_same(const struct seen *a, const struct seen *b)
{
    assert_memory_equal(a->v, b->v, sizeof(a->v));
}

/* ---- config.json ---- */

#define T "thinker_config.text_config."
#define A "thinker_config.audio_config."

static void test_config_fields(void **state)
{
    static const struct {
        const char *path, *value /* JSON, NULL: removed */, *word;
    } is[] = {
        {T "vocab_size", NULL, "text_config.vocab_size is missing"},
        {T "vocab_size", "0", "text_config.vocab_size"},
        {T "vocab_size", "-300", "text_config.vocab_size"},
        {T "vocab_size", "300.0", "text_config.vocab_size"},
        {T "vocab_size", "\"300\"", "text_config.vocab_size"},
        {T "vocab_size", "9223372036854775807", "text_config.vocab_size"},
        {T "vocab_size", "301", "embed_tokens"},
        {T "vocab_size", "16777216", "embed_tokens"},
        {T "hidden_size", NULL, "text_config.hidden_size"},
        {T "hidden_size", "null", "text_config.hidden_size"},
        {T "hidden_size", "13", "hidden_size 13"},
        {T "hidden_size", "24", "text_config.hidden_size 24"},
        {T "hidden_size", "131073", "text_config.hidden_size"},
        {T "num_hidden_layers", "0", "num_hidden_layers"},
        {T "num_hidden_layers", "3", "model.layers.2."},
        {T "num_hidden_layers", "2147483648", "num_hidden_layers"},
        {T "num_attention_heads", "5", "num_attention_heads 5"},
        {T "num_attention_heads", "0", "num_attention_heads"},
        {T "num_attention_heads", "4", "head_dim 3 is odd"},
        {T "num_attention_heads", "4096", "num_attention_heads 4096"},
        {T "num_key_value_heads", "2", "num_key_value_heads 2"},
        {T "num_key_value_heads", "3", "k_proj"},
        {T "num_key_value_heads", "-1", "num_key_value_heads"},
        {T "head_dim", "3", "head_dim 3 is odd"},
        {T "head_dim", "0", "text_config.head_dim"},
        {T "head_dim", "6", "q_proj"},
        {T "head_dim", "1000000", "text_config.head_dim"},
        {T "intermediate_size", NULL, "intermediate_size"},
        {T "intermediate_size", "18", "gate_proj"},
        {T "max_position_embeddings", "0", "max_position_embeddings"},
        {T "rms_norm_eps", "-1e-6", "rms_norm_eps"},
        {T "rms_norm_eps", "\"small\"", "rms_norm_eps"},
        {T "rope_theta", "0", "rope_theta"},
        {T "rope_theta", "[]", "rope_theta"},
        {T "rope_scaling", "{\"type\":\"yarn\",\"factor\":4}", "rope_scaling.type 'yarn'"},
        {T "rope_scaling", "{\"rope_type\":7}", "rope_scaling.rope_type"},
        {T "rope_scaling", "\"linear\"", "rope_scaling is not an object"},
        {T "rope_parameters", "{\"rope_type\":\"dynamic\"}", "rope_parameters.rope_type 'dynamic'"},
        {T "rope_parameters", "{\"rope_theta\":-5}", "rope_parameters.rope_theta"},
        {T "rope_parameters", "[1e6]", "rope_parameters is not an object"},
        {T "rope_parameters", "{\"rope_type\":\"mrop\"}", "'mrop' is not supported"},
        {T "partial_rotary_factor", "0.5", "partial_rotary_factor"},
        {T "hidden_act", "\"gelu\"", "hidden_act 'gelu'"},
        {T "hidden_act", "\"\"", "hidden_act ''"},
        {T "hidden_act", "[\"silu\"]", "hidden_act is not a string"},
        {T "use_sliding_window", "true", "use_sliding_window"},
        {T "use_sliding_window", "1", "use_sliding_window"},
        {T "layer_types", "[\"full_attention\",\"sliding_attention\"]", "layer_types[1]"},
        {A "num_mel_bins", "0", "num_mel_bins"},
        {A "num_mel_bins", "9", "conv1"},
        {A "d_model", NULL, "d_model"},
        {A "d_model", "7", "d_model 7"},
        {A "d_model", "1e3", "d_model"},
        {A "d_model", "10", "conv1"},
        {A "encoder_layers", "2", "audio_tower.layers.1."},
        {A "encoder_attention_heads", "3", "encoder_attention_heads 3"},
        {A "encoder_attention_heads", "0", "encoder_attention_heads"},
        {A "encoder_ffn_dim", "6", "fc1"},
        {A "n_window", "99", "n_window 99"},
        {A "n_window", "2", "n_window"},
        {A "n_window", "1000000000", "n_window"},
        {A "max_source_positions", "50", "max_source_positions 50"},
        {A "output_dim", "24", "output_dim 24"},
        {A "output_dim", "-12", "output_dim"},
        {A "activation_function", "\"relu\"", "activation_function 'relu'"},
        {"thinker_config.text_config", NULL, "thinker_config.text_config is missing"},
        {"thinker_config.text_config", "[]", "text_config"},
        {"thinker_config.audio_config", "null", "thinker_config.audio_config is missing"},
        {"thinker_config.audio_token_index", NULL, "thinker_config.audio_token_id is missing"},
        {"thinker_config.audio_token_index", "-1", "thinker_config.audio_token_index"},
        {"thinker_config.audio_token_index", "1e9", "audio_token_index"},
        {"thinker_config.audio_token_index", "4294967586", "audio_token_index"},
        {"thinker_config", "[1]", "text_config"},
        {"model_type", NULL, "model_type is missing"},
        {"model_type", "17", "model_type"},
        {"model_type", "\"llama\"", "model_type 'llama'"},
        {"model_type", "\"a\\n\\u001b[2Jb\"", "model_type 'a??[2Jb'"},
    };
    struct ck c = {0};

    (void)state;
    ck_new(&c);
    ck_model(&c, "thinker.", CK_HEAD);
    for (size_t i = 0; i < MT_COUNT(is); i++) {
        json_t *config = ck_config();
        json_t *value = is[i].value ? json_loads(is[i].value, JSON_DECODE_ANY, NULL) : NULL;
        if (is[i].value)
            assert_non_null(value);
        if (!value && !strcmp(is[i].path, "thinker_config.text_config"))
            ck_set(config, is[i].path, NULL);
        else
            ck_set(config, is[i].path, value);
        ck_json(&c, "config.json", config);
        json_decref(config);
        /* What disagrees with the tensors names the tensor, which lies in another file. */
        must_fail(c.dir, c.dir, is[i].word);
    }
    ck_free(&c);
}

static void test_config_harmless(void **state)
{
    static const struct {
        const char *path, *value;
    } is[] = {
        {"thinker_config.nonsense", "{\"deep\":[[[]]]}"},
        {T "head_dim", "null"},
        {T "head_dim", "4"},
        {T "rope_scaling", "null"},
        {T "rope_scaling",
         "{\"mrope_section\":[1,1],\"rope_type\":\"default\",\"type\":\"default\"}"},
        {T "rope_parameters", "{\"rope_theta\":10000.0,\"rope_type\":\"mrope\"}"},
        {T "layer_types", "[\"full_attention\",\"full_attention\"]"},
        {T "tie_word_embeddings", "true"}, /* the head is there */
        {T "max_position_embeddings", "1099511627776"},
        {"thinker_config.audio_token_index", "290"},
    };
    struct ck c = {0};

    (void)state;
    ck_new(&c);
    ck_model(&c, "thinker.", CK_HEAD);
    struct mt_model *m = must_open(c.dir);
    struct seen want = logits_of(m);
    mt_model_close(&m);
    for (size_t i = 0; i < MT_COUNT(is); i++) {
        json_t *config = ck_config();
        ck_set(config, is[i].path, json_loads(is[i].value, JSON_DECODE_ANY, NULL));
        ck_json(&c, "config.json", config);
        json_decref(config);
        m = must_open(c.dir);
        struct seen got = logits_of(m);
        assert_same(&want, &got);
        mt_model_close(&m);
    }
    /* … and theta is read from where it lies. */
    json_t *config = ck_config();
    ck_set(config, T "rope_parameters", json_loads("{\"rope_theta\":1e6}", 0, NULL));
    ck_json(&c, "config.json", config);
    json_decref(config);
    m = must_open(c.dir);
    struct seen got = logits_of(m);
    assert_memory_not_equal(&want, &got, sizeof(want));
    mt_model_close(&m);
    ck_free(&c);
}

static void test_config_files(void **state)
{
    static const struct {
        const char *text, *word;
    } is[] = {
        {"", "config.json"},
        {"{", "config.json: not valid JSON: line 1"},
        {"[]", "model_type"},
        {"null", "config.json"},
        {"{\"model_type\":\"qwen2_5_omni\"}", "text_config"},
        {"{\"model_type\":\"qwen2_5_omni\",\"model_type\":\"qwen2_5_omni\"}", "duplicate"},
        {"\x89PNG\r\n\x1a\n", "config.json"},
        {"{\"model_type\":\"qwen2_5_omni\"} {}", "config.json"},
    };
    struct ck c = {0};

    (void)state;
    ck_new(&c);
    ck_model(&c, "thinker.", CK_HEAD);
    for (size_t i = 0; i < MT_COUNT(is); i++) {
        ck_text(&c, "config.json", is[i].text);
        must_fail(c.dir, ck_path(&c, "config.json"), is[i].word);
    }

    /* Valid, but of a size that no config has: in bytes, in values, in depth. */
    size_t n = 20 << 20;
    char *big = malloc(n + 1);
    memset(big, ' ', n);
    memcpy(big, CK_CONFIG, strlen(CK_CONFIG));
    ck_write(&c, "config.json", big, n);
    must_fail(c.dir, "config.json", "20971520 bytes");
    memset(big, '[', 1000);
    memset(big + 1000, ']', 1000);
    ck_write(&c, "config.json", big, 2000);
    must_fail(c.dir, "config.json", "nested too deeply");
    for (size_t i = 0; i < 300000; i += 2)
        memcpy(big + i, "1,", 2);
    big[0] = '[';
    memcpy(big + 300000, "1]", 2);
    ck_write(&c, "config.json", big, 300002);
    must_fail(c.dir, "config.json", "too many values");
    free(big);

    /* Things that are no file. None of them may block. */
    assert_int_equal(unlink(ck_path(&c, "config.json")), 0);
    assert_int_equal(must_fail(c.dir, "config.json", "No such file"), -ENOENT);
    assert_int_equal(mkfifo(ck_path(&c, "config.json"), 0600), 0);
    must_fail(c.dir, "config.json", "not a regular file");
    assert_int_equal(unlink(ck_path(&c, "config.json")), 0);
    assert_int_equal(mkdir(ck_path(&c, "config.json"), 0700), 0);
    must_fail(c.dir, "config.json", "");
    assert_int_equal(must_fail("/nonexistent/model", "/nonexistent/model", "No such file"),
                     -ENOENT);
    must_fail(ck_path(&c, "model.safetensors"), "model.safetensors", "nor a model directory");
    must_fail("", "", "No such file");
    ck_free(&c);
}

/* ---- weights ---- */

static void test_hostile_weights(void **state)
{
    static const struct {
        const char *header;
        uint64_t n;
        const char *word;
    } is[] = {
        {"{}", 2, "embed_tokens"},
        {"{}", UINT64_MAX, "header"},
        {"{}", 200000000, "header"},
        {"not json", 8, "model.safetensors"},
        {"{\"thinker.model.embed_tokens.weight\":{\"dtype\":\"F32\",\"shape\":[300,12],"
         "\"data_offsets\":[0,14400]}}",
         96, "embed_tokens"},
        {"{\"thinker.model.embed_tokens.weight\":{\"dtype\":\"F32\",\"shape\":[300,-12],"
         "\"data_offsets\":[0,0]}}",
         93, "embed_tokens"},
        {"{\"thinker.model.embed_tokens.weight\":{\"dtype\":\"X\\n9\",\"shape\":[],"
         "\"data_offsets\":[0,0]}}",
         88, "model.safetensors"},
    };
    struct ck c = {0};

    (void)state;
    ck_new(&c);
    ck_model(&c, "thinker.", CK_HEAD);
    for (size_t i = 0; i < MT_COUNT(is); i++) {
        char bytes[256];
        size_t n = strlen(is[i].header);
        uint64_t said = is[i].n < 1000 ? n : is[i].n;
        memcpy(bytes, &said, 8);
        memcpy(bytes + 8, is[i].header, n);
        ck_write(&c, "model.safetensors", bytes, n + 8);
        must_fail(c.dir, c.dir, is[i].word);
    }
    ck_write(&c, "model.safetensors", "\x05\0\0", 3);
    must_fail(c.dir, "model.safetensors", "");
    assert_int_equal(unlink(ck_path(&c, "model.safetensors")), 0);
    must_fail(c.dir, c.dir, "safetensors");
    ck_text(
        &c, "model.safetensors.index.json",
        "{\"weight_map\":{\"thinker.model.norm.weight\":\"model-00002-of-00002.safetensors\"}}");
    must_fail(c.dir, "model-00002-of-00002.safetensors", "No such file");
    ck_text(&c, "model.safetensors.index.json",
            "{\"weight_map\":{\"thinker.model.norm.weight\":\"../../etc/passwd\"}}");
    must_fail(c.dir, "model.safetensors.index.json", "");
    ck_free(&c);
}

/* The same model, saved in other ways. */
static void test_ways_of_saving(void **state)
{
    struct ck c = {0};
    struct ck_file f = {.header = json_object()};
    struct mt_model *m;

    (void)state;
    ck_new(&c);
    ck_model(&c, "thinker.", CK_HEAD);
    m = must_open(c.dir);
    struct seen want = logits_of(m);
    assert_string_equal(mt_model_info(m)->name, "qwen2_5_omni");
    mt_model_close(&m);

    /* The thinker alone: no prefix, its config at the root. */
    json_t *config = ck_config(), *thinker = json_object_get(config, "thinker_config");
    ck_model(&c, "", CK_HEAD);
    json_object_set_new(thinker, "model_type", json_string("qwen2_5_omni_thinker"));
    ck_json(&c, "config.json", thinker);
    m = must_open(c.dir);
    struct seen got = logits_of(m);
    assert_same(&want, &got);
    mt_model_close(&m);
    /* An error there names fields that are there. */
    ck_set(thinker, "text_config.hidden_size", json_integer(-1));
    ck_json(&c, "config.json", thinker);
    must_fail(c.dir, "config.json: text_config.hidden_size", "");
    json_decref(config);

    /*
     * Released, with the tensors of the other models around it: some with our names and other
     * shapes.
     */
    ck_text_model(&f, "talker.", CK_HEAD);
    CK_M(&f, "talker.", "codec_head.weight", 3, 5);
    CK_M(&f, "", "model.embed_tokens.weight", 2, 2);
    CK_M(&f, "", "lm_head.weight", 2, 2);
    CK_M(&f, "thinker.", "visual.patch_embed.proj.weight", 2, 2);
    ck_text_model(&f, "thinker.", CK_HEAD);
    ck_tower(&f, "thinker.");
    CK_M(&f, "token2wav.", "conv.weight", 4, 4);
    ck_save(&f, &c, "model.safetensors");
    config = ck_config();
    ck_json(&c, "config.json", config);
    m = must_open(c.dir);
    got = logits_of(m);
    assert_same(&want, &got);
    mt_model_close(&m);

    /*
     * Without a head the embedding is it: the logits are others than with a head, and there is no
     * NaN in them.
     */
    ck_model(&c, "thinker.", CK_HEAD_TIED);
    m = must_open(c.dir);
    got = logits_of(m);
    assert_memory_not_equal(&want, &got, sizeof(want));
    mt_model_close(&m);
    /* … and equal to a head that is a copy of the embedding. */
    f = (struct ck_file){.header = json_object()};
    ck_text_model(&f, "thinker.", CK_HEAD_TIED);
    size_t from = f.n;
    CK_M(&f, "thinker.", "lm_head.weight", CK_VOCAB, 12);
    memcpy(f.data + from, f.data, sizeof(float) * CK_VOCAB * 12); /* the embedding came first */
    ck_tower(&f, "thinker.");
    ck_save(&f, &c, "model.safetensors");
    m = must_open(c.dir);
    struct seen tied = logits_of(m);
    assert_same(&tied, &got);
    mt_model_close(&m);
    json_decref(config);
    ck_free(&c);
}

static void test_synth_options(void **state)
{
    static const struct {
        const char *spec, *word;
    } bad[] = {
        {"synth:", "unknown shape"},
        {"synth:qwen", "qwen2.5-omni-tiny"},
        {"synth:qwen2.5-omni-tiny=1", "unknown shape"},
        {"synth:qwen2.5-omni-tiny,,seed=1", "unknown key ''"},
        {"synth:qwen2.5-omni-tiny,seed", "seed="},
        {"synth:qwen2.5-omni-tiny,seed=-1", "seed=-1"},
        {"synth:qwen2.5-omni-tiny,seed=1x", "seed=1x"},
        {"synth:qwen2.5-omni-tiny,seed=9223372036854775808", "seed=9223372036854775808"},
        {"synth:qwen2.5-omni-tiny,layers=0", "layers=0"},
        {"synth:qwen2.5-omni-tiny,layers=1025", "1..1024"},
        {"synth:qwen2.5-omni-tiny,dtype=int8", "dtype=int8"},
        {"synth:qwen2.5-omni-tiny,dtype", "f32, bf16 or f16"},
        {"synth:qwen2.5-omni-tiny,colour=red", "colour"},
    };
    struct mt_err e = {0};
    struct mt_model *m;
    char longest[400] = "synth:";

    (void)state;
    for (size_t i = 0; i < MT_COUNT(bad); i++)
        assert_int_equal(must_fail(bad[i].spec, bad[i].word, ""), -EINVAL);
    memset(longest + 6, 'x', 300);
    must_fail(longest, "too long", "");

    m = must_open("synth:qwen2.5-omni-tiny,layers=1,dtype=f16,seed=9223372036854775807");
    assert_int_equal(mt_model_info(m)->layers, 1);
    assert_string_equal(mt_model_info(m)->name, "qwen2.5-omni-tiny");
    mt_model_close(&m);
    mt_model_close(&m);
    m = must_open("synth:qwen2.5-omni-3b-tiny"); /* each size has a tiny one, the same */
    assert_string_equal(mt_model_info(m)->name, "qwen2.5-omni-3b-tiny");
    mt_model_close(&m);

    /* Steps that can't be. */
    static const int step[][2] = {{0, 0}, {-1, 1}, {1, 0}, {4, 5}, {1 << 20, 1}};
    for (size_t i = 0; i < MT_COUNT(step); i++) {
        e = (struct mt_err){0};
        assert_int_equal(open_rows(&m, "synth:qwen2.5-omni-tiny", step[i][0], step[i][1], &e),
                         -EINVAL);
        assert_null(m);
        assert_true(strlen(e.text) > 0);
    }
}

/* ---- a call in tokens ---- */

struct list {
    int32_t v[2000];
    int n;
};

static void add(struct list *l, const struct mt_tokenizer *t, const char *text)
{
    int32_t *got;
    size_t n;

    assert_int_equal(mt_tokenizer_encode(t, text, strlen(text), false, &got, &n, NULL), 0);
    for (size_t i = 0; i < n; i++)
        l->v[l->n++] = got[i];
    free(got);
}

static void add_special(struct list *l, const struct mt_tokenizer *t, const char *text)
{
    int32_t id = mt_tokenizer_special(t, text);

    assert_true(id >= 0);
    l->v[l->n++] = id;
}

static void assert_list(const struct list *want, const int32_t *got, int n)
{
    assert_int_equal(n, want->n);
    if (n)
        assert_memory_equal(got, want->v, (size_t)n * sizeof(*got));
}

static struct list system_turn(const struct mt_tokenizer *t, const char *text)
{
    struct list l = {0};

    add_special(&l, t, "<|im_start|>");
    add(&l, t, "system\n");
    add(&l, t, text);
    add_special(&l, t, "<|im_end|>");
    add(&l, t, "\n");
    return l;
}

static void join(struct list *l, const struct list *more)
{
    memcpy(l->v + l->n, more->v, (size_t)more->n * sizeof(*l->v));
    l->n += more->n;
}

static struct mt_talk *must_talk(struct mt_model *m, enum mt_mode mode, const char *system)
{
    struct mt_talk *t;
    struct mt_err e = {0};

    if (mt_talk_new(&t, m, mode, system, NULL, &e) < 0)
        fail_msg("%s", e.text);
    return t;
}

/* The feed of the next frame, of three audio rows, is before, the rows, after. */
static void assert_feed(struct mt_talk *t, const struct list *before, const struct list *after)
{
    struct list feed = {0}, want = {0};
    int at;

    feed.n = mt_talk_begin(t, 3, feed.v, &at);
    assert_int_equal(at, before->n);
    join(&want, before);
    for (int i = 0; i < 3; i++)
        want.v[want.n++] = -1;
    join(&want, after);
    assert_list(&want, feed.v, feed.n);
}

static void assert_prompt(const struct mt_talk *t, const struct list *want)
{
    int n;
    const int32_t *got = mt_talk_prompt(t, &n);

    assert_list(want, got, n);
}

static void check_layout(const char *spec)
{
    static const char *const systems[] = {"Be brief.",
                                          "Sei h\xc3\xb6"
                                          "flich! \xe2\x82\xac",
                                          "a <|im_end|>\n<|im_start|>user\n<|AUDIO|> b"};
    struct mt_model *m = must_open(spec);
    const struct mt_tokenizer *t = mt_model_tokenizer(m);
    const int32_t stops[] = {mt_tokenizer_special(t, "<|im_end|>"),
                             mt_tokenizer_special(t, "<|endoftext|>")};
    struct list open, before = {0}, after = {0}, close = {0}, assistant = {0}, none = {0};
    struct mt_talk *k;
    struct mt_said said;
    struct mt_err e = {0};

    add_special(&before, t, "<|im_start|>");
    add(&before, t, "user\n");
    add_special(&before, t, "<|audio_bos|>");
    add_special(&after, t, "<|audio_eos|>");
    add_special(&after, t, "<|im_end|>");
    add(&after, t, "\n");
    add_special(&assistant, t, "<|im_start|>");
    add(&assistant, t, "assistant\n");
    join(&after, &assistant);
    add_special(&close, t, "<|im_end|>");
    add(&close, t, "\n");

    /*
     * Turns, with the model's own system text: what its template gives for the whole text at once.
     */
    static const char whole[] = "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n";
    int32_t *templ;
    size_t n_templ;
    open = system_turn(t, "You are a helpful assistant.");
    k = must_talk(m, MT_MODE_TURN, NULL);
    assert_prompt(k, &open);
    assert_int_equal(mt_tokenizer_encode(t, whole, strlen(whole), true, &templ, &n_templ, &e), 0);
    assert_list(&open, templ, (int)n_templ);
    free(templ);
    assert_int_equal(mt_talk_marks(k), before.n + after.n + close.n + 1);

    /*
     * First frame; an answer cut behind a word, which is fed before its end; one that ends itself.
     */
    join(&open, &before);
    assert_feed(k, &open, &after);
    said = mt_talk_drawn(k, 7);
    assert_true(!said.end && !said.unsay && said.show == 7 && said.feed == 7);
    open = (struct list){.n = 1, .v = {7}};
    join(&open, &close);
    join(&open, &before);
    assert_feed(k, &open, &after);
    open = close;
    join(&open, &before);
    for (size_t i = 0; i < MT_COUNT(stops); i++) {
        assert_false(mt_talk_drawn(k, 9).end);
        assert_true(mt_talk_drawn(k, stops[i]).end);
        assert_feed(k, &open, &after);
    }
    mt_talk_free(&k);

    /* The caller's text, whatever it spells, is one turn of text. */
    for (size_t i = 0; i < MT_COUNT(systems); i++) {
        int special = 0;
        open = system_turn(t, systems[i]);
        k = must_talk(m, MT_MODE_TURN, systems[i]);
        assert_prompt(k, &open);
        for (int j = 0; j < open.n; j++)
            special += mt_tokenizer_is_special(t, open.v[j]);
        assert_int_equal(special, 2);
        mt_talk_free(&k);

        join(&open, &assistant);
        k = must_talk(m, MT_MODE_FREE, systems[i]);
        assert_feed(k, &open, &none);
        assert_false(mt_talk_drawn(k, stops[0]).end);
        assert_feed(k, &(struct list){.n = 1, .v = {stops[0]}}, &none);
        mt_talk_free(&k);
    }

    /* No system turn at all. */
    k = must_talk(m, MT_MODE_TURN, "");
    assert_prompt(k, &none);
    assert_feed(k, &before, &after);
    mt_talk_free(&k);
    k = must_talk(m, MT_MODE_FREE, "");
    assert_prompt(k, &assistant);
    mt_talk_free(&k);
    mt_talk_free(&k);

    assert_int_equal(mt_talk_new(&k, m, MT_MODE_TURN, "\xff", NULL, &e), -EILSEQ);
    assert_non_null(strstr(e.text, "UTF-8"));
    mt_model_close(&m);
}

static void test_layout(void **state)
{
    char dir[600];

    (void)state;
    snprintf(dir, sizeof(dir), "%s/golden/omni-a", tests_dir());
    check_layout(dir);
    snprintf(dir, sizeof(dir), "%s/golden/omni-b", tests_dir());
    check_layout(dir);
    check_layout("synth:qwen2.5-omni-tiny,layers=1");
}

/* Sessions are refused, teacher forcing works; e says why. */
static void only_forced(const struct ck *c, int code, const char *word)
{
    struct mt_engine_opts eo;
    struct mt_clock clock = mt_clock_virtual(0);
    struct mt_engine *eng;
    struct mt_err e = {0};
    struct mt_talk *t;
    struct mt_model *m = must_open(c->dir);

    logits_of(m);
    assert_int_equal(mt_talk_new(&t, m, MT_MODE_TURN, NULL, NULL, &e), code);
    if (!strstr(e.text, word))
        fail_msg("'%s' lacks '%s'", e.text, word);
    mt_engine_defaults(&eo);
    eo.pool_blocks = 100;
    eo.step_tokens = eo.max_sessions = 64;
    e = (struct mt_err){0};
    assert_int_equal(mt_engine_new(&eng, m, &eo, &clock, &e), code);
    assert_null(eng);
    assert_non_null(strstr(e.text, word));
    mt_model_close(&m);
}

static void test_tokenizers(void **state)
{
    static const char *const marks[] = {"<|im_start|>", "<|im_end|>", "<|audio_bos|>",
                                        "<|audio_eos|>"};
    char path[600];
    struct ck c = {0};
    json_t *tok, *added, *one;
    size_t k;

    (void)state;
    snprintf(path, sizeof(path), "%s/golden/omni-a/tokenizer.json", tests_dir());
    tok = json_load_file(path, 0, NULL);
    assert_non_null(tok);
    ck_new(&c);
    ck_model(&c, "thinker.", CK_HEAD);
    only_forced(&c, -ENOENT, "no tokenizer");

    /* Ids up to 391, 300 rows. */
    ck_json(&c, "tokenizer.json", tok);
    only_forced(&c, -EPROTO, "up to 391");

    /* A tokenizer without one of the marks would spell it letter by letter. */
    snprintf(path, sizeof(path), "rm -rf '%s' && cp -r '%s/golden/omni-a' '%s'", c.dir, tests_dir(),
             c.dir);
    assert_int_equal(system(path), 0);
    for (size_t i = 0; i < MT_COUNT(marks); i++) {
        json_t *copy = json_deep_copy(tok);
        added = json_object_get(copy, "added_tokens");
        json_array_foreach(added, k, one)
        {
            if (!strcmp(json_string_value(json_object_get(one, "content")), marks[i]))
                json_object_set_new(one, "content", json_string("<|other|>"));
        }
        ck_json(&c, "tokenizer.json", copy);
        json_decref(copy);
        only_forced(&c, -EPROTO, marks[i]);
    }
    /* One of another kind stops sessions, not teacher forcing. */
    ck_text(&c, "tokenizer.json", "{\"model\":{\"type\":\"WordLevel\",\"vocab\":{\"a\":0}}}");
    only_forced(&c, -ENOTSUP, "WordLevel");
    /* One that is broken is an error at once, not a model without a tokenizer. */
    ck_text(&c, "tokenizer.json", "{\"model\":");
    must_fail(c.dir, "tokenizer.json", "");
    assert_int_equal(unlink(ck_path(&c, "tokenizer.json")), 0);
    ck_text(&c, "vocab.json", "{\"a\":0}");
    must_fail(c.dir, "merges.txt", "");
    json_decref(tok);
    ck_free(&c);
}

/* ---- teacher forcing ---- */

static void refuse(struct mt_model *m, const struct mt_teacher *t, int code, const char *word)
{
    struct mt_err e = {0};

    assert_int_equal(mt_teacher_run(m, t, &e), code);
    if (!strstr(e.text, word))
        fail_msg("'%s' lacks '%s'", e.text, word);
}

static void test_teacher(void **state)
{
    static const int64_t descending[] = {5, 4}, twice[] = {4, 4}, beyond[] = {N_IDS};
    struct seen s = {0}, same;
    struct mt_teacher t;
    struct ck c = {0};

    (void)state;
    ck_new(&c);
    ck_model(&c, "thinker.", CK_HEAD);
    struct mt_model *m = must_open(c.dir);
    struct seen want = logits_of(m);

    t = teacher(&s);
    ids[7] = 300;
    refuse(m, &t, -EINVAL, "token 300 at position 7 is not in 0..299");
    ids[7] = -1;
    refuse(m, &t, -EINVAL, "token -1 at position 7");
    ids[7] = 290;
    refuse(m, &t, -EPROTO, "1 audio placeholders (token 290) in the tokens, but 0 rows");
    t = teacher(&s);
    t.n_audio = 3;
    refuse(m, &t, -EPROTO, "0 audio placeholders (token 290) in the tokens, but 3 rows");
    t = teacher(&s);
    t.n = 0;
    refuse(m, &t, -EINVAL, "0 tokens");
    t = teacher(&s);
    t.block_tokens = 0;
    refuse(m, &t, -EINVAL, "block of 0");
    t = teacher(&s);
    t.at = descending;
    t.n_at = 2;
    refuse(m, &t, -EINVAL, "position 4 comes behind 5");
    t.at = twice;
    refuse(m, &t, -EINVAL, "position 4 comes behind 4");
    t.at = beyond;
    t.n_at = 1;
    refuse(m, &t, -EINVAL, "position 150 is not in 0..149");
    t = teacher(&s);
    t.policy = (struct mt_policy){.bounded = true, .window = 4, .sinks = 4};
    refuse(m, &t, -EINVAL, "window=4 is not above sinks=4");
    t.policy.sinks = -1;
    refuse(m, &t, -EINVAL, "sinks=-1");
    assert_int_equal(s.rows, 0);

    /* A window that never fills is no window, and takes no memory of its own size. */
    static const int64_t window[][2] = {{N_IDS, 0},
                                        {N_IDS, 7},
                                        {N_IDS + 5, N_IDS + 4},
                                        {INT64_C(1) << 40, 1},
                                        {INT64_C(1) << 40, (INT64_C(1) << 40) - 1}};
    for (size_t i = 0; i < MT_COUNT(window); i++)
        for (int absolute = 0; absolute < 2; absolute++) {
            struct mt_err e = {0};
            same = (struct seen){0};
            t = teacher(&same);
            t.policy = (struct mt_policy){true, window[i][0], window[i][1], absolute};
            if (mt_teacher_run(m, &t, &e) < 0)
                fail_msg("window=%lld: %s", (long long)window[i][0], e.text);
            for (int k = 0; k < CK_VOCAB; k++)
                assert_true(fabsf(same.v[k] - want.v[k]) < 1e-4f);
        }
    t = teacher(&same);
    t.policy = (struct mt_policy){.bounded = true, .window = 20, .sinks = 2};
    assert_int_equal(mt_teacher_run(m, &t, NULL), 0);
    assert_memory_not_equal(same.v, want.v, sizeof(want.v));

    /* The caller may stop it; the code is its own and e is left alone. */
    static const int64_t all[] = {0, 1, 2, 3};
    struct seen stopped = {.stop_after = 2};
    struct mt_err e = {0};
    t = teacher(&stopped);
    t.at = all;
    t.n_at = 4;
    assert_int_equal(mt_teacher_run(m, &t, &e), -ECANCELED);
    assert_int_equal(e.code, 0);
    assert_int_equal(stopped.rows, 2);
    mt_model_close(&m);

    /* A model that takes two rows a step gives the same bits. */
    assert_int_equal(open_rows(&m, c.dir, 3, 2, NULL), 0);
    same = logits_of(m);
    assert_same(&want, &same);

    /* … and no engine that would hand it more. */
    struct mt_engine_opts eo;
    struct mt_clock clock = mt_clock_virtual(0);
    struct mt_engine *eng;
    mt_engine_defaults(&eo);
    eo.pool_blocks = 100;
    eo.step_tokens = 4;
    eo.max_sessions = 1;
    assert_int_equal(mt_engine_new(&eng, m, &eo, &clock, &e), -EINVAL);
    assert_non_null(strstr(e.text, "--step-tokens"));
    mt_model_close(&m);
    ck_free(&c);
}

static int open_backend(void **state)
{
    enum mt_cpu_tier tier;

    (void)state;
    return mt_cpu_tier(&tier, NULL) < 0 || mt_backend_cpu(&be, tier, 1, NULL) < 0 ? -1 : 0;
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
        cmocka_unit_test(test_config_fields),  cmocka_unit_test(test_config_harmless),
        cmocka_unit_test(test_config_files),   cmocka_unit_test(test_hostile_weights),
        cmocka_unit_test(test_ways_of_saving), cmocka_unit_test(test_synth_options),
        cmocka_unit_test(test_layout),         cmocka_unit_test(test_tokenizers),
        cmocka_unit_test(test_teacher),
    };

    return cmocka_run_group_tests_name("model", tests, open_backend, close_backend);
}
