/*
 * freerun.h: texts that a model goes on with by itself under several cache policies at once: what
 * each writes, and what the unbounded cache thinks of it. Until its first token is masked a bounded
 * arm writes what the unbounded one does, so it is that one; from there on both its own cache and
 * an unbounded one beside it read what it wrote.
 */
#ifndef MT_FREERUN_H
#define MT_FREERUN_H

#include "engine/panel.h"

struct mt_freerun {
    /*
     * [n_scripts][n]: a token that is given at this place, or -1: one is drawn. The first one is
     * given.
     */
    const int32_t *script;
    int n_scripts;
    int64_t n;
    const struct mt_arm *arms; /* the first one unbounded, all others bounded, all of one kv_type */
    int n_arms;
    int block_tokens;
    float temperature; /* as in mt_sample */
    int top_k;
    float top_p;
    const uint64_t *seed; /* [n_scripts]; the arms of a script draw with the same numbers */
    int ban_ngram; /* no run of so many tokens twice: what would end one is not drawn. 0: may be */
    const int32_t *ban; /* never drawn */
    int n_ban;
    void *ctx;
    /*
     * Token pos of a script as an arm has it, and the loss of it under the unbounded cache (NaN for
     * the first). Positions in order, script by script within a step, arm by arm. Not 0 ends the
     * run with that value.
     */
    int (*token)(void *ctx, int script, int arm, int64_t pos, int32_t token, float nll);
};

/* Rows that a script takes of a step; the model must have been opened for all scripts' at once. */
int mt_freerun_rows(int n_arms);
/* 0, or what token returned, or -EINVAL, -EPROTO (no numbers), -ENOMEM with e. */
int mt_freerun_run(struct mt_model *m, const struct mt_freerun *f, struct mt_err *e);

#endif
