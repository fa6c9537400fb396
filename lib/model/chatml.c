/*
 * chatml.c: how a call is laid out in ChatML. Turn mode: each frame is a user turn
 * with the audio between its marks, then the assistant's answer. Free mode: after the system text
 * one open assistant turn, with bare audio rows in between.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "model/family.h"

static int encode(const struct mt_tokenizer *t, int32_t **ids, int *n, struct mt_err *e,
                  const char *text, bool specials)
{
    size_t len = 0;
    int rc = mt_tokenizer_encode(t, text, strlen(text), specials, ids, &len, e);

    *n = (int)len;
    return rc;
}

/* The system turn. The caller's text is data: a special token spelled out in it stays text. */
static int encode_open(const struct mt_tokenizer *t, const char *system, const char *tail,
                       struct mt_layout *out, struct mt_err *e)
{
    const char *part[] = {"<|im_start|>system\n", system, "<|im_end|>\n", tail};
    int rc = 0;

    for (size_t i = system && *system ? 0 : 3; i < MT_COUNT(part) && rc == 0; i++) {
        int32_t *ids = NULL;
        int n = 0;
        rc = encode(t, &ids, &n, e, part[i], i != 1);
        int32_t *grown =
            rc < 0 ? NULL
                   : realloc(out->open, ((size_t)out->n_open + (size_t)n + 1) * sizeof(*grown));
        if (grown) {
            memcpy(grown + out->n_open, ids, (size_t)n * sizeof(*ids));
            out->open = grown;
            out->n_open += n;
        } else if (rc == 0) {
            rc = mt_err_set(e, -ENOMEM, "out of memory");
        }
        free(ids);
    }
    return rc;
}

/* A tokenizer without one of the marks would spell it out, and the model would read it as text. */
static int check_marks(const struct mt_tokenizer *t, const struct mt_chatml *c, struct mt_err *e)
{
    const char *const mark[] = {"<|im_start|>", "<|im_end|>", c->audio_bos, c->audio_eos};

    for (size_t i = 0; i < MT_COUNT(mark); i++)
        if (mt_tokenizer_special(t, mark[i]) < 0)
            return mt_err_set(e, -EPROTO, "the tokenizer has no special token '%s'", mark[i]);
    return 0;
}

int mt_chatml_layout(const struct mt_tokenizer *t, const struct mt_chatml *c, enum mt_mode mode,
                     const char *system, struct mt_layout *out, struct mt_err *e)
{
    struct mt_layout l = {0};
    char before[128], after[128];
    int rc = check_marks(t, c, e);

    if (rc < 0)
        return rc;
    if (!system)
        system = c->default_system;
    if (mode == MT_MODE_FREE) {
        rc = encode_open(t, system, "<|im_start|>assistant\n", &l, e);
    } else {
        snprintf(before, sizeof(before), "<|im_start|>user\n%s", c->audio_bos);
        snprintf(after, sizeof(after), "%s<|im_end|>\n<|im_start|>assistant\n", c->audio_eos);
        const char *stops[] = {"<|im_end|>", "<|endoftext|>"};
        for (size_t i = 0; i < MT_COUNT(stops); i++)
            if (mt_tokenizer_special(t, stops[i]) >= 0)
                l.stop[l.n_stop++] = mt_tokenizer_special(t, stops[i]);
        if ((rc = encode_open(t, system, "", &l, e)) == 0 &&
            (rc = encode(t, &l.before, &l.n_before, e, before, true)) == 0 &&
            (rc = encode(t, &l.after, &l.n_after, e, after, true)) == 0)
            rc = encode(t, &l.close, &l.n_close, e, "<|im_end|>\n", true);
    }
    if (rc < 0) {
        mt_layout_free(&l);
        return rc;
    }
    *out = l;
    return 0;
}

int mt_chatml_talk(struct mt_talk **out, const struct mt_tokenizer *t, const struct mt_chatml *c,
                   enum mt_mode mode, const char *system, struct mt_err *e)
{
    struct mt_layout l;
    int rc;

    if (!t)
        return mt_err_set(
            e, -ENOENT,
            "the model has no tokenizer (tokenizer.json, or vocab.json and merges.txt)");
    rc = mt_chatml_layout(t, c, mode, system, &l, e);
    return rc < 0 ? rc : mt_layout_talk(out, &l, e);
}
