/*
 * packet.h: private to lib/wire: messages between two servers of one machine: a JSON object and
 * descriptors in one packet of a SOCK_SEQPACKET socket, so that it comes whole or not at all; and
 * bytes too many for one, in memory that can't change any more.
 */
#ifndef MT_WIRE_PACKET_H
#define MT_WIRE_PACKET_H

#include "base/base.h"
#include "base/state.h"

enum { MT_PACKET_MAX = 32 << 10, MT_PACKET_FDS = 16 };

struct mt_packet {
    json_t *msg;
    const char *type; /* its "type", in msg */
    int fds[MT_PACKET_FDS];
    int n_fds;
};

/*
 * Takes the reference; the descriptors stay the caller's. 0, -ETIMEDOUT, or a negative errno with
 * e: -EPIPE when nobody is there any more. until_ns: of the real clock.
 */
int mt_packet_send(int fd, json_t *msg, const int *fds, int n, int64_t until_ns, struct mt_err *e);
/*
 * The next one: 0, to be freed; -ENODATA when the other side has gone, -ETIMEDOUT, -EPROTO for what
 * is no message.
 */
int mt_packet_recv(int fd, struct mt_packet *p, int64_t until_ns, struct mt_err *e);
/* A descriptor that is the caller's from now on, -1: there is no such one. */
int mt_packet_take(struct mt_packet *p, int i);
/* Closes those that nobody took. */
void mt_packet_free(struct mt_packet *p);
/* n bytes as a message: what mt_packet_recv makes of them. */
int mt_packet_parse(struct mt_packet *p, const char *text, size_t n, struct mt_err *e);

/* Whether the other side is a process of this user. -EPERM with e. */
int mt_packet_check_peer(int fd, struct mt_err *e);

/* What io has, in a descriptor of memory that nobody can alter. A negative errno with e. */
int mt_packet_seal(const struct mt_state_io *io, struct mt_err *e);
/*
 * Back from one that came from anywhere, at most so many bytes: io reads it until mt_packet_unmap.
 * -EPROTO unless it is such memory.
 */
int mt_packet_map(struct mt_state_io *io, int fd, size_t most, struct mt_err *e);
void mt_packet_unmap(struct mt_state_io *io);

#endif
