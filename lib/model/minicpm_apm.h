/*
 * minicpm_apm.h: MiniCPM-o's audio tower: Whisper's encoder under a chunk mask, a projector, and
 * pooling; whole clips and, unit by unit over a cache, live ears. Internal to lib/model.
 */
#ifndef MT_MINICPM_APM_H
#define MT_MINICPM_APM_H

#include "model/encoder.h"
#include "model/mel_ear.h"

enum {
    MT_UNIT_ROWS = 50, /* positions of a unit of one second */
    MT_UNIT_SAMPLES = 16000,
    MT_UNIT_MEL = 104,   /* mel frames of a unit: its 100 with two more on each side */
    MT_UNIT_BESIDE = 3,  /* more that are only looked at */
    MT_UNIT_ITEMS = 6,   /* of mel_clamp */
    MT_UNIT_BY = 70,     /* maxima that a clamp may hang on */
    MT_UNITS_AT_ONCE = 8 /* in one pass */
};

struct mt_apm_config {
    struct mt_encoder_config enc;
    int bands, positions; /* rows of the position table */
    int chunk;            /* positions that see each other in a clip; 0: all */
    int pool, hidden;
};

/* audio_config and, at the root, audio_pool_step and audio_chunk_length. hidden is the caller's. */
int mt_apm_config_parse(const json_t *root, const char *where, struct mt_apm_config *out,
                        struct mt_err *e);

struct mt_apm {
    struct mt_apm_config cfg;
    struct mt_backend *be;
    struct mt_encoder enc;
    struct mt_mat *conv1_w, *conv1_b, *conv2_w, *conv2_b, *table, *norm_w, *norm_b;
    struct mt_mat *lin1_w, *lin1_b, *lin2_w, *lin2_b;
    struct mt_mel *mel;      /* of clips … */
    struct mt_mel_pass mels; /* … and of live ears */
    int (*by)[MT_UNIT_BY];   /* [MT_UNITS_AT_ONCE] */
    struct mt_kv_shape kv;   /* of an ear's cache … */
    int units;       /* … which holds so many units, one a block; 0: the table is too short */
    int32_t *blocks; /* 0, 1, 2, …: every cache's block table */
    int *index;      /* rows of conv2's output that a pass keeps */
    int32_t *places;
    /* One pass of units. mel_rows: [MT_UNITS_AT_ONCE * (MT_UNIT_MEL + MT_UNIT_BESIDE), bands] */
    struct mt_rows mel_rows, c1, c1_scratch, c2, c2_scratch, x, wide, pooled, out;
};

/* Bind apm. and audio_projection_layer. On failure call mt_apm_free all the same. */
int mt_apm_init(struct mt_apm *a, const struct mt_apm_config *cfg, enum mt_dtype kv_type,
                struct mt_weights *w, struct mt_backend *be, struct mt_err *e);
void mt_apm_free(struct mt_apm *a);

/* Audio rows of n positions. */
static inline int mt_apm_rows(const struct mt_apm *a, int positions)
{
    return positions / a->cfg.pool;
}

/* A unit of one ear. */
struct mt_apm_unit {
    int mel;        /* frames of it: MT_UNIT_MEL, or two less without any before */
    int64_t number; /* units in the cache's past */
    struct mt_kv *kv;
};
/* Where an ear's cache has its units. */
struct mt_kv_view mt_apm_view(const struct mt_apm *a, struct mt_kv *kv);
/*
 * Encode n units, at most MT_UNITS_AT_ONCE, whose scaled mel lies in mel_rows, one behind the
 * other: the rows of unit i are in a->out from i * mt_apm_rows(a, MT_UNIT_ROWS) on.
 */
void mt_apm_units(struct mt_apm *a, const struct mt_apm_unit *unit, int n);

/* A whole clip, as struct mt_family has it. */
int mt_apm_clip(struct mt_apm *a, const float *pcm, int64_t n, float **rows, int64_t *n_rows,
                int64_t *mel_frames, struct mt_err *e);

#endif
