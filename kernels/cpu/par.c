/*
 * par.c: a backend's threads. A job is a range of items cut into more shares than threads; whoever
 * is free takes the next one, the caller too, and the caller waits only for threads that have
 * begun. So a thread that the system has put aside delays a job by nothing (OpenMP's barrier waits
 * for every member of its team, a whole time slice on a busy machine), and ThreadSanitizer sees all
 * of it.
 *
 * Threads wait for the next job by spinning for some 20 us, the pause between two operations of a
 * step, and then asleep.
 */
#include "kernels/cpu/cpu.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>

/* Below this many multiply-adds a thread, waking one costs more than it gains. */
#define MT_PAR_GRAIN 65536
/* Shares a thread: the more, the less the last one is waited for. */
#define MT_PAR_SHARES 4
#define MT_PAR_SPINS  1000

/*
 * `state` is the job's number << 32, the threads it is for << 16, whether it is OPEN to join, and
 * how many have joined and not left: one word, so that nobody joins a job that is being closed.
 */
#define OPEN       UINT64_C(0x8000)
#define INSIDE(s)  ((s)&0x7fff)
#define THREADS(s) ((s) >> 16 & 0xffff)
#define NUMBER(s)  ((s) >> 32)

struct worker {
    struct mt_team *team;
    pthread_t id;
    unsigned number; /* 1..: the caller is 0 */
};

struct mt_team {
    _Atomic uint64_t state;
    _Atomic int64_t next; /* share */
    _Atomic int asleep;
    _Atomic bool stop;
    /* the job: written before it opens, read inside it */
    mt_par_fn *fn;
    void *arg;
    int64_t items, shares;
    pthread_mutex_t lock; /* for sleeping only */
    pthread_cond_t work, done;
    int n;
    struct worker worker[];
};

static void relax(void)
{
#ifdef __x86_64__
    __builtin_ia32_pause();
#endif
}

/* A contiguous part of n items. */
static int64_t share_begin(int64_t n, int64_t share, int64_t shares)
{
    return n / shares * share + (share < n % shares ? share : n % shares);
}

static void work(struct mt_team *p, int thread)
{
    int64_t i;

    while ((i = atomic_fetch_add_explicit(&p->next, 1, memory_order_relaxed)) < p->shares)
        p->fn(p->arg, thread, share_begin(p->items, i, p->shares),
              share_begin(p->items, i + 1, p->shares));
}

/* Wait for a job after number `seen`; its state, or 0 at the end of all. */
static uint64_t wait_for_job(struct mt_team *p, uint64_t seen)
{
    uint64_t s;

    for (int i = 0; i < MT_PAR_SPINS; i++) {
        if (NUMBER(s = atomic_load(&p->state)) != seen)
            return s;
        relax();
    }
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&p->asleep, 1);
    while (NUMBER(s = atomic_load(&p->state)) == seen && !atomic_load(&p->stop))
        pthread_cond_wait(&p->work, &p->lock);
    atomic_fetch_sub(&p->asleep, 1);
    pthread_mutex_unlock(&p->lock);
    return NUMBER(s) == seen ? 0 : s;
}

static void *worker_main(void *arg)
{
    struct worker *w = arg;
    struct mt_team *p = w->team;
    uint64_t seen = 0, s;

    while ((s = wait_for_job(p, seen))) {
        seen = NUMBER(s);
        while (NUMBER(s) == seen && (s & OPEN) && w->number < THREADS(s)) {
            if (!atomic_compare_exchange_weak(&p->state, &s, s + 1))
                continue;
            work(p, (int)w->number);
            s = atomic_fetch_sub(&p->state, 1) - 1;
            if (!(s & OPEN) && !INSIDE(s)) { /* the caller may be asleep over it */
                pthread_mutex_lock(&p->lock);
                pthread_cond_signal(&p->done);
                pthread_mutex_unlock(&p->lock);
            }
            break;
        }
    }
    return NULL;
}

int mt_team_new(struct mt_team **out, int threads)
{
    struct mt_team *p = calloc(1, sizeof(*p) + (size_t)threads * sizeof(p->worker[0]));
    sigset_t all, old;

    *out = p;
    if (!p)
        return -1;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->done, NULL);
    sigfillset(&all); /* signals are for the threads that wait for them */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    for (; p->n < threads - 1; p->n++) {
        struct worker *w = &p->worker[p->n];

        *w = (struct worker){.team = p, .number = (unsigned)p->n + 1};
        if (pthread_create(&w->id, NULL, worker_main, w))
            break;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (p->n == threads - 1)
        return 0;
    mt_team_free(p);
    *out = NULL;
    return -1;
}

void mt_team_free(struct mt_team *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->stop, true);
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->n; i++)
        pthread_join(p->worker[i].id, NULL);
    pthread_cond_destroy(&p->work);
    pthread_cond_destroy(&p->done);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

static void run(struct mt_team *p, int threads)
{
    uint64_t s = (NUMBER(atomic_load(&p->state)) + 1) & UINT32_MAX;

    atomic_store_explicit(&p->next, 0, memory_order_relaxed);
    atomic_store(&p->state, s << 32 | (uint64_t)threads << 16 | OPEN);
    if (atomic_load(&p->asleep)) {
        pthread_mutex_lock(&p->lock);
        pthread_cond_broadcast(&p->work);
        pthread_mutex_unlock(&p->lock);
    }
    work(p, 0);
    atomic_fetch_and(&p->state, ~OPEN);
    for (int i = 0; i < MT_PAR_SPINS && INSIDE(atomic_load(&p->state)); i++)
        relax();
    if (!INSIDE(atomic_load(&p->state)))
        return;
    pthread_mutex_lock(&p->lock);
    while (INSIDE(atomic_load(&p->state)))
        pthread_cond_wait(&p->done, &p->lock);
    pthread_mutex_unlock(&p->lock);
}

void mt_par(struct mt_cpu *c, int64_t items, int64_t work_each, mt_par_fn *fn, void *arg)
{
    int64_t t = c->threads, total;

    if (items < 1)
        return;
    if (!__builtin_mul_overflow(items, work_each, &total) && t > total / MT_PAR_GRAIN)
        t = total / MT_PAR_GRAIN;
    t = t > items ? items : t;
    if (t <= 1) {
        fn(arg, 0, 0, items);
        return;
    }
    c->team->fn = fn;
    c->team->arg = arg;
    c->team->items = items;
    c->team->shares = t * MT_PAR_SHARES < items ? t * MT_PAR_SHARES : items;
    run(c->team, (int)t);
}
