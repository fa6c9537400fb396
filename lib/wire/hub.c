/*
 * hub.c: the engine's events, made before anybody is there to hear them. Everything here is the
 * engine thread's, but for binding, which happens before that thread starts and after it ended.
 */
#include "wire/internal.h"

#include <errno.h>
#include <stdlib.h>

struct mt_wire_hub {
    struct mt_wire_sink sink;
};

int mt_wire_hub_new(struct mt_wire_hub **out)
{
    *out = calloc(1, sizeof(**out));
    return *out ? 0 : -ENOMEM;
}

void mt_wire_hub_free(struct mt_wire_hub **h)
{
    free(*h);
    *h = NULL;
}

static void hub_frame(void *ctx, const struct mt_record *r)
{
    struct mt_wire_hub *h = ctx;

    if (h->sink.frame)
        h->sink.frame(h->sink.ctx, r);
}

static void hub_closed(void *ctx, int64_t session, const char *reason, int64_t frames)
{
    struct mt_wire_hub *h = ctx;

    if (h->sink.closed)
        h->sink.closed(h->sink.ctx, session, reason, frames);
}

struct mt_engine_events mt_wire_hub_events(struct mt_wire_hub *h)
{
    return (struct mt_engine_events){.ctx = h, .frame = hub_frame, .closed = hub_closed};
}

struct mt_wire_hub *mt_wire_hub_of(const struct mt_engine *eng)
{
    const struct mt_engine_events *ev = &mt_engine_options(eng)->events;

    return ev->frame == hub_frame ? ev->ctx : NULL;
}

void mt_wire_hub_bind(struct mt_wire_hub *h, const struct mt_wire_sink *sink)
{
    h->sink = sink ? *sink : (struct mt_wire_sink){0};
}
