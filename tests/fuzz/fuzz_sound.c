/*
 * fuzz_sound.c: any bytes as a sound (libFuzzer). The first byte chooses: from a file or a pipe, by
 * header or as raw samples of some format. Whatever comes, opening either fails with one line
 * that names the file, or every read gives finite samples and ends. Run it with -detect_leaks=0 and
 * ASAN_OPTIONS=detect_leaks=0: libsndfile 1.2.0 leaks a vorbis_info on a broken Ogg.
 */
#include "audio/audio.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PIPE_BYTES = 1 << 20, SAMPLES_MAX = 1 << 22 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

/* A descriptor to read the data from, or -1. A pipe holds it whole, so no thread is needed. */
static int offer(const uint8_t *data, size_t n, bool by_pipe)
{
    int fds[2], fd;

    if (!by_pipe) {
        fd = memfd_create("sound", MFD_CLOEXEC);
        if (fd >= 0 && write(fd, data, n) != (ssize_t)n)
            abort();
        return fd;
    }
    if (n > PIPE_BYTES / 2 || pipe2(fds, O_CLOEXEC) < 0)
        return -1;
    if (fcntl(fds[1], F_SETPIPE_SZ, PIPE_BYTES) < 0 || write(fds[1], data, n) != (ssize_t)n)
        abort();
    close(fds[1]);
    return fds[0];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct mt_raw_format raw = {.rate_hz = 16000};
    struct mt_err e = {0};
    struct mt_sound *s;
    float out[1000];
    char path[64];
    int64_t got, total = 0;
    int fd, rc;
    bool is_raw;

    if (n < 1 || (fd = offer(data + 1, n - 1, data[0] & 1)) < 0)
        return 0;
    is_raw = data[0] & 2;
    raw.sample = (enum mt_sample_type)((data[0] >> 2) % (MT_F64LE + 1));
    raw.channels = 1 + (data[0] >> 5);
    (void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    rc = mt_sound_open(&s, path, is_raw ? &raw : NULL, &e);
    if (rc < 0) {
        if (s || rc != e.code || strncmp(e.text, path, strlen(path)) != 0 || strchr(e.text, '\n'))
            abort();
    } else {
        const struct mt_sound_info *info = mt_sound_info(s);

        if (info->rate_hz < 1 || info->channels < 1 || info->frames < -1)
            abort();
        while ((got = mt_sound_read(s, out, (int64_t)MT_COUNT(out), &e)) > 0) {
            for (int64_t i = 0; i < got; i++)
                if (!isfinite(out[i]))
                    abort();
            if ((total += got) > SAMPLES_MAX)
                break;
        }
        if (got < 0 && !e.code)
            abort();
        mt_sound_close(&s);
    }
    close(fd);
    return 0;
}
