/*
 * server.h: private to lib/wire: the I/O thread: the server's loop, and its connections.
 */
#ifndef MT_WIRE_SERVER_H
#define MT_WIRE_SERVER_H

#include "wire/handoff.h"
#include "wire/listen.h"
#include "wire/worker.h"

#include <uv.h>

#define MT_CONTROL_CONNS 64         /* connections beyond --max-sessions */
#define MT_READ_MAX      (64 << 10) /* bytes of one read */

struct mt_conn;
struct mt_server;

/* One place where clients come in. */
struct mt_door {
    struct mt_server *s;
    struct mt_listener listener;
    uv_poll_t poll;
    bool tcp;
};

struct mt_server {
    const struct mt_server_opts *opts;
    struct mt_worker worker;
    struct mt_door doors[MT_DOORS];
    int n_doors;
    struct mt_listener metrics; /* taken over from another server; fd -1: none */
    struct mt_handoff handoff;
    uv_loop_t loop;
    uv_async_t mail;
    uv_signal_t term, intr;
    uv_timer_t sweep;       /* for clients that vanish while nobody reads from them */
    uv_timer_t final;       /* the end does not wait for slow readers */
    uv_timer_t pause;       /* no descriptors are left for those who come in */
    struct mt_conn **conns; /* [slots] */
    int slots, n_conns;     /* n_conns: those refused for lack of a slot too */
    int n_tcp;              /* of these, over TCP */
    double opens;           /* new connections over TCP that may come now … */
    int64_t opens_ns;       /* … as of then */
    uint64_t last_id;
    size_t call_bytes;     /* that a saved call has at most */
    int64_t records;       /* passed on, for the fault that counts them */
    int64_t dying_ns;      /* until then a server that is just ending may still be at the doors */
    bool open;             /* the doors are made */
    bool frozen;           /* all calls stand still, on their way to another server */
    bool stopping;         /* nobody is admitted any more */
    bool done;             /* the engine has ended */
    char buf[MT_READ_MAX]; /* libuv reads and hands over before it reads again: one is enough */
};

/* ---- conn.c ---- */

/* The door has a connection; fd is its. */
void mt_conn_accept(struct mt_door *d, int fd);
/* Nobody is read, and nobody comes in, or again. */
void mt_conn_hold_all(struct mt_server *s, bool hold);
/* One that came from another server goes on here. */
void mt_conn_resume(struct mt_conn *c);
/* A line from the engine for c; m stays the caller's. */
void mt_conn_mail(struct mt_conn *c, const struct mt_mail *m);
/* Who a mail is for, NULL if that connection is gone. */
struct mt_conn *mt_conn_find(struct mt_server *s, const struct mt_mail *m);
/* A record for those who watch. */
void mt_conn_broadcast(struct mt_server *s, const struct mt_mail *m);
/* The server stops: sessions are no longer read, those that have not said anything are refused. */
void mt_conn_stop_all(struct mt_server *s);
/* Say what is left to say and close; now: without. */
void mt_conn_finish_all(struct mt_server *s, bool now);

/* ---- server.c ---- */

/*
 * Listen where the options say, but for the doors that there are already; and on what was taken
 * over.
 */
int mt_server_open_doors(struct mt_server *s, struct mt_err *e);
/* Whether an address may come free soon, of which rc says that it can't be had: after a nap. */
bool mt_server_again(const struct mt_server *s, int rc);
/* Nobody comes in for a while, or again; nor does a successor. */
void mt_server_bar_doors(struct mt_server *s, bool bar);
/* Nobody could be let in at `where`: if errno says that it is for want of something, a pause. */
void mt_server_pause(struct mt_server *s, const char *where);
/* All but what still has its last lines to fetch is another server's now. */
void mt_server_given(struct mt_server *s);

void mt_server_note(struct mt_server *s, enum mt_level level, const char *fmt, ...) MT_PRINTF(3, 4);
/* A connection is closed and freed. */
void mt_server_conn_gone(struct mt_server *s);

#endif
