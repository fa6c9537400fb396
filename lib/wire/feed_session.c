/*
 * feed_session.c: one connection: open, then each frame's sound at its own absolute time (or,
 * unpaced, as fast as the server takes it), then end. Reading the answers never holds back the
 * sending.
 */
#include "wire/feed_run.h"
#include "wire/internal.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RETRY_NS     (5 * MT_NS_PER_MS) /* the server's queue of connections is full: ask again */
#define END          "{\"type\":\"end\"}\n"
#define RETRY_S      1.0 /* until a session offers itself again, if the server has no hint */
#define RETRY_MIN_S  0.01
#define UNSENT_LIMIT (8u << 20) /* bytes that a server may leave unread */

struct feed_write {
    uv_write_t req;
    struct feed_session *s;
    int64_t frame_from, frame_to; /* complete with these bytes */
    size_t n;
    unsigned char bytes[];
};

struct feed_source {
    uv_poll_t poll;
    struct feed_session *s; /* NULL: it left */
    int fd;
};

/* ---- handles ---- */

static void handle_closed(struct feed_session *s)
{
    if (--s->handles > 0)
        return;
    mt_wire_parser_free(&s->parser);
    json_decref(s->refusal);
    free(s->due);
    mt_feed_session_gone(s);
}

/* The pipe of a connection that is to be made, and what reads it. */
static void pipe_init(struct feed_session *s)
{
    mt_wire_parser_init(&s->parser);
    s->parser.ctx = s;
    s->parser.on_message = mt_feed_on_message;
    s->parser.on_payload = mt_feed_on_payload;
    s->greeted = false;
    uv_pipe_init(&s->run->loop, &s->pipe, 0);
    s->pipe.data = s;
    s->handles++;
}

static void pipe_closed(uv_handle_t *h)
{
    struct feed_session *s = h->data;

    if (s->state != FEED_REFUSED) {
        handle_closed(s);
        return;
    }
    s->handles--;
    mt_wire_parser_free(&s->parser);
    pipe_init(s);
    mt_feed_wake_at(s, s->retry_ns);
}

static void source_closed(uv_handle_t *h)
{
    struct feed_source *src = h->data;
    struct feed_session *s = src->s;

    free(src);
    handle_closed(s);
}

static void source_close(struct feed_session *s)
{
    if (s->source)
        uv_close((uv_handle_t *)&s->source->poll, source_closed);
    s->source = NULL;
}

static void source_ready(uv_poll_t *poll, int status, int events)
{
    struct feed_source *src = poll->data;

    (void)status;
    (void)events;
    uv_poll_stop(poll);
    if (src->s->state == FEED_SENDING)
        mt_feed_session_wake(src->s);
}

/* Wake this session when its pipe has more. */
static void source_wait(struct feed_session *s)
{
    int fd = mt_tape_wait_fd(s->stream.tape);

    if (s->source && s->source->fd != fd)
        source_close(s);
    if (!s->source) {
        struct feed_source *src = calloc(1, sizeof(*src));

        if (!src || uv_poll_init(&s->run->loop, &src->poll, fd) < 0) {
            free(src);
            mt_feed_session_close(s, "cannot wait for its sound");
            return;
        }
        src->poll.data = src;
        src->s = s;
        src->fd = fd;
        s->source = src;
        s->handles++;
    }
    uv_poll_start(&s->source->poll, UV_READABLE, source_ready);
}

/* ---- writing ---- */

/* The server left; what it said before it did is still read, and the end of that closes it. */
static void write_failed(struct feed_session *s)
{
    if (s->state != FEED_SENDING)
        return;
    s->stream.n = 0;
    s->stream.ended = true;
    mt_feed_wake_at(s, INT64_MAX);
}

static void written(uv_write_t *req, int status)
{
    struct feed_write *w = req->data;
    struct feed_session *s = w->s;

    s->unsent_bytes -= w->n;
    if (status < 0) {
        write_failed(s);
    } else if (!s->run->o->pace) {
        for (int64_t k = w->frame_from; k < w->frame_to; k++)
            if (k >= s->first && k - s->first < (int64_t)s->n_due)
                s->due[k - s->first].due_ns = mt_feed_now(s->run);
        if (s->state == FEED_SENDING && s->unsent_bytes == 0 && w->frame_to >= 0)
            mt_feed_wake_at(s, mt_feed_now(s->run));
    }
    free(w);
}

/* Bytes to write when the server has room; frames from..to are complete with them. */
static void write_later(struct feed_session *s, const unsigned char *bytes, size_t n, int64_t from,
                        int64_t to)
{
    struct feed_write *w = malloc(sizeof(*w) + n);
    uv_buf_t buf;
    int rc = UV_ENOMEM;

    if (w) {
        w->s = s;
        w->n = n;
        w->frame_from = from;
        w->frame_to = to;
        w->req.data = w;
        memcpy(w->bytes, bytes, n);
        buf = uv_buf_init((char *)w->bytes, (unsigned)n);
        rc = uv_write(&w->req, (uv_stream_t *)&s->pipe, &buf, 1, written);
    }
    if (rc < 0) {
        free(w);
        mt_feed_session_close(s, uv_strerror(rc));
        return;
    }
    s->unsent_bytes += n;
}

/*
 * Paced frames go straight to the kernel if it has room. Unpaced ones go through the loop, which
 * says when the next may follow.
 */
static void write_out(struct feed_session *s, unsigned char *bytes, size_t n, int64_t from,
                      int64_t to)
{
    uv_buf_t buf = uv_buf_init((char *)bytes, (unsigned)n);
    int rc = UV_EAGAIN;

    if (s->unsent_bytes + n > UNSENT_LIMIT && s->unsent_bytes > n) {
        mt_feed_session_close(s, "the server does not read");
        return;
    }
    if (s->run->o->pace && s->unsent_bytes == 0)
        rc = uv_try_write((uv_stream_t *)&s->pipe, &buf, 1);
    if (rc < 0 && rc != UV_EAGAIN) {
        write_failed(s);
        return;
    }
    rc = rc < 0 ? 0 : rc;
    if ((size_t)rc < n)
        write_later(s, bytes + rc, n - (size_t)rc, from, to);
}

static void send_object(struct feed_session *s, json_t *obj)
{
    size_t n = 0;
    char *line = mt_wire_line(obj, &n);

    if (line)
        write_out(s, (unsigned char *)line, n, -1, -1);
    else
        mt_feed_session_close(s, "out of memory");
    free(line);
}

/* Room for what is written next, or NULL. */
static unsigned char *out_room(struct feed_run *r, size_t n)
{
    unsigned char *bigger;

    if (n <= r->cap_out)
        return r->out;
    if (!(bigger = realloc(r->out, n)))
        return NULL;
    r->out = bigger;
    r->cap_out = n;
    return r->out;
}

/* ---- connecting ---- */

int mt_feed_session_new(struct feed_run *r, int64_t index, double arrived_s)
{
    struct feed_session *s = calloc(1, sizeof(*s));
    int rc;

    if (!s)
        return -ENOMEM;
    s->run = r;
    s->index = index;
    s->length_s = mt_feed_length_s(r->o, index, arrived_s);
    s->closed_frames = -1;
    s->wake_ns = INT64_MAX;
    snprintf(s->name, sizeof(s->name), "feed-%" PRId64, index);
    rc = mt_feed_stream_open(&s->stream, r->reel, index, r->o->loop, s->length_s,
                             r->o->open.rate_hz);
    if (rc < 0) {
        free(s);
        return rc;
    }
    pipe_init(s);
    s->next = r->sessions;
    if (s->next)
        s->next->prev = s;
    r->sessions = s;
    r->t->arrived++;
    r->t->active++;
    mt_feed_wake_at(s, mt_feed_now(r));
    return 0;
}

static void buffer(uv_handle_t *h, size_t want, uv_buf_t *buf)
{
    struct feed_session *s = h->data;

    (void)want;
    *buf = uv_buf_init(s->run->in, sizeof(s->run->in));
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct feed_session *s = stream->data;
    struct mt_err e = {0};
    int rc;

    if (s->state == FEED_CLOSING || s->state == FEED_REFUSED || n == 0)
        return;
    if (n == UV_EOF || n == UV_ECONNRESET) {
        mt_feed_session_close(s, "the server closed the connection before the call was over");
        return;
    }
    if (n < 0) {
        mt_feed_session_close(s, n == UV_ECONNREFUSED ? "no server listens there"
                                                      : uv_strerror((int)n));
        return;
    }
    rc = mt_wire_parse(&s->parser, (const unsigned char *)buf->base, (size_t)n, &e);
    if (rc < 0 && s->state != FEED_CLOSING) {
        char why[sizeof(e.text) + 40];

        snprintf(why, sizeof(why), "the server's line is broken: %s", e.text);
        mt_feed_session_close(s, why);
    }
    if (s->run->o->pace)
        mt_feed_serve_due(s->run);
}

static void session_connect(struct feed_session *s)
{
    struct feed_run *r = s->run;
    int fd = mt_addr_dial(&r->server);
    int rc;

    if (fd == -EAGAIN || fd == -EINTR) {
        mt_feed_wake_at(s, mt_feed_now(r) + RETRY_NS);
        return;
    }
    rc = fd < 0 ? fd : uv_pipe_open(&s->pipe, fd);
    if (rc < 0) {
        char why[300];

        if (rc == -EMFILE)
            snprintf(why, sizeof(why),
                     "the limit on open files (ulimit -n) allows no more sessions");
        else
            snprintf(why, sizeof(why), "%s: %s: %s", r->o->socket,
                     rc == -ENOENT || rc == -ECONNREFUSED ? "no server listens there"
                                                          : "cannot connect",
                     strerror(-rc));
        if (fd >= 0)
            close(fd);
        if (!r->connected)
            mt_feed_stop(r, rc, why);
        else
            mt_feed_session_close(s, why);
        return;
    }
    r->connected = true;
    s->state = FEED_OPENING;
    s->opening_ns = mt_feed_now(r);
    if (!s->asked_ns)
        s->asked_ns = s->opening_ns;
    uv_read_start((uv_stream_t *)&s->pipe, buffer, on_read);
    send_object(s, mt_feed_open_json(r->o, s->index));
}

void mt_feed_session_refused(struct feed_session *s, json_t *msg)
{
    struct feed_run *r = s->run;
    json_t *hint = json_object_get(msg, "retry_s");
    double wait_s = json_is_number(hint) ? fmax(RETRY_MIN_S, json_number_value(hint)) : RETRY_S;

    json_decref(s->refusal);
    s->refusal = json_incref(msg);
    s->retry_ns = mt_feed_now(r) + (int64_t)fmin(wait_s * 1e9, 0x1p60);
    if (!r->o->retry || r->grace_ns ||
        (r->o->seconds > 0 && mt_feed_run_s(r) + wait_s * r->o->speed >= r->o->seconds)) {
        mt_feed_session_close(s, NULL);
        return;
    }
    s->state = FEED_REFUSED;
    r->t->waiting++;
    r->t->retries++;
    uv_close((uv_handle_t *)&s->pipe, pipe_closed);
}

/* Its connection is a new one; it asks once more. */
static void offer_again(struct feed_session *s)
{
    s->run->t->waiting--;
    s->state = FEED_CONNECTING;
    session_connect(s);
}

/* ---- sending ---- */

/*
 * The sample that completes frame k at the server: its own last one and what the model must hear
 * beyond it.
 */
static int64_t frame_end(const struct feed_session *s, int64_t k)
{
    double end = ceil((double)(k + 1) * s->frame_samples - 1e-6) + (double)s->ahead_samples;

    return end < 0x1p62 ? (int64_t)end : INT64_MAX / 2;
}

/* When the sound up to `sample` has been spoken. */
static int64_t due_of(const struct feed_session *s, int64_t sample)
{
    int64_t due = s->start_ns + s->pause_ns +
                  mt_feed_ns((double)sample, s->run->o->open.rate_hz, s->run->o->speed);

    return due > s->opened_ns ? due : s->opened_ns;
}

/*
 * Hold the sound of the next frame, so that it lies ready when it is due. False: the pipe has less
 * than that. What a pipe brings after its time is due when it comes: its lateness is not the
 * server's.
 */
static bool prepare(struct feed_session *s)
{
    struct mt_err e = {0};
    bool live = mt_tape_wait_fd(s->stream.tape) >= 0;
    int rc = mt_feed_stream_fill(&s->stream, frame_end(s, s->piece), &e);

    if (rc < 0) {
        s->run->t->source_failed = true;
        mt_feed_note(s->run, MT_ERROR, "%s", e.code ? e.text : strerror(-rc));
    }
    if (live)
        s->ready_ns = mt_feed_now(s->run);
    return rc != 0;
}

/* When what is complete with `sample` was due: for records. */
static int64_t due_to_record(struct feed_session *s, int64_t sample, int64_t now)
{
    int64_t due = due_of(s, sample);

    if (!s->run->o->pace || s->interrupted)
        return now;
    return due > s->ready_ns ? due : s->ready_ns;
}

static int64_t beats(const struct feed_session *s, double seconds)
{
    double n = rint(seconds / s->frame_s);

    return n < 1 ? 1 : n < 1e12 ? (int64_t)n : (int64_t)1e12;
}

static void talk(struct feed_session *s)
{
    if (s->run->o->talk_s > 0)
        s->talk_frames = beats(s, mt_feed_talk_s(s->run->o, s->index, s->spurts++));
}

/*
 * A frame went out: is it time for a pause? Pauses are whole beats in which nothing is sent and
 * nothing is due; they take their time from the call, so that it ends when it would have.
 */
static void pause_after_frame(struct feed_session *s)
{
    const struct mt_feed_opts *o = s->run->o;

    if (o->talk_s <= 0 || --s->talk_frames > 0)
        return;
    double samples =
        (double)beats(s, mt_feed_pause_s(o, s->index, s->spurts - 1)) * s->frame_samples;
    samples = fmin(samples, (double)(s->stream.budget - s->stream.sent));
    s->pause_ns += mt_feed_ns(samples, o->open.rate_hz, o->speed);
    s->stream.budget -= (int64_t)rint(samples);
    talk(s);
}

static void schedule(struct feed_session *s)
{
    const struct feed_stream *st = &s->stream;
    int64_t upto = frame_end(s, s->piece);

    if (st->ended && st->sent + st->n < upto)
        upto = st->sent + st->n;
    mt_feed_wake_at(s, s->run->o->pace ? due_of(s, upto) : mt_feed_now(s->run));
}

int mt_feed_session_skip(struct feed_session *s, int64_t frame, int64_t samples, struct mt_err *e)
{
    int rc = mt_feed_stream_skip(&s->stream, samples, e);

    s->first = s->piece = frame;
    s->skipped_ns = mt_feed_ns((double)samples, s->run->o->open.rate_hz, s->run->o->speed);
    for (; rc >= 0 && frame_end(s, s->piece) <= samples; s->piece++)
        if ((rc = mt_feed_record_sent(s, mt_feed_now(s->run))) < 0)
            mt_err_set(e, rc, "too many frames without an answer");
    return rc;
}

/* All that is held goes out, and `end` behind it when nothing follows. */
static void send_held(struct feed_session *s)
{
    struct feed_run *r = s->run;
    struct feed_stream *st = &s->stream;
    unsigned char *out = out_room(r, mt_feed_stream_room(st) + sizeof(END));
    int64_t now = mt_feed_now(r), from = s->piece;
    size_t n;
    int rc = 0;

    if (!out) {
        mt_feed_session_close(s, "out of memory");
        return;
    }
    n = mt_feed_stream_take(st, out);
    while (rc == 0 && frame_end(s, s->piece) <= st->sent) {
        int64_t due = due_to_record(s, frame_end(s, s->piece), now);
        if (r->o->pace && !s->interrupted)
            mt_hist_add(&r->t->behind, now - due);
        rc = mt_feed_record_sent(s, due);
        s->piece++;
        pause_after_frame(s);
    }
    if (st->ended) {
        /*
         * The rest, and frames that only waited for what the model hears beyond them, are complete
         * with `end`.
         */
        while (rc == 0 && (double)s->piece * s->frame_samples < (double)st->sent - 1e-6) {
            rc = mt_feed_record_sent(s, due_to_record(s, st->sent, now));
            s->piece++;
        }
        memcpy(out + n, END, sizeof(END) - 1);
        n += sizeof(END) - 1;
        s->state = FEED_ENDED;
        s->ended_ns = now;
        mt_feed_wake_at(s, INT64_MAX);
    }
    write_out(s, out, n, from, s->piece);
    if (rc < 0)
        mt_feed_session_close(s, "too many frames without an answer");
}

void mt_feed_session_begin(struct feed_session *s)
{
    struct feed_run *r = s->run;
    int64_t began;

    s->state = FEED_SENDING;
    if (s->refusal) /* it waited: what is left of the run is shorter by that */
        mt_feed_stream_limit(&s->stream, mt_feed_length_s(r->o, s->index, mt_feed_run_s(r)),
                             r->o->open.rate_hz);
    json_decref(s->refusal);
    s->refusal = NULL;
    talk(s);
    prepare(s);
    if (r->o->pace && mt_tape_wait_fd(s->stream.tape) >= 0) {
        /* A live source began when its first sample came, be it before the server was ready. */
        began = mt_tape_began_ns(s->stream.tape);
        if (!began) {
            source_wait(s);
            return;
        }
        s->start_ns = began;
    } else {
        s->start_ns = r->o->pace
                          ? mt_feed_grid(r, s->opened_ns, mt_feed_phase(r->o, s->index), s->frame_s)
                          : s->opened_ns;
        s->start_ns -= s->skipped_ns;
    }
    schedule(s);
}

static void send_due(struct feed_session *s)
{
    if (!prepare(s)) {
        if (s->stream.n > 0)
            send_held(s);
        if (s->state == FEED_SENDING)
            source_wait(s);
        return;
    }
    send_held(s);
    if (s->state != FEED_SENDING)
        return;
    prepare(s);
    /* Unpaced: the next one when this one is with the kernel. */
    if (s->run->o->pace)
        schedule(s);
}

void mt_feed_session_wake(struct feed_session *s)
{
    if (s->state == FEED_CONNECTING)
        session_connect(s);
    else if (s->state == FEED_REFUSED)
        offer_again(s);
    else if (s->state == FEED_SENDING && !s->start_ns)
        mt_feed_session_begin(s);
    else if (s->state == FEED_SENDING)
        send_due(s);
}

/* ---- the end ---- */

static bool unopened(const struct feed_session *s)
{
    return s->state == FEED_CONNECTING || s->state == FEED_REFUSED || s->state == FEED_OPENING;
}

void mt_feed_session_finish(struct feed_session *s)
{
    if (unopened(s)) {
        mt_feed_session_close(s, NULL);
    } else if (s->state == FEED_SENDING) {
        s->stream.n = 0;
        s->stream.ended = true;
        s->interrupted = true;
        send_held(s);
    }
}

static void record_refusal(struct feed_session *s)
{
    const char *reason = json_string_value(json_object_get(s->refusal, "reason"));
    json_t *retry = json_object_get(s->refusal, "retry_s");

    s->run->t->refused++;
    mt_feed_record_own(s, 0, MT_REFUSED, reason ? reason : "no reason given",
                       json_is_number(retry) ? json_number_value(retry) : NAN);
}

void mt_feed_session_close(struct feed_session *s, const char *why)
{
    bool never = unopened(s);

    if (s->state == FEED_CLOSING)
        return;
    s->run->t->waiting -= s->state == FEED_REFUSED;
    s->state =
        FEED_CLOSING; /* first: a line that can't be written closes all sessions, this one too */
    if (why) {
        s->run->t->broken++;
        mt_feed_note(s->run, MT_ERROR, "session %s: %s", s->name, why);
        if (never)
            mt_feed_record_own(s, 0, MT_FAILED, why, NAN);
    } else if (never && s->refusal) {
        record_refusal(s);
    }
    mt_feed_record_rest(s);
    mt_feed_wake_at(s, INT64_MAX);
    if (mt_wav_close(&s->wav) < 0) {
        s->run->t->source_failed = true;
        mt_feed_note(s->run, MT_ERROR, "session %s: its sound could not be written", s->name);
    }
    mt_feed_stream_close(&s->stream);
    source_close(s);
    if (!uv_is_closing((uv_handle_t *)&s->pipe)) /* it is between two offers */
        uv_close((uv_handle_t *)&s->pipe, pipe_closed);
}

bool mt_feed_session_owed(const struct feed_session *s, int64_t *since_ns)
{
    if (s->state == FEED_OPENING)
        *since_ns = s->opening_ns;
    else if (s->n_due > 0)
        *since_ns = s->due[0].due_ns;
    else if (s->state == FEED_ENDED)
        *since_ns = s->ended_ns;
    else
        return false;
    return true;
}
