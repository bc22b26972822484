/* visit.c: many short CUDA programs, each a tenant of its own.
 *
 *   visit PARALLEL LIBCUDA...
 *
 * For each library a child is forked that opens it, makes a context, allocates, launches a kernel of 10 us, waits for it
 * and ends; every third ends without giving anything back. Exit status 1 and a line when a call did not succeed.
 */
#include "driver.h"

static void visit(const char *path, int rude)
{
    u64 memory;
    lib = dlopen(path, RTLD_NOW);
    if (!lib) {
        fprintf(stderr, "%s\n", dlerror());
        _exit(1);
    }
    OK(F(cuInit)(0));
    use_device(0);
    OK(F(cuMemAlloc_v2)(&memory, (size_t)1 << 20));
    function = kernel_here();
    OK(launch(10000, NULL));
    OK(F(cuCtxSynchronize)());
    if (!rude) {
        OK(F(cuMemFree_v2)(memory));
        OK(F(cuDevicePrimaryCtxRelease_v2)(0));
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
