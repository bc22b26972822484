/* main_ends.c: the main thread ends by pthread_exit, after it has used the GPU as far as the first argument says.
 *
 *   main_ends context|launch [handler]
 *
 * `handler`: SIGTERM has one, which ends the process with status 7. Prints `ready` before the thread ends.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define F(name) ((int (*)())dlsym(library, #name))

static void end(int number) { _exit(7); }

int main(int count, char **word)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW), *context, *module, *function;
    uint64_t ns = 1000000;
    void *parameters[] = {&ns};
    if (count > 2)
        signal(SIGTERM, end);
    if (!library || F(cuInit)(0) || F(cuDevicePrimaryCtxRetain)(&context, 0) || F(cuCtxSetCurrent)(context))
        return 2;
    if (!strcmp(word[1], "launch") &&
        (F(cuModuleLoadData)(&module, ".visible .entry spin_ns(.param .u64 ns){ret;}") ||
         F(cuModuleGetFunction)(&function, module, "spin_ns") ||
         F(cuLaunchKernel)(function, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL) || F(cuCtxSynchronize)()))
        return 3;
    puts("ready");
    fflush(stdout);
    pthread_exit(NULL);
}
