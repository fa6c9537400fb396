/*
 * layout.c: the plain course of a call: a prompt once, the same marks around every frame's audio,
 * an answer up to a stop token or the caller's limit, and its end.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "model/family.h"

struct plain {
    struct mt_talk talk;
    struct mt_layout l;
    bool begun;
    int32_t pending; /* drawn and not fed, or -1 */
};

static void put(int32_t *ids, int *at, const int32_t *some, int n)
{
    if (n > 0)
        memcpy(ids + *at, some, (size_t)n * sizeof(*ids));
    *at += n;
}

static int begin(struct mt_talk *t, int audio_rows, int32_t *ids, int *audio_at)
{
    struct plain *p = (struct plain *)t;
    const struct mt_layout *l = &p->l;
    int n = 0;

    if (p->pending >= 0)
        ids[n++] = p->pending;
    if (p->begun)
        put(ids, &n, l->close, l->n_close);
    else
        put(ids, &n, l->open, l->n_open);
    put(ids, &n, l->before, l->n_before);
    *audio_at = n;
    for (int i = 0; i < audio_rows; i++)
        ids[n++] = -1;
    put(ids, &n, l->after, l->n_after);
    p->begun = true;
    p->pending = -1;
    return n;
}

static bool is_stop(const struct mt_layout *l, int32_t token)
{
    for (int i = 0; i < l->n_stop; i++)
        if (l->stop[i] == token)
            return true;
    return false;
}

/* What ends an answer is fed as the layout's close, not twice. */
static struct mt_said drawn(struct mt_talk *t, int32_t token)
{
    struct plain *p = (struct plain *)t;
    bool stop = is_stop(&p->l, token);

    p->pending = stop ? -1 : token;
    return (struct mt_said){.show = token, .end = stop, .feed = token};
}

static const int32_t *prompt(const struct mt_talk *t, int *n)
{
    const struct plain *p = (const struct plain *)t;

    *n = p->l.n_open;
    return p->l.open;
}

static int marks(const struct mt_talk *t)
{
    const struct mt_layout *l = &((const struct plain *)t)->l;

    return l->n_before + l->n_after + l->n_close + 1; /* 1: pending */
}

static int64_t bytes(const struct mt_talk *t)
{
    const struct mt_layout *l = &((const struct plain *)t)->l;

    return (int64_t)sizeof(struct plain) +
           (int64_t)sizeof(int32_t) * (l->n_open + l->n_before + l->n_after + l->n_close);
}

static void plain_free(struct mt_talk *t)
{
    struct plain *p = (struct plain *)t;

    mt_layout_free(&p->l);
    free(p);
}

static void visit(struct mt_talk *t, const struct mt_model *m, struct mt_state_io *io)
{
    struct plain *p = (struct plain *)t;

    mt_state_bool(io, "a frame before", &p->begun);
    mt_state_ids(io, "token drawn last", &p->pending, 1, -1, mt_model_last_id(m));
}

static const struct mt_talk_kind kind = {
    .free = plain_free,
    .bytes = bytes,
    .prompt = prompt,
    .marks = marks,
    .begin = begin,
    .drawn = drawn,
    .visit = visit,
};

int mt_layout_talk(struct mt_talk **out, struct mt_layout *l, struct mt_err *e)
{
    struct plain *p = calloc(1, sizeof(*p));

    if (!p) {
        mt_layout_free(l);
        return mt_err_set(e, -ENOMEM, "out of memory");
    }
    *p = (struct plain){.talk = {&kind}, .l = *l, .pending = -1};
    *l = (struct mt_layout){0};
    *out = &p->talk;
    return 0;
}

void mt_layout_free(struct mt_layout *l)
{
    free(l->open);
    free(l->before);
    free(l->after);
    free(l->close);
    *l = (struct mt_layout){0};
}
