/* stay.c: how long an idle holder keeps the token while others wait for it.
 *
 * A pause is from the end of a program's work to its next launch. Keeping the token through a pause costs the others the
 * pause; giving it back costs a hand-over there and back. So the token stays while the median of the last pauses is
 * below that cost, for twice the cost at most, and else goes back at once. The time it stays is charged like any other,
 * so no pattern of pauses gains anything. While no tenant waits it stays for the burst gap, as before.
 *
 * Both parts of a hand-over are measured: from a request that found the GPU free to the grant, and from the grant to the
 * thread that wakes up. Source: anticipatory scheduling (Iyer and Druschel, 2001).
 */
#include "slot.h"

#define AT_ONCE_NS 50000u
#define LEAST_KNOWN 3u
#define FREE_NS 1000000u /* a grant that comes within this time found the GPU free */
#define WAKE_MOST_NS 5000000u
#define LEG_NS 150000u /* until it is measured; on the emulated driver, 2 cores */
#define COST_LEAST_NS 100000u
#define GROWTH_MOST 4u
#define VAIN_NS 5000000u
#define VAIN_RETURNS 16

static uint64_t gap_ns(const aliquot_page *page) { return (page->burst_gap_us ? page->burst_gap_us : 2000) * 1000ull; }

static uint64_t leg(const _Atomic uint64_t *measured)
{
    uint64_t ns = atomic_load_explicit(measured, memory_order_relaxed);
    return ns ? ns : LEG_NS;
}

/* A holder that keeps its token measures no hand-over. If one thread that woke late could raise the average beyond the
 * program's pauses, the token would stay until revocations have brought it down again. */
static void average(_Atomic uint64_t *measured, uint64_t ns)
{
    uint64_t before = leg(measured);
    if (ns > GROWTH_MOST * before)
        ns = GROWTH_MOST * before;
    atomic_store_explicit(measured, before - before / 8 + ns / 8 + 1, memory_order_relaxed);
}

uint64_t stay_cost_ns(const struct slot *slot)
{
    uint64_t cost = 2 * (leg(&slot->token.stay.ask_ns) + leg(&slot->token.stay.wake_ns));
    return cost < COST_LEAST_NS ? COST_LEAST_NS : cost;
}

/* A thread that had asked at `wanted` has the token at `now`. */
void stay_granted(struct slot *slot, const aliquot_page *page, uint64_t wanted, uint64_t now)
{
    uint64_t granted = __atomic_load_n(&page->granted_at_ns, __ATOMIC_RELAXED);
    if (!wanted || granted < wanted || now < granted)
        return;
    if (now - granted < WAKE_MOST_NS)
        average(&slot->token.stay.wake_ns, now - granted);
    if (granted - wanted < FREE_NS)
        average(&slot->token.stay.ask_ns, granted - wanted);
}

void stay_pause_begins(struct slot *slot, uint64_t at) { atomic_store(&slot->token.stay.idle_ns, at); }

/* Called by whichever thread launches or asks first. */
void stay_pause_ends(struct slot *slot)
{
    uint64_t began = atomic_exchange(&slot->token.stay.idle_ns, 0), now = now_ns();
    if (!began || now < began)
        return;
    unsigned at = atomic_fetch_add(&slot->token.stay.count, 1) % STAY_PAUSES;
    atomic_store(&slot->token.stay.pauses_ns[at], now - began);
}

/* The token had been given back, and nothing came of it: another process of the tenant holds it on. */
void stay_returned_in_vain(struct slot *slot)
{
    uint64_t returned = atomic_load(&slot->token.stay.returned_ns);
    if (returned && now_ns() - returned > VAIN_NS)
        atomic_store(&slot->token.stay.vain, VAIN_RETURNS);
}

void stay_returned(struct slot *slot, uint64_t now)
{
    int vain = atomic_load(&slot->token.stay.vain);
    atomic_store(&slot->token.stay.returned_ns, now);
    if (vain)
        atomic_store(&slot->token.stay.vain, vain - 1);
}

static uint64_t median(const struct slot *slot, unsigned known)
{
    uint64_t sorted[STAY_PAUSES];
    for (unsigned i = 0; i < known; i++) {
        uint64_t pause = atomic_load(&slot->token.stay.pauses_ns[i]);
        unsigned at = i;
        for (; at && sorted[at - 1] > pause; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = pause;
    }
    return sorted[known / 2];
}

/* Nanoseconds from the end of the work. */
uint64_t stay_ns(const struct slot *slot, const aliquot_page *page)
{
    uint64_t gap = gap_ns(page), cost = stay_cost_ns(slot);
    unsigned count = atomic_load(&slot->token.stay.count), known = count < STAY_PAUSES ? count : STAY_PAUSES;
    if (!page_waiters(page) || atomic_load(&slot->token.stay.vain))
        return gap;
    uint64_t stay = known < LEAST_KNOWN ? cost : median(slot, known) < cost ? 2 * cost : AT_ONCE_NS;
    return stay < gap ? stay : gap;
}

/* The end of the work is worth being noticed at once. */
bool stay_is_short(const struct slot *slot, const aliquot_page *page)
{
    return page_waiters(page) && stay_ns(slot, page) <= AT_ONCE_NS;
}
