/*
 * rvq.h: the split residual quantiser: a group of semantic levels and one of acoustic levels, each
 * with its own projection of the same vector. Internal to the codec's files.
 */
#ifndef MT_RVQ_H
#define MT_RVQ_H

#include "model/mimi_bind.h"

struct mt_rvq_group {
    struct mt_mat *in, *out;
    int first, n; /* its levels among all */
};

struct mt_rvq {
    struct mt_rvq_group group[2]; /* semantic, acoustic */
    struct mt_mat *codebook[MT_MIMI_CODEBOOKS_MAX];
    float *host[MT_MIMI_CODEBOOKS_MAX]; /* their values */
    int levels;
    struct mt_rows v; /* scratch: a row a session */
    int32_t *ids;
    int64_t own_bytes;
};

/* The first `levels` codebooks, for at_once rows. Failures stick in b; free all the same. */
void mt_rvq_bind(struct mt_rvq *q, const struct mt_mimi_config *c, int levels, int at_once,
                 struct mt_mimi_binder *b);
void mt_rvq_free(struct mt_rvq *q, struct mt_backend *be);
/* x [n, dim] to codes [n][levels], and codes to y. */
void mt_rvq_encode(const struct mt_rvq *q, struct mt_backend *be, struct mt_rows x, int n,
                   int32_t *codes);
void mt_rvq_decode(const struct mt_rvq *q, struct mt_backend *be, const int32_t *codes, int n,
                   struct mt_rows y);

#endif
