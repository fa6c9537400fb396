/*
 * test_wire.c: lib/wire against its header: framing, messages, records, the client, and the server
 * over a scripted engine (below), whose hands the tests can hold.
 */
#include "wire/wire.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "util.h"

/* ---- parser ---- */

struct heard {
    int messages, stop_at;
    int64_t announced;
    char types[256];
    char payload[256];
    size_t n;
};

static int hear_message(void *ctx, json_t *msg, int64_t payload)
{
    struct heard *h = ctx;

    strcat(h->types, json_string_value(json_object_get(msg, "type")));
    strcat(h->types, " ");
    h->announced += payload;
    return ++h->messages == h->stop_at ? 7 : 0;
}

static int hear_payload(void *ctx, const unsigned char *bytes, size_t n)
{
    struct heard *h = ctx;

    assert_true(n > 0 && h->n + n < sizeof(h->payload));
    memcpy(h->payload + h->n, bytes, n);
    h->n += n;
    return 0;
}

static struct mt_wire_parser parser_of(struct heard *h)
{
    struct mt_wire_parser p = {.ctx = h, .on_message = hear_message, .on_payload = hear_payload};

    memset(h, 0, sizeof(*h));
    mt_wire_parser_init(&p);
    return p;
}

static int parse(struct mt_wire_parser *p, const char *text, struct mt_err *e)
{
    return mt_wire_parse(p, (const unsigned char *)text, strlen(text), e);
}

/* The same messages come out however the bytes are cut. */
static void test_parser_pieces(void **state)
{
    const char *text =
        "{\"type\":\"a\"}\r\n\n  {\"type\":\"b\",\"bytes\":5}\n{\"x\"\n{\"type\":\"c\","
        "\"bytes\":0}\n{\"type\":\"d\",\"bytes\":1}\nq\n{\"type\":\"e\"}\n";

    (void)state;
    for (size_t step = 1; step <= strlen(text); step++) {
        struct heard h;
        struct mt_wire_parser p = parser_of(&h);
        struct mt_err e = {0};

        for (size_t at = 0; at < strlen(text); at += step) {
            size_t n = strlen(text) - at < step ? strlen(text) - at : step;

            assert_int_equal(mt_wire_parse(&p, (const unsigned char *)text + at, n, &e), 0);
        }
        assert_string_equal(h.types, "a b c d e ");
        assert_string_equal(h.payload, "{\"x\"\nq");
        assert_int_equal(h.announced, 6);
        assert_int_equal(mt_wire_parse_end(&p, &e), 0);
        mt_wire_parser_free(&p);
    }
}

static void test_parser_refuses(void **state)
{
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"RIFF", "found 'R'"},
        {"\x01", "0x01"},
        {"[1]\n", "found '['"},
        {"{\"type\":\"a\"\n", "not a JSON object"},
        {"{\"type\":\"a\"} x\n", "not a JSON object"},
        {"{\"type\":\"\xff\"}\n", "not a JSON object"},
        {"{\"kind\":\"a\"}\n", "without a \"type\""},
        {"{\"type\":3}\n", "without a \"type\""},
        {"{\"type\":\"a\",\"bytes\":-1}\n", "\"bytes\": expected"},
        {"{\"type\":\"a\",\"bytes\":16777217}\n", "\"bytes\": expected"},
        {"{\"type\":\"a\",\"bytes\":\"1\"}\n", "\"bytes\": expected"},
        {"{\"type\":\"a\",\"bytes\":1.0}\n", "\"bytes\": expected"},
        {"{\"type\":\"a\",\"bytes\":null}\n", "\"bytes\": expected"},
        {"{\"type\":\"a\",\"bytes\":99999999999999999999}\n", "not a JSON object"},
    };

    (void)state;
    for (size_t i = 0; i < MT_COUNT(bad); i++) {
        struct heard h;
        struct mt_wire_parser p = parser_of(&h);
        struct mt_err e = {0};

        assert_int_equal(parse(&p, bad[i].text, &e), -EPROTO);
        if (!strstr(e.text, bad[i].says))
            fail_msg("'%s': '%s' does not say '%s'", bad[i].text, e.text, bad[i].says);
        assert_null(strchr(e.text, '\n'));
        assert_int_equal(h.messages, 0);
        mt_wire_parser_free(&p);
    }
}

static void test_parser_line_limit(void **state)
{
    struct heard h;
    struct mt_wire_parser p = parser_of(&h);
    struct mt_err e = {0};
    unsigned char *line = malloc(MT_WIRE_LINE_MAX + 2);
    const char head[] = "{\"type\":\"a\",\"x\":\"";

    (void)state;
    memset(line, 'y', MT_WIRE_LINE_MAX + 2);
    memcpy(line, head, strlen(head));
    memcpy(line + MT_WIRE_LINE_MAX - 2, "\"}\n", 3);
    assert_int_equal(mt_wire_parse(&p, line, MT_WIRE_LINE_MAX + 1, &e), 0); /* just fits */
    assert_int_equal(h.messages, 1);
    memset(line + strlen(head), 'y', MT_WIRE_LINE_MAX + 2 - strlen(head));
    for (size_t i = 0; i < MT_WIRE_LINE_MAX; i += 4096)
        assert_int_equal(mt_wire_parse(&p, line + i, 4096, &e), 0);
    assert_true(p.cap <= MT_WIRE_LINE_MAX);
    assert_int_equal(mt_wire_parse(&p, line, 1, &e), -EPROTO);
    assert_non_null(strstr(e.text, "longer than 65536"));
    free(line);
    mt_wire_parser_free(&p);
}

static void test_parser_depth(void **state)
{
    struct heard h;
    struct mt_wire_parser p = parser_of(&h);
    struct mt_err e = {0};
    char *line = malloc(MT_WIRE_LINE_MAX);

    (void)state;
    memset(line, '[', MT_WIRE_LINE_MAX);
    memcpy(line, "{\"a\":", 5);
    line[MT_WIRE_LINE_MAX - 2] = '\n';
    line[MT_WIRE_LINE_MAX - 1] = '\0';
    assert_int_equal(parse(&p, line, &e), -EPROTO);
    free(line);
    mt_wire_parser_free(&p);
}

static void test_parser_stops_and_ends(void **state)
{
    struct heard h;
    struct mt_wire_parser p = parser_of(&h);
    struct mt_err e = {0};

    (void)state;
    h.stop_at = 2;
    assert_int_equal(parse(&p, "{\"type\":\"a\"}\n{\"type\":\"b\"}\n{\"type\":\"c\"}\n", &e), 7);
    assert_string_equal(h.types, "a b ");
    assert_int_equal(e.code, 0);
    assert_int_equal(parse(&p, "{\"ty", &e), 0);
    assert_int_equal(mt_wire_parse_end(&p, &e), -EPROTO);
    assert_int_equal(parse(&p, "pe\":\"d\",\"bytes\":3}\nab", &e), 0);
    memset(&e, 0, sizeof(e));
    assert_int_equal(mt_wire_parse_end(&p, &e), -EPROTO);
    assert_non_null(strstr(e.text, "1 bytes before"));
    mt_wire_parser_free(&p);
}

/* ---- open ---- */

static int open_of(const char *text, struct mt_wire_open *o, struct mt_err *e)
{
    json_t *msg = json_loads(text, 0, NULL);
    int rc;

    assert_non_null(msg);
    memset(e, 0, sizeof(*e));
    rc = mt_wire_open_parse(msg, 16000, o, e);
    json_decref(msg);
    return rc;
}

static void test_open_round_trip(void **state)
{
    struct mt_wire_open a, b;
    struct mt_err e;
    json_t *msg;

    (void)state;
    assert_int_equal(
        open_of("{\"type\":\"open\",\"rate\":44100,\"format\":\"f32le\",\"prompt\":\"h\\u00e9\","
                "\"seed\":-5,\"temperature\":0.5,\"top_k\":40,\"top_p\":0.9,\"window\":512,"
                "\"answer_tokens\":7,\"tokens\":true,\"live\":true,\"unknown\":[1]}",
                &a, &e),
        0);
    msg = mt_wire_open_json(&a);
    assert_non_null(msg);
    assert_int_equal(json_integer_value(json_object_get(msg, "metronome")), 1);
    assert_int_equal(mt_wire_open_parse(msg, 16000, &b, &e), 0);
    json_decref(msg);
    assert_int_equal(b.rate_hz, 44100);
    assert_int_equal(b.format, MT_PCM_F32LE);
    assert_string_equal(b.system, "h\xc3\xa9");
    assert_ptr_equal(b.session.system, b.system);
    assert_true(b.session.has_seed && b.session.seed == (uint64_t)-5);
    assert_true(fabsf(b.session.temperature - 0.5f) < 1e-6f);
    assert_true(fabsf(b.session.top_p - 0.9f) < 1e-6f);
    assert_int_equal(b.session.top_k, 40);
    assert_int_equal(b.session.window, 512);
    assert_int_equal(b.session.answer_tokens, 7);
    assert_true(b.tokens && b.session.live);
    free(a.system);
    free(b.system);
}

static void test_open_defaults(void **state)
{
    struct mt_wire_open o;
    struct mt_session_opts d;
    struct mt_err e;

    (void)state;
    mt_session_defaults(&d);
    assert_int_equal(open_of("{\"type\":\"open\",\"prompt\":null,\"window\":null}", &o, &e), 0);
    assert_int_equal(o.rate_hz, 16000);
    assert_int_equal(o.format, MT_PCM_S16LE);
    assert_null(o.system);
    assert_false(o.tokens || o.session.live);
    assert_int_equal(o.session.has_seed, d.has_seed);
    assert_int_equal(o.session.window, d.window);
}

static void test_open_refuses(void **state)
{
    static const char *const bad[] = {
        "rate\":3999",     "rate\":768001", "rate\":\"16000\"",  "rate\":16000.0",
        "format\":\"u8\"", "format\":1",    "prompt\":1",        "prompt\":[]",
        "seed\":1.5",      "seed\":\"1\"",  "temperature\":-1",  "temperature\":1e9",
        "top_k\":-1",      "top_k\":3e9",   "top_p\":0",         "top_p\":1.01",
        "window\":0",      "window\":-1",   "answer_tokens\":0", "tokens\":1",
        "live\":\"yes\"",  "top_p\":\"x\"",
    };

    (void)state;
    for (size_t i = 0; i < MT_COUNT(bad); i++) {
        char text[128], member[64];
        struct mt_wire_open o;
        struct mt_err e;

        snprintf(text, sizeof(text), "{\"type\":\"open\",\"%s}", bad[i]);
        snprintf(member, sizeof(member), "\"%.*s", (int)strcspn(bad[i], "\"") + 1, bad[i]);
        assert_int_equal(open_of(text, &o, &e), -EINVAL);
        if (strncmp(e.text, member, strlen(member)) != 0)
            fail_msg("%s: '%s' does not name %s", text, e.text, member);
    }
}

/* ---- records ---- */

static const struct mt_record sample = {
    .session = 3,
    .frame = 41,
    .status = MT_LATE,
    .reason = "because",
    .shortened = true,
    .t_s = 84.012,
    .latency_ms = 312.4,
    .deadline_ms = 2000,
    .wait_ms = 41,
    .encode_ms = 60.2,
    .prefill_ms = 35.9,
    .decode_ms = 175.3,
    .tokens_in = 50,
    .tokens_out = 2,
    .kv_tokens = 2052,
    .pool = 0.41,
    .sessions = 64,
    .cap = 70,
    .text = "h\xc3\xa9",
    .tokens = (const int32_t[]){5, 151644},
};

static void test_record_round_trip(void **state)
{
    struct mt_record r;
    const char *session;
    json_t *o = mt_wire_record_json(&sample, true);

    (void)state;
    assert_int_equal(json_array_size(json_object_get(o, "tokens")), 2);
    assert_int_equal(mt_wire_record_parse(o, &r, &session), 0);
    assert_string_equal(session, "3");
    assert_string_equal(r.text, sample.text);
    assert_string_equal(r.reason, "because");
    assert_int_equal(r.session, 3);
    assert_int_equal(r.frame, 41);
    assert_int_equal(r.status, MT_LATE);
    assert_true(r.shortened);
    assert_true(r.t_s == 84.012 && r.latency_ms == 312.4 && r.deadline_ms == 2000);
    assert_true(r.wait_ms == 41 && r.encode_ms == 60.2 && r.prefill_ms == 35.9);
    assert_true(r.decode_ms == 175.3 && r.pool == 0.41);
    assert_int_equal(r.tokens_in, 50);
    assert_int_equal(r.tokens_out, 2);
    assert_int_equal(r.kv_tokens, 2052);
    assert_int_equal(r.sessions, 64);
    assert_int_equal(r.cap, 70);
    json_decref(o);
    o = mt_wire_record_json(&sample, false);
    assert_null(json_object_get(o, "tokens"));
    json_decref(o);
}

/* Not UTF-8 and not a number: the record is written all the same, and stays JSON. */
static void test_record_hostile(void **state)
{
    struct mt_record r = sample, back;
    const char *session;
    json_t *o;

    (void)state;
    r.text = "a\xff";
    r.latency_ms = NAN;
    o = mt_wire_record_json(&r, false);
    assert_int_equal(mt_wire_record_parse(o, &back, &session), 0);
    assert_string_equal(back.text, "\xef\xbf\xbd");
    assert_true(isnan(back.latency_ms));
    json_decref(o);
}

static void test_record_parse(void **state)
{
    static const struct {
        const char *text;
        int rc;
    } c[] = {
        {"{\"type\":\"status\"}", -ENOMSG},
        {"{\"type\":7}", -ENOMSG},
        {"{}", -ENOMSG},
        {"[]", -ENOMSG},
        {"{\"type\":\"frame\"}", -EPROTO},
        {"{\"type\":\"frame\",\"session\":\"a\",\"frame\":0,\"status\":\"fine\"}", -EPROTO},
        {"{\"type\":\"frame\",\"session\":[],\"frame\":0,\"status\":\"ok\"}", -EPROTO},
        {"{\"type\":\"frame\",\"session\":\"a\",\"frame\":-1,\"status\":\"ok\"}", -EPROTO},
        {"{\"type\":\"frame\",\"session\":\"a\",\"status\":\"ok\"}", -EPROTO},
        {"{\"type\":\"frame\",\"session\":\"a\",\"frame\":0,\"status\":\"ok\",\"t\":\"1\"}",
         -EPROTO},
        {"{\"type\":\"frame\",\"session\":\"a\",\"frame\":0,\"status\":\"ok\",\"cap\":2.5}",
         -EPROTO},
        {"{\"type\":\"frame\",\"session\":\"a\",\"frame\":0,\"status\":\"ok\",\"cap\":3000000000}",
         -EPROTO},
        {"{\"type\":\"frame\",\"session\":\"a\",\"frame\":0,\"status\":\"ok\",\"text\":1}",
         -EPROTO},
        {"{\"type\":\"frame\",\"session\":\"a\",\"frame\":0,\"status\":\"ok\"}", 0},
    };
    struct mt_record r;
    const char *session;
    json_t *o;

    (void)state;
    for (size_t i = 0; i < MT_COUNT(c); i++) {
        o = json_loads(c[i].text, 0, NULL);
        assert_non_null(o);
        if (mt_wire_record_parse(o, &r, &session) != c[i].rc)
            fail_msg("%s: not %d", c[i].text, c[i].rc);
        json_decref(o);
    }
    assert_true(isnan(r.t_s) && isnan(r.pool) && r.cap == -1 && r.kv_tokens == -1);
    o = json_loads("{\"type\":\"frame\",\"session\":12,\"frame\":0,\"status\":\"stalled\","
                   "\"latency_ms\":null}",
                   0, NULL);
    assert_int_equal(mt_wire_record_parse(o, &r, &session), 0);
    assert_string_equal(session, "12");
    assert_int_equal(r.session, 12);
    assert_int_equal(r.status, MT_STALLED);
    json_decref(o);
}

/* ---- a scripted engine ---- */

/*
 * Frames of 160 samples and 40 of lookahead at 16 kHz, answered one a tick. The tests hold its
 * hands: stuck (a tick does not return), still (it answers nothing), full (it takes no audio).
 */
enum { RATE = 16000, FRAME = 160, AHEAD = 40, BACKLOG = 4, SESSIONS = 128 };

struct fake {
    int64_t id, samples, answered, due_ns;
    double sum;
    bool live, ended;
};

struct mt_engine {
    struct mt_engine_plan plan;
    struct mt_engine_opts opts;
    struct fake s[SESSIONS];
    int n, cap;
    enum mt_gate gate;
    atomic_llong next_id;
    atomic_size_t text;
    bool draining;
    double sum; /* of all samples of sessions that are gone */
    atomic_bool stuck, still, full;
    atomic_int ticks, gone, sessions;
    atomic_llong taken;
};

struct mt_model {
    struct mt_model_info info;
    struct mt_backend be;
};

static struct mt_model fake_model = {.info = {.name = "fake", .sample_rate_hz = RATE}};

static int64_t now_ns(void)
{
    struct mt_clock c = mt_clock_real();

    return c.now_ns(&c);
}

static void nap_ms(int ms)
{
    struct timespec ts = {.tv_nsec = ms * MT_NS_PER_MS};

    nanosleep(&ts, NULL);
}

const struct mt_model_info *mt_model_info(const struct mt_model *m)
{
    return &m->info;
}

struct mt_backend *mt_model_backend(const struct mt_model *m)
{
    return (struct mt_backend *)&m->be;
}

const struct mt_engine_plan *mt_engine_plan(const struct mt_engine *eng)
{
    return &eng->plan;
}

const struct mt_engine_opts *mt_engine_options(const struct mt_engine *eng)
{
    return &eng->opts;
}

struct mt_clock *mt_engine_clock(const struct mt_engine *eng)
{
    static struct mt_clock clock;

    (void)eng;
    if (!clock.now_ns)
        clock = mt_clock_real();
    return &clock;
}

void mt_session_defaults(struct mt_session_opts *o)
{
    *o = (struct mt_session_opts){.top_p = 1};
}

static struct fake *fake_find(struct mt_engine *eng, int64_t id)
{
    for (int i = 0; i < eng->n; i++)
        if (eng->s[i].id == id)
            return &eng->s[i];
    return NULL;
}

/* Frames that are complete. */
static int64_t fake_frames(const struct fake *s)
{
    if (s->ended)
        return (s->samples + FRAME - 1) / FRAME;
    return s->samples < AHEAD ? 0 : (s->samples - AHEAD) / FRAME;
}

int mt_engine_open(struct mt_engine *eng, const struct mt_session_opts *o, int64_t *session,
                   const char **reason, double *retry_s, struct mt_err *e)
{
    if (o->window > 0)
        return mt_err_set(e, -EINVAL, "window: no");
    if (eng->draining || eng->n >= eng->cap || eng->n == SESSIONS) {
        *reason = eng->draining ? "drain" : "limit";
        *retry_s = 2.5;
        return -EAGAIN;
    }
    *session = ++eng->next_id;
    eng->s[eng->n++] = (struct fake){.id = *session, .live = o->live};
    atomic_store(&eng->sessions, eng->n);
    return 0;
}

static int64_t fake_room(struct mt_engine *eng, const struct fake *s)
{
    if (atomic_load(&eng->full))
        return 0;
    return (s->answered + BACKLOG) * FRAME + AHEAD - s->samples;
}

int64_t mt_engine_audio(struct mt_engine *eng, int64_t session, const float *pcm, int64_t n,
                        int64_t t_ns)
{
    struct fake *s = fake_find(eng, session);
    int64_t room;

    if (!s)
        return -ENOENT;
    room = fake_room(eng, s);
    if (s->ended)
        return -EINVAL;
    n = s->live || n < room ? n : room < 0 ? 0 : room;
    for (int64_t i = 0; i < n; i++)
        s->sum += (double)pcm[i];
    if (fake_frames(s) == s->answered)
        s->due_ns = t_ns;
    s->samples += n;
    atomic_fetch_add(&eng->taken, n);
    return n;
}

int mt_engine_end(struct mt_engine *eng, int64_t session, int64_t t_ns)
{
    struct fake *s = fake_find(eng, session);

    (void)t_ns;
    if (!s)
        return -ENOENT;
    s->ended = true;
    return 0;
}

static void fake_answer(struct mt_engine *eng, struct fake *s, enum mt_status status,
                        const char *reason)
{
    static const int32_t ids[] = {7, 8};
    char *text = malloc(eng->text + 1);
    struct mt_record r = {.session = s->id,
                          .frame = s->answered++,
                          .status = status,
                          .reason = reason,
                          .t_s = 1,
                          .latency_ms = 1,
                          .deadline_ms = 10,
                          .tokens_out = 2,
                          .tokens = ids,
                          .sessions = eng->n,
                          .cap = eng->cap,
                          .text = text};

    memset(text, 'x', eng->text);
    text[eng->text] = '\0';
    eng->opts.events.frame(eng->opts.events.ctx, &r);
    free(text);
}

void mt_engine_close(struct mt_engine *eng, int64_t session, const char *reason)
{
    struct fake *s = fake_find(eng, session);
    int64_t frames;

    if (!s)
        return;
    while (strcmp(reason, "end") != 0 && s->answered < fake_frames(s))
        fake_answer(eng, s, MT_DROPPED, reason);
    frames = s->answered;
    eng->sum += s->sum;
    *s = eng->s[--eng->n];
    atomic_store(&eng->sessions, eng->n);
    if (!strcmp(reason, "gone"))
        atomic_fetch_add(&eng->gone, 1);
    eng->opts.events.closed(eng->opts.events.ctx, session, reason, frames);
}

int64_t mt_engine_warm(struct mt_engine *eng)
{
    return eng->n > 0 ? -EBUSY : MT_NS_PER_MS;
}

bool mt_engine_tick(struct mt_engine *eng)
{
    bool any = false;

    atomic_fetch_add(&eng->ticks, 1);
    while (atomic_load(&eng->stuck))
        nap_ms(1);
    if (atomic_load(&eng->still))
        return false;
    for (int i = eng->n - 1; i >= 0; i--) {
        struct fake *s = &eng->s[i];

        if (s->answered < fake_frames(s)) {
            fake_answer(eng, s, MT_OK, NULL);
            any = true;
        } else if (s->ended) {
            mt_engine_close(eng, s->id, "end");
            any = true;
        }
    }
    return any;
}

/* Saved calls are test_state.c's and the bats files', those handed over test_handoff.c's. */
uint64_t mt_model_identity(const struct mt_model *m)
{
    (void)m;
    return 0;
}

int mt_engine_session(const struct mt_engine *eng, int64_t session, struct mt_session_facts *out)
{
    (void)eng;
    (void)session;
    (void)out;
    return -ENOENT;
}

int mt_engine_save(struct mt_engine *eng, int64_t session, struct mt_state_io *io)
{
    (void)eng;
    (void)session;
    return mt_state_fail(io, -ENOTSUP, "not here");
}

int mt_engine_load(struct mt_engine *eng, struct mt_state_io *io, const struct mt_load_opts *o,
                   int64_t *session, const char **reason, double *retry_s)
{
    (void)eng;
    (void)o;
    (void)session;
    (void)reason;
    (void)retry_s;
    return mt_state_fail(io, -ENOTSUP, "not here");
}

void mt_engine_visit(struct mt_engine *eng, struct mt_state_io *io)
{
    (void)eng;
    (void)io;
}

void mt_engine_set_cap(struct mt_engine *eng, int cap)
{
    eng->cap = cap;
}

void mt_engine_set_gate(struct mt_engine *eng, enum mt_gate gate)
{
    eng->gate = gate;
}

void mt_engine_drain(struct mt_engine *eng)
{
    eng->draining = true;
}

void mt_engine_stats(struct mt_engine *eng, struct mt_engine_stats *out)
{
    int64_t t = now_ns();

    memset(out, 0, sizeof(*out));
    out->sessions = eng->n;
    out->cap = eng->cap;
    out->draining = eng->draining;
    out->pool = 0.25;
    for (int i = 0; i < eng->n; i++) {
        int64_t waiting = fake_frames(&eng->s[i]) - eng->s[i].answered;

        out->pending += (int)waiting;
        if (waiting > 0 && (double)(t - eng->s[i].due_ns) / 1e6 > out->oldest_ms)
            out->oldest_ms = (double)(t - eng->s[i].due_ns) / 1e6;
    }
    mt_hist_add(&out->latency, 5 * MT_NS_PER_MS);
}

/* ---- the server in a thread ---- */

struct rig {
    struct mt_engine eng;
    struct mt_wire_hub *hub;
    struct mt_server_opts opts;
    char dir[32], path[64];
    pthread_t thread;
    sem_t ready;
    int rc;
    struct mt_err e;
};

static int rig_ready(void *ctx, const char *const *where, int n)
{
    assert_int_equal(n, 1);
    assert_string_equal(where[0], ((struct rig *)ctx)->opts.where[0]);
    sem_post(&((struct rig *)ctx)->ready);
    return 0;
}

static void *rig_run(void *arg)
{
    struct rig *r = arg;

    r->rc = mt_serve_socket(&r->eng, &fake_model, &r->opts, &r->e);
    sem_post(&r->ready);
    return NULL;
}

static void fake_engine(struct mt_engine *eng, struct mt_wire_hub *hub)
{
    memset(eng, 0, sizeof(*eng));
    eng->cap = SESSIONS;
    eng->opts.max_sessions = SESSIONS;
    eng->opts.block_tokens = 16;
    eng->opts.policy = (struct mt_policy){.bounded = true, .window = 64, .sinks = 4};
    eng->opts.events = mt_wire_hub_events(hub);
    eng->plan = (struct mt_engine_plan){.frame_samples = FRAME,
                                        .lookahead_samples = AHEAD,
                                        .frame_s = 0.01,
                                        .deadline_s = 0.02,
                                        .pool_blocks = 100};
}

static int rig_up(void **state)
{
    struct rig *r = calloc(1, sizeof(*r));

    assert_int_equal(mt_wire_hub_new(&r->hub), 0);
    fake_engine(&r->eng, r->hub);
    assert_int_equal(util_dir_make(r->dir), 0);
    snprintf(r->path, sizeof(r->path), "%s/s", r->dir);
    r->opts = (struct mt_server_opts){.where = {r->path}, .ready = rig_ready, .ctx = r};
    sem_init(&r->ready, 0, 0);
    assert_int_equal(pthread_create(&r->thread, NULL, rig_run, r), 0);
    sem_wait(&r->ready);
    assert_int_equal(r->e.code, 0);
    *state = r;
    return 0;
}

static int rig_down(void **state)
{
    struct rig *r = *state;
    int rc;

    atomic_store(&r->eng.stuck, false);
    atomic_store(&r->eng.still, false);
    atomic_store(&r->eng.full, false);
    if (r->thread) {
        kill(getpid(), SIGTERM);
        pthread_join(r->thread, NULL);
    }
    rc = r->rc;
    if (util_dir_remove(r->dir) < 0)
        rc = -1;
    sem_destroy(&r->ready);
    mt_wire_hub_free(&r->hub);
    free(r);
    return rc;
}

static struct mt_wire_client *dial(struct rig *r)
{
    struct mt_wire_client *c;
    struct mt_err e = {0};

    if (mt_wire_connect(&c, r->path, 10 * MT_NS_PER_S, &e) < 0)
        fail_msg("%s", e.text);
    return c;
}

static void say(struct mt_wire_client *c, const char *text)
{
    size_t n = strlen(text);

    while (n > 0) {
        struct pollfd p = {.fd = mt_wire_fd(c), .events = POLLOUT};
        ssize_t k;

        assert_int_equal(poll(&p, 1, 10000), 1);
        k = send(p.fd, text, n, MSG_NOSIGNAL);
        assert_true(k >= 0 || errno == EAGAIN);
        text += k > 0 ? k : 0;
        n -= k > 0 ? (size_t)k : 0;
    }
}

static void say_pcm(struct mt_wire_client *c, const void *pcm, size_t n)
{
    struct mt_err e = {0};
    json_t *o = json_pack("{ss,si}", "type", "audio", "bytes", (int)n);

    if (mt_wire_send(c, o, pcm, n, &e) < 0)
        fail_msg("%s", e.text);
}

/* The next object, whose type must be this one. */
static json_t *hear(struct mt_wire_client *c, const char *type)
{
    struct mt_err e = {0};
    json_t *o;
    int rc = mt_wire_recv(c, &o, &e);

    if (rc != 1)
        fail_msg("expected '%s', got %d %s", type, rc, e.text);
    if (strcmp(json_string_value(json_object_get(o, "type")), type) != 0) {
        char *text = json_dumps(o, JSON_COMPACT);

        fail_msg("expected '%s', got %s", type, text);
    }
    return o;
}

static void expect(struct mt_wire_client *c, const char *type, const char *key, const char *value)
{
    json_t *o = hear(c, type);

    if (key)
        assert_string_equal(json_string_value(json_object_get(o, key)), value);
    json_decref(o);
}

static void expect_end(struct mt_wire_client *c)
{
    struct mt_err e = {0};
    json_t *o;

    assert_int_equal(mt_wire_recv(c, &o, &e), 0);
}

#define OPEN "{\"metronome\":1,\"type\":\"open\",\"rate\":16000"
#define END  "{\"type\":\"end\"}\n"

/* Until a condition holds; it must within ten seconds. */
#define WAIT_FOR(cond)                                                                             \
    do {                                                                                           \
        int64_t until_ = now_ns() + 10 * MT_NS_PER_S;                                              \
        while (!(cond) && now_ns() < until_)                                                       \
            nap_ms(1);                                                                             \
        assert_true(cond);                                                                         \
    } while (0)

/* ---- sessions ---- */

/* Whatever the pieces, every sample gets in, and every frame comes out. */
static void test_session(void **state)
{
    struct rig *r = *state;
    struct mt_wire_client *c = dial(r);
    unsigned char pcm[2 * 1000];
    double sum = 0;
    json_t *o;

    for (size_t i = 0; i < 1000; i++) {
        int16_t v = (int16_t)((int)i * 31 - 15000);

        pcm[2 * i] = (unsigned char)(v & 0xff);
        pcm[2 * i + 1] = (unsigned char)((uint16_t)v >> 8);
        sum += (double)((float)v / 32768.0f);
    }
    say(c, OPEN ",\"tokens\":true}\n");
    o = hear(c, "opened");
    assert_int_equal(json_integer_value(json_object_get(o, "metronome")), 1);
    assert_string_equal(json_string_value(json_object_get(o, "session")), "1");
    assert_string_equal(json_string_value(json_object_get(o, "model")), "fake");
    assert_string_equal(json_string_value(json_object_get(o, "kv")), "window=64,sinks=4");
    assert_string_equal(json_string_value(json_object_get(o, "text")), "");
    assert_int_equal(json_integer_value(json_object_get(o, "frame_samples")), FRAME);
    assert_int_equal(json_integer_value(json_object_get(o, "lookahead_samples")), AHEAD);
    assert_int_equal(json_integer_value(json_object_get(o, "pool_blocks")), 100);
    assert_true(json_number_value(json_object_get(o, "deadline_ms")) == 20);
    json_decref(o);
    for (size_t at = 0, n; at < sizeof(pcm); at += n) {
        n = at % 3 ? 7 : 333; /* odd pieces */
        n = sizeof(pcm) - at < n ? sizeof(pcm) - at : n;
        say_pcm(c, pcm + at, n);
    }
    say(c, END);
    for (int k = 0; k < 7; k++) {
        o = hear(c, "frame");
        assert_int_equal(json_integer_value(json_object_get(o, "frame")), k);
        assert_int_equal(json_array_size(json_object_get(o, "tokens")), 2);
        json_decref(o);
    }
    o = hear(c, "closed");
    assert_string_equal(json_string_value(json_object_get(o, "reason")), "end");
    assert_int_equal(json_integer_value(json_object_get(o, "frames")), 7);
    json_decref(o);
    expect_end(c);
    mt_wire_disconnect(&c);
    assert_true(fabs(r->eng.sum - sum) < 1e-9);
}

/* At another rate the client is told its own numbers, with what the converter holds back. */
static void test_session_rate(void **state)
{
    struct rig *r = *state;
    struct mt_wire_client *c = dial(r);
    float pcm[4410] = {0};
    int64_t ahead;
    json_t *o;

    say(c, "{\"metronome\":1,\"type\":\"open\",\"rate\":44100,\"format\":\"f32le\"}\n");
    o = hear(c, "opened");
    assert_int_equal(json_integer_value(json_object_get(o, "frame_samples")), 441);
    ahead = json_integer_value(json_object_get(o, "lookahead_samples"));
    assert_in_range(ahead, 112, 20000); /* 110.25 and the lag */
    json_decref(o);
    say_pcm(c, pcm, sizeof(pcm));
    for (int64_t k = 0; (k + 1) * 441 + ahead <= 4410; k++)
        expect(c, "frame", "status", "ok"); /* as promised, without more audio */
    say(c, END);
    o = hear(c, "frame");
    while (strcmp(json_string_value(json_object_get(o, "type")), "frame") == 0) {
        struct mt_err e = {0};

        json_decref(o);
        assert_int_equal(mt_wire_recv(c, &o, &e), 1);
    }
    assert_int_equal(json_integer_value(json_object_get(o, "frames")), 10);
    json_decref(o);
    mt_wire_disconnect(&c);
}

static void test_session_refused(void **state)
{
    struct rig *r = *state;
    struct mt_wire_client *c = dial(r), *d = dial(r);
    json_t *o;

    say(c, "{\"metronome\":1,\"type\":\"cap\",\"cap\":0}\n");
    o = hear(c, "cap");
    assert_int_equal(json_integer_value(json_object_get(o, "metronome")), 1);
    assert_int_equal(json_integer_value(json_object_get(o, "cap")), 0);
    json_decref(o);
    say(d, OPEN "}\n" END);
    o = hear(d, "refused");
    assert_string_equal(json_string_value(json_object_get(o, "reason")), "limit");
    assert_true(json_number_value(json_object_get(o, "retry_s")) == 2.5);
    json_decref(o);
    expect_end(d);
    mt_wire_disconnect(&c);
    mt_wire_disconnect(&d);
}

/* One line, then the end of the connection; and nothing else comes to harm. */
static void test_errors(void **state)
{
    static const struct {
        const char *text, *says;
        bool opened;
    } bad[] = {
        {"hello\n", "found 'h'", false},
        {"{\"type\":\"open\"}\n", "must have \"metronome\":1", false},
        {"{\"metronome\":2,\"type\":\"open\"}\n", "version 1", false},
        {"{\"metronome\":1,\"type\":\"audio\",\"bytes\":2}\nxx", "unknown type", false},
        {"{\"metronome\":1,\"type\":\"save\"}\n", "\"save\": this server saves no calls", false},
        {"{\"metronome\":1,\"type\":\"load\"}\n", "\"load\": this server saves no calls", false},
        {"{\"metronome\":1,\"type\":\"cap\",\"cap\":-1}\n", "\"cap\"", false},
        {"{\"metronome\":1,\"type\":\"watch\",\"period_ms\":1}\n", "\"period_ms\"", false},
        {"{\"metronome\":1,\"type\":\"open\",\"rate\":1}\n", "\"rate\"", false},
        {"{\"metronome\":1,\"type\":\"open\",\"window\":9}\n", "window: no", false},
        {OPEN "}\n{\"type\":\"stats\"}\n", "expected audio or end", true},
        {OPEN "}\n{\"type\":\"audio\"}\n", "without \"bytes\"", true},
        {OPEN "}\n" END END, "\"end\" twice", true},
        {OPEN "}\n" END "{\"type\":\"audio\",\"bytes\":0}\n", "audio after", true},
        {OPEN "}\n{\"type\":\"audio\",\"bytes\":1}\nx" END, "has 1 bytes of 2", true},
        {OPEN ",\"format\":\"f32le\"}\n{\"type\":\"audio\",\"bytes\":4}\n\xff\xff\xff\xff\n",
         "sample 0 is", true},
    };
    struct rig *r = *state;

    for (size_t i = 0; i < MT_COUNT(bad); i++) {
        struct mt_wire_client *c = dial(r);
        json_t *o;
        const char *text;

        atomic_store(&r->eng.still, true);
        say(c, bad[i].text);
        /* An error that the I/O thread finds may overtake "opened". */
        struct mt_err e = {0};
        assert_int_equal(mt_wire_recv(c, &o, &e), 1);
        if (!strcmp(json_string_value(json_object_get(o, "type")), "opened")) {
            assert_true(bad[i].opened);
            json_decref(o);
            assert_int_equal(mt_wire_recv(c, &o, &e), 1);
        }
        text = json_string_value(json_object_get(o, "error"));
        if (!text || !strstr(text, bad[i].says))
            fail_msg("%s: '%s' does not say '%s'", bad[i].text, text, bad[i].says);
        json_decref(o);
        expect_end(c);
        mt_wire_disconnect(&c);
        WAIT_FOR(atomic_load(&r->eng.sessions) == 0);
        atomic_store(&r->eng.still, false);
    }
}

/* ---- bounds ---- */

/* Send zeros until the server takes no more for a while: how many it took. */
static size_t stuff(struct mt_wire_client *c, size_t most)
{
    static const unsigned char zeros[8192];
    size_t sent = 0;
    int idle = 0;

    while (sent < most && idle < 100) {
        ssize_t n = send(mt_wire_fd(c), zeros, most - sent < 8192 ? most - sent : 8192,
                         MSG_NOSIGNAL | MSG_DONTWAIT);

        if (n < 0 && errno != EAGAIN)
            break;
        idle = n > 0 ? 0 : idle + 1;
        sent += n > 0 ? (size_t)n : 0;
        if (n < 0)
            nap_ms(2);
    }
    return sent;
}

static void test_back_pressure(void **state)
{
    enum { ALL = 2 << 20 };
    struct rig *r = *state;
    struct mt_wire_client *c = dial(r);
    int64_t frames;
    size_t sent;
    json_t *o;

    atomic_store(&r->eng.full, true);
    say(c, OPEN "}\n{\"type\":\"audio\",\"bytes\":2097152}\n");
    expect(c, "opened", NULL, NULL);
    sent = stuff(c, ALL);
    assert_in_range(sent, 1, 1 << 20); /* what is held here and what the socket holds */
    atomic_store(&r->eng.full, false);
    assert_int_equal(stuff(c, ALL - sent), ALL - sent);
    say(c, END);
    for (frames = 0;; frames++) {
        struct mt_err e = {0};
        bool last;

        assert_int_equal(mt_wire_recv(c, &o, &e), 1);
        last = !strcmp(json_string_value(json_object_get(o, "type")), "closed");
        json_decref(o);
        if (last)
            break;
    }
    assert_int_equal(frames, (ALL / 2 + FRAME - 1) / FRAME);
    assert_int_equal(atomic_load(&r->eng.taken), ALL / 2);
    mt_wire_disconnect(&c);
}

/* A live session is read even while the engine is stuck in a tick. */
static void test_live_is_read(void **state)
{
    struct rig *r = *state;
    struct mt_wire_client *c = dial(r);

    say(c, OPEN ",\"live\":true}\n{\"type\":\"audio\",\"bytes\":921600}\n");
    expect(c, "opened", NULL, NULL);
    atomic_store(&r->eng.stuck, true);
    assert_int_equal(stuff(c, 921600), 921600);
    atomic_store(&r->eng.stuck, false);
    mt_wire_disconnect(&c);
    WAIT_FOR(atomic_load(&r->eng.gone) == 1);
}

/*
 * Gone without a word: also while the server doesn't read the connection, or has nothing to write.
 */
static void test_vanish(void **state)
{
    struct rig *r = *state;
    struct mt_wire_client *c[3];
    int ticks;

    atomic_store(&r->eng.full, true);
    atomic_store(&r->eng.still, true);
    for (int i = 0; i < 3; i++) {
        c[i] = dial(r);
        say(c[i], OPEN "}\n");
        expect(c[i], "opened", NULL, NULL);
    }
    say(c[1], "{\"type\":\"audio\",\"bytes\":8388608}\n");
    stuff(c[1], 8 << 20);
    say(c[2], END);
    shutdown(mt_wire_fd(c[2]), SHUT_WR);
    nap_ms(20);
    assert_int_equal(atomic_load(&r->eng.gone), 0); /* half-open, but it said "end" */
    for (int i = 0; i < 3; i++) {
        ticks = atomic_load(&r->eng.ticks);
        mt_wire_disconnect(&c[i]);
        WAIT_FOR(atomic_load(&r->eng.gone) == i + 1);
        assert_in_range(atomic_load(&r->eng.ticks) - ticks, 0, 20); /* idle ticks are 20 ms */
    }
    assert_int_equal(atomic_load(&r->eng.sessions), 0);
}

static void test_half_open(void **state)
{
    struct rig *r = *state;
    struct mt_wire_client *c = dial(r), *d = dial(r);
    unsigned char pcm[2 * 3 * FRAME] = {0};

    say(c, OPEN "}\n");
    expect(c, "opened", NULL, NULL);
    shutdown(mt_wire_fd(c), SHUT_WR); /* without "end": gone */
    WAIT_FOR(atomic_load(&r->eng.gone) == 1);
    say(d, OPEN "}\n");
    atomic_store(&r->eng.still, true);
    say_pcm(d, pcm, sizeof(pcm));
    say(d, END);
    shutdown(mt_wire_fd(d), SHUT_WR); /* with it: the rest is answered */
    expect(d, "opened", NULL, NULL);
    nap_ms(20);
    atomic_store(&r->eng.still, false);
    for (int i = 0; i < 3; i++)
        expect(d, "frame", "status", "ok");
    expect(d, "closed", "reason", "end");
    mt_wire_disconnect(&c);
    mt_wire_disconnect(&d);
}

static void test_slow_reader(void **state)
{
    struct rig *r = *state;
    struct mt_wire_client *w = dial(r), *c = dial(r);
    unsigned char pcm[2 * FRAME] = {0};
    json_t *o;
    struct mt_err e = {0};

    r->eng.text = 200000;
    say(c, OPEN ",\"live\":true}\n");
    for (int i = 0; i < 60; i++)
        say_pcm(c, pcm, sizeof(pcm)); /* 12 MB of answers, none of them read */
    WAIT_FOR(atomic_load(&r->eng.next_id) == 1 && atomic_load(&r->eng.sessions) == 0);
    r->eng.text = 0;
    while (mt_wire_recv(c, &o, &e) == 1) /* what was on its way, then the end */
        json_decref(o);
    say(w, "{\"metronome\":1,\"type\":\"stats\"}\n");
    expect(w, "stats", NULL, NULL);
    mt_wire_disconnect(&c);
    mt_wire_disconnect(&w);
}

/* Each connection beyond the limit is told so, and the place is free again when one leaves. */
static void test_connection_limit(void **state)
{
    enum { LIMIT = SESSIONS + 64 };
    struct rig *r = *state;
    struct mt_wire_client *c[LIMIT], *over;

    for (int i = 0; i < LIMIT; i++)
        c[i] = dial(r);
    over = dial(r);
    expect(over, "refused", "reason", "limit");
    expect_end(over);
    mt_wire_disconnect(&over);
    mt_wire_disconnect(&c[0]);
    nap_ms(50);
    c[0] = dial(r);
    say(c[0], "{\"metronome\":1,\"type\":\"stats\"}\n");
    expect(c[0], "stats", NULL, NULL);
    for (int i = 0; i < LIMIT; i++)
        mt_wire_disconnect(&c[i]);
}

static void test_many_vanish(void **state)
{
    enum { N = 100 };
    struct rig *r = *state;
    struct mt_wire_client *c[N];
    unsigned char pcm[2 * FRAME] = {0};

    for (int i = 0; i < N; i++) {
        c[i] = dial(r);
        say(c[i], OPEN "}\n");
        say_pcm(c[i], pcm, sizeof(pcm));
    }
    WAIT_FOR(atomic_load(&r->eng.sessions) == N);
    for (int i = 0; i < N; i++)
        mt_wire_disconnect(&c[i]);
    WAIT_FOR(atomic_load(&r->eng.gone) == N && atomic_load(&r->eng.sessions) == 0);
}

/* ---- control ---- */

static void test_watch(void **state)
{
    struct rig *r = *state;
    struct mt_wire_client *w = dial(r), *c = dial(r);
    unsigned char pcm[2 * 2 * FRAME] = {0};
    double oldest = -1, grew = 0;
    json_t *o;

    say(w, "{\"metronome\":1,\"type\":\"watch\",\"period_ms\":10}\n");
    o = hear(w, "status");
    assert_int_equal(json_integer_value(json_object_get(o, "metronome")), 1);
    assert_true(json_number_value(json_object_get(o, "pool")) == 0.25);
    assert_int_equal(json_integer_value(json_object_get(o, "cap")), SESSIONS);
    json_decref(o);
    expect(w, "status", NULL, NULL); /* while nothing happens too */
    say(c, OPEN ",\"tokens\":true}\n");
    expect(c, "opened", NULL, NULL);
    say_pcm(c, pcm, sizeof(pcm));
    for (;;) {
        struct mt_err e = {0};
        bool frame;

        assert_int_equal(mt_wire_recv(w, &o, &e), 1);
        frame = !strcmp(json_string_value(json_object_get(o, "type")), "frame");
        if (frame)
            assert_null(json_object_get(o, "tokens")); /* they are the session's */
        json_decref(o);
        if (frame)
            break;
    }
    /* The engine's thread hangs: the age of what waits goes on. */
    atomic_store(&r->eng.stuck, true);
    say_pcm(c, pcm, sizeof(pcm));
    for (int i = 0; i < 300 && grew < 100; i++) {
        double age;

        o = hear(w, "status");
        age = json_number_value(json_object_get(o, "oldest_ms"));
        if (oldest >= 0 && age > oldest)
            grew += age - oldest;
        oldest = age;
        json_decref(o);
    }
    assert_true(grew >= 100);
    atomic_store(&r->eng.stuck, false);
    mt_wire_disconnect(&c);
    mt_wire_disconnect(&w);
}

static void test_stats(void **state)
{
    struct rig *r = *state;
    struct mt_wire_client *c = dial(r);
    json_t *o, *l;

    say(c,
        "{\"metronome\":1,\"type\":\"drain\"}\n{\"type\":\"cap\",\"cap\":29,\"reason\":\"grow\"}\n"
        "{\"type\":\"stats\"}\n");
    shutdown(mt_wire_fd(c), SHUT_WR); /* answers still come */
    expect(c, "drain", NULL, NULL);
    o = hear(c, "cap");
    assert_null(json_object_get(o, "metronome"));
    json_decref(o);
    o = hear(c, "stats");
    assert_int_equal(json_integer_value(json_object_get(o, "cap")), 29);
    assert_true(json_is_true(json_object_get(o, "draining")));
    l = json_object_get(o, "latency");
    assert_int_equal(json_integer_value(json_object_get(l, "count")), 1);
    assert_true(json_number_value(json_object_get(l, "max_ms")) == 5);
    assert_true(json_is_integer(json_object_get(json_object_get(o, "frames"), "stalled")));
    json_decref(o);
    expect_end(c);
    mt_wire_disconnect(&c);
}

/* ---- the end ---- */

static void test_shutdown(void **state)
{
    struct rig *r = *state;
    struct mt_wire_client *c = dial(r), *idle = dial(r), *w = dial(r);
    unsigned char pcm[2 * (3 * FRAME + AHEAD + 5)] = {0};
    struct stat st;

    say(w, "{\"metronome\":1,\"type\":\"watch\",\"period_ms\":3600000}\n");
    expect(w, "status", NULL, NULL);
    say(c, OPEN "}\n");
    expect(c, "opened", NULL, NULL);
    atomic_store(&r->eng.still, true);
    say_pcm(c, pcm, sizeof(pcm));
    WAIT_FOR(atomic_load(&r->eng.taken) == 3 * FRAME + AHEAD + 5);
    kill(getpid(), SIGTERM);
    WAIT_FOR(stat(r->path, &st) < 0);
    expect(idle, "refused", "reason", "shutdown");
    atomic_store(&r->eng.still, false);
    for (int i = 0; i < 3; i++)
        expect(c, "frame", "status", "ok");
    expect(c, "closed", "reason", "shutdown");
    expect_end(c);
    for (int i = 0; i < 3; i++)
        expect(w, "frame", NULL, NULL);
    expect_end(w);
    mt_wire_disconnect(&c);
    mt_wire_disconnect(&w);
    mt_wire_disconnect(&idle);
    pthread_join(r->thread, NULL);
    r->thread = 0;
    assert_int_equal(r->rc, 0);
}

/* What may stand at the path: a live server, somebody's file, a dead server's socket. */
static void test_listen(void **state)
{
    struct rig *r = *state, *other = calloc(1, sizeof(*other));
    char path[80], deep[200];
    struct stat st;
    FILE *f;
    int fd;
    struct sockaddr_un a = {.sun_family = AF_UNIX};

    assert_int_equal(stat(r->path, &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(mt_wire_hub_new(&other->hub), 0);
    fake_engine(&other->eng, other->hub);
    other->opts.where[0] = r->path;
    assert_int_equal(mt_serve_socket(&other->eng, &fake_model, &other->opts, &other->e),
                     -EADDRINUSE);
    assert_non_null(strstr(other->e.text, r->path));
    assert_int_equal(stat(r->path, &st), 0);

    snprintf(path, sizeof(path), "%s/file", r->dir);
    f = fopen(path, "w");
    assert_non_null(f);
    fclose(f);
    memset(&other->e, 0, sizeof(other->e));
    other->opts.where[0] = path;
    assert_int_equal(mt_serve_socket(&other->eng, &fake_model, &other->opts, &other->e), -EEXIST);
    assert_int_equal(stat(path, &st), 0);
    unlink(path);

    memset(deep, 'x', sizeof(deep) - 1);
    deep[sizeof(deep) - 1] = '\0';
    memset(&other->e, 0, sizeof(other->e));
    other->opts.where[0] = deep;
    assert_int_equal(mt_serve_socket(&other->eng, &fake_model, &other->opts, &other->e),
                     -ENAMETOOLONG);
    assert_non_null(strstr(other->e.text, "107"));

    /* A dead server's file: bound once, nobody listens. */
    strcpy(a.sun_path, path);
    fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof(a)), 0);
    close(fd);
    memset(&other->e, 0, sizeof(other->e));
    other->opts = (struct mt_server_opts){.where = {path}, .ready = rig_ready, .ctx = other};
    sem_init(&other->ready, 0, 0);
    assert_int_equal(pthread_create(&other->thread, NULL, rig_run, other), 0);
    sem_wait(&other->ready);
    assert_int_equal(other->e.code, 0);
    kill(getpid(), SIGTERM); /* both servers hear it */
    pthread_join(other->thread, NULL);
    pthread_join(r->thread, NULL);
    r->thread = 0;
    assert_int_equal(other->rc, 0);
    assert_int_equal(stat(path, &st), -1);
    sem_destroy(&other->ready);
    mt_wire_hub_free(&other->hub);
    free(other);
}

static int not_ready(void *ctx, const char *const *where, int n)
{
    (void)ctx, (void)where, (void)n;
    return -ENOSPC;
}

static void test_not_ready(void **state)
{
    struct rig *r = *state, *other = calloc(1, sizeof(*other));
    char path[80];
    struct stat st;

    snprintf(path, sizeof(path), "%s/t", r->dir);
    assert_int_equal(mt_wire_hub_new(&other->hub), 0);
    fake_engine(&other->eng, other->hub);
    other->opts = (struct mt_server_opts){.where = {path}, .ready = not_ready};
    assert_int_equal(mt_serve_socket(&other->eng, &fake_model, &other->opts, &other->e), -ENOSPC);
    assert_int_equal(stat(path, &st), -1);
    memset(&other->e, 0, sizeof(other->e));
    /* A place that others can reach, though nobody said that they may. */
    other->opts = (struct mt_server_opts){.where = {"tcp:0.0.0.0:0"}, .ready = not_ready};
    assert_int_equal(mt_serve_socket(&other->eng, &fake_model, &other->opts, &other->e), -EINVAL);
    assert_non_null(strstr(other->e.text, "other machines"));
    memset(&other->e, 0, sizeof(other->e));
    other->opts.public = true;
    assert_int_equal(mt_serve_socket(&other->eng, &fake_model, &other->opts, &other->e), -ENOSPC);
    other->eng.opts.events.frame = NULL;
    assert_int_equal(mt_serve_socket(&other->eng, &fake_model, &other->opts, &other->e), -EINVAL);
    mt_wire_hub_free(&other->hub);
    free(other);
}

/* ---- one session over descriptors ---- */

/* Input in, the types of the lines that came out. */
static int over_stdio(const char *in, size_t n, char *types, struct mt_err *e)
{
    static struct mt_engine eng;
    struct mt_wire_hub *hub;
    FILE *out = tmpfile(), *from = tmpfile();
    char line[4096];
    int rc;

    assert_true(out && from);
    assert_int_equal(fwrite(in, 1, n, from), n);
    fflush(from);
    lseek(fileno(from), 0, SEEK_SET);
    assert_int_equal(mt_wire_hub_new(&hub), 0);
    fake_engine(&eng, hub);
    memset(e, 0, sizeof(*e));
    rc = mt_serve_stdio(&eng, &fake_model, fileno(from), out, e);
    assert_int_equal(eng.n, 0);
    rewind(out);
    *types = '\0';
    while (fgets(line, sizeof(line), out)) {
        json_t *o = json_loads(line, 0, NULL);

        assert_non_null(o);
        strcat(strcat(types, json_string_value(json_object_get(o, "type"))), " ");
        json_decref(o);
    }
    fclose(out);
    fclose(from);
    mt_wire_hub_free(&hub);
    return rc;
}

static void test_stdio(void **state)
{
    static const struct {
        const char *head;
        size_t samples;
        const char *tail, *types, *says;
        int rc;
    } c[] = {
        {OPEN "}\n", 3 * (size_t)FRAME, END, "opened frame frame frame closed ", "", 0},
        {OPEN "}\n", 0, END, "opened closed ", "", 0},
        {OPEN "}\n", 3 * (size_t)FRAME, "", "opened frame frame error closed ", "without \"end\"",
         -EPROTO},
        {OPEN "}\n", 1, "{\"type\":\"aud", "opened error closed ", "inside a line", -EPROTO},
        {OPEN "}\n", 1, "{\"type\":\"what\"}\n", "opened error closed ", "what", -EPROTO},
        {OPEN ",\"window\":1}\n", 0, END, "error ", "window: no", -EINVAL},
        {"", 0, "", "error ", "mt-feed", -EPROTO},
        {"RIFF....WAVE", 0, "", "error ", "mt-feed", -EPROTO},
        {"{\"metronome\":1,\"type\":\"stats\"}\n", 0, "", "error ", "expected open", -EPROTO},
    };

    (void)state;
    for (size_t i = 0; i < MT_COUNT(c); i++) {
        char in[8192], types[256];
        struct mt_err e;
        size_t n = (size_t)snprintf(in, sizeof(in), "%s", c[i].head);
        int rc;

        if (c[i].samples) {
            n += (size_t)snprintf(in + n, sizeof(in) - n, "{\"type\":\"audio\",\"bytes\":%zu}\n",
                                  2 * c[i].samples);
            memset(in + n, 0, 2 * c[i].samples);
            n += 2 * c[i].samples;
        }
        memcpy(in + n, c[i].tail, strlen(c[i].tail));
        n += strlen(c[i].tail);
        rc = over_stdio(in, n, types, &e);
        if (rc != c[i].rc || strcmp(types, c[i].types) != 0 || !strstr(e.text, c[i].says))
            fail_msg("case %zu: %d '%s' '%s'", i, rc, types, e.text);
    }
}

#define SERVED(test) cmocka_unit_test_setup_teardown(test, rig_up, rig_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parser_pieces),
        cmocka_unit_test(test_parser_refuses),
        cmocka_unit_test(test_parser_line_limit),
        cmocka_unit_test(test_parser_depth),
        cmocka_unit_test(test_parser_stops_and_ends),
        cmocka_unit_test(test_open_round_trip),
        cmocka_unit_test(test_open_defaults),
        cmocka_unit_test(test_open_refuses),
        cmocka_unit_test(test_record_round_trip),
        cmocka_unit_test(test_record_hostile),
        cmocka_unit_test(test_record_parse),
        cmocka_unit_test(test_stdio),
        SERVED(test_session),
        SERVED(test_session_rate),
        SERVED(test_session_refused),
        SERVED(test_errors),
        SERVED(test_back_pressure),
        SERVED(test_live_is_read),
        SERVED(test_vanish),
        SERVED(test_half_open),
        SERVED(test_slow_reader),
        SERVED(test_connection_limit),
        SERVED(test_many_vanish),
        SERVED(test_watch),
        SERVED(test_stats),
        SERVED(test_shutdown),
        SERVED(test_listen),
        SERVED(test_not_ready),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
