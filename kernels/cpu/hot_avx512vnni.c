/*
 * hot_avx512vnni.c: what is left to gain for linear in 16 lanes, for AVX-512 with VNNI: the rest
 * is hot_avx512.c's. Only this file has their flags; on another machine it is empty.
 */
#include "kernels/cpu/cpu.h"

#if defined(__AVX512VNNI__)
#define LANES 16
#include "kernels/cpu/hot_vec.h"

#include "kernels/cpu/hot_linear.h"
#include "kernels/cpu/hot_quant.h"
#include "kernels/cpu/hot_linears.h"

void mt_hot_avx512vnni(struct mt_ops *o)
{
    mt_hot_avx512(o);
    o->linear = linear;
    o->linears = linears;
}
#else
void mt_hot_avx512vnni(struct mt_ops *o)
{
    mt_hot_avx512(o);
}
#endif
