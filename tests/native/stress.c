/* stress.c: many threads use every kind of object at once, and everything is given back in the end.
 *
 *   aliquot-stress THREADS SECONDS [KIND...]
 *
 * Each thread has a stream of the primary context and takes the kinds (below, all by default) in random order: memory by
 * every way of allocation, modules, streams, events, contexts with work in flight, captured graphs. Prints one line of
 * JSON: how often each kind was done, and the bytes that the hook has charged before and after (-1 without a hook).
 * Exit status: 0; 1 when a call failed, with the call on stderr; 2 when there is no driver or no such kind.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const char PTX[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry spin_ns(.param .u64 ns)\n{\n.reg .pred %p<2>;\n"
    ".reg .b64 %rd<5>;\nld.param.u64 %rd1, [ns];\nmov.u64 %rd2, %globaltimer;\nL:\nmov.u64 %rd3, %globaltimer;\n"
    "sub.u64 %rd4, %rd3, %rd2;\nsetp.lt.u64 %p1, %rd4, %rd1;\n@%p1 bra L;\nret;\n}\n";

/* clang-format off */
#define CALLS(X) \
    X(cuInit, unsigned) X(cuDeviceGet, int *, int) X(cuDevicePrimaryCtxRetain, void **, int) X(cuCtxSetCurrent, void *) \
    X(cuCtxCreate_v2, void **, unsigned, int) X(cuCtxDestroy_v2, void *) X(cuCtxSynchronize, void) \
    X(cuModuleLoadData, void **, const void *) X(cuModuleGetFunction, void **, void *, const char *) \
    X(cuModuleUnload, void *) X(cuStreamCreate, void **, unsigned) X(cuStreamDestroy_v2, void *) \
    X(cuStreamSynchronize, void *) X(cuStreamQuery, void *) X(cuEventCreate, void **, unsigned) X(cuEventQuery, void *) \
    X(cuEventRecord, void *, void *) X(cuEventDestroy_v2, void *) X(cuMemAlloc_v2, uint64_t *, size_t) \
    X(cuMemFree_v2, uint64_t) X(cuMemAllocPitch_v2, uint64_t *, size_t *, size_t, size_t, unsigned) \
    X(cuMemAllocAsync, uint64_t *, size_t, void *) X(cuMemFreeAsync, uint64_t, void *) \
    X(cuMemPoolCreate, void **, const void *) X(cuMemPoolDestroy, void *) \
    X(cuMemAllocFromPoolAsync, uint64_t *, size_t, void *, void *) X(cuArrayCreate_v2, void **, const void *) \
    X(cuArrayDestroy, void *) X(cuMemAddressReserve, uint64_t *, size_t, size_t, uint64_t, uint64_t) \
    X(cuMemAddressFree, uint64_t, size_t) X(cuMemCreate, uint64_t *, size_t, const void *, uint64_t) \
    X(cuMemRelease, uint64_t) X(cuMemMap, uint64_t, size_t, size_t, uint64_t, uint64_t) X(cuMemUnmap, uint64_t, size_t) \
    X(cuMemAllocManaged, uint64_t *, size_t, unsigned) X(cuMipmappedArrayCreate, void **, const void *, unsigned) \
    X(cuMipmappedArrayDestroy, void *) X(cuMemExportToShareableHandle, int *, uint64_t, int, uint64_t) \
    X(cuMemImportFromShareableHandle, uint64_t *, void *, int) \
    X(cuMemGetInfo_v2, size_t *, size_t *) X(cuStreamBeginCapture_v2, void *, int) \
    X(cuStreamEndCapture, void *, void **) X(cuGraphInstantiateWithFlags, void **, void *, uint64_t) \
    X(cuGraphLaunch, void *, void *) X(cuGraphExecDestroy, void *) X(cuGraphDestroy, void *) \
    X(cuLaunchKernel, void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **)
/* clang-format on */
#define POINTER(name, ...) static int (*name)(__VA_ARGS__);
CALLS(POINTER)

#define CHECK(call) check(call, #call)
enum { NOT_READY = 600, MIB = 1 << 20, THREADS_MOST = 64 };

static void *library, *primary;
static int device;
static _Atomic int over;

struct worker {
    pthread_t thread;
    unsigned seed;
    void *stream, *module, *spin;
};

static void check(int result, const char *call)
{
    if (result == 0)
        return;
    fprintf(stderr, "aliquot-stress: %s -> %d\n", call, result);
    exit(1);
}

static void launch(void *function, uint64_t ns, void *stream)
{
    void *arguments[] = {&ns};
    CHECK(cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL));
}

static unsigned pick(struct worker *self, unsigned below) { return (unsigned)rand_r(&self->seed) % below; }

/* Sizes on both sides of what the driver rounds to. */
static size_t some_bytes(struct worker *self)
{
    static const size_t sizes[] = {256, 4096, MIB, 2 * MIB, 2 * MIB + 512, 5 * MIB};
    return sizes[pick(self, sizeof sizes / sizeof *sizes)];
}

static void linear(struct worker *self)
{
    uint64_t pointers[4], pitched;
    size_t pitch;
    for (int i = 0; i < 4; i++)
        CHECK(cuMemAlloc_v2(&pointers[i], some_bytes(self)));
    CHECK(cuMemAllocPitch_v2(&pitched, &pitch, 1000, 100, 4));
    for (int i = 0; i < 4; i++)
        CHECK(cuMemFree_v2(pointers[i]));
    CHECK(cuMemFree_v2(pitched));
}

static void managed(struct worker *self)
{
    uint64_t pointer;
    CHECK(cuMemAllocManaged(&pointer, some_bytes(self), 1));
    CHECK(cuMemFree_v2(pointer));
}

static void ordered(struct worker *self)
{
    uint64_t pointer;
    CHECK(cuMemAllocAsync(&pointer, some_bytes(self), self->stream));
    launch(self->spin, 5000, self->stream);
    CHECK(cuMemFreeAsync(pointer, self->stream));
    int result = cuStreamQuery(self->stream);
    CHECK(result == NOT_READY ? 0 : result);
}

static void pool(struct worker *self)
{
    struct {
        int type, handles, location, id;
        void *security;
        size_t most;
        char rest[56];
    } properties = {1, 0, 1, device, NULL, 0, {0}};
    void *made;
    uint64_t pointer;
    CHECK(cuMemPoolCreate(&made, &properties));
    CHECK(cuMemAllocFromPoolAsync(&pointer, some_bytes(self), made, self->stream));
    CHECK(cuMemFreeAsync(pointer, self->stream));
    CHECK(cuStreamSynchronize(self->stream));
    CHECK(cuMemPoolDestroy(made));
}

static void array(struct worker *self)
{
    struct {
        size_t width, height;
        int format;
        unsigned channels;
    } shape = {64 + pick(self, 1000), pick(self, 2) * 100, 0x20, 1};
    void *made;
    CHECK(cuArrayCreate_v2(&made, &shape));
    CHECK(cuArrayDestroy(made));
}

static void mipmaps(struct worker *self)
{
    struct {
        size_t width, height, depth;
        int format;
        unsigned channels, flags;
    } shape = {64 + pick(self, 1000), 64 + pick(self, 100), 0, 0x20, 1, 0};
    void *made;
    CHECK(cuMipmappedArrayCreate(&made, &shape, 1 + pick(self, 5)));
    CHECK(cuMipmappedArrayDestroy(made));
}

/* Half of them by a descriptor, as from another process. */
static void mapped(struct worker *self)
{
    int shared = (int)pick(self, 2), descriptor;
    struct {
        int type, handles, location, id;
        void *windows;
        unsigned char flags[8];
    } properties = {1, shared, 1, device, NULL, {0}};
    size_t bytes = (1 + pick(self, 3)) * 2 * MIB;
    uint64_t address, handle, made;
    CHECK(cuMemAddressReserve(&address, bytes, 0, 0, 0));
    CHECK(cuMemCreate(&handle, bytes, &properties, 0));
    if (shared) {
        made = handle;
        CHECK(cuMemExportToShareableHandle(&descriptor, made, 1, 0));
        CHECK(cuMemImportFromShareableHandle(&handle, (void *)(intptr_t)descriptor, 1));
        CHECK(cuMemRelease(made));
        close(descriptor);
    }
    CHECK(cuMemMap(address, bytes, 0, handle, 0));
    CHECK(cuMemRelease(handle));
    CHECK(cuMemUnmap(address, bytes));
    CHECK(cuMemAddressFree(address, bytes));
}

static void module(struct worker *self)
{
    void *made, *function;
    CHECK(cuModuleLoadData(&made, PTX));
    CHECK(cuModuleGetFunction(&function, made, "spin_ns"));
    launch(function, 1000, self->stream);
    CHECK(cuStreamSynchronize(self->stream));
    CHECK(cuModuleUnload(made));
}

static void launches(struct worker *self)
{
    for (int i = 0; i < 20; i++)
        launch(self->spin, 1000 * pick(self, 20), self->stream);
    CHECK(cuStreamSynchronize(self->stream));
}

static void streams(struct worker *self)
{
    void *made, *event;
    CHECK(cuStreamCreate(&made, pick(self, 2)));
    CHECK(cuEventCreate(&event, 2));
    launch(self->spin, 20000, made);
    CHECK(cuEventRecord(event, made));
    if (pick(self, 2))
        CHECK(cuStreamDestroy_v2(made)); /* with work in flight */
    else {
        int result;
        while ((result = cuEventQuery(event)) == NOT_READY)
            ;
        CHECK(result);
        CHECK(cuStreamDestroy_v2(made));
    }
    CHECK(cuEventDestroy_v2(event));
}

static void contexts(struct worker *self)
{
    void *made, *loaded, *function, *stream;
    uint64_t pointer;
    CHECK(cuCtxCreate_v2(&made, 0, device));
    CHECK(cuModuleLoadData(&loaded, PTX));
    CHECK(cuModuleGetFunction(&function, loaded, "spin_ns"));
    CHECK(cuStreamCreate(&stream, 1));
    CHECK(cuMemAlloc_v2(&pointer, some_bytes(self)));
    launch(function, 50000, stream);
    CHECK(cuCtxDestroy_v2(made)); /* with all that is in it */
    CHECK(cuCtxSetCurrent(primary));
}

static void graphs(struct worker *self)
{
    void *graph, *ready;
    uint64_t pointer;
    CHECK(cuStreamBeginCapture_v2(self->stream, 1));
    launch(self->spin, 2000, self->stream);
    CHECK(cuMemAllocAsync(&pointer, MIB, self->stream));
    launch(self->spin, 2000, self->stream);
    CHECK(cuMemFreeAsync(pointer, self->stream));
    CHECK(cuStreamEndCapture(self->stream, &graph));
    CHECK(cuGraphInstantiateWithFlags(&ready, graph, 0));
    for (int i = 0; i < 3; i++)
        CHECK(cuGraphLaunch(ready, self->stream));
    CHECK(cuStreamSynchronize(self->stream));
    CHECK(cuGraphExecDestroy(ready));
    CHECK(cuGraphDestroy(graph));
}

static void view(struct worker *self)
{
    size_t free_bytes, total;
    CHECK(cuMemGetInfo_v2(&free_bytes, &total));
}

static struct {
    const char *name;
    void (*run)(struct worker *);
    int wanted;
    _Atomic uint64_t done;
} kinds[] = {{"linear", linear, 1, 0},   {"ordered", ordered, 1, 0}, {"pool", pool, 1, 0},
             {"array", array, 1, 0},     {"managed", managed, 1, 0}, {"mipmaps", mipmaps, 1, 0},
             {"mapped", mapped, 1, 0},   {"module", module, 1, 0},   {"launches", launches, 1, 0},
             {"streams", streams, 1, 0}, {"graphs", graphs, 1, 0},   {"contexts", contexts, 1, 0},
             {"view", view, 1, 0}};
enum { KINDS = sizeof kinds / sizeof *kinds };

static void *work(void *argument)
{
    struct worker *self = argument;
    CHECK(cuCtxSetCurrent(primary));
    CHECK(cuStreamCreate(&self->stream, 1));
    CHECK(cuModuleLoadData(&self->module, PTX));
    CHECK(cuModuleGetFunction(&self->spin, self->module, "spin_ns"));
    while (!atomic_load(&over)) {
        unsigned kind = pick(self, KINDS);
        if (!kinds[kind].wanted)
            continue;
        kinds[kind].run(self);
        atomic_fetch_add(&kinds[kind].done, 1);
    }
    CHECK(cuStreamSynchronize(self->stream));
    CHECK(cuModuleUnload(self->module));
    CHECK(cuStreamDestroy_v2(self->stream));
    return NULL;
}

/* What the hook has charged now: field 12 of aliquot_stats (see entry.h). */
static long long charged(void)
{
    uint64_t out[64] = {sizeof out};
    int (*stats)(void *) = (int (*)(void *))dlsym(library, "aliquot_stats");
    return stats && stats(out) == 0 ? (long long)out[12] : -1;
}

static int choose(int count, char **names)
{
    for (int kind = 0; count && kind < KINDS; kind++)
        kinds[kind].wanted = 0;
    for (int i = 0; i < count; i++) {
        int kind = 0;
        while (kind < KINDS && strcmp(kinds[kind].name, names[i]) != 0)
            kind++;
        if (kind == KINDS)
            return 0;
        kinds[kind].wanted = 1;
    }
    return 1;
}

static int open_driver(void)
{
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library)
        return 0;
#define FIND(name, ...) name = (int (*)(__VA_ARGS__))dlsym(library, #name);
    CALLS(FIND)
    return cuInit && cuInit(0) == 0;
}

int main(int count, char **words)
{
    static struct worker workers[THREADS_MOST];
    int threads = count > 2 ? atoi(words[1]) : 0;
    if (threads < 1 || threads > THREADS_MOST || !choose(count - 3, words + 3) || !open_driver()) {
        fprintf(stderr, "aliquot-stress THREADS SECONDS [KIND...], where a driver is: %s\n", dlerror());
        return 2;
    }
    CHECK(cuDeviceGet(&device, 0));
    CHECK(cuDevicePrimaryCtxRetain(&primary, device));
    CHECK(cuCtxSetCurrent(primary));
    long long before = charged();
    for (int i = 0; i < threads; i++) {
        workers[i].seed = (unsigned)i + 1;
        pthread_create(&workers[i].thread, NULL, work, &workers[i]);
    }
    struct timespec rest = {atoi(words[2]), 0};
    nanosleep(&rest, NULL);
    atomic_store(&over, 1);
    for (int i = 0; i < threads; i++)
        pthread_join(workers[i].thread, NULL);
    long long after;
    int looks = 0; /* what pools gave back is noticed at completion calls, not at each of them */
    do {
        nanosleep(&(struct timespec){0, 10000000}, NULL);
        CHECK(cuCtxSynchronize());
        after = charged();
    } while (after != before && ++looks < 100);
    printf("{\"charged_before\": %lld, \"charged_after\": %lld", before, after);
    for (int kind = 0; kind < KINDS; kind++)
        printf(", \"%s\": %llu", kinds[kind].name, (unsigned long long)atomic_load(&kinds[kind].done));
    puts("}");
    return 0;
}
