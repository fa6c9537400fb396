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
    enum mt_cpu_tier tier;

    snprintf(o->dir, sizeof(o->dir), "%s", dir);
    if (mt_cpu_tier(&tier, &e) < 0 || mt_backend_cpu(&o->be, tier, 2, &e) < 0 ||
        mt_model_open(&o->m, dir, o->be, &opts, &e) < 0)
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
        cmocka_unit_test(test_regression),
        cmocka_unit_test(test_codes),
        cmocka_unit_test(test_pieces),
    };

    return cmocka_run_group_tests_name("moshi", tests, NULL, NULL);
}
