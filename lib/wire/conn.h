/*
 * conn.h: private to conn.c and requests.c: one connection of the server.
 */
#ifndef MT_WIRE_CONN_H
#define MT_WIRE_CONN_H

#include "wire/addr.h"
#include "wire/server.h"

/* Unaccepted bytes at which a connection is no longer read; a live session has more. */
#define MT_CONN_HOLD (64 << 10)

enum role { FRESH, CALL, CONTROL, LINGER };

struct mt_write;

struct mt_conn {
    uv_pipe_t pipe;
    uv_timer_t
        timer; /* a watcher's period, the end of a linger, or what limits a client over TCP */
    uv_shutdown_t shutdown;
    int handles;
    struct mt_server *s;
    int slot; /* -1: above the limit */
    uint64_t id;
    enum role role;
    bool tcp;                         /* then it has limits, and … */
    unsigned char peer[MT_ADDR_PEER]; /* … is of this address */
    double rate, burst;               /* bytes a second of a call, and at once; 0: any */
    double flood;                     /* bytes that came before their time … */
    int64_t flood_ns, heard_ns;       /* … as of then; when anything came last */
    bool said;                        /* the first object is on its way */
    bool watching;
    bool reading, eof;
    bool ended;           /* a session's "end" came */
    bool loading, saving; /* a call of a file; its answer has not come yet */
    bool shut;            /* everything is delivered */
    bool closing;
    int outstanding;                       /* control requests without an answer */
    struct mt_write *writes, **writes_end; /* not yet written in whole, the oldest first */
    char *unsent; /* taken over from another server, to be written before anything else */
    size_t n_unsent;
    int64_t period_ms; /* a watcher's */
    size_t unaccepted, hold;
    size_t discarded, stuck_at;
    struct mt_wire_parser parser;
    struct mt_err err;
    /* of the read at hand */
    int64_t t_ns;
    size_t read;
    bool audio; /* payload is PCM */
    struct mt_mail *piece;
};

/* ---- conn.c ---- */

/*
 * One object to the client; may end in the connection's close, never in a wait. Takes the
 * reference.
 */
void mt_conn_say(struct mt_conn *c, json_t *obj);
/* At once, without a word; what is still to be written is not. */
void mt_conn_close(struct mt_conn *c);
/* What was said and not written yet: its bytes, and a copy of them. */
size_t mt_conn_unsent(const struct mt_conn *c);
void mt_conn_copy_unsent(const struct mt_conn *c, char *to);
/* Say what is wrong, forget the session and close. Returns -EPROTO, which ends the reading too. */
int mt_conn_fail(struct mt_conn *c, const char *text);
int mt_conn_failf(struct mt_conn *c, const char *fmt, ...) MT_PRINTF(2, 3);

/* The answer to a control request that counted so many bytes. Takes the reference. */
void mt_conn_answer(struct mt_conn *c, json_t *obj, size_t charge);

/*
 * A new one over fd, which is closed without memory for it (NULL). seated: it gets a slot if there
 * is one.
 */
struct mt_conn *mt_conn_new(struct mt_server *s, int fd, bool tcp, bool seated);
/* A call over TCP is open, and its audio has so many bytes a second. */
void mt_conn_limit(struct mt_conn *c, double bytes_per_s);

/* ---- conn_state.c ---- */

/* Whether c is one that can go on at another server; else it has had its last line. */
bool mt_conn_moves(const struct mt_conn *c);
/*
 * What this thread knows of c, but for a call's part, which is the worker's. The failure is io's.
 */
int mt_conn_pack(struct mt_conn *c, struct mt_state_io *io);
/*
 * A connection that another server had: fd is c's from now on, or closed. Nothing is read or written
 * before mt_conn_resume. The failure is io's.
 */
int mt_conn_unpack(struct mt_server *s, int fd, struct mt_state_io *io);

/* ---- requests.c ---- */

/* A watcher from now on, with a status line every period_ms. */
void mt_conn_watch(struct mt_conn *c, int64_t period_ms);

/* A call of so many samples a second is open: how much of it may wait, and come. */
void mt_conn_begin_call(struct mt_conn *c, int rate_hz, enum mt_pcm format, bool live);
/* The parser's: an object, and its bytes. */
int mt_conn_on_message(void *ctx, json_t *msg, int64_t payload);
int mt_conn_on_payload(void *ctx, const unsigned char *bytes, size_t n);
/* The audio of this read to the engine, as one mail of just its size. */
int mt_conn_send_piece(struct mt_conn *c);

#endif
