/*
 * test_shape.c: model shapes by name and from config.json, released layouts and hostile ones.
 */
#include "control/control.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util.h"

static void test_names(void **state)
{
    static const struct {
        const char *name;
        int64_t bf16;
    } rows[] = {
        {"qwen2.5-omni-7b", 57344},     {"qwen2.5-omni-3b", 36864},
        {"qwen3-omni-30b", 98304},      {"minicpm-o-4.5", 147456},
        {"moshi-7b", 524288},           {"qwen2.5-omni-tiny", 1024},
        {"qwen2.5-omni-7b-tiny", 1024}, {"qwen2.5-omni-3b-tiny", 1024},
        {"qwen3-omni-30b-tiny", 1024},  {"minicpm-o-4.5-tiny", 1024},
        {"moshi-7b-tiny", 1536},        {"moshi-tiny", 1536},
    };
    struct mt_shape s;
    int known = 0;

    (void)state;
    for (size_t i = 0; i < MT_COUNT(rows); i++) {
        assert_int_equal(mt_shape_by_name(&s, rows[i].name), 0);
        assert_string_equal(s.name, rows[i].name);
        assert_int_equal(mt_shape_token_bytes(&s, MT_BF16), rows[i].bf16);
        assert_int_equal(mt_shape_token_bytes(&s, MT_F16), rows[i].bf16);
        assert_int_equal(mt_shape_token_bytes(&s, MT_F32), 2 * rows[i].bf16);
        for (enum mt_dtype t = MT_F32; t <= MT_FP8; t++) {
            struct mt_kv_shape kv = {s.layers, s.kv_heads, s.head_dim, 16, t};

            /* What is predicted is what the cache allocates. */
            assert_int_equal(16 * mt_shape_token_bytes(&s, t), mt_kv_block_bytes(&kv));
        }
        /* One byte an element, and one f32 scale a head and token for K and for V. */
        assert_int_equal(mt_shape_token_bytes(&s, MT_INT8),
                         rows[i].bf16 / 2 + INT64_C(8) * s.layers * s.kv_heads);
    }
    while (mt_shape_name(known))
        assert_int_equal(mt_shape_by_name(&s, mt_shape_name(known++)), 0);
    assert_int_equal(known, MT_COUNT(rows));
    assert_null(mt_shape_name(-1));
    assert_int_equal(mt_shape_by_name(&s, "qwen"), -ENOENT);
}

static void test_audio_rate(void **state)
{
    struct mt_shape s;

    (void)state;
    assert_int_equal(mt_shape_by_name(&s, "qwen3-omni-30b"), 0);
    assert_true(mt_shape_audio_rate(&s, 0.08) == 12.5);
    assert_true(mt_shape_audio_rate(&s, 0.4) == 12.5);
    assert_true(mt_shape_audio_rate(&s, 1) == 13);
    assert_true(mt_shape_audio_rate(&s, 2) == 13);
    assert_int_equal(mt_shape_by_name(&s, "qwen2.5-omni-7b"), 0);
    assert_true(mt_shape_audio_rate(&s, 2) == 25);
}

static int from_config(struct mt_shape *s, const char *text, struct mt_err *e)
{
    *e = (struct mt_err){0};
    return mt_shape_from_config(s, text, strlen(text), "config.json", e);
}

static void test_layouts(void **state)
{
    static const struct {
        const char *text;
        int layers, kv_heads, head_dim;
        double rate;
        double frame_s;
    } rows[] = {
        {"{\"model_type\":\"qwen2_5_omni\",\"talker_config\":{\"num_hidden_layers\":24},"
         "\"thinker_config\":{\"audio_config\":{\"num_hidden_layers\":32},\"text_config\":"
         "{\"hidden_size\":3584,\"num_attention_heads\":28,\"num_hidden_layers\":28,"
         "\"num_key_value_heads\":4}}}",
         28, 4, 128, 25, 2},
        {"{\"model_type\":\"qwen2_5_omni_thinker\",\"text_config\":{\"hidden_size\":192,"
         "\"num_attention_heads\":6,\"num_hidden_layers\":4,\"num_key_value_heads\":2}}",
         4, 2, 32, 25, 2},
        /* The q width 4096 isn't the hidden size here: head_dim is stated. */
        {"{\"model_type\":\"qwen3_omni_moe\",\"thinker_config\":{\"text_config\":"
         "{\"hidden_size\":2048,\"num_attention_heads\":32,\"num_hidden_layers\":48,"
         "\"num_key_value_heads\":4,\"head_dim\":128}}}",
         48, 4, 128, 12.5, 1},
        {"{\"model_type\":\"minicpmo\",\"hidden_size\":4096,\"num_attention_heads\":32,"
         "\"num_hidden_layers\":36,\"num_key_value_heads\":8,\"head_dim\":128}",
         36, 8, 128, 10, 1},
        {"{\"model_type\":\"qwen2\",\"hidden_size\":896,\"num_attention_heads\":14,"
         "\"num_hidden_layers\":24,\"num_key_value_heads\":2}",
         24, 2, 64, 0, 0},
        {"{\"model_type\":\"qwen3\",\"hidden_size\":1024,\"num_attention_heads\":16,"
         "\"num_hidden_layers\":28,\"num_key_value_heads\":8,\"head_dim\":128}",
         28, 8, 128, 0, 0},
        {"{\"model_type\":\"moshi\",\"hidden_size\":4096,\"num_attention_heads\":32,"
         "\"num_hidden_layers\":32,\"num_key_value_heads\":null,\"head_dim\":null}",
         32, 32, 128, 12.5, 0.08},
        {"{\"dim\":4096,\"num_heads\":32,\"num_layers\":32,\"hidden_scale\":4.125}", 32, 32, 128,
         12.5, 0.08},
        {"{\"model_type\":\"moshi\",\"dim\":4096,\"num_heads\":32,\"num_layers\":32}", 32, 32, 128,
         12.5, 0.08},
    };
    struct mt_shape s;
    struct mt_err e;

    (void)state;
    for (size_t i = 0; i < MT_COUNT(rows); i++) {
        assert_int_equal(from_config(&s, rows[i].text, &e), 0);
        assert_int_equal(s.layers, rows[i].layers);
        assert_int_equal(s.kv_heads, rows[i].kv_heads);
        assert_int_equal(s.head_dim, rows[i].head_dim);
        assert_true(s.audio_tokens_s == rows[i].rate);
        assert_true(s.frame_s == rows[i].frame_s);
    }
}

static void test_hostile_values_name_the_field(void **state)
{
    static const struct {
        const char *text, *says;
    } rows[] = {
        {"", "line 1"},
        {"{\"num_hidden_layers\":4", "line 1"},
        {"[]", "JSON object"},
        {"{}", "num_hidden_layers is missing"},
        {"{\"a\":1,\"a\":2}", "duplicate"},
        {"{\"num_hidden_layers\":0}", "num_hidden_layers is not an integer in 1..4096"},
        {"{\"num_hidden_layers\":-3}", "num_hidden_layers"},
        {"{\"num_hidden_layers\":4097}", "num_hidden_layers"},
        {"{\"num_hidden_layers\":9223372036854775807}", "num_hidden_layers"},
        {"{\"num_hidden_layers\":99999999999999999999}", "line 1"},
        {"{\"num_hidden_layers\":4.0}", "num_hidden_layers"},
        {"{\"num_hidden_layers\":\"4\"}", "num_hidden_layers"},
        {"{\"num_hidden_layers\":null}", "num_hidden_layers"},
        {"{\"num_hidden_layers\":4}", "num_attention_heads is missing"},
        {"{\"num_hidden_layers\":4,\"num_attention_heads\":6}", "num_key_value_heads is missing"},
        {"{\"num_hidden_layers\":4,\"num_attention_heads\":6,\"num_key_value_heads\":4}",
         "num_attention_heads 6 is not a multiple of num_key_value_heads 4"},
        {"{\"num_hidden_layers\":4,\"num_attention_heads\":6,\"num_key_value_heads\":2}",
         "hidden_size is missing"},
        {"{\"num_hidden_layers\":4,\"num_attention_heads\":6,\"num_key_value_heads\":2,"
         "\"hidden_size\":193}",
         "hidden_size 193 is not a multiple of num_attention_heads 6"},
        {"{\"num_hidden_layers\":4,\"num_attention_heads\":1,\"num_key_value_heads\":1,"
         "\"hidden_size\":8192}",
         "above 4096"},
        {"{\"num_hidden_layers\":4,\"num_attention_heads\":6,\"num_key_value_heads\":2,"
         "\"head_dim\":0}",
         "head_dim"},
        {"{\"thinker_config\":7}", "thinker_config is not an object"},
        {"{\"thinker_config\":{\"text_config\":[]}}",
         "thinker_config.text_config is not an object"},
        {"{\"thinker_config\":{\"text_config\":{\"num_hidden_layers\":0}}}",
         "thinker_config.text_config.num_hidden_layers"},
        {"{\"dim\":100,\"num_heads\":3,\"num_layers\":2}", "dim 100 is not a multiple"},
    };
    struct mt_shape s;
    struct mt_err e;

    (void)state;
    for (size_t i = 0; i < MT_COUNT(rows); i++) {
        memset(&s, 0x5a, sizeof(s));
        assert_int_equal(from_config(&s, rows[i].text, &e), -EPROTO);
        if (!strstr(e.text, rows[i].says) || strncmp(e.text, "config.json: ", 13) != 0)
            fail_msg("'%s' does not say '%s'", e.text, rows[i].says);
        assert_int_equal(s.layers, 0x5a5a5a5a); /* untouched */
    }
}

static void test_synth(void **state)
{
    static const char *const bad[] = {
        "synth:qwen2.5-omni-tiny,layers=0",     "synth:qwen2.5-omni-tiny,layers=x",
        "synth:qwen2.5-omni-tiny,layers",       "synth:qwen2.5-omni-tiny,seed=-1",
        "synth:qwen2.5-omni-tiny,dtype=int7",   "synth:qwen2.5-omni-tiny,colour=red",
        "synth:qwen2.5-omni-tiny,layers=99999",
    };
    struct mt_err e = {0};
    struct mt_shape s;

    (void)state;
    assert_int_equal(mt_shape_open(&s, "synth:qwen2.5-omni-tiny", &e), 0);
    assert_int_equal(s.layers, 4);
    assert_int_equal(mt_shape_open(&s, "synth:moshi-7b,layers=2,seed=7,dtype=f16", &e), 0);
    assert_int_equal(s.layers, 2);
    assert_int_equal(s.kv_heads, 32);
    for (size_t i = 0; i < MT_COUNT(bad); i++) {
        e = (struct mt_err){0};
        assert_int_equal(mt_shape_open(&s, bad[i], &e), -EINVAL);
        assert_int_equal(strncmp(e.text, bad[i], strlen(bad[i])), 0);
    }
    for (int i = 0; i < 3; i++) {
        static const char *const unknown[] = {"synth:gpt-9", "synth:", "synth:moshi-7b=3"};

        e = (struct mt_err){0};
        assert_int_equal(mt_shape_open(&s, unknown[i], &e), -ENOENT);
        assert_non_null(strstr(e.text, "moshi-7b"));
    }
}

static void test_files(void **state)
{
    char file[600];
    static const char text[] = "{\"model_type\":\"qwen2\",\"hidden_size\":896,"
                               "\"num_attention_heads\":14,\"num_hidden_layers\":24,"
                               "\"num_key_value_heads\":2}";
    char dir[32], path[64];
    struct mt_err e = {0};
    struct mt_shape s;

    (void)state;
    assert_int_equal(util_dir_make(dir), 0);
    snprintf(path, sizeof(path), "%s/config.json", dir);
    assert_int_equal(mt_shape_open(&s, dir, &e), -ENOENT);
    assert_non_null(strstr(e.text, path));
    util_put(dir, "config.json", text, sizeof(text) - 1);
    assert_int_equal(mt_shape_open(&s, dir, &e), 0);
    assert_int_equal(s.layers, 24);
    assert_int_equal(mt_shape_open(&s, path, &e), 0);
    assert_int_equal(s.head_dim, 64);
    util_put(dir, "config.json", "GGUF\3\0\0\0", 8);
    e = (struct mt_err){0};
    assert_int_equal(mt_shape_open(&s, path, &e), -EPROTO);
    assert_non_null(strstr(e.text, "GGUF"));
    assert_int_equal(util_dir_remove(dir), 0);
    snprintf(file, sizeof(file), "%s/golden/gguf/qwen3/model.gguf", util_tests());
    assert_int_equal(mt_shape_open(&s, file, NULL), 0);
    assert_true(s.layers == 2 && s.kv_heads == 1 && s.head_dim == 64 && s.frame_s == 1);
    e = (struct mt_err){0};
    assert_int_equal(mt_shape_open(&s, "/dev/zero", &e), -EPROTO); /* endless */
    assert_non_null(strstr(e.text, "16 MiB"));
    e = (struct mt_err){0};
    assert_int_equal(mt_shape_open(&s, "no-such-model", &e), -ENOENT);
    assert_non_null(strstr(e.text, "qwen3-omni-30b"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names),   cmocka_unit_test(test_audio_rate),
        cmocka_unit_test(test_layouts), cmocka_unit_test(test_hostile_values_name_the_field),
        cmocka_unit_test(test_synth),   cmocka_unit_test(test_files),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
