/*
 * encoder.h: the Whisper-type encoder layers that the audio towers share:
 * bidirectional attention inside spans of rows, LayerNorm, GELU. Internal to lib/model.
 */
#ifndef MT_ENCODER_H
#define MT_ENCODER_H

#include "model/bind.h"

struct mt_encoder_config {
    int d_model, layers, heads, ffn;
    bool k_bias; /* Whisper's k_proj has none */
};

struct mt_encoder_layer {
    struct mt_mat *ln1_w, *ln1_b, *wq, *bq, *wk, *bk, *wv, *bv, *wo, *bo;
    struct mt_mat *ln2_w, *ln2_b, *fc1_w, *fc1_b, *fc2_w, *fc2_b;
};

struct mt_encoder {
    struct mt_encoder_config cfg;
    struct mt_encoder_layer *layer;
    struct mt_rows h, q, k, v, att, f; /* scratch of a pass */
};

/*
 * Bind PREFIXlayers.… and scratch for max_rows rows. Failures stick in b; call mt_encoder_free all
 * the same.
 */
void mt_encoder_bind(struct mt_encoder *enc, const struct mt_encoder_config *cfg,
                     struct mt_binder *b, const char *prefix, int max_rows);
void mt_encoder_free(struct mt_encoder *enc, struct mt_backend *be);
/* x [rows of the spans, d_model] through all layers, in place. */
void mt_encoder_run(struct mt_encoder *enc, struct mt_backend *be, struct mt_rows x,
                    const struct mt_span *span, int n_spans);

/* What LayerNorm of these encoders adds to the variance. */
#define MT_ENCODER_EPS 1e-5f
/* Position table of the Qwen towers, [rows, d]: sines of the first half, cosines of the second. */
void mt_encoder_sinusoid(float *out, int rows, int d);

#endif
