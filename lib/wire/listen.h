/*
 * listen.h: a server's end of a socket. Internal to lib/wire and lib/metrics.
 */
#ifndef MT_WIRE_LISTEN_H
#define MT_WIRE_LISTEN_H

#include "wire/addr.h"

#include <sys/types.h>

struct mt_listener {
    int fd;
    dev_t dev; /* of the file, so that only our own is ever removed */
    ino_t ino;
    bool theirs;              /* another process's until it has handed it over: its file stays */
    char asked[MT_ADDR_TEXT]; /* as it was asked for; "": somebody else made it */
    char where[MT_ADDR_TEXT]; /* the same with the port that was chosen for 0 */
};

/*
 * Listening at `where`, as mt_addr_parse reads it. A Unix socket has mode 0600 from its first
 * instant; a dead server's file is replaced; -EADDRINUSE for a live one's, -EEXIST for a file that
 * is no socket.
 */
int mt_listen(struct mt_listener *l, const char *where, struct mt_err *e);
/* The same with `where` as mt_addr_parse_service reads it. */
int mt_listen_service(struct mt_listener *l, const char *where, struct mt_err *e);
/* A Unix socket of whole messages (SOCK_SEQPACKET), else the same. */
int mt_listen_packets(struct mt_listener *l, const char *path, struct mt_err *e);
/* A socket that somebody else made and that listens already: its file is not ours to remove. */
void mt_listen_adopt(struct mt_listener *l, int fd);
/* The same, named as mt_listen_service names it. */
void mt_listen_adopt_service(struct mt_listener *l, int fd);
/* Remove the file if there is one and it is still ours. The descriptor is the caller's. */
void mt_listen_unlink(const struct mt_listener *l);

#endif
