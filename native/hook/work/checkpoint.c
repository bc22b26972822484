/* checkpoint.c: when the events behind launches are reached, as far as is seen.
 *
 * The thread that launches looks when it has to know how much is queued; the helper thread looks at what is in flight
 * meanwhile, since the other may wait for it in the driver. Both do so with the driver_lock held, each note is of its
 * own moment, and only the thread takes a checkpoint out.
 */
#include "work/gate.h"
#include "work/own.h"

#define WATCH_NS 1000000u
#define LOOKS_AT_ONCE 64
#define SLICE_NS 2000000u /* of a GPU whose processes take turns: what a driver sets by default */

/* Within an own call: the part of the time until now that other tenants' work is thought to have had on the GPU. */
uint64_t checkpoint_shared(struct slot *slot, uint64_t now)
{
    const aliquot_page *page = atomic_load(&slot->link.page);
    uint32_t others = page ? page_overlapping(page) : 0, most = others > slot->work.others ? others : slot->work.others;
    if (now <= slot->work.shared_at_ns)
        return slot->work.shared_ns;
    uint64_t span = now - slot->work.shared_at_ns;
    slot->work.shared_ns += most ? span - span / (most + 1) : 0;
    slot->work.shared_at_ns = now;
    slot->work.others = others;
    return slot->work.shared_ns;
}

/* Of a time between two looks at the GPU, what was certainly not other tenants': they have theirs in slices. */
uint64_t checkpoint_unshared(uint64_t from, uint64_t until, uint64_t shared_from, uint64_t shared_until)
{
    uint64_t lost = shared_until > shared_from ? shared_until - shared_from + SLICE_NS : 0;
    return until > from + lost ? until - from - lost : 0;
}

/* Within an own call. The clock is read before a query for what has not been reached and after it for what has: the
 * thread may lose its processor in between. */
bool checkpoint_reached(struct slot *slot, struct checkpoint *point)
{
    if (point->reached_ns)
        return true;
    uint64_t asked = now_ns();
    if (!event_done(point->event)) {
        point->unfinished_ns = asked;
        point->unfinished_shared = checkpoint_shared(slot, asked);
        return false;
    }
    point->reached_ns = now_ns();
    point->reached_shared = checkpoint_shared(slot, point->reached_ns);
    return true;
}

/* Nanoseconds of the GPU's clock from one reached checkpoint to another; 0: not known. */
uint64_t checkpoint_between(const struct checkpoint *earlier, const struct checkpoint *later)
{
    float ms = 0;
    CUresult result = REAL(cuEventElapsedTime, float *, void *, void *)(&ms, earlier->event, later->event);
    return result == CUDA_SUCCESS && ms > 0 ? (uint64_t)((double)ms * 1e6) : 0;
}

/* From now on the helper looks at it; within an own call. */
void checkpoint_watch(struct gate_entry *entry)
{
    if (entry->watched)
        return;
    entry->watched = true;
    entry->next_watched = entry->context->watched;
    entry->context->watched = entry;
}

/* With the driver_lock held. */
void checkpoint_unwatch(struct gate_entry *entry)
{
    struct gate_entry **at = &entry->context->watched;
    while (*at && *at != entry)
        at = &(*at)->next_watched;
    if (*at)
        *at = entry->next_watched;
}

/* What is in flight counts as what it has run so far. */
static void look(struct slot *slot, struct gate_entry *entry)
{
    uint64_t ended = entry->backlog.ended_high_ns, shared = entry->backlog.ended_shared;
    for (unsigned i = 0; i < entry->backlog.used; i++) {
        struct checkpoint *point = &entry->backlog.ring[(entry->backlog.first + i) % CHECKPOINT_PLACES];
        if (!checkpoint_reached(slot, point)) {
            uint64_t from = point->recorded_ns > ended ? point->recorded_ns : ended;
            uint64_t before = point->recorded_shared > shared ? point->recorded_shared : shared;
            uint64_t ran = checkpoint_unshared(from, point->unfinished_ns, before, point->unfinished_shared);
            (void)longest_note(slot, point, ran);
            return;
        }
        ended = point->reached_ns;
        shared = point->reached_shared;
    }
}

/* By the helper thread, while anything may be in flight; never waits. */
void checkpoints_look(struct slot *slot, bool now_or_never)
{
    uint64_t now = now_ns();
    if (now - slot->work.watched_ns < WATCH_NS && !now_or_never)
        return;
    slot->work.watched_ns = now;
    for (struct gpu_context *context = context_at(NULL); context; context = context->next) {
        struct own_call call;
        unsigned looks = 0;
        if (context->slot != slot || !__atomic_load_n(&context->handle, __ATOMIC_ACQUIRE) ||
            own_begin(&call, context, context->life, OWN_LOOK) != OWN_YES)
            continue;
        for (struct gate_entry *entry = context->watched; entry && looks < LOOKS_AT_ONCE; entry = entry->next_watched)
            if (entry->backlog.used && ++looks)
                look(slot, entry);
        own_end(&call);
    }
}
