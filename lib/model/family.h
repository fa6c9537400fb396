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
    uint64_t identity;              /* of the configuration, and of what the family adds */
    char *spec;                     /* what it was opened by */
    const char *dir;                /* while it is opened: the directory, or NULL */
    bool synthetic;                 /* weights from a seed: the family makes a tokenizer, too */
    void *own;                      /* the family's */
};

/* A named shape for synth:NAME, as the config.json of a release would give it. */
struct mt_synth_shape {
    const char *name;
    const char *config; /* JSON */
    const char *layers; /* where "layers=" goes: the keys to the number, with dots between */
};

struct mt_family {
    const char *const *model_types; /* config.json's model_type, NULL terminated */
    /*
     * Is this checkpoint, whose config.json is missing or says no type, one of ours? NULL: never.
     */
    bool (*recognise)(const struct mt_weights *w);
    const struct mt_synth_shape *shapes; /* ends with a NULL name */

    /*
     * Bind everything of a model whose weights, backend and options are set; fill info and own.
     * config is the root of config.json, or NULL where the release has none and the family has
     * recognise; where is its name for errors.
     */
    int (*open)(struct mt_model *m, const json_t *config, const char *where, struct mt_err *e);
    void (*close)(struct mt_model *m);
    /* The talk's first part is set; the object begins with it and is the family's. */
    int (*talk_new)(struct mt_talk **out, struct mt_model *m, enum mt_mode mode, const char *system,
                    struct mt_ear *ear, struct mt_err *e);
    int (*ear_new)(struct mt_ear **out, struct mt_model *m, int frame_samples, int backlog,
                   struct mt_err *e);
    void (*ear_free)(struct mt_ear *ear);
    /* All that the ear owns: mt_ear_base_visit, then what stands behind it. */
    void (*ear_visit)(struct mt_ear *ear, struct mt_state_io *io);
    int (*state)(const struct mt_model *m, int frame_samples, int backlog,
                 struct mt_state_kind out[MT_STATE_KINDS]);
    int (*ear_rows_max)(const struct mt_model *m, int frame_samples);
    void (*ear_skip)(struct mt_ear *ear);
    int (*encode)(struct mt_model *m, struct mt_ear **ears, int n);
    int (*embed_clip)(struct mt_model *m, const float *pcm, int64_t n, float **rows,
                      int64_t *n_rows, int64_t *mel_frames, struct mt_err *e);
    int (*step)(struct mt_model *m, struct mt_kv *kv, const struct mt_step *s,
                struct mt_rows *logits);
    /* mt_model_teach_input and mt_model_teach_codes; NULL without codebooks. */
    void (*teach_input)(struct mt_model *m, const int32_t *frames, int64_t t, int n, int32_t *text,
                        struct mt_rows out);
    void (*teach_codes)(struct mt_model *m, const int32_t *frames, const int64_t *at, int n,
                        void (*logits)(void *ctx, int k, struct mt_rows logits, int n), void *ctx);
    /* NULL: it does not speak. */
    void (*speak)(struct mt_model *m, struct mt_talk **talks, const struct mt_sample *params,
                  int n);
};

/* Opens m's family: what it is by its configuration becomes part of its identity. */
int mt_model_open_family(struct mt_model *m, const json_t *config, const char *where,
                         struct mt_err *e);

extern const struct mt_family mt_family_qwen2_5_omni, mt_family_qwen3_omni, mt_family_moshi;
extern const struct mt_family mt_family_minicpm_o;

/* What there is to say when something is to be heard by a model that is deaf; with its name. */
#define MT_DEAF                                                                                    \
    "the model ('%s') has no audio tower (--mmproj FILE, or --mmproj synth for a random one)"

/* What the options ask of weights just opened. */
void mt_model_weights_opts(struct mt_model *m);
/* By a model_type of config.json; NULL for one that nobody takes. */
const struct mt_family *mt_family_find(const char *type);
/* Fills m, whose backend and options are set, from a GGUF file. */
int mt_model_open_gguf(struct mt_model *m, const char *path, struct mt_err *e);

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
int mt_ear_init(struct mt_ear *ear, struct mt_model *m, int frame_samples, int backlog,
                struct mt_err *e);
/* For a family that only asks how much was heard: samples are counted, not kept. */
int mt_ear_init_counting(struct mt_ear *ear, struct mt_model *m, int frame_samples, int backlog,
                         struct mt_err *e);
void mt_ear_done(struct mt_ear *ear);
void mt_ear_base_visit(struct mt_ear *ear, struct mt_state_io *io);
/* Bytes of mt_ear itself: the queue of samples and the rows. */
int64_t mt_ear_bytes(const struct mt_model *m, int frame_samples, int backlog);
int64_t mt_ear_cap(const struct mt_model *m, int frame_samples, int backlog);
/* Samples of the frame that comes next, frame_samples but for a last rest (padded to frame_min). */
int mt_ear_next_samples(const struct mt_ear *ear);
/* The front end has consumed the first n waiting samples. */
void mt_ear_consume(struct mt_ear *ear, int64_t n);

/* What every talk begins with: what kind it is. */
struct mt_talk_kind {
    void (*free)(struct mt_talk *t);
    int64_t (*bytes)(const struct mt_talk *t);
    const int32_t *(*prompt)(const struct mt_talk *t, int *n);
    int (*marks)(const struct mt_talk *t);
    int (*draws)(const struct mt_talk *t); /* NULL: no rule of its own */
    int (*begin)(struct mt_talk *t, int audio_rows, int32_t *ids, int *audio_at);
    void (*rules)(const struct mt_talk *t, struct mt_sample *p); /* NULL: none */
    struct mt_said (*drawn)(struct mt_talk *t, int32_t token);
    /* What changes in the course of a call. What was spoken last is not part of it: it is out. */
    void (*visit)(struct mt_talk *t, const struct mt_model *m, struct mt_state_io *io);
    const float *(*speech)(const struct mt_talk *t, int *n);  /* NULL: it does not speak */
    const int32_t *(*codes)(const struct mt_talk *t, int *n); /* NULL: not in codes */
    bool flows;
};
struct mt_talk {
    const struct mt_talk_kind *kind;
};

/*
 * The plain course, layout.c: the same marks around every frame's audio, an answer up to a stop
 * token.
 */
struct mt_layout {
    int32_t *open;   /* once, before the first frame: the system prompt */
    int32_t *before; /* each frame: before its audio rows … */
    int32_t *after;  /* … and behind them; then the answer is decoded */
    int32_t *close;  /* before the next frame: the end of the answer, said by the model or not */
    int n_open, n_before, n_after, n_close;
    int32_t stop[4]; /* tokens that end an answer; none in free mode */
    int n_stop;
};
/* Takes what l owns, also on failure (-ENOMEM). */
int mt_layout_talk(struct mt_talk **out, struct mt_layout *l, struct mt_err *e);
void mt_layout_free(struct mt_layout *l);

/* ChatML turns (the Qwen models and MiniCPM-o). *out is the caller's; untouched on failure. */
struct mt_chatml {
    const char *audio_bos, *audio_eos; /* around the audio rows of a turn */
    const char *default_system;        /* NULL: none */
};
int mt_chatml_layout(const struct mt_tokenizer *t, const struct mt_chatml *c, enum mt_mode mode,
                     const char *system, struct mt_layout *out, struct mt_err *e);
/* … and the talk of it. */
int mt_chatml_talk(struct mt_talk **out, const struct mt_tokenizer *t, const struct mt_chatml *c,
                   enum mt_mode mode, const char *system, struct mt_err *e);

#endif
