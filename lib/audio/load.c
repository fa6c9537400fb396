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

/* What is left of a part, in the file's own samples. */
struct cut {
    int64_t skip, take, seen;
};

static int64_t samples_of(int64_t ns, int rate_hz)
{
    return ns / 1000000000 * rate_hz + (ns % 1000000000 * rate_hz + 500000000) / 1000000000;
}

static struct cut cut_of(const struct mt_sound_part *p, int rate_hz)
{
    struct cut c = {0, INT64_MAX, 0};

    if (!p)
        return c;
    c.skip = p->samples ? p->start : samples_of(p->start, rate_hz);
    if (p->len >= 0)
        c.take = p->samples ? p->len : samples_of(p->len, rate_hz);
    if (p->len >= 0 && c.take == INT64_MAX)
        c.take--; /* no sound has so many, and it must not pass for the rest */
    return c;
}

/* The samples of this piece that belong to the part. */
static const float *cut_piece(struct cut *c, const float *in, int64_t *n)
{
    int64_t drop = c->skip < *n ? c->skip : *n, rest = *n - drop;

    c->seen += *n;
    c->skip -= drop;
    *n = rest < c->take ? rest : c->take;
    if (c->take != INT64_MAX)
        c->take -= *n;
    return in + drop;
}

static int check_cut(const struct cut *c, int rate_hz, const char *name, struct mt_err *e)
{
    if (c->take == 0 || (c->skip == 0 && c->take == INT64_MAX))
        return 0;
    return mt_err_set(e, -ERANGE,
                      "%s: the sound ends after %.7g s (%lld samples), before the part does", name,
                      (double)c->seen / rate_hz, (long long)c->seen);
}

int mt_sound_load(const char *path, const struct mt_raw_format *raw, int rate_hz,
                  int64_t max_samples, float **pcm, int64_t *n, struct mt_err *e)
{
    return mt_sound_load_part(path, raw, rate_hz, NULL, max_samples, pcm, n, e);
}

int mt_sound_load_part(const char *path, const struct mt_raw_format *raw, int rate_hz,
                       const struct mt_sound_part *part, int64_t max_samples, float **pcm,
                       int64_t *n, struct mt_err *e)
{
    struct growing g = {.cap = 4096, .max = max_samples};
    struct mt_sound *s = NULL;
    struct mt_resampler *r = NULL;
    const char *name = strcmp(path, "-") != 0 ? path : "stdin";
    struct cut cut;
    float in[4096];
    int64_t got, kept;
    int rc;

    *pcm = NULL;
    *n = 0;
    if ((rc = mt_sound_open(&s, path, raw, e)) < 0)
        goto out;
    if ((rc = mt_resampler_new(&r, mt_sound_info(s)->rate_hz, rate_hz, e)) < 0)
        goto out;
    cut = cut_of(part, mt_sound_info(s)->rate_hz);
    rc = -ENOMEM;
    if (!(g.pcm = malloc((size_t)g.cap * sizeof(float)))) {
        mt_err_set(e, rc, "%s: out of memory", name);
        goto out;
    }
    do {
        const float *res;
        int64_t n_res;

        got = cut.take ? mt_sound_read(s, in, (int64_t)MT_COUNT(in), e) : 0;
        if ((rc = (int)(got < 0 ? got : 0)) < 0)
            goto out;
        kept = got;
        const float *piece = cut_piece(&cut, in, &kept);
        if (got && !kept)
            continue;
        if ((rc = mt_resampler_push(r, got ? piece : NULL, kept, &res, &n_res)) < 0) {
            mt_err_set(e, rc, "%s: resampling: %s", name, strerror(-rc));
            goto out;
        }
        if ((rc = grow(&g, res, n_res, rate_hz, name, e)) < 0)
            goto out;
    } while (got > 0);
    if ((rc = check_cut(&cut, mt_sound_info(s)->rate_hz, name, e)) < 0)
        goto out;
    *pcm = g.pcm;
    *n = g.n;
    g.pcm = NULL;
out:
    free(g.pcm);
    mt_resampler_free(&r);
    mt_sound_close(&s);
    return rc;
}
