/*
 * panel.h: one text under several cache policies at once: what each of them expected of every next
 * token, beside what an unbounded cache expected. The arms are sessions of one batch, so a weight
 * is read once for all of them.
 *
 * A bounded arm that has lost nothing yet is the unbounded one: it costs nothing until its first
 * token is masked, which is when the query at index W + S comes, and begins with a copy of that
 * cache.
 */
#ifndef MT_PANEL_H
#define MT_PANEL_H

#include "engine/engine.h"

struct mt_arm {
    struct mt_policy policy; /* sinks as a number */
    enum mt_dtype kv_type;
    int64_t moved; /* every position so far behind its index (mt_kv_view) */
};

/* What an arm expected at one position, of the token behind it. */
struct mt_expected {
    float nll;  /* -log p(that token), nats */
    float kl;   /* sum p0 log(p0 / p) over the vocabulary, p0: the first arm's; 0 for itself */
    bool agree; /* its likeliest token is the first arm's */
    bool hit;   /* its likeliest token is the one that comes */
};

struct mt_panel {
    const int32_t *ids; /* [n], each in 0..vocab-1 and no audio placeholder */
    int64_t n;          /* 2 at least */
    /*
     * The first one is unbounded, and so is one of every kv_type and move that another arm has:
     * what those begin as.
     */
    const struct mt_arm *arms;
    int n_arms;
    int block_tokens;
    const struct mt_watch *watch; /* as in mt_step */
    void *ctx;
    /*
     * Positions 0..n-2 of each arm, in order; not 0 ends the run with that value. Positions of a
     * step come arm by arm.
     */
    int (*row)(void *ctx, int arm, int64_t pos, const struct mt_expected *x);
};

/*
 * All borrowed for the call. The model must have been opened for as many rows and wanted rows as
 * there are arms. 0, or what row returned, or -EINVAL, -ENOMEM with e.
 */
int mt_panel_run(struct mt_model *m, const struct mt_panel *p, struct mt_err *e);

/* The index of the first query that misses a token; INT64_MAX where none ever does. */
int64_t mt_arm_parts(const struct mt_arm *a);

#endif
