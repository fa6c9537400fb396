/*
 * spool.c: sounds that only libsndfile can read. On a pipe it silently loses audio of some formats
 * (FLAC loses sync, measured with 1.2.0), so a pipe is first copied to an unlinked temporary file;
 * libsndfile then sees every sound through one seekable view.
 */
#include "audio/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PROBE_BYTES = 64 * 1024 };

static sf_count_t view_size(void *user)
{
    return ((struct mt_view *)user)->size;
}

static sf_count_t view_seek(sf_count_t offset, int whence, void *user)
{
    struct mt_view *v = user;
    int64_t from = whence == SEEK_CUR ? v->pos : whence == SEEK_END ? v->size : 0, to;

    if (whence == SEEK_END && v->no_end)
        return -1;
    if (__builtin_add_overflow(from, (int64_t)offset, &to) || to < 0)
        return -1;
    return v->pos = to;
}

static sf_count_t view_read(void *ptr, sf_count_t count, void *user)
{
    struct mt_view *v = user;
    unsigned char *out = ptr;
    sf_count_t done = 0;

    while (done < count && v->pos < v->size) {
        int64_t n = count - done < v->size - v->pos ? count - done : v->size - v->pos;
        ssize_t got = pread(v->fd, out + done, (size_t)n, v->pos);

        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        for (int64_t i = 0; v->patch_at >= 0 && i < 4; i++)
            if (v->patch_at + i >= v->pos && v->patch_at + i < v->pos + got)
                out[done + v->patch_at + i - v->pos] = v->patch[i];
        done += got;
        v->pos += got;
    }
    return done;
}

static sf_count_t view_tell(void *user)
{
    return ((struct mt_view *)user)->pos;
}

SNDFILE *mt_view_open(struct mt_view *v, int fd, int64_t size, SF_INFO *info)
{
    SF_VIRTUAL_IO io = {view_size, view_seek, view_read, NULL, view_tell};
    uint32_t bytes = 0;
    SNDFILE *sf;

    *v = (struct mt_view){.fd = fd, .size = size};
    v->patch_at = mt_wav_find_blank(fd, size, &bytes);
    for (int i = 0; i < 4; i++)
        v->patch[i] = (unsigned char)(bytes >> 8 * i);
    *info = (SF_INFO){.format = 0};
    sf = sf_open_virtual(&io, SFM_READ, info, v);
    if (!sf || (info->format & SF_FORMAT_TYPEMASK) != SF_FORMAT_MPEG)
        return sf;
    /*
     * An MP3 of variable bit rate without a Xing header: its length is estimated from the first
     * frame's bit rate, and libsndfile stops there (seen to lose 72 %). Where the end can't be
     * sought there is no estimate, and it reads on; a Xing header still gives the exact length.
     */
    sf_close(sf);
    v->pos = 0;
    v->no_end = true;
    *info = (SF_INFO){.format = 0};
    return sf_open_virtual(&io, SFM_READ, info, v);
}

const char *mt_sf_reason(SNDFILE *sf, char *text, size_t n)
{
    const char *said = sf_strerror(sf);
    size_t len;

    if (!strncmp(said, "Error : ", 8))
        said += 8;
    (void)snprintf(text, n, "%s", said);
    len = strcspn(text, "\n");
    while (len > 0 && (text[len - 1] == '.' || text[len - 1] == ' '))
        len--;
    text[len] = '\0';
    return text;
}

static int temp_file(const char *dir)
{
    char path[4096];
    int fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

    /* not every file system has nameless files */
    if (fd >= 0 || snprintf(path, sizeof(path), "%s/metronome-XXXXXX", dir) >= (int)sizeof(path))
        return fd;
    if ((fd = mkostemp(path, O_CLOEXEC)) >= 0)
        (void)unlink(path);
    return fd;
}

static int write_all(int fd, const unsigned char *p, size_t n)
{
    while (n > 0) {
        ssize_t put = write(fd, p, n);

        if (put < 0 && errno != EINTR)
            return -errno;
        if (put > 0) {
            p += put;
            n -= (size_t)put;
        }
    }
    return 0;
}

/* Do the first bytes of a sound open like any that libsndfile knows? */
static bool looks_like_sound(int fd, int64_t size)
{
    unsigned char magic[4];
    struct mt_view v;
    SF_INFO info;
    SNDFILE *sf;

    /* both may carry pictures before the first sound */
    if (pread(fd, magic, 4, 0) == 4 && (!memcmp(magic, "ID3", 3) || !memcmp(magic, "OggS", 4)))
        return true;
    sf = mt_view_open(&v, fd, size, &info);
    if (sf)
        sf_close(sf);
    return sf || sf_error(NULL) != SF_ERR_UNRECOGNISED_FORMAT;
}

int mt_spool(struct mt_bytes *b, int *out, struct mt_err *e)
{
    const char *dir = getenv("TMPDIR");
    int fd = -1, rc;
    bool probed = false;
    int64_t size;

    dir = dir && *dir ? dir : "/tmp";
    if ((fd = temp_file(dir)) < 0)
        return mt_err_set(e, -errno, "%s: no temporary copy in %s: %s", b->name, dir,
                          strerror(errno));
    /* nothing was consumed, or keep was set: buf starts at byte 0 */
    for (size = 0;;) {
        int64_t got;

        if ((rc = write_all(fd, b->buf, b->len)) < 0) {
            mt_err_set(e, rc, "%s: temporary copy in %s: %s", b->name, dir, strerror(-rc));
            goto fail;
        }
        size += (int64_t)b->len;
        if (!probed && size >= PROBE_BYTES) {
            probed = true;
            if (!looks_like_sound(fd, size))
                break; /* opening it will fail, and say why */
        }
        got = mt_read_some(b->fd, b->buf, b->cap);
        if (got < 0) {
            rc = mt_err_set(e, (int)got, "%s: %s", b->name, strerror((int)-got));
            goto fail;
        }
        b->len = (size_t)got;
        if (got == 0)
            break;
    }
    *out = fd;
    return 0;
fail:
    close(fd);
    return rc;
}
