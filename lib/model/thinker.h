/*
 * thinker.h: what the Qwen Omni families share around their own towers: where the configuration of
 * the thinker lies in a config.json, how its tensors are named, and what the engine is told about
 * it. Internal to lib/model.
 */
#ifndef MT_THINKER_H
#define MT_THINKER_H

#include "model/decoder.h"
#include "model/family.h"

struct mt_thinker {
    const json_t *json, *text, *audio; /* thinker_config, its text_config and audio_config */
    char at[MT_WHERE_MAX], text_at[MT_WHERE_MAX], audio_at[MT_WHERE_MAX]; /* where, for errors */
    char prefix[16];                                                      /* of its tensors */
};

/*
 * In a whole model's config, or as the root of a thinker saved alone, whose tensors have no prefix.
 * m: its weights are set.
 */
void mt_thinker_find(struct mt_thinker *t, const struct mt_model *m, const json_t *config,
                     const char *where);
/* m->info's fields of the text model, the placeholder's id and the rate of the mel. */
int mt_thinker_info(struct mt_model *m, const struct mt_thinker *t,
                    const struct mt_decoder_config *c, struct mt_err *e);

/* A synthetic model's special tokens: their ids stand in its config, each under its key. */
struct mt_thinker_mark {
    const char *text, *key;
};
int mt_thinker_tokenizer(struct mt_model *m, const struct mt_thinker *t,
                         const struct mt_thinker_mark *marks, int n, struct mt_err *e);

#endif
