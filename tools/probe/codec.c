/*
 * codec.c: mt-probe codec: sound to the codes of a model's codec, and codes to sound, a frame at a
 * time.
 */
#include "tools/probe/probe.h"

#include <argp.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "audio/audio.h"
#include "model/codec.h"

enum { LINE_MAX_BYTES = 64 << 10, CODEBOOKS_MAX = 64 };

struct options {
    struct probe_model pm;
    bool decode, whole;
    int codebooks;
    const char *way, *file, *out;
};

static const struct argp_option options[] = {
    PROBE_MODEL_OPTIONS,
    {"whole", 'w', NULL, 0,
     "As the authors' code takes a clip at once, not as a live call: differs after 10 s", 0},
    {"codebooks", 'c', "N", 0,
     "encode: codes of a frame (default: as many as the model speaks); decode: as many as a line "
     "has",
     0},
    {"output", 'o', "FILE", 0, "decode: the WAV to write (default: standard output)", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *st)
{
    struct options *o = st->input;
    int64_t n;

    if (key == 'w') {
        o->whole = true;
    } else if (key == 'c') {
        if (mt_parse_i64(arg, 1, CODEBOOKS_MAX, &n) < 0)
            argp_error(st, "--codebooks: '%s' is not a number in 1..%d", arg, CODEBOOKS_MAX);
        o->codebooks = (int)n;
    } else if (key == 'o') {
        o->out = arg;
    } else if (key == ARGP_KEY_ARG && !o->way) {
        if (strcmp(arg, "encode") != 0 && strcmp(arg, "decode") != 0)
            argp_error(st, "'%s' is not encode or decode", arg);
        o->way = arg;
        o->decode = arg[0] == 'd';
    } else if (key == ARGP_KEY_ARG) {
        if (o->file)
            argp_error(st, "'%s': one file at a time", arg);
        o->file = arg;
    } else if (key == ARGP_KEY_END) {
        if (!o->way)
            argp_error(st, "encode or decode is missing");
        if (!o->pm.spec && !(o->pm.spec = mt_model_named()))
            argp_error(st, "--model is missing: not every model has a codec");
        if (o->out && !o->decode)
            argp_error(st, "--output: encode writes lines to standard output");
    } else if (!probe_model_option(&o->pm, key, arg, st)) {
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

static int open_codec(struct options *o, struct mt_codec **c, int codebooks)
{
    struct mt_err e = {0};
    int rc = mt_codec_open(c, o->pm.spec, o->pm.be, codebooks, o->whole, &e);

    if (rc == 0)
        return MT_EXIT_OK;
    mt_msg(MT_ERROR, "%s", e.text);
    return rc == -EINVAL && !strncmp(o->pm.spec, "synth:", 6) ? MT_EXIT_USAGE : MT_EXIT_FAILED;
}

/* ---- encode ---- */

struct encoder {
    struct mt_codec *c;
    float *frame;
    int have; /* samples of the frame */
    int64_t frames;
    int32_t codes[CODEBOOKS_MAX];
};

static int frame_out(struct encoder *en)
{
    const struct mt_codec_info *i = mt_codec_info(en->c);

    memset(en->frame + en->have, 0, (size_t)(i->frame_samples - en->have) * sizeof(*en->frame));
    mt_codec_encode(en->c, en->frame, en->codes);
    en->have = 0;
    printf("{\"type\":\"codes\",\"frame\":%" PRId64 ",\"codes\":[", en->frames++);
    for (int k = 0; k < i->codebooks; k++)
        printf("%s%d", k ? "," : "", en->codes[k]);
    fputs("]}", stdout);
    return mt_line_end(stdout); /* the dispatcher says what went wrong */
}

static int take_samples(struct encoder *en, const float *pcm, int64_t n)
{
    int size = mt_codec_info(en->c)->frame_samples, rc;

    while (n > 0) {
        int part = n < size - en->have ? (int)n : size - en->have;

        memcpy(en->frame + en->have, pcm, (size_t)part * sizeof(*pcm));
        en->have += part;
        pcm += part;
        n -= part;
        if (en->have == size && (rc = frame_out(en)) < 0)
            return rc;
    }
    return 0;
}

/* 0, -EPIPE or -EIO for stdout (not printed), or another error, which was. */
static int encode_sound(struct encoder *en, struct mt_sound *s, const char *name)
{
    struct mt_resampler *r = NULL;
    struct mt_err e = {0};
    float in[4096];
    int64_t got, n;
    const float *out;
    int rc =
        mt_resampler_new(&r, mt_sound_info(s)->rate_hz, mt_codec_info(en->c)->sample_rate_hz, &e);

    while (rc == 0) {
        if ((got = mt_sound_read(s, in, MT_COUNT(in), &e)) < 0) {
            rc = (int)got;
            break;
        }
        if ((rc = mt_resampler_push(r, got ? in : NULL, got, &out, &n)) < 0)
            mt_err_set(&e, rc, "%s: resampling: %s", name, strerror(-rc));
        else
            rc = take_samples(en, out, n);
        if (got == 0)
            break;
    }
    if (rc == 0 && en->have)
        rc = frame_out(en);
    if (rc == 0 && en->frames == 0)
        rc = mt_err_set(&e, -ENODATA, "%s: no samples there", name);
    if (rc == 0 && mt_sound_short(s, &e))
        mt_msg(MT_WARN, "%s", e.text);
    else if (rc < 0 && e.code)
        mt_msg(MT_ERROR, "%s", e.text);
    mt_resampler_free(&r);
    return rc;
}

static int encode(struct options *o)
{
    struct encoder en = {0};
    const char *path = o->file ? o->file : "-";
    struct mt_sound *s = NULL;
    struct mt_err e = {0};
    float *frame = NULL;
    int status = open_codec(o, &en.c, o->codebooks);

    if (status == MT_EXIT_OK) {
        frame = calloc((size_t)mt_codec_info(en.c)->frame_samples, sizeof(*frame));
        en.frame = frame;
        if (!frame || mt_sound_open(&s, path, NULL, &e) < 0) {
            mt_msg(MT_ERROR, "%s", frame ? e.text : "out of memory");
            status = MT_EXIT_FAILED;
        } else if (encode_sound(&en, s, strcmp(path, "-") != 0 ? path : "stdin") < 0) {
            status = MT_EXIT_FAILED;
        }
    }
    mt_sound_close(&s);
    free(frame);
    mt_codec_close(&en.c);
    return status;
}

/* ---- decode ---- */

struct decoder {
    struct options *o;
    struct mt_codec *c;
    struct mt_wav_float *wav;
    const char *name; /* of the input */
    float *frame;
    int64_t frames;
    int status;
};

/* The first line says how many codebooks there are. */
static int decoder_begin(struct decoder *d, int codebooks)
{
    struct mt_err e = {0};

    if ((d->status = open_codec(d->o, &d->c, codebooks)) != MT_EXIT_OK)
        return -ECANCELED;
    d->status = MT_EXIT_FAILED;
    d->frame = calloc((size_t)mt_codec_info(d->c)->frame_samples, sizeof(*d->frame));
    if (!d->frame) {
        mt_msg(MT_ERROR, "out of memory");
        return -ECANCELED;
    }
    if (mt_wav_float_create(&d->wav, d->o->out, mt_codec_info(d->c)->sample_rate_hz, &e) < 0) {
        mt_msg(MT_ERROR, "%s", e.text);
        return -ECANCELED;
    }
    d->status = MT_EXIT_OK;
    return 0;
}

/*
 * Codes of one frame; what is no array of such is a failure: a frame left out would shift the rest.
 */
static int take_codes(struct decoder *d, const json_t *codes)
{
    int32_t v[CODEBOOKS_MAX];
    size_t n = json_array_size(codes);
    int rc;

    if (n < 1 || n > CODEBOOKS_MAX) {
        mt_msg(MT_ERROR, "%s: frame %" PRId64 ": codes is not an array of 1..%d", d->name,
               d->frames, CODEBOOKS_MAX);
        goto fail;
    }
    if (!d->c && (rc = decoder_begin(d, (int)n)) < 0)
        return rc;
    if ((int)n != mt_codec_info(d->c)->codebooks) {
        mt_msg(MT_ERROR, "%s: frame %" PRId64 ": %zu codes (the first has %d)", d->name, d->frames,
               n, mt_codec_info(d->c)->codebooks);
        goto fail;
    }
    for (size_t k = 0; k < n; k++) {
        const json_t *code = json_array_get(codes, k);
        json_int_t x = json_is_integer(code) ? json_integer_value(code) : -1;

        v[k] = x < 0 || x > INT32_MAX ? -1 : (int32_t)x;
    }
    if (mt_codec_decode(d->c, v, d->frame) < 0) {
        mt_msg(MT_ERROR, "%s: frame %" PRId64 ": a code is not a number in 0..%d", d->name,
               d->frames, mt_codec_info(d->c)->bins - 1);
        goto fail;
    }
    d->frames++;
    return mt_wav_float_write(d->wav, d->frame, mt_codec_info(d->c)->frame_samples);
fail:
    d->status = MT_EXIT_FAILED;
    return -ECANCELED;
}

static int take_line(void *ctx, const char *line, size_t n)
{
    struct decoder *d = ctx;
    json_t *obj = json_loadb(line, n, 0, NULL);
    const char *type = json_string_value(json_object_get(obj, "type"));
    const json_t *codes = json_object_get(obj, "codes");
    int rc = 0;

    if (!json_is_object(obj))
        rc = -EBADMSG;
    else if (codes && (!type || !strcmp(type, "codes")))
        rc = take_codes(d, codes);
    json_decref(obj);
    return rc;
}

static int decode(struct options *o)
{
    const char *path = o->file && strcmp(o->file, "-") != 0 ? o->file : NULL;
    struct decoder d = {.o = o, .name = path ? path : "stdin", .status = MT_EXIT_OK};
    int fd = STDIN_FILENO, rc, end;
    int64_t broken = 0;

    if (path && (fd = open(path, O_RDONLY | O_CLOEXEC)) < 0) {
        mt_msg(MT_ERROR, "%s: %s", path, strerror(errno));
        return MT_EXIT_FAILED;
    }
    rc = mt_lines_each(fd, LINE_MAX_BYTES, take_line, &d, &broken);
    if (fd != STDIN_FILENO)
        close(fd);
    if (rc == 0 && broken) {
        mt_msg(MT_ERROR, "%s: %" PRId64 " lines are no JSON objects", d.name, broken);
        d.status = MT_EXIT_FAILED;
    }
    if (rc == 0 && !broken && d.frames == 0 && d.status == MT_EXIT_OK) {
        mt_msg(MT_ERROR, "%s: no codes there", d.name);
        d.status = MT_EXIT_FAILED;
    }
    end = mt_wav_float_close(&d.wav);
    rc = rc < 0 ? rc : end;
    if (rc < 0 && rc != -ECANCELED) {
        if (o->out || end == 0)
            mt_msg(MT_ERROR, "%s: %s", end ? o->out : d.name, strerror(-rc));
        d.status = MT_EXIT_FAILED;
    }
    free(d.frame);
    mt_codec_close(&d.c);
    return d.status;
}

int probe_codec(int argc, char **argv)
{
    static const struct argp argp = {
        options,
        parse,
        "encode|decode [FILE]",
        "Sound (FILE or standard input) to the codes of a model's codec, one line a frame, or such "
        "lines to sound, a float WAV.",
        NULL,
        NULL,
        NULL};
    struct options o = {0};
    int status;

    argp_parse(&argp, argc, argv, 0, NULL, &o);
    if (o.decode && !o.out && isatty(STDOUT_FILENO)) {
        mt_msg(MT_ERROR, "a WAV is not for a terminal: name a file by --output");
        return MT_EXIT_USAGE;
    }
    if ((status = probe_backend_open(&o.pm)) != MT_EXIT_OK)
        return status;
    status = o.decode ? decode(&o) : encode(&o);
    probe_model_close(&o.pm);
    return status;
}
