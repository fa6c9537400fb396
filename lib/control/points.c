/*
 * points.c: frame records into measurements of a batch. Records are kept, a few dozen bytes each,
 * as the phase of the ticks is known only at the end.
 */
#include "control/points.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct frame {
    double release_s, latency_s; /* latency NaN: not served, or cold */
};

struct mt_points {
    double tick_s, deadline_s;
    struct frame *frames;
    size_t n_frames, frames_room;
    double *given_n, *given_x;
    size_t n_given, given_room;
    double *n, *x; /* the answer */
};

int mt_points_open(struct mt_points **out, double tick_s)
{
    *out = calloc(1, sizeof(**out));
    if (!*out)
        return -ENOMEM;
    (*out)->tick_s = tick_s;
    (*out)->deadline_s = NAN;
    return 0;
}

void mt_points_close(struct mt_points **t)
{
    if (!*t)
        return;
    free((*t)->frames);
    free((*t)->given_n);
    free((*t)->given_x);
    free((*t)->n);
    free((*t)->x);
    free(*t);
    *t = NULL;
}

/* Room for one more than count elements. */
static int grow(void **items, size_t count, size_t *room, size_t size)
{
    size_t more = *room ? 2 * *room : 256;
    void *p;

    if (count < *room)
        return 0;
    p = realloc(*items, mt_mul(more, size));
    if (!p)
        return -ENOMEM;
    *items = p;
    *room = more;
    return 0;
}

static int give(struct mt_points *t, double n, double x_ms)
{
    size_t room = t->given_room;

    if (!(n >= 0) || !isfinite(n) || !(x_ms >= 0) || !isfinite(x_ms))
        return -EBADMSG;
    if (grow((void **)&t->given_n, t->n_given, &room, sizeof(double)) < 0 ||
        grow((void **)&t->given_x, t->n_given, &t->given_room, sizeof(double)) < 0)
        return -ENOMEM;
    t->given_n[t->n_given] = n;
    t->given_x[t->n_given++] = x_ms / 1e3;
    return 1;
}

static int take_frame(struct mt_points *t, const json_t *obj)
{
    const char *status = json_string_value(json_object_get(obj, "status"));
    const json_t *at = json_object_get(obj, "t"), *latency = json_object_get(obj, "latency_ms");
    const json_t *deadline = json_object_get(obj, "deadline_ms");
    struct frame f;
    bool served;
    const json_t *out = json_object_get(obj, "tokens_out");

    if (!status)
        return -EBADMSG;
    if (!strcmp(status, "refused") || !json_is_number(at))
        return 0;
    served = !strcmp(status, "ok") || !strcmp(status, "late");
    if (served && json_is_number(out) && json_number_value(out) == 0)
        served = false; /* an answer that nothing was computed for */
    if (served && (!json_is_number(latency) || !(json_number_value(latency) >= 0)))
        return -EBADMSG;
    if (grow((void **)&t->frames, t->n_frames, &t->frames_room, sizeof(f)) < 0)
        return -ENOMEM;
    f.latency_s = json_number_value(latency) / 1e3;
    f.release_s = json_number_value(at) - f.latency_s;
    if (!served || json_is_true(json_object_get(obj, "cold")))
        f.latency_s = NAN;
    t->frames[t->n_frames++] = f;
    if (json_number_value(deadline) > 0)
        t->deadline_s = fmin(t->deadline_s, json_number_value(deadline) / 1e3);
    return 1;
}

/* "N MS" or "N,MS". */
static int take_pair(struct mt_points *t, const char *line, size_t n)
{
    char text[64], *end;
    double a, b;

    if (n >= sizeof(text))
        return -EBADMSG;
    memcpy(text, line, n);
    text[n] = '\0';
    a = strtod(text, &end);
    if (end == text || (*end != ' ' && *end != '\t' && *end != ','))
        return -EBADMSG;
    line = end + 1;
    b = strtod(line, &end);
    if (end == line || end[strspn(end, " \t\r")])
        return -EBADMSG;
    return give(t, a, b);
}

int mt_points_line(struct mt_points *t, const char *line, size_t n)
{
    json_t *obj = json_loadb(line, n, 0, NULL);
    const json_t *count, *x;
    const char *type;
    int rc = 0;

    if (!obj)
        return take_pair(t, line, n);
    type = json_string_value(json_object_get(obj, "type"));
    count = json_object_get(obj, "n");
    x = json_object_get(obj, "x_ms");
    if (!json_is_object(obj))
        rc = -EBADMSG;
    else if (type && !strcmp(type, "frame"))
        rc = take_frame(t, obj);
    else if (count && x)
        rc = json_is_number(count) && json_is_number(x)
                 ? give(t, json_number_value(count), json_number_value(x))
                 : -EBADMSG;
    json_decref(obj);
    return rc;
}

static int by_release(const void *a, const void *b)
{
    double x = ((const struct frame *)a)->release_s, y = ((const struct frame *)b)->release_s;

    return (x > y) - (x < y);
}

/* Where in a tick the releases are in the mean, as an angle. */
static double mean_phase(const struct mt_points *t, double tick)
{
    double s = 0, c = 0;

    for (size_t i = 0; i < t->n_frames; i++) {
        double angle = 2 * M_PI * fmod(t->frames[i].release_s, tick) / tick;

        s += sin(angle);
        c += cos(angle);
    }
    return atan2(s, c);
}

int mt_points_get(struct mt_points *t, const double **n, const double **x_s, int64_t *count)
{
    double tick = t->tick_s > 0 ? t->tick_s : t->deadline_s, shift;
    size_t most = t->n_given + t->n_frames + 1, k = t->n_given;

    if (t->n_frames > 0 && !(tick > 0))
        return -ENODATA;
    free(t->n);
    free(t->x);
    t->n = mt_alloc(most, sizeof(double));
    t->x = mt_alloc(most, sizeof(double));
    if (!t->n || !t->x)
        return -ENOMEM;
    if (t->n_given > 0) {
        memcpy(t->n, t->given_n, t->n_given * sizeof(double));
        memcpy(t->x, t->given_x, t->n_given * sizeof(double));
    }
    if (t->n_frames > 0) {
        qsort(t->frames, t->n_frames, sizeof(*t->frames), by_release);
        shift = 0.5 - mean_phase(t, tick) / (2 * M_PI); /* the mean phase falls on half a tick */
        for (size_t i = 0, j; i < t->n_frames; i = j) {
            double id = floor(t->frames[i].release_s / tick + shift), worst = 0;

            bool whole = true;

            for (j = i; j < t->n_frames && floor(t->frames[j].release_s / tick + shift) == id;
                 j++) {
                whole &= !isnan(t->frames[j].latency_s);
                worst = fmax(worst, t->frames[j].latency_s); /* fmax passes over NaN */
            }
            if (!whole)
                continue;
            t->n[k] = (double)(j - i);
            t->x[k++] = worst;
        }
    }
    *n = t->n;
    *x_s = t->x;
    *count = (int64_t)k;
    return 0;
}
