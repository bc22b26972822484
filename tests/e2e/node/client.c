/* client.c: a CUDA program as small as can be, for images that hold little else.
 *
 * Looks for libcuda.so.1 by name as any program does, tells as one line of JSON what it sees, computes, and goes on
 * computing where an argument is given. A call that fails is told by its name and ends the program.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <gnu/libc-version.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char PTX[] = ".version 6.0\n.target sm_60\n.address_size 64\n"
                          ".visible .entry spin_ns(.param .u64 ns)\n{\n    ret;\n}\n";
static void *cuda;

static int ask(const char *name, void *a, void *b, void *c)
{
    int (*function)(void *, void *, void *) = dlsym(cuda, name);
    return function ? function(a, b, c) : -1;
}

static void must(const char *name, void *a, void *b, void *c)
{
    int status = ask(name, a, b, c);
    if (status) {
        printf("{\"failed\": \"%s\", \"status\": %d}\n", name, status);
        exit(3);
    }
}

static void launch(void *kernel)
{
    uint64_t nanoseconds = 1000000;
    void *parameters[] = {&nanoseconds};
    int (*function)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
        void **) = dlsym(cuda, "cuLaunchKernel");
    if (function(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL))
        exit(4);
    must("cuCtxSynchronize", NULL, NULL, NULL);
}

/* The files of this process whose names have "libcuda" in them, as strings with commas between. */
static void print_libraries(void)
{
    char line[4096], last[4096] = "";
    FILE *maps = fopen("/proc/self/maps", "r");
    const char *comma = "";
    while (maps && fgets(line, sizeof line, maps)) {
        char *path = strchr(line, '/');
        line[strcspn(line, "\n")] = 0;
        if (!path || !strstr(path, "libcuda") || !strcmp(path, last))
            continue;
        strcpy(last, path);
        printf("%s\"%s\"", comma, path);
        comma = ", ";
    }
    if (maps)
        fclose(maps);
}

int main(int count, char **arguments)
{
    cuda = dlopen("libcuda.so.1", RTLD_NOW);
    if (!cuda) {
        printf("{\"failed\": \"%s\"}\n", dlerror());
        return 2;
    }
    unsigned char id[16];
    int device = 0;
    size_t free_bytes = 0, total = 0;
    void *context, *module, *kernel, *memory;
    must("cuInit", NULL, NULL, NULL);
    must("cuDeviceGet", &device, NULL, NULL);
    must("cuDeviceGetUuid_v2", id, (void *)(intptr_t)device, NULL);
    must("cuDevicePrimaryCtxRetain", &context, (void *)(intptr_t)device, NULL);
    must("cuCtxSetCurrent", context, NULL, NULL);
    must("cuMemGetInfo_v2", &free_bytes, &total, NULL);
    must("cuModuleLoadData", &module, (void *)PTX, NULL);
    must("cuModuleGetFunction", &kernel, module, "spin_ns");
    launch(kernel);
    printf("{\"glibc\": \"%s\", \"total_mib\": %zu, \"over\": %d, \"uuid\": \"", gnu_get_libc_version(), total >> 20,
        ask("cuMemAlloc_v2", &memory, (void *)(total + (1 << 20)), NULL));
    for (int i = 0; i < 16; i++)
        printf("%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", id[i]);
    printf("\", \"libraries\": [");
    print_libraries();
    printf("]}\n");
    fflush(stdout);
    while (count > 1) {
        launch(kernel);
        usleep(20000);
    }
    (void)arguments;
    return 0;
}
