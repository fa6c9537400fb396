/*
 * mt-predict: when does it collapse, how many will fit. With -m it answers from a model's shape and
 * a pool; without, from the frame records of a run. The formulas are lib/control's.
 */
#include "control/control.h"
#include "engine/engine.h"

#include <argp.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SESSIONS_MAX   1000000000
#define TOKENS_MAX     (INT64_C(1) << 40)
#define LINE_MAX_B     (1 << 20) /* a record with its text has a few hundred bytes */
#define DEFAULT_TARGET 0.8
#define FIT_SINKS      4 /* of the window that is proposed where none was asked for */

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

struct opts {
    const char *model, *file;
    const char *needs_model;         /* the first option that makes no sense without -m */
    int64_t pool_bytes, pool_blocks; /* one of them, the other 0 */
    int64_t sessions;                /* -1: not given */
    struct mt_policy kv;
    enum mt_dtype kv_type;
    int64_t block;
    double rate;                        /* NAN: the model's */
    int64_t frame_ns, deadline_ns;      /* 0: not given */
    int64_t prompt_tokens, step_tokens; /* step 0: not given */
    double rho0, target;
    bool has_cost;
    struct mt_cost cost;
    int64_t max_sessions;
    bool shared_sinks;
    enum { FORMAT_AUTO, FORMAT_JSON, FORMAT_TABLE } format;
};

/* ---- options ---- */

static int64_t want_i64(struct argp_state *st, const char *name, const char *arg, int64_t lo,
                        int64_t hi)
{
    int64_t v = lo;

    if (mt_parse_i64(arg, lo, hi, &v) < 0)
        argp_error(st, "%s: '%s' is not a number in %lld..%lld", name, arg, (long long)lo,
                   (long long)hi);
    return v;
}

static double want_double(struct argp_state *st, const char *name, const char *arg, double lo,
                          double hi)
{
    double v = lo;

    if (mt_parse_double(arg, lo, hi, &v) < 0)
        argp_error(st, "%s: '%s' is not a number in %g..%g", name, arg, lo, hi);
    return v;
}

static int64_t want_duration(struct argp_state *st, const char *name, const char *arg)
{
    int64_t ns = 0;

    if (mt_parse_duration(arg, &ns) < 0 || ns == 0)
        argp_error(st, "%s: '%s' is not a duration above 0, such as 80ms or 2s", name, arg);
    return ns;
}

static void parse_pool(struct argp_state *st, struct opts *o, const char *arg)
{
    size_t n = strlen(arg);
    char *blocks = n > 1 && arg[n - 1] == 'b' ? strndup(arg, n - 1) : NULL;

    o->pool_bytes = o->pool_blocks = 0;
    if (!(blocks ? mt_parse_i64(blocks, 1, TOKENS_MAX, &o->pool_blocks) == 0
                 : mt_parse_size(arg, &o->pool_bytes) == 0 && o->pool_bytes > 0))
        argp_error(st,
                   "--pool: '%s' is not a size such as 40GiB, nor a number of blocks such as "
                   "512b",
                   arg);
    free(blocks);
}

static void parse_kv(struct argp_state *st, struct opts *o, const char *arg)
{
    struct mt_err e = {0};

    if (mt_policy_parse(arg, &o->kv, &e) < 0)
        argp_error(st, "--kv: '%s': %s", arg, e.text);
    if (o->kv.window > TOKENS_MAX || o->kv.sinks > TOKENS_MAX)
        argp_error(st, "--kv: '%s': more than %lld tokens", arg, (long long)TOKENS_MAX);
}

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

static void parse_kv_type(struct argp_state *st, struct opts *o, const char *arg)
{
    for (enum mt_dtype t = MT_F32; t <= MT_INT8; t++) {
        if (!strcmp(arg, mt_dtype_name(t))) {
            o->kv_type = t;
            return;
        }
    }
    argp_error(st, "--kv-type: '%s' is not bf16, f16, f32 or int8", arg);
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
        parse_pool(st, o, arg);
        return 0;
    case 'n':
        o->sessions = want_i64(st, "--sessions", arg, 0, SESSIONS_MAX);
        return 0;
    case OPT_KV:
        parse_kv(st, o, arg);
        return 0;
    case OPT_KV_TYPE:
        parse_kv_type(st, o, arg);
        return 0;
    case OPT_BLOCK:
        o->block = want_i64(st, "--block", arg, 1, 65536);
        return 0;
    case OPT_SHARED_SINKS:
        o->shared_sinks = true;
        return 0;
    case OPT_RATE:
        o->rate = want_double(st, "--rate", arg, 0, 1e9);
        return 0;
    case OPT_FRAME:
        o->frame_ns = want_duration(st, "--frame", arg);
        return 0;
    case OPT_PROMPT_TOKENS:
        o->prompt_tokens = want_i64(st, "--prompt-tokens", arg, 0, TOKENS_MAX);
        return 0;
    case OPT_STEP_TOKENS:
        o->step_tokens = want_i64(st, "--step-tokens", arg, 1, TOKENS_MAX);
        return 0;
    case OPT_RHO0:
        o->rho0 = want_double(st, "--rho0", arg, 0, 1);
        return 0;
    case OPT_COST:
        parse_cost(st, o, arg);
        return 0;
    case OPT_DEADLINE:
        o->deadline_ns = want_duration(st, "--deadline", arg);
        return 0;
    case OPT_TARGET:
        o->target = want_double(st, "--target", arg, 1e-6, 1);
        return 0;
    case OPT_MAX_SESSIONS:
        o->max_sessions = want_i64(st, "--max-sessions", arg, 1, SESSIONS_MAX);
        return 0;
    case OPT_FORMAT:
        if (strcmp(arg, "json") != 0 && strcmp(arg, "table") != 0)
            argp_error(st, "--format: '%s' is not json or table", arg);
        o->format = !strcmp(arg, "json") ? FORMAT_JSON : FORMAT_TABLE;
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

/* ---- output ---- */

/* obj[key] = v: absent when NaN (unknown), null when infinite (never). */
static void set(json_t *obj, const char *key, double v)
{
    if (isinf(v))
        json_object_set_new(obj, key, json_null());
    else
        mt_json_set_real(obj, key, v);
}

static void set_int(json_t *obj, const char *key, int64_t v)
{
    json_object_set_new(obj, key, json_integer(v));
}

static void print_table(const json_t *obj)
{
    const char *key;
    json_t *v;

    json_object_foreach((json_t *)obj, key, v)
    {
        if (!strcmp(key, "metronome") || !strcmp(key, "type"))
            continue;
        printf("%-20s ", key);
        if (json_is_string(v))
            printf("%s\n", json_string_value(v));
        else if (json_is_integer(v))
            printf("%" JSON_INTEGER_FORMAT "\n", json_integer_value(v));
        else if (json_is_real(v))
            printf("%.7g\n", json_real_value(v));
        else if (json_is_null(v))
            printf("never\n");
        else
            printf("%s\n", json_is_true(v) ? "yes" : "no");
    }
}

/* Takes the reference to obj. */
static int print(const struct opts *o, json_t *obj)
{
    int rc;

    if (o->format == FORMAT_TABLE || (o->format == FORMAT_AUTO && isatty(STDOUT_FILENO))) {
        print_table(obj);
        json_decref(obj);
        return MT_EXIT_OK; /* what is lost is found when stdout is closed */
    }
    rc = mt_json_line(stdout, obj);
    if (rc == -ENOMEM)
        mt_msg(MT_ERROR, "%s", strerror(ENOMEM));
    return rc < 0 && rc != -EPIPE ? MT_EXIT_FAILED : MT_EXIT_OK;
}

static json_t *begin(const char *type)
{
    return json_pack("{s:i,s:s,s:s,s:s}", "metronome", 1, "tool", "mt-predict", "version",
                     MT_VERSION, "type", type);
}

/* ---- from a shape ---- */

static void growth(json_t *out, const struct mt_load *l, double frame_s)
{
    double t = NAN;
    int64_t last;

    if (mt_predict_first(l, &t) == 0)
        set(out, "t_sat_s", t);
    if (mt_predict_locked(l, &t, &last) == 0) {
        set(out, "t_sat_locked_s", t);
        set_int(out, "last_tokens", last);
    }
    if (mt_predict_spread(l, &t) == 0)
        set(out, "t_sat_spread_s", t);
    if (frame_s > 0 && mt_predict_locked_frames(l, l->rate * frame_s, frame_s, &t) == 0)
        set(out, "t_stall_s", t);
}

/* The window that would let all N sessions stay for ever. */
static void fitting_window(json_t *out, const struct opts *o, struct mt_bound w, int64_t blocks,
                           double rate)
{
    int64_t window;
    int rc;

    if (o->sessions < 1)
        return;
    if (!o->kv.bounded)
        w.sinks = FIT_SINKS;
    rc = mt_bound_window(&w, blocks, o->sessions, &window);
    if (rc == 0) {
        set_int(out, "fit_window_tokens", window);
        set_int(out, "fit_sinks_tokens", w.sinks);
        if (rate > 0)
            set(out, "fit_window_s", (double)window / rate);
    } else if (rc == -ENOSPC) {
        json_object_set_new(out, "fit_window_tokens", json_null());
    }
}

static void ceilings(json_t *out, const struct opts *o, const struct mt_bound *w, int64_t blocks,
                     int64_t block_bytes, double rate, double deadline_s)
{
    int64_t n_mem = MT_NO_LIMIT, n_star = MT_NO_LIMIT, unaligned, per_session, n;
    enum mt_binding binding;

    if (o->kv.bounded && mt_bound_blocks(w, &per_session) == 0 &&
        mt_bound_sessions(w, blocks, &n_mem) == 0) {
        set_int(out, "session_blocks", per_session);
        set_int(out, "session_bytes", per_session * block_bytes);
        if (rate > 0) {
            double missing = (double)(w->sinks + w->window - o->prompt_tokens);

            set(out, "t_full_s", fmax(0, missing) / rate);
        }
        set_int(out, "n_mem", n_mem);
        if (o->sessions >= 0)
            json_object_set_new(out, "fits", json_boolean(o->sessions <= n_mem));
    }
    fitting_window(out, o, *w, blocks, rate);
    if (o->has_cost && mt_latency_locked(&o->cost, deadline_s, o->target, &n_star) == 0 &&
        mt_latency_unaligned(&o->cost, deadline_s, o->target, &unaligned) == 0) {
        set(out, "deadline_s", deadline_s);
        set(out, "target", o->target);
        set(out, "cost_a_ms", o->cost.a_s * 1e3);
        set(out, "cost_b_ms", o->cost.b_s * 1e3);
        if (n_star != MT_NO_LIMIT) {
            set_int(out, "n_star", n_star);
            set_int(out, "n_star_unaligned", unaligned);
        }
    }
    if (!o->kv.bounded && rate > 0 && o->sessions > 0) {
        /* Unbounded, memory ends every number of sessions: t_sat_s says when. */
        json_object_set_new(out, "binding", json_string(mt_binding_name(MT_BIND_MEMORY)));
        return;
    }
    n = mt_sustainable(n_mem, n_star, o->max_sessions, &binding);
    if (binding != MT_BIND_NONE)
        set_int(out, "n_sustainable", n);
    json_object_set_new(out, "binding", json_string(mt_binding_name(binding)));
}

static int from_shape(const struct opts *o)
{
    struct mt_shape shape;
    struct mt_err e = {0};
    struct mt_policy policy;
    char kv[64];
    struct mt_bound w = {.window = o->kv.window,
                         .sinks = o->kv.sinks < 0 ? o->prompt_tokens : o->kv.sinks,
                         .block_tokens = o->block,
                         .retire = MT_RETIRE_IN_PLACE,
                         .shared_sinks = o->shared_sinks};
    int64_t token_bytes, block_bytes, blocks, pool_tokens;
    double frame_s, deadline_s, rate, audio;
    json_t *out;
    int rc = mt_shape_open(&shape, o->model, &e);

    if (rc < 0) {
        mt_msg(MT_ERROR, "%s", e.text);
        return rc == -EINVAL ? MT_EXIT_USAGE : MT_EXIT_FAILED;
    }
    token_bytes = mt_shape_token_bytes(&shape, o->kv_type);
    block_bytes = token_bytes * o->block;
    blocks = o->pool_blocks ? o->pool_blocks : o->pool_bytes / block_bytes;
    frame_s = o->frame_ns ? (double)o->frame_ns / 1e9 : shape.frame_s;
    deadline_s = o->deadline_ns ? (double)o->deadline_ns / 1e9 : frame_s;
    audio = mt_shape_audio_rate(&shape, frame_s);
    rate = isnan(o->rate) ? audio : o->rate;
    if (blocks < 1) {
        mt_msg(MT_ERROR, "--pool: %lld bytes hold no block of %lld bytes", (long long)o->pool_bytes,
               (long long)block_bytes);
        return MT_EXIT_FAILED;
    }
    if (__builtin_mul_overflow(blocks, o->block, &pool_tokens) || pool_tokens > TOKENS_MAX) {
        mt_msg(MT_ERROR, "--pool: %lld blocks of %lld tokens are beyond what can be counted",
               (long long)blocks, (long long)o->block);
        return MT_EXIT_FAILED;
    }
    if (isnan(o->rate) && rate == 0) {
        mt_msg(MT_ERROR, "%s: its config tells no audio rate: give --rate", o->model);
        return MT_EXIT_USAGE;
    }
    if (o->has_cost && deadline_s == 0) {
        mt_msg(MT_ERROR, "%s: its config tells no frame length: --cost needs --deadline", o->model);
        return MT_EXIT_USAGE;
    }
    /* A frame's audio comes in one step, text one token at a time. */
    w.step = o->step_tokens;
    if (w.step == 0)
        w.step = (int64_t)fmax(1, ceil((audio > 0 ? audio : rate) * frame_s - 1e-9));

    out = begin("predict");
    json_object_set_new(out, "model", json_string(shape.name));
    set_int(out, "layers", shape.layers);
    set_int(out, "kv_heads", shape.kv_heads);
    set_int(out, "head_dim", shape.head_dim);
    policy = o->kv;
    policy.sinks = w.sinks; /* the prompt's tokens, where it is the sinks */
    mt_policy_format(&policy, kv);
    json_object_set_new(out, "kv", json_string(kv));
    json_object_set_new(out, "kv_type", json_string(mt_dtype_name(o->kv_type)));
    set_int(out, "token_bytes", token_bytes);
    set_int(out, "block_tokens", o->block);
    set_int(out, "pool_blocks", blocks);
    set_int(out, "pool_tokens", pool_tokens);
    if (o->sessions >= 0)
        set_int(out, "sessions", o->sessions);
    set(out, "rate_tokens_s", rate);
    if (frame_s > 0)
        set(out, "frame_s", frame_s);
    set_int(out, "step_tokens", w.step);
    set_int(out, "prompt_tokens", o->prompt_tokens);
    set(out, "rho0", o->rho0);
    if (o->kv.bounded) {
        set(out, "t_sat_s", INFINITY);
    } else {
        struct mt_load l = {.pool_blocks = blocks,
                            .block_tokens = o->block,
                            .rho0 = o->rho0,
                            .sessions = o->sessions,
                            .start_tokens = o->prompt_tokens,
                            .rate = rate};

        growth(out, &l, frame_s);
    }
    /* The ceilings share out what others left. */
    blocks = (int64_t)floor((1 - o->rho0) * (double)blocks + 1e-9);
    ceilings(out, o, &w, blocks, block_bytes, rate, deadline_s);
    return print(o, out);
}

/* ---- from records ---- */

static int from_records(const struct opts *o)
{
    bool from_stdin = !o->file || !strcmp(o->file, "-");
    const char *what = from_stdin ? "standard input" : o->file;
    int fd = from_stdin ? STDIN_FILENO : open(o->file, O_RDONLY | O_CLOEXEC);
    struct mt_lines *lines = NULL;
    struct mt_trace *trace = NULL;
    struct mt_trace_fit f;
    int64_t n, broken = 0;
    int status = MT_EXIT_FAILED, rc;
    char *line;
    json_t *out;

    if (fd < 0) {
        mt_msg(MT_ERROR, "%s: %s", what, strerror(errno));
        return MT_EXIT_FAILED;
    }
    if ((rc = mt_lines_open(&lines, fd, LINE_MAX_B)) < 0 || (rc = mt_trace_open(&trace)) < 0) {
        mt_msg(MT_ERROR, "%s", strerror(-rc));
        goto done;
    }
    while ((n = mt_lines_next(lines, &line)) > 0 || line || n == -E2BIG) {
        if (n == 0)
            continue; /* an empty line is nobody's record */
        rc = n < 0 ? -EBADMSG : mt_trace_line(trace, line, (size_t)n);
        if (rc == -EBADMSG) {
            broken++;
        } else if (rc < 0) {
            mt_msg(MT_ERROR, "%s: %s", what, strerror(-rc));
            goto done;
        }
    }
    if (n < 0) {
        mt_msg(MT_ERROR, "%s: %s", what, strerror((int)-n));
        goto done;
    }
    if (broken)
        mt_msg(MT_WARN, "%s: %lld broken lines left out", what, (long long)broken);
    if ((rc = mt_trace_fit(trace, &f)) < 0) {
        mt_msg(MT_ERROR, "%s: %s", what, rc == -ENODATA ? "no frame records in it" : strerror(-rc));
        goto done;
    }
    if (f.sessions == 0)
        mt_msg(MT_WARN, "%s: no stretch of %d frame times with a constant number of sessions", what,
               MT_TRACE_MIN);
    if (f.untruthful)
        mt_msg(MT_WARN, "%s: untruthful: %lld frames are 'ok' with tokens in and none out", what,
               (long long)f.untruthful);

    out = begin("fit");
    set_int(out, "frames", f.frames);
    set_int(out, "stalled", f.stalled);
    set_int(out, "untruthful", f.untruthful);
    set_int(out, "broken", broken);
    if (f.pool_tokens)
        set_int(out, "pool_tokens", f.pool_tokens);
    if (f.sessions)
        set_int(out, "sessions", f.sessions);
    set(out, "from_s", f.from_s);
    set(out, "to_s", f.to_s);
    set(out, "rho", f.rho);
    set(out, "rho_per_s", f.rho_per_s);
    set(out, "rate_tokens_s", f.rate);
    set(out, "t_sat_s", f.t_sat_s);
    set(out, "t_sat_at_s", f.t_sat_at_s);
    set(out, "t_collapse_s", f.t_collapse_s);
    set(out, "t_half_s", f.t_half_s);
    set(out, "t_half_sat_s", f.t_half_sat_s);
    set(out, "error_percent", f.error_percent);
    status = print(o, out);
done:
    mt_trace_close(&trace);
    mt_lines_close(&lines);
    if (!from_stdin)
        close(fd);
    return status;
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
                     .max_sessions = MT_NO_LIMIT};

    mt_msg_program(argv[0]);
    signal(SIGPIPE, SIG_IGN);
    argp_err_exit_status = MT_EXIT_USAGE;
    atexit(close_stdout);
    argp_parse(&argp, argc, argv, 0, NULL, &o);
    return o.model ? from_shape(&o) : from_records(&o);
}
