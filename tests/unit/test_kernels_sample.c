/*
 * test_kernels_sample.c: drawing tokens: edges of greedy, top-k and top-p, that draws are decided
 * by seed and count alone, and that their frequencies are the distribution's (chi-square, fixed
 * seeds).
 */
#include "test_kernels.h"

static int32_t one(struct mt_backend *be, const float *l, int n, struct mt_sample p)
{
    struct field f = field_new(be, 1, n, l);
    int32_t id = -7;

    be->ops->sample(be, f.v, &p, &id, 1);
    field_free(be, &f);
    return id;
}

static void test_greedy(void **state)
{
    struct mt_backend *be = backend(MT_CPU_SCALAR, 1);
    const float tie[] = {1, NAN, 5, 5, -INFINITY, 2}, none[] = {NAN, NAN},
                inf[] = {1, INFINITY, 3, INFINITY};
    const float low[] = {NAN, -INFINITY, -INFINITY};

    (void)state;
    assert_int_equal(one(be, tie, 6, (struct mt_sample){0, 0, 1, 1, 0, NULL}), 2);
    assert_int_equal(one(be, tie, 1, (struct mt_sample){0, 0, 1, 1, 0, NULL}), 0);
    assert_int_equal(one(be, none, 2, (struct mt_sample){0, 0, 1, 1, 0, NULL}), -1);
    assert_int_equal(one(be, none, 2, (struct mt_sample){1, 0, 1, 1, 0, NULL}), -1);
    assert_int_equal(one(be, inf, 4, (struct mt_sample){1, 0, 1, 1, 0, NULL}), 1);
    assert_int_equal(one(be, low, 3, (struct mt_sample){1, 0, 1, 1, 0, NULL}), 1);
    for (uint64_t d = 0; d < 50; d++) { /* all of these leave one candidate */
        assert_int_equal(one(be, tie, 6, (struct mt_sample){1, 1, 1, 9, d, NULL}), 2);
        assert_int_equal(one(be, tie, 6, (struct mt_sample){1, 0, 1e-9f, 9, d, NULL}), 2);
        assert_int_equal(one(be, tie, 6, (struct mt_sample){1, 4, 0, 9, d, NULL}), 2);
        assert_int_equal(one(be, tie, 6, (struct mt_sample){1, 0, 0, 9, d, NULL}), 2);
    }
    be->ops->free(be);
}

/* Which ids ever come, of many draws. */
static unsigned seen(struct mt_backend *be, const float *l, int n, struct mt_sample p)
{
    unsigned set = 0;

    for (p.draw = 0; p.draw < 3000; p.draw++)
        set |= 1u << one(be, l, n, p);
    return set;
}

static void test_cuts(void **state)
{
    struct mt_backend *be = backend(MT_CPU_SCALAR, 1);
    /* probabilities 0.1 0.4 0.2 0.2 0.1 and one that isn't there */
    const float l[] = {logf(0.1f), logf(0.4f), logf(0.2f), logf(0.2f), logf(0.1f), NAN};

    (void)state;
    assert_int_equal(seen(be, l, 6, (struct mt_sample){1, 0, 1, 3, 0, NULL}), 0x1f);
    assert_int_equal(seen(be, l, 6, (struct mt_sample){1, 2, 1, 3, 0, NULL}),
                     0x06); /* tie: lower id */
    assert_int_equal(seen(be, l, 6, (struct mt_sample){1, 3, 1, 3, 0, NULL}), 0x0e);
    assert_int_equal(seen(be, l, 6, (struct mt_sample){1, 4, 1, 3, 0, NULL}), 0x0f);
    assert_int_equal(seen(be, l, 6, (struct mt_sample){1, 5, 1, 3, 0, NULL}), 0x1f);
    assert_int_equal(seen(be, l, 6, (struct mt_sample){1, 99, 1, 3, 0, NULL}), 0x1f);
    assert_int_equal(seen(be, l, 6, (struct mt_sample){1, 0, 0.39f, 3, 0, NULL}), 0x02);
    assert_int_equal(seen(be, l, 6, (struct mt_sample){1, 0, 0.59f, 3, 0, NULL}), 0x06);
    assert_int_equal(seen(be, l, 6, (struct mt_sample){1, 0, 0.79f, 3, 0, NULL}), 0x0e);
    assert_int_equal(seen(be, l, 6, (struct mt_sample){1, 0, 0.85f, 3, 0, NULL}), 0x0f);
    /* of the two that top-k leaves (2/3, 1/3), top-p counts shares of these */
    assert_int_equal(seen(be, l, 6, (struct mt_sample){1, 2, 0.6f, 3, 0, NULL}), 0x02);
    assert_int_equal(seen(be, l, 6, (struct mt_sample){1, 2, 0.7f, 3, 0, NULL}), 0x06);
    be->ops->free(be);
}

/* Draw 20000 times; want: the distribution. 99.9 % of right samplers stay below the bound. */
static void frequencies(const float *l, int n, struct mt_sample p, const double *want)
{
    enum { N = 20000 };
    struct mt_backend *be = backend(MT_CPU_SCALAR, 2);
    struct mt_rows r;
    struct mt_sample params[100];
    int32_t ids[100];
    int count[64] = {0}, df = -1;
    double chi = 0;

    assert_int_equal(be->ops->rows_new(be, &r, 100, n), 0);
    for (int64_t d = 0; d < N; d += 100) {
        for (int64_t i = 0; i < 100; i++) {
            be->ops->rows_put(be, mt_rows_from(r, i), l, 1);
            params[i] = p;
            params[i].draw = (uint64_t)d + (uint64_t)i;
        }
        be->ops->sample(be, r, params, ids, 100);
        for (int64_t i = 0; i < 100; i++)
            count[ids[i]]++;
    }
    for (int64_t i = 0; i < n; i++) {
        if (want[i] == 0) {
            assert_int_equal(count[i], 0);
            continue;
        }
        chi += (count[i] - N * want[i]) * (count[i] - N * want[i]) / (N * want[i]);
        df++;
    }
    /* Wilson-Hilferty: the 99.9 % point of chi-square */
    if (chi > df * pow(1 - 2.0 / (9 * df) + 3.09 * sqrt(2.0 / (9 * df)), 3))
        fail_msg("chi-square %.1f with %d degrees", chi, df);
    be->ops->rows_free(be, &r);
    be->ops->free(be);
}

static void test_distribution(void **state)
{
    enum { N = 40 };
    float l[N];
    double want[N], sum;

    (void)state;
    for (int64_t i = 0; i < N; i++)
        l[i] = rnd_float();
    for (int64_t kind = 0; kind < 4; kind++) {
        struct mt_sample p = {
            kind == 1 ? 0.6f : 1.3f, kind == 2 ? 7 : 0, kind == 3 ? 0.8f : 1, 42, 0, NULL};
        bool out[N] = {false};

        sum = 0;
        for (int64_t i = 0; i < N; i++)
            sum += want[i] = exp((double)l[i] / p.temperature);
        /* take the least likely away until the cut is met */
        for (int64_t left = N, go = kind >= 2; go;) {
            int least = -1;
            double kept = 0;

            for (int64_t i = 0; i < N; i++) {
                if (!out[i] && (least < 0 || l[i] < l[least]))
                    least = i;
                kept += out[i] ? 0 : want[i];
            }
            go = kind == 2 ? left > 7 : kept - want[least] >= 0.8 * sum;
            if (go) {
                out[least] = true;
                left--;
            }
        }
        sum = 0;
        for (int64_t i = 0; i < N; i++)
            sum += want[i] = out[i] ? 0 : want[i];
        for (int64_t i = 0; i < N; i++)
            want[i] /= sum;
        frequencies(l, N, p, want);
    }
}

/* As the rules say it: the candidates, in order of rank if any is cut, and one draw. */
static int32_t by_the_rules(const float *l, int n, const struct mt_sample *p)
{
    int32_t *id = calloc((size_t)n, sizeof(*id)), drawn = -1;
    double *w = calloc((size_t)n, sizeof(*w)), all = 0, kept = 0, sum = 0;
    double u = mt_unit(mt_mix64(mt_mix64(p->seed) ^ p->draw));
    int m = 0, left = 0;

    for (int32_t i = 0; i < n; i++)
        if (l[i] > -INFINITY)
            id[m++] = i;
    if ((p->top_k > 0 && p->top_k < m) || p->top_p < 1)
        for (int i = 1; i < m; i++) {
            int32_t v = id[i];
            int at = i;

            for (; at > 0 && l[v] > l[id[at - 1]]; at--)
                id[at] = id[at - 1];
            id[at] = v;
        }
    if (p->top_k > 0 && p->top_k < m)
        m = p->top_k;
    for (int i = 0; i < m; i++) {
        w[i] = exp((double)l[id[i]] / p->temperature);
        all += w[i];
    }
    while (left < m && (!left || kept < p->top_p * all))
        kept += w[left++];
    for (int i = 0; i < left && drawn < 0; i++)
        if ((sum += w[i]) > u * kept)
            drawn = id[i];
    free(w);
    free(id);
    return drawn;
}

static void test_by_the_rules(void **state)
{
    struct mt_backend *be = backend(MT_CPU_SCALAR, 1);

    (void)state;
    for (int turn = 0; turn < 400; turn++) {
        int n = 2 + (int)(rnd() % 300);
        float *l = rnd_floats((size_t)n), levels = turn % 2 ? 9 : 1 << 20; /* many ties or few */
        struct mt_sample p = {.temperature = 0.2f + (float)(rnd() % 10) / 5,
                              .top_k = (int)(rnd() % 40),
                              .top_p = turn % 3 ? 1 : (float)mt_unit(rnd()),
                              .seed = rnd(),
                              .draw = rnd()};

        for (int i = 0; i < n; i++)
            l[i] = rnd() % 20 ? roundf(l[i] * levels) / levels : -INFINITY;
        l[rnd() % 2] = NAN;
        l[n - 1] = 1;
        assert_int_equal(one(be, l, n, p), by_the_rules(l, n, &p));
        free(l);
    }
    be->ops->free(be);
}

/* The plain draw first, then ban and scales in their order, then the draw. */
static void test_rules(void **state)
{
    struct mt_backend *be = backend(MT_CPU_SCALAR, 1);
    const float l[] = {4, 3.9f, -1, 2, 3.95f, 1};
    const int32_t ban[] = {0, 4};
    const struct mt_scale scale[] = {{1, 2, false}, {2, 0.25f, false}, {3, 1.1f, true}};
    const struct mt_scale twice[] = {{0, 1.05f, false}, {0, 1.05f, true}};
    struct mt_sample_rules r = {-1, ban, 2, NULL, 0};
    struct mt_sample p = {0, 0, 1, 1, 0, &r};

    (void)state;
    assert_int_equal(one(be, l, 6, p), 1);
    r.exit_id = 0;
    assert_int_equal(one(be, l, 6, p), 0); /* banned, and yet the plain draw's */
    r.exit_id = 4;
    assert_int_equal(one(be, l, 6, p), 1); /* only the best is a greedy draw */
    r.scale = scale;
    r.n_scale = 1;
    assert_int_equal(one(be, l, 6, p), 3); /* 3.9 / 2 is below 2 */
    r.n_scale = 3;                         /* and 2 / 1.1 below 1.95; -1 / 0.25 is -4 */
    assert_int_equal(one(be, l, 6, p), 1);
    r = (struct mt_sample_rules){-1, NULL, 0, twice, 2};
    assert_int_equal(one(be, l, 6, p), 4);
    const float below[] = {-4, -4.3f, -4.5f}; /* -4 / 1.05 rises, * 1.1 falls to -4.19 */
    const struct mt_scale down[] = {{0, 1.05f, false}, {0, 1.1f, true}};
    r = (struct mt_sample_rules){-1, NULL, 0, down, 2};
    assert_int_equal(one(be, below, 3, p), 0);
    r.n_scale = 1;
    r.scale = down + 1;
    assert_int_equal(one(be, below, 3, p), 1);
    be->ops->free(be);
}

/* As many rules as a model has, ids among them twice and thrice; rows share lists or do not. */
static void test_many_rules(void **state)
{
    enum { V = 700, ROWS = 5 };
    struct mt_backend *be = backend(MT_CPU_SCALAR, 1);

    (void)state;
    for (int trial = 0; trial < 20; trial++) {
        int n_ban[2] = {(int)(rnd() % 650), (int)(rnd() % 300)};
        struct mt_sample_rules r[ROWS];
        struct mt_sample p[ROWS];
        struct mt_scale *scale[ROWS];
        int32_t *ban[2], ids[ROWS];
        float *l = rnd_floats((size_t)V * ROWS);
        struct field f = field_new(be, ROWS, V, l);

        for (int k = 0; k < 2; k++) {
            ban[k] = calloc((size_t)n_ban[k] + 1, sizeof(int32_t));
            for (int i = 0; i < n_ban[k]; i++)
                ban[k][i] = (int32_t)(rnd() % V);
        }
        for (int i = 0; i < ROWS; i++) {
            int n = (int)(rnd() % 600);

            scale[i] = calloc((size_t)n + 1, sizeof(struct mt_scale));
            for (int j = 0; j < n; j++)
                scale[i][j] =
                    (struct mt_scale){(int32_t)(rnd() % V), 1 + (float)(rnd() % 9) / 16, rnd() % 2};
            r[i] = (struct mt_sample_rules){-1, ban[i % 3 == 2], n_ban[i % 3 == 2], scale[i], n};
            p[i] = (struct mt_sample){0, 0, 1, 1, 0, i == 3 ? NULL : &r[i]};
        }
        be->ops->sample(be, f.v, p, ids, ROWS);
        for (int i = 0; i < ROWS; i++) {
            float *row = l + (ptrdiff_t)i * V;
            int best = 0;

            for (int j = 0; p[i].rules && j < r[i].n_ban; j++)
                row[r[i].ban[j]] = -INFINITY;
            for (int j = 0; p[i].rules && j < r[i].n_scale; j++) {
                const struct mt_scale s = scale[i][j];

                row[s.id] = s.down && !(row[s.id] > 0) ? row[s.id] * s.by : row[s.id] / s.by;
            }
            for (int j = 1; j < V; j++)
                best = row[j] > row[best] ? j : best;
            assert_int_equal(ids[i], best);
            free(scale[i]);
        }
        free(ban[0]);
        free(ban[1]);
        field_free(be, &f);
        free(l);
    }
    be->ops->free(be);
}

/* The exit comes as often as a plain draw at temperature 1 gives it, whatever else is asked. */
static void test_exit_share(void **state)
{
    const float l[] = {logf(0.3f), logf(0.5f), logf(0.2f)};
    const int32_t ban[] = {0};
    const struct mt_sample_rules r = {0, ban, 1, NULL, 0};
    const double want[] = {0.3, 0.7 * 25 / 29, 0.7 * 4 / 29};

    (void)state;
    frequencies(l, 3, (struct mt_sample){0.5f, 0, 1, 7, 0, &r}, want);
}

/* The company, its order, the threads and a second backend change nothing; the seed and the count
 * do. */
static void test_decided_by_seed(void **state)
{
    enum { V = 3000, N = 24 };
    float *l = rnd_floats((size_t)V * N);
    struct mt_sample p[N];
    int32_t alone[N], ids[N], again[N];
    int differ = 0;

    (void)state;
    for (int64_t i = 0; i < N; i++)
        p[i] = (struct mt_sample){0.9f, i % 3 ? 0 : 50, i % 2 ? 0.9f : 1, rnd(), rnd(), NULL};
    for (int64_t threads = 1; threads <= 3; threads++) {
        struct mt_backend *be = backend(tier_max(), threads);
        struct field f = field_new(be, N, V, l);

        for (int64_t i = 0; i < N && threads == 1; i++) {
            alone[i] = one(be, l + i * V, V, p[i]);
            p[i].draw++;
            again[i] = one(be, l + i * V, V, p[i]);
            p[i].draw--;
            differ += alone[i] != again[i];
        }
        be->ops->sample(be, f.v, p, ids, N);
        assert_memory_equal(alone, ids, sizeof(ids));
        field_free(be, &f);
        be->ops->free(be);
    }
    assert_true(differ > N / 2);
    free(l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_greedy),          cmocka_unit_test(test_cuts),
        cmocka_unit_test(test_distribution),    cmocka_unit_test(test_by_the_rules),
        cmocka_unit_test(test_rules),           cmocka_unit_test(test_exit_share),
        cmocka_unit_test(test_decided_by_seed), cmocka_unit_test(test_many_rules),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
