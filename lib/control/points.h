/*
 * points.h: points (n, x) for the fit of a frame's cost c(N) = a + b N, from frame records or as
 * they are given. A tick is one deadline long, and its boundary lies opposite to the mean phase of
 * the releases, so sessions in step are never cut apart. Its n is the frames served in it, its x
 * the worst latency of them; a tick with a frame that wasn't served is no measurement and left out,
 * and so is one with a cold frame ("cold":true).
 */
#ifndef MT_POINTS_H
#define MT_POINTS_H

#include "base/base.h"

struct mt_points;

/* tick_s 0: the records' smallest deadline_ms. */
int mt_points_open(struct mt_points **out, double tick_s);
void mt_points_close(struct mt_points **t);

/*
 * One line (n bytes): a frame record with t and latency_ms; an object with n and x_ms; or two
 * numbers, n and x in ms, with a space or a comma between. 1 taken, 0 not of our kind, -EBADMSG,
 * -ENOMEM.
 */
int mt_points_line(struct mt_points *t, const char *line, size_t n);

/*
 * The points so far, in seconds; *n and *x_s belong to t and last until the next call. -ENODATA
 * when the records tell no deadline and tick_s was 0; -ENOMEM.
 */
int mt_points_get(struct mt_points *t, const double **n, const double **x_s, int64_t *count);

#endif
