/* stats.c: counters for tests and benches. Nothing in production reads them. */
#include "entry/entry.h"

#include <string.h>

int aliquot_stats(struct aliquot_stats *out)
{
    struct aliquot_stats stats = {.size = sizeof stats};
    bool inside;
    for (unsigned i = 0; slot_at(i); i++) {
        struct slot *slot = slot_at(i);
        stats.launches += slot_launches(slot, &inside);
        pthread_mutex_lock(&slot->link.lock);
        stats.reserved_bytes += memory_held(slot);
        stats.leased_bytes += slot->memory.leased;
        stats.unused_bytes += slot->memory.unused;
        pthread_mutex_unlock(&slot->link.lock);
    }
    stats.mode = (uint64_t)atomic_load(&aliquot_mode);
    stats.waits = atomic_load(&aliquot_counters.waits);
    stats.passes = atomic_load(&aliquot_counters.passes);
    stats.unknown_names = atomic_load(&aliquot_counters.unknown);
    stats.mapped_symbols = atomic_load(&aliquot_counters.mapped);
    stats.names = ALIQUOT_SYMBOL_COUNT;
    stats.wants = atomic_load(&aliquot_counters.wants);
    stats.returns = atomic_load(&aliquot_counters.returns);
    stats.drains = atomic_load(&aliquot_counters.drains);
    stats.reconnects = atomic_load(&aliquot_counters.reconnects);
    stats.ledger_entries = ledger_count();
    stats.denied = atomic_load(&aliquot_counters.denied);
    stats.bounded = atomic_load(&aliquot_counters.bounded);
    stats.captures = (uint64_t)atomic_load(&gate_shared.captures);
    stats.events = atomic_load(&aliquot_counters.events);
    stats.fenced = (uint64_t)atomic_load(&gate_shared.fence);
    stats.disagreed = atomic_load(&aliquot_counters.disagreed);
    stats.unbalanced = atomic_load(&aliquot_counters.unbalanced);
    if (!out || out->size < sizeof out->size)
        return -1;
    memcpy(out, &stats, out->size < sizeof stats ? out->size : sizeof stats);
    return 0;
}
