/*
 * quality_needle.c: mt-probe quality --needle: what does a bounded session no longer know? A fact
 * stands in the text and is asked for some tokens later, inside the window and outside. The control
 * is the same text in which another fact was told: how much better the right answer is expected
 * where it was told is what is known of it. What is drawn anew for the intervals are passages.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/probe/quality.h"

enum { LEAD = 48 /* of the text before the fact, so that it is no sink */ };

struct piece {
    int32_t *ids;
    size_t n;
};

struct needle {
    const struct quality_options *o;
    struct quality_options cut;
    struct quality_text text;
    struct quality_arms arms;
    struct quality_list distances;
    /* Of the script in work. */
    int64_t from, to; /* rows whose token is the answer's */
    double *nll;      /* [n_arms] their sum */
    bool *hit;        /* [n_arms] all of them the likeliest */
    /* [distances][n_arms][passages]: mean losses of an answer token, told and not; recalled, too */
    double *told, *control, *recalled, *guessed;
    int64_t near[QUALITY_LIST]; /* from the fact's first token to the query behind the question */
    double all, rows;           /* of the unbounded one, on everything */
    bool tty;
};

static const char *const names[] = {"Anne",  "Henry",  "Clara", "Edmund", "Louisa", "George",
                                    "Julia", "Walter", "Sophy", "Robert", "Maria",  "Thomas"};

static int encode(const struct needle *d, const char *text, struct piece *p)
{
    return mt_tokenizer_encode(mt_model_tokenizer(d->o->pm.m), text, strlen(text), false, &p->ids,
                               &p->n, NULL);
}

/* Four digits, by seed and passage; which: the right ones or the control's, never the same. */
static int code_of(const struct needle *d, int passage, int which)
{
    uint64_t x = mt_mix64(d->o->seed * 1000003 + (uint64_t)passage);
    int right = 1000 + (int)(x % 9000), other = 1000 + (int)(mt_mix64(x) % 9000);

    return which == 0 ? right : other == right ? 9999 - right % 1000 : other;
}

/* Fact, question and answer of a passage as tokens; the fact may be the control's. */
struct story {
    struct piece fact, head, ask, answer; /* head: of the fact, before the code */
};

static void free_story(struct story *s)
{
    free(s->fact.ids);
    free(s->head.ids);
    free(s->ask.ids);
    free(s->answer.ids);
    *s = (struct story){0};
}

static int make_story(const struct needle *d, int passage, int which, struct story *s)
{
    const char *name = names[(size_t)passage % MT_COUNT(names)];
    char head[100], fact[120], ask[100], answer[16];

    *s = (struct story){0};
    snprintf(head, sizeof(head), "\n\nThe secret number of %s is ", name);
    snprintf(fact, sizeof(fact), "%d. Remember it.\n\n", code_of(d, passage, which));
    snprintf(ask, sizeof(ask), "\n\nWhat is it? The secret number of %s is ", name);
    snprintf(answer, sizeof(answer), "%d", code_of(d, passage, 0));
    int rc = encode(d, head, &s->head);
    if (rc == 0)
        rc = encode(d, fact, &s->fact);
    if (rc == 0)
        rc = encode(d, ask, &s->ask);
    if (rc == 0)
        rc = encode(d, answer, &s->answer);
    return rc;
}

static int32_t *put(int32_t *at, const int32_t *ids, size_t n)
{
    memcpy(at, ids, n * sizeof(*at));
    return at + n;
}

static int take(void *ctx, int arm, int64_t pos, const struct mt_expected *x)
{
    struct needle *d = ctx;

    if (arm == 0) {
        d->all += (double)x->nll;
        d->rows++;
    }
    if (pos >= d->from && pos < d->to) {
        d->nll[arm] += (double)x->nll;
        d->hit[arm] = d->hit[arm] && x->hit;
    }
    return 0;
}

/* One text: told or control, asked at one distance. */
static int run_script(struct needle *d, int passage, int distance, int which, struct mt_err *e)
{
    int64_t gap = d->distances.v[distance], n;
    int32_t *text = quality_passage(&d->text, passage), *ids = NULL, *at;
    struct story s;
    int rc = text ? make_story(d, passage, which, &s) : -ENOMEM;

    if (rc < 0) {
        free(text);
        return mt_err_set(e, rc, "out of memory");
    }
    if (gap < (int64_t)s.ask.n + 8) {
        rc = mt_err_set(e, -EINVAL, "--distances: %lld tokens are less than the question has",
                        (long long)gap);
    } else {
        int64_t filler = gap - (int64_t)s.ask.n, prompt = d->text.n_prompt;

        n = prompt + LEAD + (int64_t)(s.head.n + s.fact.n + s.answer.n) + gap;
        at = ids = mt_alloc((size_t)n, sizeof(*ids));
        if (!ids)
            rc = mt_err_set(e, -ENOMEM, "out of memory");
        else {
            at = put(at, text, (size_t)(prompt + LEAD));
            at = put(at, s.head.ids, s.head.n);
            int64_t told = at - ids;
            at = put(at, s.fact.ids, s.fact.n);
            at = put(at, text + prompt + LEAD, (size_t)filler);
            at = put(at, s.ask.ids, s.ask.n);
            d->from = at - ids - 1;
            d->to = d->from + (int64_t)s.answer.n;
            d->near[distance] = d->from - told;
            put(at, s.answer.ids, s.answer.n);
            for (int i = 0; i < d->arms.n_arms; i++) {
                d->nll[i] = 0;
                d->hit[i] = true;
            }
            struct mt_panel p = {.ids = ids,
                                 .n = n,
                                 .arms = d->arms.arms,
                                 .n_arms = d->arms.n_arms,
                                 .block_tokens = d->o->block,
                                 .ctx = d,
                                 .row = take};
            rc = mt_panel_run(d->o->pm.m, &p, e);
        }
    }
    for (int i = 0; i < d->arms.n_arms && rc == 0; i++) {
        int64_t cell = ((int64_t)distance * d->arms.n_arms + i) * d->text.passages + passage;

        (which ? d->control : d->told)[cell] = d->nll[i] / (double)(d->to - d->from);
        (which ? d->guessed : d->recalled)[cell] = d->hit[i];
    }
    free_story(&s);
    free(text);
    free(ids);
    return rc;
}

static int run_all(struct needle *d, struct mt_err *e)
{
    int scripts = d->text.passages * d->distances.n * 2, rc = 0;

    for (int k = 0; k < scripts && rc == 0; k++) {
        if (d->tty)
            fprintf(stderr, "\r\033[Ktext %d of %d", k + 1, scripts);
        rc = run_script(d, k / 2 / d->distances.n, k / 2 % d->distances.n, k % 2, e);
    }
    if (d->tty)
        fputs("\r\033[K", stderr);
    return rc;
}

/* ---- telling ---- */

/* Over passages: told less control is below 0 where something is known; turned around. */
static struct mt_interval over(const struct needle *d, const double *a, const double *b,
                               int distance, int arm)
{
    int n = d->text.passages;
    int64_t cell = ((int64_t)distance * d->arms.n_arms + arm) * n;
    double *x = mt_alloc((size_t)n, sizeof(*x)), *one = mt_alloc((size_t)n, sizeof(*one));
    struct mt_interval out = {NAN, NAN, NAN, 0};

    for (int p = 0; p < n && x && one; p++) {
        x[p] = a[cell + p] - (b ? b[cell + p] : 0);
        one[p] = 1;
    }
    if (x && one)
        mt_bootstrap(x, one, n, d->o->seed, &out);
    free(x);
    free(one);
    return out;
}

/* Does the query behind the question see all of the fact? */
static bool inside(const struct needle *d, const struct mt_arm *a, int distance)
{
    return !a->policy.bounded || d->near[distance] < a->policy.window;
}

static json_t *row_json(const struct needle *d, const struct quality_setting *s, int distance)
{
    json_t *o = quality_setting_json("quality_needle", &s->arm);
    struct mt_interval known = over(d, d->control, d->told, distance, s->at);

    json_object_set_new(o, "distance", json_integer(d->distances.v[distance]));
    json_object_set_new(o, "inside", json_boolean(inside(d, &s->arm, distance)));
    mt_json_set_real(o, "told", over(d, d->told, NULL, distance, s->at).mean);
    mt_json_set_real(o, "control", over(d, d->control, NULL, distance, s->at).mean);
    quality_interval_json(o, &known, "known");
    mt_json_set_real(o, "recalled", over(d, d->recalled, NULL, distance, s->at).mean);
    mt_json_set_real(o, "recalled_control", over(d, d->guessed, NULL, distance, s->at).mean);
    return o;
}

static void print_row(const struct needle *d, const struct quality_setting *s, int distance)
{
    struct mt_interval known = over(d, d->control, d->told, distance, s->at);
    char kv[64], text[48];

    mt_policy_format(&s->arm.policy, kv);
    quality_interval_text(text, &known);
    printf("%-22s %-8s %8lld %-8s %8.3f %8.3f %26s %8.2f %8.2f\n", kv, quality_rope_name(&s->arm),
           (long long)d->distances.v[distance], inside(d, &s->arm, distance) ? "inside" : "outside",
           over(d, d->told, NULL, distance, s->at).mean,
           over(d, d->control, NULL, distance, s->at).mean, text,
           over(d, d->recalled, NULL, distance, s->at).mean,
           over(d, d->guessed, NULL, distance, s->at).mean);
}

static int tell(const struct needle *d)
{
    const char *why = quality_no_meaning(d->o, d->all / d->rows);
    int rc = 0;

    if (why)
        mt_msg(MT_WARN, "%s", why);
    if (d->o->table)
        printf("%s, %s: facts told so many tokens before they are asked for, in %d passages; nats "
               "an answer token\n%-22s %-8s %8s %-8s %8s %8s %26s %8s %8s\n",
               mt_model_info(d->o->pm.m)->name, d->o->text, d->text.passages, "kv", "rope",
               "distance", "", "told", "control", "known, 95 %", "recalled", "untold");
    else
        rc = mt_json_line(stdout, quality_head_json(d->o, &d->text, why));
    for (int i = 0; i < d->arms.n_settings; i++)
        for (int k = 0; k < d->distances.n && rc == 0; k++) {
            if (d->o->table)
                print_row(d, &d->arms.settings[i], k);
            else
                rc = mt_json_line(stdout, row_json(d, &d->arms.settings[i], k));
        }
    return rc;
}

/* ---- all of it ---- */

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return (x > y) - (x < y);
}

static void add_distance(struct quality_list *l, int64_t v)
{
    for (int i = 0; i < l->n; i++)
        if (l->v[i] == v)
            return;
    if (l->n < QUALITY_LIST)
        l->v[l->n++] = v;
}

static void plan(struct needle *d)
{
    d->distances = d->o->distances;
    for (int i = 0; i < d->o->windows.n && !d->o->distances.n; i++) {
        add_distance(&d->distances, d->o->windows.v[i] / 2);
        add_distance(&d->distances, d->o->windows.v[i] * 2);
    }
    qsort(d->distances.v, (size_t)d->distances.n, sizeof(*d->distances.v), by_value);
    d->cut = *d->o;
    d->cut.tokens = LEAD + d->distances.v[d->distances.n - 1];
}

static int run(struct needle *d)
{
    struct mt_err e = {0};

    plan(d);
    int status = quality_text_open(&d->text, &d->cut);
    if (status == MT_EXIT_OK)
        status = quality_arms_make(&d->arms, d->o, d->text.n_prompt);
    if (status != MT_EXIT_OK)
        return status;
    size_t arms = (size_t)d->arms.n_arms;
    size_t cells = mt_mul(arms * (size_t)d->distances.n, (size_t)d->text.passages);
    d->nll = mt_alloc(arms, sizeof(*d->nll));
    d->hit = mt_alloc(arms, sizeof(*d->hit));
    d->told = mt_alloc(cells, sizeof(*d->told));
    d->control = mt_alloc(cells, sizeof(*d->control));
    d->recalled = mt_alloc(cells, sizeof(*d->recalled));
    d->guessed = mt_alloc(cells, sizeof(*d->guessed));
    int rc = d->nll && d->hit && d->told && d->control && d->recalled && d->guessed
                 ? run_all(d, &e)
                 : mt_err_set(&e, -ENOMEM, "out of memory");
    if (rc < 0) {
        mt_msg(MT_ERROR, "%s", e.text);
        return rc == -EINVAL ? MT_EXIT_USAGE : MT_EXIT_FAILED;
    }
    rc = tell(d);
    return rc < 0 && rc != -EPIPE ? MT_EXIT_FAILED : MT_EXIT_OK;
}

int quality_needle(const struct quality_options *o)
{
    struct needle d = {.o = o, .tty = isatty(STDERR_FILENO)};
    int status = run(&d);

    free(d.nll);
    free(d.hit);
    free(d.told);
    free(d.control);
    free(d.recalled);
    free(d.guessed);
    quality_text_close(&d.text);
    return status;
}
