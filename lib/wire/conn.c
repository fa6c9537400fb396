/*
 * conn.c: one connection of the server. What it may hold is bounded on both sides: bytes read and
 * not yet accepted by the engine (then it is not read any more; the engine gives credit back), and
 * bytes written and not yet read by the client (then it is cut off). What a client's objects mean
 * is in requests.c.
 */
#include "wire/conn.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum {
    REFUSED_MAX = 64,      /* connections above the limit that are told so */
    DISCARD_MAX = 1 << 20, /* read and thrown away after the last line, so that it gets through */
    LINGER_MS = 500,       /* … and for so long after it was delivered */
    STUCK_MS = 5000,       /* delivery makes no progress */
};

struct mt_write {
    uv_write_t req;
    struct mt_conn *c;
    struct mt_write *next;
    size_t n;
    char data[];
};

/* ---- the end of a connection ---- */

static void on_handle_closed(uv_handle_t *h)
{
    struct mt_conn *c = h->data;
    struct mt_server *s = c->s;

    if (--c->handles > 0)
        return;
    if (c->slot >= 0)
        s->conns[c->slot] = NULL;
    s->n_tcp -= c->tcp;
    mt_wire_parser_free(&c->parser);
    mt_mail_free(c->piece);
    free(c->unsent);
    free(c);
    mt_server_conn_gone(s);
}

void mt_conn_close(struct mt_conn *c)
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
    mt_conn_close(c);
}

static void on_linger(uv_timer_t *t)
{
    struct mt_conn *c = t->data;
    size_t queued = uv_stream_get_write_queue_size((uv_stream_t *)&c->pipe);

    if (c->shut || queued == c->stuck_at)
        mt_conn_close(c);
    c->stuck_at = queued;
}

static void on_shutdown(uv_shutdown_t *req, int status)
{
    struct mt_conn *c = req->data;

    c->shut = true;
    if (c->closing)
        return;
    if (status < 0 || c->eof)
        mt_conn_close(c);
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

/* Look for clients that left unnoticed. True while there are connections that need it. */
static bool sweep(struct mt_server *s)
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

static void on_sweep(uv_timer_t *t)
{
    struct mt_server *s = t->data;

    if (!sweep(s))
        uv_timer_stop(t);
}

/* ---- what a client over TCP may not do ---- */

static bool flooded(const struct mt_conn *c)
{
    return c->role == CALL && c->rate > 0 && c->flood > c->burst;
}

static void count_flood(struct mt_conn *c, size_t n, int64_t now_ns)
{
    double dt = (double)(now_ns - c->flood_ns) / 1e9;

    c->flood = fmax(0, c->flood - dt * c->rate) + (double)n;
    c->flood_ns = now_ns;
}

void mt_conn_limit(struct mt_conn *c, double bytes_per_s)
{
    if (!c->tcp)
        return;
    c->rate = bytes_per_s * c->s->opts->tcp.audio_rate;
    c->burst = bytes_per_s * MT_TCP_BURST;
    c->flood_ns = c->t_ns;
}

static void on_limit(uv_timer_t *t);

/* Look again when the flood is over, or when it will have been idle for too long. */
static void watch_limits(struct mt_conn *c, int64_t now_ns)
{
    double wait_s = (double)(c->heard_ns + c->s->opts->tcp.idle_ns - now_ns) / 1e9;

    if (!c->tcp || c->closing || (c->role != FRESH && c->role != CALL))
        return;
    if (flooded(c))
        wait_s = (c->flood - c->burst) / c->rate;
    if (flooded(c) || c->s->opts->tcp.idle_ns > 0)
        uv_timer_start(&c->timer, on_limit, (uint64_t)(fmax(wait_s, 0) * 1e3) + 1, 0);
}

static void regulate(struct mt_conn *c);

static void on_limit(uv_timer_t *t)
{
    struct mt_conn *c = t->data;
    int64_t now = (int64_t)uv_hrtime(), idle = c->s->opts->tcp.idle_ns;
    bool owes = c->role == FRESH || (c->role == CALL && !c->ended);

    if (!c->reading || !owes)
        c->heard_ns = now; /* it waits for us */
    if (c->role == CALL)
        count_flood(c, 0, now);
    if (idle > 0 && now - c->heard_ns >= idle)
        mt_conn_failf(c, "nothing came for %g s", (double)idle / 1e9);
    regulate(c);
    watch_limits(c, now);
}

static void regulate(struct mt_conn *c)
{
    bool want = !c->eof && !c->closing && !c->s->frozen;

    if (c->role == LINGER)
        want = want && c->discarded < DISCARD_MAX;
    else if (c->role != FRESH)
        want =
            want && c->unaccepted < c->hold && !(c->role == CALL && c->s->stopping) && !flooded(c);
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
    struct mt_write *w = (struct mt_write *)req;

    w->c->writes = w->next; /* they end in their order */
    if (!w->next)
        w->c->writes_end = &w->c->writes;
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
    struct mt_write *w;
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
    w->next = NULL;
    w->n = n;
    memcpy(w->data, data + rc, n);
    buf = uv_buf_init(w->data, (unsigned)n);
    if (uv_write(&w->req, stream, &buf, 1, on_written) < 0) {
        free(w);
        conn_gone(c, "gone");
        return;
    }
    *c->writes_end = w;
    c->writes_end = &w->next;
}

size_t mt_conn_unsent(const struct mt_conn *c)
{
    return uv_stream_get_write_queue_size((const uv_stream_t *)&c->pipe);
}

void mt_conn_copy_unsent(const struct mt_conn *c, char *to)
{
    size_t left = mt_conn_unsent(c), all = 0, skip;

    for (const struct mt_write *w = c->writes; w; w = w->next)
        all += w->n;
    skip = all - left; /* of the oldest some is written */
    for (const struct mt_write *w = c->writes; w; w = w->next) {
        size_t some = skip < w->n ? skip : w->n;

        memcpy(to, w->data + some, w->n - some);
        to += w->n - some;
        skip -= some;
    }
}

void mt_conn_say(struct mt_conn *c, json_t *obj)
{
    size_t n = 0;
    char *line = mt_wire_line(obj, &n);

    if (line)
        conn_write(c, line, n);
    else
        conn_gone(c, "out of memory");
    free(line);
}

/*
 * No more is said. What the client still sends is read for a while and thrown away: closing a
 * socket with unread data would reset it, and the last line might never be seen.
 */
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
        mt_conn_close(c);
        return;
    }
    uv_timer_start(&c->timer, on_linger, STUCK_MS, STUCK_MS);
    regulate(c);
}

int mt_conn_fail(struct mt_conn *c, const char *text)
{
    if (c->closing || c->role == LINGER) /* it has had its last line */
        return -EPROTO;
    mt_server_note(c->s, MT_INFO, "connection %llu: %s", (unsigned long long)c->id, text);
    forget(c, "error");
    mt_conn_say(c, mt_wire_error_json(!c->said, text));
    conn_shut(c);
    return -EPROTO;
}

int mt_conn_failf(struct mt_conn *c, const char *fmt, ...)
{
    char text[300];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    return mt_conn_fail(c, text);
}

/* ---- reading ---- */

static void on_eof(struct mt_conn *c)
{
    c->eof = true;
    regulate(c);
    switch (c->role) {
    case FRESH:
        if (mt_wire_parse_end(&c->parser, &c->err) < 0)
            mt_conn_fail(c, c->err.text);
        else
            mt_conn_close(c);
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
            mt_conn_close(c);
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
    c->heard_ns = c->t_ns;
    rc = mt_wire_parse(&c->parser, (const unsigned char *)buf->base, (size_t)n, &c->err);
    if (!rc)
        rc = mt_conn_send_piece(c);
    mt_mail_free(c->piece);
    c->piece = NULL;
    if (rc < 0 && !c->closing && c->role != LINGER)
        mt_conn_fail(c, c->err.code ? c->err.text : strerror(-rc));
    if (c->role == CALL && c->rate > 0)
        count_flood(c, (size_t)n, c->t_ns);
    regulate(c);
    if (flooded(c))
        watch_limits(c, c->t_ns);
}

/* ---- the server's side ---- */

static void give_back(struct mt_conn *c, size_t charge)
{
    c->unaccepted -= charge < c->unaccepted ? charge : c->unaccepted;
}

/* A control request has its answer: the last one may end the connection. */
static void answered(struct mt_conn *c, bool finish)
{
    c->outstanding -= c->role == CONTROL && c->outstanding > 0;
    if (finish || (c->role == CONTROL && c->eof && !c->watching && c->outstanding == 0))
        conn_shut(c);
    regulate(c);
}

void mt_conn_answer(struct mt_conn *c, json_t *obj, size_t charge)
{
    if (c->closing || c->role == LINGER) {
        json_decref(obj);
        return;
    }
    give_back(c, charge);
    mt_conn_say(c, obj);
    answered(c, false);
}

void mt_conn_mail(struct mt_conn *c, const struct mt_mail *m)
{
    if (c->closing || c->role == LINGER)
        return;
    give_back(c, m->charge);
    if (m->rate_hz > 0) {
        c->loading = false;
        mt_conn_begin_call(c, m->rate_hz, m->format, m->live);
    }
    if (m->kind == MT_MAIL_LINE && m->record && c->s->worker.fault.drop > 0 &&
        ++c->s->records % c->s->worker.fault.drop == 0) {
        conn_gone(c, "dropped by --fault");
        return;
    }
    if (m->kind == MT_MAIL_LINE) {
        conn_write(c, (const char *)m->data, m->n);
        answered(c, m->finish);
    } else {
        regulate(c);
    }
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

void mt_conn_hold_all(struct mt_server *s, bool hold)
{
    s->frozen = hold;
    for (int i = 0; i < s->slots; i++)
        if (s->conns[i])
            regulate(s->conns[i]);
}

void mt_conn_stop_all(struct mt_server *s)
{
    for (int i = 0; i < s->slots; i++) {
        struct mt_conn *c = s->conns[i];

        if (!c)
            continue;
        regulate(c);
        if (c->role == FRESH) {
            mt_meter_turned_away(s->worker.meter, MT_REFUSED_SHUTDOWN);
            mt_conn_say(c, mt_wire_refused_json("shutdown", 0));
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
            mt_conn_close(s->conns[i]);
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
            mt_conn_close(s->conns[i]);
    return -1;
}

/* Why a client at this door is sent away, or MT_REFUSALS. */
static enum mt_refusal barred(struct mt_server *s, const struct mt_door *d)
{
    const struct mt_wire_tcp *t = &s->opts->tcp;
    int most = t->connections ? t->connections : mt_engine_options(s->worker.eng)->max_sessions;
    int64_t now = (int64_t)uv_hrtime();

    if (!d->tcp)
        return MT_REFUSALS;
    s->opens += (double)(now - s->opens_ns) / 1e9 * t->opens_per_s;
    s->opens = fmin(s->opens, t->opens_per_s * MT_TCP_BURST);
    s->opens_ns = now;
    if (t->opens_per_s > 0 && s->opens < 1)
        return MT_REFUSED_PACE;
    s->opens -= 1;
    return s->n_tcp < most ? MT_REFUSALS : MT_REFUSED_LIMIT;
}

/* Has its address as many connections as one may have, it included? */
static bool crowded(const struct mt_conn *c)
{
    const struct mt_server *s = c->s;
    int most = s->opts->tcp.per_address, n = 0;

    if (!c->tcp || most == 0)
        return false;
    for (int i = 0; i < s->slots; i++) {
        const struct mt_conn *o = s->conns[i];

        n += o && o->tcp && !o->closing && !memcmp(o->peer, c->peer, sizeof(o->peer));
    }
    return n > most;
}

static void turn_away(struct mt_conn *c, enum mt_refusal why)
{
    struct mt_server *s = c->s;

    mt_server_note(s, MT_INFO, "connection %llu: refused (%s), %d are open",
                   (unsigned long long)c->id, mt_refusal_word(why), s->n_conns);
    mt_meter_turned_away(s->worker.meter, why);
    if (s->n_conns > s->slots + REFUSED_MAX) {
        mt_conn_close(c);
        return;
    }
    mt_conn_say(c, mt_wire_refused_json(mt_refusal_word(why), 1));
    conn_shut(c);
}

struct mt_conn *mt_conn_new(struct mt_server *s, int fd, bool tcp, bool seated)
{
    struct mt_conn *c = calloc(1, sizeof(*c));

    if (!c) {
        close(fd);
        return NULL;
    }
    c->s = s;
    c->slot = seated ? free_slot(s) : -1;
    c->id = ++s->last_id;
    c->hold = MT_CONN_HOLD;
    c->writes_end = &c->writes;
    c->heard_ns = (int64_t)uv_hrtime();
    mt_wire_parser_init(&c->parser);
    c->parser.ctx = c;
    c->parser.on_message = mt_conn_on_message;
    c->parser.on_payload = mt_conn_on_payload;
    uv_pipe_init(&s->loop, &c->pipe, 0);
    uv_timer_init(&s->loop, &c->timer);
    c->pipe.data = c->timer.data = c;
    c->handles = 2;
    c->tcp = tcp;
    s->n_conns++;
    s->n_tcp += c->tcp;
    if (c->slot >= 0)
        s->conns[c->slot] = c;
    if (uv_pipe_open(&c->pipe, fd) < 0) {
        close(fd);
        mt_conn_close(c);
        return NULL;
    }
    if (c->tcp) {
        mt_addr_tune(fd);
        mt_addr_peer(fd, c->peer);
    }
    return c;
}

void mt_conn_accept(struct mt_door *d, int fd)
{
    struct mt_server *s = d->s;
    enum mt_refusal why = barred(s, d);
    struct mt_conn *c = mt_conn_new(s, fd, d->tcp, why == MT_REFUSALS);

    if (!c)
        return;
    if (c->slot >= 0 && crowded(c)) {
        s->conns[c->slot] = NULL;
        c->slot = -1;
    }
    mt_server_note(s, MT_DEBUG, "connection %llu: opened", (unsigned long long)c->id);
    regulate(c);
    if (c->slot >= 0)
        watch_limits(c, c->heard_ns);
    else
        turn_away(c, why == MT_REFUSALS ? MT_REFUSED_LIMIT : why);
}

void mt_conn_resume(struct mt_conn *c)
{
    char *unsent = c->unsent;

    c->unsent = NULL;
    if (unsent)
        conn_write(c, unsent, c->n_unsent);
    free(unsent);
    if (c->period_ms > 0 && !c->closing)
        mt_conn_watch(c, c->period_ms);
    regulate(c);
    watch_limits(c, c->heard_ns);
}
