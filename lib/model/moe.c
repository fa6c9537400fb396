/*
 * moe.c: mixtures of experts over the operations table. Which rows go where is the backend's: it
 * sees the whole step and reads each expert that any row needs once.
 */
#include "model/moe.h"

#include <errno.h>
#include <stdlib.h>

enum { EXPERTS_MAX = 4096 };

static int parse_plain(const json_t *text, const char *where, int layers, struct mt_moe_config *c,
                       struct mt_err *e)
{
    const json_t *list = json_object_get(text, "mlp_only_layers"), *v;
    size_t i;

    if (!list || json_is_null(list))
        return 0;
    if (!json_is_array(list))
        return mt_err_set(e, -EPROTO, "%s.mlp_only_layers is not an array", where);
    json_array_foreach(list, i, v)
    {
        json_int_t at = json_integer_value(v);
        if (!json_is_integer(v) || at < 0 || at >= layers)
            return mt_err_set(e, -EPROTO, "%s.mlp_only_layers[%zu] is not an integer in 0..%d",
                              where, i, layers - 1);
        c->plain[at / 8] |= (unsigned char)(1 << at % 8);
    }
    return 0;
}

int mt_moe_config_parse(const json_t *text, const char *where, int layers,
                        struct mt_moe_config *out, struct mt_err *e)
{
    const json_t *norm = json_object_get(text, "norm_topk_prob");
    struct mt_moe_config c = {0};
    int64_t n, top, ffn, every;
    int rc;

    if ((rc = mt_config_int(text, where, "num_experts", 0, EXPERTS_MAX, 128, &n, e)) < 0 ||
        (rc = mt_config_int(text, where, "num_experts_per_tok", 1, EXPERTS_MAX, 8, &top, e)) < 0 ||
        (rc = mt_config_int(text, where, "moe_intermediate_size", 1, 1 << 20, 768, &ffn, e)) < 0 ||
        (rc = mt_config_int(text, where, "decoder_sparse_step", 1, 1 << 20, 1, &every, e)) < 0 ||
        (rc = parse_plain(text, where, layers, &c, e)) < 0)
        return rc;
    if (n > 0 && top > n)
        return mt_err_set(e, -EPROTO, "%s: num_experts_per_tok %lld is above num_experts %lld",
                          where, (long long)top, (long long)n);
    if (norm && !json_is_boolean(norm) && !json_is_null(norm))
        return mt_err_set(e, -EPROTO, "%s.norm_topk_prob is neither true nor false", where);
    c.n = (int)n;
    c.top = (int)top;
    c.ffn = (int)ffn;
    c.every = (int)every;
    c.norm = !json_is_false(norm);
    *out = c;
    return 0;
}

bool mt_moe_at(const struct mt_moe_config *c, int i)
{
    return c->n > 0 && (i + 1) % c->every == 0 && !(c->plain[i / 8] >> i % 8 & 1);
}

void mt_moe_bind(struct mt_moe *m, const struct mt_moe_config *c, int hidden, int step_rows,
                 struct mt_binder *b, const char *prefix)
{
    struct mt_mat **mat;

    if (b->rc < 0)
        return;
    if (!(m->mat = mat = calloc(3 * (size_t)c->n, sizeof(struct mt_mat *)))) {
        b->rc = mt_err_set(b->e, -ENOMEM, "out of memory");
        return;
    }
    m->n = c->n;
    m->router = mt_bind_matrix(b, c->n, hidden, "%s.gate.weight", prefix);
    for (int i = 0; i < c->n; i++) {
        mat[i] = mt_bind_matrix(b, c->ffn, hidden, "%s.experts.%d.gate_proj.weight", prefix, i);
        mat[c->n + i] =
            mt_bind_matrix(b, c->ffn, hidden, "%s.experts.%d.up_proj.weight", prefix, i);
        mat[2 * c->n + i] =
            mt_bind_matrix(b, hidden, c->ffn, "%s.experts.%d.down_proj.weight", prefix, i);
    }
    if (b->rc < 0)
        return;
    const struct mt_expert_set set = {c->n, c->top,     c->norm,
                                      mat,  mat + c->n, mat + 2 * (ptrdiff_t)c->n};
    b->rc = b->be->ops->experts_new(b->be, &m->experts, &set, step_rows);
    if (b->rc < 0)
        mt_err_set(b->e, b->rc, "%s: no memory for the routing of %d experts", prefix, c->n);
}

void mt_moe_free(struct mt_moe *m, struct mt_backend *be)
{
    if (m->experts)
        be->ops->experts_free(be, m->experts);
    mt_unbind(be, &m->router);
    for (int i = 0; m->mat && i < 3 * m->n; i++)
        mt_unbind(be, &m->mat[i]);
    free(m->mat);
    *m = (struct mt_moe){0};
}

void mt_moe_scratch_bind(struct mt_moe_scratch *s, const struct mt_moe_config *c, int hidden,
                         int step_rows, struct mt_binder *b)
{
    s->logits = mt_bind_rows(b, step_rows, c->n);
    s->pairs = mt_bind_rows(b, (int64_t)step_rows * c->top, hidden + 2 * c->ffn);
}

void mt_moe_scratch_free(struct mt_moe_scratch *s, struct mt_backend *be)
{
    mt_unbind_rows(be, &s->logits);
    mt_unbind_rows(be, &s->pairs);
}

void mt_moe_run(const struct mt_moe *m, struct mt_backend *be, const struct mt_moe_scratch *s,
                struct mt_rows x, struct mt_rows h, int n)
{
    be->ops->linear(be, s->logits, h, m->router, NULL, MT_ACT_NONE, MT_NO_ROWS, n);
    be->ops->experts(be, x, h, s->logits, m->experts, x, s->pairs, n);
}
