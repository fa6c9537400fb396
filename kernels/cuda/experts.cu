/*
 * experts.cu: a mixture of experts without the host: routing, a counting sort of the (row, expert)
 * pairs by expert, all experts' products, and each row's weighted sum, ascending in the expert's
 * number.
 *
 * Products are tiles of tensor cores (tiles.cu): one launch for gates and ups, one for downs, over
 * a list of tiles that the sort leaves on the device; x and what is between are of 16 bits. With
 * `exact`, and for weights that have no tiles, products are linear.cu's, of f32: a launch each for
 * gates, ups and downs, or for downs alone. A pair's row of scratch is [x, later down's result |
 * gate | up] then.
 */
#include "kernels/cuda/tiles.h"

/* So many rows an expert in the mean, and tiles are wide. */
enum { WIDE_FROM = 24 };

struct mt_experts {
    int n, top, max_rows, inner, width;
    bool norm;
    struct mt_dmat *mats; /* on the device: gates, ups, downs */
    int *first;           /* [n + 1]: the first pair of each expert, in their order */
    int *expert, *pair;   /* [max_rows][top]: a row's experts, and where they stand */
    int *row;             /* [max_rows * top]: the row of each pair, in order */
    float *weight;        /* [max_rows][top] */
    int type, down_type;  /* of all gates and ups, and of all downs, where there are tiles, or -1 */
    struct mt_tile *tile; /* of a call, and how many */
    int *tiles;
};

/* What kernels see of it. */
struct routing {
    int n, top;
    bool norm;
    int *first, *expert, *pair, *row;
    float *weight;
    struct mt_tile *tile;
    int *tiles;
};

static void experts_free(struct mt_backend *be, struct mt_experts *x)
{
    if (!x)
        return;
    mt_cuda_idle(cuda_of(be));
    cudaFree(x->mats);
    cudaFree(x->first);
    cudaFree(x->expert);
    cudaFree(x->pair);
    cudaFree(x->row);
    cudaFree(x->weight);
    cudaFree(x->tile);
    cudaFree(x->tiles);
    free(x);
}

template <class T> static bool room(T **p, size_t n)
{
    void *data;

    if (cudaMalloc(&data, n * sizeof(T)) != cudaSuccess) {
        cudaGetLastError();
        return false;
    }
    *p = (T *)data;
    return true;
}

/* The type of n matrices; -1: not one, or without tiles for sums of k. */
static int type_of(struct mt_mat *const *m, int n, int k)
{
    int type = m[0]->d.type;

    for (int i = 1; i < n; i++)
        if (m[i]->d.type != type)
            return -1;
    return mt_cuda_tiles_take(type, k) ? type : -1;
}

/* Not more tiles of `rows` rows than this: each expert has one that is not full. */
static int64_t most_tiles(int experts, int64_t pairs, int rows)
{
    int64_t most = experts + pairs / rows;

    return most < pairs ? most : pairs;
}

static int experts_new(struct mt_backend *be, struct mt_experts **out,
                       const struct mt_expert_set *set, int max_rows)
{
    struct mt_cuda *c = cuda_of(be);
    struct mt_experts *x;
    struct mt_dmat *mats;
    size_t pairs, bytes;

    *out = NULL;
    if (set->n < 1 || set->top < 1 || set->top > set->n || max_rows < 1)
        return -EINVAL;
    if (__builtin_mul_overflow((size_t)max_rows, (size_t)set->top, &pairs) || pairs > INT32_MAX)
        return -ENOMEM;
    bytes = 3 * (size_t)set->n * sizeof(*mats);
    mats = (struct mt_dmat *)malloc(bytes);
    x = (struct mt_experts *)calloc(1, sizeof(*x));
    if (!mats || !x || !room(&x->mats, 3 * (size_t)set->n) ||
        !room(&x->first, (size_t)set->n + 1) || !room(&x->expert, pairs) ||
        !room(&x->pair, pairs) || !room(&x->row, pairs) || !room(&x->weight, pairs) ||
        !room(&x->tiles, 1) ||
        !room(&x->tile, (size_t)most_tiles(set->n, (int64_t)pairs, mt_cuda_tile_rows(MT_NARROW)))) {
        free(mats);
        experts_free(be, x);
        return -ENOMEM;
    }
    x->n = set->n;
    x->top = set->top;
    x->norm = set->norm;
    x->max_rows = max_rows;
    x->inner = set->gate[0]->d.rows;
    x->width = set->down[0]->d.rows;
    x->type = type_of(set->gate, set->n, x->width);
    if (type_of(set->up, set->n, x->width) != x->type)
        x->type = -1;
    x->down_type = type_of(set->down, set->n, x->inner);
    if (!c->exact && x->type >= 0 && x->down_type >= 0 &&
        mt_cuda_grow(c, &c->between, &c->between_bytes, pairs * (size_t)x->inner * 2) < 0) {
        free(mats);
        experts_free(be, x);
        return -ENOMEM;
    }
    for (int i = 0; i < set->n; i++) {
        mats[i] = set->gate[i]->d;
        mats[set->n + i] = set->up[i]->d;
        mats[2 * set->n + i] = set->down[i]->d;
    }
    mt_cuda_check(c,
                  cudaMemcpyAsync(x->mats, mats, bytes, cudaMemcpyHostToDevice, mt_cuda_stream(c)),
                  "experts");
    mt_cuda_wait(c);
    free(mats);
    *out = x;
    return 0;
}

/* Is (a, i) before (b, j): a higher logit, or the lower number among equals? */
MT_DEV bool before(float a, int i, float b, int j)
{
    return a > b || (a == b && i < j);
}

/*
 * Row r by one warp. Each of `top` rounds takes the best of those behind the one before; what is
 * not behind the last one then is written by number. A row with a logit that is no number gets
 * weights that are none.
 */
MT_DEV void route_row(const struct routing &t, struct mt_rows logits, int64_t r)
{
    int lane = (int)dev_lane(), last = -1, have = 0;
    float top = INFINITY, least = INFINITY;
    double sum = 0;
    bool bad = false;
    const float *logit = logits.data + r * logits.stride;

    for (int k = 0; k < t.top; k++) {
        float best = -INFINITY;
        int at = INT_MAX;

        for (int e = lane; e < t.n; e += 32) {
            float v = logit[e];

            bad = bad || v != v;
            v = v == v ? v : -INFINITY;
            if ((last < 0 || before(least, last, v, e)) &&
                (at == INT_MAX || before(v, e, best, at))) {
                best = v;
                at = e;
            }
        }
        for (int m = 16; m; m >>= 1) {
            float v = __shfl_xor_sync(MT_FULL, best, m);
            int e = __shfl_xor_sync(MT_FULL, at, m);

            if (e != INT_MAX && (at == INT_MAX || before(v, e, best, at))) {
                best = v;
                at = e;
            }
        }
        if (k == 0)
            top = best;
        least = best;
        last = at;
        if (t.norm)
            sum += exp((double)best - top);
    }
    if (!t.norm) {
        for (int e = lane; e < t.n; e += 32)
            sum += exp((double)logit[e] - top);
        sum = warp_sum(sum);
    }
    if (__ballot_sync(MT_FULL, bad))
        sum = NAN;
    for (int e0 = 0; e0 < t.n; e0 += 32) {
        int e = e0 + lane;
        float v = e < t.n && logit[e] == logit[e] ? logit[e] : -INFINITY;
        bool taken = e < t.n && !before(least, last, v, e);
        unsigned set = __ballot_sync(MT_FULL, taken);

        if (taken) {
            int64_t to = r * t.top + have + __popc(set & ((1u << lane) - 1));

            t.expert[to] = e;
            t.weight[to] = (float)(exp((double)v - top) / sum);
        }
        have += __popc(set);
    }
}

/* A block a row; its other warps, if there are any, round the row of x. */
static __global__ void route_rows(struct routing t, struct mt_rows logits, struct mt_rows x,
                                  uint16_t *half, bool bf16)
{
    int64_t r = blockIdx.x;

    if (threadIdx.x < 32)
        return route_row(t, logits, r);
    for (int i = (int)threadIdx.x - 32; i < x.width; i += (int)blockDim.x - 32) {
        float v = x.data[r * x.stride + i];

        half[r * x.width + i] = bf16 ? dev_to_bf16(v) : dev_to_f16(v);
    }
}

/*
 * One block: pairs by expert, in no order among those of one (no sum depends on it), and the tiles
 * of `rows` rows that they make. Shared: two numbers an expert.
 */
static __global__ void __launch_bounds__(1024) group_pairs(struct routing t, int n, int rows)
{
    MT_SHARED_BYTES(bytes);
    int *next = (int *)bytes, *tile = next + t.n; /* the place of an expert's next pair, tile */
    int pairs = n * t.top, step = (int)blockDim.x, lane = (int)dev_lane();

    for (int e = (int)threadIdx.x; e < t.n; e += step)
        next[e] = 0;
    __syncthreads();
    for (int i = (int)threadIdx.x; i < pairs; i += step)
        atomicAdd(&next[t.expert[i]], 1);
    __syncthreads();
    if (threadIdx.x < 32) {
        int before = 0, tiles = 0;

        for (int e0 = 0; e0 < t.n; e0 += 32) {
            int e = e0 + lane, have = e < t.n ? next[e] : 0, some = (have + rows - 1) / rows;
            int sum = have, sum_tiles = some;

            for (unsigned by = 1; by < 32; by *= 2) {
                int v = __shfl_up_sync(MT_FULL, sum, by);
                int u = __shfl_up_sync(MT_FULL, sum_tiles, by);

                if (lane >= (int)by) {
                    sum += v;
                    sum_tiles += u;
                }
            }
            if (e < t.n) {
                t.first[e] = next[e] = before + sum - have;
                tile[e] = tiles + sum_tiles - some;
            }
            before += __shfl_sync(MT_FULL, sum, 31);
            tiles += __shfl_sync(MT_FULL, sum_tiles, 31);
        }
        if (lane == 0) {
            t.first[t.n] = before;
            *t.tiles = tiles;
        }
    }
    __syncthreads();
    for (int e = (int)threadIdx.x; e < t.n; e += step)
        for (int r = t.first[e], end = t.first[e + 1], at = tile[e]; r < end; r += rows)
            t.tile[at++] = {e, r, end - r < rows ? end - r : rows};
    __syncthreads(); /* first is read from memory, but next is what moves */
    for (int i = (int)threadIdx.x; i < pairs; i += step) {
        int at = atomicAdd(&next[t.expert[i]], 1);

        t.pair[i] = at;
        t.row[at] = i / t.top;
    }
}

/* 256 columns of a pair a block. */
static __global__ void gather_pairs(struct mt_rows part, struct mt_rows x, const int *row)
{
    unsigned pieces = ((unsigned)x.width + 255) / 256;
    int64_t p = blockIdx.x / pieces;
    int col = (int)(blockIdx.x % pieces * 256 + threadIdx.x);

    if (col < x.width)
        part.data[p * part.stride + col] = x.data[row[p] * x.stride + col];
}

static __global__ void combine_pairs(struct mt_rows out, struct mt_rows part,
                                     struct mt_rows residual, struct routing t)
{
    unsigned pieces = ((unsigned)out.width + 255) / 256;
    int64_t r = blockIdx.x / pieces;
    int col = (int)(blockIdx.x % pieces * 256 + threadIdx.x);
    float sum = 0;

    if (col >= out.width)
        return;
    for (int k = 0; k < t.top; k++)
        sum = dev_fma(t.weight[r * t.top + k], part.data[t.pair[r * t.top + k] * part.stride + col],
                      sum);
    if (residual.data)
        sum += residual.data[r * residual.stride + col];
    out.data[r * out.stride + col] = sum;
}

/*
 * Gates, ups and downs of all pairs: the results are in the first columns of scratch. tiled: gates
 * and ups are, of the rows that the lane's cast has, and downs if they can be.
 */
static void products(struct mt_backend *be, const struct mt_experts *ex, struct mt_rows x,
                     struct mt_rows scratch, int pairs, bool tiled, enum mt_tiling tiling)
{
    struct mt_cuda *c = cuda_of(be);
    struct mt_rows part = mt_rows_cols(scratch, 0, x.width);
    struct mt_rows gate = mt_rows_cols(scratch, x.width, ex->inner);
    struct mt_rows up = mt_rows_cols(scratch, x.width + ex->inner, ex->inner);
    bool both = tiled && ex->down_type >= 0;
    struct mt_product p = {};

    p.tile = ex->tile;
    p.tiles = ex->tiles;
    p.most = (int)most_tiles(ex->n, pairs, mt_cuda_tile_rows(tiling));
    if (tiled) {
        p.w = ex->mats;
        p.up = ex->mats + ex->n;
        p.cols = ex->inner;
        p.k = ex->width;
        p.x = (const uint16_t *)c->lane->cast;
        p.row = ex->row;
        p.out = gate;
        p.gated = both ? (uint16_t *)c->between : NULL;
        p.bf16 = ex->down_type != MT_F16;
        mt_cuda_tiles(c, &p, ex->type, tiling);
    } else {
        MT_LAUNCH(c, gather_pairs, (unsigned)pairs * mt_blocks(x.width, 256), 256, 0, part, x,
                  ex->row);
        mt_cuda_grouped(c, gate, part, ex->mats, ex->first, ex->n, ex->inner);
        mt_cuda_grouped(c, up, part, ex->mats + ex->n, ex->first, ex->n, ex->inner);
        mt_cuda_gated(be, gate, gate, up, pairs);
    }
    if (!both) {
        mt_cuda_grouped(c, part, gate, ex->mats + 2 * ex->n, ex->first, ex->n, ex->width);
        return;
    }
    p.w = ex->mats + 2 * ex->n;
    p.up = NULL;
    p.cols = ex->width;
    p.k = ex->inner;
    p.x = p.gated;
    p.row = NULL;
    p.out = scratch;
    mt_cuda_tiles(c, &p, ex->down_type, tiling);
}

static void experts(struct mt_backend *be, struct mt_rows out, struct mt_rows x,
                    struct mt_rows logits, struct mt_experts *ex, struct mt_rows residual,
                    struct mt_rows scratch, int n)
{
    struct mt_cuda *c = cuda_of(be);
    struct routing t = {ex->n,    ex->top, ex->norm,   ex->first, ex->expert,
                        ex->pair, ex->row, ex->weight, ex->tile,  ex->tiles};
    int pairs = n * ex->top;
    bool tiled =
        !c->exact && ex->type >= 0 && (size_t)n * (size_t)x.width * 2 <= c->lane->cast_bytes;
    enum mt_dtype half = ex->type == MT_F16 ? MT_F16 : MT_BF16;
    bool rounded = tiled && mt_cuda_cast_has(c, x, n, half);
    enum mt_tiling tiling = pairs / ex->n < WIDE_FROM ? MT_NARROW : MT_WIDE;
    size_t shared = 2 * sizeof(int) * (size_t)ex->n;
    unsigned threads = mt_blocks(pairs > ex->n ? pairs : ex->n, 32) * 32;

    if (n < 1)
        return;
    MT_LAUNCH(c, route_rows, (unsigned)n, tiled && !rounded ? 128 : 32, 0, t, logits, x,
              (uint16_t *)c->lane->cast, half == MT_BF16);
    MT_SHARED_ROOM(c, group_pairs, shared);
    MT_LAUNCH(c, group_pairs, 1, threads < 1024 ? threads : 1024, shared, t, n,
              mt_cuda_tile_rows(tiling));
    products(be, ex, x, scratch, pairs, tiled, tiling);
    MT_LAUNCH(c, combine_pairs, (unsigned)n * mt_blocks(out.width, 256), 256, 0, out, scratch,
              residual, t);
}

void mt_cuda_mixtures(struct mt_ops *o)
{
    o->experts_new = experts_new;
    o->experts_free = experts_free;
    o->experts = experts;
}
