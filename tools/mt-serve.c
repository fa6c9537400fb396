/*
 * mt-serve: a speech model as a server on sockets, or one call through a pipe. Options, and
 * the parts put together; the work is lib/engine's and lib/wire's.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "base/service.h"
#include "engine/args.h"
#include "control/simulate.h"
#include "metrics/notify.h"
#include "wire/wire.h"

#define KV_DEFAULT         "window=2048,sinks=4"
#define POOL_DEFAULT       (INT64_C(2) << 30)
#define GPU_MEMORY_DEFAULT 0.9

enum {
    OPT_MMPROJ = 256,
    OPT_QUANTIZE,
    OPT_KV,
    OPT_ROPE,
    OPT_BLOCK,
    OPT_POOL,
    OPT_GPU_MEMORY,
    OPT_KV_TYPE,
    OPT_FRAME,
    OPT_DEADLINE,
    OPT_MODE,
    OPT_ANSWER_TOKENS,
    OPT_STEP_TOKENS,
    OPT_MAX_SESSIONS,
    OPT_IDLE_TIMEOUT,
    OPT_SYSTEM,
    OPT_SEED,
    OPT_THREADS,
    OPT_BACKEND,
    OPT_DETERMINISTIC,
    OPT_SILENT_STALL,
    OPT_PACE_ADMISSION,
    OPT_CLOSE_STALLED,
    OPT_FAULT,
    OPT_METRICS,
    OPT_SAVE_DIR,
    OPT_HANDOFF,
    OPT_TCP,
    OPT_LISTEN_PUBLIC,
    OPT_DRY_RUN,
};

static const struct argp_option options[] = {
    {"model", 'm', "MODEL", 0,
     "A released directory, a GGUF file, or synth:NAME[,seed=N][,layers=N][,dtype=T] (default "
     "$MT_MODEL, else the model installed with metronome)",
     1},
    {"mmproj", OPT_MMPROJ, "FILE|synth", 0,
     "With a GGUF file: its audio tower's file, or a random tower", 1},
    {"quantize", OPT_QUANTIZE, "TYPE", 0,
     "Make float matrices smaller when they are loaded: q8_0 or q4_k", 1},
    {"socket", 's', "SOCKET", 0,
     "Serve on this Unix socket, or at tcp:HOST:PORT; may be given more than once (default: one "
     "call over standard input and output)",
     1},
    {"tcp", OPT_TCP, "LIST", 0,
     "What clients over TCP may do: connections=N at a time (default --max-sessions), "
     "per-address=N "
     "of them from one address (any), opens=R new ones a second (20), rate=X times as fast as it "
     "runs may audio come (16), idle=D (60s), control: not only call",
     1},
    {"listen-public", OPT_LISTEN_PUBLIC, 0, 0,
     "Allow -s tcp:… at addresses that other machines reach; there is no encryption", 1},
    {"metrics", OPT_METRICS, "ADDR|unix:PATH", 0,
     "Serve metrics for Prometheus and the server's health over HTTP at HOST:PORT, PORT (of this "
     "machine only) or a Unix socket",
     1},
    {"save-dir", OPT_SAVE_DIR, "DIR", 0,
     "Calls may be saved to this folder and loaded from it (default: they may not)", 1},
    {"handoff", OPT_HANDOFF, "PATH", 0,
     "Take over sockets and live calls from the server that waits on this Unix socket, if there is "
     "one; then wait there for a successor",
     1},
    {"dry-run", OPT_DRY_RUN, 0, 0, "Print the ready line with the memory plan and exit", 1},
    {0, 0, 0, 0, "Memory:", 2},
    {"kv", OPT_KV, "POLICY", 0,
     "unbounded, or window=W[,sinks=S|prompt] in tokens (default " KV_DEFAULT ")", 0},
    {"rope", OPT_ROPE, "WHERE", 0,
     "Where sinks stand: cache, before the window (default), or absolute", 0},
    {"pool", OPT_POOL, "SIZE", 0,
     "KV memory of all sessions: bytes, Nb for blocks, or auto: what a card has left (default "
     "2GiB)",
     0},
    {"gpu-memory", OPT_GPU_MEMORY, "SHARE", 0,
     "With --pool auto: share of the card's memory to use in all (default 0.9)", 0},
    {"block", OPT_BLOCK, "TOKENS", 0, "Tokens in a block (default 16)", 0},
    {"kv-type", OPT_KV_TYPE, "TYPE", 0,
     "Storage of keys and values: bf16 (default), f16, f32, int8, fp8", 0},
    {0, 0, 0, 0, "Time:", 3},
    {"frame", OPT_FRAME, "D", 0, "Length of a frame (default: the model's own beat)", 0},
    {"deadline", OPT_DEADLINE, "D", 0,
     "From a frame's audio being complete to its answer being due (default: the frame's length)",
     0},
    {"mode", OPT_MODE, "MODE", 0,
     "turn: an answer ends where the model ends it (default); free: it always has --answer-tokens",
     0},
    {"answer-tokens", OPT_ANSWER_TOKENS, "N", 0,
     "Most tokens of a frame's answer (default 16, or as many as the model's rules allow)", 0},
    {"step-tokens", OPT_STEP_TOKENS, "N", 0, "Most rows of one step, all sessions (default 512)",
     0},
    {0, 0, 0, 0, "Sessions:", 4},
    {"max-sessions", OPT_MAX_SESSIONS, "N", 0, "Most sessions at a time (default 256)", 0},
    {"idle-timeout", OPT_IDLE_TIMEOUT, "D", 0,
     "Close a session that sends nothing for so long (default 0: never)", 0},
    {"pace-admission", OPT_PACE_ADMISSION, 0, 0,
     "Admit one session in 5 frames, after two at once: a burst of first frames looks like "
     "overload",
     0},
    {"close-stalled", OPT_CLOSE_STALLED, "N", 0,
     "Close a session after N frames in a row that nothing was computed for (default 0: never)", 0},
    {"system", OPT_SYSTEM, "TEXT", 0,
     "System prompt of sessions that bring none (default: the model's)", 0},
    {"seed", OPT_SEED, "N", 0, "Seed of sessions that bring none (default 1)", 0},
    {0, 0, 0, 0, "Other:", 5},
    {"threads", OPT_THREADS, "N", 0,
     "Threads that compute (default 0: as many as there are processors)", 0},
    {"backend", OPT_BACKEND, "NAME", 0,
     "What computes: cpu[:exact] (default cpu), cuda[:exact,device=N], or nothing, in a "
     "given time: "
     "cost:a=D,b=D[,…]",
     0},
    {"deterministic", OPT_DETERMINISTIC, 0, 0,
     "On a card too, nobody's answer depends on who else is served (on the CPU it never does)", 0},
    {"silent-stall", OPT_SILENT_STALL, 0, 0,
     "Mark stalled frames ok, as ordinary engines do (to see what that hides)", 0},
    {"fault", OPT_FAULT, "LIST", 0,
     "Break something on purpose, to see what it looks like: stop-compute[=D], slow=X, "
     "drop-client[=N], full-disk",
     0},
    {"quiet", 'q', 0, 0, "Only errors on standard error", 0},
    {"verbose", 'v', 0, 0, "Say what happens to connections (twice: to each)", 0},
    {0},
};

static const char doc[] =
    "Serve a real-time speech model, each call's memory bounded.\v"
    "One call through a pipe:  mt-feed call.wav | mt-serve | jq -r .text\n"
    "A server:  mt-serve -s mt.sock &  mt-feed -s mt.sock call.wav\n\n"
    "Sizes take K, M, G, KiB, MiB, GiB; durations take ms, s, min, h, a bare number is seconds.";

struct args {
    struct mt_engine_opts engine;
    const char *model, *mmproj, *metrics, *backend, *save_dir, *handoff;
    const char *sockets[MT_DOORS];
    int n_sockets;
    int fds[MT_DOORS]; /* that the service manager made */
    int n_fds, metrics_fd;
    struct mt_wire_tcp tcp;
    bool tcp_given, public;
    enum mt_dtype quantize;
    struct mt_wire_fault fault;
    bool faulty;
    int64_t pool_bytes; /* 0: engine.pool_blocks says it */
    bool pool_auto;
    double gpu_memory; /* 0: not given */
    int threads;
    bool deterministic;
    bool kv_given;
    bool answer_given; /* --answer-tokens; else a model's own limit goes before ours */
    bool dry_run;
    enum mt_level level;
};

/* ---- options ---- */

static void check_sockets(struct argp_state *st, const struct args *a)
{
    bool tcp = false;

    for (int i = 0; i < a->n_sockets; i++) {
        struct mt_err e = {0};
        int rc = mt_wire_public(a->sockets[i], &e);

        tcp = tcp || mt_wire_is_tcp(a->sockets[i]);
        if (rc < 0)
            argp_error(st, "--socket: %s", e.text);
        if (rc > 0 && !a->public)
            argp_error(st,
                       "--socket: %s can be reached from other machines, and there is no "
                       "encryption: put a proxy before it, or give --listen-public",
                       a->sockets[i]);
    }
    for (int i = 0; i < a->n_fds; i++)
        if (mt_wire_public_fd(a->fds[i]) && !a->public)
            argp_error(st,
                       "a socket of the service manager can be reached from other machines, and "
                       "there is no encryption: put a proxy before it, or give --listen-public");
    if ((a->tcp_given || a->public) && !tcp && !a->n_fds)
        argp_error(st, "--%s: nobody comes over TCP: give -s tcp:HOST:PORT",
                   a->tcp_given ? "tcp" : "listen-public");
}

static void check(struct argp_state *st, const struct args *a)
{
    bool server = a->n_sockets || a->n_fds;

    check_sockets(st, a);
    if (a->n_sockets + a->n_fds > MT_DOORS)
        argp_error(st, "--socket: at most %d of them, with those of the service manager", MT_DOORS);
    if (a->metrics && a->metrics_fd >= 0)
        argp_error(st, "--metrics: the service manager has a socket for them");
    if (a->gpu_memory > 0 && !a->pool_auto)
        argp_error(st, "--gpu-memory: it goes with --pool auto");
    if (a->faulty && !server)
        argp_error(st, "--fault: what it breaks is a server's: give a socket (-s SOCKET)");
    if ((a->metrics || a->metrics_fd >= 0) && !server)
        argp_error(st, "--metrics: they are a server's: give a socket (-s SOCKET)");
    if (a->save_dir && !server)
        argp_error(st, "--save-dir: a server's calls are saved: give a socket (-s SOCKET)");
    if (a->handoff && !server)
        argp_error(st, "--handoff: a server's calls are handed over: give a socket (-s SOCKET)");
    if (a->fault.full_disk && !a->save_dir)
        argp_error(st, "--fault: full-disk: no call is saved: give a folder (--save-dir DIR)");
    if (!server && !a->dry_run && isatty(STDIN_FILENO))
        argp_error(st,
                   "standard input is a terminal: pipe a call in (mt-feed FILE | %s), or serve a "
                   "socket (-s SOCKET)",
                   mt_msg_program_name());
}

static void parse_tcp(struct argp_state *st, const char *arg, struct args *a)
{
    struct mt_err e = {0};

    a->tcp_given = true;
    if (mt_wire_tcp_parse(arg, &a->tcp, &e) < 0)
        argp_error(st, "--tcp: '%s': %s", arg, e.text);
}

static void parse_fault(struct argp_state *st, const char *arg, struct args *a)
{
    struct mt_err e = {0};

    a->faulty = true;
    if (mt_wire_fault_parse(arg, &a->fault, &e) < 0)
        argp_error(st, "--fault: '%s': %s", arg, e.text);
}

static void parse_handoff(struct argp_state *st, const char *arg, struct args *a)
{
    struct mt_err e = {0};

    a->handoff = arg;
    if (mt_wire_handoff_check(arg, &e) < 0)
        argp_error(st, "--handoff: %s", e.text);
}

static error_t parse(int key, char *arg, struct argp_state *st)
{
    static const char *const modes[] = {"turn", "free"};
    struct args *a = st->input;
    struct mt_engine_opts *o = &a->engine;

    switch (key) {
    case 'm':
        a->model = arg;
        break;
    case OPT_MMPROJ:
        a->mmproj = arg;
        break;
    case OPT_QUANTIZE:
        a->quantize = mt_arg_quantize(st, arg);
        break;
    case 's':
        if (a->n_sockets == MT_DOORS)
            argp_error(st, "--socket: at most %d of them", MT_DOORS);
        a->sockets[a->n_sockets++] = arg;
        break;
    case OPT_TCP:
        parse_tcp(st, arg, a);
        break;
    case OPT_LISTEN_PUBLIC:
        a->public = true;
        break;
    case OPT_DRY_RUN:
        a->dry_run = true;
        break;
    case OPT_KV:
        mt_arg_kv(st, arg, &o->policy);
        a->kv_given = true;
        break;
    case OPT_ROPE:
        o->policy.rope_absolute = mt_arg_rope(st, arg);
        break;
    case OPT_POOL:
        a->pool_bytes = o->pool_blocks = 0;
        if (!(a->pool_auto = !strcmp(arg, "auto")))
            mt_arg_pool(st, arg, INT32_MAX, &a->pool_bytes, &o->pool_blocks);
        break;
    case OPT_GPU_MEMORY:
        a->gpu_memory = mt_arg_double(st, "--gpu-memory", arg, 0.01, 1);
        break;
    case OPT_BLOCK:
        o->block_tokens = (int)mt_arg_i64(st, "--block", arg, 1, 1024);
        break;
    case OPT_KV_TYPE:
        o->kv_type = mt_arg_kv_type(st, arg);
        break;
    case OPT_FRAME:
        o->frame_ns = mt_arg_duration(st, "--frame", arg);
        break;
    case OPT_DEADLINE:
        o->deadline_ns = mt_arg_duration(st, "--deadline", arg);
        break;
    case OPT_MODE:
        o->mode = mt_arg_word(st, "--mode", arg, modes, 2) ? MT_MODE_FREE : MT_MODE_TURN;
        break;
    case OPT_ANSWER_TOKENS:
        o->answer_tokens = (int)mt_arg_i64(st, "--answer-tokens", arg, 1, 65536);
        a->answer_given = true;
        break;
    case OPT_STEP_TOKENS:
        o->step_tokens = (int)mt_arg_i64(st, "--step-tokens", arg, 1, 65536);
        break;
    case OPT_MAX_SESSIONS:
        o->max_sessions = (int)mt_arg_i64(st, "--max-sessions", arg, 1, 65536);
        break;
    case OPT_IDLE_TIMEOUT:
        o->idle_ns = mt_arg_duration0(st, "--idle-timeout", arg);
        break;
    case OPT_SYSTEM:
        o->system = arg;
        break;
    case OPT_SEED:
        o->seed = (uint64_t)mt_arg_i64(st, "--seed", arg, 0, INT64_MAX);
        break;
    case OPT_THREADS:
        a->threads = mt_arg_threads(st, arg);
        break;
    case OPT_BACKEND:
        a->backend = arg;
        break;
    case OPT_DETERMINISTIC:
        a->deterministic = true;
        break;
    case OPT_PACE_ADMISSION:
        o->pace = true;
        break;
    case OPT_CLOSE_STALLED:
        o->close_stalled = (int)mt_arg_i64(st, "--close-stalled", arg, 0, INT32_MAX);
        break;
    case OPT_METRICS:
        a->metrics = arg;
        break;
    case OPT_SAVE_DIR:
        a->save_dir = arg;
        break;
    case OPT_HANDOFF:
        parse_handoff(st, arg, a);
        break;
    case OPT_FAULT:
        parse_fault(st, arg, a);
        break;
    case OPT_SILENT_STALL:
        o->silent_stall = true;
        break;
    case 'q':
        a->level = MT_ERROR;
        break;
    case 'v':
        a->level = a->level < MT_INFO ? MT_INFO : MT_DEBUG;
        break;
    case ARGP_KEY_ARG:
        argp_error(st, "'%s': there is nothing to name but options (audio comes from mt-feed)",
                   arg);
        break;
    case ARGP_KEY_END:
        check(st, a);
        break;
    default:
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static const struct argp argp = {options, parse, 0, doc, 0, 0, 0};
const char *argp_program_version = "mt-serve (metronome) " MT_VERSION;

/* ---- the parts ---- */

struct serve {
    const struct args *a;
    struct mt_backend *backend;
    struct mt_model *model;
    struct mt_wire_hub *hub;
    struct mt_clock clock;
    int64_t shown_ns; /* when the weights' progress was */
    struct mt_engine *engine;
    struct mt_wire_meter *meter;
    struct mt_metrics_server *metrics;
    struct mt_metrics_facts facts;
    struct mt_notifier *notifier;
    int taken; /* sessions of the server before; -1: there was none */
};

static int complain(int rc, const struct mt_err *e)
{
    mt_msg(MT_ERROR, "%s", e->code ? e->text : strerror(-rc));
    return rc == -EINVAL || rc == -ENOTSUP || rc == -ENAMETOOLONG ? MT_EXIT_USAGE : MT_EXIT_FAILED;
}

/* A null server: the model's shape and beat, and steps that take as long as the formula says. */
static int open_cost(struct serve *s, const struct args *a, struct mt_err *e)
{
    struct mt_cost_model c = {
        .sample_rate_hz = 16000, .steps = a->engine.answer_tokens, .seed = a->engine.seed};
    const char *named = a->model ? a->model : mt_model_named();
    struct mt_shape shape;
    int rc;

    if ((rc = mt_shape_open(&shape, named ? named : "qwen2.5-omni-tiny", e)) < 0)
        return rc;
    if (!(shape.audio_tokens_s > 0) || !(shape.frame_s > 0))
        return mt_err_set(e, -EINVAL,
                          "-m: '%s' doesn't say how many tokens a second of audio takes", named);
    if ((rc = mt_cost_parse(a->backend + strlen("cost:"), &c, e)) < 0)
        return rc;
    mt_sim_shape(&c, &shape, a->engine.frame_ns);
    return mt_model_open_cost(&s->model, &c, &s->clock, e);
}

static int open_model(struct serve *s, const struct args *a, const struct mt_model_opts *mo,
                      struct mt_err *e)
{
    const struct mt_model_info *info;
    int rc;

    if (!strncmp(a->backend, "cost:", 5))
        return open_cost(s, a, e);
    if ((rc = (a->deterministic ? mt_backend_open_deterministic
                                : mt_backend_open)(&s->backend, a->backend, a->threads, e)) < 0)
        return rc;
    if ((rc = mt_model_open(&s->model, a->model, s->backend, mo, e)) < 0)
        return rc;
    info = mt_model_info(s->model);
    if (info->deaf)
        return mt_err_set(
            e, -EINVAL,
            "--mmproj: '%s' has no audio tower: give its file, or synth for a random one",
            mt_model_spec(s->model));
    if (*info->remark)
        mt_msg(MT_WARN, "%s: %s", mt_model_spec(s->model), info->remark);
    return 0;
}

/* On a terminal, ten times a second at most. */
static void show_loading(void *ctx, int64_t bytes)
{
    struct serve *s = ctx;
    int64_t now = s->clock.now_ns(&s->clock);

    if (now - s->shown_ns < 100000000)
        return;
    s->shown_ns = now;
    fprintf(stderr, "\r\033[K%s: weights: %.1f GiB", mt_msg_program_name(), (double)bytes / 0x1p30);
}

static int build(struct serve *s, struct args *a, struct mt_err *e)
{
    struct mt_engine_opts *o = &a->engine;
    int want = o->max_sessions < o->step_tokens ? o->max_sessions : o->step_tokens;
    struct mt_model_opts mo = {.step_rows = o->step_tokens,
                               .want_rows = want,
                               .kv_type = o->kv_type,
                               .mmproj = a->mmproj,
                               .quantize = a->quantize,
                               .plan = a->dry_run};
    int rc;

    s->clock = mt_clock_real();
    s->shown_ns = s->clock.now_ns(&s->clock); /* what takes no time is not worth a word */
    if (a->level > MT_ERROR && isatty(STDERR_FILENO)) {
        mo.loading = show_loading;
        mo.ctx = s;
    }
    rc = open_model(s, a, &mo, e);
    if (mo.loading)
        fputs("\r\033[K", stderr);
    if (rc < 0 || (rc = mt_wire_hub_new(&s->hub)) < 0)
        return rc;
    if (!a->answer_given && mt_model_info(s->model)->draws)
        o->answer_tokens = mt_model_info(s->model)->draws;
    if (a->pool_auto && (rc = mt_engine_pool_auto(
                             s->model, o, a->gpu_memory > 0 ? a->gpu_memory : GPU_MEMORY_DEFAULT,
                             &a->pool_bytes, e)) < 0)
        return rc;
    if (a->pool_bytes) {
        struct mt_kv_shape shape = mt_model_kv_shape(s->model, o->block_tokens, o->kv_type);
        int64_t block = mt_kv_block_bytes(&shape);

        o->pool_blocks = a->pool_bytes / block;
        if (o->pool_blocks < 1)
            return mt_err_set(
                e, -ENOSPC,
                "--pool: not one block fits: one has %lld bytes (%d tokens), the pool "
                "%lld",
                (long long)block, o->block_tokens, (long long)a->pool_bytes);
    }
    int64_t context = mt_model_info(s->model)->context;
    if (!a->kv_given && context && o->policy.window > context) {
        o->policy.window = context; /* the default may not be more than the model has */
        o->policy.sinks = o->policy.sinks < context ? o->policy.sinks : 0;
    }
    o->events = mt_wire_hub_events(s->hub);
    return mt_engine_new(&s->engine, s->model, o, &s->clock, e);
}

/* taken: the socket of the server before, or NULL. */
static int serve_metrics(struct serve *s, const struct mt_listener *taken, struct mt_err *e)
{
    struct mt_err why = {0};
    int rc = 0;

    if (taken)
        rc = mt_metrics_serve_taken(&s->metrics, taken, &s->facts, s->meter, &why);
    else if (s->a->metrics)
        rc = mt_metrics_serve(&s->metrics, s->a->metrics, &s->facts, s->meter, &why);
    else if (s->a->metrics_fd >= 0)
        rc = mt_metrics_serve_fd(&s->metrics, s->a->metrics_fd, &s->facts, s->meter, &why);
    return rc < 0 ? mt_err_set(e, rc, "--metrics: %s", why.text) : 0;
}

static int open_metrics(struct serve *s, struct mt_err *e)
{
    const struct mt_engine_plan *plan = mt_engine_plan(s->engine);
    const struct mt_engine_opts *o = mt_engine_options(s->engine);
    int rc = mt_wire_meter_new(&s->meter);

    s->facts = (struct mt_metrics_facts){.backend = mt_model_backend(s->model)->ops->name,
                                         .frame_s = plan->frame_s,
                                         .deadline_s = plan->deadline_s,
                                         .block_bytes = plan->block_bytes,
                                         .max_sessions = o->max_sessions,
                                         .n_mem = o->policy.bounded ? plan->n_mem : 0};
    if (rc < 0 || s->a->dry_run || s->a->handoff)
        return rc; /* with a server before it is not known yet on which socket */
    return serve_metrics(s, NULL, e);
}

static void take_down(struct serve *s)
{
    mt_notifier_stop(&s->notifier);
    mt_metrics_stop(&s->metrics);
    mt_wire_meter_free(&s->meter);
    mt_engine_free(&s->engine);
    mt_wire_hub_free(&s->hub);
    mt_model_close(&s->model);
    mt_backend_close(&s->backend);
}

/* The server before was the manager's main process; now it is this one. */
static void tell_main_pid(void)
{
    char line[40];

    snprintf(line, sizeof(line), "MAINPID=%lld", (long long)getpid());
    mt_service_notify(line);
}

static int print_ready(void *ctx, const char *const *where, int n)
{
    struct serve *s = ctx;
    json_t *o = mt_wire_ready_json(s->engine, s->model), *all = json_array();
    int rc;

    for (int i = 0; i < n; i++)
        json_array_append_new(all, json_string(where[i]));
    if (o && n > 0)
        json_object_set_new(o, "socket", json_string(where[0]));
    if (o && n > 1)
        json_object_set(o, "sockets", all);
    json_decref(all);
    if (o && s->metrics)
        json_object_set_new(o, "metrics", json_string(mt_metrics_where(s->metrics)));
    if (o && s->taken >= 0)
        json_object_set_new(o, "taken", json_integer(s->taken));
    rc = mt_json_line(stdout, o);
    if (s->taken >= 0)
        tell_main_pid();
    mt_notifier_serve(s->notifier, &s->facts, s->meter);
    return rc == -EPIPE || s->taken >= 0 ? 0
                                         : rc; /* nobody waits for it, or calls don't end by it */
}

/* ---- a hand-over ---- */

static int metrics_open(void *ctx, const struct mt_listener *taken, struct mt_err *e)
{
    return serve_metrics(ctx, taken, e);
}

static const struct mt_listener *metrics_door(void *ctx)
{
    return mt_metrics_door(((struct serve *)ctx)->metrics);
}

static void taken(void *ctx, int sessions)
{
    ((struct serve *)ctx)->taken = sessions;
}

static void given(void *ctx)
{
    struct serve *s = ctx;

    mt_metrics_given(s->metrics);
    mt_metrics_stop(&s->metrics); /* from now on the other one is asked */
    mt_notifier_given(s->notifier);
}

static void note(void *ctx, enum mt_level level, const char *text)
{
    (void)ctx;
    mt_msg(level, "%s", text);
}

static int serve(struct serve *s)
{
    struct mt_server_opts so = {.fds = s->a->fds,
                                .n_fds = s->a->n_fds,
                                .tcp = s->a->tcp,
                                .public = s->a->public,
                                .ready = print_ready,
                                .note = note,
                                .ctx = s,
                                .fault = s->a->fault,
                                .meter = s->meter,
                                .save_dir = s->a->save_dir,
                                .handoff = s->a->handoff,
                                .metrics = s->a->metrics          ? s->a->metrics
                                           : s->a->metrics_fd < 0 ? ""
                                                                  : NULL,
                                .metrics_door = metrics_door,
                                .metrics_open = s->a->handoff ? metrics_open : NULL,
                                .taken = taken,
                                .given = given};
    struct mt_err e = {0};
    int rc;

    memcpy(so.where, s->a->sockets, sizeof(so.where));
    if (s->a->dry_run)
        rc = print_ready(s, s->a->sockets, s->a->n_sockets);
    else if (s->a->n_sockets || s->a->n_fds)
        rc = mt_serve_socket(s->engine, s->model, &so, &e);
    else
        rc = mt_serve_stdio(s->engine, s->model, STDIN_FILENO, stdout, &e);
    if (rc == 0 || rc == -EPIPE)
        return MT_EXIT_OK;
    if (!e.code || ferror(stdout))
        return MT_EXIT_FAILED; /* standard output's trouble is told when it is closed */
    complain(rc, &e);
    return rc == -ENAMETOOLONG ? MT_EXIT_USAGE : MT_EXIT_FAILED;
}

/* Sockets that were handed over, by their names: "metrics", "audio", and what has none. */
static int take_fds(struct args *a, struct mt_err *e)
{
    struct mt_service_fd fds[MT_DOORS];
    int n = mt_service_fds(fds, MT_DOORS, e);

    a->metrics_fd = -1;
    for (int i = 0; i < n; i++)
        if (strcmp(fds[i].name, "metrics") != 0)
            a->fds[a->n_fds++] = fds[i].fd;
        else if (a->metrics_fd < 0)
            a->metrics_fd = fds[i].fd;
        else
            return mt_err_set(e, -EINVAL, "LISTEN_FDNAMES: \"metrics\" stands there twice");
    return n < 0 ? n : 0;
}

int main(int argc, char **argv)
{
    struct args a = {.backend = "cpu", .pool_bytes = POOL_DEFAULT, .level = MT_WARN};
    struct serve s = {.a = &a, .taken = -1};
    struct mt_err e = {0};
    int rc, status;

    mt_msg_program(argv[0]);
    mt_close_stdout_at_exit();
    argp_err_exit_status = MT_EXIT_USAGE;
    mt_engine_defaults(&a.engine);
    mt_wire_tcp_defaults(&a.tcp);
    mt_policy_parse(KV_DEFAULT, &a.engine.policy, &e);
    if ((rc = take_fds(&a, &e)) < 0)
        return mt_close_stdout(complain(rc, &e));
    argp_parse(&argp, argc, argv, 0, NULL, &a);
    mt_msg_level(a.level);

    rc = mt_notifier_start(&s.notifier, &e);
    if (!rc)
        rc = build(&s, &a, &e);
    if (!rc)
        rc = open_metrics(&s, &e);
    status = rc < 0 ? complain(rc, &e) : serve(&s);
    take_down(&s);
    return mt_close_stdout(status);
}
