/*
 * fuzz_tokenizer.c: the first byte chooses what the rest is. '{' (and it belongs to it): a
 * tokenizer.json, which opens or is refused with a reason. 'P': behind it a SentencePiece model,
 * the same. Anything else: text for a small tokenizer; its ids must spell the text, and NFC must be
 * stable.
 */
#include "model/tokenizer.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool ok)
{
    if (!ok)
        abort();
}

/* Ids back to text; what was cut or merged must come out as it went in. */
static void check_text(const struct mt_tokenizer *t, const char *text, size_t size)
{
    struct mt_err e = {0};
    int32_t *ids;
    size_t n, at = 0, len;

    if (mt_tokenizer_encode(t, text, size, true, &ids, &n, &e) < 0) {
        require(e.code < 0 && e.text[0]);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        const char *bytes = mt_tokenizer_bytes(t, ids[i], &len);
        require(len > 0 && len <= size - at && memcmp(text + at, bytes, len) == 0);
        at += len;
    }
    require(at == size);
    free(ids);

    char *once, *twice;
    size_t n_once, n_twice;
    require(mt_nfc(text, size, &once, &n_once) == 0);
    require(mt_nfc(once ? once : text, n_once, &twice, &n_twice) == 0);
    require(n_twice == n_once && (!twice || memcmp(twice, once ? once : text, n_once) == 0));
    free(once);
    free(twice);
}

static struct mt_tokenizer *small(void)
{
    static const struct mt_added added[] = {{"<|e|>", 5, 260, true, false, false, false},
                                            {"<|e|>>", 6, 261, true, false, false, false},
                                            {"<t>", 3, 262, false, true, false, false}};
    static const char *const unions[] = {"ab", "abab", "  ", " a"};
    struct mt_tokenizer *t;

    require(mt_tokenizer_new(&t, 263, 1000) == 0 && mt_bpe_new(&t->bpe, 4) == 0);
    for (int i = 0; i < 256; i++) {
        unsigned char b = mt_byte_of_id(i);
        t->byte_ids[b] = i;
        require(mt_tokenizer_put(t, i, &b, 1) == 0);
    }
    for (int i = 0; i < 4; i++)
        require(mt_tokenizer_put(t, 256 + i, unions[i], strlen(unions[i])) == 0);
    mt_bpe_add(t->bpe, t->byte_ids['a'], t->byte_ids['b'], 256);
    mt_bpe_add(t->bpe, 256, 256, 257);
    mt_bpe_add(t->bpe, t->byte_ids[' '], t->byte_ids[' '], 258);
    mt_bpe_add(t->bpe, t->byte_ids[' '], t->byte_ids['a'], 259);
    for (size_t i = 0; i < MT_COUNT(added); i++)
        require(mt_tokenizer_add(t, &added[i]) == 0);
    mt_tokenizer_finish(t);
    require(mt_split_new(&t->split, mt_split_qwen2, "qwen2", NULL) == 0);
    return t;
}

static void check_json(const uint8_t *data, size_t size)
{
    static const char text[] = "Hello 123 w\xc3\xb6rld <|im_end|>\n\n  x";
    char path[64];
    struct mt_tokenizer *t;
    struct mt_err e = {0};
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    int32_t *ids;
    size_t n;

    require(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    if (mt_tokenizer_open_json(&t, path, &e) == 0) {
        if (mt_tokenizer_encode(t, text, sizeof(text) - 1, true, &ids, &n, NULL) == 0) {
            for (size_t i = 0; i < n; i++)
                require(ids[i] >= 0 && ids[i] < mt_tokenizer_size(t));
            free(ids);
        }
        mt_tokenizer_free(&t);
    } else {
        require(e.code < 0 && e.text[0] && !strchr(e.text, '\n'));
    }
    close(fd);
}

static void check_pieces(const uint8_t *data, size_t size)
{
    char path[64];
    struct mt_tokenizer *t;
    struct mt_err e = {0};
    int fd = memfd_create("fuzz", MFD_CLOEXEC);
    size_t len, all = 0;

    require(fd >= 0 && write(fd, data, size) == (ssize_t)size);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    if (mt_tokenizer_open_spm(&t, path, &e) == 0) {
        for (int32_t i = 0; i < mt_tokenizer_size(t); i++) {
            mt_tokenizer_bytes(t, i, &len);
            all += len;
        }
        require(all <= size);
        mt_tokenizer_free(&t);
    } else {
        require(!t && e.code < 0 && e.text[0] && !strchr(e.text, '\n'));
    }
    close(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct mt_tokenizer *t;

    if (size > 0 && data[0] == '{') {
        check_json(data, size);
    } else if (size > 0 && data[0] == 'P') {
        check_pieces(data + 1, size - 1);
    } else if (size > 0) {
        if (!t)
            t = small();
        check_text(t, (const char *)data + 1, size - 1);
    }
    return 0;
}
