/* memory.h: the bytes of one GPU that this process is charged.
 *
 * Holds what is leased of the tenant's limit, what of it is used, and a ledger of what is charged for which handle. Memory
 * is reserved before the driver is asked, and an entry is out of the ledger before the driver may give its handle to
 * another: charge.h has the rules.
 *
 * It attaches slots and asks the arbiter for leases, and reads from the work whether anything captures and which context
 * is current. It never launches, nor decides about the token. Locks, in their order: `primary_lock`, `charge_lock`, a pool's or
 * the graphs', a slot's `link.lock`, the ledger's.
 */
#ifndef ALIQUOT_MEMORY_H
#define ALIQUOT_MEMORY_H

#include "work/work.h"

#define SLAB_BYTES (64ull << 20)

/* Of graphs that live and of those that are gone: graph.c, with its lock held. */
struct graphs {
    uint64_t bytes, charge;   /* of living graphs; charged for them and for what the device keeps of others */
    uint64_t lost, looked_ns; /* in use though their graphs are gone, and when that was last read */
    uint64_t step;            /* what the device takes at a time, as far as is known */
    _Atomic uint64_t gone_ns; /* when a graph last ended, or its memory was freed */
};

struct memory {
    pthread_rwlock_t
        charge_lock; /* shared by allocations from their reservation to their entry; alone when one was refused */
    uint64_t leased, context_bytes, context_each;
    _Atomic uint64_t unused;                      /* changed under the lock, read without */
    uint64_t reserved_ns, released_ns, called_ns; /* when memory was last reserved, given back, and called back */
    bool unheard; /* given back since the arbiter's last answer: its figures may lag behind */
    uint32_t demand_answered, calls_answered; /* of the page's memory_demand and memory_calls */
    _Atomic unsigned contexts;                /* likewise */
    _Atomic bool primary_charged;
    _Atomic uint64_t owner; /* of what ends with the primary context, 0: nothing was entered since it last ended */
    pthread_mutex_t primary_lock; /* taken before driver_lock and lock */
    struct graphs graphs;
    uint64_t block, block_left; /* the page that arrays share now, and how much of it is left (page.c) */
    _Atomic uint64_t pool_step; /* what pools of this GPU grow by, as far as is known */
};

/* lease.c: bytes of a slot's limit; charge.h has what only the memory's files need. */
bool context_reserve(struct slot *slot);
void context_release(struct slot *slot);
void memory_restore(struct slot *slot);
uint64_t memory_held(struct slot *slot);
void memory_release(struct slot *slot, uint64_t bytes);
void memory_tick(struct slot *slot, const aliquot_page *page);
/* For programs that give memory back when they are asked (aliquot/memory.py). Waits up to `wait_ms` for another number
 * than `*calls` of what is asked for, and stores it; the bytes, 0 for none, and until when. UINT64_MAX: no tenant. */
EXPORT uint64_t aliquot_memory_wanted(uint32_t *calls, unsigned wait_ms, uint64_t *by_ns);
/* ledger.c: what is charged for which handle. Each call is one locked operation. */
enum ledger_kind {
    LEDGER_POINTER = 1,
    LEDGER_ARRAY,
    LEDGER_VMM, /* a handle; other: the memory behind it */
    LEDGER_MAP, /* a mapping; other: the memory behind it */
    LEDGER_GRAPH,
    LEDGER_ASYNC,   /* a pointer of a pool; other: the pool */
    LEDGER_CONTEXT, /* other: the owner of what ends with it */
    LEDGER_MODULE,
    LEDGER_LIMIT,
    LEDGER_SMALL,  /* a pointer that shares pages with others */
    LEDGER_PAGE,   /* such a page; refs: the pointers in it */
    LEDGER_OBJECT, /* physical memory; refs: its handles and mappings */
    LEDGER_LATER,  /* a pointer whose free waits for a stream */
    LEDGER_LAZY,   /* a module of which nothing is on a device until it is used; other: the number of its load */
    LEDGER_CODE,   /* its code in one context */
    LEDGER_NODE,   /* a pointer of a graph; other: the graph's number, 0: it is gone */
    LEDGER_OWNER,  /* a number, there as long as the context whose memory stands under it */
    LEDGER_KINDS,
};
struct ledger_entry {
    uint64_t key;
    struct slot *slot;
    uint64_t bytes, other; /* other: what it leads to, or the owner it ends with, 0: none */
    uint64_t page; /* the page that it shares with others, 0: none; of an object: its number at the arbiter, which
                              is charged for it instead of the process */
    uint32_t kind, refs;
};
/* Enters; what stood under the same key comes back in `stale`, kind 0: nothing. So does the entry itself where its owner
 * has ended. False: no memory for the table. */
bool ledger_put(struct ledger_entry entry, struct ledger_entry *stale);
bool ledger_get(uint32_t kind, uint64_t key, struct ledger_entry *out);
bool ledger_take(uint32_t kind, uint64_t key, struct ledger_entry *out);
bool ledger_take_of(uint32_t kind, uint64_t key, uint64_t other); /* only where it leads there */
/* Another reference to an entry, which is made when it is not there, unless its owner has ended; true: it was made. */
bool ledger_join(struct ledger_entry entry);
void ledger_page(uint32_t kind, uint64_t key, uint64_t page); /* sets it */
/* Adds to the references and bytes of an entry. LEDGER_GONE: it was the last reference, the entry is in `out`. */
enum ledger_answer { LEDGER_NONE, LEDGER_KEPT, LEDGER_GONE };
enum ledger_answer ledger_change(uint32_t kind, uint64_t key, int refs, uint64_t bytes, struct ledger_entry *out);
void ledger_disown(uint32_t kind, uint64_t key); /* it ends with no context */
/* Takes out some of what ends with a context. */
unsigned ledger_take_owned(uint64_t owner, struct ledger_entry *out, unsigned room);
void ledger_each(uint32_t kind, void (*visit)(struct ledger_entry *, void *), void *with);
uint64_t ledger_count(void);
void ledger_clear(void);
/* owner.c: a number for what ends with a new context, 0: none could be had; and (charge.c) its end. */
uint64_t owner_new(void);
void owner_ended(uint64_t owner);
/* reclaim.c */
void reclaim_at_completion(void);
/* Work may have ended. */
static inline void completed(CUresult result)
{
    if (atomic_load_explicit(&gate_shared.awaited, memory_order_relaxed) && result == CUDA_SUCCESS)
        helper_hint();
    reclaim_at_completion();
}
/* pool.c */
void pools_after_fork(void);
/* captured.c */
void graph_abandoned(const void *graph);
void captures_abandoned(void);
void abandoned_after_fork(void);

#endif
