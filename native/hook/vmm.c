/* vmm.c: physical memory by handle. The GPU named in the properties pays, whatever context is current; the memory is
 * held until the last reference and the last mapping are gone.
 */
#include "charge.h"

#define MULTICAST_BYTES (2ull << 20)

CUresult on_mem_create(enum aliquot_symbol symbol, CUdeviceptr *handle, size_t bytes, const struct allocation_prop *prop,
                       unsigned long long flags)
{
    struct slot *slot = NULL;
    if (conf_load() == MODE_HELD && prop && prop->location.type == LOCATION_DEVICE)
        slot = slot_of_device(prop->location.id);
    if (slot && (!slot_attach(slot) || !memory_reserve(slot, bytes)))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = REAL_AT(symbol, CUdeviceptr *, size_t, const struct allocation_prop *, unsigned long long)(
        handle, bytes, prop, flags);
    return charge_done(result, slot, LEDGER_VMM, handle ? *handle : 0, bytes);
}

/* A multicast object's own memory is small and of the driver's choosing: a granule is reserved, the measured part of it
 * charged. The memory bound to it was charged when it was created. */
CUresult on_multicast_create(enum aliquot_symbol symbol, CUdeviceptr *handle, const void *prop)
{
    struct slot *slot = charged_slot();
    size_t before = 0, after = 0, total;
    if (slot && !memory_reserve(slot, MULTICAST_BYTES))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (slot)
        REAL(cuMemGetInfo_v2, size_t *, size_t *)(&before, &total);
    CUresult result = REAL_AT(symbol, CUdeviceptr *, const void *)(handle, prop);
    if (!slot || result != CUDA_SUCCESS)
        return charge_done(result, slot, LEDGER_VMM, 0, MULTICAST_BYTES);
    REAL(cuMemGetInfo_v2, size_t *, size_t *)(&after, &total);
    uint64_t taken = before > after ? before - after : 0, charge = taken < MULTICAST_BYTES ? taken : MULTICAST_BYTES;
    memory_release(slot, MULTICAST_BYTES - charge);
    return charge_done(result, slot, LEDGER_VMM, *handle, charge);
}

static void unref(uint64_t handle)
{
    struct ledger_entry gone;
    if (ledger_ref(LEDGER_VMM, handle, -1, &gone))
        memory_release(gone.slot, gone.bytes);
}

CUresult on_mem_release(enum aliquot_symbol symbol, CUdeviceptr handle)
{
    CUresult result = REAL_AT(symbol, CUdeviceptr)(handle);
    if (result == CUDA_SUCCESS)
        unref(handle);
    return result;
}

CUresult on_mem_retain(enum aliquot_symbol symbol, CUdeviceptr *handle, void *addr)
{
    struct ledger_entry gone;
    CUresult result = REAL_AT(symbol, CUdeviceptr *, void *)(handle, addr);
    if (result == CUDA_SUCCESS)
        ledger_ref(LEDGER_VMM, *handle, 1, &gone);
    return result;
}

CUresult on_mem_map(enum aliquot_symbol symbol, CUdeviceptr ptr, size_t bytes, size_t offset, CUdeviceptr handle,
                    unsigned long long flags)
{
    struct ledger_entry gone;
    CUresult result = REAL_AT(symbol, CUdeviceptr, size_t, size_t, CUdeviceptr, unsigned long long)(
        ptr, bytes, offset, handle, flags);
    if (result == CUDA_SUCCESS && ledger_get(LEDGER_VMM, handle, &gone)) {
        ledger_ref(LEDGER_VMM, handle, 1, &gone);
        ledger_put((struct ledger_entry){.kind = LEDGER_MAP, .key = ptr, .bytes = bytes, .other = handle, .refs = 1});
    }
    return result;
}

CUresult on_mem_unmap(enum aliquot_symbol symbol, CUdeviceptr ptr, size_t bytes)
{
    CUresult result = REAL_AT(symbol, CUdeviceptr, size_t)(ptr, bytes);
    struct ledger_entry map;
    /* One call may undo several neighbouring mappings. */
    for (uint64_t at = ptr; result == CUDA_SUCCESS && at < ptr + bytes && ledger_take(LEDGER_MAP, at, &map);) {
        unref(map.other);
        at += map.bytes;
    }
    return result;
}
