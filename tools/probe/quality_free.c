/*
 * quality_free.c: mt-probe quality --free: what a model writes by itself under each setting, beside
 * what it writes with an unbounded cache from the same beginning and with the same draws. Only what
 * was written after a setting lost its first token is compared: before, both are the same. What is
 * drawn anew for the intervals are beginnings.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/freerun.h"
#include "tools/probe/quality.h"

enum { ROWS = 64, BAN_MOST = 2048, WINDOWS_LONG = 3 };
/* A control that repeats itself so much measures its decoder, not the bound. */
#define CONTROL_DISTINCT 0.8

/* What was written in a place that counts: one script, one arm. */
struct written {
    int32_t *ids;
    float *nll;
    int64_t n;
};

enum measure { DISTINCT, LOOP, LOSS, BROKEN, MEASURES };
static const char *const measure_name[] = {"distinct4", "loop", "nll", "broken_utf8"};

struct free_run {
    const struct quality_options *o;
    struct quality_options cut; /* with the length of a passage that the scripts need */
    struct quality_text text;
    struct quality_arms arms;
    int32_t *script;
    uint64_t *seed;
    int n_scripts, turns; /* scripts: [passages][turns that have a cache of their own][seeds] */
    int own_turns;
    int64_t n;
    int32_t ban[BAN_MOST];
    int n_ban;
    int32_t *ids; /* [n_scripts][n_arms][n] */
    float *nll;
    int first; /* script of the batch in work */
    bool tty;
};

/* ---- scripts ---- */

struct marks {
    int32_t *before, *after, *close;
    size_t n_before, n_after, n_close;
};

static int encode(const struct quality_options *o, const char *text, int32_t **ids, size_t *n)
{
    return mt_tokenizer_encode(mt_model_tokenizer(o->pm.m), text, strlen(text), true, ids, n, NULL);
}

/* Around a turn, where the model was taught to take turns; else nothing. */
static int load_marks(struct marks *m, const struct quality_options *o)
{
    *m = (struct marks){0};
    if (o->turns == QUALITY_NO_TURNS ||
        mt_tokenizer_special(mt_model_tokenizer(o->pm.m), "<|im_start|>") < 0)
        return 0;
    int rc = encode(o, "<|im_start|>user\n", &m->before, &m->n_before);
    if (rc == 0)
        rc = encode(o, "<|im_end|>\n<|im_start|>assistant\n", &m->after, &m->n_after);
    if (rc == 0)
        rc = encode(o, "<|im_end|>\n", &m->close, &m->n_close);
    return rc;
}

static void free_marks(struct marks *m)
{
    free(m->before);
    free(m->after);
    free(m->close);
}

/* Answers go on to the end of their budget: no mark ends one, and none is text. */
static void load_ban(struct free_run *f)
{
    const struct mt_tokenizer *t = mt_model_tokenizer(f->o->pm.m);
    int vocab = mt_model_info(f->o->pm.m)->vocab;

    for (int32_t id = 0; id < vocab && f->n_ban < BAN_MOST; id++)
        if (id >= mt_tokenizer_size(t) || mt_tokenizer_is_special(t, id) ||
            id == mt_model_info(f->o->pm.m)->audio_id)
            f->ban[f->n_ban++] = id;
}

static int32_t *put(int32_t *at, const int32_t *ids, size_t n)
{
    if (n)
        memcpy(at, ids, n * sizeof(*at));
    return at + n;
}

/* One turn at `at`: what is given, then what is drawn. */
static int32_t *put_turn(const struct free_run *f, int32_t *at, const struct marks *m,
                         const int32_t *text, bool last)
{
    int64_t drawn = f->o->turns == QUALITY_NO_TURNS ? f->n - f->text.n_prompt - f->o->prompt_tokens
                                                    : f->o->answer_tokens;

    at = put(at, m->before, m->n_before);
    at = put(at, text, (size_t)f->o->prompt_tokens);
    at = put(at, m->after, m->n_after);
    for (int64_t k = 0; k < drawn; k++)
        *at++ = -1;
    return last ? at : put(at, m->close, m->n_close);
}

/* How long a script is, how many turns it has, and what that needs of the text. */
static int plan(struct free_run *f, const struct marks *m)
{
    int64_t turn = (int64_t)(m->n_before + m->n_after + m->n_close) + f->o->prompt_tokens +
                   f->o->answer_tokens;
    int64_t most = 0;

    for (int i = 0; i < f->o->windows.n; i++)
        most = f->o->windows.v[i] > most ? f->o->windows.v[i] : most;
    f->n = f->o->tokens ? f->o->tokens : WINDOWS_LONG * most;
    f->turns = f->o->turns == QUALITY_NO_TURNS ? 1 : (int)(f->n / turn);
    if (f->turns < 1 || f->n <= f->o->prompt_tokens) {
        if (f->turns < 1)
            mt_msg(MT_ERROR, "--tokens: %lld are no turn of %lld", (long long)f->n,
                   (long long)turn);
        else
            mt_msg(MT_ERROR, "--tokens: %lld leave nothing to write behind %lld (--prompt-tokens)",
                   (long long)f->n, (long long)f->o->prompt_tokens);
        return MT_EXIT_USAGE;
    }
    f->cut.tokens = f->turns * f->o->prompt_tokens;
    if (f->cut.tokens < 2)
        f->cut.tokens = 2;
    return MT_EXIT_OK;
}

static int make_scripts(struct free_run *f, const struct marks *m)
{
    int64_t turn = (int64_t)(m->n_before + m->n_after) + f->o->prompt_tokens + f->o->answer_tokens;
    int n = 0;

    if (f->o->turns == QUALITY_FRESH)
        f->n = f->text.n_prompt + turn;
    else if (f->o->turns == QUALITY_ONE)
        f->n = f->text.n_prompt + f->turns * (turn + (int64_t)m->n_close) - (int64_t)m->n_close;
    else
        f->n += f->text.n_prompt;
    f->own_turns = f->o->turns == QUALITY_FRESH ? f->turns : 1;
    f->n_scripts = f->text.passages * f->own_turns * f->o->seeds;
    f->script = mt_alloc(mt_mul((size_t)f->n_scripts, (size_t)f->n), sizeof(*f->script));
    f->seed = mt_alloc((size_t)f->n_scripts, sizeof(*f->seed));
    for (int p = 0; p < f->text.passages && f->script && f->seed; p++) {
        int32_t *ids = quality_passage(&f->text, p);

        if (!ids)
            return -ENOMEM;
        for (int k = 0; k < f->own_turns * f->o->seeds; k++, n++) {
            const int32_t *text = ids + f->text.n_prompt;
            int32_t *at = put(f->script + n * f->n, f->text.prompt, (size_t)f->text.n_prompt);
            int first = k / f->o->seeds, turns = f->o->turns == QUALITY_FRESH ? 1 : f->turns;

            f->seed[n] = mt_mix64(f->o->seed + (uint64_t)n * 0x9e37);
            for (int t = first; t < first + turns; t++)
                at = put_turn(f, at, m, text + t * f->o->prompt_tokens, t + 1 == first + turns);
        }
        free(ids);
    }
    return f->script && f->seed ? 0 : -ENOMEM;
}

/* ---- running ---- */

static int take(void *ctx, int script, int arm, int64_t pos, int32_t token, float nll)
{
    struct free_run *f = ctx;
    int64_t at = ((int64_t)(f->first + script) * f->arms.n_arms + arm) * f->n + pos;

    f->ids[at] = token;
    f->nll[at] = nll;
    if (f->tty && script == 0 && arm == 0)
        fprintf(stderr, "\r\033[Ktexts %d.. of %d: %.0f %%", f->first + 1, f->n_scripts,
                100 * (double)(pos + 1) / (double)f->n);
    return 0;
}

static int run_all(struct free_run *f, struct mt_err *e)
{
    int each = mt_freerun_rows(f->arms.n_arms), room = ROWS / each > 0 ? ROWS / each : 1, rc = 0;
    size_t n = mt_mul((size_t)f->n_scripts * (size_t)f->arms.n_arms, (size_t)f->n);

    f->ids = mt_alloc(n, sizeof(*f->ids));
    f->nll = mt_alloc(n, sizeof(*f->nll));
    if (!f->ids || !f->nll)
        return mt_err_set(e, -ENOMEM, "out of memory");
    for (f->first = 0; rc == 0 && f->first < f->n_scripts; f->first += room) {
        int left = f->n_scripts - f->first;
        struct mt_freerun r = {.script = f->script + f->first * f->n,
                               .n_scripts = left < room ? left : room,
                               .n = f->n,
                               .arms = f->arms.arms,
                               .n_arms = f->arms.n_arms,
                               .block_tokens = f->o->block,
                               .temperature = (float)f->o->temperature,
                               .top_p = (float)f->o->top_p,
                               .seed = f->seed + f->first,
                               .ban_ngram = f->o->ban,
                               .ban = f->ban,
                               .n_ban = f->n_ban,
                               .ctx = f,
                               .token = take};

        rc = mt_freerun_run(f->o->pm.m, &r, e);
    }
    if (f->tty)
        fputs("\r\033[K", stderr);
    return rc;
}

/* ---- measures ---- */

/* Drawn tokens behind `from`, of an arm in a script. */
static struct written read_back(const struct free_run *f, int script, int arm, int64_t from)
{
    struct written w = {mt_alloc((size_t)f->n, sizeof(*w.ids)),
                        mt_alloc((size_t)f->n, sizeof(*w.nll)), 0};
    int64_t at = ((int64_t)script * f->arms.n_arms + arm) * f->n;

    for (int64_t k = 0; k < f->n && w.ids && w.nll; k++)
        if (k > from && f->script[script * f->n + k] < 0) {
            w.ids[w.n] = f->ids[at + k];
            w.nll[w.n++] = f->nll[at + k];
        }
    return w;
}

/* U+FFFD a token: bytes that became no character. */
static double broken(const struct free_run *f, const struct written *w)
{
    struct mt_detok d = {0};
    char out[4096];
    int64_t bad = 0;

    for (int64_t i = 0; i < w->n; i++)
        if (mt_detok_push(&d, mt_model_tokenizer(f->o->pm.m), w->ids[i], false, out, sizeof(out)) >
            0)
            for (const char *at = out; (at = strstr(at, "\xef\xbf\xbd")); at += 3)
                bad++;
    return w->n > 0 ? (double)bad / (double)w->n : NAN;
}

static double measure_of(const struct free_run *f, enum measure what, const struct written *w)
{
    double sum = 0;

    switch (what) {
    case DISTINCT:
        return quality_distinct(w->ids, w->n);
    case LOOP:
        return quality_loop(w->ids, w->n);
    case BROKEN:
        return broken(f, w);
    default:
        for (int64_t i = 0; i < w->n; i++)
            sum += (double)w->nll[i];
        return w->n > 0 ? sum / (double)w->n : NAN;
    }
}

struct measured {
    struct mt_interval of[MEASURES]; /* arm less control */
    double arm[MEASURES], control[MEASURES];
    int64_t drawn; /* tokens that were compared */
};

static void sum_up(const struct free_run *f, int arm, struct measured *m)
{
    int passages = f->text.passages, each = f->n_scripts / passages;
    int64_t parts = mt_arm_parts(&f->arms.arms[arm]), from = parts < f->n ? parts : -1;
    double *x = mt_alloc((size_t)passages * MEASURES, sizeof(*x));
    double *weight = mt_alloc((size_t)passages, sizeof(*weight)), total = 0;

    *m = (struct measured){0};
    for (int s = 0; s < f->n_scripts && x && weight; s++) {
        struct written a = read_back(f, s, arm, from), c = read_back(f, s, 0, from);

        m->drawn += a.n;
        for (int k = 0; k < MEASURES && a.n >= QUALITY_NGRAM; k++) {
            double mine = measure_of(f, (enum measure)k, &a);
            double control = measure_of(f, (enum measure)k, &c);

            m->arm[k] += mine;
            m->control[k] += control;
            x[(int64_t)k * passages + s / each] += mine - control;
        }
        weight[s / each] += a.n >= QUALITY_NGRAM;
        total += a.n >= QUALITY_NGRAM;
        free(a.ids);
        free(a.nll);
        free(c.ids);
        free(c.nll);
    }
    for (int k = 0; k < MEASURES && x && weight; k++) {
        mt_bootstrap(x + (int64_t)k * passages, weight, passages, f->o->seed, &m->of[k]);
        m->arm[k] /= total;
        m->control[k] /= total;
    }
    free(x);
    free(weight);
}

/* ---- telling ---- */

static json_t *arm_json(const struct free_run *f, const struct quality_setting *s,
                        const struct measured *m)
{
    json_t *o = quality_setting_json("quality_free", &s->arm);

    json_object_set_new(o, "masked", json_boolean(mt_arm_parts(&s->arm) < f->n));
    json_object_set_new(o, "drawn", json_integer(m->drawn));
    for (int k = 0; k < MEASURES; k++) {
        json_t *one = json_object();

        mt_json_set_real(one, "value", m->arm[k]);
        mt_json_set_real(one, "control", m->control[k]);
        quality_interval_json(one, &m->of[k], "diff");
        json_object_set_new(o, measure_name[k], one);
    }
    return o;
}

static json_t *head(const struct free_run *f, const char *why, bool sound)
{
    json_t *o = quality_head_json(f->o, &f->text, why);

    json_object_set_new(o, "turns", json_string(quality_turns_name(f->o)));
    json_object_set_new(o, "turn_count", json_integer(f->turns));
    json_object_set_new(o, "script", json_integer(f->n));
    json_object_set_new(o, "prompt_tokens", json_integer(f->o->prompt_tokens));
    if (f->o->turns != QUALITY_NO_TURNS)
        json_object_set_new(o, "answer_tokens", json_integer(f->o->answer_tokens));
    json_object_set_new(o, "seeds", json_integer(f->o->seeds));
    mt_json_set_real(o, "temperature", f->o->temperature);
    mt_json_set_real(o, "top_p", f->o->top_p);
    json_object_set_new(o, "ban", json_integer(f->o->ban));
    json_object_set_new(o, "control_sound", json_boolean(sound));
    return o;
}

/*
 * What was drawn, token by token, for who counts again: of an arm all behind its first masked
 * token, of the unbounded one everything.
 */
static int print_written(const struct free_run *f, const struct quality_setting *s)
{
    int64_t parts = mt_arm_parts(&s->arm), from = parts < f->n ? parts : -1;
    int rc = 0;

    for (int k = 0; k < f->n_scripts && rc == 0; k++) {
        json_t *o = quality_setting_json("quality_written", &s->arm), *pos = json_array();
        json_t *ids = json_array(), *nll = json_array();
        int64_t at = ((int64_t)k * f->arms.n_arms + s->at) * f->n;

        for (int64_t i = from + 1; i < f->n; i++)
            if (f->script[k * f->n + i] < 0) {
                json_array_append_new(pos, json_integer(i));
                json_array_append_new(ids, json_integer(f->ids[at + i]));
                json_array_append_new(nll, mt_json_real((double)f->nll[at + i]));
            }
        json_object_set_new(o, "script", json_integer(k));
        json_object_set_new(o, "passage", json_integer(k / (f->n_scripts / f->text.passages)));
        json_object_set_new(o, "pos", pos);
        json_object_set_new(o, "tokens", ids);
        json_object_set_new(o, "nll", nll);
        rc = mt_json_line(stdout, o);
    }
    return rc;
}

static void print_arm(const struct quality_setting *s, const struct measured *m, bool masked)
{
    char kv[64];

    mt_policy_format(&s->arm.policy, kv);
    printf("%-22s %-8s", kv, quality_rope_name(&s->arm));
    if (s->arm.policy.bounded && !masked) {
        printf("  nothing was masked: the same as unbounded\n");
        return;
    }
    for (int k = 0; k < BROKEN; k++) {
        char diff[48] = "";

        if (s->arm.policy.bounded)
            quality_interval_text(diff, &m->of[k]);
        printf(" %7.3f %-28s", m->arm[k], diff);
    }
    printf(" %7.4f\n", m->arm[BROKEN]);
}

static int tell(const struct free_run *f)
{
    struct measured control, m;
    sum_up(f, 0, &control);
    const char *why = quality_no_meaning(f->o, control.arm[LOSS]);
    bool sound = control.arm[DISTINCT] >= CONTROL_DISTINCT;
    int rc = 0;

    if (why)
        mt_msg(MT_WARN, "%s", why);
    else if (!sound)
        mt_msg(MT_WARN,
               "the unbounded control repeats itself (distinct-4 %.2f): these settings of the "
               "decoder measure the decoder, not the bound",
               control.arm[DISTINCT]);
    if (f->o->table)
        printf("%s, %s: %d beginnings, %d seeds, turns: %s; beside the unbounded cache, 95 %%\n"
               "%-22s %-8s %-36s %-36s %-36s %s\n",
               mt_model_info(f->o->pm.m)->name, f->o->text, f->text.passages, f->o->seeds,
               quality_turns_name(f->o), "kv", "rope", "distinct-4", "longest loop (share)",
               "nll under the unbounded cache", "broken UTF-8");
    else
        rc = mt_json_line(stdout, head(f, why, sound));
    for (int i = 0; i < f->arms.n_settings && rc == 0; i++) {
        const struct quality_setting *s = &f->arms.settings[i];

        sum_up(f, s->at, &m);
        if (f->o->table)
            print_arm(s, &m, mt_arm_parts(&s->arm) < f->n);
        else
            rc = mt_json_line(stdout, arm_json(f, s, &m));
    }
    for (int i = 0; i < f->arms.n_settings && rc == 0 && f->o->each; i++)
        rc = print_written(f, &f->arms.settings[i]);
    return rc;
}

static int run(struct free_run *f, struct marks *m)
{
    struct mt_err e = {0};

    if (!mt_model_tokenizer(f->o->pm.m)) {
        mt_msg(MT_ERROR, "--free: the model has no tokenizer");
        return MT_EXIT_FAILED;
    }
    if (load_marks(m, f->o) < 0) {
        mt_msg(MT_ERROR, "--free: out of memory");
        return MT_EXIT_FAILED;
    }
    f->cut = *f->o;
    int status = plan(f, m);
    if (status == MT_EXIT_OK)
        status = quality_text_open(&f->text, &f->cut);
    if (status == MT_EXIT_OK)
        status = quality_arms_make(&f->arms, f->o, f->text.n_prompt);
    if (status != MT_EXIT_OK)
        return status;
    if (mt_freerun_rows(f->arms.n_arms) > mt_model_info(f->o->pm.m)->step_rows) {
        mt_msg(MT_ERROR, "--free: %d settings are too many at once", f->arms.n_settings);
        return MT_EXIT_USAGE;
    }
    load_ban(f);
    int rc = make_scripts(f, m);
    if (rc < 0)
        mt_err_set(&e, rc, "out of memory");
    else
        rc = run_all(f, &e);
    if (rc < 0) {
        mt_msg(MT_ERROR, "%s", e.text);
        return MT_EXIT_FAILED;
    }
    rc = tell(f);
    return rc < 0 && rc != -EPIPE ? MT_EXIT_FAILED : MT_EXIT_OK;
}

int quality_free(const struct quality_options *o)
{
    struct free_run f = {.o = o, .tty = isatty(STDERR_FILENO)};
    struct marks m = {0};
    int status = run(&f, &m);

    free_marks(&m);
    free(f.script);
    free(f.seed);
    free(f.ids);
    free(f.nll);
    quality_text_close(&f.text);
    return status;
}
