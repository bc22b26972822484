/* view.c: the tenant's own GPU: its total is its limit, its free what is left of both limit and device, where what is lent
 * to others is as good as free. Also cuInit. */
#include "memory/charge.h"

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* The limit and what is free under it, for a device that has `real_free` and `real_total`. */
static void seen(struct slot *slot, uint64_t *free_bytes, uint64_t *total_bytes)
{
    const aliquot_page *page = atomic_load(&slot->link.page);
    if (!page)
        return;
    uint64_t limit = least(__atomic_load_n(&page->memory_limit_bytes, __ATOMIC_RELAXED), *total_bytes);
    uint64_t charged = memory_charged(slot, page);
    *free_bytes = least(*free_bytes + page->memory_lent_bytes, limit > charged ? limit - charged : 0);
    *total_bytes = limit;
}

CUresult on_init(enum aliquot_symbol symbol, unsigned flags)
{
    if (conf_load() == MODE_BROKEN)
        return CUDA_ERROR_SYSTEM_NOT_READY;
    return REAL_AT(symbol, unsigned)(flags);
}

static uint64_t total_of(int device, uint64_t real)
{
    struct slot *slot = conf_load() == MODE_HELD ? slot_of_device(device) : NULL;
    uint64_t unused = real;
    if (slot && slot_view(slot))
        seen(slot, &unused, &real);
    return real;
}

/* In the two widths of sizes: 64 bits, and the 32 of the first interface (_v1). */
#define MEM_GET_INFO(name, size)                                                                                       \
    CUresult name(enum aliquot_symbol symbol, size *free_bytes, size *total_bytes)                                     \
    {                                                                                                                  \
        size free_real = 0, total_real = 0;                                                                            \
        CUresult result = REAL_AT(symbol, size *, size *)(&free_real, &total_real);                                    \
        struct slot *slot = result == CUDA_SUCCESS ? slot_current() : NULL;                                            \
        uint64_t free_seen = free_real, total_seen = total_real;                                                       \
        if (slot) {                                                                                                    \
            reclaim_now();                                                                                             \
            seen(slot, &free_seen, &total_seen);                                                                       \
        }                                                                                                              \
        if (free_bytes && result == CUDA_SUCCESS)                                                                      \
            *free_bytes = (size)free_seen;                                                                             \
        if (total_bytes && result == CUDA_SUCCESS)                                                                     \
            *total_bytes = (size)total_seen;                                                                           \
        return result;                                                                                                 \
    }
MEM_GET_INFO(on_mem_get_info, size_t)
MEM_GET_INFO(on_mem_get_info_v1, unsigned)

#define TOTAL_MEM(name, size)                                                                                          \
    CUresult name(enum aliquot_symbol symbol, size *bytes, int device)                                                 \
    {                                                                                                                  \
        CUresult result = REAL_AT(symbol, size *, int)(bytes, device);                                                 \
        if (result == CUDA_SUCCESS)                                                                                    \
            *bytes = (size)total_of(device, *bytes);                                                                   \
        return result;                                                                                                 \
    }
TOTAL_MEM(on_total_mem, size_t)
TOTAL_MEM(on_total_mem_v1, unsigned)

/* For nvmlview.c, whose calls do not wait while the tenant is parked: then the driver is not asked for anything. */
void view_of_slot(struct slot *slot, uint64_t *free_bytes, uint64_t *total_bytes)
{
    if (park_try_enter()) {
        reclaim_now();
        park_leave(NULL);
    }
    seen(slot, free_bytes, total_bytes);
}
