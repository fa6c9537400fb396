/*
 * backend.cu: the backend's object: opening a device, the ring of small things, batches, and what
 * is done about failures.
 */
#include "kernels/cuda/cuda.h"

#include <stdio.h>

#define RING_BYTES ((size_t)8 << 20)

bool mt_cuda_check(struct mt_cuda *c, cudaError_t rc, const char *what)
{
    if (c->lane->tape.capturing) { /* nothing happens; it will be done without a graph */
        c->lane->tape.refused = c->lane->tape.refused == cudaSuccess ? rc : c->lane->tape.refused;
        return true;
    }
    if (rc != cudaSuccess && !c->failed) {
        c->failed = true;
        fprintf(stderr, "--backend cuda: %s: %s; nothing more is computed\n", what,
                cudaGetErrorString(rc));
    }
    return !c->failed;
}

cudaError_t mt_cuda_here(const struct mt_cuda *c)
{
    static __thread int here = -1; /* all that this process says to the runtime is said here */
    cudaError_t rc = here == c->device ? cudaSuccess : cudaSetDevice(c->device);

    here = rc == cudaSuccess ? c->device : here;
    return rc;
}

/* ---- the ring ---- */

cudaStream_t mt_cuda_stream(struct mt_cuda *c)
{
    mt_tape_end(c);
    return c->lane->stream;
}

static void settle(struct mt_cuda *c, struct mt_lane *l)
{
    if (!c->failed)
        mt_cuda_check(c, cudaStreamSynchronize(l->stream), "the device");
    l->ring_at = 0;
    l->batch.bytes = 0;
    l->n_shared = 0;
}

bool mt_cuda_wait(struct mt_cuda *c)
{
    mt_tape_end(c);
    settle(c, c->lane);
    return !c->failed;
}

bool mt_cuda_idle(struct mt_cuda *c)
{
    mt_tape_end(c);
    for (struct mt_lane *l = c->lanes; l < c->lanes + MT_LANES; l++)
        settle(c, l);
    return !c->failed;
}

static bool ring_new(struct mt_cuda *c, size_t bytes)
{
    void *host = NULL, *dev = NULL;

    if (cudaMallocHost(&host, bytes) != cudaSuccess || cudaMalloc(&dev, bytes) != cudaSuccess) {
        if (host)
            cudaFreeHost(host);
        return false;
    }
    if (c->lane->ring)
        cudaFreeHost(c->lane->ring);
    if (c->lane->ring_dev)
        cudaFree(c->lane->ring_dev);
    c->lane->ring = (char *)host;
    c->lane->ring_dev = (char *)dev;
    c->lane->ring_bytes = bytes;
    return true;
}

bool mt_stage_new(struct mt_cuda *c, struct mt_stage *s, size_t bytes)
{
    size_t room = (bytes + 255) / 256 * 256;

    if (c->failed)
        return false;
    if (c->lane->ring_at + room > c->lane->ring_bytes) {
        if (!mt_cuda_wait(c))
            return false;
        if (room > c->lane->ring_bytes && !ring_new(c, 2 * room)) {
            mt_cuda_check(c, cudaErrorMemoryAllocation, "ids and block tables");
            return false;
        }
    }
    *s = {c->lane->ring + c->lane->ring_at, c->lane->ring_dev + c->lane->ring_at, bytes};
    c->lane->ring_at += room;
    return true;
}

struct copy {
    struct mt_note note;
    void *dst;
    const void *src;
    size_t to, from, bytes, rows;
    cudaMemcpyKind kind;
    const char *what;
};

static void copy_queue(struct mt_cuda *c, const struct mt_note *n)
{
    const struct copy *k = (const struct copy *)n;

    mt_cuda_check(c,
                  k->rows > 1 ? cudaMemcpy2DAsync(k->dst, k->to, k->src, k->from, k->bytes, k->rows,
                                                  k->kind, c->lane->stream)
                              : cudaMemcpyAsync(k->dst, k->src, k->bytes, k->kind, c->lane->stream),
                  k->what);
}

void mt_cuda_copy(struct mt_cuda *c, void *dst, size_t to, const void *src, size_t from,
                  size_t bytes, size_t rows, cudaMemcpyKind kind, const char *what)
{
    struct copy k = {{NULL, 0}, dst, src, to, from, bytes, rows, kind, what};

    mt_note_end(&k, copy_queue);
    mt_tape_note(c, &k.note);
}

void mt_stage_send(struct mt_cuda *c, const struct mt_stage *s)
{
    mt_cuda_copy(c, s->dev, 0, s->host, 0, s->bytes, 1, cudaMemcpyHostToDevice,
                 "a copy to the device");
}

void mt_stage_share(struct mt_cuda *c, struct mt_stage *s)
{
    for (unsigned i = 0; i < MT_CUDA_SHARED && i < c->lane->n_shared; i++) {
        const struct mt_stage *was = &c->lane->shared[i];

        if (was->bytes == s->bytes && !memcmp(was->host, s->host, s->bytes)) {
            c->lane->ring_at = (size_t)(s->host - c->lane->ring);
            *s = *was;
            return;
        }
    }
    mt_stage_send(c, s);
    c->lane->shared[c->lane->n_shared++ % MT_CUDA_SHARED] = *s;
}

void *mt_stage_copy(struct mt_cuda *c, const void *src, size_t bytes)
{
    struct mt_stage s;

    if (!mt_stage_new(c, &s, bytes))
        return NULL;
    memcpy(s.host, src, bytes);
    mt_stage_send(c, &s);
    return s.dev;
}

bool mt_stage_fetch(struct mt_cuda *c, const struct mt_stage *s)
{
    if (c->failed)
        return false;
    mt_cuda_copy(c, s->host, 0, s->dev, 0, s->bytes, 1, cudaMemcpyDeviceToHost,
                 "a copy from the device");
    return mt_cuda_wait(c);
}

/* ---- batches ---- */

int64_t mt_cuda_table(const struct mt_run *r, int p)
{
    const struct mt_kv_view *w = &r->view;
    int64_t last = r->index + r->n - 1, ring;

    if (last < w->sinks)
        return last / p + 1;
    ring = (last - w->sinks) / p + 1;
    return (w->sinks + p - 1) / p + (ring < w->ring_blocks ? ring : w->ring_blocks);
}

void mt_cuda_run(struct mt_drun *d, const struct mt_run *r, const struct mt_kv *kv)
{
    const struct mt_kv_view *w = &r->view;

    memset(d, 0, sizeof(*d)); /* its gaps too: batches are compared */
    d->row = r->row;
    d->n = r->n;
    d->index = r->index;
    d->window = w->window;
    d->reach = w->sink_reach;
    d->moved = w->moved;
    d->sinks = w->sinks;
    d->ring_blocks = w->ring_blocks;
    d->held = w->sinks_held;
    d->see = w->see;
    d->data = kv->data;
    d->type = kv->s.type;
    d->size = (int)mt_dtype_size(kv->s.type);
    d->block_bytes = kv->block_bytes;
    d->layer_bytes = kv->layer_bytes;
    d->half_bytes = kv->half_bytes;
}

enum { RING_MOST = 1 << 16 /* blocks, beyond which a window is as good as none */ };

/* The room of a table: a bounded session's has that of its end from the beginning. */
static int64_t table_room(const struct mt_run *r, int p)
{
    const struct mt_kv_view *w = &r->view;

    return w->ring_blocks > RING_MOST ? mt_cuda_table(r, p)
                                      : (w->sinks + p - 1) / p + (int64_t)w->ring_blocks;
}

/* A batch on the device: this, runs, the run of each row, tables in the order of their runs. */
struct batch_head {
    int64_t runs, rows;
};

/* Is it the one that went up last? Every layer of a step asks: it is compared where it lies. */
static bool same_batch(const struct mt_stage *last, const struct mt_kv *kv,
                       const struct mt_batch *b)
{
    const struct batch_head *head = (const struct batch_head *)last->host;
    const struct mt_drun *run = (const struct mt_drun *)(head + 1);

    if (!last->bytes || head->runs != b->n_runs || head->rows != b->n_rows)
        return false;
    for (int i = 0; i < b->n_runs; i++) {
        const struct mt_run *r = &b->runs[i];
        const char *table = last->host + ((const char *)run[i].blocks - last->dev);
        struct mt_drun d;

        mt_cuda_run(&d, r, r->view.kv ? r->view.kv : kv);
        d.blocks = run[i].blocks;
        if (memcmp(&d, &run[i], sizeof(d)) ||
            memcmp(table, r->view.blocks,
                   (size_t)mt_cuda_table(r, kv->s.block_tokens) * sizeof(int32_t)))
            return false;
    }
    return true;
}

/*
 * Tables grow from step to step: they have the room of their bucket, so that what lies behind them
 * stays where it is.
 */
static bool send_batch(struct mt_cuda *c, const struct mt_kv *kv, const struct mt_batch *b,
                       size_t more)
{
    size_t rows = (size_t)b->n_rows * sizeof(int32_t);
    size_t tables = sizeof(struct batch_head) + (size_t)b->n_runs * sizeof(struct mt_drun) + rows;
    int64_t entries = 0;
    struct mt_drun *run;
    struct mt_stage s;
    int32_t *table;

    for (int i = 0; i < b->n_runs; i++)
        entries += table_room(&b->runs[i], kv->s.block_tokens);
    size_t bytes = tables + (size_t)mt_bucket(entries) * sizeof(*table);
    if (!mt_stage_new(c, &s, bytes + more + 256))
        return false;
    s.bytes = bytes;
    c->lane->ring_at = (size_t)(s.host - c->lane->ring) + (bytes + 255) / 256 * 256;
    *(struct batch_head *)s.host = {b->n_runs, b->n_rows};
    run = (struct mt_drun *)(s.host + sizeof(struct batch_head));
    table = (int32_t *)(s.host + tables);
    for (int i = 0; i < b->n_runs; i++) {
        const struct mt_run *r = &b->runs[i];
        int64_t n = mt_cuda_table(r, kv->s.block_tokens);

        mt_cuda_run(&run[i], r, r->view.kv ? r->view.kv : kv);
        run[i].blocks = (const int32_t *)(s.dev + ((char *)table - s.host));
        memcpy(table, r->view.blocks, (size_t)n * sizeof(*table));
        table += n;
        for (int k = 0; k < r->n; k++)
            ((int32_t *)(run + b->n_runs))[r->row + k] = i;
    }
    memset(table, 0, (size_t)(s.host + bytes - (char *)table));
    mt_stage_send(c, &s);
    c->lane->batch = s;
    return true;
}

bool mt_cuda_batch(struct mt_cuda *c, const struct mt_kv *kv, const struct mt_batch *b, size_t more,
                   struct mt_dbatch *out)
{
    bool room =
        c->lane->ring_at + more + 256 <= c->lane->ring_bytes; /* without a wait, and all anew */

    if (!(room && same_batch(&c->lane->batch, kv, b)) && !send_batch(c, kv, b, more))
        return false;
    out->run = (const struct mt_drun *)(c->lane->batch.dev + sizeof(struct batch_head));
    out->run_of = (const int32_t *)(out->run + b->n_runs);
    return !c->failed;
}

int mt_cuda_grow(struct mt_cuda *c, void **p, size_t *have, size_t want)
{
    void *more;

    if (want <= *have)
        return 0;
    if (cudaMalloc(&more, want) != cudaSuccess) {
        cudaGetLastError();
        return -ENOMEM;
    }
    mt_cuda_idle(c);
    if (*p)
        cudaFree(*p);
    *p = more;
    *have = want;
    return 0;
}

/* ---- the second lane ---- */

/*
 * What the side must not run before, and what must not run before it ends, are events between the
 * two streams: nobody waits on the host, but for the side's ring of the last time.
 */
static void side(struct mt_backend *be, enum mt_side what)
{
    struct mt_cuda *c = cuda_of(be);
    struct mt_lane *all = &c->lanes[MT_LANE_MAIN], *beside = &c->lanes[MT_LANE_SIDE];
    cudaError_t rc = cudaSuccess;

    mt_tape_end(c); /* it begins while the host is busy with the other lane */
    c->lane->cast_of.data = NULL;
    switch (what) {
    case MT_SIDE_FORK:
        rc = cudaEventRecord(all->mark, all->stream);
        break;
    case MT_SIDE_ON:
        settle(c, beside); /* its ring begins where it did, so that its steps come again */
        rc = cudaStreamWaitEvent(beside->stream, all->mark, 0);
        c->lane = beside;
        break;
    case MT_SIDE_OFF:
        rc = cudaEventRecord(beside->mark, beside->stream);
        c->lane = all;
        break;
    case MT_SIDE_JOIN:
        rc = cudaStreamWaitEvent(all->stream, beside->mark, 0);
        break;
    }
    mt_cuda_check(c, rc, "two streams");
}

/* ---- opening ---- */

static void lane_close(struct mt_lane *l)
{
    mt_tape_close(&l->tape);
    if (l->ring)
        cudaFreeHost(l->ring);
    cudaFree(l->ring_dev);
    cudaFree(l->workspace);
    cudaFree(l->cast);
    cudaFree(l->decoded);
    cudaFree(l->laid);
    free(l->spans);
    cudaFree(l->parts);
    if (l->mark)
        cudaEventDestroy(l->mark);
    if (l->stream)
        cudaStreamDestroy(l->stream);
}

static void cuda_free(struct mt_backend *be)
{
    struct mt_cuda *c = cuda_of(be);

    if (!c)
        return;
    for (struct mt_lane *l = c->lanes; l < c->lanes + MT_LANES; l++)
        if (l->stream)
            cudaStreamSynchronize(l->stream);
    while (c->held) {
        struct mt_held *h = c->held;

        c->held = h->next;
        free(h);
    }
    mt_weights_done(c);
    mt_cuda_blas_close(c);
    cudaFree(c->between);
    for (struct mt_lane *l = c->lanes; l < c->lanes + MT_LANES; l++)
        lane_close(l);
    free(c);
}

static int rows_bucket(const struct mt_backend *be, int n)
{
    return ((const struct mt_cuda *)be)->lanes[MT_LANE_MAIN].tape.on ? (int)mt_bucket(n) : n;
}

static int parse(struct mt_cuda *c, const char *how, int *device, struct mt_err *e)
{
    const char *end;

    *device = 0;
    for (; *how; how = *end ? end + 1 : end) {
        end = strchr(how, ',');
        end = end ? end : how + strlen(how);
        if (end - how == 5 && !strncmp(how, "exact", 5)) {
            c->exact = c->deterministic = true;
        } else if (end - how == 13 && !strncmp(how, "deterministic", 13)) {
            c->deterministic = true;
        } else if (end - how == 7 && !strncmp(how, "visible", 7)) {
            c->visible = true;
        } else if (end - how > 7 && !strncmp(how, "device=", 7)) {
            char *stop;
            long n = strtol(how + 7, &stop, 10);

            if (stop != end || n < 0 || n > 63)
                return mt_err_set(e, -EINVAL, "--backend cuda: device: not a number in 0..63");
            *device = (int)n;
        } else {
            return mt_err_set(e, -EINVAL,
                              "--backend cuda: '%.*s' is not exact, deterministic or device=N",
                              (int)(end - how), how);
        }
    }
    return 0;
}

/* An operation that the interface got and this backend did not. */
static bool complete(const struct mt_ops *o)
{
    void *const *slot = (void *const *)o;

    for (size_t i = 0; i < sizeof(*o) / sizeof(*slot); i++)
        if (!slot[i])
            return false;
    return true;
}

/* -ENODEV, -ENOMEM; what there is after a failure goes by lane_close too. */
static int lane_open(struct mt_cuda *c, struct mt_lane *l, int priority)
{
    void *parts = NULL;

    if (cudaStreamCreateWithPriority(&l->stream, cudaStreamNonBlocking, priority) != cudaSuccess ||
        cudaEventCreateWithFlags(&l->mark, cudaEventDisableTiming) != cudaSuccess)
        return -ENODEV;
    if (cudaMalloc(&l->workspace, MT_CUDA_WORKSPACE) != cudaSuccess ||
        cudaMalloc(&parts, MT_CUDA_PARTS * sizeof(float)) != cudaSuccess)
        return -ENOMEM;
    l->parts = (float *)parts;
    c->lane = l;
    return ring_new(c, RING_BYTES) ? mt_tape_open(&l->tape, !c->visible) : -ENOMEM;
}

static int open_device(struct mt_cuda *c, int device, struct mt_err *e)
{
    int n = 0, rc, major = 0, least = 0, most = 0;
    cudaError_t ready = cudaGetDeviceCount(&n);

    if (ready == cudaErrorInsufficientDriver)
        return mt_err_set(e, -ENODEV,
                          "--backend cuda: no NVIDIA driver here, or one older than this build's "
                          "CUDA");
    if (ready != cudaSuccess || n < 1)
        return mt_err_set(e, -ENODEV, "--backend cuda: no CUDA device: %s",
                          ready == cudaSuccess ? "none is there" : cudaGetErrorString(ready));
    if (device >= n)
        return mt_err_set(e, -ENODEV, "--backend cuda: device %d: this machine has %d", device, n);
    c->device = device;
    ready = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (ready == cudaSuccess && major < 8) /* it has no bf16, and this build no code for it */
        return mt_err_set(e, -ENODEV,
                          "--backend cuda: device %d: compute capability %d, 8 is needed", device,
                          major);
    if (ready != cudaSuccess || (ready = mt_cuda_here(c)) != cudaSuccess ||
        (ready = cudaDeviceGetAttribute(&c->processors, cudaDevAttrMultiProcessorCount, device)) !=
            cudaSuccess ||
        (ready = cudaDeviceGetStreamPriorityRange(&least, &most)) != cudaSuccess)
        return mt_err_set(e, -ENODEV, "--backend cuda: device %d: %s", device,
                          cudaGetErrorString(ready));
    /* What decodes goes before what is beside it, wherever both want a processor. */
    if ((rc = lane_open(c, &c->lanes[MT_LANE_SIDE], least)) < 0 ||
        (rc = lane_open(c, &c->lanes[MT_LANE_MAIN], most)) < 0)
        return mt_err_set(e, rc,
                          rc == -ENOMEM ? "--backend cuda: device %d: no memory"
                                        : "--backend cuda: device %d: no stream",
                          device);
    if ((rc = mt_cuda_blas_open(c)) < 0)
        return mt_err_set(e, rc, "--backend cuda: cuBLAS does not start on device %d", device);
    return 0;
}

extern "C" int mt_cuda_open(struct mt_backend **out, const char *how, struct mt_err *e)
{
    int device, rc;
    struct mt_cuda *c = (struct mt_cuda *)calloc(1, sizeof(*c));

    *out = NULL;
    if (!c)
        return mt_err_set(e, -ENOMEM, "--backend cuda: no memory");
    if ((rc = parse(c, how, &device, e)) < 0) {
        free(c);
        return rc;
    }
    c->be.ops = &c->ops;
    c->ops.name = c->exact ? "cuda-exact" : "cuda";
    c->ops.free = cuda_free;
    c->ops.rows_bucket = rows_bucket;
    c->ops.side = side;
    mt_cuda_memories(&c->ops);
    mt_cuda_objects(&c->ops);
    mt_cuda_norms(&c->ops);
    mt_cuda_linears(&c->ops);
    mt_cuda_ropes(&c->ops);
    mt_cuda_attentions(&c->ops);
    mt_cuda_masses(&c->ops);
    mt_cuda_encoders(&c->ops);
    mt_cuda_codecs(&c->ops);
    mt_cuda_mels(&c->ops);
    mt_cuda_mixtures(&c->ops);
    mt_cuda_samples(&c->ops);
    if (!complete(&c->ops)) {
        free(c);
        return mt_err_set(e, -ENOTSUP, "--backend cuda: it lacks an operation of this build");
    }
    if ((rc = open_device(c, device, e)) < 0) {
        cuda_free(&c->be);
        return rc;
    }
    *out = &c->be;
    return 0;
}

extern "C" __attribute__((visibility("default"))) const struct mt_cuda_plugin mt_cuda_plugin;
const struct mt_cuda_plugin mt_cuda_plugin = {MT_VERSION, sizeof(struct mt_ops), mt_cuda_open};
