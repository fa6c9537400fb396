/*
 * client.c: a control connection, blocking, with a limit on each wait. Used by tools that ask one
 * thing or listen; sessions of mt-feed run their own loop over the same parser.
 */
#include "wire/addr.h"
#include "wire/internal.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

struct mt_wire_client {
    int fd;
    int64_t timeout_ns;
    char *path;
    struct mt_wire_parser parser;
    json_t *queue; /* array: read and not yet given out */
    bool eof;
    bool heard; /* the first object came, and its version was right */
    struct mt_err broken;
};

static int64_t now_ns(void)
{
    struct mt_clock c = mt_clock_real();

    return c.now_ns(&c);
}

static int on_message(void *ctx, json_t *msg, int64_t payload)
{
    struct mt_wire_client *c = ctx;
    int rc;

    (void)payload;
    if (!c->heard && (rc = mt_wire_check_version(msg, &c->broken)) < 0)
        return rc;
    c->heard = true;
    return json_array_append(c->queue, msg) ? -ENOMEM : 0;
}

static int skip_payload(void *ctx, const unsigned char *bytes, size_t n)
{
    (void)ctx, (void)bytes, (void)n;
    return 0;
}

static int connect_error(int err, const char *path, struct mt_err *e)
{
    switch (err) {
    case ENOENT:
        return mt_err_set(e, -err, "%s: no such socket (is mt-serve -s running?)", path);
    case ECONNREFUSED:
        return mt_err_set(e, -err, "%s: nobody listens there (its server is gone)", path);
    case ENOTSOCK:
    case EPROTOTYPE:
        return mt_err_set(e, -err, "%s: not a stream socket", path);
    case EAGAIN:
    case ETIMEDOUT:
        return mt_err_set(e, -ETIMEDOUT, "%s: the server does not accept connections", path);
    default:
        return mt_err_set(e, -err, "%s: %s", path, strerror(err));
    }
}

/* As mt_addr_connect; a full backlog of a Unix socket is tried again until the time is up. */
static int connect_until(const struct mt_addr *a, int64_t until)
{
    int fd;

    while ((fd = mt_addr_connect(a, until, NULL)) == -EAGAIN) {
        struct timespec nap = {.tv_nsec = 5 * MT_NS_PER_MS};

        if (now_ns() >= until)
            break;
        nanosleep(&nap, NULL);
    }
    return fd;
}

int mt_wire_connect(struct mt_wire_client **out, const char *path, int64_t timeout_ns,
                    struct mt_err *e)
{
    struct mt_wire_client *c;
    struct mt_addr a;
    int rc;

    *out = NULL;
    if ((rc = mt_addr_parse(&a, path, e)) < 0)
        return rc;
    c = calloc(1, sizeof(*c));
    if (!c)
        return mt_err_set(e, -ENOMEM, "out of memory");
    mt_wire_parser_init(&c->parser);
    c->parser.ctx = c;
    c->parser.on_message = on_message;
    c->parser.on_payload = skip_payload;
    c->timeout_ns = timeout_ns;
    c->path = strdup(path);
    c->queue = json_array();
    c->fd = -1;
    if (!c->path || !c->queue)
        rc = mt_err_set(e, -ENOMEM, "out of memory");
    else if ((c->fd = connect_until(&a, timeout_ns ? now_ns() + timeout_ns : INT64_MAX)) < 0)
        rc = connect_error(-c->fd, path, e);
    if (rc < 0)
        mt_wire_disconnect(&c);
    *out = c;
    return rc;
}

void mt_wire_disconnect(struct mt_wire_client **c)
{
    if (!*c)
        return;
    if ((*c)->fd >= 0)
        close((*c)->fd);
    mt_wire_parser_free(&(*c)->parser);
    json_decref((*c)->queue);
    free((*c)->path);
    free(*c);
    *c = NULL;
}

int mt_wire_fd(const struct mt_wire_client *c)
{
    return c->fd;
}

static int send_all(struct mt_wire_client *c, const char *bytes, size_t n, struct mt_err *e)
{
    int64_t until = c->timeout_ns ? now_ns() + c->timeout_ns : INT64_MAX;

    while (n > 0) {
        ssize_t k = send(c->fd, bytes, n, MSG_NOSIGNAL);
        int rc;

        if (k >= 0) {
            bytes += k;
            n -= (size_t)k;
            continue;
        }
        if (errno != EAGAIN && errno != EINTR)
            return mt_err_set(e, -errno, "%s: %s", c->path,
                              errno == EPIPE ? "the server closed the connection"
                                             : strerror(errno));
        if (errno == EAGAIN && (rc = mt_addr_wait(c->fd, POLLOUT, until)) < 0 && rc != -EINTR)
            return mt_err_set(e, rc, "%s: the server does not read", c->path);
    }
    return 0;
}

int mt_wire_send(struct mt_wire_client *c, json_t *msg, const void *payload, size_t n,
                 struct mt_err *e)
{
    size_t len = 0;
    char *line = mt_wire_line(msg, &len);
    int rc;

    if (!line)
        return mt_err_set(e, -ENOMEM, "out of memory");
    rc = send_all(c, line, len, e);
    free(line);
    return rc < 0 ? rc : send_all(c, payload, n, e);
}

/* Read once what is there. */
static void read_some(struct mt_wire_client *c)
{
    unsigned char buf[16384];
    ssize_t n = recv(c->fd, buf, sizeof(buf), 0);
    int rc;

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return;
    if (n <= 0) { /* ECONNRESET too: the server closed without reading all that we sent */
        c->eof = true;
        if (n < 0 && errno != ECONNRESET)
            mt_err_set(&c->broken, -errno, "%s", strerror(errno));
        else
            mt_wire_parse_end(&c->parser, &c->broken);
        return;
    }
    if ((rc = mt_wire_parse(&c->parser, buf, (size_t)n, &c->broken)) < 0)
        mt_err_set(&c->broken, rc, "%s", strerror(-rc));
}

int mt_wire_recv(struct mt_wire_client *c, json_t **msg, struct mt_err *e)
{
    int64_t until = c->timeout_ns ? now_ns() + c->timeout_ns : INT64_MAX;
    int rc;

    *msg = NULL;
    for (;;) {
        if (json_array_size(c->queue) > 0) {
            *msg = json_incref(json_array_get(c->queue, 0));
            json_array_remove(c->queue, 0);
            return 1;
        }
        if (c->broken.code)
            return mt_err_set(e, c->broken.code, "%s: %s", c->path, c->broken.text);
        if (c->eof)
            return 0;
        rc = mt_addr_wait(c->fd, POLLIN, until);
        if (rc == -EINTR)
            return rc;
        if (rc < 0)
            return mt_err_set(e, rc, "%s: no answer within %g s", c->path,
                              (double)c->timeout_ns / 1e9);
        read_some(c);
    }
}
