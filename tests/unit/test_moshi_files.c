/*
 * test_moshi_files.c: Moshi's checkpoints as they may come: a config.json that says nonsense or
 * what we don't do, one that is missing, other forms of the model, parts that don't fit together.
 * Each gets one line that names the file and the field or tensor.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/engine.h"
#include "moshi_checkpoint.h"
#include "util.h"

static struct mt_backend *be;

static int set_up(void **state)
{
    (void)state;
    return mt_backend_cpu(&be, MT_CPU_BASE, 1, NULL);
}

static int tear_down(void **state)
{
    (void)state;
    mt_backend_close(&be);
    return 0;
}

static void link_file(const struct ck *c, const char *from, const char *file, const char *as)
{
    char path[600];

    snprintf(path, sizeof(path), "%s/golden/%s/%s", util_tests(), from, file);
    assert_int_equal(symlink(path, ck_path(c, as)), 0);
}

static int try_open(struct mt_model **m, const struct ck *c, struct mt_err *e)
{
    struct mt_model_opts o = {.step_rows = 8, .want_rows = 4};

    *e = (struct mt_err){0};
    return mt_model_open(m, c->dir, be, &o, e);
}

static void must_fail(const struct ck *c, const char *word)
{
    struct mt_model *m;
    struct mt_err e;
    int rc = try_open(&m, c, &e);

    assert_null(m);
    if (rc >= 0 || strchr(e.text, '\n') || !strstr(e.text, c->dir) || !strstr(e.text, word))
        fail_msg("'%s' (%d) lacks '%s' or '%s', or is no single line", e.text, rc, c->dir, word);
}

static struct mt_model *must_open(const struct ck *c)
{
    struct mt_model *m;
    struct mt_err e;

    if (try_open(&m, c, &e) < 0)
        fail_msg("%s", e.text);
    return m;
}

static json_t *golden_config(const char *name)
{
    char path[600];

    snprintf(path, sizeof(path), "%s/golden/%s/config.json", util_tests(), name);
    json_t *j = json_load_file(path, 0, NULL);
    assert_non_null(j);
    return j;
}

static void set_text(json_t *config, const char *path, const char *value)
{
    json_t *v = value ? json_loads(value, JSON_DECODE_ANY, NULL) : NULL;

    assert_true(!value || v);
    ck_set(config, path, v);
}

static void test_fields(void **state)
{
    static const struct {
        const char *key, *value, *word;
    } is[] = {
        {"dim", "\"wide\"", "config.json.dim"},
        {"dim", "0", "config.json.dim"},
        {"dim", "32", "32 channels of the main transformer are not 3 heads"},
        {"dim", "33", "not 3 heads of an even width"},
        {"dim", "36", "text_emb.weight"},
        {"dim", "1e9", "config.json.dim"},
        {"num_heads", "0", "num_heads"},
        {"num_heads", "30", "not 30 heads"},
        {"num_layers", NULL, "num_layers is missing"},
        {"num_layers", "3", "transformer.layers.2.norm1.alpha"},
        {"num_layers", "100000", "num_layers"},
        {"n_q", "0", "n_q"},
        {"n_q", "65", "n_q"},
        {"n_q", "17", "delays is not a list of 1 + n_q = 18"},
        {"dep_q", "0", "dep_q"},
        {"dep_q", "33", "dep_q"},
        {"dep_q", "17", "dep_q 17 is above n_q 16"},
        {"dep_q", "9", "depformer"},
        {"card", "21", "emb.0.weight"},
        {"text_card", "40", "text_emb.weight"},
        {"text_card_out", "40", "text_linear.weight"},
        {"hidden_scale", "-1", "hidden_scale"},
        {"hidden_scale", "0", "feed-forward width is 0"},
        {"hidden_scale", "2", "transformer.layers.0.gating.linear_in.weight"},
        {"context", "0", "context"},
        {"context", "\"all\"", "context"},
        {"causal", "false", "causal false"},
        {"causal", "1", "causal"},
        {"layer_scale", "0.01", "layer_scale is not supported"},
        {"gating", "\"gelu\"", "gating 'gelu'"},
        {"gating", "null", "transformer.layers.0.linear1.weight"},
        {"norm", "\"batch_norm\"", "norm 'batch_norm'"},
        {"norm", "\"layer_norm\"", "norm1.weight"},
        {"positional_embedding", "\"alibi\"", "positional_embedding 'alibi'"},
        {"positional_embedding", "[]", "positional_embedding is not a string"},
        {"max_period", "0", "max_period"},
        {"kv_repeat", "2", "no multiple of kv_repeat"},
        {"kv_repeat", "3", "depformer_num_heads 2 is no multiple of kv_repeat 3"},
        {"depformer_dim", "18", "not 2 heads"},
        {"depformer_num_heads", NULL, "depformer_num_heads is missing"},
        {"depformer_num_heads", "3", "not 3 heads"},
        {"depformer_num_layers", "3", "depformer.layers.2."},
        {"depformer_dim_feedforward", "0", "depformer_dim_feedforward"},
        {"depformer_dim_feedforward", "41", "depformer.layers.0.gating.0.linear_in.weight"},
        {"depformer_dim_feedforward", "[40,40]", "list of 2, not of 8"},
        {"depformer_dim_feedforward", "[40,40,40,40,40,40,40,\"x\"]", "depformer_dim_feedforward"},
        {"depformer_gating", "\"none\"", "without a gate"},
        {"depformer_weights_per_step", "\"yes\"", "depformer_weights_per_step"},
        {"depformer_weights_per_step_schedule", "[0,1]", "list of dep_q = 8"},
        {"depformer_weights_per_step_schedule", "[0,1,2,3,4,5,6,8]", "schedule[7]"},
        {"depformer_weights_per_step_schedule", "[0,1,2,3,4,5,6,-1]", "schedule[7]"},
        {"depformer_low_rank_embeddings", "0", "depformer_low_rank_embeddings"},
        {"depformer_low_rank_embeddings", "4", "depformer_text_emb.weight"},
        {"depformer_norm", "\"rms_norm_f32\"", "depformer_norm is not supported"},
        {"delays", NULL, "delays is not a list"},
        {"delays", "[0,1]", "delays is not a list"},
        {"delays", "[0,0,1,1,1,1,1,1,1,0,1,1,1,1,1,1,-1]", "delays[16]"},
        {"delays", "[65,0,1,1,1,1,1,1,1,0,1,1,1,1,1,1,1]", "delays[0]"},
        {"conditioners", "{\"description\":{}}", "conditioners is not supported"},
        {"fuser", "{\"sum\":[]}", "fuser is not supported"},
        {"lora", "true", "lora is not supported"},
        {"quantize", "true", "quantize is not supported"},
        {"demux_second_stream", "true", "demux_second_stream"},
        {"norm_emb", "true", "norm_emb"},
        {"model_type", "\"hibiki\"", "model_type 'hibiki'"},
        {"moshi_name", "\"none.safetensors\"", "none.safetensors"},
        {"moshi_name", "\"../x\"", "moshi_name '../x'"},
        {"moshi_name", "\"\"", "moshi_name ''"},
    };
    struct ck c;

    (void)state;
    ck_new(&c);
    link_file(&c, "moshi-a", "model.safetensors", "model.safetensors");
    for (size_t i = 0; i < MT_COUNT(is); i++) {
        json_t *config = golden_config("moshi-a");
        if (is[i].value || json_object_get(config, is[i].key))
            set_text(config, is[i].key, is[i].value);
        ck_json(&c, "config.json", config);
        json_decref(config);
        must_fail(&c, is[i].word);
    }
    ck_free(&c);
}

static void test_harmless(void **state)
{
    static const struct {
        const char *key, *value;
    } is[] = {
        {"nonsense", "{\"deep\":[[]]}"},
        {"model_type", "\"moshi\""},
        {"layer_scale", "null"},
        {"conditioners", "{}"},
        {"kv_repeat", "1"},
        {"text_card_out", "48"},
        {"depformer_dim_feedforward", "[40,40,40,40,40,40,40,40]"},
        {"depformer_weights_per_step_schedule", "[0,1,2,3,4,5,6,7]"},
        {"depformer_weights_per_step_schedule", "null"},
        {"extra_heads_num_heads", "3"},
        {"moshi_name", "\"model.safetensors\""},
        {"context", "null"},
    };
    struct ck c;

    (void)state;
    ck_new(&c);
    link_file(&c, "moshi-a", "model.safetensors", "model.safetensors");
    for (size_t i = 0; i < MT_COUNT(is); i++) {
        json_t *config = golden_config("moshi-a");
        set_text(config, is[i].key, is[i].value);
        ck_json(&c, "config.json", config);
        json_decref(config);
        struct mt_model *m = must_open(&c);
        assert_int_equal(mt_model_info(m)->codebooks, 16);
        mt_model_close(&m);
    }
    ck_free(&c);
}

/* ---- without a config.json: the released values, and the sizes that the tensors show ---- */

static void test_bare(void **state)
{
    struct ck c;

    (void)state;
    ck_new(&c);
    ckm_model(&c);
    struct mt_model *m = must_open(&c);
    const struct mt_model_info *i = mt_model_info(m);
    assert_string_equal(i->name, "moshi");
    assert_int_equal(i->layers, 2);
    assert_int_equal(i->heads, 32);
    assert_int_equal(i->hidden, CKM_DIM);
    assert_int_equal(i->vocab, CKM_TEXT);
    assert_int_equal(i->codebooks, CKM_BOOKS);
    assert_int_equal(i->codebooks_made, CKM_MADE);
    assert_int_equal(i->code_bins, CKM_BINS);
    assert_int_equal(i->context, 3000);
    mt_model_close(&m);
    ck_free(&c);
}

/* What is not there, or is another model's, says so. */
static void test_other_forms(void **state)
{
    static const struct {
        const char *tensor, *word;
    } is[] = {
        {"transformer.layers.0.self_attn.in_proj_weight_scb", "int8 release"},
        {"depformer.0.linear_in.weight", "Candle"},
        {"decoder.model.embed_tokens.weight", "transformers layout"},
        {"model.embed_tokens.weight", "config.json"},
    };

    (void)state;
    for (size_t i = 0; i < MT_COUNT(is); i++) {
        struct ck_file f = {.header = json_object()};
        struct ck c;

        ck_new(&c);
        CK_M(&f, "", is[i].tensor, 4, 4);
        if (i + 1 < MT_COUNT(is))
            ck_text(&c, "config.json", "{\"model_type\":\"moshi\"}");
        ck_save(&f, &c, "model.safetensors");
        must_fail(&c, is[i].word);
        ck_free(&c);
    }
}

/* ---- the codec beside it ---- */

static void test_codec(void **state)
{
    struct ck c;
    struct mt_engine *eng;
    struct mt_engine_opts o;
    struct mt_clock clock = mt_clock_virtual(0);
    struct mt_err e = {0};

    (void)state;
    ck_new(&c);
    link_file(&c, "moshi-a", "model.safetensors", "model.safetensors");
    json_t *config = golden_config("moshi-a");
    ck_json(&c, "config.json", config);
    /* None: teacher forcing only. */
    struct mt_model *m = must_open(&c);
    assert_int_equal(mt_model_info(m)->beat_samples, 0);
    mt_engine_defaults(&o);
    o.pool_blocks = 4;
    o.step_tokens = 8;
    o.max_sessions = 4;
    assert_int_equal(mt_engine_new(&eng, m, &o, &clock, &e), -ENOTSUP);
    mt_model_close(&m);
    /* Another model's. */
    link_file(&c, "moshi-b", "codec.safetensors", "tokenizer-e351c8d8-checkpoint125.safetensors");
    link_file(&c, "moshi-b", "mimi.json", "mimi.json");
    must_fail(&c, "card is 20");
    /* Nonsense. */
    ck_set(config, "mimi_name", json_string("codec"));
    ck_json(&c, "config.json", config);
    ck_text(&c, "codec", "nonsense");
    must_fail(&c, "codec");
    ck_set(config, "mimi_name", json_string("tokenizer-e351c8d8-checkpoint125.safetensors"));
    ck_set(config, "mimi_config_name", json_string("missing.json"));
    ck_json(&c, "config.json", config);
    must_fail(&c, "missing.json");
    json_decref(config);
    ck_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fields), cmocka_unit_test(test_harmless),
        cmocka_unit_test(test_bare),   cmocka_unit_test(test_other_forms),
        cmocka_unit_test(test_codec),
    };

    return cmocka_run_group_tests_name("moshi files", tests, set_up, tear_down);
}
