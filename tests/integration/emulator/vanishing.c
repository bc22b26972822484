/* vanishing.c: threads use the objects of a context that the first thread destroys or resets under them.
 *
 * Arguments: `destroy` or `reset`, and how many rounds. Prints each answer that a call gave, once, by its number.
 */
#include "driver.h"

enum { THREADS = 4 };
static struct { void *context, *module, *function, *kernel, *stream, *event; u64 memory; } made;
static pthread_barrier_t begin, current, end;
static _Atomic int answers[1000];
static _Atomic int rounds_left;
static char image[20000];

static int use(int which)
{
    void *handle;
    char bytes[64];
    int value;
    switch (which % 14) {
    case 0: return launch_of(made.function, 2000, made.stream);
    case 1: return launch_of(made.function, 2000, NULL);
    case 2: return launch_of(made.function, 2000, (void *)2);
    case 3: return F(cuModuleGetFunction)(&handle, made.module, "kernel_37");
    case 4: return F(cuEventRecord)(made.event, made.stream);
    case 5: return F(cuEventQuery)(made.event);
    case 6: return F(cuStreamWaitEvent)(made.stream, made.event, 0);
    case 7: return F(cuStreamQuery)(made.stream);
    case 8: return F(cuStreamSynchronize)(made.stream);
    case 9: return F(cuEventSynchronize)(made.event);
    case 10: return F(cuCtxSynchronize)();
    case 11: return F(cuMemcpyDtoHAsync_v2)(bytes, made.memory, sizeof bytes, made.stream);
    case 12: return F(cuStreamGetPriority)(made.stream, &value);
    default: return F(cuModuleGetGlobal_v2)(&handle, NULL, made.module, "word");
    }
}

static void *work(void *number)
{
    int which = (int)(intptr_t)number;
    for (;;) {
        pthread_barrier_wait(&begin);
        if (!rounds_left)
            return NULL;
        int r = F(cuCtxSetCurrent)(made.context);
        pthread_barrier_wait(&current);
        while (!r || r == 600) {
            r = use(which);
            answers[r < 1000 ? r : 999] = 1;
            which += 5;
        }
        F(cuCtxSetCurrent)(NULL);
        pthread_barrier_wait(&end);
    }
}

static int make(int reset)
{
    int r = reset ? F(cuDevicePrimaryCtxRetain)(&made.context, 0) : F(cuCtxCreate_v2)(&made.context, 0, 0);
    r = r ? r : F(cuCtxSetCurrent)(made.context);
    r = r ? r : F(cuModuleLoadData)(&made.module, image);
    r = r ? r : F(cuModuleGetFunction)(&made.function, made.module, "spin_ns");
    r = r ? r : F(cuStreamCreate)(&made.stream, 1);
    r = r ? r : F(cuEventCreate)(&made.event, 2);
    return r ? r : F(cuMemAlloc_v2)(&made.memory, (size_t)4096);
}

int main(int argc, char **argv)
{
    int reset = argc > 1 && !strcmp(argv[1], "reset"), rounds = argc > 2 ? atoi(argv[2]) : 100;
    pthread_t threads[THREADS];
    size_t at = (size_t)sprintf(image, ".visible .entry spin_ns(.param .u64 ns){ret;}\n");
    for (int i = 0; i < 300; i++) /* a module of many kernels */
        at += (size_t)sprintf(image + at, ".visible .entry kernel_%d(){ret;}\n", i);
    open_driver();
    pthread_barrier_init(&begin, NULL, THREADS + 1);
    pthread_barrier_init(&current, NULL, THREADS + 1);
    pthread_barrier_init(&end, NULL, THREADS + 1);
    rounds_left = rounds;
    for (intptr_t i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, work, (void *)i);
    for (; rounds_left; rounds_left--) {
        int r = make(reset);
        if (r) {
            fprintf(stderr, "round %d: %d\n", rounds - rounds_left, r);
            return 3;
        }
        pthread_barrier_wait(&begin);
        pthread_barrier_wait(&current);
        usleep((unsigned)(rounds_left * 37 % 500));
        r = reset ? F(cuDevicePrimaryCtxReset_v2)(0) : F(cuCtxDestroy_v2)(made.context);
        if (r)
            return 4;
        pthread_barrier_wait(&end);
    }
    pthread_barrier_wait(&begin);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < 1000; i++)
        if (answers[i])
            printf("%d ", i);
    puts("");
    return 0;
}
