/*
 * livefit.h: time to saturation of a pool that is being watched, with an interval that holds.
 *
 * The used share of a pool is an integral of noisy rates, so the residuals of a line through it are
 * not independent, and the interval that least squares gives is far too narrow: with talkers that
 * pause, a nominal 95 % covers a quarter of the truths at best. Increments of batches longer than a
 * spurt of talk are nearly independent, and these are what is fitted here.
 *
 * Growth is counted per session-second, and only over steps in which the number of sessions stayed
 * and the pool did not shrink: then a step holds no freed and no borrowed blocks. So the fit
 * survives sessions that come and go; where none does it is the mean increment.
 *
 * A session asks for a frame's blocks as the frame begins, for its longest answer, and its record
 * comes when what was too much is given back. So the wall stands where a frame begins, up to one
 * beat before or after the mean growth has the pool full; an interval for it is wider by that.
 */
#ifndef MT_LIVEFIT_H
#define MT_LIVEFIT_H

#include "base/base.h"

#define MT_LIVE_BATCHES_MIN 6
#define MT_LIVE_BATCHES_MAX 64
#define MT_LIVE_TIME_MAX    1e10 /* seconds: three hundred years */

struct mt_forecast {
    double t_s;       /* when it was made, on the records' clock */
    double rho;       /* used share of the pool then */
    int64_t sessions; /* N then */
    int batches;      /* whole batches behind it */
    double rho_per_s; /* m: growth with these N sessions; NaN below two batches */
    /*
     * Seconds from t_s until the pool is full, and the 95 % interval of the wall. NaN below
     * MT_LIVE_BATCHES_MIN batches; +Inf where the growth isn't above its own standard error; 0 when
     * the pool is full.
     */
    double sat_s, low_s, high_s;
};

/*
 * The fit itself: batches i of growth dy_i (share of the pool) over x_i > 0 session-seconds, now n
 * sessions and rho. With g = sum dy/sum x, m = g n, s2 = n/(count - 1) sum (dy_i - g x_i)^2/x_i, d
 * = 1 - rho: t = d/m, and the interval is t (1 +/- k sqrt(s2/(m d) + s2/(m^2 tau))), tau = sum x/n,
 * k Student's for count - 1 degrees of freedom, its lower end not below 0. The first term is how
 * the rest of the way will wander, the second the error of the slope. For constant n and batches of
 * ell seconds, m = mean(dy)/ell and s2 = var(dy)/ell. Fills rho_per_s, sat_s, low_s, high_s alone.
 * -EDOM for rho, n or x out of range.
 */
int mt_live_fit(const double *dy, const double *x, int count, double n, double rho,
                struct mt_forecast *out);

/* The 97.5 % point of Student's t, df >= 1; within 1e-3. */
double mt_student_95(int df);

/* ---- a stream of observations ---- */

struct mt_live;

/*
 * Batches of batch_s, the last window_s of them: window_s/batch_s, rounded, must be in
 * MT_LIVE_BATCHES_MIN..MAX, batch_s at least a millisecond. -EDOM, -ENOMEM. Memory is fixed.
 */
int mt_live_open(struct mt_live **out, double window_s, double batch_s);
void mt_live_close(struct mt_live **l);

/*
 * One observation, in order of time (one that is earlier than the last counts at the last's time).
 * Returns how many batches it completed; after silence longer than the window all is forgotten and
 * the batches start anew (-1). -EDOM for numbers out of range, and nothing is taken then.
 */
int mt_live_add(struct mt_live *l, double t_s, double rho, int64_t sessions);

/*
 * The next observation is that of a session's first frame, which brought its prompt: no growth that
 * goes on.
 */
void mt_live_newcomer(struct mt_live *l);

/* How long a frame is, from now on: seconds, 0 (as at first) for a pool that grows evenly. */
void mt_live_beat(struct mt_live *l, double beat_s);

/* What the last whole batches foretell, from where the last observation is. -ENODATA before it. */
int mt_live_now(const struct mt_live *l, struct mt_forecast *out);

/* ---- how good it was ---- */

struct mt_forecast_score {
    int points;   /* forecasts with a time or a never */
    double mape;  /* mean |e|, e = (predicted - true)/(true - when it was made), as shares */
    double p95;   /* nearest-rank 95 % of |e| */
    double bias;  /* mean e, above 0: late */
    double cover; /* share of intervals that hold the truth */
    double late;  /* share of intervals that are wholly after it: the dangerous side */
};

/*
 * Forecasts of one run or of many, each with the time at which its pool was full; those made then
 * or later are left out, as are those without an answer. A forecast of never has e = +Inf. p95
 * needs count doubles of scratch. Without a point the shares are NaN.
 */
void mt_forecast_score(const struct mt_forecast *f, const double *truth_s, size_t count,
                       double *scratch, struct mt_forecast_score *out);

/*
 * The forecasts at 25, 50 and 75 % of the way from the first observation to truth_s: for each the
 * last one that was made at the end of a batch up to there. Those that aren't there have t_s NaN.
 */
void mt_live_quarters(const struct mt_live *l, double truth_s, struct mt_forecast out[3]);

#endif
