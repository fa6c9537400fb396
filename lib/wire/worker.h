/*
 * worker.h: private to lib/wire: the engine thread of a server. It owns the engine while it runs:
 * mail comes in, lines go out, and a snapshot for watchers is there at all times.
 */
#ifndef MT_WIRE_WORKER_H
#define MT_WIRE_WORKER_H

#include "wire/internal.h"
#include "wire/mail.h"
#include "wire/meter.h"

#include <stdatomic.h>

struct mt_call; /* worker.c: the engine thread's side of a connection that is a session */

struct mt_worker {
    struct mt_engine *eng;
    struct mt_model *model;
    struct mt_box in, out;
    void (*notify)(void *ctx); /* the outbox is no longer empty; called in the engine thread */
    void *ctx;
    atomic_int watchers;

    /* the engine thread's */
    struct mt_call **calls; /* [slots] */
    int slots;
    struct mt_call **by_session; /* [n_calls] those with a live session, by its number */
    int n_calls;
    struct mt_call *busy, *busy_last; /* those a round has to look at, first come first */
    bool worked;                      /* the last round did something, so that more may be left */
    bool stopping;
    bool moved;           /* all calls are another server's */
    struct mt_mail *done; /* made early, so that the end needs no memory */
    struct mt_handoff *handoff;

    struct mt_wire_meter *meter; /* the snapshot */
    struct mt_wire_fault fault;
    uint64_t identity; /* of the model, where calls may be saved */
    int64_t warm_ns;   /* when the engine was warmed last */
    int64_t pass_ns;   /* what the last pass took */

    pthread_t thread;
    bool started, made;
};

/*
 * slots: connections at most. The worker is zeroed but for eng, model, notify, ctx, meter, fault.
 */
int mt_worker_init(struct mt_worker *w, int slots, struct mt_err *e);
/* Frames of silence until one meets the deadline, before the thread starts. */
void mt_worker_warm(struct mt_worker *w);
int mt_worker_start(struct mt_worker *w, struct mt_err *e);
/*
 * A call and what it has not heard yet, behind what io has; and back, as the call of a connection
 * that has a slot, before the thread starts: *rate_hz, *format, *live are how it was opened, *held
 * counts the bytes that its connection has not got back. The failure is io's.
 */
int mt_worker_pack(struct mt_worker *w, struct mt_call *c, struct mt_state_io *io);
struct mt_unpacked {
    int64_t session;
    int rate_hz;
    enum mt_pcm format;
    bool live;
    size_t held;
};
int mt_worker_unpack(struct mt_worker *w, int slot, uint64_t conn, struct mt_state_io *io,
                     struct mt_unpacked *out);
/* What is known beside the calls, as mt_engine_visit and mt_meter_visit have it. */
int mt_worker_visit(struct mt_worker *w, struct mt_state_io *io);

/*
 * What the thread does, for whoever lets time pass without one: begin; a round, which waits for
 * mail for so long at most, until one says that it was the last; end, which closes what is left.
 */
void mt_worker_begin(struct mt_worker *w);
bool mt_worker_round(struct mt_worker *w, int64_t wait_ns);
/* For how long a round may wait: 0 while there is something to do. */
int64_t mt_worker_patience(const struct mt_worker *w);
void mt_worker_end(struct mt_worker *w);

/* Ends the thread, after the tick that it is in if it has not ended already. */
void mt_worker_free(struct mt_worker *w);

#endif
