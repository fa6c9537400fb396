/*
 * sentencepiece.c: the pieces of a SentencePiece model (tokenizer.model, a protocol buffer), as far
 * as turning ids into text needs them. Only the list of pieces is read; how text is cut into pieces
 * (unigram scores, normalisation tables) is not: models of this kind are spoken to, not written to.
 *
 *   ModelProto   field 1, once a piece: SentencePiece
 *   SentencePiece   1: text (U+2581 stands for a space), 2: score, 3: type, an enum, 1 by default
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/file.h"
#include "model/tokenizer.h"

/* Of the types 1 (plain), 4 (defined by the user) and 5 (unused) are text like any other. */
enum { TYPE_UNKNOWN = 2, TYPE_CONTROL = 3, TYPE_BYTE = 6, TYPES = 7 };

#define RELEASED_NAME "tokenizer_spm_32k_3.model"

/* ---- protocol buffers: fields of a message, one behind the other ---- */

struct cursor {
    const unsigned char *data, *end;
};

struct field {
    uint64_t number, value; /* value: of a varint */
    struct cursor bytes;    /* of a field with a length */
    int wire;
};

static bool varint(struct cursor *c, uint64_t *out)
{
    uint64_t v = 0;

    for (int shift = 0; shift < 64 && c->data < c->end; shift += 7) {
        unsigned char b = *c->data++;
        v |= (uint64_t)(b & 0x7f) << shift;
        if (!(b & 0x80)) {
            *out = v;
            return true;
        }
    }
    return false;
}

/* False when the bytes are no field: cut off, or of a kind that doesn't exist. */
static bool next_field(struct cursor *c, struct field *f)
{
    uint64_t key, n;

    *f = (struct field){0};
    if (!varint(c, &key))
        return false;
    f->number = key >> 3;
    f->wire = (int)(key & 7);
    switch (f->wire) {
    case 0:
        return f->number > 0 && varint(c, &f->value);
    case 1:
        n = 8;
        break;
    case 2:
        if (!varint(c, &n))
            return false;
        break;
    case 5:
        n = 4;
        break;
    default:
        return false;
    }
    if (f->number == 0 || n > (uint64_t)(c->end - c->data))
        return false;
    f->bytes = (struct cursor){c->data, c->data + n};
    c->data += n;
    return true;
}

/* ---- pieces ---- */

struct piece {
    const unsigned char *text;
    size_t len;
    int type;
};

static bool read_piece(struct cursor c, struct piece *p)
{
    struct field f;

    *p = (struct piece){.text = (const unsigned char *)"", .type = 1};
    while (c.data < c.end) {
        if (!next_field(&c, &f))
            return false;
        if (f.number == 1 && f.wire == 2) {
            p->text = f.bytes.data;
            p->len = (size_t)(f.bytes.end - f.bytes.data);
        } else if (f.number == 3 && f.wire == 0) {
            if (f.value < 1 || f.value >= TYPES)
                return false;
            p->type = (int)f.value;
        }
    }
    return true;
}

/* "<0x41>" */
static bool byte_of(const struct piece *p, unsigned char *out)
{
    char digits[3] = {0}, *end;

    if (p->len != 6 || memcmp(p->text, "<0x", 3) != 0 || p->text[5] != '>')
        return false;
    memcpy(digits, p->text + 3, 2);
    *out = (unsigned char)strtoul(digits, &end, 16);
    return end == digits + 2;
}

/* The text of a piece to out, which has room for all of it. */
static size_t spell(const struct piece *p, unsigned char *out)
{
    size_t n = 0;

    for (size_t i = 0; i < p->len; i++) {
        if (p->len - i >= 3 && !memcmp(p->text + i, "\xe2\x96\x81", 3)) {
            out[n++] = ' ';
            i += 2;
        } else {
            out[n++] = p->text[i];
        }
    }
    return n;
}

static int put_piece(struct mt_tokenizer *t, int32_t id, const struct piece *p, unsigned char *buf)
{
    size_t n = 1;
    int rc;

    if (p->type == TYPE_BYTE) {
        if (!byte_of(p, buf))
            return -EPROTO;
    } else {
        n = spell(p, buf);
    }
    if ((rc = mt_tokenizer_put(t, id, buf, n)) < 0)
        return rc;
    t->tokens[id].special = p->type == TYPE_UNKNOWN || p->type == TYPE_CONTROL;
    return 0;
}

/* Counts the pieces (t NULL), or puts them. -EPROTO with the byte where the file is broken. */
static int64_t each_piece(struct mt_tokenizer *t, struct cursor c, unsigned char *buf,
                          const char *path, struct mt_err *e)
{
    const unsigned char *start = c.data;
    struct field f;
    struct piece p;
    int64_t n = 0;

    while (c.data < c.end) {
        long long at = c.data - start;
        if (!next_field(&c, &f))
            return mt_err_set(e, -EPROTO, "%s: no SentencePiece model: byte %lld begins no field",
                              path, at);
        if (f.number != 1 || f.wire != 2)
            continue;
        int rc = read_piece(f.bytes, &p) ? 0 : -EPROTO;
        if (rc == 0 && t)
            rc = put_piece(t, (int32_t)n, &p, buf);
        if (rc == 0 && ++n > MT_TOKEN_IDS)
            rc = -EPROTO;
        if (rc == -EPROTO)
            return mt_err_set(e, rc, "%s: piece %lld at byte %lld is broken", path, (long long)n,
                              at);
        if (rc < 0)
            return mt_err_set(e, rc, "%s: %s", path, strerror(-rc));
    }
    return n;
}

int mt_tokenizer_open_spm(struct mt_tokenizer **out, const char *path, struct mt_err *e)
{
    struct mt_file f;
    int rc = mt_file_map(&f, path, e);

    *out = NULL;
    if (rc < 0)
        return rc;
    struct cursor all = {f.data, f.data + f.size};
    unsigned char *buf = NULL;
    int64_t n = f.size > MT_TOKEN_FILE
                    ? mt_err_set(e, -EPROTO, "%s: %zu bytes (expected at most %d)", path, f.size,
                                 MT_TOKEN_FILE)
                    : each_piece(NULL, all, NULL, path, e);

    if (n == 0)
        n = mt_err_set(e, -EPROTO, "%s: no SentencePiece model: it has no pieces", path);
    if (n > 0) {
        buf = malloc(f.size + 1);
        n = buf ? mt_tokenizer_new(out, (int)n, f.size) : -ENOMEM;
        if (n < 0)
            mt_err_set(e, (int)n, "out of memory");
        else
            n = each_piece(*out, all, buf, path, e);
    }
    free(buf);
    mt_file_unmap(&f);
    if (n < 0 || !*out) {
        mt_tokenizer_free(out);
        return (int)n;
    }
    (*out)->decode_only = true;
    mt_tokenizer_finish(*out);
    return 0;
}

char *mt_tokenizer_spm_path(const char *dir)
{
    char *config = mt_path_join(dir, "config.json"), *path = NULL;
    const char *name = RELEASED_NAME;
    json_t *root = NULL;

    if (config && access(config, R_OK) == 0)
        mt_json_load(&root, config, 4 << 20, 1 << 16, 32, NULL);
    const char *own = json_string_value(json_object_get(root, "tokenizer_name"));
    if (own && *own && !strchr(own, '/'))
        name = own;
    path = mt_path_join(dir, name);
    if (path && access(path, F_OK) < 0) {
        free(path);
        path = NULL;
    }
    json_decref(root);
    free(config);
    return path;
}
