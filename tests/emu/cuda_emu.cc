/*
 * cuda_emu.cc: the fibres behind cuda_emu.h, and its memory. A block's threads run one after the
 * other, each until it ends or waits; a warp whose lanes all wait goes on, and a block whose warps
 * all do.
 */
#include "cuda_emu.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#ifndef __x86_64__
#include <ucontext.h>
#endif

#define STACK   (192 << 10)
#define THREADS 1024

emu_index threadIdx, blockIdx;
dim3 blockDim, gridDim;

enum state { NEW, READY, AT_WARP, AT_BLOCK, DONE };

/* A copy under way. */
struct copy {
    void *dst;
    const void *src; /* NULL: zeros */
    unsigned bytes, group;
};
#define COPIES 512

struct fibre {
    void *sp; /* x86-64: where it stopped */
#ifndef __x86_64__
    ucontext_t ctx;
#endif
    char *stack;
    enum state state;
    emu_index index;
    unsigned turn; /* exchanges so far */
    unsigned lane;
    struct copy *copies; /* those under way, in their order */
    unsigned n_copies, group;
    uint64_t (*slots)[32];   /* its warp's */
    struct fibre *neighbour; /* who runs when it waits, of its warp; the last one has none */
};

static struct fibre fibres[THREADS];
static struct fibre *now;
static uint64_t slots[THREADS / 32][2][32];
static void (*kernel)(void *);
static void *kernel_arg;
static void *shared_memory;

static void bug(const char *what)
{
    fprintf(stderr, "cuda_emu: block %u,%u,%u thread %u,%u: %s\n", blockIdx.x, blockIdx.y,
            blockIdx.z, threadIdx.x, threadIdx.y, what);
    abort();
}

/* ---- switching ---- */

#ifdef __x86_64__
extern "C" void emu_switch(void **save, void *to);
__asm__(".text\n"
        ".globl emu_switch\n"
        ".type emu_switch,@function\n"
        "emu_switch:\n"
        "    push %rbp\n    push %rbx\n    push %r12\n    push %r13\n    push %r14\n    push %r15\n"
        "    mov %rsp, (%rdi)\n"
        "    mov %rsi, %rsp\n"
        "    pop %r15\n    pop %r14\n    pop %r13\n    pop %r12\n    pop %rbx\n    pop %rbp\n"
        "    ret\n"
        ".size emu_switch,.-emu_switch\n");
static void *main_sp;

#else
static ucontext_t main_ctx;
#endif

static unsigned at_warp, at_block, done; /* lanes of the warp that runs */

static void body(void);

/* From `me` (NULL: the scheduler) to f. */
static void go(struct fibre *me, struct fibre *f)
{
    bool fresh = f && f->state == NEW;

    now = f;
    if (f) {
        threadIdx = f->index;
        f->state = READY;
    }
#ifdef __x86_64__
    if (fresh) { /* six registers and the address to return to; the stack as after a call */
        void **sp = (void **)(f->stack + STACK) - 1;

        *sp = nullptr;
        *--sp = (void *)body;
        f->sp = sp - 6;
    }
    emu_switch(me ? &me->sp : &main_sp, f ? f->sp : main_sp);
#else
    if (fresh) {
        getcontext(&f->ctx);
        f->ctx.uc_stack.ss_sp = f->stack;
        f->ctx.uc_stack.ss_size = STACK;
        f->ctx.uc_link = nullptr;
        makecontext(&f->ctx, body, 0);
    }
    swapcontext(me ? &me->ctx : &main_ctx, f ? &f->ctx : &main_ctx);
#endif
}

/* The lane stops; its neighbours get their turn, then the scheduler. */
static void leave(enum state s, unsigned *count)
{
    struct fibre *me = now, *next = me->neighbour;

    me->state = s;
    ++*count;
    while (next && next->state != NEW && next->state != READY)
        next = next->neighbour;
    go(me, next);
}

/* Never returns, so nobody would clear what a sanitizer notes about its frame. */
__attribute__((no_sanitize("address"))) static void body(void)
{
    kernel(kernel_arg);
    leave(DONE, &done);
    abort();
}

void *emu_shared(void)
{
    return shared_memory;
}

unsigned emu_lane(void)
{
    return now->lane;
}

void __syncthreads(void)
{
    leave(AT_BLOCK, &at_block);
}

void __syncwarp(unsigned mask)
{
    if (mask != 0xffffffff)
        bug("a barrier of a part of a warp");
    leave(AT_WARP, &at_warp);
}

/* Two sets of slots: a lane writes the second next value only when all have read this one. */
const uint64_t *emu_exchange(uint64_t mine)
{
    uint64_t *all = now->slots[now->turn++ & 1];

    all[now->lane] = mine;
    leave(AT_WARP, &at_warp);
    return all;
}

/* ---- copies under way ---- */

void emu_copy(void *dst, const void *src, unsigned bytes, bool there)
{
    if (!now->copies && !(now->copies = (struct copy *)malloc(COPIES * sizeof(struct copy))))
        bug("no memory for copies");
    if (now->n_copies == COPIES)
        bug("more copies than are ever waited for");
    if ((uintptr_t)dst % bytes || (uintptr_t)src % bytes)
        bug("a copy that does not begin on a multiple of its size");
    memset(dst, 0xff, bytes);
    now->copies[now->n_copies++] = {dst, there ? src : nullptr, bytes, now->group};
}

void emu_copy_group(void)
{
    now->group++;
}

void emu_copy_wait(unsigned left)
{
    unsigned kept = 0;

    for (unsigned i = 0; i < now->n_copies; i++) {
        const struct copy c = now->copies[i];

        if (c.group + left >= now->group)
            now->copies[kept++] = c;
        else if (c.src)
            memcpy(c.dst, c.src, c.bytes);
        else
            memset(c.dst, 0, c.bytes);
    }
    now->n_copies = kept;
}

/* ---- tensor cores ---- */

static float number(const void *p, cudaDataType_t t, int64_t at)
{
    if (t == CUDA_R_32F)
        return ((const float *)p)[at];
    uint16_t h = ((const uint16_t *)p)[at];
    if (t == CUDA_R_16BF)
        return __uint_as_float((unsigned)h << 16);
    float f = __uint_as_float((h & 0x7fffu) << 13) * 0x1p112f;
    if ((h & 0x7fff) >= 0x7c00)
        f = __uint_as_float(0x7f800000u | (h & 0x7fffu) << 13);
    return h & 0x8000 ? -f : f;
}

/* Each lane's view of one thing; all lanes wait until all have read it. */
template <class T> struct views {
    const uint64_t *all;

    explicit views(T *mine) : all(emu_exchange((uint64_t)(uintptr_t)mine))
    {
    }
    T &operator[](unsigned lane) const
    {
        return *(T *)(uintptr_t)all[lane];
    }
    ~views()
    {
        __syncwarp();
    }
};

void emu_matrices(unsigned *r, const void *row, bool turned)
{
    const uint64_t *rows = emu_exchange((uint64_t)(uintptr_t)row);
    unsigned g = now->lane / 4, t = now->lane % 4;

    if ((uintptr_t)row % 16)
        bug("a matrix's row that does not begin on 16 bytes");
    for (unsigned m = 0; m < 4; m++) {
        uint16_t two[2];

        for (unsigned i = 0; i < 2; i++) {
            unsigned at = turned ? 2 * t + i : g, col = turned ? g : 2 * t + i;

            two[i] = ((const uint16_t *)(uintptr_t)rows[8 * m + at])[col];
        }
        r[m] = two[0] | (unsigned)two[1] << 16;
    }
    __syncwarp(); /* a slow lane still reads what a fast one might copy over */
}

struct operands {
    unsigned a[4], b[2];
    bool dealt;
};

/* Element k % 2 of a word. */
static float half_of(unsigned word, unsigned k, bool bf16)
{
    uint16_t h = (uint16_t)(word >> 16 * (k % 2));

    return number(&h, bf16 ? CUDA_R_16BF : CUDA_R_16F, 0);
}

/* Products are exact in f64, and are added up there; one rounding, to f32, at the end. */
void emu_product(float *c, const unsigned *a, unsigned b0, unsigned b1, bool bf16)
{
    static double left[16][16], right[8][16];
    struct operands mine = {{a[0], a[1], a[2], a[3]}, {b0, b1}, false};
    views<struct operands> all(&mine);
    unsigned g = now->lane / 4, t = now->lane % 4;

    if (!mine.dealt) { /* the first lane deals the operands out, for all */
        for (unsigned k = 0; k < 16; k++) {
            unsigned from = k % 8 / 2;

            for (unsigned i = 0; i < 16; i++)
                left[i][k] = half_of(all[i % 8 * 4 + from].a[i / 8 + k / 8 * 2], k, bf16);
            for (unsigned i = 0; i < 8; i++)
                right[i][k] = half_of(all[i * 4 + from].b[k / 8], k, bf16);
        }
        for (unsigned i = 0; i < 32; i++)
            all[i].dealt = true;
    }
    for (unsigned i = 0; i < 4; i++) {
        double sum = c[i];

        for (unsigned k = 0; k < 16; k++)
            sum += left[g + i / 2 * 8][k] * right[2 * t + i % 2][k];
        c[i] = (float)sum;
    }
}

/* ---- a block ---- */

/* Until every lane waits for the block or is done. */
static void run_warp(unsigned first, unsigned n, bool back)
{
    at_block = done = 0;
    do {
        struct fibre *f = &fibres[back ? first + n - 1 : first];

        at_warp = 0;
        while (f && f->state != NEW && f->state != READY)
            f = f->neighbour;
        if (f)
            go(nullptr, f);
        if (at_warp && (at_warp != n || n != 32))
            bug(done ? "a warp's exchange without lanes that have left" : "a warp apart");
        for (unsigned i = 0; at_warp && i < n; i++)
            fibres[first + i].state = READY;
    } while (at_warp);
}

static void run_block(unsigned threads, bool back)
{
    unsigned warps = (threads + 31) / 32;

    for (unsigned t = 0; t < threads; t++) {
        bool last = back ? t % 32 == 0 : t % 32 == 31 || t == threads - 1;

        fibres[t].state = NEW;
        fibres[t].turn = 0;
        fibres[t].n_copies = fibres[t].group = 0;
        fibres[t].lane = t % 32;
        fibres[t].slots = slots[t / 32];
        fibres[t].neighbour = last ? nullptr : back ? &fibres[t - 1] : &fibres[t + 1];
        fibres[t].index = {t % blockDim.x, t / blockDim.x % blockDim.y,
                           t / (blockDim.x * blockDim.y)};
        if (!fibres[t].stack) {
            void *p =
                mmap(nullptr, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

            if (p == MAP_FAILED)
                bug("no memory for a stack");
            fibres[t].stack = (char *)p;
        }
    }
    for (;;) {
        unsigned waiting = 0;

        for (unsigned w = 0; w < warps; w++) {
            unsigned first = (back ? warps - 1 - w : w) * 32;

            run_warp(first, threads - first < 32 ? threads - first : 32, back);
        }
        for (unsigned t = 0; t < threads; t++)
            waiting += fibres[t].state == AT_BLOCK;
        if (!waiting)
            return;
        if (waiting != threads)
            bug("a barrier that not all threads reach");
        for (unsigned t = 0; t < threads; t++)
            fibres[t].state = READY;
    }
}

static void run(dim3 grid, dim3 block, size_t shared, void (*fn)(void *), void *arg)
{
    static unsigned launches;
    unsigned threads = block.x * block.y * block.z;
    bool back = launches++ % 2;

    gridDim = grid;
    blockDim = block;
    kernel = fn;
    kernel_arg = arg;
    if (!threads || threads > THREADS || !grid.x || !grid.y || !grid.z || grid.y > 65535 ||
        grid.z > 65535 || shared > 227 << 10)
        bug("a launch that no device takes");
    shared_memory = shared ? aligned_alloc(16, (shared + 15) / 16 * 16) : nullptr;
    for (unsigned z = 0; z < grid.z; z++)
        for (unsigned y = 0; y < grid.y; y++)
            for (unsigned x = 0; x < grid.x; x++) {
                blockIdx = {x, y, z};
                if (shared)
                    memset(shared_memory, 0xff, shared);
                run_block(threads, back);
            }
    free(shared_memory);
    shared_memory = nullptr;
}

/* ---- shared memory above what is anybody's ---- */

enum { ROOMS = 256, ROOM_PLAIN = 48 << 10, ROOM_MOST = 227 << 10 };

static struct {
    const void *of;
    size_t bytes;
} room[ROOMS];
static int n_rooms;

cudaError_t emu_room_set(const void *of, int bytes)
{
    int i = 0;

    emu_count.rooms++;
    if (bytes < 0 || bytes > ROOM_MOST)
        return cudaErrorInvalidValue;
    while (i < n_rooms && room[i].of != of)
        i++;
    if (i == ROOMS)
        abort();
    n_rooms = i < n_rooms ? n_rooms : i + 1;
    room[i] = {of, (size_t)bytes};
    return cudaSuccess;
}

bool emu_room(const void *of, size_t shared)
{
    for (int i = 0; i < n_rooms; i++)
        if (room[i].of == of)
            return shared <= room[i].bytes;
    return shared <= ROOM_PLAIN;
}

/* ---- streams ---- */

struct emu_count emu_count;
struct emu_faults emu_faults;
enum emu_order emu_order;

/* A kernel, or another thing that is done on the stream; or that `at` things are done on `on`. */
struct node {
    struct node *next;
    bool kernel, down; /* down: a copy to the host */
    dim3 grid, block;
    size_t shared;
    void (*fn)(void *);
    void *arg;
    size_t bytes; /* of it */
    struct emu_stream *on;
    uint64_t at;
};

struct emu_stream {
    struct emu_stream *next;
    struct node *first, **end;
    uint64_t queued, done;
    unsigned number;
};

struct emu_event {
    struct emu_stream *on; /* NULL: nothing was recorded */
    uint64_t at;
};

struct emu_graph {
    struct node *first, **end;
    bool broken;
};

static struct emu_stream *streams;
static struct emu_graph *capturing;
static struct emu_stream *captured;

static thread_local int current = -1;

cudaError_t cudaSetDevice(int device)
{
    current = device;
    return cudaSuccess;
}

/* A thread would have device 0, but a stream is another's perhaps. */
static void chosen(void)
{
    if (current < 0)
        bug("a thread that has not said which device it means");
}

static struct node *node_copy(const struct node *n)
{
    struct node *copy = (struct node *)malloc(sizeof(*copy));

    if (!copy || !(copy->arg = aligned_alloc(16, n->bytes / 16 * 16 + 16)))
        bug("no memory for what is queued");
    void *arg = copy->arg;
    *copy = *n;
    copy->next = nullptr;
    copy->arg = arg;
    if (n->bytes)
        memcpy(arg, n->arg, n->bytes);
    return copy;
}

static void node_free(struct node *n)
{
    free(n->arg);
    free(n);
}

/* The next thing of s, and what it has to wait for. */
static void advance(struct emu_stream *s)
{
    struct node *n = s->first;

    while (n->on && n->on->done < n->at)
        advance(n->on);
    if (n->kernel)
        run(n->grid, n->block, n->shared, n->fn, n->arg);
    else if (n->fn)
        n->fn(n->arg);
    s->first = n->next;
    if (!s->first)
        s->end = &s->first;
    s->done++;
    node_free(n);
}

/* Whose work is done next, where somebody waits for s. */
static struct emu_stream *lucky(struct emu_stream *s)
{
    static unsigned lot = 1;
    struct emu_stream *found = s;
    unsigned pending = 1;

    if (emu_order != EMU_OTHERS && emu_order != EMU_MIXED)
        return s;
    for (struct emu_stream *t = streams; t; t = t->next) {
        if (t == s || !t->first)
            continue;
        lot = lot * 1664525 + 1013904223;
        pending++;
        if (emu_order == EMU_OTHERS || (lot >> 16) % pending == 0)
            found = t;
    }
    return found;
}

static void work_off(struct emu_stream *s, uint64_t until)
{
    while (s->done < until)
        advance(lucky(s));
}

static void work_off_all(void)
{
    for (struct emu_stream *s = streams; s; s = s->next)
        work_off(s, s->queued);
}

static void append(struct emu_stream *s, const struct node *n)
{
    struct node *copy = node_copy(n);

    *s->end = copy;
    s->end = &copy->next;
    s->queued++;
    emu_count.after_down = n->down ? 0 : emu_count.after_down + 1;
    if (emu_order == EMU_NOW)
        work_off(s, s->queued);
}

static void on_stream(cudaStream_t s, const struct node &n)
{
    chosen();
    if (!capturing) {
        emu_count.launches += n.kernel;
        append(s, &n);
        return;
    }
    if (s != captured)
        bug("a stream whose work is not captured, while another's is");
    struct node *copy = node_copy(&n);
    *capturing->end = copy;
    capturing->end = &copy->next;
}

void emu_kernel(cudaStream_t s, dim3 grid, dim3 block, size_t shared, void (*fn)(void *), void *arg,
                size_t bytes)
{
    on_stream(s, {nullptr, true, false, grid, block, shared, fn, arg, bytes, nullptr, 0});
}

template <class T>
static void on_stream(cudaStream_t s, void (*fn)(void *), T what, bool down = false)
{
    on_stream(s, {nullptr, false, down, {}, {}, 0, fn, &what, sizeof(what), nullptr, 0});
}

/* What no graph can hold. */
static cudaError_t outside(void)
{
    chosen();
    if (!capturing)
        return cudaSuccess;
    capturing->broken = true;
    return cudaErrorStreamCaptureUnsupported;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned, int)
{
    struct emu_stream *made = (struct emu_stream *)calloc(1, sizeof(*made)), **last = &streams;

    if (!made)
        return cudaErrorMemoryAllocation;
    for (; *last; last = &(*last)->next)
        made->number++;
    made->end = &made->first;
    *s = *last = made;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    struct emu_stream **at = &streams;

    work_off_all();
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    free(s);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    emu_count.waits++;
    if (outside() != cudaSuccess)
        return cudaErrorStreamCaptureUnsupported;
    work_off(s, s->queued);
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned)
{
    *e = (struct emu_event *)calloc(1, sizeof(**e));
    return *e ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    free(e);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    *e = {s, s->queued};
    return outside();
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    if (outside() != cudaSuccess)
        return cudaErrorStreamCaptureUnsupported;
    if (e->on)
        work_off(e->on, e->at);
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned)
{
    struct node n = {nullptr, false, false, {}, {}, 0, nullptr, nullptr, 0, e->on, e->at};

    if (outside() != cudaSuccess)
        return cudaErrorStreamCaptureUnsupported;
    if (e->on && !(emu_faults.deaf >> s->number & 1))
        append(s, &n);
    return cudaSuccess;
}

/* ---- graphs ---- */

cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode)
{
    if (emu_faults.no_capture || capturing ||
        !(capturing = (struct emu_graph *)calloc(1, sizeof(*capturing))))
        return cudaErrorStreamCaptureUnsupported;
    capturing->end = &capturing->first;
    captured = s;
    return cudaSuccess;
}

cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t *g)
{
    *g = capturing;
    capturing = nullptr;
    return (*g)->broken ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}

/* The nodes are the new one's. */
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *x, cudaGraph_t g, unsigned long long)
{
    if (!(*x = (struct emu_graph *)calloc(1, sizeof(**x))))
        return cudaErrorMemoryAllocation;
    (*x)->first = g->first;
    g->first = nullptr;
    emu_count.captures++;
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t x, cudaStream_t s)
{
    chosen();
    if (emu_faults.no_replay)
        return cudaErrorInvalidValue;
    emu_count.graphs++;
    for (struct node *n = x->first; n; n = n->next)
        append(s, n);
    return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
    while (g->first) {
        struct node *n = g->first;

        g->first = n->next;
        node_free(n);
    }
    free(g);
    return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t x)
{
    return cudaGraphDestroy(x);
}

/* ---- memory ---- */

/* As rubbish as a device's, where that costs little; more than the machine has is refused. */
cudaError_t cudaMalloc(void **p, size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);

    emu_count.allocations++;
    *p = nullptr;
    if (outside() != cudaSuccess)
        return cudaErrorStreamCaptureUnsupported;
    if (bytes / page >= (size_t)sysconf(_SC_PHYS_PAGES))
        return cudaErrorMemoryAllocation;
    if (!(*p = aligned_alloc(256, (bytes + 255) / 256 * 256)))
        return cudaErrorMemoryAllocation;
    if (bytes <= 1 << 20)
        memset(*p, 0xff, bytes);
    return cudaSuccess;
}

/* As a card does it: behind all that was queued. */
cudaError_t cudaFree(void *p)
{
    work_off_all();
    free(p);
    return cudaSuccess;
}

/* The machine's, as far as it says. */
cudaError_t cudaMemGetInfo(size_t *left, size_t *all)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);

    chosen();
    *left = (size_t)sysconf(_SC_AVPHYS_PAGES) * page;
    *all = (size_t)sysconf(_SC_PHYS_PAGES) * page;
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **p, size_t bytes)
{
    chosen();
    emu_count.allocations++;
    *p = malloc(bytes);
    return *p ? cudaSuccess : cudaErrorMemoryAllocation;
}

cudaError_t cudaFreeHost(void *p)
{
    free(p);
    return cudaSuccess;
}

struct memcopy {
    char *dst;
    const char *src;
    size_t to, from, width, rows;
};

static void copy_rows(void *arg)
{
    const struct memcopy *c = (const struct memcopy *)arg;

    for (size_t i = 0; i < c->rows; i++)
        memcpy(c->dst + i * c->to, c->src + i * c->from, c->width);
}

cudaError_t cudaMemcpy2DAsync(void *dst, size_t to, const void *src, size_t from, size_t width,
                              size_t rows, cudaMemcpyKind k, cudaStream_t s)
{
    bool down = k == cudaMemcpyDeviceToHost;

    emu_count.up += !capturing && k == cudaMemcpyHostToDevice;
    emu_count.down += !capturing && down;
    on_stream(s, copy_rows, memcopy{(char *)dst, (const char *)src, to, from, width, rows}, down);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t n, cudaMemcpyKind k, cudaStream_t s)
{
    return cudaMemcpy2DAsync(dst, n, src, n, n, 1, k, s);
}

struct fill {
    void *p;
    int v;
    size_t n;
};

static void fill_bytes(void *arg)
{
    const struct fill *f = (const struct fill *)arg;

    memset(f->p, f->v, f->n);
}

cudaError_t cudaMemsetAsync(void *p, int v, size_t n, cudaStream_t s)
{
    on_stream(s, fill_bytes, fill{p, v, n});
    return cudaSuccess;
}

/* ---- cuBLASLt ---- */

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d,
                                              cublasLtMatmulDescAttributes_t what,
                                              const void *value, size_t bytes)
{
    void *to = what == CUBLASLT_MATMUL_DESC_TRANSA     ? (void *)&d->turned
               : what == CUBLASLT_MATMUL_DESC_EPILOGUE ? (void *)&d->end
                                                       : (void *)&d->bias;

    if (bytes != (what == CUBLASLT_MATMUL_DESC_BIAS_POINTER ? sizeof(void *) : 4))
        bug("an attribute of another size");
    memcpy(to, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t what,
                                                    const void *value, size_t bytes)
{
    void *to = what == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES     ? (void *)&p->workspace
               : what == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK ? (void *)&p->schemes
                                                                    : (void *)&p->align[what - 5];

    if (bytes != (what == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES ? sizeof(size_t) : 4))
        bug("an attribute of another size");
    memcpy(to, value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

static bool fits(cublasLtMatmulDesc_t op, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                 cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d)
{
    return op->turned == CUBLAS_OP_T && a->type == b->type && a->rows == b->rows &&
           a->cols == d->rows && b->cols == d->cols && c->rows == d->rows && c->cols == d->cols &&
           c->type == CUDA_R_32F && d->type == CUDA_R_32F && a->ld >= (int64_t)a->rows &&
           b->ld >= (int64_t)b->rows && c->ld >= (int64_t)c->rows && d->ld >= (int64_t)d->rows &&
           (op->end == CUBLASLT_EPILOGUE_BIAS) == (op->bias != NULL);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t op,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t p, int most,
                                              cublasLtMatmulHeuristicResult_t *r, int *n)
{
    bool cut = p->schemes != CUBLASLT_REDUCTION_SCHEME_NONE;

    chosen();
    emu_count.questions++;
    *n = 0;
    if (emu_faults.no_product || (emu_faults.no_bias && op->bias))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    if (most < 1 || !fits(op, a, b, c, d) || p->workspace < 4096)
        bug("a product that nobody asked for");
    r[(*n)++] = {{!cut          ? 1u
                  : b->cols < 4 ? 4u
                  : b->cols < 9 ? 2u
                                : 1u},
                 4096,
                 CUBLAS_STATUS_SUCCESS};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t op,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algo,
                                       cublasLtMatmulHeuristicResult_t *r)
{
    if (!fits(op, a, b, c, d))
        bug("a product that nobody asked for");
    *r = {*algo, 4096, CUBLAS_STATUS_SUCCESS};
    return CUBLAS_STATUS_SUCCESS;
}

struct product {
    cublasLtMatrixLayoutOpaque_t la, lb, lc, ld;
    const void *a, *b;
    const float *c, *bias;
    float *d, by, keep;
    uint64_t parts;
};

/* A part's sum is rounded before the next one's is added. */
static float sum_of(const struct product *p, int64_t i, int64_t j)
{
    uint64_t k = p->la.rows, each = (k + p->parts - 1) / p->parts;
    float all = 0;

    for (uint64_t l0 = 0; l0 < k; l0 += each) {
        float sum = 0;

        for (uint64_t l = l0; l < l0 + each && l < k; l++)
            sum += number(p->a, p->la.type, i * p->la.ld + (int64_t)l) *
                   number(p->b, p->lb.type, j * p->lb.ld + (int64_t)l);
        all += sum;
    }
    return all;
}

static void multiply(void *arg)
{
    const struct product *p = (const struct product *)arg;

    for (int64_t j = 0; j < (int64_t)p->ld.cols; j++)
        for (int64_t i = 0; i < (int64_t)p->ld.rows; i++) {
            float v = p->by * sum_of(p, i, j);

            v = p->keep == 0 ? v : v + p->keep * p->c[j * p->lc.ld + i];
            p->d[j * p->ld.ld + i] = p->bias ? v + p->bias[i] : v;
        }
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t op, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t la, const void *b,
                              cublasLtMatrixLayout_t lb, const void *beta, const void *c,
                              cublasLtMatrixLayout_t lc, void *d, cublasLtMatrixLayout_t ld,
                              const cublasLtMatmulAlgo_t *algo, void *workspace, size_t bytes,
                              cudaStream_t s)
{
    if (!fits(op, la, lb, lc, ld) || (c == d && lc->ld != ld->ld) || !workspace || bytes < 4096)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    emu_count.products += !capturing;
    on_stream(s, multiply,
              product{*la, *lb, *lc, *ld, a, b, (const float *)c, op->bias, (float *)d,
                      *(const float *)alpha, *(const float *)beta, algo->parts});
    return CUBLAS_STATUS_SUCCESS;
}
