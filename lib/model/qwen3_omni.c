/*
 * qwen3_omni.c: the Qwen3-Omni thinker: log-mel, the audio tower of aut.c, a text model with
 * experts.
 *
 * Offline a clip is cut into whole windows of 8 s, as the library does it. Live, a window's end is
 * not known when its first second is due: each chunk attends over itself and what its window has
 * already heard, whose keys wait in a cache of the ear. So a second always costs the same, and its
 * rows never change afterwards. A frame is cut into chunks as a clip is; a chunk that the open
 * window has no rows left for begins the next one.
 */
#include <errno.h>
#include <stdlib.h>

#include "model/aut.h"
#include "model/mel_ear.h"
#include "model/thinker.h"

enum {
    CLIP_MAX_S = 2400,  /* of audio in 32768 positions, with room for words */
    PASS_CHUNKS = 8,    /* chunks of a pass, where a window hasn't more */
    FRAME_MIN_HOPS = 8, /* mel frames of one row */
};

struct omni {
    struct mt_decoder lm;
    struct mt_aut tower;
    struct mt_mel *mel;         /* of clips … */
    struct mt_mel_pass mels;    /* … and of live ears */
    int *iota;                  /* [a pass's rows] */
    struct mt_aut_chunk *chunk; /* [a pass's chunks] */
    struct mt_run *run;
    struct omni_ear **owner;
};

struct omni_ear {
    struct mt_mel_ear front;
    struct mt_kv *kv; /* the open window's keys and values */
    bool whole;       /* a whole chunk was heard: a short one has something before it */
    int rows;         /* of the open window, skipped frames included … */
    int kept;         /* … and in its cache */
    int in_pass;      /* chunks of this ear in the pass being filled */
};

/* ---- live audio ---- */

static struct mt_kv_shape ear_kv_shape(const struct omni *o)
{
    return mt_encoder_kv_shape(&o->tower.cfg.enc, o->tower.cfg.window_rows, MT_F32);
}

static int ear_rows_max(const struct mt_model *m, int frame_samples)
{
    const struct omni *o = m->own;

    /* A last, shorter frame never has more: rows grow with frames. */
    return (int)mt_aut_rows(&o->tower.cfg, frame_samples / MT_MEL_HOP);
}

static int state(const struct mt_model *m, int frame_samples, int backlog,
                 struct mt_state_kind out[MT_STATE_KINDS])
{
    struct mt_kv_shape s = ear_kv_shape(m->own);

    out[0] = (struct mt_state_kind){"audio", (int64_t)sizeof(struct omni_ear) +
                                                 mt_mel_ear_bytes(m, frame_samples, backlog)};
    out[1] = (struct mt_state_kind){"encoder", mt_kv_block_bytes(&s)};
    return 2;
}

static void ear_free(struct mt_ear *base)
{
    struct omni_ear *ear = (struct omni_ear *)base;

    if (ear->kv)
        base->m->be->ops->kv_free(base->m->be, ear->kv);
    mt_mel_ear_done(&ear->front);
    free(ear);
}

static int ear_new(struct mt_ear **out, struct mt_model *m, int frame_samples, int backlog,
                   struct mt_err *e)
{
    struct omni_ear *ear = calloc(1, sizeof(*ear));
    struct mt_kv_shape s = ear_kv_shape(m->own);
    int rc;

    *out = NULL;
    if (!ear)
        return mt_err_set(e, -ENOMEM, "out of memory");
    rc = mt_mel_ear_init(&ear->front, m, frame_samples, backlog, e);
    if (rc == 0 && (rc = m->be->ops->kv_new(m->be, &ear->kv, &s, 1)) < 0)
        mt_err_set(e, rc, "no memory for an audio window of %d rows", s.block_tokens);
    if (rc < 0) {
        ear_free(&ear->front.base);
        return rc;
    }
    *out = &ear->front.base;
    return 0;
}

static struct mt_kv_view ear_view(const struct omni_ear *ear)
{
    static const int32_t block;

    return (struct mt_kv_view){.blocks = &block,
                               .ring_blocks = 1,
                               .window = INT64_MAX,
                               .see = MT_SEE_CHUNK,
                               .kv = ear->kv};
}

static void ear_visit(struct mt_ear *base, struct mt_state_io *io)
{
    struct omni_ear *ear = (struct omni_ear *)base;
    struct mt_kv_shape shape = ear_kv_shape(base->m->own);
    struct mt_kv_view view = ear_view(ear);

    mt_mel_ear_visit(&ear->front, io);
    mt_state_bool(io, "a whole chunk before", &ear->whole);
    mt_state_int(io, "rows of the window", &ear->rows, 0, shape.block_tokens);
    mt_state_int(io, "rows of the window kept", &ear->kept, 0, ear->rows);
    mt_state_kv(io, "the audio window", base->m->be, ear->kv, &shape, &view, 0, ear->kept, 0);
}

/*
 * The next chunk of the frame in work, of which `left` mel frames are left, as chunk i of the pass
 * being filled.
 */
static struct mt_aut_chunk ear_chunk(struct omni_ear *ear, int i, int left)
{
    struct omni *o = ear->front.base.m->own;
    const struct mt_aut_config *c = &o->tower.cfg;
    struct mt_aut_chunk k = {.frames = left < c->chunk ? left : c->chunk, .padded = ear->whole};

    mt_mel_pass_add(&o->mels, &ear->front, i * c->chunk, k.frames);
    ear->whole |= k.frames == c->chunk;
    return k;
}

/* Does a chunk of so many mel frames begin the next window? */
static bool window_ends(const struct omni_ear *ear, int frames)
{
    const struct omni *o = ear->front.base.m->own;

    return ear->rows + mt_aut_rows(&o->tower.cfg, frames) > o->tower.cfg.window_rows;
}

/*
 * Nothing of a skipped frame is in the cache, so that it costs no more than its mel; the window
 * goes on as if it had been encoded.
 */
static void ear_skip(struct mt_ear *base)
{
    struct omni_ear *ear = (struct omni_ear *)base;
    struct omni *o = base->m->own;

    for (int left = mt_mel_ear_next(&ear->front); left > 0;) {
        struct mt_aut_chunk k = ear_chunk(ear, 0, left);
        mt_mel_pass_run(&o->mels, mt_aut_mel(&o->tower, 0));
        if (window_ends(ear, k.frames))
            ear->rows = ear->kept = 0;
        ear->rows += (int)mt_aut_rows(&o->tower.cfg, k.frames);
        left -= k.frames;
    }
    base->taken++;
    base->n_rows = base->mel_frames = 0;
}

/* Encode the n chunks gathered so far and give each ear its rows. */
static void run_pass(struct mt_model *m, int n)
{
    struct omni *o = m->own;

    if (n == 0)
        return;
    mt_mel_pass_run(&o->mels, mt_aut_mel(&o->tower, 0));
    int rows = mt_aut_stem(&o->tower, m->be, o->chunk, n);
    for (int i = 0; i < n; i++) {
        struct omni_ear *ear = o->owner[i];
        const struct mt_aut_chunk *k = &o->chunk[i];
        o->run[i] = (struct mt_run){k->row, k->rows, ear->kept, ear_view(ear)};
        ear->kept += k->rows;
    }
    mt_aut_layers(&o->tower, m->be, rows, &(struct mt_batch){rows, n, o->run});
    for (int i = 0; i < n; i++) {
        struct mt_ear *base = &o->owner[i]->front.base;
        m->be->ops->gather(m->be, mt_rows_from(base->rows, base->n_rows),
                           mt_rows_from(o->tower.out, o->chunk[i].row), o->iota, o->chunk[i].rows);
        base->n_rows += o->chunk[i].rows;
        o->owner[i]->in_pass = 0;
    }
}

static int encode(struct mt_model *m, struct mt_ear **ears, int n)
{
    struct omni *o = m->own;
    int k = 0; /* chunks in the pass */

    for (int i = 0; i < n; i++) {
        struct omni_ear *ear = (struct omni_ear *)ears[i];
        ears[i]->n_rows = 0;
        ears[i]->mel_frames = mt_mel_ear_next(&ear->front);
        for (int left = ears[i]->mel_frames; left > 0; left -= o->chunk[k++].frames) {
            int next = left < o->tower.cfg.chunk ? left : o->tower.cfg.chunk;
            bool ends = window_ends(ear, next);
            /* A chunk of the old window still needs its keys, which the new one overwrites. */
            if (k == o->tower.chunks || (ends && ear->in_pass > 0)) {
                run_pass(m, k);
                k = 0;
            }
            if (ends)
                ear->rows = ear->kept = 0;
            ear->rows += (int)mt_aut_rows(&o->tower.cfg, next);
            ear->in_pass++;
            o->owner[k] = ear;
            o->chunk[k] = ear_chunk(ear, k, left);
        }
        ears[i]->taken++;
    }
    run_pass(m, k);
    return 0;
}

/* ---- offline ---- */

static int embed_clip(struct mt_model *m, const float *pcm, int64_t n, float **rows,
                      int64_t *n_rows, int64_t *mel_frames, struct mt_err *e)
{
    struct omni *o = m->own;
    const struct mt_aut_config *c = &o->tower.cfg;
    int64_t frames = mt_mel_clip_frames(MT_MEL_REFLECTED, n), total = mt_aut_rows(c, frames);
    float *mel, *out;
    int rc;

    *rows = NULL;
    const struct mt_clip_rule rule = {MT_MEL_REFLECTED, c->bands, CLIP_MAX_S, MT_MEL_FFT / 2 + 1};
    if ((rc = mt_mel_clip_new(m, o->mel, &rule, pcm, n, total, &mel, &out, e)) < 0)
        return rc;
    int64_t at = 0;
    for (int64_t f = 0; f < frames;) { /* a window in each turn */
        int k = 0;
        for (; k < c->window_chunks && f < frames; k++) {
            int len = (int)(frames - f < c->chunk ? frames - f : c->chunk);
            m->be->ops->rows_put(m->be, mt_aut_mel(&o->tower, k), mel + f * c->bands, len);
            o->chunk[k] = (struct mt_aut_chunk){.frames = len, .padded = frames >= c->chunk};
            f += len;
        }
        int got = mt_aut_stem(&o->tower, m->be, o->chunk, k);
        mt_aut_layers(&o->tower, m->be, got, NULL);
        m->be->ops->rows_get(m->be, out + at * m->info.hidden, o->tower.out, got);
        at += got;
    }
    free(mel);
    *rows = out;
    *n_rows = total;
    *mel_frames = frames;
    return 0;
}

/* ---- the model ---- */

static int refuse_bias(const json_t *text, const char *where, struct mt_err *e)
{
    const json_t *bias = json_object_get(text, "attention_bias");

    if (bias && !json_is_false(bias) && !json_is_null(bias))
        return mt_err_set(e, -ENOTSUP, "%s.attention_bias is not supported", where);
    return 0;
}

static int open_model(struct mt_model *m, const json_t *config, const char *where, struct mt_err *e)
{
    static const struct mt_thinker_mark marks[] = {
        {"<|endoftext|>", "endoftext"},
        {"<|im_start|>", "im_start"},
        {"<|im_end|>", "im_end"},
        {"<|audio_pad|>", "audio_token_id"},
        {"<|audio_start|>", "audio_start_token_id"},
        {"<|audio_end|>", "audio_end_token_id"},
    };
    struct mt_aut_config tower;
    struct mt_decoder_config lm;
    struct mt_thinker t;
    struct omni *o = calloc(1, sizeof(*o));
    struct mt_binder b = {.w = m->weights, .be = m->be, .e = e};
    char prefix[40];
    int rc;

    m->own = o;
    if (!o)
        return mt_err_set(e, -ENOMEM, "out of memory");
    mt_thinker_find(&t, m, config, where);
    if ((rc = mt_decoder_config_parse(t.text, t.text_at, &lm, e)) < 0 ||
        (rc = mt_moe_config_parse(t.text, t.text_at, lm.layers, &lm.moe, e)) < 0 ||
        (rc = refuse_bias(t.text, t.text_at, e)) < 0 ||
        (rc = mt_aut_config_parse(t.audio, t.audio_at, &tower, e)) < 0)
        return rc;
    lm.qk_norm = true;
    if (tower.out_dim != lm.hidden)
        return mt_err_set(e, -EPROTO, "%s.output_dim %d is not text_config.hidden_size %d",
                          t.audio_at, tower.out_dim, lm.hidden);
    if ((rc = mt_decoder_init(&o->lm, &lm, t.prefix, m->weights, m->be, &m->opts, e)) < 0)
        return rc;
    int chunks = tower.window_chunks > PASS_CHUNKS ? tower.window_chunks : PASS_CHUNKS;
    int rows = chunks * tower.chunk_rows;
    snprintf(prefix, sizeof(prefix), "%saudio_tower.", t.prefix);
    mt_aut_bind(&o->tower, &tower, &b, prefix, chunks);
    if (b.rc < 0)
        return b.rc;
    if ((rc = mt_mel_new(&o->mel, tower.bands, e)) < 0 ||
        (rc = mt_mel_pass_init(&o->mels, m->be, tower.bands, chunks, chunks * tower.chunk, chunks,
                               e)) < 0 ||
        (rc = mt_thinker_info(m, &t, &lm, e)) < 0)
        return rc;
    m->info.beat_samples = tower.chunk * MT_MEL_HOP;
    m->info.frame_step = MT_MEL_HOP;
    m->info.frame_min = FRAME_MIN_HOPS * MT_MEL_HOP;
    o->iota = calloc((size_t)rows, sizeof(*o->iota));
    o->chunk = calloc((size_t)chunks, sizeof(*o->chunk));
    o->run = calloc((size_t)chunks, sizeof(*o->run));
    o->owner = calloc((size_t)chunks, sizeof(struct omni_ear *));
    if (!o->iota || !o->chunk || !o->run || !o->owner)
        return mt_err_set(e, -ENOMEM, "out of memory");
    for (int i = 0; i < rows; i++)
        o->iota[i] = i;
    return m->synthetic ? mt_thinker_tokenizer(m, &t, marks, MT_COUNT(marks), e) : 0;
}

static void close_model(struct mt_model *m)
{
    struct omni *o = m->own;

    if (!o)
        return;
    mt_decoder_free(&o->lm);
    mt_aut_free(&o->tower, m->be);
    mt_mel_free(&o->mel);
    mt_mel_pass_free(&o->mels);
    free(o->iota);
    free(o->chunk);
    free(o->run);
    free(o->owner);
    free(o);
    m->own = NULL;
}

static int talk_new(struct mt_talk **out, struct mt_model *m, enum mt_mode mode, const char *system,
                    struct mt_ear *ear, struct mt_err *e)
{
    static const struct mt_chatml chatml = {"<|audio_start|>", "<|audio_end|>", NULL};

    (void)ear;
    return mt_chatml_talk(out, m->tokenizer, &chatml, mode, system, e);
}

static int step(struct mt_model *m, struct mt_kv *kv, const struct mt_step *s,
                struct mt_rows *logits)
{
    struct omni *o = m->own;

    return mt_decoder_step(&o->lm, kv, s, logits);
}

#define OMNI(text, audio, ids)                                                                     \
    "{\"model_type\":\"qwen3_omni_moe\",\"thinker_config\":{\"text_config\":{" text                \
    ",\"rope_theta\":1000000.0,\"rms_norm_eps\":1e-6,\"norm_topk_prob\":true,"                     \
    "\"decoder_sparse_step\":1,\"mlp_only_layers\":[],\"max_position_embeddings\":65536,"          \
    "\"rope_scaling\":{\"mrope_interleaved\":true,\"rope_type\":\"default\"}},"                    \
    "\"audio_config\":{\"num_mel_bins\":128,\"n_window\":50,\"n_window_infer\":800,"               \
    "\"max_source_positions\":1500," audio "}," ids "}}"

#define LAYERS "thinker_config.text_config.num_hidden_layers"

static const struct mt_synth_shape shapes[] = {
    {"qwen3-omni-30b",
     OMNI("\"vocab_size\":152064,\"hidden_size\":2048,\"num_hidden_layers\":48,"
          "\"num_attention_heads\":32,\"num_key_value_heads\":4,\"head_dim\":128,"
          "\"intermediate_size\":768,\"num_experts\":128,\"num_experts_per_tok\":8,"
          "\"moe_intermediate_size\":768",
          "\"d_model\":1280,\"encoder_layers\":32,\"encoder_attention_heads\":20,"
          "\"encoder_ffn_dim\":5120,\"downsample_hidden_size\":480,\"output_dim\":2048",
          "\"audio_token_id\":151675,\"audio_start_token_id\":151669,\"audio_end_token_id\":151670,"
          "\"endoftext\":151643,\"im_start\":151644,\"im_end\":151645"),
     LAYERS},
    {"qwen3-omni-30b-tiny",
     OMNI("\"vocab_size\":2048,\"hidden_size\":192,\"num_hidden_layers\":4,"
          "\"num_attention_heads\":6,\"num_key_value_heads\":2,\"head_dim\":32,"
          "\"intermediate_size\":96,\"num_experts\":16,\"num_experts_per_tok\":4,"
          "\"moe_intermediate_size\":96",
          "\"d_model\":128,\"encoder_layers\":4,\"encoder_attention_heads\":4,"
          "\"encoder_ffn_dim\":512,\"downsample_hidden_size\":24,\"output_dim\":192",
          "\"audio_token_id\":2045,\"audio_start_token_id\":2046,\"audio_end_token_id\":2047,"
          "\"endoftext\":2042,\"im_start\":2043,\"im_end\":2044"),
     LAYERS},
    {NULL, NULL, NULL},
};

static const char *const types[] = {"qwen3_omni_moe", "qwen3_omni_moe_thinker", NULL};

const struct mt_family mt_family_qwen3_omni = {
    .model_types = types,
    .shapes = shapes,
    .open = open_model,
    .close = close_model,
    .talk_new = talk_new,
    .ear_new = ear_new,
    .ear_free = ear_free,
    .ear_visit = ear_visit,
    .state = state,
    .ear_rows_max = ear_rows_max,
    .ear_skip = ear_skip,
    .encode = encode,
    .embed_clip = embed_clip,
    .step = step,
};
