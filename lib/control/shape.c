/*
 * shape.c: what a model costs in KV memory, by name or from its config.json or GGUF file. Only the
 * few numbers that set a token's bytes and the beat are read; whether the weights can be run is the
 * model's part.
 */
#include "control/control.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model/model.h"

#define CONFIG_MAX (16 << 20) /* bytes; released ones have a few thousand */
#define DIM_MAX    4096
#define HIDDEN_MAX (1 << 20)

/*
 * Layers, KV heads and head dimension as released; tokens a second of audio and the native beat of
 * each family. MiniCPM-o's unit markers (3 a second while it listens) and spoken text are not audio
 * and not counted here.
 */
static const struct mt_shape known[] = {
    {"qwen2.5-omni-7b", 28, 4, 128, 25, 25, 2},     {"qwen2.5-omni-3b", 36, 2, 128, 25, 25, 2},
    {"qwen3-omni-30b", 48, 4, 128, 12.5, 13, 1},    {"minicpm-o-4.5", 36, 8, 128, 10, 10, 1},
    {"moshi-7b", 32, 32, 128, 12.5, 12.5, 0.08},    {"qwen2.5-omni-tiny", 4, 2, 32, 25, 25, 2},
    {"qwen2.5-omni-7b-tiny", 4, 2, 32, 25, 25, 2},  {"qwen2.5-omni-3b-tiny", 4, 2, 32, 25, 25, 2},
    {"qwen3-omni-30b-tiny", 4, 2, 32, 12.5, 13, 1}, {"minicpm-o-4.5-tiny", 4, 2, 32, 10, 10, 1},
    {"moshi-7b-tiny", 3, 4, 32, 12.5, 12.5, 0.08},  {"moshi-tiny", 3, 4, 32, 12.5, 12.5, 0.08},
};

/* The beat by the beginning of a config's model_type. */
static const struct {
    const char *type;
    const char *like;
} families[] = {
    {"qwen2_5_omni", "qwen2.5-omni-7b"},
    {"qwen3_omni", "qwen3-omni-30b"},
    {"minicpmo", "minicpm-o-4.5"},
    {"moshi", "moshi-7b"},
};

const char *mt_shape_name(int i)
{
    return i >= 0 && i < (int)MT_COUNT(known) ? known[i].name : NULL;
}

int mt_shape_by_name(struct mt_shape *out, const char *name)
{
    for (size_t i = 0; i < MT_COUNT(known); i++) {
        if (!strcmp(known[i].name, name)) {
            *out = known[i];
            return 0;
        }
    }
    return -ENOENT;
}

double mt_shape_audio_rate(const struct mt_shape *s, double frame_s)
{
    return frame_s >= 1 && frame_s == (double)(int64_t)frame_s ? s->audio_tokens_1s
                                                               : s->audio_tokens_s;
}

int64_t mt_shape_token_bytes(const struct mt_shape *s, enum mt_dtype type)
{
    int64_t scale = mt_dtype_scaled(type) ? (int64_t)sizeof(float) : 0;
    int64_t head = s->head_dim * (int64_t)mt_dtype_size(type) + scale;

    return 2 * (int64_t)s->layers * s->kv_heads * head;
}

/* ---- config.json ---- */

struct config {
    const char *what; /* the file, for errors */
    const char *path; /* of the object below, "thinker_config.text_config." */
    const json_t *obj;
    struct mt_err *e;
};

static bool present(const struct config *c, const char *key)
{
    const json_t *v = json_object_get(c->obj, key);

    return v && !json_is_null(v);
}

/* obj[key], an integer in 1..max. */
static int read_dim(const struct config *c, const char *key, int max, int *out)
{
    const json_t *v = json_object_get(c->obj, key);

    if (!v) {
        mt_err_set(c->e, -EPROTO, "%s: %s%s is missing, expected an integer in 1..%d", c->what,
                   c->path, key, max);
        return -EPROTO;
    }
    if (!json_is_integer(v) || json_integer_value(v) < 1 || json_integer_value(v) > max) {
        mt_err_set(c->e, -EPROTO, "%s: %s%s is not an integer in 1..%d", c->what, c->path, key,
                   max);
        return -EPROTO;
    }
    *out = (int)json_integer_value(v);
    return 0;
}

static int divide(const struct config *c, const char *key, int a, const char *by, int b, int *out)
{
    if (a % b)
        return mt_err_set(c->e, -EPROTO, "%s: %s%s %d is not a multiple of %s %d", c->what, c->path,
                          key, a, by, b);
    *out = a / b;
    return 0;
}

/* Layouts after Hugging Face: num_hidden_layers and so on. */
static int read_hf(const struct config *c, struct mt_shape *s)
{
    int heads, hidden, group, rc;

    if ((rc = read_dim(c, "num_hidden_layers", DIM_MAX, &s->layers)) < 0 ||
        (rc = read_dim(c, "num_attention_heads", DIM_MAX, &heads)) < 0)
        return rc;
    if (json_is_null(json_object_get(c->obj, "num_key_value_heads")))
        s->kv_heads = heads; /* written so where every head has its own keys */
    else if ((rc = read_dim(c, "num_key_value_heads", DIM_MAX, &s->kv_heads)) < 0)
        return rc;
    if ((rc = divide(c, "num_attention_heads", heads, "num_key_value_heads", s->kv_heads, &group)) <
        0)
        return rc;
    if (present(c, "head_dim"))
        return read_dim(c, "head_dim", DIM_MAX, &s->head_dim);
    if ((rc = read_dim(c, "hidden_size", HIDDEN_MAX, &hidden)) < 0 ||
        (rc = divide(c, "hidden_size", hidden, "num_attention_heads", heads, &s->head_dim)) < 0)
        return rc;
    if (s->head_dim > DIM_MAX)
        return mt_err_set(c->e, -EPROTO, "%s: %shidden_size / num_attention_heads is above %d",
                          c->what, c->path, DIM_MAX);
    return 0;
}

/* Kyutai's own layout: every head has its own keys. */
static int read_kyutai(const struct config *c, struct mt_shape *s)
{
    int dim, rc;

    if ((rc = read_dim(c, "num_layers", DIM_MAX, &s->layers)) < 0 ||
        (rc = read_dim(c, "num_heads", DIM_MAX, &s->kv_heads)) < 0 ||
        (rc = read_dim(c, "dim", HIDDEN_MAX, &dim)) < 0 ||
        (rc = divide(c, "dim", dim, "num_heads", s->kv_heads, &s->head_dim)) < 0)
        return rc;
    if (s->head_dim > DIM_MAX)
        return mt_err_set(c->e, -EPROTO, "%s: dim / num_heads is above %d", c->what, DIM_MAX);
    return 0;
}

/* The object `key` of c goes down one level; an error when it is there and no object. */
static int descend(struct config *c, const char *key, const char *path)
{
    const json_t *v = json_object_get(c->obj, key);

    if (!v)
        return 0;
    if (!json_is_object(v))
        return mt_err_set(c->e, -EPROTO, "%s: %s%s is not an object", c->what, c->path, key);
    c->obj = v;
    c->path = path;
    return 1;
}

int mt_shape_from_config(struct mt_shape *out, const char *text, size_t n, const char *what,
                         struct mt_err *e)
{
    struct mt_shape s = {0}, like;
    struct config c = {.what = what, .path = "", .e = e};
    json_error_t je;
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &je);
    const char *type;
    bool thinker;
    int rc;

    if (!root)
        return mt_err_set(e, -EPROTO, "%s: line %d: %s", what, je.line, je.text);
    if (!json_is_object(root)) {
        rc = mt_err_set(e, -EPROTO, "%s: expected a JSON object", what);
        goto done;
    }
    c.obj = root;
    type = json_string_value(json_object_get(root, "model_type"));
    if ((rc = descend(&c, "thinker_config", "thinker_config.")) < 0)
        goto done;
    thinker = rc == 1;
    if ((rc = descend(&c, "text_config",
                      thinker ? "thinker_config.text_config." : "text_config.")) < 0)
        goto done;
    if (!*c.path && (!type || !strcmp(type, "moshi")) && present(&c, "num_layers") &&
        present(&c, "dim")) {
        type = "moshi";
        rc = read_kyutai(&c, &s);
    } else {
        rc = read_hf(&c, &s);
    }
    if (rc < 0)
        goto done;
    for (size_t i = 0; type && i < MT_COUNT(families); i++) {
        if (!strncmp(type, families[i].type, strlen(families[i].type)) &&
            mt_shape_by_name(&like, families[i].like) == 0) {
            s.audio_tokens_s = like.audio_tokens_s;
            s.audio_tokens_1s = like.audio_tokens_1s;
            s.frame_s = like.frame_s;
        }
    }
    snprintf(s.name, sizeof(s.name), "%s", type ? type : "unnamed");
    *out = s;
    rc = 0;
done:
    json_decref(root);
    return rc;
}

/* The bytes of a file, or of config.json in a directory. A pipe will do. */
static int read_config(const char *path, char **text, size_t *n, char *what, size_t what_room,
                       struct mt_err *e)
{
    struct stat st;
    char *buf;
    size_t got = 0;
    ssize_t k;
    int fd, rc;

    snprintf(what, what_room, "%s", path);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0 && fstat(fd, &st) == 0 && S_ISDIR(st.st_mode)) {
        int dir = fd;

        snprintf(what, what_room, "%s/config.json", path);
        fd = openat(dir, "config.json", O_RDONLY | O_CLOEXEC);
        rc = errno;
        close(dir);
        errno = rc;
    }
    if (fd < 0)
        return mt_err_set(e, -errno, "%s: %s", what, strerror(errno));
    buf = malloc(CONFIG_MAX + 1);
    if (!buf) {
        close(fd);
        return mt_err_set(e, -ENOMEM, "%s: %s", what, strerror(ENOMEM));
    }
    while ((k = read(fd, buf + got, CONFIG_MAX + 1 - got)) > 0)
        got += (size_t)k;
    rc = k < 0 ? -errno : 0;
    close(fd);
    if (rc < 0) {
        mt_err_set(e, rc, "%s: %s", what, strerror(-rc));
    } else if (got > CONFIG_MAX) {
        rc = mt_err_set(e, -EPROTO, "%s: larger than %d MiB, expected a config.json", what,
                        CONFIG_MAX >> 20);
    } else if (got >= 4 && !memcmp(buf, "GGUF", 4)) { /* through a pipe, or as a config.json */
        rc = mt_err_set(e, -EPROTO, "%s: GGUF, which has to be a file of its own", what);
    }
    if (rc < 0) {
        free(buf);
        return rc;
    }
    *text = buf;
    *n = got;
    return 0;
}

/* ---- -m ---- */

static int unknown_name(const char *spec, const char *name, struct mt_err *e)
{
    char names[256];
    size_t len = 0;

    /* MT_COUNT(known) names of at most 20 characters: there is room for all. */
    names[0] = '\0';
    for (size_t i = 0; i < MT_COUNT(known) && len < sizeof(names); i++)
        len += (size_t)snprintf(names + len, sizeof(names) - len, "%s%s", i ? ", " : "",
                                known[i].name);
    return mt_err_set(e, -ENOENT, "%s: no model or file '%s'; known models: %s", spec, name, names);
}

/* The seed and the type are the weights', and there are none here. */
static int open_synth(struct mt_shape *out, const char *spec, struct mt_err *e)
{
    struct mt_synth_spec synth;
    struct mt_shape s;
    int rc;

    if ((rc = mt_synth_spec_parse(&synth, spec + strlen("synth:"), e)) < 0)
        return rc;
    if (mt_shape_by_name(&s, synth.name) < 0)
        return unknown_name(spec, synth.name, e);
    if (synth.layers)
        s.layers = (int)synth.layers;
    *out = s;
    return 0;
}

/* A regular file that begins so: a pipe is left alone. */
static bool is_gguf(const char *path)
{
    char magic[4] = "";
    struct stat st;
    int fd = stat(path, &st) == 0 && S_ISREG(st.st_mode) ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    bool is = fd >= 0 && read(fd, magic, 4) == 4 && !memcmp(magic, "GGUF", 4);

    if (fd >= 0)
        close(fd);
    return is;
}

int mt_shape_open(struct mt_shape *out, const char *spec, struct mt_err *e)
{
    char what[320], *text = NULL;
    size_t n = 0;
    int rc;

    if (!strncmp(spec, "synth:", 6))
        return open_synth(out, spec, e);
    if (mt_shape_by_name(out, spec) == 0)
        return 0;
    if (!strchr(spec, '/') && access(spec, F_OK) < 0)
        return unknown_name(spec, spec, e);
    snprintf(what, sizeof(what), "%s", spec);
    if (is_gguf(spec)) {
        if ((rc = mt_model_gguf_config(&text, spec, e)) < 0)
            return rc;
        n = strlen(text);
    } else if ((rc = read_config(spec, &text, &n, what, sizeof(what), e)) < 0) {
        return rc;
    }
    rc = mt_shape_from_config(out, text, n, what, e);
    free(text);
    return rc;
}
