/*
 * quantize.c: rows of floats to ggml's blocks, for weights that are rounded when they are loaded.
 *
 * Q4_K: a piece of 32 is scale * q - minimum with q in 0..15. The range of its elements gives a
 * first scale; a few slightly wider and narrower ones are tried, and for the q's of each the line
 * that fits best by least squares, weighted, is taken. Sums run in LANES partial sums so that the
 * compiler can use vectors: a model has billions of elements.
 */
#include "kernels/cpu/num.h"

enum { LANES = 8, PIECE = 32, PIECES = 8, STEPS = 7 };

typedef unsigned char byte;

static void put_half(byte *p, float f)
{
    uint16_t h = num_to_f16(f);

    memcpy(p, &h, sizeof(h));
}

static float get_half(const byte *p)
{
    uint16_t h;

    memcpy(&h, p, sizeof(h));
    return num_from_f16(h);
}

static void q8_0(byte *dst, const float *x)
{
    float most = 0;

    for (int i = 0; i < 32; i++)
        most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    float d = most / 127, by = d != 0 ? 1 / d : 0;
    put_half(dst, d);
    for (int i = 0; i < 32; i++) {
        float v = roundf(x[i] * by);

        dst[2 + i] = (byte)(signed char)(v >= -128 && v <= 127 ? v : 0);
    }
}

/* To the nearest whole number in 0..15, as a float. Adding 1.5 * 2^23 rounds. */
static inline float level(float v)
{
    v = v > 0 ? v : 0;
    v = v < 15 ? v : 15;
    return v + 0x1.8p23f - 0x1.8p23f;
}

static float total(const float *lane)
{
    return ((lane[0] + lane[4]) + (lane[1] + lane[5])) +
           ((lane[2] + lane[6]) + (lane[3] + lane[7]));
}

/* Sums over a piece: weights, weighted x and x * x. */
struct sums {
    float w, x, xx;
};

/*
 * The line scale * q + offset, offset <= 0, that is nearest to x, where q is x - lo in levels of
 * 1 / by. Returns the weighted square error, from the sums alone: as good as its terms' rounding.
 */
static float fit(const float *x, const float *w, const struct sums *s, float lo, float by,
                 float *scale, float *offset)
{
    float s1[LANES] = {0}, s2[LANES] = {0}, sx[LANES] = {0};

    for (int i = 0; i < PIECE; i += LANES)
        for (int l = 0; l < LANES; l++) {
            float q = level((x[i + l] - lo) * by), wq = w[i + l] * q;

            s1[l] += wq;
            s2[l] += wq * q;
            sx[l] += wq * x[i + l];
        }
    float q1 = total(s1), q2 = total(s2), qx = total(sx), det = s->w * q2 - q1 * q1;

    if (!(det > 0))
        return INFINITY;
    *scale = (s->w * qx - s->x * q1) / det;
    *offset = (q2 * s->x - q1 * qx) / det;
    if (*offset > 0) {
        *offset = 0;
        *scale = qx / q2;
    }
    return s->xx + *scale * (*scale * q2 - 2 * qx) +
           *offset * (*offset * s->w + 2 * *scale * q1 - 2 * s->x);
}

/* Scale and minimum (what is subtracted, from 0 on) of one piece. */
static void fit_piece(const float *x, float *best_scale, float *best_min)
{
    float lo = 0, hi = x[0], square[LANES] = {0}, ws[LANES] = {0}, xs[LANES] = {0};
    float xxs[LANES] = {0}, w[PIECE], best = INFINITY;

    for (int i = 0; i < PIECE; i++) {
        lo = x[i] < lo ? x[i] : lo;
        hi = x[i] > hi ? x[i] : hi;
    }
    *best_scale = hi > lo ? (hi - lo) / 15 : 0;
    *best_min = -lo;
    if (!(hi > lo))
        return;
    for (int i = 0; i < PIECE; i += LANES)
        for (int l = 0; l < LANES; l++)
            square[l] += x[i + l] * x[i + l];
    float mean = sqrtf(total(square) / PIECE);
    for (int i = 0; i < PIECE; i += LANES)
        for (int l = 0; l < LANES; l++) {
            w[i + l] = mean + fabsf(x[i + l]);
            ws[l] += w[i + l];
            xs[l] += w[i + l] * x[i + l];
            xxs[l] += w[i + l] * x[i + l] * x[i + l];
        }
    const struct sums s = {total(ws), total(xs), total(xxs)};
    for (int i = 0; i < STEPS; i++) { /* 14 … 16 levels over the range */
        float by = (14 + 2.0f * (float)i / (STEPS - 1)) / (hi - lo), scale = 0, offset = 0;
        float e = fit(x, w, &s, lo, by, &scale, &offset);

        if (e < best) {
            best = e;
            *best_scale = scale;
            *best_min = -offset;
        }
    }
}

/* 6 bits each of scale and minimum of piece j. */
static void put_scale_min(byte *s, int j, int scale, int min)
{
    if (j < 4) {
        s[j] = (byte)scale;
        s[j + 4] = (byte)min;
    } else {
        s[j + 4] = (byte)((scale & 15) | (min & 15) << 4);
        s[j - 4] |= (byte)(scale >> 4 << 6);
        s[j] |= (byte)(min >> 4 << 6);
    }
}

static int six_bits(float v)
{
    return v >= 62.5f ? 63 : v > 0 ? (int)(v + 0.5f) : 0;
}

static void q4_k(byte *dst, const float *x)
{
    float scale[PIECES], min[PIECES], most_scale = 0, most_min = 0, q[2 * PIECE];

    for (int j = 0; j < PIECES; j++) {
        fit_piece(x + j * PIECE, &scale[j], &min[j]);
        most_scale = scale[j] > most_scale ? scale[j] : most_scale;
        most_min = min[j] > most_min ? min[j] : most_min;
    }
    memset(dst, 0, 144);
    put_half(dst, most_scale / 63);
    put_half(dst + 2, most_min / 63);
    float d = get_half(dst), dmin = get_half(dst + 2);
    for (int j = 0; j < PIECES; j++) {
        int sc = six_bits(d > 0 ? scale[j] / d : 0), m = six_bits(dmin > 0 ? min[j] / dmin : 0);
        float by = d * (float)sc, down = dmin * (float)m;

        put_scale_min(dst + 4, j, sc, m);
        for (int i = 0; i < PIECE; i++) {
            float v = by > 0 ? (x[j * PIECE + i] + down) / by : 0;

            q[j % 2 * PIECE + i] = level(v);
        }
        for (int i = 0; j % 2 && i < PIECE; i++)
            dst[16 + j / 2 * PIECE + i] = (byte)((int)q[i] | (int)q[PIECE + i] << 4);
    }
}

void mt_quantize_row(enum mt_dtype t, void *dst, const float *src, int64_t n)
{
    byte *p = dst;

    for (int64_t i = 0; t == MT_Q8_0 && i < n; i += 32, p += 34)
        q8_0(p, src + i);
    for (int64_t i = 0; t == MT_Q4_K && i < n; i += 256, p += 144)
        q4_k(p, src + i);
}

void mt_dequantize_row(enum mt_dtype t, float *dst, const void *src, int64_t n)
{
    num_decode(dst, t, src, 0, n);
}
