/* memory.c: linear memory: cuMemAlloc, its pitched and managed kin, and cuMemFree.
 *
 * Each reserves first, then asks the driver, and gives back what the driver refused. Managed memory is charged by its
 * size: how much of it sits on the GPU changes with every fault.
 */
#include "charge.h"

struct slot *charged_slot(void)
{
    return conf_load() == MODE_HELD ? thread_slot() : NULL;
}

uint64_t whose(struct slot *slot)
{
    void *context = NULL;
    struct ledger_entry entry;
    if (slot->contexts > (slot->primary_refs > 0) && REAL(cuCtxGetCurrent, void **)(&context) == CUDA_SUCCESS &&
        ledger_get(LEDGER_CONTEXT, (uintptr_t)context, &entry))
        return (uintptr_t)context;
    return (uintptr_t)slot;
}

CUresult charge_done(CUresult result, struct slot *slot, uint32_t kind, uint64_t key, uint64_t bytes)
{
    if (!slot)
        return result;
    if (result != CUDA_SUCCESS) {
        memory_release(slot, bytes);
        return result;
    }
    bool ends = kind == LEDGER_POINTER || kind == LEDGER_ARRAY || kind == LEDGER_MODULE;
    ledger_put((struct ledger_entry){
        .kind = kind, .key = key, .slot = slot, .bytes = bytes, .other = ends ? whose(slot) : 0, .refs = 1});
    return result;
}

void charge_drop(uint32_t kind, uint64_t key)
{
    struct ledger_entry entry;
    if (ledger_take(kind, key, &entry))
        memory_release(entry.slot, entry.bytes);
}

/* Each comes in two widths of pointers and sizes: 64 bits, and the 32 of the first interface (_v1). */
#define ALLOC(name, pointer, size)                                                                                     \
    CUresult name(enum aliquot_symbol symbol, pointer *ptr, size bytes)                                                \
    {                                                                                                                  \
        struct slot *slot = charged_slot();                                                                            \
        uint64_t charge = granules(bytes);                                                                             \
        if (slot && !memory_reserve(slot, charge))                                                                     \
            return CUDA_ERROR_OUT_OF_MEMORY;                                                                           \
        CUresult result = REAL_AT(symbol, pointer *, size)(ptr, bytes);                                                \
        return charge_done(result, slot, LEDGER_POINTER, ptr ? *ptr : 0, charge);                                      \
    }
ALLOC(on_mem_alloc, CUdeviceptr, size_t)
ALLOC(on_mem_alloc_v1, unsigned, unsigned)

/* The driver chooses the pitch, so a likely one is reserved and the difference settled with the true one. */
static CUresult settle_pitch(CUresult result, struct slot *slot, uint64_t guess, uint64_t ptr, uint64_t actual)
{
    if (slot && result == CUDA_SUCCESS && actual > guess) {
        if (!memory_reserve(slot, actual - guess)) {
            REAL(cuMemFree_v2, CUdeviceptr)(ptr);
            memory_release(slot, guess);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    } else if (slot && result == CUDA_SUCCESS) {
        memory_release(slot, guess - actual);
    } else {
        actual = guess;
    }
    return charge_done(result, slot, LEDGER_POINTER, ptr, actual);
}

#define ALLOC_PITCH(name, pointer, size)                                                                               \
    CUresult name(enum aliquot_symbol symbol, pointer *ptr, size *pitch, size width, size height, unsigned element)    \
    {                                                                                                                  \
        struct slot *slot = charged_slot();                                                                            \
        uint64_t guess = granules(granules(width) * height);                                                           \
        if (slot && !memory_reserve(slot, guess))                                                                      \
            return CUDA_ERROR_OUT_OF_MEMORY;                                                                           \
        CUresult result = REAL_AT(symbol, pointer *, size *, size, size, unsigned)(ptr, pitch, width, height, element); \
        bool good = result == CUDA_SUCCESS;                                                                            \
        return settle_pitch(result, slot, guess, good ? *ptr : 0, good ? granules((uint64_t)*pitch * height) : 0);     \
    }
ALLOC_PITCH(on_mem_alloc_pitch, CUdeviceptr, size_t)
ALLOC_PITCH(on_mem_alloc_pitch_v1, unsigned, unsigned)

CUresult on_mem_alloc_managed(enum aliquot_symbol symbol, CUdeviceptr *ptr, size_t bytes, unsigned flags)
{
    struct slot *slot = charged_slot();
    uint64_t charge = granules(bytes);
    if (slot && !memory_reserve(slot, charge))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = REAL_AT(symbol, CUdeviceptr *, size_t, unsigned)(ptr, bytes, flags);
    return charge_done(result, slot, LEDGER_POINTER, ptr ? *ptr : 0, charge);
}

CUresult on_mem_free(enum aliquot_symbol symbol, CUdeviceptr ptr)
{
    CUresult result = REAL_AT(symbol, CUdeviceptr)(ptr);
    if (result == CUDA_SUCCESS) {
        charge_drop(LEDGER_POINTER, ptr);
        pools_refresh();
    }
    return result;
}

CUresult on_mem_free_v1(enum aliquot_symbol symbol, unsigned ptr)
{
    CUresult result = REAL_AT(symbol, unsigned)(ptr);
    if (result == CUDA_SUCCESS)
        charge_drop(LEDGER_POINTER, ptr);
    return result;
}
