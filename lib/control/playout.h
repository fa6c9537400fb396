/*
 * playout.h: what a listener hears of a call, from its frame records. Each answer has its place in
 * time: it is due when the listener's buffer is over, or at its frame's deadline, and lasts one
 * frame. Where it is not there, the listener hears a gap.
 */
#ifndef MT_PLAYOUT_H
#define MT_PLAYOUT_H

#include "base/base.h"
#include "engine/engine.h"

/* One frame's record, as far as a listener is concerned. */
struct mt_playout_frame {
    const char *session;
    int64_t frame;
    enum mt_status status;
    double delay_ms;    /* from the frame being complete to the answer being here; NAN: unknown */
    double deadline_ms; /* NAN: unknown */
    int64_t tokens_out; /* -1: unknown */
};

/* Sums of one session; of all of them in a total. */
struct mt_playout_sums {
    int64_t frames; /* heard of, missing ones included */
    int64_t heard;  /* answers that played, whole or in part */
    int64_t silent; /* frames without an answer: stalled, dropped, failed, missing, untruthful */
    int64_t untruthful; /* of them, "ok" although nothing was decoded */
    int64_t missing;    /* of them, without a record */
    int64_t repeated;   /* records of a frame that had one (the first counts) */
    int64_t gaps;       /* stretches of silence where sound was due; neighbours are one */
    int64_t underruns;  /* answers that came after they were due, so that playing began late */
    int64_t refused;    /* calls that were not admitted */
    double gap_s, longest_gap_s;
    double underrun_s, longest_underrun_s;
};

struct mt_playout;
/*
 * frame_s: length of a frame where nothing tells it (0: then the deadline's). buffer_s: how long
 * after its frame is complete an answer is due, NAN: at its deadline.
 */
int mt_playout_new(struct mt_playout **out, double frame_s, double buffer_s);
void mt_playout_free(struct mt_playout **p);
/* The server said how long this session's frames are. Negative without memory. */
int mt_playout_frame_length(struct mt_playout *p, const char *session, double frame_s);
/*
 * In any order, as long as a session's frames are less than 64 away from their place. -ENOMEM
 * without memory or beyond a million sessions.
 */
int mt_playout_add(struct mt_playout *p, const struct mt_playout_frame *f);
/*
 * No more records: frames that are held for their order are played, and those before them are
 * missing.
 */
void mt_playout_end(struct mt_playout *p);
/*
 * After the end: sessions in the order in which they came (NULL behind the last), and the sums over
 * all.
 */
const char *mt_playout_session(const struct mt_playout *p, size_t i, struct mt_playout_sums *out);
void mt_playout_total(const struct mt_playout *p, struct mt_playout_sums *out);

#endif
