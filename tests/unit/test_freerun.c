/*
 * test_freerun.c: texts that go on by themselves: each arm writes what a cache of its policy alone
 * would write, what it wrote is judged by the unbounded cache, and the company does not show.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/freerun.h"

enum { N = 90, SCRIPTS = 3, ARMS = 3, GIVEN = 10 };

struct world {
    struct mt_backend *be;
    struct mt_model *m;
    int32_t script[SCRIPTS * N];
    int32_t ids[SCRIPTS][ARMS][N];
    float nll[SCRIPTS][ARMS][N];
    int64_t seen[SCRIPTS][ARMS];
};

static const struct mt_arm arms[ARMS] = {
    {{0}, MT_F32, 0}, {{true, 16, 0, false}, MT_F32, 0}, {{true, 24, 4, false}, MT_F32, 0}};
static const uint64_t seeds[] = {5, 6, 7};

static void open_world(struct world *w)
{
    struct mt_model_opts o = {.step_rows = 32, .want_rows = 32};

    *w = (struct world){0};
    assert_int_equal(mt_backend_open(&w->be, "cpu", 2, NULL), 0);
    assert_int_equal(mt_model_open(&w->m, "synth:qwen2.5-omni-tiny", w->be, &o, NULL), 0);
    for (int i = 0; i < SCRIPTS * N; i++) /* given at first, and some in the middle */
        w->script[i] = i % N < GIVEN || (i % N >= 40 && i % N < 44)
                           ? (int32_t)(mt_mix64((uint64_t)i) % 380)
                           : -1;
}

static void close_world(struct world *w)
{
    mt_model_close(&w->m);
    mt_backend_close(&w->be);
}

static int take(void *ctx, int script, int arm, int64_t pos, int32_t token, float nll)
{
    struct world *w = ctx;

    assert_int_equal(pos, w->seen[script][arm]++);
    assert_true((pos == 0) == (bool)isnan(nll));
    w->ids[script][arm][pos] = token;
    w->nll[script][arm][pos] = nll;
    return 0;
}

static struct mt_freerun plan(struct world *w)
{
    static int32_t audio; /* no place for audio: teacher forcing would want some */

    audio = mt_model_info(w->m)->audio_id;
    memset(w->seen, 0, sizeof(w->seen));
    return (struct mt_freerun){.script = w->script,
                               .n_scripts = SCRIPTS,
                               .n = N,
                               .arms = arms,
                               .n_arms = ARMS,
                               .block_tokens = 16,
                               .temperature = 1,
                               .top_p = 1,
                               .seed = seeds,
                               .ban = &audio,
                               .n_ban = 1,
                               .ctx = w,
                               .token = take};
}

struct best {
    const int32_t *ids;
    int bad;
};

/* Greedy: every drawn token is the likeliest under the arm's own policy. */
static int check_best(void *ctx, int64_t pos, const float *logprobs, int vocab)
{
    struct best *b = ctx;
    int best = 0;

    for (int i = 1; i < vocab; i++)
        if (logprobs[i] > logprobs[best])
            best = i;
    if (pos >= GIVEN - 1 && pos + 1 < N && (pos + 1 < 40 || pos + 1 >= 44))
        b->bad += b->ids[pos + 1] != best;
    return 0;
}

struct judge {
    const float *nll;
};

static int check_judge(void *ctx, int arm, int64_t pos, const struct mt_expected *x)
{
    const struct judge *j = ctx;

    (void)arm;
    assert_true(fabsf(x->nll - j->nll[pos + 1]) < 1e-4F);
    return 0;
}

static void test_alone(void **state)
{
    struct world w;

    (void)state;
    open_world(&w);
    for (int greedy = 0; greedy < 2; greedy++) {
        struct mt_freerun f = plan(&w);

        f.temperature = greedy ? 0 : 1;
        assert_int_equal(mt_freerun_run(w.m, &f, NULL), 0);
        for (int s = 0; s < SCRIPTS; s++)
            for (int a = 0; a < ARMS; a++) {
                struct best b = {w.ids[s][a], 0};
                struct judge j = {w.nll[s][a]};
                int64_t at[N], parts = mt_arm_parts(&arms[a]);
                struct mt_teacher t = {.ids = w.ids[s][a],
                                       .n = N,
                                       .at = at,
                                       .n_at = N,
                                       .policy = arms[a].policy,
                                       .kv_type = MT_F32,
                                       .block_tokens = 16,
                                       .ctx = &b,
                                       .row = check_best};
                struct mt_panel p = {.ids = w.ids[s][a],
                                     .n = N,
                                     .arms = arms,
                                     .n_arms = 1,
                                     .block_tokens = 16,
                                     .ctx = &j,
                                     .row = check_judge};

                assert_int_equal(w.seen[s][a], N);
                for (int64_t k = 0; k < N; k++) {
                    at[k] = k;
                    if (w.script[s * N + k] >= 0)
                        assert_int_equal(w.ids[s][a][k], w.script[s * N + k]);
                    if (k <= parts)
                        assert_int_equal(w.ids[s][a][k], w.ids[s][0][k]);
                }
                assert_int_equal(mt_teacher_run(w.m, &t, NULL), 0);
                assert_true(!greedy || b.bad == 0);
                assert_true(greedy || b.bad > 0);
                assert_int_equal(mt_panel_run(w.m, &p, NULL), 0);
            }
    }
    close_world(&w);
}

static void test_company(void **state)
{
    static struct world w, keep;

    (void)state;
    open_world(&w);
    struct mt_freerun f = plan(&w);
    assert_int_equal(mt_freerun_run(w.m, &f, NULL), 0);
    keep = w;
    for (int s = 0; s < SCRIPTS; s++) {
        const struct mt_arm two[] = {arms[0], arms[2]};

        f = plan(&w);
        f.script = w.script + s * N;
        f.seed = &seeds[s];
        f.n_scripts = 1;
        f.arms = two;
        f.n_arms = 2;
        assert_int_equal(mt_freerun_run(w.m, &f, NULL), 0);
        assert_memory_equal(w.ids[0][0], keep.ids[s][0], sizeof(w.ids[0][0]));
        assert_memory_equal(w.ids[0][1], keep.ids[s][2], sizeof(w.ids[0][1]));
        assert_memory_equal(&w.nll[0][1][1], &keep.nll[s][2][1], (N - 1) * sizeof(float));
    }
    close_world(&w);
}

static void test_bans(void **state)
{
    static struct world w;
    int32_t ban[300];

    (void)state;
    open_world(&w);
    for (int i = 0; i < 300; i++)
        ban[i] = i + 60;
    struct mt_freerun f = plan(&w);
    f.ban = ban;
    f.n_ban = 300;
    f.ban_ngram = 2;
    f.temperature = 0;
    assert_int_equal(mt_freerun_run(w.m, &f, NULL), 0);
    for (int s = 0; s < SCRIPTS; s++)
        for (int a = 0; a < ARMS; a++)
            for (int k = GIVEN; k < N; k++) {
                const int32_t *x = w.ids[s][a];

                if (k >= 40 && k < 44)
                    continue;
                assert_true(x[k] < 60 || x[k] >= 360);
                for (int j = 1; j < k; j++)
                    assert_false(x[j] == x[k] && x[j - 1] == x[k - 1]);
            }
    close_world(&w);
}

static void test_refused(void **state)
{
    const struct mt_arm wrong[] = {arms[1], arms[0]};
    static struct world w;
    struct mt_err e = {0};

    (void)state;
    open_world(&w);
    struct mt_freerun f = plan(&w);
    f.arms = wrong;
    f.n_arms = 2;
    assert_int_equal(mt_freerun_run(w.m, &f, &e), -EINVAL);
    assert_non_null(strstr(e.text, "unbounded"));
    f = plan(&w);
    w.script[N] = -1;
    e = (struct mt_err){0};
    assert_int_equal(mt_freerun_run(w.m, &f, &e), -EINVAL);
    assert_non_null(strstr(e.text, "position 0"));
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alone),
        cmocka_unit_test(test_company),
        cmocka_unit_test(test_bans),
        cmocka_unit_test(test_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
