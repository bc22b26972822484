/* threads.c: programs that leave the hook little room for threads of its own, built with -DTLS=BYTES of static thread-local
 * data.
 *
 *   threads idle      a kernel, a wait for it, then a pause until a line comes
 *   threads refused WHAT   the same while the hook is refused one kind: thread, fork, exit (handlers) or key (of threads)
 *   threads keys      all thread-specific keys are taken first; a thread with a value under the first one launches
 *
 * One line of JSON when the pause begins or the thread has ended.
 */
#include "driver.h"

static __thread volatile char big[TLS];
static const char *refuses = "";

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

static void launch_and_wait(void)
{
    OK(launch(1000000, NULL));
    OK(F(cuCtxSynchronize, void)());
}

static void *launches_with_a_value(void *key)
{
    int mine;
    OK(F(cuCtxSetCurrent, void *)(context));
    pthread_setspecific(*(pthread_key_t *)key, &mine);
    launch_and_wait();
    return (void *)(uintptr_t)(pthread_getspecific(*(pthread_key_t *)key) == &mine);
}

int main(int count, char **words)
{
    void *kept = NULL;
    pthread_key_t key, first;
    pthread_t thread;
    int keys = !strcmp(words[1], "keys");
    refuses = count > 2 ? words[2] : "";
    big[TLS - 1] = 1;
    OK(pthread_key_create(&first, NULL));
    while (keys && !pthread_key_create(&key, NULL))
        ;
    open_driver();
    use_device(0);
    function = kernel_here();
    for (int i = 0; (keys || !strcmp(refuses, "key")) && i < 3; i++) {
        OK(pthread_create(&thread, NULL, launches_with_a_value, &first));
        pthread_join(thread, &kept);
    }
    launch_and_wait();
    printf("{\"kept\": %d}\n", kept != NULL);
    wait_line();
    launch_and_wait();
    return 0;
}
