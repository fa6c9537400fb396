/*
 * paged.h: a call of attention over the paged cache, as its kernels see it: tiles of queries, what
 * they see, and where unmerged pieces lie.
 */
#ifndef MT_CUDA_PAGED_H
#define MT_CUDA_PAGED_H

#include "kernels/cuda/attend.h"

struct tile {
    int run, q0; /* its first query: row in the run * group + head in the group */
    int64_t at;  /* queries of tiles before it, for its place among the unmerged pieces */
};

struct call {
    struct mt_dkv kv;
    struct mt_dbatch b;
    const struct tile *tile;
    struct mt_rows out, q, q_sink;
    int group;
    int pieces; /* room for so many a query among the unmerged; 0: a block has all of a tile */
    /* [query][KV head][piece]: maximum and sum; outputs */
    float *stat, *part;
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

/* The queries of a tile and the source of their keys. */
struct paged {
    struct call c;
    struct mt_drun run;
    struct reach reach;
    int head, q0, nq, hd, type, size;
    int64_t at;
    bool aligned;

    /*
     * Ascending in the session; only the first and the last of the sinks and of the rest are cut.
     */
    __device__ struct attend_piece piece(int z) const
    {
        int64_t lo, end;

        if (z < reach.sink_pieces) {
            end = (int64_t)(z + 1) * MT_PIECE;
            return {(int64_t)z * MT_PIECE, end < reach.sinks ? end : reach.sinks, true};
        }
        lo = (reach.first / MT_PIECE + z - reach.sink_pieces) * MT_PIECE;
        end = lo + MT_PIECE;
        return {lo > reach.first ? lo : reach.first, end < reach.end ? end : reach.end, false};
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

    __device__ struct attend_part part(int i, int z) const
    {
        int64_t u = ((at + i) * c.kv.heads + head) * c.pieces + z;

        return {c.stat + 2 * u, c.part + u * hd};
    }

    /* Query i sees keys first..end - 1 of a piece. */
    __device__ void seen(int i, const struct attend_piece &p, int64_t *first, int64_t *end) const
    {
        const struct reach r = reach_of(run, (q0 + i) / c.group, (q0 + i) / c.group);
        int64_t lo = p.sink ? 0 : r.first, hi = p.sink ? r.sinks : r.end;

        *first = lo > p.lo ? lo : p.lo;
        *end = hi < p.hi ? hi : p.hi;
    }

    __device__ bool sees(int i, const struct attend_piece &p, int64_t r) const
    {
        int64_t first, end;

        seen(i, p, &first, &end);
        return r >= first && r < end;
    }

    __device__ struct attend_key key(const struct attend_piece &p, int64_t r) const
    {
        int slot;
        const char *block = kv_block(c.kv, run, p.sink ? r : run.sinks + r, &slot);
        struct attend_key k = {block + kv_at(c.kv, run, 0, head, slot),
                               block + kv_at(c.kv, run, 1, head, slot), 0, 0};

        if (dev_scaled(run.type)) {
            k.k_scale = kv_scale(block + kv_scale_at(c.kv, run, 0, head, slot));
            k.v_scale = kv_scale(block + kv_scale_at(c.kv, run, 1, head, slot));
        }
        return k;
    }
};

/* The tile of this block, or of a warp of it, that has up to `queries`. */
MT_DEV struct paged paged_of(const struct call &c, const struct tile &t, int queries)
{
    struct paged s;
    int left;

    s.c = c;
    s.run = c.b.run[t.run];
    left = s.run.n * c.group - t.q0;
    s.head = (int)blockIdx.y;
    s.q0 = t.q0;
    s.at = t.at;
    s.nq = left < queries ? left : queries;
    s.hd = c.kv.hd;
    s.type = s.run.type;
    s.size = s.run.size;
    s.aligned =
        s.hd * s.size % 16 == 0 && s.run.block_bytes % 16 == 0 && s.run.layer_bytes % 16 == 0;
    s.reach = reach_of(s.run, t.q0 / c.group, (t.q0 + s.nq - 1) / c.group);
    return s;
}

/* ---- tensor cores: attend_mma.cu ---- */

enum {
    TILE = 16,      /* queries of a warp */
    WIDE_WARPS = 4, /* warps of a block that share their keys */
    WIDE = WIDE_WARPS * TILE,
    MMA_HEAD = 128, /* the widest head that its registers hold */
};

/* The launches of a part of a call's tiles, all of runs of one type. wide: WIDE queries a tile. */
void mt_cuda_attend_mma(struct mt_cuda *c, const struct call &k, int tiles, int type, bool wide);

#endif
