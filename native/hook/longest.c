/* longest.c: the longest launch of this process on one GPU lately, which bounds how soon a neighbour can have its turn.
 *
 * Recorded where a checkpoint is reached; the helper thread reports a change to the arbiter. What it reports is
 * an estimate: not less than what was proven, not more than what the longest burst leaves room for.
 */
#include "gate.h"

#define HALF_NS 10000000000u /* the longest of the last one or two of these counts */
#define TELL_NS 500000000u
#define ROUGH_NS 2000000u /* the helper finds the ends of bursts by looking now and then */
#define UNKNOWN_NS 50000000u /* what backlog.c takes a launch for before it knows */

/* A checkpoint was reached: the launches before it took `low` at least. */
void longest_note(const struct gate_entry *entry, const struct checkpoint *point, uint64_t low)
{
    struct slot *slot = entry->record->slot;
    const uint64_t *cost = entry->record->cost_ns;
    uint64_t launches = (uint64_t)point->count[LAUNCH_KERNEL] + point->count[LAUNCH_GRAPH], longest = 0;
    if (!launches)
        return;
    uint64_t mean = low / launches, least = cost[LAUNCH_KERNEL] < mean ? cost[LAUNCH_KERNEL] : mean;
    longest = low - (launches - 1) * least; /* the others took what such launches take, or no more than the mean */
    for (unsigned i = 0; i < 2; i++)
        if (point->count[i] && cost[i] != UNKNOWN_NS && cost[i] > longest)
            longest = cost[i];
    uint64_t before = atomic_load_explicit(&slot->longest_ns, memory_order_relaxed);
    while (longest > before && !atomic_compare_exchange_weak(&slot->longest_ns, &before, longest))
        ;
}

/* The helper thread's alone; 0: not known. */
static uint64_t lately(struct slot *slot, uint64_t now)
{
    if (now - slot->longest_since_ns > HALF_NS) {
        slot->longest_before_ns = atomic_exchange(&slot->longest_ns, 0);
        slot->longest_since_ns = now;
    }
    uint64_t longest = atomic_load(&slot->longest_ns), burst = burst_estimate(slot, now);
    if (slot->longest_before_ns > longest)
        longest = slot->longest_before_ns;
    return burst && burst + ROUGH_NS < longest ? burst + ROUGH_NS : longest;
}

/* By the helper thread, in each of its rounds. A value that is no longer measured stays as last reported. */
void longest_tell(struct slot *slot)
{
    uint64_t now = now_ns(), boot = atomic_load(&slot->boot_id);
    if (now - slot->longest_told_at_ns < TELL_NS)
        return;
    slot->longest_told_at_ns = now;
    uint64_t longest = lately(slot, now), told = slot->longest_told_boot == boot ? slot->longest_told_ns : 0;
    if (!longest || (longest <= told + told / 8 && longest >= told - told / 8))
        return;
    if (link_report_longest(slot, longest)) {
        slot->longest_told_ns = longest;
        slot->longest_told_boot = boot;
    }
}
