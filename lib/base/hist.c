/*
 * hist.c: the log-linear latency histogram. Group 0 holds 0..63 one by one; group g >= 1 holds
 * [2^(g+5), 2^(g+6)) in 64 steps of 2^(g-1). A step is at most 1/64 of the values in it.
 */
#include "base/base.h"

#include <math.h>
#include <string.h>

#define STEP_BITS 6
#define STEPS     (1 << STEP_BITS)
#define TOP_NS    (INT64_C(1) << 47)

static int bucket_of(int64_t v)
{
    int group;

    if (v > TOP_NS)
        return MT_HIST_BUCKETS - 1;
    if (v < STEPS)
        return (int)v;
    group = 63 - __builtin_clzll((unsigned long long)v) - STEP_BITS + 1;
    return group * STEPS + (int)(v >> (group - 1)) - STEPS;
}

/* Largest value of a bucket. */
static int64_t bucket_top(int i)
{
    int group = i / STEPS;

    if (i == MT_HIST_BUCKETS - 1)
        return INT64_MAX;
    if (group == 0)
        return i;
    return ((int64_t)(i % STEPS + STEPS + 1) << (group - 1)) - 1;
}

void mt_hist_clear(struct mt_hist *h)
{
    memset(h, 0, sizeof(*h));
}

void mt_hist_add(struct mt_hist *h, int64_t ns)
{
    if (ns < 0)
        ns = 0;
    if (h->count == 0 || ns < h->min)
        h->min = ns;
    if (h->count == 0 || ns > h->max)
        h->max = ns;
    h->count++;
    h->sum += (double)ns;
    h->bucket[bucket_of(ns)]++;
}

void mt_hist_merge(struct mt_hist *into, const struct mt_hist *from)
{
    if (from->count == 0)
        return;
    if (into->count == 0 || from->min < into->min)
        into->min = from->min;
    if (into->count == 0 || from->max > into->max)
        into->max = from->max;
    into->count += from->count;
    into->sum += from->sum;
    for (int i = 0; i < MT_HIST_BUCKETS; i++)
        into->bucket[i] += from->bucket[i];
}

int64_t mt_hist_quantile(const struct mt_hist *h, double q)
{
    uint64_t rank, seen = 0;

    if (h->count == 0)
        return 0;
    if (!(q > 0))
        q = 0;
    if (q >= 1)
        return h->max;
    rank = (uint64_t)ceil(q * (double)h->count);
    if (rank == 0)
        rank = 1;
    for (int i = 0; i < MT_HIST_BUCKETS; i++) {
        seen += h->bucket[i];
        if (seen >= rank) {
            int64_t top = bucket_top(i);

            return top < h->max ? top : h->max;
        }
    }
    return h->max;
}
