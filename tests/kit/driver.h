/* driver.h: what C programs of tests begin with. The driver, or the hook, by the names of its functions: `F(name)`, or
 * with the types of its parameters behind the name; `OK` ends the program with a line where a call fails. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef uint64_t u64;
struct location { int type, id; };
struct prop { int type, handles; struct location where; void *win; unsigned char flags[8]; };
struct pool_props { int type, handles; struct location where; void *security; size_t max; char rest[56]; };
struct alloc_node { struct pool_props pool; const void *access; size_t count, bytes; u64 ptr; };
struct array2 { size_t width, height; int format; unsigned channels; };
struct array3 { size_t width, height, depth; int format; unsigned channels, flags; };

static void *lib, *context, *function;
static const char PTX[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry spin_ns(.param .u64 ns) { ret; }\n.visible .entry second(.param .u64 ns) { ret; }\n";

#define F(name, ...) ((int (*)(__VA_ARGS__))need(#name))
#define OK(call) ok((call), #call, __LINE__)

static void *need(const char *name)
{
    void *found = dlsym(lib, name);
    if (!found) {
        fprintf(stderr, "no %s\n", name);
        exit(90);
    }
    return found;
}

static void ok(int result, const char *what, int line)
{
    if (result) {
        fprintf(stderr, "line %d: %s -> %d\n", line, what, result);
        exit(91);
    }
}

static u64 now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (u64)time.tv_sec * 1000000000u + (u64)time.tv_nsec;
}

/* Waits for the test to say go on. */
static void wait_line(void)
{
    fflush(stdout);
    for (int read = getchar(); read != '\n' && read != EOF;)
        read = getchar();
}

static u64 counted(int field)
{
    u64 stats[64] = {sizeof stats};
    OK(F(aliquot_stats, u64 *)(stats));
    return stats[field];
}

typedef int launch_fn(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                      void **);

static int launch_of(void *kernel, u64 ns, void *stream)
{
    static launch_fn *launcher;
    void *parameters[] = {&ns};
    if (!launcher)
        launcher = (launch_fn *)need("cuLaunchKernel");
    return launcher(kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
}

static int launch(u64 ns, void *stream) { return launch_of(function, ns, stream); }

static void *kernel_here(void)
{
    void *module, *kernel;
    OK(F(cuModuleLoadData, void **, const void *)(&module, PTX));
    OK(F(cuModuleGetFunction, void **, void *, const char *)(&kernel, module, "spin_ns"));
    return kernel;
}

static void *stream_new(unsigned flags)
{
    void *stream;
    OK(F(cuStreamCreate, void **, unsigned)(&stream, flags));
    return stream;
}

/* Makes the device's primary context current. */
static void use_device(int device)
{
    OK(F(cuDevicePrimaryCtxRetain, void **, int)(&context, device));
    OK(F(cuCtxSetCurrent, void *)(context));
}

static void open_driver(void)
{
    lib = dlopen("libcuda.so.1", RTLD_NOW);
    if (!lib) {
        fprintf(stderr, "%s\n", dlerror());
        exit(92);
    }
    OK(F(cuInit, unsigned)(0));
}
