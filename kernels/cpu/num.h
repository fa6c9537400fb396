/*
 * num.h: bf16, f16, int8 and fp8 to and from f32, rounding to nearest even, exact and the same in
 * every tier; blocks to f32. All static inline: a copy built for one CPU tier is never linked into
 * another. Bytes may lie at any alignment.
 */
#ifndef MT_CPU_NUM_H
#define MT_CPU_NUM_H

#include "kernels/kernels.h"

#include <float.h>
#include <math.h>
#include <string.h>

static inline uint32_t num_bits(float f)
{
    uint32_t u;

    memcpy(&u, &f, sizeof(u));
    return u;
}

static inline float num_float(uint32_t u)
{
    float f;

    memcpy(&f, &u, sizeof(f));
    return f;
}

static inline float num_from_bf16(uint16_t h)
{
    return num_float((uint32_t)h << 16);
}

static inline uint16_t num_to_bf16(float f)
{
    uint32_t u = num_bits(f);

    if ((u & 0x7fffffff) > 0x7f800000) /* NaN stays NaN, made quiet */
        return (uint16_t)(u >> 16 | 0x40);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

/* The 15 bits below the sign, read as an f32, are the value times 2^-112, subnormals included. */
static inline float num_from_f16(uint16_t h)
{
    uint32_t em = h & 0x7fffu;
    float f = num_float(em << 13) * 0x1p112f;

    if (em >= 0x7c00) /* infinity, NaN */
        f = num_float(0x7f800000 | em << 13);
    return num_float(num_bits(f) | (uint32_t)(h & 0x8000) << 16);
}

static inline uint16_t num_to_f16(float f)
{
    uint32_t u = num_bits(f), sign = u >> 16 & 0x8000, a = u & 0x7fffffff;

    if (a > 0x7f800000)
        return (uint16_t)(sign | 0x7e00);
    if (a >= 0x477ff000) /* 65520 and more rounds to infinity */
        return (uint16_t)(sign | 0x7c00);
    if (a < 0x38800000) /* subnormal: adding 0.5 rounds to a multiple of 2^-24, to nearest even */
        return (uint16_t)(sign | (num_bits(num_float(a) + 0.5f) - 0x3f000000));
    a += 0xfff + (a >> 13 & 1);
    return (uint16_t)(sign | (a - 0x38000000) >> 13);
}

/* e4m3: as f16, times 2^-120. */
static inline float num_from_e4m3(uint8_t b)
{
    float f = num_float((uint32_t)(b & 0x7f) << 20) * 0x1p120f;

    return num_float(num_bits(f) | (uint32_t)(b & 0x80) << 24);
}

/* What is above 448 becomes that: there is no infinity. */
static inline uint8_t num_to_e4m3(float f)
{
    uint32_t u = num_bits(f), sign = u >> 24 & 0x80, a = u & 0x7fffffff;

    if (a < 0x3c800000) /* subnormal: a multiple of 2^-9, to nearest even */
        return (uint8_t)(sign | (num_bits(num_float(a) + 0x1p14f) - 0x46800000));
    a += 0x7ffff + (a >> 20 & 1);
    a = (a - 0x3c000000) >> 20;
    return (uint8_t)(sign | (a < 0x7e ? a : 0x7e));
}

/* The reference of an activation. */
static inline double num_act(enum mt_act act, double v)
{
    switch (act) {
    case MT_ACT_NONE:
        return v;
    case MT_ACT_GELU:
        return 0.5 * v * (1 + erf(v * M_SQRT1_2));
    case MT_ACT_RELU:
        return v < 0 ? 0 : v;
    case MT_ACT_SILU:
        return v / (1 + exp(-v));
    case MT_ACT_ELU:
        return v < 0 ? expm1(v) : v;
    }
    return v;
}

/* The same of the types with blocks, quant.c: bit for bit what ggml's dequantize_row_* give. */
void mt_quant_decode(float *dst, enum mt_dtype t, const void *row, int64_t first, int64_t n);

/* n elements of a row of type t (none with scales) from element `first` on. */
static inline void num_decode(float *dst, enum mt_dtype t, const void *row, int64_t first,
                              int64_t n)
{
    if (t > MT_FP8) {
        mt_quant_decode(dst, t, row, first, n);
        return;
    }
    const char *p = (const char *)row + first * (t == MT_F32 ? 4 : 2);
    uint16_t h;

    if (t == MT_F32) {
        memcpy(dst, p, (size_t)n * 4);
    } else if (t == MT_BF16) {
        for (int64_t i = 0; i < n; i++) {
            memcpy(&h, p + 2 * (int64_t)i, 2);
            dst[i] = num_from_bf16(h);
        }
    } else {
        for (int64_t i = 0; i < n; i++) {
            memcpy(&h, p + 2 * (int64_t)i, 2);
            dst[i] = num_from_f16(h);
        }
    }
}

/*
 * One head of one token into the cache. INT8: the scale is maxabs / 127, so the error is at most
 * half a scale; FP8: maxabs / 448, the error a 16th of a number, or 2^-10 scales of a tiny one.
 * A number that is not finite poisons the token's head with NaN instead of vanishing.
 */
static inline void num_encode(void *dst, float *scale, enum mt_dtype t, const float *x, int n)
{
    char *p = dst;
    uint32_t max = 0, a;
    float by;
    uint16_t h;

    switch (t) {
    case MT_F32:
        memcpy(p, x, (size_t)n * 4);
        return;
    case MT_BF16:
        for (int i = 0; i < n; i++) {
            h = num_to_bf16(x[i]);
            memcpy(p + 2 * (int64_t)i, &h, 2);
        }
        return;
    case MT_F16:
        for (int i = 0; i < n; i++) {
            h = num_to_f16(x[i]);
            memcpy(p + 2 * (int64_t)i, &h, 2);
        }
        return;
    case MT_INT8:
    case MT_FP8:
        for (int i = 0; i < n; i++) { /* as integers: what is not finite is above all that is */
            a = num_bits(x[i]) & 0x7fffffff;
            max = a > max ? a : max;
        }
        *scale = max < 0x7f800000 ? num_float(max) / (t == MT_INT8 ? 127 : 448) : NAN;
        by = *scale;
        if (!(by >= FLT_MIN)) { /* below 1.5e-36 a subnormal scale would be too coarse: all 0 */
            *scale *= 0;
            by = INFINITY;
        }
        for (int i = 0; i < n && t == MT_FP8; i++)
            p[i] = (char)num_to_e4m3(x[i] / by);
        for (int i = 0; i < n && t == MT_INT8; i++)
            /* adding 1.5 * 2^23 rounds to an integer, to nearest even */
            p[i] = (char)(int32_t)(num_bits(x[i] / by + 0x1.8p23f) - 0x4b400000);
        return;
    default: /* blocks hold weights only */
        return;
    }
}

/* One head of one token out of the cache. */
static inline void num_decode_kv(float *dst, enum mt_dtype t, const void *src, float scale, int n)
{
    const signed char *p = src;

    if (!mt_dtype_scaled(t)) {
        num_decode(dst, t, src, 0, n);
        return;
    }
    for (int i = 0; i < n; i++)
        dst[i] = (t == MT_INT8 ? (float)p[i] : num_from_e4m3((uint8_t)p[i])) * scale;
}

#endif
