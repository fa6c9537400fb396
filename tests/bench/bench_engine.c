/*
 * bench_engine.c: how many sessions of a model hold the beat on this machine: n sessions speak one
 * frame each at the same moment, and the time until the last is answered is set against the beat.
 * Median of several frames, all in one run. BENCH_MODEL names another model.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"

enum { FRAMES = 7, MOST = 64 };

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof(*v), by_value);
    return v[n / 2];
}

/* Seconds from all n having spoken a frame until all are answered. */
static double one_frame(struct mt_engine *eng, struct mt_clock *clock, const int64_t *id, int n,
                        const float *pcm, int64_t samples)
{
    int64_t t = clock->now_ns(clock);

    for (int i = 0; i < n; i++)
        mt_engine_audio(eng, id[i], pcm, samples, t);
    while (mt_engine_tick(eng))
        ;
    return (double)(clock->now_ns(clock) - t) / 1e9;
}

static void bench(struct mt_model *m, int n, int threads)
{
    const struct mt_model_info *info = mt_model_info(m);
    struct mt_clock clock = mt_clock_real();
    struct mt_engine_opts o;
    struct mt_session_opts so;
    struct mt_engine *eng;
    struct mt_err e = {0};
    double seconds[FRAMES], retry;
    int64_t id[MOST], samples = info->beat_samples + info->lookahead_samples;
    const char *why;
    float *pcm = calloc((size_t)samples, sizeof(*pcm));

    mt_engine_defaults(&o);
    mt_policy_parse("window=512,sinks=4", &o.policy, NULL);
    o.pool_blocks = (int64_t)MOST * 64;
    o.max_sessions = MOST;
    if (mt_engine_new(&eng, m, &o, &clock, &e) < 0) {
        mt_msg(MT_ERROR, "%s", e.text);
        exit(1);
    }
    mt_session_defaults(&so);
    for (int i = 0; i < n; i++)
        if (mt_engine_open(eng, &so, &id[i], &why, &retry, &e) < 0)
            exit(1);
    for (int64_t i = 0; i < samples; i++)
        pcm[i] = (float)(0.3 * sin((double)i * 0.07) * sin((double)i * 0.0003));
    one_frame(eng, &clock, id, n, pcm, samples); /* the first feeds the prompt, too */
    for (int k = 0; k < FRAMES; k++)
        seconds[k] = one_frame(eng, &clock, id, n, pcm, info->beat_samples);
    double s = median(seconds, FRAMES), beat = (double)info->beat_samples / info->sample_rate_hz;
    json_t *line =
        json_pack("{s:s, s:s, s:s, s:i, s:i}", "bench", "engine", "model", info->name, "backend",
                  mt_model_backend(m)->ops->name, "threads", threads, "sessions", n);
    mt_json_set_real(line, "frame_ms", s * 1e3);
    mt_json_set_real(line, "beats", s / beat);
    mt_json_set_real(line, "sessions_on_the_beat", n / (s / beat));
    mt_json_line(stdout, line);
    free(pcm);
    mt_engine_free(&eng);
}

int main(void)
{
    static const int sessions[] = {1, 8, MOST};
    struct mt_model_opts mo = {.step_rows = 512, .want_rows = MOST};
    enum mt_cpu_tier best;

    if (mt_cpu_tier(&best, NULL) < 0)
        return 1;
    for (int threads = 1; threads <= 2; threads++)
        for (size_t i = 0; i < MT_COUNT(sessions); i++) {
            struct mt_backend *be;
            struct mt_model *m;
            struct mt_err e = {0};
            if (mt_backend_cpu(&be, best, threads, &e) < 0 ||
                mt_model_open(&m, getenv("BENCH_MODEL"), be, &mo, &e) < 0) {
                mt_msg(MT_ERROR, "%s", e.text);
                return 1;
            }
            bench(m, sessions[i], threads);
            mt_model_close(&m);
            mt_backend_close(&be);
        }
    return 0;
}
