/*
 * bytes.c: the alphabet of byte-level BPE files. Vocabularies are JSON text, so each byte is
 * written as a printable character: those that are printable in Latin-1 as themselves, the other 68
 * as the code points from 256 on, in order. Ids 0..255 of the released vocabularies follow the same
 * two groups.
 */
#include "model/tokenizer.h"

#include <string.h>
#include <utf8proc.h>

static bool printable(int c)
{
    return (c >= 33 && c <= 126) || (c >= 161 && c <= 172) || (c >= 174 && c <= 255);
}

int mt_byte_char(unsigned char b)
{
    if (printable(b))
        return b;
    return 256 + (b < 33 ? b : b < 161 ? b - 127 + 33 : 67);
}

/* Code point to byte, -1 if it stands for none. */
static int char_byte(int32_t c)
{
    if (c < 256)
        return printable(c) ? c : -1;
    c -= 256;
    return c < 33 ? c : c < 67 ? c - 33 + 127 : c == 67 ? 173 : -1;
}

unsigned char mt_byte_of_id(int id)
{
    if (id < 94)
        return (unsigned char)(33 + id);
    if (id < 106)
        return (unsigned char)(161 + id - 94);
    if (id < 188)
        return (unsigned char)(174 + id - 106);
    return (unsigned char)char_byte(256 + id - 188);
}

size_t mt_token_bytes(unsigned char *out, const char *text, size_t n)
{
    size_t len = 0;

    for (size_t i = 0; i < n;) {
        utf8proc_int32_t c;
        utf8proc_ssize_t used =
            utf8proc_iterate((const utf8proc_uint8_t *)text + i, (utf8proc_ssize_t)(n - i), &c);
        int b = used > 0 ? char_byte(c) : -1;

        if (b < 0) {
            memcpy(out, text, n);
            return n;
        }
        out[len++] = (unsigned char)b;
        i += (size_t)used;
    }
    return len;
}
