/*
 * embed.c: mt-probe embed: the audio tower's output for a clip: whole (the reference), or as a live
 * session hears it, block by block.
 */
#include "tools/probe/probe.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct options {
    struct probe_model pm;
    const char *audio;
    bool live;
    int64_t frame_ns;
};

static const struct argp_option options[] = {
    PROBE_MODEL_OPTIONS,
    {"audio", 'a', "FILE[@start:len]", 0,
     "The clip, or a part: whole numbers count the file's own samples; 1.5, 2s, 200ms are times",
     0},
    {"stream", 's', NULL, 0,
     "As a live session hears it: a frame at a time, clamped by the loudest so far; one line of "
     "type mel a frame",
     0},
    {"frame", 'f', "D", 0, "With --stream: the session's frame (default: the model's own beat)", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *st)
{
    struct options *o = st->input;

    if (key == 'a') {
        if (o->audio)
            argp_error(st, "--audio: one clip at a time");
        o->audio = arg;
    } else if (key == 's') {
        o->live = true;
    } else if (key == 'f') {
        o->frame_ns = mt_arg_duration(st, "--frame", arg);
    } else if (key == ARGP_KEY_ARG) {
        argp_error(st, "'%s': the clip is given by --audio", arg);
    } else if (key == ARGP_KEY_END && !o->audio) {
        argp_error(st, "--audio is missing");
    } else if (key == ARGP_KEY_END && o->frame_ns && !o->live) {
        argp_error(st, "--frame needs --stream");
    } else if (!probe_model_option(&o->pm, key, arg, st)) {
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

/*
 * {"type":"mel","frames":F,"positions":P}, then {"type":"embed","pos":i,"v":[…]} for each of the P
 * rows that the F mel frames gave: each value with the 9 digits that give an f32 back.
 */
static int print_rows(const float *rows, int64_t n, int width, int64_t first, int64_t mel_frames)
{
    printf("{\"type\":\"mel\",\"frames\":%lld,\"positions\":%lld}\n", (long long)mel_frames,
           (long long)n);
    for (int64_t i = 0; i < n; i++) {
        printf("{\"type\":\"embed\",\"pos\":%lld,\"v\":[", (long long)(first + i));
        for (int k = 0; k < width; k++) {
            float v = rows[i * width + k];
            if (isfinite(v))
                printf("%s%.9g", k ? "," : "", (double)v);
            else
                printf("%snull", k ? "," : "");
        }
        fputs("]}", stdout);
        if (mt_line_end(stdout) < 0)
            return MT_EXIT_FAILED; /* the dispatcher says why */
    }
    return MT_EXIT_OK;
}

static int embed_live(const struct options *o, const float *pcm, int64_t n)
{
    const struct mt_model_info *i = mt_model_info(o->pm.m);
    double samples = (double)o->frame_ns * i->sample_rate_hz / 1e9;
    int frame = o->frame_ns ? (int)llround(samples < 1e9 ? samples : 1e9) : i->beat_samples;
    struct mt_err e = {0};
    struct mt_ear *ear;
    int64_t at = 0, first = 0;
    int status = MT_EXIT_OK, rows, rc;

    if (frame > 120 * i->sample_rate_hz) {
        mt_msg(MT_ERROR, "--frame: %.0f s is above 120 s", (double)frame / i->sample_rate_hz);
        return MT_EXIT_USAGE;
    }
    if (mt_ear_new(&ear, o->pm.m, frame, 1, &e) < 0) {
        mt_msg(MT_ERROR, "--frame: %s", e.text);
        return MT_EXIT_USAGE;
    }
    float *out = malloc((size_t)mt_ear_rows_max(o->pm.m, frame) * (size_t)i->hidden * sizeof(*out));
    if (!out) {
        mt_msg(MT_ERROR, "--frame: no memory for its rows");
        status = MT_EXIT_FAILED;
    }
    while (status == MT_EXIT_OK && (at < n || mt_ear_frames(ear) > 0)) {
        at += mt_ear_push(ear, pcm + at, n - at);
        if (at == n)
            mt_ear_end(ear);
        if (mt_ear_frames(ear) < 1)
            continue;
        if ((rc = mt_model_encode(o->pm.m, &ear, 1)) < 0) {
            mt_msg(MT_ERROR, "%s: %s", o->audio, strerror(-rc));
            status = MT_EXIT_FAILED;
            break;
        }
        struct mt_rows r = mt_ear_rows(ear, &rows);
        o->pm.be->ops->rows_get(o->pm.be, out, r, rows);
        status = print_rows(out, rows, i->hidden, first, mt_ear_mel_frames(ear));
        first += rows;
    }
    free(out);
    mt_ear_free(&ear);
    return status;
}

static int embed_clip(const struct options *o, const float *pcm, int64_t n)
{
    struct mt_err e = {0};
    int64_t n_rows, mel_frames;
    float *rows;

    if (mt_model_embed_clip(o->pm.m, pcm, n, &rows, &n_rows, &mel_frames, &e) < 0) {
        mt_msg(MT_ERROR, "%s: %s", o->audio, e.text);
        return MT_EXIT_FAILED;
    }
    int status = print_rows(rows, n_rows, mt_model_info(o->pm.m)->hidden, 0, mel_frames);
    free(rows);
    return status;
}

int probe_embed(int argc, char **argv)
{
    static const struct argp argp = {options,
                                     parse,
                                     NULL,
                                     "The audio tower's output for a clip, one row a line, as it "
                                     "takes the place of the audio tokens.",
                                     NULL,
                                     NULL,
                                     NULL};
    struct options o = {0};
    float *pcm = NULL;
    int64_t n;

    argp_parse(&argp, argc, argv, 0, NULL, &o);
    int status = probe_model_open(&o.pm);
    if (status == MT_EXIT_OK)
        status = probe_clip(o.audio, mt_model_info(o.pm.m)->sample_rate_hz, &pcm, &n);
    if (status == MT_EXIT_OK)
        status = o.live ? embed_live(&o, pcm, n) : embed_clip(&o, pcm, n);
    free(pcm);
    probe_model_close(&o.pm);
    return status;
}
