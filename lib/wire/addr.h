/*
 * addr.h: where a server is: a Unix socket's path, or HOST:PORT. Internal to lib/wire and
 * lib/metrics; what the tools need of it is in wire.h.
 */
#ifndef MT_WIRE_ADDR_H
#define MT_WIRE_ADDR_H

#include "base/base.h"

#include <sys/socket.h>

enum {
    MT_ADDRS = 8,      /* that a name may have; more are left out */
    MT_ADDR_TEXT = 340 /* "tcp:[…]:65535", or "unix:" and a path */
};

struct mt_addr {
    bool tcp;
    int n;
    struct mt_addr_one {
        struct sockaddr_storage sa;
        socklen_t len;
        int type; /* SOCK_STREAM; SOCK_SEQPACKET where mt_addr_packets has said so */
    } at[MT_ADDRS];
};

/*
 * As -s has it: "tcp:HOST:PORT", "tcp:[V6]:PORT", or a path. 0, -EINVAL for what is neither,
 * -ENAMETOOLONG, -EADDRNOTAVAIL for a name that nobody has; where is named in e.
 */
int mt_addr_parse(struct mt_addr *a, const char *where, struct mt_err *e);
/* As --metrics has it: "HOST:PORT", "[V6]:PORT", "PORT" of this machine alone, or "unix:PATH". */
int mt_addr_parse_service(struct mt_addr *a, const char *where, struct mt_err *e);
/* A Unix socket's path, for whole messages instead of a stream of bytes. */
int mt_addr_packets(struct mt_addr *a, const char *path, struct mt_err *e);

/* Where fd is bound, as mt_addr_parse reads it, in numbers; "" if that can't be told. */
void mt_addr_name(int fd, char out[MT_ADDR_TEXT]);

/*
 * A socket on its way to one of the addresses, non-blocking: a Unix socket is there at once, one of
 * TCP may fail only when it is used. A negative errno when none can be tried.
 */
int mt_addr_dial(const struct mt_addr_one *to);
/*
 * Connected to the first of the addresses that answers, its number in *which (may be NULL); a
 * negative errno when none does, -ETIMEDOUT at until_ns (of the real clock, INT64_MAX: never).
 */
int mt_addr_connect(const struct mt_addr *a, int64_t until_ns, int *which);
/* Until fd has one of poll's events: 0, -ETIMEDOUT or -EINTR. */
int mt_addr_wait(int fd, short events, int64_t until_ns);
/*
 * Who is at the other end of a connection over TCP, as far as it tells callers apart: a V4 address,
 * or the first half of a V6 one, all of whose second half one host may have. Zeros if that can't be
 * told.
 */
enum { MT_ADDR_PEER = 16 };
void mt_addr_peer(int fd, unsigned char out[MT_ADDR_PEER]);
/* Small lines go at once, and a peer that vanished is found out within half a minute. */
void mt_addr_tune(int fd);

#endif
