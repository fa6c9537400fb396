/*
 * aut.c: Qwen3-Omni's audio tower over the operations table:
 *
 *   chunk [100, 128] -> three times gelu(conv2d k3 s2 p1) over time and bands -> [13, 16 * C]
 *   -> conv_out + sinusoid rows 0..12, anew in every chunk
 *   -> encoder layers, bidirectional inside a window -> ln_post -> proj2 gelu(proj1)
 *
 * Equations: Hugging Face transformers 5, models/qwen3_omni_moe/modeling_qwen3_omni_moe.py.
 */
#include "model/aut.h"

#include <errno.h>
#include <stdlib.h>

enum {
    CONVS = 3,
    CHUNK_ROWS = 13,   /* the library counts so many a whole chunk, whatever its length */
    SCRATCH_ROWS = 512 /* pixels that a convolution unfolds at once */
};

/* What a convolution leaves of n times or bands, and all three of them. */
static int halved(int n)
{
    return (n + 1) / 2;
}

static int stem_rows(int n)
{
    return halved(halved(halved(n)));
}

int mt_aut_config_parse(const json_t *audio, const char *where, struct mt_aut_config *out,
                        struct mt_err *e)
{
    struct mt_aut_config c = {.chunk_rows = CHUNK_ROWS};
    int64_t bands, channels, window, infer, dim, positions;
    int rc;

    if ((rc = mt_encoder_config_parse(audio, where, &c.enc, e)) < 0 ||
        (rc = mt_config_int(audio, where, "num_mel_bins", 1, 256, 128, &bands, e)) < 0 ||
        (rc = mt_config_int(audio, where, "downsample_hidden_size", 1, 1 << 14, 480, &channels,
                            e)) < 0 ||
        (rc = mt_config_int(audio, where, "n_window", 1, 1500, 50, &window, e)) < 0 ||
        (rc = mt_config_int(audio, where, "n_window_infer", 1, 1 << 20, 800, &infer, e)) < 0 ||
        (rc = mt_config_int(audio, where, "output_dim", 1, 1 << 17, MT_NEED, &dim, e)) < 0 ||
        (rc = mt_config_int(audio, where, "max_source_positions", CHUNK_ROWS, 1 << 16, 1500,
                            &positions, e)) < 0)
        return rc;
    c.chunk = 2 * (int)window;
    if (stem_rows(c.chunk) != CHUNK_ROWS)
        return mt_err_set(e, -ENOTSUP,
                          "%s.n_window %lld is not supported (49..52: %d rows a chunk)", where,
                          (long long)window, CHUNK_ROWS);
    if (infer < c.chunk || infer / c.chunk > 64)
        return mt_err_set(e, -EPROTO, "%s.n_window_infer %lld is not 1..64 chunks of %d frames",
                          where, (long long)infer, c.chunk);
    c.enc.k_bias = true;
    c.bands = (int)bands;
    c.channels = (int)channels;
    c.out_dim = (int)dim;
    c.window_chunks = (int)infer / c.chunk;
    c.window_rows = c.window_chunks * CHUNK_ROWS;
    *out = c;
    return 0;
}

int64_t mt_aut_rows(const struct mt_aut_config *c, int64_t frames)
{
    return frames / c->chunk * c->chunk_rows + stem_rows((int)(frames % c->chunk));
}

void mt_aut_bind(struct mt_aut *t, const struct mt_aut_config *cfg, struct mt_binder *b,
                 const char *prefix, int chunks)
{
    int d = cfg->enc.d_model, channels = cfg->channels, rows = chunks * cfg->chunk_rows;
    int height = cfg->bands, times = cfg->chunk, in = 1;

    *t = (struct mt_aut){.cfg = *cfg, .chunks = chunks};
    t->image[0] = mt_bind_rows(b, (int64_t)chunks * times, height);
    for (int i = 0; i < CONVS; i++, in = channels) {
        t->conv_w[i] = mt_bind_conv2d(b, channels, in, 3, "%sconv2d%d.weight", prefix, i + 1);
        t->conv_b[i] = mt_bind_vector(b, channels, "%sconv2d%d.bias", prefix, i + 1);
        height = halved(height);
        times = halved(times);
        t->image[i + 1] = mt_bind_rows(b, (int64_t)chunks * times, channels * height);
    }
    t->conv_out = mt_bind_matrix(b, d, (int64_t)channels * height, "%sconv_out.weight", prefix);
    mt_encoder_bind(&t->enc, &cfg->enc, b, prefix, rows);
    t->post_w = mt_bind_vector(b, d, "%sln_post.weight", prefix);
    t->post_b = mt_bind_vector(b, d, "%sln_post.bias", prefix);
    t->proj1_w = mt_bind_matrix(b, d, d, "%sproj1.weight", prefix);
    t->proj1_b = mt_bind_vector(b, d, "%sproj1.bias", prefix);
    t->proj2_w = mt_bind_matrix(b, cfg->out_dim, d, "%sproj2.weight", prefix);
    t->proj2_b = mt_bind_vector(b, cfg->out_dim, "%sproj2.bias", prefix);
    t->sinusoid = mt_encoder_sinusoid(b, &t->sinusoid_own, cfg->chunk_rows, d);
    t->scratch = mt_bind_rows(b, SCRATCH_ROWS, 10 * channels); /* a window of 9, and its sums */
    t->stem = mt_bind_rows(b, rows, d);
    t->x = mt_bind_rows(b, rows, d);
    t->h = mt_bind_rows(b, rows, d);
    t->out = mt_bind_rows(b, rows, cfg->out_dim);
    if (b->rc < 0)
        return;
    t->zeros = mt_alloc(mt_mul((size_t)cfg->chunk, (size_t)cfg->bands), sizeof(float));
    t->span = calloc((size_t)chunks, sizeof(*t->span));
    t->pick = calloc((size_t)rows, sizeof(*t->pick));
    if (!t->zeros || !t->span || !t->pick)
        b->rc = mt_err_set(b->e, -ENOMEM, "out of memory");
}

void mt_aut_free(struct mt_aut *t, struct mt_backend *be)
{
    struct mt_mat **mats[] = {&t->conv_w[0], &t->conv_w[1], &t->conv_w[2], &t->conv_b[0],
                              &t->conv_b[1], &t->conv_b[2], &t->conv_out,  &t->post_w,
                              &t->post_b,    &t->proj1_w,   &t->proj1_b,   &t->proj2_w,
                              &t->proj2_b,   &t->sinusoid};
    struct mt_rows *rows[] = {&t->image[0], &t->image[1], &t->image[2], &t->image[3], &t->scratch,
                              &t->stem,     &t->x,        &t->h,        &t->out};

    mt_encoder_free(&t->enc, be);
    for (size_t j = 0; j < MT_COUNT(mats); j++)
        mt_unbind(be, mats[j]);
    for (size_t j = 0; j < MT_COUNT(rows); j++)
        mt_unbind_rows(be, rows[j]);
    free(t->sinusoid_own);
    free(t->zeros);
    free(t->span);
    free(t->pick);
    *t = (struct mt_aut){0};
}

struct mt_rows mt_aut_mel(const struct mt_aut *t, int i)
{
    return mt_rows_from(t->image[0], (int64_t)i * t->cfg.chunk);
}

int mt_aut_stem(struct mt_aut *t, struct mt_backend *be, struct mt_aut_chunk *chunk, int n)
{
    const struct mt_ops *op = be->ops;
    int height = t->cfg.bands, rows = 0, all = 0;

    for (int i = 0; i < n; i++) { /* each at the place of a whole one; zeros are those of the mel */
        int len = chunk[i].padded ? t->cfg.chunk : chunk[i].frames;

        op->rows_put(be, mt_rows_from(mt_aut_mel(t, i), chunk[i].frames), t->zeros,
                     len - chunk[i].frames);
        t->span[i] = (struct mt_span){i * t->cfg.chunk, len};
        chunk[i].row = rows;
        chunk[i].rows = stem_rows(chunk[i].frames);
        for (int r = 0; r < chunk[i].rows; r++)
            t->pick[rows++] = all + r;
        all += stem_rows(len);
    }
    for (int k = 0; k < CONVS; k++) {
        op->conv2d(be, t->image[k + 1], t->image[k], t->conv_w[k], t->conv_b[k], height, 3, 2, 1,
                   MT_ACT_GELU, t->span, n, t->scratch, SCRATCH_ROWS);
        height = halved(height);
        for (int i = 0, at = 0; i < n; i++) {
            t->span[i] = (struct mt_span){at, halved(t->span[i].n)};
            at += t->span[i].n;
        }
    }
    op->linear(be, t->stem, t->image[CONVS], t->conv_out, NULL, MT_ACT_NONE, MT_NO_ROWS, all);
    op->add_positions(be, t->stem, t->sinusoid, t->span, n);
    op->gather(be, t->x, t->stem, t->pick, rows);
    return rows;
}

void mt_aut_layers(struct mt_aut *t, struct mt_backend *be, int rows, const struct mt_batch *batch)
{
    const struct mt_ops *op = be->ops;

    if (batch)
        mt_encoder_extend(&t->enc, be, t->x, batch);
    else
        mt_encoder_run(&t->enc, be, t->x, &(struct mt_span){0, rows}, 1);
    op->layer_norm(be, t->x, t->x, t->post_w, t->post_b, MT_ENCODER_EPS, rows);
    op->linear(be, t->h, t->x, t->proj1_w, t->proj1_b, MT_ACT_GELU, MT_NO_ROWS, rows);
    op->linear(be, t->out, t->h, t->proj2_w, t->proj2_b, MT_ACT_NONE, MT_NO_ROWS, rows);
}
