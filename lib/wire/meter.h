/*
 * meter.h: private to lib/wire: how the engine's thread and the I/O thread fill a meter.
 */
#ifndef MT_WIRE_METER_H
#define MT_WIRE_METER_H

#include "wire/wire.h"

#include <pthread.h>

struct mt_wire_meter {
    struct mt_wire_state own; /* the engine thread's; published as a whole */
    int64_t tick;             /* the frame length that own is in … */
    bool tick_busy;           /* … and whether anything was due in it */

    pthread_mutex_t lock; /* held for a copy, never while anything waits */
    struct mt_wire_state state;
    /* The I/O thread's, under the lock too. */
    struct mt_wire_control control;
    int64_t refused[MT_REFUSALS];
};

/* ---- the engine's thread ---- */

/* Before anything else. */
void mt_meter_begin(struct mt_wire_meter *m, const struct mt_engine *eng, int64_t now_ns);
void mt_meter_frame(struct mt_wire_meter *m, const struct mt_record *r);
/* A frame of nobody's call: ns of latency, or a negative errno. */
void mt_meter_warm(struct mt_wire_meter *m, int64_t latency_ns);
void mt_meter_refused(struct mt_wire_meter *m, const char *reason);
/*
 * What was counted, for a server that goes on with it; of a controller's words nothing. Nobody else
 * may use m meanwhile.
 */
void mt_meter_visit(struct mt_wire_meter *m, struct mt_state_io *io);
/* The loop has come round. */
void mt_meter_publish(struct mt_wire_meter *m, const struct mt_engine_stats *s, int64_t now_ns);

/* ---- the I/O thread ---- */

void mt_meter_turned_away(struct mt_wire_meter *m, enum mt_refusal why);
/* A request for a cap, and the cap before it. */
void mt_meter_capped(struct mt_wire_meter *m, json_t *request, int cap);

#endif
