"""The front end of the family on samples, and how samples are brought to its rate."""

import numpy as np

RATE, HOP, FFT, BINS, BANDS = 16000, 160, 400, 201, 128
FRAME = 2 * RATE  # samples of a frame
COLUMNS = FRAME // HOP  # mel frames of it
WINDOW = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(FFT) / FFT)).astype(np.float32)


def resampled(pcm, n):
    """The same sound in n samples, by its spectrum."""
    spectrum = np.fft.rfft(pcm)
    out = np.zeros(n // 2 + 1, spectrum.dtype)
    m = min(len(out), len(spectrum))
    out[:m] = spectrum[:m]
    return (np.fft.irfft(out, n) * (n / len(pcm))).astype(np.float32)


def columns(pcm):
    """Power [n, 201] of windows that lie wholly inside pcm, one each hop."""
    cut = np.lib.stride_tricks.sliding_window_view(pcm, FFT)[::HOP]
    spectrum = np.fft.rfft(cut * WINDOW, axis=1)
    return (spectrum.real**2 + spectrum.imag**2).astype(np.float32)


def call_columns(pcm):
    """Power [frames, 200, 201] of a call of whole frames, as a stream hears it: reflected before
    its beginning; behind its end stand zeros."""
    half = FFT // 2
    pcm = np.concatenate([pcm[half:0:-1], pcm, np.zeros(half, np.float32)])
    power = columns(pcm.astype(np.float32))
    return power[: len(power) // COLUMNS * COLUMNS].reshape(-1, COLUMNS, BINS)


def filters():
    """Slaney's triangles [201, 128], each with area 2 / width in Hz."""

    def hz(m):
        return np.where(m < 15, m * 200 / 3, 1000 * np.exp((m - 15) * np.log(6.4) / 27))

    edge = hz(np.linspace(0, 15 + 27 * np.log(8) / np.log(6.4), BANDS + 2))
    f = np.arange(BINS)[:, None] * RATE / FFT
    low, mid, high = edge[:-2], edge[1:-1], edge[2:]
    tri = np.minimum((f - low) / (mid - low), (high - f) / (high - mid))
    return (np.maximum(tri, 0) * 2 / (high - low)).astype(np.float32)
