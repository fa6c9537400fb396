/*
 * test_bootstrap.c: intervals of a mean: they hold what they promise on text-like series, whose
 * neighbours resemble each other, where pooled tokens would promise too much.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "base/base.h"
#include "control/bootstrap.h"

static uint64_t state_of = 1;

static double normal(void)
{
    double s = 0;

    for (int i = 0; i < 12; i++)
        s += mt_unit(mt_mix64(state_of++));
    return s - 6;
}

/* Share of series whose interval holds the true mean, 0. */
static double coverage(int blocks, int tokens, double memory, int series)
{
    double *x = calloc((size_t)blocks, sizeof(*x)), *n = calloc((size_t)blocks, sizeof(*n));
    int held = 0;

    for (int s = 0; s < series; s++) {
        struct mt_interval got;
        double v = normal() / sqrt(1 - memory * memory);

        for (int b = 0; b < blocks; b++) {
            x[b] = 0;
            n[b] = tokens;
            for (int t = 0; t < tokens; t++) {
                x[b] += v;
                v = memory * v + normal();
            }
        }
        assert_int_equal(mt_bootstrap(x, n, blocks, (uint64_t)s, &got), 0);
        held += got.low <= 0 && got.high >= 0;
    }
    free(x);
    free(n);
    return (double)held / series;
}

static void test_coverage(void **state)
{
    (void)state;
    for (int blocks = 8; blocks <= 64; blocks *= 2) {
        double c = coverage(blocks, 64, 0.8, 300);

        if (c < 0.9 || c > 0.995)
            fail_msg("%d blocks: %.3f", blocks, c);
    }
    /* Tokens sold as independent: what blocks are for. */
    assert_true(coverage(1024, 1, 0.8, 60) < 0.7);
}

static void test_edges(void **state)
{
    const double x[] = {1, 2, 3, 4, 5, 6, 7}, one[] = {1, 1, 1, 1, 1, 1, 1},
                 some[] = {1, 0, 2, 1, 0, 1, 1};
    struct mt_interval got, again;

    (void)state;
    assert_int_equal(mt_bootstrap(x, one, 7, 1, &got), 0);
    assert_true(got.mean == 4 && got.low < 4 && got.high > 4 && got.blocks == 7);
    mt_bootstrap(x, one, 7, 1, &again);
    assert_true(got.low == again.low && got.high == again.high);
    mt_bootstrap(x, some, 7, 1, &got);
    assert_true(got.mean == 21.0 / 6 && got.blocks == 5 && isnan(got.low) && isnan(got.high));
    mt_bootstrap(x, one, 0, 1, &got);
    assert_true(isnan(got.mean) && got.blocks == 0);
    for (int64_t n = 6; n <= 7; n++) {
        const double same[] = {0, 0, 0, 0, 0, 0, 0};
        mt_bootstrap(same, one, n, 1, &got);
        assert_true(got.mean == 0 && got.low == 0 && got.high == 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_coverage),
        cmocka_unit_test(test_edges),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
