/*
 * lines.c: lines from a descriptor, with a bound: a line above max costs no memory beyond it, is
 * skipped to its end and reported once. Reads with read(2), so that a line is there as soon as it
 * was written. The descriptor stays the caller's.
 */
#include "base/base.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FIRST_ROOM 8192

struct mt_lines {
    int fd;
    bool eof;
    bool skipping; /* inside a line that was too long */
    size_t max;
    char *buf;
    size_t room;
    size_t from, to; /* bytes not yet given out */
    size_t scanned;  /* of them, known to hold no newline */
};

int mt_lines_open(struct mt_lines **out, int fd, size_t max)
{
    struct mt_lines *l;

    *out = NULL;
    if (fd < 0 || max == 0 || max > SIZE_MAX / 4)
        return -EINVAL;
    l = calloc(1, sizeof(*l));
    if (!l)
        return -ENOMEM;
    l->fd = fd;
    l->max = max;
    /* A whole line, its newline, and the NUL behind a last line without one. */
    l->room = max + 2 < FIRST_ROOM ? max + 2 : FIRST_ROOM;
    l->buf = malloc(l->room);
    if (!l->buf) {
        free(l);
        return -ENOMEM;
    }
    *out = l;
    return 0;
}

/* Make space behind the bytes at hand: move them to the front, then grow up to a line of max. */
static int make_room(struct mt_lines *l)
{
    size_t room;
    char *buf;

    if (l->from > 0) {
        memmove(l->buf, l->buf + l->from, l->to - l->from);
        l->to -= l->from;
        l->from = 0;
    }
    if (l->to + 1 < l->room)
        return 0;
    room = l->max + 2;
    if (room / 2 > l->room)
        room = 2 * l->room;
    if (room <= l->room)
        return -E2BIG; /* can't be: a line longer than max was dropped before */
    buf = realloc(l->buf, room);
    if (!buf)
        return -ENOMEM;
    l->buf = buf;
    l->room = room;
    return 0;
}

int64_t mt_lines_next(struct mt_lines *l, char **line)
{
    *line = NULL;
    for (;;) {
        char *start = l->buf + l->from;
        size_t have = l->to - l->from;
        char *nl = memchr(start + l->scanned, '\n', have - l->scanned);
        ssize_t n;
        int rc;

        if (nl || (l->eof && have > 0)) {
            size_t len = nl ? (size_t)(nl - start) : have;

            l->from += len + (nl != NULL);
            l->scanned = 0;
            if (l->skipping || len > l->max) {
                l->skipping = false;
                return -E2BIG;
            }
            start[len] = '\0';
            *line = start;
            return (int64_t)len;
        }
        if (l->eof) {
            if (!l->skipping)
                return 0;
            l->skipping = false;
            return -E2BIG;
        }
        if (have > l->max) {
            l->skipping = true;
            l->from = l->to = l->scanned = 0;
            continue;
        }
        l->scanned = have;
        if ((rc = make_room(l)) < 0)
            return rc;
        n = read(l->fd, l->buf + l->to, l->room - 1 - l->to);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -errno;
        if (n == 0)
            l->eof = true;
        l->to += (size_t)n;
    }
}

void mt_lines_close(struct mt_lines **l)
{
    if (!*l)
        return;
    free((*l)->buf);
    free(*l);
    *l = NULL;
}

int mt_lines_each(int fd, size_t max, int (*take)(void *ctx, const char *line, size_t n), void *ctx,
                  int64_t *broken)
{
    struct mt_lines *l;
    char *line;
    int64_t n = 0;
    int rc = mt_lines_open(&l, fd, max);

    while (rc >= 0 && ((n = mt_lines_next(l, &line)) > 0 || line || n == -E2BIG)) {
        if (n != 0)
            rc = n > 0 ? take(ctx, line, (size_t)n) : -EBADMSG;
        if (rc == -EBADMSG) {
            ++*broken;
            rc = 0;
        }
    }
    mt_lines_close(&l);
    return rc < 0 ? rc : (int)n;
}
