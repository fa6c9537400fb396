/*
 * feed_args.c: --arrivals, --duration and --phase, by the words of their enums.
 */
#include "wire/feed_args.h"

#include <string.h>

/* A word that is not the first of its list takes a value, as in ramp:R. */
static const char *const arrivals[] = {"all", "ramp", "poisson"};
static const char *const lengths[] = {"file", "fixed", "exp"};
static const char *const phases[] = {"spread", "locked", "random"};

/*
 * Index of the word of arg among three; *value is what stands behind its colon, NULL for the first.
 */
static int kind(struct argp_state *st, const char *name, const char *arg,
                const char *const words[3], const char *forms, const char **value)
{
    size_t n = strcspn(arg, ":");

    *value = arg[n] ? arg + n + 1 : NULL;
    for (int i = 0; i < 3; i++)
        if (strlen(words[i]) == n && !strncmp(arg, words[i], n) && (*value != NULL) == (i > 0))
            return i;
    argp_error(st, "%s: '%s' is not %s", name, arg, forms);
    return 0;
}

void mt_arg_arrivals(struct argp_state *st, const char *arg, struct mt_feed_opts *o)
{
    const char *rate;

    o->arrivals = (enum mt_feed_arrivals)kind(st, "--arrivals", arg, arrivals,
                                              "all, ramp:R or poisson:R", &rate);
    if (rate)
        o->arrivals_per_s = mt_arg_double(st, "--arrivals", rate, 1e-6, 1e6);
}

void mt_arg_calls_last(struct argp_state *st, const char *arg, struct mt_feed_opts *o)
{
    const char *length;

    o->duration = (enum mt_feed_duration)kind(st, "--duration", arg, lengths,
                                              "fixed:D, exp:D or file", &length);
    if (length)
        o->duration_s = (double)mt_arg_duration(st, "--duration", length) / 1e9;
}

void mt_arg_phase(struct argp_state *st, const char *arg, struct mt_feed_opts *o)
{
    o->phase = (enum mt_feed_phase)mt_arg_word(st, "--phase", arg, phases, MT_COUNT(phases));
}

const char *mt_arrivals_name(enum mt_feed_arrivals a)
{
    return arrivals[a];
}

const char *mt_calls_last_name(enum mt_feed_duration d)
{
    return lengths[d];
}

const char *mt_phase_name(enum mt_feed_phase p)
{
    return phases[p];
}
