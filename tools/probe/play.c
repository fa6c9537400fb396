/*
 * play.c: mt-probe play: records in, what a listener hears out.
 */
#include "control/playout.h"
#include "tools/probe/live.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

struct options {
    const char *file;
    int64_t frame_ns, buffer_ns; /* buffer 0: the deadline */
    bool table;
};

static const struct argp_option options[] = {
    {"buffer", 'b', "D", 0,
     "Play an answer so long after its frame is complete (default: at the record's deadline)", 0},
    {"frame", 'F', "D", 0,
     "Length of a frame where the lines don't tell it (default: the record's deadline)", 0},
    {"format", 'f', "json|table", 0, "How to print (default: a table on a terminal, else json)", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *st)
{
    struct options *o = st->input;

    if (key == 'b') {
        o->buffer_ns = mt_arg_duration(st, "--buffer", arg);
    } else if (key == 'F') {
        o->frame_ns = mt_arg_duration(st, "--frame", arg);
    } else if (key == 'f') {
        o->table = mt_arg_table(st, arg);
    } else if (key == ARGP_KEY_ARG) {
        if (o->file)
            argp_error(st, "'%s': one file at a time", arg);
        o->file = arg;
    } else {
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

/* One object. 0, -EBADMSG for a broken one, or another errno. */
static int take(struct mt_playout *p, json_t *obj)
{
    const char *type = json_string_value(json_object_get(obj, "type"));
    const char *session = json_string_value(json_object_get(obj, "session"));
    json_t *rtt = json_object_get(obj, "rtt_ms");
    struct mt_record r;
    int rc;

    if (type && session && !strcmp(type, "opened"))
        return mt_playout_frame_length(p, session,
                                       json_number_value(json_object_get(obj, "frame_s")));
    rc = mt_wire_record_parse(obj, &r, &session);
    if (rc == -ENOMSG)
        return 0;
    if (rc < 0)
        return -EBADMSG;
    return mt_playout_add(
        p, &(struct mt_playout_frame){
               .session = session,
               .frame = r.frame,
               .status = r.status,
               /* The listener sits at the client: its own count of the time, where there is one. */
               .delay_ms = json_is_number(rtt) ? json_number_value(rtt) : r.latency_ms,
               .deadline_ms = r.deadline_ms,
               .tokens_out = r.tokens_out,
           });
}

static int take_line(void *ctx, const char *line, size_t n)
{
    json_t *obj = json_loadb(line, n, 0, NULL);
    int rc = json_is_object(obj) ? take(ctx, obj) : -EBADMSG;

    json_decref(obj);
    return rc;
}

static json_t *sums_json(const char *type, const struct mt_playout_sums *s)
{
    json_t *o = json_pack("{s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}", "type", type, "frames",
                          (json_int_t)s->frames, "heard", (json_int_t)s->heard, "silent",
                          (json_int_t)s->silent, "untruthful", (json_int_t)s->untruthful, "missing",
                          (json_int_t)s->missing, "repeated", (json_int_t)s->repeated, "gaps",
                          (json_int_t)s->gaps, "underruns", (json_int_t)s->underruns);

    mt_json_set_real(o, "gap_s", s->gap_s);
    mt_json_set_real(o, "longest_gap_s", s->longest_gap_s);
    mt_json_set_real(o, "underrun_ms", s->underrun_s * 1e3);
    mt_json_set_real(o, "longest_underrun_ms", s->longest_underrun_s * 1e3);
    return o;
}

static void print_row(const char *name, const struct mt_playout_sums *s)
{
    printf("%-12s %8" PRId64 " %8" PRId64 " %8" PRId64 " %6" PRId64 " %9.3f %9.3f %9" PRId64
           " %10.1f %10" PRId64 "\n",
           name, s->frames, s->heard, s->silent, s->gaps, s->gap_s, s->longest_gap_s, s->underruns,
           s->longest_underrun_s * 1e3, s->untruthful);
}

static int print(const struct options *o, const struct mt_playout *p)
{
    struct mt_playout_sums s;
    const char *name;
    json_t *line;
    size_t n = 0;
    int rc = 0;

    if (o->table)
        printf("%-12s %8s %8s %8s %6s %9s %9s %9s %10s %10s\n", "session", "frames", "heard",
               "silent", "gaps", "gap_s", "longest", "underruns", "longest_ms", "untruthful");
    for (; rc == 0 && (name = mt_playout_session(p, n, &s)); n++) {
        if (o->table) {
            print_row(name, &s);
            continue;
        }
        line = sums_json("play", &s);
        json_object_set_new(line, "session", json_string(name));
        rc = mt_json_line(stdout, line);
    }
    mt_playout_total(p, &s);
    if (o->table) {
        print_row("all", &s);
        return 0;
    }
    line = sums_json("play_total", &s);
    json_object_set_new(line, "sessions", json_integer((json_int_t)n));
    json_object_set_new(line, "refused", json_integer(s.refused));
    if (o->buffer_ns)
        mt_json_set_real(line, "buffer_ms", (double)o->buffer_ns / 1e6);
    return rc ? rc : mt_json_line(stdout, line);
}

int probe_play(int argc, char **argv)
{
    static const struct argp argp = {options,
                                     parse,
                                     "[FILE]",
                                     "Read frame records (FILE or standard input) and say what a "
                                     "listener heard of each session.",
                                     NULL,
                                     NULL,
                                     NULL};
    struct options o = {.table = isatty(STDOUT_FILENO)};
    struct mt_playout *p;
    int64_t broken = 0;
    int fd = STDIN_FILENO, rc;

    argp_parse(&argp, argc, argv, 0, NULL, &o);
    if (o.file && strcmp(o.file, "-") != 0 && (fd = open(o.file, O_RDONLY | O_CLOEXEC)) < 0) {
        mt_msg(MT_ERROR, "%s: %s", o.file, strerror(errno));
        return MT_EXIT_FAILED;
    }
    if ((rc = mt_playout_new(&p, (double)o.frame_ns / 1e9,
                             o.buffer_ns ? (double)o.buffer_ns / 1e9 : NAN)) == 0)
        rc = mt_lines_each(fd, MT_WIRE_LINE_MAX, take_line, p, &broken);
    if (fd != STDIN_FILENO)
        close(fd);
    if (rc < 0) {
        mt_msg(MT_ERROR, "%s: %s", fd == STDIN_FILENO ? "standard input" : o.file, strerror(-rc));
    } else {
        mt_playout_end(p);
        if (broken)
            mt_msg(MT_WARN, "%" PRId64 " broken lines", broken);
        rc = print(&o, p);
    }
    mt_playout_free(&p);
    return rc < 0 && rc != -EPIPE ? MT_EXIT_FAILED : MT_EXIT_OK;
}
