/*
 * freerun.c: one token a session and step. A script has an unbounded session, and behind the place
 * where an arm parts two more: the arm's own and the unbounded one that reads along.
 */
#include "engine/freerun.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/own_cache.h"

enum { BAN_MOST = 4096 };

struct session {
    struct mt_own_cache cache, judge; /* judge: of a bounded arm */
    int32_t *ids;                     /* [n] */
    int row, judge_row;               /* in the step; -1: not there */
};

struct run {
    struct mt_model *m;
    struct mt_backend *be;
    const struct mt_freerun *f;
    struct session *s; /* [n_scripts][n_arms] */
    struct mt_run *runs;
    int32_t *ids, *drawn, *ban; /* [rows], [rows], [n_scripts * n_arms][BAN_MOST] */
    int *want;
    struct mt_sample *params;
    struct mt_sample_rules *rules;
    struct mt_rows draw; /* logits of those that draw */
    int *index;          /* which rows these are */
    float *row;          /* [vocab] */
};

int mt_freerun_rows(int n_arms)
{
    return 2 * n_arms - 1;
}

static struct session *session_at(const struct run *r, int script, int arm)
{
    return &r->s[script * r->f->n_arms + arm];
}

static int check(const struct run *r, struct mt_err *e)
{
    const struct mt_model_info *i = mt_model_info(r->m);
    const struct mt_freerun *f = r->f;
    int64_t rows = (int64_t)f->n_scripts * mt_freerun_rows(f->n_arms);

    if (i->codebooks)
        return mt_err_set(e, -EINVAL, "%s takes frames of codes, not tokens", i->name);
    if (f->n_scripts < 1 || f->n_arms < 1 || f->n < 2 || f->n > INT32_MAX)
        return mt_err_set(e, -EINVAL, "no script of two tokens");
    if (rows > i->step_rows || rows > i->want_rows)
        return mt_err_set(e, -EINVAL, "%lld rows are more than the model was opened for",
                          (long long)rows);
    for (int k = 0; k < f->n_arms; k++)
        if (f->arms[k].policy.bounded != (k > 0) || f->arms[k].kv_type != f->arms[0].kv_type)
            return mt_err_set(e, -EINVAL, "setting %d is not %s of one type", k,
                              k ? "bounded, all" : "unbounded");
    for (int s = 0; s < f->n_scripts; s++)
        for (int64_t k = 0; k < f->n; k++) {
            int32_t id = f->script[s * f->n + k];

            if (id < (k ? -1 : 0) || id >= i->vocab)
                return mt_err_set(e, -EINVAL, "token %d at position %lld is not in 0..%d", id,
                                  (long long)k, i->vocab - 1);
        }
    return 0;
}

static int allocate(struct run *r, struct mt_err *e)
{
    const struct mt_freerun *f = r->f;
    const struct mt_arm whole = {.kv_type = f->arms[0].kv_type};
    size_t n = (size_t)f->n_scripts * (size_t)f->n_arms, rows = 2 * n;
    int vocab = mt_model_info(r->m)->vocab, rc = 0;

    r->s = calloc(n, sizeof(*r->s));
    r->runs = calloc(rows, sizeof(*r->runs));
    r->ids = calloc(rows, sizeof(*r->ids));
    r->drawn = calloc(rows, sizeof(*r->drawn));
    r->want = calloc(rows, sizeof(*r->want));
    r->index = calloc(rows, sizeof(*r->index));
    r->params = calloc(n, sizeof(*r->params));
    r->rules = calloc(n, sizeof(*r->rules));
    r->ban = calloc(n, BAN_MOST * sizeof(*r->ban));
    r->row = calloc((size_t)vocab, sizeof(*r->row));
    if (!r->s || !r->runs || !r->ids || !r->drawn || !r->want || !r->index || !r->params ||
        !r->rules || !r->ban || !r->row || r->be->ops->rows_new(r->be, &r->draw, (int64_t)n, vocab))
        return mt_err_set(e, -ENOMEM, "out of memory");
    for (size_t k = 0; k < n && rc == 0; k++) {
        const struct mt_arm *a = &f->arms[k % (size_t)f->n_arms];
        bool parts = mt_arm_parts(a) < f->n;

        r->s[k].ids = calloc((size_t)f->n, sizeof(*r->s[k].ids));
        if (!r->s[k].ids)
            return mt_err_set(e, -ENOMEM, "out of memory");
        r->s[k].ids[0] = f->script[(int64_t)(k / (size_t)f->n_arms) * f->n];
        if (!a->policy.bounded || parts)
            rc = mt_own_cache_init(&r->s[k].cache, r->m, &a->policy, f->n, 1, f->block_tokens,
                                   a->kv_type, e);
        if (rc == 0 && parts)
            rc = mt_own_cache_init(&r->s[k].judge, r->m, &whole.policy, f->n, 1, f->block_tokens,
                                   a->kv_type, e);
    }
    return rc;
}

static void release(struct run *r)
{
    for (int k = 0; r->s && k < r->f->n_scripts * r->f->n_arms; k++) {
        mt_own_cache_free(&r->s[k].cache);
        mt_own_cache_free(&r->s[k].judge);
        free(r->s[k].ids);
    }
    free(r->s);
    free(r->runs);
    free(r->ids);
    free(r->drawn);
    free(r->want);
    free(r->index);
    free(r->params);
    free(r->rules);
    free(r->ban);
    free(r->row);
    if (r->draw.data)
        r->be->ops->rows_free(r->be, &r->draw);
}

static struct mt_kv_view view_of(const struct mt_own_cache *c)
{
    struct mt_kv_view v = mt_own_cache_view(c);

    v.kv = c->kv;
    return v;
}

static void copy(struct run *r, const struct mt_own_cache *from, const struct mt_own_cache *to,
                 int64_t n)
{
    struct mt_kv_view was = view_of(from), is = view_of(to);

    r->be->ops->kv_copy(r->be, is.kv, &is, was.kv, &was, n);
}

static int add_run(struct run *r, int rows, const struct mt_own_cache *c, int32_t id, int64_t pos)
{
    r->runs[rows] = (struct mt_run){rows, 1, pos, view_of(c)};
    r->ids[rows] = id;
    r->want[rows] = rows;
    return rows;
}

/* Token pos of every session into one batch; arms part here. */
static int gather(struct run *r, int64_t pos)
{
    const struct mt_freerun *f = r->f;
    int rows = 0;

    for (int s = 0; s < f->n_scripts; s++)
        for (int a = 0; a < f->n_arms; a++) {
            struct session *x = session_at(r, s, a), *root = session_at(r, s, 0);
            int64_t parts = mt_arm_parts(&f->arms[a]);

            x->row = x->judge_row = -1;
            if (a && parts > pos)
                continue;
            if (a && parts == pos) {
                copy(r, &root->cache, &x->cache, pos);
                copy(r, &root->cache, &x->judge, pos);
                memcpy(x->ids, root->ids, (size_t)(pos + 1) * sizeof(*x->ids));
            }
            x->row = add_run(r, rows++, &x->cache, x->ids[pos], pos);
            if (a)
                x->judge_row = add_run(r, rows++, &x->judge, x->ids[pos], pos);
        }
    return rows;
}

/* What would end a run of n tokens that was there before. */
static int banned(const struct mt_freerun *f, const int32_t *ids, int64_t len, int32_t *out)
{
    int64_t n = f->ban_ngram;
    int count = 0;

    for (int k = 0; k < f->n_ban && count < BAN_MOST; k++)
        out[count++] = f->ban[k];
    for (int64_t at = 0; n > 0 && at + n <= len && count < BAN_MOST; at++)
        if (!memcmp(ids + at, ids + len - n + 1, (size_t)(n - 1) * sizeof(*ids)))
            out[count++] = ids[at + n - 1];
    return count;
}

/* The next token of every session that has one: given or drawn. -EPROTO where nothing can be. */
static int next_tokens(struct run *r, struct mt_rows logits, int64_t pos)
{
    const struct mt_freerun *f = r->f;
    int n = 0, k = 0;

    for (int s = 0; s < f->n_scripts; s++)
        for (int a = 0; a < f->n_arms; a++) {
            struct session *x = session_at(r, s, a);
            int32_t given = f->script[s * f->n + pos + 1];

            if (x->row < 0)
                continue;
            x->ids[pos + 1] = given;
            if (given >= 0)
                continue;
            int32_t *ban = r->ban + (int64_t)n * BAN_MOST;
            r->rules[n] = (struct mt_sample_rules){
                .exit_id = -1, .ban = ban, .n_ban = banned(f, x->ids, pos + 1, ban)};
            r->params[n] = (struct mt_sample){f->temperature, f->top_k,      f->top_p,
                                              f->seed[s],     (uint64_t)pos, &r->rules[n]};
            r->index[n++] = x->row;
        }
    if (n == 0)
        return 0;
    r->be->ops->gather(r->be, r->draw, logits, r->index, n);
    r->be->ops->sample(r->be, r->draw, r->params, r->drawn, n);
    for (int i = 0; i < f->n_scripts * f->n_arms; i++) {
        if (r->s[i].row < 0 || r->s[i].ids[pos + 1] >= 0)
            continue;
        if (r->drawn[k] < 0)
            return -EPROTO;
        r->s[i].ids[pos + 1] = r->drawn[k++];
    }
    return 0;
}

static float loss(struct run *r, struct mt_rows logits, int row, int32_t id)
{
    int vocab = mt_model_info(r->m)->vocab;
    double sum = 0;
    float top = -INFINITY;

    r->be->ops->rows_get(r->be, r->row, mt_rows_from(logits, row), 1);
    for (int i = 0; i < vocab; i++)
        top = r->row[i] > top ? r->row[i] : top;
    for (int i = 0; i < vocab; i++)
        sum += (double)expf(r->row[i] - top);
    return (float)(top + log(fmax(sum, 1)) - (double)r->row[id]);
}

/* Tokens pos + 1 with their losses; an arm that has not parted is the first one. */
static int give(struct run *r, struct mt_rows logits, int64_t pos)
{
    const struct mt_freerun *f = r->f;
    int rc = 0;

    for (int s = 0; s < f->n_scripts; s++) {
        float first = NAN;

        for (int a = 0; a < f->n_arms && rc == 0; a++) {
            const struct session *x = session_at(r, s, a);
            bool own = x->row >= 0;
            int32_t id = own ? x->ids[pos + 1] : session_at(r, s, 0)->ids[pos + 1];
            float nll = first;

            if (own)
                nll = loss(r, logits, a ? x->judge_row : x->row, id);
            if (a == 0)
                first = nll;
            rc = f->token(f->ctx, s, a, pos + 1, id, nll);
        }
    }
    return rc;
}

static int step(struct run *r, int64_t pos, struct mt_err *e)
{
    struct mt_rows logits;
    int rows = gather(r, pos);
    struct mt_step s = {
        .batch = {rows, rows, r->runs}, .ids = r->ids, .want = r->want, .n_want = rows};
    int rc = mt_model_step(r->m, r->s[0].cache.kv, &s, &logits);

    if (rc < 0)
        return mt_err_set(e, rc, "the model can't take %d rows: %s", rows, strerror(-rc));
    if ((rc = next_tokens(r, logits, pos)) < 0)
        return mt_err_set(e, rc, "the model's answer at position %lld is no numbers",
                          (long long)pos);
    return give(r, logits, pos);
}

int mt_freerun_run(struct mt_model *m, const struct mt_freerun *f, struct mt_err *e)
{
    struct run r = {.m = m, .be = mt_model_backend(m), .f = f};
    int rc = check(&r, e);

    if (rc == 0)
        rc = allocate(&r, e);
    for (int s = 0; rc == 0 && s < f->n_scripts; s++)
        for (int a = 0; a < f->n_arms && rc == 0; a++)
            rc = f->token(f->ctx, s, a, 0, f->script[s * f->n], NAN);
    for (int64_t pos = 0; rc == 0 && pos + 1 < f->n; pos++)
        rc = step(&r, pos, e);
    release(&r);
    return rc;
}
