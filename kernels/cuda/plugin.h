/*
 * plugin.h: what a backend that is loaded at run time exports: one object of this name. Plain C,
 * seen by both sides.
 */
#ifndef MT_CUDA_PLUGIN_H
#define MT_CUDA_PLUGIN_H

#include "kernels/kernels.h"

#define MT_CUDA_PLUGIN_SYMBOL "mt_cuda_plugin"

struct mt_cuda_plugin {
    const char *version; /* MT_VERSION, first for ever */
    size_t ops_bytes;    /* sizeof(struct mt_ops): a table of another build is not used */
    /*
     * how: "" or a list: exact, deterministic, device=N; visible, for tests: rows and pools in
     * pinned memory.
     */
    int (*open)(struct mt_backend **out, const char *how, struct mt_err *e);
};

#endif
