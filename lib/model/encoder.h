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

/*
 * d_model, encoder_layers, encoder_attention_heads, encoder_ffn_dim and activation_function of an
 * audio_config. k_bias is the family's.
 */
int mt_encoder_config_parse(const json_t *audio, const char *where, struct mt_encoder_config *out,
                            struct mt_err *e);

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

/*
 * The same where each run has a cache of its own (view.kv, of mt_encoder_kv_shape): its rows are
 * appended there, and see what its view says.
 */
void mt_encoder_extend(struct mt_encoder *enc, struct mt_backend *be, struct mt_rows x,
                       const struct mt_batch *batch);
struct mt_kv_shape mt_encoder_kv_shape(const struct mt_encoder_config *cfg, int block_tokens,
                                       enum mt_dtype type);

/* What LayerNorm of these encoders adds to the variance. */
#define MT_ENCODER_EPS 1e-5f
/*
 * Position table of the Qwen towers, [rows, d]: sines of the first half, cosines of the second.
 * *own is the matrix's memory, to be freed after it.
 */
struct mt_mat *mt_encoder_sinusoid(struct mt_binder *b, float **own, int rows, int d);

#endif
