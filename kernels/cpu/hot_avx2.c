/*
 * hot_avx2.c: the fast operations with 8 lanes, for AVX2, FMA and F16C. Only this file has their
 * flags; on another machine it is empty.
 */
#include "kernels/cpu/cpu.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define LANES 8
#include "kernels/cpu/hot_tmpl.h"

void mt_hot_avx2(struct mt_ops *o)
{
    hot_fill(o);
}
#else
void mt_hot_avx2(struct mt_ops *o)
{
    mt_hot_base(o);
}
#endif
