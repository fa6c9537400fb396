/*
 * cuda.h: inside of the CUDA backend: its objects, launching, and how small things of the host
 * (ids, runs, block tables) get to the device. Every operation only queues work, on the stream of
 * the lane that operations go to; those that give something back to the host wait for it.
 *
 * Operations return nothing, so the first failure stays: it is told once on stderr, later launches
 * are left out, ids are -1 and rows read NaN.
 */
#ifndef MT_CUDA_CUDA_H
#define MT_CUDA_CUDA_H

#ifdef MT_CUDA_EMU
#include "cuda_emu.h"
#else
#include <cublasLt.h>
#include <cuda_runtime.h>
#endif

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

extern "C" {
#include "kernels/cuda/plugin.h"
#include "kernels/conv_pack.h"
}

/*
 * Q8_0 as the device keeps it where a row is whole 256: of each 256 the numbers, then the 8 scales,
 * so that what a warp reads lies on 16 bytes and in one piece. As many bytes as before.
 */
enum { MT_Q8_APART = MT_DTYPES };

/* A matrix as kernels see it: rows of row_bytes, from a 256 byte boundary on. */
struct mt_dmat {
    const unsigned char *data;
    int type; /* enum mt_dtype, or MT_Q8_APART */
    int rows, cols;
    int64_t row_bytes;
};

struct mt_mat {
    struct mt_dmat d;
    float *vec;   /* rows == 1: the row as f32, else NULL */
    int64_t held; /* counted in mats_held */
    struct mt_chunk *in;
};

/* The CPU's struct mt_kv begins alike and a block lies alike, so that one test reads both. */
struct mt_kv {
    struct mt_kv_shape s;
    char *data;
    size_t bytes;
    int64_t block_bytes, layer_bytes;
    int64_t half_bytes; /* K alone, without scales */
};

/* A run as kernels see it, and its pool. */
struct mt_drun {
    int row, n;
    int64_t index, window, reach, moved;
    int sinks, ring_blocks, held, see;
    const int32_t *blocks;
    char *data;
    int type, size;
    int64_t block_bytes, layer_bytes, half_bytes;
};

/* A batch on the device: its runs, and the run of each row. */
struct mt_dbatch {
    const struct mt_drun *run;
    const int32_t *run_of;
};

/* Rows that were made, for their sizes. */
struct mt_held {
    struct mt_held *next;
    float *data;
    int64_t bytes;
};

/* A piece of the ring that is filled on the host and sent to the device. */
struct mt_stage {
    char *host, *dev;
    size_t bytes;
};

#include "kernels/cuda/tape.h"

/* A kernel, and how much shared memory it was granted on this device. */
struct mt_room {
    const void *kernel;
    size_t bytes;
};

enum {
    MT_CUDA_SHARED = 4,
    MT_CUDA_ROOMS = 64,
    MT_CUDA_HEAD = 512 /* the widest that attention holds */
};

/*
 * A queue of work, and all that its operations keep for themselves: two lanes run side by side, so
 * that they share none of it.
 */
struct mt_lane {
    cudaStream_t stream; /* for what is not noted: mt_cuda_stream() */
    cudaEvent_t mark;    /* the main lane's: where the side begins; the side's: where it ended */
    struct mt_tape tape;
    /* the ring of small things: pinned, and its mirror on the device */
    char *ring, *ring_dev;
    size_t ring_bytes, ring_at;
    /* the last batch that went up since the ring was empty */
    struct mt_stage batch;
    /* what else went up and will be asked for again, layer by layer; the oldest goes */
    struct mt_stage shared[MT_CUDA_SHARED];
    unsigned n_shared;
    void *workspace; /* cuBLASLt's */
    /* rows in a weight's type for cuBLAS, as large as the largest rows */
    void *cast;
    size_t cast_bytes;
    /*
     * The rows that cast has, and in which type: until the next launch, which may change them, so
     * that only who has just written rows, or rounded them, says so. data NULL: it has none.
     */
    struct mt_rows cast_of;
    int cast_n, cast_type;
    int casts_to; /* the type that was asked for last, MT_F32 before */
    /* weights in blocks as bf16, a piece at a time; NULL: there is no such weight, or no room */
    void *decoded;
    size_t decoded_bytes;
    /* an encoder's keys and values as a cache, for a call; its spans as runs, on the host */
    void *laid, *spans;
    size_t laid_bytes, spans_bytes;
    /* unmerged pieces of attention, MT_CUDA_PARTS floats */
    float *parts;
};

enum { MT_LANE_MAIN, MT_LANE_SIDE, MT_LANES };

struct mt_cuda {
    struct mt_backend be; /* first */
    struct mt_ops ops;
    struct mt_lane lanes[MT_LANES];
    /* Where operations go now; nothing but this lane has notes that are not queued. */
    struct mt_lane *lane;
    bool exact; /* own kernels for every sum: bits that no company changes */
    /* Nothing that changes a row's bits is chosen by how many rows there are; exact is that too. */
    bool deterministic;
    /*
     * For tests on a card: rows and pools lie where the host may touch them, launches are waited
     * for.
     */
    bool visible;
    int device, processors;
    bool failed;
    struct mt_held *held;
    struct mt_room room[MT_CUDA_ROOMS];
    int n_rooms;
    /* weights: memory.cu */
    struct mt_chunk *chunk;
    char *pinned;
    cudaEvent_t sent[2]; /* a half of pinned is free again */
    int half;
    /* cuBLASLt: blas.cu */
    cublasLtHandle_t blas;
    struct mt_plan *plans;
    /* experts' gated rows: of one call at a time, as large as the largest */
    void *between;
    size_t between_bytes;
    /* how fast pairs of a head of turn_hd elements turn, by a base: the last that was asked for */
    double turn[MT_CUDA_HEAD / 2 + 1], turn_base;
    int turn_hd;
};

#define MT_CUDA_PARTS     ((size_t)16 << 20) /* floats */
#define MT_CUDA_WORKSPACE ((size_t)32 << 20)

/* The calling thread's device is c's from now on; it began with device 0, whoever opened c. */
cudaError_t mt_cuda_here(const struct mt_cuda *c);

/* For who is about to use it. */
static inline struct mt_cuda *cuda_of(struct mt_backend *be)
{
    if (be)
        mt_cuda_here((struct mt_cuda *)be);
    return (struct mt_cuda *)be;
}

/* Notes the first failure. Returns whether all is well. */
bool mt_cuda_check(struct mt_cuda *c, cudaError_t rc, const char *what);

/* ---- launching ---- */

template <class... P, class... V>
static void mt_launch_call(struct mt_cuda *c, const struct mt_launch<P...> *l,
                           const struct mt_args<> &, const V &...v)
{
#ifdef MT_CUDA_EMU
    auto kernel = l->kernel;

    mt_cuda_check(c,
                  emu_launch(c->lane->stream, (const void *)kernel, l->grid, l->block, l->shared,
                             [=] { kernel(v...); }),
                  l->name);
#else
    l->kernel<<<l->grid, l->block, l->shared, c->lane->stream>>>(v...);
    mt_cuda_check(c, c->visible ? cudaStreamSynchronize(c->lane->stream) : cudaGetLastError(),
                  l->name);
#endif
}

template <class... P, class A, class... Q, class... V>
static void mt_launch_call(struct mt_cuda *c, const struct mt_launch<P...> *l,
                           const struct mt_args<A, Q...> &left, const V &...v)
{
    mt_launch_call(c, l, left.rest, v..., left.first);
}

template <class... P> static void mt_launch_queue(struct mt_cuda *c, const struct mt_note *n)
{
    const struct mt_launch<P...> *l = (const struct mt_launch<P...> *)n;

    mt_launch_call(c, l, l->args);
}

template <class... P, class... V>
static void mt_launch_note(struct mt_cuda *c, const char *name, void (*kernel)(P...), dim3 grid,
                           dim3 block, size_t shared, V... v)
{
    struct mt_launch<P...> l;

    c->lane->cast_of.data = NULL;
    l.kernel = kernel;
    l.name = name;
    l.grid = grid;
    l.block = block;
    l.shared = shared;
    mt_args_set(&l.args, v...);
    mt_note_end(&l, mt_launch_queue<P...>);
    mt_tape_note(c, &l.note);
}

#define MT_LAUNCH(c, kernel, grid, block, shared, ...)                                             \
    mt_launch_note(c, #kernel, kernel, grid, block, shared, __VA_ARGS__)

/*
 * Shared memory above 48 KiB has to be asked for: once a kernel, by the first launch that takes so
 * much. It is no part of a step: no note, and nothing that a graph would hold.
 */
bool mt_cuda_room_new(struct mt_cuda *c, const void *kernel, size_t bytes);

template <class K>
static inline void mt_cuda_room(struct mt_cuda *c, K *kernel, const char *name, size_t bytes)
{
    if (bytes > 48 << 10 && mt_cuda_room_new(c, (const void *)kernel, bytes))
        mt_cuda_check(
            c,
            cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes),
            name);
}

#define MT_SHARED_ROOM(c, kernel, bytes) mt_cuda_room(c, kernel, #kernel, bytes)

/* Has the lane's cast n rows of x as numbers of this type? */
static inline bool mt_cuda_cast_has(const struct mt_cuda *c, struct mt_rows x, int n, int type)
{
    return x.data && c->lane->cast_of.data == x.data && c->lane->cast_of.stride == x.stride &&
           c->lane->cast_of.width == x.width && c->lane->cast_n >= n && c->lane->cast_type == type;
}

/* It has them, after the launch that was last. */
static inline void mt_cuda_cast_note(struct mt_cuda *c, struct mt_rows x, int n, int type)
{
    c->lane->cast_of = x;
    c->lane->cast_n = n;
    c->lane->cast_type = type;
}

/* Where who writes n rows of x puts them rounded too, for the product that follows; or NULL. */
static inline uint16_t *mt_cuda_cast_room(const struct mt_cuda *c, struct mt_rows x, int n)
{
    bool room = (size_t)n * (size_t)x.width * 2 <= c->lane->cast_bytes;

    return !c->exact && c->lane->casts_to != MT_F32 && room ? (uint16_t *)c->lane->cast : NULL;
}

/* Blocks of `each` items. */
static inline unsigned mt_blocks(int64_t items, int each)
{
    return (unsigned)((items + each - 1) / each);
}

/*
 * The least of 1, 2, 3, 4, 6, 8, 12, 16, 24, … that is not below n: what is chosen by a number of
 * rows is chosen by its bucket, so that few are ever seen.
 */
static inline int64_t mt_bucket(int64_t n)
{
    int64_t p = 1;

    while (p < n)
        p *= 2;
    return p >= 4 && p / 4 * 3 >= n ? p / 4 * 3 : p;
}

/*
 * Room in the ring, on a 256 byte boundary; fill host, then send. false after a failure. May wait
 * for the stream, when the ring is full.
 */
bool mt_stage_new(struct mt_cuda *c, struct mt_stage *s, size_t bytes);
void mt_stage_send(struct mt_cuda *c, const struct mt_stage *s);
/*
 * Sends the piece that was made last, unless the same bytes went up since the ring was empty: then
 * s becomes those. For what every layer of a step says again.
 */
void mt_stage_share(struct mt_cuda *c, struct mt_stage *s);
/* Both for bytes that lie somewhere: their address on the device, NULL after a failure. */
void *mt_stage_copy(struct mt_cuda *c, const void *src, size_t bytes);
/* The device's part to the host's, and wait. false after a failure. */
bool mt_stage_fetch(struct mt_cuda *c, const struct mt_stage *s);
/*
 * A copy as a note: rows pieces of bytes, their pitches from one to the next. What it reads on the
 * host lies in the ring, and stays there.
 */
void mt_cuda_copy(struct mt_cuda *c, void *dst, size_t to, const void *src, size_t from,
                  size_t bytes, size_t rows, cudaMemcpyKind kind, const char *what);
/* The lane's stream, behind all that was noted. */
cudaStream_t mt_cuda_stream(struct mt_cuda *c);
/* Wait for all that was queued on the lane; its ring is empty then. */
bool mt_cuda_wait(struct mt_cuda *c);
/* On all lanes: before memory that any of it may use goes. */
bool mt_cuda_idle(struct mt_cuda *c);

/*
 * The batch on the device: sent once while it stays the same from call to call. `more` bytes asked
 * for next lie behind it: an operation's pieces must not be separated by a wait.
 */
bool mt_cuda_batch(struct mt_cuda *c, const struct mt_kv *kv, const struct mt_batch *b, size_t more,
                   struct mt_dbatch *out);

/* A run but for its block table; entries of the table that its tokens and its past lie in. */
void mt_cuda_run(struct mt_drun *d, const struct mt_run *r, const struct mt_kv *kv);
int64_t mt_cuda_table(const struct mt_run *r, int block_tokens);

/* Room for a weight, on a 256 byte boundary, and what to free it by. NULL: there is none. */
void *mt_weight_new(struct mt_cuda *c, struct mt_chunk **in, size_t bytes);
void mt_weight_free(struct mt_cuda *c, struct mt_chunk *in); /* NULL: nothing */
/* Queues the copy; src has been read when this returns. */
bool mt_weight_put(struct mt_cuda *c, char *dst, const char *src, size_t bytes);
/* All of it goes. */
void mt_weights_done(struct mt_cuda *c);
/* Rows and pools: -ENOMEM. Releasing waits for the device. */
int mt_cuda_alloc(struct mt_cuda *c, void **p, size_t bytes);
void mt_cuda_release(struct mt_cuda *c, void *p);

/* A buffer that is at least so large; what was in it is lost, waits for all. -ENOMEM. */
int mt_cuda_grow(struct mt_cuda *c, void **p, size_t *have, size_t want);

/*
 * out = x W^T + bias + residual, in f32. W [rows, cols] is dense, x [n, cols] of its type; strides
 * in elements. Queued, or false: cuBLASLt has no such product.
 */
struct mt_dense {
    const void *w, *x;
    float *out;
    const float *bias, *residual; /* or NULL; residual may be out */
    int type, rows, cols, n;
    int ldx, ld_out, ld_residual;
};
bool mt_cuda_dense(struct mt_cuda *c, const struct mt_dense &d);
/* -ENOMEM, -ENODEV; what there is after a failure goes by close too. */
int mt_cuda_blas_open(struct mt_cuda *c);
void mt_cuda_blas_close(struct mt_cuda *c);

/* To be called for each matrix when its bytes are there: may put them in another order. */
void mt_cuda_arrange(struct mt_cuda *c, struct mt_dmat *m);
/* out = act(x W^T + bias) + residual in f32 with one order of every sum: linear.cu. */
void mt_cuda_linear(struct mt_backend *be, struct mt_rows out, struct mt_rows x,
                    const struct mt_mat *w, const struct mt_mat *bias, enum mt_act act,
                    struct mt_rows residual, int n);
/*
 * out rows first[e].. of each of n matrices = x rows first[e].. W[e]^T; first on the device, n + 1
 * of them; out and x may lie in the same rows, in other columns.
 */
void mt_cuda_grouped(struct mt_cuda *c, struct mt_rows out, struct mt_rows x,
                     const struct mt_dmat *w, const int *first, int n, int columns);
void mt_cuda_gated(struct mt_backend *be, struct mt_rows out, struct mt_rows gate,
                   struct mt_rows up, int n);

/* By subject: each fills its slots. */
void mt_cuda_memories(struct mt_ops *o);
void mt_cuda_objects(struct mt_ops *o);
void mt_cuda_norms(struct mt_ops *o);
void mt_cuda_linears(struct mt_ops *o);
void mt_cuda_ropes(struct mt_ops *o);
void mt_cuda_attentions(struct mt_ops *o);
void mt_cuda_masses(struct mt_ops *o);
void mt_cuda_encoders(struct mt_ops *o);
void mt_cuda_codecs(struct mt_ops *o);
void mt_cuda_mels(struct mt_ops *o);
void mt_cuda_mixtures(struct mt_ops *o);
void mt_cuda_samples(struct mt_ops *o);

/* how as in struct mt_cuda_plugin. */
extern "C" int mt_cuda_open(struct mt_backend **out, const char *how, struct mt_err *e);

#endif
