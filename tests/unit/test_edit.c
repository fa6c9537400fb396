/*
 * test_edit.c: the distance of texts against its definition, and what counts as spoken.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/base.h"
#include "control/edit.h"

static int64_t apart(const char *a, const char *b, bool heard)
{
    int32_t *x, *y;
    int64_t n = mt_edit_chars(a, strlen(a), heard, &x), m = mt_edit_chars(b, strlen(b), heard, &y);
    int64_t d = mt_edit_distance(x, n, y, m);

    assert_int_equal(d, mt_edit_distance(y, m, x, n));
    free(x);
    free(y);
    return d;
}

static void test_known(void **state)
{
    (void)state;
    assert_int_equal(apart("", "", false), 0);
    assert_int_equal(apart("", "abc", false), 3);
    assert_int_equal(apart("kitten", "sitting", false), 3);
    assert_int_equal(apart("Saturday", "Sunday", false), 3);
    assert_int_equal(apart("gr\xc3\xbc\xc3\x9f", "gruss", false), 3); /* characters, not bytes */
    assert_int_equal(apart("a\xff\xff", "a\xef\xbf\xbd", false), 1);
}

static void test_heard(void **state)
{
    (void)state;
    assert_int_equal(apart("  And so, my fellow -- Americans!", "and so my fellow americans", true),
                     0);
    assert_int_equal(apart("\xc3\x84rger 12.", "\xc3\xa4rger 12", true), 0);
    assert_int_equal(apart("?!", "", true), 0);
    assert_int_equal(apart("a b", "ab", true), 1);
}

/* By the definition, with all its branches: small texts only. */
static int64_t slow(const int32_t *a, int64_t n, const int32_t *b, int64_t m)
{
    int64_t best, other;

    if (!n || !m)
        return n + m;
    best = slow(a + 1, n - 1, b + 1, m - 1) + (*a != *b);
    other = slow(a + 1, n - 1, b, m) + 1;
    best = other < best ? other : best;
    other = slow(a, n, b + 1, m - 1) + 1;
    return other < best ? other : best;
}

static void test_random(void **state)
{
    uint64_t s = 7;

    (void)state;
    for (int i = 0; i < 200; i++) {
        int32_t a[6], b[6];
        int64_t n = (int64_t)(mt_mix64(s++) % 7), m = (int64_t)(mt_mix64(s++) % 7);

        for (int k = 0; k < 6; k++) {
            a[k] = (int32_t)(mt_mix64(s++) % 3);
            b[k] = (int32_t)(mt_mix64(s++) % 3);
        }
        assert_int_equal(mt_edit_distance(a, n, b, m), slow(a, n, b, m));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known),
        cmocka_unit_test(test_heard),
        cmocka_unit_test(test_random),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
