/*
 * mass.cu: where attention goes, an instrument: plain and slow. A warp a row and head: each lane
 * scores tokens lane, lane + 32, ...; in f64 and in one order, without atomics.
 */
#include "kernels/cuda/kv.h"

/* 0, 1, 2 to 3, 4 to 7, ... */
MT_DEV int bin_of(int64_t distance)
{
    int bin = 0;

    for (; distance > 0 && bin < MT_MASS_BINS - 1; distance >>= 1)
        bin++;
    return bin;
}

MT_DEV double score_of(const struct mt_dkv &kv, const struct mt_drun &run, int head, int64_t token,
                       const float *q)
{
    int slot;
    const char *block = kv_block(kv, run, token, &slot);
    const char *k = block + kv_at(kv, run, 0, head, slot);
    float scale = dev_scaled(run.type) ? kv_scale(block + kv_scale_at(kv, run, 0, head, slot)) : 1;
    double sum = 0;

    for (int d = 0; d < kv.hd; d++)
        sum += (double)q[d] * (dev_scaled(run.type)
                                   ? __fmul_rn(dev_from_byte(run.type, (unsigned char)k[d]), scale)
                                   : dev_weight_at(run.type, (const unsigned char *)k, d));
    return sum / sqrt((double)kv.hd);
}

/* mass [rows from row0][heads][n_first + MT_MASS_BINS]. Grid: rows * heads; 32 threads. */
static __global__ void weigh_tokens(struct mt_dkv kv, struct mt_dbatch b, struct mt_rows q,
                                    struct mt_rows q_sink, int row0, int n_first, float *mass)
{
    int heads = q.width / kv.hd, h = (int)(blockIdx.x % (unsigned)heads);
    int64_t row = row0 + blockIdx.x / (unsigned)heads;
    const struct mt_drun run = b.run[b.run_of[row]];
    int64_t i = run.index + row - run.row, last = run.index + run.n - 1;
    int64_t first = (run.see == MT_SEE_CAUSAL ? i : last) - run.window + 1;
    int64_t end = run.see == MT_SEE_CHUNK ? last + 1 : i + 1, lane = dev_lane();
    const float *at = q.data + row * q.stride + h * kv.hd, *at_sink = at;
    double max = -INFINITY, sum = 0, bin[MT_MASS_BINS] = {0};

    mass += (int64_t)blockIdx.x * (n_first + MT_MASS_BINS);
    if (run.sinks > 0)
        at_sink = q_sink.data + row * q_sink.stride + h * kv.hd;
    for (int64_t t = lane; t < n_first; t += 32)
        mass[t] = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t t = lane; t < end; t += 32) {
            if (t >= run.sinks && t < first) /* on by whole steps to what may be seen */
                t += (first - t) / 32 * 32;
            if (t >= end || (t >= run.sinks && t < first))
                continue;
            double s = score_of(kv, run, h / (heads / kv.heads), t, t < run.sinks ? at_sink : at);
            if (pass == 0) {
                max = s > max ? s : max;
                continue;
            }
            double p = exp(s - max);
            if (t < n_first) /* a token is one lane's in both loops */
                mass[t] = (float)p;
            else
                bin[bin_of(t < i ? i - t : t - i)] += p;
            sum += p;
        }
        for (int m = 16; m && pass == 0; m >>= 1) {
            double other = __shfl_xor_sync(MT_FULL, max, m);

            max = other > max ? other : max;
        }
    }
    sum = warp_sum(sum);
    for (int64_t t = lane; t < n_first; t += 32)
        mass[t] = (float)(mass[t] / sum);
    for (int k = 0; k < MT_MASS_BINS; k++) {
        double all = warp_sum(bin[k]);

        if (lane == 0)
            mass[n_first + k] = (float)(all / sum);
    }
}

/* As many rows at a time as give half a megabyte. */
static void attention_mass(struct mt_backend *be, const struct mt_kv *kv, int layer,
                           const struct mt_batch *b, struct mt_rows q, struct mt_rows q_sink,
                           int n_first, float *mass)
{
    struct mt_cuda *c = cuda_of(be);
    int heads = q.width / kv->s.head_dim;
    size_t floats = (size_t)heads * (size_t)(n_first + MT_MASS_BINS);
    int some = floats < 131072 ? (int)(131072 / floats) : 1;

    for (int row = 0; row < b->n_rows; row += some) {
        int n = b->n_rows - row < some ? b->n_rows - row : some;
        size_t bytes = (size_t)n * floats * sizeof(float);
        struct mt_stage s;
        struct mt_dbatch d;

        memset(mass + (size_t)row * floats, 0, bytes);
        if (!mt_cuda_batch(c, kv, b, bytes, &d) || !mt_stage_new(c, &s, bytes))
            continue;
        MT_LAUNCH(c, weigh_tokens, (unsigned)(n * heads), 32, 0, mt_dkv_of(kv, layer), d, q, q_sink,
                  row, n_first, (float *)s.dev);
        if (mt_stage_fetch(c, &s))
            memcpy(mass + (size_t)row * floats, s.host, bytes);
    }
}

void mt_cuda_masses(struct mt_ops *o)
{
    o->attention_mass = attention_mass;
}
