/*
 * tokenizer.h: the parts of a byte-level BPE tokenizer, each its own file: the vocabulary
 * (tokenizer.c), the splitting pattern (split.c), merging (bpe.c), normalisation (nfc.c), the
 * alphabet that stands for bytes in files (bytes.c), and the loaders that put them together.
 * Internal to lib/model.
 */
#ifndef MT_MODEL_TOKENIZER_H
#define MT_MODEL_TOKENIZER_H

#include "model/model.h"

#define MT_TOKEN_IDS   (1 << 24)  /* ids are below this */
#define MT_TOKEN_FILE  (64 << 20) /* bytes of a JSON file; the largest known have 20 million */
#define MT_TOKEN_ITEMS (1 << 22)  /* JSON values; Qwen's have about 600000 */
#define MT_TEXT_MAX    (1u << 30) /* bytes of text in one call, so that positions fit an int32_t */

/* ---- bytes.c: files write bytes as printable characters, GPT-2's way ---- */

int mt_byte_char(unsigned char b); /* byte to code point */
unsigned char
mt_byte_of_id(int id); /* byte of the ids 0..255 in the order of the released vocabularies */
/* Bytes that a token's text stands for, into out (at most n); text with other characters stands for
 * itself. */
size_t mt_token_bytes(unsigned char *out, const char *text, size_t n);

/* ---- nfc.c ---- */

/* NFC of valid UTF-8. *out is malloc'ed, or NULL where the text is in NFC as it is. -ENOMEM. */
int mt_nfc(const char *text, size_t n, char **out, size_t *n_out);

/* ---- split.c ---- */

struct mt_split;
extern const char mt_split_qwen2[], mt_split_gpt2[];
/* A pattern in the syntax of tokenizer files. where names it in errors (-EPROTO). */
int mt_split_new(struct mt_split **out, const char *pattern, const char *where, struct mt_err *e);
void mt_split_free(struct mt_split **s);

struct mt_split_run; /* one pass over texts; per call, so that the pattern can be shared by threads
                      */
int mt_split_begin(const struct mt_split *s, struct mt_split_run **run);
void mt_split_end(struct mt_split_run **run);
/*
 * The piece of text[at, n) that comes first: a match, or what stands before it. Returns its length,
 * at least 1, or -E2BIG when the pattern needs more steps than the length of the text can justify.
 */
int64_t mt_split_next(struct mt_split_run *run, const char *text, size_t n, size_t at);

/* ---- bpe.c ---- */

struct mt_ids { /* a growing list */
    int32_t *v;
    size_t n, cap;
};
int mt_ids_push(struct mt_ids *ids, int32_t id); /* -ENOMEM */

struct mt_bpe;
int mt_bpe_new(struct mt_bpe **out, size_t n_merges);
void mt_bpe_free(struct mt_bpe **b);
/* The next merge: earlier ones go first. A pair that comes again counts at its last place. */
void mt_bpe_add(struct mt_bpe *b, int32_t left, int32_t right, int32_t result);
struct mt_bpe_work { /* memory of a call, reused from word to word; zeroed at first */
    struct symbol *symbols;
    uint64_t *heap;
    size_t cap, n_heap;
};
/* Merge one word of bytes; appends to out. Time n log n. -ENOMEM. */
int mt_bpe_word(const struct mt_bpe *b, struct mt_bpe_work *w, const int32_t *byte_ids,
                const unsigned char *word, size_t n, struct mt_ids *out);
void mt_bpe_work_free(struct mt_bpe_work *w);

/* ---- the whole ---- */

struct mt_added {
    const char *text;
    size_t len;
    int32_t id;
    bool special, normalized, lstrip, rstrip;
};

struct mt_token {
    uint32_t at, len; /* bytes in text */
    bool taken, special;
};

struct mt_tokenizer {
    unsigned char *text;
    size_t text_len, text_cap;
    struct mt_token *tokens;
    int size;
    int32_t byte_ids[256];
    struct mt_added *added; /* by text, once finished */
    size_t n_added;
    bool starts[2][256]; /* first bytes of added tokens, [normalized] */
    bool nfc;
    bool decode_only;       /* ids to text; no text to ids */
    struct mt_split *split; /* NULL: bytes only */
    struct mt_bpe *bpe;
};

/*
 * Building: new with room for ids below size and text of at most text_bytes; put each token once
 * (-EEXIST if the id has another text, -ERANGE); add the added ones (their id may have been put
 * with the same text); finish sorts.
 */
int mt_tokenizer_new(struct mt_tokenizer **out, int size, size_t text_bytes);
int mt_tokenizer_put(struct mt_tokenizer *t, int32_t id, const void *bytes, size_t len);
int mt_tokenizer_add(struct mt_tokenizer *t, const struct mt_added *a); /* copies */
void mt_tokenizer_finish(struct mt_tokenizer *t);

/* ---- what the two kinds of files share (vocab.c) ---- */

/* Added tokens of a file while it is read. */
struct mt_added_list {
    struct mt_added *v; /* text borrowed from the JSON */
    size_t n, cap;
};
int mt_added_push(struct mt_added_list *l, const struct mt_added *a, const char *path,
                  struct mt_err *e);
/* From {"content": …, flags}: id is given. where: "added_tokens[3]". */
int mt_added_read(struct mt_added_list *l, const json_t *j, int32_t id, const char *path,
                  const char *where, struct mt_err *e);
/*
 * The tokenizer of a vocabulary {text: id} and added tokens, without merges and pattern. field
 * names the vocabulary in errors.
 */
int mt_vocab_read(struct mt_tokenizer **out, json_t *vocab, const char *path, const char *field,
                  const struct mt_added_list *added, struct mt_err *e);
/*
 * One merge of texts a and b, which with their union are in vocab. -EPROTO with the reason in why,
 * for the caller to say where.
 */
int mt_merge_read(struct mt_tokenizer *t, const json_t *vocab, const char *a, size_t n_a,
                  const char *b, size_t n_b, struct mt_err *why);

int mt_tokenizer_open_json(struct mt_tokenizer **out, const char *path, struct mt_err *e);
int mt_tokenizer_open_vocab(struct mt_tokenizer **out, const char *dir, struct mt_err *e);
/* sentencepiece.c: a SentencePiece model, for ids to text only. -EPROTO names the byte. */
int mt_tokenizer_open_spm(struct mt_tokenizer **out, const char *path, struct mt_err *e);
/*
 * The one of a directory: the file that config.json's tokenizer_name names, else the one with the
 * released name. The caller's; NULL when there is none (or no memory).
 */
char *mt_tokenizer_spm_path(const char *dir);

#endif
