/*
 * vocab.c: the checks that both kinds of tokenizer files share: ids in range and used once, all 256
 * bytes there, merges of known parts. Each refusal names the file and the entry.
 */
#include "model/file.h"
#include "model/tokenizer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* Vocabularies are dense. Ids far above their number would only be a way to ask for memory. */
#define HOLES_MAX (1 << 18)

int mt_added_push(struct mt_added_list *l, const struct mt_added *a, const char *path,
                  struct mt_err *e)
{
    if (l->n == l->cap) {
        size_t cap = l->cap * 2 + 32;
        struct mt_added *v = realloc(l->v, mt_mul(cap, sizeof(*v)));
        if (!v)
            return mt_err_set(e, -ENOMEM, "%s: out of memory", path);
        l->v = v;
        l->cap = cap;
    }
    l->v[l->n++] = *a;
    return 0;
}

int mt_added_read(struct mt_added_list *l, const json_t *j, int32_t id, const char *path,
                  const char *where, struct mt_err *e)
{
    static const char *const flags[] = {"special", "normalized", "lstrip", "rstrip", "single_word"};
    const char *text = json_string_value(json_object_get(j, "content"));
    bool on[MT_COUNT(flags)];

    if (!text || !*text)
        return mt_err_set(e, -EPROTO, "%s: %s: content is missing or empty", path, where);
    for (size_t i = 0; i < MT_COUNT(flags); i++) {
        const json_t *f = json_object_get(j, flags[i]);
        if (f && !json_is_boolean(f))
            return mt_err_set(e, -EPROTO, "%s: %s: %s is neither true nor false", path, where,
                              flags[i]);
        on[i] = json_is_true(f);
    }
    if (on[4])
        return mt_err_set(e, -ENOTSUP, "%s: %s: single_word is not supported", path, where);
    return mt_added_push(l,
                         &(struct mt_added){.text = text,
                                            .len = strlen(text),
                                            .id = id,
                                            .special = on[0],
                                            .normalized = on[1],
                                            .lstrip = on[2],
                                            .rstrip = on[3]},
                         path, e);
}

static int measure(json_t *vocab, const char *path, const char *field,
                   const struct mt_added_list *added, size_t *text, int *size, struct mt_err *e)
{
    const char *key;
    json_t *j;
    char show[MT_SHOW_MAX];
    size_t n = json_object_size(vocab) + added->n;

    *text = 0;
    *size = 0;
    if (!json_is_object(vocab) || json_object_size(vocab) == 0)
        return mt_err_set(e, -EPROTO, "%s: %s is missing, empty or not an object", path, field);
    json_object_foreach(vocab, key, j)
    {
        json_int_t id = json_integer_value(j);
        if (!json_is_integer(j) || id < 0 || id >= MT_TOKEN_IDS)
            return mt_err_set(e, -EPROTO, "%s: %s['%s'] is not an id (expected 0..%d)", path, field,
                              mt_show(show, key), MT_TOKEN_IDS - 1);
        if (id >= *size)
            *size = (int)id + 1;
        *text += strlen(key);
    }
    for (size_t i = 0; i < added->n; i++) {
        if (added->v[i].id >= *size)
            *size = added->v[i].id + 1;
        *text += added->v[i].len;
    }
    if ((size_t)*size > 4 * n + HOLES_MAX)
        return mt_err_set(e, -EPROTO, "%s: %s: %zu tokens with ids up to %d", path, field, n,
                          *size - 1);
    return 0;
}

static int put_vocab(struct mt_tokenizer *t, json_t *vocab, const char *path, const char *field,
                     const struct mt_added_list *added, struct mt_err *e)
{
    const char *key;
    json_t *j;
    char show[MT_SHOW_MAX];
    int rc;

    /* Added tokens first: their text stands for itself, in the vocabulary too. */
    for (size_t i = 0; i < added->n; i++) {
        const struct mt_added *a = &added->v[i];
        const json_t *same = json_object_get(vocab, a->text);

        rc = t->tokens[a->id].taken || (same && json_integer_value(same) != a->id)
                 ? -EEXIST
                 : mt_tokenizer_add(t, a);
        if (rc < 0)
            return mt_err_set(e, rc == -ENOMEM ? rc : -EPROTO,
                              "%s: added token '%s': id %d or its text belongs to another token",
                              path, mt_show(show, a->text), a->id);
    }
    mt_tokenizer_finish(t);
    for (size_t i = 1; i < t->n_added; i++) {
        if (strcmp(t->added[i - 1].text, t->added[i].text) == 0)
            return mt_err_set(e, -EPROTO, "%s: added token '%s' comes twice", path,
                              mt_show(show, t->added[i].text));
    }
    json_object_foreach(vocab, key, j)
    {
        int32_t id = (int32_t)json_integer_value(j);
        size_t n = strlen(key);
        unsigned char *bytes = t->text + t->text_len; /* decoded where it will lie */

        if (mt_tokenizer_special(t, key) >= 0)
            continue;
        if (t->tokens[id].taken)
            return mt_err_set(e, -EPROTO, "%s: %s['%s']: id %d belongs to another token, too", path,
                              field, mt_show(show, key), id);
        n = mt_token_bytes(bytes, key, n);
        if ((rc = mt_tokenizer_put(t, id, bytes, n)) < 0)
            return mt_err_set(e, rc, "%s: %s['%s']: %s", path, field, mt_show(show, key),
                              strerror(-rc));
    }
    return 0;
}

/* Id of a text, -1 where there is none. */
static int32_t id_of(const json_t *vocab, const char *text)
{
    const json_t *j = json_object_get(vocab, text);

    return j ? (int32_t)json_integer_value(j) : -1;
}

static int find_bytes(struct mt_tokenizer *t, const json_t *vocab, const char *path,
                      const char *field, struct mt_err *e)
{
    for (int b = 0; b < 256; b++) {
        char text[8] = {0};

        utf8proc_encode_char(mt_byte_char((unsigned char)b), (utf8proc_uint8_t *)text);
        t->byte_ids[b] = id_of(vocab, text);
        if (t->byte_ids[b] < 0)
            return mt_err_set(e, -EPROTO, "%s: %s has no token for byte 0x%02x ('%s')", path, field,
                              (unsigned)b, text);
    }
    return 0;
}

int mt_vocab_read(struct mt_tokenizer **out, json_t *vocab, const char *path, const char *field,
                  const struct mt_added_list *added, struct mt_err *e)
{
    size_t text;
    int size, rc;

    *out = NULL;
    if ((rc = measure(vocab, path, field, added, &text, &size, e)) < 0)
        return rc;
    if (mt_tokenizer_new(out, size, text) < 0)
        return mt_err_set(e, -ENOMEM, "%s: out of memory", path);
    if ((rc = put_vocab(*out, vocab, path, field, added, e)) < 0 ||
        (rc = find_bytes(*out, vocab, path, field, e)) < 0)
        mt_tokenizer_free(out);
    return rc;
}

int mt_merge_read(struct mt_tokenizer *t, const json_t *vocab, const char *a, size_t n_a,
                  const char *b, size_t n_b, struct mt_err *why)
{
    char both[1024], show[MT_SHOW_MAX];
    int32_t left, right, result;

    if (n_a == 0 || n_b == 0 || n_a + n_b >= sizeof(both))
        return mt_err_set(why, -EPROTO, "not two tokens (expected at most %zu bytes)",
                          sizeof(both) - 1);
    memcpy(both, a, n_a);
    both[n_a] = 0;
    left = id_of(vocab, both);
    memcpy(both, b, n_b);
    both[n_b] = 0;
    right = id_of(vocab, both);
    memcpy(both, a, n_a);
    memcpy(both + n_a, b, n_b);
    both[n_a + n_b] = 0;
    result = id_of(vocab, both);
    if (left < 0 || right < 0 || result < 0)
        return mt_err_set(why, -EPROTO, "%s '%s' is not in the vocabulary",
                          left < 0 || right < 0 ? "a part of" : "the union", mt_show(show, both));
    mt_bpe_add(t->bpe, left, right, result);
    return 0;
}
