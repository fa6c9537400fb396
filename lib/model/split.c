/*
 * split.c: cutting text into words by the tokenizer's pattern, with PCRE2. Files are written for
 * Oniguruma, where \s is Unicode's White_Space; PCRE2's also takes U+180E, so \s is spelt out. The
 * steps of a match are limited by the length of the text: text is hostile, and so may the pattern
 * be.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "model/file.h"
#include "model/tokenizer.h"

#include <errno.h>
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

const char mt_split_qwen2[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
                              " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const char mt_split_gpt2[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

#define PATTERN_MAX 4096
#define SPACE       "\\p{Z}\\t-\\r\\x{85}"

struct mt_split {
    pcre2_code *code;
};

struct mt_split_run {
    const struct mt_split *split;
    pcre2_match_data *data;
    pcre2_match_context *limits;
    size_t found_from, found_to; /* a match found behind the piece that was given out */
};

/* Copy the pattern with \s and \S spelt out; inside a class \S stays PCRE2's. */
static char *spell_spaces(const char *p)
{
    char *out = malloc(strlen(p) * sizeof("[^" SPACE "]") + 1), *o = out;
    bool in_class = false;

    for (; out && *p; p++) {
        if (*p == '\\' && p[1] == 's') {
            o = stpcpy(o, in_class ? SPACE : "[" SPACE "]");
            p++;
        } else if (*p == '\\' && p[1] == 'S' && !in_class) {
            o = stpcpy(o, "[^" SPACE "]");
            p++;
        } else if (*p == '\\' && p[1]) {
            *o++ = *p++;
            *o++ = *p;
        } else if (*p == '[' && !in_class) {
            in_class = true;
            *o++ = *p;
            if (p[1] == '^')
                *o++ = *++p;
            if (p[1] == ']')
                *o++ = *++p;
        } else {
            if (*p == ']')
                in_class = false;
            *o++ = *p;
        }
    }
    if (out)
        *o = 0;
    return out;
}

int mt_split_new(struct mt_split **out, const char *pattern, const char *where, struct mt_err *e)
{
    int error;
    PCRE2_SIZE at;
    PCRE2_UCHAR text[120];
    char show[MT_SHOW_MAX];

    *out = NULL;
    if (strlen(pattern) > PATTERN_MAX)
        return mt_err_set(e, -EPROTO, "%s: pattern of %zu bytes (expected at most %d)", where,
                          strlen(pattern), PATTERN_MAX);

    struct mt_split *s = calloc(1, sizeof(*s));
    char *spelt = spell_spaces(pattern);
    if (!s || !spelt) {
        free(s);
        free(spelt);
        return mt_err_set(e, -ENOMEM, "%s: out of memory", where);
    }
    s->code = pcre2_compile((PCRE2_SPTR)spelt, PCRE2_ZERO_TERMINATED,
                            PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &at, NULL);
    free(spelt);
    if (!s->code) {
        free(s);
        pcre2_get_error_message(error, text, sizeof(text));
        return mt_err_set(e, -EPROTO, "%s: pattern '%s': %s", where, mt_show(show, pattern),
                          (char *)text);
    }
    pcre2_jit_compile(s->code, PCRE2_JIT_COMPLETE); /* where there is no JIT it is interpreted */
    *out = s;
    return 0;
}

void mt_split_free(struct mt_split **s)
{
    if (!*s)
        return;
    pcre2_code_free((*s)->code);
    free(*s);
    *s = NULL;
}

int mt_split_begin(const struct mt_split *s, struct mt_split_run **out)
{
    struct mt_split_run *run = calloc(1, sizeof(*run));

    *out = run;
    if (!run)
        return -ENOMEM;
    run->split = s;
    run->data = pcre2_match_data_create(1, NULL); /* groups are of no interest */
    run->limits = pcre2_match_context_create(NULL);
    if (!run->data || !run->limits) {
        mt_split_end(out);
        return -ENOMEM;
    }
    pcre2_set_heap_limit(run->limits, 64 * 1024); /* KiB */
    return 0;
}

void mt_split_end(struct mt_split_run **run)
{
    if (!*run)
        return;
    pcre2_match_data_free((*run)->data);
    pcre2_match_context_free((*run)->limits);
    free(*run);
    *run = NULL;
}

int64_t mt_split_next(struct mt_split_run *run, const char *text, size_t n, size_t at)
{
    const PCRE2_SIZE *span = pcre2_get_ovector_pointer(run->data);
    const uint32_t flags = PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY;

    if (at > 0 && at == run->found_from && run->found_to > at) {
        int64_t len = (int64_t)(run->found_to - at);
        run->found_to = 0;
        return len;
    }
    /* A good pattern looks at each byte of a match a few times. */
    size_t left = n - at;
    pcre2_set_match_limit(run->limits,
                          (uint32_t)(left < (1u << 26) ? 1000000 + 16 * left : 1u << 30));
    int rc = pcre2_match(run->split->code, (PCRE2_SPTR)text, n, at, flags, run->data, run->limits);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(run->split->code, (PCRE2_SPTR)text, n, at, flags | PCRE2_NO_JIT, run->data,
                         run->limits);
    if (rc == PCRE2_ERROR_NOMATCH)
        return (int64_t)left;
    if (rc == PCRE2_ERROR_NOMEMORY)
        return -ENOMEM;
    if (rc < 0 || span[0] < at || span[1] <= span[0])
        return -E2BIG;
    if (span[0] == at)
        return (int64_t)(span[1] - at);
    run->found_from = span[0];
    run->found_to = span[1];
    return (int64_t)(span[0] - at);
}
