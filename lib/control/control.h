/*
 * control.h: what a machine can hold, and when it stops: closed forms for the growth of the KV
 * cache, the ceilings on sessions, the shapes of known models, and the same questions answered from
 * frame records. Pure functions over numbers: no clock, no output.
 *
 * Conventions of this header. Symbols: p tokens in a block, B blocks in the pool, C = p B the pool
 * in tokens, N sessions, r tokens a second that one session adds, rho the used share of the pool, T
 * a frame's deadline, c(N) = a + b N the time to serve one frame of N sessions. Times are seconds,
 * as double; +Inf means never. Each function returns 0, or -EDOM for an argument that is NaN,
 * negative or outside what its comment allows; *out is then untouched. No function keeps state, so
 * all are safe from any thread; a struct is its caller's.
 */
#ifndef MT_CONTROL_H
#define MT_CONTROL_H

#include "base/base.h"
#include "kernels/kernels.h"

/* ---- shapes: shape.c ---- */

/* What a model costs in KV memory, without its weights. */
struct mt_shape {
    char name[64];          /* "qwen3-omni-30b", or a config's model_type */
    int layers;             /* of the language model that keeps the call: 1..4096 */
    int kv_heads;           /* 1..4096 */
    int head_dim;           /* 1..4096 */
    double audio_tokens_s;  /* tokens a second of audio in; 0: the config doesn't say */
    double audio_tokens_1s; /* the same when whole seconds are fed at once (Qwen3: 13, not 12.5) */
    double frame_s;         /* native beat; 0: the config doesn't say */
};

/*
 * The shape behind `-m`: a known name, "synth:NAME[,layers=N][,seed=N][,dtype=T]", a config.json or
 * a directory that holds one, or a GGUF file. Layouts read: Qwen2.5-Omni and Qwen3-Omni
 * (thinker_config.text_config), the same thinker alone (text_config), qwen2, qwen3 and MiniCPM-o
 * (at the top), Moshi (dim, num_layers, num_heads). Nothing in a file is trusted: -EPROTO names
 * file, field and expectation; -ENOENT when there is neither such a name nor such a file; -EINVAL
 * for a wrong synth: key.
 */
int mt_shape_open(struct mt_shape *out, const char *spec, struct mt_err *e);

/* A known name, or -ENOENT. */
int mt_shape_by_name(struct mt_shape *out, const char *name);

/* The i-th known name, NULL behind the last. */
const char *mt_shape_name(int i);

/* From the text of a config.json (n bytes, not NUL terminated); `what` names it in errors. */
int mt_shape_from_config(struct mt_shape *out, const char *text, size_t n, const char *what,
                         struct mt_err *e);

/* Tokens a second of audio when it is fed in frames of frame_s. 0 when unknown. */
double mt_shape_audio_rate(const struct mt_shape *s, double frame_s);

/*
 * KV bytes of one token in all layers: 2 layers kv_heads head_dim bytes_of(type); INT8 and FP8 add
 * one f32 scale a head and token for K and for V. (q in the formulas.)
 */
int64_t mt_shape_token_bytes(const struct mt_shape *s, enum mt_dtype type);

/* ---- growth without a bound: predict.c ---- */

/* N sessions of one kind that start together. */
struct mt_load {
    int64_t pool_blocks;  /* B >= 1 */
    int64_t block_tokens; /* p >= 1 */
    double rho0;          /* share of the pool that others hold, >= 0 */
    int64_t sessions;     /* N >= 0 */
    int64_t start_tokens; /* n0 >= 0: tokens each session holds at time 0 (its prompt) */
    double rate;          /* r >= 0, tokens/s of one session */
};

/*
 * First order, tokens as a fluid: t = ((1 - rho0) C - N n0) / (N r). +Inf for N = 0 or r = 0, 0
 * when the pool is full already (both: +Inf, nobody asks for a block).
 */
int mt_predict_first(const struct mt_load *l, double *t_s);

/*
 * Sessions in step: every p tokens all of them want a block at once, and the first allocation fails
 * at t = (p floor(B'/N) - n0 + 1) / r with B' = floor((1 - rho0) B). last_tokens (may be NULL) is
 * the last length that each session reaches, p floor(B'/N). Exact for whole tokens that come one by
 * one.
 */
int mt_predict_locked(const struct mt_load *l, double *t_s, int64_t *last_tokens);

/*
 * The same where tokens come in steps, frame_tokens > 0 at the end of every frame of frame_s > 0:
 * the frame that fails is the j-th, j = ceil((p floor(B'/N) - n0 + 1) / frame_tokens), due at
 * j frame_s. l->rate isn't used, except that 0 means +Inf.
 */
int mt_predict_locked_frames(const struct mt_load *l, double frame_tokens, double frame_s,
                             double *t_s);

/*
 * Sessions at random phases: each wastes (p - 1)/2 tokens of its last block in the mean:
 * t = ((1 - rho0) C - N n0 - N (p - 1)/2) / (N r).
 */
int mt_predict_spread(const struct mt_load *l, double *t_s);

/* Sessions of one class: n of them, each adding bytes_s (sum over towers of q_m r_m u_m). */
struct mt_class {
    double n;
    double bytes_s;
};

/* d(rho)/dt = sum_j n_j bytes_s_j / pool: t = (1 - rho0) pool_bytes / sum. */
int mt_predict_classes(const struct mt_class *c, int n_classes, double pool_bytes, double rho0,
                       double *t_s);

/* ---- ceilings: ceiling.c ---- */

/* How a bounded session gives back what left its window. */
enum mt_retire {
    MT_RETIRE_IN_PLACE, /* a ring that overwrites its own oldest slots: metronome's */
    MT_RETIRE_WHOLE,    /* only whole blocks: the window straddles one more */
};

struct mt_bound {
    int64_t window;       /* w >= 1 tokens */
    int64_t sinks;        /* >= 0 tokens */
    int64_t step;         /* k >= 1: most tokens one session adds in one step */
    int64_t block_tokens; /* p >= 1 */
    enum mt_retire retire;
    bool shared_sinks; /* all sessions have the same sinks and share their blocks */
};

/*
 * Blocks a session commits, its sinks included: ceil(sinks/p) + ceil((w + k - 1)/p) in place, and
 * ceil(sinks/p) + ceil((w + k - 2)/p) + 1 with whole blocks: the first row of a step still reads
 * what its last row overwrites.
 */
int mt_bound_blocks(const struct mt_bound *w, int64_t *blocks);

/* N_mem = floor(B / blocks); with shared sinks floor((B - s) / (blocks - s)), s = ceil(sinks/p). */
int mt_bound_sessions(const struct mt_bound *w, int64_t pool_blocks, int64_t *n);

/*
 * The window that lets n >= 1 sessions fit (w->window isn't read): p m - (k - 1) in place, p (m -
 * 1) - (k - 1) with whole blocks, m = floor(B/n) - s, or floor((B - s)/n) when shared. -ENOSPC when
 * not even a window of one token fits.
 */
int mt_bound_window(const struct mt_bound *w, int64_t pool_blocks, int64_t n, int64_t *window);

/* c(N) = a + b N, in seconds; a, b >= 0. */
struct mt_cost {
    double a_s, b_s;
};

#define MT_NO_LIMIT INT64_MAX /* a number of sessions that nothing bounds */

/*
 * Most sessions with c(N) <= phi T when all frames are released on one tick: floor((phi T - a)/b),
 * never below 0. MT_NO_LIMIT for b = 0 and a <= phi T. Allowed: deadline_s > 0, 0 < phi <= 1.
 */
int mt_latency_locked(const struct mt_cost *c, double deadline_s, double phi, int64_t *n);

/* The same for unaligned arrivals, batched on completion: floor((phi T - 2a)/b). */
int mt_latency_unaligned(const struct mt_cost *c, double deadline_s, double phi, int64_t *n);

/*
 * Worst latency of n >= 0 unaligned sessions with period T: 2a + b n while that is below T. Beyond
 * it the mean cycle stretches to C' = a T/(T - b n), and the result is 2 C', which unlucky arrivals
 * still exceed by some percent; +Inf once b n >= T.
 */
int mt_latency_worst(const struct mt_cost *c, double period_s, double n, double *latency_s);

/* One class of frames on a device that can't be interrupted within a piece. */
struct mt_periodic {
    int64_t period_ns; /* T_j > 0, also the deadline */
    int64_t cost_ns;   /* E_j >= 0 for the whole batch */
    int64_t piece_ns;  /* longest piece it is cut into, <= cost_ns; 0: not cut */
};

struct mt_edf {
    bool feasible;
    double load;      /* sum E_j / T_j */
    int blocker;      /* class whose piece breaks the bound, -1 if none (load > 1, or feasible) */
    int64_t at_ns;    /* the interval it breaks, L */
    int64_t needs_ns; /* work due within it */
};

/*
 * Non-preemptive EDF, classes sorted by period (else -EDOM): feasible iff sum E_j/T_j <= 1 and for
 * every class i and every L in (T_1, T_i): piece_i + sum_{j<i} floor((L - 1 ns)/T_j) E_j <= L.
 * Exact, in whole ns. -E2BIG when a period is more than 1e6 of the shortest.
 */
int mt_edf_check(const struct mt_periodic *c, int n, struct mt_edf *out);

struct mt_cost_fit {
    struct mt_cost cost;  /* what to use: the line, or the last segment when the cost is convex */
    struct mt_cost line;  /* least squares over all points */
    double residual_s;    /* standard deviation about the line, count - 2 degrees of freedom */
    double slope_error_s; /* standard error of line.b_s */
    double last_b_s;      /* slope between the means at the two largest n */
    bool convex;          /* last_b_s above line.b_s by more than 3 standard errors */
};

/*
 * Least squares of x_s = a + b n over count points (cold frames already left out). Needs 3 distinct
 * n, else -ENODATA. a and b come out as measured: a negative one is the caller's to judge.
 */
int mt_cost_fit(const double *n, const double *x_s, int64_t count, struct mt_cost_fit *out);

enum mt_binding { MT_BIND_MEMORY, MT_BIND_LATENCY, MT_BIND_LIMIT, MT_BIND_NONE };
/* "memory", "latency", "limit", "none". */
const char *mt_binding_name(enum mt_binding b);

/*
 * min(n_mem, n_latency, limit), each MT_NO_LIMIT where it doesn't apply, and which of them it is;
 * the earlier of equals. MT_BIND_NONE when all are MT_NO_LIMIT.
 */
int64_t mt_sustainable(int64_t n_mem, int64_t n_latency, int64_t limit, enum mt_binding *binding);

/* ---- from records: trace.c ---- */

/*
 * Frame records of a run, in any order. Memory grows by a few dozen bytes a record. What a
 * session's audio or text was is not kept.
 */
struct mt_trace;

int mt_trace_open(struct mt_trace **out);
void mt_trace_close(struct mt_trace **t);

/*
 * Take one line (n bytes). Returns 1 for a frame record that was used, 0 for a line that is none of
 * our business (another type, a frame without t, pool or sessions), -EBADMSG for a line that is no
 * JSON object or a frame whose members have the wrong type, or -ENOMEM. A "ready" or "opened" line
 * gives the pool's size.
 */
int mt_trace_line(struct mt_trace *t, const char *line, size_t n);

/* Unknown numbers are NaN, +Inf is never. Times are seconds on the server's clock. */
struct mt_trace_fit {
    int64_t frames;      /* records used */
    int64_t stalled;     /* of them with status "stalled" */
    int64_t untruthful;  /* "ok" with nothing decoded: nothing was computed */
    int64_t sessions;    /* N of the stretch, 0 without one */
    double from_s, to_s; /* the stretch: constant N, before any collapse */
    double rho;          /* the line's value at to_s */
    double rho_per_s;    /* its slope */
    double rate; /* tokens/s that one session adds: from kv_tokens, else from the slope and C */
    int64_t pool_tokens;  /* C from a ready line, or 0 */
    double t_sat_at_s;    /* when the line reaches 1, +Inf if it doesn't rise */
    double t_sat_s;       /* the same, counted from to_s */
    double t_collapse_s;  /* first stalled or untruthful frame, NaN if there was none */
    double t_half_s;      /* half way from from_s to t_collapse_s */
    double t_half_sat_s;  /* saturation predicted from the records up to there */
    double error_percent; /* 100 (t_half_sat_s - t_collapse_s) / (t_collapse_s - t_half_s) */
};

/*
 * Fit what was taken so far. The stretch is the latest run of records of one session count before
 * the collapse that holds at least MT_TRACE_MIN times; rho and its slope are least squares over it.
 * A slope that isn't above its own standard error is no growth. -ENODATA without a frame record.
 */
#define MT_TRACE_MIN 5
int mt_trace_fit(struct mt_trace *t, struct mt_trace_fit *out);

/* All records before a collapse, in order of time, to the live fit of livefit.h. */
struct mt_live;
void mt_trace_replay(struct mt_trace *t, struct mt_live *live);

#endif
