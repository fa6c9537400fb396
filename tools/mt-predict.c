/*
 * mt-predict: when does it collapse, how many will fit. With -m it answers from a model's shape and
 * a pool; without, from the frame records of a run. The options; each mode has a file in
 * tools/predict/, and the formulas are lib/control's.
 */
#include "engine/args.h"
#include "tools/predict/predict.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SESSIONS_MAX   1000000000
#define DEFAULT_TARGET 0.8

const char *argp_program_version = "mt-predict (metronome) " MT_VERSION;

enum {
    OPT_POOL = 256,
    OPT_KV,
    OPT_KV_TYPE,
    OPT_BLOCK,
    OPT_RATE,
    OPT_RHO0,
    OPT_PROMPT_TOKENS,
    OPT_STEP_TOKENS,
    OPT_FRAME,
    OPT_DEADLINE,
    OPT_COST,
    OPT_TARGET,
    OPT_MAX_SESSIONS,
    OPT_SHARED_SINKS,
    OPT_FORMAT,
};

static const struct argp_option options[] = {
    {"model", 'm', "MODEL", 0, "A known name, synth:NAME, a config.json or its directory", 1},
    {"pool", OPT_POOL, "SIZE", 0, "Memory for the KV cache, or a number of blocks: 512b", 1},
    {"sessions", 'n', "N", 0, "Sessions that run at once", 1},
    {"kv", OPT_KV, "POLICY", 0, "unbounded (default), or window=W[,sinks=S|prompt]", 2},
    {"kv-type", OPT_KV_TYPE, "TYPE", 0, "bf16 (default), f16, f32 or int8", 2},
    {"block", OPT_BLOCK, "TOKENS", 0, "Tokens in a block (default 16)", 2},
    {"shared-sinks", OPT_SHARED_SINKS, NULL, 0, "All sessions have the same sinks and share them",
     2},
    {"rate", OPT_RATE, "TOKENS", 0,
     "Tokens a second that one session adds (default: the model's audio in)", 3},
    {"frame", OPT_FRAME, "D", 0, "Length of a frame (default: the model's own)", 3},
    {"prompt-tokens", OPT_PROMPT_TOKENS, "N", 0, "Tokens a session starts with (default 0)", 3},
    {"step-tokens", OPT_STEP_TOKENS, "N", 0,
     "Most tokens a session adds in one step (default: a frame's audio)", 3},
    {"rho0", OPT_RHO0, "SHARE", 0, "Share of the pool in use already (default 0)", 3},
    {"cost", OPT_COST, "a=D,b=D", 0, "Time to serve a frame of N sessions: a + b N", 4},
    {"deadline", OPT_DEADLINE, "D", 0, "Deadline of a frame (default: its length)", 4},
    {"target", OPT_TARGET, "SHARE", 0, "Share of the deadline to plan for (default 0.8)", 4},
    {"max-sessions", OPT_MAX_SESSIONS, "N", 0, "Limit set by hand (default none)", 4},
    {"format", OPT_FORMAT, "FORMAT", 0, "json or table (default: table on a terminal)", 5},
    {"quiet", 'q', NULL, 0, "Errors only", 5},
    {0},
};

static const char doc[] =
    "Predict when a KV cache fills its pool and how many sessions fit.\v"
    "With -m the answer follows from the model's shape and the pool. Without it, frame records "
    "are read from FILE or standard input, and the answer is fitted to what was measured. "
    "Durations take ms, s, min or h (a bare number is seconds); sizes take K, M, G, KiB, MiB, GiB.";

/* ---- options ---- */

static void parse_cost(struct argp_state *st, struct opts *o, const char *arg)
{
    char *copy = strdup(arg), *cursor = copy, *key, *value;
    int64_t a = -1, b = -1;
    bool good = true;

    if (!copy)
        argp_failure(st, MT_EXIT_FAILED, errno, "--cost");
    while (good && mt_parse_pair(&cursor, &key, &value)) {
        int64_t *to = !strcmp(key, "a") ? &a : !strcmp(key, "b") ? &b : NULL;

        good = to && value && mt_parse_duration(value, to) == 0;
    }
    if (!good || a < 0 || b < 0)
        argp_error(st, "--cost: '%s' is not of the form a=20ms,b=1.5ms", arg);
    o->cost = (struct mt_cost){(double)a / 1e9, (double)b / 1e9};
    o->has_cost = true;
    free(copy);
}

/* The rules that need more than one option. */
static void check(struct argp_state *st, const struct opts *o)
{
    if (!o->model) {
        if (o->needs_model)
            argp_error(st, "--%s needs a model: -m NAME", o->needs_model);
        if (!o->file && isatty(STDIN_FILENO))
            argp_error(st, "nothing to predict from: give -m MODEL, or frame records in FILE or "
                           "on standard input");
        return;
    }
    if (o->file)
        argp_error(st, "-m MODEL and the records of '%s' exclude each other", o->file);
    if (!o->pool_bytes && !o->pool_blocks)
        argp_error(st, "--pool SIZE is missing");
    if (o->sessions < 0 && !o->kv.bounded)
        argp_error(st, "-n N is missing: an unbounded cache fills the pool at a pace of N");
    if (o->kv.sinks < 0 && o->prompt_tokens == 0)
        argp_error(st, "--kv: sinks=prompt needs --prompt-tokens");
    if (!o->has_cost && (o->deadline_ns || o->target != DEFAULT_TARGET))
        argp_error(st, "--deadline and --target need --cost a=D,b=D");
    if (o->max_sessions != MT_NO_LIMIT && !o->kv.bounded)
        argp_error(st, "--max-sessions needs --kv window=W: no limit bounds an unbounded cache");
    if (o->shared_sinks && !o->kv.bounded)
        argp_error(st, "--shared-sinks needs --kv window=W,sinks=S");
}

static error_t parse_opt(int key, char *arg, struct argp_state *st)
{
    struct opts *o = st->input;

    if ((key >= OPT_POOL && key < OPT_FORMAT) || key == 'n') {
        for (const struct argp_option *p = options; p->name && !o->needs_model; p++)
            if (p->key == key)
                o->needs_model = p->name;
    }
    switch (key) {
    case 'm':
        o->model = arg;
        return 0;
    case OPT_POOL:
        mt_arg_pool(st, arg, PREDICT_TOKENS_MAX, &o->pool_bytes, &o->pool_blocks);
        return 0;
    case 'n':
        o->sessions = mt_arg_i64(st, "--sessions", arg, 0, SESSIONS_MAX);
        return 0;
    case OPT_KV:
        mt_arg_kv(st, arg, &o->kv);
        return 0;
    case OPT_KV_TYPE:
        o->kv_type = mt_arg_kv_type(st, arg);
        return 0;
    case OPT_BLOCK:
        o->block = mt_arg_i64(st, "--block", arg, 1, 65536);
        return 0;
    case OPT_SHARED_SINKS:
        o->shared_sinks = true;
        return 0;
    case OPT_RATE:
        o->rate = mt_arg_double(st, "--rate", arg, 0, 1e9);
        return 0;
    case OPT_FRAME:
        o->frame_ns = mt_arg_duration(st, "--frame", arg);
        return 0;
    case OPT_PROMPT_TOKENS:
        o->prompt_tokens = mt_arg_i64(st, "--prompt-tokens", arg, 0, PREDICT_TOKENS_MAX);
        return 0;
    case OPT_STEP_TOKENS:
        o->step_tokens = mt_arg_i64(st, "--step-tokens", arg, 1, PREDICT_TOKENS_MAX);
        return 0;
    case OPT_RHO0:
        o->rho0 = mt_arg_double(st, "--rho0", arg, 0, 1);
        return 0;
    case OPT_COST:
        parse_cost(st, o, arg);
        return 0;
    case OPT_DEADLINE:
        o->deadline_ns = mt_arg_duration(st, "--deadline", arg);
        return 0;
    case OPT_TARGET:
        o->target = mt_arg_double(st, "--target", arg, 1e-6, 1);
        return 0;
    case OPT_MAX_SESSIONS:
        o->max_sessions = mt_arg_i64(st, "--max-sessions", arg, 1, SESSIONS_MAX);
        return 0;
    case OPT_FORMAT:
        o->table = mt_arg_table(st, arg);
        return 0;
    case 'q':
        mt_msg_level(MT_ERROR);
        return 0;
    case ARGP_KEY_ARG:
        if (o->file)
            argp_error(st, "one FILE at most, and '%s' is the second", arg);
        o->file = arg;
        return 0;
    case ARGP_KEY_END:
        check(st, o);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* At every exit, --help and --version included: what stdout lost makes the work fail. */
static void close_stdout(void)
{
    if (mt_close_stdout(MT_EXIT_OK) != MT_EXIT_OK)
        _exit(MT_EXIT_FAILED);
}

int main(int argc, char **argv)
{
    const struct argp argp = {
        .options = options, .parser = parse_opt, .args_doc = "[FILE]", .doc = doc};
    struct opts o = {.sessions = -1,
                     .kv_type = MT_BF16,
                     .block = 16,
                     .rate = NAN,
                     .target = DEFAULT_TARGET,
                     .max_sessions = MT_NO_LIMIT,
                     .table = isatty(STDOUT_FILENO)};

    mt_msg_program(argv[0]);
    signal(SIGPIPE, SIG_IGN);
    argp_err_exit_status = MT_EXIT_USAGE;
    atexit(close_stdout);
    argp_parse(&argp, argc, argv, 0, NULL, &o);
    return o.model ? predict_shape(&o) : predict_records(&o);
}
