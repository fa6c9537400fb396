/*
 * minicpm_apm.c: MiniCPM-o's audio tower.
 *
 *   gelu(conv1 k3 s1) -> gelu(conv2 k3 s2) + table row of its place -> layers (encoder.c)
 *   -> layer_norm -> relu(linear1) -> mean of each `pool` -> linear2
 *
 * The authors pool behind linear2; a mean and a linear map commute, and this way round it runs on a
 * fifth of the rows.
 *
 * In a clip a position sees its own chunk of a second and all earlier ones. A live ear computes the
 * same second by second: its cache holds the keys of what was heard, and a unit sees all of them
 * and all of itself. The table has 1500 rows, trained as the places of 30 s. The authors empty the
 * cache when it would pass them, after 29 s, and a call's ear is deaf to its past at once. Here it
 * slides: the oldest unit leaves for the newest one, and the places go round: unit n has place n
 * mod 29. So every unit in the cache has another place, each a trained one, as attention by
 * distance needs it, and cost and memory stay as they are after 29 s. Measured with a trained
 * Whisper encoder (tiny.en) under this mask on an utterance behind minutes of other speech,
 * distance of its rows from the same utterance at the beginning of a call, relative RMS: authors'
 * reset 0.96 (at random phases), places going round 1.00, two caches that relieve each other 0.97
 * at twice the cost; units that all take the last place, so that 29 keys share one, 1.33. (Ten
 * seconds of other speech before it, and so another place, are 1.10: the table is heard in all
 * rows.)
 */
#include "model/minicpm_apm.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CLIP_S = 30, RESET_ROWS = 52 /* that the authors count for a unit when they reset */ };

/* ---- configuration ---- */

/* A key that is not there has the value that WhisperConfig gives it. */
static json_t *with_defaults(const json_t *audio)
{
    json_t *full = json_pack("{s:i,s:i,s:i,s:i,s:i,s:i}", "num_mel_bins", 80, "d_model", 384,
                             "encoder_layers", 4, "encoder_attention_heads", 6, "encoder_ffn_dim",
                             1536, "max_source_positions", 1500);

    if (full && audio && json_object_update(full, (json_t *)audio) < 0) {
        json_decref(full);
        return NULL;
    }
    return full;
}

static int parse_audio(const json_t *audio, const char *where, struct mt_apm_config *c,
                       struct mt_err *e)
{
    int64_t bands, positions;
    int rc;

    if ((rc = mt_encoder_config_parse(audio, where, &c->enc, e)) < 0 ||
        (rc = mt_config_int(audio, where, "num_mel_bins", 1, 256, 80, &bands, e)) < 0 ||
        (rc = mt_config_int(audio, where, "max_source_positions", 1, 1 << 16, 1500, &positions,
                            e)) < 0)
        return rc;
    c->bands = (int)bands;
    c->positions = (int)positions;
    return 0;
}

int mt_apm_config_parse(const json_t *root, const char *where, struct mt_apm_config *out,
                        struct mt_err *e)
{
    const json_t *audio = json_object_get(root, "audio_config");
    struct mt_apm_config c = {0};
    char at[MT_WHERE_MAX];
    double chunk_s;
    int64_t pool;
    int rc;

    snprintf(at, sizeof(at), "%s: root", where);
    if ((rc = mt_config_int(root, at, "audio_pool_step", 1, MT_UNIT_ROWS, 5, &pool, e)) < 0 ||
        (rc = mt_config_real(root, at, "audio_chunk_length", -1e6, 1e6, 1.0, &chunk_s, e)) < 0)
        return rc;
    snprintf(at, sizeof(at), "%s: audio_config", where);
    if (!json_is_object(audio))
        return mt_err_set(e, -EPROTO, "%s is missing or not an object", at);
    json_t *full = with_defaults(audio);
    if (!full)
        return mt_err_set(e, -ENOMEM, "out of memory");
    rc = parse_audio(full, at, &c, e);
    json_decref(full);
    if (rc < 0)
        return rc;
    c.pool = (int)pool;
    c.chunk = chunk_s > 0 ? (int)(chunk_s * MT_UNIT_ROWS) : 0;
    if (chunk_s > 0 && c.chunk < 1)
        return mt_err_set(e, -EPROTO, "%s: root.audio_chunk_length %g is below a position (%g)",
                          where, chunk_s, 1.0 / MT_UNIT_ROWS);
    if (c.chunk > c.positions)
        c.chunk = 0;
    *out = c;
    return 0;
}

/* ---- making ---- */

static void bind_weights(struct mt_apm *a, struct mt_binder *b)
{
    const struct mt_apm_config *c = &a->cfg;
    int d = c->enc.d_model, h = c->hidden;

    a->conv1_w = mt_bind_conv(b, d, c->bands, 3, "apm.conv1.weight");
    a->conv1_b = mt_bind_vector(b, d, "apm.conv1.bias");
    a->conv2_w = mt_bind_conv(b, d, d, 3, "apm.conv2.weight");
    a->conv2_b = mt_bind_vector(b, d, "apm.conv2.bias");
    a->table = mt_bind_table(b, c->positions, d, "apm.embed_positions.weight");
    a->norm_w = mt_bind_vector(b, d, "apm.layer_norm.weight");
    a->norm_b = mt_bind_vector(b, d, "apm.layer_norm.bias");
    a->lin1_w = mt_bind_matrix(b, h, d, "audio_projection_layer.linear1.weight");
    a->lin1_b = mt_bind_vector(b, h, "audio_projection_layer.linear1.bias");
    a->lin2_w = mt_bind_matrix(b, h, h, "audio_projection_layer.linear2.weight");
    a->lin2_b = mt_bind_vector(b, h, "audio_projection_layer.linear2.bias");
}

static void bind_scratch(struct mt_apm *a, struct mt_binder *b)
{
    int d = a->cfg.enc.d_model, mel = MT_UNITS_AT_ONCE * MT_UNIT_MEL;
    int rows = MT_UNITS_AT_ONCE * MT_UNIT_ROWS;

    a->mel_rows = mt_bind_rows(b, mel + MT_UNITS_AT_ONCE * MT_UNIT_BESIDE, a->cfg.bands);
    a->c1 = mt_bind_rows(b, mel, d);
    a->c1_scratch = mt_bind_rows(b, mel, 3 * a->cfg.bands);
    a->c2 = mt_bind_rows(b, mel / 2, d);
    a->c2_scratch = mt_bind_rows(b, mel / 2, 3 * d);
    a->x = mt_bind_rows(b, rows, d);
    a->wide = mt_bind_rows(b, rows, a->cfg.hidden);
    a->pooled = mt_bind_rows(b, rows, a->cfg.hidden);
    a->out = mt_bind_rows(b, rows, a->cfg.hidden);
}

int mt_apm_init(struct mt_apm *a, const struct mt_apm_config *cfg, enum mt_dtype kv_type,
                struct mt_weights *w, struct mt_backend *be, struct mt_err *e)
{
    struct mt_binder b = {.w = w, .be = be, .e = e};
    int most = cfg->chunk ? cfg->chunk : cfg->positions, rows = MT_UNITS_AT_ONCE * MT_UNIT_ROWS;

    *a = (struct mt_apm){.cfg = *cfg, .be = be};
    if (cfg->positions > RESET_ROWS)
        a->units = 1 + (cfg->positions - RESET_ROWS - 1) / MT_UNIT_ROWS;
    else if (cfg->positions >= MT_UNIT_ROWS)
        a->units = 1;
    a->kv = mt_encoder_kv_shape(&cfg->enc, MT_UNIT_ROWS, kv_type);
    bind_weights(a, &b);
    mt_encoder_bind(&a->enc, &cfg->enc, &b, "apm.", most > rows ? most : rows);
    bind_scratch(a, &b);
    if (b.rc < 0)
        return b.rc;
    /* The table of a clip, a block a position or more, is longer than an ear's. */
    a->blocks = calloc((size_t)cfg->positions, sizeof(*a->blocks));
    a->index = calloc((size_t)rows, sizeof(*a->index));
    a->places = calloc((size_t)(rows > cfg->positions ? rows : cfg->positions), sizeof(*a->places));
    a->by = calloc(MT_UNITS_AT_ONCE, sizeof(*a->by));
    if (!a->blocks || !a->index || !a->places || !a->by)
        return mt_err_set(e, -ENOMEM, "out of memory");
    for (int i = 0; i < cfg->positions; i++)
        a->blocks[i] = i;
    int units = MT_UNITS_AT_ONCE, rc = mt_mel_new(&a->mel, cfg->bands, e);
    /* Of a unit: its own frames, and two stretches of those beside. */
    return rc < 0
               ? rc
               : mt_mel_pass_init(&a->mels, be, cfg->bands, 3 * units,
                                  units * (MT_UNIT_MEL + MT_UNIT_BESIDE), units * MT_UNIT_ITEMS, e);
}

void mt_apm_free(struct mt_apm *a)
{
    struct mt_backend *be = a->be;

    if (!be)
        return;
    struct mt_mat **mats[] = {&a->conv1_w, &a->conv1_b, &a->conv2_w, &a->conv2_b,
                              &a->table,   &a->norm_w,  &a->norm_b,  &a->lin1_w,
                              &a->lin1_b,  &a->lin2_w,  &a->lin2_b};
    struct mt_rows *rows[] = {&a->mel_rows, &a->c1,   &a->c1_scratch, &a->c2, &a->c2_scratch,
                              &a->x,        &a->wide, &a->pooled,     &a->out};
    mt_encoder_free(&a->enc, be);
    for (size_t j = 0; j < MT_COUNT(mats); j++)
        mt_unbind(be, mats[j]);
    for (size_t j = 0; j < MT_COUNT(rows); j++)
        mt_unbind_rows(be, rows[j]);
    mt_mel_free(&a->mel);
    mt_mel_pass_free(&a->mels);
    free(a->blocks);
    free(a->index);
    free(a->places);
    free(a->by);
    *a = (struct mt_apm){0};
}

/* ---- units of live ears ---- */

struct mt_kv_view mt_apm_view(const struct mt_apm *a, struct mt_kv *kv)
{
    return (struct mt_kv_view){.blocks = a->blocks,
                               .ring_blocks = a->units,
                               .window = (int64_t)a->units * MT_UNIT_ROWS,
                               .see = MT_SEE_CHUNK,
                               .kv = kv};
}

void mt_apm_units(struct mt_apm *a, const struct mt_apm_unit *unit, int n)
{
    const struct mt_ops *op = a->be->ops;
    struct mt_span span[MT_UNITS_AT_ONCE] = {{0}};
    struct mt_run run[MT_UNITS_AT_ONCE];
    int mel = 0, at = 0, rows = n * MT_UNIT_ROWS, per = mt_apm_rows(a, MT_UNIT_ROWS);

    for (int i = 0; i < n; mel += unit[i++].mel)
        span[i] = (struct mt_span){mel, unit[i].mel};
    op->conv1d(a->be, a->c1, a->mel_rows, a->conv1_w, a->conv1_b, 3, 1, 1, MT_ACT_GELU, span, n,
               a->c1_scratch);
    op->conv1d(a->be, a->c2, a->c1, a->conv2_w, a->conv2_b, 3, 2, 1, MT_ACT_GELU, span, n,
               a->c2_scratch);
    for (int i = 0; i < n; i++) {
        /*
         * What was seen by padding falls away: a row behind, and one in front unless it is first.
         */
        int first = at + (unit[i].mel == MT_UNIT_MEL), row = i * MT_UNIT_ROWS;
        int place = (int)(unit[i].number % a->units) * MT_UNIT_ROWS;

        for (int k = 0; k < MT_UNIT_ROWS; k++) {
            a->index[row + k] = first + k;
            a->places[row + k] = place + k;
        }
        at += (unit[i].mel - 1) / 2 + 1;
        run[i] = (struct mt_run){row, MT_UNIT_ROWS, unit[i].number * MT_UNIT_ROWS,
                                 mt_apm_view(a, unit[i].kv)};
        span[i] = (struct mt_span){row, MT_UNIT_ROWS};
    }
    op->gather(a->be, a->x, a->c2, a->index, rows);
    op->embed_add(a->be, a->x, a->table, a->places, rows);
    mt_encoder_extend(&a->enc, a->be, a->x, &(struct mt_batch){rows, n, run});
    op->layer_norm(a->be, a->x, a->x, a->norm_w, a->norm_b, MT_ENCODER_EPS, rows);
    op->linear(a->be, a->wide, a->x, a->lin1_w, a->lin1_b, MT_ACT_RELU, MT_NO_ROWS, rows);
    op->mean_rows(a->be, a->pooled, a->wide, a->cfg.pool, span, n);
    op->linear(a->be, a->out, a->pooled, a->lin2_w, a->lin2_b, MT_ACT_NONE, MT_NO_ROWS, n * per);
}

/* ---- whole clips ---- */

/* Memory of a clip's pieces, the longest of which has `mel` frames. */
struct clip {
    struct mt_apm *a;
    float *host; /* [mel, bands] */
    struct mt_rows mel, c1, c1_scratch, x, c2_scratch, wide, pooled, out;
    struct mt_kv *kv; /* NULL where all see all */
};

static int clip_new(struct clip *c, struct mt_apm *a, int mel, struct mt_err *e)
{
    struct mt_binder b = {.be = a->be, .e = e};
    int n = (mel - 1) / 2 + 1, d = a->cfg.enc.d_model, chunk = a->cfg.chunk;

    *c = (struct clip){.a = a};
    c->host = mt_alloc(mt_mul((size_t)mel, (size_t)a->cfg.bands), sizeof(*c->host));
    c->mel = mt_bind_rows(&b, mel, a->cfg.bands);
    c->c1 = mt_bind_rows(&b, mel, d);
    c->c1_scratch = mt_bind_rows(&b, mel, 3 * a->cfg.bands);
    c->x = mt_bind_rows(&b, n, d);
    c->c2_scratch = mt_bind_rows(&b, n, 3 * d);
    c->wide = mt_bind_rows(&b, n, a->cfg.hidden);
    c->pooled = mt_bind_rows(&b, n, a->cfg.hidden);
    c->out = mt_bind_rows(&b, n, a->cfg.hidden);
    if (b.rc == 0 && chunk) {
        struct mt_kv_shape s = mt_encoder_kv_shape(&a->cfg.enc, chunk, MT_F32);
        b.rc = a->be->ops->kv_new(a->be, &c->kv, &s, (n - 1) / chunk + 1);
    }
    if (b.rc < 0 || !c->host)
        return mt_err_set(e, b.rc < 0 ? b.rc : -ENOMEM, "no memory for a clip of %.1f s",
                          mel / 100.0);
    return 0;
}

static void clip_free(struct clip *c)
{
    struct mt_rows *rows[] = {&c->mel,        &c->c1,   &c->c1_scratch, &c->x,
                              &c->c2_scratch, &c->wide, &c->pooled,     &c->out};

    for (size_t j = 0; j < MT_COUNT(rows); j++)
        mt_unbind_rows(c->a->be, rows[j]);
    c->a->be->ops->kv_free(c->a->be, c->kv);
    free(c->host);
}

/* The layers over n positions: under the chunk mask a chunk at a time, the cache holds the past. */
static void clip_layers(struct clip *c, int n)
{
    struct mt_apm *a = c->a;
    int chunk = a->cfg.chunk;

    if (!c->kv) {
        mt_encoder_run(&a->enc, a->be, c->x, &(struct mt_span){0, n}, 1);
        return;
    }
    for (int at = 0; at < n; at += chunk) {
        int len = n - at < chunk ? n - at : chunk;
        struct mt_run run = {0,
                             len,
                             at,
                             {.blocks = a->blocks,
                              .ring_blocks = (n - 1) / chunk + 1,
                              .window = INT64_MAX,
                              .see = MT_SEE_CHUNK,
                              .kv = c->kv}};

        mt_encoder_extend(&a->enc, a->be, mt_rows_from(c->x, at), &(struct mt_batch){len, 1, &run});
    }
}

/* A piece of `mel` frames, scaled, in c->host; its rows in c->out. */
static void clip_piece(struct clip *c, int mel)
{
    struct mt_apm *a = c->a;
    const struct mt_ops *op = a->be->ops;
    struct mt_span span = {0, mel};
    int n = (mel - 1) / 2 + 1, rows = mt_apm_rows(a, n);

    op->rows_put(a->be, c->mel, c->host, mel);
    op->conv1d(a->be, c->c1, c->mel, a->conv1_w, a->conv1_b, 3, 1, 1, MT_ACT_GELU, &span, 1,
               c->c1_scratch);
    op->conv1d(a->be, c->x, c->c1, a->conv2_w, a->conv2_b, 3, 2, 1, MT_ACT_GELU, &span, 1,
               c->c2_scratch);
    for (int i = 0; i < n; i++)
        a->places[i] = i;
    op->embed_add(a->be, c->x, a->table, a->places, n);
    clip_layers(c, n);
    op->layer_norm(a->be, c->x, c->x, a->norm_w, a->norm_b, MT_ENCODER_EPS, n);
    op->linear(a->be, c->wide, c->x, a->lin1_w, a->lin1_b, MT_ACT_RELU, MT_NO_ROWS, n);
    span.n = n;
    op->mean_rows(a->be, c->pooled, c->wide, a->cfg.pool, &span, 1);
    op->linear(a->be, c->out, c->pooled, a->lin2_w, a->lin2_b, MT_ACT_NONE, MT_NO_ROWS, rows);
}

int mt_apm_clip(struct mt_apm *a, const float *pcm, int64_t n, float **rows, int64_t *n_rows,
                int64_t *mel_frames, struct mt_err *e)
{
    /* The authors' pieces are those of 30 s, a table shorter than that has no place for them. */
    int64_t hops = 2 * a->cfg.positions < CLIP_S * 100 ? 2 * a->cfg.positions : CLIP_S * 100;
    int64_t piece = hops * MT_MEL_HOP, total = 0, at = 0, frames = 0;
    struct clip c;

    *rows = NULL;
    for (int64_t i = 0; i < n; i += piece) {
        int64_t mel = mt_mel_clip_frames(MT_MEL_PADDED_30, n - i < piece ? n - i : piece);
        total += mt_apm_rows(a, (int)(mel - 1) / 2 + 1);
        frames += mel;
    }
    if (total < 1)
        return mt_err_set(e, -EINVAL, "a clip of %lld samples is too short (at least %d)",
                          (long long)n, (2 * (a->cfg.pool - 1)) * MT_MEL_HOP + 1);
    float *out = malloc(mt_mul(mt_mul((size_t)total, (size_t)a->cfg.hidden), sizeof(*out)));
    int rc = clip_new(&c, a, (int)(frames < hops ? frames : hops), e);
    if (!out && rc == 0)
        rc = mt_err_set(e, -ENOMEM, "no memory for a clip of %.1f s", (double)n / MT_MEL_RATE);
    for (int64_t i = 0; i < n && rc == 0; i += piece) {
        int64_t len = n - i < piece ? n - i : piece;
        int mel = (int)mt_mel_clip_frames(MT_MEL_PADDED_30, len);
        int got = mt_apm_rows(a, (mel - 1) / 2 + 1);

        if (got == 0)
            continue;
        mt_mel_clip(a->mel, MT_MEL_PADDED_30, pcm + i, len, c.host);
        clip_piece(&c, mel);
        a->be->ops->rows_get(a->be, out + at * a->cfg.hidden, c.out, got);
        at += got;
    }
    clip_free(&c);
    if (rc < 0) {
        free(out);
        return rc;
    }
    *rows = out;
    *n_rows = total;
    *mel_frames = frames;
    return 0;
}
