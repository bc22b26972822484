/* driver_bench.c: what one driver call costs through the hook, and what the same call costs without it.
 *
 * Run as a tenant, the process holds two libraries: the one it was given as libcuda.so.1 (the hook) and the driver that
 * the hook opened. Batches of calls go to the one and to the other in turn, in the same context and within the same
 * milliseconds, so what differs is the hook. Without a hook both are the same function.
 *
 *   aliquot-bench-driver launch PTX ROUNDS OUT     per round: ns per launch through libcuda.so.1, ns per launch direct
 *   aliquot-bench-driver streams PTX ROUNDS OUT    the same, each launch into the next of eight streams
 *   aliquot-bench-driver switch PTX ROUNDS OUT     the same, each launch between cuCtxPushCurrent and cuCtxPopCurrent
 *   aliquot-bench-driver memory PTX ROUNDS OUT     per round: ns of one cuMemAlloc through libcuda.so.1, ns direct
 *   aliquot-bench-driver syscalls PTX ROUNDS OUT   one line: system calls of the launching thread in 100 ROUNDS
 *                                                  launches through libcuda.so.1, and in as many direct ones
 *   aliquot-bench-driver completions PTX ROUNDS OUT HELD
 *                                                  per round: ns per cuStreamSynchronize of an idle stream through
 *                                                  libcuda.so.1, ns direct, with HELD stream-ordered allocations held
 *   aliquot-bench-driver turns PTX SECONDS OUT     per kernel of 1 ms: launch asked, launch returned, end seen (ns)
 *
 * Exit status: 0, or 1 with one line on stderr.
 */
#define _GNU_SOURCE
#include "program.h"
#include <dlfcn.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BATCH 100
#define WARM_ROUNDS 50
#define STREAMS 8
#define ALLOCATION_BYTES (1u << 20)
#define COMPLETIONS 20
#define HELD_BYTES 512
#define AHEAD_NS 500000u
#define MARK 0x41515542 /* a prctl option that no kernel knows: brackets what is counted */

typedef int (*alloc_fn)(uint64_t *, size_t);
typedef int (*free_fn)(uint64_t);
typedef int (*sync_fn)(void);
typedef int (*push_fn)(void *);
typedef int (*pop_fn)(void **);
typedef int (*wait_fn)(void *);
typedef int (*alloc_async_fn)(uint64_t *, size_t, void *);
enum launching { ONE_STREAM, MANY_STREAMS, SWITCHING };

static struct side {
    launch_fn launch;
    alloc_fn alloc;
    free_fn release;
    sync_fn sync;
    push_fn push;
    pop_fn pop;
    wait_fn wait;
    alloc_async_fn alloc_async;
} hooked, direct;

static void *kernel, *spin, *context, *streams[STREAMS];
static enum launching launching;

const char *program_name = "aliquot-bench-driver";

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_RAW, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Another loaded library with a cuLaunchKernel of its own is the driver behind the hook. */
static int look_for_driver(struct dl_phdr_info *object, size_t size, void *found)
{
    if (!object->dlpi_name || !object->dlpi_name[0])
        return 0;
    void *library = dlopen(object->dlpi_name, RTLD_NOW | RTLD_NOLOAD);
    if (!library)
        return 0;
    void *launch = dlsym(library, "cuLaunchKernel");
    Dl_info where;
    if (launch && launch != (void *)hooked.launch && dladdr(launch, &where) &&
        !strcmp(where.dli_fname, object->dlpi_name)) {
        *(void **)found = library;
        return 1;
    }
    return 0;
}

static struct side side_of(void *library)
{
    return (struct side){.launch = (launch_fn)need(library, "cuLaunchKernel"),
                         .alloc = (alloc_fn)need(library, "cuMemAlloc_v2"),
                         .release = (free_fn)need(library, "cuMemFree_v2"),
                         .sync = (sync_fn)need(library, "cuCtxSynchronize"),
                         .push = (push_fn)need(library, "cuCtxPushCurrent_v2"),
                         .pop = (pop_fn)need(library, "cuCtxPopCurrent_v2"),
                         .wait = (wait_fn)need(library, "cuStreamSynchronize"),
                         .alloc_async = (alloc_async_fn)need(library, "cuMemAllocAsync")};
}

static void open_driver(const char *ptx_path)
{
    void *behind = NULL, *module, *library = open_cuda(ptx_path, &module);
    CALL(library, (void **, void *, const char *), cuModuleGetFunction, &kernel, module, "spin_ns_none");
    CALL(library, (void **, void *, const char *), cuModuleGetFunction, &spin, module, "spin_ns");
    hooked = side_of(library);
    CALL(library, (void **), cuCtxGetCurrent, &context);
    for (int i = 0; i < STREAMS; i++)
        CALL(library, (void **, unsigned), cuStreamCreate, &streams[i], 1);
    dl_iterate_phdr(look_for_driver, &behind);
    direct = behind ? side_of(behind) : hooked;
    if (!behind)
        fprintf(stderr, "aliquot-bench-driver: no second libcuda is loaded; the difference will be zero\n");
}

static void launch_batch(const struct side *side, int count)
{
    uint64_t duration_ns = 0;
    void *parameters[] = {&duration_ns}, *popped;
    for (int i = 0; i < count; i++) {
        void *stream = launching == MANY_STREAMS ? streams[i % STREAMS] : NULL;
        if (launching == SWITCHING)
            side->push(context);
        int code = side->launch(kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
        if (launching == SWITCHING)
            side->pop(&popped);
        if (code)
            fail("cuLaunchKernel", code);
    }
}

/* Behind a kernel that outlasts the batch, so that no launch has to wake the GPU and none has ended meanwhile. */
static double timed_launches(const struct side *side)
{
    int used = launching == MANY_STREAMS ? STREAMS : 1;
    uint64_t ahead_ns = AHEAD_NS / (unsigned)used;
    void *parameters[] = {&ahead_ns};
    for (int i = 0; i < used; i++) {
        void *stream = launching == MANY_STREAMS ? streams[i] : NULL;
        int code = hooked.launch(spin, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL);
        if (code)
            fail("cuLaunchKernel", code);
    }
    uint64_t began = now_ns();
    launch_batch(side, BATCH);
    uint64_t ended = now_ns();
    hooked.sync();
    return (double)(ended - began) / BATCH;
}

static double timed_allocation(alloc_fn alloc, free_fn release)
{
    uint64_t pointer = 0, began = now_ns();
    int code = alloc(&pointer, ALLOCATION_BYTES);
    uint64_t ended = now_ns();
    if (code)
        fail("cuMemAlloc", code);
    release(pointer);
    return (double)(ended - began);
}

static double timed_completions(wait_fn wait)
{
    uint64_t began = now_ns();
    for (int i = 0; i < COMPLETIONS; i++) {
        int code = wait(NULL);
        if (code)
            fail("cuStreamSynchronize", code);
    }
    return (double)(now_ns() - began) / COMPLETIONS;
}

static void measure_completions(long held, int rounds, FILE *out)
{
    for (long i = 0; i < held; i++) {
        uint64_t pointer;
        int code = hooked.alloc_async(&pointer, HELD_BYTES, NULL);
        if (code)
            fail("cuMemAllocAsync", code);
    }
    hooked.sync();
    for (int i = 0; i < rounds; i++) {
        double through = timed_completions(hooked.wait);
        fprintf(out, "%.2f %.2f\n", through, timed_completions(direct.wait));
    }
}

static void measure(int memory, int rounds, FILE *out)
{
    for (int i = -WARM_ROUNDS; i < rounds; i++) {
        double through, without;
        /* Who goes first alternates, so that neither always finds warm caches. */
        if (memory) {
            through = timed_allocation(hooked.alloc, hooked.release);
            without = timed_allocation(direct.alloc, direct.release);
        } else if (i & 1) {
            through = timed_launches(&hooked);
            without = timed_launches(&direct);
        } else {
            without = timed_launches(&direct);
            through = timed_launches(&hooked);
        }
        if (i >= 0)
            fprintf(out, "%.2f %.2f\n", through, without);
    }
}

/* One kernel at a time, as fast as it is let. The first line appears once the first kernel has completed. */
static void take_turns(int seconds, FILE *out)
{
    uint64_t duration_ns = 1000000, until_ns = 0, ended_ns = 0;
    void *parameters[] = {&duration_ns};
    do {
        uint64_t asked_ns = monotonic_ns();
        int code = spin ? hooked.launch(spin, 1, 1, 1, 1, 1, 1, 0, NULL, parameters, NULL) : 1;
        uint64_t launched_ns = monotonic_ns();
        if (code || (code = hooked.sync()))
            fail("a turn", code);
        ended_ns = monotonic_ns();
        fprintf(out, "%llu %llu %llu\n", (unsigned long long)asked_ns, (unsigned long long)launched_ns,
                (unsigned long long)ended_ns);
        if (!until_ns) {
            until_ns = ended_ns + (uint64_t)seconds * 1000000000u;
            fflush(out);
        }
    } while (ended_ns < until_ns);
}

/* The child stops at every system call of its launching thread; each is counted for the side that the last mark named:
 * 0 neither, 1 through the hook, 2 direct. Returns 0, or -1 when the child did not end well. */
static int count_between_marks(pid_t child, long counts[3])
{
    int status, entering = 1;
    unsigned side = 0;
    waitpid(child, &status, 0);
    ptrace(PTRACE_SETOPTIONS, child, 0, PTRACE_O_TRACESYSGOOD);
    for (int deliver = 0;; deliver = 0) {
        if (ptrace(PTRACE_SYSCALL, child, 0, deliver) < 0 || waitpid(child, &status, 0) < 0)
            return -1;
        if (WIFEXITED(status) || WIFSIGNALED(status))
            return WIFEXITED(status) && !WEXITSTATUS(status) ? 0 : -1;
        if (WSTOPSIG(status) != (SIGTRAP | 0x80)) {
            deliver = WSTOPSIG(status);
            continue;
        }
        if (entering) {
            struct __ptrace_syscall_info info = {0};
            ptrace(PTRACE_GET_SYSCALL_INFO, child, sizeof info, &info);
            if (info.entry.nr == SYS_prctl && info.entry.args[0] == MARK)
                side = (unsigned)info.entry.args[1] % 3;
            else
                counts[side]++;
        }
        entering = !entering;
    }
}

static void count_syscalls(const char *ptx_path, int rounds, FILE *out)
{
    long counts[3] = {0};
    pid_t child = fork();
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        raise(SIGSTOP);
        open_driver(ptx_path);
        for (int i = -WARM_ROUNDS; i < rounds; i++) {
            const struct side *sides[] = {&hooked, &direct};
            for (int side = 0; side < 2; side++) {
                prctl(MARK, i < 0 ? 0 : side + 1, 0, 0, 0);
                launch_batch(sides[side], BATCH);
                prctl(MARK, 0, 0, 0, 0);
                hooked.sync();
            }
        }
        _exit(0);
    }
    if (child < 0 || count_between_marks(child, counts))
        fail("counting system calls", (int)child);
    fprintf(out, "%ld %ld\n", counts[1], counts[2]);
}

int main(int argc, char **argv)
{
    int completions = argc == 6 && !strcmp(argv[1], "completions");
    if ((argc != 5 && !completions) || atoi(argv[3]) < 1) {
        fprintf(stderr, "usage: aliquot-bench-driver launch|streams|switch|memory|syscalls|turns PTX ROUNDS OUT\n"
                        "       aliquot-bench-driver completions PTX ROUNDS OUT HELD\n");
        return 1;
    }
    FILE *out = fopen(argv[4], "w");
    if (!out)
        fail(argv[4], 0);
    if (!strcmp(argv[1], "syscalls")) {
        count_syscalls(argv[2], atoi(argv[3]), out);
    } else if (!strcmp(argv[1], "turns")) {
        open_driver(argv[2]);
        take_turns(atoi(argv[3]), out);
    } else if (completions) {
        open_driver(argv[2]);
        measure_completions(atol(argv[5]), atoi(argv[3]), out);
    } else {
        open_driver(argv[2]);
        launching = !strcmp(argv[1], "streams") ? MANY_STREAMS : !strcmp(argv[1], "switch") ? SWITCHING : ONE_STREAM;
        measure(!strcmp(argv[1], "memory"), atoi(argv[3]), out);
    }
    return fclose(out) ? 1 : 0;
}
