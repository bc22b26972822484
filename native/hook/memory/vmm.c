/* vmm.c: physical memory by handle. The GPU named in the properties pays, whatever context is current, and the charge
 * follows the memory: it is held until the last handle and the last mapping of this process are gone, and as long as a
 * descriptor of it is open here (share.c). What another process exported is charged to its importer too, for the exporter
 * may end before it; but once in all where both are of one tenant, whose arbiter keeps the ledger of it.
 */
#include "memory/vmm.h"

#define MULTICAST_BYTES (2ull << 20)

static _Atomic uint64_t numbers = 1;

static uint64_t object_new(struct slot *slot, uint64_t bytes)
{
    uint64_t number = atomic_fetch_add(&numbers, 1);
    ledger_put((struct ledger_entry){.kind = LEDGER_OBJECT, .key = number, .slot = slot, .bytes = bytes, .refs = 1},
               NULL);
    return number;
}

/* After charge_begin. */
static CUresult created(CUresult result, struct slot *slot, uint64_t handle, uint64_t bytes)
{
    if (!slot)
        return result;
    if (result == CUDA_SUCCESS)
        handle_enter(handle, object_new(slot, bytes));
    else
        memory_release(slot, bytes);
    pthread_rwlock_unlock(&slot->memory.charge_lock);
    return result;
}

/* There is no room. Properties that some drivers do not have are tried with the smallest size. */
static CUresult refused(enum aliquot_symbol symbol, const struct allocation_prop *prop, size_t unit)
{
    CUdeviceptr handle;
    if (prop->type == ALLOCATION_PINNED && !(prop->handle_types & ~SHARE_FD) && !prop->flags && !prop->security)
        return CUDA_ERROR_OUT_OF_MEMORY;
    REFUSE(true,
           (REAL_AT(symbol, CUdeviceptr *, size_t, const struct allocation_prop *, unsigned long long)(&handle, unit,
                                                                                                       prop, 0)),
           REAL(cuMemRelease, CUdeviceptr)(handle));
}

CUresult on_mem_create(enum aliquot_symbol symbol, CUdeviceptr *handle, size_t bytes,
                       const struct allocation_prop *prop, unsigned long long flags)
{
    struct slot *slot = NULL;
    size_t unit = 0;
    bool wrong = !handle || !prop || !bytes || flags ||
                 REAL(cuMemGetAllocationGranularity, size_t *, const void *, int)(&unit, prop, 0) != CUDA_SUCCESS ||
                 (unit && bytes % unit);
    ANSWER_WRONG(wrong,
                 (REAL_AT(symbol, CUdeviceptr *, size_t, const struct allocation_prop *,
                          unsigned long long)(handle, bytes, prop, flags)),
                 REAL(cuMemRelease, CUdeviceptr)(*handle));
    if (conf_load() == MODE_HELD && prop && prop->location.type == LOCATION_DEVICE)
        slot = slot_of_device(prop->location.id);
    if (slot && (!slot_attach(slot) || !charge_begin(slot, round_up(bytes, PAGE_BYTES))))
        return refused(symbol, prop, unit ? unit : PAGE_BYTES);
    CUresult result = REAL_AT(symbol, CUdeviceptr *, size_t, const struct allocation_prop *,
                              unsigned long long)(handle, bytes, prop, flags);
    return created(result, slot, handle ? *handle : 0, round_up(bytes, PAGE_BYTES));
}

/* A multicast object's own memory is small and of the driver's choosing: a granule is reserved, the measured part of it
 * charged. The memory bound to it was charged when it was created. */
CUresult on_multicast_create(enum aliquot_symbol symbol, CUdeviceptr *handle, const struct multicast_prop *prop)
{
    park_never(ALIQUOT_REPORT_PEERS);
    struct slot *slot = slot_current();
    uint64_t before = 0;
    bool own = true, still = true;
    if (!charge_begin(slot, MULTICAST_BYTES))
        REFUSE(!handle || wrong_multicast(prop),
               (REAL_AT(symbol, CUdeviceptr *, const struct multicast_prop *)(handle, prop)),
               REAL(cuMemRelease, CUdeviceptr)(*handle));
    if (slot)
        before = memory_in_use(slot, &own);
    CUresult result = REAL_AT(symbol, CUdeviceptr *, const struct multicast_prop *)(handle, prop);
    if (!slot || result != CUDA_SUCCESS)
        return created(result, slot, 0, MULTICAST_BYTES);
    uint64_t after = memory_in_use(slot, &still), taken = own == still && after > before ? after - before : 0,
             charge = taken < MULTICAST_BYTES ? taken : MULTICAST_BYTES;
    memory_release(slot, MULTICAST_BYTES - charge);
    return created(result, slot, *handle, charge);
}

/* The handle's reference is taken out first: the driver may give its value to another thread at once. */
CUresult on_mem_release(enum aliquot_symbol symbol, CUdeviceptr handle)
{
    struct ledger_entry entry;
    bool known = ledger_change(LEDGER_VMM, handle, -1, 0, &entry) != LEDGER_NONE;
    CUresult result = REAL_AT(symbol, CUdeviceptr)(handle);
    if (known && result == CUDA_SUCCESS)
        object_drop(entry.other);
    else if (known)
        handle_enter(handle, entry.other);
    return result;
}

CUresult on_mem_retain(enum aliquot_symbol symbol, CUdeviceptr *handle, void *addr)
{
    struct ledger_entry map;
    uint64_t object = 0;
    CUresult result = REAL_AT(symbol, CUdeviceptr *, void *)(handle, addr);
    if (result == CUDA_SUCCESS)
        object = object_of(*handle);
    if (result == CUDA_SUCCESS && !object && ledger_get(LEDGER_MAP, (uintptr_t)addr, &map))
        object = map.other; /* every handle was released, and this is a new one */
    if (object && object_hold(object))
        handle_enter(*handle, object);
    return result;
}

/* An imported object is charged by the largest part of it that is mapped, at the arbiter if that knows it as memory of
 * this tenant; false: over the limit. */
static bool imported_size(uint64_t object, uint64_t bytes)
{
    struct ledger_entry entry;
    bool over = false;
    if (!ledger_get(LEDGER_OBJECT, object, &entry) || !entry.other)
        return true;
    uint64_t more = bytes > entry.bytes ? bytes - entry.bytes : 0;
    if (!more || !entry.slot)
        return true;
    if (!slot_attach(entry.slot))
        return atomic_load(&entry.slot->link.state) == SLOT_REFUSED; /* memory of a GPU of others */
    if ((entry.page || !entry.bytes) &&
        memory_share(entry.slot, object, bytes, shared_descriptor(object), false, &over)) {
        ledger_change(LEDGER_OBJECT, object, 0, more, &entry);
        return true;
    }
    if ((over && entry.page) || !charge_begin(entry.slot, more))
        return false;
    if (ledger_change(LEDGER_OBJECT, object, 0, more, &entry) == LEDGER_NONE)
        memory_release(entry.slot, more);
    pthread_rwlock_unlock(&entry.slot->memory.charge_lock);
    return true;
}

CUresult on_mem_map(enum aliquot_symbol symbol, CUdeviceptr ptr, size_t bytes, size_t offset, CUdeviceptr handle,
                    unsigned long long flags)
{
    uint64_t object = object_of(handle);
    bool held = object_hold(object);
    if (held && !imported_size(object, offset + bytes)) {
        object_drop(object);
        REFUSE(true,
               (REAL_AT(symbol, CUdeviceptr, size_t, size_t, CUdeviceptr, unsigned long long)(ptr, bytes, offset,
                                                                                              handle, flags)),
               (REAL(cuMemUnmap, CUdeviceptr, size_t)(ptr, bytes)));
    }
    CUresult result = REAL_AT(symbol, CUdeviceptr, size_t, size_t, CUdeviceptr, unsigned long long)(ptr, bytes, offset,
                                                                                                    handle, flags);
    if (held && result == CUDA_SUCCESS)
        ledger_put((struct ledger_entry){.kind = LEDGER_MAP, .key = ptr, .bytes = bytes, .other = object, .refs = 1},
                   NULL);
    else if (held)
        object_drop(object);
    return result;
}

#define MAPS 64

/* Takes the next mappings of a range out. */
static unsigned take_maps(uint64_t *at, uint64_t end, struct ledger_entry *maps)
{
    unsigned count = 0;
    for (; count < MAPS && *at < end && ledger_take(LEDGER_MAP, *at, &maps[count]); count++)
        *at += maps[count].bytes;
    return count;
}

/* One call may undo several neighbouring mappings. */
CUresult on_mem_unmap(enum aliquot_symbol symbol, CUdeviceptr ptr, size_t bytes)
{
    struct ledger_entry maps[MAPS];
    uint64_t at = ptr, end = ptr + bytes;
    unsigned count = take_maps(&at, end, maps);
    CUresult result = REAL_AT(symbol, CUdeviceptr, size_t)(ptr, bytes);
    for (unsigned i = 0; i < count; i++)
        if (result == CUDA_SUCCESS)
            object_drop(maps[i].other);
        else
            ledger_put(maps[i], NULL);
    while (result == CUDA_SUCCESS && (count = take_maps(&at, end, maps)))
        for (unsigned i = 0; i < count; i++)
            object_drop(maps[i].other);
    return result;
}

/* From now on what it costs is the arbiter's to charge, to all of this tenant who hold it. */
static void exported(uint64_t object, int fd)
{
    struct ledger_entry entry;
    bool over;
    if (!object_hold(object))
        return;
    if (ledger_get(LEDGER_OBJECT, object, &entry) && entry.bytes && entry.slot)
        memory_share(entry.slot, object, entry.bytes, fd, true, &over);
    object_drop(object);
}

CUresult on_mem_export(enum aliquot_symbol symbol, void *shared, CUdeviceptr handle, int type, unsigned long long flags)
{
    park_never(ALIQUOT_REPORT_SHARED);
    uint64_t object = object_of(handle);
    CUresult result = REAL_AT(symbol, void *, CUdeviceptr, int, unsigned long long)(shared, handle, type, flags);
    if (object && result == CUDA_SUCCESS)
        exported(object, shared_note(object, type == SHARE_FD ? (void *)(intptr_t)*(int *)shared : shared, type));
    return result;
}

static bool maps_pages(CUdeviceptr range, uint64_t pages, uint64_t handle)
{
    if (REAL(cuMemMap, CUdeviceptr, size_t, size_t, CUdeviceptr, unsigned long long)(range, pages * PAGE_BYTES, 0,
                                                                                     handle, 0) != CUDA_SUCCESS)
        return false;
    REAL(cuMemUnmap, CUdeviceptr, size_t)(range, pages * PAGE_BYTES);
    return true;
}

/* The GPU whose memory a handle is, and how much; NULL: none of ours, such as a multicast object's. The driver does not
 * tell the size: it is the most that can be mapped. Where only all of it can be, every size is tried. */
static struct slot *imported_memory(uint64_t handle, uint64_t *bytes)
{
    unsigned char room[128] = {0}; /* what is read and all that may follow it */
    struct allocation_prop *prop = (void *)room;
    CUdeviceptr range;
    size_t total = 0;
    *bytes = 0;
    if (REAL(cuMemGetAllocationPropertiesFromHandle, void *, CUdeviceptr)(prop, handle) != CUDA_SUCCESS ||
        prop->location.type != LOCATION_DEVICE)
        return NULL;
    struct slot *slot = slot_of_device(prop->location.id);
    if (!slot || REAL(cuDeviceTotalMem_v2, size_t *, int)(&total, prop->location.id) != CUDA_SUCCESS)
        return slot;
    total = round_up(total, PAGE_BYTES);
    if (REAL(cuMemAddressReserve, CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long)(&range, total, 0, 0,
                                                                                                  0) != CUDA_SUCCESS)
        return slot;
    uint64_t most = total / PAGE_BYTES, pages = 1, above = most + 1;
    int mode = quietly(CAPTURE_MODE_RELAXED); /* whatever captures must not see these calls */
    if (maps_pages(range, 1, handle))
        while (above - pages > 1) {
            uint64_t middle = pages + (above - pages) / 2;
            *(maps_pages(range, middle, handle) ? &pages : &above) = middle;
        }
    else
        while (++pages <= most && !maps_pages(range, pages, handle))
            ;
    quietly(mode);
    REAL(cuMemAddressFree, CUdeviceptr, size_t)(range, total);
    *bytes = pages <= most ? pages * PAGE_BYTES : 0;
    return slot;
}

CUresult on_mem_import(enum aliquot_symbol symbol, CUdeviceptr *handle, void *shared, int type)
{
    park_never(ALIQUOT_REPORT_SHARED);
    uint64_t object = conf_load() == MODE_HELD ? shared_object(shared, type) : 0, bytes;
    CUresult result = REAL_AT(symbol, CUdeviceptr *, void *, int)(handle, shared, type);
    if (result != CUDA_SUCCESS || conf_load() != MODE_HELD) {
        object_drop(object);
        return result;
    }
    struct slot *slot = object ? NULL : imported_memory(*handle, &bytes);
    if (slot) {
        object = atomic_fetch_add(&numbers, 1);
        ledger_put((struct ledger_entry){.kind = LEDGER_OBJECT, .key = object, .slot = slot, .other = 1, .refs = 1},
                   NULL);
        shared_note(object, shared, type);
        if (!imported_size(object, bytes)) {
            REAL(cuMemRelease, CUdeviceptr)(*handle);
            object_drop(object);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    if (object)
        handle_enter(*handle, object);
    return result;
}
