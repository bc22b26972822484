/* An ordinary program of the CUDA runtime interface: each part of it once, then one line of JSON. */
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>
#include "counters.h"

#define OK(call)                                                                                       \
    do {                                                                                               \
        cudaError_t r_ = (call);                                                                       \
        if (r_ != cudaSuccess) {                                                                       \
            fprintf(stderr, "line %d: %s: %s\n", __LINE__, #call, cudaGetErrorName(r_));               \
            exit(1);                                                                                   \
        }                                                                                              \
    } while (0)
enum { BYTES = 1 << 20, LAUNCHES = 10, GRAPHS = 3 };

__device__ int cell[256];
__global__ void step(int *at) { at[threadIdx.x] += cell[threadIdx.x]; }

static int copies(void)
{
    static char there[BYTES], back[BYTES];
    char *pinned, *a, *b;
    memset(there, 7, sizeof there);
    OK(cudaHostAlloc(&pinned, BYTES, cudaHostAllocDefault));
    OK(cudaMalloc(&a, BYTES));
    OK(cudaMalloc(&b, BYTES));
    OK(cudaMemcpy(a, there, BYTES, cudaMemcpyHostToDevice));
    OK(cudaMemcpy(b, a, BYTES, cudaMemcpyDeviceToDevice));
    OK(cudaMemcpyAsync(pinned, b, BYTES, cudaMemcpyDeviceToHost, 0));
    OK(cudaStreamSynchronize(0));
    OK(cudaMemset(b, 9, BYTES));
    OK(cudaMemcpy(back, b, BYTES, cudaMemcpyDeviceToHost));
    int same = !memcmp(pinned, there, BYTES) && back[0] == 9 && back[BYTES - 1] == 9;
    OK(cudaFree(a));
    OK(cudaFree(b));
    OK(cudaFreeHost(pinned));
    return same;
}

static void symbols(void)
{
    int here[256] = {1}, back[256];
    OK(cudaMemcpyToSymbol(cell, here, sizeof here));
    OK(cudaMemcpyFromSymbol(back, cell, sizeof back));
    if (memcmp(here, back, sizeof here))
        exit(2);
}

static void pools_and_managed(cudaStream_t stream)
{
    void *p, *m;
    OK(cudaMallocAsync(&p, BYTES, stream));
    OK(cudaMemsetAsync(p, 1, BYTES, stream));
    OK(cudaFreeAsync(p, stream));
    OK(cudaMallocManaged(&m, BYTES));
    *(int *)m = 5;
    OK(cudaStreamSynchronize(stream));
    OK(cudaFree(m));
}

static void kernels_and_graph(cudaStream_t stream, int *at)
{
    cudaEvent_t first, last;
    cudaGraph_t graph;
    cudaGraphExec_t run;
    float ms;
    OK(cudaEventCreate(&first));
    OK(cudaEventCreate(&last));
    OK(cudaEventRecord(first, stream));
    for (int i = 0; i < LAUNCHES; i++)
        step<<<1, 32, 0, stream>>>(at);
    OK(cudaGetLastError());
    OK(cudaEventRecord(last, stream));
    OK(cudaEventSynchronize(last));
    OK(cudaEventElapsedTime(&ms, first, last));
    OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    step<<<1, 32, 0, stream>>>(at);
    step<<<1, 32, 0, stream>>>(at);
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphInstantiate(&run, graph, 0));
    for (int i = 0; i < GRAPHS; i++)
        OK(cudaGraphLaunch(run, stream));
    OK(cudaStreamSynchronize(stream));
    OK(cudaGraphExecDestroy(run));
    OK(cudaGraphDestroy(graph));
}

/* Blocks of 256 MiB until there is no more; the error is cleared by asking for it. */
static int fill(cudaError_t *refused)
{
    static void *blocks[512];
    int count = 0;
    while (count < 512 && (*refused = cudaMalloc(&blocks[count], (size_t)256 << 20)) == cudaSuccess)
        count++;
    cudaGetLastError();
    for (int i = 0; i < count; i++)
        OK(cudaFree(blocks[i]));
    return count;
}

int main(void)
{
    cudaDeviceProp properties;
    cudaStream_t stream;
    cudaError_t refused;
    size_t unused, total;
    long emulator, gate;
    int devices, occupancy, *at;
    OK(cudaGetDeviceCount(&devices));
    OK(cudaGetDeviceProperties(&properties, 0));
    OK(cudaMalloc(&at, BYTES));
    OK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    OK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&occupancy, step, 128, 0));
    int same = copies();
    symbols();
    pools_and_managed(stream);
    kernels_and_graph(stream, at);
    int blocks = fill(&refused);
    step<<<1, 32>>>(at);
    OK(cudaDeviceSynchronize());
    OK(cudaMemGetInfo(&unused, &total));
    count_launches(&emulator, &gate);
    char counted[32] = "null";
    if (gate >= 0)
        snprintf(counted, sizeof counted, "%ld", gate);
    OK(cudaStreamDestroy(stream));
    OK(cudaDeviceReset());
    printf("{\"devices\": %d, \"name\": \"%s\", \"property_mib\": %zu, \"total_mib\": %zu, \"same\": %d, \"blocks\": %d, "
           "\"refused\": \"%s\", \"emulator\": %ld, \"gate\": %s}\n",
           devices, properties.name, properties.totalGlobalMem >> 20, total >> 20, same, blocks,
           cudaGetErrorName(refused), emulator, counted);
    return 0;
}
