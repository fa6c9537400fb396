/*
 * minicpm_talk.c: MiniCPM-o's duplex loop. A call is a system prompt and then units of one second:
 *
 *   <unit>  10 audio rows  tokens, at most 20  </unit>
 *
 * <|listen|>, <|chunk_eos|> or <|chunk_tts_eos|> ends a unit; the 20th token is not drawn, it is
 * <|chunk_eos|>. What a unit ends with is fed at the beginning of the next one: nothing waits for
 * it. <|listen|> while a turn is open counts as <|tts_bos|>; <|turn_eos|> closes the turn, any
 * other token opens it again. The text of a unit's first token is not said, nor any of a unit that
 * ends listening.
 *
 * A token comes from the plain logits if that is <|chunk_eos|>; else from those without it,
 * <|tts_pad|> and the forbidden ones, with each of the last 512 tokens drawn divided by 1.05
 * (whatever its sign, as the authors do) and <|turn_eos|> made less likely by 1.1.
 *
 * In free mode nothing ends a unit before its last slot: the load of a model that always speaks.
 */
#include "model/minicpm_talk.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/file.h"

enum { PENALTY_WINDOW = 512 };
static const float REPEATED = 1.05f, TOO_SHORT = 1.1f;

#define CONFIG_BYTES (64 << 20)
#define CONFIG_ITEMS (1 << 20)

const char *const mt_minicpm_mark_text[MT_MARKS] = {
    "<|im_start|>", "<|im_end|>",    "<|audio_start|>",   "<|audio_end|>",
    "<unit>",       "</unit>",       "<|listen|>",        "<|tts_bos|>",
    "<|tts_pad|>",  "<|chunk_eos|>", "<|chunk_tts_eos|>", "<|turn_eos|>",
};

struct duplex {
    struct mt_talk talk;
    int32_t mark[MT_MARKS];
    bool free_mode;
    int32_t *open;
    int n_open;

    bool begun;      /* there was a unit */
    bool closed;     /* it ended by a token */
    bool turn_over;  /* the model may listen */
    int drawn;       /* tokens of the unit */
    int32_t pending; /* the last of them, not fed yet; -1: none */

    int32_t recent[PENALTY_WINDOW]; /* the k-th token drawn at k % PENALTY_WINDOW */
    uint64_t n_recent;
    struct mt_scale scale[PENALTY_WINDOW + 1]; /* each of them once, then the turn's end */
    int n_scale;
    struct mt_sample_rules rules;
};

/* ---- forbidden tokens ---- */

static int read_list(struct mt_minicpm_ban *out, const json_t *list, int vocab, const char *path,
                     struct mt_err *e)
{
    json_t *j;
    size_t i;

    json_array_foreach(list, i, j)
    {
        json_int_t id = json_integer_value(j);
        if (!json_is_integer(j) || id < 0)
            return mt_err_set(e, -EPROTO, "%s: bad_token_ids[%zu] is not a token id", path, i);
        if (id < vocab)
            out->id[out->n++] = (int32_t)id;
    }
    return 0;
}

int mt_minicpm_ban_load(struct mt_minicpm_ban *out, const struct mt_model *m,
                        const char *config_path, struct mt_err *e)
{
    static const char *const own[] = {"<|chunk_eos|>", "<|tts_pad|>"};
    const char *slash = strrchr(config_path, '/');
    char path[4200];
    json_t *config = NULL;
    int rc = 0;

    *out = (struct mt_minicpm_ban){0};
    if (snprintf(path, sizeof(path), "%.*stokenizer_config.json",
                 slash ? (int)(slash + 1 - config_path) : 0, config_path) >= (int)sizeof(path))
        return mt_err_set(e, -ENAMETOOLONG, "%s: name too long", config_path);
    if (!m->synthetic && access(path, F_OK) == 0 &&
        (rc = mt_json_load(&config, path, CONFIG_BYTES, CONFIG_ITEMS, 32, e)) < 0)
        return rc;
    json_t *list = json_object_get(config, "bad_token_ids");
    if (list && !json_is_array(list) && !json_is_null(list))
        rc = mt_err_set(e, -EPROTO, "%s: bad_token_ids is not a list", path);
    else if (!(out->id = calloc(json_array_size(list) + MT_COUNT(own), sizeof(*out->id))))
        rc = mt_err_set(e, -ENOMEM, "out of memory");
    else
        rc = read_list(out, list, m->info.vocab, path, e);
    for (size_t i = 0; rc == 0 && out->id && m->tokenizer && i < MT_COUNT(own); i++) {
        int32_t id = mt_tokenizer_special(m->tokenizer, own[i]);
        if (id >= 0 && id < m->info.vocab)
            out->id[out->n++] = id;
    }
    json_decref(config);
    return rc;
}

/* ---- the prompt ---- */

/*
 * <|im_start|> "system" LF text LF <|audio_start|> (a voice to speak with, not given here)
 * <|audio_end|><|im_end|>. The text between the marks is split as a whole, as the authors' is; a
 * special token spelled out in it stays text.
 */
static int make_prompt(struct duplex *d, const struct mt_tokenizer *t, const char *system,
                       struct mt_err *e)
{
    int32_t *ids = NULL;
    size_t n = 0, len;
    char *text;
    int rc;

    if (!*system)
        return 0;
    len = strlen(system) + sizeof("system\n\n");
    if (!(text = malloc(len)))
        return mt_err_set(e, -ENOMEM, "out of memory");
    snprintf(text, len, "system\n%s\n", system);
    rc = mt_tokenizer_encode(t, text, strlen(text), false, &ids, &n, e);
    free(text);
    if (rc < 0)
        return rc;
    if (!(d->open = calloc(n + 4, sizeof(*d->open)))) {
        free(ids);
        return mt_err_set(e, -ENOMEM, "out of memory");
    }
    d->open[d->n_open++] = d->mark[MT_MARK_IM_START];
    memcpy(d->open + d->n_open, ids, n * sizeof(*ids));
    d->n_open += (int)n;
    d->open[d->n_open++] = d->mark[MT_MARK_AUDIO_START];
    d->open[d->n_open++] = d->mark[MT_MARK_AUDIO_END];
    d->open[d->n_open++] = d->mark[MT_MARK_IM_END];
    free(ids);
    return 0;
}

static const int32_t *prompt(const struct mt_talk *t, int *n)
{
    const struct duplex *d = (const struct duplex *)t;

    *n = d->n_open;
    return d->open;
}

/* ---- a unit ---- */

/* The last token, <|chunk_eos|> behind it, </unit>, <unit>. */
static int marks(const struct mt_talk *t)
{
    (void)t;
    return 4;
}

static int draws(const struct mt_talk *t)
{
    (void)t;
    return MT_MINICPM_DRAWS;
}

static int begin(struct mt_talk *t, int audio_rows, int32_t *ids, int *audio_at)
{
    struct duplex *d = (struct duplex *)t;
    int n = 0;

    if (d->begun) {
        if (d->pending >= 0)
            ids[n++] = d->pending;
        if (!d->closed)
            ids[n++] = d->mark[MT_MARK_CHUNK_EOS];
        ids[n++] = d->mark[MT_MARK_UNIT_END];
    } else if (d->n_open) {
        memcpy(ids, d->open, (size_t)d->n_open * sizeof(*ids));
        n = d->n_open;
    }
    ids[n++] = d->mark[MT_MARK_UNIT];
    *audio_at = n;
    for (int i = 0; i < audio_rows; i++)
        ids[n++] = -1;
    d->begun = true;
    d->closed = false;
    d->drawn = 0;
    d->pending = -1;
    return n;
}

static bool recently(const struct duplex *d, int32_t id)
{
    uint64_t n = d->n_recent < PENALTY_WINDOW ? d->n_recent : PENALTY_WINDOW;

    for (uint64_t i = 0; i < n; i++)
        if (d->recent[i] == id)
            return true;
    return false;
}

/* The penalties of the next draw: the last entry is the turn's end. */
static void repeat(struct duplex *d, int32_t id)
{
    int32_t *slot = &d->recent[d->n_recent % PENALTY_WINDOW];
    bool full = d->n_recent >= PENALTY_WINDOW, known = recently(d, id);
    int32_t left = full ? *slot : -1;

    *slot = id;
    d->n_recent++;
    if (left >= 0 && !recently(d, left))
        for (int i = 0; i < d->n_scale - 1; i++)
            if (d->scale[i].id == left) {
                d->scale[i] = d->scale[d->n_scale - 2];
                d->scale[d->n_scale - 2] = d->scale[d->n_scale - 1];
                d->n_scale--;
                break;
            }
    if (known)
        return;
    d->scale[d->n_scale] = d->scale[d->n_scale - 1];
    d->scale[d->n_scale++ - 1] = (struct mt_scale){id, REPEATED, false};
}

static void rules(const struct mt_talk *t, struct mt_sample *p)
{
    p->rules = &((const struct duplex *)t)->rules;
}

static struct mt_said drawn(struct mt_talk *t, int32_t token)
{
    struct duplex *d = (struct duplex *)t;
    const int32_t *mark = d->mark;
    bool listens, ends;

    if (token != mark[MT_MARK_CHUNK_EOS]) {
        repeat(d, token);
        d->rules.n_scale = d->n_scale;
    }
    if (token == mark[MT_MARK_LISTEN] && !d->turn_over)
        token = mark[MT_MARK_TTS_BOS];
    listens = token == mark[MT_MARK_LISTEN] && !d->free_mode;
    ends = listens || (!d->free_mode &&
                       (token == mark[MT_MARK_CHUNK_EOS] || token == mark[MT_MARK_CHUNK_TTS_EOS]));
    d->closed = ends;
    if (!ends)
        d->turn_over = token == mark[MT_MARK_TURN_EOS];
    d->pending = token;
    d->drawn++;
    return (struct mt_said){.show = !ends && d->drawn > 1 ? token : -1,
                            .unsay = listens,
                            .end = ends || d->drawn == MT_MINICPM_DRAWS,
                            .feed = token};
}

/* ---- the whole ---- */

static int64_t bytes(const struct mt_talk *t)
{
    return (int64_t)sizeof(struct duplex) +
           (int64_t)sizeof(int32_t) * ((const struct duplex *)t)->n_open;
}

static void duplex_free(struct mt_talk *t)
{
    struct duplex *d = (struct duplex *)t;

    free(d->open);
    free(d);
}

/* The penalties are those of the tokens drawn last: each once, whatever their order. */
static void recall(struct duplex *d, int n)
{
    uint64_t from = d->n_recent - (uint64_t)n, to = d->n_recent;

    d->scale[0] = d->scale[d->n_scale - 1];
    d->n_scale = 1;
    for (d->n_recent = 0; from < to; from++) {
        int32_t id = d->recent[from % PENALTY_WINDOW];
        bool known = false;

        for (int i = 0; i < d->n_scale - 1; i++)
            known |= d->scale[i].id == id;
        if (known)
            continue;
        d->scale[d->n_scale] = d->scale[d->n_scale - 1];
        d->scale[d->n_scale++ - 1] = (struct mt_scale){id, REPEATED, false};
    }
    d->n_recent = to;
    d->rules.n_scale = d->n_scale;
}

static void visit(struct mt_talk *t, const struct mt_model *m, struct mt_state_io *io)
{
    struct duplex *d = (struct duplex *)t;
    int32_t last = mt_model_last_id(m);
    int64_t drawn_so_far = (int64_t)d->n_recent;

    mt_state_bool(io, "a unit before", &d->begun);
    mt_state_bool(io, "unit closed", &d->closed);
    mt_state_bool(io, "turn over", &d->turn_over);
    mt_state_int(io, "tokens of the unit", &d->drawn, 0, MT_MINICPM_DRAWS);
    mt_state_ids(io, "token drawn last", &d->pending, 1, -1, last);
    mt_state_i64(io, "tokens drawn", &drawn_so_far, 0, INT64_C(1) << 60);
    int n = drawn_so_far < PENALTY_WINDOW ? (int)drawn_so_far : PENALTY_WINDOW;
    mt_state_ids(io, "token drawn", d->recent, (size_t)n, 0, last);
    if (!io->load || !mt_state_ok(io))
        return;
    d->n_recent = (uint64_t)drawn_so_far;
    recall(d, n);
}

static const struct mt_talk_kind kind = {
    .free = duplex_free,
    .bytes = bytes,
    .prompt = prompt,
    .marks = marks,
    .draws = draws,
    .begin = begin,
    .rules = rules,
    .drawn = drawn,
    .visit = visit,
};

static int find_marks(struct duplex *d, const struct mt_tokenizer *t, struct mt_err *e)
{
    if (!t)
        return mt_err_set(
            e, -ENOENT,
            "the model has no tokenizer (tokenizer.json, or vocab.json and merges.txt)");
    for (int i = 0; i < MT_MARKS; i++)
        if ((d->mark[i] = mt_tokenizer_special(t, mt_minicpm_mark_text[i])) < 0)
            return mt_err_set(e, -EPROTO, "the tokenizer has no special token '%s'",
                              mt_minicpm_mark_text[i]);
    return 0;
}

int mt_minicpm_talk_new(struct mt_talk **out, const struct mt_model *m,
                        const struct mt_minicpm_ban *ban, enum mt_mode mode, const char *system,
                        struct mt_err *e)
{
    struct duplex *d = calloc(1, sizeof(*d));
    int rc;

    *out = NULL;
    if (!d)
        return mt_err_set(e, -ENOMEM, "out of memory");
    *d = (struct duplex){
        .talk = {&kind}, .free_mode = mode == MT_MODE_FREE, .turn_over = true, .pending = -1};
    if ((rc = find_marks(d, m->tokenizer, e)) < 0 ||
        (rc = make_prompt(d, m->tokenizer, system ? system : "Streaming Omni Conversation.", e)) <
            0) {
        duplex_free(&d->talk);
        return rc;
    }
    d->scale[0] = (struct mt_scale){d->mark[MT_MARK_TURN_EOS], TOO_SHORT, true};
    d->n_scale = 1;
    d->rules = (struct mt_sample_rules){.exit_id = d->free_mode ? -1 : d->mark[MT_MARK_CHUNK_EOS],
                                        .ban = ban->id,
                                        .n_ban = ban->n,
                                        .scale = d->scale,
                                        .n_scale = d->n_scale};
    *out = &d->talk;
    return 0;
}
