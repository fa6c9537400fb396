/*
 * scalar_rope.c: rotary positions and appending to the cache: the reference, which forms every
 * angle anew in f64, and the tables from which the fast tiers take the same numbers.
 */
#include "kernels/cpu/cpu.h"

double mt_rope_frequency(double base, int i, int head_dim)
{
    return pow(base, -2.0 * i / head_dim);
}

void mt_rope_frequencies(struct mt_cpu *c, double base, int head_dim)
{
    if (c->freq_base == base && c->freq_dim == head_dim)
        return;
    for (int i = 0; i < head_dim / 2; i++)
        c->freq[i] = mt_rope_frequency(base, i, head_dim);
    c->freq_base = base;
    c->freq_dim = head_dim;
}

const float *mt_rope_table(struct mt_cpu *c, int which, int64_t row, double base, int64_t pos,
                           int head_dim)
{
    struct mt_rope_row *have = &c->rope_row[which][row];
    float *table = c->rope[which] + row * c->head_dim;
    int half = head_dim / 2;

    if (have->head_dim == head_dim && have->pos == pos && have->base == base)
        return table;
    for (int i = 0; i < half; i++) {
        double angle = (double)pos * c->freq[i];

        table[i] = (float)cos(angle);
        table[half + i] = (float)sin(angle);
    }
    *have = (struct mt_rope_row){base, pos, head_dim};
    return table;
}

void mt_rope_norms(struct mt_backend *be, const struct mt_rope *rope, struct mt_rows q,
                   struct mt_rows k, int n)
{
    if (rope->q_norm)
        be->ops->rms_norm(be, q, q, rope->q_norm, rope->eps, n);
    if (rope->k_norm)
        be->ops->rms_norm(be, k, k, rope->k_norm, rope->eps, n);
}

static void rotate(float *dst, const float *src, struct mt_rope rope, int64_t pos, int heads,
                   int head_dim)
{
    bool pairs = rope.kind == MT_ROPE_PAIRS;
    int step = pairs ? 2 : 1, mate = pairs ? 1 : head_dim / 2;

    for (int i = 0; i < head_dim / 2; i++) {
        double angle = 0;
        if (rope.kind != MT_ROPE_NONE)
            angle = (double)pos * mt_rope_frequency(rope.base, i, head_dim);
        float c = (float)cos(angle), s = (float)sin(angle);

        for (int h = 0; h < heads; h++) {
            int at = h * head_dim + i * step;
            float a = src[at], b = src[at + mate];

            dst[at] = a * c - b * s;
            dst[at + mate] = b * c + a * s;
        }
    }
}

static void append(const struct mt_kv *kv, int layer, int32_t block, int slot, int v,
                   const float *x)
{
    for (int h = 0; h < kv->s.kv_heads; h++) {
        float scale = 0;

        num_encode(kv_at(kv, layer, block, v, h, slot), &scale, kv->s.type,
                   x + (int64_t)h * kv->s.head_dim, kv->s.head_dim);
        if (mt_dtype_scaled(kv->s.type))
            memcpy(kv_scale_at(kv, layer, block, v, h, slot), &scale, sizeof(scale));
    }
}

static void rope_append(struct mt_backend *be, struct mt_kv *kv, int layer, struct mt_rope rope,
                        const struct mt_batch *b, struct mt_rows q, struct mt_rows q_sink,
                        struct mt_rows k, struct mt_rows v)
{
    int hd = kv->s.head_dim, heads = q.width / hd;

    mt_rope_norms(be, &rope, q, k, b->n_rows);
    for (int i = 0; i < b->n_runs; i++) {
        const struct mt_run *run = &b->runs[i];

        for (int64_t r = 0; r < run->n; r++) {
            int64_t row = run->row + r, pos = run->index + r;
            float *qr = q.data + row * q.stride, *kr = k.data + row * k.stride;
            int64_t at = pos + run->view.moved;
            int slot;
            int32_t block = view_block(&run->view, kv->s.block_tokens, pos, &slot);

            if (view_has_q_sink(&run->view))
                rotate(q_sink.data + row * q_sink.stride, qr, rope,
                       view_sink_pos(&run->view, pos) + run->view.moved, heads, hd);
            rotate(qr, qr, rope, at, heads, hd);
            rotate(kr, kr, rope, at, kv->s.kv_heads, hd);
            if (pos < run->view.sinks_held)
                continue;
            append(view_kv(run, kv), layer, block, slot, 0, kr);
            append(view_kv(run, kv), layer, block, slot, 1, v.data + row * v.stride);
        }
    }
}

void mt_scalar_rope(struct mt_ops *o)
{
    o->rope_append = rope_append;
}
