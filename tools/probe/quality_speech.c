/*
 * quality_speech.c: mt-probe quality --audio: clips are heard under each setting by the engine
 * itself, and what is answered is put beside what an unbounded cache answers.
 *
 * With the same draws one token that differs changes all that follows, however small the reason, so
 * that a distance between two answers alone says nothing. The control is therefore the distance
 * between two unbounded answers to the same clip with different draws, and a setting's is that
 * between its own and an unbounded one's with different draws: where the bound changes nothing but
 * chance, both are the same. Only clips behind which a setting had lost its first token count. What
 * is drawn anew for the intervals are clips.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "control/edit.h"
#include "engine/answers.h"
#include "tools/probe/quality.h"

enum { CALLS_AT_ONCE = 16 };

/* What was said to a clip in a call. */
struct answer {
    char *text;
    size_t n_text;
    int32_t *ids, *chars, *heard; /* tokens; characters, as written and as spoken */
    int64_t n_ids, n_chars, n_heard;
    int64_t end; /* tokens that the call had behind it */
};

/* In the order of the table; ERROR only of clips whose words are known. */
enum measure { DISTANCE, ERROR, LENGTH, DISTINCT, LOOP, BROKEN, MEASURES };
static const char *const measure_name[] = {"distance",  "error", "characters",
                                           "distinct4", "loop",  "broken_utf8"};

struct speech {
    const struct quality_options *o;
    struct quality_arms arms;
    struct mt_answers_clip *clips;
    float **pcm;
    int32_t **said; /* [n_clips] what is said in it, as spoken; NULL where that is not known */
    int64_t *n_said;
    int *order;             /* 0, 1, …: a call through all clips */
    struct answer *answers; /* [n_arms][seeds][n_clips] */
    int arm, first;         /* in work, and its first call */
    int64_t frames, done;   /* of all arms */
    bool tty;
};

static struct answer *answer_at(const struct speech *s, int arm, int seed, int clip)
{
    return &s->answers[((int64_t)arm * s->o->seeds + seed) * s->o->n_clips + clip];
}

/* ---- the clips ---- */

static int load_transcript(struct speech *s, int k)
{
    size_t n;
    char *text = probe_text(s->o->clips[k].transcript, &n);

    if (!text)
        return MT_EXIT_FAILED;
    s->n_said[k] = mt_edit_chars(text, n, true, &s->said[k]);
    free(text);
    if (s->n_said[k] > 0)
        return MT_EXIT_OK;
    mt_msg(MT_ERROR, "%s: %s", s->o->clips[k].transcript,
           s->n_said[k] < 0 ? "out of memory" : "no word is in it");
    return MT_EXIT_FAILED;
}

static int load(struct speech *s)
{
    const struct mt_model_info *info = mt_model_info(s->o->pm.m);
    size_t n = (size_t)s->o->n_clips;
    int status = MT_EXIT_OK;

    if (!info->beat_samples) {
        mt_msg(MT_ERROR, "--audio: %s",
               info->no_calls ? info->no_calls : "the model hears nothing (--mmproj)");
        return MT_EXIT_FAILED;
    }
    s->clips = mt_alloc(n, sizeof(*s->clips));
    s->pcm = mt_alloc(n, sizeof(*s->pcm));
    s->said = mt_alloc(n, sizeof(*s->said));
    s->n_said = mt_alloc(n, sizeof(*s->n_said));
    s->order = mt_alloc(n, sizeof(*s->order));
    if (!s->clips || !s->pcm || !s->said || !s->n_said || !s->order) {
        mt_msg(MT_ERROR, "--audio: out of memory");
        return MT_EXIT_FAILED;
    }
    for (int k = 0; k < s->o->n_clips && status == MT_EXIT_OK; k++) {
        s->order[k] = k;
        status = probe_clip(s->o->clips[k].audio, info->sample_rate_hz, &s->pcm[k], &s->clips[k].n);
        s->clips[k].pcm = s->pcm[k];
        s->frames += (s->clips[k].n + info->beat_samples - 1) / info->beat_samples;
        if (status == MT_EXIT_OK && s->o->clips[k].transcript)
            status = load_transcript(s, k);
    }
    return status;
}

/* ---- the calls ---- */

static int append(void **data, size_t *n, const void *more, size_t count, size_t size)
{
    void *grown = realloc(*data, mt_mul(*n + count + 1, size));

    if (!grown)
        return -ENOMEM;
    memcpy((char *)grown + *n * size, more, count * size);
    *data = grown;
    *n += count;
    return 0;
}

static int take(void *ctx, int call, int at, const struct mt_record *r)
{
    struct speech *s = ctx;
    bool fresh = s->o->turns == QUALITY_FRESH;
    int number = s->first + call, seed = fresh ? number / s->o->n_clips : number;
    struct answer *a = answer_at(s, s->arm, seed, fresh ? number % s->o->n_clips : at);
    void *text = a->text, *ids = a->ids;
    size_t n = (size_t)a->n_ids;
    int rc = append(&text, &a->n_text, r->text, strlen(r->text), 1);

    a->text = text;
    if (rc == 0)
        rc = append(&ids, &n, r->tokens, (size_t)r->tokens_out, sizeof(*r->tokens));
    a->ids = ids;
    a->n_ids = (int64_t)n;
    a->end = r->kv_tokens;
    s->done++;
    if (s->tty)
        fprintf(stderr, "\r\033[Ksetting %d of %d: %.0f %%", s->arm + 1, s->arms.n_arms,
                100 * (double)s->done / (double)(s->frames * s->o->seeds * s->arms.n_arms));
    return rc;
}

static int run_arm(struct speech *s, struct mt_err *e)
{
    bool fresh = s->o->turns == QUALITY_FRESH;
    int n = s->o->seeds * (fresh ? s->o->n_clips : 1), rc = 0;

    for (s->first = 0; s->first < n && rc == 0; s->first += CALLS_AT_ONCE) {
        struct mt_answers_call calls[CALLS_AT_ONCE];
        int some = n - s->first < CALLS_AT_ONCE ? n - s->first : CALLS_AT_ONCE;

        for (int i = 0; i < some; i++) {
            int number = s->first + i, seed = fresh ? number / s->o->n_clips : number;

            calls[i] =
                (struct mt_answers_call){s->order + (fresh ? number % s->o->n_clips : 0),
                                         fresh ? 1 : s->o->n_clips, s->o->seed + (uint64_t)seed};
        }
        struct mt_answers a = {.clips = s->clips,
                               .calls = calls,
                               .n_calls = some,
                               .policy = s->arms.arms[s->arm].policy,
                               .kv_type = s->arms.arms[s->arm].kv_type,
                               .block_tokens = s->o->block,
                               .mode =
                                   s->o->turns == QUALITY_NO_TURNS ? MT_MODE_FREE : MT_MODE_TURN,
                               .system = s->o->system,
                               .temperature = (float)s->o->temperature,
                               .top_p = (float)s->o->top_p,
                               .answer_tokens = (int)s->o->answer_tokens,
                               .ctx = s,
                               .frame = take};
        rc = mt_answers_run(s->o->pm.m, &a, e);
    }
    return rc;
}

/* Texts as characters, once all is said. */
static int read_answers(struct speech *s)
{
    for (int i = 0; i < s->arms.n_arms * s->o->seeds * s->o->n_clips; i++) {
        struct answer *a = &s->answers[i];

        a->n_chars = mt_edit_chars(a->text, a->n_text, false, &a->chars);
        a->n_heard = mt_edit_chars(a->text, a->n_text, true, &a->heard);
        if (a->n_chars < 0 || a->n_heard < 0)
            return -ENOMEM;
    }
    return 0;
}

/* ---- measures ---- */

/* Changes as a share of the longer one. */
static double apart(const struct answer *a, const struct answer *b)
{
    int64_t most = a->n_chars > b->n_chars ? a->n_chars : b->n_chars;

    return most
               ? (double)mt_edit_distance(a->chars, a->n_chars, b->chars, b->n_chars) / (double)most
               : 0;
}

/* Characters that should be none, a character. */
static double broken(const struct answer *a)
{
    int64_t bad = 0;

    for (int64_t i = 0; i < a->n_chars; i++)
        bad += a->chars[i] == 0xfffd;
    return a->n_chars ? (double)bad / (double)a->n_chars : NAN;
}

/* NaN where there is nothing to measure. */
static double measure_of(const struct speech *s, enum measure what, int arm, int seed, int clip)
{
    const struct answer *a = answer_at(s, arm, seed, clip);
    double sum = 0;
    int n = 0;

    switch (what) {
    case DISTANCE:
        for (int other = 0; other < s->o->seeds; other++)
            if (other != seed || s->o->seeds == 1) {
                sum += apart(a, answer_at(s, 0, other, clip));
                n++;
            }
        return sum / n;
    case ERROR:
        return s->said[clip] ? (double)mt_edit_distance(s->said[clip], s->n_said[clip], a->heard,
                                                        a->n_heard) /
                                   (double)s->n_said[clip]
                             : NAN;
    case LENGTH:
        return (double)a->n_chars;
    case DISTINCT:
        return quality_distinct(a->ids, a->n_ids);
    case LOOP:
        return quality_loop(a->ids, a->n_ids);
    default:
        return broken(a);
    }
}

struct measured {
    struct mt_interval of[MEASURES]; /* arm less control */
    double arm[MEASURES], control[MEASURES];
    int64_t answers, same; /* that count, and those that are the unbounded one's to the letter */
};

/* Had this setting lost its first token before the clip was over? The first arm lost none. */
static bool counts(const struct speech *s, int arm, int seed, int clip)
{
    return arm == 0 || answer_at(s, 0, seed, clip)->end > mt_arm_parts(&s->arms.arms[arm]);
}

static int sum_up(const struct speech *s, int arm, struct measured *m)
{
    int n = s->o->n_clips;
    double *x = mt_alloc((size_t)n, sizeof(*x)), *weight = mt_alloc((size_t)n, sizeof(*weight));

    *m = (struct measured){0};
    for (int k = 0; x && weight && k < MEASURES; k++) {
        double mine = 0, control = 0, total = 0;

        for (int clip = 0; clip < n; clip++) {
            x[clip] = weight[clip] = 0;
            for (int seed = 0; seed < s->o->seeds; seed++) {
                double a = measure_of(s, (enum measure)k, arm, seed, clip);
                double c = measure_of(s, (enum measure)k, 0, seed, clip);

                if (!counts(s, arm, seed, clip) || isnan(a) || isnan(c))
                    continue;
                mine += a;
                control += c;
                x[clip] += a - c;
                weight[clip]++;
                total++;
            }
        }
        mt_bootstrap(x, weight, n, s->o->seed, &m->of[k]);
        m->arm[k] = mine / total;
        m->control[k] = control / total;
    }
    for (int clip = 0; clip < n; clip++)
        for (int seed = 0; seed < s->o->seeds; seed++)
            if (counts(s, arm, seed, clip)) {
                const struct answer *a = answer_at(s, arm, seed, clip);
                const struct answer *u = answer_at(s, 0, seed, clip);

                m->answers++;
                m->same += a->n_text == u->n_text && !memcmp(a->text, u->text, a->n_text);
            }
    bool ok = x && weight;
    free(x);
    free(weight);
    return ok ? 0 : -ENOMEM;
}

/* ---- telling ---- */

/* Greedy answers are always the same: there is no chance to measure a distance by. */
static bool has_control(const struct speech *s)
{
    return s->o->seeds > 1;
}

static json_t *head(const struct speech *s, const char *why)
{
    json_t *o = quality_head_json(s->o, NULL, why);
    int known = 0;

    for (int k = 0; k < s->o->n_clips; k++)
        known += s->said[k] != NULL;
    json_object_set_new(o, "clips", json_integer(s->o->n_clips));
    json_object_set_new(o, "transcripts", json_integer(known));
    json_object_set_new(o, "frames", json_integer(s->frames));
    json_object_set_new(o, "turns", json_string(quality_turns_name(s->o)));
    json_object_set_new(o, "answer_tokens", json_integer(s->o->answer_tokens));
    json_object_set_new(o, "seeds", json_integer(s->o->seeds));
    mt_json_set_real(o, "temperature", s->o->temperature);
    mt_json_set_real(o, "top_p", s->o->top_p);
    json_object_set_new(o, "control_sound", json_boolean(has_control(s)));
    return o;
}

static json_t *arm_json(const struct quality_setting *set, const struct measured *m)
{
    json_t *o = quality_setting_json("quality_speech", &set->arm);

    json_object_set_new(o, "answers", json_integer(m->answers));
    json_object_set_new(o, "same", json_integer(m->same));
    for (int k = 0; k < MEASURES; k++) {
        json_t *one = json_object();

        if (isnan(m->arm[k])) {
            json_decref(one);
            continue;
        }
        mt_json_set_real(one, "value", m->arm[k]);
        mt_json_set_real(one, "control", m->control[k]);
        quality_interval_json(one, &m->of[k], "diff");
        json_object_set_new(o, measure_name[k], one);
    }
    return o;
}

/* Every answer, for who wants to read them. */
static int print_answers(const struct speech *s, const struct quality_setting *set)
{
    int rc = 0;

    for (int seed = 0; seed < s->o->seeds; seed++)
        for (int clip = 0; clip < s->o->n_clips && rc == 0; clip++) {
            json_t *o = quality_setting_json("quality_answer", &set->arm);
            const struct answer *a = answer_at(s, set->at, seed, clip);

            json_object_set_new(o, "clip", json_string(s->o->clips[clip].audio));
            json_object_set_new(o, "seed", json_integer((json_int_t)s->o->seed + seed));
            json_object_set_new(o, "counts", json_boolean(counts(s, set->at, seed, clip)));
            json_object_set_new(o, "text", json_stringn(a->text, a->n_text));
            rc = mt_json_line(stdout, o);
        }
    return rc;
}

static void print_arm(const struct quality_setting *set, const struct measured *m)
{
    static const enum measure columns[] = {DISTANCE, ERROR, DISTINCT, LENGTH};
    const struct mt_policy *p = &set->arm.policy;
    char kv[64];

    mt_policy_format(p, kv);
    printf("%-22s %-8s", kv, quality_rope_name(&set->arm));
    if (!m->answers) {
        printf("  nothing was lost: the same as unbounded\n");
        return;
    }
    printf(" %4lld %4lld", (long long)m->answers, (long long)m->same);
    for (size_t i = 0; i < MT_COUNT(columns); i++) {
        char diff[48] = "";

        if (p->bounded)
            quality_interval_text(diff, &m->of[columns[i]]);
        if (isnan(m->arm[columns[i]]))
            printf(" %7s %-27s", "-", "");
        else
            printf(" %7.3f %-27s", m->arm[columns[i]], diff);
    }
    putchar('\n');
}

static int tell(const struct speech *s)
{
    const char *why = quality_no_meaning(s->o, 0);
    int rc = 0;

    if (why)
        mt_msg(MT_WARN, "%s", why);
    else if (!has_control(s))
        mt_msg(MT_WARN, "greedy answers have no control: distances tell that they differ, not that "
                        "it matters (--temperature, --seeds)");
    if (s->o->table)
        printf("%s: %d clips, %d seeds, turns: %s; beside the unbounded cache, 95 %%\n"
               "%-22s %-8s %4s %4s %-35s %-35s %-35s %s\n",
               mt_model_info(s->o->pm.m)->name, s->o->n_clips, s->o->seeds,
               quality_turns_name(s->o), "kv", "rope", "of", "same", "distance",
               "error to transcript", "distinct-4", "characters");
    else
        rc = mt_json_line(stdout, head(s, why));
    for (int i = 0; i < s->arms.n_settings && rc == 0; i++) {
        const struct quality_setting *set = &s->arms.settings[i];
        struct measured m;

        rc = sum_up(s, set->at, &m);
        if (rc == 0 && s->o->table)
            print_arm(set, &m);
        else if (rc == 0)
            rc = mt_json_line(stdout, arm_json(set, &m));
    }
    for (int i = 0; i < s->arms.n_settings && rc == 0 && s->o->each; i++)
        rc = print_answers(s, &s->arms.settings[i]);
    return rc;
}

/* ---- all of it ---- */

static int run(struct speech *s)
{
    enum mt_mode mode = s->o->turns == QUALITY_NO_TURNS ? MT_MODE_FREE : MT_MODE_TURN;
    struct mt_err e = {0};
    int32_t *prompt = NULL;
    int n_prompt = 0, rc = 0, status = load(s);

    if (status != MT_EXIT_OK)
        return status;
    if (quality_has_prompt(s->o))
        rc = quality_prompt(s->o, mode, &prompt, &n_prompt, &e);
    free(prompt);
    if (rc == 0 && (status = quality_arms_make(&s->arms, s->o, n_prompt)) != MT_EXIT_OK)
        return status;
    s->answers = mt_alloc(mt_mul((size_t)(s->arms.n_arms * s->o->seeds), (size_t)s->o->n_clips),
                          sizeof(*s->answers));
    if (rc == 0 && !s->answers)
        rc = mt_err_set(&e, -ENOMEM, "out of memory");
    for (s->arm = 0; rc == 0 && s->arm < s->arms.n_arms; s->arm++)
        rc = run_arm(s, &e);
    if (s->tty)
        fputs("\r\033[K", stderr);
    if (rc == 0 && (rc = read_answers(s)) < 0)
        mt_err_set(&e, rc, "out of memory");
    if (rc < 0) {
        mt_msg(MT_ERROR, "--audio: %s", e.code ? e.text : strerror(-rc));
        return rc == -EINVAL ? MT_EXIT_USAGE : MT_EXIT_FAILED;
    }
    rc = tell(s);
    return rc < 0 && rc != -EPIPE ? MT_EXIT_FAILED : MT_EXIT_OK;
}

int quality_speech(const struct quality_options *o)
{
    struct speech s = {.o = o, .tty = isatty(STDERR_FILENO)};
    int status = run(&s);

    for (int i = 0; s.answers && i < s.arms.n_arms * o->seeds * o->n_clips; i++) {
        free(s.answers[i].text);
        free(s.answers[i].ids);
        free(s.answers[i].chars);
        free(s.answers[i].heard);
    }
    free(s.answers);
    for (int k = 0; k < o->n_clips; k++) {
        if (s.pcm)
            free(s.pcm[k]);
        if (s.said)
            free(s.said[k]);
    }
    free(s.clips);
    free(s.pcm);
    free(s.said);
    free(s.n_said);
    free(s.order);
    return status;
}
