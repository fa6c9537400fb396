/*
 * experts.cu: a mixture of experts without the host: routing, a counting sort of the (row, expert)
 * pairs by expert, one launch for all experts' gates, ups and downs each (blocks of experts that
 * nobody takes leave at once), and each row's weighted sum, ascending in the expert's number.
 *
 * A pair's row of scratch: [x, later down's result | gate | up].
 */
#include "kernels/cuda/dev.h"

struct mt_experts {
    int n, top, max_rows, inner, width;
    bool norm;
    struct mt_dmat *mats; /* on the device: gates, ups, downs */
    int *first;           /* [n + 1]: the first pair of each expert, in their order */
    int *expert, *pair;   /* [max_rows][top]: a row's experts, and where they stand */
    int *row;             /* [max_rows * top]: the row of each pair, in order */
    float *weight;        /* [max_rows][top] */
};

/* What kernels see of it. */
struct routing {
    int n, top;
    bool norm;
    int *first, *expert, *pair, *row;
    float *weight;
};

static void experts_free(struct mt_backend *be, struct mt_experts *x)
{
    if (!x)
        return;
    mt_cuda_wait(cuda_of(be));
    cudaFree(x->mats);
    cudaFree(x->first);
    cudaFree(x->expert);
    cudaFree(x->pair);
    cudaFree(x->row);
    cudaFree(x->weight);
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
        !room(&x->pair, pairs) || !room(&x->row, pairs) || !room(&x->weight, pairs)) {
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
 * A warp a row. Each of `top` rounds takes the best of those behind the one before. A row with a
 * logit that is no number gets weights that are none.
 */
static __global__ void route_rows(struct routing t, struct mt_rows logits, int n)
{
    int64_t r = (int64_t)blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
    int lane = (int)dev_lane(), last = -1;
    float top = INFINITY, least = INFINITY;
    double sum = 0;
    bool bad = false;

    if (r >= n)
        return;
    const float *logit = logits.data + r * logits.stride;
    int *id = t.expert + r * t.top;
    float *w = t.weight + r * t.top;
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
        if (lane == 0) { /* among those before it, by number; the logit for now */
            int to = k;

            for (; to > 0 && id[to - 1] > at; to--) {
                id[to] = id[to - 1];
                w[to] = w[to - 1];
            }
            id[to] = at;
            w[to] = best;
        }
    }
    __syncwarp();
    if (!t.norm) {
        for (int e = lane; e < t.n; e += 32)
            sum += exp((double)logit[e] - top);
        sum = warp_sum(sum);
    }
    if (__ballot_sync(MT_FULL, bad))
        sum = NAN;
    for (int k = lane; k < t.top; k += 32)
        w[k] = (float)(exp((double)w[k] - top) / sum);
}

/*
 * One block. Pairs by expert, rows ascending: a thread an expert counts its pairs, then deals them
 * out; a row has an expert once, so that a search in its ascending numbers could only be shorter.
 */
static __global__ void group_pairs(struct routing t, int n)
{
    int pairs = n * t.top;

    for (int e = (int)threadIdx.x; e < t.n; e += (int)blockDim.x) {
        int have = 0;

        for (int i = 0; i < pairs; i++)
            have += t.expert[i] == e;
        t.first[e + 1] = have;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        t.first[0] = 0;
        for (int e = 0; e < t.n; e++)
            t.first[e + 1] += t.first[e];
    }
    __syncthreads();
    for (int e = (int)threadIdx.x; e < t.n; e += (int)blockDim.x) {
        int at = t.first[e];

        for (int i = 0; at < t.first[e + 1]; i++)
            if (t.expert[i] == e) {
                t.pair[i] = at;
                t.row[at++] = i / t.top;
            }
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

static void experts(struct mt_backend *be, struct mt_rows out, struct mt_rows x,
                    struct mt_rows logits, struct mt_experts *ex, struct mt_rows residual,
                    struct mt_rows scratch, int n)
{
    struct mt_cuda *c = cuda_of(be);
    struct routing t = {ex->n,      ex->top,  ex->norm, ex->first,
                        ex->expert, ex->pair, ex->row,  ex->weight};
    int pairs = n * ex->top;
    struct mt_rows part = mt_rows_cols(scratch, 0, x.width);
    struct mt_rows gate = mt_rows_cols(scratch, x.width, ex->inner);
    struct mt_rows up = mt_rows_cols(scratch, x.width + ex->inner, ex->inner);

    if (n < 1)
        return;
    MT_LAUNCH(c, route_rows, mt_blocks(n, 4), 128, 0, t, logits, n);
    MT_LAUNCH(c, group_pairs, 1, ex->n < 256 ? (ex->n + 31) / 32 * 32 : 256, 0, t, n);
    MT_LAUNCH(c, gather_pairs, (unsigned)pairs * mt_blocks(x.width, 256), 256, 0, part, x, t.row);
    mt_cuda_grouped(c, gate, part, ex->mats, ex->first, ex->n, ex->inner);
    mt_cuda_grouped(c, up, part, ex->mats + ex->n, ex->first, ex->n, ex->inner);
    mt_cuda_gated(be, gate, gate, up, pairs);
    mt_cuda_grouped(c, part, gate, ex->mats + 2 * ex->n, ex->first, ex->n, ex->width);
    MT_LAUNCH(c, combine_pairs, (unsigned)n * mt_blocks(out.width, 256), 256, 0, out, part,
              residual, t);
}

void mt_cuda_mixtures(struct mt_ops *o)
{
    o->experts_new = experts_new;
    o->experts_free = experts_free;
    o->experts = experts;
}
