/*
 * conn_state.c: a connection on its way to another server. The socket itself goes along, and with
 * it what neither side has read; what is in between is here: the beginning of a line, a payload that
 * has come in part, bytes that the client has not read yet.
 */
#include "wire/conn.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

bool mt_conn_moves(const struct mt_conn *c)
{
    return c->slot >= 0 && !c->closing && c->role != LINGER;
}

static void visit_parser(struct mt_conn *c, struct mt_state_io *io)
{
    struct mt_wire_parser *p = &c->parser;

    mt_state_i64(io, "bytes of a payload", &p->payload, 0, MT_WIRE_PAYLOAD_MAX);
    mt_state_bool(io, "sound", &c->audio);
    mt_state_size(io, "bytes of a line", &p->n, MT_WIRE_LINE_MAX);
    if (!mt_state_ok(io))
        return;
    if (io->load && p->n > 0) {
        p->cap = MT_WIRE_LINE_MAX;
        if (!(p->line = malloc(p->cap))) {
            p->n = 0;
            mt_state_fail(io, -ENOMEM, "out of memory");
        }
    }
    mt_state_bytes(io, "a line", p->line, p->n);
}

static void visit_unsent(struct mt_conn *c, struct mt_state_io *io)
{
    size_t n = io->load ? 0 : mt_conn_unsent(c);
    char *at;

    mt_state_size(io, "bytes unsent", &n, MT_WIRE_OUT_MAX);
    at = mt_state_block(io, "bytes unsent", n);
    if (!at || n == 0)
        return;
    if (!io->load) {
        mt_conn_copy_unsent(c, at);
        return;
    }
    if (!(c->unsent = malloc(n))) {
        mt_state_fail(io, -ENOMEM, "out of memory");
        return;
    }
    memcpy(c->unsent, at, n);
    c->n_unsent = n;
}

static void visit(struct mt_conn *c, struct mt_state_io *io)
{
    int role = (int)c->role;

    mt_state_int(io, "role", &role, FRESH, CONTROL);
    mt_state_bool(io, "said", &c->said);
    mt_state_bool(io, "ended", &c->ended);
    mt_state_i64(io, "period", &c->period_ms, 0, INT64_C(1) << 32);
    visit_parser(c, io);
    visit_unsent(c, io);
    if (mt_state_ok(io))
        c->role = (enum role)role;
}

int mt_conn_pack(struct mt_conn *c, struct mt_state_io *io)
{
    mt_state_bool(io, "TCP", &c->tcp);
    visit(c, io);
    return io->err.code;
}

int mt_conn_unpack(struct mt_server *s, int fd, struct mt_state_io *io)
{
    struct mt_unpacked call = {0};
    struct mt_conn *c;
    bool tcp = false;

    mt_state_bool(io, "TCP", &tcp);
    if (!(c = mt_conn_new(s, fd, tcp, true)))
        return mt_state_fail(io, -ENOMEM, "out of memory");
    if (c->slot < 0)
        mt_state_fail(io, -ENOSPC, "there is room for %d connections here", s->slots);
    if (mt_state_ok(io))
        visit(c, io);
    if (mt_state_ok(io) && c->role == CALL)
        mt_worker_unpack(&s->worker, c->slot, c->id, io, &call);
    mt_state_end(io);
    if (!mt_state_ok(io)) {
        mt_conn_close(c);
        return io->err.code;
    }
    c->t_ns = c->heard_ns;
    c->unaccepted = call.held;
    if (c->role == CALL)
        mt_conn_begin_call(c, call.rate_hz, call.format, call.live);
    return 0;
}
