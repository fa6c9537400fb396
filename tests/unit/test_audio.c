/*
 * test_audio.c: sounds in and out. Files are written by libsndfile or by hand, read back from the
 * file and through a pipe that a thread feeds in odd pieces, and compared sample by sample. Then
 * lengths that lie, live pipes, broken input, the WAV writer and the resampler.
 */
#include "audio/audio.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <sndfile.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "util.h"

static char dir[32];
static char path[64];

/* ---- helpers ---- */

struct feed {
    int fd;
    const unsigned char *data;
    size_t n;
    unsigned seed;
};

static void *feed_main(void *arg)
{
    struct feed *f = arg;
    size_t done = 0;

    while (done < f->n) {
        size_t piece = 1 + mt_mix64(f->seed++) % 9973;
        ssize_t put = write(f->fd, f->data + done, piece < f->n - done ? piece : f->n - done);

        if (put < 0)
            break; /* the reader has what it wants */
        done += (size_t)put;
    }
    close(f->fd);
    return NULL;
}

static unsigned char *slurp(const char *name, size_t *n)
{
    struct stat st;
    int fd = open(name, O_RDONLY);
    unsigned char *p;

    assert_true(fd >= 0 && fstat(fd, &st) == 0);
    p = malloc((size_t)st.st_size + 1);
    assert_int_equal(read(fd, p, (size_t)st.st_size), st.st_size);
    close(fd);
    *n = (size_t)st.st_size;
    return p;
}

static void spill(const char *name, const void *data, size_t n)
{
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0600);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, data, n), n);
    close(fd);
}

/* All of an open sound, asked for in odd pieces. Returns the count or an error. */
static int64_t drain(struct mt_sound *s, float **out, struct mt_err *e)
{
    int64_t n = 0, cap = 1 << 16, got;
    unsigned seed = 1;

    *out = malloc((size_t)cap * sizeof(float));
    do {
        int64_t piece = 1 + (int64_t)(mt_mix64(seed++) % 3001);

        if (n + piece > cap)
            *out = realloc(*out, (size_t)(cap *= 2) * sizeof(float));
        got = mt_sound_read(s, *out + n, piece, e);
        assert_true(got <= piece);
        n += got > 0 ? got : 0;
    } while (got > 0);
    return got < 0 ? got : n;
}

static int64_t read_file(const char *name, const struct mt_raw_format *raw, float **out,
                         struct mt_sound_info *info, struct mt_err *e)
{
    struct mt_sound *s;
    int64_t n;
    int rc = mt_sound_open(&s, name, raw, e);

    *out = NULL;
    if (rc < 0) {
        assert_null(s);
        return rc;
    }
    *info = *mt_sound_info(s);
    n = drain(s, out, e);
    mt_sound_close(&s);
    assert_null(s);
    return n;
}

/* The same bytes through a pipe. */
static int64_t read_pipe(const unsigned char *data, size_t n, const struct mt_raw_format *raw,
                         float **out, struct mt_sound_info *info, struct mt_err *e)
{
    struct feed f = {.data = data, .n = n, .seed = (unsigned)n};
    pthread_t thread;
    char name[32];
    int fds[2];
    int64_t got;

    assert_int_equal(pipe(fds), 0);
    f.fd = fds[1];
    assert_int_equal(pthread_create(&thread, NULL, feed_main, &f), 0);
    snprintf(name, sizeof(name), "/dev/fd/%d", fds[0]);
    got = read_file(name, raw, out, info, e);
    close(fds[0]);
    pthread_join(thread, NULL);
    return got;
}

/* Both ways at once: same count, same values. Frees nothing: *out is the caller's. */
static int64_t read_both(const void *data, size_t n, const struct mt_raw_format *raw, float **out,
                         struct mt_sound_info *info)
{
    struct mt_sound_info piped;
    struct mt_err e = {0};
    int64_t count, again;
    float *other;

    spill(path, data, n);
    count = read_file(path, raw, out, info, &e);
    if (count < 0)
        fail_msg("%s", e.text);
    again = read_pipe(data, n, raw, &other, &piped, &e);
    if (again < 0)
        fail_msg("%s", e.text);
    assert_int_equal(count, again);
    assert_memory_equal(*out, other, (size_t)count * sizeof(float));
    assert_int_equal(info->rate_hz, piped.rate_hz);
    assert_int_equal(info->channels, piped.channels);
    free(other);
    return count;
}

static float wave(int64_t i, int channel)
{
    return (float)(0.45 * sin(0.031 * (double)i * (channel + 1)) +
                   0.05 * (mt_unit(mt_mix64((uint64_t)(i * 64 + channel))) - 0.5));
}

/* ---- every format ---- */

/* step: the largest error a value may have; 0: a lossy encoding, compared with libsndfile only */
static const struct {
    int format, rate;
    double step;
    int more; /* frames that the encoding may append */
} encodings[] = {
    {SF_FORMAT_WAV | SF_FORMAT_PCM_U8, 11025, 0x1p-7, 0},
    {SF_FORMAT_WAV | SF_FORMAT_PCM_16, 8000, 0x1p-15, 0},
    {SF_FORMAT_WAV | SF_FORMAT_PCM_24, 44100, 0x1p-23, 0},
    {SF_FORMAT_WAV | SF_FORMAT_PCM_32, 192000, 0x1p-24, 0},
    {SF_FORMAT_WAV | SF_FORMAT_FLOAT, 16000, 0x1p-25, 0},
    {SF_FORMAT_WAV | SF_FORMAT_DOUBLE, 48000, 0x1p-25, 0},
    {SF_FORMAT_WAV | SF_FORMAT_ULAW, 8000, 0, 0},
    {SF_FORMAT_WAV | SF_FORMAT_ALAW, 8000, 0, 0},
    {SF_FORMAT_WAV | SF_FORMAT_IMA_ADPCM, 22050, 0, 4096},
    {SF_FORMAT_WAV | SF_FORMAT_MS_ADPCM, 22050, 0, 4096},
    {SF_FORMAT_WAV | SF_FORMAT_GSM610, 8000, 0, 640},
    {SF_FORMAT_WAV | SF_FORMAT_PCM_16 | SF_ENDIAN_BIG, 16000, 0x1p-15, 0},
    {SF_FORMAT_WAVEX | SF_FORMAT_PCM_16, 44100, 0x1p-15, 0},
    {SF_FORMAT_WAVEX | SF_FORMAT_PCM_24, 48000, 0x1p-23, 0},
    {SF_FORMAT_WAVEX | SF_FORMAT_FLOAT, 96000, 0x1p-25, 0},
    {SF_FORMAT_RF64 | SF_FORMAT_PCM_16, 16000, 0x1p-15, 0},
    {SF_FORMAT_RF64 | SF_FORMAT_FLOAT, 48000, 0x1p-25, 0},
    {SF_FORMAT_W64 | SF_FORMAT_PCM_16, 16000, 0x1p-15, 0},
    /* libsndfile counts the padding byte when it writes an odd chunk */
    {SF_FORMAT_AIFF | SF_FORMAT_PCM_S8, 8000, 0x1p-7, 1},
    {SF_FORMAT_AIFF | SF_FORMAT_PCM_16, 44100, 0x1p-15, 0},
    {SF_FORMAT_AIFF | SF_FORMAT_PCM_24, 48000, 0x1p-23, 0},
    {SF_FORMAT_AIFF | SF_FORMAT_FLOAT, 16000, 0x1p-25, 0},
    {SF_FORMAT_AU | SF_FORMAT_PCM_16, 16000, 0x1p-15, 0},
    {SF_FORMAT_AU | SF_FORMAT_DOUBLE, 16000, 0x1p-25, 0},
    {SF_FORMAT_CAF | SF_FORMAT_PCM_16, 44100, 0x1p-15, 0},
    {SF_FORMAT_CAF | SF_FORMAT_ALAC_16, 44100, 0x1p-15, 0},
    {SF_FORMAT_FLAC | SF_FORMAT_PCM_S8, 16000, 0x1p-7, 0},
    {SF_FORMAT_FLAC | SF_FORMAT_PCM_16, 44100, 0x1p-15, 0},
    {SF_FORMAT_FLAC | SF_FORMAT_PCM_24, 96000, 0x1p-23, 0},
    {SF_FORMAT_OGG | SF_FORMAT_VORBIS, 44100, 0, 0},
    {SF_FORMAT_OGG | SF_FORMAT_OPUS, 48000, 0, 0},
    {SF_FORMAT_OGG | SF_FORMAT_OPUS, 16000, 0, 0},
    {SF_FORMAT_MPEG | SF_FORMAT_MPEG_LAYER_III, 44100, 0, 4096},
    {SF_FORMAT_MPEG | SF_FORMAT_MPEG_LAYER_III, 16000, 0, 4096},
    {SF_FORMAT_NIST | SF_FORMAT_PCM_16, 16000, 0x1p-15, 0},
    {SF_FORMAT_VOC | SF_FORMAT_PCM_16, 16000, 0x1p-15, 0},
};

static void test_every_format(void **state)
{
    enum { FRAMES = 20011 };
    static const int channel_counts[] = {1, 2, 3, 5}; /* libvorbis leaks when it writes 6 */
    int tried = 0;

    (void)state;
    for (size_t k = 0; k < MT_COUNT(encodings); k++) {
        for (size_t c = 0; c < MT_COUNT(channel_counts); c++) {
            int channels = channel_counts[c];
            SF_INFO info = {.samplerate = encodings[k].rate,
                            .channels = channels,
                            .format = encodings[k].format};
            float *in = malloc(sizeof(float) * FRAMES * (size_t)channels), *want, *got;
            struct mt_sound_info ours;
            unsigned char *bytes;
            size_t n_bytes;
            int64_t n, n_want;
            SNDFILE *sf;

            if (!sf_format_check(&info)) { /* GSM is mono, for instance */
                assert_int_not_equal(channels, 1);
                free(in);
                continue;
            }
            for (int64_t i = 0; i < (int64_t)FRAMES * channels; i++)
                in[i] = wave(i / channels, (int)(i % channels));
            sf = sf_open(path, SFM_WRITE, &info);
            assert_non_null(sf);
            assert_int_equal(sf_writef_float(sf, in, FRAMES), FRAMES);
            sf_close(sf);
            info = (SF_INFO){.format = 0};
            sf = sf_open(path, SFM_READ, &info);
            assert_non_null(sf);
            want = malloc(sizeof(float) * (FRAMES + 8192) * (size_t)channels);
            n_want = sf_readf_float(sf, want, FRAMES + 8192);
            sf_close(sf);

            bytes = slurp(path, &n_bytes);
            n = read_both(bytes, n_bytes, NULL, &got, &ours);
            if (n != n_want || n < FRAMES || n > FRAMES + encodings[k].more)
                fail_msg("format %x, %d channels: %lld frames, libsndfile %lld, written %d",
                         encodings[k].format, channels, (long long)n, (long long)n_want, FRAMES);
            assert_int_equal(ours.channels, channels);
            assert_int_equal(ours.rate_hz, encodings[k].rate);
            assert_int_equal(ours.frames, n);
            for (int64_t i = 0; i < n; i++) {
                double sum = 0, written = 0;

                for (int j = 0; j < channels; j++) {
                    sum += (double)want[i * channels + j];
                    written += i < FRAMES ? (double)in[i * channels + j] : 0;
                }
                assert_true(got[i] == (float)(sum / channels));
                /* libsndfile writes 1.0 as 127 and reads 127 as 127 / 128: a step at full scale */
                if (encodings[k].step > 0 &&
                    fabs((double)got[i] - written / channels) > 1.5 * encodings[k].step)
                    fail_msg("format %x: sample %lld is %.9g, written as %.9g", encodings[k].format,
                             (long long)i, (double)got[i], written / channels);
            }
            tried++;
            free(in);
            free(want);
            free(got);
            free(bytes);
        }
    }
    assert_true(tried >= 100);
}

/* ---- WAV headers by hand ---- */

struct buf {
    unsigned char b[70000];
    size_t n;
};

static void put(struct buf *w, const void *p, size_t n)
{
    memcpy(w->b + w->n, p, n);
    w->n += n;
}

static void put_le(struct buf *w, uint64_t v, int bytes)
{
    for (int i = 0; i < bytes; i++)
        w->b[w->n++] = (unsigned char)(v >> 8 * i);
}

/* 16-bit mono 16 kHz unless told otherwise. */
static void put_head(struct buf *w, const char *riff, uint32_t riff_bytes)
{
    w->n = 0;
    put(w, riff, 4);
    put_le(w, riff_bytes, 4);
    put(w, "WAVE", 4);
}

static void put_fmt(struct buf *w, unsigned tag, unsigned channels, uint32_t rate, unsigned bits)
{
    put(w, "fmt ", 4);
    put_le(w, 16, 4);
    put_le(w, tag, 2);
    put_le(w, channels, 2);
    put_le(w, rate, 4);
    put_le(w, rate * channels * (bits / 8), 4);
    put_le(w, channels * (bits / 8), 2);
    put_le(w, bits, 2);
}

static void put_data(struct buf *w, uint32_t stated, int samples)
{
    put(w, "data", 4);
    put_le(w, stated, 4);
    for (int i = 0; i < samples; i++)
        put_le(w, (uint64_t)(i * 7 - 9000), 2);
}

static void expect_samples(const struct buf *w, int samples)
{
    struct mt_sound_info info;
    float *x;

    assert_int_equal(read_both(w->b, w->n, NULL, &x, &info), samples);
    assert_int_equal(info.frames, samples);
    for (int i = 0; i < samples; i++)
        assert_true(x[i] == (float)(i * 7 - 9000) / 32768);
    free(x);
}

static void test_lengths_that_lie(void **state)
{
    static const struct {
        uint32_t riff, data;
    } lies[] = {
        {0, 0},                   /* a writer that was killed, gstreamer */
        {36, 0},                  /* likewise: the header of an empty file */
        {UINT32_MAX, UINT32_MAX}, /* ffmpeg */
        {0x7FFFF024, 0x7FFFF000}, /* sox */
        {0x80000024, 0x80000000}, /* arecord */
        {0x7FFFFFFF, 0x7FFFFFFF}, /* lame */
        {0, UINT32_MAX},
        {UINT32_MAX, 0},
        {2036, 3000}, /* cut */
    };
    static struct buf w;

    (void)state;
    for (size_t i = 0; i < MT_COUNT(lies); i++) {
        put_head(&w, "RIFF", lies[i].riff);
        put_fmt(&w, 1, 1, 16000, 16);
        put_data(&w, lies[i].data, 1001);
        expect_samples(&w, 1001);
        w.b[w.n++] = 1; /* half a sample is no sample */
        expect_samples(&w, 1001);
    }
    for (int with_ds64 = 0; with_ds64 < 4; with_ds64++) {
        put_head(&w, with_ds64 & 1 ? "RF64" : "BW64", UINT32_MAX);
        if (with_ds64) {
            put(&w, "ds64", 4);
            put_le(&w, 28, 4);
            put_le(&w, with_ds64 == 3 ? 72 + 2000 : 0, 8);                          /* RIFF */
            put_le(&w, with_ds64 == 3 ? 2000 : with_ds64 == 2 ? UINT64_MAX : 0, 8); /* data */
            put_le(&w, 0, 8);
            put_le(&w, 0, 4);
        }
        put_fmt(&w, 1, 1, 16000, 16);
        put_data(&w, UINT32_MAX, 1000);
        if (with_ds64 == 3)
            put(&w, "LIST\4\0\0\0abcd", 12);
        expect_samples(&w, 1000);
    }
}

/* sox goes on beyond the 2 GB it announced: a sparse file stands for the 19 hours that takes. */
static void test_longer_than_sox_says(void **state)
{
    static struct buf w;
    struct mt_sound *s;
    struct mt_err e = {0};

    (void)state;
    for (unsigned channels = 1; channels <= 3; channels++) {
        uint32_t stated = 0x7FFFF000 / (2 * channels) * 2 * channels;

        put_head(&w, "RIFF", stated + 36);
        put_fmt(&w, 1, channels, 16000, 16);
        put_data(&w, stated, 0);
        spill(path, w.b, w.n);
        assert_int_equal(truncate(path, (off_t)w.n + 2 * channels * INT64_C(1500000000)), 0);
        if (mt_sound_open(&s, path, NULL, &e) < 0)
            fail_msg("%s", e.text);
        assert_int_equal(mt_sound_info(s)->frames, 1500000000);
        mt_sound_close(&s);
    }
    spill(path, "", 0);
}

static void test_no_sample_is_invented(void **state)
{
    static struct buf w;

    (void)state;
    /* a chunk behind the samples isn't sound, nor is one of odd length before them */
    put_head(&w, "RIFF", 12 + 24 + 8 + 14 + 200 + 12 - 8);
    put(&w, "junk\5\0\0\0abcde\0", 14);
    put_fmt(&w, 1, 1, 16000, 16);
    put_data(&w, 200, 100);
    put(&w, "LIST\4\0\0\0abcd", 12);
    expect_samples(&w, 100);
    /* no samples at all, and a chunk behind: the RIFF length knows about it */
    put_head(&w, "RIFF", 36 + 12);
    put_fmt(&w, 1, 1, 16000, 16);
    put_data(&w, 0, 0);
    put(&w, "LIST\4\0\0\0abcd", 12);
    expect_samples(&w, 0);
    put_head(&w, "RIFF", 36);
    put_fmt(&w, 1, 1, 16000, 16);
    put_data(&w, 0, 0);
    expect_samples(&w, 0);
}

/* libsndfile reads such a file as empty; we fill in the length on the way. */
static void test_blank_length_of_other_encodings(void **state)
{
    static struct buf w;
    struct mt_sound_info info;
    float *x;

    (void)state;
    put_head(&w, "RIFF", 0);
    put_fmt(&w, 7, 1, 8000, 8); /* mu-law */
    put_data(&w, 0, 500);
    assert_int_equal(read_both(w.b, w.n, NULL, &x, &info), 1000);
    assert_true(x[0] != 0);
    free(x);
}

/* A FLAC that was made in a pipe states no length. */
static void test_flac_without_length(void **state)
{
    SF_INFO info = {
        .samplerate = 16000, .channels = 1, .format = SF_FORMAT_FLAC | SF_FORMAT_PCM_16};
    SNDFILE *sf = sf_open(path, SFM_WRITE, &info);
    struct mt_sound_info ours;
    unsigned char *bytes;
    size_t n_bytes;
    float *x = calloc(50001, sizeof(float));

    (void)state;
    for (int i = 0; i < 50001; i++)
        x[i] = wave(i, 0);
    assert_int_equal(sf_write_float(sf, x, 50001), 50001);
    sf_close(sf);
    free(x);
    bytes = slurp(path, &n_bytes);
    /* STREAMINFO: the 36 bits of the length end 26 bytes into the file */
    bytes[21] &= 0xF0;
    memset(bytes + 22, 0, 4);
    assert_int_equal(read_both(bytes, n_bytes, NULL, &x, &ours), 50001);
    assert_int_equal(ours.frames, -1);
    free(x);
    free(bytes);
}

/* libsndfile guesses the length of an MP3 without a Xing header, and stops there. */
static void test_mp3_without_length(void **state)
{
    enum { FRAMES = 300000 };
    SF_INFO info = {
        .samplerate = 16000, .channels = 1, .format = SF_FORMAT_MPEG | SF_FORMAT_MPEG_LAYER_III};
    SNDFILE *sf = sf_open(path, SFM_WRITE, &info);
    int mode = SF_BITRATE_MODE_VARIABLE;
    struct mt_sound_info ours;
    unsigned char *bytes;
    size_t n_bytes, second = 4;
    float *x = calloc(FRAMES, sizeof(float));
    int64_t n;

    (void)state;
    /* nearly silent, so that the first frames are short ones, then noise */
    for (int i = 0; i < FRAMES; i++)
        x[i] = (i < FRAMES / 2 ? 0.001F : 0.9F) * (float)(mt_unit(mt_mix64((uint64_t)i)) - 0.5);
    sf_command(sf, SFC_SET_BITRATE_MODE, &mode, sizeof(mode)); /* "Xing" below shows that it did */
    assert_int_equal(sf_write_float(sf, x, FRAMES), FRAMES);
    sf_close(sf);
    free(x);
    bytes = slurp(path, &n_bytes);
    assert_true(bytes[0] == 0xFF && memmem(bytes, 200, "Xing", 4));
    n = read_both(bytes, n_bytes, NULL, &x, &ours);
    assert_int_equal(n, FRAMES);
    assert_int_equal(ours.frames, FRAMES);
    free(x);
    while (bytes[second] != bytes[0] || bytes[second + 1] != bytes[1])
        second++;
    n = read_both(bytes + second, n_bytes - second, NULL, &x, &ours);
    assert_true(n >= FRAMES && n < FRAMES + 4096);
    assert_int_equal(ours.frames, -1);
    free(x);
    free(bytes);
}

/* ---- raw ---- */

static void test_raw(void **state)
{
    static const struct {
        const char *name;
        int bytes;
    } formats[] = {{"u8", 1}, {"s16le", 2}, {"s24le", 3}, {"s32le", 4}, {"f32le", 4}, {"f64le", 8}};
    static const char *const wrong[] = {"",
                                        "s16le",
                                        "s16le:16000",
                                        "s16le:16000:0",
                                        "s16le:16000:65",
                                        "s16le:0:1",
                                        "s16le:768001:1",
                                        "s16be:16000:1",
                                        "s16le:16000:1:1",
                                        "s16le:16k:1",
                                        "S16LE:16000:1 ",
                                        "s16le:16000:1xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
                                        "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"};

    (void)state;
    for (size_t k = 0; k < MT_COUNT(formats); k++) {
        struct mt_raw_format f;
        struct mt_sound_info info;
        unsigned char data[10000];
        char text[64];
        float *x;

        snprintf(text, sizeof(text), "%s:22050:2", formats[k].name);
        assert_int_equal(mt_raw_format_parse(text, &f, NULL), 0);
        assert_int_equal(f.rate_hz, 22050);
        assert_int_equal(f.channels, 2);
        for (size_t i = 0; i < sizeof(data); i++)
            data[i] = (unsigned char)mt_mix64(i);
        /* full-scale positive and negative in both channels, and no random float that is no sound
         */
        if (k >= 4) {
            float v[2500];
            double d[1250];

            for (int i = 0; i < 2500; i++)
                v[i] = wave(i, 0);
            for (int i = 0; i < 1250; i++)
                d[i] = (double)v[i];
            memcpy(data, k == 4 ? (void *)v : (void *)d, sizeof(data));
        }
        assert_int_equal(read_both(data, sizeof(data), &f, &x, &info),
                         sizeof(data) / (2 * (size_t)formats[k].bytes));
        if (k == 0)
            assert_true(x[0] == ((float)data[0] + (float)data[1] - 256) / 256);
        if (k == 1)
            assert_true(x[1] == ((float)(int16_t)(data[4] | data[5] << 8) +
                                 (float)(int16_t)(data[6] | data[7] << 8)) /
                                    65536);
        if (k >= 4)
            assert_true(x[7] == (float)(((double)wave(14, 0) + (double)wave(15, 0)) / 2));
        free(x);
    }
    for (size_t k = 0; k < MT_COUNT(wrong); k++) {
        struct mt_raw_format f;
        struct mt_err e = {0};

        assert_int_equal(mt_raw_format_parse(wrong[k], &f, &e), -EINVAL);
        assert_true(strlen(e.text) > 10);
    }
}

/* ---- live pipes ---- */

/* What was written can be read before the end is known; SIGALRM kills the test if it waits. */
static void test_live_pipe(void **state)
{
    static struct buf w;

    (void)state;
    for (int raw = 0; raw < 2; raw++) {
        struct mt_raw_format f = {MT_S16LE, 16000, 1};
        struct mt_sound *s;
        struct mt_err e = {0};
        char name[32];
        float x[4000];
        int fds[2];

        assert_int_equal(pipe(fds), 0);
        snprintf(name, sizeof(name), "/dev/fd/%d", fds[0]);
        put_head(&w, "RIFF", UINT32_MAX);
        put_fmt(&w, 1, 1, 16000, 16);
        put_data(&w, UINT32_MAX, 100);
        if (raw)
            memmove(w.b, w.b + 44, w.n -= 44);
        alarm(20);
        assert_int_equal(write(fds[1], w.b, w.n), w.n);
        if (mt_sound_open(&s, name, raw ? &f : NULL, &e) < 0)
            fail_msg("%s", e.text);
        assert_int_equal(mt_sound_info(s)->frames, -1);
        assert_int_equal(mt_sound_read(s, x, 4000, &e), 100);
        for (int i = 0; i < 5; i++) {
            assert_int_equal(write(fds[1], "\1\2\3\4\5\6", 6), 6);
            assert_int_equal(mt_sound_read(s, x, 4000, &e), 3);
        }
        close(fds[1]);
        assert_int_equal(mt_sound_read(s, x, 4000, &e), 0);
        assert_int_equal(mt_sound_read(s, x, 4000, &e), 0);
        alarm(0);
        mt_sound_close(&s);
        close(fds[0]);
    }
}

/* A length that is known ends the sound, even while the writer still holds the pipe. */
static void test_pipe_left_open(void **state)
{
    static struct buf w;
    struct mt_sound *s;
    struct mt_err e = {0};
    char name[32];
    float x[400];
    int fds[2];

    (void)state;
    assert_int_equal(pipe(fds), 0);
    snprintf(name, sizeof(name), "/dev/fd/%d", fds[0]);
    put_head(&w, "RIFF", 236);
    put_fmt(&w, 1, 1, 16000, 16);
    put_data(&w, 200, 100);
    alarm(20);
    assert_int_equal(write(fds[1], w.b, w.n), w.n);
    assert_int_equal(mt_sound_open(&s, name, NULL, &e), 0);
    assert_int_equal(mt_sound_read(s, x, 400, &e), 100);
    assert_int_equal(mt_sound_read(s, x, 400, &e), 0);
    alarm(0);
    mt_sound_close(&s);
    close(fds[0]);
    close(fds[1]);
}

static void test_stdin(void **state)
{
    static struct buf w;
    struct mt_sound_info info;
    struct mt_err e = {0};
    int saved = dup(STDIN_FILENO), fd;
    float *x;

    (void)state;
    put_head(&w, "RIFF", 0);
    put_fmt(&w, 1, 1, 16000, 16);
    put_data(&w, 0, 300);
    spill(path, w.b, w.n);
    fd = open(path, O_RDONLY);
    assert_true(dup2(fd, STDIN_FILENO) == STDIN_FILENO);
    assert_int_equal(read_file("-", NULL, &x, &info, &e), 300);
    free(x);
    /* now it stands at its end: nothing comes */
    assert_int_equal(read_file("-", NULL, &x, &info, &e), -EINVAL);
    assert_string_equal(e.text, "stdin: is empty, a sound was expected");
    /* a script has already read something: the sound begins here */
    assert_int_equal(lseek(STDIN_FILENO, 0, SEEK_SET), 0);
    memmove(w.b + 10, w.b, w.n);
    spill(path, w.b, w.n + 10);
    assert_int_equal(lseek(STDIN_FILENO, 10, SEEK_SET), 10);
    assert_int_equal(read_file("-", NULL, &x, &info, &e), 300);
    free(x);
    w.b[10 + 20] = 7; /* the same for libsndfile: mu-law */
    w.b[10 + 32] = 1;
    w.b[10 + 34] = 8;
    spill(path, w.b, w.n + 10);
    assert_int_equal(lseek(STDIN_FILENO, 10, SEEK_SET), 10);
    assert_int_equal(read_file("-", NULL, &x, &info, &e), 600);
    free(x);
    close(fd);
    if (saved >= 0)
        dup2(saved, STDIN_FILENO);
    else
        close(STDIN_FILENO);
    close(saved);
}

/* ---- what can't be read ---- */

static void expect_error(const char *name, int code, const char *about)
{
    struct mt_sound_info info;
    struct mt_err e = {0};
    float *x;
    int64_t rc = read_file(name, NULL, &x, &info, &e);

    free(x);
    if (rc != code || !strstr(e.text, about) || strncmp(e.text, name, strlen(name)) != 0 ||
        strchr(e.text, '\n'))
        fail_msg("%lld '%s': '%s' was expected", (long long)rc, e.text, about);
}

static void expect_bad(const void *data, size_t n, const char *about)
{
    struct mt_sound_info info;
    struct mt_err e = {0};
    float *x;

    spill(path, data, n);
    expect_error(path, -EINVAL, about);
    assert_int_equal(read_pipe(data, n, NULL, &x, &info, &e), -EINVAL);
    free(x);
    if (!strstr(e.text, about) || strncmp(e.text, "/dev/fd/", 8) != 0)
        fail_msg("'%s': '%s' was expected", e.text, about);
}

static void test_errors(void **state)
{
    static struct buf w;
    static char text[200000];
    float bad[] = {0, 0.5F, NAN};

    (void)state;
    expect_error(dir, -EISDIR, "directory");
    expect_error("/nonexistent/call.wav", -ENOENT, "No such file");
    expect_bad("", 0, "empty");
    expect_bad("RI", 2, "not a sound");
    expect_bad("RIFF", 4, "cut short");
    memset(text, 'y', sizeof(text));
    expect_bad(text, 100, "not a sound");
    expect_bad(text, sizeof(text), "not a sound");

    put_head(&w, "RIFF", 100);
    expect_bad(w.b, w.n, "cut short at byte 12");
    put_fmt(&w, 1, 1, 16000, 16);
    for (size_t n = 13; n <= w.n; n++)
        expect_bad(w.b, n, "cut short");
    put(&w, "data", 4);
    expect_bad(w.b, w.n, "'data'");
    put_head(&w, "RIFF", 100);
    put(&w, "LIST\xF0\xFF\xFF\xFF", 8);
    expect_bad(w.b, w.n, "no WAV format");
    put_head(&w, "RIFF", 100);
    put_data(&w, 100, 50);
    expect_bad(w.b, w.n, "before their format");
    put_head(&w, "RIFF", 100);
    put(&w, "fmt \2\0\0\0\1\0", 10);
    expect_bad(w.b, w.n, "at least 16");
    put_head(&w, "RIFF", 100);
    put_fmt(&w, 1, 0, 16000, 16);
    put_data(&w, 100, 50);
    expect_bad(w.b, w.n, "0 channels");
    put_head(&w, "RIFF", 100);
    put_fmt(&w, 1, 1, 0, 16);
    put_data(&w, 100, 50);
    expect_bad(w.b, w.n, "0 Hz");
    put_head(&w, "RIFF", 100);
    put_fmt(&w, 1, 1, 0x7FFFFFFF, 16);
    put_data(&w, 100, 50);
    expect_bad(w.b, w.n, "2147483647 Hz");
    put_head(&w, "RIFF", 100);
    put_fmt(&w, 0x1234, 1, 8000, 8);
    put_data(&w, 100, 50);
    expect_bad(w.b, w.n, "encoding 0x1234 with 8 bits is not supported");
    put_head(&w, "RIFF", 100);
    put_fmt(&w, 3, 1, 16000, 32);
    put(&w, "data\14\0\0\0", 8);
    put(&w, bad, sizeof(bad));
    expect_bad(w.b, w.n, "sample 2 of channel 1 is nan");
}

/* `yes | mt-feed -` must end, not fill the disk. */
static void test_endless_nonsense(void **state)
{
    struct mt_sound *s;
    struct mt_err e = {0};

    (void)state;
    alarm(20);
    assert_int_equal(mt_sound_open(&s, "/dev/zero", NULL, &e), -EINVAL);
    assert_non_null(strstr(e.text, "not a sound"));
    alarm(0);
}

static void test_permission(void **state)
{
    (void)state;
    spill(path, "RIFF", 4);
    assert_int_equal(chmod(path, 0), 0);
    if (geteuid() == 0) { /* root may read it: be somebody else for a moment */
        assert_int_equal(chmod(dir, 0755), 0);
        assert_int_equal(seteuid(65534), 0);
        expect_error(path, -EACCES, "Permission denied");
        assert_int_equal(seteuid(0), 0);
    } else {
        expect_error(path, -EACCES, "Permission denied");
    }
    assert_int_equal(chmod(path, 0600), 0);
}

/* A file cut anywhere is read to the cut or refused, and what is read is the start of the whole. */
static void test_cut_anywhere(void **state)
{
    static const int formats[] = {SF_FORMAT_WAV | SF_FORMAT_PCM_24,
                                  SF_FORMAT_AIFF | SF_FORMAT_PCM_16,
                                  SF_FORMAT_FLAC | SF_FORMAT_PCM_16,
                                  SF_FORMAT_RF64 | SF_FORMAT_FLOAT, SF_FORMAT_WAV | SF_FORMAT_ULAW};

    (void)state;
    for (size_t k = 0; k < MT_COUNT(formats); k++) {
        SF_INFO info = {.samplerate = 16000, .channels = 2, .format = formats[k]};
        SNDFILE *sf = sf_open(path, SFM_WRITE, &info);
        struct mt_sound_info ours;
        float in[2 * 9000], *whole, *part;
        unsigned char *bytes;
        size_t n_bytes;
        int64_t longest = 0;

        for (int i = 0; i < 2 * 9000; i++)
            in[i] = wave(i / 2, i % 2);
        sf_writef_float(sf, in, 9000);
        sf_close(sf);
        bytes = slurp(path, &n_bytes);
        assert_int_equal(read_both(bytes, n_bytes, NULL, &whole, &ours), 9000);
        for (size_t cut = 0; cut < n_bytes; cut += cut < 120 ? 1 : 1501) {
            struct mt_err e = {0};
            int64_t n;

            spill(path, bytes, cut);
            n = read_file(path, NULL, &part, &ours, &e);
            assert_true(n < 0 || ours.stated == 9000 || ours.stated == -1);
            if (n < 0) {
                assert_true(strlen(e.text) > strlen(path));
            } else {
                assert_true(n <= 9000);
                assert_memory_equal(part, whole, (size_t)n * sizeof(float));
                assert_true(n >= longest);
                longest = n;
            }
            free(part);
        }
        assert_true(longest > 3000);
        free(whole);
        free(bytes);
    }
}

/* ---- whole sounds ---- */

static void test_load(void **state)
{
    SF_INFO info = {.samplerate = 44100, .channels = 2, .format = SF_FORMAT_WAV | SF_FORMAT_FLOAT};
    SNDFILE *sf = sf_open(path, SFM_WRITE, &info);
    float *in = malloc(sizeof(float) * 2 * 44100), *x;
    struct mt_err e = {0};
    int64_t n;

    (void)state;
    for (int i = 0; i < 44100; i++)
        in[2 * i] = in[2 * i + 1] = (float)(0.5 * sin(2 * M_PI * 1000 * i / 44100.0));
    sf_writef_float(sf, in, 44100);
    sf_close(sf);
    free(in);
    assert_int_equal(mt_sound_load(path, NULL, 16000, 16001, &x, &n, &e), 0);
    assert_true(n >= 15999 && n <= 16001);
    for (int64_t i = 500; i < 15500; i++) /* the moments are kept, whatever the lag */
        assert_true(fabs((double)x[i] - 0.5 * sin(2 * M_PI * 1000 * (double)i / 16000)) < 1e-4);
    free(x);
    assert_int_equal(mt_sound_load(path, NULL, 16000, 10000, &x, &n, &e), -E2BIG);
    assert_null(x);
    assert_non_null(strstr(e.text, "longer than"));
}

static void write_mono(const char *to, const float *pcm, int64_t n)
{
    SF_INFO info = {.samplerate = 44100, .channels = 1, .format = SF_FORMAT_WAV | SF_FORMAT_FLOAT};
    SNDFILE *sf = sf_open(to, SFM_WRITE, &info);

    assert_int_equal(sf_writef_float(sf, pcm, n), n);
    sf_close(sf);
}

/* A part is what a file of only these samples gives, at its own rate and converted. */
static void test_load_part(void **state)
{
    enum { N = 30000 };
    static const struct {
        struct mt_sound_part part;
        int64_t first, n; /* of the file's samples; n -1: not all there */
    } is[] = {
        {{true, 0, N}, 0, N},
        {{true, 0, -1}, 0, N},
        {{true, 4095, 2}, 4095, 2},
        {{true, 4096, 8192}, 4096, 8192},
        {{true, 29999, 1}, 29999, 1},
        {{true, N, -1}, N, 0},
        {{true, 5, 0}, 5, 0},
        {{false, 500000000, 100000000}, 22050, 4410},
        {{false, 11337, 11338}, 0, 1}, /* to the nearest sample: 0.49997 and 0.50001 */
        {{false, 0, -1}, 0, N},
        {{true, 0, N + 1}, 0, -1},
        {{true, N + 1, -1}, 0, -1},
        {{true, INT64_MAX, INT64_MAX}, 0, -1},
        {{true, 0, INT64_MAX}, 0, -1},
        {{false, INT64_MAX, 1000000000}, 0, -1},
        {{false, 600000000, 100000000}, 0, -1},
    };
    float *in = malloc(sizeof(float) * N), *x, *want;
    char alone[200];
    int64_t n, n_want;

    (void)state;
    for (int i = 0; i < N; i++)
        in[i] = wave(i, 0);
    snprintf(alone, sizeof(alone), "%s.alone", path);
    for (size_t k = 0; k < MT_COUNT(is); k++)
        for (int rate = 16000; rate <= 44100; rate += 28100) {
            struct mt_err e = {0};
            write_mono(path, in, N);
            int rc = mt_sound_load_part(path, NULL, rate, &is[k].part, 100000, &x, &n, &e);
            if (is[k].n < 0) {
                assert_int_equal(rc, -ERANGE);
                assert_null(x);
                assert_non_null(strstr(e.text, "(30000 samples)"));
                continue;
            }
            assert_int_equal(rc, 0);
            if (is[k].n == 0) {
                assert_int_equal(n, 0);
                free(x);
                continue;
            }
            write_mono(alone, in + is[k].first, is[k].n);
            assert_int_equal(mt_sound_load(alone, NULL, rate, 100000, &want, &n_want, &e), 0);
            assert_int_equal(n, n_want);
            if (rate == 44100)
                assert_int_equal(n, is[k].n);
            if (n)
                assert_memory_equal(x, want, (size_t)n * sizeof(*x));
            free(want);
            free(x);
        }
    unlink(alone);
    free(in);
}

/* ---- WAV out ---- */

static void test_wav_out(void **state)
{
    float in[] = {0,  0.5F,     -0.5F,     1,   -1,       7,
                  -7, INFINITY, -INFINITY, NAN, 0x1p-15F, 0.6F * 0x1p-15F};
    int16_t want[] = {0, 16384, -16384, 32767, -32768, 32767, -32768, 32767, -32768, 0, 1, 1};
    struct mt_sound_info info;
    struct mt_err e = {0};
    struct mt_wav *w;
    int64_t n = 0;
    float *x;

    (void)state;
    assert_int_equal(mt_wav_create(&w, path, 24000, &e), 0);
    for (int k = 0; k < 300; k++) {
        assert_int_equal(mt_wav_write(w, in, MT_COUNT(in)), 0);
        n += (int64_t)MT_COUNT(in);
        if (k % 100 == 0) { /* whole even while it is open */
            SF_INFO sf_info = {.format = 0};
            SNDFILE *sf = sf_open(path, SFM_READ, &sf_info);

            assert_non_null(sf);
            assert_int_equal(sf_info.frames, n);
            sf_close(sf);
        }
    }
    assert_int_equal(mt_wav_close(&w), 0);
    assert_null(w);
    assert_int_equal(read_file(path, NULL, &x, &info, &e), n);
    assert_int_equal(info.rate_hz, 24000);
    for (int64_t i = 0; i < n; i++)
        assert_true(x[i] == (float)want[(size_t)i % MT_COUNT(want)] / 32768);
    free(x);

    assert_int_equal(mt_wav_create(&w, "/nonexistent/x.wav", 24000, &e), -ENOENT);
    assert_null(w);
    assert_int_equal(mt_wav_close(&w), 0);
}

static void test_wav_out_disk_full(void **state)
{
    struct mt_err e = {0};
    struct mt_wav *w;
    float x[5000] = {0};
    int rc = mt_wav_create(&w, "/dev/full", 16000, &e);

    (void)state;
    if (rc == 0) {
        rc = mt_wav_write(w, x, 5000);
        assert_true(rc < 0);
        assert_int_equal(mt_wav_write(w, x, 1), rc);
        assert_int_equal(mt_wav_close(&w), rc);
    } else {
        assert_true(strlen(e.text) > 10);
    }
}

/* ---- resampling ---- */

static const int rates[][2] = {{44100, 16000}, {48000, 16000},  {8000, 16000},  {22050, 16000},
                               {11025, 16000}, {96000, 16000},  {16000, 24000}, {24000, 16000},
                               {12345, 16000}, {192000, 16000}, {16001, 16000}};

/* n samples through a new converter in pieces of at most max. Checks the lag on the way. */
static float *convert(int from, int to, const float *in, int64_t n, int64_t max, int64_t *n_out)
{
    struct mt_resampler *r;
    float *out = malloc(sizeof(float) * (size_t)(n * to / from + 100));
    const float *part;
    int64_t done = 0, made = 0, got;
    uint64_t seed = (uint64_t)max;

    assert_int_equal(mt_resampler_new(&r, from, to, NULL), 0);
    while (done < n) {
        int64_t piece = 1 + (int64_t)(mt_mix64(seed++) % (uint64_t)max);

        piece = piece < n - done ? piece : n - done;
        assert_int_equal(mt_resampler_push(r, in + done, piece, &part, &got), 0);
        memcpy(out + made, part, (size_t)got * sizeof(float));
        done += piece;
        made += got;
        assert_true((double)made * from / to > (double)(done - mt_resampler_lag(r)));
    }
    assert_int_equal(mt_resampler_push(r, NULL, 0, &part, &got), 0);
    memcpy(out + made, part, (size_t)got * sizeof(float));
    assert_int_equal(mt_resampler_push(r, in, 1, &part, n_out), -EINVAL);
    mt_resampler_free(&r);
    assert_null(r);
    *n_out = made + got;
    return out;
}

static void test_resampler(void **state)
{
    (void)state;
    for (size_t k = 0; k < MT_COUNT(rates); k++) {
        int from = rates[k][0], to = rates[k][1];
        int64_t lengths[] = {0, 1, 17, from / 7, 3 * from + 1};

        for (size_t l = 0; l < MT_COUNT(lengths); l++) {
            int64_t n = lengths[l], n1, n2, n3;
            float *in = malloc(sizeof(float) * (size_t)(n + 1)), *a, *b, *c;

            for (int64_t i = 0; i <= n; i++)
                in[i] = (float)(0.7 * sin(2 * M_PI * 440 * (double)i / from)) + 0.1F * wave(i, 1);
            a = convert(from, to, in, n, 1, &n1);
            b = convert(from, to, in, n, 1999, &n2);
            c = convert(from, to, in, n, n + 1, &n3);
            assert_true(fabs((double)n1 - (double)n * to / from) <= 1);
            assert_int_equal(n1, n2);
            assert_int_equal(n1, n3);
            assert_memory_equal(a, b, (size_t)n1 * sizeof(float));
            assert_memory_equal(a, c, (size_t)n1 * sizeof(float));
            free(in);
            free(a);
            free(b);
            free(c);
        }
    }
}

/* The lag promised for a call of a minute, at the tight side too: half of it would be a lie. */
static void test_resampler_lag(void **state)
{
    (void)state;
    for (size_t k = 0; k < 3; k++) {
        int from = rates[k][0], to = rates[k][1];
        struct mt_resampler *r;
        double worst = 0;
        int64_t made = 0, got;
        const float *part;
        float zero = 0;

        assert_int_equal(mt_resampler_new(&r, from, to, NULL), 0);
        for (int64_t in = 1; in <= 20 * (int64_t)from; in++) {
            assert_int_equal(mt_resampler_push(r, &zero, 1, &part, &got), 0);
            made += got;
            worst = fmax(worst, (double)in - (double)made * from / to);
        }
        if (worst > (double)mt_resampler_lag(r) || worst < (double)mt_resampler_lag(r) - 3)
            fail_msg("%d to %d Hz: worst %.1f, promised %lld", from, to, worst,
                     (long long)mt_resampler_lag(r));
        print_message("lag %d to %d Hz: %lld samples, %.2f ms\n", from, to,
                      (long long)mt_resampler_lag(r), 1e3 * (double)mt_resampler_lag(r) / from);
        mt_resampler_free(&r);
    }
}

static void test_resampler_same_rate(void **state)
{
    static float in[100000];
    struct mt_resampler *r;
    const float *out;
    int64_t n;

    (void)state;
    for (int i = 0; i < 100000; i++)
        in[i] = wave(i, 0);
    assert_int_equal(mt_resampler_new(&r, 16000, 16000, NULL), 0);
    assert_int_equal(mt_resampler_lag(r), 0);
    for (int64_t piece = 1; piece <= 100000; piece *= 10) {
        assert_int_equal(mt_resampler_push(r, in, piece, &out, &n), 0);
        assert_int_equal(n, piece);
        assert_memory_equal(in, out, (size_t)n * sizeof(float));
    }
    assert_int_equal(mt_resampler_push(r, NULL, 0, &out, &n), 0);
    assert_int_equal(n, 0);
    mt_resampler_free(&r);
}

/* Saved, and gone on with by another one: what nobody has taken comes first. */
static void move_converter(struct mt_converter **c, int from, int to, const float **part,
                           int64_t *got)
{
    struct mt_state_io io = {0}, back;

    mt_converter_visit(*c, part, got, &io);
    assert_int_equal(io.err.code, 0);
    mt_converter_free(c);
    assert_int_equal(mt_converter_new(c, from, to, NULL), 0);
    back = (struct mt_state_io){.load = true, .data = io.data, .n = io.n};
    mt_converter_visit(*c, part, got, &back);
    if (mt_state_end(&back) < 0)
        fail_msg("%d to %d Hz: %s", from, to, back.err.text);
    free(io.data);
}

/* The same as convert(), by a converter that now and then is saved in the middle. */
static float *convert_on(int from, int to, const float *in, int64_t n, int moves, int64_t *n_out)
{
    float *out = malloc(sizeof(float) * (size_t)(n * to / from + 100));
    int64_t done = 0, made = 0, got = 0, taken;
    struct mt_converter *c;
    const float *part;
    uint64_t seed = (uint64_t)(from + moves);

    assert_int_equal(mt_converter_new(&c, from, to, NULL), 0);
    for (bool end = false; !end;) {
        int64_t piece = 1 + (int64_t)(mt_mix64(seed++) % 3000);

        piece = piece < n - done ? piece : n - done;
        end = done == n;
        assert_int_equal(mt_converter_push(c, end ? NULL : in + done, piece, &part, &got), 0);
        done += piece;
        taken = moves ? (int64_t)(mt_mix64(seed++) % (uint64_t)(got + 1)) : 0;
        memcpy(out + made, part, (size_t)taken * sizeof(float));
        made += taken;
        got -= taken;
        part += taken;
        if (moves && mt_mix64(seed++) % (uint64_t)moves == 0)
            move_converter(&c, from, to, &part, &got);
        memcpy(out + made, part, (size_t)got * sizeof(float));
        made += got;
        if (!end)
            assert_true((double)made * from / to > (double)(done - mt_converter_lag(c)));
    }
    assert_int_equal(mt_converter_push(c, in, 1, &part, &got), -EINVAL);
    mt_converter_free(&c);
    *n_out = made;
    return out;
}

/* What a resampler makes, to the rounding; and saved in the middle, bit for bit. */
static void test_converter(void **state)
{
    (void)state;
    for (size_t k = 0; k < MT_COUNT(rates); k++) {
        int from = rates[k][0], to = rates[k][1];
        int64_t lengths[] = {0, 1, from - 1, from, from + 1, 4 * from + 5};

        for (size_t l = 0; l < MT_COUNT(lengths); l++) {
            int64_t n = lengths[l], n1, n2, n3;
            float *in = malloc(sizeof(float) * (size_t)(n + 1)), *a, *b, *c;

            for (int64_t i = 0; i <= n; i++)
                in[i] = (float)(0.7 * sin(2 * M_PI * 440 * (double)i / from)) + 0.1F * wave(i, 1);
            a = convert(from, to, in, n, n + 1, &n1);
            b = convert_on(from, to, in, n, 0, &n2);
            c = convert_on(from, to, in, n, 3, &n3);
            assert_int_equal(n1, n2);
            assert_int_equal(n1, n3);
            for (int64_t i = 0; i < n1; i++)
                if (!(fabsf(a[i] - b[i]) < 1e-6F))
                    fail_msg("%d to %d Hz: sample %lld is %g, %g", from, to, (long long)i,
                             (double)b[i], (double)a[i]);
            assert_memory_equal(b, c, (size_t)n1 * sizeof(float));
            free(in);
            free(a);
            free(b);
            free(c);
        }
    }
}

/* What no converter can have saved ends with a line, and with nothing read outside. */
static void test_converter_hostile(void **state)
{
    static float in[20000];
    struct mt_state_io io = {0};
    struct mt_converter *c;
    const float *part;
    int64_t got;
    int refused = 0;

    (void)state;
    assert_int_equal(mt_converter_new(&c, 8000, 16000, NULL), 0);
    assert_int_equal(mt_converter_push(c, in, 19000, &part, &got), 0);
    mt_converter_visit(c, &part, &got, &io);
    assert_int_equal(io.err.code, 0);
    mt_converter_free(&c);
    for (size_t i = 0; i < 5; i++)
        for (int k = 0; k < 64; k++) {
            struct mt_state_io back = {.load = true, .data = io.data, .n = io.n};
            int64_t was;

            memcpy(&was, io.data + 8 * i, 8);
            io.data[8 * i + (size_t)(k / 8)] ^= (unsigned char)(1 << k % 8);
            assert_int_equal(mt_converter_new(&c, 8000, 16000, NULL), 0);
            got = 0;
            mt_converter_visit(c, &part, &got, &back);
            refused += mt_state_end(&back) < 0;
            if (mt_state_ok(&back))
                mt_converter_push(c, in, 20000, &part, &got);
            mt_converter_free(&c);
            memcpy(io.data + 8 * i, &was, 8);
        }
    assert_true(refused > 200);
    free(io.data);
}

static void test_resampler_refuses(void **state)
{
    static const int wrong[][2] = {{0, 16000}, {16000, 0},  {-1, 16000},   {768001, 16000},
                                   {1, 16000}, {62, 16000}, {768000, 2999}};

    (void)state;
    for (size_t k = 0; k < MT_COUNT(wrong); k++) {
        struct mt_err e = {0};
        struct mt_resampler *r;

        assert_int_equal(mt_resampler_new(&r, wrong[k][0], wrong[k][1], &e), -EINVAL);
        assert_null(r);
        assert_non_null(strstr(e.text, "Hz"));
    }
}

static int setup(void **state)
{
    (void)state;
    signal(SIGPIPE, SIG_IGN);
    if (util_dir_make(dir) < 0)
        return -1;
    snprintf(path, sizeof(path), "%s/sound", dir);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    return util_dir_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_format),
        cmocka_unit_test(test_lengths_that_lie),
        cmocka_unit_test(test_longer_than_sox_says),
        cmocka_unit_test(test_no_sample_is_invented),
        cmocka_unit_test(test_blank_length_of_other_encodings),
        cmocka_unit_test(test_flac_without_length),
        cmocka_unit_test(test_mp3_without_length),
        cmocka_unit_test(test_raw),
        cmocka_unit_test(test_live_pipe),
        cmocka_unit_test(test_pipe_left_open),
        cmocka_unit_test(test_stdin),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_endless_nonsense),
        cmocka_unit_test(test_permission),
        cmocka_unit_test(test_cut_anywhere),
        cmocka_unit_test(test_load),
        cmocka_unit_test(test_load_part),
        cmocka_unit_test(test_wav_out),
        cmocka_unit_test(test_wav_out_disk_full),
        cmocka_unit_test(test_resampler),
        cmocka_unit_test(test_resampler_lag),
        cmocka_unit_test(test_resampler_same_rate),
        cmocka_unit_test(test_resampler_refuses),
        cmocka_unit_test(test_converter),
        cmocka_unit_test(test_converter_hostile),
    };

    return cmocka_run_group_tests_name("audio", tests, setup, teardown);
}
