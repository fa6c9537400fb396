/*
 * print.c: an answer as one JSON object, or as a table that says the same in words and units.
 */
#include "tools/predict/predict.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/*
 * A line of the table. In text {member} is that member's value; [...] is left out when a member in
 * it is absent or null, and the line when one outside is absent. Where the first member is null
 * stands never.
 */
struct row {
    const char *label, *text, *never;
};

static const struct row predict_rows[] = {
    {"model", "{model}, {layers} layers, {kv_heads} KV heads of {head_dim}", NULL},
    {"cache", "{kv}, {kv_type}, {token_bytes} a token", NULL},
    {"pool", "{pool_blocks} blocks of {block_tokens} tokens, {pool_tokens} tokens", NULL},
    {"in use before", "{rho0} of the pool", NULL},
    {"sessions", "{sessions}", NULL},
    {"prompt", "{prompt_tokens} tokens", NULL},
    {"growth", "{rate_tokens_s} tokens/s of each session", NULL},
    {"frame", "{frame_s} s", NULL},
    {"step", "{step_tokens} tokens at most", NULL},
    {"saturation",
     "{t_sat_s} s after the start[ ({t_sat_locked_s} s with locked phases, {t_sat_spread_s} s with "
     "random ones)]",
     "never"},
    {"with its towers", "{t_sat_towers_s} s, {session_bytes_s} bytes/s of each session", "never"},
    {"first stall", "{t_stall_s} s after the start, with locked phases", "never"},
    {"longest session", "{last_tokens} tokens", NULL},
    {"arrivals", "{arrivals}, {arrivals_s} a second[, up to {cap} at once]", NULL},
    {"duration",
     "{duration}, {duration_s} s in the mean[, sigma {duration_sigma}][, alpha {duration_alpha}]",
     NULL},
    {"calls at once", "{sessions_mean} in the mean, {offered_sessions} offered", NULL},
    {"refused", "{refused_share} of the calls", NULL},
    {"tokens", "{tokens_mean} in the mean[ +/- {tokens_sd}], {rho_mean} of the pool",
     "without bound"},
    {"one cohort", "overruns if {cohort_s} s is above {fill_s} s: {cohort_overruns}", NULL},
    {"refilled", "overruns if {refill_s} s is above {fill_s} s: {refill_overruns}", "overruns"},
    {"over the pool", "{over_share} of the time[ (at most {over_chernoff})]", NULL},
    {"up-crossings", "{crossings_s} a second", NULL},
    {"hit within", "{horizon_s} s: at most {hit_bound}", NULL},
    {"sessions at risk",
     "{risk}: {risk_sessions}, or {risk_offered} offered[, for {horizon_s} s "
     "{risk_offered_horizon}]",
     NULL},
    {"Monte Carlo",
     "{mc_hit} hit within {horizon_s} s from {mc_from}, 95 % between {mc_hit_low} and "
     "{mc_hit_high}; {mc_runs} runs, seed {mc_seed}",
     NULL},
    {"time to hit", "{mc_hit_s} s in the mean of {mc_hits} hits[ +/- {mc_hit_error_s} s]", NULL},
    {"after the wall", "{after_wall}: {load_serve} serving + {load_recompute} recomputing", NULL},
    {"a stall", "{stall_s} s, {stall_frames} frames, every {stall_every_s} s", NULL},
    {"limps up to", "{limp_sessions} sessions", "any number"},
    {"drained", "to {drain_sessions} sessions in {drain_s} s", NULL},
    {"retries", "arrivals times {retry_factor}[, {retry_arrivals_s} a second]", NULL},
    {"a session takes", "{session_blocks} blocks, {session_bytes}", NULL},
    {"window is full", "{t_full_s} s after the start", "never"},
    {"memory holds", "{n_mem} sessions", NULL},
    {"they fit", "{fits}", NULL},
    {"window that fits",
     "{fit_window_tokens} tokens[ ({fit_window_s} s)][ and {fit_sinks_tokens} sinks]", "none"},
    {"deadline", "{deadline_s} s, {target} of it to be used", NULL},
    {"cost of a frame", "{cost_a_ms} ms + {cost_b_ms} ms a session", NULL},
    {"the beat holds", "{n_star} sessions in step, {n_star_unaligned} at any time", NULL},
    {"latency", "{latency_ms} ms in step[, {latency_unaligned_ms} ms at worst at any time]", NULL},
    {"sustainable", "{n_sustainable} sessions", NULL},
    {"bound by", "{binding}", NULL},
};

static const struct row fit_rows[] = {
    {"frames", "{frames}, {stalled} stalled, {untruthful} untruthful", NULL},
    {"broken lines", "{broken}", NULL},
    {"pool", "{pool_tokens} tokens", NULL},
    {"sessions", "{sessions}, from {from_s} s to {to_s} s", NULL},
    {"pool in use", "{rho} at {to_s} s, growing by {rho_per_s} a second", NULL},
    {"growth", "{rate_tokens_s} tokens/s of each session", NULL},
    {"saturation", "{t_sat_s} s after the last of these records[, at {t_sat_at_s} s]", "never"},
    {"collapse", "at {t_collapse_s} s", NULL},
    {"foretold half way",
     "{t_half_sat_s} s, from the records up to {t_half_s} s[: off by {error_percent} %]", "never"},
    {"by increments", "{t_live_s} s[, 95 % between {t_low_s} s and {t_high_s} s]", "never"},
    {"on the way", "{points} forecasts off by {mape}, bias {bias}; {cover} covered, {late} late",
     NULL},
};

static const struct row score_rows[] = {
    {"collapse", "at {t_collapse_s} s", NULL},
    {"a quarter", "off by {error_25} of what was left", "never"},
    {"half way", "off by {error_50} of what was left", "never"},
    {"three quarters", "off by {error_75} of what was left", "never"},
    {"forecasts", "{points}[, off by {mape} in the mean, {p95} at the 95 % point, bias {bias}]",
     NULL},
    {"intervals", "{cover} hold the truth, {late} are late", NULL},
};

static const struct row cost_rows[] = {
    {"points", "{points}, {broken} broken lines", NULL},
    {"cost of a frame", "{a_ms} ms + {b_ms} ms a session", NULL},
    {"residual", "{residual_ms} ms; the slope within {b_error_ms} ms", NULL},
    {"convex", "{convex}: the last segment rises by {last_b_ms} ms, the line by {line_b_ms} ms",
     NULL},
    {"deadline", "{deadline_s} s, {target} of it to be used", NULL},
    {"the beat holds", "{n_star} sessions in step[, {n_star_unaligned} at any time]", NULL},
};

static const struct row mixed_rows[] = {
    {"load", "{load} of {classes} classes", NULL},
    {"feasible", "{feasible}", NULL},
    {"blocked by", "the class of {blocker_period_s} s: {work_s} s of work within {within_s} s",
     NULL},
    {"longest piece", "{piece_s} s", NULL},
};

static const struct {
    const char *type;
    const struct row *rows;
    size_t n;
} tables[] = {
    {"predict", predict_rows, MT_COUNT(predict_rows)}, {"fit", fit_rows, MT_COUNT(fit_rows)},
    {"score", score_rows, MT_COUNT(score_rows)},       {"cost", cost_rows, MT_COUNT(cost_rows)},
    {"mixed", mixed_rows, MT_COUNT(mixed_rows)},
};

json_t *predict_begin(const char *type)
{
    return json_pack("{s:i,s:s,s:s,s:s}", "metronome", 1, "tool", "mt-predict", "version",
                     MT_VERSION, "type", type);
}

void predict_set(json_t *obj, const char *key, double v)
{
    if (isinf(v)) {
        json_object_set_new(obj, key, json_null());
    } else if (fabs(v) < 0.1 && v != 0) {
        char digits[32]; /* six decimals of a probability would be too few */

        snprintf(digits, sizeof(digits), "%.9g", v);
        json_object_set_new(obj, key, json_real(strtod(digits, NULL)));
    } else {
        mt_json_set_real(obj, key, v);
    }
}

void predict_set_int(json_t *obj, const char *key, int64_t v)
{
    json_object_set_new(obj, key, json_integer(v));
}

void predict_set_bool(json_t *obj, const char *key, bool v)
{
    json_object_set_new(obj, key, json_boolean(v));
}

void predict_set_score(json_t *obj, const struct mt_forecast_score *s)
{
    predict_set(obj, "mape", s->mape);
    predict_set(obj, "p95", s->p95);
    predict_set(obj, "bias", s->bias);
    predict_set(obj, "cover", s->cover);
    predict_set(obj, "late", s->late);
}

/* Four digits, or a tenth. */
static void put_real(FILE *f, double v)
{
    fprintf(f, fabs(v) >= 1000 && fabs(v) < 1e15 ? "%.1f" : "%.4g", v);
}

static void put_bytes(FILE *f, double v)
{
    static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
    size_t u = 0;

    for (; v >= 1024 && u + 1 < MT_COUNT(units); u++)
        v /= 1024;
    put_real(f, v);
    fprintf(f, " %s", units[u]);
}

static void put_value(FILE *f, const char *key, const json_t *v)
{
    size_t n = strlen(key);

    if (json_is_string(v))
        fputs(json_string_value(v), f);
    else if (json_is_number(v) && n > 6 && !strcmp(key + n - 6, "_bytes"))
        put_bytes(f, json_number_value(v));
    else if (json_is_integer(v))
        fprintf(f, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
    else if (json_is_real(v))
        put_real(f, json_real_value(v));
    else
        fputs(json_is_true(v) ? "yes" : "no", f);
}

/* The member whose name stands from s to the next brace; *end is behind that. */
static const json_t *member(const json_t *obj, const char *s, char key[32], const char **end)
{
    size_t n = strcspn(s, "}");

    snprintf(key, 32, "%.*s", (int)n, s);
    *end = s + n + 1;
    return json_object_get(obj, key);
}

/* Whether all members named from s to the next of `stop` have a value. */
static bool known(const json_t *obj, const char *s, char stop)
{
    char key[32];

    while (*s && *s != stop) {
        if (*s == '{') {
            const json_t *v = member(obj, s + 1, key, &s);

            if (!v || json_is_null(v))
                return false;
        } else if (*s == '[') {
            s += strcspn(s, "]");
        } else {
            s++;
        }
    }
    return true;
}

static void print_row(FILE *f, const json_t *obj, const struct row *r)
{
    const char *s;
    char key[32];
    bool never = r->never && json_is_null(member(obj, strchr(r->text, '{') + 1, key, &s));

    s = r->text;
    if (!never && !known(obj, s, '\0'))
        return;
    fprintf(f, "%-18s ", r->label);
    if (never) {
        fprintf(f, "%s\n", r->never);
        return;
    }
    while (*s) {
        if (*s == '{') {
            const json_t *v = member(obj, s + 1, key, &s);

            put_value(f, key, v);
        } else if (*s == '[' && !known(obj, s + 1, ']')) {
            s += strcspn(s, "]") + 1;
        } else if (*s == '[' || *s == ']') {
            s++;
        } else {
            putc(*s++, f);
        }
    }
    putc('\n', f);
}

static void print_table(const json_t *obj)
{
    const char *type = json_string_value(json_object_get(obj, "type"));

    for (size_t t = 0; t < MT_COUNT(tables); t++)
        for (size_t i = 0; i < tables[t].n && !strcmp(type, tables[t].type); i++)
            print_row(stdout, obj, &tables[t].rows[i]);
}

int predict_print(const struct opts *o, json_t *obj)
{
    int rc;

    if (o->table && obj) {
        print_table(obj);
        json_decref(obj);
        return MT_EXIT_OK; /* what is lost is found when stdout is closed */
    }
    rc = mt_json_line(stdout, obj);
    if (rc == -ENOMEM)
        mt_msg(MT_ERROR, "%s", strerror(ENOMEM));
    return rc < 0 && rc != -EPIPE ? MT_EXIT_FAILED : MT_EXIT_OK;
}
