/*
 * service.h: what a service manager (systemd) and a service say to each other: sockets that it made
 * and hands over, and news for it. Without the manager's variables all of this does nothing.
 */
#ifndef MT_SERVICE_H
#define MT_SERVICE_H

#include "base/base.h"

struct mt_service_fd {
    int fd;        /* a stream socket that listens; the caller's */
    char name[64]; /* FileDescriptorName=, "" without one */
};
/*
 * The sockets that were handed over (LISTEN_PID, LISTEN_FDS, LISTEN_FDNAMES; sd_listen_fds(3)), now
 * close-on-exec; the variables are unset. How many, or -EINVAL with what is wrong with them.
 */
int mt_service_fds(struct mt_service_fd *out, int max, struct mt_err *e);

/* Whether there is a manager that wants news. */
bool mt_service_managed(void);
/*
 * One datagram of "NAME=value" lines to NOTIFY_SOCKET (sd_notify(3)), 0 also where there is none; a
 * negative errno when it could not be sent. Never waits.
 */
int mt_service_notify(const char *state);
/* How often the manager wants to hear WATCHDOG=1, in ns; 0: not at all. */
int64_t mt_service_watchdog_ns(void);

#endif
