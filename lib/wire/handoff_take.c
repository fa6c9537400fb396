/*
 * handoff_take.c: the taker's side of a hand-over, in one thread, before anything else runs. What
 * comes is put in its place at once, and not touched: no client is read or written to before the
 * byte is there that makes all of it this server's.
 */
#include "wire/conn.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

/* A connection's own part at most, beside what the saved state of a call has. */
#define PARCEL_MORE ((size_t)64 << 20)

struct taking {
    struct mt_server *s;
    int fd, baton;
    int connections;
    bool whole; /* all has come */
};

static int64_t until(const struct taking *t)
{
    struct mt_clock c = mt_clock_real();
    int64_t step = t->s->opts->handoff_step_ns;

    return c.now_ns(&c) + (step ? step : MT_HANDOFF_STEP_NS);
}

static int address(struct mt_addr *a, const char *path, struct mt_err *e)
{
    int rc = mt_addr_packets(a, path, e);
    struct stat st;

    if (!rc && lstat(path, &st) == 0 && !S_ISSOCK(st.st_mode))
        return mt_err_set(e, -EEXIST, "%s: exists and is not a socket; it is left alone", path);
    return rc;
}

int mt_wire_handoff_check(const char *path, struct mt_err *e)
{
    struct mt_addr a;

    return address(&a, path, e);
}

/* Connected; *fd stays -1 where nobody is. */
static int dial(const char *path, int *fd, struct mt_err *e)
{
    struct mt_addr a;
    int rc = address(&a, path, e);

    *fd = -1;
    if (rc < 0)
        return rc;
    rc = mt_addr_dial(&a.at[0]);
    if (rc == -ENOENT || rc == -ECONNREFUSED)
        return 0;
    if (rc == -EPROTOTYPE)
        return mt_err_set(e, rc, "%s: a socket for something else than a hand-over", path);
    if (rc < 0)
        return mt_err_set(e, rc, "%s: %s", path, strerror(-rc));
    *fd = rc;
    return mt_packet_check_peer(rc, e);
}

/* ---- what comes ---- */

static int take_door(struct taking *t, json_t *o, int fd, struct mt_err *e)
{
    struct mt_server *s = t->s;
    const char *metrics = s->opts->metrics;
    enum mt_door_kind kind;
    struct mt_listener l;
    int rc = mt_handoff_door_parse(o, fd, &kind, &l, e);

    if (rc < 0) {
        if (fd >= 0)
            close(fd);
        return rc;
    }
    if (kind == MT_DOOR_HANDOFF && s->handoff.listener.fd < 0) {
        s->handoff.listener = l;
    } else if (kind == MT_DOOR_METRICS && s->metrics.fd < 0 && metrics &&
               !strcmp(metrics, l.asked)) {
        s->metrics = l;
    } else if (kind == MT_DOOR_CALLS && s->n_doors < MT_DOORS) {
        s->doors[s->n_doors++].listener = l;
        if (mt_wire_public_fd(l.fd) && !s->opts->public)
            return mt_err_set(e, -EPERM,
                              "%s can be reached from other machines, and there is no encryption: "
                              "give --listen-public",
                              l.where);
    } else {
        close(l.fd); /* not asked for: it ends with the other server */
    }
    return 0;
}

static int take_offer(struct taking *t, struct mt_packet *p, struct mt_err *e)
{
    json_t *doors = json_object_get(p->msg, "doors"), *mine = mt_handoff_facts(t->s);
    int rc = mt_handoff_fits(json_object_get(p->msg, "facts"), mine, e);

    json_decref(mine);
    if (rc < 0)
        return rc;
    if ((t->baton = mt_packet_take(p, 0)) < 0 || (size_t)p->n_fds != json_array_size(doors) + 1)
        return mt_err_set(e, -EPROTO, "an offer of %zu sockets with %d descriptors",
                          json_array_size(doors), p->n_fds);
    for (size_t i = 0; i < json_array_size(doors) && !rc; i++)
        rc = take_door(t, json_array_get(doors, i), mt_packet_take(p, (int)i + 1), e);
    return rc;
}

static int take_connection(struct taking *t, struct mt_packet *p, struct mt_err *e)
{
    int fd = mt_packet_take(p, 1), type = 0, listens = 1, rc;
    socklen_t n = sizeof(type), m = sizeof(listens);
    struct mt_state_io io;

    if (fd < 0 || getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &n) < 0 || type != SOCK_STREAM ||
        getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &m) < 0 || listens) {
        if (fd >= 0)
            close(fd);
        return mt_err_set(e, -EPROTO, "a connection without its socket");
    }
    if ((rc = mt_packet_map(&io, p->fds[0], t->s->call_bytes + PARCEL_MORE, e)) < 0) {
        close(fd);
        return rc;
    }
    if (mt_conn_unpack(t->s, fd, &io) < 0)
        rc = mt_err_set(e, io.err.code, "%s", io.err.text);
    else
        t->connections++;
    mt_packet_unmap(&io);
    return rc;
}

static int take_rest(struct taking *t, struct mt_packet *p, struct mt_err *e)
{
    struct mt_state_io io;
    int rc = p->n_fds == 1 ? mt_packet_map(&io, p->fds[0], PARCEL_MORE, e)
                           : mt_err_set(e, -EPROTO, "an end without its memory");

    if (rc < 0)
        return rc;
    if (mt_worker_visit(&t->s->worker, &io) < 0)
        rc = mt_err_set(e, io.err.code, "%s", io.err.text);
    mt_packet_unmap(&io);
    t->whole = !rc;
    return rc < 0 ? rc : mt_server_open_doors(t->s, e);
}

/* ---- whose it is ---- */

/* What the other server said when it gave up, perhaps behind packets that nobody needs any more. */
static int why_not(struct taking *t, struct mt_err *e)
{
    struct mt_packet p;

    while (mt_packet_recv(t->fd, &p, 0, NULL) == 0) {
        const char *text = json_string_value(json_object_get(p.msg, "text"));

        if (text)
            mt_err_set(e, -ECANCELED, "the other server: %.300s", text);
        mt_packet_free(&p);
    }
    return mt_err_set(e, -ECANCELED, "the other server gave up");
}

/*
 * The byte, or the end of the pipe, which a giver only leaves by dying: then what has come is whole,
 * one packet at a time, and lives on here or nowhere.
 */
static int verdict(struct taking *t, struct mt_err *e)
{
    int64_t end = until(t);
    char byte = 0;
    ssize_t n;
    int rc;

    while ((n = read(t->baton, &byte, 1)) < 0) {
        if (errno != EAGAIN && errno != EINTR)
            return mt_err_set(e, -errno, "the pipe: %s", strerror(errno));
        if ((rc = mt_addr_wait(t->baton, POLLIN, end)) < 0 && rc != -EINTR)
            return mt_err_set(e, rc, "the other server does not hand over");
    }
    if (n == 1 && byte != MT_HANDOFF_COMMIT)
        return why_not(t, e);
    if (n == 1) {
        rc = mt_packet_send(t->fd, mt_handoff_message("mine"), NULL, 0, until(t), e);
        if (rc < 0 && rc != -EPIPE)
            return rc; /* who leaves without that word has had nothing */
    } else {
        mt_server_note(
            t->s, MT_WARN,
            "--handoff: the other server died in the middle; %d of its connections go on "
            "here%s",
            t->connections, t->whole ? "" : ", perhaps not all");
    }
    return 0;
}

/* Their files, too. Calls don't end for the want of metrics. */
static void own_doors(struct taking *t)
{
    const struct mt_server_opts *o = t->s->opts;
    struct mt_server *s = t->s;
    struct mt_err e = {0};

    for (int i = 0; i < s->n_doors; i++)
        s->doors[i].listener.theirs = false;
    s->handoff.listener.theirs = s->metrics.theirs = false;
    if (s->metrics.fd >= 0 && o->metrics_open(o->ctx, &s->metrics, &e) < 0)
        mt_server_note(s, MT_WARN, "%s", e.text);
    s->metrics.fd = -1; /* its server's */
    if (o->taken)
        o->taken(o->ctx, s->worker.n_calls);
}

/* ---- the course of it ---- */

static int greet(struct taking *t, struct mt_err *e)
{
    json_t *o = mt_handoff_message("hello");
    struct mt_packet p;
    int rc;

    json_object_set_new(o, "protocol", json_integer(MT_HANDOFF_PROTOCOL));
    rc = mt_packet_send(t->fd, o, NULL, 0, until(t), e);
    if (rc == -EPIPE) /* one that has left may have said why */
        *e = (struct mt_err){0};
    else if (rc < 0)
        return rc;
    if ((rc = mt_packet_recv(t->fd, &p, until(t), e)) < 0)
        return rc;
    if (!strcmp(p.type, "offer")) {
        rc = take_offer(t, &p, e);
    } else {
        const char *text = json_string_value(json_object_get(p.msg, "text"));

        rc = mt_err_set(e, -ECONNREFUSED, "the other server: %.300s", text ? text : "no offer");
    }
    mt_packet_free(&p);
    if (!rc)
        rc = mt_packet_send(t->fd, mt_handoff_message("ready"), NULL, 0, until(t), NULL);
    return rc == -EPIPE && t->baton >= 0 ? 0 : rc; /* its pipe says what that means */
}

/* All that it has; then whose it is. */
static int take_all(struct taking *t, struct mt_err *e)
{
    struct mt_packet p;
    int rc = 0;

    while (!rc && !t->whole) {
        rc = mt_packet_recv(t->fd, &p, until(t), e);
        if (rc == -ENODATA) {
            *e = (struct mt_err){0};
            break;
        }
        if (rc < 0)
            return rc;
        if (!strcmp(p.type, "connection"))
            rc = take_connection(t, &p, e);
        else if (!strcmp(p.type, "end"))
            rc = take_rest(t, &p, e);
        else
            rc = mt_err_set(e, -ECANCELED, "the other server: %.300s",
                            json_string_value(json_object_get(p.msg, "text")) ?: p.type);
        mt_packet_free(&p);
        if (!rc)
            rc = mt_packet_send(t->fd, mt_handoff_message("taken"), NULL, 0, until(t), e);
        if (rc == -EPIPE) {
            *e = (struct mt_err){0};
            break;
        }
    }
    return rc == 0 || rc == -ENODATA || rc == -EPIPE ? verdict(t, e) : rc;
}

int mt_handoff_take(struct mt_server *s, struct mt_err *e)
{
    struct taking t = {.s = s, .fd = -1, .baton = -1};
    struct mt_err why = {0};
    int rc = dial(s->opts->handoff, &t.fd, &why);

    if (!rc && t.fd >= 0) {
        rc = greet(&t, &why);
        if (!rc) {
            rc = take_all(&t, &why);
        } else if (t.baton < 0 && (rc == -ENODATA || rc == -EPIPE)) {
            s->dying_ns = until(&t); /* one that is just ending: its sockets may outlive this one */
            rc = 0;
        }
        if (!rc && t.baton >= 0)
            own_doors(&t);
        if (rc < 0 && rc != -ECANCELED)
            mt_handoff_refuse(t.fd, why.text);
    }
    if (t.fd >= 0)
        close(t.fd);
    if (t.baton >= 0)
        close(t.baton);
    return rc < 0 ? mt_err_set(e, rc, "--handoff: %s", why.text) : 0;
}
