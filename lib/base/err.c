/*
 * err.c: an error for a person. The first one set wins: it stands closest to the cause.
 */
#include "base/base.h"
#include "base/utf8.h"

#include <errno.h>
#include <stdarg.h>

int mt_err_set(struct mt_err *e, int code, const char *fmt, ...)
{
    va_list ap;
    int n;

    if (!e || e->code)
        return code;
    e->code = code;
    va_start(ap, fmt);
    n = vsnprintf(e->text, sizeof(e->text), fmt, ap);
    va_end(ap);
    if (n < 0)
        e->text[0] = '\0';
    else if ((size_t)n >= sizeof(e->text))
        e->text[mt_utf8_whole(e->text, sizeof(e->text) - 1)] = '\0';
    return code;
}
