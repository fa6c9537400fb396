/*
 * worker_state.c: calls saved and loaded, as the engine's thread does it: between two ticks a call
 * becomes bytes in memory, or comes of them. Files are other threads' business (store.c).
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

static int make_image(struct mt_worker *w, struct mt_call *c, struct mt_state_io *io)
{
    struct origin o = {c->intake.from_hz, (int)c->intake.format, c->tokens, c->speech};

    mt_callfile_begin(io);
    visit_origin(&o, io);
    mt_intake_visit(&c->intake, false, io);
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
        rc = c ? make_image(w, c, io)
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
static int make_call(struct mt_worker *w, struct mt_call *c, struct mt_state_io *io, int64_t window,
                     const char **reason, double *retry_s)
{
    const struct mt_load_opts lo = {.window = window};
    struct origin o = {.rate_hz = MT_WIRE_RATE_MIN};
    struct mt_err why = {0};

    visit_origin(&o, io);
    if (mt_state_ok(io) && mt_intake_open(&c->intake, (enum mt_pcm)o.format, o.rate_hz,
                                          mt_model_info(w->model)->sample_rate_hz, &why) < 0)
        mt_state_fail(io, why.code, "%s", why.text);
    c->tokens = o.tokens;
    c->speech = o.speech;
    if (mt_state_ok(io))
        mt_intake_visit(&c->intake, false, io);
    if (!mt_state_ok(io))
        return io->err.code;
    return mt_engine_load(w->eng, io, &lo, &c->session, reason, retry_s);
}

void mt_worker_load(struct mt_worker *w, struct mt_mail *m)
{
    struct mt_mail to = {.slot = m->slot, .conn = m->conn, .charge = m->charge};
    struct mt_call *c = calloc(1, sizeof(*c));
    const char *reason = NULL;
    double retry_s = 0;
    char text[600];
    int rc;

    mt_worker_call_vacate(w, m->slot);
    rc = c ? make_call(w, c, m->state, m->window, &reason, &retry_s) : -ENOMEM;
    if (rc == 0 && c) {
        struct mt_session_facts f = {0};

        mt_engine_session(w->eng, c->session, &f);
        c->slot = m->slot;
        c->conn = m->conn;
        c->live = f.live;
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
