/*
 * agent.h: answers HAProxy's agent checks, in a thread of its own: whatever the controller is busy
 * with, a check is answered at once, and a client that says nothing or reads nothing holds up
 * nobody.
 */
#ifndef MT_WIRE_AGENT_H
#define MT_WIRE_AGENT_H

#include "control/agent.h"

/* A proxy may say what share of the limit is its own; it has so long for that. */
enum { MT_AGENT_WAIT_MS = 50 };

struct mt_agent_server;
/*
 * where: "HOST:PORT", "[V6]:PORT", "PORT" (loopback), or "unix:PATH". It begins as
 * MT_AGENT_WARMING. -EINVAL for a where that is none, else as bind and listen.
 */
int mt_agent_serve(struct mt_agent_server **out, const char *where, struct mt_err *e);
/* The same on a socket that listens already; it is closed with the server. */
int mt_agent_serve_fd(struct mt_agent_server **out, int fd, struct mt_err *e);
/* Where it listens, with the port that was chosen for 0. */
const char *mt_agent_where(const struct mt_agent_server *s);
/*
 * What is to be answered from now on, by any thread. Without another word for so long (stale_ns, 0:
 * however long) it is that the server has stalled.
 */
void mt_agent_tell(struct mt_agent_server *s, const struct mt_agent *a, int64_t stale_ns);
void mt_agent_stop(struct mt_agent_server **s);

#endif
