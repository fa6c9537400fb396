/*
 * msg.c: messages for people on stderr, and the last act on stdout. A message is one write(2) of
 * one line, so that lines of several threads or programs on one terminal don't mix. Control
 * characters (a file name may hold them) are shown as '?', which keeps a message one line.
 */
#include "base/base.h"
#include "base/utf8.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

static const char *program = "metronome";
static atomic_int threshold = MT_WARN;

void mt_msg_program(const char *argv0)
{
    const char *slash = argv0 ? strrchr(argv0, '/') : NULL;

    if (argv0 && *argv0)
        program = slash && slash[1] ? slash + 1 : argv0;
}

const char *mt_msg_program_name(void)
{
    return program;
}

void mt_msg_level(enum mt_level level)
{
    threshold = level;
}

void mt_msg(enum mt_level level, const char *fmt, ...)
{
    char line[2048];
    const size_t room = sizeof(line) - 1; /* one byte stays for the newline */
    va_list ap;
    size_t len;
    int n, saved = errno;

    if (level == MT_QUIET || (int)level > threshold)
        return;
    n = snprintf(line, room, "%s: ", program);
    len = n < 0 ? 0 : (size_t)n < room ? (size_t)n : room - 1;
    va_start(ap, fmt);
    n = vsnprintf(line + len, room - len, fmt, ap);
    va_end(ap);
    if (n > 0 && (size_t)n >= room - len)
        len = mt_utf8_whole(line, room - 1);
    else if (n > 0)
        len += (size_t)n;
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)line[i] < 0x20 || line[i] == 0x7f)
            line[i] = '?';
    line[len++] = '\n';
    /* Nobody is left to tell when stderr itself is gone. */
    if (write(STDERR_FILENO, line, len) < 0)
        errno = saved;
    errno = saved;
}
