/*
 * test_feeder.c: the feeder against a server that is honest, slow, mute or broken: what was sent,
 * when, and that each frame sent ends in exactly one record. Frames are short, so that a second
 * holds many.
 */
#include "wire/feeder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <sys/stat.h>

#include "fake_server.h"
#include "util.h"

#define FRAME_S 0.02
#define FRAME   INT64_C(320)
enum { AHEAD = 40, MAX_LINES = 4000 };

static char dir[32];

/* ---- a run ---- */

static json_t *lines[MAX_LINES];
static int n_lines, fail_line_at;
static char notes[8192];
static struct fake_server fake;
static struct mt_feed_opts opts;
static struct mt_feed_totals totals;
static struct mt_err err;

static int keep_line(void *ctx, json_t *obj)
{
    (void)ctx;
    assert_non_null(obj);
    assert_true(n_lines < MAX_LINES);
    lines[n_lines++] = obj;
    return fail_line_at && n_lines >= fail_line_at ? -ENOSPC : 0;
}

static void keep_note(void *ctx, enum mt_level level, const char *text)
{
    (void)ctx;
    if (level < MT_DEBUG && strlen(notes) + strlen(text) + 2 < sizeof(notes))
        strcat(strcat(notes, text), "\n");
}

/* 16-bit sound that repeats nowhere near. */
static float sample(int64_t i)
{
    return (float)(int16_t)(i * 77 + i / 1000) / 32768.0F;
}

static const char *sound(const char *name, int64_t n)
{
    static char path[8][128];
    static int turn;
    char *at = path[turn++ % 8];
    struct mt_wav *w;

    snprintf(at, 128, "%s/%s", dir, name);
    assert_int_equal(mt_wav_create(&w, at, 16000, NULL), 0);
    for (int64_t i = 0; i < n; i++) {
        float x = sample(i);

        mt_wav_write(w, &x, 1);
    }
    assert_int_equal(mt_wav_close(&w), 0);
    return at;
}

static uint64_t hash_of(int64_t n)
{
    uint64_t h = MT_HASH_INIT;

    for (int64_t i = 0; i < n; i++) {
        int v = (int)(sample(i) * 32768.0F);
        unsigned char b[2] = {(unsigned char)(v & 0xff), (unsigned char)(v >> 8 & 0xff)};

        h = mt_hash(h, b, 2);
    }
    return h;
}

static int begin(void **state)
{
    (void)state;
    memset(&fake, 0, sizeof(fake));
    memset(&opts, 0, sizeof(opts));
    memset(&err, 0, sizeof(err));
    memset(notes, 0, sizeof(notes));
    fail_line_at = 0;
    fake.frame_s = FRAME_S;
    fake.ahead_samples = AHEAD;
    opts.sessions = 1;
    opts.pace = true;
    opts.speed = 1;
    opts.seed = 1;
    opts.wait_ns = 20 * MT_NS_PER_S;
    opts.open.rate_hz = 16000;
    mt_session_defaults(&opts.open.session);
    opts.line = keep_line;
    opts.note = keep_note;
    return 0;
}

static int finish(void **state)
{
    (void)state;
    for (int i = 0; i < n_lines; i++)
        json_decref(lines[i]);
    n_lines = 0;
    return 0;
}

static int run(const char *const *paths, int n)
{
    struct mt_reel_opts ro = {.rate_hz = opts.open.rate_hz,
                              .shared = opts.sessions > 1 || opts.loop,
                              .repeat = opts.loop,
                              .hold_samples = 1 << 22};
    struct mt_reel *reel;
    int rc;

    assert_int_equal(mt_reel_open(&reel, paths, n, &ro, &err), 0);
    opts.open.format = mt_reel_pcm(reel);
    fake_start(&fake, dir);
    opts.socket = fake.path;
    rc = mt_feed_socket(reel, &opts, &totals, &err);
    fake_stop(&fake);
    mt_reel_close(&reel);
    return rc;
}

static int run_one(int64_t samples)
{
    const char *path = sound("one.wav", samples);

    return run(&path, 1);
}

static const char *text_of(const json_t *o, const char *key)
{
    const char *t = json_string_value(json_object_get(o, key));

    return t ? t : "";
}

static int count(const char *type, const char *status)
{
    int n = 0;

    for (int i = 0; i < n_lines; i++)
        n += !strcmp(text_of(lines[i], "type"), type) &&
             (!status || !strcmp(text_of(lines[i], "status"), status));
    return n;
}

static const json_t *find(const char *type, int nth)
{
    for (int i = 0; i < n_lines; i++)
        if (!strcmp(text_of(lines[i], "type"), type) && nth-- == 0)
            return lines[i];
    fail_msg("no %s", type);
    return NULL;
}

/* Every frame that the server took has one record, and the totals say the same. */
static void check_accounts(void)
{
    int64_t sum = 0;

    for (int i = 0; i < (int)MT_COUNT(totals.frames); i++)
        sum += totals.frames[i];
    assert_int_equal(sum, count("frame", NULL));
    for (int k = 0; k < n_lines; k++)
        for (int j = 0; j < k && !strcmp(text_of(lines[k], "type"), "frame"); j++)
            assert_false(
                !strcmp(text_of(lines[j], "type"), "frame") &&
                !strcmp(text_of(lines[j], "session"), text_of(lines[k], "session")) &&
                json_equal(json_object_get(lines[j], "frame"), json_object_get(lines[k], "frame")));
}

/* ---- what is sent ---- */

static void test_every_sample_once(void **state)
{
    static const int64_t sizes[] = {
        0, 1, FRAME - 1, FRAME, FRAME + 1, FRAME + AHEAD, FRAME + AHEAD + 1, 10 * FRAME, 4001};

    (void)state;
    for (int pace = 0; pace < 2; pace++) {
        for (size_t i = 0; i < MT_COUNT(sizes); i++) {
            int64_t frames = (sizes[i] + FRAME - 1) / FRAME;

            begin(NULL);
            opts.pace = pace;
            assert_int_equal(run_one(sizes[i]), 0);
            assert_int_equal(fake.n_calls, 1);
            assert_int_equal(fake.calls[0].samples, sizes[i]);
            assert_true(fake.calls[0].hash == hash_of(sizes[i]));
            assert_true(fake.calls[0].ended);
            assert_int_equal(totals.sent, frames);
            assert_int_equal(totals.frames[MT_OK], frames);
            assert_int_equal(count("frame", "ok"), frames);
            assert_int_equal(count("opened", NULL) + count("closed", NULL), 2);
            assert_int_equal(totals.unanswered + totals.unexpected + totals.broken + totals.cut, 0);
            assert_string_equal(notes, "");
            check_accounts();
            finish(NULL);
        }
    }
}

static void test_record_passes_as_it_came(void **state)
{
    const json_t *r;

    (void)state;
    assert_int_equal(run_one(FRAME), 0);
    r = find("frame", 0);
    assert_string_equal(text_of(r, "text"), "h\xc3\xb6rt");
    assert_string_equal(text_of(r, "session"), "10");
    assert_int_equal(json_array_size(json_object_get(r, "new")), 1);
    assert_true(json_real_value(json_object_get(r, "latency_ms")) == 1.5);
    assert_true(json_number_value(json_object_get(r, "rtt_ms")) >= 0);
    assert_int_equal(json_integer_value(json_object_get(find("opened", 0), "feed")), 0);
}

static void test_open_says_what_was_asked(void **state)
{
    json_t *o;

    (void)state;
    opts.sessions = 2;
    opts.seed = 41;
    opts.open.system = (char *)"be \"brief\"";
    opts.open.session.window = 512;
    opts.open.session.temperature = 0.5F;
    opts.open.tokens = true;
    assert_int_equal(run_one(FRAME), 0);
    o = json_loads(fake.calls[1].open, 0, NULL);
    assert_int_equal(json_integer_value(json_object_get(o, "metronome")), 1);
    assert_string_equal(text_of(o, "type"), "open");
    assert_string_equal(text_of(o, "prompt"), "be \"brief\"");
    assert_int_equal(json_integer_value(json_object_get(o, "rate")), 16000);
    assert_int_equal(json_integer_value(json_object_get(o, "window")), 512);
    assert_int_equal(json_integer_value(json_object_get(o, "seed")), 42);
    assert_true(json_real_value(json_object_get(o, "temperature")) == 0.5);
    assert_true(json_is_true(json_object_get(o, "live")));
    assert_true(json_is_true(json_object_get(o, "tokens")));
    json_decref(o);
}

static void test_files_in_turn_and_round(void **state)
{
    const char *paths[3];

    (void)state;
    paths[0] = sound("a.wav", 100);
    paths[1] = sound("b.wav", 2000);
    paths[2] = sound("c.wav", 30);
    opts.sessions = 4;
    opts.pace = false;
    assert_int_equal(run(paths, 3), 0);
    for (int i = 0; i < 4; i++)
        assert_int_equal(fake.calls[i].samples, 2130);
    /* The same files from another one on are other bytes; a whole turn later they are the same. */
    assert_true(fake.calls[0].hash != fake.calls[1].hash);
    assert_true(fake.calls[0].hash == fake.calls[3].hash);
    finish(NULL);
    begin(NULL);
    opts.pace = false;
    opts.loop = true;
    opts.duration = MT_LAST_FIXED;
    opts.duration_s = 0.5;
    assert_int_equal(run(paths, 3), 0);
    assert_int_equal(fake.calls[0].samples, 8000);
    finish(NULL);
    begin(NULL);
    opts.loop = true;
    opts.seconds = 0.3;
    opts.sessions = 3;
    assert_int_equal(run(paths, 3), 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(fake.calls[i].samples, 4800);
}

/* ---- when ---- */

static int64_t lap_ns(const struct fake_call *c, int64_t from, int64_t to)
{
    return c->arrived_ns[to] - c->arrived_ns[from];
}

static void test_never_early_and_no_drift(void **state)
{
    const struct fake_call *c = &fake.calls[0];
    const int n = 30;

    (void)state;
    assert_int_equal(run_one((int64_t)n * FRAME), 0);
    for (int k = 0; k < n; k++) {
        double sound_s = k < n - 1 ? ((k + 1) * FRAME + AHEAD) / 16000.0 : n * FRAME / 16000.0;

        /* Against when it was opened; what this machine's other work adds must not add up. */
        assert_true(c->arrived_ns[k] - c->opened_ns >= (int64_t)(sound_s * 1e9) - MT_NS_PER_MS);
    }
    assert_true(lap_ns(c, 0, n - 2) < (int64_t)((n - 2) * FRAME_S * 1e9) + 400 * MT_NS_PER_MS);
}

static void test_never_later_because_of_an_answer(void **state)
{
    (void)state;
    fake.fault = FAKE_HOLD;
    assert_int_equal(run_one(30L * FRAME), 0);
    assert_int_equal(totals.frames[MT_OK], 30);
    assert_true(lap_ns(&fake.calls[0], 0, 28) < (int64_t)(28 * FRAME_S * 1e9) + 400 * MT_NS_PER_MS);
    /* The first frame's answer waited for all the rest, and its round trip says so. */
    assert_true(json_number_value(json_object_get(find("frame", 0), "rtt_ms")) >
                28 * FRAME_S * 1e3);
}

static void test_speed(void **state)
{
    (void)state;
    opts.speed = 4;
    assert_int_equal(run_one(40L * FRAME), 0);
    assert_int_equal(totals.frames[MT_OK], 40);
    assert_true(fake.calls[0].arrived_ns[38] - fake.calls[0].opened_ns >=
                (int64_t)(39 * FRAME_S / 4 * 1e9) - MT_NS_PER_MS);
    assert_true(totals.run_s < 0.8);
}

/*
 * Where a call's beat lies: other work on this machine only ever makes a frame later, so the
 * earliest tells.
 */
static double beat(const struct fake_call *c)
{
    double first = INFINITY;

    for (int k = 0; k < 20; k++)
        first = fmin(first,
                     (double)(c->arrived_ns[k] - fake.calls[0].opened_ns) / 1e9 - k * fake.frame_s);
    return first;
}

/* The beats of two calls, apart by a part of a frame. */
static double apart(void)
{
    return fmod((beat(&fake.calls[1]) - beat(&fake.calls[0])) / fake.frame_s + 10, 1);
}

static void test_phases(void **state)
{
    double a;

    (void)state;
    fake.frame_s = 0.04;
    opts.sessions = 2;
    assert_int_equal(run_one(INT64_C(20) * 640), 0);
    a = apart();
    assert_true(a > 0.3 && a < 0.7);
    finish(NULL);
    begin(NULL);
    fake.frame_s = 0.04;
    opts.sessions = 2;
    opts.phase = MT_PHASE_LOCKED;
    assert_int_equal(run_one(INT64_C(20) * 640), 0);
    a = apart();
    assert_true(a < 0.25 || a > 0.75);
}

static void test_plan(void **state)
{
    const int n = 20000;
    double gaps = 0, lengths = 0, phases = 0, low = 1, high = 0;

    (void)state;
    opts.sessions = n;
    opts.arrivals = MT_ARRIVE_POISSON;
    opts.arrivals_per_s = 0.5;
    opts.duration = MT_LAST_EXP;
    opts.duration_s = 120;
    opts.phase = MT_PHASE_RANDOM;
    for (int i = 0; i < n; i++) {
        double g = mt_feed_gap_s(&opts, i), p = mt_feed_phase(&opts, i);

        assert_true(g >= 0 && p >= 0 && p < 1);
        gaps += g;
        lengths += mt_feed_length_s(&opts, i, 0);
        phases += p;
        low = fmin(low, p);
        high = fmax(high, p);
    }
    /* Means within 4 standard errors. */
    assert_true(fabs(gaps / n - 2) < 4 * 2 / sqrt(n));
    assert_true(fabs(lengths / n - 120) < 4 * 120 / sqrt(n));
    assert_true(fabs(phases / n - 0.5) < 4 * sqrt(1 / 12.0) / sqrt(n));
    assert_true(low < 0.01 && high > 0.99);
    opts.seconds = 100;
    for (int i = 0; i < 100; i++)
        assert_true(mt_feed_length_s(&opts, i, 60) <= 40);
    assert_true(mt_feed_gap_s(&opts, 7) == mt_feed_gap_s(&opts, 7));
    opts.seconds = 0;
    low = mt_feed_length_s(&opts, 7, 0);
    opts.seed = 2;
    assert_true(mt_feed_length_s(&opts, 7, 0) != low);
    opts.arrivals = MT_ARRIVE_RAMP;
    assert_true(mt_feed_gap_s(&opts, 0) == 0 && mt_feed_gap_s(&opts, 1) == 2);
    opts.duration = MT_LAST_FILE;
    opts.seconds = 0;
    assert_true(isinf(mt_feed_length_s(&opts, 0, 0)));
}

static void test_ramp(void **state)
{
    (void)state;
    opts.sessions = 4;
    opts.arrivals = MT_ARRIVE_RAMP;
    opts.arrivals_per_s = 20;
    opts.phase = MT_PHASE_RANDOM;
    assert_int_equal(run_one(2 * FRAME), 0);
    assert_int_equal(fake.n_calls, 4);
    assert_true(totals.run_s >= 3 / opts.arrivals_per_s + 2 * FRAME_S);
}

/* ---- what comes back ---- */

static void test_many(void **state)
{
    (void)state;
    opts.sessions = 60; /* more than its queue of connections holds */
    opts.loop = true;
    opts.seconds = 0.3;
    fake.frame_s = 0.1;
    assert_int_equal(run_one(1000), 0);
    assert_int_equal(totals.opened, 60);
    assert_int_equal(totals.frames[MT_OK], 180);
    for (int i = 0; i < 60; i++)
        assert_int_equal(fake.calls[i].samples, 4800);
    check_accounts();
}

static void test_refused(void **state)
{
    const json_t *r;

    (void)state;
    fake.fault = FAKE_REFUSE;
    fake.fault_call = 1;
    fake.fault_calls = 1;
    opts.sessions = 3;
    assert_int_equal(run_one(3 * FRAME), 0);
    assert_int_equal(totals.refused, 1);
    assert_int_equal(totals.frames[MT_REFUSED], 1);
    assert_int_equal(totals.frames[MT_OK], 6);
    assert_int_equal(totals.broken, 0);
    for (int i = 0; i < n_lines; i++) {
        r = lines[i];
        if (strcmp(text_of(r, "status"), "refused") != 0)
            continue;
        assert_string_equal(text_of(r, "reason"), "memory");
        assert_true(json_real_value(json_object_get(r, "retry_s")) == 3.1);
        assert_memory_equal(text_of(r, "session"), "feed-", 5);
    }
    check_accounts();
}

static void test_stalls_are_counted(void **state)
{
    (void)state;
    fake.fault = FAKE_STALL;
    fake.from = 4;
    assert_int_equal(run_one(10 * FRAME), 0);
    assert_int_equal(totals.frames[MT_OK], 4);
    assert_int_equal(totals.frames[MT_STALLED], 6);
    assert_int_equal(totals.latency.count, 4);
    assert_int_equal(totals.rtt.count, 4);
    assert_true(totals.first_stall_s > 4 * FRAME_S && totals.first_stall_s < totals.run_s);
    assert_int_equal(totals.untruthful, 0);
    finish(NULL);
    begin(NULL);
    fake.fault = FAKE_EMPTY;
    fake.from = 4;
    assert_int_equal(run_one(10 * FRAME), 0);
    assert_int_equal(totals.untruthful, 6);
}

/*
 * A fault at frame 3 of one of two calls of 10 frames: it gets its records, and the other one all
 * of its own.
 */
static void fault_in_one(enum fake_fault fault, const char *note)
{
    begin(NULL);
    fake.fault = fault;
    fake.fault_calls = 1;
    fake.from = 3;
    opts.sessions = 2;
    opts.wait_ns = 300 * MT_NS_PER_MS;
    assert_int_equal(run_one(10 * FRAME), 0);
    assert_true(totals.frames[MT_OK] >= 13);
    assert_int_equal(fake.calls[1].frames, 10);
    assert_int_equal(totals.unanswered, totals.frames[MT_FAILED]);
    check_accounts();
    if (!strstr(notes, note))
        fail_msg("'%s' is not in '%s'", note, notes);
    finish(NULL);
}

static void test_faults_touch_no_other(void **state)
{
    (void)state;
    fault_in_one(FAKE_VANISH, "closed the connection before");
    assert_int_equal(totals.broken, 1);
    assert_true(totals.unanswered >= 1);
    fault_in_one(FAKE_CLOSE, "before its end: idle");
    assert_int_equal(totals.cut, 1);
    assert_int_equal(totals.broken, 0);
    fault_in_one(FAKE_ERROR, "too much of it");
    assert_int_equal(totals.broken, 1);
    fault_in_one(FAKE_GARBAGE, "not a JSON object");
    assert_int_equal(totals.broken, 1);
    fault_in_one(FAKE_UNKNOWN, "\"hello\"");
    assert_int_equal(totals.broken, 1);
    fault_in_one(FAKE_MUTE, "no word from the server for 0.3 s");
    assert_int_equal(totals.broken, 1);
    assert_int_equal(totals.unanswered, 7);
    fault_in_one(FAKE_SKIP, "");
    assert_int_equal(totals.broken, 0);
    assert_int_equal(totals.unanswered, 7);
}

static void test_twice(void **state)
{
    (void)state;
    fake.fault = FAKE_TWICE;
    assert_int_equal(run_one(5 * FRAME), 0);
    assert_int_equal(totals.frames[MT_OK], 5);
    assert_int_equal(totals.unexpected, 5);
}

static void test_bad_opened(void **state)
{
    static const enum fake_fault faults[] = {FAKE_NO_VERSION, FAKE_NO_FRAME};

    (void)state;
    for (size_t i = 0; i < MT_COUNT(faults); i++) {
        begin(NULL);
        fake.fault = faults[i];
        assert_int_equal(run_one(5 * FRAME), 0);
        assert_int_equal(totals.broken, 1);
        assert_int_equal(totals.frames[MT_FAILED], 1);
        assert_int_equal(fake.calls[0].samples, 0);
        check_accounts();
        finish(NULL);
    }
}

/* A saved call goes on where the server says, if that can be. */
static void test_goes_on(void **state)
{
    static const struct {
        int64_t frame, samples;
    } absurd[] = {{0, INT64_C(1) << 60}, {1, INT64_MAX}, {1000, 3 * FRAME}, {INT64_MAX, 0}};

    (void)state;
    opts.load = "x";
    fake.frame = 3;
    fake.samples = 3 * FRAME;
    assert_int_equal(run_one(5 * FRAME), 0);
    assert_int_equal(fake.calls[0].samples, 2 * FRAME);
    assert_int_equal(totals.broken, 0);
    finish(NULL);
    for (size_t i = 0; i < MT_COUNT(absurd); i++) {
        begin(NULL);
        opts.load = "x";
        opts.loop = true;
        fake.frame = absurd[i].frame;
        fake.samples = absurd[i].samples;
        assert_int_equal(run_one(5 * FRAME), 0);
        assert_int_equal(totals.broken, 1);
        assert_int_equal(fake.calls[0].samples, 0);
        finish(NULL);
    }
    begin(NULL);
}

static void test_other_frame_length_stops(void **state)
{
    (void)state;
    opts.frame_ns = 80 * MT_NS_PER_MS;
    opts.sessions = 3;
    assert_int_equal(run_one(50 * FRAME), -EINVAL);
    assert_non_null(strstr(err.text, "0.02 s long, not 0.08 s"));
    finish(NULL);
    begin(NULL);
    opts.frame_ns = 20 * MT_NS_PER_MS;
    assert_int_equal(run_one(FRAME), 0);
}

static void test_no_server(void **state)
{
    const char *path = sound("one.wav", FRAME);
    struct mt_reel_opts ro = {.rate_hz = 16000, .hold_samples = 1000};
    struct mt_reel *reel;

    (void)state;
    assert_int_equal(mt_reel_open(&reel, &path, 1, &ro, &err), 0);
    opts.socket = "/tmp/no-such-folder/mt.sock";
    opts.sessions = 1;
    assert_int_equal(mt_feed_socket(reel, &opts, &totals, &err), -ENOENT);
    assert_non_null(strstr(err.text, "no server listens there"));
    assert_int_equal(n_lines, 0);
    mt_reel_close(&reel);
}

/* Whichever line it is that can't be written. */
static void test_lost_stdout_stops(void **state)
{
    static const enum fake_fault faults[] = {FAKE_NONE, FAKE_REFUSE, FAKE_NO_VERSION, FAKE_VANISH,
                                             FAKE_SKIP};

    (void)state;
    for (size_t i = 0; i < MT_COUNT(faults); i++) {
        for (int at = 1; at <= 12; at += i == 1 || i == 2 ? 1 : 3) {
            begin(NULL);
            fake.fault = faults[i];
            fake.from = 2;
            opts.sessions = i == 1 || i == 2 ? at : 3;
            fail_line_at = at;
            assert_int_equal(run_one(5 * FRAME), -ENOSPC);
            assert_int_equal(n_lines, at);
            assert_int_equal(err.code, 0);
            finish(NULL);
        }
    }
}

static void test_interrupt_ends_in_order(void **state)
{
    (void)state;
    fake.fault = FAKE_INTERRUPT;
    fake.fault_calls = 1;
    fake.from = 5;
    opts.loop = true;
    opts.sessions = 3;
    assert_int_equal(run_one(1000), 0);
    assert_true(totals.interrupted);
    assert_int_equal(totals.broken + totals.cut + totals.unanswered, 0);
    for (int i = 0; i < 3; i++)
        assert_true(fake.calls[i].ended);
    assert_int_equal(count("closed", NULL), 3);
    check_accounts();
}

static void test_not_read(void **state)
{
    (void)state;
    fake.fault = FAKE_NOT_READ;
    fake.frame_s = 10;
    opts.speed = 1000;
    opts.loop = true;
    opts.duration = MT_LAST_FIXED;
    opts.duration_s = 9000;
    assert_int_equal(run_one(16000), 0);
    assert_int_equal(totals.broken, 1);
    assert_non_null(strstr(notes, "the server does not read"));
    check_accounts();
}

static void test_play(void **state)
{
    char path[200], *play = dir;
    float *pcm;
    int64_t n;

    (void)state;
    fake.fault = FAKE_SPEAK;
    opts.play_dir = play;
    assert_int_equal(run_one(3 * FRAME), 0);
    assert_int_equal(totals.spoke, 1);
    snprintf(path, sizeof(path), "%s/0.wav", dir);
    assert_int_equal(mt_sound_load(path, NULL, 24000, 100000, &pcm, &n, &err), 0);
    assert_int_equal(n, 300);
    for (int i = 0; i < 300; i++) {
        int frame = i / 100;

        assert_true(pcm[i] == (float)(frame + 1) / 32768.0F);
    }
    free(pcm);
}

/* ---- the source ---- */

static void test_source_that_is_slow_gives_the_pace(void **state)
{
    struct mt_reel_opts ro = {.rate_hz = 16000, .hold_samples = 1000};
    char path[200], command[600];
    const char *p = path;
    struct mt_reel *reel;

    (void)state;
    sound("one.wav", 20 * FRAME);
    snprintf(path, sizeof(path), "%s/fifo", dir);
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    /* A header and half of it, a break of many frames, the rest. */
    snprintf(command, sizeof(command),
             "(head -c 6444 %s/one.wav; sleep 0.6; tail -c +6445 %s/one.wav) >%s &", dir, dir,
             path);
    assert_int_equal(system(command), 0);
    assert_int_equal(mt_reel_open(&reel, &p, 1, &ro, &err), 0);
    opts.open.format = mt_reel_pcm(reel);
    fake_start(&fake, dir);
    opts.socket = fake.path;
    assert_int_equal(mt_feed_socket(reel, &opts, &totals, &err), 0);
    fake_stop(&fake);
    mt_reel_close(&reel);
    assert_int_equal(fake.calls[0].samples, 20 * FRAME);
    assert_true(fake.calls[0].hash == hash_of(20 * FRAME));
    assert_int_equal(totals.frames[MT_OK], 20);
    assert_true(fake.calls[0].arrived_ns[19] - fake.calls[0].arrived_ns[5] > 300 * MT_NS_PER_MS);
    /* Its lateness is not the server's: round trips stay short. */
    assert_true(mt_hist_quantile(&totals.rtt, 0.9) < 300 * MT_NS_PER_MS);
}

static int64_t read_tape(struct mt_reel *r, int64_t first, bool loop, int64_t max, uint64_t *hash)
{
    struct mt_tape *t;
    float x[777];
    int64_t n, sum = 0;

    *hash = MT_HASH_INIT;
    assert_int_equal(mt_tape_open(&t, r, first, loop), 0);
    while (sum < max && (n = mt_tape_read(t, x, max - sum < 777 ? max - sum : 777, &err)) > 0) {
        *hash = mt_hash(*hash, x, (size_t)n * sizeof(*x));
        sum += n;
    }
    mt_tape_close(&t);
    return sum;
}

/* Whether a file is held or read by each tape, it is the same sound. */
static void test_held_or_not(void **state)
{
    const char *paths[2];
    struct mt_reel_opts ro = {.rate_hz = 22050, .shared = true, .repeat = true};
    struct mt_reel *reel;
    uint64_t h[3];

    (void)state;
    paths[0] = sound("a.wav", 20001);
    paths[1] = sound("b.wav", 777);
    for (int i = 0; i < 3; i++) {
        ro.hold_samples = i == 0 ? 1 << 20 : i == 1 ? 5000 : 0;
        assert_int_equal(mt_reel_open(&reel, paths, 2, &ro, &err), 0);
        assert_int_equal(mt_reel_pcm(reel), MT_PCM_F32LE);
        assert_int_equal(read_tape(reel, 1, true, 100000, &h[i]), 100000);
        mt_reel_close(&reel);
    }
    assert_true(h[0] == h[1]);
    assert_true(h[0] == h[2]);
}

static void test_nothing_to_repeat(void **state)
{
    const char *path = sound("none.wav", 0);
    struct mt_reel_opts ro = {
        .rate_hz = 16000, .shared = true, .repeat = true, .hold_samples = 1000};
    struct mt_reel *reel;

    (void)state;
    assert_int_equal(mt_reel_open(&reel, &path, 1, &ro, &err), -ENODATA);
    assert_non_null(strstr(err.text, "none.wav"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_every_sample_once, begin, finish),
        cmocka_unit_test_setup_teardown(test_record_passes_as_it_came, begin, finish),
        cmocka_unit_test_setup_teardown(test_open_says_what_was_asked, begin, finish),
        cmocka_unit_test_setup_teardown(test_files_in_turn_and_round, begin, finish),
        cmocka_unit_test_setup_teardown(test_never_early_and_no_drift, begin, finish),
        cmocka_unit_test_setup_teardown(test_never_later_because_of_an_answer, begin, finish),
        cmocka_unit_test_setup_teardown(test_speed, begin, finish),
        cmocka_unit_test_setup_teardown(test_phases, begin, finish),
        cmocka_unit_test_setup_teardown(test_plan, begin, finish),
        cmocka_unit_test_setup_teardown(test_ramp, begin, finish),
        cmocka_unit_test_setup_teardown(test_many, begin, finish),
        cmocka_unit_test_setup_teardown(test_refused, begin, finish),
        cmocka_unit_test_setup_teardown(test_stalls_are_counted, begin, finish),
        cmocka_unit_test_setup_teardown(test_faults_touch_no_other, begin, finish),
        cmocka_unit_test_setup_teardown(test_twice, begin, finish),
        cmocka_unit_test_setup_teardown(test_bad_opened, begin, finish),
        cmocka_unit_test_setup_teardown(test_goes_on, begin, finish),
        cmocka_unit_test_setup_teardown(test_other_frame_length_stops, begin, finish),
        cmocka_unit_test_setup_teardown(test_no_server, begin, finish),
        cmocka_unit_test_setup_teardown(test_lost_stdout_stops, begin, finish),
        cmocka_unit_test_setup_teardown(test_interrupt_ends_in_order, begin, finish),
        cmocka_unit_test_setup_teardown(test_not_read, begin, finish),
        cmocka_unit_test_setup_teardown(test_play, begin, finish),
        cmocka_unit_test_setup_teardown(test_source_that_is_slow_gives_the_pace, begin, finish),
        cmocka_unit_test_setup_teardown(test_held_or_not, begin, finish),
        cmocka_unit_test_setup_teardown(test_nothing_to_repeat, begin, finish),
    };
    int failed;

    if (util_dir_make(dir) < 0)
        return 1;
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    return util_dir_remove(dir) || failed;
}
