/*
 * health.c: one word for the state of a server, from the compute loop's own heartbeat and from what
 * became of its last frames: a listener that still says hello proves nothing.
 */
#include "wire/wire.h"

/* A machine that was busy with something else for so long is no stopped engine. */
#define PATIENCE_NS (250 * MT_NS_PER_MS)
/* A first frame touches every weight. */
#define WARM_NS (60 * MT_NS_PER_S)

const char *mt_health_alive(const struct mt_wire_state *s, int64_t now_ns)
{
    int64_t limit = MT_HEALTH_FRAMES * s->frame_ns;

    if (s->since_ns == 0)
        return "ok"; /* it is being built, by a thread that would have said if it failed */
    if (limit < PATIENCE_NS)
        limit = PATIENCE_NS;
    if (!s->warm && s->missed == 0 && limit < WARM_NS)
        limit = WARM_NS;
    return now_ns - s->beat_ns > limit ? "stalled" : "ok";
}

const char *mt_health_ready(const struct mt_wire_state *s, int64_t now_ns)
{
    const char *alive = mt_health_alive(s, now_ns);

    if (*alive != 'o')
        return alive;
    if (s->draining)
        return "draining";
    if (s->missed > (s->warm ? MT_HEALTH_FRAMES : 0))
        return s->miss;
    return s->warm ? "ok" : "warming";
}
