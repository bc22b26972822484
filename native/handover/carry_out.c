/* carry_out.c: one hand-over: is this the answer that it waits for, and the stores that follow.
 *
 * The messages are looked at and left in the socket (SO_PEEK_OFF), so the arbiter reads, checks and counts every one of
 * them as it always does. Only a complete message of the right kind, for the right GPU and for the epoch in force is an
 * answer. The one other message that is passed over is WANT, with which a holder asks for its next turn while its work
 * of this one ends. Anything else is for the arbiter to judge, and the prepared hand-over is void.
 */
#define _GNU_SOURCE
#include "handover.h"
#include "page_wake.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

uint64_t handover_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void wake(aliquot_page *page, uint32_t whom)
{
    syscall(SYS_futex, &page->word, FUTEX_WAKE_BITSET, INT_MAX, NULL, NULL, whom);
}

void handover_wake_rest(const struct handover_prepared *prepared) { wake(prepared->next_page, ~PAGE_WAKE_LAUNCH); }

/* The holder's gate is closed before the next one opens, and the next is woken before the holder. */
static void carry_out(const struct handover_prepared *prepared, uint64_t now_ns)
{
    aliquot_page *holder = prepared->holder_page, *next = prepared->next_page;
    if (holder)
        __atomic_store_n(&holder->word, prepared->last_epoch << 2 | ALIQUOT_WORD_CLOSED, __ATOMIC_SEQ_CST);
    __atomic_store_n(&next->deadline_ns, now_ns + prepared->quota_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&next->granted_at_ns, now_ns, __ATOMIC_RELAXED);
    __atomic_store_n(&next->word, prepared->next_epoch << 2 | ALIQUOT_WORD_VALID, __ATOMIC_SEQ_CST);
    wake(next, PAGE_WAKE_LAUNCH);
    if (holder)
        wake(holder, FUTEX_BITSET_MATCH_ANY);
}

static int answers(const struct handover_prepared *prepared, const aliquot_message *message)
{
    return message->type == prepared->answer && message->a >= prepared->first_epoch &&
           message->a <= prepared->last_epoch;
}

enum handover_verdict handover_look(const struct handover_prepared *prepared, struct handover_progress *seen,
                                    uint64_t *at_ns)
{
    for (;;) {
        aliquot_message message;
        ssize_t got;
        do
            got = recv(prepared->socket, &message, sizeof message, MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT);
        while (got < 0 && errno == EINTR);
        if (got < 0 && errno == EAGAIN)
            return HANDOVER_WAIT;
        if (got != (ssize_t)sizeof message || message.gpu != prepared->slot || ++seen->messages > HANDOVER_MESSAGES)
            return HANDOVER_LEAVE;
        uint64_t now_ns = handover_now_ns();
        seen->wanting |= message.type == ALIQUOT_MSG_WANT;
        if (now_ns >= (seen->wanting ? prepared->until_wanting_ns : prepared->until_ns))
            return HANDOVER_LEAVE;
        if (answers(prepared, &message)) {
            carry_out(prepared, now_ns);
            *at_ns = now_ns;
            return HANDOVER_DONE;
        }
        if (message.type != ALIQUOT_MSG_WANT)
            return HANDOVER_LEAVE;
    }
}
