/*
 * feed_run.h: private to the feeder: a run (feeder.c: the loop, arrivals, the one timer) and its
 * sessions (feed_session.c: one connection, its protocol and its accounts).
 */
#ifndef MT_FEED_RUN_H
#define MT_FEED_RUN_H

#include <uv.h>

#include "wire/addr.h"
#include "wire/feed_stream.h"
#include "wire/feeder.h"

struct feed_run;

/* A frame that was sent. */
struct feed_due {
    int64_t due_ns; /* when its last sample was due (paced) or handed over */
    bool answered;
};

enum feed_state {
    FEED_CONNECTING, /* also: waits for its arrival or for room in the server's queue */
    FEED_REFUSED,    /* waits until it offers itself again */
    FEED_OPENING,
    FEED_SENDING,
    FEED_ENDED, /* `end` is sent */
    FEED_CLOSING,
};

struct feed_session {
    struct feed_run *run;
    struct feed_session *prev, *next; /* all sessions of the run */
    int64_t index;                    /* from 0 */
    char name[32];                    /* the server's, or "feed-N" before it gave one */
    enum feed_state state;
    int64_t wake_ns; /* what the timer is to do next for it; INT64_MAX: nothing */
    size_t heap_at;  /* in the run's heap, 1-based; 0: not in it */

    uv_pipe_t pipe;
    struct feed_source *source; /* watches the pipe that the sound comes from; NULL for files */
    int handles;                /* not yet closed */
    bool greeted;               /* the server's first object came */
    struct mt_wire_parser parser;
    size_t unsent_bytes; /* handed to the loop and not yet to the kernel */

    struct feed_stream stream;
    double length_s;
    int64_t asked_ns; /* when it first asked to be admitted, 0: not yet */
    json_t *refusal;  /* what the server said last, while it is not admitted; or NULL */
    int64_t retry_ns; /* when it offers itself again */
    int64_t opening_ns, opened_ns, ended_ns;
    int64_t start_ns;     /* of its sound; 0 while that has not begun */
    int64_t ready_ns;     /* when a pipe had last brought what was asked for */
    bool interrupted;     /* `end` comes before its time */
    double frame_samples; /* may not be whole at this rate */
    double frame_s;
    int64_t ahead_samples;
    int64_t piece;               /* the frame that is being prepared or waits for its time */
    int64_t spurts, talk_frames; /* spurts of talk begun, and frames left of this one */
    int64_t skipped_ns;          /* of sound that a loaded call has heard already */
    int64_t pause_ns;            /* all pauses so far, on the clock */

    /*
     * Frames sent and not yet answered: due[i] is frame first + i; all before `first` are answered.
     */
    struct feed_due *due;
    int64_t first;
    size_t n_due, cap_due;
    int64_t closed_frames; /* as the server counts them, -1 while it did not say */

    struct mt_wav *wav;
    int wav_rate_hz;
    unsigned char half; /* of a 16-bit sample whose other byte comes with the next piece */
    bool has_half;
    bool spoke; /* the payload that comes is sound to keep */
    bool heard; /* any sound came */
};

struct feed_run {
    const struct mt_feed_opts *o;
    struct mt_addr_one server;
    struct mt_reel *reel;
    struct mt_feed_totals *t;
    struct mt_err *e;
    int rc;         /* why the run stops, 0 while it does not */
    bool connected; /* somebody once was */
    struct mt_clock clock;
    int64_t start_ns;
    int64_t
        grid_ns; /* where the beat of all sessions is counted from; 0 before the first is open */

    uv_loop_t loop;
    uv_poll_t timer;
    int timer_fd;
    int64_t timer_ns; /* what it is set to */
    bool serving;     /* it is set when what is due now is done */
    uv_timer_t check;
    unsigned checks;
    uv_signal_t signals[2];
    int64_t
        grace_ns; /* after an interrupt: until when answers are waited for; 0: not interrupted */
    int64_t heard_ns; /* when the server last said anything to anybody */

    int64_t next_index; /* of the next arrival */
    double arrival_s;   /* when */
    struct feed_session *sessions;
    struct feed_session **heap; /* by wake_ns */
    size_t n_heap, cap_heap;
    char in[64 << 10];  /* what was read last */
    unsigned char *out; /* what is written */
    size_t cap_out;
};

/* ---- feeder.c ---- */

int64_t mt_feed_now(struct feed_run *r);
/* Do what is due now: paced frames don't wait until all answers that came are read. */
void mt_feed_serve_due(struct feed_run *r);
/* Since the start, in seconds of the sound. */
double mt_feed_run_s(struct feed_run *r);
/* When the timer is to call mt_feed_session_wake. */
void mt_feed_wake_at(struct feed_session *s, int64_t ns);
/* The beat's next instant of this phase, not before ns; the first session to ask sets the beat. */
int64_t mt_feed_grid(struct feed_run *r, int64_t ns, double phase, double frame_s);
/* A line out; a failure stops the run. Takes the reference. */
void mt_feed_line(struct feed_run *r, json_t *obj);
void mt_feed_note(struct feed_run *r, enum mt_level level, const char *fmt, ...) MT_PRINTF(3, 4);
/* Stop everything; e is kept if it is the first. text NULL: nothing to say. */
void mt_feed_stop(struct feed_run *r, int rc, const char *text);
/* All its handles are closed: unlinks and frees it. */
void mt_feed_session_gone(struct feed_session *s);

/* ---- feed_session.c ---- */

int mt_feed_session_new(struct feed_run *r, int64_t index, double arrived_s);
void mt_feed_session_wake(struct feed_session *s);
/*
 * The server refused it, saying so in msg: it offers itself again when the server asks it to, or is
 * over.
 */
void mt_feed_session_refused(struct feed_session *s, json_t *msg);
/* The server opened it: its sound begins. */
void mt_feed_session_begin(struct feed_session *s);
/*
 * The server has heard so many samples already and answered so many frames; those between are owed.
 * Negative with e.
 */
int mt_feed_session_skip(struct feed_session *s, int64_t frame, int64_t samples, struct mt_err *e);
/* Says `end` now; what was prepared and is not due stays unsent. */
void mt_feed_session_finish(struct feed_session *s);
/* Ends it with an account of every frame sent. why NULL: in order; else it counts as broken. */
void mt_feed_session_close(struct feed_session *s, const char *why);
/* Whether the server owes it a word, and since when. */
bool mt_feed_session_owed(const struct feed_session *s, int64_t *since_ns);

/* ---- feed_server.c ---- */

/* What the server says: mt_wire_parser's callbacks. */
int mt_feed_on_message(void *session, json_t *msg, int64_t payload);
int mt_feed_on_payload(void *session, const unsigned char *bytes, size_t n);

/* ---- mt_feed_record.c ---- */

/* A record of this session came: account, add rtt_ms, pass on. */
void mt_feed_record(struct feed_session *s, json_t *msg);
/* Frame number k was sent, due at due_ns. Negative without memory. */
int mt_feed_record_sent(struct feed_session *s, int64_t due_ns);
/* An error or refused record that the feeder makes itself. */
void mt_feed_record_own(struct feed_session *s, int64_t frame, enum mt_status status,
                        const char *reason, double retry_s);
/* The frames that stayed without a record. */
void mt_feed_record_rest(struct feed_session *s);

#endif
