/*
 * mel_ear.c: from the samples of a session to its mel frames. A frame of sound is complete with its
 * lookahead, so that its mel frames are those of the sound as a whole, however it is cut.
 */
#include "model/mel_ear.h"

#include <math.h>

int mt_mel_ear_init(struct mt_mel_ear *ear, struct mt_model *m, int frame_samples, int backlog,
                    struct mt_err *e)
{
    int rc = mt_ear_init(&ear->base, m, frame_samples, backlog, e);

    mt_mel_stream_init(&ear->stream);
    ear->running = -INFINITY;
    return rc;
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
