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

enum { HALF = MT_MEL_FFT / 2 };

/*
 * Qwen2.5-Omni's extractor pads each clip to 300 s, MiniCPM-o's to 30 s, and both reflect only at
 * the end of those.
 */
static int64_t padded(enum mt_mel_edge edge)
{
    return (edge == MT_MEL_PADDED_30 ? 30 : 300) * (int64_t)MT_MEL_RATE;
}

struct mt_mel {
    struct mt_mel_bank bank;
    kiss_fftr_cfg fft;
    float in[MT_MEL_FFT]; /* the frame at work */
    kiss_fft_cpx spectrum[MT_MEL_BINS];
    double power[MT_MEL_BINS];
};

int mt_mel_new(struct mt_mel **out, int bands, struct mt_err *e)
{
    struct mt_mel *m;

    *out = NULL;
    if (bands < 1 || bands > MT_MEL_BANDS_MAX)
        return mt_err_set(e, -EINVAL, "%d mel bands: 1..%d were expected", bands, MT_MEL_BANDS_MAX);
    m = calloc(1, sizeof(*m));
    if (!m || !(m->fft = kiss_fftr_alloc(MT_MEL_FFT, 0, NULL, NULL))) {
        free(m);
        return mt_err_set(e, -ENOMEM, "mel filters: out of memory");
    }
    mt_mel_bank_make(&m->bank, bands);
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
    free(m);
}

/*
 * One row from the 400 samples x. The window's first value is 0, so x[0] is never looked at: frame
 * 0, which reflects x[200] there, needs no more than 200 samples.
 */
static void mel_frame(struct mt_mel *m, const float *x, float *row)
{
    const struct mt_mel_bank *bank = &m->bank;

    m->in[0] = 0;
    for (int i = 1; i < MT_MEL_FFT; i++)
        m->in[i] = (float)(bank->window[i] * (double)x[i]);
    kiss_fftr(m->fft, m->in, m->spectrum);
    for (int k = 0; k < MT_MEL_BINS; k++) {
        double re = (double)m->spectrum[k].r, im = (double)m->spectrum[k].i;

        m->power[k] = re * re + im * im;
    }
    for (int b = 0; b < bank->bands; b++) {
        double sum = 0;

        for (int k = bank->first[b]; k < bank->last[b]; k++)
            sum += bank->weight[bank->at[b] + k] * m->power[k];
        row[b] = (float)log10(fmax(sum, 1e-10));
    }
}

void mt_mel_rows(struct mt_mel *m, const float *x, int64_t n, float *rows, int64_t stride)
{
    for (int64_t i = 0; i < n; i++)
        mel_frame(m, x + i * MT_MEL_HOP, rows + i * stride);
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
    int64_t frames = mt_mel_clip_frames(edge, n), bands = m->bank.bands;
    float samples[MT_MEL_FFT], row[MT_MEL_BANDS_MAX];
    float loudest = -INFINITY;

    if (frames < 1)
        return -EINVAL;
    for (int64_t t = 0; t < frames; t++) {
        gather_clip(pcm, n, edge, t, samples);
        mel_frame(m, samples, out + t * bands);
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
        loudest = mt_mel_loudest(row, bands, loudest);
    }
    mt_mel_scale(out, frames * bands, mt_mel_loudest(out, frames * bands, loudest));
    return 0;
}

float mt_mel_loudest(const float *v, int64_t n, float so_far)
{
    for (int64_t i = 0; i < n; i++)
        so_far = v[i] > so_far ? v[i] : so_far;
    return so_far;
}

void mt_mel_scale(float *v, int64_t n, float loudest)
{
    float floor_at = loudest - 8;

    for (int64_t i = 0; i < n; i++)
        v[i] = ((v[i] > floor_at ? v[i] : floor_at) + 4) / 4;
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

/* The samples of the frame that comes next; behind those held stand zeros, or their reflection. */
static void next_frame(const struct mt_mel_stream *s, bool reflect, float *x)
{
    int64_t base = hold_base(s), start = s->next * MT_MEL_HOP - HALF;

    if (start >= 0 && s->n_hold == MT_MEL_FFT) {
        memcpy(x, s->hold, MT_MEL_FFT * sizeof(*x));
        return;
    }
    for (int i = 0; i < MT_MEL_FFT; i++) {
        int64_t pos = (start + i < 0 ? -(start + i) : start + i) - base;

        if (reflect && pos >= s->n_hold)
            pos = 2 * (int64_t)(s->n_hold - 1) - pos;
        x[i] = pos >= 0 && pos < s->n_hold ? s->hold[pos] : 0;
    }
}

void mt_mel_peek(const struct mt_mel_stream *s, float *x)
{
    next_frame(s, true, x);
}

/* What neighbours share is the same in both, so that they may lie over each other. */
static void emit(struct mt_mel_stream *s, float *x)
{
    int64_t base = hold_base(s);
    int drop;

    next_frame(s, false, x);
    s->next++;
    drop = (int)(hold_base(s) - base);
    drop = drop < s->n_hold ? drop : s->n_hold;
    memmove(s->hold, s->hold + drop, (size_t)(s->n_hold - drop) * sizeof(*s->hold));
    s->n_hold -= drop;
}

int mt_mel_push(struct mt_mel_stream *s, const float *pcm, int64_t n, bool end, float *x,
                int max_frames, int64_t *consumed)
{
    int64_t used = 0;
    int frames = 0;

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
        if (s->heard < s->next * MT_MEL_HOP + HALF || frames == max_frames)
            break;
        emit(s, x + (int64_t)frames++ * MT_MEL_HOP);
    }
    *consumed = used;
    s->ended |= end && used == n;
    while (s->ended && frames < max_frames && s->next < mt_mel_clip_frames(MT_MEL_PADDED, s->heard))
        emit(s, x + (int64_t)frames++ * MT_MEL_HOP);
    return frames;
}
