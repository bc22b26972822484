/* context.c: contexts cost memory of their own, hundreds of MiB; the arbiter charges its allowance before the first use
 * and corrects it by measurement. On a GPU that the tenant was not given there is no memory for a context.
 */
#include "memory/charge.h"
#include "work/own.h"

static bool enter(void **context, int device, struct slot **slot)
{
    *slot = context && conf_load() == MODE_HELD ? slot_of_device(device) : NULL;
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
    context_entered(*context, slot); /* now, while it is certain that this call made it */
    return result;
}

CUresult on_ctx_create(enum aliquot_symbol symbol, void **context, unsigned flags, int device)
{
    struct slot *slot;
    if (!enter(context, device, &slot))
        REFUSE(wrong_context_flags(flags), (REAL_AT(symbol, void **, unsigned, int)(context, flags, device)),
               REAL(cuCtxDestroy_v2, void *)(*context));
    return created(REAL_AT(symbol, void **, unsigned, int)(context, flags, device), slot, context);
}

CUresult on_ctx_create_v3(enum aliquot_symbol symbol, void **context, void *affinity, int count, unsigned flags,
                          int device)
{
    struct slot *slot;
    if (!enter(context, device, &slot))
        REFUSE(wrong_context_flags(flags) || count < 0 || (count && !affinity),
               (REAL_AT(symbol, void **, void *, int, unsigned, int)(context, affinity, count, flags, device)),
               REAL(cuCtxDestroy_v2, void *)(*context));
    return created(REAL_AT(symbol, void **, void *, int, unsigned, int)(context, affinity, count, flags, device), slot,
                   context);
}

CUresult on_ctx_create_v4(enum aliquot_symbol symbol, void **context, void *params, unsigned flags, int device)
{
    struct slot *slot;
    if (!enter(context, device, &slot))
        REFUSE(wrong_context_flags(flags),
               (REAL_AT(symbol, void **, void *, unsigned, int)(context, params, flags, device)),
               REAL(cuCtxDestroy_v2, void *)(*context));
    return created(REAL_AT(symbol, void **, void *, unsigned, int)(context, params, flags, device), slot, context);
}

CUresult on_ctx_destroy(enum aliquot_symbol symbol, void *context)
{
    struct ledger_entry gone; /* found until the driver has ended it: other threads may be allocating in it */
    bool charged = conf_load() == MODE_HELD && ledger_get(LEDGER_CONTEXT, (uintptr_t)context, &gone);
    struct gpu_context *known = context_known(context);
    uint64_t life = known ? context_ends(known) : 0;
    CUresult result = REAL_AT(symbol, void *)(context);
    if (known)
        context_ended(known, life, result == CUDA_SUCCESS);
    thread_forget();
    if (charged && result == CUDA_SUCCESS) {
        ledger_take_of(LEDGER_CONTEXT, (uintptr_t)context, gone.other); /* not a new one's with the same handle */
        owner_ended(gone.other);
        context_release(gone.slot);
    }
    captures_abandoned();
    return result;
}

/* The primary context costs its allowance while the driver says it is active: references are taken and dropped past us
 * too. Between primary_enter() and primary_leave() the slot's primary_lock is held, so that no thread releases what
 * another is about to reserve. False: no room for it. */
static bool primary_enter(struct slot *slot)
{
    pthread_mutex_lock(&slot->memory.primary_lock);
    if (!slot->memory.primary_charged)
        slot->memory.primary_charged = context_reserve(slot);
    return slot->memory.primary_charged;
}

static void primary_leave(struct slot *slot)
{
    if (slot->memory.primary_charged && !primary_active(slot->link.device)) {
        slot->memory.primary_charged = false;
        context_release(slot);
    }
    pthread_mutex_unlock(&slot->memory.primary_lock);
}

CUresult on_primary_retain(enum aliquot_symbol symbol, void **context, int device)
{
    struct slot *slot = context && conf_load() == MODE_HELD ? slot_of_device(device) : NULL;
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    if (!slot || primary_enter(slot))
        result = REAL_AT(symbol, void **, int)(context, device);
    if (slot)
        primary_leave(slot);
    return result;
}

/* The primary context may end, and the views of green ones with it. The driver may wait for their work, so no lock is held
 * meanwhile but primary_lock, as in a driver: no thread takes a reference until the end is accounted for. */
static void primary_ends(struct slot *slot)
{
    pthread_mutex_lock(&slot->memory.primary_lock);
    pthread_mutex_lock(&slot->work.driver_lock);
    for (struct gpu_context *view = context_at(NULL); view; view = view->next)
        if (view->slot == slot && view->handle && !view->created && !view->view_ending) {
            view->view_ending = true;
            view->ending++;
        }
    pthread_mutex_unlock(&slot->work.driver_lock);
}

/* The driver has answered. */
static void views_ended(struct slot *slot, bool gone)
{
    pthread_mutex_lock(&slot->work.driver_lock);
    for (struct gpu_context *view = context_at(NULL); view; view = view->next) {
        if (view->slot != slot || !view->handle || view->created)
            continue;
        view->ending -= view->view_ending;
        view->view_ending = false;
        if (gone)
            context_forget(view);
    }
    pthread_mutex_unlock(&slot->work.driver_lock);
}

/* What is allocated from now on belongs to another; no allocation is under way. */
static uint64_t owner_taken(struct slot *slot)
{
    pthread_rwlock_wrlock(&slot->memory.charge_lock);
    uint64_t owner = atomic_exchange(&slot->memory.owner, 0);
    pthread_rwlock_unlock(&slot->memory.charge_lock);
    return owner;
}

static void primary_ended(struct slot *slot, uint64_t owner)
{
    owner_ended(owner);
    captures_abandoned();
    primary_leave(slot);
    thread_forget();
}

static CUresult primary_release(struct slot *slot, enum aliquot_symbol symbol)
{
    primary_ends(slot);
    CUresult result = REAL_AT(symbol, int)(slot->link.device);
    bool gone = result == CUDA_SUCCESS && !primary_active(slot->link.device);
    views_ended(slot, gone);
    primary_ended(slot, gone ? owner_taken(slot) : 0);
    return result;
}

CUresult on_primary_release(enum aliquot_symbol symbol, int device)
{
    struct slot *slot = conf_load() == MODE_HELD ? slot_of_device(device) : NULL;
    return slot ? primary_release(slot, symbol) : REAL_AT(symbol, int)(device);
}

/* A reset frees the context's memory but not its references: the next use makes it again, under the same handle, and that
 * may be before the driver has answered. So what it held is told from what it will hold before the driver is asked. */
CUresult on_primary_reset(enum aliquot_symbol symbol, int device)
{
    struct slot *slot = conf_load() == MODE_HELD ? slot_of_device(device) : NULL;
    if (!slot)
        return REAL_AT(symbol, int)(device);
    primary_ends(slot);
    uint64_t owner = owner_taken(slot), none = 0;
    CUresult result = REAL_AT(symbol, int)(device);
    views_ended(slot, result == CUDA_SUCCESS);
    if (result != CUDA_SUCCESS && atomic_compare_exchange_strong(&slot->memory.owner, &none, owner))
        owner = 0;
    primary_ended(slot, result == CUDA_SUCCESS ? owner : 0);
    return result;
}

/* A green context is a view of the primary one, which it holds; what is allocated in it belongs there. */
CUresult on_green_create(enum aliquot_symbol symbol, void **green, void *desc, int device, unsigned flags)
{
    struct slot *slot = conf_load() == MODE_HELD ? slot_of_device(device) : NULL;
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    bool room = !slot || primary_enter(slot);
    if (room || !green || !desc || flags != GREEN_DEFAULT_STREAM)
        result = REAL_AT(symbol, void **, void *, int, unsigned)(green, desc, device, flags);
    if (!room && result == CUDA_SUCCESS) {
        REAL(cuGreenCtxDestroy, void *)(*green);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (slot)
        primary_leave(slot);
    return result;
}

/* Its work is noted under the plain context that it is seen through. The driver waits for that work and then drops a
 * reference to the primary context, which it does not wait for as long as we have one: so what other threads do with the
 * primary context meanwhile need not wait either, and its end is that of our reference. */
CUresult on_green_destroy(enum aliquot_symbol symbol, void *green)
{
    void *plain = NULL, *primary;
    if (conf_load() == MODE_HELD)
        REAL(cuCtxFromGreenCtx, void **, void *)(&plain, green);
    struct gpu_context *known = context_of(plain, false);
    struct slot *slot = known ? known->slot : NULL;
    if (!slot)
        return REAL_AT(symbol, void *)(green);
    bool held = primary_active(slot->link.device) && /* a reset ended it: it is not to come back */
                REAL(cuDevicePrimaryCtxRetain, void **, int)(&primary, slot->link.device) == CUDA_SUCCESS;
    uint64_t life = context_ends(known);
    CUresult result = REAL_AT(symbol, void *)(green);
    context_ended(known, life, result == CUDA_SUCCESS);
    captures_abandoned();
    thread_forget();
    if (held)
        primary_release(slot, SYM_cuDevicePrimaryCtxRelease_v2);
    return result;
}
