/*
 * logits.c: mt-probe logits: log-probs of a teacher-forced sequence, of text and audio, under a KV
 * policy. How anyone checks metronome against the authors' code on a checkpoint of their own.
 */
#include "tools/probe/probe.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_AT = 256, KEY_TOP, KEY_KV, KEY_ROPE, KEY_BLOCK, KEY_KV_TYPE };

struct options {
    struct probe_model pm;
    char *tokens, *codes, *at;
    const char **audio;
    int n_audio, block;
    int64_t top;
    struct mt_policy policy;
    enum mt_dtype kv_type;
};

static const struct argp_option options[] = {
    PROBE_MODEL_OPTIONS,
    {"tokens", 't', "IDS|@FILE", 0,
     "Ids apart by commas or spaces; @FILE reads them, @- from stdin", 0},
    {"codes", 'c', "FILE", 0,
     "For a model with codebooks, in place of --tokens: one {\"codes\":[…]} a frame, the text "
     "token "
     "and all codes, -1 for none; - is stdin",
     0},
    {"audio", 'a', "FILE[@start:len]", 0,
     "Goes in where the ids hold the model's audio placeholder; repeat for several clips. Alone, "
     "with "
     "a model that speaks in codes: its greedy answer, a line a step",
     0},
    {"at", KEY_AT, "P,P,…|all", 0,
     "Positions to print; negative ones count from the end (default -1)", 0},
    {"top", KEY_TOP, "N", 0, "Log-probs a position, best first; 0: all, in order of id (default 5)",
     0},
    {"kv", KEY_KV, "POLICY", 0, "unbounded, or window=W[,sinks=S] (default unbounded)", 0},
    {"rope", KEY_ROPE, "HOW", 0,
     "Where sinks stand: cache, directly before the window; absolute, at their distance "
     "(default cache)",
     0},
    {"block", KEY_BLOCK, "TOKENS", 0, "Tokens in a block (default 16)", 0},
    {"kv-type", KEY_KV_TYPE, "TYPE", 0,
     "bf16, f16, f32, int8 or fp8 (default f32, so that only the model is measured)", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *st)
{
    struct options *o = st->input;

    switch (key) {
    case 't':
        o->tokens = arg;
        return 0;
    case 'c':
        o->codes = arg;
        return 0;
    case 'a':
        o->audio[o->n_audio++] = arg;
        return 0;
    case KEY_AT:
        o->at = arg;
        return 0;
    case KEY_TOP:
        o->top = mt_arg_i64(st, "--top", arg, 0, INT32_MAX);
        return 0;
    case KEY_KV:
        mt_arg_kv(st, arg, &o->policy);
        if (o->policy.sinks < 0)
            argp_error(st, "--kv: sinks=prompt needs a session's prompt; give a number here");
        return 0;
    case KEY_ROPE:
        o->policy.rope_absolute = mt_arg_rope(st, arg);
        return 0;
    case KEY_BLOCK:
        o->block = (int)mt_arg_i64(st, "--block", arg, 1, 1024);
        return 0;
    case KEY_KV_TYPE:
        o->kv_type = mt_arg_kv_type(st, arg);
        return 0;
    case ARGP_KEY_ARG:
        argp_error(st, "'%s': ids are given by --tokens", arg);
        return 0;
    case ARGP_KEY_END:
        if (o->tokens && o->codes)
            argp_error(st, "--tokens and --codes: one of them");
        if (!o->tokens && !o->codes && !o->n_audio)
            argp_error(st,
                       "--tokens is missing (of a model that speaks in codes --codes or --audio)");
        return 0;
    default:
        return probe_model_option(&o->pm, key, arg, st) ? 0 : ARGP_ERR_UNKNOWN;
    }
}

/* ---- numbers in lists ---- */

/*
 * Whole numbers apart by commas, spaces, brackets or line ends. *list is malloc'ed. -EINVAL: *bad
 * is the word.
 */
static int parse_list(char *text, int64_t lo, int64_t hi, int64_t **list, int64_t *n,
                      const char **bad)
{
    char *save = NULL;
    int64_t cap = 0;

    *list = NULL;
    *n = 0;
    for (char *w = strtok_r(text, ", \t\r\n[]", &save); w;
         w = strtok_r(NULL, ", \t\r\n[]", &save)) {
        if (*n == cap) {
            cap = cap ? 2 * cap : 256;
            int64_t *grown = realloc(*list, mt_mul((size_t)cap, sizeof(*grown)));
            if (!grown)
                return -ENOMEM;
            *list = grown;
        }
        if (mt_parse_i64(w, lo, hi, &(*list)[*n]) < 0) {
            *bad = w;
            return -EINVAL;
        }
        ++*n;
    }
    return 0;
}

static int load_ids(const struct options *o, int32_t **ids, int64_t *n)
{
    const char *bad = "";
    int64_t *list = NULL;
    bool file = o->tokens && o->tokens[0] == '@';
    size_t len = 0;
    char *text = file ? probe_text(o->tokens + 1, &len) : strdup(o->tokens ? o->tokens : "");
    int rc = text ? 0 : -EIO;

    if (file && text && strlen(text) != len) {
        bad = "a NUL byte";
        rc = -EINVAL;
    }
    if (rc == 0)
        rc = parse_list(text, 0, INT32_MAX, &list, n, &bad);
    if (rc == -EINVAL)
        mt_msg(MT_ERROR, "--tokens: '%.40s' is not an id", bad);
    else if (rc == -ENOMEM)
        mt_msg(MT_ERROR, "--tokens: out of memory");
    *ids = rc == 0 ? malloc(mt_mul((size_t)*n + 1, sizeof(**ids))) : NULL;
    for (int64_t i = 0; *ids && i < *n; i++)
        (*ids)[i] = (int32_t)list[i];
    free(list);
    free(text);
    return *ids ? MT_EXIT_OK : rc == -EINVAL ? MT_EXIT_USAGE : MT_EXIT_FAILED;
}

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return x < y ? -1 : x > y;
}

/* --at to ascending positions without doubles. */
static int load_positions(const struct options *o, int64_t n, int64_t **at, int64_t *n_at)
{
    const char *bad = "";
    int rc;

    if (o->at && !strcmp(o->at, "all")) {
        *at = malloc(mt_mul((size_t)n + 1, sizeof(**at)));
        for (*n_at = 0; *at && *n_at < n; ++*n_at)
            (*at)[*n_at] = *n_at;
        if (!*at)
            mt_msg(MT_ERROR, "--at: out of memory");
        return *at ? MT_EXIT_OK : MT_EXIT_FAILED;
    }
    char *text = strdup(o->at ? o->at : "-1");
    rc = text ? parse_list(text, -n, n - 1, at, n_at, &bad) : -ENOMEM;
    if (rc == 0 && *n_at == 0)
        rc = -EINVAL; /* an empty list asks for nothing: surely a script's unset variable */
    if (rc == -EINVAL)
        mt_msg(MT_ERROR, "--at: '%.40s' is not a position in %lld..%lld", bad, (long long)-n,
               (long long)n - 1);
    else if (rc < 0)
        mt_msg(MT_ERROR, "--at: out of memory");
    free(text);
    if (rc < 0)
        return rc == -EINVAL ? MT_EXIT_USAGE : MT_EXIT_FAILED;
    for (int64_t i = 0; i < *n_at; i++)
        (*at)[i] += (*at)[i] < 0 ? n : 0;
    qsort(*at, (size_t)*n_at, sizeof(**at), by_value);
    int64_t kept = 0;
    for (int64_t i = 0; i < *n_at; i++)
        if (kept == 0 || (*at)[i] != (*at)[kept - 1])
            (*at)[kept++] = (*at)[i];
    *n_at = kept;
    return MT_EXIT_OK;
}

/* ---- audio ---- */

static int load_audio(const struct options *o, float **rows, int64_t *n_rows)
{
    const struct mt_model_info *info = mt_model_info(o->pm.m);
    size_t width = (size_t)info->hidden;

    *rows = NULL;
    *n_rows = 0;
    for (int i = 0; i < o->n_audio; i++) {
        struct mt_err e = {0};
        float *pcm, *emb;
        int64_t n, got;
        int status = probe_clip(o->audio[i], info->sample_rate_hz, &pcm, &n);
        if (status != MT_EXIT_OK)
            return status;
        int rc = mt_model_embed_clip(o->pm.m, pcm, n, &emb, &got, NULL, &e);
        free(pcm);
        if (rc < 0) {
            mt_msg(MT_ERROR, "%s: %s", o->audio[i], e.text);
            return MT_EXIT_FAILED;
        }
        float *grown = realloc(*rows, mt_mul((size_t)(*n_rows + got), width * sizeof(*grown)));
        if (grown) {
            memcpy(grown + (size_t)*n_rows * width, emb, (size_t)got * width * sizeof(*emb));
            *rows = grown;
            *n_rows += got;
        }
        free(emb);
        if (!grown) {
            mt_msg(MT_ERROR, "%s: out of memory", o->audio[i]);
            return MT_EXIT_FAILED;
        }
    }
    return MT_EXIT_OK;
}

/* ---- out ---- */

struct printer {
    const int32_t *ids;
    int64_t top;
    int32_t *order;
};

/* Best first, the lower id first among equals, what is no number last. */
static int by_logprob(const void *a, const void *b, void *ctx)
{
    const float *logprobs = ctx;
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;

    if (isnan(logprobs[x]) != isnan(logprobs[y]))
        return isnan(logprobs[x]) ? 1 : -1;
    if (logprobs[x] != logprobs[y] && !isnan(logprobs[x]))
        return logprobs[x] > logprobs[y] ? -1 : 1;
    return x < y ? -1 : x > y;
}

static int print_top(const struct printer *p, const float *logprobs, int vocab)
{
    int64_t n = p->top && p->top < vocab ? p->top : vocab;

    for (int32_t i = 0; i < vocab; i++)
        p->order[i] = i;
    if (p->top)
        qsort_r(p->order, (size_t)vocab, sizeof(*p->order), by_logprob,
                (void *)(uintptr_t)logprobs);
    fputs(",\"top\":[", stdout);
    for (int64_t k = 0; k < n; k++) {
        float v = logprobs[p->order[k]];
        printf("%s[%d,", k ? "," : "", p->order[k]);
        if (isfinite(v))
            printf("%.9g]", (double)v);
        else
            printf("null]");
    }
    fputs("]}", stdout);
    return mt_line_end(stdout);
}

static int print_row(void *ctx, int64_t pos, const float *logprobs, int vocab)
{
    const struct printer *p = ctx;

    printf("{\"type\":\"logits\",\"pos\":%lld,", (long long)pos);
    if (p->ids)
        printf("\"token\":%d", p->ids[pos]);
    else
        fputs("\"stream\":0", stdout);
    return print_top(p, logprobs, vocab);
}

static int print_code_row(void *ctx, int64_t pos, int k, const float *logprobs, int bins)
{
    printf("{\"type\":\"logits\",\"pos\":%lld,\"stream\":%d", (long long)pos, 1 + k);
    return print_top(ctx, logprobs, bins);
}

/* ---- greedy ---- */

static int print_step(void *ctx, int64_t pos, int32_t text, const int32_t *codes, int n)
{
    (void)ctx;
    printf("{\"type\":\"step\",\"pos\":%lld,\"text\":%d,\"codes\":[", (long long)pos, text);
    for (int k = 0; k < n; k++)
        printf("%s%d", k ? "," : "", codes[k]);
    fputs("]}", stdout);
    return mt_line_end(stdout);
}

/* Exit status of a run that gave rc; without a text it was stdout, which the dispatcher reports. */
static int status_of(int rc, const struct mt_err *e)
{
    if (rc < 0 && e->code)
        mt_msg(MT_ERROR, "%s", e->text);
    return rc == 0 ? MT_EXIT_OK : rc == -EINVAL ? MT_EXIT_USAGE : MT_EXIT_FAILED;
}

static int run_greedy(const struct options *o)
{
    struct mt_greedy g = {
        .policy = o->policy, .kv_type = o->kv_type, .block_tokens = o->block, .step = print_step};
    struct mt_err e = {0};
    float *pcm;

    if (o->n_audio > 1) {
        mt_msg(MT_ERROR, "--audio: one clip at a time, this model answers it");
        return MT_EXIT_USAGE;
    }
    int status = probe_clip(o->audio[0], mt_model_info(o->pm.m)->sample_rate_hz, &pcm, &g.n_pcm);
    if (status != MT_EXIT_OK)
        return status;
    g.pcm = pcm;
    status = status_of(mt_greedy_run(o->pm.m, &g, &e), &e);
    free(pcm);
    return status;
}

/* Either ids with the audio that goes between them, or frames of codes. */
static int load_input(const struct options *o, struct mt_teacher *t, int32_t **ids, float **audio)
{
    const struct mt_model_info *info = mt_model_info(o->pm.m);
    struct probe_frames frames;
    int status;

    if (o->codes && !info->codebooks) {
        mt_msg(MT_ERROR, "--codes: %s has no codebooks; it takes --tokens", info->name);
        return MT_EXIT_USAGE;
    }
    if (o->codes && o->n_audio) {
        mt_msg(MT_ERROR, "--codes and --audio: one of them");
        return MT_EXIT_USAGE;
    }
    if (o->codes) {
        status = probe_frames_load(&frames, o->codes, 1 + info->codebooks);
        *ids = frames.codes;
        t->frames = frames.codes;
        t->n = frames.n;
        return status;
    }
    if (info->codebooks) {
        mt_msg(MT_ERROR, "--tokens: %s takes frames of codes, --codes", info->name);
        return MT_EXIT_USAGE;
    }
    if ((status = load_ids(o, ids, &t->n)) != MT_EXIT_OK)
        return status;
    t->ids = *ids;
    if (t->n < 1) {
        mt_msg(MT_ERROR, "--tokens: no ids given");
        return MT_EXIT_USAGE;
    }
    status = load_audio(o, audio, &t->n_audio);
    t->audio = *audio;
    return status;
}

static int run(const struct options *o)
{
    const struct mt_model_info *info = mt_model_info(o->pm.m);
    struct mt_teacher t = {.policy = o->policy,
                           .kv_type = o->kv_type,
                           .block_tokens = o->block,
                           .row = print_row,
                           .code_row = print_code_row};
    struct printer p = {.top = o->top};
    struct mt_err e = {0};
    int32_t *ids = NULL;
    int64_t *at = NULL;
    float *audio = NULL;
    int widest = info->vocab > info->code_bins ? info->vocab : info->code_bins;
    int status = load_input(o, &t, &ids, &audio);

    if (status == MT_EXIT_OK)
        status = load_positions(o, t.n, &at, &t.n_at);
    p.order = malloc((size_t)widest * sizeof(*p.order));
    if (status == MT_EXIT_OK && !p.order) {
        mt_msg(MT_ERROR, "out of memory");
        status = MT_EXIT_FAILED;
    }
    if (status == MT_EXIT_OK) {
        p.ids = t.ids;
        t.at = at;
        t.ctx = &p;
        status = status_of(mt_teacher_run(o->pm.m, &t, &e), &e);
    }
    free(p.order);
    free(ids);
    free(at);
    free(audio);
    return status;
}

int probe_logits(int argc, char **argv)
{
    static const struct argp argp = {
        options, parse, NULL, "Log-probs of a teacher-forced sequence, one line a position.",
        NULL,    NULL,  NULL};
    struct options o = {.top = 5, .block = 16, .kv_type = MT_F32};

    o.audio = calloc((size_t)argc + 1, sizeof(*o.audio));
    if (!o.audio)
        return MT_EXIT_FAILED;
    argp_parse(&argp, argc, argv, 0, NULL, &o);
    int status = probe_model_open(&o.pm);
    bool greedy = status == MT_EXIT_OK && mt_model_info(o.pm.m)->codebooks && o.n_audio &&
                  !o.codes && !o.tokens;
    if (status == MT_EXIT_OK)
        status = greedy ? run_greedy(&o) : run(&o);
    probe_model_close(&o.pm);
    free(o.audio);
    return status;
}
