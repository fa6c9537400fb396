/*
 * minicpm_o.c: MiniCPM-o-4.5: the Qwen3 text model under llm., the audio tower (minicpm_apm.c), the
 * live ear (minicpm_ear.c) and the duplex loop (minicpm_talk.c), which is its way of a live call:
 * it hears all the time and decides each second whether to speak. Its turn-based chat needs to be
 * told where a turn ends, and that is not a matter of the clock; here `--mode` says whether a unit
 * may end early. Its voice and its eyes (tts., vpm., resampler.) are not read.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "model/decoder.h"
#include "model/minicpm_apm.h"
#include "model/minicpm_ear.h"
#include "model/minicpm_talk.h"

struct omni {
    struct mt_decoder lm;
    struct mt_apm apm;
    struct mt_minicpm_ban ban;
};

/* The placeholder's id in the released vocabulary, for where there is no tokenizer to ask. */
#define UNK_RELEASED 128244

/* ---- configuration ---- */

/* The text model's fields stand at the root; one that is not there is as Qwen3Config has it. */
static int parse_text(const json_t *config, const char *where, struct mt_decoder_config *out,
                      struct mt_err *e)
{
    json_t *full = json_pack("{s:i,s:f}", "head_dim", 128, "rope_theta", 10000.0);
    const json_t *bias = json_object_get(config, "attention_bias");
    char at[MT_WHERE_MAX];
    int rc;

    if (!full || json_object_update(full, (json_t *)config) < 0) {
        json_decref(full);
        return mt_err_set(e, -ENOMEM, "out of memory");
    }
    snprintf(at, sizeof(at), "%s: root", where);
    rc = mt_decoder_config_parse(full, at, out, e);
    json_decref(full);
    if (rc < 0)
        return rc;
    if (bias && !json_is_false(bias) && !json_is_null(bias))
        return mt_err_set(e, -ENOTSUP, "%s.attention_bias is not supported", at);
    out->qk_norm = true;
    return 0;
}

/* ---- the tokenizer ---- */

/* In the released vocabulary the special tokens stand behind <|endoftext|>, each so far. */
static const struct {
    const char *text;
    int after;
} special[] = {
    {"<|endoftext|>", 0},  {"<|im_start|>", 1},       {"<|im_end|>", 2},
    {"<unit>", 40},        {"</unit>", 41},           {"<|audio_start|>", 54},
    {"<|audio|>", 55},     {"<|audio_end|>", 56},     {"<|tts_bos|>", 60},
    {"<|tts_eos|>", 61},   {"<|listen|>", 62},        {"<|speak|>", 63},
    {"<|turn_bos|>", 73},  {"<|turn_eos|>", 74},      {"<|chunk_eos|>", 75},
    {"<|chunk_bos|>", 76}, {"<|chunk_tts_eos|>", 78}, {"<|tts_pad|>", 79},
};

static int make_tokenizer(struct mt_model *m, const json_t *config, const char *where,
                          struct mt_err *e)
{
    struct mt_special mark[MT_COUNT(special) + 1];
    int64_t first, unk;
    int rc;

    if ((rc = mt_config_int(config, where, "endoftext", 0, m->info.vocab - 80, MT_NEED, &first,
                            e)) < 0 ||
        (rc = mt_config_int(config, where, "unk", 0, m->info.vocab - 1, MT_NEED, &unk, e)) < 0)
        return rc;
    for (size_t i = 0; i < MT_COUNT(special); i++)
        mark[i] = (struct mt_special){special[i].text, (int32_t)first + special[i].after};
    mark[MT_COUNT(special)] = (struct mt_special){"<unk>", (int32_t)unk};
    return mt_tokenizer_synth(&m->tokenizer, m->info.vocab, mark, MT_COUNT(mark), e);
}

/* ---- the model ---- */

static void fill_info(struct mt_model *m)
{
    const struct omni *o = m->own;
    const struct mt_decoder_config *c = &o->lm.cfg;

    mt_decoder_info(c, &m->info);
    m->info.sample_rate_hz = MT_MEL_RATE;
    m->info.beat_samples = m->info.frame_step = m->info.frame_min = MT_UNIT_SAMPLES;
    m->info.lookahead_samples = 0;
    m->info.encodes_apart = true;
    m->info.draws = MT_MINICPM_DRAWS;
}

static int open_model(struct mt_model *m, const json_t *config, const char *where, struct mt_err *e)
{
    struct mt_decoder_config lm;
    struct mt_apm_config apm;
    struct omni *o = calloc(1, sizeof(*o));
    int rc;

    m->own = o;
    if (!o)
        return mt_err_set(e, -ENOMEM, "out of memory");
    if ((rc = parse_text(config, where, &lm, e)) < 0 ||
        (rc = mt_apm_config_parse(config, where, &apm, e)) < 0)
        return rc;
    apm.hidden = lm.hidden;
    if ((rc = mt_decoder_init(&o->lm, &lm, "llm.", m->weights, m->be, &m->opts, e)) < 0 ||
        (rc = mt_apm_init(&o->apm, &apm, m->opts.kv_type, m->weights, m->be, e)) < 0)
        return rc;
    fill_info(m);
    if (m->synthetic && (rc = make_tokenizer(m, config, where, e)) < 0)
        return rc;
    m->info.audio_id = m->tokenizer ? mt_tokenizer_special(m->tokenizer, "<unk>") : -1;
    if (m->info.audio_id < 0)
        m->info.audio_id = UNK_RELEASED;
    return mt_minicpm_ban_load(&o->ban, m, where, e);
}

static void close_model(struct mt_model *m)
{
    struct omni *o = m->own;

    mt_decoder_free(&o->lm);
    mt_apm_free(&o->apm);
    free(o->ban.id);
    free(o);
    m->own = NULL;
}

static int talk_new(struct mt_talk **out, struct mt_model *m, enum mt_mode mode, const char *system,
                    struct mt_ear *ear, struct mt_err *e)
{
    const struct omni *o = m->own;

    (void)ear;
    return mt_minicpm_talk_new(out, m, &o->ban, mode, system, e);
}

static int ear_new(struct mt_ear **out, struct mt_model *m, int frame_samples, int backlog,
                   struct mt_err *e)
{
    struct omni *o = m->own;

    return mt_minicpm_ear_new(out, m, &o->apm, frame_samples, backlog, e);
}

static int state(const struct mt_model *m, int frame_samples, int backlog,
                 struct mt_state_kind out[MT_STATE_KINDS])
{
    const struct omni *o = m->own;

    return mt_minicpm_ear_state(m, &o->apm, frame_samples, backlog, out);
}

static int ear_rows_max(const struct mt_model *m, int frame_samples)
{
    const struct omni *o = m->own;

    return frame_samples / MT_UNIT_SAMPLES * mt_apm_rows(&o->apm, MT_UNIT_ROWS);
}

static void ear_skip(struct mt_ear *ear)
{
    struct omni *o = ear->m->own;

    mt_minicpm_ear_skip(&o->apm, ear);
}

static void ear_visit(struct mt_ear *ear, struct mt_state_io *io)
{
    struct omni *o = ear->m->own;

    mt_minicpm_ear_visit(&o->apm, ear, io);
}

static int encode(struct mt_model *m, struct mt_ear **ears, int n)
{
    struct omni *o = m->own;

    return mt_minicpm_ear_encode(&o->apm, ears, n);
}

static int embed_clip(struct mt_model *m, const float *pcm, int64_t n, float **rows,
                      int64_t *n_rows, int64_t *mel_frames, struct mt_err *e)
{
    struct omni *o = m->own;

    return mt_apm_clip(&o->apm, pcm, n, rows, n_rows, mel_frames, e);
}

static int step(struct mt_model *m, struct mt_kv *kv, const struct mt_step *s,
                struct mt_rows *logits)
{
    struct omni *o = m->own;

    return mt_decoder_step(&o->lm, kv, s, logits);
}

/*
 * Shapes for synth:NAME. The tiny one's table is shorter, so that its ear goes round in ten units.
 */
#define MINICPM(text, audio, ids)                                                                  \
    "{\"model_type\":\"minicpmo\",\"rms_norm_eps\":1e-6,\"rope_theta\":1000000.0,"                 \
    "\"max_position_embeddings\":40960,\"audio_pool_step\":5,\"audio_chunk_length\":1.0," text     \
    ",\"audio_config\":{\"num_mel_bins\":80," audio "}," ids "}"

#define LAYERS "num_hidden_layers"

static const struct mt_synth_shape shapes[] = {
    {"minicpm-o-4.5",
     MINICPM("\"vocab_size\":151748,\"hidden_size\":4096,\"num_hidden_layers\":36,"
             "\"num_attention_heads\":32,\"num_key_value_heads\":8,\"head_dim\":128,"
             "\"intermediate_size\":12288",
             "\"d_model\":1024,\"encoder_layers\":24,\"encoder_attention_heads\":16,"
             "\"encoder_ffn_dim\":4096,\"max_source_positions\":1500",
             "\"endoftext\":151643,\"unk\":128244"),
     LAYERS},
    {"minicpm-o-4.5-tiny",
     MINICPM("\"vocab_size\":2048,\"hidden_size\":128,\"num_hidden_layers\":4,"
             "\"num_attention_heads\":4,\"num_key_value_heads\":2,\"head_dim\":32,"
             "\"intermediate_size\":320",
             "\"d_model\":64,\"encoder_layers\":3,\"encoder_attention_heads\":2,"
             "\"encoder_ffn_dim\":256,\"max_source_positions\":500",
             "\"endoftext\":1968,\"unk\":1900"),
     LAYERS},
    {NULL, NULL, NULL},
};

static const char *const types[] = {"minicpmo", NULL};

const struct mt_family mt_family_minicpm_o = {
    .model_types = types,
    .shapes = shapes,
    .open = open_model,
    .close = close_model,
    .talk_new = talk_new,
    .ear_new = ear_new,
    .ear_free = mt_minicpm_ear_free,
    .ear_visit = ear_visit,
    .state = state,
    .ear_rows_max = ear_rows_max,
    .ear_skip = ear_skip,
    .encode = encode,
    .embed_clip = embed_clip,
    .step = step,
};
