/*
 * check.c: mt-probe check: one call of one frame of silence, timed. Not whether the server is
 * there, but whether it answers: an engine whose pool is full says hello as well as ever. A server
 * that says itself that it takes no call is believed, and so need not be waited for.
 */
#include "tools/probe/live.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { NO_SERVER = 2, RATE_HZ = 16000, FRAME_SECONDS_MAX = 100 };

struct options {
    const char *socket;
    int64_t timeout_ns;
    bool verbose;
};

static const struct argp_option options[] = {
    {"socket", 's', "SOCKET", 0, "The server's Unix socket, or tcp:HOST:PORT", 0},
    {"timeout", 't', "D", 0, "Longest wait for each answer (default 10 s)", 0},
    {"verbose", 'v', 0, 0, "Say how long the frame took", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *st)
{
    struct options *o = st->input;

    if (key == 's') {
        o->socket = arg;
    } else if (key == 't') {
        o->timeout_ns = mt_arg_duration(st, "--timeout", arg);
    } else if (key == 'v') {
        o->verbose = true;
    } else if (key == ARGP_KEY_ARG) {
        argp_error(st, "'%s': only a socket is checked (-s SOCKET)", arg);
    } else if (key == ARGP_KEY_END && !o->socket) {
        argp_error(st, "-s SOCKET is missing");
    } else {
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

/* The next object of a call; its type, or "timeout", "error" with *msg NULL. */
static const char *next(struct mt_wire_client *c, json_t **msg, struct mt_err *e)
{
    int rc = mt_wire_recv(c, msg, e);

    if (rc > 0)
        return json_string_value(json_object_get(*msg, "type"));
    *msg = NULL;
    if (rc == -ETIMEDOUT)
        return "timeout";
    mt_err_set(e, -EPROTO, "the server closed the connection");
    return "error";
}

/* The word for a frame's record; ms is what it took as the server counts. */
static const char *judge(json_t *msg, double *ms)
{
    struct mt_record rec;
    const char *session;

    if (mt_wire_record_parse(msg, &rec, &session) < 0)
        return "error";
    *ms = rec.latency_ms;
    if (mt_status_untruthful(rec.status, rec.tokens_out))
        return "untruthful";
    return mt_status_name(rec.status);
}

static int send_frame(struct mt_wire_client *c, json_t *opened, struct mt_err *e)
{
    double samples = json_number_value(json_object_get(opened, "frame_samples"));
    size_t n;
    void *zeros;
    int rc;

    if (!(samples >= 1 && samples <= RATE_HZ * FRAME_SECONDS_MAX))
        return mt_err_set(e, -EPROTO, "the server's \"opened\" gives no frame length");
    n = (size_t)samples * 2;
    if (!(zeros = calloc(n, 1)))
        return mt_err_set(e, -ENOMEM, "out of memory");
    rc = mt_wire_send(c, json_pack("{s:s, s:I}", "type", "audio", "bytes", (json_int_t)n), zeros, n,
                      e);
    free(zeros);
    return rc < 0 ? rc : mt_wire_send(c, json_pack("{s:s}", "type", "end"), NULL, 0, e);
}

/* The verdict on one call: a word. */
static const char *call(struct mt_wire_client *c, double *ms, struct mt_err *e)
{
    struct mt_wire_open open = {.rate_hz = RATE_HZ};
    const char *type, *word = NULL;
    json_t *msg;

    mt_session_defaults(&open.session);
    if (mt_wire_send(c, mt_wire_open_json(&open), NULL, 0, e) < 0)
        return "error";
    while (!word) {
        type = next(c, &msg, e);
        if (!msg)
            return type;
        if (!strcmp(type, "frame"))
            word = judge(msg, ms);
        else if (!strcmp(type, "refused"))
            word = "refused";
        else if (strcmp(type, "opened") != 0 || send_frame(c, msg, e) < 0)
            word = "error";
        if (word && !strcmp(word, "error") && json_object_get(msg, "error"))
            mt_err_set(e, -EPROTO, "the server says: %s",
                       json_string_value(json_object_get(msg, "error")));
        json_decref(msg);
    }
    return word;
}

/* The server's own word if it is one that spares us the call, else NULL. */
static const char *ask(struct mt_wire_client *c, struct mt_err *e)
{
    static const char *const final[] = {"stalled", "draining", "warming"};
    const char *health, *word = NULL;
    json_t *msg;

    if (mt_wire_send(c, json_pack("{s:i, s:s}", "metronome", MT_WIRE_VERSION, "type", "watch"),
                     NULL, 0, e) < 0 ||
        mt_wire_recv(c, &msg, e) <= 0)
        return NULL;
    health = json_string_value(json_object_get(msg, "health"));
    for (size_t i = 0; health && i < MT_COUNT(final); i++)
        if (!strcmp(health, final[i]))
            word = final[i];
    json_decref(msg);
    return word;
}

static const char *health(const char *socket, int64_t timeout_ns)
{
    struct mt_wire_client *c;
    struct mt_err e = {0};
    const char *word;

    if (mt_wire_connect(&c, socket, timeout_ns, &e) < 0)
        return NULL;
    word = ask(c, &e);
    mt_wire_disconnect(&c);
    return word;
}

int probe_check(int argc, char **argv)
{
    static const struct argp argp = {
        options,
        parse,
        NULL,
        "Send one frame of silence and time the answer. Prints one word: ok (exit 0), late, "
        "stalled, refused, dropped, error, untruthful, warming, draining, timeout (1), down (2). A "
        "server that says that it stands still, warms or drains is not sent one.",
        NULL,
        NULL,
        NULL};
    struct options o = {.timeout_ns = 10 * MT_NS_PER_S};
    struct mt_clock clock = mt_clock_real();
    struct mt_wire_client *c;
    struct mt_err e = {0};
    double ms = NAN;
    int64_t start;
    const char *word;

    argp_parse(&argp, argc, argv, 0, NULL, &o);
    signal(SIGPIPE, SIG_IGN);
    if (!(c = probe_connect(o.socket, o.timeout_ns))) {
        puts("down");
        return NO_SERVER;
    }
    start = clock.now_ns(&clock);
    word = health(o.socket, o.timeout_ns);
    if (!word)
        word = call(c, &ms, &e);
    if (!strcmp(word, "timeout")) { /* it may have stopped since */
        const char *now = health(o.socket, o.timeout_ns);

        word = now ? now : word;
    }
    mt_wire_disconnect(&c);
    puts(word);
    if (!strcmp(word, "error") || !strcmp(word, "timeout"))
        mt_msg(MT_ERROR, "%s", e.code ? e.text : "no record came that can be read");
    if (o.verbose && isfinite(ms))
        fprintf(stderr, "%s: %.1f ms for the frame, %.1f ms for the call\n", mt_msg_program_name(),
                ms, (double)(clock.now_ns(&clock) - start) / 1e6);
    return strcmp(word, "ok") ? MT_EXIT_FAILED : MT_EXIT_OK;
}
