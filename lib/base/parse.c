/*
 * parse.c: numbers, sizes, durations and key=value lists as users type them. A number is written in
 * plain decimal: no sign but '-', no space, no hexadecimal, no inf or nan. The shape is checked
 * here, before strtod and strtoll, which accept more than that.
 */
#include "base/base.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Characters of "[-]digits[.digits]" (or "[-].digits") at s, with "e[+-]digits" if exponent; 0 if
 * none. */
static size_t number_span(const char *s, bool exponent, bool *whole)
{
    const char *p = s + (*s == '-');
    size_t digits = 0;

    *whole = true;
    while (isdigit((unsigned char)*p))
        p++, digits++;
    if (*p == '.') {
        *whole = false;
        p++;
        while (isdigit((unsigned char)*p))
            p++, digits++;
    }
    if (digits == 0)
        return 0;
    if (exponent && (*p == 'e' || *p == 'E')) {
        const char *x = p + 1;

        x += *x == '+' || *x == '-';
        if (isdigit((unsigned char)*x)) {
            *whole = false;
            while (isdigit((unsigned char)*x))
                x++;
            p = x;
        }
    }
    return (size_t)(p - s);
}

int mt_parse_i64(const char *s, int64_t lo, int64_t hi, int64_t *out)
{
    bool whole;
    size_t n = number_span(s, false, &whole);
    intmax_t v;

    if (n == 0 || !whole || s[n])
        return -EINVAL;
    errno = 0;
    v = strtoimax(s, NULL, 10);
    if (errno || v < lo || v > hi)
        return -ERANGE;
    *out = v;
    return 0;
}

int mt_parse_double(const char *s, double lo, double hi, double *out)
{
    bool whole;
    size_t n = number_span(s, true, &whole);
    double v;

    if (n == 0 || s[n])
        return -EINVAL;
    v = strtod(s, NULL); /* overflow gives infinity; an underflow to 0 is close enough */
    if (!isfinite(v) || !(v >= lo && v <= hi))
        return -ERANGE;
    *out = v;
    return 0;
}

struct suffix {
    const char *name;
    int64_t factor;
};

/*
 * A number times the factor of its suffix, as a non-negative integer, rounded down. A part of the
 * smallest unit is a mistake ("0.5" bytes), not something to round.
 */
static int parse_scaled(const char *s, const struct suffix *table, size_t count, int64_t *out)
{
    bool whole;
    size_t n = number_span(s, false, &whole);
    int64_t factor = 0, result;

    if (n == 0)
        return -EINVAL;
    for (size_t i = 0; i < count; i++)
        if (!strcmp(s + n, table[i].name))
            factor = table[i].factor;
    if (factor == 0 || (!whole && factor == 1))
        return -EINVAL;
    if (*s == '-')
        return -ERANGE;
    if (whole) {
        intmax_t v;

        errno = 0;
        v = strtoimax(s, NULL, 10);
        if (errno || __builtin_mul_overflow((int64_t)v, factor, &result))
            return -ERANGE;
    } else {
        long double v = strtold(s, NULL) * (long double)factor;

        if (!(v < 0x1p63L))
            return -ERANGE;
        /* Down, but not for 0.29 * 100-like products that miss a whole number by rounding. */
        result = (int64_t)(v + 1e-6L);
    }
    *out = result;
    return 0;
}

int mt_parse_size(const char *s, int64_t *bytes)
{
    static const struct suffix table[] = {
        {"", 1},
        {"K", 1000},
        {"M", 1000000},
        {"G", 1000000000},
        {"T", INT64_C(1000000000000)},
        {"KiB", INT64_C(1) << 10},
        {"MiB", INT64_C(1) << 20},
        {"GiB", INT64_C(1) << 30},
        {"TiB", INT64_C(1) << 40},
    };

    return parse_scaled(s, table, MT_COUNT(table), bytes);
}

int mt_parse_duration(const char *s, int64_t *ns)
{
    static const struct suffix table[] = {
        {"", MT_NS_PER_S},         {"ns", 1},          {"us", 1000},
        {"ms", MT_NS_PER_MS},      {"s", MT_NS_PER_S}, {"min", 60 * MT_NS_PER_S},
        {"h", 3600 * MT_NS_PER_S},
    };

    return parse_scaled(s, table, MT_COUNT(table), ns);
}

int mt_parse_pair(char **cursor, char **key, char **value)
{
    char *s = *cursor, *end, *equals;

    if (!s || !*s)
        return 0;
    end = strchr(s, ',');
    if (end)
        *end++ = '\0';
    *cursor = end;
    equals = strchr(s, '=');
    if (equals)
        *equals++ = '\0';
    *key = s;
    *value = equals;
    return 1;
}
