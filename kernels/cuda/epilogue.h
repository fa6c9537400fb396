/*
 * epilogue.h: what is done with a sum of products before it is an output.
 */
#ifndef MT_CUDA_EPILOGUE_H
#define MT_CUDA_EPILOGUE_H

#include "kernels/cuda/dev.h"

struct epilogue {
    const float *bias; /* or NULL */
    enum mt_act act;
    struct mt_rows residual; /* or MT_NO_ROWS */
};

MT_DEV void finish(struct mt_rows out, const struct epilogue &e, int64_t r, int o, float v)
{
    if (e.bias)
        v += e.bias[o];
    v = dev_act(e.act, v);
    if (e.residual.data)
        v += e.residual.data[r * e.residual.stride + o];
    out.data[r * out.stride + o] = v;
}

#endif
