/* memory.c: linear memory: cuMemAlloc, its pitched and managed kin, and the frees of any pointer.
 *
 * Managed memory is charged as if all of it sat on the GPU: how much of it does changes with every fault.
 */
#include "memory/charge.h"

/* Each comes in two widths of pointers and sizes: 64 bits, and the 32 of the first interface (_v1). */
#define ALLOC(name, pointer, size)                                                                                     \
    CUresult name(enum aliquot_symbol symbol, pointer *ptr, size bytes)                                                \
    {                                                                                                                  \
        struct slot *slot = slot_current();                                                                            \
        if (!ptr || !bytes)                                                                                            \
            return REAL_AT(symbol, pointer *, size)(ptr, bytes);                                                       \
        ANSWER_WITHOUT_CONTEXT(slot, (REAL_AT(symbol, pointer *, size)(ptr, bytes)),                                   \
                               REAL(cuMemFree_v2, CUdeviceptr)(*ptr));                                                 \
        if (!charge_begin(slot, linear_cost(bytes)))                                                                   \
            return CUDA_ERROR_OUT_OF_MEMORY;                                                                           \
        CUresult result = REAL_AT(symbol, pointer *, size)(ptr, bytes);                                                \
        return linear_end(result, slot, result == CUDA_SUCCESS ? *ptr : 0, bytes);                                     \
    }
ALLOC(on_mem_alloc, CUdeviceptr, size_t)
ALLOC(on_mem_alloc_v1, unsigned, unsigned)

/* The driver chooses the pitch: an upper bound is reserved, and what it is above the true one given back. */
static CUresult pitch_end(CUresult result, struct slot *slot, uint64_t guess, uint64_t ptr, uint64_t actual)
{
    uint64_t cost = linear_cost(actual);
    if (!slot || result != CUDA_SUCCESS)
        return charge_end(result, slot, LEDGER_POINTER, ptr, guess);
    if (cost > guess && !memory_reserve(slot, cost - guess, MEMORY_ASK)) {
        REAL(cuMemFree_v2, CUdeviceptr)(ptr);
        return charge_end(CUDA_ERROR_OUT_OF_MEMORY, slot, LEDGER_POINTER, ptr, guess);
    }
    if (cost < guess)
        memory_release(slot, guess - cost);
    return linear_end(result, slot, ptr, actual);
}

#define ALLOC_PITCH(name, pointer, size)                                                                               \
    CUresult name(enum aliquot_symbol symbol, pointer *ptr, size *pitch, size width, size height, unsigned element)    \
    {                                                                                                                  \
        struct slot *slot = slot_current();                                                                            \
        uint64_t row = granules(width), guess;                                                                         \
        guess = height && row > UINT64_MAX / height ? UINT64_MAX : linear_cost(row * height);                          \
        bool wrong = !ptr || !pitch || !width || !height || (element != 4 && element != 8 && element != 16);           \
        ANSWER_WRONG(wrong,                                                                                            \
                     (REAL_AT(symbol, pointer *, size *, size, size, unsigned)(ptr, pitch, width, height, element)),   \
                     REAL(cuMemFree_v2, CUdeviceptr)(*ptr));                                                           \
        ANSWER_WITHOUT_CONTEXT(                                                                                        \
            slot, (REAL_AT(symbol, pointer *, size *, size, size, unsigned)(ptr, pitch, width, height, element)),      \
            REAL(cuMemFree_v2, CUdeviceptr)(*ptr));                                                                    \
        if (!charge_begin(slot, guess))                                                                                \
            return CUDA_ERROR_OUT_OF_MEMORY;                                                                           \
        CUresult result = REAL_AT(symbol, pointer *, size *, size, size, unsigned)(ptr, pitch, width, height,          \
                                                                                   element);                           \
        bool good = result == CUDA_SUCCESS;                                                                            \
        return pitch_end(result, slot, guess, good ? *ptr : 0, good ? (uint64_t)*pitch * height : 0);                  \
    }
ALLOC_PITCH(on_mem_alloc_pitch, CUdeviceptr, size_t)
ALLOC_PITCH(on_mem_alloc_pitch_v1, unsigned, unsigned)

CUresult on_mem_alloc_managed(enum aliquot_symbol symbol, CUdeviceptr *ptr, size_t bytes, unsigned flags)
{
    struct slot *slot = slot_current();
    bool wrong = !ptr || !bytes || (flags != MANAGED_GLOBAL && flags != MANAGED_HOST);
    ANSWER_WRONG(wrong, (REAL_AT(symbol, CUdeviceptr *, size_t, unsigned)(ptr, bytes, flags)),
                 REAL(cuMemFree_v2, CUdeviceptr)(*ptr));
    ANSWER_WITHOUT_CONTEXT(slot, (REAL_AT(symbol, CUdeviceptr *, size_t, unsigned)(ptr, bytes, flags)),
                           REAL(cuMemFree_v2, CUdeviceptr)(*ptr));
    if (!charge_begin(slot, linear_cost(bytes)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    park_never(ALIQUOT_REPORT_UNIFIED);
    CUresult result = REAL_AT(symbol, CUdeviceptr *, size_t, unsigned)(ptr, bytes, flags);
    return linear_end(result, slot, result == CUDA_SUCCESS ? *ptr : 0, bytes);
}

/* Takes the entry of a pointer out before the driver frees it: another thread may be given the address at once. */
static bool take(uint64_t ptr, struct ledger_entry *entry)
{
    return ptr && (ledger_take(LEDGER_POINTER, ptr, entry) || ledger_take(LEDGER_SMALL, ptr, entry) ||
                   ledger_take(LEDGER_ASYNC, ptr, entry));
}

CUresult on_mem_free(enum aliquot_symbol symbol, CUdeviceptr ptr)
{
    struct ledger_entry entry;
    bool known = take(ptr, &entry);
    CUresult result = REAL_AT(symbol, CUdeviceptr)(ptr);
    if (!known)
        graph_freed(ptr);
    return charge_freed(result, known, &entry);
}

CUresult on_mem_free_v1(enum aliquot_symbol symbol, unsigned ptr)
{
    struct ledger_entry entry;
    bool known = take(ptr, &entry);
    return charge_freed(REAL_AT(symbol, unsigned)(ptr), known, &entry);
}

/* Linear memory may be freed in stream order too, and is there until the stream comes to it. */
static CUresult freed_later(CUresult result, struct ledger_entry *entry)
{
    if (result != CUDA_SUCCESS) {
        charge_enter(*entry);
        return result;
    }
    if (entry->kind == LEDGER_SMALL) { /* its page is charged to this one alone from now on */
        if (!memory_reserve(entry->slot, PAGE_BYTES, MEMORY_AT_HAND))
            return charge_freed(result, true, entry);
        page_leave(entry);
        entry->bytes = PAGE_BYTES;
        entry->page = 0;
    }
    entry->kind = LEDGER_LATER;
    charge_enter(*entry);
    reclaim_later();
    return result;
}

CUresult on_mem_free_async(enum aliquot_symbol symbol, CUdeviceptr ptr, void *stream)
{
    struct ledger_entry entry;
    bool own = symbol == SYM_cuMemFreeAsync_ptsz;
    if (capture_running() && stream_captures(stream, own))
        return REAL_AT(symbol, CUdeviceptr, void *)(ptr,
                                                    stream); /* a graph's, whose address another may just have had */
    bool known = conf_load() == MODE_HELD && take(ptr, &entry);
    CUresult result = REAL_AT(symbol, CUdeviceptr, void *)(ptr, stream);
    if (known && entry.kind != LEDGER_ASYNC)
        return freed_later(result, &entry);
    if (!known)
        graph_freed(ptr);
    return charge_freed(result, known, &entry);
}

struct gone {
    const struct slot *slot; /* NULL: all */
    struct ledger_entry entries[32];
    unsigned count;
    uint64_t waiting;
};

/* Freed: the driver does not know the address any more, or it is within what another was given since. */
static void look(struct ledger_entry *entry, void *with)
{
    struct gone *gone = with;
    CUdeviceptr base;
    size_t bytes;
    CUresult result = REAL(cuMemGetAddressRange_v2, CUdeviceptr *, size_t *, CUdeviceptr)(&base, &bytes, entry->key);
    bool freed = result == CUDA_ERROR_INVALID_VALUE || result == CUDA_ERROR_NOT_FOUND ||
                 (result == CUDA_SUCCESS && base != entry->key);
    if (freed && gone->count < 32)
        gone->entries[gone->count++] = *entry;
    else if (!gone->slot || gone->slot == entry->slot)
        gone->waiting += entry->bytes;
}

uint64_t later_reclaim(const struct slot *slot)
{
    struct gone gone = {.slot = slot};
    ledger_each(LEDGER_LATER, look, &gone);
    for (unsigned i = 0; i < gone.count; i++)
        if (ledger_take(LEDGER_LATER, gone.entries[i].key, &gone.entries[i]))
            charge_gone(&gone.entries[i]);
    return gone.waiting;
}
