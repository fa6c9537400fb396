/*
 * hot_rows.h: operations of one row each, split over threads by rows: norms, gated, rotary
 * positions and appending. The rotation is elementwise and unfused, so q, k and the cache's bytes
 * are those of the scalar tier.
 */
struct rows_job {
    struct mt_cpu *c;
    struct mt_rows out, x, up;
    const struct mt_mat *w, *b;
    float eps;
};

static void rms_run(void *arg, int thread, int64_t begin, int64_t end)
{
    const struct rows_job *j = arg;
    int width = (int)j->w->cols, pieces = j->x.width / width;

    (void)thread;
    for (int64_t p = begin; p < end; p++) {
        int64_t r = p / pieces, at = p % pieces * width;
        const float *x = j->x.data + r * j->x.stride + at, *w = j->w->vec;
        float *y = j->out.data + r * j->out.stride + at, scale;
        vf sum = vsplat(0), v;
        int i = 0;

        for (; i + LANES <= width; i += LANES) {
            v = vload(x + i);
            sum = vfma(v, v, sum);
        }
        v = vload_part(x + i, width - i);
        sum = vfma(v, v, sum);
        scale = 1 / sqrtf(vsum(sum) / (float)width + j->eps);
        for (i = 0; i + LANES <= width; i += LANES)
            vstore(y + i, vload(x + i) * scale * vload(w + i));
        v = vload_part(x + i, width - i) * scale * vload_part(w + i, width - i);
        vstore_part(y + i, v, width - i);
    }
}

static void rms_norm(struct mt_backend *be, struct mt_rows out, struct mt_rows x,
                     const struct mt_mat *w, float eps, int n)
{
    struct rows_job j = {cpu_of(be), out, x, MT_NO_ROWS, w, NULL, eps};

    mt_par(j.c, n * (x.width / w->cols), w->cols, rms_run, &j);
}

static void layer_run(void *arg, int thread, int64_t begin, int64_t end)
{
    const struct rows_job *j = arg;
    int width = j->x.width;

    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        const float *x = j->x.data + r * j->x.stride, *w = j->w->vec, *b = j->b->vec;
        float *y = j->out.data + r * j->out.stride, mean, scale;
        vf sum = vsplat(0), v;
        int i = 0;

        for (; i + LANES <= width; i += LANES)
            sum += vload(x + i);
        sum += vload_part(x + i, width - i);
        mean = vsum(sum) / (float)width;
        sum = vsplat(0);
        for (i = 0; i + LANES <= width; i += LANES) {
            v = vload(x + i) - mean;
            sum = vfma(v, v, sum);
        }
        for (int t = 0; t < width - i; t++) /* the zeros behind the end would count */
            sum[t] += (x[i + t] - mean) * (x[i + t] - mean);
        scale = 1 / sqrtf(vsum(sum) / (float)width + j->eps);
        for (i = 0; i + LANES <= width; i += LANES)
            vstore(y + i, (vload(x + i) - mean) * scale * vload(w + i) + vload(b + i));
        v = (vload_part(x + i, width - i) - mean) * scale * vload_part(w + i, width - i) +
            vload_part(b + i, width - i);
        vstore_part(y + i, v, width - i);
    }
}

static void layer_norm(struct mt_backend *be, struct mt_rows out, struct mt_rows x,
                       const struct mt_mat *w, const struct mt_mat *b, float eps, int n)
{
    struct rows_job j = {cpu_of(be), out, x, MT_NO_ROWS, w, b, eps};

    mt_par(j.c, n, 2 * (int64_t)x.width, layer_run, &j);
}

static void gated_run(void *arg, int thread, int64_t begin, int64_t end)
{
    const struct rows_job *j = arg;
    int width = j->x.width;

    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        const float *g = j->x.data + r * j->x.stride, *u = j->up.data + r * j->up.stride;
        float *y = j->out.data + r * j->out.stride;
        int i = 0;

        for (; i + LANES <= width; i += LANES)
            vstore(y + i, vsilu(vload(g + i)) * vload(u + i));
        vstore_part(y + i, vsilu(vload_part(g + i, width - i)) * vload_part(u + i, width - i),
                    width - i);
    }
}

static void gated(struct mt_backend *be, struct mt_rows out, struct mt_rows gate, struct mt_rows up,
                  int n)
{
    struct rows_job j = {cpu_of(be), out, gate, up, NULL, NULL, 0};

    mt_par(j.c, n, 8 * (int64_t)gate.width, gated_run, &j);
}

/* ---- rotary positions and append ---- */

struct rope_job {
    struct mt_cpu *c;
    struct mt_kv *kv;
    int layer;
    struct mt_rope rope;
    const struct mt_batch *b;
    struct mt_rows q, q_sink, k, v;
};

static void rotate_halves(float *dst, const float *src, const float *table, int heads, int hd)
{
    int half = hd / 2;

    for (int h = 0; h < heads; h++, src += hd, dst += hd) {
        for (int i = 0; i < half; i++) {
            float a = src[i], b = src[half + i], c = table[i], s = table[half + i];

            dst[i] = a * c - b * s;
            dst[half + i] = b * c + a * s;
        }
    }
}

static void rotate_pairs(float *dst, const float *src, const float *table, int heads, int hd)
{
    int half = hd / 2;

    for (int h = 0; h < heads; h++, src += hd, dst += hd) {
        for (int i = 0; i < half; i++) {
            float a = src[2 * i], b = src[2 * i + 1], c = table[i], s = table[half + i];

            dst[2 * i] = a * c - b * s;
            dst[2 * i + 1] = b * c + a * s;
        }
    }
}

/* which: 0 for q and k, 1 for q_sink, as in mt_rope_table. */
static void rotate(const struct rope_job *j, float *dst, const float *src, int64_t row, int which,
                   int64_t pos, int heads)
{
    int hd = j->kv->s.head_dim;

    if (j->rope.kind == MT_ROPE_NONE) {
        memmove(dst, src, (size_t)heads * (size_t)hd * sizeof(float));
        return;
    }
    const float *table = mt_rope_table(j->c, which, row, j->rope.base, pos, hd);
    if (j->rope.kind == MT_ROPE_PAIRS)
        rotate_pairs(dst, src, table, heads, hd);
    else
        rotate_halves(dst, src, table, heads, hd);
}

static void append(const struct mt_kv *kv, int layer, int32_t block, int slot, int v,
                   const float *x)
{
    int hd = kv->s.head_dim;

    for (int h = 0; h < kv->s.kv_heads; h++, x += hd) {
        char *dst = kv_at(kv, layer, block, v, h, slot);
        float scale = 0;
        int d = 0;

#if LANES > 4
        if (kv->s.type == MT_F16)
            for (; d + 8 <= hd; d += 8)
                _mm_storeu_si128(
                    (void *)(dst + 2 * (int64_t)d),
                    _mm256_cvtps_ph(_mm256_loadu_ps(x + d), _MM_FROUND_TO_NEAREST_INT));
#endif
        num_encode(dst + 2 * (int64_t)d, &scale, kv->s.type, x + d, hd - d);
        if (mt_dtype_scaled(kv->s.type))
            memcpy(kv_scale_at(kv, layer, block, v, h, slot), &scale, sizeof(scale));
    }
}

static void rope_run(void *arg, int thread, int64_t begin, int64_t end)
{
    const struct rope_job *j = arg;
    const struct mt_run *run = j->b->runs;
    int heads = j->q.width / j->kv->s.head_dim;

    (void)thread;
    for (int64_t row = begin; row < end; row++) {
        float *q = j->q.data + row * j->q.stride, *k = j->k.data + row * j->k.stride;
        const struct mt_kv *kv;
        int32_t block;
        int64_t pos;
        int slot;

        while (row >= run->row + run->n)
            run++;
        pos = run->index + row - run->row;
        if (view_has_q_sink(&run->view)) {
            int64_t sink_pos = view_sink_pos(&run->view, pos);

            rotate(j, j->q_sink.data + row * j->q_sink.stride, q, row, sink_pos != pos,
                   sink_pos + run->view.moved, heads);
        }
        rotate(j, q, q, row, 0, pos + run->view.moved, heads);
        rotate(j, k, k, row, 0, pos + run->view.moved, j->kv->s.kv_heads);
        if (pos < run->view.sinks_held)
            continue;
        kv = view_kv(run, j->kv);
        block = view_block(&run->view, kv->s.block_tokens, pos, &slot);
        append(kv, j->layer, block, slot, 0, k);
        append(kv, j->layer, block, slot, 1, j->v.data + row * j->v.stride);
    }
}

static void rope_append(struct mt_backend *be, struct mt_kv *kv, int layer, struct mt_rope rope,
                        const struct mt_batch *b, struct mt_rows q, struct mt_rows q_sink,
                        struct mt_rows k, struct mt_rows v)
{
    struct rope_job j = {cpu_of(be), kv, layer, rope, b, q, q_sink, k, v};

    mt_rope_norms(be, &rope, q, k, b->n_rows);
    mt_rope_frequencies(j.c, rope.base, kv->s.head_dim);
    mt_par(j.c, b->n_rows, 2 * (int64_t)q.width + 4 * (int64_t)k.width, rope_run, &j);
}
