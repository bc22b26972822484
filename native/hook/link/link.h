/* link.h: the connection to the arbiter, and the GPUs it gave us.
 *
 * A *slot* is one GPU as this process sees it; `struct link` is what of it the connection needs: who it is, whether it is
 * attached, and its grant page. Slots are made here, never freed, and found by device or by UUID.
 *
 * The link sends and asks, connects again, and attaches every slot anew. It never says what a message is about: what a
 * token, a launch or a byte of memory means is known above. It holds no lock of another layer, and calls nothing above
 * but through `aliquot_above`; `lock` of a slot is taken before link.c's own.
 */
#ifndef ALIQUOT_LINK_H
#define ALIQUOT_LINK_H

#include "base/base.h"

struct slot;

enum slot_state { SLOT_EMPTY = 0, SLOT_KNOWN, SLOT_HELD, SLOT_REFUSED, SLOT_AWAY, SLOT_VIEWED };

struct link {
    _Atomic int state;    /* enum slot_state */
    _Atomic int launches; /* 1: takes part in turns; 0: so far this process has only asked */
    int device;           /* CUDA ordinal, -1: known by uuid only (NVML) */
    uint8_t uuid[16];
    _Atomic uint32_t number; /* the arbiter's slot number */
    _Atomic(aliquot_page *) page;
    _Atomic uint64_t boot_id;
    pthread_mutex_t lock; /* of the attachment, of the pace without an arbiter, and of what is leased */
};

/* What the layers above do when something happens below them; entry/layers.c has who does. */
struct above {
    void (*slot_is_made)(struct slot *slot);                           /* before anything else sees it */
    void (*process_speaks)(void);                                      /* before the first connection is made */
    void (*page_is_opening)(struct slot *slot, uint32_t word);         /* the lock held, before it is to be seen */
    void (*page_is_open)(void);                                        /* likewise, after */
    void (*arbiter_is_new)(struct slot *slot);                         /* attached again, the lock held */
    void (*slot_is_attached)(struct slot *slot);                       /* to launch and allocate, or that was tried */
    void (*helper_looks)(struct slot *slot, const aliquot_page *page); /* in each round of the helper */
    void (*capture_is_abandoned)(const void *graph);                   /* its stream or context has ended */
    uint64_t (*memory_is_scarce)(struct slot *slot); /* the charge lock held alone; the bytes yet to come */
};
extern HIDDEN const struct above aliquot_above;

/* link.c */
/* The slot of the current context's GPU, attached; NULL: no context, or not ours. */
struct slot *slot_current(void);
struct slot *slot_of_device(int device);
struct slot *slot_of_uuid(const uint8_t uuid[16]);
struct slot *slot_at(unsigned index);
bool slot_attach(struct slot *slot); /* to allocate and launch: from now on the arbiter waits for our answers */
bool slot_view(struct slot *slot);   /* to ask only */
bool link_send(const aliquot_message *message);
bool link_ask(aliquot_message *message, uint16_t expect, int *fd);
bool link_alive(void);
bool link_shares(void); /* the arbiter keeps the ledger of what processes share */
bool link_revive(void);
/* The process by this number of the arbiter's is the tenant's, as the page says, or ours. */
bool link_is_own(const struct slot *slot, unsigned pid);
bool link_crowded(void); /* the arbiter takes no more processes of the tenant for now */
/* Reports to the arbiter what of this process bypassed the hook since the last report; one comparison if nothing. */
void link_report(void);
bool link_report_longest(const struct slot *slot, uint64_t longest_ns);
void link_after_fork(void);

static inline uint32_t page_word(const aliquot_page *page) { return __atomic_load_n(&page->word, __ATOMIC_ACQUIRE); }
static inline uint64_t page_deadline(const aliquot_page *page)
{
    return __atomic_load_n(&page->deadline_ns, __ATOMIC_ACQUIRE);
}
/* GPU time that may be queued now; an arbiter of before this field leaves it 0. */
static inline uint32_t page_in_flight_us(const aliquot_page *page)
{
    return __atomic_load_n(&page->in_flight_us, __ATOMIC_RELAXED);
}
/* Other tenants that may have work on the GPU now; an arbiter of before this field leaves it 0. */
static inline uint32_t page_overlapping(const aliquot_page *page)
{
    return __atomic_load_n(&page->overlapping, __ATOMIC_RELAXED);
}
static inline uint32_t page_waiters(const aliquot_page *page)
{
    return __atomic_load_n(&page->waiters, __ATOMIC_RELAXED);
}

#endif
