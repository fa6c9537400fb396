/*
 * cpu.h: inside of the CPU backend: its objects, its threads, where a token lies in the pool, and
 * the scalar operations that the tiers start from.
 *
 * Scratch: a fixed piece per thread (`struct mt_scratch`, made with the backend) for the fast
 * tiers; what sampling and rotary tables need grows with the widths and heights that rows_new and
 * kv_new see, all of it at start.
 */
#ifndef MT_CPU_CPU_H
#define MT_CPU_CPU_H

#include "kernels/cpu/num.h"
#include "kernels/cpu/pack.h"

struct mt_mat {
    enum mt_dtype type;
    int64_t rows, cols, row_bytes;
    const void *data; /* the caller's bytes, any alignment */
    float *vec;       /* rows == 1: the row as f32, else NULL */
    void *own;        /* data, when it is not the caller's */
    struct mt_pack pack;
};

static inline const void *mat_row(const struct mt_mat *m, int64_t r)
{
    return (const char *)m->data + r * m->row_bytes;
}

/*
 * A block lies in one piece: for each layer K [kv head][token][head dim], V the same, and for INT8
 * the scales of K and of V [kv head][token]. Scales may be misaligned when head_dim is odd-sized.
 */
struct mt_kv {
    struct mt_kv_shape s;
    char *data; /* mapped, so that blocks never used cost no memory */
    size_t bytes;
    int64_t block_bytes, layer_bytes;
    int64_t half_bytes; /* K alone, without scales */
};

/* The address of (block, head, slot) for K (v = 0) or V (v = 1), and of its scale. */
static inline char *kv_at(const struct mt_kv *kv, int layer, int32_t block, int v, int head,
                          int slot)
{
    int64_t token = (int64_t)head * kv->s.block_tokens + slot;

    return kv->data + block * kv->block_bytes + layer * kv->layer_bytes + v * kv->half_bytes +
           token * kv->s.head_dim * (int64_t)mt_dtype_size(kv->s.type);
}

static inline char *kv_scale_at(const struct mt_kv *kv, int layer, int32_t block, int v, int head,
                                int slot)
{
    int64_t tokens = (int64_t)kv->s.kv_heads * kv->s.block_tokens;

    return kv->data + block * kv->block_bytes + layer * kv->layer_bytes + 2 * kv->half_bytes +
           (v * tokens + (int64_t)head * kv->s.block_tokens + slot) * (int64_t)sizeof(float);
}

/* The pool block that holds token i of a session. */
static inline int32_t view_block(const struct mt_kv_view *w, int p, int64_t i, int *slot)
{
    int64_t r = i - w->sinks;
    int sink_blocks = (w->sinks + p - 1) / p;

    if (r < 0) {
        *slot = (int)(i % p);
        return w->blocks[i / p];
    }
    *slot = (int)(r % p);
    return w->blocks[sink_blocks + r / p % w->ring_blocks];
}

/* The position from which the query at index i sees the sinks. */
static inline int64_t view_sink_pos(const struct mt_kv_view *w, int64_t i)
{
    return i < w->sink_reach ? i : w->sink_reach;
}

/* The first ring token (counted from the sinks' end) that the query at index i of a run sees. */
static inline int64_t view_first(const struct mt_run *r, int64_t i)
{
    const struct mt_kv_view *w = &r->view;
    int64_t from = w->see == MT_SEE_CAUSAL ? i : r->index + r->n - 1;
    int64_t first = from - w->window + 1; /* the window may be INT64_MAX: nothing less is formed */

    return first > w->sinks ? first - w->sinks : 0;
}

/* One past the last token that it sees. */
static inline int64_t view_end(const struct mt_run *r, int64_t i)
{
    return r->view.see == MT_SEE_CHUNK ? r->index + r->n : i + 1;
}

/* The pool that a run's tokens lie in. */
static inline const struct mt_kv *view_kv(const struct mt_run *r, const struct mt_kv *kv)
{
    return r->view.kv ? r->view.kv : kv;
}

static inline bool view_has_q_sink(const struct mt_kv_view *w)
{
    return w->sinks > 0;
}

/* A thread's piece of the fast tiers: see hot_linear.h and hot_attention.h. */
#define MT_SCRATCH_FLOATS 40960
struct mt_scratch {
    float f[MT_SCRATCH_FLOATS];
};

/* cos and sin of one row of a step, kept while a step goes through its layers. */
struct mt_rope_row {
    double base;
    int64_t pos;
    int head_dim; /* 0: nothing yet */
};

/*
 * 32 columns of a row of x, quantised: x = d * q. hot_quant.h fills and reads them. Minus the sum
 * of q times a type's zero is kept ready for each, or every tile would shift it anew.
 */
struct mt_xblock {
    _Alignas(64) signed char q[32];
    float d, ds;                           /* ds = d * sum of q */
    int32_t zero4, zero5, zero6[2], zero8; /* by bits of the weights; 6: of each 16 columns */
};
/*
 * Rows of a call that are quantised at a time, and as many more that may be read but don't count.
 */
enum { MT_X_ROWS = 256, MT_X_SPARE = 16 };

struct mt_cpu {
    struct mt_backend be; /* first */
    struct mt_ops ops;
    int threads;
    struct mt_team *team;
    struct mt_scratch *scratch; /* one a thread */
    bool packs;                 /* linear takes weights in blocks packed */
    struct mt_chunk *chunks;    /* what they lie in, the newest first */
    int64_t x_blocks;           /* in a row of x */
    struct mt_xblock *x;        /* [MT_X_ROWS + MT_X_SPARE][x_blocks] */
    /* sampling: `width` cells a thread */
    int width;
    int32_t *pick;
    double *weight;
    /* rotary tables: [rows] and [rows][head_dim / 2 cosines, then as many sines], twice: q and
     * q_sink */
    int64_t rows;
    int head_dim;
    struct mt_rope_row *rope_row[2];
    float *rope[2];
    double *freq; /* [head_dim / 2] of freq_base and freq_dim */
    double freq_base;
    int freq_dim;
};

static inline struct mt_cpu *cpu_of(struct mt_backend *be)
{
    return (struct mt_cpu *)be;
}

/*
 * fn for all of 0..items-1, in contiguous parts on as many threads as `work_each` multiply-adds an
 * item are worth; returns when all are done. fn gets the thread's number, below c->threads, for its
 * scratch.
 */
typedef void mt_par_fn(void *arg, int thread, int64_t begin, int64_t end);
void mt_par(struct mt_cpu *c, int64_t items, int64_t work_each, mt_par_fn *fn, void *arg);

/* bytes of zeros at the start of a cache line, of chunk *from, or NULL; and back. */
void *mt_arena_get(struct mt_cpu *c, size_t bytes, struct mt_chunk **from);
void mt_arena_put(struct mt_cpu *cpu, struct mt_chunk *c);

struct mt_team;
int mt_team_new(struct mt_team **out, int threads);
void mt_team_free(struct mt_team *p);

/*
 * Before its first weight: weights in blocks are decoded and meet x as it is, where else the tiers
 * from AVX2 on round x to 8 bits. cpu.c.
 */
void mt_cpu_exact(struct mt_backend *be, enum mt_cpu_tier tier);

/* Objects and moves, objects.c. */
void mt_cpu_objects(struct mt_ops *o);
void mt_cpu_objects_free(struct mt_cpu *c);

/*
 * Rotary angles, f64 as the interface asks: scalar_rope.c. Frequencies are kept for one (base,
 * head_dim).
 */
double mt_rope_frequency(double base, int i, int head_dim);
void mt_rope_frequencies(struct mt_cpu *c, double base, int head_dim);
/*
 * After mt_rope_frequencies: row's tables for pos: head_dim / 2 cosines, then sines; computed
 * unless they are there already. which: 0 for q and k, 1 for q_sink. Rows may be filled by several
 * threads at once.
 */
/* The norms that come before. */
void mt_rope_norms(struct mt_backend *be, const struct mt_rope *rope, struct mt_rows q,
                   struct mt_rows k, int n);
const float *mt_rope_table(struct mt_cpu *c, int which, int64_t row, double base, int64_t pos,
                           int head_dim);

/* The reference, by subject: each fills its slots. */
void mt_scalar_norm(struct mt_ops *o);
void mt_scalar_linear(struct mt_ops *o);
void mt_scalar_rope(struct mt_ops *o);
void mt_scalar_attention(struct mt_ops *o);
void mt_scalar_mass(struct mt_ops *o);
void mt_scalar_encoder(struct mt_ops *o);
void mt_scalar_codec(struct mt_ops *o);
void mt_scalar_mel(struct mt_ops *o);
void mt_scalar_conv2d(struct mt_ops *o);
void mt_scalar_experts(struct mt_ops *o);
void mt_cpu_sample(struct mt_ops *o);

/* Outputs of a convolution over n inputs. */
static inline int64_t conv_length(int64_t n, int kernel, int stride, int pad)
{
    int64_t room = n + 2 * (int64_t)pad - kernel;

    return room < 0 ? 0 : room / stride + 1;
}

/* A query's score with one cached key. */
double mt_kv_score(const struct mt_kv *kv, int layer, int32_t block, int head, int slot,
                   const float *q);
/* What the fast tiers fall back to for heads wider than they hold. */
void mt_scalar_attention_kv(struct mt_backend *be, const struct mt_kv *kv, int layer,
                            const struct mt_batch *b, struct mt_rows out, struct mt_rows q,
                            struct mt_rows q_sink);
void mt_scalar_span_attention(struct mt_backend *be, struct mt_rows out, struct mt_rows q,
                              struct mt_rows k, struct mt_rows v, int heads,
                              const struct mt_span *spans, int n_spans);
/*
 * A convolution whose sums, act(x W^T + bias) + residual as linear's, are the tier's; and the
 * matrix [out, taps * in] that they are of.
 */
typedef void mt_sums_fn(struct mt_backend *be, struct mt_rows out, struct mt_rows x,
                        const struct mt_mat *w, const struct mt_mat *bias, enum mt_act act,
                        struct mt_rows residual, int n);
void mt_conv_by(struct mt_backend *be, mt_sums_fn *sums, struct mt_rows out, struct mt_rows x,
                const struct mt_mat *m, const struct mt_mat *bias, const struct mt_conv *c,
                enum mt_act act, struct mt_rows residual, const struct mt_rows *past, int n,
                int rows, struct mt_rows scratch);
int mt_scalar_conv_new(struct mt_backend *be, struct mt_mat **out, const struct mt_bytes *b,
                       const struct mt_conv *c);
/* Also for tables that are not f32. */
void mt_scalar_quantize(struct mt_backend *be, int32_t *ids, struct mt_rows x,
                        const struct mt_mat *table, int n);
/* v -= row id of table. */
void mt_quantize_take(float *v, const struct mt_mat *table, int32_t id);

/*
 * The fast tiers, each a whole set. A build for a machine without a tier's instructions has the
 * next lower one.
 */
void mt_hot_base(struct mt_ops *o);
void mt_hot_avx2(struct mt_ops *o);
void mt_hot_avx2vnni(struct mt_ops *o);
void mt_hot_avx512(struct mt_ops *o);
void mt_hot_avx512vnni(struct mt_ops *o);

#endif
