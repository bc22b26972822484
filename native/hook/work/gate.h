/* gate.h: the fast path of a launch, inlined into every gated hook.
 *
 * One acquire load of the grant word decides. Whatever else may stop a launch (a deadline that has passed, a token given
 * back, a capture, a context that has ended) raises gate_shared.revision, which sends every thread over the slow path
 * once. No system call, no lock, no allocation, no clock, no atomic read-modify-write: entry and record belong to this
 * thread alone.
 */
#ifndef ALIQUOT_GATE_H
#define ALIQUOT_GATE_H

#include "slot.h"

#define GATE_WAYS 8
#define GATE_ENTRIES 64
#define GATE_CLOSED 0u /* no revision: the slow path is taken */
#define CHECKPOINTS 8
#define CHECKPOINT_PLACES (CHECKPOINTS + 1) /* the last one reached keeps its event: times are measured from it */

enum launch_weight { LAUNCH_KERNEL, LAUNCH_GRAPH };

/* An event behind some launches of one thread into one stream, and what they are thought to cost. */
struct checkpoint {
    void *event;
    uint32_t count[2];
    uint64_t cost_ns, began_ns, recorded_ns; /* none launched before, all launched by */
    uint64_t unfinished_ns, reached_ns;      /* last seen not reached, first seen reached; 0: not yet */
    uint64_t recorded_shared, unfinished_shared, reached_shared; /* the slot's shared_ns at those times */
};

/* What of one stream's launches of one thread was not seen to have ended: backlog.c. */
struct backlog {
    uint64_t began_ns, ended_low_ns, ended_high_ns, ended_shared, mean_ns; /* mean: of the last launches */
    uint64_t suspect_ns, suspect_wait_ns;
    unsigned sampling, first, used;
    struct checkpoint ring[CHECKPOINT_PLACES];
};

/* What this thread knows of one stream. The first lines are what every launch reads. */
struct gate_entry {
    struct record *record;
    const aliquot_page *page;
    uint32_t word;         /* the grant under which the stream was noted */
    uint32_t in_flight_us; /* the page's when the credit was set */
    uint64_t revision;     /* of gate_shared; GATE_CLOSED */
    int64_t credit_ns;     /* may be launched before the next checkpoint */
    uint64_t cost_ns[2];
    uint32_t count[2]; /* launches since the last checkpoint */
    uint32_t own;      /* this thread's default stream */
    unsigned noted_epoch;
    bool fresh; /* no credit was set yet */
    uint64_t epoch;
    void *stream; /* as passed to the driver */
    struct gpu_context *context;
    uint64_t life, look_ns, sample_ns, await_ns;
    struct gate_entry *next_watched; /* in the context's list: the helper looks at the ring too, with the driver_lock */
    bool watched;
    struct backlog backlog;
} __attribute__((aligned(64)));

struct gate_thread {
    void *keys[GATE_ENTRIES] __attribute__((aligned(64)));
    struct gate_entry entries[GATE_ENTRIES];
    struct gate_thread *next;
    unsigned turn;
};

/* What a launch of this thread begins with. `last` is the entry of its last launch, under `key`: a driver takes a lock,
 * which waits until everything stored before is out, so the address of the record must not be the end of a long sequence
 * of loads and multiplications. */
struct gate_mine {
    struct gate_thread *thread;
    void *context; /* current; NULL: ask */
    void *key;
    struct gate_entry *last;
} __attribute__((aligned(32)));
extern HIDDEN __thread struct gate_mine gate_mine __attribute__((tls_model("initial-exec")));

HIDDEN __attribute__((cold)) void *gate_ask_context(void);
HIDDEN __attribute__((cold)) struct gate_entry *gate_slow(void *stream, bool own);
HIDDEN __attribute__((cold)) void gate_checkpoint(struct gate_entry *entry);
HIDDEN __attribute__((cold)) void gate_checkpoint_awaited(struct gate_entry *entry);
/* threads.c */
HIDDEN struct gate_entry *entry_of(void *stream, bool own);
/* longest.c */
HIDDEN bool longest_note(struct slot *slot, const struct checkpoint *point, uint64_t low);
/* checkpoint.c */
HIDDEN bool checkpoint_reached(struct slot *slot, struct checkpoint *point);
HIDDEN uint64_t checkpoint_shared(struct slot *slot, uint64_t now);
HIDDEN uint64_t checkpoint_unshared(uint64_t from, uint64_t until, uint64_t shared_from, uint64_t shared_until);
HIDDEN uint64_t checkpoint_between(const struct checkpoint *earlier, const struct checkpoint *later);
HIDDEN void checkpoint_watch(struct gate_entry *entry);
HIDDEN void checkpoint_unwatch(struct gate_entry *entry);
/* backlog.c */
HIDDEN int backlog_look(struct gate_entry *entry);
HIDDEN void backlog_forget(struct gate_entry *entry);
HIDDEN bool backlog_add(struct gate_entry *entry, uint64_t now);
HIDDEN void backlog_wait(struct gate_entry *entry);
HIDDEN uint64_t backlog_bound(const struct gate_entry *entry);
HIDDEN void backlog_credit(struct gate_entry *entry);

static inline void record_step(struct record *record)
{
    uint64_t seq = atomic_load_explicit(&record->seq, memory_order_relaxed);
    atomic_store_explicit(&record->seq, seq + 1, memory_order_release);
}

/* What a launch passes is inlined whatever else its file holds: gcc stops where a file has grown by too much. */
#define ALWAYS static inline __attribute__((always_inline))

/* A stream with a name is its own key; a default stream is one of the current context. NULL: no context. */
ALWAYS void *gate_key(void *stream, bool own)
{
    if (LIKELY((uintptr_t)stream > (uintptr_t)STREAM_PER_THREAD))
        return stream;
    char *context = gate_mine.context ? gate_mine.context : gate_ask_context();
    return context ? context + (stream == STREAM_PER_THREAD || (!stream && own) ? 2 : 1) : NULL;
}

/* Mixed twice: handles that lie at even distances must not share a set. */
static inline unsigned gate_set(const void *key)
{
    uint64_t mixed = (uintptr_t)key * 0x9E3779B97F4A7C15u;
    return (unsigned)(((mixed ^ mixed >> 32) * 0xFF51AFD7ED558CCDu) >> 61) * GATE_WAYS;
}

ALWAYS bool gate_open(const struct gate_entry *entry)
{
    return page_word(entry->page) == entry->word && page_in_flight_us(entry->page) == entry->in_flight_us &&
           atomic_load_explicit(&gate_shared.revision, memory_order_relaxed) == entry->revision;
}

/* Where it is not the last one's; NULL: none yet. */
static __attribute__((noinline, unused)) struct gate_entry *gate_find(struct gate_thread *thread, void *key)
{
    unsigned at = gate_set(key), end = at + GATE_WAYS;
    for (; key && at < end; at++)
        if (thread->keys[at] == key) {
            gate_mine.key = key;
            return gate_mine.last = &thread->entries[at];
        }
    return NULL;
}

/* The entry to leave by; NULL: not gated. */
ALWAYS struct gate_entry *gate_enter(void *stream, bool own)
{
    struct gate_thread *thread = gate_mine.thread;
    void *key = thread ? gate_key(stream, own) : NULL;
    struct gate_entry *entry = gate_mine.last;
    if (UNLIKELY(!key || key != gate_mine.key))
        entry = gate_find(thread, key);
    if (UNLIKELY(!entry))
        return gate_slow(stream, own);
    struct record *record = entry->record;
    uint64_t seq = atomic_load_explicit(&record->seq, memory_order_relaxed);
    if (UNLIKELY(seq & 1))
        return gate_slow(stream, own);
    atomic_store_explicit(&record->seq, seq + 1, memory_order_relaxed);
    atomic_signal_fence(memory_order_seq_cst);
    if (UNLIKELY(atomic_load_explicit(&gate_shared.fence, memory_order_relaxed)))
        atomic_thread_fence(memory_order_seq_cst);
    if (LIKELY(gate_open(entry)))
        return entry;
    atomic_store_explicit(&record->seq, seq, memory_order_relaxed);
    return gate_slow(stream, own);
}

static inline void gate_leave(struct gate_entry *entry, enum launch_weight weight)
{
    if (UNLIKELY(!entry))
        return;
    entry->count[weight]++;
    entry->credit_ns -= (int64_t)entry->cost_ns[weight];
    if (UNLIKELY(entry->credit_ns < 0 || entry->own))
        gate_checkpoint(entry);
    record_step(entry->record);
}

/* The thread is about to wait, or asks whether work has ended. */
static inline void gate_awaits(void)
{
    struct gate_entry *entry = gate_mine.last;
    if (entry && (entry->count[LAUNCH_KERNEL] || entry->count[LAUNCH_GRAPH]))
        gate_checkpoint_awaited(entry);
}

#endif
