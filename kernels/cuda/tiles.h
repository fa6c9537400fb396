/*
 * tiles.h: products of 16-bit activations with weights on tensor cores, where cuBLAS has none: the
 * experts of a mixture, each with its own rows, and weights in blocks, which are decoded on their
 * way into the operands.
 */
#ifndef MT_CUDA_TILES_H
#define MT_CUDA_TILES_H

#include "kernels/cuda/epilogue.h"

/* Rows row.. of the product, n of them, by one of its matrices. */
struct mt_tile {
    int matrix, row, n;
};

/* How many rows and columns a block has; a sum's order is the same in NARROW and WIDE. */
enum mt_tiling {
    MT_NARROW,     /* up to 16 rows a tile: the weights' bytes are all that counts */
    MT_WIDE,       /* up to 128 */
    MT_SPLIT,      /* weights in blocks, up to 16 rows: four warps share a sum, a quarter each */
    MT_SPLIT_WIDE, /* up to 64 */
};

/* out = act(x W^T + bias) + residual; with U: silu(x W^T) * (x U^T), to `gated` or to out. */
struct mt_product {
    /* On the device, of each tile's matrix W; NULL: `one`, of all rows. up: U, or NULL. */
    const struct mt_dmat *w, *up;
    struct mt_dmat one;
    int cols, k;       /* columns of the product; elements of a sum */
    const uint16_t *x; /* dense rows of k, bf16 or (for weights of f16) f16 */
    const int *row;    /* on the device: which row of x each row takes; NULL: its own */
    /* On the device: the tiles and how many; NULL: n rows. most: not more than so many. */
    const struct mt_tile *tile;
    const int *tiles;
    int n, most;
    struct mt_rows out;
    struct epilogue end;
    uint16_t *gated; /* [rows][cols], dense, of 16 bits; NULL: to out, as f32 */
    bool bf16;       /* what gated numbers are: bf16, not f16 */
};

/* Rows of a tile, at most. */
int mt_cuda_tile_rows(enum mt_tiling t);
/* Are there tiles for weights of this type (enum mt_dtype or MT_Q8_APART) and this k? */
bool mt_cuda_tiles_take(int type, int k);
void mt_cuda_tiles(struct mt_cuda *c, const struct mt_product *p, int type, enum mt_tiling t);

#endif
