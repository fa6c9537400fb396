/*
 * test_mel.c: the log-mel front end against a slow independent reference in f64, written from the
 * definition (a dense DFT of the padded clip), and the stream against the clip, bit for bit.
 */
#include "audio/audio.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- the reference ---- */

enum { PADDED = 300 * 16000 };

static double to_hz(double mel)
{
    return mel < 15 ? mel * 200.0 / 3.0 : 1000.0 * pow(6.4, (mel - 15.0) / 27.0);
}

/* numpy's reflect of the clip with zeros up to 300 s (a longer one: zeros behind it). */
static double padded_at(const float *x, int64_t n, int64_t i)
{
    if (i < 0)
        i = -i;
    if (n <= PADDED && i >= PADDED)
        i = 2 * (PADDED - 1) - i;
    return i < n ? (double)x[i] : 0.0;
}

static void ref_row(const float *x, int64_t n, int bands, int64_t t, double *row)
{
    static double cosines[400], sines[400];
    double power[201];

    for (int i = 0; i < 400 && cosines[0] != 1; i++)
        sines[i] = sin(2 * M_PI * i / 400);
    for (int i = 399; i >= 0 && cosines[0] != 1; i--) /* the first one last: it says "done" */
        cosines[i] = cos(2 * M_PI * i / 400);
    for (int k = 0; k <= 200; k++) {
        double re = 0, im = 0;

        for (int i = 0; i < 400; i++) {
            double v = padded_at(x, n, t * 160 - 200 + i) * (0.5 - 0.5 * cosines[i]);

            re += v * cosines[k * i % 400];
            im += v * sines[k * i % 400];
        }
        power[k] = re * re + im * im;
    }
    for (int b = 0; b < bands; b++) {
        double top = 15 + 27 * log(8.0) / log(6.4), sum = 0;
        double lo = to_hz(top * b / (bands + 1)), mid = to_hz(top * (b + 1) / (bands + 1));
        double hi = to_hz(top * (b + 2) / (bands + 1));

        for (int k = 0; k <= 200; k++) {
            double hz = 40.0 * k;

            if (hz > lo && hz <= mid)
                sum += power[k] * (hz - lo) / (mid - lo) * 2 / (hi - lo);
            else if (hz > mid && hz < hi)
                sum += power[k] * (hi - hz) / (hi - mid) * 2 / (hi - lo);
        }
        row[b] = log10(sum > 1e-10 ? sum : 1e-10);
    }
}

/* The whole clip: the maximum also over two frames of padding, where those exist. */
static double *ref_clip(const float *x, int64_t n, int bands, double *loudest)
{
    int64_t frames = (n + 159) / 160, all = frames + 2;
    double *rows = malloc(sizeof(double) * (size_t)(all * bands));

    *loudest = -10;
    for (int64_t t = 0; t < all && t < PADDED / 160; t++) {
        ref_row(x, n, bands, t, rows + t * bands);
        for (int b = 0; b < bands; b++)
            *loudest = fmax(*loudest, rows[t * bands + b]);
    }
    for (int64_t i = 0; i < frames * bands; i++)
        rows[i] = (fmax(rows[i], *loudest - 8) + 4) / 4;
    return rows;
}

static float *speechlike(int64_t n, uint64_t seed)
{
    float *x = malloc(sizeof(float) * (size_t)(n + 1));

    for (int64_t i = 0; i <= n; i++) {
        double t = (double)i / 16000, v = 0;

        for (int h = 1; h < 12; h++)
            v += sin(2 * M_PI * 130 * h * t + 3 * sin(2 * M_PI * 2 * t)) / (h * h);
        v *= 0.25 * (1 + sin(2 * M_PI * 3 * t));
        x[i] = (float)(v + 0.002 * (mt_unit(mt_mix64(seed + (uint64_t)i)) - 0.5));
    }
    return x;
}

/* ---- the clip ---- */

static void check_clip(const float *x, int64_t n, int bands)
{
    int64_t frames = mt_mel_clip_frames(MT_MEL_PADDED, n);
    float *got = malloc(sizeof(float) * (size_t)(frames * bands));
    double loudest, *want = ref_clip(x, n, bands, &loudest), worst = 0;
    struct mt_mel *m;

    assert_int_equal(frames, (n + 159) / 160);
    assert_int_equal(mt_mel_new(&m, bands, NULL), 0);
    assert_int_equal(mt_mel_clip(m, MT_MEL_PADDED, x, n, got), 0);
    for (int64_t i = 0; i < frames * bands; i++)
        worst = fmax(worst, fabs((double)got[i] - want[i]));
    /*
     * f32 transform: amplitudes are off by some 2^-24 of the loudest bin, so a power 8 decades (the
     * clamp) below by about 1e-3 of itself, a log by 5e-4, and a quarter of it is left.
     */
    if (worst > 1.3e-4)
        fail_msg("%lld samples, %d bands: off by %g", (long long)n, bands, worst);
    mt_mel_free(&m);
    assert_null(m);
    free(want);
    free(got);
}

static void test_clip(void **state)
{
    static const int64_t lengths[] = {1,   2,   39,  40,  41,   159,  160,  161,   199,
                                      200, 201, 202, 319, 320,  321,  359,  360,   361,
                                      400, 480, 481, 999, 1600, 1601, 8000, 16001, 32000};

    (void)state;
    for (size_t i = 0; i < MT_COUNT(lengths); i++) {
        float *x = speechlike(lengths[i], i);

        check_clip(x, lengths[i], 128);
        check_clip(x, lengths[i], 80);
        free(x);
    }
}

/* Steep, quiet and empty: a loud tone alone, silence, one click, the loudest moment last. */
static void test_hard_clips(void **state)
{
    float *x = calloc(4000, sizeof(float));

    (void)state;
    check_clip(x, 4000, 128);
    x[3999] = 1; /* heard best by the first frame of the padding */
    check_clip(x, 4000, 128);
    check_clip(x, 4000, 80);
    x[3999] = 0;
    x[0] = 1;
    check_clip(x, 4000, 128);
    for (int i = 0; i < 4000; i++)
        x[i] = (float)sin(2 * M_PI * 100 * i / 16000.0);
    check_clip(x, 4000, 128);
    for (int i = 0; i < 4000; i++)
        x[i] = i % 2 ? -1.0F : 1.0F;
    check_clip(x, 4000, 128);
    free(x);
}

static void test_clip_bang_at_the_end(void **state)
{
    float *x = calloc(160, sizeof(float)), row[128];
    struct mt_mel *m;
    double loudest, *want;

    (void)state;
    x[159] = 1;
    want = ref_clip(x, 160, 128, &loudest);
    assert_int_equal(mt_mel_new(&m, 128, NULL), 0);
    assert_int_equal(mt_mel_clip(m, MT_MEL_PADDED, x, 160, row), 0);
    for (int b = 0; b < 128; b++)
        assert_true(fabs((double)row[b] - want[b]) < 1e-5);
    /* this clip tells the rule: the row's own maximum alone would give a lower clamp */
    assert_true((double)row[127] < (loudest + 4) / 4 - 0.2);
    mt_mel_free(&m);
    free(want);
    free(x);
}

/* At 300 s exactly there is no padding: the right edge reflects. One sample more: zeros again. */
static void test_300_seconds(void **state)
{
    float *x = speechlike(PADDED + 1, 5);
    float *got = malloc(sizeof(float) * 30001 * 80);
    struct mt_mel *m;

    (void)state;
    assert_int_equal(mt_mel_new(&m, 80, NULL), 0);
    for (int64_t n = PADDED - 39; n <= PADDED + 1; n += n < PADDED - 1 ? 38 : 1) {
        int64_t frames = mt_mel_clip_frames(MT_MEL_PADDED, n);
        double floor_at = -INFINITY;

        assert_int_equal(mt_mel_clip(m, MT_MEL_PADDED, x, n, got), 0);
        for (int64_t i = 0; i < frames * 80; i++)
            floor_at = fmax(floor_at, (double)got[i] - 2);
        for (int64_t t = frames - 3; t < frames; t++) {
            double row[80];

            ref_row(x, n, 80, t, row);
            for (int b = 0; b < 80; b++) {
                double want = fmax((row[b] + 4) / 4, floor_at);

                if (fabs((double)got[t * 80 + b] - want) > 1e-4)
                    fail_msg("%lld samples, frame %lld, band %d: %.7g, %.7g was expected",
                             (long long)n, (long long)t, b, (double)got[t * 80 + b], want);
            }
        }
    }
    mt_mel_free(&m);
    free(x);
    free(got);
}

/* ---- the stream ---- */

/* Frames of a push, as rows. */
static int push_rows(struct mt_mel *m, struct mt_mel_stream *s, const float *x, int64_t n, bool end,
                     float *rows, int bands, int most, int64_t *used)
{
    float *sees = malloc(sizeof(float) * (size_t)mt_mel_sees(most + 1));
    int got = mt_mel_push(s, x, n, end, sees, most, used);

    if (got > 0)
        mt_mel_rows(m, sees, got, rows, bands);
    free(sees);
    return got;
}

/* All of x in random pieces, room for few rows at a time. Returns the rows. */
static int64_t stream(struct mt_mel *m, int bands, const float *x, int64_t n, int64_t max_piece,
                      uint64_t seed, float *out)
{
    struct mt_mel_stream s;
    struct mt_state_io io = {0};
    int64_t done = 0, rows = 0;

    mt_mel_stream_init(&s);
    for (;;) {
        int64_t piece = (int64_t)(mt_mix64(seed++) % (uint64_t)(max_piece + 1)), used;
        int room = (int)(mt_mix64(seed++) % 7);
        bool end;
        int got;

        piece = piece < n - done ? piece : n - done;
        end = done + piece == n && mt_mix64(seed++) % 2;
        got = push_rows(m, &s, x + done, piece, end, out + rows * bands, bands, room, &used);
        assert_true(got >= 0 && got <= room && used >= 0 && used <= piece);
        assert_true(s.n_hold <= 400);
        done += used;
        rows += got;
        assert_int_equal(s.heard, done);
        assert_int_equal(s.next, rows);
        if (!s.ended) {
            /* every frame whose samples are here is out, unless there was no room */
            assert_true(rows * 160 + 200 >= done);
            if (got < room)
                assert_true(used == piece && rows * 160 + 200 > done);
        } else if (got == 0 && room > 0) {
            break;
        }
    }
    assert_int_equal(mt_mel_push(&s, x, 1, false, out, 1, &done), -EINVAL);
    mt_mel_stream_visit(&s, &io);
    assert_int_equal(io.err.code, -EPROTO);
    free(io.data);
    return rows;
}

static void test_stream_is_the_clip(void **state)
{
    static const int64_t lengths[] = {0,   1,   40,  159, 160, 161,  199,   200,  201,
                                      239, 240, 359, 360, 361, 5000, 16000, 48017};
    enum { BANDS = 80 };
    struct mt_mel *m;

    (void)state;
    assert_int_equal(mt_mel_new(&m, BANDS, NULL), 0);
    for (size_t i = 0; i < MT_COUNT(lengths); i++) {
        int64_t n = lengths[i], frames = mt_mel_clip_frames(MT_MEL_PADDED, n);
        float *x = speechlike(n, i);
        float *clip = malloc(sizeof(float) * (size_t)(frames + 8) * BANDS);
        float *rows = malloc(sizeof(float) * (size_t)(frames + 8) * BANDS);
        float *first = malloc(sizeof(float) * (size_t)(frames + 8) * BANDS);
        float loudest = -INFINITY;

        for (uint64_t seed = 0; seed < 40; seed++) {
            float *to = seed == 0 ? first : rows;

            assert_int_equal(stream(m, BANDS, x, n, seed % 2 ? 7 : 1500, seed * 99991, to), frames);
            if (seed > 0)
                assert_memory_equal(first, rows, sizeof(float) * (size_t)frames * BANDS);
        }
        if (n > 0) { /* no bang at the end, so the rows' maximum is the clip's */
            assert_int_equal(mt_mel_clip(m, MT_MEL_PADDED, x, n, clip), 0);
            if (n > 400) {
                loudest = mt_mel_loudest(first, frames * BANDS, loudest);
                mt_mel_scale(first, frames * BANDS, loudest);
                assert_memory_equal(first, clip, sizeof(float) * (size_t)frames * BANDS);
            } else {
                for (int64_t k = 0; k < frames * BANDS; k++)
                    assert_true(clip[k] >= (first[k] + 4) / 4);
            }
        }
        free(x);
        free(clip);
        free(rows);
        free(first);
    }
    mt_mel_free(&m);
}

/* Frame t comes with sample 160 t + 199, not before and not after. */
static void test_stream_lookahead(void **state)
{
    float *x = speechlike(4000, 1), sees[MT_MEL_FFT];
    struct mt_mel_stream s;
    int64_t rows = 0, used;

    (void)state;
    mt_mel_stream_init(&s);
    for (int64_t i = 0; i < 4000; i++) {
        int got = mt_mel_push(&s, x + i, 1, false, sees, 1, &used);

        assert_int_equal(used, 1);
        assert_int_equal(got, i == 160 * rows + 159 + MT_MEL_LOOKAHEAD);
        rows += got;
    }
    assert_int_equal(rows, 24);
    free(x);
}

/* ---- the rest ---- */

static void test_scale(void **state)
{
    float rows[] = {1, -7.5F, -10, 2, -3, 0};
    const float want[] = {1.25F, -0.5F, -0.5F, 1.5F, 0.25F, 1};

    (void)state;
    assert_true(mt_mel_loudest(rows, 3, -INFINITY) == 1);
    assert_true(mt_mel_loudest(rows, 6, 1) == 2);
    assert_true(mt_mel_loudest(rows, 6, 5) == 5); /* the loudest stays in memory */
    mt_mel_scale(rows, 3, 2);
    mt_mel_scale(rows + 3, 3, -INFINITY);
    assert_memory_equal(rows, want, sizeof(want));
}

static void test_refuses(void **state)
{
    struct mt_err e = {0};
    struct mt_mel *m;
    float x = 0;

    (void)state;
    assert_int_equal(mt_mel_new(&m, 0, &e), -EINVAL);
    assert_null(m);
    assert_non_null(strstr(e.text, "1..256"));
    assert_int_equal(mt_mel_new(&m, 257, NULL), -EINVAL);
    assert_int_equal(mt_mel_new(&m, 80, NULL), 0);
    assert_int_equal(mt_mel_clip(m, MT_MEL_PADDED, &x, 0, &x), -EINVAL);
    assert_int_equal(mt_mel_clip_frames(MT_MEL_PADDED, 0), 0);
    assert_int_equal(mt_mel_clip_frames(MT_MEL_PADDED, 1), 1);
    assert_int_equal(mt_mel_clip_frames(MT_MEL_PADDED, 80001), 501);
    /* A clip that ends in its own reflection has whole hops only, and something to reflect. */
    assert_int_equal(mt_mel_clip_frames(MT_MEL_REFLECTED, 200), 0);
    assert_int_equal(mt_mel_clip_frames(MT_MEL_REFLECTED, 201), 1);
    assert_int_equal(mt_mel_clip_frames(MT_MEL_REFLECTED, 319), 1);
    assert_int_equal(mt_mel_clip_frames(MT_MEL_REFLECTED, 80159), 500);
    assert_int_equal(mt_mel_clip(m, MT_MEL_REFLECTED, &x, 200, &x), -EINVAL);
    mt_mel_free(&m);
    mt_mel_free(&m);
}

/* Far from the limit, so that a busy machine or a sanitizer passes: it is some 0.5 ms a second. */
static void test_speed(void **state)
{
    float *x = speechlike(160000, 1), *out = malloc(sizeof(float) * 1000 * 128);
    struct timespec a, b;
    struct mt_mel *m;
    double ms;

    (void)state;
    assert_int_equal(mt_mel_new(&m, 128, NULL), 0);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
    assert_int_equal(mt_mel_clip(m, MT_MEL_PADDED, x, 160000, out), 0);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
    ms = (double)(b.tv_sec - a.tv_sec) * 1e3 + (double)(b.tv_nsec - a.tv_nsec) / 1e6;
    print_message("mel: %.3f ms for a second of audio\n", ms / 10);
    assert_true(ms < 1000);
    mt_mel_free(&m);
    free(x);
    free(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_clip),
        cmocka_unit_test(test_hard_clips),
        cmocka_unit_test(test_clip_bang_at_the_end),
        cmocka_unit_test(test_300_seconds),
        cmocka_unit_test(test_stream_is_the_clip),
        cmocka_unit_test(test_stream_lookahead),
        cmocka_unit_test(test_scale),
        cmocka_unit_test(test_refuses),
        cmocka_unit_test(test_speed),
    };

    return cmocka_run_group_tests_name("mel", tests, NULL, NULL);
}
