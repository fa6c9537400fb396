/*
 * blas.cu: dense products by cuBLASLt, which has many algorithms for one. It is asked once a shape
 * and bucket of rows, and its first answer is kept: no question in a step that has been before, and
 * the same algorithms in every run on a card of the same kind. Its workspace is ours, so that
 * nothing is allocated when a product is queued.
 *
 * Deterministic: the answer is one a shape, whatever the rows, and none whose sums are cut along k
 * (what is cut is put together by how many rows share the card).
 */
#include "kernels/cuda/cuda.h"

enum {
    ANSWERS = 16,   /* that are looked at */
    REFERENCE = 64, /* rows that a deterministic algorithm is chosen for */
    PLANS = 1024,
    PROBES = 8
};

/* All that an algorithm is chosen by. 0 in its gaps. */
struct key {
    int type, rows, cols, n; /* W's, and the bucket of x's rows */
    int ldx, ld_out, ld_residual;
    int align; /* bytes that x, out and residual begin on, 16 at most */
    bool bias, residual;
};

struct mt_plan {
    struct key key;
    bool known, works;
    cublasLtMatmulAlgo_t algo;
};

/* cuBLAS counts columns first: out^T [rows, n] = W (transposed) x^T. */
struct call {
    cublasLtMatmulDescOpaque_t op;
    cublasLtMatrixLayoutOpaque_t w, x, out, residual;
    float one, keep;
};

static bool set(cublasLtMatmulDesc_t op, cublasLtMatmulDescAttributes_t what, const void *value,
                size_t bytes)
{
    return cublasLtMatmulDescSetAttribute(op, what, value, bytes) == CUBLAS_STATUS_SUCCESS;
}

static bool lay(cublasLtMatrixLayout_t l, cudaDataType_t type, int rows, int cols, int ld)
{
    return cublasLtMatrixLayoutInit(l, type, (uint64_t)rows, (uint64_t)cols, ld) ==
           CUBLAS_STATUS_SUCCESS;
}

static bool call_of(struct call *c, const struct key &k, int n, const float *bias)
{
    cudaDataType_t type = k.type == MT_F32    ? CUDA_R_32F
                          : k.type == MT_BF16 ? CUDA_R_16BF
                                              : CUDA_R_16F;
    cublasComputeType_t how = k.type == MT_F32 ? CUBLAS_COMPUTE_32F_PEDANTIC : CUBLAS_COMPUTE_32F;
    int32_t turned = CUBLAS_OP_T;
    uint32_t end = CUBLASLT_EPILOGUE_BIAS;

    c->one = 1;
    c->keep = k.residual ? 1.0f : 0.0f;
    return cublasLtMatmulDescInit(&c->op, how, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS &&
           set(&c->op, CUBLASLT_MATMUL_DESC_TRANSA, &turned, sizeof(turned)) &&
           (!k.bias ||
            (set(&c->op, CUBLASLT_MATMUL_DESC_EPILOGUE, &end, sizeof(end)) &&
             set(&c->op, CUBLASLT_MATMUL_DESC_BIAS_POINTER, (const void *)&bias, sizeof(bias)))) &&
           lay(&c->w, type, k.cols, k.rows, k.cols) && lay(&c->x, type, k.cols, n, k.ldx) &&
           lay(&c->out, CUDA_R_32F, k.rows, n, k.ld_out) &&
           lay(&c->residual, CUDA_R_32F, k.rows, n, k.residual ? k.ld_residual : k.ld_out);
}

/* Does it take all rows that it is for? */
static bool serves(struct mt_cuda *c, const struct key &k, const cublasLtMatmulAlgo_t *algo,
                   const float *bias)
{
    static const int any[] = {1, 2, 3, 8, 63, 512, 4096};
    const int bucket[] = {k.n, k.n > 3 ? k.n * 2 / 3 + 1 : k.n};
    cublasLtMatmulHeuristicResult_t r;
    const int *n = c->deterministic ? any : bucket;
    struct call l;

    for (size_t i = c->deterministic ? MT_COUNT(any) : MT_COUNT(bucket); i--;)
        if (!call_of(&l, k, n[i], bias) ||
            cublasLtMatmulAlgoCheck(c->blas, &l.op, &l.w, &l.x, &l.residual, &l.out, algo, &r) !=
                CUBLAS_STATUS_SUCCESS ||
            r.workspaceSize > MT_CUDA_WORKSPACE)
            return false;
    return true;
}

static void choose(struct mt_cuda *c, struct mt_plan *p, const float *bias)
{
    static const cublasLtMatmulPreferenceAttributes_t aligned[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    cublasLtMatmulHeuristicResult_t r[ANSWERS];
    cublasLtMatmulPreferenceOpaque_t pref;
    uint32_t whole = CUBLASLT_REDUCTION_SCHEME_NONE, align = (uint32_t)p->key.align;
    size_t room = MT_CUDA_WORKSPACE;
    struct call l;
    int n = 0;
    bool ok = call_of(&l, p->key, p->key.n, bias) &&
              cublasLtMatmulPreferenceInit(&pref) == CUBLAS_STATUS_SUCCESS &&
              cublasLtMatmulPreferenceSetAttribute(&pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                   &room, sizeof(room)) == CUBLAS_STATUS_SUCCESS;

    if (ok && c->deterministic)
        ok = cublasLtMatmulPreferenceSetAttribute(&pref, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                                  &whole, sizeof(whole)) == CUBLAS_STATUS_SUCCESS;
    for (cublasLtMatmulPreferenceAttributes_t a : aligned)
        ok = ok && cublasLtMatmulPreferenceSetAttribute(&pref, a, &align, sizeof(align)) ==
                       CUBLAS_STATUS_SUCCESS;
    ok = ok && cublasLtMatmulAlgoGetHeuristic(c->blas, &l.op, &l.w, &l.x, &l.residual, &l.out,
                                              &pref, ANSWERS, r, &n) == CUBLAS_STATUS_SUCCESS;
    p->known = true;
    p->works = false;
    for (int i = 0; ok && i < n && !p->works; i++)
        if (r[i].state == CUBLAS_STATUS_SUCCESS && r[i].workspaceSize <= MT_CUDA_WORKSPACE &&
            serves(c, p->key, &r[i].algo, bias)) {
            p->works = true;
            p->algo = r[i].algo;
        }
}

/* A place that is free or has this key; of PROBES other keys' the first is forgotten. */
static const struct mt_plan *plan_of(struct mt_cuda *c, const struct key &k, const float *bias)
{
    uint64_t h = mt_hash(MT_HASH_INIT, &k, sizeof(k));
    struct mt_plan *p = NULL, *first = &c->plans[h % PLANS];

    for (unsigned i = 0; i < PROBES; i++) {
        p = &c->plans[(h + i) % PLANS];
        if (!p->known)
            break;
        if (!memcmp(&p->key, &k, sizeof(k)))
            return p;
        p = first;
    }
    p->key = k;
    choose(c, p, bias);
    return p;
}

static int alignment(const struct mt_dense &d)
{
    uintptr_t all = 16 | (uintptr_t)d.x | (uintptr_t)d.out | (uintptr_t)d.residual;

    return (int)(all & -all);
}

struct product {
    struct mt_note note;
    struct key key;
    struct mt_dense d;
    cublasLtMatmulAlgo_t algo;
};

static void product_queue(struct mt_cuda *c, const struct mt_note *n)
{
    const struct product *p = (const struct product *)n;
    const struct mt_dense *d = &p->d;
    struct call l;

    if (!call_of(&l, p->key, d->n, d->bias) ||
        cublasLtMatmul(c->blas, &l.op, &l.one, d->w, &l.w, d->x, &l.x, &l.keep,
                       d->residual ? d->residual : d->out, &l.residual, d->out, &l.out, &p->algo,
                       c->lane->workspace, MT_CUDA_WORKSPACE,
                       c->lane->stream) != CUBLAS_STATUS_SUCCESS)
        mt_cuda_check(c, cudaErrorInvalidValue, "a product by cuBLASLt");
    else if (c->visible)
        mt_cuda_check(c, cudaStreamSynchronize(c->lane->stream), "a product by cuBLASLt");
}

bool mt_cuda_dense(struct mt_cuda *c, const struct mt_dense &d)
{
    struct key k;
    struct product note;
    const struct mt_plan *p;

    if (c->failed)
        return true;
    memset(&k, 0, sizeof(k));
    k.type = d.type;
    k.rows = d.rows;
    k.cols = d.cols;
    k.n = c->deterministic ? REFERENCE : (int)mt_bucket(d.n);
    k.ldx = d.ldx;
    k.ld_out = d.ld_out;
    k.ld_residual = d.residual ? d.ld_residual : 0;
    k.align = alignment(d);
    k.bias = d.bias != NULL;
    k.residual = d.residual != NULL;
    p = plan_of(c, k, d.bias);
    if (!p->works)
        return false;
    note.key = k;
    note.d = d;
    note.algo = p->algo;
    mt_note_end(&note, product_queue);
    mt_tape_note(c, &note.note);
    return true;
}

int mt_cuda_blas_open(struct mt_cuda *c)
{
    if (!(c->plans = (struct mt_plan *)calloc(PLANS, sizeof(*c->plans))))
        return -ENOMEM;
    return cublasLtCreate(&c->blas) == CUBLAS_STATUS_SUCCESS ? 0 : -ENODEV;
}

void mt_cuda_blas_close(struct mt_cuda *c)
{
    if (c->blas)
        cublasLtDestroy(c->blas);
    free(c->plans);
}
