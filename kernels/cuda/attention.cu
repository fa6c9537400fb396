/*
 * attention.cu: GQA over the paged cache. A tile is up to 16 queries of a run: rows times the heads
 * that share a KV head, so that each K and V is read once for them. A block takes a tile and all of
 * its pieces; where that leaves the device idle (decoding), a block takes a piece, and a second
 * launch puts a query's pieces together: flash decoding. Which of the two changes no bit. What
 * tensor cores can take, attend_mma.cu has; the kernel here has f32 and odd heads.
 */
#include "kernels/cuda/paged.h"

/* Grid: tiles, KV heads, pieces (1: all of them). Shared: attend_shared(). */
template <int E>
static __global__ void __launch_bounds__(ATTEND_THREADS) attend_cache(struct call c)
{
    const struct paged s = paged_of(c, c.tile[blockIdx.x], TILE);
    int z = (int)blockIdx.z;

    if (!c.pieces)
        attend<E>(s, 0, s.reach.pieces, false);
    else if (z < s.reach.pieces)
        attend<E>(s, z, z + 1, true);
}

enum { MERGE_WARPS = 4 };

/*
 * Grid: tiles, KV heads, queries of a tile / 4; a warp a query. Four pieces are on their way
 * together; the first loads of all would be one latency after the other otherwise.
 */
template <int E>
static __global__ void __launch_bounds__(32 * MERGE_WARPS) merge_pieces(struct call c)
{
    const struct paged s = paged_of(c, c.tile[blockIdx.x], TILE);
    int lane = (int)dev_lane(), i = (int)(blockIdx.z * MERGE_WARPS + threadIdx.x / 32);
    const int ahead = E > 8 ? 1 : 4;
    struct attend_sum<E> all, part[ahead];

    if (i >= s.nq)
        return;
    const struct attend_part from = s.part(i, 0);
    attend_clear(&all);
    for (int z0 = 0; z0 < s.reach.pieces; z0 += ahead) {
#pragma unroll
        for (int j = 0; j < ahead; j++) {
            int z = z0 + j;
            bool have = z < s.reach.pieces;

            part[j].max = have ? from.stat[2 * z] : 0;
            part[j].sum = have ? from.stat[2 * z + 1] : 0; /* 0: left out */
#pragma unroll
            for (int e = 0; e < E; e++)
                part[j].out[e] =
                    have && lane + 32 * e < s.hd ? from.out[(int64_t)z * s.hd + lane + 32 * e] : 0;
        }
#pragma unroll
        for (int j = 0; j < ahead; j++)
            attend_merge(&all, part[j]);
    }
#pragma unroll
    for (int e = 0; e < E; e++)
        if (lane + 32 * e < s.hd)
            s.out(i)[lane + 32 * e] = all.out[e] / all.sum;
}

/* ---- the operation ---- */

/*
 * What takes a run's tiles: the kernel here; on tensor cores, by the cache's type, a warp a piece,
 * or 4 warps a tile.
 */
enum kind { PLAIN, NARROW, WIDE_KIND = NARROW + 4, KINDS = WIDE_KIND + 4 };

static const enum mt_dtype type_of[] = {MT_BF16, MT_F16, MT_INT8, MT_FP8};

static bool is_wide(int kind)
{
    return kind >= WIDE_KIND;
}

/* Tensor cores take heads of whole 16 byte words, of all types but f32. */
static int kind_of(const struct mt_kv *kv, bool wide)
{
    int64_t bytes = kv->s.head_dim * (int64_t)mt_dtype_size(kv->s.type);

    if (kv->s.head_dim > MMA_HEAD || bytes % 16 || kv->layer_bytes % 16)
        return PLAIN;
    for (int i = 0; i < WIDE_KIND - NARROW; i++)
        if (kv->s.type == type_of[i])
            return (wide ? WIDE_KIND : NARROW) + i;
    return PLAIN;
}

/* A call's tiles of one kind: how many, their queries, the most pieces of one. */
struct share {
    int tiles;
    int64_t queries, pieces;
};

/*
 * tile: where those of each kind go, or NULL. Runs of `least` queries a KV head and more are wide.
 * `at` begins anew where a kind's unmerged pieces have no more room.
 */
static void share_out(struct share *share, struct tile *const *tile, const struct mt_kv *kv,
                      const struct mt_batch *b, int group, int64_t least, const int64_t *room)
{
    int64_t at[KINDS] = {0};

    for (int kind = 0; kind < KINDS; kind++)
        share[kind] = {0, 0, 1};
    for (int i = 0; i < b->n_runs; i++) {
        const struct mt_run *r = &b->runs[i];
        int queries = r->n * group;
        int kind = kind_of(r->view.kv ? r->view.kv : kv, queries >= least);
        int most = is_wide(kind) ? WIDE : TILE;
        struct share *s = &share[kind];
        struct mt_drun run = {};

        run.n = r->n;
        run.index = r->index;
        run.window = r->view.window;
        run.sinks = r->view.sinks;
        run.see = r->view.see;
        for (int q0 = 0; q0 < queries; q0 += most) {
            int q1 = q0 + most < queries ? q0 + most : queries;
            int pieces = reach_of(run, q0 / group, (q1 - 1) / group).pieces;

            if (tile) {
                at[kind] = at[kind] + q1 - q0 > room[kind] ? 0 : at[kind];
                tile[kind][s->tiles] = {i, q0, at[kind]};
                at[kind] += q1 - q0;
            }
            s->tiles++;
            s->pieces = pieces > s->pieces ? pieces : s->pieces;
        }
        s->queries += queries;
    }
    for (int kind = 0; kind < KINDS; kind++) /* so that a launch lasts for more than 256 tokens */
        share[kind].pieces = mt_bucket(share[kind].pieces);
}

template <int E> static void launch(struct mt_cuda *c, const struct call &k, int tiles, int kind)
{
    dim3 grid((unsigned)tiles, (unsigned)k.kv.heads, k.pieces ? (unsigned)k.pieces : 1);

    if (kind == PLAIN) {
        size_t shared = attend_shared(k.kv.hd);

        MT_SHARED_ROOM(c, attend_cache<E>, shared);
        MT_LAUNCH(c, attend_cache<E>, grid, ATTEND_THREADS, shared, k);
    } else {
        mt_cuda_attend_mma(c, k, tiles, type_of[(kind - NARROW) % (WIDE_KIND - NARROW)],
                           is_wide(kind));
    }
    grid.z = TILE / MERGE_WARPS;
    if (k.pieces)
        MT_LAUNCH(c, merge_pieces<E>, grid, 32 * MERGE_WARPS, 0, k);
}

/* Tiles whose pieces have room together. */
static void launch_part(struct mt_cuda *c, const struct call &k, int tiles, int kind)
{
    if (k.kv.hd <= 64)
        launch<2>(c, k, tiles, kind);
    else if (k.kv.hd <= 128)
        launch<4>(c, k, tiles, kind);
    else if (k.kv.hd <= 256)
        launch<8>(c, k, tiles, kind);
    else
        launch<16>(c, k, tiles, kind);
}

/* Floats of a query's unmerged pieces, all KV heads. */
static int64_t parts_of(const struct call &k, const struct share &s)
{
    return s.pieces * k.kv.heads * (k.kv.hd + 2);
}

/* tile: on the host. */
static void launch_kind(struct mt_cuda *c, struct call k, const struct tile *tile,
                        const struct share &s, int kind)
{
    int64_t room = (int64_t)MT_CUDA_PARTS / parts_of(k, s);
    bool apart = !is_wide(kind);

    if (kind ==
        PLAIN) /* whole tiles alone leave processors idle, and there is something to share */
        apart = s.pieces > 1 && s.pieces <= 65535 && s.queries <= room &&
                (int64_t)s.tiles * k.kv.heads < 4 * (int64_t)c->processors;
    if (apart) {
        k.pieces = (int)s.pieces;
        k.stat = c->lane->parts;
        k.part = c->lane->parts + 2 * s.pieces * k.kv.heads * (s.queries < room ? s.queries : room);
    }
    for (int t0 = 0, t1; t0 < s.tiles; k.tile += t1 - t0, t0 = t1) {
        for (t1 = t0 + 1; t1 < s.tiles && (tile[t1].at || !apart); t1++)
            ;
        launch_part(c, k, t1 - t0, kind);
    }
}

static void attention(struct mt_backend *be, const struct mt_kv *kv, int layer,
                      const struct mt_batch *b, struct mt_rows out, struct mt_rows q,
                      struct mt_rows q_sink)
{
    struct mt_cuda *c = cuda_of(be);
    struct call k = {mt_dkv_of(kv, layer), {}, NULL, out, q, q_sink, 0, 0, NULL, NULL};
    int64_t least = WIDE / 2, wide = 0, n = 0, room[KINDS];
    struct tile *tile[KINDS];
    struct share share[KINDS];
    struct mt_stage s;

    k.group = q.width / k.kv.hd / k.kv.heads;
    for (int i = 0; i < b->n_runs; i++)
        if (b->runs[i].n * (int64_t)k.group >= least)
            wide += (b->runs[i].n * (int64_t)k.group + WIDE - 1) / WIDE;
    if (wide * k.kv.heads < 2 * (int64_t)c->processors)
        least = INT64_MAX; /* a piece a warp has more to do at once */
    share_out(share, NULL, kv, b, k.group, least, NULL);
    for (int kind = NARROW; kind < WIDE_KIND; kind++)
        if (share[kind].tiles && ((int64_t)MT_CUDA_PARTS / parts_of(k, share[kind]) < TILE ||
                                  share[kind].pieces > 65535))
            least = 0; /* no room for pieces */
    if (least == 0)
        share_out(share, NULL, kv, b, k.group, least, NULL);
    for (int kind = 0; kind < KINDS; kind++)
        n += share[kind].tiles;
    if (!n || !mt_cuda_batch(c, kv, b, (size_t)n * sizeof(struct tile), &k.b) ||
        !mt_stage_new(c, &s, (size_t)n * sizeof(struct tile)))
        return;
    tile[0] = (struct tile *)s.host;
    for (int kind = 0; kind < KINDS; kind++) {
        room[kind] = (int64_t)MT_CUDA_PARTS / parts_of(k, share[kind]);
        if (kind > 0)
            tile[kind] = tile[kind - 1] + share[kind - 1].tiles;
    }
    share_out(share, tile, kv, b, k.group, least, room);
    mt_stage_share(c, &s);
    n = 0;
    for (int kind = 0; kind < KINDS; n += share[kind++].tiles) {
        k.tile = (const struct tile *)s.dev + n;
        if (share[kind].tiles)
            launch_kind(c, k, (const struct tile *)s.host + n, share[kind], kind);
    }
}

void mt_cuda_attentions(struct mt_ops *o)
{
    o->attention = attention;
}
