/*
 * args.c: numbers, durations and words in options.
 */
#include "base/args.h"

#include <inttypes.h>
#include <string.h>

int64_t mt_arg_i64(struct argp_state *st, const char *name, const char *arg, int64_t lo, int64_t hi)
{
    int64_t v = lo;

    if (mt_parse_i64(arg, lo, hi, &v) < 0)
        argp_error(st, "%s: '%s' is not an integer in %" PRId64 "..%" PRId64, name, arg, lo, hi);
    return v;
}

double mt_arg_double(struct argp_state *st, const char *name, const char *arg, double lo, double hi)
{
    double v = lo;

    if (mt_parse_double(arg, lo, hi, &v) < 0)
        argp_error(st, "%s: '%s' is not a number in %g..%g", name, arg, lo, hi);
    return v;
}

static int64_t duration(struct argp_state *st, const char *name, const char *arg, bool zero)
{
    int64_t ns = 0;

    if (mt_parse_duration(arg, &ns) < 0 || (ns == 0 && !zero))
        argp_error(st, "%s: '%s' is not a duration%s (ms, s, min, h; a bare number is seconds)",
                   name, arg, zero ? "" : " above 0");
    return ns;
}

int64_t mt_arg_duration(struct argp_state *st, const char *name, const char *arg)
{
    return duration(st, name, arg, false);
}

int64_t mt_arg_duration0(struct argp_state *st, const char *name, const char *arg)
{
    return duration(st, name, arg, true);
}

int mt_arg_word(struct argp_state *st, const char *name, const char *arg, const char *const *words,
                int n)
{
    char list[200] = "";
    size_t at = 0;

    for (int i = 0; i < n; i++) {
        if (!strcmp(arg, words[i]))
            return i;
        if (at < sizeof(list))
            at += (size_t)snprintf(list + at, sizeof(list) - at, "%s%s",
                                   i == 0      ? ""
                                   : i < n - 1 ? ", "
                                               : " or ",
                                   words[i]);
    }
    argp_error(st, "%s: '%s' is not %s", name, arg, list);
    return 0;
}

bool mt_arg_table(struct argp_state *st, const char *arg)
{
    static const char *const formats[] = {"json", "table"};

    return mt_arg_word(st, "--format", arg, formats, 2) == 1;
}
