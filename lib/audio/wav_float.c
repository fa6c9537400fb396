/*
 * wav_float.c: mono WAV of 32-bit floats out, to a file or to stdout: what the codec's samples are,
 * bit for bit. Into a file the header's sizes are set at the end; into a pipe it says that nobody
 * knows them (0xFFFFFFFF, which readers of streams take as: to the end).
 */
#include "audio/audio.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define HEADER_BYTES 58 /* RIFF, fmt of 18 bytes, fact, data */

struct mt_wav_float {
    FILE *f;
    bool own;
    long begin; /* of the header in the file, -1: a pipe */
    int rate_hz, failed;
    uint64_t written;
};

static unsigned char *put(unsigned char *p, uint32_t v, int bytes)
{
    for (int i = 0; i < bytes; i++)
        *p++ = (unsigned char)(v >> 8 * i);
    return p;
}

static unsigned char *word(unsigned char *p, const char *four)
{
    memcpy(p, four, 4);
    return p + 4;
}

static void header(const struct mt_wav_float *w, unsigned char out[HEADER_BYTES], bool known)
{
    uint64_t bytes = w->written * 4;
    bool fits = known && bytes < UINT32_MAX - HEADER_BYTES;
    unsigned char *p = out;

    p = put(word(p, "RIFF"), fits ? (uint32_t)bytes + HEADER_BYTES - 8 : UINT32_MAX, 4);
    p = put(word(word(p, "WAVE"), "fmt "), 18, 4);
    p = put(put(p, 3, 2), 1, 2); /* IEEE float, one channel */
    p = put(put(p, (uint32_t)w->rate_hz, 4), (uint32_t)w->rate_hz * 4, 4);
    p = put(put(put(p, 4, 2), 32, 2), 0, 2); /* bytes a frame, bits a sample, no more */
    p = put(put(word(p, "fact"), 4, 4), fits ? (uint32_t)w->written : UINT32_MAX, 4);
    put(word(p, "data"), fits ? (uint32_t)bytes : UINT32_MAX, 4);
}

static void write_header(struct mt_wav_float *w, bool known)
{
    unsigned char bytes[HEADER_BYTES];

    header(w, bytes, known);
    if (!w->failed)
        w->failed = mt_bytes_out(w->f, bytes, sizeof(bytes));
}

int mt_wav_float_create(struct mt_wav_float **out, const char *path, int rate_hz, struct mt_err *e)
{
    struct mt_wav_float *w = calloc(1, sizeof(*w));

    *out = NULL;
    if (!w)
        return mt_err_set(e, -ENOMEM, "out of memory");
    w->own = path != NULL;
    w->f = path ? fopen(path, "we") : stdout;
    w->rate_hz = rate_hz;
    if (!w->f) {
        int rc = mt_err_set(e, -errno, "%s: %s", path, strerror(errno));
        free(w);
        return rc;
    }
    w->begin = ftell(w->f);
    write_header(w, false);
    *out = w;
    return 0;
}

int mt_wav_float_write(struct mt_wav_float *w, const float *pcm, int64_t n)
{
    unsigned char block[4096];

    for (int64_t i = 0; i < n && !w->failed;) {
        unsigned char *p = block;

        for (; i < n && p < block + sizeof(block); i++) {
            uint32_t bits;

            memcpy(&bits, pcm + i, sizeof(bits));
            p = put(p, bits, 4);
        }
        w->failed = mt_bytes_out(w->f, block, (size_t)(p - block));
    }
    w->written += (uint64_t)n;
    return w->failed;
}

int mt_wav_float_close(struct mt_wav_float **wp)
{
    struct mt_wav_float *w = *wp;
    int rc;

    *wp = NULL;
    if (!w)
        return 0;
    if (!w->failed && w->begin >= 0 && fseek(w->f, w->begin, SEEK_SET) == 0) {
        write_header(w, true);
        if (fseek(w->f, 0, SEEK_END) != 0 && !w->failed)
            w->failed = -errno;
    }
    if (w->own && fclose(w->f) && !w->failed)
        w->failed = -errno;
    rc = w->failed;
    free(w);
    return rc;
}
