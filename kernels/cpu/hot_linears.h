/*
 * hot_linears.h: linear over one matrix, or over several of the same rows of x, whose outputs are
 * then one job for the threads and whose x is quantised once.
 */
struct linears_run {
    struct linear_job j[MT_LINEARS_MAX];
    int64_t end[MT_LINEARS_MAX]; /* items of these and of those before */
    struct mt_scratch *scratch;
};

static bool is_packed(const struct mt_mat *w)
{
#if LANES > 4
    return w->pack.data;
#else
    (void)w;
    return false;
#endif
}

static int64_t linear_items(const struct linear_job *j)
{
    if (!is_packed(j->w))
        return (j->w->rows + GROUP - 1) / GROUP;
#if LANES > 4
    return j->w->pack.tiles;
#else
    return 0;
#endif
}

static void linears_part(void *arg, int thread, int64_t begin, int64_t end)
{
    const struct linears_run *l = arg;
    int at = 0;

    while (begin < end) {
        while (begin >= l->end[at])
            at++;
        const struct linear_job *j = &l->j[at];
        int64_t before = at ? l->end[at - 1] : 0, stop = end < l->end[at] ? end : l->end[at];
#if LANES > 4
        if (is_packed(j->w))
            quant_tiles(j, begin - before, stop - before);
        else
#endif
            for (int64_t i = begin; i < stop; i++)
                group_of(j, i - before, l->scratch[thread].f);
        begin = stop;
    }
}

/* Rows first..first+n-1. */
static void linears_rows(struct mt_cpu *c, struct mt_rows x, const struct mt_linear *list,
                         int count, bool packed, int first, int n)
{
    struct linears_run l = {.scratch = c->scratch};
    int64_t items = 0, work = 0, blocks = x.width / 32;
    struct linear_job job = {.x = mt_rows_from(x, first), .n = n};

#if LANES > 4
    if (packed) {
        job.q = c->x;
        x_quantise(c, job.x, blocks, n);
    }
#else
    (void)packed;
    (void)blocks;
#endif
    for (int i = 0; i < count; i++) {
        job.out = mt_rows_from(list[i].out, first);
        job.residual = list[i].residual.data ? mt_rows_from(list[i].residual, first) : MT_NO_ROWS;
        job.w = list[i].w;
        job.bias = list[i].bias;
        job.act = list[i].act;
        l.j[i] = job;
        items += linear_items(&job);
        work += job.w->rows * job.w->cols * n;
        l.end[i] = items;
    }
    mt_par(c, items, work / (items ? items : 1) + 1, linears_part, &l);
}

static void linears(struct mt_backend *be, struct mt_rows x, const struct mt_linear *list,
                    int count, int n)
{
    bool packed = false;
    int most;

    for (int i = 0; i < count; i++)
        packed = packed || is_packed(list[i].w);
    most = packed ? MT_X_ROWS : n;
    for (int r = 0; r < n; r += most)
        linears_rows(cpu_of(be), x, list, count, packed, r, n - r < most ? n - r : most);
}

static void linear(struct mt_backend *be, struct mt_rows out, struct mt_rows x,
                   const struct mt_mat *w, const struct mt_mat *bias, enum mt_act act,
                   struct mt_rows residual, int n)
{
    struct mt_linear l = {out, w, bias, act, residual};

    linears(be, x, &l, 1, n);
}
