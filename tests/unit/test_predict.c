/*
 * test_predict.c: the closed forms of lib/control against worked examples, against counting by
 * brute force, and at their edges.
 */
#include "control/control.h"
#include "engine/engine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#define GIB INT64_C(1073741824)

static void assert_near(double got, double want, double tolerance)
{
    if (!(fabs(got - want) <= tolerance))
        fail_msg("%.9g is not within %g of %.9g", got, tolerance, want);
}

/* 24 GiB of Moshi: 3072 blocks of 16 tokens, 30 sessions of one token a frame of 80 ms. */
static struct mt_load moshi(void)
{
    return (struct mt_load){.pool_blocks = 3072, .block_tokens = 16, .sessions = 30, .rate = 12.5};
}

/* The n-th random number of a test, uniform in lo..hi. */
static int64_t pick(uint64_t *state, int64_t lo, int64_t hi)
{
    return lo + (int64_t)(mt_mix64((*state)++) % (uint64_t)(hi - lo + 1));
}

/* ---- growth ---- */

static void test_first_order(void **state)
{
    struct mt_load l = moshi();
    double t;

    (void)state;
    assert_int_equal(mt_predict_first(&l, &t), 0);
    assert_near(t, 131.072, 1e-9);
    l.rho0 = 0.25;
    assert_int_equal(mt_predict_first(&l, &t), 0);
    assert_near(t, 98.304, 1e-9);
    l.rho0 = 0;
    l.start_tokens = 100; /* 3000 of 49152 tokens are there from the start */
    assert_int_equal(mt_predict_first(&l, &t), 0);
    assert_near(t, (49152 - 3000) / 375.0, 1e-9);
}

static void test_locked(void **state)
{
    struct mt_load l = moshi();
    int64_t last;
    double t;

    (void)state;
    assert_int_equal(mt_predict_locked(&l, &t, &last), 0);
    assert_near(t, 130.64, 1e-9);
    assert_int_equal(last, 1632);
    /* The frame that fails is the same one, whether seen by the token or by the frame. */
    assert_int_equal(mt_predict_locked_frames(&l, 1, 0.08, &t), 0);
    assert_near(t, 130.64, 1e-9);
    /* 50 tokens every 2 s: 32 frames hold 1600, the 33rd wants the 1633rd token. */
    assert_int_equal(mt_predict_locked_frames(&l, 50, 2, &t), 0);
    assert_near(t, 66, 1e-9);
    l.rho0 = 0.5;
    assert_int_equal(mt_predict_locked(&l, &t, &last), 0);
    assert_int_equal(last, 816); /* floor(1536 / 30) = 51 blocks */
    l.start_tokens = 817;
    assert_int_equal(mt_predict_locked(&l, &t, &last), 0);
    assert_true(t == 0);
}

/* Steps until a token finds no block, sessions growing in step by `grow` tokens a step. */
static int64_t count_steps(int64_t blocks, int64_t p, int64_t n, int64_t n0, int64_t grow)
{
    int64_t *held = calloc((size_t)n, sizeof(*held)), *tokens = calloc((size_t)n, sizeof(*tokens));
    int64_t step = 0, used = 0;
    bool failed = false;

    assert_non_null(held);
    assert_non_null(tokens);
    while (!failed) {
        for (int64_t i = 0; i < n && !failed; i++) {
            tokens[i] += step == 0 ? n0 : grow;
            while (held[i] * p < tokens[i] && !failed) {
                failed = used == blocks;
                used += !failed;
                held[i] += !failed;
            }
        }
        if (!failed)
            step++;
    }
    free(held);
    free(tokens);
    return step;
}

static void test_locked_is_exact(void **state)
{
    uint64_t r = 1;

    (void)state;
    for (int i = 0; i < 3000; i++) {
        struct mt_load l = {.pool_blocks = pick(&r, 1, 200),
                            .block_tokens = pick(&r, 1, 20),
                            .sessions = pick(&r, 1, 30),
                            .start_tokens = pick(&r, 0, 60),
                            .rate = 1};
        int64_t frame = pick(&r, 1, 70);
        double t;

        assert_int_equal(mt_predict_locked(&l, &t, NULL), 0);
        assert_true((int64_t)t ==
                    count_steps(l.pool_blocks, l.block_tokens, l.sessions, l.start_tokens, 1));
        assert_int_equal(mt_predict_locked_frames(&l, (double)frame, 1, &t), 0);
        assert_true((int64_t)t ==
                    count_steps(l.pool_blocks, l.block_tokens, l.sessions, l.start_tokens, frame));
    }
}

static void test_spread(void **state)
{
    enum { RUNS = 200 };
    struct mt_load l = moshi();
    double t, sum = 0;
    uint64_t r = 99;

    (void)state;
    assert_int_equal(mt_predict_spread(&l, &t), 0);
    assert_near(t, 130.472, 1e-9);
    /* Sessions with a random number of tokens in their first block, counted token by token. */
    for (int run = 0; run < RUNS; run++) {
        int64_t tokens[30], used = 30;
        bool full = false;

        for (int i = 0; i < 30; i++)
            tokens[i] = pick(&r, 1, 16);
        while (!full) {
            for (int i = 0; i < 30 && !full; i++) {
                if (tokens[i] % 16 == 0)
                    full = used++ == 3072;
                tokens[i] += !full;
            }
        }
        /* All tokens of the end, those of the start included, at 375 a second. */
        for (int i = 0; i < 30; i++)
            sum += (double)tokens[i] / 375;
    }
    assert_near(sum / RUNS, t, 0.005 * t);
}

static void test_classes(void **state)
{
    /* Qwen3-Omni: thinker audio, text while speaking, talker while speaking: 1517 KiB/s a session.
     */
    struct mt_class c[] = {{32, 1200 * 1024.0}, {32, 192 * 1024.0}, {32, 125 * 1024.0}};
    double t, half;

    (void)state;
    assert_int_equal(mt_predict_classes(c, 3, 24.0 * GIB, 0, &t), 0);
    assert_near(t, 518.4, 0.05);
    assert_int_equal(mt_predict_classes(c, 3, 24.0 * GIB, 0.5, &half), 0);
    assert_near(half, t / 2, 1e-9);
    assert_int_equal(mt_predict_classes(c, 0, 1, 0, &t), 0);
    assert_true(isinf(t));
    assert_int_equal(mt_predict_classes(c, 3, 1, 1.5, &t), 0);
    assert_true(t == 0);
    c[1].bytes_s = NAN;
    assert_int_equal(mt_predict_classes(c, 3, 1, 0, &t), -EDOM);
    assert_int_equal(mt_predict_classes(c, 1, NAN, 0, &t), -EDOM);
    assert_int_equal(mt_predict_classes(c, 1, 1, NAN, &t), -EDOM);
}

static int all_growth(const struct mt_load *l, double t[4])
{
    int rc = mt_predict_first(l, &t[0]);

    assert_int_equal(mt_predict_spread(l, &t[1]), rc);
    assert_int_equal(mt_predict_locked(l, &t[2], NULL), rc);
    assert_int_equal(mt_predict_locked_frames(l, 1, 0.08, &t[3]), rc);
    return rc;
}

static void test_growth_edges(void **state)
{
    double t[4] = {7, 7, 7, 7};
    struct mt_load l;

    (void)state;
    l = moshi(), l.sessions = 0;
    assert_int_equal(all_growth(&l, t), 0);
    for (int i = 0; i < 4; i++)
        assert_true(isinf(t[i]) && t[i] > 0);
    l = moshi(), l.rate = 0;
    assert_int_equal(all_growth(&l, t), 0);
    for (int i = 0; i < 4; i++)
        assert_true(isinf(t[i]) && t[i] > 0);
    for (int k = 1; k < 4; k++) {
        l = moshi(), l.rho0 = k;
        assert_int_equal(all_growth(&l, t), 0);
        for (int i = 0; i < 4; i++)
            assert_true(t[i] == 0);
    }
    for (int i = 0; i < 4; i++)
        t[i] = 7;
    l = moshi(), l.rho0 = NAN;
    assert_int_equal(all_growth(&l, t), -EDOM);
    l = moshi(), l.rate = NAN;
    assert_int_equal(all_growth(&l, t), -EDOM);
    l = moshi(), l.rate = -1;
    assert_int_equal(all_growth(&l, t), -EDOM);
    l = moshi(), l.sessions = -1;
    assert_int_equal(all_growth(&l, t), -EDOM);
    l = moshi(), l.pool_blocks = 0;
    assert_int_equal(all_growth(&l, t), -EDOM);
    l = moshi(), l.pool_blocks = INT64_MAX;
    assert_int_equal(all_growth(&l, t), -EDOM);
    for (int i = 0; i < 4; i++)
        assert_true(t[i] == 7);
    l = moshi();
    assert_int_equal(mt_predict_locked_frames(&l, NAN, 1, t), -EDOM);
    assert_int_equal(mt_predict_locked_frames(&l, 1, 0, t), -EDOM);
}

/* ---- memory ---- */

static void test_session_blocks(void **state)
{
    static const struct {
        int64_t step, in_place, whole;
    } rows[] = {{1, 257, 258}, {13, 258, 259}, {50, 261, 261}};
    int64_t blocks;

    (void)state;
    for (size_t i = 0; i < MT_COUNT(rows); i++) {
        struct mt_bound w = {.window = 4096, .sinks = 4, .step = rows[i].step, .block_tokens = 16};

        w.retire = MT_RETIRE_IN_PLACE;
        assert_int_equal(mt_bound_blocks(&w, &blocks), 0);
        assert_int_equal(blocks, rows[i].in_place);
        w.retire = MT_RETIRE_WHOLE;
        assert_int_equal(mt_bound_blocks(&w, &blocks), 0);
        assert_int_equal(blocks, rows[i].whole);
    }
}

/* What is predicted is what the engine commits. */
static void test_session_blocks_are_the_engines(void **state)
{
    uint64_t r = 17;
    int64_t blocks;

    (void)state;
    for (int i = 0; i < 2000; i++) {
        struct mt_bound w = {.window = pick(&r, 1, 5000),
                             .sinks = pick(&r, 0, 700),
                             .step = pick(&r, 1, 80),
                             .block_tokens = pick(&r, 1, 40)};

        assert_int_equal(mt_bound_blocks(&w, &blocks), 0);
        assert_int_equal(blocks, mt_policy_blocks(w.window, w.sinks, (int)w.block_tokens, w.step));
    }
}

static void test_n_mem(void **state)
{
    static const struct {
        int64_t window, n;
    } rows[] = {{3000, 16}, {1500, 32}, {1000, 47}, {4096, 11}, {8192, 5}};
    struct mt_bound w = {.sinks = 4, .step = 1, .block_tokens = 16, .retire = MT_RETIRE_WHOLE};
    int64_t n;

    (void)state;
    for (size_t i = 0; i < MT_COUNT(rows); i++) {
        w.window = rows[i].window;
        assert_int_equal(mt_bound_sessions(&w, 3072, &n), 0);
        assert_int_equal(n, rows[i].n);
    }
    /* A long prompt kept as sinks: 640 tokens are 40 blocks, once for all or once a session. */
    w = (struct mt_bound){.window = 1600, .sinks = 640, .step = 1, .block_tokens = 16};
    assert_int_equal(mt_bound_sessions(&w, 3072, &n), 0);
    assert_int_equal(n, 3072 / 140);
    w.shared_sinks = true;
    assert_int_equal(mt_bound_sessions(&w, 3072, &n), 0);
    assert_int_equal(n, (3072 - 40) / 100);
    assert_int_equal(mt_bound_sessions(&w, 139, &n), 0);
    assert_int_equal(n, 0);
    assert_int_equal(mt_bound_sessions(&w, 0, &n), 0);
    assert_int_equal(n, 0);
}

static void test_window_for(void **state)
{
    struct mt_bound w = {.sinks = 4, .step = 1, .block_tokens = 16, .retire = MT_RETIRE_WHOLE};
    int64_t window, n, more;
    uint64_t r = 5;
    int found = 0;

    (void)state;
    assert_int_equal(mt_bound_window(&w, 3072, 29, &window), 0);
    assert_int_equal(window, 1648);
    for (int i = 0; i < 5000; i++) {
        int64_t blocks = pick(&r, 0, 500), want = pick(&r, 1, 40);

        w = (struct mt_bound){.sinks = pick(&r, 0, 50),
                              .step = pick(&r, 1, 60),
                              .block_tokens = pick(&r, 1, 20),
                              .retire = i % 2 ? MT_RETIRE_WHOLE : MT_RETIRE_IN_PLACE,
                              .shared_sinks = i % 3 == 0};
        if (mt_bound_window(&w, blocks, want, &window) == 0) {
            assert_true(window >= 1);
            w.window = window;
            assert_int_equal(mt_bound_sessions(&w, blocks, &n), 0);
            assert_true(n >= want);
            w.window = window + 1;
            assert_int_equal(mt_bound_sessions(&w, blocks, &more), 0);
            /* In place it is the largest; whole blocks leave the one token that straddles. */
            assert_true(w.retire == MT_RETIRE_WHOLE || more < want);
            found++;
        } else {
            w.window = w.retire == MT_RETIRE_WHOLE ? 2 : 1;
            assert_int_equal(mt_bound_sessions(&w, blocks, &n), 0);
            assert_true(n < want);
        }
    }
    assert_in_range(found, 500, 4500);
}

static void test_bound_edges(void **state)
{
    const struct mt_bound good = {.window = 1, .sinks = 0, .step = 1, .block_tokens = 1};
    struct mt_bound w;
    int64_t n = 7;

    (void)state;
    w = good, w.window = 0;
    assert_int_equal(mt_bound_blocks(&w, &n), -EDOM);
    w = good, w.window = INT64_MAX;
    assert_int_equal(mt_bound_blocks(&w, &n), -EDOM);
    w = good, w.sinks = -1;
    assert_int_equal(mt_bound_sessions(&w, 10, &n), -EDOM);
    w = good, w.step = 0;
    assert_int_equal(mt_bound_blocks(&w, &n), -EDOM);
    w = good, w.block_tokens = 0;
    assert_int_equal(mt_bound_blocks(&w, &n), -EDOM);
    assert_int_equal(mt_bound_sessions(&good, -1, &n), -EDOM);
    assert_int_equal(mt_bound_window(&good, 10, 0, &n), -EDOM);
    assert_int_equal(mt_bound_window(&good, 10, 11, &n), -ENOSPC);
    assert_int_equal(n, 7);
}

/* Models in bf16, sinks 4, blocks of 16, one token a step, whole blocks: what a planner looks up.
 */
static void test_models(void **state)
{
    static const struct {
        const char *name;
        int64_t q, c;
        double rate, t8, t32, t32_16, t32_40;
        int64_t n4096, n8192;
        double full;
    } rows[] = {
        {"qwen3-omni-30b", 98304, 262144, 12.5, 2621.4, 655.4, 436.9, 1092.3, 63, 31, 327.7},
        {"qwen2.5-omni-7b", 57344, 449389, 25, 2246.9, 561.7, 374.5, 936.2, 108, 54, 163.8},
        {"minicpm-o-4.5", 147456, 174762, 10, 2184.5, 546.1, 364.1, 910.2, 42, 21, 409.6},
        {"moshi-7b", 524288, 49152, 12.5, 491.5, 122.9, 81.9, 204.8, 11, 5, 327.7},
    };

    (void)state;
    for (size_t i = 0; i < MT_COUNT(rows); i++) {
        struct mt_shape s;
        struct mt_load l;
        struct mt_bound w = {.window = 4096, .sinks = 4, .step = 1, .block_tokens = 16};
        int64_t q, n;
        double t;

        w.retire = MT_RETIRE_WHOLE;
        assert_int_equal(mt_shape_by_name(&s, rows[i].name), 0);
        q = mt_shape_token_bytes(&s, MT_BF16);
        assert_int_equal(q, rows[i].q);
        assert_true(s.audio_tokens_s == rows[i].rate);
        assert_int_equal(24 * GIB / q, rows[i].c);
        /* Blocks of one token: C is then not rounded down to whole blocks of 16. */
        l = (struct mt_load){.block_tokens = 1, .rate = rows[i].rate};
        l.pool_blocks = 24 * GIB / q, l.sessions = 8;
        assert_int_equal(mt_predict_first(&l, &t), 0);
        assert_near(t, rows[i].t8, 0.0501);
        l.sessions = 32;
        assert_int_equal(mt_predict_first(&l, &t), 0);
        assert_near(t, rows[i].t32, 0.0501);
        l.pool_blocks = 16 * GIB / q;
        assert_int_equal(mt_predict_first(&l, &t), 0);
        assert_near(t, rows[i].t32_16, 0.0501);
        l.pool_blocks = 40 * GIB / q;
        assert_int_equal(mt_predict_first(&l, &t), 0);
        assert_near(t, rows[i].t32_40, 0.0501);
        assert_int_equal(mt_bound_sessions(&w, 24 * GIB / (16 * q), &n), 0);
        assert_int_equal(n, rows[i].n4096);
        w.window = 8192;
        assert_int_equal(mt_bound_sessions(&w, 24 * GIB / (16 * q), &n), 0);
        assert_int_equal(n, rows[i].n8192);
        assert_near(4096 / rows[i].rate, rows[i].full, 0.0501);
    }
}

/* ---- the beat ---- */

static void test_n_star(void **state)
{
    const struct mt_cost c = {0.020, 0.0015}, flat = {0.020, 0};
    int64_t n;
    double x;

    (void)state;
    assert_int_equal(mt_latency_locked(&c, 0.080, 0.80, &n), 0);
    assert_int_equal(n, 29);
    assert_int_equal(mt_latency_locked(&c, 0.080, 0.95, &n), 0);
    assert_int_equal(n, 37);
    assert_int_equal(mt_latency_locked(&c, 0.080, 1, &n), 0);
    assert_int_equal(n, 40); /* exactly: (80 - 20) / 1.5 */
    assert_int_equal(mt_latency_unaligned(&c, 0.080, 0.80, &n), 0);
    assert_int_equal(n, 16);
    assert_int_equal(mt_latency_unaligned(&c, 0.080, 1, &n), 0);
    assert_int_equal(n, 26);
    assert_int_equal(mt_latency_worst(&c, 0.080, 26, &x), 0);
    assert_near(x, 0.079, 1e-12);
    assert_int_equal(mt_latency_worst(&c, 0.080, 40, &x), 0);
    assert_near(x, 2 * 0.020 * 0.080 / 0.020, 1e-12);
    assert_int_equal(mt_latency_worst(&c, 0.080, 54, &x), 0);
    assert_true(isinf(x));
    assert_int_equal(mt_latency_locked(&flat, 0.080, 0.8, &n), 0);
    assert_true(n == MT_NO_LIMIT);
    assert_int_equal(mt_latency_locked(&flat, 0.010, 0.8, &n), 0);
    assert_int_equal(n, 0);
    assert_int_equal(mt_latency_unaligned(&c, 0.045, 0.8, &n), 0);
    assert_int_equal(n, 0);
    n = 7;
    assert_int_equal(mt_latency_locked(&c, NAN, 0.8, &n), -EDOM);
    assert_int_equal(mt_latency_locked(&c, 0.080, 0, &n), -EDOM);
    assert_int_equal(mt_latency_locked(&c, 0.080, 1.01, &n), -EDOM);
    assert_int_equal(mt_latency_locked(&c, 0.080, NAN, &n), -EDOM);
    assert_int_equal(mt_latency_locked(&(struct mt_cost){NAN, 0}, 0.08, 0.8, &n), -EDOM);
    assert_int_equal(mt_latency_unaligned(&(struct mt_cost){0, -1}, 0.08, 0.8, &n), -EDOM);
    assert_int_equal(mt_latency_worst(&c, 0.08, NAN, &x), -EDOM);
    assert_int_equal(n, 7);
}

static void test_edf_example(void **state)
{
    struct mt_periodic c[] = {{80 * MT_NS_PER_MS, 45 * MT_NS_PER_MS, 0},
                              {1000 * MT_NS_PER_MS, 120 * MT_NS_PER_MS, 0}};
    struct mt_edf r;

    (void)state;
    assert_int_equal(mt_edf_check(c, 2, &r), 0);
    assert_near(r.load, 0.6825, 1e-12);
    assert_false(r.feasible);
    assert_int_equal(r.blocker, 1);
    assert_true(r.at_ns == 80 * MT_NS_PER_MS + 1);
    assert_true(r.needs_ns == 165 * MT_NS_PER_MS);
    c[1].piece_ns = 30 * MT_NS_PER_MS;
    assert_int_equal(mt_edf_check(c, 2, &r), 0);
    assert_true(r.feasible);
    assert_int_equal(r.blocker, -1);
    c[1].piece_ns = 35 * MT_NS_PER_MS; /* T_1 - E_1, the longest piece */
    assert_int_equal(mt_edf_check(c, 2, &r), 0);
    assert_true(r.feasible);
    c[1].piece_ns++;
    assert_int_equal(mt_edf_check(c, 2, &r), 0);
    assert_true(r.feasible); /* 1 ns more still fits in L = T_1 + 1 ns */
    c[1].piece_ns++;
    assert_int_equal(mt_edf_check(c, 2, &r), 0);
    assert_false(r.feasible);
    c[0].cost_ns = 81 * MT_NS_PER_MS;
    assert_int_equal(mt_edf_check(c, 1, &r), 0);
    assert_false(r.feasible);
    assert_int_equal(r.blocker, -1);
    assert_int_equal(mt_edf_check(c, 0, &r), -EDOM);
    c[1].period_ns = 1;
    assert_int_equal(mt_edf_check(c, 2, &r), -EDOM);
}

static void test_edf_is_exact(void **state)
{
    uint64_t r = 11;
    int yes = 0;

    (void)state;
    for (int i = 0; i < 4000; i++) {
        struct mt_periodic c[4];
        struct mt_edf got;
        int n = (int)pick(&r, 2, 4);
        double load = 0;
        bool want;

        for (int j = 0; j < n; j++) {
            c[j].period_ns = pick(&r, 5, 60) + (j ? c[j - 1].period_ns : 0);
            c[j].cost_ns = pick(&r, 0, 1 + 3 * c[j].period_ns / (INT64_C(2) * n));
            c[j].piece_ns = pick(&r, 0, c[j].cost_ns);
            load += (double)c[j].cost_ns / (double)c[j].period_ns;
        }
        want = load <= 1 + 1e-12;
        for (int k = 1; k < n && want; k++) {
            for (int64_t len = c[0].period_ns + 1; len < c[k].period_ns; len++) {
                int64_t work = c[k].piece_ns ? c[k].piece_ns : c[k].cost_ns;

                for (int j = 0; j < k; j++)
                    work += (len - 1) / c[j].period_ns * c[j].cost_ns;
                want &= work <= len;
            }
        }
        assert_int_equal(mt_edf_check(c, n, &got), 0);
        assert_int_equal(got.feasible, want);
        yes += want;
    }
    assert_in_range(yes, 800, 3200);
}

static void test_cost_fit(void **state)
{
    /* Published tick times of a 7B model with 2..32 calls in lockstep on one GPU. */
    static const double n[] = {2, 8, 16, 32}, ms[] = {28.0, 32.6, 45.0, 70.2};
    static const double bent[] = {0.028, 0.030, 0.032, 0.070};
    double x[4], line[3];
    struct mt_cost_fit f;
    int64_t star;

    (void)state;
    for (int i = 0; i < 4; i++)
        x[i] = ms[i] / 1e3;
    assert_int_equal(mt_cost_fit(n, x, 4, &f), 0);
    assert_near(f.cost.a_s, 0.022955, 5e-7);
    assert_near(f.cost.b_s, 0.0014479, 5e-8);
    assert_false(f.convex);
    assert_int_equal(mt_latency_locked(&f.cost, 0.080, 0.80, &star), 0);
    assert_int_equal(star, 28);
    assert_int_equal(mt_latency_locked(&f.cost, 0.080, 0.95, &star), 0);
    assert_int_equal(star, 36);
    /* Residuals 2.15, -1.94, -1.12, 0.91 ms with 2 degrees of freedom. */
    assert_near(f.residual_s, 0.002287, 1e-5);
    assert_near(f.slope_error_s, 0.002287 / sqrt(507), 1e-6);
    for (int i = 0; i < 3; i++)
        line[i] = 0.020 + 0.0015 * n[i];
    assert_int_equal(mt_cost_fit(n, line, 3, &f), 0);
    assert_near(f.cost.a_s, 0.020, 1e-12);
    assert_near(f.cost.b_s, 0.0015, 1e-12);
    assert_false(f.convex);
    assert_int_equal(mt_cost_fit(n, bent, 4, &f), 0);
    assert_false(f.convex); /* one bent segment of three: its own noise hides it */
    assert_int_equal(mt_cost_fit(n, x, 2, &f), -ENODATA);
    assert_int_equal(mt_cost_fit((const double[]){4, 4, 8, 8}, x, 4, &f), -ENODATA);
    assert_int_equal(mt_cost_fit(n, x, 0, &f), -ENODATA);
    x[2] = NAN;
    assert_int_equal(mt_cost_fit(n, x, 4, &f), -EDOM);
}

static void test_cost_fit_convex(void **state)
{
    /* Flat to 16, then 2 ms a session: many points make the slope's error small enough to see it.
     */
    enum { COUNT = 400 };
    static double n[COUNT], x[COUNT];
    struct mt_cost_fit f;
    int64_t star;

    (void)state;
    for (int i = 0; i < COUNT; i++) {
        n[i] = 1 + i % 20;
        x[i] = 0.030 + (n[i] > 16 ? 0.002 * (n[i] - 16) : 0);
    }
    assert_int_equal(mt_cost_fit(n, x, COUNT, &f), 0);
    assert_true(f.convex);
    assert_near(f.last_b_s, 0.002, 1e-12);
    assert_near(f.cost.b_s, 0.002, 1e-12);
    assert_near(f.cost.a_s, 0.030 - 16 * 0.002, 1e-12);
    assert_true(f.line.b_s < 0.001);
    /* The line alone would promise far more sessions than 64 ms hold. */
    assert_int_equal(mt_latency_locked(&f.line, 0.080, 0.80, &star), 0);
    assert_true(star > 33);
}

static void test_sustainable(void **state)
{
    enum mt_binding b;

    (void)state;
    assert_int_equal(mt_sustainable(16, 29, 64, &b), 16);
    assert_string_equal(mt_binding_name(b), "memory");
    assert_int_equal(mt_sustainable(47, 29, 64, &b), 29);
    assert_string_equal(mt_binding_name(b), "latency");
    assert_int_equal(mt_sustainable(47, 29, 8, &b), 8);
    assert_string_equal(mt_binding_name(b), "limit");
    assert_int_equal(mt_sustainable(29, 29, 29, &b), 29);
    assert_int_equal(b, MT_BIND_MEMORY);
    assert_true(mt_sustainable(MT_NO_LIMIT, MT_NO_LIMIT, MT_NO_LIMIT, &b) == MT_NO_LIMIT);
    assert_int_equal(b, MT_BIND_NONE);
    assert_string_equal(mt_binding_name(b), "none");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_first_order),
        cmocka_unit_test(test_locked),
        cmocka_unit_test(test_locked_is_exact),
        cmocka_unit_test(test_spread),
        cmocka_unit_test(test_classes),
        cmocka_unit_test(test_growth_edges),
        cmocka_unit_test(test_session_blocks),
        cmocka_unit_test(test_session_blocks_are_the_engines),
        cmocka_unit_test(test_n_mem),
        cmocka_unit_test(test_window_for),
        cmocka_unit_test(test_bound_edges),
        cmocka_unit_test(test_models),
        cmocka_unit_test(test_n_star),
        cmocka_unit_test(test_edf_example),
        cmocka_unit_test(test_edf_is_exact),
        cmocka_unit_test(test_cost_fit),
        cmocka_unit_test(test_cost_fit_convex),
        cmocka_unit_test(test_sustainable),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
