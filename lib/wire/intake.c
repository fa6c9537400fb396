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
    it->from_hz = from_hz;
    it->converter = NULL;
    it->n_odd = 0;
    it->heard = it->n_out = 0;
    it->out = NULL;
    it->flushed = false;
    return from_hz == to_hz ? 0 : mt_converter_new(&it->converter, from_hz, to_hz, e);
}

void mt_intake_visit(struct mt_intake *it, bool odd, struct mt_state_io *io)
{
    size_t none = 0, *n_odd = odd ? &it->n_odd : &none;
    float *held = it->in;

    mt_state_size(io, "bytes of a sample", n_odd, sizeof(it->odd) - 1);
    mt_state_bytes(io, "a sample's bytes", it->odd, sizeof(it->odd));
    mt_state_i64(io, "samples heard", &it->heard, 0, INT64_C(1) << 52);
    mt_state_bool(io, "end of the sound", &it->flushed);
    if (it->converter) {
        mt_converter_visit(it->converter, &it->out, &it->n_out, io);
        return;
    }
    mt_state_i64(io, "samples not taken", &it->n_out, 0, MT_INTAKE_SAMPLES);
    if (!mt_state_ok(io))
        return;
    if (!io->load)
        held = (float *)it->out;
    else
        it->out = it->in;
    mt_state_floats(io, "sample", held, (size_t)it->n_out);
}

void mt_intake_close(struct mt_intake *it)
{
    mt_converter_free(&it->converter);
}

int64_t mt_intake_lag(const struct mt_intake *it)
{
    return it->converter ? mt_converter_lag(it->converter) : 0;
}

static size_t sample_size(const struct mt_intake *it)
{
    return it->format == MT_PCM_F32LE ? 4 : 2;
}

/* Samples' bytes are little-endian whatever the machine; plain loops, which compilers vectorise. */
static void decode_s16(float *restrict out, const unsigned char *restrict b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = (float)(int16_t)(uint16_t)(b[2 * i] | b[2 * i + 1] << 8) / 32768.0f;
}

/* Returns the first sample that is no sound, n without. */
static int64_t decode_f32(float *restrict out, const unsigned char *restrict b, int64_t n)
{
    for (int64_t i = 0; i < n; i++, b += 4) {
        uint32_t bits =
            (uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;

        memcpy(&out[i], &bits, sizeof(bits));
        if (!(fabsf(out[i]) <= LOUDEST))
            return i;
    }
    return n;
}

/* n whole samples behind those in `in`. */
static int decode(struct mt_intake *it, const unsigned char *b, int64_t at, int64_t n,
                  struct mt_err *e)
{
    float *out = it->in + at;
    int64_t good = n;

    if (it->format == MT_PCM_S16LE)
        decode_s16(out, b, n);
    else
        good = decode_f32(out, b, n);
    if (good == n)
        return 0;
    return mt_err_set(e, -EINVAL, "audio: sample %" PRId64 " is %g, expected -1..1",
                      it->heard + at + good, (double)out[good]);
}

int mt_intake_bytes(struct mt_intake *it, const unsigned char *bytes, size_t n, size_t *used,
                    struct mt_err *e)
{
    size_t size = sample_size(it), i = 0;
    int64_t count = 0;
    int rc = 0;

    while (rc == 0 && count < MT_INTAKE_SAMPLES && i < n) {
        int64_t whole = (int64_t)((n - i) / size), room = MT_INTAKE_SAMPLES - count;
        const unsigned char *from = bytes + i;

        if (it->n_odd > 0 || whole == 0) {
            it->odd[it->n_odd++] = bytes[i++];
            if (it->n_odd < size)
                continue;
            it->n_odd = 0;
            from = it->odd;
            whole = 1;
        } else {
            whole = whole < room ? whole : room;
            i += (size_t)whole * size;
        }
        rc = decode(it, from, count, whole, e);
        count += whole;
    }
    if (rc < 0)
        return rc;
    *used = i;
    it->heard += count;
    it->out = it->in;
    it->n_out = count;
    if (it->converter && count > 0)
        return mt_converter_push(it->converter, it->in, count, &it->out, &it->n_out);
    return 0;
}

int mt_intake_flush(struct mt_intake *it, struct mt_err *e)
{
    it->flushed = true;
    if (it->n_odd > 0)
        return mt_err_set(e, -EPROTO, "audio: the last sample has %zu bytes of %zu", it->n_odd,
                          sample_size(it));
    if (!it->converter)
        return 0;
    return mt_converter_push(it->converter, NULL, 0, &it->out, &it->n_out);
}

void mt_intake_taken(struct mt_intake *it, int64_t n)
{
    it->out += n;
    it->n_out -= n;
}
