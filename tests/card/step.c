/*
 * step.c: what a step of decoding costs, with random weights of a released shape and a cache that
 * is full: a row of each session through all layers, its logits, and the draw of its next token by
 * the model's own rules, as if each session asked for sampling and had drawn 512 tokens before.
 *
 * Of a model that speaks in codes a step is a frame: behind the text token the depth transformer
 * makes the frame's codes, one codebook and one draw after the other ("main_us", "depth_us" say
 * which part costs what). Around it stands the codec, which a live call pays too: "frame" is all of
 * it, 80 ms of sound in and 80 ms out, through the same doors as the engine's.
 *
 * Not counted, as metronome does not run them: talkers and vocoders of the models that have some.
 */
#include "card.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "model/model.h"

enum { DRAWN = 512, WANT = 256, LEVEL_TOP_K = 250 };
/* As MiniCPM-o is sampled; the rules of its talk, or Moshi's, come on top. */
static const struct mt_sample ASKED = {.temperature = 0.7f, .top_k = 20, .top_p = 0.8f};
static const struct mt_sample ASKED_OF_CODES = {.temperature = 0.7f, .top_p = 1};
static const float LEVEL_TEMPERATURE = 0.8f;

struct decoding {
    struct card *c;
    struct mt_model *m;
    const struct mt_model_info *info;
    int n;
    struct card_calls calls;
    int32_t *ids, *drawn;
    int *want;
    struct mt_sample *params, *level;
    struct mt_audio_rows *audio;
    struct mt_ear **ear; /* one, or with codebooks one a session */
    int n_ears;
    struct mt_talk **talk;
    struct mt_rows codes; /* with codebooks: any row of codes, for every position */
    int32_t *frames;      /* what the depth transformer is fed: [n + 2][1 + codebooks] */
    int64_t *at;
    float *pcm; /* a frame of noise and one sample more for each ear */
    struct mt_rows logits;
    double part[3]; /* seconds in all */
    int turns;
};

static void *some(size_t n, size_t each)
{
    void *p = calloc(n, each);

    card_must("memory", p ? 0 : -ENOMEM);
    return p;
}

/* ---- a step ---- */

static void step_and_draw(struct decoding *d, int k)
{
    struct mt_step s = {.batch = d->calls.batch,
                        .ids = d->ids,
                        .want = d->want,
                        .n_want = d->n,
                        .audio = d->audio,
                        .n_audio = d->info->codebooks ? d->n : 0};

    card_must("a step", mt_model_step(d->m, d->calls.kv, &s, &d->logits));
    for (int i = 0; i < d->n; i++) {
        d->params[i] = d->info->codebooks ? ASKED_OF_CODES : ASKED;
        d->params[i].seed = (uint64_t)i;
        d->params[i].draw = (uint64_t)k;
        mt_talk_rules(d->talk[i], &d->params[i]);
    }
    d->c->be->ops->sample(d->c->be, d->logits, d->params, d->drawn, d->n);
    for (int i = 0; i < d->n; i++)
        if (d->drawn[i] < 0)
            card_must("a draw (logits are not numbers)", -EIO);
        else
            mt_talk_drawn(d->talk[i], d->drawn[i]);
}

/* One of the codebooks: drawn as the model draws it. */
static void draw_level(void *ctx, int k, struct mt_rows logits, int n)
{
    struct decoding *d = ctx;

    for (int i = 0; i < n; i++)
        d->level[i] = (struct mt_sample){.temperature = LEVEL_TEMPERATURE,
                                         .top_k = LEVEL_TOP_K,
                                         .top_p = 1,
                                         .seed = mt_mix64((uint64_t)i + (uint64_t)k),
                                         .draw = d->params[i].draw};
    d->c->be->ops->sample(d->c->be, logits, d->level, d->drawn, n);
}

/* At the same place again and again: contexts do not grow. */
static void step_once(void *arg, int k)
{
    struct decoding *d = arg;
    double t0 = card_now(d->c), t1;

    for (int i = 0; i < d->n;
         i++) /* any token: they differ, and so do the experts that they take */
        d->ids[i] = (int32_t)(mt_mix64((uint64_t)k * WANT + (uint64_t)i) % 1000);
    step_and_draw(d, k);
    t1 = card_now(d->c);
    if (d->info->codebooks)
        mt_model_teach_codes(d->m, d->frames, d->at, d->n, draw_level, d);
    d->part[0] += t1 - t0;
    d->part[1] += card_now(d->c) - t1;
    d->turns++;
}

/* ---- a frame of a model that speaks in codes ---- */

static void frame_once(void *arg, int k)
{
    struct decoding *d = arg;
    double t0 = card_now(d->c), t1, t2;

    for (int i = 0; i < d->n; i++)
        mt_ear_push(d->ear[i], d->pcm + i, d->info->beat_samples);
    card_must("the codec", mt_model_encode(d->m, d->ear, d->n));
    t1 = card_now(d->c);
    for (int i = 0; i < d->n; i++) {
        int rows, at;

        d->audio[i] = (struct mt_audio_rows){i, 1, mt_ear_rows(d->ear[i], &rows)};
        mt_talk_begin(d->talk[i], rows, &d->ids[i], &at);
    }
    step_and_draw(d, k);
    t2 = card_now(d->c);
    mt_model_speak(d->m, d->talk, d->params, d->n);
    d->part[0] += t1 - t0;
    d->part[1] += t2 - t1;
    d->part[2] += card_now(d->c) - t2;
    d->turns++;
}

/* ---- sessions ---- */

/* What each of them is beside its cache: what it hears with, and what it drew before. */
static void people_new(struct decoding *d)
{
    struct mt_err e = {0};
    int frame = d->info->beat_samples;

    d->n_ears = d->info->codebooks ? d->n : 1;
    d->ear = some((size_t)d->n_ears, sizeof(*d->ear));
    d->talk = some((size_t)d->n, sizeof(*d->talk));
    for (int i = 0; i < d->n_ears; i++)
        if (mt_ear_new(&d->ear[i], d->m, frame, 1, &e) < 0)
            goto fail;
    for (int i = 0; i < d->n; i++) {
        if (mt_talk_new(&d->talk[i], d->m, MT_MODE_FREE, NULL, d->ear[i % d->n_ears], &e) < 0)
            goto fail;
        for (int k = 0; k < DRAWN; k++)
            mt_talk_drawn(d->talk[i],
                          (int32_t)(mt_mix64((uint64_t)i * DRAWN + (uint64_t)k) % 1000));
    }
    if (!d->info->codebooks)
        return;
    d->pcm = some((size_t)(frame + d->n), sizeof(*d->pcm));
    for (int i = 0; i < frame + d->n; i++)
        d->pcm[i] = (float)(0.2 * mt_unit(mt_mix64((uint64_t)i)) - 0.1);
    return;
fail:
    mt_msg(MT_ERROR, "%s", e.text);
    exit(MT_EXIT_FAILED);
}

/* Every position has codes; which ones does not matter. */
static void codes_new(struct decoding *d)
{
    int streams = 1 + d->info->codebooks, columns = d->n + 2;

    d->codes = card_noise(d->c, d->n, d->info->hidden);
    for (int i = 0; i < d->n; i++)
        d->audio[i] = (struct mt_audio_rows){i, 1, mt_rows_from(d->codes, i)};
    d->frames = some((size_t)columns * (size_t)streams, sizeof(*d->frames));
    d->at = some((size_t)d->n, sizeof(*d->at));
    d->level = some((size_t)d->n, sizeof(*d->level));
    for (int i = 0; i < columns * streams; i++)
        d->frames[i] = (int32_t)(mt_mix64((uint64_t)i) % (uint64_t)d->info->code_bins);
    for (int i = 0; i < d->n; i++)
        d->at[i] = i;
}

static void decoding_new(struct decoding *d, struct card *c, struct mt_model *m, int n,
                         int64_t context)
{
    struct mt_kv_shape shape = mt_model_kv_shape(m, CARD_BLOCK, MT_BF16);
    int64_t left, all, token = mt_kv_block_bytes(&shape) / CARD_BLOCK;

    *d = (struct decoding){.c = c, .m = m, .info = mt_model_info(m), .n = n};
    d->ids = some((size_t)n, sizeof(*d->ids));
    d->drawn = some((size_t)n, sizeof(*d->drawn));
    d->want = some((size_t)n, sizeof(*d->want));
    d->params = some((size_t)n, sizeof(*d->params));
    d->audio = some((size_t)n, sizeof(*d->audio));
    for (int i = 0; i < n; i++)
        d->want[i] = i;
    people_new(d);
    if (d->info->codebooks)
        codes_new(d);
    /* As long contexts as fit, leaving a tenth. */
    if (c->be->ops->memory && c->be->ops->memory(c->be, &left, &all) == 0)
        while (context > CARD_BLOCK && n * (context + 2 * CARD_BLOCK) * token > left - all / 10)
            context /= 2;
    card_calls_new(&d->calls, c, shape, d->info->heads, n, context, 1);
}

static void decoding_free(struct decoding *d)
{
    card_calls_free(&d->calls);
    if (d->info->codebooks)
        card_rows_free(d->c, &d->codes);
    for (int i = 0; i < d->n; i++)
        mt_talk_free(&d->talk[i]);
    for (int i = 0; i < d->n_ears; i++)
        mt_ear_free(&d->ear[i]);
    free(d->ids);
    free(d->drawn);
    free(d->want);
    free(d->params);
    free(d->level);
    free(d->audio);
    free(d->ear);
    free(d->talk);
    free(d->frames);
    free(d->at);
    free(d->pcm);
}

/* ---- what is told ---- */

static void tell(struct decoding *d, const char *type, void (*fn)(void *, int),
                 const char *const *part)
{
    struct mt_kv_shape shape = d->calls.shape;
    struct card_time t;
    json_t *o;

    fn(d, 0); /* whatever grows has grown */
    memset(d->part, 0, sizeof(d->part));
    d->turns = 0;
    t = card_timed(d->c, fn, d, d->logits);
    o = json_pack("{s:s, s:s, s:i, s:I, s:I, s:I}", "type", type, "model", d->info->name,
                  "sessions", d->n, "context", (json_int_t)d->calls.context, "kv_bytes_token",
                  (json_int_t)(mt_kv_block_bytes(&shape) / CARD_BLOCK), "weight_bytes",
                  (json_int_t)d->info->weight_bytes);
    card_put_time(o, &t);
    for (int i = 0; part && part[i]; i++)
        mt_json_set_real(o, part[i], 1e6 * d->part[i] / d->turns);
    mt_json_line(stdout, o);
}

static void decode(struct card *c, struct mt_model *m, int n, int64_t context)
{
    static const char *const of_step[] = {"main_us", "depth_us", NULL};
    static const char *const of_frame[] = {"hear_us", "main_us", "speak_us", NULL};
    struct decoding d;

    decoding_new(&d, c, m, n, context);
    tell(&d, "step", step_once, d.info->codebooks ? of_step : NULL);
    if (d.info->codebooks)
        tell(&d, "frame", frame_once, of_frame);
    decoding_free(&d);
}

int card_step(struct card *c, char **arg)
{
    struct mt_model_opts mo = {.step_rows = 512, .want_rows = WANT, .kv_type = MT_BF16};
    const char *name = *arg++;
    struct mt_err e = {0};
    struct mt_model *m;
    double t = card_now(c);
    int64_t n;
    json_t *o;

    for (int i = 0; name && arg[i]; i++)
        if (mt_parse_i64(arg[i], 1, WANT, &n) < 0)
            name = NULL;
    if (!name || !*arg)
        return MT_EXIT_USAGE;
    if (mt_model_open(&m, name, c->be, &mo, &e) < 0) {
        mt_msg(MT_ERROR, "%s", e.text);
        return MT_EXIT_FAILED;
    }
    o = json_pack("{s:s, s:s, s:I}", "type", "open", "model", mt_model_info(m)->name,
                  "weight_bytes", (json_int_t)mt_model_info(m)->weight_bytes);
    mt_json_set_real(o, "seconds", card_now(c) - t);
    mt_json_line(stdout, o);
    for (; *arg; arg++) {
        mt_parse_i64(*arg, 1, WANT, &n);
        decode(c, m, (int)n, c->tiny ? 32 : 2048);
    }
    mt_model_close(&m);
    return MT_EXIT_OK;
}
