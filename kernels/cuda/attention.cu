/*
 * attention.cu: GQA over the paged cache. A tile is up to 16 queries of a run: rows times the heads
 * that share a KV head, so that each K and V is read once for them. A block takes a tile and all of
 * its pieces; where that leaves the device idle (decoding), a block takes a piece, and a second
 * launch puts a query's pieces together: flash decoding. Which of the two changes no bit.
 */
#include "kernels/cuda/attend.h"

struct tile {
    int run, q0; /* its first query: row in the run * group + head in the group */
};

struct call {
    struct mt_dkv kv;
    struct mt_dbatch b;
    const struct tile *tile;
    struct mt_rows out, q, q_sink;
    int group;
    float *parts;
    int pieces; /* room for so many a tile */
};

/* What the queries of a tile see: sinks up to end, and behind them tokens first..end - 1. */
struct reach {
    int64_t first, end; /* counted from behind the sinks; end may be below 0 */
    int64_t sinks;
    int sink_pieces, pieces;
};

static __host__ __device__ inline struct reach reach_of(const struct mt_drun &run, int row0,
                                                        int row1)
{
    int64_t i0 = run.index + row0, i1 = run.index + row1, last = run.index + run.n - 1;
    int64_t first = (run.see == MT_SEE_CAUSAL ? i0 : last) - run.window + 1;
    int64_t end = run.see == MT_SEE_CHUNK ? last + 1 : i1 + 1;
    struct reach r;

    r.sinks = end < run.sinks ? end : run.sinks;
    r.first = first > run.sinks ? first - run.sinks : 0;
    r.end = end - run.sinks;
    r.sink_pieces = (int)((r.sinks + MT_PIECE - 1) / MT_PIECE);
    r.pieces = r.sink_pieces;
    if (r.end > r.first)
        r.pieces += (int)((r.end - 1) / MT_PIECE - r.first / MT_PIECE) + 1;
    return r;
}

/* The source of keys that attend() walks over. */
struct paged {
    struct call c;
    struct mt_drun run;
    struct reach reach;
    int head, q0, nq, hd, type, size;
    bool aligned;

    __device__ struct attend_piece piece(int z) const
    {
        int64_t at, end;

        if (z < reach.sink_pieces) {
            end = (int64_t)(z + 1) * MT_PIECE;
            return {(int64_t)z * MT_PIECE, end < reach.sinks ? end : reach.sinks, true};
        }
        at = (reach.first / MT_PIECE + z - reach.sink_pieces) * MT_PIECE;
        end = at + MT_PIECE;
        return {at > reach.first ? at : reach.first, end < reach.end ? end : reach.end, false};
    }

    __device__ int64_t element(int i, int64_t stride) const
    {
        int q = q0 + i;

        return (run.row + q / c.group) * stride + (int64_t)(head * c.group + q % c.group) * hd;
    }

    __device__ const float *query(int i, bool sink) const
    {
        return sink ? c.q_sink.data + element(i, c.q_sink.stride)
                    : c.q.data + element(i, c.q.stride);
    }

    __device__ float *out(int i) const
    {
        return c.out.data + element(i, c.out.stride);
    }

    __device__ bool sees(int i, const struct attend_piece &p, int64_t r) const
    {
        int64_t at = run.index + (q0 + i) / c.group, last = run.index + run.n - 1;
        int64_t token = p.sink ? r : run.sinks + r;

        if (p.sink)
            return token <= at;
        return token <= (run.see == MT_SEE_CHUNK ? last : at) &&
               (run.see == MT_SEE_CAUSAL ? at : last) - token < run.window;
    }

    __device__ struct attend_key key(const struct attend_piece &p, int64_t r) const
    {
        int slot;
        const char *block = kv_block(c.kv, run, p.sink ? r : run.sinks + r, &slot);
        struct attend_key k = {block + kv_at(c.kv, run, 0, head, slot),
                               block + kv_at(c.kv, run, 1, head, slot), 0, 0};

        if (run.type == MT_INT8) {
            k.k_scale = kv_scale(block + kv_scale_at(c.kv, run, 0, head, slot));
            k.v_scale = kv_scale(block + kv_scale_at(c.kv, run, 1, head, slot));
        }
        return k;
    }
};

MT_DEV struct paged paged_of(const struct call &c)
{
    struct tile t = c.tile[blockIdx.x];
    struct paged s;
    int left;

    s.c = c;
    s.run = c.b.run[t.run];
    left = s.run.n * c.group - t.q0;
    s.head = (int)blockIdx.y;
    s.q0 = t.q0;
    s.nq = left < ATTEND_QUERIES ? left : ATTEND_QUERIES;
    s.hd = c.kv.hd;
    s.type = s.run.type;
    s.size = s.run.size;
    s.aligned =
        s.hd * s.size % 16 == 0 && s.run.block_bytes % 16 == 0 && s.run.layer_bytes % 16 == 0;
    s.reach = reach_of(s.run, t.q0 / c.group, (t.q0 + s.nq - 1) / c.group);
    return s;
}

MT_DEV int64_t parts_of(const struct call &c)
{
    return ((int64_t)blockIdx.x * c.kv.heads + blockIdx.y) * c.pieces * ATTEND_QUERIES *
           (c.kv.hd + 2);
}

/* Grid: tiles, KV heads, pieces (1: all of them). Shared: attend_shared(). */
template <int E>
static __global__ void __launch_bounds__(ATTEND_THREADS) attend_cache(struct call c)
{
    const struct paged s = paged_of(c);
    int z = (int)blockIdx.z;

    if (!c.parts)
        attend<E>(s, 0, s.reach.pieces, NULL, 0);
    else if (z < s.reach.pieces)
        attend<E>(s, z, z + 1, c.parts + parts_of(c), (int64_t)ATTEND_QUERIES * (s.hd + 2));
}

/* Grid: tiles, KV heads; a warp a query. */
template <int E>
static __global__ void __launch_bounds__(ATTEND_THREADS) merge_pieces(struct call c)
{
    const struct paged s = paged_of(c);
    int lane = (int)dev_lane();

    for (int i = (int)threadIdx.x / 32; i < s.nq; i += ATTEND_WARPS) {
        const float *from = c.parts + parts_of(c) + (int64_t)i * (s.hd + 2);
        struct attend_sum<E> all, part;

        attend_clear(&all);
        for (int z = 0; z < s.reach.pieces; z++) {
            part.max = from[0];
            part.sum = from[1];
#pragma unroll
            for (int e = 0; e < E; e++)
                part.out[e] = lane + 32 * e < s.hd ? from[2 + lane + 32 * e] : 0;
            attend_merge(&all, part);
            from += (int64_t)ATTEND_QUERIES * (s.hd + 2);
        }
#pragma unroll
        for (int e = 0; e < E; e++)
            if (lane + 32 * e < s.hd)
                s.out(i)[lane + 32 * e] = all.out[e] / all.sum;
    }
}

template <int E> static void launch(struct mt_cuda *c, const struct call &k, int tiles)
{
    size_t shared = attend_shared(k.kv.hd);
    dim3 grid((unsigned)tiles, (unsigned)k.kv.heads, (unsigned)(k.parts ? k.pieces : 1));

    MT_SHARED_ROOM(c, attend_cache<E>, shared);
    MT_LAUNCH(c, attend_cache<E>, grid, ATTEND_THREADS, shared, k);
    if (k.parts)
        MT_LAUNCH(c, merge_pieces<E>, dim3((unsigned)tiles, (unsigned)k.kv.heads), ATTEND_THREADS,
                  0, k);
}

static void attention(struct mt_backend *be, const struct mt_kv *kv, int layer,
                      const struct mt_batch *b, struct mt_rows out, struct mt_rows q,
                      struct mt_rows q_sink)
{
    struct mt_cuda *c = cuda_of(be);
    int hd = kv->s.head_dim, group = q.width / hd / kv->s.kv_heads, tiles = 0, n = 0;
    struct call k;
    struct mt_stage s;
    size_t bytes;

    for (int i = 0; i < b->n_runs; i++)
        tiles += (b->runs[i].n * group + ATTEND_QUERIES - 1) / ATTEND_QUERIES;
    bytes = (size_t)tiles * sizeof(struct tile);
    if (!tiles || !mt_cuda_batch(c, kv, b, bytes, &k.b) || !mt_stage_new(c, &s, bytes))
        return;
    k.kv = mt_dkv_of(kv, layer);
    k.out = out;
    k.q = q;
    k.q_sink = q_sink;
    k.group = group;
    k.tile = (const struct tile *)s.dev;
    k.parts = NULL;
    k.pieces = 1;
    for (int i = 0; i < b->n_runs; i++) {
        const struct mt_run *r = &b->runs[i];
        struct mt_drun run = {};

        run.n = r->n;
        run.index = r->index;
        run.window = r->view.window;
        run.sinks = r->view.sinks;
        run.see = r->view.see;
        for (int q0 = 0; q0 < r->n * group; q0 += ATTEND_QUERIES) {
            int q1 = q0 + ATTEND_QUERIES < r->n * group ? q0 + ATTEND_QUERIES : r->n * group;
            int pieces = reach_of(run, q0 / group, (q1 - 1) / group).pieces;

            ((struct tile *)s.host)[n++] = {i, q0};
            k.pieces = pieces > k.pieces ? pieces : k.pieces;
        }
    }
    mt_stage_send(c, &s);
    /* Whole tiles alone would leave processors idle, and there is something to share out. */
    if (k.pieces > 1 && k.pieces <= 65535 &&
        (int64_t)tiles * k.kv.heads < 4 * (int64_t)c->processors &&
        (size_t)tiles * (size_t)(k.kv.heads * k.pieces) <=
            c->n_parts / (size_t)(ATTEND_QUERIES * (hd + 2)))
        k.parts = c->parts;
    if (hd <= 64)
        launch<2>(c, k, tiles);
    else if (hd <= 128)
        launch<4>(c, k, tiles);
    else if (hd <= 256)
        launch<8>(c, k, tiles);
    else
        launch<16>(c, k, tiles);
}

void mt_cuda_attentions(struct mt_ops *o)
{
    o->attention = attention;
}
