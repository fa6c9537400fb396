/*
 * tokenizer_vocab.c: the older form of the same tokenizer: vocab.json and merges.txt, with the
 * added tokens in tokenizer_config.json (added_tokens_decoder) or added_tokens.json. These files
 * don't say how text is split: it is Qwen2's way, NFC first.
 */
#include "model/file.h"
#include "model/tokenizer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CONFIG_ITEMS (1 << 20)

/* The JSON of dir/name; *out NULL and 0 where there is no such file. */
static int load_optional(json_t **out, const char *dir, const char *name, struct mt_err *e)
{
    char *path = mt_path_join(dir, name);
    int rc = 0;

    *out = NULL;
    if (!path)
        return mt_err_set(e, -ENOMEM, "out of memory");
    if (access(path, F_OK) == 0)
        rc = mt_json_load(out, path, MT_TOKEN_FILE, CONFIG_ITEMS, 32, e);
    if (*out && !json_is_object(*out)) {
        json_decref(*out);
        *out = NULL;
        rc = mt_err_set(e, -EPROTO, "%s: not a JSON object", path);
    }
    free(path);
    return rc;
}

/* {"151643": {"content": ...}, ...} */
static int read_decoder(struct mt_added_list *l, json_t *decoder, const char *path,
                        struct mt_err *e)
{
    const char *key;
    json_t *j;
    int64_t id;
    char where[80 + MT_SHOW_MAX], show[MT_SHOW_MAX];
    int rc;

    if (!json_is_object(decoder))
        return mt_err_set(e, -EPROTO, "%s: added_tokens_decoder is not an object", path);
    json_object_foreach(decoder, key, j)
    {
        snprintf(where, sizeof(where), "added_tokens_decoder['%s']", mt_show(show, key));
        if (mt_parse_i64(key, 0, MT_TOKEN_IDS - 1, &id) < 0)
            return mt_err_set(e, -EPROTO, "%s: %s is not an id (expected 0..%d)", path, where,
                              MT_TOKEN_IDS - 1);
        if ((rc = mt_added_read(l, j, (int32_t)id, path, where, e)) < 0)
            return rc;
    }
    return 0;
}

/* {"<|im_end|>": 151645, ...}: says nothing about flags, so all are special. Those known already
 * stay. */
static int read_plain(struct mt_added_list *l, json_t *map, const char *path, struct mt_err *e)
{
    const char *key;
    json_t *j;
    char show[MT_SHOW_MAX];
    size_t known = l->n;
    int rc;

    json_object_foreach(map, key, j)
    {
        json_int_t id = json_integer_value(j);
        bool have = false;

        if (!json_is_integer(j) || id < 0 || id >= MT_TOKEN_IDS)
            return mt_err_set(e, -EPROTO, "%s: '%s' is not an id (expected 0..%d)", path,
                              mt_show(show, key), MT_TOKEN_IDS - 1);
        for (size_t i = 0; i < known && !have; i++)
            have = l->v[i].id == id && strcmp(l->v[i].text, key) == 0;
        if (have)
            continue;
        const struct mt_added a = {
            .text = key, .len = strlen(key), .id = (int32_t)id, .special = true};
        if (!*key)
            return mt_err_set(e, -EPROTO, "%s: a token is empty", path);
        if ((rc = mt_added_push(l, &a, path, e)) < 0)
            return rc;
    }
    return 0;
}

static int read_added(struct mt_added_list *l, const char *dir, json_t *config, json_t *plain,
                      struct mt_err *e)
{
    char *config_path = mt_path_join(dir, "tokenizer_config.json");
    char *plain_path = mt_path_join(dir, "added_tokens.json");
    json_t *decoder = json_object_get(config, "added_tokens_decoder");
    int rc = config_path && plain_path ? 0 : mt_err_set(e, -ENOMEM, "out of memory");

    if (rc == 0 && decoder)
        rc = read_decoder(l, decoder, config_path, e);
    if (rc == 0 && plain)
        rc = read_plain(l, plain, plain_path, e);
    free(config_path);
    free(plain_path);
    return rc;
}

static size_t count_lines(const char *s, size_t n)
{
    size_t lines = 1;

    for (size_t i = 0; i < n; i++)
        lines += s[i] == '\n';
    return lines;
}

static int read_merges(struct mt_tokenizer *t, const json_t *vocab, const char *s, size_t n,
                       const char *path, struct mt_err *e)
{
    size_t number = 0, n_left, n_right;
    struct mt_err why = {0};
    int rc;

    if (n > MT_TOKEN_FILE)
        return mt_err_set(e, -EPROTO, "%s: %zu bytes of merges (expected at most %d)", path, n,
                          MT_TOKEN_FILE);
    if (mt_bpe_new(&t->bpe, count_lines(s, n)) < 0)
        return mt_err_set(e, -ENOMEM, "%s: out of memory", path);
    for (size_t at = 0; at < n;) {
        const char *line = s + at, *end = memchr(line, '\n', n - at), *gap;
        size_t len = end ? (size_t)(end - line) : n - at;

        number++;
        at += len + 1;
        if (len > 0 && line[len - 1] == '\r')
            len--;
        if (len == 0 || (len >= 8 && memcmp(line, "#version", 8) == 0))
            continue;
        gap = memchr(line, ' ', len);
        n_left = gap ? (size_t)(gap - line) : 0;
        n_right = gap ? len - n_left - 1 : 0;
        if (gap && memchr(gap + 1, ' ', n_right))
            n_right = 0; /* three tokens are no pair */
        if ((rc = mt_merge_read(t, vocab, line, n_left, line + n_left + 1, n_right, &why)) < 0)
            return mt_err_set(e, rc, "%s: line %zu: %s", path, number, why.text);
    }
    return 0;
}

int mt_tokenizer_open_vocab(struct mt_tokenizer **out, const char *dir, struct mt_err *e)
{
    char *vocab_path = mt_path_join(dir, "vocab.json"), *path = mt_path_join(dir, "merges.txt");
    json_t *vocab = NULL, *config = NULL, *plain = NULL;
    struct mt_added_list added = {0};
    struct mt_file merges = {0};
    int rc;

    *out = NULL;
    if (!vocab_path || !path)
        rc = mt_err_set(e, -ENOMEM, "out of memory");
    else if (access(vocab_path, F_OK) < 0)
        rc = mt_err_set(e, -ENOENT, "%s: holds neither tokenizer.json nor vocab.json", dir);
    else
        rc = mt_json_load(&vocab, vocab_path, MT_TOKEN_FILE, MT_TOKEN_ITEMS, 1, e);
    if (rc == 0)
        rc = mt_file_map(&merges, path, e);
    if (rc == 0)
        rc = load_optional(&config, dir, "tokenizer_config.json", e);
    if (rc == 0)
        rc = load_optional(&plain, dir, "added_tokens.json", e);
    if (rc == 0)
        rc = read_added(&added, dir, config, plain, e);
    if (rc == 0)
        rc = mt_vocab_read(out, vocab, vocab_path, "the vocabulary", &added, e);
    if (rc == 0)
        rc = read_merges(*out, vocab, (const char *)merges.data, merges.size, path, e);
    if (rc == 0)
        rc = mt_split_new(&(*out)->split, mt_split_qwen2, dir, e);
    if (rc == 0)
        (*out)->nfc = true;
    else
        mt_tokenizer_free(out);
    free(added.v);
    json_decref(vocab);
    json_decref(config);
    json_decref(plain);
    mt_file_unmap(&merges);
    free(vocab_path);
    free(path);
    return rc;
}
