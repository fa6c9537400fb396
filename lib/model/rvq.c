/*
 * rvq.c: the split residual quantiser over the operations table. A codebook is stored as sums and
 * how often each was used; its vectors are made once, at start.
 */
#include "model/rvq.h"

#include <errno.h>
#include <stdlib.h>

/* Less use than this counts as this. */
#define USAGE_MIN 1e-5F
#define AT_ONCE   64 /* rows of a codebook that are read together */

static const char *const group_name[] = {"rvq_first", "rvq_rest"};

/* The n rows of m as floats in host memory. */
static void read_rows(struct mt_backend *be, const struct mt_mat *m, int64_t n, struct mt_rows tmp,
                      float *out)
{
    int32_t ids[AT_ONCE];

    for (int64_t r = 0; r < n; r += AT_ONCE) {
        int part = n - r < AT_ONCE ? (int)(n - r) : AT_ONCE;

        for (int i = 0; i < part; i++)
            ids[i] = (int32_t)(r + i);
        be->ops->embed(be, tmp, m, ids, part);
        be->ops->rows_get(be, out + r * tmp.width, tmp, part);
    }
}

static void bind_codebook(struct mt_rvq *q, int level, const struct mt_mimi_config *c,
                          const char *group, int in_group, struct mt_mimi_binder *b)
{
    struct mt_backend *be = b->b.be;
    struct mt_mat *sum =
        mt_mimi_matrix(b, c->bins, c->code_dim, "quantizer.%s.vq.layers.%d._codebook.embedding_sum",
                       group, in_group);
    struct mt_mat *usage = mt_mimi_vector(
        b, c->bins, "quantizer.%s.vq.layers.%d._codebook.cluster_usage", group, in_group);
    struct mt_rows sums = mt_bind_rows(&b->b, AT_ONCE, c->code_dim),
                   uses = mt_bind_rows(&b->b, 1, c->bins);
    float *v = mt_alloc(mt_mul((size_t)c->bins, (size_t)c->code_dim), sizeof(*v)),
          *use = mt_alloc((size_t)c->bins, sizeof(*use));
    struct mt_bytes bytes = {v, MT_F32, c->bins, c->code_dim, false};

    q->host[level] = v;
    if (b->b.rc == 0 && (!v || !use))
        b->b.rc = mt_err_set(b->b.e, -ENOMEM, "no memory for %d codebooks", level + 1);
    if (b->b.rc == 0 && v && use) {
        read_rows(be, sum, c->bins, sums, v);
        read_rows(be, usage, 1, uses, use);
        for (int64_t i = 0; i < c->bins; i++)
            for (int64_t k = 0; k < c->code_dim; k++)
                v[i * c->code_dim + k] /= use[i] > USAGE_MIN ? use[i] : USAGE_MIN;
        if ((b->b.rc = be->ops->mat_new(be, &q->codebook[level], &bytes)) < 0)
            mt_err_set(b->b.e, b->b.rc, "no memory for %d codebooks", level + 1);
        q->own_bytes += bytes.rows * bytes.cols * (int64_t)sizeof(*v);
    }
    free(use);
    mt_unbind_rows(be, &sums);
    mt_unbind_rows(be, &uses);
    mt_unbind(be, &sum);
    mt_unbind(be, &usage);
}

void mt_rvq_bind(struct mt_rvq *q, const struct mt_mimi_config *c, int levels, int at_once,
                 struct mt_mimi_binder *b)
{
    int semantic = levels < c->semantic ? levels : c->semantic;

    *q = (struct mt_rvq){.group = {{.n = semantic}, {.first = semantic, .n = levels - semantic}},
                         .levels = levels};
    for (int g = 0; g < 2; g++) {
        struct mt_rvq_group *p = &q->group[g];

        if (p->n == 0)
            continue;
        p->in = mt_mimi_pointwise(b, c->code_dim, c->dim, "quantizer.%s.input_proj.weight",
                                  group_name[g]);
        p->out = mt_mimi_pointwise(b, c->dim, c->code_dim, "quantizer.%s.output_proj.weight",
                                   group_name[g]);
        for (int i = 0; i < p->n && b->b.rc == 0; i++)
            bind_codebook(q, p->first + i, c, group_name[g], i, b);
    }
    q->v = mt_bind_rows(&b->b, at_once, c->code_dim);
    q->ids = calloc((size_t)at_once, sizeof(*q->ids));
    if (!q->ids && b->b.rc == 0)
        b->b.rc = mt_err_set(b->b.e, -ENOMEM, "out of memory");
}

void mt_rvq_free(struct mt_rvq *q, struct mt_backend *be)
{
    for (int g = 0; g < 2; g++) {
        mt_unbind(be, &q->group[g].in);
        mt_unbind(be, &q->group[g].out);
    }
    for (int i = 0; i < MT_MIMI_CODEBOOKS_MAX; i++) {
        mt_unbind(be, &q->codebook[i]);
        free(q->host[i]);
        q->host[i] = NULL;
    }
    mt_unbind_rows(be, &q->v);
    free(q->ids);
    q->ids = NULL;
}

void mt_rvq_encode(const struct mt_rvq *q, struct mt_backend *be, struct mt_rows x, int n,
                   int32_t *codes)
{
    for (int g = 0; g < 2; g++) {
        const struct mt_rvq_group *p = &q->group[g];

        if (p->n)
            be->ops->linear(be, q->v, x, p->in, NULL, MT_ACT_NONE, MT_NO_ROWS, n);
        for (int l = p->first; l < p->first + p->n; l++) {
            be->ops->quantize(be, q->ids, q->v, q->codebook[l], n);
            for (int i = 0; i < n; i++)
                codes[(int64_t)i * q->levels + l] = q->ids[i];
        }
    }
}

void mt_rvq_decode(const struct mt_rvq *q, struct mt_backend *be, const int32_t *codes, int n,
                   struct mt_rows y)
{
    for (int g = 0; g < 2; g++) {
        const struct mt_rvq_group *p = &q->group[g];

        for (int l = p->first; l < p->first + p->n; l++) {
            for (int i = 0; i < n; i++)
                q->ids[i] = codes[(int64_t)i * q->levels + l];
            if (l == p->first)
                be->ops->embed(be, q->v, q->codebook[l], q->ids, n);
            else
                be->ops->embed_add(be, q->v, q->codebook[l], q->ids, n);
        }
        if (p->n)
            be->ops->linear(be, y, q->v, p->out, NULL, MT_ACT_NONE, g ? y : MT_NO_ROWS, n);
    }
}
