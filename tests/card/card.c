/*
 * card.c: times, rows, and a cache of sessions that is filled by the operation that appends.
 */
#include "card.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { FILL = 4096 /* rows that are appended at once */ };

void card_must(const char *what, int rc)
{
    if (rc >= 0)
        return;
    mt_msg(MT_ERROR, "%s: %s", what, strerror(-rc));
    exit(MT_EXIT_FAILED);
}

/* ---- times ---- */

double card_now(struct card *c)
{
    return (double)c->clock.now_ns(&c->clock) / 1e9;
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

void card_settle(struct card *c, struct mt_rows r)
{
    float f;

    c->be->ops->rows_get(c->be, &f, mt_rows_cols(r, 0, 1), 1);
}

struct card_time card_timed(struct card *c, void (*fn)(void *, int), void *arg, struct mt_rows r)
{
    double t[CARD_RUNS], start;
    int repeat = 1, k = 0;

    for (;;) {
        start = card_now(c);
        for (int i = 0; i < repeat; i++)
            fn(arg, k++);
        card_settle(c, r);
        if (card_now(c) - start > c->least)
            break;
        repeat *= 2;
    }
    for (int i = 0; i < CARD_RUNS; i++) {
        start = card_now(c);
        for (int j = 0; j < repeat; j++)
            fn(arg, k++);
        card_settle(c, r);
        t[i] = (card_now(c) - start) / repeat;
    }
    qsort(t, CARD_RUNS, sizeof(*t), by_value);
    return (struct card_time){t[CARD_RUNS / 2], t[0], t[CARD_RUNS - 1]};
}

void card_put_time(json_t *o, const struct card_time *t)
{
    mt_json_set_real(o, "us", 1e6 * t->median);
    mt_json_set_real(o, "us_best", 1e6 * t->best);
    mt_json_set_real(o, "us_worst", 1e6 * t->worst);
}

/* ---- rows ---- */

struct mt_rows card_rows(struct card *c, int64_t n, int width)
{
    struct mt_rows r;

    card_must("rows", c->be->ops->rows_new(c->be, &r, n, width));
    return r;
}

struct mt_rows card_noise(struct card *c, int64_t n, int width)
{
    struct mt_rows r = card_rows(c, n, width);
    int64_t some = n < 256 ? n : 256;
    float *f = malloc((size_t)some * (size_t)width * sizeof(*f));

    card_must("noise", f ? 0 : -ENOMEM);
    for (int64_t i = 0; i < some * width; i++)
        f[i] = (float)(2 * mt_unit(mt_mix64((uint64_t)i)) - 1);
    for (int64_t at = 0; at < n; at += some)
        c->be->ops->rows_put(c->be, mt_rows_from(r, at), f, n - at < some ? n - at : some);
    free(f);
    return r;
}

void card_rows_free(struct card *c, struct mt_rows *r)
{
    c->be->ops->rows_free(c->be, r);
}

/* ---- a cache of sessions ---- */

static void shuffle(int32_t *blocks, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        blocks[i] = (int32_t)i;
    for (int64_t i = n - 1; i > 0; i--) {
        int64_t j = (int64_t)(mt_mix64((uint64_t)i) % (uint64_t)(i + 1));
        int32_t b = blocks[i];

        blocks[i] = blocks[j];
        blocks[j] = b;
    }
}

static void fill(struct card_calls *x, int heads)
{
    struct card *c = x->c;
    int kv_width = x->shape.kv_heads * x->shape.head_dim, rows_max = c->tiny ? 64 : FILL;
    struct mt_rows q = card_noise(c, rows_max, heads * x->shape.head_dim);
    struct mt_rows k = card_noise(c, rows_max, kv_width), v = card_noise(c, rows_max, kv_width);
    struct mt_rope rope = {.kind = MT_ROPE_HALVES, .base = 1e6};

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
            card_settle(c, q);
        }
    card_rows_free(c, &q);
    card_rows_free(c, &k);
    card_rows_free(c, &v);
}

void card_calls_new(struct card_calls *x, struct card *c, struct mt_kv_shape shape, int heads,
                    int n, int64_t context, int spare)
{
    *x = (struct card_calls){.c = c, .shape = shape, .n = n, .context = context};
    x->each = (context + spare + CARD_BLOCK) / CARD_BLOCK;
    card_must("the cache", c->be->ops->kv_new(c->be, &x->kv, &shape, n * x->each));
    x->blocks = calloc((size_t)(n * x->each), sizeof(*x->blocks));
    x->runs = calloc((size_t)n, sizeof(*x->runs));
    card_must("sessions", x->blocks && x->runs ? 0 : -ENOMEM);
    for (int i = 0; i < n; i++)
        x->runs[i] = (struct mt_run){.row = i,
                                     .n = 1,
                                     .index = context,
                                     .view = {.blocks = x->blocks + i * x->each,
                                              .window = INT64_MAX,
                                              .ring_blocks = INT32_MAX}};
    x->batch = (struct mt_batch){n, n, x->runs};
    shuffle(x->blocks, n * x->each);
    fill(x, heads);
}

void card_calls_free(struct card_calls *x)
{
    x->c->be->ops->kv_free(x->c->be, x->kv);
    free(x->blocks);
    free(x->runs);
}
