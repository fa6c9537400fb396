/*
 * scalar_attention.c: the reference of both attentions: for a query and a head, walk the visible
 * tokens in ascending order with a running maximum and sum, all in double.
 */
#include "kernels/cpu/cpu.h"

#define DIMS                                                                                       \
    256 /* outputs held at a time; a wider head takes its scores anew for the next ones   \
                  */

/* A softmax in progress: sum of weights and the weighted values, all times exp(-max). */
struct soft {
    double max, sum, out[DIMS];
};

static void soft_add(struct soft *s, double score, const float *v, int n)
{
    double w = 1;

    if (score > s->max) {
        double shrink = exp(s->max - score);

        s->sum *= shrink;
        for (int d = 0; d < n; d++)
            s->out[d] *= shrink;
        s->max = score;
    } else {
        w = exp(score - s->max);
    }
    s->sum += w;
    for (int d = 0; d < n; d++)
        s->out[d] += w * v[d];
}

/* A piece of K or V of one token and head as f32. */
static void kv_read(float *dst, const struct mt_kv *kv, int layer, int32_t block, int v, int head,
                    int slot, int d0, int n)
{
    float scale = 0;

    if (mt_dtype_scaled(kv->s.type))
        memcpy(&scale, kv_scale_at(kv, layer, block, v, head, slot), sizeof(scale));
    num_decode_kv(dst, kv->s.type,
                  kv_at(kv, layer, block, v, head, slot) + d0 * (int64_t)mt_dtype_size(kv->s.type),
                  scale, n);
}

double mt_kv_score(const struct mt_kv *kv, int layer, int32_t block, int head, int slot,
                   const float *q)
{
    double sum = 0;
    float k[DIMS];

    for (int d0 = 0; d0 < kv->s.head_dim; d0 += DIMS) {
        int n = kv->s.head_dim - d0 < DIMS ? kv->s.head_dim - d0 : DIMS;

        kv_read(k, kv, layer, block, 0, head, slot, d0, n);
        for (int d = 0; d < n; d++)
            sum += (double)q[d0 + d] * k[d];
    }
    return sum / sqrt(kv->s.head_dim);
}

/* One query head over the cache. */
static void attend(const struct mt_kv *kv, int layer, const struct mt_run *r, int64_t i,
                   int kv_head, const float *q, const float *q_sink, float *out)
{
    const struct mt_kv_view *w = &r->view;
    int64_t first = w->sinks + view_first(r, i), end = view_end(r, i);
    float v[DIMS];

    for (int d0 = 0; d0 < kv->s.head_dim; d0 += DIMS) {
        int n = kv->s.head_dim - d0 < DIMS ? kv->s.head_dim - d0 : DIMS;
        struct soft s = {.max = -INFINITY};

        for (int64_t t = 0; t < end; t++) {
            bool sink = t < w->sinks;
            int32_t block;
            int slot;

            if (!sink && t < first)
                t = first;
            block = view_block(w, kv->s.block_tokens, t, &slot);
            kv_read(v, kv, layer, block, 1, kv_head, slot, d0, n);
            soft_add(&s, mt_kv_score(kv, layer, block, kv_head, slot, sink ? q_sink : q), v, n);
        }
        for (int d = 0; d < n; d++)
            out[d0 + d] = (float)(s.out[d] / s.sum);
    }
}

struct job {
    const struct mt_kv *kv;
    int layer;
    const struct mt_batch *b;
    struct mt_rows out, q, q_sink;
};

static void run(void *arg, int thread, int64_t begin, int64_t end)
{
    const struct job *j = arg;
    int hd = j->kv->s.head_dim, heads = j->q.width / hd, group = heads / j->kv->s.kv_heads;
    const struct mt_run *r = j->b->runs;

    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        int64_t row = t / heads;
        int64_t h = t % heads;
        const float *q = j->q.data + row * j->q.stride + h * hd, *q_sink = q;

        while (row >= r->row + r->n)
            r++;
        if (view_has_q_sink(&r->view))
            q_sink = j->q_sink.data + row * j->q_sink.stride + h * hd;
        attend(view_kv(r, j->kv), j->layer, r, r->index + row - r->row, (int)(h / group), q, q_sink,
               j->out.data + row * j->out.stride + h * hd);
    }
}

void mt_scalar_attention_kv(struct mt_backend *be, const struct mt_kv *kv, int layer,
                            const struct mt_batch *b, struct mt_rows out, struct mt_rows q,
                            struct mt_rows q_sink)
{
    struct job j = {kv, layer, b, out, q, q_sink};
    int64_t work = 0;

    for (int i = 0; i < b->n_runs; i++) {
        const struct mt_kv_view *w = &b->runs[i].view;
        int64_t seen = b->runs[i].index + b->runs[i].n;

        work += w->window < seen - w->sinks ? w->window + w->sinks : seen;
    }
    if (b->n_rows)
        mt_par(cpu_of(be), (int64_t)b->n_rows * (q.width / kv->s.head_dim), work * kv->s.head_dim,
               run, &j);
}

struct span_job {
    struct mt_rows out, q, k, v;
    int heads;
    const struct mt_span *spans;
    int n_spans;
    int64_t rows;
};

/* Row number `row` of all spans taken together, head h. */
static void span_attend(const struct span_job *j, const struct mt_span *span, int64_t row, int h)
{
    int hd = j->q.width / j->heads, c = h * hd;
    const float *q = j->q.data + row * j->q.stride + c;

    for (int d0 = 0; d0 < hd; d0 += DIMS) {
        int n = hd - d0 < DIMS ? hd - d0 : DIMS;
        struct soft s = {.max = -INFINITY};

        for (int64_t t = span->row; t < span->row + (int64_t)span->n; t++) {
            const float *k = j->k.data + t * j->k.stride + c;
            double sum = 0;

            for (int d = 0; d < hd; d++)
                sum += (double)q[d] * k[d];
            soft_add(&s, sum / sqrt(hd), j->v.data + t * j->v.stride + c + d0, n);
        }
        for (int d = 0; d < n; d++)
            j->out.data[row * j->out.stride + c + d0 + d] = (float)(s.out[d] / s.sum);
    }
}

static void span_run(void *arg, int thread, int64_t begin, int64_t end)
{
    const struct span_job *j = arg;
    int64_t first = 0; /* rows of the spans before s */
    const struct mt_span *s = j->spans;

    (void)thread;
    for (int64_t t = begin; t < end; t++) {
        int64_t i = t / j->heads;

        while (i - first >= s->n)
            first += s++->n;
        span_attend(j, s, s->row + i - first, (int)(t % j->heads));
    }
}

void mt_scalar_span_attention(struct mt_backend *be, struct mt_rows out, struct mt_rows q,
                              struct mt_rows k, struct mt_rows v, int heads,
                              const struct mt_span *spans, int n_spans)
{
    struct span_job j = {out, q, k, v, heads, spans, n_spans, 0};
    int64_t longest = 1;

    for (int s = 0; s < n_spans; s++) {
        j.rows += spans[s].n;
        longest = spans[s].n > longest ? spans[s].n : longest;
    }
    if (j.rows)
        mt_par(cpu_of(be), j.rows * heads, longest * (q.width / heads), span_run, &j);
}

void mt_scalar_attention(struct mt_ops *o)
{
    o->attention = mt_scalar_attention_kv;
    o->span_attention = mt_scalar_span_attention;
}
