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

/*
 * The cells of an ear: loudest values of a group's frames (the first two, these where the buffer
 * begins, the others), group g at g % GROUPS; and of the last frame, which reaches past the end.
 */
enum { HEAD, EDGE, BODY, PARTS, PEEK = PARTS * GROUPS, CELLS };

static int cell(int64_t group, int part)
{
    return (int)(group % GROUPS) * PARTS + part;
}

struct ear {
    struct mt_ear base; /* first */
    struct mt_mel_stream stream;
    int64_t heard;        /* units that the front end had … */
    int64_t encoded;      /* … and the encoder: those in its cache's past */
    int64_t start;        /* group that the buffer begins with */
    struct mt_rows cells; /* [1, CELLS] */
    struct mt_rows kept;  /* [KEPT, bands] raw */
    struct mt_kv *kv;
};

static int64_t kv_bytes(const struct mt_apm *a)
{
    return a->units * mt_kv_block_bytes(&a->kv);
}

int mt_minicpm_ear_state(const struct mt_model *m, const struct mt_apm *a, int frame_samples,
                         int backlog, struct mt_state_kind out[MT_STATE_KINDS])
{
    const struct mt_ops *op = m->be->ops;

    out[0] = (struct mt_state_kind){
        "audio", (int64_t)sizeof(struct ear) + mt_ear_bytes(m, frame_samples, backlog) +
                     op->rows_bytes(m->be, 1, CELLS) + op->rows_bytes(m->be, KEPT, a->cfg.bands)};
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
    if (!(ear = calloc(1, sizeof(*ear))))
        return mt_err_set(e, -ENOMEM, "out of memory");
    rc = mt_ear_init(&ear->base, m, frame_samples, backlog, e);
    if (rc == 0 && (rc = m->be->ops->kv_new(m->be, &ear->kv, &a->kv, a->units)) < 0)
        mt_err_set(e, rc, "no memory for an encoder cache of %lld bytes", (long long)kv_bytes(a));
    if (rc == 0 && ((rc = m->be->ops->rows_new(m->be, &ear->cells, 1, CELLS)) < 0 ||
                    (rc = m->be->ops->rows_new(m->be, &ear->kept, KEPT, a->cfg.bands)) < 0))
        mt_err_set(e, rc, "no memory for a session's mel");
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
    mt_unbind_rows(base->m->be, &ear->cells);
    mt_unbind_rows(base->m->be, &ear->kept);
    mt_ear_done(base);
    free(ear);
}

void mt_minicpm_ear_visit(struct mt_apm *a, struct mt_ear *base, struct mt_state_io *io)
{
    struct ear *ear = (struct ear *)base;
    struct mt_kv_view view = mt_apm_view(a, ear->kv);
    struct mt_backend *be = base->m->be;
    float cells[CELLS] = {0}, kept[KEPT * MT_MEL_BANDS_MAX];

    mt_ear_base_visit(base, io);
    mt_mel_stream_visit(&ear->stream, io);
    mt_state_i64(io, "units heard", &ear->heard, base->taken, base->taken);
    mt_state_i64(io, "units encoded", &ear->encoded, 0, ear->heard);
    mt_state_i64(io, "first group", &ear->start,
                 ear->heard > GROUPS - 2 ? ear->heard - (GROUPS - 2) : 0, ear->heard);
    if (!io->load) {
        be->ops->rows_get(be, cells, ear->cells, 1);
        be->ops->rows_get(be, kept, ear->kept, KEPT);
    }
    for (int i = 0; i < PARTS * GROUPS; i++)
        mt_state_f32(io, "loudest of a group", &cells[i]);
    mt_state_floats(io, "mel kept", kept, KEPT * (size_t)a->cfg.bands);
    if (io->load && mt_state_ok(io)) {
        be->ops->rows_put(be, ear->cells, cells, 1);
        be->ops->rows_put(be, ear->kept, kept, KEPT);
    }
    /* The next unit takes the oldest one's place. */
    int64_t n = ear->encoded < a->units - 1 ? ear->encoded : a->units - 1;
    mt_state_kv(io, "the encoder's past", be, ear->kv, &a->kv, &view,
                (ear->encoded - n) * MT_UNIT_ROWS, n * MT_UNIT_ROWS, 0);
}

/* ---- the maximum ---- */

/* The cell becomes the loudest of n rows. */
static void note(struct mt_mel_pass *p, const struct ear *ear, int into, int row, int n)
{
    *mt_mel_pass_item(p) =
        (struct mt_mel_clamp){.cells = ear->cells, .loud = {row, n}, .into = into};
}

/*
 * The cells that the clamp of the unit just heard hangs on; returns how many, none where there is
 * no clamp.
 */
static int clamped_by(struct ear *ear, int by[MT_UNIT_BY])
{
    int64_t samples = FIRST + (ear->heard - ear->start) * MT_UNIT_SAMPLES;
    int n = 0;

    if (samples >= SLIDE_AT) {
        ear->start += SLIDE_GROUPS;
        samples -= (int64_t)SLIDE_GROUPS * MT_UNIT_SAMPLES;
    }
    if (samples < CLAMP_FROM)
        return 0;
    by[n++] = cell(ear->start, ear->start ? EDGE : HEAD);
    by[n++] = cell(ear->start, BODY);
    for (int64_t g = ear->start + 1; g <= ear->heard; g++) {
        by[n++] = cell(g, HEAD);
        by[n++] = cell(g, BODY);
    }
    by[n++] = cell(ear->heard + 1, HEAD);
    by[n++] = PEEK;
    return n;
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

/*
 * The mel frames of the next unit, which is the pass's unit i, to be rows row.. of mel_rows: returns
 * how many. Of them those kept of the unit before are moved there by settle().
 */
static int hear(struct ear *ear, struct mt_apm *a, int i, int row)
{
    int old = ear->heard ? KEPT : 0, fresh = old ? GROUP : GROUP + SIDE, n;
    int body = row + old + fresh - GROUP; /* frames SIDE.. of group `heard` */
    int beside = MT_UNITS_AT_ONCE * MT_UNIT_MEL + i * MT_UNIT_BESIDE;
    struct mt_mel_pass *p = &a->mels;
    int64_t used;
    float pcm[FIRST];

    n = take(ear, pcm);
    mt_mel_push(&ear->stream, pcm, n, false, mt_mel_pass_sound(p, row + old, fresh), fresh, &used);
    if (!ear->heard)
        note(p, ear, cell(0, HEAD), row, SIDE);
    note(p, ear, cell(ear->heard, BODY), body, GROUP - SIDE);
    note(p, ear, cell(ear->heard + 1, HEAD), body + GROUP - SIDE, SIDE);
    note(p, ear, cell(ear->heard + 1, BODY), 0, 0); /* it begins */
    if ((ear->heard + 1) % SLIDE_GROUPS == 0) {
        /*
         * The group behind a unit begins with the unit's last samples. Should the buffer once begin
         * there, it will see them reflected in its first two frames.
         */
        struct mt_mel_stream from;

        mt_mel_stream_init(&from);
        mt_mel_push(&from, pcm + n - AHEAD, AHEAD, false, mt_mel_pass_sound(p, beside, SIDE), SIDE,
                    &used);
        note(p, ear, cell(ear->heard + 1, EDGE), beside, SIDE);
    }
    struct mt_mel_clamp *all = mt_mel_pass_item(p);
    *all = (struct mt_mel_clamp){.cells = ear->cells,
                                 .into = PEEK,
                                 .rows = {row, old + fresh},
                                 .by = a->by[i],
                                 .n_by = clamped_by(ear, a->by[i])};
    if (all->n_by) {
        mt_mel_peek(&ear->stream, mt_mel_pass_sound(p, beside + SIDE, 1));
        all->loud = (struct mt_span){beside + SIDE, 1};
    }
    ear->heard++;
    ear->base.taken++;
    return old + fresh;
}

/* What was heard becomes rows of mel_rows. mel: how many each of n ears has. */
static void settle(struct mt_apm *a, struct mt_ear **ears, const int *mel, int n)
{
    const struct mt_ops *op = a->be->ops;

    mt_mel_pass_rows(&a->mels, a->mel_rows);
    for (int i = 0, row = 0; i < n; row += mel[i++]) {
        struct ear *ear = (struct ear *)ears[i];

        if (mel[i] == MT_UNIT_MEL)
            op->gather(a->be, mt_rows_from(a->mel_rows, row), ear->kept, a->blocks, KEPT);
        op->gather(a->be, ear->kept, mt_rows_from(a->mel_rows, row + mel[i] - KEPT), a->blocks,
                   KEPT);
    }
    mt_mel_pass_clamp(&a->mels, a->mel_rows);
}

/* A unit that nothing is computed for leaves no keys: to the encoder the call stood still. */
void mt_minicpm_ear_skip(struct mt_apm *a, struct mt_ear *base)
{
    int mel = hear((struct ear *)base, a, 0, 0);

    settle(a, &base, &mel, 1);
    base->n_rows = base->mel_frames = 0;
}

static void pass(struct mt_apm *a, struct mt_ear **ears, int n)
{
    struct mt_apm_unit unit[MT_UNITS_AT_ONCE];
    int mel[MT_UNITS_AT_ONCE], row = 0, per = mt_apm_rows(a, MT_UNIT_ROWS);

    for (int i = 0; i < n; i++) {
        struct ear *ear = (struct ear *)ears[i];

        mel[i] = hear(ear, a, i, row);
        unit[i] = (struct mt_apm_unit){mel[i], ear->encoded++, ear->kv};
        ears[i]->mel_frames = mel[i];
        ears[i]->n_rows = per;
        row += mel[i];
    }
    settle(a, ears, mel, n);
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
