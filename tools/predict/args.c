/*
 * args.c: those options of mt-predict that are more than one number or word. Each ends the call
 * with a line that says what was expected, as base/args.h does for the simple ones.
 */
#include "tools/predict/predict.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void predict_arg_cost(struct argp_state *st, struct opts *o, const char *arg)
{
    char *copy = strdup(arg), *cursor = copy, *key, *value;
    int64_t a = -1, b = -1;
    bool good = true;

    if (!copy)
        argp_failure(st, MT_EXIT_FAILED, errno, "--cost");
    while (good && mt_parse_pair(&cursor, &key, &value)) {
        int64_t *to = !strcmp(key, "a") ? &a : !strcmp(key, "b") ? &b : NULL;

        good = to && value && mt_parse_duration(value, to) == 0;
    }
    if (!good || a < 0 || b < 0)
        argp_error(st, "--cost: '%s' is not of the form a=20ms,b=1.5ms", arg);
    o->cost = (struct mt_cost){(double)a / 1e9, (double)b / 1e9};
    o->has_cost = true;
    free(copy);
}

/* "[poisson:|ramp:]NUMBER[/s|/min|/h]". */
void predict_arg_arrivals(struct argp_state *st, struct opts *o, const char *arg)
{
    static const struct {
        const char *name;
        double seconds;
    } units[] = {{"/s", 1}, {"/min", 60}, {"/h", 3600}};
    const char *number = arg;
    char copy[64], *slash;
    double per = 1;
    bool good = true;

    o->arrive = ARRIVE_POISSON;
    if (!strncmp(arg, "ramp:", 5)) {
        o->arrive = ARRIVE_RAMP;
        number += 5;
    } else if (!strncmp(arg, "poisson:", 8)) {
        number += 8;
    }
    if (snprintf(copy, sizeof(copy), "%s", number) >= (int)sizeof(copy))
        *copy = '\0'; /* no number, then */
    slash = strchr(copy, '/');
    if (slash) {
        good = false;
        for (size_t i = 0; i < MT_COUNT(units); i++) {
            if (!strcmp(slash, units[i].name)) {
                per = units[i].seconds;
                good = true;
            }
        }
        *slash = '\0';
    }
    if (!good || mt_parse_double(copy, 0, 1e9, &o->arrivals_s) < 0)
        argp_error(st, "--arrivals: '%s' is not a rate such as 0.1, 6/min, poisson:0.1 or ramp:0.3",
                   arg);
    o->arrivals_s /= per;
}

/* "0.01" or "1%". */
double predict_arg_share(struct argp_state *st, const char *name, const char *arg, double hi)
{
    size_t n = strlen(arg);
    bool percent = n > 1 && arg[n - 1] == '%';
    char copy[64];
    double v = 0;

    if (snprintf(copy, sizeof(copy), "%s", arg) >= (int)sizeof(copy))
        *copy = '\0'; /* no number, then */
    else if (percent)
        copy[n - 1] = '\0';
    if (mt_parse_double(copy, 0, percent ? 100 * hi : hi, &v) < 0)
        argp_error(st, "%s: '%s' is not a share such as 0.01 or 1%%, at most %g", name, arg, hi);
    return percent ? v / 100 : v;
}

void predict_arg_duration(struct argp_state *st, struct opts *o, const char *arg)
{
    struct mt_err e = {0};

    if (mt_law_parse(arg, &o->duration, &e) < 0)
        argp_error(st, "--duration: '%s': %s", arg, e.text);
    o->has_duration = true;
}

void predict_arg_from(struct argp_state *st, struct opts *o, const char *arg)
{
    o->steady = !strcmp(arg, "steady");
    o->warm_ns = 0;
    if (!o->steady && strcmp(arg, "empty") != 0 && mt_parse_duration(arg, &o->warm_ns) < 0)
        argp_error(st, "--from: '%s' is not empty, steady or a duration", arg);
}

/* floor(total use - weights - other) */
void predict_arg_memory(struct argp_state *st, struct opts *o, const char *arg)
{
    char *copy = strdup(arg), *cursor = copy, *key, *value;
    int64_t total = 0, weights = 0, other = 0;
    double use = 1, left;
    bool good = true;

    if (!copy)
        argp_failure(st, MT_EXIT_FAILED, errno, "--memory");
    while (good && mt_parse_pair(&cursor, &key, &value)) {
        int64_t *to = !strcmp(key, "total")     ? &total
                      : !strcmp(key, "weights") ? &weights
                      : !strcmp(key, "other")   ? &other
                                                : NULL,
                more = 0;

        if (value && !strcmp(key, "use"))
            good = mt_parse_double(value, 0, 1, &use) == 0;
        else
            good = to && value && mt_parse_size(value, &more) == 0 &&
                   !__builtin_add_overflow(*to, more, to);
    }
    free(copy);
    if (!good || total == 0)
        argp_error(st,
                   "--memory: '%s' is not of the form total=80GiB,use=0.9,weights=22GiB,"
                   "other=4GiB",
                   arg);
    left = floor((double)total * use - (double)weights - (double)other);
    if (left < 1)
        argp_error(st, "--memory: '%s' leaves nothing for a pool", arg);
    o->pool_bytes = (int64_t)left;
    o->pool_blocks = 0;
}

void predict_arg_tower(struct argp_state *st, struct opts *o, const char *arg)
{
    char *copy = strdup(arg), *cursor = copy, *key, *value;
    int64_t token = -1;
    double rate = -1, share = 1;
    bool good = true;

    if (!copy)
        argp_failure(st, MT_EXIT_FAILED, errno, "--tower");
    while (good && mt_parse_pair(&cursor, &key, &value)) {
        if (value && !strcmp(key, "token"))
            good = mt_parse_size(value, &token) == 0;
        else if (value && !strcmp(key, "rate"))
            good = mt_parse_double(value, 0, 1e9, &rate) == 0;
        else
            good = value && !strcmp(key, "share") && mt_parse_double(value, 0, 1, &share) == 0;
    }
    free(copy);
    if (!good || token < 0 || rate < 0)
        argp_error(st, "--tower: '%s' is not of the form token=20KiB,rate=12.5,share=0.5", arg);
    if (o->n_towers == PREDICT_TOWERS_MAX)
        argp_error(st, "--tower: more than %d", PREDICT_TOWERS_MAX);
    else
        o->towers[o->n_towers++] = (double)token * rate * share;
}

void predict_arg_mixed(struct argp_state *st, struct opts *o, const char *arg)
{
    char *copy = strdup(arg), *cursor = copy, *key, *value;
    struct mt_periodic c = {0};
    bool good = true;

    if (!copy)
        argp_failure(st, MT_EXIT_FAILED, errno, "--mixed");
    c.cost_ns = -1;
    while (good && mt_parse_pair(&cursor, &key, &value)) {
        int64_t *to = !strcmp(key, "period")  ? &c.period_ns
                      : !strcmp(key, "cost")  ? &c.cost_ns
                      : !strcmp(key, "piece") ? &c.piece_ns
                                              : NULL;

        good = to && value && mt_parse_duration(value, to) == 0;
    }
    free(copy);
    if (!good || c.period_ns < 1 || c.cost_ns < 0 || c.piece_ns > c.cost_ns)
        argp_error(st,
                   "--mixed: '%s' is not of the form period=80ms,cost=45ms[,piece=30ms], the piece "
                   "within the cost",
                   arg);
    if (o->n_mixed == PREDICT_MIXED_MAX)
        argp_error(st, "--mixed: more than %d classes", PREDICT_MIXED_MAX);
    else
        o->mixed[o->n_mixed++] = c;
}
