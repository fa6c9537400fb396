/*
 * listen.h: a server's end of a socket path. Internal to lib/wire and lib/metrics.
 */
#ifndef MT_WIRE_LISTEN_H
#define MT_WIRE_LISTEN_H

#include "base/base.h"

#include <sys/types.h>

struct mt_listener {
    int fd;
    dev_t dev; /* of the file, so that only our own is ever removed */
    ino_t ino;
};

/*
 * A listening Unix socket at path, mode 0600 from its first instant. A dead server's file is
 * replaced; -EADDRINUSE for a live one's, -EEXIST for a file that is no socket, -ENAMETOOLONG.
 */
int mt_listen(struct mt_listener *l, const char *path, struct mt_err *e);
/* Remove the file if it is still ours. The descriptor is the caller's. */
void mt_listen_unlink(const struct mt_listener *l, const char *path);

#endif
