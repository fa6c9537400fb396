/*
 * bench_ops.c: a line of the roofline for every operation of the table but linear, which has a
 * bench of its own: at the sizes of Qwen2.5-Omni-7B (its tower for the encoder's, Qwen3-Omni's
 * layer of experts and stem, Mimi's for the codec's), with what it has to move and to compute at
 * least. Where all of that lies in the caches, more than 100 % of the memory's rate is possible.
 * MT_CPU caps the tier.
 *
 *     bench_ops [THREADS]          default: all
 */
#include "tests/bench/peak.h"

#include <math.h>

enum {
    ROWS = 64,   /* of a step */
    WIDE = 3584, /* hidden */
    INNER = 18944,
    HEADS = 28,
    KV_HEADS = 4,
    HEAD_DIM = 128,
    BLOCK = 16,
    WINDOW = 1024,
    SINKS = 4,
    SESSIONS = 16,
    TOWER = 1280,
    TOWER_HEADS = 20,
    CLIP = 100, /* rows of a tower's block of 2 s */
    VOCAB = 152064,
    IMAGE = 480, /* channels of Qwen3-Omni's stem, */
    IMAGE_HIGH = 64,
    CODEC = 512,
    BINS = 2048,
    CODE = 256,
    EXPERTS = 128,
    TOP = 8,
    MOE_WIDE = 2048,
    MOE_INNER = 768
};

struct ops {
    struct mt_backend *be;
    const struct mt_ops *op;
    int n; /* rows of the call */
    struct mt_rows x, y, z, logits, scratch;
    struct mt_mat *vec, *bias, *table, *w[3];
    struct mt_conv conv;
    struct mt_rows past[SESSIONS];
    struct mt_span span[2];
    struct mt_experts *experts;
    struct mt_kv *kv, *copy;
    struct mt_run runs[SESSIONS];
    struct mt_batch batch;
    struct mt_sample sample[ROWS];
    int32_t ids[ROWS];
    int index[ROWS];
    float *host;
};

static void rms_norm(void *arg)
{
    struct ops *o = arg;

    o->op->rms_norm(o->be, o->y, o->x, o->vec, 1e-6f, o->n);
}

static void layer_norm(void *arg)
{
    struct ops *o = arg;

    o->op->layer_norm(o->be, o->y, o->x, o->vec, o->bias, 1e-5f, o->n);
}

static void gated(void *arg)
{
    struct ops *o = arg;

    o->op->gated(o->be, o->y, o->x, o->z, o->n);
}

static void activate(void *arg)
{
    struct ops *o = arg;

    o->op->activate(o->be, o->y, o->x, MT_ACT_GELU, o->n);
}

static void scaled_add(void *arg)
{
    struct ops *o = arg;

    o->op->scaled_add(o->be, o->y, o->x, o->vec, o->n);
}

static void gather(void *arg)
{
    struct ops *o = arg;

    o->op->gather(o->be, o->y, o->x, o->index, o->n);
}

static void rows_put(void *arg)
{
    struct ops *o = arg;

    o->op->rows_put(o->be, o->y, o->host, o->n);
}

static void rows_get(void *arg)
{
    struct ops *o = arg;

    o->op->rows_get(o->be, o->host, o->x, o->n);
}

static void embed(void *arg)
{
    struct ops *o = arg;

    o->op->embed(o->be, o->y, o->table, o->ids, o->n);
}

static void embed_add(void *arg)
{
    struct ops *o = arg;

    o->op->embed_add(o->be, o->y, o->table, o->ids, o->n);
}

static void linears(void *arg)
{
    struct ops *o = arg;
    int kv = KV_HEADS * HEAD_DIM;
    struct mt_linear list[] = {{.out = o->y, .w = o->w[0]},
                               {.out = mt_rows_cols(o->z, 0, kv), .w = o->w[1]},
                               {.out = mt_rows_cols(o->z, kv, kv), .w = o->w[2]}};

    o->op->linears(o->be, o->x, list, MT_COUNT(list), o->n);
}

static void experts(void *arg)
{
    struct ops *o = arg;

    o->op->experts(o->be, o->y, o->x, o->logits, o->experts, MT_NO_ROWS, o->scratch, o->n);
}

static void rope_append(void *arg)
{
    struct ops *o = arg;

    o->op->rope_append(o->be, o->kv, 0, (struct mt_rope){MT_ROPE_HALVES, 1e6, .q_norm = NULL},
                       &o->batch, o->x, o->z, mt_rows_cols(o->scratch, 0, KV_HEADS * HEAD_DIM),
                       mt_rows_cols(o->scratch, KV_HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM));
}

static void attention(void *arg)
{
    struct ops *o = arg;

    o->op->attention(o->be, o->kv, 0, &o->batch, o->y, o->x, o->z);
}

static void attention_mass(void *arg)
{
    struct ops *o = arg;

    o->op->attention_mass(o->be, o->kv, 0, &o->batch, o->x, o->z, SINKS, o->host);
}

static void kv_copy(void *arg)
{
    struct ops *o = arg;

    o->op->kv_copy(o->be, o->copy, &o->runs[0].view, o->kv, &o->runs[0].view, WINDOW);
}

static void span_attention(void *arg)
{
    struct ops *o = arg;

    o->op->span_attention(o->be, o->y, o->x, o->z, o->scratch, TOWER_HEADS, o->span, 2);
}

static void conv1d(void *arg)
{
    struct ops *o = arg;

    o->op->conv1d(o->be, o->y, o->x, o->w[0], o->bias, 3, 2, 1, MT_ACT_GELU, o->span, 2,
                  o->scratch);
}

static void conv2d(void *arg)
{
    struct ops *o = arg;

    o->op->conv2d(o->be, o->y, o->x, o->w[0], o->bias, IMAGE_HIGH, 3, 2, 1, MT_ACT_GELU, o->span, 1,
                  o->scratch, ROWS);
}

static void conv(void *arg)
{
    struct ops *o = arg;

    o->op->conv(o->be, o->y, o->x, o->w[0], NULL, &o->conv, MT_ACT_ELU, MT_NO_ROWS, o->past,
                SESSIONS, o->n / SESSIONS, o->scratch);
}

static void conv_each(void *arg)
{
    struct ops *o = arg;

    o->op->conv_each(o->be, o->y, o->x, o->w[0], &o->conv, o->past, SESSIONS, o->n / SESSIONS);
}

static void add_positions(void *arg)
{
    struct ops *o = arg;

    o->op->add_positions(o->be, o->x, o->table, o->span, 2);
}

static void mean_rows(void *arg)
{
    struct ops *o = arg;

    o->op->mean_rows(o->be, o->y, o->x, 2, o->span, 2);
}

static void quantize(void *arg)
{
    struct ops *o = arg;

    o->op->quantize(o->be, o->ids, o->x, o->table, o->n);
}

static void sample(void *arg)
{
    struct ops *o = arg;

    o->op->sample(o->be, o->x, o->sample, o->ids, o->n);
}

/* ---- what they work on ---- */

static float *noise(size_t n)
{
    float *f = bench_alloc(n, sizeof(*f));

    for (size_t i = 0; i < n; i++)
        f[i] = (float)(mt_unit(mt_mix64(i)) - 0.5);
    return f;
}

static struct mt_rows rows(const struct ops *o, int64_t n, int width)
{
    struct mt_rows r;
    float *f = noise((size_t)n * (size_t)width);

    bench_need(o->op->rows_new(o->be, &r, n, width), "rows");
    o->op->rows_put(o->be, r, f, n);
    free(f);
    return r;
}

/* Bytes 0x2c..: small numbers in every float type. They stay: a process is one bench. */
static struct mt_mat *mat(const struct ops *o, enum mt_dtype type, int64_t n, int64_t cols)
{
    size_t bytes = (size_t)(n * mt_dtype_row_bytes(type, cols));
    void *w = bench_alloc(bytes, 1);
    struct mt_mat *m;

    memset(w, 0x2c, bytes);
    bench_need(o->op->mat_new(o->be, &m, &(struct mt_bytes){w, type, n, cols, false}), "matrix");
    return m;
}

static void rows_gone(struct ops *o)
{
    o->op->rows_free(o->be, &o->x);
    o->op->rows_free(o->be, &o->y);
    o->op->rows_free(o->be, &o->z);
    o->op->rows_free(o->be, &o->scratch);
}

struct of {
    const struct peak *peak;
    int threads;
};

static void line(const struct of *f, struct ops *o, const char *name, enum mt_dtype type, int n,
                 double bytes, double ops, void (*fn)(void *))
{
    struct bench_row r = {.op = name,
                          .type = mt_dtype_name(type),
                          .rows = o->n = n,
                          .threads = f->threads,
                          .bytes = bytes,
                          .ops = ops,
                          .int8 = type > MT_FP8};

    bench_measure(f->peak, &r, fn, o);
}

/* Operations that touch each cell of their rows once. */
static void bench_rows(const struct of *f, struct ops *o)
{
    static const int counts[] = {1, ROWS};

    o->x = rows(o, ROWS, INNER);
    o->y = rows(o, ROWS, INNER);
    o->z = rows(o, ROWS, INNER);
    o->vec = mat(o, MT_F32, 1, WIDE);
    o->bias = mat(o, MT_F32, 1, WIDE);
    o->table = mat(o, MT_BF16, ROWS * 64, WIDE);
    o->host = noise((size_t)ROWS * INNER);
    for (int i = 0; i < ROWS; i++) {
        o->ids[i] = i * 61;
        o->index[i] = (i * 7) % ROWS;
    }
    for (unsigned i = 0; i < MT_COUNT(counts); i++) {
        int n = counts[i];
        double inner = 4.0 * n * INNER, wide = 4.0 * n * WIDE;

        line(f, o, "gated", MT_F32, n, 3 * inner, 0.5 * inner, gated);
        line(f, o, "activate", MT_F32, n, 2 * inner, 0.25 * inner, activate);
        line(f, o, "gather", MT_F32, n, 2 * inner, 0, gather);
        line(f, o, "rows_put", MT_F32, n, 2 * inner, 0, rows_put);
        line(f, o, "rows_get", MT_F32, n, 2 * inner, 0, rows_get);
        o->x.width = o->y.width = o->z.width = WIDE;
        line(f, o, "rms_norm", MT_F32, n, 2 * wide, wide, rms_norm);
        line(f, o, "layer_norm", MT_F32, n, 2 * wide, 1.5 * wide, layer_norm);
        line(f, o, "scaled_add", MT_F32, n, 3 * wide, 0.5 * wide, scaled_add);
        line(f, o, "embed", MT_BF16, n, 1.5 * wide, 0, embed);
        line(f, o, "embed_add", MT_BF16, n, 2.5 * wide, 0.25 * wide, embed_add);
        o->x.width = o->y.width = o->z.width = INNER;
    }
    free(o->host);
    rows_gone(o);
}

/* Q, K and V of a layer. */
static void bench_linears(const struct of *f, struct ops *o)
{
    static const int counts[] = {1, 8, ROWS};
    int kv = KV_HEADS * HEAD_DIM;

    o->x = rows(o, ROWS, WIDE);
    o->y = rows(o, ROWS, WIDE);
    o->z = rows(o, ROWS, 2 * kv);
    for (int t = 0; t < 2; t++) {
        enum mt_dtype type = t ? MT_Q4_K : MT_BF16;
        double cells = (double)WIDE * (WIDE + 2.0 * kv);

        o->w[0] = mat(o, type, WIDE, WIDE);
        o->w[1] = mat(o, type, kv, WIDE);
        o->w[2] = mat(o, type, kv, WIDE);
        for (unsigned i = 0; i < MT_COUNT(counts); i++)
            line(f, o, "linears", type, counts[i],
                 cells * (double)mt_dtype_block_bytes(type) / mt_dtype_block(type),
                 2 * cells * counts[i], linears);
    }
    rows_gone(o);
}

/* How many experts n rows of logits need between them. */
static int experts_needed(const float *logits, int n)
{
    bool need[EXPERTS] = {false};
    int count = 0;

    for (int r = 0; r < n; r++) {
        const float *l = logits + (ptrdiff_t)r * EXPERTS;

        for (int e = 0; e < EXPERTS; e++) {
            int higher = 0;

            for (int k = 0; k < EXPERTS; k++)
                higher += l[k] > l[e];
            need[e] |= higher < TOP;
        }
    }
    for (int e = 0; e < EXPERTS; e++)
        count += need[e];
    return count;
}

static void bench_experts(const struct of *f, struct ops *o)
{
    static const int counts[] = {1, 8, ROWS};
    static struct mt_mat *m[3][EXPERTS];
    float *logits = noise((size_t)ROWS * EXPERTS);
    struct mt_expert_set set = {EXPERTS, TOP, true, m[0], m[1], m[2]};

    for (int i = 0; i < 3 * EXPERTS; i++)
        m[i / EXPERTS][i % EXPERTS] = i < 2 * EXPERTS ? mat(o, MT_Q4_K, MOE_INNER, MOE_WIDE)
                                                      : mat(o, MT_Q4_K, MOE_WIDE, MOE_INNER);
    bench_need(o->op->experts_new(o->be, &o->experts, &set, ROWS), "experts");
    o->x = rows(o, ROWS, MOE_WIDE);
    o->y = rows(o, ROWS, MOE_WIDE);
    o->logits = rows(o, ROWS, EXPERTS);
    o->scratch = rows(o, (int64_t)ROWS * TOP, MOE_WIDE + 2 * MOE_INNER);
    for (unsigned i = 0; i < MT_COUNT(counts); i++) {
        double cells = 3.0 * MOE_WIDE * MOE_INNER;

        line(f, o, "experts", MT_Q4_K, counts[i],
             experts_needed(logits, counts[i]) * cells * mt_dtype_block_bytes(MT_Q4_K) /
                 mt_dtype_block(MT_Q4_K),
             2 * cells * TOP * counts[i], experts);
    }
    o->op->experts_free(o->be, o->experts);
    for (int i = 0; i < 3 * EXPERTS; i++)
        o->op->mat_free(o->be, m[i / EXPERTS][i % EXPERTS]);
    o->op->rows_free(o->be, &o->logits);
    rows_gone(o);
    free(logits);
}

/* `sessions` windows behind their sinks, each with n rows in the step. */
static void bench_cache(const struct of *f, struct ops *o, enum mt_dtype type, int sessions, int n)
{
    struct mt_kv_shape shape = {1, KV_HEADS, HEAD_DIM, BLOCK, type};
    int ring = (WINDOW + n - 1 + BLOCK - 1) / BLOCK + 1, each = ring + 1, all = sessions * n;
    int32_t *blocks = bench_alloc((size_t)sessions * (size_t)each, sizeof(*blocks));
    double token = 2.0 * KV_HEADS * HEAD_DIM * (double)mt_dtype_size(type),
           heads = HEADS * HEAD_DIM, keys = (double)sessions * (WINDOW + SINKS);

    bench_need(o->op->kv_new(o->be, &o->kv, &shape, (int64_t)sessions * each), "cache");
    o->x = rows(o, all, HEADS * HEAD_DIM);
    o->y = rows(o, all, HEADS * HEAD_DIM);
    o->z = rows(o, all, HEADS * HEAD_DIM);
    o->scratch = rows(o, all, 2 * KV_HEADS * HEAD_DIM);
    for (int i = 0; i < sessions * each; i++)
        blocks[i] = i;
    for (int i = 0; i < sessions; i++)
        o->runs[i] = (struct mt_run){i * n,
                                     n,
                                     10L * WINDOW,
                                     {.blocks = blocks + (ptrdiff_t)i * each,
                                      .sinks = SINKS,
                                      .ring_blocks = ring,
                                      .window = WINDOW,
                                      .sink_reach = WINDOW + SINKS - 1}};
    o->batch = (struct mt_batch){all, sessions, o->runs};
    for (int i = 0; i < ring; i++) { /* all of the ring is touched */
        rope_append(o);
        for (int r = 0; r < sessions; r++)
            o->runs[r].index += BLOCK;
    }
    line(f, o, "attention", type, all, keys * token, 4 * n * keys * heads, attention);
    line(f, o, "rope_append", type, all, all * (4 * (3 * heads + 2 * KV_HEADS * HEAD_DIM) + token),
         all * 9 * heads, rope_append);
    if (sessions == SESSIONS && type == MT_BF16) {
        o->host = bench_alloc((size_t)all * HEADS, (SINKS + MT_MASS_BINS) * sizeof(float));
        line(f, o, "attention_mass", type, all, keys * token / 2, 2 * n * keys * heads,
             attention_mass);
        free(o->host);
        bench_need(o->op->kv_new(o->be, &o->copy, &shape, (int64_t)sessions * each), "cache");
        line(f, o, "kv_copy", type, WINDOW, 2 * WINDOW * token, 0, kv_copy);
        o->op->kv_free(o->be, o->copy);
    }
    o->op->kv_free(o->be, o->kv);
    rows_gone(o);
    free(blocks);
}

/* The towers: two blocks of two seconds. */
static void bench_encoder(const struct of *f, struct ops *o)
{
    int all = 2 * CLIP;
    double cells = 3.0 * TOWER * TOWER, high = IMAGE_HIGH / 2.0;

    o->span[0] = (struct mt_span){0, CLIP};
    o->span[1] = (struct mt_span){CLIP, CLIP};
    o->x = rows(o, all, TOWER);
    o->y = rows(o, all, TOWER);
    o->z = rows(o, all, TOWER);
    o->scratch = rows(o, all, 3 * TOWER);
    o->bias = mat(o, MT_F32, 1, TOWER);
    o->table = mat(o, MT_F32, CLIP, TOWER);
    o->w[0] = mat(o, MT_BF16, TOWER, 3L * TOWER);
    o->scratch.width = TOWER;
    line(f, o, "span_attention", MT_F32, all, 4.0 * 4 * all * TOWER, 4.0 * all * CLIP * TOWER,
         span_attention);
    o->scratch.width = 3 * TOWER;
    line(f, o, "conv1d", MT_BF16, all, 2 * cells, cells * all, conv1d);
    line(f, o, "add_positions", MT_F32, all, 3.0 * 4 * all * TOWER, (double)all * TOWER,
         add_positions);
    line(f, o, "mean_rows", MT_F32, all, 1.5 * 4 * all * TOWER, (double)all * TOWER, mean_rows);
    rows_gone(o);
    o->span[0].n = ROWS;
    o->x = rows(o, ROWS, IMAGE * IMAGE_HIGH);
    o->y = rows(o, ROWS / 2, IMAGE * IMAGE_HIGH / 2);
    o->scratch = rows(o, ROWS, IMAGE * 10);
    o->bias = mat(o, MT_F32, 1, IMAGE);
    o->w[0] = mat(o, MT_BF16, IMAGE, IMAGE * 9);
    line(f, o, "conv2d", MT_BF16, ROWS, 4.0 * ROWS * IMAGE * IMAGE_HIGH,
         2.0 * IMAGE * IMAGE * 9 * high * ROWS / 2, conv2d);
    rows_gone(o);
}

static void bench_conv(const struct of *f, struct ops *o, const char *name, struct mt_conv c,
                       int64_t out, bool each)
{
    int up = c.transposed ? c.stride : 1;
    double cells = (double)c.kernel * CODEC * (double)(each ? 1 : out);
    /* As released: [out, in, kernel], or [in, out, kernel], or a filter a channel. */
    struct mt_bytes b = {NULL, MT_F32, c.transposed ? CODEC : out,
                         c.kernel * (c.transposed ? (each ? 1 : out) : CODEC), false};
    float *w = noise((size_t)(b.rows * b.cols));

    b.data = w;
    o->conv = c;
    o->x = rows(o, ROWS, CODEC);
    o->y = rows(o, ROWS, (int)(up * out));
    o->scratch = rows(o, ROWS, c.kernel * CODEC);
    for (int i = 0; i < SESSIONS; i++)
        o->past[i] = rows(o, mt_conv_past(&c), CODEC);
    bench_need(each ? o->op->mat_new(o->be, &o->w[0], &b)
                    : o->op->conv_new(o->be, &o->w[0], &b, &c),
               "convolution");
    line(f, o, name, MT_F32, ROWS, 4 * cells, 2 * cells * ROWS, each ? conv_each : conv);
    o->op->mat_free(o->be, o->w[0]);
    for (int i = 0; i < SESSIONS; i++)
        o->op->rows_free(o->be, &o->past[i]);
    rows_gone(o);
    free(w);
}

static void bench_codec(const struct of *f, struct ops *o)
{
    bench_conv(f, o, "conv", (struct mt_conv){7, 1, 1, false}, CODEC, false);
    bench_conv(f, o, "conv transposed", (struct mt_conv){16, 8, 1, true}, CODEC / 2, false);
    bench_conv(f, o, "conv_each", (struct mt_conv){4, 2, 1, true}, CODEC, true);
    o->x = rows(o, ROWS, CODE);
    o->table = mat(o, MT_F32, BINS, CODE);
    line(f, o, "quantize", MT_F32, ROWS, 4.0 * BINS * CODE, 3.0 * ROWS * BINS * CODE, quantize);
    rows_gone(o);
}

static void bench_sample(const struct of *f, struct ops *o)
{
    enum { MOST = 16 };

    o->x = rows(o, MOST, VOCAB);
    for (int k = 0; k < 2; k++) {
        for (int i = 0; i < MOST; i++)
            o->sample[i] = (struct mt_sample){
                .temperature = k ? 0.7f : 0, .top_k = k ? 20 : 0, .top_p = k ? 0.8f : 1, .seed = 1};
        line(f, o, k ? "sample top-k 20" : "sample greedy", MT_F32, MOST, 4.0 * MOST * VOCAB,
             (double)MOST * VOCAB, sample);
    }
    rows_gone(o);
}

int main(int argc, char **argv)
{
    int64_t threads = bench_threads();
    enum mt_cpu_tier tier;
    struct mt_err e = {0};
    struct peak p;
    struct ops o = {0};

    if (argc > 2 || (argc > 1 && mt_parse_i64(argv[1], 1, 256, &threads) < 0) ||
        mt_cpu_tier(&tier, &e) < 0) {
        fprintf(stderr, "bench_ops: %s\n", e.code ? e.text : "usage: bench_ops [THREADS]");
        return MT_EXIT_USAGE;
    }
    peak_open(&p, tier, (int)threads);
    o.be = p.be;
    o.op = p.be->ops;
    struct of f = {&p, (int)threads};
    bench_rows(&f, &o);
    bench_linears(&f, &o);
    bench_experts(&f, &o);
    for (enum mt_dtype d = MT_F32; d <= MT_FP8; d++) {
        bench_cache(&f, &o, d, SESSIONS, 1); /* decoding together */
        bench_cache(&f, &o, d, 1, 50);       /* a frame's audio */
    }
    bench_encoder(&f, &o);
    bench_codec(&f, &o);
    bench_sample(&f, &o);
    peak_close(&p);
    return mt_close_stdout(MT_EXIT_OK);
}
