/*
 * par.c: the one place with threads: OpenMP, so that the team of threads is kept between calls.
 * Under ThreadSanitizer the same split runs on pthreads, whose start and join it understands
 * (libgomp's own barriers are invisible to it and would be reported as races).
 */
#include "kernels/cpu/cpu.h"

/* Below this many multiply-adds a thread, starting one costs more than it gains. */
#define MT_PAR_GRAIN 32768

int mt_par_threads(const struct mt_cpu *c, int64_t items, int64_t work)
{
    int64_t t = c->threads;
    int64_t total;

    if (!__builtin_mul_overflow(items, work, &total) && t > total / MT_PAR_GRAIN)
        t = total / MT_PAR_GRAIN;
    if (t > items)
        t = items;
    return t < 1 ? 1 : (int)t;
}

#ifdef __SANITIZE_THREAD__

#include <pthread.h>

struct job {
    mt_par_fn *fn;
    void *arg;
    int thread, threads;
};

static void *job_run(void *p)
{
    struct job *j = p;

    j->fn(j->arg, j->thread, j->threads);
    return NULL;
}

void mt_par(int threads, mt_par_fn *fn, void *arg)
{
    struct job job[256];
    pthread_t id[256];
    bool started[256];

    for (int t = 1; t < threads; t++) {
        job[t] = (struct job){fn, arg, t, threads};
        started[t] = pthread_create(&id[t], NULL, job_run, &job[t]) == 0;
    }
    fn(arg, 0, threads);
    for (int t = 1; t < threads; t++) {
        if (started[t])
            pthread_join(id[t], NULL);
        else
            job_run(&job[t]);
    }
}

#else

void mt_par(int threads, mt_par_fn *fn, void *arg)
{
    if (threads == 1) {
        fn(arg, 0, 1);
        return;
    }
    /* OpenMP may give fewer threads than asked: a loop over shares still runs each of them once. */
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int t = 0; t < threads; t++)
        fn(arg, t, threads);
}

#endif
