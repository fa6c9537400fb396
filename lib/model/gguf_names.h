/*
 * gguf_names.h: a model in GGUF files as a source of weights under the names of the released
 * checkpoints, so that families bind from it as from safetensors. Internal to lib/model.
 */
#ifndef MT_MODEL_GGUF_NAMES_H
#define MT_MODEL_GGUF_NAMES_H

#include "model/gguf.h"

#define MT_GGUF_NAME_MAX 160

/* What a released name (of a thinker saved alone: no prefix) is called in GGUF. */
struct mt_gguf_name {
    char name[MT_GGUF_NAME_MAX];
    bool audio;     /* lies in the audio tower's file */
    int64_t expert; /* the so manieth slice of a stack, -1: all of it */
};
/* False: there is no such tensor in any GGUF. */
bool mt_gguf_name(struct mt_gguf_name *out, const char *released);

/*
 * text and audio become the weights', also on failure. audio NULL: the tower's tensors are made
 * from seed.
 */
int mt_weights_open_gguf(struct mt_weights **out, struct mt_gguf *text, struct mt_gguf *audio,
                         uint64_t seed, struct mt_err *e);

#endif
