/*
 * open.c: what the kernel tests open when they run on a card and not in the emulation: the plugin,
 * with rows and pools where the tests, which look into both, can reach them.
 */
#include "kernels/kernels.h"

int mt_cuda_open(struct mt_backend **out, const char *how, struct mt_err *e);

int mt_cuda_open(struct mt_backend **out, const char *how, struct mt_err *e)
{
    char name[64];

    snprintf(name, sizeof(name), "cuda:visible%s%s", *how ? "," : "", how);
    return mt_backend_open(out, name, 1, e);
}
