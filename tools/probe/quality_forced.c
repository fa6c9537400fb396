/*
 * quality_forced.c: mt-probe quality, teacher-forced: a text through all settings at once, each
 * token's loss beside the unbounded cache's on the same token. What is told is the mean of these
 * differences, by distance from the start, with how sure it is.
 */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/probe/quality.h"

enum { ARMS_AT_ONCE = 64 };

struct forced {
    const struct quality_options *o;
    struct quality_text text;
    struct quality_arms arms;
    struct quality_state *state;
    struct quality_seen *seen; /* [passages][n_arms] */
    /* [passages] of the first arm with weights as they were released, NULL: they are so here. */
    const struct quality_seen *plain;
    int64_t rows, first;   /* of a passage; of these the first whose token is the text's */
    int map[QUALITY_ARMS]; /* of the arms that run now: which they are */
    int passage, part, parts;
    bool tty;
};

static struct quality_seen *seen_of(const struct forced *f, int passage, int arm)
{
    return &f->seen[passage * f->arms.n_arms + arm];
}

/* ---- measuring ---- */

static void progress(const struct forced *f, int64_t pos)
{
    double share = (double)(pos + 1) / (double)f->rows;

    if (f->tty && (pos % 16 == 0 || pos + 1 == f->rows))
        fprintf(stderr, "\r\033[Kpassage %d of %d%s: %.0f %%", f->passage + 1, f->text.passages,
                f->parts > 1 ? f->part ? ", more settings" : ", first settings" : "", 100 * share);
}

static int take(void *ctx, int arm, int64_t pos, const struct mt_expected *x)
{
    struct forced *f = ctx;
    struct quality_seen *s = seen_of(f, f->passage, f->map[arm]);

    s->nll[pos] = x->nll;
    s->kl[pos] = x->kl;
    s->agree[pos] = x->agree;
    if (arm == 0)
        progress(f, pos);
    return 0;
}

/* What the values of an arm depend on: program, model, passage, the arm and the first one. */
static uint64_t key_of(const struct forced *f, const int32_t *ids, int arm)
{
    const struct mt_model_info *info = mt_model_info(f->o->pm.m);
    const char *spec = mt_model_spec(f->o->pm.m);
    const struct mt_arm *a = &f->arms.arms[arm], *first = &f->arms.arms[0];
    const int64_t parts[] = {1,
                             (int64_t)f->o->pm.quantize,
                             info->weight_bytes,
                             a->policy.bounded,
                             a->policy.bounded ? a->policy.window : 0,
                             a->policy.bounded ? a->policy.sinks : 0,
                             a->policy.sinks > 0 && a->policy.rope_absolute,
                             (int64_t)a->kv_type,
                             a->moved,
                             (int64_t)first->kv_type,
                             first->moved};
    const char *backend = mt_model_backend(f->o->pm.m)->ops->name;
    uint64_t h = mt_hash(MT_HASH_INIT, spec, strlen(spec) + 1);

    h = mt_hash(h, MT_VERSION, sizeof(MT_VERSION));
    h = mt_hash(h, backend, strlen(backend) + 1);
    h = mt_hash(h, info->name, strlen(info->name) + 1);
    h = mt_hash(h, ids, (size_t)(f->rows + 1) * sizeof(*ids));
    return mt_hash(h, parts, sizeof(parts));
}

/*
 * The arms that run: the first, and those in `which` with the unbounded ones that they come from.
 */
static int pick(struct forced *f, const bool *which, int from, int n, struct mt_arm *out)
{
    const struct mt_arm *all = f->arms.arms;
    bool run[QUALITY_ARMS] = {true};
    int count = 0;

    for (int i = from; i < from + n; i++)
        for (int k = 0; k < f->arms.n_arms && which[i]; k++)
            run[k] = run[k] || k == i ||
                     (!all[k].policy.bounded && all[k].kv_type == all[i].kv_type &&
                      all[k].moved == all[i].moved);
    for (int k = 0; k < f->arms.n_arms; k++)
        if (run[k]) {
            f->map[count] = k;
            out[count++] = all[k];
        }
    return count;
}

/* Some of the arms that lack, at most as many as a step takes. */
static int run_some(struct forced *f, const int32_t *ids, const bool *lack, int from, int n,
                    struct mt_err *e)
{
    struct mt_arm arms[QUALITY_ARMS];
    struct mt_panel p = {.ids = ids,
                         .n = f->rows + 1,
                         .arms = arms,
                         .n_arms = pick(f, lack, from, n, arms),
                         .block_tokens = f->o->block,
                         .ctx = f,
                         .row = take};
    int rc = mt_panel_run(f->o->pm.m, &p, e);

    for (int i = 0; i < p.n_arms && rc == 0; i++)
        if (lack[f->map[i]] && f->map[i] >= from && f->map[i] < from + n)
            rc = quality_state_put(f->state, key_of(f, ids, f->map[i]),
                                   seen_of(f, f->passage, f->map[i]));
    return rc < 0 ? mt_err_set(e, rc, "%s: %s", f->o->state, strerror(-rc)) : rc;
}

static int run_passage(struct forced *f, struct mt_err *e)
{
    int32_t *ids = quality_passage(&f->text, f->passage);
    int n = f->arms.n_arms, lacking = 0, rc = 0;
    bool lack[QUALITY_ARMS];

    if (!ids)
        return mt_err_set(e, -ENOMEM, "out of memory");
    for (int i = 0; i < n; i++) {
        if (quality_seen_make(seen_of(f, f->passage, i), f->rows) < 0)
            rc = mt_err_set(e, -ENOMEM, "out of memory");
        lack[i] =
            rc == 0 && !quality_state_get(f->state, key_of(f, ids, i), seen_of(f, f->passage, i));
        lacking += lack[i];
    }
    int room = ARMS_AT_ONCE / 2; /* each may bring an unbounded one along */
    f->parts = n > ARMS_AT_ONCE ? (n + room - 1) / room : 1;
    if (f->parts == 1)
        room = n;
    for (f->part = 0; f->part < f->parts && lacking && rc == 0; f->part++) {
        int from = f->part * room, some = n - from < room ? n - from : room, any = 0;

        for (int i = from; i < from + some; i++)
            any += lack[i];
        if (any)
            rc = run_some(f, ids, lack, from, some, e);
    }
    free(ids);
    return rc;
}

/* ---- telling ---- */

enum what { NLL, KL, AGREE };

/* In place of an arm: what all settings are measured against. */
enum { NONE = -1, REFERENCE = -2 };

static double value(const struct quality_seen *s, enum what what, int64_t pos)
{
    return what == NLL ? (double)s->nll[pos] : what == KL ? (double)s->kl[pos] : s->agree[pos];
}

static const struct quality_seen *side(const struct forced *f, int passage, int arm)
{
    if (arm == REFERENCE)
        return f->plain ? &f->plain[passage] : seen_of(f, passage, 0);
    return arm == NONE ? NULL : seen_of(f, passage, arm);
}

/* The same with blocks of b rows drawn anew; lo..hi-1 lie within the rows. */
static struct mt_interval mean_by(const struct forced *f, int arm, int ref, enum what what,
                                  int64_t lo, int64_t hi, int64_t b)
{
    int64_t each = (hi - lo + b - 1) / b, n = 0;
    struct mt_interval out = {NAN, NAN, NAN, 0};
    double *x = mt_alloc((size_t)(each * f->text.passages), sizeof(*x));
    double *weight = mt_alloc((size_t)(each * f->text.passages), sizeof(*weight));

    for (int p = 0; x && weight && p < f->text.passages; p++) {
        const struct quality_seen *s = side(f, p, arm), *r = side(f, p, ref);

        for (int64_t k = lo; k < hi; k++) {
            x[n + (k - lo) / b] += value(s, what, k) - (r ? value(r, what, k) : 0);
            weight[n + (k - lo) / b]++;
        }
        n += each;
    }
    if (x && weight)
        mt_bootstrap(x, weight, n, f->o->seed, &out);
    free(x);
    free(weight);
    return out;
}

/*
 * The mean over rows lo..hi-1 of all passages, less that of arm ref, or NONE. Blocks of a passage
 * are drawn anew; where there are enough passages these as well, since a passage may be dear from
 * its beginning to its end, and the wider interval counts.
 */
static struct mt_interval mean(const struct forced *f, int arm, int ref, enum what what, int64_t lo,
                               int64_t hi)
{
    struct mt_interval out = {NAN, NAN, NAN, 0};

    lo = lo < f->first ? f->first : lo;
    hi = hi > f->rows ? f->rows : hi;
    if (lo >= hi)
        return out;
    out = mean_by(f, arm, ref, what, lo, hi, f->o->resample);
    if (f->text.passages >= MT_BOOTSTRAP_LEAST) {
        struct mt_interval whole = mean_by(f, arm, ref, what, lo, hi, hi - lo);

        if (whole.high - whole.low > out.high - out.low)
            out = whole;
    }
    return out;
}

/* The part of a setting's rows with indices from..to-1. */
static json_t *part_json(const struct forced *f, int arm, int64_t from, int64_t to)
{
    struct mt_interval diff = mean(f, arm, REFERENCE, NLL, from, to);

    from = from < f->first ? f->first : from;
    to = to > f->rows ? f->rows : to;
    if (from >= to)
        return NULL;
    json_t *o = json_pack("{s:I, s:I, s:I}", "from", (json_int_t)from, "to", (json_int_t)to,
                          "tokens", (json_int_t)((to - from) * f->text.passages));
    mt_json_set_real(o, "nll", mean(f, arm, NONE, NLL, from, to).mean);
    mt_json_set_real(o, "nll_unbounded", mean(f, REFERENCE, NONE, NLL, from, to).mean);
    quality_interval_json(o, &diff, "diff");
    mt_json_set_real(o, "kl", mean(f, arm, NONE, KL, from, to).mean);
    mt_json_set_real(o, "agree", mean(f, arm, NONE, AGREE, from, to).mean);
    return o;
}

/* The first row of any passage that is not the unbounded one's of its kind, bit for bit; or -1. */
static int64_t first_change(const struct forced *f, int arm)
{
    const struct mt_arm *a = &f->arms.arms[arm], *all = f->arms.arms;
    int root = 0;

    while (all[root].policy.bounded || all[root].kv_type != a->kv_type ||
           all[root].moved != a->moved)
        root++;
    for (int64_t k = 0; k < f->rows; k++)
        for (int p = 0; p < f->text.passages; p++)
            if (seen_of(f, p, arm)->nll[k] != seen_of(f, p, root)->nll[k] ||
                seen_of(f, p, arm)->kl[k] != seen_of(f, p, root)->kl[k])
                return k;
    return -1;
}

/* A mean loss that moves by less is the same. */
#define MOVED_BOUND 1e-3

enum verdict { OUTSIDE, WITHIN, UNDECIDED };

/* What moving the positions did: to the mean, and to single tokens. */
struct shift {
    struct mt_interval diff;
    double rms, worst;
};

/* Does the mean stay within the bound? Where no token passes it, no mean does. */
static enum verdict verdict_of(const struct shift *s)
{
    if (s->worst < MOVED_BOUND || (s->diff.low > -MOVED_BOUND && s->diff.high < MOVED_BOUND))
        return WITHIN;
    return s->diff.low > MOVED_BOUND || s->diff.high < -MOVED_BOUND ? OUTSIDE : UNDECIDED;
}

static struct shift shift_of(const struct forced *f, int setting)
{
    const struct quality_setting *s = &f->arms.settings[setting];
    int home = f->arms.settings[s->home].at;
    struct shift out = {.diff = mean(f, s->at, home, NLL, 0, f->rows)};
    double sum = 0;

    for (int p = 0; p < f->text.passages; p++)
        for (int64_t k = f->first; k < f->rows; k++) {
            double d = (double)seen_of(f, p, s->at)->nll[k] - (double)seen_of(f, p, home)->nll[k];

            sum += d * d;
            out.worst = fmax(out.worst, fabs(d));
        }
    out.rms = sqrt(sum / (double)((f->rows - f->first) * f->text.passages));
    return out;
}

/* The same setting moved by one position; below 0 where nothing was moved. */
static int floor_of(const struct forced *f, int setting)
{
    int home = f->arms.settings[setting].home;

    return home == setting ? -1 : home + f->arms.group;
}

/* These may be billionths, where six decimals say nothing. */
static void set_fine(json_t *o, const char *key, double v)
{
    if (isfinite(v))
        json_object_set_new(o, key, json_real(v));
}

static void moved_json(const struct forced *f, json_t *o, int setting)
{
    int floor = floor_of(f, setting);

    if (floor < 0)
        return;
    struct shift s = shift_of(f, setting), least = shift_of(f, floor);
    set_fine(o, "moved_diff", s.diff.mean);
    set_fine(o, "moved_low", s.diff.low);
    set_fine(o, "moved_high", s.diff.high);
    set_fine(o, "moved_rms", s.rms);
    set_fine(o, "moved_worst", s.worst);
    json_object_set_new(o, "moved_within",
                        verdict_of(&s) == UNDECIDED ? json_null()
                                                    : json_boolean(verdict_of(&s) == WITHIN));
    set_fine(o, "floor_diff", least.diff.mean);
    set_fine(o, "floor_rms", least.rms);
    set_fine(o, "floor_worst", least.worst);
}

static void set_part(json_t *o, const char *name, json_t *part)
{
    if (part)
        json_object_set_new(o, name, part);
}

static json_t *setting_json(const struct forced *f, const struct quality_setting *s)
{
    json_t *o = quality_setting_json("quality", &s->arm), *all = part_json(f, s->at, 0, f->rows);
    int64_t parts = mt_arm_parts(&s->arm), w = s->arm.policy.window;

    json_object_update(o, all);
    json_decref(all);
    if (s->arm.policy.bounded) {
        int64_t change = first_change(f, s->at);

        if (change >= 0)
            json_object_set_new(o, "first_change", json_integer(change));
        set_part(o, "before", part_json(f, s->at, 0, parts));
        set_part(o, "after", part_json(f, s->at, parts, f->rows));
        set_part(o, "near", part_json(f, s->at, parts, parts + w));
        set_part(o, "far", part_json(f, s->at, parts + w, f->rows));
    }
    moved_json(f, o, (int)(s - f->arms.settings));
    return o;
}

static int print_each(const struct forced *f, const struct quality_setting *s)
{
    int rc = 0;

    for (int p = 0; p < f->text.passages; p++)
        for (int64_t k = f->first; k < f->rows && rc == 0; k++) {
            const struct quality_seen *x = seen_of(f, p, s->at);
            json_t *o = quality_setting_json("quality_token", &s->arm);

            json_object_set_new(o, "passage", json_integer(p));
            json_object_set_new(o, "pos", json_integer(k));
            mt_json_set_real(o, "nll", (double)x->nll[k]);
            mt_json_set_real(o, "kl", (double)x->kl[k]);
            rc = mt_json_line(stdout, o);
        }
    return rc;
}

/* ---- what to choose ---- */

/*
 * The least window such that no tried one from it on costs as much as the bound: for sure (the
 * interval's upper end), or perhaps (the lower one). 0: none.
 */
static int64_t least_window(const struct forced *f, const struct mt_arm *like, bool sure)
{
    int64_t least = 0, missed = 0;

    for (int i = 0; i < f->arms.n_settings; i++) {
        const struct quality_setting *s = &f->arms.settings[i];
        const struct mt_policy *p = &s->arm.policy;

        if (!p->bounded || p->sinks != like->policy.sinks ||
            p->rope_absolute != like->policy.rope_absolute || s->arm.kv_type != like->kv_type ||
            s->arm.moved != like->moved)
            continue;
        struct mt_interval d = mean(f, s->at, REFERENCE, NLL, mt_arm_parts(&s->arm), f->rows);
        if (!((sure ? d.high : d.low) < f->o->bound) && p->window > missed)
            missed = p->window;
    }
    for (int i = 0; i < f->o->windows.n; i++)
        if (f->o->windows.v[i] > missed && (!least || f->o->windows.v[i] < least))
            least = f->o->windows.v[i];
    return least;
}

static void set_window(json_t *o, const char *name, int64_t w)
{
    json_object_set_new(o, name, w ? json_integer(w) : json_null());
}

static json_t *choice_json(const struct forced *f, const struct mt_arm *like)
{
    json_t *o = quality_setting_json("quality_choice", like);

    json_object_del(o, "kv");
    mt_json_set_real(o, "bound", f->o->bound);
    set_window(o, "window", least_window(f, like, true));
    set_window(o, "window_low", least_window(f, like, false));
    return o;
}

/* Every kind of setting once: the first window's. */
static bool is_kind(const struct forced *f, const struct quality_setting *s)
{
    return s->arm.policy.bounded && s->arm.policy.window == f->o->windows.v[0] && s->arm.moved == 0;
}

/* ---- out ---- */

static const char *no_meaning(const struct forced *f)
{
    return quality_no_meaning(f->o, mean(f, REFERENCE, NONE, NLL, 0, f->rows).mean);
}

static int print_json(const struct forced *f)
{
    int rc = mt_json_line(stdout, quality_head_json(f->o, &f->text, no_meaning(f)));

    for (int i = 0; i < f->arms.n_settings && rc == 0; i++)
        rc = mt_json_line(stdout, setting_json(f, &f->arms.settings[i]));
    for (int i = 0; i < f->arms.n_settings && rc == 0 && !no_meaning(f); i++)
        if (is_kind(f, &f->arms.settings[i]))
            rc = mt_json_line(stdout, choice_json(f, &f->arms.settings[i].arm));
    for (int i = 0; i < f->arms.n_settings && rc == 0 && f->o->each; i++)
        rc = print_each(f, &f->arms.settings[i]);
    return rc;
}

static void print_setting(const struct forced *f, const struct quality_setting *s)
{
    int64_t parts = mt_arm_parts(&s->arm), w = s->arm.policy.window;
    struct mt_interval near = mean(f, s->at, REFERENCE, NLL, parts, parts + w);
    struct mt_interval far = mean(f, s->at, REFERENCE, NLL, parts + w, f->rows);
    struct mt_interval all = mean(f, s->at, REFERENCE, NLL, 0, f->rows);
    char kv[64], a[48] = "", b[48];
    bool bounded = s->arm.policy.bounded;

    mt_policy_format(&s->arm.policy, kv);
    if (bounded)
        quality_interval_text(a, &near);
    quality_interval_text(b, bounded ? &far : &all);
    printf("%-22s %-8s %-4s %9" PRId64 " %8.4f %26s %26s %9.2e %6.3f\n", kv,
           quality_rope_name(&s->arm), mt_dtype_name(s->arm.kv_type), s->arm.moved,
           mean(f, s->at, NONE, NLL, 0, f->rows).mean, a, b,
           mean(f, s->at, NONE, KL, 0, f->rows).mean, mean(f, s->at, NONE, AGREE, 0, f->rows).mean);
}

/* As quality_interval_text; but these may be billionths. */
static void moved_text(char out[48], const struct mt_interval *i)
{
    if (isnan(i->low))
        snprintf(out, 48, "%+.0e [?]", i->mean);
    else
        snprintf(out, 48, "%+.0e [%+.0e, %+.0e]", i->mean, i->low, i->high);
}

/* What moving did, setting by setting; the first move of each is by one position: the floor. */
static void print_moved(const struct forced *f)
{
    static const char *const word[] = {[OUTSIDE] = "no", [WITHIN] = "yes", [UNDECIDED] = "?"};
    bool any = false;

    for (int i = 0; i < f->arms.n_settings; i++) {
        const struct quality_setting *s = &f->arms.settings[i];
        char kv[64], text[48];

        if (floor_of(f, i) < 0)
            continue;
        if (!any)
            printf("moved positions beside the same where they were, on %s; by 1: what rounding "
                   "does\n%-22s %-8s %-4s %9s %26s %9s %9s %s\n",
                   mt_model_backend(f->o->pm.m)->ops->name, "kv", "rope", "type", "moved", "diff",
                   "rms", "worst", "mean within 0.001");
        any = true;
        struct shift m = shift_of(f, i);
        mt_policy_format(&s->arm.policy, kv);
        moved_text(text, &m.diff);
        printf("%-22s %-8s %-4s %9" PRId64 " %26s %9.2e %9.2e %s\n", kv, quality_rope_name(&s->arm),
               mt_dtype_name(s->arm.kv_type), s->arm.moved, text, m.rms, m.worst,
               word[verdict_of(&m)]);
    }
}

static bool lacks_interval(const struct forced *f, const struct quality_setting *s)
{
    int64_t parts = mt_arm_parts(&s->arm), w = s->arm.policy.window;

    return s->arm.policy.bounded && parts < f->rows &&
           (isnan(mean(f, s->at, REFERENCE, NLL, parts, parts + w).low) ||
            (parts + w < f->rows && isnan(mean(f, s->at, REFERENCE, NLL, parts + w, f->rows).low)));
}

/* What people read below the table. */
static void print_choices(const struct forced *f)
{
    bool unsure = false;

    for (int i = 0; i < f->arms.n_settings; i++) {
        const struct mt_arm *a = &f->arms.settings[i].arm;

        if (!is_kind(f, &f->arms.settings[i]))
            continue;
        int64_t sure = least_window(f, a, true), low = least_window(f, a, false);
        printf("below %g nats with sinks=%lld, %s, %s: ", f->o->bound, (long long)a->policy.sinks,
               a->policy.rope_absolute ? "absolute" : "cache", mt_dtype_name(a->kv_type));
        if (sure)
            printf("window=%lld%s\n", (long long)sure, low < sure ? ", perhaps less" : "");
        else
            printf("none of these windows%s\n", low ? " for sure" : "");
    }
    for (int i = 0; i < f->arms.n_settings; i++)
        unsure = unsure || lacks_interval(f, &f->arms.settings[i]);
    if (unsure)
        printf("[?]: fewer than %d blocks of %d tokens: no interval without more --passages or "
               "--tokens\n",
               MT_BOOTSTRAP_LEAST, f->o->resample);
}

static void print_table(const struct forced *f)
{
    const char *why = no_meaning(f);

    printf("%s, %s: %d x %lld tokens. nats a token; near and far: beside the unbounded cache on "
           "the same tokens, 95 %%\n",
           mt_model_info(f->o->pm.m)->name, f->o->text, f->text.passages,
           (long long)f->text.length);
    printf("%-22s %-8s %-4s %9s %8s %26s %26s %9s %6s\n", "kv", "rope", "type", "moved", "nll",
           "near", "far", "kl", "agree");
    for (int i = 0; i < f->arms.n_settings; i++)
        print_setting(f, &f->arms.settings[i]);
    print_moved(f);
    if (why) {
        printf("%s\n", why);
        return;
    }
    print_choices(f);
}

/* ---- all of it ---- */

static int measure(struct forced *f, bool first_only)
{
    struct mt_err e = {0};
    int rc = 0, status = quality_text_open(&f->text, f->o);

    if (status == MT_EXIT_OK)
        status = quality_arms_make(&f->arms, f->o, f->text.n_prompt);
    if (status == MT_EXIT_OK)
        status = quality_state_open(&f->state, f->o->state);
    if (status != MT_EXIT_OK)
        return status;
    if (first_only)
        f->arms.n_arms = f->arms.n_settings = 1;
    f->rows = f->text.n_prompt + f->text.length - 1;
    f->first = f->text.n_prompt > 0 ? f->text.n_prompt - 1 : 0;
    f->seen = calloc((size_t)(f->text.passages * f->arms.n_arms), sizeof(*f->seen));
    if (!f->seen)
        rc = mt_err_set(&e, -ENOMEM, "out of memory");
    for (f->passage = 0; rc == 0 && f->passage < f->text.passages; f->passage++)
        rc = run_passage(f, &e);
    if (f->tty)
        fputs("\r\033[K", stderr);
    if (rc == 0)
        return MT_EXIT_OK;
    mt_msg(MT_ERROR, "%s", e.text);
    return rc == -EINVAL ? MT_EXIT_USAGE : MT_EXIT_FAILED;
}

static int tell(const struct forced *f)
{
    int rc = 0;

    if (no_meaning(f))
        mt_msg(MT_WARN, "%s", no_meaning(f));
    if (f->o->table)
        print_table(f);
    else
        rc = print_json(f);
    return rc < 0 && rc != -EPIPE ? MT_EXIT_FAILED : MT_EXIT_OK;
}

static void close_all(struct forced *f)
{
    quality_state_close(&f->state);
    quality_text_close(&f->text);
}

int quality_plain(const struct quality_options *o, struct quality_seen **seen)
{
    struct forced f = {.o = o, .tty = isatty(STDERR_FILENO)};
    int status = measure(&f, true);

    *seen = f.seen; /* one arm: [passages] */
    close_all(&f);
    return status;
}

int quality_forced(const struct quality_options *o, const struct quality_seen *plain)
{
    struct forced f = {.o = o, .plain = plain, .tty = isatty(STDERR_FILENO)};
    int status = measure(&f, false);

    if (status == MT_EXIT_OK)
        status = tell(&f);
    for (int i = 0; f.seen && i < f.text.passages * f.arms.n_arms; i++)
        quality_seen_free(&f.seen[i]);
    free(f.seen);
    close_all(&f);
    return status;
}
