/*
 * quality_arms.c: the settings that are compared: every combination that was asked for, and the
 * unbounded caches that they are measured against.
 */
#include <string.h>

#include "tools/probe/quality.h"

static bool same(const struct mt_arm *a, const struct mt_arm *b)
{
    if (a->kv_type != b->kv_type || a->moved != b->moved || a->policy.bounded != b->policy.bounded)
        return false;
    if (!a->policy.bounded)
        return true;
    return a->policy.window == b->policy.window && a->policy.sinks == b->policy.sinks &&
           (a->policy.sinks == 0 || a->policy.rope_absolute == b->policy.rope_absolute);
}

static bool add(struct quality_arms *a, const struct mt_arm *arm, int home)
{
    int at = 0;

    while (at < a->n_arms && !same(&a->arms[at], arm))
        at++;
    if (at == QUALITY_ARMS || a->n_settings == QUALITY_ARMS)
        return false;
    if (at == a->n_arms)
        a->arms[a->n_arms++] = *arm;
    if (home < 0)
        home = a->n_settings;
    a->settings[a->n_settings++] = (struct quality_setting){*arm, at, home};
    return true;
}

/* All of one cache type and move; home: where those that were not moved begin, -1 there. */
static bool add_group(struct quality_arms *a, const struct quality_options *o, enum mt_dtype type,
                      int64_t moved, int home, int n_prompt)
{
    struct mt_arm arm = {.kv_type = type, .moved = moved};
    bool fits = add(a, &arm, home);

    for (int r = 0; r < o->ropes.n; r++)
        for (int w = 0; w < o->windows.n; w++)
            for (int s = 0; s < o->sinks.n && fits; s++) {
                arm.policy = (struct mt_policy){true, o->windows.v[w],
                                                o->sinks.v[s] < 0 ? n_prompt : o->sinks.v[s],
                                                o->ropes.v[r] != 0};
                fits = add(a, &arm, home < 0 ? -1 : ++home);
            }
    return fits;
}

bool quality_moves(const struct quality_options *o)
{
    for (int i = 0; i < o->moved.n; i++)
        if (o->moved.v[i])
            return true;
    return false;
}

/*
 * What is moved is held against the same where it was, and behind that comes a move by a single
 * position: it rounds anew, too, and can do nothing else.
 */
static struct quality_list moves(const struct quality_options *o)
{
    struct quality_list l = {{0, 1}, quality_moves(o) ? 2 : 1};

    for (int i = 0; i < o->moved.n; i++)
        if (o->moved.v[i] > 1)
            l.v[l.n++] = o->moved.v[i];
    return l;
}

int quality_arms_make(struct quality_arms *a, const struct quality_options *o, int n_prompt)
{
    bool fits = true;

    *a = (struct quality_arms){0};
    for (int w = 0; w < o->windows.n; w++)
        for (int s = 0; s < o->sinks.n; s++) {
            int64_t sinks = o->sinks.v[s] < 0 ? n_prompt : o->sinks.v[s];

            if (o->windows.v[w] <= sinks) {
                mt_msg(MT_ERROR, "window=%lld is not above sinks=%lld%s",
                       (long long)o->windows.v[w], (long long)sinks,
                       o->sinks.v[s] < 0 ? ", the prompt" : "");
                return MT_EXIT_USAGE;
            }
        }
    struct quality_list moved = moves(o);
    for (int t = 0; t < o->kv_types.n; t++) {
        int home = a->n_settings;

        for (int m = 0; m < moved.n && fits; m++) {
            fits = add_group(a, o, (enum mt_dtype)o->kv_types.v[t], moved.v[m], m ? home : -1,
                             n_prompt);
            if (m == 0)
                a->group = a->n_settings - home;
        }
    }
    if (fits)
        return MT_EXIT_OK;
    mt_msg(MT_ERROR, "more than %d settings at once", QUALITY_ARMS);
    return MT_EXIT_USAGE;
}

json_t *quality_setting_json(const char *type, const struct mt_arm *a)
{
    char kv[64];

    mt_policy_format(&a->policy, kv);
    json_t *o = json_pack("{s:s, s:s}", "type", type, "kv", kv);
    if (a->policy.bounded) {
        json_object_set_new(o, "window", json_integer(a->policy.window));
        json_object_set_new(o, "sinks", json_integer(a->policy.sinks));
        json_object_set_new(o, "rope", json_string(quality_rope_name(a)));
    }
    json_object_set_new(o, "kv_type", json_string(mt_dtype_name(a->kv_type)));
    json_object_set_new(o, "moved", json_integer(a->moved));
    return o;
}
