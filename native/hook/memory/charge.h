/* charge.h: what the files that charge memory share.
 *
 * The rules: reserve before the driver is asked; take an entry out before the driver frees and put it back when it did
 * not, since the next allocation may have the same address; one locked operation for each change. An allocation holds
 * the slot's charge lock, shared, from its reservation to its entry. One that was refused holds it alone and has what can be
 * spared returned first, so no allocation is refused for what another thread is about to give back. A context may end in
 * another thread at any of these moments: what is entered after the end of its owner is given back.
 */
#ifndef ALIQUOT_CHARGE_H
#define ALIQUOT_CHARGE_H

#include "slot.h"

#define PAGE_BYTES (2ull << 20)  /* the driver's unit of memory */
#define SMALL_BYTES (1ull << 20) /* smaller allocations share pages */

/* Saturates: an absurd size stays absurd. */
static inline uint64_t round_up(uint64_t bytes, uint64_t unit)
{
    return bytes > UINT64_MAX - (unit - 1) ? UINT64_MAX : (bytes + unit - 1) / unit * unit;
}
static inline uint64_t granules(uint64_t bytes) { return round_up(bytes, 512); }

/* lease.c: false = over the limit. MEMORY_AT_HAND: only what is leased already. */
enum memory_how { MEMORY_ASK, MEMORY_AT_HAND };
bool memory_reserve(struct slot *slot, uint64_t bytes, enum memory_how how);
uint64_t memory_charged(struct slot *slot, const aliquot_page *page);
/* Could that much be reserved if `coming` bytes of what is charged came back? */
bool memory_may_fit(struct slot *slot, uint64_t bytes, uint64_t coming);
/* in_use.c: bytes in use of the GPU. `*own`, if true: of the tenant's processes alone; false afterwards where they could
 * not be told apart, and the answer is of all. */
uint64_t memory_in_use(const struct slot *slot, bool *own);
/* An allocation is refused, after every try to make room. Sleeps where refusals come faster than the arbiter reads. */
void memory_denied(const struct slot *slot);

/* An object is charged as memory that processes share. Exported: what it is charged here moves there. Imported: a part of
 * it is mapped. True: done; `*over`: it is known there, and that much of it is over the limit. */
bool memory_share(struct slot *slot, uint64_t object, uint64_t bytes, int fd, bool exported, bool *over);
void memory_unshare(struct slot *slot, uint64_t number);

/* owner.c */
void context_entered(void *context, struct slot *slot);
bool context_noticed(struct slot *slot);
bool primary_active(int device);

/* charge.c */
/* NULL is looked at again: true while it is because no context is current that lives. */
bool charge_undecided(struct slot **slot);
/* The owner that the current context's memory ends with; the primary context, and the green ones that are views of it,
 * are one. For an allocation it is found before the driver is asked, since the context may be gone afterwards. */
uint64_t owner_now(struct slot *slot);
extern HIDDEN __thread uint64_t charge_owner __attribute__((tls_model("initial-exec"))); /* since charge_begin() */
/* Tries with the charge lock held, then alone with what can be spared returned, as long as `bytes` may fit once frees under way
 * are done. True: done, and the charge lock is still held. */
bool charge_try(struct slot *slot, uint64_t bytes, bool (*attempt)(struct slot *, bool alone, void *), void *with);
/* Holds the charge lock and reserves; false: over the limit, nothing is held. Without a slot nothing is to be done. */
bool charge_begin(struct slot *slot, uint64_t bytes);
/* Enters a reserved charge when the driver agreed, gives it back when not, lets go of the charge lock; returns `result`. */
CUresult charge_end(CUresult result, struct slot *slot, uint32_t kind, uint64_t key, uint64_t bytes);
void charge_enter(struct ledger_entry entry);
/* Gives back what was charged under an entry that has been taken out. */
void charge_gone(const struct ledger_entry *entry);
/* After the driver's answer to a free: `known` when `entry` was taken out before it. */
CUresult charge_freed(CUresult result, bool known, const struct ledger_entry *entry);

/* Arguments that look wrong are for the driver to answer, whatever room there is. Should it agree all the same, that is
 * undone, and asked for again like anything else. */
#define ANSWER_WRONG(wrong, forward, undo)                                                                             \
    do {                                                                                                               \
        const bool wrong_ = (wrong);                                                                                   \
        CUresult answer_ = wrong_ ? (forward) : CUDA_SUCCESS;                                                          \
        if (answer_ != CUDA_SUCCESS)                                                                                   \
            return answer_;                                                                                            \
        if (wrong_)                                                                                                    \
            (undo);                                                                                                    \
    } while (0)

/* Without a context the driver answers. It agrees when another thread has just brought the primary context back: that is
 * undone, and asked for again of the GPU that pays. */
#define ANSWER_WITHOUT_CONTEXT(slot, forward, undo)                                                                    \
    while (charge_undecided(&(slot)))                                                                                  \
    ANSWER_WRONG(true, forward, undo)

/* There is no room; what the driver refuses in any case is its to answer. */
#define REFUSE(wrong, forward, undo)                                                                                   \
    do {                                                                                                               \
        ANSWER_WRONG(wrong, forward, undo);                                                                            \
        return CUDA_ERROR_OUT_OF_MEMORY;                                                                               \
    } while (0)

/* wrong.c */
bool wrong_stream(void *stream);
bool wrong_context_flags(unsigned flags);
bool wrong_shape(uint64_t width, uint64_t height, uint64_t depth, unsigned flags);
struct node_place {
    void *const *node;
    void *graph;
    void *const *deps;
    size_t count;
};
bool wrong_place(const struct node_place *place);
CUresult wrong_allocation_node(const struct alloc_node *params);
bool wrong_multicast(const struct multicast_prop *prop);
bool wrong_image(const void *image);
bool wrong_file(const char *path);

/* page.c: linear memory; small pointers share pages, so that what they cost depends on where they are. */
uint64_t linear_cost(uint64_t bytes);
CUresult linear_end(CUresult result, struct slot *slot, uint64_t ptr, uint64_t bytes);
/* The page of something small without an address; a page was reserved for it, which goes back when another pays. */
uint64_t block_join(struct slot *slot, uint64_t bytes);
void page_leave(const struct ledger_entry *entry);

/* graph.c, memory.c: has the driver return what it keeps unused, of one slot or (NULL) of all where something was freed; the
 * bytes that may still come once frees under way are done. */
uint64_t graphs_reclaim(struct slot *slot);
uint64_t later_reclaim(const struct slot *slot);
/* charge_begin for memory of graphs, and what follows an allocation that was captured. */
bool graph_begin(struct slot *slot, uint64_t bytes);
struct capturing { void *stream, *graph; };
CUresult graph_captured_alloc(CUresult result, struct slot *slot, const struct capturing *into, uint64_t bytes,
                              const CUdeviceptr *ptr);
void graph_freed(CUdeviceptr ptr);
/* graph.c: the driver has destroyed a graph whose name has been taken out. */
void graph_dropped(const struct ledger_entry *name);
void shared_reclaim(void);           /* share.c */
extern _Atomic bool shares_are_kept; /* some memory, by descriptors alone */
/* Something was freed: the next completion point looks. */
extern HIDDEN _Atomic int memory_freed;
static inline void reclaim_later(void) { atomic_store_explicit(&memory_freed, 1, memory_order_relaxed); }
/* reclaim.c */
uint64_t reclaim(struct slot *slot);
void reclaim_now(void); /* as at a completion point, if anything was freed */

#endif
