/*
 * pack.h: how weights in blocks lie in memory once they are loaded: in tiles of 16 outputs, lanes =
 * outputs, as few bytes as in the file and one stream: for each 8 blocks of 32 columns (the last of
 * a row may be fewer) their scales, then their elements.
 *
 *   scales    for each block f16 d[16], then m[16] where there is one. Qx_K: f16 d[16] (and m[16])
 *             of all 8, then for each bytes: 16 scales and 16 minima; Q6_K: 16 scales of the first
 *             16 columns, 16 of the others.
 *   elements  vectors of 64 bytes: dword o of a vector belongs to output o and holds a quad of
 *             columns. 8 bits: 8 vectors, quad j (columns 4j..4j+3) in vector j. Else 4 vectors,
 *             quad j in the low nibbles of vector j, quad j + 4 in its high ones, then the bits
 *             above: 5 bits: a vector, bit j of a byte for quad j; 6 bits: two, bits 2j, 2j + 1 of
 *             a
 *             byte for quads j and j + 4. All are >= 0; pack_zero says which value is 0.
 */
#ifndef MT_CPU_PACK_H
#define MT_CPU_PACK_H

#include "kernels/kernels.h"

enum { PACK_TILE = 16, PACK_COLS = 32, PACK_GROUP = 8 };

struct mt_pack {
    enum mt_dtype type;
    int64_t tiles, blocks; /* blocks of 32 columns in a row */
    int64_t tile_bytes;
    unsigned char *data; /* NULL: not packed, or only planned */
    struct mt_chunk *chunk;
};

/* All of these are constants where the type is one. */
static inline int pack_bits(enum mt_dtype t)
{
    return t == MT_Q8_0                                   ? 8
           : t == MT_Q6_K                                 ? 6
           : t == MT_Q5_0 || t == MT_Q5_1 || t == MT_Q5_K ? 5
                                                          : 4;
}

static inline int pack_block_bytes(enum mt_dtype t)
{
    return PACK_TILE * PACK_COLS / 8 * pack_bits(t);
}

static inline bool pack_is_k(enum mt_dtype t)
{
    return t >= MT_Q4_K;
}

/* Elements are d * q + m, else d * (q - zero). */
static inline bool pack_has_min(enum mt_dtype t)
{
    return t == MT_Q4_1 || t == MT_Q5_1 || t == MT_Q4_K || t == MT_Q5_K;
}

/* log2 of the zero. */
static inline int pack_zero(enum mt_dtype t)
{
    return pack_bits(t) - 1;
}

/* Bytes of a group's scales: whole cache lines. */
static inline int pack_scale_bytes(enum mt_dtype t)
{
    if (pack_is_k(t)) /* Q6_K: 32 unused */
        return 64 + PACK_GROUP * 32;
    return (pack_has_min(t) ? 64 : 32) * PACK_GROUP;
}

/* Where block b of a tile's scales and elements begin. */
static inline int64_t pack_group_at(enum mt_dtype t, int64_t b)
{
    return b / PACK_GROUP * (pack_scale_bytes(t) + (int64_t)PACK_GROUP * pack_block_bytes(t));
}

static inline int64_t pack_block_at(enum mt_dtype t, int64_t b)
{
    return pack_group_at(t, b) + pack_scale_bytes(t) + b % PACK_GROUP * pack_block_bytes(t);
}

/* 0 where nothing is packed. */
static inline int64_t pack_bytes(const struct mt_pack *p)
{
    return p->tiles * p->tile_bytes;
}

struct mt_cpu;
/* From b, in parallel; for a plan without data. -ENOMEM. */
int mt_pack_new(struct mt_pack *p, struct mt_cpu *c, const struct mt_bytes *b);
void mt_pack_free(struct mt_pack *p, struct mt_cpu *c);

#endif
