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
    int rc = mt_ear_init(&ear->base, m, frame_samples, backlog, e);

    mt_mel_stream_init(&ear->stream);
    ear->running = -INFINITY;
    return rc;
}

void mt_mel_ear_visit(struct mt_mel_ear *ear, struct mt_state_io *io)
{
    mt_ear_base_visit(&ear->base, io);
    mt_mel_stream_visit(&ear->stream, io);
    mt_state_f32(io, "loudest mel", &ear->running);
}

int mt_mel_ear_next(const struct mt_mel_ear *ear)
{
    return (mt_ear_next_samples(&ear->base) + MT_MEL_HOP - 1) / MT_MEL_HOP;
}

void mt_mel_ear_pull(struct mt_mel_ear *ear, struct mt_mel *mel, int bands, float *out, int n)
{
    static const float silence[4 * MT_MEL_HOP];

    for (int got = 0; got < n;) {
        bool sound = ear->base.n > 0;
        int64_t used;
        int rows = mt_mel_push(mel, &ear->stream, sound ? ear->base.pcm : silence,
                               sound ? ear->base.n : (int64_t)MT_COUNT(silence), false,
                               out + (int64_t)got * bands, n - got, &used);
        if (sound)
            mt_ear_consume(&ear->base, used);
        got += rows;
    }
}

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
