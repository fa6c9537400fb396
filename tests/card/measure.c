/*
 * measure.c: how near a backend is to its device's limits, for `make gpu-check`: NDJSON of copies,
 * decode attention, products and whole decoding steps, on weights and caches that are made on the
 * device. Any backend will do; on the CPU with --tiny it shows that it works.
 *
 *     gpu-measure [-b BACKEND] [--tiny] copy | attention | gemm | step MODEL SESSIONS…
 *
 * Times are of the host's clock around work that was waited for, so that what the host costs is in
 * them; each figure is the median of RUNS times of at least `least` seconds. Data that is read
 * again is too much for a cache of 60 MB: layers and matrices take turns.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "model/model.h"

enum { RUNS = 5, BLOCK = 16, FILL = 4096, MATS_MAX = 8 };

struct card {
    struct mt_backend *be;
    struct mt_clock clock;
    bool tiny;
    double least;
};

static int fail(const char *what, int rc)
{
    mt_msg(MT_ERROR, "%s: %s", what, strerror(-rc));
    exit(MT_EXIT_FAILED);
}

static void must(const char *what, int rc)
{
    if (rc < 0)
        fail(what, rc);
}

static double now(struct card *c)
{
    return (double)c->clock.now_ns(&c->clock) / 1e9;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Waits for all that was queued. */
static void settle(struct card *c, struct mt_rows r)
{
    float f;

    c->be->ops->rows_get(c->be, &f, mt_rows_cols(r, 0, 1), 1);
}

struct timing {
    double median, best, worst; /* seconds a call */
};

/* fn(arg, k) is the k-th call; r is what the last one writes. */
static struct timing timed(struct card *c, void (*fn)(void *, int), void *arg, struct mt_rows r)
{
    double t[RUNS], start;
    int repeat = 1, k = 0;

    for (;;) {
        start = now(c);
        for (int i = 0; i < repeat; i++)
            fn(arg, k++);
        settle(c, r);
        if (now(c) - start > c->least)
            break;
        repeat *= 2;
    }
    for (int i = 0; i < RUNS; i++) {
        start = now(c);
        for (int j = 0; j < repeat; j++)
            fn(arg, k++);
        settle(c, r);
        t[i] = (now(c) - start) / repeat;
    }
    qsort(t, RUNS, sizeof(*t), by_value);
    return (struct timing){t[RUNS / 2], t[0], t[RUNS - 1]};
}

static void put_timing(json_t *o, const struct timing *t)
{
    mt_json_set_real(o, "us", 1e6 * t->median);
    mt_json_set_real(o, "us_best", 1e6 * t->best);
    mt_json_set_real(o, "us_worst", 1e6 * t->worst);
}

static struct mt_rows rows(struct card *c, int64_t n, int width)
{
    struct mt_rows r;

    must("rows", c->be->ops->rows_new(c->be, &r, n, width));
    return r;
}

/* Random rows: the first of a few, again and again. */
static struct mt_rows noise(struct card *c, int64_t n, int width)
{
    struct mt_rows r = rows(c, n, width);
    int64_t some = n < 256 ? n : 256;
    float *f = malloc((size_t)some * (size_t)width * sizeof(*f));

    must("noise", f ? 0 : -ENOMEM);
    for (int64_t i = 0; i < some * width; i++)
        f[i] = (float)(2 * mt_unit(mt_mix64((uint64_t)i)) - 1);
    for (int64_t at = 0; at < n; at += some)
        c->be->ops->rows_put(c->be, mt_rows_from(r, at), f, n - at < some ? n - at : some);
    free(f);
    return r;
}

static void rows_free(struct card *c, struct mt_rows *r)
{
    c->be->ops->rows_free(c->be, r);
}

/* ---- copies ---- */

struct copying {
    struct card *c;
    struct mt_rows dst, src;
    int *index, n;
};

static void copy_once(void *arg, int k)
{
    struct copying *x = arg;

    (void)k;
    x->c->be->ops->gather(x->c->be, x->dst, x->src, x->index, x->n);
}

static void copies(struct card *c)
{
    int width = 16384, n = c->tiny ? 16 : 16384; /* 1 GiB */
    struct copying x = {c, rows(c, n, width), noise(c, n, width), calloc((size_t)n, sizeof(int)),
                        n};
    struct timing t;
    json_t *o;

    must("copy", x.index ? 0 : -ENOMEM);
    for (int i = 0; i < n; i++)
        x.index[i] = i;
    t = timed(c, copy_once, &x, x.dst);
    o = json_pack("{s:s, s:s}", "type", "copy", "by", "gather");
    put_timing(o, &t);
    mt_json_set_real(o, "gb_s", 2e-9 * n * width * 4 / t.median);
    mt_json_line(stdout, o);
    rows_free(c, &x.dst);
    rows_free(c, &x.src);
    free(x.index);
}

/* ---- a cache of sessions ---- */

struct calls {
    struct card *c;
    struct mt_kv *kv;
    struct mt_kv_shape shape;
    int32_t *blocks;
    struct mt_run *runs;
    int n;
    int64_t context, each; /* blocks of a session */
    struct mt_batch batch;
    struct mt_rows q, q_sink, out; /* of attention */
};

/*
 * Random keys and values up to the context, by the operation that appends; blocks in random order.
 */
static void fill_cache(struct calls *x, int heads)
{
    struct card *c = x->c;
    int kv_width = x->shape.kv_heads * x->shape.head_dim, rows_max = c->tiny ? 64 : FILL;
    int64_t all = x->n * x->each;
    struct mt_rows q = noise(c, rows_max, heads * x->shape.head_dim);
    struct mt_rows k = noise(c, rows_max, kv_width), v = noise(c, rows_max, kv_width);
    struct mt_rope rope = {.kind = MT_ROPE_HALVES, .base = 1e6};

    for (int64_t i = 0; i < all; i++)
        x->blocks[i] = (int32_t)i;
    for (int64_t i = all - 1; i > 0; i--) {
        int64_t j = (int64_t)(mt_mix64((uint64_t)i) % (uint64_t)(i + 1));
        int32_t b = x->blocks[i];

        x->blocks[i] = x->blocks[j];
        x->blocks[j] = b;
    }
    for (int s = 0; s < x->n; s++)
        for (int64_t at = 0; at < x->context; at += rows_max) {
            int n = (int)(x->context - at < rows_max ? x->context - at : rows_max);
            struct mt_run run = x->runs[s];
            struct mt_batch b = {n, 1, &run};

            run.row = 0;
            run.n = n;
            run.index = at;
            for (int layer = 0; layer < x->shape.layers; layer++)
                c->be->ops->rope_append(c->be, x->kv, layer, rope, &b, q, MT_NO_ROWS, k, v);
            settle(c, q);
        }
    rows_free(c, &q);
    rows_free(c, &k);
    rows_free(c, &v);
}

/* n sessions of `context` tokens each, a row of each to come next; `spare` more have room. */
static void calls_new(struct calls *x, struct card *c, struct mt_kv_shape shape, int heads, int n,
                      int64_t context, int spare)
{
    *x = (struct calls){.c = c, .shape = shape, .n = n, .context = context};
    x->each = (context + spare + BLOCK) / BLOCK;
    must("the cache", c->be->ops->kv_new(c->be, &x->kv, &shape, n * x->each));
    x->blocks = calloc((size_t)(n * x->each), sizeof(*x->blocks));
    x->runs = calloc((size_t)n, sizeof(*x->runs));
    must("sessions", x->blocks && x->runs ? 0 : -ENOMEM);
    for (int i = 0; i < n; i++)
        x->runs[i] = (struct mt_run){.row = i,
                                     .n = 1,
                                     .index = context,
                                     .view = {.blocks = x->blocks + i * x->each,
                                              .window = INT64_MAX,
                                              .ring_blocks = INT32_MAX}};
    x->batch = (struct mt_batch){n, n, x->runs};
    fill_cache(x, heads);
}

static void calls_free(struct calls *x)
{
    x->c->be->ops->kv_free(x->c->be, x->kv);
    free(x->blocks);
    free(x->runs);
}

/* ---- attention ---- */

static void attend_once(void *arg, int k)
{
    struct calls *x = arg;

    x->c->be->ops->attention(x->c->be, x->kv, k % x->shape.layers, &x->batch, x->out, x->q,
                             x->q_sink);
}

static void attention(struct card *c, int heads, int kv_heads, enum mt_dtype type, int n,
                      int64_t context)
{
    const int hd = 128;
    const struct mt_kv_shape one = {1, kv_heads, hd, BLOCK, type};
    double bytes = (double)n * (double)context * (double)mt_kv_block_bytes(&one) / BLOCK;
    /* A cache holds 60 MB: take turns until it does not hold them. */
    int layers = bytes > 256e6 ? 1 : bytes * 64 > 256e6 ? (int)(256e6 / bytes) + 1 : 64;
    struct mt_kv_shape shape = {c->tiny ? 2 : layers, kv_heads, hd, BLOCK, type};
    struct calls x;
    struct timing t;
    json_t *o;

    calls_new(&x, c, shape, heads, n, context, 1);
    for (int i = 0; i < n; i++)
        x.runs[i].index = context - 1; /* the row stands in the cache already */
    x.q = noise(c, n, heads * hd);
    x.out = rows(c, n, heads * hd);
    t = timed(c, attend_once, &x, x.out);
    o = json_pack("{s:s, s:i, s:i, s:i, s:s, s:i, s:I}", "type", "attention", "heads", heads,
                  "kv_heads", kv_heads, "head_dim", hd, "kv_type", mt_dtype_name(type), "sessions",
                  n, "context", (json_int_t)context);
    put_timing(o, &t);
    mt_json_set_real(o, "gb_s", 1e-9 * bytes / t.median);
    mt_json_line(stdout, o);
    rows_free(c, &x.q);
    rows_free(c, &x.out);
    calls_free(&x);
}

static void attentions(struct card *c)
{
    static const int sessions[] = {32, 128, 256, 8, 1};
    static const int64_t contexts[] = {2048, 512, 8192};
    static const int heads[][2] = {{28, 4}, {32, 8}, {32, 32}};

    if (c->tiny) {
        attention(c, 8, 2, MT_BF16, 2, 64);
        attention(c, 8, 2, MT_INT8, 1, 33);
        return;
    }
    attention(c, 32, 4, MT_BF16, 32, 2048);
    for (size_t i = 0; i < MT_COUNT(heads); i++)
        attention(c, heads[i][0], heads[i][1], MT_BF16, 32, 2048);
    attention(c, 32, 4, MT_INT8, 32, 2048);
    attention(c, 32, 4, MT_FP8, 32, 2048);
    attention(c, 32, 4, MT_F16, 32, 2048);
    for (size_t k = 0; k < MT_COUNT(contexts); k++)
        for (size_t i = 0; i < MT_COUNT(sessions); i++)
            if (sessions[i] != 32 || contexts[k] != 2048)
                attention(c, 32, 4, MT_BF16, sessions[i], contexts[k]);
}

/* ---- products ---- */

struct product {
    struct card *c;
    struct mt_mat *w[MATS_MAX];
    int mats, n;
    struct mt_rows x, out;
};

static struct mt_mat *matrix(struct card *c, enum mt_dtype type, int64_t rows_n, int64_t cols,
                             uint64_t key)
{
    const struct mt_recipe r = {.key = key, .step = 0x1p-22f};
    struct mt_bytes b = {.type = type, .rows = rows_n, .cols = cols};
    struct mt_mat *m;
    void *data;

    if (c->be->ops->mat_make) {
        must("a matrix", c->be->ops->mat_make(c->be, &m, &b, &r, 0));
        return m;
    }
    b.data = data = malloc((size_t)(rows_n * mt_dtype_row_bytes(type, cols)));
    must("a matrix", data ? 0 : -ENOMEM);
    mt_recipe_make(data, type, &r, 0, rows_n * cols);
    must("a matrix", c->be->ops->mat_new(c->be, &m, &b));
    return m; /* the CPU reads data as long as there is one: it stays until the end */
}

static void multiply_once(void *arg, int k)
{
    struct product *p = arg;

    p->c->be->ops->linear(p->c->be, p->out, p->x, p->w[k % p->mats], NULL, MT_ACT_NONE, MT_NO_ROWS,
                          p->n);
}

/* x [n, in] by [out, in]. */
static void gemm(struct card *c, enum mt_dtype type, int out, int in, const int *n, size_t count)
{
    double bytes = (double)out * in * (double)mt_dtype_size(type);
    struct product p = {.c = c, .mats = 1 + (int)(256e6 / bytes)};

    p.mats = c->tiny || p.mats < 2 ? 2 : p.mats > MATS_MAX ? MATS_MAX : p.mats;
    for (int i = 0; i < p.mats; i++)
        p.w[i] = matrix(c, type, out, in, (uint64_t)i << 40);
    for (size_t i = 0; i < count; i++) {
        struct timing t;
        json_t *o;

        p.n = n[i];
        p.x = noise(c, p.n, in);
        p.out = rows(c, p.n, out);
        t = timed(c, multiply_once, &p, p.out);
        o = json_pack("{s:s, s:s, s:i, s:i, s:i}", "type", "gemm", "weights", mt_dtype_name(type),
                      "rows", p.n, "out", out, "in", in);
        put_timing(o, &t);
        mt_json_set_real(o, "tflop_s", 2e-12 * p.n * out * in / t.median);
        mt_json_set_real(o, "gb_s", 1e-9 * (bytes + 4.0 * p.n * ((double)in + out)) / t.median);
        mt_json_line(stdout, o);
        rows_free(c, &p.x);
        rows_free(c, &p.out);
    }
    for (int i = 0; i < p.mats; i++)
        c->be->ops->mat_free(c->be, p.w[i]);
}

struct mixture {
    struct card *c;
    struct mt_experts *ex[MATS_MAX];
    int sets, n;
    struct mt_rows x, out, logits, scratch;
};

static void mix_once(void *arg, int k)
{
    struct mixture *m = arg;

    m->c->be->ops->experts(m->c->be, m->out, m->x, m->logits, m->ex[k % m->sets], MT_NO_ROWS,
                           m->scratch, m->n);
}

/* A layer of experts; bytes: of those that n random rows touch in the mean. */
static void experts(struct card *c, int n_experts, int top, int hidden, int inner, const int *n,
                    size_t count)
{
    int most = n[count - 1];
    double each = 3.0 * hidden * inner * 2;
    struct mixture m = {.c = c, .sets = 2};
    struct mt_mat **w[2][3];

    for (int s = 0; s < m.sets; s++) {
        struct mt_expert_set set = {.n = n_experts, .top = top, .norm = true};

        for (int k = 0; k < 3; k++) {
            w[s][k] = calloc((size_t)n_experts, sizeof(struct mt_mat *));
            must("experts", w[s][k] ? 0 : -ENOMEM);
            for (int i = 0; i < n_experts; i++)
                w[s][k][i] = matrix(c, MT_BF16, k == 2 ? hidden : inner, k == 2 ? inner : hidden,
                                    (uint64_t)(3 * i + k + 1) << 30);
        }
        set.gate = w[s][0];
        set.up = w[s][1];
        set.down = w[s][2];
        must("experts", c->be->ops->experts_new(c->be, &m.ex[s], &set, most));
    }
    m.x = noise(c, most, hidden);
    m.out = rows(c, most, hidden);
    m.logits = noise(c, most, n_experts);
    m.scratch = rows(c, (int64_t)most * top, hidden + 2 * inner);
    for (size_t i = 0; i < count; i++) {
        double idle = 1;
        struct timing t;
        json_t *o;

        m.n = n[i];
        for (int k = 0; k < m.n && k < 256; k++) /* noise repeats after 256 rows */
            idle *= 1 - (double)top / n_experts;
        t = timed(c, mix_once, &m, m.out);
        o = json_pack("{s:s, s:i, s:i, s:i, s:i, s:i}", "type", "experts", "rows", m.n, "experts",
                      n_experts, "top", top, "hidden", hidden, "inner", inner);
        put_timing(o, &t);
        mt_json_set_real(o, "tflop_s", 1e-12 * m.n * top * each / t.median);
        mt_json_set_real(o, "gb_s", 1e-9 * (1 - idle) * n_experts * each / t.median);
        mt_json_line(stdout, o);
    }
    for (int s = 0; s < m.sets; s++) {
        c->be->ops->experts_free(c->be, m.ex[s]);
        for (int k = 0; k < 3; k++) {
            for (int i = 0; i < n_experts; i++)
                c->be->ops->mat_free(c->be, w[s][k][i]);
            free(w[s][k]);
        }
    }
    rows_free(c, &m.x);
    rows_free(c, &m.out);
    rows_free(c, &m.logits);
    rows_free(c, &m.scratch);
}

static void gemms(struct card *c)
{
    static const int few[] = {1, 3}, n[] = {1, 8, 32, 128, 256, 2048};

    if (c->tiny) {
        gemm(c, MT_BF16, 48, 64, few, MT_COUNT(few));
        experts(c, 4, 2, 32, 16, few, MT_COUNT(few));
        return;
    }
    gemm(c, MT_BF16, 18944, 3584, n, MT_COUNT(n));      /* Qwen2.5-Omni-7B: gate */
    gemm(c, MT_BF16, 3584, 18944, n, MT_COUNT(n));      /* down */
    experts(c, 128, 8, 2048, 768, n, MT_COUNT(n) - 1);  /* Qwen3-Omni-30B */
    gemm(c, MT_BF16, 151936, 2048, n, MT_COUNT(n) - 1); /* its head */
    gemm(c, MT_BF16, 8192, 8192, n + 5, 1);             /* how fast products are at all */
}

/* ---- a decoding step ---- */

struct decoding {
    struct mt_model *m;
    struct calls calls;
    int32_t *ids;
    int *want;
    struct mt_sample *params;
    struct mt_audio_rows audio;
    struct mt_rows logits;
};

/* Rows through all layers, and the next token of each, which the host sees. */
static void step_once(void *arg, int k)
{
    struct decoding *d = arg;
    struct mt_backend *be = d->calls.c->be;
    struct mt_step s = {.batch = d->calls.batch,
                        .ids = d->ids,
                        .want = d->want,
                        .n_want = d->calls.n,
                        .audio = &d->audio,
                        .n_audio = d->audio.n ? 1 : 0};

    for (int i = 0; i < d->calls.n; i++) { /* at the same place: contexts do not grow */
        d->params[i].draw = (uint64_t)k;
        if (d->ids[i] < 0)
            d->ids[i] = 0; /* the model is random: only that there is a token matters */
    }
    must("a step", mt_model_step(d->m, d->calls.kv, &s, &d->logits));
    be->ops->sample(be, d->logits, d->params, d->ids, d->calls.n);
}

static void decode(struct card *c, struct mt_model *m, int n, int64_t context)
{
    const struct mt_model_info *info = mt_model_info(m);
    struct mt_kv_shape shape = mt_model_kv_shape(m, BLOCK, MT_BF16);
    int64_t left, all, token = mt_kv_block_bytes(&shape) / BLOCK;
    struct decoding d = {.m = m};
    struct timing t;
    json_t *o;

    /* As long contexts as fit, leaving a tenth. */
    if (c->be->ops->memory && c->be->ops->memory(c->be, &left, &all) == 0)
        while (context > BLOCK && n * (context + 2 * BLOCK) * token > left - all / 10)
            context /= 2;
    calls_new(&d.calls, c, shape, info->heads, n, context, 1);
    d.ids = calloc((size_t)n, sizeof(*d.ids));
    d.want = calloc((size_t)n, sizeof(*d.want));
    d.params = calloc((size_t)n, sizeof(*d.params));
    must("a step", d.ids && d.want && d.params ? 0 : -ENOMEM);
    for (int i = 0; i < n; i++) {
        d.want[i] = i;
        d.ids[i] = (int32_t)(mt_mix64((uint64_t)i) % 1000);
        d.params[i] = (struct mt_sample){.top_p = 1, .seed = (uint64_t)i};
    }
    if (info->codebooks) /* every position has codes; what they are does not matter */
        d.audio = (struct mt_audio_rows){0, n, noise(c, n, info->hidden)};
    step_once(&d, 0);
    t = timed(c, step_once, &d, d.logits);
    o = json_pack("{s:s, s:s, s:i, s:I, s:I, s:I}", "type", "step", "model", info->name, "sessions",
                  n, "context", (json_int_t)context, "kv_bytes_token", (json_int_t)token,
                  "weight_bytes", (json_int_t)info->weight_bytes);
    put_timing(o, &t);
    mt_json_line(stdout, o);
    fflush(stdout);
    if (d.audio.n)
        rows_free(c, &d.audio.src);
    calls_free(&d.calls);
    free(d.ids);
    free(d.want);
    free(d.params);
}

static int steps(struct card *c, char **arg)
{
    struct mt_model_opts mo = {.step_rows = 512, .want_rows = 256};
    const char *name = *arg++;
    struct mt_err e = {0};
    struct mt_model *m;
    double t = now(c);
    int64_t n;
    json_t *o;

    if (!name)
        return MT_EXIT_USAGE;
    if (mt_model_open(&m, name, c->be, &mo, &e) < 0) {
        mt_msg(MT_ERROR, "%s", e.text);
        return MT_EXIT_FAILED;
    }
    o = json_pack("{s:s, s:s, s:I}", "type", "open", "model", mt_model_info(m)->name,
                  "weight_bytes", (json_int_t)mt_model_info(m)->weight_bytes);
    mt_json_set_real(o, "seconds", now(c) - t);
    mt_json_line(stdout, o);
    for (; *arg; arg++) {
        if (mt_parse_i64(*arg, 1, 256, &n) < 0)
            return MT_EXIT_USAGE;
        decode(c, m, (int)n, c->tiny ? 32 : 2048);
    }
    mt_model_close(&m);
    return MT_EXIT_OK;
}

int main(int argc, char **argv)
{
    struct card c = {.clock = mt_clock_real()};
    const char *backend = "cpu";
    struct mt_err e = {0};
    int at = 1, status = MT_EXIT_OK;

    mt_msg_program(argv[0]);
    if (at + 1 < argc && !strcmp(argv[at], "-b")) {
        backend = argv[at + 1];
        at += 2;
    }
    if (at < argc && !strcmp(argv[at], "--tiny")) {
        c.tiny = true;
        at++;
    }
    c.least = c.tiny ? 0 : 0.03;
    if (at >= argc)
        goto usage;
    if (mt_backend_open(&c.be, backend, 0, &e) < 0) {
        mt_msg(MT_ERROR, "%s", e.text);
        return MT_EXIT_FAILED;
    }
    if (!strcmp(argv[at], "copy"))
        copies(&c);
    else if (!strcmp(argv[at], "attention"))
        attentions(&c);
    else if (!strcmp(argv[at], "gemm"))
        gemms(&c);
    else if (!strcmp(argv[at], "step"))
        status = steps(&c, argv + at + 1);
    else
        status = MT_EXIT_USAGE;
    mt_backend_close(&c.be);
    if (status != MT_EXIT_USAGE)
        return mt_close_stdout(status);
usage:
    mt_msg(MT_ERROR,
           "gpu-measure [-b BACKEND] [--tiny] copy | attention | gemm | step MODEL SESSIONS…");
    return MT_EXIT_USAGE;
}
