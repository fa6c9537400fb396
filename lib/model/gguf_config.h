/*
 * gguf_config.h: which family a GGUF file is of, and its configuration in the form of a
 * config.json, as families read it. Internal to lib/model.
 */
#ifndef MT_MODEL_GGUF_CONFIG_H
#define MT_MODEL_GGUF_CONFIG_H

#include "model/gguf.h"

struct mt_gguf_arch {
    const char *name;       /* general.architecture */
    const char *model_type; /* of the family whose text model it is */
    bool qwen3;             /* its audio tower is Qwen3-Omni's, else Qwen2.5-Omni's */
    bool experts;
};

/* The special tokens around audio, and its placeholder, in this order: pad, start, end. */
enum { MT_GGUF_MARKS = 3 };
const char *const *mt_gguf_marks(const struct mt_gguf_arch *a);

/* What stands in for an audio tower's file. */
enum mt_tower {
    MT_TOWER_FILE,
    MT_TOWER_SYNTH, /* of the family's kind, in proportion as the released one's */
    MT_TOWER_NONE   /* the smallest that can be bound: nobody will hear through it */
};

/* NULL, with -ENOTSUP and the list in e, for an architecture that no family reads. */
const struct mt_gguf_arch *mt_gguf_arch(const struct mt_gguf *g, struct mt_err *e);
/*
 * *out is the caller's. audio is the tower's file, for MT_TOWER_FILE; ids those of the marks, -1
 * where there is none.
 */
int mt_gguf_config(json_t **out, const struct mt_gguf_arch *a, const struct mt_gguf *text,
                   enum mt_tower tower, const struct mt_gguf *audio,
                   const int32_t ids[MT_GGUF_MARKS], struct mt_err *e);

#endif
