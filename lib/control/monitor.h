/*
 * monitor.h: a running engine seen through its records: frame records and the watcher's status
 * lines in, in order, and once a batch a report: how full the pool is, when it will be full, how
 * fast the frames are, what binds. And at the end: how good the forecasts were, if there was a
 * collapse. Memory is fixed, however long it runs.
 */
#ifndef MT_MONITOR_H
#define MT_MONITOR_H

#include "control/control.h"
#include "control/livefit.h"

struct mt_report {
    struct mt_forecast
        forecast;           /* livefit.h; 0 s to go if a frame was stalled since the last report */
    double rate;            /* tokens/s that one session added, from kv_tokens; NaN: unknown */
    double latency_p95_ms;  /* since the last report; NaN without a frame that was answered */
    double deadline_ms;     /* the smallest of them; NaN: unknown */
    int64_t frames;         /* records since the last report */
    int64_t late, unserved; /* of them: late; stalled, dropped, failed or untruthful */
    int64_t cap;            /* of the last record; -1: none */
    /*
     * memory: a time to saturation; latency: p95 at the target or above; limit: at the cap; or
     * none.
     */
    enum mt_binding binding;
    double t_collapse_s; /* first stalled or untruthful frame of all, NaN: none */
};

struct mt_monitor;

/*
 * window_s and batch_s as in mt_live_open(); target is the share of the deadline from which latency
 * binds. -EDOM, -ENOMEM.
 */
int mt_monitor_open(struct mt_monitor **out, double window_s, double batch_s, double target);
void mt_monitor_close(struct mt_monitor **m);

/*
 * One line (n bytes). 1: a batch is complete and mt_monitor_report() is due; 0: taken, or not of
 * our kind; -EBADMSG as mt_trace_line().
 */
int mt_monitor_line(struct mt_monitor *m, const char *line, size_t n);

/*
 * What is known now; what is counted since the last report starts anew. -ENODATA before any record.
 */
int mt_monitor_report(struct mt_monitor *m, struct mt_report *out);

/*
 * The forecasts at a quarter, half and three quarters of the way to the collapse. -ENODATA: none.
 */
int mt_monitor_quarters(const struct mt_monitor *m, struct mt_forecast out[3]);

#endif
