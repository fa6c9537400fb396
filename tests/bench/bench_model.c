/*
 * bench_model.c: tokens a second of a model's text part: prefill of 128 tokens, then decode of 1, 2,
 * 4, 8, 16 and 32 sessions together, each with that prompt behind it. Medians; one NDJSON object a
 * line. BENCH_MODEL names the model, else the file in MT_WEIGHTS, else synth:qwen2.5-omni-3b cut to
 * 4 layers.
 *
 *     bench_model [THREADS [SESSIONS…]]    SESSIONS 0: the prefill alone
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/model.h"

enum { PROMPT = 128, TOKENS = 24, MOST = 32, BLOCK = 16, BLOCKS = (PROMPT + TOKENS) / BLOCK + 1 };
#define REAL "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"

static struct mt_clock clock_;

static double now(void)
{
    return (double)clock_.now_ns(&clock_) / 1e9;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

struct bench {
    struct mt_model *m;
    struct mt_kv *kv;
    int32_t blocks[MOST * BLOCKS];
    int threads;
};

/* n rows of each of k sessions, from token index `at` on, logits of the last row of each. */
static double step(struct bench *b, int k, int n, int64_t at)
{
    struct mt_run runs[MOST];
    struct mt_rows logits;
    int32_t ids[PROMPT + MOST];
    int want[MOST];
    double t;

    for (int i = 0; i < k; i++) {
        runs[i] = (struct mt_run){.row = i * n,
                                  .n = n,
                                  .index = at,
                                  .view = {.blocks = b->blocks + (ptrdiff_t)i * BLOCKS,
                                           .window = INT64_MAX,
                                           .ring_blocks = INT32_MAX}};
        want[i] = i * n + n - 1;
    }
    for (int i = 0; i < k * n; i++)
        ids[i] = (int32_t)(100 + mt_mix64((uint64_t)(at + i)) % 1000);
    struct mt_step s = {.batch = {k * n, k, runs}, .ids = ids, .want = want, .n_want = k};
    t = now();
    if (mt_model_step(b->m, b->kv, &s, &logits) < 0)
        exit(1);
    return now() - t;
}

static void line(const struct bench *b, const char *what, int sessions, double *t, int n,
                 double tokens)
{
    json_t *o;

    qsort(t, (size_t)n, sizeof(*t), by_value);
    o = json_pack("{s:s, s:s, s:s, s:i, s:i}", "bench", what, "model", mt_model_info(b->m)->name,
                  "backend", mt_model_backend(b->m)->ops->name, "threads", b->threads, "sessions",
                  sessions);
    mt_json_set_real(o, "tok_per_s", tokens / t[n / 2]);
    mt_json_set_real(o, "best", tokens / t[0]);
    mt_json_set_real(o, "worst", tokens / t[n - 1]);
    mt_json_line(stdout, o);
}

static void prefill(struct bench *b)
{
    double t[5];

    step(b, 1, PROMPT, 0);
    for (size_t i = 0; i < MT_COUNT(t); i++)
        t[i] = step(b, 1, PROMPT, 0);
    line(b, "prefill", 1, t, MT_COUNT(t), PROMPT);
}

static void decode(struct bench *b, int k)
{
    double t[TOKENS];

    for (int i = 0; i < TOKENS; i++)
        t[i] = step(b, k, 1, PROMPT + i);
    line(b, "decode", k, t, TOKENS, k);
}

int main(int argc, char **argv)
{
    static const int sessions[] = {1, 2, 4, 8, 16, 32};
    struct mt_model_opts mo = {.step_rows = PROMPT, .want_rows = MOST};
    const char *weights = getenv("MT_WEIGHTS"), *name = getenv("BENCH_MODEL");
    struct mt_backend *be;
    struct bench b = {0};
    struct mt_err e = {0};
    char path[4096];
    int64_t threads = 0, k;
    enum mt_cpu_tier tier;

    if (argc > 1 && mt_parse_i64(argv[1], 0, 256, &threads) < 0)
        return MT_EXIT_USAGE;
    snprintf(path, sizeof(path), "%s/" REAL, weights ? weights : "");
    if (!name)
        name = weights ? path : "synth:qwen2.5-omni-3b,layers=4";
    clock_ = mt_clock_real();
    double t = now();
    if (mt_cpu_tier(&tier, &e) < 0 || mt_backend_cpu(&be, tier, (int)threads, &e) < 0 ||
        mt_model_open(&b.m, name, be, &mo, &e) < 0) {
        mt_msg(MT_ERROR, "%s", e.text);
        return MT_EXIT_FAILED;
    }
    t = now() - t;
    struct mt_kv_shape shape = mt_model_kv_shape(b.m, BLOCK, MT_F16);
    if (be->ops->kv_new(be, &b.kv, &shape, (int64_t)MOST * BLOCKS) < 0)
        return MT_EXIT_FAILED;
    b.threads = (int)threads;
    for (int i = 0; i < MOST * BLOCKS; i++)
        b.blocks[i] = i;
    json_t *o = json_pack("{s:s, s:s, s:f}", "bench", "open", "model", name, "seconds", t);
    mt_json_line(stdout, o);
    for (int i = 0; i < MOST; i++) /* every session's prompt */
        for (int j = 0; j < BLOCKS; j++)
            b.blocks[i * BLOCKS + j] = i * BLOCKS + j;
    prefill(&b);
    for (int i = 2; i < argc; i++)
        if (mt_parse_i64(argv[i], 0, MOST, &k) < 0)
            return MT_EXIT_USAGE;
        else if (k > 0)
            decode(&b, (int)k);
    for (size_t i = 0; i < MT_COUNT(sessions) && argc < 3; i++)
        decode(&b, sessions[i]);
    be->ops->kv_free(be, b.kv);
    mt_model_close(&b.m);
    mt_backend_close(&be);
    return mt_close_stdout(MT_EXIT_OK);
}
