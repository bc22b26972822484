/* token.c: what is said about a token, and the thread without one: ask once, sleep on the page, notice a dead arbiter. */
#include "slot.h"

#define STILL_HELD_NS 20000000u

/* A new page: nothing was asked of its arbiter, and what it says now needs no answer. */
void token_begins(struct slot *slot, uint32_t word)
{
    atomic_store(&slot->token.answered, (word & 3) == ALIQUOT_WORD_VALID ? ~0u : word);
    atomic_store(&slot->token.given_back, ~0u);
    atomic_store(&slot->token.asked, ~0u);
    atomic_store(&slot->token.wake_told, 0);
}

void send_return(struct slot *slot, uint32_t word, uint64_t now)
{
    aliquot_message message = {
        .type = ALIQUOT_MSG_RETURN, .gpu = slot->link.number, .a = word >> 2, .c = burst_estimate(slot, now)};
    if (link_send(&message))
        COUNT(returns);
}

void send_drained(struct slot *slot, uint32_t word)
{
    aliquot_message message = {
        .type = ALIQUOT_MSG_DRAINED, .gpu = slot->link.number, .a = word >> 2, .c = burst_estimate(slot, now_ns())};
    if (link_send(&message))
        COUNT(drains);
}

/* Once for each revocation, whichever thread finds it out first. */
void answer_drained(struct slot *slot, uint32_t word)
{
    if (atomic_exchange(&slot->token.answered, word) != word)
        send_drained(slot, word);
}

/* One WANT for all threads of the process and each state of the gate that stops them. A thread may go on without having
 * seen its WANT answered, by a renewal say, and the arbiter keeps none that came while the gate was open: so what was
 * asked says nothing about another state. */
static void want_token(struct slot *slot, uint32_t state)
{
    uint64_t now = now_ns();
    uint32_t asked = atomic_load(&slot->token.asked);
    if (asked == state || !atomic_compare_exchange_strong(&slot->token.asked, &asked, state))
        return;
    atomic_store(&slot->token.wanted_ns, now);
    stay_pause_ends(slot);
    aliquot_message want = {.type = ALIQUOT_MSG_WANT, .gpu = slot->link.number, .a = burst_estimate(slot, now)};
    if (link_send(&want))
        COUNT(wants);
    else
        atomic_store(&slot->token.asked, ~0u);
}

/* Sleeps until the caller should look at the page again (true), or may go without a token until `until_ns` (false). */
bool wait_for_token(struct slot *slot, bool (*has_ended)(struct slot *, uint32_t word), uint64_t *until_ns)
{
    aliquot_page *page = atomic_load(&slot->link.page);
    if (park_update()) {
        park_wake();
        return true;
    }
    bool silent = arbiter_silent(page); /* a connection to it may be made, but nothing comes back */
    if (!page || silent || !link_alive()) {
        if (!silent && link_revive() && atomic_load(&slot->link.page))
            return true;
        bool allowed = fail_allows(slot, until_ns);
        if (!allowed && (!page || page->fail_policy == ALIQUOT_FAIL_CLOSED))
            nanosleep(&(struct timespec){0, 20000000}, NULL);
        return !allowed;
    }
    uint32_t word = page_word(page);
    bool valid = (word & 3) == ALIQUOT_WORD_VALID;
    if (valid && word != atomic_load(&slot->token.given_back) && now_ns() < page_deadline(page))
        return true;
    COUNT(waits);
    atomic_fetch_add(&slot->token.waiting, 1);
    bool drained = !valid && has_ended(slot, word);
    if (drained)
        answer_drained(slot, word); /* first, for the next tenant waits for it */
    bool returned = valid && word == atomic_load(&slot->token.given_back);
    want_token(slot, returned ? parked(word) : word);
    if (returned) {
        /* Returned by us, still valid: either the arbiter is about to take it, or a sister process holds it on. */
        stay_returned_in_vain(slot);
        futex_wait_ns(&page->word, word, STILL_HELD_NS);
        if (page_word(page) == word && now_ns() < page_deadline(page)) {
            atomic_store(&slot->token.asked, ~0u);
            atomic_store(&slot->token.given_back, ~0u);
        }
    } else if (valid) {
        /* Past its deadline: a renewal moves the deadline and leaves the word. */
        futex_wait_ms(&page->word, word, 1);
    } else {
        bool unwatched = atomic_load(&slot->token.helper_missing) && atomic_load(&slot->token.answered) != word;
        futex_wait_ms(&page->word, word, unwatched ? 1 : 100);
    }
    atomic_fetch_sub(&slot->token.waiting, 1);
    if (page_word(page) != word) {
        uint64_t wanted = atomic_exchange(&slot->token.wanted_ns, 0);
        if ((page_word(page) & 3) == ALIQUOT_WORD_VALID)
            stay_granted(slot, page, wanted, now_ns());
    }
    return true;
}
