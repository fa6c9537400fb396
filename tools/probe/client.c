/*
 * client.c: what the subcommands that talk to a server share.
 */
#include "tools/probe/live.h"

#include <string.h>

struct mt_wire_client *probe_connect(const char *path, int64_t timeout_ns)
{
    struct mt_wire_client *c = NULL;
    struct mt_err e = {0};

    if (mt_wire_connect(&c, path, timeout_ns, &e) < 0)
        mt_msg(MT_ERROR, "%s", e.text);
    return c;
}

json_t *probe_ask(struct mt_wire_client *c, json_t *msg)
{
    char type[32] = "";
    struct mt_err e = {0};
    json_t *answer;

    snprintf(type, sizeof(type), "%s", json_string_value(json_object_get(msg, "type")));
    if (mt_wire_send(c, msg, NULL, 0, &e) < 0) {
        mt_msg(MT_ERROR, "%s", e.text);
        return NULL;
    }
    while (mt_wire_recv(c, &answer, &e) > 0) {
        const char *got = json_string_value(json_object_get(answer, "type"));
        const char *why = json_string_value(json_object_get(answer, "error"));

        if (!strcmp(got, type))
            return answer;
        if (!strcmp(got, "error")) {
            mt_msg(MT_ERROR, "the server says: %s", why ? why : "an error without a text");
            json_decref(answer);
            return NULL;
        }
        json_decref(answer);
    }
    mt_msg(MT_ERROR, "%s", e.code ? e.text : "the server closed the connection");
    return NULL;
}
