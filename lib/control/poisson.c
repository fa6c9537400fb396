/*
 * poisson.c: Poisson probabilities in log space. The naive k log m - m - log k! loses a digit of
 * the result for each digit of k; here the large terms cancel on paper, not in the machine.
 */
#include "control/poisson.h"

#include <math.h>

/* log k! - log(sqrt(2 pi k) (k/e)^k) for k >= 1. */
static double stirling_error(double k)
{
    double k2 = k * k;

    if (k <= 15) {
        int sign;

        return lgamma_r(k + 1, &sign) - (k + 0.5) * log(k) + k - 0.5 * log(2 * M_PI);
    }
    /* The first term left out is below 1/(1188 k^9): 1e-14 at 16. */
    return (1.0 / 12 - (1.0 / 360 - (1.0 / 1260 - 1.0 / 1680 / k2) / k2) / k2) / k;
}

/* k log(k/m) + m - k, without cancellation where k is near m. */
static double deviance(double k, double m)
{
    if (fabs(k - m) < 0.1 * (k + m)) {
        double v = (k - m) / (k + m), sum = (k - m) * v, term = 2 * k * v;

        for (int j = 1; j < 1000; j++) {
            double next;

            term *= v * v;
            next = sum + term / (2 * j + 1);
            if (next == sum)
                break;
            sum = next;
        }
        return sum;
    }
    return k * log(k / m) + m - k;
}

double mt_poisson_log(int64_t k, double mean)
{
    double x = (double)k;

    if (k < 0 || (mean == 0 && k > 0))
        return -INFINITY;
    if (k == 0)
        return -mean;
    return -stirling_error(x) - deviance(x, mean) - 0.5 * log(2 * M_PI * x);
}

double mt_poisson_log_cdf(int64_t k, double mean)
{
    double sum = 1, term = 1;

    if (k < 0)
        return -INFINITY;
    if (mean == 0)
        return 0;
    if ((double)k < mean) {
        /* Downwards from k, each term the next one's k/mean. */
        for (int64_t i = k; i > 0 && term > 1e-17 * sum; i--) {
            term *= (double)i / mean;
            sum += term;
        }
        return fmin(0, mt_poisson_log(k, mean) + log(sum));
    }
    /* The other tail, from k + 1 upwards. */
    for (int64_t i = k + 2; term > 1e-17 * sum; i++) {
        term *= mean / (double)i;
        sum += term;
    }
    return log1p(-fmin(1, exp(mt_poisson_log(k + 1, mean)) * sum));
}

double mt_bessel_i0_scaled(double z)
{
    double sum = 1, term = 1;

    if (z < 30) {
        /* sum (z^2/4)^m / m!^2: all terms positive, the sum below 1e12. */
        for (int m = 1; term > 1e-17 * sum; m++) {
            term *= z * z / 4 / ((double)m * m);
            sum += term;
        }
        return exp(-z) * sum;
    }
    /* Asymptotic series; at z = 30 its smallest term is far below 1e-17. */
    for (int m = 1; m < 60 && term > 1e-17; m++) {
        double odd = 2 * m - 1;

        term *= odd * odd / (8 * z * m);
        sum += term;
    }
    return sum / sqrt(2 * M_PI * z);
}

double mt_log_add(double a, double b)
{
    double high = fmax(a, b), low = fmin(a, b);

    return high == -INFINITY ? high : high + log1p(exp(low - high));
}
