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
enum { UNIT = 16, QUERIES = 32 };
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

/* q times each key of the unit into s[UNIT]. */
FOLD void unit_scores(float *s, const float *q, const float *k, int64_t k_stride, int hdp,
                      float scale)
{
    for (int g = 0; g < UNIT; g += LANES) {
        vf a[LANES];

#pragma GCC unroll 16
        for (int j = 0; j < LANES; j++)
            a[j] = vsplat(0);
        for (int d = 0; d < hdp; d += LANES) {
            vf qv = vload(q + d);

#pragma GCC unroll 16
            for (int j = 0; j < LANES; j++)
                a[j] = vfma(vload(k + (int64_t)(g + j) * k_stride + d), qv, a[j]);
        }
        vstore(s + g, vsums(a) * scale);
    }
}

/*
 * out = out * shrink + sum of p[t] v[t], t ascending, over `nv` vectors from column d; nv constant.
 */
FOLD void unit_values(const int nv, float *out, float shrink, const float *p, int lo, int hi,
                      const float *v, int64_t v_stride, int d)
{
    vf a[8];

#pragma GCC unroll 8
    for (int i = 0; i < nv; i++)
        a[i] = vload(out + d + (int64_t)i * LANES) * shrink;
    for (int t = lo; t < hi; t++) {
        vf w = vsplat(p[t]);

#pragma GCC unroll 8
        for (int i = 0; i < nv; i++)
            a[i] = vfma(w, vload(v + t * v_stride + d + (int64_t)i * LANES), a[i]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < nv; i++)
        vstore(out + d + (int64_t)i * LANES, a[i]);
}

/* One query meets tokens lo..hi-1 of a unit. */
static void soft_unit(const struct soft *s, int i, const float *q, const float *k, int64_t k_stride,
                      const float *v, int64_t v_stride, int lo, int hi)
{
    static const int32_t count[UNIT] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    float p[UNIT], top = -INFINITY, shrink = 1, *out = s->out + (int64_t)i * s->hdp;
    vf sum = vsplat(0);
    int d = 0;

    unit_scores(p, q, k, k_stride, s->hdp, s->scale);
    for (int g = 0; g < UNIT; g += LANES) { /* what is masked may be anything: it becomes -inf */
        vi at;
        vf x;
        float m;

        memcpy(&at, count + g, sizeof(at));
        x = vselect((at >= lo) & (at < hi), vload(p + g), vsplat(-INFINITY));
        vstore(p + g, x);
        m = vtop(x);
        top = m > top ? m : top;
    }
    if (top > s->max[i]) {
        shrink = vexp(vsplat(s->max[i] - top))[0];
        s->max[i] = top;
    }
    for (int g = 0; g < UNIT; g += LANES) {
        vf x = vexp(vload(p + g) - s->max[i]);

        vstore(p + g, x);
        sum += x;
    }
    s->sum[i] = s->sum[i] * shrink + vsum(sum);
    for (; d + 8 * LANES <= s->hdp; d += 8 * LANES)
        unit_values(8, out, shrink, p, lo, hi, v, v_stride, d);
    for (; d + 4 * LANES <= s->hdp; d += 4 * LANES)
        unit_values(4, out, shrink, p, lo, hi, v, v_stride, d);
    for (; d < s->hdp; d += LANES)
        unit_values(1, out, shrink, p, lo, hi, v, v_stride, d);
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

/* n tokens' keys or values of a head, from slot on, to f32 rows of hdp. */
static void att_decode(const struct mt_kv *kv, int layer, int32_t block, int v, int head, int slot,
                       int n, float *dst, int hdp)
{
    int hd = kv->s.head_dim;
    enum mt_dtype t = kv->s.type;

    for (int i = 0; i < n; i++, dst += hdp) {
        const char *src = kv_at(kv, layer, block, v, head, slot + i);
        float scale = 0;
        int d = 0;

        if (mt_dtype_scaled(t)) {
            memcpy(&scale, kv_scale_at(kv, layer, block, v, head, slot + i), sizeof(scale));
            for (; d + LANES <= hd; d += LANES)
                vstore(dst + d, vfrom(t, src, d) * scale);
            if (d < hd)
                num_decode_kv(dst + d, t, src + d, scale, hd - d);
        } else {
            decode(t, dst, src, 0, hd);
        }
        memset(dst + hd, 0, (size_t)(hdp - hd) * sizeof(float));
    }
}

/*
 * Tokens first..first+n-1 lie in one unit (block, slot on) and are numbered from `first`: sinks by
 * their index, ring tokens by index - sinks. lo and hi say which of these numbers query row r may
 * see.
 */
struct att_unit {
    const struct mt_run *run;
    int64_t f0; /* first query of the task: row * group + head */
    int64_t first;
    int n;
    bool sink;
};

static void att_bounds(const struct att_job *a, const struct att_unit *u, int i, int *lo, int *hi)
{
    const struct mt_kv_view *w = &u->run->view;
    int64_t index = u->run->index + (u->f0 + i) / a->group, end = view_end(u->run, index), from, to;

    if (u->sink) {
        from = 0;
        to = end < w->sinks ? end : w->sinks;
    } else {
        from = view_first(u->run, index);
        to = end - w->sinks;
    }
    from -= u->first;
    to -= u->first;
    *lo = from < 0 ? 0 : from > u->n ? u->n : (int)from;
    *hi = to < 0 ? 0 : to > u->n ? u->n : (int)to;
}

static void att_unit(const struct att_job *a, struct soft *s, const struct att_unit *u,
                     int32_t block, int slot, int head)
{
    const struct mt_kv *kv = view_kv(u->run, a->kv);
    int least = UNIT, most = 0, lo, hi;

    for (int i = 0; i < s->n; i++) {
        att_bounds(a, u, i, &lo, &hi);
        if (lo < hi) {
            least = lo < least ? lo : least;
            most = hi > most ? hi : most;
        }
    }
    if (least >= most)
        return;
    att_decode(kv, a->layer, block, 0, head, slot + least, most - least,
               s->k + (int64_t)least * s->hdp, s->hdp);
    att_decode(kv, a->layer, block, 1, head, slot + least, most - least,
               s->v + (int64_t)least * s->hdp, s->hdp);
    for (int i = 0; i < s->n; i++) {
        const float *q =
            (u->sink && view_has_q_sink(&u->run->view) ? s->q_sink : s->q) + (int64_t)i * s->hdp;

        att_bounds(a, u, i, &lo, &hi);
        if (lo < hi)
            soft_unit(s, i, q, s->k, s->hdp, s->v, s->hdp, lo, hi);
    }
}

/* Units of the tokens numbered from..to-1, of the sinks or of the ring. */
static void att_range(const struct att_job *a, struct soft *s, const struct mt_run *run, int64_t f0,
                      int head, bool sink, int64_t from, int64_t to)
{
    int p = a->kv->s.block_tokens;

    for (int64_t b = from / p; b * p < to; b++) {
        for (int slot = 0; slot < p; slot += UNIT) {
            struct att_unit u = {run, f0, b * p + slot, p - slot < UNIT ? p - slot : UNIT, sink};
            int unused;

            if (u.first + u.n <= from || u.first >= to)
                continue;
            att_unit(a, s, &u,
                     view_block(&run->view, p, sink ? u.first : run->view.sinks + u.first, &unused),
                     slot, head);
        }
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
    att_range(a, &s, run, f0, head, true, 0, end < sinks ? end : sinks);
    att_range(a, &s, run, f0, head, false, view_first(run, first), end - sinks);
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
        const float *k = j->k.data + (span->row + (int64_t)t0) * j->k.stride + col;
        const float *v = j->v.data + (span->row + (int64_t)t0) * j->v.stride + col;
        int64_t k_stride = j->k.stride, v_stride = j->v.stride;

        if (nt < UNIT || s.hdp != j->hd) { /* whole vectors of whole units only */
            for (int t = 0; t < nt; t++) {
                copy_padded(s.k + (int64_t)t * s.hdp, k + t * k_stride, j->hd, s.hdp);
                copy_padded(s.v + (int64_t)t * s.hdp, v + t * v_stride, j->hd, s.hdp);
            }
            k = s.k;
            v = s.v;
            k_stride = v_stride = s.hdp;
        }
        for (int i = 0; i < s.n; i++)
            soft_unit(&s, i, s.q + (int64_t)i * s.hdp, k, k_stride, v, v_stride, 0, nt);
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
