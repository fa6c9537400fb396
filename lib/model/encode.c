/*
 * encode.c: text to ids, in the order of the tokenizers library: added tokens are cut out of the
 * raw text; each stretch between is normalised; added tokens that ask for it are cut out of that;
 * what is left is split by the pattern, and each word is merged. A word never reaches across an
 * added token.
 */
#include "model/file.h"
#include "model/tokenizer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

struct encoding {
    const struct mt_tokenizer *t;
    bool specials;
    struct mt_split_run *run;
    struct mt_bpe_work work;
    struct mt_ids ids;
};

typedef int stage_fn(struct encoding *c, const char *text, size_t n);

static int words(struct encoding *c, const char *text, size_t n)
{
    int rc = 0;

    if (!c->t->split) {
        for (size_t i = 0; i < n && rc == 0; i++)
            rc = mt_ids_push(&c->ids, c->t->byte_ids[(unsigned char)text[i]]);
        return rc;
    }
    for (size_t at = 0; at < n && rc == 0;) {
        int64_t len = mt_split_next(c->run, text, n, at);
        if (len < 0)
            return (int)len;
        rc = mt_bpe_word(c->t->bpe, &c->work, c->t->byte_ids, (const unsigned char *)text + at,
                         (size_t)len, &c->ids);
        at += (size_t)len;
    }
    return rc;
}

/* The longest added token of this kind at the beginning of text. Narrows a range of the sorted
 * list. */
static const struct mt_added *added_at(const struct mt_tokenizer *t, bool normalized,
                                       const char *text, size_t n)
{
    const struct mt_added *best = NULL, *a = t->added;
    size_t lo = 0, hi = t->n_added;

    for (size_t k = 0; k < n && lo < hi; k++) {
        unsigned char c = (unsigned char)text[k];
        size_t from = lo, to = hi;

        while (from < to) { /* first with byte k >= c; all in range have bytes 0..k-1 */
            size_t mid = from + (to - from) / 2;
            if ((unsigned char)a[mid].text[k] < c)
                from = mid + 1;
            else
                to = mid;
        }
        lo = to = from;
        for (size_t end = hi; to < end;) { /* first with byte k > c */
            size_t mid = to + (end - to) / 2;
            if ((unsigned char)a[mid].text[k] <= c)
                to = mid + 1;
            else
                end = mid;
        }
        hi = to;
        if (lo < hi && a[lo].len == k + 1) {
            if (a[lo].normalized == normalized)
                best = &a[lo];
            lo++; /* it ends here; the longer ones come behind it */
        }
    }
    return best;
}

/* Unicode's White_Space. */
static bool is_space(int32_t c)
{
    utf8proc_category_t k = utf8proc_category(c);

    return (c >= 9 && c <= 13) || c == 0x85 || k == UTF8PROC_CATEGORY_ZS ||
           k == UTF8PROC_CATEGORY_ZL || k == UTF8PROC_CATEGORY_ZP;
}

static size_t spaces_before(const char *text, size_t from, size_t at)
{
    while (at > from) {
        size_t p = at - 1;
        utf8proc_int32_t c;

        while (p > from && ((unsigned char)text[p] & 0xc0) == 0x80)
            p--;
        if (utf8proc_iterate((const utf8proc_uint8_t *)text + p, (utf8proc_ssize_t)(at - p), &c) <=
                0 ||
            !is_space(c))
            break;
        at = p;
    }
    return at;
}

static size_t spaces_behind(const char *text, size_t at, size_t n)
{
    while (at < n) {
        utf8proc_int32_t c;
        utf8proc_ssize_t used =
            utf8proc_iterate((const utf8proc_uint8_t *)text + at, (utf8proc_ssize_t)(n - at), &c);
        if (used <= 0 || !is_space(c))
            break;
        at += (size_t)used;
    }
    return at;
}

/* Cut added tokens of one kind out of text; what lies between goes to the next stage. */
static int cut(struct encoding *c, bool normalized, const char *text, size_t n, stage_fn *next)
{
    size_t done = 0, at = 0;
    int rc;

    while (at < n) {
        const struct mt_added *a = c->t->starts[normalized][(unsigned char)text[at]]
                                       ? added_at(c->t, normalized, text + at, n - at)
                                       : NULL;
        if (!a) {
            at++;
            continue;
        }
        size_t from = at, to = at + a->len;
        at = to;
        if (a->special && !c->specials)
            continue; /* ordinary text, but nothing inside it is looked for */
        if (a->lstrip)
            from = spaces_before(text, done, from);
        if (a->rstrip)
            at = to = spaces_behind(text, to, n);
        if (from > done && (rc = next(c, text + done, from - done)) < 0)
            return rc;
        if ((rc = mt_ids_push(&c->ids, a->id)) < 0)
            return rc;
        done = to;
    }
    return n > done ? next(c, text + done, n - done) : 0;
}

static int normalise(struct encoding *c, const char *text, size_t n)
{
    char *nfc = NULL;
    int rc = c->t->nfc ? mt_nfc(text, n, &nfc, &n) : 0;

    if (rc == 0)
        rc = cut(c, true, nfc ? nfc : text, n, words);
    free(nfc);
    return rc;
}

static int check(const char *text, size_t len, struct mt_err *e)
{
    utf8proc_int32_t c;

    if (len > MT_TEXT_MAX)
        return mt_err_set(e, -E2BIG, "text of %zu bytes (expected at most %u)", len, MT_TEXT_MAX);
    for (size_t i = 0; i < len;) {
        if ((unsigned char)text[i] < 0x80) {
            i++;
            continue;
        }
        utf8proc_ssize_t n =
            utf8proc_iterate((const utf8proc_uint8_t *)text + i, (utf8proc_ssize_t)(len - i), &c);
        if (n <= 0)
            return mt_err_set(e, -EILSEQ, "text is not valid UTF-8 at byte %zu", i);
        i += (size_t)n;
    }
    return 0;
}

int mt_tokenizer_encode(const struct mt_tokenizer *t, const char *text, size_t len, bool specials,
                        int32_t **ids, size_t *n, struct mt_err *e)
{
    struct encoding c = {.t = t, .specials = specials};
    int rc;

    *ids = NULL;
    *n = 0;
    if (t->decode_only)
        return mt_err_set(e, -ENOTSUP,
                          "a SentencePiece tokenizer turns ids into text, not text into ids");
    if ((rc = check(text, len, e)) < 0)
        return rc;
    c.ids.cap = len / 4 + 16;
    c.ids.v = malloc(c.ids.cap * sizeof(*c.ids.v));
    rc = c.ids.v ? 0 : -ENOMEM;
    if (rc == 0 && t->split)
        rc = mt_split_begin(t->split, &c.run);
    if (rc == 0)
        rc = cut(&c, false, text, len, normalise);
    mt_split_end(&c.run);
    mt_bpe_work_free(&c.work);
    if (rc < 0) {
        free(c.ids.v);
        return rc == -E2BIG ? mt_err_set(e, rc,
                                         "text of %zu bytes: the tokenizer's pattern needs "
                                         "too many steps to split it",
                                         len)
                            : mt_err_set(e, rc, "text of %zu bytes: %s", len, strerror(-rc));
    }
    *ids = c.ids.v;
    *n = c.ids.n;
    return 0;
}
