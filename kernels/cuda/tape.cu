/*
 * tape.cu: a step is noted while it begins like one that is kept as a graph, and nothing of it is
 * queued: at the wait that graph is launched, one call for a thousand. Once it differs, all is
 * queued as it comes. A tape that comes a second time is captured after it was queued, while the
 * device works on it; a third one finds its graph. Where capturing fails, every step is queued as
 * it comes.
 */
#include "kernels/cuda/cuda.h"

#include <stdio.h>

enum { LEAST = 12 /* notes that are worth a graph */ };

static uint64_t hash(const char *data, size_t bytes)
{
    uint64_t h = bytes, word;

    for (size_t i = 0; i < bytes; i += sizeof(word)) {
        memcpy(&word, data + i, sizeof(word));
        h = (h ^ word) * 0x9e3779b97f4a7c15ull;
        h ^= h >> 29;
    }
    return h;
}

static void queue_all(struct mt_cuda *c)
{
    for (size_t at = 0; at < c->lane->tape.bytes;) {
        const struct mt_note *n = (const struct mt_note *)(c->lane->tape.data + at);

        n->queue(c, n);
        at += n->bytes;
    }
}

static void give_up(struct mt_cuda *c, const char *why)
{
    fprintf(stderr, "--backend cuda: steps are not kept as graphs: %s; each is launched anew\n",
            why);
    c->lane->tape.on = false;
}

/* ---- graphs ---- */

static void forget(struct mt_graph *g)
{
    cudaGraphExecDestroy(g->exec);
    free(g->tape);
    *g = {NULL, 0, NULL, 0};
}

static cudaError_t capture(struct mt_cuda *c, cudaGraphExec_t *exec)
{
    cudaError_t rc = cudaStreamBeginCapture(c->lane->stream, cudaStreamCaptureModeThreadLocal);
    cudaGraph_t graph = NULL;

    *exec = NULL;
    if (rc == cudaSuccess) {
        c->lane->tape.refused = cudaSuccess;
        c->lane->tape.capturing = true;
        queue_all(c);
        c->lane->tape.capturing = false;
        rc = cudaStreamEndCapture(c->lane->stream, &graph);
        rc = c->lane->tape.refused != cudaSuccess ? c->lane->tape.refused : rc;
    }
    if (rc == cudaSuccess)
        rc = cudaGraphInstantiate(exec, graph, 0);
    if (graph)
        cudaGraphDestroy(graph);
    cudaGetLastError();
    return rc;
}

/* In the place of the one that was not used for longest, if there are many. */
static void keep(struct mt_cuda *c)
{
    struct mt_tape *t = &c->lane->tape;
    struct mt_graph *g = t->graph;
    char *tape = (char *)malloc(t->bytes);
    cudaGraphExec_t exec;
    cudaError_t rc = tape ? capture(c, &exec) : cudaErrorMemoryAllocation;

    if (rc != cudaSuccess) {
        free(tape);
        give_up(c, cudaGetErrorString(rc));
        return;
    }
    if (t->n_graphs < MT_GRAPHS) {
        g = &t->graph[t->n_graphs++];
    } else {
        for (struct mt_graph *other = g; other < t->graph + MT_GRAPHS; other++)
            g = other->used < g->used ? other : g;
        forget(g);
    }
    memcpy(tape, t->data, t->bytes);
    *g = {tape, t->bytes, exec, t->steps};
}

static void learn(struct mt_cuda *c)
{
    struct mt_tape *t = &c->lane->tape;
    uint64_t h = hash(t->data, t->bytes), *seen = &t->seen[h % MT_TAPES_SEEN];

    if (*seen == h)
        keep(c);
    *seen = h;
}

/* ---- the tape ---- */

/* Is there still a graph that begins like it? `from`: what `match` has not been compared with. */
static bool follow(struct mt_tape *t, size_t from)
{
    const struct mt_graph *m = t->match;

    if (m && m->bytes >= t->bytes && !memcmp(m->tape + from, t->data + from, t->bytes - from))
        return true;
    for (int i = 0; i < t->n_graphs; i++)
        if (t->graph[i].bytes >= t->bytes && !memcmp(t->graph[i].tape, t->data, t->bytes)) {
            t->match = &t->graph[i];
            return true;
        }
    t->match = NULL;
    return false;
}

static bool room(struct mt_tape *t, size_t bytes)
{
    size_t want = 2 * (t->bytes + bytes);
    char *more;

    if (t->bytes + bytes <= t->room)
        return true;
    if (!(more = (char *)realloc(t->data, want)))
        return false;
    t->data = more;
    t->room = want;
    return true;
}

void mt_tape_note(struct mt_cuda *c, const struct mt_note *n)
{
    struct mt_tape *t = &c->lane->tape;
    size_t at = t->bytes;

    if (c->failed)
        return;
    if (t->on && !room(t, n->bytes)) {
        mt_tape_end(c);
        give_up(c, "no memory");
    }
    if (!t->on) {
        n->queue(c, n);
        return;
    }
    memcpy(t->data + at, n, n->bytes);
    t->bytes += n->bytes;
    t->notes++;
    if (!t->held) {
        n->queue(c, n);
    } else if (!follow(t, at)) {
        t->held = false;
        queue_all(c);
    }
}

void mt_tape_end(struct mt_cuda *c)
{
    struct mt_tape *t = &c->lane->tape;
    struct mt_graph *m = t->match;

    if (t->bytes && !c->failed) {
        if (t->held && m->bytes == t->bytes) {
            cudaError_t rc = cudaGraphLaunch(m->exec, c->lane->stream);

            m->used = t->steps;
            if (rc != cudaSuccess) {
                cudaGetLastError();
                give_up(c, cudaGetErrorString(rc));
                queue_all(c);
            }
        } else {
            if (t->held) /* it ended before the graph did */
                queue_all(c);
            if (t->notes >= LEAST)
                learn(c);
        }
    }
    t->bytes = 0;
    t->notes = 0;
    t->held = true;
    t->match = NULL;
    t->steps++;
}

int mt_tape_open(struct mt_tape *t, bool on)
{
    t->room = (size_t)1 << 20;
    t->held = true;
    t->on = on;
    return (t->data = (char *)malloc(t->room)) ? 0 : -ENOMEM;
}

void mt_tape_close(struct mt_tape *t)
{
    for (int i = 0; i < t->n_graphs; i++)
        forget(&t->graph[i]);
    free(t->data);
}

/* ---- launches ---- */

bool mt_cuda_room_new(struct mt_cuda *c, const void *kernel, size_t bytes)
{
    int i = 0;

    while (i < c->n_rooms && c->room[i].kernel != kernel)
        i++;
    if (i < c->n_rooms && c->room[i].bytes >= bytes)
        return false;
    if (i < MT_CUDA_ROOMS) { /* else it asks every time */
        c->room[i] = {kernel, bytes};
        c->n_rooms = i < c->n_rooms ? c->n_rooms : i + 1;
    }
    return true;
}
