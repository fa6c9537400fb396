/*
 * mel.h: what a log-mel front end is made of: its sizes, the window and the filters, by the
 * definition of HF's WhisperFeatureExtractor. Sums over them are audio.h's, and the backends'.
 */
#ifndef MT_MEL_H
#define MT_MEL_H

enum {
    MT_MEL_FFT = 400, /* samples of a frame … */
    MT_MEL_HOP = 160, /* … and from one to the next */
    MT_MEL_BINS = MT_MEL_FFT / 2 + 1,
    MT_MEL_RATE = 16000,
    MT_MEL_LOOKAHEAD = 40, /* samples behind a frame's own hop that it needs */
    MT_MEL_BANDS_MAX = 256
};

/*
 * The window and Slaney's triangles. Band b is the sum of weight[at[b] + k] * power k over bins
 * first[b] <= k < last[b]; a bin is in two triangles at most.
 */
struct mt_mel_bank {
    int bands;
    double window[MT_MEL_FFT];
    int first[MT_MEL_BANDS_MAX], last[MT_MEL_BANDS_MAX], at[MT_MEL_BANDS_MAX];
    double weight[2 * MT_MEL_BINS];
};
/* bands: 1..MT_MEL_BANDS_MAX. */
void mt_mel_bank_make(struct mt_mel_bank *bank, int bands);

#endif
