/*
 * cost.c: a family without weights. A token's text is one dot.
 */
#include "model/cost.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/family.h"

enum { VOCAB = 512, STOP = 300, WORD = '.' };

struct cost_backend {
    struct mt_backend be; /* first */
    double stop_p;
};

struct cost {
    struct mt_cost_model c;
    struct mt_clock *clock;
    struct cost_backend be;
    uint64_t n_steps;
};

/* ---- the backend: what the engine itself asks for ---- */

static int rows_new(struct mt_backend *be, struct mt_rows *out, int64_t n, int width)
{
    (void)be;
    *out = (struct mt_rows){calloc(mt_mul((size_t)n, (size_t)width), sizeof(float)), width, width};
    return out->data ? 0 : -ENOMEM;
}

static int64_t rows_bytes(const struct mt_backend *be, int64_t n, int width)
{
    (void)be;
    return n * width * (int64_t)sizeof(float);
}

static void rows_free(struct mt_backend *be, struct mt_rows *r)
{
    (void)be;
    free(r->data);
    *r = MT_NO_ROWS;
}

static int kv_new(struct mt_backend *be, struct mt_kv **out, const struct mt_kv_shape *s, int64_t n)
{
    (void)be;
    (void)s;
    (void)n;
    *out = malloc(1); /* a cache of no bytes, but not NULL */
    return *out ? 0 : -ENOMEM;
}

static void kv_free(struct mt_backend *be, struct mt_kv *kv)
{
    (void)be;
    free(kv);
}

static void sample(struct mt_backend *be, struct mt_rows logits, const struct mt_sample *params,
                   int32_t *ids, int n)
{
    const struct cost_backend *b = (const struct cost_backend *)be;

    (void)logits;
    for (int i = 0; i < n; i++) {
        uint64_t word = mt_mix64(mt_mix64(params[i].seed) + params[i].draw);
        ids[i] = mt_unit(word) < b->stop_p ? STOP : WORD;
    }
}

static void backend_free(struct mt_backend *be)
{
    (void)be; /* part of the model */
}

static const struct mt_ops ops = {
    .name = "cost",
    .free = backend_free,
    .rows_new = rows_new,
    .rows_free = rows_free,
    .rows_bytes = rows_bytes,
    .kv_new = kv_new,
    .kv_free = kv_free,
    .sample = sample,
};

/* ---- audio ---- */

static int ear_rows_max(const struct mt_model *m, int frame_samples)
{
    const struct cost *o = m->own;

    /* The encoders drop what is no whole row; 1e-6: 12.5 a second for 80 ms is one. */
    return (int)fmax(1, floor(o->c.audio_rows_s * frame_samples / o->c.sample_rate_hz + 1e-6));
}

static int state(const struct mt_model *m, int frame_samples, int backlog,
                 struct mt_state_kind out[MT_STATE_KINDS])
{
    (void)backlog; /* nobody hears the samples: they are counted, not kept */
    out[0] = (struct mt_state_kind){
        "audio", (int64_t)sizeof(struct mt_ear) +
                     rows_bytes(m->be, ear_rows_max(m, frame_samples), m->info.hidden)};
    return 1;
}

static int ear_new(struct mt_ear **out, struct mt_model *m, int frame_samples, int backlog,
                   struct mt_err *e)
{
    struct mt_ear *ear = calloc(1, sizeof(*ear));
    int rc = ear ? mt_ear_init_counting(ear, m, frame_samples, backlog, e)
                 : mt_err_set(e, -ENOMEM, "out of memory");

    *out = NULL;
    if (rc < 0 && ear)
        mt_ear_done(ear);
    if (rc < 0)
        free(ear);
    else
        *out = ear;
    return rc;
}

static void ear_free(struct mt_ear *ear)
{
    mt_ear_done(ear);
    free(ear);
}

static void ear_take(struct mt_ear *ear)
{
    int64_t n = mt_ear_next_samples(ear);

    mt_ear_consume(ear, n < ear->n ? n : ear->n);
    ear->taken++;
}

static void ear_skip(struct mt_ear *ear)
{
    ear_take(ear);
    ear->n_rows = 0;
}

static int encode(struct mt_model *m, struct mt_ear **ears, int n)
{
    for (int i = 0; i < n; i++) {
        ears[i]->n_rows = ear_rows_max(m, mt_ear_next_samples(ears[i]));
        ear_take(ears[i]);
    }
    return 0;
}

static int embed_clip(struct mt_model *m, const float *pcm, int64_t n, float **rows,
                      int64_t *n_rows, int64_t *mel_frames, struct mt_err *e)
{
    (void)m;
    (void)pcm;
    (void)n;
    (void)rows;
    (void)n_rows;
    (void)mel_frames;
    return mt_err_set(e, -ENOTSUP, "a cost model hears nothing");
}

/* ---- a step ---- */

static double gaussian(uint64_t word)
{
    double u = 1 - mt_unit(mt_mix64(word)),
           v = mt_unit(mt_mix64(word ^ UINT64_C(0x5bd1e9955bd1e995)));

    return sqrt(-2 * log(u)) * cos(2 * M_PI * v);
}

static double variation(const struct cost *o)
{
    uint64_t frame = o->n_steps / (uint64_t)o->c.steps, word = mt_mix64(o->c.seed) + 3 * frame;
    double f = 1;

    if (o->c.jitter > 0)
        f = fmax(0.1, 1 + o->c.jitter * gaussian(word));
    if (o->c.outlier_p > 0 && mt_unit(mt_mix64(word + 1)) < o->c.outlier_p)
        f *= o->c.outlier_x;
    return f;
}

static double step_s(const struct cost *o, const struct mt_batch *b)
{
    const struct mt_cost_model *c = &o->c;
    double resident = 0;

    for (int i = 0; i < b->n_runs && c->b1_s > 0; i++) {
        const struct mt_run *r = &b->runs[i];
        double held = (double)(r->index + r->n);
        if (r->view.window < INT64_MAX)
            held = fmin(held, (double)(r->view.window + r->view.sinks));
        resident += held;
    }
    return variation(o) * ((c->a_s + c->b_s * b->n_runs + c->b1_s * resident) / c->steps +
                           c->prefill_s * (b->n_rows - b->n_runs));
}

static int step(struct mt_model *m, struct mt_kv *kv, const struct mt_step *s,
                struct mt_rows *logits)
{
    struct cost *o = m->own;
    int64_t now = o->clock->now_ns(o->clock);

    (void)kv;
    o->clock->sleep_until_ns(o->clock, now + llround(1e9 * step_s(o, &s->batch)));
    o->n_steps++;
    *logits = MT_NO_ROWS;
    return 0;
}

/* ---- the model ---- */

static int talk_new(struct mt_talk **out, struct mt_model *m, enum mt_mode mode, const char *system,
                    struct mt_ear *ear, struct mt_err *e)
{
    const struct cost *o = m->own;
    struct mt_layout l = {.n_open = o->c.open_tokens, .n_before = o->c.turn_tokens};

    (void)system;
    (void)ear;
    l.open = calloc((size_t)l.n_open + 1, sizeof(*l.open));
    l.before = calloc((size_t)l.n_before + 1, sizeof(*l.before));
    if (mode == MT_MODE_TURN && o->c.answer_mean > 0) {
        l.stop[0] = STOP;
        l.n_stop = 1;
    }
    if (l.open && l.before)
        return mt_layout_talk(out, &l, e);
    mt_layout_free(&l);
    return mt_err_set(e, -ENOMEM, "out of memory");
}

static void close_model(struct mt_model *m)
{
    free(m->own);
    m->own = NULL;
}

static const struct mt_family family = {
    .close = close_model,
    .talk_new = talk_new,
    .ear_new = ear_new,
    .ear_free = ear_free,
    .ear_visit = mt_ear_base_visit,
    .state = state,
    .ear_rows_max = ear_rows_max,
    .ear_skip = ear_skip,
    .encode = encode,
    .embed_clip = embed_clip,
    .step = step,
};

static int check(const struct mt_cost_model *c, struct mt_err *e)
{
    const double times[] = {c->a_s,    c->b_s,       c->b1_s,      c->prefill_s,
                            c->jitter, c->outlier_p, c->outlier_x, c->answer_mean};

    for (size_t i = 0; i < MT_COUNT(times); i++)
        if (!(times[i] >= 0 && times[i] < 1e6))
            return mt_err_set(e, -EINVAL, "cost: a negative or absurd number");
    if (c->layers < 1 || c->kv_heads < 1 || c->head_dim < 1 || c->steps < 1 ||
        c->sample_rate_hz < 1 || c->open_tokens < 0 || c->turn_tokens < 0 || !(c->beat_s >= 0.01) ||
        !(c->audio_rows_s > 0))
        return mt_err_set(e, -EINVAL, "cost: not a model's shape");
    return 0;
}

int mt_model_open_cost(struct mt_model **out, const struct mt_cost_model *c, struct mt_clock *clock,
                       struct mt_err *e)
{
    static const struct mt_special special[] = {{"<|end|>", STOP}};
    struct mt_model *m = NULL;
    struct cost *o = NULL;
    int rc = check(c, e);

    *out = NULL;
    if (rc < 0)
        return rc;
    m = calloc(1, sizeof(*m));
    o = calloc(1, sizeof(*o));
    if (!m || !o) {
        free(m);
        free(o);
        return mt_err_set(e, -ENOMEM, "out of memory");
    }
    o->c = *c;
    o->clock = clock;
    o->be =
        (struct cost_backend){{.ops = &ops}, c->answer_mean > 0 ? fmin(1, 1 / c->answer_mean) : 0};
    m->own = o;
    m->family = &family;
    m->be = &o->be.be;
    m->synthetic = true;
    m->info = (struct mt_model_info){
        .vocab = VOCAB,
        .layers = c->layers,
        .heads = c->kv_heads,
        .kv_heads = c->kv_heads,
        .head_dim = c->head_dim,
        .hidden = 1,
        .max_positions = INT64_MAX,
        .sample_rate_hz = c->sample_rate_hz,
        .beat_samples = (int)lround(c->beat_s * c->sample_rate_hz),
        .frame_step = 1,
        .frame_min = 1,
        .audio_id = -1,
        .step_rows = INT_MAX, /* nothing is sized by them */
        .want_rows = INT_MAX,
    };
    snprintf(m->info.name, sizeof(m->info.name), "%s", c->name);
    if ((rc = mt_tokenizer_synth(&m->tokenizer, VOCAB, special, 1, e)) < 0) {
        mt_model_close(&m);
        return rc;
    }
    *out = m;
    return 0;
}
