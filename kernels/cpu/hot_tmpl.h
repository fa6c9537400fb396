/*
 * hot_tmpl.h: the fast operations, written once over vectors of LANES floats and built once a tier
 * (hot_base.c, hot_avx2.c, hot_avx512.c), each with its own instruction set. The parts follow by
 * subject.
 */
#include "kernels/cpu/hot_vec.h"

#include "kernels/cpu/hot_linear.h"
#if LANES > 4
#include "kernels/cpu/hot_quant.h"
#endif
#include "kernels/cpu/hot_linears.h"

#include "kernels/cpu/hot_attention.h"

#include "kernels/cpu/hot_rows.h"

#include "kernels/cpu/hot_conv.h"

#include "kernels/cpu/hot_codec.h"

static void hot_fill(struct mt_ops *o)
{
    o->linear = linear;
    o->linears = linears;
    o->attention = attention;
    o->span_attention = span_attention;
    o->rms_norm = rms_norm;
    o->layer_norm = layer_norm;
    o->gated = gated;
    o->rope_append = rope_append;
    o->activate = activate;
    o->conv_new = conv_new;
    o->conv = conv;
    o->quantize = quantize;
}
