/*
 * mel.c: the log-mel front end of HF's WhisperFeatureExtractor: a Hann window of
 * 400 samples each 160, power spectrum, Slaney filters, log10. Clip and stream gather the 400
 * samples of a frame each in its way, and share mel_frame(), so their values are equal bit for bit.
 *
 * The transform is in f32 (kissfft), everything behind it in f64. Against a computation wholly in
 * f64 the logs of speech are off by 6e-5 after the clamp, as are those of HF's own f32.
 */
#include "audio/audio.h"

#include <errno.h>
#include <kiss_fftr.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BINS = MT_MEL_FFT / 2 + 1, HALF = MT_MEL_FFT / 2, BANDS_MAX = 256 };

/*
 * Qwen2.5-Omni's extractor pads each clip to 300 s, MiniCPM-o's to 30 s, and both reflect only at
 * the end of those.
 */
static int64_t padded(enum mt_mel_edge edge)
{
    return (edge == MT_MEL_PADDED_30 ? 30 : 300) * (int64_t)MT_MEL_RATE;
}

struct mt_mel {
    int bands;
    kiss_fftr_cfg fft;
    double window[MT_MEL_FFT];
    double *weight; /* [bands, BINS], nonzero only in first[b]..last[b] - 1 */
    int *first, *last;
    float in[MT_MEL_FFT]; /* the frame at work */
    kiss_fft_cpx spectrum[BINS];
    double power[BINS];
};

/* Slaney's scale: linear below 1 kHz, logarithmic above. */
static double mel_of_hz(double hz)
{
    return hz < 1000 ? 3 * hz / 200 : 15 + 27 * log(hz / 1000) / log(6.4);
}

static double hz_of_mel(double mel)
{
    return mel < 15 ? 200 * mel / 3 : 1000 * exp((mel - 15) * log(6.4) / 27);
}

/* Triangles between every second of bands + 2 edges, equally spaced in mel, of area 1 in Hz. */
static void make_filters(struct mt_mel *m)
{
    double step = mel_of_hz(MT_MEL_RATE / 2.0) / (m->bands + 1);

    for (int b = 0; b < m->bands; b++) {
        double lo = hz_of_mel(b * step), mid = hz_of_mel((b + 1) * step);
        double hi = hz_of_mel((b + 2) * step);
        double *w = m->weight + (size_t)b * BINS;

        m->first[b] = m->last[b] = 0;
        for (int k = 0; k < BINS; k++) {
            double hz = (double)k * MT_MEL_RATE / MT_MEL_FFT;
            double v = fmin((hz - lo) / (mid - lo), (hi - hz) / (hi - mid));

            if (v <= 0)
                continue;
            w[k] = v * 2 / (hi - lo);
            if (m->last[b] == 0)
                m->first[b] = k;
            m->last[b] = k + 1;
        }
    }
}

int mt_mel_new(struct mt_mel **out, int bands, struct mt_err *e)
{
    struct mt_mel *m;

    *out = NULL;
    if (bands < 1 || bands > BANDS_MAX)
        return mt_err_set(e, -EINVAL, "%d mel bands: 1..%d were expected", bands, BANDS_MAX);
    m = calloc(1, sizeof(*m));
    if (!m)
        return mt_err_set(e, -ENOMEM, "mel filters: out of memory");
    m->bands = bands;
    m->fft = kiss_fftr_alloc(MT_MEL_FFT, 0, NULL, NULL);
    m->weight = calloc((size_t)bands * BINS, sizeof(*m->weight));
    m->first = calloc((size_t)bands, sizeof(*m->first));
    m->last = calloc((size_t)bands, sizeof(*m->last));
    if (!m->fft || !m->weight || !m->first || !m->last) {
        mt_mel_free(&m);
        return mt_err_set(e, -ENOMEM, "mel filters: out of memory");
    }
    for (int i = 0; i < MT_MEL_FFT; i++)
        m->window[i] = 0.5 - 0.5 * cos(2 * M_PI * i / MT_MEL_FFT);
    make_filters(m);
    *out = m;
    return 0;
}

void mt_mel_free(struct mt_mel **mp)
{
    struct mt_mel *m = *mp;

    *mp = NULL;
    if (!m)
        return;
    kiss_fftr_free(m->fft);
    free(m->weight);
    free(m->first);
    free(m->last);
    free(m);
}

/*
 * One row from the 400 samples x. The window's first value is 0, so x[0] is never looked at: frame
 * 0, which reflects x[200] there, needs no more than 200 samples.
 */
static void mel_frame(struct mt_mel *m, const float *x, float *row)
{
    m->in[0] = 0;
    for (int i = 1; i < MT_MEL_FFT; i++)
        m->in[i] = (float)(m->window[i] * (double)x[i]);
    kiss_fftr(m->fft, m->in, m->spectrum);
    for (int k = 0; k < BINS; k++) {
        double re = (double)m->spectrum[k].r, im = (double)m->spectrum[k].i;

        m->power[k] = re * re + im * im;
    }
    for (int b = 0; b < m->bands; b++) {
        const double *w = m->weight + (size_t)b * BINS;
        double sum = 0;

        for (int k = m->first[b]; k < m->last[b]; k++)
            sum += w[k] * m->power[k];
        row[b] = (float)log10(fmax(sum, 1e-10));
    }
}

/* The 400 samples around 160 t of x[0..n), with what the clip has beyond its edges. */
static void gather_clip(const float *x, int64_t n, enum mt_mel_edge edge, int64_t t, float *out)
{
    int64_t start = t * MT_MEL_HOP - HALF;
    int64_t mirror = edge == MT_MEL_REFLECTED ? n
                     : n <= padded(edge)      ? padded(edge)
                                              : INT64_MAX / 4;

    if (start >= 0 && start + MT_MEL_FFT <= n) {
        memcpy(out, x + start, MT_MEL_FFT * sizeof(*out));
        return;
    }
    for (int i = 0; i < MT_MEL_FFT; i++) {
        int64_t pos = start + i < 0 ? -(start + i) : start + i;

        if (pos >= mirror)
            pos = 2 * (mirror - 1) - pos;
        out[i] = pos >= 0 && pos < n ? x[pos] : 0;
    }
}

int64_t mt_mel_clip_frames(enum mt_mel_edge edge, int64_t n)
{
    if (edge == MT_MEL_REFLECTED)
        return n <= HALF ? 0 : n / MT_MEL_HOP;
    return n < 1 ? 0 : (n - 1) / MT_MEL_HOP + 1;
}

int mt_mel_clip(struct mt_mel *m, enum mt_mel_edge edge, const float *pcm, int64_t n, float *out)
{
    int64_t frames = mt_mel_clip_frames(edge, n);
    float samples[MT_MEL_FFT], row[BANDS_MAX];
    float loudest = -INFINITY;

    if (frames < 1)
        return -EINVAL;
    for (int64_t t = 0; t < frames; t++) {
        gather_clip(pcm, n, edge, t, samples);
        mel_frame(m, samples, out + t * m->bands);
    }
    /*
     * The maximum is taken over the padding too, where the tail of the clip is still heard for a
     * frame or two, louder than in the last row if it ends with a bang.
     */
    for (int64_t t = frames; edge != MT_MEL_REFLECTED && t * MT_MEL_HOP - HALF < n &&
                             (n > padded(edge) || t < padded(edge) / MT_MEL_HOP);
         t++) {
        gather_clip(pcm, n, edge, t, samples);
        mel_frame(m, samples, row);
        for (int b = 0; b < m->bands; b++)
            loudest = fmaxf(loudest, row[b]);
    }
    mt_mel_scale(out, frames, m->bands, &loudest);
    return 0;
}

void mt_mel_scale(float *rows, int64_t frames, int bands, float *running)
{
    int64_t n = frames * bands;
    float floor_at;

    for (int64_t i = 0; i < n; i++)
        *running = fmaxf(*running, rows[i]);
    floor_at = *running - 8;
    for (int64_t i = 0; i < n; i++)
        rows[i] = (fmaxf(rows[i], floor_at) + 4) / 4;
}

void mt_mel_stream_init(struct mt_mel_stream *s)
{
    memset(s, 0, sizeof(*s));
}

/* hold[0] is this sample: frame `next` begins there; the first two reflect the start of the sound.
 */
static int64_t hold_base(const struct mt_mel_stream *s)
{
    int64_t start = s->next * MT_MEL_HOP - HALF;

    return start > 0 ? start : 0;
}

void mt_mel_stream_visit(struct mt_mel_stream *s, struct mt_state_io *io)
{
    mt_state_i64(io, "mel frames so far", &s->next, 0, INT64_C(1) << 48);
    mt_state_i64(io, "samples of the mel", &s->heard, 0, INT64_C(1) << 56);
    mt_state_int(io, "samples held", &s->n_hold, 0, MT_MEL_FFT);
    mt_state_bool(io, "end of the mel", &s->ended);
    if (mt_state_ok(io) && s->ended) /* whoever pulls would wait for ever */
        mt_state_fail(io, -EPROTO, "the mel has ended");
    if (mt_state_ok(io) && s->n_hold != s->heard - hold_base(s))
        mt_state_fail(io, -EPROTO, "samples held: %d, expected %lld", s->n_hold,
                      (long long)(s->heard - hold_base(s)));
    if (mt_state_ok(io))
        mt_state_floats(io, "sample held", s->hold, (size_t)s->n_hold);
}

/* The frame that comes next; behind the samples held stand zeros, or their reflection. */
static void next_frame(struct mt_mel *m, const struct mt_mel_stream *s, bool reflect, float *row)
{
    int64_t base = hold_base(s), start = s->next * MT_MEL_HOP - HALF;
    float samples[MT_MEL_FFT];

    for (int i = 0; i < MT_MEL_FFT; i++) {
        int64_t pos = (start + i < 0 ? -(start + i) : start + i) - base;

        if (reflect && pos >= s->n_hold)
            pos = 2 * (int64_t)(s->n_hold - 1) - pos;
        samples[i] = pos >= 0 && pos < s->n_hold ? s->hold[pos] : 0;
    }
    mel_frame(m, samples, row);
}

void mt_mel_peek(struct mt_mel *m, const struct mt_mel_stream *s, float *row)
{
    next_frame(m, s, true, row);
}

static void emit(struct mt_mel *m, struct mt_mel_stream *s, float *row)
{
    int64_t base = hold_base(s);
    int drop;

    next_frame(m, s, false, row);
    s->next++;
    drop = (int)(hold_base(s) - base);
    drop = drop < s->n_hold ? drop : s->n_hold;
    memmove(s->hold, s->hold + drop, (size_t)(s->n_hold - drop) * sizeof(*s->hold));
    s->n_hold -= drop;
}

int mt_mel_push(struct mt_mel *m, struct mt_mel_stream *s, const float *pcm, int64_t n, bool end,
                float *out, int max_frames, int64_t *consumed)
{
    int64_t used = 0;
    int rows = 0;

    *consumed = 0;
    if (n < 0 || (n > 0 && s->ended))
        return -EINVAL;
    /* Never more is held than the next frame needs: 400 samples. */
    for (;;) {
        int64_t lack = s->next * MT_MEL_HOP + HALF - s->heard;
        int64_t take = lack < n - used ? lack : n - used;

        if (take > 0) {
            memcpy(s->hold + s->n_hold, pcm + used, (size_t)take * sizeof(*pcm));
            s->n_hold += (int)take;
            s->heard += take;
            used += take;
        }
        if (s->heard < s->next * MT_MEL_HOP + HALF || rows == max_frames)
            break;
        emit(m, s, out + (int64_t)rows++ * m->bands);
    }
    *consumed = used;
    s->ended |= end && used == n;
    while (s->ended && rows < max_frames && s->next < mt_mel_clip_frames(MT_MEL_PADDED, s->heard))
        emit(m, s, out + (int64_t)rows++ * m->bands);
    return rows;
}
