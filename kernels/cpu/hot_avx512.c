/*
 * hot_avx512.c: the fast operations with 16 lanes, for AVX-512 F, BW, VL and DQ. Only this file has
 * their flags; on another machine it is empty.
 */
#include "kernels/cpu/cpu.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#define LANES 16
#include "kernels/cpu/hot_tmpl.h"

void mt_hot_avx512(struct mt_ops *o)
{
    hot_fill(o);
}
#else
void mt_hot_avx512(struct mt_ops *o)
{
    mt_hot_avx2(o);
}
#endif
