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

/* heap[at] moves down to its place; the first of all is at 0. */
static void sift(int32_t *heap, int n, int at, const float *l)
{
    int32_t v = heap[at];

    for (int kid; (kid = 2 * at + 1) < n; at = kid) {
        if (kid + 1 < n && before(l, heap[kid + 1], heap[kid]))
            kid++;
        if (before(l, v, heap[kid]))
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

/*
 * Candidates in order of rank, as many as top-k and top-p leave: they are taken from a heap one by
 * one to the end of its array, which fills from behind as the heap shrinks.
 */
static int rank(int32_t *id, double *w, int n, const float *l, const struct mt_sample *p,
                int32_t top)
{
    int k = p->top_k > 0 && p->top_k < n ? p->top_k : n, left = n, taken = 0;
    double total = 0, sum = 0;

    for (int i = n / 2 - 1; i >= 0; i--)
        sift(id, n, i, l);
    if (k == n) /* top-p's share is of all candidates: no need to rank those beyond it */
        for (int i = 0; i < n; i++)
            total += exp(((double)l[id[i]] - l[top]) / p->temperature);
    while (taken < k) {
        int32_t first = id[0];

        w[taken] = exp(((double)l[first] - l[top]) / p->temperature);
        sum += w[taken++];
        id[0] = id[--left];
        id[left] = first;
        if (left)
            sift(id, left, 0, l);
        if (k == n && sum >= p->top_p * total)
            break;
    }
    for (int i = 0; i < taken / 2; i++) { /* behind the heap they lie last first; turn them round */
        int32_t t = id[n - 1 - i];

        id[n - 1 - i] = id[n - taken + i];
        id[n - taken + i] = t;
    }
    memmove(id, id + n - taken, (size_t)taken * sizeof(*id));
    if (k < n) { /* top-p of what top-k left */
        total = sum;
        sum = 0;
        for (int i = 0; i < taken; i++)
            if ((sum += w[i]) >= p->top_p * total)
                return i + 1;
    }
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
    int n = 0;

    if (r && r->exit_id >= 0 && exits(l, width, p, r->exit_id))
        return r->exit_id;
    if (r)
        apply(l, r);
    top = best(l, width);
    if (top < 0 || !(p->temperature > 0) || isinf(l[top]) || p->top_k == 1)
        return top;
    for (int i = 0; i < width; i++)
        if (l[i] > -INFINITY) /* not NaN either */
            id[n++] = i;
    if ((p->top_k > 0 && p->top_k < n) || p->top_p < 1) {
        n = rank(id, w, n, l, p, top);
    } else {
        for (int i = 0; i < n; i++)
            w[i] = exp(((double)l[id[i]] - l[top]) / p->temperature);
    }
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
