/*
 * edit.c: Levenshtein's distance, one row of the table at a time.
 */
#include "control/edit.h"

#include <errno.h>
#include <stdlib.h>
#include <utf8proc.h>

#include "base/base.h"

enum { REPLACEMENT = 0xfffd };

static bool is_spoken(int32_t c)
{
    utf8proc_category_t k = utf8proc_category(c);

    return (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO) ||
           (k >= UTF8PROC_CATEGORY_MN && k <= UTF8PROC_CATEGORY_NO);
}

int64_t mt_edit_chars(const char *text, size_t len, bool heard, int32_t **out)
{
    int32_t *chars = mt_alloc(len + 1, sizeof(*chars));
    int64_t n = 0;
    bool gap = false;

    *out = chars;
    if (!chars)
        return -ENOMEM;
    for (size_t at = 0; at < len;) {
        int32_t c;
        utf8proc_ssize_t took =
            utf8proc_iterate((const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)(len - at), &c);

        if (took < 1) {
            took = 1;
            c = REPLACEMENT;
        }
        at += (size_t)took;
        if (heard && !is_spoken(c)) {
            gap = n > 0;
            continue;
        }
        if (gap)
            chars[n++] = ' ';
        gap = false;
        chars[n++] = heard ? utf8proc_tolower(c) : c;
    }
    return n;
}

int64_t mt_edit_distance(const int32_t *a, int64_t n_a, const int32_t *b, int64_t n_b)
{
    int64_t *row = mt_alloc((size_t)n_b + 1, sizeof(*row));

    if (!row)
        return -ENOMEM;
    for (int64_t j = 0; j <= n_b; j++)
        row[j] = j;
    for (int64_t i = 1; i <= n_a; i++) {
        int64_t corner = row[0]; /* of the row above, left */

        row[0] = i;
        for (int64_t j = 1; j <= n_b; j++) {
            int64_t best = corner + (a[i - 1] != b[j - 1]);

            corner = row[j];
            best = corner + 1 < best ? corner + 1 : best;
            row[j] = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
        }
    }
    int64_t got = row[n_b];
    free(row);
    return got;
}
