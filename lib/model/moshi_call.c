/*
 * moshi_call.c: a live call with Moshi, full duplex: 80 ms of sound in, one step of the model, 80
 * ms of sound out. The ear is the codec's encoder, and a frame's only row carries all codes of a
 * step, the model's own of the last step among them. The talk feeds the last text token beside it,
 * and once the next one is drawn the depth transformer says the frame's codes, which the codec's
 * decoder turns into speech. The first frame is answered by silence: the last codebooks come a step
 * later.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "model/moshi.h"

/* As the authors sample where they sample: the text by what the session asked for. */
#define AUDIO_TEMPERATURE 0.8f
enum { AUDIO_TOP_K = 250, TEXT_TOP_K = 25 };

struct moshi_ear {
    struct mt_ear base;
    struct mt_mimi_state *codec;
    struct moshi_streams streams;
    int32_t input[MOSHI_STREAMS_MAX]; /* of the step that the last encoded frame begins */
};

struct moshi_talk {
    struct mt_talk talk;
    struct moshi_ear *ear;
    int32_t text; /* drawn last */
    int n_pcm;
    float *pcm; /* [samples of a frame] */
    struct moshi_frame frame;
};

/* Scratch of one batch of sessions. */
struct moshi_calls {
    int most;             /* sessions */
    int32_t *heard;       /* [most][codebooks] */
    int32_t *text, *said; /* [most], [most][codebooks] */
    int32_t *drawn;       /* [most] codes of a step */
    const float **in;
    float **out;
    struct mt_mimi_state **codec;
    struct moshi_talk **talk;
    int *row;
    struct mt_sample *params; /* of the text token of each */
    struct mt_sample *code_params;
    struct mt_rows h; /* [most, dim] rows of those that speak */
};

static struct moshi *moshi_of(const struct mt_model *m)
{
    return m->own;
}

/* ---- scratch ---- */

int moshi_calls_init(struct mt_model *m, struct mt_err *e)
{
    struct moshi *o = m->own;
    struct moshi_calls *c = calloc(1, sizeof(*c));
    int books = mt_mimi_codebooks(o->codec);
    size_t n = (size_t)m->opts.step_rows;

    o->calls = c;
    if (!c)
        return mt_err_set(e, -ENOMEM, "out of memory");
    c->most = m->opts.step_rows;
    c->heard = calloc(n * (size_t)books, sizeof(*c->heard));
    c->said = calloc(n * (size_t)books, sizeof(*c->said));
    c->text = calloc(n, sizeof(*c->text));
    c->drawn = calloc(n, sizeof(*c->drawn));
    c->in = calloc(n, sizeof(*c->in));
    c->out = calloc(n, sizeof(*c->out));
    c->codec = calloc(n, sizeof(*c->codec));
    c->talk = calloc(n, sizeof(*c->talk));
    c->row = calloc(n, sizeof(*c->row));
    c->params = calloc(n, sizeof(*c->params));
    c->code_params = calloc(n, sizeof(*c->code_params));
    if (!c->heard || !c->said || !c->text || !c->drawn || !c->in || !c->out || !c->codec ||
        !c->talk || !c->row || !c->params || !c->code_params)
        return mt_err_set(e, -ENOMEM, "out of memory");
    int rc = m->be->ops->rows_new(m->be, &c->h, m->opts.want_rows, o->cfg.main.dim);
    return rc < 0 ? mt_err_set(e, rc, "out of memory") : 0;
}

void moshi_calls_free(struct mt_model *m)
{
    struct moshi_calls *c = moshi_of(m)->calls;

    if (!c)
        return;
    if (c->h.data)
        m->be->ops->rows_free(m->be, &c->h);
    free(c->heard);
    free(c->said);
    free(c->text);
    free(c->drawn);
    free(c->in);
    free(c->out);
    free(c->codec);
    free(c->talk);
    free(c->row);
    free(c->params);
    free(c->code_params);
    free(c);
    moshi_of(m)->calls = NULL;
}

/* ---- hearing ---- */

int moshi_ear_rows_max(const struct mt_model *m, int frame_samples)
{
    (void)m;
    (void)frame_samples;
    return 1;
}

int moshi_ear_new(struct mt_ear **out, struct mt_model *m, int frame_samples, int backlog,
                  struct mt_err *e)
{
    struct moshi *o = m->own;
    struct moshi_ear *ear;
    int rc;

    *out = NULL;
    if (frame_samples != m->info.beat_samples)
        return mt_err_set(e, -EINVAL, "a frame of %.1f ms: the model's are %.1f ms",
                          1e3 * frame_samples / m->info.sample_rate_hz,
                          1e3 * m->info.beat_samples / m->info.sample_rate_hz);
    if (!(ear = calloc(1, sizeof(*ear))))
        return mt_err_set(e, -ENOMEM, "out of memory");
    rc = mt_ear_init(&ear->base, m, frame_samples, backlog, e);
    if (rc == 0)
        rc = mt_mimi_state_new(&ear->codec, o->codec, false, e);
    if (rc < 0) {
        moshi_ear_free(&ear->base);
        return rc;
    }
    moshi_streams_init(&ear->streams, &o->cfg);
    *out = &ear->base;
    return 0;
}

void moshi_ear_free(struct mt_ear *base)
{
    struct moshi_ear *ear = (struct moshi_ear *)base;

    mt_mimi_state_free(&ear->codec);
    mt_ear_done(base);
    free(ear);
}

void moshi_ear_visit(struct mt_ear *base, struct mt_state_io *io)
{
    struct moshi_ear *ear = (struct moshi_ear *)base;
    const struct moshi_config *c = ear->streams.cfg;

    mt_ear_base_visit(base, io);
    mt_mimi_state_visit(ear->codec, io);
    moshi_streams_visit(&ear->streams, io);
    mt_state_ids(io, "text token", ear->input, 1, 0, c->text_card);
    mt_state_ids(io, "code", ear->input + 1, (size_t)c->n_q, 0, c->card);
}

int moshi_state(const struct mt_model *m, int frame_samples, int backlog,
                struct mt_state_kind out[MT_STATE_KINDS])
{
    out[0] = (struct mt_state_kind){"audio", (int64_t)sizeof(struct moshi_ear) +
                                                 mt_ear_bytes(m, frame_samples, backlog)};
    out[1] = (struct mt_state_kind){"codec", mt_mimi_state_bytes(moshi_of(m)->codec)};
    return 2;
}

/* The next frame's samples; behind the end of a call stands silence. */
static const float *take_frame(struct mt_ear *ear)
{
    if (ear->n < ear->frame_samples)
        memset(ear->pcm + ear->n, 0, (size_t)(ear->frame_samples - ear->n) * sizeof(*ear->pcm));
    return ear->pcm;
}

/* Codes of the next frame of each ear. */
static void hear(struct moshi *o, struct mt_ear **ears, int n)
{
    struct moshi_calls *c = o->calls;

    for (int i = 0; i < n; i++) {
        c->codec[i] = ((struct moshi_ear *)ears[i])->codec;
        c->in[i] = take_frame(ears[i]);
    }
    mt_mimi_encode(o->codec, c->codec, c->in, n, c->heard);
    for (int i = 0; i < n; i++) {
        struct mt_ear *ear = ears[i];
        mt_ear_consume(ear, ear->n < ear->frame_samples ? ear->n : ear->frame_samples);
        ear->taken++;
    }
}

/* The codec hears it; the model doesn't, its streams stand still. */
void moshi_ear_skip(struct mt_ear *ear)
{
    hear(moshi_of(ear->m), &ear, 1);
    ear->n_rows = 0;
}

/* The rows of n frames that were heard: all at once, then each to its ear. */
static void embed(struct moshi *o, struct mt_ear **ears, int n)
{
    const struct mt_ops *op = o->main.be->ops;
    int books = mt_mimi_codebooks(o->codec), streams = 1 + o->cfg.n_q;

    for (int i = 0; i < n; i++) {
        struct moshi_ear *ear = (struct moshi_ear *)ears[i];

        o->pos[i] = ear->streams.step;
        moshi_streams_begin(&ear->streams, o->calls->heard + (int64_t)i * books, ear->input);
        memcpy(o->input + (int64_t)i * streams, ear->input, (size_t)streams * sizeof(*o->input));
    }
    moshi_embed_codes(o, o->main.x, o->input, o->pos, n);
    for (int i = 0; i < n; i++) {
        op->gather(o->main.be, ears[i]->rows, mt_rows_from(o->main.x, i), o->iota, 1);
        ears[i]->n_rows = 1;
    }
}

int moshi_encode(struct mt_model *m, struct mt_ear **ears, int n)
{
    struct moshi *o = m->own;
    int most = o->calls->most;

    for (int at = 0; at < n; at += most) {
        int some = n - at < most ? n - at : most;

        hear(o, ears + at, some);
        embed(o, ears + at, some);
    }
    return 0;
}

/* ---- the course of a call ---- */

static void talk_free(struct mt_talk *t)
{
    free(((struct moshi_talk *)t)->pcm);
    free(t);
}

static int64_t talk_bytes(const struct mt_talk *t)
{
    const struct moshi_talk *talk = (const struct moshi_talk *)t;

    return (int64_t)sizeof(*talk) + (int64_t)sizeof(float) * talk->ear->base.m->info.beat_samples;
}

static const int32_t *no_prompt(const struct mt_talk *t, int *n)
{
    (void)t;
    *n = 0;
    return NULL;
}

/* Text and sound share the frame's only position. */
static int no_marks(const struct mt_talk *t)
{
    (void)t;
    return 0;
}

static int one_draw(const struct mt_talk *t)
{
    (void)t;
    return 1;
}

static int begin(struct mt_talk *t, int audio_rows, int32_t *ids, int *audio_at)
{
    const struct moshi_talk *talk = (const struct moshi_talk *)t;

    (void)audio_rows;
    *audio_at = 0;
    ids[0] = talk->ear->input[0];
    return 1;
}

static void rules(const struct mt_talk *t, struct mt_sample *p)
{
    (void)t;
    if (p->temperature > 0 && p->top_k == 0)
        p->top_k = TEXT_TOP_K;
}

static struct mt_said drawn(struct mt_talk *t, int32_t token)
{
    struct moshi_talk *talk = (struct moshi_talk *)t;
    const struct moshi_config *c = talk->ear->streams.cfg;
    bool silent = token == c->pad_id || token == c->end_pad_id;

    talk->text = token;
    return (struct mt_said){.show = silent ? -1 : token, .end = true};
}

static void visit(struct mt_talk *t, const struct mt_model *m, struct mt_state_io *io)
{
    mt_state_ids(io, "text drawn last", &((struct moshi_talk *)t)->text, 1, 0, mt_model_last_id(m));
}

static const float *speech(const struct mt_talk *t, int *n)
{
    const struct moshi_talk *talk = (const struct moshi_talk *)t;

    *n = talk->n_pcm;
    return talk->pcm;
}

static const int32_t *codes(const struct mt_talk *t, int *n)
{
    const struct moshi_talk *talk = (const struct moshi_talk *)t;

    *n = talk->frame.whole ? 1 + talk->ear->streams.cfg->dep_q : 0;
    return talk->frame.whole ? talk->frame.tokens : NULL;
}

static const struct mt_talk_kind kind = {
    .free = talk_free,
    .bytes = talk_bytes,
    .prompt = no_prompt,
    .marks = no_marks,
    .draws = one_draw,
    .begin = begin,
    .rules = rules,
    .drawn = drawn,
    .visit = visit,
    .speech = speech,
    .codes = codes,
    .flows = true,
};

int moshi_talk_new(struct mt_talk **out, struct mt_model *m, enum mt_mode mode, const char *system,
                   struct mt_ear *ear, struct mt_err *e)
{
    struct moshi_talk *talk;

    (void)mode; /* it listens and speaks at every moment: there are no turns */
    if (system && *system)
        return mt_err_set(e, -ENOTSUP, "the model takes no system text");
    talk = calloc(1, sizeof(*talk));
    if (talk)
        talk->pcm = calloc((size_t)m->info.beat_samples, sizeof(*talk->pcm));
    if (!talk || !talk->pcm) {
        free(talk);
        return mt_err_set(e, -ENOMEM, "out of memory");
    }
    talk->talk.kind = &kind;
    talk->ear = (struct moshi_ear *)ear;
    *out = &talk->talk;
    return 0;
}

/* ---- speaking ---- */

/* Codebook k of each: draws of their own, so that a stream's don't depend on the others'. */
static void draw_codes(void *ctx, int k, struct mt_rows logits, int n)
{
    struct mt_model *m = ctx;
    struct moshi *o = m->own;
    struct moshi_calls *c = o->calls;

    for (int i = 0; i < n; i++) {
        const struct mt_sample *text = &c->params[i];
        c->code_params[i] = (struct mt_sample){
            .temperature = text->temperature > 0 ? AUDIO_TEMPERATURE : 0,
            .top_k = AUDIO_TOP_K,
            .top_p = 1,
            .seed = mt_mix64(text->seed + (uint64_t)k + 1),
            .draw = text->draw,
        };
    }
    m->be->ops->sample(m->be, logits, c->code_params, c->drawn, n);
    for (int i = 0; i < n; i++) /* what is no number is said as code 0 */
        o->codes[(int64_t)i * o->cfg.dep_q + k] = c->drawn[i] < 0 ? 0 : c->drawn[i];
}

/* The codes of those whose frame is whole, through the codec. */
static void decode(struct moshi *o, int n)
{
    struct moshi_calls *c = o->calls;
    int books = mt_mimi_codebooks(o->codec), made = o->cfg.dep_q, samples, whole = 0;

    samples = mt_mimi_frame_samples(o->codec);
    for (int i = 0; i < n; i++) {
        struct moshi_talk *talk = c->talk[i];
        const int32_t *codes = o->codes + (int64_t)i * made;

        talk->n_pcm = 0;
        talk->frame.whole =
            moshi_streams_end(&talk->ear->streams, talk->text, codes, talk->frame.tokens);
        if (!talk->frame.whole)
            continue;
        talk->n_pcm = samples;
        c->codec[whole] = talk->ear->codec;
        c->out[whole] = talk->pcm;
        memcpy(c->said + (int64_t)whole * books, talk->frame.tokens + 1,
               (size_t)books * sizeof(*c->said));
        whole++;
    }
    if (whole)
        mt_mimi_decode(o->codec, c->codec, c->said, whole, c->out);
}

void moshi_speak(struct mt_model *m, struct mt_talk **talks, const struct mt_sample *params, int n)
{
    struct moshi *o = m->own;
    struct moshi_calls *c = o->calls;
    int some = 0;

    for (int i = 0; i < n; i++) {
        if (!talks[i])
            continue;
        c->talk[some] = (struct moshi_talk *)talks[i];
        c->text[some] = c->talk[some]->text;
        c->params[some] = params[i];
        c->row[some++] = i;
    }
    if (some == 0)
        return;
    m->be->ops->gather(m->be, c->h, o->h, c->row, some);
    moshi_depth_run(&o->depth, c->h, c->text, o->codes, some, draw_codes, m);
    decode(o, some);
}
