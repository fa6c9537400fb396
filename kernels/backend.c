/*
 * backend.c: --backend NAME to a backend.
 */
#include "kernels/kernels.h"

#include <errno.h>
#include <string.h>

int mt_backend_open(struct mt_backend **out, const char *name, int threads, struct mt_err *e)
{
    enum mt_cpu_tier tier;
    int rc;

    *out = NULL;
    if (strcmp(name, "cpu") != 0)
        return mt_err_set(e, -ENOTSUP, "--backend: '%s' is not in this build (cpu)", name);
    if ((rc = mt_cpu_tier(&tier, e)) < 0)
        return rc;
    return mt_backend_cpu(out, tier, threads, e);
}

void mt_backend_close(struct mt_backend **be)
{
    if (*be)
        (*be)->ops->free(*be);
    *be = NULL;
}
