/*
 * synth.c: weights made from a seed, for models of any shape without a checkpoint. Element i of a
 * tensor is a function of (seed, name, i), formed with integers and single exactly rounded
 * operations, so that the bits are the same on every machine, in any order and with any number of
 * threads. The storage type only rounds the value.
 */
#include "model/file.h"
#include "model/source.h"

#include <errno.h>
#include <math.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>

struct made {
    char *name; /* first, so that a struct made can be looked up by a char ** */
    struct mt_tensor t;
    struct mt_file blank; /* for a plan: its data */
};

struct synth {
    uint64_t seed;
    enum mt_dtype type;
    void *tree; /* of struct made, by name (tsearch) */
    bool plan;
    char where[40];
};

/* value = mean + uniform of standard deviation sigma */
struct spread {
    double mean, sigma;
};

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);

    return n >= m && strcmp(s + n - m, end) == 0;
}

/*
 * Values that keep a random model's activations near 1 and its answers alive. A matrix of sigma
 * 1/sqrt(fan-in) hands on the variance it gets. The exceptions:
 *   embeddings are 1, not 0.02: what the layers add is about 1 each, and a token whose own row is
 *     drowned by an average over its context is answered with the same token for ever;
 *   q and k are 1.4 times as large, so that scores spread by 2 and attention picks tokens instead
 * of averaging over all; the output head is 4 times as large, so that the best of V normal logits
 * gets a probability of about a tenth rather than a few in V.
 */
static struct spread spread_of(const char *name, int n_dims, int64_t cols)
{
    double fan_in = 1 / sqrt((double)cols);

    if (ends_with(name, ".bias"))
        return (struct spread){0, 0.02};
    if (ends_with(name, ".alpha") || ends_with(name, "ln_post.weight") ||
        (strstr(name, "norm") && ends_with(name, ".weight") && n_dims == 1))
        return (struct spread){1, 0.02};
    if (ends_with(name, ".cluster_usage")) /* of a codebook: its vectors are the sums, then */
        return (struct spread){1, 0};
    if (ends_with(name, ".embedding_sum"))
        return (struct spread){0, 1};
    if (ends_with(name, ".scale")) /* what a layer adds, as the authors begin */
        return (struct spread){0.01, 0};
    if (n_dims == 1)
        return (struct spread){0, 0.02};
    if (strstr(name, "embed_tokens") || strstr(name, "text_emb") || !strncmp(name, "emb.", 4) ||
        strstr(name, "depformer_emb"))
        return (struct spread){0, 1};
    if (strstr(name, "embed_positions")) /* as sines and cosines have it */
        return (struct spread){0, 0.7};
    if (strstr(name, "lm_head") || !strncmp(name, "linears.", 8) || strstr(name, "text_linear"))
        return (struct spread){0, 4 * fan_in};
    if (ends_with(name, "q_proj.weight") || ends_with(name, "k_proj.weight"))
        return (struct spread){0, 1.4 * fan_in};
    return (struct spread){0, fan_in};
}

static struct mt_recipe recipe_of(const struct synth *s, const char *name,
                                  const struct mt_tensor *t)
{
    struct spread v = spread_of(name, t->n_dims, t->bytes.cols);

    return (struct mt_recipe){
        .key = mt_mix64(mt_mix64(s->seed) ^ mt_hash(MT_HASH_INIT, name, strlen(name))),
        .step = (float)(v.sigma * sqrt(3.0) / 65536),
        .mean = (float)v.mean};
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void made_free(void *p)
{
    struct made *m = p;

    if (!m->blank.data)
        free((void *)m->t.bytes.data);
    mt_file_unmap(&m->blank);
    free(m->name);
    free(m);
}

static int find(void *self, const char *name, struct mt_tensor **out, struct mt_err *e)
{
    struct synth *s = self;
    struct made **m = tfind(&name, &s->tree, by_name);

    (void)e;
    if (!m)
        return -ENOENT;
    *out = &(*m)->t;
    return 0;
}

/* The data of a tensor of t.size bytes; zeros where only a plan is made. */
static int make_data(struct synth *s, struct made *m, const char *name)
{
    struct mt_tensor *t = &m->t;
    void *data;

    if (s->plan) {
        int rc = mt_file_blank(&m->blank, (size_t)t->size);
        t->bytes.data = m->blank.data;
        return rc;
    }
    data = aligned_alloc(64, ((size_t)t->size + 63) / 64 * 64); /* not zeroed: maybe gigabytes */
    if (!data)
        return -ENOMEM;
    struct mt_recipe r = recipe_of(s, name, t);
    mt_recipe_make(data, s->type, &r, 0, t->bytes.rows * t->bytes.cols);
    t->bytes.data = data;
    return 0;
}

static int no_memory(const struct synth *s, const char *name, size_t size, struct mt_err *e)
{
    char show[MT_SHOW_MAX];

    return mt_err_set(e, -ENOMEM, "%s: no memory for tensor '%s' of %zu bytes", s->where,
                      mt_show(show, name), size);
}

/* The tensor without its data. */
static int lay(struct synth *s, const char *name, int n_dims, const int64_t *dims,
               struct made **out, struct mt_err *e)
{
    struct mt_tensor t = {.n_dims = n_dims};
    char show[MT_SHOW_MAX], shape[MT_SHAPE_MAX];
    size_t size = s->type == MT_F32 ? 4 : 2;
    struct made *m = NULL, **found = tfind(&name, &s->tree, by_name);

    if (found) {
        *out = *found;
        return 0;
    }
    for (int i = 0; i < n_dims; i++) {
        size = mt_mul(size, dims[i] > 0 ? (size_t)dims[i] : SIZE_MAX);
        t.dims[i] = dims[i];
    }
    if (size > PTRDIFF_MAX - 64)
        return mt_err_set(e, -EINVAL, "%s: tensor '%s' cannot have shape %s", s->where,
                          mt_show(show, name), mt_shape_text(shape, n_dims, dims));
    t.bytes.type = s->type;
    t.size = (int64_t)size;
    mt_tensor_matrix(&t);
    if (!(m = calloc(1, sizeof(*m))))
        goto fail;
    m->t = t;
    if (!(m->name = strdup(name)) || !tsearch(m, &s->tree, by_name))
        goto fail;
    *out = m;
    return 0;
fail:
    if (m)
        made_free(m);
    return no_memory(s, name, size, e);
}

static int make(void *self, const char *name, int n_dims, const int64_t *dims, struct mt_err *e)
{
    struct synth *s = self;
    struct made *m = NULL;
    int rc = lay(s, name, n_dims, dims, &m, e);

    if (rc < 0 || m->t.bytes.data)
        return rc;
    return make_data(s, m, name) < 0 ? no_memory(s, name, (size_t)m->t.size, e) : 0;
}

static int recipe(void *self, const char *name, int n_dims, const int64_t *dims,
                  struct mt_tensor **t, struct mt_recipe *r, struct mt_err *e)
{
    struct synth *s = self;
    struct made *m = NULL;
    int rc = lay(s, name, n_dims, dims, &m, e);

    if (rc < 0 || !m) /* none without an error, which an analyser can't see */
        return rc;
    *t = &m->t;
    *r = recipe_of(s, name, &m->t);
    return 0;
}

/* Whatever is asked for can be made. */
static bool has(const void *self, const char *name)
{
    (void)self;
    (void)name;
    return true;
}

static const char *where(const void *self)
{
    return ((const struct synth *)self)->where;
}

static void synth_close(void *self)
{
    struct synth *s = self;

    tdestroy(s->tree, made_free);
    free(s);
}

static void plan(void *self)
{
    ((struct synth *)self)->plan = true;
}

static void drop(void *self, struct mt_tensor *t)
{
    if (((struct synth *)self)->plan) /* what costs nothing need not go */
        return;
    free((void *)t->bytes.data);
    t->bytes.data = NULL;
}

static const struct mt_source source = {
    .has = has,
    .find = find,
    .make = make,
    .recipe = recipe,
    .drop = drop,
    .plan = plan,
    .where = where,
    .close = synth_close,
};

int mt_weights_open_synth(struct mt_weights **out, uint64_t seed, enum mt_dtype type,
                          struct mt_err *e)
{
    *out = NULL;
    if (type != MT_F32 && type != MT_F16 && type != MT_BF16)
        return mt_err_set(e, -ENOTSUP, "synth: weights are made as f32, f16 or bf16 only");

    struct synth *s = calloc(1, sizeof(*s));
    if (!s)
        return mt_err_set(e, -ENOMEM, "out of memory");
    s->seed = seed;
    s->type = type;
    snprintf(s->where, sizeof(s->where), "synth:seed=%llu", (unsigned long long)seed);
    return mt_weights_new(out, &source, s, e);
}
