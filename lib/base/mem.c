/*
 * mem.c: allocation that can't wrap, and the hashes and mixers behind identities and seeded
 * choices, which must give the same numbers on every machine.
 */
#include "base/base.h"

#include <stdlib.h>
#include <string.h>

#define ALIGN 64 /* a cache line, and the widest vector */

size_t mt_mul(size_t a, size_t b)
{
    size_t r;

    return __builtin_mul_overflow(a, b, &r) ? SIZE_MAX : r;
}

void *mt_alloc(size_t n, size_t size)
{
    size_t bytes = mt_mul(n, size);
    void *p;

    if (bytes > (size_t)PTRDIFF_MAX - ALIGN)
        return NULL;
    bytes = bytes ? (bytes + ALIGN - 1) & ~(size_t)(ALIGN - 1) : ALIGN;
    p = aligned_alloc(ALIGN, bytes);
    if (p)
        memset(p, 0, bytes);
    return p;
}

uint64_t mt_hash(uint64_t h, const void *data, size_t n)
{
    const unsigned char *p = data;

    for (size_t i = 0; i < n; i++)
        h = (h ^ p[i]) * UINT64_C(0x100000001b3);
    return h;
}

uint64_t mt_mix64(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

double mt_unit(uint64_t word)
{
    return (double)(word >> 11) * 0x1p-53;
}
