/*
 * test_kernels.c: types, tiers, objects and the operations that are not linear, attention or
 * sampling: each tier against a double version written here.
 */
#include "test_kernels.h"

#include <errno.h>
#include <sys/resource.h>
#include <unistd.h>

static void test_numbers(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 0x10000; h++) {
        float b = num_from_bf16((uint16_t)h), f = num_from_f16((uint16_t)h);

        if (!isnan(b))
            assert_int_equal(num_to_bf16(b), h);
        if (!isnan(f))
            assert_int_equal(num_to_f16(f), h);
        else
            assert_true(isnan(num_from_f16(num_to_f16(f))));
    }
    assert_true(num_from_f16(0x0001) == 0x1p-24f);
    assert_true(num_from_f16(0x3555) == 0.333251953125f);
    assert_true(isinf(num_from_f16(0xfc00)));
    /* every step between neighbours: to nearest, a tie to even */
    for (uint32_t h = 0; h < 0x7c00; h++) {
        double lo = num_from_f16((uint16_t)h);
        double hi = h + 1 < 0x7c00 ? num_from_f16((uint16_t)(h + 1)) : 65536.0;
        float mid = (float)((lo + hi) / 2);

        assert_int_equal(num_to_f16(mid), h + (h & 1));
        assert_int_equal(num_to_f16(nextafterf(mid, 0)), h);
        assert_int_equal(num_to_f16(nextafterf(mid, INFINITY)), h + 1);
        assert_int_equal(num_to_f16(-nextafterf(mid, INFINITY)), 0x8000 | (h + 1));
    }
    assert_int_equal(num_to_bf16(1.00390625f), 0x3f80); /* 1 + 2^-8: tie to even */
    assert_int_equal(num_to_bf16(1.01171875f), 0x3f82);
    assert_int_equal(num_to_bf16(3.4e38f), 0x7f80);
    assert_true(isnan(num_from_bf16(num_to_bf16(num_float(0x7f800001)))));
}

static void test_int8(void **state)
{
    signed char p[33];
    float x[33], y[33], scale;

    (void)state;
    for (int64_t round = 0; round < 200; round++) {
        float max = 0;

        for (int64_t i = 0; i < 33; i++)
            max = fmaxf(max, fabsf(x[i] = rnd_float()));
        num_encode(p, &scale, MT_INT8, x, 33);
        num_decode_kv(y, MT_INT8, p, scale, 33);
        assert_true(scale == max / 127);
        for (int64_t i = 0; i < 33; i++)
            near(y[i], x[i], scale * 0.50001, "int8", 0, i);
    }
    memset(x, 0, sizeof(x));
    num_encode(p, &scale, MT_INT8, x, 33);
    num_decode_kv(y, MT_INT8, p, scale, 33);
    assert_memory_equal(x, y, sizeof(x));
    x[3] = NAN; /* must not come back as a plausible number */
    num_encode(p, &scale, MT_INT8, x, 33);
    num_decode_kv(y, MT_INT8, p, scale, 33);
    assert_true(isnan(y[3]));
}

/*
 * All codes against the format's formula; between two of them the nearer one, of equals the even.
 */
static void test_e4m3(void **state)
{
    signed char p[33];
    float x[33], y[33], scale;

    (void)state;
    for (int c = 0; c < 0x7f; c++) {
        double v = c < 8 ? ldexp(c, -9) : ldexp(8 + c % 8, c / 8 - 10);
        float f = num_from_e4m3((uint8_t)c), next = num_from_e4m3((uint8_t)(c + 1));
        float mid = (f + next) / 2;

        assert_true(f == v && num_from_e4m3((uint8_t)(c | 0x80)) == -v);
        assert_int_equal(num_to_e4m3(f), c);
        assert_int_equal(num_to_e4m3(-f), c | 0x80);
        if (c == 0x7e)
            break; /* 448: nothing is above it */
        assert_int_equal(num_to_e4m3(mid), c + c % 2);
        assert_int_equal(num_to_e4m3(nextafterf(mid, 0)), c);
        assert_int_equal(num_to_e4m3(nextafterf(-mid, -INFINITY)), 0x80 | (c + 1));
    }
    assert_int_equal(num_to_e4m3(1e9f), 0x7e);
    assert_int_equal(num_to_e4m3(-INFINITY), 0xfe);
    for (int64_t round = 0; round < 200; round++) {
        float max = 0;

        for (int i = 0; i < 33; i++)
            max = fmaxf(max, fabsf(x[i] = rnd_float()));
        num_encode(p, &scale, MT_FP8, x, 33);
        num_decode_kv(y, MT_FP8, p, scale, 33);
        assert_true(scale == max / 448);
        for (int i = 0; i < 33; i++)
            near(y[i], x[i], fmaxf(fabsf(x[i]) / 16, scale * 0x1p-10f) * 1.00001, "e4m3", 0, i);
    }
    x[3] = INFINITY; /* as with int8, nothing of it is left that looks like a number */
    num_encode(p, &scale, MT_FP8, x, 33);
    assert_true(isnan(scale));
}

static void test_tier_names(void **state)
{
    static const char *const name[] = {"scalar",   "base",   "avx2",
                                       "avx2vnni", "avx512", "avx512vnni"};
    const char *was = getenv("MT_CPU");
    char *keep = was ? strdup(was) : NULL;
    enum mt_cpu_tier best, t;
    struct mt_err e = {0};

    (void)state;
    unsetenv("MT_CPU");
    assert_int_equal(mt_cpu_tier(&best, NULL), 0);
    for (unsigned i = 0; i < MT_COUNT(name); i++) {
        assert_string_equal(mt_cpu_tier_name(i), name[i]);
        setenv("MT_CPU", name[i], 1);
        assert_int_equal(mt_cpu_tier(&t, NULL), 0);
        if (i == MT_CPU_AVX2VNNI && t == MT_CPU_AVX2) /* AVX-512 without AVX-VNNI */
            continue;
        assert_int_equal(t, i < best ? i : best);
    }
    setenv("MT_CPU", "sse9", 1);
    assert_int_equal(mt_cpu_tier(&t, &e), -EINVAL);
    assert_non_null(strstr(e.text, "sse9"));
    if (keep)
        setenv("MT_CPU", keep, 1);
    else
        unsetenv("MT_CPU");
    free(keep);
}

static void test_open_errors(void **state)
{
    struct mt_backend *be;
    struct mt_err e = {0};

    (void)state;
    assert_int_equal(mt_backend_cpu(&be, MT_CPU_SCALAR, 257, &e), -EINVAL);
    assert_null(be);
    assert_int_equal(mt_backend_cpu(&be, MT_CPU_SCALAR, -1, NULL), -EINVAL);
    assert_int_equal(mt_backend_cpu(&be, (enum mt_cpu_tier)9, 1, NULL), -EINVAL);
    assert_int_equal(mt_backend_cpu(&be, MT_CPU_SCALAR, 0, NULL), 0);
    be->ops->free(be);
}

static void test_objects(void **state)
{
    struct mt_backend *be = backend(MT_CPU_SCALAR, 2);
    struct mt_kv_shape s = {28, 4, 128, 16, MT_BF16}, bad;
    struct mt_bytes b = {"12345678", MT_INT8, 1, 8, false};
    struct mt_rows r;
    struct mt_mat *m;
    struct mt_kv *kv;
    struct rusage u0, u1;

    (void)state;
    assert_int_equal(mt_kv_block_bytes(&s), 28 * 2 * 4 * 128 * 16 * 2);
    s.type = MT_INT8;
    assert_int_equal(mt_kv_block_bytes(&s), 28 * 2 * 4 * 16 * (128 + 4));
    bad = s;
    bad.head_dim = 127; /* fits a cache whose keys don't turn */
    assert_int_equal(mt_kv_block_bytes(&bad), 28 * 2 * 4 * 16 * (127 + 4));
    bad.head_dim = 0;
    assert_int_equal(mt_kv_block_bytes(&bad), -EINVAL);
    bad = (struct mt_kv_shape){INT32_MAX, INT32_MAX, INT32_MAX - 1, INT32_MAX, MT_F32};
    assert_int_equal(mt_kv_block_bytes(&bad), -EINVAL);
    assert_int_equal(be->ops->kv_new(be, &kv, &bad, 1), -EINVAL);
    assert_int_equal(be->ops->kv_new(be, &kv, &s, 0), -EINVAL);

    /* more than the machine has, more than 64 bits count, and a gigabyte that costs nothing yet */
    assert_int_equal(be->ops->kv_new(be, &kv, &s, INT32_MAX), -ENOMEM);
    assert_int_equal(be->ops->kv_new(be, &kv, &s, INT64_MAX), -ENOMEM);
    assert_null(kv);
    getrusage(RUSAGE_SELF, &u0);
    assert_int_equal(be->ops->kv_new(be, &kv, &s, (1 << 30) / mt_kv_block_bytes(&s)), 0);
    getrusage(RUSAGE_SELF, &u1);
#ifndef __SANITIZE_ADDRESS__
    assert_true(u1.ru_maxrss - u0.ru_maxrss < 64 << 10);
#endif
    be->ops->kv_free(be, kv);

    assert_int_equal(be->ops->mat_new(be, &m, &b), -ENOTSUP);
    b.type = MT_F32;
    b.rows = 0;
    assert_int_equal(be->ops->mat_new(be, &m, &b), -EINVAL);
    assert_int_equal(be->ops->rows_new(be, &r, INT64_MAX / 2, INT32_MAX), -ENOMEM);
    assert_null(r.data);
    int64_t held = be->rows_held;

    assert_int_equal(be->ops->rows_new(be, &r, 3, 17), 0);
    for (int64_t i = 0; i < 3 * r.stride; i++)
        assert_true(r.data[i] == 0);
    assert_int_equal(be->rows_held, held + be->ops->rows_bytes(be, 3, 17));
    be->ops->rows_free(be, &r);
    assert_int_equal(be->rows_held, held);
    be->ops->rows_free(be, &r); /* none */
    assert_int_equal(be->rows_held, held);
    be->ops->mat_free(be, NULL);
    be->ops->kv_free(be, NULL);
    be->ops->free(be);
}

/* Wider than the pieces it works in. */
static void embed_add(struct mt_backend *be, enum mt_dtype d, int width)
{
    float *src = rnd_floats((size_t)4 * (size_t)width);
    float *got = malloc((size_t)4 * (size_t)width * sizeof(*got));
    struct weight w = weight_new(be, d, 5, width);
    struct field out = field_new(be, 4, width, src);
    static const int32_t ids[] = {4, -1, 0, 4};

    be->ops->embed_add(be, out.v, w.m, ids, 4);
    be->ops->rows_get(be, got, out.v, 4);
    for (int64_t i = 0; i < 4; i++)
        for (int64_t c = 0; c < width; c++)
            assert_true(got[i * width + c] ==
                        src[i * width + c] + (ids[i] < 0 ? 0 : w.f[(int64_t)ids[i] * width + c]));
    field_free(be, &out);
    weight_free(be, &w);
    free(src);
    free(got);
}

static void test_moves(void **state)
{
    (void)state;
    for (enum mt_cpu_tier t = MT_CPU_SCALAR; t <= tier_max(); t++) {
        struct mt_backend *be = backend(t, 2);
        float *src = rnd_floats((size_t)7 * 19), got[7 * 19];
        struct field a = field_new(be, 7, 19, src), b = field_new(be, 5, 19, NULL);
        static const int index[] = {6, 0, 3, 3, 1};
        static const int32_t ids[] = {4, -1, 0, 8, 2};

        be->ops->rows_get(be, got, a.v, 7);
        assert_memory_equal(got, src, sizeof(got));
        be->ops->gather(be, b.v, a.v, index, 5);
        be->ops->rows_get(be, got, b.v, 5);
        for (int64_t i = 0; i < 5; i++)
            assert_memory_equal(got + i * 19, src + (int64_t)index[i] * 19, 19 * sizeof(float));
        for (enum mt_dtype d = MT_F32; d <= MT_BF16; d++) {
            struct weight w = weight_new(be, d, 9, 19);

            be->ops->embed(be, b.v, w.m, ids, 5);
            be->ops->rows_get(be, got, b.v, 5);
            for (int64_t i = 0; i < 5; i++)
                assert_memory_equal(got + i * 19,
                                    ids[i] < 0 ? src + (int64_t)index[i] * 19
                                               : w.f + (int64_t)ids[i] * 19,
                                    19 * sizeof(float));
            be->ops->gather(be, b.v, a.v, index, 5);
            weight_free(be, &w);
            embed_add(be, d, 19);
            embed_add(be, d, 256);
            embed_add(be, d, 515);
        }
        field_free(be, &a);
        field_free(be, &b);
        free(src);
        be->ops->free(be);
    }
}

struct tally {
    _Atomic int times[300];
    _Atomic int bad;
    int threads;
};

static void count(void *arg, int thread, int64_t begin, int64_t end)
{
    struct tally *t = arg;

    if (thread < 0 || thread >= t->threads || begin >= end)
        t->bad++;
    for (int64_t i = begin; i < end; i++)
        t->times[i]++;
}

/*
 * Every item once and only during the call, with two backends in turn, threads spinning and asleep.
 */
static void test_par(void **state)
{
    struct mt_backend *be[2] = {backend(MT_CPU_SCALAR, 3), backend(MT_CPU_SCALAR, 8)};

    (void)state;
    for (int64_t round = 0; round < 6000; round++) {
        struct tally t = {.threads = round % 2 ? 8 : 3};
        int64_t n = rnd_int(0, 300);

        mt_par(cpu_of(be[round % 2]), n, round % 5 ? INT64_MAX : 1, count, &t);
        for (int64_t i = 0; i < 300; i++)
            assert_int_equal(t.times[i], i < n);
        assert_int_equal(t.bad, 0);
        if (round % 500 == 0)
            usleep(2000);
    }
    be[0]->ops->free(be[0]);
    be[1]->ops->free(be[1]);
}

/* Sums of n terms in f32, a square root and three products: n + 16 roundings of the largest value.
 */
/* Pieces of a row, as the heads of Q: each like a row by itself. */
static void pieces(struct mt_backend *be, int64_t n, int64_t width, int64_t k)
{
    float *x = rnd_floats((size_t)(n * k * width));
    struct field in = field_new(be, n, (int)(k * width), x),
                 rows = field_new(be, n * k, (int)width, x);
    struct weight w = weight_new(be, MT_F32, 1, width);
    float *a = malloc((size_t)(n * k * width) * sizeof(*a)),
          *b = malloc((size_t)(n * k * width) * sizeof(*b));

    be->ops->rms_norm(be, in.v, in.v, w.m, 1e-6f, (int)n);
    be->ops->rms_norm(be, rows.v, rows.v, w.m, 1e-6f, (int)(n * k));
    be->ops->rows_get(be, a, in.v, n);
    be->ops->rows_get(be, b, rows.v, n * k);
    assert_memory_equal(a, b, (size_t)(n * k * width) * sizeof(*a));
    field_free(be, &in);
    field_free(be, &rows);
    weight_free(be, &w);
    free(x);
    free(a);
    free(b);
}

static void norms(struct mt_backend *be, int64_t n, int64_t width, float scale, float shift)
{
    float *x = rnd_floats((size_t)(n * width)), *y = malloc((size_t)(n * width) * sizeof(float));
    struct weight w = weight_new(be, MT_BF16, 1, width), b = weight_new(be, MT_F32, 1, width);
    struct field in, out = field_new(be, n, width, NULL);

    for (int64_t i = 0; i < n * width; i++)
        x[i] = x[i] * scale + shift;
    in = field_new(be, n, width, x);
    for (int64_t kind = 0; kind < 4; kind++) { /* RMS, layer; apart, then in place */
        bool rms = kind % 2 == 0;
        struct mt_rows dst = kind < 2 ? out.v : in.v;

        be->ops->rows_put(be, in.v, x, n);
        if (rms)
            be->ops->rms_norm(be, dst, in.v, w.m, 1e-6f, n);
        else
            be->ops->layer_norm(be, dst, in.v, w.m, b.m, 1e-5f, n);
        be->ops->rows_get(be, y, dst, n);
        for (int64_t r = 0; r < n; r++) {
            const float *a = x + r * width;
            double mean = 0, sq = 0, abs_mean = 0;

            for (int64_t i = 0; i < width && !rms; i++)
                mean += a[i];
            mean /= width;
            for (int64_t i = 0; i < width; i++) {
                sq += (a[i] - mean) * (a[i] - mean);
                abs_mean += fabsf(a[i]) / (double)width;
            }
            sq = 1 / sqrt(sq / width + (rms ? 1e-6 : 1e-5));
            for (int64_t i = 0; i < width; i++) {
                double want = (a[i] - mean) * sq * w.f[i] + (rms ? 0 : b.f[i]);
                double tol = (width + 16) * EPS * (fabs(want) + fabsf(w.f[i]) + fabsf(b.f[i]));

                if (!rms) /* the mean's own error */
                    tol += (width + 2) * EPS * abs_mean * sq * fabsf(w.f[i]);
                near(y[r * width + i], want, tol, rms ? "rms" : "layer", r, i);
            }
        }
    }
    field_free(be, &in);
    field_free(be, &out);
    weight_free(be, &w);
    weight_free(be, &b);
    free(x);
    free(y);
}

static void test_norms(void **state)
{
    (void)state;
    for (enum mt_cpu_tier t = MT_CPU_SCALAR; t <= tier_max(); t++) {
        struct mt_backend *be = backend(t, 2);

        for (unsigned i = 0; i < MT_COUNT(odd_sizes); i++)
            norms(be, rnd_int(1, 4), odd_sizes[i], 1, 0);
        pieces(be, rnd_int(1, 4), rnd_int(1, 70), rnd_int(1, 9));
        norms(be, 3, 1000, 1e-4f, 0);
        norms(be, 3, 1000, 1, 100); /* variance by difference of squares would lose this */
        norms(be, 70, 2051, 30, 1);
        be->ops->free(be);
    }
}

static void test_gated(void **state)
{
    (void)state;
    for (enum mt_cpu_tier t = MT_CPU_SCALAR; t <= tier_max(); t++) {
        struct mt_backend *be = backend(t, 2);

        for (unsigned s = 0; s < MT_COUNT(odd_sizes); s++) {
            int64_t width = odd_sizes[s], n = rnd_int(1, 5);
            float *g = rnd_floats((size_t)(n * width)), *u = rnd_floats((size_t)(n * width));
            float *y = malloc((size_t)(n * width) * sizeof(float));
            struct field gate, up, out = field_new(be, n, width, NULL);

            for (int64_t i = 0; i < n * width; i++)
                g[i] *= rnd_int(0, 3) ? 3.0f : 60.0f;
            gate = field_new(be, n, width, g);
            up = field_new(be, n, width, u);
            be->ops->gated(be, out.v, gate.v, up.v, n);
            be->ops->gated(be, gate.v, gate.v, up.v, n);
            be->ops->rows_get(be, y, out.v, n);
            for (int64_t i = 0; i < n * width; i++) {
                double want = g[i] / (1 + exp(-(double)g[i])) * u[i];

                /* exp within 2 ulp, three more roundings; below 1e-37 a tier may give 0 */
                near(y[i], want, 8 * EPS * fabs(want) + 1e-36, "gated", 0, i);
            }
            be->ops->rows_get(be, g, gate.v, n);
            assert_memory_equal(g, y, (size_t)(n * width) * sizeof(float));
            field_free(be, &gate);
            field_free(be, &up);
            field_free(be, &out);
            free(g);
            free(u);
            free(y);
        }
        be->ops->free(be);
    }
}

/* Convolution as its definition says: no unfolding, padding skipped. */
static void conv(struct mt_backend *be, int64_t in, int64_t out, int kernel, int stride, int pad,
                 enum mt_dtype type)
{
    struct mt_span spans[3];
    int n_spans = rnd_int(1, 3), rows = 0;
    int64_t out_rows = 0, at = 0;
    struct weight w = weight_new(be, type, out, in * kernel), b = weight_new(be, MT_F32, 1, out);
    struct field x, y, scratch;
    float *src, *got;

    for (int64_t s = 0; s < n_spans; s++) {
        rows += rnd_int(0, 2); /* rows between spans belong to nobody */
        spans[s] = (struct mt_span){rows, rnd_int(kernel, 40)};
        rows += spans[s].n;
        out_rows += (spans[s].n + 2 * pad - kernel) / stride + 1;
    }
    src = rnd_floats((size_t)rows * (size_t)in);
    got = malloc((size_t)out_rows * (size_t)out * sizeof(float));
    x = field_new(be, rows, in, src);
    y = field_new(be, out_rows, out, NULL);
    scratch = field_new(be, out_rows, in * kernel, NULL);
    be->ops->conv1d(be, y.v, x.v, w.m, b.m, kernel, stride, pad, MT_ACT_RELU, spans, n_spans,
                    scratch.v);
    be->ops->rows_get(be, got, y.v, out_rows);
    for (int64_t s = 0; s < n_spans; s++) {
        for (int64_t t = 0; t < (spans[s].n + 2 * pad - kernel) / stride + 1; t++, at++) {
            for (int64_t o = 0; o < out; o++) {
                double sum = b.f[o], abs = fabsf(b.f[o]);

                for (int64_t k = 0; k < kernel; k++) {
                    int64_t time = t * stride + k - pad;

                    for (int64_t c = 0; c < in && time >= 0 && time < spans[s].n; c++) {
                        double p = (double)src[(spans[s].row + time) * in + c] *
                                   w.f[(o * in + c) * kernel + k];

                        sum += p;
                        abs += fabs(p);
                    }
                }
                near(got[at * out + o], sum < 0 ? 0 : sum, (in * kernel + 2) * EPS * abs, "conv",
                     at, o);
            }
        }
    }
    field_free(be, &x);
    field_free(be, &y);
    field_free(be, &scratch);
    weight_free(be, &w);
    weight_free(be, &b);
    free(src);
    free(got);
}

static void test_conv1d(void **state)
{
    (void)state;
    for (enum mt_cpu_tier t = MT_CPU_SCALAR; t <= tier_max(); t++) {
        struct mt_backend *be = backend(t, 2);

        for (enum mt_dtype d = MT_F32; d <= MT_BF16; d++) {
            conv(be, 1, 1, 1, 1, 0, d);
            conv(be, 8, 24, 3, 1, 1, d);
            conv(be, 24, 17, 3, 2, 1, d);
            conv(be, 5, 9, 4, 3, 2, d);
        }
        be->ops->free(be);
    }
}

/* The same over time and height; in how many pieces scratch makes it must not show. */
static void conv_image(struct mt_backend *be, int in, int out, int height, int kernel, int stride,
                       int pad, enum mt_dtype d, int scratch_rows)
{
    const struct mt_span spans[] = {{0, rnd_int(kernel, 30)}, {31, rnd_int(kernel, 9)}, {40, 11}};
    struct weight w = weight_new(be, d, out, (int64_t)in * kernel * kernel);
    struct weight b = weight_new(be, MT_F32, 1, out);
    int high = (height + 2 * pad - kernel) / stride + 1, cols = in * kernel * kernel;
    float *src = rnd_floats((size_t)51 * (size_t)(in * height)), *got;
    int64_t rows = 0, at = 0;

    for (unsigned s = 0; s < 3; s++)
        rows += (spans[s].n + 2 * pad - kernel) / stride + 1;
    got = malloc((size_t)(rows * out * high) * sizeof(*got));
    struct field x = field_new(be, 51, in * height, src);
    struct field y = field_new(be, rows, out * high, NULL);
    struct field scratch = field_new(be, scratch_rows, cols + out, NULL);
    be->ops->conv2d(be, y.v, x.v, w.m, b.m, height, kernel, stride, pad, MT_ACT_RELU, spans, 3,
                    scratch.v, scratch_rows);
    be->ops->rows_get(be, got, y.v, rows);
    for (unsigned s = 0; s < 3; s++)
        for (int64_t t = 0; t < (spans[s].n + 2 * pad - kernel) / stride + 1; t++, at++)
            for (int64_t o = 0; o < (int64_t)out * high; o++) {
                double sum = b.f[o / high], abs = fabsf(b.f[o / high]);

                for (int64_t k = 0; k < cols; k++) {
                    int64_t c = k / (kernel * kernel), h = o % high * stride - pad;
                    int64_t time = t * stride - pad + k % kernel;

                    h += k / kernel % kernel;
                    if (h < 0 || h >= height || time < 0 || time >= spans[s].n)
                        continue;
                    double p = (double)src[(spans[s].row + time) * in * height + c * height + h] *
                               w.f[o / high * cols + k];
                    sum += p;
                    abs += fabs(p);
                }
                near(got[at * out * high + o], sum < 0 ? 0 : sum, (cols + 2) * EPS * abs, "conv2d",
                     at, o);
            }
    field_free(be, &x);
    field_free(be, &y);
    field_free(be, &scratch);
    weight_free(be, &w);
    weight_free(be, &b);
    free(src);
    free(got);
}

static void test_conv2d(void **state)
{
    (void)state;
    for (enum mt_cpu_tier t = MT_CPU_SCALAR; t <= tier_max(); t++) {
        struct mt_backend *be = backend(t, 2);

        for (enum mt_dtype d = MT_F32; d <= MT_BF16; d++) {
            conv_image(be, 1, 1, 1, 1, 1, 0, d, 1);
            conv_image(be, 1, 12, 16, 3, 2, 1, d, 1000);
            conv_image(be, 12, 7, 8, 3, 2, 1, d, 37);
            conv_image(be, 5, 9, 7, 2, 3, 2, d, 1);
        }
        be->ops->free(be);
    }
}

static void test_positions_and_means(void **state)
{
    static const struct mt_span spans[] = {{1, 7}, {8, 3}, {12, 4}};
    struct mt_backend *be = backend(tier_max(), 1);
    struct weight table = weight_new(be, MT_F16, 9, 300);
    float *src = rnd_floats((size_t)16 * 300), *got = malloc(sizeof(float) * 16 * 300);
    struct field x = field_new(be, 16, 300, src), m = field_new(be, 6, 300, NULL);
    int64_t at = 0;

    (void)state;
    be->ops->add_positions(be, x.v, table.m, spans, 3);
    be->ops->rows_get(be, got, x.v, 16);
    for (unsigned s = 0; s < 3; s++)
        for (int64_t r = 0; r < spans[s].n; r++)
            for (int64_t c = 0; c < 300; c++)
                src[(spans[s].row + r) * 300 + c] += table.f[r * 300 + c];
    assert_memory_equal(got, src, sizeof(float) * 16 * 300);
    be->ops->mean_rows(be, m.v, x.v, 2, spans, 3);
    be->ops->rows_get(be, got, m.v, 6);
    for (unsigned s = 0; s < 3; s++)
        for (int64_t g = 0; g < spans[s].n / 2; g++, at++)
            for (int64_t c = 0; c < 300; c++) {
                const float *a = src + (spans[s].row + 2 * g) * 300 + c;

                near(got[at * 300 + c], ((double)a[0] + a[300]) / 2,
                     2 * EPS * (fabsf(a[0]) + fabsf(a[300])), "mean", at, c);
            }
    assert_int_equal(at, 6);
    field_free(be, &x);
    field_free(be, &m);
    weight_free(be, &table);
    free(src);
    free(got);
    be->ops->free(be);
}

/* A matrix that a backend makes itself has the bits of the one that it is given. */
static void test_recipe(void **state)
{
    static const enum mt_dtype types[] = {MT_F32, MT_F16, MT_BF16};
    const struct mt_recipe r = {.key = 0x123456789abcdef, .step = 0x1.7p-17f, .mean = 0.25f};
    enum { ROWS = 7, COLS = 37, ALL = 3 + ROWS * COLS };
    uint16_t all[2 * ALL], part[2 * ALL];
    float got[2][ROWS * COLS];
    int32_t ids[ROWS];

    (void)state;
    for (int i = 0; i < ROWS; i++)
        ids[i] = i;
    for (size_t t = 0; t < MT_COUNT(types); t++) {
        size_t size = mt_dtype_size(types[t]);
        struct mt_backend *be = backend(tier_max(), 1);
        struct mt_rows out;

        mt_recipe_make(all, types[t], &r, 0, ALL);
        mt_recipe_make(part, types[t], &r, 3, ROWS * COLS);
        assert_memory_equal((char *)all + 3 * size, part, ROWS * COLS * size);
        assert_int_equal(be->ops->rows_new(be, &out, ROWS, COLS), 0);
        for (int made = 0; made < (be->ops->mat_make ? 2 : 1); made++) {
            const struct mt_bytes b = {made ? NULL : part, types[t], ROWS, COLS, true};
            struct mt_mat *m;

            assert_int_equal(
                made ? be->ops->mat_make(be, &m, &b, &r, 3) : be->ops->mat_new(be, &m, &b), 0);
            be->ops->embed(be, out, m, ids, ROWS);
            be->ops->rows_get(be, got[made], out, ROWS);
            be->ops->mat_free(be, m);
            assert_memory_equal(got[0], got[made], sizeof(got[0]));
        }
        for (int i = 0; i < ROWS * COLS; i++) /* a uniform of 2^16 steps around the mean */
            near(got[0][i], 0.25, 0x1.7p-1, "made", 0, i);
        be->ops->rows_free(be, &out);
        be->ops->free(be);
    }
}

/* Many small ones lie together, and any order of freeing will do. */
static void test_many_matrices(void **state)
{
    enum { MANY = 300, COLS = 40 };
    struct mt_backend *be = backend(tier_max(), 1);
    struct mt_mat *m[MANY];
    struct mt_rows out;
    static float src[MANY][COLS];
    float got[COLS];
    int32_t id = 0;

    (void)state;
    assert_int_equal(be->ops->rows_new(be, &out, 1, COLS), 0);
    for (int turn = 0; turn < 2; turn++) {
        for (int i = 0; i < MANY; i++) {
            for (int k = 0; k < COLS; k++)
                src[i][k] = (float)(i + k);
            const struct mt_bytes b = {src[i], MT_F32, i % 2 + 1, i % 2 ? COLS / 2 : COLS, true};
            assert_int_equal(be->ops->mat_new(be, &m[i], &b), 0);
        }
        for (int i = 0; i < MANY; i += 2) {
            be->ops->embed(be, out, m[i], &id, 1);
            be->ops->rows_get(be, got, out, 1);
            for (int k = 0; k < COLS; k++)
                near(got[k], i + k, 0, "matrix", i, k);
        }
        for (int i = 0; i < MANY; i++)
            be->ops->mat_free(be, m[(i * 7 + turn) % MANY]);
    }
    be->ops->rows_free(be, &out);
    be->ops->free(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#ifndef TEST_CUDA
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_int8),
        cmocka_unit_test(test_e4m3),
        cmocka_unit_test(test_tier_names),
        cmocka_unit_test(test_open_errors),
        cmocka_unit_test(test_par),
#endif
        cmocka_unit_test(test_recipe),
        cmocka_unit_test(test_many_matrices),
        cmocka_unit_test(test_objects),
        cmocka_unit_test(test_moves),
        cmocka_unit_test(test_norms),
        cmocka_unit_test(test_gated),
        cmocka_unit_test(test_conv1d),
        cmocka_unit_test(test_conv2d),
        cmocka_unit_test(test_positions_and_means),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
