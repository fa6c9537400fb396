/*
 * tokenizer_gguf.h: the tokenizer of a GGUF file. Internal to lib/model.
 */
#ifndef MT_MODEL_TOKENIZER_GGUF_H
#define MT_MODEL_TOKENIZER_GGUF_H

#include "model/gguf.h"

/*
 * marks: special tokens that a model made of this file needs. Where it has none of them they take
 * the first ids that its vocabulary leaves unused, as far as there are any. -ENOTSUP for a kind of
 * tokenizer that we don't know.
 */
int mt_tokenizer_open_gguf(struct mt_tokenizer **out, const struct mt_gguf *g,
                           const char *const *marks, int n_marks, struct mt_err *e);

#endif
