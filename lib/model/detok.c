/*
 * detok.c: token bytes to whole UTF-8, as they come. What is held back is always the beginning of a
 * character that the next byte may still continue; a byte that can't makes it one U+FFFD (a maximal
 * subpart), so that any way of cutting the bytes into tokens prints what decoding them at once
 * would. A byte 0 is replaced, too, where it would end a C string.
 */
#include "model/tokenizer.h"

#include <errno.h>
#include <string.h>

/* Bytes of a character by its first one, 0 where none begins. */
static int length_of(unsigned char first)
{
    if (first < 0x80)
        return 1;
    if (first >= 0xc2 && first <= 0xdf)
        return 2;
    if (first >= 0xe0 && first <= 0xef)
        return 3;
    return first >= 0xf0 && first <= 0xf4 ? 4 : 0;
}

/* The second byte's range excludes overlong forms, surrogates and what lies above U+10FFFF. */
static bool continues(const unsigned char *hold, int n, unsigned char c)
{
    if (n == 1) {
        switch (hold[0]) {
        case 0xe0:
            return c >= 0xa0 && c <= 0xbf;
        case 0xed:
            return c >= 0x80 && c <= 0x9f;
        case 0xf0:
            return c >= 0x90 && c <= 0xbf;
        case 0xf4:
            return c >= 0x80 && c <= 0x8f;
        default:
            break;
        }
    }
    return c >= 0x80 && c <= 0xbf;
}

static int put_replacement(char *out)
{
    memcpy(out, "\xef\xbf\xbd", 3);
    return 3;
}

static int push_byte(struct mt_detok *d, unsigned char c, char *out)
{
    int n = 0;

    if (d->n > 0 && !continues(d->hold, d->n, c)) {
        n = put_replacement(out);
        d->n = 0;
    }
    if (d->n == 0 && (length_of(c) == 0 || (c == 0 && !d->zeros)))
        return n + put_replacement(out + n);
    d->hold[d->n++] = c;
    if (d->n == length_of(d->hold[0])) {
        memcpy(out + n, d->hold, (size_t)d->n);
        n += d->n;
        d->n = 0;
    }
    return n;
}

int mt_detok_push(struct mt_detok *d, const struct mt_tokenizer *t, int32_t id, bool specials,
                  char *out, size_t cap)
{
    size_t len;
    const char *bytes = mt_tokenizer_bytes(t, id, &len);
    int n = 0;

    if (!specials && mt_tokenizer_is_special(t, id))
        len = 0;
    /* One byte prints at most one character, or two replacements only if one byte was held. */
    if (cap < 3 * (len + (size_t)d->n) + 1)
        return -ENOSPC;
    for (size_t i = 0; i < len; i++)
        n += push_byte(d, (unsigned char)bytes[i], out + n);
    out[n] = 0;
    return n;
}

void mt_detok_visit(struct mt_detok *d, struct mt_state_io *io)
{
    struct mt_detok held = {.zeros = d->zeros};
    char out[16];

    mt_state_int(io, "bytes of a character", &d->n, 0, 3);
    mt_state_bytes(io, "a character's bytes", d->hold, sizeof(d->hold));
    if (!mt_state_ok(io))
        return;
    for (int i = 0; i < d->n; i++)
        push_byte(&held, d->hold[i], out);
    if (held.n != d->n || memcmp(held.hold, d->hold, (size_t)d->n) != 0)
        mt_state_fail(io, -EPROTO, "%d bytes that begin no character", d->n);
}

int mt_detok_flush(struct mt_detok *d, char *out, size_t cap)
{
    int n = 0;

    if (cap < (d->n > 0 ? 4 : 1))
        return -ENOSPC;
    if (d->n > 0)
        n = put_replacement(out);
    out[n] = 0;
    d->n = 0;
    return n;
}
