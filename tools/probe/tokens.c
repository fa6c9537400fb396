/*
 * tokens.c: mt-probe tokens: text on stdin to ids, and back with -d.
 */
#include "tools/probe/probe.h"

#include <argp.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TEXT_MAX = 256 << 20 };

struct options {
    struct probe_model pm;
    bool decode, ordinary;
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

/* All of stdin, NUL terminated. */
static char *read_all(size_t *n)
{
    size_t cap = 64 << 10;
    char *buf = malloc(cap), *grown;
    ssize_t got = 0;

    *n = 0;
    while (buf && *n < TEXT_MAX && (got = read(0, buf + *n, cap - *n - 1)) > 0) {
        *n += (size_t)got;
        if (cap - *n > 1)
            continue;
        grown = realloc(buf, cap * 2);
        if (!grown)
            break;
        buf = grown;
        cap *= 2;
    }
    if (!buf || got != 0) {
        mt_msg(MT_ERROR, "stdin: %s", got < 0 ? strerror(errno) : "more than 256 MiB of text");
        free(buf);
        return NULL;
    }
    buf[*n] = '\0';
    return buf;
}

static int encode(const struct options *o, const char *text, size_t len)
{
    struct mt_err e = {0};
    int32_t *ids;
    size_t n;

    if (mt_tokenizer_encode(mt_model_tokenizer(o->pm.m), text, len, !o->ordinary, &ids, &n, &e) <
        0) {
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
static int decode(const struct options *o, char *text)
{
    const struct mt_tokenizer *t = mt_model_tokenizer(o->pm.m);
    struct mt_detok d = {0};
    char *save = NULL, *out;
    size_t longest = 0, len;
    int64_t id;

    for (int32_t i = 0; i < mt_tokenizer_size(t); i++) {
        mt_tokenizer_bytes(t, i, &len);
        longest = len > longest ? len : longest;
    }
    size_t cap = 3 * (longest + 3) + 1;
    if (!(out = malloc(cap)))
        return MT_EXIT_FAILED;
    for (char *w = strtok_r(text, " ,\t\r\n[]", &save); w;
         w = strtok_r(NULL, " ,\t\r\n[]", &save)) {
        if (mt_parse_i64(w, 0, mt_tokenizer_size(t) - 1, &id) < 0) {
            mt_msg(MT_ERROR, "stdin: '%s' is not an id in 0..%d", w, mt_tokenizer_size(t) - 1);
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
    int status = probe_model_open(&o.pm);
    if (status == MT_EXIT_OK && !mt_model_tokenizer(o.pm.m)) {
        mt_msg(MT_ERROR, "%s: no tokenizer (tokenizer.json, or vocab.json and merges.txt)",
               o.pm.spec);
        status = MT_EXIT_FAILED;
    }
    char *text = status == MT_EXIT_OK ? read_all(&len) : NULL;
    if (status == MT_EXIT_OK)
        status = !text ? MT_EXIT_FAILED : o.decode ? decode(&o, text) : encode(&o, text, len);
    free(text);
    probe_model_close(&o.pm);
    return status;
}
