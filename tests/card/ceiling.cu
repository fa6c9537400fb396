/*
 * ceiling.cu: what this card can do at all, measured by the libraries that know it best: device to
 * device copies, copies from the host, an empty kernel alone and in a graph, and large products in
 * bf16 and f32. NDJSON, each line written whole; the shares that gpu-measure reaches are of these figures.
 */
#include <cublas_v2.h>
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>

static void must(cudaError_t rc, const char *what)
{
    if (rc == cudaSuccess)
        return;
    fprintf(stderr, "gpu-ceiling: %s: %s\n", what, cudaGetErrorString(rc));
    exit(1);
}

static void must_blas(cublasStatus_t rc)
{
    if (rc == CUBLAS_STATUS_SUCCESS)
        return;
    fprintf(stderr, "gpu-ceiling: a product: %s\n", cublasGetStatusString(rc));
    exit(1);
}

static __global__ void nothing()
{
}

/* Random numbers: products of zeros draw less power and are faster. */
static __global__ void noise(unsigned short *p, size_t n)
{
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n;
         i += (size_t)gridDim.x * blockDim.x) {
        unsigned h = (unsigned)i * 2654435761u;

        p[i] = (unsigned short)((h >> 16 & 0x80ff) | 0x3e80); /* between 1/4 and 1, both signs */
    }
}

struct timer {
    cudaEvent_t from, to;
    cudaStream_t s;
};

/* Seconds a turn: the best of 5 times `turns`. */
template <class F> static double best(struct timer *t, int turns, F once)
{
    double least = 1e30;

    once();
    for (int k = 0; k < 5; k++) {
        float ms;

        must(cudaEventRecord(t->from, t->s), "an event");
        for (int i = 0; i < turns; i++)
            once();
        must(cudaEventRecord(t->to, t->s), "an event");
        must(cudaEventSynchronize(t->to), "waiting");
        must(cudaEventElapsedTime(&ms, t->from, t->to), "an event");
        if (ms / 1e3 / turns < least)
            least = ms / 1e3 / turns;
    }
    return least;
}

static void copies(struct timer *t)
{
    const size_t bytes = (size_t)2 << 30, up = (size_t)256 << 20;
    void *a, *b, *host;
    double device, host_s;

    must(cudaMalloc(&a, bytes), "memory");
    must(cudaMalloc(&b, bytes), "memory");
    must(cudaMallocHost(&host, up), "pinned memory");
    noise<<<1024, 256, 0, t->s>>>((unsigned short *)a, bytes / 2);
    device = best(t, 8, [&] {
        must(cudaMemcpyAsync(b, a, bytes, cudaMemcpyDeviceToDevice, t->s), "a copy");
    });
    host_s = best(
        t, 2, [&] { must(cudaMemcpyAsync(b, host, up, cudaMemcpyHostToDevice, t->s), "a copy"); });
    printf("{\"type\":\"ceiling\",\"what\":\"copy\",\"gb_s\":%.4g}\n",
           2e-9 * (double)bytes / device);
    printf("{\"type\":\"ceiling\",\"what\":\"host to device\",\"gb_s\":%.4g}\n",
           1e-9 * (double)up / host_s);
    must(cudaFree(a), "memory");
    must(cudaFree(b), "memory");
    must(cudaFreeHost(host), "pinned memory");
}

static void launches(struct timer *t)
{
    enum { MANY = 1000 };
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    double plain = best(t, MANY, [&] { nothing<<<1, 32, 0, t->s>>>(); }), replayed;

    must(cudaStreamBeginCapture(t->s, cudaStreamCaptureModeThreadLocal), "a graph");
    for (int i = 0; i < MANY; i++)
        nothing<<<1, 32, 0, t->s>>>();
    must(cudaStreamEndCapture(t->s, &graph), "a graph");
    must(cudaGraphInstantiate(&exec, graph, 0), "a graph");
    replayed = best(t, 1, [&] { must(cudaGraphLaunch(exec, t->s), "a graph"); });
    printf("{\"type\":\"ceiling\",\"what\":\"launch\",\"us\":%.4g,\"in_graph_us\":%.4g}\n",
           1e6 * plain, 1e6 * replayed / MANY);
    must(cudaGraphExecDestroy(exec), "a graph");
    must(cudaGraphDestroy(graph), "a graph");
}

static void product(struct timer *t)
{
    const int n = 8192;
    const size_t all = (size_t)n * n;
    const float one = 1, zero = 0;
    unsigned short *a, *b;
    float *c;
    cublasHandle_t h;

    must(cudaMalloc(&a, 2 * all), "memory");
    must(cudaMalloc(&b, 2 * all), "memory");
    must(cudaMalloc(&c, 4 * all), "memory");
    noise<<<1024, 256, 0, t->s>>>(a, all);
    noise<<<1024, 256, 0, t->s>>>(b, all);
    must_blas(cublasCreate(&h));
    must_blas(cublasSetStream(h, t->s));
    double s = best(t, 4, [&] {
        must_blas(cublasGemmEx(h, CUBLAS_OP_T, CUBLAS_OP_N, n, n, n, &one, a, CUDA_R_16BF, n, b,
                               CUDA_R_16BF, n, &zero, c, CUDA_R_32F, n, CUBLAS_COMPUTE_32F,
                               CUBLAS_GEMM_DEFAULT));
    });
    printf("{\"type\":\"ceiling\",\"what\":\"product\",\"tflop_s\":%.4g}\n",
           2e-12 * n * (double)all / s);
    /* Their bytes as f32 are random numbers too; half the size each way, to take no long time. */
    s = best(t, 1, [&] {
        must_blas(cublasGemmEx(h, CUBLAS_OP_T, CUBLAS_OP_N, n / 2, n / 2, n / 2, &one, a,
                               CUDA_R_32F, n / 2, b, CUDA_R_32F, n / 2, &zero, c, CUDA_R_32F, n / 2,
                               CUBLAS_COMPUTE_32F_PEDANTIC, CUBLAS_GEMM_DEFAULT));
    });
    printf("{\"type\":\"ceiling\",\"what\":\"product in f32\",\"tflop_s\":%.4g}\n",
           2e-12 / 8 * n * (double)all / s);
    cublasDestroy(h);
    must(cudaFree(a), "memory");
    must(cudaFree(b), "memory");
    must(cudaFree(c), "memory");
}

int main()
{
    struct timer t;
    cudaDeviceProp p;
    int driver = 0, runtime = 0;

    setvbuf(stdout, NULL, _IOLBF, 4096);
    must(cudaGetDeviceProperties(&p, 0), "the device");
    must(cudaDriverGetVersion(&driver), "the driver");
    must(cudaRuntimeGetVersion(&runtime), "the runtime");
    printf("{\"type\":\"card\",\"name\":\"%s\",\"sm\":\"%d.%d\",\"processors\":%d,\"memory_bytes\":"
           "%zu,\"l2_bytes\":%d,\"driver\":%d,\"runtime\":%d}\n",
           p.name, p.major, p.minor, p.multiProcessorCount, p.totalGlobalMem, p.l2CacheSize, driver,
           runtime);
    must(cudaStreamCreate(&t.s), "a stream");
    must(cudaEventCreate(&t.from), "an event");
    must(cudaEventCreate(&t.to), "an event");
    copies(&t);
    launches(&t);
    product(&t);
    return fflush(stdout) == 0 ? 0 : 1;
}
