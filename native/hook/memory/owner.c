/* owner.c: which context pays for itself and owns what is allocated in it.
 *
 * What ends with a context stands in the ledger under its owner, a number that is never used again; handles are.
 */
#include "memory/charge.h"
#include "work/own.h"

uint64_t owner_new(void)
{
    static _Atomic uint64_t numbers = 1;
    struct ledger_entry owner = {.kind = LEDGER_OWNER, .key = atomic_fetch_add(&numbers, 1), .refs = 1};
    return ledger_put(owner, NULL) ? owner.key : 0;
}

static uint64_t primary_owner(struct slot *slot)
{
    uint64_t known = atomic_load(&slot->memory.owner), mine = known ? 0 : owner_new();
    if (!mine || atomic_compare_exchange_strong(&slot->memory.owner, &known, mine))
        return known ? known : mine;
    ledger_take_of(LEDGER_OWNER, mine, 0);
    return known;
}

uint64_t owner_now(struct slot *slot)
{
    void *context = NULL;
    struct ledger_entry entry;
    if (slot->memory.contexts > (slot->memory.primary_charged) &&
        REAL(cuCtxGetCurrent, void **)(&context) == CUDA_SUCCESS &&
        ledger_get(LEDGER_CONTEXT, (uintptr_t)context, &entry))
        return entry.other;
    return primary_owner(slot);
}

/* A context that is not the primary one has been charged. */
void context_entered(void *context, struct slot *slot)
{
    context_of(context, true);
    ledger_put(
        (struct ledger_entry){
            .kind = LEDGER_CONTEXT, .key = (uintptr_t)context, .slot = slot, .other = owner_new(), .refs = 1},
        NULL);
}

bool primary_active(int device)
{
    unsigned flags;
    int active = 0;
    return REAL(cuDevicePrimaryCtxGetState, int, unsigned *, int *)(device, &flags, &active) == CUDA_SUCCESS && active;
}

/* A context that was made past us, by a private table of the driver's say, is charged before the first allocation that
 * its GPU pays for. False: no room for it. */
bool context_noticed(struct slot *slot)
{
    void *context = NULL;
    int device = -1;
    if (slot->memory.contexts || REAL(cuCtxGetCurrent, void **)(&context) != CUDA_SUCCESS || !context ||
        REAL(cuCtxGetDevice, int *)(&device) != CUDA_SUCCESS || device != slot->link.device)
        return true;
    pthread_mutex_lock(&slot->memory.primary_lock);
    bool seen = slot->memory.contexts ||
                REAL(cuCtxGetDevice, int *)(&device) != CUDA_SUCCESS; /* it has ended meanwhile */
    bool good = seen || context_reserve(slot);
    if (good && !seen && primary_active(device))
        slot->memory.primary_charged = true;
    else if (good && !seen)
        context_entered(context, slot);
    pthread_mutex_unlock(&slot->memory.primary_lock);
    return good;
}
