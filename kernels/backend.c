/*
 * backend.c: --backend NAME to a backend. CUDA's is a plugin, so that one build runs with and
 * without a card: it is looked for when it is asked for, and stays loaded.
 */
#include "kernels/cpu/cpu.h"
#include "kernels/cuda/plugin.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PLUGIN "libmetronome-cuda.so"

/* Beside the program, or in ../lib/metronome of where it is installed. */
static int find_plugin(char path[PATH_MAX], struct mt_err *e)
{
    static const char *const places[] = {"", "../lib/metronome/"};
    char self[PATH_MAX - 64];

    mt_program_folder(self, sizeof(self));
    for (size_t i = 0; i < MT_COUNT(places); i++) {
        snprintf(path, PATH_MAX, "%s%s%s", self, places[i], PLUGIN);
        if (access(path, F_OK) == 0)
            return 0;
    }
    return mt_err_set(e, -ENOTSUP,
                      "--backend: 'cuda' is not in this build: no " PLUGIN
                      " in %s or its ../lib/metronome ('make CUDA=1' builds it)",
                      self);
}

static int open_cuda(struct mt_backend **out, const char *how, struct mt_err *e)
{
    const char *path = getenv("MT_CUDA_PLUGIN");
    const struct mt_cuda_plugin *p;
    char found[PATH_MAX];
    void *so;
    int rc;

    if (!path || !*path) {
        if ((rc = find_plugin(found, e)) < 0)
            return rc;
        path = found;
    }
    if (!(so = dlopen(path, RTLD_NOW | RTLD_LOCAL))) /* its text names the file that is missing */
        return mt_err_set(e, -ENODEV, "--backend cuda: %s", dlerror());
    if (!(p = dlsym(so, MT_CUDA_PLUGIN_SYMBOL))) {
        dlclose(so);
        return mt_err_set(e, -ENODEV, "--backend cuda: %s: not metronome's plugin", path);
    }
    if (strcmp(p->version, MT_VERSION) != 0 || p->ops_bytes != sizeof(struct mt_ops)) {
        dlclose(so);
        return mt_err_set(e, -ENODEV, "--backend cuda: %s: of another build than this program",
                          path);
    }
    return p->open(out, how, e);
}

int mt_backend_open(struct mt_backend **out, const char *name, int threads, struct mt_err *e)
{
    bool exact = !strcmp(name, "cpu:exact");
    enum mt_cpu_tier tier;
    int rc;

    *out = NULL;
    if (!strcmp(name, "cuda"))
        return open_cuda(out, "", e);
    if (!strncmp(name, "cuda:", 5))
        return open_cuda(out, name + 5, e);
    if (!exact && strcmp(name, "cpu") != 0)
        return mt_err_set(e, -ENOTSUP, "--backend: '%s' is not cpu, cpu:exact or cuda", name);
    if ((rc = mt_cpu_tier(&tier, e)) < 0 || (rc = mt_backend_cpu(out, tier, threads, e)) < 0)
        return rc;
    if (exact)
        mt_cpu_exact(*out, tier);
    return 0;
}

int mt_backend_open_deterministic(struct mt_backend **out, const char *name, int threads,
                                  struct mt_err *e)
{
    bool listed = !strncmp(name, "cuda:", 5);
    char all[256];

    if (!listed && strcmp(name, "cuda") != 0)
        return mt_backend_open(out, name, threads, e);
    *out = NULL;
    if (snprintf(all, sizeof(all), "%s%cdeterministic", name, listed ? ',' : ':') >=
        (int)sizeof(all))
        return mt_err_set(e, -EINVAL, "--backend cuda: its options are longer than %zu bytes",
                          sizeof(all));
    return mt_backend_open(out, all, threads, e);
}

void mt_backend_close(struct mt_backend **be)
{
    if (*be)
        (*be)->ops->free(*be);
    *be = NULL;
}
