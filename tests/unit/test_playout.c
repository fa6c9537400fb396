/*
 * test_playout.c: what a listener hears, on calls small enough to count by hand: 2 s frames, due 2
 * s after they are complete.
 */
#include "control/playout.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

static struct mt_playout *p;

static int begin(void **state)
{
    (void)state;
    return mt_playout_new(&p, 0, NAN);
}

static int finish(void **state)
{
    (void)state;
    mt_playout_free(&p);
    return 0;
}

static void add(const char *session, int64_t frame, enum mt_status status, double delay_ms)
{
    struct mt_playout_frame f = {.session = session,
                                 .frame = frame,
                                 .status = status,
                                 .delay_ms = delay_ms,
                                 .deadline_ms = 2000,
                                 .tokens_out = status == MT_OK || status == MT_LATE ? 12 : 0};

    assert_int_equal(mt_playout_add(p, &f), 0);
}

static struct mt_playout_sums sums_of(const char *session)
{
    struct mt_playout_sums s;
    const char *name;

    mt_playout_end(p);
    for (size_t i = 0; (name = mt_playout_session(p, i, &s)); i++)
        if (!strcmp(name, session))
            return s;
    fail_msg("no session %s", session);
    return s;
}

static void near(double a, double b)
{
    assert_true(fabs(a - b) < 1e-9);
}

/* Half a second of buffer: what comes after it is late, whatever the deadline. */
static void test_a_buffer(void **state)
{
    (void)state;
    mt_playout_free(&p);
    assert_int_equal(mt_playout_new(&p, 0, 0.5), 0);
    add("a", 0, MT_OK, 400);
    add("a", 1, MT_OK, 800);
    add("a", 2, MT_LATE, 2600);
    struct mt_playout_sums s = sums_of("a");
    assert_int_equal(s.underruns, 2);
    near(s.underrun_s, 0.3 + 2.0); /* the second is late for all of its place */
}

static void test_on_time_is_no_gap(void **state)
{
    struct mt_playout_sums s;

    (void)state;
    for (int k = 0; k < 100; k++)
        add("1", k, MT_OK, k % 2 ? 2000 : 0);
    s = sums_of("1");
    assert_int_equal(s.frames, 100);
    assert_int_equal(s.heard, 100);
    assert_int_equal(s.silent + s.gaps + s.underruns, 0);
    near(s.gap_s, 0);
}

static void test_neighbours_are_one_gap(void **state)
{
    struct mt_playout_sums s;

    (void)state;
    add("1", 0, MT_OK, 100);
    add("1", 1, MT_STALLED, 1);
    add("1", 2, MT_DROPPED, 1);
    add("1", 3, MT_LATE, 2500); /* silence goes on for half a second, then sound */
    add("1", 4, MT_OK, 100);
    add("1", 5, MT_FAILED, NAN);
    s = sums_of("1");
    assert_int_equal(s.heard, 3);
    assert_int_equal(s.silent, 3);
    assert_int_equal(s.gaps, 2);
    near(s.gap_s, 6.5);
    near(s.longest_gap_s, 4.5);
    assert_int_equal(s.underruns, 1);
    near(s.underrun_s, 0.5);
    near(s.longest_underrun_s, 0.5);
}

/*
 * A late answer is heard until the end of its place and never moves the next: lateness does not add
 * up.
 */
static void test_late_is_bounded_by_its_place(void **state)
{
    struct mt_playout_sums s;

    (void)state;
    add("1", 0, MT_LATE, 2300);
    add("1", 1, MT_LATE, 9000);
    add("1", 2, MT_OK, 10);
    s = sums_of("1");
    assert_int_equal(s.underruns, 2);
    near(s.underrun_s, 2.3);
    assert_int_equal(s.gaps, 2);
    near(s.gap_s, 2.3);
    near(s.longest_gap_s, 2);
}

static void test_ok_without_tokens_is_silence(void **state)
{
    struct mt_playout_frame f = {
        .session = "1", .frame = 1, .status = MT_OK, .delay_ms = 5, .deadline_ms = 2000};
    struct mt_playout_sums s;

    (void)state;
    add("1", 0, MT_OK, 5);
    assert_int_equal(mt_playout_add(p, &f), 0);
    f.frame = 2;
    f.tokens_out = -1; /* not told: believed */
    assert_int_equal(mt_playout_add(p, &f), 0);
    s = sums_of("1");
    assert_int_equal(s.untruthful, 1);
    assert_int_equal(s.silent, 1);
    assert_int_equal(s.heard, 2);
    near(s.gap_s, 2);
}

static void test_any_order_is_the_same(void **state)
{
    static const int order[] = {3, 1, 0, 2, 7, 5, 6, 4, 9, 8, 10, 11};
    struct mt_playout_sums a, b;

    (void)state;
    add("b", 0, MT_OK, 1);
    for (int k = 0; k < (int)MT_COUNT(order); k++)
        add("a", k + 1, k % 3 ? MT_OK : MT_STALLED, 1);
    for (size_t i = 0; i < MT_COUNT(order); i++)
        add("b", order[i] + 1, order[i] % 3 ? MT_OK : MT_STALLED, 1);
    a = sums_of("a");
    b = sums_of("b");
    assert_int_equal(b.frames, a.frames + 1);
    assert_int_equal(b.missing, 0);
    assert_int_equal(b.gaps, a.gaps);
    near(b.gap_s, a.gap_s);
}

static void test_holes(void **state)
{
    struct mt_playout_sums s;

    (void)state;
    add("1", 5, MT_OK, 1); /* came into a running call: nothing before counts */
    add("1", 7, MT_OK, 1);
    add("1", 7, MT_STALLED, 1);
    add("1", 5, MT_STALLED, 1);
    add("1", 1000000000000, MT_OK, 1); /* in one step, not in 10^12 */
    s = sums_of("1");
    assert_int_equal(s.repeated, 2);
    assert_int_equal(s.heard, 3);
    assert_int_equal(s.frames, 1000000000000 - 4);
    assert_int_equal(s.missing, s.frames - 3);
    assert_int_equal(s.gaps, 2);
}

static void test_frame_length_of_the_server(void **state)
{
    struct mt_playout_sums s;

    (void)state;
    assert_int_equal(mt_playout_frame_length(p, "1", 0.08), 0);
    add("1", 0, MT_STALLED, 1);
    add("1", 1, MT_OK, 2010);
    s = sums_of("1");
    near(s.gap_s, 0.09);
}

static void test_total(void **state)
{
    struct mt_playout_sums s;

    (void)state;
    add("1", 0, MT_STALLED, 1);
    add("2", 0, MT_LATE, 2100);
    add("2", 1, MT_DROPPED, 1);
    add("feed-3", 0, MT_REFUSED, NAN);
    mt_playout_end(p);
    mt_playout_total(p, &s);
    assert_int_equal(s.frames, 3);
    assert_int_equal(s.refused, 1);
    assert_int_equal(s.gaps, 3);
    near(s.gap_s, 4.1);
    near(s.longest_gap_s, 2);
    assert_null(mt_playout_session(p, 2, &s));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_on_time_is_no_gap, begin, finish),
        cmocka_unit_test_setup_teardown(test_a_buffer, begin, finish),
        cmocka_unit_test_setup_teardown(test_neighbours_are_one_gap, begin, finish),
        cmocka_unit_test_setup_teardown(test_late_is_bounded_by_its_place, begin, finish),
        cmocka_unit_test_setup_teardown(test_ok_without_tokens_is_silence, begin, finish),
        cmocka_unit_test_setup_teardown(test_any_order_is_the_same, begin, finish),
        cmocka_unit_test_setup_teardown(test_holes, begin, finish),
        cmocka_unit_test_setup_teardown(test_frame_length_of_the_server, begin, finish),
        cmocka_unit_test_setup_teardown(test_total, begin, finish),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
