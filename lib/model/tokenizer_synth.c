/*
 * tokenizer_synth.c: a tokenizer for models without one: the 256 bytes in the order of the released
 * vocabularies (0 is "!", 220 is a space), then made-up words, so that what a random model says
 * reads like babble. Text is encoded byte by byte.
 */
#include "model/file.h"
#include "model/tokenizer.h"

#include <errno.h>
#include <string.h>

#define WORD_MAX 24

/* Syllables of a consonant and a vowel, as digits of k: distinct for distinct k, short ones first.
 */
static size_t make_word(char out[WORD_MAX], int k)
{
    static const char consonants[] = "tkslmnrpdvbzhg", vowels[] = "aeiou";
    const int n_c = (int)sizeof(consonants) - 1, n_v = (int)sizeof(vowels) - 1, base = n_c * n_v;
    size_t n = 0;

    out[n++] = ' ';
    for (k++; k > 0; k = (k - 1) / base) {
        int digit = (k - 1) % base;
        out[n++] = consonants[digit % n_c];
        out[n++] = vowels[digit / n_c];
    }
    return n;
}

static int fill(struct mt_tokenizer *t, int vocab, const struct mt_special *specials, int n)
{
    char word[WORD_MAX];
    int rc;

    for (int i = 0; i < 256; i++) {
        unsigned char b = mt_byte_of_id(i);
        t->byte_ids[b] = i;
        if ((rc = mt_tokenizer_put(t, i, &b, 1)) < 0)
            return rc;
    }
    for (int i = 0; i < n; i++) {
        struct mt_added a = {.text = specials[i].text,
                             .len = strlen(specials[i].text),
                             .id = specials[i].id,
                             .special = true};
        if (mt_tokenizer_special(t, a.text) >= 0 || t->tokens[a.id].taken)
            return -EEXIST;
        if ((rc = mt_tokenizer_add(t, &a)) < 0)
            return rc;
        mt_tokenizer_finish(t); /* keeps the look-up above right */
    }
    for (int i = 256; i < vocab; i++) {
        if (!t->tokens[i].taken &&
            (rc = mt_tokenizer_put(t, i, word, make_word(word, i - 256))) < 0)
            return rc;
    }
    return 0;
}

int mt_tokenizer_synth(struct mt_tokenizer **out, int vocab, const struct mt_special *specials,
                       int n, struct mt_err *e)
{
    char show[MT_SHOW_MAX];
    size_t text = 256;
    int size = vocab, rc;

    *out = NULL;
    if (vocab < 256 || vocab > MT_TOKEN_IDS)
        return mt_err_set(e, -EINVAL, "synthetic tokenizer: vocabulary of %d (expected 256..%d)",
                          vocab, MT_TOKEN_IDS);
    for (int i = 0; i < n; i++) {
        if (specials[i].id < 256 || specials[i].id >= MT_TOKEN_IDS || !*specials[i].text)
            return mt_err_set(e, -EINVAL,
                              "synthetic tokenizer: special token '%s' at id %d (expected 256..%d)",
                              mt_show(show, specials[i].text), specials[i].id, MT_TOKEN_IDS - 1);
        if (specials[i].id >= size)
            size = specials[i].id + 1;
        text += strlen(specials[i].text);
    }
    rc = mt_tokenizer_new(out, size, text + (size_t)(vocab - 256) * 9); /* " " and 4 syllables */
    if (rc == 0 && (rc = fill(*out, vocab, specials, n)) < 0)
        mt_tokenizer_free(out);
    if (rc < 0)
        return mt_err_set(e, rc, "synthetic tokenizer: %s",
                          rc == -EEXIST ? "two special tokens share a text or an id"
                                        : strerror(-rc));
    return 0;
}
