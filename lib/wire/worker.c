/*
 * worker.c: the engine thread of a server. One round: take the mail, move held audio into the
 * engine as far as it has room, give back credit for it, note the state for watchers, tick. Audio
 * that the engine has no room for stays in its session's queue, uncredited, which is what stops the
 * I/O thread from reading more of it.
 */
#include "wire/call.h"
#include "wire/handoff.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* Sessions may be idle, but the engine also watches the clock for them. */
#define IDLE_NS (20 * MT_NS_PER_MS)
/* How often the loop comes round with nothing to do: twice a frame, in these bounds. */
#define BEAT_MIN_NS (5 * MT_NS_PER_MS)
#define BEAT_MAX_NS (500 * MT_NS_PER_MS)
/* Lines that the I/O thread has not fetched yet. */
#define OUT_MAX (16 << 20)

void mt_worker_post(struct mt_worker *w, struct mt_mail *m)
{
    if (mt_box_push(&w->out, m))
        w->notify(w->ctx);
}

/* Takes a malloc'ed message. Without memory it is lost, and the connection with it. */
static void post_bytes(struct mt_worker *w, char *line, size_t n, struct mt_mail head)
{
    struct mt_mail *m = mt_mail_new(MT_MAIL_LINE, head.slot, head.conn, line ? n : 0);

    if (m) {
        m->finish = head.finish || !line;
        m->record = head.record;
        m->watch = head.watch;
        m->charge = head.charge;
        m->rate_hz = head.rate_hz;
        m->format = head.format;
        m->live = head.live;
        m->n = line ? n : 0;
        if (line)
            memcpy(m->data, line, n);
        mt_worker_post(w, m);
    }
    free(line);
}

void mt_worker_post_line(struct mt_worker *w, json_t *obj, struct mt_mail head)
{
    size_t n = 0;
    char *line = mt_wire_line(obj, &n);

    post_bytes(w, line, n, head);
}

/* ---- which calls: of thousands a round looks at the few that have something to do ---- */

/* It has audio to move, credit to give back, or is to be freed. */
void mt_worker_call_busy(struct mt_worker *w, struct mt_call *c)
{
    if (c->busy)
        return;
    c->busy = true;
    c->next = NULL;
    c->prev = w->busy_last;
    if (c->prev)
        c->prev->next = c;
    else
        w->busy = c;
    w->busy_last = c;
}

static void idle(struct mt_worker *w, struct mt_call *c)
{
    if (!c->busy)
        return;
    c->busy = false;
    if (c->prev)
        c->prev->next = c->next;
    else
        w->busy = c->next;
    if (c->next)
        c->next->prev = c->prev;
    else
        w->busy_last = c->prev;
}

/* The first with this session or a later one; sessions are numbered as they come. */
static int place_of(const struct mt_worker *w, int64_t session)
{
    int lo = 0, hi = w->n_calls;

    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;

        if (w->by_session[mid]->session < session)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

struct mt_call *mt_worker_call(const struct mt_worker *w, int64_t session)
{
    int i = place_of(w, session);

    return i < w->n_calls && w->by_session[i]->session == session ? w->by_session[i] : NULL;
}

void mt_worker_call_opened(struct mt_worker *w, struct mt_call *c)
{
    int i = place_of(w, c->session);

    w->calls[c->slot] = c;
    memmove(w->by_session + i + 1, w->by_session + i,
            (size_t)(w->n_calls++ - i) * sizeof(struct mt_call *));
    w->by_session[i] = c;
}

/* The engine has let go of its session. */
static void call_closed(struct mt_worker *w, struct mt_call *c)
{
    int i = place_of(w, c->session);

    if (c->closed)
        return;
    c->closed = true;
    w->meter->own.stalled -= c->stalled;
    mt_worker_call_busy(w, c);
    memmove(w->by_session + i, w->by_session + i + 1,
            (size_t)(--w->n_calls - i) * sizeof(struct mt_call *));
}

void mt_worker_call_free(struct mt_worker *w, struct mt_call *c)
{
    idle(w, c);
    w->calls[c->slot] = NULL;
    mt_mail_free_all(c->head);
    mt_intake_close(&c->intake);
    free(c);
}

/* Its connection closed in this same round. */
void mt_worker_call_vacate(struct mt_worker *w, int slot)
{
    if (w->calls[slot])
        mt_worker_call_free(w, w->calls[slot]);
}

static struct mt_call *call_of(struct mt_worker *w, const struct mt_mail *m)
{
    struct mt_call *c = w->calls[m->slot];

    return c && c->conn == m->conn && !c->closed ? c : NULL;
}

/* ---- events ---- */

static void on_frame(void *ctx, const struct mt_record *r)
{
    struct mt_worker *w = ctx;
    struct mt_call *c = mt_worker_call(w, r->session);
    struct mt_mail to = {
        .slot = c ? c->slot : 0, .conn = c && !c->mute ? c->conn : 0, .record = true};
    bool watched = atomic_load(&w->watchers) > 0;

    mt_meter_frame(w->meter, r);
    if (c && (r->status == MT_STALLED) != c->stalled) {
        c->stalled = !c->stalled;
        w->meter->own.stalled += c->stalled ? 1 : -1;
    }
    if (c && c->speech && to.conn && r->n_speech > 0) {
        size_t n = 0;
        char *speech = mt_wire_speech(r, mt_model_info(w->model)->speech_rate_hz, &n);

        post_bytes(w, speech, n, (struct mt_mail){.slot = to.slot, .conn = to.conn});
    }
    if (c && c->tokens && to.conn)
        mt_worker_post_line(w, mt_wire_record_json(r, true), to);
    if (c && c->tokens)
        to.conn = 0;
    to.watch = watched;
    if (to.conn || watched)
        mt_worker_post_line(w, mt_wire_record_json(r, false), to);
}

static void on_closed(void *ctx, int64_t session, const char *reason, int64_t frames)
{
    struct mt_worker *w = ctx;
    struct mt_call *c = mt_worker_call(w, session);

    if (!c)
        return;
    call_closed(w, c);
    if (!c->mute)
        mt_worker_post_line(w, mt_wire_closed_json(session, reason, frames),
                            (struct mt_mail){.slot = c->slot, .conn = c->conn, .finish = true});
}

/* ---- mail ---- */

static void fail(struct mt_worker *w, struct mt_call *c, const char *text)
{
    mt_worker_post_line(w, mt_wire_error_json(false, text),
                        (struct mt_mail){.slot = c->slot, .conn = c->conn, .finish = true});
    c->mute = true;
    mt_engine_close(w->eng, c->session, "error");
    call_closed(w, c);
}

static void handle_open(struct mt_worker *w, const struct mt_mail *m)
{
    struct mt_mail to = {.slot = m->slot, .conn = m->conn, .charge = m->charge};
    const struct mt_wire_open *o = m->open;
    struct mt_err e = {0};
    const char *reason = NULL;
    double retry_s = 0;
    struct mt_call *c;
    int rc;

    mt_worker_call_vacate(w, m->slot);
    c = calloc(1, sizeof(*c));
    rc = c ? 0 : mt_err_set(&e, -ENOMEM, "out of memory");
    if (!rc)
        rc = mt_intake_open(&c->intake, o->format, o->rate_hz,
                            mt_model_info(w->model)->sample_rate_hz, &e);
    if (!rc)
        rc = mt_engine_open(w->eng, &o->session, &c->session, &reason, &retry_s, &e);
    to.finish = rc < 0;
    if (rc == 0 && c) {
        c->slot = m->slot;
        c->conn = m->conn;
        c->tokens = o->tokens;
        c->speech = !o->mute;
        c->live = o->session.live;
        mt_worker_call_opened(w, c);
        mt_worker_post_line(
            w, mt_wire_opened_json(w->eng, w->model, o, c->session, mt_intake_lag(&c->intake)), to);
        return;
    }
    if (rc == -EAGAIN && reason)
        mt_meter_refused(w->meter, reason);
    if (rc == -EAGAIN && reason)
        mt_worker_post_line(w, mt_wire_refused_json(reason, retry_s), to);
    else
        mt_worker_post_line(w, mt_wire_error_json(true, e.code ? e.text : strerror(-rc)), to);
    if (c)
        mt_intake_close(&c->intake);
    free(c);
}

static void handle_stats(struct mt_worker *w, const struct mt_mail *m)
{
    struct mt_mail to = {.slot = m->slot, .conn = m->conn, .charge = m->charge};
    struct mt_engine_stats s;
    json_t *o;

    switch (m->kind) {
    case MT_MAIL_STATS:
        mt_engine_stats(w->eng, &s);
        o = mt_wire_stats_json(&s);
        break;
    case MT_MAIL_CAP:
        mt_engine_set_cap(w->eng, m->cap);
        mt_engine_set_gate(w->eng, m->gate);
        o = mt_wire_object(m->first, "cap");
        json_object_set_new(o, "cap", json_integer(m->cap));
        break;
    default:
        mt_engine_drain(w->eng);
        o = mt_wire_object(m->first, "drain");
        break;
    }
    mt_worker_post_line(w, o, to);
}

/* Keep audio and end in order until the engine has room. */
void mt_worker_call_keep(struct mt_worker *w, struct mt_call *c, struct mt_mail *m)
{
    m->next = NULL;
    if (c->tail)
        c->tail->next = m;
    else
        c->head = m;
    c->tail = m;
    mt_worker_call_busy(w, c);
}

static void handle(struct mt_worker *w, struct mt_mail *m)
{
    struct mt_call *c;

    switch (m->kind) {
    case MT_MAIL_OPEN:
        handle_open(w, m);
        break;
    case MT_MAIL_AUDIO:
    case MT_MAIL_END:
        if ((c = call_of(w, m))) {
            mt_worker_call_keep(w, c, m);
            return;
        }
        break;
    case MT_MAIL_CLOSE:
        c = call_of(w, m);
        if (c) {
            c->mute = true;
            mt_engine_close(w->eng, c->session, m->reason);
            call_closed(w, c);
        }
        break;
    case MT_MAIL_SAVE:
        mt_worker_save(w, m);
        break;
    case MT_MAIL_LOAD:
        mt_worker_load(w, m);
        break;
    case MT_MAIL_HAND:
        w->moved = mt_handoff_give(w->handoff, w);
        break;
    case MT_MAIL_SHUTDOWN:
        w->stopping = true;
        mt_engine_drain(w->eng);
        break;
    default:
        handle_stats(w, m);
        break;
    }
    mt_mail_free(m);
}

/* ---- audio ---- */

static void pop(struct mt_call *c)
{
    struct mt_mail *m = c->head;

    c->credit += m->charge;
    c->head = m->next;
    if (!c->head)
        c->tail = NULL;
    mt_mail_free(m);
}

/* The next piece of a session's queue: 1 if there was one, 0 at its end. */
static int convert(struct mt_worker *w, struct mt_call *c, struct mt_err *e)
{
    struct mt_mail *m = c->head;
    size_t used = 0;
    int rc = 0;

    if (!m)
        return 0;
    c->t_ns = m->t_ns;
    if (m->kind == MT_MAIL_AUDIO) {
        rc = mt_intake_bytes(&c->intake, m->data + m->at, m->n - m->at, &used, e);
        m->at += used;
        if (!rc && m->at == m->n)
            pop(c);
    } else if (!c->intake.flushed) {
        rc = mt_intake_flush(&c->intake, e);
    } else {
        pop(c);
        rc = mt_engine_end(w->eng, c->session, c->t_ns);
    }
    return rc < 0 ? rc : 1;
}

/* Move a session's audio into the engine until one of them has enough. True if any went. */
static bool pump(struct mt_worker *w, struct mt_call *c)
{
    struct mt_intake *it = &c->intake;
    struct mt_err e = {0};
    bool moved = false;
    int64_t n;
    int rc = 1;

    while (!c->closed && rc > 0) {
        if (it->n_out == 0) {
            rc = convert(w, c, &e);
            moved |= rc > 0;
            continue;
        }
        n = mt_engine_audio(w->eng, c->session, it->out, it->n_out, c->t_ns);
        if (n < 0) {
            rc = (int)n;
        } else {
            mt_intake_taken(it, n);
            moved |= n > 0;
            if (it->n_out > 0)
                break; /* no room: wait for a tick */
        }
    }
    if (rc < 0 && !c->closed)
        fail(w, c, e.code ? e.text : strerror(-rc));
    return moved;
}

static void give_credit(struct mt_worker *w, struct mt_call *c)
{
    struct mt_mail *m = c->credit > 0 ? mt_mail_new(MT_MAIL_CREDIT, c->slot, c->conn, 0) : NULL;

    if (!m)
        return; /* nothing to give, or later */
    m->charge = c->credit;
    c->credit = 0;
    mt_worker_post(w, m);
}

static bool pump_all(struct mt_worker *w)
{
    bool moved = false;

    for (struct mt_call *c = w->busy, *next; c; c = next) {
        if (!c->closed)
            moved |= pump(w, c);
        next = c->next;
        if (c->closed) {
            mt_worker_call_free(w, c);
            continue;
        }
        give_credit(w, c);
        if (!c->head && c->intake.n_out == 0 && c->credit == 0)
            idle(w, c);
    }
    return moved;
}

/* ---- a round ---- */

int64_t mt_worker_now_ns(const struct mt_worker *w)
{
    struct mt_clock *c = mt_engine_clock(w->eng);

    return c->now_ns(c);
}

/* Pending frames, and sessions: what the thread has to do next. */
static struct mt_engine_stats snapshot(struct mt_worker *w)
{
    struct mt_engine_stats s;

    mt_engine_stats(w->eng, &s);
    mt_meter_publish(w->meter, &s, mt_worker_now_ns(w));
    return s;
}

/* Calls that are another server's just go: their ends are its to tell. */
static void close_all(struct mt_worker *w, const char *reason)
{
    for (int i = 0; i < w->slots; i++) {
        struct mt_call *c = w->calls[i];

        if (!c)
            continue;
        if (!c->closed && !w->moved)
            mt_engine_close(w->eng, c->session, reason);
        mt_worker_call_free(w, c);
    }
}

/*
 * With nothing to do the loop still comes round, so that a stopped one can be told from an idle
 * one.
 */
static int64_t beat_ns(const struct mt_worker *w)
{
    int64_t half = w->meter->own.frame_ns / 2;

    return half < BEAT_MIN_NS ? BEAT_MIN_NS : half > BEAT_MAX_NS ? BEAT_MAX_NS : half;
}

int64_t mt_worker_patience(const struct mt_worker *w)
{
    bool sessions = w->meter->own.status.sessions > 0;
    int64_t beat = beat_ns(w);

    if (w->worked)
        return 0;
    return (sessions || w->stopping) && IDLE_NS < beat ? IDLE_NS : beat;
}

static void warm(struct mt_worker *w)
{
    int64_t took = mt_engine_warm(w->eng);

    if (took > 0 && w->pass_ns == 0)
        w->pass_ns = took;
    if (took > 0 && w->fault.slow > 0)
        took = (int64_t)((double)took * w->fault.slow);
    mt_meter_warm(w->meter, took);
    w->warm_ns = mt_worker_now_ns(w);
}

/*
 * Whoever places calls stays away from a server that is not ready: without a call it has to find
 * out by itself when it is again.
 */
static void recover(struct mt_worker *w, int sessions)
{
    const struct mt_wire_state *s = &w->meter->own;
    int64_t t = mt_worker_now_ns(w);

    if (sessions == 0 && !w->stopping && *mt_health_ready(s, s->beat_ns) != 'o' &&
        t - w->warm_ns > (MT_HEALTH_FRAMES + 1) * s->frame_ns)
        warm(w);
}

static void nap(const struct mt_worker *w, int64_t ns)
{
    struct mt_clock *c = mt_engine_clock(w->eng);

    c->sleep_until_ns(c, c->now_ns(c) + ns);
}

/* What was to be broken. Its sleep stands before the work, so that latencies have it in them. */
static void suffer(struct mt_worker *w, int pending)
{
    const struct mt_wire_fault *f = &w->fault;

    while (f->stop_compute && mt_worker_now_ns(w) - w->meter->own.since_ns >= f->stop_ns &&
           !mt_box_closed(&w->in))
        nap(w, BEAT_MIN_NS);
    if (f->slow > 1 && pending > 0)
        nap(w, (int64_t)((double)w->pass_ns * (f->slow - 1)));
}

static bool pass(struct mt_worker *w, int pending)
{
    int64_t t;
    bool busy;

    suffer(w, pending);
    t = mt_worker_now_ns(w);
    busy = mt_engine_tick(w->eng);
    if (busy && pending > 0) /* not one that only had somebody leave */
        w->pass_ns = mt_worker_now_ns(w) - t;
    return busy;
}

bool mt_worker_round(struct mt_worker *w, int64_t wait_ns)
{
    struct mt_mail *list = mt_box_take(&w->in, wait_ns), *m;
    struct mt_engine_stats st;
    bool moved;

    while ((m = list)) {
        list = m->next;
        handle(w, m);
        if (w->moved) {
            mt_mail_free_all(list);
            return false;
        }
    }
    moved = pump_all(w);
    st = snapshot(w);
    recover(w, st.sessions);
    w->worked = pass(w, st.pending);
    st = snapshot(w);
    return !w->stopping || w->worked || moved || st.pending > 0;
}

void mt_worker_end(struct mt_worker *w)
{
    close_all(w, "shutdown");
    mt_worker_post(w, w->done);
    w->done = NULL;
}

/* ---- the thread ---- */

static void *run(void *arg)
{
    struct mt_worker *w = arg;

    while (!mt_box_closed(&w->in) && mt_worker_round(w, mt_worker_patience(w)))
        ;
    mt_worker_end(w);
    return NULL;
}

int mt_worker_init(struct mt_worker *w, int slots, struct mt_err *e)
{
    int rc;

    w->slots = slots;
    w->calls = mt_alloc((size_t)slots, sizeof(struct mt_call *));
    w->by_session = mt_alloc((size_t)slots, sizeof(struct mt_call *));
    w->done = mt_mail_new(MT_MAIL_DONE, 0, 0, 0);
    if (!w->calls || !w->by_session || !w->done)
        return mt_err_set(e, -ENOMEM, "out of memory");
    if ((rc = mt_box_init(&w->in, 0)) < 0 || (rc = mt_box_init(&w->out, OUT_MAX)) < 0)
        return mt_err_set(e, rc, "%s", strerror(-rc));
    w->made = true;
    mt_meter_begin(w->meter, w->eng, mt_worker_now_ns(w));
    return 0;
}

void mt_worker_warm(struct mt_worker *w)
{
    for (int i = 0; i < MT_WARM_TRIES && !w->meter->own.warm; i++)
        warm(w);
}

void mt_worker_begin(struct mt_worker *w)
{
    struct mt_wire_sink sink = {.ctx = w, .frame = on_frame, .closed = on_closed};

    mt_wire_hub_bind(mt_wire_hub_of(w->eng), &sink);
    snapshot(w);
}

int mt_worker_start(struct mt_worker *w, struct mt_err *e)
{
    sigset_t all, old;
    int rc;

    mt_worker_begin(w);
    sigfillset(&all); /* signals are the I/O thread's */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    rc = pthread_create(&w->thread, NULL, run, w);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc) {
        mt_wire_hub_bind(mt_wire_hub_of(w->eng), NULL);
        return mt_err_set(e, -rc, "can't start the engine's thread: %s", strerror(rc));
    }
    w->started = true;
    return 0;
}

void mt_worker_free(struct mt_worker *w)
{
    if (w->started) {
        mt_box_close(&w->in);
        mt_box_close(&w->out);
        pthread_join(w->thread, NULL);
        mt_wire_hub_bind(mt_wire_hub_of(w->eng), NULL);
    }
    for (int i = 0; w->calls && i < w->slots; i++)
        mt_worker_call_vacate(w, i); /* the thread never ran */
    if (w->made) {
        mt_box_free(&w->in);
        mt_box_free(&w->out);
    }
    mt_mail_free(w->done);
    free(w->calls);
    free(w->by_session);
    w->done = NULL;
    w->calls = w->by_session = NULL;
    w->started = w->made = false;
}
