/*
 * test_args.c: what an option's argument is read as, and the line that refuses it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/args.h"

#include <stdlib.h>
#include <string.h>

enum { I64 = 256, DOUBLE, DURATION, DURATION0, WORD, TABLE, POOL, KV, ROPE, KV_TYPE, THREADS };

static const struct argp_option options[] = {
    {"i64", I64, "N", 0, NULL, 0},           {"double", DOUBLE, "N", 0, NULL, 0},
    {"duration", DURATION, "D", 0, NULL, 0}, {"duration0", DURATION0, "D", 0, NULL, 0},
    {"word", WORD, "WORD", 0, NULL, 0},      {"format", TABLE, "WORD", 0, NULL, 0},
    {"pool", POOL, "SIZE", 0, NULL, 0},      {"kv", KV, "POLICY", 0, NULL, 0},
    {"rope", ROPE, "WHERE", 0, NULL, 0},     {"kv-type", KV_TYPE, "TYPE", 0, NULL, 0},
    {"threads", THREADS, "N", 0, NULL, 0},   {0},
};

static struct got {
    FILE *err;
    double value;
    int64_t bytes, blocks;
    struct mt_policy policy;
} got;

static error_t parse(int key, char *arg, struct argp_state *st)
{
    static const char *const words[] = {"one", "two", "three"};

    switch (key) {
    case ARGP_KEY_INIT:
        st->err_stream = got.err;
        return 0;
    case I64:
        got.value = (double)mt_arg_i64(st, "--i64", arg, -3, 7);
        return 0;
    case DOUBLE:
        got.value = mt_arg_double(st, "--double", arg, 0, 1.5);
        return 0;
    case DURATION:
        got.value = (double)mt_arg_duration(st, "--duration", arg);
        return 0;
    case DURATION0:
        got.value = (double)mt_arg_duration0(st, "--duration0", arg);
        return 0;
    case WORD:
        got.value = mt_arg_word(st, "--word", arg, words, 3);
        return 0;
    case TABLE:
        got.value = mt_arg_table(st, arg);
        return 0;
    case POOL:
        mt_arg_pool(st, arg, 1000, &got.bytes, &got.blocks);
        return 0;
    case KV:
        mt_arg_kv(st, arg, &got.policy);
        return 0;
    case ROPE:
        got.value = mt_arg_rope(st, arg);
        return 0;
    case KV_TYPE:
        got.value = mt_arg_kv_type(st, arg);
        return 0;
    case THREADS:
        got.value = mt_arg_threads(st, arg);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/*
 * The first line that a call with this option says on stderr, without the program's name; "" when
 * it is taken.
 */
static const char *said(const char *option)
{
    static const struct argp argp = {options, parse, NULL, NULL, NULL, NULL, NULL};
    static char line[300];
    char copy[100], program[] = "prog", *argv[] = {program, copy, NULL}, *text = NULL;
    size_t n;

    got = (struct got){.err = open_memstream(&text, &n), .value = -1};
    assert_non_null(got.err);
    snprintf(copy, sizeof(copy), "%s", option);
    argp_parse(&argp, 2, argv, ARGP_NO_EXIT, NULL, NULL);
    fclose(got.err);
    text[strcspn(text, "\n")] = '\0';
    snprintf(line, sizeof(line), "%s", text);
    free(text);
    assert_true(!*line || !strncmp(line, "prog: ", 6));
    return *line ? line + 6 : line;
}

static void takes(const char *option, double value)
{
    assert_string_equal(said(option), "");
    assert_true(got.value == value);
}

static void refuses(const char *option, const char *says)
{
    assert_string_equal(said(option), says);
}

static void test_numbers(void **state)
{
    (void)state;
    takes("--i64=-3", -3);
    takes("--i64=7", 7);
    refuses("--i64=8", "--i64: '8' is not an integer in -3..7");
    refuses("--i64=1.5", "--i64: '1.5' is not an integer in -3..7");
    takes("--double=1.5", 1.5);
    refuses("--double=nan", "--double: 'nan' is not a number in 0..1.5");
    takes("--threads=256", 256);
    refuses("--threads=257", "--threads: '257' is not an integer in 0..256");
}

static void test_durations(void **state)
{
    (void)state;
    takes("--duration=80ms", 80e6);
    takes("--duration0=0", 0);
    refuses("--duration=0",
            "--duration: '0' is not a duration above 0 (ms, s, min, h; a bare number is seconds)");
    refuses("--duration0=x",
            "--duration0: 'x' is not a duration (ms, s, min, h; a bare number is seconds)");
}

static void test_words(void **state)
{
    (void)state;
    takes("--word=three", 2);
    refuses("--word=four", "--word: 'four' is not one, two or three");
    refuses("--word=", "--word: '' is not one, two or three");
    takes("--format=table", 1);
    takes("--format=json", 0);
    refuses("--format=xml", "--format: 'xml' is not json or table");
    takes("--rope=absolute", 1);
    takes("--rope=cache", 0);
    refuses("--rope=0", "--rope: '0' is not cache or absolute");
    takes("--kv-type=bf16", MT_BF16);
    takes("--kv-type=f16", MT_F16);
    takes("--kv-type=f32", MT_F32);
    takes("--kv-type=int8", MT_INT8);
    takes("--kv-type=fp8", MT_FP8);
    refuses("--kv-type=int4", "--kv-type: 'int4' is not bf16, f16, f32, int8 or fp8");
}

static void test_memory(void **state)
{
    static const char *const bad[] = {"0", "0b", "1001b", "b", "40GB", "-1", "-1b", "1.5b", ""};
    char option[40], says[160];

    (void)state;
    assert_string_equal(said("--pool=2KiB"), "");
    assert_true(got.bytes == 2048 && got.blocks == 0);
    assert_string_equal(said("--pool=512b"), "");
    assert_true(got.bytes == 0 && got.blocks == 512);
    for (size_t i = 0; i < MT_COUNT(bad); i++) {
        snprintf(option, sizeof(option), "--pool=%s", bad[i]);
        snprintf(says, sizeof(says),
                 "--pool: '%s' is not a size (40GiB; K, M, G, KiB, MiB, GiB) nor a number of "
                 "blocks (512b)",
                 bad[i]);
        refuses(option, says);
    }
    assert_string_equal(said("--kv=window=8,sinks=2"), "");
    assert_true(got.policy.bounded && got.policy.window == 8 && got.policy.sinks == 2);
    refuses("--kv=window=2,sinks=2", "--kv: 'window=2,sinks=2': window=2 is not above sinks=2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_durations),
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
