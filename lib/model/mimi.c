/*
 * mimi.c: the codec put together.
 *
 *   encode: SEANet -> transformer -> conv stride s -> quantise     s steps are one frame
 *   decode: sum of code vectors -> transposed conv stride s -> transformer -> SEANet
 *
 * A call takes its sessions AT_ONCE at a time: so many share each weight that is read, and their
 * activations are what scratch holds.
 */
#include "model/mimi.h"
#include "model/mimi_former.h"
#include "model/rvq.h"
#include "model/seanet.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum {
    AT_ONCE = 32,
    KV_BLOCK = 16,
    FRAME_MAX = 1 << 20,
    CHANNELS_MAX = 1 << 20,
    FLOATS_MAX = 1 << 28
};

struct mt_mimi {
    struct mt_mimi_config cfg;
    struct mt_backend *be;
    struct mt_seanet encoder, decoder;
    struct mt_mimi_former in, out;
    struct mt_mimi_conv down, up;
    struct mt_rvq rvq;
    int at_once;
    int64_t past_floats, weight_bytes, own_bytes;
    int ring_blocks;
    int32_t *blocks; /* 0, 1, …: every cache has its own pool */
    int *zeros;      /* rows of the downsampler's past */
    /* scratch of a call */
    struct mt_seanet_scratch scratch;
    struct mt_mimi_former_scratch former;
    struct mt_rows latent; /* what is quantised, a row a session */
    struct mt_run *run;
    struct mt_rows *states;
};

struct mt_mimi_state {
    struct mt_mimi *m;
    struct mt_rows past; /* all convolutions' */
    struct mt_kv *kv[2]; /* heard, spoken */
    int64_t steps[2];    /* of the transformers, so far */
    bool heard;          /* a frame, so that the downsampler has a past */
    bool whole;
};

/* ---- the codec ---- */

static int hop_of(const struct mt_mimi_config *c)
{
    int64_t hop = c->stride;

    for (int i = 0; i < c->n_ratios; i++)
        hop = hop * c->ratios[i] > FRAME_MAX ? FRAME_MAX + 1 : hop * c->ratios[i];
    return (int)hop;
}

/*
 * Sizes that fit each other; each alone has been looked at, or is a file's. NULL, or what is wrong.
 */
static const char *unfit(const struct mt_mimi_config *c, char text[160])
{
    int64_t reach = 1;

    for (int i = 0; i < c->residual_layers && reach <= 1 << 16; i++)
        reach *= i ? c->dilation_base : c->residual_kernel;
    if (c->n_ratios < 1 || c->n_ratios > MT_MIMI_RATIOS_MAX || c->stride < 1 || hop_of(c) < 1 ||
        hop_of(c) > FRAME_MAX)
        snprintf(text, 160, "a frame is not of 1..%d samples", FRAME_MAX);
    else if (c->filters < 1 || (int64_t)c->filters << c->n_ratios > CHANNELS_MAX)
        snprintf(text, 160, "%d filters doubled %d times", c->filters, c->n_ratios);
    else if (c->residual_layers && (c->compress < 1 || c->filters / c->compress < 1))
        snprintf(text, 160, "%d filters in residual blocks compressed by %d", c->filters,
                 c->compress);
    else if (reach > 1 << 16)
        snprintf(text, 160, "%d residual layers of kernel %d and dilation %d", c->residual_layers,
                 c->residual_kernel, c->dilation_base);
    else if (c->heads < 1 || c->head_dim < 2 || c->head_dim % 2 || c->heads % c->kv_heads ||
             (!c->hf && c->heads * c->head_dim != c->d_model))
        snprintf(text, 160,
                 "%d channels for %d heads (an even number each; tensors don't tell, but a "
                 "config's num_heads)",
                 c->d_model, c->heads);
    else if (c->context < c->stride)
        snprintf(text, 160, "a context of %d steps, below the %d of a frame", c->context,
                 c->stride);
    else
        return NULL;
    return text;
}

static int check(const struct mt_mimi_config *c, const struct mt_weights *w, int codebooks,
                 struct mt_err *e)
{
    char text[160];
    int most = c->codebooks < MT_MIMI_CODEBOOKS_MAX ? c->codebooks : MT_MIMI_CODEBOOKS_MAX;

    if (unfit(c, text))
        return mt_err_set(e, -EPROTO, "%s: not a codec that this is: %s", mt_weights_where(w),
                          text);
    if (codebooks < 1 || codebooks > most)
        return mt_err_set(e, -EINVAL, "%s: %d codebooks are not in 1..%d, which the codec has",
                          mt_weights_where(w), codebooks, most);
    return 0;
}

static void bind_resampling(struct mt_mimi *m, struct mt_mimi_binder *b)
{
    const struct mt_mimi_config *c = &m->cfg;
    struct mt_conv shape = {2 * c->stride, c->stride, 1, false};

    if (c->stride == 1) {
        if (b->b.rc == 0 && mt_mimi_has(b, "downsample.conv.conv.conv.weight"))
            b->b.rc =
                mt_err_set(b->b.e, -EPROTO,
                           "%s: tensor '%sdownsample.conv.conv.conv.weight' has nothing to do "
                           "at the config's frame_rate",
                           mt_weights_where(b->b.w), b->prefix);
        return;
    }
    m->down = (struct mt_mimi_conv){.c = shape, .in = c->dim, .out = c->dim};
    mt_mimi_conv_bind(&m->down, b, false, "downsample.conv.conv.conv");
    shape.transposed = true;
    m->up = (struct mt_mimi_conv){.c = shape, .in = c->dim, .out = c->dim};
    if (!c->depthwise_up) {
        mt_mimi_conv_bind(&m->up, b, false, "upsample.convtr.convtr.convtr");
        return;
    }
    m->up.past_rows = mt_conv_past(&shape);
    m->up.past_at = b->past_floats;
    b->past_floats += (int64_t)m->up.past_rows * c->dim;
    m->up.w = mt_mimi_filters(b, c->dim, shape.kernel, "upsample.convtr.convtr.convtr.weight");
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static void bind_scratch(struct mt_mimi *m, struct mt_mimi_binder *b)
{
    const struct mt_mimi_config *c = &m->cfg;
    int64_t flow = most(m->encoder.flow_floats, m->decoder.flow_floats),
            window = most(m->encoder.window_floats, m->decoder.window_floats),
            hand = most(m->encoder.hand_floats, m->decoder.hand_floats);
    int rows = m->at_once * c->stride;

    window = most(window, (int64_t)2 * rows * c->dim);
    hand = most(hand, (int64_t)rows * c->dim);
    if (b->b.rc == 0 && most(most(flow, window), hand) > FLOATS_MAX)
        b->b.rc = mt_err_set(b->b.e, -ENOTSUP, "%s: frames with %lld values on their way",
                             mt_weights_where(b->b.w), (long long)most(most(flow, window), hand));
    for (int i = 0; i < 3; i++)
        m->scratch.flow[i] = mt_mimi_dense(&b->b, flow);
    m->scratch.window = mt_mimi_dense(&b->b, window);
    for (int i = 0; i < 2; i++)
        m->scratch.hand[i] = mt_mimi_dense(&b->b, hand);
    m->latent = mt_bind_rows(&b->b, m->at_once, c->dim);
    mt_mimi_former_scratch_new(&m->former, c, &b->b, rows);
    m->scratch.past = calloc((size_t)m->at_once, sizeof(*m->scratch.past));
    m->run = calloc((size_t)m->at_once, sizeof(*m->run));
    m->states = calloc((size_t)m->at_once, sizeof(*m->states));
    m->zeros = calloc((size_t)c->stride, sizeof(*m->zeros));
    /* Whole clips see `context` steps from the first of a frame on, so its last ones must not
     * overwrite them. */
    m->ring_blocks = (c->context + c->stride - 1 + KV_BLOCK - 1) / KV_BLOCK;
    m->blocks = calloc((size_t)m->ring_blocks, sizeof(*m->blocks));
    if (b->b.rc == 0 && (!m->scratch.past || !m->run || !m->states || !m->zeros || !m->blocks))
        b->b.rc = mt_err_set(b->b.e, -ENOMEM, "out of memory");
    for (int i = 0; m->blocks && i < m->ring_blocks; i++)
        m->blocks[i] = i;
}

int mt_mimi_new(struct mt_mimi **out, struct mt_weights *w, const char *prefix,
                struct mt_backend *be, int codebooks, const struct mt_mimi_config *cfg, int at_once,
                struct mt_err *e)
{
    struct mt_mimi_binder b = {.b = {.w = w, .be = be, .e = e}, .prefix = prefix};
    struct mt_mimi *m = calloc(1, sizeof(*m));
    int64_t before = mt_weights_bytes(w);
    int rc = 0;

    *out = NULL;
    if (!m)
        return mt_err_set(e, -ENOMEM, "out of memory");
    m->be = be;
    m->cfg = cfg ? *cfg : mt_mimi_config_released();
    if (!cfg)
        rc = mt_mimi_config_detect(&m->cfg, w, prefix, e);
    if (rc < 0 || (rc = check(&m->cfg, w, codebooks, e)) < 0)
        goto fail;
    b.hf = m->cfg.hf;
    m->at_once = at_once < 1 ? 1 : at_once > AT_ONCE ? AT_ONCE : at_once;
    mt_seanet_bind_encoder(&m->encoder, &m->cfg, m->at_once, &b);
    mt_mimi_former_bind(&m->in, &m->cfg, "encoder", &b);
    bind_resampling(m, &b);
    mt_rvq_bind(&m->rvq, &m->cfg, codebooks, m->at_once, &b);
    mt_mimi_former_bind(&m->out, &m->cfg, "decoder", &b);
    mt_seanet_bind_decoder(&m->decoder, &m->cfg, m->at_once, &b);
    bind_scratch(m, &b);
    if ((rc = b.b.rc) < 0)
        goto fail;
    m->past_floats = b.past_floats;
    m->weight_bytes = mt_weights_bytes(w) - before;
    m->own_bytes = b.packed_bytes + m->rvq.own_bytes;
    *out = m;
    return 0;
fail:
    mt_mimi_free(&m);
    return rc;
}

void mt_mimi_free(struct mt_mimi **mp)
{
    struct mt_mimi *m = *mp;

    *mp = NULL;
    if (!m)
        return;
    mt_seanet_free(&m->encoder, m->be);
    mt_seanet_free(&m->decoder, m->be);
    mt_mimi_former_free(&m->in, m->be);
    mt_mimi_former_free(&m->out, m->be);
    mt_mimi_conv_free(&m->down, m->be);
    mt_mimi_conv_free(&m->up, m->be);
    mt_rvq_free(&m->rvq, m->be);
    for (int i = 0; i < 3; i++)
        mt_unbind_rows(m->be, &m->scratch.flow[i]);
    mt_unbind_rows(m->be, &m->scratch.window);
    for (int i = 0; i < 2; i++)
        mt_unbind_rows(m->be, &m->scratch.hand[i]);
    mt_unbind_rows(m->be, &m->latent);
    mt_mimi_former_scratch_free(&m->former, m->be);
    free(m->scratch.past);
    free(m->run);
    free(m->states);
    free(m->zeros);
    free(m->blocks);
    free(m);
}

const struct mt_mimi_config *mt_mimi_config(const struct mt_mimi *m)
{
    return &m->cfg;
}

int mt_mimi_codebooks(const struct mt_mimi *m)
{
    return m->rvq.levels;
}

int mt_mimi_frame_samples(const struct mt_mimi *m)
{
    return m->encoder.rows;
}

int64_t mt_mimi_weight_bytes(const struct mt_mimi *m)
{
    return m->weight_bytes + m->own_bytes;
}

/* ---- a session ---- */

static struct mt_kv_shape kv_shape(const struct mt_mimi *m)
{
    /* A codec without layers has a cache of one, which nobody fills. */
    return (struct mt_kv_shape){m->cfg.layers ? m->cfg.layers : 1, m->cfg.kv_heads, m->cfg.head_dim,
                                KV_BLOCK, MT_F32};
}

int mt_mimi_state_new(struct mt_mimi_state **out, struct mt_mimi *m, bool whole, struct mt_err *e)
{
    struct mt_mimi_state *s = calloc(1, sizeof(*s));
    struct mt_binder b = {.be = m->be, .e = e};
    struct mt_kv_shape shape = kv_shape(m);

    *out = NULL;
    if (!s)
        return mt_err_set(e, -ENOMEM, "out of memory");
    s->m = m;
    s->whole = whole;
    s->past = mt_mimi_dense(&b, m->past_floats);
    for (int i = 0; i < 2 && b.rc == 0; i++)
        if ((b.rc = m->be->ops->kv_new(m->be, &s->kv[i], &shape, m->ring_blocks)) < 0)
            mt_err_set(e, b.rc, "no memory for the codec's caches of a session");
    if (b.rc < 0)
        mt_mimi_state_free(&s);
    *out = s;
    return b.rc;
}

void mt_mimi_state_free(struct mt_mimi_state **sp)
{
    struct mt_mimi_state *s = *sp;

    *sp = NULL;
    if (!s)
        return;
    mt_unbind_rows(s->m->be, &s->past);
    for (int i = 0; i < 2; i++)
        s->m->be->ops->kv_free(s->m->be, s->kv[i]);
    free(s);
}

int64_t mt_mimi_state_bytes(const struct mt_mimi *m)
{
    struct mt_kv_shape shape = kv_shape(m);

    return (int64_t)sizeof(struct mt_mimi_state) + mt_mimi_dense_bytes(m->past_floats) +
           INT64_C(2) * m->ring_blocks * mt_kv_block_bytes(&shape);
}

void mt_mimi_state_reset(struct mt_mimi_state *s)
{
    mt_mimi_dense_clear(s->m->be, s->past, s->m->past_floats);
    s->steps[0] = s->steps[1] = 0;
    s->heard = false;
}

void mt_mimi_state_seek(struct mt_mimi_state *s, int64_t frames)
{
    s->steps[0] = s->steps[1] = frames * s->m->cfg.stride;
}

/* ---- a frame of some sessions ---- */

static struct mt_kv_view view_of(const struct mt_mimi_state *s, int way)
{
    return (struct mt_kv_view){.blocks = s->m->blocks,
                               .ring_blocks = s->m->ring_blocks,
                               .window = s->m->cfg.context,
                               .see = s->whole ? MT_SEE_CAUSAL : MT_SEE_RING,
                               .kv = s->kv[way]};
}

void mt_mimi_state_visit(struct mt_mimi_state *s, struct mt_state_io *io)
{
    static const char *const name[] = {"the codec's past, heard", "the codec's past, spoken"};
    struct mt_kv_shape shape = kv_shape(s->m);

    mt_state_bool(io, "a frame before", &s->heard);
    mt_state_rows(io, "the convolutions' past", s->m->be,
                  mt_mimi_view(s->past, 0, (int)s->m->past_floats), 1);
    for (int way = 0; way < 2; way++) {
        struct mt_kv_view view = view_of(s, way);
        int64_t n;

        mt_state_i64(io, "steps of the codec", &s->steps[way], 0, INT64_C(1) << 48);
        n = s->steps[way] < view.window - 1 ? s->steps[way] : view.window - 1;
        mt_state_kv(io, name[way], s->m->be, s->kv[way], &shape, &view, s->steps[way] - n, n, 0);
    }
}

/* A transformer over `stride` steps of each, the results of direction `way`. */
static void run_former(struct mt_mimi *m, const struct mt_mimi_former *t, int way,
                       struct mt_mimi_state *const *s, int n, struct mt_rows x)
{
    int rows = m->cfg.stride;
    struct mt_batch batch = {.n_rows = n * rows, .n_runs = n, .runs = m->run};

    for (int i = 0; i < n; i++) {
        m->run[i] = (struct mt_run){.row = i * rows, .n = rows, .index = s[i]->steps[way]};
        m->run[i].view = view_of(s[i], way);
        s[i]->steps[way] += rows;
    }
    mt_mimi_former_run(t, m->be, &m->former, &batch, x);
}

/* Each session's past of one convolution, into the scratch. */
static const struct mt_rows *pasts(struct mt_mimi *m, const struct mt_mimi_conv *c,
                                   struct mt_mimi_state *const *s, int n)
{
    for (int i = 0; i < n; i++)
        m->scratch.past[i] = mt_mimi_view(s[i]->past, c->past_at, c->in);
    return m->scratch.past;
}

static void encode(struct mt_mimi *m, struct mt_mimi_state *const *s, const float *const *pcm,
                   int n, int32_t *codes)
{
    const struct mt_ops *op = m->be->ops;
    const struct mt_mimi_config *c = &m->cfg;
    struct mt_rows x = mt_mimi_view(m->scratch.hand[0], 0, m->encoder.rows);

    for (int i = 0; i < n; i++) {
        op->rows_put(m->be, mt_rows_from(x, i), pcm[i], 1);
        m->states[i] = s[i]->past;
    }
    x = mt_seanet_run(&m->encoder, m->be, &m->scratch, m->states, n);
    run_former(m, &m->in, 0, s, n, x);
    if (c->stride > 1) {
        const struct mt_rows *past = pasts(m, &m->down, s, n);

        for (int i = 0; i < n; i++) { /* what came before the first step is that step again */
            if (!s[i]->heard)
                op->gather(m->be, past[i], mt_rows_from(x, (int64_t)i * c->stride), m->zeros,
                           m->down.past_rows);
            s[i]->heard = true;
        }
        op->conv(m->be, m->latent, x, m->down.w, NULL, &m->down.c, MT_ACT_NONE, MT_NO_ROWS, past, n,
                 c->stride, mt_mimi_view(m->scratch.window, 0, m->down.c.kernel * c->dim));
        x = m->latent;
    }
    mt_rvq_encode(&m->rvq, m->be, x, n, codes);
}

static void decode(struct mt_mimi *m, struct mt_mimi_state *const *s, const int32_t *codes, int n,
                   float *const *pcm)
{
    const struct mt_ops *op = m->be->ops;
    const struct mt_mimi_config *c = &m->cfg;
    struct mt_rows x = mt_mimi_view(m->scratch.hand[0], 0, c->dim),
                   y = mt_mimi_view(m->scratch.hand[0], 0, c->stride * c->dim);

    mt_rvq_decode(&m->rvq, m->be, codes, n, c->stride > 1 ? m->latent : x);
    if (c->stride > 1) {
        const struct mt_rows *past = pasts(m, &m->up, s, n);

        if (c->depthwise_up)
            op->conv_each(m->be, y, m->latent, m->up.w, &m->up.c, past, n, 1);
        else
            op->conv(m->be, y, m->latent, m->up.w, NULL, &m->up.c, MT_ACT_NONE, MT_NO_ROWS, past, n,
                     1, mt_mimi_view(m->scratch.window, 0, 2 * c->dim));
    }
    run_former(m, &m->out, 1, s, n, x);
    for (int i = 0; i < n; i++)
        m->states[i] = s[i]->past;
    x = mt_seanet_run(&m->decoder, m->be, &m->scratch, m->states, n);
    x = mt_mimi_view(x, 0, m->encoder.rows);
    for (int i = 0; i < n; i++)
        op->rows_get(m->be, pcm[i], mt_rows_from(x, i), 1);
}

void mt_mimi_encode(struct mt_mimi *m, struct mt_mimi_state *const *s, const float *const *pcm,
                    int n, int32_t *codes)
{
    for (int i = 0; i < n; i += m->at_once)
        encode(m, s + i, pcm + i, n - i < m->at_once ? n - i : m->at_once,
               codes + (int64_t)i * m->rvq.levels);
}

void mt_mimi_decode(struct mt_mimi *m, struct mt_mimi_state *const *s, const int32_t *codes, int n,
                    float *const *pcm)
{
    for (int i = 0; i < n; i += m->at_once)
        decode(m, s + i, codes + (int64_t)i * m->rvq.levels,
               n - i < m->at_once ? n - i : m->at_once, pcm + i);
}
