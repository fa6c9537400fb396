/*
 * session.h: the engine's own view of sessions and of itself. Internal to lib/engine.
 *
 * A session's frame goes through phases: idle (its audio is not complete) -> encode (begun, memory
 * is certain) -> prefill (feed[] is put into the cache) -> decode (one token a step) -> a record,
 * idle.
 */
#ifndef MT_SESSION_H
#define MT_SESSION_H

#include "engine/engine.h"

enum phase { PHASE_IDLE, PHASE_ENCODE, PHASE_PREFILL, PHASE_DECODE };

/* Sink blocks that all sessions with the same first tokens use. */
struct prefix {
    struct prefix *next;
    int32_t *ids; /* the n_ids = sinks first tokens */
    int32_t *blocks;
    int64_t sinks, n_blocks;
    int64_t written; /* of the sinks, up to the end of the step that is planned */
    int refs;
};

struct session {
    int64_t id;
    struct mt_session_opts opts;
    struct mt_talk *talk;
    const int32_t *prompt; /* the talk's */
    int n_prompt;
    struct mt_ear *ear;
    struct mt_policy policy; /* with sinks as a number */
    int64_t max_positions;   /* the model's trained range */
    int64_t context;         /* tokens that an unbounded session's attention reaches */
    char *system;            /* the prompt's text as it was given; NULL: the model's own */
    bool ended;              /* no more audio will come */
    int64_t heard_ns;        /* when it last sent something */
    int64_t opened_ns;
    int skipped; /* frames in a row that nothing was computed for */

    /* The cache: a block table, as mt_kv_view reads it. */
    int32_t *blocks;
    int64_t n_blocks, cap_blocks;
    struct prefix *prefix; /* whose blocks the table begins with, or NULL */
    int32_t ring_blocks;
    int64_t len; /* tokens fed so far: the index of the next one */

    /* Frames: complete ones are stamped, begun in order. */
    int64_t completed, begun, taken; /* taken: left the ear, encoded or skipped */
    int64_t *due_ns;                 /* [due_cap], of frame k at k % due_cap */
    int due_cap;

    bool listed; /* among the engine's busy ones */

    /* The frame in work. */
    enum phase phase;
    int64_t frame, t_due, t_deadline, t_begin, t_encoded, t_first;
    int32_t *feed; /* ids, -1 where the audio rows go */
    int n_feed, cap_feed, fed, audio_at, audio_rows;
    int32_t next; /* what is fed before the next token is decoded */
    int32_t *answer;
    int n_answer;
    uint64_t draws;
    struct mt_detok detok;
    char *text;
    size_t n_text, cap_text;
};

struct mt_engine {
    struct mt_model *m;
    struct mt_backend *be;
    struct mt_kv *kv;
    struct mt_pool *pool;
    struct mt_clock *clock;
    struct mt_engine_opts opts;
    char *system; /* the copy that opts.system points to */
    struct mt_engine_plan plan;
    int64_t t_start, last_step_ns;
    int64_t next_id;
    int cap;
    enum mt_gate gate;
    bool draining;
    bool shown;  /* the backend has seen the steps that it may keep: warm.c */
    bool aside;  /* frames are encoded on the backend's side: mt_ops.side */
    double pace; /* sessions that may come now, as of pace_ns */
    int64_t pace_ns;
    int64_t n_closed; /* sessions, and how long they lasted */
    double closed_s;
    int32_t token_bytes; /* of the longest token */
    struct prefix *prefixes;
    struct session **session; /* [n], in order of admission, so by ascending id */
    int n;
    /*
     * Those a tick has to look at: a frame complete or in work, or the call ended. Of thousands of
     * calls, each with a frame every second or two, these are a handful.
     */
    struct session **busy; /* [n_busy], by ascending id, too */
    int n_busy;
    int64_t idle_check_ns; /* before that nobody has been idle for too long */

    /* Scratch of a tick: who is in work by deadline, and one step. */
    struct session **order;
    struct mt_run *runs;
    struct mt_audio_rows *audio;
    struct session **want_of, **encoded;
    struct mt_ear **ears;
    int32_t *ids, *sampled;
    int *want;
    struct mt_sample *params;
    struct mt_talk **talks;
    struct mt_said *said;

    struct mt_engine_stats stats;
};

/* Audio rows of one frame, markup around it, and its answer: what a frame adds at most. */
int64_t mt_session_frame_tokens(const struct session *s, const struct mt_engine *eng);

/*
 * Make a session and its buffers; blocks are taken by the caller. system: the prompt's text, NULL:
 * the model's own; o's is not looked at. -EINVAL with e.
 */
int mt_session_new(struct session **out, struct mt_engine *eng, const struct mt_session_opts *o,
                   const char *system, struct mt_err *e);
/*
 * All that a session owns, to memory or back, times by their age at `now`. Read into one that was
 * made with the same options and has its blocks. What is read is checked as a whole: -EPROTO in io
 * for what can't be.
 */
void mt_session_visit(struct session *s, struct mt_engine *eng, int64_t now,
                      struct mt_state_io *io);
/* Gives its blocks back. */
void mt_session_free(struct session **s, struct mt_engine *eng);

/* Reserve a bounded session's blocks (all or none): 0 or -ENOSPC, -ENOMEM. */
int mt_session_reserve(struct session *s, struct mt_engine *eng);
/*
 * Blocks of an unbounded session for `tokens` in all: more are taken (-ENOSPC), or the surplus
 * given back.
 */
int mt_session_fit(struct session *s, struct mt_engine *eng, int64_t tokens);

/*
 * Lay out the frame that begins: what is fed before the answer. Audio rows are put in once they are
 * known.
 */
void mt_session_feed(struct session *s, int audio_rows);
/*
 * Before a step is planned: what of its prompt lies in shared blocks is not computed again, nor
 * what another session computes in the same step.
 */
void mt_session_skip(struct session *s);
/*
 * The view for the next n tokens, which the step being planned will append: of shared sinks those
 * that are not held yet.
 */
struct mt_kv_view mt_session_view(const struct session *s, int64_t n);
int64_t mt_session_kv_tokens(const struct session *s);
/* A token was decoded: it and its text join the answer. */
void mt_session_answer(struct session *s, const struct mt_engine *eng, int32_t token,
                       struct mt_said said);

/* The next tick has to look at s. */
void mt_engine_list(struct mt_engine *eng, struct session *s);
/* Why nobody is admitted now, or NULL. */
const char *mt_engine_closed_for(const struct mt_engine *eng, int64_t now);
/* Counts somebody who was not admitted: -EAGAIN, with what mt_engine_open says then. */
int mt_engine_refuse(struct mt_engine *eng, const char *why, const char **reason, double *retry_s);
struct session *mt_engine_find(const struct mt_engine *eng, int64_t id);

/* Write the record of the frame in work, or of frame `frame` that never began, and count it. */
void mt_engine_record(struct mt_engine *eng, struct session *s, enum mt_status status,
                      const char *reason, bool shortened);
void mt_engine_record_unbegun(struct mt_engine *eng, struct session *s, enum mt_status status,
                              const char *reason);

#endif
