/*
 * talk.c: the course of a call, passed on to the kind of talk that the family made.
 */
#include <errno.h>
#include <limits.h>

#include "model/family.h"

int mt_talk_new(struct mt_talk **out, struct mt_model *m, enum mt_mode mode, const char *system,
                struct mt_ear *ear, struct mt_err *e)
{
    *out = NULL;
    if (!m->tokenizer && m->no_tokenizer.code)
        return mt_err_set(e, m->no_tokenizer.code, "%s", m->no_tokenizer.text);
    if (m->tokenizer && mt_tokenizer_size(m->tokenizer) > m->info.vocab)
        return mt_err_set(e, -EPROTO, "the tokenizer has ids up to %d, the model %d rows",
                          mt_tokenizer_size(m->tokenizer) - 1, m->info.vocab);
    return m->family->talk_new(out, m, mode, system, ear, e);
}

void mt_talk_free(struct mt_talk **t)
{
    if (*t)
        (*t)->kind->free(*t);
    *t = NULL;
}

int64_t mt_talk_bytes(const struct mt_talk *t)
{
    return t->kind->bytes(t);
}

const int32_t *mt_talk_prompt(const struct mt_talk *t, int *n)
{
    return t->kind->prompt(t, n);
}

int mt_talk_marks(const struct mt_talk *t)
{
    return t->kind->marks(t);
}

int mt_talk_draws(const struct mt_talk *t)
{
    return t->kind->draws ? t->kind->draws(t) : INT_MAX;
}

int mt_talk_begin(struct mt_talk *t, int audio_rows, int32_t *ids, int *audio_at)
{
    return t->kind->begin(t, audio_rows, ids, audio_at);
}

void mt_talk_rules(const struct mt_talk *t, struct mt_sample *p)
{
    if (t->kind->rules)
        t->kind->rules(t, p);
}

struct mt_said mt_talk_drawn(struct mt_talk *t, int32_t token)
{
    return t->kind->drawn(t, token);
}

void mt_talk_visit(struct mt_talk *t, const struct mt_model *m, struct mt_state_io *io)
{
    if (t->kind->visit)
        t->kind->visit(t, m, io);
    else
        mt_state_fail(io, -ENOTSUP, "calls with %s can't be saved", m->info.name);
}

void mt_model_speak(struct mt_model *m, struct mt_talk **talks, const struct mt_sample *params,
                    int n)
{
    if (m->family->speak && n > 0)
        m->family->speak(m, talks, params, n);
}

const float *mt_talk_speech(const struct mt_talk *t, int *n)
{
    *n = 0;
    return t->kind->speech ? t->kind->speech(t, n) : NULL;
}

const int32_t *mt_talk_codes(const struct mt_talk *t, int *n)
{
    *n = 0;
    return t->kind->codes ? t->kind->codes(t, n) : NULL;
}

bool mt_talk_flows(const struct mt_talk *t)
{
    return t->kind->flows;
}
