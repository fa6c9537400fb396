/*
 * night.h: a server without its I/O thread, for tests that let hours pass under a virtual clock:
 * the engine, its worker's rounds, the meter and the files of saved calls are the ones that serve;
 * what this stands in for is libuv and the sockets. For files that include cmocka.h before it.
 */
#ifndef MT_TEST_NIGHT_H
#define MT_TEST_NIGHT_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "metrics/metrics.h"
#include "model/cost.h"
#include "wire/call.h"
#include "wire/callfile.h"

enum { NIGHT_SLOTS = 24, NIGHT_CONTROL = NIGHT_SLOTS, NIGHT_FRAME_MS = 200 };

/* What computes: it outlives the servers that use it. */
struct plant {
    struct mt_backend *be; /* NULL: a cost model, which sleeps on the clock */
    struct mt_model *m;
};

static inline void plant_open(struct plant *p, bool cost, int threads, struct mt_clock *clock)
{
    struct mt_cost_model c = {.name = "night",
                              .layers = 2,
                              .kv_heads = 1,
                              .head_dim = 8,
                              .sample_rate_hz = MT_WIRE_RATE_MIN,
                              .beat_s = NIGHT_FRAME_MS / 1e3,
                              .audio_rows_s = 25,
                              .open_tokens = 9,
                              .turn_tokens = 3,
                              .steps = 4,
                              .jitter = 0.1,
                              .outlier_p = 0.005,
                              .outlier_x = 5,
                              .answer_mean = 3,
                              .a_s = 0.004,
                              .b_s = 0.002,
                              .prefill_s = 1e-5};
    struct mt_model_opts mo = {.step_rows = 64, .want_rows = NIGHT_SLOTS, .kv_type = MT_BF16};
    struct mt_err e = {0};

    *p = (struct plant){0};
    if (cost ? mt_model_open_cost(&p->m, &c, clock, &e) < 0
             : mt_backend_open(&p->be, "cpu", threads, &e) < 0 ||
                   mt_model_open(&p->m, "synth:qwen2.5-omni-tiny,layers=1", p->be, &mo, &e) < 0)
        fail_msg("%s", e.text);
}

static inline void plant_close(struct plant *p)
{
    mt_model_close(&p->m);
    mt_backend_close(&p->be);
}

/* One life of a server. */
struct server {
    struct mt_clock *clock;
    struct mt_model *m;
    struct mt_wire_hub *hub;
    struct mt_engine *eng;
    struct mt_worker w;
    struct mt_metrics_facts facts;
};

static inline void no_wake(void *ctx)
{
    (void)ctx; /* whoever makes the rounds looks into the box anyway */
}

static inline struct mt_engine_opts night_options(int64_t window, int64_t blocks)
{
    struct mt_engine_opts o;
    char kv[40] = "unbounded";

    mt_engine_defaults(&o);
    if (window)
        snprintf(kv, sizeof(kv), "window=%lld,sinks=4", (long long)window);
    assert_int_equal(mt_policy_parse(kv, &o.policy, NULL), 0);
    o.kv_type = MT_BF16;
    o.pool_blocks = blocks;
    o.frame_ns = NIGHT_FRAME_MS * MT_NS_PER_MS;
    o.answer_tokens = 4;
    o.step_tokens = 64;
    o.max_sessions = 16;
    return o;
}

/* A server that is about to begin. */
static inline void server_make(struct server *s, struct mt_clock *clock, struct mt_model *m,
                               struct mt_engine_opts o, double slow)
{
    struct mt_err e = {0};

    *s = (struct server){.clock = clock, .m = m};
    assert_int_equal(mt_wire_hub_new(&s->hub), 0);
    o.events = mt_wire_hub_events(s->hub);
    if (mt_engine_new(&s->eng, m, &o, clock, &e) < 0)
        fail_msg("%s", e.text);
    s->w = (struct mt_worker){.eng = s->eng,
                              .model = m,
                              .notify = no_wake,
                              .fault.slow = slow,
                              .identity = mt_model_identity(m)};
    assert_int_equal(mt_wire_meter_new(&s->w.meter), 0);
    assert_int_equal(mt_worker_init(&s->w, NIGHT_SLOTS + 1, &e), 0);
    s->facts = (struct mt_metrics_facts){.backend = "night",
                                         .frame_s = mt_engine_plan(s->eng)->frame_s,
                                         .deadline_s = mt_engine_plan(s->eng)->deadline_s,
                                         .max_sessions = o.max_sessions};
    atomic_store(&s->w.watchers, 1);
    mt_worker_warm(&s->w);
}

static inline void server_start(struct server *s, struct mt_clock *clock, struct mt_model *m,
                                struct mt_engine_opts o, double slow)
{
    server_make(s, clock, m, o, slow);
    mt_worker_begin(&s->w);
}

/* It ends in order if its rounds have; else it dies, and says nothing any more. */
static inline void server_gone(struct server *s)
{
    mt_wire_hub_bind(s->hub, NULL);
    if (s->w.done)
        mt_worker_end(&s->w);
    mt_worker_free(&s->w);
    mt_wire_meter_free(&s->w.meter);
    mt_engine_free(&s->eng);
    mt_wire_hub_free(&s->hub);
}

/*
 * A server that takes over all of another's calls, and what it knows, as they stand; the other one
 * is gone then. It has heard all that was sent; held is by slot what it has not taken, as charged.
 */
static inline void server_succeed(struct server *s, struct server *from, struct mt_model *m,
                                  struct mt_engine_opts o, size_t held[NIGHT_SLOTS])
{
    struct mt_state_io io;
    struct mt_unpacked got;

    server_make(s, from->clock, m, o, 0);
    for (int i = 0; i < from->w.n_calls; i++) {
        struct mt_call *c = from->w.by_session[i];

        io = (struct mt_state_io){0};
        if (mt_worker_pack(&from->w, c, &io) < 0)
            fail_msg("%s", io.err.text);
        io.load = true;
        if (mt_worker_unpack(&s->w, c->slot, c->conn, &io, &got) < 0)
            fail_msg("%s", io.err.text);
        assert_int_equal(got.session, c->session);
        held[c->slot] = got.held;
        free(io.data);
    }
    io = (struct mt_state_io){0};
    assert_int_equal(mt_worker_visit(&from->w, &io), 0);
    io.load = true;
    if (mt_worker_visit(&s->w, &io) < 0)
        fail_msg("%s", io.err.text);
    free(io.data);
    server_gone(from);
    mt_worker_begin(&s->w);
}

static inline struct mt_mail *server_send(struct server *s, enum mt_mail_kind kind, int slot,
                                          uint64_t conn, size_t n)
{
    struct mt_mail *m = mt_mail_new(kind, slot, conn, n);

    assert_non_null(m);
    m->n = n;
    m->charge = n > 0 ? sizeof(*m) + n : 0; /* as requests.c has it */
    m->t_ns = s->clock->virtual_ns;
    mt_box_push(&s->w.in, m);
    return m;
}

/* As a connection's end has it: what it still had to say is nobody's. */
static inline void server_hang_up(struct server *s, int slot, uint64_t conn)
{
    struct mt_mail *m = mt_mail_new(MT_MAIL_CLOSE, slot, conn, 0);

    assert_non_null(m);
    m->reason = "gone";
    mt_box_purge(&s->w.in, conn);
    mt_box_push_front(&s->w.in, m);
}

/* A saved call's bytes, which it takes, to be gone on with. -EPROTO if they are none. */
static inline int server_load(struct server *s, int slot, uint64_t conn, const char *name,
                              unsigned char *data, size_t n, int64_t window, struct mt_err *e)
{
    struct mt_mail *m = mt_mail_new(MT_MAIL_LOAD, slot, conn, 0);
    int rc;

    assert_non_null(m);
    m->name = strdup(name);
    m->window = window;
    m->state = calloc(1, sizeof(*m->state));
    assert_true(m->name && m->state);
    m->state->data = data;
    rc = mt_callfile_open(m->state, data, n, s->m, s->w.identity, e);
    if (rc < 0)
        mt_mail_free(m);
    else
        mt_box_push(&s->w.in, m);
    return rc;
}

/* The value of one sample as it is exposed: `name{label="value"}`. */
static inline double metric(const char *text, const char *sample)
{
    size_t n = strlen(sample);

    for (const char *at = text; (at = strstr(at, sample)); at += n)
        if ((at == text || at[-1] == '\n') && at[n] == ' ')
            return strtod(at + n, NULL);
    fail_msg("there is no %s", sample);
    return NAN;
}

#endif
