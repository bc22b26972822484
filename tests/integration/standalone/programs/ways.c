/* Opens libcuda.so.1 in the way named by the first argument and prints the device's memory in MiB as CUDA tells it. */
#include "driver.h"

static void *call_cuda(void *unused)
{
    size_t left = 0, total = 0;
    if (F(cuInit)(0) || F(cuDevicePrimaryCtxRetain)(&context, 0) || F(cuCtxSetCurrent)(context) ||
        F(cuMemGetInfo_v2)(&left, &total))
        puts("refused");
    else
        printf("%zu\n", total >> 20);
    fflush(stdout);
    return unused;
}

int main(int argc, char **argv)
{
    const char *way = argc > 1 ? argv[1] : "plain";
    if (strcmp(way, "exec") == 0) {
        if (fork() == 0)
            execl("/proc/self/exe", argv[0], "plain", (char *)NULL);
        return wait(NULL) < 0;
    }
    if (strcmp(way, "deepbind") == 0)
        lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_DEEPBIND);
    else if (strcmp(way, "namespace") == 0)
        lib = dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW);
    else
        lib = dlopen("libcuda.so.1", RTLD_NOW);
    if (!lib) {
        puts("no-driver");
        return 0;
    }
    if (strcmp(way, "thread") == 0) {
        pthread_t thread;
        return pthread_create(&thread, NULL, call_cuda, NULL) || pthread_join(thread, NULL);
    }
    call_cuda(NULL);
    return 0;
}
