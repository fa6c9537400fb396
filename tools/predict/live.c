/*
 * live.c: mt-predict on records: one line a batch as they come, for a person or as NDJSON, then
 * what all of them say; with --live only the lines, in fixed memory. An interrupt is the end of the
 * input: the last line is whole, and says so.
 */
#include "tools/predict/predict.h"

#include "control/control.h"
#include "control/monitor.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

struct live {
    const struct opts *o;
    struct mt_monitor *monitor;
    struct mt_trace *trace; /* of all records; NULL with --live */
    int64_t lines;          /* printed */
    int lost;               /* why one couldn't be; who closes stdout tells it */
};

static json_t *report_json(const struct mt_report *r)
{
    const struct mt_forecast *f = &r->forecast;
    json_t *out = predict_begin("live");

    predict_set(out, "t", f->t_s);
    predict_set_int(out, "sessions", f->sessions);
    if (r->cap >= 0)
        predict_set_int(out, "cap", r->cap);
    predict_set(out, "rho", f->rho);
    predict_set(out, "rho_per_s", f->rho_per_s);
    predict_set(out, "rate_tokens_s", r->rate);
    predict_set_int(out, "batches", f->batches);
    predict_set(out, "t_sat_s", f->sat_s);
    predict_set(out, "t_low_s", f->low_s);
    predict_set(out, "t_high_s", f->high_s);
    predict_set(out, "latency_p95_ms", r->latency_p95_ms);
    predict_set(out, "deadline_ms", r->deadline_ms);
    predict_set_int(out, "frames", r->frames);
    predict_set_int(out, "late", r->late);
    predict_set_int(out, "unserved", r->unserved);
    json_object_set_new(out, "binding", json_string(mt_binding_name(r->binding)));
    predict_set(out, "t_collapse_s", r->t_collapse_s);
    return out;
}

/* "1 h 02 min", "12 min 30 s", "84.2 s". */
static void put_time(char out[24], double s)
{
    if (isnan(s))
        snprintf(out, 24, "-");
    else if (isinf(s))
        snprintf(out, 24, "never");
    else if (s == 0)
        snprintf(out, 24, "now");
    else if (s < 120)
        snprintf(out, 24, "%.1f s", s);
    else if (s < 7200)
        snprintf(out, 24, "%d min %02d s", (int)s / 60, (int)s % 60);
    else
        snprintf(out, 24, "%.1f h", s / 3600);
}

static void put_number(char out[24], const char *format, double v)
{
    if (isnan(v))
        snprintf(out, 24, "-");
    else
        snprintf(out, 24, format, v);
}

/* Without its newline. */
static void print_row(const struct mt_report *r, bool header)
{
    const struct mt_forecast *f = &r->forecast;
    char sat[24], low[24], high[24], between[64] = "-", rate[24], latency[24];

    put_time(sat, f->sat_s);
    put_time(low, f->low_s);
    put_time(high, f->high_s);
    if (isfinite(f->sat_s) && f->sat_s > 0)
        snprintf(between, sizeof(between), "%s .. %s", low, high);
    put_number(rate, "%.2f", r->rate);
    put_number(latency, "%.1f", r->latency_p95_ms);
    if (header)
        printf("%10s %8s %7s  %-13s %-28s %9s %9s %6s  %s\n", "time s", "sessions", "pool",
               "full in", "95 % between", "tokens/s", "p95 ms", "missed", "bound by");
    printf("%10.1f %8lld %6.1f%%  %-13s %-28s %9s %9s %6lld  %s", f->t_s, (long long)f->sessions,
           100 * f->rho, sat, between, rate, latency, (long long)(r->late + r->unserved),
           mt_binding_name(r->binding));
}

static int print_report(struct live *l, bool last)
{
    struct mt_report r;
    json_t *out;
    int rc = mt_monitor_report(l->monitor, &r);

    if (rc < 0)
        return rc;
    if (l->o->table) {
        print_row(&r, l->lines++ % 40 == 0);
        rc = mt_line_end(stdout);
    } else {
        out = report_json(&r);
        if (last)
            predict_set_bool(out, "last", true);
        rc = mt_json_line(stdout, out);
    }
    l->lost = rc;
    return rc;
}

/* After a collapse: how well it was foretold. */
static int print_score(struct live *l)
{
    static const char *const names[] = {"error_25", "error_50", "error_75"};
    struct mt_forecast_score s;
    struct mt_forecast q[3];
    struct mt_report r;
    double truth[3], scratch[3];
    json_t *out;

    if (mt_monitor_quarters(l->monitor, q) < 0 || mt_monitor_report(l->monitor, &r) < 0)
        return 0;
    out = predict_begin("score");
    predict_set(out, "t_collapse_s", r.t_collapse_s);
    for (int i = 0; i < 3; i++) {
        double left = r.t_collapse_s - q[i].t_s;

        truth[i] = r.t_collapse_s;
        if (!isnan(q[i].sat_s))
            predict_set(out, names[i], (q[i].sat_s - left) / left);
    }
    mt_forecast_score(q, truth, 3, scratch, &s);
    predict_set_int(out, "points", s.points);
    predict_set_score(out, &s);
    if (predict_print(l->o, out) != MT_EXIT_OK)
        l->lost = -EIO;
    return l->lost;
}

static int take(void *ctx, const char *line, size_t n)
{
    struct live *l = ctx;
    int rc;

    if (l->trace && (rc = mt_trace_line(l->trace, line, n)) < 0)
        return rc;
    rc = mt_monitor_line(l->monitor, line, n);
    return rc > 0 ? print_report(l, false) : rc;
}

/* ---- interrupts ---- */

static volatile sig_atomic_t input_fd, null_fd;

/* The input ends here: the read that waits, and any later one, finds the end of /dev/null. */
static void end_input(int signal)
{
    int keep = errno;

    (void)signal;
    dup2(null_fd, input_fd);
    errno = keep;
}

static int catch_interrupts(int fd)
{
    const struct sigaction act = {.sa_handler = end_input}; /* the read that waits is tried again */

    null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (null_fd < 0)
        return -errno;
    input_fd = fd;
    sigaction(SIGINT, &act, NULL);
    sigaction(SIGTERM, &act, NULL);
    return 0;
}

int predict_records(const struct opts *o)
{
    struct live l = {.o = o};
    const char *what;
    int64_t broken = 0;
    int fd = predict_input(o, &what), rc;

    if (fd < 0)
        return MT_EXIT_FAILED;
    rc = mt_monitor_open(&l.monitor, (double)o->window_ns / 1e9, (double)o->batch_ns / 1e9,
                         o->target);
    if (rc == 0 && !o->live)
        rc = mt_trace_open(&l.trace);
    if (rc == 0)
        rc = catch_interrupts(fd);
    if (rc == 0)
        rc = mt_lines_each(fd, PREDICT_LINE_MAX, take, &l, &broken);
    predict_input_close(fd);
    if (broken)
        mt_msg(MT_WARN, "%s: %lld broken lines left out", what, (long long)broken);
    if (rc == 0)
        rc = print_report(&l, true);
    if (rc == 0 && o->live)
        rc = print_score(&l);
    int status = rc == 0 && l.trace ? predict_fit(o, l.trace, what, broken) : MT_EXIT_OK;
    mt_trace_close(&l.trace);
    mt_monitor_close(&l.monitor);
    if (rc == 0 || rc == -EPIPE)
        return status;
    if (rc != l.lost)
        mt_msg(MT_ERROR, "%s: %s", what,
               rc == -ENODATA ? "no frame records with a pool in it" : strerror(-rc));
    return MT_EXIT_FAILED;
}
