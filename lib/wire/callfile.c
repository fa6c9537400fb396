/*
 * callfile.c: saved calls in and out of files.
 */
#include "wire/callfile.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* As PNG's: a transfer that touches line ends or the eighth bit is seen at once. */
static const unsigned char magic[8] = {0x8d, 'M', 'T', 'C', '\r', '\n', 0x1a, '\n'};

#define ORDER UINT32_C(0x01020304)

struct head {
    unsigned char magic[8];
    uint32_t version, order;
    uint64_t bytes; /* of the whole file */
    uint64_t identity;
    uint64_t sum;   /* of the whole file, this member 0 */
    char model[64]; /* its name, for people */
};

bool mt_callfile_name(const char *name)
{
    size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-");

    return n > 0 && n <= MT_CALLFILE_NAME_MAX && !name[n] && name[0] != '.';
}

int mt_callfile_begin(struct mt_state_io *io)
{
    void *at = mt_state_block(io, "head", sizeof(struct head));

    if (at)
        memset(at, 0, sizeof(struct head));
    return io->err.code;
}

/* data begins with h, whose sum counts as 0. */
static uint64_t sum_of(struct head h, const unsigned char *data, size_t n)
{
    h.sum = 0;
    return mt_hash(mt_hash(MT_HASH_INIT, &h, sizeof(h)), data + sizeof(h), n - sizeof(h));
}

int mt_callfile_seal(struct mt_state_io *io, const struct mt_model *m, uint64_t identity)
{
    struct head h = {.version = MT_CALLFILE_VERSION, .order = ORDER, .identity = identity};

    if (!mt_state_ok(io))
        return io->err.code;
    memcpy(h.magic, magic, sizeof(magic));
    h.bytes = io->n;
    snprintf(h.model, sizeof(h.model), "%s", mt_model_info(m)->name);
    h.sum = sum_of(h, io->data, io->n);
    memcpy(io->data, &h, sizeof(h));
    return 0;
}

int mt_callfile_open(struct mt_state_io *io, unsigned char *data, size_t n,
                     const struct mt_model *m, uint64_t identity, struct mt_err *e)
{
    struct head h;

    if (n < sizeof(h) || memcmp(data, magic, sizeof(magic)) != 0)
        return mt_err_set(e, -EPROTO, "not a saved call (%zu bytes)", n);
    memcpy(&h, data, sizeof(h));
    if (h.version != MT_CALLFILE_VERSION)
        return mt_err_set(e, -EPROTO, "a saved call of version %" PRIu32 ", read is version %d",
                          h.version, MT_CALLFILE_VERSION);
    if (h.order != ORDER)
        return mt_err_set(e, -EPROTO, "saved on a machine with another order of bytes");
    if (h.bytes != n)
        return mt_err_set(e, -EPROTO, "cut: %zu of %" PRIu64 " bytes", n, h.bytes);
    if (h.sum != sum_of(h, data, n))
        return mt_err_set(e, -EPROTO, "damaged: its checksum is another one");
    if (h.identity != identity)
        return mt_err_set(e, -EINVAL,
                          "saved with another model: '%.63s' (%016" PRIx64
                          "), this server has '%s' (%016" PRIx64 ")",
                          h.model, h.identity, mt_model_info(m)->name, identity);
    *io = (struct mt_state_io){.load = true, .data = data, .n = n, .at = sizeof(h)};
    return 0;
}

/* ---- files ---- */

static int fail(struct mt_err *e, const char *name, const char *what)
{
    int err = errno;

    return mt_err_set(e, -err, "%s: %s: %s", name, what, strerror(err));
}

static int write_all(int fd, const unsigned char *data, size_t n)
{
    while (n > 0) {
        ssize_t got = write(fd, data, n);

        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return -1;
        data += got;
        n -= (size_t)got;
    }
    return 0;
}

/* The bytes, on the disk. */
static int fill(int fd, const void *data, size_t n, bool fail_full)
{
    if (write_all(fd, data, fail_full ? n / 2 : n) < 0)
        return -1;
    if (fail_full) {
        errno = ENOSPC;
        return -1;
    }
    return fsync(fd);
}

static int open_dir(const char *dir, struct mt_err *e)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    return fd < 0 ? fail(e, dir, "the folder of saved calls") : fd;
}

/* ".NAME.PID.N", which is no call's name. */
static bool is_temporary(const char *file)
{
    char name[MT_CALLFILE_NAME_MAX + 48];
    int64_t n;

    if (*file != '.' || snprintf(name, sizeof(name), "%s", file + 1) >= (int)sizeof(name))
        return false;
    for (int i = 0; i < 2; i++) {
        char *dot = strrchr(name, '.');

        if (!dot || mt_parse_i64(dot + 1, 0, INT64_MAX, &n) < 0)
            return false;
        *dot = '\0';
    }
    return mt_callfile_name(name);
}

/*
 * A new file that this process alone writes: it is locked for as long as it is open. Whoever sweeps
 * may have had it first, between making and locking it; then it is gone. Where there are no locks
 * nothing is swept either.
 */
static int open_temporary(int at, const char *name, char *temp, size_t room)
{
    static _Atomic unsigned serial;
    struct stat st;
    int fd;

    for (;;) {
        snprintf(temp, room, ".%s.%ld.%u", name, (long)getpid(), serial++);
        fd = openat(at, temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
        /* A process that died may have left one; in a container all have the same number. */
        if (fd < 0 && errno == EEXIST)
            continue;
        if (fd < 0 || ((flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) &&
                       fstat(fd, &st) == 0 && st.st_nlink > 0))
            return fd;
        close(fd);
    }
}

int mt_callfile_sweep(const char *dir)
{
    DIR *d = opendir(dir);
    int n = 0;

    if (!d)
        return -errno;
    for (const struct dirent *e; (e = readdir(d));) {
        int fd = is_temporary(e->d_name)
                     ? openat(dirfd(d), e->d_name,
                              O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY)
                     : -1;

        if (fd < 0)
            continue;
        if (flock(fd, LOCK_EX | LOCK_NB) == 0 && unlinkat(dirfd(d), e->d_name, 0) == 0)
            n++;
        close(fd);
    }
    closedir(d);
    return n;
}

int mt_callfile_write(const char *dir, const char *name, const void *data, size_t n, bool fail_full,
                      struct mt_err *e)
{
    char file[MT_CALLFILE_NAME_MAX + 8], temp[MT_CALLFILE_NAME_MAX + 48];
    int at = open_dir(dir, e), fd, rc = 0;

    if (at < 0)
        return at;
    snprintf(file, sizeof(file), "%s.call", name);
    fd = open_temporary(at, name, temp, sizeof(temp));
    if (fd < 0) {
        rc = fail(e, file, "can't be written");
    } else {
        if (fill(fd, data, n, fail_full) < 0)
            rc = fail(e, file, "can't be written");
        else if (renameat(at, temp, at, file) < 0)
            rc = fail(e, file, "can't be renamed");
        if (rc < 0)
            unlinkat(at, temp, 0);
        else if (fsync(at) < 0)
            rc = fail(e, dir, "can't be synced");
        close(fd); /* what it could still say was said by fsync */
    }
    close(at);
    return rc;
}

static int read_all(int fd, unsigned char *data, size_t n)
{
    size_t at = 0;

    while (at < n) {
        ssize_t got = read(fd, data + at, n - at);

        if (got < 0 && errno == EINTR)
            continue;
        if (got == 0)
            errno = EIO; /* it grew shorter */
        if (got <= 0)
            return -1;
        at += (size_t)got;
    }
    return 0;
}

int mt_callfile_read(unsigned char **data, size_t *n, const char *dir, const char *name,
                     size_t most, struct mt_err *e)
{
    char file[MT_CALLFILE_NAME_MAX + 8];
    int at = open_dir(dir, e), fd, rc = 0;
    struct stat st;

    *data = NULL;
    if (at < 0)
        return at;
    snprintf(file, sizeof(file), "%s.call", name);
    fd = openat(at, file, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    close(at);
    if (fd < 0 || fstat(fd, &st) < 0) {
        rc = fail(e, file, "can't be read");
    } else if (!S_ISREG(st.st_mode)) {
        rc = mt_err_set(e, -EPROTO, "%s: not a file", file);
    } else if ((uint64_t)st.st_size > most) {
        rc = mt_err_set(e, -EFBIG, "%s: %lld bytes, a call of this server has at most %zu", file,
                        (long long)st.st_size, most);
    } else {
        *n = (size_t)st.st_size;
        if (!(*data = malloc(*n + 1)))
            rc = mt_err_set(e, -ENOMEM, "%s: no memory for %zu bytes", file, *n);
        else if (read_all(fd, *data, *n) < 0)
            rc = fail(e, file, "can't be read");
    }
    if (fd >= 0)
        close(fd);
    if (rc < 0) {
        free(*data);
        *data = NULL;
    }
    return rc;
}
