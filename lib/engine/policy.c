/*
 * policy.c: --kv unbounded | window=W[,sinks=S|prompt], and what a bounded session reserves.
 */
#include <errno.h>
#include <string.h>

#include "engine/engine.h"

#define TOKENS_MAX (INT64_C(1) << 40)

static int parse_window(char *list, struct mt_policy *p, struct mt_err *e)
{
    char *key, *value;

    while (mt_parse_pair(&list, &key, &value)) {
        const char *v = value ? value : "";
        if (!strcmp(key, "window")) {
            if (mt_parse_i64(v, 1, TOKENS_MAX, &p->window) < 0)
                return mt_err_set(e, -EINVAL, "window=%s is not a number of tokens from 1 on", v);
        } else if (!strcmp(key, "sinks") && !strcmp(v, "prompt")) {
            p->sinks = -1;
        } else if (!strcmp(key, "sinks")) {
            if (mt_parse_i64(v, 0, TOKENS_MAX, &p->sinks) < 0)
                return mt_err_set(e, -EINVAL,
                                  "sinks=%s is not a number of tokens from 0 on, or 'prompt'", v);
        } else {
            return mt_err_set(e, -EINVAL, "unknown key '%s' (window, sinks)", key);
        }
    }
    if (p->window == 0)
        return mt_err_set(e, -EINVAL, "no window given (unbounded, or window=W[,sinks=S|prompt])");
    if (p->window <= p->sinks)
        return mt_err_set(e, -EINVAL, "window=%lld is not above sinks=%lld", (long long)p->window,
                          (long long)p->sinks);
    return 0;
}

int mt_policy_parse(const char *text, struct mt_policy *out, struct mt_err *e)
{
    struct mt_policy p = {.bounded = true, .rope_absolute = out->rope_absolute};
    char buf[128];
    int rc;

    if (!strcmp(text, "unbounded")) {
        *out = (struct mt_policy){.rope_absolute = out->rope_absolute};
        return 0;
    }
    if (snprintf(buf, sizeof(buf), "%s", text) >= (int)sizeof(buf) || !*text)
        return mt_err_set(e, -EINVAL, "not a policy (unbounded, or window=W[,sinks=S|prompt])");
    if ((rc = parse_window(buf, &p, e)) == 0)
        *out = p;
    return rc;
}

void mt_policy_format(const struct mt_policy *p, char out[64])
{
    if (!p->bounded)
        snprintf(out, 64, "unbounded");
    else if (p->sinks < 0)
        snprintf(out, 64, "window=%lld,sinks=prompt", (long long)p->window);
    else
        snprintf(out, 64, "window=%lld,sinks=%lld", (long long)p->window, (long long)p->sinks);
}

int64_t mt_policy_blocks(int64_t window, int64_t sinks, int block_tokens, int64_t k)
{
    int64_t p = block_tokens;

    return (sinks + p - 1) / p + (window + k - 1 + p - 1) / p;
}

int64_t mt_policy_reach(const struct mt_policy *p, int64_t max_positions)
{
    int64_t before_window = p->window - 1 + p->sinks;

    if (!p->rope_absolute || max_positions - 1 < before_window)
        return before_window;
    return max_positions - 1;
}
