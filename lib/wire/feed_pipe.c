/*
 * feed_pipe.c: one session's side of the wire onto a descriptor: what mt-feed writes into a pipe or
 * a file. Waits in one place (ppoll on the reader and on the sound), where signals come in.
 */
#include "wire/feed_stream.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/*
 * Paced pieces divide the beats of the models there are (80 ms, 1 s, 2 s), so that no frame waits
 * for a piece.
 */
#define PACED_NS   (20 * MT_NS_PER_MS)
#define UNPACED_NS MT_NS_PER_S
/* What a model hears beyond a frame's end: sent with it. */
#define AHEAD_S 0.0025
/* A pipe that polls writable takes this much without blocking. */
enum { WRITE_BYTES = 4096 };

static volatile sig_atomic_t stops;

static void on_stop(int number)
{
    (void)number;
    stops++;
}

struct feed_out {
    int fd;
    sigset_t waiting; /* the signals that are let in while it waits */
    struct mt_clock clock;
};

/* Until the descriptor is ready, a time, or a signal. 1 ready, 0 time, -EINTR. */
static int wait_until(struct feed_out *out, int fd, short events, int64_t until_ns)
{
    struct pollfd p = {.fd = fd, .events = events};
    struct timespec ts, *limit = NULL;
    int n;

    if (until_ns != INT64_MAX) {
        int64_t left = until_ns - out->clock.now_ns(&out->clock);

        left = left > 0 ? left : 0;
        ts = (struct timespec){.tv_sec = left / MT_NS_PER_S, .tv_nsec = left % MT_NS_PER_S};
        limit = &ts;
    }
    n = ppoll(&p, 1, limit, &out->waiting);
    return n < 0 ? -errno : n > 0;
}

/* All of it, or -EINTR after a second signal. */
static int put(struct feed_out *out, const unsigned char *bytes, size_t n)
{
    while (n > 0) {
        ssize_t k;
        int rc = wait_until(out, out->fd, POLLOUT, INT64_MAX);

        if (rc < 0 && (rc != -EINTR || stops > 1))
            return rc;
        if (rc <= 0)
            continue;
        k = write(out->fd, bytes, n < WRITE_BYTES ? n : WRITE_BYTES);
        if (k < 0 && errno != EINTR && errno != EAGAIN)
            return -errno;
        if (k > 0) {
            bytes += k;
            n -= (size_t)k;
        }
    }
    return 0;
}

static int put_line(struct feed_out *out, json_t *obj)
{
    char *text = obj ? json_dumps(obj, JSON_COMPACT) : NULL;
    size_t n = text ? strlen(text) : 0;
    int rc = -ENOMEM;

    if (text) {
        text[n] = '\n';
        rc = put(out, (unsigned char *)text, n + 1);
    }
    free(text);
    json_decref(obj);
    return rc;
}

static int put_held(struct feed_out *out, struct feed_stream *st)
{
    unsigned char *bytes = malloc(mt_feed_stream_room(st));
    int rc = -ENOMEM;

    if (bytes)
        rc = put(out, bytes, mt_feed_stream_take(st, bytes));
    free(bytes);
    return rc;
}

static int64_t piece_end(const struct mt_feed_opts *o, int64_t k)
{
    int64_t ns = o->frame_ns ? o->frame_ns : o->pace ? PACED_NS : UNPACED_NS;
    double samples = (double)(k + 1) * (double)ns / 1e9 * o->open.rate_hz;

    return (int64_t)fmin(ceil(samples + (o->pace ? AHEAD_S * o->open.rate_hz : 0) - 1e-6), 0x1p62);
}

/* The pieces until the sound ends or a signal comes. */
static int put_sound(struct feed_out *out, const struct mt_feed_opts *o, struct feed_stream *st,
                     struct mt_feed_totals *t, struct mt_err *e)
{
    int64_t start_ns = 0, due, k = 0;
    int rc, got;

    while (!stops && !(st->ended && st->n == 0)) {
        int64_t end = piece_end(o, k);

        got = mt_feed_stream_fill(st, end, e);
        if (got < 0)
            t->source_failed = true;
        if (got == 0 && (o->pace || st->n == 0)) {
            /*
             * A live source: when it has more; paced, what it has goes out with the rest of its
             * piece.
             */
            rc = wait_until(out, mt_tape_wait_fd(st->tape), POLLIN, INT64_MAX);
            if (rc < 0 && rc != -EINTR)
                return rc;
            continue;
        }
        if (o->pace && !start_ns) {
            start_ns = mt_tape_began_ns(st->tape);
            start_ns = start_ns ? start_ns : out->clock.now_ns(&out->clock);
        }
        end = st->sent + st->n < end ? st->sent + st->n : end;
        due = start_ns + mt_feed_ns((double)end, o->open.rate_hz, o->speed);
        while (o->pace && !stops && out->clock.now_ns(&out->clock) < due)
            if ((rc = wait_until(out, -1, 0, due)) < 0 && rc != -EINTR)
                return rc;
        if (stops)
            break;
        if ((rc = put_held(out, st)) < 0)
            return rc;
        while (piece_end(o, k) <= st->sent)
            k++;
    }
    return 0;
}

int mt_feed_pipe(struct mt_reel *r, const struct mt_feed_opts *o, int fd, struct mt_feed_totals *t,
                 struct mt_err *e)
{
    struct feed_out out = {.fd = fd, .clock = mt_clock_real()};
    struct sigaction act = {.sa_handler = on_stop}, old_int, old_term;
    struct feed_stream st;
    sigset_t block;
    int rc;

    memset(t, 0, sizeof(*t));
    stops = 0;
    signal(SIGPIPE, SIG_IGN);
    sigemptyset(&block);
    sigaddset(&block, SIGINT);
    sigaddset(&block, SIGTERM);
    sigprocmask(SIG_BLOCK, &block, &out.waiting);
    sigaction(SIGINT, &act, &old_int);
    sigaction(SIGTERM, &act, &old_term);
    rc = mt_feed_stream_open(&st, r, 0, o->loop, mt_feed_length_s(o, 0, 0), o->open.rate_hz);
    if (rc == 0)
        rc = put_line(&out, mt_feed_open_json(o, 0));
    if (rc == 0)
        rc = put_sound(&out, o, &st, t, e);
    if (rc == 0)
        rc = put_line(&out, mt_feed_end_json());
    mt_feed_stream_close(&st);
    t->interrupted = stops > 0;
    sigaction(SIGINT, &old_int, NULL);
    sigaction(SIGTERM, &old_term, NULL);
    sigprocmask(SIG_SETMASK, &out.waiting, NULL);
    return rc;
}
