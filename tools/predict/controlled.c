/*
 * controlled.c: mt-admit's law in the loop of a simulation: it sees the records as they are made,
 * and sets the cap of the engine that made them.
 */
#include "tools/predict/controlled.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static bool number(const char *text, double lo, double hi, double *out)
{
    return text && mt_parse_double(text, lo, hi, out) == 0;
}

static bool whole(const char *text, int *out)
{
    int64_t v;

    if (!text || mt_parse_i64(text, 1, MT_ADMIT_CAP_MAX, &v) < 0)
        return false;
    *out = (int)v;
    return true;
}

int controlled_parse(const char *text, struct mt_admit_opts *out, struct mt_err *e)
{
    char buf[256], *cursor = buf, *key, *value;
    struct mt_admit_opts o;
    bool good = snprintf(buf, sizeof(buf), "%s", text ? text : "") < (int)sizeof(buf);

    mt_admit_defaults(&o);
    while (good && mt_parse_pair(&cursor, &key, &value)) {
        if (!strcmp(key, "target"))
            good = number(value, 0.01, 1, &o.target);
        else if (!strcmp(key, "cut"))
            good = number(value, 0.01, 1, &o.cut);
        else if (!strcmp(key, "alpha"))
            good = number(value, 0.01, 1000, &o.alpha);
        else if (!strcmp(key, "beta"))
            good = number(value, 0.5, 0.99, &o.beta);
        else if (!strcmp(key, "min"))
            good = whole(value, &o.min);
        else if (!strcmp(key, "max"))
            good = whole(value, &o.max);
        else if (!strcmp(key, "cap0"))
            good = whole(value, &o.cap0);
        else
            good = false;
    }
    if (!good || o.target > o.cut || o.min > o.max || o.cap0 < o.min || o.cap0 > o.max)
        return mt_err_set(
            e, -EINVAL,
            "'%s' is not of the form "
            "[target=0.8][,cut=0.95][,alpha=1][,beta=0.9][,min=1][,max=256][,cap0=4], "
            "with target <= cut and min <= cap0 <= max",
            text ? text : "");
    *out = o;
    return 0;
}

static void decided(struct controlled *c, const struct mt_admit_decision *d)
{
    c->limit = d->limit;
    if (c->decision)
        c->decision(c->ctx, &c->law, d);
}

/* What the server's ready line tells mt-admit. */
static int begin(struct controlled *c, struct mt_engine *eng)
{
    const struct mt_engine_plan *plan = mt_engine_plan(eng);
    const struct mt_engine_opts *eo = mt_engine_options(eng);
    struct mt_admit_decision d;
    struct mt_err e = {0};

    c->opts.deadline_s = plan->deadline_s;
    if (eo->policy.bounded && plan->n_mem >= 1 && plan->n_mem <= MT_ADMIT_CAP_MAX)
        c->opts.n_mem = (int)plan->n_mem;
    if (eo->policy.bounded && eo->policy.sinks >= 0)
        c->opts.limit_tokens = (double)(eo->policy.window + eo->policy.sinks);
    if (mt_admit_init(&c->law, &c->opts, &e) < 0)
        return -EDOM;
    mt_ticks_init(&c->ticks, plan->deadline_s);
    mt_admit_begin(&c->law, &d);
    decided(c, &d);
    c->begun = true;
    return 0;
}

static void advance(struct controlled *c)
{
    struct mt_admit_obs obs;
    struct mt_admit_decision d;

    while (mt_ticks_next(&c->ticks, &obs))
        if (mt_admit_frame(&c->law, &obs, &d))
            decided(c, &d);
}

void controlled_frame(struct controlled *c, const struct mt_record *r)
{
    if (c->begun && mt_ticks_record(&c->ticks, r, false) == 0)
        advance(c);
}

/* The status line that a watcher gets once a T. */
static void status(struct controlled *c, struct mt_engine *eng, double t_s)
{
    struct mt_engine_stats st;
    struct mt_admit_decision d;

    mt_engine_stats(eng, &st);
    double now_s = mt_ticks_status(&c->ticks, t_s);
    advance(c);
    if (!isnan(now_s) &&
        mt_admit_pending(&c->law, now_s, st.pending ? st.oldest_ms / 1e3 : 0, st.sessions, &d))
        decided(c, &d);
    c->status_s = t_s + c->opts.deadline_s;
}

void controlled_tick(struct controlled *c, struct mt_engine *eng, double t_s)
{
    if (c->failed || (!c->begun && (c->failed = begin(c, eng) < 0)))
        return;
    if (t_s >= c->status_s)
        status(c, eng, t_s);
    if (c->limit != c->set) {
        mt_engine_set_cap(eng, c->limit);
        c->set = c->limit;
    }
}
