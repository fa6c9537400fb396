/*
 * wav_header.c: the header of a WAV read forward from a stream (RIFF, RF64, BW64, EXTENSIBLE).
 * libsndfile can't do this on a pipe: it takes placeholder lengths at their word, and RF64 fails.
 * Only plain PCM and float are taken here; the other encodings stay libsndfile's. All fields are
 * hostile: every length is checked against what is really there before it is used.
 */
#include "audio/internal.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

enum {
    HEAD_MAX = 1 << 20
}; /* a format must come within this; a pipe's bytes are kept until then */
enum { TAG_PCM = 1, TAG_FLOAT = 3, TAG_EXTENSIBLE = 0xFFFE };

static uint32_t le16(const unsigned char *p)
{
    return p[0] | (uint32_t)p[1] << 8;
}

static uint32_t le32(const unsigned char *p)
{
    return le16(p) | le16(p + 2) << 16;
}

static int64_t le63(const unsigned char *p)
{
    uint64_t v = le32(p) | (uint64_t)le32(p + 4) << 32;

    return v > INT64_MAX ? INT64_MAX : (int64_t)v;
}

static int64_t at(const struct mt_bytes *b)
{
    return b->base + (int64_t)b->pos;
}

/*
 * Does a length mean "not known"? 0xFFFFFFFF is ffmpeg's, 0x7FFFF000 rounded down to whole blocks
 * sox's (which goes on writing beyond it), 0x7FFFFFFF lame's; ds64 holds 0 or all ones. 0 is what
 * a writer that was killed or had a pipe left, unless the RIFF length says that more chunks
 * follow: then there are really no samples, and those chunks must not be heard as sound.
 */
static bool unknown(int64_t bytes, int64_t riff, int64_t start, int64_t block)
{
    if (bytes == 0)
        return riff == 0 || riff >= 0x7FFFF000 || riff + 8 <= start;
    return bytes == UINT32_MAX || bytes == INT32_MAX || bytes >= INT64_MAX / 2 ||
           bytes == 0x7FFFF000 / block * block;
}

/* 1: plain samples, 0: another encoding, or -errno. n bytes of the fmt chunk are at p. */
static int parse_fmt(const unsigned char *p, int64_t n, struct mt_wav_header *h, const char *name,
                     struct mt_err *e)
{
    static const unsigned char guid[14] = {0, 0, 0,    0, 0x10, 0,    0x80,
                                           0, 0, 0xAA, 0, 0x38, 0x9B, 0x71};
    uint32_t tag = le16(p), channels = le16(p + 2), rate = le32(p + 4);
    uint32_t block = le16(p + 12), bits = le16(p + 14), bytes;
    bool plain = true;

    if (tag == TAG_EXTENSIBLE && n >= 40) {
        plain = !memcmp(p + 26, guid, sizeof(guid));
        tag = plain ? le16(p + 24) : tag;
    }
    h->tag = (int)tag;
    h->bits = (int)bits;
    if (channels < 1 || channels > MT_CHANNELS_MAX)
        return mt_err_set(e, -EINVAL, "%s: %u channels in the header, 1..%d were expected", name,
                          channels, MT_CHANNELS_MAX);
    if (rate < 1 || rate > MT_RATE_MAX)
        return mt_err_set(e, -EINVAL, "%s: a rate of %u Hz in the header, 1..%d were expected",
                          name, rate, MT_RATE_MAX);
    h->format.rate_hz = (int)rate;
    h->format.channels = (int)channels;
    bytes = block / channels;
    if (!plain || block % channels != 0 || bits == 0 || (bits + 7) / 8 != bytes)
        return 0;
    if (tag == TAG_PCM && bytes <= 4) {
        static const enum mt_sample_type by_bytes[] = {MT_U8, MT_S16LE, MT_S24LE, MT_S32LE};

        h->format.sample = by_bytes[bytes - 1];
        return 1;
    }
    if (tag == TAG_FLOAT && (bits == 32 || bits == 64)) {
        h->format.sample = bits == 32 ? MT_F32LE : MT_F64LE;
        return 1;
    }
    return 0;
}

static int cut_short(const struct mt_bytes *b, const char *what, struct mt_err *e)
{
    return mt_err_set(e, -EINVAL, "%s: the WAV header is cut short at byte %lld, %s was expected",
                      b->name, (long long)at(b) + (long long)(b->len - b->pos), what);
}

/* The samples begin at b: how many bytes of them are there to come? */
static int64_t data_bytes(const struct mt_bytes *b, int64_t stated, int64_t riff, int64_t block)
{
    int64_t bytes = unknown(stated, riff, at(b), block) ? INT64_MAX : stated;

    if (b->regular && bytes > b->size - at(b))
        bytes = b->size - at(b);
    return bytes;
}

int mt_wav_header_read(struct mt_bytes *b, struct mt_wav_header *out, struct mt_err *e)
{
    bool has_fmt = false;
    int64_t have = mt_bytes_need(b, 12, e), riff, long_data = -1;
    const char *missing = "the format ('fmt ')";

    if (have < 0)
        return (int)have;
    if (have < 12)
        return cut_short(b, missing, e);
    *out = (struct mt_wav_header){.tag = 0};
    riff = le32(b->buf + b->pos + 4);
    b->keep = !b->regular;
    b->pos += 12;
    for (;;) {
        const unsigned char *p;
        int64_t size, whole;

        if ((have = mt_bytes_need(b, 8, e)) < 0)
            return (int)have;
        if (have < 8)
            return cut_short(b, missing, e);
        p = b->buf + b->pos;
        size = le32(p + 4);
        if (!memcmp(p, "data", 4)) {
            if (!has_fmt)
                return mt_err_set(e, -EINVAL,
                                  "%s: the samples at byte %lld come before their format", b->name,
                                  (long long)at(b));
            b->pos += 8;
            if (size == UINT32_MAX && long_data >= 0)
                size = long_data;
            const int64_t block = (int64_t)mt_pcm_bytes(out->format.sample) * out->format.channels;

            out->bytes = data_bytes(b, size, riff, block);
            /* nobody records 2 GiB by chance: writers into a pipe have many numbers for "more" */
            out->stated = unknown(size, riff, at(b), block) ||
                                  (size != long_data && size >= INT32_MAX - UINT16_MAX)
                              ? -1
                              : size;
            return 1;
        }
        b->pos += 8;
        whole = size + (size & 1);
        if (!memcmp(p, "fmt ", 4) && !has_fmt) {
            int64_t n = size < 40 ? size : 40;
            int plain;

            if (size < 16)
                return mt_err_set(e, -EINVAL,
                                  "%s: the format chunk at byte %lld has %lld bytes, at "
                                  "least 16 were expected",
                                  b->name, (long long)at(b) - 8, (long long)size);
            if ((have = mt_bytes_need(b, (size_t)n, e)) < 0)
                return (int)have;
            if (have < n)
                return cut_short(b, missing, e);
            if ((plain = parse_fmt(b->buf + b->pos, n, out, b->name, e)) <= 0)
                return plain;
            has_fmt = true;
            b->keep = false;
            missing = "the samples ('data')";
        } else if (!memcmp(p, "ds64", 4) && size >= 16) {
            if ((have = mt_bytes_need(b, 16, e)) < 0)
                return (int)have;
            if (have < 16)
                return cut_short(b, "the 64-bit lengths ('ds64')", e);
            riff = le63(b->buf + b->pos);
            long_data = le63(b->buf + b->pos + 8);
        }
        if (!has_fmt && at(b) + whole > HEAD_MAX)
            return mt_err_set(e, -EINVAL, "%s: no WAV format in the first %d bytes", b->name,
                              HEAD_MAX);
        if ((have = mt_bytes_skip(b, whole, e)) < 0)
            return (int)have;
        if (have < whole)
            return cut_short(b, missing, e);
    }
}

int64_t mt_wav_find_blank(int fd, int64_t size, uint32_t *bytes)
{
    unsigned char p[12];
    int64_t riff, pos = 12;

    if (pread(fd, p, 12, 0) != 12 || memcmp(p, "RIFF", 4) != 0 || memcmp(p + 8, "WAVE", 4) != 0)
        return -1;
    riff = le32(p + 4);
    while (pos + 8 < size && pread(fd, p, 8, pos) == 8) {
        int64_t n = le32(p + 4);

        if (!memcmp(p, "data", 4)) {
            if (n != 0 || !unknown(0, riff, pos + 8, 1))
                return -1;
            *bytes = size - pos - 8 < UINT32_MAX - 1 ? (uint32_t)(size - pos - 8) : UINT32_MAX - 1;
            return pos + 4;
        }
        pos += 8 + n + (n & 1);
    }
    return -1;
}
