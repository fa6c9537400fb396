/*
 * reel_rate.c: the rate to send where none is asked for. Models hear at 16 or 24 kHz, and which one
 * listens is not known before the wire is written: so the sound goes out as rich as it is, up to
 * what any of them hears.
 */
#include <sys/stat.h>

#include "wire/reel.h"

#define RATE_LEAST 16000
#define RATE_MOST  24000

/* 0 where it can't be told without reading what can be read only once. */
static int rate_of(const char *path, const struct mt_raw_format *raw)
{
    struct mt_sound *sound = NULL;
    struct mt_err e = {0};
    struct stat st;
    int rate = 0;

    if (raw)
        return raw->rate_hz;
    if (stat(path, &st) < 0 || !S_ISREG(st.st_mode))
        return 0;
    if (mt_sound_open(&sound, path, NULL, &e) == 0)
        rate = mt_sound_info(sound)->rate_hz;
    mt_sound_close(&sound);
    return rate;
}

int mt_reel_rate(const char *const *paths, int n, const struct mt_raw_format *raw)
{
    int rate = RATE_LEAST;

    for (int i = 0; i < n && rate < RATE_MOST; i++) {
        int one = rate_of(paths[i], raw);

        rate = one > rate ? one : rate;
    }
    return rate < RATE_MOST ? rate : RATE_MOST;
}
