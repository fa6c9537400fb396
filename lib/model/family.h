/*
 * family.h: what a model family provides, and the object it fills. Adding a family is one file with
 * one struct mt_family, listed in model.c. Internal to lib/model.
 */
#ifndef MT_FAMILY_H
#define MT_FAMILY_H

#include "model/model.h"

struct mt_model {
    const struct mt_family *family;
    struct mt_model_info info;
    struct mt_model_opts opts;
    struct mt_backend *be;
    struct mt_weights *weights;
    struct mt_tokenizer *tokenizer; /* NULL for a directory that has none of a kind we read … */
    struct mt_err no_tokenizer;     /* … and then which kind it has */
    bool synthetic;                 /* weights from a seed: the family makes a tokenizer, too */
    void *own;                      /* the family's */
};

/* A named shape for synth:NAME, as the config.json of a release would give it. */
struct mt_synth_shape {
    const char *name;
    const char *config; /* JSON */
};

struct mt_family {
    const char *const *model_types;      /* config.json's model_type, NULL terminated */
    const struct mt_synth_shape *shapes; /* ends with a NULL name */

    /*
     * Bind everything of a model whose weights, backend and options are set; fill info and own.
     * config is the root of config.json, where its name for errors.
     */
    int (*open)(struct mt_model *m, const json_t *config, const char *where, struct mt_err *e);
    void (*close)(struct mt_model *m);
    int (*layout)(const struct mt_model *m, enum mt_mode mode, const char *system,
                  struct mt_layout *out, struct mt_err *e);
    int (*ear_new)(struct mt_ear **out, struct mt_model *m, int frame_samples, int backlog,
                   struct mt_err *e);
    void (*ear_free)(struct mt_ear *ear);
    int64_t (*ear_bytes)(const struct mt_model *m, int frame_samples, int backlog);
    int (*ear_rows_max)(const struct mt_model *m, int frame_samples);
    void (*ear_skip)(struct mt_ear *ear);
    int (*encode)(struct mt_model *m, struct mt_ear **ears, int n);
    int (*embed_clip)(struct mt_model *m, const float *pcm, int64_t n, float **rows,
                      int64_t *n_rows, int64_t *mel_frames, struct mt_err *e);
    struct mt_kv_shape (*kv_shape)(const struct mt_model *m, int block_tokens, enum mt_dtype type);
    int (*step)(struct mt_model *m, struct mt_kv *kv, const struct mt_step *s,
                struct mt_rows *logits);
};

extern const struct mt_family mt_family_qwen2_5_omni;

/*
 * What every ear begins with: the samples that wait, and how they are cut into frames. Families
 * keep their front end behind it.
 */
struct mt_ear {
    struct mt_model *m;
    int frame_samples, lookahead, backlog;
    /* Waiting samples, from the first that was not consumed yet; NULL: they are only counted. */
    float *pcm;
    int64_t n, cap;
    int64_t heard; /* samples pushed since the session began */
    int64_t taken; /* frames encoded or skipped */
    bool ended;
    struct mt_rows rows; /* of the last encoded frame */
    int n_rows, rows_cap;
    int mel_frames; /* that these rows were made of; the family sets it */
};
/* keep false: the family only asks how much was heard. */
int mt_ear_init(struct mt_ear *ear, struct mt_model *m, int frame_samples, int backlog, bool keep,
                struct mt_err *e);
void mt_ear_done(struct mt_ear *ear);
int64_t mt_ear_cap(const struct mt_model *m, int frame_samples, int backlog);
/* Samples of the frame that comes next, frame_samples but for a last rest (padded to frame_min). */
int mt_ear_next_samples(const struct mt_ear *ear);
/* The front end has consumed the first n waiting samples. */
void mt_ear_consume(struct mt_ear *ear, int64_t n);

/* ChatML turns (the Qwen models and MiniCPM-o): the layout of mt_model_layout. */
struct mt_chatml {
    const char *audio_bos, *audio_eos; /* around the audio rows of a turn */
    const char *default_system;        /* NULL: none */
};
int mt_chatml_layout(const struct mt_tokenizer *t, const struct mt_chatml *c, enum mt_mode mode,
                     const char *system, struct mt_layout *out, struct mt_err *e);

#endif
