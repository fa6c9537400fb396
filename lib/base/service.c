/*
 * service.c: systemd's protocols, which are small and stable enough to need no library: variables,
 * descriptors from 3 on, and datagrams.
 */
#include "base/service.h"

#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define FIRST_FD 3

/* A number of the environment that is meant for this process, or 0. */
static int64_t number_of(const char *name, int64_t max)
{
    const char *text = getenv(name);
    int64_t n;

    return text && mt_parse_i64(text, 1, max, &n) == 0 ? n : 0;
}

/* Nothing is handed on to children. */
static void forget_listening(void)
{
    static const char *const names[] = {"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES",
                                        "LISTEN_PIDFDID"};

    for (size_t i = 0; i < MT_COUNT(names); i++)
        unsetenv(names[i]);
}

static int check_one(int fd, struct mt_err *e)
{
    int type = 0, listens = 0, flags = fcntl(fd, F_GETFD);
    socklen_t n = sizeof(type), m = sizeof(listens);

    if (flags < 0)
        return mt_err_set(e, -EINVAL, "LISTEN_FDS: descriptor %d: %s", fd, strerror(errno));
    if (getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &n) < 0 || type != SOCK_STREAM ||
        getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &m) < 0 || !listens)
        return mt_err_set(e, -EINVAL,
                          "LISTEN_FDS: descriptor %d is not a stream socket that listens "
                          "(Accept=no)",
                          fd);
    if (fcntl(fd, F_SETFD, flags | FD_CLOEXEC) < 0)
        return mt_err_set(e, -errno, "LISTEN_FDS: descriptor %d: %s", fd, strerror(errno));
    return 0;
}

/* Names stand in the descriptors' order, with colons between them. */
static const char *take_name(const char *names, char out[64])
{
    size_t n = strcspn(names, ":");

    snprintf(out, 64, "%.*s", (int)(n < 63 ? n : 63), names);
    return names[n] ? names + n + 1 : names + n;
}

int mt_service_fds(struct mt_service_fd *out, int max, struct mt_err *e)
{
    int64_t pid = number_of("LISTEN_PID", INT32_MAX), n = number_of("LISTEN_FDS", 1024);
    const char *names = getenv("LISTEN_FDNAMES");
    int rc = 0;

    if (pid != getpid())
        n = 0; /* another process's */
    if (n > max)
        rc = mt_err_set(e, -EINVAL, "LISTEN_FDS: at most %d sockets are taken, not %lld", max,
                        (long long)n);
    for (int i = 0; i < n && !rc; i++) {
        out[i].fd = FIRST_FD + i;
        out[i].name[0] = '\0';
        if (names)
            names = take_name(names, out[i].name);
        rc = check_one(out[i].fd, e);
    }
    forget_listening();
    return rc < 0 ? rc : (int)n;
}

/* Where the manager listens, NULL: there is none. */
static const char *manager(void)
{
    const char *path = getenv("NOTIFY_SOCKET");

    return path && (*path == '/' || *path == '@') && path[1] ? path : NULL;
}

bool mt_service_managed(void)
{
    return manager() != NULL;
}

int mt_service_notify(const char *state)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    const char *path = manager();
    int fd, rc = 0;
    size_t n;

    if (!path)
        return 0;
    n = strlen(path);
    if (n >= sizeof(a.sun_path))
        return -ENAMETOOLONG;
    memcpy(a.sun_path, path, n);
    if (*path == '@') /* a name that is no file's */
        a.sun_path[0] = '\0';
    fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    if (sendto(fd, state, strlen(state), MSG_NOSIGNAL | MSG_DONTWAIT, (struct sockaddr *)&a,
               (socklen_t)(offsetof(struct sockaddr_un, sun_path) + n)) < 0)
        rc = -errno;
    close(fd);
    return rc;
}

int64_t mt_service_watchdog_ns(void)
{
    const char *pid = getenv("WATCHDOG_PID");
    int64_t usec = number_of("WATCHDOG_USEC", INT64_MAX / 1000);

    if (pid && number_of("WATCHDOG_PID", INT32_MAX) != getpid())
        return 0;
    return usec * 1000;
}
