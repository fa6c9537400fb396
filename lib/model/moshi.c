/*
 * moshi.c: Moshi, as Kyutai released it: one position a frame of 80 ms, for 17 streams at once.
 *
 *   x = text embedding + the embeddings of the 16 codes (own and the user's, each with its delay)
 *   h = out_norm(main transformer(x))      text logits = text_linear h
 *   the depth transformer makes the frame's own codes from h and the text token (moshi_depth.c)
 *
 * Equations: kyutai-labs/moshi, moshi/moshi/models/lm.py.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/file.h"
#include "model/moshi.h"

#define RELEASED_CODEC "tokenizer-e351c8d8-checkpoint125.safetensors"

enum { CODEC_AT_ONCE = 8 }; /* sessions in one pass of the codec */

/* ---- opening ---- */

static int bind_model(struct moshi *o, struct mt_model *m, struct mt_err *e)
{
    const struct moshi_config *c = &o->cfg;
    struct mt_binder b = {.w = m->weights, .be = m->be, .e = e};
    int rows = m->opts.step_rows, want = m->opts.want_rows;

    o->text_emb = mt_bind_table(&b, c->text_card + 1, c->main.dim, "text_emb.weight");
    for (int k = 0; k < c->n_q; k++)
        o->emb[k] = mt_bind_table(&b, c->card + 1, c->main.dim, "emb.%d.weight", k);
    moshi_stack_bind(&o->main, &c->main, &b, "transformer", rows);
    moshi_norm_bind(&c->main, &b, &o->out_norm_w, &o->out_norm_b, "out_norm");
    o->text_head = mt_bind_matrix(&b, c->text_out, c->main.dim, "text_linear.weight");
    if (c->head_bias)
        o->text_bias = mt_bind_vector(&b, c->text_out, "text_linear.bias");
    o->h = mt_bind_rows(&b, want, c->main.dim);
    o->logits = mt_bind_rows(&b, want, c->text_out);
    if (b.rc < 0 || (b.rc = moshi_depth_init(&o->depth, c, &b, want)) < 0)
        return b.rc;
    o->ids = calloc((size_t)rows, sizeof(*o->ids));
    o->pos = calloc((size_t)rows, sizeof(*o->pos));
    o->iota = calloc((size_t)rows, sizeof(*o->iota));
    o->codes = calloc((size_t)want * (size_t)c->dep_q, sizeof(*o->codes));
    o->input = calloc((size_t)rows * (size_t)(1 + c->n_q), sizeof(*o->input));
    if (!o->ids || !o->pos || !o->iota || !o->codes || !o->input)
        return mt_err_set(e, -ENOMEM, "out of memory");
    for (int i = 0; i < rows; i++)
        o->iota[i] = i;
    return 0;
}

/* Forms of the model that are not ours, by a tensor that only they have. */
static int refuse_forms(const struct mt_weights *w, const char *where, struct mt_err *e)
{
    static const struct {
        const char *tensor, *what;
    } other[] = {
        {"transformer.layers.0.self_attn.in_proj_weight_scb", "its int8 release"},
        {"transformer.layers.0.self_attn.in_projs.0.weight_scb", "its int8 release"},
        {"depformer.0.linear_in.weight", "the Rust (Candle) layout"},
        {"decoder.model.embed_tokens.weight", "the transformers layout"},
    };

    for (size_t i = 0; i < MT_COUNT(other); i++)
        if (mt_weights_has(w, other[i].tensor))
            return mt_err_set(e, -ENOTSUP,
                              "%s: Moshi in %s is not supported (expected the PyTorch bf16 "
                              "release; there is a tensor '%s')",
                              where, other[i].what, other[i].tensor);
    return 0;
}

/*
 * The codec of a release lies beside the model; the language model alone is enough for teacher
 * forcing.
 */
static bool has_codec(const struct mt_model *m, const json_t *config)
{
    const char *name = json_string_value(json_object_get(config, "mimi_name"));
    char *path = mt_path_join(m->dir, name ? name : RELEASED_CODEC);
    bool has = path && access(path, F_OK) == 0;

    free(path);
    return has;
}

static int open_codec(struct mt_model *m, const json_t *config, const char *where, struct mt_err *e)
{
    struct moshi *o = m->own;
    struct mt_mimi_config c = mt_mimi_config_tiny(), full = mt_mimi_config_released();
    char prefix[MT_MIMI_PREFIX_MAX] = "mimi.";
    int books = o->cfg.dep_q, rc;
    struct mt_weights *w = m->weights;

    if (!m->synthetic && !has_codec(m, config)) {
        mt_err_set(&o->no_codec, -ENOENT,
                   "%s: there is no codec beside the model (mimi_name, or " RELEASED_CODEC ")",
                   where);
        m->info.no_calls = o->no_codec.text;
        return 0;
    }
    if (m->synthetic && o->cfg.card == full.bins)
        c = full;
    if (!m->synthetic) {
        rc = mt_mimi_open(&o->codec_weights, prefix, &c, &books, m->dir, e);
        if (rc < 0)
            return rc;
        w = o->codec_weights;
    }
    if (books != o->cfg.dep_q || o->cfg.n_q != 2 * books) {
        mt_err_set(&o->no_codec, -ENOTSUP, "%s: n_q %d is not twice dep_q %d: no call of two",
                   where, o->cfg.n_q, o->cfg.dep_q);
        m->info.no_calls = o->no_codec.text;
        return 0;
    }
    if (c.bins != o->cfg.card)
        return mt_err_set(e, -EPROTO, "%s.card is %d, but the codec has %d codes a codebook", where,
                          o->cfg.card, c.bins);
    int at_once = m->opts.want_rows < CODEC_AT_ONCE ? m->opts.want_rows : CODEC_AT_ONCE;
    rc = mt_mimi_new(&o->codec, w, prefix, m->be, books, &c, at_once, e);
    if (rc < 0)
        return rc;
    if (o->codec_weights) {
        uint64_t digest = mt_weights_digest(o->codec_weights);

        m->info.weight_bytes = mt_mimi_weight_bytes(o->codec);
        m->identity = mt_hash(m->identity, &digest, sizeof(digest));
    }
    return moshi_calls_init(m, e);
}

static void fill_info(struct mt_model *m, const struct moshi_config *c)
{
    m->info.vocab = c->text_out;
    m->info.layers = c->main.layers;
    m->info.heads = c->main.heads;
    m->info.kv_heads = c->main.kv_heads;
    m->info.head_dim = c->main.dim / c->main.heads;
    m->info.hidden = c->main.dim;
    m->info.max_positions = INT32_MAX; /* none trained; angles are still exact there */
    m->info.context = c->context;
    m->info.sample_rate_hz = 24000;
    m->info.audio_id = -1;
    m->info.codebooks = c->n_q;
    m->info.codebooks_made = c->dep_q;
    m->info.code_bins = c->card;
    m->info.text_card = c->text_card;
}

static int open_model(struct mt_model *m, const json_t *config, const char *where, struct mt_err *e)
{
    struct moshi *o = calloc(1, sizeof(*o));
    int rc = 0;

    m->own = o;
    if (!o)
        return mt_err_set(e, -ENOMEM, "out of memory");
    if (!m->synthetic)
        rc = refuse_forms(m->weights, where, e);
    if (rc < 0 || (rc = moshi_config_parse(config, m->weights, where, &o->cfg, e)) < 0 ||
        (rc = bind_model(o, m, e)) < 0)
        return rc;
    fill_info(m, &o->cfg);
    if ((rc = open_codec(m, config, where, e)) < 0)
        return rc;
    if (o->codec) {
        m->info.sample_rate_hz = m->info.speech_rate_hz = mt_mimi_config(o->codec)->sample_rate_hz;
        m->info.beat_samples = m->info.frame_step = m->info.frame_min =
            mt_mimi_frame_samples(o->codec);
    }
    return m->synthetic ? mt_tokenizer_synth(&m->tokenizer, o->cfg.text_out, NULL, 0, e) : 0;
}

static void close_model(struct mt_model *m)
{
    struct moshi *o = m->own;

    moshi_calls_free(m);
    mt_mimi_free(&o->codec);
    mt_weights_close(&o->codec_weights);
    moshi_stack_free(&o->main);
    moshi_depth_free(&o->depth);
    for (int k = 0; k < MOSHI_STREAMS_MAX; k++)
        mt_unbind(m->be, &o->emb[k]);
    struct mt_mat **mats[] = {&o->text_emb, &o->text_head, &o->text_bias, &o->out_norm_w,
                              &o->out_norm_b};
    for (size_t i = 0; i < MT_COUNT(mats); i++)
        mt_unbind(m->be, mats[i]);
    mt_unbind_rows(m->be, &o->h);
    mt_unbind_rows(m->be, &o->logits);
    free(o->ids);
    free(o->pos);
    free(o->iota);
    free(o->codes);
    free(o->input);
    free(o);
    m->own = NULL;
}

static bool recognise(const struct mt_weights *w)
{
    return mt_weights_has(w, "text_emb.weight") && mt_weights_has(w, "depformer_text_emb.weight");
}

/* ---- a step ---- */

/* Each row is the text token's embedding on an audio row, which has everything else. */
static int step(struct mt_model *m, struct mt_kv *kv, const struct mt_step *s,
                struct mt_rows *logits)
{
    struct moshi *o = m->own;
    const struct mt_ops *op = m->be->ops;
    int n = s->batch.n_rows;

    if (n < 1 || n > m->opts.step_rows || s->n_want > m->opts.want_rows)
        return -EINVAL;
    for (int i = 0; i < s->n_audio; i++)
        op->gather(m->be, mt_rows_from(o->main.x, s->audio[i].row), s->audio[i].src, o->iota,
                   s->audio[i].n);
    op->embed_add(m->be, o->main.x, o->text_emb, s->ids, n);
    moshi_stack_run(&o->main, kv, &s->batch, 0);
    if (s->n_want > 0) {
        op->gather(m->be, o->h, o->main.x, s->want, s->n_want);
        moshi_norm_run(&o->main, o->h, o->h, o->out_norm_w, o->out_norm_b, s->n_want);
        op->linear(m->be, o->logits, o->h, o->text_head, o->text_bias, MT_ACT_NONE, MT_NO_ROWS,
                   s->n_want);
    }
    *logits = o->logits;
    return 0;
}

void moshi_embed_codes(struct moshi *o, struct mt_rows out, const int32_t *input,
                       const int64_t *pos, int n)
{
    struct mt_backend *be = o->main.be;
    int streams = 1 + o->cfg.n_q;

    moshi_stack_begin(&o->main, out, pos, n);
    for (int k = 1; k < streams; k++) {
        for (int i = 0; i < n; i++)
            o->ids[i] = input[(int64_t)i * streams + k];
        be->ops->embed_add(be, out, o->emb[k - 1], o->ids, n);
    }
}

/* ---- teacher forcing ---- */

static void teach_input(struct mt_model *m, const int32_t *frames, int64_t t, int n, int32_t *text,
                        struct mt_rows out)
{
    struct moshi *o = m->own;
    int streams = 1 + o->cfg.n_q;

    for (int i = 0; i < n; i++) {
        int32_t *input = o->input + (int64_t)i * streams;
        for (int k = 0; k < streams; k++)
            input[k] = moshi_delayed(&o->cfg, frames, t + i, k);
        text[i] = input[0];
        o->pos[i] = t + i;
    }
    moshi_embed_codes(o, out, o->input, o->pos, n);
}

/* Row i of the last step's wanted ones is step at[i]; its codes stand in the next column. */
static void teach_codes(struct mt_model *m, const int32_t *frames, const int64_t *at, int n,
                        void (*logits)(void *ctx, int k, struct mt_rows logits, int n), void *ctx)
{
    struct moshi *o = m->own;
    const struct moshi_config *c = &o->cfg;

    for (int i = 0; i < n; i++) {
        o->ids[i] = moshi_delayed(c, frames, at[i] + 1, 0);
        for (int k = 0; k < c->dep_q; k++)
            o->codes[(int64_t)i * c->dep_q + k] = moshi_delayed(c, frames, at[i] + 1, 1 + k);
    }
    moshi_depth_run(&o->depth, o->h, o->ids, o->codes, n, logits, ctx);
}

/* ---- shapes for synth:NAME ---- */

#define SHAPE(sizes)                                                                               \
    "{\"model_type\":\"moshi\",\"existing_text_padding_id\":3,\"max_period\":10000,"               \
    "\"gating\":\"silu\",\"norm\":\"rms_norm_f32\",\"positional_embedding\":\"rope\","             \
    "\"hidden_scale\":4.125,\"depformer_multi_linear\":true,\"depformer_pos_emb\":\"none\","       \
    "\"depformer_weights_per_step\":true,\"n_q\":16,\"dep_q\":8,"                                  \
    "\"delays\":[0,0,1,1,1,1,1,1,1,0,1,1,1,1,1,1,1]," sizes "}"
#define TINY                                                                                       \
    SHAPE("\"dim\":128,\"text_card\":2000,\"card\":256,\"num_heads\":4,\"num_layers\":3,"          \
          "\"context\":250,\"depformer_dim\":64,\"depformer_num_heads\":2,"                        \
          "\"depformer_num_layers\":2,\"depformer_dim_feedforward\":264")

static const struct mt_synth_shape shapes[] = {
    {"moshi-7b",
     SHAPE("\"dim\":4096,\"text_card\":32000,\"card\":2048,\"num_heads\":32,\"num_layers\":32,"
           "\"context\":3000,\"depformer_dim\":1024,\"depformer_num_heads\":16,"
           "\"depformer_num_layers\":6,\"depformer_dim_feedforward\":4224"),
     "num_layers"},
    {"moshi-7b-tiny", TINY, "num_layers"},
    {"moshi-tiny", TINY, "num_layers"},
    {NULL, NULL, NULL},
};

static const char *const types[] = {"moshi", NULL};

const struct mt_family mt_family_moshi = {
    .model_types = types,
    .shapes = shapes,
    .recognise = recognise,
    .open = open_model,
    .close = close_model,
    .talk_new = moshi_talk_new,
    .ear_new = moshi_ear_new,
    .ear_free = moshi_ear_free,
    .ear_visit = moshi_ear_visit,
    .state = moshi_state,
    .ear_rows_max = moshi_ear_rows_max,
    .ear_skip = moshi_ear_skip,
    .encode = moshi_encode,
    .step = step,
    .speak = moshi_speak,
    .teach_input = teach_input,
    .teach_codes = teach_codes,
};
