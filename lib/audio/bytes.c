/*
 * bytes.c: a buffered forward reader over a descriptor. It asks the system for whatever is there
 * and never waits for more than the caller needs: that keeps the delay of a live pipe low.
 */
#include "audio/internal.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BYTES_BUFFER = 64 * 1024 };

int64_t mt_read_some(int fd, void *buf, size_t n)
{
    for (;;) {
        ssize_t got = read(fd, buf, n);
        struct pollfd p = {.fd = fd, .events = POLLIN};

        if (got >= 0)
            return got;
        if (errno == EAGAIN || errno == EWOULDBLOCK)
            (void)poll(&p, 1, -1);
        else if (errno != EINTR)
            return -errno;
    }
}

int mt_bytes_init(struct mt_bytes *b, int fd, int64_t regular_size, const char *name)
{
    *b = (struct mt_bytes){.fd = fd, .name = name, .cap = BYTES_BUFFER, .size = regular_size};
    b->regular = regular_size >= 0;
    b->buf = malloc(b->cap);
    return b->buf ? 0 : -ENOMEM;
}

/* Room behind the buffered bytes: what is consumed goes, unless it is kept. */
static int make_room(struct mt_bytes *b, size_t n)
{
    unsigned char *grown;

    if (!b->keep && b->pos > 0) {
        memmove(b->buf, b->buf + b->pos, b->len - b->pos);
        b->base += (int64_t)b->pos;
        b->len -= b->pos;
        b->pos = 0;
    }
    if (b->pos + n <= b->cap && b->len < b->cap)
        return 0;
    grown = realloc(b->buf, 2 * (b->pos + n));
    if (!grown)
        return -ENOMEM;
    b->buf = grown;
    b->cap = 2 * (b->pos + n);
    return 0;
}

int64_t mt_bytes_need(struct mt_bytes *b, size_t n, struct mt_err *e)
{
    while (b->len - b->pos < n && !b->end) {
        int64_t got;

        if (make_room(b, n) < 0)
            return mt_err_set(e, -ENOMEM, "%s: out of memory", b->name);
        got = mt_read_some(b->fd, b->buf + b->len, b->cap - b->len);
        if (got < 0)
            return mt_err_set(e, (int)got, "%s: %s", b->name, strerror((int)-got));
        b->end = got == 0;
        b->len += (size_t)got;
    }
    return (int64_t)(b->len - b->pos);
}

/* Move past n bytes or to the end, whichever comes first. Returns the bytes passed, or -errno. */
int64_t mt_bytes_skip(struct mt_bytes *b, int64_t n, struct mt_err *e)
{
    int64_t left = n;

    while (left > 0) {
        int64_t have = mt_bytes_need(b, 1, e);

        if (have < 0)
            return have;
        if (have == 0)
            break;
        if (have > left)
            have = left;
        b->pos += (size_t)have;
        left -= have;
    }
    return n - left;
}
