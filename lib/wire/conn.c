/*
 * conn.c: one connection of the server. What it may hold is bounded on both sides: bytes read and not
 * yet accepted by the engine (then it is not read any more; the engine gives credit back), and bytes
 * written and not yet read by the client (then it is cut off).
 */
#include "wire/server.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum {
    HOLD = 64 << 10, /* unaccepted bytes at which a session that can wait is no longer read */
    LIVE_HOLD_MIN = 1 << 20, /* … and a live one: LIVE_HOLD_S of its audio, in these bounds */
    LIVE_HOLD_MAX = 16 << 20,
    LIVE_HOLD_S = 30,
    REQUEST = 256,         /* what one control request counts */
    REFUSED_MAX = 64,      /* connections above the limit that are told so */
    DISCARD_MAX = 1 << 20, /* read and thrown away after the last line, so that it gets through */
    LINGER_MS = 500,       /* … and for so long after it was delivered */
    STUCK_MS = 5000,       /* delivery makes no progress */
};

enum role { FRESH, CALL, CONTROL, LINGER };

struct mt_conn {
    uv_pipe_t pipe;
    uv_timer_t timer; /* a watcher's period, or the end of a linger */
    uv_shutdown_t shutdown;
    int handles;
    struct mt_server *s;
    int slot; /* -1: above the limit */
    uint64_t id;
    enum role role;
    bool said; /* the first object is on its way */
    bool watching;
    bool reading, eof;
    bool ended; /* a session's "end" came */
    bool shut;  /* everything is delivered */
    bool closing;
    int outstanding; /* control requests without an answer */
    size_t unaccepted, hold;
    size_t discarded, stuck_at;
    struct mt_wire_parser parser;
    struct mt_err err;
    /* of the read at hand */
    int64_t t_ns;
    size_t read;
    bool audio; /* payload is PCM */
    struct mt_mail *piece;
};

struct write {
    uv_write_t req;
    struct mt_conn *c;
    char data[];
};

static void conn_shut(struct mt_conn *c);

/* ---- the end of a connection ---- */

static void on_handle_closed(uv_handle_t *h)
{
    struct mt_conn *c = h->data;
    struct mt_server *s = c->s;

    if (--c->handles > 0)
        return;
    if (c->slot >= 0)
        s->conns[c->slot] = NULL;
    mt_wire_parser_free(&c->parser);
    mt_mail_free(c->piece);
    free(c);
    mt_server_conn_gone(s);
}

static void conn_close(struct mt_conn *c)
{
    if (c->closing)
        return;
    c->closing = true;
    if (c->watching)
        atomic_fetch_sub(&c->s->worker.watchers, 1);
    c->watching = false;
    uv_close((uv_handle_t *)&c->pipe, on_handle_closed);
    uv_close((uv_handle_t *)&c->timer, on_handle_closed);
}

/* The engine forgets the connection's session, before anything that waits for it. */
static void forget(struct mt_conn *c, const char *reason)
{
    struct mt_worker *w = &c->s->worker;
    struct mt_mail *m;

    if (c->role != CALL && c->role != CONTROL)
        return;
    mt_box_purge(&w->in, c->id);
    if (c->role == CALL && (m = mt_mail_new(MT_MAIL_CLOSE, c->slot, c->id, 0))) {
        m->reason = reason;
        mt_box_push_front(&w->in, m);
    }
}

/* The client is gone, or is treated so. */
static void conn_gone(struct mt_conn *c, const char *reason)
{
    if (c->closing)
        return;
    if (c->role == CALL)
        mt_server_note(c->s, MT_INFO, "connection %llu: %s", (unsigned long long)c->id, reason);
    forget(c, reason);
    conn_close(c);
}

static void on_linger(uv_timer_t *t)
{
    struct mt_conn *c = t->data;
    size_t queued = uv_stream_get_write_queue_size((uv_stream_t *)&c->pipe);

    if (c->shut || queued == c->stuck_at)
        conn_close(c);
    c->stuck_at = queued;
}

static void on_shutdown(uv_shutdown_t *req, int status)
{
    struct mt_conn *c = req->data;

    c->shut = true;
    if (c->closing)
        return;
    if (status < 0 || c->eof)
        conn_close(c);
    else
        uv_timer_start(&c->timer, on_linger, LINGER_MS, 0);
}

/* ---- reading on or not ---- */

static void on_alloc(uv_handle_t *h, size_t want, uv_buf_t *buf)
{
    struct mt_conn *c = h->data;

    (void)want;
    *buf = uv_buf_init(c->s->buf, sizeof(c->s->buf));
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf);

static void on_sweep(uv_timer_t *t)
{
    struct mt_server *s = t->data;

    if (!mt_conn_sweep(s))
        uv_timer_stop(t);
}

static void regulate(struct mt_conn *c)
{
    bool want = !c->eof && !c->closing;

    if (c->role == LINGER)
        want = want && c->discarded < DISCARD_MAX;
    else if (c->role != FRESH)
        want = want && c->unaccepted < c->hold && !(c->role == CALL && c->s->stopping);
    if (want == c->reading || c->closing)
        return;
    c->reading = want;
    if (want) {
        uv_read_start((uv_stream_t *)&c->pipe, on_alloc, on_read);
        return;
    }
    uv_read_stop((uv_stream_t *)&c->pipe);
    if (c->role == CALL && !uv_is_active((uv_handle_t *)&c->s->sweep))
        uv_timer_start(&c->s->sweep, on_sweep, 50, 50);
}

/* ---- writing ---- */

static void on_written(uv_write_t *req, int status)
{
    struct write *w = (struct write *)req;

    if (status < 0 && status != UV_ECANCELED)
        conn_gone(w->c, "gone");
    free(w);
}

/* Bytes to the client; may end in the connection's close, never in a wait. */
static void conn_write(struct mt_conn *c, const char *data, size_t n)
{
    uv_stream_t *stream = (uv_stream_t *)&c->pipe;
    size_t queued = uv_stream_get_write_queue_size(stream);
    uv_buf_t buf = uv_buf_init((char *)data, (unsigned)n);
    struct write *w;
    int rc = 0;

    if (c->closing || n == 0)
        return;
    c->said = true;
    if (queued == 0) {
        rc = uv_try_write(stream, &buf, 1);
        if (rc < 0 && rc != UV_EAGAIN) {
            conn_gone(c, "gone");
            return;
        }
        if (rc == (int)n)
            return;
        rc = rc > 0 ? rc : 0;
    }
    n -= (size_t)rc;
    if (queued + n > MT_WIRE_OUT_MAX || !(w = malloc(sizeof(*w) + n))) {
        conn_gone(c, "slow reader");
        return;
    }
    w->c = c;
    memcpy(w->data, data + rc, n);
    buf = uv_buf_init(w->data, (unsigned)n);
    if (uv_write(&w->req, stream, &buf, 1, on_written) < 0) {
        free(w);
        conn_gone(c, "gone");
    }
}

static void conn_say(struct mt_conn *c, json_t *obj)
{
    size_t n = 0;
    char *line = mt_wire_line(obj, &n);

    if (line)
        conn_write(c, line, n);
    else
        conn_gone(c, "out of memory");
    free(line);
}

/* No more is said. What the client still sends is read for a while and thrown away: closing a socket
 * with unread data would reset it, and the last line might never be seen. */
static void conn_shut(struct mt_conn *c)
{
    if (c->closing || c->role == LINGER)
        return;
    if (c->watching)
        atomic_fetch_sub(&c->s->worker.watchers, 1);
    c->watching = false;
    c->role = LINGER;
    c->shutdown.data = c;
    c->stuck_at = SIZE_MAX;
    if (uv_shutdown(&c->shutdown, (uv_stream_t *)&c->pipe, on_shutdown) < 0) {
        conn_close(c);
        return;
    }
    uv_timer_start(&c->timer, on_linger, STUCK_MS, STUCK_MS);
    regulate(c);
}

static int conn_fail(struct mt_conn *c, const char *text)
{
    if (c->closing)
        return -EPROTO;
    mt_server_note(c->s, MT_INFO, "connection %llu: %s", (unsigned long long)c->id, text);
    forget(c, "error");
    conn_say(c, mt_wire_error_json(!c->said, text));
    conn_shut(c);
    return -EPROTO;
}

static int MT_PRINTF(2, 3) conn_failf(struct mt_conn *c, const char *fmt, ...)
{
    char text[300];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    return conn_fail(c, text);
}

/* ---- what a client says ---- */

static int send_mail(struct mt_conn *c, struct mt_mail *m, size_t charge)
{
    if (!m)
        return conn_fail(c, "out of memory");
    m->charge = charge;
    m->t_ns = c->t_ns;
    c->unaccepted += charge;
    mt_box_push(&c->s->worker.in, m);
    return 0;
}

/* The audio of this read, as one mail of just its size. */
static int send_piece(struct mt_conn *c)
{
    struct mt_mail *m = c->piece, *whole = m;

    c->piece = NULL;
    if (!m)
        return 0;
    m = realloc(m, sizeof(*m) + m->n);
    m = m ? m : whole;
    return send_mail(c, m, sizeof(*m) + m->n);
}

static int hear_open(struct mt_conn *c, json_t *msg)
{
    struct mt_wire_open *o = malloc(sizeof(*o));
    struct mt_err e = {0};
    struct mt_mail *m = mt_mail_new(MT_MAIL_OPEN, c->slot, c->id, 0);
    int64_t second;

    if (!o || !m ||
        mt_wire_open_parse(msg, mt_model_info(c->s->worker.model)->sample_rate_hz, o, &e) < 0) {
        free(o);
        mt_mail_free(m);
        return conn_fail(c, e.code ? e.text : "out of memory");
    }
    m->open = o;
    c->hold = HOLD;
    if (o->session.live) {
        second = (int64_t)o->rate_hz * (o->format == MT_PCM_F32LE ? 4 : 2);
        c->hold = (size_t)(second * LIVE_HOLD_S);
        c->hold = c->hold < LIVE_HOLD_MIN ? LIVE_HOLD_MIN : c->hold;
        c->hold = c->hold > LIVE_HOLD_MAX ? LIVE_HOLD_MAX : c->hold;
    }
    c->role = CALL;
    return send_mail(c, m, 0);
}

static int hear_call(struct mt_conn *c, json_t *msg, const char *type)
{
    if (!strcmp(type, "audio")) {
        if (c->ended)
            return conn_fail(c, "audio after \"end\"");
        if (!json_object_get(msg, "bytes"))
            return conn_fail(c, "\"audio\" without \"bytes\"");
        c->audio = true;
        return 0;
    }
    if (!strcmp(type, "end")) {
        int rc = send_piece(c);

        if (c->ended)
            return conn_fail(c, "\"end\" twice");
        c->ended = true;
        return rc ? rc : send_mail(c, mt_mail_new(MT_MAIL_END, c->slot, c->id, 0), 0);
    }
    return conn_failf(c, "\"%.40s\": expected audio or end on the connection of a session", type);
}

static void say_status(struct mt_conn *c)
{
    struct mt_wire_status st = mt_worker_status(&c->s->worker);

    conn_say(c, mt_wire_status_json(!c->said, &st));
}

static void on_period(uv_timer_t *t)
{
    say_status(t->data);
}

static int hear_watch(struct mt_conn *c, json_t *msg)
{
    json_t *v = json_object_get(msg, "period_ms");
    double ms = v ? json_number_value(v) : mt_engine_plan(c->s->worker.eng)->frame_s * 1e3;

    if (v && (!json_is_number(v) || !(ms >= 10 && ms <= 3600e3)))
        return conn_fail(c, "\"period_ms\": expected a number in 10..3600000");
    if (!c->watching)
        atomic_fetch_add(&c->s->worker.watchers, 1);
    c->watching = true;
    say_status(c);
    if (!c->closing)
        uv_timer_start(&c->timer, on_period, (uint64_t)(ms + 0.5), (uint64_t)(ms + 0.5));
    return 0;
}

static int request(struct mt_conn *c, enum mt_mail_kind kind, int cap)
{
    struct mt_mail *m = mt_mail_new(kind, c->slot, c->id, 0);

    if (m) {
        m->first = !c->said && c->outstanding == 0;
        m->cap = cap;
    }
    c->outstanding++;
    return send_mail(c, m, REQUEST);
}

static int hear_control(struct mt_conn *c, json_t *msg, const char *type)
{
    json_t *cap = json_object_get(msg, "cap");

    c->role = CONTROL;
    if (!strcmp(type, "watch"))
        return hear_watch(c, msg);
    if (!strcmp(type, "stats"))
        return request(c, MT_MAIL_STATS, 0);
    if (!strcmp(type, "drain"))
        return request(c, MT_MAIL_DRAIN, 0);
    if (!strcmp(type, "save") || !strcmp(type, "load"))
        return conn_failf(c, "\"%s\" is not known to this server", type);
    if (strcmp(type, "cap") != 0)
        return conn_failf(c, "unknown type \"%.40s\"", type);
    if (!json_is_integer(cap) || json_integer_value(cap) < 0 || json_integer_value(cap) > INT_MAX)
        return conn_failf(c, "\"cap\": expected an integer in 0..%d", INT_MAX);
    return request(c, MT_MAIL_CAP, (int)json_integer_value(cap));
}

static int on_message(void *ctx, json_t *msg, int64_t payload)
{
    struct mt_conn *c = ctx;
    const char *type = json_string_value(json_object_get(msg, "type"));
    struct mt_err e = {0};

    (void)payload;
    c->audio = false;
    if (c->role == FRESH && mt_wire_check_version(msg, &e) < 0)
        return conn_fail(c, e.text);
    if (c->role == CALL)
        return hear_call(c, msg, type);
    if (c->role == FRESH && !strcmp(type, "open"))
        return hear_open(c, msg);
    return hear_control(c, msg, type);
}

static int on_payload(void *ctx, const unsigned char *bytes, size_t n)
{
    struct mt_conn *c = ctx;

    if (!c->audio)
        return 0; /* some other message's, not known here */
    if (!c->piece && !(c->piece = mt_mail_new(MT_MAIL_AUDIO, c->slot, c->id, c->read)))
        return conn_fail(c, "out of memory");
    memcpy(c->piece->data + c->piece->n, bytes, n);
    c->piece->n += n;
    return 0;
}

/* ---- reading ---- */

static void on_eof(struct mt_conn *c)
{
    c->eof = true;
    regulate(c);
    switch (c->role) {
    case FRESH:
        if (mt_wire_parse_end(&c->parser, &c->err) < 0)
            conn_fail(c, c->err.text);
        else
            conn_close(c);
        break;
    case CALL:
        if (!c->ended)
            conn_gone(c, "gone");
        else if (!uv_is_active((uv_handle_t *)&c->s->sweep))
            uv_timer_start(&c->s->sweep, on_sweep, 50, 50);
        break;
    case CONTROL: /* answers may still be on their way; a watcher's end shows when writing fails */
        if (!c->watching && c->outstanding == 0)
            conn_shut(c);
        break;
    case LINGER:
        if (c->shut)
            conn_close(c);
        break;
    }
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct mt_conn *c = stream->data;
    int rc;

    if (n == 0 || c->closing)
        return;
    if (n == UV_EOF) {
        on_eof(c);
        return;
    }
    if (n < 0) {
        conn_gone(c, "gone");
        return;
    }
    if (c->role == LINGER) {
        c->discarded += (size_t)n;
        regulate(c);
        return;
    }
    c->t_ns = (int64_t)uv_hrtime();
    c->read = (size_t)n;
    rc = mt_wire_parse(&c->parser, (const unsigned char *)buf->base, (size_t)n, &c->err);
    if (!rc)
        rc = send_piece(c);
    mt_mail_free(c->piece);
    c->piece = NULL;
    if (rc < 0 && !c->closing && c->role != LINGER)
        conn_fail(c, c->err.code ? c->err.text : strerror(-rc));
    regulate(c);
}

/* ---- the server's side ---- */

void mt_conn_mail(struct mt_conn *c, const struct mt_mail *m)
{
    if (c->closing || c->role == LINGER)
        return;
    c->unaccepted -= m->charge < c->unaccepted ? m->charge : c->unaccepted;
    if (m->kind == MT_MAIL_LINE) {
        conn_write(c, (const char *)m->data, m->n);
        c->outstanding -= c->role == CONTROL && c->outstanding > 0;
        if (m->finish || (c->role == CONTROL && c->eof && !c->watching && c->outstanding == 0))
            conn_shut(c);
    }
    regulate(c);
}

struct mt_conn *mt_conn_find(struct mt_server *s, const struct mt_mail *m)
{
    struct mt_conn *c = s->conns[m->slot];

    return c && c->id == m->conn ? c : NULL;
}

void mt_conn_broadcast(struct mt_server *s, const struct mt_mail *m)
{
    for (int i = 0; i < s->slots; i++)
        if (s->conns[i] && s->conns[i]->watching)
            conn_write(s->conns[i], (const char *)m->data, m->n);
}

bool mt_conn_sweep(struct mt_server *s)
{
    bool needed = false;

    for (int i = 0; i < s->slots; i++) {
        struct mt_conn *c = s->conns[i];
        struct pollfd p = {.events = 0};
        uv_os_fd_t fd;

        if (!c || c->closing || c->role != CALL || c->reading)
            continue;
        needed = true;
        /* POLLHUP: both directions are closed, which a client that only ended its own is not. */
        if (uv_fileno((uv_handle_t *)&c->pipe, &fd) == 0) {
            p.fd = fd;
            if (poll(&p, 1, 0) == 1 && (p.revents & (POLLHUP | POLLERR)))
                conn_gone(c, "gone");
        }
    }
    return needed;
}

void mt_conn_stop_all(struct mt_server *s)
{
    for (int i = 0; i < s->slots; i++) {
        struct mt_conn *c = s->conns[i];

        if (!c)
            continue;
        regulate(c);
        if (c->role == FRESH) {
            conn_say(c, mt_wire_refused_json("shutdown", 0));
            conn_shut(c);
        }
    }
}

void mt_conn_finish_all(struct mt_server *s, bool now)
{
    for (int i = 0; i < s->slots; i++) {
        if (!s->conns[i])
            continue;
        if (now)
            conn_close(s->conns[i]);
        else
            conn_shut(s->conns[i]);
    }
}

static int free_slot(const struct mt_server *s)
{
    for (int i = 0; i < s->slots; i++)
        if (!s->conns[i])
            return i;
    /* Those who have had their last line make room. */
    for (int i = 0; i < s->slots; i++)
        if (s->conns[i]->role == LINGER)
            conn_close(s->conns[i]);
    return -1;
}

void mt_conn_accept(struct mt_server *s)
{
    struct mt_conn *c = calloc(1, sizeof(*c));

    if (!c)
        return;
    c->s = s;
    c->slot = free_slot(s);
    c->id = ++s->last_id;
    c->hold = HOLD;
    mt_wire_parser_init(&c->parser);
    c->parser.ctx = c;
    c->parser.on_message = on_message;
    c->parser.on_payload = on_payload;
    uv_pipe_init(&s->loop, &c->pipe, 0);
    uv_timer_init(&s->loop, &c->timer);
    c->pipe.data = c->timer.data = c;
    c->handles = 2;
    s->n_conns++;
    if (c->slot >= 0)
        s->conns[c->slot] = c;
    if (uv_accept((uv_stream_t *)&s->accept, (uv_stream_t *)&c->pipe) < 0) {
        conn_close(c);
        return;
    }
    mt_server_note(s, MT_DEBUG, "connection %llu: opened", (unsigned long long)c->id);
    regulate(c);
    if (c->slot >= 0)
        return;
    mt_server_note(s, MT_INFO, "connection %llu: refused, %d are open", (unsigned long long)c->id,
                   s->slots);
    if (s->n_conns > s->slots + REFUSED_MAX) {
        conn_close(c);
        return;
    }
    conn_say(c, mt_wire_refused_json("limit", 1));
    conn_shut(c);
}
