/*
 * args.h: options of the tools that are an engine's: --pool, --kv, --rope, --kv-type, --quantize,
 * --threads. As
 * base/args.h: a usage error that names the option.
 */
#ifndef MT_ENGINE_ARGS_H
#define MT_ENGINE_ARGS_H

#include "base/args.h"
#include "engine/engine.h"

/*
 * A size, or "512b" for blocks, at most so many: one of *bytes and *blocks is above 0, the other 0.
 */
void mt_arg_pool(struct argp_state *st, const char *arg, int64_t most_blocks, int64_t *bytes,
                 int64_t *blocks);
/* --kv: all of *p but rope_absolute, which is --rope's. */
void mt_arg_kv(struct argp_state *st, const char *arg, struct mt_policy *p);
/* --rope: whether it is absolute. */
bool mt_arg_rope(struct argp_state *st, const char *arg);
enum mt_dtype mt_arg_kv_type(struct argp_state *st, const char *arg);
/* --quantize: Q8_0 or Q4_K. */
enum mt_dtype mt_arg_quantize(struct argp_state *st, const char *arg);
int mt_arg_threads(struct argp_state *st, const char *arg);

#endif
