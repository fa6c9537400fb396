/*
 * seanet.h: SEANet, the convolutional ends of the codec: sound to steps of `dim` channels, and
 * back. Internal to the codec's files.
 */
#ifndef MT_SEANET_H
#define MT_SEANET_H

#include "model/mimi_bind.h"

/* One link of the chain: a convolution, or a residual block of two (and one across). */
struct mt_seanet_link {
    bool elu, block;
    bool alone; /* so many rows a session that company would only crowd the cache */
    struct mt_mimi_conv a, b, across; /* across.w NULL: the skip is the input itself */
};

struct mt_seanet {
    struct mt_seanet_link *link;
    int n_links;
    int rows, rows_out; /* of a frame at both ends */
    /*
     * Floats of scratch: what flows between links, unfolded windows, and what is handed from links
     * alone to links in company. For as many sessions as it was bound for.
     */
    int64_t flow_floats, window_floats, hand_floats;
};

/* Scratch of a pass. */
struct mt_seanet_scratch {
    struct mt_rows flow[3], window, hand[2];
    struct mt_rows *past; /* host memory, one a session */
};

/* For at_once sessions. Failures stick in b; call mt_seanet_free all the same. */
void mt_seanet_bind_encoder(struct mt_seanet *s, const struct mt_mimi_config *c, int at_once,
                            struct mt_mimi_binder *b);
void mt_seanet_bind_decoder(struct mt_seanet *s, const struct mt_mimi_config *c, int at_once,
                            struct mt_mimi_binder *b);
void mt_seanet_free(struct mt_seanet *s, struct mt_backend *be);

/*
 * A frame of each of n sessions: x [n * rows] lies in scratch->hand[0]; states[i] is session i's
 * memory. The result, [n * rows_out], lies in one of hand, valid until the next pass.
 */
struct mt_rows mt_seanet_run(const struct mt_seanet *s, struct mt_backend *be,
                             const struct mt_seanet_scratch *scratch, const struct mt_rows *states,
                             int n);

#endif
