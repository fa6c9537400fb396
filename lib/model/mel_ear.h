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
/* The base, and the front end. */
void mt_mel_ear_visit(struct mt_mel_ear *ear, struct mt_state_io *io);
/* Mel frames of the frame that comes next. */
int mt_mel_ear_next(const struct mt_mel_ear *ear);
/* The next n raw mel frames of the session's sound, [n, bands], from the samples that wait. */
void mt_mel_ear_pull(struct mt_mel_ear *ear, struct mt_mel *mel, int bands, float *out, int n);

/* How a family takes whole clips. */
struct mt_clip_rule {
    enum mt_mel_edge edge;
    int bands, max_s;
    int least; /* samples that give a row */
};
/*
 * A clip's log-mel, scaled by its own maximum, *frames [mt_mel_clip_frames, bands], and *out with
 * room for the n_rows rows that it gives, both malloc'ed. -E2BIG (above max_s), -EINVAL (no row),
 * -ENOMEM; nothing is owned then.
 */
int mt_mel_clip_new(const struct mt_model *m, struct mt_mel *mel, const struct mt_clip_rule *rule,
                    const float *pcm, int64_t n, int64_t n_rows, float **frames, float **out,
                    struct mt_err *e);

#endif
