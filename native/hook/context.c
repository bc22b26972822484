/* context.c: contexts cost memory of their own, hundreds of MiB; the arbiter charges its allowance before the first use
 * and corrects it by measurement. On a GPU that the tenant was not given there is no memory for a context.
 */
#include "charge.h"
#include "own.h"

static bool enter(int device, struct slot **slot)
{
    *slot = conf_load() == MODE_HELD ? slot_of_device(device) : NULL;
    return !*slot || context_reserve(*slot);
}

static CUresult created(CUresult result, struct slot *slot, void **context)
{
    thread_forget();
    if (!slot)
        return result;
    if (result != CUDA_SUCCESS) {
        context_release(slot);
        return result;
    }
    context_of(*context, true); /* now, while it is certain that this call made it */
    ledger_put((struct ledger_entry){.kind = LEDGER_CONTEXT, .key = (uintptr_t)*context, .slot = slot, .refs = 1},
               NULL);
    return result;
}

CUresult on_ctx_create(enum aliquot_symbol symbol, void **context, unsigned flags, int device)
{
    struct slot *slot;
    if (!enter(device, &slot))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return created(REAL_AT(symbol, void **, unsigned, int)(context, flags, device), slot, context);
}

CUresult on_ctx_create_v3(enum aliquot_symbol symbol, void **context, void *affinity, int count, unsigned flags,
                          int device)
{
    struct slot *slot;
    if (!enter(device, &slot))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return created(REAL_AT(symbol, void **, void *, int, unsigned, int)(context, affinity, count, flags, device), slot,
                   context);
}

CUresult on_ctx_create_v4(enum aliquot_symbol symbol, void **context, void *params, unsigned flags, int device)
{
    struct slot *slot;
    if (!enter(device, &slot))
        return CUDA_ERROR_OUT_OF_MEMORY;
    return created(REAL_AT(symbol, void **, void *, unsigned, int)(context, params, flags, device), slot, context);
}

CUresult on_ctx_destroy(enum aliquot_symbol symbol, void *context)
{
    struct ledger_entry gone;
    bool charged = conf_load() == MODE_HELD && ledger_take(LEDGER_CONTEXT, (uintptr_t)context, &gone);
    uint64_t ending = charged ? charges_ending((uintptr_t)context) : 0;
    struct gpu_context *known = context_known(context);
    if (known)
        pthread_mutex_lock(&known->slot->driver_lock);
    CUresult result = REAL_AT(symbol, void *)(context);
    if (known && result == CUDA_SUCCESS)
        context_ended(known);
    if (known)
        pthread_mutex_unlock(&known->slot->driver_lock);
    thread_forget();
    if (charged && result != CUDA_SUCCESS)
        ledger_put(gone, NULL);
    if (charged)
        charges_ended(ending, (uintptr_t)context, gone.slot, result == CUDA_SUCCESS);
    return result;
}

/* The primary context costs its allowance from its first reference to its last. False: no room for it. */
static bool primary_enter(struct slot *slot)
{
    pthread_mutex_lock(&slot->lock);
    bool first = slot->primary_refs++ == 0;
    pthread_mutex_unlock(&slot->lock);
    if (!first || context_reserve(slot))
        return true;
    pthread_mutex_lock(&slot->lock);
    slot->primary_refs--;
    pthread_mutex_unlock(&slot->lock);
    return false;
}

/* One reference is gone, or `all`; true when it was the last. */
static bool primary_leave(struct slot *slot, bool all)
{
    pthread_mutex_lock(&slot->lock);
    bool last = slot->primary_refs && (all || slot->primary_refs == 1);
    slot->primary_refs = all ? 0 : slot->primary_refs ? slot->primary_refs - 1 : 0;
    pthread_mutex_unlock(&slot->lock);
    return last;
}

CUresult on_primary_retain(enum aliquot_symbol symbol, void **context, int device)
{
    struct slot *slot = conf_load() == MODE_HELD ? slot_of_device(device) : NULL;
    if (slot && !primary_enter(slot))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = REAL_AT(symbol, void **, int)(context, device);
    if (slot && result != CUDA_SUCCESS && primary_leave(slot, false))
        context_release(slot);
    return result;
}

/* With the driver_lock held. References may be held that nobody saw taken, so the driver says whether it is gone; the
 * views of green contexts go with it. */
static void primary_forget(struct slot *slot, int device, bool last)
{
    unsigned flags;
    int active = !last;
    if (REAL(cuDevicePrimaryCtxGetState, int, unsigned *, int *)(device, &flags, &active) != CUDA_SUCCESS)
        active = !last;
    for (struct gpu_context *context = context_at(NULL); context && !active; context = context->next)
        if (context->slot == slot && context->handle && !context->created)
            context_ended(context);
}

static CUresult primary_gone(enum aliquot_symbol symbol, int device, bool all)
{
    struct slot *slot = conf_load() == MODE_HELD ? slot_of_device(device) : NULL;
    uint64_t ending = slot ? charges_ending((uintptr_t)slot) : 0;
    if (slot)
        pthread_mutex_lock(&slot->driver_lock);
    CUresult result = REAL_AT(symbol, int)(device);
    bool last = slot && result == CUDA_SUCCESS && primary_leave(slot, all);
    if (slot && result == CUDA_SUCCESS)
        primary_forget(slot, device, last);
    if (slot)
        pthread_mutex_unlock(&slot->driver_lock);
    if (slot)
        charges_ended(ending, (uintptr_t)slot, slot, last);
    thread_forget();
    return result;
}

CUresult on_primary_release(enum aliquot_symbol symbol, int device)
{
    return primary_gone(symbol, device, false);
}

/* A reset frees the context's memory but not its references: the next use makes it again. */
CUresult on_primary_reset(enum aliquot_symbol symbol, int device)
{
    return primary_gone(symbol, device, true);
}

/* A green context is a view of the primary one, which it holds; what is allocated in it belongs there. */
CUresult on_green_create(enum aliquot_symbol symbol, void **green, void *desc, int device, unsigned flags)
{
    struct slot *slot = conf_load() == MODE_HELD ? slot_of_device(device) : NULL;
    if (slot && !primary_enter(slot))
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = REAL_AT(symbol, void **, void *, int, unsigned)(green, desc, device, flags);
    if (slot && result == CUDA_SUCCESS)
        ledger_put((struct ledger_entry){.kind = LEDGER_GREEN, .key = (uintptr_t)*green, .slot = slot, .refs = 1}, NULL);
    else if (slot && primary_leave(slot, false))
        context_release(slot);
    return result;
}

/* Its work is noted under the plain context that it is seen through. */
CUresult on_green_destroy(enum aliquot_symbol symbol, void *green)
{
    struct ledger_entry gone;
    void *plain = NULL;
    if (conf_load() == MODE_HELD)
        REAL(cuCtxFromGreenCtx, void **, void *)(&plain, green);
    struct gpu_context *known = context_known(plain);
    struct slot *slot = known ? known->slot : NULL;
    if (slot)
        pthread_mutex_lock(&slot->driver_lock);
    CUresult result = REAL_AT(symbol, void *)(green);
    if (slot && result == CUDA_SUCCESS) {
        context_ended(known);
        primary_forget(slot, slot->device, false);
    }
    if (slot)
        pthread_mutex_unlock(&slot->driver_lock);
    if (result == CUDA_SUCCESS && ledger_take(LEDGER_GREEN, (uintptr_t)green, &gone) && primary_leave(gone.slot, false))
        charges_ended(charges_ending((uintptr_t)gone.slot), (uintptr_t)gone.slot, gone.slot, true);
    thread_forget();
    return result;
}
