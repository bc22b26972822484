/* endings.c: contexts that end while other threads allocate and free in them.
 *
 * endings HOW SECONDS THREADS: HOW is `destroy` (contexts of the program's own, made and destroyed) or `reset` (the primary
 * context). It takes longer than SECONDS where few contexts have ended by then. One line of JSON when all threads have
 * ended and one after the last context has: how many calls succeeded, how many contexts ended, and what the hook counts.
 */
#include "driver.h"

enum { LEAST_ENDED = 20, LEAST_DONE = 1000 };
enum { ITEMS = 8, RESERVED = 12, UNBALANCED = 22 };

static _Atomic(void *) current;
static _Atomic int over;
static _Atomic long done;

static void *work(void *with)
{
    unsigned seed = (unsigned)(uintptr_t)with;
    u64 held[ITEMS] = {0};
    void *array, *module;
    while (!atomic_load(&over)) {
        unsigned at = (unsigned)rand_r(&seed) % ITEMS, what = (unsigned)rand_r(&seed) % 8;
        if (F(cuCtxSetCurrent, void *)(atomic_load(&current)))
            continue;
        if (held[at]) {
            F(cuMemFree_v2, u64)(held[at]);
            held[at] = 0;
        }
        if (what < 5 && !F(cuMemAlloc_v2, u64 *, size_t)(&held[at], what < 3 ? 4096 : 3 << 20))
            atomic_fetch_add(&done, 1);
        else if (what < 5)
            held[at] = 0;
        struct array2 shape = {1024, 64, 0x20, 1};
        if (what == 5 && !F(cuArrayCreate_v2, void **, const void *)(&array, &shape))
            atomic_fetch_add(&done, 1);
        if (what == 6 && !F(cuModuleLoadData, void **, const void *)(&module, PTX))
            atomic_fetch_add(&done, 1);
    }
    return NULL;
}

static void say(long ended)
{
    printf("{\"done\": %ld, \"ended\": %ld, \"reserved\": %lu, \"unbalanced\": %lu}\n", atomic_load(&done), ended,
           (unsigned long)counted(RESERVED), (unsigned long)counted(UNBALANCED));
    wait_line();
}

int main(int argc, char **argv)
{
    bool own = argc > 3 && !strcmp(argv[1], "destroy");
    u64 length = (u64)(atof(argv[2]) * 1e9);
    int threads = atoi(argv[3]);
    pthread_t thread[16];
    void *popped;
    long ended = 0;
    open_driver();
    F(cuDevicePrimaryCtxRetain, void **, int)(&context, 0);
    if (own)
        F(cuCtxCreate_v2, void **, unsigned, int)(&context, 0, 0);
    atomic_store(&current, context);
    for (int i = 0; i < threads; i++)
        pthread_create(&thread[i], NULL, work, (void *)(uintptr_t)(i + 1));
    u64 end = now() + length;
    do {
        usleep(500 + (useconds_t)rand() % 1000);
        if (own) {
            F(cuCtxDestroy_v2, void *)(context);
            F(cuCtxCreate_v2, void **, unsigned, int)(&context, 0, 0);
            F(cuCtxPopCurrent_v2, void **)(&popped);
            atomic_store(&current, context);
        } else {
            F(cuDevicePrimaryCtxReset_v2, int)(0);
            F(cuDevicePrimaryCtxRetain, void **, int)(&context, 0);
            atomic_store(&current, context);
        }
        ended++;
    } while (now() < end || ended <= LEAST_ENDED || atomic_load(&done) <= LEAST_DONE);
    atomic_store(&over, 1);
    for (int i = 0; i < threads; i++)
        pthread_join(thread[i], NULL);
    say(ended);
    if (own)
        F(cuCtxDestroy_v2, void *)(context);
    else
        F(cuDevicePrimaryCtxReset_v2, int)(0);
    say(ended + 1);
    return 0;
}
