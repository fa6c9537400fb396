/*
 * agent.c: a controller's state in the words of HAProxy's agent protocol. Never "maxconn:0", which
 * is no limit at all there; and always both words that undo others, "up" for down and stopped,
 * "ready" for drain.
 */
#include "control/agent.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

struct mt_agent mt_agent_judge(const struct mt_admit *law, const char *health)
{
    struct mt_agent a = {.state = MT_AGENT_OPEN, .sessions = law->n, .limit = law->limit};
    bool fine = !health || !strcmp(health, "ok");

    if (health && !strcmp(health, "draining"))
        a.state = MT_AGENT_DRAINING;
    else if (law->stalled || (health && !strcmp(health, "stalled")))
        a.state = MT_AGENT_STALLED;
    else if (health && !strcmp(health, "warming"))
        a.state = MT_AGENT_WARMING;
    else if (!fine || law->untruthful)
        a.state = MT_AGENT_HOLDING;
    return a;
}

/* Free share of the limit; 0 would be a drain to the proxy. */
static int weight(const struct mt_agent *a)
{
    long w = a->state == MT_AGENT_OPEN ? lround(100.0 * (a->limit - a->sessions) / a->limit) : 1;

    return w < 1 ? 1 : w > 100 ? 100 : (int)w;
}

size_t mt_agent_reply(const struct mt_agent *a, int share, char out[MT_AGENT_LINE])
{
    int part = a->limit / share, n;

    part = part < 1 ? 1 : part;
    switch (a->state) {
    case MT_AGENT_WARMING:
        n = snprintf(out, MT_AGENT_LINE, "down # warming\n");
        break;
    case MT_AGENT_STALLED:
        n = snprintf(out, MT_AGENT_LINE, "down # stalled %" PRId64 "ms\n", a->stalled_ms);
        break;
    case MT_AGENT_STOPPED:
        n = snprintf(out, MT_AGENT_LINE, "stopped # shutdown\n");
        break;
    default:
        if (a->state == MT_AGENT_DRAINING || a->limit < 1)
            n = snprintf(out, MT_AGENT_LINE, "up drain maxconn:%d\n", part);
        else
            n = snprintf(out, MT_AGENT_LINE, "up ready %d%% maxconn:%d\n", weight(a), part);
        break;
    }
    return (size_t)n;
}

int mt_agent_share(const char *line, size_t n)
{
    static const char word[] = "share=";
    size_t len = sizeof(word) - 1;
    char number[8] = "";
    int64_t k;

    if (n <= len || n - len >= sizeof(number) || memcmp(line, word, len) != 0)
        return 1;
    memcpy(number, line + len, n - len);
    return mt_parse_i64(number, 1, 10000, &k) < 0 ? 1 : (int)k;
}
