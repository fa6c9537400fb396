/*
 * bench_model.c: tokens a second of a model's text part: prefill of 128 tokens, then decode of 1,
 * 2, 4, 8, 16 and 32 sessions together, each with that prompt behind it; then a beat: 50 new
 * positions of each of n sessions, and 25 tokens, which is a frame of two seconds without its
 * encoding. The beat's lines are what sessions on the beat are derived from beside another engine
 * (compare). BENCH_MODEL names the model, else the file in MT_WEIGHTS, else synth:qwen2.5-omni-3b
 * cut to 4 layers.
 *
 *     bench_model [THREADS]
 */
#include "model/model.h"
#include "tests/bench/bench.h"

enum {
    PROMPT = 128,
    TOKENS = 24,
    BEAT_IN = 50,
    BEAT_OUT = 25,
    STEP_ROWS = 512,
    MOST = 64,   /* sessions of a beat */
    DECODE = 32, /* of the decoding */
    BLOCK = 16,
    BLOCKS = (PROMPT + TOKENS) / BLOCK + 1
};
#define FRAME_S 2.0
#define REAL    "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"

struct bench {
    struct mt_model *m;
    struct mt_kv *kv;
    int32_t blocks[MOST * BLOCKS];
    int threads;
};

/* n rows of each of sessions first.. first+k-1, from token index `at` on; logits of their last. */
static void step(struct bench *b, int first, int k, int n, int64_t at)
{
    struct mt_run runs[MOST];
    struct mt_rows logits;
    int32_t ids[STEP_ROWS];
    int want[MOST];

    for (int i = 0; i < k; i++) {
        runs[i] = (struct mt_run){.row = i * n,
                                  .n = n,
                                  .index = at,
                                  .view = {.blocks = b->blocks + (ptrdiff_t)(first + i) * BLOCKS,
                                           .window = INT64_MAX,
                                           .ring_blocks = INT32_MAX}};
        want[i] = i * n + n - 1;
    }
    for (int i = 0; i < k * n; i++)
        ids[i] = (int32_t)(100 + mt_mix64((uint64_t)(at + i)) % 1000);
    struct mt_step s = {.batch = {k * n, k, runs}, .ids = ids, .want = want, .n_want = k};
    bench_need(mt_model_step(b->m, b->kv, &s, &logits), "a step");
}

static void line(const struct bench *b, const char *what, int sessions, double *t, int n,
                 double tokens)
{
    double spread, s = bench_median(t, n, &spread);
    json_t *o = json_pack("{s:s, s:s, s:s, s:i, s:i}", "bench", what, "model",
                          mt_model_info(b->m)->name, "backend", mt_model_backend(b->m)->ops->name,
                          "threads", b->threads, "sessions", sessions);

    mt_json_set_real(o, "seconds", s);
    mt_json_set_real(o, "spread", spread);
    mt_json_set_real(o, "tok_per_s", tokens / s);
    mt_json_set_real(o, "best", tokens / t[0]);
    mt_json_set_real(o, "worst", tokens / t[n - 1]);
    bench_line(o, "%-8s %2d sessions %9.2f ms +-%3.0f%% %8.1f tok/s", what, sessions, s * 1e3,
               spread * 50, tokens / s);
}

static void prefill(struct bench *b)
{
    double t[5];

    for (int i = 0; i < DECODE; i++) /* the sessions' prompts, which warm up, too */
        step(b, i, 1, PROMPT, 0);
    for (size_t i = 0; i < MT_COUNT(t); i++) {
        t[i] = bench_now();
        step(b, 0, 1, PROMPT, 0);
        t[i] = bench_now() - t[i];
    }
    line(b, "prefill", 1, t, MT_COUNT(t), PROMPT);
}

static void decode(struct bench *b)
{
    static const int sessions[] = {1, 2, 4, 8, 16, DECODE};
    double t[MT_COUNT(sessions)][TOKENS];

    for (int i = 0; i < TOKENS; i++) {
        for (size_t k = 0; k < MT_COUNT(sessions); k++) { /* in turns */
            t[k][i] = bench_now();
            step(b, 0, sessions[k], 1, PROMPT + i);
            t[k][i] = bench_now() - t[k][i];
        }
    }
    for (size_t k = 0; k < MT_COUNT(sessions); k++)
        line(b, "decode", sessions[k], t[k], TOKENS, sessions[k]);
}

/*
 * All of n sessions from nothing: their positions, as many sessions a step as it holds, then
 * tokens.
 */
static double one_beat(struct bench *b, int n)
{
    enum { AT_ONCE = STEP_ROWS / BEAT_IN };
    double t = bench_now();

    for (int i = 0; i < n; i += AT_ONCE)
        step(b, i, n - i < AT_ONCE ? n - i : AT_ONCE, BEAT_IN, 0);
    for (int i = 0; i < BEAT_OUT; i++)
        step(b, 0, n, 1, BEAT_IN + i);
    return bench_now() - t;
}

static void beat(struct bench *b)
{
    static const int sessions[] = {1, 2, 4, 8, 16, 32, MOST};
    double t[MT_COUNT(sessions)][3];
    size_t n = MT_COUNT(sessions);

    for (int i = 0; i < 3; i++)
        for (size_t k = 0; k < n; k++)
            if ((t[k][i] = one_beat(b, sessions[k])) > FRAME_S && i == 0)
                n = k + 1; /* more of them tell nothing of a beat */
    for (size_t k = 0; k < n; k++)
        line(b, "beat", sessions[k], t[k], 3, sessions[k] * (double)(BEAT_IN + BEAT_OUT));
}

int main(int argc, char **argv)
{
    struct mt_model_opts mo = {.step_rows = STEP_ROWS, .want_rows = MOST};
    const char *weights = getenv("MT_WEIGHTS"), *name = getenv("BENCH_MODEL");
    struct mt_backend *be;
    static struct bench b;
    struct mt_err e = {0};
    char path[4096];
    int64_t threads = bench_threads();
    enum mt_cpu_tier tier;

    if (argc > 2 || (argc > 1 && mt_parse_i64(argv[1], 1, 256, &threads) < 0)) {
        fprintf(stderr, "bench_model: usage: bench_model [THREADS]\n");
        return MT_EXIT_USAGE;
    }
    snprintf(path, sizeof(path), "%s/" REAL, weights ? weights : "");
    if (!name)
        name = weights ? path : "synth:qwen2.5-omni-3b,layers=4";
    double t = bench_now();
    if (mt_cpu_tier(&tier, &e) < 0 || mt_backend_cpu(&be, tier, (int)threads, &e) < 0 ||
        mt_model_open(&b.m, name, be, &mo, &e) < 0) {
        mt_msg(MT_ERROR, "%s", e.text);
        return MT_EXIT_FAILED;
    }
    t = bench_now() - t;
    struct mt_kv_shape shape = mt_model_kv_shape(b.m, BLOCK, MT_F16);
    bench_need(be->ops->kv_new(be, &b.kv, &shape, (int64_t)MOST * BLOCKS), "cache");
    b.threads = (int)threads;
    for (int i = 0; i < MOST * BLOCKS; i++)
        b.blocks[i] = i;
    json_t *o = json_pack("{s:s, s:s, s:i, s:f}", "bench", "open", "model", name, "threads",
                          b.threads, "seconds", t);
    bench_line(o, "%s, %s, %d threads: open in %.2f s", name, be->ops->name, b.threads, t);
    prefill(&b);
    decode(&b);
    beat(&b);
    be->ops->kv_free(be, b.kv);
    mt_model_close(&b.m);
    mt_backend_close(&be);
    return mt_close_stdout(MT_EXIT_OK);
}
