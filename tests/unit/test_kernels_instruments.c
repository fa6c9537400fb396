/*
 * test_kernels_instruments.c: what the measuring commands add to the cache: where attention goes,
 * positions that are moved, and copies from one layout to another. All against attention itself.
 */
#include "test_kernels.h"

enum { HEADS = 4, KV_HEADS = 2, HD = 64, TOKENS = 60, BLOCKS = 40 };

struct place {
    struct mt_kv *kv;
    struct mt_kv_view view;
    int32_t blocks[BLOCKS];
};

static void place_new(struct mt_backend *be, struct place *p, int block_tokens, enum mt_dtype type,
                      int sinks, int64_t window, int64_t moved)
{
    struct mt_kv_shape shape = {2, KV_HEADS, HD, block_tokens, type};
    bool bounded = window < INT64_MAX;

    assert_int_equal(be->ops->kv_new(be, &p->kv, &shape, BLOCKS), 0);
    memset(p->kv->data, 0xff, p->kv->bytes);
    for (int i = 0; i < BLOCKS; i++)
        p->blocks[i] = (i * 7 + 3) % BLOCKS;
    p->view = (struct mt_kv_view){
        .blocks = p->blocks,
        .sinks = sinks,
        .ring_blocks = bounded ? (int)(window + TOKENS) / block_tokens + 1 : INT32_MAX,
        .window = window,
        .sink_reach = bounded ? window - 1 + sinks : INT64_MAX,
        .moved = moved,
    };
}

/*
 * Tokens 0..n-1 with values that name them: what attention gives in place d is the weight of token
 * d. out and mass: of the last n_last tokens.
 */
static void attend(struct mt_backend *be, const struct place *p, const float *raw, int n,
                   int n_first, float *out, float *mass)
{
    struct mt_run run = {0, n, 0, p->view};
    struct mt_batch b = {n, 1, &run};
    struct field q = field_new(be, n, HEADS * HD, raw), qs = field_new(be, n, HEADS * HD, NULL);
    struct field k = field_new(be, n, KV_HEADS * HD, raw + (size_t)TOKENS * HEADS * HD);
    struct field v = field_new(be, n, KV_HEADS * HD, NULL), o = field_new(be, n, HEADS * HD, NULL);
    float *one = calloc((size_t)n * KV_HEADS * HD, sizeof(float));

    for (int t = 0; t < n; t++)
        for (int h = 0; h < KV_HEADS; h++)
            one[(t * KV_HEADS + h) * HD + t] = 1;
    be->ops->rows_put(be, v.v, one, n);
    be->ops->rope_append(be, p->kv, 1, (struct mt_rope){MT_ROPE_HALVES, 1e4, .q_norm = NULL}, &b,
                         q.v, qs.v, k.v, v.v);
    be->ops->attention(be, p->kv, 1, &b, o.v, q.v, qs.v);
    be->ops->rows_get(be, out, o.v, n);
    if (mass)
        be->ops->attention_mass(be, p->kv, 1, &b, q.v, qs.v, n_first, mass);
    field_free(be, &q);
    field_free(be, &qs);
    field_free(be, &k);
    field_free(be, &v);
    field_free(be, &o);
    free(one);
}

static float *raw_new(void)
{
    return rnd_floats((size_t)TOKENS * (HEADS + KV_HEADS) * HD);
}

static int bin_of(int distance)
{
    int bin = 0;

    while (distance >> bin)
        bin++;
    return bin;
}

static void test_mass(void **state)
{
    enum { FIRST = 5, BINS = FIRST + MT_MASS_BINS };
    float *raw = raw_new(), *out = calloc((size_t)TOKENS * HEADS * HD, sizeof(*out));
    float *mass = calloc((size_t)TOKENS * HEADS * BINS, sizeof(*mass));

    (void)state;
    for (enum mt_cpu_tier t = MT_CPU_SCALAR; t <= tier_max(); t++)
        for (int round = 0; round < 3; round++) {
            struct mt_backend *be = backend(t, 1 + round);
            struct place p;

            place_new(be, &p, 16, MT_F32, round ? 3 : 0, round == 2 ? 20 : INT64_MAX, 0);
            attend(be, &p, raw, TOKENS, FIRST, out, mass);
            for (int i = 0; i < TOKENS * HEADS; i++) {
                double want[BINS] = {0};
                int row = i / HEADS;

                for (int j = 0; j <= row; j++)
                    want[j < FIRST ? j : FIRST + bin_of(row - j)] += (double)out[i * HD + j];
                for (int k = 0; k < BINS; k++)
                    near(mass[i * BINS + k], want[k], 1e-5, "mass", i, k);
            }
            be->ops->kv_free(be, p.kv);
            be->ops->free(be);
        }
    free(raw);
    free(out);
    free(mass);
}

/* Positions of a call that lasts for weeks: only their differences count. */
static void test_moved(void **state)
{
    static const int64_t far[] = {0, 10000, 1000000, 10000000, INT64_C(1000000000)};
    float *raw = raw_new(), *want = calloc((size_t)TOKENS * HEADS * HD, sizeof(*want));
    float *out = calloc((size_t)TOKENS * HEADS * HD, sizeof(*out));

    (void)state;
    for (enum mt_cpu_tier t = MT_CPU_SCALAR; t <= tier_max(); t++)
        for (size_t i = 0; i < MT_COUNT(far); i++) {
            struct mt_backend *be = backend(t, 2);
            struct place p;

            place_new(be, &p, 16, MT_F32, 4, 20, far[i]);
            attend(be, &p, raw, TOKENS, 0, i ? out : want, NULL);
            for (int k = 0; i && k < TOKENS * HEADS * HD; k++)
                near(out[k], want[k], 1e-5, "moved", i, k);
            be->ops->kv_free(be, p.kv);
            be->ops->free(be);
        }
    free(raw);
    free(want);
    free(out);
}

/* There and back again, through a layout of another block size with sinks and a ring. */
static void test_copy(void **state)
{
    float *raw = raw_new(), *out = calloc((size_t)TOKENS * HEADS * HD, sizeof(*out));

    (void)state;
    for (enum mt_dtype type = MT_F32; type <= MT_FP8; type++)
        for (int n = 0; n <= 40; n += 8) {
            struct mt_backend *be = backend(MT_CPU_SCALAR, 1);
            struct place a, b, c;

            place_new(be, &a, 16, type, 0, INT64_MAX, 0);
            place_new(be, &b, 7, type, 5, 40, 0);
            place_new(be, &c, 16, type, 0, INT64_MAX, 0);
            if (n)
                attend(be, &a, raw, n, 0, out, NULL);
            be->ops->kv_copy(be, b.kv, &b.view, a.kv, &a.view, n);
            be->ops->kv_copy(be, c.kv, &c.view, b.kv, &b.view, n);
            /* The first layer was never written: its 0xff go along only where tokens are. */
            assert_memory_equal(a.kv->data, c.kv->data, a.kv->bytes);
            be->ops->kv_free(be, a.kv);
            be->ops->kv_free(be, b.kv);
            be->ops->kv_free(be, c.kv);
            be->ops->free(be);
        }
    free(raw);
    free(out);
}

/* The same by way of host memory, token by token, at once or in two pieces. */
static void test_get_put(void **state)
{
    float *raw = raw_new(), *out = calloc((size_t)TOKENS * HEADS * HD, sizeof(*out));

    (void)state;
    for (enum mt_dtype type = MT_F32; type <= MT_FP8; type++)
        for (int n = 8; n <= 40; n += 16) {
            struct mt_backend *be = backend(MT_CPU_SCALAR, 1);
            struct place a, b, c;

            place_new(be, &a, 16, type, 0, INT64_MAX, 0);
            place_new(be, &b, 7, type, 5, 40, 0);
            place_new(be, &c, 16, type, 0, INT64_MAX, 0);
            size_t token = (size_t)mt_kv_block_bytes(&a.kv->s) / 16;
            char *host = malloc((size_t)n * token + 1);

            host[(size_t)n * token] = 'x';
            attend(be, &a, raw, n, 0, out, NULL);
            assert_int_equal(be->ops->kv_get(be, a.kv, &a.view, 0, n, host), 0);
            assert_int_equal(be->ops->kv_put(be, b.kv, &b.view, 0, 3, host), 0);
            assert_int_equal(be->ops->kv_put(be, b.kv, &b.view, 3, n - 3, host + 3 * token), 0);
            memset(host, 0, (size_t)n * token);
            assert_int_equal(be->ops->kv_get(be, b.kv, &b.view, 0, n, host), 0);
            assert_int_equal(host[(size_t)n * token], 'x');
            assert_int_equal(be->ops->kv_put(be, c.kv, &c.view, 0, n, host), 0);
            assert_memory_equal(a.kv->data, c.kv->data, a.kv->bytes);
            free(host);
            be->ops->kv_free(be, a.kv);
            be->ops->kv_free(be, b.kv);
            be->ops->kv_free(be, c.kv);
            be->ops->free(be);
        }
    free(raw);
    free(out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mass),
        cmocka_unit_test(test_moved),
        cmocka_unit_test(test_copy),
        cmocka_unit_test(test_get_put),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
