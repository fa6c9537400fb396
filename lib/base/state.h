/*
 * state.h: what something owns, written to memory or read back from there, by one description: a
 * function that takes a struct mt_state_io and names each member in turn. Whether it writes or
 * reads is the io's; so the two can't drift apart. What is read may come from anywhere: each value
 * has a range, and what lies outside ends the reading with one line. Writing checks the same
 * ranges, so that nothing is written which could not be read again.
 *
 * Numbers are stored as they lie in memory, in 8 bytes each, and so are blocks, at multiples of 8.
 */
#ifndef MT_STATE_H
#define MT_STATE_H

#include "base/base.h"

struct mt_state_io {
    bool load;
    /*
     * Writing: malloc'ed, the caller's. Reading: borrowed, at an address that is a multiple of 8.
     */
    unsigned char *data;
    size_t n, cap;     /* bytes there are; writing: room for so many */
    size_t at;         /* reading: bytes that were taken */
    struct mt_err err; /* the first failure; from then on nothing is moved */
};

static inline bool mt_state_ok(const struct mt_state_io *io)
{
    return io->err.code == 0;
}
/* The first failure stays. Returns its code. */
int mt_state_fail(struct mt_state_io *io, int code, const char *fmt, ...) MT_PRINTF(3, 4);
/* Room for n bytes more, so that a large state is not moved while it grows. 0 or -ENOMEM. */
int mt_state_reserve(struct mt_state_io *io, size_t n);
/* Reading: -EPROTO unless all was taken. */
int mt_state_end(struct mt_state_io *io);

/*
 * The next n bytes: to be filled, or to be read; NULL after a failure, and when there are not so
 * many. Valid until the next call.
 */
void *mt_state_block(struct mt_state_io *io, const char *what, size_t n);

/* Values; lo..hi is the range that they must be in. */
void mt_state_i64(struct mt_state_io *io, const char *what, int64_t *v, int64_t lo, int64_t hi);
void mt_state_int(struct mt_state_io *io, const char *what, int *v, int lo, int hi);
void mt_state_u64(struct mt_state_io *io, const char *what, uint64_t *v);
void mt_state_size(struct mt_state_io *io, const char *what, size_t *v, size_t hi);
void mt_state_bool(struct mt_state_io *io, const char *what, bool *v);
/* One that is no number is refused; infinite ones are not. */
void mt_state_f64(struct mt_state_io *io, const char *what, double *v);
void mt_state_f32(struct mt_state_io *io, const char *what, float *v);
void mt_state_ids(struct mt_state_io *io, const char *what, int32_t *v, size_t n, int32_t lo,
                  int32_t hi);
void mt_state_floats(struct mt_state_io *io, const char *what, float *v, size_t n);
void mt_state_bytes(struct mt_state_io *io, const char *what, void *v, size_t n);
/*
 * A text, NULL included, of at most `most` bytes. Reading: *v is malloc'ed, the caller's, and was
 * NULL before.
 */
void mt_state_text(struct mt_state_io *io, const char *what, char **v, size_t most);
/*
 * What both sides must have alike (a shape, an option): written as it is; read, it must be what
 * stands in the file, or the line says both.
 */
void mt_state_same(struct mt_state_io *io, const char *what, int64_t v);

#endif
