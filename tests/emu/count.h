/*
 * count.h: what a program asked of the emulated card since the counts were last set to 0, so that a
 * test can say how often a step may wait, copy and launch; and what the card is to refuse. C and
 * C++.
 */
#ifndef EMU_COUNT_H
#define EMU_COUNT_H

#ifdef __cplusplus
extern "C" {
#endif

struct emu_count {
    int launches, products; /* kernels, and calls of cuBLAS */
    int up, down;           /* copies to and from the device */
    int waits, allocations;
    int rooms;            /* more shared memory asked for */
    int questions;        /* which algorithm a product takes */
    int captures, graphs; /* made, and launched: of what is in them nothing is counted */
    int after_down;       /* what was queued behind the last copy to the host */
};
extern struct emu_count emu_count;

struct emu_faults {
    int no_bias;    /* cuBLASLt has no product with a bias … */
    int no_product; /* … none at all */
    int no_capture, no_replay;
    int old_card; /* it has no bf16 */
};
extern struct emu_faults emu_faults;

#ifdef __cplusplus
}
#endif

#endif
