/*
 * state.c: the members of a state, one behind the other, in or out.
 */
#include "base/state.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define ALIGN 8

int mt_state_fail(struct mt_state_io *io, int code, const char *fmt, ...)
{
    char text[sizeof(io->err.text)];
    va_list ap;

    if (io->err.code)
        return io->err.code;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    return mt_err_set(&io->err, code, "%s", text);
}

int mt_state_reserve(struct mt_state_io *io, size_t n)
{
    size_t cap = io->cap + io->cap / 2;
    unsigned char *data;

    if (io->load || io->cap - io->n >= n)
        return io->err.code;
    if (n > SIZE_MAX / 4 - io->n)
        return mt_state_fail(io, -ENOMEM, "a state of %zu bytes", n);
    cap = cap < io->n + n ? io->n + n : cap;
    if (!(data = realloc(io->data, cap)))
        return mt_state_fail(io, -ENOMEM, "out of memory for a state of %zu bytes", cap);
    io->data = data;
    io->cap = cap;
    return io->err.code;
}

int mt_state_end(struct mt_state_io *io)
{
    if (io->load && io->at != io->n)
        return mt_state_fail(io, -EPROTO, "%zu bytes behind the end of the state", io->n - io->at);
    return io->err.code;
}

void *mt_state_block(struct mt_state_io *io, const char *what, size_t n)
{
    size_t whole = n + (ALIGN - n % ALIGN) % ALIGN;
    unsigned char *at;

    if (io->err.code)
        return NULL;
    if (whole < n || (io->load && whole > io->n - io->at)) {
        mt_state_fail(io, -EPROTO, "%s: %zu bytes are announced, %zu are left", what, n,
                      io->n - io->at);
        return NULL;
    }
    if (io->load) {
        at = io->data + io->at;
        io->at += whole;
        return at;
    }
    if (mt_state_reserve(io, whole + ALIGN) < 0)
        return NULL;
    at = io->data + io->n;
    if (whole > n)
        memset(at + n, 0, whole - n);
    io->n += whole;
    return at;
}

void mt_state_bytes(struct mt_state_io *io, const char *what, void *v, size_t n)
{
    void *at = mt_state_block(io, what, n);

    if (!at || n == 0)
        return;
    if (io->load)
        memcpy(v, at, n);
    else
        memcpy(at, v, n);
}

void mt_state_u64(struct mt_state_io *io, const char *what, uint64_t *v)
{
    mt_state_bytes(io, what, v, sizeof(*v));
}

void mt_state_i64(struct mt_state_io *io, const char *what, int64_t *v, int64_t lo, int64_t hi)
{
    int64_t is = *v;

    mt_state_bytes(io, what, &is, sizeof(is));
    if (!mt_state_ok(io))
        return;
    if (is < lo || is > hi)
        mt_state_fail(io, -EPROTO, "%s: %" PRId64 " is not in %" PRId64 "..%" PRId64, what, is, lo,
                      hi);
    else
        *v = is;
}

void mt_state_int(struct mt_state_io *io, const char *what, int *v, int lo, int hi)
{
    int64_t is = *v;

    mt_state_i64(io, what, &is, lo, hi);
    if (mt_state_ok(io))
        *v = (int)is;
}

void mt_state_size(struct mt_state_io *io, const char *what, size_t *v, size_t hi)
{
    int64_t is = (int64_t)*v;

    mt_state_i64(io, what, &is, 0, (int64_t)hi);
    if (mt_state_ok(io))
        *v = (size_t)is;
}

void mt_state_bool(struct mt_state_io *io, const char *what, bool *v)
{
    int is = *v;

    mt_state_int(io, what, &is, 0, 1);
    if (mt_state_ok(io))
        *v = is != 0;
}

void mt_state_f64(struct mt_state_io *io, const char *what, double *v)
{
    double is = *v;

    mt_state_bytes(io, what, &is, sizeof(is));
    if (mt_state_ok(io) && isnan(is))
        mt_state_fail(io, -EPROTO, "%s: not a number", what);
    else if (mt_state_ok(io))
        *v = is;
}

void mt_state_f32(struct mt_state_io *io, const char *what, float *v)
{
    double is = (double)*v;

    mt_state_f64(io, what, &is);
    if (mt_state_ok(io))
        *v = (float)is;
}

void mt_state_ids(struct mt_state_io *io, const char *what, int32_t *v, size_t n, int32_t lo,
                  int32_t hi)
{
    mt_state_bytes(io, what, v, n * sizeof(*v));
    for (size_t i = 0; mt_state_ok(io) && i < n; i++)
        if (v[i] < lo || v[i] > hi)
            mt_state_fail(io, -EPROTO, "%s %zu: %" PRId32 " is not in %" PRId32 "..%" PRId32, what,
                          i, v[i], lo, hi);
}

void mt_state_floats(struct mt_state_io *io, const char *what, float *v, size_t n)
{
    mt_state_bytes(io, what, v, n * sizeof(*v));
    for (size_t i = 0; mt_state_ok(io) && i < n; i++)
        if (isnan(v[i]))
            mt_state_fail(io, -EPROTO, "%s %zu: not a number", what, i);
}

void mt_state_text(struct mt_state_io *io, const char *what, char **v, size_t most)
{
    int64_t n = *v ? (int64_t)strlen(*v) : -1;

    mt_state_i64(io, what, &n, -1, (int64_t)most);
    if (!mt_state_ok(io) || n < 0)
        return;
    if (io->load && !(*v = calloc((size_t)n + 1, 1)))
        mt_state_fail(io, -ENOMEM, "out of memory");
    else
        mt_state_bytes(io, what, *v, (size_t)n);
}

void mt_state_same(struct mt_state_io *io, const char *what, int64_t v)
{
    int64_t is = v;

    mt_state_bytes(io, what, &is, sizeof(is));
    if (mt_state_ok(io) && is != v)
        mt_state_fail(io, -EINVAL, "%s: %" PRId64 " when it was saved, %" PRId64 " here", what, is,
                      v);
}
