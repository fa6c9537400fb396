/*
 * records.c: mt-predict on frame records: the same, fitted to what was measured.
 */
#include "tools/predict/predict.h"

#include "control/control.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define LINE_MAX_B (1 << 20) /* a record with its text has a few hundred bytes */

static int take(void *ctx, const char *line, size_t n)
{
    return mt_trace_line(ctx, line, n);
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

int predict_records(const struct opts *o)
{
    bool from_stdin = !o->file || !strcmp(o->file, "-");
    const char *what = from_stdin ? "standard input" : o->file;
    int fd = from_stdin ? STDIN_FILENO : open(o->file, O_RDONLY | O_CLOEXEC);
    struct mt_trace *trace = NULL;
    struct mt_trace_fit f = {0};
    int64_t broken = 0;
    int rc = fd < 0 ? -errno : 0;

    if (!rc && (rc = mt_trace_open(&trace)) == 0 &&
        (rc = mt_lines_each(fd, LINE_MAX_B, take, trace, &broken)) == 0)
        rc = mt_trace_fit(trace, &f);
    mt_trace_close(&trace);
    if (!from_stdin && fd >= 0)
        close(fd);
    if (broken)
        mt_msg(MT_WARN, "%s: %lld broken lines left out", what, (long long)broken);
    if (rc < 0) {
        mt_msg(MT_ERROR, "%s: %s", what, rc == -ENODATA ? "no frame records in it" : strerror(-rc));
        return MT_EXIT_FAILED;
    }
    warn(what, &f);
    return predict_print(o, fit_json(&f, broken));
}
