/*
 * minicpm_talk.h: MiniCPM-o's duplex loop: what a unit feeds, draws and says. Internal to
 * lib/model.
 */
#ifndef MT_MINICPM_TALK_H
#define MT_MINICPM_TALK_H

#include "model/family.h"

/* The marks of the loop, in the order of mt_minicpm_mark_text. */
enum mt_minicpm_mark {
    MT_MARK_IM_START,
    MT_MARK_IM_END,
    MT_MARK_AUDIO_START,
    MT_MARK_AUDIO_END,
    MT_MARK_UNIT,
    MT_MARK_UNIT_END,
    MT_MARK_LISTEN,
    MT_MARK_TTS_BOS,
    MT_MARK_TTS_PAD,
    MT_MARK_CHUNK_EOS,
    MT_MARK_CHUNK_TTS_EOS,
    MT_MARK_TURN_EOS,
    MT_MARKS
};
extern const char *const mt_minicpm_mark_text[MT_MARKS];

enum { MT_MINICPM_DRAWS = 19 }; /* of a unit; its 20th slot is <|chunk_eos|> */

/* Tokens that are never drawn, but for a plain <|chunk_eos|>. */
struct mt_minicpm_ban {
    int32_t *id;
    int n;
};
/*
 * Of a model whose tokenizer is open and whose config is DIR/config.json: <|chunk_eos|>,
 * <|tts_pad|> and the bad_token_ids of DIR/tokenizer_config.json, where there is such a list. Ids
 * beyond the vocabulary can't be drawn as it is.
 */
int mt_minicpm_ban_load(struct mt_minicpm_ban *out, const struct mt_model *m,
                        const char *config_path, struct mt_err *e);

int mt_minicpm_talk_new(struct mt_talk **out, const struct mt_model *m,
                        const struct mt_minicpm_ban *ban, enum mt_mode mode, const char *system,
                        struct mt_err *e);

#endif
