/*
 * test_meter.c: what a server knows of itself: counts that agree with the records, and the word for
 * its health.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "wire/meter.h"

enum { FRAME_MS = 80 };

static struct mt_wire_meter *fresh(void)
{
    struct mt_wire_meter *m;

    assert_int_equal(mt_wire_meter_new(&m), 0);
    m->own = (struct mt_wire_state){.since_ns = 1,
                                    .beat_ns = 1,
                                    .frame_ns = FRAME_MS * MT_NS_PER_MS,
                                    .deadline_ns = FRAME_MS * MT_NS_PER_MS};
    return m;
}

static void frame(struct mt_wire_meter *m, enum mt_status status, double latency_ms,
                  const char *reason)
{
    struct mt_record r = {
        .status = status, .latency_ms = latency_ms, .tokens_out = 1, .reason = reason};

    mt_meter_frame(m, &r);
}

static void is(const char *word, const char *expected)
{
    assert_string_equal(word, expected);
}

static void test_alive(void **state)
{
    struct mt_wire_meter *m = fresh();
    struct mt_wire_state *s = &m->own;
    int64_t f = s->frame_ns;

    (void)state;
    is(mt_health_alive(s, 59 * MT_NS_PER_S), "ok"); /* a first frame may take its time */
    is(mt_health_alive(s, 61 * MT_NS_PER_S), "stalled");
    is(mt_health_ready(s, f), "warming");
    mt_meter_warm(m, 80 * MT_NS_PER_MS);
    is(mt_health_ready(s, f), "ok");
    is(mt_health_ready(s, 4 * f), "ok");
    is(mt_health_alive(s, 5 * f), "stalled"); /* within five frames both have turned */
    is(mt_health_ready(s, 5 * f), "stalled");
    s->beat_ns = 5 * f;
    is(mt_health_ready(s, 5 * f), "ok");
    s->frame_ns = MT_NS_PER_MS; /* a short frame is no reason to be nervous */
    is(mt_health_alive(s, s->beat_ns + 200 * MT_NS_PER_MS), "ok");
    is(mt_health_alive(s, s->beat_ns + 260 * MT_NS_PER_MS), "stalled");
    s->draining = true;
    is(mt_health_ready(s, s->beat_ns), "draining");
    is(mt_health_alive(s, s->beat_ns), "ok");
    mt_wire_meter_free(&m);
}

static void test_ready(void **state)
{
    struct mt_wire_meter *m = fresh();
    struct mt_wire_state *s = &m->own;
    struct mt_record lie = {.status = MT_OK};

    (void)state;
    mt_meter_warm(m, 81 * MT_NS_PER_MS);
    is(mt_health_ready(s, 1), "late");
    mt_meter_warm(m, -ENOSPC);
    is(mt_health_ready(s, 1), "stalled");
    mt_meter_warm(m, 1);
    for (int i = 0; i < 4; i++)
        frame(m, MT_LATE, 100, "deadline");
    is(mt_health_ready(s, 1), "ok");
    frame(m, MT_DROPPED, 1, "gone"); /* the client's doing */
    is(mt_health_ready(s, 1), "ok");
    frame(m, MT_DROPPED, 1, "backlog");
    is(mt_health_ready(s, 1), "dropped");
    mt_meter_frame(m, &lie);
    is(mt_health_ready(s, 1), "untruthful");
    frame(m, MT_OK, 79, NULL);
    is(mt_health_ready(s, 1), "ok");
    mt_wire_meter_free(&m);
}

/* What is late is what is above the deadline, to the nanosecond. */
static void test_counts(void **state)
{
    struct mt_wire_meter *m = fresh();
    struct mt_engine_stats st = {.sessions = 1, .blocks = 7};
    struct mt_wire_state s;
    struct mt_record lie = {.status = MT_OK, .latency_ms = 1};

    (void)state;
    frame(m, MT_OK, 80, NULL);
    frame(m, MT_LATE, 80.000001, "deadline");
    frame(m, MT_OK, 20, NULL);
    frame(m, MT_OK, 20.000001, NULL);
    frame(m, MT_LATE, 1e6, "deadline");
    frame(m, MT_STALLED, 3, "memory");
    mt_meter_frame(m, &lie);
    mt_meter_refused(m, "pace");
    mt_meter_refused(m, "memory");
    mt_meter_turned_away(m, MT_REFUSED_SHUTDOWN);
    mt_meter_publish(m, &st, 1 + 80 * MT_NS_PER_MS);
    mt_meter_publish(m, &st, 1 + 330 * MT_NS_PER_MS); /* two whole ticks behind the busy one */
    mt_wire_meter_read(m, 1, &s);
    assert_int_equal(s.within[0], 1);
    assert_int_equal(s.within[1], 1);
    assert_int_equal(s.within[6], 1);
    assert_int_equal(s.within[7], 1);
    assert_int_equal(s.within[MT_WIRE_BOUNDS], 1);
    assert_int_equal(s.answered, 5);
    assert_true(fabs(s.latency_s - 1000.2) < 1e-3);
    assert_int_equal(s.frames[MT_OK], 4);
    assert_int_equal(s.frames[MT_LATE], 2);
    assert_int_equal(s.frames[MT_STALLED], 1);
    assert_int_equal(s.untruthful, 1);
    assert_int_equal(s.failures, 3);
    assert_int_equal(s.refused[MT_REFUSED_PACE] + s.refused[MT_REFUSED_SHUTDOWN], 2);
    assert_int_equal(s.empty_ticks, 3);
    assert_int_equal(s.blocks, 7);
    mt_wire_meter_free(&m);
}

static void capped(struct mt_wire_meter *m, const char *json, int cap)
{
    json_t *o = json_loads(json, 0, NULL);

    assert_non_null(o);
    mt_meter_capped(m, o, cap);
    json_decref(o);
}

/* A client's words become labels only if they are words, and never more than there is room for. */
static void test_control(void **state)
{
    struct mt_wire_meter *m = fresh();
    struct mt_wire_state s;
    char text[64];

    (void)state;
    mt_wire_meter_read(m, 1, &s);
    assert_true(isnan(s.control.signal_ms));
    m->state.status.cap = 4;
    capped(m, "{\"mode\":\"grow\",\"reason\":\"grow\",\"signal_ms\":31.5,\"untruthful\":2}", 5);
    capped(m, "{\"mode\":7,\"reason\":\"a\\\"b\\n\",\"cost_a_ms\":\"x\",\"untruthful\":-1}", 3);
    mt_wire_meter_read(m, 1, &s);
    assert_int_equal(s.control.raised, 1);
    assert_int_equal(s.control.lowered, 1);
    assert_string_equal(s.control.mode, "");
    assert_int_equal(s.control.n_reasons, 2);
    assert_string_equal(s.control.reason[0].word, "grow");
    assert_string_equal(s.control.reason[1].word, "set");
    assert_int_equal(s.control.untruthful, 2);
    assert_true(isnan(s.control.signal_ms));
    for (int i = 0; i < 100; i++) {
        snprintf(text, sizeof(text), "{\"reason\":\"%c%c\"}", 'a' + i / 26, 'a' + i % 26);
        capped(m, text, 4);
    }
    mt_wire_meter_read(m, 1, &s);
    assert_int_equal(s.control.n_reasons, MT_WIRE_DECISIONS);
    assert_int_equal(s.control.other, 102 - MT_WIRE_DECISIONS);
    mt_wire_meter_free(&m);
}

static void test_fault(void **state)
{
    static const char *const bad[] = {"",       "fire",        "slow",          "slow=0.5",
                                      "slow=x", "slow=2,fire", "drop-client=0", "stop-compute=-1"};
    struct mt_wire_fault f = {0};

    (void)state;
    assert_int_equal(mt_wire_fault_parse("stop-compute=2s,slow=1.5,drop-client", &f, NULL), 0);
    assert_true(f.stop_compute && f.stop_ns == 2 * MT_NS_PER_S && f.slow == 1.5 && f.drop == 10);
    for (size_t i = 0; i < MT_COUNT(bad); i++) {
        struct mt_err e = {0};

        f = (struct mt_wire_fault){0};
        assert_int_equal(mt_wire_fault_parse(bad[i], &f, &e), -EINVAL);
        assert_int_equal(e.code, -EINVAL);
        assert_true(!f.stop_compute && f.slow == 0 && f.drop == 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_alive),   cmocka_unit_test(test_ready), cmocka_unit_test(test_counts),
        cmocka_unit_test(test_control), cmocka_unit_test(test_fault),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
