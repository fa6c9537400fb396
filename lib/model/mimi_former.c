/*
 * mimi_former.c: the codec's transformers over the operations table, pre-norm:
 *
 *   x += scale1 * out attention(LN1 x)      the last `context` steps, rotary
 *   x += scale2 * fc2 gelu(fc1 LN2 x)
 */
#include "model/mimi_former.h"

#include <errno.h>
#include <stdlib.h>

static void bind_layer(struct mt_mimi_layer *l, const struct mt_mimi_config *c, const char *p,
                       struct mt_mimi_binder *b)
{
    int d = c->d_model, q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;

    l->norm1_w = mt_mimi_vector(b, d, "%s.norm1.weight", p);
    l->norm1_b = mt_mimi_vector(b, d, "%s.norm1.bias", p);
    l->norm2_w = mt_mimi_vector(b, d, "%s.norm2.weight", p);
    l->norm2_b = mt_mimi_vector(b, d, "%s.norm2.bias", p);
    if (c->hf) {
        l->wq = mt_mimi_matrix(b, q, d, "%s.self_attn.q_proj.weight", p);
        l->wk = mt_mimi_matrix(b, kv, d, "%s.self_attn.k_proj.weight", p);
        l->wv = mt_mimi_matrix(b, kv, d, "%s.self_attn.v_proj.weight", p);
        l->wo = mt_mimi_matrix(b, d, q, "%s.self_attn.out_proj.weight", p);
    } else if (mt_mimi_has(b, "%s.self_attn.in_proj_weight", p)) { /* as released */
        l->in = mt_mimi_matrix(b, q + 2 * kv, d, "%s.self_attn.in_proj_weight", p);
        l->wo = mt_mimi_matrix(b, d, q, "%s.self_attn.out_proj.weight", p);
    } else { /* as the package names them since */
        l->in = mt_mimi_matrix(b, q + 2 * kv, d, "%s.self_attn.in_projs.0.weight", p);
        l->wo = mt_mimi_matrix(b, d, q, "%s.self_attn.out_projs.0.weight", p);
    }
    l->fc1 = mt_mimi_matrix(b, c->ffn, d, "%s.linear1.weight", p);
    l->fc2 = mt_mimi_matrix(b, d, c->ffn, "%s.linear2.weight", p);
    if (!c->layer_scale)
        return;
    l->scale1 = mt_mimi_vector(b, d, "%s.layer_scale_1.scale", p);
    l->scale2 = mt_mimi_vector(b, d, "%s.layer_scale_2.scale", p);
}

void mt_mimi_former_bind(struct mt_mimi_former *t, const struct mt_mimi_config *c, const char *side,
                         struct mt_mimi_binder *b)
{
    char p[64];

    *t = (struct mt_mimi_former){.cfg = c};
    t->layer = calloc((size_t)c->layers + 1, sizeof(*t->layer));
    if (!t->layer) {
        b->b.rc = mt_err_set(b->b.e, -ENOMEM, "out of memory");
        return;
    }
    if (c->d_model != c->dim) {
        t->in = mt_mimi_matrix(b, c->d_model, c->dim, "%s_transformer.input_proj.weight", side);
        t->out =
            mt_mimi_matrix(b, c->dim, c->d_model, "%s_transformer.output_projs.0.weight", side);
    }
    for (int i = 0; i < c->layers && b->b.rc == 0; i++) {
        snprintf(p, sizeof(p), "%s_transformer.transformer.layers.%d", side, i);
        bind_layer(&t->layer[i], c, p, b);
    }
}

void mt_mimi_former_free(struct mt_mimi_former *t, struct mt_backend *be)
{
    for (int i = 0; t->layer && i < t->cfg->layers; i++) {
        struct mt_mimi_layer *l = &t->layer[i];
        struct mt_mat **all[] = {&l->norm1_w, &l->norm1_b, &l->norm2_w, &l->norm2_b, &l->in,
                                 &l->wq,      &l->wk,      &l->wv,      &l->wo,      &l->fc1,
                                 &l->fc2,     &l->scale1,  &l->scale2};
        for (size_t j = 0; j < MT_COUNT(all); j++)
            mt_unbind(be, all[j]);
    }
    mt_unbind(be, &t->in);
    mt_unbind(be, &t->out);
    free(t->layer);
    t->layer = NULL;
}

void mt_mimi_former_scratch_new(struct mt_mimi_former_scratch *s, const struct mt_mimi_config *c,
                                struct mt_binder *b, int rows)
{
    int q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;

    s->x = mt_bind_rows(b, rows, c->d_model);
    s->h = mt_bind_rows(b, rows, c->d_model);
    s->qkv = mt_bind_rows(b, rows, q + 2 * kv);
    s->att = mt_bind_rows(b, rows, q);
    s->f = mt_bind_rows(b, rows, c->ffn);
}

void mt_mimi_former_scratch_free(struct mt_mimi_former_scratch *s, struct mt_backend *be)
{
    struct mt_rows *rows[] = {&s->x, &s->h, &s->qkv, &s->att, &s->f};

    for (size_t j = 0; j < MT_COUNT(rows); j++)
        mt_unbind_rows(be, rows[j]);
}

/* x += scale * (y W^T), by way of `tmp`. */
static void add_branch(struct mt_backend *be, struct mt_rows x, struct mt_rows y,
                       const struct mt_mat *w, const struct mt_mat *scale, struct mt_rows tmp,
                       int n)
{
    if (!scale) {
        be->ops->linear(be, x, y, w, NULL, MT_ACT_NONE, x, n);
        return;
    }
    be->ops->linear(be, tmp, y, w, NULL, MT_ACT_NONE, MT_NO_ROWS, n);
    be->ops->scaled_add(be, x, tmp, scale, n);
}

static void run_layer(const struct mt_mimi_former *t, int i, struct mt_backend *be,
                      const struct mt_mimi_former_scratch *s, const struct mt_batch *batch,
                      struct mt_rows x)
{
    const struct mt_ops *op = be->ops;
    const struct mt_mimi_config *c = t->cfg;
    const struct mt_mimi_layer *l = &t->layer[i];
    const struct mt_rope rope = {!c->rope ? MT_ROPE_NONE
                                 : c->hf  ? MT_ROPE_HALVES
                                          : MT_ROPE_PAIRS,
                                 c->rope_base, .q_norm = NULL};
    int n = batch->n_rows, nq = c->heads * c->head_dim, nkv = c->kv_heads * c->head_dim;
    struct mt_rows q = mt_rows_cols(s->qkv, 0, nq), k = mt_rows_cols(s->qkv, nq, nkv),
                   v = mt_rows_cols(s->qkv, nq + nkv, nkv);
    struct mt_kv *kv = batch->runs[0].view.kv;

    op->layer_norm(be, s->h, x, l->norm1_w, l->norm1_b, c->eps, n);
    if (l->in) {
        op->linear(be, s->qkv, s->h, l->in, NULL, MT_ACT_NONE, MT_NO_ROWS, n);
    } else {
        op->linear(be, q, s->h, l->wq, NULL, MT_ACT_NONE, MT_NO_ROWS, n);
        op->linear(be, k, s->h, l->wk, NULL, MT_ACT_NONE, MT_NO_ROWS, n);
        op->linear(be, v, s->h, l->wv, NULL, MT_ACT_NONE, MT_NO_ROWS, n);
    }
    op->rope_append(be, kv, i, rope, batch, q, MT_NO_ROWS, k, v);
    op->attention(be, kv, i, batch, s->att, q, MT_NO_ROWS);
    add_branch(be, x, s->att, l->wo, l->scale1, s->h, n);
    op->layer_norm(be, s->h, x, l->norm2_w, l->norm2_b, c->eps, n);
    op->linear(be, s->f, s->h, l->fc1, NULL, MT_ACT_GELU, MT_NO_ROWS, n);
    add_branch(be, x, s->f, l->fc2, l->scale2, s->h, n);
}

void mt_mimi_former_run(const struct mt_mimi_former *t, struct mt_backend *be,
                        const struct mt_mimi_former_scratch *s, const struct mt_batch *batch,
                        struct mt_rows x)
{
    struct mt_rows y = t->in ? s->x : x;

    if (t->in)
        be->ops->linear(be, y, x, t->in, NULL, MT_ACT_NONE, MT_NO_ROWS, batch->n_rows);
    for (int i = 0; i < t->cfg->layers; i++)
        run_layer(t, i, be, s, batch, y);
    if (t->out)
        be->ops->linear(be, x, y, t->out, NULL, MT_ACT_NONE, MT_NO_ROWS, batch->n_rows);
}
