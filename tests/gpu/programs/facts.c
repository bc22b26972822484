/* facts.c: how the driver of this machine behaves where Aliquot, or the emulated driver, relies on it.
 *
 *   facts GROUP      with GROUP one of `groups` below; `facts` alone lists them
 *
 * Needs libdl and a driver, no header of CUDA's. Prints one line for each answer: KEY, a tab, the answer. An answer that
 * begins with ~ is a measurement, which differs from run to run. A group ends its process where the driver does, so each
 * wants one of its own. Exit status: 0, 1 when a call failed that has to work, 2 without a driver or such a group.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MIB (1 << 20)
#define CALL(name, ...) (((int (*)())address(#name))(__VA_ARGS__))
#define MUST(name, ...) must(CALL(name, __VA_ARGS__), #name)
#define BLOCKING_EVENT 3u /* BLOCKING_SYNC | DISABLE_TIMING */
#define PLAIN_EVENT 2u    /* DISABLE_TIMING */
#define NON_BLOCKING 1u

static const char SPIN[] = ".version 7.0\n.target sm_70\n.address_size 64\n"
                           ".visible .entry spin_ns(.param .u64 wanted)\n{\n"
                           ".reg .pred %again<2>;\n.reg .b64 %t<5>;\n"
                           "ld.param.u64 %t1, [wanted];\nmov.u64 %t2, %globaltimer;\n"
                           "more:\nmov.u64 %t3, %globaltimer;\nsub.u64 %t4, %t3, %t2;\n"
                           "setp.lt.u64 %again1, %t4, %t1;\n@%again1 bra more;\nret;\n}\n";
static void *driver, *context, *kernel;
static int device;

static void *address(const char *name)
{
    void *found = dlsym(driver, name);
    if (!found) {
        fprintf(stderr, "facts: the driver has no %s\n", name);
        exit(1);
    }
    return found;
}

static void must(int result, const char *name)
{
    if (result) {
        fprintf(stderr, "facts: %s -> %d\n", name, result);
        exit(1);
    }
}

__attribute__((format(printf, 2, 3))) static void answer(const char *key, const char *form, ...)
{
    va_list rest;
    va_start(rest, form);
    printf("%s\t", key);
    vprintf(form, rest);
    puts("");
    va_end(rest);
    fflush(stdout);
}

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void rest_us(unsigned us)
{
    struct timespec t = {us / 1000000, (long)(us % 1000000) * 1000};
    nanosleep(&t, NULL);
}

static void use_primary(void)
{
    MUST(cuDeviceGet, &device, 0);
    MUST(cuDevicePrimaryCtxRetain, &context, device);
    MUST(cuCtxSetCurrent, context);
}

static void load_kernel(void)
{
    void *module;
    MUST(cuModuleLoadData, &module, SPIN);
    MUST(cuModuleGetFunction, &kernel, module, "spin_ns");
}

static void *new_stream(unsigned flags)
{
    void *made;
    MUST(cuStreamCreate, &made, flags);
    return made;
}

static void *new_event(unsigned flags)
{
    void *made;
    MUST(cuEventCreate, &made, flags);
    return made;
}

static int (*launcher)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                       void **);

static int launch(uint64_t ns, void *stream)
{
    void *arguments[] = {&ns};
    if (!launcher)
        launcher = (int (*)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
                            void **))address("cuLaunchKernel");
    return launcher(kernel, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL);
}

static long used_mib(void)
{
    size_t free_bytes, total;
    MUST(cuMemGetInfo_v2, &free_bytes, &total);
    return (long)((total - free_bytes) / MIB);
}

/* ---- which function cuGetProcAddress hands out ---- */
static void names(void)
{
    static const struct {
        const char *name;
        int version, flags;
        const char *export_;
    } questions[] = {
        {"cuLaunchKernel", 12000, 0, "cuLaunchKernel"},
        {"cuLaunchKernel", 12000, 2, "cuLaunchKernel_ptsz"},
        {"cuLaunchKernelEx", 12000, 0, "cuLaunchKernelEx"},
        {"cuGraphLaunch", 12000, 0, "cuGraphLaunch"},
        {"cuGraphInstantiate", 11000, 0, "cuGraphInstantiate_v2"},
        {"cuGraphInstantiate", 12000, 0, "cuGraphInstantiateWithFlags"},
        {"cuMemAlloc", 12000, 0, "cuMemAlloc_v2"},
        {"cuMemAllocAsync", 12000, 2, "cuMemAllocAsync_ptsz"},
        {"cuMemCreate", 12000, 0, "cuMemCreate"},
        {"cuDevicePrimaryCtxRetain", 12000, 0, "cuDevicePrimaryCtxRetain"},
        {"cuStreamBeginCapture", 12000, 0, "cuStreamBeginCapture_v2"},
        {"cuStreamSynchronize", 12000, 0, "cuStreamSynchronize"},
        {"cuEventQuery", 12000, 0, "cuEventQuery"},
        {"cuMemGetInfo", 12000, 0, "cuMemGetInfo_v2"},
        {"cuGetProcAddress", 12000, 0, "cuGetProcAddress_v2"},
    };
    for (size_t i = 0; i < sizeof questions / sizeof *questions; i++) {
        char key[96];
        void *found = NULL;
        int status = 0;
        Dl_info near = {0};
        int result = CALL(cuGetProcAddress_v2, questions[i].name, &found, questions[i].version,
                          (uint64_t)questions[i].flags, &status);
        snprintf(key, sizeof key, "%s@%d%s", questions[i].name, questions[i].version,
                 questions[i].flags ? " per thread" : "");
        if (result || !found)
            answer(key, "none: result %d, status %d", result, status);
        else if (found == dlsym(driver, questions[i].export_))
            answer(key, "the export %s", questions[i].export_);
        else
            answer(key, "not %s, near %s", questions[i].export_,
                   dladdr(found, &near) && near.dli_sname ? near.dli_sname : "no export");
    }
}

/* ---- what memory costs ---- */
static void memory(void)
{
    static const size_t sizes[] = {512, 65536, MIB, 2 * MIB, 2 * MIB + 512, 20 * MIB + 512};
    char key[96];
    uint64_t pointer;
    use_primary();
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        long before = used_mib();
        for (int i = 0; i < 64; i++)
            MUST(cuMemAlloc_v2, &pointer, sizes[s]);
        snprintf(key, sizeof key, "MiB that 64 x cuMemAlloc(%zu) take", sizes[s]);
        answer(key, "%ld", used_mib() - before);
    }
    long before = used_mib();
    void *made;
    MUST(cuCtxCreate_v2, &made, 0u, device);
    MUST(cuCtxSetCurrent, context);
    answer("MiB that a second context takes", "~%ld", used_mib() - before);
    before = used_mib();
    load_kernel();
    MUST(cuCtxSynchronize, 0);
    answer("MiB that a small module takes", "~%ld", used_mib() - before);
}

static void arrays(void)
{
    struct {
        size_t width, height;
        int format;
        unsigned channels;
    } shape = {64, 0, 0x20, 1};
    struct {
        size_t bytes, alignment;
        unsigned reserved[4];
    } needs = {0};
    void *made = NULL;
    use_primary();
    long before = used_mib();
    for (int i = 0; i < 2048; i++)
        MUST(cuArrayCreate_v2, &made, &shape);
    answer("MiB that 2048 arrays of 256 bytes take", "%ld", used_mib() - before);
    answer("cuArrayGetMemoryRequirements of an ordinary array", "%d",
           CALL(cuArrayGetMemoryRequirements, &needs, made, device));
}

static void pools(void)
{
    struct {
        int type, handles, location, id;
        void *security;
        size_t most;
        char rest[56];
    } properties = {1, 0, 1, 0, NULL, 0, {0}};
    void *stream, *standard, *own;
    uint64_t pointer, reserved = 0;
    use_primary();
    stream = new_stream(NON_BLOCKING);
    MUST(cuDeviceGetDefaultMemPool, &standard, device);
    long before = used_mib();
    MUST(cuMemAllocAsync, &pointer, (size_t)MIB, stream);
    MUST(cuMemPoolGetAttribute, standard, 5, &reserved);
    answer("MiB that the pool reserves for cuMemAllocAsync(1 MiB)", "%lu", (unsigned long)(reserved / MIB));
    answer("MiB that the device loses to it", "%ld", used_mib() - before);
    before = used_mib();
    MUST(cuMemPoolCreate, &own, &properties);
    MUST(cuMemAllocFromPoolAsync, &pointer, (size_t)512 * MIB, own, stream);
    MUST(cuStreamSynchronize, stream);
    MUST(cuMemPoolDestroy, own);
    answer("MiB still taken after cuMemPoolDestroy with 512 MiB allocated", "%ld", used_mib() - before);
    MUST(cuMemFreeAsync, pointer, stream);
    MUST(cuStreamSynchronize, stream);
    answer("MiB still taken once these are freed", "%ld", used_mib() - before);
}

static void handles(void)
{
    struct {
        int type, kinds, location, id;
        void *windows;
        unsigned char flags[8];
    } properties = {1, 1, 1, 0, NULL, {0}};
    uint64_t first, second;
    int descriptor;
    use_primary();
    long before = used_mib();
    MUST(cuMemCreate, &first, (size_t)512 * MIB, &properties, (uint64_t)0);
    MUST(cuMemExportToShareableHandle, &descriptor, first, 1, (uint64_t)0);
    MUST(cuMemImportFromShareableHandle, &second, (void *)(intptr_t)descriptor, 1);
    answer("an imported handle", "%s", first == second ? "is the exported one" : "is another");
    MUST(cuMemRelease, first);
    answer("MiB still taken after the exported handle's release, descriptor open", "%ld", used_mib() - before);
    close(descriptor);
    answer("MiB still taken after the descriptor is closed", "%ld", used_mib() - before);
    MUST(cuMemRelease, second);
    answer("MiB still taken after the imported handle's release", "%ld", used_mib() - before);
}

/* ---- what another thread may call during a capture ---- */
enum call { QUERY_EVENT, QUERY_STREAM, RECORD, CREATE_EVENT, LAUNCH, ALLOCATE, GET_INFO, WAIT_EVENT, RECORD_LEGACY, CALLS };
static const char *const calls[CALLS] = {
    "cuEventQuery",  "cuStreamQuery",  "cuEventRecord",      "cuEventCreate",
    "cuLaunchKernel", "cuMemAlloc",    "cuMemGetInfo",       "cuEventSynchronize",
    "cuEventRecord in the legacy stream"};

static struct {
    enum call call;
    int relaxed, result;
    void *event, *stream;
    _Atomic int turn;
} aside;

static int call_aside(void)
{
    size_t free_bytes, total;
    uint64_t pointer;
    void *made;
    switch (aside.call) {
    case QUERY_EVENT: return CALL(cuEventQuery, aside.event);
    case QUERY_STREAM: return CALL(cuStreamQuery, aside.stream);
    case RECORD: return CALL(cuEventRecord, aside.event, aside.stream);
    case CREATE_EVENT: return CALL(cuEventCreate, &made, BLOCKING_EVENT);
    case LAUNCH: return launch(1000, aside.stream);
    case ALLOCATE: return CALL(cuMemAlloc_v2, &pointer, (size_t)512);
    case GET_INFO: return CALL(cuMemGetInfo_v2, &free_bytes, &total);
    case WAIT_EVENT: return CALL(cuEventSynchronize, aside.event);
    case RECORD_LEGACY: return CALL(cuEventRecord, aside.event, (void *)1);
    default: return -1;
    }
}

static void *thread_aside(void *unused)
{
    int mode = 2; /* CU_STREAM_CAPTURE_MODE_RELAXED */
    CALL(cuCtxSetCurrent, context);
    if (aside.relaxed)
        CALL(cuThreadExchangeStreamCaptureMode, &mode);
    while (atomic_load(&aside.turn) == 0)
        ;
    aside.result = call_aside();
    atomic_store(&aside.turn, 2);
    return unused;
}

static void ask_capture(void *captured, const char *kind)
{
    pthread_t thread;
    void *graph = NULL;
    char key[160];
    MUST(cuEventRecord, aside.event, aside.stream);
    MUST(cuCtxSynchronize, 0);
    atomic_store(&aside.turn, 0);
    pthread_create(&thread, NULL, thread_aside, NULL);
    MUST(cuStreamBeginCapture_v2, captured, 0); /* GLOBAL */
    launch(1000, captured);
    atomic_store(&aside.turn, 1);
    while (atomic_load(&aside.turn) != 2)
        ;
    int ended = CALL(cuStreamEndCapture, captured, &graph);
    pthread_join(thread, NULL);
    snprintf(key, sizeof key, "GLOBAL capture of a %s stream, beside it %s%s", kind, calls[aside.call],
             aside.relaxed ? " of a RELAXED thread" : "");
    answer(key, "the call %d, the capture %d", aside.result, ended);
}

static void captures(void)
{
    use_primary();
    load_kernel();
    aside.stream = new_stream(NON_BLOCKING);
    aside.event = new_event(PLAIN_EVENT);
    for (aside.relaxed = 0; aside.relaxed < 2; aside.relaxed++)
        for (aside.call = 0; aside.call < CALLS; aside.call++) {
            ask_capture(new_stream(NON_BLOCKING), "non-blocking");
            ask_capture(new_stream(0), "blocking");
        }
}

/* ---- objects past their context ---- */
static void resets(void)
{
    use_primary();
    load_kernel();
    void *stream = new_stream(NON_BLOCKING), *event = new_event(BLOCKING_EVENT);
    launch(1000, stream);
    MUST(cuEventRecord, event, stream);
    MUST(cuDevicePrimaryCtxReset_v2, device);
    use_primary();
    answer("cuEventQuery of an event from before cuDevicePrimaryCtxReset", "%d", CALL(cuEventQuery, event));
    stream = new_stream(NON_BLOCKING);
    answer("cuEventRecord of it", "%d", CALL(cuEventRecord, event, stream));
}

static void foreign(void)
{
    void *first, *second;
    MUST(cuDeviceGet, &device, 0);
    MUST(cuCtxCreate_v2, &first, 0u, device);
    void *event = new_event(PLAIN_EVENT);
    MUST(cuCtxCreate_v2, &second, 0u, device);
    answer("cuEventRecord of one context's event in another's stream", "%d",
           CALL(cuEventRecord, event, new_stream(NON_BLOCKING)));
}

static _Atomic(void *) doomed;
static _Atomic int over;
static _Atomic(void *) watched;

static void *watch(void *unused)
{
    void *popped;
    while (!atomic_load(&over)) {
        void *target = atomic_load(&doomed);
        if (target && CALL(cuCtxPushCurrent_v2, target) == 0) {
            CALL(cuStreamQuery, atomic_load(&watched));
            CALL(cuCtxPopCurrent_v2, &popped);
        }
    }
    return unused;
}

static void destroyed(void)
{
    pthread_t thread;
    MUST(cuDeviceGet, &device, 0);
    pthread_create(&thread, NULL, watch, NULL);
    for (unsigned i = 0; i < 40; i++) {
        MUST(cuCtxCreate_v2, &context, 0u, device);
        load_kernel();
        atomic_store(&watched, new_stream(NON_BLOCKING));
        launch(200000, atomic_load(&watched));
        atomic_store(&doomed, context);
        rest_us(250 * (i % 4));
        CALL(cuCtxDestroy_v2, context);
    }
    atomic_store(&over, 1);
    pthread_join(thread, NULL);
    answer("40 contexts destroyed while another thread queries their streams", "alive");
}

static void *poll_stream(void *stream)
{
    CALL(cuCtxSetCurrent, context);
    for (;;) {
        CALL(cuStreamQuery, stream);
        rest_us(50);
    }
    return NULL;
}

static void leaving(void)
{
    pthread_t thread;
    use_primary();
    load_kernel();
    void *stream = new_stream(NON_BLOCKING);
    pthread_create(&thread, NULL, poll_stream, stream);
    for (int i = 0; i < 50; i++)
        launch(1000000, stream);
    rest_us(2000);
    answer("exit with work queued, a thread inside the driver", "alive");
    exit(0);
}

/* ---- what things take ---- */
static void queue(void)
{
    use_primary();
    load_kernel();
    void *stream = new_stream(NON_BLOCKING);
    must(launch(300000000, stream), "cuLaunchKernel");
    int count = 0;
    for (double took = 0; took < 20000 && count < 100000; count++) {
        double began = now_us();
        must(launch(0, stream), "cuLaunchKernel");
        took = now_us() - began;
    }
    MUST(cuCtxSynchronize, 0);
    answer("launches into a stream before one waits for the GPU", "%d", count);
}

static void time_events(unsigned kernel_us, int how)
{
    static const char *const names[] = {"nothing", "an event", "a blocking event", "a blocking event, and a query 16 back"};
    enum { RING = 32, BACK = 16, ROUNDS = 5000 };
    void *ring[RING], *stream = new_stream(NON_BLOCKING);
    char key[96];
    double host = 0;
    for (int i = 0; i < RING; i++)
        ring[i] = new_event(how == 1 ? PLAIN_EVENT : BLOCKING_EVENT);
    for (int i = 0; i < 500; i++)
        launch(0, stream);
    MUST(cuStreamSynchronize, stream);
    int (*record)(void *, void *) = (int (*)(void *, void *))address("cuEventRecord");
    int (*query)(void *) = (int (*)(void *))address("cuEventQuery");
    double began = now_us();
    for (int i = 0; i < ROUNDS; i++) {
        while (how == 3 && i >= BACK && query(ring[(i - BACK) % RING]) == 600)
            ;
        double before = now_us();
        launch(kernel_us * 1000u, stream);
        if (how)
            record(ring[i % RING], stream);
        host += now_us() - before;
    }
    MUST(cuStreamSynchronize, stream);
    snprintf(key, sizeof key, "us a launch, kernels of %u us and %s", kernel_us, names[how]);
    answer(key, "~%.2f, of them %.2f in the calls", (now_us() - began) / ROUNDS, host / ROUNDS);
}

static void events(void)
{
    use_primary();
    load_kernel();
    for (unsigned us = 0; us <= 10; us += 5)
        for (int how = 0; how < 4; how++)
            time_events(us, how);
}

static const struct {
    const char *name;
    void (*run)(void);
} groups[] = {{"names", names},       {"memory", memory},     {"arrays", arrays},       {"pools", pools},
              {"handles", handles},   {"captures", captures}, {"resets", resets},       {"foreign", foreign},
              {"destroyed", destroyed}, {"leaving", leaving}, {"queue", queue},         {"events", events}};

int main(int count, char **words)
{
    for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
        if (count < 2)
            puts(groups[i].name);
        else if (strcmp(groups[i].name, words[1]) == 0) {
            driver = dlopen("libcuda.so.1", RTLD_NOW);
            if (!driver || CALL(cuInit, 0u))
                return 2;
            groups[i].run();
            return 0;
        }
    }
    return count < 2 ? 0 : 2;
}
