/* cancelled.c: threads that launch, wait and allocate are cancelled, and the driver goes on for the others.
 *
 * Argument: how many rounds. Prints `done` when a launch after each round has ended.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { THREADS = 4 };
typedef int R;
static void *library, *context, *function, *event;
#define F(name) ((R (*)())dlsym(library, #name))

static R launch(void *stream, uint64_t ns)
{
    void *parameters[] = {&ns};
    return F(cuLaunchKernel)(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
}

static void *work(void *number)
{
    void *stream, *handle;
    uint64_t memory;
    F(cuCtxSetCurrent)(context);
    F(cuStreamCreate)(&stream, 1);
    for (int i = (int)(intptr_t)number;; i++) {
        launch(stream, 20000);
        if (i % 4 == 0)
            F(cuStreamSynchronize)(stream);
        if (i % 4 == 1)
            F(cuCtxSynchronize)();
        if (i % 4 == 2 && !F(cuMemAlloc_v2)(&memory, (size_t)100 << 20))
            F(cuMemFree_v2)(memory);
        if (i % 4 == 3 && !F(cuMemAllocAsync)(&memory, (size_t)4096, stream))
            F(cuMemFreeAsync)(memory, stream);
        F(cuEventRecord)(event, stream);
        F(cuEventSynchronize)(event);
        if (i % 64 == 0 && !F(cuModuleLoadData)(&handle, ".visible .entry a(){ret;}"))
            F(cuModuleUnload)(handle);
        pthread_testcancel();
    }
    return NULL;
}

int main(int argc, char **argv)
{
    void *module;
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library || F(cuInit)(0) || F(cuDevicePrimaryCtxRetain)(&context, 0) || F(cuCtxSetCurrent)(context) ||
        F(cuModuleLoadData)(&module, ".visible .entry spin_ns(.param .u64 ns){ret;}") ||
        F(cuModuleGetFunction)(&function, module, "spin_ns") || F(cuEventCreate)(&event, 2))
        return 2;
    for (int round = argc > 1 ? atoi(argv[1]) : 100; round; round--) {
        pthread_t threads[THREADS];
        for (intptr_t i = 0; i < THREADS; i++)
            pthread_create(&threads[i], NULL, work, (void *)i);
        usleep((unsigned)(round * 97 % 3000));
        for (int i = 0; i < THREADS; i++)
            pthread_cancel(threads[i]);
        for (int i = 0; i < THREADS; i++)
            pthread_join(threads[i], NULL);
        if (launch(NULL, 1000) || F(cuCtxSynchronize)())
            return 3;
    }
    puts("done");
    return 0;
}
