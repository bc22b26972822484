/* fail.c: what happens when the arbiter is not there. The one table of the failure policy.
 *
 *   seen                                         pace               open            closed
 *   connection lost, grant still valid           launch until its deadline (all three)
 *   connection lost, grant over                  run r x 100 ms,    launch freely   wait
 *                                                sleep the rest
 *   arbiter back (new boot id)                   attach again, restore the ledger, wait for a grant (all three)
 *   connected, but without a sign of life        as connection lost, until the next sign (all three)
 *   never reached (no socket at start)           no memory; a program that needs none launches freely until then, and
 *                                                the time is reported to it. After a second a line on stderr says so
 *   RESERVE without an arbiter                   only what the lease still holds; then OUT_OF_MEMORY (all three)
 *   REFUSED not-yours                            no memory: contexts fail with OUT_OF_MEMORY
 *   REFUSED too-many                             no memory, and a line on stderr says so; asked again now and then
 *   REFUSED anything else                        as connection lost
 *   no helper thread can be started              the program's threads answer for it (helper.c); a line on stderr says so
 *   no handler of forks or of the exit, no       tried again at the next connection, stream or thread; a line on stderr
 *   notice of the ends of threads                says what may come of it
 *
 * r is the tenant's request. The hook never ends the program; the lines on stderr are say.c's.
 */
#include "slot.h"

#define PERIOD_NS 100000000u
#define SILENT_NS 3000000000u

static bool pace(struct slot *slot, uint32_t request_milli, uint64_t *until_ns)
{
    uint64_t now = now_ns(), run = PERIOD_NS / 1000 * (request_milli < 1000 ? request_milli : 1000);
    pthread_mutex_lock(&slot->link.lock);
    uint64_t start = atomic_load(&slot->token.pace_sleep_ns);
    if (now >= start) {
        atomic_store(&slot->token.pace_until_ns, now + run);
        atomic_store(&slot->token.pace_sleep_ns, now + PERIOD_NS);
    }
    *until_ns = atomic_load(&slot->token.pace_until_ns);
    uint64_t next = atomic_load(&slot->token.pace_sleep_ns);
    pthread_mutex_unlock(&slot->link.lock);
    if (now < *until_ns)
        return true;
    struct timespec rest = {0, (long)(next - now < PERIOD_NS ? next - now : PERIOD_NS - 1)};
    nanosleep(&rest, NULL);
    return false;
}

bool arbiter_silent(const aliquot_page *page)
{
    uint64_t beat = page ? __atomic_load_n(&page->beat_ns, __ATOMIC_RELAXED) : 0;
    return beat && now_ns() > beat + SILENT_NS;
}

bool fail_allows(struct slot *slot, uint64_t *until_ns)
{
    const aliquot_page *page = atomic_load(&slot->link.page);
    uint32_t policy = page ? page->fail_policy : ALIQUOT_FAIL_OPEN;
    switch (policy) {
    case ALIQUOT_FAIL_OPEN:
        if (!page)
            atomic_fetch_add_explicit(&aliquot_counters.ungated_ns, PERIOD_NS, memory_order_relaxed);
        *until_ns = now_ns() + PERIOD_NS;
        atomic_store(&slot->token.pace_until_ns, *until_ns);
        return true;
    case ALIQUOT_FAIL_CLOSED: return false;
    default: return pace(slot, page->request_milli, until_ns);
    }
}
