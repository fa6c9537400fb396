/*
 * mimi_former.h: the codec's streaming transformers: LayerNorm, attention over a ring of steps,
 * GELU, learnt scales on both branches. Internal to the codec's files.
 */
#ifndef MT_MIMI_FORMER_H
#define MT_MIMI_FORMER_H

#include "model/mimi_bind.h"

struct mt_mimi_layer {
    struct mt_mat *norm1_w, *norm1_b, *norm2_w, *norm2_b;
    struct mt_mat *in;           /* q, k and v in one, or NULL … */
    struct mt_mat *wq, *wk, *wv; /* … and apart */
    struct mt_mat *wo, *fc1, *fc2, *scale1, *scale2;
};

struct mt_mimi_former {
    const struct mt_mimi_config *cfg;
    struct mt_mimi_layer *layer;
    struct mt_mat *in, *out; /* to the width of the layers and back; NULL where that is the same */
};

/* Scratch, shared by both directions: a row a step. */
struct mt_mimi_former_scratch {
    struct mt_rows x, h, qkv, att, f;
};

/* side: "encoder" or "decoder". Failures stick in b; call mt_mimi_former_free all the same. */
void mt_mimi_former_bind(struct mt_mimi_former *t, const struct mt_mimi_config *c, const char *side,
                         struct mt_mimi_binder *b);
void mt_mimi_former_free(struct mt_mimi_former *t, struct mt_backend *be);
void mt_mimi_former_scratch_new(struct mt_mimi_former_scratch *s, const struct mt_mimi_config *c,
                                struct mt_binder *b, int rows);
void mt_mimi_former_scratch_free(struct mt_mimi_former_scratch *s, struct mt_backend *be);

/* x [rows of the batch, dim] in place; each run's view names its own cache. */
void mt_mimi_former_run(const struct mt_mimi_former *t, struct mt_backend *be,
                        const struct mt_mimi_former_scratch *s, const struct mt_batch *batch,
                        struct mt_rows x);

#endif
