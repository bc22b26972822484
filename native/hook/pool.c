/* pool.c: stream-ordered memory. A pool is charged for what it has reserved of the GPU, not for what is handed out.
 *
 * The size asked is reserved first; after the call the pool says what it truly holds, and the difference is settled.
 * Frees show at completion points, where the driver shrinks pools to their release threshold. Allocations captured into
 * a graph are charged to the graph (graph.c).
 */
#include "charge.h"

static _Atomic int dirty; /* something was freed since the pools were last looked at */

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

CUresult on_mem_alloc_async(enum aliquot_symbol symbol, CUdeviceptr *ptr, size_t bytes, void *stream)
{
    struct slot *slot = charged_slot();
    void *pool = NULL;
    bool own = symbol == SYM_cuMemAllocAsync_ptsz, captured = slot && capture_running() && stream_captures(stream, own);
    if (slot && !memory_reserve(slot, granules(bytes)))
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
    struct slot *slot = charged_slot();
    bool own = symbol == SYM_cuMemAllocFromPoolAsync_ptsz;
    bool captured = slot && capture_running() && stream_captures(stream, own);
    if (slot && !memory_reserve(slot, granules(bytes)))
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
        if (reserved_of(pool, &held) && held < seen.pools[i].bytes)
            settle(pool, seen.pools[i].slot, held, 0);
        if (held)
            atomic_store(&dirty, 1);
    }
}

CUresult on_pool_destroy(enum aliquot_symbol symbol, void *pool)
{
    CUresult result = REAL_AT(symbol, void *)(pool);
    if (result == CUDA_SUCCESS)
        charge_drop(LEDGER_POOL, (uintptr_t)pool);
    return result;
}

CUresult on_pool_trim(enum aliquot_symbol symbol, void *pool, size_t keep)
{
    CUresult result = REAL_AT(symbol, void *, size_t)(pool, keep);
    atomic_store(&dirty, 1);
    pools_refresh();
    return result;
}
