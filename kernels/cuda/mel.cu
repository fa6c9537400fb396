/*
 * mel.cu: the log-mel of live sound. A frame's 400 samples are a transform of 200 complex numbers
 * (5 x 5 x 8, sorted as it goes), whose halves become 201 bins; their powers are summed over
 * triangles. All in f32.
 */
#include "kernels/cuda/dev.h"

extern "C" {
#include "audio/mel.h"
}

enum {
    HALF = MT_MEL_FFT / 2,
    FRAMES = 8,        /* of one session, a block … */
    EACH = HALF / 5,   /* … and threads a frame: as many as a step has fives */
    EIGHTS = HALF / 8, /* of the last step */
    PAIRS = HALF / 2 + 1,
    CLAMP_WARPS = 16
};

/* A band's sum: weight[at + k] of bins first to last - 1. */
struct mel_band {
    int first, last, at;
};

/* On the device: the window by twos, e^(-2 pi i k / 400), and the filters. */
struct mel_tables {
    float2 window[HALF], root[MT_MEL_FFT];
    struct mel_band band[MT_MEL_BANDS_MAX];
    float weight[2 * MT_MEL_BINS];
};

struct mt_mels {
    int bands;
    const struct mel_tables *tables;
    struct mt_chunk *in;
};

/* ---- the transform ---- */

MT_DEV float2 times(float2 a, float2 b)
{
    return {a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x};
}

MT_DEV float2 plus(float2 a, float2 b)
{
    return {a.x + b.x, a.y + b.y};
}

MT_DEV float2 minus(float2 a, float2 b)
{
    return {a.x - b.x, a.y - b.y};
}

/* -i a. */
MT_DEV float2 turned(float2 a)
{
    return {a.y, -a.x};
}

/* v becomes its own transform, sum over n of v[n] e^(-2 pi i k n / 5). */
MT_DEV void transform5(float2 *v)
{
    const float c1 = 0.30901699437494742f, c2 = -0.80901699437494742f; /* cos of 72, 144 degrees */
    const float s1 = 0.95105651629515357f, s2 = 0.58778525229247313f;
    float2 a = plus(v[1], v[4]), b = plus(v[2], v[3]), c = minus(v[1], v[4]), d = minus(v[2], v[3]);
    float2 m1 = {v[0].x + c1 * a.x + c2 * b.x, v[0].y + c1 * a.y + c2 * b.y};
    float2 m2 = {v[0].x + c2 * a.x + c1 * b.x, v[0].y + c2 * a.y + c1 * b.y};
    float2 u1 = turned({s1 * c.x + s2 * d.x, s1 * c.y + s2 * d.y});
    float2 u2 = turned({s2 * c.x - s1 * d.x, s2 * c.y - s1 * d.y});

    v[0] = plus(v[0], plus(a, b));
    v[1] = plus(m1, u1);
    v[2] = plus(m2, u2);
    v[3] = minus(m2, u2);
    v[4] = minus(m1, u1);
}

MT_DEV void transform4(float2 *a, float2 *b, float2 *c, float2 *d)
{
    float2 s = plus(*a, *c), t = plus(*b, *d), u = minus(*a, *c), w = turned(minus(*b, *d));

    *a = plus(s, t);
    *b = plus(u, w);
    *c = minus(s, t);
    *d = minus(u, w);
}

MT_DEV void transform8(float2 *v)
{
    const float h = 0.70710678118654752f;

    transform4(&v[0], &v[2], &v[4], &v[6]);
    transform4(&v[1], &v[3], &v[5], &v[7]);
    v[3] = {h * (v[3].x + v[3].y), h * (v[3].y - v[3].x)};
    v[5] = turned(v[5]);
    v[7] = {h * (v[7].y - v[7].x), -h * (v[7].x + v[7].y)};
    const float2 even[4] = {v[0], v[2], v[4], v[6]}, odd[4] = {v[1], v[3], v[5], v[7]};
#pragma unroll
    for (int k = 0; k < 4; k++) {
        v[k] = plus(even[k], odd[k]);
        v[k + 4] = minus(even[k], odd[k]);
    }
}

/* ---- frames ---- */

/* Up to FRAMES of a span: their samples, on 16 bytes, and rows. */
struct mel_tile {
    const float *x;
    int row, n;
};

/*
 * A block a tile. What is read from shared memory lies side by side. What the first step writes is
 * 5 pairs apart (odd: 16 lanes, 16 pairs of banks); of the second's, two lanes may meet in a pair.
 */
static __global__ void __launch_bounds__(FRAMES *EACH)
    mel_rows(struct mt_rows out, const struct mel_tables *tables, const struct mel_tile *tiles)
{
    __shared__ float4 sound[FRAMES * (MT_MEL_BINS + 3) / 4]; /* first samples, then powers */
    __shared__ float2 all[FRAMES * HALF];
    const struct mel_tile tile = tiles[blockIdx.x];
    int j = (int)threadIdx.x % EACH, frame = (int)threadIdx.x / EACH;
    bool mine = frame < tile.n;
    float *power = (float *)sound;
    float2 *z = all + frame * HALF, v[8];

    static_assert(FRAMES * (MT_MEL_BINS + 3) / 4 * 4 >= MT_MEL_HOP * (FRAMES - 1) + MT_MEL_FFT,
                  "the samples have room");
    for (int i = (int)threadIdx.x; i < (MT_MEL_HOP * (tile.n - 1) + MT_MEL_FFT) / 4;
         i += FRAMES * EACH)
        sound[i] = ((const float4 *)tile.x)[i];
    __syncthreads();
    if (mine) {
        const float2 *x = (const float2 *)sound + frame * (MT_MEL_HOP / 2);

#pragma unroll
        for (int m = 0; m < 5; m++) {
            float2 a = x[j + EACH * m], w = tables->window[j + EACH * m];

            v[m] = {a.x * w.x, a.y * w.y};
        }
        transform5(v);
#pragma unroll
        for (int m = 0; m < 5; m++)
            z[5 * j + m] = v[m];
    }
    __syncthreads();
    if (mine) {
#pragma unroll
        for (int m = 0; m < 5; m++)
            v[m] = times(z[j + EACH * m], tables->root[MT_MEL_FFT / 25 * (j % 5) * m]);
        transform5(v);
    }
    __syncthreads();
    if (mine)
#pragma unroll
        for (int m = 0; m < 5; m++)
            z[j / 5 * 25 + j % 5 + 5 * m] = v[m];
    __syncthreads();
    if (mine && j < EIGHTS) {
#pragma unroll
        for (int m = 0; m < 8; m++)
            v[m] = times(z[j + EIGHTS * m], tables->root[2 * j * m]);
        transform8(v);
#pragma unroll
        for (int m = 0; m < 8; m++) /* where it read */
            z[j + EIGHTS * m] = v[m];
    }
    __syncthreads();
    /* Of the even samples e and the odd ones o: bin k is e + w^k o, bin 200 - k its conjugate's. */
    for (int i = (int)threadIdx.x; i < tile.n * PAIRS; i += FRAMES * EACH) {
        int f = i / PAIRS, k = i % PAIRS;
        float2 a = all[f * HALF + k], b = all[f * HALF + (k ? HALF - k : 0)];
        float2 e = {0.5f * (a.x + b.x), 0.5f * (a.y - b.y)};
        float2 o = times({0.5f * (a.y + b.y), -0.5f * (a.x - b.x)}, tables->root[k]);
        float2 low = plus(e, o), high = minus(e, o);

        power[f * MT_MEL_BINS + k] = low.x * low.x + low.y * low.y;
        power[f * MT_MEL_BINS + HALF - k] = high.x * high.x + high.y * high.y;
    }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < tile.n * out.width; i += FRAMES * EACH) {
        int f = i / out.width, b = i % out.width;
        const struct mel_band band = tables->band[b];
        float sum = 0;

        for (int k = band.first; k < band.last; k++)
            sum = dev_fma(tables->weight[band.at + k], power[f * MT_MEL_BINS + k], sum);
        out.data[(int64_t)(tile.row + f) * out.stride + b] = sum > 1e-10f ? log10f(sum) : -10.0f;
    }
}

static void log_mel(struct mt_backend *be, struct mt_rows out, struct mt_mels *m,
                    const struct mt_mel_span *spans, int n_spans)
{
    struct mt_cuda *c = cuda_of(be);
    size_t tiles = 0, samples = 0, at;
    struct mel_tile *tile;
    struct mt_stage s;

    for (int i = 0; i < n_spans; i++) {
        tiles += mt_blocks(spans[i].n, FRAMES);
        samples += spans[i].n ? (size_t)spans[i].n * MT_MEL_HOP + MT_MEL_FFT - MT_MEL_HOP : 0;
    }
    at = (tiles * sizeof(*tile) + 15) / 16 * 16;
    if (!tiles || !mt_stage_new(c, &s, at + samples * sizeof(float)))
        return;
    tile = (struct mel_tile *)s.host;
    memset(s.host, 0, at);
    for (int i = 0; i < n_spans; i++) {
        size_t bytes = ((size_t)spans[i].n * MT_MEL_HOP + MT_MEL_FFT - MT_MEL_HOP) * sizeof(float);

        if (spans[i].n < 1)
            continue;
        memcpy(s.host + at, spans[i].x, bytes);
        for (int f = 0; f < spans[i].n; f += FRAMES) {
            tile->x = (const float *)(s.dev + at) + f * MT_MEL_HOP;
            tile->row = spans[i].row + f;
            tile++->n = spans[i].n - f < FRAMES ? spans[i].n - f : FRAMES;
        }
        at += bytes;
    }
    mt_stage_send(c, &s);
    out.width = m->bands;
    MT_LAUNCH(c, mel_rows, (unsigned)tiles, FRAMES * EACH, 0, out, m->tables,
              (const struct mel_tile *)s.dev);
}

/* ---- the clamp ---- */

struct clamp {
    float *cells;
    int loud, loud_n, row, n;
    int into, beside, by, n_by; /* by: from here on in the list of all */
};

/* A block a session, whose items are first[block].. of all. */
static __global__ void __launch_bounds__(32 * CLAMP_WARPS)
    clamp_rows(struct mt_rows x, const struct clamp *items, const int *first, const int *by)
{
    __shared__ float part[CLAMP_WARPS];
    int warp = (int)threadIdx.x / 32, lane = (int)dev_lane();

    for (int i = first[blockIdx.x]; i < first[blockIdx.x + 1]; i++) {
        const struct clamp it = items[i];
        float m = -INFINITY;

        for (int r = warp; r < it.loud_n; r += CLAMP_WARPS)
            for (int col = lane; col < x.width; col += 32)
                m = fmaxf(m, x.data[(int64_t)(it.loud + r) * x.stride + col]);
        m = warp_max(m);
        if (lane == 0)
            part[warp] = m;
        __syncthreads();
        if (threadIdx.x == 0) {
            m = it.beside ? it.cells[it.into] : -INFINITY;
            for (int w = 0; w < CLAMP_WARPS; w++)
                m = fmaxf(m, part[w]);
            it.cells[it.into] = m;
        }
        __syncthreads(); /* the cell and, for the next item, the parts */
        m = -INFINITY;
        for (int k = 0; k < it.n_by; k++)
            m = fmaxf(m, it.cells[by[it.by + k]]);
        for (int r = warp; r < it.n; r += CLAMP_WARPS)
            for (int col = lane; col < x.width; col += 32) {
                float *v = &x.data[(int64_t)(it.row + r) * x.stride + col];

                *v = (fmaxf(*v, m - 8) + 4) / 4;
            }
        __syncthreads(); /* the next item may look at these rows */
    }
}

static void mel_clamp(struct mt_backend *be, struct mt_rows x, const struct mt_mel_clamp *items,
                      int n)
{
    struct mt_cuda *c = cuda_of(be);
    int lists = 0, sessions = 0, *first, *by;
    struct clamp *to;
    struct mt_stage s;

    for (int i = 0; i < n; i++)
        lists += items[i].n_by;
    if (n < 1 || !mt_stage_new(c, &s, (size_t)n * sizeof(*to) + (size_t)(n + 1 + lists) * 4))
        return;
    to = (struct clamp *)s.host;
    first = (int *)(to + n);
    by = first + n + 1;
    lists = 0;
    for (int i = 0; i < n; i++) {
        const struct mt_mel_clamp *it = &items[i];

        to[i] = {it->cells.data, it->loud.row, it->loud.n, it->rows.row, it->rows.n,
                 it->into,       it->beside,   lists,      it->n_by};
        if (i == 0 || it->cells.data != items[i - 1].cells.data)
            first[sessions++] = i;
        for (int k = 0; k < it->n_by; k++)
            by[lists++] = it->by[k];
    }
    for (int i = sessions; i <= n; i++)
        first[i] = n;
    mt_stage_send(c, &s);
    MT_LAUNCH(c, clamp_rows, (unsigned)sessions, 32 * CLAMP_WARPS, 0, x,
              (const struct clamp *)s.dev, (const int *)(s.dev + (size_t)n * sizeof(*to)),
              (const int *)(s.dev + (size_t)n * sizeof(*to)) + n + 1);
}

/* ---- the tables ---- */

static void fill(struct mel_tables *t, int bands)
{
    struct mt_mel_bank bank;

    mt_mel_bank_make(&bank, bands);
    for (int i = 0; i < HALF; i++)
        t->window[i] = {(float)bank.window[2 * i], (float)bank.window[2 * i + 1]};
    for (int i = 0; i < MT_MEL_FFT; i++)
        t->root[i] = {(float)cos(2 * M_PI * i / MT_MEL_FFT),
                      (float)-sin(2 * M_PI * i / MT_MEL_FFT)};
    for (int b = 0; b < bands; b++) {
        t->band[b] = {bank.first[b], bank.last[b], bank.at[b]};
        for (int k = bank.first[b]; k < bank.last[b]; k++)
            t->weight[bank.at[b] + k] = (float)bank.weight[bank.at[b] + k];
    }
}

static void mel_free(struct mt_backend *be, struct mt_mels *m)
{
    if (m)
        mt_weight_free(cuda_of(be), m->in);
    free(m);
}

static int mel_new(struct mt_backend *be, struct mt_mels **out, int bands)
{
    struct mt_cuda *c = cuda_of(be);
    struct mel_tables *t;
    struct mt_mels *m;
    void *data;

    *out = NULL;
    if (bands < 1 || bands > MT_MEL_BANDS_MAX)
        return -EINVAL;
    t = (struct mel_tables *)calloc(1, sizeof(*t));
    m = (struct mt_mels *)calloc(1, sizeof(*m));
    data = t && m ? mt_weight_new(c, &m->in, sizeof(*t)) : NULL;
    if (data) {
        fill(t, bands);
        m->bands = bands;
        m->tables = (const struct mel_tables *)data;
    }
    if (!data || !mt_weight_put(c, (char *)data, (const char *)t, sizeof(*t))) {
        mel_free(be, m);
        m = NULL;
    }
    free(t);
    *out = m;
    return m ? 0 : -ENOMEM;
}

void mt_cuda_mels(struct mt_ops *o)
{
    o->mel_new = mel_new;
    o->mel_free = mel_free;
    o->log_mel = log_mel;
    o->mel_clamp = mel_clamp;
}
