/* pool.c: stream-ordered memory. A pool is charged for what it has reserved of the GPU, not for what is handed out.
 *
 * The size asked is reserved first; after the call the pool says what it truly holds, and the difference is settled.
 * Frees show at completion points, where the driver shrinks pools to their release threshold. Allocations captured into
 * a graph are charged to the graph (graph.c); what the device caches of destroyed graphs is one more pool, under the key
 * of its slot.
 */
#include "charge.h"

static _Atomic int dirty; /* something was freed since the pools were last looked at */

/* The memory of graphs that the driver still holds after a trim, beyond what living graphs are charged for. */
static bool cached_of(struct slot *slot, uint64_t *bytes)
{
    uint64_t reserved = 0, living = atomic_load(&slot->graph_bytes);
    REAL(cuDeviceGraphMemTrim, int)(slot->device);
    if (REAL(cuDeviceGetGraphMemAttribute, int, int, void *)(slot->device, GRAPH_RESERVED_CURRENT, &reserved) !=
        CUDA_SUCCESS)
        reserved = 0;
    *bytes = reserved > living ? reserved - living : 0;
    return true;
}

static bool reserved_of(void *pool, uint64_t *bytes)
{
    return REAL(cuMemPoolGetAttribute, void *, int, void *)(pool, POOL_RESERVED_CURRENT, bytes) == CUDA_SUCCESS;
}

/* Brings the pool's charge to `held`; up to `paid` more is reserved already. False: over the limit. */
static bool settle(void *pool, struct slot *slot, uint64_t held, uint64_t paid)
{
    struct ledger_entry entry = {.kind = LEDGER_POOL, .key = (uintptr_t)pool, .slot = slot, .refs = 1};
    ledger_get(LEDGER_POOL, (uintptr_t)pool, &entry);
    uint64_t have = entry.bytes + paid;
    if (held > have && !memory_reserve(slot, held - have))
        return false;
    if (held < have)
        memory_release(slot, have - held);
    entry.bytes = held;
    if (held)
        ledger_put(entry);
    else
        ledger_take(LEDGER_POOL, (uintptr_t)pool, &entry);
    return true;
}

static CUresult allocated(CUresult result, struct slot *slot, void *pool, CUdeviceptr ptr, void *stream, uint64_t paid)
{
    uint64_t held = 0;
    if (result != CUDA_SUCCESS || !reserved_of(pool, &held)) {
        if (result != CUDA_SUCCESS)
            memory_release(slot, paid);
        else
            charge_done(result, slot, LEDGER_POINTER, ptr, paid);
        return result;
    }
    if (settle(pool, slot, held, paid)) {
        atomic_store(&dirty, 1);
        return result;
    }
    /* The driver took more than the limit has: undo, and leave the pool no larger than it was. */
    REAL(cuMemFreeAsync, CUdeviceptr, void *)(ptr, stream);
    REAL(cuStreamSynchronize, void *)(stream);
    REAL(cuMemPoolTrimTo, void *, size_t)(pool, 0);
    if (reserved_of(pool, &held))
        settle(pool, slot, held, paid);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult graph_captured_alloc(CUresult result, struct slot *slot, void *stream, uint64_t bytes);

/* The GPU of a stream pays, whatever context is current; of a default stream that is the current context's. */
static struct slot *stream_slot(void *stream)
{
    void *context = NULL, *popped;
    int device = -1;
    if (conf_load() != MODE_HELD || !stream || stream == STREAM_LEGACY || stream == STREAM_PER_THREAD ||
        REAL(cuStreamGetCtx, void *, void **)(stream, &context) != CUDA_SUCCESS ||
        REAL(cuCtxPushCurrent_v2, void *)(context) != CUDA_SUCCESS)
        return charged_slot();
    REAL(cuCtxGetDevice, int *)(&device);
    REAL(cuCtxPopCurrent_v2, void **)(&popped);
    return slot_of_device(device);
}

static void pool_is_of(void *pool, struct slot *slot)
{
    ledger_put((struct ledger_entry){.kind = LEDGER_HOME, .key = (uintptr_t)pool, .slot = slot, .refs = 1});
}

/* The GPU whose memory a pool hands out: as it was made for, or the one it is the default pool of. */
static struct slot *pool_slot(void *pool)
{
    struct ledger_entry home;
    int count = 0;
    if (conf_load() != MODE_HELD)
        return NULL;
    if (ledger_get(LEDGER_HOME, (uintptr_t)pool, &home))
        return home.slot;
    REAL(cuDeviceGetCount, int *)(&count);
    for (int device = 0; device < count; device++) {
        void *its = NULL;
        if (REAL(cuDeviceGetDefaultMemPool, void **, int)(&its, device) == CUDA_SUCCESS && its == pool) {
            pool_is_of(pool, slot_of_device(device));
            return slot_of_device(device);
        }
    }
    return charged_slot();
}

CUresult on_pool_create(enum aliquot_symbol symbol, void **pool, const struct pool_props *props)
{
    CUresult result = REAL_AT(symbol, void **, const struct pool_props *)(pool, props);
    struct slot *slot = NULL;
    if (result == CUDA_SUCCESS && conf_load() == MODE_HELD && props->location.type == LOCATION_DEVICE)
        slot = slot_of_device(props->location.id);
    if (slot)
        pool_is_of(*pool, slot);
    return result;
}

static bool take_from(struct slot *slot, uint64_t bytes)
{
    return !slot || (slot_attach(slot) && memory_reserve(slot, bytes));
}

CUresult on_mem_alloc_async(enum aliquot_symbol symbol, CUdeviceptr *ptr, size_t bytes, void *stream)
{
    struct slot *slot = stream_slot(stream);
    void *pool = NULL;
    bool own = symbol == SYM_cuMemAllocAsync_ptsz, captured = slot && capture_running() && stream_captures(stream, own);
    if (!take_from(slot, granules(bytes)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = REAL_AT(symbol, CUdeviceptr *, size_t, void *)(ptr, bytes, stream);
    if (captured)
        return graph_captured_alloc(result, slot, stream, granules(bytes));
    if (!slot)
        return result;
    if (REAL(cuDeviceGetMemPool, void **, int)(&pool, slot->device) != CUDA_SUCCESS)
        return charge_done(result, slot, LEDGER_POINTER, ptr ? *ptr : 0, granules(bytes));
    return allocated(result, slot, pool, ptr ? *ptr : 0, stream, granules(bytes));
}

CUresult on_mem_alloc_from_pool(enum aliquot_symbol symbol, CUdeviceptr *ptr, size_t bytes, void *pool, void *stream)
{
    struct slot *slot = pool_slot(pool);
    bool own = symbol == SYM_cuMemAllocFromPoolAsync_ptsz;
    bool captured = slot && capture_running() && stream_captures(stream, own);
    if (!take_from(slot, granules(bytes)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = REAL_AT(symbol, CUdeviceptr *, size_t, void *, void *)(ptr, bytes, pool, stream);
    if (captured)
        return graph_captured_alloc(result, slot, stream, granules(bytes));
    return slot ? allocated(result, slot, pool, ptr ? *ptr : 0, stream, granules(bytes)) : result;
}

CUresult on_mem_free_async(enum aliquot_symbol symbol, CUdeviceptr ptr, void *stream)
{
    CUresult result = REAL_AT(symbol, CUdeviceptr, void *)(ptr, stream);
    if (result == CUDA_SUCCESS) {
        charge_drop(LEDGER_POINTER, ptr);
        atomic_store(&dirty, 1);
    }
    return result;
}

struct seen {
    struct ledger_entry pools[64];
    unsigned count;
};

static void collect(struct ledger_entry *entry, void *with)
{
    struct seen *seen = with;
    if (seen->count < 64)
        seen->pools[seen->count++] = *entry;
}

/* At a completion point: pools may have shrunk. */
void pools_refresh(void)
{
    if (!atomic_load_explicit(&dirty, memory_order_relaxed) || capture_running() || !atomic_exchange(&dirty, 0))
        return;
    struct seen seen = {.count = 0};
    ledger_each(LEDGER_POOL, collect, &seen);
    for (unsigned i = 0; i < seen.count; i++) {
        uint64_t held = 0;
        void *pool = (void *)(uintptr_t)seen.pools[i].key;
        bool cache = pool == (void *)seen.pools[i].slot;
        if ((cache ? cached_of(pool, &held) : reserved_of(pool, &held)) && held < seen.pools[i].bytes)
            settle(pool, seen.pools[i].slot, held, 0);
        if (held)
            atomic_store(&dirty, 1);
    }
}

/* A graph of `bytes` is gone: they stay charged as the device's cache, as far as they are still there. */
void graph_cache_grown(struct slot *slot, uint64_t bytes)
{
    struct ledger_entry entry = {.kind = LEDGER_POOL, .key = (uintptr_t)slot, .slot = slot, .refs = 1};
    ledger_get(LEDGER_POOL, entry.key, &entry);
    entry.bytes += bytes;
    ledger_put(entry);
    atomic_store(&dirty, 1);
    pools_refresh();
}

CUresult on_graph_trim(enum aliquot_symbol symbol, int device)
{
    CUresult result = REAL_AT(symbol, int)(device);
    atomic_store(&dirty, 1);
    pools_refresh();
    return result;
}

CUresult on_pool_destroy(enum aliquot_symbol symbol, void *pool)
{
    CUresult result = REAL_AT(symbol, void *)(pool);
    struct ledger_entry home;
    if (result == CUDA_SUCCESS) {
        charge_drop(LEDGER_POOL, (uintptr_t)pool);
        ledger_take(LEDGER_HOME, (uintptr_t)pool, &home);
    }
    return result;
}

CUresult on_pool_trim(enum aliquot_symbol symbol, void *pool, size_t keep)
{
    CUresult result = REAL_AT(symbol, void *, size_t)(pool, keep);
    atomic_store(&dirty, 1);
    pools_refresh();
    return result;
}
