/*
 * fuzz.h: what fuzz targets share: how they fail, and the small engine of those that need one.
 */
#ifndef TESTS_FUZZ_FUZZ_H
#define TESTS_FUZZ_FUZZ_H

#include "engine/engine.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static inline void must(bool good)
{
    if (!good)
        abort();
}

/* A refusal says why. */
static inline void one_line(const struct mt_err *e)
{
    must(e->code < 0 && e->text[0] && !strchr(e->text, '\n'));
}

/* Of two calls; the corpus was saved under these. */
static inline void fuzz_engine_options(struct mt_engine_opts *o)
{
    mt_engine_defaults(o);
    must(mt_policy_parse("window=40,sinks=4", &o->policy, NULL) == 0);
    o->pool_blocks = 20;
    o->answer_tokens = 3;
    o->step_tokens = 32;
    o->max_sessions = 2;
    o->frame_ns = 200 * MT_NS_PER_MS;
}

#endif
