/*
 * conv_pack.h: the weights of a streaming convolution as a matrix over windows of rows, the same
 * for every backend.
 */
#ifndef MT_CONV_PACK_H
#define MT_CONV_PACK_H

#include "kernels/kernels.h"

/*
 * b as conv_new gets it, to [out, taps * in]: columns [tap][in], the oldest first; transposed: rows
 * [stride][out]. What needs no packing is left where it is: *own is NULL then, else it is to be
 * freed once packed's bytes are no longer needed. -EINVAL, -ENOTSUP, -ENOMEM.
 */
int mt_conv_pack(struct mt_bytes *packed, void **own, const struct mt_bytes *b,
                 const struct mt_conv *c);

#endif
