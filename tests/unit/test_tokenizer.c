/*
 * test_tokenizer.c: encoding against the values of the tokenizers library (tests/golden), then our
 * own cases: loaders and what they refuse, added tokens, normalisation, long and hostile text, text
 * out.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "model/tokenizer.h"
#include "util.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static char dir[32];

static int make_dir(void **state)
{
    (void)state;
    return util_dir_make(dir);
}

static int remove_dir(void **state)
{
    (void)state;
    return util_dir_remove(dir);
}

static void put(const char *name, const char *text)
{
    util_put(dir, name, text, strlen(text));
}

/* ---- a small tokenizer made here ---- */

#define BYTES 256 /* ids 0..255 are the bytes in the released order; then come these */
static const char *const merges[][2] = {
    {"h", "e"}, {"l", "l"},   {"he", "ll"}, {"hell", "o"},
    {"a", "a"}, {"aa", "aa"}, {"1", "2"},   {"\xc4\xa0", "h"}, /* Ġ is a space */
};
enum { HE = BYTES, LL, HELL, HELLO, AA, AAAA, ONE_TWO, SPACE_H, N_VOCAB };
enum { END = 300, TOOL, LONG, STRIP, NORMAL };

static json_t *make_vocab(void)
{
    json_t *v = json_object();

    for (int i = 0; i < 256; i++) {
        int c = mt_byte_char(mt_byte_of_id(i));
        char text[3] = {(char)c, 0, 0};
        if (c >= 0x80) {
            text[0] = (char)(0xc0 | c >> 6);
            text[1] = (char)(0x80 | (c & 0x3f));
        }
        json_object_set_new(v, text, json_integer(i));
    }
    for (size_t i = 0; i < MT_COUNT(merges); i++) {
        char text[40];
        snprintf(text, sizeof(text), "%s%s", merges[i][0], merges[i][1]);
        json_object_set_new(v, text, json_integer(BYTES + (int)i));
    }
    assert_int_equal(json_object_size(v), N_VOCAB);
    return v;
}

static json_t *make_added(void)
{
    return json_pack(
        "[{s:i s:s s:b} {s:i s:s s:b} {s:i s:s s:b} {s:i s:s s:b s:b s:b} {s:i s:s s:b}]", "id",
        END, "content", "<|end|>", "special", 1, "id", TOOL, "content", "<tool>", "special", 0,
        "id", LONG, "content", "<|end|>>", "special", 1, "id", STRIP, "content", "<s>", "special",
        1, "lstrip", 1, "rstrip", 1, "id", NORMAL, "content", "caf\xc3\xa9!", "normalized", 1);
}

static json_t *make_root(void)
{
    json_t *list = json_array();

    for (size_t i = 0; i < MT_COUNT(merges); i++) { /* both spellings of a merge */
        json_array_append_new(list, i & 1 ? json_pack("[ss]", merges[i][0], merges[i][1])
                                          : json_sprintf("%s %s", merges[i][0], merges[i][1]));
    }
    return json_pack(
        "{s:o s:{s:s} s:{s:s s:[{s:s s:{s:s} s:s s:b} {s:s s:b s:b}]} s:{s:s s:o s:o}}",
        "added_tokens", make_added(), "normalizer", "type", "NFC", "pre_tokenizer", "type",
        "Sequence", "pretokenizers", "type", "Split", "pattern", "Regex", mt_split_qwen2,
        "behavior", "Isolated", "invert", 0, "type", "ByteLevel", "add_prefix_space", 0,
        "use_regex", 0, "model", "type", "BPE", "vocab", make_vocab(), "merges", list);
}

static void put_json(const char *name, json_t *j)
{
    char *text = json_dumps(j, JSON_COMPACT);
    assert_non_null(text);
    put(name, text);
    free(text);
    json_decref(j);
}

static struct mt_tokenizer *open_dir(const char *path)
{
    struct mt_tokenizer *t;
    struct mt_err e = {0};

    if (mt_tokenizer_open(&t, path, &e) < 0)
        fail_msg("%s", e.text);
    return t;
}

static struct mt_tokenizer *open_small(void)
{
    put_json("tokenizer.json", make_root());
    return open_dir(dir);
}

/* Encoding gives exactly these ids (ended by -1). */
static void expect(const struct mt_tokenizer *t, bool specials, const char *text, ...)
{
    struct mt_err e = {0};
    int32_t *ids;
    size_t n, i = 0;
    va_list ap;

    if (mt_tokenizer_encode(t, text, strlen(text), specials, &ids, &n, &e) < 0)
        fail_msg("'%s': %s", text, e.text);
    va_start(ap, text);
    for (int want; (want = va_arg(ap, int)) >= 0; i++) {
        if (i >= n || ids[i] != want)
            fail_msg("'%s': id %zu is %d (expected %d)", text, i, i < n ? ids[i] : -1, want);
    }
    va_end(ap);
    if (i != n)
        fail_msg("'%s': %zu ids (expected %zu)", text, n, i);
    free(ids);
}

/* The id of one byte in the released order. */
static int b(const struct mt_tokenizer *t, int byte)
{
    return t->byte_ids[byte];
}

static void test_merging(void **state)
{
    (void)state;
    struct mt_tokenizer *t = open_small();

    assert_int_equal(mt_tokenizer_size(t), NORMAL + 1);
    assert_int_equal(b(t, '!'), 0);
    assert_int_equal(b(t, ' '), 220);
    expect(t, true, "", -1);
    expect(t, true, "hello", HELLO, -1);
    expect(t, true, "hell", HELL, -1);
    expect(t, true, "ell", b(t, 'e'), LL, -1);
    expect(t, true, " hello", b(t, ' '), HELLO, -1); /* "he" comes before " h" */
    expect(t, true, " ha", SPACE_H, b(t, 'a'), -1);
    expect(t, true, "aaa", AA, b(t, 'a'), -1); /* leftmost first */
    expect(t, true, "aaaaaaa", AAAA, AA, b(t, 'a'), -1);
    expect(t, true, "12", b(t, '1'), b(t, '2'), -1); /* digits are words of their own */
    expect(t, true, "a aa", b(t, 'a'), b(t, ' '), AA, -1);
    expect(t, true, "\xe2\x82\xac", b(t, 0xe2), b(t, 0x82), b(t, 0xac), -1);
    mt_tokenizer_free(&t);
    assert_null(t);
}

static void test_added_tokens(void **state)
{
    (void)state;
    struct mt_tokenizer *t = open_small();

    expect(t, true, "<|end|>", END, -1);
    expect(t, true, "<|end|>>>", LONG, b(t, '>'), -1); /* the longest one */
    expect(t, true, "aa<|end|>aa", AA, END, AA, -1);
    expect(t, true, "a<|end|>a", b(t, 'a'), END, b(t, 'a'), -1);
    expect(t, true, "<|<|end|>", b(t, '<'), b(t, '|'), END, -1);
    expect(t, true, "<|en", b(t, '<'), b(t, '|'), b(t, 'e'), b(t, 'n'), -1);
    mt_tokenizer_free(&t);
}

static void test_added_flags(void **state)
{
    (void)state;
    struct mt_tokenizer *t = open_small();

    /* Text of special tokens is ordinary on request; other added tokens stay tokens. */
    expect(t, false, "<s>", b(t, '<'), b(t, 's'), b(t, '>'), -1);
    expect(t, false, "<tool>", TOOL, -1);
    expect(t, true, "a <s>\n b", b(t, 'a'), STRIP, b(t, 'b'), -1);
    /* A normalized one is found in text that is not yet NFC. */
    expect(t, true, "cafe\xcc\x81!", NORMAL, -1);
    expect(t, true, "caf\xc3\xa9!", NORMAL, -1);

    assert_int_equal(mt_tokenizer_special(t, "<|end|>"), END);
    assert_int_equal(mt_tokenizer_special(t, "<tool>"), TOOL);
    assert_int_equal(mt_tokenizer_special(t, "hello"), -1);
    assert_true(mt_tokenizer_is_special(t, END));
    assert_false(mt_tokenizer_is_special(t, TOOL));
    assert_false(mt_tokenizer_is_special(t, HELLO));
    assert_false(mt_tokenizer_is_special(t, -1));
    assert_false(mt_tokenizer_is_special(t, NORMAL + 1));
    mt_tokenizer_free(&t);
}

static void test_text_of_ids(void **state)
{
    (void)state;
    struct mt_tokenizer *t = open_small();
    size_t n;

    assert_memory_equal(mt_tokenizer_bytes(t, SPACE_H, &n), " h", 2);
    assert_int_equal(n, 2);
    assert_memory_equal(mt_tokenizer_bytes(t, END, &n), "<|end|>", 7);
    assert_int_equal(n, 7);
    mt_tokenizer_bytes(t, N_VOCAB + 1, &n); /* a hole */
    assert_int_equal(n, 0);
    mt_tokenizer_bytes(t, 1 << 30, &n);
    assert_int_equal(n, 0);
    mt_tokenizer_bytes(t, -1, &n);
    assert_int_equal(n, 0);
    for (int i = 0; i < 256; i++) {
        const char *s = mt_tokenizer_bytes(t, i, &n);
        assert_int_equal(n, 1);
        assert_int_equal(b(t, (unsigned char)*s), i);
    }
    mt_tokenizer_free(&t);
}

static void test_nfc(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"e\xcc\x81", "\xc3\xa9"},
        {"\xe2\x84\xab", "\xc3\x85"},                             /* ANGSTROM SIGN */
        {"\xe1\x84\x92\xe1\x85\xa1\xe1\x86\xab", "\xed\x95\x9c"}, /* Hangul */
        {"q\xcc\x87\xcc\xa3", "q\xcc\xa3\xcc\x87"},               /* order of marks */
        {"\xe0\xa5\x98", "\xe0\xa4\x95\xe0\xa4\xbc"},             /* excluded from composition */
        {"\xef\xac\x81", "\xef\xac\x81"},                         /* compatibility stays */
    };
    for (size_t i = 0; i < MT_COUNT(cases); i++) {
        char *out;
        size_t n;
        assert_int_equal(mt_nfc(cases[i][0], strlen(cases[i][0]), &out, &n), 0);
        const char *got = out ? out : cases[i][0];
        assert_int_equal(n, strlen(cases[i][1]));
        assert_memory_equal(got, cases[i][1], n);
        free(out);
    }
}

static double now_s(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

/*
 * A megabyte without a chance to split, of spaces, and of marks that are out of order: each was
 * quadratic in some implementation. The bound is far above what is needed (sanitizers, a busy
 * machine), and far below what quadratic time would take (hours).
 */
static void test_long_text(void **state)
{
    (void)state;
    struct mt_tokenizer *t = open_small();
    const size_t n = 1 << 20;
    char *s = malloc(n);
    int32_t *ids;
    size_t count;
    double start = now_s();

    assert_non_null(s);
    memset(s, 'a', n);
    assert_int_equal(mt_tokenizer_encode(t, s, n, true, &ids, &count, NULL), 0);
    assert_int_equal(count, n / 4);
    assert_int_equal(ids[0], AAAA);
    free(ids);
    memset(s, ' ', n);
    s[n - 1] = 'x';
    assert_int_equal(mt_tokenizer_encode(t, s, n, true, &ids, &count, NULL), 0);
    assert_int_equal(count, n);
    free(ids);
    for (size_t i = 0; i < n; i += 4)
        memcpy(s + i, "\xcc\x87\xcc\xa3", 4);
    assert_int_equal(mt_tokenizer_encode(t, s, n, true, &ids, &count, NULL), 0);
    assert_int_equal(count, n);
    free(ids);
    for (size_t i = 0; i < n; i++)
        s[i] = "<|end"[i % 5];
    assert_int_equal(mt_tokenizer_encode(t, s, n, true, &ids, &count, NULL), 0);
    free(ids);
    free(s);
    assert_true(now_s() - start < 60);
    mt_tokenizer_free(&t);
}

static void test_bad_text(void **state)
{
    (void)state;
    static const char *const bad[] = {"a\x80", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80",
                                      "ab\xe2\x82"};
    struct mt_tokenizer *t = open_small();
    int32_t *ids;
    size_t n;

    for (size_t i = 0; i < MT_COUNT(bad); i++) {
        struct mt_err e = {0};
        assert_int_equal(mt_tokenizer_encode(t, bad[i], strlen(bad[i]), true, &ids, &n, &e),
                         -EILSEQ);
        assert_null(ids);
        assert_non_null(strstr(e.text, "not valid UTF-8 at byte"));
    }
    assert_int_equal(mt_tokenizer_encode(t, "a\0a", 3, true, &ids, &n, NULL), 0);
    assert_int_equal(n, 3);
    free(ids);
    mt_tokenizer_free(&t);
}

/* ---- the pattern ---- */

static void test_split_spaces(void **state)
{
    (void)state;
    /* U+180E is no space for Unicode (any more), U+0085 and U+3000 are. */
    static const struct {
        const char *pattern, *text;
        int64_t first;
    } cases[] = {
        {"\\s+|\\S+", "\xe1\xa0\x8e x", 3},
        {"\\s+|\\S+", "\xc2\x85\xe3\x80\x80x", 5},
        {"[^\\s]+|\\s+", "\xe1\xa0\x8e x", 3},
        {"[\\s]+", "\t\n\v\f\r x", 6},
        {"[]\\s]+", "] ]x", 3},
        {"x+", "aaxx", 2}, /* what does not match is a piece, too */
        {"x*", "aa", 2},
    };
    for (size_t i = 0; i < MT_COUNT(cases); i++) {
        struct mt_split *s;
        struct mt_split_run *run;
        assert_int_equal(mt_split_new(&s, cases[i].pattern, "here", NULL), 0);
        assert_int_equal(mt_split_begin(s, &run), 0);
        assert_int_equal(mt_split_next(run, cases[i].text, strlen(cases[i].text), 0),
                         cases[i].first);
        mt_split_end(&run);
        mt_split_free(&s);
    }
}

static void test_split_hostile(void **state)
{
    (void)state;
    struct mt_err e = {0};
    struct mt_split *s;
    struct mt_split_run *run;
    char text[4000];

    assert_int_equal(mt_split_new(&s, "(a", "here", &e), -EPROTO);
    assert_non_null(strstr(e.text, "here: pattern '(a'"));
    assert_null(s);
    memset(text, 'a', sizeof(text));
    assert_int_equal(mt_split_new(&s, "(?:a|aa)+[bc]", "here", NULL), 0);
    assert_int_equal(mt_split_begin(s, &run), 0);
    assert_int_equal(mt_split_next(run, text, sizeof(text), 0), -E2BIG);
    mt_split_end(&run);
    mt_split_free(&s);
}

/* ---- refusals ---- */

static void expect_refused(int code, const char *words)
{
    struct mt_tokenizer *t;
    struct mt_err e = {0};

    assert_int_equal(mt_tokenizer_open(&t, dir, &e), code);
    assert_null(t);
    assert_null(strchr(e.text, '\n'));
    if (!strstr(e.text, words))
        fail_msg("'%s' lacks '%s'", e.text, words);
}

/* The good tokenizer.json, with what `path` (members and indices) leads to replaced by JSON text.
 */
static void put_changed(const char *path, const char *value)
{
    json_t *root = make_root(), *at = root,
           *v = value ? json_loads(value, JSON_DECODE_ANY, NULL) : NULL;
    char copy[100];
    char *save, *key, *next;

    snprintf(copy, sizeof(copy), "%s", path);
    for (key = strtok_r(copy, "/", &save); (next = strtok_r(NULL, "/", &save)); key = next)
        at = json_is_array(at) ? json_array_get(at, (size_t)atoi(key)) : json_object_get(at, key);
    assert_non_null(at);
    if (!v)
        assert_int_equal(json_object_del(at, key), 0);
    else if (json_is_array(at))
        assert_int_equal(json_array_set_new(at, (size_t)atoi(key), v), 0);
    else
        assert_int_equal(json_object_set_new(at, key, v), 0);
    put_json("tokenizer.json", root);
}

static void test_refused_json(void **state)
{
    (void)state;
    static const struct {
        const char *path, *value;
        int code;
        const char *words;
    } cases[] = {
        {"model", NULL, -EPROTO, "tokenizer.json: model is missing"},
        {"model/type", "\"Unigram\"", -ENOTSUP, "model.type 'Unigram' is not supported"},
        {"model/dropout", "0.1", -ENOTSUP, "dropout"},
        {"model/byte_fallback", "true", -ENOTSUP, "byte_fallback"},
        {"model/vocab", NULL, -EPROTO, "model.vocab is missing"},
        {"model/vocab", "{}", -EPROTO, "model.vocab is missing, empty"},
        {"model/vocab/he", "-1", -EPROTO, "model.vocab['he'] is not an id (expected 0..16777215)"},
        {"model/vocab/he", "16777216", -EPROTO, "model.vocab['he'] is not an id"},
        {"model/vocab/he", "1.5", -EPROTO, "model.vocab['he'] is not an id"},
        {"model/vocab/he", "\"7\"", -EPROTO, "model.vocab['he'] is not an id"},
        {"model/vocab/he", "16777215", -EPROTO, "tokens with ids up to 16777215"},
        {"model/vocab/zz", "256", -EPROTO, "model.vocab['zz']: id 256 belongs to another token"},
        {"model/vocab/!", NULL, -EPROTO, "model.vocab has no token for byte 0x21"},
        {"model/vocab/ll", NULL, -EPROTO, "model.merges[1]: the union 'll' is not in"},
        {"model/merges", NULL, -EPROTO, "model.merges is missing"},
        {"model/merges/0", "\"xy z\"", -EPROTO, "model.merges[0]: a part of 'xyz' is not in"},
        {"model/merges/0", "\"h\"", -EPROTO, "model.merges[0]: not two tokens"},
        {"model/merges/0", "\"h e l\"", -EPROTO, "model.merges[0]: not two tokens"},
        {"model/merges/1", "[\"h\"]", -EPROTO, "model.merges[1]: not two tokens"},
        {"model/merges/1", "[\"h\",\"e\",\"l\"]", -EPROTO, "model.merges[1]: not two tokens"},
        {"model/merges/1", "7", -EPROTO, "model.merges[1]: not two tokens"},
        {"added_tokens", "{}", -EPROTO, "added_tokens is not an array"},
        {"added_tokens/1", "{}", -EPROTO, "added_tokens[1]: id"},
        {"added_tokens/1/id", "99999999", -EPROTO, "added_tokens[1]: id"},
        {"added_tokens/1/id", "300", -EPROTO, "added token '<tool>': id 300"},
        {"added_tokens/1/id", "257", -EPROTO, "model.vocab['ll']: id 257 belongs to another"},
        {"added_tokens/1/content", "\"\"", -EPROTO, "added_tokens[1]: content"},
        {"added_tokens/1/content", "\"he\"", -EPROTO, "added token 'he': id 301"},
        {"added_tokens/1/content", "\"<|end|>\"", -EPROTO, "'<|end|>' comes twice"},
        {"added_tokens/1/special", "1", -EPROTO, "special is neither true nor false"},
        {"added_tokens/1/single_word", "true", -ENOTSUP, "single_word"},
        {"normalizer/type", "\"NFKC\"", -ENOTSUP, "normalizer 'NFKC'"},
        {"pre_tokenizer", NULL, -ENOTSUP, "pre_tokenizer"},
        {"pre_tokenizer/pretokenizers/0/type", "\"Digits\"", -ENOTSUP, "Sequence other than"},
        {"pre_tokenizer/pretokenizers/0/pattern/Regex", "\"(\"", -EPROTO, "pattern '('"},
        {"pre_tokenizer/pretokenizers/0/behavior", "\"Removed\"", -ENOTSUP, "Isolated"},
        {"pre_tokenizer/pretokenizers/1/add_prefix_space", "true", -ENOTSUP, "add_prefix_space"},
        {"pre_tokenizer/pretokenizers/1/use_regex", "true", -ENOTSUP, "use_regex"},
        {"decoder", "{\"type\":\"WordPiece\"}", -ENOTSUP, "decoder 'WordPiece'"},
    };

    for (size_t i = 0; i < MT_COUNT(cases); i++) {
        put_changed(cases[i].path, cases[i].value);
        expect_refused(cases[i].code, cases[i].words);
    }
    put("tokenizer.json", "");
    expect_refused(-EPROTO, "not valid JSON");
    put("tokenizer.json", "{\"model\":1,\"model\":2}");
    expect_refused(-EPROTO, "not valid JSON");
}

static void test_other_forms(void **state)
{
    (void)state;
    struct mt_tokenizer *t;

    put_changed("normalizer", "null");
    t = open_dir(dir);
    expect(t, true, "e\xcc\x81", b(t, 'e'), b(t, 0xcc), b(t, 0x81), -1);
    mt_tokenizer_free(&t);
    put_changed("normalizer", "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"}]}");
    t = open_dir(dir);
    expect(t, true, "e\xcc\x81", b(t, 0xc3), b(t, 0xa9), -1);
    mt_tokenizer_free(&t);
    put_changed("pre_tokenizer", "{\"type\":\"ByteLevel\",\"add_prefix_space\":false}");
    t = open_dir(dir);
    expect(t, true, "12", ONE_TWO, -1); /* GPT-2 keeps digits together */
    mt_tokenizer_free(&t);
    /* An added token may stand in the vocabulary, too. */
    put_changed("model/vocab/<tool>", "301");
    t = open_dir(dir);
    expect(t, true, "<tool>", TOOL, -1);
    mt_tokenizer_free(&t);
}

static void test_vocab_and_merges(void **state)
{
    (void)state;
    char text[400] = "#version: 0.2\n";
    struct mt_tokenizer *t;

    expect_refused(-ENOENT, "holds neither tokenizer.json nor vocab.json");
    put_json("vocab.json", make_vocab());
    expect_refused(-ENOENT, "merges.txt");
    for (size_t i = 0; i < MT_COUNT(merges); i++)
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s %s\r\n", merges[i][0],
                 merges[i][1]);
    put("merges.txt", text);
    t = open_dir(dir);
    expect(t, true, "hello12<|end|>", HELLO, b(t, '1'), b(t, '2'), b(t, '<'), b(t, '|'), b(t, 'e'),
           b(t, 'n'), b(t, 'd'), b(t, '|'), b(t, '>'), -1);
    expect(t, true, "e\xcc\x81", b(t, 0xc3), b(t, 0xa9), -1);
    mt_tokenizer_free(&t);

    put("added_tokens.json", "{\"<|end|>\":300,\"<tool>\":301}");
    t = open_dir(dir);
    expect(t, true, "<tool><|end|>", TOOL, END, -1);
    assert_true(mt_tokenizer_is_special(t, TOOL));
    mt_tokenizer_free(&t);
    put("tokenizer_config.json", "{\"added_tokens_decoder\":{\"301\":{\"content\":\"<tool>\","
                                 "\"special\":false}},\"chat_template\":\"x\"}");
    t = open_dir(dir);
    expect(t, true, "<tool><|end|>", TOOL, END, -1);
    assert_false(mt_tokenizer_is_special(t, TOOL));
    mt_tokenizer_free(&t);

    put("tokenizer_config.json", "{\"added_tokens_decoder\":{\"3x\":{\"content\":\"a\"}}}");
    expect_refused(-EPROTO, "tokenizer_config.json: added_tokens_decoder['3x'] is not an id");
    put("tokenizer_config.json", "{}");
    put("added_tokens.json", "{\"<|end|>\":-1}");
    expect_refused(-EPROTO, "added_tokens.json: '<|end|>' is not an id");
    put("added_tokens.json", "[]");
    expect_refused(-EPROTO, "added_tokens.json: not a JSON object");
    put("added_tokens.json", "{}");
    put("merges.txt", "#version: 0.2\nh e\n\nh q\n");
    expect_refused(-EPROTO, "merges.txt: line 4: the union 'hq' is not in the vocabulary");
    put("merges.txt", "h e l\n");
    expect_refused(-EPROTO, "merges.txt: line 1: not two tokens");
    put("merges.txt", "h\n");
    expect_refused(-EPROTO, "merges.txt: line 1: not two tokens");
}

/* ---- synthetic ---- */

static void test_synth(void **state)
{
    (void)state;
    const struct mt_special specials[] = {{"<|end|>", 260}, {"<|far|>", 5000}, {"<|AUDIO|>", 999}};
    struct mt_tokenizer *t;
    struct mt_err e = {0};
    size_t n;

    assert_int_equal(mt_tokenizer_synth(&t, 1000, specials, 3, &e), 0);
    assert_int_equal(mt_tokenizer_size(t), 5001);
    assert_int_equal(mt_tokenizer_special(t, "<|far|>"), 5000);
    assert_true(mt_tokenizer_is_special(t, 260));
    expect(t, true, "a <|end|>\xc3\xa9", b(t, 'a'), 220, 260, b(t, 0xc3), b(t, 0xa9), -1);
    expect(t, false, "<|", b(t, '<'), b(t, '|'), -1);

    char seen[1000][24] = {{0}};
    for (int i = 256; i < 1000; i++) {
        const char *s = mt_tokenizer_bytes(t, i, &n);
        assert_true(n >= 3 && n < 24);
        memcpy(seen[i], s, n);
        for (int k = 256; k < i; k++)
            assert_string_not_equal(seen[k], seen[i]);
        if (!mt_tokenizer_is_special(t, i)) {
            assert_int_equal(s[0], ' ');
            assert_int_equal(strspn(seen[i] + 1, "abcdefghijklmnopqrstuvwxyz"), n - 1);
        }
    }
    mt_tokenizer_bytes(t, 3000, &n);
    assert_int_equal(n, 0);
    mt_tokenizer_free(&t);

    assert_int_equal(mt_tokenizer_synth(&t, MT_TOKEN_IDS, NULL, 0, &e), 0);
    mt_tokenizer_bytes(t, MT_TOKEN_IDS - 1, &n);
    assert_int_equal(n, 9);
    mt_tokenizer_free(&t);
    assert_int_equal(mt_tokenizer_synth(&t, 255, NULL, 0, &e), -EINVAL);
    assert_int_equal(mt_tokenizer_synth(&t, 300, &(struct mt_special){"x", 100}, 1, NULL), -EINVAL);
    assert_int_equal(
        mt_tokenizer_synth(&t, 300, (struct mt_special[]){{"x", 260}, {"y", 260}}, 2, NULL),
        -EEXIST);
    assert_int_equal(
        mt_tokenizer_synth(&t, 300, (struct mt_special[]){{"x", 260}, {"x", 261}}, 2, NULL),
        -EEXIST);
    assert_null(t);
}

/* ---- text out ---- */

/* Bytes as tokens of the synthetic tokenizer, with replacements as Python's decoder makes them. */
static const struct {
    const char *in, *out;
} decoded[] = {
    {"plain", "plain"},
    {"\xc3\xa9\xe2\x82\xac\xf0\x9f\xa6\x99", "\xc3\xa9\xe2\x82\xac\xf0\x9f\xa6\x99"},
    {"\x80", "\xef\xbf\xbd"},
    {"a\xffz", "a\xef\xbf\xbdz"},
    {"\xc3", "\xef\xbf\xbd"},
    {"\xc3(", "\xef\xbf\xbd("},
    {"\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd"},
    {"\xe2\x82", "\xef\xbf\xbd"},
    {"\xe2\x82z", "\xef\xbf\xbdz"},
    {"\xe2\x82\xe2\x82\xac", "\xef\xbf\xbd\xe2\x82\xac"},
    {"\xe0\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
    {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
    {"\xf0\x9f\xa6", "\xef\xbf\xbd"},
    {"\xf0\x9f\xa6\xf0\x9f\xa6\x99", "\xef\xbf\xbd\xf0\x9f\xa6\x99"},
    {"\xf0\x80\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
    {"\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
    {"\xf4\x8f\xbf\xbf", "\xf4\x8f\xbf\xbf"},
    {"\xf5\x80", "\xef\xbf\xbd\xef\xbf\xbd"},
    {"\xf1\x80\x80\xc3\xa9", "\xef\xbf\xbd\xc3\xa9"},
};

/* Detokenise bytes[0, n), as single bytes. Returns the length. */
static size_t decode(const struct mt_tokenizer *t, const char *bytes, size_t n, char *out)
{
    struct mt_detok d = {0};
    size_t len = 0;
    int rc;

    for (size_t i = 0; i < n; i++) {
        rc = mt_detok_push(&d, t, b(t, (unsigned char)bytes[i]), false, out + len, 3 * 4 + 1);
        assert_true(rc >= 0 && out[len + (size_t)rc] == 0 && d.n <= 3);
        len += (size_t)rc;
    }
    rc = mt_detok_flush(&d, out + len, 4);
    assert_true(rc >= 0 && d.n == 0);
    return len + (size_t)rc;
}

static void test_detok(void **state)
{
    (void)state;
    struct mt_tokenizer *t;
    char out[200];

    assert_int_equal(mt_tokenizer_synth(&t, 256, NULL, 0, NULL), 0);
    for (size_t i = 0; i < MT_COUNT(decoded); i++) {
        size_t n = decode(t, decoded[i].in, strlen(decoded[i].in), out);
        assert_int_equal(n, strlen(decoded[i].out));
        assert_memory_equal(out, decoded[i].out, n);
    }
    mt_tokenizer_free(&t);
}

/* A record's text ends at a byte 0; what is written with its length need not lose one. */
static void test_detok_zero(void **state)
{
    (void)state;
    struct mt_detok d = {0}, keep = {.zeros = true};
    struct mt_tokenizer *t;
    char out[64];

    assert_int_equal(mt_tokenizer_synth(&t, 256, NULL, 0, NULL), 0);
    assert_int_equal(mt_detok_push(&d, t, b(t, 0), false, out, sizeof(out)), 3);
    assert_string_equal(out, "\xef\xbf\xbd");
    assert_int_equal(mt_detok_push(&d, t, b(t, 0xc3), false, out, sizeof(out)), 0);
    assert_int_equal(mt_detok_push(&d, t, b(t, 0), false, out, sizeof(out)), 6);
    assert_string_equal(out, "\xef\xbf\xbd\xef\xbf\xbd");
    assert_int_equal(mt_detok_push(&keep, t, b(t, 0), false, out, sizeof(out)), 1);
    assert_memory_equal(out, "\0", 2);
    mt_tokenizer_free(&t);
}

static void test_detok_specials(void **state)
{
    (void)state;
    const struct mt_special special = {"<|e|>", 256};
    struct mt_tokenizer *t;
    struct mt_detok d = {0};
    char out[64];

    assert_int_equal(mt_tokenizer_synth(&t, 257, &special, 1, NULL), 0);
    /* A special token that prints nothing doesn't tear a character apart. */
    assert_int_equal(mt_detok_push(&d, t, b(t, 0xc3), false, out, sizeof(out)), 0);
    assert_int_equal(mt_detok_push(&d, t, 256, false, out, sizeof(out)), 0);
    assert_int_equal(mt_detok_push(&d, t, b(t, 0xa9), false, out, sizeof(out)), 2);
    assert_string_equal(out, "\xc3\xa9");
    assert_int_equal(mt_detok_push(&d, t, b(t, 0xc3), true, out, sizeof(out)), 0);
    assert_int_equal(mt_detok_push(&d, t, 256, true, out, sizeof(out)), 8);
    assert_string_equal(out, "\xef\xbf\xbd<|e|>");
    /* Too little room changes nothing. */
    assert_int_equal(mt_detok_push(&d, t, 256, true, out, 15), -ENOSPC);
    assert_int_equal(mt_detok_push(&d, t, 256, true, out, 16), 5);
    assert_int_equal(mt_detok_push(&d, t, b(t, 0xc3), true, out, sizeof(out)), 0);
    assert_int_equal(mt_detok_flush(&d, out, 3), -ENOSPC);
    assert_int_equal(mt_detok_flush(&d, out, 4), 3);
    assert_int_equal(mt_detok_flush(&d, out, 1), 0);
    mt_tokenizer_free(&t);
}

/*
 * Random bytes cut into random tokens print the same as byte by byte. Tokens of several bytes come
 * from a vocabulary made for it.
 */
static void test_detok_splits(void **state)
{
    (void)state;
    static const unsigned char likely[] = {0x41, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc3,
                                           0xe0, 0xe2, 0xed, 0xf0, 0xf1, 0xf4, 0xff, 0xc0};
    struct mt_tokenizer *t, *whole;
    uint64_t seed = 1;

    assert_int_equal(mt_tokenizer_synth(&t, 256, NULL, 0, NULL), 0);
    for (int round = 0; round < 2000; round++) {
        char bytes[48], want[3 * 48 + 8], got[3 * 48 + 8];
        size_t n = mt_mix64(seed++) % sizeof(bytes), want_len, len = 0;
        struct mt_detok d = {0};
        int rc, id = 0;

        for (size_t i = 0; i < n; i++)
            bytes[i] = (char)likely[mt_mix64(seed++) % sizeof(likely)];
        want_len = decode(t, bytes, n, want);

        assert_int_equal(mt_tokenizer_new(&whole, 64, sizeof(bytes)), 0);
        for (size_t at = 0; at < n; id++) {
            size_t k = mt_mix64(seed++) % 6;
            k = k < n - at ? k : n - at;
            assert_int_equal(mt_tokenizer_put(whole, id, bytes + at, k), 0);
            if (id == 63)
                break;
            at += k;
        }
        size_t used = 0;
        for (int i = 0; i < id; i++) {
            used += whole->tokens[i].len;
            rc = mt_detok_push(&d, whole, i, false, got + len, sizeof(got) - len);
            assert_true(rc >= 0);
            len += (size_t)rc;
        }
        mt_tokenizer_free(&whole);
        if (used < n)
            continue; /* 64 tokens were too few: rare */
        rc = mt_detok_flush(&d, got + len, sizeof(got) - len);
        assert_true(rc >= 0);
        assert_int_equal(len + (size_t)rc, want_len);
        assert_memory_equal(got, want, want_len);
    }
    mt_tokenizer_free(&t);
}

/* ---- values of the tokenizers library ---- */

static void check_golden(const char *name)
{
    char path[400];
    json_error_t je;
    json_t *cases, *c;
    size_t i;

    snprintf(path, sizeof(path), "%s/golden/%s/tokens.json", util_tests(), name);
    if (access(path, F_OK) < 0) {
        print_message("skipped: there is no %s\n", path);
        skip();
    }
    cases = json_load_file(path, 0, &je);
    assert_true(json_array_size(cases) > 10);
    *strrchr(path, '/') = 0;
    struct mt_tokenizer *t = open_dir(path);

    json_array_foreach(cases, i, c)
    {
        const json_t *text = json_object_get(c, "text"), *want = json_object_get(c, "ids");
        struct mt_err e = {0};
        int32_t *ids;
        size_t n;

        assert_true(json_is_string(text) && json_is_array(want));
        if (mt_tokenizer_encode(t, json_string_value(text), json_string_length(text), true, &ids,
                                &n, &e) < 0)
            fail_msg("case %zu '%s': %s", i, json_string_value(text), e.text);
        if (n != json_array_size(want))
            fail_msg("case %zu '%s': %zu ids (expected %zu)", i, json_string_value(text), n,
                     json_array_size(want));
        for (size_t k = 0; k < n; k++) {
            int id = (int)json_integer_value(json_array_get(want, k));
            if (ids[k] != id)
                fail_msg("case %zu '%s': id %zu is %d (expected %d)", i, json_string_value(text), k,
                         ids[k], id);
        }
        free(ids);
    }
    json_decref(cases);
    mt_tokenizer_free(&t);
}

static void test_golden_json(void **state)
{
    (void)state;
    check_golden("omni-a");
}

static void test_golden_vocab(void **state)
{
    (void)state;
    check_golden("omni-b");
}

int main(void)
{
#define FILES(f) cmocka_unit_test_setup_teardown(f, make_dir, remove_dir)
    const struct CMUnitTest tests[] = {
        FILES(test_merging),
        FILES(test_added_tokens),
        FILES(test_added_flags),
        FILES(test_text_of_ids),
        cmocka_unit_test(test_nfc),
        FILES(test_long_text),
        FILES(test_bad_text),
        cmocka_unit_test(test_split_spaces),
        cmocka_unit_test(test_split_hostile),
        FILES(test_refused_json),
        FILES(test_other_forms),
        FILES(test_vocab_and_merges),
        cmocka_unit_test(test_synth),
        cmocka_unit_test(test_detok),
        cmocka_unit_test(test_detok_zero),
        cmocka_unit_test(test_detok_specials),
        cmocka_unit_test(test_detok_splits),
        cmocka_unit_test(test_golden_json),
        cmocka_unit_test(test_golden_vocab),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
