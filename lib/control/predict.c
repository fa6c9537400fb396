/*
 * predict.c: when an unbounded cache fills its pool. N sessions that each add r tokens a second for
 * the whole call, nothing retired: the baseline that collapses. The fluid view gives the first
 * order; the block view says what the last, partly filled blocks cost.
 */
#include "control/control.h"

#include <errno.h>
#include <math.h>

/* Room beyond which products of these counts would leave the integers that a double holds exactly.
 */
#define COUNT_MAX (INT64_C(1) << 52)

static bool load_ok(const struct mt_load *l)
{
    int64_t tokens;

    return l->pool_blocks >= 1 && l->block_tokens >= 1 && l->sessions >= 0 &&
           l->start_tokens >= 0 && l->sessions <= COUNT_MAX && l->start_tokens <= COUNT_MAX &&
           !__builtin_mul_overflow(l->pool_blocks, l->block_tokens, &tokens) &&
           tokens <= COUNT_MAX && l->rho0 >= 0 && isfinite(l->rho0) && l->rate >= 0 &&
           isfinite(l->rate);
}

static double free_share(const struct mt_load *l)
{
    return l->rho0 < 1 ? 1 - l->rho0 : 0;
}

/* Tokens that are left for growth, as a fluid, after each session lost `waste` of its blocks. */
static double fluid(const struct mt_load *l, double waste)
{
    double capacity = (double)l->pool_blocks * (double)l->block_tokens;

    return free_share(l) * capacity - (double)l->sessions * ((double)l->start_tokens + waste);
}

static double time_for(const struct mt_load *l, double tokens)
{
    double speed = (double)l->sessions * l->rate;

    if (speed == 0)
        return INFINITY;
    return tokens > 0 ? tokens / speed : 0;
}

int mt_predict_first(const struct mt_load *l, double *t_s)
{
    if (!load_ok(l))
        return -EDOM;
    *t_s = time_for(l, fluid(l, 0));
    return 0;
}

int mt_predict_spread(const struct mt_load *l, double *t_s)
{
    if (!load_ok(l))
        return -EDOM;
    *t_s = time_for(l, fluid(l, (double)(l->block_tokens - 1) / 2));
    return 0;
}

/* Length that each of N sessions in step reaches before the pool can't give all of them a block. */
static int64_t last_locked(const struct mt_load *l)
{
    int64_t blocks = (int64_t)floor(free_share(l) * (double)l->pool_blocks + 1e-9);

    return blocks / l->sessions * l->block_tokens;
}

int mt_predict_locked(const struct mt_load *l, double *t_s, int64_t *last_tokens)
{
    int64_t last, missing;

    if (!load_ok(l))
        return -EDOM;
    if (l->sessions == 0) {
        *t_s = INFINITY;
        if (last_tokens)
            *last_tokens = l->pool_blocks * l->block_tokens;
        return 0;
    }
    last = last_locked(l);
    missing = last - l->start_tokens + 1; /* the token that finds no block */
    if (last_tokens)
        *last_tokens = last;
    if (l->rate == 0)
        *t_s = INFINITY;
    else
        *t_s = missing > 0 && l->rho0 < 1 ? (double)missing / l->rate : 0;
    return 0;
}

int mt_predict_locked_frames(const struct mt_load *l, double frame_tokens, double frame_s,
                             double *t_s)
{
    int64_t missing;

    if (!load_ok(l) || !(frame_tokens > 0) || !isfinite(frame_tokens) || !(frame_s > 0) ||
        !isfinite(frame_s))
        return -EDOM;
    if (l->sessions == 0 || l->rate == 0) {
        *t_s = INFINITY;
        return 0;
    }
    missing = last_locked(l) - l->start_tokens + 1;
    /* The small term keeps 1634 / 0.1-like quotients, whole but for rounding, on their frame. */
    *t_s = missing > 0 && l->rho0 < 1 ? ceil((double)missing / frame_tokens - 1e-9) * frame_s : 0;
    return 0;
}

int mt_predict_classes(const struct mt_class *c, int n_classes, double pool_bytes, double rho0,
                       double *t_s)
{
    double speed = 0, left;

    if (!(pool_bytes > 0) || !isfinite(pool_bytes) || !(rho0 >= 0) || n_classes < 0)
        return -EDOM;
    for (int j = 0; j < n_classes; j++) {
        if (!(c[j].n >= 0) || !isfinite(c[j].n) || !(c[j].bytes_s >= 0) || !isfinite(c[j].bytes_s))
            return -EDOM;
        speed += c[j].n * c[j].bytes_s;
    }
    left = rho0 < 1 ? (1 - rho0) * pool_bytes : 0;
    *t_s = speed > 0 ? left / speed : INFINITY;
    return 0;
}
