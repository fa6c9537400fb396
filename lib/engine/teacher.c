/*
 * teacher.c: teacher forcing: given tokens and audio rows through a cache under a policy, log-probs
 * of chosen positions out. The instrument behind mt-probe logits; it shares the model's step and
 * the cache's layout with live sessions, so that what it measures is what they compute.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/own_cache.h"

enum { CHUNK = 64 };

struct run {
    struct mt_model *m;
    struct mt_backend *be;
    const struct mt_teacher *t;
    int chunk;
    struct mt_own_cache cache;
    struct mt_rows audio; /* [CHUNK, hidden] of the chunk */
    float *row;
    float *codes; /* [rows of a chunk, codebooks made, code_bins], NULL without codebooks */
    int64_t audio_used, at_used;
};

static int check_frames(const struct run *r, struct mt_err *e)
{
    const struct mt_model_info *i = mt_model_info(r->m);
    int streams = 1 + i->codebooks;

    if (!r->t->frames)
        return mt_err_set(e, -EINVAL, "the model takes frames of %d codes, not tokens", streams);
    for (int64_t k = 0; k < r->t->n * streams; k++) {
        int top = k % streams ? i->code_bins : i->text_card;
        if (r->t->frames[k] < -1 || r->t->frames[k] > top)
            return mt_err_set(e, -EINVAL, "code %d of frame %lld is %d, not in -1..%d",
                              (int)(k % streams), (long long)(k / streams), r->t->frames[k], top);
    }
    return 0;
}

static int check_ids(const struct run *r, struct mt_err *e)
{
    const struct mt_model_info *i = mt_model_info(r->m);
    int64_t places = 0;

    if (r->t->frames)
        return mt_err_set(e, -EINVAL, "the model has no codebooks");
    for (int64_t k = 0; k < r->t->n; k++) {
        if (r->t->ids[k] < 0 || r->t->ids[k] >= i->vocab)
            return mt_err_set(e, -EINVAL, "token %d at position %lld is not in 0..%d", r->t->ids[k],
                              (long long)k, i->vocab - 1);
        places += r->t->ids[k] == i->audio_id;
    }
    if (places != r->t->n_audio)
        return mt_err_set(
            e, -EPROTO, "%lld audio placeholders (token %d) in the tokens, but %lld rows of audio",
            (long long)places, i->audio_id, (long long)r->t->n_audio);
    return 0;
}

static int check(const struct run *r, struct mt_err *e)
{
    const struct mt_model_info *i = mt_model_info(r->m);

    if (r->t->n < 1 || r->t->n > INT32_MAX)
        return mt_err_set(e, -EINVAL, "%lld tokens are not in 1..%d", (long long)r->t->n,
                          INT32_MAX);
    int rc = i->codebooks ? check_frames(r, e) : check_ids(r, e);
    if (rc < 0)
        return rc;
    for (int64_t k = 0; k < r->t->n_at; k++) {
        if (r->t->at[k] < 0 || r->t->at[k] >= r->t->n)
            return mt_err_set(e, -EINVAL, "position %lld is not in 0..%lld", (long long)r->t->at[k],
                              (long long)r->t->n - 1);
        if (k > 0 && r->t->at[k] <= r->t->at[k - 1])
            return mt_err_set(e, -EINVAL, "position %lld comes behind %lld", (long long)r->t->at[k],
                              (long long)r->t->at[k - 1]);
    }
    return 0;
}

static int allocate(struct run *r)
{
    const struct mt_model_info *i = mt_model_info(r->m);
    int rc = r->be->ops->rows_new(r->be, &r->audio, CHUNK, i->hidden);

    if (rc < 0)
        return rc;
    r->row = malloc(mt_mul((size_t)i->vocab, sizeof(*r->row)));
    if (i->codebooks)
        r->codes = malloc(mt_mul(mt_mul((size_t)r->chunk, (size_t)i->codebooks_made),
                                 (size_t)i->code_bins * sizeof(*r->codes)));
    return r->row && (r->codes || !i->codebooks) ? 0 : -ENOMEM;
}

/* Logits to log-probs, in place; the sum in f64. */
static void log_softmax(float *x, int n)
{
    double sum = 0, most = -INFINITY;

    for (int i = 0; i < n; i++)
        most = x[i] > most ? x[i] : most;
    for (int i = 0; i < n; i++)
        sum += exp(x[i] - most);
    for (int i = 0; i < n; i++)
        x[i] = (float)(x[i] - most - log(sum));
}

/* Tokens of the chunk; rows of audio take the place of the placeholders. */
static int put_tokens(struct run *r, int64_t from, int n, int32_t *ids, struct mt_audio_rows *audio)
{
    const struct mt_model_info *i = mt_model_info(r->m);
    int n_audio = 0;

    for (int k = 0; k < n; k++) {
        ids[k] = r->t->ids[from + k];
        if (ids[k] == i->audio_id) {
            struct mt_rows at = mt_rows_from(r->audio, n_audio);
            r->be->ops->rows_put(r->be, at, r->t->audio + r->audio_used++ * i->hidden, 1);
            audio[n_audio++] = (struct mt_audio_rows){k, 1, at};
            ids[k] = -1;
        }
    }
    return n_audio;
}

static void take_codes(void *ctx, int k, struct mt_rows logits, int n)
{
    struct run *r = ctx;
    const struct mt_model_info *i = mt_model_info(r->m);

    for (int w = 0; w < n; w++) {
        float *row = r->codes + ((int64_t)w * i->codebooks_made + k) * i->code_bins;
        r->be->ops->rows_get(r->be, row, mt_rows_from(logits, w), 1);
        log_softmax(row, i->code_bins);
    }
}

/* The wanted rows of a step, in order. */
static int give(struct run *r, struct mt_rows logits, int n)
{
    const struct mt_teacher *t = r->t;
    const struct mt_model_info *i = mt_model_info(r->m);
    int rc = 0;

    if (t->frames && n > 0)
        mt_model_teach_codes(r->m, t->frames, t->at + r->at_used, n, take_codes, r);
    for (int w = 0; w < n && rc == 0; w++) {
        int64_t pos = t->at[r->at_used++];
        r->be->ops->rows_get(r->be, r->row, mt_rows_from(logits, w), 1);
        log_softmax(r->row, i->vocab);
        rc = t->row(t->ctx, pos, r->row, i->vocab);
        for (int k = 0; t->frames && k < i->codebooks_made && rc == 0; k++)
            rc = t->code_row(t->ctx, pos, k,
                             r->codes + ((int64_t)w * i->codebooks_made + k) * i->code_bins,
                             i->code_bins);
    }
    return rc;
}

static int run_chunk(struct run *r, int64_t from, int n, struct mt_err *e)
{
    const struct mt_teacher *t = r->t;
    struct mt_run one = {0, n, from, mt_own_cache_view(&r->cache)};
    struct mt_audio_rows audio[CHUNK];
    int32_t ids[CHUNK];
    int want[CHUNK], n_want = 0, n_audio = 1, rc;
    struct mt_rows logits;

    if (t->frames) {
        mt_model_teach_input(r->m, t->frames, from, n, ids, r->audio);
        audio[0] = (struct mt_audio_rows){0, n, r->audio};
    } else {
        n_audio = put_tokens(r, from, n, ids, audio);
    }
    for (int k = 0; k < n; k++)
        if (r->at_used + n_want < t->n_at && t->at[r->at_used + n_want] == from + k)
            want[n_want++] = k;
    struct mt_step st = {{n, 1, &one}, ids, audio, n_audio, want, .n_want = n_want};
    if ((rc = mt_model_step(r->m, r->cache.kv, &st, &logits)) < 0)
        return mt_err_set(e, rc, "the model can't take %d rows: %s", n, strerror(-rc));
    return give(r, logits, n_want);
}

int mt_teacher_run(struct mt_model *m, const struct mt_teacher *t, struct mt_err *e)
{
    const struct mt_model_info *i = mt_model_info(m);
    struct run r = {.m = m, .be = mt_model_backend(m), .t = t};
    int rc = check(&r, e);

    r.chunk = i->want_rows < CHUNK ? i->want_rows : CHUNK; /* any of its rows may be wanted */

    if (rc == 0)
        rc = mt_own_cache_init(&r.cache, m, &t->policy, t->n, r.chunk, t->block_tokens, t->kv_type,
                               e);
    if (rc == 0 && (rc = allocate(&r)) < 0)
        mt_err_set(e, rc, "out of memory");
    for (int64_t from = 0; rc == 0 && from < t->n; from += r.chunk)
        rc = run_chunk(&r, from, (int)(t->n - from < r.chunk ? t->n - from : r.chunk), e);
    mt_own_cache_free(&r.cache);
    if (r.audio.data)
        r.be->ops->rows_free(r.be, &r.audio);
    free(r.row);
    free(r.codes);
    return rc;
}
