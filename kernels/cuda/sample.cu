/*
 * sample.cu: a row of logits becomes a token: a block a row, on the device, by the same numbers
 * from the same seeds as on the CPU.
 *
 * Nothing is sorted. Candidates stand in order of (logit descending, id ascending). A beginning of
 * that order is (key, m): all with a higher key, and the first m of those that have it. Top-k is
 * the beginning that holds k of them, top-p the one whose weights reach its share, the draw the one
 * whose weights pass the drawn number: each is found by a radix selection, 8 bits of the key at a
 * time, over counts or weights. Weights are exp((logit - best) / temperature) in fixed point, so
 * that their sums are exact in any order; all together stay below 2^62. What is lost against the
 * CPU's f64 is a share of 2^-40 or so of a draw.
 */
#include "kernels/cuda/dev.h"

#ifndef MT_DRAW_THREADS
#define MT_DRAW_THREADS 1024
#endif

enum { THREADS = MT_DRAW_THREADS, WARPS = THREADS / 32 };

#define PLAIN_DRAW 0x9e3779b97f4a7c15ull

typedef unsigned long long u64;

/* As struct mt_sample, its rules on the device. */
struct draw {
    float temperature, top_p;
    int top_k, exit_id; /* exit_id -1: none */
    u64 seed, number;
    const int32_t *ban;
    const struct mt_scale *scale;
    int n_ban, n_scale;
    bool none; /* a row that is nobody's */
};

/* mt_unit of base.h. */
MT_DEV double chance(const struct draw &d, u64 salt)
{
    return (double)(dev_mix64((dev_mix64(d.seed) ^ d.number) + salt) >> 11) * 0x1p-53;
}

/* Ascending in the logit; 0 for what is no candidate. -0 is 0. */
MT_DEV unsigned key_of(float l)
{
    unsigned u = __float_as_uint(l + 0.0f);

    if (!(l > -INFINITY))
        return 0;
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

MT_DEV float logit_of(unsigned key)
{
    return __uint_as_float(key & 0x80000000u ? key ^ 0x80000000u : ~key);
}

/* The sum over the block, in all threads. */
MT_DEV u64 block_sum(u64 v)
{
    __shared__ u64 part[WARPS];

    v = warp_sum(v);
    __syncthreads();
    if (dev_lane() == 0)
        part[threadIdx.x / 32] = v;
    __syncthreads();
    v = 0;
    for (int i = 0; i < WARPS; i++)
        v += part[i];
    return v;
}

/* Highest logit, lowest id among equals; -1 if no logit is a number. In all threads. */
MT_DEV int block_best(const float *l, int n)
{
    __shared__ u64 part[WARPS];
    u64 best = 0;

    for (int i = (int)threadIdx.x; i < n; i += THREADS) { /* key above the id's complement */
        unsigned key = l[i] > -INFINITY ? key_of(l[i]) : 1;
        u64 v = l[i] == l[i] ? (u64)key << 32 | (0xffffffffu - (unsigned)i) : 0;

        best = v > best ? v : best;
    }
    for (int m = 16; m; m >>= 1) {
        u64 v = __shfl_xor_sync(MT_FULL, best, m);

        best = v > best ? v : best;
    }
    __syncthreads();
    if (dev_lane() == 0)
        part[threadIdx.x / 32] = best;
    __syncthreads();
    for (int i = 0; i < WARPS; i++)
        best = part[i] > best ? part[i] : best;
    return best ? (int)(0xffffffffu - (unsigned)best) : -1;
}

/* The row, and how its candidates are weighed. */
struct row {
    const float *l;
    int n;
    double top, temperature, unit;
};

MT_DEV u64 weight_of(const struct row &r, float l)
{
    return (u64)(exp(((double)l - r.top) / r.temperature) * r.unit);
}

/* A beginning of the order. */
struct beginning {
    unsigned key;
    u64 m, before, same; /* taken of those with the key; the measure above them, and of each */
};

/*
 * By one warp: of 256 buckets, the last one first, the one at which `above` and their measures
 * reach target, or the last that is not empty; its key, and the measure before it. A lane has 8.
 */
MT_DEV void find_bucket(const u64 *sum, const unsigned *many, bool weights, u64 target, u64 above,
                        unsigned key, int shift, unsigned *at_key, u64 *at_before)
{
    int first = 255 - 8 * (int)dev_lane(), found = -1;
    u64 own = 0, before, at = 0;
    bool hit = false;

    for (int i = first; i > first - 8; i--)
        own += weights ? sum[i] : many[i];
    before = own;
    for (unsigned by = 1; by < 32; by *= 2) {
        u64 v = __shfl_up_sync(MT_FULL, before, by);

        before += dev_lane() >= by ? v : 0;
    }
    before += above - own;
    for (int i = first; i > first - 8 && !hit; i--) {
        if (!many[i])
            continue;
        found = i;
        at = before;
        before += weights ? sum[i] : many[i];
        hit = before >= target;
    }
    unsigned hits = __ballot_sync(MT_FULL, hit), any = __ballot_sync(MT_FULL, found >= 0);
    int lane = hits ? __ffs((int)hits) - 1 : 31 - __clz((int)any);
    if ((int)dev_lane() == lane) {
        *at_key = key | (unsigned)found << shift;
        *at_before = at;
    }
}

/*
 * A warp's keys and weights to the buckets of their first 8 bits, sign and exponent: a few of them
 * hold all logits, and lanes that added one by one would wait for each other.
 */
MT_DEV void count_together(u64 *sum, unsigned *many, bool weights, unsigned key, u64 weight)
{
    unsigned left = __ballot_sync(MT_FULL, key != 0);

    while (left) {
        int first = __ffs((int)left) - 1;
        unsigned bucket = __shfl_sync(MT_FULL, key, first) >> 24;
        bool mine = key && key >> 24 == bucket;
        unsigned with = __ballot_sync(MT_FULL, mine);
        u64 all = weights ? warp_sum(mine ? weight : 0) : 0;

        if ((int)dev_lane() == first) {
            atomicAdd(&many[bucket], (unsigned)__popc(with));
            if (weights)
                atomicAdd(&sum[bucket], all);
        }
        left &= ~with;
    }
}

/*
 * The shortest beginning whose measure (weights, or how many) is above target, or reaches it. All
 * of them if none is.
 */
MT_DEV struct beginning select(const struct row &r, bool weights, u64 target)
{
    __shared__ u64 sum[256];
    __shared__ unsigned many[256];
    __shared__ u64 at_before;
    __shared__ unsigned at_key;
    unsigned key = 0, equals = 0;
    u64 above = 0;

    for (int shift = 24; shift >= 0; shift -= 8) {
        for (int i = (int)threadIdx.x; i < 256; i += THREADS) {
            sum[i] = 0;
            many[i] = 0;
        }
        __syncthreads();
        for (int i0 = 0; i0 < r.n; i0 += THREADS) {
            int i = i0 + (int)threadIdx.x;
            unsigned k = i < r.n ? key_of(r.l[i]) : 0;

            if (shift == 24) {
                count_together(sum, many, weights, k, k && weights ? weight_of(r, r.l[i]) : 0);
            } else if (k && k >> (shift + 8) == key >> (shift + 8)) {
                atomicAdd(&many[k >> shift & 255], 1u);
                if (weights)
                    atomicAdd(&sum[k >> shift & 255], weight_of(r, r.l[i]));
            }
        }
        __syncthreads();
        if (threadIdx.x < 32)
            find_bucket(sum, many, weights, target, above, key, shift, &at_key, &at_before);
        __syncthreads();
        key = at_key;
        above = at_before;
        equals = many[key >> shift & 255];
        __syncthreads();
    }
    struct beginning b = {key, equals, above, weights ? weight_of(r, logit_of(key)) : 1};
    u64 lack = target > above ? target - above : 0;
    u64 m = b.same ? (lack + b.same - 1) / b.same : 1;

    b.m = m < 1 ? 1 : m > b.m ? b.m : m;
    return b;
}

/* The m-th (from 1) of those with the key, by id. */
MT_DEV int nth(const struct row &r, unsigned key, u64 m)
{
    __shared__ u64 part[WARPS];
    __shared__ int found;
    int each = (r.n + WARPS - 1) / WARPS, warp = (int)threadIdx.x / 32;
    int first = warp * each, end = first + each < r.n ? first + each : r.n;
    u64 have = 0;

    for (int i = first + (int)dev_lane(); i < end; i += 32)
        have += key_of(r.l[i]) == key;
    have = warp_sum(have);
    __syncthreads();
    if (dev_lane() == 0)
        part[warp] = have;
    if (threadIdx.x == 0)
        found = -1;
    __syncthreads();
    u64 before = 0;
    for (int i = 0; i < warp; i++)
        before += part[i];
    if (before < m && before + have >= m) /* one warp, 32 at a time */
        for (int i = first; i < end; i += 32) {
            int at = i + (int)dev_lane();
            bool mine = at < end && key_of(r.l[at]) == key;
            unsigned set = __ballot_sync(MT_FULL, mine), up_to = MT_FULL >> (31 - dev_lane());

            if (mine && before + (u64)__popc(set & up_to) == m)
                found = at;
            before += (u64)__popc(set);
            if (before >= m)
                break;
        }
    __syncthreads();
    return found;
}

/* No cut: the first id whose weights up to it, by id, are above target; the last if none. */
MT_DEV int walk(const struct row &r, double u)
{
    __shared__ u64 part[WARPS];
    __shared__ int found;
    int each = (r.n + WARPS - 1) / WARPS, warp = (int)threadIdx.x / 32;
    int first = warp * each, end = first + each < r.n ? first + each : r.n;
    u64 have = 0, before = 0, total = 0;

    for (int i = first + (int)dev_lane(); i < end; i += 32)
        have += key_of(r.l[i]) ? weight_of(r, r.l[i]) : 0;
    have = warp_sum(have);
    __syncthreads();
    if (dev_lane() == 0)
        part[warp] = have;
    if (threadIdx.x == 0)
        found = -1;
    __syncthreads();
    for (int i = 0; i < WARPS; i++) {
        before += i < warp ? part[i] : 0;
        total += part[i];
    }
    u64 target = (u64)(u * (double)total);
    target = target < total ? target : total - 1;
    if (before <= target && before + have > target)
        for (int i = first; i < end; i += 32) { /* a warp's step at a time, by prefix sums */
            int at = i + (int)dev_lane();
            u64 w = at < end && key_of(r.l[at]) ? weight_of(r, r.l[at]) : 0, sum = w;

            for (unsigned by = 1; by < 32; by *= 2) {
                u64 v = __shfl_up_sync(MT_FULL, sum, by);

                sum += dev_lane() >= by ? v : 0;
            }
            unsigned past = __ballot_sync(MT_FULL, before + sum > target);
            if (past) {
                if ((int)dev_lane() == __ffs((int)past) - 1)
                    found = at;
                break;
            }
            before += __shfl_sync(MT_FULL, sum, 31);
        }
    __syncthreads();
    return found;
}

/* Would a draw of the plain logits be this id? */
MT_DEV bool exits(const struct row &plain, const struct draw &d, int top)
{
    float l = d.exit_id < plain.n ? plain.l[d.exit_id] : NAN;
    u64 sum = 0;

    if (top < 0 || !(d.temperature > 0) || isinf(plain.l[top]))
        return top == d.exit_id;
    for (int i = (int)threadIdx.x; i < plain.n; i += THREADS)
        sum += key_of(plain.l[i]) ? weight_of(plain, plain.l[i]) : 0;
    sum = block_sum(sum);
    return chance(d, PLAIN_DRAW) * (double)sum <
           (key_of(l) ? exp((double)l - plain.top) * plain.unit : 0);
}

/*
 * By all threads. An id may come twice, in an order that counts: whoever has it for the first time
 * does all that the list does to it.
 */
MT_DEV void apply(float *l, const struct draw &d)
{
    for (int i = (int)threadIdx.x; i < d.n_ban; i += THREADS)
        l[d.ban[i]] = -INFINITY;
    __syncthreads();
    for (int i = (int)threadIdx.x; i < d.n_scale; i += THREADS) {
        int32_t id = d.scale[i].id;
        float v = l[id];
        int j = 0;

        while (j < i && d.scale[j].id != id)
            j++;
        if (j < i)
            continue;
        for (; j < d.n_scale; j++) {
            const struct mt_scale s = d.scale[j];

            if (s.id == id)
                v = s.down && !(v > 0) ? __fmul_rn(v, s.by) : __fdiv_rn(v, s.by);
        }
        l[id] = v;
    }
}

MT_DEV int draw_row(float *l, int n, double unit, const struct draw &d)
{
    struct row r = {l, n, 0, 1, unit};
    u64 candidates = 0;
    int top;

    if (d.exit_id >= 0) {
        top = block_best(l, n);
        r.top = top < 0 ? 0 : l[top];
        if (exits(r, d, top))
            return d.exit_id;
    }
    __syncthreads();
    apply(l, d);
    __syncthreads();
    top = block_best(l, n);
    if (top < 0 || !(d.temperature > 0) || isinf(l[top]) || d.top_k == 1)
        return top;
    r.top = l[top];
    r.temperature = d.temperature;
    for (int i = (int)threadIdx.x; i < n; i += THREADS)
        candidates += key_of(l[i]) != 0;
    candidates = block_sum(candidates);
    bool top_k = d.top_k > 0 && (u64)d.top_k < candidates;
    if (!top_k && !(d.top_p < 1))
        return walk(r, chance(d, 0));

    struct beginning kept = {0, 0, 0, 0};
    u64 total = 0;
    if (top_k) { /* how much the k first weigh */
        kept = select(r, false, (u64)d.top_k);
        for (int i = (int)threadIdx.x; i < n; i += THREADS)
            total += key_of(l[i]) > kept.key ? weight_of(r, l[i]) : 0;
        kept.same = weight_of(r, logit_of(kept.key));
        kept.before = block_sum(total);
        total = kept.before + kept.m * kept.same;
    } else {
        for (int i = (int)threadIdx.x; i < n; i += THREADS)
            total += key_of(l[i]) ? weight_of(r, l[i]) : 0;
        total = block_sum(total);
    }
    if (d.top_p < 1) {
        u64 share = (u64)ceil((double)d.top_p * (double)total);
        struct beginning p = select(r, true, share < total ? share : total);

        if (!top_k || p.key > kept.key || (p.key == kept.key && p.m < kept.m))
            kept = p;
    }
    total = kept.before + kept.m * kept.same;
    u64 target = (u64)(chance(d, 0) * (double)total); /* above it */
    struct beginning b = select(r, true, (target < total ? target : total - 1) + 1);
    if (b.key < kept.key || (b.key == kept.key && b.m > kept.m))
        b = kept;
    return nth(r, b.key, b.m);
}

/* A block a row. */
static __global__ void __launch_bounds__(THREADS)
    draw_rows(struct mt_rows logits, const struct draw *draws, int32_t *ids, double unit)
{
    const struct draw d = draws[blockIdx.x];

    if (d.none)
        return;
    int id = draw_row(logits.data + (int64_t)blockIdx.x * logits.stride, logits.width, unit, d);

    if (threadIdx.x == 0)
        ids[blockIdx.x] = id;
}

/* The forbidden ids of a row that are the last row's too: a model has one list for all its calls. */
static bool bans_as(const struct mt_sample_rules *r, const struct mt_sample_rules *last)
{
    return last && r->ban == last->ban && r->n_ban == last->n_ban;
}

/*
 * [ids][draws][bans and scales of each row], in one piece; rows and bytes are their buckets', so
 * that a step of a session more or less is the same launch.
 */
static void sample(struct mt_backend *be, struct mt_rows logits, const struct mt_sample *params,
                   int32_t *ids, int n)
{
    struct mt_cuda *c = cuda_of(be);
    int rows = (int)mt_bucket(n);
    size_t head = ((size_t)rows * sizeof(*ids) + 255) / 256 * 256;
    size_t at = head + (size_t)rows * sizeof(struct draw), bytes = 0;
    const struct mt_sample_rules *last = NULL;
    const int32_t *bans = NULL;
    struct mt_stage s, out;
    double unit = 0x1p62;

    for (int i = 0; i < n; i++)
        ids[i] = -1;
    if (n < 1)
        return;
    /*
     * The step begins meanwhile, and is the same tape, and so the same graph, whether or not
     * something else was queued between it and its draw.
     */
    mt_tape_end(c);
    for (int i = 0; i < n; i++) {
        const struct mt_sample_rules *r = params[i].rules;

        if (!r)
            continue;
        bytes += (size_t)r->n_scale * sizeof(struct mt_scale) +
                 (bans_as(r, last) ? 0 : (size_t)r->n_ban * sizeof(int32_t));
        last = r;
    }
    last = NULL;
    if (!mt_stage_new(c, &s, at + (bytes ? (size_t)mt_bucket((int64_t)bytes) : 0)))
        return;
    for (int i = n; i < rows; i++)
        ((struct draw *)(s.host + head))[i].none = true;
    for (int i = 0; i < n; i++) {
        const struct mt_sample *p = &params[i];
        struct draw *d = (struct draw *)(s.host + head) + i;

        *d = {p->temperature, p->top_p, p->top_k, -1, p->seed, p->draw, NULL, NULL, 0, 0, false};
        if (!p->rules)
            continue;
        d->exit_id = p->rules->exit_id;
        d->n_ban = p->rules->n_ban;
        d->n_scale = p->rules->n_scale;
        if (!bans_as(p->rules, last)) {
            bans = (const int32_t *)(s.dev + at);
            if (d->n_ban)
                memcpy(s.host + at, p->rules->ban, (size_t)d->n_ban * sizeof(int32_t));
            at += (size_t)d->n_ban * sizeof(int32_t);
        }
        last = p->rules;
        d->ban = bans;
        d->scale = (const struct mt_scale *)(s.dev + at);
        if (d->n_scale)
            memcpy(s.host + at, p->rules->scale, (size_t)d->n_scale * sizeof(struct mt_scale));
        at += (size_t)d->n_scale * sizeof(struct mt_scale);
    }
    for (int w = 1; w < logits.width; w *= 2)
        unit /= 2;
    mt_stage_send(c, &s);
    MT_LAUNCH(c, draw_rows, (unsigned)rows, THREADS, 0, logits, (const struct draw *)(s.dev + head),
              (int32_t *)s.dev, unit);
    out = s;
    out.bytes = (size_t)rows * sizeof(*ids);
    if (mt_stage_fetch(c, &out))
        memcpy(ids, out.host, (size_t)n * sizeof(*ids));
}

void mt_cuda_samples(struct mt_ops *o)
{
    o->sample = sample;
}
