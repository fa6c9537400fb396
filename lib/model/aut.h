/*
 * aut.h: the audio tower of Qwen3-Omni ("AuT"): mel in chunks of a second, each through a stem of
 * convolutions by itself; encoder layers over windows of several chunks. Internal to lib/model.
 */
#ifndef MT_AUT_H
#define MT_AUT_H

#include "model/encoder.h"

struct mt_aut_config {
    struct mt_encoder_config enc;
    int bands, channels, out_dim;
    int chunk, chunk_rows; /* mel frames of a whole chunk, and the rows it gives */
    int window_chunks;     /* whole chunks in an attention window … */
    int window_rows;       /* … and their rows */
};

/* Read an audio_config object; errors name the field. */
int mt_aut_config_parse(const json_t *audio, const char *where, struct mt_aut_config *out,
                        struct mt_err *e);
/* Rows of so many mel frames, cut into chunks. */
int64_t mt_aut_rows(const struct mt_aut_config *c, int64_t frames);

/* A chunk on its way through the stem. */
struct mt_aut_chunk {
    int frames; /* of its mel, up to a whole chunk */
    /*
     * Convolve it as a whole one, zeros behind it: so a short chunk that ends a longer clip. A clip
     * that is nothing but a short chunk isn't padded.
     */
    bool padded;
    int row, rows; /* out: where its rows lie */
};

struct mt_aut {
    struct mt_aut_config cfg;
    struct mt_encoder enc;
    struct mt_mat *conv_w[3], *conv_b[3], *conv_out, *post_w, *post_b, *proj1_w, *proj1_b, *proj2_w,
        *proj2_b, *sinusoid;
    float *sinusoid_own;
    /* One pass: `chunks` chunks at most. */
    int chunks;
    struct mt_span *span;                              /* [chunks] */
    float *zeros;                                      /* [cfg.chunk, bands] */
    int *pick;                                         /* [chunks * chunk_rows] */
    struct mt_rows image[4], scratch, stem, x, h, out; /* out: a pass's rows, [rows, out_dim] */
};

/*
 * Bind PREFIXconv2d1.… and so on, for passes of `chunks` chunks, at least a window. Failures stick
 * in b; call mt_aut_free all the same.
 */
void mt_aut_bind(struct mt_aut *t, const struct mt_aut_config *cfg, struct mt_binder *b,
                 const char *prefix, int chunks);
void mt_aut_free(struct mt_aut *t, struct mt_backend *be);

/* Where the mel of a pass's chunk i goes, scaled: as many rows as it has frames, `bands` wide. */
struct mt_rows mt_aut_mel(const struct mt_aut *t, int i);
/* The stem: sets the chunks' row and rows, one behind the other; returns all rows. */
int mt_aut_stem(struct mt_aut *t, struct mt_backend *be, struct mt_aut_chunk *chunk, int n);
/*
 * The rest, over the rows of the last stem: all of them in one window, or where batch is not NULL,
 * its runs each in its own cache (mt_encoder_extend). The rows are in t->out.
 */
void mt_aut_layers(struct mt_aut *t, struct mt_backend *be, int rows, const struct mt_batch *batch);

#endif
