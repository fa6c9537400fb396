/*
 * model.c: what mt-probe's subcommands on a model share: options, opening, clips of audio files.
 */
#include "tools/probe/probe.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEP_ROWS = 64, CLIP_MAX_S = 3600, TEXT_MAX = 256 << 20 };

bool probe_model_option(struct probe_model *p, int key, char *arg, struct argp_state *st)
{
    switch (key) {
    case 'm':
        p->spec = arg;
        return true;
    case PROBE_MMPROJ:
        p->mmproj = arg;
        return true;
    case PROBE_QUANTIZE:
        p->quantize = mt_arg_quantize(st, arg);
        return true;
    case 'T':
        p->threads = mt_arg_threads(st, arg);
        return true;
    case 'B':
        p->backend = arg;
        return true;
    case PROBE_DETERMINISTIC:
        p->deterministic = true;
        return true;
    default:
        return false;
    }
}

int probe_backend_open(struct probe_model *p)
{
    const char *name = p->backend ? p->backend : "cpu";
    struct mt_err e = {0};

    if ((p->deterministic ? mt_backend_open_deterministic : mt_backend_open)(&p->be, name,
                                                                             p->threads, &e) < 0) {
        mt_msg(MT_ERROR, "%s", e.text);
        return MT_EXIT_USAGE;
    }
    return MT_EXIT_OK;
}

int probe_model_open(struct probe_model *p)
{
    int rows = p->rows ? p->rows : STEP_ROWS;
    struct mt_model_opts o = {
        .step_rows = rows, .want_rows = rows, .mmproj = p->mmproj, .quantize = p->quantize};
    struct mt_err e = {0};
    int status = probe_backend_open(p);

    if (status != MT_EXIT_OK)
        return status;
    int rc = mt_model_open(&p->m, p->spec, p->be, &o, &e);
    if (rc < 0) {
        const char *spec = p->spec ? p->spec : mt_model_named();

        mt_msg(MT_ERROR, "%s", e.text);
        /* A wrong synth: is a wrong call; what lies in a directory is not the caller's wording. */
        return rc == -EINVAL && (p->mmproj || (spec && !strncmp(spec, "synth:", 6)))
                   ? MT_EXIT_USAGE
                   : MT_EXIT_FAILED;
    }
    if (*mt_model_info(p->m)->remark)
        mt_msg(MT_WARN, "%s: %s", mt_model_spec(p->m), mt_model_info(p->m)->remark);
    return MT_EXIT_OK;
}

void probe_model_close(struct probe_model *p)
{
    mt_model_close(&p->m);
    mt_backend_close(&p->be);
}

/* All of f, NUL terminated, at most TEXT_MAX bytes. */
static char *read_all(FILE *f, const char *name, size_t *n)
{
    size_t cap = 64 << 10, got;
    char *buf = malloc(cap), *grown;

    *n = 0;
    while (buf && *n < TEXT_MAX && (got = fread(buf + *n, 1, cap - *n - 1, f)) > 0) {
        *n += got;
        if (cap - *n > 1)
            continue;
        grown = realloc(buf, cap * 2);
        if (!grown)
            break;
        buf = grown;
        cap *= 2;
    }
    if (buf && feof(f)) {
        buf[*n] = '\0';
        return buf;
    }
    mt_msg(MT_ERROR, "%s: %s", name,
           ferror(f)        ? strerror(errno)
           : *n >= TEXT_MAX ? "more than 256 MiB of text"
                            : "out of memory");
    free(buf);
    return NULL;
}

char *probe_text(const char *path, size_t *n)
{
    bool in = !strcmp(path, "-");
    FILE *f = in ? stdin : fopen(path, "r");
    char *text = NULL;

    if (f)
        text = read_all(f, in ? "stdin" : path, n);
    else
        mt_msg(MT_ERROR, "%s: %s", path, strerror(errno));
    if (f && !in)
        fclose(f);
    return text;
}

static int parse_count(const char *text, int64_t *out)
{
    return mt_parse_i64(text, 0, INT64_MAX, out);
}

/* Only digits: a count of samples. */
static bool is_count(const char *text)
{
    return *text && strspn(text, "0123456789") == strlen(text);
}

/*
 * Cut FILE@start:len. Two whole numbers count the file's own samples; if either has a unit or a
 * decimal point both are times. An empty len is the rest. A name that has an @ of its own is taken
 * whole if there is such a file. *cut tells whether there was a part.
 */
static int parse_clip(char *spec, struct mt_sound_part *part, bool *cut)
{
    char *at = strrchr(spec, '@'), *colon = at ? strchr(at, ':') : NULL, *start, *len;
    int (*parse)(const char *s, int64_t *out) = mt_parse_duration;

    *cut = false;
    if (!colon || access(spec, F_OK) == 0)
        return 0;
    *colon = '\0';
    start = at + 1;
    len = colon + 1;
    *part = (struct mt_sound_part){.len = -1};
    if (is_count(start) && (is_count(len) || !*len)) {
        part->samples = true;
        parse = parse_count;
    }
    if (parse(start, &part->start) < 0 || (*len && parse(len, &part->len) < 0))
        return -EINVAL;
    *at = '\0';
    *cut = true;
    return 0;
}

int probe_clip(const char *spec, int rate_hz, float **pcm, int64_t *n)
{
    struct mt_err e = {0};
    struct mt_sound_part part;
    char *path = strdup(spec);
    bool cut;

    *pcm = NULL;
    if (!path || parse_clip(path, &part, &cut) < 0) {
        mt_msg(MT_ERROR,
               "--audio: '%s' is not FILE[@start:len] in samples (16000) or times (1.5, 1s, 200ms)",
               spec);
        free(path);
        return MT_EXIT_USAGE;
    }
    int rc = mt_sound_load_part(path, NULL, rate_hz, cut ? &part : NULL,
                                (int64_t)CLIP_MAX_S * rate_hz, pcm, n, &e);
    free(path);
    if (rc == 0 && *n > 0)
        return MT_EXIT_OK;
    if (rc < 0)
        mt_msg(MT_ERROR, "%s", e.text);
    else
        mt_msg(MT_ERROR, "%s: no samples there", spec);
    free(*pcm);
    *pcm = NULL;
    return MT_EXIT_FAILED;
}
