/*
 * ear.c: the samples of one session between the wire and the encoder: a bounded queue, cut into
 * frames. A frame is complete when its own samples and the lookahead behind them were heard, or the
 * audio ended. What the front end of a family does with them is the family's.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "model/family.h"

/*
 * Behind the waiting frames stand the lookahead, and what a front end has not consumed of a frame
 * done.
 */
int64_t mt_ear_cap(const struct mt_model *m, int frame_samples, int backlog)
{
    return (int64_t)frame_samples * backlog + 2 * (int64_t)m->info.lookahead_samples +
           m->info.frame_min;
}

static int init(struct mt_ear *ear, struct mt_model *m, int frame_samples, int backlog, bool keep,
                struct mt_err *e)
{
    const struct mt_model_info *i = &m->info;

    *ear = (struct mt_ear){.m = m,
                           .frame_samples = frame_samples,
                           .lookahead = i->lookahead_samples,
                           .backlog = backlog};
    if (backlog < 1)
        return mt_err_set(e, -EINVAL, "a backlog of %d frames (at least 1)", backlog);
    if (frame_samples < i->frame_min || frame_samples % i->frame_step)
        return mt_err_set(
            e, -EINVAL, "a frame of %.1f ms is not a multiple of %.1f ms from %.1f ms on",
            1e3 * frame_samples / i->sample_rate_hz, 1e3 * i->frame_step / i->sample_rate_hz,
            1e3 * i->frame_min / i->sample_rate_hz);
    ear->cap = mt_ear_cap(m, frame_samples, backlog);
    ear->pcm = keep ? mt_alloc((size_t)ear->cap, sizeof(*ear->pcm)) : NULL;
    ear->rows_cap = m->family->ear_rows_max(m, frame_samples);
    if (keep && !ear->pcm)
        return mt_err_set(e, -ENOMEM, "no memory for a session's audio");
    int rc = m->be->ops->rows_new(m->be, &ear->rows, ear->rows_cap, i->hidden);
    return rc < 0 ? mt_err_set(e, rc, "no memory for a session's audio rows") : 0;
}

int mt_ear_init(struct mt_ear *ear, struct mt_model *m, int frame_samples, int backlog,
                struct mt_err *e)
{
    return init(ear, m, frame_samples, backlog, true, e);
}

int mt_ear_init_counting(struct mt_ear *ear, struct mt_model *m, int frame_samples, int backlog,
                         struct mt_err *e)
{
    return init(ear, m, frame_samples, backlog, false, e);
}

void mt_ear_done(struct mt_ear *ear)
{
    if (ear->rows.data)
        ear->m->be->ops->rows_free(ear->m->be, &ear->rows);
    free(ear->pcm);
}

int mt_ear_new(struct mt_ear **out, struct mt_model *m, int frame_samples, int backlog,
               struct mt_err *e)
{
    *out = NULL;
    if (m->info.deaf)
        return mt_err_set(e, -ENOTSUP, MT_DEAF, m->info.name);
    return m->family->ear_new(out, m, frame_samples, backlog, e);
}

void mt_ear_free(struct mt_ear **ear)
{
    if (*ear)
        (*ear)->m->family->ear_free(*ear);
    *ear = NULL;
}

int64_t mt_ear_bytes(const struct mt_model *m, int frame_samples, int backlog)
{
    return mt_ear_cap(m, frame_samples, backlog) * (int64_t)sizeof(float) +
           m->be->ops->rows_bytes(m->be, mt_ear_rows_max(m, frame_samples), m->info.hidden);
}

int mt_ear_rows_max(const struct mt_model *m, int frame_samples)
{
    return m->family->ear_rows_max(m, frame_samples);
}

int64_t mt_ear_push(struct mt_ear *ear, const float *pcm, int64_t n)
{
    int64_t room = ear->cap - ear->n;

    if (ear->ended)
        return 0;
    if (n > room)
        n = room;
    if (ear->pcm)
        memcpy(ear->pcm + ear->n, pcm, (size_t)n * sizeof(*pcm));
    ear->n += n;
    ear->heard += n;
    return n;
}

int64_t mt_ear_room(const struct mt_ear *ear)
{
    return ear->ended ? 0 : ear->cap - ear->n;
}

void mt_ear_end(struct mt_ear *ear)
{
    ear->ended = true;
}

int64_t mt_ear_due_samples(const struct mt_ear *ear, int64_t k)
{
    return (k + 1) * ear->frame_samples + ear->lookahead;
}

/* A frame more than the backlog may be complete, and the rest of an ended call. */
enum { FRAMES_SLACK = 2 };

static int64_t frames(const struct mt_ear *ear)
{
    int64_t whole = ear->ended ? (ear->heard + ear->frame_samples - 1) / ear->frame_samples
                               : (ear->heard - ear->lookahead) / ear->frame_samples;

    if (!ear->ended && ear->heard < ear->lookahead)
        whole = 0;
    return whole - ear->taken;
}

int mt_ear_frames(const struct mt_ear *ear)
{
    return (int)frames(ear);
}

int mt_ear_next_samples(const struct mt_ear *ear)
{
    int64_t rest = ear->heard - ear->taken * ear->frame_samples;

    if (rest >= ear->frame_samples)
        return ear->frame_samples;
    return rest < ear->m->info.frame_min ? ear->m->info.frame_min : (int)rest;
}

void mt_ear_consume(struct mt_ear *ear, int64_t n)
{
    ear->n -= n;
    if (ear->pcm)
        memmove(ear->pcm, ear->pcm + n, (size_t)ear->n * sizeof(*ear->pcm));
}

void mt_ear_base_visit(struct mt_ear *ear, struct mt_state_io *io)
{
    const int64_t most = INT64_C(1) << 52;

    mt_state_same(io, "samples of a frame", ear->frame_samples);
    mt_state_i64(io, "samples that wait", &ear->n, 0, ear->cap);
    mt_state_i64(io, "samples heard", &ear->heard, 0, most);
    mt_state_i64(io, "frames heard", &ear->taken, 0, most / ear->frame_samples);
    mt_state_bool(io, "end of the sound", &ear->ended);
    mt_state_int(io, "audio rows", &ear->n_rows, 0, ear->rows_cap);
    mt_state_int(io, "mel frames", &ear->mel_frames, 0, INT32_MAX);
    if (!mt_state_ok(io))
        return;
    if (frames(ear) < 0 || frames(ear) > ear->backlog + FRAMES_SLACK)
        mt_state_fail(io, -EPROTO, "%lld frames wait, at most %d can", (long long)frames(ear),
                      ear->backlog + FRAMES_SLACK);
    if (ear->pcm)
        mt_state_floats(io, "sample", ear->pcm, (size_t)ear->n);
    mt_state_rows(io, "audio rows", ear->m->be, ear->rows, ear->n_rows);
}

void mt_ear_visit(struct mt_ear *ear, struct mt_state_io *io)
{
    if (ear->m->family->ear_visit)
        ear->m->family->ear_visit(ear, io);
    else
        mt_state_fail(io, -ENOTSUP, "calls with %s can't be saved", ear->m->info.name);
}

void mt_ear_skip(struct mt_ear *ear)
{
    if (mt_ear_frames(ear) > 0) /* else the samples of a frame to come would be lost to it */
        ear->m->family->ear_skip(ear);
}

struct mt_rows mt_ear_rows(const struct mt_ear *ear, int *n_rows)
{
    *n_rows = ear->n_rows;
    return ear->rows;
}

int mt_ear_mel_frames(const struct mt_ear *ear)
{
    return ear->mel_frames;
}
