/*
 * recipe.c: matrices that are made of a key: integers and single exactly rounded operations, so
 * that the bits are the same on every machine, in any order and with any number of threads.
 */
#include "kernels/kernels.h"

#include <string.h>

#define PARALLEL_FROM (1 << 18) /* elements; below, starting threads costs more than the work */

static uint16_t bf16_from(float f)
{
    uint32_t u;

    memcpy(&u, &f, sizeof(u));
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* Nearest even; values here are finite and far below 65504. */
static uint16_t f16_from(float f)
{
    uint32_t u, sign, m;
    int exp, drop;

    memcpy(&u, &f, sizeof(u));
    sign = u >> 16 & 0x8000;
    exp = (int)(u >> 23 & 0xff) - 127 + 15;
    m = u & 0x7fffff;
    drop = 13;
    if (exp <= 0) { /* subnormal: the hidden bit becomes a plain one */
        m |= 0x800000;
        drop = 14 - exp;
        exp = 0;
        if (drop > 25)
            return (uint16_t)sign;
    }
    uint32_t h = (uint32_t)exp << 10 | m >> drop;
    uint32_t rest = m & ((1u << drop) - 1), half = 1u << (drop - 1);

    if (rest > half || (rest == half && (h & 1)))
        h++; /* may carry into the exponent, which is then right */
    return (uint16_t)(sign | h);
}

/* (2u + 1) / 2^16 is uniform in (-1, 1), mean 0. */
void mt_recipe_make(void *dst, enum mt_dtype type, const struct mt_recipe *r, int64_t first,
                    int64_t n)
{
    float *f32 = dst;
    uint16_t *h = dst;

#ifndef __SANITIZE_THREAD__ /* it can't see libgomp's barriers, and would report the loop */
#pragma omp parallel for schedule(static) if (n >= PARALLEL_FROM)
#endif
    for (int64_t w = first / 4; w < (first + n + 3) / 4; w++) {
        uint64_t word = mt_mix64(r->key + (uint64_t)w);

        for (int64_t i = 4 * w - first; i < 4 * w + 4 - first; i++, word >>= 16) {
            float v = (float)(2 * (int)(int16_t)(word & 0xffff) + 1) * r->step;

            v += r->mean;
            if (i < 0 || i >= n)
                continue;
            if (type == MT_F32)
                f32[i] = v;
            else
                h[i] = type == MT_BF16 ? bf16_from(v) : f16_from(v);
        }
    }
}
