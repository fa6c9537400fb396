/*
 * codec.c: one call of the codec by itself, for tools and tests.
 */
#include "model/codec.h"
#include "model/mimi.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct mt_codec {
    struct mt_codec_info info;
    struct mt_weights *w;
    struct mt_mimi *mimi;
    struct mt_mimi_state *state;
};

static int open_synth(struct mt_codec *c, const char *list, struct mt_mimi_config *cfg,
                      struct mt_err *e)
{
    struct mt_synth_spec s;
    int rc = mt_synth_spec_parse(&s, list, e);

    if (rc < 0)
        return rc;
    if (strncmp(s.name, "moshi", 5) != 0)
        return mt_err_set(e, -EINVAL, "synth:%s: a shape without a codec (moshi-7b, moshi-7b-tiny)",
                          s.name);
    return mt_mimi_open_synth(&c->w, cfg, s.name, s.seed, e);
}

int mt_codec_open(struct mt_codec **out, const char *spec, struct mt_backend *be, int codebooks,
                  bool whole, struct mt_err *e)
{
    struct mt_codec *c = calloc(1, sizeof(*c));
    char prefix[MT_MIMI_PREFIX_MAX] = "";
    struct mt_mimi_config cfg;
    int usual = 8, rc;

    *out = NULL;
    if (!c)
        return mt_err_set(e, -ENOMEM, "out of memory");
    if (!strncmp(spec, "synth:", 6))
        rc = open_synth(c, spec + 6, &cfg, e);
    else
        rc = mt_mimi_open(&c->w, prefix, &cfg, &usual, spec, e);
    if (rc == 0)
        rc = mt_mimi_new(&c->mimi, c->w, prefix, be, codebooks ? codebooks : usual, &cfg, 1, e);
    if (rc == 0)
        rc = mt_mimi_state_new(&c->state, c->mimi, whole, e);
    if (rc < 0) {
        mt_codec_close(&c);
        return rc;
    }
    c->info = (struct mt_codec_info){cfg.sample_rate_hz, mt_mimi_frame_samples(c->mimi),
                                     mt_mimi_codebooks(c->mimi), cfg.bins};
    *out = c;
    return 0;
}

void mt_codec_close(struct mt_codec **cp)
{
    struct mt_codec *c = *cp;

    *cp = NULL;
    if (!c)
        return;
    mt_mimi_state_free(&c->state);
    mt_mimi_free(&c->mimi);
    mt_weights_close(&c->w);
    free(c);
}

const struct mt_codec_info *mt_codec_info(const struct mt_codec *c)
{
    return &c->info;
}

void mt_codec_encode(struct mt_codec *c, const float *pcm, int32_t *codes)
{
    mt_mimi_encode(c->mimi, &c->state, &pcm, 1, codes);
}

int mt_codec_decode(struct mt_codec *c, const int32_t *codes, float *pcm)
{
    for (int i = 0; i < c->info.codebooks; i++)
        if (codes[i] < 0 || codes[i] >= c->info.bins)
            return -ERANGE;
    mt_mimi_decode(c->mimi, &c->state, codes, 1, &pcm);
    return 0;
}
