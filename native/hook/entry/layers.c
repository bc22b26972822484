/* layers.c: what the layers do for those below them; the only place that knows all of them. */
#include "entry/entry.h"
#include "memory/charge.h"
#include "work/own.h"

static void slot_is_made(struct slot *slot)
{
    pthread_mutex_init(&slot->work.driver_lock, NULL);
    pthread_mutexattr_t again; /* the driver may call back into the program when a context ends */
    pthread_mutexattr_init(&again);
    pthread_mutexattr_settype(&again, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&slot->memory.primary_lock, &again);
    pthread_rwlockattr_t alone_first;
    pthread_rwlockattr_init(&alone_first);
    pthread_rwlockattr_setkind_np(&alone_first, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
    pthread_rwlock_init(&slot->memory.charge_lock, &alone_first);
    atomic_store(&slot->token.given_back, ~0u);
}

static void page_is_open(void)
{
    park_update();
    gate_look_anew();
}

/* A process that comes while its tenant is parked has no thread yet that says so. */
static void slot_is_attached(struct slot *slot)
{
    helper_start(slot);
    park_look();
}

const struct above aliquot_above = {
    .slot_is_made = slot_is_made,
    .process_speaks = fork_watch,
    .page_is_opening = token_begins,
    .page_is_open = page_is_open,
    .arbiter_is_new = memory_restore,
    .slot_is_attached = slot_is_attached,
    .helper_looks = memory_tick,
    .capture_is_abandoned = graph_abandoned,
    .memory_is_scarce = reclaim,
};
