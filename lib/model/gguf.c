/*
 * gguf.c: GGUF v2 and v3: "GGUF", version, counts of tensors and keys; the keys with their values;
 * name, dimensions, type and offset of each tensor; then the data, aligned. One cursor walks it and
 * never believes a count or a length before it is compared with the bytes that are left. Afterwards
 * everything that is handed out lies inside the file.
 */
#include "model/gguf.h"

#include "model/bind.h"
#include "model/file.h"

#include <byteswap.h>
#include <endian.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define KEYS_MAX    (1 << 16) /* released files have some 30 … */
#define TENSORS_MAX (1 << 20) /* … and some 1000 */
#define NAME_BYTES  1024
#define ALIGN_MAX   (1 << 20)

enum { U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64, VALUE_TYPES };

static const struct {
    char name[8];
    int size; /* 0: has a length of its own */
} value_types[VALUE_TYPES] = {
    [U8] = {"u8", 1},      [I8] = {"i8", 1},    [U16] = {"u16", 2}, [I16] = {"i16", 2},
    [U32] = {"u32", 4},    [I32] = {"i32", 4},  [F32] = {"f32", 4}, [BOOL] = {"bool", 1},
    [STRING] = {"string"}, [ARRAY] = {"array"}, [U64] = {"u64", 8}, [I64] = {"i64", 8},
    [F64] = {"f64", 8},
};

/* Every type of tensor there is by number: those nobody can use are checked all the same. */
static const struct tensor_type {
    char name[12];
    int block, bytes; /* 0: a number that ggml does not use any more */
    int kind;         /* enum mt_dtype, or -1 */
} tensor_types[] = {
    [0] = {"F32", 1, 4, MT_F32},
    [1] = {"F16", 1, 2, MT_F16},
    [2] = {"Q4_0", 32, 18, MT_Q4_0},
    [3] = {"Q4_1", 32, 20, MT_Q4_1},
    [6] = {"Q5_0", 32, 22, MT_Q5_0},
    [7] = {"Q5_1", 32, 24, MT_Q5_1},
    [8] = {"Q8_0", 32, 34, MT_Q8_0},
    [9] = {"Q8_1", 32, 36, -1},
    [10] = {"Q2_K", 256, 84, -1},
    [11] = {"Q3_K", 256, 110, -1},
    [12] = {"Q4_K", 256, 144, MT_Q4_K},
    [13] = {"Q5_K", 256, 176, MT_Q5_K},
    [14] = {"Q6_K", 256, 210, MT_Q6_K},
    [15] = {"Q8_K", 256, 292, -1},
    [16] = {"IQ2_XXS", 256, 66, -1},
    [17] = {"IQ2_XS", 256, 74, -1},
    [18] = {"IQ3_XXS", 256, 98, -1},
    [19] = {"IQ1_S", 256, 50, -1},
    [20] = {"IQ4_NL", 32, 18, -1},
    [21] = {"IQ3_S", 256, 110, -1},
    [22] = {"IQ2_S", 256, 82, -1},
    [23] = {"IQ4_XS", 256, 136, -1},
    [24] = {"I8", 1, 1, -1},
    [25] = {"I16", 1, 2, -1},
    [26] = {"I32", 1, 4, -1},
    [27] = {"I64", 1, 8, -1},
    [28] = {"F64", 1, 8, -1},
    [29] = {"IQ1_M", 256, 56, -1},
    [30] = {"BF16", 1, 2, MT_BF16},
    [34] = {"TQ1_0", 256, 54, -1},
    [35] = {"TQ2_0", 256, 66, -1},
    [39] = {"MXFP4", 32, 17, -1},
    [40] = {"NVFP4", 64, 36, -1},
};

struct key {
    char *name;
    uint32_t type, item; /* item: what an array holds */
    uint64_t n;          /* elements of an array, bytes of a string */
    const unsigned char *at;
};

struct entry {
    char *name;
    const struct tensor_type *type;
    uint64_t offset;
    struct mt_tensor t;
};

struct mt_gguf {
    char *path;
    struct mt_file file;
    struct key *keys; /* by name */
    size_t n_keys;
    struct entry *entries; /* by name */
    size_t n_entries;
    uint64_t align;
};

/* ---- the cursor ---- */

struct cursor {
    struct mt_gguf *g;
    size_t at;
    struct mt_err *e;
    char what[160]; /* "key 'x'", for messages */
};

/* Every failure reads "FILE: key 'x' at byte N: ...". */
static int MT_PRINTF(2, 3) bad(const struct cursor *c, const char *fmt, ...)
{
    char text[200];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    return mt_err_set(c->e, -EPROTO, "%s: %s at byte %zu: %s", c->g->path, c->what, c->at, text);
}

static size_t left(const struct cursor *c)
{
    return c->g->file.size - c->at;
}

/* n bytes, or NULL after saying that they are not there. */
static const unsigned char *take(struct cursor *c, uint64_t n)
{
    const unsigned char *p;

    if (n > left(c)) {
        bad(c, "%llu bytes are wanted, the file has %zu more", (unsigned long long)n, left(c));
        return NULL;
    }
    p = c->g->file.data + c->at;
    c->at += (size_t)n;
    return p;
}

static int take_u32(struct cursor *c, uint32_t *out)
{
    const unsigned char *p = take(c, 4);

    if (!p)
        return -EPROTO;
    memcpy(out, p, 4);
    *out = le32toh(*out);
    return 0;
}

static int take_u64(struct cursor *c, uint64_t *out)
{
    const unsigned char *p = take(c, 8);

    if (!p)
        return -EPROTO;
    memcpy(out, p, 8);
    *out = le64toh(*out);
    return 0;
}

/* A length and so many bytes without a NUL. */
static int take_string(struct cursor *c, const unsigned char **out, uint64_t *n)
{
    size_t start = c->at;
    int rc = take_u64(c, n);

    if (rc < 0)
        return rc;
    if (*n > left(c)) {
        c->at = start;
        return bad(c, "a string of %llu bytes does not fit the file (%zu more)",
                   (unsigned long long)*n, left(c) - 8);
    }
    *out = take(c, *n);
    return memchr(*out, 0, (size_t)*n) ? bad(c, "a string holds a NUL byte") : 0;
}

/* The name of a key or tensor, malloc'ed. */
static int take_name(struct cursor *c, char **name)
{
    const unsigned char *p;
    uint64_t n;
    int rc = take_string(c, &p, &n);

    if (rc < 0)
        return rc;
    if (n == 0 || n > NAME_BYTES)
        return bad(c, "a name of %llu bytes (expected 1..%d)", (unsigned long long)n, NAME_BYTES);
    *name = strndup((const char *)p, (size_t)n);
    return *name ? 0 : mt_err_set(c->e, -ENOMEM, "%s: out of memory", c->g->path);
}

static void name_it(struct cursor *c, const char *kind, const char *name)
{
    char show[MT_SHOW_MAX];

    snprintf(c->what, sizeof(c->what), "%s '%s'", kind, mt_show(show, name));
}

/* ---- keys ---- */

static int take_items(struct cursor *c, struct key *k)
{
    const unsigned char *p;
    uint64_t n;
    int rc;

    if ((rc = take_u32(c, &k->item)) < 0 || (rc = take_u64(c, &k->n)) < 0)
        return rc;
    if (k->item >= VALUE_TYPES || k->item == ARRAY)
        return bad(c, "an array of type %u (expected 0..%d, not %d)", k->item, VALUE_TYPES - 1,
                   ARRAY);
    k->at = c->g->file.data + c->at;
    if (k->item == STRING) {
        if (k->n > left(c) / 8)
            return bad(c, "an array of %llu strings does not fit the file (%zu more bytes)",
                       (unsigned long long)k->n, left(c));
        for (uint64_t i = 0; i < k->n; i++)
            if ((rc = take_string(c, &p, &n)) < 0)
                return rc;
        return 0;
    }
    if (k->n > left(c) / (unsigned)value_types[k->item].size)
        return bad(c, "an array of %llu %s does not fit the file (%zu more bytes)",
                   (unsigned long long)k->n, value_types[k->item].name, left(c));
    take(c, k->n * (unsigned)value_types[k->item].size);
    return 0;
}

static int take_key(struct cursor *c, struct key *k)
{
    int rc;

    if ((rc = take_name(c, &k->name)) < 0)
        return rc;
    name_it(c, "key", k->name);
    if ((rc = take_u32(c, &k->type)) < 0)
        return rc;
    if (k->type >= VALUE_TYPES)
        return bad(c, "a value of type %u (expected 0..%d)", k->type, VALUE_TYPES - 1);
    if (k->type == ARRAY)
        return take_items(c, k);
    if (k->type == STRING)
        return take_string(c, &k->at, &k->n);
    if (!(k->at = take(c, (unsigned)value_types[k->type].size)))
        return -EPROTO;
    return k->type == BOOL && *k->at > 1 ? bad(c, "a bool of %u", *k->at) : 0;
}

static int key_by_name(const void *a, const void *b)
{
    return strcmp(((const struct key *)a)->name, ((const struct key *)b)->name);
}

static int read_keys(struct cursor *c, uint64_t n)
{
    struct mt_gguf *g = c->g;
    char show[MT_SHOW_MAX];
    int rc;

    /* A key has 13 bytes at least. */
    if (n > KEYS_MAX || n > left(c) / 13)
        return bad(c, "%llu keys (expected at most %d, and the file has %zu more bytes)",
                   (unsigned long long)n, KEYS_MAX, left(c));
    if (!(g->keys = calloc((size_t)n + 1, sizeof(*g->keys))))
        return mt_err_set(c->e, -ENOMEM, "%s: out of memory", g->path);
    while (g->n_keys < n) {
        snprintf(c->what, sizeof(c->what), "key %zu of %llu", g->n_keys + 1, (unsigned long long)n);
        if ((rc = take_key(c, &g->keys[g->n_keys++])) < 0)
            return rc;
    }
    qsort(g->keys, g->n_keys, sizeof(*g->keys), key_by_name);
    for (size_t i = 1; i < g->n_keys; i++)
        if (!strcmp(g->keys[i - 1].name, g->keys[i].name))
            return mt_err_set(c->e, -EPROTO, "%s: key '%s' comes twice", g->path,
                              mt_show(show, g->keys[i].name));
    return 0;
}

/* ---- tensors ---- */

static int take_dims(struct cursor *c, struct entry *x)
{
    uint32_t n;
    int64_t count = 1;
    int rc;

    if ((rc = take_u32(c, &n)) < 0)
        return rc;
    if (n < 1 || n > 4)
        return bad(c, "%u dimensions (expected 1..4)", n);
    x->t.n_dims = (int)n;
    for (int i = (int)n - 1; i >= 0; i--) { /* innermost first in the file */
        uint64_t d;

        if ((rc = take_u64(c, &d)) < 0)
            return rc;
        if (d < 1 || d > INT64_MAX || __builtin_mul_overflow(count, (int64_t)d, &count))
            return bad(c, "a dimension of %llu: there are 0 or too many elements",
                       (unsigned long long)d);
        x->t.dims[i] = (int64_t)d;
    }
    return 0;
}

static int take_type(struct cursor *c, struct entry *x)
{
    const struct tensor_type *t;
    int64_t blocks = 1;
    uint32_t n;
    int rc;

    if ((rc = take_u32(c, &n)) < 0)
        return rc;
    t = &tensor_types[n < MT_COUNT(tensor_types) ? n : 4];
    if (!t->block)
        return bad(c, "type %u is not known", n);
    if (x->t.dims[x->t.n_dims - 1] % t->block)
        return bad(c, "rows of %lld elements are no whole blocks of %s (%d)",
                   (long long)x->t.dims[x->t.n_dims - 1], t->name, t->block);
    for (int i = 0; i < x->t.n_dims; i++) /* at most the product, which has been formed */
        blocks *= x->t.dims[i];
    if (__builtin_mul_overflow(blocks / t->block, (int64_t)t->bytes, &x->t.size))
        return bad(c, "too many elements: the number of bytes overflows");
    x->type = t;
    return 0;
}

/*
 * Tensors lie in the order in which they are told, each at the next aligned place, and nothing lies
 * behind the last: an offset says nothing new, and a wrong one is found out.
 */
static int take_tensor(struct cursor *c, struct entry *x, uint64_t *next)
{
    int rc;

    if ((rc = take_name(c, &x->name)) < 0)
        return rc;
    name_it(c, "tensor", x->name);
    if ((rc = take_dims(c, x)) < 0 || (rc = take_type(c, x)) < 0)
        return rc;
    if ((rc = take_u64(c, &x->offset)) < 0)
        return rc;
    if (x->offset % c->g->align)
        return bad(c, "offset %llu is no multiple of the alignment %llu",
                   (unsigned long long)x->offset, (unsigned long long)c->g->align);
    if (x->offset != *next)
        return bad(c, "offset %llu %s the tensor before it (expected %llu)",
                   (unsigned long long)x->offset, x->offset < *next ? "overlaps" : "is not next to",
                   (unsigned long long)*next);
    if ((uint64_t)x->t.size > c->g->file.size) /* all that are added up do fit */
        return bad(c, "%lld bytes lie outside the file", (long long)x->t.size);
    *next += ((uint64_t)x->t.size + c->g->align - 1) / c->g->align * c->g->align;
    return 0;
}

static int entry_by_name(const void *a, const void *b)
{
    return strcmp(((const struct entry *)a)->name, ((const struct entry *)b)->name);
}

/* data: where the file's tensors begin; end: how many bytes they say they take, all aligned. */
static int place_tensors(struct mt_gguf *g, size_t data, uint64_t end, struct mt_err *e)
{
    uint64_t size = g->file.size - data;
    char a[MT_SHOW_MAX];

    for (size_t i = 0; i < g->n_entries; i++) {
        struct entry *x = &g->entries[i];

        if (x->offset > size || (uint64_t)x->t.size > size - x->offset)
            return mt_err_set(
                e, -EPROTO,
                "%s: tensor '%s': %lld bytes at offset %llu lie outside the file (its "
                "data has %llu bytes)",
                g->path, mt_show(a, x->name), (long long)x->t.size, (unsigned long long)x->offset,
                (unsigned long long)size);
        x->t.bytes.data = g->file.data + data + x->offset;
        if (x->type && x->type->kind >= 0)
            x->t.bytes.type = (enum mt_dtype)x->type->kind;
        mt_tensor_matrix(&x->t);
    }
    /* A tensor too few, or a type that takes less: names would go with others' data. */
    if (size > end)
        return mt_err_set(e, -EPROTO,
                          "%s: %llu bytes lie behind the %zu tensors that the file tells of",
                          g->path, (unsigned long long)(size - end), g->n_entries);
    qsort(g->entries, g->n_entries, sizeof(*g->entries), entry_by_name);
    for (size_t i = 1; i < g->n_entries; i++)
        if (!strcmp(g->entries[i - 1].name, g->entries[i].name))
            return mt_err_set(e, -EPROTO, "%s: tensor '%s' comes twice", g->path,
                              mt_show(a, g->entries[i].name));
    return 0;
}

static int read_tensors(struct cursor *c, uint64_t n)
{
    struct mt_gguf *g = c->g;
    uint64_t data, next = 0;
    int rc;

    if (!(g->entries = calloc((size_t)n + 1, sizeof(*g->entries))))
        return mt_err_set(c->e, -ENOMEM, "%s: out of memory", g->path);
    while (g->n_entries < n) {
        snprintf(c->what, sizeof(c->what), "tensor %zu of %llu", g->n_entries + 1,
                 (unsigned long long)n);
        if ((rc = take_tensor(c, &g->entries[g->n_entries++], &next)) < 0)
            return rc;
    }
    data = (c->at + g->align - 1) / g->align * g->align;
    return place_tensors(g, data < g->file.size ? (size_t)data : g->file.size, next, c->e);
}

static int read_align(struct cursor *c)
{
    int64_t align = 32;
    int rc = mt_gguf_int(c->g, "general.alignment", 1, ALIGN_MAX, 32, &align, c->e);

    if (rc == 0 && (align & (align - 1)))
        return mt_err_set(c->e, -EPROTO, "%s: key 'general.alignment': %lld is no power of two",
                          c->g->path, (long long)align);
    c->g->align = (uint64_t)align;
    return rc;
}

static int read_file(struct mt_gguf *g, struct mt_err *e)
{
    struct cursor c = {.g = g, .e = e, .what = "GGUF header"};
    const unsigned char *magic;
    uint64_t tensors, keys;
    uint32_t version;
    int rc;

    magic = g->file.size < 4 ? NULL : take(&c, 4);
    if (!magic || memcmp(magic, "GGUF", 4) != 0)
        return mt_err_set(e, -EBADMSG, "%s: not a GGUF file", g->path);
    if ((rc = take_u32(&c, &version)) < 0)
        return rc;
    if (version != 2 && version != 3)
        return mt_err_set(
            e, -ENOTSUP, "%s: GGUF version %u is not supported (2, 3%s)", g->path, version,
            version == bswap_32(2) || version == bswap_32(3) ? "; little-endian" : "");
    if ((rc = take_u64(&c, &tensors)) < 0 || (rc = take_u64(&c, &keys)) < 0)
        return rc;
    /* A tensor has 33 bytes at least. */
    if (tensors > TENSORS_MAX || tensors > left(&c) / 33)
        return bad(&c, "%llu tensors (expected at most %d, and the file has %zu more bytes)",
                   (unsigned long long)tensors, TENSORS_MAX, left(&c));
    if ((rc = read_keys(&c, keys)) < 0 || (rc = read_align(&c)) < 0)
        return rc;
    return read_tensors(&c, tensors);
}

int mt_gguf_open(struct mt_gguf **out, const char *path, struct mt_err *e)
{
    struct mt_gguf *g = calloc(1, sizeof(*g));
    int rc;

    *out = g;
    if (!g || !(g->path = strdup(path))) {
        mt_gguf_close(out);
        return mt_err_set(e, -ENOMEM, "out of memory");
    }
    rc = mt_file_map(&g->file, path, e);
    if (rc == 0)
        rc = read_file(g, e);
    if (rc < 0)
        mt_gguf_close(out);
    return rc;
}

void mt_gguf_close(struct mt_gguf **gp)
{
    struct mt_gguf *g = *gp;

    if (!g)
        return;
    for (size_t i = 0; i < g->n_keys; i++)
        free(g->keys[i].name);
    for (size_t i = 0; i < g->n_entries; i++)
        free(g->entries[i].name);
    free(g->keys);
    free(g->entries);
    mt_file_unmap(&g->file);
    free(g->path);
    free(g);
    *gp = NULL;
}

const char *mt_gguf_path(const struct mt_gguf *g)
{
    return g->path;
}

/* ---- values ---- */

static const struct key *find_key(const struct mt_gguf *g, const char *name)
{
    struct key want = {.name = (char *)name};

    return bsearch(&want, g->keys, g->n_keys, sizeof(want), key_by_name);
}

bool mt_gguf_has(const struct mt_gguf *g, const char *key)
{
    return find_key(g, key) != NULL;
}

static bool is_int(uint32_t type)
{
    return type <= I32 || type == U64 || type == I64;
}

/* A u64 above INT64_MAX becomes INT64_MAX: no range here goes so far. */
static int64_t int_at(const unsigned char *p, uint32_t type)
{
    uint64_t v = 0;
    int bits = 8 * value_types[type].size;

    memcpy(&v, p, (size_t)value_types[type].size);
    v = le64toh(v);
    if (type == U64)
        return v > INT64_MAX ? INT64_MAX : (int64_t)v;
    if (type == U8 || type == U16 || type == U32)
        return (int64_t)v;
    return (int64_t)(v << (64 - bits)) >> (64 - bits);
}

int mt_gguf_int(const struct mt_gguf *g, const char *key, int64_t lo, int64_t hi, int64_t fallback,
                int64_t *out, struct mt_err *e)
{
    const struct key *k = find_key(g, key);

    if (!k && fallback != MT_NEED) {
        *out = fallback;
        return 0;
    }
    if (!k)
        return mt_err_set(e, -EPROTO, "%s: key '%s' is missing", g->path, key);
    if (!is_int(k->type))
        return mt_err_set(e, -EPROTO, "%s: key '%s' is %s (expected an integer)", g->path, key,
                          value_types[k->type].name);
    *out = int_at(k->at, k->type);
    if (*out < lo || *out > hi)
        return mt_err_set(e, -EPROTO, "%s: key '%s' is %lld (expected %lld..%lld)", g->path, key,
                          (long long)*out, (long long)lo, (long long)hi);
    return 0;
}

int mt_gguf_real(const struct mt_gguf *g, const char *key, double lo, double hi, double fallback,
                 double *out, struct mt_err *e)
{
    const struct key *k = find_key(g, key);
    uint64_t bits = 0;
    uint32_t narrow;
    float f;

    if (!k) {
        *out = fallback;
        return 0;
    }
    if (is_int(k->type)) {
        *out = (double)int_at(k->at, k->type);
    } else if (k->type == F32 || k->type == F64) {
        memcpy(&bits, k->at, (size_t)value_types[k->type].size);
        bits = le64toh(bits);
        narrow = (uint32_t)bits;
        memcpy(&f, &narrow, sizeof(f));
        memcpy(out, &bits, sizeof(*out));
        if (k->type == F32)
            *out = f;
    } else {
        return mt_err_set(e, -EPROTO, "%s: key '%s' is %s (expected a number)", g->path, key,
                          value_types[k->type].name);
    }
    if (!(*out >= lo && *out <= hi))
        return mt_err_set(e, -EPROTO, "%s: key '%s' is %g (expected %g..%g)", g->path, key, *out,
                          lo, hi);
    return 0;
}

bool mt_gguf_true(const struct mt_gguf *g, const char *key)
{
    const struct key *k = find_key(g, key);

    return k && k->type == BOOL && *k->at == 1;
}

const char *mt_gguf_text(const struct mt_gguf *g, const char *key, size_t *len)
{
    const struct key *k = find_key(g, key);

    if (!k || k->type != STRING)
        return NULL;
    *len = (size_t)k->n;
    return (const char *)k->at;
}

bool mt_gguf_is(const struct mt_gguf *g, const char *key, const char *text)
{
    size_t n;
    const char *has = mt_gguf_text(g, key, &n);

    return has && n == strlen(text) && !memcmp(has, text, n);
}

static int find_list(const struct mt_gguf *g, const char *key, bool strings,
                     struct mt_gguf_list *out, struct mt_err *e)
{
    const struct key *k = find_key(g, key);

    if (!k)
        return mt_err_set(e, -ENOENT, "%s: key '%s' is missing", g->path, key);
    if (k->type != ARRAY || (strings ? k->item != STRING : !is_int(k->item)))
        return mt_err_set(e, -EPROTO, "%s: key '%s' is no array of %s", g->path, key,
                          strings ? "strings" : "integers");
    *out = (struct mt_gguf_list){k->at, k->n, k->item};
    return 0;
}

int mt_gguf_strings(const struct mt_gguf *g, const char *key, struct mt_gguf_list *out,
                    struct mt_err *e)
{
    return find_list(g, key, true, out, e);
}

int mt_gguf_ints(const struct mt_gguf *g, const char *key, struct mt_gguf_list *out,
                 struct mt_err *e)
{
    return find_list(g, key, false, out, e);
}

const char *mt_gguf_next_string(struct mt_gguf_list *l, size_t *len)
{
    const unsigned char *p = l->at;
    uint64_t n;

    memcpy(&n, p, 8);
    n = le64toh(n);
    *len = (size_t)n;
    l->at = p + 8 + n;
    l->n--;
    return (const char *)p + 8;
}

int64_t mt_gguf_next_int(struct mt_gguf_list *l)
{
    int64_t v = int_at(l->at, l->type);

    l->at += value_types[l->type].size;
    l->n--;
    return v;
}

/* ---- tensors by name ---- */

static const struct entry *find_entry(const struct mt_gguf *g, const char *name)
{
    struct entry want = {.name = (char *)name};

    return bsearch(&want, g->entries, g->n_entries, sizeof(want), entry_by_name);
}

bool mt_gguf_has_tensor(const struct mt_gguf *g, const char *name)
{
    return find_entry(g, name) != NULL;
}

int mt_gguf_tensor(const struct mt_gguf *g, const char *name, const struct mt_tensor **out,
                   struct mt_err *e)
{
    const struct entry *x = find_entry(g, name);
    char show[MT_SHOW_MAX];

    if (!x)
        return -ENOENT;
    if (x->type->kind < 0)
        return mt_err_set(e, -ENOTSUP,
                          "%s: tensor '%s' is %s (expected F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, "
                          "Q8_0, Q4_K, Q5_K or Q6_K)",
                          g->path, mt_show(show, name), x->type->name);
    *out = &x->t;
    return 0;
}
