/*
 * parser.c: the wire's framing: lines of JSON, each with the raw bytes that it announces. Holds one
 * incomplete line at most, and that only up to its limit: a line is refused at its first byte when
 * that can't begin an object, and payload is passed on as it comes.
 */
#include "wire/wire.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define FIRST_ROOM 512

void mt_wire_parser_init(struct mt_wire_parser *p)
{
    p->line = NULL;
    p->n = p->cap = 0;
    p->payload = 0;
}

void mt_wire_parser_free(struct mt_wire_parser *p)
{
    free(p->line);
    mt_wire_parser_init(p);
}

static bool blank(unsigned char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static int keep(struct mt_wire_parser *p, const unsigned char *bytes, size_t n)
{
    if (p->n + n > p->cap) {
        size_t cap = p->cap ? p->cap : FIRST_ROOM;
        char *line;

        while (cap < p->n + n)
            cap *= 2; /* n is bounded by MT_WIRE_LINE_MAX */
        line = realloc(p->line, cap);
        if (!line)
            return -ENOMEM;
        p->line = line;
        p->cap = cap;
    }
    memcpy(p->line + p->n, bytes, n);
    p->n += n;
    return 0;
}

/* The object on one line, checked as far as framing goes. */
static int take_line(struct mt_wire_parser *p, const char *line, size_t n, struct mt_err *e)
{
    json_error_t je;
    json_t *msg = json_loadb(line, n, 0, &je), *bytes;
    int64_t payload = 0;
    int rc = 0;

    if (!msg)
        return mt_err_set(e, -EPROTO, "not a JSON object on one line: %s (byte %d of %zu)", je.text,
                          je.position, n);
    bytes = json_object_get(msg, "bytes");
    if (!json_is_string(json_object_get(msg, "type"))) {
        rc = mt_err_set(e, -EPROTO, "an object without a \"type\" (a word)");
    } else if (bytes) {
        payload = json_integer_value(bytes);
        if (!json_is_integer(bytes) || payload < 0 || payload > MT_WIRE_PAYLOAD_MAX)
            rc = mt_err_set(e, -EPROTO, "\"bytes\": expected an integer in 0..%d",
                            MT_WIRE_PAYLOAD_MAX);
    }
    if (!rc) {
        p->payload = payload;
        rc = p->on_message(p->ctx, msg, payload);
    }
    json_decref(msg);
    return rc;
}

/* Bytes up to the end of the line; *used counts them. */
static int parse_text(struct mt_wire_parser *p, const unsigned char *bytes, size_t n, size_t *used,
                      struct mt_err *e)
{
    const unsigned char *nl;
    size_t len, i = 0;
    int rc;

    if (p->n == 0) {
        while (i < n && blank(bytes[i]))
            i++;
        *used = i;
        if (i == n)
            return 0;
        if (bytes[i] != '{' && isprint(bytes[i]))
            return mt_err_set(e, -EPROTO, "expected a JSON object, found '%c'", bytes[i]);
        if (bytes[i] != '{')
            return mt_err_set(e, -EPROTO, "expected a JSON object, found byte 0x%02x", bytes[i]);
        bytes += i;
        n -= i;
    }
    nl = memchr(bytes, '\n', n);
    len = nl ? (size_t)(nl - bytes) : n;
    if (p->n + len > MT_WIRE_LINE_MAX)
        return mt_err_set(e, -EPROTO, "a line longer than %d bytes", MT_WIRE_LINE_MAX);
    *used += len + (nl != NULL);
    if (nl && p->n == 0)
        return take_line(p, (const char *)bytes, len, e);
    rc = keep(p, bytes, len);
    if (rc < 0 || !nl)
        return rc < 0 ? mt_err_set(e, rc, "out of memory") : 0;
    len = p->n;
    p->n = 0;
    return take_line(p, p->line, len, e);
}

int mt_wire_parse(struct mt_wire_parser *p, const unsigned char *bytes, size_t n, struct mt_err *e)
{
    while (n > 0) {
        size_t used = 0;
        int rc;

        if (p->payload > 0) {
            used = (int64_t)n < p->payload ? n : (size_t)p->payload;
            p->payload -= (int64_t)used;
            rc = p->on_payload(p->ctx, bytes, used);
        } else {
            rc = parse_text(p, bytes, n, &used, e);
        }
        if (rc)
            return rc;
        bytes += used;
        n -= used;
    }
    return 0;
}

int mt_wire_parse_end(const struct mt_wire_parser *p, struct mt_err *e)
{
    if (p->payload > 0)
        return mt_err_set(e, -EPROTO, "the stream ends %lld bytes before the end of a payload",
                          (long long)p->payload);
    if (p->n > 0)
        return mt_err_set(e, -EPROTO, "the stream ends inside a line");
    return 0;
}
