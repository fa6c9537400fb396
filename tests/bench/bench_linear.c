/*
 * bench_linear.c: linear of every weight type over a matrix that no cache holds, for one row (bound
 * by reading it), 8, 32 and 128 (bound by the products), with one thread and with all: as shares of
 * what the machine gives at the same time (peak.h). MT_CPU caps the tier.
 *
 *     bench_linear [THREADS]
 */
#include "tests/bench/peak.h"

enum { IN = 3584, MOST = 128, BYTES = 128 << 20 };

struct linear {
    struct mt_backend *be;
    struct mt_rows x, y;
    struct mt_mat *m;
    int n;
};

static void linear_once(void *arg)
{
    struct linear *l = arg;

    l->be->ops->linear(l->be, l->y, l->x, l->m, NULL, MT_ACT_NONE, MT_NO_ROWS, l->n);
}

static void bench_type(const struct peak *p, int threads, enum mt_dtype type)
{
    static const int rows[] = {1, 8, 32, MOST};
    int64_t row = mt_dtype_row_bytes(type, IN), out = BYTES / row;
    unsigned char *w = bench_alloc((size_t)out, (size_t)row);
    float *x = bench_alloc((size_t)MOST * IN, sizeof(*x));
    struct linear l = {.be = p->be};

    memset(w, 0x2c, (size_t)(out * row)); /* small numbers in every type, scales too */
    for (int64_t i = 0; i < (int64_t)MOST * IN; i++)
        x[i] = (float)(mt_unit(mt_mix64((uint64_t)i)) - 0.5);
    bench_need(l.be->ops->mat_new(l.be, &l.m, &(struct mt_bytes){w, type, out, IN, false}),
               "matrix");
    bench_need(l.be->ops->rows_new(l.be, &l.x, MOST, IN), "rows");
    bench_need(l.be->ops->rows_new(l.be, &l.y, MOST, (int)out), "rows");
    l.be->ops->rows_put(l.be, l.x, x, MOST);
    for (unsigned i = 0; i < MT_COUNT(rows); i++) {
        struct bench_row r = {.op = "linear",
                              .type = mt_dtype_name(type),
                              .rows = l.n = rows[i],
                              .threads = threads,
                              .bytes = (double)(out * row),
                              .ops = 2.0 * IN * (double)out * rows[i],
                              .int8 = type > MT_FP8};

        bench_measure(p, &r, linear_once, &l);
    }
    l.be->ops->mat_free(l.be, l.m);
    l.be->ops->rows_free(l.be, &l.x);
    l.be->ops->rows_free(l.be, &l.y);
    free(w);
    free(x);
}

int main(int argc, char **argv)
{
    static const enum mt_dtype types[] = {MT_Q4_0, MT_Q4_1, MT_Q5_0, MT_Q5_1, MT_Q8_0, MT_Q4_K,
                                          MT_Q5_K, MT_Q6_K, MT_BF16, MT_F16,  MT_F32};
    int64_t count[2] = {1, bench_threads()};
    enum mt_cpu_tier tier;
    struct mt_err e = {0};

    if (argc > 2 || (argc > 1 && mt_parse_i64(argv[1], 1, 256, &count[0]) < 0) ||
        mt_cpu_tier(&tier, &e) < 0) {
        fprintf(stderr, "bench_linear: %s\n", e.code ? e.text : "usage: bench_linear [THREADS]");
        return MT_EXIT_USAGE;
    }
    for (int k = 0; k < (argc > 1 || count[1] == 1 ? 1 : 2); k++) {
        struct peak p;

        peak_open(&p, tier, (int)count[k]);
        json_t *o = json_pack("{ss,ss,sI}", "bench", "peak", "tier", mt_cpu_tier_name(tier),
                              "threads", (json_int_t)count[k]);
        double read = peak_bytes(&p), int8 = peak_ops(&p, true), f32 = peak_ops(&p, false);
        mt_json_set_real(o, "read_gb_per_s", read / 1e9);
        mt_json_set_real(o, "int8_gop_per_s", int8 / 1e9);
        mt_json_set_real(o, "f32_gop_per_s", f32 / 1e9);
        bench_line(o, "%s, %lld threads: %.1f GB/s read; from registers int8 %.0f, f32 %.0f Gop/s",
                   mt_cpu_tier_name(tier), (long long)count[k], read / 1e9, int8 / 1e9, f32 / 1e9);
        for (unsigned i = 0; i < MT_COUNT(types); i++)
            bench_type(&p, (int)count[k], types[i]);
        peak_close(&p);
    }
    return mt_close_stdout(MT_EXIT_OK);
}
