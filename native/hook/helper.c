/* helper.c: one thread per GPU that gives the token back when it is idle and says when it is drained.
 *
 * It sleeps on the grant word. While the token is ours it looks every half burst gap; when the word closes it waits for
 * the work launched under it. All signals are blocked in it; it never holds a lock that a launch needs.
 */
#include "gate.h"

#include <linux/membarrier.h>
#include <signal.h>
#include <string.h>

/* Makes every thread's last `record_step` visible here, so that the gate needs no fence of its own. */
static void see_all_threads(void)
{
    static _Atomic int registered;
    if (!atomic_exchange(&registered, 1))
        syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0);
    syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
    atomic_thread_fence(memory_order_seq_cst);
}

static void give_back(struct slot *slot, uint32_t word, uint64_t launches, uint64_t now)
{
    atomic_store(&slot->given_back, word);
    see_all_threads();
    bool inside;
    if (slot_launches(slot, &inside) != launches || inside || atomic_load(&slot->waiting)) {
        atomic_store(&slot->given_back, ~0u);
        return;
    }
    aliquot_message message = {.type = ALIQUOT_MSG_RETURN,
                               .gpu = slot->number,
                               .a = word >> 2,
                               .b = slot->last_active_ns,
                               .c = burst_estimate(slot, now)};
    if (link_send(&message))
        COUNT(returns);
}

static void look_for_pause(struct slot *slot, const aliquot_page *page, uint32_t word)
{
    bool inside;
    uint64_t now = now_ns(), launches = slot_launches(slot, &inside);
    uint64_t gap = (page->burst_gap_us ? page->burst_gap_us : 2000) * 1000u;
    bool active = inside || launches != slot->seen_launches || atomic_load(&slot->waiting);
    slot->seen_launches = launches;
    if (word != slot->seen_word) {
        slot->seen_word = word;
        slot->last_active_ns = now;
    }
    if (!active && launches != slot->finished_launches) {
        if (atomic_load(&slot->synced_launches) == launches || streams_idle(slot))
            slot->finished_launches = launches;
        else
            active = true;
    }
    burst_tick(slot, active, now);
    if (!active && now - slot->last_active_ns >= gap)
        give_back(slot, word, launches, now);
}

static void drain(struct slot *slot, uint32_t word)
{
    bool inside;
    see_all_threads();
    uint64_t launches = slot_launches(slot, &inside);
    while (inside) {
        nanosleep(&(struct timespec){0, 50000}, NULL);
        launches = slot_launches(slot, &inside);
    }
    if (launches != slot->finished_launches && atomic_load(&slot->synced_launches) != launches)
        streams_wait(slot);
    slot->finished_launches = launches;
    uint64_t now = now_ns();
    aliquot_message message = {.type = ALIQUOT_MSG_DRAINED,
                               .gpu = slot->number,
                               .a = word >> 2,
                               .b = now,
                               .c = burst_estimate(slot, now)};
    atomic_store(&slot->answered, word);
    if (link_send(&message))
        COUNT(drains);
}

static void *help(void *argument)
{
    struct slot *slot = argument;
    if (aliquot_real[SYM_cuThreadExchangeStreamCaptureMode])
        REAL(cuThreadExchangeStreamCaptureMode, int *)(&(int){CAPTURE_MODE_RELAXED});
    for (;;) {
        const aliquot_page *page = atomic_load(&slot->page);
        if (!page || !link_alive()) {
            link_revive();
            nanosleep(&(struct timespec){0, 20000000}, NULL);
            continue;
        }
        uint32_t word = page_word(page);
        if ((word & 3) == ALIQUOT_WORD_VALID && word != atomic_load(&slot->given_back)) {
            uint32_t gap = page->burst_gap_us ? page->burst_gap_us : 2000;
            look_for_pause(slot, page, word);
            futex_wait_ns(&page->word, word, (uint64_t)gap * 500u);
        } else if ((word & 3) != ALIQUOT_WORD_VALID && word != atomic_load(&slot->answered)) {
            drain(slot, word);
        } else {
            futex_wait_ms(&page->word, word, 100);
        }
    }
    return NULL;
}

void helper_start(struct slot *slot)
{
    int stopped = 0;
    if (atomic_load_explicit(&slot->helper_running, memory_order_relaxed) ||
        !atomic_compare_exchange_strong(&slot->helper_running, &stopped, 1))
        return;
    sigset_t all, before;
    pthread_attr_t attributes;
    pthread_t thread;
    sigfillset(&all);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 512 << 10);
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    if (pthread_create(&thread, &attributes, help, slot) != 0)
        atomic_store(&slot->helper_running, 0);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
}
