/*
 * test_gguf_file.c: the GGUF reader on a small file that is built here: what it finds in a good
 * one, and each count, length, offset, type and dimension of it made wrong in turn.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "model/bind.h"
#include "model/gguf.h"
#include "model/gguf_config.h"
#include "model/gguf_names.h"
#include "model/tokenizer_gguf.h"

enum { ROOM = 4096 };

struct file {
    unsigned char b[ROOM];
    size_t n;
    size_t places[64]; /* where a number stands that the reader must doubt */
    int n_places;
};

static void put(struct file *f, const void *p, size_t n)
{
    assert_true(f->n + n <= ROOM);
    memcpy(f->b + f->n, p, n);
    f->n += n;
}

static void put_u32(struct file *f, uint32_t v)
{
    f->places[f->n_places++] = f->n;
    put(f, &v, 4);
}

static void put_u64(struct file *f, uint64_t v)
{
    f->places[f->n_places++] = f->n;
    put(f, &v, 8);
}

static void put_text(struct file *f, const char *s)
{
    put_u64(f, strlen(s));
    put(f, s, strlen(s));
}

static void put_tensor(struct file *f, const char *name, int n_dims, const uint64_t *ne,
                       uint32_t type, uint64_t offset)
{
    put_text(f, name);
    put_u32(f, (uint32_t)n_dims);
    for (int i = 0; i < n_dims; i++)
        put_u64(f, ne[i]);
    put_u32(f, type);
    put_u64(f, offset);
}

/* Keys of every kind; two tensors: [2, 3] F32, and [1, 64] Q8_0 behind it. */
static struct file good(uint32_t version)
{
    static const int8_t minus = -5;
    static const double real = 0.25;
    static const float single = 1e-6f;
    struct file f = {.n = 0};

    put(&f, "GGUF", 4);
    put_u32(&f, version);
    put_u64(&f, 2);
    put_u64(&f, 9);
    put_text(&f, "general.alignment");
    put_u32(&f, 4);
    put_u32(&f, 64);
    put_text(&f, "i8");
    put_u32(&f, 1);
    put(&f, &minus, 1);
    put_text(&f, "u64");
    put_u32(&f, 10);
    put(&f, "\xff\xff\xff\xff\xff\xff\xff\xff", 8);
    put_text(&f, "f32");
    put_u32(&f, 6);
    put(&f, &single, 4);
    put_text(&f, "f64");
    put_u32(&f, 12);
    put(&f, &real, 8);
    put_text(&f, "yes");
    put_u32(&f, 7);
    put(&f, "\1", 1);
    put_text(&f, "word");
    put_u32(&f, 8);
    put_text(&f, "hello");
    put_text(&f, "words");
    put_u32(&f, 9);
    put_u32(&f, 8);
    put_u64(&f, 2);
    put_text(&f, "a");
    put_text(&f, "bc");
    put_text(&f, "numbers");
    put_u32(&f, 9);
    put_u32(&f, 3);
    put_u64(&f, 3);
    put(&f, "\1\0\xfe\xff\3\0", 6);
    put_tensor(&f, "x", 2, (const uint64_t[]){3, 2}, 0, 0);
    put_tensor(&f, "y", 1, (const uint64_t[]){64}, 8, 64);
    while (f.n % 64)
        put(&f, "", 1);
    for (int i = 0; i < 6; i++) {
        float v = (float)i;
        put(&f, &v, 4);
    }
    while (f.n % 64)
        put(&f, "", 1);
    for (int i = 0; i < 68; i++)
        put(&f, "q", 1);
    return f;
}

/* Exactly so many bytes, so that a sanitizer sees what is read past their end. */
static int open_file(struct mt_gguf **g, const struct file *f, struct mt_err *e)
{
    char path[64];
    int fd = memfd_create("gguf", MFD_CLOEXEC), rc;

    assert_true(fd >= 0);
    assert_int_equal(write(fd, f->b, f->n), (ssize_t)f->n);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    rc = mt_gguf_open(g, path, e);
    close(fd);
    return rc;
}

static void test_good(void **state)
{
    (void)state;
    for (uint32_t version = 2; version <= 3; version++) {
        struct file f = good(version);
        struct mt_err e = {0};
        struct mt_gguf_list l;
        const struct mt_tensor *t;
        struct mt_gguf *g;
        const char *s;
        size_t n;
        int64_t v;
        double d;

        if (open_file(&g, &f, &e) < 0)
            fail_msg("%s", e.text);
        assert_int_equal(mt_gguf_int(g, "i8", -9, 9, MT_NEED, &v, &e), 0);
        assert_int_equal(v, -5);
        assert_int_equal(mt_gguf_int(g, "none", 0, 9, 7, &v, &e), 0);
        assert_int_equal(v, 7);
        assert_int_equal(mt_gguf_int(g, "u64", 0, INT64_MAX, 0, &v, &e), 0);
        assert_true(v == INT64_MAX);
        assert_int_equal(mt_gguf_real(g, "f32", 0, 1, 5, &d, &e), 0);
        assert_true(d == (double)1e-6f);
        assert_int_equal(mt_gguf_real(g, "f64", 0, 1, 5, &d, &e), 0);
        assert_true(d == 0.25);
        assert_true(mt_gguf_true(g, "yes"));
        assert_false(mt_gguf_true(g, "word"));
        assert_true(mt_gguf_is(g, "word", "hello"));
        assert_int_equal(mt_gguf_strings(g, "words", &l, &e), 0);
        assert_int_equal(l.n, 2);
        s = mt_gguf_next_string(&l, &n);
        assert_true(n == 1 && *s == 'a');
        s = mt_gguf_next_string(&l, &n);
        assert_true(n == 2 && !memcmp(s, "bc", 2) && l.n == 0);
        assert_int_equal(mt_gguf_ints(g, "numbers", &l, &e), 0);
        assert_int_equal(mt_gguf_next_int(&l), 1);
        assert_int_equal(mt_gguf_next_int(&l), -2);
        assert_int_equal(mt_gguf_next_int(&l), 3);
        assert_int_equal(mt_gguf_tensor(g, "x", &t, &e), 0);
        assert_true(t->n_dims == 2 && t->dims[0] == 2 && t->dims[1] == 3 && t->size == 24);
        assert_true(((const float *)t->bytes.data)[5] == 5);
        assert_int_equal(mt_gguf_tensor(g, "y", &t, &e), 0);
        assert_true(t->bytes.type == MT_Q8_0 && t->bytes.cols == 64 && t->size == 68);
        assert_int_equal(mt_gguf_tensor(g, "z", &t, &e), -ENOENT);
        assert_int_equal(e.code, 0);
        assert_int_equal(mt_gguf_int(g, "word", 0, 9, 0, &v, &e), -EPROTO);
        mt_gguf_close(&g);
        assert_null(g);
    }
}

/* Whatever it says it offers can be read to its last byte. */
static void read_all(const struct mt_gguf *g)
{
    static const char *const keys[] = {"word", "words", "numbers"}, *const names[] = {"x", "y"};
    volatile unsigned char sink = 0;
    const struct mt_tensor *t;
    struct mt_gguf_list l;
    size_t n;

    for (size_t i = 0; i < MT_COUNT(keys); i++) {
        const char *s = mt_gguf_text(g, keys[i], &n);

        if (s && n)
            sink = (unsigned char)s[n - 1];
        if (mt_gguf_strings(g, keys[i], &l, NULL) == 0)
            while (l.n > 0 && (s = mt_gguf_next_string(&l, &n)))
                sink = n ? (unsigned char)s[n - 1] : 0;
        if (mt_gguf_ints(g, keys[i], &l, NULL) == 0)
            while (l.n > 0)
                sink = (unsigned char)mt_gguf_next_int(&l);
    }
    for (size_t i = 0; i < MT_COUNT(names); i++)
        if (mt_gguf_tensor(g, names[i], &t, NULL) == 0)
            sink = ((const unsigned char *)t->bytes.data)[t->size - 1];
    (void)sink;
}

static void try(const struct file *f)
{
    struct mt_err e = {0};
    struct mt_gguf *g;
    int rc = open_file(&g, f, &e);

    if (rc == 0) {
        read_all(g);
        mt_gguf_close(&g);
        return;
    }
    assert_null(g);
    assert_true(e.code == rc && *e.text && !strchr(e.text, '\n'));
}

/* Each number, and then each place, replaced by what hostile files hold. */
static void test_every_number(void **state)
{
    static const uint64_t hostile[] = {0,
                                       1,
                                       2,
                                       3,
                                       7,
                                       31,
                                       65,
                                       255,
                                       256,
                                       1u << 20,
                                       INT32_MAX,
                                       UINT32_MAX,
                                       1ull << 32,
                                       INT64_MAX,
                                       INT64_MAX - 7,
                                       UINT64_MAX,
                                       1ull << 63,
                                       1ull << 61,
                                       (1ull << 61) + 1};
    struct file whole = good(3);

    (void)state;
    for (int i = 0; i < whole.n_places; i++)
        for (size_t k = 0; k < MT_COUNT(hostile); k++)
            for (size_t size = 4; size <= 8; size += 4) {
                struct file f = whole;

                memcpy(f.b + f.places[i], &hostile[k], size);
                try(&f);
            }
    for (size_t at = 0; at < whole.n; at++) {
        struct file f = whole;

        f.b[at] ^= 0xff;
        try(&f);
        f = whole;
        f.n = at; /* cut there */
        try(&f);
    }
}

/* One by one, with what is said. */
static void test_messages(void **state)
{
    static const struct {
        size_t at; /* in the order that the numbers were put */
        uint64_t value;
        int size, rc;
        const char *says;
    } is[] = {
        {0, 1, 4, -ENOTSUP, "version 1 is not supported"},
        {0, 0x03000000, 4, -ENOTSUP, "little-endian"},
        {1, 1ull << 40, 8, -EPROTO, "tensors (expected"},
        {1, 1, 8, -EPROTO, "behind the 1 tensors"},
        {2, UINT64_MAX, 8, -EPROTO, "keys (expected"},
        {3, 1ull << 62, 8, -EPROTO, "key 1 of 9"},
        {4, 99, 4, -EPROTO, "key 'general.alignment' at byte"},
        {5, 48, 4, -EPROTO, "no power of two"},
        {5, 0, 4, -EPROTO, "key 'general.alignment' is 0"},
    };
    struct file whole = good(3);

    (void)state;
    for (size_t i = 0; i < MT_COUNT(is); i++) {
        struct file f = whole;
        struct mt_err e = {0};
        struct mt_gguf *g;

        memcpy(f.b + f.places[is[i].at], &is[i].value, (size_t)is[i].size);
        assert_int_equal(open_file(&g, &f, &e), is[i].rc);
        if (!strstr(e.text, is[i].says))
            fail_msg("'%s' does not say '%s'", e.text, is[i].says);
    }
}

/* The numbers of the tensors stand last: type and offset of y are the two last ones. */
static void test_tensors(void **state)
{
    static const struct {
        int back; /* from the end */
        uint64_t value;
        int size;
        const char *says;
    } is[] = {
        {1, 0, 8, "overlap"},
        {1, 65, 8, "no multiple of the alignment"},
        {1, 1ull << 62, 8, "expected 64"},
        {1, 128, 8, "is not next to"},
        {2, 4, 4, "type 4 is not known"},
        {2, 12, 4, "no whole blocks of Q4_K"},
        {2, 2, 4, "4 bytes lie behind the 2 tensors"},
        {3, 0, 8, "0 or too many"},
        {3, UINT64_MAX, 8, "0 or too many"},
        {3, 1ull << 62, 8, "outside the file"},
        {4, 0, 4, "0 dimensions"},
        {4, 5, 4, "5 dimensions"},
        {5, 1ull << 33, 8, "does not fit"},
    };
    struct file whole = good(3);

    (void)state;
    for (size_t i = 0; i < MT_COUNT(is); i++) {
        struct file f = whole;
        struct mt_err e = {0};
        struct mt_gguf *g;

        memcpy(f.b + f.places[f.n_places - is[i].back], &is[i].value, (size_t)is[i].size);
        assert_int_equal(open_file(&g, &f, &e), -EPROTO);
        if (!strstr(e.text, is[i].says))
            fail_msg("'%s' does not say '%s'", e.text, is[i].says);
    }
}

static void test_names(void **state)
{
    static const struct {
        const char *released, *gguf;
        bool audio;
        int64_t expert;
    } is[] = {
        {"model.embed_tokens.weight", "token_embd.weight", false, -1},
        {"lm_head.weight", "output.weight", false, -1},
        {"model.layers.12.self_attn.q_proj.bias", "blk.12.attn_q.bias", false, -1},
        {"model.layers.0.mlp.gate.weight", "blk.0.ffn_gate_inp.weight", false, -1},
        {"model.layers.3.mlp.experts.127.down_proj.weight", "blk.3.ffn_down_exps.weight", false,
         127},
        {"audio_tower.conv2.bias", "a.conv1d.2.bias", true, -1},
        {"audio_tower.layers.31.fc1.weight", "a.blk.31.ffn_up.weight", true, -1},
        {"audio_tower.proj2.weight", "mm.a.mlp.2.weight", true, -1},
    };
    static const char *const none[] = {"thinker.model.norm.weight",
                                       "model.layers.x.mlp.gate.weight",
                                       "model.norm",
                                       "model.layers.1.weight",
                                       "audio_tower.",
                                       "",
                                       "model.layers.1.mlp.gate_proj.scale"};
    struct mt_gguf_name n;

    (void)state;
    for (size_t i = 0; i < MT_COUNT(is); i++) {
        assert_true(mt_gguf_name(&n, is[i].released));
        assert_string_equal(n.name, is[i].gguf);
        assert_int_equal(n.audio, is[i].audio);
        assert_int_equal(n.expert, is[i].expert);
    }
    for (size_t i = 0; i < MT_COUNT(none); i++)
        assert_false(mt_gguf_name(&n, none[i]));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),     cmocka_unit_test(test_every_number),
        cmocka_unit_test(test_messages), cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_names),
    };

    return cmocka_run_group_tests_name("gguf_file", tests, NULL, NULL);
}
