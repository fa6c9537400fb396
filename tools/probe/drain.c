/*
 * drain.c: mt-probe drain: a server takes no more calls, and those that are there end in their own
 * time; what a service manager or a proxy's operator waits for before a server is stopped.
 */
#include "tools/probe/live.h"

#define ANSWER_NS (10 * MT_NS_PER_S)
#define LOOK_NS   (100 * MT_NS_PER_MS)

struct options {
    const char *socket;
    int64_t wait_ns; /* -1: not, 0: for ever */
};

static const struct argp_option options[] = {
    {"socket", 's', "SOCKET", 0, "The server's Unix socket, or tcp:HOST:PORT", 0},
    {"wait", 'w', "D", 0, "Wait for the last call to end, for so long at most (0: for ever)", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *st)
{
    struct options *o = st->input;

    if (key == 's') {
        o->socket = arg;
    } else if (key == 'w') {
        o->wait_ns = mt_arg_duration0(st, "--wait", arg);
    } else if (key == ARGP_KEY_ARG) {
        argp_error(st, "'%s': only a socket is drained (-s SOCKET)", arg);
    } else if (key == ARGP_KEY_END && !o->socket) {
        argp_error(st, "-s SOCKET is missing");
    } else {
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static json_t *ask(struct mt_wire_client *c, const char *type)
{
    return probe_ask(c, json_pack("{s:i, s:s}", "metronome", MT_WIRE_VERSION, "type", type));
}

/* Until nobody is there. An exit status. */
static int wait_for_end(struct mt_wire_client *c, int64_t wait_ns)
{
    struct mt_clock clock = mt_clock_real();
    int64_t start = clock.now_ns(&clock);

    for (;;) {
        json_t *stats = ask(c, "stats");
        json_int_t left = json_integer_value(json_object_get(stats, "sessions"));
        int64_t now = clock.now_ns(&clock);

        if (!stats)
            return MT_EXIT_FAILED;
        json_decref(stats);
        if (left == 0)
            return MT_EXIT_OK;
        if (wait_ns > 0 && now - start >= wait_ns) {
            mt_msg(MT_ERROR, "after %g s %lld calls are still there", (double)wait_ns / 1e9,
                   (long long)left);
            return MT_EXIT_FAILED;
        }
        clock.sleep_until_ns(&clock, now + LOOK_NS);
    }
}

int probe_drain(int argc, char **argv)
{
    static const struct argp argp = {
        options, parse,
        NULL,    "Have the server take no more calls; those that are there go on to their end.",
        NULL,    NULL,
        NULL};
    struct options o = {.wait_ns = -1};
    int status = MT_EXIT_FAILED;
    struct mt_wire_client *c;
    json_t *answer;

    argp_parse(&argp, argc, argv, 0, NULL, &o);
    if (!(c = probe_connect(o.socket, ANSWER_NS)))
        return MT_EXIT_FAILED;
    answer = ask(c, "drain");
    if (answer && mt_json_line(stdout, answer) >= 0)
        status = o.wait_ns < 0 ? MT_EXIT_OK : wait_for_end(c, o.wait_ns);
    mt_wire_disconnect(&c);
    return status;
}
