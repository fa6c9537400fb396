/*
 * moe.h: the feed-forward part of a layer as a mixture of experts: a router and gated MLPs of which
 * each row takes a few. Internal to lib/model.
 */
#ifndef MT_MOE_H
#define MT_MOE_H

#include "model/bind.h"

#define MT_LAYERS_MAX 1024

struct mt_moe_config {
    int n, top, ffn; /* n 0: no layer has experts */
    bool norm;
    int every;                              /* layer i may have them when every divides i + 1 … */
    unsigned char plain[MT_LAYERS_MAX / 8]; /* … unless bit i says that it is plain */
};

/*
 * From a text_config of `layers` layers: num_experts, num_experts_per_tok, moe_intermediate_size,
 * norm_topk_prob, decoder_sparse_step, mlp_only_layers.
 */
int mt_moe_config_parse(const json_t *text, const char *where, int layers,
                        struct mt_moe_config *out, struct mt_err *e);
/* Does layer i have experts? */
bool mt_moe_at(const struct mt_moe_config *c, int i);

struct mt_moe {
    struct mt_mat *router;
    struct mt_mat **mat; /* n of gate, of up, of down */
    int n;
    struct mt_experts *experts; /* NULL: none bound */
};

/*
 * Bind PREFIX.gate.weight and PREFIX.experts.N.{gate,up,down}_proj.weight. Failures stick in b;
 * call mt_moe_free all the same.
 */
void mt_moe_bind(struct mt_moe *m, const struct mt_moe_config *c, int hidden, int step_rows,
                 struct mt_binder *b, const char *prefix);
void mt_moe_free(struct mt_moe *m, struct mt_backend *be);

/* What all layers share while they run. */
struct mt_moe_scratch {
    struct mt_rows logits, pairs;
};
void mt_moe_scratch_bind(struct mt_moe_scratch *s, const struct mt_moe_config *c, int hidden,
                         int step_rows, struct mt_binder *b);
void mt_moe_scratch_free(struct mt_moe_scratch *s, struct mt_backend *be);
/* x += the experts of h, n rows. */
void mt_moe_run(const struct mt_moe *m, struct mt_backend *be, const struct mt_moe_scratch *s,
                struct mt_rows x, struct mt_rows h, int n);

#endif
