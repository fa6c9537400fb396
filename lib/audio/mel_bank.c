/*
 * mel_bank.c: a periodic Hann window, and triangles between every second of bands + 2 edges that
 * are equally spaced in mel, of area 1 in Hz.
 */
#include "audio/mel.h"

#include <math.h>

/* Slaney's scale: linear below 1 kHz, logarithmic above. */
static double mel_of_hz(double hz)
{
    return hz < 1000 ? 3 * hz / 200 : 15 + 27 * log(hz / 1000) / log(6.4);
}

static double hz_of_mel(double mel)
{
    return mel < 15 ? 200 * mel / 3 : 1000 * exp((mel - 15) * log(6.4) / 27);
}

void mt_mel_bank_make(struct mt_mel_bank *bank, int bands)
{
    double step = mel_of_hz(MT_MEL_RATE / 2.0) / (bands + 1);
    int n = 0;

    bank->bands = bands;
    for (int i = 0; i < MT_MEL_FFT; i++)
        bank->window[i] = 0.5 - 0.5 * cos(2 * M_PI * i / MT_MEL_FFT);
    for (int b = 0; b < bands; b++) {
        double lo = hz_of_mel(b * step), mid = hz_of_mel((b + 1) * step);
        double hi = hz_of_mel((b + 2) * step);

        bank->first[b] = bank->last[b] = bank->at[b] = 0;
        for (int k = 0; k < MT_MEL_BINS; k++) {
            double hz = (double)k * MT_MEL_RATE / MT_MEL_FFT;
            double v = fmin((hz - lo) / (mid - lo), (hi - hz) / (hi - mid));

            if (v <= 0)
                continue;
            if (bank->last[b] == 0) {
                bank->first[b] = k;
                bank->at[b] = n - k;
            }
            bank->weight[n++] = v * 2 / (hi - lo);
            bank->last[b] = k + 1;
        }
    }
}
