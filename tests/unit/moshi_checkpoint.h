/*
 * moshi_checkpoint.h: a tiny Moshi in Kyutai's first layout, without config.json and codec: its
 * sizes are what the tensors show, the rest is as released (32 heads, 16 in the depth transformer).
 */
#ifndef MT_TEST_MOSHI_CHECKPOINT_H
#define MT_TEST_MOSHI_CHECKPOINT_H

#include "checkpoint.h"

static inline void ckm_layer(struct ck_file *f, const char *layer, int64_t dim, int64_t hidden,
                             int sets, bool numbered)
{
    char name[160];

    for (int k = 1; k <= 2; k++) {
        snprintf(name, sizeof(name), "%s.norm%d.alpha", layer, k);
        CK_C(f, "", name, 1, 1, dim);
    }
    snprintf(name, sizeof(name), "%s.self_attn.in_proj_weight", layer);
    CK_M(f, "", name, sets * 3 * dim, dim);
    snprintf(name, sizeof(name), "%s.self_attn.out_proj.weight", layer);
    CK_M(f, "", name, sets * dim, dim);
    for (int k = 0; k < sets; k++) {
        char gate[120];
        if (numbered)
            snprintf(gate, sizeof(gate), "%s.gating.%d", layer, k);
        else
            snprintf(gate, sizeof(gate), "%s.gating", layer);
        snprintf(name, sizeof(name), "%s.linear_in.weight", gate);
        CK_M(f, "", name, 2 * hidden, dim);
        snprintf(name, sizeof(name), "%s.linear_out.weight", gate);
        CK_M(f, "", name, dim, hidden);
    }
}

enum { CKM_TEXT = 11, CKM_BINS = 7, CKM_DIM = 64, CKM_DEPTH = 32, CKM_BOOKS = 4, CKM_MADE = 2 };

static inline void ckm_model(const struct ck *c)
{
    struct ck_file f = {.header = json_object()};
    char name[60];

    CK_M(&f, "", "text_emb.weight", CKM_TEXT + 1, CKM_DIM);
    CK_M(&f, "", "text_linear.weight", CKM_TEXT, CKM_DIM);
    CK_C(&f, "", "out_norm.alpha", 1, 1, CKM_DIM);
    CK_M(&f, "", "depformer_text_emb.weight", CKM_TEXT + 1, CKM_DEPTH);
    for (int k = 0; k < CKM_BOOKS; k++) {
        snprintf(name, sizeof(name), "emb.%d.weight", k);
        CK_M(&f, "", name, CKM_BINS + 1, CKM_DIM);
    }
    for (int k = 0; k < CKM_MADE; k++) {
        snprintf(name, sizeof(name), "depformer_in.%d.weight", k);
        CK_M(&f, "", name, CKM_DEPTH, CKM_DIM);
        snprintf(name, sizeof(name), "linears.%d.weight", k);
        CK_M(&f, "", name, CKM_BINS, CKM_DEPTH);
        snprintf(name, sizeof(name), "depformer_emb.%d.weight", k);
        if (k + 1 < CKM_MADE)
            CK_M(&f, "", name, CKM_BINS + 1, CKM_DEPTH);
    }
    ckm_layer(&f, "transformer.layers.0", CKM_DIM, 9, 1, false);
    ckm_layer(&f, "transformer.layers.1", CKM_DIM, 9, 1, false);
    ckm_layer(&f, "depformer.layers.0", CKM_DEPTH, 5, CKM_MADE, true);
    ck_save(&f, c, "model.safetensors");
}

#endif
