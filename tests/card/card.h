/*
 * card.h: what gpu-measure's parts share: the backend that is measured, times, random rows, and a
 * cache of sessions. Whatever fails ends the program with a line: nothing is measured then.
 *
 * Times are of the host's clock around work that was waited for, so that what the host costs is in
 * them; each figure is the median of CARD_RUNS times of at least `least` seconds.
 */
#ifndef MT_CARD_H
#define MT_CARD_H

#include "kernels/kernels.h"

enum { CARD_RUNS = 5, CARD_BLOCK = 16 };

struct card {
    struct mt_backend *be;
    struct mt_clock clock;
    bool tiny;
    double least;
};

void card_must(const char *what, int rc);
double card_now(struct card *c);
/* Waits for all that was queued before, and for r. */
void card_settle(struct card *c, struct mt_rows r);

struct card_time {
    double median, best, worst; /* seconds a call */
};
/* fn(arg, k) is the k-th call; r is what the last one writes. */
struct card_time card_timed(struct card *c, void (*fn)(void *, int), void *arg, struct mt_rows r);
/* As members us, us_best, us_worst. */
void card_put_time(json_t *o, const struct card_time *t);

struct mt_rows card_rows(struct card *c, int64_t n, int width);
/* Random rows, the first of a few again and again. */
struct mt_rows card_noise(struct card *c, int64_t n, int width);
void card_rows_free(struct card *c, struct mt_rows *r);

/* n sessions of `context` tokens each, and a row of each that comes next. */
struct card_calls {
    struct card *c;
    struct mt_kv *kv;
    struct mt_kv_shape shape;
    int32_t *blocks;
    struct mt_run *runs;
    int n;
    int64_t context, each; /* blocks of a session */
    struct mt_batch batch;
};
/* Keys and values are random, a session's blocks lie anywhere; `spare` tokens more have room. */
void card_calls_new(struct card_calls *x, struct card *c, struct mt_kv_shape shape, int heads,
                    int n, int64_t context, int spare);
void card_calls_free(struct card_calls *x);

/* ---- what it measures: exit statuses ---- */

/* step.c: MODEL SESSIONS… */
int card_step(struct card *c, char **arg);
/* play.c: model=M pool=P run=KV[:SEED]… clip=FILE… and calls, answer, frame, seconds, limit */
int card_play(struct card *c, char **arg);

#endif
