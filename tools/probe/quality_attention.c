/*
 * quality_attention.c: mt-probe quality --attention: does this model have sinks, and how many? The
 * share of attention that the first tokens get, by layer and by how far behind they are, beside
 * what their neighbours get: tokens that are as far away and nothing special. The first tokens of a
 * passage are one draw, so what is drawn anew for an interval are passages.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/probe/quality.h"

/* Every STRIDE-th query from FROM on is looked at: nearer to the start everything is near. */
enum { FIRST = 8, FROM = 64, STRIDE = 4, SPANS = 20, DRAWS = 1000 };
#define EXCESS_LEAST 0.02 /* of all attention, above the neighbours': else there are no sinks */
#define EXCESS_PART  0.9  /* of it is what the suggested sinks hold */

/* Sums over the queries of a passage, for a layer and a span of distances. */
struct cell {
    double share[FIRST], even[FIRST];
};

struct watcher {
    const struct quality_options *o;
    struct mt_backend *be;
    int layers, heads, passages, passage;
    int64_t blocks;     /* of a passage */
    struct cell *cells; /* [layers][SPANS][passages] */
    double *queries;    /* [SPANS][passages], the same for all layers */
    float *mass;        /* [heads][FIRST + MT_MASS_BINS] of one query */
    double nll, tokens;
    int64_t rows;
    bool tty;
};

static struct cell *cell_at(const struct watcher *w, int layer, int span, int passage)
{
    return &w->cells[((int64_t)layer * SPANS + span) * w->passages + passage];
}

static double *queries_at(const struct watcher *w, int span, int passage)
{
    return &w->queries[span * w->passages + passage];
}

/* Span k has the queries at FROM * 2^k and from there to twice that. */
static int64_t span_from(int k)
{
    return (int64_t)FROM << k;
}

static int span_of(int64_t i)
{
    int k = 0;

    while (k < SPANS - 1 && i >= span_from(k + 1))
        k++;
    return k;
}

/* Distances of bin b of attention_mass. */
static int64_t bin_from(int b)
{
    return b ? INT64_C(1) << (b - 1) : 0;
}

/*
 * What a token gets that is as far from query i as token j but none of the first ones: the mean of
 * those whose distance is in the same bin, or in the next nearer one that has any.
 */
static double neighbours(const float *mass, int64_t i, int64_t j)
{
    int b = 0;

    while (b < MT_MASS_BINS - 1 && bin_from(b + 1) <= i - j)
        b++;
    for (; b >= 0; b--) {
        int64_t lo = bin_from(b), hi = bin_from(b + 1) - 1;

        hi = hi > i - FIRST ? i - FIRST : hi;
        if (hi >= lo)
            return (double)mass[FIRST + b] / (double)(hi - lo + 1);
    }
    return 0;
}

static void look(struct watcher *w, int layer, const struct mt_kv *kv, const struct mt_run *run,
                 int row, struct mt_rows q, struct mt_rows q_sink)
{
    int64_t i = run->index + row;
    struct mt_run one = {0, 1, i, run->view};
    struct mt_batch b = {1, 1, &one};
    struct cell *c = cell_at(w, layer, span_of(i), w->passage);

    w->be->ops->attention_mass(w->be, kv, layer, &b, mt_rows_from(q, run->row + row),
                               q_sink.data ? mt_rows_from(q_sink, run->row + row) : q_sink, FIRST,
                               w->mass);
    for (int h = 0; h < w->heads; h++) {
        const float *mass = w->mass + (int64_t)h * (FIRST + MT_MASS_BINS);

        for (int j = 0; j < FIRST; j++) {
            c->share[j] += (double)mass[j] / w->heads;
            c->even[j] += neighbours(mass, i, j) / w->heads;
        }
    }
    if (layer == 0)
        ++*queries_at(w, span_of(i), w->passage);
}

static void see_layer(void *ctx, int layer, const struct mt_kv *kv, const struct mt_batch *b,
                      struct mt_rows q, struct mt_rows q_sink)
{
    for (int r = 0; r < b->n_runs; r++)
        for (int row = 0; row < b->runs[r].n; row++)
            if (b->runs[r].index + row >= FROM && (b->runs[r].index + row) % STRIDE == 0)
                look(ctx, layer, kv, &b->runs[r], row, q, q_sink);
}

static int take(void *ctx, int arm, int64_t pos, const struct mt_expected *x)
{
    struct watcher *w = ctx;

    (void)arm;
    w->nll += (double)x->nll;
    w->tokens++;
    if (w->tty && (pos % 16 == 0 || pos + 1 == w->rows))
        fprintf(stderr, "\r\033[Kpassage %d of %d: %.0f %%", w->passage + 1, w->passages,
                100 * (double)(pos + 1) / (double)w->rows);
    return 0;
}

/* ---- telling ---- */

/* The mean over layers first..last and spans of share (or of the neighbours') of tokens j..k. */
static struct mt_interval mean(const struct watcher *w, int layer, int last, int span,
                               int last_span, int j, int k, bool even)
{
    int n = w->passages;
    double *x = mt_alloc((size_t)n, sizeof(*x)), *weight = mt_alloc((size_t)n, sizeof(*weight));
    struct mt_interval out = {NAN, NAN, NAN, 0};

    for (int b = 0; x && weight && b < n; b++)
        for (int s = span; s <= last_span; s++) {
            weight[b] += *queries_at(w, s, b);
            for (int l = layer; l <= last; l++)
                for (int t = j; t <= k; t++)
                    x[b] += (even ? cell_at(w, l, s, b)->even[t] : cell_at(w, l, s, b)->share[t]) /
                            (last - layer + 1);
        }
    if (x && weight)
        mt_bootstrap(x, weight, n, w->o->seed, &out);
    if (out.low < 0)
        out.low = 0; /* a share */
    free(x);
    free(weight);
    return out;
}

/* How many first tokens hold most of the excess, from sums over layers and queries. */
static int sinks_of(const double *share, const double *even, double queries)
{
    double all = 0, sum = 0;
    int s = 0;

    for (int j = 0; j < FIRST; j++)
        all += fmax(share[j] - even[j], 0);
    if (!(all / queries >= EXCESS_LEAST))
        return 0;
    while (s < FIRST && sum < EXCESS_PART * all) {
        sum += fmax(share[s] - even[s], 0);
        s++;
    }
    return s;
}

struct sums {
    double share[FIRST], even[FIRST], queries;
};

static int by_value(const void *a, const void *b)
{
    return *(const int *)a - *(const int *)b;
}

/* The suggestion, and 95 % of what it is when passages are drawn anew; -1 with too few of them. */
static int suggest(const struct watcher *w, int *low, int *high)
{
    int n = w->passages, m = 0;
    struct sums *each = mt_alloc((size_t)n, sizeof(*each)), all = {0};
    uint64_t state = mt_mix64(w->o->seed);
    int drawn[DRAWS], got;

    for (int b = 0; each && b < n; b++) {
        struct sums *s = &each[m];

        *s = (struct sums){0};
        for (int k = 0; k < SPANS; k++) {
            s->queries += *queries_at(w, k, b);
            for (int l = 0; l < w->layers; l++)
                for (int j = 0; j < FIRST; j++) {
                    s->share[j] += cell_at(w, l, k, b)->share[j] / w->layers;
                    s->even[j] += cell_at(w, l, k, b)->even[j] / w->layers;
                }
        }
        m += s->queries > 0;
    }
    for (int d = -1; each && d < DRAWS; d++) { /* -1: every block once */
        struct sums t = {0};

        for (int b = 0; b < m; b++) {
            const struct sums *s =
                &each[d < 0 ? b : (int64_t)(mt_unit(mt_mix64(state++)) * (double)m)];

            t.queries += s->queries;
            for (int j = 0; j < FIRST; j++) {
                t.share[j] += s->share[j];
                t.even[j] += s->even[j];
            }
        }
        if (d < 0)
            all = t;
        else
            drawn[d] = sinks_of(t.share, t.even, t.queries);
    }
    got = sinks_of(all.share, all.even, all.queries);
    *low = *high = -1;
    if (each && m >= MT_BOOTSTRAP_LEAST) {
        qsort(drawn, DRAWS, sizeof(*drawn), by_value);
        *low = drawn[DRAWS / 40];
        *high = drawn[DRAWS - 1 - DRAWS / 40];
    }
    free(each);
    return got;
}

static bool has_span(const struct watcher *w, int span)
{
    for (int b = 0; b < w->passages; b++)
        if (*queries_at(w, span, b) > 0)
            return true;
    return false;
}

static json_t *cell_json(const struct watcher *w, int layer, int span)
{
    struct mt_interval all = mean(w, layer, layer, span, span, 0, FIRST - 1, false);
    json_t *o =
        json_pack("{s:s, s:i, s:I, s:I}", "type", "quality_attention", "layer", layer, "from",
                  (json_int_t)span_from(span), "to", (json_int_t)span_from(span + 1));
    json_t *share = json_array();

    quality_interval_json(o, &all, "share");
    mt_json_set_real(o, "neighbours", mean(w, layer, layer, span, span, 0, FIRST - 1, true).mean);
    for (int j = 0; j < FIRST; j++)
        json_array_append_new(share,
                              mt_json_real(mean(w, layer, layer, span, span, j, j, false).mean));
    json_object_set_new(o, "tokens", share);
    return o;
}

static json_t *token_json(const struct watcher *w, int j)
{
    struct mt_interval share = mean(w, 0, w->layers - 1, 0, SPANS - 1, j, j, false);
    json_t *o = json_pack("{s:s, s:i}", "type", "quality_first", "token", j);

    quality_interval_json(o, &share, "share");
    mt_json_set_real(o, "neighbours", mean(w, 0, w->layers - 1, 0, SPANS - 1, j, j, true).mean);
    return o;
}

static json_t *sinks_json(int sinks, int low, int high)
{
    json_t *o = json_pack("{s:s, s:i}", "type", "quality_sinks", "sinks", sinks);

    if (low >= 0) {
        json_object_set_new(o, "low", json_integer(low));
        json_object_set_new(o, "high", json_integer(high));
    }
    return o;
}

static int print_json(const struct watcher *w, const struct quality_text *t, const char *why)
{
    int low, high, sinks = suggest(w, &low, &high);
    int rc = mt_json_line(stdout, quality_head_json(w->o, t, why));

    for (int l = 0; l < w->layers; l++)
        for (int s = 0; s < SPANS && rc == 0; s++)
            if (has_span(w, s))
                rc = mt_json_line(stdout, cell_json(w, l, s));
    for (int j = 0; j < FIRST && rc == 0; j++)
        rc = mt_json_line(stdout, token_json(w, j));
    if (rc == 0 && !why)
        rc = mt_json_line(stdout, sinks_json(sinks, low, high));
    return rc;
}

static void print_table(const struct watcher *w, const char *why)
{
    int low, high, sinks = suggest(w, &low, &high);

    printf("%s, %s: share of attention on the first %d tokens, and on as many that are as far away "
           "(%%)\n%5s",
           mt_model_info(w->o->pm.m)->name, w->o->text, FIRST, "layer");
    for (int s = 0; s < SPANS; s++)
        if (has_span(w, s))
            printf("  %6lld..%-6lld", (long long)span_from(s), (long long)span_from(s + 1) - 1);
    putchar('\n');
    for (int l = 0; l < w->layers; l++) {
        printf("%5d", l);
        for (int s = 0; s < SPANS; s++)
            if (has_span(w, s))
                printf("  %6.1f %7.2f", 100 * mean(w, l, l, s, s, 0, FIRST - 1, false).mean,
                       100 * mean(w, l, l, s, s, 0, FIRST - 1, true).mean);
        putchar('\n');
    }
    printf("token %8s %20s %10s   all layers and distances (%%)\n", "share", "95 %", "neighbours");
    for (int j = 0; j < FIRST; j++) {
        struct mt_interval a = mean(w, 0, w->layers - 1, 0, SPANS - 1, j, j, false);

        char range[48] = "-";
        if (!isnan(a.low))
            snprintf(range, sizeof(range), "[%.2f, %.2f]", 100 * a.low, 100 * a.high);
        printf("%5d %8.2f %20s %10.3f\n", j, 100 * a.mean, range,
               100 * mean(w, 0, w->layers - 1, 0, SPANS - 1, j, j, true).mean);
    }
    if (why)
        printf("%s\n", why);
    else if (sinks && low < 0)
        printf("sinks: %d (no interval with fewer than %d passages)\n", sinks, MT_BOOTSTRAP_LEAST);
    else if (sinks)
        printf("sinks: %d (%d to %d when passages are drawn anew)\n", sinks, low, high);
    else
        printf("no sinks: the first tokens get what their neighbours get\n");
}

/* ---- all of it ---- */

static int run_passages(struct watcher *w, const struct quality_text *t, struct mt_err *e)
{
    const struct mt_arm arm = {.kv_type = (enum mt_dtype)w->o->kv_types.v[0]};
    const struct mt_watch watch = {w, see_layer};
    int rc = 0;

    for (w->passage = 0; rc == 0 && w->passage < t->passages; w->passage++) {
        int32_t *ids = quality_passage(t, w->passage);
        struct mt_panel p = {.ids = ids,
                             .n = w->rows + 1,
                             .arms = &arm,
                             .n_arms = 1,
                             .block_tokens = w->o->block,
                             .watch = &watch,
                             .ctx = w,
                             .row = take};

        rc = ids ? mt_panel_run(w->o->pm.m, &p, e) : mt_err_set(e, -ENOMEM, "out of memory");
        free(ids);
    }
    if (w->tty)
        fputs("\r\033[K", stderr);
    return rc;
}

static int run(struct watcher *w, struct quality_text *t)
{
    const struct mt_model_info *info = mt_model_info(w->o->pm.m);
    struct mt_err e = {0};
    int status = quality_text_open(t, w->o), rc;

    if (status != MT_EXIT_OK)
        return status;
    w->rows = t->n_prompt + t->length - 1;
    if (w->rows <= FROM) {
        mt_msg(MT_ERROR, "--attention: passages of %lld tokens are too short (above %d)",
               (long long)w->rows + 1, FROM + 1);
        return MT_EXIT_USAGE;
    }
    w->be = mt_model_backend(w->o->pm.m);
    w->layers = info->layers;
    w->heads = info->heads;
    w->passages = t->passages;
    w->cells =
        mt_alloc(mt_mul((size_t)(w->layers * SPANS), (size_t)w->passages), sizeof(*w->cells));
    w->queries = mt_alloc((size_t)(SPANS * w->passages), sizeof(*w->queries));
    w->mass = mt_alloc((size_t)w->heads * (FIRST + MT_MASS_BINS), sizeof(*w->mass));
    rc = w->cells && w->queries && w->mass ? run_passages(w, t, &e)
                                           : mt_err_set(&e, -ENOMEM, "out of memory");
    if (rc < 0) {
        mt_msg(MT_ERROR, "%s", e.text);
        return MT_EXIT_FAILED;
    }
    const char *why = quality_no_meaning(w->o, w->nll / w->tokens);
    if (why)
        mt_msg(MT_WARN, "%s", why);
    if (w->o->table)
        print_table(w, why);
    else
        rc = print_json(w, t, why);
    return rc < 0 && rc != -EPIPE ? MT_EXIT_FAILED : MT_EXIT_OK;
}

int quality_attention(const struct quality_options *o)
{
    struct watcher w = {.o = o, .tty = isatty(STDERR_FILENO)};
    struct quality_text t = {0};
    int status = run(&w, &t);

    free(w.cells);
    free(w.queries);
    free(w.mass);
    quality_text_close(&t);
    return status;
}
