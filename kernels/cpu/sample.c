/*
 * sample.c: a row of logits becomes a token. The rules, temperature, then top-k, then top-p, then
 * one draw from a number that only the session's seed and the draw's own count decide.
 * Probabilities in double, one version for all tiers, so that a tier changes a draw only through
 * its logits.
 *
 * Order is by logit, ties by the lower id. A NaN is no candidate.
 */
#include "kernels/cpu/cpu.h"

#define PLAIN_DRAW UINT64_C(0x9e3779b97f4a7c15)

struct job {
    struct mt_cpu *c;
    struct mt_rows logits;
    const struct mt_sample *params;
    int32_t *ids;
};

/* Highest logit, lowest id among equals; -1 if no logit is a number. */
static int32_t best(const float *l, int n)
{
    int32_t b = -1;

    for (int i = 0; i < n; i++)
        if (b < 0 ? !isnan(l[i]) : l[i] > l[b])
            b = i;
    return b;
}

static bool before(const float *l, int32_t a, int32_t b)
{
    return l[a] == l[b] ? a < b : l[a] > l[b];
}

/*
 * heap[at] moves down to its place; the first of all is at 0, or with last_up the last. A constant
 * where it is called.
 */
static inline void sift(int32_t *heap, int n, int at, const float *l, bool last_up)
{
    int32_t v = heap[at];

    for (int kid; (kid = 2 * at + 1) < n; at = kid) {
        if (kid + 1 < n && before(l, heap[kid + 1], heap[kid]) != last_up)
            kid++;
        if (before(l, v, heap[kid]) != last_up)
            break;
        heap[at] = heap[kid];
    }
    heap[at] = v;
}

/* The first id whose cumulative weight passes u of the total. */
static int32_t draw(const int32_t *id, const double *w, int n, double total, double u)
{
    double sum = 0;

    for (int i = 0; i < n; i++)
        if ((sum += w[i]) > u * total)
            return id[i];
    return id[n - 1]; /* rounding: u * total reached the sum itself */
}

static double weight(const float *l, int32_t id, int32_t top, const struct mt_sample *p)
{
    return exp(((double)l[id] - l[top]) / p->temperature);
}

/*
 * id: the k + 1 candidates with the lowest ids; then the k first of all, in order of rank. One pass
 * that holds the first of those met so far, with the one to go at the top of a heap.
 */
static void first_few(int32_t *id, int k, const float *l, int width)
{
    int i = id[k];

    for (int at = k / 2 - 1; at >= 0; at--)
        sift(id, k, at, l, true);
    for (; i < width; i++)
        if (l[i] > l[id[0]]) { /* not an equal: its id is higher */
            id[0] = i;
            sift(id, k, 0, l, true);
        }
    for (int left = k; left > 1;) { /* the last of those left goes behind them */
        int32_t last = id[0];

        id[0] = id[--left];
        id[left] = last;
        sift(id, left, 0, l, true);
    }
}

/* Of the k first candidates those that top-p leaves; id as first_few takes it. */
static int top_k(int32_t *id, double *w, int k, const float *l, int width,
                 const struct mt_sample *p, int32_t top)
{
    double total = 0, sum = 0;

    first_few(id, k, l, width);
    for (int i = 0; i < k; i++) {
        w[i] = weight(l, id[i], top, p);
        total += w[i];
    }
    for (int i = 0; i < k; i++)
        if ((sum += w[i]) >= p->top_p * total)
            return i + 1;
    return k;
}

/*
 * Of n candidates those that top-p leaves, in order of rank: they are taken from a heap one by one
 * to the end of its array, which fills from behind as the heap shrinks.
 */
static int top_p(int32_t *id, double *w, int n, const float *l, const struct mt_sample *p,
                 int32_t top)
{
    double total = 0, sum = 0;
    int taken = 0;

    for (int i = n / 2 - 1; i >= 0; i--)
        sift(id, n, i, l, false);
    for (int i = 0; i < n; i++)
        total += weight(l, id[i], top, p);
    for (int left = n; left > 0 && (!taken || sum < p->top_p * total);) {
        int32_t first = id[0];

        sum += w[taken++] = weight(l, first, top, p);
        id[0] = id[--left];
        id[left] = first;
        if (left)
            sift(id, left, 0, l, false);
    }
    for (int i = 0; i < taken / 2; i++) { /* behind the heap they lie last first; turn them round */
        int32_t t = id[n - 1 - i];

        id[n - 1 - i] = id[n - taken + i];
        id[n - taken + i] = t;
    }
    memmove(id, id + n - taken, (size_t)taken * sizeof(*id));
    return taken;
}

/* A number in [0, 1) for the draw; salts lie far apart, for draws count up by one. */
static double chance(const struct mt_sample *p, uint64_t salt)
{
    return mt_unit(mt_mix64((mt_mix64(p->seed) ^ p->draw) + salt));
}

/* Would a draw of the plain logits be this id? Only its own share of the draw matters. */
static bool exits(const float *l, int width, const struct mt_sample *p, int32_t id)
{
    int32_t top = best(l, width);
    double total = 0;

    if (top < 0 || !(p->temperature > 0) || isinf(l[top]))
        return top == id;
    for (int i = 0; i < width; i++)
        if (l[i] > -INFINITY)
            total += exp((double)l[i] - l[top]);
    return chance(p, PLAIN_DRAW) * total < exp((double)l[id] - l[top]);
}

static void apply(float *l, const struct mt_sample_rules *r)
{
    for (int i = 0; i < r->n_ban; i++)
        l[r->ban[i]] = -INFINITY;
    for (int i = 0; i < r->n_scale; i++) {
        const struct mt_scale *s = &r->scale[i];
        float *v = &l[s->id];

        *v = s->down && !(*v > 0) ? *v * s->by : *v / s->by;
    }
}

static int32_t sample_row(float *l, int width, const struct mt_sample *p, int32_t *id, double *w)
{
    const struct mt_sample_rules *r = p->rules;
    double total = 0, u;
    int32_t top;
    int k = p->top_k > 0 ? p->top_k : width, n = 0;

    if (r && r->exit_id >= 0 && exits(l, width, p, r->exit_id))
        return r->exit_id;
    if (r)
        apply(l, r);
    top = best(l, width);
    if (top < 0 || !(p->temperature > 0) || isinf(l[top]) || p->top_k == 1)
        return top;
    for (int i = 0; i < width && n <= k; i++)
        if (l[i] > -INFINITY) /* not NaN either */
            id[n++] = i;
    if (n > k)
        n = top_k(id, w, k, l, width, p, top);
    else if (p->top_p < 1)
        n = top_p(id, w, n, l, p, top);
    else
        for (int i = 0; i < n; i++)
            w[i] = weight(l, id[i], top, p);
    for (int i = 0; i < n; i++)
        total += w[i];
    u = chance(p, 0);
    return draw(id, w, n, total, u);
}

static void run(void *arg, int thread, int64_t begin, int64_t end)
{
    const struct job *j = arg;

    for (int64_t i = begin; i < end; i++)
        j->ids[i] = sample_row(j->logits.data + i * j->logits.stride, j->logits.width,
                               &j->params[i], j->c->pick + (size_t)thread * (size_t)j->c->width,
                               j->c->weight + (size_t)thread * (size_t)j->c->width);
}

static void sample(struct mt_backend *be, struct mt_rows logits, const struct mt_sample *params,
                   int32_t *ids, int n)
{
    struct job j = {cpu_of(be), logits, params, ids};

    if (n > 0)
        mt_par(j.c, n, 4 * (int64_t)logits.width, run, &j);
}

void mt_cpu_sample(struct mt_ops *o)
{
    o->sample = sample;
}
