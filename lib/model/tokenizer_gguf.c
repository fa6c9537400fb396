/*
 * tokenizer_gguf.c: the vocabulary, merges and special tokens that a GGUF file brings along. Text
 * becomes the ids that llama.cpp gives for the same file: its pattern for "qwen2" knows no case but
 * ASCII's, and text is not normalised, as nothing in the file asks for it.
 */
#include "model/tokenizer_gguf.h"

#include "model/file.h"
#include "model/tokenizer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* tokenizer.ggml.token_type */
enum { NORMAL = 1, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE };

#define TOKENS "tokenizer.ggml.tokens"
#define MERGES "tokenizer.ggml.merges"
#define TYPES  "tokenizer.ggml.token_type"

static const char split_qwen2[] = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^"
                                  "\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
                                  " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

struct reading {
    const struct mt_gguf *g;
    const char *const *marks;
    int n_marks, placed;
    json_t *vocab; /* {text: id} of the ordinary tokens */
    struct mt_added_list added;
    struct mt_err *e;
};

static int unsupported(const struct mt_gguf *g, const char *key, struct mt_err *e)
{
    char text[MT_SHOW_MAX] = "(none)", show[MT_SHOW_MAX];
    size_t n;
    const char *s = mt_gguf_text(g, key, &n);

    if (s)
        snprintf(text, sizeof(text), "%.*s", n < sizeof(text) ? (int)n : (int)sizeof(text) - 1, s);
    return mt_err_set(e, -ENOTSUP, "%s: key '%s' is '%s', which is not supported", mt_gguf_path(g),
                      key, mt_show(show, text));
}

/* An added token whose text the list owns. */
static int add(struct reading *r, const char *text, size_t n, int32_t id, bool special)
{
    char *own = strndup(text, n);
    int rc;

    if (!own)
        return mt_err_set(r->e, -ENOMEM, "%s: out of memory", mt_gguf_path(r->g));
    rc = mt_added_push(&r->added,
                       &(struct mt_added){.text = own, .len = n, .id = id, .special = special},
                       mt_gguf_path(r->g), r->e);
    if (rc < 0)
        free(own);
    return rc;
}

static int take_token(struct reading *r, int32_t id, const char *text, size_t n, int64_t type)
{
    const char *path = mt_gguf_path(r->g);

    if (type == UNUSED) {
        if (r->placed == r->n_marks)
            return 0;
        text = r->marks[r->placed++];
        return add(r, text, strlen(text), id, true);
    }
    if (n == 0)
        return mt_err_set(r->e, -EPROTO, "%s: %s[%d] is empty", path, TOKENS, id);
    if (type == CONTROL || type == USER_DEFINED)
        return add(r, text, n, id, type == CONTROL);
    if (json_object_getn(r->vocab, text, n))
        return mt_err_set(r->e, -EPROTO, "%s: %s[%d] comes twice", path, TOKENS, id);
    if (json_object_setn_new(r->vocab, text, n, json_integer(id)) < 0) /* jansson checks UTF-8 */
        return mt_err_set(r->e, -EPROTO, "%s: %s[%d] is no valid UTF-8", path, TOKENS, id);
    return 0;
}

/* Marks that the file has are its own: then none is to be placed. */
static void look_for_marks(struct reading *r, struct mt_gguf_list tokens)
{
    int found = 0;

    while (tokens.n > 0) {
        size_t n;
        const char *text = mt_gguf_next_string(&tokens, &n);

        for (int i = 0; i < r->n_marks; i++)
            found += n == strlen(r->marks[i]) && !memcmp(text, r->marks[i], n);
    }
    if (found)
        r->placed = r->n_marks;
}

static int read_tokens(struct reading *r)
{
    struct mt_gguf_list tokens, types = {0};
    const char *path = mt_gguf_path(r->g);
    int rc = mt_gguf_strings(r->g, TOKENS, &tokens, r->e);

    if (rc < 0)
        return rc;
    if (tokens.n > MT_TOKEN_IDS)
        return mt_err_set(r->e, -EPROTO, "%s: %s has %llu elements (expected at most %d)", path,
                          TOKENS, (unsigned long long)tokens.n, MT_TOKEN_IDS);
    if (mt_gguf_has(r->g, TYPES) && (rc = mt_gguf_ints(r->g, TYPES, &types, r->e)) < 0)
        return rc;
    if (types.n && types.n != tokens.n)
        return mt_err_set(r->e, -EPROTO, "%s: %s has %llu elements (expected %llu, as %s)", path,
                          TYPES, (unsigned long long)types.n, (unsigned long long)tokens.n, TOKENS);
    look_for_marks(r, tokens);
    for (int32_t id = 0; tokens.n > 0 && rc == 0; id++) {
        size_t n;
        const char *text = mt_gguf_next_string(&tokens, &n);

        rc = take_token(r, id, text, n, types.n ? mt_gguf_next_int(&types) : NORMAL);
    }
    return rc;
}

static int read_merges(struct mt_tokenizer *t, const struct reading *r)
{
    const char *path = mt_gguf_path(r->g);
    struct mt_gguf_list list;
    struct mt_err why = {0};
    int rc = mt_gguf_strings(r->g, MERGES, &list, r->e);

    if (rc < 0)
        return rc;
    if (list.n > INT32_MAX || mt_bpe_new(&t->bpe, (size_t)list.n) < 0)
        return mt_err_set(r->e, -ENOMEM, "%s: out of memory", path);
    for (size_t i = 0; list.n > 0; i++) {
        size_t n;
        const char *pair = mt_gguf_next_string(&list, &n), *gap = memchr(pair, ' ', n);
        size_t left = gap ? (size_t)(gap - pair) : 0, right = gap ? n - left - 1 : 0;

        if (gap && memchr(gap + 1, ' ', right))
            right = 0;
        rc = mt_merge_read(t, r->vocab, pair, left, gap ? gap + 1 : pair, right, &why);
        if (rc < 0)
            return mt_err_set(r->e, rc, "%s: %s[%zu]: %s", path, MERGES, i, why.text);
    }
    return 0;
}

static int build(struct mt_tokenizer **out, struct reading *r)
{
    int rc;

    if (!(r->vocab = json_object()))
        return mt_err_set(r->e, -ENOMEM, "%s: out of memory", mt_gguf_path(r->g));
    if ((rc = read_tokens(r)) < 0 ||
        (rc = mt_vocab_read(out, r->vocab, mt_gguf_path(r->g), TOKENS, &r->added, r->e)) < 0 ||
        (rc = read_merges(*out, r)) < 0)
        return rc;
    return mt_split_new(&(*out)->split, split_qwen2, "qwen2", r->e);
}

int mt_tokenizer_open_gguf(struct mt_tokenizer **out, const struct mt_gguf *g,
                           const char *const *marks, int n_marks, struct mt_err *e)
{
    struct reading r = {.g = g, .marks = marks, .n_marks = n_marks, .e = e};
    int rc;

    *out = NULL;
    if (!mt_gguf_is(g, "tokenizer.ggml.model", "gpt2"))
        return unsupported(g, "tokenizer.ggml.model", e);
    if (!mt_gguf_is(g, "tokenizer.ggml.pre", "qwen2"))
        return unsupported(g, "tokenizer.ggml.pre", e);
    rc = build(out, &r);
    for (size_t i = 0; i < r.added.n; i++)
        free((void *)r.added.v[i].text);
    free(r.added.v);
    json_decref(r.vocab);
    if (rc < 0)
        mt_tokenizer_free(out);
    return rc;
}
