/*
 * test_panel.c: several policies over one text in one batch: each arm says what teacher forcing of
 * that policy alone says, and what the independent reference said (tests/golden); up to the first
 * masked token it is the unbounded arm bit for bit, and there it parts; moved positions cost
 * nothing.
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

#include "engine/panel.h"
#include "model/source.h"
#include "util.h"

enum { MOST = 256, ARMS = 8 };

struct world {
    struct mt_backend *be;
    struct mt_model *m;
    int32_t ids[MOST];
    int64_t n;
    struct mt_expected got[ARMS][MOST];
    int64_t seen[ARMS];
    int end_at;
};

static void open_world(struct world *w, const char *spec, int rows)
{
    struct mt_model_opts o = {.step_rows = rows, .want_rows = rows};
    struct mt_err e = {0};

    *w = (struct world){.end_at = -1};
    assert_int_equal(mt_backend_open(&w->be, "cpu", 2, &e), 0);
    if (mt_model_open(&w->m, spec, w->be, &o, &e) < 0)
        fail_msg("%s", e.text);
}

static void close_world(struct world *w)
{
    mt_model_close(&w->m);
    mt_backend_close(&w->be);
}

static int take(void *ctx, int arm, int64_t pos, const struct mt_expected *x)
{
    struct world *w = ctx;

    assert_int_equal(pos, w->seen[arm]);
    w->got[arm][w->seen[arm]++] = *x;
    return w->end_at >= 0 && arm == 0 && pos == w->end_at ? 77 : 0;
}

static int run(struct world *w, const struct mt_arm *arms, int n, struct mt_err *e)
{
    struct mt_panel p = {.ids = w->ids,
                         .n = w->n,
                         .arms = arms,
                         .n_arms = n,
                         .block_tokens = 16,
                         .ctx = w,
                         .row = take};

    memset(w->seen, 0, sizeof(w->seen));
    return mt_panel_run(w->m, &p, e);
}

struct alone {
    const struct world *w;
    float nll[MOST];
    int best[MOST];
};

static int take_alone(void *ctx, int64_t pos, const float *logprobs, int vocab)
{
    struct alone *a = ctx;

    if (pos + 1 < a->w->n)
        a->nll[pos] = -logprobs[a->w->ids[pos + 1]];
    a->best[pos] = 0;
    for (int i = 1; i < vocab; i++)
        if (logprobs[i] > logprobs[a->best[pos]])
            a->best[pos] = i;
    return 0;
}

static void teach(const struct world *w, const struct mt_arm *arm, struct alone *a)
{
    int64_t at[MOST];
    struct mt_teacher t = {.ids = w->ids,
                           .n = w->n,
                           .at = at,
                           .n_at = w->n,
                           .policy = arm->policy,
                           .kv_type = arm->kv_type,
                           .block_tokens = 16,
                           .ctx = a,
                           .row = take_alone};

    for (int64_t i = 0; i < w->n; i++)
        at[i] = i;
    a->w = w;
    assert_int_equal(mt_teacher_run(w->m, &t, NULL), 0);
}

static struct mt_arm bounded(int64_t window, int64_t sinks, bool absolute)
{
    return (struct mt_arm){{true, window, sinks, absolute}, MT_F32, 0};
}

static void text_of(struct world *w, int n)
{
    w->n = n;
    for (int i = 0; i < n; i++)
        w->ids[i] = (int32_t)(mt_mix64((uint64_t)i * 77 + 5) % 380);
}

/* Whatever fits in a step: the same bits. */
static void test_alone(void **state)
{
    const struct mt_arm arms[] = {{{0}, MT_F32, 0},
                                  bounded(16, 0, false),
                                  bounded(16, 4, false),
                                  bounded(16, 4, true),
                                  bounded(33, 5, false),
                                  {{0}, MT_INT8, 0},
                                  {{true, 33, 5, false}, MT_INT8, 0}};
    struct mt_expected keep[ARMS][MOST];

    (void)state;
    for (int rows = 200; rows >= 7; rows = rows == 200 ? 64 : rows == 64 ? 7 : 0) {
        struct world w;

        open_world(&w, "synth:qwen2.5-omni-tiny", rows);
        text_of(&w, 150);
        assert_int_equal(run(&w, arms, MT_COUNT(arms), NULL), 0);
        for (size_t i = 0; i < MT_COUNT(arms); i++) {
            static struct alone a, first;
            int root = arms[i].kv_type == MT_INT8 ? 5 : 0;

            assert_int_equal(w.seen[i], w.n - 1);
            teach(&w, &arms[i], &a);
            if (i == 0)
                first = a;
            for (int64_t k = 0; k < w.n - 1; k++) {
                const struct mt_expected *x = &w.got[i][k];

                assert_true(fabsf(x->nll - a.nll[k]) < 1e-4F);
                assert_true(x->agree == (a.best[k] == first.best[k]));
                assert_true(x->hit == (a.best[k] == w.ids[k + 1]));
                assert_true(i ? x->kl >= 0 : x->kl == 0);
                if (k < mt_arm_parts(&arms[i]))
                    assert_memory_equal(&x->nll, &w.got[root][k].nll, sizeof(x->nll));
            }
            if (arms[i].policy.bounded) {
                int64_t k = mt_arm_parts(&arms[i]);

                assert_true(w.got[i][k].nll != w.got[root][k].nll);
                assert_true(arms[i].kv_type != MT_F32 || w.got[i][k].kl > 0);
            }
        }
        if (rows == 200)
            memcpy(keep, w.got, sizeof(keep));
        for (size_t i = 0; i < MT_COUNT(arms); i++)
            for (int64_t k = 0; k < w.n - 1; k++)
                assert_memory_equal(&keep[i][k].nll, &w.got[i][k].nll, sizeof(float));
        close_world(&w);
    }
}

static json_t *load(const char *path)
{
    json_t *j = json_load_file(path, 0, NULL);

    if (!j)
        fail_msg("%s: not there", path);
    return j;
}

/* The reference of a case: log-probs [n_at, vocab]. */
static const float *reference(struct mt_weights *w, const char *name, int64_t *vocab)
{
    struct mt_bytes b;
    int64_t dims[8];
    int n_dims;

    assert_int_equal(mt_weights_find(w, name, &n_dims, dims, &b), 0);
    assert_int_equal(n_dims, 2);
    *vocab = dims[1];
    return b.data;
}

static void golden_case(struct world *w, struct mt_weights *want, const json_t *c)
{
    const json_t *kv = json_object_get(c, "kv"), *ids = json_object_get(c, "ids");
    const json_t *at = json_object_get(c, "at");
    struct mt_arm b = bounded(json_integer_value(json_object_get(kv, "window")),
                              json_integer_value(json_object_get(kv, "sinks")),
                              !strcmp(json_string_value(json_object_get(kv, "rope")), "absolute"));
    struct mt_arm arms[ARMS] = {{{0}, MT_F32, 0}, b};
    static const int64_t far[] = {10000, 1000000, 10000000};
    int64_t vocab;
    const float *ref = reference(want, json_string_value(json_object_get(c, "tensor")), &vocab);
    int n = 2;

    for (size_t i = 0; i < MT_COUNT(far); i++) {
        arms[n] = arms[0];
        arms[n++].moved = far[i];
        arms[n] = b;
        arms[n++].moved = far[i];
    }
    w->n = (int64_t)json_array_size(ids);
    assert_true(w->n <= MOST);
    for (int64_t i = 0; i < w->n; i++)
        w->ids[i] = (int32_t)json_integer_value(json_array_get(ids, (size_t)i));
    assert_int_equal(run(w, arms, n, NULL), 0);
    for (size_t i = 0; i < json_array_size(at); i++) {
        int64_t k = json_integer_value(json_array_get(at, i));

        if (k < w->n - 1)
            assert_true(fabsf(w->got[1][k].nll + ref[(int64_t)i * vocab + w->ids[k + 1]]) < 2e-4F);
    }
    for (int64_t k = 0; k < w->n - 1; k++) {
        if (k < b.policy.window + b.policy.sinks)
            assert_memory_equal(&w->got[1][k].nll, &w->got[0][k].nll, sizeof(float));
        for (int i = 2; i < n; i++)
            assert_true(fabsf(w->got[i][k].nll - w->got[i % 2][k].nll) < 2e-4F);
    }
    assert_true(w->got[1][b.policy.window + b.policy.sinks].kl > 0);
}

static void test_golden(void **state)
{
    char dir[600], path[800];
    struct mt_weights *want;
    struct mt_err e = {0};
    struct world w;
    size_t i, cases = 0;
    json_t *c;

    (void)state;
    snprintf(dir, sizeof(dir), "%s/golden/omni-a", util_tests());
    snprintf(path, sizeof(path), "%s/cases.json", dir);
    json_t *all = load(path);
    snprintf(path, sizeof(path), "%s/expected.safetensors", dir);
    assert_int_equal(mt_weights_open_safetensors_file(&want, path, &e), 0);
    open_world(&w, dir, 64);
    json_array_foreach(all, i, c)
    {
        if (!json_is_object(json_object_get(c, "kv")) ||
            json_array_size(json_object_get(c, "audio")))
            continue;
        golden_case(&w, want, c);
        cases++;
    }
    assert_true(cases >= 8);
    close_world(&w);
    mt_weights_close(&want);
    json_decref(all);
}

static void refuse(struct world *w, const struct mt_arm *arms, int n, const char *word)
{
    struct mt_err e = {0};

    assert_int_equal(run(w, arms, n, &e), -EINVAL);
    if (!strstr(e.text, word))
        fail_msg("'%s' is not in: %s", word, e.text);
}

static void test_refused(void **state)
{
    struct mt_arm arms[20] = {{{0}, MT_F32, 0}, bounded(16, 4, false)};
    struct world w;

    (void)state;
    open_world(&w, "synth:qwen2.5-omni-tiny", 16);
    text_of(&w, 40);
    refuse(&w, arms + 1, 1, "unbounded");
    arms[1].kv_type = MT_F16;
    refuse(&w, arms, 2, "unbounded");
    arms[1] = bounded(4, 4, false);
    refuse(&w, arms, 2, "window=4");
    arms[1] = arms[0];
    refuse(&w, arms, 2, "same");
    refuse(&w, arms, 20, "20 settings");
    w.ids[7] = 1 << 20;
    refuse(&w, arms, 1, "position 7");
    w.n = 1;
    refuse(&w, arms, 1, "1 tokens");
    text_of(&w, 40);
    w.end_at = 20;
    assert_int_equal(run(&w, arms, 1, NULL), 77);
    assert_int_equal(w.seen[0], 21);
    close_world(&w);
    open_world(&w, "synth:moshi-tiny", 16);
    text_of(&w, 40);
    refuse(&w, arms, 1, "frames");
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alone),
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
