/*
 * stdio.c: one session over two descriptors, in one thread: read, feed, tick until the engine has
 * nothing left, and only then read more. So nothing piles up, and a frame's latency is the engine's
 * own time. A live session (it can't wait) is read between ticks instead.
 */
#include "wire/intake.h"
#include "wire/internal.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define IDLE_NS (20 * MT_NS_PER_MS)

struct stdio_call {
    struct mt_engine *eng;
    struct mt_model *model;
    FILE *out;
    struct mt_err *e;
    struct mt_wire_parser parser;
    struct mt_intake intake;
    int64_t session; /* 0: not open */
    bool tokens, live, speech, audio, heard;
    bool ended, closed;
    int64_t t_ns;                /* of the read at hand */
    int64_t lost[MT_FAILED + 1]; /* frames without an answer, by status */
    int rc;                      /* why it has to end */
};

static volatile sig_atomic_t stop_asked;

static int64_t now_ns(void)
{
    struct mt_clock c = mt_clock_real();

    return c.now_ns(&c);
}

/* Once; a second signal finds the default action. */
static void on_signal(int signum)
{
    (void)signum;
    stop_asked = 1;
    signal(SIGTERM, SIG_DFL);
    signal(SIGINT, SIG_DFL);
}

static void say(struct stdio_call *s, json_t *obj)
{
    int rc = mt_json_line(s->out, obj);

    if (rc < 0 && !s->rc) {
        s->rc = rc;
        if (rc != -EPIPE)
            mt_err_set(s->e, rc, "writing the answers: %s", strerror(-rc));
    }
}

/* The first thing that goes wrong is said on both sides: to the client as a line, to the caller. */
static int fail(struct stdio_call *s, int rc, const char *text)
{
    if (!s->rc) {
        mt_err_set(s->e, rc, "%s", text);
        say(s, mt_wire_error_json(s->session == 0, text));
        s->rc = s->rc ? s->rc : rc;
    }
    return rc;
}

/* ---- the engine's events ---- */

/* Raw bytes between the lines are for those who ask: jq reads what comes out here. */
static void say_speech(struct stdio_call *s, const struct mt_record *r)
{
    size_t n = 0;
    char *msg = mt_wire_speech(r, mt_model_info(s->model)->speech_rate_hz, &n);

    if (msg && fwrite(msg, 1, n, s->out) != n && !s->rc)
        s->rc = -EPIPE;
    free(msg);
}

static void on_frame(void *ctx, const struct mt_record *r)
{
    struct stdio_call *s = ctx;

    if (s->speech && r->n_speech > 0)
        say_speech(s, r);
    if (r->status != MT_OK && r->status != MT_LATE)
        s->lost[r->status]++;
    say(s, mt_wire_record_json(r, s->tokens));
}

static void on_closed(void *ctx, int64_t session, const char *reason, int64_t frames)
{
    struct stdio_call *s = ctx;

    s->closed = true;
    say(s, mt_wire_closed_json(session, reason, frames));
}

/* ---- the client's messages ---- */

static int hear_open(struct stdio_call *s, json_t *msg)
{
    int rate = mt_model_info(s->model)->sample_rate_hz;
    struct mt_wire_open o = {0};
    struct mt_err e = {0};
    const char *reason = NULL;
    double retry_s = 0;
    int rc = mt_wire_open_parse(msg, rate, &o, &e);

    if (!rc && (rc = mt_intake_open(&s->intake, o.format, o.rate_hz, rate, &e)) == 0)
        rc = mt_engine_open(s->eng, &o.session, &s->session, &reason, &retry_s, &e);
    if (!rc) {
        s->tokens = o.tokens;
        s->live = o.session.live;
        s->speech = json_is_true(json_object_get(msg, "speech"));
        say(s, mt_wire_opened_json(s->eng, s->model, &o, s->session, mt_intake_lag(&s->intake)));
    } else if (rc == -EAGAIN && reason) {
        mt_err_set(s->e, rc, "the session was refused (%s)", reason);
        say(s, mt_wire_refused_json(reason, retry_s));
        s->rc = s->rc ? s->rc : rc;
    } else {
        fail(s, rc, e.code ? e.text : strerror(-rc));
    }
    free(o.system);
    return rc;
}

/*
 * What intake holds goes into the engine. A session that can wait has each frame answered before
 * the audio behind it counts as here: it arrives when the engine is ready for it.
 */
static int feed(struct stdio_call *s)
{
    struct mt_intake *it = &s->intake;

    while (it->n_out > 0 && !s->closed && !s->rc) {
        int64_t n =
            mt_engine_audio(s->eng, s->session, it->out, it->n_out, s->live ? s->t_ns : now_ns());
        bool busy = false;

        if (n < 0)
            return fail(s, (int)n, strerror((int)-n));
        mt_intake_taken(it, n);
        while (!s->live && !s->closed && !s->rc && mt_engine_tick(s->eng))
            busy = true;
        if (n == 0 && !busy) {
            struct timespec nap = {.tv_nsec = MT_NS_PER_MS};

            nanosleep(&nap, NULL); /* what it waits for is time */
        }
    }
    return s->rc;
}

static int hear_end(struct stdio_call *s)
{
    struct mt_err e = {0};
    int rc = mt_intake_flush(&s->intake, &e);

    if (rc < 0)
        return fail(s, rc, e.code ? e.text : strerror(-rc));
    if ((rc = feed(s)) < 0)
        return rc;
    s->ended = true;
    if (!s->closed && (rc = mt_engine_end(s->eng, s->session, now_ns())) < 0)
        return fail(s, rc, strerror(-rc));
    return 1; /* what follows is not read */
}

static int on_message(void *ctx, json_t *msg, int64_t payload)
{
    struct stdio_call *s = ctx;
    const char *type = json_string_value(json_object_get(msg, "type"));
    struct mt_err e = {0};
    char text[200];
    int rc;

    (void)payload;
    s->audio = false;
    if (!s->heard && (rc = mt_wire_check_version(msg, &e)) < 0)
        return fail(s, rc, e.text);
    s->heard = true;
    if (!s->session && !strcmp(type, "open"))
        return hear_open(s, msg);
    if (s->session && !strcmp(type, "end"))
        return hear_end(s);
    if (s->session && !strcmp(type, "audio") && json_object_get(msg, "bytes")) {
        s->audio = true;
        return 0;
    }
    snprintf(text, sizeof(text), "\"%.40s\": expected %s", type,
             s->session ? "audio (with \"bytes\") or end" : "open");
    return fail(s, -EPROTO, text);
}

static int on_payload(void *ctx, const unsigned char *bytes, size_t n)
{
    struct stdio_call *s = ctx;

    while (s->audio && n > 0 && !s->closed) {
        struct mt_err e = {0};
        size_t used = 0;
        int rc = mt_intake_bytes(&s->intake, bytes, n, &used, &e);

        if (rc < 0)
            return fail(s, rc, e.code ? e.text : strerror(-rc));
        bytes += used;
        n -= used;
        if ((rc = feed(s)) < 0)
            return rc;
    }
    return s->closed ? 1 : 0;
}

/* ---- the loop ---- */

/* 1 if there is something to read (or the end), 0 if not yet, -EINTR if a signal asks to stop. */
static int wait_input(int fd, int64_t ns)
{
    struct timespec ts = {.tv_sec = ns / MT_NS_PER_S, .tv_nsec = ns % MT_NS_PER_S};
    struct pollfd p = {.fd = fd, .events = POLLIN};
    sigset_t ours, old;
    int n, stop;

    /* Blocked from the question to the wait, so that a signal in between is not slept over. */
    sigemptyset(&ours);
    sigaddset(&ours, SIGTERM);
    sigaddset(&ours, SIGINT);
    pthread_sigmask(SIG_BLOCK, &ours, &old);
    stop = stop_asked;
    n = stop ? 0 : ppoll(&p, 1, &ts, &old);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (stop || stop_asked)
        return -EINTR;
    return n > 0 ? 1 : n < 0 && errno != EINTR ? -errno : 0;
}

static void hear(struct stdio_call *s, int fd)
{
    static unsigned char buf[1 << 16];
    struct mt_err e = {0};
    ssize_t n = read(fd, buf, sizeof(buf));
    char text[sizeof(e.text) + 100];
    int rc;

    if (n < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    s->t_ns = now_ns();
    if (n < 0) {
        fail(s, -errno, strerror(errno));
    } else if (n == 0) {
        if (!s->heard)
            fail(s, -EPROTO,
                 "the input ends before \"open\"; mt-feed FILE writes what is expected");
        else if (mt_wire_parse_end(&s->parser, &e) < 0)
            fail(s, -EPROTO, e.text);
        else
            fail(s, -EPROTO, "the input ends without \"end\"");
    } else if ((rc = mt_wire_parse(&s->parser, buf, (size_t)n, &e)) < 0 && !s->rc) {
        snprintf(text, sizeof(text), "%s%s%s", s->heard ? "" : "the input is not the wire (",
                 e.text, s->heard ? "" : "); mt-feed FILE makes it from sound");
        fail(s, rc, text);
    }
}

static void run(struct stdio_call *s, int fd)
{
    while (!s->rc && !s->closed) {
        bool busy = s->session && mt_engine_tick(s->eng);
        int rc;

        if (s->ended && !stop_asked) {
            struct timespec nap = {.tv_nsec = MT_NS_PER_MS};

            if (!busy && !s->closed)
                nanosleep(&nap, NULL);
            continue;
        }
        if (busy && (!s->live || stop_asked))
            continue;
        rc = wait_input(fd, busy ? 0 : IDLE_NS);
        if (rc == -EINTR) {
            if (!busy)
                break;
        } else if (rc < 0) {
            fail(s, rc, strerror(-rc));
        } else if (rc > 0) {
            hear(s, fd);
        }
    }
    if (s->session && !s->closed)
        mt_engine_close(s->eng, s->session,
                        s->rc == -EPIPE ? "gone"
                        : s->rc         ? "error"
                                        : "shutdown");
}

static int verdict(struct stdio_call *s)
{
    int64_t n = 0;

    for (size_t i = 0; i < MT_COUNT(s->lost); i++)
        n += s->lost[i];
    if (s->rc || n == 0)
        return s->rc;
    return mt_err_set(s->e, -EIO,
                      "%" PRId64 " frames were not answered (%" PRId64 " stalled, %" PRId64
                      " dropped, %" PRId64 " refused, %" PRId64 " error)",
                      n, s->lost[MT_STALLED], s->lost[MT_DROPPED], s->lost[MT_REFUSED],
                      s->lost[MT_FAILED]);
}

int mt_serve_stdio(struct mt_engine *eng, struct mt_model *m, int in_fd, FILE *out,
                   struct mt_err *e)
{
    struct mt_wire_hub *hub = mt_wire_hub_of(eng);
    struct stdio_call *s = calloc(1, sizeof(*s));
    struct mt_wire_sink sink = {.ctx = s, .frame = on_frame, .closed = on_closed};
    struct sigaction act = {.sa_handler = on_signal}, term, intr;
    void (*hup)(int), (*pipe)(int);
    int rc;

    if (!s || !hub) {
        free(s);
        return mt_err_set(e, hub ? -ENOMEM : -EINVAL, "%s",
                          hub ? "out of memory" : "the engine's events are not the hub's");
    }
    s->eng = eng;
    s->model = m;
    s->out = out;
    s->e = e;
    mt_wire_parser_init(&s->parser);
    s->parser.ctx = s;
    s->parser.on_message = on_message;
    s->parser.on_payload = on_payload;
    mt_wire_hub_bind(hub, &sink);
    stop_asked = 0;
    sigemptyset(&act.sa_mask);
    sigaction(SIGTERM, &act, &term);
    sigaction(SIGINT, &act, &intr);
    hup = signal(SIGHUP, SIG_IGN);
    pipe = signal(SIGPIPE, SIG_IGN);

    run(s, in_fd);
    rc = verdict(s);

    sigaction(SIGTERM, &term, NULL);
    sigaction(SIGINT, &intr, NULL);
    signal(SIGHUP, hup);
    signal(SIGPIPE, pipe);
    mt_wire_hub_bind(hub, NULL);
    mt_intake_close(&s->intake);
    mt_wire_parser_free(&s->parser);
    free(s);
    return rc;
}
