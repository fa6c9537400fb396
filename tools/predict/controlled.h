/*
 * controlled.h: mt-admit's law in the loop of a simulation, with what a watcher of a server would
 * know and nothing more.
 */
#ifndef MT_PREDICT_CONTROLLED_H
#define MT_PREDICT_CONTROLLED_H

#include "control/admit.h"
#include "engine/engine.h"

struct controlled {
    struct mt_admit_opts opts;
    /* Each decision of the law, as it is made. */
    void *ctx;
    void (*decision)(void *ctx, const struct mt_admit *law, const struct mt_admit_decision *d);
    /* its own */
    struct mt_admit law;
    struct mt_ticks ticks;
    bool begun, failed; /* failed: the law does not take this deadline */
    int limit, set;
    double status_s;
};

/*
 * "target=0.8,cut=0.95,alpha=1,beta=0.9,min=1,max=256,cap0=4", each of them optional, NULL for
 * none. -EINVAL with e.
 */
int controlled_parse(const char *text, struct mt_admit_opts *out, struct mt_err *e);
/* A record was made. */
void controlled_frame(struct controlled *c, const struct mt_record *r);
/* After a tick of the engine, and once before its first: the cap is set here. */
void controlled_tick(struct controlled *c, struct mt_engine *eng, double t_s);

#endif
