/*
 * resample.c: sample rate conversion by libsoxr, quality HQ, one thread. soxr's output doesn't
 * depend on the pieces it is fed (the tests hold it to that). Its smallest transforms are asked
 * for: the filters are the same, and the lag is less than half of the default's (15 ms for 48 to 16
 * kHz instead of 37, 52 for 8 to 16 kHz instead of 116) at a few per cent of a millisecond a
 * second.
 */
#include "audio/audio.h"

#include <errno.h>
#include <math.h>
#include <soxr.h>
#include <stdlib.h>
#include <string.h>

enum { RATE_MAX = 768000, RATIO_MAX = 256 };

struct mt_resampler {
    soxr_t soxr; /* NULL: equal rates, copied */
    int from_hz, to_hz;
    int64_t lag;
    bool flushed;
    float *out;
    size_t cap;
};

static soxr_t new_soxr(const struct mt_resampler *r, soxr_error_t *why)
{
    soxr_quality_spec_t quality = soxr_quality_spec(SOXR_HQ, 0);
    soxr_runtime_spec_t runtime = soxr_runtime_spec(1);

    runtime.log2_min_dft_size = 8;
    runtime.log2_large_dft_size = 8;
    return soxr_create(r->from_hz, r->to_hz, 1, why, NULL, &quality, &runtime);
}

/*
 * soxr doesn't tell its lag, so it is measured on a twin: fed sample by sample, how far does the
 * first moment that is not out yet fall behind? Output comes in blocks, so the worst is seen within
 * a few of them. One more for the rounding of positions.
 */
static int measure_lag(struct mt_resampler *r, soxr_error_t *why)
{
    double ratio = (double)r->from_hz / r->to_hz, worst = 0;
    soxr_t twin = new_soxr(r, why);
    int64_t out = 0;

    if (!twin)
        return -EINVAL;
    for (int64_t in = 1; in < 4096 || (double)in < 5 * worst; in++) {
        const float zero = 0;
        size_t used, got;

        do {
            if ((*why = soxr_process(twin, &zero, 1, &used, r->out, r->cap, &got))) {
                soxr_delete(twin);
                return -EINVAL;
            }
            out += (int64_t)got;
        } while (used == 0);
        worst = fmax(worst, (double)in - (double)out * ratio);
    }
    soxr_delete(twin);
    r->lag = (int64_t)ceil(worst) + 1;
    return 0;
}

int mt_resampler_new(struct mt_resampler **out, int from_hz, int to_hz, struct mt_err *e)
{
    struct mt_resampler *r = calloc(1, sizeof(*r));
    soxr_error_t why = "out of memory";
    int rc = -ENOMEM;

    *out = NULL;
    if (!r)
        goto fail;
    if (from_hz < 1 || to_hz < 1 || from_hz > RATE_MAX || to_hz > RATE_MAX ||
        from_hz > RATIO_MAX * (int64_t)to_hz || to_hz > RATIO_MAX * (int64_t)from_hz) {
        why = "rates up to 768000 Hz within a factor of 256 were expected";
        rc = -EINVAL;
        goto fail;
    }
    r->from_hz = from_hz;
    r->to_hz = to_hz;
    r->cap = 16384;
    if (!(r->out = malloc(r->cap * sizeof(*r->out))))
        goto fail;
    if (from_hz != to_hz) {
        if ((rc = measure_lag(r, &why)) < 0)
            goto fail;
        if (!(r->soxr = new_soxr(r, &why))) {
            rc = -EINVAL;
            goto fail;
        }
    }
    *out = r;
    return 0;
fail:
    mt_err_set(e, rc, "resampling %d Hz to %d Hz: %s", from_hz, to_hz, why);
    mt_resampler_free(&r);
    return rc;
}

int64_t mt_resampler_lag(const struct mt_resampler *r)
{
    return r->lag;
}

static int reserve(struct mt_resampler *r, size_t cap)
{
    float *p;

    if (cap <= r->cap)
        return 0;
    if (!(p = realloc(r->out, mt_mul(cap, sizeof(*p)))))
        return -ENOMEM;
    r->out = p;
    r->cap = cap;
    return 0;
}

int mt_resampler_push(struct mt_resampler *r, const float *in, int64_t n, const float **out,
                      int64_t *n_out)
{
    size_t fed = 0, made = 0, used, got;

    *out = r->out;
    *n_out = 0;
    if (r->flushed || n < 0 || (!in && n > 0))
        return -EINVAL;
    r->flushed = !in;
    if (!r->soxr) {
        if (reserve(r, (size_t)n) < 0)
            return -ENOMEM;
        if (n > 0)
            memcpy(r->out, in, (size_t)n * sizeof(*in));
        *out = r->out;
        *n_out = n;
        return 0;
    }
    do {
        if (reserve(r, made + 4096 > r->cap ? 2 * r->cap : r->cap) < 0)
            return -ENOMEM;
        used = 0;
        if (soxr_process(r->soxr, in ? in + fed : NULL, (size_t)n - fed, &used, r->out + made,
                         r->cap - made, &got))
            return -EIO;
        fed += used;
        made += got;
    } while (got > 0 || fed < (size_t)n);
    *out = r->out;
    *n_out = (int64_t)made;
    return 0;
}

int mt_resampler_restart(struct mt_resampler *r)
{
    soxr_error_t why;
    soxr_t fresh = NULL;

    if (r->soxr && !(fresh = new_soxr(r, &why)))
        return -EINVAL;
    soxr_delete(r->soxr);
    r->soxr = fresh;
    r->flushed = false;
    return 0;
}

void mt_resampler_free(struct mt_resampler **rp)
{
    struct mt_resampler *r = *rp;

    *rp = NULL;
    if (!r)
        return;
    soxr_delete(r->soxr);
    free(r->out);
    free(r);
}
