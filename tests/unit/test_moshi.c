/*
 * test_moshi.c: Moshi against its authors' code: the log-probs of every stream, teacher-forced, for
 * their own regression case and the tiny checkpoints in tests/golden (made by make_moshi.py there).
 * MT_GOLDEN_MOSHI=DIR[:DIR…] adds checkpoints of the same form.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/engine.h"
#include "model/moshi.h"
#include "model/source.h"
#include "util.h"

static const double tol = 2e-4; /* on log-probs; the package's own f32 is off by 1e-5 */

struct opened {
    char dir[512];
    struct mt_backend *be;
    struct mt_model *m;
};

static void open_checkpoint(struct opened *o, const char *dir)
{
    struct mt_model_opts opts = {.step_rows = 64, .want_rows = 16};
    struct mt_err e = {0};

    snprintf(o->dir, sizeof(o->dir), "%s", dir);
    if (util_backend(&o->be, 2, &e) < 0 || mt_model_open(&o->m, dir, o->be, &opts, &e) < 0)
        fail_msg("%s", e.text);
}

static void close_checkpoint(struct opened *o)
{
    mt_model_close(&o->m);
    o->be->ops->free(o->be);
}

static struct mt_weights *open_file(const char *dir, const char *name)
{
    struct mt_weights *w;
    struct mt_err e = {0};
    char path[600];

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    if (mt_weights_open_safetensors_file(&w, path, &e) < 0)
        fail_msg("%s", e.text);
    return w;
}

static const float *tensor(struct mt_weights *w, const char *name, int64_t dims[8])
{
    struct mt_bytes b;
    int n;

    if (mt_weights_find(w, name, &n, dims, &b) < 0)
        fail_msg("no tensor %s", name);
    assert_int_equal(b.type, MT_F32);
    return b.data;
}

/* ---- all streams of all steps ---- */

struct heard {
    const struct mt_model_info *i;
    float *rows; /* [n_at][vocab + made * bins] */
    int64_t width, n;
};

static int take_text(void *ctx, int64_t pos, const float *logprobs, int vocab)
{
    struct heard *h = ctx;

    (void)pos;
    memcpy(h->rows + h->n++ * h->width, logprobs, (size_t)vocab * sizeof(*logprobs));
    return 0;
}

static int take_code(void *ctx, int64_t pos, int k, const float *logprobs, int bins)
{
    struct heard *h = ctx;

    (void)pos;
    memcpy(h->rows + (h->n - 1) * h->width + h->i->vocab + (int64_t)k * bins, logprobs,
           (size_t)bins * sizeof(*logprobs));
    return 0;
}

/* [n_at][width], the caller's. */
static float *teach(struct opened *o, const int32_t *frames, int64_t n, const int64_t *at,
                    int64_t n_at, struct mt_policy policy, int64_t *width)
{
    const struct mt_model_info *i = mt_model_info(o->m);
    struct heard h = {.i = i, .width = i->vocab + (int64_t)i->codebooks_made * i->code_bins};
    struct mt_teacher t = {.frames = frames,
                           .n = n,
                           .at = at,
                           .n_at = n_at,
                           .policy = policy,
                           .kv_type = MT_F32,
                           .block_tokens = 5,
                           .ctx = &h,
                           .row = take_text,
                           .code_row = take_code};
    struct mt_err e = {0};

    h.rows = malloc((size_t)(n_at * h.width) * sizeof(*h.rows));
    if (mt_teacher_run(o->m, &t, &e) < 0)
        fail_msg("%s: %s", o->dir, e.text);
    assert_int_equal(h.n, n_at);
    *width = h.width;
    return h.rows;
}

static int64_t *count_up(int64_t n)
{
    int64_t *at = malloc((size_t)n * sizeof(*at));

    for (int64_t i = 0; i < n; i++)
        at[i] = i;
    return at;
}

/* ---- the authors' regression case ---- */

static double cross_entropy(const float *logits, int n, int64_t target)
{
    double sum = 0, most = -INFINITY;

    for (int i = 0; i < n; i++)
        most = logits[i] > most ? logits[i] : most;
    for (int i = 0; i < n; i++)
        sum += exp(logits[i] - most);
    return most + log(sum) - logits[target];
}

/* Their logits against our log-probs: worst difference, and the two sums of cross-entropy. */
static void compare_logits(const float *theirs, const float *ours, int n, int64_t target,
                           double *worst, double ce[2])
{
    double norm = cross_entropy(theirs, n, 0) + theirs[0];

    for (int i = 0; i < n; i++)
        *worst = fmax(*worst, fabs(theirs[i] - norm - ours[i]));
    ce[0] += cross_entropy(theirs, n, target);
    ce[1] -= ours[target];
}

static void test_regression(void **state)
{
    enum { BATCH = 3, BOOKS = 3, STEPS = 7 };
    static const int delay[1 + BOOKS] = {0, 1, 2, 4};
    char dir[512];
    struct opened o;
    int64_t dims[8], width, *at = count_up(STEPS);
    double ce[1 + BOOKS][2] = {{0}};
    FILE *f;

    (void)state;
    snprintf(dir, sizeof(dir), "%s/golden/moshi-lm", util_tests());
    open_checkpoint(&o, dir);
    struct mt_weights *out = open_file(dir, "out.safetensors");
    const float *text = tensor(out, "text_logits", dims), *code = tensor(out, "logits", dims);
    int bins = (int)dims[3], vocab = mt_model_info(o.m)->vocab;
    int64_t codes[BATCH][1 + BOOKS][STEPS]; /* integers, which no source of weights offers */

    snprintf(dir + strlen(dir), 30, "/codes.safetensors");
    f = fopen(dir, "rb");
    assert_non_null(f);
    assert_int_equal(fseek(f, -(long)sizeof(codes), SEEK_END), 0);
    assert_int_equal(fread(codes, sizeof(codes), 1, f), 1);
    fclose(f);
    for (int b = 0; b < BATCH; b++) {
        int32_t frames[STEPS][1 + BOOKS];
        for (int t = 0; t < STEPS; t++)
            for (int k = 0; k <= BOOKS; k++)
                frames[t][k] = (int32_t)codes[b][k][t];
        float *ours = teach(&o, frames[0], STEPS, at, STEPS, (struct mt_policy){0}, &width);
        double worst = 0;
        for (int t = 0; t < STEPS; t++) {
            compare_logits(text + (int64_t)(b * STEPS + t) * vocab, ours + t * width, vocab,
                           codes[b][0][t], &worst, ce[0]);
            for (int k = 0; k < BOOKS && t + delay[1 + k] < STEPS; k++)
                compare_logits(code + (int64_t)((b * BOOKS + k) * STEPS + t) * bins,
                               ours + (t + delay[1 + k]) * width + vocab + (int64_t)k * bins, bins,
                               codes[b][1 + k][t], &worst, ce[1 + k]);
        }
        if (!(worst <= tol))
            fail_msg("batch %d is off by %g", b, worst);
        free(ours);
    }
    for (int k = 0; k <= BOOKS; k++) /* their own bar */
        if (!(fabs(ce[k][0] - ce[k][1]) <= 1e-6 * ce[k][0]))
            fail_msg("stream %d: a cross-entropy of %.9g, not %.9g", k, ce[k][1], ce[k][0]);
    mt_weights_close(&out);
    close_checkpoint(&o);
    free(at);
}

/* ---- cases.json ---- */

static int64_t whole(const json_t *c, const char *key)
{
    return json_integer_value(json_object_get(c, key));
}

static int32_t *read_frames(const json_t *c, int64_t *n)
{
    const json_t *list = json_object_get(c, "frames"), *frame, *v;
    size_t streams = json_array_size(json_array_get(list, 0)), i, k;
    int32_t *frames = malloc(json_array_size(list) * streams * sizeof(*frames));

    *n = (int64_t)json_array_size(list);
    json_array_foreach(list, i, frame) json_array_foreach(frame, k, v) frames[i * streams + k] =
        (int32_t)json_integer_value(v);
    return frames;
}

static void check_codes(struct opened *o, struct mt_weights *expected, const json_t *c)
{
    const json_t *kv = json_object_get(c, "kv"), *list = json_object_get(c, "at"), *v;
    struct mt_policy policy = {0};
    int64_t n, width, dims[8], at[64], n_at = (int64_t)json_array_size(list);
    int32_t *frames = read_frames(c, &n);
    const float *want = tensor(expected, json_string_value(json_object_get(c, "tensor")), dims);
    const char *name = json_string_value(json_object_get(c, "name"));
    double worst = 0;
    size_t i;

    json_array_foreach(list, i, v) at[i] = json_integer_value(v);
    if (kv)
        policy = (struct mt_policy){
            .bounded = true,
            .window = whole(kv, "window"),
            .sinks = whole(kv, "sinks"),
            .rope_absolute = !strcmp(json_string_value(json_object_get(kv, "rope")), "absolute")};
    float *got = teach(o, frames, n, at, n_at, policy, &width);
    assert_int_equal(dims[0], n_at);
    assert_int_equal(dims[1], width);
    for (int64_t k = 0; k < n_at * width; k++) {
        double d = fabs((double)got[k] - want[k]);
        worst = isnan(d) ? INFINITY : fmax(worst, d);
    }
    if (getenv("MT_GOLDEN_SHOW"))
        print_message("%s %-16s %.2e (at most %.0e)\n", o->dir, name, worst, tol);
    if (!(worst <= tol))
        fail_msg("%s: %s: off by %g, at most %g", o->dir, name, worst, tol);
    free(got);
    free(frames);
}

static void run_kind(const char *kind,
                     void (*check)(struct opened *, struct mt_weights *, const json_t *))
{
    static const char *const own[] = {"moshi-a", "moshi-b"};
    char dirs[4096], path[600], *save = NULL;
    int seen = 0, n = 0;

    for (size_t i = 0; i < MT_COUNT(own); i++)
        n += snprintf(dirs + n, sizeof(dirs) - (size_t)n, "%s%s/golden/%s", i ? ":" : "",
                      util_tests(), own[i]);
    if (getenv("MT_GOLDEN_MOSHI"))
        snprintf(dirs + n, sizeof(dirs) - (size_t)n, ":%s", getenv("MT_GOLDEN_MOSHI"));
    for (char *d = strtok_r(dirs, ":", &save); d; d = strtok_r(NULL, ":", &save)) {
        struct opened o;
        const json_t *c;
        size_t i;

        open_checkpoint(&o, d);
        struct mt_weights *expected = open_file(d, "expected.safetensors");
        snprintf(path, sizeof(path), "%s/cases.json", d);
        json_t *cases = json_load_file(path, 0, NULL);
        assert_non_null(cases);
        json_array_foreach(cases, i, c)
        {
            if (strcmp(json_string_value(json_object_get(c, "kind")), kind) != 0)
                continue;
            check(&o, expected, c);
            seen++;
        }
        json_decref(cases);
        mt_weights_close(&expected);
        close_checkpoint(&o);
    }
    assert_true(seen > 0);
}

/* Text of the ids; what is no text is marked so. */
static void check_pieces(struct opened *o, struct mt_weights *expected, const json_t *c)
{
    const struct mt_tokenizer *t = mt_model_tokenizer(o->m);
    const json_t *list = json_object_get(c, "pieces"), *v;
    size_t i, len;

    (void)expected;
    assert_non_null(t);
    assert_int_equal(mt_tokenizer_size(t), json_array_size(list));
    json_array_foreach(list, i, v)
    {
        const char *text = mt_tokenizer_bytes(t, (int32_t)i, &len);
        assert_int_equal(len, json_string_length(v));
        assert_memory_equal(text, json_string_value(v), len);
        assert_int_equal(mt_tokenizer_is_special(t, (int32_t)i), i < 4);
    }
}

/* ---- a call: what LMGen returns, and how it sounds ---- */

struct spoken {
    const json_t *steps;
    int64_t n;
};

static int take_step(void *ctx, int64_t pos, int32_t text, const int32_t *codes, int n)
{
    struct spoken *s = ctx;
    const json_t *want = json_array_get(s->steps, (size_t)s->n++);

    assert_int_equal(pos, s->n); /* the first step gives nothing */
    assert_int_equal(json_array_size(want), 1 + n);
    assert_int_equal(text, json_integer_value(json_array_get(want, 0)));
    for (int k = 0; k < n; k++)
        if (codes[k] != json_integer_value(json_array_get(want, (size_t)k + 1)))
            fail_msg("step %d, code %d is %d, not %d", (int)pos, k, codes[k],
                     (int)json_integer_value(json_array_get(want, (size_t)k + 1)));
    return 0;
}

/* The sample values of the file as they are, whatever its rate: as the reference took them. */
static float *load_clip(const char *dir, const json_t *c, int64_t *n)
{
    char path[1200];
    struct mt_err e = {0};
    float *pcm, *out;
    int64_t all, first = whole(c, "first");

    *n = whole(c, "samples");
    snprintf(path, sizeof(path), "%s/%s", dir, json_string_value(json_object_get(c, "file")));
    if (mt_sound_load(path, NULL, 16000, 16000 * 300, &pcm, &all, &e) < 0)
        fail_msg("%s", e.text);
    assert_true(first + *n <= all);
    out = malloc((size_t)*n * sizeof(*out));
    memcpy(out, pcm + first, (size_t)*n * sizeof(*out));
    free(pcm);
    return out;
}

static void check_call(struct opened *o, struct mt_weights *expected, const json_t *c)
{
    struct spoken s = {json_object_get(c, "steps"), 0};
    struct mt_err e = {0};
    struct mt_greedy g = {.kv_type = MT_F32, .block_tokens = 16, .ctx = &s, .step = take_step};

    (void)expected;
    float *pcm = load_clip(o->dir, c, &g.n_pcm);
    g.pcm = pcm;
    if (mt_greedy_run(o->m, &g, &e) < 0)
        fail_msg("%s", e.text);
    assert_int_equal(s.n, json_array_size(s.steps));
    free(pcm);
}

struct live {
    const float *want;
    const json_t *at, *steps;
    int64_t frames, size;
    double worst;
};

static void on_frame(void *ctx, const struct mt_record *r)
{
    struct live *l = ctx;
    const json_t *v;
    size_t i;

    assert_int_equal(r->status, MT_OK);
    assert_int_equal(r->frame, l->frames++);
    assert_int_equal(r->tokens_in, 1);
    assert_int_equal(r->tokens_out, 1);
    assert_int_equal(r->n_speech, r->frame ? l->size : 0);
    /* A token is drawn in the frame before the one that it sounds in. */
    if (r->frame + 1 < (int64_t)json_array_size(l->steps) + 1)
        assert_int_equal(r->tokens[0], json_integer_value(json_array_get(
                                           json_array_get(l->steps, (size_t)r->frame), 0)));
    json_array_foreach(l->at, i, v) for (int64_t k = 0;
                                         json_integer_value(v) + 1 == r->frame && k < l->size; k++)
        l->worst = fmax(l->worst, fabs((double)r->speech[k] - l->want[(int64_t)i * l->size + k]));
}

/* The same through the engine. */
static void check_live(struct opened *o, struct mt_weights *expected, const json_t *c)
{
    struct live l = {.at = json_object_get(c, "at"), .steps = json_object_get(c, "steps")};
    struct mt_clock clock = mt_clock_virtual(0);
    struct mt_engine_opts opts;
    struct mt_session_opts so;
    struct mt_engine *eng;
    struct mt_err e = {0};
    int64_t id, n, dims[8];
    const char *why;
    double retry;

    l.want = tensor(expected, json_string_value(json_object_get(c, "tensor")), dims);
    l.size = dims[1];
    mt_engine_defaults(&opts);
    opts.policy = (struct mt_policy){0};
    opts.pool_blocks = 64;
    opts.kv_type = MT_F32;
    opts.step_tokens = 64;
    opts.max_sessions = 4;
    opts.backlog = 1024;
    opts.events = (struct mt_engine_events){&l, on_frame, NULL};
    if (mt_engine_new(&eng, o->m, &opts, &clock, &e) < 0)
        fail_msg("%s", e.text);
    mt_session_defaults(&so);
    assert_int_equal(mt_engine_open(eng, &so, &id, &why, &retry, NULL), 0);
    float *pcm = load_clip(o->dir, c, &n);
    assert_int_equal(mt_engine_audio(eng, id, pcm, n, 0), n);
    mt_engine_end(eng, id, 0);
    while (mt_engine_tick(eng)) {
    }
    assert_int_equal(l.frames, (int64_t)json_array_size(l.steps) + 1);
    if (!(l.worst <= 5e-6))
        fail_msg("%s: the sound is off by %g", o->dir, l.worst);
    mt_engine_free(&eng);
    free(pcm);
}

/* ---- a session is itself, whoever else is there ---- */

enum { SESSIONS = 5, FRAMES = 12 };

struct crowd {
    int64_t watched; /* the session whose answers are kept */
    int32_t tokens[FRAMES];
    uint64_t sound;
    int n;
};

static void on_crowd(void *ctx, const struct mt_record *r)
{
    struct crowd *c = ctx;

    assert_int_equal(r->status, MT_OK);
    if (r->session != c->watched)
        return;
    c->tokens[c->n++] = r->tokens[0];
    c->sound = mt_hash(c->sound, r->speech, (size_t)r->n_speech * sizeof(*r->speech));
}

/* Session `me` of several that speak at once, or alone. */
static struct crowd run_crowd(int threads, int me, bool alone, int step_tokens)
{
    struct mt_model_opts mo = {.step_rows = step_tokens, .want_rows = step_tokens};
    struct mt_clock clock = mt_clock_virtual(0);
    struct crowd c = {.sound = MT_HASH_INIT};
    struct mt_engine_opts opts;
    struct mt_backend *be;
    struct mt_engine *eng;
    struct mt_model *m;
    struct mt_err e = {0};
    enum mt_cpu_tier tier;
    int64_t id[SESSIONS];
    const char *why;
    double retry;

    mt_engine_defaults(&opts);
    assert_int_equal(mt_policy_parse("window=8,sinks=2", &opts.policy, NULL), 0);
    opts.pool_blocks = 64;
    opts.step_tokens = step_tokens;
    opts.max_sessions = SESSIONS;
    opts.backlog = FRAMES;
    opts.events = (struct mt_engine_events){&c, on_crowd, NULL};
    if (mt_cpu_tier(&tier, &e) < 0 || mt_backend_cpu(&be, tier, threads, &e) < 0 ||
        mt_model_open(&m, "synth:moshi-tiny", be, &mo, &e) < 0 ||
        mt_engine_new(&eng, m, &opts, &clock, &e) < 0)
        fail_msg("%s", e.text);
    for (int i = 0; i < SESSIONS; i++) {
        struct mt_session_opts so;
        mt_session_defaults(&so);
        so.has_seed = true;
        so.seed = (uint64_t)i + 1;
        so.temperature = i % 2 ? 0.7f : 0;
        if (alone && i != me)
            continue;
        assert_int_equal(mt_engine_open(eng, &so, &id[i], &why, &retry, NULL), 0);
        if (i == me)
            c.watched = id[i];
    }
    for (int64_t k = 0; k < FRAMES; k++)
        for (int i = 0; i < SESSIONS; i++) {
            float pcm[1920];
            if (alone && i != me)
                continue;
            for (int64_t s = 0; s < 1920; s++)
                pcm[s] = (float)(mt_unit(mt_mix64((uint64_t)(s + 1920 * k + 100000 * i))) - 0.5);
            assert_int_equal(mt_engine_audio(eng, id[i], pcm, 1920, 0), 1920);
            if (i % 2 == 0 && k % 3)
                continue; /* these wait, so that companies change */
            while (mt_engine_tick(eng)) {
            }
        }
    while (mt_engine_tick(eng)) {
    }
    assert_int_equal(c.n, FRAMES);
    mt_engine_free(&eng);
    mt_model_close(&m);
    be->ops->free(be);
    return c;
}

static void test_company(void **state)
{
    (void)state;
    for (int me = 0; me < 2; me++) { /* greedy; sampled */
        struct crowd alone = run_crowd(1, me, true, 8), with = run_crowd(4, me, false, 8),
                     few = run_crowd(2, me, false, 2);

        alone.watched = with.watched = few.watched;
        assert_memory_equal(&alone, &with, sizeof(alone));
        assert_memory_equal(&alone, &few, sizeof(alone));
    }
}

static void test_call(void **state)
{
    (void)state;
    run_kind("call", check_call);
}

static void test_live(void **state)
{
    (void)state;
    run_kind("call", check_live);
}

static void test_pieces(void **state)
{
    (void)state;
    run_kind("pieces", check_pieces);
}

static void test_codes(void **state)
{
    (void)state;
    run_kind("codes", check_codes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_regression), cmocka_unit_test(test_codes),
        cmocka_unit_test(test_pieces),     cmocka_unit_test(test_call),
        cmocka_unit_test(test_live),       cmocka_unit_test(test_company),
    };

    return cmocka_run_group_tests_name("moshi", tests, NULL, NULL);
}
