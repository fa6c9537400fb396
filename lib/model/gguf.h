/*
 * gguf.h: a GGUF file as ggml's tools write it: keys with values, and tensors, all of it checked
 * against the file when it is opened. What the keys mean to a model is gguf_config.c, what the
 * tensors are called gguf_names.c, the vocabulary tokenizer_gguf.c. Internal to lib/model.
 */
#ifndef MT_MODEL_GGUF_H
#define MT_MODEL_GGUF_H

#include "model/source.h"

struct mt_gguf;

/* Maps the file; g owns it. -EBADMSG for what is no GGUF file at all, -EPROTO with the place,
 * -ENOTSUP for another version, or from open(). */
int mt_gguf_open(struct mt_gguf **out, const char *path, struct mt_err *e);
void mt_gguf_close(struct mt_gguf **g);
const char *mt_gguf_path(const struct mt_gguf *g);

/* ---- keys ---- */

bool mt_gguf_has(const struct mt_gguf *g, const char *key);
/*
 * A number of any integer type in lo..hi: 0, or -EPROTO naming file and key. A missing key takes
 * `fallback` where that is not MT_NEED (bind.h).
 */
int mt_gguf_int(const struct mt_gguf *g, const char *key, int64_t lo, int64_t hi, int64_t fallback,
                int64_t *out, struct mt_err *e);
int mt_gguf_real(const struct mt_gguf *g, const char *key, double lo, double hi, double fallback,
                 double *out, struct mt_err *e);
bool mt_gguf_true(const struct mt_gguf *g, const char *key); /* a bool that is there and set */
/* A string, not NUL terminated but free of NULs; NULL when there is none of this key. */
const char *mt_gguf_text(const struct mt_gguf *g, const char *key, size_t *len);
bool mt_gguf_is(const struct mt_gguf *g, const char *key, const char *text);

/* An array of strings (GGUF type 8) or of integers, walked from its first element. */
struct mt_gguf_list {
    const unsigned char *at;
    uint64_t n; /* elements left */
    uint32_t type;
};
/* -ENOENT when there is no such key, -EPROTO when it is something else; e says so. */
int mt_gguf_strings(const struct mt_gguf *g, const char *key, struct mt_gguf_list *out,
                    struct mt_err *e);
int mt_gguf_ints(const struct mt_gguf *g, const char *key, struct mt_gguf_list *out,
                 struct mt_err *e);
/* The next element of a list that has one. */
const char *mt_gguf_next_string(struct mt_gguf_list *l, size_t *len);
int64_t mt_gguf_next_int(struct mt_gguf_list *l);

/* ---- tensors ---- */

bool mt_gguf_has_tensor(const struct mt_gguf *g, const char *name);
/*
 * dims outermost first, as everywhere here: GGUF's reversed. -ENOENT silently; -ENOTSUP, with e
 * set, for a type that no backend computes with.
 */
int mt_gguf_tensor(const struct mt_gguf *g, const char *name, const struct mt_tensor **out,
                   struct mt_err *e);

#endif
