/*
 * engine.h: sessions, their paged KV cache under a policy, and the scheduler. Knows nothing of
 * sockets or files. One thread calls everything here; time comes from the clock it was given.
 */
#ifndef MT_ENGINE_H
#define MT_ENGINE_H

#include "base/base.h"
#include "base/state.h"
#include "kernels/kernels.h"
#include "model/model.h"

/* ---- KV policy ---- */

struct mt_policy {
    bool bounded;
    int64_t window; /* W: recent tokens kept */
    int64_t sinks;  /* S: first tokens kept; -1: the whole prompt */
    bool rope_absolute;
};

/*
 * "unbounded" or "window=W[,sinks=S|prompt]"; W must be above S (checked here for numbers), W >= 1.
 */
int mt_policy_parse(const char *text, struct mt_policy *out, struct mt_err *e);
/* Writes the same form back. */
void mt_policy_format(const struct mt_policy *p, char out[64]);
/* Blocks that one bounded session reserves, ring recycled in place:
 * ceil(S/p) + ceil((W + k - 1)/p), k = most tokens it adds in one step. */
int64_t mt_policy_blocks(int64_t window, int64_t sinks, int block_tokens, int64_t k);
/*
 * The farthest position from which sinks are seen (mt_kv_view): directly before the window, or with
 * rope_absolute where they were, up to the last of max_positions, the model's trained range.
 */
int64_t mt_policy_reach(const struct mt_policy *p, int64_t max_positions);

/* ---- block pool ---- */

struct mt_pool;
int mt_pool_new(struct mt_pool **out, int64_t n_blocks);
void mt_pool_free(struct mt_pool **p);
/* All n or none: -ENOSPC leaves the pool as it was. */
int mt_pool_take(struct mt_pool *p, int32_t *ids, int64_t n);
void mt_pool_give(struct mt_pool *p, const int32_t *ids, int64_t n);
int64_t mt_pool_used(const struct mt_pool *p);
int64_t mt_pool_size(const struct mt_pool *p);

/* ---- records ---- */

enum mt_status { MT_OK, MT_LATE, MT_STALLED, MT_DROPPED, MT_REFUSED, MT_FAILED };
const char *mt_status_name(enum mt_status s);
/* -1 for an unknown word. */
int mt_status_parse(const char *name);
/*
 * "ok" with nothing decoded: every answer has at least the token that ends it, so nothing was
 * computed, and the server says otherwise (as under silent_stall). tokens_out -1: not told, and
 * believed.
 */
static inline bool mt_status_untruthful(enum mt_status s, int64_t tokens_out)
{
    return s == MT_OK && tokens_out == 0;
}

/*
 * One frame's record; the pointers are the engine's, valid during the callback. Times in ms as in
 * metronome(7).
 */
struct mt_record {
    int64_t session; /* number given at open, from 1 */
    int64_t frame;
    enum mt_status status;
    const char *reason; /* NULL, or why it is not ok */
    bool shortened;     /* the answer was cut to keep the beat */
    double t_s;         /* seconds since the engine's start, when the answer was ready */
    double latency_ms, deadline_ms;
    double wait_ms, encode_ms, prefill_ms, decode_ms; /* sum to latency_ms */
    int tokens_in; /* positions fed: audio rows and the turn's markup; in frame 0 the prompt, too */
    int tokens_out;    /* tokens decoded */
    int64_t kv_tokens; /* tokens the session's cache holds (a window: at most window + sinks) */
    double pool;
    int sessions, cap;
    const char *text;
    const int32_t *tokens; /* the tokens_out ids */
    const float *speech;   /* what the answer sounds like, at speech_rate_hz of the model */
    int n_speech;          /* samples; 0: nothing */
};

struct mt_engine_events {
    void *ctx;
    /*
     * Once for every frame. A frame that is dropped for want of room has its record before an older
     * one still in work.
     */
    void (*frame)(void *ctx, const struct mt_record *r);
    /*
     * The session is gone: "end", "gone", "idle", "stalled", "shutdown". Its number is never used
     * again.
     */
    void (*closed)(void *ctx, int64_t session, const char *reason, int64_t frames);
};

/* ---- engine ---- */

struct mt_engine_opts {
    struct mt_policy policy;
    enum mt_dtype kv_type;
    int block_tokens;
    int64_t pool_blocks;
    int64_t frame_ns;    /* 0: the model's own beat */
    int64_t deadline_ns; /* 0: the frame's length */
    enum mt_mode mode;
    int answer_tokens; /* most tokens decoded a frame */
    int step_tokens;   /* most rows a step */
    int max_sessions;
    int64_t idle_ns;    /* close a session that sent nothing for this long; 0: never */
    const char *system; /* NULL: the model's default */
    uint64_t seed;      /* for sessions that name none */
    bool silent_stall;  /* mark stalled frames ok, as the engines that it models do */
    int backlog;        /* frames of audio a session may have waiting */
    bool pace; /* admit one session in 5 frames, two at once: many prefills look like overload */
    int close_stalled; /* close a session after so many skipped frames in a row; 0: never */
    struct mt_engine_events events;
};

/* Defaults of everything but policy, pool_blocks and events. */
void mt_engine_defaults(struct mt_engine_opts *o);

/* What one session costs and how many fit; also `--dry-run` and the ready line. */
struct mt_engine_plan {
    int64_t block_bytes, pool_blocks, pool_bytes;
    int64_t step_max;           /* k: most tokens one session adds in one step */
    int64_t frame_tokens;       /* most tokens that one frame adds (audio, markup, answer) */
    int64_t blocks_per_session; /* bounded: reserved; unbounded: of its first frame */
    int64_t kv_bytes_session;
    struct mt_state_kind state[MT_STATE_KINDS]; /* the model's, beside tokens in the pool */
    int n_state;
    int64_t state_bytes_session; /* the engine's own */
    int64_t
        n_mem; /* sessions that fit: pool / blocks_per_session, unbounded: for the first frame */
    int64_t frame_samples, lookahead_samples;
    double frame_s, deadline_s;
};

/*
 * --pool auto: the bytes of `share` of the card's memory that are left once the model is open (what
 * other programs hold is not left either), less what max_sessions sessions keep beside their
 * tokens. -EINVAL where the backend has no memory of its own, -ENOSPC with the arithmetic when
 * nothing is left.
 */
int mt_engine_pool_auto(struct mt_model *m, const struct mt_engine_opts *o, double share,
                        int64_t *bytes, struct mt_err *e);

struct mt_engine;
/*
 * -ENOSPC with the arithmetic when not one session fits; -EINVAL names the option. Nothing is owned
 * but copied opts.
 */
int mt_engine_new(struct mt_engine **out, struct mt_model *m, const struct mt_engine_opts *o,
                  struct mt_clock *clock, struct mt_err *e);
void mt_engine_free(struct mt_engine **eng);
const struct mt_engine_plan *mt_engine_plan(const struct mt_engine *eng);
const struct mt_engine_opts *mt_engine_options(const struct mt_engine *eng);
/* The one that it was made with. */
struct mt_clock *mt_engine_clock(const struct mt_engine *eng);

struct mt_session_opts {
    const char *system; /* NULL: the engine's */
    bool has_seed;
    uint64_t seed;
    float temperature; /* 0: greedy */
    int top_k;         /* 0: off */
    float top_p;       /* 1: off */
    int64_t window;    /* 0: the engine's; else at most the engine's (bounded only) */
    int answer_tokens; /* 0: the engine's; else at most the engine's */
    int64_t frame_ns;  /* 0: the engine's; else it must be the engine's */
    bool live;         /* can't wait: a full backlog drops its oldest frame; else push takes less */
};
void mt_session_defaults(struct mt_session_opts *o);

/*
 * Admit a session: 0 and its number, or -EAGAIN with *reason one of "limit", "memory", "pace",
 * "warmup", "stalled", "drain" and *retry_s a hint in seconds; -EINVAL with e for options that
 * can't be honoured. The hint is the time in which a session leaves, as the closed ones lasted, and
 * at least a second, spread by half of it so that those refused don't come back as one.
 */
int mt_engine_open(struct mt_engine *eng, const struct mt_session_opts *o, int64_t *session,
                   const char **reason, double *retry_s, struct mt_err *e);
/*
 * Audio at the model's rate, arrived at t_ns. Returns the samples taken: all for live sessions,
 * else what the backlog allows. -ENOENT for a session that is gone, -EINVAL after end.
 */
int64_t mt_engine_audio(struct mt_engine *eng, int64_t session, const float *pcm, int64_t n,
                        int64_t t_ns);
/* No more audio: the rest is a last frame, then closed("end"). */
int mt_engine_end(struct mt_engine *eng, int64_t session, int64_t t_ns);
/*
 * The client left: blocks are free when this returns; frames in hand get a record `dropped`
 * ("gone").
 */
void mt_engine_close(struct mt_engine *eng, int64_t session, const char *reason);

/* ---- a session saved, and gone on with ---- */

/*
 * All that a session owns behind what io has: what its options are, what it heard, said and
 * remembers, a frame in the middle included. It goes on as if nothing had been. 0, or with a line
 * in io: -ENOENT, -ENOTSUP (a family that does not say what it owns), -ENOMEM, -EIO.
 */
int mt_engine_save(struct mt_engine *eng, int64_t session, struct mt_state_io *io);

struct mt_session_facts {
    int64_t next_frame; /* number of the record that comes next */
    int64_t window;     /* 0: none */
    bool live;
};
/* -ENOENT. */
int mt_engine_session(const struct mt_engine *eng, int64_t session, struct mt_session_facts *out);

struct mt_load_opts {
    /*
     * 0: the saved window, which must fit under the engine's. A smaller one: what is older than it
     * is forgotten, as if the session had had it from now on.
     */
    int64_t window;
    int64_t id;         /* 0: the next number; else above all that there are (a hand-over) */
    int64_t elapsed_ns; /* since it was saved: what waits has aged by so much */
    bool always;        /* whatever cap and gate say: only room for it is asked for */
};
/*
 * The session that io holds, at its place, goes on here: each of its answers is, bit for bit, what
 * it would have been there. Number of threads, size of the pool and of steps, and of blocks that
 * are multiples of MT_KV_UNIT, may differ; model, frame, mode, policy and KV type may not (-EINVAL
 * says both), nor may the window and the answers be longer than the engine's. io must end with it.
 * 0, or -EAGAIN as mt_engine_open has it; with a line in io: -EINVAL, -EPROTO (a state that can't
 * be), -ENOMEM. Nobody else is touched.
 */
int mt_engine_load(struct mt_engine *eng, struct mt_state_io *io, const struct mt_load_opts *o,
                   int64_t *session, const char **reason, double *retry_s);

/*
 * What an engine knows beside its sessions, for one that takes them all over: numbers that were
 * given, when it began, cap, gate and drain, how many left. Read after the sessions.
 */
void mt_engine_visit(struct mt_engine *eng, struct mt_state_io *io);

/* One pass: at most one encode and one step. True if it did something, so that more may be left. */
bool mt_engine_tick(struct mt_engine *eng);

/*
 * A frame of silence of nobody's call, now and to its end, or until it is late: its latency in ns.
 * The first time also, for a backend that keeps steps, one of each size, 10 s at most.
 * No record, no count. -EBUSY while there are sessions, -ENOSPC, -ENOMEM, -EIO when it could not be
 * answered.
 */
int64_t mt_engine_warm(struct mt_engine *eng);

void mt_engine_set_cap(struct mt_engine *eng,
                       int cap); /* sessions admitted at most; live ones stay */
/* What a controller says of its cap: why it refuses those above it. Stalled refuses everybody. */
enum mt_gate { MT_GATE_OPEN, MT_GATE_WARMUP, MT_GATE_DRAIN, MT_GATE_STALLED };
/* "warmup", "drain", "stalled"; any other word is open. */
enum mt_gate mt_gate_parse(const char *mode);
void mt_engine_set_gate(struct mt_engine *eng, enum mt_gate gate);
void mt_engine_drain(struct mt_engine *eng); /* admit nobody any more */

struct mt_engine_stats {
    double t_s;
    int sessions, cap, pending; /* pending: frames complete and unanswered */
    double oldest_ms;           /* age of the oldest of them, 0 without */
    double pool;
    int64_t blocks_used, blocks;
    int64_t frames[6];  /* records by status */
    int64_t untruthful; /* frames marked ok by silent_stall */
    int64_t refused, tokens_in, tokens_out, steps, rows;
    int64_t closed; /* sessions that left, and how long they lasted in all */
    double closed_s;
    bool draining;
    struct mt_hist latency;
};
void mt_engine_stats(struct mt_engine *eng, struct mt_engine_stats *out);

/* ---- teacher forcing (mt-probe logits) ---- */

/*
 * Feed ids through a cache of its own under a policy, and give the log-softmax of chosen positions.
 * Everything is borrowed for the call.
 */
struct mt_teacher {
    const int32_t *ids; /* [n], each in 0..vocab-1 */
    /*
     * In place of ids for a model with codebooks, and only there: [n][1 + codebooks] as
     * mt_model_teach_input reads them; position t is then a step.
     */
    const int32_t *frames;
    int64_t n;
    const float
        *audio; /* [n_audio, hidden] in host memory: the k-th row replaces the k-th placeholder */
    int64_t n_audio;
    const int64_t *at; /* [n_at] positions in 0..n-1, ascending, each once */
    int64_t n_at;
    struct mt_policy policy; /* sinks as a number: there is no prompt here */
    enum mt_dtype kv_type;
    int block_tokens;
    void *ctx;
    /*
     * Called once a position, in order; logprobs [vocab] is valid for the call. Not 0 ends the run
     * with that value.
     */
    int (*row)(void *ctx, int64_t pos, const float *logprobs, int vocab);
    /* With frames: behind its row come those of the made codebooks k = 0, 1, …, [code_bins]. */
    int (*code_row)(void *ctx, int64_t pos, int k, const float *logprobs, int bins);
};
/*
 * 0, or what row returned (then e stays as it is), or: -EPROTO with both counts when placeholders
 * and audio rows differ, -EINVAL for an id, a position or a policy that can't be, -ENOMEM.
 */
int mt_teacher_run(struct mt_model *m, const struct mt_teacher *t, struct mt_err *e);

/*
 * A clip, at the model's rate, through a model that speaks in codes (mt-probe logits --audio):
 * frame by frame, greedily, the last one padded with silence. Everything is borrowed for the call.
 */
struct mt_greedy {
    const float *pcm;
    int64_t n_pcm;
    struct mt_policy policy;
    enum mt_dtype kv_type;
    int block_tokens;
    void *ctx;
    /*
     * Called after each step that gives a whole frame: the text token and the n codes that belong
     * together. Not 0 ends the run with that value.
     */
    int (*step)(void *ctx, int64_t pos, int32_t text, const int32_t *codes, int n);
};
/*
 * 0, or what step returned, or -EINVAL, -ENOTSUP (no codec), -EPROTO (no numbers), -ENOMEM with e.
 */
int mt_greedy_run(struct mt_model *m, const struct mt_greedy *g, struct mt_err *e);

#endif
