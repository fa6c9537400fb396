/*
 * bench_kernels.c: how fast the hot operations are: linear per tier, storage type and number of
 * rows, attention and rope_append per tier and KV type; a layer of experts. One NDJSON object a
 * measurement: the median of several runs, and the ratio to scalar in the same process (absent
 * where scalar would take too long). The same weights come again in each run: of the shapes only 3584 x 18944 is beyond a cache
 * of 32 MiB.
 *
 *     bench_kernels [THREADS]      default: all; --quick for the first shape, without scalar
 */
#include "kernels/kernels.h"

#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define RUNS 5

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double now(void)
{
    static struct mt_clock c;

    if (!c.now_ns)
        c = mt_clock_real();
    return (double)c.now_ns(&c) / 1e9;
}

/* Seconds of one call: the median of RUNS, each repeated until it takes 20 ms; one to warm up. */
static double seconds(void (*fn)(void *), void *arg)
{
    double t[RUNS], start;
    int repeat = 1;

    for (;;) {
        start = now();
        for (int i = 0; i < repeat; i++)
            fn(arg);
        if (now() - start > 0.02)
            break;
        repeat *= 2;
    }
    for (int r = 0; r < RUNS; r++) {
        start = now();
        for (int i = 0; i < repeat; i++)
            fn(arg);
        t[r] = (now() - start) / repeat;
    }
    qsort(t, RUNS, sizeof(t[0]), by_value);
    return t[RUNS / 2];
}

static float *noise(size_t n)
{
    float *f = mt_alloc(n, sizeof(*f));

    if (!f)
        exit(MT_EXIT_FAILED);
    for (size_t i = 0; i < n; i++)
        f[i] = (float)(mt_unit(mt_mix64(i)) - 0.5);
    return f;
}

/* A failure ends the program. */
static void need(int rc, const char *what)
{
    if (rc < 0) {
        fprintf(stderr, "bench_kernels: %s: %s\n", what, strerror(-rc));
        exit(MT_EXIT_FAILED);
    }
}

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

static double bench_linear(enum mt_cpu_tier tier, int threads, enum mt_dtype type, int in, int out,
                           int n, double scalar_s)
{
    struct linear l = {.n = n};
    size_t cells = (size_t)in * (size_t)out;
    void *w = mt_alloc(cells, mt_dtype_size(type));
    float *x = noise((size_t)in * (size_t)n);
    double s, bytes = (double)cells * (double)mt_dtype_size(type), flops = 2.0 * (double)cells * n;
    json_t *o;

    need(mt_backend_cpu(&l.be, tier, threads, NULL), "backend");
    if (!w)
        exit(MT_EXIT_FAILED);
    /* bytes 0x2c..: small numbers in all three types */
    memset(w, 0x2c, (size_t)bytes);
    need(l.be->ops->mat_new(l.be, &l.m, &(struct mt_bytes){w, type, out, in, false}), "mat");
    need(l.be->ops->rows_new(l.be, &l.x, n, in), "rows");
    need(l.be->ops->rows_new(l.be, &l.y, n, out), "rows");
    l.be->ops->rows_put(l.be, l.x, x, n);
    s = seconds(linear_once, &l);
    o = json_pack("{ss,ss,si,ss,si,si,si}", "bench", "linear", "tier", mt_cpu_tier_name(tier),
                  "threads", threads, "type", mt_dtype_name(type), "in", in, "out", out, "rows", n);
    mt_json_set_real(o, "ms", s * 1e3);
    mt_json_set_real(o, "gb_per_s", bytes / s / 1e9);
    mt_json_set_real(o, "gflop_per_s", flops / s / 1e9);
    mt_json_set_real(o, "times_scalar", tier == MT_CPU_SCALAR ? 1 : scalar_s / s);
    mt_json_line(stdout, o);
    l.be->ops->mat_free(l.be, l.m);
    l.be->ops->rows_free(l.be, &l.x);
    l.be->ops->rows_free(l.be, &l.y);
    l.be->ops->free(l.be);
    free(w);
    free(x);
    return s;
}

/* Qwen3-Omni's layer of experts, each row with a choice of its own: what is read, and how fast. */
enum { EXPERTS = 128, TOP = 8, WIDTH = 2048, INNER = 768 };

struct mixture {
    struct mt_backend *be;
    struct mt_rows x, y, logits, scratch;
    struct mt_experts *ex;
    int n;
};

static void mixture_once(void *arg)
{
    struct mixture *m = arg;

    m->be->ops->experts(m->be, m->y, m->x, m->logits, m->ex, MT_NO_ROWS, m->scratch, m->n);
}

/* How many experts the rows need between them. */
static int experts_needed(const float *logits, int n)
{
    bool need[EXPERTS] = {false};
    int count = 0;

    for (int r = 0; r < n; r++) {
        const float *l = logits + (ptrdiff_t)r * EXPERTS;

        for (int e = 0; e < EXPERTS; e++) {
            int higher = 0;

            for (int o = 0; o < EXPERTS; o++)
                higher += l[o] > l[e];
            need[e] |= higher < TOP;
        }
    }
    for (int e = 0; e < EXPERTS; e++)
        count += need[e];
    return count;
}

static void bench_experts(enum mt_cpu_tier tier, int threads)
{
    static const int rows[] = {1, 8, 64};
    size_t cells = (size_t)WIDTH * INNER, bytes = cells * 2;
    char *w = mt_alloc(3 * EXPERTS, bytes);
    float *x = noise((size_t)64 * WIDTH), *logits = noise((size_t)64 * EXPERTS);
    struct mt_mat *mat[3][EXPERTS];
    struct mixture m = {0};

    if (!w)
        exit(MT_EXIT_FAILED);
    memset(w, 0x2c, 3 * EXPERTS * bytes);
    need(mt_backend_cpu(&m.be, tier, threads, NULL), "backend");
    for (int i = 0; i < 3 * EXPERTS; i++) {
        struct mt_bytes b = {w + (size_t)i * bytes, MT_BF16, i < 2 * EXPERTS ? INNER : WIDTH,
                             i < 2 * EXPERTS ? WIDTH : INNER, false};
        need(m.be->ops->mat_new(m.be, &mat[i / EXPERTS][i % EXPERTS], &b), "mat");
    }
    need(m.be->ops->experts_new(
             m.be, &m.ex, &(struct mt_expert_set){EXPERTS, TOP, true, mat[0], mat[1], mat[2]}, 64),
         "experts");
    need(m.be->ops->rows_new(m.be, &m.x, 64, WIDTH), "rows");
    need(m.be->ops->rows_new(m.be, &m.y, 64, WIDTH), "rows");
    need(m.be->ops->rows_new(m.be, &m.logits, 64, EXPERTS), "rows");
    need(m.be->ops->rows_new(m.be, &m.scratch, 64 * TOP, WIDTH + 2 * INNER), "rows");
    m.be->ops->rows_put(m.be, m.x, x, 64);
    m.be->ops->rows_put(m.be, m.logits, logits, 64);
    for (unsigned i = 0; i < MT_COUNT(rows); i++) {
        int read = experts_needed(logits, m.n = rows[i]);
        double s = seconds(mixture_once, &m);
        json_t *o = json_pack("{ss,ss,si,ss,si,si,si,si}", "bench", "experts", "tier",
                              mt_cpu_tier_name(tier), "threads", threads, "type", "bf16", "experts",
                              EXPERTS, "top", TOP, "rows", m.n, "read", read);
        mt_json_set_real(o, "ms", s * 1e3);
        mt_json_set_real(o, "ms_row", s * 1e3 / m.n);
        mt_json_set_real(o, "gb_per_s", 3.0 * read * (double)bytes / s / 1e9);
        mt_json_set_real(o, "gflop_per_s", 6.0 * m.n * TOP * (double)cells / s / 1e9);
        mt_json_line(stdout, o);
    }
    m.be->ops->experts_free(m.be, m.ex);
    for (int i = 0; i < 3 * EXPERTS; i++)
        m.be->ops->mat_free(m.be, mat[i / EXPERTS][i % EXPERTS]);
    m.be->ops->rows_free(m.be, &m.x);
    m.be->ops->rows_free(m.be, &m.y);
    m.be->ops->rows_free(m.be, &m.logits);
    m.be->ops->rows_free(m.be, &m.scratch);
    m.be->ops->free(m.be);
    free(w);
    free(x);
    free(logits);
}

enum { HEADS = 28, KV_HEADS = 4, HEAD_DIM = 128, BLOCK = 16 };

struct att {
    struct mt_backend *be;
    struct mt_kv *kv;
    struct mt_rows q, q_sink, k, v, out;
    struct mt_run runs[64];
    struct mt_batch b;
};

static void att_once(void *arg)
{
    struct att *a = arg;

    a->be->ops->attention(a->be, a->kv, 0, &a->b, a->out, a->q, a->q_sink);
}

static void rope_once(void *arg)
{
    struct att *a = arg;

    a->be->ops->rope_append(a->be, a->kv, 0, (struct mt_rope){MT_ROPE_HALVES, 1e6}, &a->b, a->q,
                            a->q_sink, a->k, a->v);
}

/* `sessions` windows of `window` tokens behind 4 sinks, each with `n` rows in the step. */
static void bench_attention(enum mt_cpu_tier tier, int threads, enum mt_dtype type, int sessions,
                            int n, int window, double *scalar_s)
{
    struct mt_kv_shape shape = {1, KV_HEADS, HEAD_DIM, BLOCK, type};
    int ring = (window + n - 1 + BLOCK - 1) / BLOCK + 1, rows = sessions * n, each = ring + 1;
    struct att a = {.b = {rows, sessions, NULL}};
    int32_t *blocks = mt_alloc((size_t)sessions * (size_t)each, sizeof(*blocks));
    float *noisy = noise((size_t)rows * HEADS * HEAD_DIM);
    double s[2];

    if (!blocks)
        exit(MT_EXIT_FAILED);
    need(mt_backend_cpu(&a.be, tier, threads, NULL), "backend");
    need(a.be->ops->kv_new(a.be, &a.kv, &shape, (int64_t)sessions * each), "kv");
    need(a.be->ops->rows_new(a.be, &a.q, rows, HEADS * HEAD_DIM), "rows");
    need(a.be->ops->rows_new(a.be, &a.q_sink, rows, HEADS * HEAD_DIM), "rows");
    need(a.be->ops->rows_new(a.be, &a.out, rows, HEADS * HEAD_DIM), "rows");
    need(a.be->ops->rows_new(a.be, &a.k, rows, KV_HEADS * HEAD_DIM), "rows");
    need(a.be->ops->rows_new(a.be, &a.v, rows, KV_HEADS * HEAD_DIM), "rows");
    a.be->ops->rows_put(a.be, a.q, noisy, rows);
    a.be->ops->rows_put(a.be, a.k, noisy, rows);
    a.be->ops->rows_put(a.be, a.v, noisy, rows);
    for (int i = 0; i < sessions * each; i++)
        blocks[i] = i;
    for (int i = 0; i < sessions; i++)
        a.runs[i] = (struct mt_run){i * n,
                                    n,
                                    10L * window,
                                    {.blocks = blocks + (ptrdiff_t)i * each,
                                     .sinks = 4,
                                     .ring_blocks = ring,
                                     .window = window,
                                     .sink_reach = window + 3}};
    a.b.runs = a.runs;
    for (int i = 0; i < ring; i++) { /* all of the ring is touched */
        rope_once(&a);
        for (int r = 0; r < sessions; r++)
            a.runs[r].index += BLOCK;
    }
    s[0] = seconds(att_once, &a);
    s[1] = seconds(rope_once, &a);
    for (int i = 0; i < 2; i++) {
        json_t *o =
            json_pack("{ss,ss,si,ss,si,si,si}", "bench", i ? "rope_append" : "attention", "tier",
                      mt_cpu_tier_name(tier), "threads", threads, "type", mt_dtype_name(type),
                      "sessions", sessions, "rows", n, "window", window);
        double tokens = (double)sessions * (window + 4) * KV_HEADS * HEAD_DIM * 2;

        if (tier == MT_CPU_SCALAR)
            scalar_s[i] = s[i];
        mt_json_set_real(o, "ms", s[i] * 1e3);
        if (!i) {
            mt_json_set_real(o, "gb_per_s", tokens * (double)mt_dtype_size(type) / s[i] / 1e9);
            mt_json_set_real(o, "gflop_per_s",
                             4.0 * rows * (window + 4) * HEADS * HEAD_DIM / s[i] / 1e9);
        }
        mt_json_set_real(o, "times_scalar", scalar_s[i] / s[i]);
        mt_json_line(stdout, o);
    }
    a.be->ops->kv_free(a.be, a.kv);
    a.be->ops->rows_free(a.be, &a.q);
    a.be->ops->rows_free(a.be, &a.q_sink);
    a.be->ops->rows_free(a.be, &a.k);
    a.be->ops->rows_free(a.be, &a.v);
    a.be->ops->rows_free(a.be, &a.out);
    a.be->ops->free(a.be);
    free(blocks);
    free(noisy);
}

int main(int argc, char **argv)
{
    static const int rows[] = {1, 8, 64};
    static const int shapes[][2] = {{3584, 3584}, {3584, 18944}, {1280, 5120}};
    bool quick = argc > 1 && !strcmp(argv[1], "--quick");
    int64_t threads = 0;
    enum mt_cpu_tier best;
    struct mt_err e = {0};

    if (mt_cpu_tier(&best, &e) < 0 ||
        (argc > 1 && !quick && mt_parse_i64(argv[1], 0, 256, &threads) < 0)) {
        fprintf(stderr, "bench_kernels: %s\n",
                e.code ? e.text : "usage: bench_kernels [THREADS|--quick]");
        return MT_EXIT_USAGE;
    }
    if (!threads) {
        cpu_set_t set;

        threads = sched_getaffinity(0, sizeof(set), &set) ? 1 : CPU_COUNT(&set);
        threads = threads > 256 ? 256 : threads;
    }
    for (unsigned s = 0; s < (quick ? 1 : MT_COUNT(shapes)); s++) {
        for (enum mt_dtype d = MT_F32; d <= MT_BF16; d++) {
            for (unsigned r = 0; r < MT_COUNT(rows); r++) {
                double scalar = NAN; /* not measured: the ratio is left out */

                for (enum mt_cpu_tier t = MT_CPU_SCALAR; t <= best; t++) {
                    if (t == MT_CPU_SCALAR && (shapes[s][1] > 10000 || quick))
                        continue; /* seconds a call, and no other ratio than the smaller shape's */
                    double took = bench_linear(t, (int)threads, d, shapes[s][0], shapes[s][1],
                                               rows[r], scalar);

                    scalar = t == MT_CPU_SCALAR ? took : scalar;
                }
            }
        }
    }
    bench_experts(best, (int)threads);
    for (enum mt_dtype d = MT_F32; d <= MT_INT8; d++) {
        static const int steps[][2] = {{16, 1}, {1, 50}}; /* decoding together, a frame's prefill */

        for (unsigned i = 0; i < MT_COUNT(steps); i++) {
            double scalar[2] = {NAN, NAN};

            for (enum mt_cpu_tier t = quick ? best : MT_CPU_SCALAR; t <= best; t++)
                bench_attention(t, (int)threads, d, steps[i][0], steps[i][1], 1024, scalar);
        }
    }
    return mt_close_stdout(MT_EXIT_OK);
}
