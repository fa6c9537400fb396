/*
 * play.c: calls of minutes in less time than they last: the engine with a real model and real
 * speech, on a clock that leaves its waits out (control/simulate.h). Each step takes the time that
 * it takes, a frame is late when it would have been; what is not there is a server's socket, and
 * the rest that a card has between two beats.
 *
 * A line a beat and a line a run, not one a frame: files stay small.
 */
#include "card.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "audio/audio.h"
#include "control/simulate.h"

enum { BEATS = 150, RUNS_MAX = 32, CLIPS_MAX = 8, STEP_ROWS = 4096 };
#define CLIP_SAMPLES ((int64_t)24000 * 600)
/* What is left of a card's memory, as mt-serve takes it. */
#define GPU_MEMORY 0.9
/* As in step.c: callers who draw differ, so that their rows take different experts. */
static const struct mt_session_opts ASKED = {.temperature = 0.7f, .top_k = 20, .top_p = 0.8f};

struct counts {
    int64_t frames[MT_FAILED + 1], shortened;
};

struct play {
    struct card *c;
    struct mt_model *m;
    /* what was asked for */
    const char *model, *pool, *run[RUNS_MAX], *clip[CLIPS_MAX];
    int64_t calls, answer;
    double frame_s, seconds, limit_s;
    int n_runs, n_clips;
    /* the clips behind each other */
    float *sound;
    int64_t n_sound;
    /* while it runs */
    struct mt_sim_opts o;
    double begun, beat_s, next_s, t, stalled_s;
    bool stop;
    struct counts beat, all;
    double *ms, encode_ms, prefill_ms, decode_ms; /* of frames that were computed */
    int64_t n_ms, beat_ms, cap_ms, refused;
    double share; /* of the pool */
    int sessions;
};

static volatile sig_atomic_t told_to_stop;

static void on_stop(int sig)
{
    (void)sig;
    told_to_stop = 1;
}

/* ---- callers ---- */

static double gap_s(void *ctx, int64_t i)
{
    (void)ctx;
    (void)i;
    return 0; /* all at once … */
}

static double length_s(void *ctx, int64_t i, double arrived_s)
{
    (void)ctx;
    (void)i;
    (void)arrived_s;
    return INFINITY; /* … to the end … */
}

static double phase(void *ctx, int64_t i)
{
    const struct play *p = ctx;

    return (double)i / (double)p->calls; /* … and spread over the beat */
}

/* Each begins at a place of its own. */
static void speak(void *ctx, int64_t i, int64_t k, float *pcm, int64_t n)
{
    const struct play *p = ctx;
    uint64_t from = mt_mix64(p->o.engine.seed + (uint64_t)i) % (uint64_t)p->n_sound;
    int64_t at = (int64_t)((from + (uint64_t)(k * n)) % (uint64_t)p->n_sound);

    for (int64_t j = 0; j < n; j++) {
        pcm[j] = p->sound[at];
        at = at + 1 == p->n_sound ? 0 : at + 1;
    }
}

/* ---- what comes of it ---- */

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static void put_counts(json_t *o, const struct counts *n)
{
    int64_t all = 0;

    for (int i = 0; i <= MT_FAILED; i++) {
        all += n->frames[i];
        if (i != MT_REFUSED)
            json_object_set_new(o, mt_status_name((enum mt_status)i), json_integer(n->frames[i]));
    }
    json_object_set_new(o, "frames", json_integer(all));
    json_object_set_new(o, "shortened", json_integer(n->shortened));
}

/* ms [n] is sorted by it. */
static void put_latencies(json_t *o, double *ms, int64_t n)
{
    static const struct {
        const char *name;
        double q;
    } at[] = {{"p50_ms", 0.5}, {"p95_ms", 0.95}, {"p99_ms", 0.99}, {"max_ms", 1}};

    if (n == 0)
        return;
    qsort(ms, (size_t)n, sizeof(*ms), by_value);
    for (size_t i = 0; i < MT_COUNT(at); i++) {
        int64_t rank = (int64_t)ceil(at[i].q * (double)n);

        mt_json_set_real(o, at[i].name, ms[(rank < 1 ? 1 : rank) - 1]);
    }
}

static void on_frame(void *ctx, const struct mt_record *r)
{
    struct play *p = ctx;

    p->beat.frames[r->status]++;
    p->beat.shortened += r->shortened;
    p->share = r->pool;
    p->sessions = r->sessions;
    if (r->status == MT_STALLED && isnan(p->stalled_s))
        p->stalled_s = p->t;
    if (r->tokens_out < 1)
        return;
    if (p->n_ms == p->cap_ms) {
        int64_t cap = 2 * p->cap_ms + 1024;
        double *more = realloc(p->ms, (size_t)cap * sizeof(*more));

        card_must("memory", more ? 0 : -ENOMEM);
        p->ms = more;
        p->cap_ms = cap;
    }
    p->ms[p->n_ms++] = r->latency_ms;
    p->encode_ms += r->encode_ms;
    p->prefill_ms += r->prefill_ms;
    p->decode_ms += r->decode_ms;
}

static void on_refused(void *ctx, int64_t call, double t_s, const char *reason)
{
    struct play *p = ctx;

    (void)call;
    (void)t_s;
    (void)reason;
    p->refused++;
}

static void end_beat(struct play *p)
{
    json_t *o = json_pack("{s:s, s:i}", "type", "beat", "sessions", p->sessions);

    mt_json_set_real(o, "t", p->next_s);
    mt_json_set_real(o, "pool", p->share);
    put_counts(o, &p->beat);
    put_latencies(o, p->ms + p->beat_ms, p->n_ms - p->beat_ms);
    mt_json_line(stdout, o);
    for (int i = 0; i <= MT_FAILED; i++)
        p->all.frames[i] += p->beat.frames[i];
    p->all.shortened += p->beat.shortened;
    p->beat = (struct counts){0};
    p->beat_ms = p->n_ms;
    p->next_s += p->beat_s;
}

static void on_tick(void *ctx, struct mt_engine *eng, double t_s)
{
    struct play *p = ctx;

    (void)eng;
    p->t = t_s;
    while (t_s >= p->next_s)
        end_beat(p);
    p->stop = told_to_stop || card_now(p->c) - p->begun > p->limit_s;
}

static void end_run(struct play *p, const char *kv, double began)
{
    double reached = p->t < p->seconds ? p->t : p->seconds, n = (double)p->n_ms;
    json_t *o;

    if (p->beat.frames[MT_OK] || p->beat_ms < p->n_ms || reached > p->next_s - p->beat_s)
        end_beat(p);
    o = json_pack("{s:s, s:s, s:I, s:I, s:b, s:I, s:I}", "type", "run", "kv", kv, "seed",
                  (json_int_t)p->o.engine.seed, "calls", (json_int_t)p->calls, "whole", !p->stop,
                  "refused", (json_int_t)p->refused, "pool_blocks",
                  (json_int_t)p->o.engine.pool_blocks);
    mt_json_set_real(o, "frame_s", p->frame_s);
    mt_json_set_real(o, "seconds", p->seconds);
    mt_json_set_real(o, "reached_s", reached);
    mt_json_set_real(o, "took_s", card_now(p->c) - began);
    put_counts(o, &p->all);
    put_latencies(o, p->ms, p->n_ms);
    if (p->n_ms) {
        mt_json_set_real(o, "encode_ms", p->encode_ms / n);
        mt_json_set_real(o, "prefill_ms", p->prefill_ms / n);
        mt_json_set_real(o, "decode_ms", p->decode_ms / n);
    }
    if (!isnan(p->stalled_s))
        mt_json_set_real(o, "first_stall_s", p->stalled_s);
    mt_json_line(stdout, o);
}

/* ---- a run ---- */

static int fail(const struct mt_err *e)
{
    mt_msg(MT_ERROR, "%s", e->text);
    return MT_EXIT_FAILED;
}

/* auto, a size, or blocks (400b). */
static int pool(struct play *p, struct mt_engine_opts *eo, struct mt_err *e)
{
    struct mt_kv_shape shape = mt_model_kv_shape(p->m, eo->block_tokens, eo->kv_type);
    size_t n = strlen(p->pool);
    char number[32];
    int64_t bytes;
    int rc = 0;

    snprintf(number, sizeof(number), "%.*s", n ? (int)n - 1 : 0, p->pool);
    if (n && p->pool[n - 1] == 'b' && mt_parse_i64(number, 1, INT32_MAX, &eo->pool_blocks) == 0)
        return 0;
    if (!strcmp(p->pool, "auto"))
        rc = mt_engine_pool_auto(p->m, eo, GPU_MEMORY, &bytes, e);
    else if (mt_parse_size(p->pool, &bytes) < 0)
        rc = mt_err_set(e, -EINVAL, "pool=%s: not auto, a size or blocks", p->pool);
    eo->pool_blocks = rc < 0 ? 0 : bytes / mt_kv_block_bytes(&shape);
    return rc;
}

static int run(struct play *p, const char *spec)
{
    const char *colon = strrchr(spec, ':');
    struct mt_engine_opts eo;
    struct mt_engine_stats st;
    struct mt_err e = {0};
    double began = card_now(p->c);
    int64_t seed = 1;
    char kv[64];

    snprintf(kv, sizeof(kv), "%.*s", (int)(colon ? colon - spec : (long)strlen(spec)), spec);
    mt_engine_defaults(&eo);
    if (mt_policy_parse(kv, &eo.policy, &e) < 0)
        return fail(&e);
    if (colon && mt_parse_i64(colon + 1, 0, INT64_MAX, &seed) < 0)
        return MT_EXIT_USAGE;
    eo.mode = MT_MODE_FREE;
    eo.answer_tokens = (int)p->answer;
    eo.step_tokens = mt_model_info(p->m)->step_rows;
    eo.max_sessions = (int)p->calls;
    eo.frame_ns = llround(1e9 * p->frame_s);
    eo.seed = (uint64_t)seed;
    if (pool(p, &eo, &e) < 0)
        return fail(&e);
    p->o = (struct mt_sim_opts){.model = p->m,
                                .sound = speak,
                                .session = &ASKED,
                                .engine = eo,
                                .sessions = p->calls,
                                .seconds = p->seconds,
                                .live = true,
                                .ctx = p,
                                .gap_s = gap_s,
                                .length_s = length_s,
                                .phase = phase,
                                .frame = on_frame,
                                .refused = on_refused,
                                .tick = on_tick,
                                .stop = &p->stop};
    p->beat_s = p->next_s = fmax(p->frame_s, p->seconds / BEATS);
    p->beat = p->all = (struct counts){0};
    p->n_ms = p->beat_ms = p->refused = 0;
    p->encode_ms = p->prefill_ms = p->decode_ms = p->t = 0;
    p->stalled_s = NAN;
    json_t *o =
        json_pack("{s:s, s:s, s:s, s:I, s:I}", "type", "case", "model", mt_model_info(p->m)->name,
                  "kv", kv, "seed", (json_int_t)seed, "calls", (json_int_t)p->calls);
    mt_json_line(stdout, o);
    if (mt_simulate(&p->o, &st, &e) < 0)
        return fail(&e);
    end_run(p, kv, began);
    return MT_EXIT_OK;
}

/* ---- words ---- */

static bool is(const char *word, const char *key, const char **value)
{
    size_t n = strlen(key);

    if (strncmp(word, key, n) != 0 || word[n] != '=')
        return false;
    *value = word + n + 1;
    return true;
}

static bool read_word(struct play *p, const char *word)
{
    const char *v;

    if (is(word, "model", &p->model) || is(word, "pool", &p->pool))
        return true;
    if (is(word, "calls", &v))
        return mt_parse_i64(v, 1, 4096, &p->calls) == 0;
    if (is(word, "answer", &v))
        return mt_parse_i64(v, 1, 256, &p->answer) == 0;
    if (is(word, "frame", &v))
        return mt_parse_double(v, 0.01, 60, &p->frame_s) == 0;
    if (is(word, "seconds", &v))
        return mt_parse_double(v, 0.01, 1e5, &p->seconds) == 0;
    if (is(word, "limit", &v))
        return mt_parse_double(v, 0, 1e5, &p->limit_s) == 0;
    if (is(word, "run", &v) && p->n_runs < RUNS_MAX) {
        p->run[p->n_runs++] = v;
        return true;
    }
    if (is(word, "clip", &v) && p->n_clips < CLIPS_MAX) {
        p->clip[p->n_clips++] = v;
        return true;
    }
    return false;
}

static int load(struct play *p, struct mt_err *e)
{
    for (int i = 0; i < p->n_clips; i++) {
        float *pcm, *more;
        int64_t n;
        int rc = mt_sound_load(p->clip[i], NULL, mt_model_info(p->m)->sample_rate_hz, CLIP_SAMPLES,
                               &pcm, &n, e);

        if (rc < 0)
            return rc;
        more = realloc(p->sound, (size_t)(p->n_sound + n) * sizeof(*more));
        card_must("memory", more ? 0 : -ENOMEM);
        p->sound = more;
        memcpy(p->sound + p->n_sound, pcm, (size_t)n * sizeof(*pcm));
        p->n_sound += n;
        free(pcm);
    }
    return 0;
}

int card_play(struct card *c, char **arg)
{
    struct play p = {.c = c, .calls = 1, .answer = 8, .frame_s = 2, .limit_s = 1e9};
    struct mt_model_opts mo = {.step_rows = c->tiny ? 256 : STEP_ROWS, .kv_type = MT_BF16};
    int status = MT_EXIT_OK;
    struct mt_err e = {0};

    for (; *arg; arg++)
        if (!read_word(&p, *arg))
            return MT_EXIT_USAGE;
    if (!p.model || !p.pool || !p.n_runs || !p.n_clips || !(p.seconds > 0))
        return MT_EXIT_USAGE;
    signal(SIGTERM, on_stop);
    signal(SIGINT, on_stop);
    mo.want_rows = p.calls < mo.step_rows ? (int)p.calls : mo.step_rows;
    p.begun = card_now(c);
    if (mt_model_open(&p.m, p.model, c->be, &mo, &e) < 0 || load(&p, &e) < 0)
        status = fail(&e);
    for (int i = 0; i < p.n_runs && status == MT_EXIT_OK && !p.stop; i++)
        status = run(&p, p.run[i]);
    mt_model_close(&p.m);
    free(p.sound);
    free(p.ms);
    return status;
}
