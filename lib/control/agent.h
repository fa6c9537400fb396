/*
 * agent.h: what a server's controller tells the proxy that places calls: one line of HAProxy's
 * agent protocol (its configuration manual, "agent-check"). Pure functions.
 */
#ifndef MT_AGENT_H
#define MT_AGENT_H

#include "control/admit.h"

enum mt_agent_state {
    MT_AGENT_WARMING, /* no frame met its deadline yet, or nothing is known of the server */
    MT_AGENT_STALLED, /* its engine stands still */
    MT_AGENT_OPEN,    /* it takes calls as long as the limit has room */
    MT_AGENT_HOLDING, /* it could, but what it says of its frames is bad or can't be believed */
    MT_AGENT_DRAINING,
    MT_AGENT_STOPPED, /* it is gone */
};

struct mt_agent {
    enum mt_agent_state state;
    int sessions, limit;
    int64_t stalled_ms; /* for how long, where it is */
};

/*
 * What the law and the server's own word of health (NULL: it said none) make of a server. health is
 * as mt_health_ready has it. Sessions and the time are left to the caller.
 */
struct mt_agent mt_agent_judge(const struct mt_admit *law, const char *health);

enum { MT_AGENT_LINE = 48 };
/*
 * The whole line with its newline; it always has the full state, since the proxy keeps what a line
 * does not mention. share: of so many proxies each gets its part of the limit. Returns its length.
 */
size_t mt_agent_reply(const struct mt_agent *a, int share, char out[MT_AGENT_LINE]);

/* The K of a request "share=K", 1..10000; 1 for any other line. */
int mt_agent_share(const char *line, size_t n);

#endif
