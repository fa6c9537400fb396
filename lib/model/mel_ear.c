/*
 * mel_ear.c: from the samples of a session to its mel frames. A frame of sound is complete with its
 * lookahead, so that its mel frames are those of the sound as a whole, however it is cut.
 */
#include "model/mel_ear.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

int mt_mel_ear_init(struct mt_mel_ear *ear, struct mt_model *m, int frame_samples, int backlog,
                    struct mt_err *e)
{
    static const float none = -INFINITY;
    int rc = mt_ear_init(&ear->base, m, frame_samples, backlog, e);

    mt_mel_stream_init(&ear->stream);
    if (rc < 0)
        return rc;
    if ((rc = m->be->ops->rows_new(m->be, &ear->running, 1, 1)) < 0)
        return mt_err_set(e, rc, "no memory for a session's audio");
    m->be->ops->rows_put(m->be, ear->running, &none, 1);
    return 0;
}

void mt_mel_ear_done(struct mt_mel_ear *ear)
{
    if (ear->running.data)
        ear->base.m->be->ops->rows_free(ear->base.m->be, &ear->running);
    mt_ear_done(&ear->base);
}

int64_t mt_mel_ear_bytes(const struct mt_model *m, int frame_samples, int backlog)
{
    return mt_ear_bytes(m, frame_samples, backlog) + m->be->ops->rows_bytes(m->be, 1, 1);
}

void mt_mel_ear_visit(struct mt_mel_ear *ear, struct mt_state_io *io)
{
    struct mt_backend *be = ear->base.m->be;
    float running = 0;

    mt_ear_base_visit(&ear->base, io);
    mt_mel_stream_visit(&ear->stream, io);
    if (!io->load)
        be->ops->rows_get(be, &running, ear->running, 1);
    mt_state_f32(io, "loudest mel", &running);
    if (io->load && mt_state_ok(io))
        be->ops->rows_put(be, ear->running, &running, 1);
}

int mt_mel_ear_next(const struct mt_mel_ear *ear)
{
    return (mt_ear_next_samples(&ear->base) + MT_MEL_HOP - 1) / MT_MEL_HOP;
}

/* ---- a pass ---- */

enum { MORE = MT_MEL_FFT - MT_MEL_HOP }; /* samples of a stretch beyond its hops */

int mt_mel_pass_init(struct mt_mel_pass *p, struct mt_backend *be, int bands, int spans, int frames,
                     int items, struct mt_err *e)
{
    int64_t samples = (int64_t)frames * MT_MEL_HOP + (int64_t)spans * MORE;
    int rc;

    *p = (struct mt_mel_pass){.be = be};
    p->span = calloc((size_t)spans, sizeof(*p->span));
    p->item = calloc((size_t)items, sizeof(*p->item));
    p->x = mt_alloc((size_t)samples, sizeof(*p->x));
    if (!p->span || !p->item || !p->x)
        return mt_err_set(e, -ENOMEM, "out of memory");
    if ((rc = be->ops->mel_new(be, &p->mels, bands)) < 0)
        return mt_err_set(e, rc, "no memory for %d mel bands", bands);
    return 0;
}

void mt_mel_pass_free(struct mt_mel_pass *p)
{
    if (p->mels)
        p->be->ops->mel_free(p->be, p->mels);
    free(p->span);
    free(p->item);
    free(p->x);
    *p = (struct mt_mel_pass){0};
}

/* The next n mel frames' samples, from those that wait. */
static void pull(struct mt_mel_ear *ear, float *x, int n)
{
    static const float silence[4 * MT_MEL_HOP];

    for (int got = 0; got < n;) {
        bool sound = ear->base.n > 0;
        int64_t used;

        got += mt_mel_push(&ear->stream, sound ? ear->base.pcm : silence,
                           sound ? ear->base.n : (int64_t)MT_COUNT(silence), false,
                           x + (int64_t)got * MT_MEL_HOP, n - got, &used);
        if (sound)
            mt_ear_consume(&ear->base, used);
    }
}

float *mt_mel_pass_sound(struct mt_mel_pass *p, int row, int n)
{
    float *x = p->x + (int64_t)p->frames * MT_MEL_HOP + (int64_t)p->spans * MORE;

    p->span[p->spans++] = (struct mt_mel_span){row, n, x};
    p->frames += n;
    return x;
}

struct mt_mel_clamp *mt_mel_pass_item(struct mt_mel_pass *p)
{
    return &p->item[p->items++];
}

void mt_mel_pass_add(struct mt_mel_pass *p, struct mt_mel_ear *ear, int row, int n)
{
    static const int running = 0;

    pull(ear, mt_mel_pass_sound(p, row, n), n);
    *mt_mel_pass_item(p) = (struct mt_mel_clamp){.cells = ear->running,
                                                 .loud = {row, n},
                                                 .beside = true,
                                                 .rows = {row, n},
                                                 .by = &running,
                                                 .n_by = 1};
}

void mt_mel_pass_rows(struct mt_mel_pass *p, struct mt_rows out)
{
    p->be->ops->log_mel(p->be, out, p->mels, p->span, p->spans);
    p->spans = p->frames = 0;
}

void mt_mel_pass_clamp(struct mt_mel_pass *p, struct mt_rows rows)
{
    p->be->ops->mel_clamp(p->be, rows, p->item, p->items);
    p->items = 0;
}

void mt_mel_pass_run(struct mt_mel_pass *p, struct mt_rows out)
{
    mt_mel_pass_rows(p, out);
    mt_mel_pass_clamp(p, out);
}

/* ---- clips ---- */

int mt_mel_clip_new(const struct mt_model *m, struct mt_mel *mel, const struct mt_clip_rule *rule,
                    const float *pcm, int64_t n, int64_t n_rows, float **frames, float **out,
                    struct mt_err *e)
{
    size_t n_frames = (size_t)mt_mel_clip_frames(rule->edge, n);
    int rc;

    *frames = *out = NULL;
    if (n > (int64_t)rule->max_s * MT_MEL_RATE)
        return mt_err_set(e, -E2BIG, "a clip of %.1f s: the model takes at most %d s at once",
                          (double)n / MT_MEL_RATE, rule->max_s);
    if (n_rows < 1)
        return mt_err_set(e, -EINVAL, "a clip of %lld samples is too short (at least %d)",
                          (long long)n, rule->least);
    *frames = malloc(mt_mul(mt_mul(n_frames, (size_t)rule->bands), sizeof(**frames)));
    *out = malloc(mt_mul(mt_mul((size_t)n_rows, (size_t)m->info.hidden), sizeof(**out)));
    rc = *frames && *out ? mt_mel_clip(mel, rule->edge, pcm, n, *frames) : -ENOMEM;
    if (rc == 0)
        return 0;
    free(*frames);
    free(*out);
    *frames = *out = NULL;
    return mt_err_set(e, rc, "no memory for a clip of %.1f s", (double)n / MT_MEL_RATE);
}
