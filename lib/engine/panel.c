/*
 * panel.c: the arms of a panel through one step after another. A step holds as many tokens of every
 * arm that is on its own as the model's rows allow, and ends where another arm parts from the
 * unbounded one that it was until then.
 */
#include "engine/panel.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/own_cache.h"

enum { CHUNK = 64 };

struct arm {
    const struct mt_arm *a;
    int root;      /* the unbounded arm that it is at first, itself where that is */
    int64_t parts; /* from this index on it is on its own; -1: from the beginning */
    struct mt_own_cache cache;
};

struct run {
    struct mt_model *m;
    struct mt_backend *be;
    const struct mt_panel *p;
    int64_t n; /* rows of an arm */
    int chunk;
    struct arm *arm;
    struct mt_run *runs;
    int32_t *ids;
    int *want;
    int *row;                  /* of an arm in the step, -1: its root's */
    struct mt_expected *said;  /* [n_arms][CHUNK] of the step */
    float *first, *p0, *other; /* [vocab] log-probs and probabilities of the first arm */
};

int64_t mt_arm_parts(const struct mt_arm *a)
{
    return a->policy.bounded ? a->policy.window + a->policy.sinks : INT64_MAX;
}

static int check(const struct run *r, struct mt_err *e)
{
    const struct mt_model_info *i = mt_model_info(r->m);
    const struct mt_panel *p = r->p;

    if (i->codebooks)
        return mt_err_set(e, -EINVAL, "%s takes frames of codes, not tokens", i->name);
    if (p->n < 2 || p->n > INT32_MAX)
        return mt_err_set(e, -EINVAL, "%lld tokens are not in 2..%d", (long long)p->n, INT32_MAX);
    for (int64_t k = 0; k < p->n; k++)
        if (p->ids[k] < 0 || p->ids[k] >= i->vocab)
            return mt_err_set(e, -EINVAL, "token %d at position %lld is not in 0..%d", p->ids[k],
                              (long long)k, i->vocab - 1);
    if (p->n_arms < 1 || p->n_arms > i->step_rows || p->n_arms > i->want_rows)
        return mt_err_set(e, -EINVAL, "%d settings at once are not in 1..%d", p->n_arms,
                          i->step_rows < i->want_rows ? i->step_rows : i->want_rows);
    return 0;
}

static int find_root(const struct mt_panel *p, int i)
{
    const struct mt_arm *a = &p->arms[i];

    for (int k = 0; k < p->n_arms; k++)
        if (!p->arms[k].policy.bounded && p->arms[k].kv_type == a->kv_type &&
            p->arms[k].moved == a->moved)
            return k;
    return -1;
}

static int open_arms(struct run *r, struct mt_err *e)
{
    const struct mt_panel *p = r->p;

    for (int i = 0; i < p->n_arms; i++) {
        struct arm *a = &r->arm[i];

        a->a = &p->arms[i];
        a->root = find_root(p, i);
        a->parts = p->arms[i].policy.bounded ? mt_arm_parts(&p->arms[i]) : -1;
        if (a->root < 0 || p->arms[0].policy.bounded)
            return mt_err_set(e, -EINVAL, "setting %d has no unbounded one beside it", i);
        if (a->root != i && a->parts < 0)
            return mt_err_set(e, -EINVAL, "settings %d and %d are the same", a->root, i);
        int rc = mt_own_cache_init(&a->cache, r->m, &a->a->policy, p->n, r->chunk, p->block_tokens,
                                   a->a->kv_type, e);
        if (rc < 0)
            return rc;
    }
    return 0;
}

static int allocate(struct run *r)
{
    size_t n = (size_t)r->p->n_arms, v = (size_t)mt_model_info(r->m)->vocab;
    size_t rows = n * (size_t)r->chunk;

    r->arm = calloc(n, sizeof(*r->arm));
    r->runs = calloc(n, sizeof(*r->runs));
    r->row = calloc(n, sizeof(*r->row));
    r->ids = calloc(rows, sizeof(*r->ids));
    r->want = calloc(rows, sizeof(*r->want));
    r->said = calloc(rows, sizeof(*r->said));
    r->first = calloc(v, sizeof(*r->first));
    r->p0 = calloc(v, sizeof(*r->p0));
    r->other = calloc(v, sizeof(*r->other));
    return r->arm && r->runs && r->row && r->ids && r->want && r->said && r->first && r->p0 &&
                   r->other
               ? 0
               : -ENOMEM;
}

static void release(struct run *r)
{
    for (int i = 0; r->arm && i < r->p->n_arms; i++)
        mt_own_cache_free(&r->arm[i].cache);
    free(r->arm);
    free(r->runs);
    free(r->row);
    free(r->ids);
    free(r->want);
    free(r->said);
    free(r->first);
    free(r->p0);
    free(r->other);
}

static struct mt_kv_view view_of(const struct arm *a)
{
    struct mt_kv_view v = mt_own_cache_view(&a->cache);

    v.kv = a->cache.kv;
    v.moved = a->a->moved;
    return v;
}

/* Logits to log-probs in place; sums in f64. Where NaN is, all of it becomes NaN. Its best, too. */
static int log_softmax(float *x, int n)
{
    double sum = 0;
    int best = 0;

    for (int i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    float top = x[best];
    for (int i = 0; i < n; i++)
        sum += i == best ? 0 : (double)expf(x[i] - top);
    double off = top + log1p(sum); /* the best one is the 1 */
    for (int i = 0; i < n; i++)
        x[i] = (float)(x[i] - off);
    return best;
}

static double divergence(const float *p0, const float *first, const float *other, int n)
{
    double sum = 0;

    for (int i = 0; i < n; i++)
        sum += (double)p0[i] * ((double)first[i] - (double)other[i]);
    return sum > 0 || isnan(sum) ? sum : 0; /* below 0 is rounding */
}

/* What all arms say at token k of the step. */
static void read_position(struct run *r, struct mt_rows logits, int k, int32_t next)
{
    int vocab = mt_model_info(r->m)->vocab, best = 0;

    for (int i = 0; i < r->p->n_arms; i++) {
        struct mt_expected *x = &r->said[i * r->chunk + k];
        float *l = i ? r->other : r->first;

        if (r->row[i] < 0)
            continue;
        r->be->ops->rows_get(r->be, l, mt_rows_from(logits, r->row[i] + k), 1);
        int mine = log_softmax(l, vocab);
        *x = (struct mt_expected){-l[next], 0, true, mine == next};
        if (i == 0) {
            best = mine;
            for (int v = 0; v < vocab && r->p->n_arms > 1; v++)
                r->p0[v] = expf(l[v]);
        } else {
            x->kl = (float)divergence(r->p0, r->first, l, vocab);
            x->agree = mine == best;
        }
    }
}

static int give(struct run *r, int64_t from, int n)
{
    int rc = 0;

    for (int i = 0; i < r->p->n_arms; i++) {
        int src = r->row[i] < 0 ? r->arm[i].root : i;
        for (int k = 0; k < n && rc == 0; k++)
            rc = r->p->row(r->p->ctx, i, from + k, &r->said[src * r->chunk + k]);
    }
    return rc;
}

/* Tokens of the step that begins at `from`: up to where an arm parts. */
static int step_length(const struct run *r, int64_t from)
{
    const struct mt_model_info *info = mt_model_info(r->m);
    int rows = info->step_rows < info->want_rows ? info->step_rows : info->want_rows;
    int alone = 1; /* the first one always is */
    int64_t n = r->n - from;

    for (int i = 1; i < r->p->n_arms; i++) {
        int64_t parts = r->arm[i].parts;

        alone += parts <= from;
        if (parts > from && parts - from < n)
            n = parts - from;
    }
    if (n > rows / alone)
        n = rows / alone;
    return n < r->chunk ? (int)n : r->chunk;
}

static int step(struct run *r, int64_t from, int n, struct mt_err *e)
{
    struct mt_step s = {.ids = r->ids, .want = r->want, .watch = r->p->watch};
    struct mt_rows logits;
    int rows = 0, runs = 0;

    for (int i = 0; i < r->p->n_arms; i++) {
        struct arm *a = &r->arm[i];

        r->row[i] = -1;
        if (a->parts > from)
            continue;
        if (a->parts == from) {
            const struct arm *root = &r->arm[a->root];
            struct mt_kv_view to = view_of(a), was = view_of(root);

            r->be->ops->kv_copy(r->be, to.kv, &to, was.kv, &was, from);
        }
        r->runs[runs++] = (struct mt_run){rows, n, from, view_of(a)};
        r->row[i] = rows;
        for (int k = 0; k < n; k++, rows++) {
            r->ids[rows] = r->p->ids[from + k];
            r->want[rows] = rows;
        }
    }
    s.batch = (struct mt_batch){rows, runs, r->runs};
    s.n_want = rows;
    int rc = mt_model_step(r->m, r->arm[0].cache.kv, &s, &logits);
    if (rc < 0)
        return mt_err_set(e, rc, "the model can't take %d rows: %s", rows, strerror(-rc));
    for (int k = 0; k < n; k++)
        read_position(r, logits, k, r->p->ids[from + k + 1]);
    return give(r, from, n);
}

int mt_panel_run(struct mt_model *m, const struct mt_panel *p, struct mt_err *e)
{
    struct run r = {.m = m, .be = mt_model_backend(m), .p = p, .n = p->n - 1};
    int rc = check(&r, e);

    r.chunk = mt_model_info(m)->step_rows < CHUNK ? mt_model_info(m)->step_rows : CHUNK;
    if (rc == 0 && (rc = allocate(&r)) < 0)
        mt_err_set(e, rc, "out of memory");
    if (rc == 0)
        rc = open_arms(&r, e);
    for (int64_t from = 0; rc == 0 && from < r.n;) {
        int n = step_length(&r, from);

        rc = step(&r, from, n, e);
        from += n;
    }
    release(&r);
    return rc;
}
