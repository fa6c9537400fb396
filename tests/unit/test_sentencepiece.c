/*
 * test_sentencepiece.c: SentencePiece models written by hand: every type of piece, fields that
 * nobody asked for, and files that are broken in every way a byte can break them.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/model.h"
#include "util.h"

struct model {
    unsigned char data[2000];
    size_t n;
};

static void put_bytes(struct model *m, const void *data, size_t n)
{
    memcpy(m->data + m->n, data, n);
    m->n += n;
}

/* A piece; type 0: not said. Lengths here are below 128. */
static void put_piece(struct model *m, const char *text, int type)
{
    size_t n = strlen(text);
    unsigned char head[] = {0x0a, (unsigned char)(n + 2 + 5 + (type ? 2 : 0)), 0x0a,
                            (unsigned char)n};

    put_bytes(m, head, sizeof(head));
    put_bytes(m, text, n);
    put_bytes(m, "\x15\0\0\x80\xbf", 5); /* score -1 */
    if (type)
        put_bytes(m, (unsigned char[]){0x18, (unsigned char)type}, 2);
}

static int open_model(struct mt_tokenizer **t, const struct model *m, struct mt_err *e)
{
    char dir[32];

    assert_int_equal(util_dir_make(dir), 0);
    util_put(dir, "tokenizer_spm_32k_3.model", m->data, m->n);
    int rc = mt_tokenizer_open(t, dir, e);
    assert_int_equal(util_dir_remove(dir), 0);
    return rc;
}

static struct model small(void)
{
    struct model m = {.n = 0};

    put_piece(&m, "<unk>", 2);
    put_piece(&m, "<s>", 3);
    put_piece(&m, "\xe2\x96\x81Hi\xe2\x96\x81", 0);
    put_piece(&m, "<0xC3>", 6);
    put_piece(&m, "<0xa9>", 6);
    put_piece(&m, "", 1);
    put_piece(&m, "x", 4);
    put_piece(&m, "y", 5);
    put_bytes(&m, "\x12\x03\x01\x02\x03", 5);                          /* field 2, bytes */
    put_bytes(&m, "\x29\x01\x02\x03\x04\x05\x06\x07\x08\x30\x7f", 11); /* 64 bits, a number */
    return m;
}

static void test_types(void **state)
{
    static const struct {
        const char *text;
        bool special;
    } want[] = {{"<unk>", true}, {"<s>", true}, {" Hi ", false}, {"\xc3", false},
                {"\xa9", false}, {"", false},   {"x", false},    {"y", false}};
    struct model m = small();
    struct mt_tokenizer *t;
    struct mt_detok d = {0};
    struct mt_err e = {0};
    char out[64];
    int32_t *ids;
    size_t len, n;

    (void)state;
    if (open_model(&t, &m, &e) < 0)
        fail_msg("%s", e.text);
    assert_int_equal(mt_tokenizer_size(t), MT_COUNT(want));
    for (size_t i = 0; i < MT_COUNT(want); i++) {
        const char *text = mt_tokenizer_bytes(t, (int32_t)i, &len);
        assert_int_equal(len, strlen(want[i].text));
        assert_memory_equal(text, want[i].text, len);
        assert_int_equal(mt_tokenizer_is_special(t, (int32_t)i), want[i].special);
    }
    /* A character out of two byte pieces is whole with the second. */
    assert_int_equal(mt_detok_push(&d, t, 3, false, out, sizeof(out)), 0);
    assert_int_equal(mt_detok_push(&d, t, 4, false, out, sizeof(out)), 2);
    assert_string_equal(out, "\xc3\xa9");
    assert_int_equal(mt_tokenizer_encode(t, "Hi", 2, true, &ids, &n, &e), -ENOTSUP);
    assert_non_null(strstr(e.text, "SentencePiece"));
    mt_tokenizer_free(&t);
}

static void refused(const struct model *m, const char *word)
{
    struct mt_tokenizer *t;
    struct mt_err e = {0};

    assert_int_equal(open_model(&t, m, &e), -EPROTO);
    assert_null(t);
    if (!strstr(e.text, word) || !strstr(e.text, "tokenizer_spm_32k_3.model"))
        fail_msg("'%s' lacks '%s' or the file", e.text, word);
}

static void test_refused(void **state)
{
    struct model m = {.n = 0};

    (void)state;
    refused(&m, "no pieces");
    put_bytes(&m, "\x10\x01", 2);
    refused(&m, "no pieces");
    put_piece(&m, "<0x4g>", 6);
    refused(&m, "piece 0 at byte 2");
    m.n = 0;
    put_piece(&m, "a", 0);
    put_piece(&m, "b", 7);
    refused(&m, "piece 1 at byte 10");
    m.n = 0;
    put_bytes(&m, "\x0b\x01", 2); /* a group: a kind of field that isn't written any more */
    refused(&m, "byte 0");
    m.n = 0;
    put_bytes(&m, "\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11);
    refused(&m, "byte 0");
    m.n = 0;
    put_bytes(&m, "\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 12);
    refused(&m, "byte 0");
}

/* Cut off anywhere, or with any one bit turned: refused, or other pieces; never a crash. */
static void test_broken(void **state)
{
    struct model whole = small(), m;
    struct mt_tokenizer *t;

    (void)state;
    for (size_t cut = 0; cut < whole.n; cut++) {
        struct mt_err e = {0};
        m = whole;
        m.n = cut;
        int rc = open_model(&t, &m, &e);
        assert_true(rc == 0 || (rc == -EPROTO && e.text[0]));
        mt_tokenizer_free(&t);
    }
    for (size_t bit = 0; bit < 8 * whole.n; bit++) {
        struct mt_err e = {0};
        m = whole;
        m.data[bit / 8] ^= (unsigned char)(1 << bit % 8);
        int rc = open_model(&t, &m, &e);
        assert_true(rc == 0 || (rc == -EPROTO && e.text[0]));
        mt_tokenizer_free(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_broken),
    };

    return cmocka_run_group_tests_name("sentencepiece", tests, NULL, NULL);
}
