/*
 * mt-admit: how many sessions may be on the machine: frame records in, cap requests out. The law is
 * lib/control's; here are its options, what of a line it needs, and what is told of a decision.
 */
#include "base/args.h"
#include "base/service.h"
#include "wire/agent.h"
#include "wire/wire.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#define ANSWER_NS (10 * MT_NS_PER_S)
#define AGAIN_NS  (MT_NS_PER_S / 2) /* until a server that is gone is looked for again */
#define STALE_T   5                 /* deadlines without a word of the server, and … */
#define STALE_NS  (2 * MT_NS_PER_S) /* … no less than this: it stands still */

const char *argp_program_version = "mt-admit (metronome) " MT_VERSION;

enum {
    OPT_DEADLINE = 256,
    OPT_TARGET,
    OPT_CUT,
    OPT_ALPHA,
    OPT_BETA,
    OPT_MIN,
    OPT_MAX,
    OPT_MODE,
    OPT_CAP0,
    OPT_WARMUP,
    OPT_N_MEM,
    OPT_KV,
    OPT_POOL_TOKENS,
    OPT_RATE,
    OPT_DURATION,
    OPT_NO_LOOK_AHEAD,
    OPT_NO_PROJECTION,
    OPT_AGENT_CHECK,
};

static const struct argp_option options[] = {
    {"socket", 's', "SOCKET", 0,
     "Watch the server on this Unix socket, or at tcp:HOST:PORT, and set its cap", 1},
    {"deadline", OPT_DEADLINE, "D", 0, "Deadline of a frame, T (default: the records' own)", 1},
    {"agent-check", OPT_AGENT_CHECK, "ADDR|unix:PATH", 0,
     "Tell HAProxy's agent checks at HOST:PORT, PORT (of this machine only) or a Unix socket how "
     "much room there is; with -s a server that goes is waited for",
     1},
    {0, 0, 0, 0, "The law:", 2},
    {"target", OPT_TARGET, "SHARE", 0, "Grow while the p95 is below this share of T (default 0.8)",
     0},
    {"cut", OPT_CUT, "SHARE", 0, "Cut from this share of T on (default 0.95)", 0},
    {"alpha", OPT_ALPHA, "N", 0, "Sessions that a good window adds (default 1)", 0},
    {"beta", OPT_BETA, "FACTOR", 0, "What a cut leaves of the cap (default 0.9)", 0},
    {"mode", OPT_MODE, "MODE", 0,
     "band: rest between target and cut (default); share: cut at the target, so that controllers "
     "on "
     "one device meet",
     0},
    {"min", OPT_MIN, "N", 0, "Lowest cap (default 1)", 0},
    {"max", OPT_MAX, "N", 0, "Highest cap (default 256)", 0},
    {"cap0", OPT_CAP0, "N", 0, "Cap to begin with (default 4)", 0},
    {"warmup", OPT_WARMUP, "N", 0, "Windows without growth at the start (default 2)", 0},
    {"no-look-ahead", OPT_NO_LOOK_AHEAD, 0, 0,
     "Grow although the next session is expected to miss the target", 0},
    {"no-projection", OPT_NO_PROJECTION, 0, 0,
     "Grow on what sessions cost now, not on what they will with full windows", 0},
    {0, 0, 0, 0, "Memory:", 3},
    {"n-mem", OPT_N_MEM, "N", 0, "Sessions that fit into memory (default: a ready line's n_mem)",
     0},
    {"kv", OPT_KV, "POLICY", 0,
     "unbounded, or window=W[,sinks=S]: how long a session's cache can grow (default: a ready or "
     "opened line's kv)",
     0},
    {"pool-tokens", OPT_POOL_TOKENS, "N", 0,
     "Unbounded: tokens in the pool (default: a ready line's)", 0},
    {"rate", OPT_RATE, "TOKENS", 0, "Unbounded: tokens a second that a session adds", 0},
    {"duration", OPT_DURATION, "D", 0,
     "Unbounded: mean length of a call; admit what the pool carries for two of them", 0},
    {0, 0, 0, 0, "Other:", 4},
    {"quiet", 'q', 0, 0, "Only errors on standard error", 0},
    {0},
};

static const char doc[] =
    "Find how many sessions stay on the beat: frame records on standard input, cap requests on "
    "standard output.\v"
    "The loop:  mt-probe watch -s mt.sock | mt-admit | mt-probe cap -s mt.sock\n"
    "The same:  mt-admit -s mt.sock\n\n"
    "Durations take ms, s, min, h, a bare number is seconds.";

struct args {
    struct mt_admit_opts law;
    const char *socket, *agent;
    int64_t deadline_ns; /* 0: the records' */
    bool share, cut_given, n_mem_given, kv_given, pool_given;
};

/* ---- options ---- */

static void parse_kv(struct argp_state *st, struct args *a, const char *arg)
{
    struct mt_policy p = {0};
    struct mt_err e = {0};

    if (mt_policy_parse(arg, &p, &e) < 0)
        argp_error(st, "--kv: '%s': %s", arg, e.text);
    if (p.bounded && p.sinks < 0)
        argp_error(st, "--kv: '%s': give the prompt's tokens as sinks=S", arg);
    a->law.limit_tokens = p.bounded ? (double)(p.window + p.sinks) : 0;
    a->kv_given = true;
}

static void check(struct argp_state *st, struct args *a)
{
    struct mt_admit_opts *o = &a->law;

    if (a->share && a->cut_given)
        argp_error(st, "--mode=share cuts at the target: --cut has no place there");
    if (a->share)
        o->cut = o->target;
    if (o->target > o->cut)
        argp_error(st, "--target: %g is above --cut %g", o->target, o->cut);
    if (o->min > o->max)
        argp_error(st, "--min: %d is above --max %d", o->min, o->max);
    if (o->cap0 == 0)
        o->cap0 = o->min > 4 ? o->min : o->max < 4 ? o->max : 4;
    if (o->cap0 < o->min || o->cap0 > o->max)
        argp_error(st, "--cap0: %d is not in %d..%d (--min, --max)", o->cap0, o->min, o->max);
    if ((o->rate_tokens_s > 0) != (o->duration_s > 0))
        argp_error(st, "--rate and --duration belong together");
    if (a->pool_given && o->rate_tokens_s == 0)
        argp_error(st, "--pool-tokens needs --rate and --duration");
    if (!a->socket && isatty(STDIN_FILENO))
        argp_error(
            st,
            "standard input is a terminal: pipe records in (mt-probe watch -s SOCKET | %s), or "
            "name the server (-s SOCKET)",
            mt_msg_program_name());
}

static error_t parse(int key, char *arg, struct argp_state *st)
{
    static const char *const modes[] = {"band", "share"};
    struct args *a = st->input;
    struct mt_admit_opts *o = &a->law;

    switch (key) {
    case 's':
        a->socket = arg;
        if (!*arg)
            argp_error(st, "--socket: the path is empty");
        break;
    case OPT_AGENT_CHECK:
        a->agent = arg;
        break;
    case OPT_DEADLINE:
        a->deadline_ns = mt_arg_duration(st, "--deadline", arg);
        if (a->deadline_ns < MT_NS_PER_MS || a->deadline_ns > 3600 * MT_NS_PER_S)
            argp_error(st, "--deadline: '%s' is not a duration in 1 ms..1 h", arg);
        break;
    case OPT_TARGET:
        o->target = mt_arg_double(st, "--target", arg, 0.01, 1);
        break;
    case OPT_CUT:
        o->cut = mt_arg_double(st, "--cut", arg, 0.01, 1);
        a->cut_given = true;
        break;
    case OPT_ALPHA:
        o->alpha = mt_arg_double(st, "--alpha", arg, 0.01, 1000);
        break;
    case OPT_BETA:
        o->beta = mt_arg_double(st, "--beta", arg, 0.5, 0.99);
        break;
    case OPT_MODE:
        a->share = mt_arg_word(st, "--mode", arg, modes, 2) == 1;
        break;
    case OPT_MIN:
        o->min = (int)mt_arg_i64(st, "--min", arg, 1, MT_ADMIT_CAP_MAX);
        break;
    case OPT_MAX:
        o->max = (int)mt_arg_i64(st, "--max", arg, 1, MT_ADMIT_CAP_MAX);
        break;
    case OPT_CAP0:
        o->cap0 = (int)mt_arg_i64(st, "--cap0", arg, 1, MT_ADMIT_CAP_MAX);
        break;
    case OPT_WARMUP:
        o->warmup = (int)mt_arg_i64(st, "--warmup", arg, 0, 1000);
        break;
    case OPT_N_MEM:
        o->n_mem = (int)mt_arg_i64(st, "--n-mem", arg, 1, MT_ADMIT_CAP_MAX);
        a->n_mem_given = true;
        break;
    case OPT_KV:
        parse_kv(st, a, arg);
        break;
    case OPT_POOL_TOKENS:
        o->pool_tokens = (double)mt_arg_i64(st, "--pool-tokens", arg, 1, INT64_C(1) << 50);
        a->pool_given = true;
        break;
    case OPT_RATE:
        o->rate_tokens_s = mt_arg_double(st, "--rate", arg, 1e-3, 1e9);
        break;
    case OPT_DURATION:
        o->duration_s = (double)mt_arg_duration(st, "--duration", arg) / 1e9;
        break;
    case OPT_NO_LOOK_AHEAD:
        o->look_ahead = false;
        break;
    case OPT_NO_PROJECTION:
        o->project = false;
        break;
    case 'q':
        mt_msg_level(MT_ERROR);
        break;
    case ARGP_KEY_ARG:
        argp_error(st, "'%s': records come on standard input, or from -s SOCKET", arg);
        break;
    case ARGP_KEY_END:
        check(st, a);
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

/* ---- the controller ---- */

struct control {
    const struct args *a;
    struct mt_admit law;
    struct mt_ticks ticks;
    bool begun;                    /* T is known, the law runs */
    struct mt_wire_client *server; /* to set caps, NULL: they are on stdout only */
    struct mt_agent_server *agent; /* NULL: nobody asks */
    char health[16];               /* the server's word, "": none */
    int sessions;                  /* by its last status line, -1: none */
    int64_t stalled_ns;            /* since when it has been stalled, 0: it has not */
    int64_t broken;
    bool warned_band, warned_cap;
};

static int64_t now_ns(void)
{
    struct mt_clock clock = mt_clock_real();

    return clock.now_ns(&clock);
}

static void set_int(json_t *obj, const char *key, int64_t v)
{
    json_object_set_new(obj, key, json_integer(v));
}

/* What the decision rests on: the window's signal, the model of the cost, and the counts so far. */
static void explain(const struct control *c, const struct mt_admit_decision *d, json_t *o)
{
    const struct mt_admit *law = &c->law;
    const struct mt_ticks_counts *r = &c->ticks.counts;
    double T = law->opts.deadline_s;

    mt_json_set_real(o, "t", d->t_s);
    mt_json_set_real(o, "deadline_ms", c->begun ? T * 1e3 : NAN);
    mt_json_set_real(o, "signal_ms", d->signal_s * 1e3);
    mt_json_set_real(o, "projected_ms", d->projected_s * 1e3);
    set_int(o, "frames", d->frames);
    set_int(o, "window_misses", d->misses);
    set_int(o, "sessions", d->sessions);
    mt_json_set_real(o, "pool", law->pool);
    if (law->model.known) {
        int64_t n_star = mt_admit_fits(law, law->opts.target),
                n_cut = mt_admit_fits(law, law->opts.cut);

        mt_json_set_real(o, "cost_a_ms", law->model.a_s * 1e3);
        mt_json_set_real(o, "cost_b_ms", law->model.b_s * 1e3);
        if (n_star != MT_NO_LIMIT)
            set_int(o, "n_star", n_star);
        if (n_cut != MT_NO_LIMIT)
            set_int(o, "n_cut", n_cut);
    }
    if (law->model.slow) {
        mt_json_set_real(o, "cost_b0_ms", law->model.b0_s * 1e3);
        mt_json_set_real(o, "cost_token_ms", law->model.b1_s * 1e3);
    }
    if (law->opts.n_mem > 0)
        set_int(o, "n_mem", law->opts.n_mem);
    set_int(o, "records", r->records);
    set_int(o, "ontime", law->counts.ontime);
    set_int(o, "late", law->counts.late);
    set_int(o, "skipped", law->counts.skipped);
    set_int(o, "refused", r->refused);
    set_int(o, "contradictions", r->contradictions);
    set_int(o, "untruthful", law->counts.untruthful);
    set_int(o, "empty", law->counts.empty + r->empty);
    set_int(o, "cold", law->counts.cold);
    set_int(o, "misses", law->counts.misses);
    set_int(o, "grows", law->counts.grows);
    set_int(o, "cuts", law->counts.cuts);
}

/*
 * Ask the server, and wait for its word, so that it can't be swamped. 0 or a negative errno; what
 * failed was printed.
 */
static int set_cap(struct mt_wire_client *server, const json_t *request)
{
    struct mt_err e = {0};
    json_t *answer;
    int rc = mt_wire_send(server, json_copy((json_t *)request), NULL, 0, &e);

    while (rc >= 0 && (rc = mt_wire_recv(server, &answer, &e)) > 0) {
        const char *type = json_string_value(json_object_get(answer, "type"));
        const char *why = json_string_value(json_object_get(answer, "error"));
        bool done = !strcmp(type, "cap");

        if (!strcmp(type, "error"))
            rc = mt_err_set(&e, -EPROTO, "the server says: %s",
                            why ? why : "an error without a text");
        json_decref(answer);
        if (done)
            return 0;
    }
    if (rc == 0)
        return 0; /* it closed: the watching side says so too */
    if (rc != -EINTR)
        mt_msg(MT_ERROR, "%s", e.code ? e.text : strerror(-rc));
    return -ECANCELED;
}

static int tell(struct control *c, const struct mt_admit_decision *d)
{
    json_t *o = json_pack("{s:i, s:s, s:i, s:s, s:s, s:s}", "metronome", MT_WIRE_VERSION, "type",
                          "cap", "cap", d->limit, "reason", mt_admit_reason_name(d->reason), "mode",
                          mt_admit_mode_name(d->mode), "bound", mt_binding_name(d->bound));
    int rc;

    mt_json_set_real(o, "cap_exact", d->cap);
    explain(c, d, o);
    if (c->server && d->reason != MT_ADMIT_BY_END && (rc = set_cap(c->server, o)) < 0) {
        json_decref(o);
        return rc;
    }
    return mt_json_line(stdout, o);
}

static int decided(struct control *c, const struct mt_admit_decision *d)
{
    const struct mt_admit *law = &c->law;

    if (d->reason == MT_ADMIT_BY_RESEND && !c->warned_cap)
        mt_msg(
            MT_WARN,
            "the server's cap is %d, not %d as it was told; it is told again until it shows (does "
            "somebody else set it?)",
            c->ticks.cap, d->limit);
    c->warned_cap = d->reason == MT_ADMIT_BY_RESEND;
    if (!c->warned_band && law->model.known && law->opts.cut > law->opts.target &&
        (law->opts.cut - law->opts.target) * law->opts.deadline_s <
            2 * law->model.b_s * law->opts.alpha) {
        mt_msg(MT_WARN,
               "the band from target to cut is %.3g ms wide and a session costs %.3g ms: the cap "
               "may jump "
               "over it",
               (law->opts.cut - law->opts.target) * law->opts.deadline_s * 1e3,
               law->model.b_s * 1e3);
        c->warned_band = true;
    }
    return tell(c, d);
}

/* The law as far as it can be before T is known: what the start says. */
static int start(struct control *c)
{
    struct mt_admit_opts o = c->a->law;
    struct mt_admit_decision d;
    struct mt_err e = {0};

    c->begun = c->a->deadline_ns > 0;
    o.deadline_s = c->begun ? (double)c->a->deadline_ns / 1e9 : 1;
    if (mt_admit_init(&c->law, &o, &e) < 0) {
        mt_msg(MT_ERROR, "%s", e.text);
        return -ECANCELED;
    }
    mt_ticks_init(&c->ticks, c->begun ? o.deadline_s : 0);
    mt_admit_begin(&c->law, &d);
    return tell(c, &d);
}

static int begin(struct control *c)
{
    struct mt_admit_opts o = c->law.opts; /* memory may be known by now */
    struct mt_err e = {0};

    o.deadline_s = c->ticks.deadline_s;
    if (mt_admit_init(&c->law, &o, &e) < 0) {
        mt_msg(MT_ERROR, "the records' %s", e.text);
        return -ECANCELED;
    }
    c->begun = true;
    return 0;
}

static int advance(struct control *c)
{
    struct mt_admit_decision d;
    struct mt_admit_obs obs;
    int rc = 0;

    while (rc >= 0 && mt_ticks_next(&c->ticks, &obs))
        if (mt_admit_frame(&c->law, &obs, &d))
            rc = decided(c, &d);
    return rc;
}

static int take_frame(struct control *c, json_t *obj)
{
    struct mt_record r;
    const char *session;
    int rc = mt_wire_record_parse(obj, &r, &session);

    if (rc < 0)
        return -EBADMSG;
    rc = mt_ticks_record(&c->ticks, &r, json_is_true(json_object_get(obj, "cold")));
    if (rc == -ENODATA) {
        mt_msg(MT_ERROR, "the records have no deadline_ms: give --deadline");
        return -ECANCELED;
    }
    if (!c->begun && (rc = begin(c)) < 0)
        return rc;
    return advance(c);
}

/*
 * The server's plan, in its ready, opened and status lines: how many fit, how long a session's
 * cache can grow, how large the pool is.
 */
static void take_plan(struct control *c, json_t *obj)
{
    const char *kv = json_string_value(json_object_get(obj, "kv"));
    json_int_t n_mem = json_integer_value(json_object_get(obj, "n_mem"));
    double pool = json_number_value(json_object_get(obj, "pool_blocks")) *
                  json_number_value(json_object_get(obj, "block"));
    struct mt_admit_opts o = c->law.opts;
    struct mt_policy p = {0};

    if (!kv || mt_policy_parse(kv, &p, NULL) < 0)
        return;
    if (!c->a->n_mem_given && p.bounded && n_mem >= 1 && n_mem <= MT_ADMIT_CAP_MAX)
        o.n_mem = (int)n_mem; /* of an unbounded cache n_mem is for the first frame only */
    if (!c->a->kv_given && (!p.bounded || p.sinks >= 0))
        o.limit_tokens = p.bounded ? (double)(p.window + p.sinks) : 0;
    if (!c->a->pool_given && !p.bounded && pool > 0 && pool < 0x1p52)
        o.pool_tokens = pool;
    mt_admit_memory(&c->law, o.n_mem, o.limit_tokens, o.pool_tokens);
}

static int take_status(struct control *c, json_t *obj)
{
    json_t *t = json_object_get(obj, "t"), *oldest = json_object_get(obj, "oldest_ms");
    json_t *sessions = json_object_get(obj, "sessions"), *pending = json_object_get(obj, "pending");
    const char *health = json_string_value(json_object_get(obj, "health"));
    struct mt_admit_decision d;
    double now_s, age_s;
    int rc;

    if (!json_is_number(t) || !json_is_integer(sessions) || json_integer_value(sessions) < 0 ||
        json_integer_value(sessions) > INT_MAX)
        return 0; /* somebody else's status */
    take_plan(c, obj);
    c->sessions = (int)json_integer_value(sessions);
    snprintf(c->health, sizeof(c->health), "%s", health ? health : "");
    now_s = mt_ticks_status(&c->ticks, json_number_value(t));
    if (isnan(now_s))
        return 0;
    if ((rc = advance(c)) < 0)
        return rc;
    age_s = json_is_number(oldest) ? json_number_value(oldest) / 1e3 : NAN;
    if (json_is_integer(pending) && json_integer_value(pending) == 0)
        age_s = 0;
    if (mt_admit_pending(&c->law, now_s, age_s, (int)json_integer_value(sessions), &d))
        rc = decided(c, &d);
    return rc;
}

static int take(struct control *c, json_t *obj)
{
    const char *type = json_string_value(json_object_get(obj, "type"));

    if (!type)
        return 0;
    if (!strcmp(type, "frame"))
        return take_frame(c, obj);
    if (!strcmp(type, "status"))
        return take_status(c, obj);
    if (!strcmp(type, "ready") || !strcmp(type, "opened"))
        take_plan(c, obj);
    return 0;
}

/* ---- what the proxy is told ---- */

/* After each word of the server, so that its silence shows, too. */
static void tell_agent(struct control *c)
{
    double stale_s = STALE_T * (c->begun ? c->law.opts.deadline_s : 1);
    struct mt_agent a = mt_agent_judge(&c->law, *c->health ? c->health : NULL);

    if (!c->agent)
        return;
    if (c->sessions >= 0)
        a.sessions = c->sessions;
    if (a.state == MT_AGENT_STALLED) {
        if (c->stalled_ns == 0)
            c->stalled_ns = now_ns();
        a.stalled_ms = (now_ns() - c->stalled_ns) / MT_NS_PER_MS;
    } else {
        c->stalled_ns = 0;
    }
    mt_agent_tell(c->agent, &a,
                  stale_s * 1e9 > (double)STALE_NS ? (int64_t)(stale_s * 1e9) : STALE_NS);
}

static void tell_agent_gone(struct control *c)
{
    struct mt_agent a = {.state = MT_AGENT_STOPPED};

    if (c->agent)
        mt_agent_tell(c->agent, &a, 0);
}

/* ---- where the records come from ---- */

static int take_line(void *ctx, const char *line, size_t n)
{
    json_t *obj = json_loadb(line, n, 0, NULL);
    int rc = json_is_object(obj) ? take(ctx, obj) : -EBADMSG;

    json_decref(obj);
    tell_agent(ctx);
    return rc;
}

static int from_stdin(struct control *c)
{
    int rc = mt_lines_each(STDIN_FILENO, MT_WIRE_LINE_MAX, take_line, c, &c->broken);

    if (rc < 0 && rc != -ECANCELED && rc != -EPIPE && !ferror(stdout))
        mt_msg(MT_ERROR, "standard input: %s", strerror(-rc));
    return rc;
}

/* Status lines once a T: they are what tells a stall from silence. */
static int watch(const struct control *c, struct mt_wire_client *w, struct mt_err *e)
{
    double T = c->begun ? c->law.opts.deadline_s : 1;
    int64_t ms = (int64_t)fmin(fmax(T * 1e3, 10), 3600e3);

    return mt_wire_send(w,
                        json_pack("{s:i, s:s, s:I}", "metronome", MT_WIRE_VERSION, "type", "watch",
                                  "period_ms", (json_int_t)ms),
                        NULL, 0, e);
}

static int follow(struct control *c, struct mt_wire_client *w, struct mt_err *e)
{
    bool begun = c->begun;
    json_t *msg;
    int rc = watch(c, w, e);

    while (rc >= 0 && (rc = mt_wire_recv(w, &msg, e)) > 0) {
        const char *type = json_string_value(json_object_get(msg, "type"));
        const char *why = json_string_value(json_object_get(msg, "error"));

        if (!strcmp(type, "error"))
            rc = mt_err_set(e, -EPROTO, "the server says: %s",
                            why ? why : "an error without a text");
        else if ((rc = take(c, msg)) == -EBADMSG)
            rc = 0, c->broken++;
        json_decref(msg);
        tell_agent(c);
        if (rc >= 0 && c->begun && !begun) { /* T is known now */
            begun = true;
            rc = watch(c, w, e);
        }
    }
    return rc;
}

/* One connection's life: records come on one, caps go over another. */
static int from_server(struct control *c, struct mt_err *e)
{
    struct mt_wire_client *w = NULL;
    int rc = mt_wire_connect(&c->server, c->a->socket, ANSWER_NS, e);

    if (rc >= 0 && (rc = mt_wire_connect(&w, c->a->socket, 0, e)) >= 0) {
        rc = start(c);
        rc = rc < 0 ? rc : follow(c, w, e);
    }
    mt_wire_disconnect(&w);
    mt_wire_disconnect(&c->server);
    return rc;
}

/* What is left, and the last word. */
static int finish(struct control *c)
{
    struct mt_admit_decision d;
    int rc;

    mt_ticks_end(&c->ticks);
    if ((rc = advance(c)) < 0)
        return rc;
    mt_admit_end(&c->law, &d);
    return tell(c, &d);
}

/*
 * A proxy's questions go on while the server is away, and its calls go elsewhere; what is wrong is
 * said once.
 */
static int attend(struct control *c)
{
    struct mt_clock clock = mt_clock_real();
    bool said = false;

    for (;;) {
        struct mt_err e = {0};
        bool was_there;
        int rc;

        c->sessions = -1;
        rc = from_server(c, &e);
        was_there = c->sessions >= 0;
        if (rc == -EPIPE || ferror(stdout))
            return rc;
        if (was_there) {
            tell_agent_gone(c);
            if ((rc = finish(c)) < 0)
                return rc;
        }
        if (was_there || !said)
            mt_msg(MT_WARN, "%s; it is waited for", e.code ? e.text : "the server closed");
        said = true;
        clock.sleep_until_ns(&clock, now_ns() + AGAIN_NS);
    }
}

/* With port 0 somebody has to be told which it became. */
static int tell_ready(const struct control *c)
{
    return mt_json_line(stdout, json_pack("{s:i, s:s, s:s, s:s}", "metronome", MT_WIRE_VERSION,
                                          "type", "ready", "tool", "mt-admit", "agent_check",
                                          mt_agent_where(c->agent)));
}

static int run(struct control *c)
{
    struct mt_err e = {0};
    int rc;

    if (c->agent && (rc = tell_ready(c)) < 0)
        return rc;
    if (c->a->socket && c->agent)
        return attend(c);
    if (c->a->socket)
        rc = from_server(c, &e);
    else if ((rc = start(c)) >= 0)
        rc = from_stdin(c);
    if (e.code)
        mt_msg(MT_ERROR, "%s", e.text);
    if (c->broken)
        mt_msg(MT_WARN, "%lld broken lines left out", (long long)c->broken);
    return rc < 0 ? rc : finish(c);
}

/* A service manager may have made the socket, whatever it calls it. */
static int open_agent(struct control *c, struct mt_err *e)
{
    struct mt_service_fd fd;
    int n = mt_service_fds(&fd, 1, e);

    if (n == 1 && c->a->agent)
        return mt_err_set(e, -EINVAL, "the service manager has a socket for it");
    if (n == 1)
        return mt_agent_serve_fd(&c->agent, fd.fd, e);
    return n < 0 || !c->a->agent ? n : mt_agent_serve(&c->agent, c->a->agent, e);
}

/* Each line was flushed by one write, so nothing is left to do, wherever this comes. */
static void on_stop(int number)
{
    (void)number;
    _exit(MT_EXIT_OK);
}

int main(int argc, char **argv)
{
    static const struct argp argp = {options, parse, NULL, doc, NULL, NULL, NULL};
    struct args a = {0};
    struct control c = {.a = &a, .sessions = -1};
    struct mt_err e = {0};
    int rc;

    mt_msg_program(argv[0]);
    mt_close_stdout_at_exit();
    argp_err_exit_status = MT_EXIT_USAGE;
    mt_admit_defaults(&a.law);
    a.law.cap0 = 0;
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGINT, on_stop);
    signal(SIGTERM, on_stop);
    if ((rc = open_agent(&c, &e)) < 0) {
        mt_msg(MT_ERROR, "--agent-check: %s", e.text);
        return mt_close_stdout(rc == -EINVAL || rc == -ENAMETOOLONG ? MT_EXIT_USAGE
                                                                    : MT_EXIT_FAILED);
    }
    rc = run(&c);
    mt_agent_stop(&c.agent);
    return mt_close_stdout(rc < 0 && rc != -EPIPE ? MT_EXIT_FAILED : MT_EXIT_OK);
}
