/* program.c: see program.h. */
#include "program.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

void fail(const char *what, int code)
{
    fprintf(stderr, "%s: %s failed (%d)\n", program_name, what, code);
    exit(1);
}

void *need(void *library, const char *name)
{
    void *symbol = dlsym(library, name);
    if (!symbol)
        fail(name, 0);
    return symbol;
}

static char *read_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        fail(path, 0);
    fseek(file, 0, SEEK_END);
    long size = ftell(file);
    rewind(file);
    char *text = calloc(1, (size_t)size + 1);
    if (!text || fread(text, 1, (size_t)size, file) != (size_t)size)
        fail(path, 1);
    fclose(file);
    return text;
}

void *open_cuda(const char *ptx_path, void **module)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *context;
    int device;
    if (!library)
        fail(dlerror(), 0);
    CALL(library, (unsigned), cuInit, 0);
    CALL(library, (int *, int), cuDeviceGet, &device, 0);
    CALL(library, (void **, int), cuDevicePrimaryCtxRetain, &context, device);
    CALL(library, (void *), cuCtxSetCurrent, context);
    char *ptx = read_file(ptx_path);
    CALL(library, (void **, const void *), cuModuleLoadData, module, ptx);
    free(ptx);
    return library;
}

uint64_t monotonic_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}
