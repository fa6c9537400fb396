/*
 * dev.h: what kernels share: numbers of all types to and from f32, exactly the CPU's; activations;
 * sums and maxima of a warp in one order. The host emulation sees the same text.
 */
#ifndef MT_CUDA_DEV_H
#define MT_CUDA_DEV_H

#include "kernels/cuda/cuda.h"

#define MT_DEV static __device__ __forceinline__

#define MT_FULL 0xffffffffu

#ifdef MT_CUDA_EMU
#define MT_SHARED_BYTES(p) char *p = (char *)emu_shared()
#else
#define MT_SHARED_BYTES(p) extern __shared__ __align__(16) char p[]
#endif

/* mt_mix64 of base.h. */
MT_DEV uint64_t dev_mix64(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

/* ---- numbers ---- */

/* One rounding on a device; two on the host, whose fma is a call where the machine is not known. */
MT_DEV float dev_fma(float a, float b, float c)
{
#ifdef MT_CUDA_EMU
    return a * b + c;
#else
    return fmaf(a, b, c);
#endif
}

MT_DEV float dev_from_bf16(uint16_t h)
{
    return __uint_as_float((unsigned)h << 16);
}

MT_DEV uint16_t dev_to_bf16(float f)
{
    unsigned u = __float_as_uint(f);

    if ((u & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* The 15 bits below the sign, read as an f32, are the value times 2^-112, subnormals included. */
MT_DEV float dev_from_f16(uint16_t h)
{
    unsigned em = h & 0x7fffu;
    float f = __fmul_rn(__uint_as_float(em << 13), 0x1p112f);

    if (em >= 0x7c00)
        f = __uint_as_float(0x7f800000u | em << 13);
    return __uint_as_float(__float_as_uint(f) | (unsigned)(h & 0x8000) << 16);
}

MT_DEV uint16_t dev_to_f16(float f)
{
    unsigned u = __float_as_uint(f), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;

    if (a > 0x7f800000)
        return (uint16_t)(sign | 0x7e00);
    if (a >= 0x477ff000)
        return (uint16_t)(sign | 0x7c00);
    if (a < 0x38800000)
        return (uint16_t)(sign |
                          (__float_as_uint(__fadd_rn(__uint_as_float(a), 0.5f)) - 0x3f000000));
    a += 0xfff + (a >> 13 & 1);
    return (uint16_t)(sign | (a - 0x38000000) >> 13);
}

/* num.h's: e4m3. */
MT_DEV float dev_from_e4m3(unsigned b)
{
    float f = __fmul_rn(__uint_as_float((b & 0x7f) << 20), 0x1p120f);

    return __uint_as_float(__float_as_uint(f) | (b & 0x80) << 24);
}

MT_DEV unsigned dev_to_e4m3(float f)
{
    unsigned u = __float_as_uint(f), sign = u >> 24 & 0x80, a = u & 0x7fffffff;

    if (a < 0x3c800000)
        return sign | (__float_as_uint(__fadd_rn(__uint_as_float(a), 0x1p14f)) - 0x46800000);
    a += 0x7ffff + (a >> 20 & 1);
    a = (a - 0x3c000000) >> 20;
    return sign | (a < 0x7e ? a : 0x7e);
}

/* One byte of a cache of bytes, without its scale. */
MT_DEV float dev_from_byte(int type, unsigned b)
{
    return type == MT_INT8 ? (float)(signed char)b : dev_from_e4m3(b);
}

MT_DEV bool dev_scaled(int type)
{
    return type == MT_INT8 || type == MT_FP8;
}

MT_DEV float dev_half_at(const unsigned char *p)
{
    return dev_from_f16((uint16_t)(p[0] | p[1] << 8));
}

/*
 * Q4_K: what the numbers of 32 elements, p of 8, are multiplied with and what is taken away then.
 * head: both scales of the 256, and 8 scales and minima of 6 bits.
 */
MT_DEV void dev_q4_scale(float *by, float *least, const uint4 &head, int p)
{
    int at = 8 * (p & 3);
    unsigned a = head.y >> at, b = head.z >> at, c = head.w >> at;
    unsigned scale = p < 4 ? a & 63 : (c & 15) | (a >> 6 & 3) << 4;
    unsigned min = p < 4 ? b & 63 : (c >> 4 & 15) | (b >> 6 & 3) << 4;

    *by = __fmul_rn(dev_from_f16((uint16_t)head.x), (float)scale);
    *least = __fmul_rn(dev_from_f16((uint16_t)(head.x >> 16)), (float)min);
}

/* Element i of a block of 32 or 256, the CPU's roundings one by one: quant.c has the formats. */
MT_DEV float dev_block_at(int type, const unsigned char *b, int i)
{
    int j = i & 15, high = i >> 4, v;

    switch (type) {
    case MT_Q4_0:
        return __fmul_rn((float)((b[2 + j] >> 4 * high & 15) - 8), dev_half_at(b));
    case MT_Q4_1:
        return __fadd_rn(__fmul_rn((float)(b[4 + j] >> 4 * high & 15), dev_half_at(b)),
                         dev_half_at(b + 2));
    case MT_Q5_0:
        v = (b[6 + j] >> 4 * high & 15) | (b[2 + i / 8] >> i % 8 & 1) << 4;
        return __fmul_rn((float)(v - 16), dev_half_at(b));
    case MT_Q5_1:
        v = (b[8 + j] >> 4 * high & 15) | (b[4 + i / 8] >> i % 8 & 1) << 4;
        return __fadd_rn(__fmul_rn((float)v, dev_half_at(b)), dev_half_at(b + 2));
    case MT_Q8_0:
        return __fmul_rn((float)(signed char)b[2 + i], dev_half_at(b));
    case MT_Q4_K:
    case MT_Q5_K: {
        const unsigned char *s = b + 4, *q = b + (type == MT_Q4_K ? 16 : 48);
        int p = i >> 5, l = i & 31, scale, min;

        if (p < 4) {
            scale = s[p] & 63;
            min = s[p + 4] & 63;
        } else {
            scale = (s[p + 4] & 15) | s[p - 4] >> 6 << 4;
            min = s[p + 4] >> 4 | s[p] >> 6 << 4;
        }
        v = q[p / 2 * 32 + l] >> 4 * (p & 1) & 15;
        if (type == MT_Q5_K)
            v |= (b[16 + l] >> p & 1) << 4;
        return __fadd_rn(__fmul_rn(__fmul_rn(dev_half_at(b), (float)scale), (float)v),
                         -__fmul_rn(dev_half_at(b + 2), (float)min));
    }
    case MT_Q6_K: {
        int at = i >> 7, p = i >> 5 & 3, k = i & 31;
        const unsigned char *l = b + 64 * at, *h = b + 128 + 32 * at;
        signed char sc = (signed char)b[192 + 8 * at + 2 * p + (k >> 4)];
        int low = p < 2 ? l[p * 32 + k] & 15 : l[(p - 2) * 32 + k] >> 4;

        v = (low | (h[k] >> 2 * p & 3) << 4) - 32;
        return __fmul_rn(__fmul_rn(dev_half_at(b + 208), (float)sc), (float)v);
    }
    default:
        return 0;
    }
}

/* Element i of a weight's row. */
MT_DEV float dev_weight_at(int type, const unsigned char *row, int i)
{
    switch (type) {
    case MT_F32:
        return ((const float *)row)[i];
    case MT_F16:
        return dev_from_f16(((const uint16_t *)row)[i]);
    case MT_BF16:
        return dev_from_bf16(((const uint16_t *)row)[i]);
    case MT_Q4_0:
        return dev_block_at(type, row + (int64_t)(i / 32) * 18, i % 32);
    case MT_Q4_1:
        return dev_block_at(type, row + (int64_t)(i / 32) * 20, i % 32);
    case MT_Q5_0:
        return dev_block_at(type, row + (int64_t)(i / 32) * 22, i % 32);
    case MT_Q5_1:
        return dev_block_at(type, row + (int64_t)(i / 32) * 24, i % 32);
    case MT_Q8_0:
        return dev_block_at(type, row + (int64_t)(i / 32) * 34, i % 32);
    case MT_Q8_APART:
        row += (int64_t)(i / 256) * 272;
        return __fmul_rn((float)(signed char)row[i % 256],
                         dev_half_at(row + 256 + i % 256 / 32 * 2));
    case MT_Q4_K:
        return dev_block_at(type, row + (int64_t)(i / 256) * 144, i % 256);
    case MT_Q5_K:
        return dev_block_at(type, row + (int64_t)(i / 256) * 176, i % 256);
    case MT_Q6_K:
        return dev_block_at(type, row + (int64_t)(i / 256) * 210, i % 256);
    default:
        return 0;
    }
}

MT_DEV float dev_act(enum mt_act act, float v)
{
    switch (act) {
    case MT_ACT_NONE:
        return v;
    case MT_ACT_GELU:
        return 0.5f * v * (1 + erff(v * 0.70710678118654752f));
    case MT_ACT_RELU:
        return v < 0 ? 0 : v;
    case MT_ACT_SILU:
        return v / (1 + expf(-v));
    case MT_ACT_ELU:
        return v < 0 ? expm1f(v) : v;
    }
    return v;
}

/* ---- a warp ---- */

MT_DEV unsigned dev_lane(void)
{
    return threadIdx.x & 31; /* blocks are a multiple of 32 wide */
}

template <class T> MT_DEV T warp_sum(T v)
{
    for (int m = 16; m; m >>= 1)
        v += __shfl_xor_sync(MT_FULL, v, m);
    return v;
}

/* What a warp multiplies n numbers with to norm them: 1 / sqrt(mean square + eps). */
MT_DEV float warp_norm(const float *a, int n, float eps)
{
    float sum = 0;

    for (int i = (int)dev_lane(); i < n; i += 32)
        sum = dev_fma(a[i], a[i], sum);
    return 1 / sqrtf(warp_sum(sum) / (float)n + eps);
}

MT_DEV float warp_max(float v)
{
    for (int m = 16; m; m >>= 1)
        v = fmaxf(v, __shfl_xor_sync(MT_FULL, v, m));
    return v;
}

#endif
