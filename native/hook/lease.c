/* lease.c: bytes of this GPU's memory limit.
 *
 * The arbiter leases slabs to the process, so that most allocations ask nobody; what is leased and not used is ours to
 * use or give back. Reserve before the driver is called: over the limit the driver never hears of it.
 */
#include "hook.h"

#define PATIENCE_MS 3000

/* Asks for at least `bytes`, likes a slab. Waits a while for an arbiter that is being restarted. */
static uint64_t lease(struct slot *slot, uint64_t bytes, uint16_t flags)
{
    for (unsigned waited = 0; waited < PATIENCE_MS; waited += 20) {
        uint64_t liked = flags ? bytes : bytes + SLAB_BYTES;
        aliquot_message ask = {
            .type = ALIQUOT_MSG_RESERVE, .flags = flags, .gpu = slot->number, .a = bytes, .b = liked};
        if (atomic_load(&slot->state) == SLOT_HELD && link_ask(&ask, ALIQUOT_MSG_LEASE, NULL))
            return ask.type == ALIQUOT_MSG_LEASE ? ask.a : 0;
        pthread_mutex_unlock(&slot->lock);
        link_revive();
        nanosleep(&(struct timespec){0, 20000000}, NULL);
        pthread_mutex_lock(&slot->lock);
    }
    return 0;
}

bool memory_reserve(struct slot *slot, uint64_t bytes)
{
    pthread_mutex_lock(&slot->lock);
    if (slot->unused < bytes) {
        uint64_t granted = lease(slot, bytes - slot->unused, 0);
        slot->unused += granted;
        slot->leased += granted;
    }
    bool fits = slot->unused >= bytes;
    if (fits)
        slot->unused -= bytes;
    else
        COUNT(denied);
    pthread_mutex_unlock(&slot->lock);
    return fits;
}

void memory_release(struct slot *slot, uint64_t bytes)
{
    pthread_mutex_lock(&slot->lock);
    slot->unused += bytes;
    if (slot->unused > 2 * SLAB_BYTES) {
        aliquot_message back = {
            .type = ALIQUOT_MSG_RELEASE, .gpu = slot->number, .a = slot->unused - SLAB_BYTES};
        if (link_send(&back)) {
            slot->leased -= back.a;
            slot->unused -= back.a;
        }
    }
    pthread_mutex_unlock(&slot->lock);
}

/* A context's own memory is measured by the arbiter; the first guess is its allowance. */
bool context_reserve(struct slot *slot)
{
    if (!slot_attach(slot)) {
        COUNT(denied);
        return false;
    }
    pthread_mutex_lock(&slot->lock);
    uint64_t granted = lease(slot, 0, ALIQUOT_RESERVE_CONTEXT);
    if (granted) {
        slot->contexts++;
        slot->context_each = granted;
        slot->context_bytes += granted;
    } else {
        COUNT(denied);
    }
    pthread_mutex_unlock(&slot->lock);
    if (granted)
        helper_start(slot); /* it notices a restarted arbiter for programs that only hold memory */
    return granted != 0;
}

void context_release(struct slot *slot)
{
    pthread_mutex_lock(&slot->lock);
    if (slot->contexts) {
        slot->contexts--;
        slot->context_bytes -= slot->context_each;
        aliquot_message back = {.type = ALIQUOT_MSG_RELEASE,
                                .flags = ALIQUOT_RESERVE_CONTEXT,
                                .gpu = slot->number,
                                .a = slot->context_each};
        link_send(&back);
    }
    pthread_mutex_unlock(&slot->lock);
}

/* After a reconnect, with slot->lock held: the new arbiter learns what we hold. */
void memory_restore(struct slot *slot)
{
    aliquot_message ask;
    for (unsigned i = 0; i < slot->contexts; i++) {
        ask = (aliquot_message){.type = ALIQUOT_MSG_RESERVE,
                                .flags = ALIQUOT_RESERVE_CONTEXT | ALIQUOT_RESERVE_RESTORE,
                                .gpu = slot->number};
        link_ask(&ask, ALIQUOT_MSG_LEASE, NULL);
    }
    if (slot->leased == 0)
        return;
    ask = (aliquot_message){.type = ALIQUOT_MSG_RESERVE,
                            .flags = ALIQUOT_RESERVE_RESTORE,
                            .gpu = slot->number,
                            .a = slot->leased,
                            .b = slot->leased};
    link_ask(&ask, ALIQUOT_MSG_LEASE, NULL);
}

uint64_t memory_held(struct slot *slot)
{
    return slot->leased - slot->unused;
}
