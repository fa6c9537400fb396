/*
 * livefit.c: the live fit by increments, its running form over a ring of batches, and the measures
 * of its error.
 */
#include "control/livefit.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define HISTORY 4096 /* forecasts kept for the score; then every other one is dropped */

double mt_student_95(int df)
{
    static const double table[] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306,
                                   2.262,  2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
                                   2.110,  2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064,
                                   2.060,  2.056, 2.052, 2.048, 2.045, 2.042};
    const double z = 1.959964;

    if (df < 1)
        return NAN;
    if (df <= (int)MT_COUNT(table))
        return table[df - 1];
    /* Cornish and Fisher; the term left out is below 1e-4 here. */
    return z + (z * z * z + z) / (4 * df) +
           (5 * pow(z, 5) + 16 * z * z * z + 3 * z) / (96.0 * df * df);
}

int mt_live_fit(const double *dy, const double *x, int count, double n, double rho,
                struct mt_forecast *out)
{
    double grown = 0, spent = 0, squares = 0, g, m, s2, d = rho < 1 ? 1 - rho : 0, tau, spread, k;

    if (count < 2 || !(n >= 0) || !isfinite(n) || !(rho >= 0))
        return -EDOM;
    for (int i = 0; i < count; i++) {
        if (!isfinite(dy[i]) || !(x[i] > 0) || !isfinite(x[i]))
            return -EDOM;
        grown += dy[i];
        spent += x[i];
    }
    g = grown / spent;
    for (int i = 0; i < count; i++)
        squares += (dy[i] - g * x[i]) * (dy[i] - g * x[i]) / x[i];
    m = g * n;
    s2 = n * squares / (count - 1);
    tau = n > 0 ? spent / n : 0;
    out->rho_per_s = m;
    out->sat_s = out->low_s = out->high_s = NAN;
    if (count < MT_LIVE_BATCHES_MIN)
        return 0;
    /* Growth of 1e-12 a second is rounding: it takes thirty thousand years. */
    if (n == 0 || m <= 1e-12 || m * m * tau <= s2) {
        out->sat_s = out->low_s = out->high_s = INFINITY;
        return 0;
    }
    out->sat_s = out->low_s = out->high_s = d / m;
    if (d > 0) {
        k = mt_student_95(count - 1);
        spread = k * sqrt(s2 / (m * d) + s2 / (m * m * tau));
        out->low_s = out->sat_s * fmax(0, 1 - spread);
        out->high_s = out->sat_s * (1 + spread);
    }
    return 0;
}

/* ---- a stream of observations ---- */

struct batch {
    double grown, session_s;
    double stair_s; /* the longest time in which the pool did not rise */
};

struct mt_live {
    double batch_s;
    int room; /* batches in the window */
    struct batch ring[MT_LIVE_BATCHES_MAX];
    int next, have;    /* where the next whole batch goes, and how many there are */
    struct batch open; /* the one that is being filled */
    double open_end_s;
    bool any;
    double first_s, t_s, rho;     /* of the first observation, and of the last */
    double highest, highest_at_s; /* since sessions last came or left */
    int64_t sessions;
    bool newcomer; /* the next observation is of a first frame */
    double beat_s;
    struct mt_forecast history[HISTORY];
    size_t kept;
    int64_t every, skip; /* one of so many is kept; how many to pass by now */
};

int mt_live_open(struct mt_live **out, double window_s, double batch_s)
{
    struct mt_live *l;
    double batches = round(window_s / batch_s);

    *out = NULL;
    if (!(batch_s >= 1e-3) || !isfinite(batch_s) || !(batches >= MT_LIVE_BATCHES_MIN) ||
        !(batches <= MT_LIVE_BATCHES_MAX))
        return -EDOM;
    l = calloc(1, sizeof(*l));
    if (!l)
        return -ENOMEM;
    l->batch_s = batch_s;
    l->room = (int)batches;
    l->every = 1;
    *out = l;
    return 0;
}

void mt_live_close(struct mt_live **l)
{
    free(*l);
    *l = NULL;
}

static void keep(struct mt_live *l)
{
    struct mt_forecast f;

    if (l->skip > 0) {
        l->skip--;
        return;
    }
    if (mt_live_now(l, &f) < 0)
        return;
    if (l->kept == HISTORY) {
        for (size_t i = 0; i < HISTORY / 2; i++)
            l->history[i] = l->history[2 * i];
        l->kept = HISTORY / 2;
        l->every *= 2;
    }
    l->history[l->kept++] = f;
    l->skip = l->every - 1;
}

static void close_batch(struct mt_live *l)
{
    /* A batch of nothing but churn, or without a session, says nothing about growth. */
    if (l->open.session_s > 0) {
        l->ring[l->next] = l->open;
        l->next = (l->next + 1) % l->room;
        l->have += l->have < l->room;
    }
    l->open = (struct batch){0};
    l->open_end_s += l->batch_s;
    keep(l);
}

/*
 * Steps of the pool: calls that keep step want their next blocks all at once, some frames after the
 * last ones.
 */
static void climb(struct mt_live *l, double t_s, double rho, bool churn)
{
    if (!churn && rho > l->highest)
        l->open.stair_s = fmax(l->open.stair_s, t_s - l->highest_at_s);
    if (churn || rho > l->highest) {
        l->highest = rho;
        l->highest_at_s = t_s;
    }
}

int mt_live_add(struct mt_live *l, double t_s, double rho, int64_t sessions)
{
    double from, step, grown;
    int closed = 0;
    bool counts;

    /* At larger times the end of a batch is lost in rounding, and would never come. */
    if (!(fabs(t_s) <= MT_LIVE_TIME_MAX) || !(rho >= 0 && rho <= 1) || sessions < 0)
        return -EDOM;
    if (!l->any || t_s - l->t_s > l->room * l->batch_s) {
        closed = l->any ? -1 : 0;
        if (!l->any)
            l->first_s = t_s;
        l->any = true;
        l->have = l->next = 0;
        l->open = (struct batch){0};
        l->open_end_s = t_s + l->batch_s;
        l->t_s = t_s;
        l->rho = rho;
        l->sessions = sessions;
        climb(l, t_s, rho, true);
        return closed;
    }
    from = l->t_s;
    step = fmax(0, t_s - from);
    grown = rho - l->rho;
    /*
     * A frame takes blocks for its longest answer and gives back what a shorter one left: a small
     * fall belongs to growth. A fall by more than a tenth of what a session holds in the mean is
     * one that left while another came. The tolerance: a share printed with six decimals.
     */
    counts = !l->newcomer && sessions == l->sessions &&
             grown >= -2e-6 - (sessions > 0 ? 0.1 * l->rho / (double)sessions : 0);
    /* A step over the end of a batch is shared out by time. */
    while (from + step >= l->open_end_s) {
        double part = l->open_end_s - from, share = step > 0 ? part / step : 0;

        if (counts) {
            l->open.grown += grown * share;
            l->open.session_s += part * (double)sessions;
        }
        grown *= 1 - share;
        step -= part;
        from = l->open_end_s;
        l->t_s = from;
        l->rho = rho - (counts ? grown : 0);
        close_batch(l);
        closed++;
    }
    if (counts) {
        l->open.grown += grown;
        l->open.session_s += step * (double)sessions;
    }
    climb(l, fmax(t_s, l->t_s), rho, !counts);
    l->t_s = fmax(t_s, l->t_s);
    l->rho = rho;
    l->sessions = sessions;
    l->newcomer = false;
    return closed;
}

void mt_live_newcomer(struct mt_live *l)
{
    l->newcomer = true;
}

void mt_live_beat(struct mt_live *l, double beat_s)
{
    l->beat_s = beat_s;
}

/*
 * What increments don't show. The wall comes as a frame begins and with a step of the pool: it is
 * anywhere within the longer of the two, before or after the growth has the pool full. And growth
 * is counted in whole steps: either end of tau is anywhere on one. Both are uniform, with standard
 * deviations of q/sqrt(3) and, for the difference of two, h/sqrt(6), and independent of the rest.
 */
static void widen(const struct mt_live *l, struct mt_forecast *f)
{
    const double z = 1.959964;
    double stair = l->open.stair_s, spent = 0, wall, slope;

    for (int i = 0; i < l->have; i++) {
        stair = fmax(stair, l->ring[i].stair_s);
        spent += l->ring[i].session_s;
    }
    wall = z / sqrt(3) * fmax(l->beat_s, stair);
    slope = z / sqrt(6) * f->sat_s * stair * (double)l->sessions / spent;
    wall = hypot(wall, slope);
    f->low_s = fmax(0, f->sat_s - hypot(f->sat_s - f->low_s, wall));
    f->high_s = f->sat_s + hypot(f->high_s - f->sat_s, wall);
}

int mt_live_now(const struct mt_live *l, struct mt_forecast *out)
{
    double dy[MT_LIVE_BATCHES_MAX], x[MT_LIVE_BATCHES_MAX];
    struct mt_forecast f = {.rho_per_s = NAN, .sat_s = NAN, .low_s = NAN, .high_s = NAN};

    if (!l->any)
        return -ENODATA;
    f.t_s = l->t_s;
    f.rho = l->rho;
    f.sessions = l->sessions;
    f.batches = l->have;
    for (int i = 0; i < l->have; i++) {
        dy[i] = l->ring[i].grown;
        x[i] = l->ring[i].session_s;
    }
    if (l->have >= 2)
        mt_live_fit(dy, x, l->have, (double)l->sessions, l->rho, &f);
    if (f.sat_s > 0 && isfinite(f.sat_s))
        widen(l, &f);
    *out = f;
    return 0;
}

/* ---- how good it was ---- */

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

void mt_forecast_score(const struct mt_forecast *f, const double *truth_s, size_t count,
                       double *scratch, struct mt_forecast_score *out)
{
    struct mt_forecast_score s = {.mape = NAN, .p95 = NAN, .bias = NAN, .cover = NAN, .late = NAN};
    double sum = 0, size = 0;
    int n = 0, covered = 0, late = 0;

    for (size_t i = 0; i < count; i++) {
        double left = truth_s[i] - f[i].t_s, e;

        if (isnan(f[i].sat_s) || !(left > 0))
            continue;
        e = (f[i].sat_s - left) / left;
        sum += e;
        size += fabs(e);
        scratch[n++] = fabs(e);
        covered += f[i].low_s <= left && left <= f[i].high_s;
        late += f[i].low_s > left;
    }
    s.points = n;
    if (n > 0) {
        qsort(scratch, (size_t)n, sizeof(*scratch), by_size);
        s.mape = size / n;
        s.bias = sum / n;
        s.p95 = scratch[(int)ceil(0.95 * n) - 1];
        s.cover = (double)covered / n;
        s.late = (double)late / n;
    }
    *out = s;
}

void mt_live_quarters(const struct mt_live *l, double truth_s, struct mt_forecast out[3])
{
    for (int q = 0; q < 3; q++) {
        double until = l->first_s + (truth_s - l->first_s) * (q + 1) / 4;

        out[q] = (struct mt_forecast){.t_s = NAN, .sat_s = NAN};
        for (size_t i = 0; i < l->kept && l->history[i].t_s <= until; i++)
            out[q] = l->history[i];
    }
}
