/*
 * thinker.c: the thinker of a Qwen Omni model: its place in config.json, and its facts for the
 * engine.
 */
#include "model/thinker.h"

#include "model/bind.h"

void mt_thinker_find(struct mt_thinker *t, const struct mt_model *m, const json_t *config,
                     const char *where)
{
    const json_t *nested = json_object_get(config, "thinker_config");
    const char *in = nested ? "thinker_config." : "";

    *t = (struct mt_thinker){.json = nested ? nested : config};
    t->text = json_object_get(t->json, "text_config");
    t->audio = json_object_get(t->json, "audio_config");
    snprintf(t->at, sizeof(t->at), "%s: %s", where, nested ? "thinker_config" : "root");
    snprintf(t->text_at, sizeof(t->text_at), "%s: %stext_config", where, in);
    snprintf(t->audio_at, sizeof(t->audio_at), "%s: %saudio_config", where, in);
    if (mt_weights_has(m->weights, "thinker.model.embed_tokens.weight"))
        snprintf(t->prefix, sizeof(t->prefix), "thinker.");
}

int mt_thinker_info(struct mt_model *m, const struct mt_thinker *t,
                    const struct mt_decoder_config *c, struct mt_err *e)
{
    int64_t audio_id;
    const char *key =
        json_object_get(t->json, "audio_token_index") ? "audio_token_index" : "audio_token_id";
    /* An id outside the table is a model that never hears; teacher forcing of text still works. */
    int rc = mt_config_int(t->json, t->at, key, 0, 1 << 24, MT_NEED, &audio_id, e);

    if (rc < 0)
        return rc;
    mt_decoder_info(c, &m->info);
    m->info.audio_id = (int32_t)audio_id;
    m->info.sample_rate_hz = MT_MEL_RATE;
    m->info.lookahead_samples = MT_MEL_LOOKAHEAD;
    m->info.encodes_apart = true;
    return 0;
}

int mt_thinker_tokenizer(struct mt_model *m, const struct mt_thinker *t,
                         const struct mt_thinker_mark *marks, int n, struct mt_err *e)
{
    struct mt_special special[16];

    for (int i = 0; i < n; i++) {
        int64_t id;
        int rc = mt_config_int(t->json, t->at, marks[i].key, 0, m->info.vocab - 1, MT_NEED, &id, e);
        if (rc < 0)
            return rc;
        special[i] = (struct mt_special){marks[i].text, (int32_t)id};
    }
    return mt_tokenizer_synth(&m->tokenizer, m->info.vocab, special, n, e);
}
