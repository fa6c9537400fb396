/*
 * bootstrap.h: how sure a mean over a text is. Neighbouring tokens are no independent draws, so
 * whole blocks of the text are drawn again, with all tokens they have.
 */
#ifndef MT_BOOTSTRAP_H
#define MT_BOOTSTRAP_H

#include <stdint.h>

enum { MT_BOOTSTRAP_LEAST = 6 }; /* blocks that an interval needs */

/* A mean with its 95 % interval; low and high NaN below MT_BOOTSTRAP_LEAST blocks. */
struct mt_interval {
    double mean, low, high;
    int64_t blocks;
};

/*
 * sum(x) / sum(weight) over blocks, those with weight 0 left out; the mean is NaN without any. The
 * interval is the percentiles' of 2000 drawn anew, made wider about the mean by what few blocks
 * know too little: Student's factor for blocks - 1 degrees of freedom over the normal one, and
 * sqrt(n / (n - 1)). Same seed, same interval. -ENOMEM.
 */
int mt_bootstrap(const double *x, const double *weight, int64_t n, uint64_t seed,
                 struct mt_interval *out);

#endif
