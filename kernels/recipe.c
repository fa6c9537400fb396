/*
 * recipe.c: matrices that are made of a key: integers and single exactly rounded operations, so
 * that the bits are the same on every machine, in any order and with any number of threads.
 */
#include "kernels/cpu/num.h"

#define PARALLEL_FROM (1 << 18) /* elements; below, starting threads costs more than the work */

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
                h[i] = type == MT_BF16 ? num_to_bf16(v) : num_to_f16(v);
        }
    }
}
