/* endings.c: contexts that end while other threads allocate and free in them.
 *
 * endings HOW SECONDS THREADS: HOW is `destroy` (contexts of the program's own, made and destroyed) or `reset` (the primary
 * context). It takes longer than SECONDS where few contexts have ended by then. One line of JSON when all threads have
 * ended and one after the last context has: how many calls succeeded, how many contexts ended, and what the hook counts.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef uint64_t u64;
enum { LEAST_ENDED = 20, LEAST_DONE = 1000 };
enum { ITEMS = 8, STATS = 64, RESERVED = 12, UNBALANCED = 22 };
struct array2 { size_t width, height; int format; unsigned channels; };

static void *lib;
static _Atomic(void *) current;
static _Atomic int over;
static _Atomic long done;
static const char PTX[] = ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry spin_ns(.param .u64 ns) { ret; }\n";

#define F(name, ...) ((int (*)(__VA_ARGS__))find(#name))
static void *find(const char *name)
{
    void *at = dlsym(lib, name);
    if (!at) {
        fprintf(stderr, "no %s\n", name);
        exit(3);
    }
    return at;
}

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
    u64 stats[STATS] = {sizeof stats};
    F(aliquot_stats, u64 *)(stats);
    printf("{\"done\": %ld, \"ended\": %ld, \"reserved\": %lu, \"unbalanced\": %lu}\n", atomic_load(&done), ended,
           (unsigned long)stats[RESERVED], (unsigned long)stats[UNBALANCED]);
    fflush(stdout);
}

static void wait_line(void)
{
    int read;
    do
        read = getchar();
    while (read != '\n' && read != EOF);
}

int main(int argc, char **argv)
{
    bool own = argc > 3 && !strcmp(argv[1], "destroy");
    double end = atof(argv[2]) * 1e9;
    int threads = atoi(argv[3]);
    pthread_t thread[16];
    struct timespec start, now;
    void *context, *popped;
    long ended = 0;
    lib = dlopen("libcuda.so.1", RTLD_NOW);
    F(cuInit, unsigned)(0);
    F(cuDevicePrimaryCtxRetain, void **, int)(&context, 0);
    if (own)
        F(cuCtxCreate_v2, void **, unsigned, int)(&context, 0, 0);
    atomic_store(&current, context);
    for (int i = 0; i < threads; i++)
        pthread_create(&thread[i], NULL, work, (void *)(uintptr_t)(i + 1));
    clock_gettime(CLOCK_MONOTONIC, &start);
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
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((now.tv_sec - start.tv_sec) * 1e9 + (double)(now.tv_nsec - start.tv_nsec) < end ||
             ended <= LEAST_ENDED || atomic_load(&done) <= LEAST_DONE);
    atomic_store(&over, 1);
    for (int i = 0; i < threads; i++)
        pthread_join(thread[i], NULL);
    say(ended);
    wait_line();
    if (own)
        F(cuCtxDestroy_v2, void *)(context);
    else
        F(cuDevicePrimaryCtxReset_v2, int)(0);
    say(ended + 1);
    wait_line();
    return 0;
}
