/*
 * mt-feed: audio files into sessions: calls on a server, each frame on its beat, one record a
 * frame; or one session's side of the wire onto stdout. Options and printing; the work is
 * lib/wire/feeder.h.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/args.h"
#include "wire/feed_args.h"

#define SESSIONS_MAX 1000000
#define HOLD_SAMPLES (INT64_C(64) << 20) /* 256 MiB of sound in memory */
#define WAIT_DEFAULT (60 * MT_NS_PER_S)
enum { NOTES_MAX = 10 };

enum {
    OPT_SECONDS = 256,
    OPT_FRAME,
    OPT_PACE,
    OPT_NO_PACE,
    OPT_SPEED,
    OPT_LOOP,
    OPT_ARRIVALS,
    OPT_DURATION,
    OPT_PHASE,
    OPT_TALK,
    OPT_PLAY,
    OPT_RAW,
    OPT_RATE,
    OPT_PROMPT,
    OPT_SEED,
    OPT_TEMPERATURE,
    OPT_TOP_K,
    OPT_TOP_P,
    OPT_WINDOW,
    OPT_ANSWER_TOKENS,
    OPT_TOKENS,
    OPT_TOLERATE,
    OPT_RETRY,
    OPT_LOAD,
    OPT_WAIT,
};

static const struct argp_option options[] = {
    {0, 0, 0, 0, "Where to:", 1},
    {"socket", 's', "SOCKET", 0,
     "Call the server on this Unix socket, or at tcp:HOST:PORT (default: write the wire to stdout)",
     0},
    {"sessions", 'n', "N", 0, "Sessions (default 1); session i begins with file i, counted round",
     0},
    {0, 0, 0, 0, "When:", 2},
    {"pace", OPT_PACE, 0, 0, "Send each frame when its sound has been spoken (default with -s)", 0},
    {"no-pace", OPT_NO_PACE, 0, 0, "Send as fast as the reader takes it (default without -s)", 0},
    {"speed", OPT_SPEED, "X", 0, "Let time pass X times as fast (default 1)", 0},
    {"seconds", OPT_SECONDS, "D", 0,
     "End every session when the run is this old; the files repeat until then", 0},
    {"loop", OPT_LOOP, 0, 0, "Repeat the files until interrupted", 0},
    {"arrivals", OPT_ARRIVALS, "HOW", 0,
     "all: at once (default); ramp:R, poisson:R: R sessions a second", 0},
    {"duration", OPT_DURATION, "HOW", 0,
     "fixed:D, exp:D (mean): how long a session sends, files repeat; file: its files once "
     "(default)",
     0},
    {"load", OPT_LOAD, "NAME", 0,
     "Go on with a call that the server has saved, with the sound that it has not heard yet; its "
     "seed and sampling are its own",
     0},
    {"retry", OPT_RETRY, 0, 0,
     "Offer a session that was refused again when the server asks it to, until it is admitted "
     "(default: refused is refused)",
     0},
    {"talk", OPT_TALK, "ON:OFF", 0,
     "Callers talk for ON and pause for OFF by turns, in the mean, in whole beats: nothing is sent "
     "in a pause (default: they never pause)",
     0},
    {"phase", OPT_PHASE, "HOW", 0,
     "Frames of the sessions: spread over the beat (default), locked in step, random", 0},
    {"frame", OPT_FRAME, "D", 0,
     "Frame length: with -s what the server must have, else the length of the pieces (20 ms, "
     "unpaced 1 s)",
     0},
    {"wait", OPT_WAIT, "D", 0,
     "Give up when the server owes a word and says nothing for so long (default 60 s, 0: never)",
     0},
    {0, 0, 0, 0, "Sound:", 3},
    {"raw", OPT_RAW, "FMT:RATE:CH", 0,
     "The files have no header: s16le, u8, s24le, s32le, f32le, f64le", 0},
    {"rate", OPT_RATE, "HZ", 0,
     "Sample rate to send (default: the files' highest, in 16000..24000)", 0},
    {"play", OPT_PLAY, "DIR", 0, "Write what the model speaks as DIR/i.wav, one file a session", 0},
    {0, 0, 0, 0, "What each session asks for:", 4},
    {"prompt", OPT_PROMPT, "TEXT", 0, "System prompt (default: the server's)", 0},
    {"seed", OPT_SEED, "N", 0,
     "Seed of every random choice; session i samples with N + i (default 1)", 0},
    {"temperature", OPT_TEMPERATURE, "T", 0, "Sampling temperature (default 0: greedy)", 0},
    {"top-k", OPT_TOP_K, "K", 0, "Sample from the K likeliest tokens (default 0: all)", 0},
    {"top-p", OPT_TOP_P, "P", 0, "Sample from the likeliest tokens that make up P (default 1: all)",
     0},
    {"window", OPT_WINDOW, "W", 0,
     "KV window in tokens, at most the server's (default: the server's)", 0},
    {"answer-tokens", OPT_ANSWER_TOKENS, "N", 0,
     "Longest answer to a frame, at most the server's (default: the server's)", 0},
    {"tokens", OPT_TOKENS, 0, 0, "Ask for token ids in the records", 0},
    {0, 0, 0, 0, "Other:", 5},
    {"tolerate", OPT_TOLERATE, 0, 0, "Exit 0 whatever the records say", 0},
    {"quiet", 'q', 0, 0, "No summary, only errors", 0},
    {"verbose", 'v', 0, 0, "Say when sessions open", 0},
    {0},
};

static const char doc[] = "Send audio files as calls to a speech model.\v"
                          "FILE is whatever libsndfile reads; - is standard input. With -s one "
                          "record a frame goes to stdout and a summary to "
                          "stderr. Durations take ms, s, min, h.";

struct args {
    struct mt_feed_opts feed;
    struct mt_raw_format raw;
    bool has_raw, sessions_given, speed_given, arrivals_given, duration_given, phase_given,
        wait_given, tolerate;
    int pace; /* -1: not given */
    enum mt_level level;
    char **files;
    int n_files;
    /* while it runs */
    struct mt_feed_totals totals;
    bool progress_shown;
    int notes;
};

/* What can't be honoured together is refused; then the defaults that depend on other options. */
static void settle(struct argp_state *st, struct args *a)
{
    struct mt_feed_opts *o = &a->feed;
    int dashes = 0;
    size_t line;
    char *text;
    json_t *open;

    if (a->n_files == 0)
        argp_error(st, "no FILE (- is standard input)");
    o->pace = a->pace < 0 ? o->socket != NULL : a->pace;
    if (!o->socket) {
        if (o->sessions > 1)
            argp_error(st, "--sessions: more than one session needs a server (-s SOCKET)");
        if (a->arrivals_given || a->phase_given || o->retry || o->load || o->play_dir ||
            a->tolerate || a->wait_given)
            argp_error(st, "%s needs a server (-s SOCKET)",
                       a->arrivals_given ? "--arrivals"
                       : a->phase_given  ? "--phase"
                       : o->retry        ? "--retry"
                       : o->load         ? "--load"
                       : o->play_dir     ? "--play"
                       : a->tolerate     ? "--tolerate"
                                         : "--wait");
    }
    if (o->load && o->sessions > 1)
        argp_error(st, "--load: one call, not --sessions %" PRId64, o->sessions);
    for (int i = 0; i < a->n_files && o->load; i++)
        if (!strcmp(a->files[i], "-"))
            argp_error(st, "--load: standard input has nothing that could be passed over");
    if (!o->pace && a->speed_given)
        argp_error(st, "--speed: without a pace there is no time to speed up");
    if (!o->pace && a->phase_given)
        argp_error(st, "--phase: without a pace there is no beat");
    if (o->talk_s > 0 && (!o->socket || !o->pace))
        argp_error(st, "--talk: pauses need a server and a pace");
    for (int i = 0; i < a->n_files && o->talk_s > 0; i++)
        if (!strcmp(a->files[i], "-"))
            argp_error(st, "--talk: standard input can't be told to pause");
    if (o->loop && a->duration_given)
        argp_error(st, "--loop: --duration says how long a session sends");
    if (o->duration != MT_LAST_FILE || (o->seconds > 0 && !a->duration_given))
        o->loop = true;
    for (int i = 0; i < a->n_files; i++)
        dashes += !strcmp(a->files[i], "-");
    if (dashes > 1)
        argp_error(st, "-: standard input can be read only once");
    open = mt_wire_open_json(&o->open);
    if (!open)
        argp_error(st, "--prompt: is not UTF-8");
    text = json_dumps(open, JSON_COMPACT);
    line = text ? strlen(text) : 0;
    free(text);
    json_decref(open);
    if (line > MT_WIRE_LINE_MAX - 64)
        argp_error(st, "--prompt: longer than a line of the wire may be (%d bytes)",
                   MT_WIRE_LINE_MAX);
}

static error_t parse(int key, char *arg, struct argp_state *st)
{
    struct args *a = st->input;
    struct mt_feed_opts *o = &a->feed;
    struct mt_err e = {0};

    switch (key) {
    case 's':
        o->socket = arg;
        break;
    case 'n':
        o->sessions = mt_arg_i64(st, "--sessions", arg, 1, SESSIONS_MAX);
        break;
    case OPT_SECONDS:
        o->seconds = (double)mt_arg_duration(st, "--seconds", arg) / 1e9;
        break;
    case OPT_FRAME:
        o->frame_ns = mt_arg_duration(st, "--frame", arg);
        if (o->frame_ns < MT_NS_PER_MS || o->frame_ns > 600 * MT_NS_PER_S)
            argp_error(st, "--frame: '%s' is not in 1 ms..10 min", arg);
        break;
    case OPT_PACE:
    case OPT_NO_PACE:
        if (a->pace >= 0 && a->pace != (key == OPT_PACE))
            argp_error(st, "--pace and --no-pace exclude each other");
        a->pace = key == OPT_PACE;
        break;
    case OPT_SPEED:
        o->speed = mt_arg_double(st, "--speed", arg, 0.001, 1000);
        a->speed_given = true;
        break;
    case OPT_LOOP:
        o->loop = true;
        break;
    case OPT_ARRIVALS:
        mt_arg_arrivals(st, arg, o);
        a->arrivals_given = true;
        break;
    case OPT_DURATION:
        mt_arg_calls_last(st, arg, o);
        a->duration_given = true;
        break;
    case OPT_PHASE:
        mt_arg_phase(st, arg, o);
        a->phase_given = true;
        break;
    case OPT_TALK:
        mt_arg_talk(st, arg, o);
        break;
    case OPT_PLAY:
        o->play_dir = arg;
        break;
    case OPT_RAW:
        if (mt_raw_format_parse(arg, &a->raw, &e) < 0)
            argp_error(st, "--raw: %s", e.text);
        a->has_raw = true;
        break;
    case OPT_RATE:
        o->open.rate_hz = (int)mt_arg_i64(st, "--rate", arg, MT_WIRE_RATE_MIN, MT_WIRE_RATE_MAX);
        break;
    case OPT_PROMPT:
        o->open.system = arg;
        break;
    case OPT_SEED:
        o->seed = (uint64_t)mt_arg_i64(st, "--seed", arg, 0, INT64_MAX);
        break;
    case OPT_TEMPERATURE:
        o->open.session.temperature = (float)mt_arg_double(st, "--temperature", arg, 0, 100);
        break;
    case OPT_TOP_K:
        o->open.session.top_k = (int)mt_arg_i64(st, "--top-k", arg, 0, INT_MAX);
        break;
    case OPT_TOP_P:
        o->open.session.top_p = (float)mt_arg_double(st, "--top-p", arg, 1e-6, 1);
        break;
    case OPT_WINDOW:
        o->open.session.window = mt_arg_i64(st, "--window", arg, 1, INT64_MAX);
        break;
    case OPT_ANSWER_TOKENS:
        o->open.session.answer_tokens = (int)mt_arg_i64(st, "--answer-tokens", arg, 1, INT_MAX);
        break;
    case OPT_TOKENS:
        o->open.tokens = true;
        break;
    case OPT_TOLERATE:
        a->tolerate = true;
        break;
    case OPT_LOAD:
        o->load = arg;
        break;
    case OPT_RETRY:
        o->retry = true;
        break;
    case OPT_WAIT:
        o->wait_ns = mt_arg_duration0(st, "--wait", arg);
        a->wait_given = true;
        break;
    case 'q':
        a->level = MT_ERROR;
        break;
    case 'v':
        a->level = MT_DEBUG;
        break;
    case ARGP_KEY_ARGS:
        a->files = st->argv + st->next;
        a->n_files = st->argc - st->next;
        break;
    case ARGP_KEY_END:
        settle(st, a);
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static const struct argp argp = {options, parse, "FILE...", doc, 0, 0, 0};
const char *argp_program_version = "mt-feed (metronome) " MT_VERSION;

/* ---- while it runs ---- */

static void clear_progress(struct args *a)
{
    if (a->progress_shown)
        fputs("\r\033[K", stderr);
    a->progress_shown = false;
}

static int on_line(void *ctx, json_t *obj)
{
    (void)ctx;
    return mt_json_line(stdout, obj);
}

static void on_note(void *ctx, enum mt_level level, const char *text)
{
    struct args *a = ctx;

    clear_progress(a);
    if (level >= MT_DEBUG || a->notes < NOTES_MAX)
        mt_msg(level, "%s", text);
    else if (a->notes == NOTES_MAX)
        mt_msg(level, "more of that kind is counted, not shown");
    if (level < MT_DEBUG)
        a->notes++;
}

static void on_progress(void *ctx, double run_s)
{
    struct args *a = ctx;
    const int64_t *f = a->totals.frames;

    fprintf(stderr, "\r\033[K%.0f s: %" PRId64 " sessions", run_s,
            a->totals.active - a->totals.waiting);
    if (a->feed.retry)
        fprintf(stderr, " and %" PRId64 " that wait", a->totals.waiting);
    fprintf(stderr,
            ", %" PRId64 " frames sent: %" PRId64 " ok, %" PRId64 " late, %" PRId64
            " stalled, %" PRId64 " other",
            a->totals.sent, f[MT_OK], f[MT_LATE], f[MT_STALLED],
            f[MT_DROPPED] + f[MT_REFUSED] + f[MT_FAILED]);
    fflush(stderr);
    a->progress_shown = true;
}

/* The first line: what this run was. */
static json_t *run_line(const struct args *a, const struct mt_reel *reel)
{
    const struct mt_feed_opts *o = &a->feed;
    json_t *h =
        json_pack("{s:i, s:s, s:s, s:I, s:i, s:I, s:b, s:i, s:s}", "metronome", MT_WIRE_VERSION,
                  "tool", "mt-feed", "version", MT_VERSION, "sessions", (json_int_t)o->sessions,
                  "files", a->n_files, "seed", (json_int_t)o->seed, "pace", o->pace, "rate",
                  o->open.rate_hz, "format", mt_reel_pcm(reel) == MT_PCM_F32LE ? "f32le" : "s16le");

    if (!h)
        return NULL;
    if (o->pace) {
        mt_json_set_real(h, "speed", o->speed);
        json_object_set_new(h, "phase", json_string(mt_phase_name(o->phase)));
    }
    if (o->seconds > 0)
        mt_json_set_real(h, "seconds", o->seconds);
    json_object_set_new(h, "loop", json_boolean(o->loop));
    json_object_set_new(h, "arrivals", json_string(mt_arrivals_name(o->arrivals)));
    if (o->arrivals != MT_ARRIVE_ALL)
        mt_json_set_real(h, "arrivals_per_s", o->arrivals_per_s);
    json_object_set_new(h, "retry", json_boolean(o->retry));
    json_object_set_new(h, "duration", json_string(mt_calls_last_name(o->duration)));
    if (o->duration != MT_LAST_FILE)
        mt_json_set_real(h, "duration_s", o->duration_s);
    return h;
}

static double hist_ms(const struct mt_hist *h, double q)
{
    return (double)mt_hist_quantile(h, q) / 1e6;
}

static void summary(const struct args *a)
{
    const struct mt_feed_totals *t = &a->totals;
    char counts[200] = "";
    size_t n = 0;

    for (int i = 0; i < (int)MT_COUNT(t->frames); i++)
        if (t->frames[i] || i == MT_OK)
            n += (size_t)snprintf(counts + n, sizeof(counts) - n, "%s %s %" PRId64, n ? "," : "",
                                  mt_status_name((enum mt_status)i), t->frames[i]);
    mt_msg(MT_INFO, "%" PRId64 " sessions, %" PRId64 " frames in %.1f s:%s", t->opened, t->sent,
           t->run_s, counts);
    if (t->rtt.count > 0)
        mt_msg(MT_INFO,
               "latency p50 %.1f ms, p99 %.1f ms, max %.1f ms; round trip p50 %.1f ms, p99 %.1f "
               "ms, max %.1f ms",
               hist_ms(&t->latency, 0.5), hist_ms(&t->latency, 0.99), hist_ms(&t->latency, 1),
               hist_ms(&t->rtt, 0.5), hist_ms(&t->rtt, 0.99), hist_ms(&t->rtt, 1));
    if (t->behind.count > 0)
        mt_msg(MT_INFO, "frames went out after their time by p50 %.2f ms, p99 %.2f ms, max %.2f ms",
               hist_ms(&t->behind, 0.5), hist_ms(&t->behind, 0.99), hist_ms(&t->behind, 1));
    if (t->first_stall_s >= 0)
        mt_msg(MT_INFO, "first stall %.1f s after the start", t->first_stall_s);
    if (t->retries)
        mt_msg(MT_INFO, "%" PRId64 " offers refused and made again", t->retries);
    if (t->refused)
        mt_msg(MT_INFO, "%" PRId64 " sessions refused", t->refused);
    if (t->cut)
        mt_msg(MT_INFO, "%" PRId64 " sessions closed by the server before their end", t->cut);
    if (t->broken)
        mt_msg(MT_INFO, "%" PRId64 " connections failed or broke", t->broken);
    if (t->unanswered)
        mt_msg(MT_INFO, "%" PRId64 " frames never answered", t->unanswered);
    if (t->untruthful)
        mt_msg(MT_WARN, "%" PRId64 " frames say ok, and nothing was decoded for them",
               t->untruthful);
    if (a->feed.play_dir && !t->spoke && t->opened)
        mt_msg(MT_WARN, "--play: the server answered in text only, nothing was spoken");
}

static int verdict(const struct args *a)
{
    const struct mt_feed_totals *t = &a->totals;
    int64_t bad = t->cut;

    for (int i = 0; i < (int)MT_COUNT(t->frames); i++)
        if (i != MT_OK && i != MT_LATE)
            bad += t->frames[i];
    if (t->broken || t->unexpected || t->source_failed)
        return MT_EXIT_FAILED;
    return bad && !a->tolerate ? MT_EXIT_FAILED : MT_EXIT_OK;
}

/* The files, opened and looked at. */
static int open_reel(struct args *a, struct mt_reel **reel, struct mt_err *e)
{
    const char *const *files = (const char *const *)a->files;
    const struct mt_raw_format *raw = a->has_raw ? &a->raw : NULL;

    if (!a->feed.open.rate_hz)
        a->feed.open.rate_hz = mt_reel_rate(files, a->n_files, raw);
    struct mt_reel_opts ro = {
        .rate_hz = a->feed.open.rate_hz,
        .raw = raw,
        .shared = a->feed.sessions > 1 || a->feed.loop,
        .repeat = a->feed.loop,
        .hold_samples = HOLD_SAMPLES,
        .note = on_note,
        .ctx = a,
    };

    return mt_reel_open(reel, files, a->n_files, &ro, e);
}

static int run(struct args *a)
{
    struct mt_reel *reel = NULL;
    struct mt_err e = {0};
    int rc, status;

    if (a->feed.play_dir && mkdir(a->feed.play_dir, 0777) < 0 && errno != EEXIST) {
        mt_msg(MT_ERROR, "--play: %s: %s", a->feed.play_dir, strerror(errno));
        return MT_EXIT_FAILED;
    }
    if ((rc = open_reel(a, &reel, &e)) < 0) {
        mt_msg(MT_ERROR, "%s", e.code ? e.text : strerror(-rc));
        return MT_EXIT_FAILED;
    }
    a->feed.open.format = mt_reel_pcm(reel);
    if (a->feed.socket) {
        /*
         * Records wait here while their reader is busy; a full pipe would hold back the beat. No
         * pipe, no harm.
         */
        fcntl(STDOUT_FILENO, F_SETPIPE_SZ, 1 << 20);
        rc = mt_json_line(stdout, run_line(a, reel));
        if (rc == 0)
            rc = mt_feed_socket(reel, &a->feed, &a->totals, &e);
        clear_progress(a);
        if (e.code)
            mt_msg(MT_ERROR, "%s", e.text);
        if (a->totals.opened || a->totals.refused)
            summary(a);
        status = rc < 0 && rc != -EPIPE ? MT_EXIT_FAILED : verdict(a);
    } else {
        rc = mt_feed_pipe(reel, &a->feed, STDOUT_FILENO, &a->totals, &e);
        if (e.code)
            mt_msg(MT_ERROR, "%s", e.text);
        else if (rc < 0 && rc != -EPIPE && rc != -EINTR)
            mt_msg(MT_ERROR, "standard output: %s", strerror(-rc));
        status = (rc < 0 && rc != -EPIPE) || a->totals.source_failed ? MT_EXIT_FAILED : MT_EXIT_OK;
    }
    mt_reel_close(&reel);
    return status;
}

int main(int argc, char **argv)
{
    struct args a = {
        .feed = {.sessions = 1,
                 .speed = 1,
                 .seed = 1,
                 .wait_ns = WAIT_DEFAULT,
                 .line = on_line,
                 .note = on_note},
        .pace = -1,
        .level = MT_INFO,
    };

    mt_msg_program(argv[0]);
    mt_close_stdout_at_exit();
    mt_session_defaults(&a.feed.open.session);
    argp_err_exit_status = MT_EXIT_USAGE;
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    mt_msg_level(a.level);
    a.feed.ctx = &a;
    if (a.level >= MT_INFO && isatty(STDERR_FILENO))
        a.feed.progress = on_progress;
    return mt_close_stdout(run(&a));
}
