/*
 * bench_engine.c: how many sessions of a model hold a beat on this machine, alone and beside a busy
 * neighbour, a process that never waits. n sessions speak a frame at the same moment and are
 * answered with 25 tokens each; they hold the beat if 99 of 100 answers come within 80 % of it and
 * none was cut. n doubles until they don't, then the number is looked for between.
 * BENCH_MODEL names the model, else the file in MT_WEIGHTS with a synthetic tower, else
 * synth:qwen2.5-omni-tiny. The beat is two seconds where the model lets it be.
 *
 *     bench_engine [THREADS]
 */
#include <math.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include "engine/engine.h"
#include "tests/bench/bench.h"

enum { FRAMES = 4, MOST = 64, ANSWER = 25 };
#define FRAME_S 2.0
#define SHARE   0.8 /* of the beat */
#define REAL    "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"

struct answers {
    double ms[MOST * FRAMES];
    int n, whole, tokens_in;
};

static void on_frame(void *ctx, const struct mt_record *r)
{
    struct answers *a = ctx;

    if (r->frame < 1 || a->n == MOST * FRAMES) /* the first one feeds the prompt, too */
        return;
    a->ms[a->n++] = r->latency_ms;
    a->whole += r->status == MT_OK && r->tokens_out == ANSWER;
    a->tokens_in = r->tokens_in;
}

/*
 * Of n sessions: ms within which 99 of 100 are answered, INFINITY where some are not, or are cut.
 */
static double p99(struct mt_model *m, int n, double *beat_s, int *tokens_in)
{
    const struct mt_model_info *info = mt_model_info(m);
    struct mt_clock clock = mt_clock_real();
    struct mt_engine_opts o;
    struct mt_session_opts so;
    struct mt_engine *eng;
    struct mt_err e = {0};
    struct answers a = {.n = 0};
    double retry, spread;
    int64_t id[MOST], beat, sent;
    const char *why;

    mt_engine_defaults(&o);
    mt_policy_parse("window=512,sinks=4", &o.policy, NULL);
    beat = (int64_t)(FRAME_S * info->sample_rate_hz);
    beat = beat % info->frame_step || beat < info->frame_min ? info->beat_samples : beat;
    o.frame_ns = beat * 1000000000 / info->sample_rate_hz;
    o.pool_blocks = (int64_t)MOST * 64;
    o.max_sessions = MOST;
    o.mode = MT_MODE_FREE;
    o.answer_tokens = ANSWER;
    o.pace = false;
    o.events = (struct mt_engine_events){.ctx = &a, .frame = on_frame};
    if (mt_engine_new(&eng, m, &o, &clock, &e) < 0) {
        mt_msg(MT_ERROR, "%s", e.text);
        exit(MT_EXIT_FAILED);
    }
    mt_session_defaults(&so);
    for (int i = 0; i < n; i++)
        bench_need(mt_engine_open(eng, &so, &id[i], &why, &retry, &e), "a session");
    *beat_s = (double)beat / info->sample_rate_hz;
    sent = beat + info->lookahead_samples;
    float *pcm = bench_alloc((size_t)sent, sizeof(*pcm));
    for (int64_t i = 0; i < sent; i++)
        pcm[i] = (float)(0.3 * sin((double)i * 0.07) * sin((double)i * 0.0003));
    for (int f = 0; f <= FRAMES; f++, sent = beat) {
        int64_t t = clock.now_ns(&clock);

        for (int i = 0; i < n; i++)
            mt_engine_audio(eng, id[i], pcm, sent, t);
        while (mt_engine_tick(eng))
            ;
    }
    free(pcm);
    mt_engine_free(&eng);
    *tokens_in = a.tokens_in;
    if (a.n < n * FRAMES || a.whole < a.n)
        return INFINITY;
    bench_median(a.ms, a.n, &spread);
    return a.ms[(a.n * 99 + 99) / 100 - 1];
}

static void bench(struct mt_model *m, int threads, bool busy)
{
    const char *name = mt_model_info(m)->name;
    int held = 0, over = MOST + 1, tokens_in;
    double ms, at = 0, beat_s = 0;

    for (int n = 1; over - held > 1 && n <= MOST;) {
        ms = p99(m, n, &beat_s, &tokens_in);
        fprintf(stderr, "  %d sessions: p99 %.0f ms\n", n, ms);
        if (ms < SHARE * beat_s * 1e3) {
            held = n;
            at = ms;
        } else {
            over = n;
        }
        n = over > MOST ? 2 * n : (held + over) / 2;
    }
    json_t *o =
        json_pack("{s:s, s:s, s:s, s:i, s:b, s:i, s:i, s:i}", "bench", "engine", "model", name,
                  "backend", mt_model_backend(m)->ops->name, "threads", threads, "busy", busy,
                  "tokens_in", tokens_in, "tokens_out", ANSWER, "sessions", held);
    mt_json_set_real(o, "beat_s", beat_s);
    mt_json_set_real(o, "p99_ms", at);
    bench_line(
        o, "%s, %d threads, %s: %d%s sessions hold a beat of %.2g s (%d in, %d out; p99 %.0f ms)",
        name, threads, busy ? "beside a busy process" : "alone", held,
        held == MOST ? " or more" : "", beat_s, tokens_in, ANSWER, at);
}

int main(int argc, char **argv)
{
    const char *weights = getenv("MT_WEIGHTS"), *name = getenv("BENCH_MODEL");
    struct mt_model_opts mo = {.step_rows = 512, .want_rows = MOST};
    int64_t threads = bench_threads();
    enum mt_cpu_tier tier;
    struct mt_backend *be;
    struct mt_model *m;
    struct mt_err e = {0};
    char path[4096];

    if (argc > 2 || (argc > 1 && mt_parse_i64(argv[1], 1, 256, &threads) < 0)) {
        fprintf(stderr, "bench_engine: usage: bench_engine [THREADS]\n");
        return MT_EXIT_USAGE;
    }
    snprintf(path, sizeof(path), "%s/" REAL, weights ? weights : "");
    if (!name && weights)
        name = path;
    if (name && strncmp(name, "synth:", 6) != 0 && strstr(name, ".gguf"))
        mo.mmproj = "synth";
    if (mt_cpu_tier(&tier, &e) < 0 || mt_backend_cpu(&be, tier, (int)threads, &e) < 0 ||
        mt_model_open(&m, name, be, &mo, &e) < 0) {
        mt_msg(MT_ERROR, "%s", e.text);
        return MT_EXIT_FAILED;
    }
    for (int busy = 0; busy < 2; busy++) {
        pid_t pid = busy ? fork() : -1;

        if (pid == 0) { /* the neighbour, which does not outlive this */
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (volatile uint64_t i = 0;; i++)
                ;
        }
        bench(m, (int)threads, busy);
        if (pid > 0) {
            kill(pid, SIGKILL);
            waitpid(pid, NULL, 0);
        }
    }
    mt_model_close(&m);
    mt_backend_close(&be);
    return mt_close_stdout(MT_EXIT_OK);
}
