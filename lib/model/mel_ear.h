/*
 * mel_ear.h: the ears whose front end is the log-mel: samples that wait become mel frames, a
 * stretch at a time, and behind the sound's end stands silence. What becomes of them is the
 * family's. The backend makes them, of many ears in one call. Internal to lib/model.
 */
#ifndef MT_MEL_EAR_H
#define MT_MEL_EAR_H

#include "model/family.h"

struct mt_mel_ear {
    struct mt_ear base; /* first */
    struct mt_mel_stream stream;
    struct mt_rows running; /* one number: the maximum of the log-mel so far */
};

/* As mt_ear_init; on failure mt_mel_ear_done all the same. */
int mt_mel_ear_init(struct mt_mel_ear *ear, struct mt_model *m, int frame_samples, int backlog,
                    struct mt_err *e);
void mt_mel_ear_done(struct mt_mel_ear *ear);
/* Its bytes but for its own struct. */
int64_t mt_mel_ear_bytes(const struct mt_model *m, int frame_samples, int backlog);
/* The base, and the front end. */
void mt_mel_ear_visit(struct mt_mel_ear *ear, struct mt_state_io *io);
/* Mel frames of the frame that comes next. */
int mt_mel_ear_next(const struct mt_mel_ear *ear);

/* The mel of a pass: stretches of sound are gathered, then all become rows. */
struct mt_mel_pass {
    struct mt_backend *be;
    struct mt_mels *mels;
    int spans, frames, items; /* gathered */
    struct mt_mel_span *span;
    struct mt_mel_clamp *item;
    float *x; /* their samples */
};
/*
 * For so many stretches, frames and items of mel_clamp at once. -ENOMEM with a line;
 * mt_mel_pass_free all the same.
 */
int mt_mel_pass_init(struct mt_mel_pass *p, struct mt_backend *be, int bands, int spans, int frames,
                     int items, struct mt_err *e);
void mt_mel_pass_free(struct mt_mel_pass *p);
/*
 * The next n mel frames of the ear's sound, to be rows row.. of the result, clamped by the maximum
 * so far. An ear's stretches follow each other.
 */
void mt_mel_pass_add(struct mt_mel_pass *p, struct mt_mel_ear *ear, int row, int n);
/* All that were gathered, into out; none are then. */
void mt_mel_pass_run(struct mt_mel_pass *p, struct mt_rows out);

/*
 * The same in its parts. Room for the samples of n frames, mt_mel_sees(n) of them, that become rows
 * row..; an item to be filled; raw rows; and the items.
 */
float *mt_mel_pass_sound(struct mt_mel_pass *p, int row, int n);
struct mt_mel_clamp *mt_mel_pass_item(struct mt_mel_pass *p);
void mt_mel_pass_rows(struct mt_mel_pass *p, struct mt_rows out);
void mt_mel_pass_clamp(struct mt_mel_pass *p, struct mt_rows rows);

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
