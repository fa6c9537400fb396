/*
 * beside.c: the folder of the running program, from which its plugin and its model are found: what
 * is installed under a prefix and what lies in build/ have the same places relative to it.
 */
#include <string.h>
#include <unistd.h>

#include "base/base.h"

void mt_program_folder(char *out, size_t cap)
{
    ssize_t n = readlink("/proc/self/exe", out, cap - 1);
    char *end;

    out[n > 0 ? n : 0] = '\0';
    end = strrchr(out, '/');
    end = end ? end + 1 : out;
    *end = '\0';
}
