/*
 * requests.c: what a client says: a call's open, audio and end, and the requests of a control
 * client, each turned into mail for the engine's thread. An object that does not belong there ends
 * its connection with the reason.
 */
#include "wire/callfile.h"
#include "wire/store.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    /*
     * Unaccepted bytes at which a live session is no longer read: LIVE_HOLD_S of its audio, in
     * these bounds.
     */
    LIVE_HOLD_MIN = 1 << 20,
    LIVE_HOLD_MAX = 16 << 20,
    LIVE_HOLD_S = 30,
    REQUEST = 256, /* what one control request counts */
};

static int send_mail(struct mt_conn *c, struct mt_mail *m, size_t charge)
{
    if (!m)
        return mt_conn_fail(c, "out of memory");
    m->charge = charge;
    m->t_ns = c->t_ns;
    c->unaccepted += charge;
    mt_box_push(&c->s->worker.in, m);
    return 0;
}

/* The audio of this read, as one mail of just its size. */
int mt_conn_send_piece(struct mt_conn *c)
{
    struct mt_mail *m = c->piece, *whole = m;

    c->piece = NULL;
    if (!m)
        return 0;
    m = realloc(m, sizeof(*m) + m->n);
    m = m ? m : whole;
    return send_mail(c, m, sizeof(*m) + m->n);
}

void mt_conn_begin_call(struct mt_conn *c, int rate_hz, enum mt_pcm format, bool live)
{
    int64_t second = (int64_t)rate_hz * (format == MT_PCM_F32LE ? 4 : 2);

    mt_conn_limit(c, (double)second);
    c->hold = MT_CONN_HOLD;
    if (live) {
        c->hold = (size_t)(second * LIVE_HOLD_S);
        c->hold = c->hold < LIVE_HOLD_MIN ? LIVE_HOLD_MIN : c->hold;
        c->hold = c->hold > LIVE_HOLD_MAX ? LIVE_HOLD_MAX : c->hold;
    }
}

static int hear_open(struct mt_conn *c, json_t *msg)
{
    struct mt_wire_open *o = malloc(sizeof(*o));
    struct mt_err e = {0};
    struct mt_mail *m = mt_mail_new(MT_MAIL_OPEN, c->slot, c->id, 0);

    if (!o || !m ||
        mt_wire_open_parse(msg, mt_model_info(c->s->worker.model)->sample_rate_hz, o, &e) < 0) {
        free(o);
        mt_mail_free(m);
        return mt_conn_fail(c, e.code ? e.text : "out of memory");
    }
    m->open = o;
    mt_conn_begin_call(c, o->rate_hz, o->format, o->session.live);
    c->role = CALL;
    return send_mail(c, m, 0);
}

/* The name of a saved call, or NULL after the connection was told why not. */
static const char *saved_name(struct mt_conn *c, json_t *msg, const char *type)
{
    const char *name = json_string_value(json_object_get(msg, "name"));

    if (!c->s->opts->save_dir)
        mt_conn_failf(c, "\"%s\": this server saves no calls (--save-dir)", type);
    else if (!name || !mt_callfile_name(name))
        mt_conn_failf(c,
                      "\"%s\": \"name\": expected 1..%d letters, digits, '.', '_', '-', and no "
                      "'.' in front",
                      type, MT_CALLFILE_NAME_MAX);
    else
        return name;
    return NULL;
}

static int hear_load(struct mt_conn *c, json_t *msg)
{
    const char *name = saved_name(c, msg, "load");
    json_t *window = json_object_get(msg, "window");

    if (!name)
        return -EPROTO;
    if (window && (!json_is_integer(window) || json_integer_value(window) < 1))
        return mt_conn_fail(c, "\"load\": \"window\": expected an integer from 1 on");
    c->role = CALL;
    c->loading = true;
    return mt_store_load(c, name, json_integer_value(window));
}

static int hear_call(struct mt_conn *c, json_t *msg, const char *type)
{
    if (c->loading)
        return mt_conn_failf(c, "\"%.40s\" before the answer to \"load\": wait for \"opened\"",
                             type);
    if (!strcmp(type, "audio")) {
        if (c->ended)
            return mt_conn_fail(c, "audio after \"end\"");
        if (!json_object_get(msg, "bytes"))
            return mt_conn_fail(c, "\"audio\" without \"bytes\"");
        c->audio = true;
        return 0;
    }
    if (!strcmp(type, "end")) {
        int rc = mt_conn_send_piece(c);

        if (c->ended)
            return mt_conn_fail(c, "\"end\" twice");
        c->ended = true;
        return rc ? rc : send_mail(c, mt_mail_new(MT_MAIL_END, c->slot, c->id, 0), 0);
    }
    return mt_conn_failf(c, "\"%.40s\": expected audio or end on the connection of a session",
                         type);
}

static void say_status(struct mt_conn *c)
{
    struct mt_worker *w = &c->s->worker;
    int64_t now = (int64_t)uv_hrtime();
    struct mt_wire_state st;

    mt_wire_meter_read(w->meter, now, &st);
    mt_conn_say(c, mt_wire_status_json(!c->said, &st.status, mt_health_ready(&st, now), w->eng));
}

static void on_period(uv_timer_t *t)
{
    say_status(t->data);
}

void mt_conn_watch(struct mt_conn *c, int64_t period_ms)
{
    if (!c->watching)
        atomic_fetch_add(&c->s->worker.watchers, 1);
    c->watching = true;
    c->period_ms = period_ms;
    uv_timer_start(&c->timer, on_period, (uint64_t)period_ms, (uint64_t)period_ms);
}

static int hear_watch(struct mt_conn *c, json_t *msg)
{
    json_t *v = json_object_get(msg, "period_ms");
    double ms = v ? json_number_value(v) : mt_engine_plan(c->s->worker.eng)->frame_s * 1e3;

    if (v && (!json_is_number(v) || !(ms >= 10 && ms <= 3600e3)))
        return mt_conn_fail(c, "\"period_ms\": expected a number in 10..3600000");
    say_status(c);
    if (!c->closing)
        mt_conn_watch(c, llround(ms));
    return 0;
}

static int request(struct mt_conn *c, enum mt_mail_kind kind, int cap, const char *mode)
{
    struct mt_mail *m = mt_mail_new(kind, c->slot, c->id, 0);

    if (m) {
        m->first = !c->said && c->outstanding == 0;
        m->cap = cap;
        m->gate = mode ? mt_gate_parse(mode) : MT_GATE_OPEN;
    }
    c->outstanding++;
    return send_mail(c, m, REQUEST);
}

static int hear_save(struct mt_conn *c, json_t *msg)
{
    const char *name = saved_name(c, msg, "save");
    json_t *v = json_object_get(msg, "session");
    int64_t session = json_integer_value(v);
    struct mt_mail *m;

    if (!name)
        return -EPROTO;
    if (c->saving)
        return mt_conn_fail(c, "\"save\": one at a time: wait for the answer");
    if (json_is_string(v) ? mt_parse_i64(json_string_value(v), 1, INT64_MAX, &session) < 0
                          : !json_is_integer(v) || session < 1)
        return mt_conn_fail(c, "\"save\": \"session\": expected the name of a session");
    if ((m = mt_mail_new(MT_MAIL_SAVE, c->slot, c->id, 0))) {
        m->first = !c->said && c->outstanding == 0;
        m->session = session;
        m->name = strdup(name);
    }
    if (!m || !m->name) {
        mt_mail_free(m);
        return mt_conn_fail(c, "out of memory");
    }
    c->saving = true;
    c->outstanding++;
    return send_mail(c, m, REQUEST);
}

static int hear_control(struct mt_conn *c, json_t *msg, const char *type)
{
    json_t *cap = json_object_get(msg, "cap");

    if (c->tcp && !c->s->opts->tcp.control)
        return mt_conn_failf(c, "\"%.40s\": who comes over TCP may only call here", type);
    if (c->role == FRESH && !strcmp(type, "load"))
        return hear_load(c, msg);
    c->role = CONTROL;
    if (!strcmp(type, "watch"))
        return hear_watch(c, msg);
    if (!strcmp(type, "stats"))
        return request(c, MT_MAIL_STATS, 0, NULL);
    if (!strcmp(type, "drain"))
        return request(c, MT_MAIL_DRAIN, 0, NULL);
    if (!strcmp(type, "save"))
        return hear_save(c, msg);
    if (strcmp(type, "cap") != 0)
        return mt_conn_failf(c, "unknown type \"%.40s\"", type);
    if (!json_is_integer(cap) || json_integer_value(cap) < 0 || json_integer_value(cap) > INT_MAX)
        return mt_conn_failf(c, "\"cap\": expected an integer in 0..%d", INT_MAX);
    mt_meter_capped(c->s->worker.meter, msg, (int)json_integer_value(cap));
    return request(c, MT_MAIL_CAP, (int)json_integer_value(cap),
                   json_string_value(json_object_get(msg, "mode")));
}

int mt_conn_on_message(void *ctx, json_t *msg, int64_t payload)
{
    struct mt_conn *c = ctx;
    const char *type = json_string_value(json_object_get(msg, "type"));
    struct mt_err e = {0};

    (void)payload;
    c->audio = false;
    if (c->role == FRESH && mt_wire_check_version(msg, &e) < 0)
        return mt_conn_fail(c, e.text);
    if (c->role == CALL)
        return hear_call(c, msg, type);
    if (c->role == FRESH && !strcmp(type, "open"))
        return hear_open(c, msg);
    return hear_control(c, msg, type);
}

int mt_conn_on_payload(void *ctx, const unsigned char *bytes, size_t n)
{
    struct mt_conn *c = ctx;

    if (!c->audio)
        return 0; /* some other message's, not known here */
    if (!c->piece && !(c->piece = mt_mail_new(MT_MAIL_AUDIO, c->slot, c->id, c->read)))
        return mt_conn_fail(c, "out of memory");
    memcpy(c->piece->data + c->piece->n, bytes, n);
    c->piece->n += n;
    return 0;
}
