/*
 * http.c: the metrics and the health over HTTP, by libmicrohttpd, in one thread of its own that
 * also looks at the state once a frame. Every request reads a copy of the state: nothing here can
 * hold up a frame, and a client that stops reading holds up only itself, for some seconds.
 */
#include "metrics/metrics.h"

#include "wire/listen.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <microhttpd.h>

enum { CONNECTIONS = 32, TIMEOUT_S = 10, REQUEST_BYTES = 16 << 10 };
/* Between two looks at the state: a frame, in these bounds. */
enum { LOOK_MIN_MS = 20, LOOK_MAX_MS = 1000 };

struct mt_metrics_server {
    struct mt_metrics_facts facts;
    struct mt_wire_meter *meter;
    struct mt_metrics_watch *watch;
    struct MHD_Daemon *daemon;
    struct mt_listener listener;
    int wake;
    pthread_t thread;
    bool started;
};

/* ---- answers ---- */

static enum MHD_Result answer(struct MHD_Connection *c, unsigned status, const char *type,
                              char *text, size_t n, enum MHD_ResponseMemoryMode mode)
{
    struct MHD_Response *r = text ? MHD_create_response_from_buffer(n, text, mode) : NULL;
    enum MHD_Result done;

    if (!r) {
        if (mode == MHD_RESPMEM_MUST_FREE)
            free(text);
        return MHD_NO; /* without memory the connection ends */
    }
    MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    MHD_add_response_header(r, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    if (status == MHD_HTTP_METHOD_NOT_ALLOWED)
        MHD_add_response_header(r, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
    done = MHD_queue_response(c, status, r);
    MHD_destroy_response(r);
    return done;
}

static enum MHD_Result say(struct MHD_Connection *c, unsigned status, const char *text)
{
    return answer(c, status, "text/plain; charset=utf-8", (char *)text, strlen(text),
                  MHD_RESPMEM_MUST_COPY);
}

static enum MHD_Result say_health(struct mt_metrics_server *s, struct MHD_Connection *c,
                                  const char *(*judge)(const struct mt_wire_state *, int64_t))
{
    struct mt_clock clock = mt_clock_real();
    int64_t now = clock.now_ns(&clock);
    struct mt_wire_state st;
    const char *word;
    char line[80];

    mt_wire_meter_read(s->meter, now, &st);
    word = judge(&st, now);
    if (!strcmp(mt_health_alive(&st, now), "stalled"))
        snprintf(line, sizeof(line), "stalled %lld ms\n",
                 (long long)((now - st.beat_ns) / MT_NS_PER_MS));
    else
        snprintf(line, sizeof(line), "%s\n", word);
    return say(c, strcmp(word, "ok") ? MHD_HTTP_SERVICE_UNAVAILABLE : MHD_HTTP_OK, line);
}

static enum MHD_Result say_metrics(struct mt_metrics_server *s, struct MHD_Connection *c)
{
    enum mt_metrics_format format = mt_metrics_accepted(
        MHD_lookup_connection_value(c, MHD_HEADER_KIND, MHD_HTTP_HEADER_ACCEPT));
    struct mt_clock clock = mt_clock_real();
    struct mt_metrics_outlook o;
    struct mt_wire_state st;
    size_t n = 0;
    char *text;

    mt_wire_meter_read(s->meter, clock.now_ns(&clock), &st);
    mt_metrics_watch_outlook(s->watch, &o);
    text = mt_metrics_write(&s->facts, &st, &o, format, &n);
    return answer(c, MHD_HTTP_OK, mt_metrics_content_type(format), text, n, MHD_RESPMEM_MUST_FREE);
}

static enum MHD_Result on_request(void *ctx, struct MHD_Connection *c, const char *url,
                                  const char *method, const char *version, const char *upload,
                                  size_t *upload_size, void **request)
{
    struct mt_metrics_server *s = ctx;
    static int seen;

    (void)version, (void)upload;
    if (!*request) { /* the header has come; a body may follow, and is thrown away */
        *request = &seen;
        return MHD_YES;
    }
    if (*upload_size > 0) {
        *upload_size = 0;
        return MHD_YES;
    }
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0)
        return say(c, MHD_HTTP_METHOD_NOT_ALLOWED, "GET or HEAD\n");
    if (!strcmp(url, "/metrics"))
        return say_metrics(s, c);
    if (!strcmp(url, "/healthz"))
        return say_health(s, c, mt_health_alive);
    if (!strcmp(url, "/readyz"))
        return say_health(s, c, mt_health_ready);
    return say(c, MHD_HTTP_NOT_FOUND, "/metrics, /healthz, /readyz\n");
}

/* ---- the thread ---- */

static int look_ms(const struct mt_metrics_server *s)
{
    double ms = s->facts.frame_s * 1e3;

    return ms < LOOK_MIN_MS ? LOOK_MIN_MS : ms > LOOK_MAX_MS ? LOOK_MAX_MS : (int)ms;
}

static void *run(void *arg)
{
    struct mt_metrics_server *s = arg;
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(s->daemon, MHD_DAEMON_INFO_EPOLL_FD);
    struct pollfd p[2] = {{.fd = s->wake, .events = POLLIN},
                          {.fd = info ? info->epoll_fd : -1, .events = POLLIN}};
    struct mt_clock clock = mt_clock_real();
    int64_t next = clock.now_ns(&clock);
    struct mt_wire_state st;

    while (!(p[0].revents & POLLIN)) {
        int64_t wait_ms = (next - clock.now_ns(&clock)) / MT_NS_PER_MS;
        MHD_UNSIGNED_LONG_LONG theirs;

        if (wait_ms <= 0) {
            int64_t now = clock.now_ns(&clock);

            mt_wire_meter_read(s->meter, now, &st);
            mt_metrics_watch_look(s->watch, &st);
            next = now + look_ms(s) * MT_NS_PER_MS;
            wait_ms = look_ms(s);
        }
        if (MHD_get_timeout(s->daemon, &theirs) == MHD_YES && theirs < (uint64_t)wait_ms)
            wait_ms = (int64_t)theirs;
        poll(p, 2, (int)wait_ms);
        MHD_run(s->daemon);
    }
    return NULL;
}

/* ---- the server ---- */

static int start(struct mt_metrics_server *s, struct mt_err *e)
{
    sigset_t all, old;
    int rc;

    s->daemon =
        MHD_start_daemon(MHD_USE_EPOLL, 0, NULL, NULL, on_request, s, MHD_OPTION_LISTEN_SOCKET,
                         s->listener.fd, MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS,
                         MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)TIMEOUT_S,
                         MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)REQUEST_BYTES, MHD_OPTION_END);
    if (!s->daemon)
        return mt_err_set(e, -EIO, "%s: the HTTP server can't start", s->listener.where);
    s->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (s->wake < 0)
        return mt_err_set(e, -errno, "%s: %s", s->listener.where, strerror(errno));
    sigfillset(&all); /* signals are not this thread's */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    rc = pthread_create(&s->thread, NULL, run, s);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc)
        return mt_err_set(e, -rc, "%s: %s", s->listener.where, strerror(rc));
    s->started = true;
    return 0;
}

int mt_metrics_serve_taken(struct mt_metrics_server **out, const struct mt_listener *l,
                           const struct mt_metrics_facts *f, struct mt_wire_meter *meter,
                           struct mt_err *e)
{
    struct mt_metrics_server *s = calloc(1, sizeof(*s));
    int rc;

    *out = NULL;
    if (!s) {
        mt_listen_unlink(l);
        close(l->fd);
        return mt_err_set(e, -ENOMEM, "out of memory");
    }
    s->facts = *f;
    s->meter = meter;
    s->wake = -1;
    s->listener = *l;
    if ((rc = mt_metrics_watch_new(&s->watch, f)) < 0)
        mt_err_set(e, rc, "out of memory");
    if (!rc)
        rc = start(s, e);
    if (rc < 0)
        mt_metrics_stop(&s);
    *out = s;
    return rc;
}

int mt_metrics_serve(struct mt_metrics_server **out, const char *where,
                     const struct mt_metrics_facts *f, struct mt_wire_meter *meter,
                     struct mt_err *e)
{
    struct mt_listener l;
    int rc = mt_listen_service(&l, where, e);

    *out = NULL;
    return rc < 0 ? rc : mt_metrics_serve_taken(out, &l, f, meter, e);
}

int mt_metrics_serve_fd(struct mt_metrics_server **out, int fd, const struct mt_metrics_facts *f,
                        struct mt_wire_meter *meter, struct mt_err *e)
{
    struct mt_listener l;

    mt_listen_adopt_service(&l, fd);
    return mt_metrics_serve_taken(out, &l, f, meter, e);
}

const char *mt_metrics_where(const struct mt_metrics_server *s)
{
    return s->listener.where;
}

const struct mt_listener *mt_metrics_door(const struct mt_metrics_server *s)
{
    return s ? &s->listener : NULL;
}

void mt_metrics_given(struct mt_metrics_server *s)
{
    if (s)
        s->listener.ino = 0;
}

void mt_metrics_stop(struct mt_metrics_server **ps)
{
    struct mt_metrics_server *s = *ps;

    if (!s)
        return;
    if (s->started) {
        eventfd_write(s->wake, 1);
        pthread_join(s->thread, NULL);
    }
    mt_listen_unlink(&s->listener);
    if (s->daemon)
        MHD_stop_daemon(s->daemon); /* closes the listening socket, too */
    else if (s->listener.fd >= 0)
        close(s->listener.fd);
    if (s->wake >= 0)
        close(s->wake);
    mt_metrics_watch_free(&s->watch);
    free(s);
    *ps = NULL;
}
