/*
 * internal.h: private to lib/wire: the server's lines, and who gets the engine's events.
 */
#ifndef MT_WIRE_INTERNAL_H
#define MT_WIRE_INTERNAL_H

#include "wire/wire.h"

/* ---- messages.c: each returns a new object; `first` adds "metronome":1 ---- */

/* An object begun: its version when it is the first of its side, then its type. */
json_t *mt_wire_object(bool first, const char *type);
json_t *mt_wire_opened_json(const struct mt_engine *eng, const struct mt_model *m,
                            const struct mt_wire_open *o, int64_t session, int64_t lag_samples);
json_t *mt_wire_refused_json(const char *reason, double retry_s);
json_t *mt_wire_closed_json(int64_t session, const char *reason, int64_t frames);
json_t *mt_wire_error_json(bool first, const char *text);
json_t *mt_wire_stats_json(const struct mt_engine_stats *s);

/* What a watcher reads; health is a word of mt_health_word. */
json_t *mt_wire_status_json(bool first, const struct mt_wire_status *s, const char *health,
                            const struct mt_engine *eng);

/*
 * A frame's speech as a message: {"type":"audio","session","frame","rate","bytes"} and s16le
 * samples, malloc'ed. NULL when it has none, or without memory.
 */
char *mt_wire_speech(const struct mt_record *r, int rate_hz, size_t *n);

/* The object as one line with its newline, malloc'ed; takes the reference. NULL without memory. */
char *mt_wire_line(json_t *obj, size_t *n);

/*
 * The version of a side's first object: 0, or -EPROTO with what was expected.
 */
int mt_wire_check_version(json_t *msg, struct mt_err *e);

/* ---- hub.c ---- */

/* Who gets the engine's events while mt_serve_* runs. */
struct mt_wire_sink {
    void *ctx;
    void (*frame)(void *ctx, const struct mt_record *r);
    void (*closed)(void *ctx, int64_t session, const char *reason, int64_t frames);
};
/* The hub of an engine, or NULL when its events go elsewhere. */
struct mt_wire_hub *mt_wire_hub_of(const struct mt_engine *eng);
/* NULL unbinds: events are then dropped. */
void mt_wire_hub_bind(struct mt_wire_hub *h, const struct mt_wire_sink *sink);

#endif
