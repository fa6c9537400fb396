/*
 * quant.c: weights in ggml's blocks to f32. Every element is made by the same float operations in
 * the same order as ggml's dequantize_row_* (ggml-quants.c), so that it is the same bit for bit:
 * this file must be compiled without contraction (a * b - c is two roundings).
 *
 * A block of 32 begins with its f16 scale d; the first half of its elements is the low nibbles, the
 * second half the high ones. A block of 256 has 8 or 16 pieces with small integer scales of their
 * own.
 */
#include "kernels/cpu/num.h"

typedef unsigned char byte;

static float half(const byte *p)
{
    uint16_t h;

    memcpy(&h, p, sizeof(h));
    return num_from_f16(h);
}

/* d: f16; 16 bytes of nibbles. */
static void q4_0(float *y, const byte *b)
{
    float d = half(b);

    for (int j = 0; j < 16; j++) {
        y[j] = (float)((b[2 + j] & 15) - 8) * d;
        y[j + 16] = (float)((b[2 + j] >> 4) - 8) * d;
    }
}

/* d, m: f16; nibbles. */
static void q4_1(float *y, const byte *b)
{
    float d = half(b), m = half(b + 2);

    for (int j = 0; j < 16; j++) {
        y[j] = (float)(b[4 + j] & 15) * d + m;
        y[j + 16] = (float)(b[4 + j] >> 4) * d + m;
    }
}

/* d; 32 fifth bits; nibbles. */
static void q5_0(float *y, const byte *b)
{
    float d = half(b);
    uint32_t h;

    memcpy(&h, b + 2, sizeof(h));
    for (int j = 0; j < 16; j++) {
        y[j] = (float)(((b[6 + j] & 15) | (int)(h >> j << 4 & 16)) - 16) * d;
        y[j + 16] = (float)(((b[6 + j] >> 4) | (int)(h >> (j + 12) & 16)) - 16) * d;
    }
}

/* d, m; 32 fifth bits; nibbles. */
static void q5_1(float *y, const byte *b)
{
    float d = half(b), m = half(b + 2);
    uint32_t h;

    memcpy(&h, b + 4, sizeof(h));
    for (int j = 0; j < 16; j++) {
        y[j] = (float)((b[8 + j] & 15) | (int)(h >> j << 4 & 16)) * d + m;
        y[j + 16] = (float)((b[8 + j] >> 4) | (int)(h >> (j + 12) & 16)) * d + m;
    }
}

/* d; 32 signed bytes. */
static void q8_0(float *y, const byte *b)
{
    float d = half(b);

    for (int j = 0; j < 32; j++)
        y[j] = (float)(signed char)b[2 + j] * d;
}

/* Scale and minimum, 6 bits each, of piece j of 8. */
static void scale_min(int j, const byte *s, byte *scale, byte *min)
{
    if (j < 4) {
        *scale = s[j] & 63;
        *min = s[j + 4] & 63;
    } else {
        *scale = (byte)((s[j + 4] & 15) | s[j - 4] >> 6 << 4);
        *min = (byte)(s[j + 4] >> 4 | s[j] >> 6 << 4);
    }
}

/*
 * d, dmin: f16; 12 bytes of 6-bit scales and minima; for Q5_K 32 bytes of fifth bits, bit p of byte
 * l for element l of piece p; nibbles: each 32 bytes hold two pieces.
 */
static void q45_k(float *y, const byte *b, const byte *h, const byte *q)
{
    float d = half(b), min = half(b + 2);

    for (int p = 0; p < 8; p++) {
        const byte *n = q + p / 2 * 32;
        byte sc, m;

        scale_min(p, b + 4, &sc, &m);
        float d1 = d * sc, m1 = min * m;
        for (int l = 0; l < 32; l++) {
            int v = p % 2 ? n[l] >> 4 : n[l] & 15;

            if (h)
                v += h[l] >> p & 1 ? 16 : 0;
            y[p * 32 + l] = d1 * (float)v - m1;
        }
    }
}

/* 128 bytes of nibbles; 64 bytes of two more bits; 16 signed scales; d. */
static void q6_k(float *y, const byte *b)
{
    float d = half(b + 208);

    for (int half_at = 0; half_at < 2; half_at++) {
        const byte *l = b + 64 * half_at, *h = b + 128 + 32 * half_at;
        const signed char *sc = (const signed char *)b + 192 + 8 * half_at;

        for (int p = 0; p < 4; p++) { /* pieces 0, 1: low nibbles, 2, 3: high ones */
            for (int i = 0; i < 32; i++) {
                int low = p < 2 ? l[p * 32 + i] & 15 : l[(p - 2) * 32 + i] >> 4;
                int v = (low | (h[i] >> 2 * p & 3) << 4) - 32;

                y[half_at * 128 + p * 32 + i] = d * (float)sc[2 * p + (i >> 4)] * (float)v;
            }
        }
    }
}

static void block(float *y, enum mt_dtype t, const byte *b)
{
    switch (t) {
    case MT_Q4_0:
        q4_0(y, b);
        return;
    case MT_Q4_1:
        q4_1(y, b);
        return;
    case MT_Q5_0:
        q5_0(y, b);
        return;
    case MT_Q5_1:
        q5_1(y, b);
        return;
    case MT_Q8_0:
        q8_0(y, b);
        return;
    case MT_Q4_K:
        q45_k(y, b, NULL, b + 16);
        return;
    case MT_Q5_K:
        q45_k(y, b, b + 16, b + 48);
        return;
    case MT_Q6_K:
        q6_k(y, b);
        return;
    default:
        return;
    }
}

void mt_quant_decode(float *dst, enum mt_dtype t, const void *row, int64_t first, int64_t n)
{
    int size = mt_dtype_block(t), bytes = mt_dtype_block_bytes(t);
    const byte *b = (const byte *)row + first / size * bytes;
    int64_t skip = first % size;

    for (; n > 0; b += bytes, skip = 0) {
        int64_t take = size - skip < n ? size - skip : n;

        if (take == size) {
            block(dst, t, b);
        } else {
            float all[256];

            block(all, t, b);
            memcpy(dst, all + skip, (size_t)take * sizeof(*dst));
        }
        dst += take;
        n -= take;
    }
}
