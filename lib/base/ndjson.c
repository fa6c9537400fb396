/*
 * ndjson.c: records out, and the end of stdout. Every record of every tool goes through
 * mt_json_line(): compact, UTF-8, one write and one flush a line, so that a reader sees whole lines
 * and a kill loses at most one.
 */
#include "base/base.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio_ext.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* 15 digits print each number of mt_json_real() as it was meant (0.1, not 0.10000000000000001). */
#define LINE_FLAGS (JSON_COMPACT | JSON_REAL_PRECISION(15))

/* Why stdout first failed: stdio keeps the fact (ferror) but not the errno. */
static atomic_int stdout_errno;

int mt_json_line(FILE *out, json_t *obj)
{
    char *text;
    size_t n;
    int rc = 0;

    if (!obj)
        return -ENOMEM;
    text = json_dumps(obj, LINE_FLAGS);
    json_decref(obj);
    if (!text)
        return -ENOMEM;
    n = strlen(text);
    text[n] = '\n'; /* takes the terminator's place; only n + 1 bytes are written */
    errno = 0;
    if (fwrite(text, 1, n + 1, out) != n + 1 || fflush(out))
        rc = errno ? -errno : -EIO;
    if (rc && out == stdout && !stdout_errno)
        stdout_errno = -rc;
    free(text);
    return rc;
}

int mt_bytes_out(FILE *out, const void *bytes, size_t n)
{
    int rc = 0;

    errno = 0;
    if (fwrite(bytes, 1, n, out) != n || fflush(out))
        rc = errno ? -errno : -EIO;
    if (rc && out == stdout && !stdout_errno)
        stdout_errno = -rc;
    return rc;
}

int mt_line_end(FILE *out)
{
    return mt_bytes_out(out, "\n", 1);
}

json_t *mt_json_real(double v)
{
    if (!isfinite(v))
        return NULL;
    /* Above 1e9 the sixth decimal is beyond what 15 digits show, and v * 1e6 may overflow. */
    return json_real(fabs(v) < 1e9 ? round(v * 1e6) / 1e6 + 0.0 : v); /* + 0: never -0 */
}

void mt_json_set_real(json_t *obj, const char *key, double v)
{
    json_t *value = mt_json_real(v);

    if (value)
        json_object_set_new(obj, key, value);
}

/*
 * Whether the reader of stdout left: asked of the descriptor when a print failed whose errno nobody
 * kept.
 */
static bool reader_left(void)
{
    struct pollfd p = {.fd = STDOUT_FILENO, .events = POLLOUT};

    return poll(&p, 1, 0) == 1 && (p.revents & (POLLERR | POLLHUP));
}

int mt_close_stdout(int status)
{
    static bool closed;

    if (closed)
        return status;
    closed = true;
    bool lost_before = ferror(stdout) != 0;
    bool wrote = __fpending(stdout) != 0 || lost_before;
    int err = stdout_errno;

    if (!err && lost_before)
        err = reader_left() ? EPIPE : EIO;
    if (fflush(stdout) && !err)
        err = errno;
    if (fclose(stdout) && !err && (errno != EBADF || wrote))
        err = errno; /* EBADF with nothing to say: the caller closed stdout, and that is fine */
    if (!err || err == EPIPE)
        return status;
    mt_msg(MT_ERROR, "standard output: %s", strerror(err));
    return MT_EXIT_FAILED;
}

static void close_stdout(void)
{
    if (mt_close_stdout(MT_EXIT_OK) != MT_EXIT_OK)
        _exit(MT_EXIT_FAILED);
}

void mt_close_stdout_at_exit(void)
{
    atexit(close_stdout);
}
