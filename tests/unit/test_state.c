/*
 * test_state.c: sessions saved and gone on with. For the tiny shape of every family: after every
 * tick of a call that passes its window three times it is saved, and goes on in another engine
 * (other threads, pool, block table, company), where each of its answers is what it would have
 * been, bit for bit. Then what must be refused, and bytes that are no state.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/session.h"
#include "util.h"
#include "wire/callfile.h"

enum { WINDOW = 40, SINKS = 4, FRAMES = 160, SHOTS = 4096, PIECE_PARTS = 3 };

struct said {
    uint64_t hash; /* tokens, text and sound */
    int64_t kv, tokens_in, tokens_out;
};

struct world {
    struct mt_backend *be;
    struct mt_model *m;
    struct mt_engine *eng;
    struct mt_clock clock;
    struct mt_engine_opts opts;
    int64_t id; /* whose records are kept */
    struct said said[FRAMES];
    int64_t frames;
    int64_t other; /* who goes along when all go: his, too */
    struct said other_said[FRAMES];
    int64_t other_frames;
};

static void on_frame(void *ctx, const struct mt_record *r)
{
    struct world *w = ctx;
    bool other = w->other && r->session == w->other;
    struct said *s = other ? &w->other_said[r->frame % FRAMES] : &w->said[r->frame % FRAMES];
    int64_t *frames = other ? &w->other_frames : &w->frames;
    uint64_t h = MT_HASH_INIT;

    if (r->session != w->id && !other)
        return;
    assert_int_equal(r->frame, *frames);
    assert_int_equal(r->status, MT_OK);
    h = mt_hash(h, r->tokens, (size_t)r->tokens_out * sizeof(*r->tokens));
    h = mt_hash(h, r->text, strlen(r->text));
    h = mt_hash(h, r->speech, (size_t)r->n_speech * sizeof(*r->speech));
    *s = (struct said){h, r->kv_tokens, r->tokens_in, r->tokens_out};
    ++*frames;
}

static struct mt_engine_opts options(const char *kv)
{
    struct mt_engine_opts o;

    mt_engine_defaults(&o);
    assert_int_equal(mt_policy_parse(kv, &o.policy, NULL), 0);
    o.pool_blocks = 64;
    o.answer_tokens = 5;
    o.step_tokens = 24;
    o.max_sessions = 4;
    return o;
}

static void begin(struct world *w, const char *name, struct mt_engine_opts o, int threads)
{
    struct mt_model_opts mo = {
        .step_rows = o.step_tokens, .want_rows = o.max_sessions, .kv_type = o.kv_type};
    struct mt_err e = {0};
    char spec[100];

    *w = (struct world){.clock = mt_clock_virtual(INT64_C(1) << 40)};
    o.events = (struct mt_engine_events){w, on_frame, NULL};
    snprintf(spec, sizeof(spec), "synth:%s,layers=2", name);
    if (mt_backend_open(&w->be, "cpu", threads, &e) < 0 ||
        mt_model_open(&w->m, spec, w->be, &mo, &e) < 0)
        fail_msg("%s: %s", name, e.text);
    if (mt_model_info(w->m)->draws && o.answer_tokens > mt_model_info(w->m)->draws)
        o.answer_tokens = mt_model_info(w->m)->draws;
    w->opts = o;
    if (mt_engine_new(&w->eng, w->m, &o, &w->clock, &e) < 0)
        fail_msg("%s: %s", name, e.text);
}

static void end(struct world *w)
{
    mt_engine_free(&w->eng);
    mt_model_close(&w->m);
    mt_backend_close(&w->be);
}

static int64_t dial(struct world *w, uint64_t seed)
{
    struct mt_session_opts so;
    const char *why;
    double retry;
    int64_t id;

    mt_session_defaults(&so);
    so.temperature = 0.9F;
    so.has_seed = true;
    so.seed = seed;
    assert_int_equal(mt_engine_open(w->eng, &so, &id, &why, &retry, NULL), 0);
    return id;
}

/* Samples from..from+n-1 of a voice. */
static void hear(struct world *w, int64_t id, int64_t from, int64_t n)
{
    float *pcm = malloc((size_t)(n + 1) * sizeof(*pcm));

    for (int64_t i = 0; i < n; i++) {
        uint64_t t = (uint64_t)(from + i);
        pcm[i] = (float)(0.3 * (mt_unit(mt_mix64(t)) - 0.5) * (t / 7000 % 3 != 0));
    }
    assert_int_equal(mt_engine_audio(w->eng, id, pcm, n, w->clock.virtual_ns), n);
    free(pcm);
}

static void settle(struct world *w)
{
    while (mt_engine_tick(w->eng))
        w->clock.virtual_ns += 1000;
}

struct shot {
    unsigned char *data;
    size_t n;
    int64_t heard, frames, len;
};

struct shots {
    struct shot shot[SHOTS];
    int n, by_phase[4], half_characters;
};

static struct shots shots;

/* Of a long call one frame in five, but all tokens around the window's edges. */
static bool wanted(const struct world *w, int64_t len)
{
    return w->frames < 4 || w->frames % 5 == 4 || llabs(len - WINDOW) < 3 || len > 3 * WINDOW;
}

static void shoot(struct world *w, int64_t heard)
{
    struct mt_state_io io = {0};
    const struct session *s = mt_engine_find(w->eng, w->id);

    if (!wanted(w, s->len))
        return;
    assert_true(shots.n < SHOTS);
    if (mt_engine_save(w->eng, w->id, &io) < 0)
        fail_msg("%s", io.err.text);
    shots.by_phase[s->phase]++;
    shots.half_characters += s->detok.n > 0;
    shots.shot[shots.n++] = (struct shot){io.data, io.n, heard, w->frames, s->len};
}

static int64_t due(const struct world *w, int64_t k)
{
    const struct mt_engine_plan *p = mt_engine_plan(w->eng);

    return (k + 1) * p->frame_samples + p->lookahead_samples;
}

/*
 * A call of at least n frames that passes its window three times, saved after each piece of sound
 * and each tick.
 */
static void whole_call(struct world *w, int64_t n)
{
    int64_t at = 0, k = 0;

    w->id = dial(w, 7);
    shoot(w, 0);
    for (; k < n || mt_engine_find(w->eng, w->id)->len < 3 * WINDOW + 8; k++) {
        int64_t piece = mt_engine_plan(w->eng)->frame_samples / PIECE_PARTS + 17;

        while (at < due(w, k)) {
            int64_t some = due(w, k) - at < piece ? due(w, k) - at : piece;

            hear(w, w->id, at, some);
            at += some;
            shoot(w, at);
            while (mt_engine_tick(w->eng)) {
                w->clock.virtual_ns += 1000;
                shoot(w, at);
            }
        }
    }
    assert_int_equal(w->frames, k);
}

static int load(struct world *w, const struct shot *s, int64_t window, struct mt_state_io *io)
{
    const struct mt_load_opts lo = {.window = window};
    const char *why = "";
    double retry;

    *io = (struct mt_state_io){.load = true, .data = s->data, .n = s->n};
    int rc = mt_engine_load(w->eng, io, &lo, &w->id, &why, &retry);
    if (rc == 0)
        rc = mt_state_end(io);
    w->frames = s->frames;
    return rc;
}

static void same(const struct world *is, const struct world *was, int64_t from, int64_t to,
                 const char *name, int shot)
{
    for (int64_t k = from; k < to; k++)
        if (memcmp(&is->said[k], &was->said[k], sizeof(is->said[k])) != 0)
            fail_msg("%s: frame %lld after shot %d: %lld+%lld tokens, kv %lld, expected "
                     "%lld+%lld, %lld; or other ones",
                     name, (long long)k, shot, (long long)is->said[k].tokens_in,
                     (long long)is->said[k].tokens_out, (long long)is->said[k].kv,
                     (long long)was->said[k].tokens_in, (long long)was->said[k].tokens_out,
                     (long long)was->said[k].kv);
}

static void forget_shots(void)
{
    for (int i = 0; i < shots.n; i++)
        free(shots.shot[i].data);
    shots = (struct shots){0};
}

/* Go on from a shot for two frames; what was said must be what w said then. */
static void go_on(struct world *b, const struct world *w, int i, const char *name)
{
    const struct shot *s = &shots.shot[i];
    int64_t last = s->frames + 2 < w->frames ? s->frames + 2 : w->frames, at = s->heard;
    struct mt_state_io io;

    if (load(b, s, 0, &io) < 0)
        fail_msg("%s: shot %d: %s", name, i, io.err.text);
    settle(b);
    for (int64_t k = b->frames; k < last; k++) {
        hear(b, b->id, at, due(b, k) - at > 0 ? due(b, k) - at : 0);
        at = due(b, k) > at ? due(b, k) : at;
        settle(b);
    }
    same(b, w, s->frames, last, name, i);
    mt_engine_close(b->eng, b->id, "gone");
}

static int phases[4], half_characters;
static bool lens_seen[3];

static void each_tick(const char *name)
{
    static struct world a, b, c;
    struct mt_engine_opts o = options("window=40,sinks=4"), other = o;
    bool seen[4] = {0};

    begin(&a, name, o, 1);
    whole_call(&a, mt_engine_plan(a.eng)->frame_s > 1.5 ? 4 : 12); /* encoders' windows end, too */
    other.pool_blocks = 23;
    other.step_tokens = 40;
    begin(&b, name, other, 3);
    other.block_tokens = 32;
    begin(&c, name, other, 2);
    int64_t company = dial(&c, 9);
    for (int i = 0; i < shots.n; i++) {
        const int64_t lens[] = {WINDOW - 1, WINDOW, WINDOW + 1, 3 * WINDOW + 7};

        for (size_t k = 0; k < MT_COUNT(lens); k++)
            seen[k] |= shots.shot[i].len == lens[k] ||
                       (lens[k] > WINDOW + 1 && shots.shot[i].len > lens[k]);
        go_on(i % 2 ? &b : &c, &a, i, name);
        if (i == shots.n / 2) { /* the company's prompt is in the cache from now on */
            hear(&c, company, 0, due(&c, 0));
            settle(&c);
        }
    }
    for (int k = 0; k < 4; k++)
        phases[k] += shots.by_phase[k];
    half_characters += shots.half_characters;
    assert_true(seen[3]);
    for (int k = 0; k < 3; k++)
        lens_seen[k] |= seen[k];
    end(&a);
    end(&b);
    end(&c);
    forget_shots();
}

static bool is_tiny(const char *name)
{
    size_t n = strlen(name);

    return n > 5 && !strcmp(name + n - 5, "-tiny");
}

/* fn for the tiny shape of each family: the sizes of a family share one, under several names. */
static void each_family(void (*fn)(const char *name))
{
    const char *name, *last = NULL;

    for (int i = 0; (name = mt_model_synth_name(i)); i++) {
        if (!is_tiny(name) || (last && !strncmp(name, last, strcspn(name, "-") + 1)))
            continue;
        fn(last = name);
    }
}

static void test_each_tick(void **state)
{
    (void)state;
    each_family(each_tick);
    assert_true(phases[PHASE_IDLE] > 0 && phases[PHASE_PREFILL] > 0 && phases[PHASE_DECODE] > 0);
    assert_true(half_characters > 0);
    assert_true(lens_seen[0] && lens_seen[1] && lens_seen[2]);
}

/* ---- a smaller window, and what is refused ---- */

static const char plain[] = "qwen2.5-omni-tiny";

/* Frames from..to-1 of the sound, then all is answered. */
static void frames(struct world *w, int64_t from, int64_t to)
{
    int64_t at = from ? due(w, from - 1) : 0;

    hear(w, w->id, at, due(w, to - 1) - at);
    settle(w);
}

static struct shot shot_of(struct world *w, int64_t heard)
{
    struct mt_state_io io = {0};

    assert_int_equal(mt_engine_save(w->eng, w->id, &io), 0);
    return (struct shot){io.data, io.n, heard, w->frames, 0};
}

/* Saved before it forgot anything, restored into 40 tokens: a call that had 40 from the start. */
static void test_smaller_window(void **state)
{
    static struct world wide, small, other;
    struct mt_engine_opts o = options("window=240,sinks=4");
    struct mt_state_io io;

    (void)state;
    o.pool_blocks = 600;
    begin(&wide, "moshi-7b-tiny", o, 1);
    o = options("window=40,sinks=4");
    begin(&small, "moshi-7b-tiny", o, 1);
    begin(&other, "moshi-7b-tiny", o, 2);
    wide.id = dial(&wide, 7);
    small.id = dial(&small, 7);
    for (int64_t k = 0; k < 35; k++)
        frames(&wide, k, k + 1);
    struct shot s = shot_of(&wide, due(&wide, 34));
    for (int64_t k = 0; k < 90; k++)
        frames(&small, k, k + 1);
    assert_int_equal(load(&other, &s, 0, &io), -EINVAL);
    assert_non_null(strstr(io.err.text, "240"));
    assert_non_null(strstr(io.err.text, "40 "));
    assert_int_equal(load(&other, &s, 41, &io), -EINVAL);
    assert_int_equal(load(&other, &s, 241, &io), -EINVAL);
    assert_non_null(strstr(io.err.text, "241"));
    assert_int_equal(mt_pool_used(other.eng->pool), 0);
    assert_int_equal(load(&other, &s, 40, &io), 0);
    for (int64_t k = 35; k < 90; k++)
        frames(&other, k, k + 1);
    same(&other, &small, 35, 90, "window 40", 0);
    /*
     * One that has more than the small window forgets the rest, and holds no more than its bound.
     */
    for (int64_t k = 35; k < 100; k++)
        frames(&wide, k, k + 1);
    free(s.data);
    s = shot_of(&wide, due(&wide, 99));
    assert_int_equal(load(&other, &s, 30, &io), 0);
    for (int64_t k = 100; k < 110; k++)
        frames(&other, k, k + 1);
    assert_int_equal(other.said[109].kv, 34);
    free(s.data);
    end(&wide);
    end(&small);
    end(&other);
}

static void test_refused(void **state)
{
    static struct world w, x;
    struct mt_engine_opts o = options("window=400,sinks=4");
    struct mt_state_io io;

    (void)state;
    begin(&w, plain, o, 1);
    w.id = dial(&w, 1);
    frames(&w, 0, 1);
    struct shot s = shot_of(&w, 0);
    const struct {
        const char *kv, *says[2];
        enum mt_dtype type;
        enum mt_mode mode;
        int answer, block;
    } c[] = {
        {"window=400,sinks=4", {"--kv-type", "here"}, MT_F32, MT_MODE_TURN, 5, 16},
        {"window=400,sinks=5", {"4", "5"}, MT_BF16, MT_MODE_TURN, 5, 16},
        {"window=399,sinks=4", {"400", "399"}, MT_BF16, MT_MODE_TURN, 5, 16},
        {"window=400,sinks=4", {"--mode", "1 here"}, MT_BF16, MT_MODE_FREE, 5, 16},
        {"unbounded", {"--kv", "0 here"}, MT_BF16, MT_MODE_TURN, 5, 16},
        {"window=400,sinks=4", {"answer_tokens: 5", "4"}, MT_BF16, MT_MODE_TURN, 4, 16},
        {"window=400,sinks=4", {"--block", "24 here"}, MT_BF16, MT_MODE_TURN, 5, 24},
    };
    for (size_t i = 0; i < MT_COUNT(c); i++) {
        struct mt_engine_opts oo = options(c[i].kv);

        oo.kv_type = c[i].type;
        oo.mode = c[i].mode;
        oo.answer_tokens = c[i].answer;
        oo.block_tokens = c[i].block;
        begin(&x, plain, oo, 1);
        assert_int_equal(load(&x, &s, 0, &io), -EINVAL);
        for (int k = 0; k < 2; k++)
            if (!strstr(io.err.text, c[i].says[k]))
                fail_msg("'%s' does not say '%s'", io.err.text, c[i].says[k]);
        assert_int_equal(x.eng->n, 0);
        assert_int_equal(mt_pool_used(x.eng->pool), 0);
        end(&x);
    }
    /* No room, and nobody is to come. */
    o.pool_blocks = 30;
    begin(&x, plain, o, 1);
    assert_int_equal(load(&x, &s, 0, &io), 0);
    assert_int_equal(load(&x, &s, 0, &io), -EAGAIN);
    mt_engine_close(x.eng, 1, "gone");
    mt_engine_drain(x.eng);
    assert_int_equal(load(&x, &s, 0, &io), -EAGAIN);
    assert_int_equal(mt_pool_used(x.eng->pool), 0);
    end(&x);
    io = (struct mt_state_io){0};
    assert_int_equal(mt_engine_save(w.eng, 77, &io), -ENOENT);
    assert_non_null(strstr(io.err.text, "77"));
    free(s.data);
    end(&w);
}

/* Any bytes: one line, or a session that lives on somehow; never more than it was granted. */
static void test_hostile(void **state)
{
    static struct world w, x;
    struct mt_engine_opts o = options("window=40,sinks=4");
    struct mt_state_io io;
    int64_t good = 0;

    (void)state;
    for (int family = 0; family < 2; family++) {
        const char *name = family ? "minicpm-o-4.5-tiny" : plain;

        begin(&w, name, o, 1);
        begin(&x, name, o, 1);
        w.id = dial(&w, 1);
        hear(&w, w.id, 0, due(&w, 0) + 100);
        for (int i = 0; i < 6 - 3 * family; i++)
            mt_engine_tick(w.eng);
        struct shot s = shot_of(&w, 0);
        for (size_t n = 0; n < s.n; n += 8 * (1 + n / 4096)) {
            struct shot cut = {malloc(n + 1), n, 0, 0, 0};

            memcpy(cut.data, s.data, n);
            assert_true(load(&x, &cut, 0, &io) < 0);
            assert_true(io.err.text[0] && !strchr(io.err.text, '\n'));
            free(cut.data);
        }
        for (size_t i = 0; i < s.n; i += i < 8192 ? 1 : 1 + i / 64) {
            unsigned char was = s.data[i];

            /* A flag that is not set is set; other bytes change in many bits. */
            s.data[i] = (unsigned char)(!was ? 1 : was ^ (i % 3 ? 0x81 : 0xff));
            x.id = -1; /* what it says then is nobody's */
            if (load(&x, &s, 0, &io) == 0) {
                int64_t id = x.id;

                x.id = -1;
                good++;
                if (i % 5 == 0) {
                    mt_engine_end(x.eng, id, x.clock.virtual_ns);
                    for (int k = 0; k < 20 && mt_engine_tick(x.eng); k++) {
                    }
                }
                mt_engine_close(x.eng, id, "gone");
            } else {
                assert_true(io.err.text[0] && !strchr(io.err.text, '\n'));
            }
            assert_int_equal(x.eng->n, 0);
            assert_int_equal(mt_pool_used(x.eng->pool), 0);
            s.data[i] = was;
        }
        assert_int_equal(load(&x, &s, 0, &io), 0);
        free(s.data);
        end(&w);
        end(&x);
    }
    assert_true(good > 0);
}

/* ---- again and again ---- */

/* One step of a call: a piece of sound when nothing is to do, else a tick. */
static void soak_step(struct world *w, int64_t *at)
{
    int64_t piece = mt_engine_plan(w->eng)->frame_samples / PIECE_PARTS + 17;

    if (mt_engine_tick(w->eng))
        return;
    hear(w, w->id, *at, piece);
    hear(w, w->other, *at / 2, piece / 2);
    *at += piece;
}

/* From engine to engine, sealed and opened as a file is. Who stays there is closed. */
static void move_call(struct world *from, int64_t *from_id, struct world *to, int64_t *to_id,
                      const struct mt_load_opts *lo)
{
    struct mt_state_io io = {0}, back;
    struct mt_err e = {0};
    int64_t id = *from_id;
    const char *why;
    double retry;

    mt_callfile_begin(&io);
    mt_engine_save(from->eng, id, &io);
    if (mt_callfile_seal(&io, from->m, 5) < 0)
        fail_msg("%s", io.err.text);
    *from_id = -1; /* what it says as it closes is nobody's */
    mt_engine_close(from->eng, id, "gone");
    if (mt_callfile_open(&back, io.data, io.n, to->m, 5, &e) < 0)
        fail_msg("%s", e.text);
    if (mt_engine_load(to->eng, &back, lo, to_id, &why, &retry) != 0)
        fail_msg("%s", back.err.text);
    free(io.data);
}

/* All that an engine has, to a new one: numbers of sessions and its cap go on. */
static void hand_over(struct world *from, struct world *to)
{
    struct mt_load_opts lo = {.id = from->id, .elapsed_ns = 12345, .always = true};
    struct mt_state_io io = {0}, back;
    int64_t last;

    mt_engine_free(&to->eng);
    assert_int_equal(mt_engine_new(&to->eng, to->m, &to->opts, &to->clock, NULL), 0);
    to->clock.virtual_ns = from->clock.virtual_ns + lo.elapsed_ns;
    mt_engine_set_cap(from->eng, 3);
    mt_engine_visit(from->eng, &io);
    last = from->eng->next_id;
    assert_true(from->id < from->other);
    move_call(from, &from->id, to, &to->id, &lo);
    assert_int_equal(to->id, lo.id);
    lo.id = from->other;
    move_call(from, &from->other, to, &to->other, &lo);
    assert_int_equal(to->other, lo.id);
    back = (struct mt_state_io){.load = true, .data = io.data, .n = io.n};
    mt_engine_visit(to->eng, &back);
    if (mt_state_end(&back) < 0)
        fail_msg("%s", back.err.text);
    free(io.data);
    assert_int_equal(to->eng->next_id, last);
    assert_int_equal(to->eng->cap, 3);
    assert_int_equal(to->eng->t_start, from->eng->t_start);
}

static void move_both(struct world *from, struct world *to, bool whole)
{
    const struct mt_load_opts lo = {0};

    if (whole) {
        hand_over(from, to);
    } else {
        move_call(from, &from->id, to, &to->id, &lo);
        move_call(from, &from->other, to, &to->other, &lo);
    }
    to->frames = from->frames;
    to->other_frames = from->other_frames;
}

static void same_said(const char *name, const struct said *is, const struct said *was,
                      int64_t frame, int64_t moves)
{
    if (memcmp(&is[frame % FRAMES], &was[frame % FRAMES], sizeof(*is)) != 0)
        fail_msg("%s: frame %lld after %lld moves", name, (long long)frame, (long long)moves);
}

static int64_t cycles(void)
{
    const char *text = getenv("MT_CYCLES");
    int64_t n = 100;

    if (text && mt_parse_i64(text, 1, INT64_MAX, &n) < 0)
        fail_msg("MT_CYCLES=%s is no number of cycles", text);
    return n;
}

static void soak(const char *name)
{
    static struct world still, b[2];
    struct mt_engine_opts o = options("window=40,sinks=4");
    int64_t n = cycles(), at[2] = {0, 0}, checked = 0, other = 0;

    begin(&still, name, o, 1);
    o.pool_blocks = 23;
    begin(&b[0], name, o, 2);
    o.pool_blocks = 40;
    o.step_tokens = 40;
    begin(&b[1], name, o, 1);
    still.id = dial(&still, 7);
    still.other = dial(&still, 8);
    b[0].id = dial(&b[0], 7);
    b[0].other = dial(&b[0], 8);
    for (int64_t k = 0; k < n; k++) {
        struct world *w = &b[k % 2];

        soak_step(w, &at[1]);
        while (still.frames < w->frames || still.other_frames < w->other_frames)
            soak_step(&still, &at[0]);
        for (; checked < w->frames; checked++)
            same_said(name, w->said, still.said, checked, k);
        for (; other < w->other_frames; other++)
            same_said(name, w->other_said, still.other_said, other, k);
        move_both(w, &b[(k + 1) % 2], k % 3 == 2);
    }
    assert_true(checked > 0 && other > 0);
    if (getenv("MT_CYCLES"))
        print_message("%s: %lld moves, %lld frames, each as it would have been\n", name,
                      (long long)n, (long long)checked);
    end(&still);
    end(&b[0]);
    end(&b[1]);
}

/* MT_CYCLES in the environment: how often the call moves (100). */
static void test_soak(void **state)
{
    (void)state;
    each_family(soak);
}

/* ---- files ---- */

static char dir[32];

static int make_dir(void **state)
{
    (void)state;
    return util_dir_make(dir);
}

static int remove_dir(void **state)
{
    (void)state;
    return util_dir_remove(dir);
}

static void refused(const struct world *w, unsigned char *data, size_t n, int code)
{
    struct mt_state_io io = {0};
    struct mt_err e = {0};

    assert_int_equal(mt_callfile_open(&io, data, n, w->m, 77, &e), code);
    assert_true(e.text[0] && !strchr(e.text, '\n'));
    assert_null(io.data);
}

/* Every byte altered, a cut at every length, another model; and what is whole comes back whole. */
static void test_file(void **state)
{
    static struct world w;
    struct mt_state_io io = {0}, back = {0};
    struct mt_err e = {0};
    unsigned char *data;
    size_t n;

    (void)state;
    begin(&w, plain, options("window=40,sinks=4"), 1);
    w.id = dial(&w, 1);
    mt_callfile_begin(&io);
    assert_int_equal(mt_engine_save(w.eng, w.id, &io), 0);
    assert_int_equal(mt_callfile_seal(&io, w.m, 77), 0);
    assert_int_equal(mt_callfile_write(dir, "a", io.data, io.n, false, &e), 0);
    assert_int_equal(mt_callfile_read(&data, &n, dir, "a", io.n - 1, &e), -EFBIG);
    e = (struct mt_err){0};
    assert_int_equal(mt_callfile_read(&data, &n, dir, "a", io.n, &e), 0);
    assert_int_equal(n, io.n);
    assert_memory_equal(data, io.data, n);
    for (size_t i = 0; i < n; i++)
        for (int bit = 0; bit < 8; bit++) {
            data[i] ^= (unsigned char)(1 << bit);
            refused(&w, data, n, -EPROTO);
            data[i] ^= (unsigned char)(1 << bit);
        }
    for (size_t cut = 0; cut < n; cut++)
        refused(&w, data, cut, -EPROTO);
    assert_int_equal(mt_callfile_open(&back, data, n, w.m, 78, &e), -EINVAL);
    assert_non_null(strstr(e.text, "another model"));
    e = (struct mt_err){0};
    assert_int_equal(mt_callfile_open(&back, data, n, w.m, 77, &e), 0);
    assert_memory_equal(back.data + back.at, io.data + back.at, n - back.at);
    free(data);
    /* What a process that was killed left behind is in nobody's way. */
    for (int i = 0; i < 8; i++) {
        char left[64];

        snprintf(left, sizeof(left), "%s/.a.%ld.%d", dir, (long)getpid(), i);
        FILE *f = fopen(left, "w");
        assert_non_null(f);
        assert_int_equal(fclose(f), 0);
    }
    assert_int_equal(mt_callfile_write(dir, "a", io.data, io.n, false, &e), 0);
    /* A full disk: what was there stays, and nothing else does. */
    io.data[io.n - 1] ^= 1;
    assert_int_equal(mt_callfile_write(dir, "a", io.data, io.n, true, &e), -ENOSPC);
    io.data[io.n - 1] ^= 1;
    e = (struct mt_err){0};
    assert_int_equal(mt_callfile_read(&data, &n, dir, "a", io.n, &e), 0);
    assert_memory_equal(data, io.data, n);
    free(data);
    free(io.data);
    assert_int_equal(mt_callfile_read(&data, &n, dir, "b", 1000, &e), -ENOENT);
    end(&w);
}

static void test_names(void **state)
{
    char name[MT_CALLFILE_NAME_MAX + 2];
    const char *const bad[] = {"", ".", "..", ".a", "a/b", "/", "a b", "\xc3\xa4", "a\n"};

    (void)state;
    for (size_t i = 0; i < MT_COUNT(bad); i++)
        assert_false(mt_callfile_name(bad[i]));
    assert_true(mt_callfile_name("A-z_0.9"));
    memset(name, 'x', sizeof(name));
    name[MT_CALLFILE_NAME_MAX + 1] = '\0';
    assert_false(mt_callfile_name(name));
    name[MT_CALLFILE_NAME_MAX] = '\0';
    assert_true(mt_callfile_name(name));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_tick), cmocka_unit_test(test_smaller_window),
        cmocka_unit_test(test_refused),   cmocka_unit_test(test_hostile),
        cmocka_unit_test(test_soak),      cmocka_unit_test(test_file),
        cmocka_unit_test(test_names),
    };

    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
