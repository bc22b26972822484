/* cancelled.c: threads that launch, wait and allocate are cancelled, and the driver goes on for the others.
 *
 * Argument: how many rounds. Prints `done` when a launch after each round has ended.
 */
#include "driver.h"

enum { THREADS = 4 };
static void *event;

static void *work(void *number)
{
    void *stream, *handle;
    u64 memory;
    F(cuCtxSetCurrent)(context);
    F(cuStreamCreate)(&stream, 1);
    for (int i = (int)(intptr_t)number;; i++) {
        launch(20000, stream);
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
    open_driver();
    use_device(0);
    function = kernel_here();
    OK(F(cuEventCreate)(&event, 2));
    for (int round = argc > 1 ? atoi(argv[1]) : 100; round; round--) {
        pthread_t threads[THREADS];
        for (intptr_t i = 0; i < THREADS; i++)
            pthread_create(&threads[i], NULL, work, (void *)i);
        usleep((unsigned)(round * 97 % 3000));
        for (int i = 0; i < THREADS; i++)
            pthread_cancel(threads[i]);
        for (int i = 0; i < THREADS; i++)
            pthread_join(threads[i], NULL);
        if (launch(1000, NULL) || F(cuCtxSynchronize)())
            return 3;
    }
    puts("done");
    return 0;
}
