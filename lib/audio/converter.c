/*
 * converter.c: a resampler that can be saved. The sound is converted in parts of whole seconds. For
 * each a new resampler begins `context` samples before the part, more than its filter reaches back,
 * and at a place where an output sample falls on an input sample; what it makes of the context is
 * thrown away, and it ends when the part's last sample is out. `heard` is what it was fed, from
 * which another one comes to the same state.
 */
#include "audio/audio.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Nobody leaves more untaken than a piece of sound made; this is far more. */
#define UNTAKEN_MAX (1 << 20)

struct mt_converter {
    struct mt_resampler *r;
    int64_t context, skip; /* in samples heard, and made */
    int64_t part, part_out;
    int64_t n_most; /* of heard */
    float *heard;
    int64_t n_heard, cap_heard;
    bool later;   /* not the first part: the context stands before it */
    int64_t made; /* by r, the context's included … */
    int64_t told; /* … of which so many had been passed on before it was loaded */
    bool flushed;
    float *out;
    int64_t n_out, cap_out;
};

static int64_t gcd(int64_t a, int64_t b)
{
    while (b) {
        int64_t c = a % b;

        a = b;
        b = c;
    }
    return a;
}

int mt_converter_new(struct mt_converter **out, int from_hz, int to_hz, struct mt_err *e)
{
    struct mt_converter *c = calloc(1, sizeof(*c));
    int64_t unit, seconds, lag;
    int rc;

    *out = NULL;
    if (!c)
        return mt_err_set(e, -ENOMEM, "out of memory");
    if ((rc = mt_resampler_new(&c->r, from_hz, to_hz, e)) < 0) {
        mt_converter_free(&c);
        return rc;
    }
    unit = from_hz / gcd(from_hz, to_hz);
    lag = mt_resampler_lag(c->r);
    c->context = (2 * lag + unit - 1) / unit * unit;
    c->skip = c->context * to_hz / from_hz;
    seconds = (c->context + from_hz - 1) / from_hz;
    c->part = seconds * from_hz;
    c->part_out = seconds * to_hz;
    c->n_most = c->context + c->part + lag + 1;
    *out = c;
    return 0;
}

void mt_converter_free(struct mt_converter **cp)
{
    struct mt_converter *c = *cp;

    *cp = NULL;
    if (!c)
        return;
    mt_resampler_free(&c->r);
    free(c->heard);
    free(c->out);
    free(c);
}

int64_t mt_converter_lag(const struct mt_converter *c)
{
    return mt_resampler_lag(c->r);
}

/* n samples behind those that there are. */
static int append(float **to, int64_t *have, int64_t *cap, const float *from, int64_t n)
{
    if (n > *cap - *have) {
        int64_t want = *have + n + *cap / 2;
        float *p = realloc(*to, mt_mul((size_t)want, sizeof(*p)));

        if (!p)
            return -ENOMEM;
        *to = p;
        *cap = want;
    }
    if (n > 0)
        memcpy(*to + *have, from, (size_t)n * sizeof(*from));
    *have += n;
    return 0;
}

static int64_t end_of(const struct mt_converter *c)
{
    return c->part_out + (c->later ? c->skip : 0);
}

/* Through the resampler, and of what comes out that which belongs to this part. */
static int feed(struct mt_converter *c, const float *in, int64_t n)
{
    int64_t from = c->later && c->told < c->skip ? c->skip : c->told, to, got;
    const float *out;
    int rc = mt_resampler_push(c->r, in, n, &out, &got);

    if (rc < 0)
        return rc;
    from = from > c->made ? from : c->made;
    to = c->made + got < end_of(c) ? c->made + got : end_of(c);
    if (to > from)
        rc = append(&c->out, &c->n_out, &c->cap_out, out + (from - c->made), to - from);
    c->made += got;
    return rc;
}

/* The next part: what it needs of the sound before it is kept. */
static int begin_part(struct mt_converter *c)
{
    int64_t drop = c->later ? c->part : c->part - c->context;
    int rc = mt_resampler_restart(c->r);

    if (rc < 0 || drop > c->n_heard)
        return rc < 0 ? rc : -EPROTO;
    c->n_heard -= drop;
    memmove(c->heard, c->heard + drop, (size_t)c->n_heard * sizeof(*c->heard));
    c->later = true;
    c->made = c->told = 0;
    return c->n_heard > 0 ? feed(c, c->heard, c->n_heard) : 0;
}

/* in NULL: the end. */
static int convert(struct mt_converter *c, const float *in, int64_t n)
{
    int rc = feed(c, in, n);

    while (rc == 0 && c->made >= end_of(c)) {
        rc = begin_part(c);
        if (rc == 0 && !in)
            rc = feed(c, NULL, 0);
    }
    return rc;
}

int mt_converter_push(struct mt_converter *c, const float *in, int64_t n, const float **out,
                      int64_t *n_out)
{
    int rc = 0;

    c->n_out = 0;
    *n_out = 0;
    if (c->flushed || n < 0 || (!in && n > 0))
        return -EINVAL;
    c->flushed = !in;
    /* A part at a time: so there is never more to keep. */
    do {
        int64_t some = n < c->part ? n : c->part;

        if (in && (rc = append(&c->heard, &c->n_heard, &c->cap_heard, in, some)) < 0)
            return rc;
        if (some > 0 || !in)
            rc = convert(c, in, some);
        in = in ? in + some : NULL;
        n -= some;
    } while (rc == 0 && n > 0);
    *out = c->out;
    *n_out = c->n_out;
    return rc;
}

/* Room for n samples, which are there from now on. */
static int make_room(float **to, int64_t *have, int64_t *cap, int64_t n)
{
    float *p = calloc((size_t)n + 1, sizeof(*p));

    if (!p)
        return -ENOMEM;
    free(*to);
    *to = p;
    *have = *cap = n;
    return 0;
}

void mt_converter_visit(struct mt_converter *c, const float **out, int64_t *n_out,
                        struct mt_state_io *io)
{
    int64_t n_heard = c->flushed ? 0 : c->n_heard, made = c->made, untaken = *n_out;

    mt_state_bool(io, "end of the conversion", &c->flushed);
    mt_state_bool(io, "later part", &c->later);
    mt_state_i64(io, "samples to convert", &n_heard, 0, c->n_most);
    mt_state_i64(io, "samples converted", &made, 0, end_of(c));
    mt_state_i64(io, "samples not taken", &untaken, 0, UNTAKEN_MAX);
    if (!mt_state_ok(io))
        return;
    if (!io->load) {
        mt_state_floats(io, "sample heard", c->heard, (size_t)n_heard);
        mt_state_floats(io, "sample not taken", (float *)*out, (size_t)untaken);
        return;
    }
    if (make_room(&c->heard, &c->n_heard, &c->cap_heard, n_heard) < 0 ||
        make_room(&c->out, &c->n_out, &c->cap_out, untaken) < 0)
        mt_state_fail(io, -ENOMEM, "out of memory");
    mt_state_floats(io, "sample heard", c->heard, (size_t)n_heard);
    mt_state_floats(io, "sample not taken", c->out, (size_t)untaken);
    c->told = made;
    if (mt_state_ok(io) && n_heard > 0 && convert(c, c->heard, n_heard) < 0)
        mt_state_fail(io, -EPROTO, "the sound can't be converted again");
    *out = c->out;
    *n_out = c->n_out;
}
