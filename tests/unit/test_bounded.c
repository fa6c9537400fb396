/*
 * test_bounded.c: what a session owns is bounded and told exactly. For the tiny shape of every
 * family: the bytes that --dry-run states are those that a session takes, and after an hour of
 * sound, past every edge that it has (block, window, rings, encoder windows, trained positions),
 * it holds no byte more, feeds no token more a frame and takes no longer for it.
 */
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/engine.h"

enum { HOUR_S = 3600 };

/* What mmap holds beside malloc's own: the Makefile links these in the place of the system's. */
static int64_t mapped;
void *__real_mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset);
int __real_munmap(void *at, size_t n);
void *__wrap_mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset);
int __wrap_munmap(void *at, size_t n);

void *__wrap_mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset)
{
    void *p = __real_mmap(at, n, prot, flags, fd, offset);

    mapped += p == MAP_FAILED ? 0 : (int64_t)n;
    return p;
}

int __wrap_munmap(void *at, size_t n)
{
    mapped -= (int64_t)n;
    return __real_munmap(at, n);
}

static int64_t held(void)
{
    struct mallinfo2 i = mallinfo2();

    return (int64_t)i.uordblks + (int64_t)i.hblkhd + mapped;
}

struct world {
    struct mt_backend *be;
    struct mt_model *m;
    struct mt_engine *eng;
    struct mt_clock clock;
    int64_t frames, answered, tokens_in_max, kv_max;
};

static void on_frame(void *ctx, const struct mt_record *r)
{
    struct world *w = ctx;

    assert_int_equal(r->status, MT_OK);
    assert_true(r->tokens_out > 0);
    w->frames++;
    if (r->frame > 0 && r->tokens_in > w->tokens_in_max)
        w->tokens_in_max = r->tokens_in;
    if (r->kv_tokens > w->kv_max)
        w->kv_max = r->kv_tokens;
}

static void on_closed(void *ctx, int64_t session, const char *reason, int64_t frames)
{
    (void)session;
    assert_string_equal(reason, "end");
    assert_int_equal(frames, ((struct world *)ctx)->frames);
}

static void begin(struct world *w, const char *name)
{
    struct mt_engine_opts o;
    char spec[100];
    struct mt_err e = {0};

    *w = (struct world){.clock = mt_clock_virtual(0)};
    mt_engine_defaults(&o);
    assert_int_equal(mt_policy_parse("window=96,sinks=4", &o.policy, NULL), 0);
    o.pool_blocks = 64;
    o.answer_tokens = 4;
    o.step_tokens = 128;
    o.max_sessions = 4;
    o.events = (struct mt_engine_events){w, on_frame, on_closed};
    snprintf(spec, sizeof(spec), "synth:%s", name);
    struct mt_model_opts mo = {.step_rows = o.step_tokens, .want_rows = o.max_sessions};
    if (mt_backend_open(&w->be, "cpu", 1, &e) < 0 ||
        mt_model_open(&w->m, spec, w->be, &mo, &e) < 0 ||
        mt_engine_new(&w->eng, w->m, &o, &w->clock, &e) < 0)
        fail_msg("%s: %s", name, e.text);
}

static void end(struct world *w)
{
    mt_engine_free(&w->eng);
    mt_model_close(&w->m);
    mt_backend_close(&w->be);
}

static int64_t dial(struct world *w)
{
    struct mt_session_opts so;
    const char *why;
    double retry;
    int64_t id;

    mt_session_defaults(&so);
    assert_int_equal(mt_engine_open(w->eng, &so, &id, &why, &retry, NULL), 0);
    return id;
}

/* Speech-like noise; samples from..from+n-1 of it, and ticks until all is answered. */
static void speak(struct world *w, int64_t id, int64_t from, int64_t n)
{
    float *pcm = malloc((size_t)n * sizeof(*pcm));

    for (int64_t i = 0; i < n; i++) {
        uint64_t t = (uint64_t)(from + i);
        pcm[i] = (float)(0.3 * (mt_unit(mt_mix64(t)) - 0.5) * (t / 7000 % 3 != 0));
    }
    assert_int_equal(mt_engine_audio(w->eng, id, pcm, n, w->clock.virtual_ns), n);
    while (mt_engine_tick(w->eng)) {
    }
    free(pcm);
}

static bool is_tiny(const char *name)
{
    size_t n = strlen(name);

    return n > 5 && !strcmp(name + n - 5, "-tiny");
}

/* fn for the tiny shape of each family: the sizes of a family share one, under several names. */
static void each_family(void (*fn)(const char *name))
{
    const char *san = getenv("MT_SAN"), *name, *last = NULL;

    if (san && *san)
        skip(); /* its malloc tells no sizes, and takes its time */
    for (int i = 0; (name = mt_model_synth_name(i)); i++) {
        if (!is_tiny(name) || (last && !strncmp(name, last, strcspn(name, "-") + 1)))
            continue;
        fn(last = name);
    }
}

static void stated_bytes(const char *name)
{
    struct world w;
    begin(&w, name);
    const struct mt_engine_plan *p = mt_engine_plan(w.eng);
    int64_t stated = p->state_bytes_session, took;

    for (int k = 0; k < p->n_state; k++)
        stated += p->state[k].bytes;
    dial(&w); /* the first one also makes the shared sinks … */
    dial(&w); /* … and leaves small pieces in malloc's cache, which the next one takes from there */
    took = -held();
    dial(&w);
    took += held();
    /* malloc rounds up, some 16 bytes for each piece, and a mapping is whole pages. */
    if (took < stated || took > stated + stated / 100 + 4096)
        fail_msg("%s: a session takes %lld bytes, stated are %lld", name, (long long)took,
                 (long long)stated);
    end(&w);
}

static void test_stated_bytes(void **state)
{
    (void)state;
    each_family(stated_bytes);
}

static double cpu_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void one_hour(const char *name)
{
    struct world w;
    begin(&w, name);
    const struct mt_engine_plan *p = mt_engine_plan(w.eng);
    int64_t frames = (int64_t)(HOUR_S / p->frame_s), n = p->frame_samples, id = dial(&w), at = 0;
    int64_t bytes = 0, tokens = 0;
    double spent[2] = {0, 0};

    for (int64_t k = 0; k < frames; k++) {
        int64_t more = (k + 1) * n + p->lookahead_samples - at;
        double t0 = cpu_s();

        speak(&w, id, at, more);
        at += more;
        if (k >= frames / 10 && k < frames / 5) /* everything is full by now */
            spent[0] += cpu_s() - t0;
        if (k >= frames - (frames / 5 - frames / 10))
            spent[1] += cpu_s() - t0;
        if (k == frames / 10) {
            bytes = held();
            tokens = w.tokens_in_max;
        }
    }
    assert_int_equal(w.frames, frames);
    assert_true(w.kv_max <= 96 + 4);
    assert_int_equal(w.tokens_in_max, tokens);
    assert_int_equal(held(), bytes);
    if (spent[1] > 2 * spent[0]) /* what grows with the call is 9 times as much by then */
        fail_msg("%s: a frame takes %.3f ms after six minutes and %.3f ms after an hour", name,
                 1e4 * spent[0] / (double)frames, 1e4 * spent[1] / (double)frames);
    mt_engine_end(w.eng, id, w.clock.virtual_ns);
    while (mt_engine_tick(w.eng)) {
    }
    end(&w);
}

static void test_an_hour(void **state)
{
    (void)state;
    each_family(one_hour);
}

/*
 * What a thread's own cache of free pieces holds counts as taken: a session made of them would seem
 * to take less than it does. Only the environment turns it off, so the program begins a second
 * time.
 */
static void without_tcache(char **argv)
{
    if (getenv("GLIBC_TUNABLES"))
        return;
    setenv("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0", 1);
    execv("/proc/self/exe", argv);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_stated_bytes),
                                       cmocka_unit_test(test_an_hour)};

    (void)argc;
    without_tcache(argv);
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
