/*
 * test_emu.c: how a model's step meets a card: what it launches and copies, that it waits once, and
 * what it asks of cuBLASLt. Counted by the emulation; what the operations compute is the other
 * tests' matter.
 */
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "count.h"
#include "model/model.h"

int mt_cuda_open(struct mt_backend **out, const char *how, struct mt_err *e);

enum { SESSIONS = 3, BLOCKS = 2, BLOCK = 16, PROMPT = 6, MOST = SESSIONS * PROMPT };

/*
 * What a decoding step costs: after a prefill and one step more, in which whatever grows has grown.
 */
static struct emu_count step_of(const char *shape, int layers, const char *how)
{
    struct mt_model_opts mo = {.step_rows = MOST, .want_rows = SESSIONS};
    struct mt_sample params[SESSIONS] = {{.top_p = 1}, {.top_p = 1}, {.top_p = 1}};
    int32_t blocks[SESSIONS * BLOCKS], ids[MOST];
    struct mt_run runs[SESSIONS];
    int want[SESSIONS];
    struct mt_backend *be;
    struct mt_model *m;
    struct mt_kv *kv;
    char spec[64];

    snprintf(spec, sizeof(spec), "synth:%s,layers=%d", shape, layers);
    assert_int_equal(mt_cuda_open(&be, how, NULL), 0);
    assert_int_equal(mt_model_open(&m, spec, be, &mo, NULL), 0);
    struct mt_kv_shape s = mt_model_kv_shape(m, BLOCK, MT_BF16);
    assert_int_equal(be->ops->kv_new(be, &kv, &s, SESSIONS * BLOCKS), 0);
    for (int i = 0; i < SESSIONS * BLOCKS; i++)
        blocks[i] = i;
    for (int i = 0; i < MOST; i++)
        ids[i] = i;
    for (int t = 0; t < 3; t++) {
        int n = t ? 1 : PROMPT;
        struct mt_rows logits;

        for (int i = 0; i < SESSIONS; i++) {
            runs[i] = (struct mt_run){.row = i * n,
                                      .n = n,
                                      .index = t ? PROMPT + t - 1 : 0,
                                      .view = {.blocks = blocks + (ptrdiff_t)i * BLOCKS,
                                               .window = INT64_MAX,
                                               .ring_blocks = INT32_MAX}};
            want[i] = i * n + n - 1;
        }
        struct mt_step step = {
            .batch = {SESSIONS * n, SESSIONS, runs}, .ids = ids, .want = want, .n_want = SESSIONS};
        emu_count = (struct emu_count){0};
        assert_int_equal(mt_model_step(m, kv, &step, &logits), 0);
        be->ops->sample(be, logits, params, ids, SESSIONS);
        for (int i = 0; i < SESSIONS; i++)
            assert_in_range(ids[i], 0, mt_model_info(m)->vocab - 1);
    }
    struct emu_count c = emu_count;
    be->ops->kv_free(be, kv);
    mt_model_close(&m);
    mt_backend_close(&be);
    return c;
}

/*
 * The host is heard and waited for once: small things go up before they are used, the drawn ids
 * come down last, and nothing is made on the way.
 */
static void check_step(const struct emu_count *c)
{
    assert_int_equal(c->waits, 1);
    assert_int_equal(c->down, 1);
    assert_int_equal(c->after_down, 0);
    assert_int_equal(c->allocations, 0);
}

/* No layer asks the host for anything; `most` launches and products it may cost. */
static void check_layers(const char *shape, const char *how, int most)
{
    struct emu_count two = step_of(shape, 2, how), four = step_of(shape, 4, how);
    int each = (four.launches + four.products - two.launches - two.products) / 2;

    check_step(&two);
    check_step(&four);
    assert_int_equal(two.up, four.up);
    assert_in_range(two.up, 1, 7); /* ids, batch, angles, tiles, wanted rows, how to draw */
    assert_in_range(each, 1, most);
}

static void test_dense(void **state)
{
    (void)state;
    check_layers("qwen2.5-omni-7b-tiny", "", 14);
    check_layers("qwen2.5-omni-7b-tiny", "exact", 13);
}

static void test_mixture(void **state)
{
    (void)state;
    check_layers("qwen3-omni-30b-tiny", "", 16);
}

/* ---- products ---- */

/* Products of 1 to `most` rows, twice, into got [most]: the last row's first column of each. */
static struct emu_count products(const char *how, int most, float *got)
{
    enum { IN = 96, OUT = 5 };
    static float x[IN * 64], w[IN * OUT], bias[OUT] = {1, 2, 3, 4, 5};
    const struct mt_bytes bytes = {w, MT_F32, OUT, IN, false}, vec = {bias, MT_F32, 1, OUT, false};
    struct mt_rows in, out;
    struct mt_backend *be;
    struct mt_mat *m, *b;

    for (int i = 0; i < IN * 64; i++)
        x[i] = sinf((float)i);
    for (int i = 0; i < IN * OUT; i++)
        w[i] = cosf(1.7f * (float)i);
    assert_int_equal(mt_cuda_open(&be, how, NULL), 0);
    assert_int_equal(be->ops->rows_new(be, &in, most, IN), 0);
    assert_int_equal(be->ops->rows_new(be, &out, most, OUT), 0);
    assert_int_equal(be->ops->mat_new(be, &m, &bytes), 0);
    assert_int_equal(be->ops->mat_new(be, &b, &vec), 0);
    emu_count = (struct emu_count){0};
    for (int k = 0; k < 2 * most; k++) {
        int n = k % most + 1;
        float y[OUT];

        for (int r = 0; r < n; r++) /* the same row again and again */
            be->ops->rows_put(be, mt_rows_from(in, r), x, 1);
        be->ops->linear(be, out, in, m, b, MT_ACT_NONE, MT_NO_ROWS, n);
        be->ops->rows_get(be, y, mt_rows_from(out, n - 1), 1);
        got[n - 1] = y[0];
    }
    struct emu_count c = emu_count;
    be->ops->mat_free(be, m);
    be->ops->mat_free(be, b);
    be->ops->rows_free(be, &in);
    be->ops->rows_free(be, &out);
    mt_backend_close(&be);
    return c;
}

/*
 * An algorithm is asked for once a bucket of rows, and its sums may differ from another bucket's;
 * deterministic: once a shape, and no number of rows changes a bit. Without a product with a bias a
 * kernel adds it, without any product there is our own.
 */
static void test_algorithms(void **state)
{
    enum { LONGEST = 32 };
    float fast[LONGEST], same[LONGEST], apart[LONGEST], own[LONGEST];
    int others = 0;

    (void)state;
    struct emu_count c = products("", LONGEST, fast);
    assert_int_equal(c.questions, 10); /* 1, 2, 3, 4, 6, 8, 12, 16, 24, 32 */
    assert_int_equal(c.products, 2 * LONGEST);
    assert_int_equal(c.launches, 0);
    c = products("deterministic", LONGEST, same);
    assert_int_equal(c.questions, 1);
    assert_int_equal(c.products, 2 * LONGEST);
    emu_faults.no_bias = 1;
    c = products("", LONGEST, apart);
    assert_int_equal(c.products, 2 * LONGEST);
    assert_int_equal(c.launches, 2 * LONGEST);
    emu_faults.no_bias = 0;
    emu_faults.no_product = 1;
    c = products("", LONGEST, own);
    assert_int_equal(c.products, 0);
    assert_int_equal(c.launches, 2 * LONGEST);
    emu_faults.no_product = 0;
    for (int i = 0; i < LONGEST; i++) {
        assert_true(same[i] == same[0]);
        assert_true(apart[i] == fast[i]);
        assert_true(fabsf(fast[i] - same[0]) < 1e-4f);
        assert_true(fabsf(own[i] - same[0]) < 1e-4f);
        others += fast[i] != same[0];
    }
    assert_true(others > 0); /* else the stand-in shows nothing */
}

/* ---- experts ---- */

/* What a call of few rows launches. */
static int launches_of(enum mt_dtype gates, enum mt_dtype downs)
{
    enum { N = 2, W = 256 };
    const enum mt_dtype type[3] = {gates, gates, downs};
    struct mt_mat *m[3][N];
    struct mt_rows x, logits, out, scratch;
    struct mt_backend *be;
    struct mt_experts *ex;
    void *zeros;

    assert_int_equal(mt_cuda_open(&be, "", NULL), 0);
    zeros = calloc(W, (size_t)mt_dtype_row_bytes(MT_F32, W));
    assert_non_null(zeros);
    for (int i = 0; i < 3 * N; i++) {
        const struct mt_bytes b = {zeros, type[i / N], W, W, false};

        assert_int_equal(be->ops->mat_new(be, &m[i / N][i % N], &b), 0);
    }
    const struct mt_expert_set set = {N, 1, true, m[0], m[1], m[2]};
    assert_int_equal(be->ops->experts_new(be, &ex, &set, 3), 0);
    assert_int_equal(be->ops->rows_new(be, &x, 3, W), 0);
    assert_int_equal(be->ops->rows_new(be, &logits, 3, N), 0);
    assert_int_equal(be->ops->rows_new(be, &out, 3, W), 0);
    assert_int_equal(be->ops->rows_new(be, &scratch, 3, 3 * W), 0);
    emu_count = (struct emu_count){0};
    be->ops->experts(be, out, x, logits, ex, MT_NO_ROWS, scratch, 3);
    int launches = emu_count.launches;
    be->ops->experts_free(be, ex);
    for (int i = 0; i < 3 * N; i++)
        be->ops->mat_free(be, m[i / N][i % N]);
    be->ops->rows_free(be, &x);
    be->ops->rows_free(be, &logits);
    be->ops->rows_free(be, &out);
    be->ops->rows_free(be, &scratch);
    mt_backend_close(&be);
    free(zeros);
    return launches;
}

/* Downs that have no tiles leave gates and ups theirs. */
static void test_tiles_alone(void **state)
{
    (void)state;
    assert_int_equal(launches_of(MT_Q4_K, MT_Q4_K), 5);
    assert_int_equal(launches_of(MT_Q4_K, MT_Q6_K), 5);
    assert_int_equal(launches_of(MT_Q6_K, MT_Q4_K), 8);
}

/* ---- threads ---- */

/* A row that goes up, is doubled and comes back, and how much memory there is. */
static void *use(void *arg)
{
    static const float x[3] = {1, 2, 3}, two[3] = {2, 2, 2};
    const struct mt_bytes b = {two, MT_F32, 1, 3, false};
    struct mt_backend *be = arg;
    int64_t left = 0, all = 0;
    struct mt_rows r, out;
    struct mt_mat *w;
    float y[3];

    assert_int_equal(be->ops->memory(be, &left, &all), 0);
    assert_true(left > 0 && left <= all);
    assert_int_equal(be->ops->rows_new(be, &r, 1, 3), 0);
    assert_int_equal(be->ops->rows_new(be, &out, 1, 3), 0);
    assert_int_equal(be->ops->mat_new(be, &w, &b), 0);
    be->ops->rows_put(be, r, x, 1);
    be->ops->scaled_add(be, out, r, w, 1);
    be->ops->rows_get(be, y, out, 1);
    for (int i = 0; i < 3; i++)
        assert_true(y[i] == 2 * x[i]);
    be->ops->mat_free(be, w);
    be->ops->rows_free(be, &r);
    be->ops->rows_free(be, &out);
    return NULL;
}

/* Who opened it is not who uses it: each thread says for itself which device it means. */
static void test_threads(void **state)
{
    struct mt_backend *be;
    pthread_t t;

    (void)state;
    assert_int_equal(mt_cuda_open(&be, "device=0", NULL), 0);
    assert_int_equal(pthread_create(&t, NULL, use, be), 0);
    pthread_join(t, NULL);
    use(be);
    mt_backend_close(&be);
}

/* A card that this build has no code for is refused, not found out by the first launch. */
static void test_old_card(void **state)
{
    struct mt_backend *be = NULL;
    struct mt_err e = {0};

    (void)state;
    emu_faults.old_card = 1;
    assert_int_equal(mt_cuda_open(&be, "", &e), -ENODEV);
    emu_faults.old_card = 0;
    assert_null(be);
    assert_non_null(strstr(e.text, "compute capability 7, 8 is needed"));
}

/* Products by cuBLASLt for n rows and weights in blocks that have no tiles. */
static int decoded_products(const char *how, int n)
{
    enum { IN = 256, OUT = 8 };
    struct mt_bytes b = {NULL, MT_Q6_K, OUT, IN, false};
    struct mt_rows x, y;
    struct mt_backend *be;
    struct mt_mat *w;
    void *zeros = calloc(OUT, (size_t)mt_dtype_row_bytes(MT_Q6_K, IN));

    assert_non_null(b.data = zeros);
    assert_int_equal(mt_cuda_open(&be, how, NULL), 0);
    assert_int_equal(be->ops->rows_new(be, &x, n, IN), 0);
    assert_int_equal(be->ops->rows_new(be, &y, n, OUT), 0);
    assert_int_equal(be->ops->mat_new(be, &w, &b), 0);
    emu_count = (struct emu_count){0};
    be->ops->linear(be, y, x, w, NULL, MT_ACT_NONE, MT_NO_ROWS, n);
    int products = emu_count.products;
    be->ops->mat_free(be, w);
    be->ops->rows_free(be, &x);
    be->ops->rows_free(be, &y);
    mt_backend_close(&be);
    free(zeros);
    return products;
}

/* They are decoded once for all rows, not once for each 8. */
static void test_decoded(void **state)
{
    (void)state;
    assert_int_equal(decoded_products("", 8), 0);
    assert_int_equal(decoded_products("", 9), 1);
    assert_int_equal(decoded_products("deterministic", 9), 0);
}

/* ---- graphs ---- */

/* Sessions that come, talk and go, with windows of CHURN_BLOCKS - 1 blocks and a block of sinks. */
enum { CHURN = 5, CHURN_BLOCKS = 4, STEPS = 60, CHURN_ROWS = 16 };

struct caller {
    int64_t len; /* 0: nobody is there */
    int32_t said;
    uint64_t draws;
};

struct churn {
    struct emu_count first, all; /* of the first half, of all */
    int32_t said[STEPS][CHURN];  /* -1: not asked */
};

static unsigned lot(unsigned *seed, unsigned n)
{
    *seed = *seed * 1664525 + 1013904223;
    return (*seed >> 16) % n;
}

/* Who comes or talks in a step; the same for the same seed. only: but for him all are silent. */
static int lots(struct caller *all, int only, unsigned *seed, struct mt_run *runs, int32_t *ids,
                int *want, int32_t blocks[CHURN][CHURN_BLOCKS], int *who)
{
    int n = 0, rows = 0;
    bool prefill = lot(seed, 4) == 0;

    for (int i = 0; i < CHURN; i++) {
        struct caller *c = &all[i];
        int more = 1;

        if (c->len && lot(seed, 40) == 0)
            *c = (struct caller){0};
        if (c->len ? lot(seed, 8) == 0 : !prefill)
            continue;
        if (!c->len)
            more = 1 + (int)lot(seed, 3);
        for (int k = 0; k < more; k++)
            ids[rows + k] = c->len ? c->said : (int32_t)lot(seed, 500);
        c->len += more;
        if (only >= 0 && i != only)
            continue;
        runs[n] = (struct mt_run){.row = rows,
                                  .n = more,
                                  .index = c->len - more,
                                  .view = {.blocks = blocks[i],
                                           .sinks = 3,
                                           .window = 30,
                                           .sink_reach = 32,
                                           .ring_blocks = CHURN_BLOCKS - 1}};
        rows += more;
        want[n] = rows - 1;
        who[n++] = i;
    }
    return n;
}

static void churn(struct churn *out, const char *shape, const char *how, int only)
{
    struct mt_model_opts mo = {.step_rows = CHURN_ROWS, .want_rows = CHURN_ROWS};
    struct caller all[CHURN] = {{0}};
    int32_t blocks[CHURN][CHURN_BLOCKS], ids[CHURN_ROWS];
    int want[CHURN], who[CHURN];
    struct mt_sample params[CHURN];
    struct mt_run runs[CHURN];
    struct mt_backend *be;
    struct mt_model *m;
    unsigned seed = 7;
    struct mt_kv *kv;
    char spec[64];

    memset(out, -1, sizeof(*out));
    snprintf(spec, sizeof(spec), "synth:%s,layers=1", shape);
    assert_int_equal(mt_cuda_open(&be, how, NULL), 0);
    assert_int_equal(mt_model_open(&m, spec, be, &mo, NULL), 0);
    struct mt_kv_shape s = mt_model_kv_shape(m, BLOCK, MT_BF16);
    assert_int_equal(be->ops->kv_new(be, &kv, &s, CHURN * CHURN_BLOCKS), 0);
    for (int i = 0; i < CHURN * CHURN_BLOCKS; i++)
        blocks[i / CHURN_BLOCKS][i % CHURN_BLOCKS] = CHURN * CHURN_BLOCKS - 1 - i;
    emu_count = (struct emu_count){0};
    for (int t = 0; t < STEPS; t++) {
        int n = lots(all, only, &seed, runs, ids, want, blocks, who);
        struct mt_rows logits;

        if (t == STEPS / 2)
            out->first = emu_count;
        if (n == 0)
            continue;
        struct mt_step step = {
            .batch = {want[n - 1] + 1, n, runs}, .ids = ids, .want = want, .n_want = n};
        assert_int_equal(mt_model_step(m, kv, &step, &logits), 0);
        for (int i = 0; i < n; i++)
            params[i] = (struct mt_sample){.top_p = 1,
                                           .temperature = who[i] % 2 ? 1 : 0,
                                           .seed = (uint64_t)who[i],
                                           .draw = all[who[i]].draws++};
        be->ops->sample(be, logits, params, ids, n);
        for (int i = 0; i < n; i++)
            out->said[t][who[i]] = all[who[i]].said = ids[i];
    }
    out->all = emu_count;
    be->ops->kv_free(be, kv);
    mt_model_close(&m);
    mt_backend_close(&be);
}

/*
 * Steps of few sizes: most are graphs that were captured before, and say what they would say
 * without; so they do where nothing can be captured, or a graph can't be launched.
 */
static void check_churn(const char *shape, const char *how)
{
    static struct churn with, without, broken;
    int graphs, steps = 0;

    churn(&with, shape, how, -1);
    emu_faults.no_capture = 1;
    churn(&without, shape, how, -1);
    emu_faults = (struct emu_faults){.no_replay = 1};
    churn(&broken, shape, how, -1);
    emu_faults.no_replay = 0;
    for (int t = STEPS / 2; t < STEPS; t++)
        for (int i = 0, any = 0; i < CHURN && !any; i++)
            steps += any = with.said[t][i] >= 0;
    graphs = with.all.graphs - with.first.graphs;
    assert_in_range(with.all.captures, 2, 20);
    assert_in_range(graphs, steps / 2, steps);
    assert_int_equal(without.all.graphs, 0);
    assert_int_equal(broken.all.graphs, 0);
    assert_memory_equal(with.said, without.said, sizeof(with.said));
    assert_memory_equal(with.said, broken.said, sizeof(with.said));
}

/* Deterministic: a session alone says what it says in company. */
static void test_company(void **state)
{
    static struct churn all, alone;
    int said = 0;

    (void)state;
    churn(&all, "qwen3-omni-30b-tiny", "deterministic", -1);
    churn(&alone, "qwen3-omni-30b-tiny", "deterministic", 1);
    for (int t = 0; t < STEPS; t++) {
        assert_int_equal(alone.said[t][1], all.said[t][1]);
        said += all.said[t][1] >= 0;
    }
    assert_true(said > STEPS / 2);
}

static void test_graphs(void **state)
{
    (void)state;
    check_churn("qwen2.5-omni-7b-tiny", "");
    check_churn("qwen3-omni-30b-tiny", "deterministic");
}

/* ---- ears ---- */

enum { EARS = 2, BEATS = 3 };

/* What the ears heard: the rows of each frame that was encoded. */
struct heard {
    int n[BEATS][EARS], hidden;
    float *rows[BEATS][EARS];
};

static int16_t sample_of(int ear, int64_t i)
{
    return (int16_t)(9000 * sin((double)i * (0.02 + 0.01 * ear) + 3 * sin((double)i * 4e-4)) *
                     (1 + sin((double)i * 3e-4 * (ear + 1))));
}

static void push(struct mt_ear *ear, int which, int64_t at, int64_t n)
{
    for (int64_t i = at; i < at + n; i++) {
        float v = (float)sample_of(which, i) / 32768;

        assert_int_equal(mt_ear_push(ear, &v, 1), 1);
    }
}

/* The first ear's second frame is skipped; the last ear is saved and goes on as another one. */
static struct emu_count hear(struct heard *out, const char *shape, int frame, struct mt_backend *be,
                             bool save)
{
    struct mt_model_opts mo = {.step_rows = MOST, .want_rows = SESSIONS};
    struct mt_ear *ear[EARS], *some[EARS];
    struct mt_model *m;
    char spec[64];

    snprintf(spec, sizeof(spec), "synth:%s,layers=1", shape);
    assert_int_equal(mt_model_open(&m, spec, be, &mo, NULL), 0);
    const struct mt_model_info *info = mt_model_info(m);
    out->hidden = info->hidden;
    for (int i = 0; i < EARS; i++) {
        assert_int_equal(mt_ear_new(&ear[i], m, frame, 2, NULL), 0);
        push(ear[i], i, 0, info->lookahead_samples);
    }
    for (int t = 0; t < BEATS; t++) {
        int n = 0;

        for (int i = 0; i < EARS; i++) {
            push(ear[i], i, t * (int64_t)frame + info->lookahead_samples, frame);
            assert_int_equal(mt_ear_frames(ear[i]), 1);
            if (i == 0 && t == 1)
                mt_ear_skip(ear[i]);
            else
                some[n++] = ear[i];
        }
        emu_count = (struct emu_count){0};
        assert_int_equal(mt_model_encode(m, some, n), 0);
        struct emu_count c = emu_count;
        for (int i = 0; i < EARS; i++) {
            struct mt_rows rows = mt_ear_rows(ear[i], &out->n[t][i]);

            out->rows[t][i] = calloc((size_t)(out->n[t][i] + 1), 4 * (size_t)info->hidden);
            be->ops->rows_get(be, out->rows[t][i], rows, out->n[t][i]);
        }
        if (save) {
            struct mt_state_io to = {0}, from = {.load = true};

            mt_ear_visit(ear[EARS - 1], &to);
            mt_ear_free(&ear[EARS - 1]);
            assert_int_equal(mt_ear_new(&ear[EARS - 1], m, frame, 2, NULL), 0);
            from.data = to.data;
            from.n = to.n;
            mt_ear_visit(ear[EARS - 1], &from);
            assert_int_equal(to.err.code, 0);
            assert_int_equal(mt_state_end(&from), 0);
            free(to.data);
        }
        if (t == BEATS - 1) {
            for (int i = 0; i < EARS; i++)
                mt_ear_free(&ear[i]);
            mt_model_close(&m);
            return c;
        }
    }
    return emu_count;
}

static void heard_free(struct heard *h)
{
    for (int t = 0; t < BEATS; t++)
        for (int i = 0; i < EARS; i++)
            free(h->rows[t][i]);
}

/*
 * Frames of sessions become rows without the host's waiting, the samples in a copy; they are the
 * CPU's but for rounding, and who was saved and goes on hears the same bits.
 */
static void check_ears(const char *shape, int frame)
{
    struct heard cpu, card, saved;
    struct mt_backend *be;

    assert_int_equal(mt_backend_cpu(&be, MT_CPU_SCALAR, 1, NULL), 0);
    hear(&cpu, shape, frame, be, false);
    mt_backend_close(&be);
    assert_int_equal(mt_cuda_open(&be, "exact", NULL), 0);
    struct emu_count c = hear(&card, shape, frame, be, false);
    assert_int_equal(c.waits, 0);
    assert_int_equal(c.down, 0);
    assert_int_equal(c.allocations, 0);
    hear(&saved, shape, frame, be, true);
    mt_backend_close(&be);
    for (int t = 0; t < BEATS; t++)
        for (int i = 0; i < EARS; i++) {
            int n = cpu.n[t][i] * cpu.hidden;

            assert_int_equal(card.n[t][i], cpu.n[t][i]);
            assert_true((n == 0) == (i == 0 && t == 1));
            for (int k = 0; k < n; k++)
                assert_true(fabsf(card.rows[t][i][k] - cpu.rows[t][i][k]) < 1e-3f);
            assert_memory_equal(saved.rows[t][i], card.rows[t][i], 4 * (size_t)n);
        }
    heard_free(&cpu);
    heard_free(&card);
    heard_free(&saved);
}

static void test_ears(void **state)
{
    (void)state;
    check_ears("qwen2.5-omni-7b-tiny", 38 * 160);
    check_ears("qwen3-omni-30b-tiny", 40 * 160);
    check_ears("minicpm-o-4.5-tiny", 16000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dense),      cmocka_unit_test(test_mixture),
        cmocka_unit_test(test_algorithms), cmocka_unit_test(test_graphs),
        cmocka_unit_test(test_company),    cmocka_unit_test(test_tiles_alone),
        cmocka_unit_test(test_threads),    cmocka_unit_test(test_old_card),
        cmocka_unit_test(test_decoded),    cmocka_unit_test(test_ears),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
