/*
 * agent.c: one connection, one line, and it ends. The proxy's request may come or not, so the
 * answer waits for a line, for the end of the client's side, or for MT_AGENT_WAIT_MS.
 */
#include "wire/agent.h"
#include "wire/listen.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <uv.h>

enum { CLIENTS_MAX = 256, REQUEST_MAX = 64, BACKLOG = 256, LINGER_MS = 1000 };

struct mt_agent_server {
    struct mt_listener listener;
    uv_loop_t loop;
    uv_pipe_t accept; /* of TCP, too: to libuv any stream socket is a pipe */
    uv_async_t stop;
    pthread_t thread;
    bool made, started;
    struct client *first, *last; /* in the order in which they came */
    int clients;

    pthread_mutex_t lock; /* for what is told */
    struct mt_agent told;
    int64_t told_ns, stale_ns;
};

struct client {
    struct client *prev, *next;
    struct mt_agent_server *s;
    uv_pipe_t pipe;
    uv_timer_t timer;
    uv_write_t write;
    int handles;
    bool answered;
    char line[MT_AGENT_LINE];
    char request[REQUEST_MAX];
    size_t n;
};

static int64_t now_ns(void)
{
    struct mt_clock c = mt_clock_real();

    return c.now_ns(&c);
}

static struct mt_agent current(struct mt_agent_server *s)
{
    int64_t age, stale;
    struct mt_agent a;

    pthread_mutex_lock(&s->lock);
    a = s->told;
    age = now_ns() - s->told_ns;
    stale = s->stale_ns;
    pthread_mutex_unlock(&s->lock);
    if (a.state == MT_AGENT_STALLED)
        a.stalled_ms += age / MT_NS_PER_MS;
    else if (stale > 0 && age > stale)
        a = (struct mt_agent){.state = MT_AGENT_STALLED, .stalled_ms = age / MT_NS_PER_MS};
    return a;
}

/* ---- a client ---- */

static void on_closed(uv_handle_t *h)
{
    struct client *c = h->data;

    if (--c->handles == 0)
        free(c);
}

static void join(struct mt_agent_server *s, struct client *c)
{
    c->s = s;
    c->prev = s->last;
    if (c->prev)
        c->prev->next = c;
    else
        s->first = c;
    s->last = c;
    s->clients++;
}

static void client_close(struct client *c)
{
    struct mt_agent_server *s = c->s;

    if (uv_is_closing((uv_handle_t *)&c->timer))
        return;
    if (c->prev)
        c->prev->next = c->next;
    else
        s->first = c->next;
    if (c->next)
        c->next->prev = c->prev;
    else
        s->last = c->prev;
    s->clients--;
    uv_close((uv_handle_t *)&c->pipe, on_closed);
    uv_close((uv_handle_t *)&c->timer, on_closed);
}

static void on_late(uv_timer_t *t)
{
    client_close(t->data);
}

/* The client closes first: our end with its request unread would reset the line on its way. */
static void on_written(uv_write_t *w, int status)
{
    struct client *c = w->data;
    uv_os_fd_t fd;

    if (status < 0 || uv_fileno((uv_handle_t *)&c->pipe, &fd) < 0 || shutdown(fd, SHUT_WR) < 0)
        client_close(c);
}

static void answer(struct client *c)
{
    struct mt_agent a = current(c->s);
    uv_buf_t buf;

    if (c->answered)
        return;
    c->answered = true;
    buf = uv_buf_init(c->line,
                      (unsigned)mt_agent_reply(&a, mt_agent_share(c->request, c->n), c->line));
    c->write.data = c;
    uv_timer_start(&c->timer, on_late, LINGER_MS, 0);
    if (uv_write(&c->write, (uv_stream_t *)&c->pipe, &buf, 1, on_written) < 0)
        client_close(c);
}

static void on_silent(uv_timer_t *t)
{
    answer(t->data);
}

static void on_alloc(uv_handle_t *h, size_t want, uv_buf_t *buf)
{
    struct client *c = h->data;

    (void)want;
    if (c->answered) /* what follows is nobody's */
        *buf = uv_buf_init(c->request, sizeof(c->request));
    else
        *buf = uv_buf_init(c->request + c->n, (unsigned)(sizeof(c->request) - c->n));
}

static void on_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct client *c = stream->data;
    size_t line;

    (void)buf;
    if (n < 0) {
        uv_read_stop(stream);
        if (n != UV_EOF || c->answered)
            client_close(c);
        else
            answer(c);
        return;
    }
    if (c->answered)
        return;
    c->n += (size_t)n;
    for (line = 0; line < c->n && c->request[line] != '\n' && c->request[line] != '\r';)
        line++;
    if (line == c->n && c->n < sizeof(c->request))
        return;
    c->n = line;
    answer(c);
}

/*
 * Those who hold their connections don't keep others out: of too many the oldest goes, one that has
 * its line before one that still waits for it.
 */
static void make_room(struct mt_agent_server *s)
{
    struct client *oldest = s->first, *c = oldest;

    if (!oldest || s->clients <= CLIENTS_MAX)
        return;
    while (c && !c->answered)
        c = c->next;
    client_close(c ? c : oldest);
}

static void on_connection(uv_stream_t *stream, int status)
{
    struct mt_agent_server *s = stream->data;
    struct client *c = status < 0 ? NULL : calloc(1, sizeof(*c));

    if (!c)
        return;
    join(s, c);
    c->handles = 2;
    uv_pipe_init(&s->loop, &c->pipe, 0);
    uv_timer_init(&s->loop, &c->timer);
    c->pipe.data = c->timer.data = c;
    make_room(s);
    if (uv_accept(stream, (uv_stream_t *)&c->pipe) < 0 ||
        uv_timer_start(&c->timer, on_silent, MT_AGENT_WAIT_MS, 0) < 0 ||
        uv_read_start((uv_stream_t *)&c->pipe, on_alloc, on_read) < 0)
        client_close(c);
}

/* ---- the thread ---- */

static void close_one(uv_handle_t *h, void *arg)
{
    struct mt_agent_server *s = arg;

    if (uv_is_closing(h))
        return;
    if (h == (uv_handle_t *)&s->accept || h == (uv_handle_t *)&s->stop)
        uv_close(h, NULL);
    else
        client_close(h->data);
}

static void on_stop(uv_async_t *a)
{
    struct mt_agent_server *s = a->data;

    uv_walk(&s->loop, close_one, s);
}

static void *run(void *arg)
{
    struct mt_agent_server *s = arg;

    uv_run(&s->loop, UV_RUN_DEFAULT);
    return NULL;
}

static int start(struct mt_agent_server *s)
{
    sigset_t all, old;
    int rc;

    if ((rc = uv_loop_init(&s->loop)) < 0)
        return rc;
    s->made = true;
    if ((rc = uv_async_init(&s->loop, &s->stop, on_stop)) < 0 ||
        (rc = uv_pipe_init(&s->loop, &s->accept, 0)) < 0)
        return rc;
    s->stop.data = s->accept.data = s;
    if ((rc = uv_pipe_open(&s->accept, s->listener.fd)) < 0)
        return rc;
    s->listener.fd = -1; /* the handle's now */
    if ((rc = uv_listen((uv_stream_t *)&s->accept, BACKLOG, on_connection)) < 0)
        return rc;
    sigfillset(&all); /* signals are not this thread's */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    rc = -pthread_create(&s->thread, NULL, run, s);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    s->started = rc == 0;
    return rc;
}

static int serve(struct mt_agent_server **out, const char *where, int fd, struct mt_err *e)
{
    struct mt_agent_server *s = calloc(1, sizeof(*s));
    int rc = 0;

    *out = NULL;
    if (!s)
        return mt_err_set(e, -ENOMEM, "out of memory");
    pthread_mutex_init(&s->lock, NULL);
    if (where)
        rc = mt_listen_service(&s->listener, where, e);
    else
        mt_listen_adopt_service(&s->listener, fd);
    if (!rc && (rc = start(s)) < 0)
        mt_err_set(e, rc, "%s: %s", s->listener.where, uv_strerror(rc));
    if (rc < 0)
        mt_agent_stop(&s);
    *out = s;
    return rc;
}

int mt_agent_serve(struct mt_agent_server **out, const char *where, struct mt_err *e)
{
    return serve(out, where, -1, e);
}

int mt_agent_serve_fd(struct mt_agent_server **out, int fd, struct mt_err *e)
{
    return serve(out, NULL, fd, e);
}

const char *mt_agent_where(const struct mt_agent_server *s)
{
    return s->listener.where;
}

void mt_agent_tell(struct mt_agent_server *s, const struct mt_agent *a, int64_t stale_ns)
{
    pthread_mutex_lock(&s->lock);
    s->told = *a;
    s->told_ns = now_ns();
    s->stale_ns = stale_ns;
    pthread_mutex_unlock(&s->lock);
}

void mt_agent_stop(struct mt_agent_server **ps)
{
    struct mt_agent_server *s = *ps;

    if (!s)
        return;
    if (s->started) {
        uv_async_send(&s->stop);
        pthread_join(s->thread, NULL);
    } else if (s->made) {
        uv_walk(&s->loop, close_one, s);
        uv_run(&s->loop, UV_RUN_DEFAULT);
    }
    if (s->made)
        uv_loop_close(&s->loop);
    mt_listen_unlink(&s->listener);
    if (s->listener.fd >= 0)
        close(s->listener.fd);
    pthread_mutex_destroy(&s->lock);
    free(s);
    *ps = NULL;
}
