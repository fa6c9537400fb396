/*
 * scalar_mel.c: the log-mel of live sound: audio.h's rows, on all threads. No tier has another
 * version: its time is the transform's, a library's.
 */
#include "audio/audio.h"
#include "kernels/cpu/cpu.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

struct mt_mels {
    int n;
    struct mt_mel *of[]; /* one a thread */
};

static void mel_free(struct mt_backend *be, struct mt_mels *m)
{
    (void)be;
    for (int i = 0; m && i < m->n; i++)
        mt_mel_free(&m->of[i]);
    free(m);
}

static int mel_new(struct mt_backend *be, struct mt_mels **out, int bands)
{
    int threads = cpu_of(be)->threads;
    struct mt_mels *m = calloc(1, sizeof(*m) + (size_t)threads * sizeof(struct mt_mel *));

    *out = NULL;
    if (!m)
        return -ENOMEM;
    while (m->n < threads) {
        int rc = mt_mel_new(&m->of[m->n], bands, NULL);

        if (rc < 0) {
            mel_free(be, m);
            return rc;
        }
        m->n++;
    }
    *out = m;
    return 0;
}

struct frames {
    struct mt_rows out;
    struct mt_mels *m;
    const struct mt_mel_span *spans;
};

/* Frames of all spans, counted through. */
static void frames_run(void *arg, int thread, int64_t begin, int64_t end)
{
    const struct frames *f = arg;
    const struct mt_mel_span *s = f->spans;
    int64_t first = 0; /* of span s */

    while (begin < end) {
        int64_t n;

        for (; begin - first >= s->n; s++)
            first += s->n;
        n = first + s->n < end ? first + s->n - begin : end - begin;
        mt_mel_rows(f->m->of[thread], s->x + (begin - first) * MT_MEL_HOP, n,
                    f->out.data + (s->row + begin - first) * f->out.stride, f->out.stride);
        begin += n;
    }
}

enum { FRAME_WORK = 20000 }; /* a frame takes about as long as so many multiply-adds */

static void log_mel(struct mt_backend *be, struct mt_rows out, struct mt_mels *m,
                    const struct mt_mel_span *spans, int n_spans)
{
    struct frames f = {out, m, spans};
    int64_t n = 0;

    for (int i = 0; i < n_spans; i++)
        n += spans[i].n;
    mt_par(cpu_of(be), n, FRAME_WORK, frames_run, &f);
}

static void mel_clamp(struct mt_backend *be, struct mt_rows x, const struct mt_mel_clamp *items,
                      int n)
{
    (void)be;
    for (const struct mt_mel_clamp *it = items; it < items + n; it++) {
        float *cell = it->cells.data, m = it->beside ? cell[it->into] : -INFINITY;

        for (int64_t r = it->loud.row; r < it->loud.row + it->loud.n; r++)
            m = mt_mel_loudest(x.data + r * x.stride, x.width, m);
        cell[it->into] = m;
        m = -INFINITY;
        for (int i = 0; i < it->n_by; i++)
            m = mt_mel_loudest(&cell[it->by[i]], 1, m);
        for (int64_t r = it->rows.row; r < it->rows.row + it->rows.n; r++)
            mt_mel_scale(x.data + r * x.stride, x.width, m);
    }
}

void mt_scalar_mel(struct mt_ops *o)
{
    o->mel_new = mel_new;
    o->mel_free = mel_free;
    o->log_mel = log_mel;
    o->mel_clamp = mel_clamp;
}
