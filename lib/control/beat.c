/*
 * beat.c: due times of each session's last frame in a table of fixed size, and a histogram of the
 * gaps to the next one.
 */
#include "control/beat.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { SLOTS = 4096, PROBES = 16 };

struct last {
    uint64_t session; /* hash; 0: free */
    int64_t frame;
    double due_s;
};

struct mt_beat {
    struct last last[SLOTS];
    struct mt_hist gaps;
    double median_s;
    uint64_t looked_at; /* gaps when the median was last taken */
};

int mt_beat_open(struct mt_beat **out)
{
    *out = calloc(1, sizeof(**out));
    return *out ? 0 : -ENOMEM;
}

void mt_beat_close(struct mt_beat **b)
{
    free(*b);
    *b = NULL;
}

/* Names are words or, from others' tools, integers. */
static uint64_t hash(const json_t *session)
{
    const char *s = json_string_value(session);
    json_int_t i = json_integer_value(session);
    uint64_t h = s ? mt_hash(MT_HASH_INIT, s, strlen(s)) : mt_hash(MT_HASH_INIT, &i, sizeof(i));

    return h ? h : 1;
}

/* The session's place: its own, a free one, or that of another, which may be long gone. */
static struct last *place(struct mt_beat *b, uint64_t session)
{
    for (size_t i = 0; i < PROBES; i++) {
        struct last *l = &b->last[(session + i) % SLOTS];

        if (l->session == session || l->session == 0)
            return l;
    }
    return &b->last[session % SLOTS];
}

void mt_beat_record(struct mt_beat *b, const json_t *record)
{
    const json_t *session = json_object_get(record, "session");
    const json_t *frame = json_object_get(record, "frame"), *t = json_object_get(record, "t");
    const json_t *latency = json_object_get(record, "latency_ms");
    struct last now, *l;

    if (!session || !json_is_integer(frame) || !json_is_number(t) || !json_is_number(latency))
        return;
    now.session = hash(session);
    now.frame = json_integer_value(frame);
    now.due_s = json_number_value(t) - json_number_value(latency) / 1e3;
    l = place(b, now.session);
    if (l->session == now.session && now.frame == l->frame + 1 && now.due_s > l->due_s &&
        now.due_s - l->due_s < 1e5)
        mt_hist_add(&b->gaps, (int64_t)(1e9 * (now.due_s - l->due_s)));
    *l = now;
}

bool mt_beat_first(const json_t *record)
{
    const json_t *frame = json_object_get(record, "frame");

    return json_is_integer(frame) && json_integer_value(frame) == 0;
}

double mt_beat_s(struct mt_beat *b)
{
    /* A pass over the histogram each time there is a quarter more in it. */
    if (b->gaps.count > b->looked_at + b->looked_at / 4) {
        b->median_s = (double)mt_hist_quantile(&b->gaps, 0.5) / 1e9;
        b->looked_at = b->gaps.count;
    }
    return b->median_s;
}
