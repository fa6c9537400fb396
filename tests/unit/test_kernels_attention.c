/*
 * test_kernels_attention.c: rotary positions, the cache and both attentions of every tier against
 * a naive double version with explicit masks, on random shapes, rings and cuts; and the promise
 * that the bits of a row depend neither on how a session was cut into runs nor on company nor on
 * threads.
 *
 * The pool starts full of NaN, so that any key or value that must not be read shows.
 */
#include "test_kernels.h"

/* One session: everything it will hear, and where its tokens lie. */
struct session {
    int64_t tokens, done;
    int sinks, ring_blocks;
    int64_t window;
    int64_t reach;
    enum mt_see see;
    int cut;          /* rows of every run where `see` asks for the last one */
    struct mt_kv *kv; /* a pool of its own, or NULL */
    int32_t *blocks;
    float *q, *k, *v; /* [tokens, width], not rotated */
    float *want, *out;
    double *tol; /* [tokens, heads * hd] */
};

struct world {
    int64_t heads, kv_heads, hd;
    int p, layers, layer;
    struct mt_rope rope;
    enum mt_dtype type;
    int32_t *ids; /* a random order of the pool's blocks */
    int n_ids, used;
};

static struct world world_new(int64_t heads, int64_t kv_heads, int64_t hd, int p,
                              enum mt_dtype type)
{
    struct world w = {
        .heads = heads,
        .kv_heads = kv_heads,
        .hd = hd,
        .p = p,
        .layers = rnd_int(1, 3),
        .rope = {(enum mt_rope_kind)rnd_int(0, 2), rnd_int(0, 1) ? 1e6 : 1e4, .q_norm = NULL},
        .type = type,
        .n_ids = 900};

    w.layer = rnd_int(0, w.layers - 1);
    w.ids = calloc((size_t)w.n_ids, sizeof(*w.ids));
    for (int64_t i = 0; i < w.n_ids; i++) {
        int j = rnd_int(0, i);

        w.ids[i] = w.ids[j];
        w.ids[j] = i;
    }
    return w;
}

/* chunk: the most rows of one step, which the ring must hold besides the window. */
static struct session session_new(struct world *w, int tokens, int sinks, int64_t window, int chunk)
{
    struct session s = {
        .tokens = tokens, .sinks = sinks, .window = window, .reach = window - 1 + sinks};
    size_t nq = (size_t)(tokens * w->heads * w->hd), nk = (size_t)(tokens * w->kv_heads * w->hd);
    int n_blocks, sink_blocks = (sinks + w->p - 1) / w->p;

    if (window == INT64_MAX) {
        s.ring_blocks = INT32_MAX;
        n_blocks = (tokens + w->p - 1) / w->p;
    } else {
        s.ring_blocks = (int)(window + chunk - 1 + w->p - 1) / w->p + 1;
        n_blocks = sink_blocks + s.ring_blocks;
    }
    s.blocks = w->ids + w->used;
    w->used += n_blocks;
    assert_true(w->used <= w->n_ids);
    s.q = rnd_floats(nq);
    s.k = rnd_floats(nk);
    s.v = rnd_floats(nk);
    s.want = malloc(nq * sizeof(float));
    s.out = malloc(nq * sizeof(float));
    s.tol = malloc(nq * sizeof(double));
    return s;
}

static void session_free(struct session *s)
{
    free(s->q);
    free(s->k);
    free(s->v);
    free(s->want);
    free(s->out);
    free(s->tol);
}

static void turn(double *dst, const float *src, struct mt_rope rope, double pos, int64_t hd)
{
    for (int64_t i = 0; i < hd / 2; i++) {
        double angle = rope.kind == MT_ROPE_NONE ? 0 : pos / pow(rope.base, 2.0 * i / hd);
        int64_t at = rope.kind == MT_ROPE_PAIRS ? 2 * i : i;
        int64_t mate = rope.kind == MT_ROPE_PAIRS ? at + 1 : i + hd / 2;
        double a = src[at], b = src[mate];

        dst[at] = a * cos(angle) - b * sin(angle);
        dst[mate] = b * cos(angle) + a * sin(angle);
    }
}

static bool sees(const struct session *s, int64_t i, int64_t j)
{
    int64_t last = i;

    if (s->see != MT_SEE_CAUSAL) {
        last = i - i % s->cut + s->cut - 1;
        last = last < s->tokens ? last : s->tokens - 1;
    }
    return j < s->sinks || (j <= (s->see == MT_SEE_CHUNK ? last : i) && last - j < s->window);
}

/* What the cache gives back for x: rounded to its type. */
static void stored(float *x, enum mt_dtype type, int64_t n)
{
    char bytes[4 * 512] = {0};
    float scale = 0;

    num_encode(bytes, &scale, type, x, n);
    num_decode_kv(x, type, bytes, scale, n);
}

/*
 * Every query of a session: scores over all tokens so far, masked ones left out, sink keys turned
 * to the position from which this query sees them. Tolerance: a score of hd products, each of
 * factors with a few roundings, is off by (hd + 16) EPS * sum|terms| (= the change of a weight's
 * logarithm); the cache's own rounding of what was turned may flip at a tie, which scores see as
 * one step of one element.
 */
static void reference(struct world *w, struct session *s)
{
    int64_t hd = w->hd, width = w->heads * hd, kw = w->kv_heads * hd;
    double step = w->rope.kind == MT_ROPE_NONE || w->type == MT_F32 ? 0
                  : w->type == MT_F16                               ? 0x1p-11
                  : w->type == MT_FP8                               ? 0x1p-3
                                                                    : 0x1p-8;
    float *kc =
        malloc((size_t)(s->tokens * kw) * sizeof(float)); /* as cached: turned at its index */
    float *vc = calloc((size_t)(s->tokens * kw), sizeof(float));
    double *score = calloc((size_t)s->tokens, sizeof(double)), q[512] = {0}, k[512] = {0};

    for (int64_t t = 0; t < s->tokens * w->kv_heads; t++) {
        int64_t row = t / w->kv_heads;

        turn(k, s->k + t * hd, w->rope, (double)row, hd);
        for (int64_t d = 0; d < hd; d++)
            kc[t * hd + d] = (float)k[d];
        memcpy(vc + t * hd, s->v + t * hd, (size_t)hd * sizeof(float));
        stored(kc + t * hd, w->type, hd);
        stored(vc + t * hd, w->type, hd);
    }
    for (int64_t i = 0; i < s->tokens; i++) {
        for (int64_t h = 0; h < w->heads; h++) {
            int64_t g = h / (w->heads / w->kv_heads);
            double max = -INFINITY, sum = 0, slack = 0, big = 0;
            float *want = s->want + i * width + h * hd;

            turn(q, s->q + i * width + h * hd, w->rope, i, hd);
            for (int64_t j = 0; j < s->tokens; j++) {
                double abs = 0, dot = 0, shift = 0, top = 0;

                if ((s->see == MT_SEE_CAUSAL && j > i) || !sees(s, i, j)) {
                    score[j] = -INFINITY;
                    continue;
                }
                if (j < s->sinks && i > s->reach)
                    shift = (double)(i - s->reach);
                turn(k, kc + j * kw + g * hd, w->rope, shift, hd);
                for (int64_t d = 0; d < hd; d++) {
                    dot += q[d] * k[d];
                    abs += fabs(q[d]) * fabs(k[d]);
                    top = fmax(top, fabs(q[d] * k[d]));
                    big = fmax(big, fabsf(vc[j * kw + g * hd + d]));
                }
                score[j] = dot / sqrt(hd);
                slack = fmax(slack, ((hd + 16) * EPS * abs * 1.5 + step * top) / sqrt(hd));
                max = fmax(max, score[j]);
            }
            for (int64_t d = 0; d < hd; d++) {
                double acc = 0;

                sum = 0;
                for (int64_t j = 0; j < s->tokens; j++) {
                    double p = score[j] == -INFINITY ? 0 : exp(score[j] - max);

                    sum += p;
                    acc += p * vc[j * kw + g * hd + d];
                }
                want[d] = (float)(acc / sum);
                s->tol[i * width + h * hd + d] = big * (2 * slack + (s->tokens + 24) * EPS);
            }
        }
    }
    free(kc);
    free(vc);
    free(score);
}

static struct mt_kv *pool_new(struct mt_backend *be, const struct world *w)
{
    struct mt_kv_shape shape = {w->layers, w->kv_heads, w->hd, w->p, w->type};
    struct mt_kv *kv;

    assert_int_equal(be->ops->kv_new(be, &kv, &shape, w->n_ids), 0);
    memset(kv->data, 0xff, kv->bytes);
    return kv;
}

/* One step: next[i] tokens of each session (0: not in this step), results into s->out. */
static void step(struct mt_backend *be, struct mt_kv *kv, const struct world *w, struct session **s,
                 const int *next, int n)
{
    int64_t width = w->heads * w->hd, kw = w->kv_heads * w->hd;
    int rows = 0, lead = rnd_int(0, 2);
    struct mt_run runs[8];
    struct mt_batch b = {.runs = runs};
    struct field q, qs, k, v, out;

    for (int64_t i = 0; i < n; i++)
        rows += next[i];
    q = field_new(be, rows + lead, width, NULL);
    qs = field_new(be, rows + lead, width, NULL);
    k = field_new(be, rows + lead, kw, NULL);
    v = field_new(be, rows + lead, kw, NULL);
    out = field_new(be, rows + lead, width, NULL);
    for (int64_t i = 0; i < n; i++) {
        if (!next[i])
            continue;
        runs[b.n_runs++] =
            (struct mt_run){b.n_rows,
                            next[i],
                            s[i]->done,
                            {s[i]->blocks, s[i]->sinks, s[i]->ring_blocks, s[i]->window,
                             s[i]->reach, 0, s[i]->see, .kv = s[i]->kv}};
        be->ops->rows_put(be, mt_rows_from(q.v, b.n_rows), s[i]->q + s[i]->done * width, next[i]);
        be->ops->rows_put(be, mt_rows_from(k.v, b.n_rows), s[i]->k + s[i]->done * kw, next[i]);
        be->ops->rows_put(be, mt_rows_from(v.v, b.n_rows), s[i]->v + s[i]->done * kw, next[i]);
        b.n_rows += next[i];
    }
    be->ops->rope_append(be, kv, w->layer, w->rope, &b, q.v, qs.v, k.v, v.v);
    be->ops->attention(be, kv, w->layer, &b, out.v, q.v, qs.v);
    rows = 0;
    for (int64_t i = 0; i < n; i++) {
        be->ops->rows_get(be, s[i]->out + s[i]->done * width, mt_rows_from(out.v, rows), next[i]);
        rows += next[i];
        s[i]->done += next[i];
    }
    field_free(be, &q);
    field_free(be, &qs);
    field_free(be, &k);
    field_free(be, &v);
    field_free(be, &out);
}

static void check(const struct world *w, const struct session *s)
{
    int64_t width = w->heads * w->hd;

    for (int64_t i = 0; i < s->tokens * width; i++)
        near(s->out[i], s->want[i], s->tol[i], "attention", i / width, i % width);
}

static void one_world(int64_t heads, int64_t kv_heads, int64_t hd, int p, enum mt_dtype type,
                      int tokens)
{
    struct world w = world_new(heads, kv_heads, hd, p, type);
    struct session s[4], *ps[4] = {&s[0], &s[1], &s[2], &s[3]};
    int chunk = rnd_int(1, 2 * p + 20);
    int64_t width = heads * hd;
    float *keep[4];

    s[0] = session_new(&w, tokens, rnd_int(1, 2 * p + 1), rnd_int(1, 40), chunk);
    s[1] = session_new(&w, tokens, rnd_int(1, p), rnd_int(1, 60), chunk);
    s[1].reach += rnd_int(0, tokens);
    s[2] = session_new(&w, tokens / 2 + 1, 0, INT64_MAX, chunk);
    s[3] = session_new(&w, tokens, 0, rnd_int(1, 30), chunk);
    for (int64_t i = 0; i < 4; i++) {
        reference(&w, &s[i]);
        keep[i] = malloc((size_t)(s[i].tokens * width) * sizeof(float));
    }
    for (enum mt_cpu_tier t = MT_CPU_SCALAR; t <= tier_max(); t++) {
        /* round 0: row by row, alone, one thread: the definition of the bits */
        for (int64_t round = 0; round < 4; round++) {
            struct mt_backend *be = backend(t, round ? round : 1);
            struct mt_kv *kv = pool_new(be, &w);
            bool more = true;

            for (int64_t i = 0; i < 4; i++)
                s[i].done = 0;
            for (int64_t i = 0; i < 4 && !round; i++) {
                static const int one = 1;
                struct session *p1 = &s[i];

                while (p1->done < p1->tokens)
                    step(be, kv, &w, &p1, &one, 1);
            }
            while (round && more) {
                int next[4];

                more = false;
                for (int64_t i = 0; i < 4; i++) {
                    int left = (int)(s[i].tokens - s[i].done);

                    next[i] = left ? rnd_int(0, left < chunk ? left : chunk) : 0;
                    more = more || left > next[i];
                }
                if (next[0] + next[1] + next[2] + next[3])
                    step(be, kv, &w, ps, next, 4);
            }
            for (int64_t i = 0; i < 4; i++) {
                size_t bytes = (size_t)(s[i].tokens * width) * sizeof(float);

                if (!round) {
                    check(&w, &s[i]);
                    memcpy(keep[i], s[i].out, bytes);
                } else {
                    assert_memory_equal(keep[i], s[i].out, bytes);
                }
            }
            be->ops->kv_free(be, kv);
            be->ops->free(be);
        }
    }
    for (int64_t i = 0; i < 4; i++) {
        free(keep[i]);
        session_free(&s[i]);
    }
    free(w.ids);
}

static void test_attention(void **state)
{
    static const int blocks[] = {1, 3, 8, 16, 16, 20, 33};

    (void)state;
    for (int64_t i = 0; i < 25; i++) {
        int64_t group = rnd_int(1, 8), kv_heads = rnd_int(1, 3), hd = 2 * (int64_t)rnd_int(1, 40);

        if (i % 4 == 0)
            hd = i % 8 ? 64 : 128;
        one_world(group * kv_heads, kv_heads, hd, blocks[rnd_int(0, MT_COUNT(blocks) - 1)],
                  (enum mt_dtype)(i % 5), rnd_int(1, 130));
    }
    for (int i = 0; i < 12; i++) { /* heads of whole 16 byte words, and many queries a key */
        static const int words[] = {1, 3, 4, 8, 10, 12, 15, 16};
        static const enum mt_dtype types[] = {MT_F16, MT_BF16, MT_INT8, MT_FP8};
        int kv_heads = rnd_int(1, 3), group = rnd_int(i % 4 ? 1 : 8, 12);

        one_world((int64_t)group * kv_heads, kv_heads, 8L * words[i * 5 % 8], blocks[rnd_int(2, 6)],
                  types[i % 4], rnd_int(60, 160));
    }
    one_world(3, 1, 300, 16, MT_BF16, 20); /* wider than the fast tiers hold */
    one_world(40, 1, 16, 16, MT_F16, 50);  /* more heads a key than they take at once */
}

/*
 * Rings that are written before they are read, and chunks that see all of themselves, some in pools
 * of their own: the run's length is part of the definition, the company and the threads are not.
 */
static void one_seeing_world(int64_t heads, int64_t kv_heads, int64_t hd, enum mt_dtype type)
{
    struct world w = world_new(heads, kv_heads, hd, rnd_int(1, 20), type);
    struct session s[4], *ps[4] = {&s[0], &s[1], &s[2], &s[3]};
    int64_t width = heads * hd;

    for (int64_t i = 0; i < 4; i++) {
        int cut = rnd_int(1, 30);

        s[i] = session_new(&w, rnd_int(1, 120), 0, cut + rnd_int(0, 60), cut);
        s[i].see = i == 3 ? MT_SEE_CAUSAL : i % 2 ? MT_SEE_RING : MT_SEE_CHUNK;
        s[i].cut = cut;
        reference(&w, &s[i]);
    }
    for (enum mt_cpu_tier t = MT_CPU_SCALAR; t <= tier_max(); t++) {
        float *keep[4] = {NULL};

        for (int round = 0; round < 2; round++) { /* together on three threads, then alone */
            struct mt_backend *be = backend(t, round ? 1 : 3);
            struct mt_kv *kv = pool_new(be, &w);
            bool more = true;

            for (int i = 0; i < 4; i++) {
                s[i].done = 0;
                s[i].kv = i < 2 ? pool_new(be, &w) : NULL;
            }
            while (more) {
                int next[4];

                more = false;
                for (int i = 0; i < 4; i++) {
                    int64_t left = s[i].tokens - s[i].done;

                    next[i] = (int)(left < s[i].cut ? left : s[i].cut);
                    more = more || left > next[i];
                    if (round && next[i])
                        step(be, kv, &w, &ps[i], &next[i], 1);
                }
                if (!round)
                    step(be, kv, &w, ps, next, 4);
            }
            for (int i = 0; i < 4; i++) {
                size_t bytes = (size_t)(s[i].tokens * width) * sizeof(float);

                if (round) {
                    assert_memory_equal(keep[i], s[i].out, bytes);
                } else {
                    check(&w, &s[i]);
                    keep[i] = memcpy(malloc(bytes), s[i].out, bytes);
                }
                if (s[i].kv)
                    be->ops->kv_free(be, s[i].kv);
            }
            be->ops->kv_free(be, kv);
            be->ops->free(be);
        }
        for (int i = 0; i < 4; i++)
            free(keep[i]);
    }
    for (int i = 0; i < 4; i++)
        session_free(&s[i]);
    free(w.ids);
}

static void test_see(void **state)
{
    (void)state;
    for (int i = 0; i < 16; i++) {
        int64_t group = rnd_int(1, 4), kv_heads = rnd_int(1, 3), hd = 2 * (int64_t)rnd_int(1, 40);

        one_seeing_world(group * kv_heads, kv_heads, i % 4 ? hd : 64, (enum mt_dtype)(i % 5));
    }
    one_seeing_world(2, 1, 300, MT_F32); /* wider than the fast tiers hold */
}

/* A call of days: at index 10^7 the angle must come from f64, and a window ring still masks right.
 */
static void test_far_index(void **state)
{
    enum { HD = 64, W = 24, N = 40 };
    struct mt_kv_shape shape = {1, 1, HD, 16, MT_F32};
    int32_t blocks[6] = {3, 1, 5, 0, 2, 4};
    const int64_t start = 10000019;
    const struct mt_rope rope = {MT_ROPE_HALVES, 1e6, .q_norm = NULL};
    float *raw = rnd_floats((size_t)3 * N * HD), got[HD];

    (void)state;
    for (enum mt_cpu_tier t = MT_CPU_SCALAR; t <= tier_max(); t++) {
        struct mt_backend *be = backend(t, 1);
        struct field q = field_new(be, 1, HD, NULL), k = field_new(be, 1, HD, NULL);
        struct field v = field_new(be, 1, HD, NULL), out = field_new(be, 1, HD, NULL);
        struct mt_kv *kv;

        assert_int_equal(be->ops->kv_new(be, &kv, &shape, 6), 0);
        for (int64_t i = 0; i < N; i++) {
            struct mt_run run = {0, 1, start + i, {blocks, 0, 6, W, .kv = NULL}};
            struct mt_batch b = {1, 1, &run};
            double dq[HD], dk[HD], sum = 0, acc[HD] = {0};

            be->ops->rows_put(be, q.v, raw + i * HD, 1);
            be->ops->rows_put(be, k.v, raw + (N + i) * HD, 1);
            be->ops->rows_put(be, v.v, raw + (2L * N + i) * HD, 1);
            be->ops->rope_append(be, kv, 0, rope, &b, q.v, MT_NO_ROWS, k.v, v.v);
            be->ops->attention(be, kv, 0, &b, out.v, q.v, MT_NO_ROWS);
            if (i < W)
                continue;
            be->ops->rows_get(be, got, out.v, 1);
            turn(dq, raw + i * HD, rope, (double)i, HD); /* only the distance counts */
            for (int64_t j = i + 1 - W; j <= i; j++) {
                double dot = 0;

                turn(dk, raw + (N + j) * HD, rope, (double)j, HD);
                for (int64_t d = 0; d < HD; d++)
                    dot += dq[d] * dk[d];
                dot = exp(dot / 8);
                sum += dot;
                for (int64_t d = 0; d < HD; d++)
                    acc[d] += dot * raw[(2L * N + j) * HD + d];
            }
            for (int64_t d = 0; d < HD; d++)
                near(got[d], acc[d] / sum, 1e-5, "far", i, d);
        }
        be->ops->kv_free(be, kv);
        field_free(be, &q);
        field_free(be, &k);
        field_free(be, &v);
        field_free(be, &out);
        be->ops->free(be);
    }
    free(raw);
}

/* The cache's bits are one thing for all tiers: sessions saved by one are read by another. */
static void test_same_cache(void **state)
{
    (void)state;
    for (enum mt_dtype d = MT_F32; d <= MT_FP8; d++) {
        struct world w = world_new(6, 2, 46, 7, d);
        struct session s = session_new(&w, 90, 9, 30, 11), *ps = &s;
        char *keep = NULL;

        for (enum mt_cpu_tier t = MT_CPU_SCALAR; t <= tier_max(); t++) {
            struct mt_backend *be = backend(t, 2);
            struct mt_kv *kv = pool_new(be, &w);

            for (s.done = 0; s.done < s.tokens;) {
                int next = s.tokens - s.done < 11 ? (int)(s.tokens - s.done) : 11;

                step(be, kv, &w, &ps, &next, 1);
            }
            if (keep)
                assert_memory_equal(keep, kv->data, kv->bytes);
            else
                keep = memcpy(malloc(kv->bytes), kv->data, kv->bytes);
            be->ops->kv_free(be, kv);
            be->ops->free(be);
        }
        free(keep);
        session_free(&s);
        free(w.ids);
    }
}

/* Heads that are normed on the way are what they are normed before: in place and in the cache. */
static void test_rope_norms(void **state)
{
    (void)state;
    for (enum mt_cpu_tier t = MT_CPU_SCALAR; t <= tier_max(); t++)
        for (int i = 0; i < 12; i++) {
            struct mt_backend *be = backend(t, 2);
            int heads = rnd_int(1, 9), kv_heads = rnd_int(1, 4), hd = 2 * rnd_int(1, 80);
            int n = rnd_int(1, 20), p = rnd_int(1, 20), sinks = rnd_int(0, 3);
            struct mt_kv_shape shape = {1, kv_heads, hd, p, MT_F32};
            int32_t blocks[24];
            struct mt_run run = {0, n, 0, {blocks, sinks, 20, 20, rnd_int(0, 9), .kv = NULL}};
            struct mt_batch b = {n, 1, &run};
            struct weight w[2] = {weight_new(be, MT_BF16, 1, hd), weight_new(be, MT_F32, 1, hd)};
            struct mt_rope rope = {(enum mt_rope_kind)(i % 3), 1e4, .q_norm = NULL};
            int width[] = {heads * hd, heads * hd, kv_heads * hd, kv_heads * hd};
            float *x[4], *got[2][4];
            size_t bytes = 0;
            char *cache = NULL;

            for (int k = 0; k < 24; k++)
                blocks[k] = 23 - k;
            for (int k = 0; k < 4; k++)
                x[k] = rnd_floats((size_t)n * (size_t)width[k]);
            for (int fused = 0; fused < 2; fused++) {
                struct mt_kv *kv;
                struct field f[4];

                for (int k = 0; k < 4; k++)
                    f[k] = field_new(be, n, width[k], x[k]);
                assert_int_equal(be->ops->kv_new(be, &kv, &shape, 24), 0);
                memset(kv->data, 0, kv->bytes);
                if (fused) {
                    rope.q_norm = w[0].m;
                    rope.k_norm = w[1].m;
                    rope.eps = 1e-6f;
                } else {
                    be->ops->rms_norm(be, f[0].v, f[0].v, w[0].m, 1e-6f, n);
                    be->ops->rms_norm(be, f[2].v, f[2].v, w[1].m, 1e-6f, n);
                }
                be->ops->rope_append(be, kv, 0, rope, &b, f[0].v, f[1].v, f[2].v, f[3].v);
                for (int k = 0; k < 4; k++) {
                    got[fused][k] = malloc((size_t)n * (size_t)width[k] * sizeof(float));
                    be->ops->rows_get(be, got[fused][k], f[k].v, n);
                    field_free(be, &f[k]);
                }
                if (fused)
                    assert_memory_equal(cache, kv->data, bytes);
                else
                    cache = memcpy(malloc(bytes = kv->bytes), kv->data, kv->bytes);
                be->ops->kv_free(be, kv);
            }
            free(cache);
            for (int k = 0; k < 4; k++) {
                assert_memory_equal(got[0][k], got[1][k],
                                    (size_t)n * (size_t)width[k] * sizeof(float));
                free(got[0][k]);
                free(got[1][k]);
                free(x[k]);
            }
            weight_free(be, &w[0]);
            weight_free(be, &w[1]);
            be->ops->free(be);
        }
}

/*
 * Sinks that another session holds are not written again, not even with the same bytes: it may be
 * at work on them.
 */
static void test_held_sinks(void **state)
{
    enum { P = 4, HD = 16, SINKS = 7, HELD = 3, ROWS = 9 };
    static const int32_t blocks[] = {2, 0, 1, 3};

    (void)state;
    for (enum mt_dtype type = MT_F32; type <= MT_FP8; type++)
        for (enum mt_cpu_tier t = MT_CPU_SCALAR; t <= tier_max(); t++) {
            struct mt_backend *be = backend(t, 2);
            struct mt_kv_shape shape = {1, 1, HD, P, type};
            struct mt_run run = {0, ROWS, 0, {blocks, SINKS, 2, 8, 14, HELD, .kv = NULL}};
            struct mt_batch b = {ROWS, 1, &run};
            struct field q = field_new(be, ROWS, HD, NULL), qs = field_new(be, ROWS, HD, NULL);
            struct field k = field_new(be, ROWS, HD, NULL), v = field_new(be, ROWS, HD, NULL);
            float *x = rnd_floats((size_t)ROWS * HD);
            struct mt_kv *kv;

            assert_int_equal(be->ops->kv_new(be, &kv, &shape, MT_COUNT(blocks)), 0);
            memset(kv->data, 0xff, kv->bytes);
            be->ops->rows_put(be, q.v, x, ROWS);
            be->ops->rows_put(be, k.v, x, ROWS);
            be->ops->rows_put(be, v.v, x, ROWS);
            be->ops->rope_append(be, kv, 0, (struct mt_rope){MT_ROPE_HALVES, 1e4, .q_norm = NULL},
                                 &b, q.v, qs.v, k.v, v.v);
            for (int64_t i = 0; i < ROWS; i++)
                for (int kv_side = 0; kv_side < 2; kv_side++) {
                    int slot, same = 0, bytes = HD * (int)mt_dtype_size(type);
                    int32_t block = view_block(&run.view, P, i, &slot);
                    const char *at = kv_at(kv, 0, block, kv_side, 0, slot);

                    for (int j = 0; j < bytes; j++)
                        same += at[j] == (char)0xff;
                    if (i < HELD)
                        assert_int_equal(same, bytes);
                    else
                        assert_in_range(same, 0, bytes / 2);
                }
            field_free(be, &q);
            field_free(be, &qs);
            field_free(be, &k);
            field_free(be, &v);
            free(x);
            be->ops->kv_free(be, kv);
            be->ops->free(be);
        }
}

/* how: NULL, or the backend's way of 16-bit keys and values, and so are these. */
static void spans(enum mt_cpu_tier t, int64_t heads, int64_t hd, int n_spans, int longest,
                  const char *how)
{
    struct mt_span span[5];
    int64_t rows = 0, width = heads * hd;
    double split = how ? 0x1p-16 : 0; /* f32 as two numbers of 8 bits */
    float *src[3], *out, *other;

    for (int64_t s = 0; s < n_spans; s++) {
        rows += rnd_int(0, 2);
        span[s] = (struct mt_span){(int)rows, rnd_int(1, longest)};
        rows += span[s].n;
    }
    for (int64_t i = 0; i < 3; i++)
        src[i] = rnd_floats((size_t)(rows * width));
    for (int64_t i = 0; how && i < rows * width; i++)
        for (int64_t k = 1; k < 3; k++)
            src[k][i] = num_from_bf16(num_to_bf16(src[k][i]));
    out = calloc((size_t)(rows * width) + 1, sizeof(float));
    other = calloc((size_t)(rows * width) + 1, sizeof(float));
    for (int64_t threads = 1; threads <= 3; threads++) {
        struct mt_backend *be = how ? open_as(how) : backend(t, threads);
        struct field f[3], o = field_new(be, rows, width, NULL);

        for (int64_t i = 0; i < 3; i++)
            f[i] = field_new(be, rows, width, src[i]);
        if (threads == 1) /* alone; then all together */
            for (int64_t s = 0; s < n_spans; s++)
                be->ops->span_attention(be, o.v, f[0].v, f[1].v, f[2].v, heads, &span[s], 1);
        else
            be->ops->span_attention(be, o.v, f[0].v, f[1].v, f[2].v, heads, span, n_spans);
        be->ops->rows_get(be, threads == 1 ? out : other, o.v, rows);
        if (threads > 1)
            assert_memory_equal(out, other, (size_t)(rows * width) * sizeof(float));
        for (int64_t i = 0; i < 3; i++)
            field_free(be, &f[i]);
        field_free(be, &o);
        be->ops->free(be);
    }
    for (int64_t s = 0; s < n_spans; s++) {
        for (int64_t i = span[s].row; i < span[s].row + span[s].n; i++) {
            for (int64_t h = 0; h < heads; h++) {
                double sum = 0, acc[512] = {0}, slack = 0, big = 0;

                for (int64_t j = span[s].row; j < span[s].row + span[s].n; j++) {
                    double dot = 0, abs = 0, p;

                    for (int64_t d = 0; d < hd; d++) {
                        double term =
                            (double)src[0][i * width + h * hd + d] * src[1][j * width + h * hd + d];

                        dot += term;
                        abs += fabs(term);
                        big = fmax(big, fabsf(src[2][j * width + h * hd + d]));
                    }
                    slack = fmax(slack, ((hd + 8) * EPS + split) * abs / sqrt(hd));
                    p = exp(dot / sqrt(hd));
                    sum += p;
                    for (int64_t d = 0; d < hd; d++)
                        acc[d] += p * src[2][j * width + h * hd + d];
                }
                for (int64_t d = 0; d < hd; d++)
                    near(out[i * width + h * hd + d], acc[d] / sum,
                         big * (2 * slack + (span[s].n + 24) * EPS + split), "span", i, h * hd + d);
            }
        }
    }
    for (int64_t i = 0; i < 3; i++)
        free(src[i]);
    free(out);
    free(other);
}

static void test_spans(void **state)
{
    (void)state;
    for (enum mt_cpu_tier t = MT_CPU_SCALAR; t <= tier_max(); t++) {
        for (int64_t i = 0; i < 12; i++)
            spans(t, rnd_int(1, 4), i % 3 ? rnd_int(1, 80) : 64, rnd_int(1, 5), i % 2 ? 70 : 20,
                  NULL);
        spans(t, 1, 257, 2, 20, NULL);
        spans(t, 2, 64, 1, 1, NULL);
        spans(t, 2, 64, 2, 300, NULL);
    }
#ifdef TEST_CUDA
    for (int64_t i = 0; i < 12; i++)
        spans(0, rnd_int(1, 3), 8 * rnd_int(1, 16), rnd_int(1, 4), i % 3 ? 40 : 90, "");
    spans(0, 1, 64, 2, 280, "");
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention),  cmocka_unit_test(test_see),
        cmocka_unit_test(test_far_index),  cmocka_unit_test(test_same_cache),
        cmocka_unit_test(test_rope_norms), cmocka_unit_test(test_held_sinks),
        cmocka_unit_test(test_spans),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
