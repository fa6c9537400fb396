/*
 * pack.c: weights in ggml's blocks (quant.c tells how they lie) to tiles of 16 outputs, at load,
 * all threads together. Four columns are one dword from beginning to end: nothing here goes byte by
 * byte, so that it keeps up with the disk.
 */
#include "kernels/cpu/pack.h"

#include <errno.h>
#include <string.h>

#include "kernels/cpu/cpu.h"

typedef unsigned char byte;

static uint32_t dword(const byte *p)
{
    uint32_t v;

    memcpy(&v, p, sizeof(v));
    return v;
}

/* Bits 4j + c of 32 to bit j of byte c: an 8 x 4 matrix of bits turned. */
static uint32_t turn(uint32_t v)
{
    uint32_t out = 0;

    for (int j = 0; j < 8; j++)
        out |= ((v >> 4 * j & 1) | (v >> (4 * j + 1) & 1) << 8 | (v >> (4 * j + 2) & 1) << 16 |
                (v >> (4 * j + 3) & 1) << 24)
               << j;
    return out;
}

/* A block of 32 columns, decoded: 8 quads of low nibbles (or bytes), and what is above them. */
struct quads {
    uint32_t v[8];
    uint32_t high[2];
};

static void nibbles(struct quads *q, const byte *p)
{
    for (int j = 0; j < 4; j++) {
        q->v[j] = dword(p + 4 * j) & 0x0f0f0f0f;
        q->v[j + 4] = dword(p + 4 * j) >> 4 & 0x0f0f0f0f;
    }
}

/* Block b of a row. */
static void read_quads(struct quads *q, enum mt_dtype t, const byte *row, int64_t b)
{
    const byte *p = row + (pack_is_k(t) ? b / 8 : b) * mt_dtype_block_bytes(t);
    int piece = (int)(b % 8);

    q->high[0] = q->high[1] = 0;
    switch (t) {
    case MT_Q4_0:
        nibbles(q, p + 2);
        break;
    case MT_Q4_1:
        nibbles(q, p + 4);
        break;
    case MT_Q5_0:
        nibbles(q, p + 6);
        q->high[0] = turn(dword(p + 2));
        break;
    case MT_Q5_1:
        nibbles(q, p + 8);
        q->high[0] = turn(dword(p + 4));
        break;
    case MT_Q8_0:
        for (int j = 0; j < 8; j++)
            q->v[j] = dword(p + 2 + 4 * j) ^ 0x80808080;
        break;
    case MT_Q4_K:
    case MT_Q5_K:
        for (int j = 0; j < 8; j++) {
            q->v[j] =
                dword(p + (t == MT_Q4_K ? 16 : 48) + piece / 2 * 32 + 4 * j) >> 4 * (piece % 2) &
                0x0f0f0f0f;
            if (t == MT_Q5_K)
                q->high[0] |= (dword(p + 16 + 4 * j) >> piece & 0x01010101) << j;
        }
        break;
    default: /* Q6_K */
        for (int j = 0; j < 8; j++) {
            int half = piece / 4, part = piece % 4;

            q->v[j] = dword(p + 64 * half + part % 2 * 32 + 4 * j) >> part / 2 * 4 & 0x0f0f0f0f;
            q->high[j / 4] |= (dword(p + 128 + 32 * half + 4 * j) >> 2 * part & 0x03030303)
                              << 2 * (j % 4);
        }
    }
}

/* Output o's dwords of a block. */
static void write_quads(byte *tile, int o, const struct quads *q, enum mt_dtype t)
{
    int bits = pack_bits(t), n = bits == 8 ? 8 : 4;

    tile += 4 * (int64_t)o;
    for (int j = 0; j < n; j++) {
        uint32_t v = bits == 8 ? q->v[j] : q->v[j] | q->v[j + 4] << 4;

        memcpy(tile + 64 * (int64_t)j, &v, sizeof(v));
    }
    for (int j = 0; j < bits - 4 && bits < 8; j++)
        memcpy(tile + 64 * (int64_t)(4 + j), &q->high[j], sizeof(q->high[j]));
}

/* Scale and minimum of piece j of 8. */
static void k_scales(byte *sc, byte *m, const byte *s, int j)
{
    if (j < 4) {
        *sc = s[j] & 63;
        *m = s[j + 4] & 63;
    } else {
        *sc = (byte)((s[j + 4] & 15) | s[j - 4] >> 6 << 4);
        *m = (byte)(s[j + 4] >> 4 | s[j] >> 6 << 4);
    }
}

/* Output o's scales of block b, one of `group`. */
static void write_scales(byte *group, int o, enum mt_dtype t, const byte *row, int64_t b)
{
    const byte *p = row + (pack_is_k(t) ? b / 8 : b) * mt_dtype_block_bytes(t);
    byte *to = group + (pack_is_k(t) ? 0 : b % 8 * (pack_has_min(t) ? 64 : 32));
    byte *piece = group + 64 + b % 8 * 32;

    memcpy(to + 2 * (int64_t)o, p + (t == MT_Q6_K ? 208 : 0), 2);
    if (pack_has_min(t))
        memcpy(to + 32 + 2 * (int64_t)o, p + 2, 2);
    if (t == MT_Q6_K) {
        piece[o] = p[192 + b % 8 * 2];
        piece[16 + o] = p[192 + b % 8 * 2 + 1];
    } else if (pack_is_k(t)) {
        k_scales(piece + o, piece + 16 + o, p + 4, (int)(b % 8));
    }
}

struct job {
    struct mt_pack *p;
    const struct mt_bytes *b;
    int64_t row_bytes;
};

static void run(void *arg, int thread, int64_t begin, int64_t end)
{
    const struct job *j = arg;
    const struct mt_pack *p = j->p;

    (void)thread;
    for (int64_t i = begin; i < end; i++) {
        byte *tile = p->data + i * p->tile_bytes;
        int64_t left = j->b->rows - i * PACK_TILE;
        int n = left < PACK_TILE ? (int)left : PACK_TILE; /* the arena's zeros behind */
        const byte *row = (const byte *)j->b->data + i * PACK_TILE * j->row_bytes;

        for (int64_t b = 0; b < p->blocks; b++) {
            for (int o = 0; o < n; o++) {
                struct quads q;

                read_quads(&q, p->type, row + o * j->row_bytes, b);
                write_quads(tile + pack_block_at(p->type, b), o, &q, p->type);
                write_scales(tile + pack_group_at(p->type, b), o, p->type, row + o * j->row_bytes,
                             b);
            }
        }
    }
}

int mt_pack_new(struct mt_pack *p, struct mt_cpu *c, const struct mt_bytes *b)
{
    struct job j = {p, b, mt_dtype_row_bytes(b->type, b->cols)};

    p->type = b->type;
    p->tiles = (b->rows + PACK_TILE - 1) / PACK_TILE;
    p->blocks = b->cols / PACK_COLS;
    p->tile_bytes = pack_block_at(b->type, p->blocks - 1) + pack_block_bytes(b->type);
    if (c->be.plan)
        return 0;
    p->data = mt_arena_get(c, mt_mul((size_t)p->tiles, (size_t)p->tile_bytes), &p->chunk);
    if (!p->data)
        return -ENOMEM;
    mt_par(c, p->tiles, 4 * PACK_TILE * b->cols, run, &j);
    return 0;
}

void mt_pack_free(struct mt_pack *p, struct mt_cpu *c)
{
    if (p->data)
        mt_arena_put(c, p->chunk);
    p->data = NULL;
}
