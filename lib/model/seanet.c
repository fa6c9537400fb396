/*
 * seanet.c: SEANet over the operations table, a frame of many sessions at a time.
 *
 *   encoder: conv, then for each ratio (last first): residual blocks, ELU, conv stride r kernel 2r;
 *            ELU, conv
 *   decoder: conv, then for each ratio: ELU, transposed conv stride r kernel 2r, residual blocks;
 *            ELU, conv
 *   residual block j: x + conv1(ELU(conv3(ELU x))), conv3 with dilation base^j
 */
#include "model/seanet.h"

#include <errno.h>
#include <stdlib.h>

/* ---- binding ---- */

/* From so many rows on that a session brings, a convolution is computed for it alone. */
#define ROWS_ALONE 64

struct chain {
    struct mt_seanet *s;
    const struct mt_mimi_config *c;
    struct mt_mimi_binder *b;
    const char *side; /* "encoder" */
    int at_once;
    int at;          /* index in the authors' list, where an ELU counts */
    int width, rows; /* channels and rows of a frame at this point */
};

static void most(int64_t *a, int64_t b)
{
    *a = b > *a ? b : *a;
}

/* Scratch for a convolution, and whether its link is one for company. */
static void measure(struct chain *h, struct mt_seanet_link *l, const struct mt_mimi_conv *c,
                    int rows_in, int rows_out)
{
    int64_t out = (int64_t)rows_out * c->out, in = (int64_t)rows_in * c->in;
    int64_t taps = c->c.transposed ? c->c.kernel / c->c.stride : c->c.kernel;
    int sums = c->c.transposed ? rows_in : rows_out, n;

    l->alone = sums >= ROWS_ALONE;
    n = l->alone ? 1 : h->at_once;
    most(&h->s->flow_floats, n * out);
    most(&h->s->flow_floats, n * in);
    most(&h->s->window_floats, n * taps * c->in * sums);
    /* Anything may lie where the two meet. */
    if (!l->alone || rows_in == h->s->rows)
        most(&h->s->hand_floats, h->at_once * in);
    if (!l->alone)
        most(&h->s->hand_floats, h->at_once * out);
}

static struct mt_seanet_link *next_link(struct chain *h, bool elu, bool block)
{
    struct mt_seanet_link *l = &h->s->link[h->s->n_links++];

    l->elu = elu;
    l->block = block;
    h->at += elu && !block; /* a block's own are inside */
    return l;
}

static void add_conv(struct chain *h, bool elu, int out, int kernel, int stride, bool transposed)
{
    struct mt_seanet_link *l = next_link(h, elu, false);
    int rows = transposed ? h->rows * stride : h->rows / stride;

    l->a = (struct mt_mimi_conv){{kernel, stride, 1, transposed}, .in = h->width, .out = out};
    measure(h, l, &l->a, h->rows, rows);
    mt_mimi_conv_bind(&l->a, h->b, true,
                      transposed ? "%s.model.%d.convtr.convtr" : "%s.model.%d.conv.conv", h->side,
                      h->at++);
    h->width = out;
    h->rows = rows;
}

static void add_blocks(struct chain *h)
{
    int hidden = h->width / h->c->compress, dilation = 1;

    for (int j = 0; j < h->c->residual_layers; j++, dilation *= h->c->dilation_base, h->at++) {
        struct mt_seanet_link *l = next_link(h, true, true);

        l->a = (struct mt_mimi_conv){
            {h->c->residual_kernel, 1, dilation, false}, .in = h->width, .out = hidden};
        l->b = (struct mt_mimi_conv){{1, 1, 1, false}, .in = hidden, .out = h->width};
        measure(h, l, &l->a, h->rows, h->rows);
        mt_mimi_conv_bind(&l->a, h->b, true, "%s.model.%d.block.1.conv.conv", h->side, h->at);
        mt_mimi_conv_bind(&l->b, h->b, true, "%s.model.%d.block.3.conv.conv", h->side, h->at);
        if (!h->c->conv_shortcut)
            continue;
        l->across = (struct mt_mimi_conv){{1, 1, 1, false}, .in = h->width, .out = h->width};
        mt_mimi_conv_bind(&l->across, h->b, true, "%s.model.%d.shortcut.conv.conv", h->side, h->at);
    }
}

static bool chain_begin(struct chain *h)
{
    int links = 2 + h->c->n_ratios * (1 + h->c->residual_layers);

    *h->s = (struct mt_seanet){.rows = h->rows};
    if (!(h->s->link = calloc((size_t)links, sizeof(*h->s->link))))
        h->b->b.rc = mt_err_set(h->b->b.e, -ENOMEM, "out of memory");
    return h->s->link != NULL;
}

static void chain_end(struct chain *h)
{
    h->s->rows_out = h->rows;
    most(&h->s->hand_floats, (int64_t)h->at_once * h->rows * h->width);
}

static int hop_of(const struct mt_mimi_config *c)
{
    int hop = 1;

    for (int i = 0; i < c->n_ratios; i++)
        hop *= c->ratios[i];
    return hop;
}

void mt_seanet_bind_encoder(struct mt_seanet *s, const struct mt_mimi_config *c, int at_once,
                            struct mt_mimi_binder *b)
{
    struct chain h = {s, c, b, "encoder", at_once, 0, 1, hop_of(c) * c->stride};

    if (!chain_begin(&h))
        return;
    add_conv(&h, false, c->filters, c->kernel, 1, false);
    for (int i = c->n_ratios - 1; i >= 0; i--) {
        add_blocks(&h);
        add_conv(&h, true, 2 * h.width, 2 * c->ratios[i], c->ratios[i], false);
    }
    add_conv(&h, true, c->dim, c->last_kernel, 1, false);
    chain_end(&h);
}

void mt_seanet_bind_decoder(struct mt_seanet *s, const struct mt_mimi_config *c, int at_once,
                            struct mt_mimi_binder *b)
{
    struct chain h = {s, c, b, "decoder", at_once, 0, c->dim, c->stride};

    if (!chain_begin(&h))
        return;
    add_conv(&h, false, c->filters << c->n_ratios, c->kernel, 1, false);
    for (int i = 0; i < c->n_ratios; i++) {
        add_conv(&h, true, h.width / 2, 2 * c->ratios[i], c->ratios[i], true);
        add_blocks(&h);
    }
    add_conv(&h, true, 1, c->last_kernel, 1, false);
    chain_end(&h);
}

void mt_seanet_free(struct mt_seanet *s, struct mt_backend *be)
{
    for (int i = 0; i < s->n_links; i++) {
        mt_mimi_conv_free(&s->link[i].a, be);
        mt_mimi_conv_free(&s->link[i].b, be);
        mt_mimi_conv_free(&s->link[i].across, be);
    }
    free(s->link);
    s->link = NULL;
    s->n_links = 0;
}

/* ---- a pass ---- */

struct pass {
    struct mt_backend *be;
    const struct mt_seanet_scratch *scratch;
    const struct mt_rows *states;
    int n;
};

/* x, of `rows` rows a session, through c into the scratch `out`, or added to what is there. */
static struct mt_rows run_conv(const struct pass *p, const struct mt_mimi_conv *c, struct mt_rows x,
                               int rows, struct mt_rows out, enum mt_act act, bool add)
{
    int64_t taps = c->c.transposed ? c->c.kernel / c->c.stride : c->c.kernel;

    for (int i = 0; i < p->n; i++)
        p->scratch->past[i] = mt_mimi_view(p->states[i], c->past_at, c->in);
    out = mt_mimi_view(out, 0, c->c.transposed ? c->c.stride * c->out : c->out);
    p->be->ops->conv(p->be, out, x, c->w, c->bias, &c->c, act, add ? out : MT_NO_ROWS,
                     p->scratch->past, p->n, rows,
                     mt_mimi_view(p->scratch->window, 0, (int)taps * c->in));
    return mt_mimi_view(out, 0, c->out);
}

/* x is flow[0]; the sum takes its place, or flow[1]'s with a convolution across. */
static struct mt_rows run_block(const struct pass *p, const struct mt_seanet_link *l,
                                struct mt_rows x, int rows, struct mt_rows flow[3])
{
    struct mt_rows h = mt_mimi_view(flow[1], 0, l->a.in), was;

    p->be->ops->activate(p->be, h, x, MT_ACT_ELU, p->n * rows);
    h = run_conv(p, &l->a, h, rows, flow[2], MT_ACT_ELU, false);
    if (l->across.w) {
        run_conv(p, &l->across, x, rows, flow[1], MT_ACT_NONE, false);
        was = flow[0];
        flow[0] = flow[1];
        flow[1] = was;
    }
    return run_conv(p, &l->b, h, rows, flow[0], MT_ACT_NONE, true);
}

/* Links from..to-1 of the pass's sessions, x in flow[0]; *rows becomes what a session has then. */
static struct mt_rows run_links(const struct pass *p, const struct mt_seanet_link *link, int from,
                                int to, struct mt_rows x, int *rows)
{
    struct mt_rows flow[3] = {p->scratch->flow[0], p->scratch->flow[1], p->scratch->flow[2]}, was;

    for (int i = from; i < to; i++) {
        const struct mt_seanet_link *l = &link[i];

        if (l->block) {
            x = run_block(p, l, x, *rows, flow);
            continue;
        }
        if (l->elu)
            p->be->ops->activate(p->be, x, x, MT_ACT_ELU, p->n * *rows);
        x = run_conv(p, &l->a, x, *rows, flow[1], MT_ACT_NONE, false);
        *rows = l->a.c.transposed ? *rows * l->a.c.stride : *rows / l->a.c.stride;
        was = flow[0];
        flow[0] = flow[1];
        flow[1] = was;
    }
    return x;
}

/* n rows of `floats` each, without gaps. */
static void copy(struct mt_backend *be, struct mt_rows dst, struct mt_rows src, int64_t at,
                 int64_t floats)
{
    static const int zero = 0;

    dst = mt_mimi_view(dst, 0, (int)floats);
    be->ops->gather(be, dst, mt_mimi_view(src, at, (int)floats), &zero, 1);
}

struct mt_rows mt_seanet_run(const struct mt_seanet *s, struct mt_backend *be,
                             const struct mt_seanet_scratch *scratch, const struct mt_rows *states,
                             int n)
{
    struct mt_rows from = scratch->hand[0], to = scratch->hand[1], was;
    int rows = s->rows, width = s->link[0].a.in, end, after = 0;

    for (int i = 0; i < s->n_links; i = end) {
        int each = s->link[i].alone ? 1 : n;
        int64_t in = (int64_t)each * rows * width, out = 0;

        for (end = i + 1; end < s->n_links && s->link[end].alone == s->link[i].alone;)
            end++;
        for (int k = 0; k < n; k += each) {
            struct pass p = {be, scratch, states + k, each};
            struct mt_rows x;

            copy(be, scratch->flow[0], from, k / each * in, in);
            after = rows;
            x = run_links(&p, s->link, i, end, mt_mimi_view(scratch->flow[0], 0, width), &after);
            out = (int64_t)each * after * x.width;
            copy(be, mt_mimi_view(to, k / each * out, 1), x, 0, out);
            if (k + each >= n)
                width = x.width;
        }
        rows = after;
        was = from;
        from = to;
        to = was;
    }
    return mt_mimi_view(from, 0, width);
}
