/*
 * mimi_file.c: where a codec lies: in a directory as released beside the model that speaks it, in
 * one of its own, or in a file; with the config that tells what tensors can't.
 */
#include "model/file.h"
#include "model/mimi.h"
#include "model/source.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define RELEASED     "tokenizer-e351c8d8-checkpoint125.safetensors"
#define CONFIG_BYTES (4 << 20)
#define CONFIG_ITEMS (1 << 16)
#define CONFIG_DEPTH 32
#define CODEBOOKS    8 /* that the released models speak */

static bool exists(const char *path)
{
    return path && access(path, F_OK) == 0;
}

/*
 * A member of the config that names a file beside it: *path is malloc'ed, NULL when there is none.
 */
static int named_file(const json_t *config, const char *where, const char *dir, const char *key,
                      char **path, struct mt_err *e)
{
    const json_t *v = json_object_get(config, key);
    const char *name = json_string_value(v);

    *path = NULL;
    if (!v || json_is_null(v))
        return 0;
    if (!name || !*name || strchr(name, '/') || name[0] == '.')
        return mt_err_set(e, -EPROTO, "%s: %s is not the name of a file beside it", where, key);
    *path = mt_path_join(dir, name);
    return *path ? 0 : mt_err_set(e, -ENOMEM, "out of memory");
}

/* dir/config.json, *config NULL when there is none. */
static int load_config(json_t **config, const char *dir, char **path, struct mt_err *e)
{
    *config = NULL;
    if (!(*path = mt_path_join(dir, "config.json")))
        return mt_err_set(e, -ENOMEM, "out of memory");
    if (!exists(*path))
        return 0;
    return mt_json_load(config, *path, CONFIG_BYTES, CONFIG_ITEMS, CONFIG_DEPTH, e);
}

/* The one *.safetensors of a directory, malloc'ed; NULL when there is none, or more. */
static char *only_file(const char *dir)
{
    static const char end[] = ".safetensors";
    DIR *d = opendir(dir);
    const struct dirent *f;
    char *path = NULL;
    int n = 0;

    while (d && (f = readdir(d))) {
        size_t len = strlen(f->d_name);

        if (len < sizeof(end) || strcmp(f->d_name + len - (sizeof(end) - 1), end) != 0)
            continue;
        free(path);
        path = mt_path_join(dir, f->d_name);
        n++;
    }
    if (d)
        closedir(d);
    if (n != 1) {
        free(path);
        path = NULL;
    }
    return path;
}

static int open_weights(struct mt_weights **w, const char *dir, const char *mimi, struct mt_err *e)
{
    static const char *const whole[] = {"model.safetensors", "model.safetensors.index.json"};
    char *released = mt_path_join(dir, RELEASED), *only = NULL;
    bool model = false;
    int rc;

    for (size_t i = 0; i < MT_COUNT(whole); i++) {
        char *path = mt_path_join(dir, whole[i]);
        model |= exists(path);
        free(path);
    }
    if (mimi)
        rc = mt_weights_open_safetensors_file(w, mimi, e);
    else if (exists(released))
        rc = mt_weights_open_safetensors_file(w, released, e);
    else if (!model && (only = only_file(dir)))
        rc = mt_weights_open_safetensors_file(w, only, e);
    else
        rc = mt_weights_open_safetensors(w, dir, e);
    free(released);
    free(only);
    return rc;
}

/* transformers' Moshi holds the codec's config, and its tensors, under a name of their own. */
static const json_t *own_config(const json_t *config)
{
    static const char *const key[] = {"audio_encoder_config", "audio_encoder"};
    const char *type = json_string_value(json_object_get(config, "model_type"));

    if (json_is_object(json_object_get(config, "seanet")) || (type && !strcmp(type, "mimi")))
        return config;
    for (size_t i = 0; i < MT_COUNT(key); i++)
        if (json_is_object(json_object_get(config, key[i])))
            return json_object_get(config, key[i]);
    return NULL;
}

/* How many codebooks the model beside it speaks or hears, whichever is more. */
static int spoken(const json_t *config, const struct mt_mimi_config *c)
{
    json_int_t n = json_integer_value(json_object_get(config, "n_q")),
               own = json_integer_value(json_object_get(config, "dep_q")), want = CODEBOOKS;
    const char *type = json_string_value(json_object_get(config, "model_type"));

    if (json_is_integer(json_object_get(config, "n_q")) &&
        json_is_integer(json_object_get(config, "dep_q")))
        want = own > n - own ? own : n - own;
    else if (type && !strcmp(type, "mimi"))
        want = c->codebooks;
    return want < 1 || want > c->codebooks ? c->codebooks : (int)want;
}

static int open_with(struct mt_weights **w, char prefix[MT_MIMI_PREFIX_MAX],
                     struct mt_mimi_config *c, int *codebooks, const char *dir, const char *file,
                     const json_t *config, const char *where, struct mt_err *e)
{
    const json_t *own = own_config(config);
    char *mimi = NULL, *beside = NULL;
    json_t *other = NULL;
    int rc = file ? 0 : named_file(config, where, dir, "mimi_name", &mimi, e);

    if (rc == 0)
        rc = named_file(config, where, dir, "mimi_config_name", &beside, e);
    if (rc == 0)
        rc = open_weights(w, dir, file ? file : mimi, e);
    if (rc == 0) {
        bool nested = mt_weights_has(*w, "audio_encoder.encoder.layers.0.conv.weight");
        snprintf(prefix, MT_MIMI_PREFIX_MAX, "%s", nested ? "audio_encoder." : "");
        rc = mt_mimi_config_detect(c, *w, prefix, e);
    }
    if (rc == 0 && beside)
        rc = mt_json_load(&other, beside, CONFIG_BYTES, CONFIG_ITEMS, CONFIG_DEPTH, e);
    if (rc == 0 && (other || own))
        rc = mt_mimi_config_parse(c, other ? other : own, other ? beside : where, e);
    if (rc == 0)
        *codebooks = spoken(config, c);
    json_decref(other);
    free(mimi);
    free(beside);
    return rc;
}

int mt_mimi_open(struct mt_weights **w, char prefix[MT_MIMI_PREFIX_MAX], struct mt_mimi_config *c,
                 int *codebooks, const char *path, struct mt_err *e)
{
    char *dir = strdup(path), *slash, *where = NULL;
    json_t *config = NULL;
    struct stat st;
    bool file;
    int rc;

    *w = NULL;
    *c = mt_mimi_config_released();
    if (!dir)
        return mt_err_set(e, -ENOMEM, "out of memory");
    if (stat(path, &st) < 0) {
        rc = mt_err_set(e, -errno, "%s: %s", path, strerror(errno));
        goto done;
    }
    file = !S_ISDIR(st.st_mode);
    if (file && (slash = strrchr(dir, '/')))
        slash[slash == dir] = '\0';
    else if (file)
        strcpy(dir, ".");
    rc = load_config(&config, dir, &where, e);
    if (rc == 0)
        rc = open_with(w, prefix, c, codebooks, dir, file ? path : NULL, config, where, e);
done:
    if (rc < 0) {
        mt_err_set(e, rc, "%s: %s", path, strerror(-rc));
        mt_weights_close(w);
    }
    json_decref(config);
    free(where);
    free(dir);
    return rc;
}

int mt_mimi_open_synth(struct mt_weights **w, struct mt_mimi_config *c, const char *name,
                       uint64_t seed, struct mt_err *e)
{
    static const char tiny[] = "-tiny";
    size_t n = strlen(name), k = sizeof(tiny) - 1;
    bool small = n > k && !strcmp(name + n - k, tiny);

    *c = small ? mt_mimi_config_tiny() : mt_mimi_config_released();
    return mt_weights_open_synth(w, seed, MT_F32, e);
}
