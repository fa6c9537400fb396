/*
 * test_ear.c: a session's ear: which frames it takes, what is due when and what fits whatever the
 * pieces, the rows that come out, frames that are skipped, and clips beside it.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "model/model.h"
#include "tests/unit/checkpoint.h"

static struct mt_backend *be;

static struct mt_model *must_open(const char *spec)
{
    struct mt_model_opts o = {.step_rows = 8, .want_rows = 8};
    struct mt_err e = {0};
    struct mt_model *m;

    if (mt_model_open(&m, spec, be, &o, &e) < 0)
        fail_msg("%s: %s", spec, e.text);
    return m;
}

/* Something loud and quiet in turns, so that the running maximum matters. */
static void fill_sound(float *pcm, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float v = (float)((double)(mt_mix64((uint64_t)i) >> 40) / (1 << 24) - 0.5);
        pcm[i] = v * (i / 9000 % 3 == 1 ? 1.0f : 0.003f);
    }
}

static void test_ear_sizes(void **state)
{
    static const struct {
        int frame, backlog;
        const char *word;
    } bad[] = {
        {0, 1, "0.0 ms"},           {-640, 1, "-40.0 ms"},
        {320, 1, "20.0 ms"},        {639, 1, "multiple"},
        {641, 1, "multiple"},       {640 + 160, 1, "multiple"},
        {32000 + 320, 1, "20 ms"},  {640, 0, "backlog of 0 frames"},
        {640, -3, "backlog of -3"},
    };
    struct ck c = {0};

    (void)state;
    ck_new(&c);
    ck_model(&c, "thinker.", CK_HEAD);
    struct mt_model *m = must_open(c.dir);
    const struct mt_model_info *i = mt_model_info(m);

    assert_int_equal(i->sample_rate_hz, 16000);
    assert_int_equal(i->beat_samples, 32000);
    assert_int_equal(i->frame_min, 640);
    assert_int_equal(i->frame_step, 320);
    for (size_t k = 0; k < MT_COUNT(bad); k++) {
        struct mt_err e = {0};
        struct mt_ear *ear;
        assert_int_equal(mt_ear_new(&ear, m, bad[k].frame, bad[k].backlog, &e), -EINVAL);
        assert_null(ear);
        if (!strstr(e.text, bad[k].word))
            fail_msg("'%s' lacks '%s'", e.text, bad[k].word);
    }
    mt_model_close(&m);
    ck_free(&c);
}

/*
 * Rows of one live frame of n samples: blocks of 200 mel frames, each halved (up) and halved
 * (down).
 */
static int rows_by_hand(int samples)
{
    int frames = (samples + 159) / 160, rows = 0;

    for (; frames > 200; frames -= 200)
        rows += 50;
    if (frames < 4)
        frames = 4;
    return rows + ((frames + 1) / 2) / 2;
}

static void test_ear_rows(void **state)
{
    static float pcm[7 * 16000];
    struct ck c = {0};

    (void)state;
    fill_sound(pcm, MT_COUNT(pcm));
    ck_new(&c);
    ck_model(&c, "thinker.", CK_HEAD);
    struct mt_model *m = must_open(c.dir);
    for (int frame = 640; frame <= 6 * 16000; frame += frame < 3200 ? 320 : 2880) {
        struct mt_ear *ear;
        struct mt_err e = {0};
        if (frame / 160 % 200 && frame / 160 % 200 < 4)
            continue;
        if (mt_ear_new(&ear, m, frame, 2, &e) < 0)
            fail_msg("%d: %s", frame, e.text);
        int rest = (int)(mt_mix64((uint64_t)frame) % 900) + 1, rows;
        assert_int_equal(mt_ear_push(ear, pcm, frame + rest), frame + rest);
        mt_ear_end(ear);
        assert_int_equal(mt_ear_frames(ear), rest > frame ? 3 : 2);
        assert_int_equal(mt_model_encode(m, &ear, 1), 0);
        assert_int_equal(mt_ear_rows(ear, &rows).width, 12);
        assert_int_equal(rows, rows_by_hand(frame));
        assert_int_equal(rows, mt_ear_rows_max(m, frame));
        assert_int_equal(mt_ear_mel_frames(ear), frame / 160);
        assert_int_equal(mt_model_encode(m, &ear, 1), 0);
        mt_ear_rows(ear, &rows);
        assert_int_equal(rows, rows_by_hand(rest < frame ? rest : frame));
        assert_true(rows <= mt_ear_rows_max(m, frame));
        mt_ear_free(&ear);
        mt_ear_free(&ear);
    }
    mt_model_close(&m);
    ck_free(&c);
}

/*
 * Random pieces against the arithmetic of the interface: what is due when, what fits, what is
 * complete.
 */
static void test_ear_arithmetic(void **state)
{
    static const struct {
        int frame, backlog;
    } is[] = {{640, 1}, {640, 5}, {1280, 1}, {3200, 3}, {32000, 1}, {33280, 2}};
    static float pcm[40000];
    struct ck c = {0};

    (void)state;
    fill_sound(pcm, MT_COUNT(pcm));
    ck_new(&c);
    ck_model(&c, "thinker.", CK_HEAD);
    struct mt_model *m = must_open(c.dir);
    const int ahead = mt_model_info(m)->lookahead_samples;

    for (size_t k = 0; k < MT_COUNT(is); k++) {
        const int64_t f = is[k].frame;
        int64_t heard = 0, taken = 0;
        struct mt_ear *ear;
        assert_int_equal(mt_ear_new(&ear, m, is[k].frame, is[k].backlog, NULL), 0);
        struct mt_state_kind kind[MT_STATE_KINDS];
        assert_true(mt_model_state(m, is[k].frame, is[k].backlog, kind) >= 1);
        assert_string_equal(kind[0].name, "audio");
        assert_true(kind[0].bytes >= 4 * mt_ear_room(ear));
        for (int step = 0; step < 400; step++) {
            uint64_t dice = mt_mix64(1000 * k + (uint64_t)step);
            int64_t room = mt_ear_room(ear), n = (int64_t)(dice >> 8) % (2 * f) % 40000;
            int frames = mt_ear_frames(ear);

            assert_int_equal(frames, heard < ahead ? 0 : (heard - ahead) / f - taken);
            assert_true(frames <= is[k].backlog + 1);
            assert_int_equal(mt_ear_due_samples(ear, taken + frames),
                             (taken + frames + 1) * f + ahead);
            assert_true(heard < mt_ear_due_samples(ear, taken + frames));
            /* All of the backlog and its lookahead always fit behind what is taken. */
            assert_true(heard + room >= (taken + is[k].backlog) * f + ahead);
            if (dice % 3 || frames == 0) {
                int64_t got = mt_ear_push(ear, pcm, n);
                assert_int_equal(got, n < room ? n : room);
                assert_int_equal(mt_ear_room(ear), room - got);
                heard += got;
            } else if (dice % 2) {
                assert_int_equal(mt_model_encode(m, &ear, 1), 0);
                taken++;
            } else {
                mt_ear_skip(ear);
                taken++;
            }
        }
        /* The end: every sample is in a frame, and nothing more goes in. */
        mt_ear_end(ear);
        assert_int_equal(mt_ear_room(ear), 0);
        assert_int_equal(mt_ear_push(ear, pcm, 100), 0);
        assert_int_equal(mt_ear_frames(ear), (heard + f - 1) / f - taken);
        while (mt_ear_frames(ear) > 0) {
            assert_int_equal(mt_model_encode(m, &ear, 1), 0);
            taken++;
        }
        assert_int_equal(taken, (heard + f - 1) / f);
        assert_int_equal(mt_model_encode(m, &ear, 1), -EINVAL);
        mt_ear_free(&ear);
    }
    mt_model_close(&m);
    ck_free(&c);
}

static void rows_of(struct mt_ear *ear, float out[60 * 12], int *rows)
{
    struct mt_rows r = mt_ear_rows(ear, rows);

    assert_true(*rows <= 60);
    be->ops->rows_get(be, out, r, *rows);
}

/* A skipped frame is heard: the next one sounds as if it had been encoded, alone or in company. */
static void test_ear_skip(void **state)
{
    static float pcm[5 * 16000], want[60 * 12], got[60 * 12];
    enum { FRAME = 16000 };
    struct ck c = {0};
    struct mt_ear *a, *b, *both[2];
    int n_want, n_got;

    (void)state;
    fill_sound(pcm, MT_COUNT(pcm));
    /*
     * Loud in the first frame only, and then so soft that its maximum clamps all: who forgot it
     * hears something else.
     */
    for (int64_t i = 9000; i < (int64_t)MT_COUNT(pcm); i++)
        pcm[i] *= i < 12000 ? 1 : 1e-5f;
    ck_new(&c);
    ck_model(&c, "thinker.", CK_HEAD);
    struct mt_model *m = must_open(c.dir);
    assert_int_equal(mt_ear_new(&a, m, FRAME, 3, NULL), 0);
    assert_int_equal(mt_ear_new(&b, m, FRAME, 3, NULL), 0);

    /*
     * Nothing is complete yet: a skip must not eat the beginning, nor an encode of one spoil the
     * other.
     */
    assert_int_equal(mt_ear_push(a, pcm, 3 * FRAME + 40), 3 * FRAME + 40);
    assert_int_equal(mt_ear_push(b, pcm, FRAME + 39), FRAME + 39);
    mt_ear_skip(b);
    both[0] = a;
    both[1] = b;
    assert_int_equal(mt_model_encode(m, both, 2), -EINVAL);
    assert_int_equal(mt_ear_frames(a), 3);
    assert_int_equal(mt_ear_push(b, pcm + FRAME + 39, 2 * FRAME + 1), 2 * FRAME + 1);
    assert_int_equal(mt_ear_frames(b), 3);

    assert_int_equal(mt_model_encode(m, &a, 1), 0);
    rows_of(a, want, &n_want);
    mt_ear_skip(b);
    assert_int_equal(mt_ear_frames(b), 2);
    mt_ear_rows(b, &n_got);
    assert_int_equal(n_got, 0);

    assert_int_equal(mt_model_encode(m, &a, 1), 0);
    rows_of(a, want, &n_want);
    assert_int_equal(n_want, 25);
    assert_int_equal(mt_model_encode(m, &b, 1), 0);
    rows_of(b, got, &n_got);
    assert_int_equal(n_got, n_want);
    assert_memory_equal(got, want, sizeof(float) * 12 * (size_t)n_want);

    assert_int_equal(mt_model_encode(m, both, 2), 0);
    rows_of(a, want, &n_want);
    rows_of(b, got, &n_got);
    assert_int_equal(n_want, 25);
    assert_int_equal(n_got, 25);
    assert_memory_equal(got, want, sizeof(float) * 12 * (size_t)n_want);
    mt_ear_free(&a);
    mt_ear_free(&b);
    mt_model_close(&m);
    ck_free(&c);
}

/*
 * Streamed and whole are the same rows where the loudest comes first, and a clip that is too short
 * or long is said to be.
 */
static void test_clips(void **state)
{
    static float pcm[3 * 16000 + 40], rows[60 * 12];
    struct ck c = {0};
    struct mt_err e = {0};
    int64_t n, frames;
    float *whole;
    struct mt_ear *ear;
    int got;

    (void)state;
    fill_sound(pcm, MT_COUNT(pcm));
    for (int i = 1000; i < 1400; i++)
        pcm[i] = i % 2 ? 0.9f : -0.9f;
    ck_new(&c);
    ck_model(&c, "thinker.", CK_HEAD);
    struct mt_model *m = must_open(c.dir);
    assert_int_equal(mt_model_embed_clip(m, pcm, 0, &whole, &n, &frames, &e), -EINVAL);
    assert_null(whole);
    e = (struct mt_err){0};
    assert_int_equal(mt_model_embed_clip(m, pcm, 320, &whole, &n, NULL, &e), -EINVAL);
    assert_non_null(strstr(e.text, "320 samples"));
    assert_int_equal(mt_model_embed_clip(m, pcm, 321, &whole, &n, &frames, &e), 0);
    assert_int_equal(n, 1);
    assert_int_equal(frames, 3);
    free(whole);
    e = (struct mt_err){0};
    assert_int_equal(mt_model_embed_clip(m, pcm, 300 * 16000 + 1, &whole, &n, NULL, &e), -E2BIG);
    assert_non_null(strstr(e.text, "300 s"));

    assert_int_equal(mt_model_embed_clip(m, pcm, 2 * 16000, &whole, &n, &frames, NULL), 0);
    assert_int_equal(n, 50);
    assert_int_equal(frames, 200);
    assert_int_equal(mt_ear_new(&ear, m, 2 * 16000, 1, NULL), 0);
    assert_int_equal(mt_ear_push(ear, pcm, 2 * 16000), 2 * 16000);
    mt_ear_end(ear);
    assert_int_equal(mt_model_encode(m, &ear, 1), 0);
    rows_of(ear, rows, &got);
    assert_int_equal(got, 50);
    for (int i = 0; i < 50 * 12; i++)
        assert_true(fabsf(rows[i] - whole[i]) < 1e-4f);
    free(whole);
    mt_ear_free(&ear);
    mt_model_close(&m);
    ck_free(&c);
}

static int open_backend(void **state)
{
    enum mt_cpu_tier tier;

    (void)state;
    return mt_cpu_tier(&tier, NULL) < 0 || mt_backend_cpu(&be, tier, 1, NULL) < 0 ? -1 : 0;
}

static int close_backend(void **state)
{
    (void)state;
    mt_backend_close(&be);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ear_sizes),      cmocka_unit_test(test_ear_rows),
        cmocka_unit_test(test_ear_arithmetic), cmocka_unit_test(test_ear_skip),
        cmocka_unit_test(test_clips),
    };

    return cmocka_run_group_tests_name("ear", tests, open_backend, close_backend);
}
