/*
 * test_kernels_mel.c: log-mel of many sessions at once against a dense transform in f64 written
 * here from the definition, and the clamp against what a session alone would do.
 */
#include "test_kernels.h"

#include "audio/audio.h"

#include <errno.h>

/* ---- the reference ---- */

static double hz_at(double mel)
{
    return mel < 15 ? mel * 200.0 / 3.0 : 1000.0 * pow(6.4, (mel - 15.0) / 27.0);
}

/* Band b's share of what lies at hz. */
static double share(int b, int bands, double hz)
{
    double top = 15 + 27 * log(8.0) / log(6.4), lo = hz_at(top * b / (bands + 1));
    double mid = hz_at(top * (b + 1) / (bands + 1)), hi = hz_at(top * (b + 2) / (bands + 1));

    return fmax(0, fmin((hz - lo) / (mid - lo), (hi - hz) / (hi - mid))) * 2 / (hi - lo);
}

/*
 * The row of x[0..399], and how far from it an honest f32 may be: every bin's amplitude is off by
 * some roundings of the whole frame's, and then the log by its own.
 */
static void defined(const float *x, int bands, double *row, double *tol)
{
    static double cosines[400], sines[400];
    double power[201], off[201], size = 0;

    for (int i = 0; i < 400; i++) {
        double v = (double)x[i] * (0.5 - 0.5 * cos(2 * M_PI * i / 400));

        cosines[i] = cos(2 * M_PI * i / 400);
        sines[i] = sin(2 * M_PI * i / 400);
        size += i ? v * v : 0;
    }
    size = 8 * EPS * sqrt(size);
    for (int k = 0; k <= 200; k++) {
        double re = 0, im = 0;

        for (int i = 1; i < 400; i++) {
            double v = (double)x[i] * (0.5 - 0.5 * cosines[i]);

            re += v * cosines[k * i % 400];
            im += v * sines[k * i % 400];
        }
        power[k] = re * re + im * im;
        off[k] = 2 * sqrt(power[k]) * size + size * size + 8 * EPS * power[k];
    }
    for (int b = 0; b < bands; b++) {
        double sum = 0, far = 0;

        for (int k = 0; k <= 200; k++) {
            sum += power[k] * share(b, bands, 40.0 * k);
            far += off[k] * share(b, bands, 40.0 * k);
        }
        row[b] = log10(fmax(sum, 1e-10));
        tol[b] = log10(fmax(sum, 1e-10) + far) - row[b] + 16 * EPS;
        /* Below it a log falls faster than it climbs above. */
        tol[b] = fmax(tol[b], row[b] - log10(fmax(sum - far, 1e-10)) + 16 * EPS);
    }
}

enum kind { NOISE, SILENCE, FULL, CLICK, TONE, QUIET, KINDS };

static float *sound_new(int64_t n, enum kind kind)
{
    float *x = malloc((size_t)n * sizeof(*x));
    int click = rnd_int(0, (int)n - 1), step = rnd_int(1, 199);

    assert_non_null(x);
    for (int64_t i = 0; i < n; i++) {
        double tone = sin(2 * M_PI * (double)(i * step % 400) / 400);

        x[i] = kind == NOISE   ? 0.2F * rnd_float()
               : kind == FULL  ? (rnd() & 1 ? 1.0F : -1.0F)
               : kind == CLICK ? (float)(i == click)
               : kind == TONE  ? (float)tone
               : kind == QUIET ? (float)(3e-5 * tone)
                               : 0.0F;
    }
    return x;
}

enum { SPANS = 7, FRAMES = 21 };

/* Sessions of some frames each, rows between them that nobody writes, and rows alone as together. */
static void check_rows(struct mt_backend *be, int bands, int n_spans, int longest)
{
    struct mt_mel_span span[SPANS];
    struct mt_mels *m;
    float *x[SPANS], *got;
    double want[MT_MEL_BANDS_MAX], tol[MT_MEL_BANDS_MAX];
    int rows = 0, row = 0;

    for (int s = 0; s < n_spans; s++) {
        int gap = rnd_int(0, 2), n = rnd_int(s % 3 == 2 ? 0 : 1, longest);

        x[s] = sound_new(mt_mel_sees(n > 0 ? n : 1), (enum kind)rnd_int(0, KINDS - 1));
        span[s] = (struct mt_mel_span){rows + gap, n, x[s]};
        rows += gap + n;
    }
    rows++;
    got = malloc((size_t)rows * (size_t)bands * sizeof(*got));
    for (int i = 0; i < rows * bands; i++)
        got[i] = GUARD;
    assert_int_equal(be->ops->mel_new(be, &m, bands), 0);
    struct field f = field_new(be, rows, bands, got), one = field_new(be, 1, bands, NULL);
    be->ops->log_mel(be, f.v, m, span, n_spans);
    be->ops->rows_get(be, got, f.v, rows);
    for (int s = 0; s < n_spans; s++) {
        for (; row < span[s].row; row++)
            for (int b = 0; b < bands; b++)
                assert_true(got[row * bands + b] == GUARD);
        for (; row < span[s].row + span[s].n; row++) {
            const float *at = x[s] + (int64_t)(row - span[s].row) * MT_MEL_HOP;
            struct mt_mel_span alone = {0, 1, at};
            float again[MT_MEL_BANDS_MAX];

            defined(at, bands, want, tol);
            for (int b = 0; b < bands; b++)
                near(got[row * bands + b], want[b], tol[b], "mel", row, b);
            be->ops->log_mel(be, one.v, m, &alone, 1);
            be->ops->rows_get(be, again, one.v, 1);
            assert_memory_equal(again, got + (size_t)row * (size_t)bands,
                                (size_t)bands * sizeof(*got));
        }
    }
    field_free(be, &f);
    field_free(be, &one);
    be->ops->mel_free(be, m);
    for (int s = 0; s < n_spans; s++)
        free(x[s]);
    free(got);
}

static void test_rows(void **state)
{
    static const int bands[] = {80, 128, 1, 40, 201, 256};
    struct mt_backend *be = backend(tier_max(), 3);

    (void)state;
    be->ops->log_mel(be, MT_NO_ROWS, NULL, NULL, 0);
    for (size_t i = 0; i < MT_COUNT(bands); i++) {
        check_rows(be, bands[i], 1, 1);
        check_rows(be, bands[i], 1, FRAMES);
        check_rows(be, bands[i], SPANS, i < 2 ? FRAMES : 3);
    }
    be->ops->free(be);
}

/* The CPU's rows are those of audio.h, on one thread or several; elsewhere they are near. */
static void test_library(void **state)
{
    enum { BANDS = 128, N = 60 };
    float *x = sound_new(mt_mel_sees(N), NOISE), *want = malloc(sizeof(float) * N * BANDS);
    float *got = malloc(sizeof(float) * N * BANDS);
    struct mt_mel_span span[] = {
        {0, 17, x}, {17, 1, x + 17 * MT_MEL_HOP}, {18, N - 18, x + 18 * MT_MEL_HOP}};
    struct mt_mel *m;

    (void)state;
    assert_int_equal(mt_mel_new(&m, BANDS, NULL), 0);
    mt_mel_rows(m, x, N, want, BANDS);
    for (int threads = 1; threads <= 4; threads += 3) {
        struct mt_backend *be = backend(tier_max(), threads);
        struct mt_mels *mels;
        struct field f = field_new(be, N, BANDS, NULL);

        assert_int_equal(be->ops->mel_new(be, &mels, BANDS), 0);
        be->ops->log_mel(be, f.v, mels, span, 3);
        be->ops->rows_get(be, got, f.v, N);
#ifdef TEST_CUDA
        for (int i = 0; i < N * BANDS; i++) /* no bin of noise is far below the frame's */
            near(got[i], want[i], 1e-4, "mel", i / BANDS, i % BANDS);
#else
        assert_memory_equal(got, want, sizeof(float) * N * BANDS);
#endif
        field_free(be, &f);
        be->ops->mel_free(be, mels);
        be->ops->free(be);
    }
    mt_mel_free(&m);
    free(x);
    free(want);
    free(got);
}

/* ---- the clamp ---- */

enum { CELLS = 5, ITEMS = 9 };

/* Random programs over random rows: each session's items in their order. */
static void check_clamp(struct mt_backend *be, int width)
{
    struct mt_mel_clamp item[ITEMS];
    struct field f, cells[3];
    int rows = rnd_int(1, 40), by[ITEMS][CELLS], n = rnd_int(1, ITEMS), session = 0;
    float *x = rnd_floats((size_t)rows * (size_t)width), *got, held[3][CELLS];

    got = malloc((size_t)rows * (size_t)width * sizeof(*got));
    for (int i = 0; i < rows * width; i++)
        x[i] = 4 * x[i] - 4;
    f = field_new(be, rows, width, x);
    for (int s = 0; s < 3; s++) {
        for (int k = 0; k < CELLS; k++)
            held[s][k] = rnd_int(0, 3) ? 3 * rnd_float() : -INFINITY;
        cells[s] = field_new(be, 1, CELLS, held[s]);
    }
    /* A session's rows are a third of all: no two sessions touch the same. */
    for (int i = 0; i < n; i++) {
        int lo, size;

        session += session < 2 && rnd_int(0, 2) == 0;
        lo = rows * session / 3;
        size = rows * (session + 1) / 3 - lo;
        struct mt_mel_clamp *it = &item[i];
        *it = (struct mt_mel_clamp){.cells = cells[session].v,
                                    .loud = {lo, rnd_int(0, size)},
                                    .into = rnd_int(0, CELLS - 1),
                                    .beside = rnd_int(0, 1),
                                    .by = by[i],
                                    .n_by = rnd_int(0, CELLS)};
        it->loud.row += rnd_int(0, size - it->loud.n);
        it->rows = (struct mt_span){lo, rnd_int(0, size)};
        it->rows.row += rnd_int(0, size - it->rows.n);
        for (int k = 0; k < it->n_by; k++)
            by[i][k] = rnd_int(0, CELLS - 1);
        float m = it->beside ? held[session][it->into] : -INFINITY;
        for (int k = it->loud.row * width; k < (it->loud.row + it->loud.n) * width; k++)
            m = fmaxf(m, x[k]);
        held[session][it->into] = m;
        m = -INFINITY;
        for (int k = 0; k < it->n_by; k++)
            m = fmaxf(m, held[session][by[i][k]]);
        for (int k = it->rows.row * width; k < (it->rows.row + it->rows.n) * width; k++)
            x[k] = (fmaxf(x[k], m - 8) + 4) / 4;
    }
    be->ops->mel_clamp(be, f.v, item, n);
    be->ops->rows_get(be, got, f.v, rows);
    assert_memory_equal(got, x, (size_t)rows * (size_t)width * sizeof(*x));
    for (int s = 0; s < 3; s++) {
        be->ops->rows_get(be, got, cells[s].v, 1);
        assert_memory_equal(got, held[s], sizeof(held[s]));
        field_free(be, &cells[s]);
    }
    field_free(be, &f);
    free(x);
    free(got);
}

static void test_clamp(void **state)
{
    struct mt_backend *be = backend(tier_max(), 2);

    (void)state;
    for (int i = 0; i < 60; i++)
        check_clamp(be, i % 3 ? odd_sizes[rnd_int(0, (int)MT_COUNT(odd_sizes) - 1)] + CELLS : 128);
    be->ops->mel_clamp(be, MT_NO_ROWS, NULL, 0);
    be->ops->free(be);
}

static void test_refuses(void **state)
{
    static const int bands[] = {-1, 0, 257};
    struct mt_backend *be = backend(tier_max(), 1);
    struct mt_mels *m;

    (void)state;
    for (size_t i = 0; i < MT_COUNT(bands); i++) {
        assert_int_equal(be->ops->mel_new(be, &m, bands[i]), -EINVAL);
        assert_null(m);
    }
    be->ops->mel_free(be, NULL);
    be->ops->free(be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_library),
        cmocka_unit_test(test_clamp),
        cmocka_unit_test(test_refuses),
    };

    return cmocka_run_group_tests_name("kernels_mel", tests, NULL, NULL);
}
