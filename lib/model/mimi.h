/*
 * mimi.h: Kyutai's Mimi codec, sound to codes and back a frame (80 ms as released) at a time:
 * SEANet convolutions, a transformer each way, a residual quantiser whose first level is apart.
 * Weights and scratch (struct mt_mimi) are shared by all sessions; what a session remembers (struct
 * mt_mimi_state) has one size for ever. Internal to lib/model.
 */
#ifndef MT_MIMI_H
#define MT_MIMI_H

#include "model/bind.h"

enum { MT_MIMI_RATIOS_MAX = 8, MT_MIMI_CODEBOOKS_MAX = 64 };

/*
 * The shape. What a file's tensors tell is read from them (mt_mimi_config_detect); the rest has the
 * released value, or that of the file's own config.
 */
struct mt_mimi_config {
    bool hf; /* names and rotary halves of transformers' layout */
    int sample_rate_hz;
    /* SEANet. ratios in the decoder's order, the encoder takes them from the last to the first */
    int filters, dim, n_ratios, ratios[MT_MIMI_RATIOS_MAX];
    int kernel, last_kernel, residual_kernel, residual_layers, compress, dilation_base;
    bool conv_shortcut; /* a residual block's skip is a convolution, too */
    /* the transformers: width, layers, heads, … and steps that one sees */
    int d_model, layers, heads, kv_heads, head_dim, ffn, context;
    double rope_base;
    bool rope;        /* rotary positions, else none */
    bool layer_scale; /* a learnt scale on both branches */
    float eps;
    /* between transformer and quantiser: `stride` steps are one frame; 1: nothing lies between */
    int stride;
    bool depthwise_up; /* the upsampler has one filter a channel */
    /* the quantiser */
    int bins, code_dim, semantic, codebooks; /* codebooks: all that the file has */
};

/* The released one. */
struct mt_mimi_config mt_mimi_config_released(void);
/* For synthetic weights without a file: 8 codebooks of 256, the released rates. */
struct mt_mimi_config mt_mimi_config_tiny(void);
/*
 * Put what the tensors PREFIX… of w tell into c: names (kyutai's, or transformers'), widths,
 * counts, kernels and ratios. Synthetic weights tell nothing. -ENOENT or -EPROTO naming the tensor,
 * -ENOTSUP for a kind of Mimi that this is not.
 */
int mt_mimi_config_detect(struct mt_mimi_config *c, const struct mt_weights *w, const char *prefix,
                          struct mt_err *e);
/*
 * Put what a config says into c: {"sample_rate", "frame_rate", "seanet", "transformer",
 * "quantizer"} as the moshi package takes it, or transformers' (model_type "mimi"). Errors name the
 * field.
 */
int mt_mimi_config_parse(struct mt_mimi_config *c, const json_t *config, const char *where,
                         struct mt_err *e);

/*
 * Open the codec of `path`: a directory as released (the file that config.json's mimi_name names,
 * else the released name, else model.safetensors; with the config that mimi_config_name names, or
 * that config.json itself is), or one such file. *codebooks: how many the directory's model speaks
 * (8 unless its config says otherwise), at most what the file has. *w is the caller's, prefix as
 * for mt_mimi_new.
 */
enum { MT_MIMI_PREFIX_MAX = 32 };
int mt_mimi_open(struct mt_weights **w, char prefix[MT_MIMI_PREFIX_MAX], struct mt_mimi_config *c,
                 int *codebooks, const char *path, struct mt_err *e);

/* Made from a seed, in f32 as released: the tiny shape for a NAME-tiny, else the released one. */
int mt_mimi_open_synth(struct mt_weights **w, struct mt_mimi_config *c, const char *name,
                       uint64_t seed, struct mt_err *e);

struct mt_mimi;

/*
 * Bind PREFIX… of w. codebooks: how many are spoken and heard, above cfg->semantic unless the same,
 * at most cfg->codebooks. cfg NULL: the released one, with what the tensors tell. Sessions of a
 * call beyond at_once are taken in turns of so many. w and be must outlive it.
 */
int mt_mimi_new(struct mt_mimi **out, struct mt_weights *w, const char *prefix,
                struct mt_backend *be, int codebooks, const struct mt_mimi_config *cfg, int at_once,
                struct mt_err *e);
void mt_mimi_free(struct mt_mimi **m);
const struct mt_mimi_config *mt_mimi_config(const struct mt_mimi *m);
int mt_mimi_codebooks(const struct mt_mimi *m);
int mt_mimi_frame_samples(const struct mt_mimi *m);
int64_t mt_mimi_weight_bytes(const struct mt_mimi *m); /* its own copies included */

/*
 * What one session remembers, for both directions: the convolutions' left contexts and the two
 * transformers' caches. whole: each step sees a whole context, as for a clip at once, where a live
 * frame's first step sees one less (the ring of the authors' streaming code is written before it is
 * read).
 */
struct mt_mimi_state;
int mt_mimi_state_new(struct mt_mimi_state **out, struct mt_mimi *m, bool whole, struct mt_err *e);
void mt_mimi_state_free(struct mt_mimi_state **s);
/* Bytes of one: contexts of the convolutions, both caches. */
int64_t mt_mimi_state_bytes(const struct mt_mimi *m);
/* Back to the beginning. */
void mt_mimi_state_reset(struct mt_mimi_state *s);
void mt_mimi_state_visit(struct mt_mimi_state *s, struct mt_state_io *io);
/* Frames heard and spoken so far, from which positions count: for tests of long calls. */
void mt_mimi_state_seek(struct mt_mimi_state *s, int64_t frames);

/*
 * The next frame of each of n different sessions, as one ragged batch; what a session gets does not
 * depend on its company. pcm[i]: mt_mimi_frame_samples samples; codes: [n][codebooks], each in
 * 0..bins-1.
 */
void mt_mimi_encode(struct mt_mimi *m, struct mt_mimi_state *const *s, const float *const *pcm,
                    int n, int32_t *codes);
void mt_mimi_decode(struct mt_mimi *m, struct mt_mimi_state *const *s, const int32_t *codes, int n,
                    float *const *pcm);

#endif
