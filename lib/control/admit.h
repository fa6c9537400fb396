/*
 * admit.h: how many sessions may be on the machine. A controller in two parts, both pure functions
 * over a fixed state, without clock, output or allocation: the law (admit.c) takes one observation
 * a tick and moves the cap; ticks.c makes observations out of frame records.
 *
 * Symbols: T the deadline of a frame, phi and kap the shares of T below which the cap grows and
 * from which it is cut, Y the p95 of a window of F ticks. Times are seconds as double, in any one
 * clock that the observations share.
 */
#ifndef MT_ADMIT_H
#define MT_ADMIT_H

#include "control/control.h"
#include "engine/engine.h"

/* ---- the law: admit.c ---- */

#define MT_ADMIT_DEADLINE_MIN 1e-3 /* T from 1 ms .. */
#define MT_ADMIT_DEADLINE_MAX 3600 /* .. to an hour */
#define MT_ADMIT_CAP_MAX      1000000

enum {
    MT_ADMIT_TOP = 162, /* the largest 5 % of a window, at most F = 3200 at T = 1 ms */
    MT_ADMIT_FIT =
        20, /* windows, and numbers of sessions, that the fit of the cost looks back on */
};

struct mt_admit_opts {
    double deadline_s;   /* T */
    double target, cut;  /* phi <= kap <= 1; equal: share mode */
    double alpha;        /* sessions that a window of success adds, > 0 */
    double beta;         /* what a cut leaves, 0.5..0.99 */
    int min, max;        /* 1 <= min <= max <= MT_ADMIT_CAP_MAX */
    int cap0;            /* to start with */
    int warmup;          /* windows without growth */
    bool look_ahead;     /* grow only if the next session is expected to fit too */
    bool project;        /* grow on what the sessions will cost once their windows are full */
    int n_mem;           /* sessions that fit into memory, 0: no bound known */
    double limit_tokens; /* most tokens that a session's cache holds, 0: unknown or unbounded */
    /*
     * Unbounded sessions: admit only what the pool carries for two mean durations. 0: no such gate.
     */
    double pool_tokens, rate_tokens_s, duration_s;
};

/*
 * phi 0.80, kap 0.95, alpha 1, beta 0.90, 1..256 from 4, two windows of warm-up; deadline_s is the
 * caller's to set.
 */
void mt_admit_defaults(struct mt_admit_opts *o);

/* One tick: all frames whose input was due within one T. */
struct mt_admit_obs {
    double release_s, done_s; /* when the input was due, when the last output was ready */
    int sessions;             /* live, due or not */
    /*
     * Frames; where a beat lies on the border of two ticks, one has more than sessions and the next
     * fewer.
     */
    int due, ontime, late, skipped;
    double pool;        /* used share, NAN: unknown */
    double kv_tokens;   /* that all sessions together hold, NAN: unknown */
    int cap;            /* the limit that the engine kept, -1: unknown */
    int contradictions; /* records that can't be true */
    bool cold;          /* the first run of something: slow, and nothing to learn from */
};

enum mt_admit_mode {
    MT_ADMIT_WARMUP,
    MT_ADMIT_GROW,
    MT_ADMIT_HOLD,
    MT_ADMIT_DRAIN,   /* more sessions than the cap: nobody comes, nothing is cut further */
    MT_ADMIT_STALLED, /* frames wait and none is finished: nobody comes */
    MT_ADMIT_CLOSED,  /* the observations ended */
};
const char *mt_admit_mode_name(enum mt_admit_mode m);

/* Why a decision is what it is; the words of the records. */
enum mt_admit_reason {
    MT_ADMIT_BY_GROW,
    MT_ADMIT_BY_CUT,
    MT_ADMIT_BY_BAND,      /* hold: between phi T and kap T */
    MT_ADMIT_BY_LOOKAHEAD, /* hold: one more would leave phi T behind */
    MT_ADMIT_BY_PROJECTED, /* hold: the live sessions will, once their windows are full */
    MT_ADMIT_BY_IDLE,      /* hold: the cap isn't what bounds the sessions */
    MT_ADMIT_BY_MISSES,
    MT_ADMIT_BY_MEMORY,
    MT_ADMIT_BY_LIMIT,      /* hold: the configured maximum */
    MT_ADMIT_BY_UNTRUTHFUL, /* hold: an observation contradicted itself */
    MT_ADMIT_BY_SILENCE,    /* hold: for a time nothing finished, and nobody said why */
    MT_ADMIT_BY_PARTIAL,    /* hold: too few sessions sent, and b isn't known */
    MT_ADMIT_BY_COOLDOWN,
    MT_ADMIT_BY_WARMUP,
    MT_ADMIT_BY_DRAIN,
    MT_ADMIT_BY_STALLED,
    MT_ADMIT_BY_RECOVERED,
    MT_ADMIT_BY_RESEND, /* the engine keeps another cap than it was told */
    MT_ADMIT_BY_START,
    MT_ADMIT_BY_END,
};
const char *mt_admit_reason_name(enum mt_admit_reason r);

/* What was decided, and on what grounds. Unknown numbers are NAN. */
struct mt_admit_decision {
    enum mt_admit_reason reason;
    enum mt_admit_mode mode;
    enum mt_binding bound; /* what keeps the cap from growing */
    int limit;             /* to publish: min(floor(cap), N_mem, max) */
    bool changed;          /* it differs from what was published before */
    double cap;
    double t_s;         /* of the observation behind it */
    double signal_s;    /* Y */
    double projected_s; /* Y once all windows are full, where that can be told */
    int frames, misses; /* of the window */
    int sessions;       /* live at the end of it */
};

struct mt_admit_counts {
    int64_t ticks, empty, cold, untruthful; /* observations */
    int64_t due, ontime, late, skipped;     /* frames */
    int64_t misses, stalls;                 /* ticks late, skipped or injected; stalls found */
    int64_t grows, cuts, resends;
};

/*
 * What the last MT_ADMIT_FIT windows say of the cost of a frame: c = a + b n, or c = a + b0 n + b1
 * tokens.
 */
struct mt_admit_model {
    bool known, slow;        /* a and b; also b0 and b1 */
    double a_s, b_s;         /* the line through (due, latency) */
    double a0_s, b0_s, b1_s; /* the plane through (due, tokens, latency) */
};

struct mt_admit_point {
    int n;
    uint32_t window;            /* when it was last seen */
    double w, l, ll, x, xx, lx; /* weight and sums of tokens and latencies */
};

/* The state; its members are the law's own. At most 4 KiB. */
struct mt_admit {
    struct mt_admit_opts opts;
    struct mt_admit_counts counts;
    struct mt_admit_model model;
    double cap;
    int limit;       /* published */
    int n;           /* live sessions, as last seen */
    int window_size; /* F */
    int64_t frame_no, cool_until;
    int warm; /* windows judged so far, up to warmup */
    bool grew, stalled, waiting;
    double now_s;                        /* newest time heard of */
    double asked_s;                      /* when the engine was last told the limit */
    double release_s, due_s, finished_s; /* last tick; last with a frame due; last frame done */
    double injected_s;
    double pool, tokens;
    double sent, live; /* fading sums of frames due, and of sessions */
    /* The window. */
    int m, misses, busiest, n_top;
    int partial; /* ticks in which too few sent */
    bool untruthful, silent;
    double top[MT_ADMIT_TOP]; /* ascending */
    double last[3];           /* latencies, newest first */
    int run;                  /* of latencies >= T */
    uint32_t window_no;       /* windows' worth of samples learned from */
    int64_t learned;
    int n_points;
    struct mt_admit_point points[MT_ADMIT_FIT];
};

/* 0, or -EDOM with the option in e. */
int mt_admit_init(struct mt_admit *a, const struct mt_admit_opts *o, struct mt_err *e);

/*
 * Take a tick. True if that made a decision (the end of a window, three late ticks in a row, a
 * limit that has to be sent again), which is then in *d. After a change of the limit, ticks that
 * still show another one are not judged.
 */
bool mt_admit_frame(struct mt_admit *a, const struct mt_admit_obs *o, struct mt_admit_decision *d);

/*
 * At now_s frames of `sessions` sessions wait, the oldest for age_s (0: none waits, so that silence
 * up to now is the clients'). When it waits for more than 2 T and no other was finished either,
 * that is a missed tick, one a T; after 5 T the engine is stalled until a window has no miss. As
 * mt_admit_frame.
 */
bool mt_admit_pending(struct mt_admit *a, double now_s, double age_s, int sessions,
                      struct mt_admit_decision *d);

/* Memory became known: as in the options. The limit follows with the next decision. */
void mt_admit_memory(struct mt_admit *a, int n_mem, double limit_tokens, double pool_tokens);

/* The decision to begin or to end with: the cap as it is. */
void mt_admit_begin(const struct mt_admit *a, struct mt_admit_decision *d);
void mt_admit_end(struct mt_admit *a, struct mt_admit_decision *d);

/*
 * Most sessions with c(n) <= share T by the model, MT_NO_LIMIT when it isn't known or nothing
 * bounds them.
 */
int64_t mt_admit_fits(const struct mt_admit *a, double share);

/* ---- from frame records to observations: ticks.c ---- */

struct mt_tick {
    bool used;
    int due, ontime, late, skipped;
    int own; /* of due: those released in this tick, not strays of a closed one */
    int sessions, cap;
    int contradictions;
    int with_tokens;
    double opened_s;       /* the newest t when its first record came, which may be older */
    double worst_s, worst; /* latency, and latency / deadline */
    double tokens, pool;
    bool cold;
};

struct mt_ticks_counts {
    int64_t records; /* frame records, all of them */
    int64_t ok, late, stalled, dropped, refused, error;
    int64_t contradictions; /* ok with nothing decoded */
    int64_t unusable;       /* no time, a negative latency, a clock that went back */
    int64_t empty;          /* ticks without a frame between others */
};

/* Records are put into ticks k = floor(release / T); its members are its own. */
struct mt_ticks {
    double deadline_s, common_s; /* T; the deadline that all records name */
    bool given, mixed;
    bool begun;
    int64_t base, shift; /* tick of open[0]; added so that time never goes back */
    struct mt_tick open[3];
    struct mt_admit_obs ready[8];
    int n_ready, at;
    double newest_s; /* largest t */
    int sessions, cap;
    int pending_contradictions;
    int64_t last; /* tick that was last given out, -1: none yet */
    struct mt_ticks_counts counts;
};

/* deadline_s 0: that of the first record. */
void mt_ticks_init(struct mt_ticks *t, double deadline_s);
/*
 * Take a record; `cold` where its line says so. 0, or -ENODATA while there is no deadline: none was
 * given and the record has none. Then mt_ticks_next until it returns false.
 */
int mt_ticks_record(struct mt_ticks *t, const struct mt_record *r, bool cold);
/*
 * A status line of t_s. Returns the time to pass to mt_admit_pending, NAN when there is none (no T
 * yet, or a clock that went back). Ticks may become ready: take them first.
 */
double mt_ticks_status(struct mt_ticks *t, double t_s);
/* The next tick that is closed, in order. */
bool mt_ticks_next(struct mt_ticks *t, struct mt_admit_obs *out);
/* No more records: what is open is closed. */
void mt_ticks_end(struct mt_ticks *t);

#endif
