/*
 * arena.c: memory of packed weights: large chunks on huge pages where the system has them (a stream
 * of weights is a quarter faster so), cut from the front. A chunk goes back when the last of its
 * pieces does; until then no piece is used twice, so that all of them are zeros at first.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/cpu/cpu.h"

#define HUGE  ((size_t)2 << 20)
#define LEAST ((size_t)32 << 20) /* bytes of a chunk */
#define LINE  64

struct mt_chunk {
    struct mt_chunk *next;
    char *map, *data; /* as mapped; aligned to HUGE */
    size_t mapped, bytes, used;
    int pieces;
};

static struct mt_chunk *chunk_new(size_t bytes)
{
    long pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGESIZE);
    struct mt_chunk *c = calloc(1, sizeof(*c));

    bytes = (bytes < LEAST ? LEAST : bytes + HUGE - 1) / HUGE * HUGE;
    /* More than the machine has would be granted here, and be paid for by a kill. */
    if (!c || (pages > 0 && size > 0 && bytes / (size_t)size >= (size_t)pages)) {
        free(c);
        return NULL;
    }
    c->bytes = bytes;
    c->mapped = bytes + HUGE;
    c->map = mmap(NULL, c->mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (c->map == MAP_FAILED) {
        free(c);
        return NULL;
    }
    c->data = c->map + (HUGE - (uintptr_t)c->map % HUGE) % HUGE;
    madvise(c->data, c->bytes, MADV_HUGEPAGE); /* refused: then small ones */
    return c;
}

void *mt_arena_get(struct mt_cpu *cpu, size_t bytes, struct mt_chunk **from)
{
    struct mt_chunk *c = cpu->chunks;

    if (bytes > PTRDIFF_MAX / 2)
        return NULL;
    bytes = (bytes + LINE - 1) / LINE * LINE;
    if (!c || c->bytes - c->used < bytes) {
        if (!(c = chunk_new(bytes)))
            return NULL;
        c->next = cpu->chunks;
        cpu->chunks = c;
    }
    c->pieces++;
    c->used += bytes;
    *from = c;
    return c->data + c->used - bytes;
}

void mt_arena_put(struct mt_cpu *cpu, struct mt_chunk *c)
{
    struct mt_chunk **at = &cpu->chunks;

    if (--c->pieces > 0)
        return;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    munmap(c->map, c->mapped);
    free(c);
}
