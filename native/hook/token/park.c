/* park.c: a tenant that is parked has its memory in the host's, and a call of the driver would wait until it is back.
 *
 * So calls wait here, and the arbiter hears of the first: it has the memory brought back once there is room on the GPU.
 * Launches stop at the gate, which is closed; others look at `aliquot_parked` first, those that nothing else of the hook
 * stands in front of in their trampolines. The helper of each GPU sets it when the page says so, and tells the arbiter
 * when no call is under way. A thread that looked just before, and has yet to get into the driver, is given GRACE_NS.
 */
#include "slot.h"

#define GRACE_NS 20000000
#define LOOK_NS 1000000

_Atomic int park_inside;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static uint32_t parked_in(const aliquot_page *page)
{
    return page ? __atomic_load_n(&page->parked, __ATOMIC_ACQUIRE) : 0;
}

bool park_update(void)
{
    if (conf_load() != MODE_HELD)
        return false;
    bool any = false;
    pthread_mutex_lock(&lock); /* else an older answer might be stored after a newer one */
    for (unsigned i = 0; slot_at(i); i++)
        any |= parked_in(atomic_load(&slot_at(i)->link.page)) != 0;
    atomic_store(&aliquot_parked, any ? park_wake : NULL);
    pthread_mutex_unlock(&lock);
    return any;
}

static void tell(struct slot *slot, uint16_t type, uint32_t number, _Atomic uint32_t *told)
{
    aliquot_message message = {.type = type, .gpu = slot->link.number, .a = number};
    if (atomic_exchange(told, number) != number && !link_send(&message))
        atomic_store(told, 0);
}

void park_wake(void)
{
    UNCANCELLED();
    while (park_update()) {
        if (!link_alive())
            link_revive();
        for (unsigned i = 0; slot_at(i); i++) {
            struct slot *slot = slot_at(i);
            const aliquot_page *page = atomic_load(&slot->link.page);
            uint32_t number = parked_in(page);
            if (!number)
                continue;
            tell(slot, ALIQUOT_MSG_WAKE, number, &slot->token.wake_told);
            futex_wait_ms(&page->parked, number, 100);
        }
    }
}

/* For the helper, which makes no call of its own while this is so. `quiet`: no launch is under way. */
bool park_is_on(struct slot *slot, const aliquot_page *page, bool quiet)
{
    uint32_t number = parked_in(page);
    if (!number || !park_update())
        return false;
    if (atomic_load(&slot->token.park_told) == number) {
        futex_wait_ms(&page->parked, number, 100);
    } else if (quiet && !atomic_load(&park_inside)) {
        nanosleep(&(struct timespec){0, GRACE_NS}, NULL);
        tell(slot, ALIQUOT_MSG_PARKED, number, &slot->token.park_told);
    } else {
        nanosleep(&(struct timespec){0, LOOK_NS}, NULL);
    }
    return true;
}
