/*
 * stats.c: mt-probe stats: one snapshot of the server, as a line for programs or a table for
 * people.
 */
#include "tools/probe/live.h"

#include <string.h>
#include <unistd.h>

#define ANSWER_NS (10 * MT_NS_PER_S)

struct options {
    const char *socket;
    bool table;
};

static const struct argp_option options[] = {
    {"socket", 's', "SOCKET", 0, "The server's Unix socket, or tcp:HOST:PORT", 0},
    {"format", 'f', "json|table", 0, "How to print (default: a table on a terminal, else json)", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *st)
{
    struct options *o = st->input;

    if (key == 's') {
        o->socket = arg;
    } else if (key == 'f') {
        o->table = mt_arg_table(st, arg);
    } else if (key == ARGP_KEY_ARG) {
        argp_error(st, "'%s': only a socket is asked (-s SOCKET)", arg);
    } else if (key == ARGP_KEY_END && !o->socket) {
        argp_error(st, "-s SOCKET is missing");
    } else {
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

/* A row for each number, with the members of inner objects as "outer.inner". */
static void print_rows(json_t *obj, const char *outer)
{
    const char *key;
    json_t *v;

    json_object_foreach(obj, key, v)
    {
        char name[80];

        snprintf(name, sizeof(name), "%s%s%s", outer, *outer ? "." : "", key);
        if (json_is_object(v) && !*outer)
            print_rows(v, key);
        else if (json_is_integer(v))
            printf("%-20s %" JSON_INTEGER_FORMAT "\n", name, json_integer_value(v));
        else if (json_is_real(v))
            printf("%-20s %.6g\n", name, json_real_value(v));
        else if (json_is_boolean(v))
            printf("%-20s %s\n", name, json_is_true(v) ? "yes" : "no");
        else if (json_is_string(v) && strcmp(key, "type") != 0)
            printf("%-20s %s\n", name, json_string_value(v));
    }
}

int probe_stats(int argc, char **argv)
{
    static const struct argp argp = {options, parse, NULL, "One snapshot of the server's counters.",
                                     NULL,    NULL,  NULL};
    struct options o = {.table = isatty(STDOUT_FILENO)};
    struct mt_wire_client *c;
    json_t *answer;

    argp_parse(&argp, argc, argv, 0, NULL, &o);
    if (!(c = probe_connect(o.socket, ANSWER_NS)))
        return MT_EXIT_FAILED;
    answer = probe_ask(c, json_pack("{s:i, s:s}", "metronome", MT_WIRE_VERSION, "type", "stats"));
    mt_wire_disconnect(&c);
    if (!answer)
        return MT_EXIT_FAILED;
    if (!o.table)
        return mt_json_line(stdout, answer) < 0 ? MT_EXIT_FAILED : MT_EXIT_OK;
    json_object_del(answer, "metronome");
    print_rows(answer, "");
    json_decref(answer);
    return MT_EXIT_OK;
}
