/*
 * tokens.c: mt-probe tokens: text on stdin to ids, and back with -d.
 */
#include "tools/probe/probe.h"

#include <argp.h>
#include <stdlib.h>
#include <string.h>

struct options {
    struct probe_model pm;
    bool decode, ordinary;
    struct mt_tokenizer *own; /* of a directory, whose weights are not needed here */
    const struct mt_tokenizer *t;
};

static const struct argp_option options[] = {
    PROBE_MODEL_OPTIONS,
    {"decode", 'd', NULL, 0, "Ids to text", 0},
    {"no-special", 's', NULL, 0, "Special tokens spelled out in the text are ordinary text", 0},
    {0},
};

static error_t parse(int key, char *arg, struct argp_state *st)
{
    struct options *o = st->input;

    if (key == 'd')
        o->decode = true;
    else if (key == 's')
        o->ordinary = true;
    else if (key == ARGP_KEY_ARG)
        argp_error(st, "'%s': text comes on stdin", arg);
    else if (!probe_model_option(&o->pm, key, arg, st))
        return ARGP_ERR_UNKNOWN;
    return 0;
}

static int encode(const struct options *o, const char *text, size_t len)
{
    struct mt_err e = {0};
    int32_t *ids;
    size_t n;

    if (mt_tokenizer_encode(o->t, text, len, !o->ordinary, &ids, &n, &e) < 0) {
        mt_msg(MT_ERROR, "stdin: %s", e.text);
        return MT_EXIT_FAILED;
    }
    for (size_t i = 0; i < n; i++)
        printf("%s%d", i ? " " : "", ids[i]);
    putchar('\n');
    free(ids);
    return MT_EXIT_OK;
}

/* Ids apart by spaces, commas or line ends. */
static int decode(const struct options *o, char *text, size_t n_text)
{
    const struct mt_tokenizer *t = o->t;
    struct mt_detok d = {.zeros = true};
    char *save = NULL, *out;
    size_t longest = 0, len;
    int64_t id;

    if (strlen(text) != n_text) {
        mt_msg(MT_ERROR, "stdin: a NUL byte at %zu is not part of an id", strlen(text));
        return MT_EXIT_FAILED;
    }
    for (int32_t i = 0; i < mt_tokenizer_size(t); i++) {
        mt_tokenizer_bytes(t, i, &len);
        longest = len > longest ? len : longest;
    }
    size_t cap = 3 * (longest + 3) + 1;
    if (!(out = malloc(cap))) {
        mt_msg(MT_ERROR, "out of memory");
        return MT_EXIT_FAILED;
    }
    for (char *w = strtok_r(text, " ,\t\r\n[]", &save); w;
         w = strtok_r(NULL, " ,\t\r\n[]", &save)) {
        if (mt_parse_i64(w, 0, mt_tokenizer_size(t) - 1, &id) < 0) {
            mt_msg(MT_ERROR, "stdin: '%.40s' is not an id in 0..%d", w, mt_tokenizer_size(t) - 1);
            free(out);
            return MT_EXIT_FAILED;
        }
        int n = mt_detok_push(&d, t, (int32_t)id, true, out, cap);
        fwrite(out, 1, n > 0 ? (size_t)n : 0, stdout);
    }
    int n = mt_detok_flush(&d, out, cap);
    fwrite(out, 1, n > 0 ? (size_t)n : 0, stdout);
    free(out);
    return MT_EXIT_OK;
}

static int open_tokenizer(struct options *o)
{
    const char *spec = o->pm.spec;
    struct mt_err e = {0};
    int status = MT_EXIT_OK;

    if (spec && strncmp(spec, "synth:", 6) != 0 && !o->pm.mmproj) {
        if (mt_tokenizer_open(&o->own, spec, &e) < 0) {
            mt_msg(MT_ERROR, "%s", e.text);
            status = MT_EXIT_FAILED;
        }
        o->t = o->own;
    } else if ((status = probe_model_open(&o->pm)) == MT_EXIT_OK) {
        o->t = mt_model_tokenizer(o->pm.m);
    }
    return status;
}

int probe_tokens(int argc, char **argv)
{
    static const struct argp argp = {
        options,
        parse,
        NULL,
        "Text on stdin to token ids on one line, apart by spaces; with -d ids back to text.",
        NULL,
        NULL,
        NULL};
    struct options o = {0};
    size_t len;

    argp_parse(&argp, argc, argv, 0, NULL, &o);
    int status = open_tokenizer(&o);
    char *text = status == MT_EXIT_OK ? probe_text("-", &len) : NULL;
    if (status == MT_EXIT_OK)
        status = !text ? MT_EXIT_FAILED : o.decode ? decode(&o, text, len) : encode(&o, text, len);
    free(text);
    mt_tokenizer_free(&o.own);
    probe_model_close(&o.pm);
    return status;
}
