/*
 * qwen2_5_omni.c: the Qwen2.5-Omni thinker: log-mel, audio tower, text model.
 *
 *   mel [T, 128] in blocks of 200 frames (2 s), each block an item of its own:
 *   gelu(conv1 k3 s1) -> gelu(conv2 k3 s2) + sinusoid rows 0.. -> layers of
 *     { x += out attention(LN x), x += fc2 gelu(fc1 LN x) }, bidirectional inside the block
 *   -> mean of pairs -> ln_post -> proj: 25 rows a second, in place of the <|AUDIO|> placeholders.
 *
 * Live, a block's clamp knows the maximum so far only; offline, the clip's.
 */
#include <errno.h>
#include <stdlib.h>

#include "model/bind.h"
#include "model/encoder.h"
#include "model/mel_ear.h"
#include "model/thinker.h"

enum {
    CLIP_MAX_S = 300,    /* the authors' extractor cuts a clip there */
    BLOCKS_AT_ONCE = 8,  /* full blocks in one pass of the tower … */
    PASS_BLOCKS = 16,    /* … and blocks at all */
    BLOCK_MIN_FRAMES = 4 /* mel frames that surely give a row */
};

struct tower {
    int bands, d_model, n_window, out_dim;
    struct mt_encoder enc;
    struct mt_mat *conv1_w, *conv1_b, *conv2_w, *conv2_b, *post_w, *post_b, *proj_w, *proj_b;
    struct mt_mat *sinusoid;
    /* One pass: mel_rows mel frames, half as many positions, a quarter as many rows out. */
    int mel_rows;
    struct mt_rows mel, c1, c1_scratch, x, c2_scratch, pooled, out;
};

struct omni {
    struct mt_decoder lm;
    struct tower tower;
    struct mt_mel *mel;      /* of clips … */
    struct mt_mel_pass mels; /* … and of live ears */
    float *sinusoid;
    struct mt_span *span; /* of one pass: at most mel_rows / BLOCK_MIN_FRAMES blocks */
    int *iota;
};

/* ---- configuration ---- */

static int parse_tower(const json_t *audio, const char *where, struct tower *t,
                       struct mt_encoder_config *enc, struct mt_err *e)
{
    int64_t bands, window, out, positions;
    int rc;

    if ((rc = mt_encoder_config_parse(audio, where, enc, e)) < 0 ||
        (rc = mt_config_int(audio, where, "num_mel_bins", 1, 512, 128, &bands, e)) < 0 ||
        (rc = mt_config_int(audio, where, "n_window", 4, 1500, 100, &window, e)) < 0 ||
        (rc = mt_config_int(audio, where, "output_dim", 2, 1 << 17, MT_NEED, &out, e)) < 0 ||
        (rc = mt_config_int(audio, where, "max_source_positions", 1, 1 << 16, 1500, &positions,
                            e)) < 0)
        return rc;
    if (window % 2 || window > positions)
        return mt_err_set(e, -EPROTO, "%s: n_window %lld is odd or above max_source_positions %lld",
                          where, (long long)window, (long long)positions);
    t->bands = (int)bands;
    t->d_model = enc->d_model;
    t->n_window = (int)window;
    t->out_dim = (int)out;
    return 0;
}

/*
 * Rows out of a block of t mel frames: conv2 halves (rounded up), the pooling halves (rounded
 * down).
 */
static int block_rows(int t)
{
    return t < 1 ? 0 : ((t - 1) / 2 + 1) / 2;
}

static int block_frames(const struct omni *o)
{
    return 2 * o->tower.n_window;
}

/* ---- tower ---- */

static int bind_tower(struct omni *o, const struct mt_encoder_config *enc, struct mt_binder *b,
                      const char *prefix)
{
    struct tower *t = &o->tower;
    int d = t->d_model, n = t->n_window, rows = BLOCKS_AT_ONCE * block_frames(o), half = rows / 2;
    char tower[64];

    t->mel_rows = rows;
    t->conv1_w = mt_bind_conv(b, d, t->bands, 3, "%saudio_tower.conv1.weight", prefix);
    t->conv1_b = mt_bind_vector(b, d, "%saudio_tower.conv1.bias", prefix);
    t->conv2_w = mt_bind_conv(b, d, d, 3, "%saudio_tower.conv2.weight", prefix);
    t->conv2_b = mt_bind_vector(b, d, "%saudio_tower.conv2.bias", prefix);
    snprintf(tower, sizeof(tower), "%saudio_tower.", prefix);
    mt_encoder_bind(&t->enc, enc, b, tower, half);
    t->post_w = mt_bind_vector(b, d, "%saudio_tower.ln_post.weight", prefix);
    t->post_b = mt_bind_vector(b, d, "%saudio_tower.ln_post.bias", prefix);
    t->proj_w = mt_bind_matrix(b, t->out_dim, d, "%saudio_tower.proj.weight", prefix);
    t->proj_b = mt_bind_vector(b, t->out_dim, "%saudio_tower.proj.bias", prefix);
    t->sinusoid = mt_encoder_sinusoid(b, &o->sinusoid, n, d);
    t->mel = mt_bind_rows(b, rows, t->bands);
    t->c1 = mt_bind_rows(b, rows, d);
    t->c1_scratch = mt_bind_rows(b, rows, 3 * t->bands);
    t->x = mt_bind_rows(b, half, d);
    t->c2_scratch = mt_bind_rows(b, half, 3 * d);
    t->pooled = mt_bind_rows(b, half / 2, d);
    t->out = mt_bind_rows(b, half / 2, t->out_dim);
    return b->rc;
}

static void free_tower(struct mt_backend *be, struct tower *t)
{
    struct mt_mat **mats[] = {&t->conv1_w, &t->conv1_b, &t->conv2_w, &t->conv2_b, &t->post_w,
                              &t->post_b,  &t->proj_w,  &t->proj_b,  &t->sinusoid};
    struct mt_rows *rows[] = {&t->mel,        &t->c1,     &t->c1_scratch, &t->x,
                              &t->c2_scratch, &t->pooled, &t->out};

    mt_encoder_free(&t->enc, be);
    for (size_t j = 0; j < MT_COUNT(mats); j++)
        mt_unbind(be, mats[j]);
    for (size_t j = 0; j < MT_COUNT(rows); j++)
        mt_unbind_rows(be, rows[j]);
}

/*
 * One pass over n blocks whose scaled mel lies in tower.mel, one block behind the other. The spans
 * become those of the positions before pooling; half of each, rounded down, are its rows in
 * tower.out.
 */
static void run_tower(struct mt_backend *be, struct omni *o, struct mt_span *span, int n)
{
    const struct mt_ops *op = be->ops;
    struct tower *t = &o->tower;
    int rows = 0;

    op->conv1d(be, t->c1, t->mel, t->conv1_w, t->conv1_b, 3, 1, 1, MT_ACT_GELU, span, n,
               t->c1_scratch);
    op->conv1d(be, t->x, t->c1, t->conv2_w, t->conv2_b, 3, 2, 1, MT_ACT_GELU, span, n,
               t->c2_scratch);
    for (int i = 0, row = 0; i < n; i++) {
        span[i] = (struct mt_span){row, (span[i].n - 1) / 2 + 1};
        row += span[i].n;
        rows += span[i].n / 2;
    }
    op->add_positions(be, t->x, t->sinusoid, span, n);
    mt_encoder_run(&t->enc, be, t->x, span, n);
    op->mean_rows(be, t->pooled, t->x, 2, span, n);
    if (rows == 0)
        return;
    op->layer_norm(be, t->pooled, t->pooled, t->post_w, t->post_b, MT_ENCODER_EPS, rows);
    op->linear(be, t->out, t->pooled, t->proj_w, t->proj_b, MT_ACT_NONE, MT_NO_ROWS, rows);
}

/* ---- live audio ---- */

static int ear_rows_max(const struct mt_model *m, int frame_samples)
{
    const struct omni *o = m->own;
    int frames = frame_samples / MT_MEL_HOP, block = block_frames(o);

    /*
     * A last, shorter frame never has more: rows grow with frames, and its padding stays below a
     * frame.
     */
    return frames / block * block_rows(block) + block_rows(frames % block);
}

static int state(const struct mt_model *m, int frame_samples, int backlog,
                 struct mt_state_kind out[MT_STATE_KINDS])
{
    out[0] = (struct mt_state_kind){"audio", (int64_t)sizeof(struct mt_mel_ear) +
                                                 mt_mel_ear_bytes(m, frame_samples, backlog)};
    return 1;
}

static int ear_new(struct mt_ear **out, struct mt_model *m, int frame_samples, int backlog,
                   struct mt_err *e)
{
    const struct omni *o = m->own;
    int rest = frame_samples / MT_MEL_HOP % block_frames(o);
    struct mt_mel_ear *ear = calloc(1, sizeof(*ear));
    int rc;

    *out = NULL;
    if (!ear)
        return mt_err_set(e, -ENOMEM, "out of memory");
    rc = mt_mel_ear_init(ear, m, frame_samples, backlog, e);
    if (rc == 0 && rest && rest < BLOCK_MIN_FRAMES)
        rc = mt_err_set(e, -EINVAL, "a frame of %.0f ms leaves a block of %d ms (at least %d ms)",
                        1e3 * frame_samples / MT_MEL_RATE, rest * 10, BLOCK_MIN_FRAMES * 10);
    if (rc < 0) {
        mt_mel_ear_done(ear);
        free(ear);
        return rc;
    }
    *out = &ear->base;
    return 0;
}

static void ear_free(struct mt_ear *base)
{
    mt_mel_ear_done((struct mt_mel_ear *)base);
    free(base);
}

static void ear_visit(struct mt_ear *base, struct mt_state_io *io)
{
    mt_mel_ear_visit((struct mt_mel_ear *)base, io);
}

/* Mel frames of the frame that comes next; its last block has BLOCK_MIN_FRAMES at least. */
static int ear_next_frames(const struct mt_ear *base)
{
    const struct omni *o = base->m->own;
    int frames = mt_mel_ear_next((const struct mt_mel_ear *)base);
    int rest = frames % block_frames(o);

    return rest && rest < BLOCK_MIN_FRAMES ? frames - rest + BLOCK_MIN_FRAMES : frames;
}

/*
 * The next block of the frame in work, of which `left` mel frames are left, goes to the mel's rows
 * row..; returns its length.
 */
static int ear_block(struct mt_mel_ear *ear, int row, int left)
{
    struct omni *o = ear->base.m->own;
    int n = left < block_frames(o) ? left : block_frames(o);

    mt_mel_pass_add(&o->mels, ear, row, n);
    return n;
}

static void ear_skip(struct mt_ear *base)
{
    struct omni *o = base->m->own;

    for (int left = ear_next_frames(base); left > 0;) {
        left -= ear_block((struct mt_mel_ear *)base, 0, left);
        mt_mel_pass_run(&o->mels, o->tower.mel);
    }
    base->taken++;
    base->n_rows = base->mel_frames = 0;
}

/* A pass being filled: which ear each block belongs to. */
struct pass {
    struct mt_model *m;
    struct mt_ear *owner[PASS_BLOCKS];
    int n, rows; /* blocks, mel rows */
};

static void pass_run(struct pass *p)
{
    struct omni *o = p->m->own;
    int at = 0;

    if (p->n == 0)
        return;
    mt_mel_pass_run(&o->mels, o->tower.mel);
    run_tower(p->m->be, o, o->span, p->n);
    for (int i = 0; i < p->n; i++) { /* run_tower left the positions before pooling in the spans */
        struct mt_ear *ear = p->owner[i];
        int rows = o->span[i].n / 2;
        p->m->be->ops->gather(p->m->be, mt_rows_from(ear->rows, ear->n_rows),
                              mt_rows_from(o->tower.out, at), o->iota, rows);
        ear->n_rows += rows;
        at += rows;
    }
    p->n = p->rows = 0;
}

static int encode(struct mt_model *m, struct mt_ear **ears, int n)
{
    struct omni *o = m->own;
    struct pass p = {.m = m};

    for (int i = 0; i < n; i++) {
        struct mt_mel_ear *ear = (struct mt_mel_ear *)ears[i];
        ears[i]->n_rows = 0;
        ears[i]->mel_frames = ear_next_frames(ears[i]);
        for (int left = ear_next_frames(ears[i]); left > 0;) {
            int want = left < block_frames(o) ? left : block_frames(o);
            if (p.n == (int)MT_COUNT(p.owner) || p.rows + want > o->tower.mel_rows)
                pass_run(&p);
            int got = ear_block(ear, p.rows, left);
            p.owner[p.n] = ears[i];
            o->span[p.n++] = (struct mt_span){p.rows, got};
            p.rows += got;
            left -= got;
        }
        ears[i]->taken++;
    }
    pass_run(&p);
    return 0;
}

/* ---- offline ---- */

static int embed_clip(struct mt_model *m, const float *pcm, int64_t n, float **rows,
                      int64_t *n_rows, int64_t *mel_frames, struct mt_err *e)
{
    struct omni *o = m->own;
    int64_t frames = mt_mel_clip_frames(MT_MEL_PADDED, n), total = 0, at = 0;
    int bands = o->tower.bands, block = block_frames(o), rc;
    float *mel, *out;

    *rows = NULL;
    for (int64_t f = 0; f < frames; f += block)
        total += block_rows((int)(frames - f < block ? frames - f : block));
    const struct mt_clip_rule rule = {MT_MEL_PADDED, bands, CLIP_MAX_S, 2 * MT_MEL_HOP + 1};
    if ((rc = mt_mel_clip_new(m, o->mel, &rule, pcm, n, total, &mel, &out, e)) < 0)
        return rc;
    for (int64_t f = 0; f < frames; f += block) {
        int t = (int)(frames - f < block ? frames - f : block);
        struct mt_span span = {0, t};
        if (block_rows(t) == 0)
            continue;
        m->be->ops->rows_put(m->be, o->tower.mel, mel + f * bands, t);
        run_tower(m->be, o, &span, 1);
        m->be->ops->rows_get(m->be, out + at * m->info.hidden, o->tower.out, block_rows(t));
        at += block_rows(t);
    }
    free(mel);
    *rows = out;
    *n_rows = total;
    *mel_frames = frames;
    return 0;
}

/* ---- the model ---- */

static int open_model(struct mt_model *m, const json_t *config, const char *where, struct mt_err *e)
{
    static const struct mt_thinker_mark marks[] = {
        {"<|endoftext|>", "endoftext"},
        {"<|im_start|>", "im_start"},
        {"<|im_end|>", "im_end"},
        {"<|AUDIO|>", "audio_token_index"},
        {"<|audio_bos|>", "audio_start_token_id"},
        {"<|audio_eos|>", "audio_end_token_id"},
    };
    struct mt_encoder_config enc;
    struct mt_decoder_config lm;
    struct mt_thinker t;
    struct omni *o = calloc(1, sizeof(*o));
    struct mt_binder b = {.w = m->weights, .be = m->be, .e = e};
    int rc;

    m->own = o;
    if (!o)
        return mt_err_set(e, -ENOMEM, "out of memory");
    mt_thinker_find(&t, m, config, where);
    if ((rc = mt_decoder_config_parse(t.text, t.text_at, &lm, e)) < 0 ||
        (rc = parse_tower(t.audio, t.audio_at, &o->tower, &enc, e)) < 0)
        return rc;
    lm.qkv_bias = true;
    if (o->tower.out_dim != lm.hidden)
        return mt_err_set(e, -EPROTO, "%s.output_dim %d is not text_config.hidden_size %d",
                          t.audio_at, o->tower.out_dim, lm.hidden);
    if ((rc = mt_decoder_init(&o->lm, &lm, t.prefix, m->weights, m->be, &m->opts, e)) < 0 ||
        (rc = bind_tower(o, &enc, &b, t.prefix)) < 0 ||
        (rc = mt_mel_new(&o->mel, o->tower.bands, e)) < 0 ||
        (rc = mt_thinker_info(m, &t, &lm, e)) < 0)
        return rc;
    m->info.beat_samples = block_frames(o) * MT_MEL_HOP;
    m->info.frame_step = 2 * MT_MEL_HOP; /* an even number of mel frames */
    m->info.frame_min = BLOCK_MIN_FRAMES * MT_MEL_HOP;
    int mel_rows = o->tower.mel_rows;
    if ((rc = mt_mel_pass_init(&o->mels, m->be, o->tower.bands, PASS_BLOCKS, mel_rows, PASS_BLOCKS,
                               e)) < 0)
        return rc;
    o->span = calloc(PASS_BLOCKS, sizeof(*o->span));
    o->iota = calloc((size_t)mel_rows, sizeof(*o->iota));
    if (!o->span || !o->iota)
        return mt_err_set(e, -ENOMEM, "out of memory");
    for (int i = 0; i < mel_rows; i++)
        o->iota[i] = i;
    return m->synthetic ? mt_thinker_tokenizer(m, &t, marks, MT_COUNT(marks), e) : 0;
}

static void close_model(struct mt_model *m)
{
    struct omni *o = m->own;

    if (!o)
        return;
    mt_decoder_free(&o->lm);
    free_tower(m->be, &o->tower);
    mt_mel_free(&o->mel);
    mt_mel_pass_free(&o->mels);
    free(o->sinusoid);
    free(o->span);
    free(o->iota);
    free(o);
    m->own = NULL;
}

static int talk_new(struct mt_talk **out, struct mt_model *m, enum mt_mode mode, const char *system,
                    struct mt_ear *ear, struct mt_err *e)
{
    static const struct mt_chatml chatml = {"<|audio_bos|>", "<|audio_eos|>",
                                            "You are a helpful assistant."};

    (void)ear;
    return mt_chatml_talk(out, m->tokenizer, &chatml, mode, system, e);
}

static int step(struct mt_model *m, struct mt_kv *kv, const struct mt_step *s,
                struct mt_rows *logits)
{
    struct omni *o = m->own;

    return mt_decoder_step(&o->lm, kv, s, logits);
}

/*
 * Shapes for synth:NAME. The tiny one has an own small vocabulary, so its special ids are small
 * too.
 */
#define OMNI(text, audio, ids)                                                                     \
    "{\"model_type\":\"qwen2_5_omni\",\"thinker_config\":{\"text_config\":{" text                  \
    ",\"rope_theta\":1000000.0,\"rms_norm_eps\":1e-6},\"audio_config\":{\"num_mel_bins\":128,"     \
    "\"n_window\":100,\"max_source_positions\":1500," audio "}," ids "}}"
#define RELEASED_IDS                                                                               \
    "\"audio_token_index\":151646,\"audio_start_token_id\":151647,\"audio_end_token_id\":151648,"  \
    "\"endoftext\":151643,\"im_start\":151644,\"im_end\":151645"

#define TINY                                                                                       \
    OMNI("\"vocab_size\":2048,\"hidden_size\":192,\"num_hidden_layers\":4,"                        \
         "\"num_attention_heads\":6,\"num_key_value_heads\":2,\"intermediate_size\":448",          \
         "\"d_model\":128,\"encoder_layers\":4,\"encoder_attention_heads\":4,"                     \
         "\"encoder_ffn_dim\":512,\"output_dim\":192",                                             \
         "\"audio_token_index\":2045,\"audio_start_token_id\":2046,\"audio_end_token_id\":2047,"   \
         "\"endoftext\":2042,\"im_start\":2043,\"im_end\":2044")

#define LAYERS "thinker_config.text_config.num_hidden_layers"

/* The two sizes are one shape when tiny: it has all three names. */
static const struct mt_synth_shape shapes[] = {
    {"qwen2.5-omni-7b",
     OMNI("\"vocab_size\":152064,\"hidden_size\":3584,\"num_hidden_layers\":28,"
          "\"num_attention_heads\":28,\"num_key_value_heads\":4,\"intermediate_size\":18944",
          "\"d_model\":1280,\"encoder_layers\":32,\"encoder_attention_heads\":20,"
          "\"encoder_ffn_dim\":5120,\"output_dim\":3584",
          RELEASED_IDS),
     LAYERS},
    {"qwen2.5-omni-3b",
     OMNI("\"vocab_size\":151936,\"hidden_size\":2048,\"num_hidden_layers\":36,"
          "\"num_attention_heads\":16,\"num_key_value_heads\":2,\"intermediate_size\":11008",
          "\"d_model\":1280,\"encoder_layers\":32,\"encoder_attention_heads\":20,"
          "\"encoder_ffn_dim\":5120,\"output_dim\":2048",
          RELEASED_IDS),
     LAYERS},
    {"qwen2.5-omni-tiny", TINY, LAYERS},
    {"qwen2.5-omni-7b-tiny", TINY, LAYERS},
    {"qwen2.5-omni-3b-tiny", TINY, LAYERS},
    {NULL, NULL, NULL},
};

static const char *const types[] = {"qwen2_5_omni", "qwen2_5_omni_thinker", NULL};

const struct mt_family mt_family_qwen2_5_omni = {
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
