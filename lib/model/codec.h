/*
 * codec.h: the audio codec of a model that speaks, by itself: sound to codes and codes to sound,
 * one call, frame by frame.
 */
#ifndef MT_CODEC_H
#define MT_CODEC_H

#include "model/model.h"

struct mt_codec;
struct mt_codec_info {
    int sample_rate_hz;
    int frame_samples;
    int codebooks; /* codes of a frame */
    int bins;      /* a code is 0..bins-1 */
};

/*
 * spec: a directory that holds a codec (alone, or as released beside its model), a safetensors
 * file, or "synth:NAME[,seed=N]" of a model that has one. codebooks: how many of its codebooks to
 * use, 0 for as many as its model speaks. whole: as the authors' code takes a clip at once, else as
 * a live call. Errors name file and field or tensor. The backend and the files must outlive it.
 */
int mt_codec_open(struct mt_codec **out, const char *spec, struct mt_backend *be, int codebooks,
                  bool whole, struct mt_err *e);
void mt_codec_close(struct mt_codec **c);
const struct mt_codec_info *mt_codec_info(const struct mt_codec *c);
/* The next frame: pcm [frame_samples], codes [codebooks]. */
void mt_codec_encode(struct mt_codec *c, const float *pcm, int32_t *codes);
/* -ERANGE, and nothing is heard, for a code that is not in 0..bins-1. */
int mt_codec_decode(struct mt_codec *c, const int32_t *codes, float *pcm);

#endif
