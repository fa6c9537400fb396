/*
 * moshi_stack.c: a stack of transformer layers, either of Moshi's two:
 *
 *   each layer:  x += out attention(rope(q), rope(k), v)     [q; k; v] = in norm1(x)
 *                x += linear_out (silu(a) * b)               [a; b] = linear_in norm2(x)
 *
 * In the depth transformer each step of a frame has a weight set of its own. Checkpoints store the
 * attention's weights fused over the sets (as first released) or apart (as newer code saves them).
 *
 * Equations: kyutai-labs/moshi, moshi/moshi/modules/{transformer,gating}.py.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/moshi.h"

/* ---- tensors ---- */

void moshi_norm_bind(const struct moshi_stack_config *cfg, struct mt_binder *b, struct mt_mat **w,
                     struct mt_mat **bias, const char *name)
{
    *bias = NULL;
    if (cfg->layer_norm) {
        *w = mt_bind_vector(b, cfg->dim, "%s.weight", name);
        *bias = mt_bind_vector(b, cfg->dim, "%s.bias", name);
    } else {
        *w = mt_bind_conv(b, 1, 1, cfg->dim, "%s.alpha", name); /* stored as [1, 1, dim] */
    }
}

/* Set i of an attention's matrix: a slice of the fused one, or a tensor of its own. */
static struct mt_mat *bind_projection(struct mt_binder *b, const char *layer, const char *fused,
                                      const char *newer, const char *apart, int i, int sets,
                                      int64_t rows, int64_t cols)
{
    const char *const whole[] = {fused, newer};
    char name[128];

    for (size_t k = 0; k < MT_COUNT(whole); k++) {
        snprintf(name, sizeof(name), "%s.self_attn.%s", layer, whole[k]);
        if (mt_weights_has(b->w, name))
            return mt_bind_slice(b, rows * sets, cols, i * rows, rows, "%s", name);
    }
    snprintf(name, sizeof(name), "%s.self_attn.%s.0.weight", layer, apart);
    if (mt_weights_has(b->w, name))
        return mt_bind_matrix(b, rows, cols, "%s.self_attn.%s.%d.weight", layer, apart, i);
    return mt_bind_slice(b, rows * sets, cols, i * rows, rows, "%s.self_attn.%s", layer, fused);
}

static void bind_set(const struct moshi_stack_config *c, struct moshi_set *s, struct mt_binder *b,
                     const char *layer, int i)
{
    int64_t dim = c->dim, kv = dim / c->heads * c->kv_heads, hidden = c->hidden[i];
    char gate[128];

    s->qkv = bind_projection(b, layer, "in_proj_weight", "in_proj.weight", "in_projs", i, c->sets,
                             dim + 2 * kv, dim);
    s->out = bind_projection(b, layer, "out_proj.weight", "out_proj.weight", "out_projs", i,
                             c->sets, dim, dim);
    if (!c->gated) {
        s->ff_in = mt_bind_matrix(b, hidden, dim, "%s.linear1.weight", layer);
        s->ff_out = mt_bind_matrix(b, dim, hidden, "%s.linear2.weight", layer);
        return;
    }
    if (c->numbered)
        snprintf(gate, sizeof(gate), "%s.gating.%d", layer, i);
    else
        snprintf(gate, sizeof(gate), "%s.gating", layer);
    s->ff_in = mt_bind_matrix(b, 2 * hidden, dim, "%s.linear_in.weight", gate);
    s->ff_out = mt_bind_matrix(b, dim, hidden, "%s.linear_out.weight", gate);
}

static void bind_layer(struct moshi_stack *s, struct mt_binder *b, const char *prefix, int i)
{
    const struct moshi_stack_config *c = &s->cfg;
    struct moshi_layer *l = &s->layer[i];
    char name[96], norm[112];

    snprintf(name, sizeof(name), "%s.layers.%d", prefix, i);
    snprintf(norm, sizeof(norm), "%s.norm1", name);
    moshi_norm_bind(c, b, &l->norm1_w, &l->norm1_b, norm);
    snprintf(norm, sizeof(norm), "%s.norm2", name);
    moshi_norm_bind(c, b, &l->norm2_w, &l->norm2_b, norm);
    l->set = calloc((size_t)c->sets, sizeof(*l->set));
    if (!l->set) {
        b->rc = mt_err_set(b->e, -ENOMEM, "out of memory");
        return;
    }
    for (int k = 0; k < c->sets; k++)
        bind_set(c, &l->set[k], b, name, k);
}

void moshi_stack_bind(struct moshi_stack *s, const struct moshi_stack_config *cfg,
                      struct mt_binder *b, const char *prefix, int rows)
{
    int dim = cfg->dim, kv = dim / cfg->heads * cfg->kv_heads, widest = 0;

    *s = (struct moshi_stack){.cfg = *cfg, .be = b->be};
    if (b->rc < 0)
        return;
    s->layer = calloc((size_t)cfg->layers, sizeof(*s->layer));
    s->start = mt_alloc(mt_mul((size_t)rows, (size_t)dim), sizeof(*s->start));
    if (!s->layer || !s->start) {
        b->rc = mt_err_set(b->e, -ENOMEM, "out of memory");
        return;
    }
    memset(s->start, 0, (size_t)rows * (size_t)dim * sizeof(*s->start));
    for (int i = 0; i < cfg->layers && b->rc == 0; i++)
        bind_layer(s, b, prefix, i);
    for (int i = 0; i < cfg->sets; i++)
        widest = cfg->hidden[i] > widest ? cfg->hidden[i] : widest;
    s->x = mt_bind_rows(b, rows, dim);
    s->h = mt_bind_rows(b, rows, dim);
    s->qkv = mt_bind_rows(b, rows, dim + 2 * kv);
    s->q_sink = mt_bind_rows(b, rows, dim);
    s->att = mt_bind_rows(b, rows, dim);
    s->ff = mt_bind_rows(b, rows, cfg->gated ? 2 * widest : widest);
}

void moshi_stack_free(struct moshi_stack *s)
{
    struct mt_backend *be = s->be;

    if (!be)
        return;
    for (int i = 0; s->layer && i < s->cfg.layers; i++) {
        struct moshi_layer *l = &s->layer[i];
        struct mt_mat **norm[] = {&l->norm1_w, &l->norm1_b, &l->norm2_w, &l->norm2_b};
        for (size_t k = 0; k < MT_COUNT(norm); k++)
            mt_unbind(be, norm[k]);
        for (int k = 0; l->set && k < s->cfg.sets; k++) {
            struct moshi_set *set = &l->set[k];
            mt_unbind(be, &set->qkv);
            mt_unbind(be, &set->out);
            mt_unbind(be, &set->ff_in);
            mt_unbind(be, &set->ff_out);
        }
        free(l->set);
    }
    struct mt_rows *rows[] = {&s->x, &s->h, &s->qkv, &s->q_sink, &s->att, &s->ff};
    for (size_t k = 0; k < MT_COUNT(rows); k++)
        mt_unbind_rows(be, rows[k]);
    free(s->layer);
    free(s->start);
    *s = (struct moshi_stack){0};
}

/* ---- a step ---- */

/* Cosines first; half - 1 in the exponent, so that the last pair turns with the whole period. */
static void sinusoid(const struct moshi_stack_config *c, float *out, int64_t pos)
{
    int half = c->dim / 2;

    for (int i = 0; i < half; i++) {
        double phase = (double)pos / pow(c->sin_period, (double)i / (half - 1));
        out[i] = (float)(c->sin_scale * cos(phase));
        out[half + i] = (float)(c->sin_scale * sin(phase));
    }
}

void moshi_stack_begin(struct moshi_stack *s, struct mt_rows x, const int64_t *pos, int n)
{
    for (int i = 0; s->cfg.sin_scale != 0 && i < n; i++)
        sinusoid(&s->cfg, s->start + (int64_t)i * s->cfg.dim, pos[i]);
    s->be->ops->rows_put(s->be, x, s->start, n);
}

void moshi_norm_run(const struct moshi_stack *s, struct mt_rows out, struct mt_rows x,
                    const struct mt_mat *w, const struct mt_mat *bias, int n)
{
    if (s->cfg.layer_norm)
        s->be->ops->layer_norm(s->be, out, x, w, bias, s->cfg.eps, n);
    else
        s->be->ops->rms_norm(s->be, out, x, w, s->cfg.eps, n);
}

static void feed_forward(struct moshi_stack *s, const struct moshi_set *w, int hidden, int n)
{
    const struct mt_ops *op = s->be->ops;
    struct mt_rows a = mt_rows_cols(s->ff, 0, hidden);

    if (s->cfg.gated) {
        op->linear(s->be, mt_rows_cols(s->ff, 0, 2 * hidden), s->h, w->ff_in, NULL, MT_ACT_NONE,
                   MT_NO_ROWS, n);
        op->gated(s->be, a, a, mt_rows_cols(s->ff, hidden, hidden), n);
    } else {
        op->linear(s->be, a, s->h, w->ff_in, NULL, MT_ACT_GELU, MT_NO_ROWS, n);
    }
    op->linear(s->be, s->x, a, w->ff_out, NULL, MT_ACT_NONE, s->x, n);
}

void moshi_stack_run(struct moshi_stack *s, struct mt_kv *kv, const struct mt_batch *b, int set)
{
    const struct mt_ops *op = s->be->ops;
    int dim = s->cfg.dim, kv_dim = dim / s->cfg.heads * s->cfg.kv_heads, n = b->n_rows;
    struct mt_rows q = mt_rows_cols(s->qkv, 0, dim), k = mt_rows_cols(s->qkv, dim, kv_dim),
                   v = mt_rows_cols(s->qkv, dim + kv_dim, kv_dim);

    for (int i = 0; i < s->cfg.layers; i++) {
        const struct moshi_layer *l = &s->layer[i];
        const struct moshi_set *w = &l->set[set];

        moshi_norm_run(s, s->h, s->x, l->norm1_w, l->norm1_b, n);
        op->linear(s->be, s->qkv, s->h, w->qkv, NULL, MT_ACT_NONE, MT_NO_ROWS, n);
        op->rope_append(s->be, kv, i, s->cfg.rope, b, q, s->q_sink, k, v);
        op->attention(s->be, kv, i, b, s->att, q, s->q_sink);
        op->linear(s->be, s->x, s->att, w->out, NULL, MT_ACT_NONE, s->x, n);
        moshi_norm_run(s, s->h, s->x, l->norm2_w, l->norm2_b, n);
        feed_forward(s, w, s->cfg.hidden[set], n);
    }
}
