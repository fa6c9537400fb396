/*
 * feed_stream.c: samples from a tape, held until they are due, and written as audio messages. What
 * is counted here is what left: every sample of the tape up to the budget, once.
 */
#include "wire/feed_stream.h"
#include "wire/internal.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/*
 * Far below MT_WIRE_PAYLOAD_MAX, so that a reader that buffers whole messages is not asked for
 * much.
 */
enum { MESSAGE_SAMPLES = 256 << 10, MESSAGE_LINE = 64 };
enum { READ_SAMPLES = 4096 };

int mt_feed_stream_open(struct feed_stream *s, struct mt_reel *r, int64_t first, bool loop,
                        double length_s, int rate_hz)
{
    memset(s, 0, sizeof(*s));
    s->format = mt_reel_pcm(r);
    mt_feed_stream_limit(s, length_s, rate_hz);
    return mt_tape_open(&s->tape, r, first, loop);
}

void mt_feed_stream_limit(struct feed_stream *s, double length_s, int rate_hz)
{
    double samples = rint(length_s * rate_hz);

    s->budget = samples < 0x1p62 ? (int64_t)samples : INT64_MAX;
}

void mt_feed_stream_close(struct feed_stream *s)
{
    mt_tape_close(&s->tape);
    free(s->hold);
    s->hold = NULL;
    s->n = s->cap = 0;
    s->ended = true;
}

static size_t sample_bytes(const struct feed_stream *s)
{
    return s->format == MT_PCM_F32LE ? 4 : 2;
}

/* Little-endian whatever the machine; plain loops, which compilers vectorise. */
static void put_f32(unsigned char *restrict out, const float *restrict x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits;

        memcpy(&bits, &x[i], sizeof(bits));
        for (int b = 0; b < 4; b++)
            out[4 * i + b] = (unsigned char)(bits >> 8 * b);
    }
}

static void put_s16(unsigned char *restrict out, const float *restrict x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float v = x[i] * 32768.0F;
        int k;

        v = v > -32768.0F ? v : -32768.0F;
        v = v < 32767.0F ? v : 32767.0F;
        k = (int)lrintf(v);
        out[2 * i] = (unsigned char)k;
        out[2 * i + 1] = (unsigned char)(k >> 8);
    }
}

/* More samples from the tape, as many as it gives at once; what mt_tape_read returns. */
static int64_t read_some(struct feed_stream *s, int64_t n, struct mt_err *e)
{
    float x[READ_SAMPLES];
    int64_t got = mt_tape_read(s->tape, x, n < READ_SAMPLES ? n : READ_SAMPLES, e);
    unsigned char *out = s->hold + (size_t)s->n * sample_bytes(s);

    if (got <= 0)
        return got;
    if (s->format == MT_PCM_F32LE)
        put_f32(out, x, got);
    else
        put_s16(out, x, got);
    s->n += got;
    return got;
}

int mt_feed_stream_fill(struct feed_stream *s, int64_t upto, struct mt_err *e)
{
    int64_t want = (upto < s->budget ? upto : s->budget) - s->sent;

    if (want > s->cap) {
        unsigned char *bigger = realloc(s->hold, mt_mul((size_t)want, sample_bytes(s)));

        if (!bigger) {
            s->ended = true;
            return mt_err_set(e, -ENOMEM, "out of memory for %lld samples", (long long)want);
        }
        s->hold = bigger;
        s->cap = want;
    }
    while (!s->ended && s->n < want) {
        int64_t got = read_some(s, want - s->n, e);

        if (got == -EAGAIN)
            return 0;
        if (got <= 0)
            s->ended = true;
        if (got < 0)
            return (int)got;
    }
    if (s->sent + s->n == s->budget)
        s->ended = true;
    return 1;
}

int mt_feed_stream_skip(struct feed_stream *s, int64_t n, struct mt_err *e)
{
    while (s->sent < n && !s->ended) {
        int rc = mt_feed_stream_fill(s, n - s->sent < READ_SAMPLES ? n : s->sent + READ_SAMPLES, e);

        if (rc <= 0)
            return rc < 0 ? rc : mt_err_set(e, -EAGAIN, "--load: sound that can't be passed over");
        s->sent += s->n;
        s->n = 0;
    }
    return 1;
}

size_t mt_feed_stream_room(const struct feed_stream *s)
{
    return (size_t)s->n * sample_bytes(s) + (size_t)(s->n / MESSAGE_SAMPLES + 1) * MESSAGE_LINE;
}

size_t mt_feed_stream_take(struct feed_stream *s, unsigned char *out)
{
    const size_t size = sample_bytes(s);
    unsigned char *p = out;
    int64_t at = 0;

    while (at < s->n) {
        int64_t m = s->n - at < MESSAGE_SAMPLES ? s->n - at : MESSAGE_SAMPLES;

        p += snprintf((char *)p, MESSAGE_LINE, "{\"type\":\"audio\",\"bytes\":%lld}\n",
                      (long long)m * (long long)size);
        memcpy(p, s->hold + (size_t)at * size, (size_t)m * size);
        p += (size_t)m * size;
        at += m;
    }
    s->sent += s->n;
    s->n = 0;
    return (size_t)(p - out);
}

json_t *mt_feed_open_json(const struct mt_feed_opts *o, int64_t i)
{
    struct mt_wire_open open = o->open;
    json_t *msg;

    if (o->load) {
        msg = mt_wire_object(true, "load");
        json_object_set_new(msg, "name", json_string(o->load));
        if (open.session.window)
            json_object_set_new(msg, "window", json_integer(open.session.window));
        return msg;
    }
    open.session.has_seed = true;
    /* The seed is an int64 on the wire. */
    open.session.seed = (o->seed + (uint64_t)i) & INT64_MAX;
    open.session.live = o->pace;
    return mt_wire_open_json(&open);
}

json_t *mt_feed_end_json(void)
{
    return json_pack("{s:s}", "type", "end");
}

int64_t mt_feed_ns(double samples, int rate_hz, double speed)
{
    double ns = samples / rate_hz / speed * 1e9;

    return ns < 0x1p62 ? llrint(ns) : INT64_MAX / 2;
}
