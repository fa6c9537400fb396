/*
 * fuzz_records.c: lines of records to all that read them: the trace, the monitor, the cost fit.
 * Whatever they say, what comes out is in range: shares in 0..1, times that are not negative,
 * intervals in order.
 */
#include "control/control.h"
#include "control/monitor.h"
#include "control/points.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok)
{
    if (!ok)
        abort();
}

static void check_forecast(const struct mt_forecast *f)
{
    require(f->rho >= 0 && f->rho <= 1 && f->sessions >= 0);
    require(f->batches >= 0 && f->batches <= MT_LIVE_BATCHES_MAX);
    if (!isnan(f->sat_s))
        require(f->low_s >= 0 && f->low_s <= f->sat_s && f->sat_s <= f->high_s);
}

static void end_trace(struct mt_trace *t)
{
    struct mt_trace_fit f;
    struct mt_forecast now, q[3];
    struct mt_live *live;

    if (mt_trace_fit(t, &f) < 0)
        return;
    require(f.frames > 0 && f.stalled <= f.frames && f.untruthful <= f.frames);
    require(mt_live_open(&live, 60, 10) == 0);
    mt_trace_replay(t, live);
    if (mt_live_now(live, &now) == 0)
        check_forecast(&now);
    mt_live_quarters(live, f.t_collapse_s, q);
    mt_live_close(&live);
}

static void end_points(struct mt_points *t)
{
    const double *n, *x;
    int64_t count;
    struct mt_cost_fit f;

    if (mt_points_get(t, &n, &x, &count) < 0)
        return;
    for (int64_t i = 0; i < count; i++)
        require(n[i] >= 0 && x[i] >= 0);
    mt_cost_fit(n, x, count, &f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *line = (const char *)data, *end = line + size;
    struct mt_monitor *m;
    struct mt_trace *trace;
    struct mt_points *points;
    struct mt_report r;

    require(mt_monitor_open(&m, 60, 10, 0.8) == 0 && mt_trace_open(&trace) == 0 &&
            mt_points_open(&points, 0) == 0);
    while (line < end) {
        const char *nl = memchr(line, '\n', (size_t)(end - line));
        size_t n = (size_t)((nl ? nl : end) - line);

        mt_trace_line(trace, line, n);
        mt_points_line(points, line, n);
        if (mt_monitor_line(m, line, n) > 0) {
            require(mt_monitor_report(m, &r) == 0);
            check_forecast(&r.forecast);
        }
        line += n + 1;
    }
    end_trace(trace);
    end_points(points);
    mt_monitor_close(&m);
    mt_trace_close(&trace);
    mt_points_close(&points);
    return 0;
}
