/*
 * plant.h: a machine that serves frames, in virtual time: c(n) = a + b n (and a part that grows
 * with the tokens held), demand that always waits, one admission in 5 frames, calls that end at
 * random. What a controller is tried on.
 */
#ifndef MT_TEST_PLANT_H
#define MT_TEST_PLANT_H

#include "control/admit.h"

#include <math.h>

struct plant {
    double T, a, b;        /* s */
    double jitter;         /* standard deviation, share of c */
    double outliers, slow; /* share of frames, and factor of their c */
    double mean_s;         /* of a call's length, exponential; 0: nobody hangs up */
    double token_s;        /* cost of a resident token */
    int full;              /* tokens that a session holds at most; one more each frame */
    bool at_once;          /* n follows the limit in no time, both ways */
    bool idle;             /* nobody calls */
    uint64_t word;         /* of the generator */
    int n;
    int64_t frame;
    int len[512];
    double x; /* latency of the last frame */
};

static inline double plant_unit(struct plant *p)
{
    return mt_unit(mt_mix64(p->word++));
}

static inline double plant_gauss(struct plant *p)
{
    double u = 1 - plant_unit(p), v = plant_unit(p);

    return sqrt(-2 * log(u)) * cos(2 * M_PI * v);
}

static inline void plant_reference(struct plant *p, uint64_t seed)
{
    *p = (struct plant){.T = 0.08, .a = 0.02, .b = 0.0015, .word = mt_mix64(seed) << 20, .slow = 1};
}

static inline void plant_admit(struct plant *p, int limit)
{
    if (p->at_once) {
        p->n = limit;
        return;
    }
    for (int i = p->n - 1; i >= 0 && p->mean_s > 0; i--)
        if (plant_unit(p) < p->T / p->mean_s)
            p->len[i] = p->len[--p->n];
    if (p->frame % 5 == 0 && p->n < limit && p->n < 512 && !p->idle)
        p->len[p->n++] = 0;
}

/* One frame: who came and went, and how long it took. */
static inline void plant_step(struct plant *p, int limit, struct mt_admit_obs *o)
{
    double c, tokens = 0;

    plant_admit(p, limit);
    for (int i = 0; i < p->n; i++) {
        tokens += p->len[i];
        if (p->full > 0 && p->len[i] < p->full)
            p->len[i]++;
    }
    c = p->a + p->b * p->n + p->token_s * tokens;
    if (p->jitter > 0)
        c *= fmax(0.1, 1 + p->jitter * plant_gauss(p));
    if (p->outliers > 0 && plant_unit(p) < p->outliers)
        c *= p->slow;
    p->x = c;
    *o = (struct mt_admit_obs){.release_s = (double)p->frame * p->T,
                               .done_s = (double)p->frame * p->T + c,
                               .sessions = p->n,
                               .due = p->n,
                               .ontime = c < p->T ? p->n : 0,
                               .late = c < p->T ? 0 : p->n,
                               .pool = NAN,
                               .kv_tokens = p->full > 0 ? tokens : NAN,
                               .cap = -1};
    p->frame++;
}

static inline double plant_now(const struct plant *p)
{
    return (double)p->frame * p->T;
}

/* ---- a pool of blocks: what an unbounded cache does when it is full ---- */

enum { POOL_BLOCKS = 3072, POOL_BLOCK = 16, POOL_SESSIONS = 512, POOL_BACKLOG = 10 };

struct pool_call {
    int len;
    bool out; /* evicted: it waits until its tokens fit again */
};

/* Sessions in order of admission: the youngest is evicted first, the oldest comes back first. */
struct pool {
    struct plant p;
    int limit_tokens; /* of one session, 0: unbounded */
    int used;         /* blocks */
    struct pool_call call[POOL_SESSIONS];
    double busy_s; /* the machine works on earlier frames until then */
    int64_t missed, frames;
};

static inline int pool_blocks(int tokens)
{
    return (tokens + POOL_BLOCK - 1) / POOL_BLOCK;
}

static inline void pool_evict(struct pool *q, int but)
{
    for (int i = q->p.n - 1; i >= 0; i--)
        if (!q->call[i].out && i != but) {
            q->call[i].out = true;
            q->used -= pool_blocks(q->call[i].len);
            return;
        }
}

static inline void pool_leave(struct pool *q, int i)
{
    if (!q->call[i].out)
        q->used -= pool_blocks(q->call[i].len);
    q->p.n--;
    for (; i < q->p.n; i++)
        q->call[i] = q->call[i + 1];
}

/* One more token for session i; others make room. */
static inline void pool_grow(struct pool *q, int i)
{
    struct pool_call *c = &q->call[i];

    if (q->limit_tokens > 0 && c->len >= q->limit_tokens)
        return;
    if (c->len % POOL_BLOCK == 0) {
        if (q->used == POOL_BLOCKS)
            pool_evict(q, i);
        if (q->used < POOL_BLOCKS)
            q->used++;
        else {
            c->out = true;
            q->used -= pool_blocks(c->len);
            return;
        }
    }
    c->len++;
}

/*
 * Seconds of recomputing for those who come back, the oldest first: who does not fit yet keeps the
 * others waiting.
 */
static inline double pool_return(struct pool *q)
{
    double s = 0;

    for (int i = 0; i < q->p.n; i++) {
        struct pool_call *c = &q->call[i];
        int need = pool_blocks(c->len + 1);

        if (!c->out)
            continue;
        if (q->used + need > POOL_BLOCKS)
            break;
        q->used += pool_blocks(c->len);
        c->out = false;
        s += 0.0002 * c->len;
    }
    return s;
}

/* o as it truly is; the step's own time in *step_s. */
static inline void pool_step(struct pool *q, int limit, struct mt_admit_obs *o, double *step_s)
{
    struct plant *p = &q->p;
    double release = (double)p->frame * p->T, begin, c;
    int running = 0;

    for (int i = p->n - 1; i >= 0; i--)
        if (p->mean_s > 0 && plant_unit(p) < p->T / p->mean_s)
            pool_leave(q, i);
    if (p->frame % 5 == 0 && p->n < limit && p->n < POOL_SESSIONS)
        q->call[p->n++] = (struct pool_call){.out = true}; /* a new one waits like the others */
    c = pool_return(q);
    for (int i = 0; i < p->n; i++)
        if (!q->call[i].out)
            pool_grow(q, i);
    for (int i = 0; i < p->n; i++)
        running += !q->call[i].out;
    c += p->a + p->b * running;
    begin = fmax(release, fmin(q->busy_s, release + POOL_BACKLOG * p->T));
    q->busy_s = begin + c;
    *step_s = c;
    p->x = q->busy_s - release;
    *o = (struct mt_admit_obs){.release_s = release,
                               .done_s = q->busy_s,
                               .sessions = p->n,
                               .due = p->n,
                               .ontime = p->x < p->T ? running : 0,
                               .late = p->x < p->T ? 0 : running,
                               .skipped = p->n - running,
                               .pool = (double)q->used / POOL_BLOCKS,
                               .kv_tokens = NAN,
                               .cap = -1};
    q->frames += p->n;
    q->missed += p->n - o->ontime;
    p->frame++;
}

#endif
