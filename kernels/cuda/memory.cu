/*
 * memory.cu: the device's memory. Weights lie in large pieces, since a model of experts has some
 * ten thousand matrices and the driver rounds each allocation up to 2 MiB; they come up from the
 * mapped file through two pinned halves that stay, so that one is filled while the other travels,
 * across the matrices too. Rows and KV pools are allocations of their own.
 */
#include "kernels/cuda/cuda.h"

#define CHUNK_BYTES  ((size_t)256 << 20)
#define PINNED_BYTES ((size_t)8 << 20) /* a half */

struct mt_chunk {
    struct mt_chunk *next;
    char *data;
    size_t bytes, used;
    int64_t live; /* matrices in it */
};

void *mt_weight_new(struct mt_cuda *c, struct mt_chunk **in, size_t bytes)
{
    size_t room = (bytes + 255) / 256 * 256;
    size_t want = room > CHUNK_BYTES / 4 ? room : CHUNK_BYTES;
    struct mt_chunk *k = c->chunk;
    cudaError_t rc;
    void *data;

    *in = NULL;
    if (room < bytes)
        return NULL;
    while (k && k->bytes - k->used < room)
        k = k->next;
    if (!k) {
        if (!(k = (struct mt_chunk *)calloc(1, sizeof(*k))))
            return NULL;
        rc = cudaMalloc(&data, want);
        if (rc != cudaSuccess && want > room) /* nearly full: what is asked for may still fit */
            rc = cudaMalloc(&data, want = room);
        if (rc != cudaSuccess) {
            cudaGetLastError();
            free(k);
            return NULL;
        }
        *k = {c->chunk, (char *)data, want, 0, 0};
        c->chunk = k;
    }
    data = k->data + k->used;
    k->used += room;
    k->live++;
    *in = k;
    return data;
}

void mt_weight_free(struct mt_cuda *c, struct mt_chunk *in)
{
    struct mt_chunk **at = &c->chunk;

    if (!in || --in->live)
        return;
    while (*at != in)
        at = &(*at)->next;
    *at = in->next;
    mt_cuda_idle(c); /* it may be in work */
    cudaFree(in->data);
    free(in);
}

bool mt_weight_put(struct mt_cuda *c, char *dst, const char *src, size_t bytes)
{
    cudaStream_t stream = mt_cuda_stream(c);
    bool ok = c->pinned || cudaMallocHost((void **)&c->pinned, 2 * PINNED_BYTES) == cudaSuccess;

    for (int i = 0; i < 2; i++)
        ok = ok && (c->sent[i] ||
                    cudaEventCreateWithFlags(&c->sent[i], cudaEventDisableTiming) == cudaSuccess);
    for (size_t at = 0; ok && at < bytes; at += PINNED_BYTES) {
        size_t n = bytes - at < PINNED_BYTES ? bytes - at : PINNED_BYTES;
        int half = c->half ^= 1;
        char *part = c->pinned + half * PINNED_BYTES;

        if (cudaEventSynchronize(c->sent[half]) != cudaSuccess)
            return false;
        memcpy(part, src + at, n);
        ok = cudaMemcpyAsync(dst + at, part, n, cudaMemcpyHostToDevice, stream) == cudaSuccess &&
             cudaEventRecord(c->sent[half], stream) == cudaSuccess;
    }
    return ok;
}

void mt_weights_done(struct mt_cuda *c)
{
    while (c->chunk) {
        struct mt_chunk *k = c->chunk;

        c->chunk = k->next;
        cudaFree(k->data);
        free(k);
    }
    for (int i = 0; i < 2; i++)
        if (c->sent[i])
            cudaEventDestroy(c->sent[i]);
    if (c->pinned)
        cudaFreeHost(c->pinned);
}

int mt_cuda_alloc(struct mt_cuda *c, void **p, size_t bytes)
{
    if ((c->visible ? cudaMallocHost(p, bytes) : cudaMalloc(p, bytes)) == cudaSuccess)
        return 0;
    cudaGetLastError();
    *p = NULL;
    return -ENOMEM;
}

void mt_cuda_release(struct mt_cuda *c, void *p)
{
    mt_cuda_idle(c); /* it may be in work */
    if (c->visible)
        cudaFreeHost(p);
    else
        cudaFree(p);
}

static int memory(struct mt_backend *be, int64_t *left, int64_t *all)
{
    size_t free_bytes, total;

    cuda_of(be);
    if (cudaMemGetInfo(&free_bytes, &total) != cudaSuccess) {
        cudaGetLastError();
        return -ENODEV;
    }
    *left = (int64_t)free_bytes;
    *all = (int64_t)total;
    return 0;
}

void mt_cuda_memories(struct mt_ops *o)
{
    o->memory = memory;
}
