/*
 * tokenizer_json.c: tokenizer.json of the tokenizers library, as byte-level BPE models have it.
 * What it asks for beyond that (other models, normalizers, splitting rules) is refused by name,
 * since a tokenizer that is nearly right makes a model wrong without a word.
 */
#include "model/file.h"
#include "model/tokenizer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char *type_of(const json_t *j)
{
    const char *type = json_string_value(json_object_get(j, "type"));

    return type ? type : "";
}

static bool is_type(const json_t *j, const char *type)
{
    return strcmp(type_of(j), type) == 0;
}

/* Absent, null, false or "" */
static bool is_off(const json_t *j)
{
    return !j || json_is_null(j) || json_is_false(j) ||
           (json_is_string(j) && !*json_string_value(j));
}

static int unsupported(const char *path, const char *what, const char *value, struct mt_err *e)
{
    char show[MT_SHOW_MAX];

    return mt_err_set(e, -ENOTSUP, "%s: %s '%s' is not supported", path, what,
                      mt_show(show, value));
}

static int read_normalizer(struct mt_tokenizer *t, const json_t *j, const char *path,
                           struct mt_err *e)
{
    const json_t *list = json_object_get(j, "normalizers");

    if (is_off(j))
        return 0;
    if (is_type(j, "Sequence") && json_array_size(list) <= 1) {
        if (json_array_size(list) == 0)
            return 0;
        j = json_array_get(list, 0);
    }
    if (!is_type(j, "NFC"))
        return unsupported(path, "normalizer", type_of(j), e);
    t->nfc = true;
    return 0;
}

/* ByteLevel, which may bring GPT-2's own pattern. */
static int read_byte_level(const json_t *j, const char *path, bool *own, struct mt_err *e)
{
    if (!is_type(j, "ByteLevel"))
        return unsupported(path, "pre_tokenizer", type_of(j), e);
    if (!is_off(json_object_get(j, "add_prefix_space")))
        return unsupported(path, "pre_tokenizer ByteLevel with", "add_prefix_space", e);
    *own = !json_is_false(json_object_get(j, "use_regex"));
    return 0;
}

static int read_pre_tokenizer(struct mt_tokenizer *t, const json_t *j, const char *path,
                              struct mt_err *e)
{
    const json_t *list = json_object_get(j, "pretokenizers"), *split;
    const char *pattern, *behavior;
    char *where;
    bool own = true;
    int rc;

    if (!is_type(j, "Sequence")) {
        if ((rc = read_byte_level(j, path, &own, e)) < 0)
            return rc;
        if (!own)
            return unsupported(path, "pre_tokenizer ByteLevel with", "use_regex: false", e);
        pattern = mt_split_gpt2;
    } else {
        split = json_array_get(list, 0);
        if (json_array_size(list) != 2 || !is_type(split, "Split"))
            return unsupported(path, "pre_tokenizer", "Sequence other than Split, ByteLevel", e);
        if ((rc = read_byte_level(json_array_get(list, 1), path, &own, e)) < 0)
            return rc;
        if (own)
            return unsupported(path, "pre_tokenizer Split before ByteLevel with", "use_regex", e);
        pattern = json_string_value(json_object_get(json_object_get(split, "pattern"), "Regex"));
        behavior = json_string_value(json_object_get(split, "behavior"));
        if (!pattern)
            return unsupported(path, "pre_tokenizer Split without", "Regex", e);
        if (!behavior || strcmp(behavior, "Isolated") != 0 ||
            json_is_true(json_object_get(split, "invert")))
            return unsupported(path, "pre_tokenizer Split other than", "Isolated", e);
    }
    if (asprintf(&where, "%s: pre_tokenizer", path) < 0)
        return mt_err_set(e, -ENOMEM, "%s: out of memory", path);
    rc = mt_split_new(&t->split, pattern, where, e);
    free(where);
    return rc;
}

static int read_added(struct mt_added_list *l, const json_t *list, const char *path,
                      struct mt_err *e)
{
    char where[40];
    int rc;

    if (list && !json_is_array(list))
        return mt_err_set(e, -EPROTO, "%s: added_tokens is not an array", path);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *j = json_array_get(list, i), *id = json_object_get(j, "id");

        snprintf(where, sizeof(where), "added_tokens[%zu]", i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) >= MT_TOKEN_IDS)
            return mt_err_set(e, -EPROTO, "%s: %s: id is not a whole number (expected 0..%d)", path,
                              where, MT_TOKEN_IDS - 1);
        if ((rc = mt_added_read(l, j, (int32_t)json_integer_value(id), path, where, e)) < 0)
            return rc;
    }
    return 0;
}

static int read_merges(struct mt_tokenizer *t, const json_t *vocab, const json_t *list,
                       const char *path, struct mt_err *e)
{
    size_t n = json_array_size(list);
    struct mt_err why = {0};
    int rc;

    if (!json_is_array(list))
        return mt_err_set(e, -EPROTO, "%s: model.merges is missing or not an array", path);
    if (mt_bpe_new(&t->bpe, n) < 0)
        return mt_err_set(e, -ENOMEM, "%s: out of memory", path);
    for (size_t i = 0; i < n; i++) {
        const json_t *j = json_array_get(list, i);
        const char *a, *b;
        size_t n_a, n_b;

        if (json_is_string(j)) { /* "a b" */
            a = json_string_value(j);
            b = strchr(a, ' ');
            n_a = b ? (size_t)(b - a) : 0;
            b = b && !strchr(b + 1, ' ') ? b + 1 : "";
            n_b = strlen(b);
        } else { /* ["a", "b"] */
            a = json_string_value(json_array_get(j, 0));
            b = json_string_value(json_array_get(j, 1));
            n_a = a && json_array_size(j) == 2 ? strlen(a) : 0;
            n_b = b ? strlen(b) : 0;
        }
        if ((rc = mt_merge_read(t, vocab, a, n_a, b, n_b, &why)) < 0)
            return mt_err_set(e, rc, "%s: model.merges[%zu]: %s", path, i, why.text);
    }
    return 0;
}

static int check_model(const json_t *m, const char *path, struct mt_err *e)
{
    static const char *const off[] = {
        "dropout",       "unk_token",    "continuing_subword_prefix", "end_of_word_suffix",
        "byte_fallback", "ignore_merges"};

    if (!json_is_object(m))
        return mt_err_set(e, -EPROTO, "%s: model is missing or not an object", path);
    if (json_object_get(m, "type") && !is_type(m, "BPE"))
        return unsupported(path, "model.type", type_of(m), e);
    for (size_t i = 0; i < MT_COUNT(off); i++) {
        if (!is_off(json_object_get(m, off[i])))
            return unsupported(path, "model with", off[i], e);
    }
    return 0;
}

static int read_root(struct mt_tokenizer **out, const json_t *root, const char *path,
                     struct mt_err *e)
{
    const json_t *model = json_object_get(root, "model"),
                 *decoder = json_object_get(root, "decoder");
    json_t *vocab = json_object_get(model, "vocab");
    struct mt_added_list added = {0};
    int rc;

    if ((rc = check_model(model, path, e)) < 0)
        return rc;
    if (!is_off(decoder) && !is_type(decoder, "ByteLevel"))
        return unsupported(path, "decoder", type_of(decoder), e);
    rc = read_added(&added, json_object_get(root, "added_tokens"), path, e);
    if (rc == 0)
        rc = mt_vocab_read(out, vocab, path, "model.vocab", &added, e);
    free(added.v);
    if (rc == 0)
        rc = read_normalizer(*out, json_object_get(root, "normalizer"), path, e);
    if (rc == 0)
        rc = read_pre_tokenizer(*out, json_object_get(root, "pre_tokenizer"), path, e);
    if (rc == 0)
        rc = read_merges(*out, vocab, json_object_get(model, "merges"), path, e);
    if (rc < 0)
        mt_tokenizer_free(out);
    return rc;
}

int mt_tokenizer_open_json(struct mt_tokenizer **out, const char *path, struct mt_err *e)
{
    json_t *root;
    int rc = mt_json_load(&root, path, MT_TOKEN_FILE, MT_TOKEN_ITEMS, 16, e);

    *out = NULL;
    if (rc < 0)
        return rc;
    rc = read_root(out, root, path, e);
    json_decref(root);
    return rc;
}
