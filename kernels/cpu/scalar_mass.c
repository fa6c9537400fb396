/*
 * scalar_mass.c: where attention goes: the weights that scalar_attention.c applies to values, added
 * up by token and by distance instead. An instrument; every tier has this one.
 */
#include "kernels/cpu/cpu.h"

/* 0, 1, 2 to 3, 4 to 7, … */
static int bin_of(int64_t distance)
{
    int bin = 0;

    for (; distance > 0 && bin < MT_MASS_BINS - 1; distance >>= 1)
        bin++;
    return bin;
}

struct job {
    const struct mt_kv *kv;
    int layer;
    const struct mt_batch *b;
    struct mt_rows q, q_sink;
    int n_first;
    float *mass;
};

/* One query head over the cache: as a softmax in progress, all bins times exp(-max). */
static void weigh(const struct job *j, const struct mt_run *r, int64_t i, int kv_head,
                  const float *q, const float *q_sink, float *mass)
{
    const struct mt_kv *kv = view_kv(r, j->kv);
    const struct mt_kv_view *w = &r->view;
    int64_t first = w->sinks + view_first(r, i), end = view_end(r, i);
    int bins = j->n_first + MT_MASS_BINS;
    double max = -INFINITY, sum = 0;

    for (int pass = 0; pass < 2; pass++)
        for (int64_t t = 0; t < end; t++) {
            int slot;

            if (t >= w->sinks && t < first)
                t = first;
            int32_t block = view_block(w, kv->s.block_tokens, t, &slot);
            double s = mt_kv_score(kv, j->layer, block, kv_head, slot, t < w->sinks ? q_sink : q);
            if (pass == 0) {
                max = s > max ? s : max;
                continue;
            }
            double p = exp(s - max);
            mass[t < j->n_first ? t : j->n_first + bin_of(t < i ? i - t : t - i)] += (float)p;
            sum += p;
        }
    for (int k = 0; k < bins; k++)
        mass[k] = (float)(mass[k] / sum);
}

static void run(void *arg, int thread, int64_t begin, int64_t end)
{
    const struct job *j = arg;
    int hd = j->kv->s.head_dim, heads = j->q.width / hd, group = heads / j->kv->s.kv_heads;
    int64_t bins = j->n_first + MT_MASS_BINS;
    const struct mt_run *r = j->b->runs;

    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        int64_t row = t / heads, h = t % heads;
        const float *q = j->q.data + row * j->q.stride + h * hd, *q_sink = q;

        while (row >= r->row + r->n)
            r++;
        if (view_has_q_sink(&r->view))
            q_sink = j->q_sink.data + row * j->q_sink.stride + h * hd;
        memset(j->mass + t * bins, 0, (size_t)bins * sizeof(*j->mass));
        weigh(j, r, r->index + row - r->row, (int)(h / group), q, q_sink, j->mass + t * bins);
    }
}

static void attention_mass(struct mt_backend *be, const struct mt_kv *kv, int layer,
                           const struct mt_batch *b, struct mt_rows q, struct mt_rows q_sink,
                           int n_first, float *mass)
{
    struct job j = {kv, layer, b, q, q_sink, n_first, mass};
    int64_t seen = 1;

    for (int i = 0; i < b->n_runs; i++)
        seen += b->runs[i].index + b->runs[i].n;
    if (b->n_rows)
        mt_par(cpu_of(be), (int64_t)b->n_rows * (q.width / kv->s.head_dim),
               2 * seen * kv->s.head_dim, run, &j);
}

void mt_scalar_mass(struct mt_ops *o)
{
    o->attention_mass = attention_mass;
}
