/*
 * expose.c: the two text formats of Prometheus, from one description. They differ in the order of
 * the lines that head a family, in where a counter has its "_total", in types that the older format
 * does not know, and in how they end.
 */
#include "metrics/metrics.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

struct mt_expose {
    enum mt_metrics_format format;
    enum mt_metrics_type type;
    char name[128];
    char *text;
    size_t n;
    FILE *f;
};

const char *mt_metrics_content_type(enum mt_metrics_format f)
{
    return f == MT_METRICS_OPEN ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
                                : "text/plain; version=0.0.4; charset=utf-8";
}

int mt_expose_new(struct mt_expose **out, enum mt_metrics_format f)
{
    struct mt_expose *x = calloc(1, sizeof(*x));

    *out = NULL;
    if (!x || !(x->f = open_memstream(&x->text, &x->n))) {
        free(x);
        return -ENOMEM;
    }
    x->format = f;
    *out = x;
    return 0;
}

/* Backslash, newline, and in a label's value the quote. */
static void put_escaped(FILE *f, const char *s, bool quote)
{
    for (; *s; s++)
        if (*s == '\n')
            fputs("\\n", f);
        else if (*s == '\\' || (quote && *s == '"'))
            fprintf(f, "\\%c", *s);
        else
            fputc(*s, f);
}

/* What the format puts behind a family's name in its samples. */
static const char *ending(const struct mt_expose *x)
{
    return x->type == MT_TYPE_COUNTER ? "_total" : x->type == MT_TYPE_INFO ? "_info" : "";
}

static const char *type_word(const struct mt_expose *x)
{
    static const char *const words[] = {"gauge", "counter", "histogram", "info", "stateset"};

    if (x->format == MT_METRICS_TEXT && x->type >= MT_TYPE_INFO)
        return "gauge";
    return words[x->type];
}

void mt_expose_family(struct mt_expose *x, const char *name, enum mt_metrics_type type,
                      const char *unit, const char *help)
{
    bool text = x->format == MT_METRICS_TEXT;
    const char *end;

    snprintf(x->name, sizeof(x->name), "%s", name);
    x->type = type;
    end = text ? ending(x) : "";
    if (!text)
        fprintf(x->f, "# TYPE %s %s\n", name, type_word(x));
    if (!text && unit)
        fprintf(x->f, "# UNIT %s %s\n", name, unit);
    fprintf(x->f, "# HELP %s%s ", name, end);
    put_escaped(x->f, help, !text);
    fputc('\n', x->f);
    if (text)
        fprintf(x->f, "# TYPE %s%s %s\n", name, end, type_word(x));
}

static void put_value(FILE *f, double v)
{
    if (isnan(v))
        fputs("NaN", f);
    else if (isinf(v))
        fputs(v > 0 ? "+Inf" : "-Inf", f);
    else
        fprintf(f, "%.17g", v);
}

void mt_expose_sample(struct mt_expose *x, const char *suffix, double value, ...)
{
    const char *label, *between = "{";
    va_list ap;

    fprintf(x->f, "%s%s%s", x->name, ending(x), suffix);
    va_start(ap, value);
    while ((label = va_arg(ap, const char *))) {
        fprintf(x->f, "%s%s=\"", between, label);
        put_escaped(x->f, va_arg(ap, const char *), true);
        fputc('"', x->f);
        between = ",";
    }
    va_end(ap);
    fputs(*between == ',' ? "} " : " ", x->f);
    put_value(x->f, value);
    fputc('\n', x->f);
}

char *mt_expose_end(struct mt_expose **px, size_t *n)
{
    struct mt_expose *x = *px;
    bool bad;
    char *text;

    if (x->format == MT_METRICS_OPEN)
        fputs("# EOF\n", x->f);
    bad = ferror(x->f);
    bad = fclose(x->f) != 0 || bad;
    text = x->text;
    *n = x->n;
    free(x);
    *px = NULL;
    if (!bad)
        return text;
    free(text);
    return NULL;
}
