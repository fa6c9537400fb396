/*
 * feeder.h: calls made of sound: many paced sessions on one socket from one thread, or one session
 * onto a descriptor. A frame is sent at an absolute time and never later because an answer was
 * late, so the load is the same whatever the server does; each frame sent ends in exactly one
 * record.
 */
#ifndef MT_FEEDER_H
#define MT_FEEDER_H

#include "base/base.h"
#include "wire/reel.h"
#include "wire/wire.h"

enum mt_feed_arrivals { MT_ARRIVE_ALL, MT_ARRIVE_RAMP, MT_ARRIVE_POISSON };
enum mt_feed_duration { MT_LAST_FILE, MT_LAST_FIXED, MT_LAST_EXP };
enum mt_feed_phase { MT_PHASE_SPREAD, MT_PHASE_LOCKED, MT_PHASE_RANDOM };

/* All times are of the sound: a speed of 2 halves every one of them on the clock. */
struct mt_feed_opts {
    const char *socket;
    int64_t sessions;
    double seconds;   /* of the run: every session ends by then; 0: no limit */
    int64_t frame_ns; /* 0: the server's, or a default on a descriptor */
    bool pace;
    double speed;
    bool loop;
    enum mt_feed_arrivals arrivals;
    double arrivals_per_s;
    enum mt_feed_duration duration;
    double duration_s; /* fixed, or the mean */
    enum mt_feed_phase phase;
    const char *load;       /* a saved call to go on with, in the place of a new one; or NULL */
    bool retry;             /* a session that is refused offers itself again */
    double talk_s, pause_s; /* means: callers talk and pause by turns; 0: they never pause */
    uint64_t seed;
    const char *play_dir; /* NULL: what the model speaks is skipped */
    int64_t wait_ns;      /* without a word from the server that owes one, give up; 0: never */
    struct mt_wire_open
        open; /* as sent, but for the seed (seed + number of the session) and `live` */

    void *ctx;
    /* One line for stdout; takes the reference. A negative value stops the run at once. */
    int (*line)(void *ctx, json_t *obj);
    void (*note)(void *ctx, enum mt_level level, const char *text);
    /* Once a second, for a progress line; may be NULL. */
    void (*progress)(void *ctx, double run_s);
};

/*
 * When session i arrives after the one before it, how long it sends, and where its frames lie in
 * the beat (0..1). Seeded.
 */
double mt_feed_gap_s(const struct mt_feed_opts *o, int64_t i);
double mt_feed_length_s(const struct mt_feed_opts *o, int64_t i,
                        double arrived_s); /* INFINITY: as long as the files */
double mt_feed_phase(const struct mt_feed_opts *o, int64_t i);
/* How long session i's k-th spurt of talk lasts, or the pause behind it. Exponential, seeded. */
double mt_feed_talk_s(const struct mt_feed_opts *o, int64_t i, int64_t k);
double mt_feed_pause_s(const struct mt_feed_opts *o, int64_t i, int64_t k);

struct mt_feed_totals {
    int64_t arrived, active, opened, refused;
    int64_t waiting;    /* of the active: refused, and about to try again */
    int64_t retries;    /* offers that were refused and made again */
    int64_t cut;        /* sessions that the server closed before their end, saying so */
    int64_t broken;     /* connections that failed, or ended without a word */
    int64_t frames[6];  /* records by status; the error records of the feeder are among them */
    int64_t sent;       /* frames */
    int64_t unanswered; /* of them, without a record: counted as error too */
    int64_t untruthful; /* "ok" although nothing was decoded */
    int64_t
        unexpected; /* records that can't be read, come twice, or of a frame that was not sent */
    int64_t spoke;  /* sessions that brought sound */
    bool source_failed, interrupted;
    double first_stall_s; /* since the start of the run, -1 without */
    double run_s;
    struct mt_hist latency, rtt; /* of frames that were answered (ok, late) */
    struct mt_hist behind;       /* paced: how long after its time a frame was handed over */
};

/*
 * Run all sessions on o->socket until the last one ended. SIGINT and SIGTERM: each session says
 * `end` and a short while is left for the answers; the second one ends the run. Negative errno with
 * e when the run could not start or had to stop (no server, another frame length, a line that could
 * not be written: then e is empty). t is filled in either case. Raises the limit on open files as
 * far as it may.
 */
int mt_feed_socket(struct mt_reel *r, const struct mt_feed_opts *o, struct mt_feed_totals *t,
                   struct mt_err *e);

/*
 * One session's side of the wire onto a descriptor: open, audio, end. SIGINT or SIGTERM end it in
 * order, the second at once. -EPIPE when the reader left. t: interrupted, source_failed.
 */
int mt_feed_pipe(struct mt_reel *r, const struct mt_feed_opts *o, int fd, struct mt_feed_totals *t,
                 struct mt_err *e);

#endif
