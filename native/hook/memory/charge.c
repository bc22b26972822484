/* charge.c: from a reservation to an entry and back; the same for every kind of memory. */
#include "memory/pool.h"

#define PENDING_PATIENCE_NS 5000000000ull

_Atomic int memory_freed;
__thread uint64_t charge_owner __attribute__((tls_model("initial-exec")));

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

/* Frees that streams have yet to come to are waited for where they may make room, but not during a capture, which must
 * not be waited in. */
bool charge_try(struct slot *slot, uint64_t bytes, bool (*attempt)(struct slot *, bool, void *), void *with)
{
    if (!context_noticed(slot))
        return false;
    if (pthread_rwlock_rdlock(&slot->memory.charge_lock) != 0)
        return false; /* the driver calls back into the program at the end of the context */
    if (attempt(slot, false, with))
        return true;
    pthread_rwlock_unlock(&slot->memory.charge_lock);
    uint64_t end = now_ns() + PENDING_PATIENCE_NS;
    for (bool more = true; more; nanosleep(&(struct timespec){0, 500000}, NULL)) {
        pthread_rwlock_wrlock(&slot->memory.charge_lock);
        uint64_t coming = aliquot_above.memory_is_scarce(slot);
        if (attempt(slot, true, with))
            return true;
        pthread_rwlock_unlock(&slot->memory.charge_lock);
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
    pthread_rwlock_unlock(&slot->memory.charge_lock);
    return result;
}

void page_leave(const struct ledger_entry *entry)
{
    struct ledger_entry gone;
    if (ledger_change(LEDGER_PAGE, entry->page, -1, 0, &gone) == LEDGER_GONE)
        memory_release(entry->slot, PAGE_BYTES);
}

/* A pointer of a pool has been freed; the pool may hold its memory on. */
static void pool_lost(const struct ledger_entry *entry)
{
    struct pool *pool = (struct pool *)(uintptr_t)entry->other;
    atomic_fetch_sub(&pool->living, entry->bytes);
    atomic_store(&pool->freed, 1);
    reclaim_later();
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
