/*
 * fuzz_wire.c: any bytes as the wire: framing, and each object as an open and as a record. A
 * refusal says why on one line; the same bytes in two pieces say the same; what is understood can
 * be written and read back.
 */
#include "tests/fuzz/fuzz.h"

#include "wire/wire.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct heard {
    uint64_t hash;
    size_t payload;
};

static void as_open(json_t *msg)
{
    struct mt_wire_open o, again;
    struct mt_err e = {0};
    json_t *back;

    if (mt_wire_open_parse(msg, 16000, &o, &e) < 0) {
        must(e.code && e.text[0] && !strchr(e.text, '\n'));
        return;
    }
    back = mt_wire_open_json(&o);
    must(back != NULL);
    must(mt_wire_open_parse(back, 8000, &again, &e) == 0);
    must(again.rate_hz == o.rate_hz && again.format == o.format && again.tokens == o.tokens);
    must(again.session.window == o.session.window && again.session.live == o.session.live);
    must(!o.system == !again.system && (!o.system || !strcmp(o.system, again.system)));
    free(o.system);
    free(again.system);
    json_decref(back);
}

static void as_record(json_t *msg)
{
    struct mt_record r, again;
    const char *session, *name;
    json_t *back;

    if (mt_wire_record_parse(msg, &r, &session) < 0)
        return;
    must(session != NULL);
    back = mt_wire_record_json(&r, false);
    must(back != NULL);
    if (r.session >= 0 && r.tokens_in >= 0 && r.tokens_out >= 0 && r.kv_tokens >= 0 &&
        r.sessions >= 0 && r.cap >= 0)
        must(mt_wire_record_parse(back, &again, &name) == 0 && again.frame == r.frame &&
             again.status == r.status);
    json_decref(back);
}

static int on_message(void *ctx, json_t *msg, int64_t payload)
{
    struct heard *h = ctx;
    const char *type = json_string_value(json_object_get(msg, "type"));

    must(type && payload >= 0 && payload <= MT_WIRE_PAYLOAD_MAX);
    h->hash = mt_hash(h->hash, type, strlen(type));
    as_open(msg);
    as_record(msg);
    return strcmp(type, "stop") ? 0 : 1;
}

static int on_payload(void *ctx, const unsigned char *bytes, size_t n)
{
    struct heard *h = ctx;

    must(n > 0);
    h->payload += n;
    h->hash = mt_hash(h->hash, bytes, n);
    return 0;
}

static int parse(const uint8_t *data, size_t size, size_t cut, struct heard *h)
{
    struct mt_wire_parser p = {.ctx = h, .on_message = on_message, .on_payload = on_payload};
    struct mt_err e = {0};
    int rc;

    *h = (struct heard){.hash = MT_HASH_INIT};
    mt_wire_parser_init(&p);
    rc = mt_wire_parse(&p, data, cut, &e);
    if (!rc)
        rc = mt_wire_parse(&p, data + cut, size - cut, &e);
    if (!rc)
        rc = mt_wire_parse_end(&p, &e);
    must(rc >= 0 || (e.text[0] && !strchr(e.text, '\n')));
    must(p.cap <= MT_WIRE_LINE_MAX);
    mt_wire_parser_free(&p);
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct heard whole, pieces;
    int rc = parse(data, size, size, &whole);

    must(parse(data, size, size / 2, &pieces) == rc);
    must(whole.hash == pieces.hash && whole.payload == pieces.payload);
    return 0;
}
