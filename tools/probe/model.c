/*
 * model.c: what mt-probe's subcommands on a model share: options, opening, clips of audio files.
 */
#include "tools/probe/probe.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { STEP_ROWS = 64, CLIP_MAX_S = 3600 };

bool probe_model_option(struct probe_model *p, int key, char *arg, struct argp_state *st)
{
    switch (key) {
    case 'm':
        p->spec = arg;
        return true;
    case 'T':
        p->threads = mt_arg_threads(st, arg);
        return true;
    case 'B':
        p->backend = arg;
        return true;
    default:
        return false;
    }
}

int probe_model_open(struct probe_model *p)
{
    struct mt_model_opts o = {.step_rows = STEP_ROWS, .want_rows = STEP_ROWS};
    struct mt_err e = {0};

    if (mt_backend_open(&p->be, p->backend ? p->backend : "cpu", p->threads, &e) < 0) {
        mt_msg(MT_ERROR, "%s", e.text);
        return MT_EXIT_USAGE;
    }
    int rc = mt_model_open(&p->m, p->spec, p->be, &o, &e);
    if (rc < 0) {
        mt_msg(MT_ERROR, "%s", e.text);
        return rc == -EINVAL ? MT_EXIT_USAGE : MT_EXIT_FAILED;
    }
    return MT_EXIT_OK;
}

void probe_model_close(struct probe_model *p)
{
    mt_model_close(&p->m);
    mt_backend_close(&p->be);
}

/* Cut FILE@start:len; a name that has an @ of its own is taken whole if such a file can be opened. */
static int parse_clip(char *spec, int64_t *start_ns, int64_t *len_ns)
{
    char *at = strrchr(spec, '@'), *colon = at ? strchr(at, ':') : NULL;

    *start_ns = 0;
    *len_ns = INT64_MAX;
    if (!at || !colon)
        return 0;
    *colon = '\0';
    if (mt_parse_duration(at + 1, start_ns) < 0 || mt_parse_duration(colon + 1, len_ns) < 0) {
        *colon = ':';
        return -EINVAL;
    }
    *at = '\0';
    return 0;
}

/* Nearest sample of a time. */
static int64_t samples_of(int64_t ns, int rate_hz)
{
    double s = (double)ns * rate_hz / 1e9 + 0.5;

    return s < 9e15 ? (int64_t)s : INT64_MAX;
}

int probe_clip(const char *spec, int rate_hz, float **pcm, int64_t *n)
{
    struct mt_err e = {0};
    char *path = strdup(spec);
    int64_t start, len, all;

    *pcm = NULL;
    if (!path || parse_clip(path, &start, &len) < 0) {
        mt_msg(MT_ERROR, "--audio: '%s' is not FILE[@start:len] with times such as 1.5 or 200ms",
               spec);
        free(path);
        return MT_EXIT_USAGE;
    }
    int rc = mt_sound_load(path, NULL, rate_hz, (int64_t)CLIP_MAX_S * rate_hz, pcm, &all, &e);
    free(path);
    if (rc < 0) {
        mt_msg(MT_ERROR, "%s", e.text);
        return MT_EXIT_FAILED;
    }
    int64_t first = samples_of(start, rate_hz), most = samples_of(len, rate_hz);
    if (first >= all || most < 1) {
        mt_msg(MT_ERROR, "%s: nothing there: the sound has %.3f s", spec, (double)all / rate_hz);
        free(*pcm);
        *pcm = NULL;
        return MT_EXIT_FAILED;
    }
    *n = all - first < most ? all - first : most;
    memmove(*pcm, *pcm + first, (size_t)*n * sizeof(**pcm));
    return MT_EXIT_OK;
}
