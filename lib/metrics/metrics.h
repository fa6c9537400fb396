/*
 * metrics.h: what a server tells those who watch it over HTTP: metrics as Prometheus reads them,
 * and one word of health. Reads the server's meter and nothing else of it, from a thread of its
 * own.
 */
#ifndef MT_METRICS_H
#define MT_METRICS_H

#include "base/base.h"
#include "control/livefit.h"
#include "wire/wire.h"

enum mt_metrics_format {
    MT_METRICS_TEXT, /* text 0.0.4 */
    MT_METRICS_OPEN, /* OpenMetrics 1.0.0 */
};
const char *mt_metrics_content_type(enum mt_metrics_format f);
/* What an Accept header asks for; NULL: there is none. */
enum mt_metrics_format mt_metrics_accepted(const char *accept);

/* ---- writing ---- */

enum mt_metrics_type {
    MT_TYPE_GAUGE,
    MT_TYPE_COUNTER,
    MT_TYPE_HISTOGRAM,
    MT_TYPE_INFO,
    MT_TYPE_STATESET
};

struct mt_expose;
int mt_expose_new(struct mt_expose **out, enum mt_metrics_format f);
/*
 * The samples that follow are name's, without "_total" or "_info". The unit is the name's last word
 * or NULL.
 */
void mt_expose_family(struct mt_expose *x, const char *name, enum mt_metrics_type type,
                      const char *unit, const char *help);
#define MT_NO_LABEL ((const char *)NULL)
/*
 * One sample. suffix: "" or a histogram's; labels: name and value by turns, MT_NO_LABEL at the end,
 * and escaped here.
 */
void mt_expose_sample(struct mt_expose *x, const char *suffix, double value, ...)
    __attribute__((sentinel));
/* The text, malloc'ed, or NULL without memory. Frees x. */
char *mt_expose_end(struct mt_expose **x, size_t *n);

/* ---- the table ---- */

/* What does not change while a server runs. */
struct mt_metrics_facts {
    const char *backend;
    double frame_s, deadline_s;
    int64_t block_bytes, max_sessions;
    int64_t n_mem; /* 0: the cache has no bound */
};
/* What is foretold, from watching. */
struct mt_metrics_outlook {
    struct mt_forecast pool; /* NAN where unknown */
    double refused_per_s;
};
/* All metrics of one moment; as mt_expose_end. */
char *mt_metrics_write(const struct mt_metrics_facts *f, const struct mt_wire_state *s,
                       const struct mt_metrics_outlook *o, enum mt_metrics_format format,
                       size_t *n);

/* Keeps an outlook from one look at the state per frame. */
struct mt_metrics_watch;
int mt_metrics_watch_new(struct mt_metrics_watch **out, const struct mt_metrics_facts *f);
void mt_metrics_watch_free(struct mt_metrics_watch **w);
void mt_metrics_watch_look(struct mt_metrics_watch *w, const struct mt_wire_state *s);
void mt_metrics_watch_outlook(const struct mt_metrics_watch *w, struct mt_metrics_outlook *out);

/* ---- HTTP ---- */

struct mt_metrics_server;
/*
 * Serve /metrics, /healthz and /readyz until stopped. where: "HOST:PORT", "[V6]:PORT", "PORT"
 * (loopback), or "unix:PATH" (0600, as the server's own socket). At most a few connections at a
 * time, none for longer than some seconds. -EINVAL for a where that is none, else as bind and
 * listen.
 */
int mt_metrics_serve(struct mt_metrics_server **out, const char *where,
                     const struct mt_metrics_facts *f, struct mt_wire_meter *meter,
                     struct mt_err *e);
/* The same on a socket that listens already; it is closed with the server. */
int mt_metrics_serve_fd(struct mt_metrics_server **out, int fd, const struct mt_metrics_facts *f,
                        struct mt_wire_meter *meter, struct mt_err *e);
/* On one that another server had, with its name and its file. */
int mt_metrics_serve_taken(struct mt_metrics_server **out, const struct mt_listener *l,
                           const struct mt_metrics_facts *f, struct mt_wire_meter *meter,
                           struct mt_err *e);
/* What it listens on, for another server; NULL without one. */
const struct mt_listener *mt_metrics_door(const struct mt_metrics_server *s);
/* That server has it: the socket's file stays when this one stops. */
void mt_metrics_given(struct mt_metrics_server *s);
/* Where it listens, with the port that was chosen for 0. */
const char *mt_metrics_where(const struct mt_metrics_server *s);
void mt_metrics_stop(struct mt_metrics_server **s);

#endif
