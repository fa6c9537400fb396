/*
 * quality_tell.c: a mean and its interval, for programs and for people.
 */
#include <math.h>

#include "tools/probe/quality.h"

void quality_interval_json(json_t *o, const struct mt_interval *i, const char *mean)
{
    mt_json_set_real(o, mean, i->mean);
    mt_json_set_real(o, "low", i->low);
    mt_json_set_real(o, "high", i->high);
    json_object_set_new(o, "blocks", json_integer(i->blocks));
}

void quality_interval_text(char out[48], const struct mt_interval *i)
{
    if (isnan(i->mean))
        snprintf(out, 48, "-");
    else if (isnan(i->low))
        snprintf(out, 48, "%+.4f [?]", i->mean);
    else
        snprintf(out, 48, "%+.4f [%+.4f, %+.4f]", i->mean, i->low, i->high);
}
