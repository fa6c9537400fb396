/*
 * wire.h: the protocol. One JSON object a line in both directions; an object with a "bytes" member
 * is followed by that many raw bytes. A connection is a session, or a control client. Parser,
 * messages, server, client.
 *
 * Client: {"metronome":1,"type":"open",…}, {"type":"audio","bytes":N} + PCM, {"type":"end"};
 *         control: "stats", "drain", "watch" {"period_ms":P}, and "cap" {"cap":N} with the
 *         controller's "mode"; "save" {"session","name"}. In the place of open: "load" {"name"},
 *         and "window" for a smaller one.
 * Server: "opened" or "refused", "frame", "audio" + PCM (what a model speaks, before the frame's
 *         record), "closed", "error"; "stats", "cap", "drain", "save"; for watchers
 * every record and "status". The first object of each side has "metronome":1. Unknown members are
 * ignored, unknown types are an error.
 */
#ifndef MT_WIRE_H
#define MT_WIRE_H

#include "base/base.h"
#include "engine/engine.h"

#define MT_WIRE_VERSION 1

/* Limits, enforced before memory is allocated. */
enum {
    MT_WIRE_LINE_MAX = 64 << 10, /* bytes of a JSON line */
    MT_WIRE_PAYLOAD_MAX =
        16 << 20, /* "bytes" of one message; it is passed on in pieces, never held whole */
    MT_WIRE_OUT_MAX = 4 << 20, /* bytes a slow reader may leave unread before it is cut off */
    MT_WIRE_RATE_MIN = 4000,
    MT_WIRE_RATE_MAX = 768000
};

/* ---- parser ---- */

/*
 * Bytes in, messages out. on_message gets each object (borrowed) with its payload length announced;
 * then on_payload its bytes in pieces of any size. A callback that returns non-zero stops the parse
 * with that value.
 */
struct mt_wire_parser {
    void *ctx;
    int (*on_message)(void *ctx, json_t *msg, int64_t payload);
    int (*on_payload)(void *ctx, const unsigned char *bytes, size_t n);
    char *line; /* grows up to MT_WIRE_LINE_MAX */
    size_t n, cap;
    int64_t payload; /* bytes still to come */
};
void mt_wire_parser_init(struct mt_wire_parser *p);
void mt_wire_parser_free(struct mt_wire_parser *p);
/*
 * 0, or the callback's value, or -EPROTO with one line in e (not JSON, no object, no "type", a bad
 * "bytes", a line too long).
 */
int mt_wire_parse(struct mt_wire_parser *p, const unsigned char *bytes, size_t n, struct mt_err *e);
/* At the end of input: -EPROTO if it stopped inside a line or payload. */
int mt_wire_parse_end(const struct mt_wire_parser *p, struct mt_err *e);

/* ---- messages ---- */

enum mt_pcm { MT_PCM_S16LE, MT_PCM_F32LE };

/* What an "open" asks for. */
struct mt_wire_open {
    int rate_hz;        /* "rate", default the model's; the server converts */
    enum mt_pcm format; /* "format": "s16le" (default) or "f32le" */
    bool tokens;        /* "tokens": true wants the ids in records */
    bool mute;          /* "speech": false wants no sound back */
    char *system;       /* "prompt", malloc'ed or NULL */
    struct mt_session_opts
        session; /* "seed", "temperature", "top_k", "top_p", "window", "answer_tokens", "live" */
};
/*
 * Ranges are checked; -EINVAL names the member and the expectation. On success the caller frees
 * system; on failure nothing is owned. default_rate for a missing "rate".
 */
int mt_wire_open_parse(json_t *msg, int default_rate, struct mt_wire_open *out, struct mt_err *e);
/* The first object of a client. NULL without memory or for a system text that is not UTF-8. */
json_t *mt_wire_open_json(const struct mt_wire_open *o);

/* The record as metronome(7) has it; tokens only when asked for. New reference. */
json_t *mt_wire_record_json(const struct mt_record *r, bool tokens);
/*
 * Back from a record's line: 0, -ENOMSG when it is some other object, -EPROTO when it is a broken
 * record (session, frame and status must be there; a member of the wrong type or a negative count
 * is broken). Absent or null numbers are NAN or -1. Strings point into obj, tokens are not read; a
 * session given as a number becomes a string in obj.
 */
int mt_wire_record_parse(json_t *obj, struct mt_record *out, const char **session);
/* The ready line of mt-serve. */
json_t *mt_wire_ready_json(const struct mt_engine *eng, const struct mt_model *m);

/* ---- what a server knows of itself ---- */

/* What a watcher's status line says. */
struct mt_wire_status {
    double t_s, oldest_ms, pool;
    int sessions, pending, cap;
};

/* Why somebody was refused; the words of the wire. */
enum mt_refusal {
    MT_REFUSED_LIMIT,
    MT_REFUSED_MEMORY,
    MT_REFUSED_PACE,
    MT_REFUSED_WARMUP,
    MT_REFUSED_STALLED,
    MT_REFUSED_DRAIN,
    MT_REFUSED_SHUTDOWN,
    MT_REFUSALS
};
const char *mt_refusal_word(enum mt_refusal r);

/*
 * Answered frames by latency, in shares of the deadline: at most 0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 1,
 * 1.25, 2, 5 of it, and the rest.
 */
enum { MT_WIRE_BOUNDS = 10 };
extern const int mt_wire_bound_permille[MT_WIRE_BOUNDS];

/* What a controller said of the caps that it set; NAN where it said nothing. */
enum { MT_WIRE_DECISIONS = 32 };
struct mt_wire_control {
    char mode[16]; /* "": nobody controls */
    double signal_ms, projected_ms, cost_a_ms, cost_b_ms;
    int64_t untruthful, raised, lowered, other;
    int n_reasons; /* reasons beyond the table are counted in other */
    struct {
        char word[24];
        int64_t count;
    } reason[MT_WIRE_DECISIONS];
};

/* Counts are of records as they were written, so that they agree with what clients were told. */
struct mt_wire_state {
    struct mt_wire_status status;
    int64_t since_ns; /* the clock when it began to serve, 0: not yet */
    int64_t beat_ns;  /* … when the compute loop last came round */
    int64_t frame_ns, deadline_ns;
    bool warm, draining;                     /* warm: a frame has met its deadline */
    int missed;                              /* frames in a row that did not … */
    const char *miss;                        /* … and what became of the last one */
    int64_t frames[6], untruthful, failures; /* failures: frames that found no memory */
    int64_t within[MT_WIRE_BOUNDS + 1], answered;
    double latency_s; /* of those answered, in all */
    int64_t refused[MT_REFUSALS];
    int64_t empty_ticks; /* frame lengths in which nothing was due though there were sessions */
    int stalled;         /* sessions whose last frame found no memory */
    int64_t blocks_used, blocks;
    int64_t closed; /* sessions that left, and how long they lasted in all */
    double closed_s;
    struct mt_wire_control control;
};

/* The state, from any thread: the engine's thread leaves a copy at each turn of its loop. */
struct mt_wire_meter;
int mt_wire_meter_new(struct mt_wire_meter **out);
void mt_wire_meter_free(struct mt_wire_meter **m);
/* As it is at now_ns of the engine's clock: what waits has aged since the copy was made. */
void mt_wire_meter_read(struct mt_wire_meter *m, int64_t now_ns, struct mt_wire_state *out);

/*
 * One word for a state. Alive is a loop that came round within MT_HEALTH_FRAMES frames (and a
 * quarter of a second), a first frame apart, which may take a minute. Ready is alive, not draining,
 * and not MT_HEALTH_FRAMES + 1 missed frames in a row, or any that was missed before one was met.
 */
enum { MT_HEALTH_FRAMES = 4 };
/* "ok" or "stalled". */
const char *mt_health_alive(const struct mt_wire_state *s, int64_t now_ns);
/* "ok", "stalled", "draining", "warming", or what became of the frames: "late" … "untruthful". */
const char *mt_health_ready(const struct mt_wire_state *s, int64_t now_ns);

/* What may be broken on purpose, to see what it looks like; zeroed: nothing. */
struct mt_wire_fault {
    bool stop_compute;
    int64_t stop_ns; /* after so long */
    double slow;     /* every pass takes so many times as long; 0: off */
    int64_t drop;    /* every so many records the connection ends without a word; 0: off */
    bool full_disk;  /* a call that is saved finds no room for its second half */
};
/* "stop-compute[=D],slow=X,drop-client[=N],full-disk"; -EINVAL with what was expected. */
int mt_wire_fault_parse(const char *list, struct mt_wire_fault *out, struct mt_err *e);

/* ---- server ---- */

/* Where a server is: "tcp:HOST:PORT", "tcp:[V6]:PORT", or the path of a Unix socket. */
bool mt_wire_is_tcp(const char *where);
/*
 * 1 if a server there could be reached from other machines, 0 if not; as a listening one fails for
 * a name that can't be read or that nobody has.
 */
int mt_wire_public(const char *where, struct mt_err *e);
/* The same of a socket that listens: 1 if others can reach it. */
bool mt_wire_public_fd(int fd);

/* What clients over TCP may do; those of a Unix socket are its owner's. */
struct mt_wire_tcp {
    int connections;    /* at a time, 0: as many as there may be sessions */
    int per_address;    /* of these from one address, 0: any; a V6 one counts by its first half */
    double opens_per_s; /* new ones, after a burst of MT_TCP_BURST seconds' worth; 0: any number */
    double audio_rate;  /* times as fast as it runs may audio come, after MT_TCP_BURST … of it */
    int64_t idle_ns;    /* without a word a caller is gone; 0: never */
    bool control;       /* not only call, but also watch and control the server */
};
enum { MT_TCP_BURST = 30 };
void mt_wire_tcp_defaults(struct mt_wire_tcp *t);
/* "connections=N,per-address=N,opens=R,rate=X,idle=D,control"; -EINVAL with what was expected. */
int mt_wire_tcp_parse(const char *list, struct mt_wire_tcp *out, struct mt_err *e);

/*
 * Serve eng on Unix sockets (0600 from their first instant; a stale file is replaced, a live
 * server's is -EADDRINUSE) and on TCP, without encryption, until stopped: libuv in the calling
 * thread, the engine in one of its own. The first SIGTERM or SIGINT stops admitting (the socket
 * file goes at once), lets frames in hand finish and closes; the second finds the default action
 * and kills. SIGHUP, SIGPIPE and SIGXFSZ are ignored. The engine's clock must be the real one.
 * Before it listens frames of silence warm the engine, at most MT_WARM_TRIES of them, until one
 * meets the deadline.
 */
enum { MT_WARM_TRIES = 3, MT_DOORS = 8 };
struct mt_listener;
struct mt_server_opts {
    const char *where[MT_DOORS]; /* NULL behind the last */
    const int *fds;              /* sockets that listen already, to be served and closed, too … */
    int n_fds;                   /* … MT_DOORS with the others */
    struct mt_wire_tcp tcp;
    bool public; /* others may reach those of `where`; else one that they can is -EINVAL, so that */
                 /* a name that says another address than it did when asked is no way in */
    /*
     * Once, when it accepts: n places, as `where` but with the port chosen for 0. A negative value
     * ends the server with it.
     */
    int (*ready)(void *ctx, const char *const *where, int n);
    void (*note)(void *ctx, enum mt_level level,
                 const char *text); /* what happens to connections, for -v; may be NULL */
    void *ctx;
    struct mt_wire_meter *meter; /* to be kept up to date; NULL: nobody looks */
    struct mt_wire_fault fault;
    const char *save_dir; /* where calls are saved to and loaded from; NULL: they are not */

    /*
     * Handing over. NULL, or the path of a Unix socket: a server that waits there for a successor
     * is succeeded, its sockets, connections and calls are this one's; then, or if there is none,
     * this one waits there.
     */
    const char *handoff;
    int64_t handoff_step_ns; /* within which each step of it must be done; 0: MT_HANDOFF_STEP_NS */
    /*
     * One more socket, which listens, goes along: the metrics'. metrics is how it was asked for,
     * "": not, then one of the service manager is taken over, NULL: none is; metrics_door says
     * which it is, NULL: there is none. metrics_open, which must be there with metrics, comes once
     * before ready: with the one of the server before if it was asked for by the same name, else
     * with NULL; then a negative value ends the server.
     */
    const char *metrics;
    const struct mt_listener *(*metrics_door)(void *ctx);
    int (*metrics_open)(void *ctx, const struct mt_listener *taken, struct mt_err *e);
    void (*taken)(void *ctx, int sessions); /* so many are another server's no more; before ready */
    void (*given)(
        void *ctx); /* everything is a successor's: this one ends with 0, and in silence */
};
#define MT_HANDOFF_STEP_NS (5 * MT_NS_PER_S)
/* Whether there can be a socket for successors: -ENAMETOOLONG, -EEXIST for what is something else. */
int mt_wire_handoff_check(const char *path, struct mt_err *e);
int mt_serve_socket(struct mt_engine *eng, struct mt_model *m, const struct mt_server_opts *o,
                    struct mt_err *e);

/*
 * One session over two descriptors (mt-serve without -s): blocking, in the calling thread; reading
 * waits while the engine works, so that nothing piles up. in_fd is the client's side of the wire.
 * Returns 0 if every frame was answered and the stream ended well; -EPIPE, with nothing in e, when
 * the reader of out left. Signals as above: the first SIGTERM or SIGINT ends the call in order
 * ("shutdown").
 */
int mt_serve_stdio(struct mt_engine *eng, struct mt_model *m, int in_fd, FILE *out,
                   struct mt_err *e);

/*
 * The engine reports through these: made before the engine, whose options hold them, and bound by
 * mt_serve_* for as long as it runs (-EINVAL there when the engine's events are somebody else's).
 * Free the engine first.
 */
struct mt_wire_hub;
int mt_wire_hub_new(struct mt_wire_hub **out);
void mt_wire_hub_free(struct mt_wire_hub **h);
struct mt_engine_events mt_wire_hub_events(struct mt_wire_hub *h);

/* ---- client (control connections; blocking) ---- */

struct mt_wire_client;
/*
 * -ENOENT, -ECONNREFUSED … with the path in e. timeout_ns for connecting and for each answer, 0:
 * wait for ever.
 */
int mt_wire_connect(struct mt_wire_client **out, const char *path, int64_t timeout_ns,
                    struct mt_err *e);
void mt_wire_disconnect(struct mt_wire_client **c);
int mt_wire_fd(const struct mt_wire_client *c);
/* Send one object (steals it), with payload bytes behind it (n 0: none). */
int mt_wire_send(struct mt_wire_client *c, json_t *msg, const void *payload, size_t n,
                 struct mt_err *e);
/*
 * Next object (new reference; payload of objects that have one is skipped). 1, 0 at the end,
 * -ETIMEDOUT, -EPROTO; -EINTR (nothing in e) when a signal came, so that a watcher can stop.
 */
int mt_wire_recv(struct mt_wire_client *c, json_t **msg, struct mt_err *e);

#endif
