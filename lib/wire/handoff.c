/*
 * handoff.c: the giver's side of a hand-over. The I/O thread hears a successor as it hears clients,
 * between other things. From "ready" on there is nothing else to do: nobody is read, the engine's
 * thread stands between two ticks and does the talking, so that whatever it reads of a call is read
 * by who owns it, and the I/O thread waits for it, so that no client gets a byte twice. Each wait
 * has an end.
 */
#include "wire/call.h"
#include "wire/conn.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define FILES_MS 10 /* between two looks whether calls are still being saved or loaded */
/* Calls that the taker has not answered for: it loads one while the next is saved. */
#define AHEAD 2
/* Steps that all of it may take while calls stand still. */
#define STEPS 6

enum step { HELLO, OFFERED, FILES, GIVING };

struct mt_successor {
    struct mt_server *s;
    int fd;
    int baton[2];
    uv_poll_t poll;
    uv_timer_t timer;
    int handles;
    enum step step;
    int64_t until_ns; /* of this step */
};

static int64_t now_ns(void)
{
    struct mt_clock c = mt_clock_real();

    return c.now_ns(&c);
}

static int64_t step_ns(const struct mt_server *s)
{
    return s->opts->handoff_step_ns ? s->opts->handoff_step_ns : MT_HANDOFF_STEP_NS;
}

/* ---- one that has connected ---- */

static void on_closed(uv_handle_t *h)
{
    struct mt_successor *x = h->data;

    if (--x->handles == 0)
        free(x);
}

/*
 * Its descriptors are closed at once: that is how it learns of it. A pipe that just ends would be a
 * giver's death to it, and what was said on the socket is lost with the socket where something of
 * its own was unread.
 */
static void drop(struct mt_successor *x)
{
    struct mt_handoff *h = &x->s->handoff;
    char byte = MT_HANDOFF_ABORT;

    if (h->next != x)
        return;
    if (!h->moved && write(x->baton[1], &byte, 1) < 0) {
        /* its pipe is empty: there is room for a byte */
    }
    h->next = NULL;
    uv_close((uv_handle_t *)&x->poll, on_closed);
    uv_close((uv_handle_t *)&x->timer, on_closed);
    close(x->fd);
    close(x->baton[0]);
    close(x->baton[1]);
}

static void refuse(struct mt_successor *x, const char *text)
{
    mt_server_note(x->s, MT_WARN, "--handoff: %s", text);
    mt_handoff_refuse(x->fd, text);
    drop(x);
}

static int offer(struct mt_successor *x, struct mt_err *e)
{
    struct mt_server *s = x->s;
    const struct mt_server_opts *o = s->opts;
    const struct mt_listener *metrics = o->metrics_door ? o->metrics_door(o->ctx) : NULL;
    json_t *msg = mt_handoff_message("offer"), *doors = json_array();
    int fds[MT_PACKET_FDS], n = 0;

    fds[n++] = x->baton[0];
    for (int i = 0; i < s->n_doors; i++) {
        fds[n++] = s->doors[i].listener.fd;
        json_array_append_new(doors, mt_handoff_door_json(MT_DOOR_CALLS, &s->doors[i].listener));
    }
    if (metrics) {
        fds[n++] = metrics->fd;
        json_array_append_new(doors, mt_handoff_door_json(MT_DOOR_METRICS, metrics));
    }
    fds[n++] = s->handoff.listener.fd;
    json_array_append_new(doors, mt_handoff_door_json(MT_DOOR_HANDOFF, &s->handoff.listener));
    json_object_set_new(msg, "facts", mt_handoff_facts(s));
    json_object_set_new(msg, "doors", doors);
    return mt_packet_send(x->fd, msg, fds, n, 0, e);
}

/* Files are other threads' business: calls that are on their way to or from one can't move. */
static bool at_files(const struct mt_server *s)
{
    for (int i = 0; i < s->slots; i++)
        if (s->conns[i] && !s->conns[i]->closing && (s->conns[i]->loading || s->conns[i]->saving))
            return true;
    return false;
}

static void stand_still(struct mt_successor *x)
{
    struct mt_server *s = x->s;
    struct mt_handoff *h = &s->handoff;
    struct mt_mail *m = mt_mail_new(MT_MAIL_HAND, 0, 0, 0);

    h->parked = mt_mail_new(MT_MAIL_PARKED, 0, 0, 0);
    h->parcel = calloc((size_t)s->slots, sizeof(*h->parcel));
    if (!m || !h->parked || !h->parcel) {
        mt_mail_free(m);
        mt_mail_free(h->parked);
        free(h->parcel);
        refuse(x, "out of memory");
        return;
    }
    h->since_ns = now_ns();
    x->step = GIVING;
    x->until_ns = h->since_ns + step_ns(s);
    uv_poll_stop(&x->poll);
    mt_server_bar_doors(s, true);
    mt_conn_hold_all(s, true);
    mt_box_push(&s->worker.in, m);
}

/* The engine does not come: clients are heard meanwhile; when it does it has nothing to give. */
static void go_on(struct mt_successor *x)
{
    struct mt_server *s = x->s;
    struct mt_handoff *h = &s->handoff;

    mt_err_set(&h->err, -ETIMEDOUT, "the engine does not come to a stop");
    mt_server_note(s, MT_WARN, "--handoff: %s", h->err.text);
    mt_handoff_refuse(x->fd, h->err.text);
    uv_timer_stop(&x->timer);
    mt_server_bar_doors(s, false);
    mt_conn_hold_all(s, false);
}

static void on_time(uv_timer_t *t)
{
    struct mt_successor *x = t->data;

    if (x->step == FILES && !at_files(x->s))
        stand_still(x);
    else if (now_ns() >= x->until_ns && x->step == GIVING)
        go_on(x);
    else if (now_ns() >= x->until_ns)
        refuse(x, x->step == FILES ? "calls are being saved to files" : "it does not answer");
}

static void wait_for(struct mt_successor *x, enum step step)
{
    int64_t ns = step_ns(x->s);

    x->step = step;
    x->until_ns = now_ns() + ns;
    if (step == FILES)
        uv_timer_start(&x->timer, on_time, 0, FILES_MS);
    else
        uv_timer_start(&x->timer, on_time, (uint64_t)(ns / MT_NS_PER_MS) + 1, FILES_MS);
}

static void hear(struct mt_successor *x, const struct mt_packet *p)
{
    const char *text = json_string_value(json_object_get(p->msg, "text"));
    struct mt_err e = {0};

    if (!strcmp(p->type, "refuse")) {
        mt_server_note(x->s, MT_WARN, "--handoff: the other server: %.300s", text ? text : "no");
        drop(x);
    } else if (!strcmp(p->type, "hello") && x->step == HELLO) {
        if (json_integer_value(json_object_get(p->msg, "protocol")) != MT_HANDOFF_PROTOCOL)
            refuse(x, "a server of another version: it does not hand over in this way");
        else if (offer(x, &e) < 0)
            refuse(x, e.text);
        else
            wait_for(x, OFFERED);
    } else if (!strcmp(p->type, "ready") && x->step == OFFERED) {
        wait_for(x, FILES);
    } else {
        refuse(x, "a message that does not belong there");
    }
}

static void on_readable(uv_poll_t *poll, int status, int events)
{
    struct mt_successor *x = poll->data;
    struct mt_packet p;
    struct mt_err e = {0};
    int rc;

    (void)status, (void)events;
    rc = mt_packet_recv(x->fd, &p, 0, &e);
    if (rc == -ETIMEDOUT)
        return;
    if (rc == -ENODATA) {
        mt_server_note(x->s, MT_WARN, "--handoff: %s", e.text);
        drop(x);
    } else if (rc < 0) {
        refuse(x, e.text);
    } else {
        hear(x, &p);
        mt_packet_free(&p);
    }
}

/* One that has left is in nobody's way, although its end may not have been read yet. */
static void forget_the_gone(struct mt_handoff *h)
{
    struct pollfd p = {.fd = h->next ? h->next->fd : -1, .events = POLLRDHUP};

    if (h->next && h->next->step != GIVING && poll(&p, 1, 0) > 0)
        drop(h->next);
}

static void on_accept(uv_poll_t *listener, int status, int events)
{
    struct mt_server *s = listener->data;
    int fd = accept4(s->handoff.listener.fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    struct mt_successor *x;
    struct mt_err e = {0};

    (void)status, (void)events;
    if (fd < 0) {
        mt_server_pause(s, s->handoff.listener.where);
        return;
    }
    forget_the_gone(&s->handoff);
    if (mt_packet_check_peer(fd, &e) < 0 || s->handoff.next || s->stopping) {
        mt_handoff_refuse(fd, e.code                ? e.text
                              : s->stopping         ? "it is shutting down"
                              : s->handoff.err.code ? s->handoff.err.text
                                                    : "it is handing over to another one");
        close(fd);
        return;
    }
    if (!(x = calloc(1, sizeof(*x))) || pipe2(x->baton, O_CLOEXEC | O_NONBLOCK) < 0) {
        free(x);
        close(fd);
        return;
    }
    x->s = s;
    x->fd = fd;
    s->handoff.err = (struct mt_err){0};
    uv_poll_init(&s->loop, &x->poll, fd);
    uv_timer_init(&s->loop, &x->timer);
    x->poll.data = x->timer.data = x;
    x->handles = 2;
    s->handoff.next = x;
    uv_poll_start(&x->poll, UV_READABLE, on_readable);
    wait_for(x, HELLO);
}

/* ---- the engine's thread ---- */

/* What it hears: "taken" is what is expected. */
static int answer(struct mt_successor *x, const char *type, int64_t until, struct mt_err *e)
{
    struct mt_packet p;
    int rc = mt_packet_recv(x->fd, &p, until, e);

    if (rc < 0)
        return rc;
    if (!strcmp(p.type, "refuse")) {
        const char *text = json_string_value(json_object_get(p.msg, "text"));

        rc = mt_err_set(e, -ECONNREFUSED, "the other server: %.300s", text ? text : "no");
    } else if (strcmp(p.type, type) != 0) {
        rc = mt_err_set(e, -EPROTO, "a message that does not belong there");
    }
    mt_packet_free(&p);
    return rc;
}

struct giving {
    struct mt_successor *x;
    int64_t end_ns; /* of everything */
    int ahead;
};

static int64_t until(const struct giving *g)
{
    int64_t t = now_ns() + step_ns(g->x->s);

    return t < g->end_ns ? t : g->end_ns;
}

/* Until only so many are unanswered. */
static int catch_up(struct giving *g, int ahead, struct mt_err *e)
{
    int rc = 0;

    while (!rc && g->ahead > ahead) {
        rc = answer(g->x, "taken", until(g), e);
        g->ahead--;
    }
    return rc;
}

/* One parcel; fd -1: no socket goes with it. */
static int send_parcel(struct giving *g, const char *type, int fd, struct mt_state_io *io,
                       struct mt_err *e)
{
    int fds[2], n = 0, rc;
    int blob =
        mt_state_ok(io) ? mt_packet_seal(io, e) : mt_err_set(e, io->err.code, "%s", io->err.text);

    free(io->data); /* the copy is what goes */
    io->data = NULL;
    if (blob < 0)
        return blob;
    fds[n++] = blob;
    if (fd >= 0)
        fds[n++] = fd;
    rc = mt_packet_send(g->x->fd, mt_handoff_message(type), fds, n, until(g), e);
    close(blob);
    g->ahead++;
    return rc < 0 ? rc : catch_up(g, AHEAD, e);
}

static int send_conn(struct giving *g, struct mt_conn *c, struct mt_state_io *io, struct mt_err *e)
{
    uv_os_fd_t fd = -1;

    if (uv_fileno((uv_handle_t *)&c->pipe, &fd) < 0)
        return mt_err_set(e, -EBADF, "a connection without a descriptor");
    return send_parcel(g, "connection", fd, io, e);
}

/* Those without a call, then the calls by their numbers, as the taker's engine wants them. */
static int send_all(struct giving *g, struct mt_worker *w, struct mt_err *e)
{
    struct mt_server *s = g->x->s;
    struct mt_state_io *parcel = s->handoff.parcel, rest = {0};
    int rc = 0;

    for (int i = 0; i < s->slots && !rc; i++)
        if (parcel[i].n > 0 && s->conns[i]->role != CALL)
            rc = send_conn(g, s->conns[i], &parcel[i], e);
    for (int i = 0; i < w->n_calls && !rc; i++) {
        struct mt_call *c = w->by_session[i];
        struct mt_conn *conn = s->conns[c->slot];

        if (parcel[c->slot].n == 0 || conn->id != c->conn || conn->role != CALL)
            continue;
        if (mt_worker_pack(w, c, &parcel[c->slot]) < 0)
            rc = mt_err_set(e, parcel[c->slot].err.code, "session %lld: %s", (long long)c->session,
                            parcel[c->slot].err.text);
        else
            rc = send_conn(g, conn, &parcel[c->slot], e);
    }
    if (rc < 0)
        return rc;
    mt_worker_visit(w, &rest);
    rc = send_parcel(g, "end", -1, &rest, e);
    return rc < 0 ? rc : catch_up(g, 0, e);
}

/*
 * The byte in the pipe decides: 0 when the taker has it. Who has it says so before he serves: one
 * who left without a word never did.
 */
static int commit(struct giving *g, struct mt_err *e)
{
    struct mt_successor *x = g->x;
    char byte = MT_HANDOFF_COMMIT;
    int rc;

    if (write(x->baton[1], &byte, 1) != 1)
        return mt_err_set(e, -EIO, "the pipe: %s", strerror(errno));
    if ((rc = answer(x, "mine", until(g), e)) == 0)
        return 0;
    if (read(x->baton[0], &byte, 1) == 1 || rc == -ENODATA || rc == -ECONNREFUSED)
        return e->code; /* nobody had taken it, and nobody can any more */
    *e = (struct mt_err){0};
    return 0;
}

static void sleep_on(sem_t *s)
{
    while (sem_wait(s) < 0) {
        /* a signal */
    }
}

bool mt_handoff_give(struct mt_handoff *h, struct mt_worker *w)
{
    struct giving g = {.x = h->next};
    struct mt_err *e = &h->err;

    mt_worker_post(w, h->parked);
    sleep_on(&h->go);
    g.end_ns = now_ns() + STEPS * step_ns(g.x->s);
    h->moved = !e->code && send_all(&g, w, e) == 0 && commit(&g, e) == 0;
    if (!h->moved)
        mt_handoff_refuse(g.x->fd, e->text);
    w->moved = h->moved;
    sem_post(&h->done);
    return w->moved;
}

/* ---- the I/O thread, while they stand still ---- */

static void pack_all(struct mt_server *s)
{
    struct mt_handoff *h = &s->handoff;

    if (s->stopping)
        mt_err_set(&h->err, -ECANCELED, "it is shutting down");
    for (int i = 0; i < s->slots && !h->err.code; i++)
        if (s->conns[i] && mt_conn_moves(s->conns[i]) &&
            mt_conn_pack(s->conns[i], &h->parcel[i]) < 0)
            mt_err_set(&h->err, h->parcel[i].err.code, "%s", h->parcel[i].err.text);
}

/* Who went is closed without a word: his socket lives on at the other server. */
static void let_go(struct mt_server *s)
{
    int n = 0;

    for (int i = 0; i < s->slots; i++)
        if (s->handoff.parcel[i].n > 0) {
            mt_conn_close(s->conns[i]);
            n++;
        }
    mt_server_note(s, MT_INFO,
                   "--handoff: %d connections went on at the other server after %.1f ms", n,
                   (double)(now_ns() - s->handoff.since_ns) / 1e6);
    s->stopping = true;
    s->handoff.listener.ino = 0;
    mt_server_given(s);
}

void mt_handoff_parked(struct mt_server *s)
{
    struct mt_handoff *h = &s->handoff;

    uv_timer_stop(&h->next->timer);
    pack_all(s);
    sem_post(&h->go);
    sleep_on(&h->done);
    if (h->moved)
        let_go(s);
    else
        mt_server_note(s, MT_WARN, "--handoff: %s: its calls go on here", h->err.text);
    for (int i = 0; i < s->slots; i++)
        free(h->parcel[i].data);
    free(h->parcel);
    h->parcel = NULL;
    drop(h->next);
    if (h->moved)
        return;
    mt_server_bar_doors(s, false);
    mt_conn_hold_all(s, false);
}

/* ---- the place ---- */

int mt_handoff_open(struct mt_server *s, struct mt_err *e)
{
    struct mt_handoff *h = &s->handoff;
    struct mt_err why = {0};
    int rc = 0;

    if (!s->opts->handoff)
        return 0;
    if (h->listener.fd < 0)
        do
            rc = mt_listen_packets(&h->listener, s->opts->handoff, &why);
        while (mt_server_again(s, rc));
    if (rc < 0)
        return mt_err_set(e, rc, "--handoff: %s", why.text);
    sem_init(&h->go, 0, 0);
    sem_init(&h->done, 0, 0);
    h->semaphores = true;
    if ((rc = uv_poll_init(&s->loop, &h->accept, h->listener.fd)) < 0)
        return mt_err_set(e, rc, "--handoff: %s", uv_strerror(rc));
    h->accept.data = s;
    return 0;
}

void mt_handoff_wait(struct mt_server *s, bool wait)
{
    if (s->handoff.accept.data && wait)
        uv_poll_start(&s->handoff.accept, UV_READABLE, on_accept);
    else if (s->handoff.accept.data)
        uv_poll_stop(&s->handoff.accept);
}

void mt_handoff_close(struct mt_server *s)
{
    struct mt_handoff *h = &s->handoff;

    if (h->next && h->next->step != GIVING)
        refuse(h->next, "it is shutting down");
    if (h->accept.data && !uv_is_closing((uv_handle_t *)&h->accept))
        uv_close((uv_handle_t *)&h->accept, NULL);
    mt_listen_unlink(&h->listener);
    if (h->listener.fd >= 0)
        close(h->listener.fd);
    h->listener.fd = -1;
}

void mt_handoff_free(struct mt_handoff *h)
{
    if (h->semaphores) {
        sem_destroy(&h->go);
        sem_destroy(&h->done);
    }
    mt_listen_unlink(&h->listener);
    if (h->listener.fd >= 0)
        close(h->listener.fd);
    *h = (struct mt_handoff){.listener.fd = -1};
}
