/*
 * test_kernels_codec.c: convolutions heard in pieces, activations and the quantiser's level: each
 * tier against a double version written here; pieces, company and threads change no bit.
 */
#include "test_kernels.h"

#include <errno.h>

/* A convolution of random weights, and a clip for each of some sessions. */
struct conv_case {
    struct mt_conv c;
    int in, out, sessions, rows;
    float *w, *bias, *x; /* w as released; x [sessions][rows][in] */
};

static int rows_of(const struct conv_case *k, int rows)
{
    return k->c.transposed ? rows * k->c.stride : rows / k->c.stride;
}

static struct conv_case case_new(struct mt_conv c, int in, int out, int sessions, int rows)
{
    struct conv_case k = {c,    in,   out, sessions, rows * (c.transposed ? 1 : c.stride),
                          NULL, NULL, NULL};

    k.w = rnd_floats((size_t)in * (size_t)out * (size_t)c.kernel);
    k.bias = rnd_floats((size_t)out);
    k.x = rnd_floats((size_t)sessions * (size_t)k.rows * (size_t)in);
    return k;
}

static void case_free(struct conv_case *k)
{
    free(k->w);
    free(k->bias);
    free(k->x);
}

/* Output row t, channel o as the definition says, and the sum of its terms' sizes. */
static double defined(const struct conv_case *k, int session, int64_t t, int64_t o, double *size)
{
    double sum = k->bias[o];

    *size = fabs(sum);
    for (int64_t tap = 0; tap < k->c.kernel; tap++) {
        int64_t at, weight;

        if (k->c.transposed) { /* x row r adds to out rows r * stride + tap */
            at = t - tap;
            if (at < 0 || at % k->c.stride)
                continue;
            at /= k->c.stride;
        } else {
            at = t * k->c.stride + tap * k->c.dilation - mt_conv_past(&k->c);
        }
        for (int64_t i = 0; at >= 0 && at < k->rows && i < k->in; i++) {
            double p;

            weight = k->c.transposed ? (i * k->out + o) * k->c.kernel + tap
                                     : (o * k->in + i) * k->c.kernel + tap;
            p = (double)k->x[((int64_t)session * k->rows + at) * k->in + i] * k->w[weight];
            sum += p;
            *size += fabs(p);
        }
    }
    return sum;
}

/*
 * The whole case through the operation, `piece` rows a session at a time; got [sessions][rows
 * out][out].
 */
static void conv_run_case(struct mt_backend *be, const struct conv_case *k, int piece,
                          enum mt_act act, bool residual, bool dense, float *got)
{
    int past_rows = mt_conv_past(&k->c), outs = rows_of(k, piece), all = rows_of(k, k->rows);
    int up = k->c.transposed ? k->c.stride : 1,
        taps = k->c.transposed ? k->c.kernel / up : k->c.kernel;
    struct mt_bytes bytes = {k->w, MT_F32, k->c.transposed ? k->in : k->out,
                             (int64_t)k->c.kernel * (k->c.transposed ? k->out : k->in), false};
    float *bias = malloc((size_t)(up * k->out) * sizeof(*bias));
    float *part = malloc((size_t)(k->sessions * outs * k->out) * sizeof(*part) + 4);
    struct mt_rows past[8], scratch, flat = MT_NO_ROWS, x;
    struct mt_mat *m, *b;
    struct field fx, fy;

    for (int i = 0; i < up * k->out; i++)
        bias[i] = k->bias[i % k->out];
    assert_int_equal(be->ops->conv_new(be, &m, &bytes, &k->c), 0);
    assert_int_equal(
        be->ops->mat_new(be, &b, &(struct mt_bytes){bias, MT_F32, 1, (int64_t)up * k->out, false}),
        0);
    for (int s = 0; s < k->sessions; s++)
        assert_int_equal(be->ops->rows_new(be, &past[s], past_rows + 1, k->in), 0);
    fx = field_new(be, (int64_t)k->sessions * piece, k->in, NULL);
    fy = field_new(be, (int64_t)k->sessions * outs / up, up * k->out, NULL);
    assert_int_equal(
        be->ops->rows_new(be, &scratch, (int64_t)k->sessions * piece + 1, taps * k->in), 0);
    assert_int_equal(be->ops->rows_new(be, &flat, 1, k->sessions * piece * k->in + 1), 0);
    x = dense ? (struct mt_rows){flat.data, k->in, k->in} : fx.v;
    for (int at = 0; at < k->rows; at += piece) {
        for (int s = 0; s < k->sessions; s++)
            be->ops->rows_put(be, mt_rows_from(x, (int64_t)s * piece),
                              k->x + ((int64_t)s * k->rows + at) * k->in, piece);
        for (int64_t i = 0; residual && i < (int64_t)k->sessions * outs * k->out; i++)
            part[i] = 0.25F;
        if (residual)
            be->ops->rows_put(be, fy.v, part, (int64_t)k->sessions * outs / up);
        be->ops->conv(be, fy.v, x, m, b, &k->c, act, residual ? fy.v : MT_NO_ROWS, past,
                      k->sessions, piece, scratch);
        be->ops->rows_get(be, part, fy.v, (int64_t)k->sessions * outs / up);
        for (int s = 0; s < k->sessions; s++)
            memcpy(got + ((int64_t)s * all + rows_of(k, at)) * k->out,
                   part + (int64_t)s * outs * k->out, (size_t)(outs * k->out) * sizeof(*got));
    }
    field_free(be, &fx);
    field_free(be, &fy);
    be->ops->rows_free(be, &scratch);
    be->ops->rows_free(be, &flat);
    for (int s = 0; s < k->sessions; s++)
        be->ops->rows_free(be, &past[s]);
    be->ops->mat_free(be, m);
    be->ops->mat_free(be, b);
    free(bias);
    free(part);
}

static void check_conv(struct mt_backend *be, struct mt_conv c, int in, int out, int sessions,
                       int rows, bool residual)
{
    struct conv_case k = case_new(c, in, out, sessions, rows);
    size_t n = (size_t)sessions * (size_t)rows_of(&k, k.rows) * (size_t)out;
    int step = c.transposed ? 1 : c.stride, all = rows_of(&k, k.rows);
    float *whole = malloc(n * sizeof(*whole)), *part = malloc(n * sizeof(*part));

    conv_run_case(be, &k, k.rows, MT_ACT_NONE, residual, true, whole);
    for (int s = 0; s < sessions; s++)
        for (int64_t t = 0; t < all; t++)
            for (int64_t o = 0; o < out; o++) {
                double size, want = defined(&k, s, t, o, &size) + (residual ? 0.25 : 0);

                near(whole[(s * (int64_t)all + t) * out + o], want,
                     ((double)in * c.kernel + 4) * EPS * (size + 1), "conv", t, o);
            }
    /* Pieces of one step, and such that do and don't divide what a kernel sees. */
    for (int piece = step; piece <= k.rows; piece += step) {
        if (k.rows % piece)
            continue;
        conv_run_case(be, &k, piece, MT_ACT_NONE, residual, piece % (2 * step) == 0, part);
        assert_memory_equal(part, whole, n * sizeof(*part));
    }
    /* Alone as in company. */
    for (int s = 0; s < sessions; s++) {
        struct conv_case one = k;

        one.sessions = 1;
        one.x = k.x + (int64_t)s * k.rows * in;
        conv_run_case(be, &one, k.rows, MT_ACT_NONE, residual, false, part);
        assert_memory_equal(part, whole + (int64_t)s * all * out,
                            (size_t)(all * out) * sizeof(*part));
    }
    free(whole);
    free(part);
    case_free(&k);
}

static void test_conv(void **state)
{
    (void)state;
    for (enum mt_cpu_tier t = MT_CPU_SCALAR; t <= tier_max(); t++) {
        struct mt_backend *be = backend(t, 3);

        check_conv(be, (struct mt_conv){1, 1, 1, false}, 1, 1, 1, 1, false);
        check_conv(be, (struct mt_conv){1, 1, 1, false}, 33, 65, 3, 12, true);
        check_conv(be, (struct mt_conv){7, 1, 1, false}, 1, 64, 2, 96, false);
        check_conv(be, (struct mt_conv){3, 1, 1, false}, 64, 1, 1, 120, false);
        check_conv(be, (struct mt_conv){3, 1, 4, false}, 5, 9, 2, 36, true);
        check_conv(be, (struct mt_conv){8, 4, 1, false}, 17, 34, 3, 48, false);
        check_conv(be, (struct mt_conv){12, 6, 1, false}, 130, 70, 2, 3, false);
        check_conv(be, (struct mt_conv){4, 2, 1, false}, 24, 24, 4, 1, false);
        check_conv(be, (struct mt_conv){2, 1, 1, true}, 3, 5, 2, 7, false);
        check_conv(be, (struct mt_conv){10, 5, 1, true}, 16, 8, 3, 40, false);
        check_conv(be, (struct mt_conv){16, 8, 1, true}, 33, 17, 2, 2, true);
        check_conv(be, (struct mt_conv){9, 3, 1, true}, 4, 6, 2, 12, false);
        for (int i = 0; i < 12; i++) {
            struct mt_conv c = {.stride = rnd_int(1, 5), .dilation = 1, .transposed = i % 3 == 0};
            int in = odd_sizes[rnd_int(0, (int)MT_COUNT(odd_sizes) - 3)];
            int out = odd_sizes[rnd_int(0, (int)MT_COUNT(odd_sizes) - 1)];

            c.kernel = c.transposed ? c.stride * rnd_int(1, 3) : c.stride + rnd_int(0, 9);
            check_conv(be, c, in, out, rnd_int(1, 5), rnd_int(1, 70), i % 2);
        }
        be->ops->free(be);
    }
}

static void test_conv_threads(void **state)
{
    struct conv_case k = case_new((struct mt_conv){6, 3, 1, false}, 40, 150, 3, 64);
    size_t n = (size_t)3 * 64 * 150;
    float *a = malloc(n * sizeof(*a)), *b = malloc(n * sizeof(*b));

    (void)state;
    for (enum mt_cpu_tier t = MT_CPU_SCALAR; t <= tier_max(); t++)
        for (int threads = 1; threads <= 5; threads += 2) {
            struct mt_backend *be = backend(t, threads);

            conv_run_case(be, &k, k.rows, MT_ACT_ELU, false, true, threads == 1 ? a : b);
            if (threads > 1)
                assert_memory_equal(a, b, n * sizeof(*a));
            be->ops->free(be);
        }
    free(a);
    free(b);
    case_free(&k);
}

/* Half precision weights are those numbers; a shape that can't be is refused. */
static void test_conv_new(void **state)
{
    (void)state;
    for (enum mt_cpu_tier t = MT_CPU_SCALAR; t <= tier_max(); t++) {
        struct mt_backend *be = backend(t, 1);
        struct mt_bytes bad = {"12345678", MT_INT8, 1, 8, false};
        struct mt_conv c = {4, 2, 1, false}, up = {3, 2, 1, true};
        struct mt_mat *m;

        assert_int_equal(be->ops->conv_new(be, &m, &bad, &c), -ENOTSUP);
        bad.type = MT_F32;
        bad.cols = 7;
        assert_int_equal(be->ops->conv_new(be, &m, &bad, &c), -EINVAL);
        bad.cols = 6;
        assert_int_equal(be->ops->conv_new(be, &m, &bad, &up), -EINVAL);
        for (enum mt_dtype d = MT_F16; d <= MT_BF16; d++) {
            struct conv_case k = case_new((struct mt_conv){3, 1, 1, false}, 5, 20, 1, 6);
            void *own;
            struct mt_bytes bytes = bytes_new(k.w, d, 20, 15, &own);
            float x[6 * 5], y[6 * 20];
            struct mt_rows fx, fy, past, scratch;

            num_decode(k.w, d, bytes.data, 0, 300);
            memcpy(x, k.x, sizeof(x));
            memset(k.bias, 0, 20 * sizeof(float));
            be->ops->rows_new(be, &fx, 6, 5);
            be->ops->rows_new(be, &fy, 6, 20);
            be->ops->rows_new(be, &past, 2, 5);
            be->ops->rows_new(be, &scratch, 6, 15);
            be->ops->rows_put(be, fx, x, 6);
            assert_int_equal(be->ops->conv_new(be, &m, &bytes, &k.c), 0);
            be->ops->conv(be, fy, fx, m, NULL, &k.c, MT_ACT_NONE, MT_NO_ROWS, &past, 1, 6, scratch);
            be->ops->rows_get(be, y, fy, 6);
            for (int64_t r = 0; r < 6; r++)
                for (int64_t o = 0; o < 20; o++) {
                    double size, want = defined(&k, 0, r, o, &size);

                    near(y[r * 20 + o], want, 20 * EPS * (size + 1), "half", r, o);
                }
            be->ops->mat_free(be, m);
            be->ops->rows_free(be, &fx);
            be->ops->rows_free(be, &fy);
            be->ops->rows_free(be, &past);
            be->ops->rows_free(be, &scratch);
            free(own);
            case_free(&k);
        }
        be->ops->free(be);
    }
}

/* One filter a channel: a full transposed convolution whose other weights are 0. */
static void test_conv_each(void **state)
{
    (void)state;
    for (enum mt_cpu_tier t = MT_CPU_SCALAR; t <= tier_max(); t++) {
        struct mt_backend *be = backend(t, 2);

        for (int i = 0; i < 10; i++) {
            struct mt_conv c = {.stride = rnd_int(1, 4), .dilation = 1, .transposed = true};
            int width = odd_sizes[rnd_int(0, 12)], n = rnd_int(1, 4), rows = rnd_int(1, 5),
                frames = 4;
            int outs;

            c.kernel = c.stride * rnd_int(1, 3);
            outs = c.stride * width;
            struct weight w = weight_new(be, i % 2 ? MT_F32 : MT_BF16, width, c.kernel);
            float *x = rnd_floats((size_t)(frames * n * rows * width));
            float *y = malloc((size_t)(n * rows * outs) * sizeof(*y));
            struct field fx = field_new(be, n * rows, width, NULL),
                         fy = field_new(be, n * rows, outs, NULL);
            struct mt_rows past[4];

            for (int s = 0; s < n; s++)
                assert_int_equal(be->ops->rows_new(be, &past[s], mt_conv_past(&c) + 1, width), 0);
            for (int64_t f = 0; f < frames; f++) {
                be->ops->rows_put(be, fx.v, x + f * n * rows * width, n * rows);
                be->ops->conv_each(be, fy.v, fx.v, w.m, &c, past, n, rows);
                be->ops->rows_get(be, y, fy.v, n * rows);
                for (int64_t s = 0; s < n; s++)
                    for (int64_t r = 0; r < rows; r++)
                        for (int64_t p = 0; p < outs; p++) {
                            int64_t ch = p % width, phase = p / width;
                            double want = 0, size = 0;

                            for (int64_t m = 0; m < c.kernel / c.stride; m++) {
                                int64_t at = f * rows + r - m; /* of the session */
                                int64_t row = at / rows * n * rows + s * rows + at % rows;

                                if (at < 0)
                                    continue;
                                want += (double)x[row * width + ch] *
                                        w.f[ch * c.kernel + phase + m * c.stride];
                                size += fabs(want);
                            }
                            near(y[(s * rows + r) * outs + p], want, 4 * EPS * (size + 1e-3),
                                 "each", s * rows + r, p);
                        }
            }
            for (int s = 0; s < n; s++)
                be->ops->rows_free(be, &past[s]);
            field_free(be, &fx);
            field_free(be, &fy);
            weight_free(be, &w);
            free(x);
            free(y);
        }
        be->ops->free(be);
    }
}

static void test_activate(void **state)
{
    static const float edge[] = {0,     -0.0F, 1e-30F, -1e-30F,  -1e-4F,   -0.3F,
                                 -0.4F, -5,    -17,    -18,      -90,      -200,
                                 100,   1e30F, -1e30F, INFINITY, -INFINITY};

    (void)state;
    for (enum mt_cpu_tier t = MT_CPU_SCALAR; t <= tier_max(); t++) {
        struct mt_backend *be = backend(t, 2);

        for (unsigned s = 0; s < MT_COUNT(odd_sizes); s++)
            for (enum mt_act a = MT_ACT_NONE; a <= MT_ACT_ELU; a++) {
                int64_t width = odd_sizes[s], n = rnd_int(1, 5);
                float *x = rnd_floats((size_t)(n * width)), *y = rnd_floats((size_t)(n * width));
                struct field fx, fy = field_new(be, n, width, NULL);

                for (int64_t i = 0; i < n * width; i++)
                    x[i] = rnd_int(0, 9) || a != MT_ACT_ELU ? x[i] * 3
                                                            : edge[rnd_int(0, MT_COUNT(edge) - 1)];
                fx = field_new(be, n, width, x);
                be->ops->activate(be, fy.v, fx.v, a, n);
                be->ops->activate(be, fx.v, fx.v, a, n);
                be->ops->rows_get(be, y, fy.v, n);
                for (int64_t i = 0; i < n * width; i++) {
                    double want = num_act(a, x[i]);

                    if (isinf(want))
                        assert_true(y[i] == want);
                    else
                        near(y[i], want, 4 * EPS * fabs(want) + (a == MT_ACT_GELU ? 1e-7 : 1e-36),
                             "act", a, i);
                }
                be->ops->rows_get(be, x, fx.v, n);
                assert_memory_equal(x, y, (size_t)(n * width) * sizeof(float));
                field_free(be, &fx);
                field_free(be, &fy);
                free(x);
                free(y);
            }
        be->ops->free(be);
    }
}

static void test_adds(void **state)
{
    (void)state;
    for (enum mt_cpu_tier t = MT_CPU_SCALAR; t <= tier_max(); t++) {
        struct mt_backend *be = backend(t, 2);

        for (int i = 0; i < 20; i++) {
            int width = rnd_int(1, 300), n = rnd_int(1, 4);
            struct weight w = weight_new(be, MT_F32, 1, width),
                          table = weight_new(be, MT_BF16, 9, width);
            float *x = rnd_floats((size_t)(n * width)), *y = rnd_floats((size_t)(n * width));
            float *got = malloc((size_t)(n * width) * sizeof(*got));
            struct field fx = field_new(be, n, width, x), fy = field_new(be, n, width, y);
            int32_t ids[4];

            be->ops->scaled_add(be, fy.v, fx.v, w.m, n);
            be->ops->rows_get(be, got, fy.v, n);
            for (int64_t k = 0; k < n * width; k++) {
                double want = y[k] + (double)x[k] * w.f[k % width];

                near(got[k], want,
                     2 * EPS * (fabs(y[k]) + fabs(want) + fabs(x[k] * w.f[k % width])), "scaled", 0,
                     k);
            }
            for (int r = 0; r < n; r++)
                ids[r] = rnd_int(-1, 8);
            be->ops->embed_add(be, fx.v, table.m, ids, n);
            be->ops->rows_get(be, got, fx.v, n);
            for (int64_t k = 0; k < n * width; k++)
                assert_true(got[k] == (ids[k / width] < 0
                                           ? x[k]
                                           : x[k] + table.f[ids[k / width] * width + k % width]));
            field_free(be, &fx);
            field_free(be, &fy);
            weight_free(be, &w);
            weight_free(be, &table);
            free(x);
            free(y);
            free(got);
        }
        be->ops->free(be);
    }
}

/* Another tier may find another vector, one that is as near but for rounding. */
static void check_quantize(struct mt_backend *be, int bins, int width, int n, enum mt_dtype type)
{
    struct weight w = weight_new(be, type, bins, width);
    float *x = rnd_floats((size_t)(n * width)), *y = malloc((size_t)(n * width) * sizeof(*y));
    struct field f = field_new(be, n, width, x);
    int32_t *ids = malloc((size_t)n * sizeof(*ids)), one;

    be->ops->quantize(be, ids, f.v, w.m, n);
    be->ops->rows_get(be, y, f.v, n);
    for (int64_t r = 0; r < n; r++) {
        double least = INFINITY, taken = 0;

        assert_in_range(ids[r], 0, bins - 1);
        for (int64_t o = 0; o < bins; o++) {
            double d = 0;

            for (int64_t i = 0; i < width; i++)
                d += pow((double)x[r * width + i] - w.f[o * width + i], 2);
            least = d < least ? d : least;
            taken = o == ids[r] ? d : taken;
        }
        assert_true(taken <= least * (1 + (width + 4) * EPS));
        for (int64_t i = 0; i < width; i++)
            assert_true(y[r * width + i] == x[r * width + i] - w.f[ids[r] * width + i]);
        be->ops->rows_put(be, f.v, x + r * width, 1); /* alone */
        be->ops->quantize(be, &one, f.v, w.m, 1);
        assert_int_equal(one, ids[r]);
    }
    field_free(be, &f);
    weight_free(be, &w);
    free(x);
    free(y);
    free(ids);
}

static void test_quantize(void **state)
{
    static float same[40 * 5], v[5] = {1, 2, 3, 4, 5}, nan[5] = {NAN, 0, 0, 0, 0};

    (void)state;
    for (enum mt_cpu_tier t = MT_CPU_SCALAR; t <= tier_max(); t++) {
        struct mt_backend *be = backend(t, 3);
        struct mt_mat *m;
        struct mt_rows x;
        int32_t id;

        check_quantize(be, 2048, 256, 3, MT_F32);
        check_quantize(be, 300, 17, 40, MT_BF16);
        for (unsigned s = 0; s < MT_COUNT(odd_sizes); s++)
            check_quantize(be, odd_sizes[MT_COUNT(odd_sizes) - 1 - s], odd_sizes[s], rnd_int(1, 20),
                           MT_F32);
        /* The lowest among equals, wherever they stand; what is no number is the first. */
        for (int o = 0; o < 40; o++)
            memcpy(same + (int64_t)o * 5, v, o >= 21 ? sizeof(v) : 0);
        assert_int_equal(be->ops->mat_new(be, &m, &(struct mt_bytes){same, MT_F32, 40, 5, false}),
                         0);
        assert_int_equal(be->ops->rows_new(be, &x, 1, 5), 0);
        be->ops->rows_put(be, x, v, 1);
        be->ops->quantize(be, &id, x, m, 1);
        assert_int_equal(id, 21);
        be->ops->quantize(be, &id, x, m, 1); /* nothing is left */
        assert_int_equal(id, 0);
        be->ops->rows_put(be, x, nan, 1);
        be->ops->quantize(be, &id, x, m, 1);
        assert_int_equal(id, 0);
        be->ops->rows_free(be, &x);
        be->ops->mat_free(be, m);
        be->ops->free(be);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_conv),     cmocka_unit_test(test_conv_threads),
        cmocka_unit_test(test_conv_new), cmocka_unit_test(test_conv_each),
        cmocka_unit_test(test_activate), cmocka_unit_test(test_adds),
        cmocka_unit_test(test_quantize),
    };

    return cmocka_run_group_tests_name("kernels_codec", tests, NULL, NULL);
}
