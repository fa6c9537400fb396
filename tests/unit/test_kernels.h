/*
 * test_kernels.h: what the kernel tests share: seeded random numbers, backends of every tier this
 * machine (and MT_CPU) allows, and rows with guard cells around them.
 */
#ifndef TEST_KERNELS_H
#define TEST_KERNELS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "kernels/cpu/cpu.h"

#define GUARD  (-12345.5f)
#define MARGIN 24

static uint64_t rnd_state;

static inline uint64_t rnd(void)
{
    return mt_mix64(rnd_state++);
}

static inline int rnd_int(int lo, int hi)
{
    return lo + (int)(rnd() % (uint64_t)(hi - lo + 1));
}

/* About normal: sum of four uniforms. */
static inline float rnd_float(void)
{
    double s = 0;

    for (int i = 0; i < 4; i++)
        s += mt_unit(rnd());
    return (float)((s - 2) * 1.7);
}

static inline float *rnd_floats(size_t n)
{
    float *f = malloc(n * sizeof(*f) + 1);

    assert_non_null(f);
    for (size_t i = 0; i < n; i++)
        f[i] = rnd_float();
    return f;
}

#ifdef TEST_CUDA
/*
 * The same tests of the CUDA backend, its device code emulated (tests/emu), in the place of a
 * single tier; exact: the sums are its own kernels' and not cuBLAS's, which promises no order.
 */
int mt_cuda_open(struct mt_backend **out, const char *how, struct mt_err *e);

static inline enum mt_cpu_tier tier_max(void)
{
    return MT_CPU_SCALAR;
}

static inline struct mt_backend *open_as(const char *how)
{
    struct mt_backend *be;

    assert_int_equal(mt_cuda_open(&be, how, NULL), 0);
    return be;
}

static inline struct mt_backend *backend(enum mt_cpu_tier tier, int threads)
{
    (void)tier;
    (void)threads;
    return open_as("exact");
}
#else
static inline enum mt_cpu_tier tier_max(void)
{
    enum mt_cpu_tier t;

    assert_int_equal(mt_cpu_tier(&t, NULL), 0);
    return t;
}

static inline struct mt_backend *backend(enum mt_cpu_tier tier, int threads)
{
    struct mt_backend *be;

    assert_int_equal(mt_backend_cpu(&be, tier, threads, NULL), 0);
    return be;
}

/* There is one way on the CPU. */
static inline struct mt_backend *open_as(const char *how)
{
    (void)how;
    return backend(tier_max(), 1);
}
#endif

/* A view of n rows in the middle of a field of guard cells, filled from src (or not, if NULL). */
struct field {
    struct mt_rows all, v;
    int64_t n;
};

static inline struct field field_new(struct mt_backend *be, int64_t n, int width, const float *src)
{
    struct field f = {.n = n};

    assert_int_equal(be->ops->rows_new(be, &f.all, n + 2, width + 2 * MARGIN), 0);
    for (int64_t i = 0; i < (n + 2) * f.all.stride; i++)
        f.all.data[i] = GUARD;
    f.v = mt_rows_cols(mt_rows_from(f.all, 1), rnd_int(0, MARGIN), width);
    if (src)
        be->ops->rows_put(be, f.v, src, n);
    return f;
}

/* Nothing outside the view changed. */
static inline void field_check(const struct field *f)
{
    int64_t first = f->v.data - f->all.data;

    for (int64_t i = 0; i < (f->n + 2) * f->all.stride; i++) {
        int64_t at = i - first;
        bool inside = at >= 0 && at / f->all.stride < f->n && at % f->all.stride < f->v.width;

        if (!inside && f->all.data[i] != GUARD)
            fail_msg("guard cell %lld (row %lld) overwritten", (long long)i,
                     (long long)(i / f->all.stride));
    }
}

static inline void field_free(struct mt_backend *be, struct field *f)
{
    field_check(f);
    be->ops->rows_free(be, &f->all);
}

/* Blocks of t, n bytes of them: any bits, scales of about 1/64. */
static inline void rnd_blocks(char *p, enum mt_dtype t, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        p[i] = (char)rnd();
    for (char *b = p; b < p + n; b += mt_dtype_block_bytes(t)) {
        uint16_t h = num_to_f16(rnd_float() / 64);

        memcpy(b + (t == MT_Q6_K ? 208 : 0), &h, 2);
        if (t == MT_Q4_1 || t == MT_Q5_1 || t == MT_Q4_K || t == MT_Q5_K)
            memcpy(b + 2, &h, 2);
    }
}

/*
 * f32 values rounded to type t, as bytes at an odd address (a mapped file promises nothing). Blocks
 * that nobody makes here are any.
 */
static inline struct mt_bytes bytes_new(const float *src, enum mt_dtype t, int64_t rows,
                                        int64_t cols, void **own)
{
    size_t size = mt_dtype_size(t), n = (size_t)(rows * cols);
    int64_t row = mt_dtype_row_bytes(t, cols);
    char *p = malloc((size_t)(rows * row) + 1);

    assert_non_null(p);
    for (int64_t r = 0; r < rows && (t == MT_Q8_0 || t == MT_Q4_K); r++)
        mt_quantize_row(t, p + 1 + r * row, src + r * cols, cols);
    if (!size && t != MT_Q8_0 && t != MT_Q4_K)
        rnd_blocks(p + 1, t, rows * row);
    for (size_t i = 0; i < n && size; i++)
        num_encode(p + 1 + i * size, NULL, t, src + i, 1);
    *own = p;
    return (struct mt_bytes){p + 1, t, rows, cols, false};
}

/* A weight and what its stored values are in f32. */
struct weight {
    struct mt_mat *m;
    float *f;
    void *own;
};

static inline struct weight weight_new(struct mt_backend *be, enum mt_dtype t, int64_t rows,
                                       int64_t cols)
{
    struct weight w = {.f = rnd_floats((size_t)(rows * cols))};
    struct mt_bytes b = bytes_new(w.f, t, rows, cols, &w.own);

    num_decode(w.f, t, b.data, 0, rows * cols);
    assert_int_equal(be->ops->mat_new(be, &w.m, &b), 0);
    return w;
}

static inline void weight_free(struct mt_backend *be, struct weight *w)
{
    be->ops->mat_free(be, w->m);
    free(w->f);
    free(w->own);
}

#define EPS 0x1p-24 /* half a unit in the last place of 1 */

/* Fails with the place when got is further than tol from want. */
static inline void near(double got, double want, double tol, const char *what, int64_t row,
                        int64_t col)
{
    if (!(fabs(got - want) <= tol))
        fail_msg("%s [%lld, %lld]: %.9g, want %.9g within %.3g", what, (long long)row,
                 (long long)col, got, want, tol);
}

/* Sizes around the vector widths 4, 8 and 16, and pieces of 512. */
static const int odd_sizes[] = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 130};

#endif
