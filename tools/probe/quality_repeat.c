/*
 * quality_repeat.c: how much a text of tokens repeats itself.
 */
#include <math.h>
#include <string.h>

#include "tools/probe/quality.h"

enum { PERIOD_MOST = 64 };

double quality_distinct(const int32_t *ids, int64_t n)
{
    int64_t runs = n - QUALITY_NGRAM + 1, new = 0;

    for (int64_t i = 0; i < runs; i++) {
        bool seen = false;

        for (int64_t j = 0; j < i && !seen; j++)
            seen = !memcmp(ids + i, ids + j, QUALITY_NGRAM * sizeof(*ids));
        new += !seen;
    }
    return runs > 0 ? (double)new / (double)runs : NAN;
}

double quality_loop(const int32_t *ids, int64_t n)
{
    int64_t most = 0;

    for (int64_t p = 1; p <= PERIOD_MOST; p++) {
        int64_t run = 0;

        for (int64_t i = p; i < n; i++) {
            run = ids[i] == ids[i - p] ? run + 1 : 0;
            most = run > most ? run : most;
        }
    }
    return n > 0 ? (double)most / (double)n : NAN;
}
