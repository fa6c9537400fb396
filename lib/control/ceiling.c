/*
 * ceiling.c: how many sessions a machine holds for ever: by memory once each cache is bounded, by
 * the beat, and for frames of several lengths on one device; and the fit of the frame cost that the
 * latency ceilings need.
 */
#include "control/control.h"

#include <errno.h>
#include <math.h>

/* ---- memory ---- */

#define TOKENS_MAX (INT64_C(1) << 52) /* sums of two such counts can't wrap */

static int64_t ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}

static bool bound_ok(const struct mt_bound *w, bool window)
{
    return (!window || (w->window >= 1 && w->window <= TOKENS_MAX)) && w->sinks >= 0 &&
           w->sinks <= TOKENS_MAX && w->step >= 1 && w->step <= TOKENS_MAX &&
           w->block_tokens >= 1 && w->block_tokens <= TOKENS_MAX;
}

int mt_bound_blocks(const struct mt_bound *w, int64_t *blocks)
{
    int64_t ring;

    if (!bound_ok(w, true))
        return -EDOM;
    if (w->retire == MT_RETIRE_IN_PLACE)
        ring = ceil_div(w->window + w->step - 1, w->block_tokens);
    else
        ring = ceil_div(w->window + w->step - 2, w->block_tokens) + 1;
    *blocks = ceil_div(w->sinks, w->block_tokens) + ring;
    return 0;
}

int mt_bound_sessions(const struct mt_bound *w, int64_t pool_blocks, int64_t *n)
{
    int64_t blocks, shared;
    int rc = mt_bound_blocks(w, &blocks);

    if (rc < 0 || pool_blocks < 0)
        return -EDOM;
    shared = w->shared_sinks ? ceil_div(w->sinks, w->block_tokens) : 0;
    *n = pool_blocks > shared ? (pool_blocks - shared) / (blocks - shared) : 0;
    return 0;
}

int mt_bound_window(const struct mt_bound *w, int64_t pool_blocks, int64_t n, int64_t *window)
{
    int64_t sink, ring, fit;

    if (!bound_ok(w, false) || pool_blocks < 0 || pool_blocks > TOKENS_MAX || n < 1)
        return -EDOM;
    sink = ceil_div(w->sinks, w->block_tokens);
    if (w->shared_sinks)
        ring = pool_blocks > sink ? (pool_blocks - sink) / n : 0;
    else
        ring = pool_blocks / n - sink;
    if (w->retire == MT_RETIRE_WHOLE)
        ring--;
    if (ring < 1 || __builtin_mul_overflow(ring, w->block_tokens, &fit) || fit < w->step)
        return -ENOSPC;
    *window = fit - (w->step - 1);
    return 0;
}

/* ---- the beat ---- */

static bool cost_ok(const struct mt_cost *c)
{
    return c->a_s >= 0 && isfinite(c->a_s) && c->b_s >= 0 && isfinite(c->b_s);
}

/* Most n with base + b n <= room. */
static int64_t most(double room, double base, double b)
{
    double n;

    if (room < base)
        return 0;
    if (b == 0)
        return MT_NO_LIMIT;
    /* The small term: 60 ms / 1.5 ms is 40 sessions even where rounding makes it 39.999999. */
    n = floor((room - base) / b + 1e-9);
    return n < 0x1p62 ? (int64_t)n : MT_NO_LIMIT;
}

static int latency(const struct mt_cost *c, double deadline_s, double phi, int batches, int64_t *n)
{
    if (!cost_ok(c) || !(deadline_s > 0) || !isfinite(deadline_s) || !(phi > 0 && phi <= 1))
        return -EDOM;
    *n = most(phi * deadline_s, batches * c->a_s, c->b_s);
    return 0;
}

int mt_latency_locked(const struct mt_cost *c, double deadline_s, double phi, int64_t *n)
{
    return latency(c, deadline_s, phi, 1, n);
}

int mt_latency_unaligned(const struct mt_cost *c, double deadline_s, double phi, int64_t *n)
{
    return latency(c, deadline_s, phi, 2, n);
}

int mt_latency_worst(const struct mt_cost *c, double period_s, double n, double *latency_s)
{
    double short_of, busy;

    if (!cost_ok(c) || !(period_s > 0) || !isfinite(period_s) || !(n >= 0) || !isfinite(n))
        return -EDOM;
    busy = c->b_s * n;
    short_of = 2 * c->a_s + busy;
    if (short_of < period_s)
        *latency_s = short_of;
    else if (busy < period_s)
        *latency_s = 2 * c->a_s * period_s / (period_s - busy);
    else
        *latency_s = INFINITY;
    return 0;
}

/* ---- several periods ---- */

/*
 * Work that class i blocks with, and that the shorter classes bring, within any L just above `at`.
 * Between such points the work is constant while L grows, so only they can break the bound.
 */
static int64_t work_within(const struct mt_periodic *c, int i, int64_t at)
{
    int64_t work = c[i].piece_ns ? c[i].piece_ns : c[i].cost_ns, part;

    for (int j = 0; j < i; j++)
        if (__builtin_mul_overflow(at / c[j].period_ns, c[j].cost_ns, &part) ||
            __builtin_add_overflow(work, part, &work))
            return INT64_MAX;
    return work;
}

int mt_edf_check(const struct mt_periodic *c, int n, struct mt_edf *out)
{
    struct mt_edf r = {.feasible = true, .blocker = -1};

    if (n < 1)
        return -EDOM;
    for (int j = 0; j < n; j++) {
        if (c[j].period_ns < 1 || c[j].period_ns > INT64_MAX / 4 || c[j].cost_ns < 0 ||
            c[j].piece_ns < 0 || c[j].piece_ns > c[j].cost_ns ||
            (j > 0 && c[j].period_ns < c[j - 1].period_ns))
            return -EDOM;
        if (c[j].period_ns / c[0].period_ns > 1000000)
            return -E2BIG;
        r.load += (double)c[j].cost_ns / (double)c[j].period_ns;
    }
    if (r.load > 1 + 1e-12) {
        r.feasible = false;
        *out = r;
        return 0;
    }
    for (int i = 1; i < n && r.feasible; i++) {
        for (int j = 0; j < i && r.feasible; j++) {
            /* L = m T_j + 1 ns, the first L of a step, for all m with T_1 < L < T_i. */
            for (int64_t at = c[j].period_ns; at + 1 < c[i].period_ns; at += c[j].period_ns) {
                int64_t work = work_within(c, i, at);

                if (work > at + 1) {
                    r = (struct mt_edf){
                        .load = r.load, .blocker = i, .at_ns = at + 1, .needs_ns = work};
                    break;
                }
            }
        }
    }
    *out = r;
    return 0;
}

/* ---- the cost of a frame ---- */

static double mean_at(const double *n, const double *x, int64_t count, double at)
{
    double sum = 0;
    int64_t k = 0;

    for (int64_t i = 0; i < count; i++) {
        if (n[i] == at) {
            sum += x[i];
            k++;
        }
    }
    return sum / (double)k;
}

int mt_cost_fit(const double *n, const double *x_s, int64_t count, struct mt_cost_fit *out)
{
    struct mt_cost_fit f = {0};
    double top = -INFINITY, second = -INFINITY, mean_n = 0, mean_x = 0, snn = 0, snx = 0, ss = 0,
           x1, x2;
    bool third = false;

    for (int64_t i = 0; i < count; i++) {
        if (!isfinite(n[i]) || n[i] < 0 || !isfinite(x_s[i]) || x_s[i] < 0)
            return -EDOM;
        if (n[i] > top) {
            second = top;
            top = n[i];
        } else if (n[i] < top && n[i] > second) {
            second = n[i];
        }
        mean_n += n[i];
        mean_x += x_s[i];
    }
    for (int64_t i = 0; i < count; i++)
        third |= n[i] < second;
    if (!third)
        return -ENODATA;
    mean_n /= (double)count;
    mean_x /= (double)count;
    for (int64_t i = 0; i < count; i++) {
        snn += (n[i] - mean_n) * (n[i] - mean_n);
        snx += (n[i] - mean_n) * (x_s[i] - mean_x);
    }
    f.line.b_s = snx / snn;
    f.line.a_s = mean_x - f.line.b_s * mean_n;
    for (int64_t i = 0; i < count; i++) {
        double r = x_s[i] - f.line.a_s - f.line.b_s * n[i];

        ss += r * r;
    }
    f.residual_s = sqrt(ss / (double)(count - 2)); /* 3 distinct n: count >= 3 */
    f.slope_error_s = f.residual_s / sqrt(snn);
    x1 = mean_at(n, x_s, count, second);
    x2 = mean_at(n, x_s, count, top);
    f.last_b_s = (x2 - x1) / (top - second);
    /* The relative term: on points of an exact line both sides are rounding. */
    f.convex = f.last_b_s - f.line.b_s > 3 * f.slope_error_s + 1e-9 * fabs(f.line.b_s);
    f.cost = f.line;
    if (f.convex)
        f.cost = (struct mt_cost){x2 - f.last_b_s * top, f.last_b_s};
    *out = f;
    return 0;
}

/* ---- which one binds ---- */

const char *mt_binding_name(enum mt_binding b)
{
    static const char *const names[] = {"memory", "latency", "limit", "none"};

    return names[b];
}

int64_t mt_sustainable(int64_t n_mem, int64_t n_latency, int64_t limit, enum mt_binding *binding)
{
    int64_t n = n_mem;
    enum mt_binding b = MT_BIND_MEMORY;

    if (n_latency < n) {
        n = n_latency;
        b = MT_BIND_LATENCY;
    }
    if (limit < n) {
        n = limit;
        b = MT_BIND_LIMIT;
    }
    *binding = n == MT_NO_LIMIT ? MT_BIND_NONE : b;
    return n;
}
