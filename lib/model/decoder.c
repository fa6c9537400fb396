/*
 * decoder.c: the Qwen-type text model as a forward pass over the operations table:
 *
 *   x = embed(ids), audio rows in their places
 *   each layer:  x += Wo attention(rope(Wq n, Wk n), Wv n)       n = rms_norm(x); heads of Wq n and
 *                                                                Wk n normed too where qk_norm
 *                x += Wdown (silu(Wgate m) * Wup m)              m = rms_norm(x); or the experts of
 *                m
 *   logits = head rms_norm(x)                                    only of the rows that want them
 *
 * Equations: Hugging Face transformers, models/qwen2_5_omni/modeling_qwen2_5_omni.py (thinker).
 */
#include "model/decoder.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/bind.h"

enum { HEAD_DIM_MAX = 1024 };

/*
 * rope_theta lies beside the sizes in released files, in rope_parameters in files of transformers
 * 5.
 */
static int parse_rope(const json_t *text, const char *where, struct mt_decoder_config *c,
                      struct mt_err *e)
{
    const json_t *params = json_object_get(text, "rope_parameters");
    const json_t *scaling = json_object_get(text, "rope_scaling");
    const json_t *const kinds[] = {params, scaling};
    static const char *const name[] = {"rope_parameters", "rope_scaling"};
    char at[MT_WHERE_MAX];
    double share;
    int rc;

    for (size_t i = 0; i < MT_COUNT(kinds); i++) {
        snprintf(at, sizeof(at), "%s.%s", where, name[i]);
        if (kinds[i] && !json_is_object(kinds[i]) && !json_is_null(kinds[i]))
            return mt_err_set(e, -EPROTO, "%s is not an object", at);
        if ((rc = mt_config_word(kinds[i], at, "rope_type", "default, mrope", e)) < 0 ||
            (rc = mt_config_word(kinds[i], at, "type", "default, mrope", e)) < 0)
            return rc;
    }
    if ((rc = mt_config_real(text, where, "rope_theta", 1.0, 1e12, 1e6, &c->rope_base, e)) < 0 ||
        /* Where only a part of each head is rotated, all of it would be: another model. */
        (rc = mt_config_real(text, where, "partial_rotary_factor", 1.0, 1.0, 1.0, &share, e)) < 0)
        return rc;
    snprintf(at, sizeof(at), "%s.%s", where, name[0]);
    return mt_config_real(params, at, "rope_theta", 1.0, 1e12, c->rope_base, &c->rope_base, e);
}

/*
 * A cache policy is the server's choice; layers that were trained to look back only so far are
 * another model.
 */
static int refuse_sliding(const json_t *text, const char *where, struct mt_err *e)
{
    const json_t *use = json_object_get(text, "use_sliding_window"),
                 *kinds = json_object_get(text, "layer_types"), *kind;
    size_t i;

    if (use && !json_is_false(use) && !json_is_null(use))
        return mt_err_set(e, -ENOTSUP,
                          "%s.use_sliding_window is not supported (--kv window=W bounds the cache)",
                          where);
    json_array_foreach(kinds, i, kind)
    {
        const char *word = json_string_value(kind);
        if (!word || strcmp(word, "full_attention") != 0)
            return mt_err_set(e, -ENOTSUP, "%s.layer_types[%zu] is not full_attention", where, i);
    }
    return 0;
}

int mt_decoder_config_parse(const json_t *text, const char *where, struct mt_decoder_config *out,
                            struct mt_err *e)
{
    struct mt_decoder_config c = {0};
    int64_t v[8];
    double eps;
    int rc;

    if (!json_is_object(text))
        return mt_err_set(e, -EPROTO, "%s is missing or not an object", where);
    if ((rc = mt_config_int(text, where, "vocab_size", 1, 1 << 24, MT_NEED, &v[0], e)) < 0 ||
        (rc = mt_config_int(text, where, "hidden_size", 2, 1 << 17, MT_NEED, &v[1], e)) < 0 ||
        (rc = mt_config_int(text, where, "num_hidden_layers", 1, MT_LAYERS_MAX, MT_NEED, &v[2],
                            e)) < 0 ||
        (rc = mt_config_int(text, where, "num_attention_heads", 1, 4096, MT_NEED, &v[3], e)) < 0 ||
        (rc = mt_config_int(text, where, "num_key_value_heads", 1, 4096, v[3], &v[4], e)) < 0 ||
        (rc = mt_config_int(text, where, "head_dim", 2, HEAD_DIM_MAX, 0, &v[5], e)) < 0 ||
        (rc = mt_config_int(text, where, "intermediate_size", 1, 1 << 20, MT_NEED, &v[6], e)) < 0 ||
        (rc = mt_config_int(text, where, "max_position_embeddings", 1, INT64_C(1) << 40, 32768,
                            &v[7], e)) < 0 ||
        (rc = mt_config_real(text, where, "rms_norm_eps", 0.0, 1.0, 1e-6, &eps, e)) < 0 ||
        (rc = parse_rope(text, where, &c, e)) < 0)
        return rc;
    if (v[5] == 0 && v[1] % v[3])
        return mt_err_set(e, -EPROTO,
                          "%s: hidden_size %lld is no multiple of num_attention_heads %lld", where,
                          (long long)v[1], (long long)v[3]);
    if (v[5] == 0)
        v[5] = v[1] / v[3];
    if (v[5] > HEAD_DIM_MAX)
        return mt_err_set(e, -EPROTO, "%s: head_dim %lld is above %d", where, (long long)v[5],
                          HEAD_DIM_MAX);
    if (v[3] % v[4])
        return mt_err_set(e, -EPROTO,
                          "%s: num_attention_heads %lld is no multiple of num_key_value_heads %lld",
                          where, (long long)v[3], (long long)v[4]);
    if (v[5] % 2)
        return mt_err_set(e, -EPROTO, "%s: head_dim %lld is odd", where, (long long)v[5]);
    if ((rc = mt_config_word(text, where, "hidden_act", "silu", e)) < 0 ||
        (rc = refuse_sliding(text, where, e)) < 0)
        return rc;
    c.vocab = (int)v[0];
    c.hidden = (int)v[1];
    c.layers = (int)v[2];
    c.heads = (int)v[3];
    c.kv_heads = (int)v[4];
    c.head_dim = (int)v[5];
    c.ffn = (int)v[6];
    c.max_positions = v[7];
    c.eps = (float)eps;
    *out = c;
    return 0;
}

void mt_decoder_info(const struct mt_decoder_config *c, struct mt_model_info *out)
{
    out->vocab = c->vocab;
    out->layers = c->layers;
    out->heads = c->heads;
    out->kv_heads = c->kv_heads;
    out->head_dim = c->head_dim;
    out->hidden = c->hidden;
    out->max_positions = c->max_positions;
}

static int bind_layer(struct mt_decoder *d, struct mt_binder *b, const char *prefix, int i)
{
    const struct mt_decoder_config *c = &d->cfg;
    struct mt_decoder_layer *l = &d->layer[i];
    int64_t q = (int64_t)c->heads * c->head_dim, kv = (int64_t)c->kv_heads * c->head_dim;
    char p[128];

    snprintf(p, sizeof(p), "%smodel.layers.%d", prefix, i);
    l->norm_in = mt_bind_vector(b, c->hidden, "%s.input_layernorm.weight", p);
    l->norm_post = mt_bind_vector(b, c->hidden, "%s.post_attention_layernorm.weight", p);
    l->wq = mt_bind_matrix(b, q, c->hidden, "%s.self_attn.q_proj.weight", p);
    l->wk = mt_bind_matrix(b, kv, c->hidden, "%s.self_attn.k_proj.weight", p);
    l->wv = mt_bind_matrix(b, kv, c->hidden, "%s.self_attn.v_proj.weight", p);
    l->wo = mt_bind_matrix(b, c->hidden, q, "%s.self_attn.o_proj.weight", p);
    if (c->qkv_bias) {
        l->bq = mt_bind_vector(b, q, "%s.self_attn.q_proj.bias", p);
        l->bk = mt_bind_vector(b, kv, "%s.self_attn.k_proj.bias", p);
        l->bv = mt_bind_vector(b, kv, "%s.self_attn.v_proj.bias", p);
    }
    if (c->qk_norm) {
        l->q_norm = mt_bind_vector(b, c->head_dim, "%s.self_attn.q_norm.weight", p);
        l->k_norm = mt_bind_vector(b, c->head_dim, "%s.self_attn.k_norm.weight", p);
    }
    if (mt_moe_at(&c->moe, i)) {
        snprintf(p, sizeof(p), "%smodel.layers.%d.mlp", prefix, i);
        mt_moe_bind(&l->moe, &c->moe, c->hidden, d->step_rows, b, p);
        return b->rc;
    }
    l->gate = mt_bind_matrix(b, c->ffn, c->hidden, "%s.mlp.gate_proj.weight", p);
    l->up = mt_bind_matrix(b, c->ffn, c->hidden, "%s.mlp.up_proj.weight", p);
    l->down = mt_bind_matrix(b, c->hidden, c->ffn, "%s.mlp.down_proj.weight", p);
    return b->rc;
}

static void bind_activations(struct mt_decoder *d, struct mt_binder *b)
{
    const struct mt_decoder_config *c = &d->cfg;
    int q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;

    d->x = mt_bind_rows(b, d->step_rows, c->hidden);
    d->h = mt_bind_rows(b, d->step_rows, c->hidden);
    d->q = mt_bind_rows(b, d->step_rows, q);
    d->q_sink = mt_bind_rows(b, d->step_rows, q);
    d->k = mt_bind_rows(b, d->step_rows, kv);
    d->v = mt_bind_rows(b, d->step_rows, kv);
    d->att = mt_bind_rows(b, d->step_rows, q);
    bool experts = false, plain = false;
    for (int i = 0; i < c->layers; i++)
        *(mt_moe_at(&c->moe, i) ? &experts : &plain) = true;
    if (experts)
        mt_moe_scratch_bind(&d->moe, &c->moe, c->hidden, d->step_rows, b);
    if (plain) {
        d->gate = mt_bind_rows(b, d->step_rows, c->ffn);
        d->up = mt_bind_rows(b, d->step_rows, c->ffn);
    }
    d->last = mt_bind_rows(b, d->want_rows, c->hidden);
    d->logits = mt_bind_rows(b, d->want_rows, c->vocab);
}

int mt_decoder_init(struct mt_decoder *d, const struct mt_decoder_config *cfg, const char *prefix,
                    struct mt_weights *w, struct mt_backend *be, const struct mt_model_opts *o,
                    struct mt_err *e)
{
    struct mt_binder b = {.w = w, .be = be, .e = e};
    char head[128];

    *d = (struct mt_decoder){
        .cfg = *cfg, .be = be, .step_rows = o->step_rows, .want_rows = o->want_rows};
    d->layer = calloc((size_t)cfg->layers, sizeof(*d->layer));
    d->iota = calloc((size_t)o->step_rows, sizeof(*d->iota));
    if (be->ops->rows_bucket) {
        d->run = calloc((size_t)o->step_rows, sizeof(*d->run));
        d->ids = calloc((size_t)o->step_rows, sizeof(*d->ids));
    }
    if (!d->layer || !d->iota || (be->ops->rows_bucket && (!d->run || !d->ids)))
        return mt_err_set(e, -ENOMEM, "out of memory");
    for (int i = 0; i < o->step_rows; i++)
        d->iota[i] = i;
    /* Config keys about tying can't be trusted: a head that is there is the head. */
    snprintf(head, sizeof(head), "%slm_head.weight", prefix);
    bool tied = !mt_weights_has(w, head);
    d->embed = (tied ? mt_bind_tied : mt_bind_table)(&b, cfg->vocab, cfg->hidden,
                                                     "%smodel.embed_tokens.weight", prefix);
    for (int i = 0; i < cfg->layers && b.rc == 0; i++)
        bind_layer(d, &b, prefix, i);
    d->norm = mt_bind_vector(&b, cfg->hidden, "%smodel.norm.weight", prefix);
    d->head = tied ? d->embed : mt_bind_matrix(&b, cfg->vocab, cfg->hidden, "%s", head);
    bind_activations(d, &b);
    return b.rc;
}

void mt_decoder_free(struct mt_decoder *d)
{
    struct mt_backend *be = d->be;

    if (!be)
        return;
    for (int i = 0; d->layer && i < d->cfg.layers; i++) {
        struct mt_decoder_layer *l = &d->layer[i];
        struct mt_mat **all[] = {&l->norm_in, &l->norm_post, &l->wq, &l->wk,  &l->wv,
                                 &l->wo,      &l->bq,        &l->bk, &l->bv,  &l->q_norm,
                                 &l->k_norm,  &l->gate,      &l->up, &l->down};
        for (size_t j = 0; j < MT_COUNT(all); j++)
            mt_unbind(be, all[j]);
        mt_moe_free(&l->moe, be);
    }
    mt_moe_scratch_free(&d->moe, be);
    if (d->head == d->embed)
        d->head = NULL;
    mt_unbind(be, &d->head);
    mt_unbind(be, &d->embed);
    mt_unbind(be, &d->norm);
    struct mt_rows *rows[] = {&d->x,   &d->h,    &d->q,  &d->q_sink, &d->k,     &d->v,
                              &d->att, &d->gate, &d->up, &d->last,   &d->logits};
    for (size_t j = 0; j < MT_COUNT(rows); j++)
        mt_unbind_rows(be, rows[j]);
    free(d->layer);
    free(d->iota);
    free(d->run);
    free(d->ids);
    *d = (struct mt_decoder){0};
}

static void run_layer(struct mt_decoder *d, struct mt_kv *kv, int i, const struct mt_batch *batch,
                      const struct mt_watch *watch)
{
    const struct mt_ops *op = d->be->ops;
    const struct mt_decoder_layer *l = &d->layer[i];
    const struct mt_rope rope = {MT_ROPE_HALVES, d->cfg.rope_base, l->q_norm, l->k_norm,
                                 d->cfg.eps};
    const struct mt_linear qkv[] = {{d->q, l->wq, l->bq, MT_ACT_NONE, MT_NO_ROWS},
                                    {d->k, l->wk, l->bk, MT_ACT_NONE, MT_NO_ROWS},
                                    {d->v, l->wv, l->bv, MT_ACT_NONE, MT_NO_ROWS}};
    const struct mt_linear gate_up[] = {{d->gate, l->gate, NULL, MT_ACT_NONE, MT_NO_ROWS},
                                        {d->up, l->up, NULL, MT_ACT_NONE, MT_NO_ROWS}};
    int n = batch->n_rows;

    op->rms_norm(d->be, d->h, d->x, l->norm_in, d->cfg.eps, n);
    op->linears(d->be, d->h, qkv, MT_COUNT(qkv), n);
    op->rope_append(d->be, kv, i, rope, batch, d->q, d->q_sink, d->k, d->v);
    if (watch)
        watch->layer(watch->ctx, i, kv, batch, d->q, d->q_sink);
    op->attention(d->be, kv, i, batch, d->att, d->q, d->q_sink);
    op->linear(d->be, d->x, d->att, l->wo, NULL, MT_ACT_NONE, d->x, n);
    op->rms_norm(d->be, d->h, d->x, l->norm_post, d->cfg.eps, n);
    if (l->moe.experts) {
        mt_moe_run(&l->moe, d->be, &d->moe, d->x, d->h, n);
        return;
    }
    op->linears(d->be, d->h, gate_up, MT_COUNT(gate_up), n);
    op->gated(d->be, d->gate, d->gate, d->up, n);
    op->linear(d->be, d->x, d->gate, l->down, NULL, MT_ACT_NONE, d->x, n);
}

/*
 * A step that only decodes, filled up to the rows that the backend wants, as far as there are any:
 * rows of nobody say what the first session says, see one token of its, and write none; what they
 * come to is not looked at.
 */
static struct mt_step filled(struct mt_decoder *d, const struct mt_step *s)
{
    struct mt_step f = *s;
    int n = s->batch.n_rows;

    if (!d->run || s->batch.n_runs != n || s->n_want != n || s->n_audio > 0 || s->watch)
        return f;
    int rows = d->be->ops->rows_bucket(d->be, n);
    rows = rows < d->step_rows ? rows : d->step_rows;
    rows = rows < d->want_rows ? rows : d->want_rows;
    if (rows == n)
        return f;
    memcpy(d->run, s->batch.runs, (size_t)n * sizeof(*d->run));
    memcpy(d->ids, s->ids, (size_t)n * sizeof(*d->ids));
    for (int i = n; i < rows; i++) {
        d->ids[i] = s->ids[0];
        d->run[i] = (struct mt_run){.row = i,
                                    .n = 1,
                                    .view = {.blocks = s->batch.runs[0].view.blocks,
                                             .sinks = 1,
                                             .sinks_held = 1,
                                             .ring_blocks = s->batch.runs[0].view.ring_blocks,
                                             .window = 1,
                                             .kv = s->batch.runs[0].view.kv}};
    }
    f.batch = (struct mt_batch){rows, rows, d->run};
    f.ids = d->ids;
    f.want = d->iota;
    f.n_want = rows;
    return f;
}

int mt_decoder_step(struct mt_decoder *d, struct mt_kv *kv, const struct mt_step *step,
                    struct mt_rows *logits)
{
    const struct mt_ops *op = d->be->ops;

    if (step->batch.n_rows < 1 || step->batch.n_rows > d->step_rows || step->n_want > d->want_rows)
        return -EINVAL;
    const struct mt_step all = filled(d, step), *s = &all;
    op->embed(d->be, d->x, d->embed, s->ids, s->batch.n_rows);
    for (int i = 0; i < s->n_audio; i++)
        op->gather(d->be, mt_rows_from(d->x, s->audio[i].row), s->audio[i].src, d->iota,
                   s->audio[i].n);
    for (int i = 0; i < d->cfg.layers; i++)
        run_layer(d, kv, i, &s->batch, s->watch);
    if (s->n_want > 0) {
        op->gather(d->be, d->last, d->x, s->want, s->n_want);
        op->rms_norm(d->be, d->last, d->last, d->norm, d->cfg.eps, s->n_want);
        op->linear(d->be, d->logits, d->last, d->head, NULL, MT_ACT_NONE, MT_NO_ROWS, s->n_want);
    }
    *logits = d->logits;
    return 0;
}
