/*
 * reel.c: the files of a run, and the tapes that read them. A file is a clip (decoded once,
 * shared), a file that each tape reads for itself, or a pipe, which only one tape can read and only
 * once.
 */
#include "wire/reel.h"
#include "wire/reel_pipe.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { READ_SAMPLES = 4096 }; /* a read of a file that a tape reads for itself */

struct source {
    char *path;
    enum { SOURCE_FILE, SOURCE_CLIP, SOURCE_PIPE } kind;
    float *pcm;
    int64_t n;
    struct mt_reel_pipe *pipe;
    bool short_told;
};

struct mt_reel {
    struct source *source;
    int n_sources;
    int rate_hz;
    bool exact16;
    bool has_raw;
    struct mt_raw_format raw;
    int64_t held; /* samples in clips */
    void (*note)(void *ctx, enum mt_level level, const char *text);
    void *ctx;
};

struct mt_tape {
    struct mt_reel *reel;
    int at;
    int left; /* files still to read, this one included */
    bool loop;
    int64_t pos; /* in a clip */
    struct mt_sound *sound;
    struct mt_resampler *conv;
    float in[READ_SAMPLES];
    const float *out; /* converted and not yet given: the converter's */
    int64_t n_out;
    bool flushed;
};

static const struct mt_raw_format *reel_raw(const struct mt_reel *r)
{
    return r->has_raw ? &r->raw : NULL;
}

static bool is_pipe(const char *path)
{
    struct stat st;

    if (!strcmp(path, "-"))
        return true;
    /* What can't be looked at is left to mt_sound_open, which has the words for it. */
    return stat(path, &st) == 0 && !S_ISREG(st.st_mode) && !S_ISDIR(st.st_mode);
}

/* A source was read to its end: is that all that it promised? */
static void tell_short(const struct mt_reel *r, struct source *s, int is_short,
                       const struct mt_err *why)
{
    if (is_short && !s->short_told && r->note)
        r->note(r->ctx, MT_WARN, why->text);
    s->short_told = true;
}

/* The rest of a sound, converted, as one clip of at most max samples. Takes the sound. */
static int read_clip(const struct mt_reel *r, struct source *s, struct mt_sound *sound, int64_t max,
                     struct mt_err *e)
{
    struct mt_err why = {0};
    struct mt_resampler *conv = NULL;
    float *in = malloc(READ_SAMPLES * sizeof(*in));
    int64_t n = -1, cap = 0;
    int rc;

    if (!in) {
        rc = -ENOMEM;
        goto done;
    }
    rc = mt_resampler_new(&conv, mt_sound_info(sound)->rate_hz, r->rate_hz, e);
    while (rc == 0 && n != 0) {
        const float *out;
        int64_t n_out;

        n = mt_sound_read(sound, in, READ_SAMPLES, e);
        if (n < 0) {
            rc = (int)n;
            break;
        }
        rc = mt_resampler_push(conv, n ? in : NULL, n, &out, &n_out);
        if (rc < 0)
            break;
        if (n_out > max - s->n) {
            rc = -E2BIG;
            break;
        }
        if (s->n + n_out > cap) {
            int64_t want = cap * 2 > s->n + n_out ? cap * 2 : s->n + n_out + r->rate_hz;
            float *bigger = realloc(s->pcm, mt_mul((size_t)want, sizeof(*bigger)));

            if (!bigger) {
                rc = -ENOMEM;
                break;
            }
            s->pcm = bigger;
            cap = want;
        }
        if (s->pcm && n_out > 0)
            memcpy(s->pcm + s->n, out, (size_t)n_out * sizeof(*out));
        s->n += n_out;
    }
    if (rc == 0)
        tell_short(r, s, mt_sound_short(sound, &why), &why);
    if (rc == 0 && s->n < cap && s->n > 0) {
        float *exact = realloc(s->pcm, (size_t)s->n * sizeof(*exact));

        s->pcm = exact ? exact : s->pcm;
    }
done:
    if (rc < 0) {
        free(s->pcm);
        s->pcm = NULL;
        s->n = 0;
    }
    free(in);
    mt_resampler_free(&conv);
    mt_sound_close(&sound);
    return rc;
}

/* Look at one file, and read it if it is to be kept. */
static int source_open(struct mt_reel *r, struct source *s, const struct mt_reel_opts *o,
                       struct mt_err *e)
{
    struct mt_sound *sound = NULL;
    const struct mt_sound_info *info;
    int64_t room = o->hold_samples - r->held;
    struct mt_err err = {0};
    int rc;

    if ((rc = mt_sound_open(&sound, s->path, reel_raw(r), e)) < 0)
        return rc;
    info = mt_sound_info(sound);
    if (info->rate_hz != r->rate_hz || info->channels != 1 || info->bits == 0 || info->bits > 16)
        r->exact16 = false;
    s->kind = is_pipe(s->path) ? SOURCE_PIPE : SOURCE_FILE;
    if (!o->shared && s->kind == SOURCE_PIPE)
        return mt_reel_pipe_open(&s->pipe, sound, r->rate_hz, e);
    /*
     * A single tape reads a file as it goes; and what is known to be too long is not decoded to
     * find out.
     */
    if (s->kind == SOURCE_FILE &&
        (!o->shared || info->frames / info->rate_hz > room / r->rate_hz)) {
        mt_sound_close(&sound);
        return 0;
    }
    rc = read_clip(r, s, sound, room, &err);
    if (rc == -E2BIG && s->kind == SOURCE_FILE)
        return 0;
    if (rc == -E2BIG)
        return mt_err_set(e, rc, "%s: a pipe above %lld s can't be shared or repeated", s->path,
                          (long long)(o->hold_samples / r->rate_hz));
    if (rc < 0)
        return mt_err_set(e, rc, "%s%s", err.code ? "" : s->path,
                          err.code ? err.text : ": cannot be read");
    s->kind = SOURCE_CLIP;
    r->held += s->n;
    return 0;
}

int mt_reel_open(struct mt_reel **out, const char *const *paths, int n,
                 const struct mt_reel_opts *o, struct mt_err *e)
{
    struct mt_reel *r = calloc(1, sizeof(*r));
    bool any = false;
    int rc = -ENOMEM, dashes = 0;

    *out = NULL;
    if (!r)
        goto fail;
    r->source = calloc((size_t)n, sizeof(*r->source));
    if (!r->source)
        goto fail;
    r->rate_hz = o->rate_hz;
    r->note = o->note;
    r->ctx = o->ctx;
    r->exact16 = true;
    if (o->raw) {
        r->has_raw = true;
        r->raw = *o->raw;
    }
    for (int i = 0; i < n; i++)
        dashes += !strcmp(paths[i], "-");
    if (dashes > 1) {
        rc = mt_err_set(e, -EINVAL, "-: standard input can be read only once");
        goto fail;
    }
    for (int i = 0; i < n; i++) {
        struct source *s = &r->source[r->n_sources++];

        rc = -ENOMEM;
        if (!(s->path = strdup(paths[i])))
            goto fail;
        if ((rc = source_open(r, s, o, e)) < 0)
            goto fail;
        any |= s->kind != SOURCE_CLIP || s->n > 0;
    }
    if (o->repeat && !any) {
        rc = mt_err_set(e, -ENODATA, "%s: not one sample to repeat", paths[0]);
        goto fail;
    }
    *out = r;
    return 0;
fail:
    mt_err_set(e, rc, "out of memory");
    mt_reel_close(&r);
    return rc;
}

void mt_reel_close(struct mt_reel **rp)
{
    struct mt_reel *r = *rp;

    *rp = NULL;
    if (!r)
        return;
    for (int i = 0; i < r->n_sources; i++) {
        mt_reel_pipe_close(&r->source[i].pipe);
        free(r->source[i].pcm);
        free(r->source[i].path);
    }
    free(r->source);
    free(r);
}

enum mt_pcm mt_reel_pcm(const struct mt_reel *r)
{
    return r->exact16 ? MT_PCM_S16LE : MT_PCM_F32LE;
}

int mt_tape_open(struct mt_tape **out, struct mt_reel *r, int64_t first, bool loop)
{
    struct mt_tape *t = calloc(1, sizeof(*t));

    *out = t;
    if (!t)
        return -ENOMEM;
    t->reel = r;
    t->at = (int)(first % r->n_sources);
    t->left = r->n_sources;
    t->loop = loop;
    return 0;
}

void mt_tape_close(struct mt_tape **tp)
{
    struct mt_tape *t = *tp;

    *tp = NULL;
    if (!t)
        return;
    mt_sound_close(&t->sound);
    mt_resampler_free(&t->conv);
    free(t);
}

static void next_source(struct mt_tape *t)
{
    mt_sound_close(&t->sound);
    mt_resampler_free(&t->conv);
    t->n_out = 0;
    t->flushed = false;
    t->pos = 0;
    t->at = (t->at + 1) % t->reel->n_sources;
    if (!t->loop)
        t->left--;
}

/* From a file that this tape reads for itself. */
static int64_t read_file(struct mt_tape *t, struct source *s, float *out, int64_t n,
                         struct mt_err *e)
{
    struct mt_err why = {0};
    int rc;

    if (!t->sound) {
        if ((rc = mt_sound_open(&t->sound, s->path, reel_raw(t->reel), e)) < 0)
            return rc;
        rc = mt_resampler_new(&t->conv, mt_sound_info(t->sound)->rate_hz, t->reel->rate_hz, e);
        if (rc < 0)
            return rc;
    }
    while (t->n_out == 0 && !t->flushed) {
        int64_t got = mt_sound_read(t->sound, t->in, READ_SAMPLES, e);

        if (got < 0)
            return got;
        t->flushed = got == 0;
        if (t->flushed)
            tell_short(t->reel, s, mt_sound_short(t->sound, &why), &why);
        rc = mt_resampler_push(t->conv, got ? t->in : NULL, got, &t->out, &t->n_out);
        if (rc < 0)
            return mt_err_set(e, rc, "%s: cannot convert the rate", s->path);
    }
    n = n < t->n_out ? n : t->n_out;
    if (n > 0)
        memcpy(out, t->out, (size_t)n * sizeof(*out));
    t->out += n;
    t->n_out -= n;
    return n;
}

int64_t mt_tape_read(struct mt_tape *t, float *out, int64_t n, struct mt_err *e)
{
    int empty = 0;

    while (t->left > 0 && n > 0) {
        struct source *s = &t->reel->source[t->at];
        struct mt_err err = {0};
        int64_t got;

        if (s->kind == SOURCE_CLIP) {
            got = s->n - t->pos < n ? s->n - t->pos : n;
            if (got > 0)
                memcpy(out, s->pcm + t->pos, (size_t)got * sizeof(*out));
            t->pos += got;
        } else if (s->kind == SOURCE_PIPE) {
            got = mt_reel_pipe_read(s->pipe, out, n, &err);
        } else {
            got = read_file(t, s, out, n, &err);
        }
        if (got > 0 || got == -EAGAIN)
            return got;
        if (got < 0) {
            t->left = 0;
            return mt_err_set(e, (int)got, "%s%s", err.code ? err.text : s->path,
                              err.code ? "" : ": cannot be read");
        }
        if (s->kind == SOURCE_PIPE)
            tell_short(t->reel, s, mt_reel_pipe_short(s->pipe, &err), &err);
        next_source(t);
        /* Files that were emptied while they went round must not keep this busy for ever. */
        if (++empty > t->reel->n_sources) {
            t->left = 0;
            return mt_err_set(e, -ENODATA, "%s: not one sample to repeat", s->path);
        }
    }
    return 0;
}

int mt_tape_wait_fd(const struct mt_tape *t)
{
    const struct source *s = &t->reel->source[t->at];

    return t->left > 0 && s->kind == SOURCE_PIPE ? mt_reel_pipe_fd(s->pipe) : -1;
}

int64_t mt_tape_began_ns(const struct mt_tape *t)
{
    const struct source *s = &t->reel->source[t->at];

    return t->left > 0 && s->kind == SOURCE_PIPE ? mt_reel_pipe_began_ns(s->pipe) : 0;
}
