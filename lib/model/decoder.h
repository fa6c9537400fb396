/*
 * decoder.h: the Qwen-type text model that the families share: RMSNorm, GQA with rotary positions,
 * gated MLP or a mixture of experts. Internal to lib/model.
 */
#ifndef MT_DECODER_H
#define MT_DECODER_H

#include "model/moe.h"

struct mt_decoder_config {
    int vocab, hidden, layers, heads, kv_heads, head_dim, ffn;
    double rope_base;
    float eps;
    bool qkv_bias, qk_norm; /* qk_norm: RMSNorm of each head of Q and K, before the rotation */
    int64_t max_positions;
    struct mt_moe_config moe; /* the layers whose MLP is a mixture of experts */
};

/* Read a text_config object; errors name the field. where: "DIR/config.json: text_config". */
int mt_decoder_config_parse(const json_t *text, const char *where, struct mt_decoder_config *out,
                            struct mt_err *e);

/* What a model says of itself by them. */
void mt_decoder_info(const struct mt_decoder_config *c, struct mt_model_info *out);

struct mt_decoder_layer {
    struct mt_mat *norm_in, *norm_post;
    struct mt_mat *wq, *wk, *wv, *wo;
    struct mt_mat *bq, *bk, *bv;     /* NULL without qkv_bias */
    struct mt_mat *q_norm, *k_norm;  /* NULL without qk_norm */
    struct mt_mat *gate, *up, *down; /* NULL in a layer with experts */
    struct mt_moe moe;
};

struct mt_decoder {
    struct mt_decoder_config cfg;
    struct mt_backend *be;
    struct mt_mat *embed, *norm, *head; /* head may be embed */
    struct mt_decoder_layer *layer;
    int step_rows, want_rows;
    int *iota; /* 0, 1, 2, … for copies of whole runs */
    /* A step that is filled up, where the backend wants that: step_rows each. */
    struct mt_run *run;
    int32_t *ids;
    /* Activations, step_rows each; logits and last: want_rows. */
    struct mt_rows x, h, q, q_sink, k, v, att, gate, up, last, logits;
    struct mt_moe_scratch moe;
};

/*
 * Bind the tensors PREFIXmodel.… and HEAD_PREFIXlm_head.weight and allocate a step's activations.
 * On failure call mt_decoder_free all the same.
 */
int mt_decoder_init(struct mt_decoder *d, const struct mt_decoder_config *cfg, const char *prefix,
                    struct mt_weights *w, struct mt_backend *be, const struct mt_model_opts *o,
                    struct mt_err *e);
void mt_decoder_free(struct mt_decoder *d);
int mt_decoder_step(struct mt_decoder *d, struct mt_kv *kv, const struct mt_step *step,
                    struct mt_rows *logits);

#endif
