/* memory_threads.c: threads that allocate and free device memory of the named kinds as fast as they can, then free all.
 *
 * memory_threads SECONDS THREADS KINDS THRESHOLD SEED ROUNDS LEAST; LEAST is the smallest size in bytes, KINDS a mask of
 * 1 << (enum kind). The time is divided into rounds; between them every thread stands still with what it holds, and one
 * line of JSON says what the hook counts as reserved. The last line says how many calls succeeded, were refused for lack
 * of memory, or failed otherwise, with everything freed.
 */
#include "driver.h"

enum kind { LINEAR, PITCH, MANAGED, ASYNC, POOL, VMM, ARRAY, MIPMAP, GRAPH, MODULE, CONTEXT, BRIEF_POOL, SHARED, KINDS };
enum { ITEMS = 24, OUT_OF_MEMORY = 2 };

static void *own_pool;
static _Atomic int over;
static u64 least;
static pthread_rwlock_t going; /* held by whoever calls the driver; by main while all stand still */
static _Atomic long done, refused, failed;
static const struct pool_props POOL_OF_GPU = {1, 0, {1, 0}, 0, 0, {0}};

struct item { int kind; u64 ptr, bytes, handle; void *object, *pool; };

static int make_vmm(struct item *item)
{
    struct prop prop = {1, 1, {1, 0}, 0, {0}};
    item->bytes = (item->bytes + (2 << 20) - 1) >> 21 << 21;
    int r = F(cuMemCreate, u64 *, size_t, const void *, u64)(&item->handle, item->bytes, &prop, 0);
    if (r)
        return r;
    F(cuMemAddressReserve, u64 *, size_t, size_t, u64, u64)(&item->ptr, item->bytes, 0, 0, 0);
    r = F(cuMemMap, u64, size_t, size_t, u64, u64)(item->ptr, item->bytes, 0, item->handle, 0);
    if (r)
        F(cuMemRelease, u64)(item->handle);
    return r;
}

/* Exported and imported again: the second handle alone holds the memory until it is mapped and released. */
static int share_vmm(struct item *item)
{
    int r = make_vmm(item), fd = -1;
    u64 second = 0;
    if (r)
        return r;
    r = F(cuMemExportToShareableHandle, void *, u64, int, u64)(&fd, item->handle, 1, 0);
    if (!r)
        r = F(cuMemImportFromShareableHandle, u64 *, void *, int)(&second, (void *)(intptr_t)fd, 1);
    close(fd);
    F(cuMemRelease, u64)(item->handle);
    item->handle = second;
    return r;
}

static int make_graph(struct item *item, void *stream)
{
    void *graph, *node, *free_node;
    struct alloc_node params = {.pool = POOL_OF_GPU, .bytes = item->bytes};
    F(cuGraphCreate, void **, unsigned)(&graph, 0);
    int r = F(cuGraphAddMemAllocNode, void **, void *, const void *, size_t, void *)(&node, graph, 0, 0, &params);
    if (!r)
        r = F(cuGraphAddMemFreeNode, void **, void *, void **, size_t, u64)(&free_node, graph, &node, 1, params.ptr);
    if (!r)
        r = F(cuGraphInstantiateWithFlags, void **, void *, u64)(&item->object, graph, 0);
    if (!r) {
        F(cuGraphLaunch, void *, void *)(item->object, stream);
        F(cuStreamSynchronize, void *)(stream);
    }
    F(cuGraphDestroy, void *)(graph);
    return r;
}

static int make_brief_pool(struct item *item, void *stream)
{
    int r = F(cuMemPoolCreate, void **, const void *)(&item->pool, &POOL_OF_GPU);
    if (r)
        return r;
    r = F(cuMemAllocFromPoolAsync, u64 *, size_t, void *, void *)(&item->ptr, item->bytes, item->pool, stream);
    F(cuMemPoolDestroy, void *)(item->pool);
    return r;
}

static int make_context(struct item *item)
{
    void *popped;
    int r = F(cuCtxCreate_v2, void **, unsigned, int)(&item->object, 0, 0);
    if (r)
        return r;
    F(cuMemAlloc_v2, u64 *, size_t)(&item->ptr, item->bytes);
    F(cuCtxPopCurrent_v2, void **)(&popped);
    return 0;
}

static int make(struct item *item, void *stream, unsigned *seed)
{
    size_t pitch;
    struct array3 shape = {1 + item->bytes / 256 % 8192, 1 + (unsigned)rand_r(seed) % 200, 0, 0x20, 1, 0};
    switch (item->kind) {
    case LINEAR: return F(cuMemAlloc_v2, u64 *, size_t)(&item->ptr, item->bytes);
    case PITCH: return F(cuMemAllocPitch_v2, u64 *, size_t *, size_t, size_t, unsigned)(&item->ptr, &pitch, 1 + item->bytes / 64, 64, 4);
    case MANAGED: return F(cuMemAllocManaged, u64 *, size_t, unsigned)(&item->ptr, item->bytes, 1);
    case ASYNC: return F(cuMemAllocAsync, u64 *, size_t, void *)(&item->ptr, item->bytes, stream);
    case POOL: return F(cuMemAllocFromPoolAsync, u64 *, size_t, void *, void *)(&item->ptr, item->bytes, own_pool, stream);
    case VMM: return make_vmm(item);
    case SHARED: return share_vmm(item);
    case ARRAY: return F(cuArray3DCreate_v2, void **, void *)(&item->object, &shape);
    case MIPMAP: return F(cuMipmappedArrayCreate, void **, void *, unsigned)(&item->object, &shape, 3);
    case GRAPH: return make_graph(item, stream);
    case MODULE: return F(cuModuleLoadData, void **, const void *)(&item->object, PTX);
    case BRIEF_POOL: return make_brief_pool(item, stream);
    default: return make_context(item);
    }
}

static int end(struct item *item, void *stream, unsigned *seed)
{
    int r = 0;
    switch (item->kind) {
    case LINEAR: case PITCH: case MANAGED: return F(cuMemFree_v2, u64)(item->ptr);
    case ASYNC: case POOL: case BRIEF_POOL:
        r = F(cuMemFreeAsync, u64, void *)(item->ptr, stream);
        if (rand_r(seed) % 2)
            F(cuStreamSynchronize, void *)(stream);
        return r;
    case VMM: case SHARED:
        if (rand_r(seed) % 2)
            r = F(cuMemRelease, u64)(item->handle) | F(cuMemUnmap, u64, size_t)(item->ptr, item->bytes);
        else
            r = F(cuMemUnmap, u64, size_t)(item->ptr, item->bytes) | F(cuMemRelease, u64)(item->handle);
        F(cuMemAddressFree, u64, size_t)(item->ptr, item->bytes);
        return r;
    case ARRAY: return F(cuArrayDestroy, void *)(item->object);
    case MIPMAP: return F(cuMipmappedArrayDestroy, void *)(item->object);
    case GRAPH: return F(cuGraphExecDestroy, void *)(item->object);
    case MODULE: return F(cuModuleUnload, void *)(item->object);
    default: return F(cuCtxDestroy_v2, void *)(item->object);
    }
}

struct job { unsigned seed, kinds; };

static int one_kind(unsigned kinds, unsigned *seed)
{
    int kind;
    do
        kind = rand_r(seed) % KINDS;
    while (!(kinds >> kind & 1));
    return kind;
}

static void step(struct item *item, bool *live, struct job *job, void *stream)
{
    if (*live) {
        failed += end(item, stream, &job->seed) != 0;
        *live = false;
        return;
    }
    *item = (struct item){.kind = one_kind(job->kinds, &job->seed)};
    item->bytes = least + (u64)rand_r(&job->seed) % (1u << (10 + rand_r(&job->seed) % 17));
    int r = make(item, stream, &job->seed);
    *live = r == 0;
    if (r == 0)
        done++;
    else if (r == OUT_OF_MEMORY)
        refused++;
    else
        failed++;
}

static void *work(void *argument)
{
    struct job *job = argument;
    struct item items[ITEMS] = {0};
    bool live[ITEMS] = {0};
    void *stream;
    F(cuCtxSetCurrent, void *)(context);
    F(cuStreamCreate, void **, unsigned)(&stream, 1);
    while (!atomic_load(&over)) {
        int i = rand_r(&job->seed) % ITEMS;
        pthread_rwlock_rdlock(&going);
        step(&items[i], &live[i], job, stream);
        pthread_rwlock_unlock(&going);
    }
    for (int i = 0; i < ITEMS; i++)
        if (live[i])
            failed += end(&items[i], stream, &job->seed) != 0;
    F(cuStreamSynchronize, void *)(stream);
    return NULL;
}

int main(int count, char **word)
{
    (void)count;
    int threads = atoi(word[2]), device = 0;
    u64 threshold = strtoull(word[4], NULL, 0);
    least = strtoull(word[7], NULL, 0);
    pthread_rwlockattr_t main_first;
    pthread_rwlockattr_init(&main_first);
    pthread_rwlockattr_setkind_np(&main_first, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    pthread_rwlock_init(&going, &main_first);
    void *default_pool;
    pthread_t thread[64];
    struct job job[64];
    open_driver();
    use_device(device);
    F(cuMemPoolCreate, void **, const void *)(&own_pool, &POOL_OF_GPU);
    F(cuDeviceGetDefaultMemPool, void **, int)(&default_pool, device);
    F(cuMemPoolSetAttribute, void *, int, void *)(own_pool, 4, &threshold);
    F(cuMemPoolSetAttribute, void *, int, void *)(default_pool, 4, &threshold);
    puts("{\"ready\": true}");
    wait_line();
    for (int i = 0; i < threads; i++) {
        job[i] = (struct job){(unsigned)atoi(word[5]) * 100 + (unsigned)i, (unsigned)strtoul(word[3], NULL, 0)};
        pthread_create(&thread[i], NULL, work, &job[i]);
    }
    for (int round = 0, rounds = atoi(word[6]); round < rounds; round++) {
        usleep((unsigned)(atof(word[1]) * 1e6 / rounds));
        pthread_rwlock_wrlock(&going);
        F(cuCtxSynchronize, void)();
        printf("{\"round\": %d, \"reserved\": %lu}\n", round, counted(12));
        wait_line();
        pthread_rwlock_unlock(&going);
    }
    over = 1;
    for (int i = 0; i < threads; i++)
        pthread_join(thread[i], NULL);
    F(cuCtxSynchronize, void)();
    F(cuMemPoolTrimTo, void *, size_t)(own_pool, 0);
    F(cuMemPoolTrimTo, void *, size_t)(default_pool, 0);
    F(cuDeviceGraphMemTrim, int)(device);
    size_t free_bytes = 0, total = 0;
    F(cuMemGetInfo_v2, size_t *, size_t *)(&free_bytes, &total);
    printf("{\"done\": %ld, \"refused\": %ld, \"failed\": %ld, \"free\": %zu, \"total\": %zu, \"reserved\": %lu, "
           "\"unbalanced\": %lu}\n", done, refused, failed, free_bytes, total, counted(12), counted(22));
    wait_line();
    return 0;
}
