/*
 * hot_attention.h: both attentions. A query head walks the tokens it may see in units of UNIT,
 * which start at multiples of UNIT inside a block (of the sinks, of the ring, of a span): scores of
 * a unit, one step of the running maximum and sum, weighted values. The units and their order
 * follow from the query's index and the view alone, and inside one masked tokens take no part, so
 * the bits do not depend on how a session was cut into runs.
 *
 * A task is up to QUERIES query heads of one run that share a KV head: neighbouring rows and the
 * heads of the group. They share each unit's keys and values, decoded once to f32. Heads wider than
 * MAX_DIM go to the scalar version. Scratch, in floats: (2 UNIT + 3 QUERIES) * MAX_DIM + 2 QUERIES.
 */
enum { UNIT = MT_KV_UNIT, QUERIES = 32 };
#define MAX_DIM INT64_C(256)

/* Of one task: each row padded with zeros to hdp floats, a multiple of 16. */
struct soft {
    int n, hdp;
    float scale;
    float *k, *v;            /* [UNIT][hdp] */
    float *q, *q_sink, *out; /* [n][hdp] */
    float *max, *sum;        /* [n] */
};

static struct soft soft_new(struct mt_scratch *scratch, int n, int hd)
{
    struct soft s = {.n = n, .hdp = (hd + 15) / 16 * 16, .scale = 1 / sqrtf((float)hd)};

    s.k = scratch->f;
    s.v = s.k + UNIT * MAX_DIM;
    s.q = s.v + UNIT * MAX_DIM;
    s.q_sink = s.q + QUERIES * MAX_DIM;
    s.out = s.q_sink + QUERIES * MAX_DIM;
    s.max = s.out + QUERIES * MAX_DIM;
    s.sum = s.max + QUERIES;
    memset(s.out, 0, (size_t)n * (size_t)s.hdp * sizeof(float));
    for (int i = 0; i < n; i++) {
        s.max[i] = -INFINITY;
        s.sum[i] = 0;
    }
    return s;
}

static void copy_padded(float *dst, const float *src, int n, int padded)
{
    memcpy(dst, src, (size_t)n * sizeof(float));
    memset(dst + n, 0, (size_t)(padded - n) * sizeof(float));
}

/*
 * Queries that meet a unit together: each key and value is loaded once for so many. Scores and
 * values are functions of their own, or what exp needs would hold the registers that they do.
 */
#if LANES > 4
#define TOGETHER 4
#else
#define TOGETHER 1
#endif
#define UNIT_VECTORS (UNIT / LANES)

/* q times each key of the unit. */
static __attribute__((noinline)) void unit_scores(vf *s, const float *q, const float *k,
                                                  int64_t k_stride, int hdp)
{
#pragma GCC unroll 4
    for (int g = 0; g < UNIT_VECTORS; g++) {
        vf a[LANES];

#pragma GCC unroll 16
        for (int j = 0; j < LANES; j++)
            a[j] = vsplat(0);
        for (int d = 0; d < hdp; d += LANES) {
            vf qv = vload(q + d);

#pragma GCC unroll 16
            for (int j = 0; j < LANES; j++)
                a[j] = vfma(vload(k + (int64_t)(g * LANES + j) * k_stride + d), qv, a[j]);
        }
        s[g] = vsums(a);
    }
}

#if TOGETHER > 1
/* The same of two queries, s and s + UNIT_VECTORS. */
static __attribute__((noinline)) void unit_scores_2(vf *s, const float *q0, const float *q1,
                                                    const float *k, int64_t k_stride, int hdp)
{
    enum { HALF = LANES / 2 };
    vf part[2 * UNIT_VECTORS];

#pragma GCC unroll 4
    for (int g = 0; g < 2 * UNIT_VECTORS; g++) {
        vf a[LANES];

#pragma GCC unroll 16
        for (int j = 0; j < LANES; j++)
            a[j] = vsplat(0);
        for (int d = 0; d < hdp; d += LANES) {
            vf v0 = vload(q0 + d), v1 = vload(q1 + d);

#pragma GCC unroll 16
            for (int j = 0; j < HALF; j++) {
                vf kv = vload(k + (int64_t)(g * HALF + j) * k_stride + d);

                a[j] = vfma(kv, v0, a[j]);
                a[HALF + j] = vfma(kv, v1, a[HALF + j]);
            }
        }
        part[g] = vsums(a);
    }
#pragma GCC unroll 4
    for (int g = 0; g < UNIT_VECTORS; g++) {
        s[g] = HALF_LO(part[2 * g], part[2 * g + 1]);
        s[UNIT_VECTORS + g] = HALF_HI(part[2 * g], part[2 * g + 1]);
    }
}
#endif

/*
 * out = out * shrink + sum of p[t] v[t], t ascending, for nq queries, over nv vectors from column d
 * on; nq and nv are constants.
 */
FOLD void unit_values(const int nq, const int nv, float *out, int64_t out_stride,
                      const float *shrink, const float *p, int lo, int hi, const float *v,
                      int64_t v_stride, int d)
{
    vf a[16], x[8];

#pragma GCC unroll 16
    for (int i = 0; i < nq * nv; i++)
        a[i] = vload(out + i / nv * out_stride + d + (int64_t)(i % nv) * LANES) * shrink[i / nv];
    for (int t = lo; t < hi; t++) {
#pragma GCC unroll 8
        for (int i = 0; i < nv; i++)
            x[i] = vload(v + t * v_stride + d + (int64_t)i * LANES);
#pragma GCC unroll 4
        for (int q = 0; q < nq; q++) {
            vf w = vsplat(p[q * UNIT + t]);

#pragma GCC unroll 8
            for (int i = 0; i < nv; i++)
                a[q * nv + i] = vfma(w, x[i], a[q * nv + i]);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < nq * nv; i++)
        vstore(out + i / nv * out_stride + d + (int64_t)(i % nv) * LANES, a[i]);
}

/* All columns; nq is a constant. */
FOLD void unit_columns(const int nq, float *out, int hdp, const float *shrink, const float *p,
                       int lo, int hi, const float *v, int64_t v_stride)
{
    /* Vectors at a time: sums of nq queries, and the values, must fit the registers. */
    const int most = (LANES == 16 ? 16 : 8) / nq < 8 ? (LANES == 16 ? 16 : 8) / nq : 8;
    int d = 0;

    for (; d + most * LANES <= hdp; d += most * LANES)
        unit_values(nq, most, out, hdp, shrink, p, lo, hi, v, v_stride, d);
    for (; d < hdp; d += LANES)
        unit_values(nq, 1, out, hdp, shrink, p, lo, hi, v, v_stride, d);
}

#define UNIT_COLUMNS(nq)                                                                           \
    static __attribute__((noinline)) void unit_columns_##nq(                                       \
        float *out, int hdp, const float *shrink, const float *p, int lo, int hi, const float *v,  \
        int64_t v_stride)                                                                          \
    {                                                                                              \
        unit_columns(nq, out, hdp, shrink, p, lo, hi, v, v_stride);                                \
    }
UNIT_COLUMNS(1)
#if TOGETHER > 1
UNIT_COLUMNS(2)
UNIT_COLUMNS(4)
#endif

/* Keys and values of a unit, from its first token on, as rows of floats. */
struct unit {
    const float *k, *v;
    int64_t k_stride, v_stride;
};

/*
 * nq queries from i on, a constant, meet tokens lo..hi-1 of a unit; q is the first of them. Their
 * weights p and shares shrink are left to unit_columns.
 */
FOLD void soft_weights(const int nq, const struct soft *s, int i, const float *q,
                       const struct unit *u, int lo, int hi, float *p, float *shrink)
{
    static const int32_t count[UNIT] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    vf x[TOGETHER * UNIT_VECTORS];

#if TOGETHER > 1
#pragma GCC unroll 2
    for (int m = 0; m + 2 <= nq; m += 2)
        unit_scores_2(x + m * UNIT_VECTORS, q + (int64_t)m * s->hdp, q + (m + 1) * (int64_t)s->hdp,
                      u->k, u->k_stride, s->hdp);
#endif
    if (nq == 1)
        unit_scores(x, q, u->k, u->k_stride, s->hdp);
#pragma GCC unroll 4
    for (int m = 0; m < nq; m++) {
        vf most_of = vsplat(-INFINITY), sum = vsplat(0);
        float top;

#pragma GCC unroll 4
        for (int g = 0; g < UNIT_VECTORS; g++) {
            vf *at = &x[m * UNIT_VECTORS + g];

            *at *= s->scale;
            if (hi - lo < UNIT) { /* what is masked may be anything: it becomes -inf */
                vi n;

                memcpy(&n, count + (ptrdiff_t)g * LANES, sizeof(n));
                *at = vselect((n >= lo) & (n < hi), *at, vsplat(-INFINITY));
            }
            most_of = vmax(most_of, *at);
        }
        top = vtop(most_of);
        shrink[m] = 1;
        if (top > s->max[i + m]) {
            shrink[m] = vexp(vsplat(s->max[i + m] - top))[0];
            s->max[i + m] = top;
        }
#pragma GCC unroll 4
        for (int g = 0; g < UNIT_VECTORS; g++) {
            vf e = vexp(x[m * UNIT_VECTORS + g] - s->max[i + m]);

            vstore(p + (ptrdiff_t)m * UNIT + (ptrdiff_t)g * LANES, e);
            sum += e;
        }
        s->sum[i + m] = s->sum[i + m] * shrink[m] + vsum(sum);
    }
}

/* Queries i.. of those up to `end` that see the same tokens of a unit meet it; how many did. */
static int soft_unit(const struct soft *s, int i, int end, const float *q, const struct unit *u,
                     int lo, int hi)
{
    float p[TOGETHER * UNIT], shrink[TOGETHER], *out = s->out + (int64_t)i * s->hdp;

#if TOGETHER > 1
    if (end - i >= 4) {
        soft_weights(4, s, i, q, u, lo, hi, p, shrink);
        unit_columns_4(out, s->hdp, shrink, p, lo, hi, u->v, u->v_stride);
        return 4;
    }
    if (end - i >= 2) {
        soft_weights(2, s, i, q, u, lo, hi, p, shrink);
        unit_columns_2(out, s->hdp, shrink, p, lo, hi, u->v, u->v_stride);
        return 2;
    }
#else
    (void)end;
#endif
    soft_weights(1, s, i, q, u, lo, hi, p, shrink);
    unit_columns_1(out, s->hdp, shrink, p, lo, hi, u->v, u->v_stride);
    return 1;
}

static void soft_out(const struct soft *s, int i, float *dst, int hd)
{
    const float *out = s->out + (int64_t)i * s->hdp;

    for (int d = 0; d < hd; d++)
        dst[d] = out[d] / s->sum[i];
}

/* ---- over the cache ---- */

struct att_job {
    struct mt_cpu *c;
    const struct mt_kv *kv;
    int layer;
    const struct mt_batch *b;
    struct mt_rows out, q, q_sink;
    int group;
    int64_t tasks;
};

static int64_t att_parts(const struct att_job *a, const struct mt_run *r)
{
    return ((int64_t)r->n * a->group + QUERIES - 1) / QUERIES;
}

/*
 * n tokens' keys or values of a head, from slot on, to f32 rows of hdp; what comes after them, at
 * `next`, is fetched meanwhile: a block of one head is too short a stream for the processor to see.
 */
static void att_decode(const struct mt_kv *kv, int layer, int32_t block, int v, int head, int slot,
                       int n, float *dst, int hdp, const char *next)
{
    int hd = kv->s.head_dim;
    enum mt_dtype t = kv->s.type;
    const char *src = kv_at(kv, layer, block, v, head, slot);
    int64_t bytes = hd * (int64_t)mt_dtype_size(t);

    for (int i = 0; i < n; i++, dst += hdp, src += bytes, next += bytes) {
        float scale = 0;
        int d = 0;

        for (int64_t k = 0; k < bytes; k += 64)
            __builtin_prefetch(next + k);
        if (mt_dtype_scaled(t)) {
            memcpy(&scale, kv_scale_at(kv, layer, block, v, head, slot + i), sizeof(scale));
            for (; d + LANES <= hd; d += LANES)
                vstore(dst + d, (t == MT_INT8 ? vfrom_int8(src + d) : vfrom_e4m3(src + d)) * scale);
            if (d < hd)
                num_decode_kv(dst + d, t, src + d, scale, hd - d);
        } else {
            decode(t, dst, src, 0, hd);
        }
        for (d = hd; d < hdp; d++)
            dst[d] = 0;
    }
}

/*
 * Of the sinks, or of the ring: which tokens each query of a task may see. Sinks are numbered by
 * their index, ring tokens by index - sinks.
 */
struct att_seen {
    const struct mt_run *run;
    bool sink;
    int64_t from[QUERIES], to[QUERIES];
};

/* f0: the task's first query, row * group + head. */
static void att_see(const struct att_job *a, struct att_seen *see, int64_t f0, int n)
{
    const struct mt_kv_view *w = &see->run->view;

    for (int i = 0; i < n; i++) {
        int64_t index = see->run->index + (f0 + i) / a->group, end = view_end(see->run, index);

        see->from[i] = see->sink ? 0 : view_first(see->run, index);
        see->to[i] = !see->sink ? end - w->sinks : end < w->sinks ? end : w->sinks;
    }
}

/* Tokens first..first+n-1 lie in one unit: in block, from slot on. */
struct att_unit {
    int64_t first;
    int n, slot;
    int32_t block;
};

static void att_unit(const struct att_job *a, struct soft *s, const struct att_seen *see, int head,
                     const struct att_unit *u, const struct att_unit *next)
{
    const struct mt_kv *kv = view_kv(see->run, a->kv);
    const float *q = see->sink && view_has_q_sink(&see->run->view) ? s->q_sink : s->q;
    const struct unit unit = {s->k, s->v, s->hdp, s->hdp};
    int least = UNIT, most = 0, lo[QUERIES], hi[QUERIES];

    for (int i = 0; i < s->n; i++) {
        int64_t from = see->from[i] - u->first, to = see->to[i] - u->first;

        lo[i] = from < 0 ? 0 : from > u->n ? u->n : (int)from;
        hi[i] = to < 0 ? 0 : to > u->n ? u->n : (int)to;
        if (lo[i] < hi[i]) {
            least = lo[i] < least ? lo[i] : least;
            most = hi[i] > most ? hi[i] : most;
        }
    }
    if (least >= most)
        return;
    for (int v = 0; v < 2; v++)
        att_decode(kv, a->layer, u->block, v, head, u->slot + least, most - least,
                   (v ? s->v : s->k) + (int64_t)least * s->hdp, s->hdp,
                   kv_at(kv, a->layer, next->block, v, head, next->slot));
    for (int i = 0, end; i < s->n;) {
        for (end = i + 1; end < s->n && lo[end] == lo[i] && hi[end] == hi[i];)
            end++;
        if (lo[i] < hi[i])
            while (i < end)
                i += soft_unit(s, i, end, q + (int64_t)i * s->hdp, &unit, lo[i], hi[i]);
        i = end;
    }
}

/* The unit that holds token `first` or begins behind it. */
static struct att_unit att_unit_at(const struct att_job *a, const struct att_seen *see,
                                   int64_t first)
{
    const struct mt_kv_view *w = &see->run->view;
    int p = a->kv->s.block_tokens, slot = (int)(first % p) / UNIT * UNIT, unused;
    struct att_unit u = {first - first % p + slot, p - slot < UNIT ? p - slot : UNIT, slot, 0};

    u.block = view_block(w, p, see->sink ? u.first : w->sinks + u.first, &unused);
    return u;
}

/* Units of the tokens from..to-1. */
static void att_range(const struct att_job *a, struct soft *s, const struct att_seen *see, int head,
                      int64_t from, int64_t to)
{
    struct att_unit u, next;

    if (from >= to)
        return;
    for (u = att_unit_at(a, see, from);; u = next) {
        bool last = u.first + u.n >= to;

        next = last ? u : att_unit_at(a, see, u.first + u.n);
        att_unit(a, s, see, head, &u, &next);
        if (last)
            return;
    }
}

static void att_task(const struct att_job *a, const struct mt_run *run, int64_t part, int head,
                     struct mt_scratch *scratch)
{
    int hd = a->kv->s.head_dim;
    int64_t f0 = part * QUERIES, n = (int64_t)run->n * a->group - f0;
    struct soft s = soft_new(scratch, n < QUERIES ? (int)n : QUERIES, hd);
    int64_t first = run->index + f0 / a->group, last = run->index + (f0 + s.n - 1) / a->group;
    int64_t sinks = run->view.sinks, end = view_end(run, last);

    for (int i = 0; i < s.n; i++) {
        int64_t row = run->row + (f0 + i) / a->group,
                col = ((int64_t)head * a->group + (f0 + i) % a->group) * hd;

        copy_padded(s.q + (int64_t)i * s.hdp, a->q.data + row * a->q.stride + col, hd, s.hdp);
        if (view_has_q_sink(&run->view))
            copy_padded(s.q_sink + (int64_t)i * s.hdp,
                        a->q_sink.data + row * a->q_sink.stride + col, hd, s.hdp);
    }
    for (int ring = 0; ring < 2; ring++) {
        struct att_seen see = {.run = run, .sink = !ring};

        att_see(a, &see, f0, s.n);
        att_range(a, &s, &see, head, ring ? view_first(run, first) : 0,
                  ring          ? end - sinks
                  : end < sinks ? end
                                : sinks);
    }
    for (int i = 0; i < s.n; i++) {
        int64_t row = run->row + (f0 + i) / a->group,
                col = ((int64_t)head * a->group + (f0 + i) % a->group) * hd;

        soft_out(&s, i, a->out.data + row * a->out.stride + col, hd);
    }
}

/*
 * Tasks differ in length, so threads take the next one when they are done; each finds its run from
 * the last.
 */
static void att_run(void *arg, int thread, int64_t begin, int64_t end)
{
    struct att_job *a = arg;
    const struct mt_run *run = a->b->runs;
    int heads = a->kv->s.kv_heads;
    int64_t before = 0;

    for (int64_t t = begin; t < end; t++) {
        while (t - before >= att_parts(a, run) * heads)
            before += att_parts(a, run++) * heads;
        att_task(a, run, (t - before) / heads, (int)((t - before) % heads), &a->c->scratch[thread]);
    }
}

static void attention(struct mt_backend *be, const struct mt_kv *kv, int layer,
                      const struct mt_batch *b, struct mt_rows out, struct mt_rows q,
                      struct mt_rows q_sink)
{
    struct att_job a = {
        cpu_of(be), kv, layer, b, out, q, q_sink, q.width / kv->s.head_dim / kv->s.kv_heads, 0};
    int64_t work = 0;

    if (kv->s.head_dim > MAX_DIM) {
        mt_scalar_attention_kv(be, kv, layer, b, out, q, q_sink);
        return;
    }
    for (int i = 0; i < b->n_runs; i++) {
        const struct mt_run *r = &b->runs[i];
        int64_t seen = r->index + r->n;

        if (r->view.window < seen - r->view.sinks)
            seen = r->view.window + r->view.sinks;
        a.tasks += att_parts(&a, r) * kv->s.kv_heads;
        work += r->n * seen;
    }
    if (a.tasks)
        mt_par(a.c, a.tasks, 2 * work * q.width / a.tasks + 1, att_run, &a);
}

/* ---- inside spans ---- */

struct span_job {
    struct mt_cpu *c;
    struct mt_rows out, q, k, v;
    int heads, hd;
    const struct mt_span *spans;
    int64_t tasks;
};

static int64_t span_parts(const struct mt_span *s)
{
    return ((int64_t)s->n + QUERIES - 1) / QUERIES;
}

static void span_task(const struct span_job *j, const struct mt_span *span, int64_t part, int head,
                      struct mt_scratch *scratch)
{
    int64_t i0 = part * QUERIES, n = span->n - i0;
    struct soft s = soft_new(scratch, n < QUERIES ? (int)n : QUERIES, j->hd);
    int col = head * j->hd;

    for (int i = 0; i < s.n; i++)
        copy_padded(s.q + (int64_t)i * s.hdp, j->q.data + (span->row + i0 + i) * j->q.stride + col,
                    j->hd, s.hdp);
    for (int t0 = 0; t0 < span->n; t0 += UNIT) {
        int nt = span->n - t0 < UNIT ? span->n - t0 : UNIT;
        struct unit u = {j->k.data + (span->row + (int64_t)t0) * j->k.stride + col,
                         j->v.data + (span->row + (int64_t)t0) * j->v.stride + col, j->k.stride,
                         j->v.stride};

        if (nt < UNIT || s.hdp != j->hd) { /* whole vectors of whole units only */
            for (int t = 0; t < nt; t++) {
                copy_padded(s.k + (int64_t)t * s.hdp, u.k + t * u.k_stride, j->hd, s.hdp);
                copy_padded(s.v + (int64_t)t * s.hdp, u.v + t * u.v_stride, j->hd, s.hdp);
            }
            u = (struct unit){s.k, s.v, s.hdp, s.hdp};
        }
        for (int i = 0; i < s.n;)
            i += soft_unit(&s, i, s.n, s.q + (int64_t)i * s.hdp, &u, 0, nt);
    }
    for (int i = 0; i < s.n; i++)
        soft_out(&s, i, j->out.data + (span->row + i0 + i) * j->out.stride + col, j->hd);
}

static void span_run(void *arg, int thread, int64_t begin, int64_t end)
{
    struct span_job *j = arg;
    const struct mt_span *s = j->spans;
    int64_t before = 0;

    for (int64_t t = begin; t < end; t++) {
        while (t - before >= span_parts(s) * j->heads)
            before += span_parts(s++) * j->heads;
        span_task(j, s, (t - before) % span_parts(s), (int)((t - before) / span_parts(s)),
                  &j->c->scratch[thread]);
    }
}

static void span_attention(struct mt_backend *be, struct mt_rows out, struct mt_rows q,
                           struct mt_rows k, struct mt_rows v, int heads,
                           const struct mt_span *spans, int n_spans)
{
    struct span_job j = {cpu_of(be), out, q, k, v, heads, q.width / heads, spans, 0};
    int64_t work = 0;

    if (j.hd > MAX_DIM) {
        mt_scalar_span_attention(be, out, q, k, v, heads, spans, n_spans);
        return;
    }
    for (int i = 0; i < n_spans; i++) {
        j.tasks += span_parts(&spans[i]) * heads;
        work += (int64_t)spans[i].n * spans[i].n;
    }
    if (j.tasks)
        mt_par(j.c, j.tasks, 2 * work * q.width / j.tasks + 1, span_run, &j);
}

_Static_assert((INT64_C(2) * UNIT + INT64_C(3) * QUERIES) * MAX_DIM + INT64_C(2) * QUERIES <=
                   MT_SCRATCH_FLOATS,
               "attention's scratch");
