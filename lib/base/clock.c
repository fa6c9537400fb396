/*
 * clock.c: the clocks. Deadlines are absolute, so the real one sleeps until a time, never for one;
 * the virtual one gets there at once, which lets hours of scheduling run in a second; the third
 * does so too, but what is done between two sleeps takes as long as it does.
 */
#include "base/base.h"

#include <errno.h>
#include <time.h>

static int64_t real_now(struct mt_clock *c)
{
    struct timespec ts;

    (void)c;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * MT_NS_PER_S + ts.tv_nsec;
}

static void real_sleep_until(struct mt_clock *c, int64_t t)
{
    struct timespec ts;

    (void)c;
    if (t <= 0)
        return;
    ts.tv_sec = (time_t)(t / MT_NS_PER_S);
    ts.tv_nsec = (long)(t % MT_NS_PER_S);
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL) == EINTR)
        ;
}

static int64_t virtual_now(struct mt_clock *c)
{
    return c->virtual_ns;
}

static void virtual_sleep_until(struct mt_clock *c, int64_t t)
{
    if (t > c->virtual_ns)
        c->virtual_ns = t;
}

static int64_t working_now(struct mt_clock *c)
{
    return real_now(c) + c->virtual_ns;
}

static void working_sleep_until(struct mt_clock *c, int64_t t)
{
    int64_t left = t - working_now(c);

    c->virtual_ns += left > 0 ? left : 0;
}

struct mt_clock mt_clock_real(void)
{
    return (struct mt_clock){.now_ns = real_now, .sleep_until_ns = real_sleep_until};
}

struct mt_clock mt_clock_virtual(int64_t start_ns)
{
    return (struct mt_clock){
        .now_ns = virtual_now, .sleep_until_ns = virtual_sleep_until, .virtual_ns = start_ns};
}

struct mt_clock mt_clock_working(int64_t start_ns)
{
    return (struct mt_clock){.now_ns = working_now,
                             .sleep_until_ns = working_sleep_until,
                             .virtual_ns = start_ns - real_now(NULL)};
}
