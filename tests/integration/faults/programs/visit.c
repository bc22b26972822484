/* visit.c: many short CUDA programs, each a tenant of its own.
 *
 *   visit PARALLEL LIBCUDA...
 *
 * For each library a child is forked that opens it, makes a context, allocates, launches a kernel of 10 us, waits for it
 * and ends; every third ends without giving anything back. Exit status 1 and a line when a call did not succeed.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static const char PTX[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
                          ".visible .entry visit_us10() { ret; }\n";
static void *library;

#define CALL(name, ...)                                                                                                \
    do {                                                                                                               \
        int (*call)() = (int (*)())dlsym(library, #name);                                                         \
        int result = call ? call(__VA_ARGS__) : -1;                                                                   \
        if (result != 0) {                                                                                             \
            printf("%s: %d\n", #name, result);                                                                         \
            fflush(stdout);                                                                                            \
            _exit(1);                                                                                                  \
        }                                                                                                              \
    } while (0)

static void visit(const char *path, int rude)
{
    void *context, *module, *function, *extra = NULL;
    unsigned long long memory;
    library = dlopen(path, RTLD_NOW);
    if (!library) {
        printf("%s\n", dlerror());
        fflush(stdout);
        _exit(1);
    }
    CALL(cuInit, 0);
    CALL(cuDevicePrimaryCtxRetain, &context, 0);
    CALL(cuCtxSetCurrent, context);
    CALL(cuMemAlloc_v2, &memory, (size_t)1 << 20);
    CALL(cuModuleLoadData, &module, PTX);
    CALL(cuModuleGetFunction, &function, module, "visit_us10");
    CALL(cuLaunchKernel, function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, extra);
    CALL(cuCtxSynchronize);
    if (!rude) {
        CALL(cuMemFree_v2, memory);
        CALL(cuDevicePrimaryCtxRelease_v2, 0);
    }
    _exit(0);
}

int main(int count, char **arguments)
{
    int parallel = count > 1 ? atoi(arguments[1]) : 1, running = 0, failed = 0, status;
    for (int i = 2; i < count || running; i++) {
        if (i < count && fork() == 0)
            visit(arguments[i], i % 3 == 0);
        running += i < count;
        if (running && (running >= parallel || i >= count) && wait(&status) > 0) {
            running--;
            failed |= status != 0;
        }
    }
    return failed;
}
