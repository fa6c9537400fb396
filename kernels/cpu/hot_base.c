/*
 * hot_base.c: the fast operations with 4 lanes and nothing beyond what every x86-64 has: GCC maps
 * the same vectors to whatever another machine offers.
 */
#define LANES 4
#include "kernels/cpu/hot_tmpl.h"

void mt_hot_base(struct mt_ops *o)
{
    hot_fill(o);
}
