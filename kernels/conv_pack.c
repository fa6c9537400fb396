/*
 * conv_pack.c: a streaming convolution's weights in the order in which a window lies in memory.
 */
#include "kernels/conv_pack.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

static void copy(void *dst, int64_t to, const void *src, int64_t from, size_t size)
{
    memcpy((char *)dst + to * (int64_t)size, (const char *)src + from * (int64_t)size, size);
}

/* [out, in, kernel] to [out][kernel][in] */
static void pack(void *dst, const struct mt_bytes *b, int64_t in, int kernel, size_t size)
{
    for (int64_t o = 0, to = 0; o < b->rows; o++)
        for (int64_t k = 0; k < kernel; k++)
            for (int64_t i = 0; i < in; i++, to++)
                copy(dst, to, b->data, (o * in + i) * kernel + k, size);
}

/*
 * [in, out, kernel] to [stride][out][taps][in]: a row of x adds its product with element p + m *
 * stride of the kernel to row p of those m rows of x later, so tap `taps` - 1 is the newest row.
 */
static void pack_transposed(void *dst, const struct mt_bytes *b, int64_t out,
                            const struct mt_conv *c, size_t size)
{
    int64_t taps = c->kernel / c->stride, to = 0;

    for (int64_t p = 0; p < c->stride; p++)
        for (int64_t o = 0; o < out; o++)
            for (int64_t tap = 0; tap < taps; tap++)
                for (int64_t i = 0; i < b->rows; i++, to++)
                    copy(dst, to, b->data,
                         (i * out + o) * c->kernel + p + (taps - 1 - tap) * c->stride, size);
}

int mt_conv_pack(struct mt_bytes *packed, void **own, const struct mt_bytes *b,
                 const struct mt_conv *c)
{
    size_t size = b->type == MT_F32 ? 4 : 2;
    int64_t other;

    *packed = *b;
    *own = NULL;
    if (c->kernel < 1 || c->stride < 1 || b->rows < 1 || b->cols < 1 || b->cols % c->kernel ||
        (c->transposed && c->kernel % c->stride))
        return -EINVAL;
    if (b->type != MT_F32 && b->type != MT_BF16 && b->type != MT_F16)
        return -ENOTSUP;
    if (c->kernel == 1 && !c->transposed)
        return 0;
    other = b->cols / c->kernel;
    if (c->transposed) {
        packed->rows = c->stride * other;
        packed->cols = b->rows * (c->kernel / c->stride);
    }
    if (packed->rows > INT_MAX || packed->cols > INT_MAX)
        return -EINVAL;
    if (!(*own = malloc(mt_mul(mt_mul((size_t)b->rows, (size_t)b->cols), size))))
        return -ENOMEM;
    if (c->transposed)
        pack_transposed(*own, b, other, c, size);
    else
        pack(*own, b, other, c->kernel, size);
    packed->data = *own;
    return 0;
}
