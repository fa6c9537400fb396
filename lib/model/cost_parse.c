/*
 * cost_parse.c: a cost model from the text of --cost and --backend cost:….
 */
#include "model/cost.h"

#include <errno.h>
#include <string.h>

static bool share(const char *text, double *out)
{
    size_t n = strlen(text);
    char buf[64];

    if (n == 0 || n >= sizeof(buf))
        return false;
    memcpy(buf, text, n + 1);
    bool percent = buf[n - 1] == '%';
    if (percent)
        buf[n - 1] = '\0';
    if (mt_parse_double(buf, 0, percent ? 100 : 1, out) < 0)
        return false;
    *out /= percent ? 100 : 1;
    return true;
}

static bool outliers(char *text, struct mt_cost_model *c)
{
    char *colon = text ? strchr(text, ':') : NULL;

    if (!colon)
        return false;
    *colon = '\0';
    return share(text, &c->outlier_p) && mt_parse_double(colon + 1, 1, 1e6, &c->outlier_x) == 0;
}

static bool time_of(const char *text, double *s)
{
    int64_t t;

    if (!text || mt_parse_duration(text, &t) < 0)
        return false;
    *s = (double)t / 1e9;
    return true;
}

int mt_cost_parse(const char *text, struct mt_cost_model *out, struct mt_err *e)
{
    char buf[256], *cursor = buf, *key, *value;
    struct mt_cost_model c = *out;
    bool good = snprintf(buf, sizeof(buf), "%s", text) < (int)sizeof(buf), a = false;

    while (good && mt_parse_pair(&cursor, &key, &value)) {
        if (!strcmp(key, "a"))
            a = good = time_of(value, &c.a_s);
        else if (!strcmp(key, "b"))
            good = time_of(value, &c.b_s);
        else if (!strcmp(key, "b1"))
            good = time_of(value, &c.b1_s);
        else if (!strcmp(key, "prefill"))
            good = time_of(value, &c.prefill_s);
        else if (!strcmp(key, "jitter"))
            good = value && share(value, &c.jitter);
        else if (!strcmp(key, "outliers"))
            good = outliers(value, &c);
        else
            good = false;
    }
    if (!good || !a)
        return mt_err_set(
            e, -EINVAL,
            "'%s' is not of the form a=20ms,b=1.5ms[,b1=300ns][,prefill=10us][,jitter=3%%]"
            "[,outliers=0.5%%:2.5]",
            text);
    *out = c;
    return 0;
}
