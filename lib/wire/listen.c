/*
 * listen.c: a listening socket. A file of one is made so that nobody else's is lost: whether the
 * one that is there is stale is asked by connecting, and asking, removing and binding are one step
 * under a lock on the directory, since two servers that start at once would else each take the
 * other's new socket for a stale one.
 */
#include "wire/listen.h"
#include "wire/wire.h"

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
static int clear_path(const char *path, const struct mt_addr_one *a, struct mt_err *e)
{
    struct stat st;
    int fd, err;

    if (lstat(path, &st) < 0)
        return errno == ENOENT ? 0 : fail(e, path, errno);
    if (!S_ISSOCK(st.st_mode))
        return mt_err_set(e, -EEXIST, "%s: exists and is not a socket; it is left alone", path);
    fd = mt_addr_dial(a);
    err = fd < 0 ? -fd : 0;
    if (fd >= 0)
        close(fd);
    if (err == 0 || err == EAGAIN) /* EAGAIN: a live one whose queue is full */
        return mt_err_set(e, -EADDRINUSE, "%s: another server listens there", path);
    if (err != ECONNREFUSED)
        return fail(e, path, err);
    return unlink(path) < 0 && errno != ENOENT ? fail(e, path, errno) : 0;
}

/* Bound and listening, or a negative errno. */
static int bind_and_listen(const struct mt_addr_one *a)
{
    int fd = socket(a->sa.ss_family, a->type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int on = 1, err = 0;
    mode_t mask;

    if (fd < 0)
        return -errno;
    if (a->sa.ss_family != AF_UNIX)
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    mask = umask(0177);
    if (bind(fd, (const struct sockaddr *)&a->sa, a->len) < 0)
        err = errno;
    umask(mask);
    if (!err && listen(fd, BACKLOG) < 0)
        err = errno;
    if (!err)
        return fd;
    close(fd);
    return -err;
}

static int listen_path(struct mt_listener *l, const struct mt_addr *a, struct mt_err *e)
{
    const char *path = ((const struct sockaddr_un *)&a->at[0].sa)->sun_path;
    int dir = lock_directory(path, e), rc;
    struct stat st = {0};

    if (dir < 0)
        return dir;
    rc = clear_path(path, &a->at[0], e);
    if (!rc && ((l->fd = bind_and_listen(&a->at[0])) < 0 || lstat(path, &st) < 0)) {
        rc = fail(e, path, l->fd < 0 ? -l->fd : errno);
        if (l->fd >= 0)
            close(l->fd);
        l->fd = -1;
    }
    close(dir);
    l->dev = st.st_dev;
    l->ino = st.st_ino;
    return rc;
}

/* The first of a name's addresses that can be had. */
static int listen_tcp(struct mt_listener *l, const struct mt_addr *a, const char *where,
                      struct mt_err *e)
{
    int fd = -EADDRNOTAVAIL;

    for (int i = 0; i < a->n && fd < 0; i++)
        fd = bind_and_listen(&a->at[i]);
    if (fd < 0)
        return fail(e, where, -fd);
    l->fd = fd;
    return 0;
}

/* Where it is bound, in the words of mt_listen or of mt_listen_service. */
static void name_it(struct mt_listener *l, bool service)
{
    char name[MT_ADDR_TEXT];

    mt_addr_name(l->fd, name);
    if (!service)
        snprintf(l->where, sizeof(l->where), "%s", name);
    else if (mt_wire_is_tcp(name))
        snprintf(l->where, sizeof(l->where), "%s", name + strlen("tcp:"));
    else
        snprintf(l->where, sizeof(l->where), "unix:%.*s", MT_ADDR_TEXT - 6, name);
}

static int listen_at(struct mt_listener *l, const struct mt_addr *a, const char *where,
                     bool service, struct mt_err *e)
{
    int rc = a->tcp ? listen_tcp(l, a, where, e) : listen_path(l, a, e);

    if (rc < 0)
        return rc;
    snprintf(l->asked, sizeof(l->asked), "%s", where);
    snprintf(l->where, sizeof(l->where), "%s", where);
    if (a->tcp)
        name_it(l, service);
    return 0;
}

int mt_listen(struct mt_listener *l, const char *where, struct mt_err *e)
{
    struct mt_addr a;
    int rc = mt_addr_parse(&a, where, e);

    *l = (struct mt_listener){.fd = -1};
    return rc < 0 ? rc : listen_at(l, &a, where, false, e);
}

int mt_listen_service(struct mt_listener *l, const char *where, struct mt_err *e)
{
    struct mt_addr a;
    int rc = mt_addr_parse_service(&a, where, e);

    *l = (struct mt_listener){.fd = -1};
    return rc < 0 ? rc : listen_at(l, &a, where, true, e);
}

int mt_listen_packets(struct mt_listener *l, const char *path, struct mt_err *e)
{
    struct mt_addr a;
    int rc = mt_addr_packets(&a, path, e);

    *l = (struct mt_listener){.fd = -1};
    return rc < 0 ? rc : listen_at(l, &a, path, false, e);
}

void mt_listen_adopt(struct mt_listener *l, int fd)
{
    *l = (struct mt_listener){.fd = fd};
    name_it(l, false);
}

void mt_listen_adopt_service(struct mt_listener *l, int fd)
{
    *l = (struct mt_listener){.fd = fd};
    name_it(l, true);
}

void mt_listen_unlink(const struct mt_listener *l)
{
    const char *path = !strncmp(l->where, "unix:", 5) ? l->where + 5 : l->where;
    struct stat st;

    if (l->ino && !l->theirs && lstat(path, &st) == 0 && st.st_dev == l->dev && st.st_ino == l->ino)
        unlink(path);
}
