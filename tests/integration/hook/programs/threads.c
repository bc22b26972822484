/* threads.c: programs that leave the hook little room for threads of its own, built with -DTLS=BYTES of static thread-local
 * data.
 *
 *   threads idle      a kernel, a wait for it, then a pause until a line comes
 *   threads refused WHAT   the same while the hook is refused one kind: thread, fork, exit (handlers) or key (of threads)
 *   threads keys      all thread-specific keys are taken first; a thread with a value under the first one launches
 *
 * One line of JSON when the pause begins or the thread has ended.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static __thread volatile char big[TLS];
static const char *refuses = "";
static void *lib, *context, *spin;
static const char PTX[] = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry spin_ns(.param .u64 ns) { ret; }\n";

#define F(name, ...) ((int (*)(__VA_ARGS__))dlsym(lib, #name))
#define CHECK(call)                                                                                                    \
    do {                                                                                                               \
        int result = call;                                                                                             \
        if (result) {                                                                                                  \
            fprintf(stderr, "%s -> %d\n", #call, result);                                                              \
            exit(3);                                                                                                   \
        }                                                                                                              \
    } while (0)

/* Is it the hook that asks for this kind, which is refused? Its calls come here, like those of all others. */
static int refused(const char *kind, void *function)
{
    Dl_info its, hook;
    return !strcmp(refuses, kind) && dladdr(function, &its) && dladdr(dlsym(lib, "cuLaunchKernel"), &hook) &&
           its.dli_fbase == hook.dli_fbase;
}

#define NEXT(...) ((int (*)(__VA_ARGS__))dlsym(RTLD_NEXT, __func__))

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *with)
{
    return refused("thread", run) ? EAGAIN
                                  : NEXT(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *)(thread, attributes, run, with);
}

int __register_atfork(void (*before)(void), void (*parent)(void), void (*child)(void), void *library)
{
    return refused("fork", child) ? ENOMEM
                                  : NEXT(void (*)(void), void (*)(void), void (*)(void), void *)(before, parent, child, library);
}

int __cxa_atexit(void (*handler)(void *), void *with, void *library)
{
    return refused("exit", handler) ? -1 : NEXT(void (*)(void *), void *, void *)(handler, with, library);
}

int pthread_key_create(pthread_key_t *key, void (*end)(void *))
{
    return refused("key", end) ? EAGAIN : NEXT(pthread_key_t *, void (*)(void *))(key, end);
}

int __cxa_thread_atexit_impl(void (*end)(void *), void *with, void *library)
{
    return refused("key", end) ? -1 : NEXT(void (*)(void *), void *, void *)(end, with, library);
}

static void launch(void)
{
    uint64_t ns = 1000000;
    void *arguments[] = {&ns};
    CHECK(F(cuLaunchKernel, void *, int, int, int, int, int, int, int, void *, void **, void **)(spin, 1, 1, 1, 1, 1, 1, 0,
                                                                                                0, arguments, 0));
    CHECK(F(cuCtxSynchronize, void)());
}

static void *launches_with_a_value(void *key)
{
    int mine;
    CHECK(F(cuCtxSetCurrent, void *)(context));
    pthread_setspecific(*(pthread_key_t *)key, &mine);
    launch();
    return (void *)(uintptr_t)(pthread_getspecific(*(pthread_key_t *)key) == &mine);
}

int main(int count, char **words)
{
    void *module, *kept = NULL;
    pthread_key_t key, first;
    pthread_t thread;
    int keys = !strcmp(words[1], "keys");
    refuses = count > 2 ? words[2] : "";
    big[TLS - 1] = 1;
    CHECK(pthread_key_create(&first, NULL));
    while (keys && !pthread_key_create(&key, NULL))
        ;
    lib = dlopen("libcuda.so.1", RTLD_NOW);
    CHECK(F(cuInit, int)(0));
    CHECK(F(cuDevicePrimaryCtxRetain, void **, int)(&context, 0));
    CHECK(F(cuCtxSetCurrent, void *)(context));
    CHECK(F(cuModuleLoadData, void **, const void *)(&module, PTX));
    CHECK(F(cuModuleGetFunction, void **, void *, const char *)(&spin, module, "spin_ns"));
    for (int i = 0; (keys || !strcmp(refuses, "key")) && i < 3; i++) {
        CHECK(pthread_create(&thread, NULL, launches_with_a_value, &first));
        pthread_join(thread, &kept);
    }
    launch();
    printf("{\"kept\": %d}\n", kept != NULL);
    fflush(stdout);
    while (getchar() != '\n')
        ;
    launch();
    return 0;
}
