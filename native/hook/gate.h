/* gate.h: the fast path of a launch, inlined into every gated hook.
 *
 * One acquire load of the grant word, the second line of defence is the time stamp counter against the deadline. No
 * system call, no lock, no allocation, no atomic read-modify-write: the record belongs to this thread alone.
 */
#ifndef ALIQUOT_GATE_H
#define ALIQUOT_GATE_H

#include "hook.h"
#include <x86intrin.h>

struct gate_cache {
    struct record *record; /* NULL: ask the slow path */
    const aliquot_page *page;
    void *stream;
    uint64_t deadline_tsc;
    uint32_t word;
    uint32_t own;
    uint32_t bounded;
};
extern HIDDEN __thread struct gate_cache gate_cache __attribute__((tls_model("initial-exec")));
extern HIDDEN _Atomic int capture_count;

HIDDEN void gate_slow(void *stream, bool own);
HIDDEN void gate_bound(void *stream, bool own);

static inline void record_step(struct record *record)
{
    uint64_t seq = atomic_load_explicit(&record->seq, memory_order_relaxed);
    atomic_store_explicit(&record->seq, seq + 1, memory_order_relaxed);
}

static inline void gate_enter(void *stream, uint32_t own)
{
    struct gate_cache *cache = &gate_cache;
    struct record *record = cache->record;
    if (__builtin_expect(record != NULL, 1)) {
        record_step(record);
        atomic_signal_fence(memory_order_seq_cst);
        uint32_t word = page_word(cache->page);
        if (__builtin_expect(
                word == cache->word && stream == cache->stream && own == cache->own &&
                    atomic_load_explicit(&record->slot->given_back, memory_order_relaxed) != word &&
                    page_waiters(cache->page) == 0 &&
                    atomic_load_explicit(&capture_count, memory_order_relaxed) == 0 && __rdtsc() < cache->deadline_tsc,
                1))
            return;
        uint64_t seq = atomic_load_explicit(&record->seq, memory_order_relaxed);
        atomic_store_explicit(&record->seq, seq - 1, memory_order_relaxed);
    }
    gate_slow(stream, own);
}

static inline void gate_leave(void *stream, uint32_t own)
{
    struct gate_cache *cache = &gate_cache;
    struct record *record = cache->record;
    if (__builtin_expect(record == NULL, 0))
        return;
    if (__builtin_expect(cache->bounded != 0, 0))
        gate_bound(stream, own);
    if (atomic_load_explicit(&record->seq, memory_order_relaxed) & 1)
        record_step(record);
}

enum sync_scope { SYNC_CONTEXT, SYNC_STREAM, SYNC_WEAK };
struct sync_mark {
    struct slot *slot;
    uint64_t launches;
};
HIDDEN struct sync_mark sync_begin(void);
HIDDEN void sync_end(struct sync_mark mark, CUresult result, enum sync_scope scope, void *subject);

#endif
