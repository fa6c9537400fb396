/*
 * handoff.h: private to lib/wire: a server hands everything over to its successor.
 *
 * The two talk in packets (packet.h) over a Unix socket at which the giver waits. Nothing moves
 * before the taker has its weights and has answered a frame of silence:
 *
 *   taker  hello      what it is
 *   giver  offer      what it is, its listening sockets, and one end of a pipe: the baton
 *   taker  ready      it fits; else refuse
 *   giver  connection a client's socket, and all that is known of it and its call (one packet each)
 *   taker  taken      it stands here, and is not touched
 *   giver  end        what is known beside them
 *   taker  taken
 *   giver             writes one byte into the pipe
 *   taker             reads it: from here on it serves
 *   taker  mine       so the giver ends
 *
 * Between ready and the byte the giver's calls stand still. Whoever can't go on says refuse or
 * leaves, and the giver's calls go on where they stood; a taker may leave until it has said mine.
 * The byte is what both agree by: the giver has the pipe's reading end, too, and when "mine" does
 * not come it tries to take the byte back; the kernel gives it to one of them. A giver that gives up
 * writes another byte. One that is killed just closes the pipe; then the taker serves what it has,
 * as nobody else can.
 */
#ifndef MT_WIRE_HANDOFF_H
#define MT_WIRE_HANDOFF_H

#include "wire/listen.h"
#include "wire/mail.h"
#include "wire/packet.h"

#include <semaphore.h>
#include <uv.h>

struct mt_server;
struct mt_worker;
struct mt_successor; /* handoff.c: one that has connected */

enum { MT_HANDOFF_PROTOCOL = 1 };
#define MT_HANDOFF_COMMIT 'c'
#define MT_HANDOFF_ABORT  'a'

/* The giver's side. */
struct mt_handoff {
    struct mt_listener listener; /* where successors come; fd -1: they don't */
    uv_poll_t accept;
    struct mt_successor *next;
    int64_t since_ns; /* when the calls began to stand still */

    /* While the calls stand still; the engine's thread and the I/O thread have it by turns. */
    struct mt_mail *parked;
    struct mt_state_io *parcel; /* [slots], those that go have bytes */
    bool semaphores;
    sem_t go, done;
    bool moved;
    struct mt_err err; /* why not */
};

/* ---- handoff.c: the giver ---- */

/* Where the options say, on the socket that was taken over if there is one. */
int mt_handoff_open(struct mt_server *s, struct mt_err *e);
/* Successors may come, or not for a while. */
void mt_handoff_wait(struct mt_server *s, bool wait);
/* They may not any more. */
void mt_handoff_close(struct mt_server *s);
/* After the loop. */
void mt_handoff_free(struct mt_handoff *h);
/* The engine stands still: MT_MAIL_PARKED has come. */
void mt_handoff_parked(struct mt_server *s);
/* The engine's thread: true when all calls are the successor's. */
bool mt_handoff_give(struct mt_handoff *h, struct mt_worker *w);

/* ---- handoff_take.c: the taker ---- */

/*
 * Everything of the server that waits at the options' path, if there is one: 0, also where nobody
 * is, or a negative errno with e, and the other one serves.
 */
int mt_handoff_take(struct mt_server *s, struct mt_err *e);

/* ---- handoff_facts.c: what the two say of themselves ---- */

/* What a server is, as far as calls depend on it. NULL without memory. */
json_t *mt_handoff_facts(const struct mt_server *s);
/* Whether a server that is `mine` can go on with the calls of one that is `theirs`; e says why not. */
int mt_handoff_fits(json_t *theirs, json_t *mine, struct mt_err *e);

/* What a listening socket is for. */
enum mt_door_kind { MT_DOOR_CALLS, MT_DOOR_METRICS, MT_DOOR_HANDOFF };
json_t *mt_handoff_door_json(enum mt_door_kind kind, const struct mt_listener *l);
/* Back; the descriptor is l's only after success. -EPROTO. */
int mt_handoff_door_parse(json_t *o, int fd, enum mt_door_kind *kind, struct mt_listener *l,
                          struct mt_err *e);

/* A message begun. */
json_t *mt_handoff_message(const char *type);
/* "refuse" with a text, if it can be sent at once. */
void mt_handoff_refuse(int fd, const char *text);

#endif
