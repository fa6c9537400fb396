/*
 * test_handoff.c: one server hands over to another, both in this process, over a tiny model; and
 * each of them alone with a peer of the test's own, that leaves, says nothing or talks rubbish after
 * any message. Whatever happens, a caller's answers are those of a call that nobody disturbed.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "util.h"
#include "wire/addr.h"
#include "wire/handoff.h"
#include "wire/wire.h"

enum { PIECE = 3200, PIECES = 12 };
#define STEP (400 * MT_NS_PER_MS)

static char dir[32], path[64], hand[64];

static int64_t now_ns(void)
{
    struct mt_clock c = mt_clock_real();

    return c.now_ns(&c);
}

static int64_t soon(void)
{
    return now_ns() + 20 * MT_NS_PER_S;
}

/* ---- a server in a thread ---- */

struct rig {
    struct mt_backend *be;
    struct mt_model *m;
    struct mt_wire_hub *hub;
    struct mt_engine *eng;
    struct mt_clock clock;
    struct mt_server_opts opts;
    pthread_t thread;
    sem_t changed;
    bool ready, given;
    int taken;
    int rc;
    struct mt_err e;
};

static int on_ready(void *ctx, const char *const *where, int n)
{
    struct rig *r = ctx;

    assert_int_equal(n, 1);
    assert_string_equal(where[0], path);
    r->ready = true;
    sem_post(&r->changed);
    return 0;
}

static void on_taken(void *ctx, int sessions)
{
    ((struct rig *)ctx)->taken = sessions;
}

static void on_given(void *ctx)
{
    ((struct rig *)ctx)->given = true;
}

static void *run(void *arg)
{
    struct rig *r = arg;

    r->rc = mt_serve_socket(r->eng, r->m, &r->opts, &r->e);
    sem_post(&r->changed);
    return NULL;
}

/* Until it is ready, or has ended. */
static void start(struct rig *r, const char *model, int threads)
{
    struct mt_model_opts mo = {.step_rows = 32, .want_rows = 8};
    struct mt_engine_opts o;

    *r = (struct rig){.clock = mt_clock_real(), .taken = -1};
    mt_engine_defaults(&o);
    assert_int_equal(mt_policy_parse("window=40,sinks=4", &o.policy, NULL), 0);
    o.pool_blocks = 64;
    o.answer_tokens = 3;
    o.step_tokens = 32;
    o.max_sessions = 8;
    o.frame_ns = 200 * MT_NS_PER_MS;
    o.deadline_ns = 100 * MT_NS_PER_S;
    assert_int_equal(mt_wire_hub_new(&r->hub), 0);
    o.events = mt_wire_hub_events(r->hub);
    assert_int_equal(mt_backend_open(&r->be, "cpu", threads, NULL), 0);
    assert_int_equal(mt_model_open(&r->m, model, r->be, &mo, NULL), 0);
    assert_int_equal(mt_engine_new(&r->eng, r->m, &o, &r->clock, NULL), 0);
    r->opts = (struct mt_server_opts){.where = {path},
                                      .ready = on_ready,
                                      .ctx = r,
                                      .handoff = hand,
                                      .handoff_step_ns = STEP,
                                      .taken = on_taken,
                                      .given = on_given};
    sem_init(&r->changed, 0, 0);
    assert_int_equal(pthread_create(&r->thread, NULL, run, r), 0);
    sem_wait(&r->changed);
}

/* It has ended, or ends now. */
static int finish(struct rig *r)
{
    int rc;

    pthread_join(r->thread, NULL);
    rc = r->rc;
    sem_destroy(&r->changed);
    mt_engine_free(&r->eng);
    mt_wire_hub_free(&r->hub);
    mt_model_close(&r->m);
    mt_backend_close(&r->be);
    return rc;
}

static void stop(struct rig *r)
{
    kill(getpid(), SIGTERM);
    assert_int_equal(finish(r), 0);
}

static const char *const tiny = "synth:qwen2.5-omni-tiny,layers=1";

static void serve(struct rig *r)
{
    start(r, tiny, 1);
    if (!r->ready)
        fail_msg("%s", r->e.text);
}

/* ---- a caller ---- */

struct caller {
    struct mt_wire_client *c;
    int pieces, frames;
    size_t n;
    char log[8192]; /* what was answered */
};

static void sound(char *to, int piece)
{
    int16_t pcm[PIECE];

    for (int i = 0; i < PIECE; i++)
        pcm[i] = (int16_t)(mt_mix64((uint64_t)(piece * PIECE + i)) % 8000);
    memcpy(to, pcm, sizeof(pcm));
}

static void raw(struct caller *c, const void *bytes, size_t n)
{
    const char *at = bytes;

    while (n > 0) {
        ssize_t k = send(mt_wire_fd(c->c), at, n, MSG_NOSIGNAL);

        assert_true(k > 0 || errno == EAGAIN);
        if (k < 0)
            assert_int_equal(mt_addr_wait(mt_wire_fd(c->c), POLLOUT, soon()), 0);
        at += k > 0 ? k : 0;
        n -= k > 0 ? (size_t)k : 0;
    }
}

static json_t *next(struct caller *c)
{
    struct mt_err e = {0};
    json_t *o;

    if (mt_wire_recv(c->c, &o, &e) != 1)
        fail_msg("after %d frames: %s", c->frames, e.code ? e.text : "the end");
    return o;
}

static void log_frame(struct caller *c, json_t *o)
{
    char *tokens = json_dumps(json_object_get(o, "tokens"), JSON_COMPACT);

    assert_int_equal(json_integer_value(json_object_get(o, "frame")), c->frames);
    c->n += (size_t)snprintf(c->log + c->n, sizeof(c->log) - c->n, "%d %s %s %s\n", c->frames++,
                             json_string_value(json_object_get(o, "status")), tokens,
                             json_string_value(json_object_get(o, "text")));
    free(tokens);
}

static void dial(struct caller *c)
{
    struct mt_err e = {0};
    static const char open[] =
        "{\"metronome\":1,\"type\":\"open\",\"rate\":48000,\"tokens\":true,\"seed\":3}\n";
    json_t *o;

    *c = (struct caller){0};
    if (mt_wire_connect(&c->c, path, 20 * MT_NS_PER_S, &e) < 0)
        fail_msg("%s", e.text);
    raw(c, open, strlen(open));
    o = next(c);
    assert_string_equal(json_string_value(json_object_get(o, "type")), "opened");
    json_decref(o);
}

/* A piece of sound in two halves, with something in between. */
static void talk(struct caller *c, size_t cut, void (*between)(void *), void *ctx)
{
    char msg[64 + 2 * PIECE * 3];
    int n = snprintf(msg, sizeof(msg), "{\"type\":\"audio\",\"bytes\":%d}\n", 2 * PIECE * 3);

    for (int i = 0; i < 3; i++) /* 48 kHz: 3 of these are a frame */
        sound(msg + n + i * 2 * PIECE, 3 * c->pieces + i);
    cut = cut < (size_t)n + 2 * PIECE * 3 ? cut : 0;
    raw(c, msg, cut);
    if (between)
        between(ctx);
    raw(c, msg + cut, (size_t)n + 2 * PIECE * 3 - cut);
    c->pieces++;
    while (c->frames < c->pieces - 1) {
        json_t *o = next(c);

        log_frame(c, o);
        json_decref(o);
    }
}

static void hang_up(struct caller *c)
{
    bool closed = false;

    raw(c, "{\"type\":\"end\"}\n", 15);
    while (!closed) {
        json_t *o = next(c);

        closed = !strcmp(json_string_value(json_object_get(o, "type")), "closed");
        if (!closed)
            log_frame(c, o);
        else
            assert_string_equal(json_string_value(json_object_get(o, "reason")), "end");
        json_decref(o);
    }
    mt_wire_disconnect(&c->c);
}

/* What the call is answered when nobody disturbs it, one of PIECES pieces. */
static struct caller undisturbed;

static void learn(void)
{
    struct rig r;

    if (undisturbed.n)
        return;
    serve(&r);
    dial(&undisturbed);
    for (int i = 0; i < PIECES; i++)
        talk(&undisturbed, 0, NULL, NULL);
    hang_up(&undisturbed);
    stop(&r);
}

static void as_undisturbed(struct caller *c)
{
    while (c->pieces < PIECES)
        talk(c, 0, NULL, NULL);
    hang_up(c);
    assert_string_equal(c->log, undisturbed.log);
}

/* ---- from one to the other ---- */

struct move {
    struct rig *from, *to;
};

static void move(void *ctx)
{
    struct move *m = ctx;

    start(m->to, tiny, 2);
    if (!m->to->ready)
        fail_msg("%s", m->to->e.text);
    assert_true(m->to->taken >= 1);
    assert_int_equal(finish(m->from), 0);
    assert_true(m->from->given);
}

/* In the middle of a line, of a sample, of a payload, and between two. */
static void test_moves(void **state)
{
    static const size_t cuts[] = {0, 1, 9, 28, 31, 5000, 5001, 19000};
    static struct rig r[2];
    static struct caller c, other;

    (void)state;
    learn();
    serve(&r[0]);
    dial(&c);
    dial(&other);
    for (size_t i = 0; i < MT_COUNT(cuts); i++) {
        struct move m = {&r[i % 2], &r[(i + 1) % 2]};

        talk(&c, cuts[i], move, &m);
        assert_int_equal(m.to->taken, 2);
        if (i % 3 == 0)
            talk(&other, 0, NULL, NULL);
    }
    as_undisturbed(&c);
    as_undisturbed(&other);
    dial(&c); /* its door is open to new ones */
    as_undisturbed(&c);
    stop(&r[MT_COUNT(cuts) % 2]);
}

/* Answers that nobody reads for a while are not lost, and none comes twice. */
static void test_unread(void **state)
{
    enum { ASKED = 2000 };
    static const char ask[] = "{\"metronome\":1,\"type\":\"stats\"}\n";
    static struct rig r[2];
    static struct caller c;
    struct move m = {&r[0], &r[1]};
    struct caller asker = {0};
    json_t *o;

    (void)state;
    learn();
    serve(&r[0]);
    dial(&c);
    assert_int_equal(mt_wire_connect(&asker.c, path, 20 * MT_NS_PER_S, NULL), 0);
    for (int i = 0; i < ASKED; i++)
        raw(&asker, ask, strlen(ask));
    talk(&c, 0, move, &m);
    for (int i = 0; i < ASKED; i++) {
        o = next(&asker);
        assert_string_equal(json_string_value(json_object_get(o, "type")), "stats");
        json_decref(o);
    }
    shutdown(mt_wire_fd(asker.c), SHUT_WR);
    assert_int_equal(mt_wire_recv(asker.c, &o, NULL), 0);
    mt_wire_disconnect(&asker.c);
    as_undisturbed(&c);
    stop(&r[1]);
}

/* ---- a giver, and a taker of ours ---- */

static int knock(void)
{
    struct mt_addr a;
    int fd;

    assert_int_equal(mt_addr_packets(&a, hand, NULL), 0);
    fd = mt_addr_dial(&a.at[0]);
    assert_true(fd >= 0);
    return fd;
}

static void tell(int fd, const char *text)
{
    assert_int_equal(send(fd, text, strlen(text), MSG_NOSIGNAL), (ssize_t)strlen(text));
}

static void hear(int fd, const char *type, struct mt_packet *p)
{
    struct mt_err e = {0};

    if (mt_packet_recv(fd, p, soon(), &e) < 0)
        fail_msg("instead of '%s': %s", type, e.text);
    assert_string_equal(p->type, type);
}

/*
 * Its pipe says that the giver lives, also where the socket can't: a taker that speaks in the moment
 * in which the giver gives up would else take it for dead, and both would serve.
 */
static void still_there(int baton)
{
    char byte = MT_HANDOFF_COMMIT;

    while (byte == MT_HANDOFF_COMMIT) {
        assert_int_equal(mt_addr_wait(baton, POLLIN, soon()), 0);
        assert_int_equal(read(baton, &byte, 1), 1);
    }
    assert_int_equal(byte, MT_HANDOFF_ABORT);
}

enum manner { LEAVES, SILENT, RUBBISH, REFUSES, MANNERS };

/* From here on the taker is of no use; the giver finds out. */
static void turn(int fd, enum manner how)
{
    struct mt_packet p;
    int rc = 0;

    if (how == RUBBISH)
        tell(fd, "{\"type\":");
    if (how == REFUSES)
        tell(fd, "{\"type\":\"refuse\",\"text\":\"not today\"}");
    while (how != LEAVES && rc == 0) {
        if ((rc = mt_packet_recv(fd, &p, soon(), NULL)) == 0)
            mt_packet_free(&p);
    }
    assert_true(how == LEAVES || rc == -ENODATA);
    close(fd);
}

/* As a taker does, up to so many messages of its own. */
static void half_take(int messages, enum manner how)
{
    int fd = knock();
    struct mt_packet offer, p;
    char byte = 0;

    if (messages-- == 0) {
        turn(fd, how);
        return;
    }
    tell(fd, "{\"type\":\"hello\",\"protocol\":1}");
    hear(fd, "offer", &offer);
    if (messages-- > 0) {
        tell(fd, "{\"type\":\"ready\"}");
        for (bool end = false; !end;) {
            assert_int_equal(mt_packet_recv(fd, &p, soon(), NULL), 0);
            end = !strcmp(p.type, "end");
            mt_packet_free(&p);
            if (messages-- == 0)
                break;
            tell(fd, "{\"type\":\"taken\"}");
        }
    }
    if (messages > 0) { /* it has the byte, and does not come to say so */
        assert_int_equal(mt_addr_wait(offer.fds[0], POLLIN, soon()), 0);
        assert_int_equal(read(offer.fds[0], &byte, 1), 1);
        assert_int_equal(byte, MT_HANDOFF_COMMIT);
    }
    turn(fd, how);
    still_there(offer.fds[0]);
    mt_packet_free(&offer);
}

/* Whatever a taker does before it has said mine, and after whichever message, the giver goes on. */
static void test_taker_fails(void **state)
{
    static struct rig r;
    static struct caller c;

    (void)state;
    learn();
    serve(&r);
    for (int how = LEAVES; how < MANNERS; how++) {
        /* With the byte it has to leave: one who only keeps it may be serving. */
        int most = how == LEAVES || how == REFUSES ? 6 : 5;

        dial(&c);
        for (int messages = 0; messages < most; messages++) {
            talk(&c, 0, NULL, NULL);
            half_take(messages, (enum manner)how);
        }
        as_undisturbed(&c);
    }
    stop(&r);
}

/* Two at a time, one that speaks another version, and one of another model. */
static void test_giver_refuses(void **state)
{
    static struct rig r, other;
    static struct caller c;
    struct mt_packet p;
    int fd, second;

    (void)state;
    learn();
    serve(&r);
    dial(&c);
    fd = knock();
    tell(fd, "{\"type\":\"hello\",\"protocol\":1}");
    hear(fd, "offer", &p);
    mt_packet_free(&p);
    second = knock();
    hear(second, "refuse", &p);
    assert_non_null(strstr(json_string_value(json_object_get(p.msg, "text")), "another one"));
    mt_packet_free(&p);
    close(second);
    close(fd);
    talk(&c, 0, NULL, NULL);
    fd = knock();
    tell(fd, "{\"type\":\"hello\",\"protocol\":2}");
    hear(fd, "refuse", &p);
    assert_non_null(strstr(json_string_value(json_object_get(p.msg, "text")), "version"));
    mt_packet_free(&p);
    close(fd);
    talk(&c, 0, NULL, NULL);
    start(&other, "synth:qwen2.5-omni-tiny,layers=1,seed=2", 1);
    assert_false(other.ready);
    assert_non_null(strstr(other.e.text, "model is"));
    assert_true(finish(&other) < 0);
    as_undisturbed(&c);
    stop(&r);
}

/* What was said before a socket was closed comes, also where something was unread in it. */
static void test_last_word(void **state)
{
    struct mt_packet p;
    int fd[2];

    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fd), 0);
    tell(fd[1], "{\"type\":\"hello\"}");
    tell(fd[0], "{\"type\":\"refuse\"}");
    close(fd[0]);
    hear(fd[1], "refuse", &p);
    mt_packet_free(&p);
    assert_int_equal(mt_packet_recv(fd[1], &p, soon(), NULL), -ENODATA);
    close(fd[1]);
}

/* All that a server has: it gave it away, and has ended. */
struct loot {
    struct mt_packet offer, connection, end;
};

static void rob(struct loot *l, struct rig *r)
{
    int fd = knock();
    char byte = 0;

    tell(fd, "{\"type\":\"hello\",\"protocol\":1}");
    hear(fd, "offer", &l->offer);
    tell(fd, "{\"type\":\"ready\"}");
    hear(fd, "connection", &l->connection);
    tell(fd, "{\"type\":\"taken\"}");
    hear(fd, "end", &l->end);
    tell(fd, "{\"type\":\"taken\"}");
    assert_int_equal(mt_addr_wait(l->offer.fds[0], POLLIN, soon()), 0);
    assert_int_equal(read(l->offer.fds[0], &byte, 1), 1);
    assert_int_equal(byte, MT_HANDOFF_COMMIT);
    tell(fd, "{\"type\":\"mine\"}");
    close(fd);
    assert_int_equal(finish(r), 0);
    assert_true(r->given);
}

/* What a giver of ours does: `act` from when somebody has connected. */
struct giver {
    struct loot *loot;
    int listener, fd, pipe[2];
    void (*act)(struct giver *g);
    const char *key; /* a fact that is another one */
    json_t *value;
    int unsealed;
};

static void pass(struct giver *g, struct mt_packet *p, int n)
{
    assert_int_equal(mt_packet_send(g->fd, json_incref(p->msg), p->fds, n, soon(), NULL), 0);
}

static void *give(void *arg)
{
    struct giver *g = arg;
    struct mt_packet p;

    assert_int_equal(mt_addr_wait(g->listener, POLLIN, soon()), 0);
    g->fd = accept(g->listener, NULL, NULL);
    assert_true(g->fd >= 0);
    hear(g->fd, "hello", &p);
    mt_packet_free(&p);
    g->act(g);
    if (g->fd >= 0)
        close(g->fd);
    close(g->pipe[0]);
    if (g->pipe[1] >= 0)
        close(g->pipe[1]);
    return NULL;
}

/* A server meets it: what became of the server stays in r. */
static void meet(struct rig *r, struct giver *g)
{
    pthread_t thread;
    struct mt_addr a;

    assert_int_equal(mt_addr_packets(&a, hand, NULL), 0);
    unlink(hand);
    g->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(g->listener, (struct sockaddr *)&a.at[0].sa, a.at[0].len), 0);
    assert_int_equal(listen(g->listener, 4), 0);
    assert_int_equal(pipe2(g->pipe, O_CLOEXEC | O_NONBLOCK), 0);
    assert_int_equal(pthread_create(&thread, NULL, give, g), 0);
    start(r, tiny, 1);
    pthread_join(thread, NULL);
    if (g->listener >= 0)
        close(g->listener);
}

static void act_leave(struct giver *g)
{
    (void)g;
}

/* The socket of the calls goes later than the one that a successor has seen go. */
static void act_die_slowly(struct giver *g)
{
    struct mt_clock clock = mt_clock_real();
    struct mt_listener l;

    unlink(path);
    assert_int_equal(mt_listen(&l, path, NULL), 0);
    close(g->listener);
    close(g->fd);
    clock.sleep_until_ns(&clock, now_ns() + STEP / 4);
    close(l.fd);
    g->listener = g->fd = -1;
}

static void act_wait(struct giver *g)
{
    struct mt_packet p;

    while (mt_packet_recv(g->fd, &p, soon(), NULL) == 0)
        mt_packet_free(&p);
}

static void act_rubbish(struct giver *g)
{
    tell(g->fd, "[]");
    act_wait(g);
}

static void act_refuse(struct giver *g)
{
    tell(g->fd, "{\"type\":\"refuse\",\"text\":\"busy\"}");
    act_wait(g);
}

/* The loot's offer with a pipe of our own. */
static void offer(struct giver *g, int n)
{
    struct mt_packet p = g->loot->offer;

    p.fds[0] = g->pipe[0];
    p.fds[p.n_fds - 1] = g->listener;
    p.msg = json_deep_copy(p.msg);
    if (g->key)
        json_object_set(json_object_get(p.msg, "facts"), g->key, g->value);
    pass(g, &p, n);
    json_decref(p.msg);
}

static void act_offer(struct giver *g)
{
    offer(g, g->loot->offer.n_fds);
    act_wait(g);
}

static void act_offer_short(struct giver *g)
{
    offer(g, g->loot->offer.n_fds - 1);
    act_wait(g);
}

static void act_offer_no_listener(struct giver *g)
{
    struct mt_packet p = g->loot->offer;

    p.fds[0] = g->pipe[0];
    p.fds[1] = g->loot->connection.fds[1];
    pass(g, &p, p.n_fds);
    act_wait(g);
}

static void begin(struct giver *g)
{
    struct mt_packet p;

    offer(g, g->loot->offer.n_fds);
    hear(g->fd, "ready", &p);
    mt_packet_free(&p);
}

static void act_bare(struct giver *g)
{
    begin(g);
    tell(g->fd, "{\"type\":\"connection\"}");
    act_wait(g);
}

static void act_odd_word(struct giver *g)
{
    begin(g);
    tell(g->fd, "{\"type\":\"tea\"}");
    act_wait(g);
}

/* The connection's memory is something else: another's, not sealed, cut. */
static void act_other_memory(struct giver *g)
{
    struct mt_packet p = g->loot->connection;

    begin(g);
    p.fds[0] = g->unsealed >= 0 ? g->unsealed : g->loot->end.fds[0];
    pass(g, &p, 2);
    act_wait(g);
}

static void act_no_socket(struct giver *g)
{
    struct mt_packet p = g->loot->connection;

    begin(g);
    p.fds[1] = g->loot->offer.fds[1]; /* a door */
    pass(g, &p, 2);
    act_wait(g);
}

static void give_connection(struct giver *g)
{
    struct mt_packet p;

    begin(g);
    pass(g, &g->loot->connection, 2);
    hear(g->fd, "taken", &p);
    mt_packet_free(&p);
}

static void give_all(struct giver *g)
{
    struct mt_packet p;

    give_connection(g);
    pass(g, &g->loot->end, 1);
    hear(g->fd, "taken", &p);
    mt_packet_free(&p);
}

static void act_twice(struct giver *g)
{
    give_connection(g);
    pass(g, &g->loot->connection, 2);
    act_wait(g);
}

static void act_gives_up(struct giver *g)
{
    give_all(g);
    tell(g->fd, "{\"type\":\"refuse\",\"text\":\"changed my mind\"}");
    assert_int_equal(write(g->pipe[1], "a", 1), 1);
    act_wait(g);
}

/* It hears nothing any more, and its reason stands behind what the taker has not read. */
static void act_gives_up_early(struct giver *g)
{
    begin(g);
    assert_int_equal(shutdown(g->fd, SHUT_RD), 0);
    pass(g, &g->loot->connection, 2);
    pass(g, &g->loot->end, 1);
    tell(g->fd, "{\"type\":\"refuse\",\"text\":\"changed my mind\"}");
    assert_int_equal(write(g->pipe[1], "a", 1), 1);
}

static void act_no_verdict(struct giver *g)
{
    give_all(g);
    act_wait(g);
}

static void act_dies(struct giver *g)
{
    give_connection(g);
}

static void act_commits(struct giver *g)
{
    struct mt_packet p;

    give_all(g);
    assert_int_equal(write(g->pipe[1], "c", 1), 1);
    close(g->pipe[1]); /* it dies, too */
    g->pipe[1] = -1;
    hear(g->fd, "mine", &p);
    mt_packet_free(&p);
}

/* A taker that is told nonsense ends with one line, and has touched nothing. */
static void test_giver_fails(void **state)
{
    static struct rig r;
    static struct caller c;
    static struct loot l;
    struct giver g = {.loot = &l, .unsealed = -1};
    const struct {
        void (*act)(struct giver *);
        const char *says;
    } bad[] = {
        {act_leave, "another server listens"}, /* so it tries to begin by itself */
        {act_wait, "does not answer"},
        {act_rubbish, "\"type\""},
        {act_refuse, "busy"},
        {act_offer_short, "descriptors"},
        {act_offer_no_listener, "not a socket that listens"},
        {act_offer, "does not answer"},
        {act_bare, "without its socket"},
        {act_odd_word, "tea"},
        {act_other_memory, "not in"},
        {act_no_socket, "without its socket"},
        {act_twice, "stands behind"},
        {act_gives_up, "changed my mind"},
        {act_gives_up_early, "changed my mind"},
        {act_no_verdict, "does not hand over"},
    };
    static const struct {
        const char *key;
        int value;
    } facts[] = {{"protocol", 2},  {"format", 1},  {"model", 0},
                 {"--kv-type", 0}, {"window", 41}, {"answer_tokens", 4},
                 {"sessions", 9},  {"--mode", 0},  {"sinks", 5}};

    (void)state;
    learn();
    serve(&r);
    dial(&c);
    talk(&c, 0, NULL, NULL);
    rob(&l, &r);
    for (size_t i = 0; i < MT_COUNT(bad) + MT_COUNT(facts) + 1; i++) {
        const char *says = "there";

        g.act = act_offer;
        if (i < MT_COUNT(bad)) {
            g.act = bad[i].act;
            says = bad[i].says;
        } else if (i < MT_COUNT(bad) + MT_COUNT(facts)) {
            g.key = facts[i - MT_COUNT(bad)].key;
            g.value = json_integer(facts[i - MT_COUNT(bad)].value);
        } else { /* memory that can still be cut */
            g.unsealed = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
            assert_int_equal(ftruncate(g.unsealed, 4096), 0);
            g.act = act_other_memory;
            says = "not the memory";
        }
        meet(&r, &g);
        assert_false(r.ready);
        if (!strstr(r.e.text, says) || strchr(r.e.text, '\n') ||
            strncmp(r.e.text, "--handoff: ", i ? 11 : 0) != 0)
            fail_msg("%zu: '%s', expected '%s'", i, r.e.text, says);
        assert_true(finish(&r) < 0);
        assert_int_equal(access(path, F_OK), 0); /* a file that is not its own */
        json_decref(g.value);
        g.key = NULL;
        g.value = NULL;
    }
    close(g.unsealed);
    /* And now one that dies, when the connection has come; the next commits with its last breath. */
    g.act = act_dies;
    meet(&r, &g);
    if (!r.ready)
        fail_msg("%s", r.e.text);
    assert_int_equal(r.taken, 1);
    for (int i = 0; i < 3; i++)
        talk(&c, 0, NULL, NULL);
    mt_packet_free(&l.offer);
    mt_packet_free(&l.connection);
    mt_packet_free(&l.end);
    rob(&l, &r);
    g.act = act_commits;
    meet(&r, &g);
    if (!r.ready)
        fail_msg("%s", r.e.text);
    mt_packet_free(&l.offer);
    mt_packet_free(&l.connection);
    mt_packet_free(&l.end);
    as_undisturbed(&c);
    stop(&r);
    /* Nobody's calls, but the place of one who is just ending. */
    g.act = act_die_slowly;
    meet(&r, &g);
    if (!r.ready)
        fail_msg("%s", r.e.text);
    assert_int_equal(r.taken, -1);
    dial(&c);
    as_undisturbed(&c);
    stop(&r);
}

static int set_up(void **state)
{
    (void)state;
    snprintf(path, sizeof(path), "%s/s", dir);
    snprintf(hand, sizeof(hand), "%s/h", dir);
    return 0;
}

static int make_dir(void **state)
{
    return util_dir_make(dir) < 0 ? -1 : set_up(state);
}

static int remove_dir(void **state)
{
    (void)state;
    return util_dir_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_moves),       cmocka_unit_test(test_unread),
        cmocka_unit_test(test_taker_fails), cmocka_unit_test(test_giver_refuses),
        cmocka_unit_test(test_giver_fails), cmocka_unit_test(test_last_word),
    };

    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
