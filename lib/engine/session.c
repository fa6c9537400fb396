/*
 * session.c: one call: its buffers, its block table, the tokens around a frame's audio, the text of
 * its answer. When things happen to it is the scheduler's business.
 */
#include "engine/session.h"

#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/*
 * Frames that can be stamped at once: those that wait, the one in work and the last one of an ended
 * call.
 */
enum { DUE_SLACK = 4 };

int64_t mt_session_frame_tokens(const struct session *s, const struct mt_engine *eng)
{
    return mt_talk_marks(s->talk) + mt_ear_rows_max(eng->m, (int)eng->plan.frame_samples) +
           s->opts.answer_tokens - 1;
}

/* ---- making ---- */

static int resolve_policy(struct session *s, const struct mt_engine *eng, struct mt_err *e)
{
    struct mt_policy *p = &s->policy;

    *p = eng->opts.policy;
    if (!p->bounded)
        return s->opts.window ? mt_err_set(e, -EINVAL, "window: this server's cache is unbounded")
                              : 0;
    if (s->opts.window > p->window)
        return mt_err_set(e, -EINVAL, "window: %lld is above the server's %lld",
                          (long long)s->opts.window, (long long)p->window);
    if (s->opts.window)
        p->window = s->opts.window;
    if (p->sinks < 0)
        p->sinks = s->n_prompt;
    if (p->window <= p->sinks)
        return mt_err_set(e, -EINVAL, "window: %lld tokens are not above %lld sinks",
                          (long long)p->window, (long long)p->sinks);
    return 0;
}

static int allocate(struct session *s, const struct mt_engine *eng)
{
    int64_t p = eng->opts.block_tokens;

    s->cap_feed = s->n_prompt + mt_talk_marks(s->talk) +
                  mt_ear_rows_max(eng->m, (int)eng->plan.frame_samples);
    s->cap_text = (size_t)s->opts.answer_tokens * 3 * (size_t)(eng->token_bytes + 3) + 16;
    s->due_cap = eng->opts.backlog + DUE_SLACK;
    /* An unbounded session may grow until it has the whole pool. */
    s->ring_blocks = s->policy.bounded
                         ? (int32_t)((s->policy.window + eng->plan.step_max - 1 + p - 1) / p)
                         : INT32_MAX;
    s->cap_blocks = s->policy.bounded ? (s->policy.sinks + p - 1) / p + s->ring_blocks
                                      : mt_pool_size(eng->pool);
    s->feed = malloc((size_t)s->cap_feed * sizeof(*s->feed));
    s->answer = malloc((size_t)s->opts.answer_tokens * sizeof(*s->answer));
    s->text = malloc(s->cap_text);
    s->due_ns = malloc((size_t)s->due_cap * sizeof(*s->due_ns));
    s->blocks = malloc(mt_mul((size_t)s->cap_blocks + 1, sizeof(*s->blocks)));
    return s->feed && s->answer && s->text && s->due_ns && s->blocks ? 0 : -ENOMEM;
}

/* Negated, so that a NaN is refused, too. */
static int check_sampling(const struct mt_session_opts *o, struct mt_err *e)
{
    if (o->answer_tokens < 0)
        return mt_err_set(e, -EINVAL, "answer_tokens: %d is below 0", o->answer_tokens);
    if (o->window < 0)
        return mt_err_set(e, -EINVAL, "window: %lld is below 0", (long long)o->window);
    if (!(o->temperature >= 0 && o->temperature <= FLT_MAX))
        return mt_err_set(e, -EINVAL, "temperature: %g is no number from 0 on",
                          (double)o->temperature);
    if (o->top_k < 0)
        return mt_err_set(e, -EINVAL, "top_k: %d is below 0", o->top_k);
    if (!(o->top_p > 0 && o->top_p <= 1))
        return mt_err_set(e, -EINVAL, "top_p: %g is not above 0 and at most 1", (double)o->top_p);
    return 0;
}

static int make_talk(struct session *s, const struct mt_engine *eng, const char *system,
                     struct mt_err *e)
{
    int rc = mt_talk_new(&s->talk, eng->m, eng->opts.mode, system, s->ear, e);

    if (rc < 0)
        return rc;
    s->prompt = mt_talk_prompt(s->talk, &s->n_prompt);
    if (s->opts.answer_tokens > mt_talk_draws(s->talk))
        s->opts.answer_tokens = mt_talk_draws(s->talk);
    return 0;
}

int mt_session_new(struct session **out, struct mt_engine *eng, const struct mt_session_opts *o,
                   const char *system, struct mt_err *e)
{
    struct session *s = calloc(1, sizeof(*s));
    int rc = check_sampling(o, e);

    *out = NULL;
    if (!s || rc < 0) {
        free(s);
        return rc < 0 ? rc : mt_err_set(e, -ENOMEM, "out of memory");
    }
    s->opts = *o;
    s->max_positions = mt_model_info(eng->m)->max_positions;
    s->context = mt_model_info(eng->m)->context;
    if (!s->context)
        s->context = INT64_MAX;
    s->opts.system = NULL; /* borrowed for the call only */
    if (!s->opts.answer_tokens)
        s->opts.answer_tokens = eng->opts.answer_tokens;
    if (!s->opts.has_seed)
        s->opts.seed = eng->opts.seed;
    if (o->frame_ns && llabs(o->frame_ns - llround(eng->plan.frame_s * 1e9)) > 1000)
        rc = mt_err_set(e, -EINVAL, "frame_ms: this server's frames have %g ms, not %g",
                        eng->plan.frame_s * 1e3, (double)o->frame_ns / 1e6);
    else if (s->opts.answer_tokens > eng->opts.answer_tokens)
        rc = mt_err_set(e, -EINVAL, "answer_tokens: %d is above the server's %d",
                        s->opts.answer_tokens, eng->opts.answer_tokens);
    else if (system && !(s->system = strdup(system)))
        rc = mt_err_set(e, -ENOMEM, "out of memory");
    else
        rc = mt_ear_new(&s->ear, eng->m, (int)eng->plan.frame_samples, eng->opts.backlog, e);
    if (rc == 0)
        rc = make_talk(s, eng, system, e);
    if (rc == 0)
        rc = resolve_policy(s, eng, e);
    if (rc == 0 && (rc = allocate(s, eng)) < 0)
        mt_err_set(e, rc, "out of memory");
    if (rc < 0) {
        mt_session_free(&s, eng);
        return rc;
    }
    *out = s;
    return 0;
}

/* ---- blocks ---- */

static struct prefix *find_prefix(struct mt_engine *eng, const struct session *s)
{
    for (struct prefix *p = eng->prefixes; p; p = p->next)
        if (p->sinks == s->policy.sinks &&
            !memcmp(p->ids, s->prompt, (size_t)p->sinks * sizeof(*p->ids)))
            return p;
    return NULL;
}

static struct prefix *new_prefix(struct mt_engine *eng, const struct session *s, int64_t n_blocks)
{
    size_t sinks = (size_t)s->policy.sinks;
    struct prefix *p = calloc(1, sizeof(*p));

    if (!p)
        return NULL;
    p->ids = malloc(sinks * sizeof(*p->ids));
    p->blocks = malloc((size_t)n_blocks * sizeof(*p->blocks));
    if (!p->ids || !p->blocks || mt_pool_take(eng->pool, p->blocks, n_blocks) < 0) {
        free(p->ids);
        free(p->blocks);
        free(p);
        return NULL;
    }
    memcpy(p->ids, s->prompt, sinks * sizeof(*p->ids));
    p->sinks = s->policy.sinks;
    p->n_blocks = n_blocks;
    p->next = eng->prefixes;
    eng->prefixes = p;
    return p;
}

static void drop_prefix(struct mt_engine *eng, struct prefix *p)
{
    if (--p->refs > 0)
        return;
    for (struct prefix **at = &eng->prefixes; *at; at = &(*at)->next)
        if (*at == p) {
            *at = p->next;
            break;
        }
    mt_pool_give(eng->pool, p->blocks, p->n_blocks);
    free(p->ids);
    free(p->blocks);
    free(p);
}

/*
 * Sinks that lie inside the prompt are the same for every session with that prompt, and are
 * computed by whoever is first (mt_session_skip).
 */
int mt_session_reserve(struct session *s, struct mt_engine *eng)
{
    int64_t p = eng->opts.block_tokens, sink_blocks = (s->policy.sinks + p - 1) / p;
    bool shared = sink_blocks > 0 && s->policy.sinks <= s->n_prompt;
    int rc;

    if (!s->policy.bounded)
        return 0;
    if (shared) {
        s->prefix = find_prefix(eng, s);
        if (!s->prefix)
            s->prefix = new_prefix(eng, s, sink_blocks);
        if (!s->prefix)
            return -ENOSPC;
        s->prefix->refs++;
        memcpy(s->blocks, s->prefix->blocks, (size_t)sink_blocks * sizeof(*s->blocks));
        s->n_blocks = sink_blocks;
    }
    rc = mt_pool_take(eng->pool, s->blocks + s->n_blocks, s->cap_blocks - s->n_blocks);
    if (rc == 0)
        s->n_blocks = s->cap_blocks;
    return rc;
}

int mt_session_fit(struct session *s, struct mt_engine *eng, int64_t tokens)
{
    int64_t p = eng->opts.block_tokens, need = (tokens + p - 1) / p;
    int rc = 0;

    if (s->policy.bounded)
        return 0;
    if (need > s->cap_blocks)
        return -ENOSPC;
    if (need > s->n_blocks)
        rc = mt_pool_take(eng->pool, s->blocks + s->n_blocks, need - s->n_blocks);
    else
        mt_pool_give(eng->pool, s->blocks + need, s->n_blocks - need);
    if (rc == 0)
        s->n_blocks = need;
    return rc;
}

void mt_session_free(struct session **ps, struct mt_engine *eng)
{
    struct session *s = *ps;

    if (!s)
        return;
    int64_t own = s->prefix ? s->prefix->n_blocks : 0;
    if (s->n_blocks > own)
        mt_pool_give(eng->pool, s->blocks + own, s->n_blocks - own);
    if (s->prefix)
        drop_prefix(eng, s->prefix);
    mt_talk_free(&s->talk);
    mt_ear_free(&s->ear);
    free(s->system);
    free(s->feed);
    free(s->answer);
    free(s->text);
    free(s->due_ns);
    free(s->blocks);
    free(s);
    *ps = NULL;
}

/* ---- a frame ---- */

void mt_session_feed(struct session *s, int audio_rows)
{
    s->n_feed = mt_talk_begin(s->talk, audio_rows, s->feed, &s->audio_at);
    s->fed = 0;
    s->audio_rows = audio_rows;
    s->n_answer = 0;
    s->n_text = 0;
}

void mt_session_skip(struct session *s)
{
    int64_t n = s->prefix ? s->prefix->written - s->len : 0;

    if (n > 0) { /* so it is still in its prompt, which begins its feed */
        s->fed += (int)n;
        s->len += n;
    }
}

struct mt_kv_view mt_session_view(const struct session *s, int64_t n)
{
    struct prefix *p = s->prefix;
    int64_t held = p ? p->written : 0, end = s->len + n;

    /*
     * Within a step every layer appends all rows before any attention reads, so a claim holds for
     * it too.
     */
    if (p && end > held)
        p->written = end < p->sinks ? end : p->sinks;
    return (struct mt_kv_view){
        .blocks = s->blocks,
        .sinks = s->policy.bounded ? (int)s->policy.sinks : 0,
        .ring_blocks = s->ring_blocks,
        .window = s->policy.bounded ? s->policy.window : s->context,
        .sink_reach = mt_policy_reach(&s->policy, s->max_positions),
        .sinks_held = (int)held,
    };
}

int64_t mt_session_kv_tokens(const struct session *s)
{
    int64_t most = s->policy.bounded ? s->policy.window + s->policy.sinks : INT64_MAX;

    return s->len < most ? s->len : most;
}

void mt_session_answer(struct session *s, const struct mt_engine *eng, int32_t token,
                       struct mt_said said)
{
    int n = 0;

    if (said.show >= 0 && mt_model_tokenizer(eng->m))
        n = mt_detok_push(&s->detok, mt_model_tokenizer(eng->m), said.show, false,
                          s->text + s->n_text, s->cap_text - s->n_text);
    if (n > 0)
        s->n_text += (size_t)n;
    if (said.unsay) {
        s->detok = (struct mt_detok){0};
        s->n_text = 0;
    }
    s->answer[s->n_answer++] = token;
    s->next = said.feed;
}
