/* hook.h: what the parts of the hook share.
 *
 * A *slot* is one GPU as this process sees it; a *record* is one thread's use of one slot. The books of a GPU's memory
 * are in its slot, behind one mutex; the launch path reads slots and records without any.
 */
#ifndef ALIQUOT_HOOK_H
#define ALIQUOT_HOOK_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "aliquot_abi.h"
#include "cuda_api.h"
#include "gen/symbols.h"
#include "page_wake.h"

#define HIDDEN __attribute__((visibility("hidden")))
#define EXPORT __attribute__((visibility("default")))
#define MAX_SLOTS 32
#define SLAB_BYTES (64ull << 20)
#define PATH_BYTES 512

/* trampoline.h compares with 2. */
enum aliquot_mode { MODE_UNKNOWN = 0, MODE_PASS = 1, MODE_HELD = 2, MODE_BROKEN = 3 };

struct symbol_row {
    const char *name;
    void *hook; /* NULL: not intercepted */
};

struct version_row {
    const char *name; /* as asked of cuGetProcAddress */
    int version;
    int own_stream; /* 1: the per-thread default stream twin */
    int symbol;
};

struct conf {
    char tenant[128], socket[PATH_BYTES], libcuda[PATH_BYTES], libnvml[PATH_BYTES], cpus[256];
    uint64_t patience_ms; /* how long an allocation waits for an arbiter that is away; 0: the default */
};

/* One thread's use of one slot. `seq` is odd while the thread is inside the driver's launch. */
struct record {
    _Atomic uint64_t seq;
    struct slot *slot;
    _Atomic int in_use;
    unsigned strikes; /* waits in a row for earlier work that ran out of patience */
    uint64_t lifted_until_ns, cost_ns[2];
    struct record *next;
};

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

struct slot {
    _Atomic int state; /* enum slot_state */
    _Atomic int launches; /* 1: takes part in turns; 0: so far this process has only asked */
    int device;        /* CUDA ordinal, -1: known by uuid only (NVML) */
    uint8_t uuid[16];
    _Atomic uint32_t number; /* the arbiter's slot number */
    _Atomic(aliquot_page *) page;
    _Atomic uint64_t boot_id;
    pthread_mutex_t lock;
    /* the token */
    _Atomic uint32_t given_back; /* the word that was returned by ourselves, or parked(word); ~0 = none */
    _Atomic uint32_t answered;   /* the CLOSED word DRAINED was sent for */
    _Atomic uint32_t asked;      /* the word that WANT was sent for, or parked(word) once it was returned; ~0 = none */
    _Atomic uint64_t wanted_ns;  /* when */
    _Atomic int waiting;
    _Atomic uint64_t pace_until_ns, pace_sleep_ns;
    _Atomic(struct record *) records;
    _Atomic int helper_running;
    _Atomic int helper_missing; /* 1: none can be started; 2: a thread of the program does its work just now */
    /* the work */
    pthread_mutex_t driver_lock;   /* own calls, and calls that end what own calls name; see own.h */
    _Atomic unsigned stream_epoch; /* raised whenever a noted stream is forgotten */
    uint32_t seen_word;
    uint64_t seen_launches, finished_launches;
    _Atomic uint64_t burst_start_ns, last_active_ns, burst_max_ns, burst_max_at_ns;
    uint64_t idle_from_ns, looked_ns; /* the helper's */
    uint32_t used_word;               /* the last grant that something was launched under */
    struct stay stay;
    /* the longest launch lately: longest.c */
    _Atomic uint64_t longest_ns;
    uint64_t longest_before_ns, longest_since_ns, longest_told_ns, longest_told_at_ns, longest_told_boot;
    /* what of the time until then other tenants' work had: checkpoint.c, with the driver_lock held */
    uint64_t shared_ns, shared_at_ns, watched_ns; /* the last is the helper's */
    uint32_t others;
    /* the memory: lease.c, charge.c and graph.c */
    pthread_rwlock_t books; /* shared by allocations from their reservation to their entry; alone when one was refused */
    uint64_t leased, context_bytes, context_each;
    _Atomic uint64_t unused; /* changed under the lock, read without */
    uint64_t reserved_ns, released_ns; /* when memory was last reserved, and last given back to the arbiter */
    bool unheard;                      /* given back since the arbiter's last answer: its figures may lag behind */
    uint32_t demand_answered;
    _Atomic unsigned contexts; /* likewise */
    _Atomic bool primary_charged;
    _Atomic uint64_t owner; /* of what ends with the primary context, 0: nothing was entered since it last ended */
    pthread_mutex_t primary_lock; /* taken before driver_lock and lock */
    uint64_t graph_bytes, graph_charge; /* of living graphs; charged for them and for what the device keeps of others */
    uint64_t graph_lost, graph_looked_ns; /* in use though their graphs are gone, and when that was last read */
    uint64_t graph_step; /* what the device takes at a time, as far as is known */
    _Atomic uint64_t graph_gone_ns; /* when a graph last ended, or its memory was freed */
    uint64_t block, block_left; /* the page that arrays share now, and how much of it is left (page.c) */
    _Atomic uint64_t pool_step;        /* what pools of this GPU grow by, as far as is known */
};

enum slot_state { SLOT_EMPTY = 0, SLOT_KNOWN, SLOT_HELD, SLOT_REFUSED, SLOT_AWAY, SLOT_VIEWED };

/* What tests and benches read; fields are only ever added at the end. The caller says in `size` how many bytes it has room
 * for and gets no more; `size` is then how many there are. */
struct aliquot_stats {
    uint64_t size, mode, launches, waits, passes, unknown_names, mapped_symbols, names, wants, returns, drains,
        reconnects, reserved_bytes, leased_bytes, unused_bytes, ledger_entries, denied, bounded, captures, disagreed,
        events, fenced, unbalanced;
};
EXPORT int aliquot_stats(struct aliquot_stats *out);

struct counters {
    _Atomic uint64_t waits, passes, unknown, mapped, wants, returns, drains, reconnects, denied, bounded, disagreed,
        events, unbalanced, ungated_ns;
};
extern HIDDEN struct counters aliquot_counters;
extern HIDDEN _Atomic int aliquot_mode;
extern HIDDEN struct conf aliquot_conf;
/* What every launch reads beside its page. `revision` is raised whenever threads must read it again before they launch
 * on; `epoch` as well whenever a context or stream ends, since a new one may get the same handle. `fence`: the kernel
 * refused membarrier, so each launch needs a fence of its own. `awaited`: helpers that want to hear of completions. */
struct gate_shared {
    _Atomic uint64_t revision, epoch;
    _Atomic int captures, fence, awaited;
} __attribute__((aligned(64)));
extern HIDDEN struct gate_shared gate_shared;
static inline void gate_look_anew(void)
{
    atomic_fetch_add(&gate_shared.revision, 1);
}
static inline void gate_object_ends(void)
{
    atomic_fetch_add(&gate_shared.epoch, 1);
    gate_look_anew();
}
extern HIDDEN void *aliquot_real[ALIQUOT_SYMBOL_COUNT];
extern HIDDEN const struct symbol_row aliquot_symbols[ALIQUOT_SYMBOL_COUNT];
extern HIDDEN const struct version_row aliquot_versions[];
extern HIDDEN void *(*aliquot_true_dlsym)(void *, const char *);
extern HIDDEN void *(*aliquot_true_dlvsym)(void *, const char *, const char *);

/* Entries change once, from the lazy stub to the function, and both may be called. */
#define REAL_AT(symbol, ...) ((CUresult (*)(__VA_ARGS__))__atomic_load_n(&aliquot_real[symbol], __ATOMIC_RELAXED))
#define REAL(symbol, ...) REAL_AT(SYM_##symbol, __VA_ARGS__)
#define COUNT(what) atomic_fetch_add_explicit(&aliquot_counters.what, 1, memory_order_relaxed)

/* conf.c: reads the tenant's record once; returns the mode. */
int conf_load(void);
/* conf_path.c: where that record is. */
void conf_path(char path[PATH_BYTES]);
/* real.c */
void *real_library(bool nvml);
void *real_symbol(int symbol);
void *aliquot_resolve(long symbol);
bool real_is_nvml(const char *name);
void true_dl_find(void);
/* procaddr.c: the hook of a real pointer, or NULL; `name` settles pointers that several symbols share. */
void *hook_of(void *pointer, const char *name);
/* gate.c, threads.c, wait.c */
struct slot *thread_slot(void);
void thread_forget(void);
void thread_after_fork(void);
uint64_t slot_launches(struct slot *slot, bool *inside);
bool wait_for_token(struct slot *slot, uint64_t *until_ns);
/* fail.c: may this slot launch without an arbiter? Sets the end of the permission, or sleeps and says no. */
bool fail_allows(struct slot *slot, uint64_t *until_ns);
/* Has the arbiter given no sign of life for seconds? It is stopped, or the machine is; the connection does not show it. */
bool arbiter_silent(const aliquot_page *page);
/* One line on stderr, once: there is no arbiter. */
void say_unreached(void);
/* Likewise: the tenant has as many processes as it may. */
void say_crowded(unsigned most);
/* Likewise: the system refuses the hook a thread, or a handler of its own. */
enum refused { REFUSED_THREAD, REFUSED_FORK, REFUSED_EXIT, REFUSED_KEY };
void say_refused(enum refused what, int fault);
/* last.c: only helpers are left of the process's threads. */
bool program_has_ended(uint64_t *looked_ns);
/* link.c */
struct slot *slot_of_device(int device);
struct slot *slot_of_uuid(const uint8_t uuid[16]);
struct slot *slot_at(unsigned index);
bool slot_attach(struct slot *slot); /* to allocate and launch: from now on the arbiter waits for our answers */
bool slot_view(struct slot *slot);   /* to ask only */
bool link_send(const aliquot_message *message);
bool link_ask(aliquot_message *message, uint16_t expect, int *fd);
bool link_alive(void);
bool link_shares(void); /* the arbiter keeps books of what processes share */
bool link_revive(void);
bool link_crowded(void); /* the arbiter takes no more processes of the tenant for now */
/* Reports to the arbiter what of this process bypassed the hook since the last report; one comparison if nothing. */
void link_report(void);
bool link_report_longest(const struct slot *slot, uint64_t longest_ns);
void link_after_fork(void);
void slots_after_fork(void);
/* stay.c */
uint64_t stay_ns(const struct slot *slot, const aliquot_page *page);
uint64_t stay_cost_ns(const struct slot *slot);
bool stay_is_short(const struct slot *slot, const aliquot_page *page);
void stay_granted(struct slot *slot, const aliquot_page *page, uint64_t wanted, uint64_t now);
void stay_pause_begins(struct slot *slot, uint64_t at);
void stay_pause_ends(struct slot *slot);
void stay_returned(struct slot *slot, uint64_t now);
void stay_returned_in_vain(struct slot *slot);
void stay_await(struct slot *slot, bool wanted);
void stay_hint(void);
/* longest.c, checkpoint.c */
void longest_tell(struct slot *slot);
void checkpoints_look(struct slot *slot, bool now_or_never);
/* helper.c, burst.c */
void helper_start(struct slot *slot);
void helper_stand_in(struct slot *slot);
bool has_drained(struct slot *slot, uint32_t word);
void answer_drained(struct slot *slot, uint32_t word);
bool streams_idle(struct slot *slot, uint64_t launches);
void streams_mark(struct slot *slot);
bool streams_marked_idle(struct slot *slot);
void streams_forget(struct slot *slot);
void burst_tick(struct slot *slot, bool active, uint64_t now);
uint64_t burst_estimate(struct slot *slot, uint64_t now);
/* capture.c */
bool capture_running(void);
bool capture_possible(void);
bool stream_captures(void *stream, bool own);
void *capture_graph(void *stream, bool own); /* the graph that it captures into; NULL: none, or the driver cannot say */
void captures_abandoned(void);               /* gives back what captures held that ended with their stream or context */
void captures_after_fork(void);
/* lease.c: bytes of a slot's limit; charge.h has what only the memory's files need. */
bool context_reserve(struct slot *slot);
void context_release(struct slot *slot);
void memory_restore(struct slot *slot);
uint64_t memory_held(struct slot *slot);
void memory_release(struct slot *slot, uint64_t bytes);
void memory_tick(struct slot *slot, const aliquot_page *page);
/* ledger.c: what is charged for which handle. Each call is one locked operation. */
enum ledger_kind {
    LEDGER_POINTER = 1,
    LEDGER_ARRAY,
    LEDGER_VMM, /* a handle; other: the memory behind it */
    LEDGER_MAP, /* a mapping; other: the memory behind it */
    LEDGER_GRAPH,
    LEDGER_ASYNC, /* a pointer of a pool; other: the pool */
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
    uint64_t page;         /* the page that it shares with others, 0: none; of an object: its number at the arbiter, which
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
/* charge.c: a number for what ends with a new context, 0: none could be had; and its end. */
uint64_t owner_new(void);
void owner_ended(uint64_t owner);
/* graph.c: the driver has destroyed a graph whose name has been taken out. */
void graph_dropped(const struct ledger_entry *name);
/* pool.c */
void pools_refresh(void);
/* Work may have ended. */
static inline void completed(CUresult result)
{
    if (atomic_load_explicit(&gate_shared.awaited, memory_order_relaxed) && result == CUDA_SUCCESS)
        stay_hint();
    pools_refresh();
}
void pools_after_fork(void);
/* fork.c: called by one thread at a time */
void fork_watch(void);
/* cpu.c */
void cpu_bind(void);
/* clock.c */
uint64_t now_ns(void);

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
/* From here to the end of the block this thread is not cancelled: it would take a lock along, or what it has charged. */
#define UNCANCELLED() __attribute__((cleanup(cancel_as_before), unused)) const int cancel_before = cancel_not_now()
static inline int cancel_not_now(void)
{
    int before = PTHREAD_CANCEL_ENABLE;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    return before;
}

static inline void cancel_as_before(const int *before)
{
    pthread_setcancelstate(*before, NULL);
}

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
static inline uint32_t own_bit(void)
{
    return 1u << (unsigned)getpid() % 31; /* not PAGE_WAKE_LAUNCH */
}
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
/* While its work has ended and it is not certain yet that it is to be given back: the next launch takes it up again. */
static inline uint32_t parked(uint32_t word)
{
    return word | 2;
}
static inline uint32_t page_word(const aliquot_page *page)
{
    return __atomic_load_n(&page->word, __ATOMIC_ACQUIRE);
}
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
