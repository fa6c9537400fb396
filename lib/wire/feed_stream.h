/*
 * feed_stream.h: one session's sound in pieces: from a tape to audio messages, counting samples;
 * see feed_stream.c.
 */
#ifndef MT_FEED_STREAM_H
#define MT_FEED_STREAM_H

#include "wire/feeder.h"

struct feed_stream {
    struct mt_tape *tape;
    enum mt_pcm format;
    int64_t budget;      /* samples to send at most */
    int64_t sent;        /* samples given out in messages */
    unsigned char *hold; /* samples read and not sent, as the wire has them */
    int64_t n, cap;      /* samples */
    bool ended;          /* nothing follows what is held */
};

int mt_feed_stream_open(struct feed_stream *s, struct mt_reel *r, int64_t first, bool loop,
                        double length_s, int rate_hz);
/* Send no more than so much sound in all. */
void mt_feed_stream_limit(struct feed_stream *s, double length_s, int rate_hz);
void mt_feed_stream_close(struct feed_stream *s);
/*
 * Hold everything up to sample `upto` of the session. 1 when it is there or the sound has ended
 * (s->ended), 0 when a pipe has no more now, negative with e when the source failed (and has
 * ended).
 */
int mt_feed_stream_fill(struct feed_stream *s, int64_t upto, struct mt_err *e);
/* Pass over the first n samples: they are as sent. As mt_feed_stream_fill, but never 0. */
int mt_feed_stream_skip(struct feed_stream *s, int64_t n, struct mt_err *e);
/*
 * Bytes of the audio messages for all that is held, and the messages; returns the bytes written.
 * Counts the samples as sent.
 */
size_t mt_feed_stream_room(const struct feed_stream *s);
size_t mt_feed_stream_take(struct feed_stream *s, unsigned char *out);

/* The `open` of session i. NULL without memory or for a prompt that is not UTF-8. */
json_t *mt_feed_open_json(const struct mt_feed_opts *o, int64_t i);
json_t *mt_feed_end_json(void);
/* Samples of session time t at a rate, and back on the clock (ns). */
int64_t mt_feed_ns(double samples, int rate_hz, double speed);

#endif
