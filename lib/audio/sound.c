/*
 * sound.c: one open sound. Raw samples and plain WAV are read by our own streaming reader, from
 * files and pipes alike, with no more delay than the pipe has; everything else is libsndfile's,
 * from a seekable copy where it comes through a pipe. Channels are averaged into one.
 */
#include "audio/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLOCK = 4096 }; /* interleaved samples converted at a time; at least one frame */

/* Louder than any sound, even one that holds 32-bit integers as floats; it still fits every sum. */
#define LOUDEST 0x1p31F

struct mt_sound {
    struct mt_sound_info info;
    char *name;
    int fd, spool_fd; /* -1 when there is none (stdin is not ours to close) */
    struct mt_bytes bytes;
    enum mt_sample_type sample; /* of the plain reader */
    int64_t left;               /* bytes to come, INT64_MAX when not known */
    SNDFILE *sf;                /* NULL: the plain reader */
    struct mt_view view;
    int64_t done; /* frames read */
    float *block; /* interleaved */
    int64_t block_frames;
};

const struct mt_sound_info *mt_sound_info(const struct mt_sound *s)
{
    return &s->info;
}

void mt_sound_close(struct mt_sound **sp)
{
    struct mt_sound *s = *sp;

    *sp = NULL;
    if (!s)
        return;
    if (s->sf)
        sf_close(s->sf);
    if (s->spool_fd >= 0)
        close(s->spool_fd);
    if (s->fd > STDIN_FILENO)
        close(s->fd);
    free(s->bytes.buf);
    free(s->block);
    free(s->name);
    free(s);
}

static int open_plain(struct mt_sound *s, const struct mt_raw_format *format, int64_t bytes,
                      int64_t stated)
{
    int frame = mt_pcm_bytes(format->sample) * format->channels;

    s->sample = format->sample;
    s->left = bytes;
    s->info.rate_hz = format->rate_hz;
    s->info.channels = format->channels;
    if (format->sample != MT_F32LE && format->sample != MT_F64LE)
        s->info.bits = 8 * mt_pcm_bytes(format->sample);
    s->info.frames = s->bytes.regular ? bytes / frame : -1;
    s->info.stated = stated < 0 ? -1 : stated / frame;
    return 0;
}

static int refused(struct mt_sound *s, const struct mt_wav_header *wav, struct mt_err *e)
{
    char why[200];

    if (wav && sf_error(NULL) != SF_ERR_MALFORMED_FILE)
        return mt_err_set(
            e, -EINVAL,
            "%s: WAV encoding 0x%04x with %d bits is not supported (PCM, float, A-law, "
            "mu-law, 4-bit ADPCM and GSM are)",
            s->name, (unsigned)wav->tag, wav->bits);
    if (sf_error(NULL) == SF_ERR_UNRECOGNISED_FORMAT)
        return mt_err_set(e, -EINVAL,
                          "%s: not a sound; WAV, FLAC, Ogg, AIFF, MP3 or the like was expected "
                          "(bare samples need --raw)",
                          s->name);
    return mt_err_set(e, -EINVAL, "%s: %s", s->name, mt_sf_reason(NULL, why, sizeof(why)));
}

/* FLAC and ALAC are PCM in a smaller box. */
static int integer_bits(int format)
{
    switch (format & SF_FORMAT_SUBMASK) {
    case SF_FORMAT_PCM_S8:
    case SF_FORMAT_PCM_U8:
        return 8;
    case SF_FORMAT_PCM_16:
    case SF_FORMAT_ALAC_16:
        return 16;
    case SF_FORMAT_ALAC_20:
        return 20;
    case SF_FORMAT_PCM_24:
    case SF_FORMAT_ALAC_24:
        return 24;
    case SF_FORMAT_PCM_32:
    case SF_FORMAT_ALAC_32:
        return 32;
    default:
        return 0;
    }
}

static int open_sndfile(struct mt_sound *s, const struct mt_wav_header *wav, struct mt_err *e)
{
    struct stat st;
    SF_INFO info;
    int fd = s->fd;

    if (!s->bytes.regular) {
        int rc;

        if ((rc = mt_spool(&s->bytes, &s->spool_fd, e)) < 0)
            return rc;
        fd = s->spool_fd;
    }
    if (fstat(fd, &st) < 0)
        return mt_err_set(e, -errno, "%s: %s", s->name, strerror(errno));
    s->sf = mt_view_open(&s->view, fd, st.st_size, &info);
    if (!s->sf)
        return refused(s, wav, e);
    if (info.channels < 1 || info.channels > MT_CHANNELS_MAX || info.samplerate < 1 ||
        info.samplerate > MT_RATE_MAX)
        return mt_err_set(e, -EINVAL,
                          "%s: %d channels at %d Hz in the header; 1..%d at 1..%d Hz were expected",
                          s->name, info.channels, info.samplerate, MT_CHANNELS_MAX, MT_RATE_MAX);
    s->info.rate_hz = info.samplerate;
    s->info.channels = info.channels;
    s->info.bits = integer_bits(info.format);
    /* a FLAC made in a pipe doesn't know its length */
    s->info.frames = info.frames >= 0 && info.frames < SF_COUNT_MAX ? info.frames : -1;
    /* of the others libsndfile has cut the number to the file already, or it is an estimate */
    s->info.stated = (info.format & SF_FORMAT_TYPEMASK) == SF_FORMAT_FLAC ? s->info.frames : -1;
    return 0;
}

static int open_by_header(struct mt_sound *s, struct mt_err *e)
{
    struct mt_wav_header wav;
    const unsigned char *p;
    int64_t have = mt_bytes_need(&s->bytes, 12, e);
    int rc;

    if (have < 0)
        return (int)have;
    if (have == 0)
        return mt_err_set(e, -EINVAL, "%s: is empty, a sound was expected", s->name);
    p = s->bytes.buf;
    if (have < 4 ||
        (memcmp(p, "RIFF", 4) != 0 && memcmp(p, "RF64", 4) != 0 && memcmp(p, "BW64", 4) != 0))
        return open_sndfile(s, NULL, e);
    if (have == 12 && memcmp(p + 8, "WAVE", 4) != 0)
        return open_sndfile(s, NULL, e);
    if ((rc = mt_wav_header_read(&s->bytes, &wav, e)) < 0)
        return rc;
    return rc == 0 ? open_sndfile(s, &wav, e) : open_plain(s, &wav.format, wav.bytes, wav.stated);
}

/* Open, and learn whether it can be read from byte 0 at will. */
static int open_file(struct mt_sound *s, const char *path, struct mt_err *e)
{
    struct stat st;
    bool is_stdin = !strcmp(path, "-");
    int64_t size = -1;

    s->name = strdup(is_stdin ? "stdin" : path);
    if (!s->name)
        return mt_err_set(e, -ENOMEM, "%s: out of memory", path);
    s->fd = is_stdin ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (s->fd < 0 || fstat(s->fd, &st) < 0)
        return mt_err_set(e, -errno, "%s: %s", s->name, strerror(errno));
    if (S_ISDIR(st.st_mode))
        return mt_err_set(e, -EISDIR, "%s: is a directory, a sound file was expected", s->name);
    /* a file of size 0 may be one of /proc, which has bytes all the same: read it as a stream */
    if (S_ISREG(st.st_mode) && st.st_size > 0 && lseek(s->fd, 0, SEEK_CUR) == 0)
        size = st.st_size;
    if (mt_bytes_init(&s->bytes, s->fd, size, s->name) < 0)
        return mt_err_set(e, -ENOMEM, "%s: out of memory", s->name);
    return 0;
}

int mt_sound_open(struct mt_sound **out, const char *path, const struct mt_raw_format *raw,
                  struct mt_err *e)
{
    struct mt_sound *s = calloc(1, sizeof(*s));
    int rc;

    *out = NULL;
    if (!s)
        return mt_err_set(e, -ENOMEM, "%s: out of memory", path);
    s->fd = s->spool_fd = -1;
    if ((rc = open_file(s, path, e)) < 0)
        goto fail;
    rc = raw ? open_plain(s, raw, s->bytes.regular ? s->bytes.size : INT64_MAX, -1)
             : open_by_header(s, e);
    if (rc < 0)
        goto fail;
    s->block_frames = BLOCK / s->info.channels;
    s->block = malloc(sizeof(float) * (size_t)(s->block_frames * s->info.channels));
    if (!s->block) {
        rc = mt_err_set(e, -ENOMEM, "%s: out of memory", s->name);
        goto fail;
    }
    *out = s;
    return 0;
fail:
    mt_sound_close(&s);
    return rc;
}

/* Up to n frames into the block; waits for one, takes what has come, 0 at the end. */
static int64_t read_plain(struct mt_sound *s, int64_t n, struct mt_err *e)
{
    int frame = mt_pcm_bytes(s->sample) * s->info.channels;
    int64_t have;

    if (s->left < frame) /* part of a frame is no sample */
        return 0;
    have = mt_bytes_need(&s->bytes, (size_t)frame, e);
    if (have < 0)
        return have;
    have = (have < s->left ? have : s->left) / frame;
    if (n > have)
        n = have;
    mt_pcm_decode(s->sample, s->bytes.buf + s->bytes.pos, s->block, n * s->info.channels);
    s->bytes.pos += (size_t)(n * frame);
    if (s->left != INT64_MAX)
        s->left -= n * frame;
    return n;
}

static int64_t read_sndfile(struct mt_sound *s, int64_t n, struct mt_err *e)
{
    int64_t got = sf_readf_float(s->sf, s->block, n);

    /* a compressed file that was cut is read to the cut; damage before its end is an error */
    if (got <= 0 && sf_error(s->sf) != SF_ERR_NO_ERROR && s->view.pos < s->view.size) {
        char why[200];

        return mt_err_set(e, -EIO, "%s: damaged after %lld samples: %s", s->name,
                          (long long)s->done, mt_sf_reason(s->sf, why, sizeof(why)));
    }
    return got < 0 ? 0 : got;
}

/* The block's n frames to mono. A value that is no sound would poison all that follows it. */
static int mix(const struct mt_sound *s, int64_t n, float *out, struct mt_err *e)
{
    const float *in = s->block;
    int channels = s->info.channels;

    for (int64_t i = 0; i < n; i++, in += channels) {
        double sum = 0;

        for (int c = 0; c < channels; c++) {
            if (!(fabsf(in[c]) <= LOUDEST))
                return mt_err_set(e, -EINVAL, "%s: sample %lld of channel %d is %g, no sound",
                                  s->name, (long long)(s->done + i), c + 1, (double)in[c]);
            sum += (double)in[c];
        }
        out[i] = channels == 1 ? in[0] : (float)(sum / channels);
    }
    return 0;
}

int64_t mt_sound_read(struct mt_sound *s, float *out, int64_t n, struct mt_err *e)
{
    int64_t got;
    int rc;

    if (n <= 0)
        return 0;
    if (n > s->block_frames)
        n = s->block_frames;
    got = s->sf ? read_sndfile(s, n, e) : read_plain(s, n, e);
    if (got <= 0)
        return got;
    if ((rc = mix(s, got, out, e)) < 0)
        return rc;
    s->done += got;
    return got;
}

int mt_sound_short(const struct mt_sound *s, struct mt_err *out)
{
    if (s->done < s->info.stated)
        mt_err_set(out, -ENODATA, "%s: ends after %lld of the %lld samples in its header", s->name,
                   (long long)s->done, (long long)s->info.stated);
    else if (s->done == 0)
        mt_err_set(out, -ENODATA, "%s: holds not one sample", s->name);
    else
        return 0;
    return 1;
}
