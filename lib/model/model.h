/*
 * model.h: what is loaded: weights from any source, tokenizers, and a model family behind one
 * interface. A family is one file: its configuration, its tensors, and its forward passes written
 * over kernels.h. The engine knows a model only through this header.
 */
#ifndef MT_MODEL_H
#define MT_MODEL_H

#include "audio/audio.h"
#include "base/base.h"
#include "base/state.h"
#include "kernels/kernels.h"

/* ---- weights ---- */

/*
 * Named tensors from one source: safetensors or GGUF (mapped), or synth: (made from a seed). The
 * family asks for each tensor by name and shape; tensors that nobody asks for are other models' and
 * are skipped.
 */
struct mt_weights;

/* Directory as released: model.safetensors, or model.safetensors.index.json with its shards. */
int mt_weights_open_safetensors(struct mt_weights **out, const char *dir, struct mt_err *e);
/* Random weights of the given type: the same bits on every machine for a seed and a name. */
int mt_weights_open_synth(struct mt_weights **out, uint64_t seed, enum mt_dtype type,
                          struct mt_err *e);
void mt_weights_close(struct mt_weights **w);

/*
 * The bytes of tensor `name`, which must have exactly these dims (1..4), else -EPROTO naming both
 * shapes; -ENOENT when absent. As a matrix: rows = dims[0], cols = the rest; one dim: one row.
 * Owned by w.
 */
int mt_weights_get(struct mt_weights *w, const char *name, int n_dims, const int64_t *dims,
                   struct mt_bytes *out, struct mt_err *e);
/*
 * As mt_weights_get, but *out has no data: r says how it is made. -ENOENT silently where it has to
 * be read.
 */
int mt_weights_recipe(struct mt_weights *w, const char *name, int n_dims, const int64_t *dims,
                      struct mt_bytes *out, struct mt_recipe *r, struct mt_err *e);
/* Whenever tensors are handed out: their bytes so far. */
void mt_weights_watch(struct mt_weights *w, void (*seen)(void *ctx, int64_t bytes), void *ctx);
/* The file, or what made them: for messages. */
const char *mt_weights_where(const struct mt_weights *w);
bool mt_weights_has(const struct mt_weights *w, const char *name);
/*
 * For tests and tools that read tensors of unknown shape: dims is filled. safetensors only. I64
 * tensors are not offered.
 */
int mt_weights_find(const struct mt_weights *w, const char *name, int *n_dims, int64_t dims[8],
                    struct mt_bytes *out);
/*
 * The data of tensor `name` is wanted no more: somebody has a copy. It may be asked for again, and
 * is read or made again then.
 */
void mt_weights_drop(struct mt_weights *w, const char *name);
/* Bytes of tensor data handed out so far and not dropped. */
int64_t mt_weights_bytes(const struct mt_weights *w);
/* Tells sets of weights apart: a hash of the tensors handed out so far and a piece of each. */
uint64_t mt_weights_digest(const struct mt_weights *w);
/*
 * From now on float matrices are handed out as Q8_0 or Q4_K, where that fits: see quantize.c. F32:
 * as they are.
 */
void mt_weights_quantize(struct mt_weights *w, enum mt_dtype type);

/*
 * From now on only names, shapes and sizes are right: what would be made (of a seed, or by
 * quantising) is zeros that take no memory.
 */
void mt_weights_plan(struct mt_weights *w);

/* ---- tokenizers ---- */

struct mt_tokenizer;

/*
 * Byte-level BPE of a GGUF file, or of a directory: tokenizer.json, or vocab.json + merges.txt (+
 * added_tokens.json or tokenizer_config.json's added_tokens_decoder). Errors name file and field.
 */
int mt_tokenizer_open(struct mt_tokenizer **out, const char *dir, struct mt_err *e);
/*
 * For synthetic models: the 256 bytes, then made-up words, up to `vocab`; the special tokens lie at
 * the given ids. Encoding uses single bytes; each id decodes to some text.
 */
struct mt_special {
    const char *text;
    int32_t id;
};
int mt_tokenizer_synth(struct mt_tokenizer **out, int vocab, const struct mt_special *specials,
                       int n, struct mt_err *e);
void mt_tokenizer_free(struct mt_tokenizer **t);

/* One past the highest id. */
int mt_tokenizer_size(const struct mt_tokenizer *t);
/* Id of a special (added) token by its exact text, -1 if there is none. */
int32_t mt_tokenizer_special(const struct mt_tokenizer *t, const char *text);
bool mt_tokenizer_is_special(const struct mt_tokenizer *t, int32_t id);
/*
 * Text to ids: special tokens are cut out first (when `specials`; else their text is ordinary), the
 * rest NFC-normalised where the tokenizer says so, split by its pattern and merged. *ids is
 * malloc'ed, the caller's. -EILSEQ for invalid UTF-8.
 */
int mt_tokenizer_encode(const struct mt_tokenizer *t, const char *text, size_t len, bool specials,
                        int32_t **ids, size_t *n, struct mt_err *e);
/*
 * Bytes of a token (special tokens: their text); not NUL terminated; length 0 for ids without text.
 */
const char *mt_tokenizer_bytes(const struct mt_tokenizer *t, int32_t id, size_t *len);

/*
 * Streaming text: bytes of tokens in, whole UTF-8 out. An incomplete character waits (at most 3
 * bytes) for the next token; bytes that can't become one are replaced by U+FFFD (maximal subparts,
 * as Unicode recommends). Special tokens print nothing unless `specials`.
 */
struct mt_detok {
    unsigned char hold[4];
    int n;
    bool zeros; /* a byte 0 stays; else it becomes U+FFFD, for texts that end at one */
};
/*
 * Longest output for one token of len bytes (3 (len + 3) + 1). Returns the bytes written (NUL
 * terminated behind), or -ENOSPC.
 */
int mt_detok_push(struct mt_detok *d, const struct mt_tokenizer *t, int32_t id, bool specials,
                  char *out, size_t cap);
/* What waits becomes U+FFFD. */
int mt_detok_flush(struct mt_detok *d, char *out, size_t cap);
/* What waits, to memory or back; only the beginning of a character is taken. */
void mt_detok_visit(struct mt_detok *d, struct mt_state_io *io);

/* ---- model ---- */

struct mt_model; /* immutable after open, shared by all sessions */

struct mt_model_info {
    char name[64]; /* the shape: "qwen2.5-omni-tiny", or the architecture of a checkpoint */
    int vocab;
    int layers, heads, kv_heads, head_dim, hidden;
    int64_t max_positions; /* trained range */
    int64_t context;       /* tokens that attention reaches by the model's own rule; 0: all */
    /* Codes beside the text at every position: books in all (0: none), those it makes, size. */
    int codebooks, codebooks_made, code_bins;
    int text_card; /* with codebooks: the initial text token, one past the last that is embedded */
    int sample_rate_hz; /* of everything that mt_ear_push takes */
    int speech_rate_hz; /* of what it speaks; 0: it does not */
    int beat_samples; /* the model's own frame length; 0: it hears nothing and holds no calls … */
    const char *no_calls; /* … and why, where the model can say so; the model's */
    int frame_step;       /* a frame's length is a multiple of this many samples … */
    int frame_min; /* … and at least this many; a last, shorter rest is padded with silence to it */
    int lookahead_samples; /* samples behind a frame's end that its encoding needs */
    int draws; /* tokens that a frame draws at most by the model's own rules; 0: no such rule */
    int32_t audio_id;         /* the placeholder whose embeddings are audio rows */
    int64_t weight_bytes;     /* in memory: the backend's own forms, and what is read in place */
    int step_rows, want_rows; /* as opened */
    bool deaf;                /* no audio tower: there is only teacher forcing of text */
    /* encode writes nothing that step, speak and sampling touch: it may run beside them. */
    bool encodes_apart;
    char remark[200]; /* what whoever opened it ought to know; "": nothing */
};

struct mt_model_opts {
    int step_rows;         /* most rows of one mt_model_step, 1..65536 */
    int want_rows;         /* most rows of one step that need logits, 1..step_rows */
    enum mt_dtype kv_type; /* of the caches that encoders keep of a call's past (0: f32) */
    /* With a GGUF file: its audio tower's, or "synth" for a random one. NULL: it will not hear. */
    const char *mmproj;
    enum mt_dtype quantize; /* Q8_0 or Q4_K: what float matrices become; F32, 0: they stay */
    bool plan; /* it will say what it is and takes, and never run: see mt_weights_plan */
    /* While it is opened: bytes of weights so far. NULL: nobody wants to know. */
    void (*loading)(void *ctx, int64_t bytes);
    void *ctx;
};

/*
 * What stands behind "synth:", taken apart: NAME[,seed=N][,layers=N][,dtype=f32|bf16|f16]. The name
 * is not looked up. -EINVAL with the reason; *out is untouched then.
 */
struct mt_synth_spec {
    char name[64];
    uint64_t seed;  /* default 1 */
    int64_t layers; /* 1..1024; 0: as many as the shape has */
    enum mt_dtype type;
};
int mt_synth_spec_parse(struct mt_synth_spec *out, const char *list, struct mt_err *e);
/* The names of the shapes, i = 0…; NULL behind the last. */
const char *mt_model_synth_name(int i);

/*
 * -m MODEL: a directory, or "synth:NAME[,seed=N][,layers=N][,dtype=f32|bf16|f16]"; NULL is the
 * default: $MT_MODEL, else ../share/metronome/tiny from the program's folder. The backend and the
 * directory's files must outlive the model, o and spec need not. Errors name the file and the field
 * or tensor: -ENOENT (no such file or tensor), -EPROTO (broken, or sizes that don't agree),
 * -ENOTSUP (another kind of model), -EINVAL (a wrong synth: or o), -ENOMEM; *out is NULL then.
 */
int mt_model_open(struct mt_model **out, const char *spec, struct mt_backend *be,
                  const struct mt_model_opts *o, struct mt_err *e);
void mt_model_close(struct mt_model **m);
/*
 * What a GGUF text model is, in the form of a config.json: *out is the caller's. -EBADMSG for what
 * is no GGUF file.
 */
int mt_model_gguf_config(char **out, const char *path, struct mt_err *e);
/* $MT_MODEL; NULL where it is not set, or empty. */
const char *mt_model_named(void);
const struct mt_model_info *mt_model_info(const struct mt_model *m);
/* What it was opened by, the default where that was NULL; NULL of a cost model. */
const char *mt_model_spec(const struct mt_model *m);
/*
 * Tells models apart: a hash of the configuration, the tokenizer and the weights, as they are used
 * (quantised or not). A plan has another one than the model that it is of.
 */
uint64_t mt_model_identity(const struct mt_model *m);
/*
 * NULL when a directory holds none that we read: then there are no sessions (mt_talk_new says so),
 * only teacher forcing.
 */
const struct mt_tokenizer *mt_model_tokenizer(const struct mt_model *m);
struct mt_backend *mt_model_backend(const struct mt_model *m);

/* ---- audio into the model ---- */

/*
 * One session's ear: samples not yet encoded, front end state, and the audio rows of the frame in
 * work. All bounded, all allocated here. frame_samples: mt_model_info's frame_step and frame_min
 * hold (else -EINVAL). backlog: whole frames that may wait (at least 1), so that mt_ear_frames
 * never passes backlog + 1 before the end.
 */
struct mt_ear;
int mt_ear_new(struct mt_ear **out, struct mt_model *m, int frame_samples, int backlog,
               struct mt_err *e);
void mt_ear_free(struct mt_ear **ear);
/* The most audio rows one of its frames gives. */
int mt_ear_rows_max(const struct mt_model *m, int frame_samples);
/* Take up to n samples; returns how many fitted. */
int64_t mt_ear_push(struct mt_ear *ear, const float *pcm, int64_t n);
/* Samples that mt_ear_push would take now; none after mt_ear_end. */
int64_t mt_ear_room(const struct mt_ear *ear);
/* No more will come: the rest, if there is any, becomes a last, shorter frame. */
void mt_ear_end(struct mt_ear *ear);
/* Frames complete and not yet taken (its lookahead heard, or ended). */
int mt_ear_frames(const struct mt_ear *ear);
/*
 * Samples that must arrive, counted from the first of the session, until frame k (0…) is complete.
 */
int64_t mt_ear_due_samples(const struct mt_ear *ear, int64_t k);
/*
 * Drop the oldest complete frame unencoded (a stalled or dropped frame); the front end hears it all
 * the same, so that the next one is encoded as if it had been, but for what an encoder that looks
 * back would have seen of it. Without a complete frame: nothing.
 */
void mt_ear_skip(struct mt_ear *ear);
/*
 * Encode the oldest complete frame of each of n different ears, as one ragged batch; afterwards ear
 * i holds mt_ear_rows() rows until its next encode or skip. 0, or -EINVAL when one has no complete
 * frame (then none is encoded).
 */
int mt_model_encode(struct mt_model *m, struct mt_ear **ears, int n);
/* [*n_rows, hidden], the ear's; 0 rows before the first encode and after a skip. */
struct mt_rows mt_ear_rows(const struct mt_ear *ear, int *n_rows);
/* Mel frames that the last encoded frame had. */
int mt_ear_mel_frames(const struct mt_ear *ear);
/*
 * A whole clip at once, offline rule (mt-probe embed): *rows is malloc'ed [n_rows, hidden], the
 * caller's; *mel_frames, unless NULL, how many mel frames the clip has. -EINVAL for a clip too
 * short to give a row, -E2BIG for one that is longer than the model takes, -ENOMEM.
 */
int mt_model_embed_clip(struct mt_model *m, const float *pcm, int64_t n, float **rows,
                        int64_t *n_rows, int64_t *mel_frames, struct mt_err *e);

/* ---- the course of a call ---- */

enum mt_mode { MT_MODE_TURN, MT_MODE_FREE };

/*
 * One session's course, token by token: which tokens stand around a frame's audio, how its answer
 * is drawn, and what each drawn token means. The model's own template and rules; bounded, allocated
 * here.
 *
 *   begin (what is fed before the answer) -> rules, draw, drawn -> feed next, rules, draw, drawn …
 *
 * until an answer ends by itself or is cut short by the caller; then the next frame begins.
 */
struct mt_talk;
/*
 * system: text of the system turn, NULL for the model's default, "" for none; special tokens
 * spelled in it are text. ear: the session's, which outlives the talk. *out is NULL on failure:
 * -EILSEQ (system is no UTF-8), -ENOENT (no tokenizer), -EPROTO (a tokenizer of another model: ids
 * beyond the table, a mark missing), -ENOTSUP (a mode that the model has not), -ENOMEM.
 */
int mt_talk_new(struct mt_talk **out, struct mt_model *m, enum mt_mode mode, const char *system,
                struct mt_ear *ear, struct mt_err *e);
void mt_talk_free(struct mt_talk **t);
int64_t mt_talk_bytes(const struct mt_talk *t);
/* The first tokens of the call, before its first frame: the talk's. */
const int32_t *mt_talk_prompt(const struct mt_talk *t, int *n);
/* Most positions that a frame feeds beside prompt and audio rows: marks, what was drawn last. */
int mt_talk_marks(const struct mt_talk *t);
/* Most tokens that a frame draws by the model's own rules. INT_MAX: no such rule. */
int mt_talk_draws(const struct mt_talk *t);
/*
 * A frame begins: writes its feed to ids [marks + audio_rows, and the prompt in the first one] and
 * returns its length. Its audio rows are to lie at *audio_at on; there stands -1, or a token whose
 * embedding the model adds to the row.
 */
int mt_talk_begin(struct mt_talk *t, int audio_rows, int32_t *ids, int *audio_at);
/* How the next token is drawn: p comes with what the session asked for. */
void mt_talk_rules(const struct mt_talk *t, struct mt_sample *p);
/* What a drawn token means. */
struct mt_said {
    int32_t show; /* a token whose text the listener reads, or -1 */
    bool unsay;   /* the answer's text so far is void */
    bool end;     /* of the answer */
    int32_t feed; /* unless it ended: what is fed before the next draw */
};
struct mt_said mt_talk_drawn(struct mt_talk *t, int32_t token);
/*
 * What the models that speak do once a step's tokens are drawn (all of them noted by
 * mt_talk_drawn): talks [n] in the order of the wanted rows of that step, NULL where nothing could
 * be drawn; params as they were drawn with.
 */
void mt_model_speak(struct mt_model *m, struct mt_talk **talks, const struct mt_sample *params,
                    int n);
/*
 * The sound of the answer just drawn, speech_rate_hz in mt_model_info; *n 0 without. Valid until
 * the next mt_model_speak.
 */
const float *mt_talk_speech(const struct mt_talk *t, int *n);
/*
 * The same of a model with codebooks before its codec: the text token and the codes that belong to
 * that sound, *n in all. NULL without; valid as long.
 */
const int32_t *mt_talk_codes(const struct mt_talk *t, int *n);
/* Does a character of its text go on from one frame's answer to the next? */
bool mt_talk_flows(const struct mt_talk *t);

/*
 * What one session owns beside its tokens in the pool, by kind, exact: frames of frame_samples,
 * backlog as for mt_ear_new. Returns the number of kinds. Names are words of the ready line.
 */
enum { MT_STATE_KINDS = 8 };
struct mt_state_kind {
    const char *name;
    int64_t bytes;
};
int mt_model_state(const struct mt_model *m, int frame_samples, int backlog,
                   struct mt_state_kind out[MT_STATE_KINDS]);

/*
 * All of it, to memory or back, and the talk's (base/state.h). Read into objects that were made as
 * those were that it is of: same model, frames, backlog, mode and system text. -ENOTSUP in io where
 * a family does not say what it owns.
 */
void mt_ear_visit(struct mt_ear *ear, struct mt_state_io *io);
void mt_talk_visit(struct mt_talk *t, const struct mt_model *m, struct mt_state_io *io);
/*
 * Tokens first..first+n-1 of a cache (read: but for the first `skip` of them, which are passed
 * over), and rows of floats.
 */
void mt_state_kv(struct mt_state_io *io, const char *what, struct mt_backend *be, struct mt_kv *kv,
                 const struct mt_kv_shape *shape, const struct mt_kv_view *view, int64_t first,
                 int64_t n, int64_t skip);
void mt_state_rows(struct mt_state_io *io, const char *what, struct mt_backend *be,
                   struct mt_rows rows, int64_t n);
/* The highest id that is fed to the model. */
int32_t mt_model_last_id(const struct mt_model *m);

/* ---- a step ---- */

/* Audio rows that enter a step: rows row..row+n-1 of the batch are src's first n rows. */
struct mt_audio_rows {
    int row, n;
    struct mt_rows src;
};

/*
 * For who wants to see where a step's attention goes: called in every layer of the text model once
 * its keys are in the cache, with the queries as `attention` gets them.
 */
struct mt_watch {
    void *ctx;
    void (*layer)(void *ctx, int layer, const struct mt_kv *kv, const struct mt_batch *b,
                  struct mt_rows q, struct mt_rows q_sink);
};

struct mt_step {
    struct mt_batch batch;
    const int32_t *ids; /* [n_rows] a token; -1 where audio rows go, but see mt_talk_begin */
    const struct mt_audio_rows *audio;
    int n_audio;
    const int *want; /* rows whose logits are needed, ascending */
    int n_want;
    const struct mt_watch *watch; /* NULL: nobody; models that take frames of codes call nobody */
};

/* Geometry for the pool; type is the KV type. */
struct mt_kv_shape mt_model_kv_shape(const struct mt_model *m, int block_tokens,
                                     enum mt_dtype type);
/*
 * Run a step; logits row i ([vocab]) belongs to want[i], valid until the next step. -EINVAL, with
 * nothing computed, for more rows or wanted ones than the model was opened for. Ids, rows and
 * blocks are trusted.
 */
int mt_model_step(struct mt_model *m, struct mt_kv *kv, const struct mt_step *step,
                  struct mt_rows *logits);

/*
 * Teacher forcing of a model with codebooks. frames [n][1 + codebooks]: a text token (up to
 * text_card) and codes (up to code_bins, their initial one), -1 for none, not delayed: the model
 * does that. The input of steps t..t+n-1: text tokens for mt_step's ids, and audio rows that every
 * position has.
 */
void mt_model_teach_input(struct mt_model *m, const int32_t *frames, int64_t t, int n,
                          int32_t *text, struct mt_rows out);
/*
 * After a step whose n wanted rows are the steps at[]: the logits of each made codebook k in turn,
 * [n, code_bins], valid during the call.
 */
void mt_model_teach_codes(struct mt_model *m, const int32_t *frames, const int64_t *at, int n,
                          void (*logits)(void *ctx, int k, struct mt_rows logits, int n),
                          void *ctx);

#endif
