/*
 * reel_pipe.h: a pipe as a source that never makes its reader wait; see reel_pipe.c.
 */
#ifndef MT_REEL_PIPE_H
#define MT_REEL_PIPE_H

#include "audio/audio.h"
#include "base/base.h"

struct mt_reel_pipe;
/* Takes the sound, on failure too. */
int mt_reel_pipe_open(struct mt_reel_pipe **out, struct mt_sound *sound, int rate_hz,
                      struct mt_err *e);
void mt_reel_pipe_close(struct mt_reel_pipe **p);
/* As mt_tape_read. */
int64_t mt_reel_pipe_read(struct mt_reel_pipe *p, float *out, int64_t n, struct mt_err *e);
/* At its end: as mt_sound_short. */
int mt_reel_pipe_short(struct mt_reel_pipe *p, struct mt_err *out);
int mt_reel_pipe_fd(const struct mt_reel_pipe *p);
int64_t mt_reel_pipe_began_ns(struct mt_reel_pipe *p);

#endif
