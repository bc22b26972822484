/* longest.c: the longest launch of this process on one GPU lately, which bounds how soon a neighbour can have its turn.
 *
 * A bound from below: a launch counts as what it is known to have run, also while it is in flight, and no wait counts.
 * Its time begins when it had been launched and its predecessor in the stream was seen to have ended; it ends when the
 * launch was last seen unfinished, or by the GPU's clock, where the events of both bound it closer (backlog.c). While
 * work of other tenants runs beside it the GPU divides its time in slices, and an equal part less one slice counts. Of
 * several launches behind one checkpoint the mean counts; so single ones are sampled, and many of them where one of
 * several seems to be longer than any that was seen. One that waits for another stream of its program counts with that
 * wait, and what the program records around it counts too: a neighbour waits for all of it.
 */
#include "work/gate.h"

#define HALF_NS 10000000000u /* the longest of the last one or two of these counts */
#define TELL_NS 500000000u
#define TELL_DOUBLED_NS 10000000u
#define SUSPICIOUS_NS 100000u

/* The launches before this checkpoint ran for `low` at least. True: one of them seems to be longer than any known, were
 * the others twice as long as thought. */
bool longest_note(struct slot *slot, const struct checkpoint *point, uint64_t low)
{
    uint64_t launches = (uint64_t)point->count[LAUNCH_KERNEL] + point->count[LAUNCH_GRAPH];
    if (!launches)
        return false;
    uint64_t mean = low / launches, others = 2 * (point->cost_ns / launches) * (launches - 1);
    uint64_t before = atomic_load_explicit(&slot->work.longest.ns, memory_order_relaxed);
    while (mean > before && !atomic_compare_exchange_weak(&slot->work.longest.ns, &before, mean))
        ;
    return launches > 1 && low > others + before + before / 4 + SUSPICIOUS_NS;
}

/* The helper thread's alone; 0: not known. */
static uint64_t lately(struct slot *slot, uint64_t now)
{
    if (now - slot->work.longest.since_ns > HALF_NS) {
        slot->work.longest.before_ns = atomic_exchange(&slot->work.longest.ns, 0);
        slot->work.longest.since_ns = now;
    }
    uint64_t longest = atomic_load(&slot->work.longest.ns);
    return slot->work.longest.before_ns > longest ? slot->work.longest.before_ns : longest;
}

/* By the helper thread, in each of its rounds: sooner where the length has doubled, as that of a kernel that runs on. A value
 * that is no longer measured stays as last reported. */
void longest_tell(struct slot *slot)
{
    uint64_t now = now_ns(), boot = atomic_load(&slot->link.boot_id), since = now - slot->work.longest.told_at_ns;
    uint64_t longest = lately(slot, now), told = slot->work.longest.told_boot == boot ? slot->work.longest.told_ns : 0;
    if (!longest || since < (longest >= 2 * told ? TELL_DOUBLED_NS : TELL_NS) ||
        (longest <= told + told / 8 && longest >= told - told / 8))
        return;
    slot->work.longest.told_at_ns = now;
    if (link_report_longest(slot, longest)) {
        slot->work.longest.told_ns = longest;
        slot->work.longest.told_boot = boot;
    }
}
