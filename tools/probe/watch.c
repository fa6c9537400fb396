/*
 * watch.c: mt-probe watch: everything that the server's watchers are told, until interrupted.
 */
#include "tools/probe/live.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

struct options {
    const char *socket;
    int64_t period_ns;
};

static const struct argp_option options[] = {
    {"socket", 's', "SOCKET", 0, "The server's Unix socket, or tcp:HOST:PORT", 0},
    {"period", 'p', "D", 0, "Time between status lines (default 1 s)", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *st)
{
    struct options *o = st->input;

    if (key == 's') {
        o->socket = arg;
    } else if (key == 'p') {
        o->period_ns = mt_arg_duration(st, "--period", arg);
        if (o->period_ns < 10 * MT_NS_PER_MS || o->period_ns > 3600 * MT_NS_PER_S)
            argp_error(st, "--period: '%s' is not in 10 ms..1 h", arg);
    } else if (key == ARGP_KEY_ARG) {
        argp_error(st, "'%s': only a socket is watched (-s SOCKET)", arg);
    } else if (key == ARGP_KEY_END && !o->socket) {
        argp_error(st, "-s SOCKET is missing");
    } else {
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

/* Each line was flushed when it was written, so nothing is left to do, wherever this comes. */
static void on_stop(int number)
{
    (void)number;
    _exit(MT_EXIT_OK);
}

int probe_watch(int argc, char **argv)
{
    static const struct argp argp = {
        options,
        parse,
        NULL,
        "Every frame record of the server, and a status line once a period, until interrupted.",
        NULL,
        NULL,
        NULL};
    struct options o = {.period_ns = MT_NS_PER_S};
    struct mt_wire_client *c;
    struct mt_err e = {0};
    json_t *msg;
    bool left = false, heard = false; /* our reader has; anything */
    int rc;

    argp_parse(&argp, argc, argv, 0, NULL, &o);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGINT, on_stop);
    signal(SIGTERM, on_stop);
    if (!(c = probe_connect(o.socket, 0)))
        return MT_EXIT_FAILED;
    msg = json_pack("{s:i, s:s, s:I}", "metronome", MT_WIRE_VERSION, "type", "watch", "period_ms",
                    (json_int_t)(o.period_ns / MT_NS_PER_MS));
    rc = mt_wire_send(c, msg, NULL, 0, &e);
    while (rc >= 0 && (rc = mt_wire_recv(c, &msg, &e)) > 0) {
        const char *why = json_string_value(json_object_get(msg, "error"));
        heard = true;
        bool refused = !strcmp(json_string_value(json_object_get(msg, "type")), "error");

        if (refused)
            rc = mt_err_set(&e, -EPROTO, "the server says: %s",
                            why ? why : "an error without a text");
        if (refused)
            json_decref(msg);
        else
            left = (rc = mt_json_line(stdout, msg)) == -EPIPE;
    }
    mt_wire_disconnect(&c);
    if (rc == 0 && !heard)
        rc = mt_err_set(&e, -EPROTO, "%s: the server closed the connection", o.socket);
    if (e.code)
        mt_msg(MT_ERROR, "%s", e.text);
    return rc < 0 && !left ? MT_EXIT_FAILED : MT_EXIT_OK;
}
