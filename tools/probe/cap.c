/*
 * cap.c: mt-probe cap: set the number of sessions that the server admits, once or for each cap line
 * on stdin, which is the last link of a control loop: watch | mt-admit | cap.
 */
#include "tools/probe/live.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#define ANSWER_NS (10 * MT_NS_PER_S)

struct options {
    const char *socket;
    int64_t cap; /* -1: from stdin */
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
        if (st->arg_num > 0)
            argp_error(st, "'%s': one cap, or none for those on stdin", arg);
        if (mt_parse_i64(arg, 0, INT_MAX, &o->cap) < 0)
            argp_error(st, "'%s' is not a number of sessions in 0..%d", arg, INT_MAX);
    } else if (key == ARGP_KEY_END && !o->socket) {
        argp_error(st, "-s SOCKET is missing");
    } else {
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

/* The server's answer goes to stdout. 0 or a negative errno; what failed was printed. */
static int set_cap(struct mt_wire_client *c, int64_t cap, const char *mode)
{
    json_t *answer = probe_ask(c, json_pack("{s:i, s:s, s:I, s:s*}", "metronome", MT_WIRE_VERSION,
                                            "type", "cap", "cap", (json_int_t)cap, "mode", mode));

    return answer ? mt_json_line(stdout, answer) : -EPROTO;
}

struct follow {
    struct mt_wire_client *c;
    int failed; /* what the server or stdout said; it was printed */
};

static int take_line(void *ctx, const char *line, size_t n)
{
    struct follow *f = ctx;
    json_t *obj = json_loadb(line, n, 0, NULL);
    const char *type = json_string_value(json_object_get(obj, "type"));
    json_t *v = json_object_get(obj, "cap");
    int64_t cap = json_is_integer(v) ? json_integer_value(v) : -1;
    bool is_cap = type && !strcmp(type, "cap");
    bool broken = !json_is_object(obj) || (is_cap && (cap < 0 || cap > INT_MAX));

    if (is_cap && !broken)
        f->failed = set_cap(f->c, cap, json_string_value(json_object_get(obj, "mode")));
    json_decref(obj);
    if (broken)
        return -EBADMSG;
    return f->failed < 0 ? -ECANCELED : 0;
}

static int follow_stdin(struct mt_wire_client *c)
{
    struct follow f = {.c = c};
    int64_t broken = 0;
    int rc = mt_lines_each(STDIN_FILENO, MT_WIRE_LINE_MAX, take_line, &f, &broken);

    if (broken)
        mt_msg(MT_WARN, "%" PRId64 " broken lines on standard input", broken);
    if (rc < 0 && f.failed == 0)
        mt_msg(MT_ERROR, "standard input: %s", strerror(-rc));
    return f.failed < 0 ? f.failed : rc;
}

int probe_cap(int argc, char **argv)
{
    static const struct argp argp = {options,
                                     parse,
                                     "[N]",
                                     "Set the most sessions that the server admits: N, or each "
                                     "{\"type\":\"cap\",\"cap\":N} line on standard input.",
                                     NULL,
                                     NULL,
                                     NULL};
    struct options o = {.cap = -1};
    struct mt_wire_client *c;
    int rc;

    argp_parse(&argp, argc, argv, 0, NULL, &o);
    signal(SIGPIPE, SIG_IGN);
    if (!(c = probe_connect(o.socket, ANSWER_NS)))
        return MT_EXIT_FAILED;
    rc = o.cap >= 0 ? set_cap(c, o.cap, NULL) : follow_stdin(c);
    mt_wire_disconnect(&c);
    return rc < 0 && rc != -EPIPE ? MT_EXIT_FAILED : MT_EXIT_OK;
}
