/*
 * test_minicpm.c: MiniCPM-o against its authors' code where the other families have nothing alike:
 * the streaming ear unit by unit, and the greedy streams of the duplex loop (tests/golden, made by
 * make_minicpm.py there). And what the authors' code does not have: an ear without end.
 * MT_MINICPM=DIR[:DIR...] adds checkpoints of the same form.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/engine.h"
#include "model/source.h"
#include "tests/unit/checkpoint.h"
#include "util.h"

enum { UNIT = 16000 };

struct world {
    char dir[512];
    struct mt_backend *be;
    struct mt_model *m;
};

static void open_cached(struct world *w, const char *spec, enum mt_dtype kv_type)
{
    struct mt_model_opts o = {.step_rows = 128, .want_rows = 16, .kv_type = kv_type};
    struct mt_err e = {0};

    snprintf(w->dir, sizeof(w->dir), "%s", spec);
    if (util_backend(&w->be, 2, &e) < 0 || mt_model_open(&w->m, spec, w->be, &o, &e) < 0)
        fail_msg("%s", e.text);
}

static void open_world(struct world *w, const char *spec)
{
    open_cached(w, spec, MT_F32);
}

static void close_world(struct world *w)
{
    mt_model_close(&w->m);
    w->be->ops->free(w->be);
}

/* The clips of a case, one behind the other. */
static float *load_call(const struct world *w, const json_t *clips, int64_t *n)
{
    float *all = NULL;
    struct mt_err e = {0};
    json_t *c;
    size_t i;

    *n = 0;
    json_array_foreach(clips, i, c)
    {
        int64_t len, first = json_integer_value(json_object_get(c, "first")),
                     samples = json_integer_value(json_object_get(c, "samples"));
        char path[1200];
        float *pcm;

        snprintf(path, sizeof(path), "%s/%s", w->dir,
                 json_string_value(json_object_get(c, "file")));
        if (mt_sound_load(path, NULL, 16000, 16000 * 300, &pcm, &len, &e) < 0)
            fail_msg("%s", e.text);
        assert_true(first + samples <= len);
        all = realloc(all, (size_t)(*n + samples) * sizeof(*all));
        memcpy(all + *n, pcm + first, (size_t)samples * sizeof(*all));
        *n += samples;
        free(pcm);
    }
    return all;
}

/* ---- the ear ---- */

static int push_unit(struct world *w, struct mt_ear *ear, const float *pcm, float *rows)
{
    int n;

    assert_int_equal(mt_ear_push(ear, pcm, UNIT), UNIT);
    assert_int_equal(mt_ear_frames(ear), 1);
    assert_int_equal(mt_model_encode(w->m, &ear, 1), 0);
    struct mt_rows r = mt_ear_rows(ear, &n);
    w->be->ops->rows_get(w->be, rows, r, n);
    return n;
}

static void check_units(struct world *w, const json_t *c)
{
    int64_t n, dims[8], step = json_integer_value(json_object_get(c, "row_step"));
    int hidden = mt_model_info(w->m)->hidden, n_dims, rows = 0;
    const char *name = json_string_value(json_object_get(c, "name"));
    struct mt_weights *expected;
    struct mt_bytes want;
    struct mt_ear *ear;
    char path[600];
    double worst = 0;

    snprintf(path, sizeof(path), "%s/expected.safetensors", w->dir);
    assert_int_equal(mt_weights_open_safetensors_file(&expected, path, NULL), 0);
    assert_int_equal(mt_weights_find(expected, name, &n_dims, dims, &want), 0);
    float *pcm = load_call(w, json_object_get(c, "audio"), &n);
    float *got = malloc((size_t)(n / UNIT * 50 * hidden) * sizeof(*got));
    assert_int_equal(mt_ear_new(&ear, w->m, UNIT, 2, NULL), 0);
    for (int64_t at = 0; at + UNIT <= n; at += UNIT) {
        rows += push_unit(w, ear, pcm + at, got + rows * hidden);
        assert_int_equal(mt_ear_mel_frames(ear), at ? 104 : 102);
    }
    assert_int_equal(rows, json_integer_value(json_object_get(c, "rows")));
    for (int64_t i = 0; i < dims[0]; i++)
        for (int64_t k = 0; k < hidden; k++)
            worst = fmax(worst, fabs((double)got[i * step * hidden + k] -
                                     ((const float *)want.data)[i * hidden + k]));
    if (getenv("MT_GOLDEN_SHOW"))
        print_message("%s %s %.2e\n", w->dir, name, worst);
    assert_true(worst < 5e-5);
    mt_ear_free(&ear);
    mt_weights_close(&expected);
    free(got);
    free(pcm);
}

/* ---- the loop ---- */

struct stream {
    const json_t *units;
    const char *name;
    int64_t seen;
};

static void on_unit(void *ctx, const struct mt_record *r)
{
    struct stream *s = ctx;
    const json_t *u = json_array_get(s->units, (size_t)s->seen),
                 *drawn = json_object_get(u, "drawn");

    assert_int_equal(r->status, MT_OK);
    assert_int_equal(r->frame, s->seen);
    for (int i = 0; i < r->tokens_out; i++)
        if (r->tokens[i] != json_integer_value(json_array_get(drawn, (size_t)i)))
            fail_msg("%s: unit %lld draws %d as number %d, the authors' %lld", s->name,
                     (long long)s->seen, r->tokens[i], i,
                     (long long)json_integer_value(json_array_get(drawn, (size_t)i)));
    assert_int_equal(r->tokens_out, json_array_size(drawn));
    assert_string_equal(r->text, json_string_value(json_object_get(u, "text")));
    s->seen++;
}

static void on_closed(void *ctx, int64_t session, const char *reason, int64_t frames)
{
    (void)ctx;
    (void)session;
    (void)reason;
    (void)frames;
}

static void check_duplex(struct world *w, const json_t *c)
{
    struct stream s = {json_object_get(c, "units"), json_string_value(json_object_get(c, "name")),
                       0};
    struct mt_clock clock = mt_clock_virtual(0);
    struct mt_engine_opts o;
    struct mt_session_opts so;
    struct mt_engine *eng;
    struct mt_err e = {0};
    int64_t n, id, at = 0;
    const char *why;
    double retry;

    mt_engine_defaults(&o);
    o.kv_type = MT_F32;
    o.pool_blocks = 100;
    o.answer_tokens = 32; /* the loop's own limit holds */
    o.step_tokens = 128;
    o.max_sessions = 4;
    o.events = (struct mt_engine_events){&s, on_unit, on_closed};
    if (mt_engine_new(&eng, w->m, &o, &clock, &e) < 0)
        fail_msg("%s", e.text);
    mt_session_defaults(&so);
    so.system = json_string_value(json_object_get(c, "system"));
    if (mt_engine_open(eng, &so, &id, &why, &retry, &e) < 0)
        fail_msg("%s", e.text);
    float *pcm = load_call(w, json_object_get(c, "audio"), &n);
    while (at < n) {
        at += mt_engine_audio(eng, id, pcm + at, n - at < 7919 ? n - at : 7919, 0);
        while (mt_engine_tick(eng)) {
        }
    }
    assert_int_equal(s.seen, json_array_size(s.units));
    mt_engine_free(&eng);
    free(pcm);
}

static void each_case(const char *kind, void (*check)(struct world *, const json_t *))
{
    char dirs[4096], *save = NULL;
    int n = snprintf(dirs, sizeof(dirs), "%s/golden/minicpm-a", util_tests()), seen = 0;

    if (getenv("MT_MINICPM"))
        snprintf(dirs + n, sizeof(dirs) - (size_t)n, ":%s", getenv("MT_MINICPM"));
    for (char *d = strtok_r(dirs, ":", &save); d; d = strtok_r(NULL, ":", &save)) {
        struct world w;
        char path[600];
        json_t *c;
        size_t i;

        open_world(&w, d);
        snprintf(path, sizeof(path), "%s/cases.json", d);
        json_t *cases = json_load_file(path, 0, NULL);
        json_array_foreach(cases, i,
                           c) if (!strcmp(json_string_value(json_object_get(c, "kind")), kind))
        {
            check(&w, c);
            seen++;
        }
        assert_true(seen > 0);
        json_decref(cases);
        close_world(&w);
    }
}

static void test_units(void **state)
{
    (void)state;
    each_case("units", check_units);
}

static void test_duplex(void **state)
{
    (void)state;
    each_case("duplex", check_duplex);
}

/* ---- without end ---- */

static void fill(float *pcm, uint64_t seed)
{
    for (int i = 0; i < UNIT; i++)
        pcm[i] = (float)(0.3 * (mt_unit(mt_mix64(seed * UNIT + (uint64_t)i)) - 0.5));
}

static bool same(const float *a, const float *b, int n)
{
    int i = 0;

    while (i < n && a[i] == b[i])
        i++;
    return i == n;
}

/*
 * Sound that repeats is heard the same, bit for bit, each time the places of the cache (9 units
 * here) and the buffer of the clamp (10) are where they were: nothing of an older past is left,
 * nothing grows, and no unit is like the first one again. A skipped unit leaves no hole.
 */
static void test_goes_round(void **state)
{
    enum { FIRST = 100, ROUND = 90, HIDDEN = 128 };
    struct world w;
    struct mt_ear *ear;
    float pcm[UNIT], then[10 * HIDDEN], now[10 * HIDDEN], first[10 * HIDDEN];

    (void)state;
    open_world(&w, "synth:minicpm-o-4.5-tiny");
    assert_int_equal(mt_model_info(w.m)->hidden, HIDDEN);
    assert_int_equal(mt_ear_new(&ear, w.m, UNIT, 1, NULL), 0);
    fill(pcm, 1);
    for (int k = 0; k <= FIRST + 2 * ROUND; k++) {
        float *to = k == 0 ? first : k == FIRST ? then : now;
        assert_int_equal(push_unit(&w, ear, pcm, to), 10);
        assert_true(k == 0 || !same(to, first, 10 * HIDDEN));
        if (k == FIRST + ROUND || k == FIRST + 2 * ROUND)
            assert_memory_equal(now, then, sizeof(now));
    }
    assert_int_equal(mt_ear_push(ear, pcm, UNIT), UNIT);
    mt_ear_skip(ear);
    mt_ear_rows(ear, (int[]){0});
    assert_int_equal(mt_ear_frames(ear), 0);
    assert_int_equal(push_unit(&w, ear, pcm, now), 10);
    for (int i = 0; i < 10 * HIDDEN; i++)
        assert_true(isfinite(now[i]));
    mt_ear_free(&ear);
    close_world(&w);
}

/*
 * An utterance in minute 9 is heard about as one behind half a minute of other sound: as far from
 * the same utterance at the beginning of a call, and no farther with every round.
 */
static void test_minute_nine(void **state)
{
    enum { SAID = 5, MINUTE_9 = 540, SOON = 31, SIZE = SAID * 10 * 128 };
    struct world w;
    struct mt_ear *ear;
    float pcm[UNIT], first[SIZE], got[SIZE];
    double soon = 0;

    (void)state;
    open_world(&w, "synth:minicpm-o-4.5-tiny");
    assert_int_equal(mt_ear_new(&ear, w.m, UNIT, 1, NULL), 0);
    for (int k = 0; k < MINUTE_9 + SAID; k++) {
        int at = k < SAID ? k : k >= MINUTE_9 ? k - MINUTE_9 : k >= SOON ? k - SOON : SAID;
        double d2 = 0, s2 = 0;

        fill(pcm, at < SAID ? 1000 + (uint64_t)at : (uint64_t)k);
        float other[10 * 128], *to = k < SAID    ? first + k * 1280
                                     : at < SAID ? got + at * 1280
                                                 : other;
        push_unit(&w, ear, pcm, to);
        if (k < SAID || at != SAID - 1)
            continue;
        for (int i = 0; i < SIZE; i++) {
            d2 += pow((double)got[i] - first[i], 2);
            s2 += pow(first[i], 2);
        }
        if (getenv("MT_GOLDEN_SHOW"))
            print_message("unit %d: %.3f from the first\n", k, sqrt(d2 / s2));
        if (k < MINUTE_9)
            soon = sqrt(d2 / s2);
        else
            assert_true(sqrt(d2 / s2) < 1.25 * soon);
    }
    mt_ear_free(&ear);
    close_world(&w);
}

/*
 * Ears of different ages in one pass, more of them than it holds: each hears what it hears alone.
 */
static void test_company(void **state)
{
    enum { EARS = 11, SIZE = 10 * 128 };
    struct mt_ear *ears[EARS], *alone;
    float pcm[UNIT], *want = malloc(EARS * SIZE * sizeof(*want)), got[SIZE];
    struct world w;

    (void)state;
    open_world(&w, "synth:minicpm-o-4.5-tiny");
    for (int i = 0; i < EARS; i++) {
        assert_int_equal(mt_ear_new(&ears[i], w.m, UNIT, 1, NULL), 0);
        assert_int_equal(mt_ear_new(&alone, w.m, UNIT, 1, NULL), 0);
        for (int k = 0; k < i; k++) {
            fill(pcm, (uint64_t)(100 * i + k));
            push_unit(&w, ears[i], pcm, got);
            push_unit(&w, alone, pcm, got);
        }
        fill(pcm, (uint64_t)(100 * i + 99));
        push_unit(&w, alone, pcm, want + (int64_t)i * SIZE);
        assert_int_equal(mt_ear_push(ears[i], pcm, UNIT), UNIT);
        mt_ear_free(&alone);
    }
    assert_int_equal(mt_model_encode(w.m, ears, EARS), 0);
    for (int i = 0; i < EARS; i++) {
        int n;
        struct mt_rows r = mt_ear_rows(ears[i], &n);
        assert_int_equal(n, 10);
        w.be->ops->rows_get(w.be, got, r, n);
        assert_memory_equal(got, want + (int64_t)i * SIZE, sizeof(got));
        mt_ear_free(&ears[i]);
    }
    free(want);
    close_world(&w);
}

/* Narrower caches cost something, in proportion to their rounding step, and no more with time. */
static void test_cache_types(void **state)
{
    static const struct {
        enum mt_dtype type;
        double step;
    } is[] = {{MT_F16, 1.0 / 2048}, {MT_BF16, 1.0 / 256}, {MT_INT8, 1.0 / 127}};
    enum { UNITS = 40, SIZE = UNITS * 10 * 128 };
    float *exact = malloc(SIZE * sizeof(*exact)), *got = malloc(SIZE * sizeof(*got)), pcm[UNIT];

    (void)state;
    for (int t = -1; t < (int)MT_COUNT(is); t++) {
        double d2 = 0, s2 = 0, off;
        struct world w;
        struct mt_ear *ear;

        open_cached(&w, "synth:minicpm-o-4.5-tiny", t < 0 ? MT_F32 : is[t].type);
        assert_int_equal(mt_ear_new(&ear, w.m, UNIT, 1, NULL), 0);
        for (int k = 0; k < UNITS; k++) {
            fill(pcm, (uint64_t)k);
            push_unit(&w, ear, pcm, (t < 0 ? exact : got) + (int64_t)k * 1280);
        }
        for (int i = 0; i < SIZE; i++) {
            d2 += pow((double)got[i] - exact[i], 2);
            s2 += pow(exact[i], 2);
        }
        off = sqrt(d2 / s2);
        if (t >= 0 && getenv("MT_GOLDEN_SHOW"))
            print_message("%s: %.2e\n", mt_dtype_name(is[t].type), off);
        if (t >= 0)
            assert_true(off > is[t].step / 100 && off < 2 * is[t].step);
        mt_ear_free(&ear);
        close_world(&w);
    }
    free(exact);
    free(got);
}

/* ---- the penalties ---- */

/* Against a plain count: which tokens are among the last 512, each once, the turn's end behind. */
static void test_penalties(void **state)
{
    enum { DRAWN = 1700, VOCAB = 2048 };
    static int32_t said[DRAWN];
    struct world w;
    struct mt_talk *t;
    struct mt_ear *ear;
    struct mt_sample p = {0};
    int32_t turn_eos;

    (void)state;
    open_world(&w, "synth:minicpm-o-4.5-tiny");
    turn_eos = mt_tokenizer_special(mt_model_tokenizer(w.m), "<|turn_eos|>");
    assert_int_equal(mt_ear_new(&ear, w.m, UNIT, 1, NULL), 0);
    assert_int_equal(mt_talk_new(&t, w.m, MT_MODE_TURN, "", ear, NULL), 0);
    for (int n = 0; n < DRAWN; n++) {
        bool recent[VOCAB] = {false};
        int different = 0;

        /* Narrow at first, so that many repeat; then wide, so that the list fills. */
        said[n] = (int32_t)(mt_mix64((uint64_t)n) % (n < 700 ? 300 : 1900));
        if (n % 50 == 7)
            said[n] = turn_eos;
        mt_talk_drawn(t, said[n]);
        mt_talk_rules(t, &p);
        for (int i = n < 512 ? 0 : n - 511; i <= n; i++) {
            different += !recent[said[i]];
            recent[said[i]] = true;
        }
        assert_int_equal(p.rules->n_scale, different + 1);
        for (int i = 0; i < different; i++) {
            assert_true(recent[p.rules->scale[i].id]);
            assert_true(p.rules->scale[i].by == 1.05f && !p.rules->scale[i].down);
            recent[p.rules->scale[i].id] = false; /* once */
        }
        assert_int_equal(p.rules->scale[different].id, turn_eos);
        assert_true(p.rules->scale[different].by == 1.1f && p.rules->scale[different].down);
    }
    mt_talk_free(&t);
    mt_ear_free(&ear);
    close_world(&w);
}

/* ---- a unit's tokens ---- */

static int32_t mark(const struct world *w, const char *text)
{
    return mt_tokenizer_special(mt_model_tokenizer(w->m), text);
}

static void test_unit(void **state)
{
    struct world w;
    struct mt_ear *ear;
    struct mt_talk *t;
    struct mt_said s = {0};
    int32_t ids[300];
    int at, n;

    (void)state;
    open_world(&w, "synth:minicpm-o-4.5-tiny");
    assert_int_equal(mt_ear_new(&ear, w.m, UNIT, 1, NULL), 0);
    assert_int_equal(mt_talk_new(&t, w.m, MT_MODE_TURN, "", ear, NULL), 0);
    assert_int_equal(mt_talk_draws(t), 19);
    mt_talk_prompt(t, &n);
    assert_int_equal(n, 0);
    assert_int_equal(mt_talk_begin(t, 10, ids, &at), 11);
    assert_int_equal(ids[0], mark(&w, "<unit>"));
    assert_int_equal(at, 1);
    s = mt_talk_drawn(t, mark(&w, "<|listen|>"));
    assert_true(s.end && s.unsay && s.show < 0);
    assert_int_equal(mt_talk_begin(t, 10, ids, &at), 13);
    assert_int_equal(ids[0], mark(&w, "<|listen|>"));
    assert_int_equal(ids[1], mark(&w, "</unit>"));
    /*
     * It speaks: the first token is not said; 19 of them, and the unit is closed behind the last.
     */
    for (int i = 0; i < 19; i++) {
        s = mt_talk_drawn(t, 300 + i);
        assert_int_equal(s.show, i ? 300 + i : -1);
        assert_int_equal(s.feed, 300 + i);
        assert_int_equal(s.end, i == 18);
    }
    assert_int_equal(mt_talk_begin(t, 10, ids, &at), 14);
    assert_int_equal(ids[0], 318);
    assert_int_equal(ids[1], mark(&w, "<|chunk_eos|>"));
    assert_int_equal(ids[2], mark(&w, "</unit>"));
    /* The turn is open: it can't listen. Once it is over, it can. */
    s = mt_talk_drawn(t, mark(&w, "<|listen|>"));
    assert_int_equal(s.feed, mark(&w, "<|tts_bos|>"));
    assert_false(s.end);
    assert_false(mt_talk_drawn(t, mark(&w, "<|turn_eos|>")).end);
    s = mt_talk_drawn(t, mark(&w, "<|listen|>"));
    assert_true(s.end && s.unsay);
    /* A unit that is cut short, or for which nothing could be drawn, is closed all the same. */
    mt_talk_begin(t, 10, ids, &at);
    mt_talk_drawn(t, 400);
    assert_int_equal(mt_talk_begin(t, 10, ids, &at), 14);
    assert_int_equal(ids[0], 400);
    assert_int_equal(ids[1], mark(&w, "<|chunk_eos|>"));
    assert_int_equal(mt_talk_begin(t, 10, ids, &at), 13);
    assert_int_equal(ids[0], mark(&w, "<|chunk_eos|>"));
    mt_talk_free(&t);
    /* Free: nothing ends a unit but its last slot. */
    assert_int_equal(mt_talk_new(&t, w.m, MT_MODE_FREE, "x <|unit|> \xc3\xa9", ear, NULL), 0);
    mt_talk_begin(t, 10, ids, &at);
    for (int i = 0; i < 19; i++)
        assert_int_equal(mt_talk_drawn(t, mark(&w, "<|listen|>")).end, i == 18);
    mt_talk_free(&t);
    mt_ear_free(&ear);
    close_world(&w);
}

/* ---- files ---- */

static void must_fail(const struct ck *ck, const char *path, json_t *value, const char *word)
{
    struct mt_model_opts o = {.step_rows = 8, .want_rows = 8};
    json_t *config = json_loads(CK_MINICPM, 0, NULL);
    struct mt_backend *be;
    struct mt_model *m;
    struct mt_err e = {0};

    ck_set(config, path, value);
    ck_json(ck, "config.json", config);
    assert_int_equal(mt_backend_cpu(&be, MT_CPU_BASE, 1, &e), 0);
    if (mt_model_open(&m, ck->dir, be, &o, &e) == 0)
        fail_msg("%s was opened (expected '%s')", path, word);
    if (!strstr(e.text, word) || !strstr(e.text, ck->dir) || strchr(e.text, '\n'))
        fail_msg("'%s' lacks '%s', or the file's name", e.text, word);
    be->ops->free(be);
    json_decref(config);
}

static void test_configs(void **state)
{
    static const char *const good[] = {"audio_pool_step", "audio_chunk_length", "rope_theta",
                                       "audio_config.activation_function"};
    struct ck ck;
    struct world w;

    (void)state;
    ck_new(&ck);
    ck_minicpm(&ck);
    must_fail(&ck, "audio_config", NULL, "audio_config");
    must_fail(&ck, "audio_pool_step", json_integer(0), "audio_pool_step");
    must_fail(&ck, "audio_pool_step", json_integer(51), "audio_pool_step");
    must_fail(&ck, "audio_chunk_length", json_real(0.001), "audio_chunk_length");
    must_fail(&ck, "audio_chunk_length", json_string("1"), "audio_chunk_length");
    must_fail(&ck, "attention_bias", json_true(), "attention_bias");
    must_fail(&ck, "head_dim", NULL, "q_proj"); /* 128, as Qwen3Config has it */
    must_fail(&ck, "head_dim", json_integer(5), "head_dim 5 is odd");
    must_fail(&ck, "hidden_size", json_integer(16), "llm.model.embed_tokens.weight");
    must_fail(&ck, "num_hidden_layers", json_integer(3), "llm.model.layers.2");
    must_fail(&ck, "audio_config.d_model", json_integer(7), "d_model 7");
    must_fail(&ck, "audio_config.encoder_layers", NULL, "apm.layers.1"); /* 4, as Whisper's */
    must_fail(&ck, "audio_config.max_source_positions", json_integer(109),
              "apm.embed_positions.weight");
    must_fail(&ck, "audio_config.activation_function", json_string("relu"), "activation_function");
    ck_text(&ck, "tokenizer_config.json", "{\"bad_token_ids\":{\"1\":2}}");
    must_fail(&ck, "version", json_string("4.5"), "tokenizer_config.json: bad_token_ids");
    ck_text(&ck, "tokenizer_config.json", "{\"bad_token_ids\":[3,-1]}");
    must_fail(&ck, "version", json_string("4.5"), "bad_token_ids[1]");
    ck_text(&ck, "tokenizer_config.json", "{\"bad_token_ids\":[3,300]}");
    for (size_t i = 0; i < MT_COUNT(good); i++) {
        json_t *config = json_loads(CK_MINICPM, 0, NULL);
        ck_set(config, good[i], NULL);
        ck_json(&ck, "config.json", config);
        open_world(&w, ck.dir);
        close_world(&w);
        json_decref(config);
    }
    ck_free(&ck);
}

/* Frames of another length, clips of a few samples, and of more than a piece. */
static void test_lengths(void **state)
{
    static float pcm[16000 * 5];
    struct ck ck;
    struct world w;
    struct mt_ear *ear;
    struct mt_err e = {0};
    struct mt_talk *t;
    int64_t rows, mel;
    float *v;

    (void)state;
    ck_new(&ck);
    ck_minicpm(&ck);
    open_world(&w, ck.dir);
    assert_int_equal(mt_ear_new(&ear, w.m, 2 * UNIT, 1, &e), -EINVAL);
    assert_non_null(strstr(e.text, "1000 ms"));
    e = (struct mt_err){0};
    assert_int_equal(mt_model_embed_clip(w.m, pcm, 1280, &v, &rows, &mel, &e), -EINVAL);
    assert_non_null(strstr(e.text, "1281"));
    assert_int_equal(mt_model_embed_clip(w.m, pcm, 1281, &v, &rows, &mel, NULL), 0);
    assert_int_equal(rows, 1);
    assert_int_equal(mel, 9);
    free(v);
    /* 110 places: pieces of 2.2 s, 22 rows each */
    assert_int_equal(mt_model_embed_clip(w.m, pcm, MT_COUNT(pcm), &v, &rows, &mel, NULL), 0);
    assert_int_equal(rows, 50);
    assert_int_equal(mel, 500);
    free(v);
    assert_int_equal(mt_ear_new(&ear, w.m, UNIT, 1, NULL), 0);
    e = (struct mt_err){0};
    assert_int_equal(mt_talk_new(&t, w.m, MT_MODE_TURN, NULL, ear, &e), -ENOENT);
    mt_ear_free(&ear);
    close_world(&w);
    ck_free(&ck);
}

/* Each 30 s of a longer clip are a clip by themselves, and so is what is left. */
static void test_pieces(void **state)
{
    enum { PIECE = 30 * UNIT, REST = 2 * UNIT + 77 };
    float *pcm = malloc((PIECE + REST) * sizeof(*pcm)), *whole, *part;
    struct world w;
    int64_t rows, n, mel, at = 0;
    char dir[500];

    (void)state;
    snprintf(dir, sizeof(dir), "%s/golden/minicpm-a", util_tests());
    open_world(&w, dir);
    int hidden = mt_model_info(w.m)->hidden;
    for (int i = 0; i < PIECE + REST; i++)
        pcm[i] = (float)((mt_unit(mt_mix64((uint64_t)i)) - 0.5) * (i < PIECE ? 0.5 : 0.05));
    assert_int_equal(mt_model_embed_clip(w.m, pcm, PIECE + REST, &whole, &rows, &mel, NULL), 0);
    assert_int_equal(rows, 320);
    assert_int_equal(mel, 3201);
    for (int k = 0; k < 2; k++) {
        const float *from = pcm + (k ? PIECE : 0);
        assert_int_equal(mt_model_embed_clip(w.m, from, k ? REST : PIECE, &part, &n, NULL, NULL),
                         0);
        assert_memory_equal(part, whole + at * hidden, (size_t)(n * hidden) * sizeof(*part));
        at += n;
        free(part);
    }
    assert_int_equal(at, rows);
    free(whole);
    free(pcm);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_units),       cmocka_unit_test(test_duplex),
        cmocka_unit_test(test_goes_round),  cmocka_unit_test(test_minute_nine),
        cmocka_unit_test(test_cache_types), cmocka_unit_test(test_company),
        cmocka_unit_test(test_penalties),   cmocka_unit_test(test_unit),
        cmocka_unit_test(test_configs),     cmocka_unit_test(test_lengths),
        cmocka_unit_test(test_pieces),
    };

    return cmocka_run_group_tests_name("minicpm", tests, NULL, NULL);
}
