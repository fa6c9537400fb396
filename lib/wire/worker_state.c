/*
 * worker_state.c: calls saved and loaded, and handed over, as the engine's thread does it: between
 * two ticks a call becomes bytes in memory, or comes of them. Files are other threads' business
 * (store.c), and so is who gets a call that moves (handoff.c).
 */
#include "wire/call.h"
#include "wire/callfile.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* How a client opened its call, as far as the engine does not know it. */
struct origin {
    int rate_hz, format;
    bool tokens, speech;
};

static void visit_origin(struct origin *o, struct mt_state_io *io)
{
    mt_state_int(io, "rate", &o->rate_hz, MT_WIRE_RATE_MIN, MT_WIRE_RATE_MAX);
    mt_state_int(io, "format", &o->format, MT_PCM_S16LE, MT_PCM_F32LE);
    mt_state_bool(io, "tokens", &o->tokens);
    mt_state_bool(io, "speech", &o->speech);
}

/* ---- save ---- */

static json_t *saved_json(const struct mt_worker *w, const struct mt_mail *m,
                          const struct mt_call *c, size_t size)
{
    json_t *o = mt_wire_object(m->first, "save");
    struct mt_session_facts f = {0};

    mt_engine_session(w->eng, c->session, &f);
    json_object_set_new(o, "session", json_sprintf("%" PRId64, c->session));
    json_object_set_new(o, "name", json_string(m->name));
    json_object_set_new(o, "frame", json_integer(f.next_frame));
    json_object_set_new(o, "samples", json_integer(c->intake.heard));
    json_object_set_new(o, "size", json_integer((json_int_t)size));
    return o;
}

/* odd: with the bytes of half a sample. */
static int make_image(struct mt_worker *w, struct mt_call *c, bool odd, struct mt_state_io *io)
{
    struct origin o = {c->intake.from_hz, (int)c->intake.format, c->tokens, c->speech};

    visit_origin(&o, io);
    mt_intake_visit(&c->intake, odd, io);
    return mt_engine_save(w->eng, c->session, io);
}

void mt_worker_save(struct mt_worker *w, const struct mt_mail *m)
{
    struct mt_mail to = {.slot = m->slot, .conn = m->conn, .charge = m->charge, .finish = true};
    struct mt_mail *store = mt_mail_new(MT_MAIL_STORE, m->slot, m->conn, 0);
    struct mt_state_io *io = calloc(1, sizeof(*io));
    struct mt_call *c = mt_worker_call(w, m->session);
    char text[600];
    int rc = -ENOMEM;

    if (store && io) {
        store->state = io;
        mt_callfile_begin(io);
        rc = c ? make_image(w, c, false, io)
               : mt_state_fail(io, -ENOENT, "there is no session %" PRId64, m->session);
    }
    if (rc < 0 || !c || !(store->name = strdup(m->name))) {
        snprintf(text, sizeof(text), "\"save\": session %" PRId64 ": %s", m->session,
                 rc < 0 && io && io->err.code ? io->err.text : "out of memory");
        mt_worker_post_line(w, mt_wire_error_json(m->first, text), to);
        if (!store)
            free(io);
        mt_mail_free(store);
        return;
    }
    store->charge = m->charge;
    store->answer = saved_json(w, m, c, io->n);
    mt_worker_post(w, store);
}

/* ---- load ---- */

static json_t *loaded_json(const struct mt_worker *w, const struct mt_call *c)
{
    struct mt_wire_open o = {.rate_hz = c->intake.from_hz, .format = c->intake.format};
    struct mt_session_facts f = {0};
    json_t *msg;

    mt_engine_session(w->eng, c->session, &f);
    o.session.window = f.window;
    msg = mt_wire_opened_json(w->eng, w->model, &o, c->session, mt_intake_lag(&c->intake));
    json_object_set_new(msg, "frame", json_integer(f.next_frame));
    json_object_set_new(msg, "samples", json_integer(c->intake.heard));
    return msg;
}

/* 0, -EAGAIN with a reason, or a line in io. */
static int make_call(struct mt_worker *w, struct mt_call *c, struct mt_state_io *io,
                     const struct mt_load_opts *lo, bool odd, const char **reason, double *retry_s)
{
    struct mt_session_facts f = {0};
    struct origin o = {.rate_hz = MT_WIRE_RATE_MIN};
    struct mt_err why = {0};
    int rc;

    visit_origin(&o, io);
    if (mt_state_ok(io) && mt_intake_open(&c->intake, (enum mt_pcm)o.format, o.rate_hz,
                                          mt_model_info(w->model)->sample_rate_hz, &why) < 0)
        mt_state_fail(io, why.code, "%s", why.text);
    c->tokens = o.tokens;
    c->speech = o.speech;
    if (mt_state_ok(io))
        mt_intake_visit(&c->intake, odd, io);
    if (!mt_state_ok(io))
        return io->err.code;
    if ((rc = mt_engine_load(w->eng, io, lo, &c->session, reason, retry_s)) == 0) {
        mt_engine_session(w->eng, c->session, &f);
        c->live = f.live;
    }
    return rc;
}

void mt_worker_load(struct mt_worker *w, struct mt_mail *m)
{
    struct mt_mail to = {.slot = m->slot, .conn = m->conn, .charge = m->charge};
    struct mt_call *c = calloc(1, sizeof(*c));
    const struct mt_load_opts lo = {.window = m->window};
    const char *reason = NULL;
    double retry_s = 0;
    char text[600];
    int rc;

    mt_worker_call_vacate(w, m->slot);
    rc = c ? make_call(w, c, m->state, &lo, false, &reason, &retry_s) : -ENOMEM;
    if (rc == 0 && c) {
        c->slot = m->slot;
        c->conn = m->conn;
        mt_worker_call_opened(w, c);
        if (c->intake.n_out > 0)
            mt_worker_call_busy(w, c);
        to.rate_hz = c->intake.from_hz;
        to.format = c->intake.format;
        to.live = c->live;
        mt_worker_post_line(w, loaded_json(w, c), to);
        return;
    }
    to.finish = true;
    if (rc == -EAGAIN && reason) {
        mt_meter_refused(w->meter, reason);
        mt_worker_post_line(w, mt_wire_refused_json(reason, retry_s), to);
    } else {
        snprintf(text, sizeof(text), "\"load\": %s: %s", m->name,
                 m->state->err.code ? m->state->err.text : "out of memory");
        mt_worker_post_line(w, mt_wire_error_json(true, text), to);
    }
    if (c)
        mt_intake_close(&c->intake);
    free(c);
}

/* ---- hand-over ---- */

#define PIECES_MAX (1 << 20)
/* From the moment that a call stands still; no hand-over takes longer. */
#define MOVE_MAX_NS (600 * MT_NS_PER_S)

/* One piece of sound, or the end: out of m, or into a new one. */
static void visit_piece(struct mt_worker *w, struct mt_call *c, struct mt_mail *m,
                        struct mt_state_io *io)
{
    int kind = m ? (int)m->kind : MT_MAIL_AUDIO;
    size_t n = m ? m->n - m->at : 0;
    int64_t t = m ? m->t_ns : 0;

    mt_state_int(io, "piece", &kind, MT_MAIL_AUDIO, MT_MAIL_END);
    mt_state_i64(io, "time of a piece", &t, 0, INT64_MAX);
    mt_state_size(io, "bytes of a piece", &n, MT_WIRE_PAYLOAD_MAX);
    if (io->load && mt_state_ok(io)) {
        if (n > io->n - io->at || !(m = mt_mail_new((enum mt_mail_kind)kind, c->slot, c->conn, n)))
            mt_state_fail(io, -EPROTO, "a piece of %zu bytes", n);
        else
            mt_worker_call_keep(w, c, m);
    }
    if (!m || !mt_state_ok(io))
        return;
    if (io->load) {
        m->t_ns = t;
        m->n = n;
        m->charge = kind == MT_MAIL_AUDIO ? sizeof(*m) + n : 0;
    }
    mt_state_bytes(io, "a piece", m->data + m->at, n);
}

static void visit_queue(struct mt_worker *w, struct mt_call *c, struct mt_state_io *io)
{
    struct mt_mail *m = c->head;
    int n = 0;

    for (const struct mt_mail *i = m; i; i = i->next)
        n++;
    mt_state_int(io, "pieces of sound", &n, 0, PIECES_MAX);
    for (int i = 0; i < n && mt_state_ok(io); i++) {
        struct mt_mail *next = m ? m->next : NULL;

        visit_piece(w, c, io->load ? NULL : m, io);
        m = next;
    }
}

/* What a file has not, as it would mean nothing later. */
static void visit_moment(struct mt_worker *w, struct mt_call *c, int64_t *at_ns,
                         struct mt_state_io *io)
{
    mt_state_i64(io, "session", &c->session, 1, INT64_MAX - 1);
    mt_state_i64(io, "time", at_ns, 0, INT64_MAX);
    mt_state_i64(io, "time of the sound", &c->t_ns, 0, INT64_MAX);
    mt_state_bool(io, "stalled", &c->stalled);
    visit_queue(w, c, io);
}

int mt_worker_pack(struct mt_worker *w, struct mt_call *c, struct mt_state_io *io)
{
    int64_t at = mt_worker_now_ns(w);

    visit_moment(w, c, &at, io);
    return make_image(w, c, true, io);
}

int mt_worker_unpack(struct mt_worker *w, int slot, uint64_t conn, struct mt_state_io *io,
                     struct mt_unpacked *out)
{
    struct mt_call *c = calloc(1, sizeof(*c));
    struct mt_load_opts lo = {.always = true};
    int64_t now = mt_worker_now_ns(w), at = now;
    const char *reason = NULL;
    double retry_s;
    int rc;

    if (!c)
        return mt_state_fail(io, -ENOMEM, "out of memory");
    c->slot = slot;
    c->conn = conn;
    visit_moment(w, c, &at, io);
    lo.id = c->session;
    lo.elapsed_ns = now - at;
    if (at > now || now - at > MOVE_MAX_NS)
        mt_state_fail(io, -EPROTO, "a call that stood still %lld ms ago",
                      (long long)((now - at) / MT_NS_PER_MS));
    if (mt_state_ok(io)) {
        rc = make_call(w, c, io, &lo, true, &reason, &retry_s);
        if (rc < 0 && mt_state_ok(io))
            mt_state_fail(io, rc, "session %" PRId64 " finds no place (%s)", lo.id,
                          reason ? reason : strerror(-rc));
    }
    if (!mt_state_ok(io)) {
        mt_worker_call_free(w, c);
        return io->err.code;
    }
    mt_worker_call_opened(w, c);
    w->meter->own.stalled += c->stalled;
    if (c->intake.n_out > 0)
        mt_worker_call_busy(w, c);
    *out = (struct mt_unpacked){c->session, c->intake.from_hz, c->intake.format, c->live, 0};
    for (const struct mt_mail *m = c->head; m; m = m->next)
        out->held += m->charge;
    return 0;
}

int mt_worker_visit(struct mt_worker *w, struct mt_state_io *io)
{
    mt_engine_visit(w->eng, io);
    mt_meter_visit(w->meter, io);
    return mt_state_end(io);
}
