/*
 * kernels.h: the compute interface: one table of operations that a model's forward pass is written
 * over. A backend owns weights (mt_mat), activations (mt_rows) and the paged KV cache (mt_kv); the
 * caller never sees their bytes, a thread or a device pointer.
 *
 * Every output element is one sum in one order: it depends on its own inputs only, never on how
 * many rows ran beside it, on their company or on the number of threads. Nothing here allocates but
 * the *_new functions, which run at start.
 */
#ifndef MT_KERNELS_H
#define MT_KERNELS_H

#include "base/base.h"

/*
 * INT8 and FP8 (e4m3: 448 is the largest) are for the KV cache only, the types behind them for
 * weights only: rows of whole blocks of 32 (Qx_0, Qx_1) or 256 (Qx_K) elements that share their
 * scales, as they lie in GGUF files.
 */
enum mt_dtype {
    MT_F32,
    MT_F16,
    MT_BF16,
    MT_INT8,
    MT_FP8,
    MT_Q4_0,
    MT_Q4_1,
    MT_Q5_0,
    MT_Q5_1,
    MT_Q8_0,
    MT_Q4_K,
    MT_Q5_K,
    MT_Q6_K,
    MT_DTYPES /* how many there are */
};
/* Bytes of one element (INT8, FP8: without its scale); 0 where only blocks have a size. */
size_t mt_dtype_size(enum mt_dtype t);
const char *mt_dtype_name(enum mt_dtype t);
/* A cache of bytes: an f32 scale a token, head, K and V beside them. */
static inline bool mt_dtype_scaled(enum mt_dtype t)
{
    return t == MT_INT8 || t == MT_FP8;
}
/* Elements that share a block (1 where there are none), and its bytes. */
int mt_dtype_block(enum mt_dtype t);
int mt_dtype_block_bytes(enum mt_dtype t);
/*
 * A row of n floats, whole blocks, rounded to Q8_0 (as ggml does it, bit for bit) or Q4_K (each 32
 * elements get the scale and minimum that fit them best, large elements counting for more). What is
 * not finite makes its block useless.
 */
void mt_quantize_row(enum mt_dtype t, void *dst, const float *src, int64_t n);
/* n elements of a row of any type for weights as f32. */
void mt_dequantize_row(enum mt_dtype t, float *dst, const void *src, int64_t n);
/* Bytes of a row of cols elements; -1 where they are no whole blocks, or too many to count. */
int64_t mt_dtype_row_bytes(enum mt_dtype t, int64_t cols);

/*
 * A matrix [rows, cols], row-major, as it lies in a mapped file or in memory. A vector has rows =
 * 1.
 */
struct mt_bytes {
    const void *data; /* any alignment; outlives the mt_mat made from it, unless mat_borrows: no */
    enum mt_dtype type;
    int64_t rows, cols; /* a row is mt_dtype_row_bytes long */
    bool looked_up;     /* rows are only looked up: linear may be slow, so no copy is made for it */
};

/*
 * A matrix that is made and not read: element i is the 16 bits from i % 4 * 16 on of mt_mix64(key +
 * i / 4), as a signed number u, and (2 u + 1) * step + mean, each rounded to f32, then to the type.
 */
struct mt_recipe {
    uint64_t key;
    float step, mean;
};
/* Elements first.. of it, n of them; type F32, F16 or BF16. */
void mt_recipe_make(void *dst, enum mt_dtype type, const struct mt_recipe *r, int64_t first,
                    int64_t n);

struct mt_mat;     /* a weight: [out, in], in the backend's own form */
struct mt_kv;      /* a pool of KV blocks for all layers */
struct mt_experts; /* gated MLPs of which each row takes a few */
struct mt_mels;    /* a log-mel front end: audio/mel.h has its window and filters */

/*
 * n experts down(silu(gate x) * up x), of which a row takes the `top` whose router logits are
 * highest, the lower number among equals. Their weights are the softmax over all n logits; `norm`:
 * divided by the sum of those taken. Matrices as linear takes them; they must outlive the experts.
 */
struct mt_expert_set {
    int n, top; /* 1 <= top <= n */
    bool norm;
    struct mt_mat *const *gate, *const *up, *const *down; /* n each; the arrays are copied */
};

/*
 * Activations: rows of f32 in the backend's memory. `data` is the backend's: only operations read
 * it. A view of some rows or some columns is another mt_rows over the same memory.
 */
struct mt_rows {
    float *data;
    int64_t stride; /* floats from one row to the next */
    int width;      /* floats of a row that belong to this view */
};

static inline struct mt_rows mt_rows_from(struct mt_rows r, int64_t first)
{
    r.data += first * r.stride;
    return r;
}

static inline struct mt_rows mt_rows_cols(struct mt_rows r, int col, int width)
{
    r.data += col;
    r.width = width;
    return r;
}

#define MT_NO_ROWS ((struct mt_rows){0})

/* ---- the KV cache ---- */

struct mt_kv_shape {
    int layers, kv_heads, head_dim;
    int block_tokens;   /* tokens in a block, all layers together */
    enum mt_dtype type; /* F32, F16, BF16, or INT8 or FP8 with a scale a token, head, K and V */
};
/*
 * Bytes of one block, all layers; -EINVAL for a shape that can't be. Rotation needs an even
 * head_dim.
 */
int64_t mt_kv_block_bytes(const struct mt_kv_shape *s);

/*
 * Which tokens the query at index i sees; `last` is the index of its run's last row. Sinks go with
 * MT_SEE_CAUSAL alone, and only there a row does not depend on how its session was cut into runs.
 */
enum mt_see {
    MT_SEE_CAUSAL, /* j <= i,    i - j < window */
    MT_SEE_RING,   /* j <= i,    last - j < window: a ring that is written before it is read */
    MT_SEE_CHUNK,  /* j <= last, last - j < window: a chunk sees all of itself and the past */
};

/*
 * Attention takes tokens together in units of so many, from a multiple of it in a block on: what it
 * sums, and in which order, does not depend on the size of blocks that are multiples of it.
 */
enum { MT_KV_UNIT = 16 };

/*
 * How one session's tokens lie in the pool. Token index i (0 is the session's first) lies
 *   i < sinks:  in blocks[i / p], slot i % p
 *   else r = i - sinks:  in blocks[sink_blocks + (r / p) % ring_blocks], slot r % p
 * with p = block_tokens and sink_blocks = ceil(sinks / p). Token j is visible to the query at index
 * i iff it is a sink up to i, or as mt_see says. An unbounded session has sinks 0, window INT64_MAX
 * and ring_blocks INT32_MAX.
 */
struct mt_kv_view {
    const int32_t *blocks; /* ids in the pool; borrowed for the call */
    int sinks;
    int ring_blocks;
    int64_t window;
    /*
     * Window keys and queries are rotated at their index i; the sinks are seen from min(i,
     * sink_reach), so that they come no nearer than they are and no farther than that. Rotations
     * depend on differences only: sink keys stay rotated at their index for ever, and the query is
     * rotated a second time. Under `--rope cache` the reach is window - 1 + sinks, and the sinks
     * stand directly before the window; under `--rope absolute` they keep their distance, up to the
     * last position that the model was trained on.
     */
    int64_t sink_reach;
    /*
     * Sinks below this index lie in the cache already, or another run of this step writes them, for
     * a session with the same first tokens: rope_append leaves them alone. 0: all are this
     * session's.
     */
    int sinks_held;
    enum mt_see see;
    /*
     * NULL, or the pool that blocks counts in: a session's own cache (of an encoder), so that a
     * batch of them is one call. Of the call's shape, but the type may be another.
     */
    struct mt_kv *kv;
    /*
     * Every token stands so far behind its index (also the sinks): how a call sounds that began
     * long ago. Only differences of positions count, so that anything but rounding is a fault.
     */
    int64_t moved;
};

/* Rows of one session in a step: consecutive rows of the batch are consecutive tokens. */
struct mt_run {
    int row, n;    /* first row, number of rows */
    int64_t index; /* token index of the first row; all earlier tokens are in the cache */
    struct mt_kv_view view;
};

/* A ragged step. runs are in the order of their rows and cover 0..n_rows-1. */
struct mt_batch {
    int n_rows, n_runs;
    const struct mt_run *runs;
};

/* Rows that belong together in an encoder: a block of a clip. Spans are in order of their rows. */
struct mt_span {
    int row, n;
};

/*
 * Frames of one session in a call of log_mel: rows row.. of the result are those of n frames, which
 * begin MT_MEL_HOP samples behind each other at x, in host memory: MT_MEL_HOP * (n - 1) +
 * MT_MEL_FFT samples, all of them numbers.
 */
struct mt_mel_span {
    int row, n;
    const float *x;
};

/*
 * What mel_clamp does for a session, whose maxima are the cells of a row of its own. First cell
 * `into` becomes the largest value of the rows `loud` (-INFINITY of none), and with `beside` of
 * what it was; then each v of the rows `rows` (max(v, m - 8) + 4) / 4, where m is the largest of
 * the cells by[0..n_by), in host memory; -INFINITY of none.
 */
struct mt_mel_clamp {
    struct mt_rows cells;
    struct mt_span loud;
    int into;
    bool beside;
    struct mt_span rows;
    const int *by;
    int n_by;
};

/* Rotary positions: pair i of a head turns by the angle position * base^(-2i / hd), in f64. */
enum mt_rope_kind {
    MT_ROPE_HALVES, /* pair i couples elements i and i + hd / 2 */
    MT_ROPE_PAIRS,  /* elements 2i and 2i + 1 */
    MT_ROPE_NONE,   /* nothing turns */
};
struct mt_rope {
    enum mt_rope_kind kind;
    double base;
    /* What heads of q and of k are normed with before they turn, as by rms_norm; or NULL. */
    const struct mt_mat *q_norm, *k_norm;
    float eps;
};

/*
 * A convolution over time that looks back only. A piece of rows gives one row a stride, or when
 * transposed `stride` rows each; otherwise their number is a multiple of the stride. A session's
 * first rows see zeros before them, unless its past was filled otherwise.
 */
struct mt_conv {
    int kernel, stride, dilation; /* dilation 1 when transposed */
    bool transposed;
};

/* Rows that a session remembers: a stride of the kernel's reach is in the piece itself. */
static inline int mt_conv_past(const struct mt_conv *c)
{
    return c->transposed ? c->kernel / c->stride - 1
                         : (c->kernel - 1) * c->dilation + 1 - c->stride;
}

/* Bins of distance in attention_mass: 0, 1, 2 to 3, …, the last has all beyond. */
#define MT_MASS_BINS 24

/* ---- operations ---- */

enum mt_act { MT_ACT_NONE, MT_ACT_GELU /* erf */, MT_ACT_RELU, MT_ACT_SILU, MT_ACT_ELU };

/* A penalty on one token's logit l: l / by; with `down`, l * by where l is not above 0. */
struct mt_scale {
    int32_t id;
    float by; /* above 0 */
    bool down;
};

/*
 * What a model's own way of speaking asks of a draw. First a plain draw, of the logits as they are
 * (greedy, or at temperature 1): is it exit_id, it is the result. Else the ban, then the scales in
 * their order, then the draw as ever. Ids are in range; an id may be scaled more than once.
 */
struct mt_sample_rules {
    int32_t exit_id; /* -1: none */
    const int32_t *ban;
    int n_ban;
    const struct mt_scale *scale;
    int n_scale;
};

/* How one row of logits becomes a token. */
struct mt_sample {
    float temperature; /* 0: greedy, the lowest id among equals */
    int top_k;         /* 0: all */
    float top_p;       /* 1: all */
    uint64_t seed;     /* the session's */
    uint64_t draw;     /* number of this draw in the session: draws don't depend on the company */
    const struct mt_sample_rules *rules; /* NULL: none; borrowed for the call */
};

/* One matrix of several that take the same rows: as linear's arguments. */
struct mt_linear {
    struct mt_rows out;
    const struct mt_mat *w, *bias;
    enum mt_act act;
    struct mt_rows residual;
};
enum { MT_LINEARS_MAX = 4 };

/*
 * A second queue of a backend, the side: what is noted for it may run beside what is noted for the
 * first, in any order. Neither may touch rows or caches that the other writes, nor may either have
 * experts that the other has.
 */
enum mt_side {
    MT_SIDE_FORK, /* what goes to the side after the next ON is behind all that was noted so far */
    MT_SIDE_ON,   /* operations go to the side, and begin while the first queue's work runs … */
    MT_SIDE_OFF,  /* … and no longer */
    MT_SIDE_JOIN, /* what is noted from here on is behind all that went to the side */
};

struct mt_backend;

struct mt_ops {
    const char *name; /* "cpu-scalar", "cpu-avx2", … */
    void (*free)(struct mt_backend *be);
    /* Bytes of the memory that weights, rows and pools lie in: those that are left, and all.
     * -ENODEV. NULL: they lie in the machine's. */
    int (*memory)(struct mt_backend *be, int64_t *left, int64_t *all);

    /*
     * How many rows a step of n decoding sessions should be filled up to, with rows of nobody: such
     * a step costs the host less where it was there before. NULL: n is as good as any.
     */
    int (*rows_bucket)(const struct mt_backend *be, int n);
    /*
     * In this order; between ON and OFF operations that wait for the device wait for the side only,
     * elsewhere for the first queue only. Freeing waits for both. NULL: there is one queue.
     */
    void (*side)(struct mt_backend *be, enum mt_side what);

    /* Weights. mat_new may repack; it fails with -ENOMEM or -ENOTSUP (a type it can't hold). */
    int (*mat_new)(struct mt_backend *be, struct mt_mat **out, const struct mt_bytes *b);
    /*
     * As mat_new, for b without data: its elements are r's from the first on. NULL where weights
     * lie in the machine's memory anyway.
     */
    int (*mat_make)(struct mt_backend *be, struct mt_mat **out, const struct mt_bytes *b,
                    const struct mt_recipe *r, int64_t first);
    void (*mat_free)(struct mt_backend *be, struct mt_mat *m);
    /*
     * May m still read the bytes that it was made from? Otherwise they may go, unless its rows are
     * looked up besides (embed and its kin read them for ever).
     */
    bool (*mat_borrows)(const struct mt_mat *m);

    /*
     * Activations: n rows, zeroed. put and get copy whole rows between host memory [n, width] and
     * rows.
     */
    int (*rows_new)(struct mt_backend *be, struct mt_rows *out, int64_t n, int width);
    void (*rows_free)(struct mt_backend *be, struct mt_rows *r);
    /* What rows_new takes for them. */
    int64_t (*rows_bytes)(const struct mt_backend *be, int64_t n, int width);
    void (*rows_put)(struct mt_backend *be, struct mt_rows dst, const float *src, int64_t n);
    void (*rows_get)(struct mt_backend *be, float *dst, struct mt_rows src, int64_t n);
    /* dst row i = src row index[i] (gather); index in host memory. */
    void (*gather)(struct mt_backend *be, struct mt_rows dst, struct mt_rows src, const int *index,
                   int n);

    /* max_rows: the most rows of one call. -EINVAL for a set that can't be, -ENOMEM. */
    int (*experts_new)(struct mt_backend *be, struct mt_experts **out,
                       const struct mt_expert_set *set, int max_rows);
    void (*experts_free)(struct mt_backend *be, struct mt_experts *x);

    /* KV pool of n blocks. -ENOMEM. */
    int (*kv_new)(struct mt_backend *be, struct mt_kv **out, const struct mt_kv_shape *s,
                  int64_t n_blocks);
    void (*kv_free)(struct mt_backend *be, struct mt_kv *kv);
    /*
     * Tokens 0..n-1 of a session, all layers, bit for bit to where another view has them. Both
     * pools are of one shape but for the tokens in a block, both views hold all n.
     */
    void (*kv_copy)(struct mt_backend *be, struct mt_kv *dst, const struct mt_kv_view *to,
                    const struct mt_kv *src, const struct mt_kv_view *from, int64_t n);
    /*
     * Tokens first..first+n-1 of a session to host memory and back, bit for bit, wherever a view
     * has them: token behind token, each [layer][K, V][kv head] its elements and behind them INT8's
     * and FP8's scale, mt_kv_block_bytes / block_tokens bytes in all. -EIO when the device failed.
     * NULL: the backend's caches hold nothing.
     */
    int (*kv_get)(struct mt_backend *be, const struct mt_kv *kv, const struct mt_kv_view *view,
                  int64_t first, int64_t n, void *bytes);
    int (*kv_put)(struct mt_backend *be, struct mt_kv *kv, const struct mt_kv_view *view,
                  int64_t first, int64_t n, const void *bytes);

    /*
     * out row i = table row ids[i]; rows with ids[i] < 0 are left alone. ids in host memory, in
     * range.
     */
    void (*embed)(struct mt_backend *be, struct mt_rows out, const struct mt_mat *table,
                  const int32_t *ids, int n);
    /* out row i += table row ids[i]; rows with ids[i] < 0 get nothing. */
    void (*embed_add)(struct mt_backend *be, struct mt_rows out, const struct mt_mat *table,
                      const int32_t *ids, int n);
    /*
     * out = x / sqrt(mean(x^2) + eps) * w. out may be x. A row that is several times as wide as w
     * is so many pieces, each normed by itself (the heads of Q and K).
     */
    void (*rms_norm)(struct mt_backend *be, struct mt_rows out, struct mt_rows x,
                     const struct mt_mat *w, float eps, int n);
    /* out = (x - mean) / sqrt(var + eps) * w + b. out may be x. */
    void (*layer_norm)(struct mt_backend *be, struct mt_rows out, struct mt_rows x,
                       const struct mt_mat *w, const struct mt_mat *b, float eps, int n);
    /*
     * out = act(x W^T + bias) + residual; bias may be NULL, residual MT_NO_ROWS or out itself; out
     * is not x.
     */
    void (*linear)(struct mt_backend *be, struct mt_rows out, struct mt_rows x,
                   const struct mt_mat *w, const struct mt_mat *bias, enum mt_act act,
                   struct mt_rows residual, int n);
    /*
     * linear of each of count <= MT_LINEARS_MAX matrices; the same bits. No out is x or another's.
     */
    void (*linears)(struct mt_backend *be, struct mt_rows x, const struct mt_linear *list,
                    int count, int n);
    /* out = silu(gate) * up. out may be gate. */
    void (*gated)(struct mt_backend *be, struct mt_rows out, struct mt_rows gate, struct mt_rows up,
                  int n);

    /*
     * out = sum of weight * expert(x) over each row's experts, from the lowest number to the
     * highest, then + residual (MT_NO_ROWS or out itself). All rows of an expert are computed
     * together, so that a call reads each expert that any of them takes once. logits [n, experts].
     * scratch: n * top rows of x's width + 2 * the experts' inner width. out is not x. The object
     * keeps the routing of a call: one call at a time.
     */
    void (*experts)(struct mt_backend *be, struct mt_rows out, struct mt_rows x,
                    struct mt_rows logits, struct mt_experts *ex, struct mt_rows residual,
                    struct mt_rows scratch, int n);

    /*
     * Norms of heads, rotary positions, then append. q [rows, heads * hd] is rotated in place at
     * its index; q_sink gets q rotated where it sees the sinks (see mt_kv_view), only for runs with
     * sinks; k, v [rows, kv_heads * hd]: k is rotated in place, both go into the cache of `layer`.
     * All runs are appended before any attention of the layer.
     */
    void (*rope_append)(struct mt_backend *be, struct mt_kv *kv, int layer, struct mt_rope rope,
                        const struct mt_batch *b, struct mt_rows q, struct mt_rows q_sink,
                        struct mt_rows k, struct mt_rows v);
    /*
     * GQA over the cache, as mt_kv_view says; scale 1/sqrt(hd); out [rows, heads * hd], not
     * q.
     */
    void (*attention)(struct mt_backend *be, const struct mt_kv *kv, int layer,
                      const struct mt_batch *b, struct mt_rows out, struct mt_rows q,
                      struct mt_rows q_sink);

    /*
     * Where attention goes, for those who ask: of what `attention` reads with these q and q_sink,
     * the share of its weights, mass [rows, heads, n_first + MT_MASS_BINS] in host memory. First
     * each of the tokens 0..n_first-1, then the others by their distance from the query: itself, 1,
     * 2 to 3, 4 to 7, … A query's shares sum to 1. Plain and slow on every tier.
     */
    void (*attention_mass)(struct mt_backend *be, const struct mt_kv *kv, int layer,
                           const struct mt_batch *b, struct mt_rows q, struct mt_rows q_sink,
                           int n_first, float *mass);

    /* Bidirectional attention inside each span, nothing across; scale 1/sqrt(width / heads). */
    void (*span_attention)(struct mt_backend *be, struct mt_rows out, struct mt_rows q,
                           struct mt_rows k, struct mt_rows v, int heads,
                           const struct mt_span *spans, int n_spans);
    /*
     * 1-D convolution over time inside each span: zero padding `pad` at both ends, stride; w is
     * [out, in * kernel] (released layout [out, in, kernel]). out's spans follow each other without
     * gaps, each of (n + 2 pad - kernel) / stride + 1 rows. scratch has in * kernel columns and as
     * many rows as out.
     */
    void (*conv1d)(struct mt_backend *be, struct mt_rows out, struct mt_rows x,
                   const struct mt_mat *w, const struct mt_mat *bias, int kernel, int stride,
                   int pad, enum mt_act act, const struct mt_span *spans, int n_spans,
                   struct mt_rows scratch);
    /*
     * 2-D convolution over time and height inside each span, of one kernel size, stride and zero
     * padding both ways. A row is one time, [channel][height]: x is in * height wide, out is out *
     * ((height + 2 pad - kernel) / stride + 1), and its spans follow each other like conv1d's. w is
     * [out, in * kernel * kernel] (released layout [out, in, height, time]). scratch: scratch_rows
     * rows, one at least, of in * kernel * kernel + out columns; the more, the larger the pieces.
     */
    void (*conv2d)(struct mt_backend *be, struct mt_rows out, struct mt_rows x,
                   const struct mt_mat *w, const struct mt_mat *bias, int height, int kernel,
                   int stride, int pad, enum mt_act act, const struct mt_span *spans, int n_spans,
                   struct mt_rows scratch, int scratch_rows);
    /*
     * Convolutions over time as a session hears it, a piece at a time (struct mt_conv). conv_new
     * makes the weight: b is [out, in * kernel] as released, [out, in, kernel]; transposed: [in,
     * out * kernel], [in, out, kernel], with a kernel that is a multiple of the stride. It may
     * copy.
     *
     * conv: x holds n sessions' pieces of `rows` rows each, one behind the other; past[i] is what
     * session i remembers, mt_conv_past() rows of x.width, zeros at its beginning, and is brought
     * up to date. out = act(conv + bias) + residual gets rows / stride rows a session; transposed:
     * row t of out is the `stride` rows of out behind each other that belong to row t of x, so
     * out.width is stride * channels, as bias's is. residual: MT_NO_ROWS or out itself; x and out
     * may not overlap. scratch: as many rows as out, of the weight's columns; not used where those
     * are x.width.
     */
    int (*conv_new)(struct mt_backend *be, struct mt_mat **out, const struct mt_bytes *b,
                    const struct mt_conv *c);
    void (*conv)(struct mt_backend *be, struct mt_rows out, struct mt_rows x,
                 const struct mt_mat *w, const struct mt_mat *bias, const struct mt_conv *c,
                 enum mt_act act, struct mt_rows residual, const struct mt_rows *past, int n,
                 int rows, struct mt_rows scratch);
    /*
     * Transposed convolution with a filter a channel and no bias: w [channels, kernel], out and
     * past as for conv.
     */
    void (*conv_each)(struct mt_backend *be, struct mt_rows out, struct mt_rows x,
                      const struct mt_mat *w, const struct mt_conv *c, const struct mt_rows *past,
                      int n, int rows);
    /* out = act(x). out may be x. */
    void (*activate)(struct mt_backend *be, struct mt_rows out, struct mt_rows x, enum mt_act act,
                     int n);
    /* out += x * w, w a vector. */
    void (*scaled_add)(struct mt_backend *be, struct mt_rows out, struct mt_rows x,
                       const struct mt_mat *w, int n);
    /*
     * A level of a residual quantiser: ids[i], in host memory, is the row of table that is nearest
     * to x row i by Euclid, the lowest among equals and 0 for what is no number; x row i -= that
     * row.
     */
    void (*quantize)(struct mt_backend *be, int32_t *ids, struct mt_rows x,
                     const struct mt_mat *table, int n);
    /* Row r of each span += table row r. */
    void (*add_positions)(struct mt_backend *be, struct mt_rows x, const struct mt_mat *table,
                          const struct mt_span *spans, int n_spans);
    /*
     * Log-mel: raw log10 of the bands' power, at least 1e-10, of frames under a Hann window; the
     * first sample of a frame, where that is 0, does not count. out is `bands` wide. The definition
     * is that of HF's WhisperFeatureExtractor; the CPU's transform is in f32 and all behind it in
     * f64, on a card all is f32: a bin's amplitude is off by some 2^-24 of the frame's, on both.
     * mel_new: -EINVAL for bands outside 1..MT_MEL_BANDS_MAX, -ENOMEM. One call at a time.
     */
    int (*mel_new)(struct mt_backend *be, struct mt_mels **out, int bands);
    void (*mel_free)(struct mt_backend *be, struct mt_mels *m);
    void (*log_mel)(struct mt_backend *be, struct mt_rows out, struct mt_mels *m,
                    const struct mt_mel_span *spans, int n_spans);
    /* Items in their order; those of one session (of the same cells) stand behind each other. */
    void (*mel_clamp)(struct mt_backend *be, struct mt_rows x, const struct mt_mel_clamp *items,
                      int n);
    /*
     * Mean of each `size` rows of a span, the odd rest dropped; output spans follow each other. out
     * is not x.
     */
    void (*mean_rows)(struct mt_backend *be, struct mt_rows out, struct mt_rows x, int size,
                      const struct mt_span *spans, int n_spans);

    /*
     * ids[i] from logits row i under params[i]; both in host memory. logits may be destroyed.
     * Order: rules, temperature, top_k, top_p. NaN is no candidate; -1 when a row has nothing but
     * NaN.
     */
    void (*sample)(struct mt_backend *be, struct mt_rows logits, const struct mt_sample *params,
                   int32_t *ids, int n);
};

/* Every backend's object begins with this. */
struct mt_backend {
    const struct mt_ops *ops;
    int64_t rows_held; /* bytes of all rows that were made and not freed */
    int64_t mats_held; /* bytes of weights in forms of its own: what they were made from is apart */
    bool plan; /* only sizes are wanted: weights may stay empty, and no operation runs on them */
};

/*
 * By the name that --backend takes: "cpu"; "cpu:exact", where weights in blocks meet activations as
 * they are (else the tiers from AVX2 on round these to 8 bits); or "cuda", "cuda:exact,device=N":
 * the plugin
 * libmetronome-cuda.so beside the program or in ../lib/metronome, or the file that MT_CUDA_PLUGIN
 * names. threads as in mt_backend_cpu. -ENOTSUP for another word and without the plugin, -ENODEV
 * when it can't be used here.
 */
int mt_backend_open(struct mt_backend **out, const char *name, int threads, struct mt_err *e);
/*
 * As mt_backend_open, and what is computed for a session does not depend on which others there are:
 * "cuda" becomes "cuda:deterministic" (kernels/cuda/README.md says what that costs); the CPU never
 * does otherwise.
 */
int mt_backend_open_deterministic(struct mt_backend **out, const char *name, int threads,
                                  struct mt_err *e);
void mt_backend_close(struct mt_backend **be);

/* ---- the CPU backend ---- */

/*
 * Tiers, each includes the ones before. A tier counts only if CPU and system (XCR0) both have it.
 */
enum mt_cpu_tier {
    MT_CPU_SCALAR,
    MT_CPU_BASE /* vectorised C, any x86-64 or other machine */,
    MT_CPU_AVX2,
    MT_CPU_AVX2VNNI, /* where a CPU has no AVX-VNNI (but AVX-512), the code of AVX2 */
    MT_CPU_AVX512,
    MT_CPU_AVX512VNNI
};
const char *mt_cpu_tier_name(enum mt_cpu_tier t);
/*
 * The best tier of this machine, capped by MT_CPU=scalar|base|avx2|avx2vnni|avx512|avx512vnni in
 * the environment (-EINVAL: another word).
 */
int mt_cpu_tier(enum mt_cpu_tier *out, struct mt_err *e);

/*
 * threads: 1..256, 0 for as many as the process may run on. Rows of the output are split, never a
 * sum. Free with ops->free.
 */
int mt_backend_cpu(struct mt_backend **out, enum mt_cpu_tier tier, int threads, struct mt_err *e);

#endif
