/*
 * encoder.c: Whisper-type encoder layers over the operations table, pre-norm:
 *
 *   x += out attention(LN1 x)      bidirectional inside a span, or over a cache; scale 1/sqrt(hd)
 *   x += fc2 gelu(fc1 LN2 x)
 */
#include "model/encoder.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

int mt_encoder_config_parse(const json_t *audio, const char *where, struct mt_encoder_config *out,
                            struct mt_err *e)
{
    int64_t d, layers, heads, ffn;
    int rc;

    if (!json_is_object(audio))
        return mt_err_set(e, -EPROTO, "%s is missing or not an object", where);
    if ((rc = mt_config_int(audio, where, "d_model", 4, 1 << 16, MT_NEED, &d, e)) < 0 ||
        (rc = mt_config_int(audio, where, "encoder_layers", 1, 1024, MT_NEED, &layers, e)) < 0 ||
        (rc = mt_config_int(audio, where, "encoder_attention_heads", 1, 4096, MT_NEED, &heads, e)) <
            0 ||
        (rc = mt_config_int(audio, where, "encoder_ffn_dim", 1, 1 << 20, MT_NEED, &ffn, e)) < 0 ||
        (rc = mt_config_word(audio, where, "activation_function", "gelu", e)) < 0)
        return rc;
    if (d % heads || d % 2)
        return mt_err_set(
            e, -EPROTO,
            "%s: d_model %lld is not even or no multiple of encoder_attention_heads %lld", where,
            (long long)d, (long long)heads);
    *out = (struct mt_encoder_config){(int)d, (int)layers, (int)heads, (int)ffn, false};
    return 0;
}

static void bind_layer(struct mt_encoder_layer *l, const struct mt_encoder_config *c,
                       struct mt_binder *b, const char *prefix, int i)
{
    char p[128];
    int d = c->d_model;

    snprintf(p, sizeof(p), "%slayers.%d", prefix, i);
    l->ln1_w = mt_bind_vector(b, d, "%s.self_attn_layer_norm.weight", p);
    l->ln1_b = mt_bind_vector(b, d, "%s.self_attn_layer_norm.bias", p);
    l->wq = mt_bind_matrix(b, d, d, "%s.self_attn.q_proj.weight", p);
    l->bq = mt_bind_vector(b, d, "%s.self_attn.q_proj.bias", p);
    l->wk = mt_bind_matrix(b, d, d, "%s.self_attn.k_proj.weight", p);
    if (c->k_bias)
        l->bk = mt_bind_vector(b, d, "%s.self_attn.k_proj.bias", p);
    l->wv = mt_bind_matrix(b, d, d, "%s.self_attn.v_proj.weight", p);
    l->bv = mt_bind_vector(b, d, "%s.self_attn.v_proj.bias", p);
    l->wo = mt_bind_matrix(b, d, d, "%s.self_attn.out_proj.weight", p);
    l->bo = mt_bind_vector(b, d, "%s.self_attn.out_proj.bias", p);
    l->ln2_w = mt_bind_vector(b, d, "%s.final_layer_norm.weight", p);
    l->ln2_b = mt_bind_vector(b, d, "%s.final_layer_norm.bias", p);
    l->fc1_w = mt_bind_matrix(b, c->ffn, d, "%s.fc1.weight", p);
    l->fc1_b = mt_bind_vector(b, c->ffn, "%s.fc1.bias", p);
    l->fc2_w = mt_bind_matrix(b, d, c->ffn, "%s.fc2.weight", p);
    l->fc2_b = mt_bind_vector(b, d, "%s.fc2.bias", p);
}

void mt_encoder_bind(struct mt_encoder *enc, const struct mt_encoder_config *cfg,
                     struct mt_binder *b, const char *prefix, int max_rows)
{
    int d = cfg->d_model;

    *enc = (struct mt_encoder){.cfg = *cfg};
    enc->layer = calloc((size_t)cfg->layers, sizeof(*enc->layer));
    if (!enc->layer) {
        b->rc = mt_err_set(b->e, -ENOMEM, "out of memory");
        return;
    }
    for (int i = 0; i < cfg->layers && b->rc == 0; i++)
        bind_layer(&enc->layer[i], cfg, b, prefix, i);
    enc->h = mt_bind_rows(b, max_rows, d);
    enc->q = mt_bind_rows(b, max_rows, d);
    enc->k = mt_bind_rows(b, max_rows, d);
    enc->v = mt_bind_rows(b, max_rows, d);
    enc->att = mt_bind_rows(b, max_rows, d);
    enc->f = mt_bind_rows(b, max_rows, cfg->ffn);
}

void mt_encoder_free(struct mt_encoder *enc, struct mt_backend *be)
{
    struct mt_rows *rows[] = {&enc->h, &enc->q, &enc->k, &enc->v, &enc->att, &enc->f};

    for (int i = 0; enc->layer && i < enc->cfg.layers; i++) {
        struct mt_encoder_layer *l = &enc->layer[i];
        struct mt_mat **all[] = {&l->ln1_w, &l->ln1_b, &l->wq,    &l->bq,   &l->wk,    &l->bk,
                                 &l->wv,    &l->bv,    &l->wo,    &l->bo,   &l->ln2_w, &l->ln2_b,
                                 &l->fc1_w, &l->fc1_b, &l->fc2_w, &l->fc2_b};
        for (size_t j = 0; j < MT_COUNT(all); j++)
            mt_unbind(be, all[j]);
    }
    for (size_t j = 0; j < MT_COUNT(rows); j++)
        mt_unbind_rows(be, rows[j]);
    free(enc->layer);
    enc->layer = NULL;
}

/* Attention inside spans, or over the caches of a batch's runs. */
struct company {
    const struct mt_span *span;
    int n_spans;
    const struct mt_batch *batch;
};

static void run(struct mt_encoder *enc, struct mt_backend *be, struct mt_rows x, int rows,
                const struct company *in)
{
    static const struct mt_rope none = {.kind = MT_ROPE_NONE};
    const struct mt_ops *op = be->ops;

    for (int i = 0; i < enc->cfg.layers; i++) {
        const struct mt_encoder_layer *l = &enc->layer[i];
        const struct mt_linear qkv[] = {{enc->q, l->wq, l->bq, MT_ACT_NONE, MT_NO_ROWS},
                                        {enc->k, l->wk, l->bk, MT_ACT_NONE, MT_NO_ROWS},
                                        {enc->v, l->wv, l->bv, MT_ACT_NONE, MT_NO_ROWS}};

        op->layer_norm(be, enc->h, x, l->ln1_w, l->ln1_b, MT_ENCODER_EPS, rows);
        op->linears(be, enc->h, qkv, MT_COUNT(qkv), rows);
        if (in->batch) {
            struct mt_kv *kv = in->batch->runs[0].view.kv;
            op->rope_append(be, kv, i, none, in->batch, enc->q, MT_NO_ROWS, enc->k, enc->v);
            op->attention(be, kv, i, in->batch, enc->att, enc->q, MT_NO_ROWS);
        } else {
            op->span_attention(be, enc->att, enc->q, enc->k, enc->v, enc->cfg.heads, in->span,
                               in->n_spans);
        }
        op->linear(be, x, enc->att, l->wo, l->bo, MT_ACT_NONE, x, rows);
        op->layer_norm(be, enc->h, x, l->ln2_w, l->ln2_b, MT_ENCODER_EPS, rows);
        op->linear(be, enc->f, enc->h, l->fc1_w, l->fc1_b, MT_ACT_GELU, MT_NO_ROWS, rows);
        op->linear(be, x, enc->f, l->fc2_w, l->fc2_b, MT_ACT_NONE, x, rows);
    }
}

void mt_encoder_run(struct mt_encoder *enc, struct mt_backend *be, struct mt_rows x,
                    const struct mt_span *span, int n_spans)
{
    run(enc, be, x, span[n_spans - 1].row + span[n_spans - 1].n,
        &(struct company){span, n_spans, NULL});
}

void mt_encoder_extend(struct mt_encoder *enc, struct mt_backend *be, struct mt_rows x,
                       const struct mt_batch *batch)
{
    run(enc, be, x, batch->n_rows, &(struct company){NULL, 0, batch});
}

struct mt_kv_shape mt_encoder_kv_shape(const struct mt_encoder_config *cfg, int block_tokens,
                                       enum mt_dtype type)
{
    return (struct mt_kv_shape){cfg->layers, cfg->heads, cfg->d_model / cfg->heads, block_tokens,
                                type};
}

/* Row p: sin(p s_i) …, cos(p s_i) … with s_i = exp(-i ln(10000) / (half - 1)). */
static void sinusoid(float *out, int rows, int d)
{
    int half = d / 2;

    for (int p = 0; p < rows; p++)
        for (int i = 0; i < half; i++) {
            double s = exp(-i * log(10000.0) / (half - 1));
            out[(int64_t)p * d + i] = (float)sin(p * s);
            out[(int64_t)p * d + half + i] = (float)cos(p * s);
        }
}

struct mt_mat *mt_encoder_sinusoid(struct mt_binder *b, float **own, int rows, int d)
{
    struct mt_mat *m = NULL;

    if (b->rc < 0)
        return NULL;
    if (!(*own = mt_alloc(mt_mul((size_t)rows, (size_t)d), sizeof(float)))) {
        b->rc = mt_err_set(b->e, -ENOMEM, "out of memory");
        return NULL;
    }
    sinusoid(*own, rows, d);
    b->rc = b->be->ops->mat_new(b->be, &m, &(struct mt_bytes){*own, MT_F32, rows, d, false});
    if (b->rc < 0)
        mt_err_set(b->e, b->rc, "no memory for the position table");
    return m;
}
