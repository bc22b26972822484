/* gate.c: the slow half of the gate, and each thread's use of a GPU.
 *
 * Launches into a capturing stream are neither gated nor counted; whatever can not be decided (no context, a library
 * without a tenant) is left to the driver to answer.
 */
#include "gate.h"

#include <string.h>
#include <sys/mman.h>

#define BOUND_PATIENCE_NS 2000000000u

__thread struct gate_cache gate_cache __attribute__((tls_model("initial-exec")));
static pthread_key_t thread_key;
static pthread_once_t thread_once = PTHREAD_ONCE_INIT;

void thread_forget(void)
{
    gate_cache.record = NULL;
}

/* A thread ends: its records may be taken by another. */
static void thread_ends(void *first)
{
    (void)first;
    for (unsigned i = 0; i < MAX_SLOTS; i++) {
        struct slot *slot = slot_at(i);
        struct record *record = slot ? atomic_load(&slot->records) : NULL;
        for (; record; record = record->next)
            if (atomic_load(&record->in_use) == (int)syscall(SYS_gettid))
                atomic_store(&record->in_use, 0);
    }
    gate_cache.record = NULL;
}

static void make_key(void)
{
    pthread_key_create(&thread_key, thread_ends);
}

/* Records are carved from pages that are never given back: a helper may be reading them. */
static struct record *carve(void)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static struct record *next;
    static unsigned left;
    pthread_mutex_lock(&lock);
    if (left == 0) {
        void *pages = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        next = pages == MAP_FAILED ? NULL : pages;
        left = next ? 65536 / sizeof *next : 0;
    }
    struct record *record = left ? (left--, next++) : NULL;
    pthread_mutex_unlock(&lock);
    return record;
}

static struct record *find_record(struct slot *slot)
{
    int tid = (int)syscall(SYS_gettid);
    for (struct record *record = atomic_load(&slot->records); record; record = record->next)
        if (atomic_load(&record->in_use) == tid)
            return record;
    pthread_once(&thread_once, make_key);
    pthread_setspecific(thread_key, slot);
    for (struct record *record = atomic_load(&slot->records); record; record = record->next) {
        int idle = 0;
        if (atomic_compare_exchange_strong(&record->in_use, &idle, tid)) {
            record->stream_epoch = ~0u;
            return record;
        }
    }
    struct record *record = carve();
    if (!record)
        return NULL;
    record->slot = slot;
    record->stream_epoch = ~0u;
    atomic_store(&record->in_use, tid);
    record->next = atomic_load(&slot->records);
    while (!atomic_compare_exchange_weak(&slot->records, &record->next, record))
        ;
    return record;
}

/* This thread's records of the slots used lately; a record stays with its thread to the end. */
static __thread struct record *mine[8] __attribute__((tls_model("initial-exec")));

void thread_after_fork(void)
{
    memset(mine, 0, sizeof mine);
    thread_forget();
}

struct record *record_of(struct slot *slot)
{
    struct record **known = &mine[((uintptr_t)slot / sizeof *slot) % 8];
    if (!*known || (*known)->slot != slot)
        *known = find_record(slot);
    return *known;
}

uint64_t slot_launches(struct slot *slot, bool *inside)
{
    uint64_t sum = 0;
    *inside = false;
    for (struct record *record = atomic_load(&slot->records); record; record = record->next) {
        uint64_t seq = atomic_load(&record->seq);
        sum += (seq + 1) / 2;
        *inside |= seq & 1;
    }
    return sum;
}

/* The slot of the current context's GPU, attached; NULL: no context, or not ours to gate. */
struct slot *thread_slot(void)
{
    int device = -1;
    if (conf_load() != MODE_HELD || REAL(cuCtxGetDevice, int *)(&device) != CUDA_SUCCESS)
        return NULL;
    struct slot *slot = slot_of_device(device);
    return slot && slot_attach(slot) ? slot : NULL;
}

/* Waits until the launch `max_in_flight` back has ended, so that little is left to drain when the token goes. Not for
 * ever: the stream may be waiting for something that this very thread is about to do. */
static void bound_before(struct record *record, uint32_t depth)
{
    if (depth == 0 || depth > 32)
        depth = 32;
    void *event = record->ring[(record->ring_at - depth) % 32];
    if (record->ring_at < depth || !event)
        return;
    uint64_t patience = now_ns() + BOUND_PATIENCE_NS;
    long nap = 10000;
    while (REAL(cuEventQuery, void *)(event) == CUDA_ERROR_NOT_READY && now_ns() < patience) {
        nanosleep(&(struct timespec){0, nap}, NULL);
        nap = nap < 160000 ? nap * 2 : nap;
    }
}

void gate_bound(void *stream, bool own)
{
    struct record *record = gate_cache.record;
    if (!record || capture_running())
        return;
    void **event = &record->ring[record->ring_at % 32];
    if (!*event && REAL(cuEventCreate, void **, unsigned)(event, EVENT_BLOCKING_NO_TIMING) != CUDA_SUCCESS)
        return;
    void *into = stream ? stream : own ? STREAM_PER_THREAD : STREAM_LEGACY;
    if (REAL(cuEventRecord, void *, void *)(*event, into) != CUDA_SUCCESS)
        *event = NULL; /* of a context that is gone */
    else
        COUNT(bounded);
    record->ring_at++;
}

static void remember(struct slot *slot, struct record *record, void *stream, bool own, uint64_t until_ns)
{
    const aliquot_page *page = atomic_load(&slot->page);
    gate_cache.page = page;
    gate_cache.word = page ? page_word(page) : 0;
    gate_cache.stream = stream;
    gate_cache.own = own;
    gate_cache.deadline_tsc = page ? tsc_at(until_ns) : 0;
    gate_cache.bounded = page && page_waiters(page) > 0 && page->max_in_flight > 0;
    gate_cache.record = page ? record : NULL;
    if (!page)
        record_step(record); /* not followed: nobody will ask */
}

void gate_slow(void *stream, bool own)
{
    struct record *record = gate_cache.record; /* NULL when the current context may be another */
    gate_cache.record = NULL;
    if (capture_running() && stream_captures(stream, own))
        return;
    struct slot *slot = record ? record->slot : thread_slot();
    if (slot && !record)
        record = record_of(slot);
    if (!record) {
        COUNT(passes);
        return;
    }
    const aliquot_page *page = atomic_load(&slot->page);
    if (page && page_waiters(page) > 0 && !capture_running())
        bound_before(record, page->max_in_flight);
    uint64_t until = 0;
    for (;;) {
        record_step(record);
        atomic_thread_fence(memory_order_seq_cst);
        page = atomic_load(&slot->page);
        uint32_t word = page ? page_word(page) : 0;
        uint64_t now = now_ns();
        until = page ? page_deadline(page) : 0;
        if ((word & 3) == ALIQUOT_WORD_VALID && word != atomic_load(&slot->given_back) && now < until)
            break;
        if (now < (until = atomic_load(&slot->pace_until_ns)))
            break;
        atomic_store_explicit(&record->seq, record->seq - 1, memory_order_relaxed);
        if (!wait_for_token(slot, &until)) {
            record_step(record);
            break;
        }
    }
    note_stream(slot, record, stream, own);
    remember(slot, record, stream, own, until);
}

/* A launch on many GPUs: all their tokens, in the order of the list; the arbiter grants a gang at once. */
CUresult on_launch_multi(enum aliquot_symbol symbol, struct launch_params *list, unsigned count, unsigned flags)
{
    for (unsigned i = 0; list && i < count && conf_load() == MODE_HELD; i++) {
        void *context = NULL, *popped;
        if (REAL(cuStreamGetCtx, void *, void **)(list[i].stream, &context) != CUDA_SUCCESS || !context)
            continue;
        REAL(cuCtxPushCurrent_v2, void *)(context);
        thread_forget(); /* the next GPU is another */
        gate_slow(list[i].stream, false);
        REAL(cuCtxPopCurrent_v2, void **)(&popped);
    }
    CUresult result = REAL_AT(symbol, struct launch_params *, unsigned, unsigned)(list, count, flags);
    for (unsigned i = 0; i < MAX_SLOTS && conf_load() == MODE_HELD; i++) {
        struct slot *slot = slot_at(i);
        struct record *record = slot && atomic_load(&slot->records) ? record_of(slot) : NULL;
        if (record && (atomic_load(&record->seq) & 1))
            record_step(record);
    }
    thread_forget();
    return result;
}
