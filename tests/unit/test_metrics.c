/*
 * test_metrics.c: the table in both formats, read back by a parser that takes nothing but what each
 * format allows; which format is served to whom; and what is foretold.
 */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "metrics/metrics.h"

/* ---- a strict parser ---- */

struct parsed {
    enum mt_metrics_format format;
    char family[128], type[16];
    char families[128][128];
    int n_families, samples, heads;
    char last[512]; /* the last sample's name and labels */
    double le, bucket, last_bucket;
};

static bool is_name(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!(isalpha((unsigned char)s[i]) || s[i] == '_' ||
              (i > 0 && isdigit((unsigned char)s[i]))))
            return false;
    return n > 0;
}

/* Sample names of a family, by its type. */
static bool belongs(const struct parsed *p, const char *name)
{
    size_t n = strlen(p->family);
    const char *end = name + n;
    bool open = p->format == MT_METRICS_OPEN;

    if (strncmp(name, p->family, n) != 0)
        return false;
    if (!strcmp(p->type, "histogram"))
        return !strcmp(end, "_bucket") || !strcmp(end, "_sum") || !strcmp(end, "_count");
    if (open && !strcmp(p->type, "counter"))
        return !strcmp(end, "_total");
    if (open && !strcmp(p->type, "info"))
        return !strcmp(end, "_info");
    return !*end;
}

static void parse_head(struct parsed *p, char *line)
{
    char *save, *word = strtok_r(line + 2, " ", &save), *name = strtok_r(NULL, " ", &save);
    bool open = p->format == MT_METRICS_OPEN;
    static const char *const order[2][3] = {{"HELP", "TYPE", ""}, {"TYPE", "UNIT", "HELP"}};

    assert_non_null(name);
    if (p->heads == 1 && open && !strcmp(word, "HELP"))
        p->heads = 2; /* no unit */
    assert_true(p->heads < 2 + open);
    assert_string_equal(word, order[open][p->heads]);
    if (p->heads++ == 0) {
        for (int i = 0; i < p->n_families; i++)
            assert_string_not_equal(p->families[i], name);
        snprintf(p->families[p->n_families++], sizeof(p->families[0]), "%s", name);
        snprintf(p->family, sizeof(p->family), "%s", name);
        assert_true(is_name(name, strlen(name)));
    }
    assert_string_equal(p->family, name);
    if (!strcmp(word, "UNIT")) {
        size_t n = strlen(name), u = strlen(save);
        assert_true(n > u && !strcmp(name + n - u, save) && name[n - u - 1] == '_');
    } else if (!strcmp(word, "TYPE")) {
        snprintf(p->type, sizeof(p->type), "%s", save);
        assert_true(!strcmp(save, "gauge") || !strcmp(save, "counter") ||
                    !strcmp(save, "histogram") ||
                    (open && (!strcmp(save, "info") || !strcmp(save, "stateset"))));
        if (!strcmp(save, "counter"))
            assert_true(open == !strstr(name, "_total"));
    }
}

/* {a="b",c="d"} from *at on, past its end. The value of le is noted. */
static void parse_labels(struct parsed *p, char **at)
{
    char *s = *at + 1;

    for (;;) {
        size_t n = strcspn(s, "=");
        bool le = n == 2 && !strncmp(s, "le", 2);

        assert_true(is_name(s, n));
        s += n;
        assert_true(s[0] == '=' && s[1] == '"');
        s += 2;
        if (le)
            p->le = strtod(s, NULL);
        for (; *s != '"'; s++) {
            assert_true(*s);
            if (*s == '\\')
                assert_true(*++s == 'n' || *s == '\\' || *s == '"');
        }
        if (*++s != ',')
            break;
        s++;
    }
    assert_int_equal(*s, '}');
    *at = s + 1;
}

static double parse_sample(struct parsed *p, char *line)
{
    size_t n = strcspn(line, "{ ");
    char name[128], *at = line + n, *end;
    double v;

    assert_true(p->heads >= 2);
    snprintf(name, sizeof(name), "%.*s", (int)n, line);
    assert_true(is_name(name, n));
    assert_true(belongs(p, name));
    if (*at == '{')
        parse_labels(p, &at);
    assert_int_equal(*at, ' ');
    v = strtod(at + 1, &end);
    assert_true(end > at + 1 && !*end);
    if (strstr(name, "_bucket")) {
        assert_true(v >= p->last_bucket);
        p->last_bucket = v;
    } else if (strstr(name, "_count")) {
        assert_true(isinf(p->le) && v == p->last_bucket);
    }
    assert_true(strncmp(p->last, line, (size_t)(at - line)) != 0 || p->last[at - line]);
    snprintf(p->last, sizeof(p->last), "%.*s", (int)(at - line), line);
    p->samples++;
    return v;
}

/* The value of `want`, a sample's name and labels, or NAN; everything is parsed. */
static double parse(const char *text, size_t n, enum mt_metrics_format format, const char *want)
{
    struct parsed p = {.format = format};
    char *copy = strndup(text, n), *save = copy, *line, *end = copy;
    double found = NAN;
    bool done = false;

    assert_true(n > 0 && text[n - 1] == '\n');
    while ((line = strsep(&save, "\n")) && save) {
        assert_false(done);
        assert_true(*line && !strchr(line, '\r'));
        if (!strcmp(line, "# EOF")) {
            done = true;
        } else if (*line == '#') {
            if (p.samples > 0)
                p.heads = p.samples = 0;
            p.last_bucket = 0;
            parse_head(&p, line);
        } else {
            size_t k = strlen(want);
            double v = parse_sample(&p, line);

            if (!strncmp(line, want, k) && line[k] == ' ')
                found = v;
        }
    }
    assert_true(done == (format == MT_METRICS_OPEN));
    (void)end;
    free(copy);
    return found;
}

/* ---- the tests ---- */

static const struct mt_metrics_facts facts = {.backend = "a\"b\\c\nd",
                                              .frame_s = 0.08,
                                              .deadline_s = 0.08,
                                              .block_bytes = 1 << 20,
                                              .max_sessions = 64,
                                              .n_mem = 29};

static struct mt_wire_state a_state(void)
{
    struct mt_wire_state s = {.since_ns = 1,
                              .deadline_ns = 80 * MT_NS_PER_MS,
                              .frame_ns = 80 * MT_NS_PER_MS,
                              .status = {.sessions = 11, .cap = 29, .pool = 0.41},
                              .frames = {100, 7, 3, 2, 0, 1},
                              .within = {10, 20, 30, 20, 10, 5, 5, 4, 2, 1, 0},
                              .answered = 107,
                              .latency_s = 5.5,
                              .refused = {4, 0, 1},
                              .closed = 2,
                              .closed_s = 240};

    strcpy(s.control.mode, "grow");
    s.control.signal_ms = 51.5;
    s.control.projected_ms = NAN;
    s.control.cost_a_ms = 20;
    s.control.cost_b_ms = 1.5;
    s.control.n_reasons = 2;
    strcpy(s.control.reason[0].word, "grow");
    s.control.reason[0].count = 5;
    strcpy(s.control.reason[1].word, "idle");
    return s;
}

static void expect(const char *want_text, const char *want_open, double value)
{
    struct mt_wire_state s = a_state();
    struct mt_metrics_outlook o = {.pool = {.sat_s = 512, .low_s = 400, .high_s = INFINITY},
                                   .refused_per_s = 0.05};

    for (int f = MT_METRICS_TEXT; f <= MT_METRICS_OPEN; f++) {
        size_t n;
        char *text = mt_metrics_write(&facts, &s, &o, (enum mt_metrics_format)f, &n);
        double got = parse(text, n, (enum mt_metrics_format)f, f ? want_open : want_text);

        if (fabs(got - value) > 1e-12 && got != value)
            fail_msg("%s is %g, not %g", f ? want_open : want_text, got, value);
        free(text);
    }
}

static void both(const char *want, double value)
{
    expect(want, want, value);
}

static void test_table(void **state)
{
    (void)state;
    both("metronome_build_info{version=\"" MT_VERSION "\",backend=\"a\\\"b\\\\c\\nd\"}", 1);
    both("metronome_frames_total{status=\"ok\"}", 100);
    both("metronome_frames_total{status=\"error\"}", 1);
    both("metronome_frame_latency_seconds_bucket{le=\"0.08\"}", 100);
    both("metronome_frame_latency_seconds_bucket{le=\"0.02\"}", 10);
    both("metronome_frame_latency_seconds_bucket{le=\"0.4\"}", 107);
    both("metronome_frame_latency_seconds_bucket{le=\"+Inf\"}", 107);
    both("metronome_refused_total{reason=\"limit\"}", 4);
    both("metronome_admit_bound_sessions{bound=\"latency\"}", 29);
    both("metronome_admit_bound_sessions{bound=\"memory\"}", 29);
    both("metronome_admit_decisions_total{decision=\"hold\",reason=\"idle\"}", 0);
    both("metronome_admit_decisions_total{decision=\"grow\",reason=\"grow\"}", 5);
    both("metronome_admit_state{metronome_admit_state=\"grow\"}", 1);
    both("metronome_admit_state{metronome_admit_state=\"hold\"}", 0);
    both("metronome_admit_offered_sessions", 11 + 0.05 * 120);
    both("metronome_admit_signal_seconds", 0.0515);
    both("metronome_predict_saturation_seconds", 512);
    both("metronome_predict_saturation_high_seconds", INFINITY);
    both("metronome_predict_collapse_ratio{horizon=\"3600\"}", 1);
    both("metronome_predict_occupancy_ratio", 0.41);
}

/* A server that says nothing yet still has pages that parse. */
static void test_empty(void **state)
{
    struct mt_wire_state s = {.control = {.signal_ms = NAN}};
    struct mt_metrics_outlook o = {.pool = {.sat_s = NAN, .low_s = NAN, .high_s = NAN}};

    (void)state;
    for (int f = MT_METRICS_TEXT; f <= MT_METRICS_OPEN; f++) {
        size_t n;
        char *text = mt_metrics_write(&facts, &s, &o, (enum mt_metrics_format)f, &n);

        assert_true(isnan(parse(text, n, (enum mt_metrics_format)f,
                                "metronome_predict_collapse_ratio{horizon=\"3600\"}")));
        free(text);
    }
}

static void test_accept(void **state)
{
    static const char prometheus[] =
        "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;"
        "q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
    static const char *const text[] = {"",
                                       "*/*",
                                       "text/plain",
                                       "application/openmetrics-text;q=0",
                                       "application/openmetrics-text;version=2.0.0",
                                       "text/plain, application/openmetrics-text;q=0.5",
                                       "application/openmetrics-text;q=x",
                                       ";;,,;q="};
    static const char *const open[] = {prometheus, "application/openmetrics-text",
                                       " Application/OpenMetrics-Text ; version=1.0.0 , */*"};
    char longer[5000];

    (void)state;
    assert_int_equal(mt_metrics_accepted(NULL), MT_METRICS_TEXT);
    for (size_t i = 0; i < MT_COUNT(text); i++)
        assert_int_equal(mt_metrics_accepted(text[i]), MT_METRICS_TEXT);
    for (size_t i = 0; i < MT_COUNT(open); i++)
        assert_int_equal(mt_metrics_accepted(open[i]), MT_METRICS_OPEN);
    memset(longer, ',', sizeof(longer));
    longer[sizeof(longer) - 1] = '\0';
    assert_int_equal(mt_metrics_accepted(longer), MT_METRICS_TEXT);
}

/* Ten sessions that grow by 1e-3 of the pool a second, without a bound and with one. */
static void test_outlook(void **state)
{
    struct mt_metrics_facts f = facts;
    struct mt_metrics_outlook o;
    struct mt_metrics_watch *w;

    (void)state;
    for (int bounded = 0; bounded < 2; bounded++) {
        struct mt_wire_state s = {.since_ns = 1, .status = {.sessions = 10}};

        f.n_mem = bounded ? 29 : 0;
        assert_int_equal(mt_metrics_watch_new(&w, &f), 0);
        mt_metrics_watch_outlook(w, &o);
        assert_true(bounded ? isinf(o.pool.sat_s) : isnan(o.pool.sat_s));
        for (int i = 0; i <= 1000; i++) {
            s.status.t_s = i * 0.08;
            s.status.pool = 0.1 + 1e-3 * s.status.t_s;
            s.refused[0] = i / 10;
            mt_metrics_watch_look(w, &s);
        }
        mt_metrics_watch_outlook(w, &o);
        assert_true(fabs(o.refused_per_s - 1.25 * -expm1(-80.0 / 60)) < 0.02);
        if (bounded)
            assert_true(isinf(o.pool.sat_s) && isinf(o.pool.low_s));
        else
            assert_true(fabs(o.pool.sat_s - 820) < 10);
        mt_metrics_watch_free(&w);
    }
}

static void test_where(void **state)
{
    static const char *const bad[] = {
        "",      "x",     "host:",          ":",     "1:2:3",    "127.0.0.1",
        "70000", "[::1]", "localhost:http", "unix:", "[::1]:-1", "[]:1"};
    struct mt_metrics_server *srv;
    struct mt_wire_meter *m;

    (void)state;
    assert_int_equal(mt_wire_meter_new(&m), 0);
    for (size_t i = 0; i < MT_COUNT(bad); i++) {
        struct mt_err e = {0};

        assert_int_equal(mt_metrics_serve(&srv, bad[i], &facts, m, &e), -EINVAL);
        assert_int_equal(e.code, -EINVAL);
        assert_null(srv);
    }
    assert_int_equal(mt_metrics_serve(&srv, "localhost:0", &facts, m, NULL), 0);
    assert_true(strchr(mt_metrics_where(srv), ':')[1] != '0');
    mt_metrics_stop(&srv);
    mt_wire_meter_free(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),   cmocka_unit_test(test_empty), cmocka_unit_test(test_accept),
        cmocka_unit_test(test_outlook), cmocka_unit_test(test_where),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
