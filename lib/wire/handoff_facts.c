/*
 * handoff_facts.c: what two servers say of themselves before one hands over to the other.
 */
#include "wire/callfile.h"
#include "wire/server.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/socket.h>

json_t *mt_handoff_message(const char *type)
{
    json_t *o = json_object();

    json_object_set_new(o, "type", json_string(type));
    return o;
}

void mt_handoff_refuse(int fd, const char *text)
{
    json_t *o = mt_handoff_message("refuse");

    json_object_set_new(o, "text", json_string(text));
    mt_packet_send(fd, o, NULL, 0, 0, NULL);
}

json_t *mt_handoff_facts(const struct mt_server *s)
{
    const struct mt_worker *w = &s->worker;
    const struct mt_engine_opts *eo = mt_engine_options(w->eng);
    const struct mt_engine_plan *plan = mt_engine_plan(w->eng);
    struct mt_wire_state st;
    json_t *o = json_object();
    char model[160];

    mt_wire_meter_read(w->meter, (int64_t)uv_hrtime(), &st);
    snprintf(model, sizeof(model), "%.100s (%016" PRIx64 ")", mt_model_info(w->model)->name,
             w->identity);
    json_object_set_new(o, "protocol", json_integer(MT_HANDOFF_PROTOCOL));
    json_object_set_new(o, "format", json_integer(MT_CALLFILE_VERSION));
    json_object_set_new(o, "model", json_string(model));
    json_object_set_new(o, "--kv-type", json_string(mt_dtype_name(eo->kv_type)));
    json_object_set_new(
        o, "--block (16: any multiple of it)",
        json_integer(eo->block_tokens % MT_KV_UNIT ? eo->block_tokens : MT_KV_UNIT));
    json_object_set_new(o, "--kv", json_string(eo->policy.bounded ? "a window" : "unbounded"));
    json_object_set_new(o, "sinks", json_integer(eo->policy.bounded ? eo->policy.sinks : 0));
    json_object_set_new(o, "--rope", json_string(eo->policy.rope_absolute ? "absolute" : "cache"));
    json_object_set_new(o, "--mode", json_string(eo->mode == MT_MODE_FREE ? "free" : "turn"));
    json_object_set_new(o, "--frame (samples)", json_integer(plan->frame_samples));
    json_object_set_new(o, "--deadline (ns)", json_integer(st.deadline_ns));
    json_object_set_new(o, "window", json_integer(eo->policy.bounded ? eo->policy.window : 0));
    json_object_set_new(o, "answer_tokens", json_integer(eo->answer_tokens));
    json_object_set_new(o, "max_sessions", json_integer(eo->max_sessions));
    json_object_set_new(o, "n_mem", json_integer(eo->policy.bounded ? plan->n_mem : INT32_MAX));
    json_object_set_new(o, "sessions", json_integer(st.status.sessions));
    return o;
}

/* What must be the same, in the order in which it is told: the rest means nothing without. */
static const char *const same[] = {"protocol",       "format",
                                   "model",          "--kv-type",
                                   "--kv",           "--block (16: any multiple of it)",
                                   "sinks",          "--rope",
                                   "--mode",         "--frame (samples)",
                                   "--deadline (ns)"};

static int differs(const char *what, json_t *theirs, json_t *mine, struct mt_err *e)
{
    char *a = json_dumps(theirs, JSON_ENCODE_ANY), *b = json_dumps(mine, JSON_ENCODE_ANY);
    int rc = mt_err_set(e, -EINVAL, "%s is %.150s there, %.150s here", what, a ? a : "missing",
                        b ? b : "missing");

    free(a);
    free(b);
    return rc;
}

int mt_handoff_fits(json_t *theirs, json_t *mine, struct mt_err *e)
{
    static const struct {
        const char *theirs, *mine, *what;
    } most[] = {{"window", "window", "--kv: its window"},
                {"answer_tokens", "answer_tokens", "--answer-tokens"},
                {"sessions", "max_sessions", "--max-sessions: its sessions"},
                {"sessions", "n_mem", "--pool: its sessions"}};

    for (size_t i = 0; i < MT_COUNT(same); i++) {
        json_t *a = json_object_get(theirs, same[i]), *b = json_object_get(mine, same[i]);

        if (!a || !json_equal(a, b))
            return differs(same[i], a, b, e);
    }
    for (size_t i = 0; i < MT_COUNT(most); i++) {
        json_t *a = json_object_get(theirs, most[i].theirs);
        json_int_t n = json_integer_value(a);
        json_int_t room = json_integer_value(json_object_get(mine, most[i].mine));

        if (!json_is_integer(a) || n < 0)
            return mt_err_set(e, -EPROTO, "it says nothing of its %s", most[i].theirs);
        if (n > room)
            return mt_err_set(e, -EINVAL,
                              "%s are %" JSON_INTEGER_FORMAT " there, %" JSON_INTEGER_FORMAT
                              " fit here",
                              most[i].what, n, room);
    }
    return 0;
}

/* ---- listening sockets ---- */

static const char *const kinds[] = {"calls", "metrics", "handoff"};

json_t *mt_handoff_door_json(enum mt_door_kind kind, const struct mt_listener *l)
{
    json_t *o = json_object();

    json_object_set_new(o, "kind", json_string(kinds[kind]));
    json_object_set_new(o, "asked", json_string(l->asked));
    json_object_set_new(o, "where", json_string(l->where));
    json_object_set_new(o, "dev", json_integer((json_int_t)l->dev));
    json_object_set_new(o, "ino", json_integer((json_int_t)l->ino));
    return o;
}

int mt_handoff_door_parse(json_t *o, int fd, enum mt_door_kind *kind, struct mt_listener *l,
                          struct mt_err *e)
{
    const char *word = json_string_value(json_object_get(o, "kind"));
    const char *asked = json_string_value(json_object_get(o, "asked"));
    const char *where = json_string_value(json_object_get(o, "where"));
    int listens = 0, k = 0;
    socklen_t n = sizeof(listens);

    *l = (struct mt_listener){.fd = -1};
    while (word && k < (int)MT_COUNT(kinds) && strcmp(word, kinds[k]) != 0)
        k++;
    if (!word || k == (int)MT_COUNT(kinds) || !asked || !where ||
        strlen(asked) >= sizeof(l->asked) || strlen(where) >= sizeof(l->where))
        return mt_err_set(e, -EPROTO, "a socket without a kind and names");
    if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &n) < 0 || !listens)
        return mt_err_set(e, -EPROTO, "%s: not a socket that listens", where);
    *kind = (enum mt_door_kind)k;
    *l = (struct mt_listener){.fd = fd,
                              .theirs = true,
                              .dev = (dev_t)json_integer_value(json_object_get(o, "dev")),
                              .ino = (ino_t)json_integer_value(json_object_get(o, "ino"))};
    memcpy(l->asked, asked, strlen(asked) + 1);
    memcpy(l->where, where, strlen(where) + 1);
    return 0;
}
