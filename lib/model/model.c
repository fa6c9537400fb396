/*
 * model.c: from -m MODEL to an open model: finds the family by config.json's model_type or by the
 * name of a shape (or leaves that to gguf_model.c), opens weights and tokenizer, and passes calls
 * on to the family.
 */
#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "model/bind.h"
#include "model/family.h"
#include "model/file.h"
#include "model/quantize.h"
#include "model/source.h"
#include "model/tokenizer.h"

#define CONFIG_BYTES  (4 << 20) /* the released ones have some 14000 … */
#define CONFIG_ITEMS  (1 << 16) /* … and some hundred values */
#define CONFIG_DEPTH  32
#define DEFAULT_MODEL "share/metronome/tiny"

static const struct mt_family *const families[] = {&mt_family_qwen2_5_omni, &mt_family_qwen3_omni,
                                                   &mt_family_moshi, &mt_family_minicpm_o};

/* ---- synth:NAME[,seed=N][,layers=N][,dtype=T] ---- */

static const struct mt_synth_shape *find_shape(const char *name, const struct mt_family **family)
{
    for (size_t i = 0; i < MT_COUNT(families); i++)
        for (const struct mt_synth_shape *s = families[i]->shapes; s->name; s++)
            if (!strcmp(s->name, name)) {
                *family = families[i];
                return s;
            }
    return NULL;
}

const char *mt_model_synth_name(int i)
{
    for (size_t k = 0; k < MT_COUNT(families); k++)
        for (const struct mt_synth_shape *s = families[k]->shapes; s->name; s++)
            if (i-- == 0)
                return s->name;
    return NULL;
}

static int unknown_shape(const char *name, struct mt_err *e)
{
    char known[600] = "";
    const char *one;
    size_t n = 0;

    for (int i = 0; (one = mt_model_synth_name(i)) && n < sizeof(known); i++)
        n += (size_t)snprintf(known + n, sizeof(known) - n, "%s%s", n ? ", " : "", one);
    return mt_err_set(e, -EINVAL, "synth:%s: unknown shape (%s)", name, known);
}

/* "a.b.c" in nested objects. */
static void set_number(json_t *config, const char *keys, int64_t value)
{
    const char *dot;

    for (; (dot = strchr(keys, '.')); keys = dot + 1)
        config = json_object_getn(config, keys, (size_t)(dot - keys));
    json_object_set_new(config, keys, json_integer(value));
}

void mt_model_weights_opts(struct mt_model *m)
{
    mt_weights_quantize(m->weights, m->opts.quantize);
    if (m->opts.plan)
        mt_weights_plan(m->weights);
    mt_weights_watch(m->weights, m->opts.loading, m->opts.ctx);
}

static int open_synth(struct mt_model *m, const char *spec, struct mt_err *e)
{
    const struct mt_synth_shape *shape;
    struct mt_synth_spec s;
    int rc;

    if (m->opts.mmproj)
        return mt_err_set(e, -EINVAL, "--mmproj: goes with a GGUF file, and synth:%s is none",
                          spec);
    if ((rc = mt_synth_spec_parse(&s, spec, e)) < 0)
        return rc;
    if (!(shape = find_shape(s.name, &m->family)))
        return unknown_shape(s.name, e);
    json_t *config = json_loads(shape->config, 0, NULL);
    if (s.layers)
        set_number(config, shape->layers, s.layers);
    snprintf(m->info.name, sizeof(m->info.name), "%s", shape->name);
    m->synthetic = true;
    rc = mt_weights_open_synth(&m->weights, s.seed, s.type, e);
    if (rc == 0) {
        mt_model_weights_opts(m);
        rc = mt_model_open_family(m, config, shape->name, e);
    }
    json_decref(config);
    return rc;
}

int mt_model_open_family(struct mt_model *m, const json_t *config, const char *where,
                         struct mt_err *e)
{
    char *text = config ? json_dumps(config, JSON_COMPACT | JSON_SORT_KEYS) : NULL;

    m->identity = mt_hash(MT_HASH_INIT, text ? text : "", text ? strlen(text) : 0);
    free(text);
    return m->family->open(m, config, where, e);
}

/* ---- a directory as released ---- */

const struct mt_family *mt_family_find(const char *type)
{
    for (size_t i = 0; type && i < MT_COUNT(families); i++)
        for (const char *const *t = families[i]->model_types; *t; t++)
            if (!strcmp(*t, type))
                return families[i];
    return NULL;
}

/* Weights alone are enough for teacher forcing; a session needs a tokenizer, too. */
static bool has_tokenizer(const char *dir)
{
    static const char *const file[] = {"tokenizer.json", "vocab.json", "merges.txt"};
    char path[4096];

    for (size_t i = 0; i < MT_COUNT(file); i++)
        if (snprintf(path, sizeof(path), "%s/%s", dir, file[i]) < (int)sizeof(path) &&
            access(path, F_OK) == 0)
            return true;
    char *spm = mt_tokenizer_spm_path(dir);
    free(spm);
    return spm != NULL;
}

/* One of a kind that is not ours leaves a model without: only what needs words says why. */
static int open_tokenizer(struct mt_model *m, const char *dir, struct mt_err *e)
{
    struct mt_err why = {0};
    int rc = mt_tokenizer_open(&m->tokenizer, dir, &why);

    if (rc == -ENOTSUP) {
        m->no_tokenizer = why;
        return 0;
    }
    return rc < 0 ? mt_err_set(e, rc, "%s", why.text) : 0;
}

/* moshi_name is how Kyutai's config.json calls the file of the weights. */
static int open_weights(struct mt_model *m, const char *dir, const json_t *config, struct mt_err *e)
{
    const char *name = json_string_value(json_object_get(config, "moshi_name"));
    char show[MT_SHOW_MAX];

    if (!name)
        return mt_weights_open_safetensors(&m->weights, dir, e);
    if (!*name || strchr(name, '/'))
        return mt_err_set(e, -EPROTO, "%s/config.json: moshi_name '%s' is no name of a file there",
                          dir, mt_show(show, name));
    char *path = mt_path_join(dir, name);
    int rc = path ? mt_weights_open_safetensors_file(&m->weights, path, e)
                  : mt_err_set(e, -ENOMEM, "out of memory");
    free(path);
    return rc;
}

/* "qwen2_5_omni, …": the model types that the families take. */
static const char *known_types(char *out, size_t size)
{
    size_t n = 0;

    for (size_t i = 0; i < MT_COUNT(families); i++)
        for (const char *const *t = families[i]->model_types; *t && n < size; t++)
            n += (size_t)snprintf(out + n, size - n, "%s%s", n ? ", " : "", *t);
    return out;
}

static int load_config(json_t **out, const char *path, struct mt_err *e)
{
    *out = NULL;
    if (access(path, F_OK) < 0 && errno == ENOENT)
        return 0;
    int rc = mt_json_load(out, path, CONFIG_BYTES, CONFIG_ITEMS, CONFIG_DEPTH, e);
    if (rc == 0 && !json_is_object(*out)) {
        json_decref(*out);
        *out = NULL;
        rc = mt_err_set(e, -EPROTO, "%s: model_type is missing: not a JSON object", path);
    }
    return rc;
}

/* Some releases say what they are by their tensors alone. */
static int find_family(struct mt_model *m, const char *dir, const char *path, const json_t *config,
                       struct mt_err *e)
{
    const json_t *type = json_object_get(config, "model_type");
    char show[MT_SHOW_MAX], known[400];
    struct mt_err why = {0};
    int rc;

    m->family = mt_family_find(json_string_value(type));
    if (type && !m->family)
        return mt_err_set(e, -ENOTSUP, "%s: model_type '%s' is not supported (%s)", path,
                          json_is_string(type) ? mt_show(show, json_string_value(type))
                                               : "(no string)",
                          known_types(known, sizeof(known)));
    if ((rc = open_weights(m, dir, config, &why)) < 0)
        return rc == -ENOENT && !config ? mt_err_set(e, rc, "%s: %s", path, strerror(ENOENT))
                                        : mt_err_set(e, rc, "%s", why.text);
    mt_model_weights_opts(m);
    for (size_t i = 0; i < MT_COUNT(families) && !m->family; i++)
        if (families[i]->recognise && families[i]->recognise(m->weights))
            m->family = families[i];
    if (!m->family && config)
        return mt_err_set(e, -ENOTSUP, "%s: model_type is missing (%s)", path,
                          known_types(known, sizeof(known)));
    if (!m->family)
        return mt_err_set(e, -ENOENT, "%s: %s, and the tensors are of no model that needs none",
                          path, strerror(ENOENT));
    snprintf(m->info.name, sizeof(m->info.name), "%s",
             type ? json_string_value(type) : m->family->model_types[0]);
    return 0;
}

static int open_directory(struct mt_model *m, const char *dir, struct mt_err *e)
{
    char path[4096];
    json_t *config;
    struct stat st;
    int rc;

    if (stat(dir, &st) < 0)
        return mt_err_set(e, -errno, "%s: %s", dir, strerror(errno));
    if (S_ISREG(st.st_mode))
        return mt_model_open_gguf(m, dir, e);
    if (!S_ISDIR(st.st_mode))
        return mt_err_set(e, -ENOTDIR,
                          "%s: neither a GGUF file nor a model directory (config.json, "
                          "*.safetensors, tokenizer files)",
                          dir);
    if (m->opts.mmproj)
        return mt_err_set(e, -EINVAL, "--mmproj: goes with a GGUF file, and %s is a directory",
                          dir);
    if (snprintf(path, sizeof(path), "%s/config.json", dir) >= (int)sizeof(path))
        return mt_err_set(e, -ENAMETOOLONG, "%s: name too long", dir);
    if ((rc = load_config(&config, path, e)) < 0)
        return rc;
    rc = find_family(m, dir, path, config, e);
    if (rc == 0 && has_tokenizer(dir))
        rc = open_tokenizer(m, dir, e);
    m->dir = dir;
    if (rc == 0)
        rc = mt_model_open_family(m, config, config ? path : dir, e);
    m->dir = NULL;
    json_decref(config);
    return rc;
}

/* ---- the interface ---- */

const char *mt_model_named(void)
{
    const char *set = getenv("MT_MODEL");

    return set && *set ? set : NULL;
}

/*
 * What stands for no -m: $MT_MODEL, or the model beside the running program: under the same prefix,
 * or in the source folder around build/ or build/san-….
 */
static int default_spec(char path[PATH_MAX], struct mt_err *e)
{
    static const char *const up[] = {"../", "../../"};
    const char *set = mt_model_named();
    char folder[PATH_MAX - 64];

    if (set) {
        if (snprintf(path, PATH_MAX, "%s", set) >= PATH_MAX)
            return mt_err_set(e, -ENAMETOOLONG, "MT_MODEL: %s", strerror(ENAMETOOLONG));
        return 0;
    }
    mt_program_folder(folder, sizeof(folder));
    for (size_t i = 0; i < MT_COUNT(up); i++) {
        snprintf(path, PATH_MAX, "%s%s" DEFAULT_MODEL, folder, up[i]);
        if (access(path, F_OK) == 0)
            return 0;
    }
    return mt_err_set(e, -ENOENT,
                      "%s%s" DEFAULT_MODEL ": the model for no -m is not installed (-m "
                      "synth:qwen2.5-omni-tiny needs no files)",
                      folder, up[0]);
}

int mt_model_open(struct mt_model **out, const char *spec, struct mt_backend *be,
                  const struct mt_model_opts *o, struct mt_err *e)
{
    struct mt_model *m;
    char path[PATH_MAX];
    int rc;

    *out = NULL;
    if (!spec) {
        if ((rc = default_spec(path, e)) < 0)
            return rc;
        spec = path;
    }
    if (!(m = calloc(1, sizeof(*m))))
        return mt_err_set(e, -ENOMEM, "out of memory");
    if (o->step_rows < 1 || o->step_rows > 65536 || o->want_rows < 1 ||
        o->want_rows > o->step_rows) {
        free(m);
        return mt_err_set(e, -EINVAL, "a step of %d rows of which %d may want logits", o->step_rows,
                          o->want_rows);
    }
    int64_t held = be->mats_held;
    be->plan = o->plan;
    m->be = be;
    m->opts = *o;
    m->info.step_rows = o->step_rows;
    m->info.want_rows = o->want_rows;
    m->spec = strdup(spec);
    if (!m->spec)
        rc = -ENOMEM;
    else if (!strncmp(spec, "synth:", 6))
        rc = open_synth(m, spec + 6, e);
    else
        rc = open_directory(m, spec, e);
    if (rc < 0) {
        mt_err_set(e, rc, "%s: %s", spec, strerror(-rc));
        mt_model_close(&m);
        return rc;
    }
    if (o->quantize && !mt_weights_shrunk(m->weights))
        snprintf(m->info.remark, sizeof(m->info.remark),
                 "--quantize %s changes nothing: no matrix of floats has rows of whole blocks (%d)",
                 mt_dtype_name(o->quantize), mt_dtype_block(MT_Q8_0));
    /* The family's own are there already. */
    m->info.weight_bytes += mt_weights_bytes(m->weights) + be->mats_held - held;
    *out = m;
    return 0;
}

void mt_model_close(struct mt_model **m)
{
    if (!*m)
        return;
    if ((*m)->family && (*m)->own)
        (*m)->family->close(*m);
    mt_tokenizer_free(&(*m)->tokenizer);
    mt_weights_close(&(*m)->weights);
    free((*m)->spec);
    free(*m);
    *m = NULL;
}

const struct mt_model_info *mt_model_info(const struct mt_model *m)
{
    return &m->info;
}

const char *mt_model_spec(const struct mt_model *m)
{
    return m->spec;
}

const struct mt_tokenizer *mt_model_tokenizer(const struct mt_model *m)
{
    return m->tokenizer;
}

uint64_t mt_model_identity(const struct mt_model *m)
{
    uint64_t h = mt_hash(m->identity, m->info.name, strlen(m->info.name)), digest;
    size_t len;

    if (m->weights) {
        digest = mt_weights_digest(m->weights);
        h = mt_hash(h, &digest, sizeof(digest));
    }
    for (int32_t id = 0; m->tokenizer && id < mt_tokenizer_size(m->tokenizer); id++) {
        const char *bytes = mt_tokenizer_bytes(m->tokenizer, id, &len);

        h = mt_hash(mt_hash(h, &len, sizeof(len)), bytes, len);
    }
    return h;
}

int32_t mt_model_last_id(const struct mt_model *m)
{
    return m->info.codebooks ? m->info.text_card : m->info.vocab - 1;
}

struct mt_backend *mt_model_backend(const struct mt_model *m)
{
    return m->be;
}

int mt_model_state(const struct mt_model *m, int frame_samples, int backlog,
                   struct mt_state_kind out[MT_STATE_KINDS])
{
    return m->family->state(m, frame_samples, backlog, out);
}

int mt_model_encode(struct mt_model *m, struct mt_ear **ears, int n)
{
    for (int i = 0; i < n; i++)
        if (mt_ear_frames(ears[i]) < 1)
            return -EINVAL;
    return m->family->encode(m, ears, n);
}

int mt_model_embed_clip(struct mt_model *m, const float *pcm, int64_t n, float **rows,
                        int64_t *n_rows, int64_t *mel_frames, struct mt_err *e)
{
    int64_t unseen;

    if (m->info.deaf)
        return mt_err_set(e, -ENOTSUP, MT_DEAF, m->info.name);
    if (!m->family->embed_clip)
        return mt_err_set(e, -ENOTSUP, "%s hears codes, not rows (mt-probe codec shows them)",
                          m->info.name);
    return m->family->embed_clip(m, pcm, n, rows, n_rows, mel_frames ? mel_frames : &unseen, e);
}

struct mt_kv_shape mt_model_kv_shape(const struct mt_model *m, int block_tokens, enum mt_dtype type)
{
    return (struct mt_kv_shape){m->info.layers, m->info.kv_heads, m->info.head_dim, block_tokens,
                                type};
}

int mt_model_step(struct mt_model *m, struct mt_kv *kv, const struct mt_step *step,
                  struct mt_rows *logits)
{
    return m->family->step(m, kv, step, logits);
}

void mt_model_teach_input(struct mt_model *m, const int32_t *frames, int64_t t, int n,
                          int32_t *text, struct mt_rows out)
{
    m->family->teach_input(m, frames, t, n, text, out);
}

void mt_model_teach_codes(struct mt_model *m, const int32_t *frames, const int64_t *at, int n,
                          void (*logits)(void *ctx, int k, struct mt_rows logits, int n), void *ctx)
{
    m->family->teach_codes(m, frames, at, n, logits, ctx);
}
