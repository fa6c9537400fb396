/*
 * moshi.h: the parts of the Moshi family, each its own file: what a config.json says
 * (moshi_config.c), a stack of transformer layers (moshi_stack.c; there are two), the depth
 * transformer's loop over one frame (moshi_depth.c), and which codes stand beside each other in a
 * step (moshi_streams.c). Internal to lib/model.
 */
#ifndef MT_MOSHI_H
#define MT_MOSHI_H

#include "model/bind.h"
#include "model/family.h"
#include "model/mimi.h"

enum {
    MOSHI_DEPTH_MAX = 32,   /* codebooks that the depth transformer makes */
    MOSHI_STREAMS_MAX = 65, /* the text and all codebooks, own and the user's */
    MOSHI_DELAY_MAX = 64,
    MOSHI_SETS_MAX = MOSHI_DEPTH_MAX, /* weight sets of a layer */
};

/* ---- moshi_config.c ---- */

struct moshi_stack_config {
    int dim, heads, kv_heads, layers;
    int sets;                   /* weight sets of the steps, 1 where they share one … */
    bool numbered;              /* … though names may number even a single one */
    bool gated;                 /* silu(a) * b, [a; b] = linear_in; else gelu between two linears */
    int hidden[MOSHI_SETS_MAX]; /* width between the two, of each set */
    bool layer_norm;            /* with a bias; else RMS norm */
    float eps;
    struct mt_rope rope;
    double sin_scale, sin_period; /* sinusoids are added to the input, times sin_scale; 0: none */
};

struct moshi_config {
    int n_q, dep_q; /* codebooks in all, and those that the model makes: the first ones */
    int card, text_card, text_out;
    int delay[MOSHI_STREAMS_MAX], max_delay; /* by stream: text, own codebooks, the user's */
    int64_t context;                         /* tokens that attention reaches; 0: all */
    int pad_id, end_pad_id;                  /* text tokens that print nothing */
    bool head_bias;
    int low_rank;                  /* of the depth transformer's embeddings; 0: full */
    int n_inputs;                  /* projections into the depth transformer */
    int schedule[MOSHI_DEPTH_MAX]; /* weight set (and input projection) of a step */
    struct moshi_stack_config main, depth;
};

/*
 * config: the root of a config.json as the authors' package reads it (what is missing has its
 * defaults), or NULL: the released 7B values, with the sizes that w's tensors show. where names it.
 */
int moshi_config_parse(const json_t *config, const struct mt_weights *w, const char *where,
                       struct moshi_config *out, struct mt_err *e);

/* ---- moshi_stack.c ---- */

struct moshi_set {
    struct mt_mat *qkv, *out, *ff_in, *ff_out;
};

struct moshi_layer {
    struct mt_mat *norm1_w, *norm1_b, *norm2_w, *norm2_b;
    struct moshi_set *set;
};

struct moshi_stack {
    struct moshi_stack_config cfg;
    struct mt_backend *be;
    struct moshi_layer *layer;
    float *start; /* [rows, dim] on the host, for moshi_stack_begin; zeros without sinusoids */
    struct mt_rows x, h, qkv, q_sink, att, ff;
};

/* Bind PREFIX.layers.… and the activations of `rows` rows. On failure free it all the same. */
void moshi_stack_bind(struct moshi_stack *s, const struct moshi_stack_config *cfg,
                      struct mt_binder *b, const char *prefix, int rows);
void moshi_stack_free(struct moshi_stack *s);
/* x = what positions add (zeros, or sinusoids): the embeddings are added to it. */
void moshi_stack_begin(struct moshi_stack *s, struct mt_rows x, const int64_t *pos, int n);
/* x through all layers, in place; `set` is the weight set of this step. */
void moshi_stack_run(struct moshi_stack *s, struct mt_kv *kv, const struct mt_batch *b, int set);
/* A norm of the stack's kind, NAME.alpha or NAME.weight and .bias. */
void moshi_norm_bind(const struct moshi_stack_config *cfg, struct mt_binder *b, struct mt_mat **w,
                     struct mt_mat **bias, const char *name);
void moshi_norm_run(const struct moshi_stack *s, struct mt_rows out, struct mt_rows x,
                    const struct mt_mat *w, const struct mt_mat *bias, int n);

/* ---- moshi_depth.c ---- */

struct moshi_embedding {
    struct mt_mat *table, *low_rank; /* low_rank: NULL, or from the table's width to the stack's */
};

struct moshi_depth {
    const struct moshi_config *cfg;
    struct mt_backend *be;
    struct moshi_stack stack;
    struct moshi_embedding text, code[MOSHI_DEPTH_MAX];
    struct mt_mat *in[MOSHI_DEPTH_MAX], *head[MOSHI_DEPTH_MAX], *head_bias[MOSHI_DEPTH_MAX];
    struct mt_kv *kv; /* a block a row: as many tokens as a frame has steps */
    int32_t *blocks, *ids;
    int64_t *pos;
    struct mt_run *runs;
    float *zeros;               /* [rows, low_rank] */
    struct mt_rows low, logits; /* [rows, low_rank], [rows, card] */
    int rows;
};

int moshi_depth_init(struct moshi_depth *d, const struct moshi_config *cfg, struct mt_binder *b,
                     int rows);
void moshi_depth_free(struct moshi_depth *d);
/*
 * One frame of each of n rows: h [n, dim] is what the main transformer says, text the text token
 * beside it. For each step k the logits [n, card] go to `next`, which says the codes: codes[i *
 * dep_q + k] is set by it (they are read in the next step; -1 is read as nothing).
 */
typedef void moshi_next(void *ctx, int k, struct mt_rows logits, int n);
void moshi_depth_run(struct moshi_depth *d, struct mt_rows h, const int32_t *text,
                     const int32_t *codes, int n, moshi_next *next, void *ctx);

/* ---- moshi_streams.c ---- */

/*
 * The streams of one call, as they are generated: codes enter with their stream's delay, the tokens
 * of a step are read as the next step's input.
 */
struct moshi_streams {
    const struct moshi_config *cfg;
    int64_t step; /* steps begun */
    int32_t ring[MOSHI_DELAY_MAX + 2][MOSHI_STREAMS_MAX];
};

void moshi_streams_init(struct moshi_streams *s, const struct moshi_config *cfg);
void moshi_streams_visit(struct moshi_streams *s, struct mt_state_io *io);
/* A frame of the user's codes [n_q - dep_q] in; the tokens of the step [1 + n_q] out. */
void moshi_streams_begin(struct moshi_streams *s, const int32_t *user, int32_t *input);
/*
 * What the step gave: the text token and the codes [dep_q]. True when a frame is whole: then out
 * [1 + dep_q] is the text and the codes that belong together.
 */
bool moshi_streams_end(struct moshi_streams *s, int32_t text, const int32_t *codes, int32_t *out);
/* Token of stream k at column t (from 0) of the delayed sequence: frames [n][1 + n_q]. */
int32_t moshi_delayed(const struct moshi_config *cfg, const int32_t *frames, int64_t t, int k);

/* A whole frame: the text token and the codes that belong together. */
struct moshi_frame {
    bool whole;
    int32_t tokens[1 + MOSHI_DEPTH_MAX];
};

/* ---- moshi.c ---- */

struct moshi {
    struct moshi_config cfg;
    struct moshi_stack main;
    struct moshi_depth depth;
    struct mt_mat *text_emb, *emb[MOSHI_STREAMS_MAX], *text_head, *text_bias;
    struct mt_mat *out_norm_w, *out_norm_b;
    struct mt_rows h, logits; /* of the wanted rows of the last step, in their order */
    /* Scratch of a call: [step_rows], [want_rows * dep_q], [step_rows * (1 + n_q)]. */
    int32_t *ids, *codes, *input;
    int64_t *pos;
    int *iota;
    /* The codec, NULL where the release lacks it: then there are no calls, and why says so. */
    struct mt_weights *codec_weights;
    struct mt_mimi *codec;
    struct mt_err no_codec;
    struct moshi_calls *calls;
};

/*
 * Rows of n positions without their text: what positions add, and the embeddings of the codes:
 * input [n][1 + n_q], of which the text is skipped.
 */
void moshi_embed_codes(struct moshi *o, struct mt_rows out, const int32_t *input,
                       const int64_t *pos, int n);

/* ---- moshi_call.c: live calls ---- */

int moshi_calls_init(struct mt_model *m, struct mt_err *e); /* scratch for the ones of a step */
void moshi_calls_free(struct mt_model *m);
int moshi_ear_new(struct mt_ear **out, struct mt_model *m, int frame_samples, int backlog,
                  struct mt_err *e);
void moshi_ear_free(struct mt_ear *ear);
void moshi_ear_visit(struct mt_ear *ear, struct mt_state_io *io);
int moshi_ear_rows_max(const struct mt_model *m, int frame_samples);
void moshi_ear_skip(struct mt_ear *ear);
int moshi_encode(struct mt_model *m, struct mt_ear **ears, int n);
int moshi_state(const struct mt_model *m, int frame_samples, int backlog,
                struct mt_state_kind out[MT_STATE_KINDS]);
int moshi_talk_new(struct mt_talk **out, struct mt_model *m, enum mt_mode mode, const char *system,
                   struct mt_ear *ear, struct mt_err *e);
void moshi_speak(struct mt_model *m, struct mt_talk **talks, const struct mt_sample *params, int n);

#endif
