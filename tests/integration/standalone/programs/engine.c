/* Sizes its context as llama.cpp does, by what cudaMemGetInfo, which is cuMemGetInfo, says at its start, less a margin
 * (--fit). Takes it beside its weights, and writes the bytes into the file of the first argument. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

int main(int argc, char **argv)
{
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *context = NULL;
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(cuda, "cuInit");
    int (*retain)(void **, int) = (int (*)(void **, int))dlsym(cuda, "cuDevicePrimaryCtxRetain");
    int (*set)(void *) = (int (*)(void *))dlsym(cuda, "cuCtxSetCurrent");
    int (*memory)(size_t *, size_t *) = (int (*)(size_t *, size_t *))dlsym(cuda, "cuMemGetInfo_v2");
    int (*allocate)(unsigned long long *, size_t) = (int (*)(unsigned long long *, size_t))dlsym(cuda, "cuMemAlloc_v2");
    unsigned long long weights, cache;
    size_t left = 0, total = 0, rest = 0;
    if (argc < 2 || init(0) || retain(&context, 0) || set(context) || memory(&left, &total) ||
        allocate(&weights, 2048 * MIB) || allocate(&cache, left - 3072 * MIB) || memory(&rest, &total))
        return 1;
    FILE *out = fopen(argv[1], "w");
    if (!out)
        return 1;
    fprintf(out, "[%zu, [%zu, %zu], [%zu, %zu]]", left - 3072 * MIB, left, total, rest, total);
    fclose(out);
    sleep(600);
    return 0;
}
