/*
 * hot_vec.h: vectors of LANES floats for hot_tmpl.h: loads from any alignment and storage type,
 * sums over lanes in one fixed tree, exp and the normal distribution function. GCC vector
 * extensions; an intrinsic only where C has no word for the instruction (fused multiply-add, f16)
 * or GCC 12 builds the widening of 16 lanes out of halves.
 *
 * Included by one file per tier, which defines LANES. Everything is static: no copy for one CPU can
 * be linked into another's code.
 */
#include "kernels/cpu/cpu.h"

#include <errno.h>
#include <stdlib.h>

#if LANES > 4
#include <immintrin.h>
#endif

#define FOLD static inline __attribute__((always_inline))

typedef float vf __attribute__((vector_size(4 * LANES)));
typedef int32_t vi __attribute__((vector_size(4 * LANES)));
typedef uint32_t vu __attribute__((vector_size(4 * LANES)));
typedef uint16_t vh __attribute__((vector_size(2 * LANES)));
typedef signed char vb __attribute__((vector_size(LANES)));

FOLD vf vload(const void *p)
{
    vf v;

    memcpy(&v, p, sizeof(v));
    return v;
}

FOLD void vstore(float *p, vf v)
{
    memcpy(p, &v, sizeof(v));
}

/* The first n elements, zeros behind: nothing past them is read, and zeros add nothing. */
FOLD vf vload_part(const float *p, int64_t n)
{
    float t[LANES] = {0};

    memcpy(t, p, (size_t)n * sizeof(float));
    return vload(t);
}

FOLD void vstore_part(float *p, vf v, int64_t n)
{
    float t[LANES];

    vstore(t, v);
    memcpy(p, t, (size_t)n * sizeof(float));
}

FOLD vf vsplat(float x)
{
    return x - (vf){0}; /* not +: that would lose the sign of -0 */
}

/* a * b + c, fused where the tier has it: spelled out, so that every copy of a sum rounds alike. */
FOLD vf vfma(vf a, vf b, vf c)
{
#if LANES == 16
    return (vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif LANES == 8
    return (vf)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

FOLD vf vselect(vi mask, vf a, vf b)
{
    return (vf)((mask & (vi)a) | (~mask & (vi)b));
}

/* a > b ? a : b, the instruction's own meaning. */
FOLD vf vmax(vf a, vf b)
{
#if LANES == 16
    return (vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif LANES == 8
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return vselect(a > b, a, b);
#endif
}

/* ---- storage types ---- */

FOLD vf vfrom_bf16(const void *p)
{
#if LANES == 16
    return (vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p)), 16);
#elif LANES == 8
    return (vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(p)), 16);
#else
    vh h;

    memcpy(&h, p, sizeof(h));
    return (vf)(__builtin_convertvector(h, vu) << 16);
#endif
}

FOLD vf vfrom_f16(const void *p)
{
#if LANES == 16
    return (vf)_mm512_cvtph_ps(_mm256_loadu_si256(p));
#elif LANES == 8
    return (vf)_mm256_cvtph_ps(_mm_loadu_si128(p));
#else
    vh h; /* as num_from_f16 */
    vu em, sign;
    vf f;

    memcpy(&h, p, sizeof(h));
    em = __builtin_convertvector(h, vu);
    sign = (em & 0x8000) << 16;
    em = (em & 0x7fff) << 13;
    f = (vf)em * 0x1p112f;
    f = vselect((vi)(em >= 0x7c00u << 13), (vf)(em | 0x7f800000), f);
    return (vf)((vu)f | sign);
#endif
}

/* LANES signed bytes. */
FOLD vi vbytes(const void *p)
{
#if LANES == 16
    return (vi)_mm512_cvtepi8_epi32(_mm_loadu_si128(p));
#elif LANES == 8
    return (vi)_mm256_cvtepi8_epi32(_mm_loadl_epi64(p));
#else
    vb b;

    memcpy(&b, p, sizeof(b));
    return __builtin_convertvector(b, vi);
#endif
}

FOLD vf vfrom_int8(const void *p)
{
    return __builtin_convertvector(vbytes(p), vf);
}

FOLD vf vfrom_e4m3(const void *p) /* as num_from_e4m3 */
{
    vu u = (vu)vbytes(p);

    return (vf)((vu)((vf)((u & 0x7f) << 20) * 0x1p120f) | (u & 0x80) << 24);
}

FOLD int64_t type_bytes(enum mt_dtype t)
{
    return t == MT_F32 ? 4 : mt_dtype_scaled(t) ? 1 : 2;
}

/* LANES elements of a row from column k on; t is a constant where this is inlined. */
FOLD vf vfrom(enum mt_dtype t, const char *row, int64_t k)
{
    const char *p = row + k * type_bytes(t);

    return t == MT_F32    ? vload(p)
           : t == MT_BF16 ? vfrom_bf16(p)
           : t == MT_F16  ? vfrom_f16(p)
           : t == MT_INT8 ? vfrom_int8(p)
                          : vfrom_e4m3(p);
}

/* The same of the last n < LANES columns. */
FOLD vf vfrom_part(enum mt_dtype t, const char *row, int64_t k, int64_t n)
{
    char b[4 * LANES] = {0};

    memcpy(b, row + k * type_bytes(t), (size_t)(n * type_bytes(t)));
    return vfrom(t, b, 0);
}

/* ---- over lanes ---- */

#if LANES == 16
#define PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#define UNPACK_LO(a, b) PICK(a, b, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29)
#define UNPACK_HI(a, b) PICK(a, b, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15, 31)
#define PAIRS_LO(a, b)  PICK(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29)
#define PAIRS_HI(a, b)  PICK(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31)
#define HALF_LO(a, b)   PICK(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23)
#define HALF_HI(a, b)   PICK(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31)
#define EVEN_4(a, b)    PICK(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27)
#define ODD_4(a, b)     PICK(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31)
#define TURN_8(a)       PICK(a, a, 8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7)
#define TURN_4(a)       PICK(a, a, 4, 5, 6, 7, 0, 1, 2, 3, 12, 13, 14, 15, 8, 9, 10, 11)
#define TURN_2(a)       PICK(a, a, 2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13)
#define TURN_1(a)       PICK(a, a, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14)
#elif LANES == 8
#define PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#define UNPACK_LO(a, b) PICK(a, b, 0, 8, 1, 9, 4, 12, 5, 13)
#define UNPACK_HI(a, b) PICK(a, b, 2, 10, 3, 11, 6, 14, 7, 15)
#define PAIRS_LO(a, b)  PICK(a, b, 0, 1, 8, 9, 4, 5, 12, 13)
#define PAIRS_HI(a, b)  PICK(a, b, 2, 3, 10, 11, 6, 7, 14, 15)
#define HALF_LO(a, b)   PICK(a, b, 0, 1, 2, 3, 8, 9, 10, 11)
#define HALF_HI(a, b)   PICK(a, b, 4, 5, 6, 7, 12, 13, 14, 15)
#define TURN_4(a)       PICK(a, a, 4, 5, 6, 7, 0, 1, 2, 3)
#define TURN_2(a)       PICK(a, a, 2, 3, 0, 1, 6, 7, 4, 5)
#define TURN_1(a)       PICK(a, a, 1, 0, 3, 2, 5, 4, 7, 6)
#else
#define PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#define UNPACK_LO(a, b) PICK(a, b, 0, 4, 1, 5)
#define UNPACK_HI(a, b) PICK(a, b, 2, 6, 3, 7)
#define PAIRS_LO(a, b)  PICK(a, b, 0, 1, 4, 5)
#define PAIRS_HI(a, b)  PICK(a, b, 2, 3, 6, 7)
#define TURN_2(a)       PICK(a, a, 2, 3, 0, 1)
#define TURN_1(a)       PICK(a, a, 1, 0, 3, 2)
#endif

/* Four vectors to one: in each 128-bit part the four sums of that part. */
FOLD vf vsum4(const vf *a)
{
    vf ab = UNPACK_LO(a[0], a[1]) + UNPACK_HI(a[0], a[1]);
    vf cd = UNPACK_LO(a[2], a[3]) + UNPACK_HI(a[2], a[3]);

    return PAIRS_LO(ab, cd) + PAIRS_HI(ab, cd);
}

/* Lane i of the result is the sum of a[i]'s lanes: one tree, whichever i. */
FOLD vf vsums(const vf a[LANES])
{
#if LANES == 16
    vf p = vsum4(a), q = vsum4(a + 4), r = vsum4(a + 8), s = vsum4(a + 12);
    vf pq = HALF_LO(p, q) + HALF_HI(p, q), rs = HALF_LO(r, s) + HALF_HI(r, s);

    return EVEN_4(pq, rs) + ODD_4(pq, rs);
#elif LANES == 8
    vf p = vsum4(a), q = vsum4(a + 4);

    return HALF_LO(p, q) + HALF_HI(p, q);
#else
    return vsum4(a);
#endif
}

FOLD float vsum(vf v)
{
#if LANES == 16
    v += TURN_8(v);
#endif
#if LANES >= 8
    v += TURN_4(v);
#endif
    v += TURN_2(v);
    v += TURN_1(v);
    return v[0];
}

FOLD float vtop(vf v)
{
#if LANES == 16
    v = vmax(v, TURN_8(v));
#endif
#if LANES >= 8
    v = vmax(v, TURN_4(v));
#endif
    v = vmax(v, TURN_2(v));
    v = vmax(v, TURN_1(v));
    return v[0];
}

/* ---- functions ---- */

/*
 * e^x within 2 ulp: x = n ln 2 + r, a polynomial for e^r (Cephes expf), n into the exponent. Below
 * -87.33, where the result would be subnormal, 0; NaN stays NaN.
 */
FOLD vf vexp(vf x)
{
    const vf magic = vsplat(0x1.8p23f); /* adding it rounds to an integer, to nearest */
    vf n, r, p;

    n = vfma(x, vsplat(1.44269504f), magic) - magic;
    r = vfma(n, vsplat(-0.693359375f), x);
    r = vfma(n, vsplat(2.12194440e-4f), r);
    p = vfma(r, vsplat(1.9875691500e-4f), vsplat(1.3981999507e-3f));
    p = vfma(p, r, vsplat(8.3334519073e-3f));
    p = vfma(p, r, vsplat(4.1665795894e-2f));
    p = vfma(p, r, vsplat(1.6666665459e-1f));
    p = vfma(p, r, vsplat(5.0000001201e-1f));
    p = vfma(p, r * r, r) + 1.0f;
#if LANES == 16
    p = (vf)_mm512_scalef_ps((__m512)p, (__m512)n);
    return (vf)_mm512_maskz_mov_ps(
        _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-87.33f), _CMP_NLT_UQ), (__m512)p);
#else
    p = (vf)((vu)p + ((vu)(n + magic) << 23)); /* n stands in magic's low bits */
    p = vselect(x < -87.33f, vsplat(0), p);
    p = vselect(x > 88.72283f, vsplat(INFINITY), p);
    return vselect(x == x, p, x);
#endif
}

FOLD vf vsilu(vf x)
{
    return x / (1.0f + vexp(-x));
}

/*
 * x times the normal distribution function, as 1 + erf(x / sqrt 2) over 2. With t = |x| / sqrt 2:
 * below 0.92 erf t / t is a polynomial in t^2 (error 5e-10); up to 4 erfc t is exp of a polynomial
 * (3e-9), so that the negative side does not cancel; beyond it erfc t < 2e-8 is 0. Chebyshev fits
 * of our own.
 */
FOLD vf vgelu(vf x)
{
    vf t = (vf)((vi)x & 0x7fffffff) * 0.707106781f, s = t * t, u, p, small, far, tail;

    p = vfma(s, vsplat(8.31687972e-5f), vsplat(-8.13044467e-4f));
    p = vfma(p, s, vsplat(5.19998925e-3f));
    p = vfma(p, s, vsplat(-2.68589974e-2f));
    p = vfma(p, s, vsplat(1.12836887e-1f));
    p = vfma(p, s, vsplat(-3.76126333e-1f));
    p = vfma(p, s, vsplat(1.28379167e-1f));
    small = 1.0f - vfma(p, t, t); /* erfc t */

    u = t - 2.4375f;
    p = vfma(u, vsplat(1.64356966e-6f), vsplat(-1.41283046e-5f));
    p = vfma(p, u, vsplat(8.32560553e-5f));
    p = vfma(p, u, vsplat(-4.50235305e-4f));
    p = vfma(p, u, vsplat(2.30130642e-3f));
    p = vfma(p, u, vsplat(-1.14166548e-2f));
    p = vfma(p, u, vsplat(-9.41805972e-1f));
    p = vfma(p, u, vsplat(-5.23482336f));
    p = vfma(p, u, vsplat(-7.47595713f));
    far = vselect(t > 4.0f, vsplat(0), vexp(p));

    tail = vselect(t < 0.92f, small, far) * 0.5f;
    tail = vselect(x < 0.0f, tail, 1.0f - tail);
    p = x * tail;
    p = vselect(x < -1e30f, vsplat(0), p); /* -inf * 0 */
    return vselect(x == x, p, x);
}

/*
 * x above 0, else e^x - 1: as vexp, but the 1 joins last, so that nothing cancels for a small x. At
 * -17.33 and below it is -1 to the last bit.
 */
FOLD vf velu(vf x)
{
    const vf magic = vsplat(0x1.8p23f);
    vf z = vmax(x, vsplat(-20)), n, r, p, two;

    n = vfma(z, vsplat(1.44269504f), magic) - magic;
    r = vfma(n, vsplat(-0.693359375f), z);
    r = vfma(n, vsplat(2.12194440e-4f), r);
    p = vfma(r, vsplat(1.9875691500e-4f), vsplat(1.3981999507e-3f));
    p = vfma(p, r, vsplat(8.3334519073e-3f));
    p = vfma(p, r, vsplat(4.1665795894e-2f));
    p = vfma(p, r, vsplat(1.6666665459e-1f));
    p = vfma(p, r, vsplat(5.0000001201e-1f));
    p = vfma(p, r * r, r);
    two = (vf)(((vu)(n + magic) << 23) + 0x3f800000);
    p = vfma(p, two, two - 1.0f);
    return vselect(x < 0.0f, p, x);
}

FOLD vf vact(enum mt_act act, vf v)
{
    switch (act) {
    case MT_ACT_NONE:
        break;
    case MT_ACT_GELU:
        return vgelu(v);
    case MT_ACT_RELU:
        return vselect(v < 0.0f, vsplat(0), v);
    case MT_ACT_SILU:
        return vsilu(v);
    case MT_ACT_ELU:
        return velu(v);
    }
    return v;
}
