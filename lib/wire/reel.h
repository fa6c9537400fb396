/*
 * reel.h: the sound that mt-feed sends. A reel is the files of a run, each decoded and converted
 * once and shared by every session; a tape is one session's place in it. Files that would not fit
 * the reel's memory are read by each tape for itself, and a pipe by a thread, so that a reader
 * never waits.
 */
#ifndef MT_REEL_H
#define MT_REEL_H

#include "audio/audio.h"
#include "base/base.h"
#include "wire/wire.h"

struct mt_reel_opts {
    int rate_hz;                     /* of what the tapes give */
    const struct mt_raw_format *raw; /* NULL: the files have headers; borrowed for the open */
    bool shared; /* several tapes, or one that comes again: pipes are read to their end first */
    bool repeat; /* tapes come round again: then one file must hold a sample */
    int64_t hold_samples; /* kept in memory, all files together */
    /*
     * Once for a file that is shorter than its header says, or empty, when its end is reached. May
     * be NULL.
     */
    void (*note)(void *ctx, enum mt_level level, const char *text);
    void *ctx;
};

/*
 * The rate to send n files at where none is asked for: the highest of theirs, in 16000..24000. A
 * pipe doesn't tell, nor does what can't be opened.
 */
int mt_reel_rate(const char *const *paths, int n, const struct mt_raw_format *raw);

struct mt_reel;
/*
 * Looks at every file before the first sample is sent, so that a mistake in the last one is known
 * in time. -EINVAL when "-" stands there twice, -E2BIG for a pipe that is shared and longer than
 * hold_samples, -ENODATA for `repeat` without a sample.
 */
int mt_reel_open(struct mt_reel **out, const char *const *paths, int n,
                 const struct mt_reel_opts *o, struct mt_err *e);
/* Tapes must be closed first. A pipe that is still being read is left to its thread. */
void mt_reel_close(struct mt_reel **r);
/*
 * The smallest wire format that holds every sample exactly: s16le if all files are mono, at
 * rate_hz, of at most 16 bits.
 */
enum mt_pcm mt_reel_pcm(const struct mt_reel *r);

/*
 * Owned by one session. Reads all files once from number `first` (taken modulo the count), or for
 * ever when `loop`.
 */
struct mt_tape;
int mt_tape_open(struct mt_tape **out, struct mt_reel *r, int64_t first, bool loop);
void mt_tape_close(struct mt_tape **t);
/*
 * Up to n samples; fewer only at the end of a file or where a pipe has no more yet. 0 at the end,
 * -EAGAIN when a pipe has nothing now, or a negative errno with e (then the tape is at its end).
 */
int64_t mt_tape_read(struct mt_tape *t, float *out, int64_t n, struct mt_err *e);
/*
 * Of the pipe being read: a descriptor that polls readable when there is more to read; -1 for
 * files.
 */
int mt_tape_wait_fd(const struct mt_tape *t);
/*
 * Of the pipe being read: when its first sample came (CLOCK_MONOTONIC), 0 while none did or for
 * files.
 */
int64_t mt_tape_began_ns(const struct mt_tape *t);

#endif
