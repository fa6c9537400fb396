/*
 * load.c: a whole sound at once, mono and at the wanted rate. It grows as samples come, never by
 * what a header promises.
 */
#include "audio/audio.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct growing {
    float *pcm;
    int64_t n, cap, max;
};

static int grow(struct growing *g, const float *pcm, int64_t n, int rate_hz, const char *path,
                struct mt_err *e)
{
    if (n > g->max - g->n)
        return mt_err_set(e, -E2BIG,
                          "%s: is longer than the allowed %.1f s (%lld samples at %d Hz)", path,
                          (double)g->max / rate_hz, (long long)g->max, rate_hz);
    if (g->n + n > g->cap) {
        int64_t cap = 2 * (g->n + n);
        float *p = realloc(g->pcm, mt_mul((size_t)cap, sizeof(float)));

        if (!p)
            return mt_err_set(e, -ENOMEM, "%s: out of memory", path);
        g->pcm = p;
        g->cap = cap;
    }
    memcpy(g->pcm + g->n, pcm, (size_t)n * sizeof(float));
    g->n += n;
    return 0;
}

int mt_sound_load(const char *path, const struct mt_raw_format *raw, int rate_hz,
                  int64_t max_samples, float **pcm, int64_t *n, struct mt_err *e)
{
    struct growing g = {.cap = 4096, .max = max_samples};
    struct mt_sound *s = NULL;
    struct mt_resampler *r = NULL;
    const char *name = strcmp(path, "-") != 0 ? path : "stdin";
    float in[4096];
    int64_t got;
    int rc;

    *pcm = NULL;
    *n = 0;
    if ((rc = mt_sound_open(&s, path, raw, e)) < 0)
        goto out;
    if ((rc = mt_resampler_new(&r, mt_sound_info(s)->rate_hz, rate_hz, e)) < 0)
        goto out;
    rc = -ENOMEM;
    if (!(g.pcm = malloc((size_t)g.cap * sizeof(float)))) {
        mt_err_set(e, rc, "%s: out of memory", name);
        goto out;
    }
    do {
        const float *res;
        int64_t n_res;

        got = mt_sound_read(s, in, (int64_t)MT_COUNT(in), e);
        if ((rc = (int)(got < 0 ? got : 0)) < 0)
            goto out;
        if ((rc = mt_resampler_push(r, got ? in : NULL, got, &res, &n_res)) < 0) {
            mt_err_set(e, rc, "%s: resampling: %s", name, strerror(-rc));
            goto out;
        }
        if ((rc = grow(&g, res, n_res, rate_hz, name, e)) < 0)
            goto out;
    } while (got > 0);
    *pcm = g.pcm;
    *n = g.n;
    g.pcm = NULL;
out:
    free(g.pcm);
    mt_resampler_free(&r);
    mt_sound_close(&s);
    return rc;
}
