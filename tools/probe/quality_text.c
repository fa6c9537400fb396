/*
 * quality_text.c: a text as passages of equal length, spread evenly over it: nobody chooses them.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "tools/probe/quality.h"

enum { DEFAULT_TOKENS = 4096, WINDOWS_LONG = 4, ATTENTION_TOKENS = 1024 };

int quality_prompt(const struct quality_options *o, enum mt_mode mode, int32_t **ids, int *n,
                   struct mt_err *e)
{
    struct mt_model *m = o->pm.m;
    struct mt_ear *ear = NULL;
    struct mt_talk *talk = NULL;
    int rc = mt_ear_new(&ear, m, mt_model_info(m)->beat_samples, 1, e);

    *ids = NULL;
    if (rc == 0)
        rc = mt_talk_new(&talk, m, mode, o->system, ear, e);
    if (rc == 0) {
        const int32_t *prompt = mt_talk_prompt(talk, n);

        *ids = malloc(mt_mul((size_t)*n + 1, sizeof(*prompt)));
        if (*ids)
            memcpy(*ids, prompt, (size_t)*n * sizeof(*prompt));
        else
            rc = mt_err_set(e, -ENOMEM, "out of memory");
    }
    mt_talk_free(&talk);
    mt_ear_free(&ear);
    return rc;
}

bool quality_has_prompt(const struct quality_options *o)
{
    bool prompt = o->system;

    for (int i = 0; i < o->sinks.n; i++)
        prompt = prompt || o->sinks.v[i] < 0;
    return prompt;
}

static int64_t longest(const struct quality_list *l)
{
    int64_t most = 0;

    for (int i = 0; i < l->n; i++)
        most = l->v[i] > most ? l->v[i] : most;
    return most;
}

/* How long passages are. */
static int cut(struct quality_text *t, const struct quality_options *o)
{
    int64_t each = t->n_ids / o->passages, want = WINDOWS_LONG * longest(&o->windows);

    t->passages = o->passages;
    if (o->tokens > each) {
        mt_msg(MT_ERROR, "%s: %lld tokens are less than %d passages of %lld", o->text,
               (long long)t->n_ids, o->passages, (long long)o->tokens);
        return MT_EXIT_USAGE;
    }
    want = want > DEFAULT_TOKENS ? want : DEFAULT_TOKENS;
    if (o->attention)
        want = ATTENTION_TOKENS;
    t->length = o->tokens ? o->tokens : want < each ? want : each;
    if (t->length < 2) {
        mt_msg(MT_ERROR, "%s: %lld tokens are no text for %d passages", o->text,
               (long long)t->n_ids, o->passages);
        return MT_EXIT_FAILED;
    }
    if (!o->tokens && t->length * t->passages < t->n_ids)
        mt_msg(MT_INFO, "%s: %lld of %lld tokens are used (--tokens, --passages)", o->text,
               (long long)(t->length * t->passages), (long long)t->n_ids);
    return MT_EXIT_OK;
}

int quality_text_open(struct quality_text *t, const struct quality_options *o)
{
    const struct mt_tokenizer *tok = mt_model_tokenizer(o->pm.m);
    const struct mt_model_info *info = mt_model_info(o->pm.m);
    struct mt_err e = {0};
    size_t len, n = 0;

    *t = (struct quality_text){0};
    if (info->codebooks) {
        mt_msg(MT_ERROR, "--text: %s takes frames of codes, not text", info->name);
        return MT_EXIT_USAGE;
    }
    if (!tok) {
        mt_msg(MT_ERROR, "--text: the model has no tokenizer");
        return MT_EXIT_FAILED;
    }
    char *text = probe_text(o->text, &len);
    if (!text)
        return MT_EXIT_FAILED;
    int rc = mt_tokenizer_encode(tok, text, len, false, &t->ids, &n, &e);
    free(text);
    t->n_ids = (int64_t)n;
    if (rc < 0) {
        mt_msg(MT_ERROR, "%s: %s", o->text, e.text);
        return MT_EXIT_FAILED;
    }
    if (quality_has_prompt(o) &&
        quality_prompt(o, MT_MODE_TURN, &t->prompt, &t->n_prompt, &e) < 0) {
        mt_msg(MT_ERROR, "sinks=prompt: %s", e.text);
        return MT_EXIT_FAILED;
    }
    int status = cut(t, o);
    if (status == MT_EXIT_OK && info->max_positions < t->n_prompt + t->length)
        mt_msg(MT_WARN,
               "passages of %lld tokens are beyond the %lld positions that the model was trained "
               "on: the unbounded cache is no measure there",
               (long long)(t->n_prompt + t->length), (long long)info->max_positions);
    return status;
}

void quality_text_close(struct quality_text *t)
{
    free(t->ids);
    free(t->prompt);
    *t = (struct quality_text){0};
}

int32_t *quality_passage(const struct quality_text *t, int k)
{
    int32_t *ids = malloc(mt_mul((size_t)(t->n_prompt + t->length), sizeof(*ids)));
    int64_t from = t->passages > 1 ? (t->n_ids - t->length) * k / (t->passages - 1) : 0;

    if (!ids)
        return NULL;
    if (t->n_prompt)
        memcpy(ids, t->prompt, (size_t)t->n_prompt * sizeof(*ids));
    memcpy(ids + t->n_prompt, t->ids + from, (size_t)t->length * sizeof(*ids));
    return ids;
}
