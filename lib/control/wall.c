/*
 * wall.c: behind the wall. Per second N sessions want N r new tokens; each eviction of v tokens
 * makes room for that many and costs v c_p later, so recomputing takes N r c_p of every second,
 * however much is evicted at once.
 */
#include "control/wall.h"

#include <errno.h>
#include <math.h>

static bool positive(double v)
{
    return v > 0 && isfinite(v);
}

static bool counted(double v)
{
    return v >= 0 && isfinite(v);
}

int mt_wall_look(const struct mt_wall *w, struct mt_wall_view *out)
{
    double each; /* share of the time that one session takes */
    double base;

    if (!counted(w->cost.a_s) || !counted(w->cost.b_s) || !positive(w->deadline_s) ||
        !positive(w->sessions) || !positive(w->rate) || !counted(w->recompute_s) ||
        !positive(w->evicted))
        return -EDOM;
    base = w->cost.a_s / w->deadline_s;
    each = w->cost.b_s / w->deadline_s + w->rate * w->recompute_s;
    out->serve = base + w->sessions * w->cost.b_s / w->deadline_s;
    out->recompute = w->sessions * w->rate * w->recompute_s;
    out->collapses = out->serve + out->recompute > 1;
    out->stall_s = w->evicted * w->recompute_s;
    out->stall_frames = out->stall_s / w->deadline_s;
    out->stall_every_s = w->evicted / (w->sessions * w->rate);
    if (base >= 1)
        out->most_sessions = 0;
    else
        out->most_sessions = each > 0 ? (1 - base) / each : INFINITY;
    return 0;
}

int mt_wall_drain(double duration_s, double from, double to, double *t_s)
{
    if (!positive(duration_s) || !counted(from) || !counted(to))
        return -EDOM;
    *t_s = from > to ? duration_s * log(from / to) : 0;
    return 0;
}

int mt_wall_retries(double refused, double retried, double *factor)
{
    if (!(refused >= 0 && refused <= 1) || !(retried >= 0 && retried <= 1))
        return -EDOM;
    *factor = 1 / (1 - refused * retried);
    return 0;
}
