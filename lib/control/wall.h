/*
 * wall.h: what happens once an unbounded cache has filled its pool. An engine that evicts a session
 * must compute its tokens again when it resumes: work that buys no new frame. Whether the machine
 * limps or loses all ground, how long its stalls are, and what brings it back.
 *
 * Conventions are control.h's.
 */
#ifndef MT_WALL_H
#define MT_WALL_H

#include "control/control.h"

struct mt_wall {
    struct mt_cost cost; /* c(N) = a + b N */
    double deadline_s;   /* T > 0 */
    double sessions;     /* N > 0 */
    double rate;         /* r > 0 tokens/s */
    double recompute_s;  /* c_p >= 0: to compute one evicted token again */
    double evicted;      /* v > 0: tokens that one eviction takes */
};

struct mt_wall_view {
    double serve;         /* c(N)/T: share of the time that serving frames takes */
    double recompute;     /* N r c_p: share that recomputing takes, whatever v is */
    bool collapses;       /* their sum is above 1: the backlog grows without bound */
    double stall_s;       /* v c_p: one stall */
    double stall_frames;  /* v c_p / T */
    double stall_every_s; /* v/(N r): time that one eviction buys */
    double most_sessions; /* largest N, not rounded, with a sum of 1; 0 where even none fits */
};

/* -EDOM; most_sessions is +Inf for b = 0 and c_p = 0. */
int mt_wall_look(const struct mt_wall *w, struct mt_wall_view *out);

/*
 * Nobody is admitted, calls last exponentially with mean D: from `from` sessions to `to` takes
 * D ln(from/to), 0 where from <= to, +Inf for to = 0.
 */
int mt_wall_drain(double duration_s, double from, double to, double *t_s);

/*
 * Refused callers who call again: the arrivals are lam/(1 - refused retried). Both shares are in
 * 0..1; +Inf when everybody is refused and comes back.
 */
int mt_wall_retries(double refused, double retried, double *factor);

#endif
