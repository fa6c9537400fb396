/*
 * mail.h: private to lib/wire: what the I/O thread and the engine thread say to each other. A box
 * is a queue under one lock that is held for a few pointers only; a mail is owned by whoever holds
 * it.
 */
#ifndef MT_WIRE_MAIL_H
#define MT_WIRE_MAIL_H

#include "wire/wire.h"

#include <pthread.h>

enum mt_mail_kind {
    /* to the engine */
    MT_MAIL_OPEN,
    MT_MAIL_AUDIO,
    MT_MAIL_END,
    MT_MAIL_CLOSE, /* the client is gone; goes to the front */
    MT_MAIL_STATS,
    MT_MAIL_CAP,
    MT_MAIL_DRAIN,
    MT_MAIL_SAVE,
    MT_MAIL_LOAD,
    MT_MAIL_HAND, /* stand still, and hand all calls over */
    MT_MAIL_SHUTDOWN,
    /* from it */
    MT_MAIL_LINE,
    MT_MAIL_CREDIT, /* nothing but its charge */
    MT_MAIL_STORE,  /* a saved call, to be written to its file */
    MT_MAIL_PARKED, /* it stands still, and has said all that it had to */
    MT_MAIL_DONE,   /* all sessions are closed, the engine thread ends */
};

struct mt_mail {
    struct mt_mail *next;
    enum mt_mail_kind kind;
    int slot; /* of the connection; it may have been given to another one, then conn differs */
    uint64_t conn;
    size_t charge;             /* bytes it counts against its connection, or gives back to it */
    int64_t t_ns;              /* when it was read */
    struct mt_wire_open *open; /* owned */
    const char *reason;        /* static */
    int64_t session, window;   /* to be saved; that a loaded one is to have, 0: its own */
    char *name;                /* of a saved call; owned, like … */
    struct mt_state_io *state; /* … the call itself, and its bytes */
    json_t *answer;            /* owned: what is said once it is written */
    int rate_hz;               /* above 0: a loaded call's, with … */
    enum mt_pcm format;
    bool live;
    int cap;
    enum mt_gate gate; /* with it */
    bool first;        /* the answer is the first object on its connection */
    bool finish;       /* the connection's last line */
    bool record;       /* a frame's */
    bool watch;        /* a record: watchers get it too */
    size_t n, at;      /* bytes of data, and how many are used up */
    unsigned char data[];
};

/* A mail with room for n bytes, or NULL. */
struct mt_mail *mt_mail_new(enum mt_mail_kind kind, int slot, uint64_t conn, size_t n);
void mt_mail_free(struct mt_mail *m);
/* The whole list. */
void mt_mail_free_all(struct mt_mail *m);

struct mt_box {
    pthread_mutex_t lock;
    pthread_cond_t filled, emptied;
    struct mt_mail *head, *tail;
    size_t bytes, max; /* of data; 0: its senders have bounds of their own */
    bool closed;
};
int mt_box_init(struct mt_box *b, size_t max);
void mt_box_free(struct mt_box *b);
/* Takes m. True if the box was empty. Waits while it is over its max. */
bool mt_box_push(struct mt_box *b, struct mt_mail *m);
void mt_box_push_front(struct mt_box *b, struct mt_mail *m);
/*
 * All of it, in order; waits up to wait_ns for something (0: not, -1: for ever), or until closed.
 */
struct mt_mail *mt_box_take(struct mt_box *b, int64_t wait_ns);
/* Throw away what a connection still has in the box. */
void mt_box_purge(struct mt_box *b, uint64_t conn);
/* Nobody waits any more, on either side. */
void mt_box_close(struct mt_box *b);
bool mt_box_closed(struct mt_box *b);

#endif
