/*
 * answers.h: calls that hear clips, one after the other, under one policy: what is answered to each
 * clip. It is the engine itself, of its own and under a clock that stands still, so that nothing is
 * late and every answer is what a server would have given. The instrument behind mt-probe quality
 * --audio.
 */
#ifndef MT_ANSWERS_H
#define MT_ANSWERS_H

#include "engine/engine.h"

struct mt_answers_clip {
    const float *pcm; /* at the model's rate */
    int64_t n;        /* 1 at least; silence fills up its last frame */
};

struct mt_answers_call {
    const int *clips; /* [n] which it hears */
    int n;            /* 1 at least */
    uint64_t seed;
};

struct mt_answers {
    const struct mt_answers_clip *clips;
    const struct mt_answers_call *calls; /* [n_calls], all at once */
    int n_calls;
    struct mt_policy policy;
    enum mt_dtype kv_type;
    int block_tokens;
    enum mt_mode mode;
    const char *system; /* NULL: the model's default */
    float temperature, top_p;
    int answer_tokens; /* most a frame */
    void *ctx;
    /*
     * Every frame, in the order of a call: it belongs to clip calls[call].clips[at]. Not 0 ends the
     * run with that value.
     */
    int (*frame)(void *ctx, int call, int at, const struct mt_record *r);
};

/*
 * All borrowed for the call; the model must have been opened for a row a call at least, with
 * logits. 0, or what frame returned, or -EINVAL, -ENOTSUP (it holds no calls), -EPROTO (a frame was
 * not answered), -ENOMEM with e.
 */
int mt_answers_run(struct mt_model *m, const struct mt_answers *a, struct mt_err *e);

#endif
