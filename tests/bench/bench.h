/*
 * bench.h: what the benches share: a clock, medians with their spread, and lines: a table for
 * people on stderr, NDJSON on stdout unless that is a terminal.
 */
#ifndef MT_BENCH_H
#define MT_BENCH_H

#include "base/base.h"

#include <errno.h>
#include <sched.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

/*
 * Where all of the work is one thread's, its CPU time may stand for the time: what another process
 * takes from it is nobody's speed.
 */
static bool bench_cpu_time;

static inline double bench_now(void)
{
    struct timespec t;

    clock_gettime(bench_cpu_time ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int bench_by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

/* Of n values, which are sorted; spread: (largest - smallest) / median. */
static inline double bench_median(double *v, int n, double *spread)
{
    qsort(v, (size_t)n, sizeof(*v), bench_by_value);
    *spread = v[n / 2] > 0 ? (v[n - 1] - v[0]) / v[n / 2] : 0;
    return v[n / 2];
}

/* A failure ends the program. */
static inline void bench_need(int rc, const char *what)
{
    if (rc < 0) {
        mt_msg(MT_ERROR, "%s: %s", what, strerror(-rc));
        exit(MT_EXIT_FAILED);
    }
}

/* Zeroed; the end of the program where there is no memory. */
static inline void *bench_alloc(size_t n, size_t size)
{
    void *p = mt_alloc(n, size);

    if (!p) {
        mt_msg(MT_ERROR, "no memory for %zu times %zu bytes", n, size);
        exit(MT_EXIT_FAILED);
    }
    return p;
}

/* As many as the process may run on. */
static inline int bench_threads(void)
{
    cpu_set_t set;
    int n = sched_getaffinity(0, sizeof(set), &set) ? 1 : CPU_COUNT(&set);

    return n > 256 ? 256 : n;
}

/* o, which it takes, and the same for people. */
static inline void MT_PRINTF(2, 3) bench_line(json_t *o, const char *fmt, ...)
{
    va_list ap;

    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
    if (isatty(STDOUT_FILENO))
        json_decref(o);
    else
        mt_json_line(stdout, o);
}

#endif
