/* fail.c: what happens when the arbiter is not there. The one table of the failure policy.
 *
 *   seen                                         pace               open            closed
 *   connection lost, grant still valid           launch until its deadline (all three)
 *   connection lost, grant over                  run r x 100 ms,    launch freely   wait
 *                                                sleep the rest
 *   arbiter back (new boot id)                   attach again, restore the books, wait for a grant (all three)
 *   never reached (no socket at start)           as `pace` with the whole GPU until it is there: launch freely
 *   RESERVE without an arbiter                   only what the lease still holds; then OUT_OF_MEMORY (all three)
 *   REFUSED not-yours                            no memory: contexts fail with OUT_OF_MEMORY
 *   REFUSED anything else                        as connection lost
 *
 * r is the tenant's request. The hook never ends the program and never writes to its streams.
 */
#include "hook.h"

#define PERIOD_NS 100000000u

static bool pace(struct slot *slot, uint32_t request_milli, uint64_t *until_ns)
{
    uint64_t now = now_ns(), run = PERIOD_NS / 1000 * (request_milli < 1000 ? request_milli : 1000);
    pthread_mutex_lock(&slot->lock);
    uint64_t start = atomic_load(&slot->pace_sleep_ns);
    if (now >= start) {
        atomic_store(&slot->pace_until_ns, now + run);
        atomic_store(&slot->pace_sleep_ns, now + PERIOD_NS);
    }
    *until_ns = atomic_load(&slot->pace_until_ns);
    uint64_t next = atomic_load(&slot->pace_sleep_ns);
    pthread_mutex_unlock(&slot->lock);
    if (now < *until_ns)
        return true;
    struct timespec rest = {0, (long)(next - now < PERIOD_NS ? next - now : PERIOD_NS - 1)};
    nanosleep(&rest, NULL);
    return false;
}

bool fail_allows(struct slot *slot, uint64_t *until_ns)
{
    const aliquot_page *page = atomic_load(&slot->page);
    uint32_t policy = page ? page->fail_policy : ALIQUOT_FAIL_OPEN;
    switch (policy) {
    case ALIQUOT_FAIL_OPEN:
        *until_ns = now_ns() + PERIOD_NS;
        atomic_store(&slot->pace_until_ns, *until_ns);
        return true;
    case ALIQUOT_FAIL_CLOSED:
        return false;
    default:
        return pace(slot, page->request_milli, until_ns);
    }
}
