/*
 * test_emu_engine.c: an engine on a card. Two queues: what waits for what, and what does not; who
 * encodes beside steps says what it says without, however the card orders what it may. And what was
 * shown before the first call is captured in none.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "count.h"
#include "engine/engine.h"

int mt_cuda_open(struct mt_backend **out, const char *how, struct mt_err *e);

/* Streams in the order they are made: emu_faults.deaf. */
enum { SIDE = 1, FIRST = 2 };

static unsigned lot(unsigned *seed, unsigned n)
{
    *seed = *seed * 1664525 + 1013904223;
    return (*seed >> 16) % n;
}

/* ---- operations ---- */

enum { WIDTH = 8 };

static void put(struct mt_backend *be, struct mt_rows r, float v)
{
    float x[WIDTH];

    for (int i = 0; i < WIDTH; i++)
        x[i] = v;
    be->ops->rows_put(be, r, x, 1);
}

static float get(struct mt_backend *be, struct mt_rows r)
{
    float x[WIDTH];

    be->ops->rows_get(be, x, r, 1);
    return x[0];
}

/*
 * x = 1, fork, y = 2 on the first queue, z = x + table[0] on the side: what the first queue has of
 * z before it joined, and then.
 */
static void beside(enum emu_order order, float *before, float *after)
{
    static const float three[WIDTH] = {3, 3, 3, 3, 3, 3, 3, 3};
    const int index = 0;
    const int32_t id = 0;
    struct mt_backend *be;
    struct mt_rows x, y, z;
    struct mt_mat *table;

    assert_int_equal(mt_cuda_open(&be, "", NULL), 0);
    assert_int_equal(be->ops->rows_new(be, &x, 1, WIDTH), 0);
    assert_int_equal(be->ops->rows_new(be, &y, 1, WIDTH), 0);
    assert_int_equal(be->ops->rows_new(be, &z, 1, WIDTH), 0);
    assert_int_equal(
        be->ops->mat_new(be, &table, &(struct mt_bytes){three, MT_F32, 1, WIDTH, false}), 0);
    put(be, z, 5);
    assert_true(get(be, z) == 5); /* all of it is done */
    emu_order = order;
    put(be, x, 1);
    be->ops->side(be, MT_SIDE_FORK);
    put(be, y, 2);
    be->ops->side(be, MT_SIDE_ON);
    be->ops->gather(be, z, x, &index, 1);
    be->ops->embed_add(be, z, table, &id, 1);
    be->ops->side(be, MT_SIDE_OFF);
    assert_true(get(be, y) == 2);
    *before = get(be, z);
    be->ops->side(be, MT_SIDE_JOIN);
    *after = get(be, z);
    emu_order = EMU_NOW;
    be->ops->rows_free(be, &x);
    be->ops->rows_free(be, &y);
    be->ops->rows_free(be, &z);
    be->ops->mat_free(be, table);
    mt_backend_close(&be);
}

static void test_waits(void **state)
{
    float before, after;

    (void)state;
    for (int order = EMU_NOW; order <= EMU_MIXED; order++) {
        beside((enum emu_order)order, &before, &after);
        assert_true(after == 4);
    }
    beside(EMU_LATE, &before, &after);
    assert_true(before == 5); /* nobody waited for the side */
    emu_faults.deaf = FIRST;
    beside(EMU_LATE, &before, &after);
    assert_true(after == 5);
    emu_faults.deaf = SIDE;
    beside(EMU_OTHERS, &before, &after);
    assert_true(after == 3); /* x was not there yet */
    emu_faults.deaf = 0;
}

/* ---- an engine ---- */

/* Calls that come, talk and go, some in the middle of a frame. */
enum { CALLS = 7, AT_ONCE = 3, FRAMES = 4, ANSWER = 3, TURNS = 40 };
#define FRAME_NS INT64_C(400000000)

struct talk {
    /* 0: no answer, or not a whole one; -1: no numbers; else 1 + the token */
    int tokens[CALLS][FRAMES][ANSWER];
    int64_t steps;
};

struct world {
    struct mt_backend *be;
    struct mt_ops ops;
    struct mt_model *m;
    struct mt_engine *eng;
    struct mt_clock clock;
    struct talk *talk;
    int64_t samples, lookahead;
};

static void on_frame(void *ctx, const struct mt_record *r)
{
    struct world *w = ctx;

    assert_in_range(r->session, 1, CALLS);
    assert_in_range(r->frame, 0, FRAMES - 1);
    if (r->status == MT_FAILED)
        w->talk->tokens[r->session - 1][r->frame][0] = -1;
    for (int i = 0; r->status == MT_OK && i < r->tokens_out; i++)
        w->talk->tokens[r->session - 1][r->frame][i] = 1 + r->tokens[i];
}

static void on_closed(void *ctx, int64_t session, const char *reason, int64_t frames)
{
    (void)ctx;
    (void)session;
    (void)reason;
    (void)frames;
}

/*
 * An ear's rows are no numbers before they are encoded, and once they were read: who reads them too
 * early fails, however little a frame's sound might change an answer.
 */
static struct mt_ops own;
static struct mt_rows ears[CALLS];
static int64_t ear_rows;
static int n_ears;

static void spoil(struct mt_backend *be, struct mt_rows r, int64_t n)
{
    float *nan = malloc((size_t)r.width * sizeof(*nan));

    assert_non_null(nan);
    for (int i = 0; i < r.width; i++)
        nan[i] = NAN;
    for (int64_t i = 0; i < n; i++)
        own.rows_put(be, mt_rows_from(r, i), nan, 1);
    free(nan);
}

static int rows_new(struct mt_backend *be, struct mt_rows *out, int64_t n, int width)
{
    int rc = own.rows_new(be, out, n, width);

    assert_int_equal(rc, 0);
    spoil(be, *out, n);
    if (width > 1) { /* else it is another thing that an ear remembers */
        ears[n_ears++ % CALLS] = *out;
        ear_rows = n;
    }
    return rc;
}

static void gather(struct mt_backend *be, struct mt_rows dst, struct mt_rows src, const int *index,
                   int n)
{
    own.gather(be, dst, src, index, n);
    for (int i = 0; i < CALLS; i++)
        if (ears[i].data && src.data >= ears[i].data &&
            src.data < ears[i].data + ears[i].stride * ear_rows) {
            spoil(be, src, n);
            return;
        }
}

static struct mt_engine_opts options(const char *kv)
{
    struct mt_engine_opts o;

    mt_engine_defaults(&o);
    o.kv_type = MT_F32;
    o.pool_blocks = 240;
    o.frame_ns = FRAME_NS;
    o.answer_tokens = ANSWER;
    o.max_sessions = CALLS;
    o.step_tokens = 24;
    o.backlog = 2 * FRAMES;
    o.mode = MT_MODE_FREE;
    assert_int_equal(mt_policy_parse(kv, &o.policy, NULL), 0);
    return o;
}

/* how: of the card, or NULL: the CPU. */
static void begin(struct world *w, struct talk *out, const char *shape, const char *how, bool side,
                  struct mt_engine_opts o)
{
    struct mt_model_opts mo = {.step_rows = o.step_tokens, .want_rows = o.max_sessions};
    struct mt_err e = {0};
    char spec[80];

    *w = (struct world){.clock = mt_clock_virtual(0), .talk = out};
    *out = (struct talk){0};
    o.events = (struct mt_engine_events){w, on_frame, on_closed};
    snprintf(spec, sizeof(spec), "synth:%s,layers=1", shape);
    if ((how ? mt_cuda_open(&w->be, how, &e) : mt_backend_open(&w->be, "cpu", 1, &e)) < 0)
        fail_msg("%s", e.text);
    own = w->ops = *w->be->ops;
    n_ears = 0;
    memset(ears, 0, sizeof(ears));
    if (!side)
        w->ops.side = NULL;
    w->be->ops = &w->ops;
    if (mt_model_open(&w->m, spec, w->be, &mo, &e) < 0 ||
        mt_engine_new(&w->eng, w->m, &o, &w->clock, &e) < 0)
        fail_msg("%s", e.text);
    w->samples = mt_engine_plan(w->eng)->frame_samples;
    w->lookahead = mt_engine_plan(w->eng)->lookahead_samples;
    w->ops.rows_new = rows_new;
    w->ops.gather = gather;
}

static void end(struct world *w)
{
    struct mt_engine_stats *s = malloc(sizeof(*s));

    assert_non_null(s);
    while (mt_engine_tick(w->eng))
        ;
    mt_engine_stats(w->eng, s);
    w->talk->steps = s->steps;
    free(s);
    mt_engine_free(&w->eng);
    mt_model_close(&w->m);
    mt_backend_close(&w->be);
}

static int64_t dial(struct world *w, int voice)
{
    struct mt_session_opts o;
    struct mt_err e = {0};
    const char *why = "";
    double retry;
    int64_t id;

    mt_session_defaults(&o);
    o.has_seed = true;
    o.seed = (uint64_t)voice;
    o.temperature = voice % 2 ? 1 : 0;
    if (mt_engine_open(w->eng, &o, &id, &why, &retry, &e) < 0)
        fail_msg("%s %s", why, e.text);
    return id;
}

/* A frame more; the first brings the lookahead too. */
static void speak(struct world *w, int64_t id, int frame)
{
    int64_t n = w->samples + (frame ? 0 : w->lookahead);
    float *pcm = malloc((size_t)n * sizeof(*pcm));

    assert_non_null(pcm);
    for (int64_t i = 0; i < n; i++)
        pcm[i] = 0.3f * (float)(mt_unit(mt_mix64((uint64_t)(i + 7919 * (64 * id + frame)))) - 0.5);
    assert_int_equal(mt_engine_audio(w->eng, id, pcm, n, w->clock.virtual_ns), n);
    free(pcm);
}

/* The same calls in every run, tick by tick, whatever is answered when. */
static void converse(struct world *w)
{
    int64_t id[AT_ONCE] = {0};
    int said[AT_ONCE], calls = 0;
    unsigned seed = 3;

    for (int t = 0; t < TURNS; t++) {
        for (int i = 0; i < AT_ONCE; i++) {
            unsigned does = lot(&seed, 12);

            if (!id[i] && does < 4 && calls < CALLS) {
                id[i] = dial(w, ++calls);
                said[i] = 0;
                speak(w, id[i], said[i]++);
            } else if (id[i] && said[i] < FRAMES - 1 && does < 4) {
                speak(w, id[i], said[i]++);
            } else if (id[i] && said[i] == FRAMES - 1) {
                assert_int_equal(mt_engine_end(w->eng, id[i], w->clock.virtual_ns), 0);
                id[i] = 0;
            } else if (id[i] && said[i] > 1 && does == 11) {
                mt_engine_close(w->eng, id[i], "gone");
                id[i] = 0;
            }
        }
        mt_engine_tick(w->eng);
    }
    for (int i = 0; i < AT_ONCE; i++)
        if (id[i])
            assert_int_equal(mt_engine_end(w->eng, id[i], w->clock.virtual_ns), 0);
}

static void run(struct talk *out, const char *shape, const char *how, bool side,
                enum emu_order order)
{
    struct world w;

    begin(&w, out, shape, how, side, options("window=96,sinks=4"));
    emu_order = order;
    converse(&w);
    end(&w);
    emu_order = EMU_NOW;
}

/* Answers that are other ones; *both: those that both have (a call that is closed loses some). */
static int others(const struct talk *a, const struct talk *b, int *both)
{
    int n = 0;

    *both = 0;
    for (int c = 0; c < CALLS; c++)
        for (int f = 0; f < FRAMES; f++) {
            if (!a->tokens[c][f][0] || !b->tokens[c][f][0])
                continue;
            ++*both;
            n += memcmp(a->tokens[c][f], b->tokens[c][f], sizeof(a->tokens[c][f])) != 0;
        }
    return n;
}

static void check(const char *shape, const char *how)
{
    static struct talk plain, with;
    int both;

    run(&plain, shape, how, false, EMU_NOW);
    for (int order = EMU_LATE; order <= EMU_MIXED; order++) {
        run(&with, shape, how, true, (enum emu_order)order);
        assert_int_equal(others(&plain, &with, &both), 0);
        assert_true(both > 2 * CALLS);
        assert_true(with.steps > plain.steps); /* some waited for a step of others */
    }
    /* An event that nobody waits for shows: else the orders above would show nothing. */
    emu_faults.deaf = FIRST;
    run(&with, shape, how, true, EMU_LATE);
    assert_true(others(&plain, &with, &both) > 0);
    emu_faults.deaf = SIDE;
    run(&with, shape, how, true, EMU_OTHERS);
    assert_true(others(&plain, &with, &both) > 0);
    emu_faults.deaf = 0;
}

static void test_spans(void **state)
{
    static struct talk cpu, card;
    int both;

    (void)state;
    run(&cpu, "qwen2.5-omni-7b-tiny,dtype=f32", NULL, false, EMU_NOW);
    run(&card, "qwen2.5-omni-7b-tiny,dtype=f32", "exact", true, EMU_MIXED);
    assert_int_equal(others(&cpu, &card, &both), 0);
    assert_true(both > 2 * CALLS);
    check("qwen2.5-omni-7b-tiny,dtype=bf16", "deterministic");
}

static void test_caches(void **state)
{
    (void)state;
    check("qwen3-omni-30b-tiny,dtype=f32", "deterministic");
}

/* Nobody else has a step to run: a frame is answered in as many ticks as without a side. */
static int ticks(bool side)
{
    static struct talk talk;
    struct world w;
    int n = 0;

    begin(&w, &talk, "qwen2.5-omni-7b-tiny,dtype=f32", "", side, options("window=96,sinks=4"));
    int64_t id = dial(&w, 0);
    speak(&w, id, 0);
    while (!talk.tokens[0][0][0] && n < 100) {
        mt_engine_tick(w.eng);
        n++;
    }
    end(&w);
    return n;
}

static void test_alone(void **state)
{
    int n = ticks(true);

    (void)state;
    assert_in_range(n, 1, 20);
    assert_int_equal(n, ticks(false));
}

/* ---- steps that were shown ---- */

static void begin_shown(struct world *w, struct talk *talk, int sessions)
{
    struct mt_engine_opts o = options("window=256,sinks=4");
    char system[300];

    memset(system, 'a', sizeof(system) - 1);
    system[sizeof(system) - 1] = '\0';
    o.system = system;
    o.max_sessions = sessions;
    o.step_tokens = 24 * sessions;
    begin(w, talk, "qwen2.5-omni-7b-tiny,dtype=f32", "", true, o);
    assert_true(mt_engine_warm(w->eng) >= 0);
}

/* Frames are there: each step that only decodes is one graph, and none is made. */
static void decode_shown(struct world *w)
{
    mt_engine_tick(w->eng); /* heard, and the first token said */
    for (int t = 1; t < ANSWER; t++) {
        emu_count = (struct emu_count){0};
        mt_engine_tick(w->eng);
        assert_int_equal(emu_count.graphs, 1);
        assert_int_equal(emu_count.captures, 0);
        assert_in_range(emu_count.launches, 1, 2); /* the draw */
    }
}

/* A call that has had its first frame, with all of the prompt. */
static int64_t dial_full(struct world *w, int voice)
{
    int64_t id = dial(w, voice);

    speak(w, id, 0);
    while (mt_engine_tick(w->eng))
        ;
    return id;
}

/* With full windows: one, two and three calls that decode. */
static void test_shown(void **state)
{
    static struct talk talk;
    struct world w;
    int64_t id[3];

    (void)state;
    begin_shown(&w, &talk, CALLS);
    for (int n = 0; n < 3; n++) {
        id[n] = dial_full(&w, n);
        for (int i = 0; i <= n; i++)
            speak(&w, id[i], n - i + 1);
        decode_shown(&w);
        for (int i = 0; i <= n; i++)
            assert_true(talk.tokens[i][n - i + 1][ANSWER - 1] > 0);
    }
    end(&w);
}

/* As many as there may be, however many rows the card would rather have. */
static void test_shown_full(void **state)
{
    enum { MANY = 5 }; /* the card tells 4 and 6 apart */
    static struct talk talk;
    struct world w;
    int64_t id[MANY];

    (void)state;
    begin_shown(&w, &talk, MANY);
    for (int i = 0; i < MANY; i++)
        id[i] = dial_full(&w, i);
    for (int i = 0; i < MANY; i++)
        speak(&w, id[i], 1);
    decode_shown(&w);
    for (int i = 0; i < MANY; i++)
        assert_true(talk.tokens[i][1][ANSWER - 1] > 0);
    end(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_waits),  cmocka_unit_test(test_spans),
        cmocka_unit_test(test_caches), cmocka_unit_test(test_alone),
        cmocka_unit_test(test_shown),  cmocka_unit_test(test_shown_full),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
