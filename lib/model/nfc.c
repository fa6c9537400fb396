/*
 * nfc.c: Unicode normalisation form C. libutf8proc knows the characters; the canonical order of
 * marks is made here with a counting sort, because the library's own is quadratic in the length of
 * a run of marks, and such a run can be as long as the text.
 */
#include "model/tokenizer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* Below U+0300 nothing composes with what stands before it, and every character is in NFC. */
static bool is_plain(const unsigned char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (s[i] >= 0xcc)
            return false;
    }
    return true;
}

static int class_of(utf8proc_int32_t c)
{
    return utf8proc_get_property(c)->combining_class;
}

/* Stable by combining class; tmp has room for n. */
static void sort_marks(utf8proc_int32_t *c, size_t n, utf8proc_int32_t *tmp)
{
    size_t start[257] = {0};

    for (size_t i = 0; i < n; i++)
        start[class_of(c[i]) + 1]++;
    for (int k = 1; k < 257; k++)
        start[k] += start[k - 1];
    for (size_t i = 0; i < n; i++)
        tmp[start[class_of(c[i])]++] = c[i];
    memcpy(c, tmp, n * sizeof(*c));
}

static void order_marks(utf8proc_int32_t *c, size_t n, utf8proc_int32_t *tmp)
{
    for (size_t i = 0; i < n;) {
        size_t from = i;
        bool sorted = true;

        for (; i < n && class_of(c[i]) > 0; i++)
            sorted = sorted && (i == from || class_of(c[i - 1]) <= class_of(c[i]));
        if (!sorted)
            sort_marks(c + from, i - from, tmp);
        i += i == from;
    }
}

int mt_nfc(const char *text, size_t n, char **out, size_t *n_out)
{
    const utf8proc_option_t form = UTF8PROC_COMPOSE | UTF8PROC_STABLE;
    utf8proc_int32_t *c = NULL, *tmp = NULL;
    size_t count = 0, cap = n + 8, len = 0;
    int rc = -ENOMEM;

    *out = NULL;
    *n_out = n;
    if (is_plain((const unsigned char *)text, n))
        return 0;
    c = malloc(mt_mul(cap, sizeof(*c)));
    if (!c)
        goto done;
    for (size_t i = 0; i < n;) {
        utf8proc_int32_t one;
        int last_class = 0;

        i += (size_t)utf8proc_iterate((const utf8proc_uint8_t *)text + i, (utf8proc_ssize_t)(n - i),
                                      &one);
        if (cap - count < 8) { /* the longest canonical decomposition has 4 */
            cap = cap * 2 + 8;
            utf8proc_int32_t *more = realloc(c, mt_mul(cap, sizeof(*c)));
            if (!more)
                goto done;
            c = more;
        }
        count += (size_t)utf8proc_decompose_char(one, c + count, 8, form, &last_class);
    }
    tmp = malloc(mt_mul(count, sizeof(*tmp)));
    *out = malloc(mt_mul(count, 4));
    if (!tmp || !*out)
        goto done;
    order_marks(c, count, tmp);
    count = (size_t)utf8proc_normalize_utf32(c, (utf8proc_ssize_t)count, form);
    for (size_t i = 0; i < count; i++)
        len += (size_t)utf8proc_encode_char(c[i], (utf8proc_uint8_t *)*out + len);
    *n_out = len;
    rc = 0;
done:
    if (rc < 0) {
        free(*out);
        *out = NULL;
    }
    free(c);
    free(tmp);
    return rc;
}
