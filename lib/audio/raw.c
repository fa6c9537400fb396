/*
 * raw.c: bare little-endian samples: their names (--raw FMT:RATE:CH) and their conversion to f32.
 * Read byte by byte, so alignment and the machine's byte order don't matter. The values are
 * libsndfile's, bit for bit: a sound is the same whichever of the two readers took it.
 */
#include "audio/internal.h"

#include <errno.h>
#include <string.h>

static const struct {
    const char *name;
    int bytes;
} formats[] = {
    [MT_S16LE] = {"s16le", 2}, [MT_F32LE] = {"f32le", 4}, [MT_U8] = {"u8", 1},
    [MT_S24LE] = {"s24le", 3}, [MT_S32LE] = {"s32le", 4}, [MT_F64LE] = {"f64le", 8},
};

int mt_pcm_bytes(enum mt_sample_type sample)
{
    return formats[sample].bytes;
}

int mt_raw_format_parse(const char *text, struct mt_raw_format *out, struct mt_err *e)
{
    char copy[64];
    char *rate, *channels;
    int64_t rate_hz, n;
    size_t i;

    if (strlen(text) >= sizeof(copy))
        goto shape;
    strcpy(copy, text);
    rate = strchr(copy, ':');
    channels = rate ? strchr(rate + 1, ':') : NULL;
    if (!channels)
        goto shape;
    *rate++ = '\0';
    *channels++ = '\0';
    for (i = 0; i < MT_COUNT(formats); i++)
        if (!strcmp(copy, formats[i].name))
            break;
    if (i == MT_COUNT(formats))
        return mt_err_set(e, -EINVAL,
                          "'%s': the sample format is one of u8, s16le, s24le, s32le, f32le, f64le",
                          text);
    if (mt_parse_i64(rate, 1, MT_RATE_MAX, &rate_hz) < 0)
        return mt_err_set(e, -EINVAL, "'%s': the rate is a number of Hz in 1..%d", text,
                          MT_RATE_MAX);
    if (mt_parse_i64(channels, 1, 64, &n) < 0)
        return mt_err_set(e, -EINVAL, "'%s': the channels are a number in 1..64", text);
    *out = (struct mt_raw_format){(enum mt_sample_type)i, (int)rate_hz, (int)n};
    return 0;
shape:
    return mt_err_set(e, -EINVAL, "'%.80s': FORMAT:RATE:CHANNELS was expected, as in s16le:16000:1",
                      text);
}

static uint32_t le32(const unsigned char *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

/* bits in the top of a word, as a signed integer; 24 and 16 bits come out exact. */
static float from_top(uint32_t word)
{
    return (float)(int32_t)word * 0x1p-31F;
}

void mt_pcm_decode(enum mt_sample_type sample, const unsigned char *src, float *out, int64_t n)
{
    switch (sample) {
    case MT_U8:
        for (int64_t i = 0; i < n; i++)
            out[i] = (float)(src[i] - 128) * 0x1p-7F;
        break;
    case MT_S16LE:
        for (int64_t i = 0; i < n; i++, src += 2)
            out[i] = from_top((uint32_t)src[0] << 16 | (uint32_t)src[1] << 24);
        break;
    case MT_S24LE:
        for (int64_t i = 0; i < n; i++, src += 3)
            out[i] =
                from_top((uint32_t)src[0] << 8 | (uint32_t)src[1] << 16 | (uint32_t)src[2] << 24);
        break;
    case MT_S32LE:
        for (int64_t i = 0; i < n; i++, src += 4)
            out[i] = from_top(le32(src));
        break;
    case MT_F32LE:
        for (int64_t i = 0; i < n; i++, src += 4) {
            uint32_t word = le32(src);

            memcpy(&out[i], &word, sizeof(word));
        }
        break;
    case MT_F64LE:
        for (int64_t i = 0; i < n; i++, src += 8) {
            uint64_t word = le32(src) | (uint64_t)le32(src + 4) << 32;
            double v;

            memcpy(&v, &word, sizeof(v));
            out[i] = (float)v;
        }
        break;
    }
}
