/*
 * own_cache.h: the cache of one sequence that runs alone, under a policy: what teacher forcing and
 * greedy runs share. It is laid out as a live session's is. Internal to lib/engine.
 */
#ifndef MT_OWN_CACHE_H
#define MT_OWN_CACHE_H

#include "engine/engine.h"

struct mt_own_cache {
    struct mt_backend *be;
    struct mt_policy policy;
    int64_t max_positions;
    int block_tokens, chunk;
    struct mt_kv *kv;
    int32_t *blocks;
};

/*
 * For n tokens, at most `chunk` a step. Without a bound in the policy attention reaches as far as
 * the model's own rule has it. -EINVAL for a policy that can't be, -ENOMEM. On failure free it all
 * the same.
 */
int mt_own_cache_init(struct mt_own_cache *c, struct mt_model *m, const struct mt_policy *policy,
                      int64_t n, int chunk, int block_tokens, enum mt_dtype type, struct mt_err *e);
void mt_own_cache_free(struct mt_own_cache *c);
struct mt_kv_view mt_own_cache_view(const struct mt_own_cache *c);

#endif
