/* token.h: whose turn it is on one GPU, and what this process says about it.
 *
 * Holds which word of the grant page was asked for, answered and given back, what is allowed without an arbiter, and what
 * is known of the pauses and bursts of the program. The page's word is the truth; everything here only says what this
 * process has made of it.
 *
 * Sends WANT, RETURN and DRAINED and sleeps on the page. It never asks the driver anything, so it does not know whether
 * work has ended: the layer above finds that out and says so. It holds no lock but a slot's `link.lock`, in fail.c.
 */
#ifndef ALIQUOT_TOKEN_H
#define ALIQUOT_TOKEN_H

#include "link/link.h"

#define STAY_PAUSES 9
/* What is known of the pauses of this process on one GPU, and of what a hand-over takes (stay.c). */
struct stay {
    _Atomic uint64_t idle_ns; /* when the pause at hand began; 0: none, or its end was noted */
    _Atomic uint64_t pauses_ns[STAY_PAUSES];
    _Atomic unsigned count;
    _Atomic uint64_t ask_ns, wake_ns; /* request to grant on a free GPU, grant to launch; 0: not measured yet */
    _Atomic uint64_t returned_ns, hint_ns;
    _Atomic int vain, awaited;
};

/* How long the program keeps the GPU busy between its own pauses (burst.c). */
struct burst { _Atomic uint64_t start_ns, last_active_ns, max_ns, max_at_ns; };

struct token {
    _Atomic uint32_t given_back; /* the word that was returned by ourselves, or parked(word); ~0 = none */
    _Atomic uint32_t answered;   /* the CLOSED word DRAINED was sent for */
    _Atomic uint32_t asked;      /* the word that WANT was sent for, or parked(word) once it was returned; ~0 = none */
    _Atomic uint64_t wanted_ns;  /* when */
    _Atomic int waiting;
    _Atomic int helper_missing; /* 1: none can be started; 2: a thread of the program does its work just now */
    _Atomic uint64_t pace_until_ns, pace_sleep_ns;
    struct burst burst;
    struct stay stay;
    _Atomic uint32_t park_told, wake_told; /* the parks that PARKED and WAKE were sent for; 0: none */
};

/* token.c */
void token_begins(struct slot *slot, uint32_t word);
void send_return(struct slot *slot, uint32_t word, uint64_t now);
void send_drained(struct slot *slot, uint32_t word);
void answer_drained(struct slot *slot, uint32_t word);
/* `has_ended`: is all work of a grant that was revoked seen to have ended? It never waits. */
bool wait_for_token(struct slot *slot, bool (*has_ended)(struct slot *, uint32_t word), uint64_t *until_ns);
/* fail.c: may this slot launch without an arbiter? Sets the end of the permission, or sleeps and says no. */
bool fail_allows(struct slot *slot, uint64_t *until_ns);
/* Has the arbiter given no sign of life for seconds? It is stopped, or the machine is; the connection does not show it. */
bool arbiter_silent(const aliquot_page *page);
/* stay.c */
uint64_t stay_ns(const struct slot *slot, const aliquot_page *page);
uint64_t stay_cost_ns(const struct slot *slot);
bool stay_is_short(const struct slot *slot, const aliquot_page *page);
void stay_granted(struct slot *slot, const aliquot_page *page, uint64_t wanted, uint64_t now);
void stay_pause_begins(struct slot *slot, uint64_t at);
void stay_pause_ends(struct slot *slot);
void stay_returned(struct slot *slot, uint64_t now);
void stay_returned_in_vain(struct slot *slot);
/* burst.c */
void burst_tick(struct slot *slot, bool active, uint64_t now);
uint64_t burst_estimate(struct slot *slot, uint64_t now);

/* park.c: the tenant's memory may be off the GPU, where calls of the driver would wait and not come back. */
extern HIDDEN _Atomic int park_inside; /* threads between the begin and the end of a hooked call */
bool park_update(void);                /* is the tenant parked on any GPU? */
HIDDEN __attribute__((cold)) void park_wake(void);
bool park_is_on(struct slot *slot, const aliquot_page *page, bool quiet);
static inline void park_look(void)
{
    if (UNLIKELY(atomic_load_explicit(&aliquot_parked, memory_order_relaxed)))
        park_wake();
}
static inline void park_never(unsigned bit)
{
    if (!(atomic_fetch_or(&aliquot_counters.stays, bit) & bit))
        link_report(); /* now: the thread may say next that it needs no GPU */
}
/* A hooked call may wait for the arbiter before it calls the driver: from here to the end of the block it is counted. */
#define PARK_WAITS() __attribute__((cleanup(park_leave), unused)) const int park_entered = park_enter()
static inline void park_leave(const int *entered) { atomic_fetch_sub(&park_inside, 1); }
static inline bool park_try_enter(void) /* false: the tenant is parked; else park_leave() follows */
{
    atomic_fetch_add(&park_inside, 1);
    if (LIKELY(!atomic_load(&aliquot_parked)))
        return true;
    atomic_fetch_sub(&park_inside, 1);
    return false;
}
static inline int park_enter(void)
{
    while (!park_try_enter())
        park_wake();
    return 0;
}

/* While its work has ended and it is not certain yet that it is to be given back: the next launch takes it up again. */
static inline uint32_t parked(uint32_t word) { return word | 2; }

static inline int futex_wait_ns(const void *word, uint32_t value, uint64_t ns)
{
    struct timespec time = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    return (int)syscall(SYS_futex, word, FUTEX_WAIT, value, &time, NULL, 0);
}
static inline int futex_wait_ms(const void *word, uint32_t value, unsigned ms)
{
    return futex_wait_ns(word, value, (uint64_t)ms * 1000000u);
}
/* For a revocation, or until a moment after a grant. */
static inline void helper_wait_turn(const aliquot_page *page, uint32_t word)
{
    uint64_t end = now_ns() + 100000000u;
    struct timespec time = {(time_t)(end / 1000000000u), (long)(end % 1000000000u)};
    syscall(SYS_futex, &page->word, FUTEX_WAIT_BITSET, word, &time, NULL, ~PAGE_WAKE_LAUNCH);
}
/* The helpers of one process among all that sleep on the word. */
static inline uint32_t own_bit(void) { return 1u << (unsigned)getpid() % 31; /* not PAGE_WAKE_LAUNCH */ }
static inline void helper_wait_ns(const aliquot_page *page, uint32_t word, uint64_t ns)
{
    uint64_t end = now_ns() + ns; /* FUTEX_WAIT_BITSET takes the moment */
    struct timespec time = {(time_t)(end / 1000000000u), (long)(end % 1000000000u)};
    syscall(SYS_futex, &page->word, FUTEX_WAIT_BITSET, word, &time, NULL, own_bit());
}
static inline void page_poke(const aliquot_page *page)
{
    if (page)
        syscall(SYS_futex, &page->word, FUTEX_WAKE_BITSET, INT32_MAX, NULL, NULL, own_bit());
}

#endif
