/*
 * norm.cu: what works on one row, or one element, at a time.
 */
#include "kernels/cuda/dev.h"

/* ---- norms ---- */

/*
 * A warp a piece of a row up to this width, 8 of them a block; above it a block of 8 warps a piece.
 * The width alone decides, so that a row's sums are the same in any company.
 */
#define WARP_WIDTH 1024
#define WARPS      8

/* Over all threads of the piece. */
template <bool WIDE> MT_DEV float piece_sum(float v)
{
    __shared__ float part[WARPS];

    v = warp_sum(v);
    if (!WIDE)
        return v;
    __syncthreads(); /* the sums before have been read */
    if (dev_lane() == 0)
        part[threadIdx.x / 32] = v;
    __syncthreads();
    v = 0;
    for (int i = 0; i < WARPS; i++)
        v += part[i];
    return v;
}

/* b: NULL for RMS. half: NULL, or where the rows go rounded too. */
template <bool WIDE>
static __global__ void norm_rows(struct mt_rows out, struct mt_rows x, const float *w,
                                 const float *b, int width, int pieces, int64_t n, float eps,
                                 uint16_t *half, bool bf16)
{
    int64_t p = WIDE ? blockIdx.x : (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    int first = WIDE ? (int)threadIdx.x : (int)dev_lane(), step = WIDE ? 32 * WARPS : 32;
    float mean = 0, sum = 0;

    if (p >= n)
        return;
    const float *a = x.data + p / pieces * x.stride + p % pieces * width;
    float *y = out.data + p / pieces * out.stride + p % pieces * width;
    if (b) {
        for (int i = first; i < width; i += step)
            sum += a[i];
        mean = piece_sum<WIDE>(sum) / (float)width;
        sum = 0;
    }
    for (int i = first; i < width; i += step)
        sum += (a[i] - mean) * (a[i] - mean);
    float scale = 1 / sqrtf(piece_sum<WIDE>(sum) / (float)width + eps);
    for (int i = first; i < width; i += step) {
        float v = (a[i] - mean) * scale * w[i] + (b ? b[i] : 0);

        y[i] = v;
        if (half)
            half[p * width + i] = bf16 ? dev_to_bf16(v) : dev_to_f16(v);
    }
}

static void norm(struct mt_cuda *c, struct mt_rows out, struct mt_rows x, const struct mt_mat *w,
                 const struct mt_mat *b, float eps, int n)
{
    int width = w->d.cols, pieces = b ? 1 : x.width / width;
    int64_t all = (int64_t)n * pieces;
    const float *shift = b ? b->vec : NULL;
    uint16_t *half = pieces == 1 && out.width == width ? mt_cuda_cast_room(c, out, n) : NULL;
    bool bf16 = c->lane->casts_to == MT_BF16;

    if (all < 1)
        return;
    if (width > WARP_WIDTH)
        MT_LAUNCH(c, norm_rows<true>, (unsigned)all, 32 * WARPS, 0, out, x, w->vec, shift, width,
                  pieces, all, eps, half, bf16);
    else
        MT_LAUNCH(c, norm_rows<false>, mt_blocks(all, WARPS), 32 * WARPS, 0, out, x, w->vec, shift,
                  width, pieces, all, eps, half, bf16);
    if (half)
        mt_cuda_cast_note(c, out, n, c->lane->casts_to);
}

static void rms_norm(struct mt_backend *be, struct mt_rows out, struct mt_rows x,
                     const struct mt_mat *w, float eps, int n)
{
    norm(cuda_of(be), out, x, w, NULL, eps, n);
}

static void layer_norm(struct mt_backend *be, struct mt_rows out, struct mt_rows x,
                       const struct mt_mat *w, const struct mt_mat *b, float eps, int n)
{
    norm(cuda_of(be), out, x, w, b, eps, n);
}

/* ---- elements: a thread each, 256 columns of a row a block ---- */

struct place {
    int64_t row;
    int col;
};

MT_DEV struct place place_of(int width)
{
    unsigned pieces = ((unsigned)width + 255) / 256;

    return {(int64_t)(blockIdx.x / pieces), (int)(blockIdx.x % pieces * 256 + threadIdx.x)};
}

static unsigned grid_of(int width, int n)
{
    return (unsigned)n * mt_blocks(width, 256);
}

static __global__ void gated_rows(struct mt_rows out, struct mt_rows gate, struct mt_rows up,
                                  uint16_t *half, bool bf16)
{
    struct place p = place_of(gate.width);

    if (p.col >= gate.width)
        return;
    float g = gate.data[p.row * gate.stride + p.col];
    float v = g / (1 + expf(-g)) * up.data[p.row * up.stride + p.col];
    out.data[p.row * out.stride + p.col] = v;
    if (half)
        half[p.row * gate.width + p.col] = bf16 ? dev_to_bf16(v) : dev_to_f16(v);
}

void mt_cuda_gated(struct mt_backend *be, struct mt_rows out, struct mt_rows gate,
                   struct mt_rows up, int n)
{
    struct mt_cuda *c = cuda_of(be);
    uint16_t *half = out.width == gate.width ? mt_cuda_cast_room(c, out, n) : NULL;

    if (n < 1)
        return;
    MT_LAUNCH(c, gated_rows, grid_of(gate.width, n), 256, 0, out, gate, up, half,
              c->lane->casts_to == MT_BF16);
    if (half)
        mt_cuda_cast_note(c, out, n, c->lane->casts_to);
}

static __global__ void activate_rows(struct mt_rows out, struct mt_rows x, enum mt_act act)
{
    struct place p = place_of(x.width);

    if (p.col < x.width)
        out.data[p.row * out.stride + p.col] = dev_act(act, x.data[p.row * x.stride + p.col]);
}

static void activate(struct mt_backend *be, struct mt_rows out, struct mt_rows x, enum mt_act act,
                     int n)
{
    if (n > 0)
        MT_LAUNCH(cuda_of(be), activate_rows, grid_of(x.width, n), 256, 0, out, x, act);
}

static __global__ void scaled_add_rows(struct mt_rows out, struct mt_rows x, const float *w)
{
    struct place p = place_of(x.width);

    if (p.col < x.width)
        out.data[p.row * out.stride + p.col] += x.data[p.row * x.stride + p.col] * w[p.col];
}

static void scaled_add(struct mt_backend *be, struct mt_rows out, struct mt_rows x,
                       const struct mt_mat *w, int n)
{
    if (n > 0)
        MT_LAUNCH(cuda_of(be), scaled_add_rows, grid_of(x.width, n), 256, 0, out, x, w->vec);
}

void mt_cuda_norms(struct mt_ops *o)
{
    o->rms_norm = rms_norm;
    o->layer_norm = layer_norm;
    o->gated = mt_cuda_gated;
    o->activate = activate;
    o->scaled_add = scaled_add;
}
