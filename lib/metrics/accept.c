/*
 * accept.c: which format an Accept header asks for. Only an explicit wish for OpenMetrics, no
 * weaker than the one for plain text, is one: whoever says nothing, or anything goes, gets the
 * older format.
 */
#include "metrics/metrics.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define OPEN "application/openmetrics-text"

static const char *trim(char *s)
{
    size_t n;

    s += strspn(s, " \t");
    for (n = strlen(s); n > 0 && strchr(" \t", s[n - 1]); n--)
        s[n - 1] = '\0';
    return s;
}

/* One "type;param=value;…": its weight, 0 for a version that is not ours. */
static double weigh(char *item, const char **type)
{
    char *save, *part = strtok_r(item, ";", &save);
    double q = 1;

    *type = part ? trim(part) : "";
    while ((part = strtok_r(NULL, ";", &save))) {
        const char *p = trim(part);

        if (!strncasecmp(p, "q=", 2)) {
            if (mt_parse_double(p + 2, 0, 1, &q) < 0)
                q = 0;
        } else if (!strncasecmp(p, "version=", 8) && !strcasecmp(*type, OPEN) &&
                   strcmp(p + 8, "1.0.0") != 0 && strcmp(p + 8, "0.0.1") != 0) {
            return 0;
        }
    }
    return q;
}

enum mt_metrics_format mt_metrics_accepted(const char *accept)
{
    char buf[1024], *save, *item;
    double open = 0, text = 0;

    if (!accept || snprintf(buf, sizeof(buf), "%s", accept) >= (int)sizeof(buf))
        return MT_METRICS_TEXT;
    for (item = strtok_r(buf, ",", &save); item; item = strtok_r(NULL, ",", &save)) {
        const char *type;
        double q = weigh(item, &type);

        if (!strcasecmp(type, OPEN))
            open = q > open ? q : open;
        else if (!strcasecmp(type, "text/plain"))
            text = q > text ? q : text;
    }
    return open > 0 && open >= text ? MT_METRICS_OPEN : MT_METRICS_TEXT;
}
