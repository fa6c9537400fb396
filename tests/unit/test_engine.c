/*
 * test_engine.c: the engine in virtual time on the tiny synthetic model: policies and the pool, a
 * collapse where the formula says, bits that depend on nobody else, one record a frame, admission
 * and leaving.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/engine.h"

enum { BEAT = 32000, LOOKAHEAD = 40, CALLS = 24, FRAMES = 64, ANSWER = 64 };

/* What came back for one session. */
struct call {
    int64_t id;
    int frames, by_status[6], shortened;
    int tokens[FRAMES][ANSWER], n_tokens[FRAMES], tokens_in[FRAMES];
    int64_t kv[FRAMES];
    int first_stall;
    double pool_max;
    char text[FRAMES][256], reason[32], closed[32];
};

struct world {
    struct mt_backend *be;
    struct mt_model *m;
    struct mt_engine *eng;
    struct mt_clock clock;
    struct call call[CALLS];
    int n_calls;
};

static struct call *call_of(struct world *w, int64_t id)
{
    for (int i = 0; i < w->n_calls; i++)
        if (w->call[i].id == id)
            return &w->call[i];
    fail_msg("record of an unknown session %lld", (long long)id);
    return NULL;
}

static void on_frame(void *ctx, const struct mt_record *r)
{
    struct call *c = call_of(ctx, r->session);
    double parts = r->wait_ms + r->encode_ms + r->prefill_ms + r->decode_ms;

    assert_int_equal(r->frame, c->frames); /* each frame once, in order */
    assert_true(c->frames < FRAMES);
    assert_true(r->tokens_out <= ANSWER);
    assert_true(fabs(parts - r->latency_ms) < 1e-6);
    assert_true(r->latency_ms >= 0);
    if (r->status == MT_STALLED) {
        assert_int_equal(r->tokens_in + r->tokens_out, 0);
        if (c->first_stall < 0)
            c->first_stall = c->frames;
    }
    for (int i = 0; i < r->tokens_out; i++)
        c->tokens[c->frames][i] = r->tokens[i];
    c->n_tokens[c->frames] = r->tokens_out;
    c->tokens_in[c->frames] = r->tokens_in;
    c->kv[c->frames] = r->kv_tokens;
    c->pool_max = fmax(c->pool_max, r->pool);
    c->by_status[r->status]++;
    c->shortened += r->shortened;
    snprintf(c->text[c->frames], sizeof(c->text[0]), "%s", r->text);
    snprintf(c->reason, sizeof(c->reason), "%s", r->reason ? r->reason : "");
    c->frames++;
}

static void on_closed(void *ctx, int64_t session, const char *reason, int64_t frames)
{
    struct call *c = call_of(ctx, session);

    assert_int_equal(frames, c->frames);
    snprintf(c->closed, sizeof(c->closed), "%s", reason);
}

static struct mt_engine_opts options(const char *kv, int64_t blocks)
{
    struct mt_engine_opts o;

    mt_engine_defaults(&o);
    assert_int_equal(mt_policy_parse(kv, &o.policy, NULL), 0);
    o.pool_blocks = blocks;
    return o;
}

static void begin_on(struct world *w, struct mt_engine_opts *o, int threads, struct mt_clock *clock)
{
    struct mt_model_opts mo = {.step_rows = o->step_tokens,
                               .want_rows = o->step_tokens < o->max_sessions ? o->step_tokens
                                                                             : o->max_sessions};
    struct mt_err e = {0};

    *w = (struct world){.clock = mt_clock_virtual(0)};
    o->events = (struct mt_engine_events){w, on_frame, on_closed};
    if (mt_backend_open(&w->be, "cpu", threads, &e) < 0 ||
        mt_model_open(&w->m, "synth:qwen2.5-omni-tiny,layers=2", w->be, &mo, &e) < 0 ||
        mt_engine_new(&w->eng, w->m, o, clock ? clock : &w->clock, &e) < 0)
        fail_msg("%s", e.text);
}

static void begin(struct world *w, struct mt_engine_opts o)
{
    begin_on(w, &o, 1, NULL);
}

static void end(struct world *w)
{
    mt_engine_free(&w->eng);
    mt_model_close(&w->m);
    mt_backend_close(&w->be);
}

/* A new call; NULL when refused, with the reason in *why. */
static struct call *dial_opts(struct world *w, const struct mt_session_opts *o, const char **why)
{
    struct call *c = &w->call[w->n_calls];
    struct mt_err e = {0};
    double retry;
    int rc = mt_engine_open(w->eng, o, &c->id, why, &retry, &e);

    if (rc == -EAGAIN) {
        assert_true(retry > 0);
        return NULL;
    }
    if (rc < 0)
        fail_msg("%s", e.text);
    c->first_stall = -1;
    w->n_calls++;
    return c;
}

static struct call *dial(struct world *w)
{
    struct mt_session_opts o;
    const char *why = "";

    mt_session_defaults(&o);
    return dial_opts(w, &o, &why);
}

/* Speech-like noise, the same for a voice wherever it is heard. */
static void speak_pieces(struct world *w, struct call *c, int voice, int64_t from, int64_t n,
                         int piece)
{
    float *pcm = malloc((size_t)n * sizeof(*pcm));

    for (int64_t i = 0; i < n; i++) {
        int64_t t = from + i;
        double env = 0.5 + 0.5 * sin((double)t / (4000 + 37 * voice));
        pcm[i] = (float)(0.3 * env * (mt_unit(mt_mix64((uint64_t)(t + 7919 * voice))) - 0.5) +
                         0.2 * env * sin((double)t * (0.05 + 0.01 * voice)));
    }
    for (int64_t at = 0; at < n;) {
        int64_t k = n - at < piece ? n - at : piece;
        int64_t got = mt_engine_audio(w->eng, c->id, pcm + at, k, w->clock.virtual_ns);
        assert_true(got >= 0);
        at += got;
        if (got < k)
            mt_engine_tick(w->eng);
    }
    free(pcm);
}

static void speak(struct world *w, struct call *c, int voice, int64_t from, int64_t n)
{
    speak_pieces(w, c, voice, from, n, (int)n);
}

static void settle(struct world *w)
{
    for (int i = 0; mt_engine_tick(w->eng); i++)
        assert_true(i < 100000);
}

/* Frames 0..n-1 of a voice, answered one by one. */
static void talk(struct world *w, struct call *c, int voice, int n)
{
    int64_t said = 0;

    for (int k = 0; k < n; k++) {
        speak(w, c, voice, said, (int64_t)(k + 1) * BEAT + LOOKAHEAD - said);
        said = (int64_t)(k + 1) * BEAT + LOOKAHEAD;
        settle(w);
    }
}

static void hang_up(struct world *w, struct call *c)
{
    assert_int_equal(mt_engine_end(w->eng, c->id, w->clock.virtual_ns), 0);
    settle(w);
    assert_string_equal(c->closed, "end");
}

static void assert_same(const struct call *a, const struct call *b, int frames)
{
    assert_true(a->frames >= frames && b->frames >= frames);
    for (int k = 0; k < frames; k++) {
        assert_int_equal(a->n_tokens[k], b->n_tokens[k]);
        assert_true(a->n_tokens[k] > 0);
        assert_memory_equal(a->tokens[k], b->tokens[k], sizeof(int) * (size_t)a->n_tokens[k]);
        assert_string_equal(a->text[k], b->text[k]);
    }
}

static double pool_used(struct world *w)
{
    struct mt_engine_stats s;

    mt_engine_stats(w->eng, &s);
    return (double)s.blocks_used;
}

/* ---- policy and pool ---- */

static void test_policy(void **state)
{
    static const char *const bad[] = {"",
                                      "window",
                                      "window=0",
                                      "window=-1",
                                      "window=4,sinks=4",
                                      "window=4,sinks=9",
                                      "sinks=4",
                                      "window=x",
                                      "window=4x",
                                      "bounded",
                                      "window=8,sinks=",
                                      "window=8,x=1",
                                      "unbounded,sinks=1",
                                      "window=8,sinks=-1"};
    struct mt_policy p = {0};
    char text[64];
    struct mt_err e;

    (void)state;
    for (size_t i = 0; i < MT_COUNT(bad); i++) {
        e = (struct mt_err){0};
        assert_true(mt_policy_parse(bad[i], &p, &e) < 0);
        assert_true(e.text[0] != '\0');
    }
    assert_int_equal(mt_policy_parse("window=2048,sinks=4", &p, NULL), 0);
    assert_true(p.bounded && p.window == 2048 && p.sinks == 4);
    mt_policy_format(&p, text);
    assert_string_equal(text, "window=2048,sinks=4");
    assert_int_equal(mt_policy_parse("window=64,sinks=prompt", &p, NULL), 0);
    mt_policy_format(&p, text);
    assert_string_equal(text, "window=64,sinks=prompt");
    assert_int_equal(mt_policy_parse("unbounded", &p, NULL), 0);
    assert_false(p.bounded);
    assert_int_equal(mt_policy_blocks(4096, 4, 16, 1), 257);
    assert_int_equal(mt_policy_blocks(4096, 4, 16, 13), 258);
    assert_int_equal(mt_policy_blocks(4096, 4, 16, 50), 261);
    p = (struct mt_policy){.bounded = true, .window = 100, .sinks = 4};
    assert_int_equal(mt_policy_reach(&p, 32768), 103);
    p.rope_absolute = true;
    assert_int_equal(mt_policy_reach(&p, 32768), 32767); /* never beyond what was trained … */
    assert_int_equal(mt_policy_reach(&p, 50), 103);      /* … but never nearer than the window */
}

static void test_pool(void **state)
{
    struct mt_pool *p;
    int32_t ids[10], more[10];
    bool seen[10] = {false};

    (void)state;
    assert_int_equal(mt_pool_new(&p, 10), 0);
    assert_int_equal(mt_pool_take(p, ids, 7), 0);
    assert_int_equal(mt_pool_take(p, more, 4), -ENOSPC);
    assert_int_equal(mt_pool_used(p), 7);
    assert_int_equal(mt_pool_take(p, more, 3), 0);
    for (int i = 0; i < 10; i++) {
        int32_t id = i < 7 ? ids[i] : more[i - 7];
        assert_true(id >= 0 && id < 10 && !seen[id]);
        seen[id] = true;
    }
    mt_pool_give(p, ids, 7);
    assert_int_equal(mt_pool_used(p), 3);
    assert_int_equal(mt_pool_take(p, ids, 7), 0);
    assert_int_equal(mt_pool_take(p, more, 1), -ENOSPC);
    mt_pool_free(&p);
    assert_null(p);
}

/* ---- the collapse ---- */

/*
 * With locked phases the first frame that stalls is the first that the formula's tokens don't fit
 * into.
 */
static void collapse(int n, int64_t blocks, bool silent)
{
    struct world w;
    struct mt_engine_opts o = options("unbounded", blocks);
    int64_t per_frame = 0, share = o.block_tokens * (blocks / n);

    o.silent_stall = silent;
    o.answer_tokens = 8;
    begin(&w, o);
    for (int i = 0; i < n; i++)
        assert_non_null(dial(&w));
    for (int k = 0; k < 20; k++) {
        for (int i = 0; i < n; i++) {
            int64_t from = k ? (int64_t)k * BEAT + LOOKAHEAD : 0;
            speak(&w, &w.call[i], i, from, (int64_t)(k + 1) * BEAT + LOOKAHEAD - from);
        }
        w.clock.virtual_ns += 2 * MT_NS_PER_S;
        settle(&w);
    }
    const struct call *c = &w.call[0];
    per_frame = c->kv[2] - c->kv[1];
    int fit = 0, first = 20; /* frames of all n that fit: the last token of an answer waits */
    while (c->kv[0] + fit * per_frame <= share)
        fit++;
    for (int i = 0; i < n; i++) {
        int stall = 0;
        c = &w.call[i];
        assert_int_equal(c->frames, 20);
        while (stall < 20 && c->n_tokens[stall] > 0)
            stall++;
        first = stall < first ? stall : first;
        assert_true(stall < 20);
        for (int k = stall; k < 20; k++) { /* nobody left, so it stays */
            assert_int_equal(c->n_tokens[k], 0);
            assert_string_equal(c->text[k], "");
        }
        assert_int_equal(c->by_status[MT_STALLED], silent ? 0 : 20 - stall);
        assert_int_equal(c->by_status[MT_OK], silent ? 20 : stall);
    }
    assert_int_equal(first, fit);
    end(&w);
}

static void test_collapse(void **state)
{
    (void)state;
    collapse(8, 200, false);
    collapse(3, 77, false);
    collapse(1, 20, false);
}

static void test_silent_stall(void **state)
{
    struct world w;
    struct mt_engine_stats s;
    struct mt_engine_opts o = options("unbounded", 16);

    (void)state;
    collapse(4, 100, true);
    o.silent_stall = true;
    begin(&w, o);
    talk(&w, dial(&w), 0, 6);
    mt_engine_stats(w.eng, &s);
    assert_true(s.untruthful > 0);
    assert_int_equal(s.frames[MT_OK], 6);
    end(&w);
}

/* A stalled session goes on when others leave; the stall cost it its frames, nothing else. */
static void test_stall_recovers(void **state)
{
    struct world w;

    (void)state;
    begin(&w, options("unbounded", 36));
    struct call *a = dial(&w), *b = dial(&w);
    for (int k = 0; k < 4; k++) {
        int64_t from = k ? (int64_t)k * BEAT + LOOKAHEAD : 0,
                n = (int64_t)(k + 1) * BEAT + LOOKAHEAD - from;
        speak(&w, a, 0, from, n);
        speak(&w, b, 1, from, n);
        settle(&w);
    }
    assert_true(a->first_stall > 0 && b->first_stall > 0);
    mt_engine_close(w.eng, b->id, "gone");
    assert_string_equal(b->closed, "gone");
    speak(&w, a, 0, 4 * BEAT + LOOKAHEAD, BEAT);
    settle(&w);
    assert_int_equal(a->frames, 5);
    assert_true(a->n_tokens[4] > 0);
    hang_up(&w, a);
    assert_true(pool_used(&w) == 0);
    end(&w);
}

/* ---- bounded ---- */

/*
 * --close-stalled: after so many skipped frames in a row the session is closed, and its memory is
 * the others'.
 */
static void test_stalled_are_closed(void **state)
{
    (void)state;
    for (int limit = 0; limit <= 3; limit += 3) {
        struct mt_engine_opts o = options("unbounded", 36);
        struct world w;

        o.close_stalled = limit;
        begin(&w, o);
        struct call *a = dial(&w), *b = dial(&w);
        for (int k = 0; k < 12 && !b->closed[0]; k++) {
            int64_t from = k ? (int64_t)k * BEAT + LOOKAHEAD : 0,
                    n = (int64_t)(k + 1) * BEAT + LOOKAHEAD - from;
            if (k % 2) /* a is silent in every other beat */
                speak(&w, a, 0, from, n);
            speak(&w, b, 1, from, n);
            settle(&w);
        }
        if (limit == 0) {
            assert_string_equal(b->closed, "");
            assert_true(b->by_status[MT_STALLED] > 5);
        } else {
            assert_string_equal(b->closed, "stalled");
            assert_int_equal(b->by_status[MT_STALLED], 3);
        }
        end(&w);
    }
}

static void test_window_never_stalls(void **state)
{
    struct world w;
    struct mt_engine_opts o = options("window=96,sinks=4", 60);

    (void)state;
    begin(&w, o);
    const struct mt_engine_plan *plan = mt_engine_plan(w.eng);
    const char *why = "";
    struct mt_session_opts so;
    int n = 0;

    mt_session_defaults(&so);
    while (dial_opts(&w, &so, &why))
        n++;
    assert_string_equal(why, "memory");
    assert_int_equal(n, plan->n_mem);
    double reserved = pool_used(&w);
    for (int k = 0; k < 12; k++) {
        for (int i = 0; i < n; i++) {
            int64_t from = k ? (int64_t)k * BEAT + LOOKAHEAD : 0;
            speak(&w, &w.call[i], i, from, (int64_t)(k + 1) * BEAT + LOOKAHEAD - from);
        }
        settle(&w);
        assert_true(pool_used(&w) == reserved);
    }
    for (int i = 0; i < n; i++) {
        assert_int_equal(w.call[i].by_status[MT_OK], 12);
        assert_int_equal(w.call[i].kv[11], 100);
        hang_up(&w, &w.call[i]);
    }
    assert_true(pool_used(&w) == 0);
    end(&w);
}

/* Sinks inside the prompt are shared by sessions with that prompt, and only by them. */
static void test_shared_sinks(void **state)
{
    struct world w;
    struct mt_session_opts other;
    const char *why;

    (void)state;
    begin(&w, options("window=96,sinks=prompt", 200));
    struct call *a = dial(&w);
    double first = pool_used(&w);
    struct call *b = dial(&w);
    double second = pool_used(&w) - first;
    mt_session_defaults(&other);
    other.system = "Speak of something else.";
    struct call *c = dial_opts(&w, &other, &why);
    double third = pool_used(&w) - first - second;
    assert_true(second < first && third >= second);
    talk(&w, a, 3, 5);
    talk(&w, b, 3, 5);
    talk(&w, c, 3, 5);
    assert_same(a, b, 5);
    assert_true(memcmp(a->tokens, c->tokens, sizeof(a->tokens)) != 0);
    hang_up(&w, a);
    speak(&w, b, 3, 5 * BEAT + LOOKAHEAD, BEAT); /* b's sinks are still there */
    settle(&w);
    assert_int_equal(b->by_status[MT_OK], 6);
    hang_up(&w, b);
    hang_up(&w, c);
    assert_true(pool_used(&w) == 0);
    end(&w);
}

static int64_t rows(struct world *w)
{
    struct mt_engine_stats s;

    mt_engine_stats(w->eng, &s);
    return s.rows;
}

/* And they are computed once, whoever comes when, and however small the steps are. */
static void test_shared_sinks_once(void **state)
{
    enum { SINKS = 21, N = 5 };
    struct mt_engine_opts o = options("window=96,sinks=21", 200);

    (void)state;
    for (int small = 0; small < 2; small++) {
        struct world w, v;
        int64_t one;

        o.step_tokens = small ? 8 : 512;
        begin(&w, o);
        struct call *first = dial(&w), *then;
        talk(&w, first, 3, 1);
        one = rows(&w);
        assert_true(one > SINKS);
        then = dial(&w);
        talk(&w, then, 3, 1);
        assert_int_equal(rows(&w), 2 * one - SINKS);
        assert_same(first, then, 1);
        hang_up(&w, first);
        hang_up(&w, then);
        begin(&v, o);
        for (int i = 0; i < N; i++)
            speak(&v, dial(&v), 3, 0, BEAT + LOOKAHEAD);
        settle(&v);
        assert_int_equal(rows(&v), N * one - (N - 1) * SINKS);
        for (int i = 0; i < N; i++)
            assert_same(first, &v.call[i], 1);
        end(&w);
        end(&v);
    }
}

static void test_smaller_window(void **state)
{
    struct world w;
    struct mt_session_opts so;
    struct mt_err e = {0};
    const char *why;
    int64_t id;
    double retry;

    (void)state;
    begin(&w, options("window=256,sinks=4", 200));
    mt_session_defaults(&so);
    so.window = 64;
    struct call *c = dial_opts(&w, &so, &why);
    talk(&w, c, 0, 4);
    assert_int_equal(c->kv[3], 68);
    so.window = 257;
    assert_int_equal(mt_engine_open(w.eng, &so, &id, &why, &retry, &e), -EINVAL);
    assert_non_null(strstr(e.text, "257"));
    so.window = 4;
    e = (struct mt_err){0};
    assert_int_equal(mt_engine_open(w.eng, &so, &id, &why, &retry, &e), -EINVAL);
    end(&w);
}

/* Tokens are the same in a window that the call never leaves and without one. */
static void test_window_before_it_slides(void **state)
{
    struct world w, v;

    (void)state;
    begin(&w, options("unbounded", 200));
    struct call *a = dial(&w);
    talk(&w, a, 2, 4);
    begin(&v, options("window=512,sinks=4", 200));
    struct call *b = dial(&v);
    talk(&v, b, 2, 4);
    assert_same(a, b, 4);
    end(&w);
    end(&v);
}

/* ---- bits ---- */

static struct call *reference(struct world *w, const char *kv, enum mt_mode mode)
{
    struct mt_engine_opts o = options(kv, 400);

    o.mode = mode;
    begin(w, o);
    struct call *c = dial(w);
    talk(w, c, 5, 8);
    return c;
}

/* One session among 17 that come, go, stall, sample and speak at other moments. */
static void company(const char *kv, enum mt_mode mode, int64_t blocks, int step_tokens)
{
    struct world alone, w;
    struct call *ref = reference(&alone, kv, mode), *mine;
    struct mt_engine_opts o = options(kv, blocks);
    struct mt_session_opts so;
    const char *why;

    o.mode = mode;
    o.step_tokens = step_tokens;
    o.max_sessions = 20;
    begin(&w, o);
    mt_session_defaults(&so);
    for (int i = 0; i < 8; i++) {
        so.temperature = i % 2 ? 0.8f : 0.0f;
        so.top_p = 0.9f;
        dial_opts(&w, &so, &why);
    }
    mine = dial(&w);
    for (int i = 0; i < 8; i++)
        dial(&w);
    assert_int_equal(w.n_calls, 17);
    for (int k = 0; k < 8; k++) {
        int64_t from = k ? (int64_t)k * BEAT + LOOKAHEAD : 0,
                n = (int64_t)(k + 1) * BEAT + LOOKAHEAD - from;
        for (int i = 0; i < 17; i++) {
            struct call *c = &w.call[i];
            if (c->closed[0])
                continue;
            if (c == mine)
                speak_pieces(&w, c, 5, from, n, 777);
            else
                speak(&w, c, i + 20, from, n);
            if (i % 3 == 0)
                mt_engine_tick(w.eng);
            if (c != mine && (i + k) % 9 == 0)
                mt_engine_close(w.eng, c->id, "gone");
        }
        settle(&w);
    }
    assert_same(ref, mine, 8);
    end(&alone);
    end(&w);
}

static void test_company(void **state)
{
    (void)state;
    company("window=96,sinks=4", MT_MODE_TURN, 400, 512);
    company("window=96,sinks=4", MT_MODE_TURN, 400, 7);
    company("window=64,sinks=prompt", MT_MODE_FREE, 400, 33);
    company("unbounded", MT_MODE_TURN, 1000, 100);
}

/*
 * Others stall, since their long answers don't fit any more, while a session with short ones goes
 * on.
 */
static void test_stalled_company(void **state)
{
    struct world alone, w;
    struct mt_engine_opts o = options("unbounded", 400);
    struct mt_session_opts so;
    const char *why;
    int beside_stalls = 0;

    (void)state;
    o.answer_tokens = 60;
    begin(&alone, o);
    mt_session_defaults(&so);
    so.answer_tokens = 4;
    struct call *ref = dial_opts(&alone, &so, &why);
    talk(&alone, ref, 5, 4);
    o.pool_blocks = 107; /* before the last frame: too little for 60 tokens, enough for 4 */
    begin(&w, o);
    struct call *mine = dial_opts(&w, &so, &why);
    for (int i = 0; i < 3; i++)
        dial(&w);
    for (int k = 0; k < 4; k++) {
        int64_t from = k ? (int64_t)k * BEAT + LOOKAHEAD : 0;
        int64_t n = (int64_t)(k + 1) * BEAT + LOOKAHEAD - from;
        for (int i = 1; i < 4; i++)
            speak(&w, &w.call[i], i + 20, from, n);
        settle(&w);
        speak(&w, mine, 5, from, n);
        settle(&w);
        for (int i = 1; i < 4; i++)
            beside_stalls += w.call[i].n_tokens[k] == 0;
    }
    assert_true(beside_stalls > 0);
    assert_int_equal(mine->by_status[MT_OK], 4);
    assert_same(ref, mine, 4);
    end(&alone);
    end(&w);
}

static void test_threads(void **state)
{
    struct world a, b;
    struct mt_engine_opts o = options("window=96,sinks=4", 100);

    (void)state;
    begin_on(&a, &o, 1, NULL);
    begin_on(&b, &o, 2, NULL);
    o.events.ctx = NULL;
    struct call *x = dial(&a), *y = dial(&b);
    talk(&a, x, 1, 6);
    talk(&b, y, 1, 6);
    assert_same(x, y, 6);
    end(&a);
    end(&b);
}

/* Everything at once, or in pieces of one sample up to several frames. */
static void test_pieces(void **state)
{
    static const int piece[] = {1, 160, 4999, 3 * BEAT};
    struct world whole;
    struct call *ref = reference(&whole, "window=96,sinks=4", MT_MODE_TURN);

    (void)state;
    for (size_t i = 0; i < MT_COUNT(piece); i++) {
        struct world w;
        begin(&w, options("window=96,sinks=4", 100));
        struct call *c = dial(&w);
        speak_pieces(&w, c, 5, 0, 3 * BEAT + LOOKAHEAD, piece[i]);
        settle(&w);
        assert_same(ref, c, 3);
        end(&w);
    }
    end(&whole);
}

static void test_seeds(void **state)
{
    struct world w;
    struct mt_session_opts so;
    const char *why;
    struct call *c[3];

    (void)state;
    begin(&w, options("window=96,sinks=4", 100));
    mt_session_defaults(&so);
    so.temperature = 1.0f;
    so.has_seed = true;
    for (int i = 0; i < 3; i++) {
        so.seed = i == 2 ? 8 : 7;
        c[i] = dial_opts(&w, &so, &why);
        talk(&w, c[i], 1, 3);
    }
    assert_same(c[0], c[1], 3);
    assert_true(memcmp(c[0]->tokens, c[2]->tokens, sizeof(c[0]->tokens)) != 0);
    end(&w);
}

/* ---- frames ---- */

static void test_modes(void **state)
{
    struct world w;
    struct mt_engine_opts o = options("unbounded", 100);

    (void)state;
    o.mode = MT_MODE_FREE;
    o.answer_tokens = 12;
    begin(&w, o);
    struct call *c = dial(&w);
    talk(&w, c, 0, 4);
    for (int k = 0; k < 4; k++)
        assert_int_equal(c->n_tokens[k], 12); /* always the whole budget */
    /* Bare audio rows between: 50, and the token that waited. */
    assert_int_equal(c->tokens_in[1], 51);
    assert_int_equal(c->kv[2] - c->kv[1], 62);
    end(&w);
}

/*
 * A rest is a frame too, however short; the end alone completes a frame that waited for its
 * lookahead.
 */
static void test_last_frame(void **state)
{
    static const struct {
        int64_t samples;
        int frames;
    } is[] = {{1, 1},        {BEAT - 1, 1},       {BEAT, 1}, {BEAT + 1, 2}, {BEAT + LOOKAHEAD, 2},
              {2 * BEAT, 2}, {2 * BEAT + 5000, 3}};

    (void)state;
    for (size_t i = 0; i < MT_COUNT(is); i++) {
        struct world w;
        begin(&w, options("window=96,sinks=4", 100));
        struct call *c = dial(&w);
        speak(&w, c, 0, 0, is[i].samples);
        hang_up(&w, c);
        assert_int_equal(c->frames, is[i].frames);
        assert_int_equal(c->by_status[MT_OK], is[i].frames);
        assert_int_equal(mt_engine_audio(w.eng, c->id, (float[]){0}, 1, 0), -ENOENT);
        end(&w);
    }
}

static void test_nothing_said(void **state)
{
    struct world w;

    (void)state;
    begin(&w, options("window=96,sinks=4", 100));
    struct call *c = dial(&w);
    hang_up(&w, c);
    assert_int_equal(c->frames, 0);
    end(&w);
}

/* Time that passes with every look at the clock: steps take 2 ms. */
static int64_t ticking_now(struct mt_clock *c)
{
    return c->virtual_ns += MT_NS_PER_MS;
}

static void test_late_and_shortened(void **state)
{
    struct mt_clock clock = mt_clock_virtual(0);
    struct mt_engine_opts o = options("window=96,sinks=4", 100);
    struct mt_session_opts so;
    struct world w;
    const char *why;

    (void)state;
    clock.now_ns = ticking_now;
    o.deadline_ns = 20 * MT_NS_PER_MS;
    o.answer_tokens = 40;
    begin_on(&w, &o, 1, &clock);
    mt_session_defaults(&so);
    struct call *patient = dial_opts(&w, &so, &why);
    w.clock.virtual_ns = clock.virtual_ns;
    speak(&w, patient, 0, 0, BEAT + LOOKAHEAD);
    settle(&w);
    assert_int_equal(patient->by_status[MT_LATE], 1); /* a file can wait: whole, and late */
    assert_int_equal(patient->n_tokens[0], 40);
    assert_string_equal(patient->reason, "deadline");
    hang_up(&w, patient);
    so.live = true;
    struct call *live = dial_opts(&w, &so, &why);
    w.clock.virtual_ns = clock.virtual_ns;
    speak(&w, live, 0, 0, BEAT + LOOKAHEAD);
    settle(&w);
    assert_int_equal(live->by_status[MT_OK], 1); /* a call can't: shorter, and on the beat */
    assert_int_equal(live->shortened, 1);
    assert_true(live->n_tokens[0] > 0 && live->n_tokens[0] < 40);
    assert_memory_equal(live->tokens[0], patient->tokens[0],
                        sizeof(int) * (size_t)live->n_tokens[0]);
    end(&w);
}

/*
 * A live session whose backlog is full loses its oldest frames, each with a record; a file waits.
 */
static void test_backlog(void **state)
{
    struct world w;
    struct mt_session_opts so;
    const char *why;
    float *pcm = calloc(10 * BEAT, sizeof(*pcm));

    (void)state;
    begin(&w, options("window=96,sinks=4", 100));
    mt_session_defaults(&so);
    struct call *file = dial_opts(&w, &so, &why);
    int64_t took = mt_engine_audio(w.eng, file->id, pcm, 10 * BEAT, 0);
    assert_true(took >= 4 * BEAT && took < 5 * BEAT);
    assert_int_equal(mt_engine_audio(w.eng, file->id, pcm, 1, 0), 0);
    so.live = true;
    struct call *live = dial_opts(&w, &so, &why);
    assert_int_equal(mt_engine_audio(w.eng, live->id, pcm, 10 * BEAT, 0), 10 * BEAT);
    assert_true(live->by_status[MT_DROPPED] >= 5);
    assert_string_equal(live->reason, "backlog");
    settle(&w);
    assert_int_equal(file->by_status[MT_OK], 4);
    assert_int_equal(live->by_status[MT_OK] + live->by_status[MT_DROPPED], 9);
    hang_up(&w, live);
    assert_int_equal(live->frames, 10);
    free(pcm);
    end(&w);
}

/* ---- admission and leaving ---- */

static void test_admission(void **state)
{
    struct world w;
    struct mt_session_opts so;
    const char *why = "";
    struct mt_engine_stats s;

    (void)state;
    begin(&w, options("window=96,sinks=4", 400));
    mt_session_defaults(&so);
    mt_engine_set_cap(w.eng, 2);
    assert_non_null(dial_opts(&w, &so, &why));
    assert_non_null(dial_opts(&w, &so, &why));
    assert_null(dial_opts(&w, &so, &why));
    assert_string_equal(why, "limit");
    mt_engine_set_cap(w.eng, 3);
    assert_non_null(dial_opts(&w, &so, &why));
    mt_engine_drain(w.eng);
    assert_null(dial_opts(&w, &so, &why));
    assert_string_equal(why, "drain");
    talk(&w, &w.call[0], 0, 2); /* those inside go on */
    assert_int_equal(w.call[0].by_status[MT_OK], 2);
    mt_engine_stats(w.eng, &s);
    assert_int_equal(s.refused, 2);
    assert_int_equal(s.sessions, 3);
    assert_true(s.draining);
    end(&w);
}

static void test_admission_says_why(void **state)
{
    struct world w;
    struct mt_session_opts so;
    const char *why = "";

    (void)state;
    begin(&w, options("window=96,sinks=4", 400));
    mt_session_defaults(&so);
    mt_engine_set_cap(w.eng, 1);
    mt_engine_set_gate(w.eng, mt_gate_parse("warmup"));
    assert_non_null(dial_opts(&w, &so, &why));
    assert_null(dial_opts(&w, &so, &why));
    assert_string_equal(why, "warmup");
    mt_engine_set_gate(w.eng, mt_gate_parse("drain"));
    assert_null(dial_opts(&w, &so, &why));
    assert_string_equal(why, "drain");
    mt_engine_set_cap(w.eng, 5);
    assert_non_null(dial_opts(&w, &so, &why));
    mt_engine_set_gate(w.eng, mt_gate_parse("stalled"));
    assert_null(dial_opts(&w, &so, &why)); /* below the cap too */
    assert_string_equal(why, "stalled");
    for (size_t i = 0; i < 3; i++) {
        mt_engine_set_gate(w.eng, mt_gate_parse((const char *[]){"grow", "hold", ""}[i]));
        assert_non_null(dial_opts(&w, &so, &why));
    }
    assert_null(dial_opts(&w, &so, &why));
    assert_string_equal(why, "limit");
    end(&w);
}

static void test_admission_is_paced(void **state)
{
    struct mt_engine_opts o = options("window=96,sinks=4", 400);
    struct world w;
    struct mt_session_opts so;
    const char *why = "";
    double frame_s;

    (void)state;
    o.pace = true;
    begin(&w, o);
    frame_s = mt_engine_plan(w.eng)->frame_s;
    mt_session_defaults(&so);
    assert_non_null(dial_opts(&w, &so, &why)); /* a burst of two */
    assert_non_null(dial_opts(&w, &so, &why));
    for (int i = 0; i < 3; i++) { /* then one in 5 frames */
        assert_null(dial_opts(&w, &so, &why));
        assert_string_equal(why, "pace");
        w.clock.virtual_ns += (int64_t)(4.9 * frame_s * 1e9);
        assert_null(dial_opts(&w, &so, &why));
        w.clock.virtual_ns += (int64_t)(0.11 * frame_s * 1e9);
        assert_non_null(dial_opts(&w, &so, &why));
    }
    end(&w);
}

/* D / n seconds, D as long as calls lasted, spread by half; the same for the same seed. */
static void test_the_retry_hint(void **state)
{
    double low = 1e9, high = 0, first[20];

    (void)state;
    for (int round = 0; round < 2; round++) {
        struct world w;
        struct mt_session_opts so;
        struct mt_err e = {0};
        const char *why = "";
        int64_t id;
        double retry;

        begin(&w, options("window=96,sinks=4", 400));
        mt_session_defaults(&so);
        struct call *gone = dial(&w);
        w.clock.virtual_ns += 40 * MT_NS_PER_S;
        mt_engine_close(w.eng, gone->id, "gone");
        dial(&w);
        dial(&w);
        mt_engine_set_cap(w.eng, 2);
        for (int i = 0; i < 20; i++) {
            assert_int_equal(mt_engine_open(w.eng, &so, &id, &why, &retry, &e), -EAGAIN);
            assert_true(retry >= 10 && retry <= 30);
            low = retry < low ? retry : low;
            high = retry > high ? retry : high;
            assert_true(round == 0 || retry == first[i]);
            first[i] = retry;
        }
        end(&w);
    }
    assert_true(low < 15 && high > 25);
}

static void test_too_small(void **state)
{
    struct mt_engine_opts o = options("window=2048,sinks=4", 20);
    struct mt_model_opts mo = {.step_rows = 512, .want_rows = 256};
    struct mt_clock clock = mt_clock_virtual(0);
    struct mt_backend *be;
    struct mt_model *m;
    struct mt_engine *eng;
    struct mt_err e = {0};

    (void)state;
    assert_int_equal(mt_backend_open(&be, "cpu", 1, NULL), 0);
    assert_int_equal(mt_model_open(&m, "synth:qwen2.5-omni-tiny", be, &mo, NULL), 0);
    assert_int_equal(mt_engine_new(&eng, m, &o, &clock, &e), -ENOSPC);
    assert_null(eng);
    assert_non_null(strstr(e.text, "20 blocks")); /* the arithmetic */
    o = options("unbounded", 2);
    e = (struct mt_err){0};
    assert_int_equal(mt_engine_new(&eng, m, &o, &clock, &e), -ENOSPC);
    o = options("window=96,sinks=4", 100);
    o.frame_ns = 33 * MT_NS_PER_MS;
    e = (struct mt_err){0};
    assert_int_equal(mt_engine_new(&eng, m, &o, &clock, &e), -EINVAL);
    assert_non_null(strstr(e.text, "--frame"));
    mt_model_close(&m);
    mt_backend_close(&be);
}

/* Options that can't be honoured are refused, one by one, and cost nothing. */
static void test_session_options(void **state)
{
    struct world w;
    struct mt_session_opts o[10];
    static const char *const word[] = {"answer_tokens", "answer_tokens", "window",      "window",
                                       "window",        "temperature",   "temperature", "top_k",
                                       "top_p",         "top_p"};

    (void)state;
    begin(&w, options("window=96,sinks=4", 100));
    for (size_t i = 0; i < MT_COUNT(o); i++)
        mt_session_defaults(&o[i]);
    o[0].answer_tokens = -1;
    o[1].answer_tokens = ANSWER + 1;
    o[2].window = -5;
    o[3].window = 97;
    o[4].window = 4; /* not above the sinks */
    o[5].temperature = NAN;
    o[6].temperature = -1;
    o[7].top_k = -1;
    o[8].top_p = 0;
    o[9].top_p = NAN;
    for (size_t i = 0; i < MT_COUNT(o); i++) {
        struct mt_err e = {0};
        const char *why = NULL;
        double retry;
        int64_t id;
        assert_int_equal(mt_engine_open(w.eng, &o[i], &id, &why, &retry, &e), -EINVAL);
        if (strncmp(e.text, word[i], strlen(word[i])) != 0)
            fail_msg("'%s' does not begin with '%s'", e.text, word[i]);
    }
    assert_true(pool_used(&w) == 0);
    assert_non_null(dial(&w));
    end(&w);
}

/*
 * A frame that is dropped between its begin and its encoding gives back the blocks it was promised.
 */
static void test_dropped_frame_gives_back(void **state)
{
    struct world w;
    struct mt_session_opts so;
    struct mt_engine_opts o = options("unbounded", 1000);
    const char *why;
    struct call *last = NULL;

    (void)state;
    o.backlog = 1;
    o.step_tokens =
        60; /* so that one frame is encoded in a tick, and the second session's is begun only */
    begin(&w, o);
    mt_session_defaults(&so);
    so.live = true;
    for (int i = 0; i < 2; i++) {
        last = dial_opts(&w, &so, &why);
        speak(&w, last, i, 0, BEAT + LOOKAHEAD);
    }
    assert_true(mt_engine_tick(w.eng));
    double held = pool_used(&w);
    assert_int_equal(last->frames, 0);
    speak(&w, last, 1, BEAT + LOOKAHEAD, 3 * BEAT); /* more than may wait */
    assert_true(last->by_status[MT_DROPPED] > 0);
    assert_true(pool_used(&w) < held);
    end(&w);
}

/*
 * What a session costs is all of it: its block table, too, which an unbounded one has for the whole
 * pool.
 */
static void test_plan_counts_tables(void **state)
{
    int64_t bytes[2];

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct world w;
        begin(&w, options("unbounded", 100 + 50 * i));
        bytes[i] = mt_engine_plan(w.eng)->state_bytes_session;
        end(&w);
    }
    assert_int_equal(bytes[1] - bytes[0], 50 * 4);
}

static void test_idle(void **state)
{
    struct world w;
    struct mt_engine_opts o = options("window=96,sinks=4", 100);

    (void)state;
    o.idle_ns = 5 * MT_NS_PER_S;
    begin(&w, o);
    struct call *c = dial(&w);
    w.clock.virtual_ns = 4 * MT_NS_PER_S;
    settle(&w);
    talk(&w, c, 0, 1);
    w.clock.virtual_ns = 8 * MT_NS_PER_S;
    settle(&w);
    assert_string_equal(c->closed, "");
    w.clock.virtual_ns = 10 * MT_NS_PER_S;
    settle(&w);
    assert_string_equal(c->closed, "idle");
    assert_true(pool_used(&w) == 0);
    end(&w);
}

/* Gone at any moment of a frame: the blocks are back at once, what was in hand has a record. */
/* A frame of nobody's call leaves no trace: not in the counts, and not in what others say. */
static void test_warm(void **state)
{
    static struct world a, b;
    static struct mt_engine_stats s;
    struct call *x, *y;

    (void)state;
    begin(&a, options("window=256,sinks=4", 64));
    begin(&b, options("window=256,sinks=4", 64));
    for (int i = 0; i < 3; i++)
        assert_int_equal(mt_engine_warm(b.eng), 0); /* virtual time stands still */
    mt_engine_stats(b.eng, &s);
    assert_int_equal(s.frames[MT_OK] + s.steps + s.rows + s.tokens_in + s.blocks_used, 0);
    assert_int_equal(s.latency.count, 0);
    x = dial(&a);
    y = dial(&b);
    assert_int_equal(x->id, y->id);
    assert_int_equal(mt_engine_warm(b.eng), -EBUSY);
    talk(&a, x, 3, 4);
    talk(&b, y, 3, 4);
    assert_same(x, y, 4);
    end(&a);
    end(&b);
}

static void test_gone(void **state)
{
    (void)state;
    for (int ticks = 0; ticks < 8; ticks++) {
        struct world w;
        struct mt_engine_opts o = options(ticks % 2 ? "window=96,sinks=4" : "unbounded", 100);
        o.step_tokens = 20;
        begin(&w, o);
        struct call *c = dial(&w);
        speak(&w, c, 0, 0, 2 * BEAT + LOOKAHEAD);
        for (int i = 0; i < ticks; i++)
            mt_engine_tick(w.eng);
        mt_engine_close(w.eng, c->id, "gone");
        assert_int_equal(c->frames, 2);
        assert_int_equal(c->by_status[MT_DROPPED] + c->by_status[MT_OK], 2);
        assert_true(pool_used(&w) == 0);
        assert_false(mt_engine_tick(w.eng));
        end(&w);
    }
}

/* ---- --pool auto ---- */

static int64_t card_left;

static int card_memory(struct mt_backend *be, int64_t *left, int64_t *all)
{
    (void)be;
    *left = card_left;
    *all = INT64_C(10) << 30;
    return card_left < 0 ? -ENODEV : 0;
}

static void test_pool_auto(void **state)
{
    struct mt_model_opts mo = {.step_rows = 64, .want_rows = 64};
    struct mt_engine_opts o;
    struct mt_state_kind kind[MT_STATE_KINDS];
    struct mt_backend *be;
    const struct mt_ops *ops;
    struct mt_ops card;
    struct mt_model *m;
    struct mt_err e = {0};
    int64_t bytes, per_session = 0;

    (void)state;
    assert_int_equal(mt_backend_open(&be, "cpu", 1, NULL), 0);
    assert_int_equal(mt_model_open(&m, "synth:qwen2.5-omni-tiny", be, &mo, NULL), 0);
    mt_engine_defaults(&o);
    o.max_sessions = 5;
    assert_int_equal(mt_engine_pool_auto(m, &o, 0.9, &bytes, &e), -EINVAL);
    ops = be->ops;
    card = *ops;
    card.memory = card_memory;
    be->ops = &card;
    for (int n = mt_model_state(m, mt_model_info(m)->beat_samples, o.backlog, kind); n--;)
        per_session += kind[n].bytes;
    assert_true(per_session > 0);

    e = (struct mt_err){0};
    card_left = INT64_C(8) << 30; /* 2 GiB are taken, 1 GiB is to stay free */
    assert_int_equal(mt_engine_pool_auto(m, &o, 0.9, &bytes, NULL), 0);
    assert_int_equal(bytes, (INT64_C(7) << 30) - 5 * per_session);
    assert_int_equal(mt_engine_pool_auto(m, &o, 0.2, &bytes, &e), -ENOSPC);
    assert_non_null(strstr(e.text, "--gpu-memory 0.2"));
    card_left = -1;
    assert_int_equal(mt_engine_pool_auto(m, &o, 0.9, &bytes, NULL), -ENODEV);

    be->ops = ops;
    mt_model_close(&m);
    mt_backend_close(&be);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pool_auto),
        cmocka_unit_test(test_policy),
        cmocka_unit_test(test_pool),
        cmocka_unit_test(test_collapse),
        cmocka_unit_test(test_silent_stall),
        cmocka_unit_test(test_stall_recovers),
        cmocka_unit_test(test_stalled_are_closed),
        cmocka_unit_test(test_window_never_stalls),
        cmocka_unit_test(test_shared_sinks),
        cmocka_unit_test(test_shared_sinks_once),
        cmocka_unit_test(test_smaller_window),
        cmocka_unit_test(test_window_before_it_slides),
        cmocka_unit_test(test_company),
        cmocka_unit_test(test_stalled_company),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_seeds),
        cmocka_unit_test(test_modes),
        cmocka_unit_test(test_last_frame),
        cmocka_unit_test(test_nothing_said),
        cmocka_unit_test(test_late_and_shortened),
        cmocka_unit_test(test_backlog),
        cmocka_unit_test(test_admission),
        cmocka_unit_test(test_admission_says_why),
        cmocka_unit_test(test_admission_is_paced),
        cmocka_unit_test(test_the_retry_hint),
        cmocka_unit_test(test_too_small),
        cmocka_unit_test(test_session_options),
        cmocka_unit_test(test_dropped_frame_gives_back),
        cmocka_unit_test(test_plan_counts_tables),
        cmocka_unit_test(test_idle),
        cmocka_unit_test(test_warm),
        cmocka_unit_test(test_gone),
    };

    return cmocka_run_group_tests_name("engine", tests, NULL, NULL);
}
