/* burst.c: how long this program keeps a GPU busy between its own pauses.
 *
 * A burst runs from the first launch to the last sign of work before a pause of the burst gap; shorter pauses are
 * merged. The estimate is the longest burst of the last three seconds. Source: Gemini (IEEE TCC 2021), its hook.
 */
#include "slot.h"

#define MEMORY_NS 3000000000u

/* Called at each tick of the helper; `active`: something was launched or still ran since the last one. */
void burst_tick(struct slot *slot, bool active, uint64_t now)
{
    const aliquot_page *page = atomic_load(&slot->link.page);
    uint64_t gap = (page && page->burst_gap_us ? page->burst_gap_us : 2000) * 1000u;
    if (active) {
        if (slot->token.burst.start_ns == 0)
            slot->token.burst.start_ns = now;
        slot->token.burst.last_active_ns = now;
    } else if (slot->token.burst.start_ns && now - slot->token.burst.last_active_ns >= gap) {
        uint64_t burst = slot->token.burst.last_active_ns - slot->token.burst.start_ns;
        if (burst >= slot->token.burst.max_ns || now - slot->token.burst.max_at_ns > MEMORY_NS) {
            slot->token.burst.max_ns = burst;
            slot->token.burst.max_at_ns = now;
        }
        slot->token.burst.start_ns = 0;
    }
}

/* Nanoseconds; 0 = not known yet. */
uint64_t burst_estimate(struct slot *slot, uint64_t now)
{
    uint64_t best = now - slot->token.burst.max_at_ns <= MEMORY_NS ? slot->token.burst.max_ns : 0;
    uint64_t start = slot->token.burst.start_ns, last = slot->token.burst.last_active_ns;
    if (start && last > start && last - start > best)
        best = last - start;
    return best;
}
