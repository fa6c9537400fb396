/*
 * safetensors.c: weights as released: one file, or shards with an index. The files are mapped and
 * tensors are used where they lie. Everything a header claims is checked against the file before
 * anything is believed; tensors of other models cost an entry in a table and no page of data.
 */
#include "model/file.h"
#include "model/source.h"

#include <endian.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HEADER_MAX  100000000 /* bytes; the reference implementation's limit */
#define ITEMS_MAX   (1 << 20) /* JSON values: a tensor is about six, large models have 30000 */
#define SHARDS_MAX  4096
#define INDEX_NAME  "model.safetensors.index.json"
#define SINGLE_NAME "model.safetensors"

/* Every type there is: tensors nobody can use are checked all the same. */
static const struct dtype {
    char name[12];
    int bits;
    int kind; /* enum mt_dtype, or -1 for what no model here uses */
} dtypes[] = {
    {"BF16", 16, MT_BF16},  {"F16", 16, MT_F16},    {"F32", 32, MT_F32}, {"F64", 64, -1},
    {"I64", 64, -1},        {"I32", 32, -1},        {"I16", 16, -1},     {"I8", 8, -1},
    {"U64", 64, -1},        {"U32", 32, -1},        {"U16", 16, -1},     {"U8", 8, -1},
    {"BOOL", 8, -1},        {"C64", 64, -1},        {"F8_E4M3", 8, -1},  {"F8_E5M2", 8, -1},
    {"F8_E8M0", 8, -1},     {"F6_E2M3", 6, -1},     {"F6_E3M2", 6, -1},  {"F4", 4, -1},
    {"F8_E4M3FNUZ", 8, -1}, {"F8_E5M2FNUZ", 8, -1},
};

struct entry {
    char *name;
    const struct dtype *type;
    struct mt_tensor t;
};

struct shard {
    char *path;
    struct mt_file file;
    struct entry *entries; /* by name */
    size_t n;
};

struct listed { /* one line of the index */
    char *name;
    char *file;
    int shard;
};

struct safetensors {
    char *path; /* the file, or the index */
    struct shard *shards;
    int n_shards;
    struct listed *index; /* by name; NULL for a single file */
    size_t n_index;
};

/* ---- one file's header ---- */

static int entry_by_name(const void *a, const void *b)
{
    return strcmp(((const struct entry *)a)->name, ((const struct entry *)b)->name);
}

static int entry_by_place(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    const unsigned char *p = x->t.bytes.data, *q = y->t.bytes.data;

    return p != q ? (p > q) - (p < q) : (x->t.size > y->t.size) - (x->t.size < y->t.size);
}

/* Every failure of one tensor reads "FILE: tensor 'x': ...". */
#define BAD(...) bad(s, name, e, __VA_ARGS__)
static int MT_PRINTF(4, 5)
    bad(const struct shard *s, const char *name, struct mt_err *e, const char *fmt, ...)
{
    char show[MT_SHOW_MAX], text[256];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    return mt_err_set(e, -EPROTO, "%s: tensor '%s': %s", s->path, mt_show(show, name), text);
}

static int read_dtype(const struct shard *s, const char *name, const json_t *j,
                      const struct dtype **out, struct mt_err *e)
{
    const char *text = json_string_value(j);
    char show[MT_SHOW_MAX];

    if (!text)
        return BAD("dtype is missing or not a string");
    for (size_t i = 0; i < MT_COUNT(dtypes); i++) {
        if (strcmp(dtypes[i].name, text) == 0) {
            *out = &dtypes[i];
            return 0;
        }
    }
    return BAD("dtype '%s' is not known", mt_show(show, text));
}

/* Fills dims and size (bytes). */
static int read_shape(const struct shard *s, const char *name, const json_t *j, struct entry *x,
                      struct mt_err *e)
{
    int64_t count = 1, bits;

    if (!json_is_array(j))
        return BAD("shape is missing or not an array");
    if (json_array_size(j) > MT_DIMS_MAX)
        return BAD("shape has %zu dimensions (expected at most %d)", json_array_size(j),
                   MT_DIMS_MAX);
    x->t.n_dims = (int)json_array_size(j);
    for (int i = 0; i < x->t.n_dims; i++) {
        const json_t *d = json_array_get(j, (size_t)i);

        if (!json_is_integer(d) || json_integer_value(d) < 0)
            return BAD("shape holds something that is not a whole number from 0");
        x->t.dims[i] = json_integer_value(d);
        if (__builtin_mul_overflow(count, x->t.dims[i], &count))
            return BAD("shape is too large: the number of elements overflows");
    }
    if (__builtin_mul_overflow(count, (int64_t)x->type->bits, &bits))
        return BAD("shape is too large: the number of bytes overflows");
    if (bits % 8)
        return BAD("%lld elements of %s do not fill whole bytes", (long long)count, x->type->name);
    x->t.size = bits / 8;
    return 0;
}

static int read_offsets(const struct shard *s, const char *name, const json_t *j, struct entry *x,
                        const unsigned char *data, int64_t data_size, struct mt_err *e)
{
    char shape[MT_SHAPE_MAX];
    const json_t *b = json_array_get(j, 0), *end = json_array_get(j, 1);

    if (!json_is_array(j) || json_array_size(j) != 2 || !json_is_integer(b) ||
        !json_is_integer(end))
        return BAD("data_offsets is not an array of two whole numbers");

    long long from = json_integer_value(b), to = json_integer_value(end);

    if (from < 0 || to < from)
        return BAD("data_offsets [%lld, %lld) are not a range", from, to);
    if (to > data_size)
        return BAD("data_offsets [%lld, %lld) lie outside the file (its data has %lld bytes)", from,
                   to, (long long)data_size);
    if (to - from != x->t.size)
        return BAD("data_offsets [%lld, %lld) do not match shape %s of %s (expected %lld bytes)",
                   from, to, mt_shape_text(shape, x->t.n_dims, x->t.dims), x->type->name,
                   (long long)x->t.size);
    x->t.bytes.data = data + from;
    return 0;
}

static int read_entry(const struct shard *s, const char *name, json_t *j, struct entry *x,
                      const unsigned char *data, int64_t data_size, struct mt_err *e)
{
    int rc;

    if (!json_is_object(j))
        return BAD("not an object");
    if ((rc = read_dtype(s, name, json_object_get(j, "dtype"), &x->type, e)) < 0 ||
        (rc = read_shape(s, name, json_object_get(j, "shape"), x, e)) < 0 ||
        (rc = read_offsets(s, name, json_object_get(j, "data_offsets"), x, data, data_size, e)) < 0)
        return rc;
    if (json_object_size(j) != 3)
        return BAD("has members other than dtype, shape and data_offsets");
    mt_tensor_matrix(&x->t);
    if (x->type->kind >= 0)
        x->t.bytes.type = (enum mt_dtype)x->type->kind;
    x->name = strdup(name);
    return x->name ? 0 : mt_err_set(e, -ENOMEM, "%s: out of memory", s->path);
}

static int check_metadata(const struct shard *s, json_t *j, struct mt_err *e)
{
    const char *key;
    json_t *v;

    if (!json_is_object(j))
        return mt_err_set(e, -EPROTO, "%s: __metadata__ is not an object", s->path);
    json_object_foreach(j, key, v)
    {
        char show[MT_SHOW_MAX];
        if (!json_is_string(v))
            return mt_err_set(e, -EPROTO, "%s: __metadata__: '%s' is not a string", s->path,
                              mt_show(show, key));
    }
    return 0;
}

static int check_overlaps(const struct shard *s, struct mt_err *e)
{
    const struct entry *before = NULL;
    char a[MT_SHOW_MAX], b[MT_SHOW_MAX];

    for (size_t i = 0; i < s->n; i++) {
        const struct entry *x = &s->entries[i];

        if (x->t.size == 0)
            continue;
        if (before && (const unsigned char *)before->t.bytes.data + before->t.size >
                          (const unsigned char *)x->t.bytes.data)
            return mt_err_set(e, -EPROTO, "%s: tensors '%s' and '%s': data_offsets overlap",
                              s->path, mt_show(a, before->name), mt_show(b, x->name));
        before = x;
    }
    return 0;
}

static int read_header(struct shard *s, json_t *header, const unsigned char *data,
                       int64_t data_size, struct mt_err *e)
{
    const char *name;
    json_t *j;
    int rc;

    if (!json_is_object(header))
        return mt_err_set(e, -EPROTO, "%s: the header is not a JSON object", s->path);
    s->entries = calloc(json_object_size(header) + 1, sizeof(*s->entries));
    if (!s->entries)
        return mt_err_set(e, -ENOMEM, "%s: out of memory", s->path);
    json_object_foreach(header, name, j)
    {
        if (strcmp(name, "__metadata__") == 0)
            rc = check_metadata(s, j, e);
        else
            rc = read_entry(s, name, j, &s->entries[s->n++], data, data_size, e);
        if (rc < 0)
            return rc;
    }
    qsort(s->entries, s->n, sizeof(*s->entries), entry_by_place);
    rc = check_overlaps(s, e);
    qsort(s->entries, s->n, sizeof(*s->entries), entry_by_name);
    return rc;
}

static void shard_close(struct shard *s)
{
    for (size_t i = 0; i < s->n; i++)
        free(s->entries[i].name);
    free(s->entries);
    free(s->path);
    mt_file_unmap(&s->file);
}

/* Takes path (malloc'ed). On failure the shard still wants shard_close(). */
static int shard_open(struct shard *s, char *path, struct mt_err *e)
{
    uint64_t n;
    int rc;

    *s = (struct shard){.path = path};
    if (!path)
        return mt_err_set(e, -ENOMEM, "out of memory");
    if ((rc = mt_file_map(&s->file, path, e)) < 0)
        return rc;
    if (s->file.size < 8)
        return mt_err_set(e, -EPROTO, "%s: %zu bytes are no safetensors file (expected at least 8)",
                          path, s->file.size);
    memcpy(&n, s->file.data, 8);
    n = le64toh(n);
    if (n > HEADER_MAX)
        return mt_err_set(e, -EPROTO, "%s: header of %llu bytes (expected at most %d)", path,
                          (unsigned long long)n, HEADER_MAX);
    if (n > s->file.size - 8)
        return mt_err_set(e, -EPROTO, "%s: header of %llu bytes does not fit a file of %zu bytes",
                          path, (unsigned long long)n, s->file.size);

    json_t *header = mt_json_parse(path, s->file.data + 8, (size_t)n, ITEMS_MAX, 3, e);
    if (!header)
        return -EPROTO;
    rc = read_header(s, header, s->file.data + 8 + n, (int64_t)(s->file.size - 8 - n), e);
    json_decref(header);
    return rc;
}

/* ---- the index ---- */

static int listed_by_name(const void *a, const void *b)
{
    return strcmp(((const struct listed *)a)->name, ((const struct listed *)b)->name);
}

static int listed_by_file(const void *a, const void *b)
{
    return strcmp(((const struct listed *)a)->file, ((const struct listed *)b)->file);
}

/* A plain name: a hostile index must not reach other folders. */
static bool plain_name(const char *s)
{
    return *s && !strchr(s, '/') && strcmp(s, ".") != 0 && strcmp(s, "..") != 0 &&
           strlen(s) <= NAME_MAX;
}

static int read_index(struct safetensors *st, json_t *root, struct mt_err *e)
{
    json_t *map = json_object_get(root, "weight_map"), *j;
    const char *name;
    char a[MT_SHOW_MAX], b[MT_SHOW_MAX];

    if (!json_is_object(map))
        return mt_err_set(e, -EPROTO, "%s: weight_map is missing or not an object", st->path);
    st->index = calloc(json_object_size(map) + 1, sizeof(*st->index));
    if (!st->index)
        return mt_err_set(e, -ENOMEM, "%s: out of memory", st->path);
    json_object_foreach(map, name, j)
    {
        const char *file = json_string_value(j);
        struct listed *l = &st->index[st->n_index++];

        if (!file || !plain_name(file))
            return mt_err_set(e, -EPROTO,
                              "%s: weight_map: '%s': '%s' is not the name of a file in this folder",
                              st->path, mt_show(a, name), mt_show(b, file ? file : ""));
        l->name = strdup(name);
        l->file = strdup(file);
        if (!l->name || !l->file)
            return mt_err_set(e, -ENOMEM, "%s: out of memory", st->path);
    }
    return 0;
}

static int open_shards(struct safetensors *st, const char *dir, struct mt_err *e)
{
    int n = 0, rc;

    qsort(st->index, st->n_index, sizeof(*st->index), listed_by_file);
    for (size_t i = 0; i < st->n_index; i++) {
        if (i == 0 || strcmp(st->index[i].file, st->index[i - 1].file) != 0)
            n++;
        if (n > SHARDS_MAX)
            return mt_err_set(e, -EPROTO, "%s: weight_map names more than %d files", st->path,
                              SHARDS_MAX);
        st->index[i].shard = n - 1;
    }
    st->shards = calloc((size_t)n + 1, sizeof(*st->shards));
    if (!st->shards)
        return mt_err_set(e, -ENOMEM, "%s: out of memory", st->path);
    for (size_t i = 0; i < st->n_index; i++) {
        if (st->index[i].shard < st->n_shards)
            continue;
        rc = shard_open(&st->shards[st->n_shards++], mt_path_join(dir, st->index[i].file), e);
        if (rc < 0)
            return rc;
    }
    qsort(st->index, st->n_index, sizeof(*st->index), listed_by_name);
    return 0;
}

/* ---- the source ---- */

static void st_close(void *self)
{
    struct safetensors *st = self;

    for (int i = 0; i < st->n_shards; i++)
        shard_close(&st->shards[i]);
    for (size_t i = 0; i < st->n_index; i++) {
        free(st->index[i].name);
        free(st->index[i].file);
    }
    free(st->shards);
    free(st->index);
    free(st->path);
    free(st);
}

static const struct listed *listed(const struct safetensors *st, const char *name)
{
    struct listed key = {.name = (char *)name};

    return bsearch(&key, st->index, st->n_index, sizeof(key), listed_by_name);
}

static struct entry *held(const struct shard *s, const char *name)
{
    struct entry key = {.name = (char *)name};

    return bsearch(&key, s->entries, s->n, sizeof(key), entry_by_name);
}

/* True also for a listed tensor that its shard lacks: asking for it then tells what is wrong. */
static bool st_has(const void *self, const char *name)
{
    const struct safetensors *st = self;

    return st->index ? listed(st, name) != NULL : held(&st->shards[0], name) != NULL;
}

static int st_find(void *self, const char *name, struct mt_tensor **out, struct mt_err *e)
{
    struct safetensors *st = self;
    const struct shard *s = &st->shards[0];
    char show[MT_SHOW_MAX];

    if (st->index) {
        const struct listed *l = listed(st, name);
        if (!l)
            return -ENOENT;
        s = &st->shards[l->shard];
    }
    struct entry *x = held(s, name);
    if (!x && st->index)
        return mt_err_set(e, -EPROTO, "%s: tensor '%s' should lie in %s, which does not hold it",
                          st->path, mt_show(show, name), s->path);
    if (!x)
        return -ENOENT;
    if (x->type->kind < 0)
        return mt_err_set(e, -ENOTSUP, "%s: tensor '%s' is %s (expected BF16, F16 or F32)", s->path,
                          mt_show(show, name), x->type->name);
    *out = &x->t;
    return 0;
}

static const char *st_where(const void *self)
{
    return ((const struct safetensors *)self)->path;
}

static void st_drop(void *self, struct mt_tensor *t)
{
    (void)self;
    mt_file_leave(t->bytes.data, (size_t)t->size);
}

static const struct mt_source source = {
    .has = st_has,
    .find = st_find,
    .drop = st_drop,
    .where = st_where,
    .close = st_close,
};

/* Takes path. dir is NULL for a single file, else path is an index. */
static int open_source(struct mt_weights **out, char *path, const char *dir, struct mt_err *e)
{
    struct safetensors *st = calloc(1, sizeof(*st));
    json_t *root;
    int rc;

    *out = NULL;
    if (!st || !path) {
        free(path);
        free(st);
        return mt_err_set(e, -ENOMEM, "out of memory");
    }
    st->path = path;
    if (dir) {
        rc = mt_json_load(&root, path, HEADER_MAX, ITEMS_MAX, 3, e);
        if (rc == 0) {
            rc = read_index(st, root, e);
            json_decref(root);
        }
        if (rc == 0)
            rc = open_shards(st, dir, e);
    } else {
        st->shards = calloc(1, sizeof(*st->shards));
        st->n_shards = st->shards != NULL;
        rc = st->shards ? shard_open(st->shards, strdup(path), e)
                        : mt_err_set(e, -ENOMEM, "out of memory");
    }
    if (rc < 0) {
        st_close(st);
        return rc;
    }
    return mt_weights_new(out, &source, st, e);
}

int mt_weights_open_safetensors_file(struct mt_weights **out, const char *path, struct mt_err *e)
{
    return open_source(out, strdup(path), NULL, e);
}

int mt_weights_open_safetensors(struct mt_weights **out, const char *dir, struct mt_err *e)
{
    char *single = mt_path_join(dir, SINGLE_NAME), *index = mt_path_join(dir, INDEX_NAME);
    int rc;

    *out = NULL;
    if (!single || !index)
        rc = mt_err_set(e, -ENOMEM, "out of memory");
    else if (access(single, F_OK) == 0)
        rc = mt_weights_open_safetensors_file(out, single, e);
    else if (access(index, F_OK) == 0)
        rc = open_source(out, strdup(index), dir, e);
    else
        rc = mt_err_set(e, -ENOENT, "%s: holds neither " SINGLE_NAME " nor " INDEX_NAME, dir);
    free(single);
    free(index);
    return rc;
}
