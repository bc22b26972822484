/* back_to_back.c: launches kernels of one length back to back, after a line on stdin. Prints the share of the GPU's time
 * that they got.   back_to_back NANOSECONDS SECONDS */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

int main(int argc, char **argv)
{
    uint64_t ns = argc > 2 ? strtoull(argv[1], NULL, 10) : 0;
    double seconds = argc > 2 ? atof(argv[2]) : 0;
    int dev;
    void *lib = dlopen("libcuda.so.1", RTLD_NOW), *ctx, *module, *f, *stream, *params[] = {&ns};
#define CALL(name) ((int (*)())dlsym(lib, #name))
    if (!lib || CALL(cuInit)(0) || CALL(cuDeviceGet)(&dev, 0) || CALL(cuDevicePrimaryCtxRetain)(&ctx, dev) ||
        CALL(cuCtxSetCurrent)(ctx) || CALL(cuModuleLoadData)(&module, ".visible .entry spin_ns(.param .u64 ns){ret;}") ||
        CALL(cuModuleGetFunction)(&f, module, "spin_ns") || CALL(cuStreamCreate)(&stream, 1))
        return 1;
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **) =
        (void *)dlsym(lib, "cuLaunchKernel");
    puts("ready");
    fflush(stdout);
    getchar();
    double begin = now();
    uint64_t count = 0;
    for (; now() - begin < seconds; count += 100)
        for (int i = 0; i < 100; i++)
            if (launch(f, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL))
                return 2;
    CALL(cuStreamSynchronize)(stream);
    printf("%.4f\n", (double)(count * ns) / 1e9 / (now() - begin));
    return 0;
}
