/*
 * feed_plan.c: who calls when, for how long, and at which phase of the beat. Each choice is a
 * function of the seed and the session's number alone, so a run can be repeated, and a session is
 * the same one whoever else calls.
 */
#include "wire/feeder.h"

#include <math.h>

enum { DRAW_GAP = 1, DRAW_LENGTH, DRAW_PHASE };

#define GOLDEN 0.6180339887498949

static double draw(const struct mt_feed_opts *o, int64_t i, int what)
{
    return mt_unit(mt_mix64(mt_mix64(o->seed ^ mt_mix64((uint64_t)what)) + (uint64_t)i));
}

double mt_feed_gap_s(const struct mt_feed_opts *o, int64_t i)
{
    switch (o->arrivals) {
    case MT_ARRIVE_RAMP:
        return i ? 1 / o->arrivals_per_s : 0;
    case MT_ARRIVE_POISSON:
        return -log1p(-draw(o, i, DRAW_GAP)) / o->arrivals_per_s;
    case MT_ARRIVE_ALL:
        break;
    }
    return 0;
}

double mt_feed_length_s(const struct mt_feed_opts *o, int64_t i, double arrived_s)
{
    double length = INFINITY;

    if (o->duration == MT_LAST_FIXED)
        length = o->duration_s;
    else if (o->duration == MT_LAST_EXP)
        length = -log1p(-draw(o, i, DRAW_LENGTH)) * o->duration_s;
    if (o->seconds > 0)
        length = fmin(length, fmax(0, o->seconds - arrived_s));
    return length;
}

double mt_feed_phase(const struct mt_feed_opts *o, int64_t i)
{
    switch (o->phase) {
    case MT_PHASE_RANDOM:
        return draw(o, i, DRAW_PHASE);
    case MT_PHASE_SPREAD:
        /*
         * Sessions that come and go: multiples of the golden ratio lie evenly whichever are alive.
         */
        return o->arrivals == MT_ARRIVE_ALL ? (double)i / (double)o->sessions
                                            : fmod((double)i * GOLDEN, 1);
    case MT_PHASE_LOCKED:
        break;
    }
    return 0;
}
