/*
 * internal.h: what the files of lib/audio share and nobody else sees: a buffered byte source over a
 * descriptor, the header of a plain WAV, and the table of sample formats.
 */
#ifndef MT_AUDIO_INTERNAL_H
#define MT_AUDIO_INTERNAL_H

#include <sndfile.h>

#include "audio/audio.h"

/* The most we take from any header. 1024 is also libsndfile's limit. */
enum { MT_RATE_MAX = 768000, MT_CHANNELS_MAX = 1024 };

/* Bytes of one sample. */
int mt_pcm_bytes(enum mt_sample_type sample);
/* n samples to f32 as libsndfile scales them: integers by 2^-(bits - 1), floats as they are. */
void mt_pcm_decode(enum mt_sample_type sample, const unsigned char *src, float *out, int64_t n);

/*
 * A file or pipe read forward through a buffer. base is the offset of buf[0], pos and len bound
 * what is buffered and not consumed. While keep is set every consumed byte stays at the front of
 * buf, so that a pipe can still be handed to another reader from its first byte.
 */
struct mt_bytes {
    int fd;
    bool regular; /* seekable, and read from offset 0 */
    bool keep;
    bool end;
    int64_t size; /* of a regular file, else -1 */
    int64_t base;
    size_t pos, len, cap;
    unsigned char *buf;
    const char *name; /* for messages; borrowed */
};
int mt_bytes_init(struct mt_bytes *b, int fd, int64_t regular_size, const char *name);
/* Try to have n bytes buffered; blocks. Returns how many are, fewer only at the end, or -errno. */
int64_t mt_bytes_need(struct mt_bytes *b, size_t n, struct mt_err *e);
int64_t mt_bytes_skip(struct mt_bytes *b, int64_t n, struct mt_err *e);
/* read() that waits out signals and descriptors that don't block. */
int64_t mt_read_some(int fd, void *buf, size_t n);

/*
 * The header of a WAV (RIFF, RF64, BW64) up to its first sample. 1: plain PCM or float, b stands at
 * the first sample, bytes is their stated length (INT64_MAX when the header doesn't know).
 * 0: another encoding, for libsndfile; b still has every byte from the start (or is regular).
 */
struct mt_wav_header {
    struct mt_raw_format format;
    int64_t bytes;
    int64_t stated; /* bytes, as the header has them; -1: it doesn't know */
    int tag, bits;  /* the encoding as the file names it, for a message */
};
int mt_wav_header_read(struct mt_bytes *b, struct mt_wav_header *out, struct mt_err *e);

/*
 * Where a seekable WAV of size bytes says that its samples have no bytes although some follow: the
 * offset of that 32-bit length, and in *bytes what it should be. -1 if there is no such place.
 */
int64_t mt_wav_find_blank(int fd, int64_t size, uint32_t *bytes);

/*
 * Copy all that b holds and its pipe still brings to an unlinked temporary file ($TMPDIR or /tmp).
 * *out is its descriptor, the caller's. A stream that libsndfile doesn't know after its first 64
 * KiB is refused then, so that an endless one can't fill the disk.
 */
int mt_spool(struct mt_bytes *b, int *out, struct mt_err *e);

/*
 * libsndfile over a seekable descriptor, which stays the caller's, read from byte 0 by pread: so
 * nobody's file offset matters. A blank WAV length is filled in on the way, not in the file.
 */
struct mt_view {
    int fd;
    int64_t size, pos;
    bool no_end;      /* seeking from the end fails */
    int64_t patch_at; /* -1: none */
    unsigned char patch[4];
};
SNDFILE *mt_view_open(struct mt_view *v, int fd, int64_t size, SF_INFO *info);
/* libsndfile's reason why it could not open, without its trailing full stop. */
const char *mt_sf_reason(SNDFILE *sf, char *text, size_t n);

#endif
