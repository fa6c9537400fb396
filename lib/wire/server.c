/*
 * server.c: the I/O thread of a server: one libuv loop over the listener, the connections, the
 * signals and the engine's outbox. It never waits for the engine and the engine never waits for a
 * client.
 */
#include "wire/callfile.h"
#include "wire/store.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define FINAL_MS     5000 /* for readers to fetch what was said at the end */
#define PAUSE_MS     100  /* for descriptors to come free */
#define ACCEPTS      16
#define OTHER_FDS    64 /* descriptors that are no connection's */
#define DYING_NAP_NS (5 * MT_NS_PER_MS)

void mt_server_note(struct mt_server *s, enum mt_level level, const char *fmt, ...)
{
    char text[400];
    va_list ap;

    if (!s->opts->note)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    s->opts->note(s->opts->ctx, level, text);
}

static void on_final(uv_timer_t *t)
{
    mt_conn_finish_all(t->data, true);
}

static void close_handle(uv_handle_t *h)
{
    if (!uv_is_closing(h))
        uv_close(h, NULL);
}

/* Nobody comes in any more; socket files go at once. */
static void shut_doors(struct mt_server *s)
{
    mt_handoff_close(s);
    close_handle((uv_handle_t *)&s->pause);
    for (int i = 0; i < s->n_doors; i++) {
        struct mt_door *d = &s->doors[i];

        mt_listen_unlink(&d->listener);
        if (d->poll.data)
            close_handle((uv_handle_t *)&d->poll);
        if (d->listener.fd >= 0)
            close(d->listener.fd);
        d->listener.fd = -1;
    }
}

void mt_server_given(struct mt_server *s)
{
    for (int i = 0; i < s->n_doors; i++)
        s->doors[i].listener.ino = 0; /* the file is the other server's */
    if (s->opts->given)
        s->opts->given(s->opts->ctx);
}

void mt_server_conn_gone(struct mt_server *s)
{
    s->n_conns--;
    if (s->done && s->n_conns == 0)
        close_handle((uv_handle_t *)&s->final);
}

/* The engine has ended: the loop ends when the last connection has its last line. */
static void wind_up(struct mt_server *s)
{
    s->done = true;
    close_handle((uv_handle_t *)&s->mail);
    close_handle((uv_handle_t *)&s->term);
    close_handle((uv_handle_t *)&s->intr);
    shut_doors(s);
    close_handle((uv_handle_t *)&s->sweep);
    if (s->n_conns == 0) {
        close_handle((uv_handle_t *)&s->final);
        return;
    }
    uv_timer_start(&s->final, on_final, FINAL_MS, FINAL_MS);
    mt_conn_finish_all(s, false);
}

static void on_mail(uv_async_t *a)
{
    struct mt_server *s = a->data;
    struct mt_mail *list = mt_box_take(&s->worker.out, 0), *m;
    bool done = false, parked = false;

    while ((m = list)) {
        struct mt_conn *c = mt_conn_find(s, m);

        list = m->next;
        if (m->kind == MT_MAIL_STORE) {
            mt_store_save(s, m);
            continue;
        }
        done = done || m->kind == MT_MAIL_DONE;
        parked = parked || m->kind == MT_MAIL_PARKED;
        if (c)
            mt_conn_mail(c, m);
        if (m->watch)
            mt_conn_broadcast(s, m);
        mt_mail_free(m);
    }
    if (parked)
        mt_handoff_parked(s);
    if (done)
        wind_up(s);
}

static void notify(void *ctx)
{
    struct mt_server *s = ctx;

    uv_async_send(&s->mail);
}

static void on_pause(uv_timer_t *t);

/* A few at a time, so that those who are in are heard, too. */
static void on_connection(uv_poll_t *p, int status, int events)
{
    struct mt_door *d = p->data;

    (void)status, (void)events;
    for (int i = 0; i < ACCEPTS; i++) {
        int fd = accept4(d->listener.fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);

        if (fd >= 0) {
            mt_conn_accept(d, fd);
        } else if (errno != EINTR && errno != ECONNABORTED) {
            mt_server_pause(d->s, d->listener.where);
            return;
        }
    }
}

void mt_server_pause(struct mt_server *s, const char *where)
{
    if (errno != EMFILE && errno != ENFILE && errno != ENOMEM && errno != ENOBUFS)
        return;
    mt_server_note(s, MT_WARN, "%s: %s", where, strerror(errno));
    mt_server_bar_doors(s, true);
    uv_timer_start(&s->pause, on_pause, PAUSE_MS, 0);
}

void mt_server_bar_doors(struct mt_server *s, bool bar)
{
    uv_timer_stop(&s->pause);
    if (s->stopping)
        return;
    mt_handoff_wait(s, !bar);
    for (int i = 0; i < s->n_doors; i++)
        if (bar)
            uv_poll_stop(&s->doors[i].poll);
        else
            uv_poll_start(&s->doors[i].poll, UV_READABLE, on_connection);
}

static void on_pause(uv_timer_t *t)
{
    struct mt_server *s = t->data;

    if (!s->frozen)
        mt_server_bar_doors(s, false);
}

/*
 * The first signal. From here on the default action stands again, so that a second one ends the
 * process at once; the socket file is gone by then.
 */
static void on_signal(uv_signal_t *sig, int signum)
{
    struct mt_server *s = sig->data;
    struct mt_mail *m = mt_mail_new(MT_MAIL_SHUTDOWN, 0, 0, 0);

    if (!m)
        return;
    uv_signal_stop(&s->term);
    uv_signal_stop(&s->intr);
    shut_doors(s);
    s->stopping = true;
    mt_server_note(s, MT_INFO, "%s: finishing %d connections", strsignal(signum), s->n_conns);
    mt_conn_stop_all(s);
    mt_box_push(&s->worker.in, m);
}

/*
 * As many connections as the engine may have sessions, or callers may come over TCP, some to
 * control it, and as descriptors allow.
 */
static int connection_limit(struct mt_server *s)
{
    int max_sessions = mt_engine_options(s->worker.eng)->max_sessions;
    int tcp = s->opts->tcp.connections, calls = tcp > max_sessions ? tcp : max_sessions;
    rlim_t want = (rlim_t)calls + MT_CONTROL_CONNS + OTHER_FDS;
    struct rlimit r;

    if (getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur < want) {
        r.rlim_cur = r.rlim_max < want ? r.rlim_max : want;
        setrlimit(RLIMIT_NOFILE, &r);
        if (getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur < want)
            want = r.rlim_cur;
    }
    if (want < (rlim_t)calls + OTHER_FDS)
        mt_server_note(s, MT_WARN,
                       "the limit on open files (ulimit -n) of %llu is too low for %s%d",
                       (unsigned long long)want,
                       tcp > max_sessions ? "--tcp connections=" : "--max-sessions ", calls);
    return want > OTHER_FDS ? (int)(want - OTHER_FDS) : 1;
}

/* All that a call owns, twice over, its words, and the sound of which a converter is in the middle. */
static size_t most_saved(const struct mt_engine *eng)
{
    const struct mt_engine_plan *p = mt_engine_plan(eng);
    int64_t bytes =
        p->state_bytes_session + (4 << 20) + 3 * (int64_t)sizeof(float) * MT_WIRE_RATE_MAX;

    bytes += mt_engine_options(eng)->policy.bounded ? p->kv_bytes_session : p->pool_bytes;
    for (int i = 0; i < p->n_state; i++)
        bytes += p->state[i].bytes;
    return 2 * (size_t)bytes;
}

static int open_door(struct mt_door *d)
{
    int rc = uv_poll_init(&d->s->loop, &d->poll, d->listener.fd);

    if (rc == 0)
        d->poll.data = d;
    return rc;
}

/*
 * Handles in the order of the struct; on failure those made are closed by the caller's final run.
 */
static int make_handles(struct mt_server *s)
{
    int rc;

    if ((rc = uv_async_init(&s->loop, &s->mail, on_mail)) < 0 ||
        (rc = uv_signal_init(&s->loop, &s->term)) < 0 ||
        (rc = uv_signal_init(&s->loop, &s->intr)) < 0 ||
        (rc = uv_timer_init(&s->loop, &s->sweep)) < 0 ||
        (rc = uv_timer_init(&s->loop, &s->final)) < 0 ||
        (rc = uv_timer_init(&s->loop, &s->pause)) < 0)
        return rc;
    s->mail.data = s->term.data = s->intr.data = s->sweep.data = s->final.data = s;
    s->pause.data = s;
    if ((rc = uv_signal_start(&s->term, on_signal, SIGTERM)) < 0 ||
        (rc = uv_signal_start(&s->intr, on_signal, SIGINT)) < 0)
        return rc;
    return 0;
}

static void close_each(uv_handle_t *h, void *arg)
{
    (void)arg;
    close_handle(h);
}

static int say_ready(struct mt_server *s)
{
    const char *where[MT_DOORS];

    for (int i = 0; i < s->n_doors; i++)
        where[i] = s->doors[i].listener.where;
    return s->opts->ready ? s->opts->ready(s->opts->ctx, where, s->n_doors) : 0;
}

/* From here on clients are heard, and those of a server before go on. */
static void begin(struct mt_server *s)
{
    mt_server_bar_doors(s, false);
    for (int i = 0; i < s->slots; i++)
        if (s->conns[i])
            mt_conn_resume(s->conns[i]);
}

/* Nobody has heard anything of this server yet; what it has of another's is given up. */
static void give_up(struct mt_server *s)
{
    for (int i = 0; i < s->slots; i++)
        if (s->conns[i])
            mt_conn_close(s->conns[i]);
    uv_walk(&s->loop, close_each, NULL);
}

static int serve(struct mt_server *s, struct mt_err *e)
{
    int rc = uv_loop_init(&s->loop);

    if (rc < 0)
        return mt_err_set(e, rc, "event loop: %s", uv_strerror(rc));
    if ((rc = make_handles(s)) < 0)
        mt_err_set(e, rc, "event loop: %s", uv_strerror(rc));
    if (!rc && s->opts->handoff)
        rc = mt_handoff_take(s, e);
    if (!rc)
        rc = mt_server_open_doors(s, e);
    if (!rc)
        rc = say_ready(s);
    if (!rc)
        rc = mt_worker_start(&s->worker, e);
    if (rc < 0)
        give_up(s);
    else
        begin(s);
    uv_run(&s->loop, UV_RUN_DEFAULT);
    mt_worker_free(&s->worker);
    uv_loop_close(&s->loop);
    return rc;
}

/* Whether a door is there already that leads to the same socket, or was asked for by this name. */
static bool is_door(const struct mt_server *s, int fd, const char *asked)
{
    struct stat a, b;

    for (int i = 0; i < s->n_doors; i++) {
        const struct mt_listener *l = &s->doors[i].listener;

        if (asked ? !strcmp(l->asked, asked)
                  : fstat(fd, &a) == 0 && fstat(l->fd, &b) == 0 && a.st_ino == b.st_ino)
            return true;
    }
    return false;
}

static int too_many(struct mt_err *e)
{
    return mt_err_set(e, -E2BIG, "more than %d sockets, with those of the server before", MT_DOORS);
}

static int check_public(const struct mt_server *s, const struct mt_listener *l, struct mt_err *e)
{
    if (s->opts->public || !mt_wire_public_fd(l->fd))
        return 0;
    return mt_err_set(e, -EINVAL, "%s: other machines can reach %s", l->asked, l->where);
}

bool mt_server_again(const struct mt_server *s, int rc)
{
    struct mt_clock c = mt_clock_real();
    int64_t now = c.now_ns(&c);

    if (rc != -EADDRINUSE || now >= s->dying_ns)
        return false;
    c.sleep_until_ns(&c, now + DYING_NAP_NS);
    return true;
}

static int make_door(struct mt_server *s, const char *where, struct mt_err *e)
{
    struct mt_listener *l;
    int rc;

    if (s->n_doors == MT_DOORS)
        return too_many(e);
    l = &s->doors[s->n_doors].listener;
    do
        rc = mt_listen(l, where, e);
    while (mt_server_again(s, rc));
    if (rc < 0)
        return rc;
    s->n_doors++;
    return check_public(s, l, e);
}

static int make_doors(struct mt_server *s, struct mt_err *e)
{
    const struct mt_server_opts *o = s->opts;
    int rc = 0;

    for (int i = 0; i < o->n_fds; i++) {
        if (is_door(s, o->fds[i], NULL))
            close(o->fds[i]);
        else if (s->n_doors == MT_DOORS)
            rc = too_many(e);
        else
            mt_listen_adopt(&s->doors[s->n_doors++].listener, o->fds[i]);
    }
    for (int i = 0; i < MT_DOORS && o->where[i] && !rc; i++) {
        if (!is_door(s, -1, o->where[i]))
            rc = make_door(s, o->where[i], e);
    }
    return rc;
}

int mt_server_open_doors(struct mt_server *s, struct mt_err *e)
{
    const struct mt_server_opts *o = s->opts;
    int rc = 0;

    if (s->open)
        return 0;
    s->open = true;
    rc = make_doors(s, e);
    for (int i = 0; i < s->n_doors && !rc; i++) {
        struct mt_door *d = &s->doors[i];

        d->s = s;
        d->tcp = mt_wire_is_tcp(d->listener.where);
        if ((rc = open_door(d)) < 0)
            mt_err_set(e, rc, "%s: %s", d->listener.where, uv_strerror(rc));
    }
    s->opens = o->tcp.opens_per_s * MT_TCP_BURST;
    if (!rc)
        rc = mt_handoff_open(s, e);
    if (!rc && o->metrics_open && s->metrics.fd < 0)
        do
            rc = o->metrics_open(o->ctx, NULL, e);
        while (mt_server_again(s, rc));
    return rc;
}

static void free_doors(struct mt_server *s)
{
    for (int i = 0; i < s->n_doors; i++) {
        mt_listen_unlink(&s->doors[i].listener);
        if (s->doors[i].listener.fd >= 0)
            close(s->doors[i].listener.fd);
    }
    if (s->metrics.fd >= 0)
        close(s->metrics.fd);
}

int mt_serve_socket(struct mt_engine *eng, struct mt_model *m, const struct mt_server_opts *o,
                    struct mt_err *e)
{
    struct mt_server *s = calloc(1, sizeof(*s));
    struct mt_wire_meter *own = NULL;
    void (*hup)(int), (*pipe)(int), (*xfsz)(int);
    int rc;

    if (!s)
        return mt_err_set(e, -ENOMEM, "out of memory");
    s->opts = o;
    s->worker.eng = eng;
    s->worker.model = m;
    s->worker.notify = notify;
    s->worker.ctx = s;
    s->worker.fault = o->fault;
    s->worker.meter = o->meter;
    s->call_bytes = most_saved(eng);
    s->worker.handoff = &s->handoff;
    s->metrics.fd = s->handoff.listener.fd = -1;
    if (o->save_dir || o->handoff)
        s->worker.identity = mt_model_identity(m);
    if (o->save_dir) {
        int swept = mt_callfile_sweep(o->save_dir);

        if (swept > 0)
            mt_server_note(s, MT_WARN, "%s: %d unfinished files of a server that died are removed",
                           o->save_dir, swept);
    }
    if (!mt_wire_hub_of(eng)) {
        free(s);
        return mt_err_set(e, -EINVAL, "the engine's events are not the hub's");
    }
    if (!o->meter && mt_wire_meter_new(&own) < 0) {
        free(s);
        return mt_err_set(e, -ENOMEM, "out of memory");
    }
    if (own)
        s->worker.meter = own;
    json_object_seed(0); /* before there are two threads that make objects */
    hup = signal(SIGHUP, SIG_IGN);
    pipe = signal(SIGPIPE, SIG_IGN);
    xfsz = signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is an error */
    s->slots = connection_limit(s);
    s->conns = mt_alloc((size_t)s->slots, sizeof(struct mt_conn *));
    rc = s->conns ? mt_worker_init(&s->worker, s->slots, e) : -ENOMEM;
    if (!rc)
        mt_worker_warm(&s->worker);
    if (!rc)
        rc = serve(s, e);
    free_doors(s);
    mt_handoff_free(&s->handoff);
    mt_worker_free(&s->worker);
    signal(SIGHUP, hup);
    signal(SIGPIPE, pipe);
    signal(SIGXFSZ, xfsz);
    mt_wire_meter_free(&own);
    free(s->conns);
    free(s);
    return rc;
}
