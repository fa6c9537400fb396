/*
 * wav.c: 16-bit mono WAV out, by libsndfile. Its header is brought up to date with each write, so
 * that the file is whole at any moment, even if the program is killed.
 */
#include "audio/audio.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sndfile.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Lengths in a WAV have 32 bits: at 24 kHz a day and 51 minutes. */
#define WAV_SAMPLES_MAX ((UINT32_MAX - 256) / 2)

struct mt_wav {
    SNDFILE *sf;
    int64_t written;
    int failed; /* the first error, repeated by every later call */
};

int mt_wav_create(struct mt_wav **out, const char *path, int rate_hz, struct mt_err *e)
{
    SF_INFO info = {
        .samplerate = rate_hz, .channels = 1, .format = SF_FORMAT_WAV | SF_FORMAT_PCM_16};
    struct mt_wav *w = calloc(1, sizeof(*w));
    int fd, rc;

    *out = NULL;
    if (!w)
        return mt_err_set(e, -ENOMEM, "%s: out of memory", path);
    if ((fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666)) < 0) {
        rc = mt_err_set(e, -errno, "%s: %s", path, strerror(errno));
        goto fail;
    }
    if (lseek(fd, 0, SEEK_END) < 0) {
        close(fd);
        rc = mt_err_set(e, -ESPIPE, "%s: a file was expected, not a pipe", path);
        goto fail;
    }
    w->sf = sf_open_fd(fd, SFM_WRITE, &info, SF_TRUE); /* closes fd even when it fails */
    if (!w->sf) {
        rc = mt_err_set(e, -EINVAL, "%s: no WAV of %d Hz: %s", path, rate_hz, sf_strerror(NULL));
        goto fail;
    }
    sf_command(w->sf, SFC_SET_UPDATE_HEADER_AUTO, NULL, SF_TRUE);
    *out = w;
    return 0;
fail:
    mt_wav_close(&w);
    return rc;
}

int mt_wav_write(struct mt_wav *w, const float *pcm, int64_t n)
{
    int16_t block[1024];

    if (!w->failed && n > (int64_t)WAV_SAMPLES_MAX - w->written)
        w->failed = -EFBIG;
    while (n > 0 && !w->failed) {
        int64_t part = n < (int64_t)MT_COUNT(block) ? n : (int64_t)MT_COUNT(block);

        for (int64_t i = 0; i < part; i++) {
            float v = pcm[i] * 32768.0F;

            v = v >= 32767.0F ? 32767.0F : v > -32768.0F ? v : isnan(v) ? 0.0F : -32768.0F;
            block[i] = (int16_t)lrintf(v);
        }
        errno = 0;
        if (sf_write_short(w->sf, block, part) != part)
            w->failed = errno ? -errno : -EIO;
        w->written += part;
        pcm += part;
        n -= part;
    }
    return w->failed;
}

int mt_wav_close(struct mt_wav **wp)
{
    struct mt_wav *w = *wp;
    int rc;

    *wp = NULL;
    if (!w)
        return 0;
    rc = w->failed;
    if (w->sf && sf_close(w->sf) != 0 && rc == 0)
        rc = -EIO;
    free(w);
    return rc;
}
