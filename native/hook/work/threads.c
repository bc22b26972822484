/* threads.c: what each thread keeps for the gate: its record of every GPU and its entry of every stream it uses.
 *
 * Records are carved from pages that are never given back, since a helper may be reading them; when their thread ends
 * the next one takes them over, and so it is with the entries.
 */
#include "work/gate.h"
#include "work/own.h"

#include <linux/membarrier.h>
#include <string.h>
#include <sys/mman.h>

__thread struct gate_mine gate_mine __attribute__((tls_model("initial-exec")));
static pthread_key_t thread_key;
static int key_fault;                                                                        /* 0: there is one */
extern int __cxa_thread_atexit_impl(void (*)(void *), void *, void *) __attribute__((weak)); /* of C++ */
extern char __dso_handle;
static pthread_once_t thread_once = PTHREAD_ONCE_INIT;
static pthread_mutex_t carving = PTHREAD_MUTEX_INITIALIZER;
static struct gate_thread *unused;

void thread_forget(void) { gate_mine.context = NULL; }

void *gate_ask_context(void)
{
    if (REAL(cuCtxGetCurrent, void **)(&gate_mine.context) != CUDA_SUCCESS)
        gate_mine.context = NULL;
    return gate_mine.context;
}

/* The events of the entry are the context's again, unless that has ended. */
static void entry_drop_events(struct gate_entry *entry)
{
    struct own_call call;
    bool any = false;
    for (unsigned i = 0; i < CHECKPOINT_PLACES; i++)
        any |= entry->backlog.ring[i].event != NULL;
    if (entry->watched) {
        pthread_mutex_lock(&entry->context->slot->work.driver_lock);
        checkpoint_unwatch(entry);
        pthread_mutex_unlock(&entry->context->slot->work.driver_lock);
    }
    if (any && own_begin(&call, entry->context, entry->life, OWN_WAIT) == OWN_YES) {
        for (unsigned i = 0; i < CHECKPOINT_PLACES; i++)
            event_give(entry->context, entry->backlog.ring[i].event);
        own_end(&call);
    }
    memset(entry->backlog.ring, 0, sizeof entry->backlog.ring);
    entry->watched = false;
}

static void own_stream_gone(const struct gate_entry *entry)
{
    if (entry->own && !(atomic_load(&entry->record->seq) & 1))
        own_stream_ended(entry->context, entry->life, own_stream_key(entry->record));
}

/* A thread ends, maybe inside the driver's launch, where nothing may be called: its records are even again and may be
 * taken by another thread, like its entries with their events. */
static void thread_ends(void *first)
{
    struct gate_thread *thread = first;
    int tid = (int)syscall(SYS_gettid);
    for (unsigned i = 0; i < GATE_ENTRIES; i++) {
        if (thread->keys[i])
            own_stream_gone(&thread->entries[i]);
        thread->keys[i] = NULL;
    }
    for (unsigned i = 0; slot_at(i); i++)
        for (struct record *record = atomic_load(&slot_at(i)->work.records); record; record = record->next)
            if (atomic_load(&record->in_use) == tid) {
                if (atomic_load(&record->seq) & 1)
                    record_step(record);
                atomic_store(&record->in_use, 0);
            }
    gate_mine = (struct gate_mine){0};
    pthread_mutex_lock(&carving);
    thread->next = unused;
    unused = thread;
    pthread_mutex_unlock(&carving);
}

/* Without membarrier a helper could miss a launch that begins while it looks, so every launch fences then. */
static void first_thread(void)
{
    key_fault = pthread_key_create(&thread_key, thread_ends);
    if (syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) != 0)
        atomic_store(&gate_shared.fence, 1);
}

/* A program may have taken all keys there are. Without either the places of a thread are not taken over when it ends. */
static void await_end(struct gate_thread *thread)
{
    int fault = key_fault ? key_fault : pthread_setspecific(thread_key, thread);
    if (fault && (!__cxa_thread_atexit_impl || __cxa_thread_atexit_impl(thread_ends, thread, &__dso_handle) != 0))
        say_refused(REFUSED_KEY, fault);
}

static void *carve(size_t bytes)
{
    static char *next;
    static size_t left;
    if (left < bytes) {
        void *pages = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        next = pages == MAP_FAILED ? NULL : pages;
        left = next ? 1 << 20 : 0;
    }
    void *part = left ? next : NULL;
    next += left ? bytes : 0;
    left -= left ? bytes : 0;
    return part;
}

static struct gate_thread *this_thread(void)
{
    if (gate_mine.thread)
        return gate_mine.thread;
    pthread_once(&thread_once, first_thread);
    pthread_mutex_lock(&carving);
    struct gate_thread *thread = unused;
    if (thread)
        unused = thread->next;
    else
        thread = carve(sizeof *thread);
    pthread_mutex_unlock(&carving);
    if (thread)
        await_end(thread);
    return gate_mine.thread = thread;
}

static struct record *record_of(struct slot *slot)
{
    int tid = (int)syscall(SYS_gettid);
    for (struct record *record = atomic_load(&slot->work.records); record; record = record->next)
        if (atomic_load(&record->in_use) == tid)
            return record;
    for (struct record *record = atomic_load(&slot->work.records); record; record = record->next) {
        int idle = 0;
        if (atomic_compare_exchange_strong(&record->in_use, &idle, tid))
            return record;
    }
    pthread_mutex_lock(&carving);
    struct record *record = carve((sizeof *record + 63) & ~(size_t)63);
    pthread_mutex_unlock(&carving);
    if (!record)
        return NULL;
    record->slot = slot;
    atomic_store(&record->in_use, tid);
    record->next = atomic_load(&slot->work.records);
    while (!atomic_compare_exchange_weak(&slot->work.records, &record->next, record))
        ;
    return record;
}

uint64_t slot_launches(struct slot *slot, bool *inside)
{
    uint64_t sum = 0;
    *inside = false;
    for (struct record *record = atomic_load(&slot->work.records); record; record = record->next) {
        uint64_t seq = atomic_load(&record->seq);
        sum += (seq + 1) / 2;
        *inside |= seq & 1;
    }
    return sum;
}

/* The context that a launch into this stream runs in: the stream's, whatever is current. */
static void *context_of_stream(void *stream)
{
    void *context = NULL, *green;
    if ((uintptr_t)stream <= (uintptr_t)STREAM_PER_THREAD)
        return gate_ask_context();
    if (REAL(cuStreamGetCtx, void *, void **)(stream, &context) == CUDA_SUCCESS && context)
        return context;
    if (REAL(cuStreamGetCtx_v2, void *, void **, void **)(stream, &context, &green) == CUDA_SUCCESS && context)
        return context;
    return gate_ask_context();
}

/* The place for a key that is not here: never one that a launch of this thread is inside of. */
static unsigned victim(struct gate_thread *thread, const void *key)
{
    unsigned set = gate_set(key);
    for (unsigned i = 0; i < GATE_WAYS; i++)
        if (!thread->keys[set + i] || thread->keys[set + i] == key)
            return set + i;
    for (unsigned i = 0; i < GATE_WAYS; i++) {
        unsigned at = set + thread->turn++ % GATE_WAYS;
        if (!(atomic_load(&thread->entries[at].record->seq) & 1))
            return at;
    }
    return GATE_ENTRIES;
}

static bool fill(struct gate_entry *entry, void *stream, bool own, struct gpu_context *context)
{
    static const aliquot_page closed;
    struct record *record = record_of(context->slot);
    if (!record)
        return false;
    if (entry->context != context || entry->life != context->life)
        entry_drop_events(entry);
    backlog_forget(entry);
    entry->record = record;
    entry->page = &closed;
    entry->revision = GATE_CLOSED;
    entry->own = (stream == STREAM_PER_THREAD) || (!stream && own);
    entry->stream = entry->own ? STREAM_PER_THREAD : stream ? stream : STREAM_LEGACY;
    entry->context = context;
    entry->life = context->life;
    entry->noted_epoch = atomic_load(&context->slot->work.stream_epoch) - 1;
    entry->count[0] = entry->count[1] = 0;
    entry->backlog.began_ns = now_ns();
    entry->backlog.sampling = 0;
    entry->backlog.suspect_ns = entry->backlog.suspect_wait_ns = 0;
    entry->backlog.mean_ns = 0;
    entry->fresh = true;
    return true;
}

/* This thread's entry of the stream; NULL: no context, or not a GPU of the tenant. */
struct gate_entry *entry_of(void *stream, bool own)
{
    struct gate_thread *thread = this_thread();
    void *key = thread ? gate_key(stream, own) : NULL;
    if (!key)
        return NULL;
    uint64_t epoch = atomic_load(&gate_shared.epoch);
    unsigned set = gate_set(key);
    for (unsigned at = set; at < set + GATE_WAYS; at++)
        if (thread->keys[at] == key && thread->entries[at].epoch == epoch)
            return &thread->entries[at];
    struct gpu_context *context = context_of(context_of_stream(stream), false);
    unsigned at = context ? victim(thread, key) : GATE_ENTRIES;
    if (at == GATE_ENTRIES)
        return NULL;
    struct gate_entry *entry = &thread->entries[at];
    if (thread->keys[at] == key && entry->context == context && entry->life == context->life) {
        entry->epoch = epoch; /* something else ended */
        return entry;
    }
    if (thread->keys[at]) { /* what it knows of its launches is not lost */
        own_stream_gone(entry);
        backlog_look(entry);
    }
    thread->keys[at] = NULL;
    gate_mine.key = gate_mine.last = NULL;
    if (!fill(entry, stream, own, context))
        return NULL;
    entry->epoch = epoch;
    thread->keys[at] = key;
    return entry;
}

void thread_after_fork(void)
{
    pthread_mutex_init(&carving, NULL);
    gate_mine = (struct gate_mine){0};
}
