/*
 * mt-predict: when does it collapse, how likely, how many will fit. From a model's shape (or a bare
 * rate) and a pool, or from the frame records of a run, afterwards or as they come. The options;
 * each mode has a file in tools/predict/, and the formulas are lib/control's.
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
#define DEFAULT_WINDOW (60 * MT_NS_PER_S)
#define DEFAULT_BATCH  (10 * MT_NS_PER_S)

const char *argp_program_version = "mt-predict (metronome) " MT_VERSION;

enum {
    OPT_POOL = 256,
    OPT_MEMORY,
    OPT_TOWER,
    OPT_KV,
    OPT_KV_TYPE,
    OPT_BLOCK,
    OPT_RATE,
    OPT_RHO0,
    OPT_PROMPT_TOKENS,
    OPT_STEP_TOKENS,
    OPT_COST,
    OPT_MAX_SESSIONS,
    OPT_SHARED_SINKS,
    OPT_RETIRE,
    OPT_ARRIVALS,
    OPT_DURATION,
    OPT_CAP,
    OPT_HORIZON,
    OPT_RISK,
    OPT_MONTE_CARLO,
    OPT_FROM,
    OPT_RUNS,
    OPT_PRECISION,
    OPT_SEED,
    OPT_RECOMPUTE,
    OPT_EVICT,
    OPT_REFUSED,
    OPT_RETRIED,
    OPT_QUALITY,
    OPT_TOKEN_COST,
    OPT_FRAME, /* from here on without a pool, too */
    OPT_DEADLINE,
    OPT_TARGET,
    OPT_LIVE,
    OPT_WINDOW,
    OPT_BATCH,
    OPT_FIT,
    OPT_MIXED,
    OPT_FORMAT,
};

static const struct argp_option options[] = {
    {"model", 'm', "MODEL", 0,
     "A known name, synth:NAME, a config.json or its directory, or a GGUF file", 1},
    {"pool", OPT_POOL, "SIZE", 0, "Memory for the KV cache, or a number of blocks: 512b", 1},
    {"memory", OPT_MEMORY, "total=SIZE,…", 0,
     "The pool as what is left of a device: total=SIZE[,use=SHARE][,weights=SIZE][,other=SIZE]", 1},
    {"sessions", 'n', "N", 0, "Sessions that run at once", 1},
    {"kv", OPT_KV, "POLICY", 0, "unbounded (default), or window=W[,sinks=S|prompt]", 2},
    {"kv-type", OPT_KV_TYPE, "TYPE", 0, "bf16 (default), f16, f32, int8 or fp8", 2},
    {"block", OPT_BLOCK, "TOKENS", 0, "Tokens in a block (default 16)", 2},
    {"shared-sinks", OPT_SHARED_SINKS, NULL, 0, "All sessions have the same sinks and share them",
     2},
    {"retire", OPT_RETIRE, "HOW", 0,
     "How a window frees what left it: whole blocks (whole, the default: the cautious count), or "
     "in place as mt-serve does (in-place)",
     2},
    {"rate", OPT_RATE, "TOKENS", 0,
     "Tokens a second that one session adds (default: the model's audio in)", 3},
    {"tower", OPT_TOWER, "token=SIZE,rate=R[,share=U]", 0,
     "Another tower: bytes a token, tokens a second, and share of the time it adds them", 3},
    {"frame", OPT_FRAME, "D", 0, "Length of a frame (default: the model's own)", 3},
    {"prompt-tokens", OPT_PROMPT_TOKENS, "N", 0, "Tokens a session starts with (default 0)", 3},
    {"step-tokens", OPT_STEP_TOKENS, "N", 0,
     "Most tokens a session adds in one step (default: a frame's audio)", 3},
    {"rho0", OPT_RHO0, "SHARE", 0, "Share of the pool in use already (default 0)", 3},
    {"cost", OPT_COST, "a=D,b=D", 0, "Time to serve a frame of N sessions: a + b N", 4},
    {"deadline", OPT_DEADLINE, "D", 0, "Deadline of a frame (default: its length)", 4},
    {"target", OPT_TARGET, "SHARE", 0, "Share of the deadline to plan for (default 0.8)", 4},
    {"quality", OPT_QUALITY, "FILE", 0,
     "Output of mt-probe quality (- is stdin): what each of its settings costs and how many "
     "sessions it holds",
     4},
    {"token-cost", OPT_TOKEN_COST, "D", 0,
     "With --quality: time that a resident token adds to a frame, on top of b (default 0)", 4},
    {"max-sessions", OPT_MAX_SESSIONS, "N", 0, "Limit set by hand (default none)", 4},
    {"arrivals", OPT_ARRIVALS, "R", 0,
     "Calls a second (or 6/min, 90/h): [poisson:]R, with --duration; or ramp:R on top of -n", 5},
    {"duration", OPT_DURATION, "LAW", 0,
     "How long calls last: exp:D, fixed:D, lognormal:D,sigma=X or pareto:D,alpha=X; D is the mean",
     5},
    {"cap", OPT_CAP, "M", 0, "Most sessions that are admitted (default: all)", 5},
    {"horizon", OPT_HORIZON, "D", 0, "Time that a risk is stated for (default 1h)", 5},
    {"risk", OPT_RISK, "SHARE", 0, "How many sessions at this risk, such as 1%", 5},
    {"monte-carlo", OPT_MONTE_CARLO, NULL, 0, "Play it: the chance of a hit within the horizon", 6},
    {"from", OPT_FROM, "STATE", 0,
     "Where a run starts: empty (default), steady, or a time D after empty", 6},
    {"runs", OPT_RUNS, "N", 0, "Most runs (default 100000)", 6},
    {"precision", OPT_PRECISION, "SHARE", 0,
     "Stop when the interval is within this share of the chance (default 0.1; 0: all runs)", 6},
    {"seed", OPT_SEED, "N", 0, "Seed of the runs (default 1)", 6},
    {"recompute", OPT_RECOMPUTE, "D", 0,
     "Time to compute an evicted token again: what is behind the wall (with -n and --cost)", 7},
    {"evict", OPT_EVICT, "TOKENS", 0, "Tokens of one eviction (default: a session's share)", 7},
    {"refused", OPT_REFUSED, "SHARE", 0, "Share of the calls that is refused (default: by --cap)",
     7},
    {"retried", OPT_RETRIED, "SHARE", 0, "Share of the refused that call again", 7},
    {"live", OPT_LIVE, NULL, 0,
     "Records as they come, one line a batch, in fixed memory: no fit of all at the end", 8},
    {"window", OPT_WINDOW, "D", 0, "Time that the live fit looks back (default 60s)", 8},
    {"batch", OPT_BATCH, "D", 0, "Length of its batches (default 10s)", 8},
    {"fit", OPT_FIT, NULL, 0, "Fit the cost of a frame, a + b N, to records or pairs", 8},
    {"mixed", OPT_MIXED, "period=D,cost=D[,piece=D]", 0,
     "One class of frames on a shared device; give each: do they go together?", 8},
    {"format", OPT_FORMAT, "FORMAT", 0, "json or table (default: table on a terminal)", 9},
    {"quiet", 'q', NULL, 0, "Errors only", 9},
    {0},
};

static const char doc[] =
    "Predict when a KV cache fills its pool and how many sessions fit.\v"
    "With -m the answer follows from the model's shape and the pool; a --rate and a --pool in "
    "blocks do as well. Without, frame records are read from FILE or standard input, and the "
    "answer is fitted to what was measured. "
    "Durations take ms, s, min or h (a bare number is seconds); sizes take K, M, G, KiB, MiB, GiB.";

/* ---- options ---- */

/* Whether the answer comes from a shape or a rate, not from records. */
static bool from_pool(const struct opts *o)
{
    return o->model || (o->pool_blocks && !isnan(o->rate));
}

/* The rules for calls that come and go. */
static void check_open(struct argp_state *st, const struct opts *o)
{
    bool exponential = o->has_duration && o->duration.kind == MT_LAW_EXP;

    if (o->arrive == ARRIVE_POISSON && !o->has_duration)
        argp_error(st, "--arrivals needs --duration LAW: how long the calls last");
    if (o->arrive == ARRIVE_POISSON && o->sessions >= 0)
        argp_error(st, "-n and --arrivals exclude each other: arrivals and durations set the "
                       "number (ramp:R starts from -n)");
    if (o->arrive == ARRIVE_RAMP && (o->sessions < 0 || o->has_duration || o->kv.bounded))
        argp_error(st, "--arrivals ramp:R needs -n N, where it starts, and is for an unbounded "
                       "cache without --duration: nobody leaves");
    if (o->cap != MT_NO_LIMIT && o->arrive == ARRIVE_NONE && !o->kv.bounded)
        argp_error(st, "--cap needs --arrivals R");
    if (o->has_duration && !o->kv.bounded && o->prompt_tokens > 0)
        argp_error(st, "--prompt-tokens and --duration exclude each other: the formulas for calls "
                       "that come and go take them to start empty");
    if (o->kv.bounded && (o->risk > 0 || o->monte_carlo || o->recompute_ns >= 0))
        argp_error(st, "--risk, --monte-carlo and --recompute are for an unbounded cache: a window "
                       "never overruns the pool");
    if (o->risk > 0 && !exponential)
        argp_error(st, "--risk needs --duration exp:D: for other laws there is --monte-carlo");
    if (o->monte_carlo && (!o->has_duration || (o->arrive == ARRIVE_NONE && o->sessions < 1)))
        argp_error(st, "--monte-carlo needs --duration LAW, and --arrivals R or -n N");
    if (o->needs_monte_carlo && !o->monte_carlo)
        argp_error(st, "--%s needs --monte-carlo", o->needs_monte_carlo);
    if (o->has_horizon && !o->has_duration)
        argp_error(st, "--horizon needs --duration LAW");
    if (o->recompute_ns >= 0 && (!o->has_cost || o->sessions < 1))
        argp_error(st, "--recompute needs -n N and --cost a=D,b=D");
    if (o->evicted > 0 && o->recompute_ns < 0)
        argp_error(st, "--evict needs --recompute D");
    if (isnan(o->retried) != isnan(o->refused) &&
        !(isnan(o->refused) && o->arrive == ARRIVE_POISSON && o->cap != MT_NO_LIMIT))
        argp_error(st, "--retried and --refused need each other, or --retried a --cap with "
                       "--arrivals, which refuses");
}

/* The rules for a pool. */
static void check_pool(struct argp_state *st, const struct opts *o)
{
    if (o->token_cost_ns >= 0 && !(o->quality && o->has_cost))
        argp_error(st, "--token-cost needs --quality FILE and --cost a=D,b=D");
    if (o->quality && (o->kv.bounded || o->arrive != ARRIVE_NONE || o->has_duration))
        argp_error(st,
                   "--quality has the windows: --kv, --arrivals and --duration don't go with it");
    if (o->quality && !o->model)
        argp_error(st, "--quality needs -m MODEL");
    if (o->file)
        argp_error(st, "-m MODEL and the records of '%s' exclude each other", o->file);
    if (!o->pool_bytes && !o->pool_blocks)
        argp_error(st, "--pool SIZE is missing");
    if (!o->quality && o->sessions < 0 && !o->kv.bounded && o->arrive == ARRIVE_NONE &&
        o->risk == 0)
        argp_error(st, "-n N is missing: an unbounded cache fills the pool at a pace of N");
    if (o->kv.sinks < 0 && o->prompt_tokens == 0)
        argp_error(st, "--kv: sinks=prompt needs --prompt-tokens");
    if (!o->has_cost && (o->deadline_ns || o->target != DEFAULT_TARGET))
        argp_error(st, "--deadline and --target need --cost a=D,b=D");
    if (o->max_sessions != MT_NO_LIMIT && !o->kv.bounded && !o->quality)
        argp_error(st, "--max-sessions needs --kv window=W: no limit bounds an unbounded cache");
    if (o->n_towers > 0 && (!o->model || o->kv.bounded || o->sessions < 0))
        argp_error(st, "--tower needs -m MODEL, -n N and an unbounded cache");
    if (o->shared_sinks && !o->kv.bounded && !o->quality)
        argp_error(st, "--shared-sinks needs --kv window=W,sinks=S");
    if (o->live || o->fit_cost || o->n_mixed)
        argp_error(st, "--live, --fit and --mixed don't go with a pool");
    check_open(st, o);
}

/* The rules that need more than one option. */
static void check(struct argp_state *st, const struct opts *o)
{
    if (from_pool(o)) {
        check_pool(st, o);
        return;
    }
    if (o->needs_model)
        argp_error(st, "--%s needs a model: -m NAME (or --rate and --pool in blocks)",
                   o->needs_model);
    if (o->live + o->fit_cost + (o->n_mixed > 0) > 1)
        argp_error(st, "--live, --fit and --mixed exclude each other");
    if (o->frame_ns && !o->fit_cost)
        argp_error(st, "--frame needs a model: -m NAME, or --fit");
    if (o->deadline_ns && !o->fit_cost)
        argp_error(st, "--deadline needs a model: -m NAME, or --fit");
    if (o->target != DEFAULT_TARGET && !o->live && !(o->fit_cost && o->deadline_ns))
        argp_error(st, "--target needs --live, or --fit with --deadline, or a model: -m NAME");
    if (o->fit_cost && (o->window_ns != DEFAULT_WINDOW || o->batch_ns != DEFAULT_BATCH))
        argp_error(st, "--window and --batch are those of the live fit, not of --fit");
    if (o->window_ns / o->batch_ns < MT_LIVE_BATCHES_MIN ||
        o->window_ns / o->batch_ns > MT_LIVE_BATCHES_MAX)
        argp_error(st, "--window: not %d to %d times --batch", MT_LIVE_BATCHES_MIN,
                   MT_LIVE_BATCHES_MAX);
    if (o->n_mixed > 0 && o->file)
        argp_error(st, "--mixed reads no records, and '%s' is one too many", o->file);
    if (!o->n_mixed && !o->file && isatty(STDIN_FILENO))
        argp_error(st, "nothing to predict from: give -m MODEL, or frame records in FILE or "
                       "on standard input");
}

static const char *const retire_words[] = {"in-place", "whole"}; /* enum mt_retire */

static error_t parse_opt(int key, char *arg, struct argp_state *st)
{
    struct opts *o = st->input;

    for (const struct argp_option *p = options; p->name; p++) {
        if (p->key != key)
            continue;
        if (!o->needs_model && ((key >= OPT_POOL && key < OPT_FRAME) || key == 'n'))
            o->needs_model = p->name;
        if (!o->needs_monte_carlo && key >= OPT_FROM && key <= OPT_SEED)
            o->needs_monte_carlo = p->name;
    }
    switch (key) {
    case 'm':
        o->model = arg;
        return 0;
    case OPT_POOL:
        mt_arg_pool(st, arg, PREDICT_TOKENS_MAX, &o->pool_bytes, &o->pool_blocks);
        return 0;
    case OPT_MEMORY:
        predict_arg_memory(st, o, arg);
        return 0;
    case OPT_TOWER:
        predict_arg_tower(st, o, arg);
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
        o->rho0 = mt_arg_double(st, "--rho0", arg, 0, 1e6);
        return 0;
    case OPT_COST:
        predict_arg_cost(st, o, arg);
        return 0;
    case OPT_QUALITY:
        o->quality = arg;
        return 0;
    case OPT_TOKEN_COST:
        o->token_cost_ns = mt_arg_duration0(st, "--token-cost", arg);
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
    case OPT_RETIRE:
        o->retire = mt_arg_word(st, "--retire", arg, retire_words, MT_COUNT(retire_words));
        return 0;
    case OPT_ARRIVALS:
        predict_arg_arrivals(st, o, arg);
        return 0;
    case OPT_DURATION:
        predict_arg_duration(st, o, arg);
        return 0;
    case OPT_CAP:
        o->cap = mt_arg_i64(st, "--cap", arg, 0, SESSIONS_MAX);
        return 0;
    case OPT_HORIZON:
        o->horizon_ns = mt_arg_duration(st, "--horizon", arg);
        o->has_horizon = true;
        return 0;
    case OPT_RISK:
        o->risk = predict_arg_share(st, "--risk", arg, 1);
        if (!(o->risk > 0 && o->risk < 1))
            argp_error(st, "--risk: '%s' is not between 0 and 1", arg);
        return 0;
    case OPT_MONTE_CARLO:
        o->monte_carlo = true;
        return 0;
    case OPT_FROM:
        predict_arg_from(st, o, arg);
        return 0;
    case OPT_RUNS:
        o->runs = mt_arg_i64(st, "--runs", arg, 1, 1000000000);
        return 0;
    case OPT_PRECISION:
        o->precision = predict_arg_share(st, "--precision", arg, 0.99);
        return 0;
    case OPT_SEED:
        o->seed = (uint64_t)mt_arg_i64(st, "--seed", arg, 0, INT64_MAX);
        return 0;
    case OPT_RECOMPUTE:
        o->recompute_ns = mt_arg_duration0(st, "--recompute", arg);
        return 0;
    case OPT_EVICT:
        o->evicted = (double)mt_arg_i64(st, "--evict", arg, 1, PREDICT_TOKENS_MAX);
        return 0;
    case OPT_REFUSED:
        o->refused = predict_arg_share(st, "--refused", arg, 1);
        return 0;
    case OPT_RETRIED:
        o->retried = predict_arg_share(st, "--retried", arg, 1);
        return 0;
    case OPT_LIVE:
        o->live = true;
        return 0;
    case OPT_WINDOW:
        o->window_ns = mt_arg_duration(st, "--window", arg);
        return 0;
    case OPT_BATCH:
        o->batch_ns = mt_arg_duration(st, "--batch", arg);
        if (o->batch_ns < MT_NS_PER_MS)
            argp_error(st, "--batch: '%s' is less than 1ms", arg);
        return 0;
    case OPT_FIT:
        o->fit_cost = true;
        return 0;
    case OPT_MIXED:
        predict_arg_mixed(st, o, arg);
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

int main(int argc, char **argv)
{
    const struct argp argp = {
        .options = options, .parser = parse_opt, .args_doc = "[FILE]", .doc = doc};
    struct opts o = {.sessions = -1,
                     .retire = MT_RETIRE_WHOLE, /* the cautious count */
                     .kv_type = MT_BF16,
                     .block = 16,
                     .rate = NAN,
                     .target = DEFAULT_TARGET,
                     .max_sessions = MT_NO_LIMIT,
                     .cap = MT_NO_LIMIT,
                     .horizon_ns = 3600 * MT_NS_PER_S,
                     .runs = 100000,
                     .precision = 0.1,
                     .seed = 1,
                     .recompute_ns = -1,
                     .token_cost_ns = -1,
                     .refused = NAN,
                     .retried = NAN,
                     .window_ns = DEFAULT_WINDOW,
                     .batch_ns = DEFAULT_BATCH,
                     .table = isatty(STDOUT_FILENO)};

    mt_msg_program(argv[0]);
    signal(SIGPIPE, SIG_IGN);
    argp_err_exit_status = MT_EXIT_USAGE;
    mt_close_stdout_at_exit();
    static char simulate[] = "mt-predict simulate", fit[] = "--fit";

    if (argc > 1 && !strcmp(argv[1], "simulate")) {
        argv[1] = simulate;
        return predict_simulate(argc - 1, argv + 1);
    }
    if (argc > 1 && !strcmp(argv[1], "fit"))
        argv[1] = fit;
    argp_parse(&argp, argc, argv, 0, NULL, &o);
    if (o.quality)
        return predict_trade(&o);
    if (from_pool(&o))
        return predict_shape(&o);
    if (o.n_mixed)
        return predict_mixed(&o);
    return o.fit_cost ? predict_cost(&o) : predict_records(&o);
}
