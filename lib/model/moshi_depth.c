/*
 * moshi_depth.c: the depth transformer: from what the main one says about a frame to its codes, one
 * codebook a step. Its cache lives as long as the frame: a block a row, as many tokens as steps.
 *
 *   step k:  u = in[k] h + (k = 0 ? text embedding : embedding[k-1] of code k-1)
 *            logits of code k = head[k] layers(u), with the weight set of the step; no last norm
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "model/moshi.h"

static void bind_embedding(const struct moshi_config *c, struct mt_binder *b,
                           struct moshi_embedding *m, int64_t card, const char *name)
{
    int64_t dim = c->depth.dim;

    m->table = mt_bind_table(b, card + 1, c->low_rank ? c->low_rank : dim, "%s.weight", name);
    if (c->low_rank)
        m->low_rank = mt_bind_matrix(b, dim, c->low_rank, "%s.low_rank.weight", name);
}

static void bind_tensors(struct moshi_depth *d, struct mt_binder *b)
{
    const struct moshi_config *c = d->cfg;
    char name[48];

    bind_embedding(c, b, &d->text, c->text_card, "depformer_text_emb");
    for (int k = 0; k + 1 < c->dep_q; k++) {
        snprintf(name, sizeof(name), "depformer_emb.%d", k);
        bind_embedding(c, b, &d->code[k], c->card, name);
    }
    for (int k = 0; k < c->n_inputs; k++)
        d->in[k] = mt_bind_matrix(b, c->depth.dim, c->main.dim, "depformer_in.%d.weight", k);
    for (int k = 0; k < c->dep_q; k++) {
        d->head[k] = mt_bind_matrix(b, c->card, c->depth.dim, "linears.%d.weight", k);
        if (c->head_bias)
            d->head_bias[k] = mt_bind_vector(b, c->card, "linears.%d.bias", k);
    }
}

static struct mt_kv_shape cache_shape(const struct moshi_config *c)
{
    const struct moshi_stack_config *s = &c->depth;

    return (struct mt_kv_shape){s->layers, s->kv_heads, s->dim / s->heads, c->dep_q, MT_F32};
}

int moshi_depth_init(struct moshi_depth *d, const struct moshi_config *cfg, struct mt_binder *b,
                     int rows)
{
    struct mt_kv_shape shape = cache_shape(cfg);

    *d = (struct moshi_depth){.cfg = cfg, .be = b->be, .rows = rows};
    moshi_stack_bind(&d->stack, &cfg->depth, b, "depformer", rows);
    bind_tensors(d, b);
    if (cfg->low_rank)
        d->low = mt_bind_rows(b, rows, cfg->low_rank);
    d->logits = mt_bind_rows(b, rows, cfg->card);
    if (b->rc < 0)
        return b->rc;
    if ((b->rc = b->be->ops->kv_new(b->be, &d->kv, &shape, rows)) < 0)
        return mt_err_set(b->e, b->rc, "no memory for the depth transformer's cache");
    d->blocks = calloc((size_t)rows, sizeof(*d->blocks));
    d->ids = calloc((size_t)rows, sizeof(*d->ids));
    d->pos = calloc((size_t)rows, sizeof(*d->pos));
    d->runs = calloc((size_t)rows, sizeof(*d->runs));
    d->zeros = calloc((size_t)rows, (size_t)(cfg->low_rank + 1) * sizeof(*d->zeros));
    if (!d->blocks || !d->ids || !d->pos || !d->runs || !d->zeros)
        return b->rc = mt_err_set(b->e, -ENOMEM, "out of memory");
    for (int i = 0; i < rows; i++) {
        d->blocks[i] = i;
        d->runs[i] = (struct mt_run){
            .row = i,
            .n = 1,
            .view = {.blocks = &d->blocks[i], .ring_blocks = INT32_MAX, .window = INT64_MAX}};
    }
    return 0;
}

void moshi_depth_free(struct moshi_depth *d)
{
    struct mt_backend *be = d->be;

    if (!be)
        return;
    moshi_stack_free(&d->stack);
    for (int k = 0; k < MOSHI_DEPTH_MAX; k++) {
        mt_unbind(be, &d->code[k].table);
        mt_unbind(be, &d->code[k].low_rank);
        mt_unbind(be, &d->in[k]);
        mt_unbind(be, &d->head[k]);
        mt_unbind(be, &d->head_bias[k]);
    }
    mt_unbind(be, &d->text.table);
    mt_unbind(be, &d->text.low_rank);
    mt_unbind_rows(be, &d->low);
    mt_unbind_rows(be, &d->logits);
    if (d->kv)
        be->ops->kv_free(be, d->kv);
    free(d->blocks);
    free(d->ids);
    free(d->pos);
    free(d->runs);
    free(d->zeros);
    *d = (struct moshi_depth){0};
}

/* x = what positions add + embedding of ids. */
static void embed(struct moshi_depth *d, const struct moshi_embedding *m, int k, int n)
{
    const struct mt_ops *op = d->be->ops;
    struct mt_rows x = d->stack.x;

    for (int i = 0; i < n; i++)
        d->pos[i] = k;
    moshi_stack_begin(&d->stack, x, d->pos, n);
    if (!m->low_rank) {
        op->embed_add(d->be, x, m->table, d->ids, n);
        return;
    }
    op->rows_put(d->be, d->low, d->zeros, n);
    op->embed_add(d->be, d->low, m->table, d->ids, n);
    op->linear(d->be, x, d->low, m->low_rank, NULL, MT_ACT_NONE, x, n);
}

void moshi_depth_run(struct moshi_depth *d, struct mt_rows h, const int32_t *text,
                     const int32_t *codes, int n, moshi_next *next, void *ctx)
{
    const struct moshi_config *c = d->cfg;
    const struct mt_ops *op = d->be->ops;
    struct mt_batch batch = {n, n, d->runs};

    for (int k = 0; k < c->dep_q; k++) {
        int set = c->schedule[k];

        for (int i = 0; i < n; i++) {
            d->ids[i] = k == 0 ? text[i] : codes[(int64_t)i * c->dep_q + k - 1];
            d->runs[i].index = k;
        }
        embed(d, k == 0 ? &d->text : &d->code[k - 1], k, n);
        op->linear(d->be, d->stack.x, h, d->in[c->n_inputs > 1 ? set : 0], NULL, MT_ACT_NONE,
                   d->stack.x, n);
        moshi_stack_run(&d->stack, d->kv, &batch, c->depth.sets > 1 ? set : 0);
        op->linear(d->be, d->logits, d->stack.x, d->head[k], d->head_bias[k], MT_ACT_NONE,
                   MT_NO_ROWS, n);
        next(ctx, k, d->logits, n);
    }
}
