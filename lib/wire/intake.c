/*
 * intake.c: PCM bytes of a client into samples at the model's rate. A sample whose bytes are cut
 * between two pieces is carried over, so the samples don't depend on how the bytes arrived.
 */
#include "wire/intake.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

/* f32 sound beyond this is not sound: most likely integers that were never scaled. */
#define LOUDEST 1000.0f

int mt_intake_open(struct mt_intake *it, enum mt_pcm format, int from_hz, int to_hz,
                   struct mt_err *e)
{
    it->format = format;
    it->resampler = NULL;
    it->n_odd = 0;
    it->heard = it->n_out = 0;
    it->out = NULL;
    it->flushed = false;
    return from_hz == to_hz ? 0 : mt_resampler_new(&it->resampler, from_hz, to_hz, e);
}

void mt_intake_close(struct mt_intake *it)
{
    if (it->resampler)
        mt_resampler_free(&it->resampler);
}

int64_t mt_intake_lag(const struct mt_intake *it)
{
    return it->resampler ? mt_resampler_lag(it->resampler) : 0;
}

static size_t sample_size(const struct mt_intake *it)
{
    return it->format == MT_PCM_F32LE ? 4 : 2;
}

/* One sample's bytes, little-endian whatever the machine. */
static float decode(enum mt_pcm format, const unsigned char *b)
{
    uint32_t bits;
    float f;

    if (format == MT_PCM_S16LE)
        return (float)(int16_t)(uint16_t)(b[0] | b[1] << 8) / 32768.0f;
    bits = (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
    memcpy(&f, &bits, sizeof(f));
    return f;
}

int mt_intake_bytes(struct mt_intake *it, const unsigned char *bytes, size_t n, size_t *used,
                    struct mt_err *e)
{
    size_t size = sample_size(it), i = 0;
    int64_t count = 0;

    while (count < MT_INTAKE_SAMPLES && i < n) {
        const unsigned char *at = bytes + i;
        float f;

        if (it->n_odd > 0 || n - i < size) {
            it->odd[it->n_odd++] = bytes[i++];
            if (it->n_odd < size)
                continue;
            it->n_odd = 0;
            at = it->odd;
        } else {
            i += size;
        }
        f = decode(it->format, at);
        if (!(fabsf(f) <= LOUDEST))
            return mt_err_set(e, -EINVAL, "audio: sample %" PRId64 " is %g, expected -1..1",
                              it->heard + count, (double)f);
        it->in[count++] = f;
    }
    *used = i;
    it->heard += count;
    it->out = it->in;
    it->n_out = count;
    if (it->resampler && count > 0)
        return mt_resampler_push(it->resampler, it->in, count, &it->out, &it->n_out);
    return 0;
}

int mt_intake_flush(struct mt_intake *it, struct mt_err *e)
{
    it->flushed = true;
    if (it->n_odd > 0)
        return mt_err_set(e, -EPROTO, "audio: the last sample has %zu bytes of %zu", it->n_odd,
                          sample_size(it));
    if (!it->resampler)
        return 0;
    return mt_resampler_push(it->resampler, NULL, 0, &it->out, &it->n_out);
}

void mt_intake_taken(struct mt_intake *it, int64_t n)
{
    it->out += n;
    it->n_out -= n;
}
