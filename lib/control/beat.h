/*
 * beat.h: how far apart the frames of a session are due, seen in a run's records alone. A wall
 * comes as a frame begins, so no forecast of it can be finer than that.
 */
#ifndef MT_BEAT_H
#define MT_BEAT_H

#include "base/base.h"

struct mt_beat;

/* Of fixed size. -ENOMEM. */
int mt_beat_open(struct mt_beat **out);
void mt_beat_close(struct mt_beat **b);

/*
 * A frame record; one that lacks its session, its number, t or latency_ms says nothing. In the
 * order of time for each session; sessions beyond some thousands are looked at in part.
 */
void mt_beat_record(struct mt_beat *b, const json_t *record);

/* Whether a frame record is of a session's first frame. */
bool mt_beat_first(const json_t *record);

/*
 * The median time between one frame and the next of a session, in seconds, at most 2 % above it; 0
 * while no two are known. Callers who pause leave gaps, which a median passes over.
 */
double mt_beat_s(struct mt_beat *b);

#endif
