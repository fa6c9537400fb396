/*
 * addr.c: names of servers, to addresses and back. What looks up names may take a while: tools do
 * it once, at their start.
 */
#include "wire/addr.h"
#include "wire/wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define TCP "tcp:"

static int parse_path(struct mt_addr *a, const char *path, struct mt_err *e)
{
    struct sockaddr_un *un = (struct sockaddr_un *)&a->at[0].sa;

    if (!*path)
        return mt_err_set(e, -EINVAL, "an empty socket path");
    if (strlen(path) >= sizeof(un->sun_path))
        return mt_err_set(e, -ENAMETOOLONG,
                          "%s: a socket's path has at most %zu bytes, this has %zu", path,
                          sizeof(un->sun_path) - 1, strlen(path));
    un->sun_family = AF_UNIX;
    memcpy(un->sun_path, path, strlen(path) + 1);
    a->at[0].len = sizeof(*un);
    a->at[0].type = SOCK_STREAM;
    a->n = 1;
    return 0;
}

/* "HOST:PORT", "[V6]:PORT", or where a host may be missing "PORT", taken apart in place. */
static bool split(char *where, const char *missing, const char **host, const char **port)
{
    char *colon = strrchr(where, ':');
    int64_t n;

    *host = missing;
    *port = colon ? colon + 1 : where;
    if (colon && colon != where) {
        *colon = '\0';
        *host = where;
        if (*where == '[' && colon[-1] == ']') {
            colon[-1] = '\0';
            *host = where + 1;
        } else if (strchr(where, ':')) {
            return false;
        }
    }
    return *host && **host && mt_parse_i64(*port, 0, 65535, &n) == 0;
}

/* full: what the user wrote, for messages; form: what is expected. */
static int parse_tcp(struct mt_addr *a, const char *where, const char *missing, const char *full,
                     const char *form, struct mt_err *e)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list;
    const char *host, *port;
    char buf[300];
    int rc;

    if (snprintf(buf, sizeof(buf), "%s", where) >= (int)sizeof(buf) ||
        !split(buf, missing, &host, &port))
        return mt_err_set(e, -EINVAL, "'%.80s' is not %s", full, form);
    if ((rc = getaddrinfo(host, port, &hints, &list)) != 0)
        return mt_err_set(e, -EADDRNOTAVAIL, "%s: %s", full, gai_strerror(rc));
    a->tcp = true;
    for (const struct addrinfo *i = list; i && a->n < MT_ADDRS; i = i->ai_next) {
        memcpy(&a->at[a->n].sa, i->ai_addr, i->ai_addrlen);
        a->at[a->n].type = SOCK_STREAM;
        a->at[a->n++].len = i->ai_addrlen;
    }
    freeaddrinfo(list);
    return 0;
}

int mt_addr_parse(struct mt_addr *a, const char *where, struct mt_err *e)
{
    *a = (struct mt_addr){0};
    if (!mt_wire_is_tcp(where))
        return parse_path(a, where, e);
    return parse_tcp(a, where + strlen(TCP), NULL, where, "tcp:HOST:PORT or tcp:[V6]:PORT", e);
}

int mt_addr_parse_service(struct mt_addr *a, const char *where, struct mt_err *e)
{
    *a = (struct mt_addr){0};
    if (!strncmp(where, "unix:", 5))
        return parse_path(a, where + 5, e);
    return parse_tcp(a, where, "127.0.0.1", where, "HOST:PORT, [V6]:PORT, PORT or unix:PATH", e);
}

int mt_addr_packets(struct mt_addr *a, const char *path, struct mt_err *e)
{
    int rc;

    *a = (struct mt_addr){0};
    if ((rc = parse_path(a, path, e)) == 0)
        a->at[0].type = SOCK_SEQPACKET;
    return rc;
}

static bool is_loopback(const struct sockaddr_storage *sa)
{
    struct sockaddr_in6 v6 = {0};
    struct sockaddr_in v4;

    if (sa->ss_family == AF_INET) {
        memcpy(&v4, sa, sizeof(v4));
        return ntohl(v4.sin_addr.s_addr) >> 24 == 127;
    }
    memcpy(&v6, sa, sizeof(v6));
    if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr))
        return v6.sin6_addr.s6_addr[12] == 127;
    return IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr);
}

bool mt_wire_is_tcp(const char *where)
{
    return !strncmp(where, TCP, strlen(TCP));
}

int mt_wire_public(const char *where, struct mt_err *e)
{
    struct mt_addr a;
    int rc = mt_addr_parse(&a, where, e);

    if (rc < 0 || !a.tcp)
        return rc;
    for (int i = 0; i < a.n; i++)
        if (!is_loopback(&a.at[i].sa))
            return 1;
    return 0;
}

bool mt_wire_public_fd(int fd)
{
    struct sockaddr_storage a = {0};
    socklen_t n = sizeof(a);

    return getsockname(fd, (struct sockaddr *)&a, &n) == 0 && a.ss_family != AF_UNIX &&
           !is_loopback(&a);
}

void mt_addr_name(int fd, char out[MT_ADDR_TEXT])
{
    struct sockaddr_storage a = {0};
    socklen_t n = sizeof(a);
    char host[256], port[16];

    *out = '\0';
    if (getsockname(fd, (struct sockaddr *)&a, &n) < 0)
        return;
    if (a.ss_family == AF_UNIX)
        snprintf(out, MT_ADDR_TEXT, "%.108s", ((struct sockaddr_un *)&a)->sun_path);
    else if (getnameinfo((struct sockaddr *)&a, n, host, sizeof(host), port, sizeof(port),
                         NI_NUMERICHOST | NI_NUMERICSERV) == 0)
        snprintf(out, MT_ADDR_TEXT, strchr(host, ':') ? TCP "[%s]:%s" : TCP "%s:%s", host, port);
}

int mt_addr_dial(const struct mt_addr_one *to)
{
    int fd = socket(to->sa.ss_family, to->type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int err;

    if (fd < 0)
        return -errno;
    mt_addr_tune(fd);
    if (connect(fd, (const struct sockaddr *)&to->sa, to->len) == 0 || errno == EINPROGRESS)
        return fd;
    err = errno;
    close(fd);
    return -err;
}

int mt_addr_wait(int fd, short events, int64_t until)
{
    struct pollfd p = {.fd = fd, .events = events};
    struct mt_clock clock = mt_clock_real();
    struct timespec ts, *limit = NULL;
    int n;

    if (until != INT64_MAX) {
        int64_t left = until - clock.now_ns(&clock);

        left = left < 0 ? 0 : left;
        ts = (struct timespec){.tv_sec = left / MT_NS_PER_S, .tv_nsec = left % MT_NS_PER_S};
        limit = &ts;
    }
    n = ppoll(&p, 1, limit, NULL);
    return n > 0 ? 0 : n == 0 ? -ETIMEDOUT : -errno;
}

/* The error that a connection came to, or 0. */
static int settle(int fd, int64_t until_ns)
{
    int err = 0, rc;
    socklen_t n = sizeof(err);

    while ((rc = mt_addr_wait(fd, POLLOUT, until_ns)) == -EINTR)
        ;
    if (rc < 0)
        return rc;
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &err, &n) < 0 ? -errno : -err;
}

int mt_addr_connect(const struct mt_addr *a, int64_t until_ns, int *which)
{
    int rc = -EADDRNOTAVAIL;

    for (int i = 0; i < a->n; i++) {
        int fd = mt_addr_dial(&a->at[i]);

        rc = fd < 0 ? fd : settle(fd, until_ns);
        if (which)
            *which = i;
        if (rc == 0)
            return fd;
        if (fd >= 0)
            close(fd);
    }
    return rc;
}

void mt_addr_peer(int fd, unsigned char out[MT_ADDR_PEER])
{
    struct sockaddr_storage a = {0};
    socklen_t n = sizeof(a);

    memset(out, 0, MT_ADDR_PEER);
    if (getpeername(fd, (struct sockaddr *)&a, &n) < 0)
        return;
    if (a.ss_family == AF_INET) {
        memcpy(out + 12, &((const struct sockaddr_in *)&a)->sin_addr, 4);
    } else if (a.ss_family == AF_INET6) {
        const struct in6_addr *v6 = &((const struct sockaddr_in6 *)&a)->sin6_addr;

        if (IN6_IS_ADDR_V4MAPPED(v6))
            memcpy(out + 12, v6->s6_addr + 12, 4);
        else
            memcpy(out, v6->s6_addr, 8);
    }
}

void mt_addr_tune(int fd)
{
    static const struct {
        int level, name, value;
    } options[] = {{IPPROTO_TCP, TCP_NODELAY, 1},   {SOL_SOCKET, SO_KEEPALIVE, 1},
                   {IPPROTO_TCP, TCP_KEEPIDLE, 15}, {IPPROTO_TCP, TCP_KEEPINTVL, 5},
                   {IPPROTO_TCP, TCP_KEEPCNT, 3},   {IPPROTO_TCP, TCP_USER_TIMEOUT, 30000}};
    int domain = AF_UNIX;
    socklen_t n = sizeof(domain);

    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &n) < 0 || domain == AF_UNIX)
        return;
    for (size_t i = 0; i < MT_COUNT(options); i++)
        setsockopt(fd, options[i].level, options[i].name, &options[i].value, sizeof(int));
}
