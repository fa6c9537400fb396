/*
 * fuzz_handoff.c: what a server reads from another one that hands over. The first byte says what
 * the rest is: a message, the memory of a connection with its call, or what comes last. What is
 * refused says why on one line; a connection that is taken can be packed again.
 */
#include "tests/fuzz/fuzz.h"

#include "engine/session.h"
#include "wire/call.h"
#include "wire/conn.h"

#include <sys/socket.h>
#include <unistd.h>

enum { SLOTS = 2 };
/* Soon after the seeds' calls were packed. */
#define NOW_NS (INT64_C(45513) * MT_NS_PER_S)

static struct mt_server server;
static struct mt_server_opts opts;
static struct mt_clock the_clock;
static int door;

static void nobody(void *ctx)
{
    (void)ctx;
}

static void begin(void)
{
    const struct mt_model_opts mo = {.step_rows = 32, .want_rows = 8};
    struct mt_worker *w = &server.worker;
    struct mt_engine_opts o;
    struct mt_wire_hub *hub;
    struct mt_backend *be;

    fuzz_engine_options(&o);
    the_clock = mt_clock_virtual(NOW_NS);
    must(mt_wire_hub_new(&hub) == 0);
    o.events = mt_wire_hub_events(hub);
    must(mt_backend_open(&be, "cpu", 1, NULL) == 0);
    must(mt_model_open(&w->model, "synth:qwen2.5-omni-tiny,layers=1", be, &mo, NULL) == 0);
    must(mt_engine_new(&w->eng, w->model, &o, &the_clock, NULL) == 0);
    must(mt_wire_meter_new(&w->meter) == 0);
    w->notify = nobody;
    server.opts = &opts;
    server.slots = SLOTS;
    server.conns = mt_alloc(SLOTS, sizeof(struct mt_conn *));
    must(server.conns && mt_worker_init(w, SLOTS, NULL) == 0);
    must(uv_loop_init(&server.loop) == 0);
    must((door = socket(AF_INET, SOCK_STREAM, 0)) >= 0 && listen(door, 1) == 0);
}

static void as_message(const char *text, size_t n)
{
    json_t *mine = mt_handoff_facts(&server), *doors;
    struct mt_packet p = {0};
    struct mt_err e = {0};

    if (mt_packet_parse(&p, text, n, &e) < 0) {
        one_line(&e);
    } else if (mt_handoff_fits(json_object_get(p.msg, "facts"), mine, &e) < 0) {
        one_line(&e);
        e = (struct mt_err){0};
    }
    doors = json_object_get(p.msg, "doors");
    for (size_t i = 0; i < json_array_size(doors); i++) {
        enum mt_door_kind kind;
        struct mt_listener l;

        e = (struct mt_err){0};
        if (mt_handoff_door_parse(json_array_get(doors, i), door, &kind, &l, &e) < 0)
            one_line(&e);
        else
            must(l.fd == door && kind <= MT_DOOR_HANDOFF);
    }
    json_decref(mine);
    mt_packet_free(&p);
}

static void as_connection(unsigned char *data, size_t n)
{
    struct mt_state_io io = {.load = true, .data = data, .n = n}, again = {0};
    struct mt_worker *w = &server.worker;
    int fd[2];

    must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd) == 0);
    w->eng->next_id = 0;
    if (mt_conn_unpack(&server, fd[0], &io) < 0) {
        one_line(&io.err);
    } else {
        struct mt_call *c = w->calls[0];

        must(mt_conn_pack(server.conns[0], &again) == 0);
        must(!c || mt_worker_pack(w, c, &again) == 0);
        if (c)
            mt_engine_close(w->eng, c->session, "gone");
        mt_worker_call_vacate(w, 0);
        w->n_calls = 0;
        mt_conn_close(server.conns[0]);
    }
    must(w->n_calls == 0 && w->eng->n == 0);
    uv_run(&server.loop, UV_RUN_DEFAULT);
    must(server.n_conns == 0);
    close(fd[1]);
    free(again.data);
}

static void as_rest(unsigned char *data, size_t n)
{
    struct mt_state_io io = {.load = true, .data = data, .n = n};

    server.worker.eng->next_id = 0;
    if (mt_worker_visit(&server.worker, &io) < 0)
        one_line(&io.err);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    unsigned char *copy;

    if (!server.opts)
        begin();
    if (size == 0)
        return 0;
    copy = malloc(size); /* a multiple of 8, and a read past its end is seen */
    must(copy != NULL);
    memcpy(copy, data + 1, size - 1);
    if (data[0] == 'm')
        as_message((const char *)copy, size - 1);
    else if (data[0] == 'c')
        as_connection(copy, size - 1);
    else
        as_rest(copy, size - 1);
    free(copy);
    return 0;
}
