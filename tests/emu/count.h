/*
 * count.h: what a program asked of the emulated card since the counts were last set to 0, so that a
 * test can say how often a step may wait, copy and launch; what the card is to refuse, and when it
 * does what was queued. C and C++.
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
    unsigned deaf; /* streams, a bit each in the order they were made, that wait for no event */
    int old_card;  /* it has no bf16 */
};
extern struct emu_faults emu_faults;

/*
 * A card promises no order between streams but by events and waits, and nothing is done before it
 * is waited for. So a stream's work is kept until somebody waits for it, or for an event behind it,
 * and then, but for what events say:
 */
enum emu_order {
    EMU_NOW,    /* it is not kept: a stream is done when the call returns */
    EMU_LATE,   /* nothing of another stream is done that is not waited for */
    EMU_OTHERS, /* first all that other streams have */
    EMU_MIXED,  /* by lot, a kernel or copy of one stream, then of another */
};
extern enum emu_order emu_order;

#ifdef __cplusplus
}
#endif

#endif
