/*
 * measure.c: how near a backend is to its device's limits, for `make gpu-check`: NDJSON of copies,
 * decode attention, products, whole decoding steps and calls, on weights and caches that are made
 * on the device. Any backend will do; on the CPU with --tiny it shows that it works.
 *
 *     gpu-measure [-b BACKEND] [--tiny] open | copy | attention | gemm
 *     gpu-measure [-b BACKEND] [--tiny] step MODEL SESSIONS…
 *     gpu-measure [-b BACKEND] [--tiny] play KEY=VALUE…
 *
 * Data that is read again is too much for a cache of 60 MB: layers and matrices take turns.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "card.h"

enum { MATS_MAX = 8 };

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
    struct copying x = {c, card_rows(c, n, width), card_noise(c, n, width),
                        calloc((size_t)n, sizeof(int)), n};
    struct card_time t;
    json_t *o;

    card_must("copy", x.index ? 0 : -ENOMEM);
    for (int i = 0; i < n; i++)
        x.index[i] = i;
    t = card_timed(c, copy_once, &x, x.dst);
    o = json_pack("{s:s, s:s}", "type", "copy", "by", "gather");
    card_put_time(o, &t);
    mt_json_set_real(o, "gb_s", 2e-9 * n * width * 4 / t.median);
    mt_json_line(stdout, o);
    card_rows_free(c, &x.dst);
    card_rows_free(c, &x.src);
    free(x.index);
}

/* ---- attention ---- */

struct attending {
    struct card_calls calls;
    struct mt_rows q, out;
};

static void attend_once(void *arg, int k)
{
    struct attending *a = arg;
    struct card_calls *x = &a->calls;

    x->c->be->ops->attention(x->c->be, x->kv, k % x->shape.layers, &x->batch, a->out, a->q,
                             MT_NO_ROWS);
}

static void attention(struct card *c, int heads, int kv_heads, enum mt_dtype type, int n,
                      int64_t context)
{
    const int hd = 128;
    const struct mt_kv_shape one = {1, kv_heads, hd, CARD_BLOCK, type};
    double bytes = (double)n * (double)context * (double)mt_kv_block_bytes(&one) / CARD_BLOCK;
    /* A cache holds 60 MB: take turns until it does not hold them. */
    int layers = bytes > 256e6 ? 1 : bytes * 64 > 256e6 ? (int)(256e6 / bytes) + 1 : 64;
    struct mt_kv_shape shape = {c->tiny ? 2 : layers, kv_heads, hd, CARD_BLOCK, type};
    struct attending x;
    struct card_time t;
    json_t *o;

    card_calls_new(&x.calls, c, shape, heads, n, context, 1);
    for (int i = 0; i < n; i++)
        x.calls.runs[i].index = context - 1; /* the row stands in the cache already */
    x.q = card_noise(c, n, heads * hd);
    x.out = card_rows(c, n, heads * hd);
    t = card_timed(c, attend_once, &x, x.out);
    o = json_pack("{s:s, s:i, s:i, s:i, s:s, s:i, s:I}", "type", "attention", "heads", heads,
                  "kv_heads", kv_heads, "head_dim", hd, "kv_type", mt_dtype_name(type), "sessions",
                  n, "context", (json_int_t)context);
    card_put_time(o, &t);
    mt_json_set_real(o, "gb_s", 1e-9 * bytes / t.median);
    mt_json_line(stdout, o);
    card_rows_free(c, &x.q);
    card_rows_free(c, &x.out);
    card_calls_free(&x.calls);
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

/* What the CPU reads as long as it has a matrix of it: until the end. */
struct kept {
    struct kept *next;
    _Alignas(16) unsigned char data[];
};
static struct kept *kept;

static void *keep(size_t bytes)
{
    struct kept *k = malloc(sizeof(*k) + bytes);

    card_must("a matrix", k ? 0 : -ENOMEM);
    k->next = kept;
    kept = k;
    return k->data;
}

static void let_go(void)
{
    while (kept) {
        struct kept *k = kept;
        kept = k->next;
        free(k);
    }
}

static struct mt_mat *matrix(struct card *c, enum mt_dtype type, int64_t rows_n, int64_t cols,
                             uint64_t key)
{
    const struct mt_recipe r = {.key = key, .step = 0x1p-22f};
    struct mt_bytes b = {.type = type, .rows = rows_n, .cols = cols};
    struct mt_mat *m;
    void *data;

    if (c->be->ops->mat_make) {
        card_must("a matrix", c->be->ops->mat_make(c->be, &m, &b, &r, 0));
        return m;
    }
    b.data = data = keep((size_t)(rows_n * mt_dtype_row_bytes(type, cols)));
    mt_recipe_make(data, type, &r, 0, rows_n * cols);
    card_must("a matrix", c->be->ops->mat_new(c->be, &m, &b));
    return m;
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
        struct card_time t;
        json_t *o;

        p.n = n[i];
        p.x = card_noise(c, p.n, in);
        p.out = card_rows(c, p.n, out);
        t = card_timed(c, multiply_once, &p, p.out);
        o = json_pack("{s:s, s:s, s:i, s:i, s:i}", "type", "gemm", "weights", mt_dtype_name(type),
                      "rows", p.n, "out", out, "in", in);
        card_put_time(o, &t);
        mt_json_set_real(o, "tflop_s", 2e-12 * p.n * out * in / t.median);
        mt_json_set_real(o, "gb_s", 1e-9 * (bytes + 4.0 * p.n * ((double)in + out)) / t.median);
        mt_json_line(stdout, o);
        card_rows_free(c, &p.x);
        card_rows_free(c, &p.out);
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
            card_must("experts", w[s][k] ? 0 : -ENOMEM);
            for (int i = 0; i < n_experts; i++)
                w[s][k][i] = matrix(c, MT_BF16, k == 2 ? hidden : inner, k == 2 ? inner : hidden,
                                    (uint64_t)(3 * i + k + 1) << 30);
        }
        set.gate = w[s][0];
        set.up = w[s][1];
        set.down = w[s][2];
        card_must("experts", c->be->ops->experts_new(c->be, &m.ex[s], &set, most));
    }
    m.x = card_noise(c, most, hidden);
    m.out = card_rows(c, most, hidden);
    m.logits = card_noise(c, most, n_experts);
    m.scratch = card_rows(c, (int64_t)most * top, hidden + 2 * inner);
    for (size_t i = 0; i < count; i++) {
        double idle = 1;
        struct card_time t;
        json_t *o;

        m.n = n[i];
        for (int k = 0; k < m.n && k < 256; k++) /* noise repeats after 256 rows */
            idle *= 1 - (double)top / n_experts;
        t = card_timed(c, mix_once, &m, m.out);
        o = json_pack("{s:s, s:i, s:i, s:i, s:i, s:i}", "type", "experts", "rows", m.n, "experts",
                      n_experts, "top", top, "hidden", hidden, "inner", inner);
        card_put_time(o, &t);
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
    card_rows_free(c, &m.x);
    card_rows_free(c, &m.out);
    card_rows_free(c, &m.logits);
    card_rows_free(c, &m.scratch);
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
        status = card_step(&c, argv + at + 1);
    else if (!strcmp(argv[at], "play"))
        status = card_play(&c, argv + at + 1);
    else if (strcmp(argv[at], "open") != 0) /* it is open */
        status = MT_EXIT_USAGE;
    mt_backend_close(&c.be);
    let_go();
    if (status != MT_EXIT_USAGE)
        return mt_close_stdout(status);
usage:
    mt_msg(
        MT_ERROR,
        "gpu-measure [-b BACKEND] [--tiny] open | copy | attention | gemm | step MODEL SESSIONS… "
        "| play KEY=VALUE…");
    return MT_EXIT_USAGE;
}
