/*
 * args.c: an engine's options as people type them.
 */
#include "engine/args.h"

#include <stdlib.h>
#include <string.h>

#define THREADS_MAX 256

void mt_arg_pool(struct argp_state *st, const char *arg, int64_t most_blocks, int64_t *bytes,
                 int64_t *blocks)
{
    size_t n = strlen(arg);
    char *number = n > 1 && arg[n - 1] == 'b' ? strndup(arg, n - 1) : NULL;
    bool good;

    *bytes = *blocks = 0;
    if (number)
        good = mt_parse_i64(number, 1, most_blocks, blocks) == 0;
    else
        good = mt_parse_size(arg, bytes) == 0 && *bytes > 0;
    free(number);
    if (!good)
        argp_error(st,
                   "--pool: '%s' is not a size (40GiB; K, M, G, KiB, MiB, GiB) nor a number of "
                   "blocks (512b)",
                   arg);
}

void mt_arg_kv(struct argp_state *st, const char *arg, struct mt_policy *p)
{
    struct mt_err e = {0};

    if (mt_policy_parse(arg, p, &e) < 0)
        argp_error(st, "--kv: '%s': %s", arg, e.text);
}

bool mt_arg_rope(struct argp_state *st, const char *arg)
{
    static const char *const where[] = {"cache", "absolute"};

    return mt_arg_word(st, "--rope", arg, where, 2) == 1;
}

enum mt_dtype mt_arg_kv_type(struct argp_state *st, const char *arg)
{
    static const char *const words[] = {"bf16", "f16", "f32", "int8", "fp8"};
    static const enum mt_dtype types[] = {MT_BF16, MT_F16, MT_F32, MT_INT8, MT_FP8};

    return types[mt_arg_word(st, "--kv-type", arg, words, MT_COUNT(words))];
}

enum mt_dtype mt_arg_quantize(struct argp_state *st, const char *arg)
{
    static const char *const words[] = {"q8_0", "q4_k"};

    return mt_arg_word(st, "--quantize", arg, words, MT_COUNT(words)) ? MT_Q4_K : MT_Q8_0;
}

int mt_arg_threads(struct argp_state *st, const char *arg)
{
    return (int)mt_arg_i64(st, "--threads", arg, 0, THREADS_MAX);
}
