/*
 * records.c: the last line of mt-predict on frame records: all of them, fitted.
 */
#include "tools/predict/predict.h"

#include "control/control.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

int predict_input(const struct opts *o, const char **what)
{
    bool from_stdin = !o->file || !strcmp(o->file, "-");
    int fd = from_stdin ? STDIN_FILENO : open(o->file, O_RDONLY | O_CLOEXEC);

    *what = from_stdin ? "standard input" : o->file;
    if (fd < 0) {
        fd = -errno;
        mt_msg(MT_ERROR, "%s: %s", *what, strerror(-fd));
    }
    return fd;
}

void predict_input_close(int fd)
{
    if (fd != STDIN_FILENO)
        close(fd);
}

static void warn(const char *what, const struct mt_trace_fit *f)
{
    if (f->sessions == 0)
        mt_msg(MT_WARN, "%s: no stretch of %d frame times with a constant number of sessions", what,
               MT_TRACE_MIN);
    if (f->untruthful)
        mt_msg(MT_WARN, "%s: untruthful: %lld frames are 'ok' with nothing decoded", what,
               (long long)f->untruthful);
}

static json_t *fit_json(const struct mt_trace_fit *f, int64_t broken)
{
    json_t *out = predict_begin("fit");

    predict_set_int(out, "frames", f->frames);
    predict_set_int(out, "stalled", f->stalled);
    predict_set_int(out, "untruthful", f->untruthful);
    predict_set_int(out, "broken", broken);
    if (f->pool_tokens)
        predict_set_int(out, "pool_tokens", f->pool_tokens);
    if (f->sessions)
        predict_set_int(out, "sessions", f->sessions);
    predict_set(out, "from_s", f->from_s);
    predict_set(out, "to_s", f->to_s);
    predict_set(out, "rho", f->rho);
    predict_set(out, "rho_per_s", f->rho_per_s);
    predict_set(out, "rate_tokens_s", f->rate);
    predict_set(out, "t_sat_s", f->t_sat_s);
    predict_set(out, "t_sat_at_s", f->t_sat_at_s);
    predict_set(out, "t_collapse_s", f->t_collapse_s);
    predict_set(out, "t_half_s", f->t_half_s);
    predict_set(out, "t_half_sat_s", f->t_half_sat_s);
    predict_set(out, "error_percent", f->error_percent);
    return out;
}

/* What --live would have said at the end, and how good it was on the way there. */
static int add_live(const struct opts *o, struct mt_trace *trace, double collapse_s, json_t *out)
{
    struct mt_forecast f, q[3];
    struct mt_forecast_score s;
    double truth[3] = {collapse_s, collapse_s, collapse_s}, scratch[3];
    struct mt_live *live;
    int rc = mt_live_open(&live, (double)o->window_ns / 1e9, (double)o->batch_ns / 1e9);

    if (rc < 0)
        return rc;
    mt_trace_replay(trace, live);
    if (mt_live_now(live, &f) == 0) {
        predict_set(out, "t_live_s", f.sat_s);
        predict_set(out, "t_low_s", f.low_s);
        predict_set(out, "t_high_s", f.high_s);
    }
    if (!isnan(collapse_s)) {
        mt_live_quarters(live, collapse_s, q);
        mt_forecast_score(q, truth, 3, scratch, &s);
        predict_set_int(out, "points", s.points);
        predict_set_score(out, &s);
    }
    mt_live_close(&live);
    return 0;
}

int predict_fit(const struct opts *o, struct mt_trace *trace, const char *what, int64_t broken)
{
    struct mt_trace_fit f = {0};
    json_t *out = NULL;
    int rc = mt_trace_fit(trace, &f);

    if (rc == 0) {
        out = fit_json(&f, broken);
        rc = add_live(o, trace, f.t_collapse_s, out);
    }
    if (rc < 0) {
        mt_msg(MT_ERROR, "%s: %s", what,
               rc == -ENODATA ? "no frame records with a pool in it" : strerror(-rc));
        json_decref(out);
        return MT_EXIT_FAILED;
    }
    warn(what, &f);
    return predict_print(o, out);
}
