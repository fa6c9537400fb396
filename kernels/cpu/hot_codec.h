/*
 * hot_codec.h: activations by themselves, and the level of a residual quantiser: squared distances
 * to the vectors of a codebook, LANES vectors at a time, LANES running sums and vsums' tree as in
 * hot_linear.h. The difference is squared, not taken apart into lengths and a product: what is
 * nearest is then decided without cancellation.
 */
struct act_job {
    struct mt_rows out, x;
    enum mt_act act;
};

FOLD void act_row(enum mt_act act, float *y, const float *x, int width)
{
    int i = 0;

    for (; i + LANES <= width; i += LANES)
        vstore(y + i, vact(act, vload(x + i)));
    if (i < width)
        vstore_part(y + i, vact(act, vload_part(x + i, width - i)), width - i);
}

static void act_run(void *arg, int thread, int64_t begin, int64_t end)
{
    const struct act_job *j = arg;

    (void)thread;
    for (int64_t r = begin; r < end; r++) {
        float *y = j->out.data + r * j->out.stride;
        const float *x = j->x.data + r * j->x.stride;

        if (j->act == MT_ACT_ELU)
            act_row(MT_ACT_ELU, y, x, j->x.width);
        else
            act_row(j->act, y, x, j->x.width);
    }
}

static void activate(struct mt_backend *be, struct mt_rows out, struct mt_rows x, enum mt_act act,
                     int n)
{
    struct act_job j = {out, x, act};

    mt_par(cpu_of(be), n, 8 * (int64_t)x.width, act_run, &j);
}

struct quantize_job {
    int32_t *ids;
    struct mt_rows x;
    const struct mt_mat *table;
};

/* Squared distances of x to rows o… of the table, past the last row those of the last again. */
static void distances(float d[LANES], const float *x, const struct mt_mat *t, int64_t o)
{
    const char *w[LANES];
    vf a[LANES];
    int64_t k = 0;

    for (int i = 0; i < LANES; i++) {
        w[i] = mat_row(t, o + i < t->rows ? o + i : t->rows - 1);
        a[i] = vsplat(0);
    }
    for (; k + LANES <= t->cols; k += LANES) {
        vf v = vload(x + k);

#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) {
            vf by = v - vload(w[i] + 4 * k);

            a[i] = vfma(by, by, a[i]);
        }
    }
    if (k < t->cols) {
        vf v = vload_part(x + k, t->cols - k);

        for (int i = 0; i < LANES; i++) {
            vf by = v - vfrom_part(MT_F32, w[i], k, t->cols - k);

            a[i] = vfma(by, by, a[i]);
        }
    }
    vstore(d, vsums(a));
}

/* A few rows of x share the table's way through the cache. */
static void quantize_run(void *arg, int thread, int64_t begin, int64_t end)
{
    const struct quantize_job *j = arg;
    float d[LANES], best[16];

    (void)thread;
    for (int64_t r0 = begin; r0 < end; r0 += 16) {
        int n = end - r0 < 16 ? (int)(end - r0) : 16;

        for (int r = 0; r < n; r++) {
            best[r] = INFINITY;
            j->ids[r0 + r] = 0;
        }
        for (int64_t o = 0; o < j->table->rows; o += LANES)
            for (int r = 0; r < n; r++) {
                distances(d, j->x.data + (r0 + r) * j->x.stride, j->table, o);
                for (int i = 0; i < LANES && o + i < j->table->rows; i++)
                    if (d[i] < best[r]) {
                        best[r] = d[i];
                        j->ids[r0 + r] = (int32_t)(o + i);
                    }
            }
        for (int r = 0; r < n; r++)
            mt_quantize_take(j->x.data + (r0 + r) * j->x.stride, j->table, j->ids[r0 + r]);
    }
}

static void quantize(struct mt_backend *be, int32_t *ids, struct mt_rows x,
                     const struct mt_mat *table, int n)
{
    struct quantize_job j = {ids, x, table};

    if (table->type != MT_F32) {
        mt_scalar_quantize(be, ids, x, table, n);
        return;
    }
    mt_par(cpu_of(be), n, 2 * table->rows * table->cols, quantize_run, &j);
}
