/*
 * notify.c: a manager that hears nothing restarts the server, so what is said is judged as health
 * is: the loop must come round, and not only that: while frames wait some must be finished.
 */
#include "metrics/notify.h"
#include "base/service.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* Patience that is asked for while the model loads, and how often. */
#define EXTEND    "EXTEND_TIMEOUT_USEC=60000000"
#define EXTEND_NS (20 * MT_NS_PER_S)
/* Looks: often until it is ready, then once a second or twice per watchdog. */
#define SOON_NS   (20 * MT_NS_PER_MS)
#define STATUS_NS MT_NS_PER_S

struct mt_notifier {
    pthread_t thread;
    int wake;

    pthread_mutex_t lock; /* for what mt_notifier_serve tells */
    struct mt_wire_meter *meter;
    struct mt_metrics_watch *watch;

    /* the thread's */
    int64_t watchdog_ns;
    int64_t extended_ns, status_ns, fed_ns; /* when it last said so */
    int64_t finished;                       /* frames, then */
    bool ready, stopping;
    atomic_bool given; /* another server says the rest */
    char status[MT_NOTIFY_STATUS];
};

void mt_notify_status(const struct mt_wire_state *s, const struct mt_metrics_outlook *o,
                      int64_t now_ns, char out[MT_NOTIFY_STATUS])
{
    const char *word = mt_health_ready(s, now_ns);
    int n;

    if (!strcmp(word, "ok") && *s->control.mode)
        word = s->control.mode;
    n = snprintf(out, MT_NOTIFY_STATUS, "%s %d/%d, rho %.2f", word, s->status.sessions,
                 s->status.cap, s->status.pool);
    if (isfinite(o->pool.sat_s))
        snprintf(out + n, (size_t)(MT_NOTIFY_STATUS - n), ", sat %.0f s", o->pool.sat_s);
}

/* Frames that are done with, whatever became of them. */
static int64_t finished(const struct mt_wire_state *s)
{
    int64_t n = 0;

    for (size_t i = 0; i < MT_COUNT(s->frames); i++)
        n += s->frames[i];
    return n;
}

static void feed_watchdog(struct mt_notifier *n, const struct mt_wire_state *s, int64_t now)
{
    bool moves = finished(s) != n->finished || s->status.sessions == 0 || s->status.pending == 0;

    if (n->watchdog_ns == 0 || now - n->fed_ns < n->watchdog_ns / 2 - SOON_NS || !moves ||
        *mt_health_alive(s, now) != 'o')
        return;
    mt_service_notify("WATCHDOG=1");
    n->fed_ns = now;
    n->finished = finished(s);
}

static void tell_status(struct mt_notifier *n, const struct mt_wire_state *s, int64_t now)
{
    char text[MT_NOTIFY_STATUS], line[MT_NOTIFY_STATUS + 16];
    struct mt_metrics_outlook o;

    if (now - n->status_ns < STATUS_NS)
        return;
    n->status_ns = now;
    mt_metrics_watch_outlook(n->watch, &o);
    mt_notify_status(s, &o, now, text);
    if (!strcmp(text, n->status))
        return;
    memcpy(n->status, text, sizeof(text));
    snprintf(line, sizeof(line), "STATUS=%s", text);
    mt_service_notify(line);
}

static void look(struct mt_notifier *n, int64_t now)
{
    struct mt_wire_state s;

    mt_wire_meter_read(n->meter, now, &s);
    mt_metrics_watch_look(n->watch, &s);
    if (!n->ready && s.warm) {
        mt_service_notify("READY=1");
        n->ready = true;
    }
    if (!n->stopping && s.draining) {
        mt_service_notify("STOPPING=1");
        n->stopping = true;
    }
    tell_status(n, &s, now);
    feed_watchdog(n, &s, now);
}

static int64_t pause_ns(const struct mt_notifier *n)
{
    int64_t ns = n->watchdog_ns ? n->watchdog_ns / 4 : STATUS_NS;

    return !n->ready ? SOON_NS : ns < STATUS_NS ? ns : STATUS_NS;
}

static void *run(void *arg)
{
    struct mt_notifier *n = arg;
    struct pollfd p = {.fd = n->wake, .events = POLLIN};
    struct mt_clock clock = mt_clock_real();

    while (!(p.revents & POLLIN)) {
        int64_t now = clock.now_ns(&clock);
        bool serves;

        pthread_mutex_lock(&n->lock);
        serves = n->watch != NULL;
        pthread_mutex_unlock(&n->lock);
        if (!n->ready && now - n->extended_ns >= EXTEND_NS) {
            mt_service_notify(EXTEND);
            n->extended_ns = now;
        }
        if (serves && !atomic_load(&n->given))
            look(n, now);
        poll(&p, 1, (int)(pause_ns(n) / MT_NS_PER_MS));
    }
    return NULL;
}

int mt_notifier_start(struct mt_notifier **out, struct mt_err *e)
{
    struct mt_notifier *n;
    sigset_t all, old;
    int rc;

    *out = NULL;
    if (!mt_service_managed())
        return 0;
    if (!(n = calloc(1, sizeof(*n))))
        return mt_err_set(e, -ENOMEM, "out of memory");
    n->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    n->watchdog_ns = mt_service_watchdog_ns();
    n->extended_ns = -EXTEND_NS;
    pthread_mutex_init(&n->lock, NULL);
    sigfillset(&all); /* signals are not this thread's */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    rc = n->wake < 0 ? errno : pthread_create(&n->thread, NULL, run, n);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc) {
        if (n->wake >= 0)
            close(n->wake);
        free(n);
        return mt_err_set(e, -rc, "can't tell the service manager: %s", strerror(rc));
    }
    *out = n;
    return 0;
}

void mt_notifier_serve(struct mt_notifier *n, const struct mt_metrics_facts *f,
                       struct mt_wire_meter *meter)
{
    struct mt_metrics_watch *w;

    if (!n || mt_metrics_watch_new(&w, f) < 0)
        return;
    pthread_mutex_lock(&n->lock);
    n->meter = meter;
    n->watch = w;
    pthread_mutex_unlock(&n->lock);
}

void mt_notifier_given(struct mt_notifier *n)
{
    if (n)
        atomic_store(&n->given, true);
}

void mt_notifier_stop(struct mt_notifier **pn)
{
    struct mt_notifier *n = *pn;

    if (!n)
        return;
    eventfd_write(n->wake, 1);
    pthread_join(n->thread, NULL);
    if (!n->stopping && !atomic_load(&n->given))
        mt_service_notify("STOPPING=1");
    close(n->wake);
    mt_metrics_watch_free(&n->watch);
    pthread_mutex_destroy(&n->lock);
    free(n);
    *pn = NULL;
}
