/*
 * simulate.c: mt-predict simulate: calls on a machine that is described, not there. Records come
 * out as a server's would, then one line of totals.
 */
#include "control/collapse.h"
#include "control/simulate.h"
#include "engine/args.h"
#include "tools/predict/controlled.h"
#include "tools/predict/predict.h"
#include "wire/feed_args.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    OPT_POOL = 256,
    OPT_KV,
    OPT_KV_TYPE,
    OPT_BLOCK,
    OPT_SECONDS,
    OPT_FRAME,
    OPT_DEADLINE,
    OPT_MODE,
    OPT_ANSWER,
    OPT_STEP,
    OPT_MAX_SESSIONS,
    OPT_COST,
    OPT_ANSWERS,
    OPT_PROMPT,
    OPT_TURN,
    OPT_ARRIVALS,
    OPT_DURATION,
    OPT_PHASE,
    OPT_SEED,
    OPT_FILES,
    OPT_SILENT,
    OPT_TOTALS,
    OPT_RUNS,
    OPT_ADMIT,
};

static const struct argp_option options[] = {
    {0, 0, 0, 0, "The machine and the model:", 1},
    {"model", 'm', "MODEL", 0, "A known name, a config.json or its directory", 1},
    {"pool", OPT_POOL, "SIZE", 0, "Memory for the KV cache, or a number of blocks: 512b", 1},
    {"kv", OPT_KV, "POLICY", 0, "unbounded (default), or window=W[,sinks=S|prompt]", 1},
    {"kv-type", OPT_KV_TYPE, "TYPE", 0, "bf16 (default), f16, f32, int8 or fp8", 1},
    {"block", OPT_BLOCK, "TOKENS", 0, "Tokens in a block (default 16)", 1},
    {"cost", OPT_COST, "a=D,b=D[,…]", 0,
     "Time of a frame: a + b for each session; b1=D for each resident token, prefill=D for each "
     "token put in, "
     "jitter=SHARE, outliers=SHARE:FACTOR",
     1},
    {0, 0, 0, 0, "The calls:", 2},
    {"sessions", 'n', "N", 0, "Calls in all (default 1)", 2},
    {"seconds", OPT_SECONDS, "D", 0, "Simulated time (default 300)", 2},
    {"arrivals", OPT_ARRIVALS, "HOW", 0, "all (default), ramp:R or poisson:R calls a second", 2},
    {"duration", OPT_DURATION, "HOW", 0, "fixed:D or exp:D (default: to the end)", 2},
    {"phase", OPT_PHASE, "HOW", 0,
     "Where calls lie on the beat: spread (default), locked or random", 2},
    {"seed", OPT_SEED, "N", 0, "Of arrivals, durations, phases, jitter and answers (default 1)", 2},
    {"patient", OPT_FILES, 0, 0, "Callers that can wait: no answer is shortened, no frame dropped",
     2},
    {0, 0, 0, 0, "Frames:", 3},
    {"frame", OPT_FRAME, "D", 0, "Length of a frame (default: the model's own)", 3},
    {"deadline", OPT_DEADLINE, "D", 0, "Deadline of a frame (default: its length)", 3},
    {"mode", OPT_MODE, "MODE", 0, "turn (default) or free", 3},
    {"answer-tokens", OPT_ANSWER, "N", 0, "Most tokens of an answer (default 16)", 3},
    {"answers", OPT_ANSWERS, "MEAN", 0,
     "In turn mode: mean length of answers, geometric (default: always the most)", 3},
    {"prompt-tokens", OPT_PROMPT, "N", 0, "Tokens a call starts with (default 0)", 3},
    {"turn-tokens", OPT_TURN, "N", 0, "Markup tokens of a frame (default 0)", 3},
    {"step-tokens", OPT_STEP, "N", 0, "Most rows of one step, all sessions (default 512)", 3},
    {"max-sessions", OPT_MAX_SESSIONS, "N", 0, "Most calls at a time (default 4096)", 3},
    {0, 0, 0, 0, "Other:", 4},
    {"silent-stall", OPT_SILENT, 0, 0, "Mark stalled frames ok, as ordinary engines do", 4},
    {"admit", OPT_ADMIT, "KEY=N,…", OPTION_ARG_OPTIONAL,
     "Let mt-admit's law set the cap, from 4 on; keys target, cut, alpha, beta, min, max, cap0, as "
     "its options",
     4},
    {"runs", OPT_RUNS, "N", 0,
     "Runs with seeds from --seed on, their totals, and how many collapsed (default 1)", 4},
    {"totals", OPT_TOTALS, 0, 0, "Only the line of totals, and the law's decisions", 4},
    {"quiet", 'q', 0, 0, "Errors only", 4},
    {0},
};

static const char doc[] = "Run the engine's own scheduler, pool and policies in virtual time, with "
                          "a cost model where the "
                          "arithmetic was.\vDurations take ns, us, ms, s, min or h (a bare number "
                          "is seconds); sizes take K, M, G, KiB, MiB, "
                          "GiB. The same options give the same records.";

struct sim {
    const char *model;
    int64_t pool_bytes;
    struct mt_sim_opts o;
    struct mt_feed_opts calls;
    bool totals, admit;
    int64_t runs;
    struct controlled law;
    /* while it runs */
    int64_t refused;
    double t_last, first_stall_s;
    int status;
    bool left; /* whoever read this has */
};

/* ---- options ---- */

static void settle(struct argp_state *st, struct sim *s)
{
    struct mt_shape shape;
    struct mt_err e = {0};
    struct mt_cost_model *c = &s->o.cost;
    struct mt_engine_opts *eo = &s->o.engine;

    if (!s->model)
        argp_error(st, "-m MODEL is missing");
    if (!s->pool_bytes && !eo->pool_blocks)
        argp_error(st, "--pool SIZE is missing");
    if (s->calls.duration != MT_LAST_FILE && s->calls.arrivals == MT_ARRIVE_ALL &&
        s->calls.sessions > eo->max_sessions)
        argp_error(st, "-n: %lld calls at once are above --max-sessions %d",
                   (long long)s->calls.sessions, eo->max_sessions);
    if (mt_shape_open(&shape, s->model, &e) < 0)
        argp_error(st, "-m: %s", e.text);
    if (!(shape.audio_tokens_s > 0) || !(shape.frame_s > 0))
        argp_error(st, "-m: '%s' doesn't say how many tokens a second of audio takes", s->model);
    mt_sim_shape(c, &shape, eo->frame_ns);
    c->steps = eo->answer_tokens;
    if (eo->mode == MT_MODE_FREE && c->answer_mean > 0)
        argp_error(st, "--answers: in free mode an answer always has --answer-tokens");
    if (!eo->pool_blocks) {
        struct mt_kv_shape kv = {c->layers, c->kv_heads, c->head_dim, eo->block_tokens,
                                 eo->kv_type};
        eo->pool_blocks = s->pool_bytes / mt_kv_block_bytes(&kv);
        if (eo->pool_blocks < 1)
            argp_error(st, "--pool: not one block of %lld bytes",
                       (long long)mt_kv_block_bytes(&kv));
    }
}

static error_t parse(int key, char *arg, struct argp_state *st)
{
    static const char *const modes[] = {"turn", "free"};
    struct sim *s = st->input;
    struct mt_engine_opts *eo = &s->o.engine;
    struct mt_err e = {0};

    switch (key) {
    case 'm':
        s->model = arg;
        break;
    case OPT_POOL:
        mt_arg_pool(st, arg, INT32_MAX, &s->pool_bytes, &eo->pool_blocks);
        break;
    case OPT_KV:
        mt_arg_kv(st, arg, &eo->policy);
        break;
    case OPT_KV_TYPE:
        eo->kv_type = mt_arg_kv_type(st, arg);
        break;
    case OPT_BLOCK:
        eo->block_tokens = (int)mt_arg_i64(st, "--block", arg, 1, 1024);
        break;
    case OPT_COST:
        if (mt_cost_parse(arg, &s->o.cost, &e) < 0)
            argp_error(st, "--cost: %s", e.text);
        break;
    case 'n':
        s->calls.sessions = mt_arg_i64(st, "--sessions", arg, 1, 100000000);
        break;
    case OPT_SECONDS:
        s->o.seconds = (double)mt_arg_duration(st, "--seconds", arg) / 1e9;
        break;
    case OPT_ARRIVALS:
        mt_arg_arrivals(st, arg, &s->calls);
        break;
    case OPT_DURATION:
        mt_arg_calls_last(st, arg, &s->calls);
        if (s->calls.duration == MT_LAST_FILE)
            argp_error(st,
                       "--duration: 'file' is not fixed:D or exp:D: a simulated call has no file");
        break;
    case OPT_PHASE:
        mt_arg_phase(st, arg, &s->calls);
        break;
    case OPT_SEED:
        eo->seed = (uint64_t)mt_arg_i64(st, "--seed", arg, 0, INT64_MAX);
        break;
    case OPT_FILES:
        s->o.live = false;
        break;
    case OPT_FRAME:
        eo->frame_ns = mt_arg_duration(st, "--frame", arg);
        break;
    case OPT_DEADLINE:
        eo->deadline_ns = mt_arg_duration(st, "--deadline", arg);
        break;
    case OPT_MODE:
        eo->mode =
            mt_arg_word(st, "--mode", arg, modes, MT_COUNT(modes)) ? MT_MODE_FREE : MT_MODE_TURN;
        break;
    case OPT_ANSWER:
        eo->answer_tokens = (int)mt_arg_i64(st, "--answer-tokens", arg, 1, 65536);
        break;
    case OPT_ANSWERS:
        s->o.cost.answer_mean = mt_arg_double(st, "--answers", arg, 1, 65536);
        break;
    case OPT_PROMPT:
        s->o.cost.open_tokens = (int)mt_arg_i64(st, "--prompt-tokens", arg, 0, 1 << 20);
        break;
    case OPT_TURN:
        s->o.cost.turn_tokens = (int)mt_arg_i64(st, "--turn-tokens", arg, 0, 1 << 20);
        break;
    case OPT_STEP:
        eo->step_tokens = (int)mt_arg_i64(st, "--step-tokens", arg, 1, 65536);
        break;
    case OPT_MAX_SESSIONS:
        eo->max_sessions = (int)mt_arg_i64(st, "--max-sessions", arg, 1, 65536);
        break;
    case OPT_SILENT:
        eo->silent_stall = true;
        break;
    case OPT_ADMIT:
        if (controlled_parse(arg, &s->law.opts, &e) < 0)
            argp_error(st, "--admit: %s", e.text);
        s->admit = true;
        break;
    case OPT_RUNS:
        s->runs = mt_arg_i64(st, "--runs", arg, 1, 1000000);
        s->totals = s->totals || s->runs > 1;
        break;
    case OPT_TOTALS:
        s->totals = true;
        break;
    case 'q':
        mt_msg_level(MT_ERROR);
        break;
    case ARGP_KEY_ARG:
        argp_error(st, "'%s': a simulation reads no files", arg);
        break;
    case ARGP_KEY_END:
        settle(st, s);
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

/* ---- a run ---- */

static double gap_s(void *ctx, int64_t i)
{
    return mt_feed_gap_s(&((const struct sim *)ctx)->calls, i);
}

static double length_s(void *ctx, int64_t i, double arrived_s)
{
    return mt_feed_length_s(&((const struct sim *)ctx)->calls, i, arrived_s);
}

static double phase(void *ctx, int64_t i)
{
    return mt_feed_phase(&((const struct sim *)ctx)->calls, i);
}

static void emit(struct sim *s, json_t *obj)
{
    int rc = 0;

    if (s->status == MT_EXIT_OK && !s->left)
        rc = mt_json_line(stdout, obj);
    else
        json_decref(obj);
    s->left |= rc == -EPIPE;
    if (rc < 0 && rc != -EPIPE)
        s->status = MT_EXIT_FAILED; /* why is told when stdout is closed */
}

static void on_frame(void *ctx, const struct mt_record *r)
{
    struct sim *s = ctx;

    s->t_last = r->t_s;
    if (r->tokens_out == 0 && (r->status == MT_STALLED || r->status == MT_OK) &&
        isnan(s->first_stall_s))
        s->first_stall_s = r->t_s;
    if (!s->totals)
        emit(s, mt_wire_record_json(r, false));
    if (s->admit)
        controlled_frame(&s->law, r);
}

static void on_tick(void *ctx, struct mt_engine *eng, double t_s)
{
    controlled_tick(&((struct sim *)ctx)->law, eng, t_s);
}

/* A line as mt-admit's own, shorter. */
static void on_decision(void *ctx, const struct mt_admit *law, const struct mt_admit_decision *d)
{
    json_t *o = json_pack("{s:i, s:s, s:i, s:s, s:s, s:s}", "metronome", MT_WIRE_VERSION, "type",
                          "cap", "cap", d->limit, "reason", mt_admit_reason_name(d->reason), "mode",
                          mt_admit_mode_name(d->mode), "bound", mt_binding_name(d->bound));

    mt_json_set_real(o, "cap_exact", d->cap);
    mt_json_set_real(o, "t", d->t_s);
    mt_json_set_real(o, "signal_ms", d->signal_s * 1e3);
    mt_json_set_real(o, "projected_ms", d->projected_s * 1e3);
    predict_set_int(o, "sessions", d->sessions);
    mt_json_set_real(o, "pool", law->pool);
    if (law->model.known && mt_admit_fits(law, law->opts.target) != MT_NO_LIMIT)
        predict_set_int(o, "n_star", mt_admit_fits(law, law->opts.target));
    if (law->opts.n_mem > 0)
        predict_set_int(o, "n_mem", law->opts.n_mem);
    predict_set_int(o, "ontime", law->counts.ontime);
    predict_set_int(o, "late", law->counts.late);
    predict_set_int(o, "skipped", law->counts.skipped);
    predict_set_int(o, "grows", law->counts.grows);
    predict_set_int(o, "cuts", law->counts.cuts);
    emit(ctx, o);
}

static void on_refused(void *ctx, int64_t call, double t_s, const char *reason)
{
    struct sim *s = ctx;

    s->refused++;
    if (s->totals)
        return;
    json_t *o = json_pack("{s:s, s:o, s:i, s:s, s:s}", "type", "frame", "session",
                          json_sprintf("call-%lld", (long long)call), "frame", 0, "status",
                          "refused", "reason", reason);
    mt_json_set_real(o, "t", t_s);
    emit(s, o);
}

static json_t *totals(const struct sim *s, const struct mt_engine_stats *st)
{
    json_t *o = predict_begin("simulated"), *frames = json_object();

    json_object_set_new(o, "model", json_string(s->o.cost.name));
    for (int i = 0; i <= MT_FAILED; i++)
        json_object_set_new(frames, mt_status_name((enum mt_status)i), json_integer(st->frames[i]));
    json_object_set_new(o, "frames", frames);
    predict_set_int(o, "refused_calls", s->refused);
    predict_set_int(o, "untruthful", st->untruthful);
    predict_set_int(o, "steps", st->steps);
    predict_set_int(o, "pool_blocks", st->blocks);
    predict_set_int(o, "block", s->o.engine.block_tokens);
    predict_set(o, "pool", st->pool);
    predict_set(o, "p50_ms", (double)mt_hist_quantile(&st->latency, 0.5) / 1e6);
    predict_set(o, "p95_ms", (double)mt_hist_quantile(&st->latency, 0.95) / 1e6);
    predict_set(o, "p99_ms", (double)mt_hist_quantile(&st->latency, 0.99) / 1e6);
    predict_set(o, "max_ms", st->latency.count ? (double)st->latency.max / 1e6 : 0);
    predict_set(o, "t_collapse_s", s->first_stall_s);
    predict_set(o, "t_last_s", s->t_last);
    predict_set_int(o, "seed", (int64_t)s->o.engine.seed);
    return o;
}

/* One run under the options' seed; its totals are emitted. *collapsed: a frame found no memory. */
static int run(struct sim *s, bool *collapsed)
{
    struct mt_engine_stats st;
    struct mt_err e = {0};

    s->o.cost.seed = s->calls.seed = s->o.engine.seed;
    s->refused = 0;
    s->t_last = 0;
    s->first_stall_s = NAN;
    s->law.set = -1;
    int rc = mt_simulate(&s->o, &st, &e);
    if (rc < 0) {
        mt_msg(MT_ERROR, "%s", e.text);
        return rc == -EINVAL ? MT_EXIT_USAGE : MT_EXIT_FAILED;
    }
    if (s->law.failed) {
        mt_msg(MT_ERROR, "--admit: the law does not take this deadline");
        return MT_EXIT_USAGE;
    }
    *collapsed = !isnan(s->first_stall_s);
    emit(s, totals(s, &st));
    return s->status;
}

/* Runs with seeds of their own: how many hit the wall, with Wilson's 95 % interval. */
static int run_many(struct sim *s)
{
    uint64_t first = s->o.engine.seed;
    int64_t collapsed = 0;
    double low, high;
    int status = MT_EXIT_OK;

    for (int64_t i = 0; i < s->runs && status == MT_EXIT_OK && !s->left; i++) {
        bool hit = false;
        s->o.engine.seed = first + (uint64_t)i;
        status = run(s, &hit);
        collapsed += hit;
    }
    if (status != MT_EXIT_OK || s->runs == 1)
        return status;
    mt_wilson(collapsed, s->runs, &low, &high);
    json_t *o = predict_begin("runs");
    predict_set_int(o, "runs", s->runs);
    predict_set_int(o, "collapsed", collapsed);
    predict_set(o, "collapse_p", (double)collapsed / (double)s->runs);
    predict_set(o, "collapse_p_low", low);
    predict_set(o, "collapse_p_high", high);
    predict_set_int(o, "seed", (int64_t)first);
    emit(s, o);
    return s->status;
}

int predict_simulate(int argc, char **argv)
{
    static const struct argp argp = {options, parse, NULL, doc, NULL, NULL, NULL};
    struct sim s = {.o = {.cost = {.sample_rate_hz = 100}, .seconds = 300, .live = true},
                    .calls = {.sessions = 1, .phase = MT_PHASE_SPREAD},
                    .runs = 1};

    mt_engine_defaults(&s.o.engine);
    s.o.engine.max_sessions = 4096;
    argp_parse(&argp, argc, argv, 0, NULL, &s);
    s.o.sessions = s.calls.sessions;
    s.o.ctx = &s;
    s.o.gap_s = gap_s;
    s.o.length_s = length_s;
    s.o.phase = phase;
    s.o.frame = on_frame;
    s.o.refused = on_refused;
    s.o.stop = &s.left;
    if (s.admit) {
        s.law.ctx = &s;
        s.law.decision = on_decision;
        s.o.tick = on_tick;
    }
    return run_many(&s);
}
