/*
 * save.c: mt-probe save: have the server save a call, which goes on, under a name.
 */
#include "tools/probe/live.h"

#define ANSWER_NS (60 * MT_NS_PER_S)

struct options {
    const char *socket, *session, *name;
};

static const struct argp_option options[] = {
    {"socket", 's', "SOCKET", 0, "The server's Unix socket, or tcp:HOST:PORT", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *st)
{
    struct options *o = st->input;

    if (key == 's') {
        o->socket = arg;
    } else if (key == ARGP_KEY_ARG) {
        if (st->arg_num > 1)
            argp_error(st, "'%s': a session and a name are all", arg);
        *(st->arg_num ? &o->name : &o->session) = arg;
    } else if (key == ARGP_KEY_END && !o->socket) {
        argp_error(st, "-s SOCKET is missing");
    } else if (key == ARGP_KEY_END && !o->name) {
        argp_error(st, "SESSION and NAME are missing");
    } else {
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

int probe_save(int argc, char **argv)
{
    static const struct argp argp = {
        options, parse, "SESSION NAME", "Save a call of the server, which goes on.", NULL,
        NULL,    NULL};
    struct options o = {0};
    struct mt_wire_client *c;
    json_t *answer;

    argp_parse(&argp, argc, argv, 0, NULL, &o);
    if (!(c = probe_connect(o.socket, ANSWER_NS)))
        return MT_EXIT_FAILED;
    answer = probe_ask(c, json_pack("{s:i, s:s, s:s, s:s}", "metronome", MT_WIRE_VERSION, "type",
                                    "save", "session", o.session, "name", o.name));
    mt_wire_disconnect(&c);
    return answer && mt_json_line(stdout, answer) == 0 ? MT_EXIT_OK : MT_EXIT_FAILED;
}
