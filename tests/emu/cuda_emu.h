/*
 * cuda_emu.h: enough of CUDA for the host compiler, so that the device code of kernels/cuda runs in
 * the tests of a machine without a GPU: grid, blocks, shared memory, barriers, warp shuffles and
 * votes (each thread of a block is a fibre, one block runs at a time), the part of the runtime that
 * the backend calls, over plain memory, and a cuBLAS of loops.
 *
 * Stricter than a device: a barrier that not all threads of the block (the warp) reach, and a
 * shuffle in a warp that some threads have left, end the program; so does a thread of the host that
 * uses the card without having said which it means. Warps and lanes run forward in
 * one launch and backward in the next, so that a missing barrier shows; shared memory begins as
 * NaN.
 */
#ifndef CUDA_EMU_H
#define CUDA_EMU_H

#include "count.h"

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __shared__ static /* one block at a time */

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c)
    {
    }
};
struct emu_index {
    unsigned x, y, z;
};
extern emu_index threadIdx, blockIdx;
extern dim3 blockDim, gridDim;

struct uint4 {
    unsigned x, y, z, w;
} __attribute__((aligned(16)));
struct uint2 {
    unsigned x, y;
} __attribute__((aligned(8)));
struct float2 {
    float x, y;
} __attribute__((aligned(8)));
struct float4 {
    float x, y, z, w;
} __attribute__((aligned(16)));

/* ---- running ---- */

typedef struct emu_stream *cudaStream_t;

enum cudaError_t {
    cudaSuccess,
    cudaErrorInvalidValue,
    cudaErrorMemoryAllocation,
    cudaErrorInsufficientDriver = 35,
    cudaErrorNoDevice = 100,
    cudaErrorStreamCaptureUnsupported = 900
};

/* fn with what lies at arg, on the stream, or in the graph that is being captured from it. */
void emu_kernel(cudaStream_t s, dim3 grid, dim3 block, size_t shared, void (*fn)(void *), void *arg,
                size_t bytes);
void *emu_shared(void);
void __syncthreads(void);
void __syncwarp(unsigned mask = 0xffffffff);
/* All lanes' values of this exchange; valid until the lane's next one. */
const uint64_t *emu_exchange(uint64_t mine);
unsigned emu_lane(void);

template <class F> static inline void emu_call(void *f)
{
    (*(F *)f)();
}

/* Has the kernel asked for so much shared memory? 48 KiB are anybody's. */
bool emu_room(const void *kernel, size_t shared);

template <class F>
static inline cudaError_t emu_launch(cudaStream_t s, const void *kernel, dim3 grid, dim3 block,
                                     size_t shared, F f)
{
    if (!emu_room(kernel, shared))
        return cudaErrorInvalidValue;
    emu_kernel(s, grid, block, shared, emu_call<F>, &f, sizeof(f));
    return cudaSuccess;
}

template <class T> static inline T emu_from(const uint64_t *all, unsigned lane)
{
    T v;

    memcpy(&v, &all[lane & 31], sizeof(v));
    return v;
}

template <class T> static inline const uint64_t *emu_give(T v)
{
    uint64_t word = 0;

    static_assert(sizeof(v) <= sizeof(word), "a shuffle moves 8 bytes at most");
    memcpy(&word, &v, sizeof(v));
    return emu_exchange(word);
}

template <class T> static inline T __shfl_xor_sync(unsigned, T v, int mask)
{
    return emu_from<T>(emu_give(v), emu_lane() ^ (unsigned)mask);
}

template <class T> static inline T __shfl_sync(unsigned, T v, int lane)
{
    return emu_from<T>(emu_give(v), (unsigned)lane);
}

template <class T> static inline T __shfl_up_sync(unsigned, T v, unsigned by)
{
    const uint64_t *all = emu_give(v);

    return emu_lane() < by ? v : emu_from<T>(all, emu_lane() - by);
}

static inline unsigned __ballot_sync(unsigned, int v)
{
    const uint64_t *all = emu_give(v);
    unsigned set = 0;

    for (unsigned i = 0; i < 32; i++)
        set |= (unsigned)(emu_from<int>(all, i) != 0) << i;
    return set;
}

/* ---- tensor cores and copies: kernels/cuda/tensor.h says what they are ---- */

/* What is copied reads as NaN until the lane has waited for its group. */
void emu_copy(void *dst, const void *src, unsigned bytes, bool there);
void emu_copy_group(void);
void emu_copy_wait(unsigned left);
void emu_matrices(unsigned *r, const void *row, bool turned);
void emu_product(float *c, const unsigned *a, unsigned b0, unsigned b1, bool bf16);

/* ---- the rest of what device code calls ---- */

template <class T> static inline T atomicAdd(T *p, T v)
{
    T was = *p;

    *p += v;
    return was;
}

/* Byte i is the byte that nibble i of how counts in a, then b. */
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned how)
{
    uint64_t both = (uint64_t)b << 32 | a;
    unsigned v = 0;

    for (unsigned i = 0; i < 4; i++)
        v |= (unsigned)(both >> 8 * (how >> 4 * i & 7) & 0xff) << 8 * i;
    return v;
}

static inline int __popc(unsigned v)
{
    return __builtin_popcount(v);
}

static inline int __clz(int v)
{
    return v ? __builtin_clz((unsigned)v) : 32;
}

static inline int __ffs(int v)
{
    return __builtin_ffs(v);
}

static inline float __uint_as_float(unsigned u)
{
    float f;

    memcpy(&f, &u, sizeof(f));
    return f;
}

static inline unsigned __float_as_uint(float f)
{
    unsigned u;

    memcpy(&u, &f, sizeof(u));
    return u;
}

/* This is compiled without contraction. */
static inline float __fmul_rn(float a, float b)
{
    return a * b;
}

static inline float __fadd_rn(float a, float b)
{
    return a + b;
}

static inline float __fdiv_rn(float a, float b)
{
    return a / b;
}

/* ---- the runtime ---- */

enum cudaMemcpyKind {
    cudaMemcpyHostToDevice = 1,
    cudaMemcpyDeviceToHost,
    cudaMemcpyDeviceToDevice
};
enum { cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2 };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
enum cudaDeviceAttr { cudaDevAttrMultiProcessorCount = 16, cudaDevAttrComputeCapabilityMajor = 75 };
typedef struct emu_event *cudaEvent_t;

cudaError_t cudaMalloc(void **p, size_t bytes);
cudaError_t cudaFree(void *p);
cudaError_t cudaMemGetInfo(size_t *left, size_t *all);
cudaError_t cudaMallocHost(void **p, size_t bytes);
cudaError_t cudaFreeHost(void *p);
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t n, cudaMemcpyKind k, cudaStream_t s);
cudaError_t cudaMemcpy2DAsync(void *dst, size_t to, const void *src, size_t from, size_t width,
                              size_t rows, cudaMemcpyKind k, cudaStream_t s);
cudaError_t cudaMemsetAsync(void *p, int v, size_t n, cudaStream_t s);

static inline cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}

static inline const char *cudaGetErrorString(cudaError_t rc)
{
    return rc == cudaErrorMemoryAllocation           ? "out of memory"
           : rc == cudaErrorStreamCaptureUnsupported ? "not while a graph is captured"
                                                     : "no error";
}

static inline cudaError_t cudaGetDeviceCount(int *n)
{
    *n = 1;
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device);

/* Few processors, so that small tests split their work and do not. */
static inline cudaError_t cudaDeviceGetAttribute(int *v, cudaDeviceAttr what, int)
{
    *v = what == cudaDevAttrMultiProcessorCount ? 4 : emu_faults.old_card ? 7 : 9;
    return cudaSuccess;
}

static inline cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *most)
{
    *least = 0;
    *most = -5;
    return cudaSuccess;
}

/* When what is on a stream is done: enum emu_order. */
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned, int);
cudaError_t cudaStreamDestroy(cudaStream_t);
cudaError_t cudaStreamSynchronize(cudaStream_t);
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned);
cudaError_t cudaEventDestroy(cudaEvent_t);
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t);
cudaError_t cudaEventSynchronize(cudaEvent_t);

/* What is captured is kept with its arguments, as they are, and queued at each launch. */
enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal = 1 };
typedef struct emu_graph *cudaGraph_t;
typedef struct emu_graph *cudaGraphExec_t;

cudaError_t cudaStreamBeginCapture(cudaStream_t, cudaStreamCaptureMode);
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t *g);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *x, cudaGraph_t g, unsigned long long);
cudaError_t cudaGraphLaunch(cudaGraphExec_t x, cudaStream_t);
cudaError_t cudaGraphDestroy(cudaGraph_t g);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t x);

cudaError_t emu_room_set(const void *kernel, int bytes);
template <class F>
static inline cudaError_t cudaFuncSetAttribute(F *kernel, cudaFuncAttribute, int bytes)
{
    return emu_room_set((const void *)kernel, bytes);
}

/* ---- cuBLASLt, as the backend calls it: a transposed, b not, c and d in f32 ---- */

enum cublasStatus_t { CUBLAS_STATUS_SUCCESS, CUBLAS_STATUS_NOT_SUPPORTED = 15 };
enum cublasOperation_t { CUBLAS_OP_N, CUBLAS_OP_T };
enum cudaDataType_t { CUDA_R_32F, CUDA_R_16F = 2, CUDA_R_16BF = 14 };
enum cublasComputeType_t { CUBLAS_COMPUTE_32F = 68, CUBLAS_COMPUTE_32F_PEDANTIC };
enum cublasLtMatmulDescAttributes_t {
    CUBLASLT_MATMUL_DESC_TRANSA = 3,
    CUBLASLT_MATMUL_DESC_EPILOGUE = 7,
    CUBLASLT_MATMUL_DESC_BIAS_POINTER
};
enum { CUBLASLT_EPILOGUE_DEFAULT = 1, CUBLASLT_EPILOGUE_BIAS = 4 };
enum { CUBLASLT_REDUCTION_SCHEME_NONE, CUBLASLT_REDUCTION_SCHEME_MASK = 7 };
enum cublasLtMatmulPreferenceAttributes_t {
    CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1,
    CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK = 3,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES = 5,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES
};
struct cublasLtMatmulDescOpaque_t {
    cublasComputeType_t how;
    int32_t turned;
    uint32_t end;
    const float *bias;
};
struct cublasLtMatrixLayoutOpaque_t {
    cudaDataType_t type;
    uint64_t rows, cols;
    int64_t ld;
};
struct cublasLtMatmulPreferenceOpaque_t {
    size_t workspace;
    uint32_t schemes, align[4];
};
struct cublasLtMatmulAlgo_t {
    uint64_t parts; /* that a sum is cut into */
};
struct cublasLtMatmulHeuristicResult_t {
    cublasLtMatmulAlgo_t algo;
    size_t workspaceSize;
    cublasStatus_t state;
};
typedef cublasLtMatmulDescOpaque_t *cublasLtMatmulDesc_t;
typedef cublasLtMatrixLayoutOpaque_t *cublasLtMatrixLayout_t;
typedef cublasLtMatmulPreferenceOpaque_t *cublasLtMatmulPreference_t;
typedef struct emu_blas *cublasLtHandle_t;

static inline cublasStatus_t cublasLtCreate(cublasLtHandle_t *h)
{
    *h = NULL;
    return CUBLAS_STATUS_SUCCESS;
}

static inline cublasStatus_t cublasLtDestroy(cublasLtHandle_t)
{
    return CUBLAS_STATUS_SUCCESS;
}

static inline cublasStatus_t cublasLtMatmulDescInit(cublasLtMatmulDesc_t d, cublasComputeType_t how,
                                                    cudaDataType_t)
{
    *d = {how, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, NULL};
    return CUBLAS_STATUS_SUCCESS;
}

static inline cublasStatus_t cublasLtMatrixLayoutInit(cublasLtMatrixLayout_t l, cudaDataType_t type,
                                                      uint64_t rows, uint64_t cols, int64_t ld)
{
    *l = {type, rows, cols, ld};
    return CUBLAS_STATUS_SUCCESS;
}

static inline cublasStatus_t cublasLtMatmulPreferenceInit(cublasLtMatmulPreference_t p)
{
    *p = {0, CUBLASLT_REDUCTION_SCHEME_MASK, {256, 256, 256, 256}};
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d,
                                              cublasLtMatmulDescAttributes_t what,
                                              const void *value, size_t bytes);
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t what,
                                                    const void *value, size_t bytes);
/* Few columns of b: the sums are cut into parts, if the preference lets them. */
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t op,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t p, int most,
                                              cublasLtMatmulHeuristicResult_t *r, int *n);
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t op,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algo,
                                       cublasLtMatmulHeuristicResult_t *r);
cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t op, const void *alpha,
                              const void *a, cublasLtMatrixLayout_t la, const void *b,
                              cublasLtMatrixLayout_t lb, const void *beta, const void *c,
                              cublasLtMatrixLayout_t lc, void *d, cublasLtMatrixLayout_t ld,
                              const cublasLtMatmulAlgo_t *algo, void *workspace, size_t bytes,
                              cudaStream_t s);

#endif
