/*
 * tape.h: what operations queue on a lane (launches, copies, products) as notes behind each other:
 * the tape of a step, from one wait to the next. A step that was there before is replayed as one
 * CUDA graph.
 *
 * A note is plain bytes: how it is queued on a stream, and all that it is queued with. Two notes of
 * the same bytes do the same, so that a graph may stand for a tape of the same bytes and for no
 * other: whatever may change from step to step without making it another one lies in the device's
 * memory or in the ring.
 */
#ifndef MT_CUDA_TAPE_H
#define MT_CUDA_TAPE_H

struct mt_cuda;

struct mt_note {
    void (*queue)(struct mt_cuda *c, const struct mt_note *n);
    size_t bytes; /* of all of it, of which this is the beginning; a multiple of 8 */
};

struct mt_graph {
    char *tape; /* whose it is */
    size_t bytes;
    cudaGraphExec_t exec;
    uint64_t used; /* when, in steps */
};

/* Tapes that are kept as graphs, and those of which it is known that they were there once. */
enum { MT_GRAPHS = 64, MT_TAPES_SEEN = 256 };

struct mt_tape {
    bool on;
    char *data;
    size_t bytes, room;
    int notes;
    /* Nothing of it is queued: `match`, or nothing yet, begins like it. */
    bool held;
    struct mt_graph *match;
    bool capturing;
    cudaError_t refused; /* of what was captured, the first */
    struct mt_graph graph[MT_GRAPHS];
    int n_graphs;
    uint64_t seen[MT_TAPES_SEEN], steps;
};

/* On the lane that operations go to. The note is copied; its gaps are 0. */
void mt_tape_note(struct mt_cuda *c, const struct mt_note *n);
/* All that was noted is on the stream; a new tape begins. */
void mt_tape_end(struct mt_cuda *c);
int mt_tape_open(struct mt_tape *t, bool on); /* -ENOMEM */
void mt_tape_close(struct mt_tape *t);

/* ---- launches ---- */

template <class... P> struct mt_args {
};
template <class A, class... P> struct mt_args<A, P...> {
    A first;
    struct mt_args<P...> rest;
};

static inline void mt_args_set(struct mt_args<> *)
{
}

template <class A, class... P, class V, class... W>
static inline void mt_args_set(struct mt_args<A, P...> *to, V v, W... w)
{
    to->first = v;
    mt_args_set(&to->rest, w...);
}

template <class... P> struct mt_launch {
    struct mt_note note;
    void (*kernel)(P...);
    const char *name;
    dim3 grid, block;
    size_t shared;
    struct mt_args<P...> args;
};

/* The rest of a note whose other members are set: n->note, and 0 in its gaps. */
template <class T>
static inline void mt_note_end(T *n, void (*queue)(struct mt_cuda *c, const struct mt_note *n))
{
    static_assert(sizeof(T) % 8 == 0 && alignof(T) <= 8, "notes lie behind each other");
    n->note.queue = queue;
    n->note.bytes = sizeof(T);
    __builtin_clear_padding(n);
}

#endif
