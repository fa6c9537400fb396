/*
 * moshi_streams.c: which tokens of the streams stand beside each other. A stream with delay d is
 * heard and spoken d steps later than the text, so that a frame's coarse codes are known before its
 * fine ones. Where a stream has nothing yet stands its initial token, one past its last.
 */
#include <string.h>

#include "model/moshi.h"

static int32_t initial(const struct moshi_config *cfg, int k)
{
    return k == 0 ? cfg->text_card : cfg->card;
}

static int32_t *column(struct moshi_streams *s, int64_t t)
{
    return s->ring[t % (s->cfg->max_delay + 2)];
}

void moshi_streams_init(struct moshi_streams *s, const struct moshi_config *cfg)
{
    memset(s, 0, sizeof(*s));
    s->cfg = cfg;
}

void moshi_streams_visit(struct moshi_streams *s, struct mt_state_io *io)
{
    const struct moshi_config *c = s->cfg;

    mt_state_i64(io, "steps", &s->step, 0, INT64_C(1) << 48);
    for (int t = 0; t < c->max_delay + 2; t++) {
        mt_state_ids(io, "text token", s->ring[t], 1, 0, initial(c, 0));
        mt_state_ids(io, "code", s->ring[t] + 1, (size_t)c->n_q, 0, initial(c, 1));
    }
}

void moshi_streams_begin(struct moshi_streams *s, const int32_t *user, int32_t *input)
{
    const struct moshi_config *c = s->cfg;
    int64_t t = s->step++;

    for (int k = 1 + c->dep_q; k <= c->n_q; k++)
        column(s, t + c->delay[k])[k] = user[k - 1 - c->dep_q];
    /* t = delay, too: the authors' loop never hears a stream's first code. */
    for (int k = 0; k <= c->n_q; k++)
        input[k] = t <= c->delay[k] ? initial(c, k) : column(s, t)[k];
}

bool moshi_streams_end(struct moshi_streams *s, int32_t text, const int32_t *codes, int32_t *out)
{
    const struct moshi_config *c = s->cfg;
    int64_t t = s->step; /* the step after this one reads them */

    column(s, t)[0] = text;
    memcpy(column(s, t) + 1, codes, (size_t)c->dep_q * sizeof(*codes));
    if (t <= c->max_delay)
        return false;
    for (int k = 0; k <= c->dep_q; k++)
        out[k] = column(s, t - c->max_delay + c->delay[k])[k];
    return true;
}

int32_t moshi_delayed(const struct moshi_config *cfg, const int32_t *frames, int64_t t, int k)
{
    int64_t from = t - 1 - cfg->delay[k];

    return from < 0 ? initial(cfg, k) : frames[from * (1 + cfg->n_q) + k];
}
