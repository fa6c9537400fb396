/*
 * test_answers.c: clips heard under a policy: every frame belongs to its clip, company does not
 * show, and until its first token is lost a bounded call says what the unbounded one does. Every
 * family.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/answers.h"

enum { CLIPS = 3, CALLS = 2, FRAMES = 40, TOKENS = 24 };

static const int order[] = {2, 0, 1}, alone[] = {1};

struct world {
    struct mt_backend *be;
    struct mt_model *m;
    float *pcm[CLIPS];
    struct mt_answers_clip clips[CLIPS];
    /* By call and frame. */
    int at[CALLS][FRAMES], n_tokens[CALLS][FRAMES];
    int32_t tokens[CALLS][FRAMES][TOKENS];
    int64_t held[CALLS][FRAMES], frames[CALLS];
    int64_t stop_at; /* the callback ends the run there; -1: never */
};

static void open_world(struct world *w, const char *spec)
{
    struct mt_model_opts o = {.step_rows = 64, .want_rows = 64};

    *w = (struct world){.stop_at = -1};
    assert_int_equal(mt_backend_open(&w->be, "cpu", 1, NULL), 0);
    assert_int_equal(mt_model_open(&w->m, spec, w->be, &o, NULL), 0);
    for (int k = 0; k < CLIPS; k++) { /* 2.5, 3 and 1.5 beats of noise */
        int64_t beat = mt_model_info(w->m)->beat_samples,
                n = beat * (k == 1 ? 6 : 5 - 2 * (k == 2)) / 2;

        w->pcm[k] = malloc((size_t)n * sizeof(float));
        for (int64_t i = 0; i < n; i++)
            w->pcm[k][i] = (float)mt_unit(mt_mix64((uint64_t)(k * 1000003 + i))) - 0.5F;
        w->clips[k] = (struct mt_answers_clip){w->pcm[k], n};
    }
}

static void close_world(struct world *w)
{
    mt_model_close(&w->m);
    mt_backend_close(&w->be);
    for (int k = 0; k < CLIPS; k++)
        free(w->pcm[k]);
}

static int take(void *ctx, int call, int at, const struct mt_record *r)
{
    struct world *w = ctx;
    int64_t k = w->frames[call]++;

    assert_int_equal(r->frame, k);
    assert_true(k < FRAMES && r->tokens_out > 0 && r->tokens_out <= TOKENS);
    w->at[call][k] = at;
    w->held[call][k] = r->kv_tokens;
    w->n_tokens[call][k] = r->tokens_out;
    memcpy(w->tokens[call][k], r->tokens, (size_t)r->tokens_out * sizeof(int32_t));
    return k == w->stop_at ? 7 : 0;
}

static struct mt_answers plan(struct world *w, const struct mt_answers_call *calls, int n)
{
    memset(w->frames, 0, sizeof(w->frames));
    memset(w->tokens, 0, sizeof(w->tokens));
    return (struct mt_answers){.clips = w->clips,
                               .calls = calls,
                               .n_calls = n,
                               .kv_type = MT_F32,
                               .block_tokens = 16,
                               .temperature = 1,
                               .top_p = 1,
                               .answer_tokens = 6,
                               .ctx = w,
                               .frame = take};
}

static void one_family(const char *spec)
{
    static const int want[] = {0, 0, 1, 1, 1, 2, 2, 2};
    const struct mt_answers_call calls[] = {{order, CLIPS, 5}, {alone, 1, 6}};
    struct world w, v;

    open_world(&w, spec);
    struct mt_answers a = plan(&w, calls, 2);
    assert_int_equal(mt_answers_run(w.m, &a, NULL), 0);
    assert_int_equal(w.frames[0], 8);
    assert_int_equal(w.frames[1], 3);
    assert_memory_equal(w.at[0], want, sizeof(want));

    /* The second call alone. */
    memcpy(&v, &w, sizeof(v));
    a = plan(&v, calls + 1, 1);
    assert_int_equal(mt_answers_run(v.m, &a, NULL), 0);
    assert_int_equal(v.frames[0], 3);
    assert_memory_equal(v.tokens[0], w.tokens[1], sizeof(v.tokens[0]));

    /* A window that is lost in the middle of the call, and one that never is. */
    for (int wide = 0; wide < 2; wide++) {
        int64_t lost = wide ? w.held[0][7] + 10 : w.held[0][4];

        a = plan(&v, calls, 1);
        a.policy = (struct mt_policy){.bounded = true, .window = lost - 1, .sinks = 1};
        assert_int_equal(mt_answers_run(v.m, &a, NULL), 0);
        assert_int_equal(v.frames[0], 8);
        int changed = 0;
        for (int k = 0; k < 8; k++) {
            bool same = !memcmp(v.tokens[0][k], w.tokens[0][k], sizeof(v.tokens[0][k]));

            if (w.held[0][k] <= lost && !same)
                fail_msg("%s: frame %d, nothing was lost", spec, k);
            assert_true(wide || v.held[0][k] <= lost);
            changed += !same;
        }
        assert_true(wide ? changed == 0 : changed > 0);
    }
    close_world(&w);
}

static void test_families(void **state)
{
    (void)state;
    one_family("synth:qwen2.5-omni-tiny");
    one_family("synth:qwen3-omni-30b-tiny");
    one_family("synth:minicpm-o-4.5-tiny");
    one_family("synth:moshi-tiny");
}

static void test_wrong(void **state)
{
    const struct mt_answers_call call = {order, CLIPS, 5};
    struct mt_err e = {0};
    struct world w;

    (void)state;
    open_world(&w, "synth:qwen2.5-omni-tiny");
    struct mt_answers a = plan(&w, &call, 0);
    assert_int_equal(mt_answers_run(w.m, &a, &e), -EINVAL);
    a = plan(&w, &call, 1);
    w.stop_at = 2;
    assert_int_equal(mt_answers_run(w.m, &a, NULL), 7);
    assert_int_equal(w.frames[0], 3);
    a.answer_tokens = 0;
    assert_int_equal(mt_answers_run(w.m, &a, NULL), -EINVAL);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_families),
        cmocka_unit_test(test_wrong),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
