/*
 * call.h: private to worker.c and worker_state.c: the engine thread's side of a connection that is
 * a session.
 */
#ifndef MT_WIRE_CALL_H
#define MT_WIRE_CALL_H

#include "wire/intake.h"
#include "wire/worker.h"

struct mt_call {
    int slot;
    uint64_t conn;
    int64_t session;
    bool tokens, speech, live;
    bool stalled; /* its last frame found no memory */
    bool closed;  /* the engine has let go of it; freed between rounds */
    bool mute;    /* its connection has had its last line */
    size_t credit;
    struct mt_mail *head, *tail; /* audio and end, not yet in the engine */
    struct mt_call *prev, *next; /* among the busy ones */
    bool busy;
    int64_t t_ns; /* arrival of what intake.out holds */
    struct mt_intake intake;
};

/* ---- worker.c ---- */

/* By the engine's clock. */
int64_t mt_worker_now_ns(const struct mt_worker *w);
void mt_worker_post(struct mt_worker *w, struct mt_mail *m);
void mt_worker_post_line(struct mt_worker *w, json_t *obj, struct mt_mail head);
/* c, whose session is open, takes its place. */
void mt_worker_call_opened(struct mt_worker *w, struct mt_call *c);
/* Make room in m's slot: a call of a connection before may still be there. */
void mt_worker_call_vacate(struct mt_worker *w, int slot);
struct mt_call *mt_worker_call(const struct mt_worker *w, int64_t session);
/* The engine knows nothing of c any more. */
void mt_worker_call_free(struct mt_worker *w, struct mt_call *c);
/* c has something to do in the next round. */
void mt_worker_call_busy(struct mt_worker *w, struct mt_call *c);

/* A mail for c, behind those that wait. */
void mt_worker_call_keep(struct mt_worker *w, struct mt_call *c, struct mt_mail *m);

/* ---- worker_state.c ---- */

/* Requests "save" and "load": the mail is the caller's. */
void mt_worker_save(struct mt_worker *w, const struct mt_mail *m);
void mt_worker_load(struct mt_worker *w, struct mt_mail *m);

#endif
