/*
 * audio.h: sound in. Files and pipes to mono f32 (libsndfile), rate conversion (libsoxr), and the
 * log-mel front end of the models, whole clip and streaming. Samples are f32 in [-1, 1].
 */
#ifndef MT_AUDIO_H
#define MT_AUDIO_H

#include "audio/mel.h"
#include "base/base.h"
#include "base/state.h"

/* ---- files and pipes ---- */

/* Bare samples without a header, as `--raw FMT:RATE:CH` names them. */
struct mt_raw_format {
    enum mt_sample_type { MT_S16LE, MT_F32LE, MT_U8, MT_S24LE, MT_S32LE, MT_F64LE } sample;
    int rate_hz;  /* 1..768000 */
    int channels; /* 1..64 */
};

/* Parse "s16le:16000:1" (also u8, s24le, s32le, f32le, f64le). -EINVAL with a reason in e. */
int mt_raw_format_parse(const char *text, struct mt_raw_format *out, struct mt_err *e);

/*
 * An open sound: a path, or "-" for stdin. Whatever libsndfile reads, and from a pipe too: a WAV
 * whose header states no length (RIFF or data size 0 or 0xFFFFFFFF, sox's 0x7FFFF000) runs to the
 * end of the stream. Raw samples and PCM or float WAV come live from a pipe; other formats are
 * spooled to an unlinked temporary file ($TMPDIR) first. No sample is lost, none is invented (but
 * of an Ogg, FLAC or MP3 with another chained behind it, libsndfile reads the first). Channels are
 * averaged into one. One thread at a time a sound; libsndfile keeps the reason of a failed open in
 * one place for all, so threads that open at once may read each other's.
 */
struct mt_sound;
struct mt_sound_info {
    int rate_hz;
    int channels;   /* of the source, 1..1024 */
    int64_t frames; /* samples a channel, -1 while unknown (a pipe) */
    int64_t
        stated; /* samples a channel that the header speaks of, -1: of none, or not to be trusted */
    int bits;   /* of a sample of integer PCM; 0: floats, or an encoding that is not PCM */
};

/* raw NULL: look at the header. Errors name the file and the expectation: a directory, an empty
 * file, an unknown format, a header cut short. A file that ends early reads as far as it goes; at
 * the end mt_sound_short says so. */
int mt_sound_open(struct mt_sound **out, const char *path, const struct mt_raw_format *raw,
                  struct mt_err *e);
const struct mt_sound_info *mt_sound_info(const struct mt_sound *s);
/*
 * Up to n mono samples at the file's own rate: waits for one, then takes what is there. Returns the
 * count, 0 at the end, or a negative errno (a read error, damage, a float that is no number).
 */
int64_t mt_sound_read(struct mt_sound *s, float *out, int64_t n, struct mt_err *e);
/*
 * Of a sound read to its end: 1, and a line that names it in out, when it held fewer samples than
 * its header states, or none at all; else 0, and nothing is written.
 */
int mt_sound_short(const struct mt_sound *s, struct mt_err *out);
void mt_sound_close(struct mt_sound **s);

/* Whole sound as mono at rate_hz (resampled if it differs); *pcm is malloc'ed, the caller's. Sounds
 * above max_samples (at rate_hz) are -E2BIG. */
int mt_sound_load(const char *path, const struct mt_raw_format *raw, int rate_hz,
                  int64_t max_samples, float **pcm, int64_t *n, struct mt_err *e);
/*
 * A part of it, cut before the rate is converted, as if the file held nothing else. -ERANGE when
 * the sound ends before the part does.
 */
struct mt_sound_part {
    bool samples; /* start and len count the file's own samples; else ns, to the nearest sample */
    int64_t start;
    int64_t len; /* -1: to the end */
};
int mt_sound_load_part(const char *path, const struct mt_raw_format *raw, int rate_hz,
                       const struct mt_sound_part *part, int64_t max_samples, float **pcm,
                       int64_t *n, struct mt_err *e);

/* 16-bit WAV out, for --play: f32 in, clipped; the header is right whenever the file is closed. */
struct mt_wav;
int mt_wav_create(struct mt_wav **out, const char *path, int rate_hz, struct mt_err *e);
int mt_wav_write(struct mt_wav *w, const float *pcm, int64_t n);
int mt_wav_close(struct mt_wav **w);

/*
 * Float WAV out, sample for sample; path NULL: stdout, which may be a pipe and stays open. A write
 * that failed fails again; -EPIPE and the like.
 */
struct mt_wav_float;
int mt_wav_float_create(struct mt_wav_float **out, const char *path, int rate_hz, struct mt_err *e);
int mt_wav_float_write(struct mt_wav_float *w, const float *pcm, int64_t n);
int mt_wav_float_close(struct mt_wav_float **w);

/* ---- rate conversion ---- */

/*
 * A streaming converter (soxr HQ, one thread, so the same bits each time and whatever the pieces).
 * Output may lag the input; flush brings the rest. Equal rates pass through exactly, without lag.
 */
struct mt_resampler;
int mt_resampler_new(struct mt_resampler **out, int from_hz, int to_hz, struct mt_err *e);
/* Worst lag: input samples that must follow before the output for a given input moment is out. */
int64_t mt_resampler_lag(const struct mt_resampler *r);
/* Push n samples (in NULL, n 0: flush, once). *out points into r and is valid until the next call.
 */
int mt_resampler_push(struct mt_resampler *r, const float *in, int64_t n, const float **out,
                      int64_t *n_out);
void mt_resampler_free(struct mt_resampler **r);
/* As it was when it was new. -EINVAL without memory. */
int mt_resampler_restart(struct mt_resampler *r);

/*
 * The same conversion of a sound that may be saved in the middle and gone on with, bit for bit as
 * if it had not been. What soxr remembers can't be looked at, but it is a function of what it was
 * fed: so every second it starts anew, a little before that second, and all that has to be kept is
 * what was heard since then. Where two such pieces meet they agree to the rounding of a float.
 */
struct mt_converter;
/* The rates must differ. */
int mt_converter_new(struct mt_converter **out, int from_hz, int to_hz, struct mt_err *e);
/* As mt_resampler_lag. */
int64_t mt_converter_lag(const struct mt_converter *c);
/* As mt_resampler_push. */
int mt_converter_push(struct mt_converter *c, const float *in, int64_t n, const float **out,
                      int64_t *n_out);
/*
 * All of it, to memory or back, into one that is new and has the same rates; and of the last push
 * what nobody has taken: *n_out samples at *out, which then are c's until the next push.
 */
void mt_converter_visit(struct mt_converter *c, const float **out, int64_t *n_out,
                        struct mt_state_io *io);
void mt_converter_free(struct mt_converter **c);

/* ---- log-mel ---- */

/*
 * The front end of HF's WhisperFeatureExtractor: n_fft 400, hop 160, 16 kHz, Slaney (mel.h). A
 * struct mt_mel has scratch inside: one thread at a time, any number of streams.
 */
struct mt_mel;
int mt_mel_new(struct mt_mel **out, int bands, struct mt_err *e);
void mt_mel_free(struct mt_mel **m);
/*
 * n rows of raw log10 values, `stride` floats from one to the next: row i is that of the 400
 * samples from x + 160 i on, of which the window leaves the first out.
 */
void mt_mel_rows(struct mt_mel *m, const float *x, int64_t n, float *rows, int64_t stride);

/* What a whole clip has behind its last sample, and so how many frames it has. */
enum mt_mel_edge {
    /*
     * Qwen2.5-Omni: zeros up to 300 s (and a reflection at the end of those: it shows in the last
     * row of a clip within 40 samples of 300 s). ceil(n / 160) frames; the clamp's maximum is that
     * of clip and padding.
     */
    MT_MEL_PADDED,
    MT_MEL_PADDED_30, /* MiniCPM-o: the same with 30 s, which no clip exceeds */
    /*
     * Qwen3-Omni, a clip by itself: its own reflection. floor(n / 160) frames, from 201 samples on;
     * the maximum is that of these frames.
     */
    MT_MEL_REFLECTED,
};
/* Mel frames of a whole clip of n samples; 0 for one too short. */
int64_t mt_mel_clip_frames(enum mt_mel_edge edge, int64_t n);

/*
 * A whole clip, offline: left edge reflected, clamp at 8 below the maximum, (v + 4) / 4. out is
 * [mt_mel_clip_frames(edge, n), bands], row-major: a row a frame. -EINVAL for a clip without
 * frames.
 */
int mt_mel_clip(struct mt_mel *m, enum mt_mel_edge edge, const float *pcm, int64_t n, float *out);

/*
 * Streaming: push samples in pieces of any size; frames come out, as the samples that they see, as
 * soon as frame t has its own up to 160 t + 199 (and, at the left edge, the 200 reflected ones).
 * State is bounded (under 1 KiB of samples). The caller makes their rows (mt_mel_rows, or a
 * backend's log_mel) and applies the clamp, a block at a time.
 */
struct mt_mel_stream {
    float hold[640]; /* samples from the first one that the next frame needs */
    int n_hold;
    int64_t next;  /* index of the next frame */
    int64_t heard; /* samples pushed */
    bool ended;
};
void mt_mel_stream_init(struct mt_mel_stream *s);
/* One that goes on, to memory or back: -EPROTO in io for one that has ended. */
void mt_mel_stream_visit(struct mt_mel_stream *s, struct mt_state_io *io);
/* Samples that n frames behind each other see. */
static inline int64_t mt_mel_sees(int64_t n)
{
    return MT_MEL_HOP * (n - 1) + MT_MEL_FFT;
}
/*
 * Consume up to n samples, emit at most max_frames frames: x, with room for mt_mel_sees(max_frames)
 * samples, gets those that they see. Returns the frames and stores samples consumed. end: after the
 * last sample, treat what follows as zeros and emit up to frame ceil(heard / 160) - 1; call with n
 * 0 until it returns 0. The frames don't depend on the pieces.
 */
int mt_mel_push(struct mt_mel_stream *s, const float *pcm, int64_t n, bool end, float *x,
                int max_frames, int64_t *consumed);
/*
 * The next frame's 400 samples, not yet due, as if the sound ended here: with what was pushed
 * reflected at its end. Two thirds of them must be there. The stream stays as it is.
 */
void mt_mel_peek(const struct mt_mel_stream *s, float *x);
/* The largest of n values and so_far. */
float mt_mel_loudest(const float *v, int64_t n, float so_far);
/* Each v of n = (max(v, loudest - 8) + 4) / 4. */
void mt_mel_scale(float *v, int64_t n, float loudest);

#endif
