/*
 * mel_ear.h: the ears whose front end is the log-mel: samples that wait become mel frames, a
 * stretch at a time, and behind the sound's end stands silence. What becomes of them is the
 * family's. Internal to lib/model.
 */
#ifndef MT_MEL_EAR_H
#define MT_MEL_EAR_H

#include "model/family.h"

struct mt_mel_ear {
    struct mt_ear base; /* first */
    struct mt_mel_stream stream;
    float running; /* maximum of the log-mel so far: for mt_mel_scale */
};

/* As mt_ear_init; on failure mt_ear_done(&ear->base) all the same. */
int mt_mel_ear_init(struct mt_mel_ear *ear, struct mt_model *m, int frame_samples, int backlog,
                    struct mt_err *e);
/* Mel frames of the frame that comes next. */
int mt_mel_ear_next(const struct mt_mel_ear *ear);
/* The next n raw mel frames of the session's sound, [n, bands], from the samples that wait. */
void mt_mel_ear_pull(struct mt_mel_ear *ear, struct mt_mel *mel, int bands, float *out, int n);

#endif
