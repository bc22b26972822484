/* charge.c: from a reservation to an entry and back; the same for every kind of memory. */
#include "charge.h"

#define PENDING_PATIENCE_NS 5000000000ull

struct slot *charged_slot(void)
{
    return conf_load() == MODE_HELD ? thread_slot() : NULL;
}

bool charge_undecided(struct slot **slot)
{
    int device;
    if (*slot || conf_load() != MODE_HELD)
        return false;
    if (REAL(cuCtxGetDevice, int *)(&device) != CUDA_SUCCESS)
        return true;
    struct slot *its = slot_of_device(device);
    *slot = its && slot_attach(its) ? its : NULL;
    return false;
}

__thread uint64_t charge_owner __attribute__((tls_model("initial-exec")));

uint64_t owner_new(void)
{
    static _Atomic uint64_t numbers = 1;
    struct ledger_entry owner = {.kind = LEDGER_OWNER, .key = atomic_fetch_add(&numbers, 1), .refs = 1};
    return ledger_put(owner, NULL) ? owner.key : 0;
}

static uint64_t primary_owner(struct slot *slot)
{
    uint64_t known = atomic_load(&slot->owner), mine = known ? 0 : owner_new();
    if (!mine || atomic_compare_exchange_strong(&slot->owner, &known, mine))
        return known ? known : mine;
    ledger_take_of(LEDGER_OWNER, mine, 0);
    return known;
}

uint64_t owner_now(struct slot *slot)
{
    void *context = NULL;
    struct ledger_entry entry;
    if (slot->contexts > (slot->primary_charged) && REAL(cuCtxGetCurrent, void **)(&context) == CUDA_SUCCESS &&
        ledger_get(LEDGER_CONTEXT, (uintptr_t)context, &entry))
        return entry.other;
    return primary_owner(slot);
}

/* Has the driver return what is kept unused; the bytes that may still come once frees under way are done. */
static uint64_t reclaim(struct slot *slot)
{
    int mode = quietly(CAPTURE_MODE_RELAXED);
    uint64_t coming = pools_reclaim(slot) + later_reclaim(slot) + graphs_reclaim(slot);
    quietly(mode);
    shared_reclaim();
    return coming;
}

/* Frees that streams have yet to come to are waited for where they may make room, but not during a capture, which must
 * not be waited in. */
bool charge_try(struct slot *slot, uint64_t bytes, bool (*attempt)(struct slot *, bool, void *), void *with)
{
    if (!context_noticed(slot))
        return false;
    if (pthread_rwlock_rdlock(&slot->books) != 0)
        return false; /* the driver calls back into the program at the end of the context */
    if (attempt(slot, false, with))
        return true;
    pthread_rwlock_unlock(&slot->books);
    uint64_t end = now_ns() + PENDING_PATIENCE_NS;
    for (bool more = true; more; nanosleep(&(struct timespec){0, 500000}, NULL)) {
        pthread_rwlock_wrlock(&slot->books);
        uint64_t coming = reclaim(slot);
        if (attempt(slot, true, with))
            return true;
        pthread_rwlock_unlock(&slot->books);
        more = coming && now_ns() < end && !capture_running() && memory_may_fit(slot, bytes, coming);
    }
    memory_denied(slot);
    return false;
}

static bool reserve(struct slot *slot, bool alone, void *with)
{
    (void)alone;
    return memory_reserve(slot, *(uint64_t *)with, MEMORY_ASK);
}

bool charge_begin(struct slot *slot, uint64_t bytes)
{
    if (!slot)
        return true;
    if (!charge_try(slot, bytes, reserve, &bytes))
        return false;
    charge_owner = owner_now(slot);
    return true;
}

static bool is_pointer(uint32_t kind)
{
    return kind == LEDGER_POINTER || kind == LEDGER_SMALL || kind == LEDGER_ASYNC || kind == LEDGER_LATER;
}

/* The address of memory that ended without our hearing of it may come again: its charge ends here. */
void charge_enter(struct ledger_entry entry)
{
    struct ledger_entry stale;
    for (uint32_t kind = LEDGER_POINTER; is_pointer(entry.kind) && kind <= LEDGER_LATER; kind++)
        if (kind != entry.kind && is_pointer(kind) && ledger_take(kind, entry.key, &stale))
            charge_gone(&stale);
    if (!ledger_put(entry, &stale))
        COUNT(unbalanced);
    if (stale.kind)
        charge_gone(&stale);
}

CUresult charge_end(CUresult result, struct slot *slot, uint32_t kind, uint64_t key, uint64_t bytes)
{
    if (!slot)
        return result;
    bool ends = kind == LEDGER_POINTER || kind == LEDGER_SMALL || kind == LEDGER_ARRAY || kind == LEDGER_MODULE;
    if (result == CUDA_SUCCESS)
        charge_enter((struct ledger_entry){
            .kind = kind, .key = key, .slot = slot, .bytes = bytes, .other = ends ? charge_owner : 0, .refs = 1});
    else
        memory_release(slot, bytes);
    pthread_rwlock_unlock(&slot->books);
    return result;
}

void charge_gone(const struct ledger_entry *entry)
{
    if (entry->page)
        page_leave(entry);
    if (entry->kind == LEDGER_ASYNC)
        pool_lost(entry);
    else if (entry->kind != LEDGER_SMALL)
        memory_release(entry->slot, entry->bytes);
}

CUresult charge_freed(CUresult result, bool known, const struct ledger_entry *entry)
{
    if (known && result == CUDA_SUCCESS)
        charge_gone(entry);
    else if (known)
        charge_enter(*entry);
    return result;
}

void owner_ended(uint64_t owner)
{
    struct ledger_entry some[32];
    unsigned count;
    if (!owner || !ledger_take_of(LEDGER_OWNER, owner, 0))
        return;
    while ((count = ledger_take_owned(owner, some, 32)))
        for (unsigned i = 0; i < count; i++)
            charge_gone(&some[i]);
}
