/*
 * utf8.h: private to lib/base: where a text that was cut at n bytes still ends in a whole
 * character.
 */
#ifndef MT_BASE_UTF8_H
#define MT_BASE_UTF8_H

#include <stddef.h>

/* Length of s[0, n) without a character that the cut at n left incomplete. */
static inline size_t mt_utf8_whole(const char *s, size_t n)
{
    size_t start = n, need;
    unsigned char c;

    while (start > 0 && n - start < 4 && ((unsigned char)s[start - 1] & 0xc0) == 0x80)
        start--;
    if (start == 0)
        return n;
    c = (unsigned char)s[start - 1];
    need = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : c >= 0xc0 ? 2 : 1;
    return n - (start - 1) < need ? start - 1 : n;
}

#endif
