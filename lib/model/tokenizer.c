/*
 * tokenizer.c: the vocabulary of a tokenizer: what text each id has, and which added tokens there
 * are. Built once by a loader, then only read. Encoding is encode.c, text out is detok.c.
 */
#include "model/tokenizer.h"

#include "model/file.h"
#include "model/tokenizer_gguf.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int mt_tokenizer_new(struct mt_tokenizer **out, int size, size_t text_bytes)
{
    struct mt_tokenizer *t = calloc(1, sizeof(*t));

    *out = t;
    if (!t)
        return -ENOMEM;
    t->tokens = calloc((size_t)size + 1, sizeof(*t->tokens));
    t->text = malloc(text_bytes + 1);
    if (!t->tokens || !t->text) {
        mt_tokenizer_free(out);
        return -ENOMEM;
    }
    t->size = size;
    t->text_cap = text_bytes;
    return 0;
}

void mt_tokenizer_free(struct mt_tokenizer **tp)
{
    struct mt_tokenizer *t = *tp;

    if (!t)
        return;
    for (size_t i = 0; i < t->n_added; i++)
        free((void *)t->added[i].text);
    free(t->added);
    free(t->tokens);
    free(t->text);
    mt_split_free(&t->split);
    mt_bpe_free(&t->bpe);
    free(t);
    *tp = NULL;
}

int mt_tokenizer_put(struct mt_tokenizer *t, int32_t id, const void *bytes, size_t len)
{
    if (id < 0 || id >= t->size)
        return -ERANGE;

    struct mt_token *k = &t->tokens[id];
    if (k->taken)
        return k->len == len && memcmp(t->text + k->at, bytes, len) == 0 ? 0 : -EEXIST;
    if (len > t->text_cap - t->text_len)
        return -ENOSPC;
    memcpy(t->text + t->text_len, bytes, len);
    *k = (struct mt_token){(uint32_t)t->text_len, (uint32_t)len, true, false};
    t->text_len += len;
    return 0;
}

int mt_tokenizer_add(struct mt_tokenizer *t, const struct mt_added *a)
{
    int rc = mt_tokenizer_put(t, a->id, a->text, a->len);

    if (rc < 0)
        return rc;
    struct mt_added *more = realloc(t->added, mt_mul(t->n_added + 1, sizeof(*more)));
    if (!more)
        return -ENOMEM;
    t->added = more;
    more[t->n_added] = *a;
    more[t->n_added].text = strdup(a->text);
    if (!more[t->n_added].text)
        return -ENOMEM;
    t->n_added++;
    t->tokens[a->id].special = a->special;
    t->starts[a->normalized][(unsigned char)a->text[0]] = true;
    return 0;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(((const struct mt_added *)a)->text, ((const struct mt_added *)b)->text);
}

void mt_tokenizer_finish(struct mt_tokenizer *t)
{
    if (t->n_added)
        qsort(t->added, t->n_added, sizeof(*t->added), by_text);
}

int mt_tokenizer_size(const struct mt_tokenizer *t)
{
    return t->size;
}

int32_t mt_tokenizer_special(const struct mt_tokenizer *t, const char *text)
{
    struct mt_added key = {.text = text};
    const struct mt_added *a =
        t->n_added ? bsearch(&key, t->added, t->n_added, sizeof(key), by_text) : NULL;

    return a ? a->id : -1;
}

bool mt_tokenizer_is_special(const struct mt_tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->size && t->tokens[id].special;
}

const char *mt_tokenizer_bytes(const struct mt_tokenizer *t, int32_t id, size_t *len)
{
    if (id < 0 || id >= t->size) {
        *len = 0;
        return "";
    }
    *len = t->tokens[id].len;
    return (const char *)t->text + t->tokens[id].at;
}

static int open_gguf(struct mt_tokenizer **out, const char *path, struct mt_err *e)
{
    struct mt_gguf *g;
    int rc = mt_gguf_open(&g, path, e);

    if (rc == 0)
        rc = mt_tokenizer_open_gguf(out, g, NULL, 0, e);
    mt_gguf_close(&g);
    return rc;
}

int mt_tokenizer_open(struct mt_tokenizer **out, const char *dir, struct mt_err *e)
{
    struct stat st;
    char *json = mt_path_join(dir, "tokenizer.json"), *spm = NULL;
    int rc;

    *out = NULL;
    if (!json)
        return mt_err_set(e, -ENOMEM, "out of memory");
    if (stat(dir, &st) == 0 && S_ISREG(st.st_mode)) {
        free(json);
        return open_gguf(out, dir, e);
    }
    if (access(dir, F_OK) < 0)
        rc = mt_err_set(e, -errno, "%s: %s", dir, strerror(errno));
    else if (access(json, F_OK) == 0)
        rc = mt_tokenizer_open_json(out, json, e);
    else if ((spm = mt_tokenizer_spm_path(dir)))
        rc = mt_tokenizer_open_spm(out, spm, e);
    else
        rc = mt_tokenizer_open_vocab(out, dir, e);
    free(json);
    free(spm);
    return rc;
}
