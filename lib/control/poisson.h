/*
 * poisson.h: the Poisson distribution in log space, for means up to 1e8 and tails down to where
 * exp() is 0. A sum of n exponential durations exceeds x means iff a Poisson count of mean x is
 * below n, which is why every exact figure of collapse.h is made of these.
 *
 * Relative error of each probability below 1e-11 (saddle-point form: Loader, "Fast and accurate
 * computation of binomial probabilities", 2000). Pure functions; a mean must be >= 0.
 */
#ifndef MT_POISSON_H
#define MT_POISSON_H

#include <stdint.h>

/* log P(Poisson(mean) = k); -Inf where that is 0 (k < 0 too). */
double mt_poisson_log(int64_t k, double mean);

/* log P(Poisson(mean) <= k); -Inf for k < 0. */
double mt_poisson_log_cdf(int64_t k, double mean);

/* exp(-z) I0(z), z >= 0: the modified Bessel function of order 0 without its overflow. */
double mt_bessel_i0_scaled(double z);

/* log(exp(a) + exp(b)). */
double mt_log_add(double a, double b);

#endif
