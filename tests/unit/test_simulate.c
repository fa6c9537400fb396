/*
 * test_simulate.c: the simulator: its collapse where the formula says, its latency as the cost
 * model says, the same records for the same seed, and many frames in little time; and a real model
 * in the place of the cost model.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "control/control.h"
#include "control/simulate.h"

struct seen {
    int64_t frames, by_status[6], refused;
    double first_stall_s, latency_max_ms, latency_last_ms;
    uint64_t hash;
    double length_s, gap_s;
};

static void on_frame(void *ctx, const struct mt_record *r)
{
    struct seen *s = ctx;

    s->frames++;
    s->by_status[r->status]++;
    if (r->status == MT_STALLED && s->first_stall_s < 0)
        s->first_stall_s = r->t_s;
    if (r->status == MT_OK) {
        s->latency_max_ms = fmax(s->latency_max_ms, r->latency_ms);
        s->latency_last_ms = r->latency_ms;
    }
    s->hash = mt_hash(s->hash, &r->session, sizeof(r->session));
    s->hash = mt_hash(s->hash, &r->latency_ms, sizeof(r->latency_ms));
    s->hash = mt_hash(s->hash, &r->kv_tokens, sizeof(r->kv_tokens));
}

static void on_refused(void *ctx, int64_t call, double t_s, const char *reason)
{
    struct seen *s = ctx;

    (void)call;
    (void)t_s;
    assert_string_equal(reason, "memory");
    s->refused++;
}

static double gap(void *ctx, int64_t i)
{
    const struct seen *s = ctx;

    return i ? s->gap_s : 0;
}

static double length(void *ctx, int64_t i, double arrived_s)
{
    const struct seen *s = ctx;

    (void)i;
    (void)arrived_s;
    return s->length_s;
}

static double no_phase(void *ctx, int64_t i)
{
    (void)ctx;
    (void)i;
    return 0;
}

/* Moshi's shape on 3072 blocks of 16, one token in and one out a beat. */
static struct mt_sim_opts plant(struct seen *s, const char *kv, int64_t sessions, double seconds)
{
    struct mt_sim_opts o = {
        .cost = {.name = "moshi-7b",
                 .layers = 32,
                 .kv_heads = 32,
                 .head_dim = 128,
                 .sample_rate_hz = 100,
                 .beat_s = 0.08,
                 .audio_rows_s = 12.5,
                 .a_s = 0.020,
                 .b_s = 0.0015,
                 .steps = 1},
        .sessions = sessions,
        .seconds = seconds,
        .ctx = s,
        .gap_s = gap,
        .length_s = length,
        .phase = no_phase,
        .frame = on_frame,
        .refused = on_refused,
    };

    *s = (struct seen){.first_stall_s = -1, .hash = MT_HASH_INIT, .length_s = INFINITY};
    mt_engine_defaults(&o.engine);
    assert_int_equal(mt_policy_parse(kv, &o.engine.policy, NULL), 0);
    o.engine.pool_blocks = 3072;
    o.engine.answer_tokens = 1;
    o.engine.mode = MT_MODE_FREE;
    return o;
}

static void run(const struct mt_sim_opts *o, struct mt_engine_stats *st)
{
    struct mt_err e = {0};

    if (mt_simulate(o, st, &e) < 0)
        fail_msg("%s", e.text);
}

/*
 * Two tokens a beat a session (one heard, one said): the first allocation fails in the beat of the
 * exact formula.
 */
static void test_collapse(void **state)
{
    struct seen s;
    struct mt_engine_stats st;
    struct mt_sim_opts o = plant(&s, "unbounded", 30, 200);
    struct mt_load l = {3072, 16, 0, 30, 0, 25};
    double t;
    int64_t last;

    (void)state;
    run(&o, &st);
    assert_int_equal(mt_predict_locked(&l, &t, &last), 0);
    assert_true(s.first_stall_s > 0 && fabs(s.first_stall_s - t) <= 2 * 0.08);
    assert_int_equal(s.by_status[MT_OK] + s.by_status[MT_STALLED], s.frames);
    assert_true(s.frames >= 30 * 2498);
}

static void test_window(void **state)
{
    struct seen s;
    struct mt_engine_stats st;
    struct mt_sim_opts o = plant(&s, "window=1500,sinks=4", 40, 400);

    (void)state;
    o.gap_s = gap;
    run(&o, &st);
    assert_int_equal(s.refused, 40 - 32);
    assert_int_equal(s.by_status[MT_OK], s.frames);
    assert_true(fabs(s.latency_max_ms - (20 + 1.5 * 32)) < 1e-3); /* a + b N */
}

/* Latency grows with what is resident: b1 a token. */
static void test_resident(void **state)
{
    struct seen s;
    struct mt_engine_stats st;
    struct mt_sim_opts o = plant(&s, "window=1500,sinks=4", 4, 300);

    (void)state;
    o.cost.b1_s = 1e-6;
    run(&o, &st);
    assert_true(fabs(s.latency_last_ms - (20 + 1.5 * 4 + 1e-3 * 4 * 1504)) < 0.1);
}

static void test_seed(void **state)
{
    struct seen a, b, c;
    struct mt_engine_stats st;
    struct mt_sim_opts o = plant(&a, "window=1500,sinks=4", 20, 60);

    (void)state;
    o.cost.jitter = 0.03;
    o.cost.outlier_p = 0.005;
    o.cost.outlier_x = 2.5;
    run(&o, &st);
    struct mt_sim_opts again = plant(&b, "window=1500,sinks=4", 20, 60);
    again.cost = o.cost;
    run(&again, &st);
    assert_true(a.hash == b.hash && a.frames == b.frames);
    struct mt_sim_opts other = plant(&c, "window=1500,sinks=4", 20, 60);
    other.cost = o.cost;
    other.cost.seed = 7;
    run(&other, &st);
    assert_true(c.hash != a.hash);
    assert_true(a.latency_max_ms > 20 + 1.5 * 20);
}

/* Calls that end give their blocks back; every frame has its record. */
static void test_churn(void **state)
{
    struct seen s;
    struct mt_engine_stats st;
    struct mt_sim_opts o = plant(&s, "window=1500,sinks=4", 500, 1e6);

    (void)state;
    s.length_s = 8;
    s.gap_s = 0.7;
    run(&o, &st);
    assert_int_equal(s.frames, 500 * 100);
    assert_int_equal(s.by_status[MT_OK], s.frames);
    assert_int_equal(st.sessions, 0);
    assert_int_equal(st.blocks_used, 0);
}

/* ---- a real model ---- */

enum { TALKERS = 3, BEATS = 6 };

struct heard {
    struct seen s;
    int64_t said[TALKERS];
    uint64_t tokens;
};

static void speak(void *ctx, int64_t call, int64_t frame, float *pcm, int64_t n)
{
    struct heard *h = ctx;

    assert_true(frame == h->said[call] || frame == h->said[call] - 1);
    h->said[call] = frame + 1;
    for (int64_t i = 0; i < n; i++)
        pcm[i] = (float)(0.2 * mt_unit(mt_mix64((uint64_t)(call * 7 + frame * n + i))) - 0.1);
}

static void on_answer(void *ctx, const struct mt_record *r)
{
    struct heard *h = ctx;

    on_frame(ctx, r);
    for (int i = 0; i < r->tokens_out; i++)
        h->tokens += mt_mix64((uint64_t)r->session << 40 ^ (uint64_t)r->frame << 32 ^
                              (uint64_t)r->tokens[i]);
}

static double thirds(void *ctx, int64_t i)
{
    (void)ctx;
    return (double)i / TALKERS;
}

/*
 * A model computes each frame that its callers say, and nobody waits for them: a beat of ten
 * minutes would be no longer. What it says hangs on what it hears, and on how it is drawn.
 */
static void test_real_model(void **state)
{
    const struct mt_session_opts drawn = {.temperature = 1, .top_p = 1};
    struct mt_model_opts mo = {.step_rows = 256, .want_rows = TALKERS};
    struct mt_engine_stats st;
    struct mt_backend *be;
    struct mt_model *m;
    uint64_t tokens[4];

    (void)state;
    assert_int_equal(mt_backend_open(&be, "cpu", 1, NULL), 0);
    assert_int_equal(mt_model_open(&m, "synth:qwen2.5-omni-tiny", be, &mo, NULL), 0);
    for (int k = 0; k < 4; k++) {
        struct heard h = {.tokens = 0};
        struct mt_sim_opts o = plant(&h.s, "unbounded", TALKERS, 1e4);

        o.cost = (struct mt_cost_model){.steps = 0}; /* not looked at */
        o.model = m;
        o.live = false; /* whatever this machine has to do besides */
        o.engine.answer_tokens = 3;
        o.engine.step_tokens = 256;
        o.engine.max_sessions = TALKERS;
        o.engine.frame_ns = 2 * MT_NS_PER_S;
        h.s.length_s = 2 * BEATS;
        o.phase = thirds;
        o.frame = on_answer;
        o.sound = k == 1 ? NULL : speak;
        o.session = k == 2 ? &drawn : NULL;
        run(&o, &st);
        assert_int_equal(h.s.frames, TALKERS * BEATS);
        assert_int_equal(h.s.by_status[MT_OK] + h.s.by_status[MT_LATE], h.s.frames);
        assert_int_equal(st.tokens_out, 3 * h.s.frames);
        for (int i = 0; i < TALKERS; i++)
            assert_int_equal(h.said[i], k == 1 ? 0 : BEATS);
        tokens[k] = h.tokens;
    }
    assert_true(tokens[0] == tokens[3]);
    assert_true(tokens[0] != tokens[1] && tokens[0] != tokens[2]);
    mt_model_close(&m);
    mt_backend_close(&be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_collapse), cmocka_unit_test(test_window),
        cmocka_unit_test(test_resident), cmocka_unit_test(test_seed),
        cmocka_unit_test(test_churn),    cmocka_unit_test(test_real_model),
    };

    return cmocka_run_group_tests_name("simulate", tests, NULL, NULL);
}
