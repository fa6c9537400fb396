/*
 * budget.c: --pool auto: what a card's memory leaves for the pool once the weights and the rows of
 * a step lie there. What sessions own beside their tokens is made when they are admitted, so that
 * room for all of them is kept.
 */
#include "engine/engine.h"

#include <errno.h>
#include <math.h>

int mt_engine_pool_auto(struct mt_model *m, const struct mt_engine_opts *o, double share,
                        int64_t *bytes, struct mt_err *e)
{
    const struct mt_model_info *i = mt_model_info(m);
    struct mt_backend *be = mt_model_backend(m);
    double samples =
        o->frame_ns ? (double)o->frame_ns * i->sample_rate_hz / 1e9 : (double)i->beat_samples;
    struct mt_state_kind kind[MT_STATE_KINDS];
    int64_t left, all, state = 0;
    int n, rc;

    *bytes = 0;
    if (!be || !be->ops->memory)
        return mt_err_set(e, -EINVAL,
                          "--pool: 'auto' is for a card's memory; '%s' shares the machine's with "
                          "everything else: give a size",
                          be ? be->ops->name : "cost");
    if ((rc = be->ops->memory(be, &left, &all)) < 0)
        return mt_err_set(e, rc, "--pool: the device does not say how much memory it has");
    if (!(samples >= 1 && samples < INT32_MAX))
        return mt_err_set(e, -EINVAL, "--frame: %.0f samples are no frame", samples);
    n = mt_model_state(m, (int)llround(samples), o->backlog, kind);
    for (int k = 0; k < n; k++)
        state += kind[k].bytes;
    *bytes = (int64_t)(share * (double)all) - (all - left) - o->max_sessions * state;
    if (*bytes > 0)
        return 0;
    return mt_err_set(e, -ENOSPC,
                      "--pool: nothing is left: of %.1f GiB at --gpu-memory %g, %.1f GiB are taken "
                      "(weights, rows, other programs) and %d sessions keep %.1f GiB beside their "
                      "tokens",
                      (double)all / 0x1p30, share, (double)(all - left) / 0x1p30, o->max_sessions,
                      (double)o->max_sessions * (double)state / 0x1p30);
}
