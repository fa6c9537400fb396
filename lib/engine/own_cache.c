/*
 * own_cache.c: a pool that belongs to one sequence: its blocks in order.
 */
#include "engine/own_cache.h"

#include <errno.h>
#include <stdlib.h>

static int check(const struct mt_model *m, const struct mt_policy *p, int block_tokens,
                 struct mt_err *e)
{
    int64_t context = mt_model_info(m)->context;

    if (block_tokens < 1)
        return mt_err_set(e, -EINVAL, "a block of %d tokens", block_tokens);
    if (p->bounded && (p->sinks < 0 || p->window <= p->sinks))
        return mt_err_set(e, -EINVAL, "window=%lld is not above sinks=%lld (a number from 0 on)",
                          (long long)p->window, (long long)p->sinks);
    if (p->bounded && context && p->window > context)
        return mt_err_set(e, -EINVAL, "window=%lld is above the model's context of %lld",
                          (long long)p->window, (long long)context);
    return 0;
}

/* A window that is never full needs no more memory than the tokens. */
static struct mt_policy fitting(const struct mt_model *m, struct mt_policy p, int64_t n)
{
    int64_t context = mt_model_info(m)->context;

    if (!p.bounded && context)
        p = (struct mt_policy){.bounded = true, .window = context};
    if (p.bounded && p.sinks > n)
        p.sinks = n;
    if (p.bounded && p.window > n + 1)
        p.window = n + 1;
    return p;
}

int mt_own_cache_init(struct mt_own_cache *c, struct mt_model *m, const struct mt_policy *policy,
                      int64_t n, int chunk, int block_tokens, enum mt_dtype type, struct mt_err *e)
{
    struct mt_kv_shape shape = mt_model_kv_shape(m, block_tokens, type);
    int rc = check(m, policy, block_tokens, e);

    *c = (struct mt_own_cache){.be = mt_model_backend(m),
                               .policy = fitting(m, *policy, n),
                               .max_positions = mt_model_info(m)->max_positions,
                               .block_tokens = block_tokens,
                               .chunk = chunk};
    if (rc < 0)
        return rc;
    int64_t blocks = c->policy.bounded
                         ? mt_policy_blocks(c->policy.window, c->policy.sinks, block_tokens, chunk)
                         : (n + block_tokens - 1) / block_tokens;
    if ((rc = c->be->ops->kv_new(c->be, &c->kv, &shape, blocks)) < 0)
        return mt_err_set(e, rc, "no memory for a cache of %lld tokens", (long long)n);
    c->blocks = malloc(mt_mul((size_t)blocks, sizeof(*c->blocks)));
    if (!c->blocks)
        return mt_err_set(e, -ENOMEM, "no memory for a cache of %lld tokens", (long long)n);
    for (int64_t k = 0; k < blocks; k++)
        c->blocks[k] = (int32_t)k;
    return 0;
}

void mt_own_cache_free(struct mt_own_cache *c)
{
    if (c->kv)
        c->be->ops->kv_free(c->be, c->kv);
    free(c->blocks);
    *c = (struct mt_own_cache){0};
}

struct mt_kv_view mt_own_cache_view(const struct mt_own_cache *c)
{
    const struct mt_policy *p = &c->policy;
    int64_t bt = c->block_tokens;

    return (struct mt_kv_view){
        .blocks = c->blocks,
        .sinks = p->bounded ? (int)p->sinks : 0,
        .ring_blocks = p->bounded ? (int)((p->window + c->chunk - 1 + bt - 1) / bt) : INT32_MAX,
        .window = p->bounded ? p->window : INT64_MAX,
        .sink_reach = mt_policy_reach(p, c->max_positions),
    };
}
