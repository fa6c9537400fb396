/*
 * pool.c: the blocks of KV memory by number: a stack of free ids. Taking is all or nothing.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"

struct mt_pool {
    int64_t size, n_free;
    int32_t *free; /* the last one is taken next */
};

int mt_pool_new(struct mt_pool **out, int64_t n_blocks)
{
    struct mt_pool *p = calloc(1, sizeof(*p));

    *out = NULL;
    if (!p || n_blocks < 0 || n_blocks > INT32_MAX ||
        !(p->free = malloc(mt_mul((size_t)n_blocks + 1, sizeof(*p->free))))) {
        free(p);
        return -ENOMEM;
    }
    p->size = p->n_free = n_blocks;
    for (int64_t i = 0; i < n_blocks; i++) /* block 0 is taken first */
        p->free[i] = (int32_t)(n_blocks - 1 - i);
    *out = p;
    return 0;
}

void mt_pool_free(struct mt_pool **p)
{
    if (*p)
        free((*p)->free);
    free(*p);
    *p = NULL;
}

int mt_pool_take(struct mt_pool *p, int32_t *ids, int64_t n)
{
    if (n > p->n_free)
        return -ENOSPC;
    for (int64_t i = 0; i < n; i++)
        ids[i] = p->free[--p->n_free];
    return 0;
}

void mt_pool_give(struct mt_pool *p, const int32_t *ids, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        p->free[p->n_free++] = ids[i];
}

int64_t mt_pool_used(const struct mt_pool *p)
{
    return p->size - p->n_free;
}

int64_t mt_pool_size(const struct mt_pool *p)
{
    return p->size;
}
