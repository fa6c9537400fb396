/*
 * listen.c: a socket file, made so that nobody else's is lost: whether the one that is there is
 * stale is asked by connecting, and asking, removing and binding are one step under a lock on the
 * directory, since two servers that start at once would else each take the other's new socket for a
 * stale one.
 */
#include "wire/listen.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define BACKLOG    1024
#define LOCK_TRIES 200 /* of 10 ms */

static int fail(struct mt_err *e, const char *path, int err)
{
    return mt_err_set(e, -err, "%s: %s", path, strerror(err));
}

/* The directory of path, open and locked. */
static int lock_directory(const char *path, struct mt_err *e)
{
    const char *slash = strrchr(path, '/');
    char *dir = !slash ? strdup(".") : strndup(path, slash == path ? 1 : (size_t)(slash - path));
    int fd, rc = 0;

    if (!dir)
        return mt_err_set(e, -ENOMEM, "out of memory");
    fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        rc = fail(e, dir, errno);
    for (int i = 0; !rc && flock(fd, LOCK_EX | LOCK_NB) < 0; i++) {
        struct timespec nap = {.tv_nsec = 10 * MT_NS_PER_MS};

        if (errno != EWOULDBLOCK && errno != EINTR)
            break; /* a file system without locks: go on without */
        if (i == LOCK_TRIES)
            rc = mt_err_set(e, -EBUSY, "%s: another program holds a lock on it", dir);
        nanosleep(&nap, NULL);
    }
    free(dir);
    if (rc < 0 && fd >= 0)
        close(fd);
    return rc < 0 ? rc : fd;
}

/* Whatever stands at path is removed if it is a socket that nobody listens on. */
static int clear_path(const char *path, const struct sockaddr_un *a, struct mt_err *e)
{
    struct stat st;
    int fd, err;

    if (lstat(path, &st) < 0)
        return errno == ENOENT ? 0 : fail(e, path, errno);
    if (!S_ISSOCK(st.st_mode))
        return mt_err_set(e, -EEXIST, "%s: exists and is not a socket; it is left alone", path);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return fail(e, path, errno);
    err = connect(fd, (const struct sockaddr *)a, sizeof(*a)) < 0 ? errno : 0;
    close(fd);
    if (err == 0 || err == EAGAIN) /* EAGAIN: a live one whose queue is full */
        return mt_err_set(e, -EADDRINUSE, "%s: another server listens there", path);
    if (err != ECONNREFUSED)
        return fail(e, path, err);
    return unlink(path) < 0 && errno != ENOENT ? fail(e, path, errno) : 0;
}

static int bind_and_listen(struct mt_listener *l, const char *path, const struct sockaddr_un *a,
                           struct mt_err *e)
{
    struct stat st = {0};
    mode_t mask;
    int rc;

    l->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (l->fd < 0)
        return fail(e, path, errno);
    mask = umask(0177);
    rc = bind(l->fd, (const struct sockaddr *)a, sizeof(*a)) < 0 ? errno : 0;
    umask(mask);
    if (!rc && (listen(l->fd, BACKLOG) < 0 || lstat(path, &st) < 0)) {
        rc = errno;
        unlink(path);
    }
    if (rc) {
        close(l->fd);
        l->fd = -1;
        return fail(e, path, rc);
    }
    l->dev = st.st_dev;
    l->ino = st.st_ino;
    return 0;
}

int mt_listen(struct mt_listener *l, const char *path, struct mt_err *e)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int dir, rc;

    l->fd = -1;
    if (!*path)
        return mt_err_set(e, -EINVAL, "an empty socket path");
    if (strlen(path) >= sizeof(a.sun_path))
        return mt_err_set(e, -ENAMETOOLONG,
                          "%s: a socket's path has at most %zu bytes, this has %zu", path,
                          sizeof(a.sun_path) - 1, strlen(path));
    memcpy(a.sun_path, path, strlen(path) + 1);
    dir = lock_directory(path, e);
    if (dir < 0)
        return dir;
    rc = clear_path(path, &a, e);
    if (!rc)
        rc = bind_and_listen(l, path, &a, e);
    close(dir);
    return rc;
}

void mt_listen_unlink(const struct mt_listener *l, const char *path)
{
    struct stat st;

    if (lstat(path, &st) == 0 && st.st_dev == l->dev && st.st_ino == l->ino)
        unlink(path);
}
