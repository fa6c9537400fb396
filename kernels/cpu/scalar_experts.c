/*
 * scalar_experts.c: a mixture of experts. Each row picks its experts; (row, expert) pairs are put
 * in order of the expert, so that each one's rows lie together and the tier's linear reads its
 * matrices once for all of them; then each row sums its pairs, ascending in the expert's number. An
 * output depends on its own row only, because linear's does. Nothing but linear and gated is hot.
 *
 * A pair's row of scratch: [x, later down's result | gate | up].
 */
#include "kernels/cpu/cpu.h"

#include <errno.h>
#include <stdlib.h>

struct mt_experts {
    int n, top, max_rows;
    bool norm;
    struct mt_mat **gate, **up, **down; /* one array */
    int *first;                         /* [n + 1]: the first pair of each expert, in their order */
    int *expert, *pair;                 /* [max_rows][top]: a row's experts, and where they stand */
    int *row;                           /* [max_rows * top]: the row of each pair, in order */
    float *weight;                      /* [max_rows][top] */
};

static void experts_free(struct mt_backend *be, struct mt_experts *x)
{
    (void)be;
    if (!x)
        return;
    free(x->gate);
    free(x->first);
    free(x->expert);
    free(x->pair);
    free(x->row);
    free(x->weight);
    free(x);
}

static int experts_new(struct mt_backend *be, struct mt_experts **out,
                       const struct mt_expert_set *set, int max_rows)
{
    struct mt_experts *x;
    size_t pairs;

    *out = NULL;
    if (set->n < 1 || set->top < 1 || set->top > set->n || max_rows < 1)
        return -EINVAL;
    if (__builtin_mul_overflow((size_t)max_rows, (size_t)set->top, &pairs) || pairs > INT32_MAX)
        return -ENOMEM;
    if (!(x = calloc(1, sizeof(*x))))
        return -ENOMEM;
    x->n = set->n;
    x->top = set->top;
    x->norm = set->norm;
    x->max_rows = max_rows;
    x->gate = calloc(3 * (size_t)set->n, sizeof(struct mt_mat *));
    x->first = calloc((size_t)set->n + 1, sizeof(*x->first));
    x->expert = calloc(pairs, sizeof(*x->expert));
    x->pair = calloc(pairs, sizeof(*x->pair));
    x->row = calloc(pairs, sizeof(*x->row));
    x->weight = calloc(pairs, sizeof(*x->weight));
    if (!x->gate || !x->first || !x->expert || !x->pair || !x->row || !x->weight) {
        experts_free(be, x);
        return -ENOMEM;
    }
    x->up = x->gate + set->n;
    x->down = x->up + set->n;
    for (int i = 0; i < set->n; i++) {
        x->gate[i] = set->gate[i];
        x->up[i] = set->up[i];
        x->down[i] = set->down[i];
    }
    *out = x;
    return 0;
}

struct job {
    struct mt_experts *ex;
    struct mt_rows out, x, logits, residual, part;
};

/* The top logits, highest first. NaN is never higher, so that the choice is always one. */
static void choose(const float *logit, int n, int top, int *id, float *value)
{
    int have = 0;

    for (int e = 0; e < n; e++) {
        int at = have < top ? have++ : top;

        for (; at > 0 && logit[e] > value[at - 1]; at--) {
            if (at == top)
                continue;
            id[at] = id[at - 1];
            value[at] = value[at - 1];
        }
        if (at < top) {
            id[at] = e;
            value[at] = logit[e];
        }
    }
}

static void route_run(void *arg, int thread, int64_t begin, int64_t end)
{
    const struct job *j = arg;
    const struct mt_experts *x = j->ex;

    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        const float *logit = j->logits.data + r * j->logits.stride;
        int *id = x->expert + r * x->top;
        float *w = x->weight + r * x->top;
        double sum = 0;

        choose(logit, x->n, x->top, id, w);
        double max = w[0];
        for (int e = 0; e < (x->norm ? x->top : x->n); e++)
            sum += exp((x->norm ? w[e] : logit[e]) - max);
        for (int i = 0; i < x->top; i++) { /* the i-th goes among those before it, by number */
            float v = (float)(exp(w[i] - max) / sum);
            int e = id[i], at = i;

            for (; at > 0 && id[at - 1] > e; at--) {
                id[at] = id[at - 1];
                w[at] = w[at - 1];
            }
            id[at] = e;
            w[at] = v;
        }
    }
}

/* Pairs by expert, rows ascending: a counting sort. */
static void group(struct mt_experts *x, int n)
{
    int pairs = n * x->top;

    memset(x->first, 0, ((size_t)x->n + 1) * sizeof(*x->first));
    for (int i = 0; i < pairs; i++)
        x->first[x->expert[i] + 1]++;
    for (int e = 0; e < x->n; e++)
        x->first[e + 1] += x->first[e];
    for (int i = 0; i < pairs; i++) {
        x->pair[i] = x->first[x->expert[i]]++;
        x->row[x->pair[i]] = i / x->top;
    }
    for (int e = x->n; e > 0; e--) /* each stands where the next one began */
        x->first[e] = x->first[e - 1];
    x->first[0] = 0;
}

static void gather_run(void *arg, int thread, int64_t begin, int64_t end)
{
    const struct job *j = arg;

    (void)thread;
    for (int64_t p = begin; p < end; p++)
        memcpy(j->part.data + p * j->part.stride, j->x.data + j->ex->row[p] * j->x.stride,
               (size_t)j->x.width * sizeof(float));
}

static void combine_run(void *arg, int thread, int64_t begin, int64_t end)
{
    const struct job *j = arg;
    const struct mt_experts *x = j->ex;

    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        const float *res = j->residual.data ? j->residual.data + r * j->residual.stride : NULL;
        float *y = j->out.data + r * j->out.stride;
        enum { PIECE = 256 };

        for (int c0 = 0; c0 < j->out.width; c0 += PIECE) {
            int n = j->out.width - c0 < PIECE ? j->out.width - c0 : PIECE;
            float sum[PIECE] = {0};

            for (int k = 0; k < x->top; k++) {
                const float *v = j->part.data + x->pair[r * x->top + k] * j->part.stride + c0;
                float w = x->weight[r * x->top + k];

                for (int c = 0; c < n; c++)
                    sum[c] += w * v[c];
            }
            for (int c = 0; c < n; c++)
                y[c0 + c] = res ? res[c0 + c] + sum[c] : sum[c];
        }
    }
}

static void experts(struct mt_backend *be, struct mt_rows out, struct mt_rows x,
                    struct mt_rows logits, struct mt_experts *ex, struct mt_rows residual,
                    struct mt_rows scratch, int n)
{
    const struct mt_ops *op = be->ops;
    int inner = (int)ex->gate[0]->rows, pairs = n * ex->top;
    struct mt_rows part = mt_rows_cols(scratch, 0, x.width);
    struct mt_rows gate = mt_rows_cols(scratch, x.width, inner);
    struct mt_rows up = mt_rows_cols(scratch, x.width + inner, inner);
    struct job j = {ex, out, x, logits, residual, part};

    if (n < 1)
        return;
    mt_par(cpu_of(be), n, (int64_t)ex->n * (ex->norm ? 2 : 20), route_run, &j);
    group(ex, n);
    mt_par(cpu_of(be), pairs, x.width, gather_run, &j);
    for (int e = 0; e < ex->n; e++) {
        int at = ex->first[e], rows = ex->first[e + 1] - at;

        if (rows == 0)
            continue;
        op->linear(be, mt_rows_from(gate, at), mt_rows_from(part, at), ex->gate[e], NULL,
                   MT_ACT_NONE, MT_NO_ROWS, rows);
        op->linear(be, mt_rows_from(up, at), mt_rows_from(part, at), ex->up[e], NULL, MT_ACT_NONE,
                   MT_NO_ROWS, rows);
    }
    op->gated(be, gate, gate, up, pairs);
    for (int e = 0; e < ex->n; e++) {
        int at = ex->first[e], rows = ex->first[e + 1] - at;

        if (rows > 0)
            op->linear(be, mt_rows_from(part, at), mt_rows_from(gate, at), ex->down[e], NULL,
                       MT_ACT_NONE, MT_NO_ROWS, rows);
    }
    mt_par(cpu_of(be), n, (int64_t)out.width * ex->top, combine_run, &j);
}

void mt_scalar_experts(struct mt_ops *o)
{
    o->experts_new = experts_new;
    o->experts_free = experts_free;
    o->experts = experts;
}
