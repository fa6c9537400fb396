/*
 * bootstrap.c: block bootstrap of a ratio of sums.
 */
#include "control/bootstrap.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "base/base.h"
#include "control/livefit.h"

enum { DRAWS = 2000 };

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

static double draw(const double *x, const double *weight, const int64_t *used, int64_t n,
                   uint64_t *state)
{
    double sum = 0, count = 0;

    for (int64_t k = 0; k < n; k++) {
        int64_t i = used[(int64_t)(mt_unit(mt_mix64((*state)++)) * (double)n)];

        sum += x[i];
        count += weight[i];
    }
    return sum / count;
}

int mt_bootstrap(const double *x, const double *weight, int64_t n, uint64_t seed,
                 struct mt_interval *out)
{
    int64_t *used = mt_alloc((size_t)n + 1, sizeof(*used)), m = 0;
    double *means = mt_alloc(DRAWS, sizeof(*means)), sum = 0, count = 0;
    uint64_t state = mt_mix64(seed);

    *out = (struct mt_interval){NAN, NAN, NAN, 0};
    if (!used || !means) {
        free(used);
        free(means);
        return -ENOMEM;
    }
    for (int64_t i = 0; i < n; i++)
        if (weight[i] > 0) {
            used[m++] = i;
            sum += x[i];
            count += weight[i];
        }
    out->blocks = m;
    if (m > 0)
        out->mean = sum / count;
    if (m >= MT_BOOTSTRAP_LEAST) {
        double wider = mt_student_95((int)(m > 10000 ? 10000 : m - 1)) / 1.959964 *
                       sqrt((double)m / (double)(m - 1));

        for (int k = 0; k < DRAWS; k++)
            means[k] = draw(x, weight, used, m, &state);
        qsort(means, DRAWS, sizeof(*means), by_value);
        out->low = out->mean + wider * (means[DRAWS / 40] - out->mean);
        out->high = out->mean + wider * (means[DRAWS - 1 - DRAWS / 40] - out->mean);
    }
    free(used);
    free(means);
    return 0;
}
