/*
 * greedy.c: a whole clip through a model that speaks, frame by frame and greedily, as a live
 * session alone with the engine would have it. The instrument behind mt-probe logits --audio.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/own_cache.h"

struct run {
    struct mt_model *m;
    const struct mt_greedy *g;
    struct mt_own_cache cache;
    struct mt_ear *ear;
    struct mt_talk *talk;
    int64_t pos; /* steps done, and positions fed: a frame is one */
};

/* The frame that is complete; the draw of its only token, and what is said with it. */
static int step(struct run *r, struct mt_err *e)
{
    struct mt_backend *be = mt_model_backend(r->m);
    struct mt_run one = {0, 1, r->pos, mt_own_cache_view(&r->cache)};
    struct mt_sample params = {.top_p = 1};
    struct mt_rows logits;
    int32_t id, token;
    int at, n, want = 0, rc;

    if ((rc = mt_model_encode(r->m, &r->ear, 1)) < 0)
        return mt_err_set(e, rc, "%s", strerror(-rc));
    struct mt_audio_rows audio = {0, 1, mt_ear_rows(r->ear, &n)};
    mt_talk_begin(r->talk, n, &id, &at);
    struct mt_step st = {{1, 1, &one}, &id, &audio, 1, &want, .n_want = 1};
    if ((rc = mt_model_step(r->m, r->cache.kv, &st, &logits)) < 0)
        return mt_err_set(e, rc, "%s", strerror(-rc));
    mt_talk_rules(r->talk, &params);
    be->ops->sample(be, logits, &params, &token, 1);
    if (token < 0)
        return mt_err_set(e, -EPROTO, "step %lld: the logits are not numbers", (long long)r->pos);
    mt_talk_drawn(r->talk, token);
    mt_model_speak(r->m, &r->talk, &params, 1);
    const int32_t *codes = mt_talk_codes(r->talk, &n);
    rc = codes ? r->g->step(r->g->ctx, r->pos, codes[0], codes + 1, n - 1) : 0;
    r->pos++;
    return rc;
}

static int run(struct run *r, struct mt_err *e)
{
    const struct mt_greedy *g = r->g;
    int rc = 0;

    for (int64_t at = 0; rc == 0 && (at < g->n_pcm || mt_ear_frames(r->ear) > 0);) {
        at += mt_ear_push(r->ear, g->pcm + at, g->n_pcm - at);
        if (at == g->n_pcm)
            mt_ear_end(r->ear);
        while (rc == 0 && mt_ear_frames(r->ear) > 0)
            rc = step(r, e);
    }
    return rc;
}

int mt_greedy_run(struct mt_model *m, const struct mt_greedy *g, struct mt_err *e)
{
    const struct mt_model_info *i = mt_model_info(m);
    struct run r = {.m = m, .g = g};
    int rc;

    if (!i->codebooks)
        return mt_err_set(e, -EINVAL, "%s has no codebooks", i->name);
    if (!i->beat_samples)
        return mt_err_set(e, -ENOTSUP, "%s", i->no_calls ? i->no_calls : "it hears nothing");
    int64_t frames = (g->n_pcm + i->beat_samples - 1) / i->beat_samples;
    rc = mt_own_cache_init(&r.cache, m, &g->policy, frames, 1, g->block_tokens, g->kv_type, e);
    if (rc == 0)
        rc = mt_ear_new(&r.ear, m, i->beat_samples, 1, e);
    if (rc == 0)
        rc = mt_talk_new(&r.talk, m, MT_MODE_FREE, NULL, r.ear, e);
    if (rc == 0)
        rc = run(&r, e);
    mt_talk_free(&r.talk);
    mt_ear_free(&r.ear);
    mt_own_cache_free(&r.cache);
    return rc;
}
