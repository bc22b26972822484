/* reclaim.c: memory that the driver keeps though the program has freed it comes back.
 *
 * When an allocation finds no room, at once and from everything; else at completion points, at most once a millisecond,
 * from what something was freed of.
 */
#include "memory/pool.h"

#define REFRESH_NS 1000000ull
#define SHARED_NS 100000000ull /* descriptors are looked through */

static _Atomic uint64_t next_refresh_ns, next_shared_ns;

/* Has the driver return what is kept unused; the bytes that may still come once frees under way are done. */
uint64_t reclaim(struct slot *slot)
{
    int mode = quietly(CAPTURE_MODE_RELAXED);
    uint64_t coming = pools_settle(slot, true) + later_reclaim(slot) + graphs_reclaim(slot);
    quietly(mode);
    shared_reclaim();
    return coming;
}

/* At a completion point. */
void reclaim_at_completion(void)
{
    if (!atomic_load_explicit(&memory_freed, memory_order_relaxed) || capture_running())
        return;
    uint64_t now = now_ns(), due = atomic_load(&next_refresh_ns);
    if (now < due || !atomic_compare_exchange_strong(&next_refresh_ns, &due, now + REFRESH_NS))
        return;
    UNCANCELLED();
    atomic_store(&memory_freed, 0);
    int mode = quietly(CAPTURE_MODE_RELAXED);
    pools_settle(NULL, false);
    bool more = later_reclaim(NULL) | graphs_reclaim(NULL);
    quietly(mode);
    if (now >= atomic_load(&next_shared_ns)) {
        atomic_store(&next_shared_ns, now + SHARED_NS);
        shared_reclaim();
    }
    if (more || shares_are_kept)
        reclaim_later();
}

void reclaim_now(void)
{
    if (!atomic_load(&memory_freed))
        return;
    atomic_store(&next_refresh_ns, 0);
    atomic_store(&next_shared_ns, 0);
    reclaim_at_completion();
}
