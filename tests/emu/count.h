/*
 * count.h: what a program asked of the emulated card since the counts were last set to 0, so that a
 * test can say how often a step may wait, copy and launch. C and C++.
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
    int after_down; /* what was queued behind the last copy to the host */
};
extern struct emu_count emu_count;

#ifdef __cplusplus
}
#endif

#endif
