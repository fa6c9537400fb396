/*
 * model.h: what is loaded: weights from any source, tokenizers, and a model family behind one
 * interface. A family is one file: its configuration, its tensors, and its forward passes written over
 * kernels.h. The engine knows a model only through this header.
 */
#ifndef MT_MODEL_H
#define MT_MODEL_H

#include "audio/audio.h"
#include "base/base.h"
#include "kernels/kernels.h"

/* ---- weights ---- */

/*
 * Named tensors from one source: safetensors (mapped), or synth: (made from a seed). The family asks
 * for each tensor by name and shape; tensors that nobody asks for are other models' and are skipped.
 */
struct mt_weights;

/* Directory as released: model.safetensors, or model.safetensors.index.json with its shards. */
int mt_weights_open_safetensors(struct mt_weights **out, const char *dir, struct mt_err *e);
/* Random weights of the given type: the same bits on every machine for a seed and a name. */
int mt_weights_open_synth(struct mt_weights **out, uint64_t seed, enum mt_dtype type, struct mt_err *e);
void mt_weights_close(struct mt_weights **w);

/*
 * The bytes of tensor `name`, which must have exactly these dims (1..4), else -EPROTO naming both
 * shapes; -ENOENT when absent. As a matrix: rows = dims[0], cols = the rest; one dim: one row. Owned by w.
 */
int mt_weights_get(struct mt_weights *w, const char *name, int n_dims, const int64_t *dims, struct mt_bytes *out, struct mt_err *e);
bool mt_weights_has(const struct mt_weights *w, const char *name);
/* For tests and tools that read tensors of unknown shape: dims is filled. safetensors only. I64 tensors are not offered. */
int mt_weights_find(const struct mt_weights *w, const char *name, int *n_dims, int64_t dims[8], struct mt_bytes *out);
/* Bytes of tensor data handed out so far. */
int64_t mt_weights_bytes(const struct mt_weights *w);

/* ---- tokenizers ---- */

struct mt_tokenizer;

/* Byte-level BPE of a directory: tokenizer.json, or vocab.json + merges.txt (+ added_tokens.json or
 * tokenizer_config.json's added_tokens_decoder). Errors name file and field. */
int mt_tokenizer_open(struct mt_tokenizer **out, const char *dir, struct mt_err *e);
/*
 * For synthetic models: the 256 bytes, then made-up words, up to `vocab`; the special tokens lie at
 * the given ids. Encoding uses single bytes; each id decodes to some text.
 */
struct mt_special {
    const char *text;
    int32_t id;
};
int mt_tokenizer_synth(struct mt_tokenizer **out, int vocab, const struct mt_special *specials, int n, struct mt_err *e);
void mt_tokenizer_free(struct mt_tokenizer **t);

/* One past the highest id. */
int mt_tokenizer_size(const struct mt_tokenizer *t);
/* Id of a special (added) token by its exact text, -1 if there is none. */
int32_t mt_tokenizer_special(const struct mt_tokenizer *t, const char *text);
bool mt_tokenizer_is_special(const struct mt_tokenizer *t, int32_t id);
/*
 * Text to ids: special tokens are cut out first (when `specials`; else their text is ordinary), the rest NFC-normalised where the tokenizer says so,
 * split by its pattern and merged. *ids is malloc'ed, the caller's. -EILSEQ for invalid UTF-8.
 */
int mt_tokenizer_encode(const struct mt_tokenizer *t, const char *text, size_t len, bool specials, int32_t **ids, size_t *n, struct mt_err *e);
/* Bytes of a token (special tokens: their text); not NUL terminated; length 0 for ids without text. */
const char *mt_tokenizer_bytes(const struct mt_tokenizer *t, int32_t id, size_t *len);

/*
 * Streaming text: bytes of tokens in, whole UTF-8 out. An incomplete character waits (at most 3
 * bytes) for the next token; bytes that can't become one are replaced by U+FFFD (maximal subparts, as
 * Unicode recommends). Special tokens print nothing unless `specials`.
 */
struct mt_detok {
    unsigned char hold[4];
    int n;
};
/* Longest output for one token of len bytes (3 (len + 3) + 1). Returns the bytes written (NUL terminated behind), or -ENOSPC. */
int mt_detok_push(struct mt_detok *d, const struct mt_tokenizer *t, int32_t id, bool specials, char *out, size_t cap);
/* What waits becomes U+FFFD. */
int mt_detok_flush(struct mt_detok *d, char *out, size_t cap);

/* ---- model ---- */

struct mt_model; /* immutable after open, shared by all sessions */
struct mt_ear;   /* one session's audio state: what was heard and not yet encoded; bounded */

struct mt_model_info {
    char name[64];              /* "qwen2.5-omni" */
    int vocab;
    int layers, heads, kv_heads, head_dim;
    int64_t max_positions;      /* trained range */
    int sample_rate;            /* Hz, of mt_ear_push */
    double frame_s;             /* native beat */
    int lookahead;              /* samples beyond a frame's end that its encoding needs (2.5 ms: 40) */
    int64_t frame_multiple;     /* a frame's length must be a multiple of this many samples */
    int64_t ear_bytes;          /* bytes of one mt_ear at the frame length given at open */
    int32_t audio_id;           /* the placeholder whose embeddings are audio rows */
};

struct mt_model_opts {
    int64_t step_rows;   /* most rows of one mt_model_step */
    int64_t encode_s;    /* most seconds of audio that one mt_model_embed_clip takes (mt-probe); 0: none */
    const char *mel_floor; /* reserved: NULL */
};

/*
 * -m MODEL: a directory, or "synth:NAME[,seed=N][,layers=N][,dtype=f32|bf16|f16]". The backend must outlive the model.
 */
int mt_model_open(struct mt_model **out, const char *spec, struct mt_backend *be, const struct mt_model_opts *o, struct mt_err *e);
void mt_model_close(struct mt_model **m);
const struct mt_model_info *mt_model_info(const struct mt_model *m);
const struct mt_tokenizer *mt_model_tokenizer(const struct mt_model *m);

#endif
