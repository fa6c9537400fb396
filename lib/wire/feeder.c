/*
 * feeder.c: a run of sessions in one thread: one loop, one absolute timer (a timerfd on
 * CLOCK_MONOTONIC, exact to what the kernel does, where the loop's own timers round to
 * milliseconds), and a heap of what is due next.
 */
#include "wire/feed_run.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/timerfd.h>
#include <unistd.h>

#define CONNECT_NS (5 * MT_NS_PER_S)
#define CHECK_MS   250               /* how often it looks for a server that went silent */
#define GRACE_NS   (5 * MT_NS_PER_S) /* for the last answers after an interrupt */
#define ARRIVALS   8 /* at once; between them come frames that are due, and answers */
#define LOCK_NS                                                                                    \
    (50 * MT_NS_PER_MS) /* for all sessions that start together to be open before the first beat */

int64_t mt_feed_now(struct feed_run *r)
{
    return r->clock.now_ns(&r->clock);
}

double mt_feed_run_s(struct feed_run *r)
{
    return (double)(mt_feed_now(r) - r->start_ns) / 1e9 * r->o->speed;
}

/* ---- output ---- */

void mt_feed_note(struct feed_run *r, enum mt_level level, const char *fmt, ...)
{
    char text[600];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    r->o->note(r->o->ctx, level, text);
}

void mt_feed_line(struct feed_run *r, json_t *obj)
{
    int rc;

    if (r->rc < 0) { /* stopping: what follows is nobody's any more */
        json_decref(obj);
        return;
    }
    rc = r->o->line(r->o->ctx, obj);
    if (rc < 0)
        mt_feed_stop(r, rc, NULL);
}

/* ---- what is due: a binary heap, 1-based ---- */

static void heap_set(struct feed_run *r, size_t at, struct feed_session *s)
{
    r->heap[at] = s;
    s->heap_at = at;
}

/* Those of one instant go in order of their numbers, in every run the same. */
static bool before(const struct feed_session *a, const struct feed_session *b)
{
    return a->wake_ns != b->wake_ns ? a->wake_ns < b->wake_ns : a->index < b->index;
}

static void heap_place(struct feed_run *r, size_t at, struct feed_session *s)
{
    while (at > 1 && before(s, r->heap[at / 2])) {
        heap_set(r, at, r->heap[at / 2]);
        at /= 2;
    }
    for (;;) {
        size_t child = 2 * at;

        if (child < r->n_heap && before(r->heap[child + 1], r->heap[child]))
            child++;
        if (child > r->n_heap || before(s, r->heap[child]))
            break;
        heap_set(r, at, r->heap[child]);
        at = child;
    }
    heap_set(r, at, s);
}

/* When the next session arrives, on the clock. */
static int64_t arrival_ns(const struct feed_run *r)
{
    return r->next_index < r->o->sessions ? r->start_ns + mt_feed_ns(r->arrival_s, 1, r->o->speed)
                                          : INT64_MAX;
}

static void set_timer(struct feed_run *r)
{
    int64_t at = r->n_heap ? r->heap[1]->wake_ns : INT64_MAX;
    struct itimerspec it = {0};

    if (r->serving)
        return;
    int64_t arrival = arrival_ns(r);
    at = arrival < at ? arrival : at;
    if (at == r->timer_ns)
        return;
    r->timer_ns = at;
    if (at != INT64_MAX) {
        at = at > 1 ? at : 1;
        it.it_value = (struct timespec){.tv_sec = at / MT_NS_PER_S, .tv_nsec = at % MT_NS_PER_S};
    }
    timerfd_settime(r->timer_fd, TFD_TIMER_ABSTIME, &it, NULL);
}

void mt_feed_wake_at(struct feed_session *s, int64_t ns)
{
    struct feed_run *r = s->run;
    size_t at = s->heap_at;

    s->wake_ns = ns;
    if (ns == INT64_MAX) {
        struct feed_session *last;

        if (!at)
            return;
        last = r->heap[r->n_heap--];
        s->heap_at = 0;
        if (last != s)
            heap_place(r, at, last);
    } else {
        /* Room for every session was made when it arrived. */
        heap_place(r, at ? at : ++r->n_heap, s);
    }
    set_timer(r);
}

int64_t mt_feed_grid(struct feed_run *r, int64_t ns, double phase, double frame_s)
{
    double period = frame_s * 1e9 / r->o->speed;
    double first;

    if (!r->grid_ns) {
        bool together = r->o->phase == MT_PHASE_LOCKED && r->o->sessions > 1;

        r->grid_ns = ns + (together ? (int64_t)fmin(LOCK_NS, period) : 0);
    }
    first = ceil(((double)(ns - r->grid_ns) - phase * period) / period);
    return r->grid_ns + llrint((first + phase) * period);
}

/* ---- arrivals ---- */

static bool heap_room(struct feed_run *r)
{
    size_t want = (size_t)r->t->active + 2;
    struct feed_session **bigger;

    if (want <= r->cap_heap)
        return true;
    want *= 2;
    if (!(bigger = realloc(r->heap, mt_mul(want, sizeof(void *)))))
        return false;
    r->heap = bigger;
    r->cap_heap = want;
    return true;
}

/* When the next one comes; the run's end ends the arrivals. */
static void plan_arrival(struct feed_run *r)
{
    if (r->next_index >= r->o->sessions)
        return;
    r->arrival_s += mt_feed_gap_s(r->o, r->next_index);
    if (r->o->seconds > 0 && r->arrival_s >= r->o->seconds)
        r->next_index = r->o->sessions;
}

static void arrive(struct feed_run *r)
{
    for (int n = 0; n < ARRIVALS && arrival_ns(r) <= mt_feed_now(r); n++) {
        int rc = heap_room(r) ? mt_feed_session_new(r, r->next_index, r->arrival_s) : -ENOMEM;

        if (rc < 0) {
            mt_feed_stop(r, rc, strerror(-rc));
            return;
        }
        r->next_index++;
        plan_arrival(r);
    }
}

/* ---- the end ---- */

static void watch_closed(uv_handle_t *h)
{
    (void)h;
}

static void finish_if_done(struct feed_run *r)
{
    if (r->sessions || r->next_index < r->o->sessions || uv_is_closing((uv_handle_t *)&r->timer))
        return;
    uv_close((uv_handle_t *)&r->timer, watch_closed);
    uv_close((uv_handle_t *)&r->check, watch_closed);
    for (size_t i = 0; i < MT_COUNT(r->signals); i++)
        uv_close((uv_handle_t *)&r->signals[i], watch_closed);
}

void mt_feed_session_gone(struct feed_session *s)
{
    struct feed_run *r = s->run;

    if (s->prev)
        s->prev->next = s->next;
    else
        r->sessions = s->next;
    if (s->next)
        s->next->prev = s->prev;
    r->t->active--;
    free(s);
    finish_if_done(r);
}

/*
 * Sessions stay on the list until their handles are closed, so it can be walked while they close.
 */
static void for_all(struct feed_run *r, void (*act)(struct feed_session *s))
{
    r->next_index = r->o->sessions;
    for (struct feed_session *s = r->sessions; s; s = s->next)
        act(s);
    set_timer(r);
    finish_if_done(r);
}

static void close_now(struct feed_session *s)
{
    mt_feed_session_close(s, NULL);
}

void mt_feed_stop(struct feed_run *r, int rc, const char *text)
{
    if (r->rc < 0)
        return;
    if (text)
        mt_err_set(r->e, rc, "%s", text);
    r->rc = rc;
    for_all(r, close_now);
}

static void on_signal(uv_signal_t *h, int number)
{
    struct feed_run *r = h->data;

    (void)number;
    if (r->grace_ns) {
        for_all(r, close_now);
        return;
    }
    r->t->interrupted = true;
    r->grace_ns = mt_feed_now(r) + GRACE_NS;
    for_all(r, mt_feed_session_finish);
}

static void on_check(uv_timer_t *h)
{
    struct feed_run *r = h->data;
    int64_t now = mt_feed_now(r);
    char why[100];

    if (r->grace_ns && now > r->grace_ns) {
        for_all(r, close_now);
        return;
    }
    snprintf(why, sizeof(why), "no word from the server for %g s", (double)r->o->wait_ns / 1e9);
    /* Nobody has waited for longer than the server has been silent. */
    if (r->o->wait_ns > 0 && now - r->heard_ns > r->o->wait_ns)
        for (struct feed_session *s = r->sessions; s; s = s->next) {
            int64_t since;

            if (s->state != FEED_CLOSING && mt_feed_session_owed(s, &since) &&
                now - since > r->o->wait_ns)
                mt_feed_session_close(s, why);
        }
    if (r->o->progress && ++r->checks % (1000 / CHECK_MS) == 0)
        r->o->progress(r->o->ctx, (double)(now - r->start_ns) / 1e9);
}

static void on_timer(uv_poll_t *h, int status, int events)
{
    struct feed_run *r = h->data;
    uint64_t count;

    (void)status;
    (void)events;
    if (read(r->timer_fd, &count, sizeof(count)) < 0)
        return; /* set anew meanwhile */
    r->timer_ns = 0;
    mt_feed_serve_due(r);
    arrive(r);
    set_timer(r);
}

void mt_feed_serve_due(struct feed_run *r)
{
    r->serving = true;
    while (r->n_heap && r->heap[1]->wake_ns <= mt_feed_now(r)) {
        struct feed_session *s = r->heap[1];

        mt_feed_wake_at(s, INT64_MAX);
        mt_feed_session_wake(s);
    }
    r->serving = false;
    set_timer(r);
}

/* ---- the run ---- */

static void raise_file_limit(void)
{
    struct rlimit l;

    if (getrlimit(RLIMIT_NOFILE, &l) == 0 && l.rlim_cur < l.rlim_max) {
        l.rlim_cur = l.rlim_max;
        setrlimit(RLIMIT_NOFILE, &l);
    }
}

static int run_init(struct feed_run *r)
{
    static const int numbers[] = {SIGINT, SIGTERM};
    int rc;

    r->timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    if (r->timer_fd < 0)
        return -errno;
    if ((rc = uv_loop_init(&r->loop)) < 0)
        return rc;
    uv_poll_init(&r->loop, &r->timer, r->timer_fd);
    r->timer.data = r;
    uv_poll_start(&r->timer, UV_READABLE, on_timer);
    uv_timer_init(&r->loop, &r->check);
    r->check.data = r;
    uv_timer_start(&r->check, on_check, CHECK_MS, CHECK_MS);
    for (size_t i = 0; i < MT_COUNT(numbers); i++) {
        uv_signal_init(&r->loop, &r->signals[i]);
        r->signals[i].data = r;
        uv_signal_start(&r->signals[i], on_signal, numbers[i]);
    }
    return 0;
}

/* Over TCP: whether anybody is there, and at which of a name's addresses; asked once, for all. */
static int find_server(struct feed_run *r)
{
    int64_t until = mt_feed_now(r) + CONNECT_NS;
    struct mt_addr a;
    int rc = mt_addr_parse(&a, r->o->socket, r->e), which = 0;

    if (rc >= 0 && a.tcp) {
        if ((rc = mt_addr_connect(&a, until, &which)) < 0)
            return mt_err_set(r->e, rc, "%s: no server listens there: %s", r->o->socket,
                              strerror(-rc));
        close(rc);
    }
    r->server = a.at[which];
    return rc < 0 ? rc : 0;
}

int mt_feed_socket(struct mt_reel *reel, const struct mt_feed_opts *o, struct mt_feed_totals *t,
                   struct mt_err *e)
{
    struct feed_run *r = calloc(1, sizeof(*r));
    int rc;

    memset(t, 0, sizeof(*t));
    t->first_stall_s = -1;
    mt_hist_clear(&t->latency);
    mt_hist_clear(&t->rtt);
    if (!r)
        return mt_err_set(e, -ENOMEM, "out of memory");
    r->o = o;
    r->reel = reel;
    r->t = t;
    r->e = e;
    r->clock = mt_clock_real();
    r->timer_fd = -1;
    signal(SIGPIPE, SIG_IGN);
    raise_file_limit();
    rc = find_server(r);
    if (!rc && (rc = run_init(r)) < 0)
        mt_err_set(e, rc, "cannot start a loop: %s", strerror(-rc));
    if (!rc) {
        r->start_ns = mt_feed_now(r);
        plan_arrival(r);
        set_timer(r);
        finish_if_done(r);
        uv_run(&r->loop, UV_RUN_DEFAULT);
        uv_loop_close(&r->loop);
        rc = r->rc;
        t->run_s = (double)(mt_feed_now(r) - r->start_ns) / 1e9;
    }
    if (r->timer_fd >= 0)
        close(r->timer_fd);
    free(r->heap);
    free(r->out);
    free(r);
    return rc;
}
