/*
 * cost.c: mt-predict --fit, the cost of a frame a + b N from measurements, and --mixed, whether
 * frames of several lengths go together on one device.
 */
#include "tools/predict/predict.h"

#include "control/points.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static int take(void *ctx, const char *line, size_t n)
{
    return mt_points_line(ctx, line, n);
}

/* What the points come to, or NULL with *rc. */
static json_t *fit(const struct opts *o, struct mt_points *ticks, int64_t broken, int *rc)
{
    double deadline_s = (double)o->deadline_ns / 1e9;
    struct mt_cost_fit f;
    const double *n, *x;
    int64_t count, star;
    json_t *out;

    if ((*rc = mt_points_get(ticks, &n, &x, &count)) < 0 ||
        (*rc = mt_cost_fit(n, x, count, &f)) < 0)
        return NULL;
    if (f.cost.a_s < 0 || f.cost.b_s < 0)
        mt_msg(MT_WARN, "a negative cost: these measurements tell too little of how it rises");
    out = predict_begin("cost");
    predict_set_int(out, "points", count);
    predict_set_int(out, "broken", broken);
    predict_set(out, "a_ms", f.cost.a_s * 1e3);
    predict_set(out, "b_ms", f.cost.b_s * 1e3);
    predict_set(out, "residual_ms", f.residual_s * 1e3);
    predict_set(out, "b_error_ms", f.slope_error_s * 1e3);
    predict_set_bool(out, "convex", f.convex);
    predict_set(out, "line_a_ms", f.line.a_s * 1e3);
    predict_set(out, "line_b_ms", f.line.b_s * 1e3);
    predict_set(out, "last_b_ms", f.last_b_s * 1e3);
    if (deadline_s > 0) {
        predict_set(out, "deadline_s", deadline_s);
        predict_set(out, "target", o->target);
        if (mt_latency_locked(&f.cost, deadline_s, o->target, &star) == 0 && star != MT_NO_LIMIT)
            predict_set_int(out, "n_star", star);
        if (mt_latency_unaligned(&f.cost, deadline_s, o->target, &star) == 0 && star != MT_NO_LIMIT)
            predict_set_int(out, "n_star_unaligned", star);
    }
    return out;
}

int predict_cost(const struct opts *o)
{
    struct mt_points *ticks = NULL;
    const char *what;
    int64_t broken = 0;
    json_t *out = NULL;
    int fd = predict_input(o, &what), rc;

    if (fd < 0)
        return MT_EXIT_FAILED;
    rc = mt_points_open(&ticks, (double)o->frame_ns / 1e9);
    if (rc == 0)
        rc = mt_lines_each(fd, PREDICT_LINE_MAX, take, ticks, &broken);
    predict_input_close(fd);
    if (broken)
        mt_msg(MT_WARN, "%s: %lld broken lines left out", what, (long long)broken);
    if (rc == 0)
        out = fit(o, ticks, broken, &rc);
    mt_points_close(&ticks);
    if (out)
        return predict_print(o, out);
    mt_msg(MT_ERROR, "%s: %s", what,
           rc == -ENODATA ? "a fit needs measurements at three different numbers of sessions, and "
                            "frame records a deadline_ms or --frame"
                          : strerror(-rc));
    return MT_EXIT_FAILED;
}

static int by_period(const void *a, const void *b)
{
    int64_t x = ((const struct mt_periodic *)a)->period_ns;
    int64_t y = ((const struct mt_periodic *)b)->period_ns;

    return (x > y) - (x < y);
}

int predict_mixed(const struct opts *o)
{
    struct mt_periodic c[PREDICT_MIXED_MAX];
    struct mt_edf r;
    json_t *out;
    int rc;

    memcpy(c, o->mixed, sizeof(c));
    qsort(c, (size_t)o->n_mixed, sizeof(*c), by_period);
    rc = mt_edf_check(c, o->n_mixed, &r);
    if (rc < 0) {
        mt_msg(MT_ERROR, "--mixed: %s",
               rc == -E2BIG ? "a period of more than a million of the shortest"
                            : "these numbers can't be checked");
        return MT_EXIT_FAILED;
    }
    out = predict_begin("mixed");
    predict_set_int(out, "classes", o->n_mixed);
    predict_set(out, "load", r.load);
    predict_set_bool(out, "feasible", r.feasible);
    if (r.blocker >= 0) {
        predict_set(out, "blocker_period_s", (double)c[r.blocker].period_ns / 1e9);
        predict_set(out, "within_s", (double)r.at_ns / 1e9);
        predict_set(out, "work_s", (double)r.needs_ns / 1e9);
    }
    if (o->n_mixed > 1 && c[0].cost_ns <= c[0].period_ns)
        predict_set(out, "piece_s", (double)(c[0].period_ns - c[0].cost_ns) / 1e9);
    return predict_print(o, out);
}
