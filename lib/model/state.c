/*
 * state.c: caches and rows of a session to memory and back; what they hold is taken as it is.
 */
#include <errno.h>

#include "model/model.h"

void mt_state_kv(struct mt_state_io *io, const char *what, struct mt_backend *be, struct mt_kv *kv,
                 const struct mt_kv_shape *shape, const struct mt_kv_view *view, int64_t first,
                 int64_t n, int64_t skip)
{
    int64_t token = mt_kv_block_bytes(shape) / shape->block_tokens;
    char *bytes;
    int rc = 0;

    if (!be->ops->kv_get || n < 1)
        return;
    if (!(bytes = mt_state_block(io, what, mt_mul((size_t)n, (size_t)token))))
        return;
    if (!io->load)
        rc = be->ops->kv_get(be, kv, view, first, n, bytes);
    else if (skip < n)
        rc = be->ops->kv_put(be, kv, view, first + skip, n - skip, bytes + skip * token);
    if (rc < 0)
        mt_state_fail(io, rc, "%s: the device failed", what);
}

void mt_state_rows(struct mt_state_io *io, const char *what, struct mt_backend *be,
                   struct mt_rows rows, int64_t n)
{
    float *at;

    if (!be->ops->rows_get || n < 1) /* a cost model's rows hold nothing */
        return;
    if (!(at = mt_state_block(io, what, mt_mul((size_t)n, (size_t)rows.width * sizeof(float)))))
        return;
    if (io->load)
        be->ops->rows_put(be, rows, at, n);
    else
        be->ops->rows_get(be, at, rows, n);
}
