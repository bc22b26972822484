/* async.c: allocation in stream order. What the pool may grow by is reserved before the driver is asked; afterwards the
 * pool says what it truly holds, and the difference is settled.
 *
 * A pool that has the room among its own is asked without: one that keeps its memory (a release threshold) reuses it
 * under the limit. Should it grow all the same and over the limit, the allocation is undone. Allocations that are
 * captured are charged to the graph (graph.c).
 */
#include "memory/pool.h"

struct request {
    enum aliquot_symbol symbol; /* of cuMemAllocFromPoolAsync or its twin */
    CUdeviceptr *ptr;
    size_t bytes;
    void *pool, *stream;
    CUresult result;
};

static CUresult forward(const struct request *ask)
{
    return REAL_AT(ask->symbol, CUdeviceptr *, size_t, void *, void *)(ask->ptr, ask->bytes, ask->pool, ask->stream);
}

/* A pool is seen to grow by no more than the largest power of two that its sizes are multiples of. */
static void learn_step(struct slot *slot, uint64_t reserved)
{
    uint64_t unit = reserved & -reserved, known = atomic_load(&slot->memory.pool_step);
    if (unit && unit < (known ? known : POOL_STEP_MOST))
        atomic_store(&slot->memory.pool_step, unit);
}

/* Reserves what the pool may grow by for this; `*paid` bytes. False: over the limit. */
static bool pay(struct pool *pool, uint64_t need, bool alone, uint64_t *paid)
{
    uint64_t reserved, used, step = atomic_load(&pool->slot->memory.pool_step);
    uint64_t most = round_up(need, POOL_STEP_MOST);
    if (!pool_holds(pool, &reserved, &used))
        reserved = used = 0;
    uint64_t spare = reserved > used ? reserved - used : 0;
    *paid = most;
    if (memory_reserve(pool->slot, most, spare >= need ? MEMORY_AT_HAND : MEMORY_ASK))
        return true;
    *paid = spare >= need ? 0 : round_up(need - spare, step ? step : POOL_STEP_MOST);
    return !*paid || (alone && memory_reserve(pool->slot, *paid, MEMORY_ASK));
}

/* Brings the charge to what the pool holds, with `paid` more reserved. False: over the limit. */
static bool settle(struct pool *pool, uint64_t paid, uint64_t *used)
{
    uint64_t held, have = pool->charge + paid;
    if (!pool_holds(pool, &held, used))
        held = have;
    learn_step(pool->slot, held);
    pool->charge = have;
    if (held > have && !memory_reserve(pool->slot, held - have, MEMORY_ASK))
        return false;
    if (held < have)
        memory_release(pool->slot, have - held);
    pool->charge = held;
    return true;
}

static void undo(struct pool *pool, const struct request *ask)
{
    int mode = quietly(CAPTURE_MODE_RELAXED);
    REAL(cuMemFreeAsync, CUdeviceptr, void *)(*ask->ptr, ask->stream);
    REAL(cuStreamSynchronize, void *)(ask->stream);
    pool_settle(pool, true);
    quietly(mode);
}

/* One operation under the pool's lock: what it holds is read, reserved for, changed and settled. */
static bool allocate(struct pool *pool, struct request *ask, bool alone)
{
    uint64_t need = granules(ask->bytes), paid = 0, before, after, reserved;
    if (!pay(pool, need, alone, &paid))
        return false;
    pool_holds(pool, &reserved, &before);
    ask->result = forward(ask);
    if (!settle(pool, paid, &after) && ask->result == CUDA_SUCCESS) {
        undo(pool, ask);
        return false;
    }
    if (ask->result == CUDA_SUCCESS) {
        uint64_t taken = after > before + need ? after - before : need; /* as the pool counts what is in use */
        atomic_fetch_add(&pool->living, taken);
        charge_enter((struct ledger_entry){.kind = LEDGER_ASYNC,
                                           .key = *ask->ptr,
                                           .slot = pool->slot,
                                           .bytes = taken,
                                           .other = (uintptr_t)pool,
                                           .refs = 1});
    }
    return true;
}

static bool attempt(struct slot *slot, bool alone, void *with)
{
    (void)slot;
    struct request *ask = with;
    bool gone;
    struct pool *pool = pool_open(ask->pool, &gone);
    if (!pool) {
        ask->result = gone ? CUDA_ERROR_INVALID_VALUE : forward(ask);
        return true;
    }
    bool good = allocate(pool, ask, alone);
    pool_close(pool);
    return good;
}

static CUresult from_pool(struct request *ask, struct slot *slot)
{
    if (!slot_attach(slot) || !charge_try(slot, granules(ask->bytes), attempt, ask))
        REFUSE(wrong_stream(ask->stream) || pool_is_foreign(ask->pool), forward(ask),
               REAL(cuMemFree_v2, CUdeviceptr)(*ask->ptr));
    pthread_rwlock_unlock(&slot->memory.charge_lock);
    return ask->result;
}

/* The GPU of a stream pays, whatever context is current; of a default stream that is the current context's. */
static struct slot *stream_slot(void *stream)
{
    void *context = NULL, *popped;
    int device = -1;
    if (conf_load() != MODE_HELD || !stream || stream == STREAM_LEGACY || stream == STREAM_PER_THREAD ||
        REAL(cuStreamGetCtx, void *, void **)(stream, &context) != CUDA_SUCCESS ||
        REAL(cuCtxPushCurrent_v2, void *)(context) != CUDA_SUCCESS)
        return slot_current();
    REAL(cuCtxGetDevice, int *)(&device);
    REAL(cuCtxPopCurrent_v2, void **)(&popped);
    return slot_of_device(device);
}

static bool captured(void *stream, bool own, struct capturing *into)
{
    if (!capture_running() || !stream_captures(stream, own))
        return false;
    *into = (struct capturing){!stream && own ? STREAM_PER_THREAD : stream, capture_graph(stream, own)};
    return true;
}

CUresult on_mem_alloc_async(enum aliquot_symbol symbol, CUdeviceptr *ptr, size_t bytes, void *stream)
{
    struct slot *slot = stream_slot(stream);
    bool own = symbol == SYM_cuMemAllocAsync_ptsz;
    struct request ask = {
        own ? SYM_cuMemAllocFromPoolAsync_ptsz : SYM_cuMemAllocFromPoolAsync, ptr, bytes, NULL, stream, 0};
    struct capturing into;
    if (!slot && ptr && bytes && !captured(stream, own, &into))
        ANSWER_WITHOUT_CONTEXT(slot, (REAL_AT(symbol, CUdeviceptr *, size_t, void *)(ptr, bytes, stream)),
                               REAL(cuMemFree_v2, CUdeviceptr)(*ptr));
    bool into_graph = slot && captured(stream, own, &into);
    if (slot && ptr && bytes && !into_graph &&
        REAL(cuDeviceGetMemPool, void **, int)(&ask.pool, slot->link.device) == CUDA_SUCCESS)
        return from_pool(&ask, slot);
    if (into_graph && (!slot_attach(slot) || !graph_begin(slot, granules(bytes))))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = REAL_AT(symbol, CUdeviceptr *, size_t, void *)(ptr, bytes, stream);
    return into_graph ? graph_captured_alloc(result, slot, &into, granules(bytes), ptr) : result;
}

CUresult on_mem_alloc_from_pool(enum aliquot_symbol symbol, CUdeviceptr *ptr, size_t bytes, void *handle, void *stream)
{
    struct request ask = {symbol, ptr, bytes, handle, stream, 0};
    bool gone, own = symbol == SYM_cuMemAllocFromPoolAsync_ptsz;
    struct pool *pool = pool_open(handle, &gone);
    struct slot *slot = pool ? pool->slot : NULL;
    if (pool)
        pool_close(pool);
    if (gone)
        return CUDA_ERROR_INVALID_VALUE;
    if (!slot || !ptr || !bytes)
        return forward(&ask);
    struct capturing into;
    if (!captured(stream, own, &into))
        return from_pool(&ask, slot);
    if (!slot_attach(slot) || !graph_begin(slot, granules(bytes)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return graph_captured_alloc(forward(&ask), slot, &into, granules(bytes), ptr);
}
