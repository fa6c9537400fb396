/*
 * minicpm_ear.c: MiniCPM-o's live ear, as the authors' streaming processor hears. The call's sound
 * is led by 560 zeros; unit n takes it up to 16480 + 16000 n samples, so that 100 mel frames and
 * two on each side of them, which the convolutions want, are whole: 80 samples always wait for the
 * next.
 *
 * The clamp. The authors form the log-mel of all that a sliding buffer holds, anew each second: no
 * clamp while it is below 5 s; then 8 below its maximum; at 30 s the oldest 10 s leave. The maximum
 * is all that is needed of it, so here it is kept by groups of 100 frames. Three things are seen in
 * it that are never given out: the last frame, whose window reaches past what was heard, with a
 * reflection there; and, where the buffer begins, two frames with a reflection in front.
 */
#include "model/minicpm_ear.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    LEAD = 560,  /* zeros in front of a call */
    AHEAD = 480, /* samples of a unit that belong to the next one's frames */
    FIRST = MT_UNIT_SAMPLES + AHEAD,
    GROUP = 100,     /* mel frames of a second */
    SIDE = 2,        /* frames on each side of them */
    KEPT = 2 * SIDE, /* raw frames that the next unit has, too */
    CLAMP_FROM = 5 * MT_UNIT_SAMPLES,
    SLIDE_AT = 30 * MT_UNIT_SAMPLES,
    SLIDE_GROUPS = 10,
    GROUPS = 33 /* of the buffer at its longest, and the one begun */
};

/* Loudest values of a group's frames: the first two, these where the buffer begins, the others. */
struct group {
    float head, edge, body;
};

struct ear {
    struct mt_ear base; /* first */
    struct mt_mel_stream stream;
    int64_t heard;              /* units that the front end had … */
    int64_t encoded;            /* … and the encoder: those in its cache's past */
    int64_t start;              /* group that the buffer begins with */
    struct group group[GROUPS]; /* of group g at g % GROUPS */
    struct mt_kv *kv;
    float kept[]; /* [KEPT, bands] raw */
};

static size_t ear_size(const struct mt_apm *a)
{
    return sizeof(struct ear) + KEPT * (size_t)a->cfg.bands * sizeof(float);
}

static int64_t kv_bytes(const struct mt_apm *a)
{
    return a->units * mt_kv_block_bytes(&a->kv);
}

int mt_minicpm_ear_state(const struct mt_model *m, const struct mt_apm *a, int frame_samples,
                         int backlog, struct mt_state_kind out[MT_STATE_KINDS])
{
    out[0] = (struct mt_state_kind){"audio",
                                    (int64_t)ear_size(a) + mt_ear_bytes(m, frame_samples, backlog)};
    out[1] = (struct mt_state_kind){"encoder", kv_bytes(a)};
    return 2;
}

int mt_minicpm_ear_new(struct mt_ear **out, struct mt_model *m, struct mt_apm *a, int frame_samples,
                       int backlog, struct mt_err *e)
{
    struct ear *ear;
    int rc;

    *out = NULL;
    if (frame_samples != MT_UNIT_SAMPLES)
        return mt_err_set(e, -EINVAL, "a frame of %.1f ms: this model's units have 1000 ms",
                          1e3 * frame_samples / MT_MEL_RATE);
    if (a->units == 0)
        return mt_err_set(e, -EINVAL, "a table of %d positions has no room for a unit of %d",
                          a->cfg.positions, MT_UNIT_ROWS);
    if (!(ear = calloc(1, ear_size(a))))
        return mt_err_set(e, -ENOMEM, "out of memory");
    rc = mt_ear_init(&ear->base, m, frame_samples, backlog, e);
    if (rc == 0 && (rc = m->be->ops->kv_new(m->be, &ear->kv, &a->kv, a->units)) < 0)
        mt_err_set(e, rc, "no memory for an encoder cache of %lld bytes", (long long)kv_bytes(a));
    mt_mel_stream_init(&ear->stream);
    *out = &ear->base;
    if (rc < 0) {
        mt_minicpm_ear_free(&ear->base);
        *out = NULL;
    }
    return rc;
}

void mt_minicpm_ear_free(struct mt_ear *base)
{
    struct ear *ear = (struct ear *)base;

    base->m->be->ops->kv_free(base->m->be, ear->kv);
    mt_ear_done(base);
    free(ear);
}

void mt_minicpm_ear_visit(struct mt_apm *a, struct mt_ear *base, struct mt_state_io *io)
{
    struct ear *ear = (struct ear *)base;
    struct mt_kv_view view = mt_apm_view(a, ear->kv);

    mt_ear_base_visit(base, io);
    mt_mel_stream_visit(&ear->stream, io);
    mt_state_i64(io, "units heard", &ear->heard, base->taken, base->taken);
    mt_state_i64(io, "units encoded", &ear->encoded, 0, ear->heard);
    mt_state_i64(io, "first group", &ear->start,
                 ear->heard > GROUPS - 2 ? ear->heard - (GROUPS - 2) : 0, ear->heard);
    for (int i = 0; i < GROUPS; i++) {
        mt_state_f32(io, "loudest of a group", &ear->group[i].head);
        mt_state_f32(io, "loudest of a group", &ear->group[i].edge);
        mt_state_f32(io, "loudest of a group", &ear->group[i].body);
    }
    mt_state_floats(io, "mel kept", ear->kept, KEPT * (size_t)a->cfg.bands);
    /* The next unit takes the oldest one's place. */
    int64_t n = ear->encoded < a->units - 1 ? ear->encoded : a->units - 1;
    mt_state_kv(io, "the encoder's past", base->m->be, ear->kv, &a->kv, &view,
                (ear->encoded - n) * MT_UNIT_ROWS, n * MT_UNIT_ROWS, 0);
}

/* ---- the maximum ---- */

static float loudest(const float *row, int bands, float so_far)
{
    for (int i = 0; i < bands; i++)
        so_far = fmaxf(so_far, row[i]);
    return so_far;
}

static struct group *group_of(struct ear *ear, int64_t g)
{
    return &ear->group[g % GROUPS];
}

/* Frame t of the call, raw. Groups begin with their first frame. */
static void note(struct ear *ear, const float *row, int bands, int64_t t)
{
    struct group *g = group_of(ear, t / GROUP);
    float *to = t % GROUP < SIDE ? &g->head : &g->body;

    if (t % GROUP == 0)
        g->head = g->body = -INFINITY;
    *to = loudest(row, bands, *to);
}

/*
 * The group behind a unit begins with the unit's last samples. Should the buffer once begin there,
 * it will see them reflected in its first two frames.
 */
static void note_edge(struct ear *ear, struct mt_mel *mel, int bands, const float *last)
{
    struct group *g = group_of(ear, ear->heard + 1);
    struct mt_mel_stream from;
    float x[MT_MEL_HOP * (SIDE - 1) + MT_MEL_FFT], row[SIDE * MT_MEL_BANDS_MAX];
    int64_t used;

    mt_mel_stream_init(&from);
    int n = mt_mel_push(&from, last, AHEAD, false, x, SIDE, &used);
    mt_mel_rows(mel, x, n, row, bands);
    g->edge = loudest(row, n * bands, -INFINITY);
}

/* Where the clamp of the unit just heard lies: -INFINITY for none. */
static float floor_of(struct ear *ear, struct mt_mel *mel, int bands)
{
    int64_t samples = FIRST + (ear->heard - ear->start) * MT_UNIT_SAMPLES;
    float x[MT_MEL_FFT], row[MT_MEL_BANDS_MAX], most;

    if (samples >= SLIDE_AT) {
        ear->start += SLIDE_GROUPS;
        samples -= (int64_t)SLIDE_GROUPS * MT_UNIT_SAMPLES;
    }
    if (samples < CLAMP_FROM)
        return -INFINITY;
    most = ear->start ? group_of(ear, ear->start)->edge : group_of(ear, 0)->head;
    most = fmaxf(most, group_of(ear, ear->start)->body);
    for (int64_t g = ear->start + 1; g <= ear->heard; g++)
        most = fmaxf(most, fmaxf(group_of(ear, g)->head, group_of(ear, g)->body));
    most = fmaxf(most, group_of(ear, ear->heard + 1)->head);
    mt_mel_peek(&ear->stream, x);
    mt_mel_rows(mel, x, 1, row, bands);
    return loudest(row, bands, most) - 8;
}

/* ---- units ---- */

/* The samples of the next unit: what waits, and silence behind its end. */
static int take(struct ear *ear, float pcm[FIRST])
{
    int lead = ear->heard ? 0 : LEAD, n = (ear->heard ? MT_UNIT_SAMPLES : FIRST) - lead;
    int64_t got = ear->base.n < n ? ear->base.n : n;

    memset(pcm, 0, FIRST * sizeof(*pcm));
    memcpy(pcm + lead, ear->base.pcm, (size_t)got * sizeof(*pcm));
    mt_ear_consume(&ear->base, got);
    return lead + n;
}

/* The mel frames of the next unit, scaled, into out: returns how many. */
static int hear(struct ear *ear, const struct mt_apm *a, float *out)
{
    int bands = a->cfg.bands, old = ear->heard ? KEPT : 0, fresh = old ? GROUP : GROUP + SIDE, n;
    int64_t first = ear->heard ? ear->heard * GROUP + SIDE : 0, used;
    float pcm[FIRST], x[MT_MEL_HOP * (GROUP + SIDE - 1) + MT_MEL_FFT], floor_at;

    n = take(ear, pcm);
    memcpy(out, ear->kept, (size_t)old * (size_t)bands * sizeof(*out));
    mt_mel_push(&ear->stream, pcm, n, false, x, fresh, &used);
    mt_mel_rows(a->mel, x, fresh, out + (int64_t)old * bands, bands);
    for (int i = 0; i < fresh; i++)
        note(ear, out + (int64_t)(old + i) * bands, bands, first + i);
    if ((ear->heard + 1) % SLIDE_GROUPS == 0)
        note_edge(ear, a->mel, bands, pcm + n - AHEAD);
    floor_at = floor_of(ear, a->mel, bands);
    n = old + fresh;
    memcpy(ear->kept, out + (int64_t)(n - KEPT) * bands, KEPT * (size_t)bands * sizeof(*out));
    for (int64_t i = 0; i < (int64_t)n * bands; i++)
        out[i] = (fmaxf(out[i], floor_at) + 4) / 4;
    ear->heard++;
    ear->base.taken++;
    return n;
}

/* A unit that nothing is computed for leaves no keys: to the encoder the call stood still. */
void mt_minicpm_ear_skip(struct mt_apm *a, struct mt_ear *base)
{
    struct ear *ear = (struct ear *)base;

    hear(ear, a, a->host_mel);
    base->n_rows = base->mel_frames = 0;
}

static void pass(struct mt_apm *a, struct mt_ear **ears, int n)
{
    struct mt_apm_unit unit[MT_UNITS_AT_ONCE];
    int mel = 0, per = mt_apm_rows(a, MT_UNIT_ROWS);

    for (int i = 0; i < n; i++) {
        struct ear *ear = (struct ear *)ears[i];
        int got = hear(ear, a, a->host_mel + (int64_t)mel * a->cfg.bands);

        unit[i] = (struct mt_apm_unit){got, ear->encoded++, ear->kv};
        ears[i]->mel_frames = got;
        ears[i]->n_rows = per;
        mel += got;
    }
    mt_apm_units(a, unit, n);
    for (int i = 0; i < n; i++)
        a->be->ops->gather(a->be, ears[i]->rows, mt_rows_from(a->out, (int64_t)i * per), a->blocks,
                           per);
}

int mt_minicpm_ear_encode(struct mt_apm *a, struct mt_ear **ears, int n)
{
    for (int i = 0; i < n; i += MT_UNITS_AT_ONCE)
        pass(a, ears + i, n - i < MT_UNITS_AT_ONCE ? n - i : MT_UNITS_AT_ONCE);
    return 0;
}
