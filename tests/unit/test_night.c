/*
 * test_night.c: an hour of everything that goes wrong, in random order and in virtual time: the
 * server dies without a word, is stopped, is slow, its engine stands still, its pool and its disk
 * are full, callers hang, never read, come too many at once and vanish; calls are saved and gone on
 * with meanwhile, in another life, by other threads, in another pool and window, and all are handed
 * over to another server. All along:
 *
 * - each frame whose sound was taken has one record, and no other frame has any;
 * - the metrics are the sums of the records, and the histogram has all answered ones;
 * - a call that was said to be saved is there, whatever happened since, goes on at its frame, and
 *   each of its answers is, bit for bit, that of a server where nothing else happens;
 * - when everybody has left nothing is held.
 *
 * MT_NIGHT_SECONDS: virtual ones (3600), MT_NIGHT_SEED: of what happens (1).
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "night.h"
#include "util.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SECONDS = 600 }; /* each takes several times as long */
#else
enum { SECONDS = 3600 };
#endif

enum {
    NAMES = 10,         /* of saved calls: they are written over */
    FORETOLD = 40,      /* frames, at most */
    FRAMES_MAX = 1024,  /* of a call */
    SESSIONS_MAX = 8192 /* of a life */
};

static const char *const words[] = {"ok", "late", "stalled", "dropped", "refused", "error"};

/* What a call's answers will be from some frame on, if nothing disturbs it. */
struct story {
    struct story *next;
    int64_t first;
    int n;
    uint64_t said[FORETOLD];
};

struct wish { /* how a call is opened */
    uint64_t seed;
    int rate_hz;
    bool live;
    int64_t window;
    int answer_tokens;
    int64_t total; /* samples of its sound */
};

/* A client, and its connection. */
struct call {
    uint64_t conn; /* 0: nobody */
    struct wish wish;
    int64_t session; /* 0: no answer yet */
    bool paced, ended, deaf;
    int64_t from, sent;      /* of the sound, in samples: where it began here, and is now */
    int64_t ahead;           /* that the server must have beyond a frame */
    int64_t due_ns;          /* when `from` was due */
    int64_t mute_ns;         /* from then on it is silent */
    size_t unaccepted, hold; /* bytes, as conn.c has them */
    size_t unread;           /* … that a deaf client has not read */
    struct story *story;
    bool clean;     /* nothing has disturbed it */
    int loaded;     /* the saved call that it is, -1: none */
    bool may_error; /* it asked for a window that it can't have */
};

/* Which frames of a session have a record. */
struct book {
    int64_t first, n; /* n: frames from 0 on, told of */
    unsigned char *told;
    bool over;
};

struct saved {
    bool there;
    struct wish wish;
    int64_t frame, samples;
    struct story *story;
};

/* A call on its way to the disk. */
struct store {
    struct mt_mail *m;
    int64_t due_ns;
    int name;
    struct saved what;
};

struct night {
    bool cost, bounded;
    struct mt_clock clock, quiet_clock;
    struct plant plant[2], quiet_plant;
    struct server life[2], *s, quiet; /* s: the one of life that lives */
    int64_t window;                   /* of this life */
    uint64_t random, last_conn;
    char dir[32], names[NAMES][8];
    bool small_disk;

    struct call call[NIGHT_SLOTS];
    struct book book[SESSIONS_MAX];
    int64_t sessions; /* of this life, so far */
    struct store store;
    struct saved saved[NAMES];
    struct story *stories;
    /* of this life */
    int64_t told[6], refused[MT_REFUSALS];
    double latency_s;
    /* in all */
    int64_t lives, calls, records, books, saves, full, killed, loads, compared, moves;
};

/* ---- chance ---- */

static int64_t dice(struct night *n, int64_t sides)
{
    return (int64_t)(mt_unit(mt_mix64(++n->random)) * (double)sides);
}

static int64_t between(struct night *n, int64_t lo, int64_t hi)
{
    return lo + dice(n, hi - lo + 1);
}

static bool one_in(struct night *n, int64_t sides)
{
    return dice(n, sides) == 0;
}

/* ---- sound ---- */

static int model_rate(const struct night *n)
{
    return mt_model_info(n->quiet.m)->sample_rate_hz;
}

static int64_t frame_samples(const struct wish *w)
{
    return (int64_t)w->rate_hz * NIGHT_FRAME_MS / 1000;
}

static void sound(const struct night *n, uint64_t seed, int64_t from, int64_t count,
                  unsigned char *out)
{
    uint64_t word = 0;

    if (n->cost) {
        memset(out, 0, (size_t)count * 2); /* nobody hears it */
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        uint64_t at = (uint64_t)(from + i);

        if (i == 0 || at % 4 == 0)
            word = mt_mix64(seed * 1000003 + at / 4);
        out[2 * i] = (unsigned char)(word >> 16 * (at % 4));
        out[2 * i + 1] = (unsigned char)((word >> (16 * (at % 4) + 8) & 15) - 8);
    }
}

static void send_sound(struct night *n, struct server *s, int slot, struct call *c, int64_t count)
{
    struct mt_mail *m = server_send(s, MT_MAIL_AUDIO, slot, c->conn, (size_t)count * 2);

    sound(n, c->wish.seed, c->sent, count, m->data);
    c->sent += count;
    c->unaccepted += m->charge;
}

static void send_open(struct server *s, int slot, uint64_t conn, const struct wish *w)
{
    struct mt_wire_open *o = calloc(1, sizeof(*o));

    assert_non_null(o);
    o->rate_hz = w->rate_hz;
    o->tokens = true;
    mt_session_defaults(&o->session);
    o->session.temperature = 0.8F;
    o->session.has_seed = true;
    o->session.seed = w->seed;
    o->session.live = w->live;
    o->session.window = w->window;
    o->session.answer_tokens = w->answer_tokens;
    server_send(s, MT_MAIL_OPEN, slot, conn, 0)->open = o;
}

/* ---- lines ---- */

static json_t *line_of(const struct mt_mail *m)
{
    json_t *o = json_loadb((const char *)m->data, m->n, JSON_DISABLE_EOF_CHECK, NULL);

    assert_non_null(o);
    return o;
}

static const char *text_of(json_t *o, const char *key)
{
    const char *s = json_string_value(json_object_get(o, key));

    return s ? s : "";
}

static int64_t number_of(json_t *o, const char *key)
{
    return json_integer_value(json_object_get(o, key));
}

static int64_t session_of(json_t *o)
{
    return strtoll(text_of(o, "session"), NULL, 10);
}

static uint64_t digest(json_t *o)
{
    json_t *tokens = json_object_get(o, "tokens");
    int64_t facts[] = {number_of(o, "tokens_in"), number_of(o, "kv_tokens"),
                       (int64_t)json_array_size(tokens)};
    uint64_t h = mt_hash(MT_HASH_INIT, facts, sizeof(facts));

    for (size_t i = 0; i < json_array_size(tokens); i++) {
        int64_t id = json_integer_value(json_array_get(tokens, i));
        h = mt_hash(h, &id, sizeof(id));
    }
    return mt_hash(h, text_of(o, "text"), strlen(text_of(o, "text")));
}

/* ---- the quiet server, where a call is what it should be ---- */

/* What the quiet server says until it has nothing more to do. True if the call has ended. */
static bool quiet_rounds(struct night *n, struct story *st)
{
    struct server *q = &n->quiet;
    bool closed = false;

    do {
        mt_worker_round(&q->w, 0);
        n->quiet_clock.virtual_ns += MT_NS_PER_MS;
        for (struct mt_mail *m = mt_box_take(&q->w.out, 0), *next; m; m = next) {
            json_t *o = m->kind == MT_MAIL_LINE && m->conn ? line_of(m) : NULL;

            next = m->next;
            if (o && !strcmp(text_of(o, "type"), "frame")) {
                assert_string_equal(text_of(o, "status"), "ok");
                assert_int_equal(number_of(o, "frame"), st->first + st->n);
                if (st->n < FORETOLD)
                    st->said[st->n++] = digest(o);
            } else if (o && !strcmp(text_of(o, "type"), "opened")) {
                st->first = number_of(o, "frame");
            } else if (o && !strcmp(text_of(o, "type"), "closed")) {
                closed = true;
            } else if (o) {
                fail_msg("the quiet server says %.*s", (int)m->n, (char *)m->data);
            }
            json_decref(o);
            mt_mail_free(m);
        }
    } while (q->w.worked || q->w.busy);
    return closed;
}

/* The call of slot 0 to its end, or as far as it is foretold. */
static struct story *foretell(struct night *n, struct call *c)
{
    struct story *st = calloc(1, sizeof(*st));
    bool closed = false;

    assert_non_null(st);
    st->next = n->stories;
    n->stories = st;
    closed = quiet_rounds(n, st);
    while (!closed && !c->ended && st->n < FORETOLD) {
        int64_t left = c->wish.total - c->sent, most = frame_samples(&c->wish) / 2;

        if (left > 0)
            send_sound(n, &n->quiet, 0, c, left < most ? left : most);
        else
            server_send(&n->quiet, MT_MAIL_END, 0, c->conn, 0);
        c->ended = left <= 0;
        closed = quiet_rounds(n, st);
    }
    if (!closed) {
        server_hang_up(&n->quiet, 0, c->conn);
        quiet_rounds(n, &(struct story){.n = FORETOLD});
    }
    return st;
}

static struct story *foretell_open(struct night *n, const struct wish *w)
{
    struct call c = {.conn = ++n->last_conn, .wish = *w};

    send_open(&n->quiet, 0, c.conn, w);
    return foretell(n, &c);
}

static struct story *foretell_load(struct night *n, const struct saved *s,
                                   const unsigned char *data, size_t size, int64_t window)
{
    struct call c = {.conn = ++n->last_conn, .wish = s->wish, .sent = s->samples};
    unsigned char *copy = malloc(size);
    struct mt_err e = {0};

    assert_non_null(copy);
    memcpy(copy, data, size);
    if (server_load(&n->quiet, 0, c.conn, "quiet", copy, size, window, &e) < 0)
        fail_msg("%s", e.text);
    return foretell(n, &c);
}

/* ---- the books ---- */

static struct book *book_of(struct night *n, int64_t session)
{
    assert_in_range(session, 1, n->sessions);
    return &n->book[session - 1];
}

static void book_open(struct night *n, int64_t session, int64_t first)
{
    struct book *b = &n->book[n->sessions];

    assert_in_range(n->sessions, 0, SESSIONS_MAX - 1);
    assert_int_equal(session, ++n->sessions);
    *b = (struct book){.first = first, .n = first, .told = calloc(1, FRAMES_MAX)};
    assert_non_null(b->told);
}

/* Its last record has come: there is one of each frame from the first on, n in all. */
static void book_close(struct night *n, int64_t session, int64_t frames)
{
    struct book *b = book_of(n, session);

    assert_false(b->over);
    assert_int_equal(b->n, frames);
    for (int64_t i = b->first; i < b->n; i++)
        if (b->told[i] != 1)
            fail_msg("session %" PRId64 ": frame %" PRId64 " has %d records", session, i,
                     b->told[i]);
    b->over = true;
    free(b->told);
    b->told = NULL;
}

static int64_t open_books(const struct night *n)
{
    int64_t open = 0;

    for (int64_t i = 0; i < n->sessions; i++)
        open += !n->book[i].over;
    return open;
}

/* The metrics, as they are exposed, are what the records say. */
static void compare(struct night *n)
{
    static const struct mt_metrics_outlook unknown = {.refused_per_s = NAN};
    struct mt_wire_state st;
    char sample[80], *text;
    size_t size;

    mt_wire_meter_read(n->s->w.meter, n->clock.virtual_ns, &st);
    text = mt_metrics_write(&n->s->facts, &st, &unknown, MT_METRICS_TEXT, &size);
    assert_non_null(text);
    for (int i = 0; i < 6; i++) {
        if (i == MT_REFUSED)
            continue;
        snprintf(sample, sizeof(sample), "metronome_frames_total{status=\"%s\"}", words[i]);
        assert_int_equal((int64_t)metric(text, sample), n->told[i]);
    }
    for (int i = 0; i < MT_REFUSALS; i++) {
        snprintf(sample, sizeof(sample), "metronome_refused_total{reason=\"%s\"}",
                 mt_refusal_word((enum mt_refusal)i));
        assert_int_equal((int64_t)metric(text, sample), n->refused[i]);
    }
    assert_int_equal((int64_t)metric(text, "metronome_frame_latency_seconds_count"),
                     n->told[MT_OK] + n->told[MT_LATE]);
    assert_true(fabs(metric(text, "metronome_frame_latency_seconds_sum") - n->latency_s) <
                1e-6 * (1 + n->latency_s));
    assert_int_equal((int64_t)metric(text, "metronome_sessions_active"), open_books(n));
    if (open_books(n) == 0)
        assert_int_equal((int64_t)metric(text, "metronome_kv_blocks_used"), 0);
    free(text);
    n->books++;
}

/* ---- what a client hears ---- */

static void forget(struct call *c)
{
    *c = (struct call){0};
}

/*
 * Frames whose sound the engine has, at least: less than a piece lies in the intake, and what must
 * be beyond them.
 */
static int64_t complete(const struct call *c)
{
    int64_t samples = c->sent - (int64_t)c->unaccepted / 2 - MT_INTAKE_SAMPLES - c->ahead;

    return samples > 0 ? samples / frame_samples(&c->wish) : 0;
}

static int64_t whole(const struct call *c, int64_t samples)
{
    return (samples + frame_samples(&c->wish) - 1) / frame_samples(&c->wish);
}

static void hear_frame(struct night *n, struct call *c, json_t *o)
{
    const char *status = text_of(o, "status");
    int64_t i = c->story ? number_of(o, "frame") - c->story->first : -1;

    if ((strcmp(status, "ok") != 0 && strcmp(status, "late") != 0) ||
        json_object_get(o, "shortened"))
        c->clean = false;
    if (!c->clean || i < 0 || i >= c->story->n)
        return;
    if (digest(o) != c->story->said[i])
        fail_msg("frame %" PRId64 " of a call of seed %" PRIu64 ", %s, window %" PRId64
                 " of %" PRId64 ", is not what it was to be",
                 number_of(o, "frame"), c->wish.seed, c->loaded < 0 ? "new" : "loaded",
                 c->wish.window, n->window);
    n->compared++;
}

static void hear_opened(struct night *n, struct call *c, json_t *o)
{
    const struct saved *s = c->loaded < 0 ? NULL : &n->saved[c->loaded];

    c->session = session_of(o);
    book_open(n, c->session, number_of(o, "frame"));
    c->ahead = number_of(o, "lookahead_samples");
    c->due_ns = n->clock.virtual_ns;
    c->clean = true;
    if (!s)
        return;
    assert_false(c->may_error);
    c->from = c->sent = number_of(o, "samples");
    n->loads++;
}

static void hear_closed(struct night *n, struct call *c, json_t *o)
{
    const char *reason = text_of(o, "reason");
    int64_t frames = number_of(o, "frames");

    if (!strcmp(reason, "end")) {
        assert_true(c->ended || c->sent == c->wish.total); /* saved behind its end */
        assert_int_equal(frames, whole(c, c->wish.total));
    } else if (strcmp(reason, "idle") != 0 && strcmp(reason, "stalled") != 0 &&
               strcmp(reason, "shutdown") != 0) {
        fail_msg("closed: %s", reason);
    }
    assert_in_range(frames, complete(c), whole(c, c->sent));
    book_close(n, c->session, frames);
    forget(c);
}

static void hear_refused(struct night *n, struct call *c, const char *reason)
{
    int i = 0;

    while (i < MT_REFUSALS && strcmp(reason, mt_refusal_word((enum mt_refusal)i)) != 0)
        i++;
    assert_int_not_equal(i, MT_REFUSALS);
    n->refused[i]++;
    forget(c);
}

static void hear(struct night *n, struct call *c, json_t *o)
{
    const char *type = text_of(o, "type");

    if (!strcmp(type, "frame")) {
        hear_frame(n, c, o);
    } else if (!strcmp(type, "opened")) {
        hear_opened(n, c, o);
    } else if (!strcmp(type, "closed")) {
        hear_closed(n, c, o);
    } else if (!strcmp(type, "refused")) {
        hear_refused(n, c, text_of(o, "reason"));
    } else if (!strcmp(type, "error") && c->may_error && strstr(text_of(o, "error"), "window of")) {
        forget(c);
    } else {
        fail_msg("%s: %s", type, text_of(o, "error"));
    }
}

/* What the watchers hear: every record, once. */
static void watch(struct night *n, json_t *o)
{
    struct book *b = book_of(n, session_of(o));
    int64_t frame = number_of(o, "frame");
    int i = mt_status_parse(text_of(o, "status"));

    assert_false(b->over);
    assert_in_range(frame, b->first, FRAMES_MAX - 1);
    b->told[frame]++;
    b->n = frame + 1 > b->n ? frame + 1 : b->n;
    n->told[i]++;
    n->records++;
    if (i == MT_OK || i == MT_LATE)
        n->latency_s += json_number_value(json_object_get(o, "latency_ms")) / 1e3;
}

static void begin_store(struct night *n, struct mt_mail *m);

static void listen_to(struct night *n)
{
    for (struct mt_mail *m = mt_box_take(&n->s->w.out, 0), *next; m; m = next) {
        struct call *c = m->slot < NIGHT_SLOTS ? &n->call[m->slot] : NULL;
        json_t *o;

        next = m->next;
        if (m->kind == MT_MAIL_STORE) {
            begin_store(n, m);
            continue;
        }
        if (c && c->conn == m->conn && m->conn) {
            c->unaccepted -= m->charge;
            c->unread += c->deaf ? m->n : 0;
        } else {
            c = NULL;
        }
        if (m->kind == MT_MAIL_LINE && (c || m->watch)) {
            o = line_of(m);
            if (m->watch)
                watch(n, o);
            if (c)
                hear(n, c, o);
            json_decref(o);
        }
        mt_mail_free(m);
    }
}

static void one_round(struct night *n)
{
    mt_worker_round(&n->s->w, 0);
    if (!n->cost && n->s->w.worked)
        n->clock.virtual_ns += between(n, 1, 12) * MT_NS_PER_MS;
    listen_to(n);
}

/* ---- what a client does ---- */

static struct call *free_slot(struct night *n)
{
    for (int i = 0; i < NIGHT_SLOTS; i++)
        if (!n->call[i].conn)
            return &n->call[i];
    return NULL;
}

static int slot_of(const struct night *n, const struct call *c)
{
    return (int)(c - n->call);
}

/* conn.c's bounds. */
static size_t hold_of(const struct wish *w)
{
    return w->live ? 1 << 20 : 64 << 10;
}

static struct call *dial(struct night *n, struct wish w)
{
    struct call *c = free_slot(n);

    if (!c)
        return NULL;
    *c = (struct call){.conn = ++n->last_conn,
                       .wish = w,
                       .paced = w.live || !one_in(n, 4),
                       .deaf = one_in(n, 12),
                       .mute_ns = INT64_MAX,
                       .hold = hold_of(&w),
                       .loaded = -1};
    if (one_in(n, 6))
        c->mute_ns = n->clock.virtual_ns + between(n, 1, 9000) * MT_NS_PER_MS;
    n->calls++;
    return c;
}

static void new_call(struct night *n)
{
    int hz = model_rate(n) << one_in(n, 5); /* some are converted */
    struct wish w = {.seed = 1 + (uint64_t)dice(n, 1 << 20),
                     .rate_hz = hz,
                     .live = one_in(n, 2),
                     .window = n->bounded && one_in(n, 4) ? 20 : 0,
                     .answer_tokens = one_in(n, 3) ? 2 : 0,
                     .total = between(n, 1, INT64_C(30) * hz)};
    struct call *c = dial(n, w);

    if (!c)
        return;
    c->wish.window = w.window ? w.window : n->window;
    c->story = foretell_open(n, &c->wish);
    send_open(n->s, slot_of(n, c), c->conn, &w);
}

/* The client is gone; what it had in work has its records when the engine has heard of it. */
static void vanish(struct night *n, struct call *c)
{
    int64_t session = c->session, least = complete(c), most = whole(c, c->sent);
    bool was_open = session > 0;

    server_hang_up(n->s, slot_of(n, c), c->conn);
    forget(c);
    one_round(n);
    if (!was_open || book_of(n, session)->over)
        return;
    assert_in_range(book_of(n, session)->n, least, most);
    book_close(n, session, book_of(n, session)->n);
}

/* When the next of its sound is there to be sent. */
static int64_t due_at(const struct call *c)
{
    return c->conn ? c->due_ns + (c->sent - c->from) * MT_NS_PER_S / c->wish.rate_hz : 0;
}

/* Everybody says what is due. */
static void speak(struct night *n)
{
    for (int i = 0; i < NIGHT_SLOTS; i++) {
        struct call *c = &n->call[i];
        int64_t now = n->clock.virtual_ns, count = c->wish.rate_hz / 10;

        if (!c->conn || !c->session)
            continue;
        if (c->unread > 64 << 10) {
            vanish(n, c); /* a slow reader */
            continue;
        }
        while (!c->ended && now < c->mute_ns && c->unaccepted < c->hold) {
            int64_t left = c->wish.total - c->sent;
            int64_t due = due_at(c);

            if (c->paced && due > now)
                break;
            if (left <= 0) {
                server_send(n->s, MT_MAIL_END, i, c->conn, 0);
                c->ended = true;
            } else {
                send_sound(n, n->s, i, c, left < count ? left : count);
            }
        }
    }
}

static int64_t next_due(const struct night *n)
{
    int64_t next = n->clock.virtual_ns + mt_worker_patience(&n->s->w);

    for (int i = 0; i < NIGHT_SLOTS; i++) {
        const struct call *c = &n->call[i];
        int64_t due = due_at(c);

        if (c->session && c->paced && !c->ended && due > n->clock.virtual_ns && due < next)
            next = due;
    }
    return next;
}

/* ---- saved calls ---- */

/* Files of writers that are at work, or died. */
static int64_t temporaries(const struct night *n)
{
    DIR *d = opendir(n->dir);
    int64_t count = 0;

    assert_non_null(d);
    for (const struct dirent *e; (e = readdir(d));)
        count += e->d_name[0] == '.' && strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(d);
    return count;
}

static struct call *some_call(struct night *n)
{
    int from = (int)dice(n, NIGHT_SLOTS);

    for (int i = 0; i < NIGHT_SLOTS; i++) {
        struct call *c = &n->call[(from + i) % NIGHT_SLOTS];

        if (c->conn && c->session)
            return c;
    }
    return NULL;
}

static void ask_save(struct night *n)
{
    struct call *c = some_call(n);
    struct mt_mail *m;

    if (!c || n->store.m || n->store.due_ns)
        return;
    n->store = (struct store){.due_ns = INT64_MAX, .name = (int)dice(n, NAMES)};
    n->store.what = (struct saved){.wish = c->wish};
    n->store.what.story = c->clean ? c->story : NULL;
    m = server_send(n->s, MT_MAIL_SAVE, NIGHT_CONTROL, 1, 0);
    m->session = c->session;
    m->name = strdup(n->names[n->store.name]);
    assert_non_null(m->name);
    one_round(n);
    if (!n->store.m)
        n->store = (struct store){0}; /* the call ended in this same round */
}

/* The part of a call's story from a frame on is its saved image's. */
static void same_story(const struct story *was, const struct story *is)
{
    int64_t skip = is->first - was->first;

    for (int64_t i = 0; i < is->n && i + skip < was->n; i++)
        assert_int_equal(is->said[i], was->said[i + skip]);
}

static void begin_store(struct night *n, struct mt_mail *m)
{
    struct store *st = &n->store;
    struct saved *s = &st->what;
    const struct story *was = s->story;

    st->m = m;
    st->due_ns = n->clock.virtual_ns + between(n, 0, 300) * MT_NS_PER_MS;
    s->there = true;
    s->frame = number_of(m->answer, "frame");
    s->samples = number_of(m->answer, "samples");
    assert_int_equal(mt_callfile_seal(m->state, n->s->m, n->s->w.identity), 0);
    s->story = foretell_load(n, s, m->state->data, m->state->n, 0);
    assert_int_equal(s->story->first, s->frame);
    if (was)
        same_story(was, s->story);
}

/* Fill the small disk, or say that files may have no more than so many bytes. */
static void disk_full(struct night *n, size_t most, bool full)
{
    struct rlimit r = {most, RLIM_INFINITY};
    char path[64], page[4096] = {0};
    int fd;

    if (!n->small_disk) {
        r.rlim_cur = full ? most : RLIM_INFINITY;
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &r), 0);
        return;
    }
    snprintf(path, sizeof(path), "%s/ballast", n->dir);
    if (!full) {
        assert_int_equal(unlink(path), 0);
        return;
    }
    fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    while (write(fd, page, sizeof(page)) > 0)
        ;
    close(fd);
}

static int write_store(struct night *n, bool fail_full, struct mt_err *e)
{
    const struct mt_state_io *io = n->store.m->state;

    return mt_callfile_write(n->dir, n->names[n->store.name], io->data, io->n, fail_full, e);
}

/* A process dies with the file half written. */
static void die_writing(struct night *n)
{
    struct rlimit half = {n->store.m->state->n / 2, RLIM_INFINITY}, none = {0};
    struct mt_err e = {0};
    pid_t child = fork();
    int status;

    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGXFSZ, SIG_DFL);
        setrlimit(RLIMIT_CORE, &none);
        setrlimit(RLIMIT_FSIZE, &half);
        write_store(n, false, &e);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGXFSZ);
    n->killed++;
}

static void end_store(struct night *n, bool now)
{
    struct store *st = &n->store;
    bool fault = one_in(n, 6), full = !fault && one_in(n, 5);
    struct mt_err e = {0};
    int rc;

    if (!st->m || (!now && n->clock.virtual_ns < st->due_ns))
        return;
    if (full)
        disk_full(n, st->m->state->n / 2, true);
    rc = write_store(n, fault, &e);
    if (full)
        disk_full(n, 0, false);
    if (rc == 0) {
        assert_false(fault || full);
        n->saved[st->name] = st->what; /* it was said */
        n->saves++;
    } else {
        if (!fault && !full)
            fail_msg("%s", e.text);
        assert_true(rc == -ENOSPC || rc == -EFBIG);
        assert_non_null(strstr(e.text, "can't be written"));
        n->full++;
    }
    assert_int_equal(temporaries(n), 0);
    mt_mail_free(st->m);
    *st = (struct store){0};
}

/* A saved call goes on. It must be there. */
static void load(struct night *n, int name)
{
    const struct saved *s = &n->saved[name];
    bool wide = s->there && n->bounded && s->wish.window > n->window;
    int64_t window = wide && !one_in(n, 3) ? n->window : 0;
    struct call *c = s->there ? dial(n, s->wish) : NULL;
    unsigned char *data = NULL;
    struct mt_err e = {0};
    size_t size = 0;

    if (!c)
        return;
    if (mt_callfile_read(&data, &size, n->dir, n->names[name], 64 << 20, &e) < 0)
        fail_msg("it was said to be saved: %s", e.text);
    c->loaded = name;
    c->story = s->story;
    c->may_error = wide && !window;
    if (window) {
        c->wish.window = window;
        c->story = foretell_load(n, s, data, size, window);
    }
    if (server_load(n->s, slot_of(n, c), c->conn, n->names[name], data, size, window, &e) < 0)
        fail_msg("it was said to be saved: %s: %s", n->names[name], e.text);
    one_round(n);
}

/* ---- the server's lives ---- */

static struct mt_engine_opts life_options(struct night *n, bool roomy)
{
    struct mt_engine_opts o = night_options(n->window, roomy ? 4096 : between(n, 20, 80));

    o.block_tokens = MT_KV_UNIT * (int)between(n, 1, 3);
    o.step_tokens = (int)between(n, 30, 64);
    o.max_sessions = roomy ? 16 : (int)between(n, 3, 16);
    o.idle_ns = between(n, 1, 5) * MT_NS_PER_S;
    o.close_stalled = one_in(n, 3) ? 0 : (int)between(n, 3, 25);
    o.pace = !roomy && one_in(n, 4);
    return o;
}

static void start(struct night *n, bool roomy)
{
    n->window = !n->bounded ? 0 : roomy || one_in(n, 2) ? 40 : 30;
    mt_callfile_sweep(n->dir);
    assert_int_equal(temporaries(n), 0);
    memset(n->told, 0, sizeof(n->told));
    memset(n->refused, 0, sizeof(n->refused));
    n->latency_s = 0;
    n->sessions = 0;
    n->lives++;
    server_start(n->s, &n->clock, n->plant[dice(n, 2)].m, life_options(n, roomy),
                 !roomy && one_in(n, 3) ? (double)between(n, 2, 25) : 0);
}

/* The same life goes on elsewhere: callers, counts and books notice nothing. */
static void hand_over(struct night *n)
{
    struct server *next = n->s == &n->life[0] ? &n->life[1] : &n->life[0];
    size_t held[NIGHT_SLOTS] = {0};

    one_round(n); /* what was sent is heard */
    end_store(n, true);
    server_succeed(next, n->s, n->plant[dice(n, 2)].m, life_options(n, true), held);
    for (int i = 0; i < NIGHT_SLOTS; i++)
        n->call[i].unaccepted = held[i];
    n->s = next;
    n->moves++;
}

/* Without a word. What is on its way to the disk may be there, in part, or not. */
static void die(struct night *n)
{
    if (n->store.m && one_in(n, 2))
        end_store(n, true);
    else if (n->store.m && one_in(n, 2))
        die_writing(n);
    if (n->store.m)
        mt_mail_free(n->store.m);
    n->store = (struct store){0};
    server_gone(n->s);
    for (int i = 0; i < NIGHT_SLOTS; i++)
        forget(&n->call[i]);
    for (int64_t i = 0; i < n->sessions; i++)
        free(n->book[i].told);
    memset(n->book, 0, sizeof(n->book[0]) * (size_t)n->sessions);
}

/* SIGTERM: what is in hand is finished, then all are closed. */
static void end_in_order(struct night *n)
{
    struct mt_wire_state st;

    server_send(n->s, MT_MAIL_SHUTDOWN, 0, 0, 0);
    while (mt_worker_round(&n->s->w, 0)) {
        listen_to(n);
        n->clock.virtual_ns += MT_NS_PER_MS;
    }
    mt_worker_end(&n->s->w);
    listen_to(n);
    end_store(n, true);
    for (int i = 0; i < NIGHT_SLOTS; i++)
        assert_int_equal(n->call[i].session, 0);
    assert_int_equal(open_books(n), 0);
    mt_wire_meter_read(n->s->w.meter, n->clock.virtual_ns, &st);
    assert_true(st.draining);
    die(n);
}

/* The engine's thread stands still, and cannot hide it. */
static void stand_still(struct night *n)
{
    int64_t ns = between(n, 10, 4000) * MT_NS_PER_MS;
    struct mt_wire_state st;

    mt_wire_meter_read(n->s->w.meter, n->clock.virtual_ns, &st);
    n->clock.virtual_ns += ns;
    mt_wire_meter_read(n->s->w.meter, n->clock.virtual_ns, &st);
    if (st.warm && n->clock.virtual_ns - st.beat_ns > (MT_HEALTH_FRAMES + 1) * st.frame_ns)
        assert_string_equal(mt_health_ready(&st, n->clock.virtual_ns), "stalled");
    one_round(n);
    mt_wire_meter_read(n->s->w.meter, n->clock.virtual_ns, &st);
    assert_string_equal(mt_health_alive(&st, n->clock.virtual_ns), "ok");
}

static void set_cap(struct night *n)
{
    struct mt_mail *m = server_send(n->s, MT_MAIL_CAP, NIGHT_CONTROL, 1, 0);

    m->cap = (int)between(n, 1, 16);
    m->gate = one_in(n, 8) ? MT_GATE_STALLED : one_in(n, 8) ? MT_GATE_DRAIN : MT_GATE_OPEN;
}

/* Something happens. */
static void event(struct night *n)
{
    struct call *c;

    switch (dice(n, 40)) {
    case 0: /* often while a call is on its way to the disk */
        if (one_in(n, 2))
            ask_save(n);
        die(n);
        start(n, false);
        break;
    case 1:
        end_in_order(n);
        start(n, false);
        break;
    case 2: /* SIGSTOP: nobody is heard meanwhile */
        n->clock.virtual_ns += between(n, 200, 8000) * MT_NS_PER_MS;
        break;
    case 3:
        stand_still(n);
        break;
    case 4: /* more than there is room for */
        for (int i = 0; i < 8; i++)
            new_call(n);
        break;
    case 5:
    case 6:
        if ((c = some_call(n)))
            vanish(n, c);
        break;
    case 7:
        set_cap(n);
        break;
    case 8:
        n->s->w.fault.slow = one_in(n, 2) ? 0 : (double)between(n, 2, 25);
        break;
    case 9:
    case 10:
        compare(n);
        break;
    case 11:
    case 12:
    case 13:
    case 14:
    case 15:
        ask_save(n);
        break;
    case 16:
    case 17:
    case 18:
    case 19:
        load(n, (int)dice(n, NAMES));
        break;
    case 20:
        hand_over(n);
        break;
    default:
        new_call(n);
        break;
    }
}

static void live(struct night *n, int64_t seconds, void (*what)(struct night *))
{
    int64_t until = n->clock.virtual_ns + seconds * MT_NS_PER_S, next = 0;

    while (n->clock.virtual_ns < until) {
        speak(n);
        one_round(n);
        end_store(n, false);
        if (what && n->clock.virtual_ns >= next) {
            what(n);
            next = n->clock.virtual_ns + between(n, 10, 2000) * MT_NS_PER_MS;
        }
        if (!n->s->w.worked)
            n->clock.virtual_ns = next_due(n);
    }
}

static int64_t callers(const struct night *n)
{
    int64_t count = 0;

    for (int i = 0; i < NIGHT_SLOTS; i++)
        count += n->call[i].conn > 0;
    return count;
}

/* In the morning every call that was said to be saved goes on, to its end. */
static void morning(struct night *n)
{
    end_in_order(n);
    start(n, true);
    for (int i = 0; i < NAMES; i++) {
        int64_t before = n->loads;

        load(n, i);
        assert_int_equal(n->loads - before, n->saved[i].there);
    }
    for (int i = 0; i < 100 && callers(n) > 0; i++)
        live(n, 1, NULL);
    assert_int_equal(callers(n), 0);
    assert_int_equal(open_books(n), 0);
    compare(n);
    end_in_order(n);
}

/* ---- the nights ---- */

static bool mounts; /* there may be some of our own */

static int64_t setting(const char *name, int64_t missing)
{
    const char *text = getenv(name);
    int64_t v = missing;

    if (text && mt_parse_i64(text, 1, INT32_MAX, &v) < 0)
        fail_msg("%s: '%s' is not a number from 1 on", name, text);
    return v;
}

static void pass_night(bool cost, bool bounded, int64_t length_s)
{
    struct night *n = calloc(1, sizeof(*n));
    struct mt_engine_opts o = night_options(bounded ? 40 : 0, 4096);
    uint64_t seed = (uint64_t)setting("MT_NIGHT_SEED", 1);

    assert_non_null(n);
    *n = (struct night){.cost = cost,
                        .bounded = bounded,
                        .random = mt_mix64(seed),
                        .s = &n->life[0],
                        .clock = mt_clock_virtual(INT64_C(1) << 40),
                        .quiet_clock = mt_clock_virtual(INT64_C(1) << 40)};
    assert_int_equal(util_dir_make(n->dir), 0);
    n->small_disk = mounts && mount("tmpfs", n->dir, "tmpfs", 0, "size=4m") == 0;
    for (int i = 0; i < NAMES; i++)
        snprintf(n->names[i], sizeof(n->names[i]), "n%d", i);
    for (int i = 0; i < 2; i++)
        plant_open(&n->plant[i], cost, 1 + 2 * i, &n->clock);
    plant_open(&n->quiet_plant, cost, 1, &n->quiet_clock);
    o.deadline_ns = 3600 * MT_NS_PER_S;
    o.idle_ns = 0;
    server_start(&n->quiet, &n->quiet_clock, n->quiet_plant.m, o, 0);
    start(n, false);
    live(n, length_s, event);
    morning(n);
    server_gone(&n->quiet);
    for (int i = 0; i < 2; i++)
        plant_close(&n->plant[i]);
    plant_close(&n->quiet_plant);
    for (struct story *st; (st = n->stories);) {
        n->stories = st->next;
        free(st);
    }
    if (n->small_disk)
        assert_int_equal(umount(n->dir), 0);
    assert_int_equal(util_dir_remove(n->dir), 0);
    print_message("night: seed %" PRIu64 ", %" PRId64 " s: %" PRId64 " lives, %" PRId64
                  " calls, %" PRId64 " records, the books compared %" PRId64 " times; %" PRId64
                  " saved, %" PRId64 " not for want of room (%s), %" PRId64
                  " died writing, %" PRId64 " went on, %" PRId64 " hand-overs; %" PRId64
                  " answers were as foretold\n",
                  seed, length_s, n->lives, n->calls, n->records, n->books, n->saves, n->full,
                  n->small_disk ? "of a small disk" : "by a limit", n->killed, n->loads, n->moves,
                  n->compared);
    if (length_s >= 300)
        assert_true(n->compared > 0 && n->loads > 0 && n->full > 0 && n->books > 0);
    if (length_s >= 3600)
        assert_true(n->killed > 0);
    free(n);
}

static MT_PRINTF(2, 3) void put_line(const char *path, const char *fmt, ...)
{
    FILE *f = fopen(path, "w");
    va_list ap;

    if (!f)
        return;
    va_start(ap, fmt);
    vfprintf(f, fmt, ap);
    va_end(ap);
    fclose(f);
}

/*
 * A folder that only so much fits in needs mounts of one's own. False where nobody may have them.
 */
static bool own_mounts(void)
{
    unsigned uid = geteuid(), gid = getegid();

    if (unshare(CLONE_NEWNS) < 0) {
        if (unshare(CLONE_NEWUSER | CLONE_NEWNS) < 0)
            return false;
        put_line("/proc/self/setgroups", "deny");
        put_line("/proc/self/uid_map", "%u %u 1", uid, uid);
        put_line("/proc/self/gid_map", "%u %u 1", gid, gid);
    }
    return mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0;
}

static int64_t seconds(void)
{
    return setting("MT_NIGHT_SECONDS", SECONDS);
}

static void test_bounded(void **state)
{
    (void)state;
    pass_night(true, true, seconds());
}

static void test_unbounded(void **state)
{
    (void)state;
    pass_night(true, false, seconds());
}

/* A model that computes: what goes on is what was heard and said. */
static void test_computed(void **state)
{
    (void)state;
    pass_night(false, true, seconds() / 12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bounded),
        cmocka_unit_test(test_unbounded),
        cmocka_unit_test(test_computed),
    };

    mounts = own_mounts(); /* before there are threads */
    signal(SIGXFSZ, SIG_IGN);
    json_object_seed(1);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
