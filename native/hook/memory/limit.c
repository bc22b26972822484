/* limit.c: cuCtxSetLimit turns a number into memory: stacks for every resident thread, the printf buffer, the heap of
 * device-side malloc. What a context has at its start is part of its own cost; what is asked beyond that is charged.
 */
#include "memory/charge.h"

enum { LIMIT_STACK = 0, LIMIT_PRINTF = 1, LIMIT_HEAP = 2 };
enum { ATTRIBUTE_MULTIPROCESSORS = 16, ATTRIBUTE_THREADS_PER_MULTIPROCESSOR = 39 };

/* Bytes of device memory that one unit of the limit stands for. */
static uint64_t weight(int limit, int device)
{
    int processors = 1, threads = 1;
    if (limit != LIMIT_STACK)
        return 1;
    REAL(cuDeviceGetAttribute, int *, int, int)(&processors, ATTRIBUTE_MULTIPROCESSORS, device);
    REAL(cuDeviceGetAttribute, int *, int, int)(&threads, ATTRIBUTE_THREADS_PER_MULTIPROCESSOR, device);
    return (uint64_t)processors * (uint64_t)threads;
}

static uint64_t device_bytes(int device)
{
    size_t bytes = 0;
    return REAL(cuDeviceTotalMem_v2, size_t *, int)(&bytes, device) == CUDA_SUCCESS ? bytes : UINT64_MAX;
}

static uint64_t times(uint64_t value, uint64_t by) { return by && value > UINT64_MAX / by ? UINT64_MAX : value * by; }

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* The driver may round: what it settled on is what counts. */
static void settle(struct ledger_entry *entry, uint64_t had, uint64_t reserved, uint64_t by, int limit)
{
    size_t now = 0;
    REAL(cuCtxGetLimit, size_t *, int)(&now, limit);
    uint64_t cost = times(now, by), more = cost > had ? cost - had : 0, fewer = had > cost ? had - cost : 0;
    uint64_t grown = least(more, reserved);
    memory_release(entry->slot, reserved - grown);
    entry->bytes += grown;
    fewer = least(fewer, entry->bytes);
    memory_release(entry->slot, fewer);
    entry->bytes -= fewer;
    if (entry->bytes)
        charge_enter(*entry);
}

CUresult on_ctx_set_limit(enum aliquot_symbol symbol, int limit, size_t value)
{
    struct slot *slot = limit >= LIMIT_STACK && limit <= LIMIT_HEAP ? slot_current() : NULL;
    void *context = NULL;
    size_t before = 0;
    if (!slot || REAL(cuCtxGetCurrent, void **)(&context) != CUDA_SUCCESS ||
        REAL(cuCtxGetLimit, size_t *, int)(&before, limit) != CUDA_SUCCESS)
        return REAL_AT(symbol, int, size_t)(limit, value);
    uint64_t by = weight(limit, slot->link.device), had = times(before, by), wanted = times(value, by);
    uint64_t reserved = wanted > had ? wanted - had : 0;
    if (!charge_begin(slot, reserved))
        REFUSE(wanted > device_bytes(slot->link.device), (REAL_AT(symbol, int, size_t)(limit, value)),
               (REAL_AT(symbol, int, size_t)(limit, before)));
    CUresult result = REAL_AT(symbol, int, size_t)(limit, value);
    if (result != CUDA_SUCCESS) {
        memory_release(slot, reserved);
        pthread_rwlock_unlock(&slot->memory.charge_lock);
        return result;
    }
    struct ledger_entry entry = {.kind = LEDGER_LIMIT,
                                 .key = (uintptr_t)context + (unsigned)limit,
                                 .slot = slot,
                                 .other = charge_owner,
                                 .refs = 1};
    ledger_take(LEDGER_LIMIT, entry.key, &entry);
    settle(&entry, had, reserved, by, limit);
    pthread_rwlock_unlock(&slot->memory.charge_lock);
    return result;
}
