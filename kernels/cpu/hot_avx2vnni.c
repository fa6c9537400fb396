/*
 * hot_avx2vnni.c: what is left to gain for linear in 8 lanes, for AVX2 with AVX-VNNI: the rest
 * is hot_avx2.c's. Only this file has their flags; on another machine it is empty.
 */
#include "kernels/cpu/cpu.h"

#if defined(__AVXVNNI__)
#define LANES 8
#include "kernels/cpu/hot_vec.h"

#include "kernels/cpu/hot_linear.h"
#include "kernels/cpu/hot_quant.h"
#include "kernels/cpu/hot_linears.h"

void mt_hot_avx2vnni(struct mt_ops *o)
{
    mt_hot_avx2(o);
    o->linear = linear;
    o->linears = linears;
}
#else
void mt_hot_avx2vnni(struct mt_ops *o)
{
    mt_hot_avx2(o);
}
#endif
