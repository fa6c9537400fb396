/*
 * intake.h: private to lib/wire: one session's PCM on its way into the engine: bytes to samples,
 * and to the model's rate, a bounded piece at a time.
 */
#ifndef MT_WIRE_INTAKE_H
#define MT_WIRE_INTAKE_H

#include "wire/wire.h"

#define MT_INTAKE_SAMPLES 1024 /* of the client's, converted at once: less than a frame */

struct mt_intake {
    enum mt_pcm format;
    int from_hz;
    struct mt_converter *converter; /* NULL: the rates are equal */
    unsigned char odd[4];           /* a sample whose bytes came in two pieces */
    size_t n_odd;
    int64_t heard;    /* whole samples */
    const float *out; /* converted, and not yet taken by the engine */
    int64_t n_out;
    bool flushed;
    float in[MT_INTAKE_SAMPLES];
};

int mt_intake_open(struct mt_intake *it, enum mt_pcm format, int from_hz, int to_hz,
                   struct mt_err *e);
/*
 * What was heard and not taken, to memory or back, into one that was opened with the same format
 * and rates; the bytes of half a sample too, if `odd`.
 */
void mt_intake_visit(struct mt_intake *it, bool odd, struct mt_state_io *io);
void mt_intake_close(struct mt_intake *it);
/* Samples at the client's rate that must follow before a given moment is out. */
int64_t mt_intake_lag(const struct mt_intake *it);
/*
 * Convert some of n bytes when out is empty: *used says how many. -EINVAL for a sample that is no
 * sound (f32 that is not finite, or far outside -1..1), which would poison the session's features.
 */
int mt_intake_bytes(struct mt_intake *it, const unsigned char *bytes, size_t n, size_t *used,
                    struct mt_err *e);
/* The last sample came: out gets what the converter still held. -EPROTO if it came in part. */
int mt_intake_flush(struct mt_intake *it, struct mt_err *e);
/* The engine took n samples of out. */
void mt_intake_taken(struct mt_intake *it, int64_t n);

#endif
