/*
 * peak.h: what this machine gives at most, measured beside the operations and with as many threads:
 * bytes read from memory, products in int8 and in f32 from registers. The loops of the latter are
 * assembly, so that they are what they say: 12 independent sums and nothing but the tier's own
 * multiply-add (objdump -d --disassemble=peak_dot512 build/tests/bench/bench_linear.o).
 */
#ifndef MT_BENCH_PEAK_H
#define MT_BENCH_PEAK_H

#include <pthread.h>

#include "kernels/cpu/cpu.h"
#include "tests/bench/bench.h"

struct peak {
    struct mt_backend *be;
    enum mt_cpu_tier tier;
    void *map;
};

typedef uint64_t peak_line __attribute__((vector_size(64)));
struct peak_read {
    const peak_line *at;
    peak_line sum[256]; /* by thread */
};
enum {
    PEAK_LINES = 2 << 20, /* of 64 bytes: four times a large cache */
    PEAK_PIECE = 64,      /* lines an item */
    PEAK_ROUNDS = 256,    /* of an item */
    PEAK_ITEMS = 512,
    PEAK_SUMS = 12,
    PEAK_TRIES = 3 /* of which the best counts, as a peak does */
};

static void peak_lines(void *arg, int thread, int64_t begin, int64_t end)
{
    struct peak_read *r = arg;
    peak_line a = {0}, b = {0};

    for (int64_t i = begin * PEAK_PIECE; i < end * PEAK_PIECE; i += 2) {
        __builtin_prefetch(r->at + i + 64); /* alone a stream gets what the latency allows */
        __builtin_prefetch(r->at + i + 65);
        a ^= r->at[i];
        b ^= r->at[i + 1];
    }
    r->sum[thread] ^= a ^ b;
}

#ifdef __x86_64__
#define PEAK_LOOP(name, one)                                                                       \
    static void name(void *arg, int thread, int64_t begin, int64_t end)                            \
    {                                                                                              \
        (void)arg;                                                                                 \
        (void)thread;                                                                              \
        for (int64_t i = begin; i < end; i++) {                                                    \
            int64_t n = PEAK_ROUNDS;                                                               \
            __asm__ volatile("vpxor %%xmm12, %%xmm12, %%xmm12\n"                                   \
                             "1:\n.irp r,0,1,2,3,4,5,6,7,8,9,10,11\n" one                          \
                             "\n.endr\ndec %0\njnz 1b\nvzeroupper\n"                               \
                             : "+r"(n)                                                             \
                             :                                                                     \
                             : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6",       \
                               "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13");        \
        }                                                                                          \
    }
/* Both sources are zeros: no sum can become slow. */
PEAK_LOOP(peak_dot512, "vpdpbusd %%zmm12, %%zmm12, %%zmm\\r")
PEAK_LOOP(peak_dot256, "%{vex%} vpdpbusd %%ymm12, %%ymm12, %%ymm\\r")
PEAK_LOOP(peak_pairs512, "vpmaddubsw %%zmm12, %%zmm12, %%zmm13\n"
                         "vpaddw %%zmm13, %%zmm\\r, %%zmm\\r")
PEAK_LOOP(peak_pairs256, "vpmaddubsw %%ymm12, %%ymm12, %%ymm13\n"
                         "vpaddw %%ymm13, %%ymm\\r, %%ymm\\r")
PEAK_LOOP(peak_fma512, "vfmadd231ps %%zmm12, %%zmm12, %%zmm\\r")
PEAK_LOOP(peak_fma256, "vfmadd231ps %%ymm12, %%ymm12, %%ymm\\r")
#endif

/* Bytes a second from memory, all threads together. */
static double peak_bytes(const struct peak *p)
{
    static struct peak_read r;
    double best = 0;

    r.at = p->map;
    for (int i = 0; i < PEAK_TRIES; i++) {
        double t = bench_now(), rate;

        mt_par(cpu_of(p->be), PEAK_LINES / PEAK_PIECE, 1 << 20, peak_lines, &r);
        rate = PEAK_LINES * 64.0 / (bench_now() - t);
        best = rate > best ? rate : best;
    }
    return best;
}

struct peak_thread {
    pthread_t id;
    mt_par_fn *fn;
    pthread_barrier_t *start;
    double rate; /* items a second of its CPU time */
};

static void *peak_run(void *arg)
{
    struct peak_thread *w = arg;
    struct timespec a, b;

    pthread_barrier_wait(w->start);
    for (int i = 0; i < PEAK_TRIES; i++) {
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
        w->fn(NULL, 0, 0, PEAK_ITEMS);
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
        double t = (double)(b.tv_sec - a.tv_sec) + (double)(b.tv_nsec - a.tv_nsec) / 1e9;
        w->rate = PEAK_ITEMS / t > w->rate ? PEAK_ITEMS / t : w->rate;
    }
    return NULL;
}

/*
 * Items a second of fn, of all threads at once: each is timed by its own CPU time, so that a
 * foreign process on a core makes the core's peak no lower, and a core that two threads share does.
 */
static double peak_rate(const struct peak *p, mt_par_fn *fn)
{
    int n = cpu_of(p->be)->threads;
    struct peak_thread w[256];
    pthread_barrier_t start;
    double sum = 0;

    pthread_barrier_init(&start, NULL, (unsigned)n);
    for (int i = 0; i < n; i++) {
        w[i] = (struct peak_thread){.fn = fn, .start = &start};
        bench_need(i ? -pthread_create(&w[i].id, NULL, peak_run, &w[i]) : 0, "a thread");
    }
    peak_run(&w[0]);
    for (int i = 0; i < n; i++) {
        if (i)
            pthread_join(w[i].id, NULL);
        sum += w[i].rate;
    }
    pthread_barrier_destroy(&start);
    return sum;
}

/* Additions and multiplications a second: of bytes, or of floats; 0 where the tier has neither. */
static double peak_ops(const struct peak *p, bool bytes)
{
    mt_par_fn *fn = NULL;
    int each = 0; /* of an instruction */

#ifdef __x86_64__
    if (p->tier >= MT_CPU_AVX512) {
        fn = !bytes ? peak_fma512 : p->tier == MT_CPU_AVX512VNNI ? peak_dot512 : peak_pairs512;
        each = bytes ? 128 : 32;
    } else if (p->tier >= MT_CPU_AVX2) {
        fn = !bytes ? peak_fma256 : p->tier == MT_CPU_AVX2VNNI ? peak_dot256 : peak_pairs256;
        each = bytes ? 64 : 16;
    }
#endif
    return fn ? peak_rate(p, fn) * PEAK_ROUNDS * PEAK_SUMS * each : 0;
}

/* A failure ends the program. */
static void peak_open(struct peak *p, enum mt_cpu_tier tier, int threads)
{
    size_t bytes = (size_t)PEAK_LINES * 64;

    *p = (struct peak){.tier = tier};
    bench_cpu_time = threads == 1;
    bench_need(mt_backend_cpu(&p->be, tier, threads, NULL), "backend");
    if (!(p->map = aligned_alloc((size_t)2 << 20, bytes)))
        bench_need(-ENOMEM, "memory to read");
    madvise(p->map, bytes, MADV_HUGEPAGE);
    memset(p->map, 1, bytes);
}

static void peak_close(struct peak *p)
{
    free(p->map);
    p->be->ops->free(p->be);
}

/* ---- an operation beside them ---- */

struct bench_row {
    const char *op, *type;
    int rows, threads;
    double bytes, ops; /* that it has to read and write at least, and to compute */
    bool int8;         /* in products of bytes */
};

/* A pass: fn `repeat` times; seconds a time. */
static double bench_pass(void (*fn)(void *), void *arg, int repeat)
{
    double t = bench_now();

    for (int i = 0; i < repeat; i++)
        fn(arg);
    return (bench_now() - t) / repeat;
}

/*
 * Measure fn and print its line. Limits and operation take turns, and a share is the median of the
 * turns' own shares: what slows the machine down slows both.
 */
static void bench_measure(const struct peak *p, const struct bench_row *r, void (*fn)(void *),
                          void *arg)
{
    enum { TURNS = 5 };
    double t[TURNS], read[TURNS], peak[TURNS], spread, unused;
    json_t *o = json_object();
    int repeat = 1;

    for (fn(arg); bench_pass(fn, arg, repeat) * repeat < 0.005;)
        repeat *= 2;
    for (int i = 0; i < TURNS; i++) {
        double bytes = peak_bytes(p), ops = peak_ops(p, r->int8);

        t[i] = bench_pass(fn, arg, repeat);
        read[i] = r->bytes / t[i] / bytes;
        peak[i] = ops > 0 ? r->ops / t[i] / ops : 0;
    }
    double s = bench_median(t, TURNS, &spread), to_read = bench_median(read, TURNS, &unused),
           to_peak = bench_median(peak, TURNS, &unused);
    json_object_set_new(o, "bench", json_string(r->op));
    json_object_set_new(o, "type", json_string(r->type));
    json_object_set_new(o, "tier", json_string(mt_cpu_tier_name(p->tier)));
    json_object_set_new(o, "threads", json_integer(r->threads));
    json_object_set_new(o, "rows", json_integer(r->rows));
    mt_json_set_real(o, "ms", s * 1e3);
    mt_json_set_real(o, "spread", spread);
    mt_json_set_real(o, "gb_per_s", r->bytes / s / 1e9);
    mt_json_set_real(o, "read_share", to_read);
    mt_json_set_real(o, "gop_per_s", r->ops / s / 1e9);
    if (to_peak > 0)
        mt_json_set_real(o, "peak_share", to_peak);
    bench_line(
        o, "%-15s %-5s %3d rows %d thr %10.4f ms +-%3.0f%% %7.1f GB/s %4.0f%% %8.1f Gop/s %4.0f%%",
        r->op, r->type, r->rows, r->threads, s * 1e3, spread * 50, r->bytes / s / 1e9,
        to_read * 100, r->ops / s / 1e9, to_peak * 100);
}

#endif
