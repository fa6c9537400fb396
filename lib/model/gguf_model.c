/*
 * gguf_model.c: -m FILE.gguf: the text model of one file, the audio tower of another, or of none:
 * then a synthetic one where that is asked for, or the smallest there can be, through which nobody
 * hears.
 */
#include <errno.h>
#include <string.h>

#include "model/bind.h"
#include "model/family.h"
#include "model/file.h"
#include "model/gguf_config.h"
#include "model/gguf_names.h"
#include "model/tokenizer_gguf.h"

enum { TOWER_SEED = 1 };

static enum mt_tower tower_of(const char *mmproj)
{
    return !mmproj ? MT_TOWER_NONE : strcmp(mmproj, "synth") != 0 ? MT_TOWER_FILE : MT_TOWER_SYNTH;
}

/* As with a directory: without a tokenizer of a kind that we read there is only teacher forcing. */
static int open_tokenizer(struct mt_model *m, const struct mt_gguf *text,
                          const struct mt_gguf_arch *a, enum mt_tower tower,
                          int32_t ids[MT_GGUF_MARKS], struct mt_err *e)
{
    const char *const *marks = mt_gguf_marks(a);
    struct mt_err why = {0};
    int rc = mt_tokenizer_open_gguf(&m->tokenizer, text, marks,
                                    tower == MT_TOWER_SYNTH ? MT_GGUF_MARKS : 0, &why);

    if (rc < 0 && rc != -ENOTSUP)
        return mt_err_set(e, rc, "%s", why.text);
    if (rc < 0)
        m->no_tokenizer = why;
    for (int i = 0; i < MT_GGUF_MARKS; i++)
        ids[i] = rc < 0 ? -1 : mt_tokenizer_special(m->tokenizer, marks[i]);
    return 0;
}

static void remark(struct mt_model *m, enum mt_tower tower, const json_t *config)
{
    const json_t *ear = json_object_get(config, "audio_config");

    m->info.deaf = tower == MT_TOWER_NONE;
    if (tower == MT_TOWER_SYNTH)
        snprintf(
            m->info.remark, sizeof(m->info.remark),
            "the audio tower is synthetic (%lld layers of %lld, random weights): good for load, "
            "what the model answers has nothing to do with what it hears",
            (long long)json_integer_value(json_object_get(ear, "encoder_layers")),
            (long long)json_integer_value(json_object_get(ear, "d_model")));
}

/* text and audio become the model's weights, also on failure. */
static int open_files(struct mt_model *m, struct mt_gguf *text, struct mt_gguf *audio,
                      enum mt_tower tower, struct mt_err *e)
{
    const struct mt_gguf_arch *a = mt_gguf_arch(text, e);
    const char *where = mt_gguf_path(text);
    int32_t ids[MT_GGUF_MARKS];
    json_t *config = NULL;
    int rc = a ? 0 : -ENOTSUP;

    if (rc == 0 && !(m->family = mt_family_find(a->model_type)))
        rc = mt_err_set(e, -ENOTSUP, "%s: architecture '%s' is not supported by this build", where,
                        a->name);
    if (rc == 0 && (rc = open_tokenizer(m, text, a, tower, ids, e)) == 0)
        rc = mt_gguf_config(&config, a, text, tower, audio, ids, e);
    if (rc < 0) {
        mt_gguf_close(&text);
        mt_gguf_close(&audio);
        return rc;
    }
    snprintf(m->info.name, sizeof(m->info.name), "%s", a->name);
    remark(m, tower, config);
    rc = mt_weights_open_gguf(&m->weights, text, audio, TOWER_SEED, e);
    if (rc == 0) {
        mt_model_weights_opts(m);
        rc = mt_model_open_family(m, config, where, e);
    }
    json_decref(config);
    return rc;
}

int mt_model_gguf_config(char **out, const char *path, struct mt_err *e)
{
    static const int32_t none[MT_GGUF_MARKS] = {-1, -1, -1};
    const struct mt_gguf_arch *a;
    struct mt_gguf *text;
    json_t *config = NULL;
    int rc = mt_gguf_open(&text, path, e);

    *out = NULL;
    if (rc < 0)
        return rc;
    a = mt_gguf_arch(text, e);
    rc = a ? mt_gguf_config(&config, a, text, MT_TOWER_SYNTH, NULL, none, e) : -ENOTSUP;
    mt_gguf_close(&text);
    if (rc < 0)
        return rc;
    *out = json_dumps(config, JSON_COMPACT);
    json_decref(config);
    return *out ? 0 : mt_err_set(e, -ENOMEM, "out of memory");
}

int mt_model_open_gguf(struct mt_model *m, const char *path, struct mt_err *e)
{
    enum mt_tower tower = tower_of(m->opts.mmproj);
    struct mt_gguf *text = NULL, *audio = NULL;
    struct mt_err why = {0};
    int64_t parts;
    int rc = mt_gguf_open(&text, path, &why);

    if (rc == -EBADMSG)
        return mt_err_set(e, -EPROTO,
                          "%s: neither a GGUF file nor a model directory (config.json, "
                          "*.safetensors, tokenizer files)",
                          path);
    if (rc < 0)
        return mt_err_set(e, rc, "%s", why.text);
    rc = mt_gguf_int(text, "split.count", 0, INT64_MAX, 0, &parts, e);
    if (rc == 0 && parts > 1)
        rc = mt_err_set(e, -ENOTSUP,
                        "%s: one of %lld parts (llama-gguf-split --merge makes them one file)",
                        path, (long long)parts);
    if (rc == 0 && mt_gguf_is(text, "general.architecture", "clip"))
        rc = mt_err_set(e, -ENOTSUP, "%s: an audio or vision tower: it goes with --mmproj", path);
    if (rc == 0 && tower == MT_TOWER_FILE)
        rc = mt_gguf_open(&audio, m->opts.mmproj, e);
    if (rc < 0) {
        mt_gguf_close(&text);
        return rc;
    }
    return open_files(m, text, audio, tower, e);
}
